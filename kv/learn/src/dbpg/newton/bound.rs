//! A bound of F - F*: the duality gap.
//!
//! With the entropy H(b) = -b log b - (1 - b) log(1 - b), and any b_i in [0, 1],
//!
//! ```text
//! F* ≥ Σ c_i H(b_i) - Σ_j max(|Σ_i y_i c_i b_i x_ij| - λ, 0)² / (2 λ₂)
//! ```
//!
//! where without a ridge no |Σ_i …| may be above λ; with an intercept Σ_i y_i c_i b_i must be 0. At
//! the optimum b_i = σ(-m_i), the probability of the wrong label. Elsewhere these are made
//! feasible: those of the label that has more are scaled down until the sums of both labels are
//! equal, which moves no |Σ_i …| by more than the difference times the largest |x_ij|; then all are
//! scaled down until none is above λ.

/// How the probabilities are scaled, for rows of either label.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(super) struct Shares {
    pub(super) positive: f64,
    pub(super) negative: f64,
}

/// Makes probabilities feasible.
///
/// `sums`: with an intercept, Σ c_i σ(-m_i) over rows of either label, positive ones first.
/// `steepest`: largest |g| with a penalty, and how far it may be off when both sums are made equal:
/// their difference times the largest |x_ij|.
pub(super) fn shares(sums: Option<[f64; 2]>, steepest: f64, lambda: f64, ridge: bool) -> Shares {
    let mut shares = Shares { positive: 1.0, negative: 1.0 };
    if let Some([positive, negative]) = sums {
        if positive > negative {
            shares.positive = negative / positive;
        } else if negative > positive {
            shares.negative = positive / negative;
        }
    }
    if !ridge && steepest > lambda {
        shares.positive *= lambda / steepest;
        shares.negative *= lambda / steepest;
    }
    shares
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn shares_are_feasible() {
        let plain = shares(None, 3.0, 2.0, false);
        assert!((plain.positive - 2.0 / 3.0).abs() < 1e-15 && plain.positive == plain.negative);
        assert_eq!(shares(None, 3.0, 2.0, true).positive, 1.0);
        let free = shares(Some([5.0, 4.0]), 2.0, 2.0, false);
        assert_eq!((free.positive * 5.0, free.negative), (4.0, 1.0));
        let both = shares(Some([4.0, 5.0]), 4.0, 2.0, false);
        assert_eq!((both.positive * 4.0, both.negative * 5.0), (2.0, 2.0));
    }
}
