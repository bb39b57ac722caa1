//! Random skip: a row is pushed with probability q, scaled by 1/q, else not at all. Its mean is the
//! row.

use super::draws::Draws;

/// The filter of one table at one worker.
pub(super) struct Skip {
    share: f64,
    draws: Draws,
}

impl Skip {
    /// Sends rows with probability `share`, in (0, 1].
    pub(super) fn new(share: f64, draws: Draws) -> Skip {
        Skip { share, draws }
    }

    /// The factor of the next row's values; `None` if it is skipped.
    #[inline]
    pub(super) fn next(&mut self) -> Option<f64> {
        (self.draws.next_unit() < self.share).then_some(1.0 / self.share)
    }
}
