//! The van as a [`Subject`]: push and pull of a table on the servers, as a user's program makes
//! them.
//!
//! `pull_into` takes values longer than one frame into registered memory without a copy; plain
//! `pull` takes shorter ones. Long values to push lie in registered memory, and the van may send
//! from there; plain `push` sends short ones.
//!
//! Every pulled payload is checked in full, but for long ones while the clock runs: then their
//! stamps are checked, and the window's last payloads in full once the clock has stopped. Lent
//! values are summed up while the clock runs: later they are gone, and values that nobody reads
//! were not transferred. After each batch a pull compares what the pushes left.
//!
//! Tables of more than one key are sparse, and their keys lie far apart at random places.

use std::collections::{HashMap, VecDeque};
use std::ops::Add;

use anyhow::{Context, Result, ensure};
use caravan_kv::{Answer, Cost, Table, TableSpec, Timestamp, ValueType, Worker};
use caravan_van::{Buffer, KeyRange, Pool, Shared, Value};

use super::pattern;
use super::subject::{Copies, Op, Shape, Subject, Work};

/// The tables of a worker, with their ids, by number of keys and of values a key.
pub(crate) type Tables = HashMap<(usize, usize), (u32, Table)>;

/// Pushes of at least so many bytes come from registered memory; for fewer no van gains by it.
pub(super) const SHARED_BYTES_MIN: usize = 1 << 10;

/// Requests of one shape to one table.
pub(crate) struct Requests<'a> {
    worker: &'a mut Worker,
    tables: &'a mut Tables,
    eager_bytes: usize,
    key_cache: bool,
    copies: Copies,
    /// The worker whose tables these are, and the number of workers; none if one worker has all.
    part: Option<[usize; 2]>,
    shape: Shape,
    table: Option<Table>,
    keys: Vec<u64>,
    /// Values to push, one for each request in flight.
    sources: Vec<Source>,
    /// What the table holds.
    held: Held,
    /// Memory for long answers.
    landing: Vec<Landing>,
    in_flight: VecDeque<(Timestamp, usize)>,
    last: Answer,
    number: u64,
    wrong: u64,
}

/// Values to push, and the number of the request that their pattern is for.
struct Source {
    values: Shared,
    number: u64,
    /// Their [`pattern::sum`].
    sum: u32,
}

/// Memory for a long answer.
struct Landing {
    buffer: Buffer,
    /// The source that a filled buffer still has to equal.
    source: Option<usize>,
}

/// The last push.
#[derive(Clone, Copy, Default)]
struct Held {
    source: usize,
    number: u64,
}

impl<'a> Requests<'a> {
    /// Requests by `worker`; values longer than `eager_bytes` move without a copy.
    pub(crate) fn new(worker: &'a mut Worker, tables: &'a mut Tables, eager_bytes: usize) -> Self {
        Requests {
            worker,
            tables,
            eager_bytes,
            key_cache: false,
            copies: Copies::default(),
            part: None,
            shape: Shape { op: Op::Pull, keys: 1, bytes: 4, window: 1 },
            table: None,
            keys: Vec::new(),
            sources: Vec::new(),
            held: Held::default(),
            landing: Vec::new(),
            in_flight: VecDeque::new(),
            last: Answer::default(),
            number: 0,
            wrong: 0,
        }
    }

    /// The same; whether lists of keys are named when they come again.
    pub(crate) fn key_cache(self, key_cache: bool) -> Self {
        Requests { key_cache, ..self }
    }

    /// The same to tables with these copies.
    pub(crate) fn copies(self, copies: Copies) -> Self {
        Requests { copies, ..self }
    }

    /// The same of one of many workers, to tables of its own with keys in its part of all.
    pub(crate) fn of_worker(self, rank: usize, workers: usize) -> Self {
        Requests { part: Some([rank, workers]), ..self }
    }

    fn table(&self) -> Table {
        self.table.expect("prepare comes first")
    }

    /// The table for so many keys and values a key, made on first use.
    fn table_of(&mut self, keys: usize, width: usize) -> Result<Table> {
        if let Some((_, table)) = self.tables.get(&(keys, width)) {
            return Ok(*table);
        }
        let number = self.tables.len() as u32;
        let id = match self.part {
            None => number,
            Some([rank, _]) => {
                ensure!(number < TABLES_OF_WORKER, "{TABLES_OF_WORKER} tables a worker at most");
                TABLE_FIRST + rank as u32 * TABLES_OF_WORKER + number
            }
        };
        let Copies { replicas, asynchronous } = self.copies;
        let spec = spec(id, keys, width, self.part)?;
        let spec = TableSpec { replicas, asynchronous, ..spec };
        let table = self.worker.admin().create_table(&spec)?;
        self.tables.insert((keys, width), (id, table));
        Ok(table)
    }

    fn is_long(&self) -> bool {
        self.shape.bytes > self.eager_bytes
    }

    /// Whether answers come into memory of this side.
    fn lands(&self) -> bool {
        self.is_long() && matches!(self.shape.op, Op::Pull | Op::PushPull)
    }

    /// Makes one request with the values of `source`.
    fn post(&mut self, source: usize) -> Result<Timestamp> {
        let (table, shares) = (self.table(), self.shape.bytes >= SHARED_BYTES_MIN);
        let into = if self.lands() { Some(self.landing_place()?) } else { None };
        let Requests { worker, keys, sources, .. } = self;
        let Source { values, number, .. } = &sources[source];
        if self.shape.op.pushes() {
            self.held = Held { source, number: *number };
        }
        let timestamp = match (self.shape.op, into) {
            (Op::Push, _) if shares => worker.push_shared(table, &**keys, values),
            (Op::Push, _) => worker.push(table, &**keys, floats(values)),
            (Op::Pull, Some(into)) => worker.pull_into(table, &**keys, into),
            (Op::Pull, None) | (Op::PullLent, _) => worker.pull(table, &**keys),
            (Op::PushPull, Some(into)) => worker.push_pull_shared(table, &**keys, values, into),
            (Op::PushPull, None) => worker.push_pull(table, &**keys, floats(values)),
        };
        Ok(timestamp?)
    }

    /// Memory for a long answer, spoiled so that a missing answer shows.
    fn landing_place(&mut self) -> Result<Buffer> {
        let place = self.landing.pop().context("more requests in flight than the window")?;
        let mut into = place.buffer;
        pattern::spoil(f32::view_mut(&mut into).expect("a whole number of values"));
        Ok(into)
    }

    /// Waits for the oldest request in flight and checks its answer as well as the clock allows.
    fn finish_oldest(&mut self) -> Result<()> {
        let Some((timestamp, source)) = self.in_flight.pop_front() else { return Ok(()) };
        let mut answer = self.worker.wait(timestamp)?;
        if self.shape.op.pulls() {
            self.check_lent(&answer)?;
            let expected = &self.sources[self.expected_of(source)];
            let right = self.looks_right(answer.values(), expected);
            self.wrong += u64::from(!right);
            self.land(&mut answer, Some(source).filter(|_| right));
        }
        Ok(())
    }

    /// Whether an answer has the values of a source, checked as well as the clock allows.
    fn looks_right(&self, values: &[f32], source: &Source) -> bool {
        let expected = floats(&source.values);
        match self.shape.op {
            _ if !self.is_long() => pattern::same(values, expected),
            Op::PullLent => {
                pattern::stamps_same(values, expected) && pattern::sum(values) == source.sum
            }
            _ => pattern::stamps_same(values, expected),
        }
    }

    /// The source that the answer to a request made with `source` has to equal.
    fn expected_of(&self, source: usize) -> usize {
        if self.shape.op == Op::PushPull { source } else { self.held.source }
    }

    fn check_lent(&self, answer: &Answer) -> Result<()> {
        let is_lent = self.shape.op != Op::PullLent || !self.is_long() || answer.lent.is_some();
        let van = || self.worker.info().van();
        ensure!(is_lent, "the {} van lends nothing of {} bytes here", van(), self.shape.bytes);
        Ok(())
    }

    /// Takes a long answer's memory back for the next one. `source` is what it still has to equal.
    fn land(&mut self, answer: &mut Answer, source: Option<usize>) {
        if self.is_long()
            && let Some(buffer) = answer.values.take()
        {
            self.landing.push(Landing { buffer, source });
        }
    }

    /// Compares long answers in full whose stamps were right; returns how many were wrong.
    fn compare_landed(&mut self) -> u64 {
        let mut wrong = 0;
        for at in 0..self.landing.len() {
            let Some(source) = self.landing[at].source.take() else { continue };
            let expected = floats(&self.sources[self.expected_of(source)].values);
            wrong += u64::from(!pattern::same(floats(&self.landing[at].buffer), expected));
        }
        wrong
    }

    /// Pulls what the table holds and compares it with the last push; 0 or 1 wrong.
    fn compare_held(&mut self) -> Result<u64> {
        let Held { source, number } = self.held;
        restamp(&mut self.sources[source], number, self.worker.memory())?;
        let timestamp = self.worker.pull(self.table(), &self.keys)?;
        let answer = self.worker.wait(timestamp)?;
        let right = pattern::same(answer.values::<f32>(), floats(&self.sources[source].values));
        Ok(u64::from(!right))
    }

    /// Gives every source the number of a future request; pulls find the first one in the table.
    fn renew(&mut self) -> Result<()> {
        for source in &mut self.sources {
            self.number += 1;
            restamp(source, self.number, self.worker.memory())?;
        }
        if !self.shape.op.pushes() {
            self.held = Held { source: 0, number: self.sources[0].number };
            let (table, values) = (self.table(), &self.sources[0].values);
            let timestamp = self.worker.push(table, &self.keys, floats(values))?;
            self.worker.wait(timestamp)?;
        }
        Ok(())
    }
}

impl Subject for Requests<'_> {
    fn work(&mut self) -> Result<Work> {
        let servers =
            self.worker.admin().server_costs()?.into_iter().fold(Cost::default(), Add::add);
        Ok(Work { worker: self.worker.info().cost(), servers })
    }

    fn prepare(&mut self, shape: Shape) -> Result<()> {
        let width = shape.bytes / (size_of::<f32>() * shape.keys.max(1));
        ensure!(
            shape.keys > 0 && width > 0 && width * size_of::<f32>() * shape.keys == shape.bytes,
            "{} bytes cannot be shared out among {} keys",
            shape.bytes,
            shape.keys
        );
        self.shape = shape;
        let table = self.table_of(shape.keys, width)?;
        if self.key_cache {
            self.worker.filters(table).cache_keys()?;
        }
        self.table = Some(table);
        let first = self.part.map_or(0, first_key);
        self.keys = (0..shape.keys as u64).map(|place| first + scattered(place)).collect();
        let memory = self.worker.memory();
        let window = shape.window.max(1);
        // Pulls need only the values that they find in the table.
        let sources = if shape.op.pushes() { window } else { 1 };
        self.sources = (0..sources).map(|_| source(memory, shape.bytes)).collect::<Result<_>>()?;
        let landing = if self.lands() { window } else { 0 };
        let memory = self.worker.memory();
        let place = |_| Ok(Landing { buffer: memory.allocate(shape.bytes)?, source: None });
        self.landing = (0..landing).map(place).collect::<Result<_>>()?;
        self.renew()
    }

    fn once(&mut self) -> Result<()> {
        let timestamp = self.post(0)?;
        self.last = self.worker.wait(timestamp)?;
        Ok(())
    }

    fn check(&mut self) -> Result<u64> {
        let mut answer = std::mem::take(&mut self.last);
        let mut wrong = 0;
        if self.shape.op.pulls() {
            self.check_lent(&answer)?;
            let expected = floats(&self.sources[0].values);
            wrong = u64::from(!pattern::same(answer.values::<f32>(), expected));
            self.land(&mut answer, None);
        }
        if self.shape.op.pushes() {
            self.number += 1;
            restamp(&mut self.sources[0], self.number, self.worker.memory())?;
        }
        Ok(wrong)
    }

    fn stream(&mut self, count: u64) -> Result<()> {
        let sources = self.sources.len() as u64;
        for at in 0..count {
            if self.in_flight.len() >= self.shape.window.max(1) {
                self.finish_oldest()?;
            }
            let source = (at % sources) as usize;
            let timestamp = self.post(source)?;
            self.in_flight.push_back((timestamp, source));
        }
        while !self.in_flight.is_empty() {
            self.finish_oldest()?;
        }
        Ok(())
    }

    fn settle(&mut self) -> Result<u64> {
        let mut wrong = std::mem::take(&mut self.wrong) + self.compare_landed();
        if self.shape.op.pushes() {
            wrong += self.compare_held()?;
        }
        self.renew()?;
        Ok(wrong)
    }
}

/// The first key of a worker's part of all keys.
fn first_key([rank, workers]: [usize; 2]) -> u64 {
    KeyRange::ALL.cut(workers).nth(rank).map_or(0, KeyRange::begin)
}

/// Tables of many workers are numbered from here, and each worker has so many.
const TABLE_FIRST: u32 = 1 << 16;
const TABLES_OF_WORKER: u32 = 64;

/// A table for `keys` keys, dense if it is one; of a worker's part over all keys there are.
fn spec(id: u32, keys: usize, width: usize, part: Option<[usize; 2]>) -> Result<TableSpec> {
    let range = KeyRange::new(0, keys as u64 * KEY_GAP).context("a table needs keys")?;
    let name = format!("bench {id}: {keys} x {width}");
    let spec = TableSpec::new(id, &name, ValueType::F32, width as u32).handle("assign");
    Ok(match part {
        Some(_) => spec,
        None if keys == 1 => spec.keys(KeyRange::new(0, 1).context("one key")?).dense(),
        None => spec.keys(range),
    })
}

/// One key of so many is in use, as in data with many features.
pub(super) const KEY_GAP: u64 = 1 << 14;

/// The key at a place in the sorted list of those in use: a random one in its part of the key
/// range. bench/peers/ps_lite.cc has the same.
pub(super) fn scattered(place: u64) -> u64 {
    let random = (place + 1).wrapping_mul(0x9e37_79b9_7f4a_7c15) >> 32;
    place * KEY_GAP + if place == 0 { 0 } else { random % KEY_GAP }
}

fn source(memory: &Pool, bytes: usize) -> Result<Source> {
    let mut values = memory.allocate(bytes)?;
    pattern::fill(f32::view_mut(&mut values).expect("a whole number of values"), 0);
    let sum = pattern::sum(floats(&values));
    Ok(Source { values: values.share(), number: 0, sum })
}

/// Makes the values those of request `number`, in place unless a van still sends from them.
fn restamp(source: &mut Source, number: u64, memory: &Pool) -> Result<()> {
    let bytes = source.values.make_mut(memory)?;
    let values = f32::view_mut(bytes).expect("a whole number of values");
    source.sum = source.sum.wrapping_add(pattern::stamp(values, number));
    source.number = number;
    Ok(())
}

fn floats(bytes: &[u8]) -> &[f32] {
    f32::view(bytes).expect("registered memory is aligned and holds whole values")
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, reason = "tests")]
    use caravan_kv::{Cluster, ClusterConfig, Launch, Van};

    use super::*;

    fn cluster() -> Cluster {
        cluster_over(Van::Tcp)
    }

    fn cluster_over(van: Van) -> Cluster {
        let mut config = ClusterConfig { threads: 2, ..ClusterConfig::default() };
        (config.node.van, config.node.pin) = (van, false);
        let launch = Launch::Threads(crate::apps::handles(), crate::apps::apps());
        Cluster::launch(&config, launch).unwrap()
    }

    /// Every op, short and long, one and many keys.
    fn shapes() -> impl Iterator<Item = Shape> {
        let sizes = [(1, 4, 5), (3, 12, 1), (1, 300 << 10, 3), (64, 64 << 10, 4)];
        [Op::Push, Op::Pull, Op::PushPull].into_iter().flat_map(move |op| {
            sizes.map(|(keys, bytes, window)| Shape { op, keys, bytes, window })
        })
    }

    #[test]
    fn a_right_van_has_nothing_wrong() {
        let cluster = cluster();
        let (mut worker, mut tables) = (cluster.client().unwrap(), Tables::new());
        for shape in shapes() {
            let mut requests = Requests::new(&mut worker, &mut tables, 16 << 10);
            requests.prepare(shape).unwrap();
            for _ in 0..3 {
                requests.once().unwrap();
                assert_eq!(requests.check().unwrap(), 0, "{shape:?}");
            }
            assert_eq!(requests.settle().unwrap(), 0, "{shape:?}");
            requests.stream(17).unwrap();
            assert_eq!(requests.settle().unwrap(), 0, "{shape:?}");
        }
        assert_eq!(tables.len(), 4, "one table for each number of keys and width");
        drop(worker);
        cluster.shutdown().unwrap();
    }

    /// A stranger changes the last value behind the bench's back: every pull of it is wrong, and so
    /// is what pushes left.
    #[test]
    fn a_value_that_changed_is_seen() {
        let cluster = cluster();
        let (mut worker, mut tables) = (cluster.client().unwrap(), Tables::new());
        let mut stranger = cluster.client().unwrap();
        for shape in shapes().filter(|shape| shape.op != Op::PushPull) {
            let mut requests = Requests::new(&mut worker, &mut tables, 16 << 10);
            requests.prepare(shape).unwrap();
            requests.stream(2).unwrap();
            assert_eq!(requests.settle().unwrap(), 0, "{shape:?}");
            if shape.op == Op::Push {
                requests.stream(2).unwrap();
            }
            let width = shape.bytes / 4 / shape.keys;
            let id = requests.tables[&(shape.keys, width)].0;
            let table =
                stranger.admin().create_table(&spec(id, shape.keys, width, None).unwrap()).unwrap();
            let last = [scattered(shape.keys as u64 - 1)];
            let timestamp = stranger.push(table, &last, &vec![-5.0f32; width]).unwrap();
            stranger.wait(timestamp).unwrap();
            if shape.op == Op::Pull {
                requests.once().unwrap();
                assert_eq!(requests.check().unwrap(), 1, "{shape:?}");
                requests.stream(7).unwrap();
                assert_eq!(requests.settle().unwrap(), 7, "{shape:?}");
            } else {
                assert_eq!(requests.settle().unwrap(), 1, "{shape:?}");
            }
        }
        drop((worker, stranger));
        cluster.shutdown().unwrap();
    }

    /// What is asked to be lent is an error where it is copied, not a figure of copying.
    #[test]
    fn values_are_read_where_they_are_lent_and_nowhere_else() {
        for (van, lends) in [(Van::Shm, true), (Van::Tcp, false)] {
            let cluster = cluster_over(van);
            let (mut worker, mut tables) = (cluster.client().unwrap(), Tables::new());
            let mut requests = Requests::new(&mut worker, &mut tables, 16 << 10);
            for (bytes, works) in [(8, true), (300 << 10, lends)] {
                let shape = Shape { op: Op::PullLent, keys: 1, bytes, window: 3 };
                requests.prepare(shape).unwrap();
                requests.once().unwrap();
                assert_eq!(requests.check().ok(), works.then_some(0), "{van} {bytes}");
                assert_eq!(requests.stream(7).is_ok(), works, "{van} {bytes}");
            }
            if lends {
                assert_eq!(requests.settle().unwrap(), 0);
                requests.sources[0].sum += 1; // as if one value between the stamps were another
                requests.stream(7).unwrap();
                assert_eq!(requests.settle().unwrap(), 7);
            }
            drop(worker);
            cluster.shutdown().unwrap();
        }
    }

    #[test]
    fn servers_say_what_they_have_spent() {
        let cluster = cluster();
        let (mut worker, mut tables) = (cluster.client().unwrap(), Tables::new());
        let mut requests = Requests::new(&mut worker, &mut tables, 16 << 10);
        requests.prepare(Shape { op: Op::Push, keys: 1, bytes: 64, window: 4 }).unwrap();
        let before = requests.work().unwrap();
        requests.stream(100).unwrap();
        let after = requests.work().unwrap();
        assert!(after.servers.system_calls > before.servers.system_calls, "{after:?}");
        assert!(after.worker.system_calls > before.worker.system_calls, "{after:?}");
        assert!(after.worker.bytes_copied >= before.worker.bytes_copied + 6400, "{after:?}");
        drop(worker);
        cluster.shutdown().unwrap();
    }

    #[test]
    fn bytes_that_keys_cannot_share_are_refused() {
        let cluster = cluster();
        let (mut worker, mut tables) = (cluster.client().unwrap(), Tables::new());
        let mut requests = Requests::new(&mut worker, &mut tables, 16 << 10);
        for (keys, bytes) in [(1, 6), (3, 8), (0, 8), (1, 0), (1, 2)] {
            let shape = Shape { op: Op::Pull, keys, bytes, window: 1 };
            assert!(requests.prepare(shape).is_err(), "{shape:?}");
        }
    }
}
