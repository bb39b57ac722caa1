//! Goal: a checkpoint holds each shard as it was between two requests, whatever is pushed
//! meanwhile; it comes back bit-equal on any number of servers; and whenever its writer or the disk
//! dies, the checkpoint from before or the new one is there.
//! Method: whole clusters on the simulated van, with a disk in memory that loses, tears and cuts
//! off what was not synced. A failure prints its seed; `CARAVAN_SEED=<seed> cargo test` replays it.
#![allow(clippy::unwrap_used, reason = "tests")]

#[path = "support/simulated.rs"]
mod cluster;

use std::collections::BTreeMap;
use std::io::{self, Read};
use std::sync::atomic::Ordering;
use std::time::Duration;

use caravan_kv::checkpoint::{Checkpoints, Disk, Manifest};
use caravan_kv::{Error, Handles, Placement, TableSpec, ValueType, Worker};
use caravan_van::KeyRange;
use caravan_van::sim::{Network, for_each_seed};
use cluster::{Draws, connect, start, weather};

const KEYS: u64 = 300;

/// Shards of a table for each server.
const SHARDS: u32 = 3;

/// What survives of it is decided when the power goes.
#[derive(Debug, Clone, Default)]
struct Drive {
    /// Content and number of durable bytes of each file.
    files: Vec<(Vec<u8>, usize)>,
    names: BTreeMap<String, usize>,
    /// The names after each change since the last sync of names, the durable ones first.
    history: Vec<BTreeMap<String, usize>>,
    /// Operations until the power goes.
    left: Option<usize>,
}

impl Drive {
    fn tick(&mut self) -> io::Result<()> {
        match &mut self.left {
            Some(0) => Err(io::Error::other("the power is gone")),
            Some(left) => {
                *left -= 1;
                Ok(())
            }
            None => Ok(()),
        }
    }

    fn rename_all(&mut self, change: impl FnOnce(&mut BTreeMap<String, usize>)) {
        if self.history.is_empty() {
            self.history.push(self.names.clone());
        }
        change(&mut self.names);
        self.history.push(self.names.clone());
    }

    /// The disk as the next start finds it.
    fn after_loss_of_power(&self, draws: &mut Draws) -> Drive {
        let files = self.files.iter().map(|(content, durable)| {
            let kept = durable + draws.below((content.len() - durable) as u64 + 1) as usize;
            let mut content = content[..kept].to_vec();
            let torn = content[*durable..].iter_mut().filter(|_| draws.below(20) == 0);
            torn.for_each(|byte| *byte = 0);
            (content, kept)
        });
        let files = files.collect();
        let names = match self.history.len() {
            0 => self.names.clone(),
            count => self.history[draws.below(count as u64) as usize].clone(),
        };
        Drive { files, names, ..Drive::default() }
    }
}

impl Disk for Drive {
    fn append(&mut self, name: &str, bytes: &[u8]) -> io::Result<()> {
        if !self.names.contains_key(name) {
            let file = self.files.len();
            self.files.push((Vec::new(), 0));
            self.rename_all(|names| {
                names.insert(name.to_owned(), file);
            });
        }
        let content = &mut self.files[self.names[name]].0;
        content.extend_from_slice(bytes); // of a write that fails, a part may be there
        self.tick()
    }

    fn sync(&mut self, name: &str) -> io::Result<()> {
        self.tick()?;
        let (content, durable) = &mut self.files[self.names[name]];
        *durable = content.len();
        Ok(())
    }

    fn rename(&mut self, from: &str, to: &str) -> io::Result<()> {
        self.rename_all(|names| {
            let file = names.remove(from).unwrap();
            names.insert(to.to_owned(), file);
        });
        self.tick()
    }

    fn sync_names(&mut self) -> io::Result<()> {
        self.tick()?;
        self.history.clear();
        Ok(())
    }

    fn open(&self, name: &str) -> io::Result<Box<dyn Read + '_>> {
        let file = self.names.get(name).ok_or(io::ErrorKind::NotFound)?;
        Ok(Box::new(&self.files[*file].0[..]))
    }

    fn names(&self) -> io::Result<Vec<String>> {
        Ok(self.names.keys().cloned().collect())
    }
}

/// The table whose rows have hidden values.
const STEPS: usize = 2;

/// A sparse table, a dense one with blocks, one whose rows have hidden values, one whose rows have
/// their own lengths, and one to whose keys is pushed in turn.
fn tables() -> [TableSpec; 5] {
    let keys = KeyRange::new(0, KEYS).unwrap();
    let sparse = TableSpec::new(11, "sparse", ValueType::I64, 1);
    let dense = TableSpec::new(12, "dense", ValueType::I64, 3).dense();
    let dense = dense.filters("mask".parse().unwrap());
    let steps = TableSpec::new(13, "steps", ValueType::F64, 1).handle("momentum");
    let varying = TableSpec::new(14, "varying", ValueType::U8, 0).handle("assign");
    let order = TableSpec::new(15, "order", ValueType::I64, 1);
    [sparse, dense, steps, varying, order]
        .map(|spec| spec.keys(keys).placement(Placement::Even(SHARDS)))
}

/// Pushes the same to all keys of a table at once, and to the keys of the last table in turn.
fn work(worker: &mut Worker) {
    let [sparse, dense, steps, varying, order] =
        tables().map(|spec| worker.create_table(&spec).unwrap());
    let keys: Vec<u64> = (0..KEYS).collect();
    let count = keys.len();
    for round in 1..=6u8 {
        let rows = vec![round; count * usize::from(round)];
        let mut made = vec![
            worker.push(sparse, &keys, &vec![1i64; count]).unwrap(),
            worker.push(dense, &keys, &vec![1i64; 3 * count]).unwrap(),
            worker.push(steps, &keys, &vec![1.0; count]).unwrap(),
            worker.push_varying(varying, &keys, &vec![u32::from(round); count], &rows).unwrap(),
        ];
        for key in keys.iter().step_by(3) {
            made.push(worker.push(order, &[*key], &[1i64]).unwrap());
        }
        made.into_iter().for_each(|push| drop(worker.wait(push).unwrap()));
    }
}

/// The rows of each table of a checkpoint, as text.
fn export(checkpoints: &Checkpoints<Drive>, number: u64) -> Vec<Vec<(u64, String)>> {
    let manifest = checkpoints.verify(number).unwrap();
    let table = |table| {
        let mut text = String::new();
        let gathered = checkpoints.export(table, |lines| {
            text += lines;
            Ok::<_, Error>(())
        });
        gathered.unwrap();
        let line = |line: &str| {
            let (key, values) = line.split_once(' ').unwrap_or((line, ""));
            (key.parse().unwrap(), values.to_owned())
        };
        text.lines().map(line).collect()
    };
    manifest.tables.iter().map(table).collect()
}

/// Each shard is as it was between two requests of two workers.
fn check(manifest: &Manifest, tables: &[Vec<(u64, String)>]) {
    for (at, (table, rows)) in manifest.tables.iter().zip(tables).enumerate() {
        let shard_keys = KEYS / table.shards.len() as u64;
        for shard in rows.chunk_by(|a, b| a.0 / shard_keys == b.0 / shard_keys) {
            if at == manifest.tables.len() - 1 {
                let counts: Vec<i64> =
                    shard.iter().map(|row| row.1.trim().parse().unwrap()).collect();
                assert!(counts.is_sorted_by(|a, b| a >= b), "{shard:?}");
                assert!(counts[0] - counts.last().unwrap() <= 2, "{shard:?}");
            } else {
                assert!(shard.iter().all(|row| row.1 == shard[0].1), "{shard:?}");
                assert_eq!(shard.len() as u64, shard_keys, "{shard:?}");
            }
        }
    }
}

/// The bytes that are stored for each key of a table whose rows are of one length, with hidden
/// values.
fn stored(checkpoints: &mut Checkpoints<Drive>, table: usize) -> Vec<(u64, Vec<u8>)> {
    let shards = checkpoints.manifest(1).unwrap().tables.swap_remove(table).shards;
    let drive = checkpoints.disk();
    let mut rows = Vec::new();
    for shard in shards {
        let mut rest = &drive.files[drive.names[&shard.file]].0[..];
        while !rest.is_empty() {
            let number = |at: usize| u64::from_le_bytes(rest[at..at + 8].try_into().unwrap());
            let (record, next) = rest.split_at(16 + number(8) as usize);
            let count = number(24) as usize;
            let (keys, values) = record[40..].split_at(8 * count);
            let row_bytes = values.len() / count.max(1);
            for (at, key) in keys.as_chunks::<8>().0.iter().enumerate() {
                let row = values[at * row_bytes..][..row_bytes].to_vec();
                rows.push((u64::from_le_bytes(*key), row));
            }
            rest = next;
        }
    }
    rows
}

/// Runs `with` on a cluster of `count` servers whose pieces are short.
fn with_cluster<T>(
    seed: u64,
    count: usize,
    with: impl FnOnce(&Network, &dyn Fn(u32) -> Worker) -> T,
) -> T {
    let network = Network::new(seed, weather(seed));
    let (addresses, stop) =
        start(&network, count, &Handles::default(), |server| server.move_by(300));
    let result = with(&network, &|node| connect(&network, node, &addresses));
    stop.store(true, Ordering::Relaxed);
    result
}

/// Restores a checkpoint on `count` servers, and writes another of what is there.
fn copy(checkpoints: &Checkpoints<Drive>, seed: u64, count: usize) -> Checkpoints<Drive> {
    with_cluster(seed, count, |_, connect| {
        let mut worker = connect(9);
        checkpoints.restore(&mut worker, 1).unwrap();
        let again = checkpoints.restore(&mut worker, 1).unwrap_err().to_string();
        assert!(again.contains("drop it first"), "{again}");
        let mut copy = Checkpoints::new(Drive::default());
        assert_eq!(copy.create(&mut worker, &tables()).unwrap(), 1);
        copy
    })
}

#[test]
fn a_checkpoint_is_of_one_moment_and_comes_back_bit_equal() {
    for_each_seed(60, |seed| {
        let mut draws = Draws(seed);
        let wait = Duration::from_micros(draws.below(600));
        let servers = 1 << draws.below(3);
        let network = Network::new(seed, weather(seed));
        let (addresses, stop) =
            start(&network, servers, &Handles::default(), |server| server.move_by(300));
        let workers = (0..2).map(|node| {
            let addresses = addresses.clone();
            network.spawn(&format!("worker {node}"), move |network| {
                work(&mut connect(network, 100 + node, &addresses));
            })
        });
        let workers: Vec<_> = workers.collect();
        let to = addresses.clone();
        let writer = network.spawn("writer", move |network| {
            let mut checkpoints = Checkpoints::new(Drive::default());
            network.sleep(wait);
            let mut worker = connect(network, 98, &to);
            checkpoints.create(&mut worker, &tables()).unwrap();
            checkpoints
        });
        let mut first = writer.join().unwrap_or_else(|stopped| panic!("{stopped}"));
        workers.into_iter().for_each(|it| it.join().unwrap_or_else(|stopped| panic!("{stopped}")));
        stop.store(true, Ordering::Relaxed);
        let rows = export(&first, 1);
        check(&first.manifest(1).unwrap(), &rows);
        let hidden = stored(&mut first, STEPS);
        assert!(hidden.iter().all(|row| row.1.len() > size_of::<f64>()), "it has hidden values");
        for servers in [1, 7] {
            let mut copy = copy(&first, seed, servers);
            assert_eq!(export(&copy, 1), rows, "{servers} servers");
            assert_eq!(stored(&mut copy, STEPS), hidden, "{servers} servers");
            let shards = copy.manifest(1).unwrap().tables[STEPS].shards.len();
            assert_eq!(shards, SHARDS as usize * servers);
        }
    });
}

#[test]
fn a_writer_that_dies_leaves_the_old_checkpoint_or_the_new_one() {
    let (mut olds, mut news) = (0, 0);
    for_each_seed(40, |seed| {
        let mut draws = Draws(seed);
        with_cluster(seed, 1, |_, connect| {
            let mut worker = connect(9);
            let spec = TableSpec::new(1, "t", ValueType::I64, 1);
            let specs = [spec.placement(Placement::Even(2))];
            let table = worker.create_table(&specs[0]).unwrap();
            let push = |worker: &mut Worker| {
                let pushed = worker.push(table, &[1, 7, u64::MAX], &[1i64; 3]).unwrap();
                worker.wait(pushed).unwrap();
            };
            push(&mut worker);
            let mut checkpoints = Checkpoints::new(Drive::default());
            checkpoints.create(&mut worker, &specs).unwrap();
            let old = export(&checkpoints, 1);
            push(&mut worker);
            let new = vec![[1, 7, u64::MAX].map(|key| (key, "2".to_owned())).to_vec()];
            for left in (0..12).cycle().take(36) {
                let mut dying = Checkpoints::new(checkpoints.disk().clone());
                dying.disk().left = Some(left);
                let is_written = dying.create(&mut worker, &specs).is_ok();
                let found = Checkpoints::new(dying.disk().after_loss_of_power(&mut draws));
                let newest = *found.list().unwrap().last().unwrap();
                let rows = export(&found, newest);
                assert!(newest == 2 || !is_written, "what was reported as written is there");
                match newest {
                    1 => {
                        assert_eq!(rows, old);
                        olds += 1;
                    }
                    _ => {
                        assert_eq!((newest, &rows), (2, &new));
                        news += 1;
                    }
                }
                // The next writer is not confused by what is left.
                let mut next = found;
                let number = next.create(&mut worker, &specs).unwrap();
                assert!(next.verify(number).is_ok() && number > newest);
            }
        });
    });
    assert!(olds > 0 && news > 0, "{olds} old, {news} new");
}

#[test]
fn damage_is_named_and_nothing_panics() {
    with_cluster(1, 1, |_, connect| {
        let mut worker = connect(9);
        let spec = TableSpec::new(1, "t", ValueType::F32, 2);
        let table = worker.create_table(&spec).unwrap();
        let pushed = worker.push(table, &[1, 7], &[1.5f32; 4]).unwrap();
        worker.wait(pushed).unwrap();
        let mut checkpoints = Checkpoints::new(Drive::default());
        checkpoints.create(&mut worker, &[spec]).unwrap();
        let good = checkpoints.disk().clone();
        for file in 0..good.files.len() {
            for at in 0..good.files[file].0.len() {
                let mut flipped = good.clone();
                flipped.files[file].0[at] ^= 1 << (at % 8);
                let mut cut = good.clone();
                cut.files[file].0.truncate(at);
                for bad in [flipped, cut] {
                    let error = Checkpoints::new(bad).verify(1).unwrap_err().to_string();
                    assert!(error.starts_with("checkpoint file 1."), "{error}");
                }
            }
        }
        let missing = checkpoints.verify(2).unwrap_err().to_string();
        assert!(missing.contains("2.manifest"), "{missing}");
    });
}

/// The inputs of pushes to such a table pass by what a checkpoint keeps aside.
#[test]
fn a_table_with_replicas_has_no_checkpoint() {
    with_cluster(1, 2, |_, connect| {
        let mut worker = connect(9);
        let spec = TableSpec::new(7, "copied", ValueType::F32, 1).replicas(1);
        worker.create_table(&spec).unwrap();
        let refused = Checkpoints::new(Drive::default()).create(&mut worker, &[spec]).unwrap_err();
        let refused = refused.to_string();
        assert!(refused.contains("table copied has replicas"), "{refused}");
    });
}
