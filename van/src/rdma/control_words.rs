//! What lanes exchange beside frames: the immediate words of messages and writes, and the message
//! that closes a window.
//!
//! ```text
//! message immediate   [has no frame 1 bit][receive buffers that are free again 31 bits]
//! write immediate     [index of the offer 20 bits][begin / 8 9 bits][earlier pieces 3 bits]
//! closing message     [word of the write u32][0 u32][length u64][last bytes of the write]
//! ```

use zerocopy::little_endian::{U32, U64};
use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout};

use crate::error::Result;
use crate::memory::{Pool, Shared};

/// Longest write that devices take in one piece, in bytes.
pub(super) const CHUNK_BYTES: usize = 1 << 30;

/// The start of the message that closes a window. The last bytes of the write follow if they are
/// few.
#[derive(Debug, Clone, Copy, PartialEq, Eq, FromBytes, IntoBytes, KnownLayout, Immutable)]
#[repr(C)]
pub(super) struct Last {
    notice: U32,
    zero: U32,
    /// Bytes of the write, from first to last.
    len: U64,
}

impl Last {
    /// Reads a closing message; returns its notice, the length of the write and its last bytes.
    ///
    /// # Errors
    /// The reason that it is malformed.
    pub(super) fn read(message: &[u8]) -> Result<(Notice, usize, &[u8]), String> {
        let (last, tail) =
            Last::ref_from_prefix(message).map_err(|_| "it closed a window and said nothing")?;
        let len = usize::try_from(last.len.get()).unwrap_or(usize::MAX);
        if last.zero.get() != 0 || tail.len() > len {
            return Err(format!("it ended a write of {len} bytes by {} more", tail.len()));
        }
        Ok((Notice::from_word(last.notice.get()), len, tail))
    }
}

/// What the immediate word of a write says.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Notice {
    /// The offer's place in its owner's table, 20 bits.
    pub(super) index: u32,
    /// Where in the offered memory the write begins, a multiple of 8: 9 bits.
    pub(super) at: u64,
    /// Number of pieces of [`CHUNK_BYTES`] before the last one, 3 bits.
    pub(super) chunks: u32,
}

impl Notice {
    /// Offers that one transport can have open.
    pub(super) const INDEX_END: u32 = 1 << 20;
    /// Set in the key of an offer whose memory is a window, which the writer closes.
    pub(super) const WINDOW: u32 = 1 << 31;

    pub(super) fn to_word(self) -> u32 {
        self.index << 12 | (self.at as u32 / 8) << 3 | self.chunks
    }

    pub(super) fn from_word(word: u32) -> Notice {
        Notice { index: word >> 12, at: u64::from(word >> 3 & 511) * 8, chunks: word & 7 }
    }

    /// Length of the write whose last piece has `bytes`.
    pub(super) fn len(self, bytes: u32) -> usize {
        self.chunks as usize * CHUNK_BYTES + bytes as usize
    }
}

/// What the immediate word of a message says.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Credits {
    /// Number of receive buffers that are free again.
    pub(super) count: u32,
    /// Whether a frame comes with it.
    pub(super) frame: bool,
}

impl Credits {
    const NO_FRAME: u32 = 1 << 31;

    pub(super) fn to_word(self) -> u32 {
        self.count | if self.frame { 0 } else { Self::NO_FRAME }
    }

    pub(super) fn from_word(word: u32) -> Credits {
        Credits { count: word & !Self::NO_FRAME, frame: word & Self::NO_FRAME == 0 }
    }
}

/// The message that closes the window of a write of `len` bytes; `tail` are its last bytes.
pub(super) fn last(pool: &Pool, notice: Notice, len: u64, tail: &[u8]) -> Result<Shared> {
    const HEAD: usize = size_of::<Last>();
    let mut message = pool.allocate(HEAD + tail.len())?;
    let head = Last { notice: notice.to_word().into(), zero: 0.into(), len: len.into() };
    message[..HEAD].copy_from_slice(head.as_bytes());
    message[HEAD..].copy_from_slice(tail);
    Ok(message.share())
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, reason = "tests")]
    use super::*;

    #[test]
    fn words_carry_what_they_say() {
        for notice in [
            Notice { index: 0, at: 0, chunks: 0 },
            Notice { index: Notice::INDEX_END - 1, at: 4088, chunks: 7 },
            Notice { index: 70_000, at: 8, chunks: 3 },
        ] {
            assert_eq!(Notice::from_word(notice.to_word()), notice);
        }
        assert_eq!(Notice { index: 0, at: 0, chunks: 3 }.len(5), (3 << 30) + 5);
        for (count, frame) in [(0, true), (64, false), (127, true)] {
            let credits = Credits { count, frame };
            assert_eq!(Credits::from_word(credits.to_word()), credits);
        }
    }

    #[test]
    fn what_closes_a_window_is_taken_apart_and_a_wrong_one_refused() {
        let pool = Pool::new(1 << 20);
        let notice = Notice { index: 7, at: 16, chunks: 0 };
        let message = last(&pool, notice, 100, b"the end").unwrap();
        assert_eq!(Last::read(&message).unwrap(), (notice, 100, &b"the end"[..]));
        assert_eq!(Last::read(&message[..16]).unwrap().2, b"");
        assert!(Last::read(&message[..15]).is_err());
        let short = last(&pool, notice, 6, b"the end").unwrap();
        assert!(Last::read(&short).unwrap_err().contains("6 bytes by 7"));
    }
}
