//! How frames and writes travel on a byte stream: framing without I/O.
//!
//! A stream begins with a [handshake](crate::handshake); then units follow, each at a multiple of 8
//! bytes, of an encrypted lane in sealed messages (`sealed.rs`):
//!
//! ```text
//! frame    [kind 1, 0][0 u16][len u32][0 u64]            frame bytes, zero padding to 8
//! write    [kind 2, 0][at u16][len u32][offer key u64]   data bytes, zero padding to 8
//! refusal  [kind 3, 0][0 u16][len u32][0 u64]            UTF-8 reason, zero padding to 8; ends it
//! ```
//!
//! [`Sender`] queues units and lists the slices to hand to the socket; a frame is sent from where
//! it lies, and so are the parts of a write. [`Receiver`] says where the next bytes shall go:
//! frames into a staging buffer, out of which they are cut without copying; the data of a write
//! straight into the memory that was offered for it, in one call with its prefix where it can be
//! told what comes (see [`Receiver::spaces_ahead`]).
//!
//! Path: worker > slicer > filter > message > codec > endpoint > transport (socket, **framing**).

mod receive;
mod sealed;
mod send;
#[cfg(test)]
mod tests;

pub use receive::{Receiver, Reply, Spaces};
pub use send::Sender;

use crate::transport::FRAME_PREFIX;

const FRAME: u8 = 1;
const WRITE: u8 = 2;
const REFUSAL: u8 = 3;

/// Units, and so the frames in a staging buffer, start at multiples of this.
const ALIGN: usize = 8;

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
