//! Quality of margins: log loss, areas under the ROC and the precision-recall curve, accuracy.
//! Plain means, on one thread.
//!
//! `labels: [n]`, each +1 or -1, and `margins: [n]`; different lengths are a bug of the caller and
//! panic. The result is `None` where it has no meaning: without rows, or with a NaN margin.

/// A label: a number of any type.
pub trait Label: Copy + Into<f64> {}

impl<T: Copy + Into<f64>> Label for T {}

/// Root of the mean squared error, where labels are any numbers.
///
/// # Panics
/// If the lengths differ.
pub fn rmse(labels: &[impl Label], margins: &[f64]) -> Option<f64> {
    check(labels, margins)?;
    let errors = labels.iter().zip(margins).map(|(&label, margin)| (label.into() - margin).powi(2));
    Some((errors.sum::<f64>() / labels.len() as f64).sqrt())
}

/// Mean of `log(1 + exp(-label * margin))`, in nats. Exact to rounding for margins of any size.
///
/// # Panics
/// If the lengths differ.
pub fn log_loss(labels: &[impl Label], margins: &[f64]) -> Option<f64> {
    check(labels, margins)?;
    let losses = labels.iter().zip(margins).map(|(&label, &margin)| {
        let z = -label.into() * margin;
        z.max(0.0) + (-z.abs()).exp().ln_1p()
    });
    Some(losses.sum::<f64>() / labels.len() as f64)
}

/// The probability that a random positive row has a larger margin than a random negative one; a tie
/// counts half.
///
/// Exact: pairs are counted in integers. Also `None` if one of the classes is missing.
///
/// # Panics
/// If the lengths differ.
pub fn auc(labels: &[impl Label], margins: &[f64]) -> Option<f64> {
    check(labels, margins)?;
    let mut positives = 0_u128;
    let mut negatives = 0_u128;
    let mut half_wins = 0_u128;
    for (tied_positives, tied_negatives) in ties(labels, margins) {
        // Every positive so far has a larger margin than these negatives.
        half_wins += tied_negatives * (2 * positives + tied_positives);
        positives += tied_positives;
        negatives += tied_negatives;
    }
    let pairs = positives * negatives;
    (pairs > 0).then(|| half_wins as f64 / (2 * pairs) as f64)
}

/// The area under the precision-recall curve as average precision: Σ (R_n - R_{n-1}) P_n over all
/// distinct margins, largest first, where P_n is the share of positives among the rows with at
/// least that margin and R_n is those positives' share of all positives.
///
/// Points are not joined by lines, because precision between them is not linear in recall (Davis
/// and Goadrich, ICML 2006). Rows with equal margins count together, whatever their order. Also
/// `None` without positives.
///
/// # Panics
/// If the lengths differ.
pub fn pr_auc(labels: &[impl Label], margins: &[f64]) -> Option<f64> {
    check(labels, margins)?;
    let mut positives = 0;
    let mut rows = 0;
    let mut sum = 0.0;
    for (tied_positives, tied_negatives) in ties(labels, margins) {
        positives += tied_positives;
        rows += tied_positives + tied_negatives;
        sum += tied_positives as f64 * (positives as f64 / rows as f64);
    }
    (positives > 0).then(|| sum / positives as f64)
}

/// Positives and negatives of each distinct margin, largest first.
fn ties(labels: &[impl Label], margins: &[f64]) -> Vec<(u128, u128)> {
    let mut order: Vec<usize> = (0..margins.len()).collect();
    order.sort_unstable_by(|&a, &b| margins[b].total_cmp(&margins[a]));
    // `==` and not `total_cmp`: 0 and -0 tie.
    let tied = order.chunk_by(|&a, &b| margins[a] == margins[b]);
    let counts = tied.map(|rows| {
        let positives = rows.iter().filter(|&&row| labels[row].into() > 0.0).count();
        (positives as u128, (rows.len() - positives) as u128)
    });
    counts.collect()
}

/// The share of rows whose margin has the sign of the label; a margin of 0 predicts -1.
///
/// # Panics
/// If the lengths differ.
pub fn accuracy(labels: &[impl Label], margins: &[f64]) -> Option<f64> {
    check(labels, margins)?;
    let right = labels
        .iter()
        .zip(margins)
        .filter(|&(&label, &margin)| (label.into() > 0.0) == (margin > 0.0));
    Some(right.count() as f64 / labels.len() as f64)
}

/// `None` if there is nothing to measure.
fn check(labels: &[impl Label], margins: &[f64]) -> Option<()> {
    assert_eq!(labels.len(), margins.len(), "one margin a label");
    (!labels.is_empty() && !margins.iter().any(|margin| margin.is_nan())).then_some(())
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

    use super::*;
    use proptest::prelude::*;

    #[test]
    fn rmse_of_known_errors() {
        assert_eq!(rmse(&[2.5, -1.0], &[-0.5, 3.0]), Some(12.5_f64.sqrt()));
        assert_eq!(rmse(&[0.0; 0], &[]), None);
    }

    #[test]
    fn log_loss_is_stable() {
        assert_eq!(log_loss(&[1, -1], &[0.0, 0.0]), Some(std::f64::consts::LN_2));
        assert_eq!(log_loss(&[1, -1], &[800.0, -1e300]), Some(0.0));
        assert_eq!(log_loss(&[-1, 1], &[800.0, -400.0]), Some(600.0));
        assert!((log_loss(&[1], &[40.0]).unwrap() / (-40_f64).exp() - 1.0).abs() < 1e-15);
        assert_eq!(log_loss(&[-1], &[f64::INFINITY]), Some(f64::INFINITY));
    }

    #[test]
    fn auc_of_known_orders() {
        assert_eq!(auc(&[-1, -1, 1, 1], &[1.0, 2.0, 3.0, 4.0]), Some(1.0));
        assert_eq!(auc(&[1, 1, -1, -1], &[1.0, 2.0, 3.0, 4.0]), Some(0.0));
        assert_eq!(auc(&[1, -1, 1, -1], &[5.0; 4]), Some(0.5));
        assert_eq!(auc(&[-1, 1], &[0.0, -0.0]), Some(0.5));
        assert_eq!(auc(&[-1, 1, -1, 1], &[0.1, 0.35, 0.4, 0.8]), Some(0.75));
    }

    /// Computed by hand, and the first as in scikit-learn's documentation of
    /// `average_precision_score`.
    #[test]
    fn pr_auc_of_known_orders() {
        let near = |labels: &[i8], margins: &[f64], expected: f64| {
            let found = pr_auc(labels, margins).unwrap();
            assert!((found - expected).abs() < 1e-15, "{found} is not {expected}");
        };
        near(&[-1, -1, 1, 1], &[0.1, 0.4, 0.35, 0.8], 1.0 / 2.0 + 1.0 / 2.0 * 2.0 / 3.0);
        near(&[-1, -1, 1, 1], &[1.0, 2.0, 3.0, 4.0], 1.0);
        near(&[1, -1, -1, -1], &[1.0, 2.0, 3.0, 4.0], 1.0 / 4.0);
        // All tied: at any threshold, precision is the share of positives.
        near(&[1, -1, -1, 1, -1], &[5.0; 5], 2.0 / 5.0);
        // At 3: 1 positive of 1 row; down to 2: 3 of 4; to 0, which -0 ties with: 4 of 7.
        let labels = [1, 1, -1, 1, -1, 1, -1, -1];
        let margins = [3.0, 2.0, 2.0, 2.0, 1.0, 0.0, -0.0, -2.0];
        near(&labels, &margins, (1.0 + 2.0 * (3.0 / 4.0) + 4.0 / 7.0) / 4.0);
        let backwards: (Vec<i8>, Vec<f64>) = labels.into_iter().zip(margins).rev().unzip();
        assert_eq!(pr_auc(&backwards.0, &backwards.1), pr_auc(&labels, &margins));
    }

    #[test]
    fn accuracy_counts_signs() {
        assert_eq!(accuracy(&[1, 1, -1, -1], &[2.0, 0.0, 0.0, -1.0]), Some(0.75));
    }

    #[test]
    fn nothing_to_measure_is_none() {
        for metric in [log_loss, auc, pr_auc, accuracy] {
            assert_eq!(metric(&[], &[]), None);
            assert_eq!(metric(&[1, -1], &[0.0, f64::NAN]), None);
        }
        assert_eq!(auc(&[1, 1], &[0.0, 1.0]), None);
        assert_eq!(auc(&[-1], &[0.0]), None);
        assert_eq!(pr_auc(&[-1, -1], &[0.0, 1.0]), None);
        assert_eq!(pr_auc(&[1, 1], &[0.0, 1.0]), Some(1.0));
    }

    proptest! {
        #[test]
        fn auc_equals_counting_all_pairs(rows in prop::collection::vec((any::<bool>(), -3_i8..3), 0..40)) {
            let labels: Vec<i8> = rows.iter().map(|&(positive, _)| if positive { 1 } else { -1 }).collect();
            let margins: Vec<f64> = rows.iter().map(|&(_, margin)| f64::from(margin)).collect();
            let (mut wins, mut pairs) = (0.0, 0.0);
            for (&(positive, high), &(negative, low)) in rows.iter().flat_map(|a| rows.iter().map(move |b| (a, b))) {
                if positive && !negative {
                    pairs += 1.0;
                    wins += if high > low { 1.0 } else if high == low { 0.5 } else { 0.0 };
                }
            }
            prop_assert_eq!(auc(&labels, &margins), (pairs > 0.0).then(|| wins / pairs));
        }
    }
}
