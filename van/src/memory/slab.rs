//! Short frames that share one slot, so that the pool is asked once for many of them.
//!
//! Path: worker > slicer > filter > message > **memory** > endpoint > transport.

use std::rc::Rc;

use super::{Buffer, Part, Pool};

/// Bytes of the shared slot. A single frame in use keeps all of it, so it is not much longer than a
/// frame.
const SLAB_BYTES: usize = 1 << 10;

/// The slot that frames are cut from.
#[derive(Debug)]
pub(crate) struct Slab(Buffer);

impl Slab {
    /// A slab without memory yet.
    pub(crate) fn new() -> Slab {
        Slab(Buffer::adopt(Vec::<u8>::new()))
    }

    /// The place of the next frame; `None` if `pool` has no room.
    #[inline(always)]
    pub(crate) fn place<const LEN: usize>(&mut self, pool: &Pool) -> Option<&mut [u8; LEN]> {
        const { assert!(LEN <= SLAB_BYTES && LEN.is_multiple_of(8)) };
        if self.0.len() < LEN && !self.renew(pool) {
            return None;
        }
        self.0.first_chunk_mut()
    }

    /// Cuts off the place of a frame and returns its first `len` bytes.
    ///
    /// # Panics
    /// If there is no such place, or it is shorter.
    #[inline(always)] // like `Pool::allocate`
    pub(crate) fn cut<const LEN: usize>(&mut self, len: usize) -> Buffer {
        let rest = &mut self.0.0;
        let (slot, start) = (rest.slot.clone(), rest.start);
        rest.advance(LEN);
        assert!(len <= LEN, "a frame lies in its place");
        Buffer(Part { slot, start, len })
    }

    /// Reuses the slot if no frame of it is left, else takes another; false if the pool has none.
    #[inline(never)]
    fn renew(&mut self, pool: &Pool) -> bool {
        let rest = &mut self.0.0;
        if Rc::strong_count(&rest.slot) == 1 && rest.slot.capacity >= SLAB_BYTES {
            (rest.start, rest.len) = (rest.slot.base, SLAB_BYTES);
            return true;
        }
        pool.allocate(SLAB_BYTES).map(|slot| self.0 = slot).is_ok()
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, reason = "tests")]
    use super::*;

    fn cut(slab: &mut Slab, pool: &Pool) -> Option<Buffer> {
        slab.place::<128>(pool)?.fill(1);
        Some(slab.cut::<128>(100))
    }

    #[test]
    fn frames_share_a_slot_that_begins_anew_once_all_are_gone() {
        let (pool, mut slab) = (Pool::new(1 << 20), Slab::new());
        let round = |slab: &mut Slab| -> Vec<_> {
            (0..SLAB_BYTES / 128).map(|_| cut(slab, &pool).unwrap()).collect()
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
        assert!(cut(&mut slab, &Pool::new(512)).is_none());
        assert!(cut(&mut slab, &Pool::new(1 << 20)).is_some());
    }
}
