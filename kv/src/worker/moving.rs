//! Requests that come back because their shard has moved: they are sent again to its new owner.
//!
//! A server sends back a whole request that it has not applied, with the name of the new owner
//! (`server/tables/moving.rs`). Nothing is kept here for that. Requests of one worker to one shard
//! stay in order: whoever sent one back, and whoever had the shard before, is asked for a mark,
//! behind which nothing more comes back. Then those that came back are sent again, in the order in
//! which they were made, and new ones behind them. The same goes for an owner that a worker hears
//! of as it joins a table again.
//!
//! A request may name a new owner that has joined the cluster and of which this worker has not
//! heard. It is kept until the scheduler has told of that one (`worker/joining.rs`).
//!
//! Path: **worker** > slicer > filter > message > codec > endpoint > transport.

use std::collections::{BTreeSet, VecDeque};

use caravan_van::wire::{Coding, Kind};
use caravan_van::{Draft, KeyRange, Message, Values};

use super::Worker;
use super::lanes::{NOBODY, Server};
use super::table::TableState;
use super::waiting::{Awaited, Silence};
use crate::error::Result;
use crate::map::Placed;
use crate::op::Op;
use crate::refusal::Refusal;
use crate::server::{Destination, SentBack};
use crate::tracker::Timestamp;

/// What a worker has to do because shards have moved.
#[derive(Default)]
pub(super) struct Moves {
    /// Requests to send again, in the order in which they came back.
    returned: VecDeque<Returned>,
    /// Shards whose former owners have not answered a mark.
    settling: Vec<Settling>,
    /// Requests that came back for server threads which are not known yet.
    pub(super) early: Vec<Returned>,
    /// Server threads that have left and to which there may be a lane.
    pub(super) parting: BTreeSet<usize>,
}

pub(super) struct Returned {
    /// The worker's index of the table.
    table: usize,
    shard: usize,
    /// The server that has to answer it; of an early one, that which has sent it.
    pub(super) server: usize,
    pub(super) message: Message,
}

struct Settling {
    table: usize,
    shard: usize,
    server: usize,
    /// The table's number, and the keys of the shard.
    number: u32,
    range: KeyRange,
    /// `None` while the lane has no room for it.
    mark: Option<Timestamp>,
}

impl Moves {
    /// Whether new requests to a shard may have to wait.
    #[inline]
    pub(super) fn concern(&self, table: usize, shard: usize) -> bool {
        self.is_settling(table, shard)
            || self.returned.iter().any(|it| (it.table, it.shard) == (table, shard))
    }

    /// Whether anything waits for news, or for a lane to be closed.
    pub(super) fn await_news(&self) -> bool {
        !self.early.is_empty() || !self.parting.is_empty()
    }

    /// Whether anything is to come from a server thread.
    pub(super) fn await_server(&self, server: usize) -> bool {
        self.settling.iter().any(|it| it.server == server)
            || self.early.iter().any(|it| it.server == server)
    }

    /// Whether requests to a shard may still come back.
    fn is_settling(&self, table: usize, shard: usize) -> bool {
        self.settling.iter().any(|it| (it.table, it.shard) == (table, shard))
            || self.early.iter().any(|it| (it.table, it.shard) == (table, shard))
    }
}

impl Worker {
    /// Takes back a request whose shard has moved. A malformed answer is the error of the request.
    #[cold]
    pub(super) fn take_back(&mut self, server: usize, message: Message) {
        let timestamp = message.timestamp();
        let begin = message.range().begin();
        let table = self.tables.iter().position(|known| known.number == message.table());
        let shard = table.and_then(|table| self.tables[table].map.find(begin));
        let back = SentBack::read(message.values());
        let is_early = back.is_some_and(|(head, _)| head.server as usize >= self.servers.len());
        if let (Some(table), Some(shard), true) = (table, shard, is_early)
            && self.waits.is_watched()
        {
            self.recovery.is_due = true;
            self.tables[table].route.close();
            return self.moves.early.push(Returned { table, shard, server, message });
        }
        let back = back.filter(|(head, _)| (head.server as usize) < self.servers.len());
        if let (Some(table), Some(shard), Some((head, _))) = (table, shard, back) {
            // One that has left has told of the owner behind it.
            if !self.recovery.view.has_left(head.server as usize) {
                self.enter_owner(table, begin, head.server as usize, head.epoch);
            }
            self.settle_with(server, table, shard);
        }
        let peer = self.servers[server].peer;
        let Some((progress, at)) = self.tracker.part(timestamp, server) else { return };
        let part = &mut progress.parts[at];
        if let Some(key) = part.offered.take() {
            part.into = self.endpoint.lanes.withdraw(peer, key).ok();
        }
        let request = progress.timestamp;
        let (Some(table), Some(shard), Some((head, body))) = (table, shard, back) else {
            self.tracker.answered(timestamp, server);
            let reason = Refusal::Internal.because("it sent a request back without its new owner");
            return self.conclude(server, request, Err(reason));
        };
        let owner = self.tables[table].map.shards()[shard].server;
        part.server = owner;
        // A wish that has come true is not for the new owner, which may have to move the shard on.
        let is_fulfilled = head.op == Op::Move as u64
            && serde_json::from_slice(body)
                .is_ok_and(|wish: Destination| wish.server == head.server as usize);
        if is_fulfilled {
            self.tracker.answered(timestamp, owner);
            return self.conclude(owner, request, Ok(()));
        }
        // Requests come back from several servers if a shard moves on meanwhile.
        let returned = &mut self.moves.returned;
        let place = returned.partition_point(|it| it.message.timestamp() < timestamp);
        returned.insert(place, Returned { table, shard, server: owner, message });
    }

    /// Records that a server owns a shard from this epoch on, if that is news: requests to it wait
    /// until the one before has sent back all that it got.
    pub(super) fn enter_owner(&mut self, table: usize, begin: u64, server: usize, epoch: u64) {
        let map = &mut self.tables[table].map;
        let former = map.find(begin).map(|shard| (shard, map.shards()[shard].server));
        if map.enter(begin, server, epoch)
            && let Some((shard, former)) = former
        {
            self.settle_with(former, table, shard);
        }
    }

    /// Makes requests to a shard wait until a server that had it has sent back all that it got.
    pub(super) fn settle_with(&mut self, server: usize, table: usize, shard: usize) {
        let TableState { number, route, map, .. } = &mut self.tables[table];
        route.close();
        let (number, range) = (*number, map.shards()[shard].range);
        let is_it = |it: &Settling| (it.table, it.shard, it.server) == (table, shard, server);
        if !self.moves.settling.iter().any(is_it) {
            self.moves.settling.push(Settling { table, shard, server, number, range, mark: None });
        }
        self.settle_on();
    }

    /// Forgets servers that have answered their marks, and posts marks that had to wait for room.
    pub(super) fn settle_on(&mut self) {
        let mut settling = std::mem::take(&mut self.moves.settling);
        settling.retain_mut(|it| match it.mark {
            Some(mark) => !self.tracker.is_settled(mark.0),
            None => self.post_mark(it),
        });
        self.moves.settling = settling;
    }

    /// Posts a mark if there is room. Returns whether anything may still come back.
    fn post_mark(&mut self, it: &mut Settling) -> bool {
        let Server { peer, lost, .. } = &self.servers[it.server];
        if *peer == NOBODY || lost.is_some() {
            return false; // nothing comes back on a lane that is gone, or never was
        }
        if self.endpoint.lanes.credits(*peer) == 0 {
            return true;
        }
        let Ok(mark) = self.tracker.begin_short(Op::Push, it.server as u32, None) else {
            return true; // so many requests are outstanding that none can follow
        };
        let (op, timestamp) = (Op::Mark as u8, mark.0);
        let Settling { number: table, range, .. } = *it;
        let draft = Draft { op, table, range, timestamp, ..Draft::new(Kind::Request) };
        it.mark = Some(mark);
        if let Err(error) = self.endpoint.lanes.post(*peer, draft, &mut Coding::plain()) {
            self.lose(it.server, &error);
        }
        true
    }

    /// Sends requests again that came back, as long as there is room at their new owners.
    #[inline]
    pub(super) fn send_returned(&mut self) {
        if !self.moves.returned.is_empty() {
            self.send_all_returned();
        }
    }

    #[cold]
    fn send_all_returned(&mut self) {
        self.settle_on();
        let mut next = 0;
        while let Some(first) = self.moves.returned.get(next) {
            let Returned { table, shard, server: from, .. } = *first;
            if self.moves.is_settling(table, shard) {
                next += 1;
                continue;
            }
            let number = first.message.table();
            let known = self.tables.get(table).filter(|known| known.number == number);
            let Some(known) = known else {
                // This worker has dropped the table meanwhile.
                if let Some(Returned { message, .. }) = self.moves.returned.remove(next) {
                    self.enter_dropped(from, &message);
                }
                continue;
            };
            let Placed { range, server, .. } = known.map.shards()[shard];
            self.open_lane(server);
            let peer = self.servers[server].peer;
            let is_lost = self.servers[server].lost.is_some();
            if self.may_have_left(server) {
                next += 1;
                continue;
            }
            if !is_lost && self.endpoint.lanes.credits(peer) == 0 {
                return;
            }
            let Some(Returned { message, .. }) = self.moves.returned.remove(next) else { return };
            let timestamp = message.timestamp();
            let Some((progress, at)) = self.tracker.part(timestamp, from) else { continue };
            progress.parts[at].server = server;
            if is_lost {
                let request = progress.timestamp;
                progress.error.get_or_insert(self.servers[server].error());
                self.tracker.answered(timestamp, server);
                self.settle(request);
                continue;
            }
            let Some((head, values)) = SentBack::read(message.values()) else { continue };
            let coding = &mut self.tables[table].coding;
            let draft = Draft {
                op: head.op as u8,
                command: message.command(),
                table: number,
                timestamp,
                clock: head.clock,
                range,
                keys: message.keys(),
                lengths: message.lengths(),
                values: Values::Copied(values),
                ..Draft::new(Kind::Request)
            };
            if let Err(error) = self.endpoint.lanes.post(peer, draft, coding) {
                self.lose(server, &error);
            }
        }
    }

    /// Waits until new requests to a shard cannot overtake others.
    #[cold]
    pub(super) fn wait_until_settled_at(&mut self, table: usize, shard: usize) -> Result<()> {
        let mut silence = Silence::default();
        loop {
            self.settle_on();
            if !self.moves.concern(table, shard) {
                return Ok(());
            }
            let server = self.tables[table].map.shards()[shard].server;
            match self.poll()? {
                true => silence.began = None,
                false => self.backoff(&mut silence, Awaited::Room(server))?,
            }
        }
    }
}
