//! Snappy compression of sections: which to try, which to keep, and how far a received one may
//! expand.
//!
//! Path: worker > slicer > filter > message > **codec** > endpoint > transport.

use super::{DecodeError, Section};
use crate::error::Result;
use crate::memory::{Buffer, Pool};

/// Shorter sections are never tried, because they fit into one or two packets either way.
const SECTION_MIN: usize = 512;

/// Number of untried messages after a try that does not pay. It doubles with each such try in a
/// row, up to [`GAP_MAX`].
const GAP_MIN: u32 = 16;

/// Upper bound of untried messages between two tries, because the data may change.
const GAP_MAX: u32 = 1024;

/// Snappy pays if it saves at least one byte in this many.
const SAVED_MIN: usize = 10;

/// A compressor that learns for each section whether a try pays.
///
/// The first message is tried. While tries pay, every message is compressed. After a try that does
/// not pay, that message and the next [`GAP_MIN`] are sent raw, then twice as many, and so on. Only
/// messages count, so the same messages give the same bytes.
pub(super) struct Compressor {
    encoder: snap::raw::Encoder,
    samplers: [Sampler; 3],
    /// Total number of bytes saved, by delta coding as well.
    pub(super) saved_bytes: u64,
}

impl Compressor {
    pub(super) fn new() -> Compressor {
        let encoder = snap::raw::Encoder::new();
        let samplers = [Sampler::new(); 3];
        Compressor { encoder, samplers, saved_bytes: 0 }
    }

    /// Compresses the bytes of a section in place, if a try is due and pays, and returns the new
    /// length. Otherwise the bytes are unchanged.
    ///
    /// # Errors
    /// [`crate::Error::OutOfMemory`] if `pool` has no room for the work.
    pub(super) fn shrink(
        &mut self,
        section: Section,
        bytes: &mut [u8],
        pool: &Pool,
    ) -> Result<Option<usize>> {
        let room = snap::raw::max_compress_len(bytes.len());
        let sampler = &mut self.samplers[section as usize];
        if bytes.len() < SECTION_MIN || room == 0 || !sampler.is_due() {
            return Ok(None);
        }
        let mut scratch = pool.allocate(room)?;
        let len = self.encoder.compress(bytes, &mut scratch).expect("the room is what it asks for");
        let pays = len <= bytes.len() - bytes.len() / SAVED_MIN;
        sampler.learn(pays);
        if !pays {
            return Ok(None);
        }
        bytes[..len].copy_from_slice(&scratch[..len]);
        self.saved_bytes += (bytes.len() - len) as u64;
        Ok(Some(len))
    }
}

/// When to try next.
#[derive(Clone, Copy)]
struct Sampler {
    /// Number of messages sent raw before the next try.
    skip: u32,
    /// Number of messages sent raw after the next try that does not pay.
    gap: u32,
}

impl Sampler {
    fn new() -> Sampler {
        Sampler { skip: 0, gap: GAP_MIN }
    }

    fn is_due(&mut self) -> bool {
        let due = self.skip == 0;
        self.skip = self.skip.saturating_sub(1);
        due
    }

    fn learn(&mut self, pays: bool) {
        self.skip = if pays { 0 } else { self.gap };
        self.gap = if pays { GAP_MIN } else { (self.gap * 2).min(GAP_MAX) };
    }
}

/// Expands a received section. It allocates only if `wire` can hold the announced length.
///
/// # Errors
/// A [`DecodeError`] for invalid Snappy; out of memory if `pool` has no room.
pub(super) fn expand(section: Section, wire: &[u8], pool: &Pool) -> Result<Buffer> {
    let wire_bytes = wire.len();
    let refuse = |source| DecodeError::Snappy { section, wire_bytes, source };
    let raw_bytes = snap::raw::decompress_len(wire).map_err(refuse)?;
    if raw_bytes as u64 > raw_bytes_max(wire_bytes) {
        return Err(DecodeError::SnappyRatio { section, wire_bytes, raw_bytes }.into());
    }
    let mut raw = pool.allocate(raw_bytes)?;
    snap::raw::Decoder::new().decompress(wire, &mut raw).map_err(refuse)?;
    Ok(raw)
}

/// Upper bound of the bytes that `wire_bytes` bytes of Snappy can stand for.
///
/// The format is a length of at least one byte, then elements. A literal of n bytes takes more than
/// n. A copy of up to 11 bytes takes 2; one of up to 64 bytes takes 3 or, from afar, 5. So no
/// element gives more than 64 bytes for 3.
fn raw_bytes_max(wire_bytes: usize) -> u64 {
    wire_bytes.saturating_sub(1) as u64 * 64 / 3
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, reason = "tests")]
    use super::*;
    use crate::error::Error;

    /// Bytes without repetition, from a multiplicative generator.
    fn noise(len: usize) -> Vec<u8> {
        let mut state = 1u64;
        let mut next = || {
            state = state.wrapping_mul(0x5851_f42d_4c95_7f2d).wrapping_add(1);
            (state >> 56) as u8
        };
        (0..len).map(|_| next()).collect()
    }

    fn shrink(compressor: &mut Compressor, bytes: &[u8]) -> bool {
        let pool = Pool::new(4 << 20);
        let mut place = bytes.to_vec();
        match compressor.shrink(Section::Values, &mut place, &pool).unwrap() {
            Some(len) => {
                assert_eq!(&*expand(Section::Values, &place[..len], &pool).unwrap(), bytes);
                true
            }
            None => {
                assert_eq!(place, bytes);
                false
            }
        }
    }

    #[test]
    fn short_sections_stay_as_they_are() {
        let mut compressor = Compressor::new();
        assert!(!shrink(&mut compressor, &[7; SECTION_MIN - 1]));
        assert!(shrink(&mut compressor, &[7; SECTION_MIN]));
    }

    #[test]
    #[cfg_attr(miri, ignore = "long sections take Miri minutes")]
    fn tries_back_off_while_they_do_not_pay_and_resume_when_they_do() {
        let mut compressor = Compressor::new();
        let noise = noise(4096);
        let mut gap = GAP_MIN;
        for _ in 0..9 {
            assert!(!shrink(&mut compressor, &noise));
            for _ in 0..gap {
                assert!(
                    !shrink(&mut compressor, &[7; 4096]),
                    "not before the gap of {gap} is over"
                );
            }
            gap = (gap * 2).min(GAP_MAX);
        }
        for _ in 0..100 {
            assert!(shrink(&mut compressor, &[7; 4096]));
        }
        assert!(!shrink(&mut compressor, &noise));
        assert!((0..GAP_MIN).all(|_| !shrink(&mut compressor, &[7; 4096])), "the gap starts over");
        assert!(shrink(&mut compressor, &[7; 4096]));
    }

    #[test]
    fn a_tenth_must_be_saved() {
        for (repeated, pays) in [(50, false), (150, true)] {
            let mut bytes = noise(1000);
            bytes[..repeated].fill(0);
            assert_eq!(shrink(&mut Compressor::new(), &bytes), pays, "{repeated} of 1000");
        }
    }

    #[test]
    #[cfg_attr(miri, ignore = "long sections take Miri minutes")]
    fn no_compressed_section_exceeds_the_bound() {
        for len in [1usize, 2, 64, 65, 1000, 65_536, 1 << 20] {
            let wire = snap::raw::Encoder::new().compress_vec(&vec![0; len]).unwrap();
            assert!(len as u64 <= raw_bytes_max(wire.len()), "{len} in {}", wire.len());
        }
        // The densest there is: one byte, then copies of 64.
        let mut wire = vec![0x81, 0x80, 0x04, 0, 9];
        for _ in 0..1024 {
            wire.extend([63 << 2 | 2, 1, 0]);
        }
        assert_eq!(&*expand(Section::Keys, &wire, &Pool::new(1 << 20)).unwrap(), [9; 65_537]);
    }

    #[test]
    #[cfg_attr(miri, ignore = "long sections take Miri minutes")]
    fn announcements_beyond_the_bound_take_no_memory() {
        let pool = Pool::new(1 << 30);
        let error = expand(Section::Values, &[0xff, 0xff, 0xff, 0xff, 0x0f, 0, 9], &pool);
        let expected = DecodeError::SnappyRatio {
            section: Section::Values,
            wire_bytes: 7,
            raw_bytes: u32::MAX as usize,
        };
        assert!(matches!(error, Err(Error::Decode(e)) if e == expected));
        assert_eq!(pool.bytes_reserved(), 0);
    }
}
