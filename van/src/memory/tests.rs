//! Guarantees of buffers and shared parts, whoever owns their memory.

#![allow(clippy::unwrap_used, reason = "tests")]

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use super::*;
use crate::error::Error;

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
fn what_is_advanced_over_is_gone_and_no_more() {
    let pool = Pool::new(1 << 20);
    let mut whole = pool.allocate(64).unwrap();
    whole.iter_mut().zip(0..).for_each(|(b, i)| *b = i);
    let address = whole.as_ptr();
    let tail = whole.split_off(40);
    whole.advance(30);
    assert_eq!((whole.len(), whole[0]), (10, 30));
    whole.join(tail).unwrap();
    whole.advance(34);
    assert!(whole.is_empty());
    let past = std::panic::AssertUnwindSafe(|| whole.advance(1));
    assert!(std::panic::catch_unwind(past).is_err(), "there is nothing left");
    drop(whole);
    assert_eq!(pool.allocate(64).unwrap().as_ptr(), address, "the slot comes home whole");
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
    /// Records that it was dropped.
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
