//! The launcher: reaches an agent on each host, gives each its processes, runs the scheduler here,
//! passes on what all of them write, and ends them together.

use std::collections::BTreeMap;
use std::process::Child;
use std::sync::mpsc::{self, Receiver, RecvTimeoutError, Sender};
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail};
use caravan_kv::{ClusterConfig, JobRole, SecretSource, spawn_node};
use rustix::process::{Signal, kill_process_group};

use super::addresses::{Addresses, addresses, free_port};
use super::agent::{at_port, on_exit, pid};
use super::command::{child_variables, program};
use super::descendants;
use super::hosts::{Host, deal};
use super::plan::Plan;
use super::protocol::{End, Node, Order, Said, VERSION, say};
use super::remote::{Agent, Event, ended_by};
use super::threads::on_signals;
use crate::cli::ending::{Failed, Usage};
use crate::report;

/// How long further news are waited for after the first failure: a process that was killed is often
/// missed by others before its agent has said so.
const SETTLE: Duration = Duration::from_millis(300);

/// How long agents have to end everything before they are given up. They kill after less.
const END_WITHIN: Duration = Duration::from_secs(4);

/// How long the scheduler has before it is killed.
const SCHEDULER_WITHIN: Duration = Duration::from_secs(2);

/// Variables, beside `CARAVAN_` ones, that all processes get.
const PASSED_ON: [&str; 2] = ["RUST_LOG", "RUST_BACKTRACE"];

/// Launches a job and waits for its end.
///
/// # Errors
/// [`Failed`] with the status of the first process that failed; hosts that cannot be reached.
pub(super) fn run(plan: &Plan) -> Result<()> {
    descendants::adopt();
    let mut config = plan.config.clone();
    config.node = config.node.for_launch().map_err(|error| Usage(error.to_string()))?;
    config.node.launched = false; // nodes may be there before the scheduler
    // A worker may read what this user may read, as one that a command starts by itself.
    config.node.data_root.get_or_insert_with(|| "/".into());
    let (events, heard) = mpsc::channel();
    let on_signal = events.clone();
    on_signals(move |signal| {
        let _ = on_signal.send(Event::Signal(signal));
    })?;
    let mut job = Job::reach(plan, events, heard, config.node.join_timeout)?;
    job.start(plan, config)?;
    job.watch()
}

/// A process of the job and its place.
struct Member {
    name: String,
    agent: usize,
    has_ended: bool,
}

struct Failure {
    who: String,
    end: End,
}

struct Job {
    agents: Vec<Agent>,
    members: Vec<Member>,
    scheduler: Option<Child>,
    events: Sender<Event>,
    heard: Receiver<Event>,
    /// In the order in which they were heard of.
    failures: Vec<Failure>,
    /// When the others are ended after the first failure.
    ends_at: Option<Instant>,
    /// When they were told to end.
    told: Option<Instant>,
    was_interrupted: bool,
}

impl Job {
    /// Starts an agent on each host that gets a process, and waits until all have answered.
    fn reach(
        plan: &Plan,
        events: Sender<Event>,
        heard: Receiver<Event>,
        within: Duration,
    ) -> Result<Job> {
        let mut job = Job {
            agents: Vec::new(),
            members: Vec::new(),
            scheduler: None,
            events,
            heard,
            failures: Vec::new(),
            ends_at: None,
            told: None,
            was_interrupted: false,
        };
        let ClusterConfig { servers, workers, .. } = plan.config;
        let servers = (0..servers).map(|rank| (JobRole::Server, rank));
        let workers = (0..workers).map(|rank| (JobRole::Worker, rank));
        let hosts = deal(&plan.hosts, plan.config.servers + plan.config.workers);
        let is_alone = plan.hosts.len() == 1 && plan.hosts[0].name == Host::HERE;
        let mut by_host: BTreeMap<usize, Vec<Node>> = BTreeMap::new();
        for (at, (role, rank)) in servers.chain(workers).enumerate() {
            by_host.entry(hosts[at]).or_default().push(Node { at, role, rank });
            let host = &plan.hosts[hosts[at]].name;
            let name = format!("{} {rank}", role.name());
            let name = if is_alone { name } else { format!("{name} on {host}") };
            job.members.push(Member { name, agent: 0, has_ended: false });
        }
        for (host, nodes) in by_host {
            let agent = job.agents.len();
            nodes.iter().for_each(|node| job.members[node.at].agent = agent);
            let host = &plan.hosts[host].name;
            job.agents.push(Agent::start(plan, host, nodes, agent, &job.events)?);
        }
        job.greet(within)?;
        Ok(job)
    }

    fn greet(&mut self, within: Duration) -> Result<()> {
        let until = Instant::now() + within;
        while self.agents.iter().any(|agent| agent.hello.is_none()) {
            match self.heard.recv_timeout(until.saturating_duration_since(Instant::now())) {
                Ok(Event::Hello(at, hello)) if hello.version == VERSION => {
                    self.agents[at].hello = Some(hello);
                }
                Ok(Event::Hello(at, hello)) => bail!(
                    "{} has caravan {}, this is {VERSION}: install the same everywhere",
                    self.agents[at].host,
                    hello.version
                ),
                Ok(Event::Noise(at, line)) => self.noise(at, line),
                Ok(Event::Silent(at, why)) => {
                    let agent = &mut self.agents[at];
                    let why = agent.last_words(why);
                    bail!("cannot reach {}: {why}", agent.host);
                }
                Ok(Event::Signal(signal)) => {
                    let why = "interrupted before the job began".to_owned();
                    return Err(Failed { status: 128 + signal, why }.into());
                }
                Ok(Event::Said(_) | Event::SchedulerEnded) => {}
                Err(RecvTimeoutError::Timeout) => {
                    let silent = self.agents.iter().filter(|agent| agent.hello.is_none());
                    let names: Vec<&str> = silent.map(|agent| agent.host.as_str()).collect();
                    bail!(
                        "no answer from {} within {} s (CARAVAN_JOIN_TIMEOUT_S)",
                        names.join(", "),
                        within.as_secs()
                    );
                }
                Err(RecvTimeoutError::Disconnected) => unreachable!("this holds a sender"),
            }
        }
        Ok(())
    }

    /// Gives the agents their orders, and starts the scheduler.
    fn start(&mut self, plan: &Plan, mut config: ClusterConfig) -> Result<()> {
        let is_given = config.node.scheduler != ClusterConfig::default().node.scheduler;
        let addresses = addresses_of(&self.agents)?;
        let port = if is_given { 0 } else { free_port(addresses.listen)? };
        let SecretSource::Given(secret) = &config.node.secret else {
            unreachable!("a job to launch has a secret")
        };
        let passed_on = PASSED_ON
            .iter()
            .filter_map(|name| Some(((*name).to_owned(), std::env::var(name).ok()?)));
        let passed_on: Vec<(String, String)> = passed_on.collect();
        for (agent, seen) in self.agents.iter_mut().zip(&addresses.of_agents) {
            let mut own = config.clone();
            own.node.host = seen.own.to_string();
            if !is_given {
                own.node.scheduler = at_port(seen.launcher, port);
            }
            let variables = own.to_vars().map(|(name, value)| (name.to_owned(), value));
            let order = Order {
                secret: secret.to_hex(),
                folder: std::env::current_dir().context("this folder is gone")?,
                command: plan.command.clone(),
                variables: variables.chain(passed_on.clone()).collect(),
                nodes: agent.nodes.clone(),
            };
            let input = agent.input.as_mut().context("an agent has an input")?;
            say(input, &order).with_context(|| format!("{} no longer listens", agent.host))?;
        }
        if !is_given {
            config.node.scheduler = at_port(addresses.listen, port);
        }
        config.node.host = addresses.own.to_string();
        config.node.role = Some(JobRole::Scheduler);
        let mut command = program(&plan.command)?;
        command.envs(child_variables(&config));
        let child = spawn_node(&mut command, &config);
        let child = child.with_context(|| format!("cannot start {}", plan.command[0]))?;
        let events = self.events.clone();
        on_exit(pid(&child), move || {
            let _ = events.send(Event::SchedulerEnded);
        })?;
        self.scheduler = Some(child);
        Ok(())
    }

    /// Passes on what processes write until all have ended.
    fn watch(&mut self) -> Result<()> {
        while self.scheduler.is_some() || self.members.iter().any(|member| !member.has_ended) {
            match self.heard.recv_timeout(self.until_next()) {
                Ok(Event::Said(said)) => self.take(said)?,
                Ok(Event::Noise(at, line)) => self.noise(at, line),
                Ok(Event::Silent(at, why)) => self.lose(at, why),
                Ok(Event::SchedulerEnded) => self.reap_scheduler()?,
                Ok(Event::Signal(signal)) => self.interrupt(signal),
                Ok(Event::Hello(..)) | Err(RecvTimeoutError::Timeout) => {}
                Err(RecvTimeoutError::Disconnected) => unreachable!("this holds a sender"),
            }
            self.keep_time();
        }
        self.outcome()
    }

    fn take(&mut self, said: Said) -> Result<()> {
        let (Said::Line { at, .. } | Said::Ended { at, .. } | Said::Failed { at, .. }) = said;
        let member =
            self.members.get_mut(at).context("an agent speaks of no process of this job")?;
        let who = member.name.clone();
        match said {
            Said::Line { to_error: false, text, .. } => report::print(&format!("{who}: {text}"))?,
            Said::Line { text, .. } => report::tell(format_args!("{who}: {text}")),
            Said::Ended { end, .. } => {
                member.has_ended = true;
                self.note(who, end);
            }
            Said::Failed { why, .. } => {
                member.has_ended = true;
                report::say(format_args!("{who}: {why}"));
                self.note(who, End::Status(NOT_STARTED));
            }
        }
        Ok(())
    }

    /// Notes an end; the first that is a failure ends all others soon.
    fn note(&mut self, who: String, end: End) {
        if !end.is_success() && self.told.is_none() {
            self.failures.push(Failure { who, end });
            self.ends_at.get_or_insert(Instant::now() + SETTLE);
        }
    }

    fn noise(&mut self, at: usize, line: String) {
        let agent = &mut self.agents[at];
        report::tell(format_args!("{}: {line}", agent.host));
        agent.noise = line;
    }

    /// An agent says nothing more. Its processes, if there are any, end by themselves.
    fn lose(&mut self, at: usize, why: Option<String>) {
        let left: Vec<&mut Member> = self
            .members
            .iter_mut()
            .filter(|member| member.agent == at && !member.has_ended)
            .collect();
        if left.is_empty() {
            return;
        }
        for member in left {
            member.has_ended = true;
        }
        let agent = &mut self.agents[at];
        let (host, why) = (agent.host.clone(), agent.last_words(why));
        if self.told.is_none() {
            report::say(format_args!("{host} was lost: {why}"));
        }
        self.note(format!("the agent on {host}"), End::Status(LOST));
    }

    fn reap_scheduler(&mut self) -> Result<()> {
        if let Some(mut child) = self.scheduler.take() {
            let _ = kill_process_group(pid(&child), Signal::KILL);
            let end = End::of(child.wait()?);
            self.note("the scheduler".to_owned(), end);
        }
        Ok(())
    }

    /// The first signal is the scheduler's, which ends the job in its own way; the second ends all.
    fn interrupt(&mut self, signal: i32) {
        let signal_sent = Signal::from_named_raw(signal).unwrap_or(Signal::TERM);
        match &self.scheduler {
            Some(scheduler) if !self.was_interrupted => {
                let _ = kill_process_group(pid(scheduler), signal_sent);
            }
            _ => {
                self.note("the launcher".to_owned(), End::Signal(signal));
                self.ends_at = Some(Instant::now());
            }
        }
        self.was_interrupted = true;
    }

    fn until_next(&self) -> Duration {
        let due = match self.told {
            None => self.ends_at,
            Some(told) if self.scheduler.is_some() => Some(told + SCHEDULER_WITHIN),
            Some(told) => Some(told + END_WITHIN),
        };
        let rest = due.map(|due| due.saturating_duration_since(Instant::now()));
        rest.unwrap_or(Duration::from_secs(3600)).max(Duration::from_millis(1))
    }

    /// Does what is due.
    fn keep_time(&mut self) {
        let now = Instant::now();
        if self.told.is_none() && self.ends_at.is_some_and(|at| now >= at) {
            self.told = Some(now);
            for agent in &mut self.agents {
                agent.input = None;
            }
            if let Some(scheduler) = &self.scheduler {
                let _ = kill_process_group(pid(scheduler), Signal::TERM);
            }
        }
        let Some(told) = self.told else { return };
        if now >= told + SCHEDULER_WITHIN
            && let Some(scheduler) = &self.scheduler
        {
            let _ = kill_process_group(pid(scheduler), Signal::KILL);
        }
        if now >= told + END_WITHIN {
            for member in self.members.iter_mut().filter(|member| !member.has_ended) {
                report::say(format_args!(
                    "{} may still run: its host does not answer",
                    member.name
                ));
                member.has_ended = true;
            }
        }
    }

    /// The first failure, if there is one: a process that a signal ended comes before those that
    /// missed it, whatever was heard of first.
    fn outcome(&self) -> Result<()> {
        let is_signal = |failure: &&Failure| matches!(failure.end, End::Signal(_));
        let cause = self.failures.iter().find(is_signal).or(self.failures.first());
        let Some(Failure { who, end }) = cause else { return Ok(()) };
        let others = if self.members.is_empty() { "" } else { "; all others were ended" };
        Err(Failed { status: end.status(), why: format!("{who} {end}{others}") }.into())
    }
}

/// Status of a program that could not be started, as shells report it.
const NOT_STARTED: i32 = 127;
/// Status of a lost host, as ssh reports it.
const LOST: i32 = 255;

impl Drop for Job {
    /// Ends whatever is left.
    fn drop(&mut self) {
        if let Some(mut scheduler) = self.scheduler.take() {
            let _ = kill_process_group(pid(&scheduler), Signal::KILL);
            let _ = scheduler.wait();
        }
        for agent in &mut self.agents {
            agent.input = None;
        }
        let until = Instant::now() + END_WITHIN;
        for agent in &mut self.agents {
            ended_by(&mut agent.shell, until);
            let _ = agent.shell.kill();
            let _ = agent.shell.wait();
        }
        descendants::end_all();
    }
}

fn addresses_of(agents: &[Agent]) -> Result<Addresses> {
    let hellos =
        agents.iter().filter_map(|agent| Some((agent.host.as_str(), agent.hello.as_ref()?)));
    addresses(&hellos.collect::<Vec<_>>())
}
