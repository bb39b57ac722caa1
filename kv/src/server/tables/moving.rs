//! Moving a shard to another server thread while requests to it go on.
//!
//! 1. The owner tells the newcomer which shard will come (`Take`), and copies the rows in the order
//!    of their keys, a piece at a time beside its other work (`Rows`). It goes on serving: what is
//!    pushed meanwhile it applies, and forwards (`Forward`). Behind the piece that holds a row the
//!    forwarded pushes to it arrive in order, so the newcomer's rows become the owner's; before
//!    that piece they do no harm, since a piece replaces rows.
//! 2. Behind the last piece the owner holds requests to the shard until the newcomer has answered
//!    everything. Then it hands the shard over (`Own`), and gives it up when that is answered. It
//!    sends every held or later request back to its worker with the new owner's name (`Moved`):
//!    nothing is applied twice or by two. The newcomer holds requests that come before it owns the
//!    shard. One that had the shard before takes it back only when the workers have marked that
//!    they have heard so (`Gone::unmarked`). A mark waits behind the requests that are held here.
//!
//! This is the two-phase hand-over of Li et al., "Scaling Distributed Machine Learning with the
//! Parameter Server", OSDI 2014, section 4.5, with forwarded pushes in place of a second copy.
//!
//! If anything fails before the last piece, the owner keeps the shard, and the newcomer drops its
//! copy. Behind it the newcomer decides. Once the last piece is there, its copy is whole, and the
//! owner opens the shard again only if the newcomer refuses it, which drops the copy. So:
//!
//! * A lane that breaks leaves both in doubt. The owner sends `Own` again over a new lane until it
//!   is answered. The newcomer keeps a whole copy until then, and refuses what is not whole.
//! * The scheduler says that the newcomer is lost: the owner keeps the shard.
//! * It says that the owner is lost: the newcomer owns what is whole.
//!
//! Path: codec > thread > **tables** > shard > store > answer.

mod arriving;
mod leaving;
mod retiring;
mod sent_back;

use std::collections::VecDeque;
use std::ops::AddAssign;
use std::rc::Rc;

use caravan_van::{Connections, KeyRange, Message, PeerId};
use serde::{Deserialize, Serialize};

use self::leaving::Leaving;
pub(super) use self::leaving::forward;
pub(crate) use self::sent_back::SentBack;
pub(super) use self::sent_back::send_back;
use super::cut::Cut;
use super::{Replica, Tables};
use crate::filter::List;
use crate::op::Op;

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
    /// The owner's place among all server threads.
    from: usize,
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
    /// Wishes for further moves and for checkpoints, which wait for the end of this one.
    wishes: VecDeque<Held>,
}

/// The other side.
pub(super) enum With {
    /// The shard goes there.
    Newcomer(Recipient),
    /// The shard comes from there.
    Owner(Sender),
    /// The shard stays, and a client reads its rows as they were at one moment.
    Reader(Cut),
}

/// The owner of a shard that comes.
pub(super) struct Sender {
    /// The lane on which it comes; `None` if that is lost.
    peer: Option<PeerId>,
    /// Its place among all server threads.
    server: usize,
    /// Whether the last piece has come: it serves nobody until it hears who owns the shard.
    is_done: bool,
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

/// Counters of the moves of a server thread.
#[derive(Debug, Default, Clone, Copy, PartialEq, Eq)]
pub struct MoveCounters {
    /// Shards that left.
    pub left: u64,
    /// Shards that came.
    pub arrived: u64,
    /// Moves that failed; this thread kept their shards.
    pub failed: u64,
    /// Times that a newcomer was asked over another lane to own a shard, as the one before broke.
    pub asked_again: u64,
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
        self.asked_again += other.asked_again;
        self.pieces += other.pieces;
        self.bytes += other.bytes;
        self.forwarded += other.forwarded;
        self.held_copying += other.held_copying;
        self.held_leaving += other.held_leaving;
        self.held_arriving += other.held_arriving;
        self.sent_back += other.sent_back;
    }
}

/// How far the move of a shard has come, at one of its two server threads.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum MoveStep {
    /// It does not move.
    Still,
    /// It is to leave, and the newcomer makes room.
    Asked,
    /// Its rows are copied, and what is pushed is forwarded.
    Copying,
    /// All rows are sent, and requests wait until the newcomer has said that it owns the shard.
    Closing,
    /// It comes from another thread, which owns it until then.
    Arriving,
}

/// A shard at a server thread.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct ShardStep {
    /// Id of its table.
    pub table: u32,
    /// Its keys.
    pub range: KeyRange,
    /// How far it has come if it moves.
    pub step: MoveStep,
}

/// All moves of a thread.
pub(super) struct Moves {
    /// Bytes of a piece.
    pub(super) piece_bytes: usize,
    leaving: Vec<Leaving>,
    gone: Vec<Gone>,
    /// Lanes to newcomers, by address.
    lanes: Vec<(String, PeerId)>,
    /// Whether this thread takes no more shards, as it leaves the cluster.
    is_retired: bool,
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
            is_retired: false,
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
    pub(super) fn holds(&self, lanes: &Connections, pushes: bool) -> bool {
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

    fn step(&self) -> MoveStep {
        match &self.with {
            With::Newcomer(_) if self.is_closed => MoveStep::Closing,
            With::Newcomer(to) if to.is_ready => MoveStep::Copying,
            With::Newcomer(_) => MoveStep::Asked,
            With::Owner(_) => MoveStep::Arriving,
            With::Reader(_) => MoveStep::Still,
        }
    }

    /// Whether a client reads the shard.
    pub(super) fn is_read(&self) -> bool {
        matches!(self.with, With::Reader(_))
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
    /// Whether this thread takes no more shards.
    pub(super) fn is_retired(&self) -> bool {
        self.is_retired
    }

    /// Where the shard that has `key` has gone, if it was here.
    pub(super) fn moved(&self, table: u32, key: u64) -> Option<Moved> {
        let is_it = |gone: &&Gone| gone.table == table && gone.range.contains(key);
        self.gone.iter().find(is_it).map(|gone| gone.to)
    }

    fn gone(&mut self, table: u32, key: u64) -> Option<&mut Gone> {
        self.gone.iter_mut().find(|gone| gone.table == table && gone.range.contains(key))
    }
}

impl Tables {
    /// Whether there is anything for [`Tables::advance`] to do.
    #[inline(always)]
    pub(in crate::server) fn is_moving(&self) -> bool {
        let is_moving = !self.moves.leaving.is_empty() || !self.moves.released.is_empty();
        is_moving || self.chains.is_due || self.chains.parts_since.is_some()
    }

    pub(in crate::server) fn set_piece_bytes(&mut self, bytes: usize) {
        self.moves.piece_bytes = bytes;
    }

    pub(in crate::server) fn moves(&self) -> MoveCounters {
        self.moves.counters
    }

    /// All shards of this thread.
    pub(in crate::server) fn shard_steps(&self) -> Vec<ShardStep> {
        let step = |entry: &Replica| ShardStep {
            table: entry.spec.id,
            range: entry.range,
            step: entry.moving.as_ref().map_or(MoveStep::Still, |moving| moving.step()),
        };
        self.entries.iter().map(step).collect()
    }

    /// Where a shard has moved that was here.
    pub(super) fn moved(&self, id: u32, key: u64) -> Option<Moved> {
        self.moves.moved(id, key)
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

    /// Records that a worker has heard of everything that was sent back.
    pub(super) fn mark(&mut self, table: u32, key: u64, peer: PeerId) {
        let Moves { gone, released, .. } = &mut self.moves;
        let of_it = |gone: &&mut Gone| gone.table == table && gone.range.contains(key);
        gone.iter_mut().filter(of_it).for_each(|gone| gone.forget(peer, released));
    }

    /// Whether a shard has to wait before it comes back: workers may send requests from before, or
    /// this thread has not heard that its newcomer owned it.
    pub(super) fn must_wait(&mut self, table: u32, key: u64) -> bool {
        if self.moves.is_retired {
            return false; // it will be refused
        }
        self.awaits_owner(table, key)
            || self.moves.gone(table, key).is_some_and(|gone| !gone.unmarked.is_empty())
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
        // What is served at the end only must not be tried again before: the move would not go on.
        let is_wish = [Op::Move, Op::Checkpoint].map(|op| op as u8).contains(&held.message.op());
        match position.and_then(|at| self.entries[at].moving.as_mut()) {
            Some(moving) if is_wish => moving.wishes.push_back(held),
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

    /// Ends the moves from and to a lost peer, but for those that are with the newcomer to decide.
    pub(in crate::server) fn forget(&mut self, peer: PeerId) {
        self.forget_reader(peer);
        self.forget_in_chains(peer);
        self.owed.forget(peer);
        let Moves { gone, released, .. } = &mut self.moves;
        // Its worker asks again on another lane, which proves who it is.
        released.retain(|held| held.peer != peer);
        for gone in gone {
            gone.returns.retain(|held| held.peer != peer);
            gone.forget(peer, released);
        }
        self.moves.lanes.retain(|(_, known)| *known != peer);
        self.moves.leaving.iter_mut().for_each(|leaving| leaving.lose(peer));
        for moving in self.entries.iter_mut().filter_map(|entry| entry.moving.as_mut()) {
            let comes = |held: &Held| held.message.op() == Op::Take as u8;
            moving.held.retain(|held| held.peer != peer || !comes(held));
        }
        self.lose_owner(peer);
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
        let is_whole = |entry: &&Replica| {
            let moving = entry.moving.as_ref();
            entry.epoch > 0 && moving.is_none_or(|it| !matches!(it.with, With::Owner(_)))
        };
        let whole = self.of(table).filter(is_whole);
        whole.map(|entry| (entry.range.begin(), entry.epoch)).collect()
    }
}
