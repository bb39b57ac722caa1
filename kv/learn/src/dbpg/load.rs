//! The worker's side of DBPG before training: reads its share of the data, drops columns that are
//! rare or stay at 0, and builds columns from the rest.
//!
//! Rows stay packed until the wanted columns are known, so that the others never exist twice: with
//! many rare features, those are most columns.
//!
//! Place: **load** > tail > screening > **columns** > blocks.

use std::num::NonZeroUsize;
use std::path::{Path, PathBuf};

use caravan_kv::error::with_sources;
use caravan_kv::filter::Traffic;
use caravan_kv::{Table, TableSpec, WorkerNode};
use serde::{Deserialize, Serialize};

use super::blocks::gallop;
use super::groups::{self, Group};
use super::pool::Pool;
use super::screen::{self, Bounds};
use super::tail;
use crate::data::{self, Ascending, Columns, PackedRows};

/// A worker's share of the data.
#[derive(Debug, Default, Serialize, Deserialize)]
pub(crate) struct Loaded {
    pub(crate) rows: u64,
    pub(crate) columns: u64,
    pub(crate) nonzeros: u64,
    pub(crate) keys: Option<(u64, u64)>,
}

/// The data of training.
pub(super) struct Data {
    pub(super) columns: Columns,
    /// The threads that compute on them.
    pub(super) pool: Pool,
    pub(super) dropped: Dropped,
}

/// Columns dropped before training, and the traffic of that.
#[derive(Clone, Copy, Default)]
pub(super) struct Dropped {
    pub(super) tail: u64,
    pub(super) screened: u64,
    pub(super) tables: Traffic,
}

impl Dropped {
    /// Adds the traffic of a table that is not used again.
    fn passed(&mut self, node: &WorkerNode, table: Table) -> Result<(), String> {
        let traffic = node.worker.traffic(table).map_err(|error| error.to_string())?;
        self.tables = self.tables.plus(&traffic);
        Ok(())
    }
}

impl Data {
    /// Key of each column: sorted.
    pub(super) fn keys(&self) -> &Ascending {
        self.columns.keys()
    }
}

/// Rows read so far, and the state of dropping columns.
pub(super) struct Loading {
    /// Labels times row weights: `[rows]`.
    labels: Vec<f64>,
    /// Empty once there are columns.
    rows: PackedRows,
    /// Number of distinct columns in the rows.
    distinct: usize,
    /// The columns that screening has left.
    columns: Option<Columns>,
    pool: Pool,
    counting: Option<Counting>,
    screening: Option<Screening>,
    dropped: Dropped,
}

/// State between the steps of [`tail`].
struct Counting {
    table: Table,
    keys: Vec<u64>,
    /// Number of rows of each column, up to 255.
    counts: Vec<u8>,
}

/// State between the steps of [`screen`].
struct Screening {
    table: Table,
    /// Bounds of this worker's columns, until the second step.
    bounds: Bounds,
    /// Bounds above it have been pushed.
    share: f64,
    /// Its keys that some worker has named.
    named: Vec<u64>,
}

/// Most threads of a worker.
const THREADS_MAX: usize = 1024;

const NOT_COUNTED: &str = "rare columns can be dropped only after they were counted";
const NOT_NAMED: &str = "columns can be screened only after they were named";

impl Loading {
    /// Reads the rows of worker `rank` of `workers`.
    pub(super) fn read(
        rank: usize,
        workers: usize,
        files: &[PathBuf],
        threads: usize,
        cache: Option<&Path>,
        positive_weight: f64,
    ) -> Result<Self, String> {
        // Rows until columns exist, and the memory of screening.
        caravan_numa::return_freed_blocks();
        let text = |error: crate::Error| with_sources(&error);
        let shard = data::Shard::new(rank as u32, workers as u32).map_err(text)?;
        let threads = NonZeroUsize::new(threads).filter(|threads| threads.get() <= THREADS_MAX);
        let threads = threads.ok_or_else(|| format!("a worker has 1 to {THREADS_MAX} threads"))?;
        let rows = data::read_packed(files, shard, threads, cache).map_err(text)?;
        let weighted = |&label: &i8| if label > 0 { positive_weight } else { -1.0 };
        Ok(Loading {
            labels: rows.labels().iter().map(weighted).collect(),
            distinct: rows.counts().count(|count| count > 0),
            rows,
            columns: None,
            pool: Pool::new(threads),
            counting: None,
            screening: None,
            dropped: Dropped::default(),
        })
    }

    pub(super) fn loaded(&self) -> Loaded {
        let (columns, nonzeros, keys) = match &self.columns {
            None => (self.distinct, self.rows.nonzeros(), self.rows.key_range()),
            Some(columns) => {
                let mut keys = columns.keys().iter();
                let range = keys.next().map(|first| (first, keys.next_back().unwrap_or(first)));
                (columns.columns(), columns.nonzeros(), range)
            }
        };
        let rows = self.labels.len() as u64;
        Loaded { rows, columns: columns as u64, nonzeros: nonzeros as u64, keys }
    }

    /// Step 1 of [`tail`].
    pub(super) fn count(&mut self, node: &mut WorkerNode, spec: &TableSpec) -> Result<(), String> {
        let (keys, counts) = self.rows.counts().sorted(|count| count > 0).into_iter().unzip();
        let table = node.worker.create_table(spec).map_err(|error| error.to_string())?;
        let Counting { keys, counts, .. } = self.counting.insert(Counting { table, keys, counts });
        let pushed = tail::count(&mut node.worker, table, keys, counts);
        pushed.map_err(|error| error.to_string())
    }

    /// Step 2 of [`tail`].
    pub(super) fn frequent(
        &mut self,
        node: &mut WorkerNode,
        frequency: u8,
    ) -> Result<Loaded, String> {
        let Counting { table, keys, counts } = self.counting.take().ok_or(NOT_COUNTED)?;
        let kept = tail::frequent(&mut node.worker, table, &keys, &counts, frequency);
        let kept = kept.map_err(|error| error.to_string())?;
        self.rows.retain(&kept);
        self.dropped.tail = (keys.len() - kept.len()) as u64;
        self.distinct = kept.len();
        self.dropped.passed(node, table)?;
        Ok(self.loaded())
    }

    /// Step 1 of [`screen`].
    pub(super) fn name(
        &mut self,
        node: &mut WorkerNode,
        spec: &TableSpec,
        share: f64,
    ) -> Result<(), String> {
        if self.columns.is_some() {
            return Err("its columns have been screened before".to_owned());
        }
        let bounds = Bounds::new(&self.rows, &self.labels);
        let create = |node: &mut WorkerNode| -> caravan_kv::Result<Table> {
            let table = node.worker.create_table(spec)?;
            let (keys, loud) = bounds.above(share);
            push(node, table, &keys, &loud)?;
            Ok(table)
        };
        let table = create(node).map_err(|error| error.to_string())?;
        self.screening = Some(Screening { table, bounds, share, named: Vec::new() });
        Ok(())
    }

    /// Step 2 of [`screen`].
    pub(super) fn add(&mut self, node: &mut WorkerNode) -> Result<(), String> {
        let screening = self.screening.as_mut().ok_or(NOT_NAMED)?;
        let Screening { table, share, named, .. } = screening;
        let bounds = std::mem::take(&mut screening.bounds);
        if bounds.all_above(*share) {
            *named = bounds.above(*share).0;
            return Ok(());
        }
        *named = ask(node, *table, &screen::Command::Named)?;
        named.retain(|&key| bounds.of(key).is_some());
        let own = named.iter().filter_map(|&key| Some((key, bounds.of(key)?)));
        let quiet = own.filter(|&(_, bounds)| !screen::exceeds(bounds, *share));
        let (keys, quiet): (Vec<u64>, Vec<[f32; 2]>) = quiet.unzip();
        push(node, *table, &keys, &quiet).map_err(|error| error.to_string())
    }

    /// Step 3 of [`screen`]; builds the remaining columns.
    pub(super) fn screen(&mut self, node: &mut WorkerNode, lambda: f64) -> Result<Loaded, String> {
        let Screening { table, named, .. } = self.screening.take().ok_or(NOT_NAMED)?;
        let mut kept = ask(node, table, &screen::Command::Above { lambda })?;
        let mut rest = &named[..];
        kept.retain(|key| {
            let found = gallop(rest, key);
            rest = &rest[found.unwrap_or_else(|behind| behind)..];
            found.is_ok()
        });
        self.dropped.screened = (self.distinct - kept.len()) as u64;
        self.dropped.passed(node, table)?;
        let rows = std::mem::take(&mut self.rows);
        self.columns = Some(rows.into_columns(kept).map_err(|error| with_sources(&error))?);
        Ok(self.loaded())
    }

    /// The feature groups of the remaining columns.
    pub(super) fn groups(&self, bits: u32) -> Vec<Group> {
        match &self.columns {
            None => groups::of_rows(&self.rows, bits),
            Some(columns) => groups::of_columns(columns, self.labels.len(), bits),
        }
    }

    /// The data to train on: the columns that screening has left, else all, and a column of ones
    /// with the key `intercept`. Also the labels times row weights.
    pub(super) fn into_data(self, intercept: Option<u64>) -> Result<(Data, Vec<f64>), String> {
        let Loading { labels, rows, columns, pool, dropped, .. } = self;
        let all = || {
            let keys = rows.distinct_keys();
            rows.into_columns(keys).map_err(|error| with_sources(&error))
        };
        let mut columns = columns.map_or_else(all, Ok)?;
        if let Some(key) = intercept {
            columns.push_ones(key, labels.len());
        }
        Ok((Data { columns, pool, dropped }, labels))
    }
}

/// Asks servers for keys.
fn ask(node: &mut WorkerNode, table: Table, command: &screen::Command) -> Result<Vec<u64>, String> {
    let body = serde_json::to_vec(command).map_err(|error| error.to_string())?;
    let asked = node.worker.command(table, &body);
    let answer = asked.and_then(|asked| node.worker.wait(asked));
    screen::keys(&answer.map_err(|error| error.to_string())?.replies)
}

/// Pushes bounds of columns.
fn push(
    node: &mut WorkerNode,
    table: Table,
    keys: &[u64],
    bounds: &[[f32; 2]],
) -> caravan_kv::Result<()> {
    let pushed = node.worker.push(table, keys, bounds.as_flattened())?;
    node.worker.wait(pushed).map(drop)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::data::clicks::{self, Clicks, Format};
    use crate::data::testing::Folder;

    /// Most columns are short ones of rare features, which screening would drop.
    #[test]
    fn columns_take_a_fifth_more_than_their_entries_at_most() {
        let folder = Folder::new("load");
        let clicks = Clicks { rows: 50_000, test_rows: 0, ..Clicks::default() };
        let (out, one, stop) = (folder.path().join("c"), NonZeroUsize::MIN, Default::default());
        let made = clicks::generate(&clicks, &out, Format::Compact, one, &stop);
        made.expect("there is room for it");
        let file = [folder.path().join("c.train")];
        for workers in 1..=4 {
            let loading = || Loading::read(0, workers, &file, 1, None, 1.0);
            let all = loading().and_then(|all| all.into_data(None)).expect("it is well formed").0;
            let Loading { rows, labels, .. } = loading().expect("it is well formed");
            let loud = Bounds::new(&rows, &labels).above(10.0 / workers as f64).0;
            let screened = rows.into_columns(loud).expect("they are few");
            for columns in [all.columns, screened] {
                let ratio = columns.bytes() as f64 / (4 * columns.nonzeros()) as f64;
                assert!(ratio <= 1.2, "{} columns: {ratio}", columns.columns());
            }
        }
    }
}
