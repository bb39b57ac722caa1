//! What a worker does when servers leave a cluster that runs.
//!
//! The scheduler tells of their threads, in one order for all, and where each has given its shards.
//! The thread owns nothing then, and sends back what still comes to it. The worker enters the new
//! owners, also those of tables that it joins later. What such a table places on the thread is at
//! its successor. Of shards with copies the next thread that has one serves, as after a loss. When
//! nothing is outstanding at the thread the worker closes the lane, for which that waits. Nothing
//! is posted on a lane to a thread that has joined before it is up. So of one that cannot be
//! reached the worker waits for news.
//!
//! Path: **worker** > slicer > filter > message > codec > endpoint > transport.

use std::collections::BTreeSet;

use super::Worker;
use super::chains::enter_chains;
use super::lanes::NOBODY;
use crate::error::{Error, Result};
use crate::map::Retired;
use crate::membership::{Departed, Event};
use crate::op::Op;

/// Why no lane goes to a thread that has left.
pub(super) const LEFT: &str = "it has left the cluster";

impl Worker {
    /// Records all that was said so far of servers that have joined or leave.
    pub(super) fn enter_events(&mut self, events: &[Event]) {
        let known = self.recovery.view.events.len();
        for event in events.get(known..).unwrap_or_default() {
            self.recovery.enter_event(event);
            // Servers hear of it first.
            self.tables.iter_mut().for_each(|known| known.route.close());
            self.enter_joined();
            enter_chains(self, event.entries());
            let Event::Departed(departed) = event else { continue };
            self.moves.parting.insert(departed.thread);
            (0..self.tables.len()).for_each(|table| self.enter_handed(table, departed));
            let successor = self.recovery.view.successor(departed.thread);
            if let Some(successor) = successor {
                self.succeed(departed.thread, successor);
            }
        }
    }

    /// Records into the map of a new table where threads that have left have given its shards.
    pub(super) fn enter_all_handed(&mut self, table: usize) {
        let events = std::mem::take(&mut self.recovery.view.events);
        let departed = events.iter().filter_map(Event::departed);
        departed.for_each(|departed| self.enter_handed(table, departed));
        self.recovery.view.events = events;
    }

    fn enter_handed(&mut self, table: usize, departed: &Departed) {
        if self.tables[table].spec.replicas > 0 {
            return;
        }
        let number = self.tables[table].number;
        for handed in departed.gone.iter().filter(|handed| handed.table == number) {
            self.enter_owner(table, handed.begin, handed.server, handed.epoch);
        }
        // Of a table that was dropped the successor knows that; one that is newer it has.
        let known = &mut self.tables[table];
        known.map.succeed(departed.thread, |_| departed.successor);
        known.route.close();
    }

    /// Replaces the threads that have left, which then count as told of this table, by those to
    /// which they have given shards of it, or by their successors.
    pub(super) fn behind_departed(
        &self,
        number: u32,
        told: &mut BTreeSet<usize>,
        threads: BTreeSet<usize>,
    ) -> BTreeSet<usize> {
        let view = &self.recovery.view;
        let mut next = threads;
        while let Some(departed) = view.departed().find(|it| next.remove(&it.thread)) {
            if told.insert(departed.thread) {
                let gone = departed.gone.iter().filter(|handed| handed.table == number);
                let gone: BTreeSet<usize> = gone.map(|handed| handed.server).collect();
                next.extend(if gone.is_empty() {
                    BTreeSet::from([departed.successor])
                } else {
                    gone
                });
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
    /// no backoffs, during which others look.
    #[cold]
    pub(super) fn look_at_times(&mut self) -> Result<()> {
        if self.waits.is_turn() {
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
        self.wait_for_news(|worker| worker.moves.parting.first().copied())
    }

    /// Waits until this worker has heard that these server threads will leave.
    ///
    /// # Errors
    /// As [`Worker::wait`] for a lost node, and for one that is silent.
    pub(crate) fn wait_until_announced(&mut self, threads: &[usize]) -> Result<()> {
        let is_told =
            |worker: &Worker| threads.iter().all(|thread| worker.recovery.view.leaves(*thread));
        self.wait_for_news(|worker| (!is_told(worker)).then_some(0))
    }

    /// Asks server threads to take no more shards; returns what all have to know when they have
    /// left, or how many shards they have that have to go, and that nobody else has whole.
    ///
    /// # Errors
    /// [`Error::Config`] if no server would stay; [`Error::ServerLost`].
    pub(crate) fn retire_threads(
        &mut self,
        threads: &[usize],
    ) -> Result<std::result::Result<Vec<Departed>, (usize, usize)>> {
        let Some(successors) = self.recovery.view.successors(threads) else {
            return Err(Error::Config("no server would stay in the cluster".to_owned()));
        };
        let op = Op::Retire;
        let mut all = Vec::new();
        let mut left = (0, 0);
        for (&thread, successor) in threads.iter().zip(successors) {
            let asked = self.tell(&[thread], op, 0, &serde_json::to_vec(&successor)?)?;
            let replies = self.wait(asked)?.replies;
            let reply = replies.first().map_or(&[][..], Vec::as_slice);
            let Retired { shards, alone, departed } = self.read_reply(thread, op, reply)?;
            left = (left.0 + shards, left.1 + alone);
            all.push(departed);
        }
        Ok(if left == (0, 0) { Ok(all) } else { Err(left) })
    }
}
