//! Server threads and workers over real sockets, without a scheduler; and what else tests share.

pub(crate) mod drive;
pub(crate) mod iterations;
#[allow(clippy::duplicate_mod, reason = "fuzz targets have it by its path")]
pub(crate) mod own_filters;
pub(crate) mod raw_lane;
pub(crate) mod simulated;
pub(crate) mod ticks;
mod vans;

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc;
use std::thread::JoinHandle;
use std::time::Duration;

use caravan_kv::consistency::Admission;
use caravan_kv::filter::Traffic;
use caravan_kv::node::{Role, open};
use caravan_kv::server::{Pulled, Request};
use caravan_kv::{Handles, Refusal, Refused, ServerAddress, ServerThread, Shard, Van, Worker};
use caravan_van::{Endpoint, Identity, Pool, VanConfig};

pub(crate) use vans::{any, auto_may_take, node, rdma, runs_over, vans};

pub(crate) const TIMEOUT: Duration = Duration::from_secs(20);

/// Settings of all nodes of a test.
pub(crate) fn config(credits: u16, memory_bytes: usize) -> VanConfig {
    let queue_depth = 4 * usize::from(credits) + 64;
    VanConfig { credits, memory_bytes, queue_depth, rdma: rdma(), ..VanConfig::default() }
}

pub(crate) fn endpoint(van: Van, config: &VanConfig) -> Endpoint {
    Endpoint::new(open(van, config).unwrap(), config.node, config.credits)
}

/// Server threads, stopped when this is dropped.
pub(crate) struct Servers {
    van: Van,
    config: VanConfig,
    threads: Vec<(Arc<AtomicBool>, Option<JoinHandle<Traffic>>)>,
    pub(crate) addresses: Vec<ServerAddress>,
}

impl Servers {
    pub(crate) fn start(van: Van, count: usize, config: &VanConfig, handles: &Handles) -> Servers {
        let mut servers =
            Servers { van, config: config.clone(), threads: Vec::new(), addresses: Vec::new() };
        for index in 0..count {
            let (config, handles, stop) =
                (config.clone(), handles.clone(), Arc::new(AtomicBool::new(false)));
            let (say_address, address) = mpsc::channel();
            let stopped = stop.clone();
            let run = move || {
                let identity = Identity { role: Role::Server.number(), ..config.identity };
                let endpoint = endpoint(van, &VanConfig { identity, ..config });
                let mut server = ServerThread::new(endpoint, index, count, handles);
                say_address.send(server.address().to_owned()).unwrap();
                server.run(&stopped).unwrap();
                server.traffic(1)
            };
            servers.threads.push((stop, Some(std::thread::spawn(run))));
            let (name, address) = (format!("server {index}"), address.recv().unwrap());
            servers.addresses.push(ServerAddress { name, address });
        }
        servers
    }

    pub(crate) fn worker(&self) -> Worker {
        Worker::new(endpoint(self.van, &self.config), &self.addresses, TIMEOUT).unwrap()
    }

    /// Stops one thread, which closes its lanes. Returns its counters of the filters of table 1.
    pub(crate) fn end(&mut self, index: usize) -> Traffic {
        let (stop, thread) = &mut self.threads[index];
        stop.store(true, Ordering::Relaxed);
        thread.take().map(|thread| thread.join().unwrap()).unwrap_or_default()
    }
}

impl Drop for Servers {
    fn drop(&mut self) {
        for index in 0..self.threads.len() {
            let (stop, thread) = &mut self.threads[index];
            stop.store(true, Ordering::Relaxed);
            if let Some(thread) = thread.take() {
                let _ = thread.join();
            }
        }
    }
}

/// A shard whose pulls wait for its clock. Each push advances the clock by one, and so does the
/// pull of key 5 when it is executed. A pull answers with its number, which shows the order of
/// execution.
#[derive(Default)]
pub(crate) struct Clocked {
    clock: std::cell::Cell<u64>,
    pulls: u64,
}

impl Shard for Clocked {
    fn admit(&self, request: &Request<'_>) -> Admission {
        if request.pulls && request.clock > self.clock.get() {
            Admission::AfterClock(request.clock)
        } else {
            Admission::Now
        }
    }

    fn clock(&self) -> u64 {
        self.clock.get()
    }

    fn push(&mut self, _request: &Request<'_>, _memory: &Pool) -> Result<(), Refused> {
        self.clock.set(self.clock.get() + 1);
        Ok(())
    }

    fn pull(&mut self, request: &Request<'_>) -> Result<Pulled<'_>, Refused> {
        self.pulls += 1;
        if request.keys.first() == Some(&5) {
            self.clock.set(self.clock.get() + 1);
        }
        Ok(Pulled::Bytes(8 * request.keys.len()))
    }

    fn read(&mut self, _request: &Request<'_>, into: &mut [u8]) {
        into.chunks_exact_mut(8).for_each(|row| row.copy_from_slice(&self.pulls.to_le_bytes()));
    }

    fn command(&mut self, sender: u32, body: &[u8]) -> Result<Vec<u8>, Refused> {
        match body {
            b"no" => Err(Refusal::Shape.because("it said no")),
            b"pulls" => Ok(self.pulls.to_string().into_bytes()),
            _ => Ok([format!("{sender}:").as_bytes(), body].concat()),
        }
    }
}

/// Handles with [`Clocked`] as "clocked", and the closure `stored = max(stored, pushed)` as "max".
pub(crate) fn handles() -> Handles {
    let clocked = |_: &_, _: _, _: &_| Ok(Box::new(Clocked::default()) as Box<dyn Shard>);
    let max = |_: &_| {
        |_key: u64, stored: &mut [f64], pushed: &[f64]| {
            stored
                .iter_mut()
                .zip(pushed)
                .for_each(|(stored, pushed)| *stored = stored.max(*pushed));
        }
    };
    Handles::default().with("clocked", clocked).with_rule::<f64, _>("max", max)
}
