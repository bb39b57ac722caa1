//! Goal: what trains in steps under any consistency model goes on without servers that die, if the
//! table has replicas: no push is lost, none counts twice, and no read is older than its model
//! allows. So it does while a server joins, and shards move about.
//! Method: the real driver, workers and servers as nodes of a simulated network, of which servers
//! crash. One worker, and under BSP and data-centric constraints several, are held against
//! `trainer::serial`, to the bit. Several push ones, which are counted at the end; topics keep
//! their counts; and gradients end near the serial objective.

use crate::support::example;
use std::fmt::Debug;
use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::time::Duration;

use caravan_kv::consistency::Model;
use caravan_kv::filter::Draws;
use caravan_kv::node::join_server;
use caravan_kv::{
    Apps, Cluster, ClusterConfig, Error, Handles, Launch, NodeConfig, TableSpec, ValueType,
};
use caravan_learn::trainer::{self, Job, Part, Rows, Step, Trained, Trainer, serial, train};
use caravan_learn::{fm, lda, linreg, sgd};
use caravan_van::sim::{Faults, Network, for_each_seed};
use example::Example;
use serde::{Deserialize, Serialize};
use serde_json::json;

const SERVERS: usize = 3;

/// Time from one death to the next: the loss is noticed, and a new copy is made.
const GAP: Duration = Duration::from_millis(40);

/// A run, and what becomes of its servers.
struct Fate {
    seed: u64,
    workers: usize,
    /// When servers die, each time another one, after the one before.
    dies: Vec<Duration>,
    /// Whether another server joins, and shards move all the time.
    moves: bool,
}

/// What comes of it.
struct Outlived<V> {
    trained: Trained<V>,
    took: Duration,
    /// Servers that died before its end.
    deaths: usize,
    /// Shards that have moved.
    moved: usize,
}

/// Has a server join, and moves shards of all tables about until the training has ended; returns
/// how many have moved. Some cannot, where too few servers are left.
fn shift(network: &Network, node: &NodeConfig, seed: u64, has_ended: &AtomicBool) -> usize {
    let cluster = Cluster::visit(node, "moves").unwrap();
    let mut client = cluster.client().unwrap();
    client.admin().set_namespace("");
    let joining = node.clone();
    network.spawn(&format!("server {SERVERS}"), move |_| {
        join_server(&joining, 1, &Handles::default(), false).unwrap()
    });
    let mut draws = Draws::new(seed, 7);
    let mut draw = |below: usize| draws.next_bits() as usize % below;
    let mut moved = 0;
    while !has_ended.load(Ordering::Relaxed) {
        network.sleep(Duration::from_millis(3));
        client.sleep(Duration::ZERO).unwrap();
        for spec in client.admin().list_tables("").unwrap() {
            let Ok(table) = client.admin().create_table(&spec) else { continue };
            let shards = client.info().shards(table).unwrap();
            let first = shards[draw(shards.len())].range.begin();
            let to = draw(client.info().addresses().count());
            let wish = client.admin().move_shard(table, first, to).unwrap();
            match client.wait(wish) {
                Ok(_) => moved += 1,
                Err(Error::Config(_) | Error::TableDropped { .. }) => {}
                Err(error) => panic!("seed {seed}: {error}"),
            }
        }
    }
    drop(client);
    cluster.shutdown().unwrap();
    moved
}

/// Trains on a simulated cluster, which allows as many losses as there are.
fn outlive<T: Trainer>(job: &Job<T::Settings>, fate: Fate) -> Outlived<T::Value>
where
    T::Settings: Send,
{
    let Fate { seed, workers, dies, moves } = fate;
    let network = Network::new(seed, Faults::jittery());
    let (job, began) = (job.clone(), Arc::new(AtomicBool::new(false)));
    let (losses, deaths) = (dies.len(), Arc::new(AtomicUsize::new(0)));
    let dying = {
        let (began, deaths) = (began.clone(), deaths.clone());
        network.spawn("fate", move |network| {
            while !began.load(Ordering::Relaxed) {
                network.sleep(Duration::from_micros(20));
            }
            for (at, after) in dies.into_iter().enumerate() {
                network.sleep(after);
                network.crash(&format!("server {}", (seed as usize + at) % SERVERS));
                deaths.fetch_add(1, Ordering::Relaxed);
            }
        })
    };
    let scheduler = network.spawn("scheduler", move |network| {
        let mut config = ClusterConfig { servers: SERVERS, workers, ..ClusterConfig::default() };
        config.node.server_losses_max = losses;
        let apps = trainer::app::<T>(Apps::default());
        let launch = Launch::Simulated(Handles::default(), apps);
        let mut cluster = Cluster::launch(&config, launch).unwrap();
        began.store(true, Ordering::Relaxed);
        let start = cluster.now();
        let has_ended = Arc::new(AtomicBool::new(false));
        let moves = moves.then(|| {
            let (node, has_ended) = (cluster.config().node.clone(), has_ended.clone());
            network.spawn("moves", move |network| shift(network, &node, seed, &has_ended))
        });
        let trained = train::<T>(&mut cluster, &job, |_| {}).unwrap();
        let (took, deaths) = (cluster.now() - start, deaths.load(Ordering::Relaxed));
        has_ended.store(true, Ordering::Relaxed);
        let moved = moves.map_or(0, |node| node.join().unwrap_or_else(|why| panic!("{why}")));
        cluster.shutdown().unwrap();
        Outlived { trained, took, deaths, moved }
    });
    let outlived = scheduler.join().unwrap_or_else(|stopped| panic!("seed {seed}: {stopped}"));
    drop(dying.join());
    outlived
}

/// A job with one copy of each shard.
fn copied<S: Clone>(settings: S, model: &str, passes: u64) -> Job<S> {
    let consistency: Model = model.parse().unwrap();
    Job { consistency, passes, replicas: 1, ..Job::new(settings) }
}

fn file(name: &str, text: &str) -> PathBuf {
    let path =
        std::env::temp_dir().join(format!("caravan-outliving-{name}-{}", std::process::id()));
    std::fs::write(&path, text).unwrap();
    path
}

/// The example set with its 60 keys all over the key space, so that each server has some.
fn example(name: &str) -> PathBuf {
    let text = Example::new().libsvm();
    let lines = text.lines().map(|line| {
        let words = line.split(' ').map(|word| match word.strip_suffix(":1") {
            Some(key) => format!("{}:1", key.parse::<u64>().unwrap() << 58),
            None => word.to_owned(),
        });
        words.collect::<Vec<_>>().join(" ") + "\n"
    });
    file(name, &lines.collect::<String>())
}

/// Runs of one worker, or under BSP of so many, are the serial one, wherever a server dies, and
/// where two die, the second when the first one's chains are filled up.
fn is_the_serial_run<T: Trainer>(job: &Job<T::Settings>, workers: usize, seeds: u64)
where
    T::Settings: Send,
    T::Value: Debug,
{
    let parts = Some(workers);
    let alone = serial::<T>(&Job { parts, ..job.clone() }, &Handles::default(), |_| {});
    let alone = alone.unwrap();
    let whole = outlive::<T>(job, Fate { seed: 1, workers, dies: Vec::new(), moves: false });
    assert!(alone.rows.keys.len() > 5 && whole.took > 4 * GAP, "{:?}", whole.took);
    // Several workers add up their parts of the objective in an order of their own.
    let expected = if workers == 1 { alone.objective } else { whole.trained.objective };
    let (mut deaths, mut moved) = (0, 0);
    for_each_seed(seeds, |seed| {
        let dies = match seed % 2 {
            0 => vec![whole.took * (1 + seed as u32 * 13 % 97) / 100],
            _ => vec![GAP * (1 + seed as u32 % 8) / 8, GAP],
        };
        let moves = seed % 4 >= 2;
        let found = outlive::<T>(job, Fate { seed, workers, dies, moves });
        let Trained { rows, objective, .. } = &found.trained;
        assert_eq!(*rows, alone.rows, "{} with seed {seed}", T::NAME);
        assert_eq!(objective.to_bits(), expected.to_bits(), "seed {seed}");
        deaths += found.deaths;
        moved += found.moved;
    });
    let took = whole.took;
    println!("{}: {deaths} deaths and {moved} moves in {seeds} runs of {took:?}", T::NAME);
    assert!(deaths > 0, "all runs ended before a server died");
    assert!(moved > 0, "no shard has moved");
}

#[test]
fn one_worker_is_the_serial_run_wherever_servers_die() {
    let examples = example("serial");
    for (rule, options, model) in [
        ("adam", json!({"rate": 0.02}), "ssp:0"),
        ("ftrl", json!({"rate": 0.3, "l1": 0.5}), "asp"),
        ("momentum", json!({"rate": 0.02}), "delay:2"),
    ] {
        let mut settings = sgd::Settings::new(vec![examples.clone()]);
        settings.descent = trainer::Descent { batch: 7, handle: rule.to_owned(), options };
        is_the_serial_run::<sgd::Sgd>(&copied(settings, model, 40), 1, 4);
    }
    let mut settings = fm::Settings::new(vec![examples.clone()]);
    settings.descent.batch = 20;
    is_the_serial_run::<fm::Fm>(&copied(settings, "ssp:2", 100), 1, 4);
    std::fs::remove_file(&examples).unwrap();

    let points = |at: u32| format!("{} 0:{} 1:{} 5:1 7:2\n", at % 2, at % 3, at % 7);
    let points = file("points", &(0..40).map(points).collect::<String>());
    let settings =
        linreg::Settings { files: vec![points.clone()], features: 8, rate: 0.5, steps: 100 };
    is_the_serial_run::<linreg::LinReg>(&copied(settings, "ssp:1", 10), 1, 4);
    std::fs::remove_file(&points).unwrap();
}

/// Pushes are applied in the order of ranks, by whichever server.
#[test]
fn several_workers_under_bsp_are_the_serial_run_wherever_servers_die() {
    let examples = example("ranks");
    let mut settings = sgd::Settings::new(vec![examples.clone()]);
    settings.descent.batch = 7;
    settings.descent.options = json!({"rate": 0.3});
    is_the_serial_run::<sgd::Sgd>(&copied(settings, "bsp", 20), 3, 12);
    std::fs::remove_file(&examples).unwrap();
}

/// Each writes a chunk of its own when all have read it, and whoever serves then knows who has.
#[test]
fn several_workers_under_data_centric_constraints_are_the_serial_run_wherever_servers_die() {
    let points = |at: u32| {
        let features = (0..24).map(|feature| format!(" {feature}:{}", (at * 7 + feature) % 5));
        format!("{}{}\n", at % 3, features.collect::<String>())
    };
    let points = file("chunks", &(0..60).map(points).collect::<String>());
    let settings =
        linreg::Settings { files: vec![points.clone()], features: 24, rate: 0.5, steps: 100 };
    is_the_serial_run::<linreg::LinReg>(&copied(settings, "data:0", 4), 3, 8);
    std::fs::remove_file(&points).unwrap();
}

/// Pushes ones: all parts to the same keys in a step.
struct Ones {
    settings: Counting,
    /// Pushes of each part to each key in earlier steps, the last `staleness + 1` of which others
    /// may lack.
    pushed: Vec<[i64; KEYS]>,
    parts: i64,
}

const KEYS: usize = 16;
const STEPS: u64 = 50;

#[derive(Clone, Serialize, Deserialize)]
struct Counting {
    /// Steps by which the pushes of others may be missing; none if nothing is said of them.
    staleness: Option<usize>,
}

/// Whether a step has a key; about every second one.
fn has(pass: u64, step: u64, key: usize) -> bool {
    Draws::new(pass * STEPS + step, 1).of(key as u64) < 0.5
}

impl Ones {
    fn columns(keys: &[u64]) -> impl Iterator<Item = usize> {
        keys.iter().map(|key| (key >> 60) as usize)
    }
}

impl Trainer for Ones {
    const NAME: &'static str = "ones";
    type Settings = Counting;
    type Value = i64;

    fn table(_: &Counting) -> TableSpec {
        TableSpec::new(1, "ones", ValueType::I64, 1)
    }

    fn load(settings: &Counting, part: &Part) -> Result<Self, String> {
        let pushed = vec![[0; KEYS]];
        Ok(Ones { settings: settings.clone(), pushed, parts: part.parts as i64 })
    }

    fn steps(&self) -> u64 {
        STEPS
    }

    fn keys(&self, pass: u64, step: u64) -> Vec<u64> {
        let own = (0..KEYS).filter(|key| has(pass, step, *key));
        own.map(|key| (key as u64) << 60).collect()
    }

    fn step(&mut self, step: &mut Step<'_, i64>) {
        let own = self.pushed[self.pushed.len() - 1];
        let others = match self.settings.staleness {
            Some(staleness) => self.pushed[self.pushed.len().saturating_sub(1 + staleness)..][0],
            None => [0; KEYS],
        };
        let mut next = own;
        for (at, key) in Ones::columns(step.keys).enumerate() {
            let least = own[key] + (self.parts - 1) * others[key];
            assert!(step.rows[at] >= least, "step {}: {} of {least}", step.step, step.rows[at]);
            next[key] += 1;
        }
        self.pushed.push(next);
        step.update.fill(1);
    }
}

/// Each push of a run of several workers is in the table once.
fn all_is_counted(model: &str, seeds: u64) {
    let staleness = model.strip_prefix("ssp:").map(|text| text.parse::<usize>().unwrap() + 1);
    let passes = 8;
    let job = copied(Counting { staleness }, model, passes);
    let whole = outlive::<Ones>(&job, Fate { seed: 1, workers: 3, dies: Vec::new(), moves: false });
    let steps = (0..passes).flat_map(|pass| (0..STEPS).map(move |step| (pass, step)));
    let times = |key: usize| steps.clone().filter(|(pass, step)| has(*pass, *step, key)).count();
    let expected: Vec<i64> = (0..KEYS).map(|key| 3 * times(key) as i64).collect();
    let mut deaths = 0;
    for_each_seed(seeds, |seed| {
        let dies = match seed % 2 {
            0 => vec![whole.took * (1 + seed as u32 * 13 % 97) / 100],
            _ => vec![GAP * (1 + seed as u32 % 8) / 8, GAP],
        };
        let moves = seed % 4 >= 2;
        let found = outlive::<Ones>(&job, Fate { seed, workers: 3, dies, moves });
        assert_eq!(found.trained.rows.values, expected, "{model} with seed {seed}");
        deaths += found.deaths;
    });
    println!("{model}: {deaths} deaths in {seeds} runs of {:?}", whole.took);
    assert!(deaths > 0, "all runs ended before a server died");
}

#[test]
fn no_push_is_lost_or_doubled_and_no_read_is_too_old() {
    for model in ["bsp", "ssp:0", "ssp:2", "asp", "delay:1"] {
        all_is_counted(model, 4);
    }
}

/// `cargo test -p caravan-learn --test learn outliving:: -- --ignored`
#[test]
#[ignore = "minutes"]
fn no_push_is_lost_or_doubled_in_many_runs() {
    for model in ["bsp", "ssp:0", "ssp:2", "asp", "delay:1"] {
        all_is_counted(model, 200);
    }
}

/// Three workers that read late come as near the optimum as they do without a death.
#[test]
fn gradients_end_near_the_serial_objective() {
    let examples = example("near");
    let mut settings = sgd::Settings::new(vec![examples.clone()]);
    settings.descent.batch = 7;
    settings.descent.options = json!({"rate": 0.3});
    let job = copied(settings, "ssp:3", 20);
    let alone =
        serial::<sgd::Sgd>(&Job { parts: Some(3), ..job.clone() }, &Handles::default(), |_| {});
    let alone = alone.unwrap();
    let whole =
        outlive::<sgd::Sgd>(&job, Fate { seed: 1, workers: 3, dies: Vec::new(), moves: false });
    for_each_seed(6, |seed| {
        let dies = vec![whole.took * (5 + seed as u32 * 13 % 90) / 100];
        let found =
            outlive::<sgd::Sgd>(&job, Fate { seed, workers: 3, dies, moves: seed % 2 == 0 });
        let ratio = found.trained.objective / alone.objective;
        println!("seed {seed}: {ratio} of the serial objective, {} deaths", found.deaths);
        assert!((0.8..1.25).contains(&ratio), "seed {seed}: {ratio}");
        assert_eq!(found.trained.rows.keys, alone.rows.keys);
        assert_eq!(found.deaths, 1, "seed {seed}: the run ended before its server died");
    });
    std::fs::remove_file(&examples).unwrap();
}

/// Topics whose sums are the words of all documents, each counted once.
fn check_counts(rows: &Rows<i32>, tokens: usize) {
    let (words, totals) = rows.values.split_at(rows.values.len() - rows.width);
    for (topic, total) in totals.iter().enumerate() {
        let sum: i32 = words.iter().skip(topic).step_by(rows.width).sum();
        assert_eq!(sum, *total, "topic {topic}");
    }
    assert!(rows.values.iter().all(|count| *count >= 0));
    assert_eq!(totals.iter().map(|&total| total as usize).sum::<usize>(), tokens);
}

#[test]
fn topics_keep_their_counts_when_a_server_dies() {
    let document = |at: u32| {
        let word = |place: u32| (at * 7 + place * (1 + at % 3)) % 30;
        let pairs: Vec<String> = (0..5).map(|place| format!("{}:2", word(place))).collect();
        format!("{} {}\n", pairs.len(), pairs.join(" "))
    };
    let documents = file("documents", &(0..120).map(document).collect::<String>());
    let mut settings = lda::Settings::new(vec![documents.clone()], 30);
    (settings.topics, settings.step_words) = (6, 12);
    let job = copied(settings, "ssp:1", 8);
    let run = |seed, dies| {
        let found =
            outlive::<lda::Lda>(&job, Fate { seed, workers: 3, dies, moves: seed % 2 == 1 });
        check_counts(&found.trained.rows, 1200);
        found
    };
    // Another order of messages is another draw of topics.
    let whole: Vec<_> = (0..6).map(|seed| run(seed, Vec::new())).collect();
    let objectives = whole.iter().map(|whole| whole.trained.objective);
    let [least, most] = [f64::min, f64::max].map(|of| objectives.clone().reduce(of).unwrap());
    println!("without a death from {least} to {most}");
    for_each_seed(6, |seed| {
        let found = run(seed, vec![whole[0].took * (5 + seed as u32 * 13 % 90) / 100]);
        let objective = found.trained.objective;
        println!("seed {seed}: {objective}, {} deaths", found.deaths);
        assert!((0.9 * least..1.1 * most).contains(&objective), "seed {seed}: {objective}");
        assert_eq!(found.deaths, 1, "seed {seed}: the run ended before its server died");
    });
    std::fs::remove_file(&documents).unwrap();
}

/// Real servers, of which none dies: the same cluster trains again.
#[test]
fn a_cluster_trains_with_replicas_again_and_again() {
    let examples = example("again");
    let node = caravan_kv::NodeConfig { server_losses_max: 1, ..Default::default() };
    let config = ClusterConfig { servers: 2, workers: 2, threads: 1, node };
    let apps = trainer::app::<sgd::Sgd>(Apps::default());
    let mut cluster = Cluster::launch(&config, Launch::Threads(Handles::default(), apps)).unwrap();
    let job = copied(sgd::Settings::new(vec![examples.clone()]), "ssp:1", 2);
    let near = Job { reading: trainer::Reading::Near(1000), ..job.clone() };
    let passes = |cluster: &mut Cluster, job| {
        let mut rows = 0;
        let trained = train::<sgd::Sgd>(cluster, job, |pass| rows += pass.sums.examples).unwrap();
        assert_eq!((trained.passes, rows), (2, 400));
    };
    passes(&mut cluster, &job);
    passes(&mut cluster, &near);
    let refused = Job { replicas: 2, ..job.clone() };
    let said = train::<sgd::Sgd>(&mut cluster, &refused, |_| {}).unwrap_err().to_string();
    assert!(said.contains("take 3 servers, or at most 1 replicas (--replicas)"), "{said}");
    passes(&mut cluster, &job);
    cluster.shutdown().unwrap();
    std::fs::remove_file(&examples).unwrap();
}

/// What has no copies is refused before there is a cluster, with the reason and the remedy.
#[test]
fn what_has_no_copies_is_refused_by_name() {
    let refused = |job: Job<()>, servers: Option<usize>, says: [&str; 3]| {
        let said = job.check_replicas(servers).unwrap_err().to_string();
        assert!(says.iter().all(|part| said.contains(part)), "{said}");
        assert!(Job { replicas: 0, ..job }.check_replicas(servers).is_ok());
    };
    for hint in ["seq", "hogwild", "spmt"] {
        let job = Job { hint: hint.parse().unwrap(), ..copied((), "ssp:1", 1) };
        refused(job, Some(9), [hint, "in one worker", "take the hint ps"]);
    }
    let says = ["no room for 1 replicas on 1 servers", "take 2 servers", "at most 0 replicas"];
    refused(copied((), "asp", 1), Some(1), says);
    for model in ["bsp", "ssp:0", "sparse-ssp:1:2", "asp", "delay:2", "data:0", "data:1"] {
        copied((), model, 1).check_replicas(Some(2)).unwrap();
        copied((), model, 1).check_replicas(None).unwrap();
    }
}
