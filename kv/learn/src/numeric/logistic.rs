//! The logistic loss of one row and its derivatives: log(1 + e^-m), σ(-m), σ'(m).
//!
//! Every block step needs σ at every row it moved, so e^-m is computed here without branches or
//! tables, in a form that compilers vectorise. The exponential never has a positive argument.

/// log₂ e.
const LOG2_E: f64 = std::f64::consts::LOG2_E;

/// ln 2 in two parts; the first has so few bits that its products with small integers are exact
/// (Cody and Waite).
const LN_2_HIGH: f64 = f64::from_bits(0x3fe6_2e42_fee0_0000);
const LN_2_LOW: f64 = f64::from_bits(0x3dea_39ef_3579_3c76);

/// Below this, e^x counts as e^-700, about 1e-304: no result here differs.
const LOWEST: f64 = -700.0;

/// Adding it leaves a number, rounded to an integer, in the low bits of the sum.
const ROUND: f64 = 6_755_399_441_055_744.0; // 1.5 * 2^52

/// Coefficients of e^r for |r| ≤ ln 2 / 2, from that of r^13 down: 1/k!, with a remainder of 5e-18.
const SERIES: [f64; 14] = [
    1.0 / 6_227_020_800.0,
    1.0 / 479_001_600.0,
    1.0 / 39_916_800.0,
    1.0 / 3_628_800.0,
    1.0 / 362_880.0,
    1.0 / 40_320.0,
    1.0 / 5_040.0,
    1.0 / 720.0,
    1.0 / 120.0,
    1.0 / 24.0,
    1.0 / 6.0,
    0.5,
    1.0,
    1.0,
];

/// e^x for x ≤ 0, to two units in the last place. NaN yields NaN.
#[inline]
pub(crate) fn exp_of_negative(x: f64) -> f64 {
    let x = if x < LOWEST { LOWEST } else { x };
    let shifted = x * LOG2_E + ROUND;
    let whole = shifted - ROUND;
    let r = (x - whole * LN_2_HIGH) - whole * LN_2_LOW;
    let mut series = SERIES[0];
    for coefficient in &SERIES[1..] {
        series = series * r + coefficient;
    }
    // The integer is in the low bits of `shifted`; moved to the exponent, it multiplies by a power
    // of 2.
    f64::from_bits(series.to_bits().wrapping_add(shifted.to_bits() << 52))
}

/// σ(-m), the probability of the wrong label at margin m.
#[inline]
pub(crate) fn wrong_probability(margin: f64) -> f64 {
    let e = exp_of_negative(-margin.abs());
    let share = 1.0 / (1.0 + e);
    if margin >= 0.0 { e * share } else { share }
}

/// log(1 + e^-m).
pub(crate) fn log_loss(margin: f64) -> f64 {
    (-margin).max(0.0) + exp_of_negative(-margin.abs()).ln_1p()
}

/// σ'(m) for m ≥ 0; ¼ at 0, decreasing.
#[inline]
pub(crate) fn sigmoid_derivative(margin: f64) -> f64 {
    let e = exp_of_negative(-margin);
    e / ((1.0 + e) * (1.0 + e))
}

/// Factors multiplied before each logarithm: each is at most 2.
const FACTORS: usize = 64;

/// Σ log(1 + e^-m) over many margins, with one logarithm per [`FACTORS`] of them.
pub(crate) fn log_losses(margins: impl Iterator<Item = f64>) -> f64 {
    let mut sum = 0.0;
    let mut product = 1.0;
    let mut factors = 0;
    for margin in margins {
        sum += (-margin).max(0.0);
        product *= 1.0 + exp_of_negative(-margin.abs());
        factors += 1;
        if factors == FACTORS {
            sum += f64::ln(product);
            product = 1.0;
            factors = 0;
        }
    }
    sum + f64::ln(product)
}

/// Σ_i c_i log(1 + e^-m_i) of rows with labels c_i y_i, where c_i > 0 is the weight of a row.
pub(crate) fn loss(labels: &[f64], margins: impl Iterator<Item = f64>) -> f64 {
    if labels.iter().all(|label| label.abs() == 1.0) {
        return log_losses(margins);
    }
    labels.iter().zip(margins).map(|(label, margin)| label.abs() * log_loss(margin)).sum()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn exponentials_are_right_to_the_last_places() {
        for i in 0..200_000 {
            let x = -f64::from(i) * 0.003_51;
            let exact = x.max(LOWEST).exp();
            assert!((exp_of_negative(x) / exact - 1.0).abs() < 5e-16, "{x}");
        }
        assert_eq!(exp_of_negative(0.0), 1.0);
        assert_eq!(exp_of_negative(-0.0), 1.0);
        assert!(exp_of_negative(f64::NEG_INFINITY) < 1e-300);
        assert!(exp_of_negative(f64::NAN).is_nan());
    }

    #[test]
    fn large_margins_neither_overflow_nor_vanish() {
        assert_eq!(wrong_probability(-1000.0), 1.0);
        assert!(wrong_probability(1000.0) < 1e-300);
        assert_eq!((wrong_probability(0.0), sigmoid_derivative(0.0)), (0.5, 0.25));
        assert_eq!(log_loss(-1000.0), 1000.0);
        assert!((log_loss(0.0) - 2.0_f64.ln()).abs() < 1e-16);
        for m in [-40.0, -3.0, -0.1, 0.0, 0.4, 7.0, 60.0] {
            let (p, exact) = (wrong_probability(m), 1.0 / (1.0 + m.exp()));
            assert!((p / exact - 1.0).abs() < 1e-15, "{m}");
            assert!((sigmoid_derivative(m.abs()) - p * wrong_probability(-m)).abs() < 1e-16, "{m}");
        }
    }

    #[test]
    fn sums_are_those_of_the_terms() {
        let margins: Vec<f64> = (0..1000).map(|i| f64::from(i % 89) * 0.7 - 30.0).collect();
        let terms: f64 = margins.iter().copied().map(log_loss).sum();
        assert!((log_losses(margins.iter().copied()) / terms - 1.0).abs() < 1e-14);
        assert_eq!(log_losses(std::iter::empty()), 0.0);
        assert_eq!(log_losses([-1e6; 3].into_iter()), 3e6);
        assert!(log_losses([f64::NAN].into_iter()).is_nan());
    }
}
