//! The van over TCP with io_uring: everything there is to do for all peers goes to the kernel in one system call.
//!
//! One ring belongs to one transport and so to one thread. Each peer has at most one vectored send and one receive in the
//! kernel's hands: a send takes all that is queued for the peer, so what is posted between two polls leaves together, and a
//! receive goes straight into the memory that the stream's [`Receiver`] names, the offered place of a write included. A poll
//! queues these operations, enters the kernel once if there are any, and reads what has completed from memory shared with it.
//! A few lanes, those on which something has just come, are served past the ring (below): a plain call sends what is queued, and
//! each look is a plain call that receives; what the socket does not take, and all other lanes, are the ring's, and so are all
//! lanes of a thread that sleeps. Where nothing is tried, a look with nothing to hand over makes no call.
//!
//! # Why the ring is used like this
//!
//! All but the plain calls below is what `compare.rs` measured: medians of interleaved runs on two cores of a virtual machine, loopback, Linux 6.18, as ratios to
//! non-blocking sockets that yield after an empty look. A round trip of 80 bytes each way, on one core and on two:
//!
//! * receives left to the kernel, which completes them by task work: 1.3 and 1.3 when it may do so only on entry
//!   (`Mode::Deferred`), 1.3 and 1.5 when it does so at any time (`Mode::Cooperative`), 1.3 and 8.8 when it interrupts the
//!   thread for it (`Mode::Plain`). To wait for readiness first made no difference.
//! * receives tried at every look, with `MSG_DONTWAIT`, on lanes where something has just come: 1.2 and 1.1 in both of the
//!   better modes. That costs a call for each lane and look, so it is done for a few lanes and a bounded number of looks, and
//!   never across a sleep; a thread that sleeps at once does not do it at all.
//! * such tries, and sends on such lanes, by `recv` and `send` themselves instead of an `enter` for each: on two cores 1.13
//!   became 1.04 (8 B), 1.08 became 1.02 (4 KiB), 1.11 became 1.02 (64 KiB), and 1 MiB stayed within 1.05 of sockets with the same
//!   send buffer (whole vans before and after, each beside its own sockets, on another machine than above). What a ring saves is
//!   calls, and with one operation a call there is nothing to save.
//! * the large part of a long write in one operation that the kernel continues by itself (`MSG_WAITALL`) and only its end
//!   together with what follows: a round trip of 1 MiB then took 1.3 to 1.5 of theirs on two cores, from 1.7 before.
//!
//! What else the kernel offers was measured by a bare program: medians of 3 to 7 interleaved rounds, as ratios to plain non-blocking
//! calls that yield after an empty look (which is what this van makes on busy lanes), two cores of a virtual machine, loopback,
//! Linux 6.18, quiet. Round trips of so many bytes there and 80 back; "lanes" is one round trip on each of 16 at a time, "one core" has
//! both sides on one; "stream" is time a message of 1 MiB, one direction. All rings are `Mode::Deferred` but where it is said.
//!
//! | receives and sends | 80 B | 4 KiB | 64 KiB | 1 MiB | 4 MiB | lanes | one core | stream |
//! |---|---|---|---|---|---|---|---|---|
//! | by the ring, into place | 1.22 | 1.15 | 1.06 | 0.99 | 1.06 | 1.12 | 1.20 | 1.00 |
//! | receives by the ring, sends by plain calls | 1.21 | 1.14 | 1.05 | 1.05 | 1.07 | 1.04 | 1.19 | 0.95 |
//! | `Mode::Cooperative` | 1.31 | 1.21 | 1.09 | – | – | – | – | – |
//! | registered files | 1.21 | 1.19 | 1.06 | 0.99 | 1.07 | 1.04 | 1.21 | 0.96 |
//! | registered files and buffers (`READ_FIXED`, `WRITE_FIXED`) | 1.22 | 1.14 | 1.11 | – | – | – | – | – |
//! | multishot receive, a ring of 64 provided buffers of 64 KiB, copied into place | 1.24 | 1.13 | 1.17 | 1.54 | 1.21 | 1.16 | 1.08 | 1.53 |
//! | the same in bundles | 1.23 | 1.15 | 1.19 | 1.45 | 1.28 | 1.17 | 1.10 | 1.48 |
//! | multishot receive, sends by plain calls | 1.17 | 1.12 | 1.15 | 1.55 | 1.33 | 1.16 | 1.02 | 1.42 |
//! | `SEND_ZC` | 1.47 | 1.41 | 1.53 | 2.02 | 1.73 | 1.73 | 1.33 | 1.55 |
//! | `SEND_ZC` from registered buffers | 1.49 | 1.41 | 1.42 | 1.98 | 1.79 | 1.72 | 1.32 | 1.30 |
//! | NAPI busy polling, 50 µs | 1.23 | 1.18 | 1.05 | 1.12 | 1.06 | – | – | 1.16 |
//! | `SQPOLL`, each side with a thread of the kernel's | 57 | – | – | 21 | – | – | – | – |
//!
//! So nothing of it is kept. Multishot saves the receive's submission, which shows where both sides share a core, and costs the copy
//! that the vans are built to avoid: a message above 64 KiB then takes half as long again. Files and buffers that are registered save
//! nothing that can be seen, and a large `WRITE_FIXED` ends short of its length on a socket. `SEND_ZC` on loopback copies all the same,
//! later, and answers twice; whether it pays on a NIC could not be measured here, and neither could NAPI: packets of the
//! loopback device come from no NAPI instance, so that there is nothing to poll. `SQPOLL` wants cores for its threads, and two cores
//! that are at work already have none.
//!
//! Path: worker > slicer > filter > message > codec > endpoint > **transport**.

#[cfg(test)]
mod compare;
mod connect;
mod operation;
mod probe;
mod ring;

use std::collections::VecDeque;
use std::net::{TcpListener, TcpStream};
use std::rc::Rc;
use std::time::{Duration, Instant};

use crate::config::VanConfig;
use crate::error::{Error, Result};
use crate::handshake::{Credentials, Refusals};
use crate::memory::{Buffer, Pool};
use crate::metrics::Counters;
use crate::numbers::Numbers;
use crate::offers::Offers;
use crate::socket;
#[cfg(doc)]
use crate::socket::Receiver;
use crate::transport::{
    About, Clock, Event, Frame, Gather, Limits, PeerId, Transport, check_frame,
};
use crate::wait::{Idle, Next};
use crate::wire::Offer;

use connect::{Peer, Stage};
use operation::Slot;
use probe::Mode;
use ring::{Done, Ring};

/// The van's name.
const NAME: &str = "uring";

/// How often one poll goes to the kernel at most while it finds nothing to report but there is more to do.
const ROUNDS_MAX: usize = 16;

/// A node's TCP connections on one ring.
pub struct Uring {
    config: VanConfig,
    credentials: Rc<Credentials>,
    idle: Idle,
    about: About,
    offers: Offers,
    ring: Ring,
    /// By slot of the ring.
    peers: Vec<Option<Peer>>,
    /// By peer number; `None` once the peer is gone.
    slots: Vec<Option<Slot>>,
    numbers: Numbers,
    refusals: Refusals,
    /// Found, and not yet reported.
    ready: Vec<Event>,
    /// The last poll found nothing, so that to look again at once would find nothing either.
    looked: bool,
    /// Who has called and was not looked at yet.
    callers: VecDeque<TcpStream>,
    /// When to look after them and the young again, ...
    look_around_at: Instant,
    /// ... of which the clock is asked after so many looks.
    looks: u32,
    /// Connections that will not be waited for much longer.
    young: usize,
    /// When to try again to accept, after that has failed.
    accept_at: Option<Instant>,
}

impl Uring {
    /// A transport that listens on `config.listen`.
    ///
    /// # Errors
    /// [`Error::Setting`] as [`VanConfig::check`] says; [`Error::Unavailable`] when this machine does not offer io_uring;
    /// [`Error::Listen`].
    pub fn new(config: &VanConfig) -> Result<Uring> {
        Uring::with_modes(config, &Mode::BEST_FIRST)
    }

    fn with_modes(config: &VanConfig, modes: &[Mode]) -> Result<Uring> {
        config.check()?;
        let failed = |source| Error::Listen { address: config.listen.clone(), source };
        let bind = || TcpListener::bind(&config.listen).map_err(failed);
        let listener = config.accepts.then(bind).transpose()?;
        let bound = listener.as_ref().map(TcpListener::local_addr).transpose().map_err(failed)?;
        let address = bound.map_or_else(String::new, |address| address.to_string());
        let ring = Ring::new(listener, config, modes)?;
        tracing::debug!(%address, mode = ?ring.mode(), "listening with io_uring");
        Ok(Uring {
            config: config.clone(),
            credentials: Rc::new(Credentials::new(config, socket::CARRIER)),
            idle: Idle::new(config.wait),
            about: About {
                name: NAME,
                address,
                host: None,
                limits: Limits::plain(config.frame_bytes, config.queue_depth),
                memory: Pool::from_pages(config.memory_bytes, config.pages, None),
                clock: Clock::start(),
            },
            offers: Offers::default(),
            ring,
            peers: Vec::new(),
            slots: Vec::new(),
            numbers: Numbers::default(),
            refusals: Refusals::default(),
            ready: Vec::with_capacity(64),
            looked: false,
            callers: VecDeque::new(),
            look_around_at: Instant::now(),
            looks: 0,
            young: 0,
            accept_at: None,
        })
    }

    /// Where the lane of a peer is that has said hello.
    fn up(&self, peer: PeerId) -> Result<(Slot, &Peer)> {
        let slot = self.slots.get(peer.0 as usize).copied().flatten();
        let found = slot.and_then(|slot| Some((slot, self.peers[slot].as_ref()?)));
        found
            .filter(|(_, entry)| matches!(entry.stage, Stage::Up))
            .ok_or(Error::NotConnected { peer })
    }

    /// Hands over what there is to do and takes in what has finished, until there is something to report or nothing to do.
    fn turn(&mut self) -> Result<()> {
        for _ in 0..ROUNDS_MAX {
            if self.may_look_around() {
                self.look_around();
            }
            if self.accept_at.is_none() {
                self.ring.accept();
            }
            self.ring.submit(&mut self.offers)?;
            while let Some(done) = self.ring.next() {
                self.complete(done);
            }
            if !self.ready.is_empty() || !self.ring.has_work() {
                break;
            }
        }
        Ok(())
    }

    fn complete(&mut self, done: Done) {
        match done {
            Done::Accepted(accepted) => self.accepted(accepted),
            Done::Sent(slot, Ok(())) => self.sent(slot),
            Done::Received(slot, Ok(bytes)) if bytes > 0 => self.received(slot, bytes),
            Done::Received(slot, Ok(_)) => self.lose(slot, "it closed the connection".to_owned()),
            Done::Sent(slot, Err(error)) | Done::Received(slot, Err(error)) => {
                self.lose(slot, error.to_string());
            }
        }
    }
}

impl Transport for Uring {
    fn about(&self) -> &About {
        &self.about
    }

    fn connect(&mut self, address: &str) -> Result<PeerId> {
        self.connect_to(address)
    }

    fn disconnect(&mut self, peer: PeerId) {
        self.forget(peer);
    }

    fn post_send<'a>(&mut self, peer: PeerId, frame: Frame<'a>) -> Result<Option<Frame<'a>>> {
        let (slot, entry) = self.up(peer)?;
        let Frame::Owned(frame) = frame else { return Ok(Some(frame)) };
        check_frame(&frame, entry.frame_bytes)?;
        self.ring.frame(slot, frame)?;
        Ok(None)
    }

    fn offer(&mut self, peer: PeerId, into: Buffer) -> Result<Offer> {
        self.up(peer)?;
        Ok(self.offers.open(peer, into))
    }

    fn withdraw(&mut self, peer: PeerId, key: u64) -> Result<Buffer> {
        self.offers.close(peer, key)
    }

    fn post_write(&mut self, peer: PeerId, data: Gather, into: &Offer, at: u64) -> Result<()> {
        let (slot, _) = self.up(peer)?;
        self.ring.write(slot, data, into, at)
    }

    fn poll(&mut self, events: &mut Vec<Event>) -> Result<()> {
        if self.ready.is_empty() || self.ring.has_posted() {
            self.turn()?;
        }
        self.looked = self.ready.is_empty();
        if !self.looked {
            events.append(&mut self.ready);
        }
        Ok(())
    }

    fn wait(&mut self, timeout: Duration) -> Result<()> {
        self.idle.begin(timeout);
        loop {
            if !std::mem::take(&mut self.looked) || self.ring.has_posted() {
                self.turn()?;
            }
            if !self.ready.is_empty() {
                return Ok(());
            }
            match self.idle.after_empty_look() {
                Next::Look => {}
                Next::Return => return Ok(()),
                Next::Sleep(left) => self.ring.sleep(self.patience(left))?,
            }
        }
    }

    fn counters(&self) -> Counters {
        self.ring.counters()
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, reason = "tests")]
    use super::*;
    use crate::FRAME_PREFIX;
    use crate::wait::Wait;

    /// Waits until `van` has something to report while `other` goes on as well.
    fn next(van: &mut Uring, other: &mut Uring) -> Event {
        let mut events = Vec::new();
        let began = Instant::now();
        while events.is_empty() {
            assert!(began.elapsed() < Duration::from_secs(20), "nothing came");
            van.wait(Duration::from_millis(1)).unwrap();
            van.poll(&mut events).unwrap();
            other.turn().unwrap();
        }
        events.remove(0)
    }

    #[test]
    fn every_mode_carries_frames() {
        for wait in [Wait::default(), Wait::Block, Wait::Spin] {
            for mode in Mode::BEST_FIRST {
                let config = VanConfig { wait, ..VanConfig::default() };
                let make = || Uring::with_modes(&config, &[mode]);
                let (Ok(mut a), Ok(mut b)) = (make(), make()) else {
                    eprintln!("skipped: this kernel does not offer {mode:?}");
                    continue;
                };
                let to_b = a.connect(&b.about.address).unwrap();
                assert!(matches!(next(&mut a, &mut b), Event::Connected { .. }));
                let Event::Connected { peer: to_a, .. } = next(&mut b, &mut a) else { panic!() };
                for _ in 0..100 {
                    a.post_send(to_b, a.about.memory.allocate(FRAME_PREFIX + 8).unwrap().into())
                        .unwrap();
                    assert!(matches!(next(&mut b, &mut a), Event::Received { .. }), "{mode:?}");
                    b.post_send(to_a, b.about.memory.allocate(FRAME_PREFIX + 8).unwrap().into())
                        .unwrap();
                    assert!(matches!(next(&mut a, &mut b), Event::Received { .. }), "{mode:?}");
                }
            }
        }
    }

    #[test]
    fn kernels_that_accept_one_at_a_time_will_do() {
        let Ok(mut van) = Uring::new(&VanConfig::default()) else {
            eprintln!("skipped: io_uring is refused here");
            return;
        };
        van.ring.accept_one_at_a_time();
        let mut others = [(); 3].map(|()| Uring::new(&VanConfig::default()).unwrap());
        for other in &mut others {
            other.connect(&van.about.address).unwrap();
            assert!(matches!(next(&mut van, other), Event::Connected { .. }));
        }
    }

    #[test]
    fn settings_are_checked_before_the_kernel_is_asked() {
        let refused = Uring::new(&VanConfig { credits: 0, ..VanConfig::default() }).err();
        assert!(matches!(refused, Some(Error::Setting { name: "credits", value: 0, .. })));
    }
}
