//! Goal: every handle does to a row what its formula says, to the bit, whatever the number of
//! servers, the store, the width and the way keys are put into requests; rows begin with the
//! table's initial values; hidden values never leave the server.
//! Method: whole clusters on the simulated van, compared with the formulas on one thread.

use std::sync::atomic::Ordering;

use crate::support::simulated::{Draws, connect, start, weather};
use caravan_kv::filter::Draws as Uniform;
use caravan_kv::server::{Origin, Rule};
use caravan_kv::{Handles, Initial, Table, TableSpec, ValueType, Worker};
use caravan_van::sim::{Faults, Network, for_each_seed};
use caravan_van::{KeyRange, Value, bf16, f16};
use serde_json::{Value as Json, json};

const ARITHMETIC: [&str; 7] = ["add", "assign", "sub", "mul", "div", "min", "max"];
const BITWISE: [&str; 3] = ["and", "or", "xor"];
const OPTIMISERS: [&str; 5] = ["sgd", "momentum", "adagrad", "adam", "ftrl"];

/// Rows of a table.
const ROWS: u64 = 240;

/// A value and its hidden state, as plain as can be.
#[derive(Debug, Clone, Copy)]
struct Cell<V> {
    shown: V,
    hidden: [f64; 4],
}

/// What the formulas of all handles for a type say.
trait Formulas: Value {
    const HANDLES: &'static [&'static str];

    fn draw(draws: &mut Draws) -> Self;

    fn initial(spec: &TableSpec, key: u64, column: usize) -> Self;

    fn begin(spec: &TableSpec, shown: Self) -> Cell<Self>;

    fn push(spec: &TableSpec, clock: u64, cell: &mut Cell<Self>, pushed: Self);
}

fn option(spec: &TableSpec, name: &str) -> f64 {
    spec.options[name].as_f64().unwrap()
}

macro_rules! integers {
    ($($of:ty),*) => {$(
        impl Formulas for $of {
            const HANDLES: &'static [&'static str] = &[
                "add", "assign", "sub", "mul", "div", "min", "max", "and", "or", "xor"
            ];

            fn draw(draws: &mut Draws) -> Self {
                let small = draws.below(4) > 0;
                let bits = draws.below(1 << 31) << 33 | draws.below(1 << 31) << 16;
                if small { draws.below(7) as $of } else { bits.rotate_left(32) as $of }
            }

            fn initial(spec: &TableSpec, _: u64, _: usize) -> Self {
                match &spec.initial {
                    Initial::Constant(text) => text.parse().unwrap(),
                    _ => 0,
                }
            }

            fn begin(_: &TableSpec, shown: Self) -> Cell<Self> {
                Cell { shown, hidden: [0.0; 4] }
            }

            fn push(spec: &TableSpec, _: u64, cell: &mut Cell<Self>, pushed: Self) {
                let w = cell.shown;
                cell.shown = match &*spec.handle {
                    "add" => w.wrapping_add(pushed),
                    "assign" => pushed,
                    "sub" => w.wrapping_sub(pushed),
                    "mul" => w.wrapping_mul(pushed),
                    "div" if pushed == 0 => w,
                    "div" => w.wrapping_div(pushed),
                    "min" => w.min(pushed),
                    "max" => w.max(pushed),
                    "and" => w & pushed,
                    "or" => w | pushed,
                    "xor" => w ^ pushed,
                    other => panic!("{other}"),
                };
            }
        }
    )*};
}
integers!(i32, i64, u8, u32, u64);

macro_rules! floats {
    ($($of:ty, $real:ty: $widen:expr, $round:expr, $from_f64:expr;)*) => {$(
        impl Formulas for $of {
            const HANDLES: &'static [&'static str] = &[
                "add", "assign", "sub", "mul", "div", "min", "max",
                "sgd", "momentum", "adagrad", "adam", "ftrl"
            ];

            fn draw(draws: &mut Draws) -> Self {
                let value = (draws.below(8) as f64 + 1.0) / 4.0;
                $from_f64(if draws.below(2) == 0 { -value } else { value })
            }

            fn initial(spec: &TableSpec, key: u64, column: usize) -> Self {
                match &spec.initial {
                    Initial::Zero => Self::default(),
                    Initial::Constant(text) => text.parse().unwrap(),
                    &Initial::Uniform { low, high, seed } => {
                        let seed = Uniform::new(seed, u64::from(spec.id)).next_bits();
                        let mut draws = Uniform::new(seed, key);
                        let share = (0..=column).map(|_| draws.next_unit()).last().unwrap();
                        $from_f64(low * (1.0 - share) + high * share)
                    }
                }
            }

            fn begin(spec: &TableSpec, shown: Self) -> Cell<Self> {
                let mut hidden = [0.0; 4];
                let of = |name| option(spec, name) as $real;
                let w: $real = $widen(shown);
                match &*spec.handle {
                    "adagrad" => hidden[0] = f64::from(of("squares")),
                    "ftrl" if w != 0.0 => {
                        let steepness = (of("beta") + 0.0) / of("rate") + of("l2");
                        hidden[0] = f64::from(-(w * steepness) - of("l1").copysign(w));
                    }
                    _ => {}
                }
                Cell { shown, hidden }
            }

            fn push(spec: &TableSpec, clock: u64, cell: &mut Cell<Self>, pushed: Self) {
                let of = |name| option(spec, name) as $real;
                let w: $real = $widen(cell.shown);
                let g: $real = $widen(pushed);
                let [a, b, c, d] = &mut cell.hidden.map(|x| x as $real);
                let w = match &*spec.handle {
                    "add" => w + g,
                    "assign" => g,
                    "sub" => w - g,
                    "mul" => w * g,
                    "div" => w / g,
                    "min" => w.min(g),
                    "max" => w.max(g),
                    "sgd" => {
                        let rate = option(spec, "rate");
                        let rate = rate / (1.0 + option(spec, "decay") * clock as f64);
                        w - g * rate as $real
                    }
                    "momentum" => {
                        *a = of("momentum") * *a - of("rate") * g;
                        w + *a
                    }
                    "adagrad" => {
                        *a += g * g;
                        w - of("rate") * g / (a.sqrt() + of("epsilon"))
                    }
                    "adam" => {
                        let share1 = (1.0 - option(spec, "beta1")) as $real;
                        let share2 = (1.0 - option(spec, "beta2")) as $real;
                        *a += share1 * (1.0 - *a);
                        *b += share2 * (1.0 - *b);
                        *c += share1 * (g - *c);
                        *d += share2 * (g * g - *d);
                        w - of("rate") * (*c / *a) / ((*d / *b).sqrt() + of("epsilon"))
                    }
                    "ftrl" => {
                        let s = (*b + g * g).sqrt();
                        *a += g - (s - b.sqrt()) / of("rate") * w;
                        *b += g * g;
                        match a.abs() <= of("l1") {
                            true => 0.0,
                            false => {
                                (of("l1").copysign(*a) - *a)
                                    / ((of("beta") + s) / of("rate") + of("l2"))
                            }
                        }
                    }
                    other => panic!("{other}"),
                };
                cell.hidden = [*a, *b, *c, *d].map(f64::from);
                cell.shown = $round(w);
            }
        }
    )*};
}
floats! {
    f32, f32: |x| x, |x| x, |x: f64| x as f32;
    f64, f64: |x| x, |x| x, |x| x;
    f16, f32: f16::to_f32, f16::from_f32, f16::from_f64;
    bf16, f32: bf16::to_f32, bf16::from_f32, bf16::from_f64;
}

/// Random options of a handle, all named.
fn options(handle: &str, draws: &mut Draws) -> Json {
    let mut of = |choices: &[f64]| choices[draws.below(choices.len() as u64) as usize];
    let rate = of(&[0.1, 0.003, 1.5]);
    match handle {
        "sgd" => json!({"rate": rate, "decay": of(&[0.0, 0.1])}),
        "momentum" => json!({"rate": rate, "momentum": of(&[0.0, 0.9])}),
        "adagrad" => {
            json!({"rate": rate, "epsilon": of(&[1e-8, 1.0]), "squares": of(&[0.0, 0.1])})
        }
        "adam" => {
            let [beta1, beta2] = [of(&[0.0, 0.9]), of(&[0.5, 0.999])];
            json!({"rate": rate, "beta1": beta1, "beta2": beta2, "epsilon": 1e-6})
        }
        "ftrl" => {
            let [l1, l2] = [of(&[0.0, 1.3]), of(&[0.0, 0.2])];
            json!({"rate": rate, "beta": of(&[1.0, 0.25]), "l1": l1, "l2": l2})
        }
        _ => Json::Null,
    }
}

/// A random table with a handle, and its keys.
fn table<V: Value>(handle: &str, draws: &mut Draws) -> (TableSpec, Vec<u64>) {
    let value = ValueType::of::<V>().unwrap();
    let width = [1, 1, 2, 3, 17, 40][draws.below(6) as usize];
    let spec = TableSpec::new(1 + draws.below(9) as u32, handle, value, width);
    let is_float = !value.is_integer();
    let initial = match draws.below(3) {
        1 => Initial::constant(3),
        2 if is_float => Initial::Uniform { low: -1.0, high: 0.5, seed: draws.below(99) },
        _ => Initial::Zero,
    };
    let filters = ["", "", "zero,snappy", "mask,key-cache"][draws.below(4) as usize];
    let spec = spec.handle(handle).options(options(handle, draws)).initial(initial);
    let spec = spec.filters(filters.parse().unwrap());
    let first = u64::MAX - 2 * ROWS;
    let (spec, step) = match draws.below(3) {
        0 => (spec.keys(KeyRange::new(first, first + ROWS).unwrap()).dense(), 1),
        1 => (spec.keys(KeyRange::new(first, first + ROWS).unwrap()), 1),
        _ => (spec, u64::MAX / ROWS),
    };
    let begin = spec.begin;
    (spec, (0..ROWS).map(|row| begin + row * step).collect())
}

/// Some of a worker's keys, by their place: all, consecutive ones, any, or one.
fn choose(count: u64, draws: &mut Draws) -> Vec<usize> {
    let at = draws.below(count);
    match draws.below(4) {
        0 => (0..count as usize).collect(),
        1 => (at..count.min(at + 1 + draws.below(50))).map(|at| at as usize).collect(),
        2 => (0..count as usize).filter(|_| draws.below(3) == 0).collect(),
        _ => vec![at as usize],
    }
}

/// A worker's pushes and pulls of keys that only it has, all checked.
fn follow<V: Formulas>(
    worker: &mut Worker,
    table: Table,
    spec: &TableSpec,
    keys: &[u64],
    draws: &mut Draws,
) {
    let width = spec.width as usize;
    let begin = |key: &u64| {
        let cell = |column| V::begin(spec, V::initial(spec, *key, column));
        (0..width).map(cell).collect()
    };
    let mut model: Vec<Vec<Cell<V>>> = keys.iter().map(begin).collect();
    for clock in 1..=12 {
        worker.set_clock(clock);
        let mine = choose(keys.len() as u64, draws);
        let named: Vec<u64> = mine.iter().map(|at| keys[*at]).collect();
        let values: Vec<V> = (0..mine.len() * width).map(|_| V::draw(draws)).collect();
        let both = match draws.below(3) {
            // Several requests, none of which is waited for.
            0 => {
                let cut = draws.below(named.len() as u64 + 1) as usize;
                let (first, last) = named.split_at(cut);
                worker.push(table, first, &values[..cut * width]).unwrap();
                worker.push(table, last, &values[cut * width..]).unwrap();
                worker.pull(table, &named).unwrap()
            }
            _ => worker.push_pull(table, &named, &values).unwrap(),
        };
        for (at, pushed) in mine.iter().zip(values.chunks(width)) {
            let cells = model[*at].iter_mut().zip(pushed);
            cells.for_each(|(cell, pushed)| V::push(spec, clock, cell, *pushed));
        }
        let others = choose(keys.len() as u64, draws);
        let pulled = others.iter().map(|at| keys[*at]).collect::<Vec<_>>();
        let pulled = worker.pull(table, &pulled).unwrap();
        for (request, rows) in [(both, mine), (pulled, others)] {
            let answer = worker.wait(request).unwrap();
            let expected: Vec<V> =
                rows.iter().flat_map(|at| model[*at].iter().map(|cell| cell.shown)).collect();
            assert!(
                answer.bytes() == V::bytes(&expected),
                "clock {clock}, {spec:?}:\n{:?} is not\n{expected:?}",
                answer.values::<V>()
            );
        }
    }
}

/// A cluster of random shape with one table, whose rows two workers share out.
fn run<V: Formulas>(seed: u64, handle: &str) {
    let network = Network::new(seed, weather(seed));
    let mut draws = Draws(seed);
    let servers = 1 + draws.below(4);
    let (addresses, stop) = start(&network, servers as usize, &Handles::default(), |server| server);
    let (spec, keys) = table::<V>(handle, &mut draws);
    let (first, last) = keys.split_at(draws.below(ROWS - 1) as usize + 1);
    let nodes: Vec<_> = [first, last]
        .into_iter()
        .zip(0..)
        .map(|(keys, node)| {
            let (addresses, spec, keys) = (addresses.clone(), spec.clone(), keys.to_vec());
            network.spawn(&format!("worker {node}"), move |network| {
                let mut worker = connect(network, 100 + node, &addresses);
                let table = worker.admin().create_table(&spec).unwrap();
                let mut draws = Draws(seed << 8 | u64::from(node));
                follow::<V>(&mut worker, table, &spec, &keys, &mut draws);
            })
        })
        .collect();
    for node in nodes {
        node.join().unwrap_or_else(|stopped| panic!("{stopped}"));
    }
    stop.store(true, Ordering::Relaxed);
}

fn equals_its_formula<V: Formulas>(seeds: u64) {
    for_each_seed(seeds, |seed| {
        for handle in V::HANDLES {
            run::<V>(seed, handle);
        }
    });
}

#[test]
fn handles_of_floats_equal_their_formulas_to_the_bit() {
    equals_its_formula::<f32>(20);
    equals_its_formula::<f64>(20);
}

#[test]
fn handles_of_halves_equal_their_formulas_to_the_bit() {
    equals_its_formula::<f16>(10);
    equals_its_formula::<bf16>(10);
}

#[test]
fn handles_of_integers_equal_their_formulas_to_the_bit() {
    equals_its_formula::<i32>(10);
    equals_its_formula::<i64>(10);
    equals_its_formula::<u8>(10);
    equals_its_formula::<u32>(5);
    equals_its_formula::<u64>(5);
}

/// Runs `body` with a worker of a cluster without faults.
fn alone<T: Send + 'static>(
    servers: usize,
    handles: &Handles,
    body: impl FnOnce(&mut Worker) -> T + Send + 'static,
) -> T {
    let network = Network::new(1, Faults::none());
    let (addresses, stop) = start(&network, servers, handles, |server| server);
    let node = network.spawn("worker", move |network| body(&mut connect(network, 100, &addresses)));
    let result = node.join().unwrap_or_else(|stopped| panic!("{stopped}"));
    stop.store(true, Ordering::Relaxed);
    result
}

/// Random rows that nobody has pushed to, of one key and of many.
#[test]
fn any_number_of_servers_begins_with_the_same_random_rows() {
    let pull = |servers, id| {
        alone(servers, &Handles::default(), move |worker| {
            let initial = Initial::Uniform { low: -1.0, high: 1.0, seed: 7 };
            let spec = TableSpec::new(id, "random", ValueType::F32, 5).initial(initial);
            let table = worker.admin().create_table(&spec).unwrap();
            let keys: Vec<u64> = (0..200).map(|n| n * (u64::MAX / 200)).collect();
            let all = worker.pull(table, &keys).unwrap();
            let all = worker.wait(all).unwrap().values::<f32>().to_vec();
            let one = worker.pull(table, &keys[77..78]).unwrap();
            assert_eq!(worker.wait(one).unwrap().values::<f32>(), &all[77 * 5..78 * 5]);
            all
        })
    };
    let rows = pull(1, 4);
    for servers in [2, 3, 7] {
        assert_eq!(pull(servers, 4), rows, "{servers} servers");
    }
    assert_ne!(pull(1, 5), rows, "another table has others");
}

/// The same requests to a table with hidden values and to one without are as many bytes.
#[test]
fn hidden_values_never_leave_the_server() {
    let traffic = |handle: &'static str| {
        alone(2, &Handles::default(), move |worker| {
            let spec = TableSpec::new(1, "weights", ValueType::F32, 6).handle(handle);
            let table = worker.admin().create_table(&spec).unwrap();
            let before = worker.info().counters();
            let keys: Vec<u64> = (0..300).map(|n| n * (u64::MAX / 300)).collect();
            for count in [1, 300, 7] {
                let values = vec![1.0_f32; count * 6];
                let both = worker.push_pull(table, &keys[..count], &values).unwrap();
                assert_eq!(worker.wait(both).unwrap().values::<f32>().len(), count * 6);
                let pulled = worker.pull(table, &keys[..count]).unwrap();
                assert_eq!(worker.wait(pulled).unwrap().values::<f32>().len(), count * 6);
            }
            let after = worker.info().counters();
            [after.bytes_sent - before.bytes_sent, after.bytes_received - before.bytes_received]
        })
    };
    let plain = traffic("add");
    assert!(plain[1] > 300 * 24, "{plain:?}");
    for handle in OPTIMISERS {
        assert_eq!(traffic(handle), plain, "{handle}");
    }
}

/// Counts the pushes of each row where nobody sees it, and shows who pushed, when, and how often.
struct Witness;

impl Rule<i64> for Witness {
    type Hidden = u8;

    fn hidden(&self, _width: usize) -> usize {
        1
    }

    fn init(&mut self, key: u64, stored: &[i64], hidden: &mut [u8]) {
        assert_eq!(stored, [9; 4], "rows begin with what the table says");
        hidden[0] = key as u8;
    }

    fn apply(
        &mut self,
        origin: Origin,
        key: u64,
        stored: &mut [i64],
        hidden: &mut [u8],
        pushed: &[i64],
    ) {
        hidden[0] += 1;
        let pushes = i64::from(hidden[0] - key as u8);
        stored.copy_from_slice(&[i64::from(origin.sender), origin.clock as i64, pushes, pushed[3]]);
    }
}

#[test]
fn rules_know_sender_and_clock_and_keep_hidden_values() {
    let handles = Handles::default().with_rule("witness", |_| Witness);
    alone(3, &handles, |worker| {
        for (id, spec) in [(1, TableSpec::dense as fn(_) -> _), (2, |spec| spec)] {
            let range = KeyRange::new(0, 100).unwrap();
            let plain = TableSpec::new(id, "witness", ValueType::I64, 4).keys(range);
            let spec = spec(plain).handle("witness").initial(Initial::constant(9));
            let table = worker.admin().create_table(&spec).unwrap();
            for (clock, keys) in [(3, vec![4, 5, 6, 7, 70]), (4, vec![5]), (8, vec![4, 5, 99])] {
                worker.set_clock(clock);
                let values: Vec<i64> = (0..4 * keys.len() as i64).collect();
                worker.push(table, &keys, &values).unwrap();
            }
            let pulled = worker.pull(table, &[4, 5, 6, 98]).unwrap();
            let expected = [[100, 8, 2, 3], [100, 8, 3, 7], [100, 3, 1, 11], [9, 9, 9, 9]];
            assert_eq!(worker.wait(pulled).unwrap().values::<i64>(), expected.concat());
        }
    });
}

/// A row of its own length takes its initial values with its length.
#[test]
fn rows_of_their_own_lengths_begin_with_the_initial_values() {
    alone(2, &Handles::default(), |worker| {
        let spec = TableSpec::new(1, "least", ValueType::F64, 0).handle("min");
        let spec = spec.initial(Initial::constant(f64::INFINITY));
        let table = worker.admin().create_table(&spec).unwrap();
        for values in [[5.0, 7.0, -1.0], [6.0, 2.0, -2.0]] {
            worker.push_varying(table, &[3, u64::MAX], &[2, 1], &values).unwrap();
        }
        let pulled = worker.pull(table, &[2, 3, u64::MAX]).unwrap();
        let answer = worker.wait(pulled).unwrap();
        assert_eq!(answer.lengths, [0, 2, 1]);
        assert_eq!(answer.values::<f64>(), [5.0, 2.0, -2.0]);
    });
}

#[test]
fn what_a_handle_cannot_do_is_refused_with_the_reason() {
    alone(2, &Handles::default(), |worker| {
        let spec =
            |handle: &str, value, width| TableSpec::new(1, "weights", value, width).handle(handle);
        let adam = |options: Json| spec("adam", ValueType::F32, 1).options(options);
        let sum = || spec("add", ValueType::I32, 1);
        for (spec, says) in [
            (adam(json!({"rate": f64::NAN})), "option rate is null, and must be a number"),
            (adam(json!({"rate": "fast"})), "option rate is \"fast\", and must be a number"),
            (adam(json!({"rate": 0.0})), "option rate is 0.0, and must be a number above 0"),
            (
                adam(json!({"rate": 1e39})),
                "option rate is 1e39, and must be a number above 0 as f32",
            ),
            (
                adam(json!({"beta1": 1.0})),
                "option beta1 is 1.0, and must be a number 0 or more and below 1",
            ),
            (adam(json!({"epsilon": 1e-60})), "option epsilon is 1e-60"),
            (adam(json!({"beta": 0.5})), "unknown field `beta`, expected one of `rate`, `beta1`"),
            (adam(json!({"ŕ".repeat(1000): 1})), "… ŕŕ"),
            (adam(json!({"r".repeat(1000): 1})), "rr`, expected one of `rate`, `beta1`"),
            (adam(json!([1])), "options are [1], and must be an object"),
            (spec("ftrl", ValueType::F64, 1).options(json!({"l1": -1})), "option l1 is -1.0"),
            (spec("sgd", ValueType::F64, 1).options(json!({"decay": -1})), "option decay is -1.0"),
            (
                spec("adam", ValueType::I32, 1),
                "it is for f32, f64, f16 and bf16 values, and the table holds i32",
            ),
            (
                spec("xor", ValueType::F32, 1),
                "it is for i32, i64, u8, u32 and u64 values, and the table holds f32",
            ),
            (spec("adam", ValueType::F32, 0), "the width is 1 or more, not 0"),
            (sum().options(json!({"rate": 1})), "options are {\"rate\":1}, and it takes none"),
            (spec("max", ValueType::I32, 1).options(json!(3)), "options are 3, and it takes none"),
            (sum().initial(Initial::constant(0.5)), "the constant \"0.5\", which must be a i32"),
            (sum().initial(Initial::Uniform { low: 0.0, high: 1.0, seed: 0 }), "random integers"),
        ] {
            let error = worker.admin().create_table(&spec).unwrap_err().to_string();
            assert!(error.contains(says) && error.contains("weights"), "{error}");
            assert!(error.len() < 800, "{error}");
        }
        let error =
            worker.admin().create_table(&spec("adamw", ValueType::F32, 1)).unwrap_err().to_string();
        let known = ARITHMETIC.iter().chain(&BITWISE).chain(&OPTIMISERS);
        assert!(known.clone().all(|name| error.contains(name)), "{error}");
    });
}
