//! The portable van: plain non-blocking sockets, for machines where nothing faster works, and for
//! the control plane.
//!
//! No unsafe code and nothing that only one operating system has: it builds wherever sockets do.
//! What a van over sockets does is in [`caravan_van::socket`]; here is the engine, which asks the
//! system's poller which sockets are ready.
//!
//! ```
//! use std::time::Duration;
//! use caravan_fallback_tcp::Tcp;
//! use caravan_van::{Event, FRAME_PREFIX, Transport, VanConfig};
//!
//! # fn main() -> caravan_van::Result<()> {
//! let mut server = Tcp::new(&VanConfig { node: 1, ..VanConfig::default() })?;
//! let mut worker = Tcp::new(&VanConfig { node: 2, ..VanConfig::default() })?;
//! worker.connect(&server.about().address)?;
//! let mut events = Vec::new();
//! loop {
//!     worker.poll(&mut events)?;
//!     if let Some(Event::Connected { peer, .. }) = events.pop() {
//!         let mut frame = worker.about().memory.allocate(FRAME_PREFIX + 5)?;
//!         frame[FRAME_PREFIX..].copy_from_slice(b"hello");
//!         worker.post_send(peer, frame.into())?;
//!     }
//!     server.poll(&mut events)?;
//!     if let Some(Event::Received { frame, .. }) = events.pop() {
//!         assert_eq!(&*frame, b"hello");
//!         return Ok(());
//!     }
//!     events.clear();
//!     server.wait(Duration::from_micros(100))?;
//! }
//! # }
//! ```
//!
//! Path: worker > slicer > filter > message > codec > endpoint > transport (socket, **tcp**).

#![forbid(unsafe_code)]

use std::io::{self, Read, Write};
use std::net::SocketAddr;
use std::time::Duration;

use caravan_van::socket::{self, Engine, Interest, Report, Sockets};
use caravan_van::{Error, Result, VanConfig};
use mio::net::{TcpListener, TcpStream};
use mio::{Events, Poll, Token};
use socket2::SockRef;

/// Reports taken from the system at a time.
const REPORTS_MAX: usize = 256;

const LISTENER: Token = Token(usize::MAX);

#[cfg(unix)]
mod descriptor {
    use std::os::fd::AsRawFd;

    pub(super) fn of(poll: &mio::Poll) -> Option<i32> {
        Some(poll.as_raw_fd())
    }
}

#[cfg(not(unix))]
mod descriptor {
    pub(super) fn of(_: &mio::Poll) -> Option<i32> {
        None
    }
}

/// A node's sockets, on the system's poller.
pub type Tcp = Sockets<Poller>;

/// The system's poller: epoll, kqueue or what else there is.
///
/// It watches a socket until it is told otherwise, and everything that comes in or is acknowledged
/// has to be entered with it. So busy sockets are taken out.
#[derive(Debug)]
pub struct Poller {
    poll: Poll,
    events: Events,
    listener: Option<TcpListener>,
    system_calls: u64,
}

impl Engine for Poller {
    const NAME: &'static str = "tcp";

    type Socket = Socket;

    fn open(_: &VanConfig) -> Result<Poller> {
        let poll =
            Poll::new().map_err(|source| Error::Os { call: "opening the poller", source })?;
        let events = Events::with_capacity(REPORTS_MAX);
        Ok(Poller { poll, events, listener: None, system_calls: 0 })
    }

    fn listen(&mut self, address: SocketAddr) -> io::Result<SocketAddr> {
        let mut listener = TcpListener::bind(address)?;
        self.poll.registry().register(&mut listener, LISTENER, mio::Interest::READABLE)?;
        self.listener.insert(listener).local_addr()
    }

    fn accept(&mut self) -> io::Result<(Socket, SocketAddr)> {
        let listener = self.listener.as_ref().ok_or(io::ErrorKind::WouldBlock)?;
        let (stream, from) = listener.accept()?;
        Ok((Socket { stream, is_registered: false }, from))
    }

    fn connect(&mut self, address: SocketAddr) -> io::Result<Socket> {
        Ok(Socket { stream: TcpStream::connect(address)?, is_registered: false })
    }

    fn watch(
        &mut self,
        number: u32,
        socket: &mut Socket,
        _: Interest,
        wanted: Interest,
    ) -> io::Result<()> {
        self.system_calls += 1;
        let token = Token(number as usize);
        let mut interest = mio::Interest::READABLE;
        if wanted.writes {
            interest |= mio::Interest::WRITABLE;
        }
        let registry = self.poll.registry();
        if std::mem::replace(&mut socket.is_registered, true) {
            registry.reregister(&mut socket.stream, token, interest)
        } else {
            registry.register(&mut socket.stream, token, interest)
        }
    }

    fn ignore(&mut self, socket: &mut Socket) -> io::Result<bool> {
        if std::mem::take(&mut socket.is_registered) {
            self.system_calls += 1;
            self.poll.registry().deregister(&mut socket.stream)?;
        }
        Ok(true)
    }

    fn wait(&mut self, timeout: Duration, reports: &mut Vec<Report>) -> io::Result<()> {
        self.system_calls += 1;
        match self.poll.poll(&mut self.events, Some(timeout)) {
            Err(error) if error.kind() == io::ErrorKind::Interrupted => return Ok(()),
            outcome => outcome?,
        }
        reports.extend(self.events.iter().map(|event| match event.token() {
            LISTENER => Report::Caller,
            Token(number) => {
                let is_broken = event.is_error();
                let reads = event.is_readable() || event.is_read_closed() || is_broken;
                let writes = event.is_writable() || event.is_write_closed() || is_broken;
                Report::Socket { number: number as u32, ready: Interest { reads, writes } }
            }
        }));
        Ok(())
    }

    fn descriptor(&mut self) -> io::Result<Option<i32>> {
        Ok(descriptor::of(&self.poll))
    }

    fn system_calls(&self) -> u64 {
        self.system_calls
    }
}

/// A socket, and whether the poller knows it.
#[derive(Debug)]
pub struct Socket {
    stream: TcpStream,
    is_registered: bool,
}

impl socket::Socket for Socket {
    fn stream(&mut self) -> &mut (impl Read + Write) {
        &mut self.stream
    }

    fn options(&self) -> SockRef<'_> {
        SockRef::from(&self.stream)
    }
}
