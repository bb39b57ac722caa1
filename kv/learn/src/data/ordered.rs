//! Maps jobs on several threads and returns the results in order. Only a few jobs per thread are in
//! flight.

use std::num::NonZeroUsize;
use std::sync::mpsc::{Receiver, SyncSender, sync_channel};
use std::thread::{self, Builder};

use crate::{Error, Result};

/// More threads than this only cost memory, because one thread cuts the blocks for all.
const THREADS_MAX: usize = 256;

/// Jobs and results that may wait for each thread.
const WAITING_MAX: usize = 2;

/// Calls `work` on each of `jobs`, on up to `threads` threads besides the one that runs the
/// iterator, and `sink` with the results in the order of the jobs, on the calling thread.
///
/// Job `k` goes to thread `k % threads`, and its result is received from there, so no reorder
/// buffer is needed.
///
/// # Errors
/// The first error in the order of the jobs, whatever the timing; nothing after it reaches `sink`.
/// [`Error::Thread`] before anything does.
pub(crate) fn map_in_order<J: Send, T: Send>(
    threads: NonZeroUsize,
    jobs: impl Iterator<Item = Result<J>> + Send,
    work: impl Fn(J) -> Result<T> + Sync,
    mut sink: impl FnMut(T) -> Result<()>,
) -> Result<()> {
    let threads = threads.get().min(THREADS_MAX);
    thread::scope(|scope| {
        let failed = |number| move |source| Error::Thread { number, source };
        let mut to_workers = Vec::with_capacity(threads);
        let mut from_workers = Vec::with_capacity(threads);
        for number in 1..=threads {
            let (to_worker, job_receiver) = sync_channel(WAITING_MAX);
            let (result_sender, from_worker) = sync_channel(WAITING_MAX);
            to_workers.push(to_worker);
            from_workers.push(from_worker);
            let work = &work;
            let run = move || run_worker(&job_receiver, &result_sender, work);
            Builder::new().spawn_scoped(scope, run).map_err(failed(number))?;
        }
        let feed = move || {
            // A send fails only if the caller has stopped at an error and needs no more results.
            jobs.zip((0..threads).cycle())
                .try_for_each(|(job, worker)| to_workers[worker].send(job))
        };
        Builder::new().spawn_scoped(scope, feed).map_err(failed(threads + 1))?;
        for worker in (0..threads).cycle() {
            // A closed channel is the end of the jobs: job k is missing, so all later ones are,
            // too.
            let Ok(result) = from_workers[worker].recv() else { break };
            sink(result?)?;
        }
        Ok(())
    })
}

fn run_worker<J, T>(
    jobs: &Receiver<Result<J>>,
    results: &SyncSender<Result<T>>,
    work: &impl Fn(J) -> Result<T>,
) {
    for job in jobs {
        if results.send(job.and_then(work)).is_err() {
            return;
        }
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

    use super::*;

    fn bad(value: usize) -> Error {
        Error::Option { name: "job", value: value.to_string(), expected: "another" }
    }

    #[test]
    fn results_come_in_order() {
        for threads in [1, 2, 3, 7] {
            let mut squares = Vec::new();
            let threads = NonZeroUsize::new(threads).unwrap();
            map_in_order(
                threads,
                (0..100).map(Ok),
                |job| Ok(job * job),
                |it| {
                    squares.push(it);
                    Ok(())
                },
            )
            .unwrap();
            assert_eq!(squares, (0..100).map(|it| it * it).collect::<Vec<_>>());
        }
    }

    #[test]
    fn the_first_error_wins_and_an_endless_source_stops() {
        for threads in [1, 2, 5] {
            let mut seen = 0;
            let jobs = (0..).map(|job| if job == 41 { Err(bad(job)) } else { Ok(job) });
            let work = |job| if job % 50 == 37 { Err(bad(job)) } else { Ok(job) };
            let error = map_in_order(NonZeroUsize::new(threads).unwrap(), jobs, work, |_| {
                seen += 1;
                Ok(())
            });
            assert_eq!(error.unwrap_err().to_string(), bad(37).to_string());
            assert_eq!(seen, 37);
        }
    }
}
