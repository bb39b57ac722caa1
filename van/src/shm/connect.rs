//! How peers come and go: listening, what they say beside memory, loss. Not on the path.
//!
//! Who has proved that it belongs here (`greeting.rs`) has a ring in memory that both ends see.
//! Whoever sends memory that could be pulled from under us is turned away. A connection ends with
//! its socket, which the kernel closes when a process dies, however it does; mapped memory stays
//! with who has mapped it.

use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::rc::Rc;
use std::sync::atomic::{Ordering, fence};
use std::time::{Duration, Instant};

use zerocopy::FromBytes;

use super::Shm;
use super::greeting::LISTENER;
use super::loan::Limbo;
use super::receive::{Hub, Receiver};
use super::ring::{CLOSED, LINES};
use super::segment::{Foreign, Own};
use super::send::Sender;
use super::socket::{Epoll, Socket};
use crate::error::{Error, Result};
use crate::handshake::WELCOME_BYTES;
use crate::numbers::Numbers;
use crate::transport::{Event, Frame, PeerId, check_frame};
use crate::wire::Hello;

/// What addresses of this van begin with; an abstract socket's name follows.
const SCHEME: &str = "shm:";

/// Packets that are taken from one socket at a look, so that a flood of them keeps nobody else
/// waiting.
const PACKETS_MAX: usize = 64;

/// Longest packet behind its first byte.
const BODY_BYTES_MAX: usize = WELCOME_BYTES;

/// What packets begin with.
const GREETING: u8 = 1;
const SEGMENT: u8 = 2;
const WAKE: u8 = 3;
const BYE: u8 = 5;

/// What ends of a lane say beside memory.
pub(super) enum Packet<'a> {
    /// A message of the handshake; all but the first with the segment that the ring is in.
    Greeting(&'a [u8]),
    /// More memory, that many bytes of it.
    Segment(u64),
    /// Something stands in the ring, or has been read.
    Wake,
    /// The lane has ended, though the socket stays open while memory is lent.
    Bye,
}

/// What came of looking for a packet.
pub(super) enum Taken {
    Greeting(Vec<u8>, Option<OwnedFd>),
    Segment(Foreign),
    Wake,
    Nothing,
    Ended(String),
}

/// Both directions of a connection: its memory and its socket.
#[derive(Debug)]
pub(super) struct Link {
    pub(super) own: Own,
    /// The peer's.
    pub(super) foreign: Foreign,
    pub(super) socket: Rc<Socket>,
}

/// Sends a packet, and perhaps a descriptor with it.
///
/// # Errors
/// As [`Socket::send`].
pub(super) fn send(
    socket: &Socket,
    packet: Packet<'_>,
    file: Option<BorrowedFd<'_>>,
) -> io::Result<()> {
    let mut bytes = [0; 1 + BODY_BYTES_MAX];
    let len = match packet {
        Packet::Greeting(message) => set(&mut bytes, GREETING, message),
        Packet::Segment(len) => set(&mut bytes, SEGMENT, &len.to_le_bytes()),
        Packet::Wake => set(&mut bytes, WAKE, &[]),
        Packet::Bye => set(&mut bytes, BYE, &[]),
    };
    socket.send(&bytes[..len], file)
}

/// The next packet, if there is one.
///
/// # Errors
/// Says why the other side has to be dropped: it sent something else.
pub(super) fn take(socket: &Socket) -> Result<Taken, String> {
    let mut bytes = [0; 1 + BODY_BYTES_MAX];
    let (len, file) = match socket.receive(&mut bytes) {
        Ok(received) => received,
        Err(error) if error.kind() == io::ErrorKind::WouldBlock => return Ok(Taken::Nothing),
        Err(error) if error.kind() == io::ErrorKind::Interrupted => return Ok(Taken::Wake),
        // It closed its end before it had read all that we sent; what it sent before comes first.
        Err(error) if error.kind() == io::ErrorKind::ConnectionReset => {
            match socket.receive(&mut bytes) {
                Ok(received) => received,
                Err(_) => return Ok(Taken::Ended("it closed the connection".to_owned())),
            }
        }
        Err(error) => return Ok(Taken::Ended(error.to_string())),
    };
    match (&bytes[..len], file) {
        ([] | [BYE], _) => Ok(Taken::Ended("it closed the connection".to_owned())),
        ([WAKE], None) => Ok(Taken::Wake),
        ([GREETING, message @ ..], file) => Ok(Taken::Greeting(message.to_vec(), file)),
        ([SEGMENT, bytes @ ..], Some(file)) => {
            let len = u64::read_from_bytes(bytes).ok().and_then(|len| usize::try_from(len).ok());
            let len = len.ok_or("it shares memory of no length")?;
            Ok(Taken::Segment(Foreign::map(file.as_fd(), len)?))
        }
        (other, file) => {
            let (first, files) = (&other[..other.len().min(16)], usize::from(file.is_some()));
            Err(format!("it sent {len} bytes {first:02x?}… and {files} descriptors"))
        }
    }
}

impl Link {
    pub(super) fn send(&self, packet: Packet<'_>, file: Option<BorrowedFd<'_>>) -> io::Result<()> {
        send(&self.socket, packet, file)
    }

    /// Says that memory which was referred to may hold something else from now on, before it does.
    /// Who copies from it looks here when it has done so.
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
    /// Longest frame that both sides take.
    pub(super) frame_bytes: usize,
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
    pub(super) fn turn(&mut self, hub: &mut Hub) -> Result<bool, String> {
        let Peer { link, sender, receiver, .. } = self;
        let received = receiver.receive(link, hub)?;
        sender.take_back(&mut receiver.returned);
        self.give_back();
        let Peer { link, sender, .. } = self;
        Ok(sender.turn(link, hub)? || received)
    }
}

impl Peer {
    /// Gives back what this side has borrowed and is done with: before what says that it is, so
    /// that who has that answer has the memory, too.
    #[inline]
    pub(super) fn give_back(&mut self) {
        let Peer { link, sender, receiver, .. } = self;
        sender.give_back(link, &receiver.views);
    }

    /// Sends a frame, behind what goes back; hands it back if it cannot go in that form now.
    #[inline]
    pub(super) fn send<'a>(
        &mut self,
        frame: Frame<'a>,
        hub: &mut Hub,
    ) -> Result<Option<Frame<'a>>> {
        self.give_back();
        let Peer { link, sender, frame_bytes, .. } = self;
        match frame {
            Frame::Borrowed(frame) => {
                let is_sent = frame.len() <= *frame_bytes && sender.copy(link, frame, hub);
                Ok(if is_sent { None } else { Some(Frame::Borrowed(frame)) })
            }
            Frame::Owned(frame) => {
                check_frame(&frame, *frame_bytes)?;
                sender.frame(link, frame, hub).map(|()| None)
            }
            Frame::Lent { frame, values } => {
                check_frame(&frame, *frame_bytes)?;
                if sender.lent.is_full() {
                    return Ok(Some(Frame::Lent { frame, values }));
                }
                sender.lend(link, frame, values, hub).map(|()| None)
            }
        }
    }

    /// Wakes it from the sleep that it says it is in.
    #[cold]
    pub(super) fn wake(&mut self, asleep: u64) {
        self.woken = asleep;
        // A full socket has enough in it to wake anybody; a closed one is found out when it is
        // read.
        let _ = self.link.send(Packet::Wake, None);
    }
}

impl Drop for Peer {
    fn drop(&mut self) {
        self.link.close(); // before the sender lets go of what it refers to: fields drop after this
        // The socket may stay open as long as somebody reads what is lent.
        let _ = self.link.send(Packet::Bye, None);
    }
}

/// The sockets of a transport.
pub(super) struct Sockets {
    pub(super) listener: Option<Socket>,
    pub(super) epoll: Epoll,
    /// Under which numbers something was found at the last look.
    pub(super) ready: Vec<u64>,
    /// Counts down to the next look.
    pub(super) polls_left: u32,
}

/// The peers of a transport that have proved themselves.
#[derive(Default)]
pub(super) struct Table {
    /// In which order they connected, but for those that took the place of one that is gone.
    pub(super) peers: Vec<Peer>,
    /// Where in `peers` each one is; `None` once it is gone. By peer number.
    places: Vec<Option<usize>>,
    /// Of peers and of those that are called.
    pub(super) numbers: Numbers,
}

impl Table {
    /// Where a peer is.
    #[inline]
    fn place(&self, peer: PeerId) -> Option<usize> {
        self.places.get(peer.0 as usize).copied().flatten()
    }

    /// A peer.
    ///
    /// # Errors
    /// [`Error::NotConnected`].
    #[inline]
    pub(super) fn get(&mut self, peer: PeerId) -> Result<&mut Peer> {
        let place = self.place(peer).ok_or(Error::NotConnected { peer })?;
        Ok(&mut self.peers[place])
    }

    fn enter(&mut self, peer: Peer) {
        let index = peer.id.0 as usize;
        if self.places.len() <= index {
            self.places.resize(index + 1, None);
        }
        self.places[index] = Some(self.peers.len());
        self.peers.push(peer);
    }

    fn remove(&mut self, place: usize) -> Peer {
        let peer = self.peers.swap_remove(place);
        self.places[peer.id.0 as usize] = None;
        if let Some(moved) = self.peers.get(place) {
            self.places[moved.id.0 as usize] = Some(place);
        }
        peer
    }
}

/// A socket that listens under a name of its own, and the address to reach it.
pub(super) fn listen() -> io::Result<(Socket, String)> {
    let random = getrandom::u64().map_err(io::Error::other)?;
    let name = format!("caravan-{}-{random:016x}", std::process::id());
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
    /// Takes in a peer that has proved itself.
    pub(super) fn enter(&mut self, id: PeerId, address: String, link: Link, hello: &Hello) {
        let config = &self.config;
        self.table.enter(Peer {
            id,
            address,
            frame_bytes: config.frame_bytes.min(hello.frame_bytes.get() as usize),
            link,
            sender: Sender::new(id, config.queue_depth),
            receiver: Receiver::new(id, config.frame_bytes),
            woken: 0,
        });
        self.hub.ready.push(Event::Connected { peer: id, hello: *hello });
    }

    /// Looks at sockets, for up to `timeout`: new connections, handshakes, and who is gone.
    pub(super) fn look_at_sockets(&mut self, timeout: Duration) -> Result<()> {
        let failed = |source| Error::Os { call: "epoll_wait", source };
        let mut ready = std::mem::take(&mut self.sockets.ready);
        self.sockets.epoll.wait(timeout, &mut ready).map_err(failed)?;
        self.hub.counters.system_calls += 1;
        for number in ready.drain(..) {
            if number == LISTENER {
                self.accept();
            } else if let Some(&place) = self.table.places.get(number as usize) {
                place.into_iter().for_each(|place| self.take_packets(place));
            } else {
                self.greet(number);
            }
        }
        self.sockets.ready = ready;
        self.limbo.retain_mut(|limbo| !limbo.has_ended());
        if !self.greetings.is_idle() {
            self.look_after_greetings();
        }
        Ok(())
    }

    /// Reads what a peer has said beside memory.
    fn take_packets(&mut self, place: usize) {
        for _ in 0..PACKETS_MAX {
            let peer = &mut self.table.peers[place];
            self.hub.counters.system_calls += 1;
            let outcome = match take(&peer.link.socket) {
                Ok(Taken::Nothing) => return,
                Ok(Taken::Wake) => Ok(()),
                Ok(Taken::Segment(segment)) => peer.receiver.announce(&peer.link, segment),
                Ok(Taken::Greeting(..)) => Err("it said hello twice".to_owned()),
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

    /// Takes what is left in the ring of a peer that has gone.
    fn take_the_rest(&mut self, place: usize) {
        let peer = &mut self.table.peers[place];
        // As often as an honest one may need; who is not gone may go on writing, and is not
        // listened to for ever.
        for _ in 0..2 * LINES {
            match peer.receiver.receive(&peer.link, &mut self.hub) {
                Ok(true) => {}
                Ok(false) | Err(_) => return,
            }
        }
    }

    /// Closes a connection that has failed, and reports it.
    pub(super) fn lose(&mut self, place: usize, reason: String) {
        let peer = self.remove(place);
        let (id, address) = (peer.id, peer.address.clone());
        self.table.numbers.lose(id.0);
        let error = Error::PeerLost { peer: id, address, reason };
        self.hub.ready.push(Event::Lost { peer: id, error });
    }

    /// Closes the connection to a peer, if there is one, and forgets what was offered to it.
    pub(super) fn forget(&mut self, peer: PeerId) {
        self.hub.offers.forget(peer);
        self.hub.ready.retain(|event| event.peer() != peer);
        match self.table.place(peer) {
            Some(place) => {
                drop(self.remove(place));
                self.table.numbers.give_back(peer.0);
            }
            None if self.forget_greeting(peer) => self.table.numbers.give_back(peer.0),
            None => self.table.numbers.forget(peer.0),
        }
    }

    fn remove(&mut self, place: usize) -> Peer {
        let mut peer = self.table.remove(place);
        if !peer.sender.lent.is_empty() || Rc::strong_count(&peer.link.socket) > 1 {
            // Somebody can still read what is lent, and says so by keeping the socket open.
            self.sockets.epoll.forget(&peer.link.socket);
            let (socket, lent) = (peer.link.socket.clone(), std::mem::take(&mut peer.sender.lent));
            self.limbo.extend((!lent.is_empty()).then_some(Limbo { socket, lent }));
        }
        peer
    }

    /// How long to sleep at most, so that nobody is looked after too late.
    pub(super) fn patience(&self, timeout: Duration) -> Duration {
        let first = self.greetings.deadline();
        first.map_or(timeout, |at| timeout.min(at.saturating_duration_since(Instant::now())))
    }
}
