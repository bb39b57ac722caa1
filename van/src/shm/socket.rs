//! What the ends of a lane exchange beside memory: packets over a Unix socket, which can bring
//! descriptors along.
//!
//! Names are abstract: they exist as long as the socket, and nothing is left in a file system. No
//! call here blocks but [`Epoll::wait`], whatever the other side does to its end of a socket. The
//! descriptors of a packet that is not taken are closed.
//!
//! This file has the system calls about descriptors, with their `unsafe` code. It shares no memory.

use std::io;
use std::mem::{MaybeUninit, offset_of, size_of};
use std::os::fd::{AsRawFd, BorrowedFd, FromRawFd, OwnedFd, RawFd};
use std::time::Duration;

/// Connections that may wait to be accepted. The kernel's own limit may be smaller.
const BACKLOG: libc::c_int = 4096;

/// Control bytes of a packet that brings a descriptor. The alignment of [`Control`] leaves room for
/// a second descriptor behind it. The kernel is told of these bytes only, or a peer could have it
/// create a descriptor that nobody would close.
const CONTROL_BYTES: usize = size_of::<libc::cmsghdr>() + size_of::<RawFd>();

/// Longest name: what an address holds, less the zero byte that makes it abstract.
const NAME_MAX: usize =
    size_of::<libc::sockaddr_un>() - offset_of!(libc::sockaddr_un, sun_path) - 1;

/// One end of a connection, or a listener.
#[derive(Debug)]
pub(super) struct Socket(OwnedFd);

impl Socket {
    /// A listener under `name`.
    pub(super) fn listen(name: &[u8]) -> io::Result<Socket> {
        let (socket, address, len) = Socket::named(name)?;
        let to = (&raw const address).cast();
        // SAFETY: the kernel reads `len` bytes of an address that has them.
        succeeded(unsafe { libc::bind(socket.raw(), to, len) })?;
        // SAFETY: the call takes a descriptor and no memory.
        succeeded(unsafe { libc::listen(socket.raw(), BACKLOG) })?;
        Ok(socket)
    }

    /// Connects to the listener under `name`.
    ///
    /// # Errors
    /// [`io::ErrorKind::WouldBlock`] if its queue is full.
    pub(super) fn connect(name: &[u8]) -> io::Result<Socket> {
        let (socket, address, len) = Socket::named(name)?;
        let to = (&raw const address).cast();
        // SAFETY: the kernel reads `len` bytes of an address that has them.
        succeeded(unsafe { libc::connect(socket.raw(), to, len) })?;
        Ok(socket)
    }

    fn named(name: &[u8]) -> io::Result<(Socket, libc::sockaddr_un, libc::socklen_t)> {
        if name.is_empty() || name.len() > NAME_MAX {
            return Err(io::ErrorKind::InvalidInput.into());
        }
        let kind = libc::SOCK_SEQPACKET | libc::SOCK_CLOEXEC | libc::SOCK_NONBLOCK;
        // SAFETY: the call takes no memory.
        let socket = owned(unsafe { libc::socket(libc::AF_UNIX, kind, 0) })?;
        let mut address = libc::sockaddr_un { sun_family: libc::AF_UNIX as _, sun_path: [0; 108] };
        for (to, &byte) in address.sun_path[1..].iter_mut().zip(name) {
            *to = byte as _;
        }
        let len = offset_of!(libc::sockaddr_un, sun_path) + 1 + name.len();
        Ok((Socket(socket), address, len as libc::socklen_t))
    }

    /// Accepts the next connection.
    ///
    /// # Errors
    /// [`io::ErrorKind::WouldBlock`] if there is none.
    pub(super) fn accept(&self) -> io::Result<Socket> {
        let (null, flags) = (std::ptr::null_mut(), libc::SOCK_CLOEXEC | libc::SOCK_NONBLOCK);
        // SAFETY: null pointers ask the kernel for no address.
        let socket = unsafe { libc::accept4(self.raw(), null, std::ptr::null_mut(), flags) };
        owned(socket).map(Socket)
    }

    /// The process at the other side and its user, as the kernel saw them when the process
    /// connected or began to listen.
    pub(super) fn peer(&self) -> io::Result<(i32, u32)> {
        let mut found = libc::ucred { pid: 0, uid: 0, gid: 0 };
        let mut len = size_of::<libc::ucred>() as libc::socklen_t;
        let to = (&raw mut found).cast();
        // SAFETY: the kernel writes up to `len` bytes, which have room.
        let code = unsafe {
            libc::getsockopt(self.raw(), libc::SOL_SOCKET, libc::SO_PEERCRED, to, &raw mut len)
        };
        succeeded(code).map(|()| (found.pid, found.uid))
    }

    /// Sends a packet, with a descriptor if there is one.
    ///
    /// # Errors
    /// [`io::ErrorKind::WouldBlock`] if the other side has too many unread packets.
    pub(super) fn send(&self, packet: &[u8], file: Option<BorrowedFd<'_>>) -> io::Result<()> {
        let mut slice =
            libc::iovec { iov_base: packet.as_ptr().cast_mut().cast(), iov_len: packet.len() };
        let mut control = Control::new();
        let mut header = empty_header();
        (header.msg_iov, header.msg_iovlen) = (&raw mut slice, 1);
        if let Some(file) = file {
            control.fd = file.as_raw_fd();
            header.msg_control = (&raw mut control).cast();
            header.msg_controllen = CONTROL_BYTES;
        }
        let flags = libc::MSG_DONTWAIT | libc::MSG_NOSIGNAL;
        // SAFETY: the kernel reads the packet and the control bytes. Both have the given lengths
        // and outlive the call.
        let sent = unsafe { libc::sendmsg(self.raw(), &raw const header, flags) };
        if sent < 0 { Err(io::Error::last_os_error()) } else { Ok(()) }
    }

    /// Takes the next packet, cut off at the end of `into`, and its descriptor. A packet of no
    /// bytes is the end of the connection: this van's packets have at least one.
    ///
    /// # Errors
    /// [`io::ErrorKind::WouldBlock`] if there is no packet; [`io::ErrorKind::QuotaExceeded`] if
    /// this process has no descriptor left for the one in the packet.
    pub(super) fn receive(&self, into: &mut [u8]) -> io::Result<(usize, Option<OwnedFd>)> {
        let mut slice = libc::iovec { iov_base: into.as_mut_ptr().cast(), iov_len: into.len() };
        let mut control = Control::new();
        let mut header = empty_header();
        (header.msg_iov, header.msg_iovlen) = (&raw mut slice, 1);
        header.msg_control = (&raw mut control).cast();
        header.msg_controllen = CONTROL_BYTES;
        let flags = libc::MSG_DONTWAIT | libc::MSG_CMSG_CLOEXEC;
        // SAFETY: the kernel writes at most the given lengths into the packet and the control
        // bytes. Both outlive the call.
        let received = unsafe { libc::recvmsg(self.raw(), &raw mut header, flags) };
        if received < 0 {
            return Err(io::Error::last_os_error());
        }
        if header.msg_flags & libc::MSG_CTRUNC != 0 && header.msg_controllen < CONTROL_BYTES {
            let what = "no file descriptor is left here for one that came (raise `ulimit -n`)";
            return Err(io::Error::new(io::ErrorKind::QuotaExceeded, what));
        }
        let brought = header.msg_controllen >= CONTROL_BYTES
            && control.header.cmsg_level == libc::SOL_SOCKET
            && control.header.cmsg_type == libc::SCM_RIGHTS;
        let file = brought.then(|| {
            // SAFETY: the kernel has just created this descriptor, the only one that fits, and
            // nothing else owns it.
            unsafe { OwnedFd::from_raw_fd(control.fd) }
        });
        Ok((received as usize, file))
    }

    /// Takes the next packet if it is one byte long; returns whether it was.
    pub(super) fn take_if_one_byte(&self) -> io::Result<bool> {
        let mut room = [0u8; 2];
        let (to, flags) = (room.as_mut_ptr().cast(), libc::MSG_DONTWAIT | libc::MSG_PEEK);
        // SAFETY: the kernel writes at most `room.len()` bytes.
        let len = unsafe { libc::recv(self.raw(), to, room.len(), flags) };
        if len == 1 {
            self.receive(&mut room)?;
        }
        Ok(len == 1)
    }

    fn raw(&self) -> RawFd {
        self.0.as_raw_fd()
    }
}

/// One descriptor beside a packet, in the kernel's layout.
#[repr(C)]
struct Control {
    header: libc::cmsghdr,
    fd: RawFd,
}

impl Control {
    fn new() -> Control {
        // SAFETY: the struct has only numbers, for which zero is valid.
        let mut header: libc::cmsghdr = unsafe { MaybeUninit::zeroed().assume_init() };
        header.cmsg_len = CONTROL_BYTES;
        header.cmsg_level = libc::SOL_SOCKET;
        header.cmsg_type = libc::SCM_RIGHTS;
        Control { header, fd: -1 }
    }
}

fn empty_header() -> libc::msghdr {
    // SAFETY: the struct has only pointers and numbers, for which zero is valid: no name, no
    // slices, no control bytes.
    unsafe { MaybeUninit::zeroed().assume_init() }
}

/// A set of watched sockets, each under a number.
#[derive(Debug)]
pub(super) struct Epoll(OwnedFd);

/// Most sockets that one look reports. The others follow at the next look.
const READY_MAX: usize = 64;

impl Epoll {
    pub(super) fn new() -> io::Result<Epoll> {
        // SAFETY: the call takes no memory.
        owned(unsafe { libc::epoll_create1(libc::EPOLL_CLOEXEC) }).map(Epoll)
    }

    /// Readable while a watched socket is ready.
    pub(super) fn descriptor(&self) -> RawFd {
        self.0.as_raw_fd()
    }

    /// Watches `socket` for packets and for its end, until it is closed.
    pub(super) fn watch(&self, socket: &Socket, number: u64) -> io::Result<()> {
        let mut event = libc::epoll_event { events: libc::EPOLLIN as u32, u64: number };
        // SAFETY: the kernel reads one event.
        let code = unsafe {
            libc::epoll_ctl(self.0.as_raw_fd(), libc::EPOLL_CTL_ADD, socket.raw(), &raw mut event)
        };
        succeeded(code)
    }

    /// Stops watching `socket`.
    pub(super) fn forget(&self, socket: &Socket) {
        let null = std::ptr::null_mut();
        // SAFETY: the kernel reads no event for this call, which fails only for an unwatched
        // socket.
        let _ =
            unsafe { libc::epoll_ctl(self.0.as_raw_fd(), libc::EPOLL_CTL_DEL, socket.raw(), null) };
    }

    /// Waits until a socket is ready and appends the numbers of the ready sockets to `ready`. It
    /// appends none if the time is up or a signal came.
    pub(super) fn wait(&self, timeout: Duration, ready: &mut Vec<u64>) -> io::Result<()> {
        let mut events = [libc::epoll_event { events: 0, u64: 0 }; READY_MAX];
        // Rounded up: a wait that ends before the deadline is useless.
        let timeout_ms = timeout.as_nanos().div_ceil(1_000_000).min(60_000) as libc::c_int;
        let (to, room) = (events.as_mut_ptr(), READY_MAX as libc::c_int);
        // SAFETY: the kernel writes at most `room` events, which have room.
        let count = unsafe { libc::epoll_wait(self.0.as_raw_fd(), to, room, timeout_ms) };
        match succeeded(count) {
            Ok(()) => ready.extend(events[..count as usize].iter().map(|event| event.u64)),
            Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
            Err(error) => return Err(error),
        }
        Ok(())
    }
}

/// This process's user.
pub(super) fn user() -> u32 {
    // SAFETY: the call takes no memory and cannot fail.
    unsafe { libc::geteuid() }
}

fn owned(descriptor: RawFd) -> io::Result<OwnedFd> {
    succeeded(descriptor)?;
    // SAFETY: the kernel has just created it, and nothing else owns it.
    Ok(unsafe { OwnedFd::from_raw_fd(descriptor) })
}

fn succeeded(code: libc::c_int) -> io::Result<()> {
    if code < 0 { Err(io::Error::last_os_error()) } else { Ok(()) }
}
