//! The view of a cluster's server threads: where they listen, which of them are lost for good, have
//! joined or leave, and which workers are lost.
//!
//! All only grow, so views join in any order. What a lost thread still says counts no longer.
//! Everybody who has the view finds in it, without asking, who serves a shard that has copies.

mod entry;

use std::collections::{BTreeMap, BTreeSet};

use serde::{Deserialize, Serialize};

use self::entry::ChainEntries;
pub(crate) use self::entry::{ChainEntry, ChainMember, ChainOf};
use crate::server_address::ServerAddress;

/// The server threads of a cluster. Founders are those that were there when it was complete: tables
/// are placed on them, and copies go along their ring. Threads that have joined since follow behind
/// them. They have the shards that were moved there, and copies where too few founders are left.
/// The chain of a shard that was moved has an entry of its own.
#[derive(Debug, Default, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Membership {
    /// Addresses of the founders, in their order.
    pub(crate) addresses: Vec<String>,
    /// Threads of each of their processes.
    pub(crate) threads: usize,
    pub(crate) lost: BTreeSet<usize>,
    /// Nodes of workers that are lost.
    #[serde(default)]
    pub(crate) workers: BTreeSet<u32>,
    /// What has become of the others since, in the order in which all hear of it.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub(crate) events: Vec<Event>,
    /// What they say of chains, of a view to which all were added.
    #[serde(skip)]
    pub(crate) entries: ChainEntries,
}

/// A server process joins the complete cluster, a thread of one leaves it, or chains change.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) enum Event {
    /// A process has joined. Its threads follow behind all that are there.
    Joined(Vec<ServerAddress>),
    /// It will leave: chains get a further copy, until which it stays in them.
    Announced(usize),
    /// It has left.
    Departed(Departed),
    /// Shards with copies have these chains from now on.
    Chains(Vec<ChainEntry>),
}

/// A server thread that has left the cluster. It owns nothing any more.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Departed {
    pub(crate) thread: usize,
    /// The thread that has its place: on that goes what later tables place on this one.
    pub(crate) successor: usize,
    /// Whether no founder was left. Then its successor numbers the tables.
    #[serde(default)]
    pub(crate) is_last: bool,
    /// The shards that it has given away.
    pub(crate) gone: Vec<Handed>,
    /// The first and the last number of tables that it knew to be dropped.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub(crate) dropped: Vec<(u32, u32)>,
    /// If it numbered the tables: all of them, by number.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub(crate) tables: BTreeMap<u32, Handover>,
}

/// A table that a server thread has numbered which has left.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Handover {
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

impl Event {
    pub(crate) fn departed(&self) -> Option<&Departed> {
        match self {
            Event::Departed(departed) => Some(departed),
            Event::Joined(_) | Event::Announced(_) | Event::Chains(_) => None,
        }
    }

    pub(crate) fn joined(&self) -> &[ServerAddress] {
        match self {
            Event::Joined(threads) => threads,
            Event::Announced(_) | Event::Departed(_) | Event::Chains(_) => &[],
        }
    }

    pub(crate) fn entries(&self) -> &[ChainEntry] {
        match self {
            Event::Chains(entries) => entries,
            Event::Joined(_) | Event::Announced(_) | Event::Departed(_) => &[],
        }
    }
}

impl Departed {
    /// Where it has given the shard of a table that begins at `begin`.
    fn handed(&self, table: u32, begin: u64) -> Option<Handed> {
        self.gone.iter().find(|it| (it.table, it.begin) == (table, begin)).copied()
    }
}

impl Membership {
    /// Number of founding server processes.
    pub(crate) fn processes(&self) -> usize {
        self.addresses.len() / self.threads.max(1)
    }

    /// The threads that have joined since, in their order.
    pub(crate) fn joined(&self) -> impl Iterator<Item = &ServerAddress> {
        self.events.iter().flat_map(Event::joined)
    }

    /// Number of all threads, whatever has become of them.
    pub(crate) fn count(&self) -> usize {
        self.addresses.len().saturating_add(self.joined().count())
    }

    /// Where a thread listens.
    pub(crate) fn address(&self, thread: usize) -> Option<&str> {
        let further = || self.joined().nth(thread.checked_sub(self.addresses.len())?);
        let founder = self.addresses.get(thread).map(String::as_str);
        founder.or_else(|| further().map(|it| it.address.as_str()))
    }

    /// Checks a view that came from elsewhere, in a cluster that `count` server threads founded.
    pub(crate) fn check(&self, count: usize) -> Result<(), String> {
        let Membership { addresses, threads, lost, .. } = self;
        if addresses.len() != count {
            return Err(format!("a view of {} server threads, not of {count}", addresses.len()));
        }
        if *threads == 0 || !count.is_multiple_of(*threads) {
            return Err(format!("a view of {count} server threads, {threads} in each process"));
        }
        let all = self.count();
        let mut gone = BTreeSet::new();
        for Departed { thread, successor, .. } in self.departed() {
            gone.insert(*thread);
            if *thread >= all || *successor >= all || gone.contains(successor) {
                return Err(format!(
                    "server thread {thread} cannot leave its place to thread {successor}: they are not \
                     two of {all}, or that one has left"
                ));
            }
        }
        let entries = self.events.iter().flat_map(Event::entries);
        for ChainEntry { table, begin, members } in entries {
            let unknown = members.iter().find(|member| member.thread >= all);
            let threads: Vec<usize> = members.iter().map(|member| member.thread).collect();
            let is_twice = threads.iter().collect::<BTreeSet<_>>().len() < threads.len();
            if members.is_empty() || unknown.is_some() || is_twice {
                return Err(format!(
                    "{threads:?} is no chain of the shard from key {begin} of table number {table}: \
                     there are {all} server threads"
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
    pub(crate) fn join(&mut self, other: &Membership) -> bool {
        let size = |view: &Membership| {
            let Membership { addresses, lost, workers, events, .. } = view;
            [addresses.len(), lost.len(), workers.len(), events.len()]
        };
        let before = size(self);
        if other.addresses.len() > self.addresses.len() {
            self.addresses.clone_from(&other.addresses);
            self.threads = other.threads;
        }
        self.lost.extend(&other.lost);
        self.workers.extend(&other.workers);
        // All hear of them in one order.
        let new = other.events.get(self.events.len()..).unwrap_or_default();
        new.iter().for_each(|event| self.enter(event.clone()));
        before != size(self)
    }

    /// Adds the next event.
    pub(crate) fn enter(&mut self, event: Event) {
        forget_replaced(&mut self.events, &event);
        self.entries.enter(self.events.len() as u64 + 1, event.entries());
        self.events.push(event);
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
        self.events.iter().filter_map(Event::departed)
    }

    fn departure(&self, thread: usize) -> Option<&Departed> {
        self.departed().find(|it| it.thread == thread)
    }

    /// Whether a thread has said that it will leave.
    pub(crate) fn leaves(&self, thread: usize) -> bool {
        self.events.contains(&Event::Announced(thread))
    }

    /// Where a thread that has left has given the shard of a table that begins at `begin`.
    pub(crate) fn handed(&self, thread: usize, table: u32, begin: u64) -> Option<Handed> {
        self.departure(thread)?.handed(table, begin)
    }

    /// The thread that has the place of another one: itself, unless it has left. A successor leaves
    /// later than the thread before, so one look at each is enough, whatever a peer has said.
    fn holder(&self, place: usize) -> usize {
        let next = |holder, it: &Departed| if it.thread == holder { it.successor } else { holder };
        self.departed().fold(place, next)
    }

    /// The thread that numbers the tables: the first founder that is there. The last one leaves
    /// that to its successor, who may leave it to another one. If that thread is gone nobody does.
    pub(crate) fn catalogue_owner(&self) -> usize {
        let mut founders = 0..self.addresses.len();
        if let Some(first) = founders.find(|thread| !self.is_gone(*thread)) {
            return first;
        }
        let next = |catalogue_owner, it: &Departed| match it.is_last
            || catalogue_owner == Some(it.thread)
        {
            true => Some(it.successor),
            false => catalogue_owner,
        };
        self.departed().fold(None, next).unwrap_or(self.addresses.len().saturating_sub(1))
    }

    /// The thread on which the shard of a table that begins at `begin` and is placed on `place`
    /// begins to be; none if a thread that has left has given it away.
    pub(crate) fn creator(&self, place: usize, table: u32, begin: u64) -> Option<usize> {
        self.departed().try_fold(place, |holder, it| match it.thread == holder {
            true => it.handed(table, begin).is_none().then_some(it.successor),
            false => Some(holder),
        })
    }

    /// The successors of threads that leave together: of those that stay, whoever has the fewest
    /// places so far. None if nobody stays.
    pub(crate) fn successors(&self, leaving: &[usize]) -> Option<Vec<usize>> {
        let all = self.count();
        let mut places = vec![0; all];
        (0..self.addresses.len()).for_each(|place| places[self.holder(place)] += 1);
        let stays = |thread: &usize| !self.is_gone(*thread) && !leaving.contains(thread);
        let successor = |_: &usize| {
            let successor = (0..all).filter(stays).min_by_key(|thread| places[*thread])?;
            places[successor] += 1;
            Some(successor)
        };
        leaving.iter().map(successor).collect()
    }

    /// The thread that has the places of another one when that is lost or leaves: the next one of
    /// its ring, or itself.
    pub(crate) fn successor(&self, thread: usize) -> Option<usize> {
        self.ring(thread).find(|thread| !self.is_gone(*thread))
    }

    /// The chain of a shard: the threads of its entry, or else the thread to which it was given,
    /// and further ones of the ring of the first of these; `replicas + 1` that are neither lost nor
    /// leave, each in a process of its own, and those between that leave and have not left. Of an
    /// entry all that are not gone. The first of them serves it.
    pub(crate) fn chain(&self, of: ChainOf) -> impl Iterator<Item = usize> + '_ {
        let members = self.entries.get(of).map_or(&[][..], |(members, _)| members);
        let first = members.first().map_or(of.first, |member| member.thread);
        let is_near = move |thread: usize| {
            members.iter().any(|it| self.process(it.thread) == self.process(thread))
        };
        let further = self.ring(first).filter(move |thread| !is_near(*thread));
        let all = members.iter().map(|member| (member.thread, true));
        let all = all.chain(further.map(|thread| (thread, false)));
        let mut wanted = (of.replicas as usize).saturating_add(1);
        let living = all.filter(|(thread, _)| !self.is_gone(*thread));
        let chain = living.take_while(move |(thread, is_member)| {
            let is_in = *is_member || wanted > 0;
            let counts = is_in && wanted > 0 && !self.leaves(*thread);
            wanted -= usize::from(counts);
            is_in
        });
        chain.map(|(thread, _)| thread)
    }

    /// Whether a shard has an entry: its chain is not that of its placement.
    pub(crate) fn has_entry(&self, of: ChainOf) -> bool {
        self.entries.get(of).is_some()
    }

    /// The change since which a thread of a shard's chain is in it without a break. Whoever stands
    /// in for a lost one is since the entry.
    pub(crate) fn since(&self, of: ChainOf, thread: usize) -> u64 {
        let Some((members, number)) = self.entries.get(of) else { return 0 };
        let member = members.iter().find(|member| member.thread == thread);
        member.map_or(number, |member| member.since)
    }

    /// Whether a thread makes an equal copy of a new shard by itself, with its table: it was in the
    /// chain when none was gone and nothing was moved.
    pub(crate) fn was_in_chain(&self, of: ChainOf, thread: usize) -> bool {
        let mut founding = self.ring(of.first).take((of.replicas as usize).saturating_add(1));
        !self.has_entry(of) && founding.any(|it| it == thread)
    }

    /// The process of a thread, among all.
    pub(crate) fn process(&self, thread: usize) -> usize {
        let (count, mut end) = (self.addresses.len(), self.addresses.len());
        if thread < count {
            return thread / self.threads.max(1);
        }
        let joined = self.events.iter().map(Event::joined).filter(|threads| !threads.is_empty());
        let before = joined.take_while(|threads| {
            end += threads.len();
            end <= thread
        });
        self.processes() + before.count()
    }

    /// A thread of each process, from `first` on: of the founders, around their ring, and then of
    /// those that have joined with as many threads, in their order; that of a thread that has
    /// joined begins with itself. So whoever joins changes no chain that has all its copies.
    pub(crate) fn ring(&self, first: usize) -> impl Iterator<Item = usize> + '_ {
        let count = self.addresses.len();
        let own = self.joined_of(first);
        let start = match own {
            None => Some(first).filter(|_| first < count),
            Some((begin, threads)) => (threads == self.threads).then_some(first - begin),
        };
        let processes = 0..start.map_or(0, |_| self.processes());
        let founders =
            processes.filter_map(move |at| start.map(|start| (start + at * self.threads) % count));
        let place = start.map(|start| start % self.threads.max(1));
        let mut end = count;
        let joined = self.events.iter().map(Event::joined).filter_map(move |threads| {
            let begin = end;
            end += threads.len();
            let is_like = threads.len() == self.threads && !(begin..end).contains(&first);
            place.filter(|_| is_like).map(|place| begin + place)
        });
        own.map(|_| first).into_iter().chain(founders).chain(joined)
    }

    /// The first thread and the number of threads of the process with which a thread has joined.
    fn joined_of(&self, thread: usize) -> Option<(usize, usize)> {
        let mut end = self.addresses.len();
        self.events.iter().map(Event::joined).find_map(|threads| {
            let begin = end;
            end += threads.len();
            (begin..end).contains(&thread).then_some((begin, threads.len()))
        })
    }
}

/// Forgets what earlier events say of the shards of a new one.
pub(crate) fn forget_replaced(events: &mut [Event], new: &Event) {
    let new = new.entries();
    let is_replaced =
        |it: &ChainEntry| new.iter().any(|by| (by.table, by.begin) == (it.table, it.begin));
    for event in events.iter_mut().filter(|_| !new.is_empty()) {
        if let Event::Chains(entries) = event {
            entries.retain(|it| !is_replaced(it));
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn view(threads: usize, processes: usize, lost: &[usize]) -> Membership {
        let addresses = (0..threads * processes).map(|at| format!("sim:{at}")).collect();
        let lost = lost.iter().copied().collect();
        Membership {
            addresses,
            threads,
            lost,
            workers: BTreeSet::from([9]),
            ..Membership::default()
        }
    }

    fn of(first: usize, replicas: u32) -> ChainOf {
        ChainOf { table: 3, begin: 70, first, replicas }
    }

    fn chain(view: &Membership, first: usize, replicas: u32) -> Vec<usize> {
        view.chain(of(first, replicas)).collect()
    }

    /// A process with so many threads.
    fn joined(threads: usize) -> Event {
        let at = |name: &str| ServerAddress { name: name.into(), address: format!("sim:{name}") };
        Event::Joined(["a", "b"].map(at)[..threads].to_vec())
    }

    const HANDED: Handed = Handed { table: 3, begin: 70, server: 1, epoch: 2 };

    fn departed(thread: usize, successor: usize) -> Event {
        let (dropped, tables) = (Vec::new(), BTreeMap::new());
        Event::Departed(Departed {
            thread,
            successor,
            is_last: false,
            gone: vec![HANDED],
            dropped,
            tables,
        })
    }

    #[test]
    fn who_leaves_stays_in_its_chains_beside_a_further_copy() {
        let mut view = view(1, 4, &[1]);
        assert_eq!(chain(&view, 0, 1), [0, 2]);
        view.events.push(Event::Announced(0));
        assert_eq!(chain(&view, 0, 1), [0, 2, 3]);
        assert_eq!(chain(&view, 3, 1), [3, 0, 2]);
        assert_eq!(chain(&view, 2, 1), [2, 3], "it is not in this one");
        view.events.push(Event::Announced(2));
        assert_eq!(chain(&view, 0, 1), [0, 2, 3], "nobody else stays");
        view.events.push(departed(0, 3));
        assert_eq!(chain(&view, 0, 1), [2, 3]);
    }

    #[test]
    fn places_go_to_successors() {
        let mut view = Membership { events: vec![joined(1), joined(1)], ..view(1, 3, &[1]) };
        assert_eq!(view.successors(&[0]), Some(vec![3]), "one that has joined has no place yet");
        view.events.push(departed(0, 3));
        assert_eq!((view.holder(0), view.holder(1)), (3, 1));
        assert_eq!(view.successors(&[2, 3]), Some(vec![4, 4]), "nobody else stays");
        view.events.push(departed(3, 4));
        assert_eq!((view.holder(0), view.holder(2)), (4, 2));
        assert_eq!(view.creator(0, 3, 71), Some(4));
        assert_eq!(view.creator(0, 3, 70), None, "it was given away");
        assert_eq!(view.successors(&[2, 4]), None);
        // Two views that are right by themselves may name successors in a circle together.
        view.events.push(departed(4, 3));
        assert_eq!((view.holder(0), view.creator(0, 3, 71)), (3, Some(3)));
        assert_eq!(chain(&view, 0, 2), [2], "who has left is in no chain");
    }

    #[test]
    fn only_the_last_founder_leaves_the_numbering_of_tables_to_its_successor() {
        let mut view = Membership { events: vec![joined(1), joined(1)], ..view(1, 3, &[]) };
        assert_eq!(view.catalogue_owner(), 0);
        view.events.push(departed(2, 3));
        view.lost.insert(0);
        assert_eq!(view.catalogue_owner(), 1);
        let mut last = Membership { lost: BTreeSet::from([0]), ..view.clone() };
        view.lost.insert(1);
        assert_eq!(
            (view.catalogue_owner(), view.is_gone(view.catalogue_owner())),
            (2, true),
            "nobody does"
        );
        let Event::Departed(it) = departed(1, 4) else { panic!() };
        last.events.push(Event::Departed(Departed { is_last: true, ..it }));
        assert_eq!(last.catalogue_owner(), 4);
        last.events.push(departed(4, 3));
        assert_eq!(last.catalogue_owner(), 3);
        last.lost.insert(3);
        assert!(last.is_gone(last.catalogue_owner()));
        assert_eq!(Membership::default().catalogue_owner(), 0, "nobody has said who there is");
    }

    #[test]
    fn a_chain_goes_on_to_the_next_processes_that_live() {
        assert_eq!(chain(&view(1, 4, &[]), 3, 2), [3, 0, 1]);
        assert_eq!(chain(&view(1, 4, &[3, 1]), 3, 2), [0, 2]);
        assert_eq!(chain(&view(2, 3, &[]), 1, 1), [1, 3]);
        assert_eq!(chain(&view(2, 3, &[3, 2]), 1, 1), [1, 5]);
        assert_eq!(chain(&view(2, 3, &[]), 0, 9), [0, 2, 4]);
        assert_eq!(chain(&view(1, 2, &[0, 1]), 0, 1), [] as [usize; 0]);
        assert_eq!(chain(&Membership::default(), 0, 1), [] as [usize; 0]);
    }

    #[test]
    fn servers_that_have_joined_follow_where_too_few_founders_are_left() {
        let events = || vec![joined(2), joined(1), joined(2)];
        let with = |lost: &[usize]| Membership { events: events(), ..view(2, 2, lost) };
        assert_eq!(chain(&with(&[]), 3, 1), [3, 1], "no chain is another one");
        assert_eq!(chain(&with(&[0, 1]), 1, 1), [3, 5]);
        assert_eq!(chain(&with(&[0, 1]), 2, 2), [2, 4, 7], "not on one with fewer threads");
        // Whoever follows a thread follows it in every chain.
        let none = with(&[0, 1, 2, 3, 5]);
        let first = |first| chain(&none, first, 0)[0];
        assert_eq!([0, 1, 2, 3, 5].map(first), [4, 8, 4, 8, 8]);
        assert_eq!((chain(&none, 1, 1), chain(&none, 6, 1)), (vec![8], vec![6]));
        assert!(!with(&[0, 1]).was_in_chain(of(1, 1), 5));
        let address = |thread| none.address(thread).map(str::to_owned);
        assert_eq!(address(3).as_deref(), Some("sim:3"));
        assert_eq!((address(5).as_deref(), address(9)), (Some("sim:b"), None));
    }

    #[test]
    fn losses_do_not_change_who_was_in_a_chain() {
        let view = view(2, 3, &[3, 2]);
        let was = [0, 1, 2, 3, 4, 5].map(|thread| view.was_in_chain(of(1, 1), thread));
        assert_eq!(was, [false, true, false, true, false, false]);
    }

    /// A view in which the chain of a shard has become others, one after the other.
    fn rechained(view: Membership, first: usize, replicas: u32, chains: &[&[usize]]) -> Membership {
        let mut view = view;
        for wanted in chains {
            let of = of(first, replicas);
            let number = view.events.len() as u64 + 1;
            let seen: Vec<usize> = view.chain(of).collect();
            let since = |thread: &usize| {
                if seen.contains(thread) { view.since(of, *thread) } else { number }
            };
            let member = |thread: &usize| ChainMember { thread: *thread, since: since(thread) };
            let members = wanted.iter().map(member).collect();
            view.enter(Event::Chains(vec![ChainEntry { table: 3, begin: 70, members }]));
        }
        view
    }

    #[test]
    fn a_moved_chain_is_that_of_its_entry() {
        let mut view = rechained(view(1, 5, &[]), 0, 1, &[&[0, 1, 3]]);
        assert_eq!(chain(&view, 0, 1), [0, 1, 3], "one more while it moves");
        let other = ChainOf { begin: 71, ..of(0, 1) };
        assert!(view.chain(other).eq([0, 1]) && !view.has_entry(other), "another shard");
        assert!(!view.was_in_chain(of(0, 1), 1) && view.was_in_chain(other, 1));
        view = rechained(view, 0, 1, &[&[1, 3]]);
        assert_eq!(chain(&view, 0, 1), [1, 3]);
        view.lost.insert(1);
        assert_eq!(chain(&view, 0, 1), [3, 2], "the ring of the thread that was first");
        assert_eq!([0, 1, 2, 3].map(|thread| view.since(of(0, 1), thread)), [2, 0, 2, 1]);
        view = rechained(view, 0, 1, &[&[3, 2, 0], &[2, 0]]);
        assert_eq!(view.events.iter().flat_map(Event::entries).count(), 1);
        assert_eq!([0, 2].map(|thread| view.since(of(0, 1), thread)), [3, 2], "it is back");
        let mut heard = Membership::default();
        assert!(heard.join(&view) && heard == view);
        assert_eq!((view.check(5), view.check(4).is_err()), (Ok(()), true));
        view.events.push(Event::Chains(vec![ChainEntry {
            table: 3,
            begin: 0,
            members: vec![ChainMember { thread: 5, since: 0 }],
        }]));
        assert!(view.check(5).unwrap_err().contains("is no chain of the shard from key 0"));
        for members in [Vec::new(), vec![ChainMember { thread: 1, since: 0 }; 2]] {
            view.events.pop();
            view.events.push(Event::Chains(vec![ChainEntry { table: 3, begin: 0, members }]));
            assert!(view.check(5).unwrap_err().contains("is no chain"));
        }
    }

    #[test]
    fn who_joins_changes_no_chain_that_begins_at_one_that_has_joined() {
        let joins = |events| Membership { events, ..view(1, 3, &[]) };
        let mut view = rechained(joins(vec![joined(1)]), 0, 1, &[&[0, 1, 3], &[3]]);
        assert_eq!(chain(&view, 0, 1), [3, 0]);
        view.enter(joined(1));
        assert_eq!(chain(&view, 0, 1), [3, 0]);
        view.lost.extend([0, 1]);
        assert_eq!(chain(&view, 0, 2), [3, 2, 4]);
    }

    #[test]
    fn replaced_entries_are_forgotten() {
        let of = |thread| vec![ChainMember { thread, since: 0 }];
        let entry = |begin, thread| ChainEntry { table: 7, begin, members: of(thread) };
        let mut events = vec![Event::Chains(vec![entry(0, 1), entry(5, 1)]), Event::Announced(2)];
        let new = Event::Chains(vec![entry(5, 3)]);
        forget_replaced(&mut events, &new);
        assert_eq!(events, [Event::Chains(vec![entry(0, 1)]), Event::Announced(2)]);
    }

    #[test]
    fn a_view_of_other_threads_is_refused() {
        assert_eq!(view(2, 3, &[0, 5]).check(6), Ok(()));
        assert!(view(1, 4, &[]).check(6).unwrap_err().contains("of 4 server threads, not of 6"));
        assert!(view(1, 6, &[6]).check(6).unwrap_err().contains("thread 6 cannot be lost"));
        assert_eq!(Membership { events: vec![joined(1)], ..view(1, 6, &[6]) }.check(6), Ok(()));
        let leave = |pairs: &[(usize, usize)]| {
            let departed = pairs.iter().map(|(thread, successor)| departed(*thread, *successor));
            let events = [joined(1)].into_iter().chain(departed).collect();
            Membership { events, ..view(1, 6, &[]) }.check(6)
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
            let view = Membership { threads, ..view(1, 6, &[]) };
            assert!(view.check(6).unwrap_err().contains(&format!("{threads} in each process")));
        }
    }

    #[test]
    fn views_join_in_any_order() {
        let views = [view(1, 4, &[2]), view(1, 4, &[0]), Membership::default()];
        let mut one = Membership::default();
        let mut other = Membership::default();
        assert!(views.iter().map(|it| one.join(it)).eq([true, true, false]));
        assert!(views.iter().rev().map(|it| other.join(it)).eq([false, true, true]));
        assert_eq!(one, other);
        assert!(one.join(&Membership { workers: BTreeSet::from([8]), ..Membership::default() }));
        assert!(one.workers.iter().eq(&[8, 9]));
        assert!(!one.join(&views[0]) && one.lost.len() == 2);
        let events = vec![joined(2), Event::Announced(5), departed(5, 4), departed(4, 3)];
        assert!(one.join(&Membership { events: events[..2].to_vec(), ..Membership::default() }));
        assert!(!one.join(&Membership { events: events[..1].to_vec(), ..Membership::default() }));
        assert_eq!(one.count(), 6);
        assert!(one.leaves(5) && !one.has_left(5));
        let left = Membership { events, ..Membership::default() };
        assert!(one.join(&left) && !one.join(&left) && one.departed().count() == 2);
        assert!(one.has_left(4) && one.has_left(5) && !one.has_left(3));
        assert_eq!(one.handed(4, 3, 70), Some(HANDED));
        let others = [(3, 3, 70), (4, 2, 70), (4, 3, 7)];
        assert!(others.iter().all(|it| one.handed(it.0, it.1, it.2).is_none()));
    }
}
