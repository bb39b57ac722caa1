//! One harness for everything that a simulated cluster promises under faults.
//!
//! A scenario is a set-up of servers, a workload for each worker, and a fault; the oracle looks at
//! the servers after each of their events, and the scenario at what its workers have read. Workers
//! and servers are the real code on the simulated van. A failure prints its seed, and
//! `CARAVAN_SEED` replays it; `CARAVAN_SEED=0..1000` runs a thousand seeds of all scenarios.

mod faults;
mod matrix;
mod oracle;
mod scenarios;
mod workload;

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use caravan_kv::node::Role;
use caravan_kv::server::{ChainCounters, MoveCounters};
use caravan_kv::{Handles, ServerAddress, ServerThread, Table, TableSpec, Timestamp, Worker};
use caravan_van::Value;
use caravan_van::sim::{Faults, Network, Node};

use self::faults::{At, Fate, Fault};
use self::oracle::{LOOK, Oracle};
use crate::support::simulated::{CREDITS, Draws, endpoint_with, start_nodes};

/// Node of the first worker.
const FIRST_WORKER: u32 = 100;

/// What the servers and workers of a run are.
#[derive(Clone)]
struct Setup {
    servers: u64,
    workers: u64,
    /// Credits of each lane.
    credits: u16,
    /// Bytes of rows that move together.
    piece_bytes: usize,
    /// Time that a server without work sleeps.
    look: Duration,
    /// Time that a worker waits for an answer.
    timeout: Duration,
    handles: Handles,
    network: Faults,
}

impl Default for Setup {
    fn default() -> Setup {
        Setup {
            servers: 3,
            workers: 3,
            credits: CREDITS,
            piece_bytes: 100,
            look: LOOK,
            timeout: Duration::from_secs(60),
            handles: Handles::default(),
            network: faults::quick(),
        }
    }
}

/// A simulated cluster whose servers run.
struct Sim {
    network: Network,
    seed: u64,
    setup: Setup,
    oracle: Oracle,
    addresses: Vec<ServerAddress>,
    stop: Arc<AtomicBool>,
}

impl Sim {
    fn start(seed: u64, setup: Setup) -> Sim {
        Sim::prepare(seed, setup, |server| server)
    }

    /// As [`Sim::start`], with servers that `prepare` has seen.
    fn prepare(
        seed: u64,
        setup: Setup,
        prepare: impl Fn(ServerThread) -> ServerThread + Clone + Send + 'static,
    ) -> Sim {
        let network = Network::new(seed, setup.network.clone());
        let (oracle, stop) = (Oracle::of(setup.servers), Arc::new(AtomicBool::new(false)));
        let (seen, stopped, of) = (oracle.clone(), stop.clone(), setup.clone());
        let count = setup.servers as usize;
        let (addresses, _) = start_nodes(&network, count, move |network, index| {
            let endpoint = endpoint_with(network, index as u32, Role::Server.number(), of.credits);
            let server = ServerThread::new(endpoint, index, count, of.handles.clone());
            let mut server = prepare(server.move_by(of.piece_bytes));
            while !stopped.load(Ordering::Relaxed) {
                let is_busy = server.step().unwrap();
                seen.enter(index as u64, &server);
                if !is_busy {
                    network.sleep(of.look);
                }
            }
            seen.leave(&server);
        });
        Sim { network, seed, setup, oracle, addresses, stop }
    }

    /// Starts a node with a worker of this rank.
    fn spawn<T: Send + 'static>(
        &self,
        name: &str,
        rank: u64,
        work: impl FnOnce(&mut Hand<'_>) -> T + Send + 'static,
    ) -> Node<T> {
        let (seed, setup, oracle) = (self.seed, self.setup.clone(), self.oracle.clone());
        let addresses = self.addresses.clone();
        self.network.spawn(name, move |network| {
            let node = FIRST_WORKER + rank as u32;
            let endpoint = endpoint_with(network, node, Role::Worker.number(), setup.credits);
            let worker = Worker::new(endpoint, &addresses, setup.timeout).unwrap();
            let worker = oracle.tell(worker);
            let draws = Draws(seed << 8 | rank);
            let workers = setup.workers;
            work(&mut Hand { network, worker, oracle, seed, rank, workers, draws })
        })
    }

    /// Starts the workers, which all do this.
    fn workers<T: Send + 'static>(
        &self,
        work: impl Fn(&mut Hand<'_>) -> T + Clone + Send + 'static,
    ) -> Vec<Node<T>> {
        let name = |rank: u64| format!("worker {rank}");
        (0..self.setup.workers).map(|rank| self.spawn(&name(rank), rank, work.clone())).collect()
    }

    /// Brings a fault about; `losses` servers may be lost at once.
    fn fate(&self, fault: Fault, losses: u32, pause_us: u64) -> Node<Vec<At>> {
        let (oracle, mut draws) = (self.oracle.clone(), Draws(self.seed));
        let Setup { servers, workers, .. } = self.setup;
        let fate = Fate { fault, servers, workers, losses: losses.into(), pause_us };
        self.network.spawn("fate", move |network| fate.act(network, &oracle, &mut draws))
    }

    /// What a node returns.
    fn join<T>(&self, node: Node<T>) -> T {
        node.join().unwrap_or_else(|stopped| panic!("seed {}: {stopped}", self.seed))
    }

    fn join_all<T>(&self, nodes: Vec<Node<T>>) -> Vec<T> {
        nodes.into_iter().map(|node| self.join(node)).collect()
    }

    /// Stops the servers; returns what those have counted that were left.
    fn stop(self) -> (ChainCounters, MoveCounters) {
        self.stop.store(true, Ordering::Relaxed);
        self.network.sleep(Duration::from_millis(2));
        self.oracle.counters()
    }
}

/// A worker of a run, and what its workload needs.
struct Hand<'a> {
    network: &'a Network,
    worker: Worker,
    oracle: Oracle,
    seed: u64,
    rank: u64,
    workers: u64,
    draws: Draws,
}

impl Hand<'_> {
    fn create(&mut self, spec: &TableSpec) -> Table {
        self.worker.admin().create_table(spec).unwrap()
    }

    /// Sleeps for less than so many microseconds.
    fn pause(&mut self, below_us: u64) {
        self.network.sleep(Duration::from_micros(self.draws.below(below_us)));
    }

    /// Waits for a request that must not fail.
    fn wait(&mut self, timestamp: Timestamp) {
        self.worker.wait(timestamp).unwrap();
    }

    /// The values of the keys below this one.
    fn pull<V: Value>(&mut self, table: Table, keys: u64) -> Vec<V> {
        let keys: Vec<u64> = (0..keys).collect();
        let pulled = self.worker.pull(table, &keys).unwrap();
        self.worker.wait(pulled).unwrap().values::<V>().to_vec()
    }

    /// Makes this worker hear of losses from another oracle from now on.
    fn hear(&mut self, oracle: &Oracle) {
        oracle.hear(&mut self.worker);
    }

    /// Records that this worker has pushed everything, and waits until all have.
    fn end(&mut self) {
        self.oracle.end();
        while !self.oracle.is_over(self.workers) {
            self.network.sleep(Duration::from_micros(500));
        }
    }
}

/// Whether all seeds of a scenario are run, which meet everything together.
fn has_all_seeds() -> bool {
    std::env::var("CARAVAN_SEED").is_err()
}
