//! What a worker does when servers leave a cluster that runs.
//!
//! The scheduler tells of their threads, in one order for all, and where each has given its shards.
//! The thread owns nothing then, and sends back what still comes to it. The worker enters the new
//! owners, also those of tables that it joins later. When nothing is outstanding at the thread it
//! closes the lane, for which that waits. Nothing is posted on a lane to a thread that has joined
//! before it is up. So of one that cannot be reached the worker waits for news.
//!
//! Path: **worker** > slicer > filter > message > codec > endpoint > transport.

use std::collections::BTreeSet;

use super::Worker;
use super::lanes::NOBODY;
use super::waiting::{Awaited, LOOK_EVERY_JOINED, Silence};
use crate::error::Result;
use crate::map::Retired;
use crate::tracker::RequestKind;
use crate::view::Departed;

/// Why no lane goes to a thread that has left.
pub(super) const LEFT: &str = "it has left the cluster";

impl Worker {
    /// Enters all server threads that have left so far.
    pub(super) fn enter_left(&mut self, left: &[Departed]) {
        let known = self.recovery.view.left.len();
        for departed in left.get(known..).unwrap_or_default() {
            self.recovery.view.left.push(departed.clone());
            self.moves.parting.insert(departed.thread);
            (0..self.tables.len()).for_each(|table| self.enter_handed(table, departed));
            self.recovery.is_due = true;
        }
    }

    /// Enters into the map of a new table where threads that have left have given its shards.
    pub(super) fn enter_all_handed(&mut self, table: usize) {
        let left = std::mem::take(&mut self.recovery.view.left);
        left.iter().for_each(|departed| self.enter_handed(table, departed));
        self.recovery.view.left = left;
    }

    fn enter_handed(&mut self, table: usize, departed: &Departed) {
        let number = self.tables[table].number;
        for handed in departed.gone.iter().filter(|handed| handed.table == number) {
            self.enter_owner(table, handed.begin, handed.server, handed.epoch);
        }
        // A thread forgets the shards of a dropped table; the first one knows that it was dropped.
        if let Ok(first) = self.first() {
            let known = &mut self.tables[table];
            known.map.pass_on(departed.thread, first);
            known.route.close();
        }
    }

    /// Replaces the threads that have left, which then count as told of this table, by those to
    /// which they have given shards of it.
    pub(super) fn behind_departed(
        &self,
        number: u32,
        told: &mut BTreeSet<usize>,
        threads: BTreeSet<usize>,
    ) -> BTreeSet<usize> {
        let left = &self.recovery.view.left;
        let mut next = threads;
        while let Some(departed) = left.iter().find(|it| next.remove(&it.thread)) {
            if told.insert(departed.thread) {
                let gone = departed.gone.iter().filter(|handed| handed.table == number);
                next.extend(gone.map(|handed| handed.server));
            }
        }
        next
    }

    /// Closes the lanes to threads that have left and at which nothing is outstanding; returns
    /// whether there were any.
    pub(super) fn part(&mut self) -> bool {
        if self.moves.parting.is_empty() {
            return false;
        }
        self.settle_on();
        let mut any = false;
        for server in self.moves.parting.clone() {
            if self.moves.await_server(server) || self.tracker.awaits(server) {
                continue;
            }
            any |= self.moves.parting.remove(&server);
            if self.servers[server].peer == NOBODY {
                self.servers[server].lost = Some(LEFT.to_owned());
            } else {
                self.lose_for(server, LEFT.to_owned());
            }
        }
        any
    }

    /// Looks for news at some of the waits: a worker whose answers are there before it waits takes
    /// no naps, during which others look.
    #[cold]
    pub(super) fn look_at_times(&mut self) -> Result<()> {
        if self.waits.is_turn(LOOK_EVERY_JOINED) {
            self.check_lost_nodes()?;
        }
        Ok(())
    }

    /// Waits until this worker has closed its lanes to all threads that have left, as far as it has
    /// heard.
    ///
    /// # Errors
    /// As [`Worker::wait`] for a lost node, and for one that is silent.
    pub(crate) fn part_from_left(&mut self) -> Result<()> {
        self.check_lost_nodes()?;
        let mut silence = Silence::default();
        while let Some(&server) = self.moves.parting.first() {
            self.recovery.is_due = true;
            match self.poll()? {
                true => silence.began = None,
                false => self.nap(&mut silence, Awaited::Room(server))?,
            }
        }
        Ok(())
    }

    /// Asks a server thread to take no more shards; returns how many it has, and with none where
    /// those have gone that it had.
    ///
    /// # Errors
    /// [`Error::Refused`](crate::Error::Refused) if tables are placed on it;
    /// [`Error::ServerLost`](crate::Error::ServerLost).
    pub(crate) fn retire_thread(&mut self, thread: usize) -> Result<(usize, Departed)> {
        let kind = RequestKind::Retire;
        let asked = self.tell(&[thread], kind, 0, &[])?;
        let replies = self.wait(asked)?.replies;
        let reply = replies.first().map_or(&[][..], Vec::as_slice);
        let Retired { shards, gone } = self.read_reply(thread, kind, reply)?;
        Ok((shards, Departed { thread, gone }))
    }
}
