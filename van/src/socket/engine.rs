//! The engine of a van over sockets: how sockets are made, and how a thread learns which are ready.
//!
//! Bytes move by plain non-blocking calls on every engine. An engine is asked only about sockets
//! that had nothing to give or no room when they were tried last.

use std::io::{self, IoSlice, IoSliceMut, Read, Write};
use std::net::SocketAddr;
use std::time::Duration;

use socket2::SockRef;

use crate::config::VanConfig;
use crate::error::Result;

/// One system's way to wait for sockets.
///
/// A report is a hint: one too many costs a call that finds nothing. One too few would leave a
/// thread asleep, so a watch reports at least once what is ready when it begins or becomes ready
/// later.
pub trait Engine: Sized {
    /// The van's name.
    const NAME: &'static str;

    /// A TCP socket in non-blocking mode.
    type Socket: Socket;

    /// An engine with no sockets.
    ///
    /// # Errors
    /// [`Error::Unavailable`](crate::Error::Unavailable) or [`Error::Os`](crate::Error::Os): why
    /// this machine has none.
    fn open(config: &VanConfig) -> Result<Self>;

    /// Listens on `address` from now on, and returns the address with the port it took.
    ///
    /// # Errors
    /// What the system reports.
    fn listen(&mut self, address: SocketAddr) -> io::Result<SocketAddr>;

    /// The next caller, and where it called from. After [`io::ErrorKind::WouldBlock`] the next one
    /// is reported.
    ///
    /// # Errors
    /// What the system reports.
    fn accept(&mut self) -> io::Result<(Self::Socket, SocketAddr)>;

    /// Begins to connect: the socket becomes writable when that is over.
    ///
    /// # Errors
    /// What the system reports at once.
    fn connect(&mut self, address: SocketAddr) -> io::Result<Self::Socket>;

    /// Asks for a report once the socket of lane `number` is ready for what is `wanted`. What is
    /// `watched` was asked for before, and not reported yet.
    ///
    /// # Errors
    /// What the system reports.
    fn watch(
        &mut self,
        number: u32,
        socket: &mut Self::Socket,
        watched: Interest,
        wanted: Interest,
    ) -> io::Result<()>;

    /// Ends the watch over a busy socket, if reports about it cost anything; returns whether it
    /// ended.
    ///
    /// # Errors
    /// What the system reports.
    fn ignore(&mut self, _socket: &mut Self::Socket) -> io::Result<bool> {
        Ok(false)
    }

    /// Closes a socket. Reports about it may still come.
    fn close(&mut self, socket: Self::Socket) {
        drop(socket);
    }

    /// Appends what has become ready to `reports`; sleeps for at most `timeout` if nothing has.
    ///
    /// # Errors
    /// What the system reports, when the engine itself is broken.
    fn wait(&mut self, timeout: Duration, reports: &mut Vec<Report>) -> io::Result<()>;

    /// The descriptor that becomes readable with the next report, for threads that sleep on more
    /// than this engine; `None` where the system has no such thing.
    ///
    /// # Errors
    /// What the system reports.
    fn descriptor(&mut self) -> io::Result<Option<i32>> {
        Ok(None)
    }

    /// Makes the descriptor unreadable again, where a look at the reports does not. A look follows.
    fn quiet(&mut self) {}

    /// System calls of [`Engine::watch`], [`Engine::ignore`] and [`Engine::wait`] so far.
    fn system_calls(&self) -> u64;
}

/// A socket that bytes move through by calls that do not wait.
pub trait Socket {
    /// What is read and written, without waiting.
    fn stream(&mut self) -> &mut (impl Read + Write);

    /// The socket, for its options and addresses.
    fn options(&self) -> SockRef<'_>;

    /// Receives what has come.
    ///
    /// # Errors
    /// [`io::ErrorKind::WouldBlock`] when nothing has; what the system reports.
    fn receive(&mut self, spaces: &mut [IoSliceMut<'_>]) -> io::Result<usize> {
        match spaces {
            [space] => self.stream().read(space),
            spaces => self.stream().read_vectored(spaces),
        }
    }

    /// Sends what the system has room for.
    ///
    /// # Errors
    /// [`io::ErrorKind::WouldBlock`] when it has none; what the system reports.
    fn send(&mut self, slices: &[IoSlice<'_>]) -> io::Result<usize> {
        match slices {
            [slice] => self.stream().write(slice),
            slices => self.stream().write_vectored(slices),
        }
    }
}

/// What a socket can be ready for.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Interest {
    /// Bytes have come, or the connection has ended.
    pub reads: bool,
    /// There is room for bytes, or the connection is made or has ended.
    pub writes: bool,
}

impl Interest {
    /// What this covers and `other` does not.
    #[must_use]
    pub fn without(self, other: Interest) -> Interest {
        Interest { reads: self.reads && !other.reads, writes: self.writes && !other.writes }
    }

    /// Whether it covers nothing.
    pub fn is_empty(self) -> bool {
        self == Interest::default()
    }
}

/// What an engine has to say.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Report {
    /// Somebody has called.
    Caller,
    /// A socket may be ready for this, and is no longer watched for it.
    Socket {
        /// The lane's number.
        number: u32,
        /// What for.
        ready: Interest,
    },
}
