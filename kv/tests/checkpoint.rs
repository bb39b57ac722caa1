//! Goal: a checkpoint holds each shard as it was between two requests, whatever is pushed
//! meanwhile; it comes back bit-equal on any number of servers; and whenever its writer or the disk
//! dies, the checkpoint from before or the new one is there.
//! The same holds for increments.
//! Method: whole clusters on the simulated van, with a disk in memory that loses, tears and cuts
//! off what was not synced. A failure prints its seed; `CARAVAN_SEED=<seed> cargo test` replays it.

use std::sync::atomic::Ordering;
use std::time::Duration;

use crate::support::drive::{Drive, export, stored};
use crate::support::iterations::{self, LAST, WORKERS, iterate};
use crate::support::simulated::{Draws, connect, start, weather};
use caravan_kv::checkpoint::{Checkpoints, Manifest};
use caravan_kv::consistency::Model;
use caravan_kv::eviction::EvictionRule;
use caravan_kv::{Handles, Placement, TableSpec, ValueType, Worker};
use caravan_van::KeyRange;
use caravan_van::sim::{Network, for_each_seed};

const KEYS: u64 = 300;

/// Shards of a table for each server.
const SHARDS: u32 = 3;

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
        tables().map(|spec| worker.admin().create_table(&spec).unwrap());
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

/// Restores checkpoint `number` on `count` servers, and writes another of what is there.
fn copy(
    checkpoints: &Checkpoints<Drive>,
    number: u64,
    seed: u64,
    count: usize,
) -> Checkpoints<Drive> {
    with_cluster(seed, count, |_, connect| {
        let mut worker = connect(9);
        checkpoints.restore(&mut worker, number).unwrap();
        let again = checkpoints.restore(&mut worker, number).unwrap_err().to_string();
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
            network.sleep(wait);
            checkpoints.create_increment(&mut worker, &tables()).unwrap();
            checkpoints
        });
        let mut first = writer.join().unwrap_or_else(|stopped| panic!("{stopped}"));
        workers.into_iter().for_each(|it| it.join().unwrap_or_else(|stopped| panic!("{stopped}")));
        stop.store(true, Ordering::Relaxed);
        let rows = export(&first, 1);
        check(&first.manifest(1).unwrap(), &rows);
        let later = export(&first, 2);
        check(&first.manifest(2).unwrap(), &later);
        let hidden = stored(&mut first, 1, STEPS);
        assert!(hidden.iter().all(|row| row.1.len() > size_of::<f64>()), "it has hidden values");
        for servers in [1, 7] {
            assert_eq!(export(&copy(&first, 2, seed, servers), 1), later, "{servers} servers");
            let mut copy = copy(&first, 1, seed, servers);
            assert_eq!(export(&copy, 1), rows, "{servers} servers");
            assert_eq!(stored(&mut copy, 1, STEPS), hidden, "{servers} servers");
            let shards = copy.manifest(1).unwrap().tables[STEPS].shards.len();
            assert_eq!(shards, SHARDS as usize * servers);
        }
    });
}

/// Under BSP a checkpoint of an iteration has the pushes of all iterations before, and no other, on
/// all servers, however far a worker is ahead; under SSP it has at least those.
#[test]
fn a_checkpoint_of_an_iteration_is_the_same_on_all_servers() {
    let (mut ahead, mut late) = (0, 0);
    for_each_seed(60, |seed| {
        let mut draws = Draws(seed);
        let (servers, of) = (1 + draws.below(3) as usize, 1 + draws.below(LAST));
        let model = if seed % 3 == 0 { Model::Ssp { staleness: 2 } } else { Model::Bsp };
        let spec = iterations::spec(model).placement(Placement::Even(2));
        let network = Network::new(seed, weather(seed));
        let (addresses, stop) =
            start(&network, servers, &Handles::default(), |server| server.move_by(300));
        let workers: Vec<_> = (0..WORKERS)
            .map(|rank| {
                let (addresses, spec) = (addresses.clone(), spec.clone());
                network.spawn(&format!("worker {rank}"), move |network| {
                    let mut draws = Draws(seed << 8 | rank);
                    let mut worker = connect(network, 100 + rank as u32, &addresses);
                    iterate(network, &mut worker, &spec, rank, &mut draws);
                })
            })
            .collect();
        let wait = Duration::from_micros(draws.below(2500));
        let written = network.spawn("writer", move |network| {
            network.sleep(wait);
            let mut worker = connect(network, 98, &addresses);
            let mut checkpoints = Checkpoints::new(Drive::default()).at_clock(Some(of));
            let created = checkpoints.create(&mut worker, &[spec]);
            created.map(|number| export(&checkpoints, number)).map_err(|error| error.to_string())
        });
        let written = written.join().unwrap_or_else(|stopped| panic!("{stopped}"));
        for worker in workers {
            worker.join().unwrap_or_else(|stopped| panic!("{stopped}"));
        }
        stop.store(true, Ordering::Relaxed);
        match written {
            Ok(tables) => ahead += u64::from(iterations::check(of, model, &tables[0])),
            Err(why) => {
                assert!(why.contains(&format!("iteration {of} is over")), "{why}");
                late += 1;
            }
        }
    });
    println!("{ahead} of a past iteration, {late} too late");
    assert!(ahead > 0 && late > 0);
}

/// Writes all rows, or what changed.
type Create = fn(&mut Checkpoints<Drive>, &mut Worker, &[TableSpec]) -> caravan_kv::Result<u64>;

#[test]
fn a_writer_that_dies_leaves_the_old_checkpoint_or_the_new_one() {
    let (mut olds, mut news) = ([0; 2], [0; 2]);
    for_each_seed(40, |seed| {
        let mut draws = Draws(seed);
        with_cluster(seed, 1, |_, connect| {
            let mut worker = connect(9);
            let spec = TableSpec::new(1, "t", ValueType::I64, 1);
            let spec = spec.eviction(EvictionRule { idle_max: Some(3), ..EvictionRule::default() });
            let specs = [spec.placement(Placement::Even(2))];
            let table = worker.admin().create_table(&specs[0]).unwrap();
            let push = |worker: &mut Worker, keys: &[u64]| {
                let pushed = worker.push(table, keys, &vec![1i64; keys.len()]).unwrap();
                worker.wait(pushed).unwrap();
            };
            push(&mut worker, &[1, 7, u64::MAX]);
            let mut checkpoints = Checkpoints::new(Drive::default());
            checkpoints.create(&mut worker, &specs).unwrap();
            push(&mut worker, &[7, 9]);
            checkpoints.create_increment(&mut worker, &specs).unwrap();
            let old = export(&checkpoints, 2);
            worker.set_clock(5);
            push(&mut worker, &[7]); // 1 and 9 go
            let new = vec![vec![(7, "1".to_owned()), (u64::MAX, "1".to_owned())]];
            let ways = [Checkpoints::create as Create, Checkpoints::create_increment];
            for (way, left) in (0..72).map(|at| (at % 2, at / 2 % 12)) {
                let mut dying = Checkpoints::new(checkpoints.disk().clone());
                dying.disk().left = Some(left);
                let is_written = ways[way](&mut dying, &mut worker, &specs).is_ok();
                let found = Checkpoints::new(dying.disk().after_loss_of_power(&mut draws));
                let newest = *found.list().unwrap().last().unwrap();
                let rows = export(&found, newest);
                assert!(newest == 3 || !is_written, "what was reported as written is there");
                match newest {
                    2 => {
                        assert_eq!(rows, old);
                        olds[way] += 1;
                    }
                    _ => {
                        assert_eq!((newest, &rows), (3, &new));
                        news[way] += 1;
                    }
                }
                // The next writer is not confused by what is left.
                let mut next = found;
                let number = ways[1 - way](&mut next, &mut worker, &specs).unwrap();
                assert!(number > newest);
                assert_eq!(export(&next, number), new);
            }
        });
    });
    assert!([olds, news].as_flattened().iter().all(|count| *count > 0), "{olds:?} {news:?}");
}

/// A disk that is full, or has a place that cannot be read, fails what needs it, by the name of the
/// file. What was there stays, and all goes on when there is room.
#[test]
fn a_disk_that_is_full_or_unreadable_fails_by_name() {
    with_cluster(1, 2, |_, connect| {
        let mut worker = connect(9);
        let spec = TableSpec::new(1, "t", ValueType::I64, 1).keys(KeyRange::new(0, KEYS).unwrap());
        let specs = [spec.placement(Placement::Even(2))];
        let table = worker.admin().create_table(&specs[0]).unwrap();
        let keys: Vec<u64> = (0..KEYS).collect();
        let push = |worker: &mut Worker, keys: &[u64]| {
            let pushed = worker.push(table, keys, &vec![1i64; keys.len()]).unwrap();
            worker.wait(pushed).unwrap();
        };
        push(&mut worker, &keys);
        let mut checkpoints = Checkpoints::new(Drive::default());
        checkpoints.create(&mut worker, &specs).unwrap();
        push(&mut worker, &keys[..9]);
        checkpoints.create_increment(&mut worker, &specs).unwrap();
        let kept = [1, 2].map(|number| export(&checkpoints, number));
        let bytes: usize = checkpoints.disk().files.iter().map(|(content, _)| content.len()).sum();
        push(&mut worker, &keys[5..]);
        let mut next = 3;
        for at in (0..bytes).step_by(97) {
            let mut full = Checkpoints::new(checkpoints.disk().clone());
            full.disk().room = Some(at);
            let is_written = match full.create(&mut worker, &specs) {
                Ok(_) => true,
                Err(error) => {
                    let error = error.to_string();
                    assert!(error.starts_with("checkpoint file 3."), "{error}");
                    false
                }
            };
            full.disk().room = None;
            assert_eq!(full.list().unwrap().len(), 2 + usize::from(is_written));
            assert_eq!([1, 2].map(|number| export(&full, number)), kept);
            let number = full.create_increment(&mut worker, &specs).unwrap();
            assert!(number > 2, "{number}");
            next = next.max(number);
            assert_eq!(export(&full, number)[0].len(), KEYS as usize);
        }
        assert_eq!(next, 4, "numbers of what failed are not used again");
        for at in (0..bytes).step_by(97) {
            checkpoints.disk().readable.set(Some(at));
            let error = checkpoints.verify(2).unwrap_err().to_string();
            let says = ["checkpoint file 1.", "checkpoint file 2."];
            assert!(says.iter().any(|says| error.starts_with(says)), "{error}");
            checkpoints.disk().readable.set(Some(at));
            assert!(checkpoints.create_increment(&mut worker, &specs).is_err());
            checkpoints.disk().readable.set(None);
            assert_eq!([1, 2].map(|number| export(&checkpoints, number)), kept);
            assert_eq!(checkpoints.list().unwrap(), [1, 2]);
        }
        with_cluster(2, 1, |_, connect| {
            let mut worker = connect(9);
            for at in (0..bytes).step_by(997) {
                checkpoints.disk().readable.set(Some(at));
                assert!(checkpoints.restore(&mut worker, 2).is_err());
                assert!(
                    worker.admin().list_tables("").unwrap().is_empty(),
                    "nothing of it is there"
                );
            }
            checkpoints.disk().readable.set(None);
            checkpoints.restore(&mut worker, 2).unwrap();
        });
    });
}

#[test]
fn damage_is_named_and_nothing_panics() {
    with_cluster(1, 1, |_, connect| {
        let mut worker = connect(9);
        let spec = TableSpec::new(1, "t", ValueType::F32, 2);
        let table = worker.admin().create_table(&spec).unwrap();
        let pushed = worker.push(table, &[1, 7], &[1.5f32; 4]).unwrap();
        worker.wait(pushed).unwrap();
        let mut checkpoints = Checkpoints::new(Drive::default());
        let specs = [spec];
        checkpoints.create(&mut worker, &specs).unwrap();
        let pushed = worker.push(table, &[3, 7], &[1.5f32; 4]).unwrap();
        worker.wait(pushed).unwrap();
        checkpoints.create_increment(&mut worker, &specs).unwrap();
        let good = checkpoints.disk().clone();
        for file in 0..good.files.len() {
            for at in 0..good.files[file].0.len() {
                let mut flipped = good.clone();
                flipped.files[file].0[at] ^= 1 << (at % 8);
                let mut cut = good.clone();
                cut.files[file].0.truncate(at);
                for bad in [flipped, cut] {
                    let error = Checkpoints::new(bad).verify(2).unwrap_err().to_string();
                    let name = good.names.iter().find(|name| *name.1 == file).unwrap().0;
                    assert!(error.starts_with(&format!("checkpoint file {name}: ")), "{error}");
                }
            }
        }
        let missing = checkpoints.verify(3).unwrap_err().to_string();
        assert!(missing.contains("3.manifest"), "{missing}");
        for (name, file) in &good.names {
            let mut longer = good.clone();
            longer.files[*file].0.push(0);
            let error = Checkpoints::new(longer).verify(2).unwrap_err().to_string();
            assert!(error.starts_with(&format!("checkpoint file {name}: ")), "{error}");
        }
    });
}

/// A whole file of another checkpoint, with the same keys and as long, is not taken for the one
/// that was written: not by anything that reads it.
#[test]
fn a_file_of_another_checkpoint_is_refused_by_name() {
    with_cluster(1, 1, |_, connect| {
        let mut worker = connect(9);
        let specs = [TableSpec::new(1, "t", ValueType::I64, 1)];
        let table = worker.admin().create_table(&specs[0]).unwrap();
        let drives = [1, 2].map(|_| {
            let mut checkpoints = Checkpoints::new(Drive::default());
            for keys in [&[1, 7][..], &[7]] {
                let pushed = worker.push(table, keys, &vec![1i64; keys.len()]).unwrap();
                worker.wait(pushed).unwrap();
                checkpoints.create_increment(&mut worker, &specs).unwrap();
            }
            checkpoints.disk().clone()
        });
        let [first, second] = &drives;
        for name in ["1.0.0.rows", "2.0.0.rows"] {
            let mut mixed = first.clone();
            let (own, other) = (first.names[name], second.names[name]);
            assert_eq!(first.files[own].0.len(), second.files[other].0.len());
            mixed.files[own] = second.files[other].clone();
            let mut mixed = Checkpoints::new(mixed);
            let refused = |found: Result<(), caravan_kv::Error>| {
                let said = found.unwrap_err().to_string();
                let says = format!("checkpoint file {name}: it is of another checkpoint");
                assert!(said.starts_with(&says), "{said}");
            };
            refused(mixed.verify(2).map(drop));
            refused(mixed.export(2, &specs[0], |_| Ok(())));
            refused(mixed.create_increment(&mut worker, &specs).map(drop));
            with_cluster(2, 2, |_, connect| {
                let mut worker = connect(9);
                refused(mixed.restore(&mut worker, 2).map(drop));
                assert!(
                    worker.admin().list_tables("").unwrap().is_empty(),
                    "nothing of it is there"
                );
            });
        }
    });
}

/// A table that cannot be created is no reason to keep those before it.
#[test]
fn a_restore_that_fails_leaves_no_table() {
    let plain = TableSpec::new(1, "plain", ValueType::I64, 1);
    let once = TableSpec::new(2, "once", ValueType::I64, 1).consistency(Model::Bsp, 1).once();
    let specs = [plain, once];
    let mut checkpoints = Checkpoints::new(Drive::default());
    with_cluster(1, 2, |_, connect| {
        let mut worker = connect(9);
        checkpoints.create(&mut worker, &specs).unwrap();
    });
    with_cluster(2, 2, |_, connect| {
        let mut worker = connect(9);
        let said = checkpoints.restore_with(&mut worker, 1, Some(1)).unwrap_err().to_string();
        assert!(said.contains("table once: a table with replicas knows repeats"), "{said}");
        assert!(worker.admin().list_tables("").unwrap().is_empty(), "nothing of it is there");
        checkpoints.restore(&mut worker, 1).unwrap();
    });
}
