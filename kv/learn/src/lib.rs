//! What runs on `kv`: data readers and learning algorithms.
//!
//! ```text
//! files -> data::source (lines) -> data::libsvm (rows) -> Examples -> columns -> an algorithm -> Model -> predict, metrics
//! ```
//!
//! Everything in [`data`], [`model`] and [`metrics`] is plain single-machine code that knows nothing of servers: it can be
//! used, and is tested, without a cluster.

#![forbid(unsafe_code)]

pub mod data;
pub mod error;
pub mod metrics;
pub mod model;
mod replace_file;

pub use error::{Error, Result};
