//! Values by key, in an array if the keys are about as dense as the entries, else in a hash table.

use std::collections::HashMap;
use std::hash::{BuildHasher, Hasher, RandomState};

/// Keys up to this multiple of the number of entries use an array.
const ARRAY_PER_ENTRY: u64 = 1;

/// Keys up to this one always use an array.
const ARRAY_MIN: u64 = 1 << 16;

/// A small value for each key of some rows; [`Default`] for keys without one.
#[derive(Debug)]
pub(crate) enum ByKey<T> {
    Array(Vec<T>),
    Hashed(HashMap<u64, T, KeyHash>),
}

impl<T> Default for ByKey<T> {
    /// For no keys.
    fn default() -> Self {
        Self::Array(Vec::new())
    }
}

impl<T: Copy + Default> ByKey<T> {
    /// For keys within `range`, of `nonzeros` entries.
    pub(crate) fn new(range: Option<(u64, u64)>, nonzeros: usize) -> Self {
        let last = range.map_or(0, |(_, last)| last);
        if last <= ARRAY_MIN.max(ARRAY_PER_ENTRY * nonzeros as u64) {
            Self::Array(vec![T::default(); last as usize + 1])
        } else {
            Self::Hashed(HashMap::with_hasher(KeyHash::new()))
        }
    }

    /// The value of `key`, which lies within the range.
    pub(crate) fn entry(&mut self, key: u64) -> &mut T {
        match self {
            Self::Array(of) => &mut of[key as usize],
            Self::Hashed(of) => of.entry(key).or_default(),
        }
    }

    /// The value of any key.
    pub(crate) fn get(&self, key: u64) -> T {
        let found = match self {
            Self::Array(of) => usize::try_from(key).ok().and_then(|key| of.get(key)),
            Self::Hashed(of) => of.get(&key),
        };
        found.copied().unwrap_or_default()
    }

    /// Its size in bytes, about.
    pub(crate) fn bytes(&self) -> usize {
        match self {
            Self::Array(of) => size_of_val(&of[..]),
            Self::Hashed(of) => of.capacity() * 8 / 7 * (size_of::<(u64, T)>() + 1),
        }
    }

    /// How many values satisfy `wanted`.
    pub(crate) fn count(&self, wanted: impl Fn(T) -> bool) -> usize {
        match self {
            Self::Array(of) => of.iter().filter(|of| wanted(**of)).count(),
            Self::Hashed(of) => of.values().filter(|of| wanted(**of)).count(),
        }
    }

    /// The sorted keys whose values satisfy `wanted`, with those values.
    pub(crate) fn sorted(&self, wanted: impl Fn(T) -> bool) -> Vec<(u64, T)> {
        match self {
            Self::Array(of) => {
                let all = (0..).zip(of.iter().copied());
                all.filter(|&(_, of)| wanted(of)).collect()
            }
            Self::Hashed(of) => {
                let all = of.iter().map(|(&key, &of)| (key, of));
                let mut found: Vec<(u64, T)> = all.filter(|&(_, of)| wanted(of)).collect();
                found.sort_unstable_by_key(|&(key, _)| key);
                found
            }
        }
    }
}

/// A fast hash of one `u64`: a folded 128-bit product. The seed is random, so that no file can be
/// made to collide.
#[derive(Debug, Clone)]
pub(crate) struct KeyHash {
    seed: u64,
    hash: u64,
}

impl KeyHash {
    fn new() -> Self {
        Self { seed: RandomState::new().hash_one(0_u64), hash: 0 }
    }
}

impl BuildHasher for KeyHash {
    type Hasher = Self;

    fn build_hasher(&self) -> Self {
        self.clone()
    }
}

impl Hasher for KeyHash {
    fn write_u64(&mut self, key: u64) {
        // An odd multiplier with bits everywhere: 2^64 over the golden ratio.
        let product = u128::from(key ^ self.seed) * 0x9E37_79B9_7F4A_7C15;
        self.hash = product as u64 ^ (product >> 64) as u64;
    }

    fn write(&mut self, _: &[u8]) {
        unreachable!("only u64 keys are hashed");
    }

    fn finish(&self) -> u64 {
        self.hash
    }
}
