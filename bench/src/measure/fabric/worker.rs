//! The worker's side of `caravan bench fabric`: measures the link from its host to each other one.
//!
//! In round r, worker i asks server (i + r) mod n. So in each round every host sends to one host
//! and receives from one, and after n - 1 rounds every link has been measured in both directions.

use std::collections::VecDeque;
use std::time::Duration;

use anyhow::{Context, Result, ensure};
use caravan_kv::node::address_over;
use caravan_kv::{App, Table, TableSpec, ValueType, Worker, WorkerNode};
use caravan_van::{KeyRange, MIXED, Value as _};
use serde::{Deserialize, Serialize};
use serde_json::Value;

use super::judge::median;
use crate::measure::answers::answered;

/// What all workers do at a time.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub(super) struct Task {
    /// How often all links are measured.
    pub(super) repeats: usize,
    /// Time of each link for latency, and as much again for bandwidth.
    pub(super) lasts: Duration,
    /// Values of a push that measures bandwidth.
    pub(super) bytes: usize,
    /// Pushes in flight.
    pub(super) window: usize,
}

/// What a worker answers.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub(super) struct Part {
    pub(super) van: String,
    /// That of the lanes to each server.
    pub(super) vans: Vec<String>,
    /// Those of this worker that they go over, where the van has ports.
    #[serde(default)]
    pub(super) ports: Vec<Option<String>>,
    /// The name of its host, and its address.
    pub(super) host: String,
    pub(super) address: String,
    /// The address of each server.
    pub(super) servers: Vec<String>,
    /// The links to each server in order; its own host has no figures.
    pub(super) links: Vec<Link>,
}

/// Figures of one link, of each time it was measured.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
pub(super) struct Link {
    pub(super) p50_us: Vec<f64>,
    pub(super) gb_per_s: Vec<f64>,
    pub(super) wrong: u64,
}

pub(crate) struct Links;

impl Links {
    pub(crate) const NAME: &str = "bench-fabric";
}

impl App for Links {
    fn run(&mut self, node: &mut WorkerNode, body: Value) -> Result<Value, String> {
        answered(body, |task| part(node, &task))
    }
}

fn part(node: &mut WorkerNode, task: &Task) -> Result<Part> {
    let (rank, hosts) = (node.rank, node.workers);
    let all = node.worker.info().servers();
    let threads = all / hosts;
    ensure!(
        threads * hosts == all,
        "{hosts} hosts need as many servers, with as many threads each"
    );
    let [small, large] = [(1, SMALL_BYTES), (2, task.bytes)].map(|(id, bytes)| {
        let width = (bytes / size_of::<f32>()) as u32;
        // A key of each server thread.
        let range = KeyRange::new(0, all as u64).context("a fabric has servers")?;
        let spec = TableSpec::new(id, &format!("fabric {bytes}"), ValueType::F32, width);
        Ok::<Table, anyhow::Error>(
            node.worker.admin().create_table(&spec.keys(range).handle("assign"))?,
        )
    });
    let tables = [small?, large?];
    let mut links = vec![Link::default(); hosts];
    for repeat in 0..task.repeats {
        for round in 1..hosts {
            node.barrier(&format!("fabric {repeat} {round}"))?;
            let to = (rank + round) % hosts;
            let key = (to * threads) as u64;
            measure(&mut node.worker, task, tables, key, rank, &mut links[to])?;
        }
    }
    node.barrier("fabric ends")?;
    let servers = node.worker.info().addresses().step_by(threads);
    let vans = node.worker.info().vans().into_iter().step_by(threads);
    let ports = node.worker.info().ports().into_iter().step_by(threads);
    Ok(Part {
        van: node.worker.info().van(),
        vans: vans.map(|van| van.unwrap_or(MIXED).to_owned()).collect(),
        ports: ports.map(|port| port.map(str::to_owned)).collect(),
        host: rustix::system::uname().nodename().to_string_lossy().into_owned(),
        address: node.config.host.clone(),
        servers: servers.map(|server| address_over(&server.address, "tcp").to_owned()).collect(),
        links,
    })
}

/// Values of a request that measures latency, in bytes.
const SMALL_BYTES: usize = 8;

/// Measures the link to the server of `key` once.
fn measure(
    worker: &mut Worker,
    task: &Task,
    [small, large]: [Table; 2],
    key: u64,
    rank: usize,
    link: &mut Link,
) -> Result<()> {
    let mut times = Vec::new();
    let began = worker.now();
    let mut now = began;
    let mut since = now;
    // The first request connects and wakes what slept.
    while now - began < task.lasts || times.len() < 2 {
        let timestamp = worker.pull(small, &[key])?;
        worker.wait(timestamp)?;
        now = worker.now();
        times.push((now - since).as_secs_f64() * 1e6);
        since = now;
    }
    link.p50_us.push(median(times.into_iter().skip(1)));

    let mut values = worker.memory().allocate(task.bytes)?;
    let mine = rank as f32 + 1.0;
    f32::view_mut(&mut values).context("a whole number of values")?.fill(mine);
    let values = values.share();
    let mut in_flight = VecDeque::with_capacity(task.window);
    let mut answered: u64 = 0;
    let mut began = worker.now();
    let mut now = began;
    while now - began < task.lasts || answered < 2 {
        while in_flight.len() < task.window {
            in_flight.push_back(worker.push_shared(large, &[key], &values)?);
        }
        let oldest = in_flight.pop_front().context("a window has room for one")?;
        worker.wait(oldest)?;
        now = worker.now();
        answered += 1;
        if answered == 1 {
            began = now; // the link is full from now on
        }
    }
    let bytes = (answered - 1) as f64 * task.bytes as f64;
    link.gb_per_s.push(bytes / (now - began).as_secs_f64().max(1e-9) / 1e9);
    for timestamp in in_flight {
        worker.wait(timestamp)?;
    }
    let timestamp = worker.pull(large, &[key])?;
    let answer = worker.wait(timestamp)?;
    let is_right = answer.values::<f32>().iter().all(|value| *value == mine);
    link.wrong += u64::from(!is_right);
    Ok(())
}
