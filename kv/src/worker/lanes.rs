//! Lanes to server threads: each is opened when a request first goes there, and anew when it has
//! broken.
//!
//! Path: **worker** > slicer > filter > message > codec > endpoint > transport. A request to a
//! thread without a lane opens it and is posted there. It leaves when the lane is up; so the lanes
//! that one request needs come up side by side. Further requests to the thread wait for that, as
//! they wait for room on a full lane. A request over an open lane pays nothing for this: where
//! there is no lane there are no credits.
//!
//! A request on a lane that breaks ends with an error, since nobody knows whether the server has
//! executed it. Its caller decides whether to make it again. A table that is [`TableSpec::once`]
//! knows repeats.
//!
//! [`TableSpec::once`]: crate::TableSpec::once

use std::time::Duration;

use caravan_van::PeerId;

use super::{ServerAddress, Worker};
use crate::error::{Error, Result, with_sources};

/// Stands for the lane to a server to which there is none.
pub(super) const NOBODY: PeerId = PeerId(u32::MAX);

/// A server thread, and the lane to it.
pub(super) struct Server {
    pub(super) at: ServerAddress,
    /// [`NOBODY`] without a lane.
    pub(super) peer: PeerId,
    /// Whether the lane is up, and whether it or the one before has been.
    pub(super) up: bool,
    pub(super) was_up: bool,
    /// When the lane was opened.
    opened: Duration,
    /// Why the server is lost.
    pub(super) lost: Option<String>,
}

impl Server {
    /// One without a lane.
    pub(super) fn new(at: ServerAddress, lost: Option<String>) -> Server {
        Server { at, peer: NOBODY, up: false, was_up: false, opened: Duration::ZERO, lost }
    }

    /// Whether nothing has needed a lane so far.
    pub(super) fn is_unused(&self) -> bool {
        self.peer == NOBODY && self.lost.is_none()
    }

    /// Whether its lane is to come up.
    fn is_opening(&self) -> bool {
        self.peer != NOBODY && !self.up
    }

    pub(super) fn error(&self) -> Error {
        Error::ServerLost {
            server: self.at.name.clone(),
            address: self.at.address.clone(),
            reason: self.lost.clone().unwrap_or_else(|| "not connected".to_owned()),
        }
    }
}

impl Worker {
    /// Opens the lane to a server, unless there is or was one. The server is lost if that fails.
    pub(super) fn open_lane(&mut self, server: usize) {
        if self.servers[server].is_unused()
            && let Err(error) = self.connect_to(server)
        {
            self.lose(server, &error);
        }
    }

    /// Makes a new lane to a server.
    pub(super) fn connect_to(&mut self, server: usize) -> caravan_van::Result<()> {
        let now = self.endpoint.lanes.now();
        let Server { at, peer, up, was_up, opened, lost } = &mut self.servers[server];
        (*opened, *was_up) = (now, false);
        // One that has joined may have left: nothing is posted before it is known to be there.
        *peer = match server < self.founders {
            true => self.endpoint.open(&at.address)?,
            false => self.endpoint.connect(&at.address)?,
        };
        (*up, *lost) = (false, None);
        let place = peer.0 as usize;
        if self.by_peer.len() <= place {
            self.by_peer.resize(place + 1, None);
        }
        self.by_peer[place] = Some(server);
        self.recovery.enter_lane(server);
        // They name lanes.
        self.tables.iter_mut().for_each(|known| known.route.close());
        Ok(())
    }

    /// Whether a server thread that has joined could not be reached, and may have left: the
    /// scheduler will tell, unless it takes longer than a lane may.
    pub(super) fn may_have_left(&mut self, server: usize) -> bool {
        let Server { was_up, opened, ref lost, .. } = self.servers[server];
        let is_unknown = server >= self.founders
            && lost.is_some()
            && !was_up
            && self.waits.is_watched()
            && !self.recovery.is_gone(server);
        let waits = is_unknown && self.now() <= opened.saturating_add(self.waits.opening_max);
        self.recovery.is_due |= waits;
        waits
    }

    /// Connects to these servers, and waits until they have answered.
    pub(super) fn connect_all(&mut self, servers: &[usize], timeout: Duration) -> Result<()> {
        for &server in servers {
            self.connect_to(server).map_err(|error| {
                let ServerAddress { name, address } = self.servers[server].at.clone();
                Error::ServerLost { server: name, address, reason: with_sources(&error) }
            })?;
        }
        self.wait_until_connected(timeout)
    }

    fn wait_until_connected(&mut self, timeout: Duration) -> Result<()> {
        let began = self.endpoint.lanes.now();
        while let Some(next) = (0..self.servers.len()).find(|server| self.is_awaited(*server)) {
            self.poll()?;
            self.check_lost_nodes()?;
            if self.servers[next].lost.is_some() && self.is_awaited(next) {
                return Err(self.servers[next].error());
            }
            let waited = self.endpoint.lanes.now() - began;
            if waited > timeout {
                let missing = (0..self.servers.len()).filter(|server| self.is_awaited(*server));
                return Err(self.not_connected(waited, missing));
            }
            self.endpoint.wait(self.waits.backoff.min(timeout))?;
        }
        Ok(())
    }

    /// Whether a server has or had a lane that is not up, and does not count as lost.
    fn is_awaited(&self, server: usize) -> bool {
        let Server { up, .. } = self.servers[server];
        !up && !self.servers[server].is_unused() && !self.recovery.is_gone(server)
    }

    fn not_connected(&self, waited: Duration, missing: impl Iterator<Item = usize>) -> Error {
        let missing = missing.map(|server| {
            let ServerAddress { name, address } = &self.servers[server].at;
            format!("{name} at {address}")
        });
        Error::Timeout {
            what: "connecting to the servers".to_owned(),
            seconds: waited.as_secs_f64(),
            missing: missing.collect::<Vec<_>>().join(", "),
        }
    }

    /// Fails if a lane has been coming up for too long, to a server that `awaits` names because
    /// the caller waits for it. A lane that is kept up is tried until its server counts as lost.
    pub(super) fn check_opening(
        &mut self,
        now: Duration,
        awaits: impl FnOnce(&mut Worker) -> Vec<usize>,
    ) -> Result<()> {
        let waited = |server: &Server| now.saturating_sub(server.opened);
        let is_late = |at: &usize| {
            let server = &self.servers[*at];
            server.is_opening()
                && waited(server) > self.waits.opening_max
                && !self.recovery.is_kept_up(*at)
        };
        let late: Vec<usize> = (0..self.servers.len()).filter(is_late).collect();
        if late.is_empty() {
            return Ok(());
        }
        let awaited = awaits(self);
        let mut late = late.into_iter().filter(|server| awaited.contains(server)).peekable();
        match late.peek() {
            Some(first) => Err(self.not_connected(waited(&self.servers[*first]), late)),
            None => Ok(()),
        }
    }
}
