//! A thread's pool: arenas taken from the system, and slots cut from them.
//!
//! A slot that returns goes on the free list of its size, and the next buffer of that size takes
//! it: the usual path is a pop and a push. If a free list is empty, the pool goes through these
//! steps until it has a slot:
//! 1. cut a few more slots from uncut memory, the tail of some arena;
//! 2. merge adjacent free slots of other sizes into uncut memory, as many as needed;
//! 3. take another arena from the system, as large as all earlier ones together, so that a device
//!    registers few regions.
//!
//! A merge takes from other sizes what they may soon need again. So the pool merges, between two
//! arenas, no more bytes than it holds: enough for sizes out of use to hand all their memory to
//! their successors. This bound does not apply once the limit leaves no room for another arena.

use std::cell::{Cell, RefCell};
use std::fmt;
use std::io;
use std::rc::{Rc, Weak};

use caravan_numa::{HUGE_PAGE_BYTES, HugePages, PageSource};

use super::registration::Registrar;
use super::{Buffer, Home, Memory, Part, Region, SLOT_ALIGN, Slot};
use crate::error::{Error, Result};

/// Smallest slot, in bytes. A power of two.
const SLOT_MIN: usize = 512;

/// Largest slot, in bytes: the largest power of two that an allocation can have.
const SLOT_MAX: usize = 1 << (usize::BITS - 2);

/// First arena, in bytes: the least a pool takes, if its limit allows.
const ARENA_MIN: usize = 1 << 20;

/// Arenas grow up to this many bytes or an eighth of the limit, because the end of one may be too
/// small for a large slot. Only a larger slot gets a larger arena.
const ARENA_MAX: usize = 256 << 20;

/// Most bytes cut into slots at a time, except for a single larger slot. It bounds the time that
/// one allocation takes; under Miri to much less, as each slot takes it milliseconds.
const BATCH_MAX: usize = if cfg!(miri) { 4 << 10 } else { 1 << 20 };

/// Slots of at least this size lie in huge pages, one or two in each, if the system has them.
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
    /// Bytes that may still be merged before the pool takes another arena.
    bytes_mergeable: Cell<usize>,
    /// Where arenas come from.
    pages: PageSource,
    /// Registers every arena.
    registrar: Option<Rc<dyn Registrar>>,
}

/// Slots of one size.
#[derive(Default)]
struct Class {
    free: RefCell<Vec<Rc<Slot>>>,
    /// Slots of this size, free or lent: `free` has capacity for all of them.
    count: Cell<usize>,
}

impl Pool {
    /// A pool that reserves at most `bytes_max` bytes, and none yet.
    pub fn new(bytes_max: usize) -> Self {
        Pool::from_pages(bytes_max, PageSource::default(), None)
    }

    /// As [`Pool::new`]; `registrar` registers every arena when it is created.
    pub fn registered(bytes_max: usize, registrar: Rc<dyn Registrar>) -> Self {
        Pool::from_pages(bytes_max, PageSource::default(), Some(registrar))
    }

    /// As [`Pool::new`], with arenas from `pages`; `registrar`, if any, registers each.
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

    /// Lends `len` bytes with an alignment of at least 8; a reused slot keeps its former contents.
    ///
    /// # Errors
    /// [`Error::OutOfMemory`] if the pool would exceed its limit or the system has no more; the
    /// registrar's if it refuses another arena.
    #[inline(always)] // a call would pass the result through memory
    pub fn allocate(&self, len: usize) -> Result<Buffer> {
        let class = class_of(len).ok_or_else(|| self.out_of_memory(len, None))?;
        let free = self.0.classes[class].free.borrow_mut().pop();
        let slot = match free {
            Some(slot) => slot,
            None => self.supply(class, len)?,
        };
        Ok(Buffer(Part::new(slot, len)))
    }

    /// Bytes taken from the system so far, cut into slots or not. It leaves out a small, untouched
    /// prefix that aligns each arena.
    pub fn bytes_reserved(&self) -> usize {
        self.0.bytes_reserved.get()
    }

    /// Bytes of [`Pool::bytes_reserved`] that are cut into slots, lent or free.
    pub fn bytes_cut(&self) -> usize {
        self.0.bytes_cut.get()
    }

    /// The limit given to [`Pool::new`].
    pub fn bytes_max(&self) -> usize {
        self.0.bytes_max
    }

    /// Bytes that tables and other state kept for peers may still take, registered or not. An
    /// eighth of the limit is reserved for messages, without which no lane works.
    pub fn bytes_left(&self) -> usize {
        let kept = self.bytes_max() - self.bytes_max() / 8;
        kept.saturating_sub(self.bytes_cut() + self.0.bytes_accounted.get())
    }

    /// Bytes that could be lent if they were contiguous: the free ones and those not yet taken from
    /// the system. It visits every size class.
    pub(crate) fn bytes_free(&self) -> usize {
        self.room() + self.0.bytes_free()
    }

    /// The error for `wanted` bytes that may be free but are reserved for others.
    #[cold]
    pub(crate) fn refusal(&self, wanted: usize) -> Error {
        self.out_of_memory(wanted, None)
    }

    /// Size of the slot that a buffer of `len` bytes takes.
    pub(crate) fn slot_bytes(len: usize) -> usize {
        class_of(len).map_or(usize::MAX, |class| SLOT_MIN << class)
    }

    /// Replaces `less` bytes of ordinary memory that count against the limit by `more`.
    pub(super) fn exchange(&self, less: usize, more: usize) {
        self.0.bytes_accounted.update(|bytes| bytes - less + more);
    }

    /// Bytes that may still be taken from the system.
    pub(super) fn room(&self) -> usize {
        self.bytes_max() - self.bytes_reserved() - self.0.bytes_accounted.get()
    }

    /// Whether slots of `shelf` belong to this pool.
    pub(super) fn is_home_of(&self, shelf: &Weak<Shelf>) -> bool {
        std::ptr::eq(shelf.as_ptr(), Rc::as_ptr(&self.0))
    }

    /// Finds a slot for a class without free ones. Huge pages back it as far as `wanted` bytes fill
    /// them.
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
        let size = SLOT_MIN << class;
        let room = self.room();
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

    /// Cuts slots of `class` from the smallest piece of uncut memory that holds one, and returns
    /// the first; `None` if no piece does.
    fn cut(&self, class: usize) -> Option<Rc<Slot>> {
        let shelf = &*self.0;
        let size = SLOT_MIN << class;
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
            let home = Home::Pool(Rc::downgrade(&self.0), class);
            Rc::new(Slot::cut(span.arena.clone(), span.start + n * size, size, home))
        }))
    }

    /// Takes another arena of at least `size` bytes from the system. The caller has checked the
    /// room.
    fn grow(&self, size: usize) -> Result<()> {
        let reserved = self.bytes_reserved();
        let room = self.room();
        let least = match self.0.pages.huge {
            HugePages::Reserved => HUGE_PAGE_BYTES, // a smaller one has none
            HugePages::Transparent | HugePages::AsSystem => ARENA_MIN,
        };
        let most = (self.bytes_max() / 8).clamp(least, ARENA_MAX);
        let bytes = size.max(reserved.clamp(least, most).min(room));
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
    /// Puts a slot without remaining parts on the free list of its class.
    #[inline]
    pub(super) fn put_back(&self, slot: Rc<Slot>, class: usize) {
        self.classes[class].free.borrow_mut().push(slot);
    }

    /// Bytes cut at a time: a share of all memory, so that a size seldom runs out and never takes
    /// everything.
    fn batch_bytes(&self) -> usize {
        (self.bytes_reserved.get() / 4).min(BATCH_MAX)
    }

    /// Turns the free slots in the smallest run of free memory that can hold `size` bytes into
    /// uncut memory, only as many as needed. Does nothing if there is no such run.
    fn merge(&self, size: usize) {
        if self.bytes_free() < size {
            return; // spares the common refusal a search
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

    /// The place of a slot of `size` in the smallest run of free slots and uncut memory that holds
    /// one.
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

/// Joins adjacent pieces.
fn join(mut pieces: Vec<Span>) -> Vec<Span> {
    pieces.sort_unstable_by_key(|span| (Rc::as_ptr(&span.arena).addr(), span.start));
    pieces.dedup_by(|next, span| span.append(next));
    pieces
}

impl Class {
    /// Adds new slots and lends the last. Reserves room on the free list for all of them, so that a
    /// return never allocates.
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

/// The smallest class whose slots hold `len` bytes; `None` if that exceeds the address space.
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
    /// The memory of a pool's slot.
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

    /// Bytes to skip before a slot of `size`. Slots start at a page, large ones at a huge page or
    /// its half, and those smaller than a page at a multiple of their size, so that each lies on as
    /// few pages as possible.
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

    /// Extends it by `next` if that begins where it ends; returns whether it did.
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
