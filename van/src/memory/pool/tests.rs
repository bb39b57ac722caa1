//! Guarantees of pools: alignment, the limit, which size gets whose memory, and the cost of a loan.

#![allow(clippy::unwrap_used, reason = "tests")]
use allocation_counter::measure;
use proptest::collection::vec;
use proptest::prelude::*;

use super::*;
use caravan_numa::HUGE_PAGE_BYTES;

use crate::memory::Shared;

const MIB: usize = 1 << 20;

#[test]
fn a_slot_is_the_smallest_that_holds_its_bytes() {
    for (len, class) in [(0, 0), (SLOT_MIN, 0), (SLOT_MIN + 1, 1), (1 << 20, 11)] {
        assert_eq!(class_of(len), Some(class), "{len} bytes");
    }
    assert_eq!(class_of(SLOT_MAX), Some(CLASSES - 2));
    assert_eq!((class_of(SLOT_MAX + 1), class_of(usize::MAX)), (None, None));
}

#[test]
#[cfg_attr(miri, ignore = "thousands of slots take Miri minutes")]
fn arenas_double_and_stop_at_the_limit() {
    let pool = Pool::new(32 * MIB + 700);
    let (mut held, mut reserved) = (Vec::new(), vec![0]);
    while let Ok(slot) = pool.allocate(SLOT_ALIGN) {
        held.push(slot);
        if reserved.last() != Some(&pool.bytes_reserved()) {
            reserved.push(pool.bytes_reserved());
        }
    }
    assert_eq!(reserved, [0, 1, 2, 4, 8, 12, 16, 20, 24, 28, 32].map(|count| count * MIB));
    assert_eq!(held.len(), 32 * MIB / SLOT_ALIGN);
    assert_eq!(pool.bytes_cut(), 32 * MIB);
    assert!(pool.allocate(SLOT_MIN).is_ok() && pool.allocate(SLOT_MIN + 1).is_err());
    assert_eq!(pool.bytes_reserved(), 32 * MIB + SLOT_MIN);
}

#[test]
#[cfg_attr(miri, ignore = "Miri ends where memory does")]
fn what_the_system_has_not_got_is_out_of_memory() {
    let pool = Pool::new(usize::MAX);
    let error = pool.allocate(1 << 46).unwrap_err();
    assert!(matches!(error, Error::OutOfMemory { reserved: 0, source: Some(_), .. }), "{error}");
    assert!(error.to_string().contains("the system has no more"), "{error}");
    assert!(pool.allocate(8).is_ok(), "what there is can still be had");
}

#[test]
fn a_part_says_where_in_its_pages_it_lies() {
    let shareable = cfg!(all(target_os = "linux", not(miri))); // Miri maps no files
    let pages = PageSource { shareable, ..PageSource::default() };
    let pool = Pool::from_pages(8 * MIB, pages, None);
    for len in [8, 700, 5000, 3 * MIB] {
        let mut buffer = pool.allocate(len).unwrap();
        buffer.advance(5);
        let (address, shared) = (buffer.as_ptr(), buffer.share());
        let (pages, at) = shared.pages().unwrap();
        assert_eq!(pages.base().addr().get() + at, address.addr(), "{len}");
        assert!(at + len <= pages.len() + 5);
        #[cfg(all(target_os = "linux", not(miri)))]
        assert!(pages.file().is_some());
    }
    assert!(Shared::from(bytes::Bytes::from_static(b"a user's")).pages().is_none());
    assert!(Buffer::adopt(vec![1u8]).pages().is_none());
}

#[test]
#[cfg_attr(miri, ignore = "Miri fills hundreds of MiB")]
fn a_large_slot_gets_an_arena_as_large() {
    let pool = Pool::new(600 * MIB);
    let large = pool.allocate(300 * MIB).unwrap();
    assert_eq!(pool.bytes_reserved(), 512 * MIB);
    assert_eq!(large.as_ptr().addr() % HUGE_PAGE_BYTES, 0);
    drop(pool.allocate(1).unwrap());
    assert_eq!(pool.bytes_reserved(), 587 * MIB, "an eighth of the limit");
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
fn reserved_pages_are_asked_for_from_the_first_slot_on() {
    let source = PageSource { huge: HugePages::Reserved, ..PageSource::default() };
    let pool = Pool::from_pages(64 * MIB, source, None);
    let slot = pool.allocate(8).unwrap();
    assert_eq!(slot.pages().unwrap().0.len(), HUGE_PAGE_BYTES);
    let small = Pool::from_pages(MIB, source, None);
    let slot = small.allocate(8).unwrap();
    let [line] = slot.pages().unwrap().0.shortfalls() else { panic!("it has no huge page") };
    assert!(line.contains("do not fill a reserved huge page"), "{line}");
}

#[test]
#[cfg_attr(miri, ignore = "Miri fills hundreds of MiB")]
fn large_slots_fill_huge_pages() {
    let pool = Pool::new(256 * MIB);
    let mut held = vec![pool.allocate(32 * MIB).unwrap(), pool.allocate(1).unwrap()];
    for len in [MIB, MIB, 2 * MIB, 5 * MIB, MIB, 3 * MIB] {
        let slot = pool.allocate(len).unwrap();
        let page = len.next_power_of_two().min(HUGE_PAGE_BYTES);
        assert!(slot.as_ptr().addr().is_multiple_of(page), "{len}");
        held.push(slot);
    }
}

#[test]
#[cfg_attr(miri, ignore = "Miri fills hundreds of MiB")]
fn a_small_slot_leaves_room_for_large_ones() {
    let pool = Pool::new(224 * MIB);
    let held = [64 * MIB, 1, 128 * MIB].map(|len| pool.allocate(len).unwrap());
    assert_eq!((held.len(), pool.bytes_reserved()), (3, 220 * MIB));
}

#[test]
#[cfg_attr(miri, ignore = "thousands of slots take Miri minutes")]
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
#[cfg_attr(miri, ignore = "thousands of slots take Miri minutes")]
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
#[cfg_attr(miri, ignore = "thousands of slots take Miri minutes")]
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

/// One step of a random sequence; numbers select among the held parts.
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

/// Sequences, and the part of their steps and bytes that is left: Miri looks at each byte.
const SEQUENCES: u32 = if cfg!(miri) { 2 } else { 64 };
const PART: usize = if cfg!(miri) { 16 } else { 1 };

fn step() -> impl Strategy<Value = Step> {
    let len = prop_oneof![
        6 => 0..5000 / PART,
        3 => 0..200_000 / PART / PART,
        1 => 0..3 * MIB / PART / PART,
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

/// Removes one of `all`, if there is any.
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

    /// Nobody else has written the held parts, so none overlaps another.
    fn check(&self) {
        let whole = |bytes: &[u8], fill: u8| bytes.iter().all(|&byte| byte == fill);
        assert!(self.buffers.iter().all(|(buffer, fill)| whole(buffer, *fill)));
        assert!(self.shared.iter().all(|(shared, fill)| whole(shared, *fill)));
        assert!(self.pool.bytes_cut() <= self.pool.bytes_reserved());
        assert!(self.pool.bytes_reserved() <= self.pool.bytes_max());
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(SEQUENCES))]

    /// Whatever is lent, split, shared and dropped: parts never overlap, the limit holds, and in
    /// the end all memory is back.
    #[test]
    fn parts_never_overlap_and_all_come_home(limit in 0..8 * MIB, steps in vec(step(), 0..200 / PART)) {
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
