//! `caravan bench failover`: kills a server, or stops it, while workers push to a table with a
//! replica, and says for how long no push to its range was acknowledged.
//!
//! Each fall has a cluster of its own. One worker pushes to the range of the server that falls, the
//! other one to all other ranges. Both note their pauses by the clock that all processes of this
//! host share. At the end the table has to hold what was acknowledged.

pub(crate) mod fall;
pub(crate) mod worker;

use std::time::Duration;

use anyhow::{Context, Result, ensure};
use caravan_kv::{Cluster, ClusterConfig, Target, TaskId, Worker};
use rustix::process::{Pid, Signal, kill_process};
use serde::Serialize;

use self::fall::Fall;
use self::worker::{Pause, Pushed, Pushes, Task, clock, spec};
use crate::measure::figures::{milli, nanoseconds, quantile_us, record};

use crate::cli::ending::Usage;
use crate::cli::values::name;
use crate::cli::{Common, FailoverArgs};
use crate::cluster;
use crate::doctor::machine::Machine;
use crate::report::{figure, row};

row! {
    /// The row of `caravan bench failover`.
    #[derive(Debug, Clone, PartialEq, Serialize)]
    pub(crate) struct FailoverRow is "failover" {
        van: String => "van",
        fall: Fall => "fall" as name,
        heartbeat_ms: u64 => "heartbeat",
        count: u64 => "count",
        p50_ms: f64 => "p50" as figure,
        p99_ms: f64 => "p99" as figure,
        max_ms: f64 => "max" as figure,
        /// The longest pause in pushes to other ranges after any fall.
        others_max_ms: f64 => "others max" as figure,
        wrong: u64 => "wrong",
    }
    title |_| "failover: from the fall of a server to the first acknowledged push to its range, ms";
    counts wrong;
}

/// Servers of a cluster, at least: two that go on, so that there is a copy again.
const SERVERS_MIN: usize = 3;

/// How long workers push, and when the server falls.
const PUSHES: Duration = Duration::from_secs(1);
const FALLS_AFTER: Duration = Duration::from_millis(300);

/// Runs `caravan bench failover`.
///
/// # Errors
/// [`Usage`] for nodes that are no processes of this host; what keeps a cluster from coming up; a
/// push that failed; any number in the table that is not what was acknowledged.
pub(crate) fn run(common: &Common, args: &FailoverArgs) -> Result<()> {
    let mut config = cluster::config(common)?;
    let is_elsewhere = common.in_process || common.external || config.node.role.is_some();
    let why = "bench failover kills servers that it starts as processes of this host; leave \
               --in-process, --external and --hosts out";
    ensure!(!is_elsewhere, Usage(why.to_owned()));
    config.servers = config.servers.max(SERVERS_MIN);
    config.workers = 2;
    config.node.server_losses_max = config.node.server_losses_max.max(1);
    let count = if common.smoke { 2 } else { u64::from(args.count) };
    let mut report = Machine::first(common, count as usize)?;
    let mut gaps = nanoseconds();
    let mut row = FailoverRow {
        van: String::new(),
        fall: args.fall,
        heartbeat_ms: config.node.heartbeat.as_millis() as u64,
        count,
        p50_ms: 0.0,
        p99_ms: 0.0,
        max_ms: 0.0,
        others_max_ms: 0.0,
        wrong: 0,
    };
    for number in 0..count {
        report.doing(format!("failover {}", name(&args.fall)));
        let fallen = measure_fall(&config, common, args.fall, number as usize)?;
        record(&mut gaps, fallen.gap);
        row.others_max_ms = row.others_max_ms.max(milli(fallen.others.as_secs_f64() * 1e3));
        row.wrong += fallen.wrong;
        row.van = fallen.van;
        report.step();
    }
    let quantile_ms = |quantile| milli(quantile_us(&gaps, quantile) / 1e3);
    (row.p50_ms, row.p99_ms, row.max_ms) = (quantile_ms(0.5), quantile_ms(0.99), quantile_ms(1.0));
    report.row(&row)?;
    report.end("sums")
}

/// What one fall cost.
struct Fallen {
    van: String,
    gap: Duration,
    others: Duration,
    wrong: u64,
}

/// Lets the server of this number fall, of which there are fewer.
fn measure_fall(
    config: &ClusterConfig,
    common: &Common,
    fall: Fall,
    number: usize,
) -> Result<Fallen> {
    let mut cluster = cluster::launch(config, common)?;
    let server = number % config.servers;
    let keys = keys_by_worker(&mut cluster.client()?, config.threads, server)?;
    // All have the table before pushes begin.
    run_pushes(&mut cluster, &Task { keys: keys.clone(), time: Duration::ZERO })?;
    let task = serde_json::to_value(Task { keys, time: PUSHES })?;
    let pushing = cluster.submit(Target::Workers, Pushes::NAME, &task)?;
    // At different times between two heartbeats.
    std::thread::sleep(FALLS_AFTER + Duration::from_millis(number as u64 * 13 % 100));
    let processes = cluster.processes();
    let is_it = |(name, _): &&(String, u32)| *name == format!("server {server}");
    let (_, pid) = processes.iter().find(is_it).context("a server is a process")?;
    let pid = Pid::from_raw(i32::try_from(*pid)?).context("a process has a number")?;
    let fell = clock();
    kill_process(pid, if fall == Fall::Kill { Signal::KILL } else { Signal::STOP })?;
    let pushed = answers(&mut cluster, pushing)?;
    if fall == Fall::Stop {
        kill_process(pid, Signal::KILL)?;
    }
    let [of_it, of_others] = &pushed[..] else { anyhow::bail!("two workers push") };
    let ran = of_it.began.max(of_others.began) < fell && of_it.ended.min(of_others.ended) > fell;
    ensure!(ran, "the machine is too busy: the server did not fall while both workers pushed");
    let wrong = wrong_sums(&cluster, &pushed)?;
    let van = cluster.config().node.van.to_string();
    cluster.shutdown()?;
    let gap = of_it.longest_at(fell).map_or(Duration::ZERO, |pause| pause.until - fell);
    let others = of_others.longest_after(fell).map_or(Duration::ZERO, Pause::length);
    Ok(Fallen { van, gap, others, wrong })
}

/// The first key of each shard of the server that falls, and of those of all others: one worker
/// pushes to each list.
fn keys_by_worker(client: &mut Worker, threads: usize, server: usize) -> Result<[Vec<u64>; 2]> {
    let table = client.admin().create_table(&spec()?)?;
    let mut keys = [Vec::new(), Vec::new()];
    for shard in client.info().shards(table)? {
        let worker = usize::from(shard.server / threads != server);
        keys[worker].push(shard.range.begin());
    }
    Ok(keys)
}

fn run_pushes(cluster: &mut Cluster, task: &Task) -> Result<Vec<Pushed>> {
    let id = cluster.submit(Target::Workers, Pushes::NAME, &serde_json::to_value(task)?)?;
    answers(cluster, id)
}

fn answers(cluster: &mut Cluster, task: TaskId) -> Result<Vec<Pushed>> {
    cluster.wait(task)?.into_iter().map(|it| Ok(serde_json::from_value(it)?)).collect()
}

/// How many keys do not hold what was acknowledged.
fn wrong_sums(cluster: &Cluster, pushed: &[Pushed]) -> Result<u64> {
    let mut client = cluster.client()?;
    let table = client.admin().create_table(&spec()?)?;
    let mut wrong = 0;
    for (key, sum) in pushed.iter().flat_map(|it| &it.sums) {
        let pulled = client.pull(table, &[*key])?;
        wrong += u64::from(client.wait(pulled)?.values::<i64>() != [*sum]);
    }
    Ok(wrong)
}
