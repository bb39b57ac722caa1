//! A shard, one server thread's part of a table: the contract between the loop and the update rule.
//!
//! Path: codec > thread > tables > **shard** > store > answer. One thread owns a shard, so there
//! are no locks.

use caravan_van::{Buffer, KeyRange, Message, Pool, Shared};

use super::found::FoundRows;
use super::handle::Origin;
use super::owed::Answers;
use crate::consistency::Admission;
use crate::filter::List;
use crate::node::Token;
use crate::op::Op;
use crate::refusal::{Refusal, Refused};

/// A request for keys of a shard. They are strictly ascending and within the shard's range.
#[derive(Debug, Clone, Copy)]
pub struct Request<'a> {
    /// Node id of the worker.
    pub sender: u32,
    /// The worker's command number ([`Worker::set_command`](crate::Worker::set_command)).
    pub command: i32,
    /// The worker's iteration.
    pub clock: u64,
    /// Key range of the message.
    pub range: KeyRange,
    /// `[n]`.
    pub keys: &'a [u64],
    /// `[n]` for tables whose rows have their own lengths, else empty.
    pub lengths: &'a [u32],
    /// Pushed values as bytes, 8-byte aligned; empty for a pull.
    pub values: &'a [u8],
    /// Whether it pushes.
    pub pushes: bool,
    /// Whether it pulls; the push comes first if it does both.
    pub pulls: bool,
    /// For keys that the server remembers: the shard may store their rows here.
    pub rows: Option<&'a FoundRows>,
}

impl Request<'_> {
    /// What the records of a message of node `sender` with operation `op` have in common.
    #[inline]
    pub(crate) fn of(message: &Message, op: Op, sender: u32) -> Self {
        Request {
            sender,
            command: message.command(),
            clock: message.clock(),
            range: message.range(),
            keys: &[],
            lengths: &[],
            values: &[],
            pushes: op.pushes(),
            pulls: op.pulls(),
            rows: None,
        }
    }

    /// This with the record at hand of the message, whose keys are in `list` if it names one.
    #[inline(always)]
    pub(crate) fn with_record<'a>(self, message: &'a Message, list: Option<&'a List>) -> Request<'a>
    where
        Self: 'a,
    {
        let keys = list.map_or(message.keys(), |list| &list.keys);
        let lengths = match list {
            Some(list) if list.is_implied => &[],
            _ => message.lengths(),
        };
        Request { keys, lengths, values: message.values(), ..self }
    }

    /// Where it comes from.
    #[inline]
    pub fn origin(&self) -> Origin {
        Origin { sender: self.sender, command: self.command, clock: self.clock }
    }
}

/// How a shard answers a pull.
#[derive(Debug)]
pub enum Pulled<'a> {
    /// These values, which the caller copies.
    Stored(&'a [u8]),
    /// This many bytes, which [`Shard::read`] writes.
    Bytes(usize),
    /// Consecutive values, which are sent from their place. The shard does not change them while
    /// anything else holds them.
    Shared(Shared),
    /// This many bytes, which [`Shard::read`] writes, and the [`Shard::lengths`] of the keys.
    Varying(usize),
}

/// Rows of a shard that moves.
#[derive(Debug, Default, PartialEq)]
pub struct Extract {
    /// `[n]`, ascending.
    pub keys: Vec<u64>,
    /// `[n]` if the shard needs them, else empty.
    pub lengths: Vec<u32>,
    /// All that the shard keeps for these keys, in a form of its own.
    pub values: Vec<u8>,
}

/// A push as one part of a sum, of which each worker pushes one at most.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Part {
    /// Number of the sum; those of a worker's parts do not fall.
    pub sum: u64,
    /// Number of its parts.
    pub of: usize,
    /// Number of those that have not come, with this one.
    pub left: usize,
}

/// One thread's part of a table: its rows and the rule for pushes.
pub trait Shard {
    /// Whether a request may be executed now.
    fn admit(&self, _request: &Request<'_>) -> Admission {
        Admission::Now
    }

    /// The clock that parked requests wait for; it never decreases.
    fn clock(&self) -> u64 {
        0
    }

    /// Takes a request for which [`Shard::admit`] says [`Admission::Kept`]. The shard answers it by
    /// its token, here or when it keeps any later one; a second answer is an error. A request that
    /// neither pushes nor pulls is a command, with its body as values.
    ///
    /// Tables of such shards have no filters and no consistency model, and their shards do not
    /// move.
    fn keep(&mut self, _request: &Request<'_>, _token: Token, _answers: &mut Answers<'_>) {}

    /// Whether a push reads each of its values once, and uses them only as numbers to store. Such a
    /// push may read memory that its sender can still write; other values are copied first.
    fn reads_once(&self) -> bool {
        false
    }

    /// Applies pushed values.
    ///
    /// # Errors
    /// The reason why they are invalid; nothing has been applied then.
    fn push(&mut self, request: &Request<'_>, memory: &Pool) -> Result<(), Refused>;

    /// Whether the shard can store the values of this push without a copy, by [`Shard::adopt`].
    fn adopts(&self, _request: &Request<'_>) -> bool {
        false
    }

    /// Applies a push of one key for which [`Shard::adopts`] is true: stores `values` itself.
    ///
    /// # Errors
    /// As [`Shard::push`].
    fn adopt(&mut self, _key: u64, _values: Buffer, _memory: &Pool) -> Result<(), Refused> {
        Err(Refusal::Unsupported.because("this shard copies what is pushed"))
    }

    /// Decides how to answer a pull.
    ///
    /// # Errors
    /// The reason why it cannot be answered.
    fn pull(&mut self, request: &Request<'_>) -> Result<Pulled<'_>, Refused>;

    /// Writes the answer to the last [`Shard::pull`]; `into` is 8-byte aligned.
    fn read(&mut self, request: &Request<'_>, into: &mut [u8]);

    /// Number of values of each key of the last [`Shard::pull`].
    fn lengths(&self) -> &[u32] {
        &[]
    }

    /// Copies rows into an empty `extract`, in the order of their keys: those from key `from` on,
    /// one at least, and no more once that has `bytes_max` bytes. Returns the key to go on from;
    /// `None` if there are no others. A shard that gives rows has no state but these; a push
    /// changes the rows of its keys, and a command none, unless [`Shard::changes_rows`] says so.
    /// One with other state is moved and copied by its [`Shard::image`].
    ///
    /// # Errors
    /// The reason why such shards cannot be moved.
    fn give(
        &self,
        _from: u64,
        _bytes_max: usize,
        _extract: &mut Extract,
    ) -> Result<Option<u64>, Refused> {
        Err(Refusal::Unsupported.because("shards of this table's handle cannot be moved"))
    }

    /// As [`Shard::give`], the rows of these sorted keys alone; returns whether all of them have
    /// one, and such shards give rows so.
    fn give_of(&self, _keys: &[u64], _extract: &mut Extract) -> bool {
        false
    }

    /// The sum of which this push, the next one, is a part, if copies of the shard may get the sum
    /// in place of its parts, as [`Shard::add_up`] writes it. No pull shows parts of a sum before
    /// that and all of lower numbers are complete, and no pull between them changes anything.
    fn part(&self, _request: &Request<'_>) -> Option<Part> {
        None
    }

    /// Puts the sum of all these parts into an empty `extract`; returns whether there is one. By
    /// [`Shard::take`] an equal shard does with it the same as by pushes of the parts.
    fn add_up(&self, _parts: &[Request<'_>], _extract: &mut Extract) -> bool {
        false
    }

    /// Replaces rows by those of an [`Extract`] of another shard of the same table, or adds the sum
    /// that is in it.
    ///
    /// # Errors
    /// The reason why they are invalid, or that memory is short.
    fn take(
        &mut self,
        _keys: &[u64],
        _lengths: &[u32],
        _values: &[u8],
        _memory: &Pool,
    ) -> Result<(), Refused> {
        Err(Refusal::Unsupported.because("shards of this table's handle cannot be moved"))
    }

    /// Most bytes of the shard's image, if it is moved and copied by that; all shards of a handle
    /// have one, or none has.
    fn image_bytes(&self) -> Option<usize> {
        None
    }

    /// Appends to `image` all in which this shard differs from a new one of the same table and
    /// keys: after [`Shard::restore`] that one does the same for the same requests.
    fn image(&self, _image: &mut Vec<u8>) {}

    /// Takes over the state of another shard of the same table and keys. This one is new.
    ///
    /// # Errors
    /// The reason why the image is invalid, or that memory is short. The shard is not used then.
    fn restore(&mut self, _image: &[u8], _memory: &Pool) -> Result<(), Refused> {
        Err(Refusal::Unsupported.because("shards of this table's handle have no image"))
    }

    /// Removes the rows of those of the sorted `keys` that have one. They read as new from then on.
    ///
    /// # Errors
    /// The reason why such shards keep all rows, or that memory is short; nothing is removed then.
    fn remove(&mut self, _keys: &[u64]) -> Result<(), Refused> {
        Err(Refusal::Unsupported.because("shards of this table's handle keep all rows"))
    }

    /// The keys of the rows that the last push has removed, though it was refused; once. Copies of
    /// the shard, which do not get that push, [remove](Shard::remove) them, too.
    fn take_gone(&mut self) -> Vec<u64> {
        Vec::new()
    }

    /// Bytes that this many rows take at most, with their keys and all that belongs to them, if
    /// they show `_values` values in all; `None` if such shards keep all rows.
    fn footprint(&self, _rows: usize, _values: usize) -> Option<usize> {
        None
    }

    /// The next push removes no rows, since somebody copies them.
    fn hold_rows(&mut self) {}

    /// The part of the last push that was applied. The shard that is to become equal to this one
    /// gets it by [`Shard::repeat`].
    fn applied<'a>(&'a self, request: &Request<'a>) -> Request<'a> {
        *request
    }

    /// Applies what another shard of the table has applied.
    ///
    /// # Errors
    /// As [`Shard::push`].
    fn repeat(&mut self, request: &Request<'_>, memory: &Pool) -> Result<(), Refused> {
        self.push(request, memory)
    }

    /// Whether a command changes rows. It changes each by what is in that row and in the command
    /// alone, since a copy of which only some rows have come executes it, too.
    fn changes_rows(&self, _body: &[u8]) -> bool {
        false
    }

    /// Executes a command of the table's handle. All copies of a table with replicas execute it,
    /// so it has to do the same for the same commands and pushes.
    ///
    /// # Errors
    /// The reason why the command is invalid.
    fn command(&mut self, _sender: u32, _body: &[u8]) -> Result<Vec<u8>, Refused> {
        Err(Refusal::Unsupported.because("this table's handle takes no commands"))
    }
}
