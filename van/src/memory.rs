//! Registered memory: pools of slots, and owned parts of them.
//!
//! A [`Pool`] belongs to one thread. It hands out [`Buffer`]s, parts of slots that exactly one owner may write. A `Buffer`
//! can be split into disjoint `Buffer`s, or turned into a [`Shared`], which many may read. When the last part of a slot is
//! dropped the slot goes back to its pool: nothing is freed, and nothing is allocated the next time. Vans take buffers by
//! value and drop them when the bytes have left, so nobody waits for a buffer to "come back". Memory of the user's own makes a
//! slot, too: a vector, which is taken over, or a `Bytes`, which is only read.
//!
//! Slots lie in regions, the arenas of a pool or what a user brought. A device gets to know a region once, as a whole, when
//! its pool makes it or when it is first needed, and for as long as it lives: see [`Registrar`] and [`Buffer::local_key`].
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

/// Slots of this many bytes or more start at a multiple of it: a page, as NICs and the kernel like it.
pub const SLOT_ALIGN: usize = PAGE_BYTES;

/// Begins to fetch the line of the cache that `address` is in: for loops over memory that comes from far, where the processor's
/// own guesses end with the page. A hint: nothing is read, wherever it points.
#[inline(always)]
pub(crate) fn prefetch<T>(address: *const T) {
    #[cfg(target_arch = "x86_64")]
    {
        use std::arch::x86_64::{_MM_HINT_T0, _mm_prefetch};
        // SAFETY: a hint: no access, and no fault wherever it points to.
        unsafe { _mm_prefetch::<_MM_HINT_T0>(address.cast()) };
    }
    #[cfg(not(target_arch = "x86_64"))]
    let _ = address;
}

/// Memory that stays in one place: an arena, from which a pool cuts slots, or what a user brought.
struct Region {
    registrations: Registrations, // gone before the memory is: fields drop from the top
    base: NonNull<u8>,
    len: usize,
    /// Whether it may be written once no other part of it is out; not if the user may read it still.
    writable: bool,
    /// Owns the memory and keeps it in place.
    owner: Box<dyn std::any::Any>,
}

impl Region {
    fn new(base: NonNull<u8>, len: usize, writable: bool, owner: Box<dyn std::any::Any>) -> Self {
        Region { registrations: Registrations::default(), base, len, writable, owner }
    }

    /// An arena of `len` bytes, all zero.
    fn arena(len: usize, source: &PageSource) -> std::result::Result<Self, PagesError> {
        let pages = Pages::new(len, source)?;
        // The pages stay mapped, and where they are, as long as their owner lives, wherever that is moved to.
        Ok(Region::new(pages.base(), len, true, Box::new(pages)))
    }

    #[inline]
    fn local_key(&self, registrar: &dyn Registrar) -> Result<u32> {
        self.registrations.local_key(registrar, (self.base, self.len), self.writable)
    }
}

/// Memory of somebody else, pieces of which can be viewed.
#[cfg(target_os = "linux")]
pub(crate) struct Lendable(Rc<Region>);

#[cfg(target_os = "linux")]
impl Lendable {
    /// `len` bytes from `base`. They are there as long as `owner`, which is kept as long as any view of them.
    ///
    /// # Safety
    /// They are readable until `owner` is dropped, and nobody of this process writes them.
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

/// A piece of memory that is lent as a whole; its reference count says whether any part of it is out.
struct Slot {
    memory: Memory,
    base: NonNull<u8>,
    capacity: usize,
    home: Home,
}

/// Where a slot goes when nothing else is left of it.
enum Home {
    /// To its pool, on the free list of this class.
    Pool(Weak<Shelf>, usize),
    /// To the views of somebody else's memory, which know it by this number.
    #[cfg(target_os = "linux")]
    Views(Weak<views::Slots>, u64),
    /// It ends.
    Nowhere,
}

impl Slot {
    /// `capacity` bytes of an arena from `offset`.
    ///
    /// # Panics
    /// If they reach past its end.
    fn cut(arena: Rc<Region>, (offset, capacity): (usize, usize), home: Home) -> Slot {
        assert!(offset <= arena.len && capacity <= arena.len - offset, "a slot lies in its arena");
        // SAFETY: `offset` is at most the region's length, as was just checked.
        let base = unsafe { arena.base.add(offset) };
        Slot { memory: Memory::Arena(arena), base, capacity, home }
    }

    /// All of a region that a user brought.
    fn whole(region: Region) -> Slot {
        let (base, capacity) = (region.base, region.len);
        Slot { memory: Memory::User(region), base, capacity, home: Home::Nowhere }
    }

    /// Takes the huge pages that end within its first `len` bytes, if it lies in an arena: see [`Pages::make_huge`].
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

/// `len` bytes of a slot from `start`. Whether others may overlap is decided by the wrapper: [`Buffer`] or [`Shared`].
struct Part {
    slot: Rc<Slot>,
    start: NonNull<u8>,
    len: usize,
}

impl Part {
    /// The first `len` bytes of a slot.
    ///
    /// # Panics
    /// If it has fewer.
    #[inline]
    fn new(slot: Rc<Slot>, len: usize) -> Part {
        assert!(len <= slot.capacity, "a part lies in its slot");
        Part { start: slot.base, slot, len }
    }

    #[inline]
    fn bytes(&self) -> &[u8] {
        // SAFETY: the range lies in a live, initialised allocation: `new` begins inside of the slot, which keeps it, and
        // `advance` and `truncate` only narrow it. Nobody writes it while the borrow lasts: a `Buffer`'s range belongs to it
        // alone, a `Shared`'s range is never written, and what a `Bytes` holds cannot change while a handle to it lives,
        // which the slot keeps.
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

    /// The pages of the pool that it lies in, and where in them it begins.
    fn pages(&self) -> Option<(&Pages, usize)> {
        let region = self.slot.region();
        let pages = region.owner.downcast_ref::<Pages>()?;
        Some((pages, self.start.addr().get() - region.base.addr().get()))
    }

    /// Whether its owner may write it: no other part of the slot is out, here or, for a user's memory, with the user.
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

/// Gives a slot that nothing else is left of back to where it came from, if that is still there.
#[inline(never)] // a part among others is dropped without a call
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
        let slot = Slot::whole(Region::new(base, len, true, Box::new(values)));
        Buffer(Part::new(Rc::new(slot), len))
    }

    /// Cuts off and returns the first `at` bytes; `self` keeps the rest.
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

    /// Cuts off and returns what follows the first `at` bytes; `self` keeps those.
    ///
    /// # Panics
    /// If `at` is past the end.
    pub fn split_off(&mut self, at: usize) -> Buffer {
        let mut tail = self.0.clone();
        tail.advance(at);
        self.0.truncate(at);
        Buffer(tail)
    }

    /// Gives up the first `count` bytes: `split_to` without the part that is cut off.
    ///
    /// # Panics
    /// If it has fewer.
    #[inline]
    pub fn advance(&mut self, count: usize) {
        self.0.advance(count);
    }

    /// Gives up everything past the first `len` bytes; no effect when it is no longer than that.
    #[inline]
    pub fn truncate(&mut self, len: usize) {
        self.0.truncate(len);
    }

    /// Puts `tail` back behind `self`, of which it was split off.
    ///
    /// # Errors
    /// Hands `tail` back when it is not what follows `self` in the same slot.
    pub fn join(&mut self, tail: Buffer) -> std::result::Result<(), Buffer> {
        let follows = Rc::ptr_eq(&self.0.slot, &tail.0.slot)
            && self.0.bytes().as_ptr_range().end == tail.0.start.as_ptr();
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
    #[inline]
    pub fn local_key(&self, registrar: &dyn Registrar) -> Result<u32> {
        self.0.slot.region().local_key(registrar)
    }

    /// The pages that this lies in and the byte of them with which it begins, so that another process can be shown the place in
    /// a [shareable](PageSource::shareable) pool's memory; `None` for memory that a user brought.
    pub fn pages(&self) -> Option<(&Pages, usize)> {
        self.0.pages()
    }

    /// From now on anybody may read it and nobody write it.
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
        // SAFETY: the range lies in a live, initialised allocation, and no other part overlaps it: a `Buffer` begins as the
        // only part of its slot and is only ever cut into disjoint ones. The memory is not read-only: `allocate` and `adopt`
        // take none that is, and `reclaim` refuses it.
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
        assert!(end <= self.len(), "{start}..{end} lies outside a part of {}", self.len());
        let mut part = self.0.clone();
        part.advance(start);
        part.truncate(end.saturating_sub(start));
        Shared(part)
    }

    /// The key under which `registrar` knows the region this lies in: an arena, or memory that a user brought.
    ///
    /// As [`Buffer::local_key`]; memory of a [`Bytes`] is registered for reading only.
    ///
    /// # Errors
    /// The registrar's; nothing has changed then.
    #[inline]
    pub fn local_key(&self, registrar: &dyn Registrar) -> Result<u32> {
        self.0.slot.region().local_key(registrar)
    }

    /// The pages that this lies in and the byte of them with which it begins, so that another process can be shown the place in
    /// a [shareable](PageSource::shareable) pool's memory; `None` for memory that a user brought.
    pub fn pages(&self) -> Option<(&Pages, usize)> {
        self.0.pages()
    }

    /// Whether this lies in an arena of `pool`, which keeps it mapped for as long as the pool lives.
    pub(crate) fn is_from(&self, pool: &Pool) -> bool {
        matches!(&self.0.slot.home, Home::Pool(home, _) if pool.is_home_of(home))
    }

    /// Whether [`Shared::reclaim`] would give it back.
    #[inline]
    pub(crate) fn is_exclusive(&self) -> bool {
        self.0.is_exclusive()
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
    /// [`Error::OutOfMemory`](crate::Error::OutOfMemory) when a copy is needed and `pool` has no room for it.
    #[inline]
    pub fn make_mut(&mut self, pool: &Pool) -> Result<&mut [u8]> {
        if !self.0.is_exclusive() {
            let mut copy = pool.allocate(self.len())?;
            copy.copy_from_slice(self);
            self.0 = copy.share().0;
        }
        // SAFETY: as in `Buffer::deref_mut`; this is the only part of a slot that is not read-only, as was just asked or
        // because it is a new one of `pool`.
        Ok(unsafe { std::slice::from_raw_parts_mut(self.0.start.as_ptr(), self.0.len) })
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
