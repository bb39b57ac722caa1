//! What the threads of a process have pulled and added, under one lock.

use std::collections::{BTreeMap, BTreeSet};

use super::Sharing;
use crate::consistency::{Access, Asp, Bsp, Controller, Model, Ssp, Verdict};
use crate::error::{Error, Result};
use crate::server::Sum;

/// A thread's increments, by chunk.
pub(super) type Increments<V> = BTreeMap<u64, Vec<V>>;

/// The chunks, and how far the threads are.
pub(super) struct State<V> {
    /// The model among the threads.
    model: Box<dyn Controller + Send>,
    /// Whether increments are added in order of rank when all threads have ended their iteration.
    is_ordered: bool,
    age: u64,
    chunks: BTreeMap<u64, Chunk<V>>,
    /// Chunks to pull.
    wanted: BTreeSet<u64>,
    /// Increments that wait for their turn, by iteration and thread.
    ended: BTreeMap<(u64, u32), Increments<V>>,
    /// Threads that have not ended.
    live: BTreeSet<u32>,
    /// Number of them that wait for the servers.
    waiting: usize,
    /// The first iteration of the threads after the last sync.
    pub(super) resumed_at: u64,
    /// That after the next one.
    clock: u64,
    /// Iterations of the process that are over.
    pub(super) round: u64,
    /// Why the threads cannot go on.
    pub(super) stopped: Option<String>,
    pub(super) chunks_read: u64,
    pub(super) chunks_pulled: u64,
}

struct Chunk<V> {
    /// The servers' values of a pull and all that the threads have added since; `None` if it was
    /// not pulled.
    values: Option<Vec<V>>,
    /// The process's iteration of the pull.
    pulled_in: u64,
    is_wanted: bool,
    /// What the threads have added, and the servers do not have.
    sums: Option<Vec<V>>,
}

/// What the worker has to do.
pub(super) enum Next<V> {
    /// Pull these chunks.
    Pull(Vec<u64>),
    /// Push these sums, and end the process's iteration.
    Sync(Increments<V>),
    /// Nothing more.
    End,
    /// Nothing now.
    Nothing,
}

impl<V> Default for Chunk<V> {
    fn default() -> Self {
        Chunk { values: None, pulled_in: 0, is_wanted: false, sums: None }
    }
}

impl<V: Sum> State<V> {
    /// All threads in their first iteration.
    ///
    /// # Errors
    /// [`Error::Config`] for another model than BSP, SSP and ASP.
    pub(super) fn new(sharing: &Sharing) -> Result<Self> {
        let threads = sharing.threads;
        let mut model: Box<dyn Controller + Send> = match sharing.model {
            Model::Bsp => Box::new(Bsp::new(threads)),
            Model::Ssp { staleness } => Box::new(Ssp::new(threads, staleness)),
            Model::Asp => Box::new(Asp::new(threads)),
            other => {
                let why = format!("threads share a table under BSP, SSP or ASP, not {other}");
                return Err(Error::Config(why));
            }
        };
        let live: BTreeSet<u32> = (0..threads as u32).collect();
        for thread in &live {
            model.join(*thread, 1);
        }
        Ok(State {
            model,
            is_ordered: sharing.model == Model::Bsp,
            age: sharing.age,
            chunks: BTreeMap::new(),
            wanted: BTreeSet::new(),
            ended: BTreeMap::new(),
            live,
            waiting: 0,
            resumed_at: 1,
            clock: 1,
            round: 0,
            stopped: None,
            chunks_read: 0,
            chunks_pulled: 0,
        })
    }

    /// Whether a thread may read in its iteration `clock`.
    pub(super) fn may_read(&mut self, thread: u32, clock: u64) -> bool {
        let access = Access { worker: thread, clock, reads: true, writes: false, keys: &[] };
        self.model.admit(&access) == Verdict::Admit
    }

    /// Asks for those of some chunks that are not here; returns whether all are.
    pub(super) fn want(&mut self, chunks: &[u64]) -> bool {
        let mut are_here = true;
        for &at in chunks {
            let chunk = self.chunks.entry(at).or_default();
            if chunk.values.is_some() {
                continue;
            }
            are_here = false;
            if !std::mem::replace(&mut chunk.is_wanted, true) {
                self.wanted.insert(at);
                self.chunks_pulled += 1;
            }
        }
        are_here
    }

    /// The values of a chunk that is here.
    pub(super) fn values(&self, chunk: u64) -> &[V] {
        let chunk = self.chunks.get(&chunk);
        chunk.and_then(|chunk| chunk.values.as_deref()).unwrap_or_default()
    }

    /// Records a pulled chunk.
    pub(super) fn enter(&mut self, at: u64, values: &[V]) {
        let chunk = self.chunks.entry(at).or_default();
        let mut values = values.to_vec();
        // The pull came after all pushes of this process, and before what the sums hold.
        if let Some(sums) = &chunk.sums {
            V::add_up(&mut values, sums);
        }
        (chunk.values, chunk.pulled_in, chunk.is_wanted) = (Some(values), self.round, false);
    }

    /// Ends a thread's iteration `clock`, with what it has added.
    pub(super) fn end_iteration(&mut self, thread: u32, clock: u64, increments: Increments<V>) {
        self.clock = self.clock.max(clock + 1);
        self.ended.insert((clock, thread), increments);
        self.model.advance(thread, clock + 1, 0);
        self.add_ended();
    }

    /// Adds the increments whose turn has come.
    fn add_ended(&mut self) {
        while let Some(first) = self.ended.first_entry() {
            let (clock, _) = *first.key();
            if self.is_ordered && self.model.members().slowest() <= clock {
                return;
            }
            for (at, increments) in first.remove() {
                let chunk = self.chunks.entry(at).or_default();
                if let Some(values) = &mut chunk.values {
                    V::add_up(values, &increments);
                }
                match &mut chunk.sums {
                    Some(sums) => V::add_up(sums, &increments),
                    None => chunk.sums = Some(increments),
                }
            }
        }
    }

    /// A thread waits for the servers: the others do not wait for it.
    pub(super) fn wait_for_sync(&mut self, thread: u32) {
        self.waiting += 1;
        self.model.leave(thread);
        self.add_ended();
    }

    /// A thread has ended.
    pub(super) fn end_thread(&mut self, thread: u32) {
        self.live.remove(&thread);
        self.model.leave(thread);
        self.add_ended();
    }

    /// What the worker has to do now.
    pub(super) fn next(&mut self) -> Next<V> {
        if self.stopped.is_some() {
            return Next::End;
        }
        if !self.wanted.is_empty() {
            return Next::Pull(std::mem::take(&mut self.wanted).into_iter().collect());
        }
        let has_sums = self.chunks.values().any(|chunk| chunk.sums.is_some());
        match self.live.is_empty() {
            true if !has_sums => return Next::End,
            false if self.waiting < self.live.len() => return Next::Nothing,
            _ => {}
        }
        let sums = self.chunks.iter_mut();
        Next::Sync(sums.filter_map(|(at, chunk)| Some((*at, chunk.sums.take()?))).collect())
    }

    /// The process's iteration is over: its threads go on, and chunks that are too old go.
    pub(super) fn synced(&mut self) {
        self.round += 1;
        self.waiting = 0;
        self.resumed_at = self.clock;
        let State { live, model, clock, round, age, .. } = self;
        for thread in live.iter() {
            model.join(*thread, *clock);
        }
        let is_fresh = |chunk: &Chunk<V>| chunk.pulled_in.saturating_add(*age) >= *round;
        self.chunks.retain(|_, chunk| chunk.values.is_some() && is_fresh(chunk));
    }
}
