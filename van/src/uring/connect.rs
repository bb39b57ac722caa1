//! How peers come and go: connecting, accepting, handshakes, refusals, loss. Not on the path.

use std::io;
use std::net::{TcpStream, ToSocketAddrs};
use std::time::{Duration, Instant};

use socket2::SockRef;

use super::Uring;
use super::operation::Slot;
use crate::error::{Error, Result};
use crate::handshake::Greeter;
use crate::socket::{self, Receiver, Sender};
use crate::transport::{Event, PeerId};

/// How long a connection may take to be made, to prove that it belongs here, or to take note of a refusal.
const PATIENCE: Duration = Duration::from_secs(5);

/// How long to wait before accepting again, after the system could not (no file descriptors left, mostly).
const ACCEPT_AGAIN: Duration = Duration::from_millis(100);

/// Connections taken in at a look around, so that a flood of them leaves time for everybody else.
const ACCEPTS_MAX: usize = 16;

/// Callers looked at in one look around; of a flood most are gone already.
const LOOKS_MAX: usize = 256;

/// Time between two looks around.
const LOOK_AROUND: Duration = Duration::from_millis(1);

/// Looks at lanes for one at the clock, while there is anybody to look after.
const LOOKS_PER_CLOCK: u32 = 16;

/// Callers that have not proved themselves, at most: the oldest goes when one more comes.
const STRANGERS_MAX: usize = 1024;

/// What is known of a connection besides its lane.
pub(super) struct Peer {
    pub(super) id: PeerId,
    address: String,
    pub(super) stage: Stage,
    /// Longest frame that both sides take.
    pub(super) frame_bytes: usize,
    /// Whether this side asked for the connection, and so wants to know what became of it.
    ours: bool,
}

/// How far a connection is.
pub(super) enum Stage {
    /// It may take until then to prove that it belongs here.
    Greeting(Instant),
    /// It is a peer.
    Up,
    /// It was told why it is turned away, and may take until then to read it.
    Refused(Instant),
    /// The kernel gives back what it has; then this is reported.
    Closing(Option<Error>),
}

impl Peer {
    /// Whether it is somebody who has called and not proved himself.
    fn is_stranger(&self) -> bool {
        !self.ours && matches!(self.stage, Stage::Greeting(_) | Stage::Refused(_))
    }
}

impl Uring {
    /// Connects, and begins the handshake.
    pub(super) fn connect_to(&mut self, address: &str) -> Result<PeerId> {
        let failed = |source| Error::Connect { address: address.to_owned(), source };
        let mut failure = io::Error::new(io::ErrorKind::NotFound, "the name has no address");
        for candidate in address.to_socket_addrs().map_err(failed)? {
            match TcpStream::connect_timeout(&candidate, PATIENCE) {
                Ok(socket) => return self.enter(socket, address.to_owned(), true),
                Err(error) => failure = error,
            }
        }
        Err(failed(failure))
    }

    /// Takes note of what came of accepting.
    pub(super) fn accepted(&mut self, accepted: io::Result<TcpStream>) {
        match accepted {
            Ok(socket) => self.callers.push_back(socket),
            Err(error) if error.kind() == io::ErrorKind::ConnectionAborted => {}
            Err(error) => {
                self.accept_at = Some(Instant::now() + ACCEPT_AGAIN);
                self.turned_away("a caller", &format!("it cannot be accepted: {error}"));
            }
        }
        if self.callers.len() > STRANGERS_MAX {
            self.callers.retain(|caller| caller.peer_addr().is_ok()); // of a flood most are gone already
        }
        if self.callers.len() > STRANGERS_MAX {
            self.callers.pop_front();
            self.turned_away("a caller", &format!("it was the oldest of {STRANGERS_MAX}"));
        }
    }

    /// Takes in some of those who have called.
    fn admit(&mut self) {
        let mut admitted = 0;
        for _ in 0..LOOKS_MAX {
            if admitted == ACCEPTS_MAX {
                return;
            }
            let Some(socket) = self.callers.pop_front() else { return };
            // One that has no peer, or cannot be set up, was closed by the other side meanwhile, and takes next to no time.
            if let Ok(address) = socket.peer_addr() {
                admitted += usize::from(self.enter(socket, address.to_string(), false).is_ok());
            }
        }
    }

    fn turned_away(&mut self, address: &str, reason: &str) {
        self.refusals.log(self.about.clock.now(), address, reason);
    }

    /// Gives a new connection a number and a lane, which begins with a handshake.
    fn enter(&mut self, socket: TcpStream, address: String, ours: bool) -> Result<PeerId> {
        let failed = |source| Error::Connect { address: address.clone(), source };
        socket::set_up(&SockRef::from(&socket)).map_err(failed)?;
        if !ours {
            self.make_room();
        }
        let number = if ours { self.numbers.unused() } else { self.numbers.free() };
        let id = PeerId(number);
        let mut sender = Sender::new(id);
        let greeter = if ours {
            let (greeter, call) = Greeter::calling(self.credentials.clone());
            sender.greet(call);
            greeter
        } else {
            Greeter::called(self.credentials.clone())
        };
        let frame_bytes = self.config.frame_bytes;
        let slot = self.ring.add(socket, sender, Receiver::new(id, greeter, frame_bytes));
        let stage = Stage::Greeting(Instant::now() + PATIENCE);
        let peer = Peer { id, address, stage, frame_bytes, ours };
        if self.peers.len() <= slot {
            self.peers.resize_with(slot + 1, || None);
        }
        self.peers[slot] = Some(peer);
        if self.slots.len() <= number as usize {
            self.slots.resize(number as usize + 1, None);
        }
        self.slots[number as usize] = Some(slot);
        self.young += 1;
        Ok(id)
    }

    /// Lets the oldest go of those who have not proved themselves, if there are too many.
    fn make_room(&mut self) {
        if self.young < STRANGERS_MAX {
            return;
        }
        let stranger = |(slot, peer): (Slot, &Option<Peer>)| match peer {
            Some(Peer { stage: Stage::Greeting(until), ours: false, .. }) => Some((*until, slot)),
            _ => None,
        };
        let oldest = self.peers.iter().enumerate().filter_map(stranger).min();
        if let Some((_, slot)) = oldest {
            let reason =
                format!("it was the oldest of {STRANGERS_MAX} that had not proved themselves");
            self.lose(slot, reason);
        }
    }

    /// Takes in what a lane has received.
    pub(super) fn received(&mut self, slot: Slot, bytes: usize) {
        let Some(peer) = &mut self.peers[slot] else { return };
        match peer.stage {
            Stage::Greeting(_) | Stage::Up => {}
            Stage::Refused(_) => return, // nobody reads it
            Stage::Closing(_) => return self.bury(slot),
        }
        let first = self.ready.len();
        let taken =
            self.ring.received(slot, bytes, &self.about.memory, &mut self.offers, &mut self.ready);
        if matches!(peer.stage, Stage::Greeting(_))
            && let Some(Event::Connected { hello, .. }) = self.ready.get(first)
        {
            peer.stage = Stage::Up;
            peer.frame_bytes = peer.frame_bytes.min(hello.frame_bytes.get() as usize);
            self.young -= 1;
        }
        match taken {
            Ok(()) => {}
            Err(reason) if peer.is_stranger() => {
                peer.stage = Stage::Refused(Instant::now() + PATIENCE);
                let address = peer.address.clone();
                self.turned_away(&address, &reason);
                self.sent(slot); // it may have nothing to be told
            }
            Err(reason) => self.lose(slot, reason),
        }
    }

    /// Takes note that a lane has sent something.
    pub(super) fn sent(&mut self, slot: Slot) {
        match self.peers[slot].as_ref().map(|peer| &peer.stage) {
            Some(Stage::Refused(_)) if self.ring.is_flushed(slot) => self.ring.finish(slot),
            Some(Stage::Closing(_)) => self.bury(slot),
            _ => {}
        }
    }

    /// Closes a connection that has failed, and reports it once the kernel is done with it.
    pub(super) fn lose(&mut self, slot: Slot, reason: String) {
        let Some(peer) = &self.peers[slot] else { return };
        let address = peer.address.clone();
        let report = match peer.stage {
            Stage::Greeting(_) if !peer.ours => {
                self.turned_away(&address, &reason);
                None
            }
            Stage::Greeting(_) | Stage::Up => {
                Some(Error::PeerLost { peer: peer.id, address, reason })
            }
            Stage::Refused(_) => None,
            Stage::Closing(_) => return self.bury(slot),
        };
        self.close(slot, report);
    }

    /// Closes the connection to a peer, if there is one, and forgets what was offered to it.
    pub(super) fn forget(&mut self, peer: PeerId) {
        self.offers.forget(peer);
        self.ready.retain(|event| event.peer() != peer);
        let Some(slot) = self.slots.get(peer.0 as usize).copied().flatten() else {
            return self.numbers.forget(peer.0);
        };
        match &mut self.peers[slot] {
            Some(Peer { stage: Stage::Closing(report), .. }) => *report = None,
            _ => self.close(slot, None),
        }
    }

    fn close(&mut self, slot: Slot, report: Option<Error>) {
        let Some(peer) = &mut self.peers[slot] else { return };
        let before = std::mem::replace(&mut peer.stage, Stage::Closing(report));
        self.young -= usize::from(matches!(before, Stage::Greeting(_) | Stage::Refused(_)));
        self.ring.close(slot);
        self.bury(slot);
    }

    /// Removes a closed connection once the kernel is done with it, and reports what there is to report.
    fn bury(&mut self, slot: Slot) {
        if !self.ring.is_closed(slot) {
            return;
        }
        let Some(peer) = self.peers[slot].take() else { return };
        self.slots[peer.id.0 as usize] = None;
        self.ring.remove(slot);
        if let Stage::Closing(Some(error)) = peer.stage {
            self.numbers.lose(peer.id.0);
            self.ready.push(Event::Lost { peer: peer.id, error });
        } else {
            self.numbers.give_back(peer.id.0); // nobody above knows it, or it was disconnected
        }
    }

    /// Whether there is anybody to look after, and it may be time to: the clock is read now and then, as whoever calls and says
    /// nothing should not make every look longer.
    #[inline]
    pub(super) fn may_look_around(&mut self) -> bool {
        let any = self.young > 0 || self.accept_at.is_some() || !self.callers.is_empty();
        if any {
            self.looks = (self.looks + 1) % LOOKS_PER_CLOCK;
        }
        any && self.looks == 0
    }

    /// Takes in those who have called, ends connections that took too long, and accepts again when it is time.
    pub(super) fn look_around(&mut self) {
        let now = Instant::now();
        if now < self.look_around_at {
            return;
        }
        self.look_around_at = now + LOOK_AROUND;
        self.accept_at = self.accept_at.filter(|&at| now < at);
        self.admit();
        for slot in 0..self.peers.len() {
            let Some(peer) = &self.peers[slot] else { continue };
            if let Stage::Greeting(until) | Stage::Refused(until) = peer.stage
                && until <= now
            {
                self.lose(
                    slot,
                    format!("it did not prove within {PATIENCE:?} that it belongs here"),
                );
            }
        }
    }

    /// How long to sleep at most, so that nobody is looked after too late.
    pub(super) fn patience(&self, timeout: Duration) -> Duration {
        if self.young == 0 && self.accept_at.is_none() && self.callers.is_empty() {
            return timeout;
        }
        let admits = (!self.callers.is_empty()).then_some(self.look_around_at);
        let stages = self.peers.iter().flatten().filter_map(|peer| match peer.stage {
            Stage::Greeting(until) | Stage::Refused(until) => Some(until),
            Stage::Up | Stage::Closing(_) => None,
        });
        let first = stages.chain(self.accept_at).chain(admits).min();
        first.map_or(timeout, |at| timeout.min(at.saturating_duration_since(Instant::now())))
    }
}
