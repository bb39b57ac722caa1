//! Registered memory: pools of slots, and owned parts of them.
//!
//! A [`Pool`] belongs to one thread. It hands out [`Buffer`]s: parts of slots with exactly one
//! owner, who may write them. A `Buffer` can be split into disjoint `Buffer`s, or turned into a
//! [`Shared`], which many may read. When the last part of a slot is dropped, the slot returns to
//! its pool: nothing is freed, and the next use allocates nothing. Vans take buffers by value and
//! drop them when the bytes have left, so nobody waits for a buffer to "come back". A user's own
//! memory makes a slot too: a vector is taken over, a `Bytes` is only read.
//!
//! Slots lie in regions: the arenas of a pool, or a user's memory. A device registers a region
//! once, as a whole, when the pool creates it or when the device first needs it. The registration
//! lasts as long as the region: see [`Registrar`] and [`Buffer::local_key`].
//!
//! Path: worker > slicer > filter > message > **memory** > endpoint > transport.

use std::fmt;
use std::ops::{Bound, Deref, DerefMut, RangeBounds};
use std::ptr::NonNull;
use std::rc::{Rc, Weak};

use bytes::Bytes;
use caravan_numa::{HUGE_PAGE_BYTES, PAGE_BYTES, PageSource, Pages, PagesError};

use crate::error::Result;
pub use account::Account;
pub use pool::Pool;
use pool::Shelf;
use registration::Registrations;
pub use registration::{Registrar, Registration};
#[cfg(target_os = "linux")]
pub(crate) use slab::Slab;
#[cfg(target_os = "linux")]
pub(crate) use views::Views;

mod account;
pub mod long;
mod pool;
mod registration;
#[cfg(target_os = "linux")]
mod slab;
#[cfg(target_os = "linux")]
mod views;

/// Slots of at least this size start at a multiple of it. It is a page, which NICs and the kernel
/// handle best.
pub const SLOT_ALIGN: usize = PAGE_BYTES;

/// Prefetches the cache line of `address`, for loops over distant memory, where the hardware
/// prefetcher stops at the end of a page. It is only a hint and reads nothing, so any address is
/// allowed.
#[inline(always)]
pub fn prefetch<T>(address: *const T) {
    #[cfg(target_arch = "x86_64")]
    {
        use std::arch::x86_64::{_MM_HINT_T0, _mm_prefetch};
        // SAFETY: a prefetch is a hint: it makes no access and cannot fault, whatever the address.
        unsafe { _mm_prefetch::<_MM_HINT_T0>(address.cast()) };
    }
    #[cfg(not(target_arch = "x86_64"))]
    let _ = address;
}

/// Memory that stays in one place: an arena, from which a pool cuts slots, or a user's memory.
struct Region {
    registrations: Registrations, // dropped before the memory: fields drop in order
    base: NonNull<u8>,
    len: usize,
    /// Whether its sole owner may write it; false if the user may still read it.
    writable: bool,
    /// Owns the memory and keeps it in place.
    owner: Box<dyn std::any::Any>,
}

impl Region {
    fn new(base: NonNull<u8>, len: usize, writable: bool, owner: Box<dyn std::any::Any>) -> Self {
        Region { registrations: Registrations::default(), base, len, writable, owner }
    }

    /// Creates a zeroed arena of `len` bytes.
    fn arena(len: usize, source: &PageSource) -> std::result::Result<Self, PagesError> {
        let pages = Pages::new(len, source)?;
        // The pages stay mapped at the same address while their owner lives, even if the owner
        // moves.
        Ok(Region::new(pages.base(), len, true, Box::new(pages)))
    }

    #[inline]
    fn local_key(&self, registrar: &dyn Registrar) -> Result<u32> {
        self.registrations.local_key(registrar, self.base, self.len, self.writable)
    }
}

/// Foreign memory, pieces of which can be viewed.
#[cfg(target_os = "linux")]
pub(crate) struct Lendable(Rc<Region>);

#[cfg(target_os = "linux")]
impl Lendable {
    /// Makes `len` bytes from `base` viewable. `owner` keeps them alive and is itself kept until
    /// the last view is dropped.
    ///
    /// # Safety
    /// The bytes are readable until `owner` is dropped, and nobody in this process writes them.
    pub(crate) unsafe fn new(
        base: NonNull<u8>,
        len: usize,
        owner: Box<dyn std::any::Any>,
    ) -> Lendable {
        Lendable(Rc::new(Region::new(base, len, false, owner)))
    }
}

/// Where a slot's bytes live.
enum Memory {
    Arena(Rc<Region>),
    User(Region),
}

/// A piece of memory that is lent as a whole. Its reference count tells whether any part of it is
/// in use.
struct Slot {
    memory: Memory,
    base: NonNull<u8>,
    capacity: usize,
    home: Home,
}

/// Where a slot returns when no part of it is left.
enum Home {
    /// To its pool, on the free list of this class.
    Pool(Weak<Shelf>, usize),
    /// To the views of foreign memory, where it has this number.
    #[cfg(target_os = "linux")]
    Views(Weak<views::Slots>, u64),
    /// Nowhere: it is freed.
    Nowhere,
}

impl Slot {
    /// Cuts `capacity` bytes of an arena from `offset`.
    ///
    /// # Panics
    /// If they reach past the arena's end.
    fn cut(arena: Rc<Region>, offset: usize, capacity: usize, home: Home) -> Slot {
        assert!(offset <= arena.len && capacity <= arena.len - offset, "a slot lies in its arena");
        // SAFETY: `offset` is at most the region's length, as just checked.
        let base = unsafe { arena.base.add(offset) };
        Slot { memory: Memory::Arena(arena), base, capacity, home }
    }

    /// Makes one slot of a user's whole region.
    fn whole(region: Region) -> Slot {
        let base = region.base;
        let capacity = region.len;
        Slot { memory: Memory::User(region), base, capacity, home: Home::Nowhere }
    }

    /// Uses huge pages for its first `len` bytes if it lies in an arena: see [`Pages::make_huge`].
    fn make_huge(&self, len: usize) {
        let region = self.region();
        if let Some(pages) = region.owner.downcast_ref::<Pages>() {
            let start = self.base.addr().get() - region.base.addr().get();
            let before = start % HUGE_PAGE_BYTES;
            pages.make_huge(start - before, before + len);
        }
    }

    #[inline]
    fn region(&self) -> &Region {
        match &self.memory {
            Memory::Arena(region) => region,
            Memory::User(region) => region,
        }
    }
}

/// `len` bytes of a slot from `start`. The wrapper decides whether parts may overlap: a [`Buffer`]
/// must not, a [`Shared`] may.
struct Part {
    slot: Rc<Slot>,
    start: NonNull<u8>,
    len: usize,
}

impl Part {
    /// The first `len` bytes of a slot.
    ///
    /// # Panics
    /// If the slot is shorter.
    #[inline]
    fn new(slot: Rc<Slot>, len: usize) -> Part {
        assert!(len <= slot.capacity, "a part lies in its slot");
        Part { start: slot.base, slot, len }
    }

    #[inline]
    fn bytes(&self) -> &[u8] {
        // SAFETY: the range lies in a live, initialised allocation: `new` starts inside the slot,
        // which keeps the memory, and `advance` and `truncate` only narrow the range. Nobody writes
        // it during the borrow: a `Buffer`'s range belongs to it alone, a `Shared`'s range is never
        // written, and the memory of a `Bytes` cannot change while the slot holds a handle to it.
        unsafe { std::slice::from_raw_parts(self.start.as_ptr(), self.len) }
    }

    /// Gives up the first `count` bytes.
    ///
    /// # Panics
    /// If it has fewer.
    #[inline]
    fn advance(&mut self, count: usize) {
        assert!(count <= self.len, "{count} lies outside a part of {}", self.len);
        // SAFETY: `count <= len`, and `len` bytes from `start` lie in the slot.
        self.start = unsafe { self.start.add(count) };
        self.len -= count;
    }

    /// Gives up everything past the first `len` bytes.
    #[inline]
    fn truncate(&mut self, len: usize) {
        self.len = self.len.min(len);
    }

    /// The pool's pages it lies in, and its offset in them.
    fn pages(&self) -> Option<(&Pages, usize)> {
        let region = self.slot.region();
        let pages = region.owner.downcast_ref::<Pages>()?;
        Some((pages, self.start.addr().get() - region.base.addr().get()))
    }

    /// Whether its owner may write it: no other part of the slot is in use, neither here nor, for a
    /// user's memory, by the user.
    #[inline]
    fn is_exclusive(&self) -> bool {
        Rc::strong_count(&self.slot) == 1 && self.slot.region().writable
    }
}

impl Drop for Part {
    #[inline]
    fn drop(&mut self) {
        if Rc::strong_count(&self.slot) == 1 {
            send_home(&self.slot);
        }
    }
}

/// Returns a slot without remaining parts to its origin, if that still exists.
#[inline(never)] // a part that is not the last is dropped without a call
fn send_home(slot: &Rc<Slot>) {
    match &slot.home {
        Home::Pool(pool, class) => {
            if let Some(pool) = pool.upgrade() {
                pool.put_back(slot.clone(), *class);
            }
        }
        #[cfg(target_os = "linux")]
        Home::Views(views, _) => {
            if let Some(views) = views.upgrade() {
                views.put_back(slot.clone());
            }
        }
        Home::Nowhere => {}
    }
}

/// An owned part of registered memory that nobody else reads or writes.
pub struct Buffer(Part);

impl Buffer {
    /// Takes over a vector of plain numbers without a copy; messages can be sent from it or
    /// received into it.
    pub fn adopt<V>(values: Vec<V>) -> Buffer
    where
        V: zerocopy::IntoBytes + zerocopy::FromBytes + zerocopy::Immutable + 'static,
    {
        let mut values = values;
        let bytes = values.as_mut_slice();
        let len = std::mem::size_of_val(bytes);
        let base = bytes.as_mut_ptr().cast::<u8>();
        let base = NonNull::new(base).expect("a vector's pointer is never null");
        // The vector's heap block does not move when the vector is boxed.
        let slot = Slot::whole(Region::new(base, len, true, Box::new(values)));
        Buffer(Part::new(Rc::new(slot), len))
    }

    /// Splits off and returns the first `at` bytes; `self` keeps the rest.
    ///
    /// # Panics
    /// If `at` is past the end.
    #[inline]
    pub fn split_to(&mut self, at: usize) -> Buffer {
        let mut head = self.0.clone();
        self.0.advance(at);
        head.truncate(at);
        Buffer(head)
    }

    /// Splits off and returns the bytes after the first `at`; `self` keeps those before.
    ///
    /// # Panics
    /// If `at` is past the end.
    pub fn split_off(&mut self, at: usize) -> Buffer {
        let mut tail = self.0.clone();
        tail.advance(at);
        self.0.truncate(at);
        Buffer(tail)
    }

    /// Gives up the first `count` bytes, like `split_to` without a result.
    ///
    /// # Panics
    /// If it has fewer.
    #[inline]
    pub fn advance(&mut self, count: usize) {
        self.0.advance(count);
    }

    /// Gives up everything past the first `len` bytes; does nothing if it is not longer.
    #[inline]
    pub fn truncate(&mut self, len: usize) {
        self.0.truncate(len);
    }

    /// Appends `tail`, which was split off the end of `self`.
    ///
    /// # Errors
    /// Returns `tail` if it does not follow `self` in the same slot.
    pub fn join(&mut self, tail: Buffer) -> std::result::Result<(), Buffer> {
        let follows = Rc::ptr_eq(&self.0.slot, &tail.0.slot)
            && self.0.bytes().as_ptr_range().end == tail.0.start.as_ptr();
        if !follows {
            return Err(tail);
        }
        self.0.len += tail.0.len;
        Ok(())
    }

    /// The key under which `registrar` knows this memory's region: an arena or a user's memory.
    ///
    /// An unknown region, for example a user's or an arena of an unregistered pool, is registered
    /// now and stays registered while it lives: a vector or a [`Bytes`] until its last part is
    /// dropped. Empty memory needs no registration; its key is 0.
    ///
    /// # Errors
    /// The registrar's. Nothing has changed then.
    #[inline]
    pub fn local_key(&self, registrar: &dyn Registrar) -> Result<u32> {
        self.0.slot.region().local_key(registrar)
    }

    /// The pages it lies in and its offset in them, to show another process the place in a
    /// [shareable](PageSource::shareable) pool's memory. `None` for a user's memory.
    pub fn pages(&self) -> Option<(&Pages, usize)> {
        self.0.pages()
    }

    /// Makes it readable by many and writable by nobody.
    #[inline]
    pub fn share(self) -> Shared {
        Shared(self.0)
    }
}

impl Deref for Buffer {
    type Target = [u8];
    #[inline]
    fn deref(&self) -> &[u8] {
        self.0.bytes()
    }
}

impl DerefMut for Buffer {
    #[inline]
    fn deref_mut(&mut self) -> &mut [u8] {
        // SAFETY: the range lies in a live, initialised allocation, and no other part overlaps it:
        // a `Buffer` starts as the only part of its slot and is only ever cut into disjoint ones.
        // The memory is writable: `allocate` and `adopt` take no read-only memory, and `reclaim`
        // refuses it.
        unsafe { std::slice::from_raw_parts_mut(self.0.start.as_ptr(), self.0.len) }
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
    #[inline]
    fn clone(&self) -> Self {
        Part { slot: self.slot.clone(), start: self.start, len: self.len }
    }
}

impl Shared {
    /// The bytes in `range`, without a copy.
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
        assert!(end <= self.len(), "{start}..{end} lies outside a part of {}", self.len());
        let mut part = self.0.clone();
        part.advance(start);
        part.truncate(end.saturating_sub(start));
        Shared(part)
    }

    /// The key under which `registrar` knows this memory's region.
    ///
    /// As [`Buffer::local_key`]; the memory of a [`Bytes`] is registered for reading only.
    ///
    /// # Errors
    /// The registrar's. Nothing has changed then.
    #[inline]
    pub fn local_key(&self, registrar: &dyn Registrar) -> Result<u32> {
        self.0.slot.region().local_key(registrar)
    }

    /// As [`Buffer::pages`].
    pub fn pages(&self) -> Option<(&Pages, usize)> {
        self.0.pages()
    }

    /// Whether it lies in an arena of `pool`, which keeps the arena mapped while the pool lives.
    pub(crate) fn is_from(&self, pool: &Pool) -> bool {
        matches!(&self.0.slot.home, Home::Pool(home, _) if pool.is_home_of(home))
    }

    /// Whether [`Shared::reclaim`] would succeed.
    #[inline]
    pub(crate) fn is_exclusive(&self) -> bool {
        self.0.is_exclusive()
    }

    /// Turns it back into a writable [`Buffer`].
    ///
    /// # Errors
    /// Returns `self` while any other part of its slot is in use, for example by a van that still
    /// sends it, and always if it came from a [`Bytes`], which nobody may write.
    pub fn reclaim(self) -> std::result::Result<Buffer, Shared> {
        if self.0.is_exclusive() { Ok(Buffer(self.0)) } else { Err(self) }
    }

    /// The bytes for writing: in place if nobody else holds them, else in a fresh copy, so that
    /// readers keep what they saw. The memory of a [`Bytes`] is always copied.
    ///
    /// # Errors
    /// [`Error::OutOfMemory`](crate::Error::OutOfMemory) if `pool` has no room for a needed copy.
    #[inline]
    pub fn make_mut(&mut self, pool: &Pool) -> Result<&mut [u8]> {
        if !self.0.is_exclusive() {
            let mut copy = pool.allocate(self.len())?;
            copy.copy_from_slice(self);
            self.0 = copy.share().0;
        }
        // SAFETY: as in `Buffer::deref_mut`: it is the only part of a writable slot, either by the
        // check above or because `pool` just allocated it.
        Ok(unsafe { std::slice::from_raw_parts_mut(self.0.start.as_ptr(), self.0.len) })
    }
}

/// Sends from a [`Bytes`], which the user may keep reading, without a copy.
///
/// The result is read-only: [`Shared::reclaim`] never returns it, and [`Shared::make_mut`] copies
/// it. It may start at any address, because values are viewed in the receiver's memory. The `Bytes`
/// lives as long as any part of the result.
impl From<Bytes> for Shared {
    fn from(bytes: Bytes) -> Shared {
        let base = NonNull::from(&bytes[..]).cast::<u8>();
        let len = bytes.len();
        // A `Bytes` points to its memory, which does not move when the `Bytes` moves into the box.
        // The boxed `Bytes` is never turned into a `BytesMut`, and other handles cannot be while it
        // lives.
        let slot = Slot::whole(Region::new(base, len, false, Box::new(bytes)));
        Shared(Part::new(Rc::new(slot), len))
    }
}

impl Deref for Shared {
    type Target = [u8];
    #[inline]
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
mod tests;
