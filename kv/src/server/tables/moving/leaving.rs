//! The owner's side of a move: rows are copied piece by piece, pushes forwarded, and the shard is
//! given up when the newcomer has everything.
//!
//! Path: codec > thread > **tables** > shard > store > answer.

use std::collections::VecDeque;
use std::time::Duration;

use caravan_van::wire::{Coding, Kind};
use caravan_van::{Connections, Draft, Endpoint, KeyRange, Message, PeerId, Pool, Values};

use super::arriving::LAST;
use super::{
    Arrival, Destination, Gone, Held, Moved, Moves, Moving, Recipient, UNANSWERED_MAX, With,
};
use crate::membership::Handed;
use crate::op::Op;
use crate::refusal::{Refusal, Refused};
use crate::server::answer::{ReplyTo, refuse};
use crate::server::shard::{Extract, Request, Shard};
use crate::server::tables::image::Outgoing;
use crate::server::tables::{MoveCounters, RETRY, Replica, Tables, Trouble};

/// A shard that is leaving this thread.
pub(super) struct Leaving {
    number: u32,
    table: u32,
    range: KeyRange,
    destination: Destination,
    /// The request that asked for it.
    wish: Held,
    /// The lane to the newcomer, once there is one.
    peer: Option<PeerId>,
    /// When the next one may be made.
    retry_at: Duration,
    /// The first key that has not been copied; `None` once all are.
    next: Option<u64>,
    /// The shard's image, if it goes as that.
    image: Option<Outgoing>,
    /// Requests that the newcomer has answered.
    answered: u32,
    /// Whether it was asked on this lane to own the shard.
    is_offered: bool,
    failed: Option<Refused>,
}

impl Leaving {
    /// Fails a move whose lane is lost. If all rows are sent, the newcomer has to say over another
    /// lane whether it owns the shard.
    pub(super) fn lose(&mut self, peer: PeerId) {
        if self.peer != Some(peer) {
            return;
        }
        if self.next.is_some() {
            self.failed.get_or_insert_with(|| Refusal::Draining.because("its lane was lost"));
        }
        (self.peer, self.answered, self.is_offered) = (None, 0, false);
    }

    /// The next rows of the shard, or the next part of its image.
    fn piece(
        &mut self,
        shard: &mut dyn Shard,
        bytes_max: usize,
        memory: &Pool,
    ) -> Result<Extract, Refused> {
        let mut piece = Extract::default();
        let from = self.next.unwrap_or_default();
        if shard.image_bytes().is_none() {
            self.next = shard.give(from, bytes_max, &mut piece)?;
            return Ok(piece);
        }
        let image = match &mut self.image {
            Some(image) => image,
            none => none.insert(Outgoing::of(shard, 0, memory)?),
        };
        let (part, is_last) = image.piece(bytes_max);
        image.advance(&part);
        self.next = (!is_last).then_some(from);
        Ok(Extract { values: part, ..piece })
    }
}

/// Forwards a push or a command that has just been applied, if its shard is being copied. A command
/// names no keys.
#[cold]
pub(in crate::server::tables) fn forward(
    lanes: &mut Connections,
    moving: &mut Option<Box<Moving>>,
    counters: &mut MoveCounters,
    (table, range): (u32, KeyRange),
    request: &Request<'_>,
) -> Result<(), Trouble> {
    let Some(With::Newcomer(to)) = moving.as_mut().map(|moving| &mut moving.with) else {
        return Ok(());
    };
    if !to.is_ready || request.pushes && request.keys.is_empty() {
        return Ok(()); // its rows will be copied after this push, or it has changed none
    }
    let draft = Draft {
        command: request.command,
        clock: request.clock,
        keys: request.keys,
        lengths: request.lengths,
        values: Values::Copied(request.values),
        ..to.draft(Op::Forward, table, range)
    };
    // The worker's number travels beside that of the move.
    let timestamp = u64::from(request.sender) << 32 | draft.timestamp;
    if to.peer.is_none() {
        return Ok(());
    }
    counters.forwarded += 1;
    to.post(lanes, Draft { timestamp, ..draft })
}

impl Recipient {
    fn draft<'a>(&self, op: Op, table: u32, range: KeyRange) -> Draft<'a> {
        let (op, timestamp) = (op as u8, u64::from(self.number));
        Draft { op, table, range, timestamp, ..Draft::new(Kind::Request) }
    }

    /// Says which shard is to come.
    fn announce(
        &mut self,
        lanes: &mut Connections,
        arrival: &Arrival,
        (table, range): (u32, KeyRange),
    ) -> Result<(), Trouble> {
        let body = serde_json::to_vec(arrival)?;
        let draft = Draft { values: Values::Copied(&body), ..self.draft(Op::Take, table, range) };
        self.post(lanes, draft)
    }

    /// Sends rows, which may be the last ones.
    fn send(
        &mut self,
        lanes: &mut Connections,
        piece: &Extract,
        is_last: bool,
        (table, range): (u32, KeyRange),
    ) -> Result<(), Trouble> {
        let draft = Draft {
            command: if is_last { LAST } else { 0 },
            keys: &piece.keys,
            lengths: &piece.lengths,
            values: Values::Copied(&piece.values),
            ..self.draft(Op::Rows, table, range)
        };
        self.post(lanes, draft)
    }

    /// A lane that is lost says so by itself; see [`Leaving::lose`].
    fn post(&mut self, lanes: &mut Connections, draft: Draft<'_>) -> Result<(), Trouble> {
        let Some(peer) = self.peer else { return Ok(()) };
        self.sent += 1;
        let mut coding =
            if draft.op == Op::Rows as u8 { Coding::compact() } else { Coding::plain() };
        match lanes.post(peer, draft, &mut coding) {
            Ok(()) | Err(caravan_van::Error::NotConnected { .. }) => Ok(()),
            Err(error) => Err(Trouble::Refused(error.into())),
        }
    }
}

impl Tables {
    /// Begins to move a shard as a request asks, which it keeps; returns false if the shard is
    /// where it is to go.
    ///
    /// # Errors
    /// The reason why it cannot be moved.
    pub(in crate::server::tables) fn begin_move(
        &mut self,
        lanes: &Connections,
        peer: PeerId,
        message: &mut Message,
    ) -> Result<bool, Trouble> {
        let (table, range) = (message.table(), message.range());
        let destination: Destination = serde_json::from_slice(message.values())?;
        let (index, count) = (self.index, self.count + self.chains.view.joined().count());
        let owes = self.owed.owes(table);
        let entry = self.find(table, range.begin())?;
        if destination.server == index {
            return Ok(false);
        }
        // Who has heard of a thread that has joined knows its address, and tells this one.
        if destination.server >= count && destination.address.is_empty() {
            let server = destination.server;
            let reason = format!("there is no server thread {server}, only {count} from 0 on");
            return Err(Refusal::Shape.because(reason).into());
        }
        if entry.chain.is_some() {
            let name = &entry.spec.name;
            return Err(Refusal::Unsupported
                .because(format!("table {name} has replicas, so its shards cannot move"))
                .into());
        }
        if entry.admission.is_some() {
            let name = &entry.spec.name;
            let reason = format!("table {name} has a consistency model, so its shards cannot move");
            return Err(Refusal::Unsupported.because(reason).into());
        }
        if owes {
            let name = &entry.spec.name;
            return Err(Refusal::Unsupported
                .because(format!("table {name} owes answers, so its shards cannot move"))
                .into());
        }
        if entry.shard.image_bytes().is_none() {
            entry.shard.give(range.begin(), 0, &mut Extract::default())?;
        }
        let range = entry.range;
        let message =
            message.pop().ok_or_else(|| Refusal::Internal.because("the request is gone"))?;
        let message = message.kept(lanes.memory()).map_err(Refused::from)?;
        let number = self.moves.count + 1;
        let to = Recipient { peer: None, number, sent: 0, is_ready: false };
        self.find(table, range.begin())?.moving = Some(Moving::new(With::Newcomer(to), false));
        self.moves.count = number;
        if let Some(known) = self.known.get_mut(&table) {
            known.elsewhere.insert(destination.server);
        }
        let wish = Held { peer, message, list: None };
        let next = Some(range.begin());
        self.moves.leaving.push(Leaving {
            number,
            table,
            range,
            destination,
            wish,
            peer: None,
            retry_at: Duration::ZERO,
            next,
            image: None,
            answered: 0,
            is_offered: false,
            failed: None,
        });
        Ok(true)
    }

    /// Moves shards along; returns whether anything was done.
    pub(in crate::server) fn advance(&mut self, endpoint: &mut Endpoint) -> bool {
        let mut is_busy = false;
        let mut at = 0;
        while at < self.moves.leaving.len() {
            match self.advance_one(endpoint, at) {
                Ok(Step::Waits) => at += 1,
                Ok(Step::Goes) => {
                    is_busy = true;
                    at += 1;
                }
                Ok(Step::Left) => {
                    let Leaving { table, range, wish, .. } = self.moves.leaving.remove(at);
                    self.left.push((table, range));
                    // It goes back to its worker, which learns where the shard is now.
                    self.moves.released.push_back(wish);
                    is_busy = true;
                }
                Err(reason) => {
                    self.give_up_move(endpoint, at, &reason);
                    is_busy = true;
                }
            }
        }
        is_busy
    }

    fn advance_one(&mut self, endpoint: &mut Endpoint, at: usize) -> Result<Step, Refused> {
        let leaving = &mut self.moves.leaving[at];
        if let Some(reason) = leaving.failed.take() {
            return Err(reason);
        }
        if self.chains.view.lost.contains(&leaving.destination.server) {
            return Err(Refusal::Draining.because("it counts as lost"));
        }
        if self.chains.view.has_left(leaving.destination.server) {
            return self.end_with_departed(at);
        }
        let (table, range) = (leaving.table, leaving.range);
        let position = self.position(table, range.begin()).ok_or_else(dropped)?;
        let Some(peer) = self.reach_newcomer(endpoint, at)? else { return Ok(Step::Waits) };
        let lanes = &mut endpoint.lanes;
        if lanes.credits(peer) == 0 {
            return Ok(Step::Waits);
        }
        let Moves { leaving: all, released, counters, piece_bytes, .. } = &mut self.moves;
        let leaving = &mut all[at];
        let entry = &mut self.entries[position];
        let epoch = entry.epoch + 1;
        let moving = entry.moving.as_mut().ok_or_else(|| Refusal::Internal.because(NOT_LEAVING))?;
        let With::Newcomer(to) = &mut moving.with else {
            return Err(Refusal::Internal.because(NOT_LEAVING));
        };
        if to.peer.is_none() {
            to.peer = Some(peer);
            let text = self.known.get(&table).map(|known| known.text.clone());
            let arrival = Arrival { table: text.unwrap_or_default(), epoch, from: self.index };
            let announced = to.announce(lanes, &arrival, (table, range));
            return announced.map(|()| Step::Goes).map_err(Trouble::into_refused);
        }
        if to.peer != Some(peer) {
            // What was sent on the lane before is settled by the answer to `Op::Own`.
            (to.peer, to.sent) = (Some(peer), 0);
            counters.asked_again += 1;
        }
        if !to.is_ready {
            to.is_ready = leaving.answered > 0;
            // A push that went before the image would reach a shard that is no longer new.
            moving.is_closed = to.is_ready && entry.shard.image_bytes().is_some();
            return Ok(if to.is_ready { Step::Goes } else { Step::Waits });
        }
        if !moving.is_closed && !moving.held.is_empty() {
            released.append(&mut moving.held);
            return Ok(Step::Goes);
        }
        let unanswered = to.sent.wrapping_sub(leaving.answered);
        let unanswered_max = if leaving.next.is_some() { UNANSWERED_MAX - 1 } else { 0 };
        if unanswered > unanswered_max {
            return Ok(Step::Waits);
        }
        if leaving.next.is_some() {
            let piece = leaving.piece(&mut *entry.shard, *piece_bytes, lanes.memory())?;
            // Nothing may change the shard behind its last rows.
            moving.is_closed |= leaving.next.is_none();
            counters.pieces += 1;
            counters.bytes += (size_of_val(&piece.keys[..]) + piece.values.len()) as u64;
            let sent = to.send(lanes, &piece, leaving.next.is_none(), (table, range));
            return sent.map(|()| Step::Goes).map_err(Trouble::into_refused);
        }
        if leaving.is_offered {
            let server = leaving.destination.server;
            self.give_up_shard(at, position, (server, epoch));
            return Ok(Step::Left);
        }
        let mut offered = *to;
        let draft = Draft { clock: epoch, ..to.draft(Op::Own, table, range) };
        // The newcomer's copy is whole, so it alone can fail the move now.
        if offered.post(lanes, draft).is_err() {
            return Ok(Step::Waits);
        }
        (*to, leaving.is_offered) = (offered, true);
        Ok(Step::Goes)
    }

    /// The lane to a newcomer, if there is one or it can be made now.
    ///
    /// # Errors
    /// The reason why it cannot be made, if the newcomer cannot own the shard yet.
    fn reach_newcomer(
        &mut self,
        endpoint: &mut Endpoint,
        at: usize,
    ) -> Result<Option<PeerId>, Refused> {
        let Moves { leaving, lanes: known, .. } = &mut self.moves;
        let Leaving { peer, retry_at, next, destination, .. } = &mut leaving[at];
        if peer.is_some() {
            return Ok(*peer);
        }
        let address = &destination.address;
        *peer = known.iter().find(|(known, _)| known == address).map(|(_, peer)| *peer);
        let now = endpoint.lanes.now();
        if peer.is_some() || now < *retry_at {
            return Ok(*peer);
        }
        *retry_at = now + RETRY;
        match endpoint.connect(address) {
            Ok(made) => {
                known.push((address.clone(), made));
                *peer = Some(made);
            }
            Err(error) if next.is_some() => return Err(error.into()),
            Err(error) => tracing::debug!(%error, "no lane to a thread that may own a shard"),
        }
        Ok(*peer)
    }

    /// Records that another thread owns the shard from this epoch on.
    fn give_up_shard(&mut self, at: usize, position: usize, (server, epoch): (usize, u64)) {
        let Moves { leaving, released, gone, counters, .. } = &mut self.moves;
        let Leaving { table, range, .. } = leaving[at];
        let Replica { moving, .. } = self.entries.remove(position);
        if let Some(mut moving) = moving {
            moving.release(released);
        }
        let to = Moved { server, epoch, range };
        gone.retain(|gone| gone.table != table || gone.range != range);
        let (unmarked, returns) = (Vec::new(), VecDeque::new());
        gone.push(Gone { table, range, to, unmarked, returns });
        counters.left += 1;
        self.last = 0;
    }

    /// Ends the move of a shard to a thread that has left meanwhile. The lane may have broken
    /// before that one could say that it owned the shard; then it has given the shard on.
    ///
    /// # Errors
    /// If it never owned the shard, which stays here.
    fn end_with_departed(&mut self, at: usize) -> Result<Step, Refused> {
        let Leaving { table, range, ref destination, .. } = self.moves.leaving[at];
        let position = self.position(table, range.begin()).ok_or_else(dropped)?;
        let handed = self.chains.view.handed(destination.server, table, range.begin());
        let epoch = self.entries[position].epoch;
        let Some(Handed { server, epoch, .. }) = handed.filter(|handed| handed.epoch > epoch)
        else {
            return Err(Refusal::Draining.because("it has left the cluster"));
        };
        self.give_up_shard(at, position, (server, epoch));
        Ok(Step::Left)
    }

    /// Whether a shard is here only until its newcomer says that it owns it.
    pub(in crate::server::tables) fn awaits_owner(&self, table: u32, key: u64) -> bool {
        let is_it = |it: &Leaving| it.table == table && it.range.contains(key);
        self.moves.leaving.iter().any(|leaving| is_it(leaving) && leaving.next.is_none())
    }

    /// Ends a move that has failed: the shard stays.
    fn give_up_move(&mut self, endpoint: &mut Endpoint, at: usize, reason: &Refused) {
        let Leaving { table, range, destination, wish, .. } = self.moves.leaving.remove(at);
        let entry = self.entries.iter_mut().find(|entry| entry.has(table, range.begin()));
        if let Some(mut moving) = entry.and_then(|entry| entry.moving.take()) {
            moving.release(&mut self.moves.released);
            if let With::Newcomer(mut to) = moving.with
                && to.peer.is_some_and(|peer| endpoint.lanes.credits(peer) > 0)
            {
                // One that cannot be told drops its copy with the lane, as that is not whole.
                let _ = to.post(&mut endpoint.lanes, to.draft(Op::Abandon, table, range));
            }
        }
        self.moves.counters.failed += 1;
        let (begin, last) = (range.begin(), range.last());
        let Destination { server, address } = destination;
        let reason = reason.kind.because(format!(
            "keys {begin} to {last} stay here: they could not be moved to server thread {server} at {address}: {reason}"
        ));
        let Held { peer, message, .. } = wish;
        let reply_to = ReplyTo { peer, table, timestamp: message.timestamp() };
        // Whoever asked may be gone.
        let _ = refuse(&mut endpoint.lanes, reply_to, &reason);
    }

    /// Records the answers of a newcomer; returns false if `peer` is not one.
    pub(in crate::server) fn enter_answers(&mut self, peer: PeerId, message: &mut Message) -> bool {
        if !self.moves.lanes.iter().any(|(_, known)| *known == peer) {
            return false;
        }
        while !message.is_empty() {
            let number = message.timestamp() as u32;
            let leaving = self.moves.leaving.iter_mut().find(|leaving| leaving.number == number);
            if let Some(leaving) = leaving.filter(|leaving| leaving.peer == Some(peer)) {
                leaving.answered += 1;
                if message.kind() == Kind::Failure {
                    leaving.failed.get_or_insert_with(|| Refused::read(message));
                }
            }
            message.advance();
        }
        true
    }
}

/// Why a move cannot go on.
const NOT_LEAVING: &str = "the shard is not leaving";

fn dropped() -> Refused {
    Refusal::Dropped.because("the table was dropped")
}

/// How far a move has come.
enum Step {
    /// It waits for the newcomer.
    Waits,
    /// There may be more to do.
    Goes,
    /// The shard has left.
    Left,
}
