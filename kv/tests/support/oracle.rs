//! What all nodes of a simulated run with copies share besides the network: who counts as lost, how
//! far the workers are, and how far the copies.

use std::collections::BTreeMap;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use caravan_kv::server::{ChainCounters, Copies};
use caravan_kv::{ServerAddress, ServerThread, Worker};
use caravan_van::sim::Network;

use super::simulated::start_nodes;

/// It says who is lost.
#[derive(Clone, Default)]
pub(crate) struct Oracle {
    /// A bit for each server that counts as lost.
    lost: Arc<AtomicU64>,
    /// Workers that have the tables.
    begun: Arc<AtomicU64>,
    /// Workers that have pushed everything.
    done: Arc<AtomicU64>,
    /// Whether all faults have come.
    is_calm: Arc<AtomicBool>,
    /// By server, its copies.
    copies: Arc<Mutex<BTreeMap<u64, Copies>>>,
    counters: Arc<Mutex<ChainCounters>>,
}

impl Oracle {
    /// Starts server threads as [`start_nodes`] does, each built by its index. They stop when that
    /// is set.
    pub(crate) fn start(
        &self,
        network: &Network,
        count: usize,
        build: impl Fn(&Network, usize) -> ServerThread + Clone + Send + 'static,
    ) -> (Vec<ServerAddress>, Arc<AtomicBool>) {
        let stop = Arc::new(AtomicBool::new(false));
        let (oracle, stopped) = (self.clone(), stop.clone());
        let (addresses, _) = start_nodes(network, count, move |network, index| {
            let mut server = build(network, index);
            while !stopped.load(Ordering::Relaxed) {
                let is_busy = server.step().unwrap();
                oracle.copies.lock().unwrap().insert(index as u64, server.copies());
                if !is_busy {
                    network.sleep(Duration::from_micros(100));
                }
            }
            *oracle.counters.lock().unwrap() += server.chains();
        });
        (addresses, stop)
    }

    /// Has a worker hear who is lost.
    pub(crate) fn tell(&self, mut worker: Worker) -> Worker {
        let oracle = self.clone();
        let watch = move || Ok((0..64).filter(|server| oracle.is_lost(*server as u64)).collect());
        worker.watch_servers(watch, Duration::from_micros(300));
        worker
    }

    /// Has a server count as lost.
    pub(crate) fn lose(&self, server: u64) {
        self.lost.fetch_or(1 << server, Ordering::Relaxed);
    }

    pub(crate) fn is_lost(&self, server: u64) -> bool {
        self.lost.load(Ordering::Relaxed) & 1 << server != 0
    }

    /// The first of so many servers that is not lost, from this one on and around.
    pub(crate) fn living(&self, from: u64, servers: u64) -> u64 {
        let mut all = (0..servers).map(|next| (from + next) % servers);
        all.find(|server| !self.is_lost(*server)).expect("one of them lives")
    }

    /// Enters that a worker has the tables.
    pub(crate) fn begin(&self) {
        self.begun.fetch_add(1, Ordering::Relaxed);
    }

    /// Waits until so many workers have the tables.
    pub(crate) fn wait_for_workers(&self, network: &Network, workers: u64) {
        while self.begun.load(Ordering::Relaxed) < workers {
            network.sleep(Duration::from_micros(100));
        }
    }

    /// Enters that all faults have come.
    pub(crate) fn calm_down(&self) {
        self.is_calm.store(true, Ordering::Relaxed);
    }

    pub(crate) fn is_calm(&self) -> bool {
        self.is_calm.load(Ordering::Relaxed)
    }

    /// Enters that a worker has pushed everything, and waits until so many have.
    pub(crate) fn end(&self, network: &Network, workers: u64) {
        self.done.fetch_add(1, Ordering::Relaxed);
        while self.done.load(Ordering::Relaxed) < workers {
            network.sleep(Duration::from_micros(500));
        }
    }

    /// The copies of a server as it saw them last.
    pub(crate) fn copies(&self, server: u64) -> Copies {
        self.copies.lock().unwrap().get(&server).copied().unwrap_or_default()
    }

    /// A server that is not lost, and where `of` is true of its copies.
    pub(crate) fn server(&self, of: impl Fn(&Copies) -> bool) -> Option<u64> {
        let copies = self.copies.lock().unwrap();
        let mut living = copies.iter().filter(|(server, _)| !self.is_lost(**server));
        living.find(|(_, copies)| of(copies)).map(|(server, _)| *server)
    }

    /// Waits until all servers that are not lost know who is, and all copies are whole.
    pub(crate) fn wait_for_copies(&self, network: &Network) {
        let lost = self.lost.load(Ordering::Relaxed).count_ones() as usize;
        let lacks = |it: &Copies| it.lost < lost || it.missing + it.coming > 0;
        assert!(wait_until(network, || self.server(lacks).is_none()), "a copy is missing");
    }

    /// What the servers have counted that have stopped.
    pub(crate) fn counters(&self) -> ChainCounters {
        *self.counters.lock().unwrap()
    }
}

/// Waits until something is so, but not for ever; returns whether it is.
pub(crate) fn wait_until(network: &Network, is_so: impl Fn() -> bool) -> bool {
    (0..4000).any(|_| {
        network.sleep(Duration::from_micros(50));
        is_so()
    })
}
