//! `caravan bench placement`: what it costs when a server thread, or its memory, is on the wrong NUMA node.
//!
//! One worker, and a server thread for each way of placing it, all in this process and over the same van; they take turns, batch by
//! batch, so that a machine that drifts drifts for all of them. The first row is what the others are compared with.

use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc;
use std::thread::{self, Builder};

use anyhow::{Context, Result, ensure};
use caravan_kv::node::open;
use caravan_kv::{NodeConfig, ServerAddress, ServerThread, Worker};
use caravan_numa::{Near, NumaId, PageSource, Plan, PuId, Seat, Topology, pin_current_thread};
use caravan_van::{Endpoint, VanConfig};
use hdrhistogram::Histogram;
use serde::{Deserialize, Serialize};

use crate::cli::Common;
use crate::machine::Machine;
use crate::progress::Progress;
use crate::report::{Report, Row, Shown, columns, decimals};
use crate::requests::{Requests, Tables};
use crate::subject::{Batch, Effort, Op, Shape, Subject, timed_stream};
use crate::terminal::say;
use crate::units::milli;
use crate::usage::{NO_THREAD, Usage};
use crate::{cluster, latency};

/// One row of `caravan bench placement`.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub(crate) struct PlacementCost {
    pub(crate) van: String,
    /// How the server thread is placed, seen from the worker.
    pub(crate) server: String,
    /// Where the worker runs; its memory is there, too.
    pub(crate) worker_pu: usize,
    /// None where the kernel may move the server thread.
    pub(crate) server_pu: Option<usize>,
    pub(crate) server_node: Option<usize>,
    /// None where memory lies where it is first touched.
    pub(crate) memory_node: Option<usize>,
    /// Pushes of [`LATENCY`]'s size, one in flight.
    pub(crate) count: u64,
    pub(crate) p50_us: f64,
    pub(crate) p99_us: f64,
    /// Pushes of [`BANDWIDTH`]'s size, a window of them in flight.
    pub(crate) gb_per_s: f64,
    /// To the first row.
    pub(crate) ratio_p50: f64,
    pub(crate) ratio_gb: f64,
    pub(crate) wrong: u64,
}

impl Shown for PlacementCost {
    fn heading(&self) -> Option<String> {
        Some(format!(
            "\n# placement: pushes to a server thread in this process, worker on PU {}; 64 B with one in flight, 1 MiB with a window\n{}",
            self.worker_pu,
            columns(&[
                "van",
                "PU",
                "memory",
                "p50 µs",
                "p99",
                "GB/s",
                "p50 ratio",
                "GB ratio",
                "wrong",
                "  server"
            ])
        ))
    }

    fn text(&self) -> String {
        let place = |place: Option<usize>| place.map_or("any".to_owned(), |n| n.to_string());
        let mut cells = vec![self.van.clone(), place(self.server_pu)];
        cells.push(self.memory_node.map_or("touch".to_owned(), |node| format!("node {node}")));
        cells.extend([self.p50_us, self.p99_us, self.gb_per_s].iter().map(decimals));
        cells.extend([self.ratio_p50, self.ratio_gb].map(|ratio| format!("{ratio:.2}")));
        cells.extend([self.wrong.to_string(), format!("  {}", self.server)]);
        columns(&cells)
    }

    fn wrong(&self) -> u64 {
        self.wrong
    }
}

const LATENCY: Shape = Shape { op: Op::Push, keys: 1, bytes: 64, window: 1 };
const BANDWIDTH: Shape = Shape { op: Op::Push, keys: 1, bytes: 1 << 20, window: 8 };

/// A way to place the server thread.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct Case {
    name: &'static str,
    seat: Option<Seat>,
    memory: Option<NumaId>,
}

/// The worker's seat, and the cases there are on this machine, the best one first.
fn cases(topology: &Topology) -> Result<(Seat, Vec<Case>)> {
    let all = Plan::new(topology, Near::Anywhere, 0..1);
    let worker = *all.seats().first().context("no processing unit is usable here")?;
    let node = worker.node.unwrap_or(NumaId(0));
    let usable = topology.usable_pus().len();
    let seats = Plan::new(topology, Near::Node(node), 0..usable).seats().to_vec();
    let near = seats.iter().find(|seat| seat.pu != worker.pu && seat.node == worker.node);
    let far = seats.iter().find(|seat| seat.node != worker.node);
    let case = |name, seat: &Seat, memory| Case { name, seat: Some(*seat), memory };
    let mut cases = Vec::new();
    if let Some(near) = near {
        cases.push(case("near", near, worker.node));
        cases.extend(far.map(|far| case("near, far memory", near, far.node)));
    }
    if let Some(far) = far {
        cases.push(case("far", far, far.node));
        cases.push(case("far, near memory", far, worker.node));
    }
    cases.push(case("same core", &worker, worker.node));
    cases.push(Case { name: "unpinned", seat: None, memory: None });
    Ok((worker, cases))
}

/// Runs it.
///
/// # Errors
/// [`Usage`] with `--numa-node`; what keeps it from measuring, and any wrong answer.
pub(crate) fn run(common: &Common) -> Result<()> {
    ensure!(
        common.numa_node.is_none(),
        Usage("bench placement measures every place; leave --numa-node out".to_owned())
    );
    let config = cluster::config(common)?.node;
    let topology = Topology::this_machine()?;
    let (worker, cases) = cases(&topology)?;
    let mut report = Report::new(common.json);
    let progress = Progress::new(0, true);
    report.row(&Row::Machine(Machine::read()), &progress)?;
    if topology.nodes().len() < 2 {
        say(
            "this machine has one NUMA node: no placement is wrong for its memory, only cores differ",
        );
    }
    let (batches, batch) = if common.smoke { (1, 20) } else { (10, 2000) };
    for row in measure(&config, &topology, worker, &cases, Effort { batches, batch })? {
        report.row(&Row::PlacementCost(row), &progress)?;
    }
    ensure!(report.wrong() == 0, "{} answers were wrong; see the rows", report.wrong());
    Ok(())
}

fn measure(
    config: &NodeConfig,
    topology: &Topology,
    worker: Seat,
    cases: &[Case],
    effort: Effort,
) -> Result<Vec<PlacementCost>> {
    let stop = AtomicBool::new(false);
    let done = Stop(&stop);
    thread::scope(|scope| {
        let done = done; // dropped before the scope waits for the servers
        let mut addresses = Vec::new();
        for case in cases {
            let (say, said) = mpsc::channel();
            let stop = &stop;
            let serve = move || serve(config, topology, *case, &say, stop);
            Builder::new().spawn_scoped(scope, serve).context(NO_THREAD)?;
            addresses.push(said.recv().context("a server thread ended early")??);
        }
        let work = move || take_turns(config, topology, worker, cases, &addresses, effort);
        let outcome = Builder::new().spawn_scoped(scope, work).context(NO_THREAD)?;
        let rows = outcome.join().unwrap_or_else(|_| Err(anyhow::anyhow!("the worker panicked")));
        drop(done);
        rows
    })
}

/// Ends the servers, however the measurement ends.
struct Stop<'a>(&'a AtomicBool);

impl Drop for Stop<'_> {
    fn drop(&mut self) {
        self.0.store(true, Ordering::Relaxed);
    }
}

/// One server thread, on its place before it touches any memory.
fn serve(
    config: &NodeConfig,
    topology: &Topology,
    case: Case,
    say: &mpsc::Sender<Result<String>>,
    stop: &AtomicBool,
) {
    let opened = place(topology, case.seat.map(|seat| seat.pu))
        .and_then(|()| endpoint(config, 0, case.memory));
    match opened {
        Ok(endpoint) => {
            let mut server = ServerThread::new(endpoint, 0, 1, cluster::handles());
            let _ = say.send(Ok(server.address().to_owned()));
            // A worker whose server ends gets an error of its own, which says more.
            let _ = server.run(stop);
        }
        Err(error) => drop(say.send(Err(error))),
    }
}

fn place(topology: &Topology, pu: Option<PuId>) -> Result<()> {
    if let Some(pu) = pu {
        let placed = pin_current_thread(topology, pu);
        ensure!(
            placed.is_pinned(),
            "{placed}; there is nothing to compare where threads cannot be pinned"
        );
    }
    Ok(())
}

fn endpoint(config: &NodeConfig, node: u32, memory: Option<NumaId>) -> Result<Endpoint> {
    let pages = PageSource { node: memory, huge: config.huge_pages, shareable: false };
    let van = VanConfig { pages, ..config.van_config(node) };
    Ok(Endpoint::new(open(config.van, &van)?, node, config.credits))
}

/// What one case has come to.
struct Tally {
    worker: Worker,
    tables: Tables,
    nanos: Histogram<u64>,
    seconds: f64,
    wrong: u64,
}

fn take_turns(
    config: &NodeConfig,
    topology: &Topology,
    seat: Seat,
    cases: &[Case],
    addresses: &[String],
    effort: Effort,
) -> Result<Vec<PlacementCost>> {
    place(topology, Some(seat.pu))?;
    let mut tallies = Vec::new();
    for (at, address) in addresses.iter().enumerate() {
        let endpoint = endpoint(config, 1 + at as u32, seat.node)?;
        let server = ServerAddress { name: cases[at].name.to_owned(), address: address.clone() };
        let worker = Worker::connect(endpoint, &[server], config.join_timeout)?;
        let (tables, nanos) = (Tables::default(), Histogram::new(3)?);
        tallies.push(Tally { worker, tables, nanos, seconds: 0.0, wrong: 0 });
    }
    let streams = Effort { batch: (effort.batch / 20).max(2), ..effort };
    for round in 0..=effort.batches {
        for tally in &mut tallies {
            turn(tally, config, effort, streams, round > 0)?;
        }
    }
    let van = tallies.first().map_or("", |tally| tally.worker.van()).to_owned();
    Ok(rows(&van, seat, cases, &tallies, streams))
}

/// One batch of each kind; the first round only warms up.
fn turn(
    tally: &mut Tally,
    config: &NodeConfig,
    small: Effort,
    large: Effort,
    counts: bool,
) -> Result<()> {
    let mut requests = Requests::new(&mut tally.worker, &mut tally.tables, config.eager_bytes);
    requests.prepare(LATENCY)?;
    let (nanos, wrong) = latency::batch(small, &mut requests)?;
    requests.prepare(BANDWIDTH)?;
    let Batch { took, wrong: wrong_large, .. } = timed_stream(large, &mut requests)?;
    tally.wrong += wrong + wrong_large;
    if counts {
        tally.nanos += nanos;
        tally.seconds += took.as_secs_f64();
    }
    Ok(())
}

fn rows(
    van: &str,
    seat: Seat,
    cases: &[Case],
    tallies: &[Tally],
    large: Effort,
) -> Vec<PlacementCost> {
    let p50 = |tally: &Tally| tally.nanos.value_at_quantile(0.5) as f64 / 1e3;
    let bytes = large.count() as f64 * BANDWIDTH.bytes as f64;
    let gb = |tally: &Tally| bytes / 1e9 / tally.seconds.max(1e-9);
    let row = |(case, tally): (&Case, &Tally)| PlacementCost {
        van: van.to_owned(),
        server: case.name.to_owned(),
        worker_pu: seat.pu.0,
        server_pu: case.seat.map(|seat| seat.pu.0),
        server_node: case.seat.and_then(|seat| seat.node).map(|node| node.0),
        memory_node: case.memory.map(|node| node.0),
        count: tally.nanos.len(),
        p50_us: milli(p50(tally)),
        p99_us: milli(tally.nanos.value_at_quantile(0.99) as f64 / 1e3),
        gb_per_s: milli(gb(tally)),
        ratio_p50: milli(p50(tally) / p50(&tallies[0])),
        ratio_gb: milli(gb(tally) / gb(&tallies[0])),
        wrong: tally.wrong,
    };
    cases.iter().zip(tallies).map(row).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn of(description: &str) -> Vec<(&'static str, Option<usize>, Option<usize>)> {
        let (worker, cases) = cases(&Topology::from_synthetic(description).unwrap()).unwrap();
        assert_eq!(worker.pu, PuId(0));
        let place = |case: Case| (case.name, case.seat.map(|s| s.pu.0), case.memory.map(|n| n.0));
        cases.into_iter().map(place).collect()
    }

    #[test]
    fn cases_are_those_that_the_machine_has() {
        let last = [("same core", Some(0), Some(0)), ("unpinned", None, None)];
        let two = of("pack:2 [numa(memory=8GB)] core:2 pu:1");
        let expected = [
            ("near", Some(1), Some(0)),
            ("near, far memory", Some(1), Some(1)),
            ("far", Some(2), Some(1)),
            ("far, near memory", Some(2), Some(0)),
        ];
        assert_eq!((&two[..4], &two[4..]), (&expected[..], &last[..]));
        let small = of("pack:2 [numa(memory=8GB)] core:1 pu:1");
        assert_eq!(small[0], ("far", Some(1), Some(1)));
        let one = of("numa:1 core:2 pu:1");
        assert_eq!((one[0], &one[1..]), (("near", Some(1), Some(0)), &last[..]));
        assert_eq!(of("numa:1 core:1 pu:1"), last);
    }

    #[test]
    fn every_case_is_measured_and_the_first_is_the_measure() {
        let topology = Topology::this_machine().unwrap();
        let (worker, cases) = cases(&topology).unwrap();
        let config = NodeConfig { van: caravan_kv::Van::Tcp, ..NodeConfig::default() };
        let effort = Effort { batches: 1, batch: 4 };
        match measure(&config, &topology, worker, &cases, effort) {
            Ok(rows) => {
                assert_eq!(rows.len(), cases.len());
                assert_eq!((rows[0].ratio_p50, rows[0].ratio_gb), (1.0, 1.0));
                assert!(
                    rows.iter().all(|row| row.wrong == 0 && row.count == 4 && row.gb_per_s > 0.0)
                );
            }
            Err(error) => {
                assert!(error.to_string().contains("cannot be pinned"), "{error:#}");
                eprintln!("skipped: {error}");
            }
        }
    }
}
