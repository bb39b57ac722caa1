//! Delayed block proximal gradient with the KKT filter: L1 logistic regression on servers and
//! workers (Li et al., OSDI'14 section 5.1 and NIPS'14).
//!
//! Minimises F(w) = Σ_i log(1 + exp(-y_i x_i·w)) + λ‖w‖₁: sums, no intercept. Only the
//! pieces are here, and they know no network; whoever runs them moves the slices:
//!
//! ```text
//! scheduler   blocks: cut the keys; schedule: order, wait lists, KKT threshold, when to stop
//!    | block, wait list, threshold, reset
//!    v
//! worker      gradient: Worker::gradient --g, u, active--> server   proximal: BlockSum::add
//!             gradient: Worker::apply    <---w, active---           proximal: Shard::update
//! ```
//!
//! Between passes `newton` (its dense algebra in `cholesky`) polishes the weights that are not 0, unless a job wants the
//! published method alone.
//!
//! `reference` is all of it but the polish, in one thread, with the worst delay that the schedule allows: what a
//! cluster's result is held against.

pub mod blocks;
mod cholesky;
pub mod example;
pub mod gradient;
mod logistic;
mod newton;
mod polish;
pub mod proximal;
pub mod reference;
pub mod schedule;
mod screen;
mod shard;
mod train;
mod worker;

pub use polish::SUPPORT_MAX;
pub use shard::{HANDLE, Shard};
pub use train::{Job, Progress, Trained, apps, handles, train};
pub use worker::{APP, Dbpg};
