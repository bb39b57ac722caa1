//! The van over RDMA verbs: reliable connections, on which the device itself places what arrives.
//!
//! * **Frames** are sent into receive buffers that the peer keeps posted, one shared queue of them
//!   for all peers of a transport. Short ones travel inside the work request. Each message carries,
//!   as its immediate word, how many buffers the sender has made free for its peer since the last
//!   one: a peer that has none left holds its frames back, so that the device never meets a
//!   receiver that is not ready (its timer for that is up to 655 ms long).
//! * **Writes** go straight from where the data lies to where it shall lie, by `RDMA WRITE`:
//!   nothing is copied on either side, but for what is short and comes last. That follows in a
//!   message of its own, with the same doorbell, which says which offer was used.
//! * **Offers** are memory windows, each bound for one peer to just the bytes that it was offered.
//!   The message behind a write asks the device to close the window (`SEND` with invalidate), so
//!   that nobody can write any more what the layer above sees, and no work request of the
//!   receiver's is needed for it. `window.rs` says what a peer gains that does otherwise: nothing.
//!
//! Nothing is read from a peer. An `RDMA READ` would spare the side that has the data its work
//! request, and is the better direction where that side is to do nothing at all; but the reader
//! would have to know where the data lies and that nobody changes it meanwhile, a device has few
//! reads under way at a time, and a pull would take a second round trip to learn both. `caravan
//! bench verbs --op read` measures it.
//!
//! What is posted between two polls leaves with one doorbell for up to 16 work requests, of which
//! the last alone reports its completion. A transport owns its completion queue, and so belongs to
//! one thread. It polls, then sleeps on the completion channel.
//!
//! | file | what it does |
//! |---|---|
//! | `listen.rs` | which device and address, and whether a way leads to a peer |
//! | `connect.rs` | connections through the connection manager |
//! | `greeting.rs` | the proof that both sides belong here |
//! | `peers.rs` | connections by number, queue pair and connection |
//! | `queue_pair.rs` | one peer's lane: what waits, credits, batches |
//! | `words.rs` | what lanes tell each other beside frames |
//! | `completion.rs` | what the device reports, sorted out by peer |
//! | `window.rs` | the memory that peers may write |
//! | `devices.rs` | which devices this machine has; needs no library |
//! | `verbs/` | the libraries' functions, opened at run time, with owners for all they hand out; the only unsafe code |
//!
//! Path: worker > slicer > filter > message > codec > endpoint > **transport**.

mod completion;
mod connect;
pub mod devices;
mod greeting;
mod listen;
mod peers;
mod queue_pair;
pub mod verbs;
mod window;
mod words;

use std::rc::Rc;
use std::time::{Duration, Instant};

use zerocopy::little_endian::{U16, U32};

use crate::config::VanConfig;
use crate::error::{Error, Result};
use crate::handshake::{Credentials, Refusals};
use crate::memory::{Buffer, Pool};
use crate::metrics::Counters;
use crate::transport::progress::{self, Pace, Progress};
use crate::transport::{
    About, Clock, Event, FRAME_PREFIX, Frame, Gather, Limits, PeerId, Transport, check_frame,
};
use crate::wire::Offer;

use connect::{Peer, Stage};
pub use listen::reaches;
use peers::Peers;
use queue_pair::Unit;
use verbs::{Batch, Channel, CompletionQueue, Connection, Device, Domain, POLL_MAX, ReceiveQueue};
use window::Windows;

/// The van's name.
const NAME: &str = "rdma";

/// Longest frame, in bytes: what is longer goes by rendezvous, which costs no message more than a
/// frame does.
const FRAME_BYTES_MAX: usize = 8 << 10;

/// How often a busy transport looks after connections, deadlines and silent peers.
const LOOK_AROUND: Duration = Duration::from_millis(5);

/// Turns between two looks at the clock.
const TURNS: u32 = 32;

/// Nothing heard of a peer for so long: a write of no bytes finds out whether it is there.
const SILENCE: Duration = Duration::from_millis(500);

/// What [`verbs::sleep`] says when nothing but the completion queue has something to say.
const COMPLETIONS_ALONE: u32 = 1;

/// How long dropping a transport waits for what has been posted to leave.
const LINGER: Duration = Duration::from_millis(500);

/// A node's queue pairs on one device, with the queues that they share.
///
/// Fields are dropped in this order: queue pairs first, then what they refer to.
pub struct Rdma {
    peers: Peers,
    windows: Windows,
    queues: Queues,
    /// Its pool is registered with the domain.
    about: About,
    nic: Nic,
    config: VanConfig,
    credentials: Credentials,
    refusals: Refusals,
    pace: Pace,
    /// Found, and not yet reported.
    ready: Vec<Event>,
    /// Turns since the clock was looked at.
    turns: u32,
    look_around_at: Instant,
    counters: Counters,
}

/// The queues that all peers share.
struct Queues {
    receives: ReceiveQueue,
    /// Receive buffers that all peers together may use.
    wanted: usize,
    completions: Rc<CompletionQueue>,
    completions_max: usize,
    reports: Batch,
}

/// The device, and what its connections come from.
struct Nic {
    domain: Rc<Domain>,
    device: Device,
    listener: Connection,
    channel: Rc<Channel>,
}

impl Rdma {
    /// A transport that listens on an address of an RDMA device: that of `config.listen` if it is
    /// one, else the first of the device `config.device`, or of the first one with an active port.
    ///
    /// # Errors
    /// [`Error::Setting`] as [`VanConfig::check`] says; [`Error::Unavailable`] when this machine
    /// has no such device, with what to do about it; [`Error::Listen`]; [`Error::Os`].
    pub fn new(config: &VanConfig) -> Result<Rdma> {
        Rdma::serving(config, connect::PEERS_MAX)
    }

    /// As [`Rdma::new`], with receive buffers for up to `peers_max` peers, or as many as the device
    /// has.
    fn serving(config: &VanConfig, peers_max: usize) -> Result<Rdma> {
        config.check()?;
        if config.encrypt {
            let reason = "it has no encryption; take uring or tcp with --encrypt".to_owned();
            return Err(Error::Unavailable { van: NAME, reason });
        }
        let frame_bytes = config.frame_bytes.min(FRAME_BYTES_MAX);
        let credentials = Credentials::new(config, NAME).saying(|hello| {
            hello.frame_bytes = U32::new(frame_bytes as u32);
            hello.receives = U16::new(queue_pair::RECEIVES as u16);
        });
        let (channel, listener, device, address) = listen::listen(config)?;
        let os = |call| move |source| Error::Os { call, source };
        let limits = device.capabilities().map_err(os("asking the RDMA device for its limits"))?;
        let domain = Domain::new(device).map_err(os("allocating a protection domain"))?;
        let completions = CompletionQueue::new(device, queue_pair::COMPLETIONS)
            .map_err(os("creating a completion queue"))?;
        let receives_max = peers_max * queue_pair::RECEIVES as usize;
        let receives = ReceiveQueue::new(&domain, receives_max.min(limits.receives_max))
            .map_err(os("creating a shared receive queue"))?;
        let now = Instant::now();
        tracing::debug!(%address, device = device.name(), "listening with RDMA");
        Ok(Rdma {
            peers: Peers::default(),
            windows: Windows::new(&domain, limits.windows),
            queues: Queues {
                receives,
                wanted: 0,
                completions,
                completions_max: limits.completions_max,
                reports: Batch::new(),
            },
            about: About {
                name: NAME,
                address,
                host: None,
                limits: Limits {
                    checks_bytes: true, // the invariant checksum: CRC-32, from device to device
                    ..Limits::plain(frame_bytes, config.queue_depth)
                },
                memory: Pool::from_pages(config.memory_bytes, config.pages, Some(domain.clone())),
                clock: Clock::start(),
            },
            nic: Nic { domain, device, listener, channel },
            config: config.clone(),
            credentials,
            refusals: Refusals::default(),
            pace: Pace::new(config.wait),
            ready: Vec::with_capacity(256),
            turns: 0,
            look_around_at: now,
            counters: Counters::default(),
        })
    }

    /// Gives up a peer to which nothing can be posted any more.
    #[cold]
    fn lose_mute(&mut self, id: u32, error: &Error) {
        self.lose(id, format!("it cannot be sent to: {error}"));
    }

    /// Hands what is posted to the device, as far as peers have room for it.
    #[inline]
    fn flush(&mut self) {
        if !self.peers.eager.is_empty() {
            self.flush_eager();
        }
    }

    fn flush_eager(&mut self) {
        while let Some(id) = self.peers.eager.pop() {
            let Some(lane) = self.peers.lane(id) else { continue };
            if let Err(error) = lane.flush(&self.about.memory, &mut self.counters) {
                self.lose_mute(id, &error);
            }
        }
    }

    /// Drops lanes that are closed, with what the device had in hand for them. What they still had
    /// to report is taken first: devices forget it with the queue pair, and the receive buffers
    /// that it tells of.
    fn bury(&mut self) -> Result<()> {
        let closed = std::mem::take(&mut self.peers.closed);
        self.take_completions()?;
        drop(closed);
        Ok(())
    }

    /// What is not looked at in every turn: connections, the device's own events, deadlines,
    /// silence.
    fn look_around(&mut self, now: Instant) -> Result<()> {
        self.look_around_at = now + LOOK_AROUND;
        self.look_after_connections(now)?;
        self.look_after_device()?;
        for id in 0..self.peers.end() {
            let Some(lane) = self.peers.lane(id) else { continue };
            let starves = lane.starves();
            if let Err(error) = lane.probe(now, SILENCE) {
                self.lose_mute(id, &error);
            } else if starves && let Err(reason) = self.replace_receives(id) {
                self.lose(id, reason);
            }
        }
        Ok(())
    }
}

impl Progress for Rdma {
    #[inline]
    fn pace(&mut self) -> &mut Pace {
        &mut self.pace
    }

    #[inline]
    fn ready(&mut self) -> &mut Vec<Event> {
        &mut self.ready
    }

    #[inline]
    fn has_posted(&self) -> bool {
        !self.peers.eager.is_empty()
    }

    /// Sends what is posted and takes in what has come.
    fn turn(&mut self) -> Result<bool> {
        self.flush();
        self.take_completions()?;
        if !self.peers.closed.is_empty() {
            self.bury()?;
        }
        self.turns += 1;
        if self.turns >= TURNS || self.peers.handshaking > 0 {
            self.turns = 0;
            let now = Instant::now();
            if now >= self.look_around_at || self.peers.handshaking > 0 {
                self.look_around(now)?;
            }
        }
        Ok(false) // a part of something is nothing to go on with
    }

    /// Sleeps until the device or the connection manager has something to say.
    fn sleep(&mut self, left: Duration) -> Result<()> {
        let os = |call| move |source| Error::Os { call, source };
        self.queues.completions.arm().map_err(os("arming the completion queue"))?;
        // What came before it was armed makes no notice.
        if self.take_completions()? || !self.peers.eager.is_empty() {
            return Ok(());
        }
        self.counters.sleeps += 1;
        self.counters.system_calls += 1;
        let fds = [self.queues.completions.fd(), self.nic.channel.fd(), self.nic.device.async_fd()];
        let ready = verbs::sleep(&fds, left.min(SILENCE))
            .map_err(os("sleeping on the completion channel"))?;
        self.queues.completions.take_notices().map_err(os("reading the completion channel"))?;
        if ready == COMPLETIONS_ALONE {
            return Ok(());
        }
        self.look_around(Instant::now())
    }
}

impl Transport for Rdma {
    fn about(&self) -> &About {
        &self.about
    }

    fn connect(&mut self, address: &str) -> Result<PeerId> {
        self.dial(address)
    }

    fn disconnect(&mut self, peer: PeerId) {
        match self.close(peer.0) {
            true => self.peers.numbers.give_back(peer.0),
            false => self.peers.numbers.forget(peer.0),
        }
        self.windows.forget(peer);
    }

    fn post_send<'a>(&mut self, peer: PeerId, frame: Frame<'a>) -> Result<Option<Frame<'a>>> {
        let Some(lane) = self.peers.lane(peer.0) else {
            return Err(Error::NotConnected { peer });
        };
        let Frame::Owned(mut frame) = frame else { return Ok(Some(frame)) };
        check_frame(&frame, lane.frame_bytes)?;
        frame.advance(FRAME_PREFIX);
        if !lane.is_free() {
            lane.enqueue(peer, Unit::Frame(frame.share()), self.config.queue_depth)?;
        } else if let Err(error) = lane.send(frame.share(), &mut self.counters) {
            self.lose_mute(peer.0, &error);
            return Ok(None); // the peer's end is reported as any
        }
        if lane.has_to_leave() {
            self.peers.eager.push(peer.0);
        }
        Ok(None)
    }

    fn offer(&mut self, peer: PeerId, into: Buffer) -> Result<Offer> {
        let Some(lane) = self.peers.lane(peer.0) else {
            return Err(Error::NotConnected { peer });
        };
        self.windows.open(peer, lane, into)
    }

    fn withdraw(&mut self, peer: PeerId, key: u64) -> Result<Buffer> {
        self.windows.revoke(peer, key)
    }

    fn post_write(&mut self, peer: PeerId, data: Gather, into: &Offer, at: u64) -> Result<()> {
        let Some(lane) = self.peers.lane(peer.0) else {
            return Err(Error::NotConnected { peer });
        };
        lane.enqueue(peer, Unit::write(data, into, at)?, self.config.queue_depth)?;
        if lane.has_to_leave() {
            self.peers.eager.push(peer.0);
        }
        Ok(())
    }

    fn poll(&mut self, events: &mut Vec<Event>) -> Result<()> {
        progress::poll(self, events)
    }

    fn wait(&mut self, timeout: Duration) -> Result<()> {
        progress::wait(self, timeout)
    }

    fn counters(&self) -> Counters {
        self.counters
    }
}

/// What has been posted to the device is given time to leave, as a socket would; what has not is
/// dropped.
impl Drop for Rdma {
    fn drop(&mut self) {
        let until = Instant::now() + LINGER;
        for peer in self.peers.iter_mut() {
            if let Stage::Up(lane) = &mut peer.stage {
                // One that fails has nothing more to wait for.
                let _ = lane.finish();
            }
        }
        let is_busy = |peer: &mut Peer| match &peer.stage {
            Stage::Up(lane) => lane.is_busy(),
            _ => false,
        };
        while self.peers.iter_mut().any(is_busy) && Instant::now() < until {
            if self.take_completions().is_err() {
                break;
            }
            self.ready.clear();
            std::thread::yield_now();
        }
        for id in 0..self.peers.end() {
            self.close(id);
        }
    }
}
