//! How peers come and go: listening, packets beside memory, loss. Not on the path.
//!
//! A peer that has proved that it belongs here (`greeting.rs`) has a ring in memory that both ends
//! see. The van turns away a caller whose memory could shrink under it. A connection ends with its
//! socket. The kernel closes that when the process ends, in whatever way; mapped memory stays with
//! the process that has mapped it.

use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::rc::Rc;
use std::sync::atomic::{Ordering, fence};
use std::time::{Duration, Instant};

use zerocopy::FromBytes;

use super::greeting::{LISTENER, NOT_YET};
use super::loan::Orphaned;
use super::receive::Receiver;
use super::ring::{CLOSED, LINES};
use super::segment::{Foreign, Own};
use super::send::Sender;
use super::socket::{self, Epoll, Socket};
use super::{Peer, Shm};
use crate::error::{Error, Result};
use crate::handshake::WELCOME_BYTES;
use crate::transport::{Event, PeerId};
use crate::wire::Hello;

/// The start of an address of this van; the name of an abstract socket follows.
const SCHEME: &str = "shm:";

/// Most packets that one look takes from a socket, so that a flood of them keeps no other peer
/// waiting.
const PACKETS_MAX: usize = 64;

/// Longest packet, without its first byte.
const BODY_BYTES_MAX: usize = WELCOME_BYTES;

/// The first byte of each kind of packet.
const GREETING: u8 = 1;
const ARENA: u8 = 2;
const WAKE: u8 = 3;
const BYE: u8 = 5;

/// A packet that one end of a lane sends to the other.
pub(super) enum Packet<'a> {
    /// A message of the handshake. All but the first bring the segment of a ring.
    Greeting(&'a [u8]),
    /// An arena of so many bytes.
    Arena(u64),
    /// The ring has new records or new room.
    Wake,
    /// The lane has ended, though the socket stays open while memory is lent.
    Bye,
}

/// The outcome of taking a packet.
pub(super) enum Taken {
    Greeting(Vec<u8>, Option<OwnedFd>),
    Arena(Foreign),
    Wake,
    Nothing,
    Ended(String),
}

/// Both directions of a connection: its memory and its socket.
#[derive(Debug)]
pub(super) struct Link {
    pub(super) own: Own,
    /// The peer's segment.
    pub(super) foreign: Foreign,
    pub(super) socket: Rc<Socket>,
}

/// Sends a packet, with a descriptor if there is one.
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
        Packet::Arena(len) => set(&mut bytes, ARENA, &len.to_le_bytes()),
        Packet::Wake => set(&mut bytes, WAKE, &[]),
        Packet::Bye => set(&mut bytes, BYE, &[]),
    };
    socket.send(&bytes[..len], file)
}

/// Takes the next packet, if there is one.
///
/// # Errors
/// The reason to drop the other side: it sent something else.
pub(super) fn take(socket: &Socket) -> Result<Taken, String> {
    let mut bytes = [0; 1 + BODY_BYTES_MAX];
    let (len, file) = match socket.receive(&mut bytes) {
        Ok(received) => received,
        Err(error) if error.kind() == io::ErrorKind::WouldBlock => return Ok(Taken::Nothing),
        Err(error) if error.kind() == io::ErrorKind::Interrupted => return Ok(Taken::Wake),
        // It closed its end before it had read all packets; those that it sent before come first.
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
        ([ARENA, bytes @ ..], Some(file)) => {
            let len = u64::read_from_bytes(bytes).ok().and_then(|len| usize::try_from(len).ok());
            let len = len.ok_or("it shares memory of no length")?;
            Ok(Taken::Arena(Foreign::map(file.as_fd(), len)?))
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

    /// Says that memory which records refer to may hold other data from now on, before it does. The
    /// peer looks here after each copy from it.
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

/// The sockets of a transport.
pub(super) struct Sockets {
    pub(super) listener: Option<Socket>,
    pub(super) epoll: Epoll,
    /// The numbers of the sockets that the last look found ready.
    pub(super) ready: Vec<u64>,
    /// Polls until the next look.
    pub(super) polls_left: u32,
    /// The loans of lanes that have ended, and their sockets.
    pub(super) orphaned: Vec<Orphaned>,
}

/// Checks that processes can share memory here in the way of this van.
pub(super) fn probe() -> io::Result<()> {
    let own = Own::new(4096)?;
    Foreign::map(own.file(), 4096).map(drop).map_err(io::Error::other)
}

/// The reason that the van does not work here, with the remedy.
pub(super) fn reason(what: &str, error: &io::Error) -> String {
    let remedy = match error.raw_os_error() {
        Some(libc::EMFILE | libc::ENFILE) => "no file descriptors are left; raise `ulimit -n`",
        Some(libc::ENOMEM | libc::ENOSPC) => "memory is short; raise the container's limit",
        Some(libc::EPERM | libc::EACCES) => {
            "a sandbox forbids it; allow memfd_create and Unix sockets"
        }
        Some(libc::EINVAL) => "it takes Linux 5.1 (F_SEAL_FUTURE_WRITE)",
        Some(libc::ENOSYS) => "this kernel has no memfd_create, or a container hides it",
        _ => "take another van",
    };
    format!("{what}: {error} ({remedy})")
}

/// What all processes have in common that can reach each other here: the boot of the system, the
/// namespaces of abstract sockets and of users, and the user.
pub(super) fn host() -> io::Result<String> {
    let boot = std::fs::read_to_string("/proc/sys/kernel/random/boot_id")?;
    let net = std::fs::read_link("/proc/self/ns/net")?;
    let users = std::fs::read_link("/proc/self/ns/user")?;
    Ok(format!("{} {} {} user:{}", boot.trim(), net.display(), users.display(), socket::user()))
}

/// A listening socket with a new name, and the address to reach it.
pub(super) fn listen() -> io::Result<(Socket, String)> {
    let random = getrandom::u64().map_err(io::Error::other)?;
    let name = format!("caravan-{}-{random:016x}", std::process::id());
    let socket = Socket::listen(name.as_bytes())?;
    Ok((socket, format!("{SCHEME}{name}")))
}

/// The name of the socket in an address of this van.
pub(super) fn name_in(address: &str) -> io::Result<&[u8]> {
    let name = address.strip_prefix(SCHEME).filter(|name| !name.is_empty());
    name.map(str::as_bytes).ok_or_else(|| {
        let what = "addresses of the shm van begin with shm: and name a socket of this host";
        io::Error::new(io::ErrorKind::InvalidInput, what)
    })
}

impl Shm {
    /// Adds a peer that has proved itself.
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

    /// Looks at sockets for up to `timeout`: new connections, handshakes, packets and lost peers.
    pub(super) fn look_at_sockets(&mut self, timeout: Duration) -> Result<()> {
        let failed = |source| Error::Os { call: "epoll_wait", source };
        let mut ready = std::mem::take(&mut self.sockets.ready);
        self.sockets.epoll.wait(timeout, &mut ready).map_err(failed)?;
        self.hub.counters.system_calls += 1;
        for number in ready.drain(..) {
            if number == LISTENER {
                self.accept();
            } else if number >= NOT_YET {
                self.greet(number);
            } else if let Some(place) = self.table.place(PeerId(number as u32)) {
                self.take_packets(place);
            }
        }
        self.sockets.ready = ready;
        self.sockets.orphaned.retain_mut(|orphaned| !orphaned.has_ended());
        if self.deadline().is_some() {
            self.look_after_greetings();
        }
        Ok(())
    }

    /// Takes the packets of a peer.
    fn take_packets(&mut self, place: usize) {
        for _ in 0..PACKETS_MAX {
            let Peer { link, receiver, .. } = &mut self.table.peers[place];
            self.hub.counters.system_calls += 1;
            let entered = match take(&link.socket) {
                Ok(Taken::Nothing) => return,
                Ok(Taken::Wake) => continue,
                Ok(packet) => receiver.arenas.enter(link, packet).map(drop),
                Err(reason) => Err(reason),
            };
            if let Err(reason) = entered {
                self.take_the_rest(place);
                return self.lose(place, reason);
            }
        }
    }

    /// Takes what is left in the ring of a peer that is gone.
    fn take_the_rest(&mut self, place: usize) {
        let peer = &mut self.table.peers[place];
        // An honest peer needs no more looks. One that is not gone may write for ever.
        for _ in 0..2 * LINES {
            match peer.receiver.receive(&peer.link, &mut self.hub) {
                Ok(true) => {}
                Ok(false) | Err(_) => return,
            }
        }
    }

    /// Closes a failed connection and reports the loss.
    pub(super) fn lose(&mut self, place: usize, reason: String) {
        let peer = self.remove(place);
        let (id, address) = (peer.id, peer.address.clone());
        self.table.numbers.lose(id.0);
        let error = Error::PeerLost { peer: id, address, reason: reason.into() };
        self.hub.ready.push(Event::Lost { peer: id, error });
    }

    /// Closes the connection to a peer, if there is one, and drops the offers to it.
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
            // A process that can still read what is lent keeps the socket open.
            self.sockets.epoll.forget(&peer.link.socket);
            let (socket, lent) = (peer.link.socket.clone(), std::mem::take(&mut peer.sender.lent));
            self.sockets.orphaned.extend((!lent.is_empty()).then_some(Orphaned { socket, lent }));
        }
        peer
    }

    /// When to look after handshakes and callers even if no socket is ready.
    fn deadline(&self) -> Option<Instant> {
        let oldest = self.greetings.list.front().map(|oldest| oldest.until);
        oldest.into_iter().chain(self.greetings.accept_at).min()
    }

    /// Longest time to sleep before that.
    pub(super) fn patience(&self, timeout: Duration) -> Duration {
        let left = |at: Instant| at.saturating_duration_since(Instant::now());
        self.deadline().map_or(timeout, |at| timeout.min(left(at)))
    }
}
