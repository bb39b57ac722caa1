//! Moving a shard to another server thread while requests to it go on.
//!
//! 1. The owner tells the newcomer which shard will come (`Take`), and copies the rows in the order
//!    of their keys, a piece at a time beside its other work (`Rows`). It goes on serving: what is
//!    pushed meanwhile it applies, and forwards (`Forward`). Behind the piece that holds a row the
//!    forwarded pushes to it arrive in order, so the newcomer's rows become the owner's; before
//!    that piece they do no harm, since a piece replaces rows.
//! 2. Behind the last piece the owner holds requests to the shard until the newcomer has answered
//!    everything. Then it gives the shard up, says so (`Own`), and sends every held or later
//!    request back to its worker with the new owner's name (`Moved`): nothing is applied twice or
//!    by two. The newcomer holds requests that come before it owns the shard. One that had the
//!    shard before takes it back only when the workers have marked that they have heard so
//!    (`Gone::unmarked`).
//!
//! This is the two-phase hand-over of Li et al., "Scaling Distributed Machine Learning with the
//! Parameter Server", OSDI 2014, section 4.5, with forwarded pushes in place of a second copy. If
//! anything fails before the end, the owner keeps the shard, and the newcomer drops its copy.
//!
//! Path: codec > thread > **tables** > shard > store > answer.

use std::collections::VecDeque;
use std::ops::AddAssign;
use std::rc::Rc;

use caravan_van::wire::{Coding, Kind};
use caravan_van::{Draft, Endpoint, KeyRange, Lanes, Message, PeerId, Values};
use serde::{Deserialize, Serialize};

use super::cut::Cut;
use super::{Entry, Tables, Trouble};
use crate::error::with_sources;
use crate::filter::List;
use crate::op::Op;
use crate::server::shard::{Extract, Request};

/// Bytes of rows in a piece: a thread serves other requests between two of them.
const PIECE_BYTES: usize = 32 << 10;

/// Most pieces and forwarded pushes that a newcomer has not answered, when a piece is sent.
pub(super) const UNANSWERED_MAX: u32 = 8;

/// The body of [`Op::Move`]: the thread to which the shard of the request's range is to go.
#[derive(Debug, Serialize, Deserialize)]
pub(crate) struct Destination {
    /// Its place among all server threads.
    pub(crate) server: usize,
    pub(crate) address: String,
}

/// The body of [`Op::Take`].
#[derive(Serialize, Deserialize)]
struct Arrival {
    /// The table's specification as JSON.
    table: String,
    epoch: u64,
}

/// A shard that has left this thread.
pub(super) struct Gone {
    table: u32,
    range: KeyRange,
    to: Moved,
    /// Workers that got a request back and have not sent a mark since: more of them may come.
    unmarked: Vec<PeerId>,
    /// Its return, which waits for those marks: no request may find the shard here that was made
    /// behind one that was sent back.
    returns: VecDeque<Held>,
}

/// Where a shard has moved.
#[derive(Clone, Copy)]
pub(in crate::server) struct Moved {
    pub(in crate::server) server: usize,
    pub(in crate::server) epoch: u64,
    pub(in crate::server) range: KeyRange,
}

/// A request that waits until a shard has moved.
pub(in crate::server) struct Held {
    pub(in crate::server) peer: PeerId,
    pub(in crate::server) message: Message,
    pub(in crate::server) list: Option<Rc<List>>,
}

/// What a shard that moves, or that a client reads, has beside its rows.
pub(super) struct Moving {
    pub(super) with: With,
    /// Whether all requests wait; before, only those do for which the newcomer has no room.
    is_closed: bool,
    held: VecDeque<Held>,
    /// Wishes for further moves, which wait for the end of this one.
    wishes: VecDeque<Held>,
}

/// The other side.
pub(super) enum With {
    /// The shard goes there.
    Newcomer(Recipient),
    /// The shard comes from there.
    Owner(PeerId),
    /// The shard stays, and a client reads its rows as they were at one moment.
    Reader(Cut),
}

/// The newcomer, for requests to it.
#[derive(Clone, Copy)]
pub(super) struct Recipient {
    /// `None` until it has been told.
    peer: Option<PeerId>,
    /// Number of the move at this thread.
    number: u32,
    /// Requests sent.
    sent: u32,
    /// Whether it has room for the shard, and rows and pushes can go there.
    is_ready: bool,
}

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
    /// Requests that the newcomer has answered.
    answered: u32,
    failed: Option<String>,
}

/// Counters of the moves of a server thread.
#[derive(Debug, Default, Clone, Copy, PartialEq, Eq)]
pub struct MoveCounters {
    /// Shards that left.
    pub left: u64,
    /// Shards that came.
    pub arrived: u64,
    /// Moves that failed; this thread kept their shards.
    pub failed: u64,
    /// Pieces of rows sent.
    pub pieces: u64,
    /// Bytes of keys and values in them.
    pub bytes: u64,
    /// Pushes applied while their shard was copied, and forwarded.
    pub forwarded: u64,
    /// Requests that waited for room at the newcomer while their shard was copied.
    pub held_copying: u64,
    /// Requests that waited until the newcomer had everything.
    pub held_leaving: u64,
    /// Requests that waited at the newcomer until it owned the shard.
    pub held_arriving: u64,
    /// Requests sent back with the name of the new owner.
    pub sent_back: u64,
}

impl AddAssign for MoveCounters {
    fn add_assign(&mut self, other: MoveCounters) {
        self.left += other.left;
        self.arrived += other.arrived;
        self.failed += other.failed;
        self.pieces += other.pieces;
        self.bytes += other.bytes;
        self.forwarded += other.forwarded;
        self.held_copying += other.held_copying;
        self.held_leaving += other.held_leaving;
        self.held_arriving += other.held_arriving;
        self.sent_back += other.sent_back;
    }
}

/// All moves of a thread.
pub(super) struct Moves {
    /// Bytes of a piece.
    pub(super) piece_bytes: usize,
    leaving: Vec<Leaving>,
    gone: Vec<Gone>,
    /// Lanes to newcomers, by address.
    lanes: Vec<(String, PeerId)>,
    /// Requests to serve again.
    pub(super) released: VecDeque<Held>,
    count: u32,
    pub(super) counters: MoveCounters,
}

impl Default for Moves {
    fn default() -> Moves {
        Moves {
            piece_bytes: PIECE_BYTES,
            leaving: Vec::new(),
            gone: Vec::new(),
            lanes: Vec::new(),
            released: VecDeque::new(),
            count: 0,
            counters: MoveCounters::default(),
        }
    }
}

impl Moving {
    pub(super) fn new(with: With, is_closed: bool) -> Box<Moving> {
        let (held, wishes) = (VecDeque::new(), VecDeque::new());
        Box::new(Moving { with, is_closed, held, wishes })
    }

    /// Lets everything go that waits for the end of the move.
    pub(super) fn release(&mut self, released: &mut VecDeque<Held>) {
        released.append(&mut self.held);
        released.append(&mut self.wishes);
    }

    /// Whether a request has to wait; one that pushes needs room at a newcomer.
    #[cold]
    pub(super) fn holds(&self, lanes: &Lanes, pushes: bool) -> bool {
        let has_room = |to: &Recipient| {
            !pushes || !to.is_ready || to.peer.is_none_or(|peer| lanes.credits(peer) > 0)
        };
        let is_open = match &self.with {
            With::Newcomer(to) => has_room(to),
            With::Owner(_) => false,
            With::Reader(_) => true,
        };
        self.is_closed || !self.held.is_empty() || !is_open
    }
}

impl Gone {
    /// Waits no longer for a mark of this peer.
    fn forget(&mut self, peer: PeerId, released: &mut VecDeque<Held>) {
        self.unmarked.retain(|unmarked| *unmarked != peer);
        if self.unmarked.is_empty() {
            released.append(&mut self.returns);
        }
    }
}

impl Moves {
    fn gone(&mut self, table: u32, key: u64) -> Option<&mut Gone> {
        self.gone.iter_mut().find(|gone| gone.table == table && gone.range.contains(key))
    }
}

/// Forwards a push that has just been applied, if its shard is being copied.
#[cold]
pub(super) fn forward(
    lanes: &mut Lanes,
    moving: &mut Option<Box<Moving>>,
    counters: &mut MoveCounters,
    (table, range): (u32, KeyRange),
    request: &Request<'_>,
) -> Result<(), Trouble> {
    let Some(With::Newcomer(to)) = moving.as_mut().map(|moving| &mut moving.with) else {
        return Ok(());
    };
    if !to.is_ready {
        return Ok(()); // its rows will be copied after this push
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
    /// Whether there is anything for [`Tables::advance`] to do.
    #[inline(always)]
    pub(in crate::server) fn is_moving(&self) -> bool {
        !self.moves.leaving.is_empty() || !self.moves.released.is_empty() || self.chains.is_due
    }

    pub(in crate::server) fn set_piece_bytes(&mut self, bytes: usize) {
        self.moves.piece_bytes = bytes;
    }

    pub(in crate::server) fn moves(&self) -> MoveCounters {
        self.moves.counters
    }

    /// Where a shard has moved that was here.
    pub(super) fn moved(&self, id: u32, key: u64) -> Option<Moved> {
        let is_it = |gone: &&Gone| gone.table == id && gone.range.contains(key);
        self.moves.gone.iter().find(is_it).map(|gone| gone.to)
    }

    /// Remembers that a request to a shard that has moved was sent back.
    pub(super) fn note_sent_back(&mut self, table: u32, key: u64, peer: PeerId) {
        self.moves.counters.sent_back += 1;
        if let Some(gone) = self.moves.gone(table, key)
            && !gone.unmarked.contains(&peer)
        {
            gone.unmarked.push(peer);
        }
    }

    /// Enters that a worker has heard of everything that was sent back.
    pub(super) fn mark(&mut self, table: u32, key: u64, peer: PeerId) {
        let Moves { gone, released, .. } = &mut self.moves;
        let of_it = |gone: &&mut Gone| gone.table == table && gone.range.contains(key);
        gone.iter_mut().filter(of_it).for_each(|gone| gone.forget(peer, released));
    }

    /// Whether a shard has to wait before it comes back: workers may send requests from before.
    pub(super) fn waits_for_marks(&mut self, table: u32, key: u64) -> bool {
        self.moves.gone(table, key).is_some_and(|gone| !gone.unmarked.is_empty())
    }

    /// Keeps a request until its shard has moved.
    pub(in crate::server) fn hold(&mut self, held: Held) {
        let (table, key) = (held.message.table(), held.message.range().begin());
        let position = self.position(table, key);
        let held = match position {
            Some(at) => self.hold_for_chain(at, held),
            None => Some(held),
        };
        let Some(held) = held else { return };
        let counters = &mut self.moves.counters;
        match position.and_then(|at| self.entries[at].moving.as_mut()) {
            Some(moving) if held.message.op() == Op::Move as u8 => moving.wishes.push_back(held),
            Some(moving) => {
                match moving.with {
                    With::Owner(_) => counters.held_arriving += 1,
                    With::Newcomer(_) if moving.is_closed => counters.held_leaving += 1,
                    With::Newcomer(_) => counters.held_copying += 1,
                    With::Reader(_) => {}
                }
                moving.held.push_back(held);
            }
            None => match self.moves.gone(table, key) {
                Some(gone) if held.message.op() == Op::Take as u8 => gone.returns.push_back(held),
                _ => self.moves.released.push_back(held),
            },
        }
    }

    /// Takes the next request that need not wait any longer.
    pub(in crate::server) fn release(&mut self) -> Option<Held> {
        self.moves.released.pop_front()
    }

    /// Begins to move a shard as a request asks, which it keeps; returns false if the shard is
    /// where it is to go.
    ///
    /// # Errors
    /// The reason why it cannot be moved.
    pub(super) fn begin_move(
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
        entry.shard.give(range.begin(), 0, &mut Extract::default())?;
        let range = entry.range;
        let message = message.pop().ok_or_else(|| "the request is gone".to_owned())?;
        let message = message.kept(lanes.memory()).map_err(|error| error.to_string())?;
        let number = self.moves.count + 1;
        let to = Recipient { peer: None, number, sent: 0, is_ready: false };
        self.find(table, range.begin())?.moving = Some(Moving::new(With::Newcomer(to), false));
        self.moves.count = number;
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
            return Ok(if to.is_ready { Step::Goes } else { Step::Waits });
        }
        if !moving.is_closed && !moving.held.is_empty() {
            released.append(&mut moving.held);
            return Ok(Step::Goes);
        }
        let unanswered = to.sent.wrapping_sub(leaving.answered);
        if let Some(from) = leaving.next {
            if unanswered >= UNANSWERED_MAX {
                return Ok(Step::Waits);
            }
            let mut piece = Extract::default();
            leaving.next = entry.shard.give(from, *piece_bytes, &mut piece)?;
            moving.is_closed = leaving.next.is_none();
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
        let reply_to = super::ReplyTo { peer, table, timestamp: message.timestamp() };
        // Whoever asked may be gone.
        let _ = super::refuse(&mut endpoint.lanes, reply_to, &reason);
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

    /// Ends the moves from and to a lost peer.
    pub(in crate::server) fn forget(&mut self, peer: PeerId) {
        self.forget_reader(peer);
        self.forget_in_chains(peer);
        self.owed.forget(peer);
        let Moves { gone, released, .. } = &mut self.moves;
        for gone in gone {
            gone.returns.retain(|held| held.peer != peer);
            gone.forget(peer, released);
        }
        self.moves.lanes.retain(|(_, known)| *known != peer);
        for leaving in self.moves.leaving.iter_mut().filter(|it| it.peer == Some(peer)) {
            leaving.failed.get_or_insert_with(|| "its lane was lost".to_owned());
        }
        let comes_from = |entry: &Entry| {
            let moving = entry.moving.as_ref();
            moving.is_some_and(|moving| matches!(moving.with, With::Owner(from) if from == peer))
        };
        while let Some(at) = self.entries.iter().position(comes_from) {
            self.drop_arriving(at);
        }
    }

    /// Drops a shard that has not come whole.
    fn drop_arriving(&mut self, at: usize) {
        if let Some(mut moving) = self.entries.remove(at).moving {
            moving.release(&mut self.moves.released);
        }
        self.last = 0;
    }

    /// Serves one request of a shard's owner to this newcomer.
    ///
    /// # Errors
    /// The reason why it cannot be; the owner then keeps the shard.
    pub(super) fn serve_owner(
        &mut self,
        lanes: &Lanes,
        peer: PeerId,
        message: &Message,
        op: Op,
    ) -> Result<(), Trouble> {
        let (table, range) = (message.table(), message.range());
        if op == Op::Take {
            return self.take_shard(lanes, peer, message);
        }
        let at = self.position(table, range.begin());
        let Some(at) = at.filter(|at| {
            let moving = self.entries[*at].moving.as_ref();
            moving.is_some_and(|moving| matches!(moving.with, With::Owner(from) if from == peer))
        }) else {
            return Err("no shard of these keys is coming from there".to_owned().into());
        };
        let entry = &mut self.entries[at];
        let (keys, lengths, values) = (message.keys(), message.lengths(), message.values());
        entry.check_keys(keys)?;
        match op {
            Op::Rows => entry.shard.take(keys, lengths, values, lanes.memory())?,
            Op::Forward => {
                let sender = (message.timestamp() >> 32) as u32;
                let request =
                    Request { keys, lengths, values, ..Request::of(message, Op::Push, sender) };
                entry.shard.push(&request, lanes.memory())?;
            }
            Op::Own => {
                if let Some(mut moving) = entry.moving.take() {
                    moving.release(&mut self.moves.released);
                }
                self.moves.gone.retain(|gone| gone.table != table || gone.range != range);
                self.moves.counters.arrived += 1;
            }
            _ => self.drop_arriving(at),
        }
        Ok(())
    }

    /// Makes room for a shard that will come from `peer`.
    fn take_shard(
        &mut self,
        lanes: &Lanes,
        peer: PeerId,
        message: &Message,
    ) -> Result<(), Trouble> {
        let (id, range) = (message.table(), message.range());
        let Arrival { table, epoch } =
            serde_json::from_slice(message.values()).map_err(|error| error.to_string())?;
        self.make_room(lanes, (id, range), &table)?;
        let entry = self.find(id, range.begin())?;
        entry.epoch = epoch;
        entry.moving = Some(Moving::new(With::Owner(peer), true));
        Ok(())
    }

    /// Forgets the moves of a table that is dropped.
    pub(super) fn forget_moves(&mut self, table: u32) {
        self.moves.gone.retain(|gone| gone.table != table);
        for entry in self.entries.iter_mut().filter(|entry| entry.number == table) {
            if let Some(mut moving) = entry.moving.take() {
                moving.release(&mut self.moves.released);
            }
        }
    }

    /// The shards of a table that came here by moves, whole: first key and epoch of each.
    pub(super) fn claims(&self, table: u32) -> Vec<(u64, u64)> {
        let is_whole = |entry: &&Entry| {
            let moving = entry.moving.as_ref();
            entry.epoch > 0 && moving.is_none_or(|it| !matches!(it.with, With::Owner(_)))
        };
        let whole = self.of(table).filter(is_whole);
        whole.map(|entry| (entry.range.begin(), entry.epoch)).collect()
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

/// Sends a request back to its worker, whole, with the name of its shard's owner.
///
/// # Errors
/// If it cannot be posted and the lane must be closed.
#[cold]
pub(super) fn send_back(
    lanes: &mut Lanes,
    peer: PeerId,
    message: &Message,
    list: Option<&List>,
    to: Moved,
) -> caravan_van::Result<()> {
    let head = SentBack {
        server: to.server as u64,
        epoch: to.epoch,
        op: message.op().into(),
        clock: message.clock(),
    };
    let values = [&head.bytes()[..], message.values()].concat();
    let draft = Draft {
        op: Op::Moved as u8,
        command: message.command(),
        table: message.table(),
        timestamp: message.timestamp(),
        range: to.range,
        // Runs go back as they came.
        keys: list.filter(|list| !list.is_implied).map_or(message.keys(), |list| &list.keys),
        lengths: message.lengths(),
        values: Values::Copied(&values),
        ..Draft::new(Kind::Failure)
    };
    super::post(lanes, peer, draft)
}

/// What a request that is sent back begins with, before its own values: 32 bytes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct SentBack {
    /// Where its shard is now.
    pub(crate) server: u64,
    pub(crate) epoch: u64,
    /// Operation and clock of the request.
    pub(crate) op: u64,
    pub(crate) clock: u64,
}

impl SentBack {
    pub(crate) const BYTES: usize = 32;

    fn bytes(self) -> [u8; Self::BYTES] {
        let mut bytes = [0; Self::BYTES];
        let numbers = [self.server, self.epoch, self.op, self.clock];
        let places = bytes.chunks_exact_mut(8);
        places
            .zip(numbers)
            .for_each(|(place, number)| place.copy_from_slice(&number.to_le_bytes()));
        bytes
    }

    /// Reads it and the request's values behind it.
    pub(crate) fn read(values: &[u8]) -> Option<(SentBack, &[u8])> {
        let (head, values) = values.split_at_checked(Self::BYTES)?;
        let [server, epoch, op, clock] = head.as_chunks().0 else { return None };
        let [server, epoch, op, clock] =
            [server, epoch, op, clock].map(|it| u64::from_le_bytes(*it));
        Some((SentBack { server, epoch, op, clock }, values))
    }
}
