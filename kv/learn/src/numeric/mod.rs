//! Arithmetic that learners share: the logistic loss, sums that do not depend on their order, the
//! threads that compute them, and what computing costs in simulated time.

pub(crate) mod cost;
mod fixed;
pub(crate) mod json;
pub(crate) mod logistic;
mod pool;

pub(crate) use fixed::{Scale, TERM_MAX, Whole, integer};
pub(crate) use pool::Pool;
