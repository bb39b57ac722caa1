//! What a simulated cluster promises, a scenario a promise.

pub(crate) mod aggregation;
mod checkpoints;
mod copies;
mod cut_off;
pub(crate) mod eviction;
mod handed_over;
mod models;
mod moving;
pub(crate) mod rechained;
mod repeats;
