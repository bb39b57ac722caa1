//! Feature blocks: the cut of the key space, and the order in which a pass visits the blocks.
//!
//! A block is an even slice of the *key space*, not of the list of columns, so that two numbers
//! name it on every node, whatever keys exist. Each node finds its columns of a block by binary
//! search ([`KeyBlock::locate`]).

use std::ops::Range;

use crate::data::Ascending;
use crate::data::groups::Group;
use caravan_van::draws::{Random, mix};

/// Default number of blocks for each non-zero of an average row.
pub const BLOCK_RATIO: f64 = 4.0;

/// One slice of the key space, both ends included, so that `u64::MAX` is a key like any other.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct KeyBlock {
    /// Smallest key of the block.
    pub first: u64,
    /// Largest key of the block; never below `first`.
    pub last: u64,
}

impl KeyBlock {
    /// Positions of this block in `keys` (sorted, unique): half-open, possibly empty.
    pub fn locate(&self, keys: &[u64]) -> Range<usize> {
        let begin = keys.partition_point(|&key| key < self.first);
        let len = keys[begin..].partition_point(|&key| key <= self.last);
        begin..begin + len
    }

    /// [`KeyBlock::locate`] in packed keys.
    pub fn locate_in(&self, keys: &Ascending) -> Range<usize> {
        let end = self.last.checked_add(1).map_or(keys.len(), |end| keys.below(end));
        keys.below(self.first)..end
    }
}

/// Cuts `min_key..=max_key` into `count` even slices, in key order.
///
/// Slice lengths differ by at most one key. If there are fewer keys than slices, empty ones are
/// dropped, so fewer than `count` are returned; none if `min_key > max_key` (no data) or `count` is
/// 0. Never makes more than `count` blocks, so bound a `count` from outside first.
pub fn even_blocks(min_key: u64, max_key: u64, count: usize) -> Vec<KeyBlock> {
    if min_key > max_key {
        return Vec::new();
    }
    let span = u128::from(max_key - min_key) + 1;
    let count = (count as u128).min(span);
    // Slice i begins at floor(i * span / count). With count <= span none is empty, and with
    // i <= count < 2^64 and span <= 2^64 the product fits 128 bits.
    let begin = |i: u128| u128::from(min_key) + i * span / count;
    (0..count)
        .map(|i| KeyBlock { first: begin(i) as u64, last: (begin(i + 1) - 1) as u64 })
        .collect()
}

/// Number of blocks for rows of `nonzeros / rows` features: that average times `ratio`, rounded up,
/// at least 1.
///
/// It is 1 if no row has more than one feature on average: columns that share no row do not
/// interact, so they can all step at once.
pub fn default_block_count(nonzeros: u64, rows: u64, ratio: f64) -> usize {
    let per_row = nonzeros as f64 / rows.max(1) as f64;
    if per_row <= 1.0 + 1e-6 {
        return 1;
    }
    ((per_row * ratio).ceil() as usize).max(1)
}

/// The order in which a pass visits its blocks.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Order {
    /// By key, the same in every pass.
    Key,
    /// Reshuffled for every pass; the same seed and pass give the same order on every node.
    Shuffled {
        /// Any number.
        seed: u64,
    },
    /// Blocks with the largest gain in the previous pass first, by
    /// [`Coordinates::update`](super::coordinates::Coordinates::update); the first pass by key.
    Importance,
}

impl Order {
    /// The order of pass number `pass` over as many blocks as there are `gains`, each exactly once:
    /// `[blocks]`. The gains are those of the previous pass, 0 before the first.
    pub fn of_pass(self, pass: u64, gains: &[f64]) -> Vec<usize> {
        let mut order: Vec<usize> = (0..gains.len()).collect();
        match self {
            Order::Key => {}
            Order::Shuffled { seed } => {
                // Each pass has its own stream, so a node may start at any pass.
                Random::new(seed ^ mix(pass)).shuffle(&mut order);
            }
            Order::Importance => order.sort_by(|&a, &b| gains[b].total_cmp(&gains[a])),
        }
        order
    }
}

/// Cuts each group separately, into `ratio` blocks for each of its features in an average row that
/// has any. Columns of a group with one feature a row share no row, so the whole group steps at
/// once, in one block. (The authors' code does the same, with a key space per group.)
pub(super) fn blocks_of(groups: impl Iterator<Item = Group>, ratio: f64) -> Vec<KeyBlock> {
    let cut = |group: Group| {
        let count = default_block_count(group.nonzeros, group.rows, ratio);
        even_blocks(group.keys.0, group.keys.1, count)
    };
    groups.flat_map(cut).collect()
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, reason = "tests")]

    use super::*;

    #[test]
    fn six_blocks_of_sixty_keys() {
        let blocks = even_blocks(0, 59, 6);
        let firsts: Vec<u64> = blocks.iter().map(|b| b.first).collect();
        assert_eq!(firsts, [0, 10, 20, 30, 40, 50]);
        assert_eq!(blocks.last().unwrap().last, 59);
    }

    #[test]
    fn the_whole_key_space_can_be_cut() {
        let blocks = even_blocks(0, u64::MAX, 3);
        assert_eq!(blocks.len(), 3);
        assert_eq!(blocks[0].first, 0);
        assert_eq!(blocks[2].last, u64::MAX);
        assert_eq!(
            even_blocks(u64::MAX, u64::MAX, 5),
            [KeyBlock { first: u64::MAX, last: u64::MAX }]
        );
    }

    #[test]
    fn no_keys_or_no_blocks_give_nothing() {
        assert!(even_blocks(5, 4, 3).is_empty());
        assert!(even_blocks(0, 9, 0).is_empty());
    }

    #[test]
    fn block_count_follows_the_row_length() {
        assert_eq!(default_block_count(2_000, 2_000, BLOCK_RATIO), 1);
        assert_eq!(default_block_count(2_001, 2_000, BLOCK_RATIO), 5);
        assert_eq!(default_block_count(26_000, 2_000, BLOCK_RATIO), 52);
        assert_eq!(default_block_count(300, 200, 0.0), 1);
        assert_eq!(default_block_count(0, 0, BLOCK_RATIO), 1);
    }

    #[test]
    fn shuffles_repeat_with_their_seed_and_differ_by_pass() {
        let order = Order::Shuffled { seed: 7 };
        let gains = [0.0; 50];
        assert_eq!(order.of_pass(3, &gains), order.of_pass(3, &gains));
        assert_ne!(order.of_pass(3, &gains), order.of_pass(4, &gains));
        assert_ne!(order.of_pass(3, &gains), Order::Shuffled { seed: 8 }.of_pass(3, &gains));
        assert_eq!(Order::Key.of_pass(3, &gains[..4]), [0, 1, 2, 3]);
        assert!(order.of_pass(0, &[]).is_empty());
    }

    #[test]
    fn what_gained_most_comes_first_and_else_the_smaller_key() {
        assert_eq!(Order::Importance.of_pass(2, &[0.5, 3.0, 0.0, 3.0, 0.0]), [1, 3, 0, 2, 4]);
        assert_eq!(Order::Importance.of_pass(0, &[0.0; 3]), [0, 1, 2]);
    }

    /// Random numbers of random size: as many small ones as large ones.
    fn any_key(random: &mut Random) -> u64 {
        let shift = random.below(64);
        random.next() >> shift
    }

    #[test]
    fn blocks_tile_the_key_space() {
        let mut random = Random::new(1);
        for _ in 0..2_000 {
            let (a, b) = (any_key(&mut random), any_key(&mut random));
            let (min, max, count) = (a.min(b), a.max(b), 1 + random.index(300));
            let blocks = even_blocks(min, max, count);
            assert!(blocks.len() <= count, "{min} {max} {count}");
            assert_eq!(blocks[0].first, min);
            assert_eq!(blocks[blocks.len() - 1].last, max);
            let lens = || blocks.iter().map(|b| b.last - b.first);
            assert!(lens().max().unwrap() - lens().min().unwrap() <= 1, "{min} {max} {count}");
            for pair in blocks.windows(2) {
                assert_eq!(pair[0].last + 1, pair[1].first, "{min} {max} {count}");
            }
        }
    }

    #[test]
    fn every_key_is_located_in_one_block() {
        let mut random = Random::new(2);
        for _ in 0..500 {
            let mut keys: Vec<u64> = (0..60).map(|_| any_key(&mut random)).collect();
            keys.sort_unstable();
            keys.dedup();
            let mut end = 0;
            for block in even_blocks(keys[0], keys[keys.len() - 1], 1 + random.index(40)) {
                let range = block.locate(&keys);
                assert_eq!(block.locate_in(&keys.iter().copied().collect()), range);
                assert_eq!(range.start, end);
                end = range.end;
                assert!(keys[range].iter().all(|key| (block.first..=block.last).contains(key)));
            }
            assert_eq!(end, keys.len());
        }
    }

    #[test]
    fn shuffles_are_permutations() {
        for seed in 0..300 {
            let count = seed as usize % 80;
            let mut order = Order::Shuffled { seed }.of_pass(seed / 7, &vec![0.0; count]);
            order.sort_unstable();
            assert_eq!(order, (0..count).collect::<Vec<_>>());
        }
    }

    #[test]
    fn a_group_of_which_rows_have_one_feature_is_one_block() {
        let single = Group::new(1, 80, 80, (7, 13));
        let bag = Group::new(3, 75, 150, (100, 219));
        let cut = blocks_of([single, bag].into_iter(), 4.0);
        assert_eq!(cut[0], KeyBlock { first: 7, last: 13 });
        assert_eq!(cut.len(), 1 + 8, "two a row, times four");
        assert_eq!((cut[1].first, cut[8].last), (100, 219));
        assert_eq!(blocks_of(std::iter::empty(), 4.0), []);
    }
}
