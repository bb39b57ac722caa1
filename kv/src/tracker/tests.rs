//! Slots of requests, and their outcomes, as a worker enters and claims them.

#![allow(clippy::unwrap_used, reason = "tests")]

use super::*;

/// Records one answer as the worker does.
fn answer(tracker: &mut Tracker, timestamp: Timestamp, error: Option<Error>) {
    let progress = tracker.progress(timestamp.0).unwrap();
    progress.missing -= 1;
    progress.error = progress.error.take().or(error);
    if progress.missing == 0 {
        tracker.release_if_nothing_to_claim(timestamp.0);
    }
}

#[test]
fn slots_are_used_again_and_timestamps_are_not() {
    let mut tracker = Tracker::default();
    let mut last = 0;
    for _ in 0..1000 {
        let push = tracker.begin(Op::Push).unwrap();
        assert!(push.0 > last && !tracker.is_settled(push.0));
        last = push.0;
        answer(&mut tracker, push, None);
        assert!(tracker.is_settled(push.0) && tracker.was_made(push.0));
    }
    assert_eq!((tracker.slots.len(), tracker.free.len()), (1, 1));
    assert!(!tracker.was_made(last + (1 << SLOT_BITS)) && !tracker.was_made(last + 1));
    assert!(!tracker.was_made(0) && !tracker.was_made(u64::MAX));
}

#[test]
fn an_error_is_told_once_and_the_slot_stays_until_all_have_answered() {
    let mut tracker = Tracker::default();
    let pull = tracker.begin(Op::Pull).unwrap();
    tracker.progress(pull.0).unwrap().missing = 2;
    assert!(!tracker.is_settled(pull.0));
    answer(&mut tracker, pull, Some(Error::Config("no".to_owned())));
    assert!(tracker.is_settled(pull.0));
    assert!(tracker.claim(pull).unwrap().is_err());
    assert!(tracker.claim(pull).unwrap().is_ok(), "told once");
    let other = tracker.begin(Op::Pull).unwrap();
    assert_ne!(other.0 & 0xff, pull.0 & 0xff, "its slot is not free yet");
    answer(&mut tracker, pull, None);
    assert!(tracker.progress(pull.0).is_none() && tracker.free.len() == 1);
}

#[test]
fn answers_stay_until_they_are_claimed() {
    let mut tracker = Tracker::default();
    let pull = tracker.begin(Op::Pull).unwrap();
    answer(&mut tracker, pull, None);
    assert!(tracker.progress(pull.0).is_some());
    tracker.progress(pull.0).unwrap().answer.lengths.push(7);
    assert_eq!(tracker.claim(pull).unwrap().unwrap().lengths, [7]);
    assert!(tracker.claim(pull).unwrap().unwrap().lengths.is_empty());
}

#[test]
fn short_requests_are_completed_by_their_own_answer_alone() {
    let mut tracker = Tracker::default();
    let push = tracker.begin_short(Op::Push, 1, None).unwrap();
    let pull = tracker.begin_short(Op::Pull, 1, Some(Buffer::adopt(vec![0u8; 8]))).unwrap();
    assert!(!tracker.complete(push.0, 0, &[]), "another server");
    assert!(!tracker.complete(pull.0, 1, &[]), "it asked for values");
    assert!(!tracker.complete(pull.0, 1, &[7; 7]), "too few");
    assert!(!tracker.is_settled(push.0) && !tracker.is_settled(pull.0));
    assert!(tracker.claim(push).is_none() && tracker.claim(pull).is_none());
    assert!(tracker.complete(push.0, 1, &[]) && tracker.complete(pull.0, 1, &[7; 8]));
    assert!(!tracker.complete(push.0, 1, &[]) && !tracker.complete(pull.0, 1, &[8; 8]));
    assert!(tracker.claim(push).unwrap().unwrap().values.is_none());
    assert_eq!(tracker.claim(pull).unwrap().unwrap().bytes(), [7; 8]);
    assert!(tracker.claim(pull).unwrap().unwrap().values.is_none(), "only once");
    assert_eq!((tracker.free.len(), tracker.progress.len()), (2, 0));
    let next = Timestamp(pull.0 + (1 << SLOT_BITS));
    assert!(tracker.claim(Timestamp(0)).is_none() && tracker.claim(next).is_none());
}

#[test]
fn progress_of_a_short_request_begins_with_what_is_known_of_it() {
    let mut tracker = Tracker::default();
    let pull = tracker.begin_short(Op::Pull, 3, Some(Buffer::adopt(vec![1u8; 8]))).unwrap();
    let (progress, at) = tracker.answered(pull.0, 3).unwrap();
    assert_eq!((progress.missing, progress.parts[at].into.as_deref()), (1, Some(&[1; 8][..])));
    assert!(tracker.answered(pull.0, 3).is_none(), "only once");
    assert!(!tracker.complete(pull.0, 3, &[2; 8]));
    progress_is_over(&mut tracker, pull);

    let pull = tracker.begin_short(Op::Pull, 3, Some(Buffer::adopt(vec![1u8; 8]))).unwrap();
    assert!(tracker.complete(pull.0, 3, &[2; 8]));
    let progress = tracker.progress(pull.0).unwrap();
    assert_eq!((progress.missing, progress.answer.bytes()), (0, &[2; 8][..]));
    assert!(tracker.is_settled(pull.0));
    assert_eq!(tracker.claim(pull).unwrap().unwrap().bytes(), [2; 8]);

    let push = tracker.begin_short(Op::Push, 3, None).unwrap();
    tracker.fail(push, Error::Config("no".to_owned()));
    assert!(tracker.is_settled(push.0));
    assert!(tracker.claim(push).unwrap().is_err() && tracker.claim(push).unwrap().is_ok());
    assert_eq!((tracker.progress.len(), tracker.spare.len()), (1, 1));
}

/// Records the last answer and claims it as the worker does.
fn progress_is_over(tracker: &mut Tracker, pull: Timestamp) {
    answer(tracker, pull, None);
    tracker.progress(pull.0).unwrap().parts.clear();
    tracker.claim(pull).unwrap().unwrap();
}
