//! How peers come and go: listening and connecting, hellos and the memory that comes with them, loss. Not on the path.
//!
//! Both ends of a new connection say hello with a descriptor of the segment that holds their ring. Whoever is another user, of
//! another cluster, or sends memory that could be pulled from under us is turned away. A connection ends with its socket,
//! which the kernel closes when a process dies, however it does; mapped memory stays with who has mapped it.

use std::io;
use std::os::fd::{AsFd, BorrowedFd};
use std::rc::Rc;
use std::sync::atomic::{Ordering, fence};
use std::time::{Duration, Instant};

use zerocopy::{FromBytes, IntoBytes};

use super::Shm;
use super::loan::Limbo;
use super::receive::{Desk, Receiver};
use super::ring::{CLOSED, LINES, SEGMENT_BYTES};
use super::segment::{Foreign, Own};
use super::send::Sender;
use super::socket::{self, Socket};
use crate::error::{Error, Result};
use crate::transport::{Event, PeerId};
use crate::wire::Hello;

/// What addresses of this van begin with; an abstract socket's name follows.
const SCHEME: &str = "shm:";

/// How long a connection may take to be made or to say hello.
const PATIENCE: Duration = Duration::from_secs(5);

/// How long to wait before asking again where too many wait to be taken in.
const CONNECT_AGAIN: Duration = Duration::from_millis(1);

/// How long to wait before accepting again, after the system could not (no file descriptors left, mostly).
const ACCEPT_AGAIN: Duration = Duration::from_millis(100);

/// Packets that are taken from one socket at a look, so that a flood of them keeps nobody else waiting.
const PACKETS_MAX: usize = 64;

/// Longest text of a refusal, in bytes.
const REFUSAL_BYTES_MAX: usize = 1000;

/// The number under which the listening socket is watched; no peer's.
pub(super) const LISTENER: u64 = u64::MAX;

/// What packets begin with.
const HELLO: u8 = 1;
const SEGMENT: u8 = 2;
const WAKE: u8 = 3;
const REFUSAL: u8 = 4;
const BYE: u8 = 5;

/// What ends of a lane say beside memory.
pub(super) enum Packet<'a> {
    /// With the segment that the ring is in.
    Hello(&'a Hello),
    /// More memory, that many bytes of it.
    Segment(u64),
    /// Something stands in the ring, or has been read.
    Wake,
    /// Why the other side is turned away.
    Refusal(&'a str),
    /// The lane has ended, though the socket stays open while memory is lent.
    Bye,
}

/// What came of looking for a packet.
pub(super) enum Taken {
    Hello(Box<(Vec<u8>, Foreign)>),
    Segment(Foreign),
    Wake,
    Refused(String),
    Nothing,
    Ended(String),
}

/// Both directions of a connection: its memory and its socket.
#[derive(Debug)]
pub(super) struct Link {
    pub(super) own: Own,
    /// The peer's, once it has said hello.
    pub(super) foreign: Option<Foreign>,
    pub(super) socket: Rc<Socket>,
}

impl Link {
    pub(super) fn send(&self, packet: Packet<'_>, file: Option<BorrowedFd<'_>>) -> io::Result<()> {
        let mut bytes = [0; 1 + REFUSAL_BYTES_MAX];
        let len = match packet {
            Packet::Hello(hello) => set(&mut bytes, HELLO, hello.as_bytes()),
            Packet::Segment(len) => set(&mut bytes, SEGMENT, &len.to_le_bytes()),
            Packet::Wake => set(&mut bytes, WAKE, &[]),
            Packet::Bye => set(&mut bytes, BYE, &[]),
            Packet::Refusal(text) => set(&mut bytes, REFUSAL, text.as_bytes()),
        };
        self.socket.send(&bytes[..len], file)
    }

    /// The next packet, if there is one.
    ///
    /// # Errors
    /// Says why the peer has to be dropped: it sent something else.
    pub(super) fn take(&self) -> Result<Taken, String> {
        let mut bytes = [0; 1 + REFUSAL_BYTES_MAX];
        let (len, file) = match self.socket.receive(&mut bytes) {
            Ok(received) => received,
            Err(error) if error.kind() == io::ErrorKind::WouldBlock => return Ok(Taken::Nothing),
            Err(error) if error.kind() == io::ErrorKind::Interrupted => return Ok(Taken::Wake),
            // It closed its end before it had read all that we sent; what it sent before comes first.
            Err(error) if error.kind() == io::ErrorKind::ConnectionReset => {
                match self.socket.receive(&mut bytes) {
                    Ok(received) => received,
                    Err(_) => return Ok(Taken::Ended("it closed the connection".to_owned())),
                }
            }
            Err(error) => return Ok(Taken::Ended(error.to_string())),
        };
        let file = file.as_ref().map(AsFd::as_fd);
        match (&bytes[..len], file) {
            ([] | [BYE], _) => Ok(Taken::Ended("it closed the connection".to_owned())),
            ([WAKE], None) => Ok(Taken::Wake),
            ([HELLO, hello @ ..], Some(file)) => {
                let ring = Foreign::map(file, SEGMENT_BYTES)?;
                Ok(Taken::Hello(Box::new((hello.to_vec(), ring))))
            }
            ([SEGMENT, bytes @ ..], Some(file)) => {
                let len =
                    u64::read_from_bytes(bytes).ok().and_then(|len| usize::try_from(len).ok());
                let len = len.ok_or("it shares memory of no length")?;
                Ok(Taken::Segment(Foreign::map(file, len)?))
            }
            ([REFUSAL, text @ ..], None) => {
                Ok(Taken::Refused(String::from_utf8_lossy(text).into_owned()))
            }
            (other, file) => {
                let (first, files) = (&other[..other.len().min(16)], usize::from(file.is_some()));
                Err(format!("it sent {len} bytes {first:02x?}… and {files} descriptors"))
            }
        }
    }

    /// Says that memory which was referred to may hold something else from now on, before it does. Who copies from it looks here
    /// when it has done so.
    pub(super) fn close(&self) {
        self.own.store(CLOSED, 1, Ordering::Release);
        fence(Ordering::SeqCst);
    }
}

fn set(to: &mut [u8], kind: u8, body: &[u8]) -> usize {
    let len = body.len().min(to.len() - 1);
    to[0] = kind;
    to[1..=len].copy_from_slice(&body[..len]);
    1 + len
}

/// A connection.
pub(super) struct Peer {
    pub(super) id: PeerId,
    address: String,
    /// Until when it may take to say hello; `None` once it has.
    pub(super) greeting: Option<Instant>,
    /// Longest frame that both sides take.
    pub(super) frame_bytes: usize,
    /// Whether this side asked for the connection, and so wants to know what became of it.
    ours: bool,
    pub(super) link: Link,
    pub(super) sender: Sender,
    pub(super) receiver: Receiver,
    /// The last sleep of the peer that it was woken from.
    pub(super) woken: u64,
}

impl Peer {
    /// Takes what has come and goes on with what waits; whether anything moved.
    ///
    /// # Errors
    /// Says why the peer has to be dropped.
    #[inline]
    pub(super) fn turn(&mut self, desk: Desk<'_>) -> Result<bool, String> {
        let Peer { link, sender, receiver, .. } = self;
        let mut desk = desk;
        let received = receiver.receive(link, &mut desk)?;
        sender.take_back(&mut receiver.returned);
        self.give_back();
        let Peer { link, sender, .. } = self;
        Ok(sender.turn(link, desk.pool, desk.counters)? || received)
    }
}

impl Peer {
    /// Gives back what this side has borrowed and is done with: before what says that it is, so that who has that answer has the
    /// memory, too.
    #[inline]
    pub(super) fn give_back(&mut self) {
        let Peer { link, sender, receiver, .. } = self;
        sender.give_back(link, &receiver.views);
    }

    /// Wakes it from the sleep that it says it is in.
    #[cold]
    pub(super) fn wake(&mut self, asleep: u64) {
        self.woken = asleep;
        // A full socket has enough in it to wake anybody; a closed one is found out when it is read.
        let _ = self.link.send(Packet::Wake, None);
    }
}

impl Drop for Peer {
    fn drop(&mut self) {
        self.link.close(); // before the sender lets go of what it refers to: fields drop after this
    }
}

/// A socket that listens under a name of its own, and the address to reach it.
pub(super) fn listen() -> io::Result<(Socket, String)> {
    let mut random = [0; 8];
    socket::randomise(&mut random)?;
    let name = format!("caravan-{}-{:016x}", std::process::id(), u64::from_le_bytes(random));
    let socket = Socket::listen(name.as_bytes())?;
    Ok((socket, format!("{SCHEME}{name}")))
}

/// The name of the socket that an address of this van names.
pub(super) fn name_in(address: &str) -> io::Result<&[u8]> {
    let name = address.strip_prefix(SCHEME).filter(|name| !name.is_empty());
    name.map(str::as_bytes).ok_or_else(|| {
        let what = "addresses of the shm van begin with shm: and name a socket of this host";
        io::Error::new(io::ErrorKind::InvalidInput, what)
    })
}

impl Shm {
    /// Connects, and says hello.
    pub(super) fn connect_to(&mut self, address: &str) -> Result<PeerId> {
        let failed = |source| Error::Connect { address: address.to_owned(), source };
        let name = name_in(address).map_err(failed)?;
        let began = Instant::now();
        loop {
            match Socket::connect(name) {
                Ok(socket) => return self.enter(socket, address.to_owned(), true).map_err(failed),
                Err(error)
                    if error.kind() == io::ErrorKind::WouldBlock && began.elapsed() < PATIENCE =>
                {
                    std::thread::sleep(CONNECT_AGAIN);
                }
                Err(error) => return Err(failed(error)),
            }
        }
    }

    /// Gives a new connection a number and memory, and says hello.
    fn enter(&mut self, socket: Socket, address: String, ours: bool) -> io::Result<PeerId> {
        let id = PeerId(u32::try_from(self.places.len()).expect("fewer connections than 2^32"));
        let socket = Rc::new(socket);
        let link = Link { own: Own::new(SEGMENT_BYTES)?, foreign: None, socket };
        let user = link.socket.peer_user()?;
        if user != socket::user() {
            let text = format!("this is a node of user {}, it is one of {user}", socket::user());
            let _ = link.send(Packet::Refusal(&text), None); // it will see that we are gone
            return Err(io::Error::new(io::ErrorKind::PermissionDenied, text));
        }
        link.send(Packet::Hello(&self.config.hello()), Some(link.own.file()))?;
        self.epoll.watch(&link.socket, id.0.into())?;
        let config = &self.config;
        self.places.push(Some(self.peers.len()));
        self.peers.push(Peer {
            id,
            address,
            greeting: Some(Instant::now() + PATIENCE),
            frame_bytes: config.frame_bytes,
            ours,
            link,
            sender: Sender::new(id, config.queue_depth),
            receiver: Receiver::new(id, config.frame_bytes),
            woken: 0,
        });
        self.young += 1;
        Ok(id)
    }

    /// Takes in who wants to connect.
    fn accept(&mut self) {
        loop {
            let entered = match self.listener.accept() {
                Ok(socket) => self.enter(socket, "a process of this host".to_owned(), false),
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => return,
                Err(error) if error.kind() == io::ErrorKind::ConnectionAborted => continue,
                Err(error) => {
                    self.accept_at = Some(Instant::now() + ACCEPT_AGAIN);
                    Err(error)
                }
            };
            if let Err(error) = entered {
                tracing::warn!(%error, "a connection was not taken in");
                if self.accept_at.is_some() {
                    return;
                }
            }
        }
    }

    /// Looks at sockets, for up to `timeout`: new connections, hellos, and who is gone.
    pub(super) fn look_at_sockets(&mut self, timeout: Duration) -> Result<()> {
        let failed = |source| Error::Os { call: "epoll_wait", source };
        let mut ready = std::mem::take(&mut self.sockets_ready);
        self.epoll.wait(timeout, &mut ready).map_err(failed)?;
        self.counters.system_calls += 1;
        for number in ready.drain(..) {
            if number == LISTENER {
                if self.accept_at.is_none() {
                    self.accept();
                }
            } else if let Some(place) = self.places[number as usize] {
                self.take_packets(place);
            }
        }
        self.sockets_ready = ready;
        self.limbo.retain_mut(|limbo| !limbo.has_ended());
        if self.young > 0 || self.accept_at.is_some() {
            self.look_after_the_young();
        }
        Ok(())
    }

    /// Reads what a peer has said beside memory.
    fn take_packets(&mut self, place: usize) {
        for _ in 0..PACKETS_MAX {
            let peer = &mut self.peers[place];
            self.counters.system_calls += 1;
            let outcome = match peer.link.take() {
                Ok(Taken::Nothing) => return,
                Ok(Taken::Wake) => Ok(()),
                Ok(Taken::Segment(segment)) => peer.receiver.announce(&peer.link, segment),
                Ok(Taken::Hello(hello)) => self.greet(place, &hello.0, hello.1),
                Ok(Taken::Refused(text)) => Err(format!("it refused this node: {text}")),
                Ok(Taken::Ended(reason)) => {
                    self.take_the_rest(place);
                    Err(reason)
                }
                Err(reason) => Err(reason),
            };
            if let Err(reason) = outcome {
                return self.lose(place, reason);
            }
        }
    }

    /// Takes in a hello.
    fn greet(&mut self, place: usize, hello: &[u8], ring: Foreign) -> Result<(), String> {
        let peer = &mut self.peers[place];
        if peer.greeting.is_none() {
            return Err("it said hello twice".to_owned());
        }
        let hello = match Hello::check(hello, self.config.cluster) {
            Ok(hello) => hello,
            Err(reason) => {
                let _ = peer.link.send(Packet::Refusal(&reason), None); // it will see that we are gone
                return Err(reason);
            }
        };
        peer.link.foreign = Some(ring);
        peer.greeting = None;
        peer.frame_bytes = peer.frame_bytes.min(hello.frame_bytes.get() as usize);
        self.young -= 1;
        self.ready.push(Event::Connected { peer: peer.id, hello });
        Ok(())
    }

    /// Takes what is left in the ring of a peer that has gone.
    fn take_the_rest(&mut self, place: usize) {
        let Shm { peers, pool, slab, offers, ready: events, counters, .. } = self;
        let peer = &mut peers[place];
        let mut desk = Desk { pool, slab, offers, events, counters };
        // As often as an honest one may need; who is not gone may go on writing, and is not listened to for ever.
        for _ in 0..2 * LINES {
            match peer.receiver.receive(&peer.link, &mut desk) {
                Ok(true) => {}
                Ok(false) | Err(_) => return,
            }
        }
    }

    /// Closes a connection that has failed, and reports it.
    pub(super) fn lose(&mut self, place: usize, reason: String) {
        let peer = self.remove(place);
        let (id, address) = (peer.id, peer.address.clone());
        if peer.greeting.is_some() && !peer.ours {
            tracing::warn!(reason, "a connection ended before it began");
            return;
        }
        let error = Error::PeerLost { peer: id, address, reason };
        self.ready.push(Event::Lost { peer: id, error });
    }

    /// Closes the connection to a peer, if there is one, and forgets what was offered to it.
    pub(super) fn forget(&mut self, peer: PeerId) {
        self.offers.forget(peer);
        self.ready.retain(|event| event.peer() != peer);
        if let Some(place) = self.places.get(peer.0 as usize).copied().flatten() {
            drop(self.remove(place));
        }
    }

    fn remove(&mut self, place: usize) -> Peer {
        let mut peer = self.peers.swap_remove(place);
        if !peer.sender.lent.is_empty() || Rc::strong_count(&peer.link.socket) > 1 {
            // Somebody can still read what is lent, and says so by keeping the socket open.
            let _ = peer.link.send(Packet::Bye, None);
            self.epoll.forget(&peer.link.socket);
            let (socket, lent) = (peer.link.socket.clone(), std::mem::take(&mut peer.sender.lent));
            self.limbo.extend((!lent.is_empty()).then_some(Limbo { socket, lent }));
        }
        self.places[peer.id.0 as usize] = None;
        if let Some(moved) = self.peers.get(place) {
            self.places[moved.id.0 as usize] = Some(place);
        }
        self.young -= usize::from(peer.greeting.is_some());
        peer
    }

    /// Ends connections that took too long, and accepts again when it is time.
    fn look_after_the_young(&mut self) {
        let now = Instant::now();
        if self.accept_at.is_some_and(|at| at <= now) {
            self.accept_at = None;
            self.accept();
        }
        for place in (0..self.peers.len()).rev() {
            if self.peers[place].greeting.is_some_and(|until| until <= now) {
                self.lose(place, format!("it did not say hello within {PATIENCE:?}"));
            }
        }
    }

    /// How long to sleep at most, so that nobody is looked after too late.
    pub(super) fn patience(&self, timeout: Duration) -> Duration {
        if self.young == 0 && self.accept_at.is_none() {
            return timeout;
        }
        let greetings = self.peers.iter().filter_map(|peer| peer.greeting);
        let first = greetings.chain(self.accept_at).min();
        first.map_or(timeout, |at| timeout.min(at.saturating_duration_since(Instant::now())))
    }
}
