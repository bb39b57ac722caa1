//! Which keys the workers will touch in which iteration, counted: by a map, or by a ring of
//! counters for every key.

use std::collections::{BTreeMap, HashMap};
use std::hash::{BuildHasherDefault, Hasher};

use caravan_van::draws::finish;

/// Counts, by iteration and key, the requests that have been announced and are not finished.
pub trait Recorder {
    /// One request of iteration `version` will touch these keys.
    fn add(&mut self, version: u64, keys: &[u64]);

    /// One request that was added is finished.
    fn remove(&mut self, version: u64, keys: &[u64]);

    /// Whether any request of iteration `version` will touch `key`.
    fn touches(&self, version: u64, key: u64) -> bool;

    /// Bytes of memory for its content.
    fn bytes(&self) -> usize;
}

/// Counts in a map for each iteration: its memory grows with the announced keys.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct MapRecorder {
    versions: BTreeMap<u64, HashMap<u64, u32, BuildHasherDefault<KeyHasher>>>,
    keys: usize,
}

/// Hashes a key in a few instructions; whoever chooses keys belongs to the job.
#[derive(Debug, Default)]
struct KeyHasher(u64);

impl Hasher for KeyHasher {
    fn write_u64(&mut self, key: u64) {
        self.0 = finish(key);
    }

    fn write(&mut self, bytes: &[u8]) {
        bytes.iter().for_each(|byte| self.0 = finish(self.0 ^ u64::from(*byte)));
    }

    fn finish(&self) -> u64 {
        self.0
    }
}

/// Memory of a key in a map, with its share of empty places.
const MAPPED_KEY_BYTES: usize = 32;

impl Recorder for MapRecorder {
    fn add(&mut self, version: u64, keys: &[u64]) {
        if keys.is_empty() {
            return;
        }
        let counts = self.versions.entry(version).or_default();
        let before = counts.len();
        keys.iter().for_each(|key| *counts.entry(*key).or_insert(0) += 1);
        self.keys += counts.len() - before;
    }

    fn remove(&mut self, version: u64, keys: &[u64]) {
        let Some(counts) = self.versions.get_mut(&version) else { return };
        for key in keys {
            let Some(count) = counts.get_mut(key) else { continue };
            *count -= 1;
            if *count == 0 {
                counts.remove(key);
                self.keys -= 1;
            }
        }
        if counts.is_empty() {
            self.versions.remove(&version);
        }
    }

    fn touches(&self, version: u64, key: u64) -> bool {
        self.versions.get(&version).is_some_and(|counts| counts.contains_key(&key))
    }

    fn bytes(&self) -> usize {
        MAPPED_KEY_BYTES * self.keys
    }
}

/// Counts in an array for each of the iterations that can be open at a time: fast, and as long as
/// the key range times those iterations.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct RingRecorder {
    begin: u64,
    keys: usize,
    versions: u64,
    counts: Vec<u32>,
}

impl RingRecorder {
    /// For `keys` keys from `begin` on and `versions` consecutive iterations, at least 1.
    pub fn new(begin: u64, keys: usize, versions: u64) -> Self {
        let versions = versions.max(1);
        let counts = vec![0; keys * versions as usize];
        RingRecorder { begin, keys, versions, counts }
    }

    /// Memory of such a recorder in bytes, if that is a number.
    pub fn bytes_of(keys: u64, versions: u64) -> Option<u64> {
        keys.checked_mul(versions)?.checked_mul(size_of::<u32>() as u64)
    }

    /// The counters of an iteration.
    fn row(&self, version: u64) -> usize {
        (version % self.versions) as usize * self.keys
    }

    /// Position of a key in a row; `None` for keys outside the range, which nobody counts.
    fn column(&self, key: u64) -> Option<usize> {
        let column = key.checked_sub(self.begin)?;
        (column < self.keys as u64).then_some(column as usize)
    }
}

impl Recorder for RingRecorder {
    fn add(&mut self, version: u64, keys: &[u64]) {
        let row = self.row(version);
        for key in keys {
            let Some(column) = self.column(*key) else { continue };
            self.counts[row + column] += 1;
        }
    }

    fn remove(&mut self, version: u64, keys: &[u64]) {
        let row = self.row(version);
        for key in keys {
            let Some(column) = self.column(*key) else { continue };
            let count = &mut self.counts[row + column];
            *count = count.saturating_sub(1);
        }
    }

    fn touches(&self, version: u64, key: u64) -> bool {
        let row = self.row(version);
        self.column(key).is_some_and(|column| self.counts[row + column] > 0)
    }

    fn bytes(&self) -> usize {
        size_of::<u32>() * self.counts.len()
    }
}
