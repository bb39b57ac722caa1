//! Delayed block proximal gradient with the KKT filter, for logistic loss with an L1 penalty.
pub mod blocks;
pub mod gradient;
pub mod proximal;
pub mod reference;
pub mod schedule;
