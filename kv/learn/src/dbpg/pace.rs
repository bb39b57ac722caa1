//! How far workers may run ahead in each pass: τ decreases when it is too large for the data.
//!
//! Unseen updates make a block step overshoot, the more so the more there are; with few blocks, or
//! columns that overlap much, F then rises, possibly forever. A smaller step would help as well,
//! but slows every later pass, even those without late updates. So the step stays, and τ is halved
//! after a pass in which F rose. That happens at most log2 τ + 1 times: with τ = 0 a step on the
//! safe bound never raises F. A run ends only with a pass without delay, so that its end is a
//! solution whatever τ has done before.

/// τ from pass to pass.
#[derive(Debug, Clone)]
pub(super) struct Pace {
    delay: u64,
    adapts: bool,
    lowest: f64,
}

/// A relative increase of the objective of at most this counts as rounding.
const ROUNDING: f64 = 1e-12;

impl Pace {
    /// Starts with `delay`, and keeps it unless it `adapts`.
    pub(super) fn new(delay: u64, adapts: bool) -> Self {
        Pace { delay, adapts, lowest: f64::INFINITY }
    }

    /// τ of the next pass.
    pub(super) fn delay(&self) -> u64 {
        self.delay
    }

    /// Records the objective after a pass; true if τ decreases.
    pub(super) fn after_pass(&mut self, objective: f64) -> bool {
        let rose = objective.is_nan() || objective > self.lowest * (1.0 + ROUNDING);
        self.lowest = self.lowest.min(objective);
        let falls = rose && self.adapts && self.delay > 0;
        if falls {
            self.delay /= 2;
            // Later passes are compared with this value; otherwise each pass on the way back would
            // count as a rise.
            self.lowest = objective;
        }
        falls
    }

    /// Whether the run may end; if not, it needs another pass, without delay.
    pub(super) fn may_end(&mut self) -> bool {
        let may = self.delay == 0 || !self.adapts;
        if !may {
            self.delay = 0;
        }
        may
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_rise_halves_the_delay() {
        let mut pace = Pace::new(9, true);
        for (objective, delay) in [
            (10.0, 9),
            (9.0, 9),
            (9.5, 4),
            (9.4, 4), // above the lowest, but falling again
            (9.6, 2),
            (9.6, 2),
            (f64::NAN, 1),
            (8.0, 1),
            (f64::INFINITY, 0),
            (f64::INFINITY, 0),
        ] {
            pace.after_pass(objective);
            assert_eq!(pace.delay(), delay, "{objective}");
        }
    }

    #[test]
    fn a_fixed_delay_stays() {
        let mut pace = Pace::new(4, false);
        assert!(!pace.after_pass(1.0) && !pace.after_pass(2.0) && pace.may_end());
        assert_eq!(pace.delay(), 4);
    }

    #[test]
    fn the_last_pass_has_no_delay() {
        let mut pace = Pace::new(4, true);
        assert!(!pace.may_end());
        assert_eq!(pace.delay(), 0);
        assert!(pace.may_end());
    }
}
