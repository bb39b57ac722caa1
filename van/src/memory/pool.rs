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

/// Most bytes cut into slots at a time, but for a slot that is larger: 2048 of the smallest, a moment's work.
const BATCH_MAX: usize = 1 << 20;

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
    /// How many bytes may still change their size before the next arena is taken.
    bytes_movable: Cell<usize>,
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
            bytes_movable: Cell::new(0),
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
        let movable = self.0.bytes_movable.get();
        if size > room || size <= movable {
            self.0.bytes_movable.set(movable.saturating_sub(size));
            self.0.merge(size);
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
            Rc::new(Slot {
                memory: Memory::Arena(span.arena.clone()),
                offset: span.start + n * size,
                capacity: size,
                class,
                pool: Rc::downgrade(&self.0),
            })
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
        self.0.bytes_movable.set(reserved + len);
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

    /// How much is cut at a time: a part of all there is, so that a size seldom has to ask and never takes all.
    fn batch_bytes(&self) -> usize {
        (self.bytes_reserved.get() / 4).min(BATCH_MAX)
    }

    /// Makes uncut memory of the free slots in the smallest run of free memory that a slot of `size` fits into, as many as it
    /// takes; all others stay as they are. Does nothing if there is no such run.
    fn merge(&self, size: usize) {
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

fn class_of(len: usize) -> Option<usize> {
    let size =
        len.max(SLOT_MIN).checked_next_power_of_two().filter(|&s| s <= isize::MAX as usize)?;
    Some((size.trailing_zeros() - SLOT_MIN.trailing_zeros()) as usize)
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
        Span { arena: arena.clone(), start: slot.offset, len: slot.capacity }
    }

    fn overlaps(&self, other: &Span) -> bool {
        Rc::ptr_eq(&self.arena, &other.arena)
            && self.start < other.start + other.len
            && other.start < self.start + self.len
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

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, reason = "tests")]
    use allocation_counter::measure;
    use proptest::collection::vec;
    use proptest::prelude::*;

    use super::*;
    use crate::memory::{HUGE_PAGE, Shared};

    const MIB: usize = 1 << 20;

    /// Uncut pieces, longest first.
    fn uncut(pool: &Pool) -> Vec<usize> {
        let mut lens: Vec<_> = pool.0.uncut.borrow().iter().map(|span| span.len).collect();
        lens.sort_unstable_by(|a, b| b.cmp(a));
        lens
    }

    #[test]
    fn arenas_double_and_stop_at_the_limit() {
        let pool = Pool::new(20 * MIB + 700);
        let (mut held, mut reserved) = (Vec::new(), vec![0]);
        while let Ok(slot) = pool.allocate(SLOT_ALIGN) {
            held.push(slot);
            if reserved.last() != Some(&pool.bytes_reserved()) {
                reserved.push(pool.bytes_reserved());
            }
        }
        let last = 20 * MIB + SLOT_MIN;
        assert_eq!(reserved, [0, MIB, 2 * MIB, 4 * MIB, 8 * MIB, 16 * MIB, last]);
        assert_eq!(held.len(), 20 * MIB / SLOT_ALIGN);
        assert_eq!((pool.bytes_cut(), uncut(&pool)), (20 * MIB, vec![SLOT_MIN]));
    }

    #[test]
    fn a_large_slot_gets_an_arena_as_large() {
        let pool = Pool::new(600 * MIB);
        let large = pool.allocate(300 * MIB).unwrap();
        assert_eq!(pool.bytes_reserved(), 512 * MIB);
        assert_eq!(large.as_ptr().addr() % HUGE_PAGE, 0);
        drop(pool.allocate(1).unwrap());
        assert_eq!(pool.bytes_reserved(), 600 * MIB, "what the limit leaves");
    }

    #[test]
    fn a_slot_lies_on_as_few_pages_as_can_be() {
        let pool = Pool::new(64 * MIB);
        let mut held = Vec::new();
        for len in [1, 513, 3000, 600, 4096, 1, 1025, 5000, 512, 1500, 3 * MIB, 700, 70_000] {
            let slot = pool.allocate(len).unwrap();
            let (first, last) = (slot.as_ptr().addr(), slot.as_ptr().addr() + len - 1);
            assert_eq!(last / SLOT_ALIGN - first / SLOT_ALIGN, (len - 1) / SLOT_ALIGN, "{len}");
            assert!(first.is_multiple_of(len.next_power_of_two().clamp(SLOT_MIN, SLOT_ALIGN)));
            held.push(slot);
        }
        assert_eq!(pool.bytes_reserved(), 5 * MIB, "an arena for the small ones, one for 3 MiB");
    }

    #[test]
    fn at_the_limit_memory_moves_between_sizes() {
        let pool = Pool::new(MIB);
        for _ in 0..3 {
            let small: Vec<_> = (0..2 * MIB / 1024).map(|_| pool.allocate(8).unwrap()).collect();
            assert!(pool.allocate(8).is_err());
            drop(small);
            let large = pool.allocate(MIB).unwrap();
            assert!(pool.allocate(8).is_err());
            drop(large);
        }
        assert_eq!(pool.bytes_reserved(), MIB);
    }

    #[test]
    fn what_one_phase_leaves_serves_the_next() {
        let pool = Pool::new(64 * MIB);
        drop((0..4 * MIB / SLOT_ALIGN).map(|_| pool.allocate(8000).unwrap()).collect::<Vec<_>>());
        assert_eq!(pool.bytes_reserved(), 8 * MIB);
        drop((0..4).map(|_| pool.allocate(MIB).unwrap()).collect::<Vec<_>>());
        assert_eq!(pool.bytes_reserved(), 8 * MIB);
    }

    #[test]
    fn sizes_in_turn_do_not_take_from_each_other_for_ever() {
        let pool = Pool::new(64 * MIB);
        let turn = || {
            drop(pool.allocate(MIB).unwrap());
            drop(pool.allocate(MIB / 2).unwrap());
        };
        turn();
        assert_eq!(pool.bytes_reserved(), MIB, "the second took what the first had left");
        turn();
        assert_eq!(pool.bytes_reserved(), 2 * MIB);
        assert_eq!(measure(|| (0..100).for_each(|_| turn())).count_total, 0);
    }

    #[test]
    fn neither_lending_nor_coming_home_costs_a_heap_allocation() {
        let pool = Pool::new(64 * MIB);
        let lend = |held: &mut Vec<Buffer>| {
            held.extend((0..3000).map(|i| pool.allocate(1 << (i % 16)).unwrap()));
        };
        let mut held = Vec::with_capacity(3000);
        lend(&mut held);
        assert_eq!(measure(|| held.clear()).count_total, 0, "the first time home");
        assert_eq!(measure(|| lend(&mut held)).count_total, 0);
    }

    #[test]
    fn what_is_lent_outlives_the_pool() {
        let pool = Pool::new(MIB);
        let mut last = pool.allocate(1000).unwrap();
        drop(pool);
        last.fill(3);
        assert!(last.iter().all(|&byte| byte == 3));
    }

    /// One step of a random life; numbers choose among what is held.
    #[derive(Debug, Clone)]
    enum Step {
        Allocate(usize),
        Split(usize, usize),
        Share(usize),
        Clone(usize),
        Reclaim(usize),
        Drop(usize),
        DropHalf,
    }

    fn step() -> impl Strategy<Value = Step> {
        let len = prop_oneof![
            6 => 0..5000usize,
            3 => 0..200_000usize,
            1 => 0..3 * MIB,
        ];
        prop_oneof![
            8 => len.prop_map(Step::Allocate),
            2 => any::<(usize, usize)>().prop_map(|(which, at)| Step::Split(which, at)),
            1 => any::<usize>().prop_map(Step::Share),
            1 => any::<usize>().prop_map(Step::Clone),
            1 => any::<usize>().prop_map(Step::Reclaim),
            4 => any::<usize>().prop_map(Step::Drop),
            1 => Just(Step::DropHalf),
        ]
    }

    /// Buffers and shared parts, each with the byte that it was filled with.
    struct Held {
        pool: Pool,
        buffers: Vec<(Buffer, u8)>,
        shared: Vec<(Shared, u8)>,
        fill: u8,
    }

    /// Takes one of `all` out, if there is any.
    fn pick<T>(all: &mut Vec<T>, which: usize) -> Option<T> {
        (!all.is_empty()).then(|| all.swap_remove(which % all.len()))
    }

    impl Held {
        fn keep(&mut self, mut buffer: Buffer) {
            self.fill = self.fill.wrapping_add(1);
            buffer.fill(self.fill);
            self.buffers.push((buffer, self.fill));
        }

        fn apply(&mut self, step: Step) {
            match step {
                Step::Allocate(len) => {
                    if let Ok(buffer) = self.pool.allocate(len) {
                        assert_eq!((buffer.len(), buffer.as_ptr().addr() % 8), (len, 0));
                        self.keep(buffer);
                    }
                }
                Step::Split(which, at) => {
                    if let Some((mut buffer, _)) = pick(&mut self.buffers, which) {
                        let tail = buffer.split_off(at % (buffer.len() + 1));
                        self.keep(buffer);
                        self.keep(tail);
                    }
                }
                Step::Share(which) => self.shared.extend(
                    pick(&mut self.buffers, which).map(|(buffer, fill)| (buffer.share(), fill)),
                ),
                Step::Clone(which) => {
                    if let Some((shared, fill)) = pick(&mut self.shared, which) {
                        let half = shared.slice(shared.len() / 2..);
                        self.shared.extend([(shared, fill), (half, fill)]);
                    }
                }
                Step::Reclaim(which) => {
                    if let Some((shared, fill)) = pick(&mut self.shared, which) {
                        match shared.reclaim() {
                            Ok(buffer) => self.buffers.push((buffer, fill)),
                            Err(shared) => self.shared.push((shared, fill)),
                        }
                    }
                }
                Step::Drop(which) => {
                    let dropped = pick(&mut self.buffers, which).map(drop);
                    dropped.or_else(|| pick(&mut self.shared, which).map(drop));
                }
                Step::DropHalf => {
                    self.buffers.truncate(self.buffers.len() / 2);
                    self.shared.truncate(self.shared.len() / 2);
                }
            }
        }

        /// Nobody else has written what is held, so nothing overlaps what is written.
        fn check(&self) {
            let whole = |bytes: &[u8], fill: u8| bytes.iter().all(|&byte| byte == fill);
            assert!(self.buffers.iter().all(|(buffer, fill)| whole(buffer, *fill)));
            assert!(self.shared.iter().all(|(shared, fill)| whole(shared, *fill)));
            assert!(self.pool.bytes_cut() <= self.pool.bytes_reserved());
            assert!(self.pool.bytes_reserved() <= self.pool.bytes_max());
        }
    }

    proptest! {
        #![proptest_config(ProptestConfig::with_cases(64))]

        /// Whatever is lent, split, shared and dropped: parts never overlap, the limit holds, and in the end all of it is home.
        #[test]
        fn parts_never_overlap_and_all_come_home(limit in 0..8 * MIB, steps in vec(step(), 0..200)) {
            let (buffers, shared, pool) = (Vec::new(), Vec::new(), Pool::new(limit));
            let mut held = Held { pool: pool.clone(), buffers, shared, fill: 0 };
            let count = steps.len();
            for (n, step) in steps.into_iter().enumerate() {
                held.apply(step);
                if n % 16 == 0 || n + 1 == count {
                    held.check();
                }
            }
            drop(held);
            for class in &pool.0.classes {
                prop_assert_eq!(class.free.borrow().len(), class.count.get());
            }
            let (pieces, runs) = (pool.0.pieces(), join(pool.0.pieces()));
            prop_assert_eq!(pieces.iter().map(|span| span.len).sum::<usize>(), pool.bytes_reserved());
            prop_assert_eq!(runs.iter().map(|span| span.len).sum::<usize>(), pool.bytes_reserved());
            prop_assert!(runs.iter().all(|run| (run.start, run.len) == (0, run.arena.len)), "no arena has a gap");
        }
    }
}
