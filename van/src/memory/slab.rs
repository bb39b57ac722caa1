//! Short frames that share one slot, so that the pool is asked once for many of them.
//!
//! Path: worker > slicer > filter > message > **memory** > endpoint > transport.

use std::rc::Rc;

use super::{Buffer, Pool};
use crate::error::Result;

/// Bytes of the shared slot. A single frame in use keeps all of it, so it is not much longer than a
/// frame.
const SLAB_BYTES: usize = 1 << 10;

/// Longest frame that shares the slot, in bytes, and the place of each.
const SHORT_BYTES_MAX: usize = 128;

/// The slot that short frames are cut from.
#[derive(Debug)]
pub(crate) struct Slab(Buffer);

impl Slab {
    /// A slab without memory yet.
    pub(crate) fn new() -> Slab {
        Slab(Buffer::adopt(Vec::<u8>::new()))
    }

    /// Lends `len` bytes like [`Pool::allocate`]; short ones share a slot.
    ///
    /// # Errors
    /// As [`Pool::allocate`].
    #[inline(always)] // like `Pool::allocate`
    pub(crate) fn allocate(&mut self, len: usize, pool: &Pool) -> Result<Buffer> {
        if len > SHORT_BYTES_MAX {
            return pool.allocate(len);
        }
        if self.0.len() < SHORT_BYTES_MAX {
            self.renew(pool)?;
        }
        let mut frame = self.0.split_to(SHORT_BYTES_MAX);
        frame.truncate(len);
        Ok(frame)
    }

    /// Reuses the slot if no frame of it is left, else takes another.
    #[inline(never)]
    fn renew(&mut self, pool: &Pool) -> Result<()> {
        let rest = &mut self.0.0;
        if Rc::strong_count(&rest.slot) == 1 && rest.slot.capacity >= SLAB_BYTES {
            (rest.start, rest.len) = (rest.slot.base, SLAB_BYTES);
        } else {
            self.0 = pool.allocate(SLAB_BYTES)?;
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, reason = "tests")]
    use super::*;

    #[test]
    fn frames_share_a_slot_that_begins_anew_once_all_are_gone() {
        let (pool, mut slab) = (Pool::new(1 << 20), Slab::new());
        let round = |slab: &mut Slab| -> Vec<_> {
            (0..SLAB_BYTES / 128).map(|_| slab.allocate(100, &pool).unwrap()).collect()
        };
        let first = round(&mut slab);
        let begin = first[0].as_ptr();
        for (at, frame) in first.iter().enumerate() {
            assert_eq!((frame.as_ptr(), frame.len()), (begin.wrapping_add(128 * at), 100));
        }
        drop(first);
        let mut second = round(&mut slab);
        assert_eq!(second[0].as_ptr(), begin, "nobody has any of it");
        let mut kept = second.pop().unwrap();
        drop(second);
        kept.fill(7);
        for mut frame in round(&mut slab) {
            frame.fill(9);
        }
        assert!(kept.iter().all(|&byte| byte == 7), "somebody has the last");
        drop((kept, slab));
        let free: Vec<_> = (0..2).map(|_| pool.allocate(SLAB_BYTES).unwrap()).collect();
        assert!(free.iter().any(|slot| slot.as_ptr() == begin), "it came home");
    }

    #[test]
    fn a_pool_without_room_says_so() {
        let mut slab = Slab::new();
        assert!(slab.allocate(100, &Pool::new(512)).is_err());
        assert!(slab.allocate(100, &Pool::new(1 << 20)).is_ok());
    }
}
