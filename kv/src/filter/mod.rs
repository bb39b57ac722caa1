//! What makes messages smaller: one filter a file, its decoder beside its encoder.
//!
//! Path: worker > slicer > **filter** > message > codec > endpoint > transport. A table says which of them it has
//! ([`Filters`] in its specification), so that both ends know; one without any takes the path as if there were none.
//!
//! Stages of a request, in this order; an answer takes those marked with `<`:
//!
//! | stage | leaves out | lossy | file |
//! |---|---|---|---|
//! | `skip` | rows, each with a probability; the others are scaled up | yes | `skip.rs` |
//! | `significant` | rows that have changed little so far; they are kept, and added to the next push | until then | `significant.rs` |
//! | `mask` `<` | the numbers of values: a bit a row says whether it carries any | no | `bits.rs` |
//! | `zero` `<` | values that are 0, for a bit each | no | `zero.rs` |
//! | `narrow` `<` | half of each f64, where all are f32 | no | `narrow.rs` |
//! | `quantize` | all but 1 to 3 bytes of each value, rounded at random without bias | yes | `quantize.rs` |
//! | `key-cache` | keys that the server was sent before | no | `key_cache.rs` |
//! | `snappy` `<` | what repeats; differences stand for keys | no | the codec, `caravan_van::wire` |
//!
//! The first six make one block of bytes of a message's values (`stack` has its layout), which the operation's highest
//! bit announces. It says what was done to it, so a decoder needs to know no more than the table; and it believes nothing:
//! sizes come first, and what doesn't add up is refused with a reason. Where a block would not be shorter than the values,
//! they go as they are.
//!
//! Which rows carry nothing is up to whoever pushes and to the table's handle: of a KKT filter the bits are here, its threshold
//! and its reset are the algorithm's (`caravan_learn::dbpg`).
//!
//! What is pulled is state, and workers that were told different roundings of it would go separate ways: so nothing lossy is done to answers.
//! What is pushed to a table that replaces rows is state, too; what is pushed to one that adds is a contribution, of which the
//! sum counts. So lossy stages need rows to which floating-point numbers are added ([`Filters::check`] has the rules).
//! [`crate::Worker::set_lossless`] suspends them, and [`crate::Worker::flush`] sends what is still kept back.
//!
//! Every stage counts the bytes of a message's keys, numbers of values and values before and behind it ([`Traffic`]), at the
//! end that encodes and at the end that decodes.
//!
//! Li et al., "Scaling Distributed Machine Learning with the Parameter Server", OSDI 2014, section 5.1; Li, Andersen, Smola,
//! Yu, "Communication Efficient Distributed Machine Learning with the Parameter Server", NIPS 2014, section 3.

mod bits;
mod draws;
mod key_cache;
mod lru;
mod narrow;
mod quantize;
mod signature;
mod significant;
mod skip;
mod spec;
mod stack;
mod table;
mod traffic;
mod zero;

pub use draws::Draws;
pub use key_cache::{KeyCacheCounters, REMEMBERED_BYTES_MAX};
pub(crate) use key_cache::{List, Outstanding, Remembered, Sent, Signed};
pub use signature::Signer;
pub use spec::Filters;
pub(crate) use stack::FILTERED;
pub use stack::decode_block;
pub(crate) use table::{AtServer, AtWorker};
pub use traffic::{Flow, Stage, Traffic};
