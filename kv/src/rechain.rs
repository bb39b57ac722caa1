//! How the chains of shards with copies become others, when a driver wants them to.
//!
//! Threads join a chain at its end, and leave it from wherever they are. So a shard moves in steps,
//! between which its copies become whole: from `0 1` to `2 0` by `0 1 2`, `1 2`, and `1 2 0`.

use std::fmt;

use serde::{Deserialize, Serialize};

use crate::membership::{ChainEntry, ChainMember, ChainOf, Event, Membership};

/// What a driver wants the chain of a shard to be.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Rechain {
    pub(crate) of: ChainOf,
    /// The chain that it has seen. Nothing changes if it is another one by now.
    pub(crate) seen: Vec<usize>,
    pub(crate) wanted: Vec<usize>,
}

/// Why a chain cannot become another one.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum RechainError {
    /// Those that stay would have another order, or none would.
    Order(Rechain),
    /// This thread is gone, or there are only so many.
    Gone(usize, usize),
    /// This thread would have to leave a chain for a while that has too few others.
    Few(usize, Vec<usize>),
}

impl fmt::Display for RechainError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            RechainError::Order(Rechain { of: ChainOf { table, begin, .. }, seen, wanted }) => {
                write!(
                    f,
                    "the chain {seen:?} of the shard from key {begin} of table number {table} \
                     cannot become {wanted:?}: threads join a chain at its end, and one has to stay"
                )
            }
            RechainError::Gone(thread, all) => write!(
                f,
                "server thread {thread} can have no shard: it is lost, leaves, or is none of {all}, \
                 counted from 0"
            ),
            RechainError::Few(thread, seen) => write!(
                f,
                "threads {seen:?} have its copies, and thread {thread} would have to leave them for \
                 a while: another server has to join before"
            ),
        }
    }
}

impl Rechain {
    /// The entry by which it comes about, as the change of this number.
    fn entry(&self, number: u64, view: &Membership) -> Result<ChainEntry, RechainError> {
        let Rechain { of, ref seen, ref wanted } = *self;
        let stays = |thread: &&usize| wanted.contains(thread);
        let staying = seen.iter().filter(stays).count();
        let is_ordered = staying > 0 && seen.iter().filter(stays).eq(&wanted[..staying]);
        let is_new = |at: usize| !wanted[..at].contains(&wanted[at]);
        if !is_ordered || !(staying..wanted.len()).all(is_new) {
            return Err(RechainError::Order(self.clone()));
        }
        let since = |at, thread| if at < staying { view.since(of, thread) } else { number };
        let member = |(at, thread): (usize, &usize)| ChainMember {
            thread: *thread,
            since: since(at, *thread),
        };
        let members = wanted.iter().enumerate().map(member).collect();
        Ok(ChainEntry { table: of.table, begin: of.begin, members })
    }
}

/// Checks that a thread can have a shard.
///
/// # Errors
/// If it is gone, leaves, or does not exist.
pub(crate) fn check_there(view: &Membership, thread: usize) -> Result<(), RechainError> {
    let all = view.count();
    match thread >= all || view.is_gone(thread) || view.leaves(thread) {
        true => Err(RechainError::Gone(thread, all)),
        false => Ok(()),
    }
}

/// The event by which chains become what a driver wants; `None` if one of them is not the one that
/// it has seen any more.
///
/// # Errors
/// Why one cannot be so.
pub(crate) fn event(view: &Membership, changes: &[Rechain]) -> Result<Option<Event>, RechainError> {
    let number = view.events.len() as u64 + 1;
    let mut entries = Vec::new();
    for change in changes {
        let Rechain { of, seen, wanted } = change;
        let new = wanted.iter().filter(|thread| !seen.contains(thread));
        new.copied().try_for_each(|thread| check_there(view, thread))?;
        if !view.chain(*of).eq(seen.iter().copied()) {
            return Ok(None);
        }
        entries.push(change.entry(number, view)?);
    }
    Ok(Some(Event::Chains(entries)))
}

/// The threads that are to have a shard whose first one is to be `head`: those of its chain that
/// follow that one, and then others, none of `without`. Those that are not in its chain come first.
pub(crate) fn target(view: &Membership, of: ChainOf, head: usize, without: &[usize]) -> Vec<usize> {
    let seen: Vec<usize> = view.chain(of).collect();
    let is_open = |thread: &usize| check_there(view, *thread).is_ok() && !without.contains(thread);
    let behind = seen.iter().skip_while(|thread| **thread != head).skip(1);
    let ring = || view.ring(head).chain(0..view.count());
    let new = ring().filter(|thread| !seen.contains(thread));
    let mut target = vec![head];
    for thread in behind.copied().chain(new).chain(ring()).filter(is_open) {
        if target.len() > of.replicas as usize {
            break;
        }
        if !target.iter().any(|it| view.process(*it) == view.process(thread)) {
            target.push(thread);
        }
    }
    target
}

/// The next chain on the way from one to another. A thread that has to change its place leaves, and
/// joins again; at least `least` threads stay meanwhile.
///
/// # Errors
/// If too few would stay.
pub(crate) fn next_chain(
    seen: &[usize],
    target: &[usize],
    least: usize,
) -> Result<Vec<usize>, RechainError> {
    // How much of the target is there in its order.
    let mut rest = seen.iter();
    let there = target.iter().take_while(|thread| rest.any(|it| it == *thread)).count();
    let Some(next) = target.get(there) else { return Ok(target.to_vec()) };
    if !seen.contains(next) {
        return Ok(seen.iter().chain([next]).copied().collect());
    }
    let without: Vec<usize> = seen.iter().copied().filter(|thread| thread != next).collect();
    match without.len() >= least {
        true => Ok(without),
        false => Err(RechainError::Few(*next, seen.to_vec())),
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, reason = "tests")]
    use std::collections::BTreeSet;

    use super::*;
    use crate::server_address::ServerAddress;

    fn view(threads: usize, processes: usize, lost: &[usize]) -> Membership {
        let addresses = vec![String::new(); threads * processes];
        let lost = lost.iter().copied().collect::<BTreeSet<_>>();
        Membership { addresses, threads, lost, ..Membership::default() }
    }

    fn of(first: usize, replicas: u32) -> ChainOf {
        ChainOf { table: 7, begin: 100, first, replicas }
    }

    /// All chains on the way from one to another.
    fn way(from: &[usize], to: &[usize], least: usize) -> Vec<Vec<usize>> {
        let mut way = vec![from.to_vec()];
        while way.last().unwrap() != to {
            way.push(next_chain(way.last().unwrap(), to, least).unwrap());
            assert!(way.len() < 20, "{way:?}");
        }
        way.split_off(1)
    }

    #[test]
    fn chains_become_others_step_by_step() {
        assert_eq!(way(&[0], &[1], 1), [vec![0, 1], vec![1]]);
        assert_eq!(way(&[0, 1], &[1, 2], 2), [vec![0, 1, 2], vec![1, 2]]);
        assert_eq!(way(&[0, 1], &[0, 2], 2), [vec![0, 1, 2], vec![0, 2]]);
        let round = [vec![0, 1, 2], vec![1, 2], vec![1, 2, 0], vec![2, 0]];
        assert_eq!(way(&[0, 1], &[2, 0], 2), round);
        let two = [vec![0, 1, 2], vec![0, 1, 2, 3], vec![2, 3]];
        assert_eq!(way(&[0, 1], &[2, 3], 2), two);
        assert_eq!(way(&[0, 1], &[0, 1], 2), [] as [Vec<usize>; 0]);
        assert_eq!(way(&[0, 1, 2], &[0, 1], 2), [vec![0, 1]]);
    }

    #[test]
    fn copies_never_become_fewer() {
        let why = next_chain(&[0, 1], &[1, 0], 2).unwrap_err().to_string();
        assert!(why.contains("thread 0 would have to leave them for a while"), "{why}");
        assert_eq!(next_chain(&[0, 1], &[1, 0], 1), Ok(vec![1]));
    }

    #[test]
    fn those_that_stay_keep_their_order() {
        let view = view(1, 4, &[]);
        let entry = |seen: &[usize], wanted: &[usize]| {
            let change = Rechain { of: of(3, 1), seen: seen.to_vec(), wanted: wanted.to_vec() };
            let entry = change.entry(9, &view)?;
            Ok::<_, RechainError>(entry.members.iter().map(|it| (it.thread, it.since)).collect())
        };
        assert_eq!(entry(&[3, 1], &[3, 1, 2]), Ok(vec![(3, 0), (1, 0), (2, 9)]));
        assert_eq!(entry(&[3, 1, 2], &[3, 2]), Ok(vec![(3, 0), (2, 0)]));
        for wrong in [&[1, 3][..], &[2, 3], &[3, 2, 1], &[2], &[], &[3, 3], &[3, 1, 2, 2]] {
            let why = entry(&[3, 1], wrong).unwrap_err().to_string();
            assert!(why.contains("at its end"), "{wrong:?}: {why}");
        }
    }

    #[test]
    fn changes_of_chains_that_are_others_by_now_do_nothing() {
        let view = view(1, 4, &[2]);
        let ask = |seen: &[usize], wanted: &[usize]| {
            let (seen, wanted) = (seen.to_vec(), wanted.to_vec());
            event(&view, &[Rechain { of: of(1, 1), seen, wanted }])
        };
        assert_eq!(ask(&[1, 2], &[1, 2, 3]), Ok(None));
        assert!(matches!(ask(&[1, 3], &[1, 3, 0]), Ok(Some(_))));
        for (thread, wanted) in [(2, [1, 3, 2]), (4, [1, 3, 4])] {
            assert_eq!(ask(&[1, 3], &wanted), Err(RechainError::Gone(thread, 4)));
        }
        assert!(matches!(ask(&[1, 3], &[3, 1]), Err(RechainError::Order(_))));
    }

    #[test]
    fn a_target_has_those_behind_its_head_and_new_ones() {
        let joined = ServerAddress { name: "a".into(), address: "b".into() };
        let mut five = view(1, 4, &[]);
        five.enter(Event::Joined(vec![joined]));
        assert_eq!(target(&five, of(0, 1), 0, &[]), [0, 1]);
        assert_eq!(target(&five, of(0, 2), 1, &[]), [1, 2, 3]);
        assert_eq!(target(&five, of(0, 1), 3, &[]), [3, 2], "not one that has it already");
        assert_eq!(target(&five, of(0, 1), 0, &[1]), [0, 2]);
        assert_eq!(target(&five, of(0, 2), 4, &[2]), [4, 3, 0]);
        assert_eq!(target(&view(1, 2, &[]), of(0, 1), 1, &[]), [1, 0]);
        assert_eq!(target(&view(2, 2, &[]), of(0, 1), 3, &[]), [3, 1]);
        let near = target(&view(2, 1, &[]), of(0, 1), 1, &[]);
        assert_eq!(near, [1], "a copy on the same server is none");
    }
}
