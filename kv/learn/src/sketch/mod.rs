//! Sketches at servers: approximate counts of many keys in little memory.
//!
//! [`CountMin`] is plain code. A table with the handle [`HANDLE`] has a sketch at each server
//! thread, for the keys of that thread: a push counts keys, a pull asks for their counts.

mod shard;
mod table;
pub(crate) mod tail;

pub use caravan_kv::sketch::{Cell, CountMin, HANDLE};

pub use self::shard::{Options, handle};
pub use self::table::{Inserts, estimates, halve, merge, spec};
pub use self::tail::Tail;
