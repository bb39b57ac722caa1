//! Sending requests: a request is checked as a whole, cut at the shards of its table, and posted to
//! their owners part by part.
//!
//! Path: **worker** > slicer > filter > message > codec > endpoint > transport. `answer.rs`
//! receives the answers.

mod parts;

use std::ops::Range;

use caravan_van::wire::Kind;
use caravan_van::{Buffer, Connections, Draft, PeerId, Shared, Value, Values};

use super::kept::Kept;
use super::recovery::Recovery;
use super::table::{FOLLOWS_WORKER, Route};
use super::{Table, Worker};
use crate::error::Result;
use crate::op::Op;
use crate::slicer;
use crate::table::{SHARED_BYTES_MIN, ValueType};
use crate::tracker::{Timestamp, Tracker};

/// The values of a push.
pub(super) enum Payload<'a> {
    Nothing,
    /// Values to copy; `value` is `None` for types that no table holds.
    Values {
        bytes: &'a [u8],
        value: Option<ValueType>,
        type_name: &'static str,
    },
    Shared(&'a Shared),
}

/// A request as its caller makes it.
pub(super) struct Request<'a> {
    pub(super) op: Op,
    pub(super) table: Table,
    pub(super) keys: &'a [u64],
    pub(super) lengths: &'a [u32],
    pub(super) payload: Payload<'a>,
    pub(super) into: Option<Buffer>,
    /// Whether this push ends the worker's iteration.
    pub(super) is_last: bool,
    /// Whether messages have runs in place of the keys.
    pub(super) is_implied: bool,
}

impl<'a> Payload<'a> {
    #[inline]
    pub(super) fn of<V: Value>(values: &'a [V]) -> Payload<'a> {
        let bytes = V::bytes(values);
        Payload::Values { bytes, value: ValueType::of::<V>(), type_name: V::NAME }
    }

    /// Number of bytes pushed; `None` for a pull.
    fn bytes(&self) -> Option<usize> {
        match self {
            Payload::Nothing => None,
            Payload::Values { bytes, .. } => Some(bytes.len()),
            Payload::Shared(shared) => Some(shared.len()),
        }
    }

    /// Whether a table of this value type accepts the values.
    #[inline]
    fn suits(&self, value: ValueType) -> bool {
        match self {
            Payload::Values { value: own, .. } => *own == Some(value),
            Payload::Nothing | Payload::Shared(_) => true,
        }
    }

    /// All bytes; empty for a pull.
    fn all(&self) -> &'a [u8] {
        match self {
            Payload::Nothing => &[],
            Payload::Values { bytes, .. } => bytes,
            Payload::Shared(shared) => shared,
        }
    }

    /// The bytes at `range` for `peer`. Shared bytes are not copied if they are too long for a
    /// frame or the van lends them.
    #[inline(always)]
    fn part(&self, range: Range<usize>, peer: PeerId, lanes: &Connections) -> Values<'a> {
        match *self {
            Payload::Nothing => Values::None,
            Payload::Values { bytes, .. } => Values::Copied(&bytes[range]),
            Payload::Shared(shared)
                if range.len() > lanes.eager_bytes() || lanes.lends(peer, range.len()) =>
            {
                Values::Apart(shared.slice(range))
            }
            Payload::Shared(shared) => Values::Copied(&shared[range]),
        }
    }
}

impl<'a> Request<'a> {
    /// A request without pushed values and without a destination.
    pub(super) fn new(op: Op, table: Table, keys: &'a [u64]) -> Self {
        let payload = Payload::Nothing;
        Request {
            op,
            table,
            keys,
            lengths: &[],
            payload,
            into: None,
            is_last: false,
            is_implied: false,
        }
    }
}

impl Worker {
    /// Sends a request to the servers that hold its keys.
    #[inline(always)] // passing a request in memory would load what was just stored
    pub(super) fn request(&mut self, request: Request<'_>) -> Result<Timestamp> {
        let mut request = request;
        if self.is_short(&request) {
            return self.request_short(&mut request);
        }
        self.request_parts(request) // which also waits for room
    }

    /// Whether a request is valid and short: it goes to one shard whose owner has room for it,
    /// offers no memory, and bypasses the filters. Sets the `route` of its table to that owner.
    ///
    /// [`Worker::check`] reports the errors of all other requests.
    #[inline(always)]
    fn is_short(&mut self, request: &Request<'_>) -> bool {
        let Request { op, keys, lengths, payload, into, .. } = request;
        let [first, ..] = *keys else { return false };
        let [.., last] = *keys else { return false };
        let Some(known) = self.tables.get_mut(request.table.0 as usize) else { return false };
        if known.number != request.table.1 {
            return false;
        }
        let place = keys.len().saturating_mul(known.row_bytes);
        // A push of shared values may be long: it needs neither a copy nor a destination.
        let may_be_long = matches!((op, payload), (Op::Push, Payload::Shared(_)));
        let bytes_max = if may_be_long { usize::MAX } else { self.endpoint.lanes.eager_bytes() };
        let fits = (1..=bytes_max).contains(&place)
            && payload.bytes().is_none_or(|bytes| bytes == place)
            && payload.suits(known.spec.value)
            && into.as_ref().is_none_or(|into| into.len() == place);
        let passes = known.filters.as_ref().is_none_or(|filters| filters.pass(keys.len()));
        if !fits || !lengths.is_empty() || !passes {
            return false;
        }
        if !known.route.has(*first, *last)
            && !known.route_to(request.table.0, *first, &self.servers, &self.moves, &self.recovery)
        {
            return false;
        }
        let needs_place = *op == Op::Push
            || into.is_some()
            || !is_lent(&self.endpoint.lanes, known.route.peer, keys.len(), place);
        needs_place
            && *last <= known.route.last
            && self.endpoint.lanes.credits(known.route.peer) > usize::from(known.route.is_kept)
            && slicer::are_ascending(keys)
    }

    /// Sends a valid short request.
    #[inline(always)]
    fn request_short(&mut self, request: &mut Request<'_>) -> Result<Timestamp> {
        let Request { op, table: Table(at, table), keys, ref payload, .. } = *request;
        let known = &mut self.tables[at as usize];
        let into = match op {
            Op::Push => None,
            _ if request.into.is_some() => request.into.take(),
            _ => Some(self.endpoint.lanes.memory().allocate(keys.len() * known.row_bytes)?),
        };
        let Route { server, peer, range, is_kept, .. } = known.route;
        let timestamp = self.tracker.begin_short(op, server, into)?;
        let clock = if known.clock == FOLLOWS_WORKER { self.clock } else { known.clock };
        let (op, command) = (op as u8, self.command);
        if is_kept {
            let timestamp = timestamp.0;
            let empty = Draft::new(Kind::Request);
            let head = Draft { op, command, table, timestamp, clock, range, ..empty };
            let kept = keep_short(&self.endpoint.lanes, &known.route, head, keys, payload);
            match kept {
                Ok(kept) => self.recovery.kept.insert(kept),
                Err(error) => {
                    return Ok(self.tracker.fail(Timestamp(timestamp), error.into()));
                }
            }
        }
        if let Some(filters) = &mut known.filters {
            filters.passed.sent += (size_of_val(keys) + payload.bytes().unwrap_or(0)) as u64;
        }
        let draft = Draft {
            kind: Kind::Request,
            op,
            command,
            table,
            timestamp: timestamp.0,
            clock,
            range,
            origin: None,
            offer: None,
            signature: None,
            keys,
            lengths: &[],
            values: payload.part(0..payload.all().len(), peer, &self.endpoint.lanes),
        };
        match self.endpoint.lanes.post(peer, draft, &mut known.coding) {
            Ok(()) => Ok(timestamp),
            Err(error) => Ok(not_posted(&mut self.recovery, &mut self.tracker, timestamp, error)),
        }
    }
}

/// Ends a short request that could not be posted, unless it is kept and will be.
#[cold]
fn not_posted(
    recovery: &mut Recovery,
    tracker: &mut Tracker,
    timestamp: Timestamp,
    error: caravan_van::Error,
) -> Timestamp {
    match recovery.excuse(timestamp.0, error) {
        Ok(()) => timestamp,
        Err(error) => {
            recovery.forget(timestamp.0);
            tracker.fail(timestamp, error.into())
        }
    }
}

/// A short request to a table with copies, to be kept until it is answered: `head` is its message
/// without keys and values.
#[inline(never)] // others pay nothing for it
fn keep_short(
    lanes: &Connections,
    route: &Route,
    head: Draft<'_>,
    keys: &[u64],
    payload: &Payload<'_>,
) -> caravan_van::Result<Kept> {
    let values = payload.part(0..payload.all().len(), route.peer, lanes);
    let draft = Draft { values, ..head };
    Kept::of(route.server as usize, &draft, keys, lanes.memory())
}

/// Whether the server lends the answer to a pull of `keys` keys, which has `place` bytes. It then
/// needs no destination. Servers lend most single rows, and long values.
#[inline]
fn is_lent(lanes: &Connections, peer: PeerId, keys: usize, place: usize) -> bool {
    (keys == 1 || place >= SHARED_BYTES_MIN) && lanes.lends(peer, place)
}
