//! The process cache: threads of one process share the chunks of a table (FlexPS, sections 6 and
//! 7).
//!
//! ```text
//!   thread ── get, inc, clock, sync ──┐
//!   thread ── get, inc, clock, sync ──┼── chunks and sums ── the process's worker ── servers
//!   thread ── get, inc, clock, sync ──┘   (one lock)         pulls what is missing,
//!                                                            pushes the sums at sync
//! ```
//!
//! To the servers the process is one worker, and `sync` ends its iteration. Between two syncs the
//! threads have iterations of their own, which `clock` ends, under a model of their own: BSP, SSP
//! or ASP among themselves, without the network. A chunk that one thread has pulled is there for
//! all, and no chunk is pulled twice in an iteration of the process.
//!
//! Increments are added up in the process. The thread that makes one sees it at once, the others
//! when it has ended its iteration, the servers after `sync`. What the process reads is therefore
//! the servers' values of its pull, and everything that its own threads have added since.

mod sharer;
mod state;

use std::collections::BTreeMap;
use std::sync::{Condvar, Mutex, MutexGuard, PoisonError};
use std::thread;
use std::time::Duration;

use caravan_van::KeyRange;

pub use self::sharer::Sharer;
use self::state::{Next, State};
use crate::consistency::Model;
use crate::error::{Error, Result, panicked};
use crate::runs::Runs;
use crate::server::Sum;
use crate::table::ValueType;
use crate::tracker::Timestamp;
use crate::worker::{Table, Worker};

/// How threads of a process share a table.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Sharing {
    /// Number of threads, at least 1.
    pub threads: usize,
    /// What holds between them: [`Model::Bsp`], [`Model::Ssp`] or [`Model::Asp`].
    pub model: Model,
    /// Keys that are pulled together: key `k` is in chunk `k / chunk_keys`. Up to 64 MiB of values.
    pub chunk_keys: u64,
    /// Iterations of the process for which a pulled chunk is kept after its own. The staleness of
    /// the table's model grows by them.
    pub age: u64,
}

/// What the threads of a process have done.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Shared<R> {
    /// Each thread's result.
    pub results: Vec<R>,
    /// Chunks that threads have asked for, each time once.
    pub chunks_read: u64,
    /// Chunks that were pulled from the servers.
    pub chunks_pulled: u64,
    /// Iterations of the process.
    pub syncs: u64,
}

/// Most bytes of a chunk.
const CHUNK_BYTES_MAX: u64 = 64 << 20;

/// Sleep of the worker while it waits for servers, so that it looks at what threads want.
const BACKOFF: Duration = Duration::from_micros(200);

/// Sleep of the worker while nothing is on the way: it looks for lost nodes that often.
const IDLE: Duration = Duration::from_millis(100);

/// What the threads and the worker share.
struct Common<V> {
    table: String,
    range: KeyRange,
    width: usize,
    chunk_keys: u64,
    state: Mutex<State<V>>,
    /// Where threads wait.
    threads: Condvar,
    /// Where the worker waits.
    worker: Condvar,
}

impl<V: Sum> Common<V> {
    fn lock(&self) -> MutexGuard<'_, State<V>> {
        // A thread that panicked has said so in the state.
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// The keys of a chunk.
    fn span(&self, chunk: u64) -> KeyRange {
        let first = chunk * self.chunk_keys;
        let last = first.saturating_add(self.chunk_keys - 1);
        let whole = KeyRange::new(first, last.wrapping_add(1)).unwrap_or(KeyRange::ALL);
        whole.intersect(self.range).unwrap_or(whole)
    }

    /// Number of values of a chunk.
    fn values(&self, chunk: u64) -> usize {
        self.span(chunk).count() as usize * self.width
    }

    /// Makes all threads end with this reason, unless they have another one.
    fn stop(&self, reason: String) {
        self.lock().stopped.get_or_insert(reason);
        self.threads.notify_all();
        self.worker.notify_all();
    }
}

impl Worker {
    /// Runs `work` in several threads, which share a table through this worker; returns when all
    /// have ended and the servers have their sums.
    ///
    /// The table has the handle `add` and rows of one length. If it has a model, that is BSP, SSP,
    /// ASP or bounded delay, and this worker has joined it.
    ///
    /// # Errors
    /// [`Error::Config`] for a table or a sharing that does not suit, [`Error::WrongType`],
    /// [`Error::UnknownTable`]; the first error of a thread, or of this worker as [`Worker::wait`].
    pub fn share<V: Sum, R: Send>(
        &mut self,
        table: Table,
        sharing: &Sharing,
        work: impl Fn(&mut Sharer<'_, V>) -> Result<R> + Sync,
    ) -> Result<Shared<R>> {
        let common = self.common::<V>(table, sharing)?;
        let (common, work) = (&common, &work);
        let (served, ended) = thread::scope(|scope| {
            let mut threads = Vec::new();
            for rank in 0..sharing.threads {
                let named = thread::Builder::new().name(format!("share {rank}"));
                let run = move || {
                    let mut sharer = Sharer::new(common, rank as u32);
                    let done = work(&mut sharer);
                    sharer.end(done)
                };
                match named.spawn_scoped(scope, run) {
                    Ok(thread) => threads.push(thread),
                    Err(source) => {
                        let what = format!("thread {rank} of table {}", common.table);
                        common.stop(what.clone());
                        return (Err(Error::Spawn { what, source }), Vec::new());
                    }
                }
            }
            let served = Serving::new(self, table, common).run();
            if let Err(error) = &served {
                common.stop(error.to_string());
            }
            let ended: Vec<Result<R>> = threads
                .into_iter()
                .map(|it| {
                    it.join().unwrap_or_else(|panic| Err(panicked("a sharing thread", &*panic)))
                })
                .collect();
            (served, ended)
        });
        // Threads that were stopped because of another one are not the reason.
        let is_reason = |it: &Result<R>| !matches!(it, Ok(_) | Err(Error::SharingStopped { .. }));
        let mut ended = ended;
        if let Some(at) = ended.iter().position(is_reason) {
            ended.swap(0, at);
        }
        served?;
        let results = ended.into_iter().collect::<Result<Vec<R>>>()?;
        let state = common.lock();
        let State { chunks_read, chunks_pulled, round: syncs, .. } = *state;
        Ok(Shared { results, chunks_read, chunks_pulled, syncs })
    }

    /// Checks a table and how it is to be shared.
    fn common<V: Sum>(&self, table: Table, sharing: &Sharing) -> Result<Common<V>> {
        let spec = self.info().spec(table)?;
        let name = spec.name.clone();
        if Some(spec.value) != ValueType::of::<V>() {
            let (expected, found) = (spec.value.name(), V::NAME);
            return Err(Error::WrongType { table: name, expected, found });
        }
        let is_known = spec.consistency.is_none_or(|consistency| {
            use Model::{Asp, BoundedDelay, Bsp, Ssp};
            matches!(consistency.model, Bsp | Ssp { .. } | Asp | BoundedDelay { .. })
        });
        let row_bytes = u64::from(spec.width) * V::BYTES as u64;
        let chunk_bytes = sharing.chunk_keys.saturating_mul(row_bytes);
        let why = if spec.handle != "add" || spec.width == 0 {
            "threads share tables with the handle add and rows of one length".to_owned()
        } else if !is_known {
            "threads share tables under BSP, SSP, ASP, bounded delay, or no model".to_owned()
        } else if sharing.threads == 0 || sharing.chunk_keys == 0 {
            "sharing takes at least 1 thread, and chunks of at least 1 key".to_owned()
        } else if chunk_bytes > CHUNK_BYTES_MAX {
            format!("chunks of {chunk_bytes} bytes are longer than {CHUNK_BYTES_MAX}")
        } else {
            let state = State::new(sharing)?;
            return Ok(Common {
                range: spec.range()?,
                width: spec.width as usize,
                table: name,
                chunk_keys: sharing.chunk_keys,
                state: Mutex::new(state),
                threads: Condvar::new(),
                worker: Condvar::new(),
            });
        };
        Err(Error::Config(format!("table {name} cannot be shared: {why}")))
    }
}

/// The worker's part: it pulls and pushes for the threads.
struct Serving<'a, V> {
    worker: &'a mut Worker,
    table: Table,
    common: &'a Common<V>,
    /// Pulls on the way, with their chunks.
    pulling: Vec<Pulling>,
    /// The push of the last iteration.
    pushed: Option<Timestamp>,
}

struct Pulling {
    timestamp: Timestamp,
    chunks: Vec<u64>,
}

impl<'a, V: Sum> Serving<'a, V> {
    fn new(worker: &'a mut Worker, table: Table, common: &'a Common<V>) -> Self {
        Serving { worker, table, common, pulling: Vec::new(), pushed: None }
    }

    /// Serves the threads until all have ended.
    fn run(mut self) -> Result<()> {
        loop {
            match self.next() {
                Next::Pull(chunks) => self.pull(chunks)?,
                Next::Sync(sums) => self.sync(sums)?,
                Next::End => break,
                Next::Nothing => self.receive()?,
            }
        }
        match self.pushed {
            Some(pushed) => self.worker.wait(pushed).map(drop),
            None => Ok(()),
        }
    }

    /// What the threads want next. Waits for that if no answer is on the way.
    fn next(&self) -> Next<V> {
        let mut state = self.common.lock();
        loop {
            let next = state.next();
            if !matches!(next, Next::Nothing) || !self.pulling.is_empty() {
                return next;
            }
            let waited = self.common.worker.wait_timeout(state, IDLE);
            let (again, timeout) = waited.unwrap_or_else(PoisonError::into_inner);
            if timeout.timed_out() {
                return Next::Nothing;
            }
            state = again;
        }
    }

    fn pull(&mut self, chunks: Vec<u64>) -> Result<()> {
        let spans = chunks.iter().map(|chunk| self.common.span(*chunk));
        let add = |runs: Runs, span: KeyRange| runs.and(span.begin()..=span.last());
        let runs = spans.fold(Runs::default(), add);
        let timestamp = self.worker.pull(self.table, &runs)?;
        self.pulling.push(Pulling { timestamp, chunks });
        Ok(())
    }

    /// Takes in what has come; sleeps a little if that is nothing.
    fn receive(&mut self) -> Result<()> {
        let mut any = self.worker.poll()?;
        let mut at = 0;
        while let Some(Pulling { timestamp, .. }) = self.pulling.get(at) {
            if !self.worker.is_done(*timestamp)? {
                at += 1;
                continue;
            }
            let Pulling { timestamp, chunks } = self.pulling.remove(at);
            let answer = self.worker.wait(timestamp)?;
            let mut values = answer.values::<V>();
            let mut state = self.common.lock();
            for chunk in chunks {
                let Some((own, rest)) = values.split_at_checked(self.common.values(chunk)) else {
                    break; // the worker has checked how many there are
                };
                state.enter(chunk, own);
                values = rest;
            }
            self.common.threads.notify_all();
            any = true;
        }
        match any {
            true => Ok(()),
            false => {
                self.worker.sleep(if self.pulling.is_empty() { Duration::ZERO } else { BACKOFF })
            }
        }
    }

    /// Ends an iteration of the process: pushes the sums of all rows that have changed.
    fn sync(&mut self, sums: BTreeMap<u64, Vec<V>>) -> Result<()> {
        let mut keys = Vec::new();
        let mut values = Vec::new();
        for (chunk, sums) in sums {
            let span = self.common.span(chunk);
            let rows = sums.chunks_exact(self.common.width);
            for (key, row) in (span.begin()..=span.last()).zip(rows) {
                if row.iter().any(|value| *value != V::default()) {
                    keys.push(key);
                    values.extend_from_slice(row);
                }
            }
        }
        if let Some(pushed) = self.pushed.take() {
            self.worker.wait(pushed)?;
        }
        let has_joined = self.worker.clocks(self.table).iteration()? > 0;
        self.pushed = match (keys.is_empty(), has_joined) {
            (false, true) => Some(self.worker.clocks(self.table).push_last(&keys, &values)?),
            (false, false) => Some(self.worker.push(self.table, &keys, &values)?),
            (true, true) => Some(self.worker.clocks(self.table).advance()?),
            (true, false) => None,
        };
        self.common.lock().synced();
        self.common.threads.notify_all();
        Ok(())
    }
}
