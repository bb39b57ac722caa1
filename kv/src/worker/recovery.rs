//! What a worker does so that its requests to tables with replicas outlive lanes and servers.
//!
//! Each part of such a request is kept until it is answered. When its lane breaks, the lane is made
//! again. When its server counts as lost, the shard is the next thread's that has a copy. Then the
//! parts that were not answered are posted again, in the order in which they were made, and new
//! ones behind them; the servers know repeats by their timestamps (`server/tables/chain.rs`).
//! Before anything else a server hears which others are lost or have left.
//!
//! The scheduler of a cluster says who is lost, without one [`Admin::watch_servers`]. The worker
//! asks while it waits.
//!
//! Path: **worker** > slicer > filter > message > codec > endpoint > transport.

use std::collections::BTreeSet;
use std::time::Duration;

use caravan_van::wire::{Coding, Kind};
use caravan_van::{Draft, Values};

use super::kept::{Kept, KeptRequests};
use super::lanes::{NOBODY, Server};
use super::waiting::{Awaited, Silence};
use super::{Table, Worker};
use crate::error::Result;
use crate::map::Placed;
use crate::membership::{Event, Membership};
use crate::op::{BITS, Op};
use crate::tracker::Tracker;

/// Time between two attempts to make a lane again, and longest sleep while something is to be
/// done.
pub(super) const RETRY: Duration = Duration::from_millis(5);

/// All that a worker needs to go on.
#[derive(Default)]
pub(super) struct Recovery {
    /// Parts that are not answered.
    pub(super) kept: KeptRequests,
    /// Timestamps of those that are to be posted.
    unposted: BTreeSet<u64>,
    pub(super) view: Membership,
    /// Whether each server has heard the view on its present lane.
    told: Vec<bool>,
    /// When the lane to each server may be made again.
    retry_at: Vec<Duration>,
    /// Whether any table has had replicas, or a request about tables has outlived a server.
    pub(super) is_on: bool,
    /// Whether a server has said that a chain does not begin there, and nothing was heard or
    /// answered since.
    pub(super) awaits_chain: bool,
    /// Whether there may be anything for [`Worker::recover`] to do.
    pub(super) is_due: bool,
}

impl Recovery {
    /// For these founding server threads, so many in each process.
    pub(super) fn of(addresses: Vec<String>, threads: usize) -> Recovery {
        let told = vec![false; addresses.len()];
        let retry_at = vec![Duration::ZERO; addresses.len()];
        let view = Membership { addresses, threads, ..Membership::default() };
        Recovery { told, retry_at, view, ..Recovery::default() }
    }

    /// Records that another server thread has joined.
    pub(super) fn enter_joined(&mut self) {
        self.told.push(false);
        self.retry_at.push(Duration::ZERO);
    }

    /// Records what has become of a server, of which others hear before anything else.
    pub(super) fn enter_event(&mut self, event: &Event) {
        self.view.enter(event.clone());
        self.told.fill(false);
        self.is_on |= event.departed().is_some();
        self.awaits_chain = false;
        self.is_due = true;
    }

    /// Posts a part as soon as that is possible.
    pub(super) fn post_later(&mut self, timestamp: u64) {
        self.unposted.insert(timestamp);
        self.is_due = true;
    }

    /// Whether a part that could not be posted is kept, and will be.
    ///
    /// # Errors
    /// The error if it is not, or its lane is not to blame.
    #[cold]
    pub(super) fn excuse(
        &mut self,
        timestamp: u64,
        error: caravan_van::Error,
    ) -> caravan_van::Result<()> {
        if !is_closed(&error) || self.kept.get(timestamp).is_none() {
            return Err(error);
        }
        self.post_later(timestamp);
        Ok(())
    }

    /// Whether a command or a join to the shard of a table with this first key is kept.
    fn keeps_command(&self, table: u32, begin: u64) -> bool {
        let is_it = |kept: &Kept| {
            let answers = [Op::Command, Op::Join].map(|op| op as u8);
            answers.contains(&kept.op) && kept.table == table && kept.range.begin() == begin
        };
        self.kept.iter().any(is_it)
    }

    /// Number of kept parts of such requests whose table and iteration are meant.
    pub(super) fn parts(&self, op: Op, is_meant: impl Fn(u32, u64) -> bool) -> usize {
        let is_it = |kept: &&Kept| kept.op & !BITS == op as u8 && is_meant(kept.table, kept.clock);
        self.kept.iter().filter(is_it).count()
    }

    /// Keeps a part no longer.
    #[inline]
    pub(super) fn forget(&mut self, timestamp: u64) {
        if !self.kept.is_empty() && self.kept.remove(timestamp) {
            self.awaits_chain = false;
            if !self.unposted.is_empty() {
                self.unposted.remove(&timestamp);
            }
        }
    }

    /// Keeps nothing for a server any longer.
    fn give_up(&mut self, server: usize) {
        let Recovery { kept, unposted, .. } = self;
        kept.give_up(server);
        unposted.retain(|timestamp| kept.get(*timestamp).is_some());
    }

    /// Whether a part is kept that this server has to answer.
    pub(super) fn keeps(&self, timestamp: u64, server: usize) -> bool {
        self.kept.get(timestamp).is_some_and(|kept| kept.server == server)
    }

    /// Whether a server is lost for good, or has left.
    pub(super) fn is_gone(&self, server: usize) -> bool {
        self.view.is_gone(server)
    }

    /// Whether the lane to a server is made again if it breaks.
    pub(super) fn is_kept_up(&self, server: usize) -> bool {
        self.is_on && !self.is_gone(server)
    }

    /// Whether new parts to a server have to wait for the view or for others.
    pub(super) fn concerns(&self, server: usize) -> bool {
        let of_it = |timestamp| self.keeps(timestamp, server);
        !self.told[server] || self.unposted.iter().copied().any(of_it)
    }

    /// Records that the lane to a server is a new one.
    pub(super) fn enter_lane(&mut self, server: usize) {
        self.told[server] = false;
        self.is_due |= self.is_on;
    }
}

impl Worker {
    /// Records that a server thread is lost for good.
    pub(super) fn lose_server(&mut self, server: usize) {
        if server >= self.servers.len() || !self.recovery.view.lost.insert(server) {
            return;
        }
        let Some(successor) = self.recovery.view.successor(server) else {
            self.recovery.give_up(server);
            self.drop_lane(server);
            return self.fail_open(server);
        };
        self.succeed(server, successor);
        self.drop_lane(server);
    }

    /// Redirects the replicated shards of a lost server, or of one that has left, to its successor.
    /// Requests that it has not answered are posted again, behind the news.
    pub(super) fn succeed(&mut self, server: usize, successor: usize) {
        let Worker { recovery, tracker, tables, .. } = self;
        recovery.told.fill(false);
        recovery.is_due |= recovery.is_on;
        for known in tables.iter_mut().filter(|known| known.spec.replicas > 0) {
            known.map.succeed(server, |_| successor);
            known.follow_chains(&recovery.view);
        }
        redirect(recovery, tracker, |kept| {
            let known = tables.iter().find(|known| known.number == kept.table);
            let shard = known.and_then(|it| Some((it, it.map.find(kept.range.begin())?)));
            let owner = shard.map(|(known, at)| known.map.shards()[at].server);
            (kept.server == server).then(|| owner.unwrap_or(successor))
        });
    }

    /// Why a server's keys are gone with it: the name of a table there without replicas.
    pub(super) fn without_replicas(&self, server: usize) -> Option<String> {
        let is_alone = |shards: &[Placed]| shards.iter().any(|shard| shard.server == server);
        let mut tables = self.tables.iter().filter(|known| known.spec.replicas == 0);
        let known = tables.find(|known| is_alone(known.map.shards()))?;
        Some(format!("table {} has no replicas to go on with", known.spec.name))
    }

    /// Closes the lane to a lost server, unless it has broken before.
    fn drop_lane(&mut self, server: usize) {
        let Server { peer, ref at, ref mut lost, .. } = self.servers[server];
        let address = at.address.clone();
        let reason = "it counts as lost".to_owned();
        match lost {
            Some(before) => *before = format!("{before}; {reason}"),
            None if peer == NOBODY => self.lose_for(server, reason),
            None => self.lose(
                server,
                &caravan_van::Error::PeerLost { peer, address, reason: reason.into() },
            ),
        }
    }

    /// Makes lanes again, tells servers who is lost, and posts again what is kept; returns whether
    /// anything was done.
    ///
    /// # Errors
    /// As [`Worker::check_lost_nodes`].
    #[cold]
    pub(super) fn recover(&mut self) -> Result<bool> {
        self.recovery.is_due = false;
        self.check_lost_nodes()?;
        let mut is_busy = self.part();
        for server in 0..self.servers.len() {
            if self.recovery.is_kept_up(server) {
                is_busy |= self.keep_up(server);
            }
        }
        let unposted: Vec<u64> = self.recovery.unposted.iter().copied().collect();
        let mut waits = BTreeSet::new();
        for timestamp in unposted {
            let Some(kept) = self.recovery.kept.get(timestamp) else { continue };
            let server = kept.server;
            self.open_lane(server); // that of a successor
            let is_posted = !waits.contains(&server) && self.post_again(timestamp);
            is_busy |= is_posted;
            if !is_posted {
                waits.insert(server);
            }
        }
        self.recovery.is_due |=
            !waits.is_empty() || self.moves.await_news() || self.recovery.awaits_chain;
        // What was held back until there is news.
        self.send_returned();
        Ok(is_busy)
    }

    /// Makes the lane to a server again if it has broken, and tells the server who is lost.
    fn keep_up(&mut self, server: usize) -> bool {
        let now = self.endpoint.lanes.now();
        if self.servers[server].lost.is_some() {
            self.recovery.is_due = true;
            if now < self.recovery.retry_at[server] {
                return false;
            }
            self.recovery.retry_at[server] = now + RETRY;
            return self.connect_to(server).is_ok();
        }
        let Worker { endpoint, servers, recovery, tracker, .. } = self;
        let Recovery { told, is_due, view, .. } = recovery;
        // Whoever needs a first lane opens it.
        if told[server] || servers[server].is_unused() {
            return false;
        }
        let Server { peer, up, .. } = &servers[server];
        *is_due = true;
        let Ok(body) = serde_json::to_vec(view) else { return false };
        if !*up || endpoint.lanes.credits(*peer) == 0 {
            return false;
        }
        let Ok(asked) = tracker.begin_short(Op::Push, server as u32, None) else {
            return false;
        };
        if let Some(progress) = tracker.progress(asked.0) {
            progress.abandoned = true; // nobody waits for its outcome
        }
        let (op, timestamp) = (Op::Membership as u8, asked.0);
        let values = Values::Copied(&body);
        let draft = Draft { op, timestamp, values, ..Draft::new(Kind::Request) };
        told[server] = endpoint.lanes.post(*peer, draft, &mut Coding::plain()).is_ok();
        told[server]
    }

    /// Posts a part that is kept; returns whether its lane had room.
    fn post_again(&mut self, timestamp: u64) -> bool {
        let Worker { endpoint, servers, recovery, .. } = self;
        let Some(kept) = recovery.kept.get(timestamp) else { return true };
        let Server { peer, ref lost, .. } = servers[kept.server];
        let is_open = lost.is_none() && recovery.told[kept.server];
        if !is_open || endpoint.lanes.credits(peer) < 2 {
            return false;
        }
        let is_posted = endpoint.lanes.post(peer, kept.draft(), &mut Coding::plain()).is_ok();
        if is_posted {
            recovery.unposted.remove(&timestamp);
        }
        is_posted
    }

    /// Waits until a server has been told who is lost, and has what was kept for it; or is lost.
    #[cold]
    pub(super) fn wait_until_recovered(&mut self, server: usize) -> Result<()> {
        self.open_lane(server);
        self.wait_for_news(|worker| {
            let waits = worker.recovery.is_kept_up(server) && worker.recovery.concerns(server);
            waits.then_some(server)
        })
    }

    /// Waits as long as there is a server of which, or at which, something has to become known.
    ///
    /// # Errors
    /// As [`Worker::wait`] for a lost node, and for one that is silent.
    pub(super) fn wait_for_news(
        &mut self,
        mut awaited: impl FnMut(&mut Worker) -> Option<usize>,
    ) -> Result<()> {
        let mut silence = Silence::default();
        while let Some(server) = awaited(self) {
            self.recovery.is_due = true;
            match self.poll()? {
                true => silence.began = None,
                false => self.backoff(&mut silence, Awaited::Room(server))?,
            }
        }
        Ok(())
    }

    /// Waits until this worker's last command or join to a shard with copies is answered: they keep
    /// the answer of one.
    pub(super) fn wait_for_command(&mut self, table: Table, shard: usize) -> Result<()> {
        let begin = self.tables[table.0 as usize].map.shards()[shard].range.begin();
        let mut silence = Silence::default();
        while self.recovery.keeps_command(table.1, begin) {
            let server = self.tables[table.0 as usize].map.shards()[shard].server;
            match self.poll()? {
                true => silence.began = None,
                false => self.backoff(&mut silence, Awaited::Room(server))?,
            }
        }
        Ok(())
    }

    /// Waits until all servers that are not lost have been told who is.
    pub(super) fn tell_view(&mut self) -> Result<()> {
        self.recovery.is_on = true;
        self.recovery.is_due = true;
        self.living().into_iter().for_each(|server| self.open_lane(server));
        self.wait_for_news(|worker| {
            let Recovery { told, .. } = &worker.recovery;
            let is_untold = |server: &usize| worker.recovery.is_kept_up(*server) && !told[*server];
            let untold = (0..worker.servers.len()).find(is_untold)?;
            worker.open_lane(untold); // it may have joined meanwhile
            Some(untold)
        })
    }
}

/// Has other servers answer the parts that are kept where `owner` says so: they are posted there,
/// behind the news.
pub(super) fn redirect(
    recovery: &mut Recovery,
    tracker: &mut Tracker,
    owner: impl Fn(&Kept) -> Option<usize>,
) {
    let Recovery { kept, unposted, is_due, .. } = recovery;
    for kept in kept.iter_mut() {
        let Some(to) = owner(kept).filter(|to| *to != kept.server) else { continue };
        if let Some((progress, at)) = tracker.part(kept.timestamp, kept.server) {
            progress.parts[at].server = to;
            kept.server = to;
            unposted.insert(kept.timestamp);
            *is_due = true;
        }
    }
}

/// Whether a message could not be posted because its lane has broken.
pub(super) fn is_closed(error: &caravan_van::Error) -> bool {
    use caravan_van::Error::{NotConnected, PeerLost};
    matches!(error, NotConnected { .. } | PeerLost { .. })
}
