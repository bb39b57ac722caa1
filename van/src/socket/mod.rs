//! Vans over TCP sockets: everything that they share, which is all but the [`Engine`].
//!
//! A [`Sockets`] is one node's connections, looked after by the one thread that owns it. Bytes move
//! by plain non-blocking calls: frames and the data of writes leave from where they lie, and writes
//! land in the memory that was offered for them. An engine knows how a system tells which sockets
//! are ready; there are two, `uring` and the portable `caravan-fallback-tcp`.
//!
//! Path: worker > slicer > filter > message > codec > endpoint > transport (**socket**).

mod callers;
mod connect;
mod driver;
mod engine;
mod framing;
mod options;
mod peers;
mod state;

use std::fmt;
use std::time::Duration;

pub use engine::{Engine, Interest, Report, Socket};
pub use framing::{Receiver, Reply, Sender, Spaces};
pub use options::set_up;

use driver::Driver;

use crate::config::VanConfig;
use crate::error::Result;
use crate::memory::{Buffer, Pool};
use crate::metrics::Counters;
use crate::transport::{
    About, Clock, Event, Frame, Gather, Limits, PeerId, Sleeper, Transport, check_frame,
};
use crate::wait::{self, Pace, Progress};
use crate::wire::{Beside, Offer};

/// The carrier that handshakes name: all vans over sockets speak alike, so they connect to each
/// other.
pub const CARRIER: &str = "socket";

/// A node's sockets: one to each peer, one to listen.
pub struct Sockets<E: Engine> {
    driver: Driver<E>,
    pace: Pace,
    about: About,
    /// Whether something was posted since the last look.
    has_posted: bool,
}

impl<E: Engine> Sockets<E> {
    /// Listens on `config.listen`. Peers connect to [`About::address`], which names what was
    /// listened on: give an address that they can reach, not a wildcard.
    ///
    /// # Errors
    /// [`Setting`](crate::Error::Setting) as [`VanConfig::check`] says;
    /// [`Listen`](crate::Error::Listen); what [`Engine::open`]
    /// says.
    pub fn new(config: &VanConfig) -> Result<Sockets<E>> {
        config.check()?;
        Sockets::on(E::open(config)?, config)
    }

    /// The same on an engine that is there.
    pub(crate) fn on(mut engine: E, config: &VanConfig) -> Result<Sockets<E>> {
        let mut address = String::new();
        if config.accepts {
            address = connect::listen(&mut engine, &config.listen)?;
        }
        let about = About {
            name: E::NAME,
            address,
            host: None,
            port: None,
            limits: Limits::plain(config.frame_bytes, config.queue_depth),
            memory: Pool::from_pages(config.memory_bytes, config.pages, None),
            clock: Clock::start(),
        };
        let driver = Driver::new(engine, config, &about);
        Ok(Sockets { driver, pace: Pace::new(config.wait), about, has_posted: false })
    }
}

impl<E: Engine> fmt::Debug for Sockets<E> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} at {:?}", E::NAME, self.about.address)
    }
}

impl<E: Engine> Progress for Sockets<E> {
    #[inline]
    fn pace(&mut self) -> &mut Pace {
        &mut self.pace
    }

    #[inline]
    fn ready(&mut self) -> &mut Vec<Event> {
        &mut self.driver.hub.events
    }

    #[inline]
    fn has_posted(&self) -> bool {
        self.has_posted
    }

    fn turn(&mut self) -> Result<bool> {
        self.has_posted = false;
        let received = self.driver.hub.counters.bytes_received;
        self.driver.look()?;
        // A part of something: the rest is on its way.
        Ok(self.driver.hub.counters.bytes_received != received)
    }

    /// Only sends: the wait before has just looked.
    fn send_posted(&mut self) -> Result<()> {
        self.has_posted = false;
        self.driver.serve(false);
        Ok(())
    }

    fn sleep(&mut self, limit: Duration) -> Result<()> {
        self.driver.sleep(limit)
    }
}

impl<E: Engine> Transport for Sockets<E> {
    fn about(&self) -> &About {
        &self.about
    }

    fn connect(&mut self, address: &str) -> Result<PeerId> {
        self.driver.connect(address, None)
    }

    fn disconnect(&mut self, peer: PeerId) {
        self.driver.disconnect(peer);
    }

    fn post_send<'a>(&mut self, peer: PeerId, frame: Frame<'a>) -> Result<Option<Frame<'a>>> {
        let to = self.driver.peers.up(peer)?;
        let Frame::Owned(frame) = frame else { return Ok(Some(frame)) };
        check_frame(&frame, to.frame_bytes)?;
        to.lane.sender.frame(frame)?;
        self.posted(peer);
        Ok(None)
    }

    fn offer(&mut self, peer: PeerId, into: Buffer) -> Result<Offer> {
        self.driver.peers.up(peer)?;
        Ok(self.driver.hub.offers.open(peer, into))
    }

    fn withdraw(&mut self, peer: PeerId, key: u64) -> Result<Buffer> {
        self.driver.hub.offers.close(peer, key)
    }

    fn post_write(&mut self, peer: PeerId, data: Gather, into: &Offer, at: u64) -> Result<()> {
        self.driver.peers.up(peer)?.lane.sender.write(data, into, at)?;
        self.posted(peer);
        Ok(())
    }

    fn poll(&mut self, events: &mut Vec<Event>) -> Result<()> {
        wait::poll(self, events)
    }

    fn wait(&mut self, timeout: Duration) -> Result<()> {
        wait::wait(self, timeout)
    }

    fn counters(&self) -> Counters {
        self.driver.counters()
    }
}

impl<E: Engine> Sleeper for Sockets<E> {
    fn carrier(&self) -> &'static str {
        CARRIER
    }

    fn connect_beside(&mut self, address: &str, beside: Beside) -> Result<PeerId> {
        self.driver.connect(address, Some(beside))
    }

    fn descriptors(&mut self) -> Result<Vec<i32>> {
        Ok(self.driver.descriptor()?.into_iter().collect())
    }

    fn park(&mut self, limit: Duration) -> Result<Duration> {
        self.driver.park_beside(limit)
    }

    fn unpark(&mut self) -> Result<()> {
        self.driver.unpark();
        Ok(())
    }
}

impl<E: Engine> Sockets<E> {
    fn posted(&mut self, peer: PeerId) {
        self.driver.peers.list(peer.0);
        self.has_posted = true;
    }
}
