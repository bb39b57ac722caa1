//! A store that evicts the least recently used values. It is bounded in bytes, which the caller
//! states for each value.

use std::collections::HashMap;
use std::hash::Hash;

/// No entry.
const NONE: u32 = u32::MAX;

/// Values by key, of at most `bytes_max` bytes in total.
pub(crate) struct Lru<K, V> {
    places: HashMap<K, u32>,
    entries: Vec<Entry<K, V>>,
    free: Vec<u32>,
    /// Ends of the list from the most to the least recently used entry.
    newest: u32,
    oldest: u32,
    bytes: usize,
    bytes_max: usize,
}

struct Entry<K, V> {
    key: K,
    /// `None` while the entry is free.
    value: Option<V>,
    bytes: usize,
    newer: u32,
    older: u32,
}

impl<K: Hash + Eq + Clone, V> Lru<K, V> {
    pub(crate) fn new(bytes_max: usize) -> Self {
        Lru {
            places: HashMap::new(),
            entries: Vec::new(),
            free: Vec::new(),
            newest: NONE,
            oldest: NONE,
            bytes: 0,
            bytes_max,
        }
    }

    /// The value of `key`, which becomes the most recently used.
    pub(crate) fn touch(&mut self, key: &K) -> Option<&mut V> {
        let at = *self.places.get(key)?;
        if self.newest != at {
            self.unlink(at);
            self.link(at);
        }
        self.entries[at as usize].value.as_mut()
    }

    /// The value of `key`, without marking it as used.
    pub(crate) fn peek(&mut self, key: &K) -> Option<&mut V> {
        let at = *self.places.get(key)?;
        self.entries[at as usize].value.as_mut()
    }

    /// Stores a value of `bytes` bytes in place of any with the same key, and evicts others until
    /// it fits. A value larger than the whole store is not stored.
    pub(crate) fn insert(&mut self, key: K, value: V, bytes: usize) {
        self.remove(&key);
        if bytes > self.bytes_max {
            return;
        }
        while self.bytes > self.bytes_max - bytes {
            self.remove_oldest();
        }
        let entry = Entry { key: key.clone(), value: Some(value), bytes, newer: NONE, older: NONE };
        let at = match self.free.pop() {
            Some(at) => {
                self.entries[at as usize] = entry;
                at
            }
            None => {
                self.entries.push(entry);
                self.entries.len() as u32 - 1
            }
        };
        self.places.insert(key, at);
        self.bytes += bytes;
        self.link(at);
    }

    /// Removes a value.
    pub(crate) fn remove(&mut self, key: &K) {
        let Some(at) = self.places.remove(key) else { return };
        self.unlink(at);
        let entry = &mut self.entries[at as usize];
        entry.value = None;
        self.bytes -= entry.bytes;
        self.free.push(at);
    }

    /// Evicts the least recently used value; false if there is none.
    pub(crate) fn remove_oldest(&mut self) -> bool {
        let oldest = self.entries.get(self.oldest as usize).map(|entry| entry.key.clone());
        oldest.inspect(|key| self.remove(key)).is_some()
    }

    /// Removes the values whose keys `keep` rejects.
    pub(crate) fn retain(&mut self, keep: impl Fn(&K) -> bool) {
        let gone: Vec<K> = self.places.keys().filter(|key| !keep(key)).cloned().collect();
        gone.iter().for_each(|key| self.remove(key));
    }

    /// Gives back memory that no value uses, if there is none.
    pub(crate) fn shrink(&mut self) {
        if self.places.is_empty() {
            *self = Lru::new(self.bytes_max);
        }
    }

    /// Bytes of all values.
    #[cfg(test)]
    pub(crate) fn bytes(&self) -> usize {
        self.bytes
    }

    fn link(&mut self, at: u32) {
        let older = std::mem::replace(&mut self.newest, at);
        let entry = &mut self.entries[at as usize];
        entry.newer = NONE;
        entry.older = older;
        match older {
            NONE => self.oldest = at,
            _ => self.entries[older as usize].newer = at,
        }
    }

    fn unlink(&mut self, at: u32) {
        let Entry { newer, older, .. } = self.entries[at as usize];
        match newer {
            NONE => self.newest = older,
            _ => self.entries[newer as usize].older = older,
        }
        match older {
            NONE => self.oldest = newer,
            _ => self.entries[older as usize].newer = newer,
        }
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, reason = "tests")]
    use super::*;

    #[test]
    fn what_was_used_least_recently_goes_first() {
        let mut lru = Lru::new(100);
        (0..10).for_each(|n| lru.insert(n, n * n, 10));
        assert_eq!(lru.touch(&0), Some(&mut 0));
        assert_eq!(lru.peek(&1), Some(&mut 1), "a look is no use");
        lru.insert(10, 100, 15);
        assert!(lru.peek(&1).is_none() && lru.peek(&2).is_none() && lru.bytes() == 95);
        assert_eq!(lru.peek(&0), Some(&mut 0));
        lru.insert(11, 0, 101);
        assert!(lru.peek(&11).is_none() && lru.bytes() == 95, "too large for all of it");
        lru.insert(10, 7, 20);
        assert!(lru.peek(&10) == Some(&mut 7) && lru.bytes() == 100);
        lru.retain(|n| n % 2 == 0);
        assert_eq!(lru.bytes(), 10 + 20 + 10 * 3);
        lru.insert(12, 0, 100);
        assert_eq!((lru.places.len(), lru.bytes()), (1, 100));
        lru.remove(&12);
        assert_eq!((lru.newest, lru.oldest, lru.bytes()), (NONE, NONE, 0));
    }

    #[test]
    fn it_equals_a_list_that_is_kept_in_order() {
        let (mut lru, mut list) = (Lru::new(50), Vec::<(u64, usize)>::new());
        let mut state = 1u64;
        for _ in 0..3000 {
            state = state.wrapping_mul(6364136223846793005).wrapping_add(1442695040888963407);
            let (key, bytes) = (state >> 33 & 15, (state >> 40 & 15) as usize);
            let at = list.iter().position(|(k, _)| *k == key);
            if state >> 60 < 8 {
                assert_eq!(lru.touch(&key).is_some(), at.is_some());
                at.map(|at| list.remove(at)).into_iter().for_each(|entry| list.push(entry));
            } else {
                lru.insert(key, (), bytes);
                at.map(|at| list.remove(at));
                list.push((key, bytes));
                while list.iter().map(|(_, bytes)| bytes).sum::<usize>() > 50 {
                    list.remove(0);
                }
            }
            assert_eq!(lru.bytes(), list.iter().map(|(_, bytes)| bytes).sum::<usize>());
            assert!(
                (0..16).all(|key| lru.peek(&key).is_some() == list.iter().any(|(k, _)| *k == key))
            );
        }
    }
}
