//! What a worker does when servers join a cluster that runs.
//!
//! The scheduler tells of their threads, in one order for all. The worker enters them behind those
//! that it knows, and opens lanes to them when it needs them. A shard may be there before the
//! worker has heard of its owner: servers do not wait for the workers.
//!
//! Path: **worker** > slicer > filter > message > codec > endpoint > transport.

use std::collections::BTreeSet;

use super::Worker;
use super::lanes::Server;
use super::moving::Returned;
use crate::error::Result;
use crate::server_address::ServerAddress;

impl Worker {
    /// Records the server threads of its view that it does not know yet, and takes requests that
    /// came back for them before.
    pub(super) fn enter_joined(&mut self) {
        let known = self.servers.len() - self.founders;
        let new: Vec<ServerAddress> = self.recovery.view.joined().skip(known).cloned().collect();
        if new.is_empty() {
            return;
        }
        self.waits.look_often();
        for at in new {
            self.servers.push(Server::new(at, None));
            self.recovery.enter_joined();
        }
        for Returned { server, message, .. } in std::mem::take(&mut self.moves.early) {
            self.take_back(server, message);
        }
        self.recovery.is_due |= self.recovery.is_on;
    }

    /// Waits until this worker has heard of all these server threads, of which servers speak. One
    /// that nobody tells about the cluster hears of no more than it knows.
    ///
    /// # Errors
    /// As [`Worker::wait`](super::Worker::wait) for a lost node, and for one that is silent.
    pub(crate) fn wait_until_known(&mut self, named: &BTreeSet<usize>) -> Result<()> {
        let last = named.last().copied().unwrap_or_default();
        self.wait_for_news(|worker| {
            let is_unknown = last >= worker.servers.len() && worker.waits.is_watched();
            is_unknown.then_some(0)
        })
    }
}
