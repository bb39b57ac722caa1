//! Data readers and learning algorithms on top of `kv`.
//!
//! ```text
//! files -> data::source (lines) -> data::read (rows) -> Examples
//!       -> columns -> an algorithm -> Model -> predict, metrics
//! ```
//!
//! [`data`], [`model`], [`metrics`] and [`sketch`] are plain single-machine code without servers:
//! they can be used, and are tested, without a cluster.
//!
//! ```
//! use caravan_learn::data;
//! use caravan_learn::metrics;
//! use caravan_learn::model::{Model, predict};
//!
//! let examples = data::parse("example".as_ref(), b"+1 3:1 7:0.5\n-1 7:2\n")?;
//! let model = Model::new(vec![(3, 1.5), (7, -0.5)])?;
//! let margins = predict(&model, &examples);
//! assert_eq!(margins, [1.25, -1.0]);
//! assert_eq!(metrics::auc(&examples.labels, &margins), Some(1.0));
//! # Ok::<(), caravan_learn::Error>(())
//! ```

#![forbid(unsafe_code)]

mod copies;
pub mod data;
mod data_root;
pub mod dbpg;
pub mod error;
pub mod fm;
pub mod kmeans;
pub mod lda;
pub mod linreg;
pub mod memory;
pub mod metrics;
pub mod mf;
pub mod model;
mod numeric;
pub mod replace_file;
pub mod sgd;
pub mod sketch;
pub mod task;
pub mod trainer;

pub use error::{Error, Result};

/// Apps that workers need for every algorithm of this crate.
pub fn apps(apps: caravan_kv::Apps) -> caravan_kv::Apps {
    let (models, apps) = task::ModelStore::with(dbpg::apps(apps));
    let apps = trainer::app::<sgd::Sgd>(kmeans::apps(apps, &models));
    let apps = trainer::app::<linreg::LinReg>(trainer::app::<lda::Lda>(apps));
    trainer::app::<fm::Fm>(trainer::app::<mf::Mf>(apps))
}
