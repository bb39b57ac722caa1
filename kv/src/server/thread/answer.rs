//! A server thread's answers: what a request is told, and how pulled values go to where they are wanted.
//!
//! Path: 9 of 13, beside `thread.rs`; then 4 to 8 again.

use caravan_van::wire::{Coding, Kind};
use caravan_van::{Draft, Endpoint, Message, PeerId, Pool, Shared, Values};

use crate::error::Result;
use crate::server::shard::{Pulled, Request, Shard};

/// A reply or failure for `request`, still without values.
#[inline(always)]
pub(super) fn answer<'a>(kind: Kind, request: &Message) -> Draft<'a> {
    Draft { table: request.table(), timestamp: request.timestamp(), ..Draft::new(kind) }
}

/// Answers an admitted pull, where it wants the values.
///
/// # Errors
/// Why it can't be answered. That the lane is of no use any more is told within.
#[inline(always)]
pub(super) fn answer_pull(
    endpoint: &mut Endpoint,
    shard: &mut dyn Shard,
    (peer, message): (PeerId, &Message),
    request: &Request<'_>,
) -> Result<caravan_van::Result<()>, String> {
    if let Some(offer) = message.offer() {
        let values = match shard.pull(request)? {
            Pulled::Shared(values) => values,
            Pulled::Stored(values) => {
                gather(endpoint.memory(), values.len(), |into| into.copy_from_slice(values))?
            }
            Pulled::Bytes(bytes) | Pulled::Varying(bytes) => {
                gather(endpoint.memory(), bytes, |into| shard.read(request, into))?
            }
        };
        return endpoint.place(peer, values, offer).map(Ok).map_err(|error| error.to_string());
    }
    let reply = || answer(Kind::Reply, message);
    Ok(match shard.pull(request) {
        Err(reason) => return Err(reason),
        Ok(Pulled::Stored(values)) => {
            post(endpoint, peer, Draft { values: Values::Copied(values), ..reply() })
        }
        Ok(Pulled::Shared(values)) => {
            post(endpoint, peer, Draft { values: Values::Apart(values), ..reply() })
        }
        Ok(Pulled::Bytes(bytes)) => {
            let mut write = |into: &mut [u8]| shard.read(request, into);
            let values = Values::Written(bytes, &mut write);
            post(endpoint, peer, Draft { values, ..reply() })
        }
        Ok(Pulled::Varying(bytes)) => {
            let gathered = gather(endpoint.memory(), bytes, |into| shard.read(request, into))?;
            let (lengths, values) = (shard.lengths(), Values::Apart(gathered));
            post(endpoint, peer, Draft { lengths, values, ..reply() })
        }
    })
}

/// `bytes` bytes, as `write` writes them.
pub(super) fn gather(
    memory: &Pool,
    bytes: usize,
    write: impl FnOnce(&mut [u8]),
) -> Result<Shared, String> {
    let mut gathered = memory.allocate(bytes).map_err(|error| error.to_string())?;
    write(&mut gathered);
    Ok(gathered.share())
}

/// Sends an answer, or that there is no room for it.
///
/// # Errors
/// When the lane is of no use any more.
#[inline]
pub(super) fn post(
    endpoint: &mut Endpoint,
    peer: PeerId,
    draft: Draft<'_>,
) -> caravan_van::Result<()> {
    post_coded(endpoint, peer, draft, &mut Coding::plain())
}

#[inline]
pub(super) fn post_coded(
    endpoint: &mut Endpoint,
    peer: PeerId,
    draft: Draft<'_>,
    coding: &mut Coding,
) -> caravan_van::Result<()> {
    let (table, timestamp) = (draft.table, draft.timestamp);
    let posted = endpoint.post(peer, draft, coding);
    posted.or_else(|error| post_failure(endpoint, peer, (table, timestamp), error))
}

/// Says in place of an answer that there was no room for it.
#[cold]
fn post_failure(
    endpoint: &mut Endpoint,
    peer: PeerId,
    (table, timestamp): (u32, u64),
    error: caravan_van::Error,
) -> caravan_van::Result<()> {
    use caravan_van::Error::{MessageTooLong, OutOfMemory};
    if !matches!(error, MessageTooLong { .. } | OutOfMemory { .. }) {
        return Err(error);
    }
    let reason = error.to_string();
    let values = Values::Copied(reason.as_bytes());
    let failure = Draft { table, timestamp, values, ..Draft::new(Kind::Failure) };
    endpoint.post(peer, failure, &mut Coding::plain())
}
