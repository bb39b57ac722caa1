//! A thread's pool: arenas taken from the system, and slots cut from them.
//!
//! A slot that comes home goes on the free list of its size, and leaves it for the next buffer of that size: the path is a pop
//! and a push. Only when a list is empty is there more to do, in this order:
//! 1. cut a slot from memory that is uncut, the tail of some arena;
//! 2. merge: what lies on the free lists of all sizes is uncut again, neighbours as one piece;
//! 3. take another arena from the system, as large as all before it together, so that a device gets to know few regions.
//!
//! Merging takes from other sizes what they may soon want back. So it is done once an arena, which lets sizes that are out of
//! use go to those that took their place, and any number of times only where the limit leaves no room for another arena.

use std::cell::{Cell, RefCell};
use std::fmt;
use std::rc::Rc;

use super::registration::Registrar;
use super::{Buffer, Memory, Part, Region, SLOT_ALIGN, Slot};
use crate::error::{Error, Result};

/// Smallest slot, in bytes. A power of two.
const SLOT_MIN: usize = 512;

/// The first arena, in bytes: what a pool takes at least, where its limit lets it.
const ARENA_MIN: usize = 1 << 20;

/// Arenas grow up to this many bytes; only a slot larger than that has a larger one.
const ARENA_MAX: usize = 256 << 20;

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
    bytes_max: usize,
    /// Whether free slots were merged since the last arena was taken.
    merged: Cell<bool>,
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
        Pool::with(bytes_max, None)
    }

    /// Likewise, and every arena is registered with `registrar` as it is made.
    pub fn registered(bytes_max: usize, registrar: Rc<dyn Registrar>) -> Self {
        Pool::with(bytes_max, Some(registrar))
    }

    fn with(bytes_max: usize, registrar: Option<Rc<dyn Registrar>>) -> Self {
        Pool(Rc::new(Shelf {
            classes: std::array::from_fn(|_| Class::default()),
            uncut: RefCell::default(),
            bytes_cut: Cell::new(0),
            bytes_reserved: Cell::new(0),
            bytes_max,
            merged: Cell::new(true), // there is nothing to merge
            registrar,
        }))
    }

    /// Lends `len` bytes, 8-byte aligned or better; a reused slot keeps its former contents.
    ///
    /// # Errors
    /// [`Error::OutOfMemory`] when the pool would outgrow its limit; the registrar's when it refuses another arena.
    pub fn allocate(&self, len: usize) -> Result<Buffer> {
        let class = class_of(len).ok_or_else(|| self.out_of_memory(len))?;
        let free = self.0.classes[class].free.borrow_mut().pop();
        let slot = match free {
            Some(slot) => slot,
            None => self.supply(class, len)?,
        };
        Ok(Buffer(Part { slot, start: 0, len }))
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

    /// A slot for a class that has none free.
    #[cold]
    fn supply(&self, class: usize, wanted: usize) -> Result<Rc<Slot>> {
        if let Some(slot) = self.cut(class) {
            return Ok(slot);
        }
        let (size, room) = (SLOT_MIN << class, self.bytes_max() - self.bytes_reserved());
        if size > room || !self.0.merged.replace(true) {
            self.0.merge();
            if let Some(slot) = self.cut(class) {
                return Ok(slot);
            }
        }
        if size > room {
            return Err(self.out_of_memory(wanted));
        }
        self.grow(size)?;
        Ok(self.cut(class).expect("an arena is at least as large as the slot it is made for"))
    }

    /// Cuts a slot of `class` from the smallest piece of uncut memory that holds one.
    fn cut(&self, class: usize) -> Option<Rc<Slot>> {
        let (shelf, size) = (&*self.0, SLOT_MIN << class);
        let mut uncut = shelf.uncut.borrow_mut();
        let fitting = uncut.iter().enumerate().filter(|(_, span)| span.holds(size));
        let (at, _) = fitting.min_by_key(|(_, span)| span.len)?;
        let span = uncut.swap_remove(at);
        let padding = span.padding(size);
        let (before, span) = span.split_at(padding);
        let (span, after) = span.split_at(size);
        uncut.extend([before, after].into_iter().filter(|rest| rest.len > 0));
        shelf.bytes_cut.update(|bytes| bytes + size);
        shelf.classes[class].add_one();
        Some(Rc::new(Slot {
            memory: Memory::Arena(span.arena),
            offset: span.start,
            capacity: size,
            class,
            pool: Rc::downgrade(&self.0),
        }))
    }

    /// Takes another arena from the system, of at least `size` bytes; there is room for those.
    fn grow(&self, size: usize) -> Result<()> {
        let reserved = self.bytes_reserved();
        let room = self.bytes_max() - reserved;
        let bytes = size.max(reserved.clamp(ARENA_MIN, ARENA_MAX).min(room));
        let len = bytes - bytes % SLOT_MIN;
        let arena = Rc::new(Region::zeroed(len).ok_or_else(|| self.out_of_memory(size))?);
        if let Some(registrar) = &self.0.registrar {
            arena.local_key(&**registrar)?;
        }
        self.0.uncut.borrow_mut().push(Span { arena, start: 0, len });
        self.0.bytes_reserved.set(reserved + len);
        self.0.merged.set(false);
        Ok(())
    }

    fn out_of_memory(&self, wanted: usize) -> Error {
        Error::OutOfMemory { wanted, reserved: self.bytes_reserved(), limit: self.bytes_max() }
    }
}

impl Shelf {
    /// Puts a slot that nothing is left of on the free list of its size.
    pub(super) fn put_back(&self, slot: Rc<Slot>) {
        self.classes[slot.class].free.borrow_mut().push(slot);
    }

    /// Makes uncut memory of all free slots, in pieces as long as can be.
    fn merge(&self) {
        let mut uncut = self.uncut.borrow_mut();
        for class in &self.classes {
            let mut free = class.free.borrow_mut();
            class.count.update(|count| count - free.len());
            self.bytes_cut.update(|bytes| bytes - free.iter().map(|s| s.capacity).sum::<usize>());
            uncut.extend(free.drain(..).filter_map(|slot| Span::of(&slot)));
        }
        uncut.sort_unstable_by_key(|span| (Rc::as_ptr(&span.arena).addr(), span.start));
        uncut.dedup_by(|next, span| span.append(next));
    }
}

impl Class {
    /// Counts one more slot, so that none has to wait for room when it comes home.
    fn add_one(&self) {
        let count = self.count.get() + 1;
        self.count.set(count);
        let mut free = self.free.borrow_mut();
        let missing = count - free.len();
        free.reserve(missing);
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

/// `len` bytes of an arena from `start`, both multiples of [`SLOT_MIN`], that belong to no slot.
struct Span {
    arena: Rc<Region>,
    start: usize,
    len: usize,
}

impl Span {
    /// The memory of a slot, if it is an arena's.
    fn of(slot: &Slot) -> Option<Span> {
        match &slot.memory {
            Memory::Arena(arena) => {
                Some(Span { arena: arena.clone(), start: slot.offset, len: slot.capacity })
            }
            Memory::User(_) => None,
        }
    }

    /// Bytes to skip before a slot of `size`: slots begin at a page, those smaller than one at a multiple of their size, so
    /// that none reaches into a page that it does not fill.
    fn padding(&self, size: usize) -> usize {
        self.start.next_multiple_of(size.min(SLOT_ALIGN)) - self.start
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
