//! Initial values of rows: those of a new row, and of a pulled row that does not exist.
//!
//! Path: codec > thread > shard > store (**initial**) > answer.

use super::handle::Number;
use crate::filter::Draws;
use crate::refusal::{Refusal, Refused};
use crate::table::{Initial, TableSpec};

/// A table's [`Initial`] values as numbers of its type.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(super) enum Start<V> {
    Zero,
    Constant(V),
    /// Seed of the table's draws, and the bounds.
    Uniform {
        seed: u64,
        low: f64,
        high: f64,
    },
}

impl<V: Number> Start<V> {
    /// Initial values of `spec`.
    ///
    /// # Errors
    /// A text with the initial value that does not suit the table, and with what does.
    pub(super) fn new(spec: &TableSpec) -> Result<Self, Refused> {
        let refuse = |why: &str| {
            Err(Refusal::Shape.because(format!("table {} cannot start with {why}", spec.name)))
        };
        match &spec.initial {
            Initial::Zero => Ok(Start::Zero),
            Initial::Constant(text) => match parse(text) {
                Some(value) => Ok(Start::Constant(value)),
                None => refuse(&format!("the constant {text:?}, which must be a {}", V::NAME)),
            },
            &Initial::Uniform { low, high, seed } => {
                if spec.value.is_integer() {
                    return refuse("random integers: uniform values are f32, f64, f16 or bf16");
                }
                let are_finite = [low, high].iter().all(|bound| V::from_f64(*bound).is_finite());
                if low <= high && are_finite {
                    let seed = Draws::new(seed, u64::from(spec.id)).next_bits();
                    return Ok(Start::Uniform { seed, low, high });
                }
                refuse(&format!(
                    "uniform values from {low:?} to {high:?}: low must be at most high, and both finite as {}",
                    V::NAME
                ))
            }
        }
    }

    /// Whether new memory, which is zero, holds the initial values.
    pub(super) fn is_zero(&self) -> bool {
        matches!(self, Start::Zero)
    }

    /// Writes the initial values of the row of `key`, which depend on nothing but the table and the
    /// key.
    #[inline]
    pub(super) fn fill(&self, key: u64, row: &mut [V]) {
        match *self {
            Start::Zero => row.fill(V::default()),
            Start::Constant(value) => row.fill(value),
            Start::Uniform { seed, low, high } => {
                let mut draws = Draws::new(seed, key);
                row.fill_with(|| {
                    let share = draws.next_unit();
                    V::from_f64(low * (1.0 - share) + high * share)
                });
            }
        }
    }
}

/// The number that `text` stands for, if the type has it: "1e9" is no `f16`, "inf" is.
fn parse<V: Number>(text: &str) -> Option<V> {
    let value: V = text.parse().ok()?;
    let is_overflow = !value.is_finite() && text.parse::<f64>().is_ok_and(f64::is_finite);
    (!is_overflow).then_some(value)
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, reason = "tests")]
    use super::*;
    use crate::table::ValueType;
    use half::f16;

    fn spec(value: ValueType, initial: Initial) -> TableSpec {
        TableSpec::new(1, "t", value, 4).initial(initial)
    }

    fn uniform(low: f64, high: f64, seed: u64) -> Initial {
        Initial::Uniform { low, high, seed }
    }

    #[test]
    fn constants_are_exact_in_every_type() {
        let constant = |value, text: &str| spec(value, Initial::Constant(text.to_owned()));
        let most = spec(ValueType::I64, Initial::constant(i64::MAX));
        assert_eq!(Start::new(&most), Ok(Start::Constant(i64::MAX)));
        let least = spec(ValueType::F32, Initial::constant(f32::NEG_INFINITY));
        assert_eq!(Start::new(&least), Ok(Start::Constant(f32::NEG_INFINITY)));
        let third = Start::new(&spec(ValueType::F32, Initial::constant(1.0_f32 / 3.0)));
        assert_eq!(third, Ok(Start::Constant(1.0_f32 / 3.0)));
        for text in ["256", "-1", "0.5", "", "x"] {
            let error = Start::<u8>::new(&constant(ValueType::U8, text)).unwrap_err();
            assert!(
                error.reason.contains(&format!("{text:?}")) && error.reason.contains("a u8"),
                "{error}"
            );
        }
        assert!(Start::<f16>::new(&constant(ValueType::F16, "1e9")).is_err());
    }

    #[test]
    fn random_values_depend_on_seed_table_key_and_column_only() {
        let draw = |seed, id, key| {
            let spec = TableSpec { id, ..spec(ValueType::F64, uniform(-0.5, 0.25, seed)) };
            let mut row = [0.0; 4];
            Start::new(&spec).unwrap().fill(key, &mut row);
            row
        };
        assert_eq!(draw(1, 2, 3), draw(1, 2, 3));
        let others = [draw(1, 2, 3), draw(2, 2, 3), draw(1, 3, 3), draw(1, 2, 4)].concat();
        let mut sorted = others.clone();
        sorted.sort_unstable_by(f64::total_cmp);
        sorted.dedup();
        assert_eq!(sorted.len(), others.len(), "all are different: {others:?}");
        let mean = (0..10_000).flat_map(|key| draw(1, 2, key)).sum::<f64>() / 40_000.0;
        assert!((0..1000).flat_map(|key| draw(1, 2, key)).all(|x| (-0.5..=0.25).contains(&x)));
        // Five standard deviations.
        assert!((mean + 0.125).abs() < 5.0 * 0.75 / (12.0 * 40_000.0_f64).sqrt(), "{mean}");
    }

    #[test]
    fn bounds_that_cannot_be_are_refused_with_the_reason() {
        for (low, high, says) in
            [(1.0, 0.0, "1.0 to 0.0"), (f64::NAN, 0.0, "NaN"), (0.0, 1e6, "finite as f16")]
        {
            let error = Start::<f16>::new(&spec(ValueType::F16, uniform(low, high, 0)));
            assert!(error.as_ref().unwrap_err().reason.contains(says), "{error:?}");
        }
        let error = Start::<i32>::new(&spec(ValueType::I32, uniform(0.0, 9.0, 0))).unwrap_err();
        assert!(error.reason.contains("uniform values are f32"), "{error}");
        assert!(Start::<f64>::new(&spec(ValueType::F64, uniform(-1e308, 1e308, 0))).is_ok());
    }
}
