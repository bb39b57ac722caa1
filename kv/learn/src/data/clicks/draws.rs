//! Draws the keys and label of a click, the same in any language. Not a model of any real log.
//!
//! Row `i`, draw `j` is a hash of (seed, i, j), so that rows can be made repeatedly, in any order,
//! on any number of threads. Every row has `slots - bag` categorical slots, one key each, and one
//! bag slot of `bag` draws; repeated keys count once. Slot vocabularies grow from `2^k_min` to
//! `2^k_max`, and within one, rank `r` has probability about `1 / (r + 1)`. A key has a fixed
//! weight, near-normal if it is relevant and else 0; the label is a logistic draw on the sum of a
//! row's weights.

use caravan_van::draws::mix;

use super::{Clicks, SLOTS_MAX};

/// The draw, past those of the slots, that decides the label.
const LABEL_DRAW: u64 = 0x7fff;
const _: () = assert!(2 * (SLOTS_MAX as u64) < LABEL_DRAW);

/// A specification and values derived from it.
pub(super) struct Draws<'a> {
    clicks: &'a Clicks,
    key_seed: u64,
    weight_seed: u64,
    /// One per draw: (slot number, log2 of its vocabulary).
    slots: Vec<(u64, u32)>,
}

impl<'a> Draws<'a> {
    pub(super) fn new(clicks: &'a Clicks) -> Self {
        let singles = clicks.slots - clicks.bag;
        let grow = clicks.k_max - clicks.k_min;
        let slots = (0..clicks.slots).map(|draw| {
            if draw < singles {
                (u64::from(draw), clicks.k_min + grow * draw / (singles - 1).max(1))
            } else {
                (u64::from(singles), clicks.k_bag)
            }
        });
        Self {
            clicks,
            key_seed: mix(clicks.seed ^ 0x5bd1_e995),
            weight_seed: clicks.seed.wrapping_mul(0x2545_F491_4F6C_DD1D),
            slots: slots.collect(),
        }
    }

    /// Puts the distinct keys of row `row` into `keys`, ascending. Returns its label.
    pub(super) fn row(&self, row: u64, keys: &mut Vec<u64>) -> i8 {
        let base =
            mix(self.clicks.seed ^ 0xA076_1D64_78BD_642F_u64.wrapping_mul(row.wrapping_add(1)));
        let singles = (self.clicks.slots - self.clicks.bag) as usize;
        let mut margin = self.clicks.bias;
        keys.clear();
        for (draw, &(slot, k_slot)) in (0..).zip(&self.slots) {
            let high = mix(base.wrapping_add(2 * draw)) >> 32;
            let octave = (high * u64::from(k_slot + 1)) >> 32;
            let first = (1 << octave) - 1;
            let rank = first + (mix(base.wrapping_add(2 * draw + 1)) & first);
            let key = mix(self.key_seed ^ (slot << 48) ^ rank);
            // Only the bag draws from one vocabulary more than once.
            if !keys[singles.min(keys.len())..].contains(&key) {
                margin += self.weight(key, octave);
                keys.push(key);
            }
        }
        keys.sort_unstable();
        let uniform = (mix(base.wrapping_add(LABEL_DRAW)) >> 11) as f64 * (-53_f64).exp2();
        if uniform < 1.0 / (1.0 + (-margin).exp()) { 1 } else { -1 }
    }

    /// The weight of a key: almost always relevant at the head of its slot, and with 1 %
    /// probability at the tail.
    fn weight(&self, key: u64, octave: u64) -> f64 {
        let hash = mix(key ^ self.weight_seed);
        let relevant_of_65536 = (65536 >> (octave / 2)).max(655);
        if hash & 0xffff >= relevant_of_65536 {
            return 0.0;
        }
        // 64 fair bits have mean 32 and standard deviation 4.
        self.clicks.scale * ((f64::from(mix(hash).count_ones()) - 32.0) / 4.0)
    }
}
