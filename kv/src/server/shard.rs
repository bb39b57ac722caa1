//! What a server thread holds of a table: the contract between the loop and a table's update rule.
//!
//! Path: codec > thread > **shard** > store > answer. A shard is owned by one thread: no locks.

use caravan_van::{Buffer, KeyRange, Message, Pool, Shared};

use super::found::FoundRows;
use crate::consistency::Admission;
use crate::filter::List;

/// A request for some keys of a shard. The keys are strictly ascending and within the shard's range.
#[derive(Debug, Clone, Copy)]
pub struct Request<'a> {
    /// Node id of the worker.
    pub sender: u32,
    /// The worker's iteration.
    pub clock: u64,
    /// Key range of the message.
    pub range: KeyRange,
    /// `[n]`.
    pub keys: &'a [u64],
    /// `[n]` for tables whose keys have their own number of values, else empty.
    pub lengths: &'a [u32],
    /// Pushed values as bytes, 8-byte aligned; empty for a pull.
    pub values: &'a [u8],
    /// Whether it pushes.
    pub pushes: bool,
    /// Whether it pulls, after the push if it does both.
    pub pulls: bool,
    /// Beside keys that the server remembers: where the shard may note the rows that it found for them.
    pub rows: Option<&'a FoundRows>,
}

impl<'a> Request<'a> {
    /// What a message asks for, about the keys that it names, or those of `list`.
    #[inline]
    pub(crate) fn of(
        message: &'a Message,
        list: Option<&'a List>,
        (pushes, pulls): (bool, bool),
    ) -> Self {
        Request {
            sender: message.sender(),
            clock: message.clock(),
            range: message.range(),
            keys: list.map_or_else(|| message.keys(), |list| &list.keys),
            lengths: message.lengths(),
            values: message.values(),
            pushes,
            pulls,
            rows: list.map(|list| &list.rows),
        }
    }
}

/// How a shard answers a pull.
#[derive(Debug)]
pub enum Pulled<'a> {
    /// With these values, which are copied.
    Stored(&'a [u8]),
    /// With that many bytes, which [`Shard::read`] writes.
    Bytes(usize),
    /// With values that lie together, sent from there. The shard does not write them while anybody else holds them.
    Shared(Shared),
    /// With that many bytes, which [`Shard::read`] writes, and the [`Shard::lengths`] of the keys.
    Varying(usize),
}

/// One thread's part of a table: its rows and the rule for pushes.
pub trait Shard {
    /// Whether a request may be executed now.
    fn admit(&self, _request: &Request<'_>) -> Admission {
        Admission::Now
    }

    /// What parked requests wait for; never falls.
    fn clock(&self) -> u64 {
        0
    }

    /// Whether a push looks at each of its values once, and nothing but numbers depends on them. Then they may be read from memory
    /// that their sender can still write; others are copied first.
    fn reads_once(&self) -> bool {
        false
    }

    /// Applies pushed values.
    ///
    /// # Errors
    /// Says what is wrong with them; nothing has been applied then.
    fn push(&mut self, request: &Request<'_>, memory: &Pool) -> Result<(), String>;

    /// Whether the values of this push can become what the shard stores, without a copy, by [`Shard::adopt`].
    fn adopts(&self, _request: &Request<'_>) -> bool {
        false
    }

    /// Applies a push of one key that [`Shard::adopts`]: keeps `values` itself.
    ///
    /// # Errors
    /// As [`Shard::push`].
    fn adopt(&mut self, _key: u64, _values: Buffer, _memory: &Pool) -> Result<(), String> {
        Err("this shard copies what is pushed".to_owned())
    }

    /// Says how a pull will be answered.
    ///
    /// # Errors
    /// Says why it can't be.
    fn pull(&mut self, request: &Request<'_>) -> Result<Pulled<'_>, String>;

    /// Writes the answer to the pull that was just asked for; `into` is 8-byte aligned.
    fn read(&mut self, request: &Request<'_>, into: &mut [u8]);

    /// Number of values of each key of the pull that was just asked for.
    fn lengths(&self) -> &[u32] {
        &[]
    }

    /// Does whatever the table's handle offers besides push and pull.
    ///
    /// # Errors
    /// Says what is wrong with it.
    fn command(&mut self, _sender: u32, _body: &[u8]) -> Result<Vec<u8>, String> {
        Err("this table's handle takes no commands".to_owned())
    }
}
