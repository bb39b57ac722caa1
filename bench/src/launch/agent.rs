//! The agent: runs the processes of a job that belong to one host, for a launcher at the other end
//! of its standard input and output. It passes on what they write, and ends them all, with all that
//! they have started, when it is told to, when its input ends, or on a signal.

use std::collections::BTreeMap;
use std::io::{self, BufRead, BufReader, Read};
use std::net::IpAddr;
use std::process::{Child, Stdio};
use std::sync::mpsc::{self, Receiver, RecvTimeoutError, Sender};
use std::time::{Duration, Instant};

use anyhow::{Context, Result};
use caravan_kv::config::join_host;
use caravan_kv::node::own_address_towards;
use caravan_kv::{ClusterConfig, SecretSource, spawn_node};
use caravan_van::Secret;
use rustix::io::Errno;
use rustix::process::{Pid, Signal, WaitId, WaitIdOptions, kill_process_group, waitid};

use super::command::{child_variables, program};
use super::descendants;
use super::hosts::Through;
use super::protocol::{End, Hello, Node, Order, Said, VERSION, hear, say};
use super::threads::{on_signals, spawn};

/// How long processes have to end by themselves before they are killed.
const END_WITHIN: Duration = Duration::from_secs(2);

/// How long what a process has written is waited for after its end: others may hold its output
/// open.
const DRAIN_WITHIN: Duration = Duration::from_secs(1);

/// Longest part of a line that is passed on at once, in bytes.
const LINE_MAX: u64 = 64 << 10;

enum Event {
    Said(Said),
    /// A process has ended and is not waited for yet.
    Exited(usize),
    /// One of the two outputs of a process has ended.
    Drained(usize),
    /// The launcher wants all to end, or is gone.
    End,
}

/// A process.
struct Running {
    child: Child,
    end: Option<End>,
    /// Outputs that may still say something.
    open: u32,
    drained_by: Instant,
}

/// Runs the processes of an order that comes by standard input.
///
/// # Errors
/// If there is no order, or the launcher no longer listens.
pub(crate) fn run(through: Through) -> Result<()> {
    descendants::adopt();
    let launcher = launcher_address(through);
    let own = launcher.and_then(|launcher| own_address_towards(&launcher.to_string()));
    let mut out = io::stdout();
    say(&mut out, &Hello { version: VERSION.to_owned(), launcher, own })?;
    let mut input = BufReader::new(io::stdin());
    let Some(order) = hear::<Order>(&mut input).context("reading the launcher's order")? else {
        return Ok(()); // it has given up
    };
    let (events, heard) = mpsc::channel();
    let on_signal = events.clone();
    on_signals(move |_| {
        let _ = on_signal.send(Event::End);
    })?;
    let on_end = events.clone();
    spawn(move || {
        let _ = input.read(&mut [0]); // whatever else it says, and its end
        let _ = on_end.send(Event::End);
    })?;
    let mut host = Host { running: BTreeMap::new(), events, ends_at: None };
    let outcome = host.start(&order).and_then(|()| host.pass_on(&heard, &mut out));
    host.kill();
    outcome
}

/// The launcher's address, as far as this host knows it.
fn launcher_address(through: Through) -> Option<IpAddr> {
    let said = match through {
        Through::Here => None,
        Through::Ssh => std::env::var("SSH_CONNECTION").ok(),
        Through::Srun => std::env::var("SLURM_LAUNCH_NODE_IPADDR").ok(),
    };
    said?.split_whitespace().next()?.parse().ok()
}

struct Host {
    running: BTreeMap<usize, Running>,
    events: Sender<Event>,
    /// When those that were told to end are killed.
    ends_at: Option<Instant>,
}

impl Host {
    fn start(&mut self, order: &Order) -> Result<()> {
        if std::env::set_current_dir(&order.folder).is_err() {
            let shown = order.folder.display();
            tracing::warn!("there is no folder {shown} here; processes start elsewhere");
        }
        for node in &order.nodes {
            if let Err(why) = self.start_one(order, node) {
                let why = format!("{why:#}");
                let _ = self.events.send(Event::Said(Said::Failed { at: node.at, why }));
            }
        }
        Ok(())
    }

    fn start_one(&mut self, order: &Order, node: &Node) -> Result<()> {
        let mut config = ClusterConfig::from_vars(order.variables.iter().cloned())?;
        config.node.secret = SecretSource::Given(Secret::from_hex(&order.secret)?);
        config.node.role = Some(node.role);
        config.node.rank = Some(node.rank);
        let mut command = program(&order.command)?;
        command.stdout(Stdio::piped()).stderr(Stdio::piped());
        command.envs(child_variables(&config));
        let others = order.variables.iter().filter(|(name, _)| !name.starts_with("CARAVAN_"));
        command.envs(others.cloned());
        let mut child = spawn_node(&mut command, &config)
            .with_context(|| format!("cannot start {}", order.command[0]))?;
        let at = node.at;
        let outputs: [(bool, Option<Box<dyn Read + Send>>); 2] = [
            (false, child.stdout.take().map(|out| Box::new(out) as _)),
            (true, child.stderr.take().map(|out| Box::new(out) as _)),
        ];
        let pid = pid(&child);
        let drained_by = Instant::now();
        self.running.insert(at, Running { child, end: None, open: 2, drained_by });
        for (to_error, output) in outputs {
            let Some(output) = output else { continue };
            let events = self.events.clone();
            spawn(move || gather(output, at, to_error, &events))?;
        }
        let events = self.events.clone();
        on_exit(pid, move || {
            let _ = events.send(Event::Exited(at));
        })
    }

    /// Passes on what processes write until all have ended.
    fn pass_on(&mut self, heard: &Receiver<Event>, out: &mut impl io::Write) -> Result<()> {
        loop {
            for (at, end) in self.finished() {
                say(out, &Said::Ended { at, end })?;
            }
            if self.running.is_empty() {
                // What could not be started is said as well.
                while let Ok(Event::Said(said)) = heard.try_recv() {
                    say(out, &said)?;
                }
                return Ok(());
            }
            match heard.recv_timeout(self.until_next()) {
                Ok(Event::Said(said)) => say(out, &said)?,
                Ok(Event::Exited(at)) => self.reap(at)?,
                Ok(Event::Drained(at)) => {
                    if let Some(running) = self.running.get_mut(&at) {
                        running.open -= 1;
                    }
                }
                Ok(Event::End) => self.end(),
                Err(RecvTimeoutError::Timeout) => {}
                Err(RecvTimeoutError::Disconnected) => unreachable!("this holds a sender"),
            }
            if self.ends_at.is_some_and(|at| Instant::now() >= at) {
                self.signal(Signal::KILL);
            }
        }
    }

    /// Waits for a process that has ended, and kills what it has left behind.
    fn reap(&mut self, at: usize) -> Result<()> {
        let Some(running) = self.running.get_mut(&at) else { return Ok(()) };
        let _ = kill_process_group(pid(&running.child), Signal::KILL);
        running.end = Some(End::of(running.child.wait()?));
        running.drained_by = Instant::now() + DRAIN_WITHIN;
        Ok(())
    }

    /// Takes out the processes that have ended and said everything.
    fn finished(&mut self) -> Vec<(usize, End)> {
        let now = Instant::now();
        let mut finished = Vec::new();
        self.running.retain(|at, running| match running.end {
            Some(end) if running.open == 0 || now >= running.drained_by => {
                finished.push((*at, end));
                false
            }
            _ => true,
        });
        finished
    }

    /// How long nothing is due.
    fn until_next(&self) -> Duration {
        let drains = self.running.values().filter(|running| running.end.is_some());
        let due = drains.map(|running| running.drained_by).chain(self.ends_at).min();
        due.map_or(Duration::from_secs(3600), |due| due.saturating_duration_since(Instant::now()))
            .max(Duration::from_millis(1))
    }

    /// Tells all processes to end; those that do not are killed later.
    fn end(&mut self) {
        if self.ends_at.is_none() {
            self.signal(Signal::TERM);
            // One that was stopped cannot end.
            self.signal(Signal::CONT);
            self.ends_at = Some(Instant::now() + END_WITHIN);
        }
    }

    fn signal(&self, signal: Signal) {
        for running in self.running.values().filter(|running| running.end.is_none()) {
            let _ = kill_process_group(pid(&running.child), signal);
        }
    }

    /// Leaves nothing behind.
    fn kill(&mut self) {
        self.signal(Signal::KILL);
        for running in self.running.values_mut() {
            let _ = running.child.wait();
        }
        descendants::end_all();
    }
}

/// Calls `then` when a child has ended. The child stays a zombie until it is waited for, so that
/// its number still means it and its group.
pub(super) fn on_exit(pid: Pid, then: impl FnOnce() + Send + 'static) -> Result<()> {
    spawn(move || {
        let options = WaitIdOptions::EXITED | WaitIdOptions::NOWAIT;
        while let Err(Errno::INTR) = waitid(WaitId::Pid(pid), options) {}
        then();
    })
}

pub(super) fn pid(child: &Child) -> Pid {
    Pid::from_child(child)
}

/// Passes on each line of an output.
fn gather(output: Box<dyn Read + Send>, at: usize, to_error: bool, events: &Sender<Event>) {
    let _ = each_line(output, |text| {
        events.send(Event::Said(Said::Line { at, to_error, text })).is_ok()
    });
    let _ = events.send(Event::Drained(at));
}

/// Reads lines, without their ends, while `take` wants more. A very long line comes in parts.
pub(super) fn each_line(output: impl Read, mut take: impl FnMut(String) -> bool) -> io::Result<()> {
    let mut output = BufReader::new(output);
    let mut line = Vec::new();
    while output.by_ref().take(LINE_MAX).read_until(b'\n', &mut line)? > 0 {
        if line.ends_with(b"\n") {
            line.pop();
        }
        if !take(String::from_utf8_lossy(&line).into_owned()) {
            break;
        }
        line.clear();
    }
    Ok(())
}

/// `host:port` of an address.
pub(super) fn at_port(address: IpAddr, port: u16) -> String {
    join_host(&address.to_string(), port)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lines_come_whole_or_in_parts() {
        let mut lines = Vec::new();
        let long = "x".repeat(LINE_MAX as usize + 5);
        let text = format!("one\n\ntw\u{e9}\n{long}\nlast");
        each_line(text.as_bytes(), |line| {
            lines.push(line);
            true
        })
        .unwrap();
        let lengths: Vec<usize> = lines.iter().map(String::len).collect();
        assert_eq!(lengths, [3, 0, 4, LINE_MAX as usize, 5, 4]);
    }
}
