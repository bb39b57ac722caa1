//! Set-up: which address to listen on, connections through the connection manager, who is let in. Nothing here is on the path.
//!
//! Both sides say hello in the connection manager's private data, so that a connection that is up is one between friends:
//!
//! ```text
//! greeting   [hello 32 bytes][receive buffers kept for the other side u32][0 u32]     in a request, and in the answer
//! refusal    UTF-8 reason, zero padding                                               in a rejection
//! ```

use std::io;
use std::net::{SocketAddr, ToSocketAddrs};
use std::path::Path;
use std::rc::Rc;
use std::time::{Duration, Instant};

use zerocopy::little_endian::U32;
use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout, Unaligned};

use super::devices::{DeviceInfo, devices};
use super::queue_pair::{COMPLETIONS, INLINE_BYTES, Lane, RECEIVES, SENDS};
use super::verbs::{self, Channel, CmEvent, CmKind, Connection, Device, QueuePair};
use super::{NAME, Rdma};
use crate::config::VanConfig;
use crate::error::{Error, Result};
use crate::transport::{Event, PeerId};
use crate::wire::Hello;

/// How long a connection may take to be made, each address of a name. The connection manager sends what is lost again after 4.3 s.
const CONNECT_TIMEOUT: Duration = Duration::from_secs(15);

/// How long looking up an address, or the way to it, may take.
const RESOLVE_TIMEOUT: Duration = Duration::from_secs(2);

/// Connections that wait to be let in.
const BACKLOG: i32 = 1024;

/// Most peers of one transport: it has [`RECEIVES`] receive buffers for each, in one queue.
pub(super) const PEERS_MAX: usize = 256;

/// How long the device waits for an acknowledgement before it sends again: 4.096 µs × 2^14 = 67 ms.
const ACK_TIMEOUT_EXPONENT: u8 = 14;

/// How often it does so; half a second in all. (7, the most there is, means for ever to Soft-RoCE.)
const RETRIES: u8 = 6;

/// How long a peer is told to wait that meets no receive buffer, which credits prevent: 0.64 ms. (The default is 655 ms.)
const NOT_READY_TIMER: u8 = 12;

/// The longest reason that a rejection carries, in bytes.
const REASON_BYTES_MAX: usize = 148;

/// What each side tells the other when a connection is made.
#[derive(Clone, Copy, Debug, FromBytes, IntoBytes, Immutable, KnownLayout, Unaligned)]
#[repr(C)]
struct Greeting {
    hello: Hello,
    /// Receive buffers that it keeps for the other side.
    receives: U32,
    reserved: U32,
}

// What the connection manager leaves a caller of its 92 bytes.
const _: () = assert!(size_of::<Greeting>() <= 56);

impl Greeting {
    fn of(rdma: &Rdma) -> Greeting {
        let mut hello = rdma.config.hello();
        hello.frame_bytes = U32::new(rdma.frame_bytes as u32);
        Greeting { hello, receives: U32::new(RECEIVES), reserved: U32::new(0) }
    }

    /// Reads a peer's greeting, which the connection manager pads, and checks that it speaks to us.
    fn check(bytes: &[u8], cluster: u64) -> Result<Greeting, String> {
        let short =
            || format!("a greeting has {} bytes, not {}", size_of::<Greeting>(), bytes.len());
        let (greeting, _) = Greeting::read_from_prefix(bytes).map_err(|_| short())?;
        Hello::check(greeting.hello.as_bytes(), cluster)?;
        if greeting.receives.get() < 2 || greeting.reserved.get() != 0 {
            return Err("its greeting is malformed".to_owned());
        }
        Ok(greeting)
    }
}

/// One connection, whatever has become of it.
pub(super) struct Peer {
    /// Its address as this side knows it.
    address: String,
    /// Whether this side called, so that somebody waits to hear what comes of it.
    called: bool,
    pub(super) stage: Stage,
    /// When to give up while it is not up.
    until: Instant,
    /// Further addresses of the name that was called.
    others: Vec<SocketAddr>,
}

pub(super) enum Stage {
    /// Its address, or the way to it, is looked up.
    Seeking(Connection),
    /// It is asked.
    Calling(Lane),
    /// It asked, and was answered; the connection manager has not confirmed yet that it knows.
    Answering(Lane, Hello),
    /// Both have said hello.
    Up(Lane),
}

/// Listens where `config` says; returns what to go on with, and the address as peers call it.
pub(super) fn listen(config: &VanConfig) -> Result<(Rc<Channel>, Connection, Device, String)> {
    let unavailable = |reason| Error::Unavailable { van: NAME, reason };
    verbs::available().map_err(unavailable)?;
    let os = |call| move |source| Error::Os { call, source };
    let channel = Channel::open().map_err(os("opening the RDMA connection manager"))?;
    let failed = |source| Error::Listen { address: config.listen.clone(), source };
    let wanted = first_address(&config.listen).map_err(failed)?;
    let found = bound(&channel, wanted).filter(|(_, device)| is_wanted(config, &device.name()));
    let (listener, device) = match found {
        Some(found) => found,
        None => {
            let ip = choose(&devices(Path::new("/sys")), config.device.as_deref())
                .map_err(unavailable)?;
            let address = SocketAddr::new(ip, wanted.port());
            bound(&channel, address).ok_or_else(|| {
                unavailable(format!("{address} belongs to an RDMA device, and cannot be bound"))
            })?
        }
    };
    listener.listen(BACKLOG).map_err(failed)?;
    let address = listener.local_address().ok_or_else(|| failed(no_address()))?.to_string();
    Ok((channel, listener, device, address))
}

/// Whether a device is the one that the settings ask for, if they do.
fn is_wanted(config: &VanConfig, name: &str) -> bool {
    config.device.as_deref().is_none_or(|wanted| wanted == name)
}

/// A connection that is bound to `address`, if that is the address of an RDMA device.
fn bound(channel: &Rc<Channel>, address: SocketAddr) -> Option<(Connection, Device)> {
    // The connection manager would take any device for the loopback address.
    if address.ip().is_loopback() || address.ip().is_unspecified() {
        return None;
    }
    let connection = Connection::new(channel).ok()?;
    connection.bind(address).ok()?;
    let device = connection.device()?;
    Some((connection, device))
}

/// The address of the device called `name`, or of the first one that can be used.
///
/// # Errors
/// Says why there is none, and what to do.
fn choose(devices: &[DeviceInfo], name: Option<&str>) -> Result<std::net::IpAddr, String> {
    if devices.is_empty() {
        return Err("this machine has no RDMA device".to_owned());
    }
    let names = || devices.iter().map(|device| device.name.as_str()).collect::<Vec<_>>().join(", ");
    let named: Vec<_> =
        devices.iter().filter(|device| name.is_none_or(|name| name == device.name)).collect();
    if let (Some(name), true) = (name, named.is_empty()) {
        return Err(format!("there is no RDMA device {name}; there are {}", names()));
    }
    let active = || named.iter().flat_map(|device| &device.ports).filter(|port| port.is_active());
    if active().next().is_none() {
        return Err(format!("no port of {} is active (see `rdma link` and the cable)", names()));
    }
    active().find_map(|port| port.address()).ok_or_else(|| {
        format!(
            "the network interface of {} has no address; give it one (ip address add …)",
            names()
        )
    })
}

/// Whether a van made from `config` would find a way to `address`, a `host:port`; asks the connection manager, and nobody else.
///
/// # Errors
/// [`Error::Unavailable`] as [`Rdma::new`] says; [`Error::Connect`] when no way leads there from its device.
pub fn reaches(config: &VanConfig, address: &str) -> Result<()> {
    let (channel, listener, device, _) = listen(config)?;
    let failed = |source| Error::Connect { address: address.to_owned(), source };
    let to = first_address(address).map_err(failed)?;
    let from = listener.local_address().map(|address| SocketAddr::new(address.ip(), 0));
    let connection = Connection::new(&channel).map_err(failed)?;
    connection.resolve_address(from, to, RESOLVE_TIMEOUT).map_err(failed)?;
    let until = Instant::now() + RESOLVE_TIMEOUT;
    while Instant::now() < until {
        match channel.next().map_err(failed)? {
            Some(event) if event.kind == CmKind::AddressResolved => {
                if connection.device().is_some_and(|by| by.name() == device.name()) {
                    return Ok(());
                }
                break;
            }
            Some(_) => break,
            None => drop(verbs::sleep(&[channel.fd()], RESOLVE_TIMEOUT).map_err(failed)?),
        }
    }
    let none = format!("no route leads there from the RDMA device {}", device.name());
    Err(failed(io::Error::new(io::ErrorKind::HostUnreachable, none)))
}

fn first_address(name: &str) -> io::Result<SocketAddr> {
    name.to_socket_addrs()?.next().ok_or_else(no_address)
}

fn no_address() -> io::Error {
    io::Error::new(io::ErrorKind::NotFound, "the name has no address")
}

impl Rdma {
    /// Starts to connect to the first address of `address`, which may be a name; the others are tried after it.
    pub(super) fn dial(&mut self, address: &str) -> Result<PeerId> {
        let failed = |source| Error::Connect { address: address.to_owned(), source };
        let mut others: Vec<_> = address.to_socket_addrs().map_err(failed)?.collect();
        others.reverse();
        let connection = self.seek(&mut others).map_err(failed)?;
        let until = Instant::now() + CONNECT_TIMEOUT;
        let stage = Stage::Seeking(connection);
        Ok(PeerId(self.enter(Peer {
            address: address.to_owned(),
            called: true,
            stage,
            until,
            others,
        })))
    }

    /// Looks the way to the last of `addresses` up.
    fn seek(&self, addresses: &mut Vec<SocketAddr>) -> io::Result<Connection> {
        let from = self.listener.local_address().map(|address| SocketAddr::new(address.ip(), 0));
        let mut failed = no_address();
        while let Some(to) = addresses.pop() {
            let connection = Connection::new(&self.channel)?;
            match connection.resolve_address(from, to, RESOLVE_TIMEOUT) {
                Ok(()) => return Ok(connection),
                Err(error) => failed = error,
            }
        }
        Err(failed)
    }

    /// Gives a connection a number and a place in the tables.
    fn enter(&mut self, peer: Peer) -> u32 {
        let id = u32::try_from(self.peers.len()).expect("4 billion connections take years");
        self.peers.push(Some(peer));
        self.young += 1;
        self.index(id);
        id
    }

    /// Enters the connection that `id` has now into the tables.
    fn index(&mut self, id: u32) {
        let Some(Some(peer)) = self.peers.get(id as usize) else { return };
        match &peer.stage {
            Stage::Seeking(connection) => {
                self.by_connection.insert(connection.key(), id);
            }
            Stage::Calling(lane) | Stage::Answering(lane, _) | Stage::Up(lane) => {
                self.by_connection.insert(lane.queue_pair.connection().key(), id);
                self.by_queue.insert(lane.queue_pair.number(), id);
            }
        }
    }

    /// Takes in what the connection manager reports, and lets those go whose time is up.
    pub(super) fn look_after_connections(&mut self, now: Instant) -> Result<()> {
        let failed = |source| Error::Os { call: "reading the connection manager's events", source };
        while let Some(event) = self.channel.next().map_err(failed)? {
            self.connection_event(event, now)?;
        }
        if self.young == 0 {
            return Ok(());
        }
        for id in 0..self.peers.len() as u32 {
            let Some(Some(peer)) = self.peers.get(id as usize) else { continue };
            if !matches!(peer.stage, Stage::Up(_)) && now >= peer.until {
                let seconds = CONNECT_TIMEOUT.as_secs_f32();
                let error = format!("no answer within {seconds:.1} s");
                self.fail(id, io::Error::new(io::ErrorKind::TimedOut, error));
            }
        }
        Ok(())
    }

    fn connection_event(&mut self, event: CmEvent, now: Instant) -> Result<()> {
        let CmEvent { key, kind, status, private_data, request } = event;
        if let Some(request) = request {
            self.admit(request, &private_data, now);
            return Ok(());
        }
        let Some(&id) = self.by_connection.get(&key) else { return Ok(()) };
        match kind {
            CmKind::AddressResolved => self.route(id),
            CmKind::RouteResolved => self.call(id, now),
            CmKind::Established => self.established(id, &private_data),
            CmKind::Rejected => self.rejected(id, status, &private_data),
            CmKind::AddressError | CmKind::RouteError => {
                self.fail(id, errno(status, "no way leads there over RDMA"));
            }
            CmKind::ConnectError | CmKind::Unreachable => {
                self.fail(id, errno(status, "it does not answer"));
            }
            CmKind::Disconnected => {
                // What it had sent before comes first.
                self.take_completions()?;
                self.lose(id, "it closed the connection, or its process ended".to_owned());
            }
            CmKind::DeviceRemoved => self.lose(id, "the RDMA device is gone".to_owned()),
            CmKind::ConnectRequest
            | CmKind::AddressChanged
            | CmKind::TimewaitExit
            | CmKind::Other(_) => {}
        }
        Ok(())
    }

    /// The address is known; now the way.
    fn route(&mut self, id: u32) {
        let Some(Some(Peer { stage: Stage::Seeking(connection), .. })) =
            self.peers.get(id as usize)
        else {
            return;
        };
        let leaves_by = connection.device().map(|device| device.name());
        let routed = if leaves_by.as_deref() == Some(&*self.device.name()) {
            connection
                .set_ack_timeout(ACK_TIMEOUT_EXPONENT)
                .and_then(|()| connection.resolve_route(RESOLVE_TIMEOUT))
        } else {
            let (by, own) = (leaves_by.unwrap_or_default(), self.device.name());
            Err(io::Error::other(format!("the way there leaves by {by}, this node uses {own}")))
        };
        if let Err(error) = routed {
            self.fail(id, error);
        }
    }

    /// The way is known: asks for the connection.
    fn call(&mut self, id: u32, now: Instant) {
        let Some(Some(peer)) = self.peers.get_mut(id as usize).map(Option::take) else { return };
        let Peer { address, called, stage, until, others } = peer;
        let Stage::Seeking(connection) = stage else {
            self.peers[id as usize] = Some(Peer { address, called, stage, until, others });
            return;
        };
        let (key, greeting) = (connection.key(), Greeting::of(self));
        let lane = self.lane_over(connection, now).and_then(|lane| {
            lane.queue_pair.connection().connect(greeting.as_bytes(), RETRIES)?;
            Ok(lane)
        });
        match lane {
            Ok(lane) => {
                let stage = Stage::Calling(lane);
                self.peers[id as usize] = Some(Peer { address, called, stage, until, others });
                self.index(id);
            }
            Err(source) => {
                self.by_connection.remove(&key);
                self.young -= 1;
                let error = Error::Connect { address, source };
                self.ready.push(Event::Lost { peer: PeerId(id), error });
            }
        }
    }

    /// Somebody calls: lets it in, or tells it why not.
    fn admit(&mut self, request: Connection, private_data: &[u8], now: Instant) {
        let address = request.peer_address().map_or_else(String::new, |from| from.to_string());
        let greeting = match Greeting::check(private_data, self.config.cluster) {
            Ok(greeting) => greeting,
            Err(reason) => return self.refuse(request, &address, &reason),
        };
        if let Err(error) = self.make_room() {
            return self.refuse(request, &address, &format!("it has no room: {error}"));
        }
        let _ = request.set_ack_timeout(ACK_TIMEOUT_EXPONENT);
        let ours = Greeting::of(self);
        let lane = match self.lane_over(request, now) {
            Ok(lane) => lane,
            Err(error) => {
                tracing::warn!(address, %error, "cannot accept a connection");
                return;
            }
        };
        let mut lane = lane;
        self.greet(&mut lane, &greeting);
        if let Err(error) = lane.queue_pair.connection().accept(ours.as_bytes()) {
            tracing::warn!(address, %error, "cannot accept a connection");
            self.receives_wanted -= RECEIVES as usize;
            return;
        }
        let _ = lane.queue_pair.set_receiver_not_ready_timer(NOT_READY_TIMER);
        let (stage, until) = (Stage::Answering(lane, greeting.hello), now + CONNECT_TIMEOUT);
        self.enter(Peer { address, called: false, stage, until, others: Vec::new() });
    }

    fn refuse(&self, request: Connection, address: &str, reason: &str) {
        tracing::debug!(address, reason, "turned a connection away");
        let reason = &reason[..reason.floor_char_boundary(REASON_BYTES_MAX)];
        // If it cannot be told, it will find out by itself.
        let _ = request.reject(reason.as_bytes());
    }

    /// Makes room for one more peer in the queues that all share.
    fn make_room(&mut self) -> io::Result<()> {
        let wanted = self.receives_wanted + RECEIVES as usize;
        let needed = (self.by_queue.len() + 1) * COMPLETIONS;
        if wanted > self.receives.posted() + self.receives.room() {
            let reason = format!(
                "{} peers are all that one node has receive buffers for",
                self.by_queue.len()
            );
            return Err(io::Error::new(io::ErrorKind::QuotaExceeded, reason));
        }
        if needed > self.completions.entries() {
            self.completions
                .resize(needed.next_power_of_two().min(self.completions_max).max(needed))?;
        }
        Ok(())
    }

    /// A lane over a connection whose device is known, with receive buffers for its peer.
    fn lane_over(&mut self, connection: Connection, now: Instant) -> io::Result<Lane> {
        // Numbers of queue pairs are used again: nothing of an old one may be left.
        self.bury().map_err(io::Error::other)?;
        self.make_room()?;
        let wanted = self.receives_wanted + RECEIVES as usize;
        let queue_pair = QueuePair::new(
            connection,
            &self.domain,
            &self.completions,
            &self.receives,
            SENDS,
            INLINE_BYTES,
        )?;
        while self.receives.posted() < wanted {
            let buffer = self.pool.allocate(self.frame_bytes).map_err(io::Error::other)?;
            self.receives.supply(buffer).map_err(io::Error::other)?;
        }
        self.receives.ring()?;
        self.receives_wanted = wanted;
        Ok(Lane::new(queue_pair, now))
    }

    fn greet(&self, lane: &mut Lane, greeting: &Greeting) {
        let frame_bytes = self.frame_bytes.min(greeting.hello.frame_bytes.get() as usize);
        lane.greet(frame_bytes, greeting.receives.get());
    }

    /// The connection is up; whoever was called says hello only now.
    pub(super) fn established(&mut self, id: u32, private_data: &[u8]) {
        let Some(Some(peer)) = self.peers.get_mut(id as usize).map(Option::take) else { return };
        let Peer { address, called, stage, until, others } = peer;
        let (stage, outcome) = match stage {
            Stage::Answering(lane, hello) => (Stage::Up(lane), Ok(Some(hello))),
            Stage::Calling(mut lane) => match Greeting::check(private_data, self.config.cluster) {
                Ok(greeting) => {
                    self.greet(&mut lane, &greeting);
                    let _ = lane.queue_pair.set_receiver_not_ready_timer(NOT_READY_TIMER);
                    (Stage::Up(lane), Ok(Some(greeting.hello)))
                }
                Err(reason) => (Stage::Calling(lane), Err(reason)),
            },
            stage => (stage, Ok(None)),
        };
        self.peers[id as usize] = Some(Peer { address, called, stage, until, others });
        match outcome {
            Ok(Some(hello)) => {
                self.young -= 1;
                self.ready.push(Event::Connected { peer: PeerId(id), hello });
            }
            Ok(None) => {}
            Err(reason) => self.lose(id, reason),
        }
    }

    fn rejected(&mut self, id: u32, status: i32, private_data: &[u8]) {
        let end = private_data.iter().rposition(|&byte| byte != 0).map_or(0, |last| last + 1);
        let reason = String::from_utf8_lossy(&private_data[..end]);
        if reason.is_empty() {
            let error = format!("nobody listens there (rejected with code {status})");
            self.fail(id, io::Error::new(io::ErrorKind::ConnectionRefused, error));
        } else {
            self.lose(id, format!("it refused this node: {reason}"));
        }
    }

    /// An address could not be connected to; goes on to the next one of the name, if there is one.
    fn fail(&mut self, id: u32, error: io::Error) {
        let Some(Some(peer)) = self.peers.get_mut(id as usize) else { return };
        let mut others = std::mem::take(&mut peer.others);
        let (address, called) = (peer.address.clone(), peer.called);
        if let Ok(connection) = self.seek(&mut others) {
            let until = Instant::now() + CONNECT_TIMEOUT;
            self.close(id);
            let stage = Stage::Seeking(connection);
            self.peers[id as usize] = Some(Peer { address, called, stage, until, others });
            self.young += 1;
            self.index(id);
            return;
        }
        self.close(id);
        if called {
            let error = Error::Connect { address, source: error };
            self.ready.push(Event::Lost { peer: PeerId(id), error });
        }
    }

    /// Ends a connection because of `reason`. Strangers who called are let go in silence: nobody here knows them.
    pub(super) fn lose(&mut self, id: u32, reason: String) {
        let Some(Some(peer)) = self.peers.get(id as usize) else { return };
        let (address, peer_id) = (peer.address.clone(), PeerId(id));
        let is_known = peer.called || matches!(peer.stage, Stage::Up(_));
        self.close(id);
        if is_known {
            let error = Error::PeerLost { peer: peer_id, address, reason };
            self.ready.push(Event::Lost { peer: peer_id, error });
        }
    }

    /// Closes a connection and forgets it, but for what was offered over it. Its queue pair does nothing more, and goes once all
    /// that it has reported is taken in.
    pub(super) fn close(&mut self, id: u32) {
        let Some(peer) = self.peers.get_mut(id as usize).and_then(Option::take) else { return };
        self.young -= usize::from(!matches!(peer.stage, Stage::Up(_)));
        match peer.stage {
            Stage::Seeking(connection) => {
                self.by_connection.remove(&connection.key());
            }
            Stage::Calling(lane) | Stage::Answering(lane, _) | Stage::Up(lane) => {
                self.by_connection.remove(&lane.queue_pair.connection().key());
                self.by_queue.remove(&lane.queue_pair.number());
                self.last_queue = None;
                self.receives_wanted -= RECEIVES as usize;
                // The other side finds out in any case.
                let _ = lane.queue_pair.connection().disconnect();
                let _ = lane.queue_pair.fail();
                self.closed.push(lane);
            }
        }
    }
}

/// The error that the connection manager reports as `status`, a negative number of the system's.
fn errno(status: i32, what: &str) -> io::Error {
    match status {
        0 => io::Error::new(io::ErrorKind::HostUnreachable, what.to_owned()),
        status => {
            let cause = io::Error::from_raw_os_error(status.saturating_abs());
            io::Error::new(cause.kind(), format!("{what}: {cause}"))
        }
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, reason = "tests")]
    use super::super::devices::{Gid, PortInfo};
    use super::*;
    use crate::transport::Transport;

    fn device(name: &str, state: &str, gids: &[&str]) -> DeviceInfo {
        let gids = gids
            .iter()
            .zip(0..)
            .map(|(address, index)| Gid {
                index,
                address: address.parse().unwrap(),
                kind: "RoCE v2".to_owned(),
                interface: Some("v0".to_owned()),
            })
            .collect();
        let port = PortInfo {
            number: 1,
            state: state.to_owned(),
            physical_state: "LinkUp".to_owned(),
            link_layer: "Ethernet".to_owned(),
            rate: "100 Gb/sec".to_owned(),
            gids,
            interface: None,
        };
        DeviceInfo { name: name.to_owned(), numa_node: None, ports: vec![port] }
    }

    #[test]
    fn the_first_device_with_an_active_port_and_an_address_is_taken() {
        let devices = [
            device("a", "DOWN", &["::ffff:10.0.0.1"]),
            device("b", "ACTIVE", &[]),
            device("c", "ACTIVE", &["fe80::1", "::ffff:10.0.0.3"]),
        ];
        assert_eq!(choose(&devices, None).unwrap().to_string(), "10.0.0.3");
        assert_eq!(choose(&devices, Some("c")).unwrap().to_string(), "10.0.0.3");
        for (name, words) in [("a", "is active"), ("b", "no address"), ("d", "there are a, b, c")] {
            let error = choose(&devices, Some(name)).unwrap_err();
            assert!(error.contains(words), "{error}");
        }
        assert!(choose(&[], None).unwrap_err().contains("no RDMA device"));
    }

    #[test]
    fn strangers_and_malformed_greetings_are_turned_away() {
        let config = VanConfig { cluster: 7, ..VanConfig::default() };
        let greeting =
            Greeting { hello: config.hello(), receives: U32::new(2), reserved: U32::new(0) };
        let mut padded = greeting.as_bytes().to_vec();
        padded.resize(56, 0);
        assert_eq!(Greeting::check(&padded, 7).unwrap().receives.get(), 2);
        assert!(Greeting::check(&padded, 8).unwrap_err().contains("cluster"));
        assert!(Greeting::check(&padded[..39], 7).unwrap_err().contains("not 39"));
        for wrong in [
            Greeting { receives: U32::new(1), ..greeting },
            Greeting { reserved: U32::new(1), ..greeting },
        ] {
            assert!(Greeting::check(wrong.as_bytes(), 7).unwrap_err().contains("malformed"));
        }
    }

    /// What `caller` hears of its call to `van`.
    fn outcome(van: &mut Rdma, caller: &mut Rdma) -> Event {
        caller.connect(van.address()).unwrap();
        let (mut events, began) = (Vec::new(), Instant::now());
        while events.is_empty() {
            van.wait(Duration::from_millis(1)).unwrap();
            van.poll(&mut Vec::new()).unwrap();
            caller.wait(Duration::from_millis(1)).unwrap();
            caller.poll(&mut events).unwrap();
            assert!(began.elapsed() < Duration::from_secs(20), "nothing came");
        }
        events.remove(0)
    }

    #[test]
    fn one_peer_too_many_is_told_so_and_let_in_when_another_has_gone() {
        let Ok(device) = std::env::var("CARAVAN_TEST_DEVICE") else {
            eprintln!("skipped: CARAVAN_TEST_DEVICE names no RDMA device (`ci/vm` makes one)");
            return;
        };
        let config = VanConfig { device: Some(device), ..VanConfig::default() };
        let mut van = Rdma::serving(&config, 2).unwrap();
        let mut callers = Vec::from_iter((0..3).map(|_| Rdma::new(&config).unwrap()));
        for caller in &mut callers[..2] {
            let event = outcome(&mut van, caller);
            assert!(matches!(event, Event::Connected { .. }), "{event:?}");
        }
        for _ in 0..2 {
            let event = outcome(&mut van, &mut callers[2]);
            let Event::Lost { error, .. } = event else { panic!("{event:?}") };
            let told = "it refused this node: it has no room: 2 peers are all that one node has";
            assert!(error.to_string().contains(told), "{error}");
        }
        drop(callers.remove(0));
        let (mut events, began) = (Vec::new(), Instant::now());
        while !events.iter().any(|event| matches!(event, Event::Lost { .. })) {
            van.wait(Duration::from_millis(1)).unwrap();
            van.poll(&mut events).unwrap();
            assert!(began.elapsed() < Duration::from_secs(20), "nobody left");
        }
        let event = outcome(&mut van, &mut callers[1]);
        assert!(matches!(event, Event::Connected { .. }), "{event:?}");
    }
}
