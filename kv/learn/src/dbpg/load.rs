//! The worker's side of DBPG before training: reads its share of the data, drops columns that are
//! rare or stay at 0, and builds columns from the rest, or leaves the rows on disk.
//!
//! Rows stay packed until the wanted columns are known, so that the others never exist twice: with
//! many rare features, those are most columns.
//!
//! Place: **load** > tail > screening > **columns** > blocks.

use std::num::NonZeroUsize;
use std::ops::Range;
use std::path::{Path, PathBuf};

use caravan_kv::error::with_sources;
use caravan_kv::filter::Traffic;
use caravan_kv::{Table, TableSpec, WorkerNode};
use serde::{Deserialize, Serialize};

use super::newton::Disk;
use super::scaling::{self, Largest, Scaling, Sizes};
use super::screen::{self, Bounds};
use crate::data::groups::{self, Group};
use crate::data::{self, Ascending, BLOCK_ROWS, Columns, KeptRows, Share, gallop};
use crate::memory::Budget;
use crate::numeric::Pool;
use crate::sketch::tail;

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
    /// Without entries, if these are on disk.
    pub(super) columns: Columns,
    pub(super) disk: Option<Disk>,
    rows: usize,
    /// What data on disk takes of memory.
    pub(super) budget: Option<Budget>,
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
        let traffic = node.worker.info().traffic(table).map_err(|error| error.to_string())?;
        self.tables = self.tables.plus(&traffic);
        Ok(())
    }
}

impl Data {
    /// Key of each column: sorted.
    pub(super) fn keys(&self) -> &Ascending {
        self.columns.keys()
    }

    /// Number of rows.
    pub(super) fn rows(&self) -> usize {
        self.rows
    }

    /// The largest |x_ij|.
    pub(super) fn largest(&self) -> f64 {
        self.disk.as_ref().map_or_else(|| self.columns.largest(), Disk::largest)
    }

    /// Calls `visit` with the entries of some columns, part by part of the rows: the part's rows,
    /// columns with rows counted from its first, and where each of `wanted` is among them.
    ///
    /// # Errors
    /// If rows on disk cannot be read.
    pub(super) fn for_each_part(
        &self,
        wanted: &[Option<u32>],
        mut visit: impl FnMut(Range<usize>, &Columns, &[Option<usize>]),
    ) -> Result<(), String> {
        let Some(disk) = &self.disk else {
            let all: Vec<Option<usize>> = wanted.iter().map(|j| j.map(|j| j as usize)).collect();
            visit(0..self.rows, &self.columns, &all);
            return Ok(());
        };
        let key = |j: &Option<u32>| j.map(|j| self.keys().get(j as usize));
        let keys: Vec<Option<u64>> = wanted.iter().map(key).collect();
        let mut sorted: Vec<u64> = keys.iter().copied().flatten().collect();
        sorted.sort_unstable();
        for block in 0..disk.blocks() {
            let columns = disk.columns(block, &sorted)?;
            let found = |key: &Option<u64>| key.and_then(|key| columns.keys().find(key));
            let at: Vec<Option<usize>> = keys.iter().map(found).collect();
            let first = block * BLOCK_ROWS;
            visit(first..self.rows.min(first + BLOCK_ROWS), &columns, &at);
        }
        Ok(())
    }
}

/// Rows read so far, and the state of dropping columns.
pub(super) struct Loading {
    /// Labels times row weights: `[rows]`.
    labels: Vec<f64>,
    /// Empty once there are columns.
    rows: Share,
    budget: Option<Budget>,
    /// Number of distinct columns in the rows.
    distinct: usize,
    /// The columns that screening has left.
    columns: Option<Columns>,
    /// Where their entries are, if those are on disk.
    disk: Option<Disk>,
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

/// Bytes of a row on disk: both its labels, score, gradient and curvature.
const ROW_BYTES: usize = 1 + 8 + 8 + 16 + 8;

/// Most threads of a worker.
const THREADS_MAX: usize = 1024;

/// Bytes of a column in lists and messages of screening.
const NAMED_BYTES: usize = 4 * 16;

const NO_FOLDER: &str = "rows on disk need a folder for caches, and a limit of memory";
const NOT_COUNTED: &str = "rare columns can be dropped only after they were counted";
const NOT_NAMED: &str = "columns can be screened only after they were named";

impl Loading {
    /// Reads the rows of worker `rank` of `workers`; with a limit of memory into blocks on disk.
    pub(super) fn read(
        rank: usize,
        workers: usize,
        files: &[PathBuf],
        threads: usize,
        cache: Option<&Path>,
        memory: Option<u64>,
        positive_weight: f64,
    ) -> Result<Self, String> {
        // Rows until columns exist, and the memory of screening.
        caravan_numa::return_freed_blocks();
        let text = |error: crate::Error| with_sources(&error);
        let shard = data::Shard::new(rank as u32, workers as u32).map_err(text)?;
        let threads = NonZeroUsize::new(threads).filter(|threads| threads.get() <= THREADS_MAX);
        let threads = threads.ok_or_else(|| format!("a worker has 1 to {THREADS_MAX} threads"))?;
        let mut budget = memory.map(Budget::new);
        let rows = match (&mut budget, cache) {
            (None, _) => {
                Share::Held(data::read_packed(files, shard, threads, cache).map_err(text)?)
            }
            (Some(_), None) => return Err(NO_FOLDER.to_owned()),
            (Some(budget), Some(folder)) => {
                let rows = KeptRows::open(files, shard, threads, folder).map_err(text)?;
                budget.hold("rows", rows.rows() * ROW_BYTES)?;
                Share::Kept(rows)
            }
        };
        let weighted = |&label: &i8| if label > 0 { positive_weight } else { -1.0 };
        let counts = rows.counts().map_err(text)?;
        borrow(&mut budget, &rows, counts.bytes())?;
        Ok(Loading {
            labels: rows.labels().iter().map(weighted).collect(),
            distinct: counts.count(|count| count > 0),
            rows,
            budget,
            columns: None,
            disk: None,
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
                let nonzeros =
                    self.disk.as_ref().map_or_else(|| columns.nonzeros(), Disk::nonzeros);
                (columns.columns(), nonzeros, range)
            }
        };
        let rows = self.labels.len() as u64;
        Loaded { rows, columns: columns as u64, nonzeros: nonzeros as u64, keys }
    }

    /// Step 1 of [`tail`].
    pub(super) fn count(&mut self, node: &mut WorkerNode, spec: &TableSpec) -> Result<(), String> {
        let counts = self.rows.counts().map_err(|error| with_sources(&error))?;
        let (keys, counts) = counts.sorted(|count| count > 0).into_iter().unzip();
        let table = node.worker.admin().create_table(spec).map_err(|error| error.to_string())?;
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
        match &mut self.rows {
            Share::Held(rows) => rows.retain(&kept),
            Share::Kept(_) => return Err("rare columns stay in rows on disk".to_owned()),
        }
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
        let bounds = Bounds::new(&self.rows, &self.labels).map_err(|error| with_sources(&error))?;
        borrow(&mut self.budget, &self.rows, bounds.bytes() + self.distinct * NAMED_BYTES)?;
        let create = |node: &mut WorkerNode| -> caravan_kv::Result<Table> {
            let table = node.worker.admin().create_table(spec)?;
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
        self.build(kept)?;
        Ok(self.loaded())
    }

    /// Makes columns of the rows, or counts those of rows on disk.
    fn build(&mut self, keys: Vec<u64>) -> Result<(), String> {
        let columns = match (std::mem::take(&mut self.rows), &mut self.budget) {
            (Share::Held(rows), _) => rows.into_columns(keys).map_err(|error| with_sources(&error)),
            (Share::Kept(_), None) => Err(NO_FOLDER.to_owned()),
            (Share::Kept(rows), Some(budget)) => {
                let values = rows.has_values().then(Vec::new);
                self.disk = Some(Disk::new(rows, &keys, budget)?);
                Ok(Columns::new(&keys, &vec![0; keys.len()], Vec::new(), values))
            }
        };
        self.columns = Some(columns?);
        Ok(())
    }

    /// Makes columns of all keys, unless screening has made some.
    fn ensure_columns(&mut self) -> Result<(), String> {
        if self.columns.is_some() {
            return Ok(());
        }
        let counts = self.rows.counts().map_err(|error| with_sources(&error))?;
        let keys = counts.sorted(|count| count > 0).into_iter().map(|(key, _)| key);
        self.build(keys.collect())
    }

    /// The largest value of each column.
    fn largest(&mut self) -> Result<impl Iterator<Item = Largest>, String> {
        self.ensure_columns()?;
        let (columns, disk) = (self.columns.iter(), self.disk.as_ref());
        Ok(columns.flat_map(move |columns| {
            columns.keys().iter().enumerate().map(move |(at, key)| {
                let value = disk.map_or_else(|| columns.largest_of(at), |disk| disk.largest_of(at));
                Largest { key, value }
            })
        }))
    }

    /// Step 1 of [`scaling`].
    pub(super) fn sizes(&mut self) -> Result<Sizes, String> {
        self.largest().map(Sizes::of)
    }

    /// Step 2 of [`scaling`].
    pub(super) fn unusual(&mut self, bits: i32) -> Result<Vec<u64>, String> {
        self.largest().map(|all| scaling::unusual(all, bits))
    }

    /// Step 3 of [`scaling`]: the largest values of these columns, 0 of those that it lacks.
    pub(super) fn largest_of(&mut self, keys: &[u64]) -> Result<Vec<f64>, String> {
        let mut found = vec![0.0; keys.len()];
        for Largest { key, value } in self.largest()? {
            if let Ok(at) = keys.binary_search(&key) {
                found[at] = value;
            }
        }
        Ok(found)
    }

    /// Divides the columns of unusual size.
    fn divide(&mut self, scaling: &Scaling) {
        let Loading { columns, disk, .. } = self;
        let Some(columns) = columns else { return };
        for (key, exponent) in scaling.iter() {
            let Some(column) = columns.keys().find(key) else { continue };
            let factor = 2_f64.powi(-exponent);
            match disk {
                Some(disk) => disk.multiply(column, factor),
                None => columns.multiply(column, factor),
            }
        }
    }

    /// The feature groups of the remaining columns.
    pub(super) fn groups(&self, bits: u32) -> Result<Vec<Group>, String> {
        match (&self.columns, &self.rows) {
            (None, Share::Held(rows)) => Ok(groups::of_rows(rows, bits)),
            (Some(columns), _) if self.disk.is_none() => {
                Ok(groups::of_columns(columns, self.labels.len(), bits))
            }
            _ => Err("groups of features are of rows in memory".to_owned()),
        }
    }

    /// The data to train on: the columns that screening has left, else all, and a column of ones
    /// with the key `intercept`, all divided. Also the labels times row weights.
    pub(super) fn into_data(
        mut self,
        intercept: Option<u64>,
        scaling: &Scaling,
    ) -> Result<(Data, Vec<f64>), String> {
        self.ensure_columns()?;
        self.divide(scaling);
        let Loading { labels, columns, mut disk, budget, pool, dropped, .. } = self;
        let mut columns = columns.unwrap_or_default();
        let rows = labels.len();
        if let Some(key) = intercept {
            columns.push_ones(key, if disk.is_some() { 0 } else { rows });
            disk.iter_mut().for_each(|disk| disk.push_ones(key, rows));
        }
        Ok((Data { columns, disk, rows, budget, pool, dropped }, labels))
    }
}

/// Accounts for bytes of all columns and for a block, while rows on disk are read.
fn borrow(budget: &mut Option<Budget>, rows: &Share, bytes: usize) -> Result<(), String> {
    match (budget, rows) {
        (Some(budget), Share::Kept(rows)) => {
            budget.borrow("columns before screening", bytes + rows.bytes_max())
        }
        _ => Ok(()),
    }
}

/// Asks servers for keys.
fn ask(node: &mut WorkerNode, table: Table, command: &screen::Command) -> Result<Vec<u64>, String> {
    let body = serde_json::to_vec(command).map_err(|error| error.to_string())?;
    let asked = node.worker.command(table, &body);
    let answer = asked.and_then(|asked| node.worker.wait(asked));
    screen::keys(&answer.map_err(|error| error.to_string())?.replies).map_err(|why| why.reason)
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
            let loading = || Loading::read(0, workers, &file, 1, None, None, 1.0);
            let all = loading()
                .and_then(|all| all.into_data(None, &Scaling::default()))
                .expect("it is well formed")
                .0;
            let mut screened = loading().expect("it is well formed");
            let bounds = Bounds::new(&screened.rows, &screened.labels).expect("they are in memory");
            screened.build(bounds.above(10.0 / workers as f64).0).expect("they are few");
            for columns in [all.columns, screened.columns.unwrap_or_default()] {
                let ratio = columns.bytes() as f64 / (4 * columns.nonzeros()) as f64;
                assert!(ratio <= 1.2, "{} columns: {ratio}", columns.columns());
            }
        }
    }
}
