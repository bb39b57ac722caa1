//! Goal: vectors at servers hold what a plain loop computes, to the bit, for any number of servers,
//! while shards move, while checkpoints are written, and when servers with copies die.
//! Method: real servers on a van, and whole clusters on the simulated van, beside the same steps on
//! vectors in memory. A failure of a simulation prints its seed; `CARAVAN_SEED=<seed> cargo test`
//! replays it.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::Duration;

use crate::support::simulated::{Draws, connect, start, weather};
use crate::support::{Servers, any, config};
use caravan_kv::checkpoint::{Checkpoints, Folder};
use caravan_kv::vector::{self, ExactSum, Step, Vector, Vectors};
use caravan_kv::{Handles, Placement, Runs, Table, TableSpec, ValueType, Worker};
use caravan_van::Value;
use caravan_van::sim::{Faults, Network, for_each_seed};
use half::{bf16, f16};

const LENGTH: u64 = 150;
const COUNT: u32 = 4;

fn spec(value: ValueType) -> TableSpec {
    vector::spec(3, "vectors", value, LENGTH, COUNT)
}

/// The same vectors in memory, as `f64`.
struct Mirror {
    vectors: Vec<Vec<f64>>,
    /// Rounds to the type that computes.
    real: fn(f64) -> f64,
    /// Rounds to the table's type.
    round: fn(f64) -> f64,
}

impl Mirror {
    fn new([real, round]: [fn(f64) -> f64; 2]) -> Mirror {
        Mirror { vectors: vec![vec![0.0; LENGTH as usize]; COUNT as usize], real, round }
    }

    fn exact() -> Mirror {
        Mirror::new([|it| it; 2])
    }

    fn of(&self, vector: Vector) -> &[f64] {
        &self.vectors[vector.0 as usize]
    }

    fn put(&mut self, into: Vector, of: impl Fn(usize) -> f64) {
        self.vectors[into.0 as usize] =
            (0..LENGTH as usize).map(|at| (self.round)((self.real)(of(at)))).collect();
    }

    /// Executes a step; returns its sum, 0 if it has none.
    fn execute(&mut self, step: Step) -> f64 {
        let real = self.real;
        let copy = |vector: Vector| self.vectors[vector.0 as usize].clone();
        let mut sum = ExactSum::default();
        match step {
            Step::Fill { a, x } => self.put(x, |_| a),
            Step::Scale { a, x, into } => {
                let x = copy(x);
                self.put(into, |at| a * x[at]);
            }
            Step::Combine { a, x, b, y, into } => {
                let (x, y) = (copy(x), copy(y));
                self.put(into, |at| real(a * x[at]) + real(b * y[at]));
            }
            Step::Multiply { x, y, into } => {
                let (x, y) = (copy(x), copy(y));
                self.put(into, |at| x[at] * y[at]);
            }
            Step::Dot { x, y } => {
                self.of(x).iter().zip(self.of(y)).for_each(|(x, y)| sum.add(x * y));
            }
            Step::Sum { x } => self.of(x).iter().for_each(|x| sum.add(*x)),
        }
        sum.value()
    }

    fn push(&mut self, into: Vector, keys: &[u64], values: &[f64]) {
        let vector = &mut self.vectors[into.0 as usize];
        for (key, value) in keys.iter().zip(values) {
            let place = &mut vector[*key as usize];
            *place = (self.round)((self.real)(*place + value));
        }
    }
}

/// A vector.
fn draw(draws: &mut Draws) -> Vector {
    Vector(draws.below(COUNT.into()) as u32)
}

/// A number that needs few digits, up to 1 in size.
fn draw_factor(draws: &mut Draws) -> f64 {
    (draws.below(17) as f64 - 8.0) / 8.0
}

fn draw_step(draws: &mut Draws, mirror: &Mirror) -> Step {
    let [x, y, into] = [(); 3].map(|()| draw(draws));
    let [a, b] = [(); 2].map(|()| draw_factor(draws));
    if mirror.of(x).iter().any(|it| it.abs() > 1e3) {
        return Step::Fill { a, x };
    }
    match draws.below(8) {
        0 => Step::Scale { a, x, into },
        1 => Step::Multiply { x, y, into },
        2 => Step::copy(x, into),
        3 => Step::axpy(a, x, into),
        4 => Step::Sum { x },
        5 => Step::Dot { x, y },
        _ => Step::Combine { a, x, b, y, into },
    }
}

/// What `work` does.
struct Course {
    rounds: u64,
    seed: u64,
    /// Whether steps are posted while a pull is under way. A pull that is posted again after a loss
    /// may see them.
    overlaps: bool,
}

/// Steps, pushes and pulls at random; checks everything that comes back.
fn work<V: Value>(
    worker: &mut Worker,
    spec: &TableSpec,
    mirror: &mut Mirror,
    of: fn(f64) -> V,
    course: Course,
) -> Vectors {
    let Course { rounds, seed, overlaps } = course;
    let mut draws = Draws(seed);
    let vectors = Vectors::create(worker, spec).unwrap();
    worker.set_command(-3);
    for round in 0..rounds {
        let vector = draw(&mut draws);
        let keys: Vec<u64> = match draws.below(3) {
            0 => (0..LENGTH).collect(),
            _ => (0..LENGTH).filter(|_| draws.below(9) == 0).collect(),
        };
        let values: Vec<f64> = keys.iter().map(|_| draw_factor(&mut draws)).collect();
        let pushed: Vec<V> = values.iter().map(|value| of(*value)).collect();
        mirror.push(vector, &keys, &values);
        let pushed = match keys.len() as u64 {
            LENGTH => vectors.push(worker, vector, &Runs::range(0..LENGTH), &pushed),
            _ => vectors.push(worker, vector, &keys, &pushed),
        };
        let pulled = vectors.pull(worker, vector, &keys).unwrap();
        let expected: Vec<V> =
            keys.iter().map(|key| of(mirror.of(vector)[*key as usize])).collect();
        let check = |worker: &mut Worker| {
            let found = worker.wait(pulled).unwrap();
            assert_eq!(found.values::<V>(), expected, "seed {seed}, round {round}");
        };
        if !overlaps {
            check(worker);
        }
        let mut steps = Vec::new();
        let mut sums = Vec::new();
        for _ in 0..1 + draws.below(4) {
            let step = draw_step(&mut draws, mirror);
            let sum = mirror.execute(step);
            steps.push(step);
            sums.extend(step.sums().then_some(sum));
        }
        let found = vectors.run(worker, &steps).unwrap();
        assert_eq!(found, sums, "seed {seed}, round {round}: {steps:?}");
        worker.wait(pushed.unwrap()).unwrap();
        if overlaps {
            check(worker);
        }
    }
    for number in 0..COUNT {
        let found = vectors.pull(worker, Vector(number), &Runs::range(0..LENGTH)).unwrap();
        let found = worker.wait(found).unwrap();
        let expected: Vec<V> = mirror.of(Vector(number)).iter().map(|it| of(*it)).collect();
        assert_eq!(found.values::<V>(), expected, "seed {seed}: vector {number}");
    }
    vectors
}

/// As `work`, with one and with five servers, and several shards each.
fn on_servers<V: Value>(value: ValueType, rounds: [fn(f64) -> f64; 2], of: fn(f64) -> V) {
    for (servers, shards) in [(1, 1), (2, 3), (5, 1)] {
        let servers = Servers::start(any(), servers, &config(16, 64 << 20), &Handles::default());
        let spec = spec(value).placement(Placement::Even(shards));
        let course = Course { rounds: 60, seed: shards.into(), overlaps: true };
        work(&mut servers.worker(), &spec, &mut Mirror::new(rounds), of, course);
    }
}

#[test]
fn steps_are_those_of_a_plain_loop() {
    // Products of two `f32` are exact as `f64`; the nearest `f32` of a sum is that of its `f64`.
    let single = |it: f64| f64::from(it as f32);
    on_servers(ValueType::F64, [|it| it; 2], |it| it);
    on_servers(ValueType::F32, [single; 2], |it| it as f32);
    let half = |it: f64| f64::from(f16::from_f32(it as f32));
    on_servers(ValueType::F16, [single, half], f16::from_f64);
    let half = |it: f64| f64::from(bf16::from_f32(it as f32));
    on_servers(ValueType::BF16, [single, half], bf16::from_f64);
}

/// Numbers of many sizes, whose plain sum depends on the order, have one sum on any servers.
#[test]
fn a_dot_has_the_same_bits_on_any_servers() {
    let mut draws = Draws(5);
    let mut draw = || (draws.below(1 << 30) as f64 - 5e8) * (draws.below(80) as f64 - 40.0).exp2();
    let values: [Vec<f64>; 2] = [(); 2].map(|()| (0..LENGTH).map(|_| draw()).collect());
    let mut sum = ExactSum::default();
    values[0].iter().zip(&values[1]).for_each(|(x, y)| sum.add(x * y));
    let plain: f64 = values[0].iter().zip(&values[1]).map(|(x, y)| x * y).sum();
    let turned: f64 = values[0].iter().zip(&values[1]).rev().map(|(x, y)| x * y).sum();
    assert_ne!(plain, turned, "these numbers would show nothing");
    let [x, y] = [Vector(0), Vector(1)];
    for count in [1, 2, 3, 7] {
        let servers = Servers::start(any(), count, &config(16, 64 << 20), &Handles::default());
        let mut worker = servers.worker();
        let vectors = Vectors::create(&mut worker, &spec(ValueType::F64)).unwrap();
        for (vector, values) in [(x, &values[0]), (y, &values[1])] {
            vectors.push(&mut worker, vector, &Runs::range(0..LENGTH), values).unwrap();
        }
        assert_eq!(vectors.dot(&mut worker, x, y).unwrap(), sum.value(), "{count} servers");
        let norm = vectors.norm(&mut worker, x).unwrap();
        assert_eq!(norm, vectors.dot(&mut worker, x, x).unwrap().sqrt());
    }
}

#[test]
fn what_is_wrong_is_refused_with_the_reason() {
    let servers = Servers::start(any(), 1, &config(16, 64 << 20), &Handles::default());
    let mut worker = servers.worker();
    let good = spec(ValueType::F64);
    let no_count = serde_json::json!({ "count": 0 });
    let sparse = TableSpec { store: caravan_kv::Store::Sparse, ..good.clone() };
    for (bad, says) in [
        (spec(ValueType::I64), "f32, f64, f16 and bf16"),
        (TableSpec { width: 2, ..good.clone() }, "width of 1"),
        (sparse, "dense"),
        (good.clone().options(no_count), "1 or more"),
        (good.clone().handle("add").options(serde_json::Value::Null), "handle add"),
        (vector::spec(9, "long", ValueType::F64, 1 << 40, 4), "CARAVAN_MEMORY"),
        (good.clone().initial(caravan_kv::Initial::constant(1)), "initial"),
    ] {
        let said = Vectors::create(&mut worker, &bad).unwrap_err().to_string();
        assert!(said.contains(says), "{said}");
    }
    let vectors = Vectors::create(&mut worker, &good).unwrap();
    vectors.fill(&mut worker, 2.0, Vector(3)).unwrap();
    let bad = [Step::Fill { a: 1.0, x: Vector(3) }, Step::copy(Vector(0), Vector(4))];
    let said = vectors.run(&mut worker, &bad).unwrap_err().to_string();
    assert!(said.contains("4 vectors"), "{said}");
    assert_eq!(vectors.run(&mut worker, &[Step::Sum { x: Vector(3) }]).unwrap(), [300.0]);
    for vector in [Vector(4), Vector(u32::MAX)] {
        let pulled = vectors.pull(&mut worker, vector, &[3, 5]).unwrap();
        let said = worker.wait(pulled).unwrap_err().to_string();
        assert!(said.contains("no vector"), "{said}");
        let pushed = vectors.push(&mut worker, vector, &[3], &[1.0]).unwrap();
        assert!(worker.wait(pushed).is_err());
    }
    let asked = worker.command(vectors.table(), b"bytes").unwrap();
    assert!(worker.wait(asked).unwrap_err().to_string().contains("no steps"));
}

fn addresses_of(worker: &mut Worker, table: Table) -> Vec<usize> {
    worker.info().shards(table).unwrap().iter().map(|shard| shard.server).collect()
}

/// One node moves shards and another writes checkpoints, while a worker computes.
#[test]
fn steps_go_on_while_shards_move_and_are_saved() {
    for_each_seed(25, |seed| {
        let network = Network::new(seed, weather(seed));
        let small_pieces = |server: caravan_kv::ServerThread| server.move_by(300);
        let (addresses, stop) = start(&network, 3, &Handles::default(), small_pieces);
        let spec = spec(ValueType::F64).placement(Placement::Even(2));
        let is_done = Arc::new(AtomicBool::new(false));
        let mover = {
            let (addresses, spec, is_done) = (addresses.clone(), spec.clone(), is_done.clone());
            network.spawn("mover", move |network| {
                let mut worker = connect(network, 200, &addresses);
                let table = worker.admin().create_table(&spec).unwrap();
                let mut draws = Draws(seed ^ 5);
                let mut moves = 0;
                while !is_done.load(Ordering::Relaxed) {
                    network.sleep(Duration::from_micros(draws.below(300)));
                    let shard = draws.below(6) as usize;
                    let key = worker.info().shards(table).unwrap()[shard].range.begin();
                    let before = addresses_of(&mut worker, table);
                    let moved =
                        worker.admin().move_shard(table, key, draws.below(3) as usize).unwrap();
                    worker.wait(moved).unwrap();
                    moves += u64::from(before != addresses_of(&mut worker, table));
                }
                moves
            })
        };
        let saver = {
            let (addresses, spec, is_done) = (addresses.clone(), spec.clone(), is_done.clone());
            network.spawn("saver", move |network| {
                let mut worker = connect(network, 201, &addresses);
                let folder = tempfile::tempdir().unwrap();
                let mut checkpoints = Checkpoints::new(Folder::new(folder.path()));
                while !is_done.load(Ordering::Relaxed) {
                    network.sleep(Duration::from_millis(2));
                    checkpoints.create(&mut worker, std::slice::from_ref(&spec)).unwrap();
                }
            })
        };
        let node = network.spawn("worker", move |network| {
            let mut worker = connect(network, 100, &addresses);
            let mut mirror = Mirror::exact();
            let course = Course { rounds: 40, seed, overlaps: true };
            work(&mut worker, &spec, &mut mirror, |it| it, course);
            is_done.store(true, Ordering::Relaxed);
        });
        node.join().unwrap_or_else(|stopped| panic!("seed {seed}: {stopped}"));
        let moves = mover.join().unwrap_or_else(|stopped| panic!("seed {seed}: {stopped}"));
        saver.join().unwrap_or_else(|stopped| panic!("seed {seed}: {stopped}"));
        assert!(moves > 0, "seed {seed}: nothing moved");
        stop.store(true, Ordering::Relaxed);
    });
}

/// A server dies while a worker computes. Its copies go on with every step executed once, and new
/// copies come beside them.
#[test]
fn steps_are_executed_once_when_a_server_dies() {
    for_each_seed(25, |seed| {
        let detection = Duration::from_millis(4);
        let network = Network::new(seed, Faults { detection, ..Faults::jittery() });
        let (addresses, stop) =
            start(&network, 3, &Handles::default(), |server| server.move_by(300));
        let spec = spec(ValueType::F64).placement(Placement::Even(2)).replicas(1);
        let (lost, has_begun) = (Arc::new(AtomicU64::new(0)), Arc::new(AtomicBool::new(false)));
        let worker = {
            let (lost, has_begun) = (lost.clone(), has_begun.clone());
            network.spawn("worker", move |network| {
                let mut worker = connect(network, 100, &addresses);
                let watch = move || {
                    let lost = lost.load(Ordering::Relaxed);
                    Ok((0..3).filter(|server| lost & 1 << server != 0).collect())
                };
                worker.admin().watch_servers(watch, Duration::from_micros(300));
                worker.admin().create_table(&spec).unwrap();
                has_begun.store(true, Ordering::Relaxed);
                let course = Course { rounds: 60, seed, overlaps: false };
                work(&mut worker, &spec, &mut Mirror::exact(), |it| it, course);
            })
        };
        let fate = network.spawn("fate", move |network| {
            let mut draws = Draws(seed ^ 9);
            while !has_begun.load(Ordering::Relaxed) {
                network.sleep(Duration::from_micros(100));
            }
            network.sleep(Duration::from_micros(draws.below(8000)));
            let server = draws.below(3);
            network.crash(&format!("server {server}"));
            network.sleep(Duration::from_micros(500 + draws.below(8000)));
            lost.fetch_or(1 << server, Ordering::Relaxed);
        });
        fate.join().unwrap_or_else(|stopped| panic!("seed {seed}: {stopped}"));
        worker.join().unwrap_or_else(|stopped| panic!("seed {seed}: {stopped}"));
        stop.store(true, Ordering::Relaxed);
    });
}
