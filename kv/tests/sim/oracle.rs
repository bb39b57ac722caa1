//! What all nodes of a simulated run share besides the network: who counts as lost, how far the
//! workers are, and how far the servers.
//!
//! After each event at a server it holds the logs of copies against each other: that of a copy is
//! the beginning of that of the thread before it in its chain, and what a worker was told is done
//! is in all of them.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::{Arc, Mutex, MutexGuard};
use std::time::Duration;

use caravan_kv::server::{ChainCounters, Copies, LogStep, MoveCounters, MoveStep, ShardStep};
use caravan_kv::{ServerThread, SharedView, Timestamp, Worker};
use caravan_van::KeyRange;
use caravan_van::sim::Network;

/// How often a server looks for work, and how old what the oracle says can be.
pub(crate) const LOOK: Duration = Duration::from_micros(100);

/// States of a log that are remembered.
const STATES_MAX: usize = 32;

/// By node and incarnation of a worker, the timestamp of the last input that was applied: how far a
/// log has come.
type State = BTreeMap<(u32, u64), u64>;

/// It says who is lost, and which chains have moved.
#[derive(Clone)]
pub(crate) struct Oracle {
    seen: Arc<Mutex<Seen>>,
    view: SharedView,
}

#[derive(Default)]
struct Seen {
    /// Servers that count as lost.
    lost: BTreeSet<u64>,
    /// Workers that have the tables.
    begun: u64,
    /// Workers that have pushed everything.
    done: u64,
    /// Whether all faults have come.
    is_calm: bool,
    /// Tables whose copies nobody waits for, or whose parts go on as sums: only how far a log has
    /// come is known of them, not in which order.
    unordered: BTreeSet<u32>,
    servers: BTreeMap<u64, Server>,
    chains: ChainCounters,
    moves: MoveCounters,
    /// Looks at two logs.
    looks: u64,
}

/// A server as it was after its last event.
#[derive(Default)]
struct Server {
    copies: Copies,
    shards: Vec<ShardStep>,
    logs: Vec<LogStep>,
    /// Messages that it has received.
    messages: u64,
    /// By table and first key, how far its log was after each of its last events.
    states: BTreeMap<(u32, u64), Vec<State>>,
}

impl Oracle {
    /// Of so many servers.
    pub(crate) fn of(servers: u64) -> Oracle {
        Oracle { seen: Arc::default(), view: SharedView::new(servers as usize) }
    }

    fn seen(&self) -> MutexGuard<'_, Seen> {
        self.seen.lock().unwrap()
    }

    /// Records what a server has after an event, and checks its logs if they are others.
    pub(crate) fn enter(&self, server: u64, thread: &ServerThread) {
        let mut seen = self.seen();
        let of = seen.servers.entry(server).or_default();
        (of.copies, of.shards) = (thread.copies(), thread.shards());
        of.messages = thread.counters().messages_received;
        let logs = thread.logs();
        if logs == of.logs {
            return;
        }
        for log in logs.iter().filter(|log| log.is_whole) {
            let states = of.states.entry((log.table, log.range.begin())).or_default();
            if states.last() != Some(&log.applied) {
                states.push(log.applied.clone());
            }
            if states.len() > STATES_MAX {
                states.remove(0);
            }
        }
        let is_whole = |log: &LogStep| log.is_whole.then(|| (log.table, log.range.begin()));
        let whole: BTreeSet<(u32, u64)> = logs.iter().filter_map(is_whole).collect();
        of.states.retain(|place, _| whole.contains(place));
        of.logs = logs;
        seen.check_logs(server, self.view.changes());
    }

    /// Records the counters of a server that stops.
    pub(crate) fn leave(&self, thread: &ServerThread) {
        let mut seen = self.seen();
        seen.chains += thread.chains();
        seen.moves += thread.moves();
    }

    /// Checks that all copies have what a worker was told is done: a push to these keys.
    pub(crate) fn acknowledge(&self, node: u32, pushed: Timestamp, (table, keys): (u32, &[u64])) {
        let (seen, changes) = (self.seen(), self.view.changes());
        for (server, log) in seen.whole_logs().filter(|(_, log)| log.heard == changes) {
            let has_key = keys.iter().any(|key| log.range.contains(*key));
            if log.table != table || !has_key || seen.unordered.contains(&table) {
                continue;
            }
            let of_node = log.applied.range((node, 0)..=(node, u64::MAX));
            let last = of_node.map(|(_, timestamp)| *timestamp).max().unwrap_or(0);
            let is_here = last >= pushed.0;
            assert!(is_here, "{pushed} of node {node} was acknowledged; server {server}: {log:?}");
        }
    }

    /// Makes a table's copies not be held against each other in their order.
    pub(crate) fn leave_unordered(&self, table: u32) {
        self.seen().unordered.insert(table);
    }

    /// Makes a worker hear who is lost.
    pub(crate) fn tell(&self, mut worker: Worker) -> Worker {
        self.hear(&mut worker);
        worker
    }

    /// As [`Oracle::tell`].
    pub(crate) fn hear(&self, worker: &mut Worker) {
        self.view.tell(worker, Duration::from_micros(300));
    }

    /// How often chains have changed.
    pub(crate) fn changes(&self) -> usize {
        self.view.changes()
    }

    /// Whether a server has no copy of anything.
    pub(crate) fn has_left(&self, server: u64) -> bool {
        self.seen().servers.get(&server).is_none_or(|it| it.logs.is_empty())
    }

    /// Who counts as lost.
    pub(crate) fn lost<T: FromIterator<usize>>(&self) -> T {
        self.seen().lost.iter().map(|it| *it as usize).collect()
    }

    /// Makes a server count as lost.
    pub(crate) fn lose(&self, server: u64) {
        self.seen().lost.insert(server);
        self.view.lose(server as usize);
    }

    /// The first of so many servers that is not lost, from this one on and around.
    pub(crate) fn living(&self, from: u64, servers: u64) -> u64 {
        let seen = self.seen();
        let mut all = (0..servers).map(|next| (from + next) % servers);
        all.find(|server| !seen.lost.contains(server)).expect("one of them lives")
    }

    /// Records that a worker has the tables.
    pub(crate) fn begin(&self) {
        self.seen().begun += 1;
    }

    /// Waits until so many workers have the tables.
    pub(crate) fn wait_for_workers(&self, network: &Network, workers: u64) {
        while self.seen().begun < workers {
            network.sleep(Duration::from_micros(100));
        }
    }

    /// Records that all faults have come.
    pub(crate) fn calm_down(&self) {
        self.seen().is_calm = true;
    }

    pub(crate) fn is_calm(&self) -> bool {
        self.seen().is_calm
    }

    /// Records that a worker has pushed everything.
    pub(crate) fn end(&self) {
        self.seen().done += 1;
    }

    /// Whether so many workers have pushed everything.
    pub(crate) fn is_over(&self, workers: u64) -> bool {
        self.seen().done >= workers
    }

    /// The copies of a server as it saw them last.
    pub(crate) fn copies(&self, server: u64) -> Copies {
        self.seen().servers.get(&server).map(|it| it.copies).unwrap_or_default()
    }

    /// A server that is not lost, and where `of` is true of its copies.
    pub(crate) fn server(&self, of: impl Fn(&Copies) -> bool) -> Option<u64> {
        let seen = self.seen();
        let mut living = seen.servers.iter().filter(|(server, _)| !seen.lost.contains(server));
        living.find(|(_, it)| of(&it.copies)).map(|(server, _)| *server)
    }

    /// Waits until all servers that are not lost know who is, and all copies are whole; returns
    /// whether they are. They never may be if all workers have ended, of whom servers hear of a
    /// loss.
    pub(crate) fn wait_for_copies(&self, network: &Network, workers: u64) -> bool {
        let lost = self.seen().lost.len();
        let lacks = |it: &Copies| it.lost < lost || it.missing + it.coming > 0;
        let are_whole = wait_until(network, || self.server(lacks).is_none());
        assert!(are_whole || self.is_over(workers), "a copy is missing");
        are_whole
    }

    /// How far a shard has come at a server that moves; `None` if it is not there.
    pub(crate) fn step(&self, server: usize, (table, range): (u32, KeyRange)) -> Option<MoveStep> {
        let is_it = |it: &&ShardStep| (it.table, it.range) == (table, range);
        let seen = self.seen();
        seen.servers.get(&(server as u64))?.shards.iter().find(is_it).map(|it| it.step)
    }

    /// All shards, with their servers.
    pub(crate) fn shards(&self) -> Vec<(usize, ShardStep)> {
        let seen = self.seen();
        let living = seen.servers.iter().filter(|(server, _)| !seen.lost.contains(server));
        living.flat_map(|(at, it)| it.shards.iter().map(|it| (*at as usize, *it))).collect()
    }

    /// The servers that have received a message.
    pub(crate) fn heard(&self) -> Vec<u64> {
        let seen = self.seen();
        let heard = seen.servers.iter().filter(|(_, it)| it.messages > 0);
        heard.map(|(server, _)| *server).collect()
    }

    /// Two servers between which a shard moves that has come as far as `step` at the first.
    pub(crate) fn moving(&self, step: MoveStep) -> Option<[usize; 2]> {
        let all = self.shards();
        all.iter().filter(|(_, it)| it.step == step).find_map(|(owner, it)| {
            let is_same = |(server, other): &&(usize, ShardStep)| {
                server != owner && (other.table, other.range) == (it.table, it.range)
            };
            Some([*owner, all.iter().find(is_same)?.0])
        })
    }

    /// What the servers have counted that have stopped.
    pub(crate) fn counters(&self) -> (ChainCounters, MoveCounters) {
        let seen = self.seen();
        (seen.chains, seen.moves)
    }

    /// How often two logs were held against each other.
    pub(crate) fn looks(&self) -> u64 {
        self.seen().looks
    }
}

impl Seen {
    /// The whole logs of servers that are not lost, and that have a place in the chain.
    fn whole_logs(&self) -> impl Iterator<Item = (u64, &LogStep)> {
        let living = self.servers.iter().filter(|(server, _)| !self.lost.contains(server));
        let logs = living.flat_map(|(server, it)| it.logs.iter().map(|log| (*server, log)));
        logs.filter(|(_, log)| log.is_whole && log.place.is_some())
    }

    /// Holds the logs of a server against those of the others in their chains, of threads that have
    /// heard all changes.
    fn check_logs(&mut self, server: u64, changes: usize) {
        let mut looks = 0;
        let own = self.whole_logs().filter(|(at, log)| *at == server && log.heard == changes);
        for (_, log) in own {
            let others = self.whole_logs().filter(|(at, other)| {
                *at != server
                    && (other.table, other.range) == (log.table, log.range)
                    && other.heard == log.heard
                    && other.place != log.place
            });
            for (at, other) in others {
                let [before, behind] = match log.place < other.place {
                    true => [log, other],
                    false => [other, log],
                };
                let has_no_more = is_within(&behind.applied, &before.applied);
                assert!(has_no_more, "a copy is ahead: {behind:?}, of {before:?}");
                looks += 1;
                if self.unordered.contains(&log.table) {
                    continue;
                }
                let states = &self.servers[&at].states[&(log.table, log.range.begin())];
                let is_beside = |state: &&State| {
                    !is_within(state, &log.applied) && !is_within(&log.applied, state)
                };
                let found = states.iter().find(is_beside);
                assert!(found.is_none(), "{log:?} was in another order at {at}: {found:?}");
            }
        }
        self.looks += looks;
    }
}

/// Whether all that one log has is in another one.
fn is_within(part: &State, whole: &State) -> bool {
    part.iter().all(|(of, last)| whole.get(of).copied().unwrap_or(0) >= *last)
}

/// Waits until something is so, but not for ever; returns whether it is.
pub(crate) fn wait_until(network: &Network, is_so: impl Fn() -> bool) -> bool {
    (0..4000).any(|_| {
        network.sleep(Duration::from_micros(50));
        is_so()
    })
}
