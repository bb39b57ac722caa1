//! Delayed block proximal gradient with the KKT filter: L1 logistic regression on servers and
//! workers (Li et al., OSDI'14 section 5.1 and NIPS'14).
//!
//! Minimises F(w) = Σ_i c_i log(1 + exp(-y_i (x_i·w + b))) + λ‖w‖₁ + ½ λ₂‖w‖²: sums, not means. The weights c_i of rows are 1
//! unless the job says otherwise, and so are λ₂ and the intercept b 0. Only the pieces are here, and they know no network;
//! whoever runs them moves the slices:
//!
//! ```text
//! scheduler   blocks: cut the keys; schedule: order, wait lists, KKT threshold, when to stop
//!    | block, wait list, threshold, reset
//!    v
//! worker      gradient: Worker::gradient --g, u, active--> server   coordinates: BlockSum::add
//!             gradient: Worker::apply    <---w, active---           coordinates: Coordinates::update (by proximal)
//! ```
//!
//! Before the first pass `tail` drops columns that are rare, if the job says so, and `screen` the columns that are 0 in every
//! solution, and between passes `newton` (its dense algebra in `cholesky`) polishes the weights that are not 0, when that costs
//! less than the passes it saves. A job may do without any of them: then it is the published method alone, with the curvature
//! bound of its choice.
//!
//! Why this converges with delay 0, however columns overlap: a block step on the safe bound never raises F, and lowers it
//! unless the block is at its minimum; a polish is taken only if F falls by Armijo's rule, and only moves weights that are not
//! 0; screening removes no solution. The pass after a polish begins with every column back in the filter, and a run ends only
//! with such a pass that gains nothing to speak of. So weights that stay where they are satisfy the optimality conditions of
//! every column, and F is convex. Where columns equal each other or depend on each other there are many solutions with one F;
//! `centre` then goes to the one in their middle, which does not depend on the cluster or the way there. Without the polish
//! which of them is found, and with how many weights, is chance.
//!
//! With a delay F may rise; where `pace` is left to choose τ, it does so a few times at most, and the run ends as without one.
//!
//! `reference` is all of it but the polish, in one thread, with the worst delay that the schedule allows: what a
//! cluster's result is held against.

pub mod blocks;
mod centre;
mod cholesky;
pub mod coordinates;
mod correlations;
mod cost;
mod data_root;
pub mod example;
mod filters;
pub mod gradient;
mod groups;
mod hessian;
mod job;
mod load;
mod logistic;
mod newton;
mod orders;
mod pace;
mod polish;
pub mod pool;
pub mod proximal;
pub mod reference;
mod rows;
pub mod schedule;
mod screen;
mod shard;
mod support;
mod tail;
mod train;
mod worker;

pub use filters::{FilterTraffic, Filters};
pub use job::{Job, PRIOR_ROUNDS, Progress, Straggle, Times, Trained};
pub use polish::SUPPORT_MAX;
pub use shard::{HANDLE, Shard};
pub use tail::Tail;
pub use train::{Driver, apps, handles, train};
pub use worker::{APP, Dbpg};
