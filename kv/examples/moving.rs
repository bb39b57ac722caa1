//! Moves a shard between two server threads while pushes to it go on, and prints what that costs
//! them: three runs of so many MiB over TCP, in pieces of so many KiB, quiet and moving in turn.
//!
//! Run: `cargo run --release -p caravan-kv --example moving -- 1024 32`

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc::channel;
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use caravan_kv::node::{Role, open};
use caravan_kv::{
    Handles, Placement, Result, Runs, ServerAddress, ServerThread, Table, TableSpec, ValueType,
    Van, Worker,
};
use caravan_van::draws::nth;
use caravan_van::{Counters, Endpoint, Identity, KeyRange, VanConfig};

/// Values of a row, 4 bytes each.
const WIDTH: u32 = 256;

/// Rows that are pushed at a time to fill the table.
const FILLED: u64 = 1 << 10;

/// Length of a quiet part.
const QUIET: Duration = Duration::from_secs(2);

struct Server {
    at: ServerAddress,
    thread: JoinHandle<Result<Counters>>,
}

fn endpoint(node: u32, role: Role) -> Result<Endpoint> {
    let identity = Identity { role: role.number(), ..Identity::default() };
    let config = VanConfig { memory_bytes: 8 << 30, identity, ..VanConfig::default() };
    Ok(Endpoint::new(open(Van::Tcp, &config)?, node, config.credits))
}

/// Starts a server thread, which ends with the counters of its lanes.
fn start(index: usize, piece_bytes: usize, stop: &Arc<AtomicBool>) -> Server {
    let (say, hear) = channel();
    let stop = stop.clone();
    let thread = std::thread::spawn(move || {
        let endpoint = endpoint(index as u32, Role::Server)?;
        let server = ServerThread::new(endpoint, index, 2, Handles::default());
        let mut server = server.move_by(piece_bytes);
        let _ = say.send(server.address().to_owned()); // whoever started it waits
        server.run(&stop)?;
        Ok(server.counters())
    });
    let address = hear.recv().unwrap_or_default();
    Server { at: ServerAddress { name: format!("server {index}"), address }, thread }
}

/// Pushes to random rows one after the other until `ends` says so; returns the time of each,
/// ascending.
fn push_until(
    worker: &mut Worker,
    table: Table,
    rows: u64,
    mut ends: impl FnMut(&mut Worker) -> Result<bool>,
) -> Result<Vec<Duration>> {
    let ones = vec![1f32; WIDTH as usize];
    let mut times = Vec::new();
    while !ends(worker)? {
        let key = nth(0, times.len() as u64) % rows;
        let began = Instant::now();
        let pushed = worker.push(table, &[key], &ones)?;
        worker.wait(pushed)?;
        times.push(began.elapsed());
    }
    times.sort_unstable();
    Ok(times)
}

/// One of `of` sorted times, in microseconds.
fn quantile(times: &[Duration], share: f64) -> f64 {
    let at = (times.len() as f64 * share) as usize;
    times.get(at).map_or(0.0, |time| time.as_secs_f64() * 1e6)
}

fn run(mib: u64, piece_bytes: usize) -> Result<()> {
    let stop = Arc::new(AtomicBool::new(false));
    let servers = [0, 1].map(|index| start(index, piece_bytes, &stop));
    let addresses: Vec<_> = servers.iter().map(|server| server.at.clone()).collect();
    let mut worker =
        Worker::connect(endpoint(9, Role::Worker)?, &addresses, Duration::from_secs(10))?;
    let rows = (mib << 20) / u64::from(4 * WIDTH);
    let spec = TableSpec::new(1, "rows", ValueType::F32, WIDTH)
        .keys(KeyRange::new(0, rows).unwrap_or(KeyRange::ALL))
        .placement(Placement::Cut(vec![(0, 0)]));
    let table = worker.admin().create_table(&spec)?;
    for first in (0..rows).step_by(FILLED as usize) {
        let last = rows.min(first + FILLED);
        // Values that no coding makes shorter.
        let bits = (0..(last - first) * u64::from(WIDTH)).map(|at| nth(0, first << 32 | at));
        let values: Vec<f32> = bits.map(|bits| bits as u32 as f32).collect();
        let filled = worker.push(table, &Runs::range(first..last), &values)?;
        worker.wait(filled)?;
    }
    let ends = Instant::now() + QUIET;
    let quiet = push_until(&mut worker, table, rows, |_| Ok(Instant::now() >= ends))?;
    let began = Instant::now();
    let moved = worker.admin().move_shard(table, 0, 1)?;
    let moving = push_until(&mut worker, table, rows, |worker| worker.is_done(moved))?;
    let seconds = began.elapsed().as_secs_f64();
    worker.wait(moved)?;
    stop.store(true, Ordering::Relaxed);
    drop(worker);
    let [_, newcomer] = servers;
    let received = newcomer.thread.join().map_or(Ok(0), |end| end.map(|all| all.bytes_received))?;
    let forwarded = moving.len() as f64 * f64::from(4 * WIDTH);
    let bytes = (mib << 20) as f64;
    println!(
        "{mib} MiB moved in {seconds:.2} s, {:.3} bytes for each byte of rows, and at most {:.3} \
         for those that were pushed meanwhile",
        (received as f64 - forwarded) / bytes,
        forwarded / bytes,
    );
    for (what, times) in [("quiet", quiet), ("moving", moving)] {
        println!(
            "  {what}: {} pushes, p50 {:.1} us, p99 {:.1} us, max {:.1} us",
            times.len(),
            quantile(&times, 0.5),
            quantile(&times, 0.99),
            quantile(&times, 1.0 - f64::EPSILON),
        );
    }
    Ok(())
}

fn main() -> Result<()> {
    let number = |at| std::env::args().nth(at).and_then(|number| number.parse().ok());
    let (mib, piece_kib) = (number(1).unwrap_or(64), number(2).unwrap_or(32));
    (0..3).try_for_each(|_| run(mib, (piece_kib as usize) << 10))
}
