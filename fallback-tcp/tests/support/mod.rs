//! A van with switches, as one of several.

use std::cell::Cell;
use std::rc::Rc;
use std::time::Duration;

use caravan_van::wire::{Beside, Offer};
use caravan_van::{
    About, Buffer, Counters, Error, Event, Frame, Gather, PeerId, Result, Sleeper, Transport,
};

/// What a test does to a [`Switched`] van, and has seen of it.
#[derive(Default)]
pub(crate) struct Switches {
    /// Each poll fails.
    pub(crate) is_broken: Cell<bool>,
    /// Nothing is taken in.
    pub(crate) is_frozen: Cell<bool>,
    /// Writes find no room.
    pub(crate) is_full: Cell<bool>,
    /// Bytes of writes that were posted.
    pub(crate) written: Cell<usize>,
}

/// A van with switches.
pub(crate) struct Switched<T>(pub(crate) T, pub(crate) Rc<Switches>);

impl<T: Transport> Transport for Switched<T> {
    fn about(&self) -> &About {
        self.0.about()
    }

    fn connect(&mut self, address: &str) -> Result<PeerId> {
        self.0.connect(address)
    }

    fn disconnect(&mut self, peer: PeerId) {
        self.0.disconnect(peer);
    }

    fn post_send<'a>(&mut self, peer: PeerId, frame: Frame<'a>) -> Result<Option<Frame<'a>>> {
        self.0.post_send(peer, frame)
    }

    fn offer(&mut self, peer: PeerId, into: Buffer) -> Result<Offer> {
        self.0.offer(peer, into)
    }

    fn withdraw(&mut self, peer: PeerId, key: u64) -> Result<Buffer> {
        self.0.withdraw(peer, key)
    }

    fn post_write(&mut self, peer: PeerId, data: Gather, into: &Offer, at: u64) -> Result<()> {
        if self.1.is_full.get() {
            return Err(Error::QueueFull { peer, depth: 0 });
        }
        self.1.written.set(self.1.written.get() + data.len());
        self.0.post_write(peer, data, into, at)
    }

    fn poll(&mut self, events: &mut Vec<Event>) -> Result<()> {
        if self.1.is_broken.get() {
            let source = std::io::Error::other("it is unplugged");
            return Err(Error::Os { call: "working with the device", source });
        }
        if self.1.is_frozen.get() {
            return Ok(());
        }
        self.0.poll(events)
    }

    fn wait(&mut self, timeout: Duration) -> Result<()> {
        self.0.wait(timeout)
    }

    fn counters(&self) -> Counters {
        self.0.counters()
    }
}

impl<T: Sleeper> Sleeper for Switched<T> {
    fn carrier(&self) -> &'static str {
        self.0.carrier()
    }

    fn connect_beside(&mut self, address: &str, beside: Beside) -> Result<PeerId> {
        self.0.connect_beside(address, beside)
    }

    fn descriptors(&mut self) -> Result<Vec<i32>> {
        self.0.descriptors()
    }

    fn park(&mut self, limit: Duration) -> Result<Duration> {
        self.0.park(limit)
    }

    fn unpark(&mut self) -> Result<()> {
        self.0.unpark()
    }
}
