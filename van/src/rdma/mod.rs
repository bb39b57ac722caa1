//! The van over RDMA verbs: reliable connections, on which the device itself places what arrives.
//!
//! * **Frames** are sent into receive buffers. All peers of a transport share one queue of them.
//!   Short frames travel inside the work request. The immediate word of each message carries the
//!   number of buffers that the sender has freed for its peer since the last message. A peer
//!   without a free buffer holds its frames back, so the device never meets a receiver that is not
//!   ready (its timer for that is up to 655 ms long).
//! * **Writes** use `RDMA WRITE`: neither side copies the data, except for a few last bytes. Those
//!   follow in a message with the same doorbell, which names the offer.
//! * **Offers** are memory windows. Each is bound for one peer to the offered bytes. The message
//!   behind a write closes the window (`SEND` with invalidate), without a work request of the
//!   receiver. Nobody can write the memory once the layer above sees it. `window.rs` says why a
//!   peer that breaks the protocol gains nothing.
//!
//! The van reads nothing from a peer. An `RDMA READ` would spare the side with the data its work
//! request. But the reader would have to know where the data lies and that nobody changes it
//! meanwhile, a device has few reads under way at a time, and a pull would take a second round trip
//! to learn both. `caravan bench verbs --op read` measures it.
//!
//! Up to 16 work requests that were posted between two polls share a doorbell. Only the last one
//! reports its completion. A transport owns its completion queues and belongs to one thread. It
//! polls, then sleeps on the completion channel.
//!
//! | file | what it does |
//! |---|---|
//! | `listen.rs` | chooses device and address, and checks the route to a peer |
//! | `rails.rs` | chooses the ports that one thread uses at once |
//! | `connect.rs` | connections through the connection manager |
//! | `direct.rs` | connections without it, for ports that have no IP address |
//! | `ends.rs` | what both ends of those tell each other, and whether it fits |
//! | `side channels.rs` | the TCP connections over which they do |
//! | `greeting.rs` | the proof that both sides belong here |
//! | `peers.rs` | connections by number, queue pair and connection |
//! | `queue_pair.rs` | one peer's lane: what waits, credits, batches |
//! | `words.rs` | what lanes exchange beside frames |
//! | `completion.rs` | what the device reports, by peer |
//! | `window.rs` | the memory that peers may write |
//! | `devices.rs` | the devices of this machine; needs no library |
//! | `verbs/` | the libraries' functions, opened at run time, and owners of their objects; unsafe |
//!
//! Path: worker > slicer > filter > message > codec > endpoint > **transport**.

mod completion;
mod connect;
mod control_words;
pub mod devices;
mod direct;
mod endpoints;
mod greeting;
mod listen;
mod peers;
mod queue_pair;
mod rails;
mod side_channels;
pub mod verbs;
mod window;

use std::io;
use std::rc::Rc;
use std::time::{Duration, Instant};

use zerocopy::little_endian::{U16, U32};

use crate::config::VanConfig;
use crate::error::{Error, Result};
use crate::handshake::{Credentials, Refusals};
use crate::memory::{Buffer, Pool};
use crate::metrics::Counters;
use crate::transport::{
    About, Clock, Event, FRAME_PREFIX, Frame, Gather, Limits, PeerId, Sleeper, Transport,
    check_frame,
};
use crate::wait::{self, Pace, Progress};
use crate::wire::{Beside, Offer};

use connect::{Peer, Stage};
pub use listen::reaches;
use listen::{Direct, Manager, Nic};
use peers::Peers;
use queue_pair::Unit;
pub use rails::{equal_ports, port_name};
use verbs::{Batch, CompletionQueue, Domain, POLL_MAX, ReceiveQueue};
use window::Windows;

/// The van's name.
const NAME: &str = "rdma";

/// Longest frame, in bytes. Longer messages go by rendezvous, which needs no more messages than a
/// frame.
const FRAME_BYTES_MAX: usize = 8 << 10;

/// Interval at which a busy transport checks connections, deadlines and silent peers.
const LOOK_AROUND: Duration = Duration::from_millis(5);

/// Peers that one such check looks at, so that many idle ones cost the others little.
const LOOKED_AT: u32 = 128;

/// Turns between two looks at the clock.
const TURNS: u32 = 32;

/// Silence of a peer after which a write of no bytes probes it.
const SILENCE: Duration = Duration::from_millis(500);

/// Peers that are probed within that time: if there are more, each has more of it.
const PROBED: u32 = 256;

/// What [`verbs::sleep`] returns if only the completion queue is ready.
const COMPLETIONS_ALONE: u32 = 1;

/// Longest time that dropping a transport waits for posted work to leave.
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
    domain: Rc<Domain>,
    nic: Nic,
    config: VanConfig,
    credentials: Credentials,
    refusals: Refusals,
    pace: Pace,
    /// Events that are not reported yet.
    ready: Vec<Event>,
    /// Turns since the clock was looked at.
    turns: u32,
    look_around_at: Instant,
    /// The next peer to look at.
    look_at: u32,
    counters: Counters,
}

/// The queues that all peers share.
struct Queues {
    receives: ReceiveQueue,
    /// Receive buffers that all peers together may use.
    wanted: usize,
    /// There is another one where the device's are too short for all lanes.
    completions: Vec<Reported>,
    completions_max: usize,
    reports: Batch,
}

/// A completion queue, and the lanes whose work ends there.
struct Reported {
    queue: Rc<CompletionQueue>,
    lanes: usize,
    /// Sends that they may have together.
    sends: usize,
}

impl Reported {
    fn by(queue: Rc<CompletionQueue>) -> Reported {
        Reported { queue, lanes: 0, sends: 0 }
    }
}

/// The credentials of a transport whose connections are made by `carrier`.
fn credentials(config: &VanConfig, carrier: &str) -> Credentials {
    Credentials::new(config, carrier).saying(|hello| {
        hello.frame_bytes = U32::new(frame_bytes(config) as u32);
        hello.receives = U16::new(queue_pair::RECEIVES_FIRST as u16);
    })
}

fn frame_bytes(config: &VanConfig) -> usize {
    config.frame_bytes.min(FRAME_BYTES_MAX)
}

impl Rdma {
    /// A transport that listens on an address of an RDMA device: on `config.listen` if it is one,
    /// else on the first address of the device that `config.rdma` names or of the first one with an
    /// active port. For direct connections it listens on `config.listen` over TCP.
    ///
    /// # Errors
    /// [`Error::Setting`] as [`VanConfig::check`] says; [`Error::Unavailable`] if this machine
    /// has no such device, with the remedy; [`Error::Listen`]; [`Error::Os`].
    pub fn new(config: &VanConfig) -> Result<Rdma> {
        Rdma::serving(config, connect::PEERS_MAX)
    }

    /// As [`Rdma::new`], with receive buffers for up to `peers_max` peers, within the limits of the
    /// device.
    fn serving(config: &VanConfig, peers_max: usize) -> Result<Rdma> {
        config.check()?;
        if config.encrypt {
            let reason = "it has no encryption; take uring or tcp with --encrypt".to_owned();
            return Err(Error::Unavailable { van: NAME, reason });
        }
        let (nic, address) = listen::listen(config)?;
        let device = nic.device;
        let limits = device.capabilities().map_err(os("asking the RDMA device for its limits"))?;
        let domain = Domain::new(device).map_err(os("allocating a protection domain"))?;
        let completions = CompletionQueue::new(device, queue_pair::SENDS)
            .map_err(os("creating a completion queue"))?;
        let receives_max = (peers_max * queue_pair::RECEIVES_FIRST as usize)
            .min(limits.receives_max)
            .min(limits.completions_max / 4);
        let receives = ReceiveQueue::new(&domain, receives_max)
            .map_err(os("creating a shared receive queue"))?;
        let now = Instant::now();
        tracing::debug!(%address, device = device.name(), "listening with RDMA");
        Ok(Rdma {
            peers: Peers::default(),
            windows: Windows::new(&domain, limits.windows),
            queues: Queues {
                receives,
                wanted: 0,
                completions: vec![Reported::by(completions)],
                completions_max: limits.completions_max,
                reports: Batch::new(),
            },
            about: About {
                name: NAME,
                address,
                host: None,
                port: Some(port_name(&device.name(), device.port())),
                limits: Limits {
                    checks_bytes: true, // the invariant checksum: CRC-32, from device to device
                    ..Limits::plain(frame_bytes(config), config.queue_depth)
                },
                memory: Pool::from_pages(config.memory_bytes, config.pages, Some(domain.clone())),
                clock: Clock::start(),
            },
            domain,
            nic,
            config: config.clone(),
            credentials: credentials(config, NAME),
            refusals: Refusals::default(),
            pace: Pace::new(config.wait),
            ready: Vec::with_capacity(256),
            turns: 0,
            look_around_at: now,
            look_at: 0,
            counters: Counters::default(),
        })
    }

    /// Gives up a peer to which nothing can be posted any more.
    #[cold]
    fn lose_mute(&mut self, id: u32, error: &Error) {
        self.lose(id, format!("it cannot be sent to: {error}"));
    }

    /// Hands posted work to the device as far as peers have room.
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

    /// Drops closed lanes and what the device held for them. Their last completions are taken
    /// first: devices forget them with the queue pair, and with them the receive buffers they name.
    fn reap(&mut self) -> Result<()> {
        let closed = std::mem::take(&mut self.peers.closed);
        self.take_completions()?;
        drop(closed);
        Ok(())
    }

    /// Checks what not every turn checks: connections, events of the device, deadlines and silent
    /// peers.
    fn look_around(&mut self, now: Instant) -> Result<()> {
        self.look_around_at = now + LOOK_AROUND;
        self.look_after_connections(now)?;
        self.look_after_side_channels(now)?;
        self.look_after_device()?;
        for _ in 0..self.peers.end().min(LOOKED_AT) {
            self.look_at = (self.look_at + 1) % self.peers.end().max(1);
            self.look_at_peer(self.look_at, now);
        }
        Ok(())
    }

    fn look_at_peer(&mut self, id: u32, now: Instant) {
        let silence = SILENCE * (self.peers.end() / PROBED).max(1);
        let Some(lane) = self.peers.lane(id) else { return self.mind_time(id, now) };
        let starves = lane.receives.starve();
        if let Err(error) = lane.probe(now, silence) {
            self.lose_mute(id, &error);
        } else if starves && let Err(reason) = self.replace_receives(id) {
            self.lose(id, reason);
        }
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

    /// Sends posted work and takes completions.
    fn turn(&mut self) -> Result<bool> {
        self.flush();
        self.take_completions()?;
        if !self.peers.closed.is_empty() {
            self.reap()?;
        }
        self.turns += 1;
        if self.turns >= TURNS || self.peers.handshaking > 0 {
            self.turns = 0;
            let now = Instant::now();
            if now >= self.look_around_at || self.peers.handshaking > 0 {
                self.look_around(now)?;
            }
        }
        Ok(false) // only whole events count as progress
    }

    /// Sleeps until the device, the connection manager or a wire reports something.
    fn sleep(&mut self, left: Duration) -> Result<()> {
        if !self.arm()? {
            return Ok(());
        }
        self.counters.sleeps += 1;
        self.counters.system_calls += 1;
        let ready = verbs::sleep(&self.fds(), left.min(SILENCE))
            .map_err(os("sleeping on the completion channel"))?;
        self.take_notices()?;
        if ready == COMPLETIONS_ALONE {
            return Ok(());
        }
        self.look_around(Instant::now())
    }
}

fn os(call: &'static str) -> impl FnOnce(io::Error) -> Error {
    move |source| Error::Os { call, source }
}

impl Rdma {
    /// Asks for a notice of the next completion; returns false if there is something to do first.
    fn arm(&mut self) -> Result<bool> {
        let mut queues = self.queues.completions.iter();
        queues.try_for_each(|it| it.queue.arm()).map_err(os("arming the completion queue"))?;
        // Completions from before it was armed raise no notice.
        Ok(!self.take_completions()? && self.peers.eager.is_empty())
    }

    /// Takes the notices that it has asked for; all queues have one channel.
    fn take_notices(&self) -> Result<()> {
        let taken = self.queues.completions[0].queue.take_notices();
        taken.map_err(os("reading the completion channel"))
    }

    /// What wakes a thread that sleeps: completions, the connection manager, side channels, and the
    /// device; -1 for what there is not.
    fn fds(&self) -> [i32; 4] {
        let Nic { device, manager, direct } = &self.nic;
        let manager = manager.as_ref().map_or(-1, |Manager { channel, .. }| channel.fd());
        let direct = direct.as_ref().map_or(-1, |Direct { side_channels, .. }| side_channels.fd());
        [self.queues.completions[0].queue.fd(), manager, direct, device.async_fd()]
    }
}

impl Sleeper for Rdma {
    fn carrier(&self) -> &'static str {
        NAME
    }

    fn connect_beside(&mut self, address: &str, beside: Beside) -> Result<PeerId> {
        self.dial(address, Some(beside))
    }

    fn descriptors(&mut self) -> Result<Vec<i32>> {
        Ok(self.fds().into_iter().filter(|&fd| fd >= 0).collect())
    }

    fn park(&mut self, limit: Duration) -> Result<Duration> {
        let sleeps = self.arm()? && self.ready.is_empty();
        Ok(if sleeps { limit.min(SILENCE) } else { Duration::ZERO })
    }

    fn unpark(&mut self) -> Result<()> {
        self.take_notices()?;
        self.look_around(Instant::now())
    }
}

impl Transport for Rdma {
    fn about(&self) -> &About {
        &self.about
    }

    fn connect(&mut self, address: &str) -> Result<PeerId> {
        self.dial(address, None)
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
            return Ok(None); // the loss of the peer is reported as an event
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
        wait::poll(self, events)
    }

    fn wait(&mut self, timeout: Duration) -> Result<()> {
        wait::wait(self, timeout)
    }

    fn counters(&self) -> Counters {
        self.counters
    }
}

/// Gives work that was posted to the device time to leave, as a socket would, and drops the rest.
impl Drop for Rdma {
    fn drop(&mut self) {
        let until = Instant::now() + LINGER;
        for peer in self.peers.iter_mut() {
            if let Stage::Up(lane) = &mut peer.stage {
                // A lane that fails has nothing more to wait for.
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
