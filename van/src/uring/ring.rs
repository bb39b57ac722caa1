//! The engine on a ring: which sockets are ready is read from memory shared with the kernel.
//!
//! A watch is a poll operation: it names a descriptor and no memory, and ends with its one
//! completion. Watches are handed to the kernel together, with the next call that is made anyway.

use std::io::{self, IoSlice, Read, Write};
use std::net::{Shutdown, SocketAddr, TcpListener, TcpStream};
use std::os::fd::{AsRawFd, OwnedFd, RawFd};
use std::time::Duration;

use io_uring::{IoUring, opcode, squeue, types};
use rustix::event::{EventfdFlags, eventfd};
use socket2::{Domain, Protocol, SockRef, Type};

use super::probe::{self, Mode};
use crate::config::VanConfig;
use crate::error::{Error, Result};
use crate::socket::{Engine, Interest, Report, Socket};

/// How long a ring that is dropped waits for the kernel to let go of the listener.
const LET_GO: Duration = Duration::from_millis(100);

/// One thread's ring.
pub struct Ring {
    io: IoUring,
    mode: Mode,
    listener: Option<TcpListener>,
    system_calls: u64,
    /// What was completed while room was made for more watches.
    completed: Vec<Report>,
    /// Made readable by the kernel when something has become ready, for a thread that sleeps
    /// elsewhere. The ring's own descriptor does not do: with [`Mode::Deferred`] the kernel wakes
    /// nobody who waits for that.
    notice: Option<OwnedFd>,
}

impl Ring {
    /// A ring in the first of `modes` that works here.
    ///
    /// # Errors
    /// [`Error::Unavailable`].
    pub(super) fn new(modes: &[Mode]) -> Result<Ring> {
        let unavailable = |reason| Error::Unavailable { van: Ring::NAME, reason };
        let (io, mode) = probe::open(modes).map_err(unavailable)?;
        let (listener, notice, completed) = (None, None, Vec::new());
        Ok(Ring { io, mode, listener, system_calls: 0, completed, notice })
    }

    /// Queues a poll operation for `events` of an open socket.
    fn poll(&mut self, socket: RawFd, events: i16, about: About) -> io::Result<()> {
        let entry = opcode::PollAdd::new(types::Fd(socket), events as u32).build();
        self.push(entry.user_data(about.user_data()))
    }

    /// Queues an operation, by way of a system call where there is no room.
    fn push(&mut self, entry: squeue::Entry) -> io::Result<()> {
        while self.io.submission().is_full() {
            self.enter(None)?;
            let mut completed = std::mem::take(&mut self.completed);
            self.reap(&mut completed);
            self.completed = completed;
        }
        // SAFETY: polls and cancellations name no memory. Descriptors are those of open sockets,
        // and are handed over before these are closed: see `close`.
        unsafe { self.io.submission().push(&entry) }.map_err(io::Error::other)
    }

    /// Hands queued operations to the kernel, and has it complete what is ready; sleeps for up to
    /// `timeout` until something is, if one is given.
    fn enter(&mut self, timeout: Option<Duration>) -> io::Result<()> {
        self.system_calls += 1;
        let entered = match timeout {
            None => self.io.submitter().submit(),
            Some(timeout) => {
                let timeout = types::Timespec::from(timeout);
                let arguments = types::SubmitArgs::new().timespec(&timeout);
                self.io.submitter().submit_with_args(1, &arguments)
            }
        };
        tolerate(entered)
    }

    /// Reads what has been completed.
    fn reap(&mut self, reports: &mut Vec<Report>) {
        reports
            .extend(self.io.completion().filter_map(|entry| About::of(entry.user_data()).report()));
    }
}

impl Engine for Ring {
    const NAME: &'static str = "uring";

    type Socket = TcpStream;

    fn open(_: &VanConfig) -> Result<Ring> {
        let ring = Ring::new(&Mode::BEST_FIRST)?;
        tracing::debug!(mode = ?ring.mode, "io_uring");
        Ok(ring)
    }

    fn listen(&mut self, address: SocketAddr) -> io::Result<SocketAddr> {
        let listener = TcpListener::bind(address)?;
        listener.set_nonblocking(true)?;
        let bound = listener.local_addr()?;
        self.listener = Some(listener);
        Ok(bound)
    }

    fn accept(&mut self) -> io::Result<(TcpStream, SocketAddr)> {
        let listener = self.listener.as_ref().ok_or(io::ErrorKind::WouldBlock)?;
        let descriptor = listener.as_raw_fd();
        let accepted = listener.accept();
        if matches!(&accepted, Err(error) if error.kind() == io::ErrorKind::WouldBlock) {
            self.poll(descriptor, libc::POLLIN, About::Listener)?;
        }
        let (socket, from) = accepted?;
        socket.set_nonblocking(true)?;
        Ok((socket, from))
    }

    fn connect(&mut self, address: SocketAddr) -> io::Result<TcpStream> {
        let kind = Type::STREAM.nonblocking();
        let socket = socket2::Socket::new(Domain::for_address(address), kind, Some(Protocol::TCP))?;
        match socket.connect(&address.into()) {
            Err(error) if error.raw_os_error() != Some(libc::EINPROGRESS) => Err(error),
            _ => Ok(socket.into()),
        }
    }

    fn watch(
        &mut self,
        number: u32,
        socket: &mut TcpStream,
        watched: Interest,
        wanted: Interest,
    ) -> io::Result<()> {
        let missing = wanted.without(watched);
        if missing.reads {
            self.poll(socket.as_raw_fd(), libc::POLLIN | libc::POLLRDHUP, About::Reads(number))?;
        }
        if missing.writes {
            self.poll(socket.as_raw_fd(), libc::POLLOUT, About::Writes(number))?;
        }
        Ok(())
    }

    /// Its watches hold the connection open, so they are made to end: by hanging up.
    fn close(&mut self, socket: TcpStream) {
        // A watch that is still queued would be one of whatever has this descriptor next.
        if !self.io.submission().is_empty() && self.enter(None).is_err() {
            std::mem::forget(socket); // the ring is broken, and the transport with it
            return;
        }
        // Fails only where the connection is gone already.
        let _ = socket.shutdown(Shutdown::Both);
    }

    fn wait(&mut self, timeout: Duration, reports: &mut Vec<Report>) -> io::Result<()> {
        reports.append(&mut self.completed);
        if !timeout.is_zero() && reports.is_empty() {
            self.enter(Some(timeout))?;
        } else {
            let queue = self.io.submission();
            let has_work = !queue.is_empty() || queue.taskrun() || queue.cq_overflow();
            drop(queue);
            if has_work {
                self.enter(None)?;
            }
        }
        self.reap(reports);
        Ok(())
    }

    fn descriptor(&mut self) -> io::Result<Option<i32>> {
        let notice = match self.notice.take() {
            Some(notice) => notice,
            None => {
                let made = eventfd(0, EventfdFlags::NONBLOCK | EventfdFlags::CLOEXEC)?;
                self.io.submitter().register_eventfd(made.as_raw_fd())?;
                made
            }
        };
        Ok(Some(self.notice.insert(notice).as_raw_fd()))
    }

    fn quiet(&mut self) {
        if let Some(notice) = &self.notice {
            self.system_calls += 1;
            // Fails where nothing has become ready.
            let _ = rustix::io::read(notice, &mut [0; 8]);
        }
    }

    fn system_calls(&self) -> u64 {
        self.system_calls
    }
}

/// Whoever listens next at the same address can: the kernel holds the listener for as long as it
/// polls it.
impl Drop for Ring {
    fn drop(&mut self) {
        if self.listener.is_some() {
            let cancel = opcode::AsyncCancel::new(About::Listener.user_data()).build();
            let queued = self.push(cancel.user_data(About::Nothing.user_data()));
            // Nothing can be done about a kernel that refuses.
            let _ = queued.and_then(|()| self.enter(Some(LET_GO)));
        }
    }
}

impl Socket for TcpStream {
    fn stream(&mut self) -> &mut (impl Read + Write) {
        self
    }

    fn options(&self) -> SockRef<'_> {
        SockRef::from(self)
    }

    /// Without the signal that would end a process which does not ignore it.
    fn send(&mut self, slices: &[IoSlice<'_>]) -> io::Result<usize> {
        match slices {
            [slice] => self.options().send_with_flags(slice, libc::MSG_NOSIGNAL),
            slices => self.options().send_vectored_with_flags(slices, libc::MSG_NOSIGNAL),
        }
    }
}

/// What an operation is about.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum About {
    Nothing,
    Listener,
    /// Whether this lane's socket can be read.
    Reads(u32),
    /// Whether it can be written.
    Writes(u32),
}

impl About {
    /// The number that comes back with the operation's completion.
    fn user_data(self) -> u64 {
        let (kind, number) = match self {
            About::Nothing => (0, 0),
            About::Listener => (1, 0),
            About::Reads(number) => (2, number),
            About::Writes(number) => (3, number),
        };
        u64::from(number) << 2 | kind
    }

    fn of(user_data: u64) -> About {
        let number = (user_data >> 2) as u32;
        match user_data & 3 {
            0 => About::Nothing,
            1 => About::Listener,
            2 => About::Reads(number),
            _ => About::Writes(number),
        }
    }

    fn report(self) -> Option<Report> {
        let lane = |number, reads| {
            Some(Report::Socket { number, ready: Interest { reads, writes: !reads } })
        };
        match self {
            About::Nothing => None,
            About::Listener => Some(Report::Caller),
            About::Reads(number) => lane(number, true),
            About::Writes(number) => lane(number, false),
        }
    }
}

/// Passes over errors that only mean "later": a signal, a timeout, completions to be reaped first.
fn tolerate(entered: io::Result<usize>) -> io::Result<()> {
    match entered.as_ref().map_err(io::Error::raw_os_error) {
        Ok(_) | Err(Some(libc::EINTR | libc::ETIME | libc::EBUSY | libc::EAGAIN)) => Ok(()),
        Err(_) => entered.map(drop),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn completions_tell_what_they_are_about() {
        let of_lanes = [0, 1, 12345, u32::MAX].into_iter();
        let of_lanes = of_lanes.flat_map(|number| [About::Reads(number), About::Writes(number)]);
        for about in of_lanes.chain([About::Nothing, About::Listener]) {
            assert_eq!(About::of(about.user_data()), about);
        }
    }

    #[test]
    fn only_what_means_later_is_passed_over() {
        let entered = |errno| tolerate(Err(io::Error::from_raw_os_error(errno)));
        assert!(tolerate(Ok(3)).is_ok());
        for errno in [libc::EINTR, libc::ETIME, libc::EBUSY, libc::EAGAIN] {
            assert!(entered(errno).is_ok(), "{errno}");
        }
        let broken = entered(libc::EBADF).map_err(|error| error.raw_os_error());
        assert_eq!(broken, Err(Some(libc::EBADF)));
    }
}
