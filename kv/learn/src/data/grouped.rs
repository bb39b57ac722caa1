//! Click logs of features in groups: adfea, `line 1 label key:group key:group ...`, and terafea,
//! `label line | number number ...`, whose numbers have the group in their upper 10 bits and the
//! feature below it.
//!
//! Path: source > **grouped** > `Examples`. All values are 1. The keys of both formats are those of
//! terafea:
//!
//! ```text
//! 10 bits group | 54 bits feature
//! ```
//!
//! Because the group comes first, an even slice of the key space lies in one group or few, and
//! `Job::group_bits` of 10 makes each group a block. Features of adfea from 2^54 on are hashed to
//! 54 bits.

use super::libsvm::Fault;
use super::words::words;
use super::{Examples, Labels, parse_key};
use caravan_van::draws::mix;

/// Bits of a key below its group.
const GROUP_SHIFT: u32 = 54;
const FEATURE_END: u64 = 1 << GROUP_SHIFT;
const GROUPS: u64 = 1 << (u64::BITS - GROUP_SHIFT);

/// Words before the features.
const HEAD: usize = 3;

const LABEL: &str = "a label: a whole number, of which those above 0 are clicks";
const PAIR: &str = "`key:group`, with a group below 1024";
const NUMBER: &str = "a whole number from 0 to 18446744073709551615";
const ONCE: &str = "a feature that the row does not have yet";
const ADFEA: &str = "line, 1 and label before the features";
const TERAFEA: &str = "label, line and `|` before the features";

/// Whether a row is adfea: its second word is 1, and its third a label. A row of LIBSVM has colons
/// there.
pub(super) fn is_adfea(text: &[u8]) -> bool {
    let mut head = words(text).skip(1).map(|(_, word)| word);
    head.next() == Some(b"1") && head.next().is_some_and(|word| parse_label(word).is_some())
}

/// Whether a row is terafea: its third word is `|`.
pub(super) fn is_terafea(text: &[u8]) -> bool {
    words(text).nth(HEAD - 1).is_some_and(|(_, word)| word == b"|")
}

/// Appends one row of adfea to `part`; after a fault `part` is invalid.
pub(super) fn parse_adfea(text: &[u8], labels: Labels, part: &mut Examples) -> Result<(), Fault> {
    parse(text, (labels, part), ADFEA, 2, adfea_key)
}

/// Appends one row of terafea to `part`; after a fault `part` is invalid.
pub(super) fn parse_terafea(text: &[u8], labels: Labels, part: &mut Examples) -> Result<(), Fault> {
    parse(text, (labels, part), TERAFEA, 0, |column, word| {
        parse_key(word).ok_or(Fault::Syntax { column, expected: NUMBER })
    })
}

/// Appends a row whose label is the word `label` of its head, and whose other words have keys.
fn parse(
    text: &[u8],
    (labels, part): (Labels, &mut Examples),
    head: &'static str,
    label: usize,
    key: impl Fn(usize, &[u8]) -> Result<u64, Fault>,
) -> Result<(), Fault> {
    let found: Vec<(usize, &[u8])> = words(text).take(HEAD).collect();
    let Some(&(column, word)) = found.get(label).filter(|_| found.len() == HEAD) else {
        return Err(Fault::Syntax { column: text.len(), expected: head });
    };
    let label = parse_label(word).ok_or(Fault::Syntax { column, expected: LABEL })?;
    let keys = words(text).skip(HEAD).map(|(column, word)| Ok((key(column, word)?, column)));
    let mut keys: Vec<(u64, usize)> = keys.collect::<Result<_, _>>()?;
    keys.sort_unstable();
    if let Some(pair) = keys.windows(2).find(|pair| pair[0].0 == pair[1].0) {
        return Err(Fault::Syntax { column: pair[1].1, expected: ONCE });
    }
    keys.into_iter().for_each(|(key, _)| part.push(key, 1.0));
    part.end_row(labels.of_clicks(label));
    Ok(())
}

/// A whole number.
fn parse_label(word: &[u8]) -> Option<f64> {
    let (sign, digits) = match word {
        [b'-', digits @ ..] => (-1.0, digits),
        [b'+', digits @ ..] => (1.0, digits),
        digits => (1.0, digits),
    };
    Some(sign * parse_key(digits)? as f64)
}

fn adfea_key(column: usize, word: &[u8]) -> Result<u64, Fault> {
    let pair = || {
        let colon = word.iter().position(|&byte| byte == b':')?;
        let group = parse_key(&word[colon + 1..]).filter(|group| *group < GROUPS)?;
        Some(group << GROUP_SHIFT | feature(parse_key(&word[..colon])?))
    };
    pair().ok_or(Fault::Syntax { column, expected: PAIR })
}

/// The number itself, or a hash where it needs more bits than a feature has.
fn feature(number: u64) -> u64 {
    if number < FEATURE_END {
        return number;
    }
    mix(number) >> (u64::BITS - GROUP_SHIFT)
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

    use super::*;
    use crate::data::{Shard, parse as parse_text, read, testing::Folder};

    fn rows(text: &str) -> Examples {
        parse_text("t".as_ref(), text.as_bytes()).unwrap()
    }

    fn fault(text: &str) -> String {
        parse_text("t".as_ref(), text.as_bytes()).unwrap_err().to_string()
    }

    #[test]
    fn groups_come_first_in_keys() {
        let adfea = rows("17 1 0 5:2 9:1 7:1023\n18 1 1\n19 1 -3 18446744073709551615:0 0:3\n");
        assert_eq!(adfea.labels, [-1.0, 1.0, -1.0]);
        let first = [1 << 54 | 9, 2 << 54 | 5, 1023 << 54 | 7];
        assert_eq!(adfea.row(0).keys, first);
        assert!(adfea.row(1).keys.is_empty() && adfea.values.is_none());
        let [hashed, last] = adfea.row(2).keys else { panic!() };
        assert_eq!((hashed >> 54, *last), (0, 3 << 54));
        assert_eq!(*hashed, 16_103_844_010_711_371, "hashes are for ever");
        // The same rows with numbers that have their groups.
        let numbers = first.map(|key| key.to_string()).join(" ");
        let terafea = rows(&format!("0 17 | {numbers}\r\n1 18 |\n\n+2 19 | 3\n"));
        assert_eq!((&terafea.labels[..], terafea.row(0).keys), (&[-1.0, 1.0, 1.0][..], &first[..]));
    }

    #[test]
    fn faults_name_the_place() {
        for (text, why) in [
            ("1 1 1\n1 1 x 5:2\n", "t:2:5: found `x`, expected a label"),
            ("1 1 1 5:2 5\n", "t:1:11: found `5`, expected `key:group`"),
            ("1 1 1 5:1024\n", "t:1:7: found `5:1024`, expected `key:group`"),
            ("1 1 1 :1\n", "expected `key:group`"),
            ("1 1 1 5:2 6:2 5:2\n", "t:1:15: found `5:2`, expected a feature"),
            ("1 1 1 5:2\n1 1\n", "t:2:4: found the end of the line, expected line, 1 and label"),
            ("1 7 | 5\nx 7 | 5\n", "t:2:1: found `x`, expected a label"),
            ("1 7 | 5 18446744073709551616\n", "t:1:9: found `18446744073709551616`"),
            ("1 7 | 5 3 5\n", "t:1:11: found `5`, expected a feature"),
        ] {
            assert!(fault(text).contains(why), "{text:?}: {}", fault(text));
        }
    }

    #[test]
    fn files_are_told_by_their_rows() {
        let folder = Folder::new("grouped");
        let files = [
            folder.write("adfea", b"# c\n1 1 1 5:2\n"),
            folder.write("terafea", b"1 1 | 36028797018963973\n"),
            folder.write("libsvm", b"1 36028797018963973:1\n1\n"),
        ];
        let all = read(&files, Shard::ALL, std::num::NonZeroUsize::MIN).unwrap();
        assert_eq!((all.rows(), &all.keys[..]), (4, &[2 << 54 | 5; 3][..]));
    }
}
