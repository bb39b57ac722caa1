//! Filters make messages smaller: one per file, with its decoder beside its encoder.
//!
//! Path: worker > slicer > **filter** > message > codec > endpoint > transport. A table's
//! specification lists its filters ([`Filters`]), so that both ends know them.
//!
//! Stages of a request, in this order; an answer passes those marked with `<`:
//!
//! | stage | omits | lossy | file |
//! |---|---|---|---|
//! | `skip` | rows, at random; the others are scaled up | yes | `skip.rs` |
//! | `significant` | small changes, which join the next push | no, delayed | `significant.rs` |
//! | `mask` `<` | numbers of values: a bit a row says whether it has any | no | `bits.rs` |
//! | `zero` `<` | values that are 0, for a bit each | no | `zero.rs` |
//! | `narrow` `<` | half of each f64, if all are f32 | no | `narrow.rs` |
//! | `quantize` | all but 1 to 3 bytes of each value, rounded without bias | yes | `quantize.rs` |
//! | own | what filters of your own leave out | as they say | `own.rs` |
//! | `key-cache` | keys that the server received before | no | `key_cache.rs` |
//! | `snappy` `<` | repetitions; keys become differences | no | `caravan_van::wire` |
//!
//! The first six turn a message's values into one block of bytes (`stack` has its layout), which
//! the operation's highest bit announces. The block lists its stages, so a decoder needs only the
//! table's specification. It trusts nothing: it checks sizes first and refuses inconsistent blocks
//! with a reason. If a block would not be shorter, the values are sent unchanged.
//!
//! The pusher and the table's handle decide which rows carry no values: of a KKT filter, only the
//! bits are here; its threshold and reset belong to the algorithm (`caravan_learn::dbpg`).
//!
//! Pulled values are state, and workers with different roundings of it would diverge, so answers
//! are never lossy. A push to a table that replaces rows is state, too; a push to one that adds is
//! a contribution to a sum. So lossy stages need rows of floating-point numbers that are added to
//! ([`Filters::check`] has the rules). [`crate::TableFilters::set_lossless`] suspends them, and
//! [`crate::TableFilters::flush`] sends what is still held back.
//!
//! Every stage counts a message's bytes (keys, numbers of values and values) before and after it
//! ([`Traffic`]), at the encoding and the decoding end.
//!
//! Li et al., "Scaling Distributed Machine Learning with the Parameter Server", OSDI 2014, section
//! 5.1; Li, Andersen, Smola, Yu, "Communication Efficient Distributed Machine Learning with the
//! Parameter Server", NIPS 2014, section 3.

mod bits;
mod draws;
mod key_cache;
mod lru;
mod narrow;
mod noise;
mod own;
mod quantize;
mod signature;
mod significant;
mod skip;
mod spec;
mod stack;
mod table;
mod traffic;
mod zero;

pub(crate) use crate::op::FILTERED;
pub use draws::Draws;
pub use key_cache::{KeyCacheCounters, REMEMBERED_BYTES_MAX};
pub(crate) use key_cache::{List, Outstanding, Remembered, Sent, Signed};
pub(crate) use own::Own;
pub use own::{End, Filter, Named, OwnFilters};
pub use signature::Signer;
pub use spec::Filters;
pub use table::decode_filtered;
pub(crate) use table::{AtServer, AtWorker};
pub use traffic::{Flow, Stage, Traffic};
