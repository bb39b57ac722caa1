//! Features against faults: each cell is a short run of a table that has the features while the
//! fault comes. What the code refuses is a cell that names the refusal, and meets it.

use std::collections::BTreeMap;
use std::time::Duration;

use caravan_kv::checkpoint::Checkpoints;
use caravan_kv::consistency::Model;
use caravan_kv::eviction::EvictionRule;
use caravan_kv::{Error, Placement, Result, Table, TableSpec, ValueType};
use caravan_van::KeyRange;
use caravan_van::sim::{Network, for_each_seed};

use super::faults::{FAULTS, Fault};
use super::scenarios::{aggregation, eviction};
use super::{Hand, Setup, Sim, has_all_seeds};
use crate::support::drive::Drive;
use crate::support::simulated::weather;
use crate::{departing, elastic};

/// What a table has, or what is done to it meanwhile.
#[derive(Debug, Clone, Copy, PartialEq)]
enum Feature {
    Copies,
    Model(Model),
    Filters,
    Eviction,
    Aggregation,
    Move,
    Checkpoint,
}

use Feature::{Aggregation, Checkpoint, Copies, Eviction, Filters, Move};

const SSP: Feature = Feature::Model(Model::Ssp { staleness: 1 });
const BSP: Feature = Feature::Model(Model::Bsp);
const ASP: Feature = Feature::Model(Model::Asp);
const DELAY: Feature = Feature::Model(Model::BoundedDelay { delay: 1 });
const DATA_CENTRIC: Feature = Feature::Model(Model::DataCentric { delay: Some(1), chunk_keys: 4 });

const SERIAL: Feature = Feature::Model(Model::DataCentric { delay: Some(0), chunk_keys: 4 });

const ROWS: [&[Feature]; 32] = [
    &[],
    &[Filters],
    &[Eviction],
    &[Move],
    &[Move, Filters],
    &[Move, Eviction],
    &[Checkpoint],
    &[SSP],
    &[BSP],
    &[DATA_CENTRIC],
    &[Copies],
    &[Copies, Filters],
    &[Copies, Checkpoint],
    &[Copies, SSP],
    &[Copies, BSP],
    &[Copies, ASP],
    &[Copies, DELAY],
    &[Copies, Eviction],
    &[Copies, Aggregation],
    &[Copies, BSP, Filters],
    &[Copies, DATA_CENTRIC],
    &[Copies, SERIAL, Filters],
    &[Copies, Move],
    &[Copies, Move, Filters],
    &[Copies, Move, Eviction],
    &[Copies, Move, Checkpoint],
    &[Copies, Move, SSP],
    &[Copies, Move, BSP],
    &[Copies, Move, ASP],
    &[Copies, Move, DELAY],
    &[Copies, Move, DATA_CENTRIC],
    &[Copies, Move, SERIAL],
];

/// A run of a whole cluster, by its seed.
type Run = fn(&Network, u64);

/// What is done to a cluster with a scheduler, against what becomes of its servers meanwhile.
const CLUSTERS: [(&str, Fault, Run); 4] = [
    ("join", Fault::Nothing, |network, seed| {
        elastic::drive(network, seed);
    }),
    ("join, leave", Fault::Nothing, |network, seed| {
        elastic::come_and_go(network, seed);
    }),
    ("copies, join, leave", Fault::Nothing, |network, seed| {
        departing::depart(network, 2 * seed);
    }),
    ("copies, join, leave", Fault::Crash, |network, seed| {
        departing::depart(network, 2 * seed + 1);
    }),
];

/// Products that are refused whatever happens, and why.
const REFUSED: [(&[Feature], &str); 2] = [
    (&[SSP, Move], "has a consistency model, so its shards cannot move"),
    (&[DATA_CENTRIC, Move], "has a consistency model, so its shards cannot move"),
];

/// What is said where a table without copies meets the loss of a server, or of a lane to one.
const LOST: &str = "lost";

/// Why a shard may stay where it is.
const STAYS: [&str; 3] = ["stay here", "another server has to join", "it is lost"];

const KEYS: u64 = 24;
const WORKERS: u64 = 3;
const ROUNDS: [u64; 2] = [8, 300];

fn spec(features: &[Feature]) -> TableSpec {
    let spec = TableSpec::new(1, "cell", ValueType::I64, 1);
    let spec = spec.keys(KeyRange::new(0, KEYS).unwrap()).placement(Placement::Even(2));
    features.iter().fold(spec, |spec, feature| match *feature {
        Copies => spec.replicas(1),
        Feature::Model(model) => spec.consistency(model, WORKERS as u32),
        Filters => spec.filters("key-cache,snappy".parse().unwrap()),
        Eviction => {
            spec.eviction(EvictionRule { bytes_max: Some(1 << 20), ..EvictionRule::default() })
        }
        Aggregation | Move | Checkpoint => spec,
    })
}

/// The key of a worker, in a chunk of its own.
fn own(rank: u64) -> u64 {
    4 * rank
}

/// Counts its rounds in a key of its own, and adds to a key of all unless a key has one writer;
/// returns how often.
fn count(hand: &mut Hand<'_>, features: &[Feature]) -> Result<i64> {
    let has_model = features.iter().any(|it| matches!(it, Feature::Model(_)));
    let table = hand.worker.admin().create_table(&spec(features))?;
    if has_model {
        hand.worker.clocks(table).join()?;
    }
    hand.oracle.begin();
    let (all, own): (Vec<u64>, _) = ((0..KEYS).collect(), own(hand.rank));
    let written = if is_shared(features) { vec![own, KEYS - 1] } else { vec![own] };
    let ones = vec![1i64; written.len()];
    let mut rounds = 0;
    while rounds < ROUNDS[0] as i64 || !hand.oracle.is_calm() && rounds < ROUNDS[1] as i64 {
        hand.pause(1500);
        let pulled = hand.worker.pull(table, &all)?;
        let read = hand.worker.wait(pulled)?.values::<i64>()[own as usize];
        assert_eq!(read, rounds, "seed {}: key {own} is what was written", hand.seed);
        let pushed = hand.worker.push(table, &written, &ones)?;
        rounds += 1;
        if has_model {
            let ended = hand.worker.clocks(table).advance()?;
            hand.worker.wait(ended)?;
        }
        hand.worker.wait(pushed)?;
    }
    if has_model {
        let left = hand.worker.clocks(table).leave()?;
        hand.worker.wait(left)?;
    }
    Ok(rounds)
}

/// Whether several workers may write a key.
fn is_shared(features: &[Feature]) -> bool {
    !features.contains(&DATA_CENTRIC) && !features.contains(&SERIAL)
}

/// Moves shards while workers count.
fn shift(hand: &mut Hand<'_>, table: Table) -> Result<()> {
    for _ in 0..8 {
        hand.pause(3000);
        let shards = hand.worker.info().shards(table)?;
        let shard = shards[hand.draws.below(shards.len() as u64) as usize];
        let server = hand.draws.below(3) as usize;
        let moved = hand.worker.admin().move_shard(table, shard.range.begin(), server)?;
        match hand.worker.wait(moved) {
            // Its lane broke, or too few servers are left.
            Err(error) if STAYS.iter().any(|why| error.to_string().contains(why)) => {}
            moved => drop(moved?),
        }
    }
    Ok(())
}

/// What somebody besides the workers does, if the features want it.
fn meddle(hand: &mut Hand<'_>, features: &[Feature]) -> Result<()> {
    let table = hand.worker.admin().create_table(&spec(features))?;
    if features.contains(&Move) {
        shift(hand, table)?;
    }
    if features.contains(&Checkpoint) {
        let mut checkpoints = Checkpoints::new(Drive::default());
        let mut create = || checkpoints.create(&mut hand.worker, &[spec(features)]);
        let mut created = create();
        for _ in 0..50 {
            match &created {
                Err(error) if features.contains(&Copies) => drop(error.to_string()),
                _ => break,
            }
            created = create();
        }
        let number = created?;
        checkpoints.verify(number).unwrap();
    }
    Ok(())
}

/// Runs a cell; returns what was refused, if anything was.
fn run(seed: u64, features: &'static [Feature], fault: Fault) -> Option<String> {
    let has_copies = features.contains(&Copies);
    match features {
        [Copies, Aggregation] => drop(aggregation::run(seed, fault, 0)),
        [Copies, Eviction] => drop(eviction::run(seed, fault)),
        _ => return count_under(seed, features, fault, has_copies),
    }
    None
}

fn count_under(
    seed: u64,
    features: &'static [Feature],
    fault: Fault,
    has_copies: bool,
) -> Option<String> {
    let setup = Setup { workers: WORKERS, credits: 64, ..Setup::default() };
    let sim = Sim::start(seed, Setup { timeout: Duration::from_secs(1), ..setup });
    let nodes = sim.workers(move |hand| {
        let counted = count(hand, features);
        hand.oracle.begin(); // if it could not
        counted
    });
    let meddler = sim.spawn("meddler", 60, move |hand| meddle(hand, features));
    // Without copies there are none to wait for.
    let fate = match (fault, has_copies) {
        (Fault::Again, false) => sim.fate(Fault::Crash, 2, 6000),
        _ => sim.fate(fault, 1, 6000),
    };
    sim.join(fate);
    let counted: Result<Vec<i64>> = sim.join_all(nodes).into_iter().collect();
    let meddled = sim.join(meddler);
    let counted = match (counted, meddled) {
        (Ok(counted), Ok(())) => counted,
        (Err(error), _) | (_, Err(error)) => return Some(error.to_string()),
    };
    let sums = sim.spawn("reader", 61, move |hand| -> Result<Vec<i64>> {
        let table = hand.worker.admin().create_table(&spec(features))?;
        let keys: Vec<u64> = (0..KEYS).collect();
        let pulled = hand.worker.pull(table, &keys)?;
        Ok(hand.worker.wait(pulled)?.values::<i64>().to_vec())
    });
    let sums = match sim.join(sums) {
        Err(Error::ServerLost { server, .. }) if !has_copies => return Some(server + LOST),
        sums => sums.unwrap(),
    };
    let what = format!("seed {seed}, {features:?}, {fault:?}");
    let own: Vec<i64> = (0..WORKERS).map(|rank| sums[own(rank) as usize]).collect();
    assert_eq!(own, counted, "{what}");
    let all: i64 = counted.iter().sum();
    assert_eq!(sums[KEYS as usize - 1], if is_shared(features) { all } else { 0 }, "{what}");
    None
}

/// Whether a table without copies may be refused for this fault.
fn may_be_lost(features: &[Feature], fault: Fault) -> bool {
    !features.contains(&Copies) && !matches!(fault, Fault::Nothing | Fault::CutServers)
}

#[test]
fn every_feature_meets_every_fault() {
    let mut cells: BTreeMap<(usize, Fault), [u64; 2]> = BTreeMap::new();
    for_each_seed(3, |seed| {
        for (at, features) in ROWS.into_iter().enumerate() {
            for fault in FAULTS {
                let [kept, refused] = cells.entry((at, fault)).or_default();
                match run(seed, features, fault) {
                    None => *kept += 1,
                    Some(why) => {
                        let is_named = may_be_lost(features, fault) && why.contains(LOST);
                        assert!(is_named, "seed {seed}, {features:?}, {fault:?}: {why}");
                        *refused += 1;
                    }
                }
            }
        }
    });
    println!("features: fault, runs kept, runs refused by name");
    for (at, features) in ROWS.into_iter().enumerate() {
        let of = |fault: Fault| {
            let [kept, refused] = cells.get(&(at, fault)).copied().unwrap_or_default();
            format!("{fault:?} {kept}/{refused}")
        };
        println!("{features:?}: {}", FAULTS.map(of).join(", "));
    }
    for ((at, fault), [kept, refused]) in cells {
        let is_met = kept > 0 || refused > 0 && may_be_lost(ROWS[at], fault);
        assert!(is_met || !has_all_seeds(), "{:?} never met {fault:?}", ROWS[at]);
    }
}

#[test]
fn servers_come_and_go_whatever_dies() {
    for_each_seed(3, |seed| {
        for (what, fault, run) in CLUSTERS {
            let network = Network::new(seed, weather(seed));
            let driver = network.spawn("driver", move |network| run(network, seed));
            let ended = driver.join();
            ended.unwrap_or_else(|stopped| panic!("{what}, {fault:?}, seed {seed}: {stopped}"));
        }
        println!("seed {seed}: {:?}", CLUSTERS.map(|(what, fault, _)| (what, fault)));
    });
}

#[test]
fn products_that_are_refused_are_named() {
    for (features, says) in REFUSED {
        let why = run(0, features, Fault::Nothing);
        assert!(why.as_ref().is_some_and(|why| why.contains(says)), "{features:?}: {why:?}");
    }
}
