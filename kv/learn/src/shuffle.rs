//! Orders that a seed determines.

/// Fisher-Yates, from the back.
pub(crate) fn shuffle<T>(order: &mut [T], random: &mut SplitMix64) {
    for i in (1..order.len()).rev() {
        order.swap(i, random.below(i + 1));
    }
}

/// Steele, Lea and Flood's SplitMix64: small, seedable, good enough to shuffle.
pub(crate) struct SplitMix64 {
    state: u64,
}

impl SplitMix64 {
    pub(crate) fn new(seed: u64) -> Self {
        Self { state: seed }
    }

    /// The next number.
    pub(crate) fn next(&mut self) -> u64 {
        self.state = self.state.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut z = self.state;
        z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        z ^ (z >> 31)
    }

    /// A number below `bound`; the bias of the multiplication is at most `bound / 2^64`.
    pub(crate) fn below(&mut self, bound: usize) -> usize {
        ((u128::from(self.next()) * bound as u128) >> 64) as usize
    }
}
