//! Random skip: a row is pushed with probability q, as its value over q, else not at all. On average that is its value.

use super::draws::Draws;

/// The filter of one table at one worker.
pub(super) struct Skip {
    share: f64,
    draws: Draws,
}

impl Skip {
    /// Rows are sent with probability `share`, in (0, 1].
    pub(super) fn new(share: f64, draws: Draws) -> Skip {
        Skip { share, draws }
    }

    /// What the next row's values are multiplied by; `None` if it is skipped.
    #[inline]
    pub(super) fn next(&mut self) -> Option<f64> {
        (self.draws.next_unit() < self.share).then_some(1.0 / self.share)
    }
}
