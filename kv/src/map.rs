//! Placement: which server thread owns which keys of a table.
//!
//! A table's keys are cut once, at its creation, into shards. All nodes make the same first map
//! from the table's [`Placement`]. A shard never changes its keys; it moves whole from owner to
//! owner, and each move gives it a higher epoch. Of two claims to a shard the one of the higher
//! epoch holds.
//!
//! Path: worker > slicer (**map**) > filter > message > codec > endpoint > transport.

use std::collections::BTreeSet;

use caravan_van::KeyRange;
use caravan_van::draws::nth;
use serde::{Deserialize, Serialize};

use crate::error::{Error, Result};
use crate::membership::{ChainOf, Departed};

/// Most shards of a table.
pub const SHARDS_MAX: usize = 1 << 16;

/// How the keys of a table are cut into shards, and which server threads own them at first.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase", deny_unknown_fields)]
pub enum Placement {
    /// This many shards for each server thread, all of even size and in the order of the threads;
    /// fewer if there are fewer keys.
    Even(u32),
    /// Each server thread has this many points on a ring of the table's keys, and owns the keys
    /// from each of its points up to the next one of anybody: virtual servers, as in Li et al.,
    /// "Scaling Distributed Machine Learning with the Parameter Server", OSDI 2014, section 4.3.
    Ring(u32),
    /// The first key of each shard, ascending from the table's first key, and the server thread
    /// that owns it.
    Cut(Vec<(u64, u32)>),
}

impl Default for Placement {
    fn default() -> Self {
        Placement::Even(1)
    }
}

impl Placement {
    pub(crate) fn is_default(&self) -> bool {
        *self == Placement::default()
    }

    /// The shards of a table with keys `range`, in order, among `servers` server threads.
    ///
    /// # Errors
    /// [`Error::Config`] names what is wrong with the placement.
    pub fn map(&self, range: KeyRange, servers: usize) -> Result<Map> {
        let firsts = match self {
            Placement::Even(each) => {
                let count = servers.saturating_mul(*each as usize);
                check_count(count)?;
                let parts: Vec<_> = range.cut(count).collect();
                let owner = |at: usize| at * servers / count;
                parts.iter().enumerate().map(|(at, part)| (part.begin(), owner(at))).collect()
            }
            Placement::Ring(points) => {
                check_count(servers.saturating_mul(*points as usize))?;
                ring(range, servers, *points)
            }
            Placement::Cut(firsts) => {
                check_count(firsts.len())?;
                check_cut(firsts, range, servers)?;
                firsts.iter().map(|&(first, server)| (first, server as usize)).collect()
            }
        };
        Ok(Map::of(&firsts, range))
    }
}

fn check_count(count: usize) -> Result<()> {
    if (1..=SHARDS_MAX).contains(&count) {
        return Ok(());
    }
    Err(Error::Config(format!(
        "a table has 1 to {SHARDS_MAX} shards, not {count}: place it otherwise"
    )))
}

fn check_cut(firsts: &[(u64, u32)], range: KeyRange, servers: usize) -> Result<()> {
    let wrong = |what: String| Err(Error::Config(format!("the placement of a table {what}")));
    let (begin, last) = (range.begin(), range.last());
    if firsts[0].0 != begin {
        return wrong(format!("begins at key {}, not at its first key {begin}", firsts[0].0));
    }
    if let Some(pair) = firsts.windows(2).find(|pair| pair[0].0 >= pair[1].0) {
        return wrong(format!("has key {} behind key {}", pair[1].0, pair[0].0));
    }
    if let Some((first, _)) = firsts.last().filter(|(first, _)| *first > last) {
        return wrong(format!("has a shard from key {first} on; its last key is {last}"));
    }
    match firsts.iter().find(|(_, server)| *server as usize >= servers) {
        Some((_, server)) => {
            wrong(format!("names server thread {server} of {servers}, counted from 0"))
        }
        None => Ok(()),
    }
}

/// The first keys of the shards on a ring with `points` points for each server, and their owners.
fn ring(range: KeyRange, servers: usize, points: u32) -> Vec<(u64, usize)> {
    let place = |server: usize, point: u32| {
        let drawn = nth(0, (server as u64) << 32 | u64::from(point));
        range.begin().wrapping_add(((u128::from(drawn) * range.count()) >> 64) as u64)
    };
    let on_ring = (0..servers).flat_map(|server| (0..points).map(move |point| (server, point)));
    let mut firsts: Vec<_> =
        on_ring.map(|(server, point)| (place(server, point), server)).collect();
    firsts.sort_unstable();
    firsts.dedup_by_key(|(first, _)| *first);
    // The keys before the first point are those behind the last one on the ring.
    let (first, _) = firsts[0];
    let (_, last_owner) = firsts[firsts.len() - 1];
    if first != range.begin() {
        firsts.insert(0, (range.begin(), last_owner));
    }
    firsts
}

/// A shard of a table: its keys and its owner.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Placed {
    /// Its keys, which never change.
    pub range: KeyRange,
    /// The server thread that owns it, in the order of the servers.
    pub server: usize,
    /// Rises by 1 with each move, from 0.
    pub epoch: u64,
}

impl Placed {
    /// The shard as others know it, of the table of this number, as that is placed.
    pub(crate) fn chain(&self, table: u32, replicas: u32) -> ChainOf {
        ChainOf { table, begin: self.range.begin(), first: self.server, replicas }
    }
}

/// A server thread's answer to the creation of a table.
#[derive(Debug, Serialize, Deserialize)]
pub(crate) struct Created {
    /// The table's number in messages.
    pub(crate) number: u32,
    /// The shards that have moved there: first key and epoch of each.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub(crate) shards: Vec<(u64, u64)>,
    /// The threads to which shards have moved from there.
    #[serde(default, skip_serializing_if = "BTreeSet::is_empty")]
    pub(crate) elsewhere: BTreeSet<usize>,
    /// From the thread that numbers tables: the first and the last number of dropped ones.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub(crate) dropped: Vec<(u32, u32)>,
    /// From that thread: whether all owners know the table.
    #[serde(default)]
    pub(crate) is_complete: bool,
    /// Of how many servers that have joined, leave or have left the thread has heard: where the
    /// shards are follows from them.
    #[serde(default)]
    pub(crate) heard: usize,
}

/// A server thread's answer to [`Op::Retire`](crate::op::Op::Retire).
#[derive(Debug, Serialize, Deserialize)]
pub(crate) struct Retired {
    /// Shards that are there, or come, and have to go.
    pub(crate) shards: usize,
    /// Shards with copies that nobody else has whole.
    pub(crate) alone: usize,
    /// What all have to know when it has left. With none of those shards the thread has agreed.
    pub(crate) departed: Departed,
}

/// The body of [`Op::Create`](crate::op::Op::Create) for a table that has its number.
#[derive(Debug, Serialize, Deserialize)]
pub(crate) struct Numbered {
    /// The table's specification as JSON.
    pub(crate) table: String,
    /// As [`Created::dropped`]: whoever hears only of some tables need not remember gaps.
    pub(crate) dropped: Vec<(u32, u32)>,
    /// Whether all owners know the table, which is for the thread that has numbered it.
    #[serde(default)]
    pub(crate) is_complete: bool,
}

/// The shards of a table, in the order of their keys.
#[derive(Debug, Default)]
pub struct Map {
    shards: Vec<Placed>,
}

impl Map {
    /// A map of shards with these first keys and owners, up to the end of `range`.
    fn of(firsts: &[(u64, usize)], range: KeyRange) -> Map {
        let ends = firsts.iter().skip(1).map(|(first, _)| *first).chain([range.end()]);
        let shards = firsts.iter().zip(ends).map(|(&(begin, server), end)| Placed {
            range: KeyRange::new(begin, end).expect("first keys ascend"),
            server,
            epoch: 0,
        });
        Map { shards: shards.collect() }
    }

    pub(crate) fn shards(&self) -> &[Placed] {
        &self.shards
    }

    /// Index of the shard that has `key`, if the table has it.
    pub(crate) fn find(&self, key: u64) -> Option<usize> {
        let at = self.shards.partition_point(|shard| shard.range.last() < key);
        self.shards.get(at).filter(|shard| shard.range.contains(key)).map(|_| at)
    }

    /// The server threads that own shards.
    pub(crate) fn owners(&self) -> BTreeSet<usize> {
        self.shards.iter().map(|shard| shard.server).collect()
    }

    /// Records whose the shards of a server thread are that is gone.
    pub(crate) fn succeed(&mut self, gone: usize, successor: impl Fn(&Placed) -> usize) {
        self.give(|shard| if shard.server == gone { successor(shard) } else { shard.server });
    }

    /// Records which server thread serves each shard.
    pub(crate) fn give(&mut self, server: impl Fn(&Placed) -> usize) {
        self.shards.iter_mut().for_each(|shard| shard.server = server(shard));
    }

    /// Records a claim to the shard that begins at `begin`; returns whether it is a new one.
    pub(crate) fn enter(&mut self, begin: u64, server: usize, epoch: u64) -> bool {
        let Some(at) = self.find(begin) else { return false };
        let shard = &mut self.shards[at];
        let is_new = epoch > shard.epoch && shard.range.begin() == begin;
        if is_new {
            shard.server = server;
            shard.epoch = epoch;
        }
        is_new
    }
}

/// The moves that spread the keys of shards evenly over `servers` server threads, as far as whole
/// shards allow, and leave none to those of `drained`: index of a shard and its new owner. Threads
/// of `lost` give and get none.
///
/// # Errors
/// [`Error::Config`] if no server thread is left, or one to drain does not exist.
pub(crate) fn balance(
    shards: &[Placed],
    servers: usize,
    drained: &[usize],
    lost: &BTreeSet<usize>,
) -> Result<Vec<(usize, usize)>> {
    if let Some(server) = drained.iter().find(|server| **server >= servers) {
        return Err(Error::Config(format!(
            "there is no server thread {server} to drain, only {servers} from 0 on"
        )));
    }
    let lives = |server: &usize| !lost.contains(server);
    let is_open = |server: &usize| lives(server) && !drained.contains(server);
    let open: Vec<usize> = (0..servers).filter(is_open).collect();
    if open.is_empty() {
        let reason = "every server thread that is not lost is to be drained; leave one";
        return Err(Error::Config(reason.to_owned()));
    }
    let mut owners: Vec<usize> = shards.iter().map(|shard| shard.server).collect();
    let mut keys = vec![0u128; servers];
    shards.iter().for_each(|shard| keys[shard.server] += shard.range.count());
    let lightest = |keys: &[u128]| open.iter().copied().min_by_key(|server| keys[*server]);
    let mut by_keys: Vec<usize> = (0..shards.len()).collect();
    by_keys.sort_by_key(|shard| std::cmp::Reverse(shards[*shard].range.count()));
    let give = |shard: usize, to: usize, keys: &mut [u128], owners: &mut [usize]| {
        keys[owners[shard]] -= shards[shard].range.count();
        keys[to] += shards[shard].range.count();
        owners[shard] = to;
    };
    let goes = |shard: &Placed| lives(&shard.server) && drained.contains(&shard.server);
    for &shard in by_keys.iter().filter(|shard| goes(&shards[**shard])) {
        if let Some(to) = lightest(&keys) {
            give(shard, to, &mut keys, &mut owners);
        }
    }
    // The largest shard goes that leaves the other thread less full than this one was.
    while let (Some(from), Some(to)) =
        (open.iter().copied().max_by_key(|server| keys[*server]), lightest(&keys))
    {
        let helps = |shard: &&usize| {
            owners[**shard] == from && keys[to] + shards[**shard].range.count() < keys[from]
        };
        let Some(&shard) = by_keys.iter().find(helps) else { break };
        give(shard, to, &mut keys, &mut owners);
    }
    let moved = owners.into_iter().enumerate().filter(|(at, owner)| shards[*at].server != *owner);
    Ok(moved.collect())
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, reason = "tests")]
    use super::*;
    use proptest::prelude::*;

    /// All keys that are in exactly one shard, by owner.
    fn keys_of(map: &Map, range: KeyRange, servers: usize) -> Vec<u128> {
        let mut next = range.begin();
        let mut of = vec![0; servers];
        for shard in map.shards() {
            assert_eq!((shard.range.begin(), shard.epoch), (next, 0));
            next = shard.range.end();
            of[shard.server] += shard.range.count();
        }
        assert_eq!(next, range.end());
        of
    }

    #[test]
    fn shards_are_balanced_and_threads_drained() {
        let range = KeyRange::new(0, 1200).unwrap();
        let firsts = (0..12).map(|at| (at * 100, 0)).collect();
        let map = Placement::Cut(firsts).map(range, 4).unwrap();
        let keys_behind = |moves: &[(usize, usize)]| {
            let mut keys = [1200, 0, 0, 0];
            for (_, server) in moves {
                keys[0] -= 100;
                keys[*server] += 100;
            }
            keys
        };
        let without = |lost: &[usize], drained: &[usize]| {
            balance(map.shards(), 4, drained, &lost.iter().copied().collect())
        };
        let all = |drained: &[usize]| without(&[], drained).unwrap();
        assert_eq!(keys_behind(&all(&[])), [300, 300, 300, 300]);
        assert_eq!(keys_behind(&all(&[2])), [400, 400, 0, 400]);
        assert_eq!(keys_behind(&all(&[0, 1, 3])), [0, 0, 1200, 0]);
        assert_eq!(keys_behind(&without(&[2], &[]).unwrap()), [400, 400, 0, 400]);
        assert_eq!(keys_behind(&without(&[1, 2], &[0]).unwrap()), [0, 0, 0, 1200]);
        assert_eq!(without(&[0], &[0]).unwrap(), [], "a lost thread gives no shards");
        let even = Placement::Even(3).map(range, 4).unwrap();
        assert_eq!(balance(even.shards(), 4, &[], &BTreeSet::new()).unwrap(), []);
        let error = |lost, drained| without(lost, drained).unwrap_err().to_string();
        let unknown = error(&[], &[4]);
        assert!(unknown.contains("no server thread 4 to drain, only 4"), "{unknown}");
        for (lost, drained) in [(&[][..], &[0, 1, 2, 3][..]), (&[1, 2], &[0, 3])] {
            assert!(error(lost, drained).contains("leave one"));
        }
    }

    proptest! {
        #[test]
        fn balancing_brings_threads_closer(
            owners in proptest::collection::vec((1..1000u64, 0..5u32), 1..60),
        ) {
            let mut next = 0;
            let firsts = owners.iter().map(|(len, owner)| {
                next += len;
                (next - len, *owner)
            });
            let firsts = firsts.collect();
            let range = KeyRange::new(0, next).unwrap();
            let map = Placement::Cut(firsts).map(range, 5).unwrap();
            let mut owner: Vec<usize> = map.shards().iter().map(|shard| shard.server).collect();
            for (shard, to) in balance(map.shards(), 5, &[], &BTreeSet::new()).unwrap() {
                owner[shard] = to;
            }
            let mut keys = [0; 5];
            let counts: Vec<u128> = map.shards().iter().map(|shard| shard.range.count()).collect();
            owner.iter().zip(&counts).for_each(|(owner, count)| keys[*owner] += count);
            let (most, least) = (keys.iter().max().unwrap(), keys.iter().min().unwrap());
            let fullest = (0..5).rfind(|at| keys[*at] == *most).unwrap();
            // No shard of the fullest thread makes it emptier without filling the emptiest as much.
            for (owner, count) in owner.iter().zip(&counts) {
                prop_assert!(*owner != fullest || least + count >= *most);
            }
        }

        #[test]
        fn shards_tile_the_table(
            begin in any::<u64>(), len in 1..1_000_000_000u64, servers in 1..9usize, each in 1..40u32,
        ) {
            let range = KeyRange::new(begin, begin.checked_add(len).unwrap_or(0)).unwrap();
            let even = Placement::Even(each).map(range, servers).unwrap();
            let of = keys_of(&even, range, servers);
            if range.count() >= 1_000_000 {
                prop_assert!(of.iter().all(|keys| keys.abs_diff(range.count() / servers as u128) < 50));
            }
            keys_of(&Placement::Ring(each).map(range, servers).unwrap(), range, servers);
        }
    }

    #[test]
    fn a_ring_of_many_points_is_nearly_even() {
        let of = keys_of(&Placement::Ring(500).map(KeyRange::ALL, 5).unwrap(), KeyRange::ALL, 5);
        let mean = (1u128 << 64) / 5;
        assert!(of.iter().all(|keys| keys.abs_diff(mean) < mean / 8), "{of:?}");
    }

    #[test]
    fn one_more_server_on_a_ring_takes_keys_and_moves_no_others() {
        let before = Placement::Ring(50).map(KeyRange::ALL, 4).unwrap();
        let after = Placement::Ring(50).map(KeyRange::ALL, 5).unwrap();
        let mut moved = 0;
        for key in (0..10_000).map(|number| nth(0, number)) {
            let owner = |map: &Map| map.shards()[map.find(key).unwrap()].server;
            if owner(&before) != owner(&after) {
                assert_eq!(owner(&after), 4);
                moved += 1;
            }
        }
        assert!((1200..2800).contains(&moved), "{moved} of 10000, about a fifth expected");
    }

    #[test]
    fn a_cut_of_ones_own_is_checked() {
        let range = KeyRange::new(10, 100).unwrap();
        let map = Placement::Cut(vec![(10, 1), (20, 0), (90, 1)]).map(range, 2).unwrap();
        assert_eq!(keys_of(&map, range, 2), [70, 20]);
        for (cut, says) in [
            (vec![], "1 to 65536 shards, not 0"),
            (vec![(11, 0)], "begins at key 11, not at its first key 10"),
            (vec![(10, 0), (30, 1), (30, 0)], "has key 30 behind key 30"),
            (vec![(10, 0), (100, 1)], "from key 100 on; its last key is 99"),
            (vec![(10, 2)], "names server thread 2 of 2"),
        ] {
            let error = Placement::Cut(cut).map(range, 2).unwrap_err().to_string();
            assert!(error.contains(says), "{error}");
        }
        assert!(Placement::Even(0).map(range, 2).is_err());
        assert!(Placement::Ring(1 << 30).map(range, 5).is_err());
    }

    #[test]
    fn the_higher_epoch_holds() {
        let mut map = Placement::Even(2).map(KeyRange::new(0, 40).unwrap(), 2).unwrap();
        assert!(map.enter(10, 1, 2) && !map.enter(10, 0, 1) && !map.enter(10, 0, 2));
        assert!(!map.enter(11, 0, 5), "no shard begins there");
        assert_eq!(map.shards()[1].server, 1);
    }
}
