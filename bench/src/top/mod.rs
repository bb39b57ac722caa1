//! `caravan top`: what the nodes of a running cluster do, from what they tell with their
//! heartbeats.

mod metrics;

use std::collections::BTreeMap;
use std::io::{IsTerminal, Write, stdout};
use std::time::Duration;

use anyhow::Result;
use caravan_kv::Error;
use caravan_kv::node::{LanesByVan, NodeState, Observer, Role, Vitals};
use serde::Serialize;

use crate::cli::{Common, TopArgs};
use crate::cluster;
use crate::report::{Format, Report, Row, figure, say};

/// A node between two of its heartbeats. Rates are `null` where there is only one.
#[derive(Debug, Serialize)]
struct Node {
    role: Role,
    rank: usize,
    host: String,
    pid: u32,
    /// `up`, `slow`, or `lost`.
    state: &'static str,
    seconds: Option<f64>,
    cpu_percent: Option<f64>,
    memory_mib: Option<f64>,
    sent_mb_per_s: Option<f64>,
    received_mb_per_s: Option<f64>,
    sent_msg_per_s: Option<f64>,
    received_msg_per_s: Option<f64>,
    system_calls_per_s: Option<f64>,
    clock: Option<u64>,
    behind: f64,
    lost: Option<String>,
    lanes: LanesByVan,
}

impl Row for Node {
    const KIND: &'static str = "node";

    fn heading(&self) -> Option<String> {
        Some(format!(
            "{:<12}{:<16}{:>8} {:<5}{:>7}{:>9}{:>10}{:>10}{:>10}{:>10}{:>8}{:>8}  {:<18}",
            "node",
            "host",
            "process",
            "state",
            "CPU %",
            "MiB",
            "MB/s out",
            "MB/s in",
            "msg/s out",
            "msg/s in",
            "clock",
            "behind",
            "lanes"
        ))
    }

    fn text(&self) -> String {
        let some = |value: Option<f64>| value.map_or("-".to_owned(), |value| figure(&value));
        let whole =
            |value: Option<f64>| value.map_or("-".to_owned(), |value| format!("{value:.0}"));
        let line = format!(
            "{:<12}{:<16}{:>8} {:<5}{:>7}{:>9}{:>10}{:>10}{:>10}{:>10}{:>8}{:>8.1}  {:<18}",
            format!("{} {}", self.role, self.rank),
            self.host,
            self.pid,
            self.state,
            whole(self.cpu_percent),
            whole(self.memory_mib),
            some(self.sent_mb_per_s),
            some(self.received_mb_per_s),
            whole(self.sent_msg_per_s),
            whole(self.received_msg_per_s),
            self.clock.map_or("-".to_owned(), |clock| clock.to_string()),
            self.behind,
            self.lanes
        );
        match &self.lost {
            Some(why) => format!("{line}  {why}"),
            None => line,
        }
    }
}

impl Node {
    /// A node as it is now, and as it told when it was seen before.
    fn new(state: NodeState, before: Option<Vitals>) -> Node {
        let NodeState { role, rank, host, pid, lost, vitals, behind, is_slow } = state;
        let elapsed = |now: &Vitals, before: &Vitals| now.taken_ns.checked_sub(before.taken_ns);
        let pair = vitals.zip(before).filter(|(now, before)| elapsed(now, before) > Some(0));
        let seconds = pair.and_then(|(now, before)| Some(elapsed(&now, &before)? as f64 / 1e9));
        let rate = |of: fn(&Vitals) -> u64, unit: f64| {
            let (now, before) = pair?;
            Some(of(&now).saturating_sub(of(&before)) as f64 / seconds? / unit)
        };
        Node {
            role,
            rank,
            host,
            pid,
            state: if lost.is_some() {
                "lost"
            } else if is_slow {
                "slow"
            } else {
                "up"
            },
            seconds,
            cpu_percent: rate(|it| it.cpu_ns, 1e7),
            memory_mib: vitals.map(|it| it.memory_bytes as f64 / f64::from(1 << 20)),
            sent_mb_per_s: rate(|it| it.bytes_sent, 1e6),
            received_mb_per_s: rate(|it| it.bytes_received, 1e6),
            sent_msg_per_s: rate(|it| it.messages_sent, 1.0),
            received_msg_per_s: rate(|it| it.messages_received, 1.0),
            system_calls_per_s: rate(|it| it.system_calls, 1.0),
            clock: vitals.map(|it| it.clock).filter(|clock| *clock > 0),
            behind,
            lanes: vitals.map(|it| it.lanes).unwrap_or_default(),
            lost,
        }
    }
}

/// Runs `caravan top` until the cluster has ended.
///
/// # Errors
/// If there is no cluster at the address, or the address for metrics cannot be bound; with
/// `--once`, also if the cluster ends meanwhile.
pub(crate) fn run(common: &Common, args: &TopArgs) -> Result<()> {
    let mut observer = Observer::attach(&cluster::running(common)?)?;
    let ran = match &args.serve {
        Some(address) => metrics::serve(address, &mut observer),
        None => show(common, args, &mut observer),
    };
    match ran {
        Err(error)
            if !args.once && matches!(error.downcast_ref(), Some(Error::NodeLost { .. })) =>
        {
            say("the cluster has ended");
            Ok(())
        }
        ran => ran,
    }
}

/// Prints all nodes now and then, or once.
fn show(common: &Common, args: &TopArgs, observer: &mut Observer) -> Result<()> {
    let interval = Duration::from_secs_f64(args.interval);
    let is_redrawn = common.format() == Format::Text && !args.once && stdout().is_terminal();
    let mut before = by_node(&observer.nodes()?);
    loop {
        observer.pause(interval)?;
        let nodes = observer.nodes()?;
        let now = by_node(&nodes);
        if is_redrawn {
            write!(stdout(), "\x1b[H\x1b[2J")?; // clears the screen
        }
        let mut report = Report::new(common.format(), 0);
        for state in nodes {
            let before = before.get(&(state.role, state.rank)).copied();
            report.row(&Node::new(state, before))?;
        }
        if args.once {
            return Ok(());
        }
        before = now;
    }
}

fn by_node(nodes: &[NodeState]) -> BTreeMap<(Role, usize), Vitals> {
    nodes.iter().filter_map(|node| Some(((node.role, node.rank), node.vitals?))).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn rates_are_those_between_two_heartbeats() {
        let before = Vitals { taken_ns: 1_000_000_000, bytes_sent: 100, ..Vitals::default() };
        let vitals = Vitals {
            taken_ns: 3_000_000_000,
            cpu_ns: 1_000_000_000,
            memory_bytes: 3 << 20,
            bytes_sent: 4_000_100,
            clock: 9,
            lanes: LanesByVan { shm: 2, uring: 1, ..LanesByVan::default() },
            ..before
        };
        let state = NodeState {
            role: Role::Worker,
            rank: 1,
            host: "A".to_owned(),
            pid: 7,
            lost: None,
            vitals: Some(vitals),
            behind: 0.6,
            is_slow: true,
        };
        let node = Node::new(state.clone(), Some(before));
        assert_eq!((node.seconds, node.cpu_percent), (Some(2.0), Some(50.0)));
        assert_eq!((node.sent_mb_per_s, node.memory_mib), (Some(2.0), Some(3.0)));
        assert_eq!((node.clock, node.state), (Some(9), "slow"));
        assert_eq!(node.heading().unwrap().chars().count(), node.text().chars().count());
        assert!(node.text().ends_with("  2 shm + 1 uring   "), "{}", node.text());
        let unchanged = Node::new(state.clone(), Some(vitals));
        assert_eq!((unchanged.seconds, unchanged.sent_mb_per_s), (None, None));
        let lost = Some("no heartbeat".to_owned());
        let lost = Node::new(NodeState { lost, vitals: None, ..state }, None);
        assert!(lost.state == "lost" && lost.text().ends_with("no heartbeat"));
    }
}
