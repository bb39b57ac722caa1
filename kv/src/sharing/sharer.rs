//! One thread of a process that shares a table.

use std::sync::{MutexGuard, PoisonError};

use super::Common;
use super::state::{Increments, State};
use crate::consistency::chunks;
use crate::error::{Error, Result};
use crate::server::Sum;
use crate::slicer;

/// A thread's hold on a table that it shares with other threads of its process.
pub struct Sharer<'a, V: Sum> {
    common: &'a Common<V>,
    thread: u32,
    /// The iteration that it works on.
    clock: u64,
    /// What it has added in this iteration.
    own: Increments<V>,
    has_ended: bool,
}

impl<'a, V: Sum> Sharer<'a, V> {
    pub(super) fn new(common: &'a Common<V>, thread: u32) -> Self {
        Sharer { common, thread, clock: 1, own: Increments::new(), has_ended: false }
    }

    /// Number of this thread among those of its process, from 0.
    pub fn thread(&self) -> usize {
        self.thread as usize
    }

    /// The iteration that this thread works on, from 1.
    pub fn iteration(&self) -> u64 {
        self.clock
    }

    /// Reads the values of `keys: [n]`, strictly ascending, into `values: [n * width]`. Waits for
    /// threads that are too slow, and for chunks that are not here.
    ///
    /// # Errors
    /// Those of wrong keys; [`Error::WrongLength`]; [`Error::SharingStopped`] if another thread or
    /// the worker has failed.
    pub fn get(&mut self, keys: &[u64], values: &mut [V]) -> Result<()> {
        let common = self.common;
        self.check(keys, values.len(), "values")?;
        let touched: Vec<u64> = chunks(keys, common.chunk_keys).collect();
        let mut state = common.lock();
        state.chunks_read += touched.len() as u64;
        loop {
            check_stopped(common, &state)?;
            if state.may_read(self.thread, self.clock) {
                if state.want(&touched) {
                    break;
                }
                common.worker.notify_one();
            }
            state = wait(common, state);
        }
        for (key, row) in keys.iter().zip(values.chunks_exact_mut(common.width)) {
            let chunk = key / common.chunk_keys;
            let at = self.place(*key);
            row.copy_from_slice(&state.values(chunk)[at..at + common.width]);
            if let Some(own) = self.own.get(&chunk) {
                V::add_up(row, &own[at..at + common.width]);
            }
        }
        Ok(())
    }

    /// Adds `increments: [n * width]` to the values of `keys: [n]`, strictly ascending. This thread
    /// sees them at once.
    ///
    /// # Errors
    /// Those of wrong keys; [`Error::WrongLength`].
    pub fn inc(&mut self, keys: &[u64], increments: &[V]) -> Result<()> {
        self.check(keys, increments.len(), "increments")?;
        let width = self.common.width;
        for (key, row) in keys.iter().zip(increments.chunks_exact(width)) {
            let chunk = key / self.common.chunk_keys;
            let at = self.place(*key);
            let zeros = || vec![V::default(); self.common.values(chunk)];
            let own = self.own.entry(chunk).or_insert_with(zeros);
            V::add_up(&mut own[at..at + width], row);
        }
        Ok(())
    }

    /// Ends this thread's iteration: the other threads see its increments, under BSP when all have
    /// ended it. Nothing is sent.
    ///
    /// # Errors
    /// [`Error::SharingStopped`].
    pub fn clock(&mut self) -> Result<()> {
        let mut state = self.common.lock();
        check_stopped(self.common, &state)?;
        state.end_iteration(self.thread, self.clock, std::mem::take(&mut self.own));
        self.clock += 1;
        self.common.threads.notify_all();
        Ok(())
    }

    /// Ends this thread's iteration and, when all threads have called this or have ended, that of
    /// the process: the sums go to the servers, and chunks that are too old are pulled again.
    ///
    /// # Errors
    /// [`Error::SharingStopped`].
    pub fn sync(&mut self) -> Result<()> {
        self.clock()?;
        let mut state = self.common.lock();
        let round = state.round;
        state.wait_for_sync(self.thread);
        self.common.threads.notify_all();
        self.common.worker.notify_one();
        while state.round == round {
            check_stopped(self.common, &state)?;
            state = wait(self.common, state);
        }
        self.clock = state.resumed_at;
        Ok(())
    }

    /// Ends this thread, with what it has added if it has succeeded.
    pub(super) fn end<R>(mut self, done: Result<R>) -> Result<R> {
        self.has_ended = true;
        if let Err(error) = &done {
            self.common.stop(error.to_string());
            return done;
        }
        let mut state = self.common.lock();
        state.end_iteration(self.thread, self.clock, std::mem::take(&mut self.own));
        state.end_thread(self.thread);
        self.common.threads.notify_all();
        self.common.worker.notify_one();
        done
    }

    fn check(&self, keys: &[u64], found: usize, what: &'static str) -> Result<()> {
        let Common { table, range, width, .. } = self.common;
        slicer::check(keys, *range, table)?;
        let expected = keys.len() * width;
        if found != expected {
            return Err(Error::WrongLength { what, table: table.clone(), expected, found });
        }
        Ok(())
    }

    /// Where the values of a key begin in its chunk.
    fn place(&self, key: u64) -> usize {
        let span = self.common.span(key / self.common.chunk_keys);
        (key - span.begin()) as usize * self.common.width
    }
}

impl<V: Sum> Drop for Sharer<'_, V> {
    /// A thread that panicked stops the others.
    fn drop(&mut self) {
        if !self.has_ended {
            self.common.stop(format!("thread {} panicked", self.thread));
        }
    }
}

fn check_stopped<V: Sum>(common: &Common<V>, state: &State<V>) -> Result<()> {
    match &state.stopped {
        None => Ok(()),
        Some(reason) => {
            let table = common.table.clone();
            Err(Error::SharingStopped { table, reason: reason.clone() })
        }
    }
}

fn wait<'a, V: Sum>(
    common: &'a Common<V>,
    state: MutexGuard<'a, State<V>>,
) -> MutexGuard<'a, State<V>> {
    common.threads.wait(state).unwrap_or_else(PoisonError::into_inner)
}
