//! Goal: the reader finds in the real data sets exactly what their reference table says.
//!
//! The sets are in `CARAVAN_DATA`, or in `shared/data` beside the workspace; without them these
//! tests skip.

use crate::support;
use std::collections::BTreeSet;
use std::num::NonZeroUsize;
use std::path::{Path, PathBuf};

use caravan_learn::data::{self, Shard};
use support::data_folder;

/// Name, rows, columns and nonzeros of each set in the table that has a file.
///
/// Columns are key numbers up to the largest of the training and test part, used or not.
fn table(folder: &Path) -> Vec<(String, [u64; 3])> {
    let text = std::fs::read_to_string(folder.join("optima.csv")).expect("it was seen to exist");
    let rows = text.lines().skip(1).map(|line| line.split(',').collect::<Vec<_>>());
    let mut sets: Vec<_> = rows
        .map(|fields| {
            let counts = [2, 3, 4].map(|at: usize| fields[at].parse().expect("a count"));
            (fields[0].to_owned(), counts)
        })
        .filter(|(set, _)| part(folder, set, "train").exists())
        .collect();
    sets.dedup();
    sets
}

fn part(folder: &Path, set: &str, part: &str) -> PathBuf {
    folder.join(format!("{set}.{part}.xz"))
}

fn check(rows_wanted: impl Fn(u64) -> bool) {
    let Some(folder) = data_folder() else { return };
    let threads = NonZeroUsize::new(2).expect("2 is not 0");
    let read = |path: PathBuf| data::read(&[path], Shard::ALL, threads).expect("it is well formed");
    let mut checked = 0;
    for (set, expected) in table(&folder).into_iter().filter(|(_, [rows, ..])| rows_wanted(*rows)) {
        let train = read(part(&folder, &set, "train"));
        let test = Some(part(&folder, &set, "test"))
            .filter(|path| path.exists())
            .map(read)
            .unwrap_or_default();
        let largest_key = train.keys.iter().chain(&test.keys).max().copied().unwrap_or(0);
        let distinct: BTreeSet<u64> = train.keys.iter().copied().collect();
        let (labels, columns) = train.into_columns().expect("it is small");
        assert!(columns.keys().iter().eq(distinct), "{set}");
        assert_eq!(
            [labels.len() as u64, largest_key, columns.nonzeros() as u64],
            expected,
            "{set}"
        );
        println!("{set}: {expected:?} as in the table; {} columns in use", columns.columns());
        checked += 1;
    }
    assert!(checked > 0, "no set of the table in {}", folder.display());
}

#[test]
fn small_sets_have_the_size_in_the_table() {
    check(|rows| rows < 20_000);
}

/// Slow without optimisation; run it with `--release -- --ignored`.
#[test]
#[ignore = "large"]
fn large_sets_have_the_size_in_the_table() {
    check(|rows| rows >= 20_000);
}
