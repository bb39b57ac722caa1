//! `caravan bench placement`: the cost of a server thread, or its memory, on the wrong NUMA node.
//!
//! One worker and a server thread for each placement run in this process over the same van. They
//! take turns, batch by batch: a machine that drifts drifts for all of them. The other rows are
//! compared with the first.

use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc;
use std::thread::{self, Builder};

use anyhow::{Context, Result, ensure};
use caravan_kv::node::open;
use caravan_kv::{NodeConfig, ServerAddress, ServerThread, Worker};
use caravan_numa::{Near, NumaId, PageSource, Plan, PuId, Seat, Topology, pin_current_thread};
use caravan_van::{Endpoint, VanConfig};
use serde::Serialize;

use super::figures::{micro, milli, quantile_us, ratio};
use super::latency::{Timed, batch};
use super::requests::{Requests, Tables};
use super::subject::{Op, Shape, Subject, timed_stream};
use crate::cli::Common;
use crate::cli::ending::{NO_THREAD, Usage};
use crate::cluster;
use crate::doctor::machine::Machine;
use crate::report::{figure, row, say};

row! {
    /// One row of `caravan bench placement`.
    #[derive(Debug, Clone, PartialEq, Serialize)]
    pub(crate) struct PlacementCost is "placement" {
        van: String => "van",
        /// The placement of the server thread, seen from the worker.
        server: String,
        /// The worker runs here, and its memory is here.
        worker_pu: usize,
        /// None if the kernel may move the server thread.
        server_pu: Option<usize> => "PU" as pu,
        server_node: Option<usize>,
        /// None if memory lies where it is first touched.
        memory_node: Option<usize> => "memory" as memory,
        /// Pushes of [`LATENCY`]'s size, one in flight.
        count: u64,
        p50_us: f64 => "p50 µs" as figure,
        p99_us: f64 => "p99" as figure,
        /// Pushes of [`BANDWIDTH`]'s size, a window of them in flight.
        gb_per_s: f64 => "GB/s" as figure,
        /// To the first row.
        ratio_p50: f64 => "p50 ratio" as ratio,
        ratio_gb: f64 => "GB ratio" as ratio,
        wrong: u64 => "wrong"; "  server" |row| format!("  {}", row.server),
    }
    title |row| format!(
        "placement: pushes to a server thread in this process, worker on PU {}; \
         64 B with one in flight, 1 MiB with a window",
        row.worker_pu
    );
    counts wrong;
}

fn pu(pu: &Option<usize>) -> String {
    pu.map_or("any".to_owned(), |pu| pu.to_string())
}

fn memory(node: &Option<usize>) -> String {
    node.map_or("touch".to_owned(), |node| format!("node {node}"))
}

const LATENCY: Shape = Shape { op: Op::Push, keys: 1, bytes: 64, window: 1 };
const BANDWIDTH: Shape = Shape { op: Op::Push, keys: 1, bytes: 1 << 20, window: 8 };

/// A placement of the server thread.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct Case {
    name: &'static str,
    seat: Option<Seat>,
    memory: Option<NumaId>,
}

/// The worker's seat, and the cases that this machine has, the best one first.
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

/// Runs `caravan bench placement`.
///
/// # Errors
/// [`Usage`] with `--numa-node`; what keeps it from measuring; any wrong answer.
pub(crate) fn run(common: &Common) -> Result<()> {
    ensure!(
        common.numa_node.is_none(),
        Usage("bench placement measures every place; leave --numa-node out".to_owned())
    );
    let (batches, batch) = if common.smoke { (1, 20) } else { (10, 2000) };
    let bench = Bench::new(cluster::config(common)?.node, batches, batch)?;
    let mut report = Machine::first(common, 0)?;
    if bench.topology.nodes().len() < 2 {
        say("this machine has one NUMA node: no memory is far, only cores differ");
    }
    for row in bench.measure()? {
        report.row(&row)?;
    }
    report.end("answers")
}

struct Bench {
    config: NodeConfig,
    topology: Topology,
    worker: Seat,
    cases: Vec<Case>,
    batches: u64,
    /// Requests of a batch, of small and of large ones.
    small: u64,
    large: u64,
}

impl Bench {
    fn new(config: NodeConfig, batches: u64, small: u64) -> Result<Self> {
        let topology = Topology::this_machine()?;
        let (worker, cases) = cases(&topology)?;
        let large = (small / 20).max(2);
        Ok(Bench { config, topology, worker, cases, batches, small, large })
    }

    fn measure(&self) -> Result<Vec<PlacementCost>> {
        let stop = AtomicBool::new(false);
        let done = Stop(&stop);
        thread::scope(|scope| {
            let done = done; // dropped before the scope waits for the servers
            let mut addresses = Vec::new();
            for case in &self.cases {
                let (address, opened) = mpsc::channel();
                let stop = &stop;
                let serve = move || self.serve(*case, &address, stop);
                Builder::new().spawn_scoped(scope, serve).context(NO_THREAD)?;
                addresses.push(opened.recv().context("a server thread ended early")??);
            }
            let work = move || self.work(&addresses);
            let worker = Builder::new().spawn_scoped(scope, work).context(NO_THREAD)?;
            let rows =
                worker.join().unwrap_or_else(|_| Err(anyhow::anyhow!("the worker panicked")));
            drop(done);
            rows
        })
    }

    /// One server thread. It takes its place before it touches any memory.
    fn serve(&self, case: Case, address: &mpsc::Sender<Result<String>>, stop: &AtomicBool) {
        let placed = self.place(case.seat.map(|seat| seat.pu));
        match placed.and_then(|()| self.endpoint(0, case.memory)) {
            Ok(endpoint) => {
                let mut server = ServerThread::new(endpoint, 0, 1, crate::apps::handles());
                let _ = address.send(Ok(server.address().to_owned()));
                // A worker whose server ends gets an error of its own, which tells more.
                let _ = server.run(stop);
            }
            Err(error) => drop(address.send(Err(error))),
        }
    }

    fn place(&self, pu: Option<PuId>) -> Result<()> {
        let Some(pu) = pu else { return Ok(()) };
        let placed = pin_current_thread(&self.topology, pu);
        ensure!(
            placed.is_pinned(),
            "{placed}; there is nothing to compare where threads cannot be pinned"
        );
        Ok(())
    }

    fn endpoint(&self, node: u32, memory: Option<NumaId>) -> Result<Endpoint> {
        let config = &self.config;
        let pages = PageSource { node: memory, huge: config.huge_pages, shareable: false };
        let van = VanConfig { pages, ..config.van_config(node) };
        Ok(Endpoint::new(open(config.van, &van)?, node, config.credits))
    }

    /// The worker: takes turns with all servers; the first round only warms up.
    fn work(&self, addresses: &[String]) -> Result<Vec<PlacementCost>> {
        self.place(Some(self.worker.pu))?;
        let mut tallies = Vec::new();
        for (at, address) in addresses.iter().enumerate() {
            let endpoint = self.endpoint(1 + at as u32, self.worker.node)?;
            let name = self.cases[at].name.to_owned();
            let server = ServerAddress { name, address: address.clone() };
            let worker = Worker::connect(endpoint, &[server], self.config.join_timeout)?;
            let tables = Tables::default();
            tallies.push(Tally { worker, tables, timed: Timed::default(), seconds: 0.0 });
        }
        for round in 0..=self.batches {
            for tally in &mut tallies {
                self.turn(tally, round > 0)?;
            }
        }
        Ok(self.rows(&tallies))
    }

    /// One batch of each size.
    fn turn(&self, tally: &mut Tally, counts: bool) -> Result<()> {
        let eager_bytes = self.config.eager_bytes;
        let mut requests = Requests::new(&mut tally.worker, &mut tally.tables, eager_bytes);
        requests.prepare(LATENCY)?;
        tally.timed.add(&batch(self.small, &mut requests)?, counts);
        requests.prepare(BANDWIDTH)?;
        let large = timed_stream(self.large, &mut requests)?;
        tally.timed.wrong += large.wrong;
        tally.seconds += if counts { large.seconds } else { 0.0 };
        Ok(())
    }

    fn rows(&self, tallies: &[Tally]) -> Vec<PlacementCost> {
        let p50 = |tally: &Tally| quantile_us(&tally.timed.nanos, 0.5);
        let bytes = (self.batches * self.large) as f64 * BANDWIDTH.bytes as f64;
        let gb = |tally: &Tally| bytes / 1e9 / tally.seconds.max(1e-9);
        let row = |(case, tally): (&Case, &Tally)| PlacementCost {
            van: tally.worker.info().van(),
            server: case.name.to_owned(),
            worker_pu: self.worker.pu.0,
            server_pu: case.seat.map(|seat| seat.pu.0),
            server_node: case.seat.and_then(|seat| seat.node).map(|node| node.0),
            memory_node: case.memory.map(|node| node.0),
            count: tally.timed.nanos.len(),
            p50_us: milli(p50(tally)),
            p99_us: milli(quantile_us(&tally.timed.nanos, 0.99)),
            gb_per_s: micro(gb(tally)),
            ratio_p50: milli(p50(tally) / p50(&tallies[0])),
            ratio_gb: milli(gb(tally) / gb(&tallies[0])),
            wrong: tally.timed.wrong,
        };
        self.cases.iter().zip(tallies).map(row).collect()
    }
}

/// Ends the servers, however the measurement ends.
struct Stop<'a>(&'a AtomicBool);

impl Drop for Stop<'_> {
    fn drop(&mut self) {
        self.0.store(true, Ordering::Relaxed);
    }
}

/// The figures of one case so far.
struct Tally {
    worker: Worker,
    tables: Tables,
    timed: Timed,
    /// Of large pushes.
    seconds: f64,
}

#[cfg(test)]
mod tests {
    use super::*;

    #[cfg(feature = "hwloc")]
    fn of(description: &str) -> Vec<(&'static str, Option<usize>, Option<usize>)> {
        let (worker, cases) = cases(&Topology::from_synthetic(description).unwrap()).unwrap();
        assert_eq!(worker.pu, PuId(0));
        let place = |case: Case| (case.name, case.seat.map(|s| s.pu.0), case.memory.map(|n| n.0));
        cases.into_iter().map(place).collect()
    }

    #[test]
    #[cfg(feature = "hwloc")]
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
        let config = NodeConfig { van: caravan_kv::Van::Tcp, ..NodeConfig::default() };
        let bench = Bench::new(config, 1, 4).unwrap();
        match bench.measure() {
            Ok(rows) => {
                assert_eq!(rows.len(), bench.cases.len());
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
