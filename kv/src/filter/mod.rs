//! What makes messages smaller: one filter a file, its decoder beside its encoder.
//!
//! Path: worker > slicer > **filter** > message > codec > endpoint > transport. Compression of whole sections is the codec's
//! business (`caravan_van::wire`).
//!
//! | filter | what it saves | file |
//! |---|---|---|
//! | key caching | keys that the server was sent before | `key_cache.rs` |

mod key_cache;
mod lru;
mod signature;

pub use key_cache::{KeyCacheCounters, REMEMBERED_BYTES_MAX};
pub(crate) use key_cache::{List, Outstanding, Remembered, Sent, Signed};
pub use signature::Signer;
