//! Columns of unusual size: each is divided by a power of 2, which is exact, and λ with it.
//!
//! Sums over rows are of integers in multiples of one number, and steps have limits that suit
//! values about 1. A column of unix times beside one of shares would leave no digits to the shares.
//! With x' = x 2^-e the weight is w' = w 2^e, so λ|w| = λ 2^-e |w'| and ½ λ₂ w² = ½ λ₂ 2^-2e w'²:
//! the problem is the same. Columns whose largest |x| is from 2^-[`USUAL_BITS`] to 2^[`USUAL_BITS`]
//! stay as they are, and then a run takes the same steps as without any of this.
//!
//! Everything that computes has divided columns: workers, servers, and the driver's second-order
//! method. Gradients are compared with λ, and weights are told, in the units of the data.
//!
//! Place: load > screening > **scaling** > blocks.

use caravan_kv::Cluster;
use serde::{Deserialize, Serialize};

use super::job::Job;
use super::train::ask_workers;
use super::worker::Order;

/// Powers of 2 between which the largest value of a usual column is.
const USUAL_BITS: i32 = 10;

/// Most columns that are divided: every server thread has a list of them.
const COLUMNS_MAX: usize = 1 << 14;

/// Powers of 2 within which an exponent stays, so that penalties are finite.
const EXPONENTS: std::ops::RangeInclusive<i32> = -300..=1023;

/// Bits of a sum below which a penalty is lost in rounding.
const PENALTY_BITS: i32 = 50;

/// The largest |x| of a column.
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize)]
pub(crate) struct Largest {
    pub(crate) key: u64,
    pub(crate) value: f64,
}

/// What a worker knows of the sizes of its columns.
#[derive(Debug, Clone, Default, Serialize, Deserialize)]
pub(crate) struct Sizes {
    /// The column with the largest value.
    pub(crate) largest: Option<Largest>,
    /// Exponents of the columns' largest values, lowest and highest.
    exponents: Option<(i32, i32)>,
}

impl Sizes {
    /// Of columns whose largest values these are.
    pub(crate) fn of(all: impl Iterator<Item = Largest>) -> Sizes {
        let mut sizes = Sizes::default();
        for column in all.filter(|column| column.value > 0.0) {
            let exponent = exponent(column.value);
            let (low, high) = sizes.exponents.unwrap_or((exponent, exponent));
            sizes.exponents = Some((low.min(exponent), high.max(exponent)));
            sizes.largest = larger(sizes.largest, Some(column));
        }
        sizes
    }

    /// Of the columns of two workers.
    fn and(self, other: Sizes) -> Sizes {
        let widest = |a: (i32, i32), b: (i32, i32)| (a.0.min(b.0), a.1.max(b.1));
        Sizes {
            largest: larger(self.largest, other.largest),
            exponents: [self.exponents, other.exponents].into_iter().flatten().reduce(widest),
        }
    }

    fn are_within(&self, bits: i32) -> bool {
        self.exponents.is_none_or(|(low, high)| -bits <= low && high <= bits)
    }
}

/// Of equal ones that with the lower key.
fn larger(one: Option<Largest>, other: Option<Largest>) -> Option<Largest> {
    let order = |column: &Largest| (column.value, std::cmp::Reverse(column.key));
    [one, other].into_iter().flatten().reduce(|a, b| if order(&b) > order(&a) { b } else { a })
}

/// The e with 2^(e - 1) ≤ `value` < 2^e.
fn exponent(value: f64) -> i32 {
    let below = value.log2().floor() as i32;
    // The logarithm of a number just below a power of 2 may round to it.
    let below = if 2_f64.powi(below.max(-1074)) > value { below - 1 } else { below };
    (below + 1).clamp(*EXPONENTS.start(), *EXPONENTS.end())
}

/// The exponents of the columns that are divided, sorted by key.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
pub(crate) struct Scaling(Vec<(u64, i32)>);

impl Scaling {
    /// Whether no column is divided.
    pub(crate) fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    /// The exponents, sorted by key.
    pub(crate) fn iter(&self) -> impl Iterator<Item = (u64, i32)> {
        self.0.iter().copied()
    }

    fn exponent(&self, key: u64) -> i32 {
        self.0.binary_search_by_key(&key, |(key, _)| *key).map_or(0, |at| self.0[at].1)
    }

    /// What values and weights of the data become: x' = x / factor, w' = w × factor. A gradient in
    /// the units of the data is g' × factor.
    pub(crate) fn factor(&self, key: u64) -> f64 {
        2_f64.powi(self.exponent(key))
    }

    /// λ and λ₂ of a column.
    pub(crate) fn penalties(&self, key: u64, lambda: f64, l2: f64) -> (f64, f64) {
        let down = 2_f64.powi(-self.exponent(key));
        (lambda * down, l2 * down * down)
    }
}

/// Finds the columns of unusual size, with all workers. Also returns the column with the largest
/// value.
///
/// # Errors
/// A feature whose values are so large that its λ is lost in the rounding of sums.
pub(crate) fn find(
    cluster: &mut Cluster,
    job: &Job,
) -> caravan_kv::Result<(Scaling, Option<Largest>)> {
    let sizes: Vec<Sizes> = ask_workers(cluster, &Order::Sizes)?;
    let sizes = sizes.into_iter().fold(Sizes::default(), Sizes::and);
    let mut bits = USUAL_BITS;
    let mut found = Vec::new();
    while !sizes.are_within(bits) {
        found = outside(cluster, bits)?;
        if found.len() <= COLUMNS_MAX {
            break;
        }
        found.clear();
        bits += USUAL_BITS;
    }
    let lost = found.iter().find(|column| {
        let lambda = job.proximal.lambda * 2_f64.powi(-exponent(column.value));
        lambda > 0.0 && lambda < job.positive_weight.max(1.0) * 2_f64.powi(-PENALTY_BITS)
    });
    if let Some(Largest { key, value }) = lost {
        return Err(caravan_kv::Error::Config(format!(
            "feature {key} has values up to {value:e}, beside which lambda {} is lost in rounding: divide the values of feature {key} by about {value:.0e}, or leave it out",
            job.proximal.lambda
        )));
    }
    let scaling = found.iter().map(|column| (column.key, exponent(column.value))).collect();
    Ok((Scaling(scaling), sizes.largest))
}

/// The columns whose largest values, of all workers, are outside of 2^±`bits`, sorted by key; or
/// more than [`COLUMNS_MAX`].
fn outside(cluster: &mut Cluster, bits: i32) -> caravan_kv::Result<Vec<Largest>> {
    let named: Vec<Vec<u64>> = ask_workers(cluster, &Order::Unusual { bits })?;
    let mut keys = named.concat();
    keys.sort_unstable();
    keys.dedup();
    if keys.len() > COLUMNS_MAX {
        return Ok(keys.into_iter().map(|key| Largest { key, value: 0.0 }).collect());
    }
    let all: Vec<Vec<f64>> = ask_workers(cluster, &Order::LargestOf { keys: keys.clone() })?;
    let columns = keys.into_iter().enumerate().map(|(at, key)| {
        let value = all.iter().filter_map(|own| own.get(at)).fold(0.0, |a: f64, b| a.max(*b));
        Largest { key, value }
    });
    Ok(columns.filter(|column| column.value > 0.0 && is_unusual(column.value, bits)).collect())
}

/// Whether a column's largest value is outside of 2^±`bits`.
fn is_unusual(value: f64, bits: i32) -> bool {
    !(-bits..=bits).contains(&exponent(value))
}

/// The keys of columns outside of 2^±`bits`, of those whose largest values these are; one more than
/// [`COLUMNS_MAX`] at most.
pub(crate) fn unusual(all: impl Iterator<Item = Largest>, bits: i32) -> Vec<u64> {
    let outside = all.filter(|column| column.value > 0.0 && is_unusual(column.value, bits));
    outside.map(|column| column.key).take(COLUMNS_MAX + 1).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn columns(values: &[f64]) -> impl Iterator<Item = Largest> {
        (1..).zip(values).map(|(key, &value)| Largest { key, value })
    }

    #[test]
    fn exponents_are_exact_at_powers_of_two() {
        for (value, expected) in [
            (1.0, 1),
            (0.5, 0),
            (1.0_f64.next_down(), 0),
            (2_f64.powi(49).next_down(), 49),
            (2_f64.powi(49), 50),
            (1e300, 997),
            (f64::MAX, 1023),
            (5e-324, -300),
        ] {
            assert_eq!(exponent(value), expected, "{value}");
        }
    }

    #[test]
    fn only_unusual_columns_are_named() {
        let all = [1.0, 1500.0, 0.0, 1e-9, 700.0];
        let sizes = Sizes::of(columns(&all));
        assert_eq!(sizes.exponents, Some((-29, 11)));
        assert_eq!(sizes.largest, Some(Largest { key: 2, value: 1500.0 }));
        assert!(!sizes.are_within(10) && sizes.are_within(29));
        assert!(Sizes::default().are_within(0), "no column is unusual");
        assert_eq!(unusual(columns(&all), 10), [2, 4]);
        let other = Sizes::of(columns(&[1500.0]));
        let both = sizes.and(other);
        assert_eq!(both.largest, Some(Largest { key: 1, value: 1500.0 }), "the lower key");
    }

    #[test]
    fn a_divided_column_has_the_same_penalty() {
        let scaling = Scaling(vec![(3, 25), (7, -40)]);
        for (key, weight) in [(3, 1e-8), (5, 0.7), (7, -3e11)] {
            let inside = weight * scaling.factor(key);
            let (lambda, l2) = scaling.penalties(key, 0.3, 0.7);
            assert_eq!(lambda * inside, 0.3 * weight);
            assert_eq!(l2 * inside * inside, 0.7 * weight * weight);
        }
        assert_eq!(scaling.penalties(5, 0.3, 0.7), (0.3, 0.7));
    }
}
