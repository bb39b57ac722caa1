//! A thread's pool: arenas taken from the system, and slots cut from them.
//!
//! A slot that comes home goes on the free list of its size, and leaves it for the next buffer of that size: the path is a pop
//! and a push. Only when a list is empty is there more to do, in this order:
//! 1. cut a few more slots from memory that is uncut, the tail of some arena;
//! 2. merge: free slots of other sizes that lie side by side are made uncut memory, as many as it takes;
//! 3. take another arena from the system, as large as all before it together, so that a device gets to know few regions.
//!
//! Merging takes from other sizes what they may soon want back. So between two arenas no more bytes are merged than there are,
//! enough for sizes out of use to give all they had to those that took their place. There is no such bound where the limit
//! leaves no room for another arena.

use std::cell::{Cell, RefCell};
use std::fmt;
use std::io;
use std::rc::{Rc, Weak};

use caravan_numa::{HUGE_PAGE_BYTES, PageSource};

use super::registration::Registrar;
use super::{Buffer, Home, Memory, Part, Region, SLOT_ALIGN, Slot};
use crate::error::{Error, Result};

/// Smallest slot, in bytes. A power of two.
const SLOT_MIN: usize = 512;

/// No slot can be larger, in bytes: the largest power of two that an allocation can have.
const SLOT_MAX: usize = 1 << (usize::BITS - 2);

/// The first arena, in bytes: what a pool takes at least, where its limit lets it.
const ARENA_MIN: usize = 1 << 20;

/// Arenas grow up to this many bytes, or an eighth of the limit, as the end of one may be too small for a large slot; only a
/// slot larger than that has a larger one.
const ARENA_MAX: usize = 256 << 20;

/// Most bytes cut into slots at a time, but for a slot that is larger: 2048 of the smallest, a moment's work.
const BATCH_MAX: usize = 1 << 20;

/// Slots from this size on lie in huge pages, a single one or two in each, where the system has them.
const LARGE_BYTES: usize = HUGE_PAGE_BYTES / 2;

/// Number of size classes: powers of two from [`SLOT_MIN`] up to the address space.
const CLASSES: usize = (usize::BITS - SLOT_MIN.trailing_zeros()) as usize;

/// A thread's registered memory, in slots of power-of-two sizes, up to a limit in bytes.
///
/// Cheap to clone: clones hand out the same memory.
#[derive(Clone)]
pub struct Pool(Rc<Shelf>);

pub(super) struct Shelf {
    classes: [Class; CLASSES],
    /// Parts of arenas that belong to no slot.
    uncut: RefCell<Vec<Span>>,
    bytes_cut: Cell<usize>,
    bytes_reserved: Cell<usize>,
    /// Ordinary memory that counts against the limit.
    bytes_accounted: Cell<usize>,
    bytes_max: usize,
    /// How many bytes may still be merged before the next arena is taken.
    bytes_mergeable: Cell<usize>,
    /// Where arenas come from.
    pages: PageSource,
    /// Whom every arena is registered with.
    registrar: Option<Rc<dyn Registrar>>,
}

/// Slots of one size.
#[derive(Default)]
struct Class {
    free: RefCell<Vec<Rc<Slot>>>,
    /// How many there are, free or lent: `free` has room for all of them.
    count: Cell<usize>,
}

impl Pool {
    /// A pool that reserves at most `bytes_max` bytes, none of them yet.
    pub fn new(bytes_max: usize) -> Self {
        Pool::from_pages(bytes_max, PageSource::default(), None)
    }

    /// Likewise, and every arena is registered with `registrar` as it is made.
    pub fn registered(bytes_max: usize, registrar: Rc<dyn Registrar>) -> Self {
        Pool::from_pages(bytes_max, PageSource::default(), Some(registrar))
    }

    /// Likewise, with arenas that come from `pages`.
    pub fn from_pages(
        bytes_max: usize,
        pages: PageSource,
        registrar: Option<Rc<dyn Registrar>>,
    ) -> Self {
        Pool(Rc::new(Shelf {
            classes: std::array::from_fn(|_| Class::default()),
            uncut: RefCell::default(),
            bytes_cut: Cell::new(0),
            bytes_reserved: Cell::new(0),
            bytes_accounted: Cell::new(0),
            bytes_max,
            bytes_mergeable: Cell::new(0),
            pages,
            registrar,
        }))
    }

    /// Lends `len` bytes, 8-byte aligned or better; a reused slot keeps its former contents.
    ///
    /// # Errors
    /// [`Error::OutOfMemory`] when the pool would outgrow its limit or the system has no more; the registrar's when it
    /// refuses another arena.
    #[inline(always)] // what it makes would go through memory, and be read again at once
    pub fn allocate(&self, len: usize) -> Result<Buffer> {
        let class = class_of(len).ok_or_else(|| self.out_of_memory(len, None))?;
        let free = self.0.classes[class].free.borrow_mut().pop();
        let slot = match free {
            Some(slot) => slot,
            None => self.supply(class, len)?,
        };
        Ok(Buffer(Part::new(slot, len)))
    }

    /// Bytes taken from the system so far, cut into slots or not. At most a fixed number more of them lie before the arenas,
    /// never touched, so that those begin where they should.
    pub fn bytes_reserved(&self) -> usize {
        self.0.bytes_reserved.get()
    }

    /// Bytes of [`Pool::bytes_reserved`] that are cut into slots, each of them lent or kept for the next buffer of its size.
    pub fn bytes_cut(&self) -> usize {
        self.0.bytes_cut.get()
    }

    /// The limit given to [`Pool::new`].
    pub fn bytes_max(&self) -> usize {
        self.0.bytes_max
    }

    /// Bytes that tables may still take, registered or not, and all else that is kept for peers: an eighth of the limit is for
    /// messages, without which no lane lives.
    pub fn bytes_left(&self) -> usize {
        let kept = self.bytes_max() - self.bytes_max() / 8;
        kept.saturating_sub(self.bytes_cut() + self.0.bytes_accounted.get())
    }

    /// Bytes that could be lent now if they lay together: free ones, and those not yet taken from the system. It looks at every size.
    pub(crate) fn bytes_free(&self) -> usize {
        self.room() + self.0.bytes_free()
    }

    /// Why `wanted` bytes are not lent though they may be free: those that are left are for others.
    #[cold]
    pub(crate) fn refusal(&self, wanted: usize) -> Error {
        self.out_of_memory(wanted, None)
    }

    /// Bytes that a buffer of `len` bytes takes.
    pub(crate) fn slot_bytes(len: usize) -> usize {
        class_of(len).map_or(usize::MAX, |class| SLOT_MIN << class)
    }

    /// So many bytes of ordinary memory more and so many less count against the limit.
    pub(super) fn exchange(&self, less: usize, more: usize) {
        self.0.bytes_accounted.update(|bytes| bytes - less + more);
    }

    /// Bytes that may still be taken from the system.
    pub(super) fn room(&self) -> usize {
        self.bytes_max() - self.bytes_reserved() - self.0.bytes_accounted.get()
    }

    /// Whether a slot that is to come home to `shelf` is one of this pool's.
    pub(super) fn is_home_of(&self, shelf: &Weak<Shelf>) -> bool {
        std::ptr::eq(shelf.as_ptr(), Rc::as_ptr(&self.0))
    }

    /// A slot for a class that has none free, in huge pages as far as `wanted` bytes of it and what lies before it fill them.
    #[cold]
    fn supply(&self, class: usize, wanted: usize) -> Result<Rc<Slot>> {
        let slot = self.find_slot(class, wanted)?;
        if wanted >= LARGE_BYTES {
            slot.make_huge(wanted);
        }
        Ok(slot)
    }

    fn find_slot(&self, class: usize, wanted: usize) -> Result<Rc<Slot>> {
        if let Some(slot) = self.cut(class) {
            return Ok(slot);
        }
        let (size, room) = (SLOT_MIN << class, self.room());
        let mergeable = self.0.bytes_mergeable.get();
        if size > room || size <= mergeable {
            self.0.bytes_mergeable.set(mergeable.saturating_sub(size));
            self.0.merge(size);
            if let Some(slot) = self.cut(class) {
                return Ok(slot);
            }
        }
        if size > room {
            return Err(self.out_of_memory(wanted, None));
        }
        self.grow(size)?;
        Ok(self.cut(class).expect("an arena is at least as large as the slot it is made for"))
    }

    /// Cuts slots of `class` from the smallest piece of uncut memory that holds one, and returns the first; `None` if none does.
    fn cut(&self, class: usize) -> Option<Rc<Slot>> {
        let (shelf, size) = (&*self.0, SLOT_MIN << class);
        let mut uncut = shelf.uncut.borrow_mut();
        let fitting = uncut.iter().enumerate().filter(|(_, span)| span.holds(size));
        let (at, _) = fitting.min_by_key(|(_, span)| span.len)?;
        let span = uncut.swap_remove(at);
        let padding = span.padding(size);
        let (before, span) = span.split_at(padding);
        let count = (shelf.batch_bytes() / size).clamp(1, span.len / size);
        let (span, after) = span.split_at(count * size);
        uncut.extend([before, after].into_iter().filter(|rest| rest.len > 0));
        shelf.bytes_cut.update(|bytes| bytes + span.len);
        shelf.classes[class].add((0..count).rev().map(|n| {
            let place = (span.start + n * size, size);
            let home = Home::Pool(Rc::downgrade(&self.0), class);
            Rc::new(Slot::cut(span.arena.clone(), place, home))
        }))
    }

    /// Takes another arena from the system, of at least `size` bytes; there is room for those.
    fn grow(&self, size: usize) -> Result<()> {
        let (reserved, room) = (self.bytes_reserved(), self.room());
        let most = (self.bytes_max() / 8).clamp(ARENA_MIN, ARENA_MAX);
        let bytes = size.max(reserved.clamp(ARENA_MIN, most).min(room));
        let len = bytes - bytes % SLOT_MIN;
        let arena = Region::arena(len, &self.0.pages);
        let arena = Rc::new(arena.map_err(|error| self.out_of_memory(size, Some(error.source)))?);
        if let Some(registrar) = &self.0.registrar {
            arena.local_key(&**registrar)?;
        }
        self.0.uncut.borrow_mut().push(Span { arena, start: 0, len });
        self.0.bytes_reserved.set(reserved + len);
        self.0.bytes_mergeable.set(reserved + len);
        Ok(())
    }

    #[cold]
    pub(super) fn out_of_memory(&self, wanted: usize, system: Option<io::Error>) -> Error {
        let reserved = self.bytes_reserved() + self.0.bytes_accounted.get();
        let limit = self.bytes_max();
        Error::OutOfMemory { wanted, reserved, limit, source: system }
    }
}

impl Shelf {
    /// Puts a slot that nothing is left of on the free list of its class.
    #[inline]
    pub(super) fn put_back(&self, slot: Rc<Slot>, class: usize) {
        self.classes[class].free.borrow_mut().push(slot);
    }

    /// How much is cut at a time: a part of all there is, so that a size seldom has to ask and never takes all.
    fn batch_bytes(&self) -> usize {
        (self.bytes_reserved.get() / 4).min(BATCH_MAX)
    }

    /// Makes uncut memory of the free slots in the smallest run of free memory that a slot of `size` fits into, as many as it
    /// takes; all others stay as they are. Does nothing if there is no such run.
    fn merge(&self, size: usize) {
        if self.bytes_free() < size {
            return; // the common refusal costs no search
        }
        let Some(place) = self.find_run(size) else { return };
        let mut uncut = self.uncut.borrow_mut();
        let mut pieces: Vec<_> = uncut.extract_if(.., |span| span.overlaps(&place)).collect();
        for class in &self.classes {
            let mut free = class.free.borrow_mut();
            for slot in free.extract_if(.., |slot| Span::of(slot).overlaps(&place)) {
                class.count.update(|count| count - 1);
                self.bytes_cut.update(|bytes| bytes - slot.capacity);
                pieces.push(Span::of(&slot));
            }
        }
        uncut.extend(join(pieces));
    }

    /// Where a slot of `size` would lie in the smallest run of free slots and uncut memory that holds one.
    fn find_run(&self, size: usize) -> Option<Span> {
        let fitting = join(self.pieces()).into_iter().filter(|run| run.holds(size));
        let run = fitting.min_by_key(|run| run.len)?;
        let padding = run.padding(size);
        Some(run.split_at(padding).1.split_at(size).0)
    }

    fn bytes_free(&self) -> usize {
        let uncut = self.bytes_reserved.get() - self.bytes_cut.get();
        let free = |(n, class): (usize, &Class)| class.free.borrow().len() * (SLOT_MIN << n);
        uncut + self.classes.iter().enumerate().map(free).sum::<usize>()
    }

    /// All memory that is not lent.
    fn pieces(&self) -> Vec<Span> {
        let mut pieces = self.uncut.borrow().clone();
        for class in &self.classes {
            pieces.extend(class.free.borrow().iter().map(|slot| Span::of(slot)));
        }
        pieces
    }
}

/// The same memory in as few pieces as can be.
fn join(mut pieces: Vec<Span>) -> Vec<Span> {
    pieces.sort_unstable_by_key(|span| (Rc::as_ptr(&span.arena).addr(), span.start));
    pieces.dedup_by(|next, span| span.append(next));
    pieces
}

impl Class {
    /// Takes in new slots and lends the last of them. None will have to wait for room when it comes home.
    fn add(&self, slots: impl ExactSizeIterator<Item = Rc<Slot>>) -> Option<Rc<Slot>> {
        let count = self.count.get() + slots.len();
        self.count.set(count);
        let mut free = self.free.borrow_mut();
        let missing = count - free.len();
        free.reserve(missing);
        free.extend(slots);
        free.pop()
    }
}

impl fmt::Debug for Pool {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Pool({} of {} bytes)", self.bytes_reserved(), self.bytes_max())
    }
}

/// The class of the smallest slots that hold `len` bytes; `None` when no address space has room for one.
#[inline]
fn class_of(len: usize) -> Option<usize> {
    let len = len.max(SLOT_MIN);
    let class = (len - 1).ilog2() + 1 - SLOT_MIN.ilog2();
    (len <= SLOT_MAX).then_some(class as usize)
}

/// `len` bytes of an arena from `start`, both multiples of [`SLOT_MIN`].
#[derive(Clone)]
struct Span {
    arena: Rc<Region>,
    start: usize,
    len: usize,
}

impl Span {
    /// The memory of one of a pool's slots.
    fn of(slot: &Slot) -> Span {
        let Memory::Arena(arena) = &slot.memory else {
            unreachable!("a user's memory comes home to no pool")
        };
        let start = slot.base.addr().get() - arena.base.addr().get();
        Span { arena: arena.clone(), start, len: slot.capacity }
    }

    fn overlaps(&self, other: &Span) -> bool {
        Rc::ptr_eq(&self.arena, &other.arena)
            && self.start < other.start + other.len
            && other.start < self.start + self.len
    }

    /// Bytes to skip before a slot of `size`: slots begin at a page, large ones at a huge one or its half, and those smaller than a
    /// page at a multiple of their size, so that none reaches into a page that it does not fill.
    fn padding(&self, size: usize) -> usize {
        let page = if size < LARGE_BYTES { SLOT_ALIGN } else { HUGE_PAGE_BYTES };
        self.start.next_multiple_of(size.min(page)) - self.start
    }

    fn holds(&self, size: usize) -> bool {
        self.padding(size).checked_add(size).is_some_and(|needed| needed <= self.len)
    }

    fn split_at(self, at: usize) -> (Span, Span) {
        let head = Span { arena: self.arena.clone(), start: self.start, len: at };
        (head, Span { start: self.start + at, len: self.len - at, ..self })
    }

    /// Takes `next` in if it begins where this ends; else does nothing and says so.
    fn append(&mut self, next: &Span) -> bool {
        let follows = Rc::ptr_eq(&self.arena, &next.arena) && self.start + self.len == next.start;
        if follows {
            self.len += next.len;
        }
        follows
    }
}

#[cfg(test)]
mod tests;
