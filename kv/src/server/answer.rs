//! A server thread's answers, and how pulled values reach their destination.
//!
//! Path: codec > thread > tables > shard > store > **answer** > message, and back like any message.

use caravan_van::wire::{Coding, Kind, Offer};
use caravan_van::{Connections, Draft, Message, PeerId, Pool, Shared, Values};

use crate::error::Result;
use crate::op::Op;
use crate::refusal::Refused;
use crate::server::shard::{Pulled, Request, Shard};
use crate::table::SHARED_BYTES_MIN;

/// A reply or failure for `request`, without values.
#[inline(always)]
pub(super) fn answer<'a>(kind: Kind, request: &Message) -> Draft<'a> {
    Draft { table: request.table(), timestamp: request.timestamp(), ..Draft::new(kind) }
}

/// Reply address of a request.
#[derive(Clone, Copy)]
pub(super) struct ReplyTo {
    pub(super) peer: PeerId,
    pub(super) table: u32,
    pub(super) timestamp: u64,
}

/// Answers an admitted pull by a message.
///
/// # Errors
/// If the answer cannot be posted and the lane must be closed, as for all functions below.
#[inline(always)]
pub(super) fn answer_pull(
    lanes: &mut Connections,
    shard: &mut dyn Shard,
    reply_to: ReplyTo,
    request: &Request<'_>,
) -> caravan_van::Result<()> {
    let ReplyTo { peer, table, timestamp } = reply_to;
    let reply = || Draft { table, timestamp, ..Draft::new(Kind::Reply) };
    match shard.pull(request) {
        Ok(Pulled::Stored(values)) => match lanes.reply(peer, table, timestamp, values) {
            Ok(()) => Ok(()),
            Err(error) => post_failure(lanes, reply_to, error),
        },
        Ok(Pulled::Shared(values)) => post_values(lanes, reply_to, &[], values),
        Ok(Pulled::Bytes(bytes)) => {
            let mut write = |into: &mut [u8]| shard.read(request, into);
            let values = Values::Written(bytes, &mut write);
            post(lanes, peer, Draft { values, ..reply() })
        }
        Ok(Pulled::Varying(bytes)) => {
            match gather(lanes.memory(), bytes, |into| shard.read(request, into)) {
                Ok(gathered) => {
                    let lengths = shard.lengths();
                    let values = Values::Apart(gathered);
                    post(lanes, peer, Draft { lengths, values, ..reply() })
                }
                Err(refused) => refuse(lanes, reply_to, &refused),
            }
        }
        Err(refused) => refuse(lanes, reply_to, &refused),
    }
}

/// Answers a pull with these values and lengths.
pub(super) fn post_values(
    lanes: &mut Connections,
    reply_to: ReplyTo,
    lengths: &[u32],
    values: Shared,
) -> caravan_van::Result<()> {
    let ReplyTo { peer, table, timestamp } = reply_to;
    let bytes = values.len();
    let is_copied = bytes < SHARED_BYTES_MIN && !lanes.lends(peer, bytes);
    let values = if is_copied { Values::Copied(&values) } else { Values::Apart(values) };
    post(lanes, peer, Draft { table, timestamp, lengths, values, ..Draft::new(Kind::Reply) })
}

/// The answer to a pull as the shard is now: lengths, if rows have their own, and values.
pub(super) fn collect(
    memory: &Pool,
    shard: &mut dyn Shard,
    request: &Request<'_>,
) -> Result<(Vec<u32>, Shared), Refused> {
    match shard.pull(request)? {
        Pulled::Shared(values) => Ok((Vec::new(), values)),
        Pulled::Stored(values) => {
            let values = gather(memory, values.len(), |into| into.copy_from_slice(values))?;
            Ok((Vec::new(), values))
        }
        Pulled::Bytes(bytes) => {
            Ok((Vec::new(), gather(memory, bytes, |into| shard.read(request, into))?))
        }
        Pulled::Varying(bytes) => {
            let values = gather(memory, bytes, |into| shard.read(request, into))?;
            Ok((shard.lengths().to_vec(), values))
        }
    }
}

/// Answers an admitted pull by writing the values to the memory that it offers.
#[inline(never)]
pub(super) fn place_pull(
    lanes: &mut Connections,
    shard: &mut dyn Shard,
    reply_to: ReplyTo,
    offer: Offer,
    request: &Request<'_>,
) -> caravan_van::Result<()> {
    let values = match shard.pull(request) {
        Ok(Pulled::Shared(values)) => Ok(values),
        Ok(Pulled::Stored(values)) => {
            gather(lanes.memory(), values.len(), |into| into.copy_from_slice(values))
        }
        Ok(Pulled::Bytes(bytes) | Pulled::Varying(bytes)) => {
            gather(lanes.memory(), bytes, |into| shard.read(request, into))
        }
        Err(reason) => Err(reason),
    };
    let placed =
        values.and_then(|values| lanes.place(reply_to.peer, values, offer).map_err(Refused::from));
    placed.or_else(|refused| refuse(lanes, reply_to, &refused))
}

/// Answers a request with the reason why it cannot be executed.
#[cold]
#[inline(never)]
pub(super) fn refuse(
    lanes: &mut Connections,
    reply_to: ReplyTo,
    refused: &Refused,
) -> caravan_van::Result<()> {
    post(lanes, reply_to.peer, failure(reply_to, refused))
}

/// The message of a refusal.
fn failure(reply_to: ReplyTo, refused: &Refused) -> Draft<'_> {
    let ReplyTo { table, timestamp, .. } = reply_to;
    let (command, values) = (refused.kind.number(), Values::Copied(refused.reason.as_bytes()));
    Draft { command, table, timestamp, values, ..Draft::new(Kind::Failure) }
}

/// Answers a request for a table that was dropped.
#[cold]
#[inline(never)]
pub(super) fn refuse_dropped(
    lanes: &mut Connections,
    reply_to: ReplyTo,
) -> caravan_van::Result<()> {
    let ReplyTo { peer, table, timestamp } = reply_to;
    let op = Op::Drop as u8;
    post(lanes, peer, Draft { op, table, timestamp, ..Draft::new(Kind::Failure) })
}

/// Allocates `bytes` bytes, which `write` fills.
pub(super) fn gather(
    memory: &Pool,
    bytes: usize,
    write: impl FnOnce(&mut [u8]),
) -> Result<Shared, Refused> {
    let mut gathered = memory.allocate(bytes)?;
    write(&mut gathered);
    Ok(gathered.share())
}

/// Sends an answer, or a failure if there is no room for it.
#[inline(never)]
pub(super) fn post(
    lanes: &mut Connections,
    peer: PeerId,
    draft: Draft<'_>,
) -> caravan_van::Result<()> {
    post_coded(lanes, peer, draft, &mut Coding::plain())
}

/// As [`post`], with sections coded by `coding`.
#[inline]
pub(super) fn post_coded(
    lanes: &mut Connections,
    peer: PeerId,
    draft: Draft<'_>,
    coding: &mut Coding,
) -> caravan_van::Result<()> {
    let reply_to = ReplyTo { peer, table: draft.table, timestamp: draft.timestamp };
    let posted = lanes.post(peer, draft, coding);
    posted.or_else(|error| post_failure(lanes, reply_to, error))
}

/// Sends a failure if there was no room for the answer.
#[cold]
#[inline(never)]
fn post_failure(
    lanes: &mut Connections,
    reply_to: ReplyTo,
    error: caravan_van::Error,
) -> caravan_van::Result<()> {
    use caravan_van::Error::{MessageTooLong, OutOfMemory};
    if !matches!(error, MessageTooLong { .. } | OutOfMemory { .. }) {
        return Err(error);
    }
    lanes.post(reply_to.peer, failure(reply_to, &error.into()), &mut Coding::plain())
}
