//! What algorithms have in common that train in steps over one table: read rows, compute, push an
//! update. An algorithm, or a user's own, is a [`Trainer`]; this module runs it on a cluster under
//! any consistency model, or in one thread.
//!
//! ```text
//! driver      train: load, then a pass after another; progress; the rows at the end
//!    | Load, Pass, Rejoin, Keys                          (tasks of the app T::NAME)
//!    v
//! workers     Trainer::keys > pull > Trainer::step > push, which ends the iteration
//!                  ^ Trainer::add_rows, while a thread reads
//! ```
//!
//! The data is cut into **parts**. A worker trains one part or more, each with a trainer of its own
//! and one push an iteration. Under BSP servers apply the pushes of an iteration in the order of
//! the parts, so a run is the same to the bit with any number of workers, and that of [`serial()`].
//!
//! `kv/docs/trainers.md` shows how to write one.

mod diverged;
mod driver;
mod feed;
mod hint;
mod hogwild;
mod local;
mod reading;
mod serial;
mod settings;
mod spmt;
mod worker;

use std::num::NonZeroUsize;
use std::ops::Range;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::AtomicBool;

use caravan_kv::consistency::Model;
use caravan_kv::error::with_sources;
use caravan_kv::{Apps, TableSpec};
use caravan_van::Value;
use serde::de::DeserializeOwned;
use serde::{Deserialize, Serialize};

pub use self::driver::{Trained, train, train_and};
pub use self::hint::Hint;
pub use self::reading::{Reading, RowsOf};
pub use self::serial::serial;
pub use self::settings::{Descent, Factors};
use crate::data::{self, Examples, Labels};
use crate::data_root::DataRoot;

/// An algorithm that trains one part of the data over a table, step by step.
pub trait Trainer: Sized + Send + 'static {
    /// Name of its app, and of the algorithm in rows.
    const NAME: &'static str;

    /// The problem and its settings, the same at all nodes.
    type Settings: Clone + Serialize + DeserializeOwned + 'static;

    /// What the table holds.
    type Value: Value;

    /// Whether steps read the rows of their keys. The others only push.
    const READS: bool = true;

    /// What helps where a run diverges, as errors say it.
    const REMEDY: &'static str = "lower the rate (--option rate=)";

    /// The table, without a consistency model: a run adds its own.
    fn table(settings: &Self::Settings) -> TableSpec;

    /// Reads a part of the data, or begins without rows where [`Trainer::rows_of`] says which come.
    ///
    /// # Errors
    /// Text that the driver shows with the worker's name.
    fn load(settings: &Self::Settings, part: &Part) -> Result<Self, String>;

    /// The files whose rows come by [`Trainer::add_rows`], in the order of the files and before or
    /// during the first pass.
    fn rows_of(_settings: &Self::Settings) -> Option<RowsOf<'_>> {
        None
    }

    /// The files that parts read: those of [`Trainer::rows_of`], unless an algorithm reads its own.
    /// A run is refused if one of them changes before all parts have read it.
    fn files(settings: &Self::Settings) -> &[PathBuf] {
        Self::rows_of(settings).map_or(&[], |rows| rows.files)
    }

    /// Takes the next rows of this part.
    ///
    /// # Errors
    /// As [`Trainer::load`].
    fn add_rows(&mut self, _rows: &Examples) -> Result<(), String> {
        Ok(())
    }

    /// Takes the end of the rows.
    ///
    /// # Errors
    /// As [`Trainer::load`].
    fn end_rows(&mut self) -> Result<(), String> {
        Ok(())
    }

    /// Steps of a pass over this part, as far as it is there.
    fn steps(&self) -> u64;

    /// Keys that a step reads, or only pushes, strictly ascending.
    fn keys(&self, pass: u64, step: u64) -> Vec<u64>;

    /// Keys of a chunk, if each part writes a chunk of its own and reads all of them in each step,
    /// as data-centric constraints demand: that of part p begins at key p times as many.
    fn chunk_keys(_settings: &Self::Settings, _parts: usize) -> Option<u64> {
        None
    }

    /// Computes the update of a step from the rows that it has read.
    fn step(&mut self, step: &mut Step<'_, Self::Value>);

    /// A part with all its rows.
    ///
    /// # Errors
    /// As [`Trainer::load`].
    fn of_part(settings: &Self::Settings, part: &Part) -> Result<Self, String> {
        let mut trainer = Self::load(settings, part)?;
        if let Some(RowsOf { files, labels, .. }) = Self::rows_of(settings) {
            trainer.add_rows(&part.examples(files, labels)?)?;
            trainer.end_rows()?;
        }
        Ok(trainer)
    }

    /// The objective after a pass, from the sums over all steps and parts; the sum of losses unless
    /// an algorithm takes another. `rows` reads the table, which is at rest then.
    ///
    /// # Errors
    /// Those of reading the table.
    fn objective(
        _settings: &Self::Settings,
        sums: &Sums,
        _rows: &mut ReadRows<'_, Self::Value>,
    ) -> caravan_kv::Result<f64> {
        Ok(sums.loss)
    }
}

/// Reads all rows of a dense table; of a sparse one those that steps have read so far.
pub type ReadRows<'a, V> = dyn FnMut() -> caravan_kv::Result<Rows<V>> + 'a;

/// One step: the rows that it has read, and its update of them.
#[derive(Debug)]
pub struct Step<'a, V> {
    /// The pass, from 0.
    pub pass: u64,
    /// The step within the pass, from 0.
    pub step: u64,
    /// [`Trainer::keys`].
    pub keys: &'a [u64],
    /// `[keys * width]`, as the consistency model lets this step see them; empty if steps do not
    /// read.
    pub rows: &'a [V],
    /// `[keys * width]`, 0 at first: what is pushed.
    pub update: Vec<V>,
    /// Which of `keys` are pushed, all at first.
    pub written: Range<usize>,
    /// What the step adds to the sums of its pass.
    pub sums: Sums,
}

impl<'a, V: Value> Step<'a, V> {
    /// A step for `keys: [n]`; `rows: [n * width]`, or empty if steps do not read.
    pub fn new(pass: u64, step: u64, keys: &'a [u64], rows: &'a [V], width: usize) -> Self {
        let update = vec![V::default(); keys.len() * width];
        Step { pass, step, keys, rows, update, written: 0..keys.len(), sums: Sums::default() }
    }

    /// The keys and values to push.
    fn pushed(&self) -> (&'a [u64], &[V]) {
        let width = self.update.len() / self.keys.len().max(1);
        let Range { start, end } = self.written;
        (&self.keys[start..end], &self.update[start * width..end * width])
    }
}

/// Sums over the steps of a pass.
#[derive(Debug, Clone, Copy, Default, PartialEq, Serialize, Deserialize)]
pub struct Sums {
    /// Loss of the examples, each measured when it was trained on.
    pub loss: f64,
    /// Their number.
    pub examples: u64,
    /// Rows that were read.
    pub rows_pulled: u64,
    /// Rows that were pushed.
    pub rows_pushed: u64,
}

impl Sums {
    fn add(&mut self, other: &Sums) {
        self.loss += other.loss;
        self.examples += other.examples;
        self.rows_pulled += other.rows_pulled;
        self.rows_pushed += other.rows_pushed;
    }

    /// Adds a step.
    fn add_step<V: Value>(&mut self, step: &Step<'_, V>) {
        self.add(&step.sums);
        self.rows_pulled += if step.rows.is_empty() { 0 } else { step.keys.len() as u64 };
        self.rows_pushed += step.written.len() as u64;
    }
}

/// A part of the data.
#[derive(Debug)]
pub struct Part {
    /// Its number, from 0.
    pub number: usize,
    /// Number of parts.
    pub parts: usize,
    root: DataRoot,
}

impl Part {
    /// The file that `path` names, if the worker may read it.
    ///
    /// # Errors
    /// Text with the path, if it is outside the worker's data root.
    pub fn allow(&self, path: &Path) -> Result<PathBuf, String> {
        self.root.allow(path)
    }

    /// The examples of this part: 16 consecutive rows to each part in turn, as in
    /// [`data::Shard`].
    ///
    /// # Errors
    /// Text with the file, and the line if one is wrong.
    pub fn examples(&self, files: &[PathBuf], labels: Labels) -> Result<Examples, String> {
        self.read(files, |files, shard| data::read_as(labels, files, shard, NonZeroUsize::MIN))
    }

    /// The examples of all parts.
    ///
    /// # Errors
    /// As [`Part::examples`].
    pub fn all_examples(&self, files: &[PathBuf], labels: Labels) -> Result<Examples, String> {
        let all = data::Shard::ALL;
        self.read(files, |files, _| data::read_as(labels, files, all, NonZeroUsize::MIN))
    }

    /// What `read` makes of the rows of this part in files, if the worker may read them.
    ///
    /// # Errors
    /// As [`Part::examples`].
    pub(crate) fn read<T>(
        &self,
        files: &[PathBuf],
        read: impl FnOnce(&[PathBuf], data::Shard) -> crate::Result<T>,
    ) -> Result<T, String> {
        let files = self.root.files(files, self.parts)?;
        let shard = data::Shard::new(self.number as u32, self.parts as u32);
        shard.and_then(|shard| read(&files, shard)).map_err(|error| with_sources(&error))
    }
}

/// A run: the problem, and how it is trained.
#[derive(Debug, Clone)]
pub struct Job<S> {
    /// The algorithm's settings.
    pub settings: S,
    /// What steps may see of each other's updates.
    pub consistency: Model,
    /// Parts of the data, at least one for each worker; as many as workers if `None`.
    pub parts: Option<usize>,
    /// How trainers of [`Trainer::rows_of`] get their rows, with [`Hint::Ps`].
    pub reading: Reading,
    /// Where the model is.
    pub hint: Hint,
    /// Passes over the data.
    pub passes: u64,
    /// Copies of each shard of the table on other servers, with [`Hint::Ps`]. Training goes on
    /// without as many servers, if the cluster may lose them
    /// ([`caravan_kv::NodeConfig::server_losses_max`]).
    pub replicas: u32,
    /// Set from any thread to end the run after the current pass.
    pub stop: Arc<AtomicBool>,
}

impl<S> Job<S> {
    /// One pass under BSP, with a part for each worker.
    pub fn new(settings: S) -> Self {
        let (reading, hint, stop) = Default::default();
        Job {
            settings,
            consistency: Model::Bsp,
            parts: None,
            reading,
            hint,
            passes: 1,
            replicas: 0,
            stop,
        }
    }

    /// Checks that there can be [`Job::replicas`], on so many servers if that is known.
    ///
    /// # Errors
    /// [`caravan_kv::Error::Config`] with what cannot have copies, and the remedy.
    pub fn check_replicas(&self, servers: Option<usize>) -> caravan_kv::Result<()> {
        let Job { replicas, hint, .. } = *self;
        let checked = match servers {
            _ if replicas == 0 => Ok(()),
            _ if hint != Hint::Ps => Err(format!(
                "with the hint {hint} the model is in one worker, and replicas are of servers: \
                 take the hint ps (--replicas)"
            )),
            Some(servers) => check_room(replicas, servers),
            None => Ok(()),
        };
        checked.map_err(caravan_kv::Error::Config)
    }
}

/// Refuses more copies than there are other servers.
///
/// # Errors
/// The numbers, and the remedy.
pub fn check_room(replicas: u32, servers: usize) -> Result<(), String> {
    let most = servers.saturating_sub(1);
    match replicas as usize <= most {
        true => Ok(()),
        false => Err(format!(
            "there is no room for {replicas} replicas on {servers} servers: take {} servers, or at \
             most {most} replicas (--replicas)",
            u64::from(replicas) + 1
        )),
    }
}

/// Progress after a pass; field by field the program's row.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct Progress {
    /// The algorithm.
    pub algorithm: &'static str,
    /// Number of the pass, from 0.
    pub pass: u64,
    /// Since training began, without loading.
    pub seconds: f64,
    /// The algorithm's objective.
    pub objective: f64,
    /// What workers have trained on and moved in this pass.
    #[serde(flatten)]
    pub sums: Sums,
    /// Bytes that all workers have sent so far.
    pub worker_bytes_sent: u64,
    /// Bytes that all workers have received so far.
    pub server_bytes_sent: u64,
}

/// Rows of a table.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct Rows<V> {
    /// Strictly ascending.
    pub keys: Vec<u64>,
    /// `[keys * width]`.
    pub values: Vec<V>,
    /// Values of a row, at least 1.
    pub width: usize,
}

impl<V: Value> Rows<V> {
    /// Each key with its row.
    pub fn iter(&self) -> impl Iterator<Item = (u64, &[V])> {
        self.keys.iter().copied().zip(self.values.chunks_exact(self.width.max(1)))
    }

    /// The row of a key, if it is there.
    pub fn row(&self, key: u64) -> Option<&[V]> {
        let at = self.keys.binary_search(&key).ok()?;
        self.values.get(at * self.width..(at + 1) * self.width)
    }
}

/// Adds a trainer to the apps of workers.
pub fn app<T: Trainer>(apps: Apps) -> Apps {
    apps.with(T::NAME, || Box::new(worker::Task::<T>::default()))
}

/// Parts of worker `rank` of `workers`: consecutive ones, so that the order of ranks is theirs.
fn parts_of(rank: usize, workers: usize, parts: usize) -> Range<usize> {
    rank * parts / workers..(rank + 1) * parts / workers
}
