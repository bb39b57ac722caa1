//! New lanes in place of broken ones.
//!
//! Path: **worker** > slicer > filter > message > codec > endpoint > transport. A request on a lane
//! that breaks ends with an error, since nobody knows whether the server has executed it. Its
//! caller decides whether to make it again. A table that is [`TableSpec::once`] knows repeats.
//!
//! [`TableSpec::once`]: crate::TableSpec::once

use std::time::Duration;

use super::Worker;
use crate::error::{Error, Result, with_sources};

impl Worker {
    /// Connects again to all servers whose lanes have broken, and returns their number. Requests
    /// that were outstanding on those lanes have ended with [`Error::ServerLost`].
    ///
    /// In tables with a consistency model the servers count a worker without lanes as gone:
    /// [`Worker::rejoin`] them.
    ///
    /// # Errors
    /// [`Error::ServerLost`] and [`Error::Timeout`] name a server that cannot be reached. The
    /// caller may try again.
    pub fn reconnect(&mut self, timeout: Duration) -> Result<usize> {
        let broken: Vec<usize> =
            self.living().into_iter().filter(|at| self.servers[*at].lost.is_some()).collect();
        for &at in &broken {
            let server = &mut self.servers[at];
            let connected = self.endpoint.connect(&server.at.address);
            let peer = connected.map_err(|error| Error::ServerLost {
                server: server.at.name.clone(),
                address: server.at.address.clone(),
                reason: with_sources(&error),
            })?;
            let before = server.peer.0 as usize;
            (server.peer, server.up, server.lost) = (peer, false, None);
            self.by_peer[before] = None;
            self.enter_peer(at);
        }
        self.tables.iter_mut().for_each(|known| known.route.close());
        self.wait_until_connected(timeout)?;
        Ok(broken.len())
    }
}
