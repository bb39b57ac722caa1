//! Requests to tables with filters: they are decoded before the shard sees them, and their answers
//! are encoded.
//!
//! Path: codec > thread > **tables** > shard > store > answer.

use caravan_van::wire::Kind;
use caravan_van::{Connections, Draft, Message, PeerId, Pool, Values};

use super::cut::keep;
use super::{MoveCounters, Replica, Trouble, Waiting, forward};
use crate::filter::FILTERED;
use crate::op::Op;
use crate::refusal::Refused;
use crate::server::answer::{answer, gather, post_coded};
use crate::server::shard::{Pulled, Request};

/// Applies a push without an answer, to a table with filters or without.
///
/// # Errors
/// The reason why it is invalid.
pub(super) fn apply(memory: &Pool, entry: &mut Replica, waiting: &Waiting) -> Result<(), Refused> {
    let Waiting { worker, message, list, .. } = waiting;
    let Replica { shard, spec, filters, admission, moving, .. } = entry;
    let keys = list.as_ref().map_or(message.keys(), |list| &list.keys);
    let decoded = match filters {
        Some(filters) if message.op() & FILTERED != 0 => {
            filters.receive(spec, message, keys.len(), memory)?
        }
        _ => None,
    };
    let lengths = message.lengths();
    let values = message.values();
    let mut request = Request { keys, lengths, values, ..Request::of(message, Op::Push, *worker) };
    if let Some(decoded) = &decoded {
        request.values = &decoded.values;
        request.lengths = decoded.lengths.as_deref().unwrap_or(lengths);
    }
    keep(moving, &mut **shard, keys);
    shard.push(&request, memory)?;
    admission.iter_mut().for_each(|admission| admission.applied(&request));
    Ok(())
}

/// Serves an admitted request to a table with filters.
#[inline(never)]
pub(super) fn serve_filtered(
    lanes: &mut Connections,
    entry: &mut Replica,
    peer: PeerId,
    message: &Message,
    request: Request<'_>,
    moves: &mut MoveCounters,
) -> Result<(), Trouble> {
    let memory = lanes.memory().clone();
    let Replica { shard, spec, range, moving, admission, filters: Some(filters), .. } = entry
    else {
        return Ok(());
    };
    let decoded = filters.receive(spec, message, request.keys.len(), &memory)?;
    let mut request = request; // its lifetime shrinks to that of `decoded`
    if let Some(decoded) = &decoded {
        request.values = &decoded.values;
        request.lengths = decoded.lengths.as_deref().unwrap_or(request.lengths);
    }
    if request.pushes {
        keep(moving, &mut **shard, request.keys);
        shard.push(&request, &memory)?;
        admission.iter_mut().for_each(|admission| admission.applied(&request));
        if moving.is_some() {
            let applied = shard.applied(&request);
            forward(lanes, moving, moves, (message.table(), *range), &applied)?;
        }
    }
    if !request.pulls {
        return Ok(lanes.answer(peer, message.timestamp())?);
    }
    let (gathered, shared);
    let (lengths, values) = match shard.pull(&request)? {
        Pulled::Stored(values) => (&[][..], values),
        Pulled::Shared(values) => {
            shared = values;
            (&[][..], &shared[..])
        }
        Pulled::Bytes(bytes) => {
            gathered = gather(&memory, bytes, |into| shard.read(&request, into))?;
            (&[][..], &gathered[..])
        }
        Pulled::Varying(bytes) => {
            gathered = gather(&memory, bytes, |into| shard.read(&request, into))?;
            (shard.lengths(), &gathered[..])
        }
    };
    let posted =
        filters.answer(spec, lengths, values, &memory, |is_block, lengths, values, coding| {
            let op = if is_block { FILTERED } else { 0 };
            let values = Values::Copied(values);
            let draft = Draft { op, lengths, values, ..answer(Kind::Reply, message) };
            post_coded(lanes, peer, draft, coding)
        })?;
    Ok(posted?)
}
