//! Goal: k-means in stages is the run of one thread to the bit, on any numbers of workers, and
//! takes fewer worker-seconds than one stage with the most of them.
//! Method: MNIST's test images on a cluster of threads, and images of heaps on a simulated one of
//! 160 workers, each against `kmeans::serial`.

use crate::support;
use std::net::TcpListener;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread::JoinHandle;
use std::time::Duration;

use caravan_kv::node::{run_server, run_worker};
use caravan_kv::{Apps, Cluster, ClusterConfig, Handles, Launch, NodeConfig};
use caravan_learn::kmeans::{self, Batches, Points, Problem, Progress, Trained};
use caravan_van::sim::{Faults, Hosts, Network, for_each_seed};

fn batches(workers: usize, batch: usize, iterations: u64) -> Batches {
    Batches { workers, batch, iterations }
}

/// Trains, and holds centres and objective against those of one thread.
fn train(cluster: &mut Cluster, problem: &Problem) -> (Trained, Vec<Progress>) {
    let mut rows = Vec::new();
    let trained = kmeans::train(cluster, problem, |row| rows.push(*row)).unwrap();
    let points = Points::read(&problem.files).unwrap();
    let (centres, objective) = kmeans::serial(problem, &points).unwrap();
    let bits = |values: &[f64]| values.iter().map(|value| value.to_bits()).collect::<Vec<_>>();
    assert!(bits(trained.centres.values()) == bits(centres.values()), "to the bit");
    assert!((trained.objective / objective - 1.0).abs() < 1e-12);
    assert_eq!(rows.len(), problem.stages.len());
    assert!(rows.iter().all(|row| row.handover_bytes == 0), "{rows:?}");
    (trained, rows)
}

fn on_threads(workers: usize) -> Cluster {
    let config = ClusterConfig { workers, servers: 2, ..ClusterConfig::default() };
    let launch = Launch::Threads(Handles::default(), caravan_learn::apps(Apps::default()));
    Cluster::launch(&config, launch).unwrap()
}

#[test]
fn three_stages_on_images_equal_one_thread_to_the_bit() {
    let Some(folder) = support::data_folder() else { return };
    let files = vec![folder.join("mnist_t10k-images-idx3-ubyte.gz")];
    let stages = vec![batches(1, 100, 10), batches(2, 1000, 5), batches(4, 10_000, 2)];
    let problem = Problem::new(files, 10, stages);
    let mut cluster = on_threads(4);
    let (trained, rows) = train(&mut cluster, &problem);
    assert!(rows.windows(2).all(|pair| pair[1].objective < pair[0].objective), "{rows:?}");
    // Another seed, and numbers of workers that do not divide the batches.
    let stages = vec![batches(3, 100, 4), batches(1, 1000, 2)];
    let other = Problem { seed: 2, stages, ..problem };
    assert_ne!(train(&mut cluster, &other).0.centres, trained.centres);
    cluster.shutdown().unwrap();
}

type Nodes = Vec<JoinHandle<caravan_kv::Result<()>>>;

/// A cluster of workers with stores of their own, as processes have them, that see these folders.
fn apart(folders: &[&Path]) -> (Cluster, Nodes) {
    let scheduler = TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap().to_string();
    let node = NodeConfig { scheduler, ..NodeConfig::default() };
    let workers = folders.len();
    let config = ClusterConfig { workers, node: node.clone(), ..ClusterConfig::default() };
    let mut nodes = Vec::new();
    for (rank, folder) in folders.iter().enumerate() {
        let node = NodeConfig { data_root: Some(folder.into()), ..node.clone() };
        let run =
            move || run_worker(&node, Some(rank), &caravan_learn::apps(Apps::default()), false);
        nodes.push(std::thread::spawn(run));
    }
    let server = move || run_server(&node, Some(0), 1, &Handles::default(), false);
    nodes.push(std::thread::spawn(server));
    (Cluster::launch(&config, Launch::External).unwrap(), nodes)
}

fn end(cluster: Cluster, nodes: Nodes) {
    cluster.shutdown().unwrap();
    nodes.into_iter().for_each(|node| node.join().unwrap().unwrap());
}

/// Workers of several processes: centres go to those that have none by requests between nodes.
#[test]
fn centres_pass_between_processes_without_the_servers() {
    let file = heaps(300);
    let here = std::env::temp_dir();
    let (mut cluster, nodes) = apart(&[&here, &here, &here]);
    let stages = [(1, 50), (3, 100), (1, 60), (2, 80)];
    let stages = stages.map(|(workers, batch)| batches(workers, batch, 2));
    train(&mut cluster, &Problem::new(vec![file.clone()], 4, stages.to_vec()));
    // Stages of no batches hand on what they got.
    let idle = vec![batches(1, 50, 2), batches(3, 50, 0), batches(2, 50, 1)];
    train(&mut cluster, &Problem::new(vec![file.clone()], 4, idle));
    end(cluster, nodes);
    std::fs::remove_file(file).unwrap();
}

/// Others wait for it at the barrier of a later stage, and in the iterations of the first one.
#[test]
fn a_worker_that_fails_ends_its_stage() {
    let file = heaps(250);
    let elsewhere = tempfile::tempdir().unwrap();
    let here = std::env::temp_dir();
    let (mut cluster, nodes) = apart(&[&here, &here, elsewhere.path()]);
    let of = |stages: &[Batches]| Problem::new(vec![file.clone()], 4, stages.to_vec());
    let good = of(&[batches(2, 100, 4)]); // at workers 0 and 1
    for bad in
        [of(&[batches(1, 50, 2), batches(3, 100, 2), batches(1, 50, 2)]), of(&[batches(3, 100, 2)])]
    {
        let mut ended = 0;
        let error = kmeans::train(&mut cluster, &bad, |_| ended += 1).unwrap_err().to_string();
        assert_eq!(ended, bad.stages.len() / 2, "stages");
        assert!(error.contains("worker 2 failed at kmeans"), "{error}");
        assert!(error.contains(&file.display().to_string()), "{error}");
        train(&mut cluster, &good);
    }
    end(cluster, nodes);
    std::fs::remove_file(file).unwrap();
}

#[test]
fn what_fails_is_named_and_the_cluster_goes_on() {
    let file = heaps(200);
    let good = Problem::new(vec![file.clone()], 4, vec![batches(2, 50, 4), batches(1, 200, 2)]);
    let mut cluster = on_threads(2);
    let missing = Problem { files: vec!["/nowhere/images".into()], ..good.clone() };
    let crowded = Problem { stages: vec![batches(1, 50, 4), batches(3, 50, 4)], ..good.clone() };
    let many = Problem { clusters: 201, ..good.clone() };
    let copied = Problem { replicas: 2, ..good.clone() };
    let none = Problem { stages: Vec::new(), ..good.clone() };
    for (problem, why) in [
        (missing, "/nowhere/images"),
        (crowded, "stage 1 wants 3 workers, and there are 2"),
        (many, "200 points are too few for 201"),
        (copied, "no room for 2 replicas on 2 servers: take 3 servers, or at most 1"),
        (none, "at least 1 stage"),
    ] {
        let error = kmeans::train(&mut cluster, &problem, |_| {}).unwrap_err().to_string();
        assert!(error.contains(why), "{error}");
        train(&mut cluster, &good);
    }
    cluster.shutdown().unwrap();
    std::fs::remove_file(file).unwrap();
}

/// A file of images of 4 x 8 pixels around 20 others.
fn heaps(count: u32) -> PathBuf {
    let mut bytes = vec![0, 0, 8, 3];
    [count, 4, 8].iter().for_each(|size| bytes.extend(size.to_be_bytes()));
    let mut state = 7_u64;
    let mut draw = |below: u64| {
        state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1);
        ((state >> 33) % below) as u8
    };
    let middles: Vec<u8> = (0..20 * 32).map(|_| 40 + draw(160)).collect();
    for image in 0..count as usize {
        let middle = &middles[image % 20 * 32..][..32];
        bytes.extend(middle.iter().map(|pixel| pixel - 40 + draw(81)));
    }
    let name = format!("caravan-heaps-{count}-{}", std::process::id());
    let path = std::env::temp_dir().join(name);
    std::fs::write(&path, bytes).unwrap();
    path
}

const WORKERS: usize = 160;

/// Worker-seconds of a problem on a simulated cluster.
fn worker_seconds(problem: Problem) -> f64 {
    let network = Network::of_hosts(1, Faults::none(), Hosts::default());
    let driver = network.spawn("driver", move |_| {
        let config = ClusterConfig { workers: WORKERS, servers: 2, ..ClusterConfig::default() };
        let launch = Launch::Simulated(Handles::default(), caravan_learn::apps(Apps::default()));
        let mut cluster = Cluster::launch(&config, launch).unwrap();
        let (trained, _) = train(&mut cluster, &problem);
        cluster.shutdown().unwrap();
        trained.worker_seconds
    });
    driver.join().unwrap_or_else(|stopped| panic!("{stopped}"))
}

/// The objective in one thread.
fn objective(file: &Path, points: &Points, stages: Vec<Batches>) -> (f64, Problem) {
    let problem = Problem::new(vec![file.to_owned()], 20, stages);
    (kmeans::serial(&problem, points).unwrap().1, problem)
}

#[test]
fn growing_stages_take_fewer_worker_seconds_than_one_of_all_workers() {
    let file = heaps(16_200);
    let points = Points::read(std::slice::from_ref(&file)).unwrap();
    let stages = vec![batches(20, 81, 20), batches(80, 810, 6), batches(WORKERS, 8100, 2)];
    let (reached, staged) = objective(&file, &points, stages);
    // One stage goes on until it is as good, or is given up.
    let one = |iterations| objective(&file, &points, vec![batches(WORKERS, 810, iterations)]);
    let single = (1..=64).map(one).find(|(found, _)| *found <= reached * 1.001);
    let (found, single) = single.unwrap_or_else(|| one(64));
    let iterations = single.stages[0].iterations;
    let [staged, single] = [staged, single].map(worker_seconds);
    println!(
        "{staged:.3} and {single:.3} worker-seconds for {reached:.0} and {found:.0}, {iterations}"
    );
    assert!(staged <= 0.6 * single, "{staged} of {single}");
    std::fs::remove_file(file).unwrap();
}

/// A run with copies, of whose servers one dies after this time, if any; how long it took, and
/// whether the server died before its end.
fn outlive(seed: u64, problem: &Problem, dies: Option<Duration>) -> (Duration, bool) {
    let network = Network::new(seed, Faults::jittery());
    let (began, is_dead) = (Arc::new(AtomicBool::new(false)), Arc::new(AtomicBool::new(false)));
    let dying = dies.map(|after| {
        let (began, is_dead) = (began.clone(), is_dead.clone());
        network.spawn("fate", move |network| {
            while !began.load(Ordering::Relaxed) {
                network.sleep(Duration::from_micros(20));
            }
            network.sleep(after);
            network.crash(&format!("server {}", seed % 3));
            is_dead.store(true, Ordering::Relaxed);
        })
    });
    let problem = problem.clone();
    let driver = network.spawn("scheduler", move |_| {
        let mut config = ClusterConfig { workers: 3, servers: 3, ..ClusterConfig::default() };
        config.node.server_losses_max = 1;
        let launch = Launch::Simulated(Handles::default(), caravan_learn::apps(Apps::default()));
        let mut cluster = Cluster::launch(&config, launch).unwrap();
        began.store(true, Ordering::Relaxed);
        let start = cluster.now();
        train(&mut cluster, &problem);
        let ended = (cluster.now() - start, is_dead.load(Ordering::Relaxed));
        cluster.shutdown().unwrap();
        ended
    });
    let ended = driver.join().unwrap_or_else(|stopped| panic!("seed {seed}: {stopped}"));
    dying.into_iter().for_each(|dying| drop(dying.join()));
    ended
}

/// Goes on to the bit without a server that dies at any time of its stages.
#[test]
fn stages_with_copies_outlive_a_server() {
    let file = heaps(310);
    let stages = vec![batches(1, 50, 8), batches(3, 100, 8), batches(2, 120, 6)];
    let mut problem = Problem::new(vec![file.clone()], 5, stages);
    problem.replicas = 1;
    let (whole, _) = outlive(1, &problem, None);
    let mut deaths = 0;
    for_each_seed(12, |seed| {
        let dies = whole * (1 + seed as u32 * 41 % 97) / 100;
        deaths += u32::from(outlive(seed, &problem, Some(dies)).1);
    });
    println!("{deaths} deaths in 12 runs of {whole:?}");
    assert!(deaths > 8);
    std::fs::remove_file(file).unwrap();
}
