//! The index of a table: sorted arrays that map keys to rows.
//!
//! The keys of a request are sorted, so each look-up starts from the previous one. The last keys of
//! blocks stand in an array of their own, which is short enough for the cache: there a look-up
//! first tries where the key would be if keys lay evenly, and gallops from there. So the memory of
//! the block that has the key is known before it is needed, and that of several keys is loaded at
//! once. Where a request and the index hold the same keys in a row, blocks of keys are compared and
//! their rows are copied.
//!
//! There are a few such lists, each much shorter than the one before. New keys go to the shortest,
//! which is merged into the one before it once it has grown to a fraction of that. So the keys that
//! are moved to make room for a new one are some of a short list, not of all (O'Neil et al., "The
//! log-structured merge-tree", 1996).

use std::ops::Range;

use caravan_van::{Account, prefetch};

/// Lists of an index.
const LISTS: usize = 4;

/// A list may always hold this many keys.
const LIST_MIN: usize = 1024;

/// Beyond that, it may hold one key per this many keys of the list before it.
const LIST_SHARE: usize = 16;

/// The row of a key that has no row.
pub(crate) const NO_ROW: u32 = u32::MAX;

/// Keys of a block whose last one is kept apart.
const SPAN: usize = 16;

/// Look-ups whose blocks are loaded at once.
const GROUP: usize = 16;

/// Keys compared at a time where a request and the index hold the same keys.
const BLOCK: usize = 8;

/// Bytes of a key and its row.
const ENTRY_BYTES: usize = size_of::<u64>() + size_of::<u32>();

/// Sorted keys and their rows.
#[derive(Debug)]
pub(crate) struct Index {
    /// Disjoint, the longest first.
    lists: [Sorted; LISTS],
    /// Rows of keys that were removed, for the next ones.
    free: Vec<u32>,
    memory: Account,
}

#[derive(Debug, Default)]
struct Sorted {
    keys: Vec<u64>,
    rows: Vec<u32>,
    /// The last key of each block.
    ends: Vec<u64>,
}

impl Sorted {
    fn of(keys: Vec<u64>, rows: Vec<u32>) -> Sorted {
        let ends = Vec::with_capacity(keys.len().div_ceil(SPAN));
        let mut list = Sorted { keys, rows, ends };
        list.enter_ends(0);
        list
    }

    /// Records the ends of the block of position `at`, and of those behind it.
    fn enter_ends(&mut self, at: usize) {
        self.ends.truncate(at / SPAN);
        let blocks = self.keys[self.ends.len() * SPAN..].chunks(SPAN);
        self.ends.extend(blocks.filter_map(|block| block.last()));
    }

    /// Makes the processor load a block.
    #[inline]
    fn load(&self, block: usize) {
        let at = block * SPAN;
        prefetch(self.keys.as_ptr().wrapping_add(at));
        prefetch(self.keys.as_ptr().wrapping_add(at + SPAN / 2));
        prefetch(self.rows.as_ptr().wrapping_add(at + SPAN / 2));
    }

    /// Position of the first key of a block that is not below `key`.
    #[inline]
    fn position(&self, block: usize, key: u64) -> usize {
        let begin = (block * SPAN).min(self.keys.len());
        let keys = &self.keys[begin..];
        begin
            + match keys.first_chunk::<SPAN>() {
                Some(keys) => keys.iter().map(|&k| usize::from(k < key)).sum::<usize>(),
                None => keys.partition_point(|&k| k < key),
            }
    }

    fn row_at(&self, position: usize, key: u64) -> Option<u32> {
        (self.keys.get(position) == Some(&key)).then(|| self.rows[position])
    }

    fn from(&self, from: u64) -> impl Iterator<Item = (u64, u32)> {
        let at = self.keys.partition_point(|&key| key < from);
        self.keys[at..].iter().copied().zip(self.rows[at..].iter().copied())
    }

    /// As [`Index::row`].
    fn row(&self, key: u64) -> Option<u32> {
        Walk::new(self).row(key)
    }

    /// Adds the keys of a list, none of which is here. Only those behind its first key have to make
    /// room.
    fn merge(&mut self, other: Sorted) {
        if self.keys.is_empty() {
            *self = other;
            return;
        }
        let mut end = self.keys.len();
        let mut at = end + other.keys.len();
        self.keys.resize(at, 0);
        self.rows.resize(at, 0);
        for (left, (&key, &row)) in other.keys.iter().zip(&other.rows).enumerate().rev() {
            let first = gallop(&self.keys, 0..end, end - end / (left + 1), key);
            at -= end - first;
            self.keys.copy_within(first..end, at);
            self.rows.copy_within(first..end, at);
            at -= 1;
            (self.keys[at], self.rows[at]) = (key, row);
            end = first;
        }
        self.enter_ends(at);
    }

    /// Bytes that it takes.
    fn bytes(&self) -> usize {
        self.keys.capacity() * ENTRY_BYTES + self.ends.capacity() * size_of::<u64>()
    }
}

/// Position within `range` of the first of sorted `keys` that is not below `key`, or its end;
/// `guess` is where to look first.
fn gallop(keys: &[u64], range: Range<usize>, guess: usize, key: u64) -> usize {
    let (mut low, mut high) = (range.start, range.end);
    let guess = guess.min(high);
    let is_below = |at: usize| keys[at] < key;
    let mut step = 1;
    if guess < high && is_below(guess) {
        low = guess + 1;
        while step <= high - low {
            if !is_below(low + step - 1) {
                high = low + step - 1;
                break;
            }
            low += step;
            step *= 2;
        }
    } else {
        high = guess;
        while step <= high - low {
            if is_below(high - step) {
                low = high - step + 1;
                break;
            }
            high -= step;
            step *= 2;
        }
    }
    low + keys[low..high].partition_point(|&k| k < key)
}

/// Looks up ascending keys in a list.
struct Walk<'a> {
    list: &'a Sorted,
    /// The block of the last key.
    block: usize,
    /// The last key, or the end of the first block.
    key: u64,
    /// Blocks that a difference of keys is worth, if keys lie evenly.
    density: f64,
}

impl Walk<'_> {
    fn new(list: &Sorted) -> Walk<'_> {
        let (key, density) = match &list.ends[..] {
            [first, between @ .., last] => {
                (*first, (between.len() + 1) as f64 / (last - first) as f64)
            }
            _ => (0, 0.0),
        };
        Walk { list, block: 0, key, density }
    }

    /// The block that has a key if any has, which is not below the last one.
    #[inline]
    fn block(&mut self, key: u64) -> usize {
        let ends = &self.list.ends;
        let further = key.saturating_sub(self.key) as f64 * self.density;
        let guess = self.block.saturating_add(further as usize);
        self.block = gallop(ends, self.block..ends.len(), guess, key);
        self.key = key.max(self.key);
        self.block
    }

    /// The row of a key, which is not below the last one.
    #[inline]
    fn row(&mut self, key: u64) -> Option<u32> {
        let block = self.block(key);
        self.list.row_at(self.list.position(block, key), key)
    }
}

impl Index {
    /// An empty index, which charges its keys to `memory`.
    pub(crate) fn new(memory: Account) -> Index {
        let (lists, free) = Default::default();
        Index { lists, free, memory }
    }

    /// Number of keys.
    pub(crate) fn len(&self) -> usize {
        self.lists.iter().map(|list| list.keys.len()).sum()
    }

    /// Number of rows, also those without a key.
    pub(crate) fn rows(&self) -> usize {
        self.len() + self.free.len()
    }

    /// The rows that the next keys get, and how many of these had other keys before.
    pub(crate) fn next_rows(&self, count: usize) -> (impl Iterator<Item = u32> + use<>, usize) {
        let used = count.min(self.free.len());
        let used_rows = self.free[self.free.len() - used..].to_vec();
        let made = self.rows() as u32;
        (used_rows.into_iter().chain(made..made + (count - used) as u32), used)
    }

    /// The row of one key.
    pub(crate) fn row(&self, key: u64) -> Option<u32> {
        self.lists.iter().find_map(|list| list.row(key))
    }

    /// The keys from `from` on, in order, and their rows.
    pub(crate) fn from(&self, from: u64) -> impl Iterator<Item = (u64, u32)> {
        let mut lists = self.lists.each_ref().map(|list| list.from(from).peekable());
        std::iter::from_fn(move || {
            let heads = lists.iter_mut().filter_map(|list| Some((*list.peek()?, list)));
            heads.min_by_key(|(head, _)| *head)?.1.next()
        })
    }

    /// Appends the row of each of the sorted `keys` to `rows`, or [`NO_ROW`]; returns how many have
    /// none.
    pub(crate) fn find(&self, keys: &[u64], rows: &mut Vec<u32>) -> usize {
        rows.reserve(keys.len());
        let [mut longest, mut others @ ..] = self.lists.each_ref().map(Walk::new);
        let list = longest.list;
        // How many keys are done, where the next one may be, and how many have no row.
        let (mut at, mut place, mut missing) = (0, 0, 0);
        while at < keys.len() {
            let common = common_prefix(&list.keys[place..], &keys[at..]);
            if common >= BLOCK {
                rows.extend_from_slice(&list.rows[place..place + common]);
                at += common;
                place += common;
                continue;
            }
            let group = &keys[at..keys.len().min(at + GROUP)];
            let mut blocks = [0; GROUP];
            for (block, key) in blocks.iter_mut().zip(group) {
                *block = longest.block(*key);
                list.load(*block);
            }
            for (&block, &key) in blocks.iter().zip(group) {
                place = list.position(block, key);
                let row = list.row_at(place, key);
                place += usize::from(row.is_some());
                let row = row.or_else(|| others.iter_mut().find_map(|walk| walk.row(key)));
                missing += usize::from(row.is_none());
                rows.push(row.unwrap_or(NO_ROW));
            }
            at += group.len();
        }
        missing
    }

    /// Inserts the `missing` keys of the sorted `keys` for which [`Index::find`] found no row, and
    /// stores their rows in `rows`: those of [`Index::next_rows`].
    ///
    /// # Errors
    /// If memory is short; nothing has changed then.
    pub(crate) fn insert(
        &mut self,
        keys: &[u64],
        rows: &mut [u32],
        missing: usize,
    ) -> caravan_van::Result<()> {
        self.memory.set(Self::lists_max(self.len() + missing) + self.free_bytes())?;
        let (next, used) = self.next_rows(missing);
        let (mut fresh, next) = (Vec::with_capacity(missing), next.collect::<Vec<_>>());
        for (&key, row) in keys.iter().zip(rows).filter(|(_, row)| **row == NO_ROW) {
            *row = next[fresh.len()];
            fresh.push(key);
        }
        self.free.truncate(self.free.len() - used);
        self.lists[LISTS - 1].merge(Sorted::of(fresh, next));
        for at in (1..LISTS).rev() {
            let (before, list) = self.lists.split_at_mut(at);
            let (before, list) = (&mut before[at - 1], &mut list[0]);
            let count = list.keys.len();
            if count <= LIST_MIN.max(before.keys.len() / LIST_SHARE) {
                continue;
            }
            if at == 1 && !before.keys.is_empty() {
                // The longest list is most of the memory.
                before.keys.reserve_exact(count);
                before.rows.reserve_exact(count);
            }
            before.merge(std::mem::take(list));
        }
        self.memory.set(self.held())
    }

    /// Removes those of the sorted `keys` that are here; calls `with` with the row of each. The
    /// next keys get these rows.
    ///
    /// # Errors
    /// If memory is short; nothing has changed then.
    pub(crate) fn remove(
        &mut self,
        keys: &[u64],
        mut with: impl FnMut(u32),
    ) -> caravan_van::Result<()> {
        self.memory.reserve(&mut self.free, keys.len())?;
        for list in &mut self.lists {
            let (mut kept, mut next) = (0, 0);
            for at in 0..list.keys.len() {
                let (key, row) = (list.keys[at], list.rows[at]);
                next += keys[next..].iter().take_while(|next| **next < key).count();
                if keys.get(next) == Some(&key) {
                    self.free.push(row);
                    with(row);
                } else {
                    (list.keys[kept], list.rows[kept]) = (key, row);
                    kept += 1;
                }
            }
            list.keys.truncate(kept);
            list.rows.truncate(kept);
            list.enter_ends(0);
            if list.keys.capacity() > 2 * kept {
                list.keys.shrink_to_fit();
                list.rows.shrink_to_fit();
                list.ends.shrink_to_fit();
            }
        }
        self.memory.set(self.held())
    }

    /// Makes room so that [`Index::remove`] of so many keys does not fail.
    ///
    /// # Errors
    /// If memory is short.
    pub(crate) fn reserve_to_remove(&mut self, keys: usize) -> caravan_van::Result<()> {
        self.memory.reserve(&mut self.free, keys)
    }

    /// Makes room so that so many keys can be removed once they were inserted, whatever memory
    /// there is then.
    ///
    /// # Errors
    /// If memory is short.
    pub(crate) fn reserve_to_forget(&mut self, keys: usize) -> caravan_van::Result<()> {
        self.reserve_to_remove(keys.saturating_sub(self.free.len()))
    }

    /// Bytes that an index of this many keys takes at most.
    pub(crate) fn footprint(keys: usize) -> usize {
        let free = (2 * keys + keys / 2 + 16) * size_of::<u32>(); // old and new list
        Self::lists_max(keys) + free
    }

    /// Bytes that lists of this many keys take at most: each is at least half full, or has the
    /// least room that a list has, which is for four.
    fn lists_max(keys: usize) -> usize {
        let ends = (keys / SPAN + 2 * LISTS) * size_of::<u64>();
        2 * ((keys + 2 * LISTS) * ENTRY_BYTES + ends)
    }

    fn free_bytes(&self) -> usize {
        self.free.capacity() * size_of::<u32>()
    }

    /// Bytes of the lists.
    fn held(&self) -> usize {
        self.lists.iter().map(Sorted::bytes).sum::<usize>() + self.free_bytes()
    }
}

/// Length of the longest common prefix of `a` and `b`.
fn common_prefix(a: &[u64], b: &[u64]) -> usize {
    let a_blocks = a.as_chunks::<BLOCK>().0;
    let b_blocks = b.as_chunks::<BLOCK>().0;
    let same = |(a, b): (&[u64; BLOCK], &[u64; BLOCK])| {
        // The loop has no early exit, so the compiler can vectorise it.
        a.iter().zip(b).fold(0, |different, (a, b)| different | (a ^ b)) == 0
    };
    // Most prefixes are empty.
    if a.first() != b.first() || a.is_empty() {
        return 0;
    }
    let whole = BLOCK * a_blocks.iter().zip(b_blocks).take_while(|&pair| same(pair)).count();
    whole + a[whole..].iter().zip(&b[whole..]).take_while(|(a, b)| a == b).count()
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, reason = "tests")]
    use super::*;
    use caravan_van::Pool;
    use std::collections::BTreeMap;

    fn index(memory_bytes: usize) -> Index {
        Index::new(Account::new(&Pool::new(memory_bytes), "keys"))
    }

    #[test]
    fn equals_a_map_whatever_the_order_of_batches() {
        let mut index = index(1 << 20);
        let mut map = BTreeMap::new();
        let mut state = 1u64;
        for round in 0..200 {
            let mut keys: Vec<u64> = (0..round * 7 % 300)
                .map(|_| {
                    state =
                        state.wrapping_mul(6364136223846793005).wrapping_add(1442695040888963407);
                    state >> 50
                })
                .collect();
            keys.sort_unstable();
            keys.dedup();
            for &key in &keys {
                let row = map.len() as u32;
                map.entry(key).or_insert(row);
            }
            let mut rows = Vec::new();
            let missing = index.find(&keys, &mut rows);
            index.insert(&keys, &mut rows, missing).unwrap();
            assert!(keys.iter().zip(rows).all(|(key, row)| map[key] == row));
            assert_eq!(index.len(), map.len());
        }
        let all: Vec<u64> = (0..1 << 14).collect();
        let mut rows = Vec::new();
        let missing = index.find(&all, &mut rows);
        assert_eq!(missing, all.len() - map.len());
        for (key, row) in all.iter().zip(rows) {
            assert_eq!(row, map.get(key).copied().unwrap_or(NO_ROW), "{key}");
            assert_eq!(index.row(*key), map.get(key).copied(), "{key}");
        }
    }

    /// Keys in a row, in clusters, and further apart the higher they are, where guesses fall short
    /// and go too far; all keys are sought, those beside them, and few of them.
    #[test]
    fn keys_are_found_however_they_lie() {
        let in_a_row: Vec<u64> = (1000..6000).collect();
        let clusters: Vec<u64> = (0..9).flat_map(|n| (n << 40)..(n << 40) + 7 * n + 1).collect();
        let apart: Vec<u64> = (0..64).map(|bit| 1 << bit).collect();
        let many_and_far: Vec<u64> = (0..3000).chain([1 << 50, u64::MAX]).collect();
        let far_and_many: Vec<u64> =
            [0, 1 << 50].into_iter().chain((1 << 60)..(1 << 60) + 3000).collect();
        for keys in [in_a_row, clusters, apart, many_and_far, far_and_many, vec![7]] {
            let mut index = index(1 << 20);
            index.insert(&keys, &mut vec![NO_ROW; keys.len()], keys.len()).unwrap();
            let around =
                keys.iter().flat_map(|key| [key.saturating_sub(1), *key, key.saturating_add(1)]);
            let mut sought: Vec<u64> = around.collect();
            sought.sort_unstable();
            sought.dedup();
            for step in [1, 2, 7, 100] {
                let some: Vec<u64> = sought.iter().copied().step_by(step).collect();
                let row = |key: &u64| keys.binary_search(key).map_or(NO_ROW, |row| row as u32);
                let expected: Vec<u32> = some.iter().map(row).collect();
                let mut rows = Vec::new();
                let missing = index.find(&some, &mut rows);
                assert_eq!(rows, expected, "{keys:?}");
                assert_eq!(missing, expected.iter().filter(|row| **row == NO_ROW).count());
                for (key, row) in some.iter().zip(expected) {
                    assert_eq!(index.row(*key).unwrap_or(NO_ROW), row, "{key}");
                }
            }
        }
    }

    /// Whatever is inserted and removed: keys have rows of their own, and no more are made than
    /// there were keys at once.
    #[test]
    fn rows_of_removed_keys_are_used_again() {
        let mut index = index(1 << 20);
        let mut map: BTreeMap<u64, u32> = BTreeMap::new();
        let mut state = 1u64;
        let mut most = 0;
        for round in 0..300 {
            let mut keys: Vec<u64> = (0..round * 13 % 400)
                .map(|_| {
                    state =
                        state.wrapping_mul(6364136223846793005).wrapping_add(1442695040888963407);
                    state >> 52
                })
                .collect();
            keys.sort_unstable();
            keys.dedup();
            if round % 3 == 2 {
                let mut removed = Vec::new();
                index.remove(&keys, |row| removed.push(row)).unwrap();
                let mut expected: Vec<u32> =
                    keys.iter().filter_map(|key| map.remove(key)).collect();
                removed.sort_unstable();
                expected.sort_unstable();
                assert_eq!(removed, expected);
                continue;
            }
            let mut rows = Vec::new();
            let missing = index.find(&keys, &mut rows);
            let (next, used) = index.next_rows(missing);
            let next: Vec<u32> = next.collect();
            assert_eq!(used, missing.min(index.rows() - map.len()));
            index.insert(&keys, &mut rows, missing).unwrap();
            let mut new = next.into_iter();
            for (key, row) in keys.iter().zip(rows) {
                let expected = *map.entry(*key).or_insert_with(|| new.next().unwrap());
                assert_eq!(row, expected, "{key}");
            }
            most = most.max(map.len());
            assert!(index.memory.bytes() <= Index::footprint(most));
            assert_eq!((index.len(), index.rows()), (map.len(), most));
            let mut all: Vec<u32> = map.values().copied().collect();
            all.sort_unstable();
            all.dedup();
            assert_eq!(all.len(), map.len(), "no two keys have one row");
        }
        assert!(index.from(0).eq(map.iter().map(|(key, row)| (*key, *row))));
    }

    #[test]
    fn the_last_key_is_a_key() {
        let mut index = index(1 << 20);
        index.insert(&[0, u64::MAX], &mut [NO_ROW; 2], 2).unwrap();
        let mut rows = Vec::new();
        assert_eq!(index.find(&[0, 1, u64::MAX], &mut rows), 1);
        assert_eq!(rows, [0, NO_ROW, 1]);
        assert_eq!(index.row(u64::MAX), Some(1));
    }

    /// Lists that have become short give their room back, so what is inserted then is paid for
    /// before anything changes.
    #[test]
    fn memory_goes_with_the_keys() {
        let mut index = index(1 << 20);
        let keys: Vec<u64> = (0..5_000).collect();
        for batch in keys.chunks(900) {
            index.insert(batch, &mut vec![NO_ROW; batch.len()], batch.len()).unwrap();
        }
        index.remove(&keys[1..], |_| {}).unwrap();
        let free = index.free_bytes();
        assert!(index.memory.bytes() <= Index::lists_max(1) + free);
        for key in 5_000..7_000 {
            index.insert(&[key], &mut [NO_ROW], 1).unwrap();
            assert!(index.memory.bytes() <= Index::lists_max(index.len()) + free);
        }
    }

    #[test]
    fn inserting_without_memory_changes_nothing() {
        let mut index = index(1 << 20);
        let keys: Vec<u64> = (0..30_000).collect();
        let (first, rest) = keys.split_at(10_000);
        index.insert(first, &mut vec![NO_ROW; 10_000], 10_000).unwrap();
        assert_eq!(index.memory.bytes(), 125_000, "the merged lists are freed");
        for _ in 0..3 {
            let mut rows = Vec::new();
            let missing = index.find(rest, &mut rows) + index.find(rest, &mut rows);
            let error = index.insert(rest, &mut rows, missing).unwrap_err().to_string();
            assert!(error.contains("keys would take"), "{error}");
            assert!(rows.iter().all(|row| *row == NO_ROW));
            assert_eq!((index.len(), index.memory.bytes()), (10_000, 125_000));
        }
    }
}
