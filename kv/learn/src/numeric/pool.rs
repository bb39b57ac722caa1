//! The threads of one worker, which divide a block's columns or its rows.
//!
//! Each number is computed by one thread, with its terms in a fixed order, so results are the same
//! to the bit for any number of threads, and nothing is locked. Threads sleep between blocks; a
//! small block is computed by the calling thread alone.

use std::num::NonZeroUsize;
use std::sync::Arc;

use rayon::{ThreadPool, ThreadPoolBuilder};

/// Non-zeros that justify waking another thread.
const THREAD_NONZEROS: usize = 32 << 10;

/// Threads; by default the calling one alone.
#[derive(Debug, Clone, Default)]
pub struct Pool(Option<Arc<ThreadPool>>);

impl Pool {
    /// A pool of `threads`, including the calling one. If the system gives none, there is only
    /// that.
    pub fn new(threads: NonZeroUsize) -> Self {
        let others = threads.get() - 1;
        if others == 0 {
            return Self(None);
        }
        let name = |at| format!("dbpg-{at}");
        let built = ThreadPoolBuilder::new().num_threads(others).thread_name(name).build();
        if let Err(error) = &built {
            tracing::warn!("this worker computes with one thread, not {threads}: {error}");
        }
        Self(built.ok().map(Arc::new))
    }

    /// Number of threads, including the calling one.
    pub(crate) fn threads(&self) -> usize {
        1 + self.0.as_ref().map_or(0, |pool| pool.current_num_threads())
    }

    /// Number of threads that this many non-zeros justify.
    pub(crate) fn threads_for(&self, nonzeros: usize) -> usize {
        self.threads().min(nonzeros / THREAD_NONZEROS).max(1)
    }

    /// Calls `work` on each of `parts`: the first on the calling thread, the others on the threads
    /// of the pool.
    pub(crate) fn share<T: Send>(
        &self,
        parts: impl IntoIterator<Item = T>,
        work: impl Fn(T) + Sync,
    ) {
        let mut parts = parts.into_iter();
        let Some(first) = parts.next() else { return };
        match &self.0 {
            None => std::iter::once(first).chain(parts).for_each(work),
            Some(pool) => pool.in_place_scope(|scope| {
                for part in parts {
                    let work = &work;
                    scope.spawn(move |_| work(part));
                }
                work(first);
            }),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_part_has_its_turn() {
        for threads in 1..4 {
            let pool = Pool::new(NonZeroUsize::new(threads).expect("it is above 0"));
            assert_eq!(pool.threads(), threads);
            let mut squares = [0; 10];
            pool.share(squares.iter_mut().enumerate(), |(at, square)| *square = at * at);
            assert_eq!(squares, std::array::from_fn(|at| at * at));
            pool.share(std::iter::empty::<u8>(), |_| unreachable!("there is no part"));
        }
        let pool = Pool::new(NonZeroUsize::new(3).expect("it is above 0"));
        assert_eq!([0, 70_000, 10_000_000].map(|nonzeros| pool.threads_for(nonzeros)), [1, 2, 3]);
        assert_eq!(Pool::default().threads_for(usize::MAX), 1);
    }
}
