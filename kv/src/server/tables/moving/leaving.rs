//! The owner's side of a move: rows are copied piece by piece, pushes forwarded, and the shard is
//! given up when the newcomer has everything.
//!
//! Path: codec > thread > **tables** > shard > store > answer.

use std::collections::VecDeque;

use caravan_van::wire::{Coding, Kind};
use caravan_van::{Draft, Endpoint, KeyRange, Lanes, Message, PeerId, Pool, Values};

use super::{
    Arrival, Destination, Gone, Held, Moved, Moves, Moving, Recipient, UNANSWERED_MAX, With,
};
use crate::error::with_sources;
use crate::op::Op;
use crate::server::answer::{ReplyTo, refuse};
use crate::server::shard::{Extract, Request, Shard};
use crate::server::tables::image::Outgoing;
use crate::server::tables::{MoveCounters, Tables, Trouble};

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
    /// The first key that has not been copied; `None` once all are.
    next: Option<u64>,
    /// The shard's image, if it goes as that.
    image: Option<Outgoing>,
    /// Requests that the newcomer has answered.
    answered: u32,
    failed: Option<String>,
}

impl Leaving {
    /// Fails a move whose lane is lost.
    pub(super) fn lose(&mut self, peer: PeerId) {
        if self.peer == Some(peer) {
            self.failed.get_or_insert_with(|| "its lane was lost".to_owned());
        }
    }

    /// The next rows of the shard, or the next part of its image.
    fn piece(
        &mut self,
        shard: &mut dyn Shard,
        bytes_max: usize,
        memory: &Pool,
    ) -> Result<Extract, String> {
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
    lanes: &mut Lanes,
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

    /// A lane that is lost says so to its owner by itself, and the move fails then.
    fn post(&mut self, lanes: &mut Lanes, draft: Draft<'_>) -> Result<(), Trouble> {
        let Some(peer) = self.peer else { return Ok(()) };
        self.sent += 1;
        let mut coding =
            if draft.op == Op::Rows as u8 { Coding::compact() } else { Coding::plain() };
        match lanes.post(peer, draft, &mut coding) {
            Ok(()) | Err(caravan_van::Error::NotConnected { .. }) => Ok(()),
            Err(error) => Err(Trouble::Refused(with_sources(&error))),
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
        lanes: &Lanes,
        peer: PeerId,
        message: &mut Message,
    ) -> Result<bool, Trouble> {
        let (table, range) = (message.table(), message.range());
        let destination: Destination =
            serde_json::from_slice(message.values()).map_err(|error| error.to_string())?;
        let (index, count) = (self.index, self.count);
        let owes = self.owed.owes(table);
        let entry = self.find(table, range.begin())?;
        if destination.server == index {
            return Ok(false);
        }
        if destination.server >= count {
            let server = destination.server;
            let reason = format!("there is no server thread {server}, only {count} from 0 on");
            return Err(reason.into());
        }
        if entry.chain.is_some() {
            let name = &entry.spec.name;
            return Err(format!("table {name} has replicas, so its shards cannot move").into());
        }
        if entry.governor.is_some() {
            let name = &entry.spec.name;
            let reason = format!("table {name} has a consistency model, so its shards cannot move");
            return Err(reason.into());
        }
        if owes {
            let name = &entry.spec.name;
            return Err(format!("table {name} owes answers, so its shards cannot move").into());
        }
        if entry.shard.image_bytes().is_none() {
            entry.shard.give(range.begin(), 0, &mut Extract::default())?;
        }
        let range = entry.range;
        let message = message.pop().ok_or_else(|| "the request is gone".to_owned())?;
        let message = message.kept(lanes.memory()).map_err(|error| error.to_string())?;
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
            next,
            image: None,
            answered: 0,
            failed: None,
        });
        Ok(true)
    }

    /// Moves shards along; returns whether anything was done, and the shards that have left.
    pub(in crate::server) fn advance(
        &mut self,
        endpoint: &mut Endpoint,
    ) -> (bool, Vec<(u32, KeyRange)>) {
        let mut is_busy = false;
        let mut left = Vec::new();
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
                    left.push((table, range));
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
        (is_busy, left)
    }

    fn advance_one(&mut self, endpoint: &mut Endpoint, at: usize) -> Result<Step, String> {
        let Moves { leaving: all, lanes: known, released, gone, counters, piece_bytes, .. } =
            &mut self.moves;
        let leaving = &mut all[at];
        if let Some(reason) = leaving.failed.take() {
            return Err(reason);
        }
        let address = &leaving.destination.address;
        let Some(peer) = leaving.peer else {
            let open = known.iter().find(|(known, _)| known == address).map(|(_, peer)| *peer);
            let peer = match open {
                Some(peer) => peer,
                None => endpoint.connect(address).map_err(|error| with_sources(&error))?,
            };
            if open.is_none() {
                known.push((address.clone(), peer));
            }
            leaving.peer = Some(peer);
            return Ok(Step::Goes);
        };
        let lanes = &mut endpoint.lanes;
        let credits = lanes.credits(peer);
        if credits == 0 {
            return Ok(Step::Waits);
        }
        let (table, range) = (leaving.table, leaving.range);
        let position = self.entries.iter().position(|entry| entry.has(table, range.begin()));
        let position = position.ok_or("the table was dropped")?;
        let entry = &mut self.entries[position];
        let epoch = entry.epoch + 1;
        let Some(moving) = &mut entry.moving else {
            return Err("the shard is not leaving".to_owned());
        };
        let With::Newcomer(to) = &mut moving.with else {
            return Err("the shard has not come yet".to_owned());
        };
        if to.peer.is_none() {
            to.peer = Some(peer);
            let text = self.known.get(&table).map(|known| known.text.clone());
            let arrival = Arrival { table: text.unwrap_or_default(), epoch };
            let body = serde_json::to_vec(&arrival).map_err(|error| error.to_string())?;
            let draft = Draft { values: Values::Copied(&body), ..to.draft(Op::Take, table, range) };
            to.post(lanes, draft).map_err(Trouble::into_reason)?;
            return Ok(Step::Goes);
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
        if leaving.next.is_some() {
            if unanswered >= UNANSWERED_MAX {
                return Ok(Step::Waits);
            }
            let piece = leaving.piece(&mut *entry.shard, *piece_bytes, lanes.memory())?;
            // Nothing may change the shard behind its last rows.
            moving.is_closed |= leaving.next.is_none();
            counters.pieces += 1;
            counters.bytes += (size_of_val(&piece.keys[..]) + piece.values.len()) as u64;
            let draft = Draft {
                keys: &piece.keys,
                lengths: &piece.lengths,
                values: Values::Copied(&piece.values),
                ..to.draft(Op::Rows, table, range)
            };
            to.post(lanes, draft).map_err(Trouble::into_reason)?;
            return Ok(Step::Goes);
        }
        if unanswered > 0 {
            return Ok(Step::Waits);
        }
        to.post(lanes, to.draft(Op::Own, table, range)).map_err(Trouble::into_reason)?;
        moving.release(released);
        let to = Moved { server: leaving.destination.server, epoch, range };
        gone.retain(|gone| gone.table != table || gone.range != range);
        let (unmarked, returns) = (Vec::new(), VecDeque::new());
        gone.push(Gone { table, range, to, unmarked, returns });
        counters.left += 1;
        self.entries.remove(position);
        self.last = 0;
        Ok(Step::Left)
    }

    /// Ends a move that has failed: the shard stays.
    fn give_up_move(&mut self, endpoint: &mut Endpoint, at: usize, reason: &str) {
        let Leaving { table, range, destination, wish, .. } = self.moves.leaving.remove(at);
        let entry = self.entries.iter_mut().find(|entry| entry.has(table, range.begin()));
        if let Some(mut moving) = entry.and_then(|entry| entry.moving.take()) {
            moving.release(&mut self.moves.released);
            if let With::Newcomer(mut to) = moving.with
                && to.peer.is_some_and(|peer| endpoint.lanes.credits(peer) > 0)
            {
                // A newcomer that cannot be told drops its copy with the lane.
                let _ = to.post(&mut endpoint.lanes, to.draft(Op::Abandon, table, range));
            }
        }
        self.moves.counters.failed += 1;
        let (begin, last) = (range.begin(), range.last());
        let Destination { server, address } = destination;
        let reason = format!(
            "keys {begin} to {last} stay here: they could not be moved to server thread {server} at {address}: {reason}"
        );
        let Held { peer, message, .. } = wish;
        let reply_to = ReplyTo { peer, table, timestamp: message.timestamp() };
        // Whoever asked may be gone.
        let _ = refuse(&mut endpoint.lanes, reply_to, &reason);
    }

    /// Enters the answers of a newcomer; returns false if `peer` is not one.
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
                    let reason = String::from_utf8_lossy(message.values()).into_owned();
                    leaving.failed.get_or_insert(reason);
                }
            }
            message.advance();
        }
        true
    }
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
