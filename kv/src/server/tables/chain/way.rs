//! The lane to the thread that follows, and the messages on it about a shard as a whole. Records go
//! there as the log posts them (`log.rs`).

use std::collections::VecDeque;
use std::time::Duration;

use caravan_van::wire::{Coding, Kind};
use caravan_van::{Connections, Draft, PeerId, Values};
use serde::{Deserialize, Serialize};

use super::log::{Log, LogEntry, Place};
use crate::membership::{ChainOf, Membership};
use crate::op::Op;
use crate::server::tables::moving::UNANSWERED_MAX;
use crate::server::tables::versions::Versions;

/// The body of [`Op::Follow`].
#[derive(Serialize, Deserialize)]
pub(super) struct Follow {
    /// The table's specification as JSON.
    pub(super) table: String,
    /// The thread that asks.
    pub(super) from: usize,
    pub(super) of: ChainOf,
    /// Whether nothing was ever done to the shard.
    pub(super) is_unused: bool,
    /// What the asking thread knows of the others, if the chain is not that of the placement.
    #[serde(default)]
    pub(super) view: Option<Membership>,
}

/// A lane to a thread that follows.
#[derive(Default)]
pub(super) struct Lane {
    pub(super) peer: Option<PeerId>,
    /// Messages about whole shards that were not answered, in order.
    pub(super) posted: VecDeque<Posted>,
    /// When it may be made again; set by the next look if it has just been lost.
    pub(super) retry_at: Option<Duration>,
    pub(super) was_lost: bool,
}

/// A message on it that was not answered.
#[derive(Clone, Copy)]
pub(super) struct Posted {
    pub(super) number: u64,
    pub(super) table: u32,
    pub(super) begin: u64,
    pub(super) op: Op,
}

impl Lane {
    /// Whether the last message of a copy of a shard is on its way, or its answer is.
    pub(super) fn completes(&self, (table, range): Place) -> bool {
        let is_it =
            |it: &Posted| it.op == Op::Whole && (it.table, it.begin) == (table, range.begin());
        self.posted.iter().any(is_it)
    }
}

/// The lane to the next thread and the place of a shard, to post messages about it.
pub(super) struct Way<'a> {
    pub(super) lanes: &'a mut Connections,
    pub(super) lane: &'a mut Lane,
    pub(super) count: &'a mut u64,
    pub(super) index: usize,
    pub(super) place: Place,
    /// Credits of the lane that stay for records of others, which that thread can confirm by
    /// itself. Where chains go round in a circle, lanes full of what has to go further would wait
    /// for each other.
    pub(super) reserve: usize,
    pub(super) view: &'a Membership,
}

impl Way<'_> {
    /// Most pieces of a copy that are not answered. They leave credits for requests.
    pub(super) fn pieces_max(&self) -> u32 {
        UNANSWERED_MAX.min(u32::from(self.lanes.credits_max() / 2)).max(1)
    }

    /// Posts the next rows that writes have overwritten; returns whether there was room for them,
    /// `None` if the copy has got all.
    pub(super) fn give_versions(
        &mut self,
        versions: Option<&mut Box<Versions>>,
        bytes_max: usize,
    ) -> Option<bool> {
        let versions = versions?;
        let piece = versions.piece(bytes_max)?;
        let is_posted = self.post(piece.draft(), Op::Rows);
        if is_posted {
            versions.advance(&piece);
        }
        Some(is_posted)
    }

    /// Asks the next thread to follow; returns whether there was room for that.
    ///
    /// # Errors
    /// If what it has to know is no JSON.
    pub(super) fn ask_to_follow(
        &mut self,
        text: &str,
        of: ChainOf,
        is_unused: bool,
    ) -> serde_json::Result<bool> {
        let (table, from) = (text.to_owned(), self.index);
        let view = self.view.has_entry(of).then(|| self.view.clone());
        let body = serde_json::to_vec(&Follow { table, from, of, is_unused, view })?;
        let values = Values::Copied(&body);
        Ok(self.post(Draft { values, ..Draft::new(Kind::Request) }, Op::Follow))
    }

    /// How many messages may be posted now.
    pub(super) fn room(&self) -> usize {
        let credits = self.lane.peer.map_or(0, |peer| self.lanes.credits(peer));
        credits.saturating_sub(self.reserve)
    }

    /// Posts a message about the shard as a whole; returns whether it could be posted now.
    pub(super) fn post(&mut self, draft: Draft<'_>, op: Op) -> bool {
        let Some(peer) = self.lane.peer else { return false };
        let (table, range) = self.place;
        let mut coding = if op == Op::Rows { Coding::compact() } else { Coding::plain() };
        let number = *self.count + 1;
        let draft = Draft { op: op as u8, table, range, timestamp: number, ..draft };
        if let Err(error) = self.lanes.post(peer, draft, &mut coding) {
            tracing::debug!(%error, "a copy has to wait");
            return false;
        }
        *self.count = number;
        self.lane.posted.push_back(Posted { number, table, begin: range.begin(), op });
        true
    }

    /// Posts records of an entry, from `from` on, at most so many and as far as there is room;
    /// returns how many it has posted.
    pub(super) fn replicate(&mut self, entry: &LogEntry, from: usize, most: usize) -> usize {
        let Some(peer) = self.lane.peer else { return 0 };
        let most = most.min(self.room());
        entry.post(from, most, self.lanes, peer, self.place)
    }

    /// Posts the next entry of a log, as far as there is room; returns how many records that were.
    pub(super) fn replicate_next(&mut self, log: &mut Log, most: usize) -> usize {
        let Some((entry, from)) = log.next() else { return 0 };
        let posted = self.replicate(entry, from, most);
        log.note_posted(posted);
        posted
    }
}
