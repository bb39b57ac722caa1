//! Models under which a run is the serial one: barriers, and data-centric constraints without
//! delay.

use std::sync::{Arc, Mutex};
use std::time::Duration;

use caravan_kv::consistency::Model;
use caravan_kv::{TableSpec, ValueType};
use caravan_van::KeyRange;
use caravan_van::sim::for_each_seed;

use super::{Histories, pull, run};
use crate::support::simulated::Draws;

/// What worker `rank` adds in iteration `clock` to the sum that it has read.
fn contribution(rank: u64, clock: u64, sum: f32) -> f32 {
    let draw = Draws((rank << 16 | clock).wrapping_mul(0x9e37_79b9_7f4a_7c15)).below(1000) as f32;
    (draw + 0.1) / 3.0 * 100f32.powi(rank as i32) - sum * 0.3
}

/// Five workers add numbers whose sum depends on the order: every run gives the bits of the serial
/// one, in every iteration.
pub(crate) fn bsp_to_the_bit(seeds: u64) {
    const WORKERS: u64 = 5;
    const ITERATIONS: u64 = 6;
    let mut sums = vec![0f32];
    for clock in 1..=ITERATIONS {
        let read = sums[clock as usize - 1];
        let add = |sum, rank| sum + contribution(rank, clock, read);
        sums.push((0..WORKERS).fold(read, add));
    }
    let order_counts = |clock: u64| {
        let read = sums[clock as usize - 1];
        let add = |sum, rank| sum + contribution(rank, clock, read);
        (0..WORKERS).rev().fold(read, add).to_bits() != sums[clock as usize].to_bits()
    };
    assert!((1..=ITERATIONS).any(order_counts), "{sums:?}");
    let sums = Arc::new(sums);
    for_each_seed(seeds, |seed| {
        let sums = sums.clone();
        run(seed, WORKERS, move |network, worker, rank, draws| {
            let spec =
                TableSpec::new(1, "sum", ValueType::F32, 1).consistency(Model::Bsp, WORKERS as u32);
            let table = worker.admin().create_table(&spec).unwrap();
            worker.clocks(table).join().unwrap();
            for clock in 1..=ITERATIONS {
                let pulled = worker.pull(table, &[7, u64::MAX]).unwrap();
                let read = worker.wait(pulled).unwrap().values::<f32>().to_vec();
                let expected = sums[clock as usize - 1];
                assert_eq!(
                    [read[0], read[1]].map(f32::to_bits),
                    [expected.to_bits(); 2],
                    "seed {seed}"
                );
                network.sleep(Duration::from_micros(draws.below(500)));
                let add = contribution(rank, clock, read[0]);
                worker.clocks(table).push_last(&[7, u64::MAX], &[add, add]).unwrap();
            }
            let pulled = worker.pull(table, &[7]).unwrap();
            let read = worker.wait(pulled).unwrap().values::<f32>()[0];
            assert_eq!(read.to_bits(), sums[ITERATIONS as usize].to_bits(), "seed {seed}");
        });
    });
}

#[test]
fn bsp_is_the_serial_run_to_the_bit() {
    bsp_to_the_bit(60);
}

/// The value that a worker gives its chunk, of which every read value is a part: five workers, and
/// a sum that depends on the order.
pub(crate) fn data_centric_to_the_bit(seeds: u64) {
    const WORKERS: u64 = 5;
    const ITERATIONS: u64 = 6;
    let next = |rank, clock, read: &[f32]| {
        let mean = read.iter().sum::<f32>() / WORKERS as f32;
        contribution(rank, clock, mean)
    };
    let mut serial = vec![vec![0f32; WORKERS as usize]];
    for clock in 1..=ITERATIONS {
        let read = &serial[clock as usize - 1];
        serial.push((0..WORKERS).map(|rank| next(rank, clock, read)).collect());
    }
    let bits = |values: &[f32]| values.iter().map(|value| value.to_bits()).collect::<Vec<_>>();
    let order_counts = |read: &Vec<f32>| {
        let back: Vec<f32> = read.iter().rev().copied().collect();
        next(0, 1, &back).to_bits() != next(0, 1, read).to_bits()
    };
    assert!(serial.iter().any(order_counts), "{serial:?}");
    let serial = Arc::new(serial);
    for_each_seed(seeds, |seed| {
        let serial = serial.clone();
        run(seed, WORKERS, move |network, worker, rank, draws| {
            let range = KeyRange::new(0, WORKERS).unwrap();
            let spec = TableSpec::new(1, "chunks", ValueType::F32, 1).handle("assign").keys(range);
            let model = Model::DataCentric { delay: Some(0), chunk_keys: 1 };
            let table =
                worker.admin().create_table(&spec.consistency(model, WORKERS as u32)).unwrap();
            worker.clocks(table).join().unwrap();
            let all: Vec<u64> = (0..WORKERS).collect();
            for clock in 1..=ITERATIONS + 1 {
                let pulled = worker.pull(table, &all).unwrap();
                let read = worker.wait(pulled).unwrap().values::<f32>().to_vec();
                assert_eq!(bits(&read), bits(&serial[clock as usize - 1]), "seed {seed}, {clock}");
                if clock <= ITERATIONS {
                    network.sleep(Duration::from_micros(draws.below(300)));
                    worker.clocks(table).push_last(&[rank], &[next(rank, clock, &read)]).unwrap();
                }
            }
        });
    });
}

#[test]
fn data_centric_without_delay_is_the_serial_run_to_the_bit() {
    data_centric_to_the_bit(30);
}

pub(crate) const CHUNK_KEYS: u64 = 4;

/// The next values of a worker's chunk: every value that was read changes them.
fn mix(rank: u64, clock: u64, read: &[i64]) -> Vec<i64> {
    let seed = read.iter().fold(rank << 32 | clock, |hash, value| {
        (hash ^ *value as u64).wrapping_mul(0x9e37_79b9_7f4a_7c15).rotate_left(23)
    });
    (0..CHUNK_KEYS).map(|at| seed.wrapping_add(at) as i64).collect()
}

fn chunks(workers: u64, delay: Option<u64>) -> TableSpec {
    // Chunks do not end where the servers' key ranges do.
    let range = KeyRange::new(0, workers * CHUNK_KEYS).unwrap();
    TableSpec::new(1, "chunks", ValueType::I64, 1)
        .handle("assign")
        .keys(range)
        .dense()
        .consistency(Model::DataCentric { delay, chunk_keys: CHUNK_KEYS }, workers as u32)
}

fn own_keys(rank: u64) -> Vec<u64> {
    (rank * CHUNK_KEYS..(rank + 1) * CHUNK_KEYS).collect()
}

/// The end of a run of the parameter database's program.
pub(crate) struct Ran {
    /// Each worker's last read.
    pub(crate) ends: Vec<Vec<i64>>,
    pub(crate) histories: Histories,
}

/// Runs the program of the parameter database.
pub(crate) fn parameter_database(
    seed: u64,
    workers: u64,
    iterations: u64,
    delay: Option<u64>,
) -> Ran {
    let ends = Arc::new(Mutex::new(vec![Vec::new(); workers as usize]));
    let results = ends.clone();
    let histories = run(seed, workers, move |network, worker, rank, draws| {
        let table = worker.admin().create_table(&chunks(workers, delay)).unwrap();
        worker.clocks(table).join().unwrap();
        let all: Vec<u64> = (0..workers * CHUNK_KEYS).collect();
        for clock in 1..=iterations {
            // Chunk by chunk or all at once.
            let read = if draws.below(2) == 0 {
                pull(worker, table, &all)
            } else {
                let each = (0..workers).map(|chunk| worker.pull(table, &own_keys(chunk)).unwrap());
                let each: Vec<_> = each.collect();
                let values =
                    each.into_iter().map(|pulled| worker.wait(pulled).unwrap().values().to_vec());
                values.collect::<Vec<Vec<i64>>>().concat()
            };
            network.sleep(Duration::from_micros(draws.below(300)));
            let next = mix(rank, clock, &read);
            let pushed = worker.clocks(table).push_last(&own_keys(rank), &next).unwrap();
            if draws.below(2) == 0 {
                worker.wait(pushed).unwrap();
            }
        }
        let last = pull(worker, table, &all);
        ends.lock().unwrap()[rank as usize] = last;
    });
    Ran { ends: Arc::try_unwrap(results).unwrap().into_inner().unwrap(), histories }
}

#[test]
fn data_centric_without_delay_is_the_serial_run() {
    const ITERATIONS: u64 = 6;
    for_each_seed(60, |seed| {
        let workers = 2 + seed % 4;
        let mut serial = vec![0i64; (workers * CHUNK_KEYS) as usize];
        for clock in 1..=ITERATIONS {
            serial = (0..workers).flat_map(|rank| mix(rank, clock, &serial)).collect();
        }
        for read in parameter_database(seed, workers, ITERATIONS, Some(0)).ends {
            assert_eq!(read, serial, "seed {seed}");
        }
    });
}

#[test]
fn data_centric_with_delay_ends() {
    for_each_seed(30, |seed| {
        let delay = [Some(1), Some(3), None][(seed / 3 % 3) as usize];
        parameter_database(seed, 2 + seed % 4, 6, delay);
    });
}
