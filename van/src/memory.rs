//! Registered memory: pools of slots, and owned parts of them.
//!
//! A [`Pool`] belongs to one thread. It hands out [`Buffer`]s, parts of slots that exactly one owner may write. A `Buffer`
//! can be split into disjoint `Buffer`s, or turned into a [`Shared`], which many may read. When the last part of a slot is
//! dropped the slot goes back to its pool: nothing is freed, and nothing is allocated the next time. Vans take buffers by
//! value and drop them when the bytes have left, so nobody waits for a buffer to "come back". Memory of the user's own makes a
//! slot, too: a vector, which is taken over, or a `Bytes`, which is only read.
//!
//! Path: worker > slicer > filter > message > **memory** > endpoint > transport.

use std::alloc::{Layout, alloc_zeroed, dealloc, handle_alloc_error};
use std::cell::{Cell, RefCell};
use std::fmt;
use std::ops::{Bound, Deref, DerefMut, RangeBounds};
use std::ptr::NonNull;
use std::rc::{Rc, Weak};

use bytes::Bytes;

use crate::error::{Error, Result};
use registration::Registrations;
pub use registration::{Registrar, Registration};

mod registration;

/// Every slot starts at a multiple of this many bytes: a page, as NICs and the kernel like it.
pub const SLOT_ALIGN: usize = 4096;

/// Smallest slot, in bytes. A power of two.
const SLOT_MIN: usize = 512;

/// Slots up to this size are cut from shared arenas of this size; larger ones stand alone.
const ARENA_BYTES: usize = 1 << 20;

/// Number of size classes: powers of two from [`SLOT_MIN`] up to the address space.
const CLASSES: usize = (usize::BITS - SLOT_MIN.trailing_zeros()) as usize;

/// A thread's registered memory, in slots of power-of-two sizes, up to a limit in bytes.
///
/// Cheap to clone: clones hand out the same memory.
#[derive(Clone)]
pub struct Pool(Rc<Shelf>);

struct Shelf {
    /// Free slots, one list a size class.
    free: [RefCell<Vec<Rc<Slot>>>; CLASSES],
    bytes_reserved: Cell<usize>,
    bytes_max: usize,
    /// Whom every arena is registered with.
    registrar: Option<Rc<dyn Registrar>>,
}

impl Pool {
    /// A pool that reserves at most `bytes_max` bytes, none of them yet.
    pub fn new(bytes_max: usize) -> Self {
        Pool::with(bytes_max, None)
    }

    /// Likewise, and every arena is registered with `registrar` as it is made.
    pub fn registered(bytes_max: usize, registrar: Rc<dyn Registrar>) -> Self {
        Pool::with(bytes_max, Some(registrar))
    }

    fn with(bytes_max: usize, registrar: Option<Rc<dyn Registrar>>) -> Self {
        let free = std::array::from_fn(|_| RefCell::new(Vec::new()));
        Pool(Rc::new(Shelf { free, bytes_reserved: Cell::new(0), bytes_max, registrar }))
    }

    /// Lends `len` bytes, 8-byte aligned or better; a reused slot keeps its former contents.
    ///
    /// # Errors
    /// [`Error::OutOfMemory`] when the pool would outgrow its limit; the registrar's when it refuses another arena.
    pub fn allocate(&self, len: usize) -> Result<Buffer> {
        let class = class_of(len).ok_or(self.out_of_memory(len))?;
        let free = self.0.free[class].borrow_mut().pop();
        let slot = match free {
            Some(slot) => slot,
            None => self.grow(class, len)?,
        };
        Ok(Buffer(Part { slot, start: 0, len }))
    }

    /// Bytes taken from the system so far, free or lent.
    pub fn bytes_reserved(&self) -> usize {
        self.0.bytes_reserved.get()
    }

    /// The limit given to [`Pool::new`].
    pub fn bytes_max(&self) -> usize {
        self.0.bytes_max
    }

    /// Reserves one more arena of `class`, keeps its other slots, and returns the first.
    fn grow(&self, class: usize, len: usize) -> Result<Rc<Slot>> {
        let size = SLOT_MIN << class;
        let bytes = size.max(ARENA_BYTES.min(self.0.bytes_max));
        let reserved = self.bytes_reserved();
        if bytes > self.0.bytes_max.saturating_sub(reserved) {
            return Err(self.out_of_memory(len));
        }
        let arena = Rc::new(Region::zeroed(bytes)?);
        if let Some(registrar) = &self.0.registrar {
            arena.local_key(&**registrar)?;
        }
        self.0.bytes_reserved.set(reserved + bytes);
        let mut slots = (0..bytes / size).map(|i| {
            let (arena, pool) = (arena.clone(), Rc::downgrade(&self.0));
            Rc::new(Slot {
                offset: i * size,
                capacity: size,
                memory: Memory::Arena(arena),
                class,
                pool,
            })
        });
        let first = slots.next().ok_or(self.out_of_memory(len))?;
        self.0.free[class].borrow_mut().extend(slots);
        Ok(first)
    }

    fn out_of_memory(&self, wanted: usize) -> Error {
        Error::OutOfMemory { wanted, reserved: self.bytes_reserved(), limit: self.bytes_max() }
    }
}

impl fmt::Debug for Pool {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Pool({} of {} bytes)", self.bytes_reserved(), self.bytes_max())
    }
}

fn class_of(len: usize) -> Option<usize> {
    let size =
        len.max(SLOT_MIN).checked_next_power_of_two().filter(|&s| s <= isize::MAX as usize)?;
    Some((size.trailing_zeros() - SLOT_MIN.trailing_zeros()) as usize)
}

/// Memory that stays in one place: an arena, from which a pool cuts slots, or what a user brought.
struct Region {
    registrations: Registrations, // gone before the memory is: fields drop from the top
    base: NonNull<u8>,
    len: usize,
    /// Whether it may be written once no other part of it is out; not if the user may read it still.
    writable: bool,
    /// Owns the memory and keeps it in place.
    _owner: Box<dyn std::any::Any>,
}

impl Region {
    fn new(base: NonNull<u8>, len: usize, writable: bool, owner: Box<dyn std::any::Any>) -> Self {
        Region { registrations: Registrations::default(), base, len, writable, _owner: owner }
    }

    fn zeroed(bytes: usize) -> Result<Self> {
        let pages = Pages::zeroed(bytes)?;
        Ok(Region::new(pages.base, bytes, true, Box::new(pages)))
    }

    fn local_key(&self, registrar: &dyn Registrar) -> Result<u32> {
        self.registrations.local_key(registrar, (self.base, self.len), self.writable)
    }
}

/// Pages taken from the system in one piece.
struct Pages {
    base: NonNull<u8>,
    layout: Layout,
}

impl Pages {
    fn zeroed(bytes: usize) -> Result<Self> {
        let layout = Layout::from_size_align(bytes, SLOT_ALIGN).map_err(|_| {
            Error::OutOfMemory { wanted: bytes, reserved: 0, limit: isize::MAX as usize }
        })?;
        assert!(bytes > 0, "an arena holds at least one slot");
        // SAFETY: `layout` has a size above zero, checked in the line above.
        let base = unsafe { alloc_zeroed(layout) };
        let Some(base) = NonNull::new(base) else { handle_alloc_error(layout) };
        Ok(Pages { base, layout })
    }
}

impl Drop for Pages {
    fn drop(&mut self) {
        // SAFETY: `base` came from `alloc_zeroed` with this very layout, and this runs once. Every `Part` holds its slot and
        // every slot the region of these pages, so no part of it is left.
        unsafe { dealloc(self.base.as_ptr(), self.layout) }
    }
}

/// Where a slot's bytes live.
enum Memory {
    Arena(Rc<Region>),
    User(Region),
}

/// A piece of memory that is lent as a whole; its reference count says whether any part of it is out.
struct Slot {
    memory: Memory,
    offset: usize,
    capacity: usize,
    class: usize,
    pool: Weak<Shelf>,
}

impl Slot {
    fn region(&self) -> &Region {
        match &self.memory {
            Memory::Arena(region) => region,
            Memory::User(region) => region,
        }
    }

    fn base(&self) -> NonNull<u8> {
        // SAFETY: `offset + capacity` is within the region: `Pool::grow` cuts it into equal slots, and a user's memory is one.
        unsafe { self.region().base.add(self.offset) }
    }
}

/// `len` bytes of a slot from `start`. Whether others may overlap is decided by the wrapper: [`Buffer`] or [`Shared`].
struct Part {
    slot: Rc<Slot>,
    start: usize,
    len: usize,
}

impl Part {
    fn pointer(&self) -> *mut u8 {
        debug_assert!(self.start + self.len <= self.slot.capacity, "a part lies in its slot");
        // SAFETY: `start + len <= capacity`: `allocate`, `adopt` and `From<Bytes>` begin with no more than the whole slot, and
        // every split and slice is checked against `len` before it narrows the part.
        unsafe { self.slot.base().as_ptr().add(self.start) }
    }

    fn bytes(&self) -> &[u8] {
        // SAFETY: the range lies in a live, initialised allocation (`pointer`). Nobody writes it while the borrow lasts: a
        // `Buffer`'s range belongs to it alone, a `Shared`'s range is never written, and what a `Bytes` holds cannot change
        // while a handle to it lives, which the slot keeps.
        unsafe { std::slice::from_raw_parts(self.pointer(), self.len) }
    }

    fn narrow(&self, start: usize, len: usize) -> Part {
        assert!(
            start <= self.len && len <= self.len - start,
            "{start}+{len} lies outside a part of {}",
            self.len
        );
        Part { slot: self.slot.clone(), start: self.start + start, len }
    }

    /// Whether its owner may write it: no other part of the slot is out, here or, for a user's memory, with the user.
    fn is_exclusive(&self) -> bool {
        Rc::strong_count(&self.slot) == 1 && self.slot.region().writable
    }
}

impl Drop for Part {
    fn drop(&mut self) {
        if Rc::strong_count(&self.slot) == 1
            && let Some(pool) = self.slot.pool.upgrade()
        {
            pool.free[self.slot.class].borrow_mut().push(self.slot.clone());
        }
    }
}

/// An owned part of registered memory that nobody else can read or write.
pub struct Buffer(Part);

impl Buffer {
    /// Takes over a vector of plain numbers without copying it, so that messages can be sent from it or land in it.
    pub fn adopt<V>(values: Vec<V>) -> Buffer
    where
        V: zerocopy::IntoBytes + zerocopy::FromBytes + zerocopy::Immutable + 'static,
    {
        let mut values = values;
        let bytes = values.as_mut_slice();
        let (base, len) = (bytes.as_mut_ptr(), std::mem::size_of_val(bytes));
        let base = NonNull::new(base.cast::<u8>()).expect("a vector's pointer is never null");
        // The vector's heap block does not move when the vector itself is boxed.
        let memory = Memory::User(Region::new(base, len, true, Box::new(values)));
        let slot = Slot { memory, offset: 0, capacity: len, class: 0, pool: Weak::new() };
        Buffer(Part { slot: Rc::new(slot), start: 0, len })
    }

    /// Cuts off and returns the first `at` bytes; `self` keeps the rest.
    ///
    /// # Panics
    /// If `at` is past the end.
    pub fn split_to(&mut self, at: usize) -> Buffer {
        let head = self.0.narrow(0, at);
        self.0.start += at;
        self.0.len -= at;
        Buffer(head)
    }

    /// Cuts off and returns what follows the first `at` bytes; `self` keeps those.
    ///
    /// # Panics
    /// If `at` is past the end.
    pub fn split_off(&mut self, at: usize) -> Buffer {
        let tail = self.0.narrow(at, self.0.len.saturating_sub(at));
        self.0.len = at;
        Buffer(tail)
    }

    /// Gives up everything past the first `len` bytes; no effect when it is no longer than that.
    pub fn truncate(&mut self, len: usize) {
        self.0.len = self.0.len.min(len);
    }

    /// Puts `tail` back behind `self`, of which it was split off.
    ///
    /// # Errors
    /// Hands `tail` back when it is not what follows `self` in the same slot.
    pub fn join(&mut self, tail: Buffer) -> std::result::Result<(), Buffer> {
        let follows =
            Rc::ptr_eq(&self.0.slot, &tail.0.slot) && self.0.start + self.0.len == tail.0.start;
        if !follows {
            return Err(tail);
        }
        self.0.len += tail.0.len;
        Ok(())
    }

    /// The key under which `registrar` knows the region this lies in: an arena, or memory that a user brought.
    ///
    /// A region that it does not know yet, for example a user's or an arena of a plain pool, is registered now and stays so as
    /// long as it lives: a vector or a [`Bytes`] until its last part goes. Empty memory needs no key; it is 0.
    ///
    /// # Errors
    /// The registrar's; nothing has changed then.
    pub fn local_key(&self, registrar: &dyn Registrar) -> Result<u32> {
        self.0.slot.region().local_key(registrar)
    }

    /// From now on anybody may read it and nobody write it.
    pub fn share(self) -> Shared {
        Shared(self.0)
    }
}

impl Deref for Buffer {
    type Target = [u8];
    fn deref(&self) -> &[u8] {
        self.0.bytes()
    }
}

impl DerefMut for Buffer {
    fn deref_mut(&mut self) -> &mut [u8] {
        // SAFETY: the range lies in a live, initialised allocation, and no other part overlaps it: a `Buffer` begins as the
        // only part of its slot and is only ever cut into disjoint ones. The memory is not read-only: `allocate` and `adopt`
        // take none that is, and `reclaim` refuses it.
        unsafe { std::slice::from_raw_parts_mut(self.0.pointer(), self.0.len) }
    }
}

impl fmt::Debug for Buffer {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Buffer({} bytes)", self.len())
    }
}

/// A part of registered memory that many may read. Clones and slices copy no bytes.
#[derive(Clone)]
pub struct Shared(Part);

impl Clone for Part {
    fn clone(&self) -> Self {
        Part { slot: self.slot.clone(), start: self.start, len: self.len }
    }
}

impl Shared {
    /// The bytes in `range`, without copying them.
    ///
    /// # Panics
    /// If `range` reaches past the end.
    pub fn slice(&self, range: impl RangeBounds<usize>) -> Shared {
        let start = match range.start_bound() {
            Bound::Included(&s) => s,
            Bound::Excluded(&s) => s + 1,
            Bound::Unbounded => 0,
        };
        let end = match range.end_bound() {
            Bound::Included(&e) => e + 1,
            Bound::Excluded(&e) => e,
            Bound::Unbounded => self.len(),
        };
        Shared(self.0.narrow(start, end.saturating_sub(start)))
    }

    /// The key under which `registrar` knows the region this lies in: an arena, or memory that a user brought.
    ///
    /// As [`Buffer::local_key`]; memory of a [`Bytes`] is registered for reading only.
    ///
    /// # Errors
    /// The registrar's; nothing has changed then.
    pub fn local_key(&self, registrar: &dyn Registrar) -> Result<u32> {
        self.0.slot.region().local_key(registrar)
    }

    /// Takes it back for writing.
    ///
    /// # Errors
    /// Hands it back while any other part of its slot is out, a van that still sends from it included; always when it came
    /// from a [`Bytes`], which nobody may write.
    pub fn reclaim(self) -> std::result::Result<Buffer, Shared> {
        if self.0.is_exclusive() { Ok(Buffer(self.0)) } else { Err(self) }
    }

    /// The bytes for writing: in place when nobody else holds them, else in a fresh copy, so that readers keep what they saw.
    /// Those of a [`Bytes`] are always copied.
    ///
    /// # Errors
    /// [`Error::OutOfMemory`] when a copy is needed and `pool` has no room for it.
    pub fn make_mut(&mut self, pool: &Pool) -> Result<&mut [u8]> {
        if !self.0.is_exclusive() {
            let mut copy = pool.allocate(self.len())?;
            copy.copy_from_slice(self);
            self.0 = copy.share().0;
        }
        // SAFETY: as in `Buffer::deref_mut`; this is the only part of a slot that is not read-only, as was just asked or
        // because it is a new one of `pool`.
        Ok(unsafe { std::slice::from_raw_parts_mut(self.0.pointer(), self.0.len) })
    }
}

/// Sends from memory that the user holds as a [`Bytes`] and goes on reading, without a copy.
///
/// It is read-only: [`Shared::reclaim`] never gives it back, and [`Shared::make_mut`] copies it. It may start at any address,
/// aligned or not: the receiver's memory is what values are viewed in. The `Bytes` lives as long as any part of this does.
impl From<Bytes> for Shared {
    fn from(bytes: Bytes) -> Shared {
        let (base, len) = (NonNull::from(&bytes[..]).cast::<u8>(), bytes.len());
        // A `Bytes` points to its memory, which stays where it is when the `Bytes` itself moves into the box. It cannot turn
        // into a `BytesMut` there, and other handles cannot while this one lives.
        let memory = Memory::User(Region::new(base, len, false, Box::new(bytes)));
        let slot = Slot { memory, offset: 0, capacity: len, class: 0, pool: Weak::new() };
        Shared(Part { slot: Rc::new(slot), start: 0, len })
    }
}

impl Deref for Shared {
    type Target = [u8];
    fn deref(&self) -> &[u8] {
        self.0.bytes()
    }
}

impl fmt::Debug for Shared {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Shared({} bytes)", self.len())
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, reason = "tests")]
    use std::sync::Arc;
    use std::sync::atomic::{AtomicBool, Ordering};

    use super::*;

    #[test]
    fn a_slot_comes_back_when_its_last_part_goes() {
        let pool = Pool::new(1 << 20);
        let mut whole = pool.allocate(1000).unwrap();
        let address = whole.as_ptr();
        let head = whole.split_to(100).share();
        drop(whole);
        assert_ne!(pool.allocate(1000).unwrap().as_ptr(), address, "a part of it is still out");
        drop(head);
        assert_eq!(pool.allocate(1000).unwrap().as_ptr(), address);
        assert_eq!(pool.bytes_reserved(), 1 << 20);
    }

    #[test]
    fn the_limit_holds_and_names_the_numbers() {
        let pool = Pool::new(1 << 20);
        let held = pool.allocate(1 << 20).unwrap();
        let error = pool.allocate(8).unwrap_err();
        assert!(
            matches!(error, Error::OutOfMemory { wanted: 8, limit, .. } if limit == 1 << 20),
            "{error}"
        );
        drop(held);
        assert!(pool.allocate(1 << 20).is_ok());
        assert!(pool.allocate(usize::MAX).is_err());
    }

    #[test]
    fn split_and_join_are_inverse() {
        let pool = Pool::new(1 << 20);
        let mut a = pool.allocate(64).unwrap();
        a.iter_mut().zip(0..).for_each(|(b, i)| *b = i);
        let mut c = a.split_off(40);
        let b = a.split_off(10);
        assert_eq!((a.len(), b.len(), c[0]), (10, 30, 40));
        let c2 = a.join(c).unwrap_err();
        c = c2;
        a.join(b).unwrap();
        a.join(c).unwrap();
        assert_eq!(a.iter().copied().collect::<Vec<_>>(), (0..64).collect::<Vec<u8>>());
    }

    #[test]
    fn writing_what_others_read_copies_it_first() {
        let pool = Pool::new(1 << 20);
        let mut stored = pool.allocate(8).unwrap();
        stored.fill(1);
        let mut stored = stored.share();
        let in_place = stored.as_ptr();
        stored.make_mut(&pool).unwrap().fill(2);
        assert_eq!(stored.as_ptr(), in_place);
        let reader = stored.clone();
        stored.make_mut(&pool).unwrap().fill(3);
        assert_eq!((reader[0], stored[0]), (2, 3));
        assert!(reader.reclaim().is_ok());
    }

    #[test]
    fn a_vector_is_adopted_in_place() {
        let values = vec![1.0f32, 2.0, 3.0];
        let address = values.as_ptr().cast::<u8>();
        let buffer = Buffer::adopt(values);
        assert_eq!((buffer.as_ptr(), buffer.len()), (address, 12));
        assert_eq!(Buffer::adopt(Vec::<f64>::new()).len(), 0);
    }

    #[test]
    fn bytes_are_sent_from_where_they_lie_and_never_written() {
        let pool = Pool::new(1 << 20);
        let bytes = Bytes::from(vec![7u8; 100]);
        let mut shared = Shared::from(bytes.clone());
        assert_eq!(shared.as_ptr(), bytes.as_ptr());
        shared = shared.reclaim().expect_err("the user holds it, too");
        shared.make_mut(&pool).unwrap().fill(8);
        assert_eq!((bytes[0], shared[0]), (7, 8));
        assert!(shared.reclaim().is_ok(), "the copy is memory of the pool");
        assert!(bytes.is_unique(), "the copy does not hold on to what it was made from");
    }

    #[test]
    fn bytes_that_nobody_else_holds_are_not_written_either() {
        let pool = Pool::new(1 << 20);
        let sources = [Bytes::from_static(b"text of the program"), Bytes::from(vec![1u8; 19])];
        for bytes in sources {
            let (address, first) = (bytes.as_ptr(), bytes[0]);
            let mut shared = Shared::from(bytes);
            for part in [shared.slice(..), shared.slice(3..5), shared.slice(19..)] {
                assert!(part.reclaim().is_err());
            }
            shared = shared.reclaim().unwrap_err();
            let mut part = shared.slice(..1);
            assert_eq!(shared.as_ptr(), address);
            drop(shared);
            let written = part.make_mut(&pool).unwrap();
            assert_eq!(written, [first]);
            assert_ne!(written.as_ptr(), address);
        }
    }

    #[test]
    fn copying_bytes_for_writing_needs_room() {
        let mut shared = Shared::from(Bytes::from(vec![1u8; 4096]));
        assert!(matches!(shared.make_mut(&Pool::new(0)), Err(Error::OutOfMemory { .. })));
        assert_eq!(shared[..], [1; 4096], "it is what it was");
    }

    #[test]
    fn bytes_live_until_their_last_part_goes() {
        /// Says when it is let go.
        struct Owner(Vec<u8>, Arc<AtomicBool>);
        impl AsRef<[u8]> for Owner {
            fn as_ref(&self) -> &[u8] {
                &self.0
            }
        }
        impl Drop for Owner {
            fn drop(&mut self) {
                self.1.store(true, Ordering::Relaxed);
            }
        }
        let gone = Arc::new(AtomicBool::new(false));
        let shared = Shared::from(Bytes::from_owner(Owner(vec![1, 2, 3], gone.clone())));
        let part = shared.slice(2..);
        drop(shared);
        assert!(!gone.load(Ordering::Relaxed));
        assert_eq!(part[..], [3]);
        drop(part);
        assert!(gone.load(Ordering::Relaxed));
    }

    #[test]
    fn bytes_may_lie_anywhere_and_may_be_none() {
        let bytes = Bytes::from((0..64).collect::<Vec<u8>>());
        for start in 0..8 {
            let part = Shared::from(bytes.slice(start..));
            assert_eq!((part.as_ptr(), part.len()), (bytes[start..].as_ptr(), 64 - start));
            assert_eq!(part.slice(..1)[..], [start as u8]);
        }
        let empty = Shared::from(Bytes::new());
        assert_eq!((empty.len(), empty.slice(..).len()), (0, 0));
        assert!(empty.reclaim().is_err());
    }
}
