//! One connection: its socket, its two half streams, and what is known of the socket's readiness.
//!
//! Path: worker > slicer > filter > message > codec > endpoint > transport (**tcp**).

use std::io::{self, IoSliceMut, Read, Write};
use std::net::Shutdown;
use std::rc::Rc;
use std::time::{Duration, Instant};

use caravan_van::handshake::{Credentials, Greeter};
use caravan_van::offers::Offers;
use caravan_van::socket::{self, Receiver, Sender, Spaces};
use caravan_van::{Counters, Error, Event, PeerId, Pool};
use mio::net::TcpStream;
use mio::{Interest, Registry, Token};
use socket2::SockRef;

use crate::connect::{Dial, is_connected};

/// Bytes taken from one peer before the others have their turn.
const READ_BYTES_MAX: usize = 1 << 20;

/// How long a peer that is turned away may take to hear why.
const FAREWELL: Duration = Duration::from_secs(1);

/// How far a connection has come.
#[derive(Debug)]
pub(crate) enum Stage {
    /// The socket is not connected yet.
    Dialling(Dial),
    /// Connected; to be closed at this time unless the peer has proved itself.
    Greeting(Instant),
    /// The peer has proved itself.
    Up,
}

/// Why a connection ends.
#[derive(Debug)]
pub(crate) enum Fault {
    /// It could not be made.
    Connect(io::Error),
    /// The socket is closed or broken, or the peer is silent.
    Gone(String),
    /// The peer did what it must not; it deserves to hear of it.
    Misdeed(String),
}

/// A peer and the connection to it.
#[derive(Debug)]
pub(crate) struct Peer {
    pub(crate) id: PeerId,
    /// As it was dialled, or as it called from.
    pub(crate) address: String,
    /// Whether this side asked for the connection, and so waits to hear of it.
    pub(crate) dialled: bool,
    pub(crate) stage: Stage,
    pub(crate) sender: Sender,
    pub(crate) receiver: Receiver,
    /// Longest frame that both sides take.
    pub(crate) frame_bytes: usize,
    stream: TcpStream,
    /// Whether reading may find something: false from the moment the socket said `WouldBlock` until the system reports it
    /// readable. Only then may a thread sleep: edges are reported once.
    readable: bool,
    /// Likewise for writing.
    writable: bool,
    /// Whether the last look wrote without reading.
    pub(crate) wrote_only: bool,
    /// What the system has been asked to report of it.
    watched: Option<Interest>,
    config: PeerConfig,
}

/// What all connections of a transport have in common.
#[derive(Debug, Clone, Copy)]
pub(crate) struct PeerConfig {
    pub(crate) frame_bytes: usize,
    pub(crate) queue_depth: usize,
    /// How long a connected peer may take to prove itself.
    pub(crate) proof_timeout: Duration,
}

impl Peer {
    /// A connection that nobody watches yet, at the beginning of its handshake.
    pub(crate) fn new(
        id: PeerId,
        stage: Stage,
        stream: TcpStream,
        address: String,
        credentials: &Rc<Credentials>,
        config: PeerConfig,
    ) -> io::Result<Peer> {
        let dialled = matches!(stage, Stage::Dialling(_));
        let mut sender = Sender::new(id);
        let greeter = if dialled {
            let (greeter, call) = Greeter::calling(credentials.clone());
            sender.greet(call);
            greeter
        } else {
            socket::set_up(&SockRef::from(&stream))?;
            Greeter::called(credentials.clone())
        };
        Ok(Peer {
            id,
            address,
            dialled,
            stage,
            sender,
            receiver: Receiver::new(id, greeter, config.frame_bytes),
            frame_bytes: config.frame_bytes,
            stream,
            readable: !dialled,
            writable: !dialled,
            wrote_only: false,
            watched: None,
            config,
        })
    }

    pub(crate) fn is_up(&self) -> bool {
        matches!(self.stage, Stage::Up)
    }

    /// When to look at it although nothing happens.
    pub(crate) fn deadline(&self) -> Option<Instant> {
        match &self.stage {
            Stage::Dialling(dial) => Some(dial.deadline),
            Stage::Greeting(until) => Some(*until),
            Stage::Up => None,
        }
    }

    /// Takes note of what the system reports.
    pub(crate) fn is_ready(&mut self, readable: bool, writable: bool) {
        self.readable |= readable;
        self.writable |= writable;
    }

    /// Whether it is somebody who has called and not proved himself.
    pub(crate) fn is_stranger(&self) -> bool {
        !self.dialled && !self.is_up()
    }

    /// Whether nothing can be done for it until the system reports something.
    pub(crate) fn is_blocked(&self) -> bool {
        match self.stage {
            Stage::Dialling(_) => !self.writable,
            _ => !self.readable && (self.sender.is_empty() || !self.writable),
        }
    }

    /// Asks the system for reports of what is waited for: of writability exactly while there is something to write that it did
    /// not take. Without `watch`, for none.
    pub(crate) fn watch(
        &mut self,
        watch: bool,
        registry: &Registry,
        counters: &mut Counters,
    ) -> io::Result<()> {
        let wanted = watch.then(|| self.interest());
        if wanted == self.watched {
            return Ok(());
        }
        counters.system_calls += 1;
        let token = self.token();
        match (std::mem::replace(&mut self.watched, wanted), wanted) {
            (None, Some(interest)) => registry.register(&mut self.stream, token, interest),
            (Some(_), Some(interest)) => registry.reregister(&mut self.stream, token, interest),
            (_, None) => registry.deregister(&mut self.stream),
        }
    }

    /// Finishes dialling, once the socket became writable; returns whether it is connected.
    pub(crate) fn dial_on(&mut self) -> Result<bool, Fault> {
        let Stage::Dialling(dial) = &mut self.stage else { return Ok(true) };
        let now = Instant::now();
        let late = now >= dial.deadline;
        if !self.writable && !late {
            return Ok(false);
        }
        self.writable = false;
        let outcome = if late { Err(dial.timed_out()) } else { is_connected(&self.stream) };
        match outcome.and_then(|done| {
            if done {
                socket::set_up(&SockRef::from(&self.stream)).map(|()| true)
            } else {
                Ok(false)
            }
        }) {
            Ok(false) => Ok(false),
            Ok(true) => {
                self.stage = Stage::Greeting(now + self.config.proof_timeout);
                (self.readable, self.writable) = (true, true);
                Ok(true)
            }
            Err(error) => {
                self.stream = dial.next(error).map_err(Fault::Connect)?;
                self.watched = None;
                Ok(false)
            }
        }
    }

    /// Hands what is queued to the socket, as much as it takes: one call, unless more units wait than one call can name.
    pub(crate) fn flush(&mut self, counters: &mut Counters) -> Result<(), Fault> {
        while !self.sender.is_empty() {
            counters.system_calls += 1;
            let (outcome, len) = self.write();
            match outcome {
                Ok(written) => {
                    counters.bytes_sent += written as u64;
                    self.sender.sent(written);
                    self.writable = true;
                    if written < len {
                        // Asked again at once it mostly has room, which gained nothing: others have their turn.
                        return Ok(());
                    }
                }
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => {
                    self.writable = false;
                    return Ok(());
                }
                Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                Err(error) => return Err(Fault::Gone(format!("it cannot be written to: {error}"))),
            }
        }
        Ok(())
    }

    /// One call to the socket: what it took, and how much it was offered.
    fn write(&mut self) -> (io::Result<usize>, usize) {
        if let Some(slice) = self.sender.only_slice() {
            return (self.stream.write(slice), slice.len());
        }
        let stream = &mut self.stream;
        self.sender.with_slices(|slices| {
            (stream.write_vectored(slices), slices.iter().map(|slice| slice.len()).sum())
        })
    }

    /// Takes what has come, until the socket is found empty or others should have their turn.
    ///
    /// A read that fills less than it was offered has emptied the socket, so it is the last one; [`Peer::is_blocked`] still
    /// wants to see the socket say so itself before anybody sleeps, as not every system reports what comes after a short read.
    pub(crate) fn read(
        &mut self,
        pool: &Pool,
        offers: &mut Offers,
        events: &mut Vec<Event>,
        counters: &mut Counters,
    ) -> Result<(), Fault> {
        let mut taken = 0;
        while taken < READ_BYTES_MAX {
            let Spaces { head, place, staging } = self.receiver.spaces_ahead(offers);
            let room = head.len() + place.len() + staging.len();
            counters.system_calls += 1;
            let outcome = if place.is_empty() {
                self.stream.read(staging)
            } else {
                let without_head = usize::from(head.is_empty());
                let mut slices = [head, place, staging].map(IoSliceMut::new);
                self.stream.read_vectored(&mut slices[without_head..])
            };
            match outcome {
                Ok(0) => return Err(Fault::Gone("it closed the connection".to_owned())),
                Ok(len) => {
                    counters.bytes_received += len as u64;
                    taken += len;
                    self.readable = true;
                    let outcome = self.receiver.received(len, pool, offers, events);
                    if let Some(reply) = self.receiver.take_reply() {
                        self.sender.reply(reply, self.config.queue_depth);
                    }
                    outcome.map_err(Fault::Misdeed)?;
                    if len < room {
                        return Ok(());
                    }
                }
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => {
                    self.readable = false;
                    return Ok(());
                }
                Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                Err(error) => return Err(Fault::Gone(format!("it cannot be read from: {error}"))),
            }
        }
        Ok(())
    }

    /// Whether it is worth a call now: always when sockets are tried `directly`, else when they are known to be ready.
    pub(crate) fn may_read(&self, directly: bool) -> bool {
        directly || self.readable
    }

    /// Likewise for writing.
    pub(crate) fn may_write(&self, directly: bool) -> bool {
        !self.sender.is_empty() && (directly || self.writable)
    }

    /// What the layer above gets to hear about `fault`.
    pub(crate) fn error(&self, fault: Fault) -> Error {
        let address = self.address.clone();
        match fault {
            Fault::Connect(source) => Error::Connect { address, source },
            Fault::Gone(reason) | Fault::Misdeed(reason) => {
                Error::PeerLost { peer: self.id, address, reason }
            }
        }
    }

    /// Tells the peer why it is turned away, if there is room to; what was posted is dropped in any case.
    pub(crate) fn farewell(mut self, reason: &str, counters: &mut Counters) -> Option<Leaving> {
        self.sender.refuse(reason);
        self.flush(counters).ok()?;
        if !self.sender.is_empty() {
            return None;
        }
        self.stream.shutdown(Shutdown::Write).ok()?;
        Some(Leaving { stream: self.stream, until: Instant::now() + FAREWELL })
    }

    fn token(&self) -> Token {
        Token(self.id.0 as usize)
    }

    fn interest(&self) -> Interest {
        let dialling = matches!(self.stage, Stage::Dialling(_));
        if dialling || (!self.sender.is_empty() && !self.writable) {
            Interest::READABLE | Interest::WRITABLE
        } else {
            Interest::READABLE
        }
    }
}

/// A connection whose peer has been told to go. Closing it while bytes come in would take the reason back, so what still comes
/// is read and thrown away until the peer has closed its side.
#[derive(Debug)]
pub(crate) struct Leaving {
    stream: TcpStream,
    /// When to close it all the same.
    pub(crate) until: Instant,
}

impl Leaving {
    /// Whether the peer may not have heard yet.
    pub(crate) fn is_waiting(&mut self, now: Instant, counters: &mut Counters) -> bool {
        let mut scrap = [0; 4096];
        for _ in 0..64 {
            counters.system_calls += 1;
            match self.stream.read(&mut scrap) {
                Ok(0) => return false,
                Ok(_) => {}
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => break,
                Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                Err(_) => return false,
            }
        }
        now < self.until
    }
}
