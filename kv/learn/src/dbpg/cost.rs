//! What a worker's computing costs on one core, for networks whose time is simulated: counts times constants, so that a run is
//! the same on every machine. Real time needs none of this.
//!
//! The constants are low: `caravan bench scale --calibrate`, which holds what they say of a run against what the same run takes where
//! it is called, finds about half of it on one core of an Intel Xeon of 2023. What a column costs whatever its length (its key and its place in the
//! message, at the worker as at the server) is no part of them: it goes by bytes, as the rest of what messages cost.

use std::time::Duration;

use super::gradient::Columns;

/// For each non-zero of a column whose gradient and curvature are computed.
const GRADIENT_NANOS: f64 = 11.0;

/// For each non-zero of a column whose weight changes.
const UPDATE_NANOS: f64 = 8.0;

/// For each row, when the loss is summed up.
const ROW_NANOS: f64 = 20.0;

/// Gradients and curvatures of `computed`.
pub(super) fn gradient(columns: &Columns<'_>, computed: impl Iterator<Item = usize>) -> Duration {
    nanos(GRADIENT_NANOS, nonzeros(columns, computed))
}

/// New weights for `changed`.
pub(super) fn update(columns: &Columns<'_>, changed: impl Iterator<Item = usize>) -> Duration {
    nanos(UPDATE_NANOS, nonzeros(columns, changed))
}

/// The loss of `rows`.
pub(super) fn loss(rows: usize) -> Duration {
    nanos(ROW_NANOS, rows)
}

fn nonzeros(columns: &Columns<'_>, some: impl Iterator<Item = usize>) -> usize {
    some.map(|j| columns.starts[j + 1] - columns.starts[j]).sum()
}

fn nanos(each: f64, count: usize) -> Duration {
    Duration::from_nanos((each * count as f64) as u64)
}
