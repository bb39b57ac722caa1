//! The reference: all parts in one thread, without servers, messages or clocks.

use std::sync::atomic::Ordering;
use std::time::Instant;

use caravan_kv::server::{Pulled, Request};
use caravan_kv::{Error, Handles, Refused, Result, Shard, TableSpec};
use caravan_van::{Pool, Value};

use super::diverged;
use super::worker::Seen;
use super::{Job, Part, Progress, Rows, Step, Sums, Trained, Trainer};
use crate::data_root::DataRoot;

/// Most memory of the table.
const MEMORY_BYTES_MAX: usize = 8 << 30;

/// Trains as [`super::train`] does under BSP, whatever [`Job::consistency`] is: in each step all
/// parts read the table as it was before, and then push in their order. `handles` has the table's
/// update rule.
///
/// # Errors
/// [`Error::Config`] has the reason of the trainer or the update rule.
pub fn serial<T: Trainer>(
    job: &Job<T::Settings>,
    handles: &Handles,
    mut progress: impl FnMut(&Progress),
) -> Result<Trained<T::Value>> {
    let began = Instant::now();
    let parts = job.parts.unwrap_or(1);
    let load =
        |number| T::of_part(&job.settings, &Part { number, parts, root: DataRoot::anywhere() });
    let trainers = (0..parts).map(load).collect::<std::result::Result<Vec<T>, String>>();
    let mut trainers = trainers.map_err(Error::Config)?;
    let steps = trainers.iter().map(Trainer::steps).max().unwrap_or(0);
    let mut table = Local::new(T::table(&job.settings), handles)?;
    let mut trained = Trained {
        rows: Rows::default(),
        objective: f64::NAN,
        passes: 0,
        seconds: 0.0,
        load_seconds: began.elapsed().as_secs_f64(),
        stopped: false,
    };
    let began = Instant::now();
    for pass in 0..job.passes {
        let mut sums = Sums::default();
        for step in 0..steps {
            table.iterate(&mut trainers, pass, step, &mut sums)?;
        }
        diverged::check_data::<T>(pass, &job.settings, &sums)?;
        trained.objective = T::objective(&job.settings, &sums, &mut || table.rows())?;
        diverged::check::<T>(pass, "the objective", trained.objective)?;
        trained.passes = pass + 1;
        trained.seconds = began.elapsed().as_secs_f64();
        progress(&Progress {
            algorithm: T::NAME,
            pass,
            seconds: trained.seconds,
            objective: trained.objective,
            sums,
            worker_bytes_sent: 0,
            server_bytes_sent: 0,
        });
        trained.stopped = job.stop.load(Ordering::Relaxed) && pass + 1 < job.passes;
        if trained.stopped {
            break;
        }
    }
    trained.rows = table.rows()?;
    diverged::check_rows::<T>(trained.passes.saturating_sub(1), &trained.rows)?;
    Ok(trained)
}

/// The error of a request that the shard of this thread refuses.
fn refused(what: &'static str, Refused { kind, reason }: Refused) -> Error {
    Error::Refused { server: "this thread".to_owned(), what, kind, reason }
}

/// A table in this thread.
pub(super) struct Local {
    spec: TableSpec,
    shard: Box<dyn Shard>,
    memory: Pool,
    seen: Seen,
    /// The iteration.
    pub(super) clock: u64,
}

impl Local {
    pub(super) fn new(spec: TableSpec, handles: &Handles) -> Result<Self> {
        let memory = Pool::new(MEMORY_BYTES_MAX);
        let shard = handles.build(&spec, spec.range()?, &memory);
        let shard = shard.map_err(|why| refused("to create a table", why))?;
        Ok(Local { spec, shard, memory, seen: Seen::default(), clock: 0 })
    }

    /// Takes a step of each trainer that has one.
    pub(super) fn iterate<T: Trainer>(
        &mut self,
        trainers: &mut [T],
        pass: u64,
        step: u64,
        sums: &mut Sums,
    ) -> Result<()> {
        self.clock += 1;
        let mut pushes = Vec::new();
        for trainer in trainers.iter_mut().filter(|trainer| step < trainer.steps()) {
            let keys = trainer.keys(pass, step);
            if keys.is_empty() {
                continue;
            }
            let rows: Vec<T::Value> = if T::READS { self.pull(&keys)? } else { Vec::new() };
            let mut taken = Step::new(pass, step, &keys, &rows, self.spec.width as usize);
            trainer.step(&mut taken);
            sums.add_step(&taken);
            let (keys, values) = taken.pushed();
            pushes.push((keys.to_vec(), values.to_vec()));
        }
        pushes.iter().try_for_each(|(keys, values)| self.push(keys, values))
    }

    fn request<'a>(&self, keys: &'a [u64], values: &'a [u8], pushes: bool) -> Result<Request<'a>> {
        Ok(Request {
            sender: 0,
            command: 0,
            clock: self.clock,
            range: self.spec.range()?,
            keys,
            lengths: &[],
            values,
            pushes,
            pulls: !pushes,
            rows: None,
        })
    }

    fn push<V: Value>(&mut self, keys: &[u64], values: &[V]) -> Result<()> {
        self.push_bytes(keys, V::bytes(values))
    }

    /// Pushes values, as bytes.
    pub(super) fn push_bytes(&mut self, keys: &[u64], values: &[u8]) -> Result<()> {
        self.seen.add(keys);
        let request = self.request(keys, values, true)?;
        let pushed = self.shard.push(&request, &self.memory);
        pushed.map_err(|why| refused("a push", why))
    }

    /// Pulls values.
    pub(super) fn pull<V: Value>(&mut self, keys: &[u64]) -> Result<Vec<V>> {
        let mut values = vec![V::default(); keys.len() * self.spec.width as usize];
        self.pull_into(keys, V::bytes_mut(&mut values))?;
        Ok(values)
    }

    /// Pulls values, as bytes.
    pub(super) fn pull_bytes(&mut self, keys: &[u64]) -> Result<Vec<u8>> {
        let len = keys.len() * self.spec.width as usize * self.spec.value.bytes();
        let mut values = vec![0; len];
        self.pull_into(keys, &mut values)?;
        Ok(values)
    }

    fn pull_into(&mut self, keys: &[u64], into: &mut [u8]) -> Result<()> {
        self.seen.add(keys);
        let request = self.request(keys, &[], false)?;
        match self.shard.pull(&request).map_err(|why| refused("a pull", why))? {
            Pulled::Stored(bytes) => into.copy_from_slice(bytes),
            Pulled::Shared(bytes) => into.copy_from_slice(&bytes),
            Pulled::Bytes(_) | Pulled::Varying(_) => self.shard.read(&request, into),
        }
        Ok(())
    }

    /// All keys of a dense table, those that were used of a sparse one.
    pub(super) fn keys(&mut self) -> Result<Vec<u64>> {
        Ok(match self.spec.store {
            caravan_kv::Store::Dense => (self.spec.begin..=self.spec.range()?.last()).collect(),
            caravan_kv::Store::Sparse => self.seen.keys().to_vec(),
        })
    }

    /// All rows.
    pub(super) fn rows<V: Value>(&mut self) -> Result<Rows<V>> {
        let keys = self.keys()?;
        let values = self.pull(&keys)?;
        Ok(Rows { keys, values, width: self.spec.width as usize })
    }
}
