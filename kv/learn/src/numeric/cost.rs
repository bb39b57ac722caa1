//! The cost of a worker's computation on one core, for simulated networks: counts times constants,
//! so that a run is the same on every machine. Real time needs none of this.
//!
//! The constants are those of kv/learn/docs/decisions/0007-simulated-computing.md;
//! `caravan bench scale --calibrate` compares them with the machine it runs on. A column's cost in
//! messages, at the worker and the server, is not included: it depends on bytes.

use std::time::Duration;

use crate::data::Columns;

/// Per column whose gradient and curvature are computed, and per non-zero of it.
const COLUMN_NANOS: f64 = 18.0;
const GRADIENT_NANOS: f64 = 10.0;

/// Per non-zero of a column whose weight changes.
const UPDATE_NANOS: f64 = 20.0;

/// Per row, when the loss is summed.
const ROW_NANOS: f64 = 11.0;

/// Gradients and curvatures of `computed`.
pub(crate) fn gradient(columns: &Columns, computed: impl Iterator<Item = usize>) -> Duration {
    let (count, nonzeros) = count(columns, computed);
    gradient_of(count, nonzeros)
}

/// Gradients of `count` columns with `nonzeros`.
pub(crate) fn gradient_of(count: usize, nonzeros: usize) -> Duration {
    nanos(COLUMN_NANOS, count) + nanos(GRADIENT_NANOS, nonzeros)
}

/// New weights for `changed`.
pub(crate) fn update(columns: &Columns, changed: impl Iterator<Item = usize>) -> Duration {
    update_of(count(columns, changed).1)
}

/// New weights for columns with `nonzeros`.
pub(crate) fn update_of(nonzeros: usize) -> Duration {
    nanos(UPDATE_NANOS, nonzeros)
}

/// The loss of `rows`.
pub(crate) fn loss(rows: usize) -> Duration {
    nanos(ROW_NANOS, rows)
}

/// Number of columns, and of their non-zeros.
fn count(columns: &Columns, some: impl Iterator<Item = usize>) -> (usize, usize) {
    let length = |j: usize| columns.before(j + 1) - columns.before(j);
    some.fold((0, 0), |(count, nonzeros), j| (count + 1, nonzeros + length(j)))
}

fn nanos(each: f64, count: usize) -> Duration {
    Duration::from_nanos((each * count as f64) as u64)
}
