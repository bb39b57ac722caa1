//! All tests of training in one program, a module for each subject.
#![allow(clippy::unwrap_used, reason = "tests")]

mod blocks;
mod bounded;
mod clicks;
mod corpus;
mod dbpg;
mod factors;
mod filters;
mod flexps;
mod hints;
mod kmeans;
mod lda;
mod models;
mod objectives;
mod optima;
mod outliving;
mod reading;
mod reference;
mod reference_sets;
mod shared_cluster;
mod simulated;
mod sketch;
mod stores;
mod support;
mod tasks;
mod trainers;
mod unscaled;

#[path = "../../tests/support/vans.rs"]
mod vans;
