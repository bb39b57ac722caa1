//! Goal: 1 GiB of rows moves from one server process to another under load, or is written to a
//! checkpoint: no push fails or is lost, and servers write hardly more than the rows.
//! Method: `caravan rebalance` drains one of two server processes over TCP, or has it leave for one
//! that has joined, while a worker pushes a row every millisecond. The kernel says how many bytes
//! the servers wrote in all: rows, forwarded pushes and answers. Latencies are printed beside those
//! of a quiet time, and not judged.
//!
//! Each takes a minute and 3 GiB of memory, so they have to be asked for:
//! `cargo test -p caravan-bench --test moving -- --ignored --nocapture`

#![cfg(target_os = "linux")]

use crate::support;
use std::process::{Child, Stdio};
use std::time::{Duration, Instant};

use caravan_kv::consistency::Model;
use caravan_kv::{Cluster, Placement, Table, TableSpec, ValueType, Worker};
use caravan_van::KeyRange;
use support::{PATIENCE, ended, launch_over_tcp, of_cluster, text};

const WIDTH: usize = 256;
const KEYS: u64 = 1 << 20;
const ROW_BYTES: u64 = KEYS * 4 * WIDTH as u64;
/// Keys of a request that fills or reads the table.
const BLOCK: u64 = 4096;
const SHARDS: u64 = 8;
const PAUSE: Duration = Duration::from_millis(1);

const _: () = assert!(ROW_BYTES == 1 << 30);

/// Values of a block, exact as `f32` and dull for no compressor.
fn values(block: u64) -> Vec<f32> {
    let mut state = block;
    let mut draw = || {
        state =
            state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        (state >> 41) as f32
    };
    (0..BLOCK as usize * WIDTH).map(|_| draw()).collect()
}

fn blocks() -> impl Iterator<Item = (u64, Vec<u64>)> {
    (0..KEYS / BLOCK).map(|block| (block, (block * BLOCK..(block + 1) * BLOCK).collect()))
}

/// Pushes rows of ones, one every [`PAUSE`], until `is_over`. Counts them by key, and returns how
/// long each took.
fn load(
    worker: &mut Worker,
    table: Table,
    pushed: &mut [u32],
    mut is_over: impl FnMut() -> bool,
) -> Vec<Duration> {
    let ones = [1.0_f32; WIDTH];
    let mut took = Vec::new();
    while !is_over() {
        let key = (took.len() as u64).wrapping_mul(0x9e37_79b9_7f4a_7c15) % KEYS;
        let began = Instant::now();
        let push = worker.push(table, &[key], &ones).unwrap();
        worker.wait(push).unwrap();
        took.push(began.elapsed());
        pushed[key as usize] += 1;
        std::thread::sleep(PAUSE.saturating_sub(began.elapsed()));
    }
    took.sort_unstable();
    took
}

fn say(what: &str, took: &[Duration]) {
    let at = |percent: usize| took[(took.len() - 1) * percent / 100];
    let (p50, p99, max) = (at(50), at(99), at(100));
    println!("{what}: {} pushes, p50 {p50:?}, p99 {p99:?}, max {max:?}", took.len());
}

/// Makes a server join, and waits until the worker has heard of it.
fn join(cluster: &Cluster, worker: &mut Worker) -> Child {
    let joined = of_cluster(cluster, "server --join --van tcp").spawn().unwrap();
    while worker.info().addresses().count() == 2 {
        worker.sleep(Duration::from_millis(5)).unwrap();
    }
    joined
}

/// Bytes that the servers have written to sockets and files.
fn written(cluster: &Cluster) -> u64 {
    let processes = cluster.processes();
    let servers = processes.iter().filter(|(name, _)| name.starts_with("server"));
    let of_process = |pid: &u32| {
        let io = std::fs::read_to_string(format!("/proc/{pid}/io")).unwrap();
        let bytes = io.lines().find_map(|line| line.strip_prefix("wchar: ")).unwrap();
        bytes.parse::<u64>().unwrap()
    };
    servers.map(|(_, pid)| of_process(pid)).sum()
}

#[test]
#[ignore = "it takes a minute and 3 GiB of memory"]
fn a_gibibyte_moves_under_load() {
    move_all(false, false);
}

#[test]
#[ignore = "it takes a minute and 4 GiB of memory"]
fn a_gibibyte_with_a_model_and_a_copy_moves_under_load() {
    move_all(false, true);
}

#[test]
#[ignore = "it takes a minute and 3 GiB of memory"]
fn a_server_with_a_gibibyte_leaves_under_load_for_one_that_has_joined() {
    move_all(true, false);
}

#[test]
#[ignore = "it takes a minute and 4 GiB of memory"]
fn a_gibibyte_is_written_to_a_checkpoint_under_load() {
    let (cluster, mut worker) = launch_over_tcp(1);
    let table = fill(&mut worker, false);
    let mut pushed = vec![0; KEYS as usize];
    let until = Instant::now() + Duration::from_secs(3);
    let quiet = load(&mut worker, table, &mut pushed, || Instant::now() > until);
    let folder = format!("/dev/shm/caravan-checkpoint-{}", std::process::id());
    let began = Instant::now();
    let mut create = of_cluster(&cluster, &format!("checkpoint create {folder} --json"));
    let mut create = create.stdout(Stdio::piped()).spawn().unwrap();
    let busy = load(&mut worker, table, &mut pushed, || create.try_wait().unwrap().is_some());
    let seconds = began.elapsed().as_secs_f64();
    let output = create.wait_with_output().unwrap();
    let verified = of_cluster(&cluster, &format!("checkpoint verify {folder}")).output().unwrap();
    std::fs::remove_dir_all(folder).unwrap();
    assert!(output.status.success() && verified.status.success(), "{}", text(&verified.stderr));
    say("quiet", &quiet);
    say("while it is written", &busy);
    println!("written in {seconds:.1} s: {:.2} GB/s", ROW_BYTES as f64 / seconds / 1e9);
    drop(worker);
    cluster.shutdown().unwrap();
}

/// A table at server 0, in several shards, with [`values`] in its rows; perhaps with a copy and a
/// model, of which the worker takes part.
fn fill(worker: &mut Worker, has_copy: bool) -> Table {
    let shards = (0..SHARDS).map(|shard| (shard * KEYS / SHARDS, 0)).collect();
    let spec = TableSpec::new(1, "rows", ValueType::F32, WIDTH as u32)
        .keys(KeyRange::new(0, KEYS).unwrap())
        .placement(Placement::Cut(shards));
    let spec = match has_copy {
        true => spec.replicas(1).consistency(Model::Ssp { staleness: 1 }, 1),
        false => spec,
    };
    let table = worker.admin().create_table(&spec).unwrap();
    if has_copy {
        worker.clocks(table).join().unwrap();
    }
    for (block, keys) in blocks() {
        let push = worker.push(table, &keys, &values(block)).unwrap();
        worker.wait(push).unwrap();
    }
    table
}

/// Drains server 0; or makes another one join and it leave. Copies are on the other servers, and
/// move, too.
fn move_all(leaves: bool, has_copy: bool) {
    let (cluster, mut worker) = launch_over_tcp(2 + usize::from(has_copy));
    let table = fill(&mut worker, has_copy);
    let mut pushed = vec![0; KEYS as usize];
    let until = Instant::now() + Duration::from_secs(3);
    let quiet = load(&mut worker, table, &mut pushed, || Instant::now() > until);
    let before = written(&cluster);
    let began = Instant::now();
    let mut joined = leaves.then(|| join(&cluster, &mut worker));
    let line = if leaves { "rebalance --leave 0 --json" } else { "rebalance --drain 0 --json" };
    let mut rebalance = of_cluster(&cluster, line);
    let mut rebalance = rebalance.stdout(Stdio::piped()).spawn().unwrap();
    let busy = load(&mut worker, table, &mut pushed, || rebalance.try_wait().unwrap().is_some());
    let seconds = began.elapsed().as_secs_f64();
    let moved = written(&cluster) - before;
    let output = rebalance.wait_with_output().unwrap();
    assert!(output.status.success());
    assert_eq!(text(&output.stdout).lines().count() as u64, SHARDS);
    say("quiet", &quiet);
    say("while it moves", &busy);
    let times = moved as f64 / ROW_BYTES as f64;
    println!("moved in {seconds:.1} s; servers wrote {moved} bytes, {times:.4} times the rows");
    assert!(has_copy || times <= 1.05, "{times}");
    for (block, keys) in blocks() {
        let pull = worker.pull(table, &keys).unwrap();
        let answer = worker.wait(pull).unwrap();
        let first = values(block);
        let rows = answer.values::<f32>().chunks(WIDTH).zip(first.chunks(WIDTH));
        for ((row, first), key) in rows.zip(&keys) {
            let more = pushed[*key as usize] as f32;
            assert!(row.iter().zip(first).all(|(now, first)| *now == first + more), "key {key}");
        }
    }
    // It has asked for all of them, and knows where they are now.
    let there = worker.info().shards(table).unwrap().iter().map(|shard| shard.server);
    assert!(there.clone().all(|server| server != 0 && (leaves || has_copy || server == 1)));
    drop(worker);
    cluster.shutdown().unwrap();
    joined.iter_mut().for_each(|joined| assert!(ended(joined, PATIENCE).success()));
}
