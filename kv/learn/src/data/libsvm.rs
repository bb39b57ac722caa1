//! Parses and writes LIBSVM text: `label key:value ...` a line. Not for ranking data (`qid:`).
//!
//! Path: source > read > **libsvm** > `Examples`. Keys go up to 2^64 - 1, values are finite, a row
//! may list its keys in any order, and an error names file, line and column. Blank lines and text
//! after a `#` are skipped; lines may end in `\r\n`.

use std::collections::HashMap;
use std::path::Path;

use memchr::memchr;

use super::number::{leading_digits, leading_value};
use super::words::{is_blank, word_end, words};
use super::{Examples, Labels, Row, parse_key, parse_value};
use crate::{Error, Result};

/// Appends `row` to `out` as one line, with values as plain decimals that read back the same.
pub fn write_row(out: &mut Vec<u8>, row: Row<'_>) {
    use std::io::Write;
    match row.label {
        1.0 => out.extend_from_slice(b"+1"),
        label => write!(out, "{label}").expect("a Vec takes all that is written"),
    }
    for (at, key) in row.keys.iter().enumerate() {
        let value = row.values.map_or(1.0, |values| values[at]);
        write!(out, " {key}:{value}").expect("a Vec takes all that is written");
    }
    out.push(b'\n');
}

const PAIR: &str = "`key:value`";
const NO_QID: &str = "`key:value`; ranking data is not supported, remove the `qid:` fields";
const KEY: &str = "a key: a whole number from 0 to 18446744073709551615";
const VALUE: &str = "a finite number";

/// What is wrong with a line, before its place is known; columns here count from 0.
pub(super) enum Fault {
    Syntax { column: usize, expected: &'static str },
    DuplicateKey,
}

impl Fault {
    /// The error for this fault; `text` is the whole line.
    pub(super) fn at(self, path: &Path, line: u64, text: &[u8]) -> Error {
        let path = path.to_path_buf();
        match self {
            Self::Syntax { column, expected } => Error::Syntax {
                path,
                line,
                column: column + 1,
                found: shorten(&text[column..]),
                expected,
            },
            Self::DuplicateKey => {
                let (key, first, second) = find_duplicate(text);
                Error::DuplicateKey { path, line, column: second + 1, first_column: first + 1, key }
            }
        }
    }
}

/// Bytes of the offending text in an error.
const SHOWN_BYTES: usize = 32;

/// The first word of `text`, shortened to fit a message.
pub(crate) fn shorten(text: &[u8]) -> String {
    let word = &text[..word_end(text, 0)];
    match word.len() {
        0 if text.is_empty() => "the end of the line".to_owned(),
        0 => "a blank".to_owned(),
        1..=SHOWN_BYTES => format!("`{}`", word.escape_ascii()),
        _ => format!("`{}...`", word[..SHOWN_BYTES].escape_ascii()),
    }
}

fn without_comment(text: &[u8]) -> &[u8] {
    memchr(b'#', text).map_or(text, |comment| &text[..comment])
}

/// Appends one row to `part`; after a fault `part` is invalid.
pub(super) fn parse_row(text: &[u8], labels: Labels, part: &mut Examples) -> Result<(), Fault> {
    let text = without_comment(text);
    let (column, word) = words(text).next().expect("a row is a line that is not blank");
    let label = labels.parse(word).map_err(|expected| Fault::Syntax { column, expected })?;
    let start = part.keys.len();
    let mut ascending = true;
    let mut zeros = false;
    let mut last = None;
    let mut at = column + word.len();
    while let Some(blanks) = text[at..].iter().position(|&byte| !is_blank(byte)) {
        at += blanks;
        let (key, value, end) = match short_pair(text, at) {
            Some(short) => short,
            None => {
                let end = word_end(text, at);
                let (key, value) = parse_pair(at, &text[at..end])?;
                (key, value, end)
            }
        };
        ascending &= last.is_none_or(|last| last < key);
        last = Some(key);
        zeros |= value == 0.0;
        part.push(key, value);
        at = end;
    }
    if !ascending || zeros {
        tidy_row(part, start)?;
    }
    part.end_row(label);
    Ok(())
}

/// Key and value of a word at `at` in the usual form, and its end. `None` if it needs the full
/// parser.
fn short_pair(text: &[u8], at: usize) -> Option<(u64, f64, usize)> {
    let word = &text[at..];
    let (key, digits) = leading_digits(word);
    if digits == 0 || word.get(digits) != Some(&b':') {
        return None;
    }
    let (value, len) = match word[digits + 1..] {
        [b'1'] => (1.0, 1),
        [b'1', after, ..] if is_blank(after) => (1.0, 1),
        _ => leading_value(&word[digits + 1..])?,
    };
    let end = digits + 1 + len;
    word.get(end).is_none_or(|&after| is_blank(after)).then_some((key, value, at + end))
}

fn parse_pair(column: usize, word: &[u8]) -> Result<(u64, f64), Fault> {
    let Some(colon) = word.iter().position(|&byte| byte == b':') else {
        return Err(Fault::Syntax { column, expected: PAIR });
    };
    let Some(key) = parse_key(&word[..colon]) else {
        let expected = if word.starts_with(b"qid:") { NO_QID } else { KEY };
        return Err(Fault::Syntax { column, expected });
    };
    let value = parse_value(&word[colon + 1..]);
    value
        .map(|value| (key, value))
        .ok_or(Fault::Syntax { column: column + colon + 1, expected: VALUE })
}

/// Sorts the entries from `start` on by key, refuses duplicates, and drops zeros.
fn tidy_row(part: &mut Examples, start: usize) -> Result<(), Fault> {
    let value = |at: usize| part.values.as_ref().map_or(1.0, |values| values[at]);
    let mut entries: Vec<(u64, f64)> =
        (start..part.keys.len()).map(|at| (part.keys[at], value(at))).collect();
    entries.sort_by_key(|&(key, _)| key);
    if entries.windows(2).any(|pair| pair[0].0 == pair[1].0) {
        return Err(Fault::DuplicateKey);
    }
    part.keys.truncate(start);
    part.values.iter_mut().for_each(|values| values.truncate(start));
    for (key, value) in entries.into_iter().filter(|&(_, value)| value != 0.0) {
        part.push(key, value);
    }
    Ok(())
}

/// The first repeated key of a well-formed line, and the columns of both, counted from 0.
fn find_duplicate(text: &[u8]) -> (u64, usize, usize) {
    let mut columns = HashMap::new();
    for (column, word) in words(without_comment(text)).skip(1) {
        let (key, _) =
            parse_pair(column, word).unwrap_or_else(|_| unreachable!("the row was parsed"));
        if let Some(first) = columns.insert(key, column) {
            return (key, first, column);
        }
    }
    unreachable!("the row has a duplicate key");
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

    use std::fmt::Write;
    use std::num::NonZeroUsize;

    use proptest::prelude::*;

    use super::*;
    use crate::data::testing::{Folder, gzip, xz, zstd};
    use crate::data::{Shard, parse, read};

    fn parse_text(text: &str) -> Result<Examples> {
        parse(Path::new("t"), text.as_bytes())
    }

    fn threads(count: usize) -> NonZeroUsize {
        NonZeroUsize::new(count).unwrap()
    }

    #[test]
    fn labels_keys_values_comments_and_line_ends() {
        let text = "# head\r\n+1 1:0.5 18446744073709551615:-2e3\r\n\n0\n  \t\n\t1.0\t7:1 # tail 9:9\n0 3:1 2:4\n0.0";
        let examples = parse_text(text).unwrap();
        assert_eq!(examples.labels, [1.0, -1.0, 1.0, -1.0, -1.0]);
        assert_eq!(examples.row_starts, [0, 2, 2, 3, 5, 5]);
        assert_eq!(examples.keys, [1, u64::MAX, 7, 2, 3]);
        assert_eq!(examples.values, Some(vec![0.5, -2000.0, 1.0, 4.0, 1.0]));
        assert_eq!((examples.rows(), examples.nonzeros(), examples.rows_in_all_shards), (5, 5, 5));
        assert_eq!(parse_text("").unwrap(), Examples::default());
    }

    #[test]
    fn ones_are_not_stored_and_zeros_are_dropped() {
        assert_eq!(parse_text("1 1:1 2:1.0 3:1e0\n").unwrap().values, None);
        let examples = parse_text("1 4:2 1:0 2:1\n1 5:1\n").unwrap();
        assert_eq!((&examples.keys[..], examples.row_starts), (&[2, 4, 5][..], vec![0, 2, 3]));
        assert_eq!(examples.values, Some(vec![1.0, 2.0, 1.0]));
    }

    #[test]
    fn errors_name_line_column_and_what_was_found() {
        for (text, message) in [
            ("1 1:1\n2 1:1", "t:2:1: found `2`, expected a label: +1, 1, -1 or 0"),
            ("\n# c\n  nan", "t:3:3: found `nan`, expected a label"),
            ("1 1:1 2", "t:1:7: found `2`, expected `key:value`"),
            (
                "1 qid:3 1:1",
                "t:1:3: found `qid:3`, expected `key:value`; ranking data is not supported",
            ),
            ("1\t18446744073709551616:1", "t:1:3: found `18446744073709551616:1`, expected a key"),
            ("1 -1:1", "t:1:3: found `-1:1`, expected a key"),
            ("1 :1", "t:1:3: found `:1`, expected a key"),
            ("1 5: 6:1", "t:1:5: found a blank, expected a finite number"),
            ("1 5:", "t:1:5: found the end of the line, expected a finite number"),
            ("1 5:1e999", "t:1:5: found `1e999`, expected a finite number"),
            ("1 5:inf", "t:1:5: found `inf`, expected a finite number"),
            ("1 5:1:2", "t:1:5: found `1:2`, expected a finite number"),
            ("1 5:\u{e9}\u{0}", "t:1:5: found `\\xc3\\xa9\\x00`, expected"),
            ("1 3:1 3:2", "t:1:7: key 3 was already given in column 3"),
            ("1 9:1 3:1 4:1  9:0", "t:1:16: key 9 was already given in column 3"),
        ] {
            let error = parse_text(text).unwrap_err().to_string();
            assert!(error.starts_with(message), "{text:?}: {error}");
        }
        let long = format!("1 5:{}", "x".repeat(1000));
        assert!(
            parse_text(&long)
                .unwrap_err()
                .to_string()
                .contains(&format!("found `{}...`", "x".repeat(32)))
        );
    }

    /// About 4 MB, so that several blocks are read.
    fn many_rows() -> String {
        let mut text = String::new();
        for row in 0..100_000_u64 {
            let key = row.wrapping_mul(0x9E37_79B9_7F4A_7C15) | 1 << 40;
            writeln!(text, "{} {}:1 {key}:{}", row % 2, key % 1000, row % 7 + 1).unwrap();
        }
        text
    }

    #[test]
    fn threads_formats_and_files_do_not_change_the_result() {
        let folder = Folder::new("libsvm-threads");
        let text = many_rows();
        let expected = parse_text(&text).unwrap();
        let cut = text[..text.len() / 3].rfind('\n').unwrap() + 1;
        let (head, tail) = (&text.as_bytes()[..cut], &text.as_bytes()[cut..]);
        let plain = folder.write("plain", text.as_bytes());
        for count in [1, 2, 5] {
            assert_eq!(
                read(std::slice::from_ref(&plain), Shard::ALL, threads(count)).unwrap(),
                expected
            );
        }
        for (name, encode) in [("gz", gzip as fn(&[u8]) -> Vec<u8>), ("zst", zstd), ("xz", xz)] {
            let files = [folder.write("head", head), folder.write(name, &encode(tail))];
            assert_eq!(read(&files, Shard::ALL, threads(2)).unwrap(), expected, "{name}");
        }
    }

    #[test]
    fn shards_part_the_rows_of_all_files() {
        let folder = Folder::new("libsvm-shards");
        let files: Vec<_> = (0..3_usize)
            .map(|file| {
                let rows = (0..50 + file).map(|row| format!("1 {}:1\n", file * 1000 + row));
                folder.write(&file.to_string(), rows.collect::<String>().as_bytes())
            })
            .collect();
        let all = read(&files, Shard::ALL, threads(2)).unwrap();
        let mut keys = vec![Vec::new(); 4];
        for (row, key) in all.keys.iter().enumerate() {
            keys[row / 16 % 4].push(*key);
        }
        for (index, keys) in keys.into_iter().enumerate() {
            let part = read(&files, Shard::new(index as u32, 4).unwrap(), threads(2)).unwrap();
            assert_eq!((part.keys, part.rows_in_all_shards), (keys, 153));
        }
    }

    #[test]
    fn the_first_error_is_reported_whatever_the_threads() {
        let folder = Folder::new("libsvm-first");
        let mut text = many_rows();
        let line = text.lines().count() + 1;
        text.push_str("1 2:x\n");
        text.push_str(&many_rows());
        text.push_str("1 3:y\n");
        let path = folder.write("bad", text.as_bytes());
        for count in [1, 2, 4] {
            let error = read(std::slice::from_ref(&path), Shard::ALL, threads(count)).unwrap_err();
            assert_eq!(
                error.to_string(),
                format!("{}:{line}:5: found `x`, expected a finite number", path.display())
            );
        }
    }

    fn rows() -> impl Strategy<Value = Vec<(bool, Vec<(u64, f64)>)>> {
        let value = prop_oneof![Just(1.0), proptest::num::f64::NORMAL];
        let entries = prop::collection::btree_map(any::<u64>(), value, 0..8);
        prop::collection::vec(
            (any::<bool>(), entries.prop_map(|map| map.into_iter().collect())),
            0..20,
        )
    }

    proptest! {
        #[test]
        fn what_is_written_reads_back(rows in rows()) {
            let mut examples = Examples::default();
            for (positive, entries) in &rows {
                entries.iter().for_each(|&(key, value)| examples.push(key, value));
                examples.end_row(if *positive { 1.0 } else { -1.0 });
                examples.rows_in_all_shards += 1;
            }
            let mut text = Vec::new();
            examples.iter().for_each(|row| write_row(&mut text, row));
            prop_assert_eq!(parse(Path::new("t"), &text).unwrap(), examples);
        }

        #[test]
        fn no_bytes_panic(bytes: Vec<u8>) {
            let _ = parse(Path::new("t"), &bytes);
        }

        #[test]
        fn no_near_miss_panics(text in "[-+01:.e# \t\r\nqid9]{0,40}") {
            let _ = parse_text(&text);
        }
    }
}
