//! The view of a cluster's server threads: where they listen and which of them are lost for good,
//! and which workers are.
//!
//! All only grow, so views join in any order. What a lost thread still says counts no longer.
//! Everybody who has the view finds in it, without asking, who serves a shard that has copies.

use std::collections::BTreeSet;

use serde::{Deserialize, Serialize};

/// The server threads of a cluster. Founders are those that were there when it was complete: tables
/// are placed on them, and copies go along their ring. Threads that have joined since follow behind
/// them, and have the shards that were moved there.
#[derive(Debug, Default, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct View {
    /// Addresses of the founders, in their order.
    pub(crate) addresses: Vec<String>,
    /// Threads of each of their processes.
    pub(crate) threads: usize,
    /// Number of threads that have joined since.
    #[serde(default)]
    pub(crate) joined: usize,
    pub(crate) lost: BTreeSet<usize>,
    /// Nodes of workers that are lost.
    #[serde(default)]
    pub(crate) workers: BTreeSet<u32>,
    /// Threads that have joined and left again, in the order in which they left.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub(crate) left: Vec<Departed>,
}

/// A server thread that has left the cluster. It owns nothing any more.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Departed {
    pub(crate) thread: usize,
    /// The shards that it has given away.
    pub(crate) gone: Vec<Handed>,
}

/// Where a server thread has given a shard.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Handed {
    /// Number of its table.
    pub(crate) table: u32,
    /// Its first key.
    pub(crate) begin: u64,
    /// The new owner, and the epoch from which on it is that.
    pub(crate) server: usize,
    pub(crate) epoch: u64,
}

impl View {
    /// Number of founding server processes.
    pub(crate) fn processes(&self) -> usize {
        self.addresses.len() / self.threads.max(1)
    }

    /// Checks a view that came from elsewhere, in a cluster that `count` server threads founded.
    pub(crate) fn check(&self, count: usize) -> Result<(), String> {
        let View { addresses, threads, joined, lost, left, .. } = self;
        if addresses.len() != count {
            return Err(format!("a view of {} server threads, not of {count}", addresses.len()));
        }
        if *threads == 0 || !count.is_multiple_of(*threads) {
            return Err(format!("a view of {count} server threads, {threads} in each process"));
        }
        let all = count.saturating_add(*joined);
        if let Some(Departed { thread, .. }) =
            left.iter().find(|it| !(count..all).contains(&it.thread))
        {
            return Err(format!(
                "server thread {thread} cannot leave: it is none of {count}..{all}"
            ));
        }
        match lost.last() {
            Some(last) if *last >= all => {
                Err(format!("server thread {last} cannot be lost: there are {all}"))
            }
            _ => Ok(()),
        }
    }

    /// Adds what another view has; returns whether this one did not have all of it.
    pub(crate) fn join(&mut self, other: &View) -> bool {
        let size = |view: &View| {
            let View { addresses, joined, lost, workers, left, .. } = view;
            [addresses.len(), *joined, lost.len(), workers.len(), left.len()]
        };
        let before = size(self);
        if other.addresses.len() > self.addresses.len() {
            self.addresses.clone_from(&other.addresses);
            self.threads = other.threads;
        }
        self.joined = self.joined.max(other.joined);
        self.lost.extend(&other.lost);
        self.workers.extend(&other.workers);
        // All hear of them in one order.
        let new = other.left.get(self.left.len()..).unwrap_or_default();
        self.left.extend_from_slice(new);
        before != size(self)
    }

    /// Whether a thread has left.
    pub(crate) fn has_left(&self, thread: usize) -> bool {
        self.left.iter().any(|it| it.thread == thread)
    }

    /// Where a thread that has left has given the shard of a table that begins at `begin`.
    pub(crate) fn handed(&self, thread: usize, table: u32, begin: u64) -> Option<Handed> {
        let departed = self.left.iter().find(|it| it.thread == thread)?;
        departed.gone.iter().find(|it| (it.table, it.begin) == (table, begin)).copied()
    }

    /// The chain of a shard that was given to thread `first`: the first `replicas + 1` threads from
    /// there on that are not lost, each in a process of its own. The first of them serves it.
    pub(crate) fn chain(&self, first: usize, replicas: u32) -> impl Iterator<Item = usize> + '_ {
        let living = self.ring(first).filter(|thread| !self.lost.contains(thread));
        living.take((replicas as usize).saturating_add(1))
    }

    /// Whether a thread was in that chain when none was lost.
    pub(crate) fn was_in_chain(&self, first: usize, replicas: u32, thread: usize) -> bool {
        self.ring(first).take((replicas as usize).saturating_add(1)).any(|it| it == thread)
    }

    /// A thread of each process, from `first` on.
    fn ring(&self, first: usize) -> impl Iterator<Item = usize> + '_ {
        let count = self.addresses.len().max(1);
        (0..self.processes()).map(move |at| (first + at * self.threads) % count)
    }

    /// The thread after thread `of` in a chain.
    pub(crate) fn next(&self, first: usize, replicas: u32, of: usize) -> Option<usize> {
        self.chain(first, replicas).skip_while(|thread| *thread != of).nth(1)
    }

    /// How many threads follow thread `of` in a chain.
    pub(crate) fn behind(&self, first: usize, replicas: u32, of: usize) -> usize {
        self.chain(first, replicas).skip_while(|thread| *thread != of).count().saturating_sub(1)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn view(threads: usize, processes: usize, lost: &[usize]) -> View {
        let addresses = (0..threads * processes).map(|at| format!("sim:{at}")).collect();
        let lost = lost.iter().copied().collect();
        View { addresses, threads, lost, workers: BTreeSet::from([9]), ..View::default() }
    }

    fn chain(view: &View, first: usize, replicas: u32) -> Vec<usize> {
        view.chain(first, replicas).collect()
    }

    #[test]
    fn a_chain_goes_on_to_the_next_processes_that_live() {
        assert_eq!(chain(&view(1, 4, &[]), 3, 2), [3, 0, 1]);
        assert_eq!(chain(&view(1, 4, &[3, 1]), 3, 2), [0, 2]);
        assert_eq!(chain(&view(2, 3, &[]), 1, 1), [1, 3]);
        assert_eq!(chain(&view(2, 3, &[3, 2]), 1, 1), [1, 5]);
        assert_eq!(chain(&view(2, 3, &[]), 0, 9), [0, 2, 4]);
        assert_eq!(chain(&view(1, 2, &[0, 1]), 0, 1), [] as [usize; 0]);
        assert_eq!(chain(&View::default(), 0, 1), [] as [usize; 0]);
        let joined = View { joined: 3, ..view(1, 4, &[]) };
        assert_eq!(chain(&joined, 3, 2), [3, 0, 1], "whoever joins later is in no chain");
    }

    #[test]
    fn losses_do_not_change_who_was_in_a_chain() {
        let view = view(2, 3, &[3, 2]);
        let was = [0, 1, 2, 3, 4, 5].map(|thread| view.was_in_chain(1, 1, thread));
        assert_eq!(was, [false, true, false, true, false, false]);
    }

    #[test]
    fn a_thread_knows_who_follows() {
        let view = view(1, 4, &[2]);
        assert_eq!(
            (view.next(1, 2, 1), view.next(1, 2, 3), view.next(1, 2, 0)),
            (Some(3), Some(0), None)
        );
        assert_eq!((view.behind(1, 2, 1), view.behind(1, 2, 0), view.behind(1, 2, 2)), (2, 0, 0));
    }

    #[test]
    fn a_view_of_other_threads_is_refused() {
        assert_eq!(view(2, 3, &[0, 5]).check(6), Ok(()));
        assert!(view(1, 4, &[]).check(6).unwrap_err().contains("of 4 server threads, not of 6"));
        assert!(view(1, 6, &[6]).check(6).unwrap_err().contains("thread 6 cannot be lost"));
        assert_eq!(View { joined: 1, ..view(1, 6, &[6]) }.check(6), Ok(()));
        for (thread, may) in [(5, false), (6, true), (7, false)] {
            let left = vec![Departed { thread, gone: Vec::new() }];
            let checked = View { joined: 1, left, ..view(1, 6, &[]) }.check(6);
            assert_eq!(checked.is_ok(), may, "{thread}: {checked:?}");
        }
        for threads in [0, 4, usize::MAX] {
            let view = View { threads, ..view(1, 6, &[]) };
            assert!(view.check(6).unwrap_err().contains(&format!("{threads} in each process")));
        }
    }

    #[test]
    fn views_join_in_any_order() {
        let views = [view(1, 4, &[2]), view(1, 4, &[0]), View::default()];
        let mut one = View::default();
        let mut other = View::default();
        assert!(views.iter().map(|it| one.join(it)).eq([true, true, false]));
        assert!(views.iter().rev().map(|it| other.join(it)).eq([false, true, true]));
        assert_eq!(one, other);
        assert!(one.join(&View { workers: BTreeSet::from([8]), ..View::default() }));
        assert!(one.workers.iter().eq(&[8, 9]));
        assert!(!one.join(&views[0]) && one.lost.len() == 2);
        assert!(one.join(&View { joined: 2, ..View::default() }));
        assert!(!one.join(&View { joined: 1, ..View::default() }) && one.joined == 2);
        let handed = Handed { table: 3, begin: 70, server: 1, epoch: 2 };
        let departed = |thread| Departed { thread, gone: vec![handed] };
        let left = View { left: vec![departed(5), departed(4)], ..View::default() };
        assert!(one.join(&View { left: vec![departed(5)], ..View::default() }));
        assert!(one.join(&left) && !one.join(&left) && one.left.len() == 2);
        assert!(one.has_left(4) && one.has_left(5) && !one.has_left(3));
        assert_eq!(one.handed(4, 3, 70), Some(handed));
        let others = [(3, 3, 70), (4, 2, 70), (4, 3, 7)];
        assert!(others.iter().all(|it| one.handed(it.0, it.1, it.2).is_none()));
    }
}
