//! The messages of a floor: their lengths, which both sides check before they take memory, and
//! their contents.

use anyhow::{Result, ensure};

use crate::cli::values::size;
use crate::measure::subject::Shape;

/// Bytes of header in a request and in a reply.
pub(super) const HEADER_BYTES: usize = 64;
/// Longest request or reply that either side accepts, in bytes.
const MESSAGE_BYTES_MAX: usize = 2 << 30;
/// Most bytes of messages of one kind in flight.
pub(super) const MEMORY_BYTES_MAX: u64 = 8 << 30;

/// Whether the floor can measure such requests.
pub(crate) fn check(shape: Shape) -> Result<()> {
    let Lengths { request, reply } = Lengths::of(shape);
    Lengths::checked(request as u64, reply as u64)?.window_checked(shape.window as u64).map(drop)
}

/// Bytes of a request and of a reply.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Lengths {
    pub(super) request: usize,
    pub(super) reply: usize,
}

impl Lengths {
    pub(super) fn of(shape: Shape) -> Self {
        let values = |carried: bool| if carried { shape.bytes } else { 0 };
        Lengths {
            request: HEADER_BYTES + 8 * shape.keys + values(shape.op.pushes()),
            reply: HEADER_BYTES + values(shape.op.pulls()),
        }
    }

    /// The lengths that the other side asks for.
    pub(super) fn checked(request: u64, reply: u64) -> Result<Self> {
        let range = HEADER_BYTES as u64..=MESSAGE_BYTES_MAX as u64;
        for bytes in [request, reply] {
            ensure!(
                range.contains(&bytes),
                "the floor takes messages of {range:?} bytes, not {bytes}"
            );
        }
        Ok(Lengths { request: request as usize, reply: reply as usize })
    }

    /// The window that the other side asks for.
    pub(super) fn window_checked(&self, window: u64) -> Result<usize> {
        let longest = self.request.max(self.reply);
        let most = MEMORY_BYTES_MAX / longest as u64;
        ensure!(
            (1..=most).contains(&window),
            "a window of {window} messages of up to {longest} bytes is more than the floor holds \
             at a time, {}: take a window of {most} or less",
            size(&(MEMORY_BYTES_MAX as usize))
        );
        Ok(window as usize)
    }
}

/// Whether a reply is the one to request `number`.
pub(super) fn answers(found: u64, number: u64) -> Result<()> {
    ensure!(found == number, "the floor's reply is to request {found}, not {number}");
    Ok(())
}

/// A message in which every byte depends on its place; the first word is for the number.
pub(super) fn patterned(bytes: usize) -> Vec<u8> {
    (0..bytes).map(|at| (at as u32).wrapping_mul(0x9E37_79B1).to_le_bytes()[3]).collect()
}

/// A word of a message.
pub(super) fn word(message: &[u8], at: usize) -> u64 {
    let bytes = message[at * 8..][..8].try_into().expect("eight bytes");
    u64::from_le_bytes(bytes)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::measure::subject::Op;

    #[test]
    fn a_push_and_a_pull_move_the_bytes_of_their_direction() {
        let shape = Shape { op: Op::Push, keys: 3, bytes: 4096, window: 1 };
        assert_eq!(Lengths::of(shape), Lengths { request: 64 + 24 + 4096, reply: 64 });
        let shape = Shape { op: Op::Pull, ..shape };
        assert_eq!(Lengths::of(shape), Lengths { request: 64 + 24, reply: 64 + 4096 });
    }

    #[test]
    fn lengths_out_of_range_are_refused() {
        assert!(Lengths::checked(64, 2 << 30).is_ok());
        for (request, reply) in [(0, 64), (64, 63), (1 << 62, 64), (64, u64::MAX)] {
            assert!(Lengths::checked(request, reply).is_err());
        }
    }

    #[test]
    fn a_reply_to_another_request_is_an_error() {
        assert!(answers(word(&[1; 64], 0), 1).is_err());
        assert!(answers(word(&[1; 64], 0), 0x0101_0101_0101_0101).is_ok());
    }
}
