//! Writes synthetic ad clicks as files: sparse one-hot rows with power-law keys. `clicks/draws.rs`
//! draws the keys and label of a row.

mod draws;

use std::io::Write;
use std::num::NonZeroUsize;
use std::ops::Range;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, Ordering};

use super::ordered::map_in_order;
use crate::replace_file::{self, Replacement};
use crate::{Error, Result};
use draws::Draws;

/// Parameters of the clicks. The defaults are those of the reference set.
#[derive(Clone, Debug, PartialEq)]
pub struct Clicks {
    /// Training rows, at least 1.
    pub rows: u64,
    /// Test rows, drawn after the training rows.
    pub test_rows: u64,
    /// Determines everything.
    pub seed: u64,
    /// Draws per row, 1 to 1024.
    pub slots: u32,
    /// How many of the draws go to the bag slot.
    pub bag: u32,
    /// The first categorical slot has about `2^k_min` keys.
    pub k_min: u32,
    /// The last one has about `2^k_max`; `k_min` to 47.
    pub k_max: u32,
    /// The bag has about `2^k_bag`; at most 47.
    pub k_bag: u32,
    /// The margin of a row without relevant keys.
    pub bias: f64,
    /// Standard deviation of the relevant weights.
    pub scale: f64,
}

impl Default for Clicks {
    fn default() -> Self {
        Self {
            rows: 200_000,
            test_rows: 20_000,
            seed: 1,
            slots: 50,
            bag: 10,
            k_min: 1,
            k_max: 20,
            k_bag: 20,
            bias: -2.2,
            scale: 0.45,
        }
    }
}

/// How keys are written.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Format {
    /// 1, 2, ... in the order of the hashed keys.
    Compact,
    /// The hashed 64-bit keys.
    Keys,
}

/// What was written.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Summary {
    /// Distinct keys in the training rows.
    pub columns: usize,
    /// The training file.
    pub train: Part,
    /// The test file, without keys that no training row has.
    pub test: Part,
}

/// Contents of one of the two files.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Part {
    /// Lines.
    pub rows: u64,
    /// Lines labelled +1.
    pub positives: u64,
    /// `key:1` pairs.
    pub nonzeros: u64,
}

/// Rows of a job: enough to outweigh its overhead.
const JOB_ROWS: usize = 4096;

/// Writes `OUT.train` and `OUT.test` as LIBSVM text; the bytes do not depend on `threads`.
///
/// Rows are drawn twice, first to collect the keys, so that memory holds only the distinct keys.
///
/// # Errors
/// [`Error::Option`] for a value out of range, [`Error::Write`] if a file cannot be written;
/// [`Error::Stopped`] if `stop` was set meanwhile.
pub fn generate(
    clicks: &Clicks,
    out: &Path,
    format: Format,
    threads: NonZeroUsize,
    stop: &AtomicBool,
) -> Result<Summary> {
    let rows_end = clicks.check()?;
    let draws = Draws::new(clicks);
    let map = Map { threads, stop };
    let [train, test] = [".train", ".test"].map(|ending| {
        let mut path = out.as_os_str().to_owned();
        path.push(ending);
        PathBuf::from(path)
    });
    // Checked first, so that a bad name does not waste the drawing.
    replace_file::check(&train)?;
    replace_file::check(&test)?;
    let index = KeyIndex::new(distinct_keys(&draws, 0..clicks.rows, map)?);
    let write = |rows, path: &Path| write_rows(&draws, &index, rows, path, format, map);
    let train = write(0..clicks.rows, &train)?;
    let test = write(clicks.rows..rows_end, &test)?;
    Ok(Summary { columns: index.keys.len(), train, test })
}

/// The largest vocabulary for which rank and slot fit into a key's 64 bits.
const K_MAX: u32 = 47;
const SLOTS_MAX: u32 = 1024;

impl Clicks {
    /// Checks every range; returns the end of the test rows.
    fn check(&self) -> Result<u64> {
        let option = |name, value: &dyn ToString, expected| {
            Err(Error::Option { name, value: value.to_string(), expected })
        };
        if self.rows == 0 {
            return option("--rows", &self.rows, "1 or more");
        }
        if self.slots == 0 || self.slots > SLOTS_MAX {
            return option("--slots", &self.slots, "1 to 1024");
        }
        if self.bag > self.slots {
            return option("--bag", &self.bag, "at most --slots");
        }
        if self.k_max > K_MAX {
            return option("--kmax", &self.k_max, "at most 47");
        }
        if self.k_bag > K_MAX {
            return option("--kbag", &self.k_bag, "at most 47");
        }
        if self.k_min > self.k_max {
            return option("--kmin", &self.k_min, "at most --kmax");
        }
        for (name, value) in [("--bias", self.bias), ("--scale", self.scale)] {
            if !value.is_finite() {
                return option(name, &value, "a finite number");
            }
        }
        match self.rows.checked_add(self.test_rows) {
            Some(end) => Ok(end),
            None => option("--test-rows", &self.test_rows, "fewer than 2^64 rows in all"),
        }
    }
}

/// How to go through the rows.
#[derive(Clone, Copy)]
struct Map<'a> {
    threads: NonZeroUsize,
    stop: &'a AtomicBool,
}

impl Map<'_> {
    /// Cuts `rows` into jobs and hands the results of `work` to `sink`, in order.
    fn rows<T: Send>(
        self,
        rows: Range<u64>,
        work: impl Fn(Range<u64>) -> T + Sync,
        sink: impl FnMut(T) -> Result<()>,
    ) -> Result<()> {
        let end = rows.end;
        let jobs = rows.step_by(JOB_ROWS).map(|start| match self.stop.load(Ordering::Relaxed) {
            false => Ok(start..end.min(start.saturating_add(JOB_ROWS as u64))),
            true => Err(Error::Stopped),
        });
        map_in_order(self.threads, jobs, |rows| Ok(work(rows)), sink)
    }
}

/// Fewest new keys to gather before a merge, because a merge is linear in all keys.
const UNMERGED_KEYS_MIN: usize = 1 << 22;

/// The distinct keys of `rows`, ascending.
fn distinct_keys(draws: &Draws<'_>, rows: Range<u64>, map: Map<'_>) -> Result<Vec<u64>> {
    let draw = |rows: Range<u64>| {
        let mut row_keys = Vec::new();
        let mut keys = Vec::new();
        for row in rows {
            draws.row(row, &mut row_keys);
            keys.extend_from_slice(&row_keys);
        }
        keys.sort_unstable();
        keys.dedup();
        keys
    };
    let mut all: Vec<u64> = Vec::new();
    let mut merged = 0;
    map.rows(rows, draw, |keys: Vec<u64>| {
        all.extend_from_slice(&keys);
        if all.len() - merged > merged.max(UNMERGED_KEYS_MIN) {
            all.sort_unstable();
            all.dedup();
            merged = all.len();
        }
        Ok(())
    })?;
    all.sort_unstable();
    all.dedup();
    Ok(all)
}

/// Finds a key's index among sorted, evenly spread ones: about one key per bucket of leading bits.
struct KeyIndex {
    keys: Vec<u64>,
    starts: Vec<usize>,
    shift: u32,
}

impl KeyIndex {
    fn new(keys: Vec<u64>) -> Self {
        let bits = keys.len().ilog2() + 1;
        let shift = u64::BITS - bits;
        let mut starts = vec![0; (1 << bits) + 1];
        for key in &keys {
            starts[(key >> shift) as usize + 1] += 1;
        }
        for bucket in 1..starts.len() {
            starts[bucket] += starts[bucket - 1];
        }
        Self { keys, starts, shift }
    }

    /// The index of `key`, from 0.
    fn find(&self, key: u64) -> Option<usize> {
        let bucket = (key >> self.shift) as usize;
        let start = self.starts[bucket];
        let found =
            self.keys[start..self.starts[bucket + 1]].iter().position(|&other| other == key);
        found.map(|at| start + at)
    }
}

fn write_rows(
    draws: &Draws<'_>,
    index: &KeyIndex,
    rows: Range<u64>,
    path: &Path,
    format: Format,
    map: Map<'_>,
) -> Result<Part> {
    let mut file = Replacement::create(path)?;
    let mut all = Part::default();
    map.rows(
        rows,
        |rows| format_rows(draws, index, rows, format),
        |(text, part)| {
            all.rows += part.rows;
            all.positives += part.positives;
            all.nonzeros += part.nonzeros;
            file.write(&text)
        },
    )?;
    file.commit()?;
    Ok(all)
}

fn format_rows(
    draws: &Draws<'_>,
    index: &KeyIndex,
    rows: Range<u64>,
    format: Format,
) -> (Vec<u8>, Part) {
    let mut text = Vec::new();
    let mut part = Part::default();
    let mut keys = Vec::new();
    let mut places = Vec::new();
    for row in rows {
        let label = draws.row(row, &mut keys);
        // All look-ups of a row come before its text, so that their cache misses overlap.
        places.clear();
        places.extend(keys.iter().filter_map(|&key| index.find(key)));
        part.rows += 1;
        part.positives += u64::from(label > 0);
        part.nonzeros += places.len() as u64;
        text.extend_from_slice(if label > 0 { b"+1 " } else { b"-1 " });
        for (at, &place) in places.iter().enumerate() {
            let separator = if at == 0 { "" } else { " " };
            let key = match format {
                Format::Compact => place as u64 + 1,
                Format::Keys => index.keys[place],
            };
            write!(text, "{separator}{key}:1").expect("a Vec takes all that is written");
        }
        text.push(b'\n');
    }
    (text, part)
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

    use super::*;
    use crate::data::testing::Folder;
    use crate::data::{Shard, read};
    use std::fs;

    fn threads(count: usize) -> NonZeroUsize {
        NonZeroUsize::new(count).unwrap()
    }

    /// Never stopped.
    fn generate(
        clicks: &Clicks,
        out: &Path,
        format: Format,
        threads: NonZeroUsize,
    ) -> Result<Summary> {
        super::generate(clicks, out, format, threads, &AtomicBool::new(false))
    }

    #[test]
    fn stopped_it_leaves_nothing() {
        let folder = Folder::new("clicks-stopped");
        let (clicks, stop) = (Clicks::default(), AtomicBool::new(true));
        let stopped =
            super::generate(&clicks, &folder.path().join("c"), Format::Keys, threads(2), &stop);
        assert!(matches!(stopped, Err(Error::Stopped)), "{stopped:?}");
        assert_eq!(fs::read_dir(folder.path()).unwrap().count(), 0);
    }

    /// FNV-1a, 64 bits.
    fn fingerprint(path: PathBuf) -> (usize, u64) {
        let bytes = fs::read(path).unwrap();
        let fold = |hash: u64, &byte| (hash ^ u64::from(byte)).wrapping_mul(0x100_0000_01b3);
        (bytes.len(), bytes.iter().fold(0xcbf2_9ce4_8422_2325, fold))
    }

    /// Lengths and fingerprints of the files that the reference implementation writes.
    #[test]
    fn equals_the_reference_byte_for_byte() {
        let folder = Folder::new("clicks-reference");
        let small = Clicks { rows: 300, test_rows: 40, ..Clicks::default() };
        let other = Clicks {
            rows: 500,
            test_rows: 60,
            seed: 7,
            slots: 12,
            bag: 3,
            k_min: 2,
            k_max: 9,
            k_bag: 5,
            bias: -0.5,
            scale: 0.8,
        };
        for (clicks, format, train, test) in [
            (
                small.clone(),
                Format::Compact,
                (103604, 0xc7a5_1e4f_60df_9ac1),
                (8107, 0x6830_bfaf_213a_1f20),
            ),
            (
                small.clone(),
                Format::Keys,
                (336100, 0x3b0d_e69f_e476_4b47),
                (26175, 0xa311_3ae1_ce09_dd53),
            ),
            (
                other.clone(),
                Format::Compact,
                (36289, 0x65c6_3d97_9b0a_5fa6),
                (4063, 0xce3f_fc7a_634e_d614),
            ),
        ] {
            for count in [1, 3] {
                generate(&clicks, &folder.path().join("c"), format, threads(count)).unwrap();
                assert_eq!(
                    fingerprint(folder.path().join("c.train")),
                    train,
                    "{clicks:?} {format:?}"
                );
                assert_eq!(
                    fingerprint(folder.path().join("c.test")),
                    test,
                    "{clicks:?} {format:?}"
                );
            }
        }
        assert_eq!(fs::read_dir(folder.path()).unwrap().count(), 2);
    }

    #[test]
    fn threads_do_not_change_the_bytes_and_the_summary_is_what_the_reader_sees() {
        let folder = Folder::new("clicks-threads");
        let clicks =
            Clicks { rows: 10_000, test_rows: 5_000, slots: 8, bag: 4, ..Clicks::default() };
        let out = folder.path().join("c");
        let summary = generate(&clicks, &out, Format::Keys, threads(1)).unwrap();
        let (train, test) = (folder.path().join("c.train"), folder.path().join("c.test"));
        let bytes = (fs::read(&train).unwrap(), fs::read(&test).unwrap());
        assert_eq!(generate(&clicks, &out, Format::Keys, threads(3)).unwrap(), summary);
        assert_eq!((fs::read(&train).unwrap(), fs::read(&test).unwrap()), bytes);
        for (path, part) in [(train, summary.train), (test, summary.test)] {
            let examples = read(&[path], Shard::ALL, threads(2)).unwrap();
            assert_eq!(examples.rows() as u64, part.rows);
            assert_eq!(examples.nonzeros() as u64, part.nonzeros);
            assert_eq!(
                examples.labels.iter().filter(|&&label| label > 0.0).count() as u64,
                part.positives
            );
            assert!(examples.into_columns().unwrap().1.columns() <= summary.columns);
        }
    }

    /// A few seconds with optimisation; run it with `--release -- --ignored`.
    #[test]
    #[ignore = "large"]
    fn the_default_set_has_the_size_in_the_table() {
        let folder = Folder::new("clicks-default");
        let out = folder.path().join("c");
        let summary = generate(&Clicks::default(), &out, Format::Compact, threads(2)).unwrap();
        assert_eq!(
            (summary.columns, summary.train.nonzeros, summary.test.nonzeros),
            (1_140_445, 9_962_134, 920_673)
        );
        let train = read(&[folder.path().join("c.train")], Shard::ALL, threads(2)).unwrap();
        let (labels, columns) = train.into_columns().unwrap();
        assert_eq!(
            (labels.len(), columns.columns(), columns.nonzeros()),
            (200_000, 1_140_445, 9_962_134)
        );
        assert!(columns.keys().iter().eq(1..=1_140_445));
    }

    #[test]
    fn options_out_of_range_are_named() {
        let folder = Folder::new("clicks-options");
        let good =
            Clicks { rows: 3, test_rows: 0, slots: 2, bag: 2, k_bag: 47, ..Clicks::default() };
        generate(&good, &folder.path().join("c"), Format::Keys, threads(1)).unwrap();
        for (name, bad) in [
            ("rows", Clicks { rows: 0, ..good.clone() }),
            ("slots", Clicks { slots: 0, ..good.clone() }),
            ("slots", Clicks { slots: 1025, ..good.clone() }),
            ("bag", Clicks { bag: 3, ..good.clone() }),
            ("kmin", Clicks { k_min: 21, ..good.clone() }),
            ("kmax", Clicks { k_max: 48, ..good.clone() }),
            ("kbag", Clicks { k_bag: 48, ..good.clone() }),
            ("bias", Clicks { bias: f64::NAN, ..good.clone() }),
            ("scale", Clicks { scale: f64::INFINITY, ..good.clone() }),
            ("test-rows", Clicks { test_rows: u64::MAX, ..good.clone() }),
        ] {
            let error =
                generate(&bad, &folder.path().join("d"), Format::Keys, threads(1)).unwrap_err();
            assert!(error.to_string().starts_with(&format!("--{name} is ")), "{error}");
        }
        let error =
            generate(&good, Path::new("/no/such/folder/c"), Format::Keys, threads(1)).unwrap_err();
        assert!(error.to_string().contains("/no/such/folder/c.train"), "{error}");
    }
}
