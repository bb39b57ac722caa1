//! The tests of the room from outside, a module a subject. `cargo test -p caravan-kv --test kv
//! moving::` runs those of one.
#![allow(clippy::unwrap_used, reason = "tests")]

mod support;

mod allocations;
#[cfg(feature = "arrow")]
mod arrow;
mod cache;
mod checkpoint;
mod commands;
mod consistency;
mod control_plane;
mod corpus;
mod departing;
mod elastic;
mod embedded;
mod eviction;
mod export;
mod failures;
mod fairness;
mod filters;
mod handles;
mod history;
mod increments;
mod jobs;
mod key_cache;
mod lanes;
mod late;
#[cfg(all(target_os = "linux", feature = "shm"))]
mod lent;
mod membership;
mod models;
mod observing;
mod placement;
mod push_pull;
mod readme;
mod refusals;
mod requests;
mod returning;
mod runs;
mod same_on_every_van;
mod sharing;
mod sim;
mod simulated;
mod tables;
mod tasks;
mod vectors;
mod waiting;
