//! How frames and writes travel on a byte stream: framing without I/O, shared by every van over sockets.
//!
//! A stream begins with a [handshake](crate::handshake); then units follow, each at a multiple of 8 bytes, of an encrypted lane
//! in sealed messages (`sealed.rs`):
//!
//! ```text
//! frame    [kind 1, 0][0 u16][len u32][0 u64]            frame bytes, zero padding to 8
//! write    [kind 2, 0][at u16][len u32][offer key u64]   data bytes, zero padding to 8
//! refusal  [kind 3, 0][0 u16][len u32][0 u64]            UTF-8 reason, zero padding to 8; then the stream ends
//! ```
//!
//! [`Sender`] queues units and lists the slices to hand to the socket; a frame is sent from where it lies, and so are the
//! parts of a write. [`Receiver`] says where the next bytes shall go: frames into a staging buffer, out of which they are cut
//! without copying; the data of a write straight into the memory that was offered for it, in one call with its prefix where it can
//! be told what comes (see [`Receiver::spaces_ahead`]).
//!
//! # What a long push costs beyond bare sockets
//!
//! A push of 1 MiB that a server keeps takes 1.06 to 1.09 of the time of bare sockets that wait alike (medians of 14 rounds; single
//! ones 0.99 to 1.14). Both make the same calls, but for that of the prefix, and the kernel cuts the message alike. The difference is
//! made by caches (Linux 6.18, loopback, two cores of a virtual machine with 2 MiB of L2 each, which the message and the kernel's
//! pages of it fill):
//!
//! * Two places in turn receive: one holds what is stored, the next push comes into the other. Bare sockets that do so take 1.00 to
//!   1.05 of one place on huge pages, where the vans' memory lies, and 1.03 to 1.09 on small ones; with three 1.03 to 1.06.
//! * What runs between the last byte and the answer has been pushed out meanwhile. On the server it takes 3.9 µs, and 0.8 behind
//!   64 KiB; on the worker, from the answer to the next send, 3.8 and 1.1, of which bare sockets take 0.6 and 0.4.
//!
//! What made no difference to it (14 interleaved rounds): to begin a write longer than 256 KiB in one call with its prefix, to send
//! at once, by one more plain call, what the first left, and most of the program's code in huge pages (10 rounds).
//!
//! Path: worker > slicer > filter > message > codec > endpoint > transport (**stream**).

mod receive;
mod sealed;
mod send;
#[cfg(test)]
mod tests;

pub use receive::{Receiver, Reply, Spaces};
pub use send::{SLICES_MAX, Sender};

use std::time::Duration;

use socket2::TcpKeepalive;

use crate::transport::FRAME_PREFIX;

/// What vans over sockets carry by, as their handshakes name it: they all speak alike.
pub const CARRIER: &str = "socket";

const FRAME: u8 = 1;
const WRITE: u8 = 2;
const REFUSAL: u8 = 3;

/// Units, and so the frames in a staging buffer, start at multiples of this.
const ALIGN: usize = 8;

/// What the kernel may hold unsent of a connection within one host, in bytes; Linux doubles it. Left to itself the kernel lets it
/// grow to several megabytes, and a long message is pushed out of the processor's caches between the kernel's two copies: bounded,
/// round trips of 1 MiB took a third to a half of the time, and streams of it ran at twice the rate. (Of bare sockets, 384, 256, 192
/// and 128 KiB made a round trip of 1 MiB 7, 9, 11 and 14 % longer, one of 4 MiB 1, 4, 9 and 12 %, and one of 256 KiB no shorter than
/// it varies. A bound on what the receiving side holds made 4 MiB slower over io_uring. A bound of 528 to 1024 KiB, with which 1 MiB
/// and its header leave in one call rather than two, made a round trip of them 8 to 24 % longer.)
const LOCAL_SEND_BYTES: usize = 512 << 10;

/// Sets a connected socket up: small messages leave at once, and within one host the kernel holds no more than caches do.
/// Connections between hosts keep the kernel's own sizing, which follows the network's delay.
///
/// Nothing else made a bare round trip within one host shorter by more than it varies, 4 %: the kernel's own send buffer, reno or
/// cubic for bbr, longer pauses between looks, system calls past the C library, a process of one thread. To ask first, by `poll` or
/// `FIONREAD`, made it longer, 5 % at 4 KiB and 7 % at 64 KiB. (Medians of five interleaved rounds that spin; 4 KiB takes 8.0 µs.)
/// So did sending in pieces, that the other side may copy the first while this one copies the next: 64 KiB in two took 1.11 to 1.14
/// of the time and in four 1.46, 1 MiB in pieces of 32 to 256 KiB 1.3 to 1.8. The calls cost more than overlapping saves.
///
/// # Errors
/// What the system says of a socket that is not connected any more.
pub fn set_up(socket: &socket2::SockRef<'_>) -> std::io::Result<()> {
    socket.set_tcp_nodelay(true)?;
    let probes = TcpKeepalive::new().with_time(PROBE_AFTER).with_interval(PROBE_AFTER);
    socket.set_tcp_keepalive(&probes)?;
    give_up_after(socket, SILENCE_MAX)?;
    let ip = |address: socket2::SockAddr| address.as_socket().map(|address| address.ip());
    if ip(socket.local_addr()?) == ip(socket.peer_addr()?) {
        socket.set_send_buffer_size(LOCAL_SEND_BYTES)?;
    }
    Ok(())
}

/// A connection on which nothing comes for so long is probed, and then as often.
const PROBE_AFTER: Duration = Duration::from_secs(10);

/// How long a host may not answer before its connections are taken to be broken. The kernel counts the time as well in which a
/// process reads nothing and the window is full: one that is stopped for a while, or computes, shall not lose its lanes.
const SILENCE_MAX: Duration = Duration::from_secs(120);

/// Bounds how long what was sent, or a probe, may stay unanswered; without it the kernel goes on for a quarter of an hour.
#[cfg(target_os = "linux")]
fn give_up_after(socket: &socket2::SockRef<'_>, silence: Duration) -> std::io::Result<()> {
    socket.set_tcp_user_timeout(Some(silence))
}

#[cfg(not(target_os = "linux"))]
fn give_up_after(_: &socket2::SockRef<'_>, _: Duration) -> std::io::Result<()> {
    Ok(()) // only Linux has a bound of this kind
}

/// Zero bytes that follow `len` bytes of a unit.
fn padding(len: usize) -> usize {
    len.wrapping_neg() % ALIGN
}

fn prefix(kind: u8, at: u16, len: u32, word: u64) -> [u8; FRAME_PREFIX] {
    let mut bytes = [0; FRAME_PREFIX];
    bytes[0] = kind;
    bytes[2..4].copy_from_slice(&at.to_le_bytes());
    bytes[4..8].copy_from_slice(&len.to_le_bytes());
    bytes[8..].copy_from_slice(&word.to_le_bytes());
    bytes
}
