//! Delayed block proximal gradient with the KKT filter: L1 logistic regression on servers and
//! workers (Li et al., OSDI'14 section 5.1 and NIPS'14).
//!
//! Minimises F(w) = Σ_i c_i log(1 + exp(-y_i (x_i·w + b))) + λ‖w‖₁ + ½ λ₂‖w‖²: sums, not means. The
//! row weights c_i are 1 by default, and λ₂ and the intercept b are 0. The pieces here know no
//! network; their callers move the slices:
//!
//! ```text
//! scheduler   blocks: cut the keys; schedule: order, wait lists, KKT threshold, when to stop
//!    | block, wait list, threshold, reset
//!    v
//! worker      gradient: Worker::gradient --g, u, active--> server  coordinates: BlockSum::add
//!             gradient: Worker::apply    <--w, active--    coordinates: Coordinates::update
//! ```
//!
//! Before the first pass `sketch::tail` drops rare columns, if the job asks for it, and `screen`
//! the columns that are 0 in every solution. `newton` then takes second-order steps in place of
//! passes, or after them where there is a delay or a lossy filter. A job may turn each of them off;
//! what remains is the published method, with a choice of curvature bounds.
//!
//! Convergence with delay 0, however columns overlap: a block step on the safe bound never raises
//! F, and lowers it unless the block is at its minimum; a second-order step goes only as far as F
//! falls by Armijo's rule; screening removes no solution. A run of second-order steps ends when a
//! dual point bounds F - F*. A run of passes ends only with one that began with every column in the
//! filter and gained almost nothing. So weights that stay satisfy the optimality conditions of
//! every column, and F is convex. If columns are equal or dependent, there are many solutions with
//! the same F. The one found, and its number of weights, is arbitrary, but of second-order steps
//! alone it is the same to the bit on any cluster.
//!
//! With a delay F may rise; if `pace` chooses τ, it does so a few times at most, and the run ends
//! as without one.
//!
//! `tests/support/reference.rs` is all of the first-order method, in one thread, with the worst
//! delay that the schedule allows; a cluster's result is compared with it.

pub mod blocks;
pub mod coordinates;
mod filters;
pub mod gradient;
mod job;
mod load;
mod newton;
mod orders;
mod pace;
pub mod proximal;
mod rows;
mod scaling;
pub mod schedule;
mod screen;
mod shard;
mod train;
mod worker;

pub use crate::sketch::Tail;
pub use filters::{FilterTraffic, Filters};
pub use job::{Job, PRIOR_ROUNDS, Progress, Straggle, Times, Trained};
pub use newton::BLOCK_COLUMNS;
pub use shard::{HANDLE, Shard};
pub use train::{Driver, apps, handles, train};
pub use worker::{APP, Dbpg};
