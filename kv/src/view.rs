//! The view of a cluster's server threads: where they listen and which of them are lost for good,
//! and which workers are.
//!
//! All only grow, so views join in any order. What a lost thread still says counts no longer.
//! Everybody who has the view finds in it, without asking, who serves a shard that has copies.

use std::collections::{BTreeMap, BTreeSet};

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
    /// The threads that leave or have left, as they said so and left.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub(crate) partings: Vec<Parting>,
}

/// A step of a server thread that leaves the cluster.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) enum Parting {
    /// It will leave: chains get a further copy, until which it stays in them.
    Announced(usize),
    /// It has left.
    Departed(Departed),
}

/// A server thread that has left the cluster. It owns nothing any more.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Departed {
    pub(crate) thread: usize,
    /// The thread that has its place: on that goes what later tables place on this one.
    pub(crate) heir: usize,
    /// The shards that it has given away.
    pub(crate) gone: Vec<Handed>,
    /// The first and the last number of tables that it knew to be dropped.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub(crate) dropped: Vec<(u32, u32)>,
    /// If it numbered the tables: all of them, by number.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub(crate) tables: BTreeMap<u32, Bequest>,
}

/// A table that a server thread has numbered which has left.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Bequest {
    /// Its specification as JSON.
    pub(crate) table: String,
    /// Whether all owners of its shards know it.
    pub(crate) is_complete: bool,
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

impl Parting {
    pub(crate) fn departed(&self) -> Option<&Departed> {
        match self {
            Parting::Announced(_) => None,
            Parting::Departed(departed) => Some(departed),
        }
    }
}

impl Departed {
    /// Where it has given the shard of a table that begins at `begin`.
    fn handed(&self, table: u32, begin: u64) -> Option<Handed> {
        self.gone.iter().find(|it| (it.table, it.begin) == (table, begin)).copied()
    }
}

impl View {
    /// Number of founding server processes.
    pub(crate) fn processes(&self) -> usize {
        self.addresses.len() / self.threads.max(1)
    }

    /// Checks a view that came from elsewhere, in a cluster that `count` server threads founded.
    pub(crate) fn check(&self, count: usize) -> Result<(), String> {
        let View { addresses, threads, joined, lost, .. } = self;
        if addresses.len() != count {
            return Err(format!("a view of {} server threads, not of {count}", addresses.len()));
        }
        if *threads == 0 || !count.is_multiple_of(*threads) {
            return Err(format!("a view of {count} server threads, {threads} in each process"));
        }
        let all = count.saturating_add(*joined);
        let mut gone = BTreeSet::new();
        for Departed { thread, heir, .. } in self.departed() {
            gone.insert(*thread);
            if *thread >= all || *heir >= all || gone.contains(heir) {
                return Err(format!(
                    "server thread {thread} cannot leave its place to thread {heir}: they are not \
                     two of {all}, or that one has left"
                ));
            }
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
            let View { addresses, joined, lost, workers, partings, .. } = view;
            [addresses.len(), *joined, lost.len(), workers.len(), partings.len()]
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
        let new = other.partings.get(self.partings.len()..).unwrap_or_default();
        self.partings.extend_from_slice(new);
        before != size(self)
    }

    /// Whether a thread has left.
    pub(crate) fn has_left(&self, thread: usize) -> bool {
        self.departure(thread).is_some()
    }

    /// Whether a thread is lost or has left.
    pub(crate) fn is_gone(&self, thread: usize) -> bool {
        self.lost.contains(&thread) || self.has_left(thread)
    }

    /// The threads that have left, in the order in which they left.
    pub(crate) fn departed(&self) -> impl Iterator<Item = &Departed> {
        self.partings.iter().filter_map(Parting::departed)
    }

    fn departure(&self, thread: usize) -> Option<&Departed> {
        self.departed().find(|it| it.thread == thread)
    }

    /// Whether a thread has said that it will leave.
    pub(crate) fn leaves(&self, thread: usize) -> bool {
        self.partings.contains(&Parting::Announced(thread))
    }

    /// Where a thread that has left has given the shard of a table that begins at `begin`.
    pub(crate) fn handed(&self, thread: usize, table: u32, begin: u64) -> Option<Handed> {
        self.departure(thread)?.handed(table, begin)
    }

    /// The thread that has the place of another one: itself, unless it has left. An heir leaves
    /// later than the thread before, so one look at each is enough, whatever a peer has said.
    fn holder(&self, place: usize) -> usize {
        let next = |holder, it: &Departed| if it.thread == holder { it.heir } else { holder };
        self.departed().fold(place, next)
    }

    /// The thread on which the shard of a table that begins at `begin` and is placed on `place`
    /// begins to be; none if a thread that has left has given it away.
    pub(crate) fn creator(&self, place: usize, table: u32, begin: u64) -> Option<usize> {
        self.departed().try_fold(place, |holder, it| match it.thread == holder {
            true => it.handed(table, begin).is_none().then_some(it.heir),
            false => Some(holder),
        })
    }

    /// The heirs of threads that leave together: of those that stay, whoever has the fewest places
    /// so far. None if nobody stays.
    pub(crate) fn heirs(&self, leaving: &[usize]) -> Option<Vec<usize>> {
        let all = self.addresses.len() + self.joined;
        let mut places = vec![0; all];
        (0..self.addresses.len()).for_each(|place| places[self.holder(place)] += 1);
        let stays = |thread: &usize| !self.is_gone(*thread) && !leaving.contains(thread);
        let heir = |_: &usize| {
            let heir = (0..all).filter(stays).min_by_key(|thread| places[*thread])?;
            places[heir] += 1;
            Some(heir)
        };
        leaving.iter().map(heir).collect()
    }

    /// The chain of a shard that was given to thread `first`: the first `replicas + 1` threads from
    /// there on that are neither lost nor leave, each in a process of its own, and those between
    /// that leave and have not left. The first of them serves it.
    pub(crate) fn chain(&self, first: usize, replicas: u32) -> impl Iterator<Item = usize> + '_ {
        let living = self.ring(first).filter(|thread| !self.is_gone(*thread));
        let mut wanted = (replicas as usize).saturating_add(1);
        living.take_while(move |thread| {
            let is_in = wanted > 0;
            wanted -= usize::from(is_in && !self.leaves(*thread));
            is_in
        })
    }

    /// Whether a thread was in that chain when none was gone.
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

    const HANDED: Handed = Handed { table: 3, begin: 70, server: 1, epoch: 2 };

    fn departed(thread: usize, heir: usize) -> Parting {
        let (dropped, tables) = (Vec::new(), BTreeMap::new());
        Parting::Departed(Departed { thread, heir, gone: vec![HANDED], dropped, tables })
    }

    #[test]
    fn who_leaves_stays_in_its_chains_beside_a_further_copy() {
        let mut view = view(1, 4, &[1]);
        assert_eq!(chain(&view, 0, 1), [0, 2]);
        view.partings.push(Parting::Announced(0));
        assert_eq!(chain(&view, 0, 1), [0, 2, 3]);
        assert_eq!(chain(&view, 3, 1), [3, 0, 2]);
        assert_eq!(chain(&view, 2, 1), [2, 3], "it is not in this one");
        view.partings.push(Parting::Announced(2));
        assert_eq!(chain(&view, 0, 1), [0, 2, 3], "nobody else stays");
        view.partings.push(departed(0, 3));
        assert_eq!(chain(&view, 0, 1), [2, 3]);
    }

    #[test]
    fn places_go_to_heirs() {
        let mut view = View { joined: 2, ..view(1, 3, &[1]) };
        assert_eq!(view.heirs(&[0]), Some(vec![3]), "one that has joined has no place yet");
        view.partings.push(departed(0, 3));
        assert_eq!((view.holder(0), view.holder(1)), (3, 1));
        assert_eq!(view.heirs(&[2, 3]), Some(vec![4, 4]), "nobody else stays");
        view.partings.push(departed(3, 4));
        assert_eq!((view.holder(0), view.holder(2)), (4, 2));
        assert_eq!(view.creator(0, 3, 71), Some(4));
        assert_eq!(view.creator(0, 3, 70), None, "it was given away");
        assert_eq!(view.heirs(&[2, 4]), None);
        // Two views that are right by themselves may name heirs in a circle together.
        view.partings.push(departed(4, 3));
        assert_eq!((view.holder(0), view.creator(0, 3, 71)), (3, Some(3)));
        assert_eq!(chain(&view, 0, 2), [2], "who has left is in no chain");
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
        let leave = |pairs: &[(usize, usize)]| {
            let partings = pairs.iter().map(|(thread, heir)| departed(*thread, *heir)).collect();
            View { joined: 1, partings, ..view(1, 6, &[]) }.check(6)
        };
        for may in [&[(5, 6)][..], &[(6, 0), (0, 5), (5, 1)]] {
            assert_eq!(leave(may), Ok(()));
        }
        for (may_not, says) in [
            (&[(7, 0)][..], "thread 7 cannot leave its place to thread 0"),
            (&[(6, 7)], "thread 6 cannot leave its place to thread 7"),
            (&[(2, 2)], "thread 2 cannot leave its place to thread 2"),
            (&[(2, 3), (3, 2)], "thread 3 cannot leave its place to thread 2"),
        ] {
            assert!(leave(may_not).unwrap_err().contains(says));
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
        let partings = vec![Parting::Announced(5), departed(5, 4), departed(4, 3)];
        assert!(one.join(&View { partings: partings[..1].to_vec(), ..View::default() }));
        assert!(one.leaves(5) && !one.has_left(5));
        let left = View { partings, ..View::default() };
        assert!(one.join(&left) && !one.join(&left) && one.departed().count() == 2);
        assert!(one.has_left(4) && one.has_left(5) && !one.has_left(3));
        assert_eq!(one.handed(4, 3, 70), Some(HANDED));
        let others = [(3, 3, 70), (4, 2, 70), (4, 3, 7)];
        assert!(others.iter().all(|it| one.handed(it.0, it.1, it.2).is_none()));
    }
}
