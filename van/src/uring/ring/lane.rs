//! A lane: one connection, and the operations and plain calls that send and receive on it.
//!
//! What such an operation names lies in the lane, which `ring` keeps where it is while the kernel has the operation.
//!
//! Path: worker > slicer > filter > message > codec > endpoint > transport (ring, **lane**).

use std::io::{self, IoSlice};
use std::net::TcpStream;
use std::os::fd::AsRawFd;

use io_uring::{opcode, squeue, types};
use socket2::SockRef;

use super::super::operation::Operation;
use crate::metrics::Counters;
use crate::offers::Offers;
use crate::socket::{Receiver, SLICES_MAX, Sender, Spaces};

/// A write with at least this many bytes to come is, when left to the kernel, received in one operation, all but the last
/// [`TAIL`] bytes.
const BULK: usize = 128 << 10;

/// The end of a write is received together with what follows it.
const TAIL: usize = 64 << 10;

/// A connection, at a fixed address for as long as the kernel may know it.
pub(super) struct Lane {
    pub(super) socket: TcpStream,
    pub(super) sender: Sender,
    pub(super) receiver: Receiver,
    pub(super) send: Operation,
    pub(super) receive: Operation,
    /// Tries in a row that found nothing; `None` if the lane is left to the kernel. A lane that is tried may have an operation
    /// under way that began before: then that one goes first.
    pub(super) misses: Option<u32>,
    /// A send went out, so that a try at the same moment would come too early for the answer.
    pub(super) just_sent: bool,
    pub(super) closing: bool,
    /// Frames that have left and are counted: those of an encrypted lane leave when they are sealed.
    frames_counted: u64,
    send_header: libc::msghdr,
    send_slices: [libc::iovec; SLICES_MAX],
    receive_header: libc::msghdr,
    receive_slices: [libc::iovec; 2],
}

impl Lane {
    /// A connection on which nothing is under way.
    pub(super) fn new(socket: TcpStream, sender: Sender, receiver: Receiver) -> Self {
        Lane {
            socket,
            sender,
            receiver,
            send: Operation::default(),
            receive: Operation::default(),
            misses: None,
            just_sent: false,
            closing: false,
            frames_counted: 0,
            send_header: empty_header(),
            send_slices: [NO_SLICE; SLICES_MAX],
            receive_header: empty_header(),
            receive_slices: [NO_SLICE; 2],
        }
    }

    /// Whether everything posted to it has left.
    pub(super) fn is_flushed(&self) -> bool {
        self.sender.is_empty()
    }

    /// The operation that sends what is queued, as far as one call takes it; none if nothing is.
    pub(super) fn send_entry(&mut self) -> Option<squeue::Entry> {
        if self.sender.is_empty() {
            return None;
        }
        let socket = types::Fd(self.socket.as_raw_fd());
        // With MSG_WAITALL the kernel goes on by itself when the socket's buffer was full.
        let flags = libc::MSG_NOSIGNAL | libc::MSG_WAITALL;
        let Lane { sender, send_header, send_slices, .. } = self;
        sender.with_slices(|slices| match slices {
            [] => None,
            [slice] if let Ok(len) = u32::try_from(slice.len()) => {
                Some(opcode::Send::new(socket, slice.as_ptr(), len).flags(flags).build())
            }
            slices => {
                for (to, slice) in send_slices.iter_mut().zip(slices) {
                    *to = libc::iovec {
                        iov_base: slice.as_ptr().cast_mut().cast(),
                        iov_len: slice.len(),
                    };
                }
                send_header.msg_iov = send_slices.as_mut_ptr();
                send_header.msg_iovlen = slices.len();
                let header = &raw const *send_header;
                Some(opcode::SendMsg::new(socket, header).flags(flags as u32).build())
            }
        })
    }

    /// Takes note that `bytes` bytes have left.
    pub(super) fn left(&mut self, bytes: usize, counters: &mut Counters) {
        self.sender.sent(bytes);
        let frames = self.sender.frames_sent();
        counters.frames_sent += frames - std::mem::replace(&mut self.frames_counted, frames);
        counters.bytes_sent += bytes as u64;
    }

    /// Sends what the socket takes of what is queued, without waiting; none if nothing is.
    pub(super) fn send(&mut self) -> Option<io::Result<usize>> {
        let socket = SockRef::from(&self.socket);
        let flags = libc::MSG_NOSIGNAL | libc::MSG_DONTWAIT;
        if let Some(slice) = self.sender.only_slice() {
            return Some(socket.send_with_flags(slice, flags));
        }
        if self.sender.is_empty() {
            return None;
        }
        let send = |slices: &[IoSlice<'_>]| socket.send_vectored_with_flags(slices, flags);
        Some(self.sender.with_slices(send))
    }

    /// Receives what has come, without waiting.
    ///
    /// # Panics
    /// If the kernel has a receive in hand, which might write in the same place.
    pub(super) fn receive(&mut self, offers: &mut Offers) -> io::Result<usize> {
        assert!(!self.receive.under_way, "the kernel receives on this lane");
        let socket = self.socket.as_raw_fd();
        let Spaces { head, place, staging } = self.receiver.spaces_ahead(offers);
        let count = if place.is_empty() {
            let memory = staging.as_mut_ptr().cast();
            // SAFETY: `staging` is exclusively borrowed and that long, and no operation of the kernel's writes there, as was
            // checked above.
            unsafe { libc::recv(socket, memory, staging.len(), libc::MSG_DONTWAIT) }
        } else {
            let without_head = usize::from(head.is_empty());
            let mut slices = [head, place, staging].map(slice_of);
            let slices = &mut slices[without_head..];
            let mut header = empty_header();
            (header.msg_iov, header.msg_iovlen) = (slices.as_mut_ptr(), slices.len());
            // SAFETY: the header names the receiver's spaces, exclusively borrowed as above, and lies here as its slices do.
            unsafe { libc::recvmsg(socket, &raw mut header, libc::MSG_DONTWAIT) }
        };
        usize::try_from(count).map_err(|_| io::Error::last_os_error())
    }

    /// A header that names both of the receiver's spaces.
    fn receive_header(&mut self) -> *mut libc::msghdr {
        let Spaces { place, staging, .. } = self.receiver.spaces();
        self.receive_slices = [place, staging].map(slice_of);
        self.receive_header.msg_iov = self.receive_slices.as_mut_ptr();
        self.receive_header.msg_iovlen = self.receive_slices.len();
        &raw mut self.receive_header
    }

    /// The operation that receives what comes next.
    pub(super) fn receive_entry(&mut self) -> squeue::Entry {
        let socket = types::Fd(self.socket.as_raw_fd());
        let Spaces { place, staging, .. } = self.receiver.spaces();
        if place.is_empty() {
            let len = u32::try_from(staging.len()).unwrap_or(u32::MAX);
            return opcode::Recv::new(socket, staging.as_mut_ptr(), len).build();
        }
        if place.len() >= BULK {
            // The kernel goes on by itself while more comes in.
            let len = u32::try_from(place.len() - TAIL).unwrap_or(u32::MAX);
            let entry = opcode::Recv::new(socket, place.as_mut_ptr(), len);
            return entry.flags(libc::MSG_WAITALL).build();
        }
        opcode::RecvMsg::new(socket, self.receive_header()).build()
    }
}

const NO_SLICE: libc::iovec = libc::iovec { iov_base: std::ptr::null_mut(), iov_len: 0 };

fn slice_of(space: &mut [u8]) -> libc::iovec {
    libc::iovec { iov_base: space.as_mut_ptr().cast(), iov_len: space.len() }
}

/// A message header without an address and without slices.
fn empty_header() -> libc::msghdr {
    // SAFETY: `msghdr` is plain old data of the C library; null pointers with zero lengths are what an empty one holds.
    unsafe { std::mem::zeroed() }
}
