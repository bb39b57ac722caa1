//! Files of `/sys`: numbers, lists of numbers and numbered folders, read within bounds.

use std::io;
use std::ops::RangeInclusive;
use std::path::Path;
use std::str::FromStr;

use crate::files::names_in;
use crate::topology::{Error, read_text};

/// The text of a file without the white space around it; `None` if the system does not show it.
pub(super) fn text(file: &Path) -> Result<Option<String>, Error> {
    match read_text(file, BYTES_MAX) {
        Ok(Some(text)) => Ok(Some(text.trim().to_owned())),
        Ok(None) => Err(garbage(file, &format!("is longer than {BYTES_MAX} bytes"))),
        Err(error) if error.kind() == io::ErrorKind::InvalidData => {
            Err(garbage(file, "is no text"))
        }
        Err(_) => Ok(None),
    }
}

/// The number in a file; `None` if the system does not show it.
pub(super) fn number<T: FromStr>(file: &Path) -> Result<Option<T>, Error> {
    let Some(text) = text(file)? else { return Ok(None) };
    text.parse().map(Some).map_err(|_| garbage(file, &format!("has {:?}", shortened(&text))))
}

/// The list in a file; `None` if the system does not show it.
pub(super) fn list(file: &Path) -> Result<Option<List>, Error> {
    let Some(text) = text(file)? else { return Ok(None) };
    let list = List::parse(&text);
    list.map(Some).ok_or_else(|| {
        garbage(file, &format!("has {:?}, no list of numbers up to {NUMBER_MAX}", shortened(&text)))
    })
}

/// The numbers N of the names `prefixN` in a folder.
pub(super) fn numbered(folder: &Path, prefix: &str) -> impl Iterator<Item = usize> {
    let number = move |name: String| name.strip_prefix(prefix)?.parse().ok();
    names_in(folder).into_iter().filter_map(number).filter(|&number| number <= NUMBER_MAX)
}

/// The error of a file that has what Linux never writes.
pub(super) fn garbage(file: &Path, what: &str) -> Error {
    Error::SysFile { path: file.to_owned(), reason: what.to_owned() }
}

fn shortened(text: &str) -> String {
    text.chars().take(40).collect()
}

/// Ascending numbers in the kernel's notation, `0-3,8`.
#[derive(Debug, Default, Clone, PartialEq, Eq, PartialOrd, Ord)]
pub(super) struct List(Vec<(usize, usize)>);

impl List {
    /// Those numbers, which ascend.
    pub(super) fn of(numbers: impl IntoIterator<Item = usize>) -> List {
        let mut list = List::default();
        for number in numbers {
            list.push(number..=number).expect("they ascend");
        }
        list
    }

    fn parse(text: &str) -> Option<List> {
        let mut list = List::default();
        for run in text.split(',').filter(|_| !text.is_empty()) {
            let (begin, end) = run.split_once('-').unwrap_or((run, run));
            list.push(begin.parse().ok()?..=end.parse().ok()?)?;
        }
        list.0.last().is_none_or(|&(_, end)| end <= NUMBER_MAX).then_some(list)
    }

    /// Appends numbers; `None` if they do not follow those that are there.
    fn push(&mut self, run: RangeInclusive<usize>) -> Option<()> {
        let (begin, end) = run.into_inner();
        match self.0.last_mut() {
            _ if begin > end => return None,
            Some((_, last)) if begin <= *last => return None,
            Some((_, last)) if begin == *last + 1 => *last = end,
            _ => self.0.push((begin, end)),
        }
        Some(())
    }

    pub(super) fn contains(&self, number: usize) -> bool {
        let after = self.0.partition_point(|&(begin, _)| begin <= number);
        self.0[..after].last().is_some_and(|&(_, end)| number <= end)
    }

    pub(super) fn first(&self) -> Option<usize> {
        self.0.first().map(|&(begin, _)| begin)
    }

    pub(super) fn len(&self) -> usize {
        self.0.iter().map(|&(begin, end)| end - begin + 1).sum()
    }

    pub(super) fn is_empty(&self) -> bool {
        self.0.is_empty()
    }
}

/// Far beyond a list of all processing units that Linux can have.
const BYTES_MAX: u64 = 1 << 20;
/// Beyond the largest number of a processing unit or node that Linux can have.
pub(super) const NUMBER_MAX: usize = (1 << 16) - 1;

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, reason = "tests")]
    use super::*;

    #[test]
    fn lists_are_those_of_the_kernel() {
        let list = List::parse("0-3,8,10-11").unwrap();
        assert_eq!(list, List::of([0, 1, 2, 3, 8, 10, 11]));
        assert_eq!((list.first(), list.len()), (Some(0), 7));
        let within: Vec<usize> = (0..20).filter(|&number| list.contains(number)).collect();
        assert_eq!(within, [0, 1, 2, 3, 8, 10, 11]);
        assert!(List::parse("").unwrap().is_empty());
        assert_eq!(List::parse("65535").unwrap().first(), Some(NUMBER_MAX));
        for wrong in [
            "x",
            ",",
            "1,",
            "-1",
            "3-1",
            "0-",
            "2,1",
            "0-3,3",
            "1 2",
            "0x1",
            "65536",
            "0-18446744073709551615",
            "18446744073709551616",
            "4-18446744073709551615,0",
        ] {
            assert_eq!(List::parse(wrong), None, "{wrong:?}");
        }
    }

    #[test]
    fn files_are_read_within_bounds() {
        let folder = tempfile::tempdir().unwrap();
        let file = folder.path().join("file");
        assert_eq!(text(&file).unwrap(), None, "not there");
        assert_eq!(text(folder.path()).unwrap(), None, "a folder");
        for (bytes, part) in [
            (vec![b'1'; BYTES_MAX as usize + 1], "longer than 1048576 bytes"),
            (vec![0xff], "is no text"),
            (b"many\n".to_vec(), "has \"many\""),
        ] {
            std::fs::write(&file, bytes).unwrap();
            let error = number::<u32>(&file).unwrap_err().to_string();
            assert!(error.contains(part) && error.contains("file"), "{error}");
        }
        std::fs::write(&file, "-1\n").unwrap();
        assert_eq!(number(&file).unwrap(), Some(-1_i64));
        for name in ["cpu7", "cpu65536", "cpufreq", "cpu", "cpu-1"] {
            std::fs::create_dir(folder.path().join(name)).unwrap();
        }
        assert_eq!(numbered(folder.path(), "cpu").collect::<Vec<_>>(), [7]);
    }
}
