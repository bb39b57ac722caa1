//! Criteo's click logs: `label <tab> 13 integers <tab> 26 categories` a line; any field but the
//! label may be empty.
//!
//! Path: source > **criteo** > `Examples`. A field is a group of one-hot columns: its content is
//! hashed to a key, an empty field has none, and all values are 1. Keys are 64 bits:
//!
//! ```text
//! 6 bits field, 1 to 39 | 58 bits: integers 2 × bucket(|n|), + 1 if n < 0; categories a hash
//! ```
//!
//! An integer's bucket is the number itself up to 7, and then one of four per octave: 8..9, 10..11,
//! 12..13, 14..15, 16..19 and so on, because counts differ by proportions, and rare large ones must
//! not each have a column. Two categories of a field collide with probability 2^-58. Because the
//! field comes first, an even slice of the key space lies in one field or few, and columns of a
//! field never share a row; `Job::group_bits` of 6 makes each field a block.

use caravan_van::draws::finish;
use memchr::memchr_iter;

use super::libsvm::Fault;
use super::{Examples, Labels, parse_key};

/// Fields of integers, then of categories.
const INTEGERS: usize = 13;
const CATEGORIES: usize = 26;
const FIELDS: usize = INTEGERS + CATEGORIES;
const FIRST_CATEGORY: usize = INTEGERS + 1;

/// Bits of a key below its field.
const FIELD_SHIFT: u32 = 58;
const _: () = assert!(FIELDS < 1 << (u64::BITS - FIELD_SHIFT), "fields fit above");

const LABEL: &str = "a label: 0 or 1";
const SEPARATED: &str = "39 fields behind the label, each after a tab";
const INTEGER: &str = "a whole number of at most 18 digits, or nothing";

/// Whether a row is of this format and not LIBSVM text: it has as many tabs, and no colon.
pub(super) fn is_row(text: &[u8]) -> bool {
    memchr_iter(b'\t', text).count() == FIELDS && !text.contains(&b':')
}

/// Appends one row to `part`; after a fault `part` is invalid.
pub(super) fn parse_row(text: &[u8], labels: Labels, part: &mut Examples) -> Result<(), Fault> {
    let text = text.strip_suffix(b"\r").unwrap_or(text);
    let mut start = 0;
    let mut label = 0.0;
    let mut fields = 0;
    for (field, word) in text.split(|&byte| byte == b'\t').enumerate() {
        let fault = |expected| Fault::Syntax { column: start, expected };
        match field {
            0 => label = parse_label(word).ok_or_else(|| fault(LABEL))?,
            _ if word.is_empty() => {}
            1..=INTEGERS => {
                let number = parse_integer(word).ok_or_else(|| fault(INTEGER))?;
                part.push(key(field, integer(number)), 1.0);
            }
            FIRST_CATEGORY..=FIELDS => {
                part.push(key(field, hash(word) >> (u64::BITS - FIELD_SHIFT)), 1.0)
            }
            _ => return Err(fault(SEPARATED)),
        }
        start += word.len() + 1;
        fields = field;
    }
    if fields != FIELDS {
        return Err(Fault::Syntax { column: text.len(), expected: SEPARATED });
    }
    part.end_row(labels.of_clicks(label));
    Ok(())
}

fn key(field: usize, payload: u64) -> u64 {
    (field as u64) << FIELD_SHIFT | payload
}

fn parse_label(word: &[u8]) -> Option<f64> {
    match word {
        b"1" => Some(1.0),
        b"0" => Some(0.0),
        _ => None,
    }
}

/// Digits that always fit an `i64`.
const DIGITS_MAX: usize = 18;

fn parse_integer(word: &[u8]) -> Option<i64> {
    let digits = word.strip_prefix(b"-").unwrap_or(word);
    if digits.len() > DIGITS_MAX {
        return None;
    }
    let number = parse_key(digits)? as i64;
    Some(if digits.len() < word.len() { -number } else { number })
}

/// The part of the key for an integer.
fn integer(number: i64) -> u64 {
    2 * bucket(number.unsigned_abs()) + u64::from(number < 0)
}

/// The number itself below 8, then four buckets an octave.
fn bucket(size: u64) -> u64 {
    match size.checked_ilog2() {
        Some(octave @ 2..) => 4 * (u64::from(octave) - 1) + (size >> (octave - 2) & 3),
        _ => size,
    }
}

/// A 64-bit hash, the same on every machine: folded products of 8 bytes at a time, then
/// SplitMix64's last steps.
fn hash(text: &[u8]) -> u64 {
    let mut hash = 0x9e37_79b9_7f4a_7c15 ^ text.len() as u64;
    let mut take = |bytes: [u8; 8]| {
        let product = u128::from(hash ^ u64::from_le_bytes(bytes)) * 0xd6e8_feb8_6659_fd93;
        hash = (product as u64 ^ (product >> 64) as u64).wrapping_add(0x9e37_79b9_7f4a_7c15);
    };
    let (chunks, rest) = text.as_chunks::<8>();
    chunks.iter().for_each(|chunk| take(*chunk));
    if !rest.is_empty() {
        let mut bytes = [0; 8];
        bytes[..rest.len()].copy_from_slice(rest);
        take(bytes);
    }
    finish(hash)
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

    use std::collections::HashSet;

    use super::*;
    use crate::data::{Shard, read, testing::Folder};

    /// A row with these fields, counted from 1, and all others empty.
    fn line(label: &str, fields: &[(usize, &str)]) -> String {
        let mut words = vec![""; FIELDS + 1];
        words[0] = label;
        fields.iter().for_each(|&(field, word)| words[field] = word);
        words.join("\t")
    }

    fn parse(line: &str) -> Result<Examples, Fault> {
        let mut part = Examples::default();
        parse_row(line.as_bytes(), Labels::Classes, &mut part).map(|()| part)
    }

    #[test]
    fn fields_become_keys_and_empty_ones_nothing() {
        let text = line("1", &[(1, "5"), (3, "-1"), (13, "4096"), (14, "68fd1e64"), (39, "x")]);
        let row = parse(&text).ok().unwrap();
        assert_eq!((&row.labels[..], row.values), (&[1.0][..], None));
        let parts: Vec<_> = row.keys.iter().map(|key| (key >> 58, key & ((1 << 58) - 1))).collect();
        assert_eq!(parts[..3], [(1, 10), (3, 3), (13, 2 * 44)]);
        assert_eq!(parts[3..].iter().map(|part| part.0).collect::<Vec<_>>(), [14, 39]);
        assert_eq!(parts[3].1, 270_003_034_780_452_742, "hashes are for ever");
        let empty = parse(&line("0", &[])).ok().unwrap();
        assert_eq!((&empty.labels[..], empty.nonzeros()), (&[-1.0][..], 0));
        let other = parse(&line("0", &[(15, "68fd1e64"), (14, "68fd1e65")])).ok().unwrap();
        assert!(other.keys.iter().all(|key| !row.keys.contains(key)));
        assert_eq!(parse(&(text + "\r")).ok().unwrap().keys, row.keys);
    }

    #[test]
    fn buckets_grow_by_a_quarter_octave() {
        assert!((0..8).all(|size| bucket(size) == size));
        let ends: Vec<u64> = (8..41).filter(|&size| bucket(size) != bucket(size - 1)).collect();
        assert_eq!(ends, [8, 10, 12, 14, 16, 20, 24, 28, 32, 40]);
        assert!((1..5000).all(|size| (0..=1).contains(&(bucket(size) - bucket(size - 1)))));
        assert_eq!(bucket(u64::MAX), 4 * 62 + 3);
        assert_eq!([integer(-3), integer(3), integer(0)], [7, 6, 0]);
    }

    #[test]
    fn hashes_of_texts_differ() {
        let texts = (0..100_000).map(|i| format!("{i:08x}")).chain((0..40).map(|n| "a".repeat(n)));
        let hashes: HashSet<u64> = texts.map(|text| hash(text.as_bytes()) >> 6).collect();
        assert_eq!(hashes.len(), 100_040);
    }

    #[test]
    fn faults_name_the_place() {
        for (text, column, expected) in [
            (line("2", &[]), 0, LABEL),
            (line("", &[]), 0, LABEL),
            (line("1", &[(2, "x")]), 3, INTEGER),
            (line("1", &[(2, "1234567890123456789")]), 3, INTEGER),
            (line("1", &[(1, "-")]), 2, INTEGER),
            (line("1", &[]) + "\t", 41, SEPARATED),
            ("1\t2".to_owned(), 3, SEPARATED),
        ] {
            let Err(Fault::Syntax { column: found, expected: wanted }) = parse(&text) else {
                panic!("{text:?} was read");
            };
            assert_eq!((found, wanted), (column, expected), "{text:?}");
        }
    }

    #[test]
    fn files_are_told_by_their_rows() {
        let folder = Folder::new("criteo");
        let text = format!("{}\n{}\n", line("1", &[(1, "5"), (20, "ab")]), line("0", &[(2, "0")]));
        let path = folder.write("day_0", text.as_bytes());
        let threads = std::num::NonZeroUsize::MIN;
        let examples = read(&[path], Shard::ALL, threads).unwrap();
        assert_eq!((&examples.labels[..], examples.nonzeros()), (&[1.0, -1.0][..], 3));
        let path = folder.write("bad", (text + "1\t1\n").as_bytes());
        let error = read(&[path], Shard::ALL, threads).unwrap_err().to_string();
        assert!(
            error.contains("bad:3:4: found the end of the line, expected 39 fields"),
            "{error}"
        );
        let tabbed: String = (1..=FIELDS).map(|key| format!("\t{key}:2")).collect();
        let path = folder.write("libsvm", format!("1{tabbed}\n").as_bytes());
        assert_eq!(read(&[path], Shard::ALL, threads).unwrap().values, Some(vec![2.0; FIELDS]));
    }
}
