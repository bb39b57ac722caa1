//! Goal: a chain of increments has, at each of its checkpoints, what a whole checkpoint of that
//! moment has; it comes back bit-equal on any number of servers, and goes on there. What is missing
//! from a chain is named, and nothing that is deleted breaks one.
//! Method: whole clusters on the simulated van, whose rows come and go and whose shards move, with
//! a disk in memory. A failure prints its seed; `CARAVAN_SEED=<seed> cargo test` replays it.

use std::collections::BTreeSet;
use std::sync::atomic::Ordering;

use crate::support::drive::{Drive, export, stored};
use crate::support::simulated::{Draws, connect, start, weather};
use caravan_kv::checkpoint::{Checkpoints, Disk, Manifest};
use caravan_kv::eviction::EvictionRule;
use caravan_kv::{Handles, Placement, Table, TableSpec, ValueType, Worker};
use caravan_van::KeyRange;
use caravan_van::sim::{Network, for_each_seed};

const KEYS: u64 = 200;

/// Shards of a table for each server.
const SHARDS: u32 = 2;

/// The place of the table whose rows have lengths of their own.
const VARYING: usize = 3;

/// A table whose rows come and go, a dense one, one with hidden values, and one whose rows have
/// lengths of their own.
fn tables() -> [TableSpec; 4] {
    let keys = KeyRange::new(0, KEYS).unwrap();
    let eviction = EvictionRule { idle_max: Some(1), ..EvictionRule::default() };
    let going = TableSpec::new(11, "going", ValueType::I64, 1).eviction(eviction);
    let dense = TableSpec::new(12, "dense", ValueType::I64, 3).dense();
    let steps = TableSpec::new(13, "steps", ValueType::F64, 1).handle("momentum");
    let varying = TableSpec::new(14, "varying", ValueType::U8, 0).handle("assign");
    [going, dense, steps, varying].map(|spec| spec.keys(keys).placement(Placement::Even(SHARDS)))
}

/// Runs `with` on a cluster of `count` servers whose pieces are short.
fn with_cluster<T>(seed: u64, count: usize, with: impl FnOnce(&mut Worker) -> T) -> T {
    let network = Network::new(seed, weather(seed));
    let (addresses, stop) =
        start(&network, count, &Handles::default(), |server| server.move_by(300));
    let result = with(&mut connect(&network, 9, &addresses));
    stop.store(true, Ordering::Relaxed);
    result
}

/// Pushes to some keys of each table.
fn push(worker: &mut Worker, draws: &mut Draws) {
    let share = 1 + draws.below(20);
    for (at, spec) in tables().iter().enumerate() {
        let table = worker.admin().create_table(spec).unwrap();
        let keys: Vec<u64> = (0..KEYS).filter(|_| draws.below(share) == 0).collect();
        let value = 1 + draws.below(3);
        let pushed = match at {
            0 => worker.push(table, &keys, &vec![value as i64; keys.len()]),
            1 => worker.push(table, &keys, &vec![value as i64; 3 * keys.len()]),
            2 => worker.push(table, &keys, &vec![value as f64; keys.len()]),
            _ => {
                let lengths = vec![value as u32; keys.len()];
                let values = vec![draws.below(3) as u8; value as usize * keys.len()];
                worker.push_varying(table, &keys, &lengths, &values)
            }
        };
        worker.wait(pushed.unwrap()).unwrap();
    }
}

/// Moves some shards, and may have a table begin anew.
fn turn(worker: &mut Worker, draws: &mut Draws, servers: usize) {
    let known = tables().map(|spec| worker.admin().create_table(&spec).unwrap());
    for _ in 0..draws.below(4) {
        let table = known[draws.below(4) as usize];
        let shards = worker.info().shards(table).unwrap();
        let from = shards[draws.below(shards.len() as u64) as usize].range.begin();
        let to = draws.below(servers as u64) as usize;
        let moved = worker.admin().move_shard(table, from, to).unwrap();
        worker.wait(moved).unwrap();
    }
    if draws.below(6) == 0 {
        worker.admin().drop_table(known[draws.below(4) as usize]).unwrap();
    }
}

/// Rows and tombstones that a checkpoint has by itself.
fn counts(manifest: &Manifest) -> [u64; 2] {
    [manifest.shards().map(|it| it.rows).sum(), manifest.shards().map(|it| it.gone).sum()]
}

/// Asserts that two checkpoints, both of all rows, have the same bytes for each.
fn assert_equal(
    one: &mut Checkpoints<Drive>,
    first: u64,
    other: &mut Checkpoints<Drive>,
    second: u64,
) {
    assert_eq!(export(one, first), export(other, second));
    for table in (0..tables().len()).filter(|table| *table != VARYING) {
        assert!(stored(one, first, table) == stored(other, second, table), "table {table}");
    }
}

#[test]
fn a_chain_is_what_was_there_at_each_of_its_checkpoints() {
    const ROUNDS: u64 = 5;
    let (mut all, mut changed, mut gone) = (0, 0, 0);
    for_each_seed(60, |seed| {
        let mut draws = Draws(seed);
        let servers = 1 + draws.below(4) as usize;
        let (mut chain, mut whole) =
            (Checkpoints::new(Drive::default()), Checkpoints::new(Drive::default()));
        with_cluster(seed, servers, |worker| {
            for round in 1..=ROUNDS {
                worker.set_clock(round);
                push(worker, &mut draws);
                turn(worker, &mut draws, servers);
                push(worker, &mut draws);
                assert_eq!(chain.create_increment(worker, &tables()).unwrap(), round);
                assert_eq!(whole.create(worker, &tables()).unwrap(), round);
                let manifest = chain.manifest(round).unwrap();
                assert_eq!(manifest.parent.map(|it| it.number), (round > 1).then(|| round - 1));
                if round > 1 {
                    assert!(manifest.tables.iter().all(|table| table.is_increment));
                    let [rows, tombstones] = counts(&manifest);
                    all += counts(&whole.manifest(round).unwrap())[0];
                    changed += rows;
                    gone += tombstones;
                }
            }
        });
        for round in 1..=ROUNDS {
            assert_eq!(export(&chain, round), export(&whole, round), "round {round}");
        }
        let round = 1 + draws.below(ROUNDS);
        for servers in [1, 7] {
            with_cluster(seed, servers, |worker| {
                chain.restore(worker, round).unwrap();
                let mut copy = Checkpoints::new(Drive::default());
                copy.create(worker, &tables()).unwrap();
                assert_equal(&mut copy, 1, &mut whole, round);
                if round == ROUNDS {
                    // The chain goes on in this cluster, where nothing has changed yet.
                    let next = chain.create_increment(worker, &tables()).unwrap();
                    assert_eq!(counts(&chain.manifest(next).unwrap()), [0, 0]);
                    assert_eq!(export(&chain, next), export(&whole, round));
                }
            });
        }
    });
    assert!(gone > 0 && changed > 0 && 2 * changed < all, "{changed} and {gone} of {all}");
}

/// A table of numbers, and a worker's push of ones to some keys of it.
fn numbers(worker: &mut Worker, id: u32) -> (TableSpec, Table) {
    let spec = TableSpec::new(id, "t", ValueType::I64, 1).placement(Placement::Even(2));
    let table = worker.admin().create_table(&spec).unwrap();
    (spec, table)
}

fn add(worker: &mut Worker, table: Table, keys: &[u64]) {
    let pushed = worker.push(table, keys, &vec![1i64; keys.len()]).unwrap();
    worker.wait(pushed).unwrap();
}

#[test]
fn an_increment_has_all_rows_of_what_its_parent_lacks() {
    with_cluster(1, 2, |worker| {
        let [(a, table_a), (b, table_b)] = [1, 2].map(|id| numbers(worker, id));
        add(worker, table_a, &[1, 2, u64::MAX]);
        add(worker, table_b, &[5]);
        let mut checkpoints = Checkpoints::new(Drive::default());
        let create = |checkpoints: &mut Checkpoints<Drive>, worker: &mut Worker, specs: &[_]| {
            let number = checkpoints.create_increment(worker, specs).unwrap();
            let manifest = checkpoints.verify(number).unwrap();
            let is_increment = |at: usize| manifest.tables[at].is_increment;
            let increments = (0..specs.len()).map(is_increment).collect::<Vec<_>>();
            (manifest.parent.map(|it| it.number), increments, counts(&manifest))
        };
        let one = [a.clone()];
        assert_eq!(create(&mut checkpoints, worker, &one), (None, vec![false], [3, 0]));
        add(worker, table_a, &[2]);
        let both = [a.clone(), b.clone()];
        assert_eq!(create(&mut checkpoints, worker, &both), (Some(1), vec![true, false], [2, 0]));
        // Tables that begin anew: one with the same specification, and one with another.
        worker.admin().drop_table(table_a).unwrap();
        worker.admin().drop_table(table_b).unwrap();
        let (_, table_a) = numbers(worker, 1);
        add(worker, table_a, &[2, 3]);
        let wider = TableSpec::new(2, "t", ValueType::I64, 2);
        let table_b = worker.admin().create_table(&wider).unwrap();
        let pushed = worker.push(table_b, &[5], &[1i64, 1]).unwrap();
        worker.wait(pushed).unwrap();
        let both = [a, wider];
        assert_eq!(create(&mut checkpoints, worker, &both), (Some(2), vec![true, false], [3, 2]));
        let text = |value: &str| value.to_owned();
        assert_eq!(
            export(&checkpoints, 3),
            [vec![(2, text("1")), (3, text("1"))], vec![(5, text("1 1"))]]
        );
        // Only the other table is known to this one, so the first has nothing to go on from.
        assert_eq!(create(&mut checkpoints, worker, &both[1..]), (Some(3), vec![true], [0, 0]));
        let alone = create(&mut checkpoints, worker, &both[..1]);
        assert_eq!(alone, (None, vec![false], [2, 0]));
    });
}

#[test]
fn a_missing_or_other_parent_is_named() {
    with_cluster(1, 1, |worker| {
        let (spec, table) = numbers(worker, 1);
        let specs = [spec];
        let mut checkpoints = Checkpoints::new(Drive::default());
        for key in 0..3 {
            add(worker, table, &[key]);
            checkpoints.create_increment(worker, &specs).unwrap();
        }
        let good = checkpoints.disk().clone();
        let mut elsewhere = Checkpoints::new(Drive::default());
        elsewhere.create(worker, &specs).unwrap();
        let other = elsewhere.disk().clone();
        let mut refuses = |break_it: &dyn Fn(&mut Drive), name: &str, says: &str| {
            let mut broken = good.clone();
            break_it(&mut broken);
            let mut broken = Checkpoints::new(broken);
            let said = broken.verify(3).unwrap_err().to_string();
            assert!(said.contains(name) && said.contains(says), "{said}");
            let said = broken.create_increment(worker, &specs).unwrap_err().to_string();
            assert!(said.contains(name) && said.contains(says), "{said}");
            // A whole one stands alone.
            let number = broken.create(worker, &specs).unwrap();
            assert_eq!(export(&broken, number), export(&Checkpoints::new(good.clone()), 3));
        };
        let says = "checkpoint 2 has only what changed since checkpoint 1";
        refuses(&|drive| drive.remove("1.manifest").unwrap(), "1.manifest", says);
        refuses(&|drive| drive.remove("1.0.1.rows").unwrap(), "1.0.1.rows", "not found");
        let damage = |drive: &mut Drive| drive.files[drive.names["2.0.0.rows"]].0[40] ^= 1;
        refuses(&damage, "2.0.0.rows", "does not match its checksum");
        // Another checkpoint has taken the number.
        let replace = |drive: &mut Drive| {
            let other = drive.names["2.manifest"];
            drive.names.insert("1.manifest".to_owned(), other);
        };
        refuses(&replace, "1.manifest", "it names 2.0.0.rows, not 1.0.0.rows");
        // One of another folder.
        let replace = |drive: &mut Drive| {
            drive.files[drive.names["1.manifest"]] = other.files[other.names["1.manifest"]].clone();
        };
        refuses(&replace, "1.manifest", "it is another one than the increment was based on");
    });
}

/// What is on a disk after `1`, its increments `2` and `3`, `4`, and its increments `5` and `6`.
fn two_chains(worker: &mut Worker, specs: &[TableSpec], table: Table) -> Checkpoints<Drive> {
    let mut checkpoints = Checkpoints::new(Drive::default());
    for number in 1..=6 {
        add(worker, table, &[number, 7]);
        let made = match number {
            1 | 4 => checkpoints.create(worker, specs),
            _ => checkpoints.create_increment(worker, specs),
        };
        assert_eq!(made.unwrap(), number);
    }
    checkpoints
}

#[test]
fn nothing_that_is_deleted_breaks_a_chain() {
    with_cluster(1, 1, |worker| {
        let (spec, table) = numbers(worker, 1);
        let specs = [spec];
        let good = two_chains(worker, &specs, table).disk().clone();
        let rows = export(&Checkpoints::new(good.clone()), 6);
        let prune = |keep: usize| {
            let mut checkpoints = Checkpoints::new(good.clone());
            let gone = checkpoints.prune(keep).unwrap();
            let left = checkpoints.list().unwrap();
            left.iter().for_each(|number| drop(checkpoints.verify(*number).unwrap()));
            (gone, left)
        };
        assert_eq!(prune(9), (vec![], vec![1, 2, 3, 4, 5, 6]));
        assert_eq!(prune(4), (vec![], vec![1, 2, 3, 4, 5, 6]), "3 is based on 1 and 2");
        assert_eq!(prune(3), (vec![1, 2, 3], vec![4, 5, 6]));
        assert_eq!(prune(1), (vec![1, 2, 3], vec![4, 5, 6]), "6 is based on 4 and 5");
        let said = Checkpoints::new(good.clone()).prune(0).unwrap_err().to_string();
        assert!(said.contains("keep 1 at least"), "{said}");
        assert!(Checkpoints::new(Drive::default()).prune(1).unwrap().is_empty());

        // What writers have left that died goes, and what others have there stays.
        let mut littered = good.clone();
        let strange = ["notes.txt", "3.txt", "2.0.rows", "7.0.0.rows", "7.manifest.partial"];
        for name in strange.iter().chain(&["3.0.5.rows", "2.manifest.partial"]) {
            littered.append(name, b"x").unwrap();
        }
        let mut checkpoints = Checkpoints::new(littered);
        checkpoints.prune(1).unwrap();
        let names = checkpoints.disk().names().unwrap();
        let is_strange = |name: &&String| !["4.", "5.", "6."].iter().any(|it| name.starts_with(it));
        let mut left: Vec<&str> = names.iter().filter(is_strange).map(String::as_str).collect();
        left.sort_by_key(|name| strange.iter().position(|it| it == name));
        assert_eq!(left, strange);
        assert_eq!(export(&checkpoints, 6), rows);

        // A chain that is broken already is left alone.
        let mut broken = good.clone();
        broken.remove("4.manifest").unwrap();
        let names = broken.names().unwrap();
        let mut checkpoints = Checkpoints::new(broken);
        let said = checkpoints.prune(1).unwrap_err().to_string();
        assert!(said.contains("since checkpoint 4"), "{said}");
        assert_eq!(checkpoints.disk().names().unwrap(), names);
    });
}

#[test]
fn a_pruning_that_dies_leaves_whole_chains() {
    let mut met = BTreeSet::new();
    for_each_seed(40, |seed| {
        let mut draws = Draws(seed);
        with_cluster(seed, 1, |worker| {
            let (spec, table) = numbers(worker, 1);
            let specs = [spec];
            let good = two_chains(worker, &specs, table).disk().clone();
            let rows = export(&Checkpoints::new(good.clone()), 6);
            for left in 0..14 {
                let mut dying = Checkpoints::new(good.clone());
                dying.disk().left = Some(left);
                let is_done = dying.prune(1).is_ok();
                let mut found = Checkpoints::new(dying.disk().after_loss_of_power(&mut draws));
                let numbers = found.list().unwrap();
                numbers.iter().for_each(|number| drop(found.verify(*number).unwrap()));
                assert!(numbers == [4, 5, 6] || !is_done, "{numbers:?}");
                assert_eq!(export(&found, 6), rows);
                met.insert(numbers.len());
                // The next one is not confused, and deletes the rest.
                found.prune(1).unwrap();
                assert_eq!(found.list().unwrap(), [4, 5, 6]);
                assert_eq!(found.disk().names().unwrap().len(), 3 * (specs.len() * 2 + 1));
            }
        });
    });
    assert!(met.iter().eq(&[3, 4, 5, 6]), "{met:?}");
}
