//! Set-up: connections through the connection manager, and which callers are admitted; `direct.rs`
//! has those without it. Not on the path.
//!
//! The private data of the connection manager carries the handshake: the call in a request, the
//! welcome in the answer, a refusal in a rejection. The proof is the first message over the
//! connection. Before it, this side offers nothing and reads no other message.

use std::io;
use std::net::{SocketAddr, ToSocketAddrs};
use std::time::{Duration, Instant};

use super::endpoints::End;
use super::listen::{DIRECT, OR, RESOLVE_TIMEOUT, no_address};
use super::queue_pair::{
    INLINE_BYTES, QueuePairState, RECEIVES, RECEIVES_FIRST, SENDS, SENDS_OF_MANY,
};
use super::side_channels::SideChannelId;
use super::verbs::{CmEvent, CmKind, Connection, QueuePair};
use super::{Rdma, Reported};
use crate::error::{Error, Result};
use crate::handshake::{Answering, CALL_BYTES, Calling, Proved, Reason, deserves_answer, refusal};
use crate::transport::{Event, PeerId};
use crate::wire::Beside;

/// Limit on the time to connect to one address of a name. The connection manager resends lost
/// packets after 4.3 s.
pub(super) const CONNECT_TIMEOUT: Duration = Duration::from_secs(15);

/// Most peers of one transport, if the device's queue has [`RECEIVES_FIRST`] receive buffers for
/// each.
pub(super) const PEERS_MAX: usize = 10_000;

/// From this many lanes on, or from a quarter of the completion queue on, new ones have
/// [`SENDS_OF_MANY`] sends.
const MANY: usize = 256;

/// Time that a peer waits if it finds no receive buffer, which credits prevent: 0.64 ms. (The
/// default is 655 ms.)
pub(super) const NOT_READY_TIMER: u8 = 12;

/// The longest reason that a rejection carries, in bytes.
const REASON_BYTES_MAX: usize = 148;

/// One connection, in whatever stage.
pub(super) struct Peer {
    /// Its address, as dialled or as the caller's.
    pub(super) address: String,
    /// Whether this side called: the layer above then hears of the outcome.
    pub(super) called: bool,
    pub(super) stage: Stage,
    /// When to give up a connection that is not up.
    pub(super) until: Instant,
    /// Further ways to the peer that was called, the next one last.
    pub(super) others: Vec<Way>,
    /// Whether its lane carries stripes of another one.
    pub(super) beside: Option<Beside>,
    /// The wire of a direct connection.
    pub(super) wire: Option<SideChannelId>,
    /// Both ends of it, for the reason of a loss.
    pub(super) ends: Option<Box<str>>,
}

/// A way to connect to a peer.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum Way {
    /// By the connection manager.
    Managed(SocketAddr),
    /// Directly; the address is one of TCP.
    Direct(String),
}

pub(super) enum Stage {
    /// Its address or the route to it is being resolved.
    Seeking(Connection),
    /// The wire of a direct connection is being made.
    Dialling,
    /// This side has called; `None` while the answer is read.
    Calling(QueuePairState, Option<Asked>),
    /// The peer called and was answered; its first message is outstanding.
    Answering(QueuePairState, Option<Awaited>),
    /// Both have proved themselves.
    Up(QueuePairState),
}

/// What a side that called keeps until it is answered.
pub(super) enum Asked {
    Manager(Calling),
    /// This side's end, of which it has told the peer.
    Direct(Box<End>),
}

/// What proves the first message of a peer that called.
pub(super) enum Awaited {
    /// It is the proof of the handshake.
    Proof(Answering),
    /// The proof came over the wire; the message is sealed with the same keys.
    Seal(Box<Proved>),
}

/// The ways that an address names, the first one last.
fn ways(address: &str) -> io::Result<Vec<Way>> {
    let mut ways = Vec::new();
    for part in address.split(OR) {
        match part.strip_prefix(DIRECT) {
            Some(direct) => ways.push(Way::Direct(direct.to_owned())),
            None => ways.extend(part.to_socket_addrs()?.map(Way::Managed)),
        }
    }
    ways.reverse();
    Ok(ways)
}

impl Rdma {
    /// Starts to connect by the first of the ways that `address` names and that this node has; the
    /// others are tried after it.
    pub(super) fn dial(&mut self, address: &str, beside: Option<Beside>) -> Result<PeerId> {
        let failed = |source| Error::Connect { address: address.to_owned(), source };
        let mut others = ways(address).map_err(failed)?;
        let (manager, direct) = (self.nic.manager.is_some(), self.nic.direct.is_some());
        others.retain(|way| match way {
            Way::Managed(_) => manager,
            Way::Direct(_) => direct,
        });
        if others.is_empty() {
            let what = "one of the two connects only directly, the other only by the connection \
                        manager (CARAVAN_RDMA_CONNECT)";
            return Err(failed(io::Error::new(io::ErrorKind::Unsupported, what)));
        }
        let now = Instant::now();
        let (stage, wire) = self.seek(&mut others, beside, now).map_err(failed)?;
        let (address, until) = (address.to_owned(), now + CONNECT_TIMEOUT);
        let peer = Peer { address, called: true, stage, until, others, beside, wire, ends: None };
        let id = self.peers.enter(peer);
        self.claim(wire, id);
        Ok(PeerId(id))
    }

    /// Starts to connect by the last of `ways` that can be.
    fn seek(
        &mut self,
        ways: &mut Vec<Way>,
        beside: Option<Beside>,
        now: Instant,
    ) -> io::Result<(Stage, Option<SideChannelId>)> {
        let mut failed = no_address();
        while let Some(way) = ways.pop() {
            let begun = match way {
                Way::Managed(to) => self.resolve(to).map(|made| (Stage::Seeking(made), None)),
                Way::Direct(to) => {
                    self.dial_directly(&to, beside, now).map(|wire| (Stage::Dialling, Some(wire)))
                }
            };
            match begun {
                Ok(begun) => return Ok(begun),
                Err(error) => failed = error,
            }
        }
        Err(failed)
    }

    /// Starts to resolve an address.
    fn resolve(&self, to: SocketAddr) -> io::Result<Connection> {
        let manager = self.nic.manager.as_ref().ok_or_else(no_address)?;
        let from = manager.listener.local_address().map(|address| SocketAddr::new(address.ip(), 0));
        let connection = Connection::new(&manager.channel)?;
        connection.resolve_address(from, to, RESOLVE_TIMEOUT)?;
        Ok(connection)
    }

    /// Takes the events of the connection manager.
    pub(super) fn look_after_connections(&mut self, now: Instant) -> Result<()> {
        let failed = |source| Error::Os { call: "reading the connection manager's events", source };
        while let Some(manager) = &self.nic.manager
            && let Some(event) = manager.channel.next().map_err(failed)?
        {
            self.connection_event(event, now)?;
        }
        Ok(())
    }

    /// Gives up a connection that is not up in time.
    pub(super) fn mind_time(&mut self, id: u32, now: Instant) {
        let Some(peer) = self.peers.get(id) else { return };
        if !matches!(peer.stage, Stage::Up(_)) && now >= peer.until {
            let seconds = CONNECT_TIMEOUT.as_secs_f32();
            let error = format!("no answer within {seconds:.1} s");
            self.fail(id, io::Error::new(io::ErrorKind::TimedOut, error));
        }
    }

    fn connection_event(&mut self, event: CmEvent, now: Instant) -> Result<()> {
        let CmEvent { key, kind, status, private_data, request } = event;
        if let Some(request) = request {
            self.admit(request, &private_data, now);
            return Ok(());
        }
        let Some(id) = self.peers.of_connection(&key) else { return Ok(()) };
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
                // Completions of what it had sent come first.
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

    /// Resolves the route to a resolved address.
    fn route(&mut self, id: u32) {
        let Some(Peer { stage: Stage::Seeking(connection), .. }) = self.peers.get(id) else {
            return;
        };
        let leaves_by = connection.device().map(|device| device.name());
        let routed = if leaves_by.as_deref() == Some(&*self.nic.device.name()) {
            let config = &self.config.rdma;
            set_class(connection, config.traffic_class)
                .and_then(|()| connection.set_ack_timeout(config.ack_timeout))
                .and_then(|()| connection.resolve_route(RESOLVE_TIMEOUT))
        } else {
            let (by, own) = (leaves_by.unwrap_or_default(), self.nic.device.name());
            Err(io::Error::other(format!("the way there leaves by {by}, this node uses {own}")))
        };
        if let Err(error) = routed {
            self.fail(id, error);
        }
    }

    /// Requests the connection over a resolved route.
    fn call(&mut self, id: u32, now: Instant) {
        let Some(peer) = self.peers.take(id) else { return };
        let connection = match peer.stage {
            Stage::Seeking(connection) => connection,
            stage => return self.peers.put(id, Peer { stage, ..peer }),
        };
        let key = connection.key();
        let (calling, call) = self.credentials.call();
        let retries = self.config.rdma.retries;
        let lane = self.lane_over(Some(connection), now).and_then(|lane| {
            managed(&lane)?.connect(&call, retries)?;
            Ok(lane)
        });
        match lane {
            Ok(lane) => {
                let stage = Stage::Calling(lane, Some(Asked::Manager(calling)));
                self.peers.put(id, Peer { stage, ..peer });
            }
            Err(source) => {
                self.peers.forget_connection(&key);
                let error = Error::Connect { address: peer.address, source };
                self.peers.numbers.lose(id);
                self.ready.push(Event::Lost { peer: PeerId(id), error });
            }
        }
    }

    /// Admits a caller or tells it the reason for the refusal.
    fn admit(&mut self, request: Connection, private_data: &[u8], now: Instant) {
        let address = request.peer_address().map_or_else(String::new, |from| from.to_string());
        // The connection manager may add padding.
        let call = &private_data[..private_data.len().min(CALL_BYTES)];
        let (answering, welcome) = match self.credentials.welcome(call) {
            Ok(answered) => answered,
            Err(reason) => {
                let told = refusal();
                let told = if deserves_answer(call) { &told[..] } else { &[] };
                return self.refuse(request, &address, &reason.to_string(), told);
            }
        };
        if let Err(error) = self.make_room() {
            let reason = format!("it has no room: {error}");
            let told = &reason.as_bytes()[..reason.floor_char_boundary(REASON_BYTES_MAX)];
            return self.refuse(request, &address, &reason, told);
        }
        let _ = set_class(&request, self.config.rdma.traffic_class);
        let _ = request.set_ack_timeout(self.config.rdma.ack_timeout);
        let lane = self.lane_over(Some(request), now).and_then(|lane| {
            match managed(&lane).and_then(|request| request.accept(&welcome)) {
                Ok(()) => Ok(lane),
                Err(error) => {
                    self.stop(lane);
                    Err(error)
                }
            }
        });
        let lane = match lane {
            Ok(lane) => lane,
            Err(error) => {
                let reason = format!("it cannot be accepted: {error}");
                return self.refusals.log(self.about.clock.now(), &address, &reason);
            }
        };
        let _ = lane.queue_pair.set_receiver_not_ready_timer(NOT_READY_TIMER);
        let stage = Stage::Answering(lane, Some(Awaited::Proof(answering)));
        self.peers.enter(Peer::who_called(address, stage, now));
    }

    fn refuse(&mut self, request: Connection, address: &str, reason: &str, told: &[u8]) {
        self.refusals.log(self.about.clock.now(), address, reason);
        // A caller that cannot be told finds out by its time-out.
        let _ = request.reject(told);
    }

    /// Makes room for one more peer in the shared queues; returns which completion queue it has,
    /// and how many sends its lane may have.
    pub(super) fn make_room(&mut self) -> io::Result<(usize, usize)> {
        let lanes = self.peers.queues();
        let wanted = self.queues.wanted + RECEIVES_FIRST as usize;
        let receives_max = self.queues.receives.posted() + self.queues.receives.room();
        if wanted > receives_max {
            let reason = format!("{lanes} peers are all that one node has receive buffers for");
            return Err(io::Error::new(io::ErrorKind::QuotaExceeded, reason));
        }
        let entries_max = self.queues.completions_max;
        let used: usize = self.queues.completions.iter().map(|it| it.sends).sum();
        let is_full = lanes < MANY && used + SENDS <= entries_max / 4;
        let sends = if is_full { SENDS } else { SENDS_OF_MANY };
        for (at, Reported { queue, lanes, sends: used }) in
            self.queues.completions.iter().enumerate()
        {
            // Every send completes if it fails, and every receive.
            let receives = ((lanes + 1) * RECEIVES as usize).min(receives_max);
            let needed = used + sends + receives;
            if needed > entries_max {
                continue;
            }
            if needed > queue.entries() {
                queue.resize(needed.next_power_of_two().min(entries_max))?;
            }
            return Ok((at, sends));
        }
        let first = &self.queues.completions[0].queue;
        let further = first.beside(sends + RECEIVES as usize).map_err(|error| {
            let reason = format!("{lanes} peers are all that completion queues serve: {error}");
            io::Error::new(io::ErrorKind::QuotaExceeded, reason)
        })?;
        self.queues.completions.push(Reported::by(further));
        Ok((self.queues.completions.len() - 1, sends))
    }

    /// A lane over a connection whose device is known, or over one that is made directly, with
    /// receive buffers for its peer.
    pub(super) fn lane_over(
        &mut self,
        connection: Option<Connection>,
        now: Instant,
    ) -> io::Result<QueuePairState> {
        // Numbers of queue pairs are reused: no completion of an old one may be left.
        self.reap().map_err(io::Error::other)?;
        let (reported, sends) = self.make_room()?;
        let (domain, queues) = (&self.domain, &self.queues);
        let (completions, receives) = (&queues.completions[reported].queue, &queues.receives);
        let queue_pair = match connection {
            Some(connection) => {
                QueuePair::new(connection, domain, completions, receives, sends, INLINE_BYTES)
            }
            None => QueuePair::unconnected(domain, completions, receives, sends, INLINE_BYTES),
        }?;
        let wanted = self.queues.wanted + RECEIVES_FIRST as usize;
        while self.queues.receives.posted() < wanted {
            let buffer = self
                .about
                .memory
                .allocate(self.about.limits.frame_bytes)
                .map_err(io::Error::other)?;
            self.queues.receives.supply(buffer).map_err(io::Error::other)?;
        }
        self.queues.receives.ring()?;
        let lane = QueuePairState::new(queue_pair, reported, now);
        self.queues.wanted = wanted;
        let Reported { lanes, sends, .. } = &mut self.queues.completions[reported];
        (*lanes, *sends) = (*lanes + 1, *sends + lane.sends_max);
        Ok(lane)
    }

    /// Stops a lane. It is dropped once its last completions are taken.
    pub(super) fn stop(&mut self, lane: QueuePairState) {
        self.queues.wanted -= lane.receives.kept as usize;
        let Reported { lanes, sends, .. } = &mut self.queues.completions[lane.reported];
        (*lanes, *sends) = (*lanes - 1, *sends - lane.sends_max);
        let _ = lane.queue_pair.fail();
        self.peers.closed.push(lane);
    }

    fn rejected(&mut self, id: u32, status: i32, private_data: &[u8]) {
        let end = private_data.iter().rposition(|&byte| byte != 0).map_or(0, |last| last + 1);
        let reason = String::from_utf8_lossy(&private_data[..end]);
        if private_data.starts_with(&refusal()) {
            self.lose(id, Reason::Refused);
        } else if reason.is_empty() {
            let error = format!("nobody listens there (rejected with code {status})");
            self.fail(id, io::Error::new(io::ErrorKind::ConnectionRefused, error));
        } else {
            self.lose(id, format!("it refused this node: {reason}"));
        }
    }

    /// Gives up a way that could not be connected by, and tries the next one. The manager may say
    /// that a connection failed when its lane is up and the peer has gone: then that is lost.
    pub(super) fn fail(&mut self, id: u32, error: io::Error) {
        let Some(peer) = self.peers.get_mut(id) else { return };
        if matches!(peer.stage, Stage::Up(_)) {
            return self.lose(id, error.to_string());
        }
        let mut others = std::mem::take(&mut peer.others);
        let (address, called, beside) = (peer.address.clone(), peer.called, peer.beside);
        let now = Instant::now();
        if let Ok((stage, wire)) = self.seek(&mut others, beside, now) {
            let until = now + CONNECT_TIMEOUT;
            self.close(id);
            let peer = Peer { address, called, stage, until, others, beside, wire, ends: None };
            self.peers.put(id, peer);
            self.peers.handshaking += 1;
            self.claim(wire, id);
            return;
        }
        self.close(id);
        if called {
            let error = Error::Connect { address, source: error };
            self.peers.numbers.lose(id);
            self.ready.push(Event::Lost { peer: PeerId(id), error });
        } else {
            self.peers.numbers.give_back(id);
            self.refusals.log(self.about.clock.now(), &address, &error.to_string());
        }
    }

    /// Ends a connection because of `reason`. The layer above does not hear of callers that have
    /// not proved themselves.
    #[cold]
    pub(super) fn lose(&mut self, id: u32, reason: impl Into<Reason>) {
        let Some(peer) = self.peers.get(id) else { return };
        let reason = reason.into();
        let (address, peer_id) = (peer.address.clone(), PeerId(id));
        let is_known = peer.called || matches!(peer.stage, Stage::Up(_));
        self.close(id);
        if is_known {
            let error = Error::PeerLost { peer: peer_id, address, reason };
            self.peers.numbers.lose(id);
            self.ready.push(Event::Lost { peer: peer_id, error });
        } else {
            self.peers.numbers.give_back(id);
            self.refusals.log(self.about.clock.now(), &address, &reason.to_string());
        }
    }

    /// Closes a connection and forgets it, except for the offers to its peer. Its queue pair stops,
    /// and is dropped once its last completions are taken. Returns false if there is no connection.
    pub(super) fn close(&mut self, id: u32) -> bool {
        let Some(peer) = self.peers.take(id) else { return false };
        self.peers.forget(&peer.stage);
        self.hang_up(peer.wire);
        if let Stage::Calling(lane, _) | Stage::Answering(lane, _) | Stage::Up(lane) = peer.stage {
            // The other side notices in any case.
            let _ = lane.queue_pair.connection().map(Connection::disconnect);
            self.stop(lane);
        }
        true
    }
}

impl Peer {
    /// A peer that called from `address`, and has to prove itself.
    pub(super) fn who_called(address: String, stage: Stage, now: Instant) -> Peer {
        let (until, others) = (now + CONNECT_TIMEOUT, Vec::new());
        let (beside, wire, ends) = (None, None, None);
        Peer { address, called: false, stage, until, others, beside, wire, ends }
    }
}

/// The connection of a lane that the connection manager makes.
fn managed(lane: &QueuePairState) -> io::Result<&Connection> {
    lane.queue_pair.connection().ok_or_else(no_address)
}

/// Sets the traffic class of a connection, where a setting asks for one.
fn set_class(connection: &Connection, class: u8) -> io::Result<()> {
    if class == 0 { Ok(()) } else { connection.set_traffic_class(class) }
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
    use super::*;
    use crate::config::{RdmaConfig, VanConfig};
    use crate::transport::Transport;

    /// What `caller` hears of its call to `van`.
    fn outcome(van: &mut Rdma, caller: &mut Rdma) -> Event {
        caller.connect(&van.about().address).unwrap();
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
    fn an_address_names_the_ways_in_order() {
        let ways = ways("127.0.0.1:7,direct:here:8").unwrap();
        let managed = Way::Managed("127.0.0.1:7".parse().unwrap());
        assert_eq!(ways, [Way::Direct("here:8".to_owned()), managed], "the first one last");
    }

    #[test]
    fn one_peer_too_many_is_told_so_and_let_in_when_another_has_gone() {
        let Ok(device) = std::env::var("CARAVAN_TEST_DEVICE") else {
            eprintln!("skipped: CARAVAN_TEST_DEVICE names no RDMA device (`ci/vm` makes one)");
            return;
        };
        let rdma = RdmaConfig { device: Some(device), ..RdmaConfig::default() };
        let config = VanConfig { rdma, ..VanConfig::default() };
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
