//! What workers do in a run, a file a workload.

pub(super) mod adds;
pub(super) mod bits;
pub(super) mod chunks;
pub(super) mod counts;
pub(super) mod moves;
pub(super) mod parts;
pub(super) mod rows;
