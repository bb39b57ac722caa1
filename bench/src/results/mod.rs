//! Rows of earlier runs, as `--json` has written them: `caravan compare` and `caravan report`.

mod chart;
pub(crate) mod compare;
mod fabric;
mod load;
pub(crate) mod page;

use std::fs::File;
use std::io::{BufRead, BufReader, Read};
use std::path::Path;

use anyhow::{Context, Result, ensure};
use serde_json::Value;

use crate::cli::ending::Usage;
use crate::cli::values::size;
use crate::report::Fields;

/// Longest row, in bytes: two histograms and the rounds are a fraction of it.
const ROW_MAX: u64 = 8 << 20;
/// Most rows of a file.
const ROWS_MAX: usize = 1_000_000;

/// The rows of one file, which may be of several runs of one build.
#[derive(Debug, Clone, Default)]
pub(crate) struct Results {
    /// The name of the file.
    pub(crate) name: String,
    pub(crate) rows: Vec<Fields>,
}

impl Results {
    /// Reads a file of rows.
    ///
    /// # Errors
    /// [`Usage`] names the file, and the line that is no row.
    pub(crate) fn read(path: &Path) -> Result<Results> {
        let name = path.display().to_string();
        let read = File::open(path).map_err(anyhow::Error::from).and_then(rows);
        let rows = read.map_err(|error| Usage(format!("{name}: {error:#}")))?;
        Ok(Results { name, rows })
    }

    /// Machines of the runs, the first of each kind.
    pub(crate) fn machines(&self) -> impl Iterator<Item = &Fields> {
        self.rows.iter().filter(|row| row.kind() == "machine")
    }

    /// What the runs have measured.
    pub(crate) fn measured(&self) -> Vec<Measured> {
        self.rows.iter().filter_map(Measured::of).collect()
    }
}

fn rows(file: impl Read) -> Result<Vec<Fields>> {
    let mut file = BufReader::new(file);
    let mut rows = Vec::new();
    let mut line = Vec::new();
    for number in 1.. {
        line.clear();
        if file.by_ref().take(ROW_MAX).read_until(b'\n', &mut line)? == 0 {
            break;
        }
        ensure!((line.len() as u64) < ROW_MAX, "line {number} has {ROW_MAX} bytes or more");
        if line.trim_ascii().is_empty() {
            continue;
        }
        let row: Option<Fields> = serde_json::from_slice(&line).ok();
        let row = row.filter(|row| !row.kind().is_empty());
        let row = row.with_context(|| {
            format!("line {number} is no row; take the output of a run with --json")
        })?;
        ensure!(rows.len() < ROWS_MAX, "more than {ROWS_MAX} rows");
        rows.push(row);
    }
    ensure!(!rows.is_empty(), "there are no rows; take the output of a run with --json");
    Ok(rows)
}

impl Fields {
    pub(crate) fn get(&self, name: &str) -> Option<&Value> {
        self.0.iter().find(|(field, _)| field == name).map(|(_, value)| value)
    }

    /// The kind of a row; empty if it is none.
    pub(crate) fn kind(&self) -> &str {
        self.text("row")
    }

    pub(crate) fn text(&self, name: &str) -> &str {
        self.get(name).and_then(Value::as_str).unwrap_or_default()
    }

    pub(crate) fn number(&self, name: &str) -> Option<f64> {
        self.get(name)?.as_f64().filter(|number| number.is_finite())
    }

    fn numbers(&self, name: &str) -> Vec<f64> {
        let list = self.get(name).and_then(Value::as_array);
        list.into_iter().flatten().filter_map(Value::as_f64).collect()
    }
}

/// What one row has measured; rows of the same subject can be compared.
#[derive(Debug, Clone, PartialEq)]
pub(crate) struct Measured {
    pub(crate) subject: Subject,
    pub(crate) value: f64,
    pub(crate) floor: Option<f64>,
    /// Each round of the van and of the floor, measured in turn.
    pub(crate) rounds: Vec<f64>,
    pub(crate) floor_rounds: Vec<f64>,
    pub(crate) wrong: u64,
}

/// What a row is about.
#[derive(Debug, Clone, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub(crate) struct Subject {
    pub(crate) bench: Bench,
    pub(crate) van: String,
    pub(crate) op: String,
    pub(crate) keys: u64,
    pub(crate) window: u64,
    pub(crate) workers: u64,
    pub(crate) bytes: usize,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub(crate) enum Bench {
    Latency,
    Bandwidth,
    Rate,
}

impl Bench {
    pub(crate) const ALL: [Bench; 3] = [Bench::Latency, Bench::Bandwidth, Bench::Rate];

    pub(crate) fn name(self) -> &'static str {
        match self {
            Bench::Latency => "latency",
            Bench::Bandwidth => "bandwidth",
            Bench::Rate => "rate",
        }
    }

    /// The field with the figure of a row, and that with the floor's.
    fn fields(self) -> [&'static str; 2] {
        match self {
            Bench::Latency => ["p50_us", "floor_p50_us"],
            Bench::Bandwidth => ["gb_per_s", "floor_gb_per_s"],
            Bench::Rate => ["mmsg_per_s", "floor_mmsg_per_s"],
        }
    }

    pub(crate) fn unit(self) -> &'static str {
        match self {
            Bench::Latency => "µs",
            Bench::Bandwidth => "GB/s",
            Bench::Rate => "Mmsg/s",
        }
    }

    /// How much slower `value` is than `other`: above 1 if it is slower.
    pub(crate) fn slowness(self, value: f64, other: f64) -> f64 {
        if self == Bench::Latency { value / other } else { other / value }
    }
}

impl Measured {
    /// What a row has measured, if it is a row of `bench latency`, `bandwidth` or `rate`.
    fn of(row: &Fields) -> Option<Measured> {
        let bench = Bench::ALL.into_iter().find(|bench| bench.name() == row.kind())?;
        let [figure, floor] = bench.fields();
        let count = |name: &str, default| row.get(name).and_then(Value::as_u64).unwrap_or(default);
        let workers = count("workers", 1);
        // The rounds of many workers are those of one pair.
        let rounds = |name| if workers == 1 { row.numbers(name) } else { Vec::new() };
        Some(Measured {
            subject: Subject {
                bench,
                van: row.text("van").to_owned(),
                op: row.text("op").to_owned(),
                keys: count("keys", 1),
                window: count("window", 1),
                workers,
                bytes: count("bytes", 0) as usize,
            },
            value: row.number(figure)?,
            floor: row.number(floor),
            rounds: rounds("rounds"),
            floor_rounds: rounds("floor_rounds"),
            wrong: count("wrong", 0),
        })
    }
}

impl std::fmt::Display for Subject {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let Subject { bench, van, op, keys, window, workers, bytes } = self;
        write!(f, "{} of {op} over {van}, {}", bench.name(), size(bytes))?;
        for (count, what) in [(keys, "keys"), (window, "in flight"), (workers, "workers")] {
            if *count > 1 {
                write!(f, ", {count} {what}")?;
            }
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, reason = "tests")]
    use super::*;

    #[test]
    fn rows_are_read_in_order_and_other_lines_refused() {
        let text = "{\"row\":\"machine\",\"cpu\":\"x\"}\n\n{\"row\":\"latency\",\"van\":\"tcp\",\
            \"op\":\"push\",\"keys\":1,\"bytes\":8,\"p50_us\":6.5,\"floor_p50_us\":null,\
            \"rounds\":[6.4,6.6]}\n{\"row\":\"odd\",\"z\":1,\"a\":[1]}";
        let results = Results { name: String::new(), rows: rows(text.as_bytes()).unwrap() };
        let kinds: Vec<&str> = results.rows.iter().map(Fields::kind).collect();
        assert_eq!(kinds, ["machine", "latency", "odd"]);
        let measured = results.measured();
        assert_eq!((measured.len(), measured[0].value, measured[0].floor), (1, 6.5, None));
        assert_eq!(measured[0].rounds, [6.4, 6.6]);
        assert_eq!(measured[0].subject.to_string(), "latency of push over tcp, 8 B");
        for (text, part) in [
            ("", "no rows"),
            ("tcp  push\n", "line 1"),
            ("{\"row\":\"x\"}\n[]\n", "line 2"),
            ("{\"cpu\":1}\n", "line 1"),
            ("{\"row\":\"x\"", "line 1"),
        ] {
            let error = rows(text.as_bytes()).unwrap_err().to_string();
            assert!(error.contains(part), "{text:?}: {error}");
        }
    }

    #[test]
    fn many_workers_have_their_figure_and_no_rounds() {
        let text = "{\"row\":\"rate\",\"mmsg_per_s\":5.5,\"floor_mmsg_per_s\":1,\"workers\":4,\
            \"rounds\":[1,2],\"floor_rounds\":[1,1]}";
        let results = Results { name: String::new(), rows: rows(text.as_bytes()).unwrap() };
        let measured = &results.measured()[0];
        assert_eq!((measured.value, measured.subject.workers), (5.5, 4));
        assert!(measured.rounds.is_empty() && measured.floor_rounds.is_empty());
    }

    #[test]
    fn slower_is_above_one() {
        assert!(Bench::Latency.slowness(6.3, 6.0) > 1.0);
        assert!(Bench::Bandwidth.slowness(6.3, 6.0) < 1.0);
    }
}
