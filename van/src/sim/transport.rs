//! The simulated van's [`Transport`]: connections, offers and queues. `clock.rs` decides when
//! things arrive.
//!
//! Path: worker > slicer > filter > message > codec > endpoint > **transport**.

use std::collections::{BTreeMap, VecDeque};
use std::io;
use std::sync::Arc;
use std::time::Duration;

use zerocopy::little_endian::{U32, U64};

use super::clock::{Activity, Core, WAIT_MIN, World};
use super::connection::{Connection, ConnectionState, Posted};
use super::packet::{End, Link, Load, Packet};
use crate::config::VanConfig;
use crate::error::{Error, Result};
use crate::handshake::{Credentials, Reason, Refusals};
use crate::memory::{Buffer, Pool};
use crate::metrics::Counters;
use crate::offers::Offers;
use crate::transport::{
    About, Clock, Event, FRAME_PREFIX, Frame, Gather, Limits, PeerId, SimulatedTime, Sleeper,
    Transport, check_frame, check_write,
};
use crate::wire::{Hello, Offer};

/// Stands for the transport itself where a packet names one of its peers: connection requests go
/// there.
const LISTENER: u32 = u32::MAX;

/// A node's transport on a simulated network, created by
/// [`Network::transport`](super::Network::transport).
///
/// A posted buffer is kept until its last byte has left at the simulated bandwidth. Payload counts
/// as never copied: the network stands for a card that places it.
pub struct SimTransport {
    world: Arc<World>,
    port: u32,
    /// Whether messages take time of cards and processors.
    metered: bool,
    /// Processor time of messages sent and received that has not passed yet.
    busy: Duration,
    about: About,
    /// Shown to peers in the clear: nothing can be read on the way, so that no proof is needed.
    credentials: Arc<Credentials>,
    lanes: BTreeMap<PeerId, Connection>,
    offers: Offers,
    found: VecDeque<(PeerId, Found)>,
    refusals: Refusals,
    peers_made: u32,
    counters: Counters,
}

/// An event for the next poll to report. Frames get their memory only then.
enum Found {
    Connected(Hello),
    Frame(Box<[u8]>),
    Written { key: u64, memory: Buffer, at: usize, len: usize },
    Lost(Error),
}

/// The time of a node, as its clock shows it.
struct NodeTime(Arc<World>);

impl SimulatedTime for NodeTime {
    fn now(&self) -> Duration {
        self.0.lock().local_now()
    }

    fn charge(&self, work: Duration) -> Result<()> {
        if work.is_zero() {
            return Ok(());
        }
        let takes = self.0.lock().takes(work);
        self.0.sleep(takes)
    }
}

impl SimTransport {
    pub(super) fn new(world: Arc<World>, config: &VanConfig, metered: bool) -> SimTransport {
        let frame_bytes = config.frame_bytes.min(u32::MAX as usize);
        let takes_over = number_of(&config.listen).filter(|_| config.accepts);
        let port = world.lock().open_port(takes_over);
        let address = match config.accepts {
            true => address_of(takes_over.unwrap_or(port)),
            false => String::new(),
        };
        let credentials =
            Credentials::new(config, "sim").saying(|hello| hello.transport = U32::new(port));
        let clock = Clock::simulated(NodeTime(world.clone()));
        SimTransport {
            world,
            port,
            metered,
            busy: Duration::ZERO,
            about: About {
                name: "sim",
                address,
                host: None,
                port: None,
                limits: Limits::plain(frame_bytes, config.queue_depth),
                memory: Pool::from_pages(config.memory_bytes, config.pages, None),
                clock,
            },
            credentials: Arc::new(credentials),
            lanes: BTreeMap::new(),
            offers: Offers::default(),
            found: VecDeque::new(),
            refusals: Refusals::default(),
            peers_made: 0,
            counters: Counters::default(),
        }
    }

    fn end(&self, peer: PeerId) -> End {
        End { port: self.port, peer: peer.0 }
    }

    /// The weight of a packet that leaves right after all earlier ones.
    fn load(&self, bytes: usize) -> Load {
        let metered = self.metered;
        Load { bytes: if metered { bytes } else { 0 }, after: self.busy, metered }
    }

    /// Adds the processor time of a message.
    fn handle(&mut self, core: &Core, bytes: usize) {
        if self.metered {
            self.busy += core.handling(bytes);
        }
    }

    /// Lets the processor time of recent messages pass.
    fn catch_up(&mut self) -> Result<()> {
        match std::mem::take(&mut self.busy) {
            Duration::ZERO => Ok(()),
            busy => self.world.sleep(busy),
        }
    }

    fn add_lane(&mut self, address: String) -> PeerId {
        let peer = PeerId(self.peers_made);
        self.peers_made += 1;
        assert!(self.peers_made < LISTENER, "fewer peers than 2^32");
        let lane = Connection {
            address,
            state: ConnectionState::Connecting,
            frame_bytes: 0,
            link: Link::default(),
            posted: VecDeque::new(),
            leaving: VecDeque::new(),
        };
        self.lanes.insert(peer, lane);
        peer
    }

    /// The lane to a peer that is connected.
    fn lane_up(&mut self, peer: PeerId) -> Result<&mut Connection> {
        match self.lanes.get_mut(&peer) {
            Some(lane) if matches!(lane.state, ConnectionState::Up(_)) => Ok(lane),
            _ => Err(Error::NotConnected { peer }),
        }
    }

    /// Hands posted messages to the network, and drops those that have left.
    fn hand_over(&mut self, core: &mut Core) {
        let mut lanes = std::mem::take(&mut self.lanes);
        for (&peer, lane) in &mut lanes {
            let ConnectionState::Up(to) = lane.state else { continue };
            let from = self.end(peer);
            while let Some(posted) = lane.posted.pop_front() {
                let (packet, bytes) = posted.packet();
                self.counters.frames_sent += u64::from(matches!(posted, Posted::Frame(_)));
                self.counters.bytes_sent += bytes as u64;
                self.handle(core, bytes);
                let left_at = core.carry(&mut lane.link, from, to, self.load(bytes), packet);
                lane.leaving.push_back((left_at, posted));
            }
            while lane.leaving.front().is_some_and(|(left_at, _)| *left_at <= core.now()) {
                lane.leaving.pop_front();
            }
        }
        self.lanes = lanes;
    }

    /// Handles everything that has arrived, and adds what there is to report to `found`.
    fn ingest(&mut self, core: &mut Core) {
        while let Some((peer, packet)) = core.take(self.port) {
            let peer = PeerId(peer);
            match packet {
                Packet::Connect { from, credentials } => self.answer(core, from, &credentials),
                Packet::Accept { from, credentials } => {
                    self.accepted(core, peer, from, &credentials);
                }
                Packet::Frame(bytes) if self.lane_up(peer).is_ok() => {
                    self.handle(core, bytes.len() + FRAME_PREFIX);
                    self.counters.frames_received += 1;
                    self.counters.bytes_received += (bytes.len() + FRAME_PREFIX) as u64;
                    self.found.push_back((peer, Found::Frame(bytes)));
                }
                Packet::Write { key, at, data } if self.lane_up(peer).is_ok() => {
                    self.handle(core, FRAME_PREFIX);
                    self.counters.bytes_received += (data.len() + FRAME_PREFIX) as u64;
                    match self.place(peer, key, at, &data) {
                        Ok(written) => self.found.push_back((peer, written)),
                        Err(error) => {
                            self.hang_up(core, peer, format!("it refused {error}"));
                            self.lose(peer, error.to_string());
                        }
                    }
                }
                Packet::Frame(_) | Packet::Write { .. } => {}
                Packet::Close(reason) => self.lose(peer, reason),
            }
        }
    }

    /// Accepts or refuses a connection.
    fn answer(&mut self, core: &mut Core, from: End, theirs: &Credentials) {
        if let Err(reason) = self.admits(theirs) {
            let now = core.now();
            self.refusals.log(now, &address_of(from.port), &reason);
            let here = End { port: self.port, peer: LISTENER };
            let close = Packet::Close(Reason::Refused.to_string());
            core.carry(&mut Link::default(), here, from, self.load(0), close);
            return;
        }
        let peer = self.add_lane(address_of(from.port));
        let here = self.end(peer);
        let credentials = self.credentials.clone();
        let accept = Packet::Accept { from: here, credentials };
        let load = self.load(size_of::<Hello>());
        if let Some(lane) = self.lanes.get_mut(&peer) {
            lane.open(from, theirs.hello());
            core.carry(&mut lane.link, here, from, load, accept);
        }
        self.found.push_back((peer, Found::Connected(*theirs.hello())));
    }

    /// Checks whether a peer with these credentials may connect.
    fn admits(&self, theirs: &Credentials) -> std::result::Result<(), String> {
        if self.about.address.is_empty() {
            return Err("nobody can connect to this node".to_owned());
        }
        self.credentials.is_other(theirs.hello()).map_err(|reason| reason.to_string())?;
        let agree = self.credentials.agrees_with(theirs);
        if agree { Ok(()) } else { Err(Reason::Unproved.to_string()) }
    }

    fn accepted(&mut self, core: &mut Core, peer: PeerId, from: End, theirs: &Credentials) {
        let (here, load) = (self.end(peer), self.load(0));
        let Some(lane) = self.lanes.get_mut(&peer) else {
            let close = Packet::Close("it gave up the connection".to_owned());
            core.carry(&mut Link::default(), here, from, load, close);
            return;
        };
        if matches!(lane.state, ConnectionState::Connecting) {
            lane.open(from, theirs.hello());
            self.found.push_back((peer, Found::Connected(*theirs.hello())));
        }
    }

    fn place(&mut self, peer: PeerId, key: u64, at: u64, data: &[u8]) -> Result<Found> {
        let mut memory = self.offers.take(peer, key, at, data.len() as u64)?;
        let (at, len) = (at as usize, data.len());
        memory[at..at + len].copy_from_slice(data);
        Ok(Found::Written { key, memory, at, len })
    }

    /// Tells a connected peer that this side closes the lane.
    fn hang_up(&mut self, core: &mut Core, peer: PeerId, reason: String) {
        let (here, load) = (self.end(peer), self.load(0));
        if let Some(lane) = self.lanes.get_mut(&peer)
            && let ConnectionState::Up(to) = lane.state
        {
            core.carry(&mut lane.link, here, to, load, Packet::Close(reason));
        }
    }

    /// Reports a peer as lost, once.
    fn lose(&mut self, peer: PeerId, reason: String) {
        let Some(lane) = self.lanes.get_mut(&peer) else { return };
        let address = lane.address.clone();
        let error = match lane.state {
            ConnectionState::Lost => return,
            ConnectionState::Connecting => {
                let source = io::Error::new(io::ErrorKind::ConnectionRefused, reason);
                Error::Connect { address, source }
            }
            ConnectionState::Up(_) => Error::PeerLost { peer, address, reason: reason.into() },
        };
        lane.state = ConnectionState::Lost;
        lane.posted.clear();
        lane.leaving.clear();
        self.found.push_back((peer, Found::Lost(error)));
    }

    fn post(&mut self, peer: PeerId, posted: Posted) -> Result<()> {
        let depth = self.about.limits.queue_depth;
        let lane = self.lane_up(peer)?;
        if lane.queued() >= depth {
            return Err(Error::QueueFull { peer, depth });
        }
        lane.posted.push_back(posted);
        Ok(())
    }
}

/// It is never one of several: its sleep is the network's.
impl Sleeper for SimTransport {
    fn carrier(&self) -> &'static str {
        self.about.name
    }

    fn descriptors(&mut self) -> Result<Vec<i32>> {
        Ok(Vec::new())
    }

    fn park(&mut self, _: Duration) -> Result<Duration> {
        Ok(Duration::ZERO)
    }

    fn unpark(&mut self) -> Result<()> {
        Ok(())
    }
}

impl Transport for SimTransport {
    fn about(&self) -> &About {
        &self.about
    }

    fn connect(&mut self, address: &str) -> Result<PeerId> {
        let Some(port) = number_of(address) else {
            let source = io::Error::new(
                io::ErrorKind::InvalidInput,
                "an address on the simulated network looks like sim:3",
            );
            return Err(Error::Connect { address: address.to_owned(), source });
        };
        let peer = self.add_lane(address.to_owned());
        let port = self.world.lock().reached_at(port);
        let (from, to) = (self.end(peer), End { port, peer: LISTENER });
        let connect = Packet::Connect { from, credentials: self.credentials.clone() };
        let load = self.load(size_of::<Hello>());
        if let Some(lane) = self.lanes.get_mut(&peer) {
            self.world.lock().carry(&mut lane.link, from, to, load, connect);
        }
        Ok(peer)
    }

    fn disconnect(&mut self, peer: PeerId) {
        let world = self.world.clone();
        self.hang_up(&mut world.lock(), peer, "it closed the connection".to_owned());
        self.lanes.remove(&peer);
        self.offers.forget(peer);
        self.found.retain(|&(of, _)| of != peer);
    }

    fn post_send<'a>(&mut self, peer: PeerId, frame: Frame<'a>) -> Result<Option<Frame<'a>>> {
        let limit = self.about.limits.frame_bytes.min(self.lane_up(peer)?.frame_bytes);
        let Frame::Owned(frame) = frame else { return Ok(Some(frame)) };
        check_frame(&frame, limit)?;
        self.post(peer, Posted::Frame(frame))?;
        Ok(None)
    }

    fn offer(&mut self, peer: PeerId, into: Buffer) -> Result<Offer> {
        self.lane_up(peer)?;
        // No address: memory addresses differ from run to run, and what is sent must not.
        Ok(Offer { address: U64::new(0), ..self.offers.open(peer, into) })
    }

    fn withdraw(&mut self, peer: PeerId, key: u64) -> Result<Buffer> {
        self.offers.close(peer, key)
    }

    fn post_write(&mut self, peer: PeerId, data: Gather, into: &Offer, at: u64) -> Result<()> {
        self.lane_up(peer)?;
        let key = into.key.get();
        check_write(key, at, data.len() as u64, into.len.get())?;
        self.post(peer, Posted::Write { data, key, at })
    }

    fn poll(&mut self, events: &mut Vec<Event>) -> Result<()> {
        let world = self.world.clone();
        let mut core = world.lock();
        if let Some(stopped) = core.stop() {
            return Err(stopped.as_error());
        }
        self.hand_over(&mut core);
        self.ingest(&mut core);
        if self.found.is_empty() {
            core.polled_in_vain();
        }
        drop(core);
        self.catch_up()?;
        while let Some((peer, found)) = self.found.pop_front() {
            events.push(match found {
                Found::Connected(hello) => Event::Connected { peer, hello },
                Found::Lost(error) => Event::Lost { peer, error },
                Found::Written { key, memory, at, len } => {
                    Event::Written { peer, key, memory, at, len }
                }
                Found::Frame(bytes) => match self.about.memory.allocate(bytes.len()) {
                    Ok(mut frame) => {
                        frame.copy_from_slice(&bytes);
                        Event::Received { peer, frame }
                    }
                    Err(error) => {
                        self.found.push_front((peer, Found::Frame(bytes)));
                        return Err(error);
                    }
                },
            });
        }
        Ok(())
    }

    fn wait(&mut self, timeout: Duration) -> Result<()> {
        let world = self.world.clone();
        let mut core = world.lock();
        self.hand_over(&mut core);
        if !self.busy.is_zero() {
            drop(core);
            return self.catch_up();
        }
        if core.has_arrivals(self.port) || !self.found.is_empty() {
            return Ok(());
        }
        let depth = self.about.limits.queue_depth;
        let room_at = self.lanes.values().filter_map(|lane| lane.room_at(depth)).min();
        let timeout = core.lasts(timeout);
        let until_room = room_at.map_or(timeout, |at| at.saturating_sub(core.now()));
        self.counters.sleeps += 1;
        let timeout = timeout.min(until_room).max(WAIT_MIN);
        world.carry_on(world.pause(core, Activity::Waiting, timeout))
    }

    fn counters(&self) -> Counters {
        self.counters
    }
}

impl Drop for SimTransport {
    fn drop(&mut self) {
        let mut core = self.world.lock();
        let crashed = core.close_port(self.port);
        let silence = if crashed { core.detection() } else { Duration::ZERO };
        let load = self.load(0);
        let reason = if crashed { "it no longer answers" } else { "it closed the connection" };
        for (peer, lane) in &mut self.lanes {
            if let ConnectionState::Up(to) = lane.state {
                let here = End { port: self.port, peer: peer.0 };
                lane.link.free_at = lane.link.free_at.max(core.now().saturating_add(silence));
                core.carry(&mut lane.link, here, to, load, Packet::Close(reason.to_owned()));
            }
        }
    }
}

fn address_of(port: u32) -> String {
    format!("sim:{port}")
}

/// The port of an address on the simulated network.
fn number_of(address: &str) -> Option<u32> {
    address.strip_prefix("sim:")?.parse().ok()
}
