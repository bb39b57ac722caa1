//! Plain TCP connections beside the lanes that are made without the connection manager. Each has
//! the handshake, then one sealed message of each side, and stays open as long as its lane: the end
//! of one is the end of the other. Not on the path.
//!
//! ```text
//! message  [length u16][sealed bytes]        with the keys of the handshake
//! ```
//!
//! This file knows nothing of queue pairs.

use std::collections::{HashMap, VecDeque};
use std::io::{self, Read, Write};
use std::net::{SocketAddr, TcpListener, TcpStream, ToSocketAddrs};
use std::os::fd::{AsRawFd, OwnedFd, RawFd};
use std::rc::Rc;
use std::time::Instant;

use rustix::buffer::spare_capacity;
use rustix::event::{Timespec, epoll};
use socket2::{Domain, Protocol, SockRef, Socket, Type};

use super::connect::CONNECT_TIMEOUT;
use crate::handshake::{Credentials, Greeted, Greeter, Proved, Reason, TAG};
use crate::wire::Beside;

/// Callers that have not been heard to their end; the oldest goes when one more comes.
const STRANGERS_MAX: usize = 256;

/// Longest message, before it is sealed.
const MESSAGE_MAX: usize = 2048;

/// Bytes before a message.
const PREFIX: usize = 2;

/// Number of the listener among what is watched; side channels count from 1.
const LISTENER: u64 = 0;

/// Most side channels with news that one look serves.
const EVENTS_MAX: usize = 64;

/// Number of a wire, never used again.
pub(super) type SideChannelId = u64;

/// What came over a wire.
#[derive(Debug)]
pub(super) enum Heard {
    /// The other side has proved itself, and waits for the message of the caller.
    Proved,
    /// Its message.
    Said(Vec<u8>),
    /// The wire could not be made, or the other side has closed it.
    Failed(io::Error),
    /// The other side does not belong here, or refused this one.
    Refused(Reason),
}

/// All side channels of a transport.
pub(super) struct SideChannels {
    listener: Option<TcpListener>,
    watch: OwnedFd,
    side_channels: HashMap<SideChannelId, Wire>,
    /// Called ones that are not at their end, the oldest first.
    strangers: VecDeque<SideChannelId>,
    next: SideChannelId,
    credentials: Rc<Credentials>,
    /// Room for what the watch reports, so that looks allocate nothing.
    events: Vec<epoll::Event>,
}

struct Wire {
    stream: TcpStream,
    /// The peer whose lane it stands for, once it has a number.
    peer: Option<u32>,
    from: String,
    stage: Stage,
    until: Instant,
    /// The start of a message.
    inbox: Vec<u8>,
}

enum Stage {
    /// The socket is not connected yet.
    Dialling(Greeter, Box<[u8]>),
    Greeting(Greeter),
    /// Both have proved themselves; one message of each follows.
    Proved(Box<Proved>),
    /// Nothing more is to be said.
    Done,
}

impl SideChannels {
    /// SideChannels that listen on `address`, if there is one; returns the bound address, too.
    ///
    /// # Errors
    /// The system's.
    pub(super) fn new(
        credentials: Rc<Credentials>,
        address: Option<&String>,
    ) -> io::Result<(SideChannels, Option<SocketAddr>)> {
        let watch = epoll::create(epoll::CreateFlags::CLOEXEC)?;
        let listener = address.map(TcpListener::bind).transpose()?;
        let mut bound = None;
        if let Some(listener) = &listener {
            listener.set_nonblocking(true)?;
            bound = Some(listener.local_addr()?);
            epoll::add(&watch, listener, data(LISTENER), epoll::EventFlags::IN)?;
        }
        let (side_channels, strangers) = (HashMap::new(), VecDeque::new());
        let (next, events) = (LISTENER, Vec::with_capacity(EVENTS_MAX));
        let side_channels =
            SideChannels { listener, watch, side_channels, strangers, next, credentials, events };
        Ok((side_channels, bound))
    }

    /// Readable when [`SideChannels::look`] finds something.
    pub(super) fn fd(&self) -> RawFd {
        self.watch.as_raw_fd()
    }

    /// Starts to connect to `address`. What comes of it is heard.
    ///
    /// # Errors
    /// The system's.
    pub(super) fn dial(
        &mut self,
        address: &str,
        beside: Option<Beside>,
        now: Instant,
    ) -> io::Result<SideChannelId> {
        let to = address.to_socket_addrs()?.next();
        let to = to.ok_or_else(super::listen::no_address)?;
        let socket = Socket::new(Domain::for_address(to), Type::STREAM, Some(Protocol::TCP))?;
        socket.set_nonblocking(true)?;
        match socket.connect(&to.into()) {
            Err(error) if error.raw_os_error() == Some(libc::EINPROGRESS) => {}
            outcome => outcome?,
        }
        let (greeter, call) = Greeter::calling(Rc::new(self.credentials.of_lane(beside)));
        let stage = Stage::Dialling(greeter, call);
        let (stream, from) = (socket.into(), address.to_owned());
        let until = now + CONNECT_TIMEOUT;
        let wire = Wire { stream, peer: None, from, stage, until, inbox: Vec::new() };
        self.enter(wire, epoll::EventFlags::OUT)
    }

    fn enter(&mut self, wire: Wire, flags: epoll::EventFlags) -> io::Result<SideChannelId> {
        self.next += 1;
        wire.stream.set_nodelay(true)?;
        epoll::add(&self.watch, &wire.stream, data(self.next), flags)?;
        self.side_channels.insert(self.next, wire);
        Ok(self.next)
    }

    /// The address that a caller called from.
    pub(super) fn address(&self, id: SideChannelId) -> Option<&str> {
        self.side_channels.get(&id).map(|wire| wire.from.as_str())
    }

    /// Notes for whose lane a wire stands.
    pub(super) fn claim(&mut self, id: SideChannelId, peer: u32) {
        self.strangers.retain(|&stranger| stranger != id);
        if let Some(wire) = self.side_channels.get_mut(&id) {
            wire.peer = Some(peer);
        }
    }

    /// Closes a wire.
    pub(super) fn close(&mut self, id: SideChannelId) {
        self.strangers.retain(|&stranger| stranger != id);
        self.side_channels.remove(&id);
    }

    /// Sends this side's message.
    ///
    /// # Errors
    /// The system's.
    pub(super) fn say(&mut self, id: SideChannelId, message: &[u8]) -> io::Result<()> {
        let gone = || io::Error::from(io::ErrorKind::NotConnected);
        let wire = self.side_channels.get_mut(&id).ok_or_else(gone)?;
        let Stage::Proved(proved) = &mut wire.stage else { return Err(gone()) };
        let (seals, _) = proved.ciphers.as_mut().ok_or_else(gone)?;
        let mut sealed = vec![0; PREFIX + message.len() + TAG];
        let len = seals.seal(message, &mut sealed[PREFIX..]);
        sealed[..PREFIX].copy_from_slice(&(len as u16).to_le_bytes());
        // A socket that has sent so little has room for it.
        wire.stream.write_all(&sealed)
    }

    /// Ends what is to be said over a wire; returns the keys of its handshake.
    pub(super) fn finish(&mut self, id: SideChannelId) -> Option<Box<Proved>> {
        let wire = self.side_channels.get_mut(&id)?;
        match std::mem::replace(&mut wire.stage, Stage::Done) {
            Stage::Proved(proved) => Some(proved),
            _ => None,
        }
    }

    /// Adds to `heard` what has come since the last time. The caller closes side channels that are
    /// at their end.
    ///
    /// # Errors
    /// The system's.
    pub(super) fn look(
        &mut self,
        now: Instant,
        heard: &mut Vec<(SideChannelId, Option<u32>, Heard)>,
    ) -> io::Result<()> {
        let mut events = std::mem::take(&mut self.events);
        events.clear();
        let at_once = Timespec { tv_sec: 0, tv_nsec: 0 };
        match epoll::wait(&self.watch, spare_capacity(&mut events), Some(&at_once)) {
            Err(rustix::io::Errno::INTR) => {}
            outcome => drop(outcome?),
        }
        for event in &events {
            match event.data.u64() {
                LISTENER => self.accept(now),
                id => self.read(id, heard),
            }
        }
        self.events = events;
        while let Some(&oldest) = self.strangers.front() {
            let wire = self.side_channels.get(&oldest);
            let is_late = wire.is_none_or(|wire| now >= wire.until);
            if !is_late && self.strangers.len() <= STRANGERS_MAX {
                break;
            }
            self.close(oldest);
        }
        Ok(())
    }

    fn accept(&mut self, now: Instant) {
        while let Some(Ok((stream, from))) = self.listener.as_ref().map(TcpListener::accept) {
            if stream.set_nonblocking(true).is_err() {
                continue;
            }
            let stage = Stage::Greeting(Greeter::called(self.credentials.clone()));
            let (from, until) = (from.to_string(), now + CONNECT_TIMEOUT);
            let wire = Wire { stream, peer: None, from, stage, until, inbox: Vec::new() };
            if let Ok(id) = self.enter(wire, epoll::EventFlags::IN) {
                self.strangers.push_back(id);
            }
        }
    }

    /// Reads what has come over a wire.
    fn read(&mut self, id: SideChannelId, heard: &mut Vec<(SideChannelId, Option<u32>, Heard)>) {
        let Some(wire) = self.side_channels.get_mut(&id) else { return };
        let peer = wire.peer;
        let was_dialling = matches!(wire.stage, Stage::Dialling(..));
        loop {
            let what = match wire.read() {
                Ok(Some(what)) => what,
                Ok(None) => break,
                Err(error) => Heard::Failed(error),
            };
            let is_over = matches!(what, Heard::Refused(_) | Heard::Failed(_));
            heard.push((id, peer, what));
            if is_over {
                return;
            }
        }
        if was_dialling && !matches!(wire.stage, Stage::Dialling(..)) {
            let changed = epoll::modify(&self.watch, &wire.stream, data(id), epoll::EventFlags::IN);
            debug_assert!(changed.is_ok(), "it is watched");
        }
    }
}

fn data(id: SideChannelId) -> epoll::EventData {
    epoll::EventData::new_u64(id)
}

impl Wire {
    /// The next thing that has come; none until more comes.
    fn read(&mut self) -> io::Result<Option<Heard>> {
        match &mut self.stage {
            Stage::Dialling(..) => self.connected(),
            Stage::Greeting(_) => self.greeted(),
            Stage::Proved(_) => self.said(),
            Stage::Done => {
                let strange = "it spoke out of turn";
                let read = receive(&mut self.stream, &mut [0])?;
                read.map_or(Ok(None), |_| Err(io::Error::other(strange)))
            }
        }
    }

    /// Calls once the socket is connected.
    fn connected(&mut self) -> io::Result<Option<Heard>> {
        if let Some(error) = SockRef::from(&self.stream).take_error()? {
            return Err(error);
        }
        match self.stream.peer_addr() {
            Err(error) if error.kind() == io::ErrorKind::NotConnected => return Ok(None),
            outcome => outcome?,
        };
        if let Stage::Dialling(greeter, call) = std::mem::replace(&mut self.stage, Stage::Done) {
            self.stream.write_all(&call)?;
            self.stage = Stage::Greeting(greeter);
        }
        Ok(None)
    }

    fn greeted(&mut self) -> io::Result<Option<Heard>> {
        loop {
            let Stage::Greeting(greeter) = &mut self.stage else { return Ok(None) };
            let Some(bytes) = receive(&mut self.stream, greeter.space())? else { return Ok(None) };
            match greeter.received(bytes) {
                Greeted::NotYet => {}
                Greeted::Reply(reply) => self.stream.write_all(&reply)?,
                Greeted::Proved(proved, reply) => {
                    self.stream.write_all(reply.as_deref().unwrap_or_default())?;
                    self.stage = Stage::Proved(proved);
                    return Ok(Some(Heard::Proved));
                }
                Greeted::Refused(reason, told) => {
                    let _ = self.stream.write_all(told.as_deref().unwrap_or_default());
                    return Ok(Some(Heard::Refused(reason)));
                }
            }
        }
    }

    fn said(&mut self) -> io::Result<Option<Heard>> {
        let malformed = |what: &str| io::Error::new(io::ErrorKind::InvalidData, what.to_owned());
        loop {
            let len = match self.inbox.first_chunk::<PREFIX>() {
                Some(&prefix) => PREFIX + usize::from(u16::from_le_bytes(prefix)),
                None => PREFIX,
            };
            if len > PREFIX + MESSAGE_MAX + TAG {
                return Err(malformed("its message is too long"));
            }
            if self.inbox.len() >= PREFIX && self.inbox.len() == len {
                break;
            }
            let mut more = [0; MESSAGE_MAX];
            let wanted = (len - self.inbox.len()).min(more.len());
            let Some(bytes) = receive(&mut self.stream, &mut more[..wanted])? else {
                return Ok(None);
            };
            self.inbox.extend_from_slice(&more[..bytes]);
        }
        let sealed = std::mem::take(&mut self.inbox);
        let Stage::Proved(proved) = &mut self.stage else { return Ok(None) };
        let (_, opens) = proved.ciphers.as_mut().ok_or_else(|| malformed("it has no keys"))?;
        let mut plain = vec![0; sealed.len()];
        let len = opens.open(&sealed[PREFIX..], &mut plain).map_err(|why| malformed(&why))?;
        plain.truncate(len);
        Ok(Some(Heard::Said(plain)))
    }
}

/// Reads into `space`; none if nothing has come.
///
/// # Errors
/// The system's; that the other side has closed.
fn receive(stream: &mut TcpStream, space: &mut [u8]) -> io::Result<Option<usize>> {
    loop {
        return match stream.read(space) {
            Ok(0) => Err(io::Error::new(io::ErrorKind::UnexpectedEof, CLOSED)),
            Ok(bytes) => Ok(Some(bytes)),
            Err(error) if error.kind() == io::ErrorKind::WouldBlock => Ok(None),
            Err(error) if error.kind() == io::ErrorKind::Interrupted => continue,
            Err(error) => Err(error),
        };
    }
}

/// Why a peer whose wire is closed is lost.
pub(super) const CLOSED: &str = "it closed the connection, or its process ended";
