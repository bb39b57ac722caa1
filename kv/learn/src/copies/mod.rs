//! What the copies of a shard get from it: its state once, and then sums of workers' pushes.

pub(crate) mod image;
pub(crate) mod sums;
