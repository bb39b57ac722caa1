//! A transport within one thread that only hands frames over: for counting and timing what lies
//! above it.

use std::cell::RefCell;
use std::collections::VecDeque;
use std::rc::Rc;
use std::time::Duration;

use caravan_van::handshake::Credentials;
use caravan_van::wire::Offer;
use caravan_van::{
    About, Buffer, Clock, Counters, Error, Event, FRAME_PREFIX, Frame, Gather, Limits, PeerId,
    Pool, Result, SimulatedTime, Transport, VanConfig,
};

/// As the vans have it.
pub(crate) const CREDITS: u16 = 256;

/// As the vans have it.
const FRAME_BYTES: usize = 24 << 10;

/// Frames on their way.
pub(crate) type Frames = Rc<RefCell<VecDeque<Buffer>>>;

/// One end of a wire that costs next to nothing.
pub(crate) struct Wire {
    about: About,
    out: Frames,
    into: Frames,
    greeted: bool,
}

impl Wire {
    /// Sends to `out` what the other end finds in its `into`.
    pub(crate) fn new(out: &Frames, into: &Frames) -> Box<Wire> {
        let (out, into) = (out.clone(), into.clone());
        let about = About {
            name: "wire",
            address: "here".to_owned(),
            host: None,
            port: None,
            limits: Limits::plain(FRAME_BYTES, 1024),
            memory: Pool::new(64 << 20),
            clock: Clock::simulated(Stopped),
        };
        Box::new(Wire { about, out, into, greeted: false })
    }
}

/// Time that does not pass, and costs nothing to read.
struct Stopped;

impl SimulatedTime for Stopped {
    fn now(&self) -> Duration {
        Duration::ZERO
    }

    fn charge(&self, _: Duration) -> Result<()> {
        Ok(())
    }
}

/// The other end.
pub(crate) const PEER: PeerId = PeerId(0);

impl Transport for Wire {
    fn about(&self) -> &About {
        &self.about
    }

    fn connect(&mut self, _: &str) -> Result<PeerId> {
        Ok(PEER)
    }

    fn disconnect(&mut self, _: PeerId) {}

    fn post_send<'a>(&mut self, _: PeerId, frame: Frame<'a>) -> Result<Option<Frame<'a>>> {
        let Frame::Owned(mut frame) = frame else { return Ok(Some(frame)) };
        frame.advance(FRAME_PREFIX);
        self.out.borrow_mut().push_back(frame);
        Ok(None)
    }

    fn offer(&mut self, peer: PeerId, _: Buffer) -> Result<Offer> {
        Err(Error::NotConnected { peer })
    }

    fn withdraw(&mut self, peer: PeerId, _: u64) -> Result<Buffer> {
        Err(Error::NotConnected { peer })
    }

    fn post_write(&mut self, peer: PeerId, _: Gather, _: &Offer, _: u64) -> Result<()> {
        Err(Error::NotConnected { peer })
    }

    fn poll(&mut self, events: &mut Vec<Event>) -> Result<()> {
        if !std::mem::replace(&mut self.greeted, true) {
            let config =
                VanConfig { credits: CREDITS, frame_bytes: FRAME_BYTES, ..VanConfig::default() };
            let hello = *Credentials::new(&config, "queue").hello();
            events.push(Event::Connected { peer: PEER, hello });
        }
        while let Some(frame) = self.into.borrow_mut().pop_front() {
            events.push(Event::Received { peer: PEER, frame });
        }
        Ok(())
    }

    fn wait(&mut self, _: Duration) -> Result<()> {
        Ok(())
    }

    fn counters(&self) -> Counters {
        Counters::default()
    }
}
