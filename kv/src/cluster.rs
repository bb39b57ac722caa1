//! A whole cluster from one call: scheduler, servers and workers as child processes, as threads of
//! this process, or as nodes of a simulated network.

use std::cell::RefCell;
use std::collections::BTreeSet;
use std::io::{self, Write};
use std::path::PathBuf;
use std::process::{Child, Command, ExitStatus, Stdio};
use std::rc::Rc;
use std::thread::JoinHandle;
use std::time::Duration;

use caravan_van::Secret;

use crate::config::SecretSource;
use crate::config::{ClusterConfig, NodeConfig};
use crate::error::{Error, Result, panicked};
use crate::map::Placed;
use crate::node::{
    self, Answered, Apps, AtRpc, Group, Party, Program, RequestId, Role, Rpc, SchedulerClient,
    Step, Target, TaskId, Van,
};
use crate::server::{Copies, Handles};
use crate::table::TableSpec;
use crate::worker::{ChangeChains, News, Watch, Worker};

/// How nodes are started.
pub enum Launch {
    /// As child processes: `PROGRAM server` and `PROGRAM worker`, with `CARAVAN_*` variables.
    Processes(PathBuf),
    /// As threads of this process.
    Threads(Handles, Apps),
    /// As nodes of the simulated network that the calling thread belongs to; this thread becomes
    /// the driver, and the scheduler another of its node. All use the network's time, and servers
    /// have one thread each. The settings are those of the cluster, except for the van.
    Simulated(Handles, Apps),
    /// Not by this process: they are started elsewhere, and join at the scheduler's address.
    External,
}

/// A running cluster and its scheduler. Dropping it stops everything.
pub struct Cluster {
    /// Shared with the driver's clients, which check it while they wait.
    scheduler: Rc<RefCell<SchedulerClient>>,
    config: ClusterConfig,
    /// Shared as well: how a child ended tells why its node was lost.
    children: Rc<RefCell<Vec<Node<Child>>>>,
    threads: Vec<Node<JoinHandle<Result<()>>>>,
    simulated: Vec<Node<node::SimulatedNode>>,
    /// The name of this driver's job; empty for the one that started the cluster.
    job: String,
    /// Whether the job is a name alone, without tasks and tables.
    visits: bool,
    /// The part of the job that runs, if any.
    part: Option<String>,
}

struct Node<T> {
    role: Role,
    name: String,
    run: T,
    /// Whether it was lost and did not end: it stands still.
    stands: bool,
}

impl Cluster {
    /// Starts all nodes and returns when they have joined.
    ///
    /// # Errors
    /// The node that could not be started, ended early, or did not join; [`Error::Config`] for a
    /// NUMA node that this machine does not have.
    pub fn launch(config: &ClusterConfig, launch: Launch) -> Result<Cluster> {
        let mut config = config.clone();
        config.node.launched = !matches!(launch, Launch::External);
        if let Launch::Processes(_) | Launch::Threads(..) = launch {
            node::check_numa(config.node.numa)?;
            node::check_host(&config.node)?;
        }
        match launch {
            Launch::Simulated(..) if config.threads != 1 => {
                let threads = config.threads;
                return Err(Error::Config(format!(
                    "simulated servers have one thread each, not {threads}: take more servers"
                )));
            }
            Launch::Simulated(..) => {
                config.node.van = Van::Sim;
                // Nobody else is on this network.
                config.node.secret = SecretSource::Given(Secret::NONE);
            }
            Launch::Processes(_) | Launch::Threads(..) => config.node = config.node.for_launch()?,
            Launch::External => {}
        }
        let is_held = config.node.is_held();
        config.node = config.node.secured()?;
        if is_held {
            node::end_with_launcher("the driver".to_owned())?;
        }
        let scheduler = SchedulerClient::bind_client(&config)?;
        config.node.scheduler = scheduler.address().to_owned();
        config.node.identity = node::identity(node::DRIVER, None);
        let mut cluster = Cluster {
            scheduler: Rc::new(RefCell::new(scheduler)),
            config,
            children: Rc::default(),
            threads: Vec::new(),
            simulated: Vec::new(),
            job: String::new(),
            visits: false,
            part: None,
        };
        cluster.start(&launch)?;
        let Cluster { scheduler, children, threads, .. } = &mut cluster;
        let van = scheduler.borrow_mut().gather(|| {
            for child in children.borrow_mut().iter_mut() {
                if let Ok(Some(status)) = child.run.try_wait() {
                    let reason = format!("it {} before it joined", how_ended(status));
                    return Err(Error::NodeLost { node: child.name.clone(), reason });
                }
            }
            match threads.iter().position(|thread| thread.run.is_finished()) {
                Some(at) => Err(thread_error(threads.swap_remove(at))),
                None => Ok(()),
            }
        })?;
        let vans = cluster.scheduler.borrow().roster()?.vans;
        (cluster.config.node.van, cluster.config.node.vans) = (van, vans);
        Ok(cluster)
    }

    /// Joins a cluster that another process has started, to run the job `job` on it. `node` holds
    /// the scheduler's address, the number and the secret of the cluster, as
    /// [`ClusterConfig::to_vars`] of the other process passes them on.
    ///
    /// The job shares servers and workers with others: its tasks take their turns with theirs, and
    /// its tables and apps are its own. It ends when this is dropped or its process ends; then its
    /// tables are dropped.
    ///
    /// # Errors
    /// [`Error::Timeout`] if no scheduler listens there; [`Error::Config`] if the job's name is
    /// wrong or another driver has it.
    pub fn attach(node: &NodeConfig, job: &str) -> Result<Cluster> {
        Cluster::reach(node, job, false)
    }

    /// Joins a cluster that another process has started, to look after the tables of others. This
    /// driver has no tasks and no tables of its own, so it neither waits for workers nor leaves
    /// them anything to do. The name is free again when this ends.
    ///
    /// # Errors
    /// As [`Cluster::attach`].
    pub fn visit(node: &NodeConfig, name: &str) -> Result<Cluster> {
        Cluster::reach(node, name, true)
    }

    fn reach(node: &NodeConfig, job: &str, visits: bool) -> Result<Cluster> {
        let scheduler = SchedulerClient::attach(node, job, visits)?;
        let config = scheduler.config().clone();
        Ok(Cluster {
            scheduler: Rc::new(RefCell::new(scheduler)),
            config,
            children: Rc::default(),
            threads: Vec::new(),
            simulated: Vec::new(),
            job: job.to_owned(),
            visits,
            part: None,
        })
    }

    /// The namespace of this driver's tables: its job, and the part of it that runs. That of a
    /// visit is empty, as all tables are of others.
    pub fn namespace(&self) -> String {
        match self.visits {
            true => String::new(),
            false => node::within(&self.job, self.part()),
        }
    }

    fn part(&self) -> &str {
        self.part.as_deref().unwrap_or("")
    }

    /// Begins a part of the job, after it has ended an earlier one. Tasks and clients that follow
    /// belong to it.
    ///
    /// # Errors
    /// As [`Cluster::end`].
    pub fn begin(&mut self, part: &str) -> Result<()> {
        self.end()?;
        self.part = Some(part.to_owned());
        Ok(())
    }

    /// Ends the part of the job that runs, if any: its tables are dropped, and workers forget its
    /// apps. Its tasks must have ended.
    ///
    /// # Errors
    /// As [`Cluster::wait`].
    pub fn end(&mut self) -> Result<()> {
        let Some(part) = &self.part else { return Ok(()) };
        self.ask(|scheduler| scheduler.forget(part))?;
        self.part = None;
        Ok(())
    }

    /// Asks the scheduler, with the cause of a loss that this process knows.
    fn ask<T>(&self, ask: impl FnOnce(&mut SchedulerClient) -> Result<T>) -> Result<T> {
        explained(&self.scheduler, &self.children, ask)
    }

    fn start(&mut self, launch: &Launch) -> Result<()> {
        let servers = (0..self.config.servers).map(|rank| (Role::Server, rank));
        let workers = (0..self.config.workers).map(|rank| (Role::Worker, rank));
        for (role, rank) in servers.chain(workers) {
            let name = format!("{role} {rank}");
            match launch {
                Launch::External => {}
                Launch::Processes(program) => {
                    let mut command = Command::new(program);
                    command.arg(role.to_string()).arg("--rank").arg(rank.to_string());
                    command.stdout(Stdio::null());
                    let spawned = spawn_node(&mut command, &self.config);
                    let run =
                        spawned.map_err(|source| Error::Spawn { what: name.clone(), source })?;
                    self.children.borrow_mut().push(Node { role, name, run, stands: false });
                }
                Launch::Simulated(handles, apps) => {
                    let config = self.config.node.clone();
                    let handles = handles.clone();
                    let apps = apps.clone();
                    let run = move || match role {
                        Role::Server => node::run_server(&config, Some(rank), 1, &handles, false),
                        Role::Worker => node::run_worker(&config, Some(rank), &apps, false),
                    };
                    let run = node::SimulatedNode::start(&name, run)?;
                    self.simulated.push(Node { role, name, run, stands: false });
                }
                Launch::Threads(handles, apps) => {
                    let config = self.config.clone();
                    let handles = handles.clone();
                    let apps = apps.clone();
                    let run = move || match role {
                        Role::Server => node::run_server(
                            &config.node,
                            Some(rank),
                            config.threads,
                            &handles,
                            false,
                        ),
                        Role::Worker => node::run_worker(&config.node, Some(rank), &apps, false),
                    };
                    let builder = std::thread::Builder::new().name(name.clone());
                    let run = builder
                        .spawn(run)
                        .map_err(|source| Error::Spawn { what: name.clone(), source })?;
                    self.threads.push(Node { role, name, run, stands: false });
                }
            }
        }
        Ok(())
    }

    /// Its settings, completed by the scheduler's address, the job's number and its own van.
    pub fn config(&self) -> &ClusterConfig {
        &self.config
    }

    /// Names and process ids of the nodes that are child processes.
    pub fn processes(&self) -> Vec<(String, u32)> {
        let children = self.children.borrow();
        children.iter().map(|child| (child.name.clone(), child.run.id())).collect()
    }

    /// Starts `app` with input `body` at the target.
    ///
    /// # Errors
    /// [`Error::NodeLost`].
    pub fn submit(
        &mut self,
        target: Target,
        app: &str,
        body: &serde_json::Value,
    ) -> Result<TaskId> {
        self.submit_after(&[], target, app, body)
    }

    /// As [`Cluster::submit`], for a task that waits for others, whether they succeed or fail. It
    /// starts at each worker as soon as they are finished there, or everywhere if that worker does
    /// not run them. Nobody waits for the driver.
    ///
    /// # Errors
    /// As [`Cluster::submit`]; [`Error::Config`] if one of them does not exist.
    pub fn submit_after(
        &mut self,
        after: &[TaskId],
        target: Target,
        app: &str,
        body: &serde_json::Value,
    ) -> Result<TaskId> {
        let program = Program::App { app: app.to_owned(), body: body.clone() };
        self.ask(|scheduler| scheduler.submit_in(self.part(), target, program, after))
    }

    /// Ships a graph of steps, which each worker of the target runs by itself, in order. A step is
    /// left out if one that it waits for has failed. The task's results are lists of the steps'
    /// results.
    ///
    /// # Errors
    /// As [`Cluster::submit_after`]; [`Error::Config`] if a step waits for one that is not before
    /// it.
    pub fn submit_steps(
        &mut self,
        after: &[TaskId],
        target: Target,
        steps: &[Step],
    ) -> Result<TaskId> {
        for (at, step) in steps.iter().enumerate() {
            if let Some(later) = step.after.iter().find(|later| **later >= at) {
                let why = format!("step {at} waits for step {later}, which is not before it");
                return Err(Error::Config(why));
            }
        }
        let program = Program::Steps(steps.to_vec());
        self.ask(|scheduler| scheduler.submit_in(self.part(), target, program, after))
    }

    /// Adds a virtual task, which nobody runs: it is finished when this driver calls
    /// [`Cluster::finish`].
    ///
    /// # Errors
    /// [`Error::NodeLost`].
    pub fn promise(&mut self) -> Result<TaskId> {
        self.ask(SchedulerClient::promise)
    }

    /// Finishes a task of [`Cluster::promise`], so that tasks that wait for it may start.
    ///
    /// # Errors
    /// [`Error::UnknownTimestamp`] if there is no such task.
    pub fn finish(&mut self, task: TaskId) -> Result<()> {
        self.ask(|scheduler| scheduler.finish(task))
    }

    /// Waits for a task and returns the workers' results, in order of rank, without those of
    /// workers that were lost meanwhile and are not needed ([`NodeConfig::losses_max`]).
    ///
    /// # Errors
    /// [`Error::TaskFailed`] and [`Error::NodeLost`] name the node, of several that have failed the
    /// first.
    pub fn wait(&mut self, task: TaskId) -> Result<Vec<serde_json::Value>> {
        self.ask(|scheduler| scheduler.wait(task))
    }

    /// Waits until one of these tasks is done, or this time is over; returns the first. Then
    /// [`Cluster::wait`] returns its results at once.
    ///
    /// # Errors
    /// [`Error::NodeLost`] if the scheduler is gone.
    pub fn wait_first(&mut self, tasks: &[TaskId], time: Duration) -> Result<Option<TaskId>> {
        self.ask(|scheduler| scheduler.wait_first(tasks, time))
    }

    /// The workers that run tasks of other jobs now, or have them next.
    ///
    /// # Errors
    /// [`Error::NodeLost`].
    pub fn busy_with_others(&mut self) -> Result<BTreeSet<usize>> {
        let jobs = self.scheduler.borrow_mut().jobs()?;
        let others = jobs.into_iter().filter(|it| it.job != self.job);
        Ok(others.flat_map(|it| it.workers).collect())
    }

    /// Time on the clock of the control plane, which is simulated where the cluster is.
    pub fn now(&self) -> Duration {
        self.scheduler.borrow().now()
    }

    /// Lets `use_it` make and answer requests to other nodes, and sends them. Requests to this
    /// driver are answered here, and whenever it waits for something.
    ///
    /// # Errors
    /// [`Error::NodeLost`].
    pub fn rpc<T>(&mut self, use_it: impl FnOnce(&mut Rpc) -> T) -> Result<T> {
        self.ask(|scheduler| scheduler.with_rpc(use_it))
    }

    /// Waits until a request to other nodes is complete, and returns their answers, in order of the
    /// nodes.
    ///
    /// # Errors
    /// [`Error::Timeout`] names the nodes that have not answered, and the caller may wait again;
    /// [`Error::Config`] if there is no such node; [`Error::NodeLost`].
    pub fn wait_for(&mut self, request: RequestId, timeout: Duration) -> Result<Vec<Answered>> {
        self.ask(|scheduler| scheduler.wait_for(request, timeout))
    }

    /// Waits until all nodes of a group have reached the barrier called `name`. Workers that take
    /// part are in a task of this part of the job.
    ///
    /// # Errors
    /// [`Error::Timeout`] names the missing nodes; as [`Cluster::wait_for`].
    pub fn meet(&mut self, group: Group, name: &str) -> Result<()> {
        let namespace = self.namespace();
        let name = if namespace.is_empty() { name } else { &node::within(&namespace, name) };
        let timeout = self.config.node.join_timeout;
        self.ask(|scheduler| scheduler.meet(Party::Group(group), name, timeout))
    }

    /// A client of the servers for the calling thread. It checks for lost nodes while it waits: a
    /// request ends with [`Error::NodeLost`] within five heartbeats after any node has stopped. It
    /// opens lanes as it needs them.
    ///
    /// # Errors
    /// [`Error::NodeLost`] if a node is known to be lost; those of the van.
    pub fn client(&self) -> Result<Worker> {
        let scheduler = Rc::downgrade(&self.scheduler);
        let children = self.children.clone();
        let watch = move || match scheduler.upgrade() {
            Some(scheduler) => explained(&scheduler, &children, SchedulerClient::news),
            None => Ok(News::default()),
        };
        let watch: Watch = Box::new(watch);
        let roster = self.scheduler.borrow().roster()?;
        let scheduler = Rc::downgrade(&self.scheduler);
        let change: ChangeChains = Box::new(move |changes| match scheduler.upgrade() {
            Some(scheduler) => {
                scheduler.borrow_mut().ask(&node::Command::Rechain(changes.to_vec()))
            }
            None => Ok(None),
        });
        let config = &self.config.node;
        let mut client = node::watched_client(config, &roster, Some(watch), Some(change))?;
        client.admin().set_namespace(&self.namespace());
        Ok(client)
    }

    /// Makes the server of this rank leave the cluster, one that has founded it as well: its shards
    /// move to other servers while requests go on, those with copies get one more elsewhere, and
    /// all nodes are told. It ends by itself once no worker or driver has a lane to it; each closes
    /// its own when nothing is outstanding there. Returns the shards that have moved.
    ///
    /// If this is cut off, nothing is lost; the server stays, perhaps without shards, and may be
    /// asked to leave again.
    ///
    /// # Errors
    /// [`Error::Config`] if it is the only one left, lost, or has left; if others give it shards
    /// all the time; or if no other server can have a copy. As
    /// [`Admin::move_shard`](crate::Admin::move_shard) for a shard that cannot move.
    pub fn release_server(&self, rank: usize) -> Result<Vec<Handover>> {
        let threads: Vec<usize> =
            self.scheduler.borrow_mut().ask(&node::Command::AnnounceLeave { server: rank })?;
        let mut client = self.client()?;
        client.admin().set_namespace("");
        client.wait_until_known(&threads.iter().copied().collect())?;
        client.wait_until_announced(&threads)?;
        let mut moved = Vec::new();
        let mut left = (0, 0);
        for _ in 0..DRAINS_MAX {
            self.drain_server(&mut client, &threads, &mut moved)?;
            await_copies(&mut client)?;
            match client.retire_threads(&threads)? {
                Ok(departed) => {
                    let leave = node::Command::Leave { server: rank, departed };
                    self.scheduler.borrow_mut().ask::<()>(&leave)?;
                    return Ok(moved);
                }
                Err(shards) => left = shards,
            }
        }
        let (shards, alone) = left;
        Err(Error::Config(format!(
            "server {rank} has {shards} shards and the only copy of {alone} after {DRAINS_MAX} \
             attempts: have it leave when nobody else moves shards, and others can have copies"
        )))
    }

    /// Moves the shards of these server threads to others, but for those with copies.
    fn drain_server(
        &self,
        client: &mut Worker,
        threads: &[usize],
        moved: &mut Vec<Handover>,
    ) -> Result<()> {
        let mut specs = client.admin().list_tables("")?;
        specs.retain(|spec| spec.replicas == 0);
        for spec in specs {
            let table = match client.admin().create_table(&spec) {
                Err(Error::TableDropped { .. }) => continue,
                created => created?,
            };
            let before = match client.admin().drain_threads(table, threads) {
                Err(Error::TableDropped { .. }) => continue,
                drained => drained?,
            };
            let now = client.info().shards(table)?;
            moved.extend(before.into_iter().filter_map(|before| {
                let after = now.iter().find(|shard| shard.range == before.range)?;
                Some(Handover { table: spec.clone(), before, server: after.server })
            }));
        }
        Ok(())
    }

    /// Ends the cluster: tells all nodes and waits for them. A driver that has joined it only ends
    /// its job.
    ///
    /// # Errors
    /// The first node that failed or did not end, of workers only if more than
    /// [`NodeConfig::losses_max`] did, of servers if more than [`NodeConfig::server_losses_max`].
    pub fn shutdown(mut self) -> Result<()> {
        match (self.visits, self.job.is_empty()) {
            (true, _) => return self.scheduler.borrow_mut().cancel(&self.job),
            (_, false) => return self.scheduler.borrow_mut().forget(""),
            (_, true) => {}
        }
        self.scheduler.borrow_mut().end(None)?;
        let NodeConfig { losses_max, server_losses_max, .. } = self.config.node;
        let spared = [(Role::Worker, losses_max), (Role::Server, server_losses_max)];
        let mut outcome = Outcome { first: Ok(()), spared };
        let mut scheduler = self.scheduler.borrow_mut();
        let until = scheduler.now() + END_WITHIN;
        for mut child in self.children.take() {
            let ended = end_child(&mut child, &mut scheduler, until);
            outcome.add(child.role, &child.name, ended);
        }
        drop(scheduler);
        for thread in self.threads.drain(..) {
            let (role, name) = (thread.role, thread.name.clone());
            outcome.add(role, &name, joined(thread));
        }
        for Node { role, name, run, .. } in self.simulated.drain(..) {
            outcome.add(role, &name, run.join());
        }
        outcome.first
    }
}

/// How a process ended: `ended with status 1`, `was ended by signal 9 (SIGKILL)`.
pub fn how_ended(status: ExitStatus) -> String {
    match status.code() {
        Some(code) => format!("ended with status {code}"),
        None => format!("was ended by {}", status.to_string().replacen(": ", " ", 1)),
    }
}

/// Asks the scheduler. It sees no more of a lost node than a lane that broke; where the node is a
/// child of this process, the error says how the child ended.
fn explained<T>(
    scheduler: &RefCell<SchedulerClient>,
    children: &RefCell<Vec<Node<Child>>>,
    ask: impl FnOnce(&mut SchedulerClient) -> Result<T>,
) -> Result<T> {
    let mut scheduler = scheduler.borrow_mut();
    let error = match ask(&mut scheduler) {
        Err(error) => error,
        answer => return answer,
    };
    let (blamed, why) = match &error {
        Error::NodeLost { node, reason } => (node.clone(), reason.clone()),
        Error::TaskFailed { reason, .. } => (reason.clone(), error.to_string()),
        _ => return Err(error),
    };
    let mut children = children.borrow_mut();
    let mut named = children.iter_mut().filter(|child| is_named(&child.name, &blamed));
    let mut ends = |child: &mut Node<Child>| end_of_lost(child, &mut scheduler).map(how_ended);
    let Some(ended) = named.find_map(|child| Some((child.name.clone(), ends(child)?))) else {
        return Err(error);
    };
    let (name, ended) = ended;
    let node = if let Error::NodeLost { node, .. } = error { node } else { name };
    Err(Error::NodeLost { node, reason: format!("it {ended}; {why}") })
}

/// Whether a text has the name of this node, and not that of one with a longer number.
fn is_named(name: &str, text: &str) -> bool {
    let mut found = text.match_indices(name);
    found.any(|(at, _)| !text[at + name.len()..].starts_with(|c: char| c.is_ascii_digit()))
}

/// The end of a lost child, whose lanes break shortly before it has ended; `None` if it goes on,
/// which is waited for once.
fn end_of_lost(child: &mut Node<Child>, scheduler: &mut SchedulerClient) -> Option<ExitStatus> {
    let patience = if child.stands { Duration::ZERO } else { LAST_BREATH };
    let until = scheduler.now() + patience;
    loop {
        match child.run.try_wait() {
            Ok(None) if scheduler.now() < until => scheduler.backoff(LOOK_AT_CHILD).ok()?,
            found => {
                let ended = found.ok().flatten();
                child.stands = ended.is_none();
                return ended;
            }
        }
    }
}

/// How long a process may take to end after its lanes have broken.
const LAST_BREATH: Duration = Duration::from_millis(300);

const LOOK_AT_CHILD: Duration = Duration::from_millis(5);

/// How the nodes of a cluster have ended.
struct Outcome {
    first: Result<()>,
    /// How many nodes of each role may still fail.
    spared: [(Role, usize); 2],
}

impl Outcome {
    fn add(&mut self, role: Role, name: &str, ended: Result<()>) {
        let Err(error) = ended else { return };
        let mut spared = self.spared.iter_mut().filter(|(of, left)| *of == role && *left > 0);
        if let Some((_, left)) = spared.next() {
            *left -= 1;
            return tracing::warn!(%error, name, "it did not end well; it is not needed");
        }
        if self.first.is_ok() {
            self.first = Err(error);
        }
    }
}

impl Drop for Cluster {
    fn drop(&mut self) {
        for child in self.children.borrow_mut().iter_mut() {
            // It may have ended already; it is waited for in any case, so that no process is left
            // behind.
            let _ = child.run.kill();
            let _ = child.run.wait();
        }
        if !(self.threads.is_empty() && self.simulated.is_empty()) {
            let _ = self.scheduler.borrow_mut().end(Some("the cluster was dropped"));
        }
    }
}

/// A shard that has moved from a server that leaves.
#[derive(Debug, Clone)]
pub struct Handover {
    /// Its table.
    pub table: TableSpec,
    /// The shard as it was.
    pub before: Placed,
    /// The server thread that has it now.
    pub server: usize,
}

/// How often the shards of a server that leaves are moved away: others may move some there.
const DRAINS_MAX: usize = 10;

/// How long chains may take to get a further copy, as long as no copy becomes whole meanwhile.
const COPIES_WITHIN: Duration = Duration::from_secs(30);

/// Waits until all copies are whole.
///
/// # Errors
/// [`Error::Config`] if none becomes whole for long.
fn await_copies(client: &mut Worker) -> Result<()> {
    let mut fewest = usize::MAX;
    let mut since = client.now();
    loop {
        let Copies { missing, coming, .. } = client.admin().copies()?;
        let now = client.now();
        match missing + coming {
            0 => return Ok(()),
            few if few < fewest => (fewest, since) = (few, now),
            _ if now - since > COPIES_WITHIN => {
                return Err(Error::Config(format!(
                    "{missing} shards lack a copy, and {coming} copies are on their way for {} s: \
                     the server stays until others have what it has",
                    COPIES_WITHIN.as_secs()
                )));
            }
            _ => {}
        }
        client.sleep(LOOK_AT_COPIES)?;
    }
}

const LOOK_AT_COPIES: Duration = Duration::from_millis(10);

/// How long nodes may take to end.
const END_WITHIN: Duration = Duration::from_secs(5);

/// Starts a process of a job, with its settings as variables and in a process group of its own: a
/// signal from the terminal is for the launcher only, which ends its processes itself. The job's
/// secret goes over standard input, where others cannot see it. The pipe stays open while this
/// process lives; when it closes, launched nodes end.
///
/// # Errors
/// If the system cannot start it.
pub fn spawn_node(command: &mut Command, config: &ClusterConfig) -> io::Result<Child> {
    command.envs(config.to_vars()).stdin(Stdio::piped());
    #[cfg(unix)]
    std::os::unix::process::CommandExt::process_group(command, 0);
    let mut child = command.spawn()?;
    hand_down(&config.node, &mut child);
    Ok(child)
}

fn hand_down(config: &NodeConfig, child: &mut Child) {
    if let (SecretSource::Given(secret), Some(input)) = (&config.secret, &mut child.stdin) {
        // A failed write means that the child has ended, which is noticed when all nodes are to
        // join.
        let _ = writeln!(input, "{}", secret.to_hex());
    }
}

/// Waits for a child that was told to end, and kills it if it does not end until then, on the
/// scheduler's clock.
fn end_child(
    child: &mut Node<Child>,
    scheduler: &mut SchedulerClient,
    until: Duration,
) -> Result<()> {
    let lost = |reason| Error::NodeLost { node: child.name.clone(), reason };
    loop {
        match child.run.try_wait() {
            Ok(Some(status)) if status.success() => return Ok(()),
            Ok(Some(status)) => return Err(lost(format!("it {}", how_ended(status)))),
            Ok(None) if scheduler.now() < until => scheduler.backoff(LOOK_AT_CHILD)?,
            Ok(None) => {
                let _ = child.run.kill();
                let _ = child.run.wait();
                return Err(lost("it did not end when told, and was killed".to_owned()));
            }
            Err(error) => return Err(lost(error.to_string())),
        }
    }
}

fn thread_error(thread: Node<JoinHandle<Result<()>>>) -> Error {
    let node = thread.name.clone();
    let ended = || Error::NodeLost { node, reason: "it ended before it joined".to_owned() };
    joined(thread).err().unwrap_or_else(ended)
}

fn joined(thread: Node<JoinHandle<Result<()>>>) -> Result<()> {
    thread.run.join().unwrap_or_else(|panic| Err(panicked(&thread.name, panic.as_ref())))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_node_is_found_by_its_name() {
        for (text, is_it) in [
            ("server 1", true),
            ("server 1 (process 7 at 127.0.0.1:5)", true),
            ("server 10 and server 1: lost", true),
            ("server 10", false),
            ("server 0", false),
        ] {
            assert_eq!(is_named("server 1", text), is_it, "{text}");
        }
    }
}
