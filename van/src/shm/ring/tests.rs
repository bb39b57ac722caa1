//! Stamps, lines and heads of records, at every position of the ring.
#![allow(clippy::unwrap_used, reason = "tests")]
use super::*;
use proptest::prelude::*;

#[test]
fn a_stamp_is_read_at_its_own_position_only() {
    let inline = |len, words| Stamp { kind: Kind::Inline, len, words };
    for stamp in [inline(0, 0), inline(INLINE_BYTES_MAX, 255), Stamp::of(Kind::Write)] {
        for position in [0, 1, LINES, 7 * LINES + 3, (1 << 39) + 5] {
            let word = stamp.word(position);
            assert_eq!(Stamp::read(word), Ok(stamp));
            assert!(Stamp::is_at(word, position) && !Stamp::is_at(0, position));
            for other in [position + 1, position + LINES, position.wrapping_sub(LINES)] {
                assert!(!Stamp::is_at(word, other));
            }
        }
    }
}

#[test]
fn a_frame_like_the_last_one_takes_few_lines() {
    for (len, words, lines) in [(0, 0, 1), (64, 1, 1), (64 + 48, 1, 1), (64 + 49, 1, 2)] {
        assert_eq!(Stamp { kind: Kind::Inline, len, words }.lines(), lines);
    }
    assert_eq!(Stamp { kind: Kind::Inline, len: INLINE_BYTES_MAX, words: 255 }.lines(), 32);
    assert_eq!(line_at(LINES), line_at(0));
    assert_eq!(line_at(LINES - 1) + LINE_BYTES, SEGMENT_BYTES);
}

#[test]
fn a_record_goes_on_where_the_ring_begins() {
    let mut own = Own::new(SEGMENT_BYTES).unwrap();
    let foreign = Foreign::map(own.file(), SEGMENT_BYTES).unwrap();
    let bytes: Vec<u8> = (1..=200).collect();
    for position in [0, LINES - 1, 2 * LINES - 2] {
        for len in [0, 1, 7, 8, 20, LINE_BYTES, LINE_BYTES + 1, 200] {
            write(&mut own, position, &bytes[..len]);
            let mut found = vec![0; len.next_multiple_of(8)];
            read(&foreign, position, &mut found);
            assert_eq!(found[..len], bytes[..len], "{position}");
        }
    }
}

proptest! {
    #[test]
    fn no_word_is_more_than_it_may_be(word: u64, position in 0u64..1 << 41) {
        if let Ok(stamp) = Stamp::read(word) {
            prop_assert_eq!(stamp.word(position) as u32, word as u32);
            prop_assert!(stamp.len <= INLINE_BYTES_MAX && stamp.lines() <= 32);
        }
        prop_assert_eq!(Stamp::is_at(word, position), word >> 32 == turn(position));
    }

    #[test]
    fn a_head_is_the_last_one_with_its_words_changed(
        begin: Head,
        changes: Head,
        mask: u8,
        behind in 0usize..9,
        position in prop_oneof![0u64..9, LINES - 2..LINES],
    ) {
        let own_ring = Own::new(SEGMENT_BYTES).unwrap();
        let peers = Foreign::map(own_ring.file(), SEGMENT_BYTES).unwrap();
        let (mut sent, mut received, mut head) = (begin, begin, begin.map(u64::to_le_bytes));
        bits(mask).for_each(|at| head[at] = changes[at].to_le_bytes());
        let (changed, count) = write_head(own(&own_ring), position, behind, &head, &mut sent);
        let mut found = HeadBytes::default();
        let words = foreign(&peers);
        let read = read_head(words, position, behind, changed, &mut found, &mut received);
        prop_assert_eq!((changed, read, found), (mask, count, head));
        prop_assert_eq!((sent, received), (head.map(u64::from_le_bytes), sent));
    }
}
