//! What a worker's computing costs on one core, for networks whose time is simulated: counts times constants, so that a run is
//! the same on every machine. Real time needs none of this.
//!
//! kv/learn/docs/decisions/0007-simulated-computing.md says where the constants come from. `caravan bench scale --calibrate`
//! compares them with this machine. They leave out what a column costs in messages: that goes by bytes.

use std::time::Duration;

use crate::data::Columns;

/// For each column whose gradient and curvature are computed, and for each of its non-zeros.
const COLUMN_NANOS: f64 = 18.0;
const GRADIENT_NANOS: f64 = 10.0;

/// For each non-zero of a column whose weight changes.
const UPDATE_NANOS: f64 = 20.0;

/// For each row, when the loss is summed up.
const ROW_NANOS: f64 = 11.0;

/// Gradients and curvatures of `computed`.
pub(super) fn gradient(columns: &Columns, computed: impl Iterator<Item = usize>) -> Duration {
    let (count, nonzeros) = count(columns, computed);
    nanos(COLUMN_NANOS, count) + nanos(GRADIENT_NANOS, nonzeros)
}

/// New weights for `changed`.
pub(super) fn update(columns: &Columns, changed: impl Iterator<Item = usize>) -> Duration {
    nanos(UPDATE_NANOS, count(columns, changed).1)
}

/// The loss of `rows`.
pub(super) fn loss(rows: usize) -> Duration {
    nanos(ROW_NANOS, rows)
}

/// How many columns, and how many non-zeros they have.
fn count(columns: &Columns, some: impl Iterator<Item = usize>) -> (usize, usize) {
    let length = |j: usize| columns.before(j + 1) - columns.before(j);
    some.fold((0, 0), |(count, nonzeros), j| (count + 1, nonzeros + length(j)))
}

fn nanos(each: f64, count: usize) -> Duration {
    Duration::from_nanos((each * count as f64) as u64)
}
