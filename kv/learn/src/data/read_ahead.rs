//! Reads files on a thread of its own while others train on what is there.

use std::path::PathBuf;
use std::sync::mpsc::{Receiver, RecvTimeoutError, sync_channel};
use std::sync::{Mutex, PoisonError};
use std::thread::{Builder, JoinHandle};
use std::time::Duration;

use super::read::rows_of;
use super::source::Blocks;
use super::{Examples, Labels, Shard};
use crate::{Error, Result};

/// Time between two looks of a thread at what it has to do while it waits for a part.
const BACKOFF: Duration = Duration::from_millis(1);

/// Parts of files that come while others are used. Any number of threads take them, each part goes
/// to one. Dropping it ends the reading.
#[derive(Debug)]
pub struct ReadAhead<T = Examples> {
    parts: Mutex<Receiver<Result<T>>>,
    thread: Option<JoinHandle<()>>,
}

impl ReadAhead {
    /// Begins to read the rows of a shard, as [`super::read`] does. The thread waits while `ahead`
    /// parts wait for somebody to take them.
    ///
    /// # Errors
    /// [`Error::Thread`] if the system has no thread.
    pub fn start(paths: &[PathBuf], shard: Shard, ahead: usize) -> Result<ReadAhead> {
        let parts = rows_of(Blocks::new(paths.to_vec()), None, vec![shard], Labels::Classes);
        let parts = parts.map(|part| part.map(|mut part| part.pop().unwrap_or_default()));
        ReadAhead::of(parts.filter(|part| part.as_ref().map_or(true, |it| it.rows() > 0)), ahead)
    }
}

impl ReadAhead<Vec<Examples>> {
    /// As [`ReadAhead::start`], with each block of text as its rows of each of these shards.
    ///
    /// # Errors
    /// As [`ReadAhead::start`].
    pub(crate) fn of_shards(
        paths: &[PathBuf],
        shards: Vec<Shard>,
        labels: Labels,
        ahead: usize,
    ) -> Result<Self> {
        ReadAhead::of(rows_of(Blocks::new(paths.to_vec()), None, shards, labels), ahead)
    }
}

impl<T: Send + 'static> ReadAhead<T> {
    /// Begins to take what `parts` makes, up to the first error.
    ///
    /// # Errors
    /// As [`ReadAhead::start`].
    pub(crate) fn of(
        parts: impl Iterator<Item = Result<T>> + Send + 'static,
        ahead: usize,
    ) -> Result<Self> {
        let (send, taken) = sync_channel(ahead);
        let read = move || {
            for part in parts {
                // Nobody takes what comes after an error, or when the reader is dropped.
                if part.is_err() | send.send(part).is_err() {
                    return;
                }
            }
        };
        let thread = Builder::new().name("read".to_owned()).spawn(read);
        let thread = thread.map_err(|source| Error::Thread { number: 1, source })?;
        Ok(ReadAhead { parts: Mutex::new(taken), thread: Some(thread) })
    }

    /// The next part, once it is there; `None` at the end of the files, and after an error.
    pub fn next(&self) -> Option<Result<T>> {
        self.parts.lock().unwrap_or_else(PoisonError::into_inner).recv().ok()
    }

    /// As [`ReadAhead::next`], for a thread that has other things to do while a part is not there.
    /// `meanwhile` does them, once also if the part is there, so that in simulated time it does the
    /// same in each run. It returns whether there will be more to do; if not, the thread sleeps
    /// until the part is there.
    ///
    /// # Errors
    /// That of `meanwhile`.
    pub(crate) fn next_while<E>(
        &self,
        mut meanwhile: impl FnMut() -> std::result::Result<bool, E>,
    ) -> std::result::Result<Option<Result<T>>, E> {
        let parts = self.parts.lock().unwrap_or_else(PoisonError::into_inner);
        while meanwhile()? {
            match parts.recv_timeout(BACKOFF) {
                Ok(part) => return Ok(Some(part)),
                Err(RecvTimeoutError::Disconnected) => return Ok(None),
                Err(RecvTimeoutError::Timeout) => {}
            }
        }
        Ok(parts.recv().ok())
    }
}

impl<T> Drop for ReadAhead<T> {
    fn drop(&mut self) {
        // The thread no longer waits for room.
        self.parts = Mutex::new(sync_channel(0).1);
        let thread = self.thread.take();
        // A panic there has no more to say than that there are no more parts.
        thread.into_iter().for_each(|thread| drop(thread.join()));
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

    use std::io::Write;
    use std::iter;
    use std::process::Command;
    use std::sync::atomic::{AtomicUsize, Ordering};
    use std::sync::{Arc, Condvar};
    use std::time::{Duration, Instant};

    use super::*;
    use crate::data::testing::Folder;
    use crate::data::{self, DataStore, Take};

    fn text(rows: usize) -> String {
        (0..rows).map(|row| format!("{} {row}:1 {}:2\n", row % 2, row + 1)).collect()
    }

    /// Goal: the thread reads on while nobody takes anything. Method: a pipe whose writer counts
    /// what it got rid of; a pipe holds 64 KiB, and a block has 256.
    #[test]
    fn it_reads_while_others_train() {
        let folder = Folder::new("reader-pipe");
        let pipe = folder.path().join("pipe");
        assert!(Command::new("mkfifo").arg(&pipe).status().unwrap().success());
        static WRITTEN: AtomicUsize = AtomicUsize::new(0);
        let text = text(200_000);
        let bytes = text.len();
        assert!(bytes > 8 * (256 << 10));
        let to = pipe.clone();
        let writer = std::thread::spawn(move || {
            let mut to = std::fs::OpenOptions::new().write(true).open(to).unwrap();
            for chunk in text.as_bytes().chunks(4096) {
                to.write_all(chunk).unwrap();
                WRITTEN.fetch_add(chunk.len(), Ordering::Relaxed);
            }
        });
        let reader = ReadAhead::start(&[pipe], Shard::ALL, 2).unwrap();
        let mut rows = reader.next().unwrap().unwrap().rows();
        // As long as this part is used, two more come, and a third waits for room.
        let began = Instant::now();
        while WRITTEN.load(Ordering::Relaxed) < 3 * (256 << 10) {
            assert!(began.elapsed() < Duration::from_secs(60), "it reads nothing meanwhile");
            std::thread::sleep(Duration::from_millis(1));
        }
        assert!(WRITTEN.load(Ordering::Relaxed) < bytes, "it has not read all that it could");
        while let Some(part) = reader.next() {
            rows += part.unwrap().rows();
        }
        assert_eq!(rows, 200_000);
        writer.join().unwrap();
    }

    #[test]
    fn threads_share_the_parts_and_keep_them() {
        let folder = Folder::new("reader-threads");
        let path = folder.write("rows", text(60_000).as_bytes());
        let reader = ReadAhead::start(&[path.clone(), path.clone()], Shard::ALL, 1).unwrap();
        let take = || {
            let mut bucket = Examples::default();
            while let Some(part) = reader.next() {
                bucket.append(&part.unwrap());
            }
            bucket
        };
        let buckets: Vec<Examples> = std::thread::scope(|scope| {
            let threads: Vec<_> = (0..3).map(|_| scope.spawn(take)).collect();
            threads.into_iter().map(|thread| thread.join().unwrap()).collect()
        });
        let store = DataStore::new(buckets);
        let rows = store.rows_of(0, Take::All);
        let mut keys: Vec<u64> = rows.map(|row| store.row(row).keys[0]).collect();
        keys.sort_unstable();
        let twice: Vec<u64> = (0..60_000).flat_map(|row| [row, row]).collect();
        assert!(keys == twice, "each row once");
    }

    /// Time that goes on only when the thread that reads and the one that trains both work, or wait
    /// for each other.
    struct Clock {
        ticks: Mutex<Ticks>,
        changed: Condvar,
        /// Parts that may wait.
        ahead: usize,
    }

    #[derive(Default)]
    struct Ticks {
        now: u64,
        /// Until when they work.
        reads_until: u64,
        trains_until: u64,
        /// Parts that were read, and that were taken.
        read: usize,
        taken: usize,
        asks: bool,
        has_ended: bool,
    }

    impl Ticks {
        /// Goes on to the next end of work, unless somebody does something first.
        fn go_on(&mut self, ahead: usize) {
            let (reads, trains) = (self.reads_until > self.now, self.trains_until > self.now);
            let waits_for_room = self.read - self.taken > ahead;
            let waits_for_parts = self.asks && self.read == self.taken && !self.has_ended;
            if (reads || waits_for_room || self.has_ended) && (trains || waits_for_parts) {
                let ends = [(reads, self.reads_until), (trains, self.trains_until)];
                let next = ends.iter().filter(|(works, _)| *works).map(|(_, until)| *until).min();
                self.now = next.unwrap_or(self.now);
            }
        }
    }

    impl Clock {
        fn new(ahead: usize) -> Self {
            Clock { ticks: Mutex::default(), changed: Condvar::new(), ahead }
        }

        fn change(&self, change: impl FnOnce(&mut Ticks)) {
            let mut ticks = self.ticks.lock().unwrap();
            change(&mut ticks);
            ticks.go_on(self.ahead);
            self.changed.notify_all();
        }

        /// Sleeps until an end of work has come.
        fn sleep(&self, until: impl Fn(&Ticks) -> u64) {
            let ticks = self.ticks.lock().unwrap();
            drop(self.changed.wait_while(ticks, |ticks| ticks.now < until(ticks)).unwrap());
        }

        /// The time to read parts that take so long each, while others that take so long are used.
        fn together(ahead: usize, reading: Vec<u64>, training: &[u64]) -> u64 {
            let clock = Arc::new(Clock::new(ahead));
            let reads = clock.clone();
            let parts = reading.into_iter().map(move |ticks| {
                reads.change(|it| it.reads_until = it.now + ticks);
                reads.sleep(|it| it.reads_until);
                reads.change(|it| it.read += 1);
                Ok(())
            });
            let ends = clock.clone();
            let end = iter::once_with(move || ends.change(|it| it.has_ended = true));
            let parts = parts.map(Some).chain(end.map(|()| None)).map_while(|part| part);
            let reader = ReadAhead::of(parts, ahead).unwrap();
            for ticks in training {
                clock.change(|it| it.asks = true);
                reader.next().unwrap().unwrap();
                clock.change(|it| {
                    (it.asks, it.taken) = (false, it.taken + 1);
                    it.trains_until = it.now + ticks;
                });
                clock.sleep(|it| it.trains_until);
            }
            assert!(reader.next().is_none());
            clock.ticks.lock().unwrap().now
        }
    }

    /// Goal: reading while training takes at most 1.1 times the longer of the two. Method: the
    /// thread that reads and the one that trains on a clock of their own, with parts that take
    /// equally long, more or less long, and now and then four times as long.
    #[test]
    fn reading_and_training_take_little_more_than_the_longer_of_them() {
        const PARTS: usize = 100;
        const AHEAD: usize = 4;
        let mut state = 1_u64;
        let mut drawn = |_| {
            state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1);
            50 + (state >> 33) % 101
        };
        let varied = [(); 2].map(|()| (0..PARTS).map(&mut drawn).collect::<Vec<u64>>());
        let [some, others] = varied;
        let all = |ticks: u64| vec![ticks; PARTS];
        let bursts = (0..PARTS).map(|part| if part % 8 == 0 { 400 } else { 50 }).collect();
        for (reading, training) in [
            (all(100), all(100)),
            (all(100), all(70)),
            (all(70), all(100)),
            (some, others),
            (bursts, all(100)),
        ] {
            let longer = reading.iter().sum::<u64>().max(training.iter().sum());
            let both = Clock::together(AHEAD, reading, &training);
            println!("{both} ticks, the longer of both {longer}");
            assert!(both >= longer && 10 * both <= 11 * longer, "{both} of {longer}");
        }
        // Where no part may wait, they do not help each other out.
        let bursts = (0..PARTS).map(|part| if part % 8 == 0 { 400 } else { 50 }).collect();
        let both = Clock::together(0, bursts, &all(100));
        assert!(10 * both > 11 * 100 * PARTS as u64, "{both}");
    }

    /// Goal: who waits for a part has done what it had to by then, and no more. Method: parts that
    /// come when `meanwhile` has been called so often.
    #[test]
    fn who_waits_for_a_part_does_other_things_as_long_as_there_are_some() {
        let (allow, allowed) = sync_channel(1);
        let parts = (0..3).map(move |part| allowed.recv().map(|()| Ok(part)).unwrap());
        let reader = ReadAhead::of(parts, 1).unwrap();
        let wait = |calls_max: usize| {
            let mut calls = 0;
            let part = reader.next_while(|| {
                calls += 1;
                if calls == calls_max {
                    allow.send(()).unwrap();
                }
                Ok::<bool, ()>(calls < calls_max)
            });
            (part.unwrap().map(Result::unwrap), calls)
        };
        assert_eq!(wait(1), (Some(0), 1));
        assert_eq!(wait(5), (Some(1), 5));
        assert_eq!(reader.next_while(|| Err::<bool, _>("lost")).unwrap_err(), "lost");
        assert_eq!(wait(2), (Some(2), 2));
        assert!(reader.next_while(|| Ok::<bool, ()>(true)).unwrap().is_none());
    }

    #[test]
    fn it_ends_at_an_error_and_when_it_is_dropped() {
        let folder = Folder::new("reader-ends");
        let good = folder.write("good", text(60_000).as_bytes());
        let bad = folder.write("bad", b"1 1:1\n1 x\n");
        let reader = ReadAhead::start(&[bad, good.clone()], Shard::ALL, 1).unwrap();
        let error = reader.next().unwrap().unwrap_err().to_string();
        assert!(error.contains("bad:2:3: found `x`"), "{error}");
        assert!(reader.next().is_none());
        // Nobody takes its parts.
        drop(ReadAhead::start(std::slice::from_ref(&good), Shard::ALL, 1).unwrap());
        let shard = Shard::new(1, 3).unwrap();
        let reader = ReadAhead::start(std::slice::from_ref(&good), shard, 1).unwrap();
        let rows: usize = std::iter::from_fn(|| reader.next()).map(|it| it.unwrap().rows()).sum();
        let whole = data::read(&[good], shard, std::num::NonZeroUsize::MIN).unwrap();
        assert_eq!(rows, whole.rows());
    }
}
