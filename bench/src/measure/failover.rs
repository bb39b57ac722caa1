//! `caravan bench failover`: kills a server, or stops it, while workers push to a table with a
//! replica, and says for how long no push to its range was acknowledged.
//!
//! Each fall has a cluster of its own. One worker pushes to the range of the server that falls, the
//! other one to all other ranges. Both note their pauses by the clock that all processes of this
//! host share. At the end the table has to hold what was acknowledged.

use std::time::{Duration, SystemTime, UNIX_EPOCH};

use anyhow::{Context, Result, ensure};
use caravan_kv::{
    App, Cluster, ClusterConfig, TableSpec, Target, TaskId, ValueType, Worker, WorkerNode,
};
use caravan_van::KeyRange;
use clap::ValueEnum;
use rustix::process::{Pid, Signal, kill_process};
use serde::{Deserialize, Serialize};
use serde_json::Value;

use super::figures::{milli, nanoseconds, quantile_us, record};
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

/// How a server falls.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, ValueEnum)]
#[serde(rename_all = "kebab-case")]
pub(crate) enum Fall {
    /// Its process is killed: its lanes break.
    Kill,
    /// Its process is stopped: it falls silent.
    Stop,
}

/// Servers of a cluster, at least: two that go on, so that there is a copy again.
const SERVERS_MIN: usize = 3;

/// Keys of the table.
const KEYS: u64 = 600;

/// How long workers push, and when the server falls.
const PUSHES: Duration = Duration::from_secs(1);
const FALLS_AFTER: Duration = Duration::from_millis(300);

/// Shorter pauses are not noted.
const PAUSE_MIN: Duration = Duration::from_micros(200);

/// How long after the fall an answer may come that had left before.
const ON_THE_WAY: Duration = Duration::from_millis(1);

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
        let fallen = fall(&config, common, args.fall, number as usize)?;
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
fn fall(config: &ClusterConfig, common: &Common, fall: Fall, number: usize) -> Result<Fallen> {
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
    let table = client.create_table(&spec()?)?;
    let mut keys = [Vec::new(), Vec::new()];
    for shard in client.shards(table)? {
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
    let table = client.create_table(&spec()?)?;
    let mut wrong = 0;
    for (key, sum) in pushed.iter().flat_map(|it| &it.sums) {
        let pulled = client.pull(table, &[*key])?;
        wrong += u64::from(client.wait(pulled)?.values::<i64>() != [*sum]);
    }
    Ok(wrong)
}

fn spec() -> Result<TableSpec> {
    let keys = KeyRange::new(0, KEYS).context("it has keys")?;
    Ok(TableSpec::new(1, "failover", ValueType::I64, 1).keys(keys).replicas(1))
}

/// Time on the clock that all processes of this host share.
fn clock() -> Duration {
    SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default()
}

/// What workers do.
#[derive(Debug, Clone, Serialize, Deserialize)]
struct Task {
    /// The keys to which each worker pushes.
    keys: [Vec<u64>; 2],
    /// How long they push.
    time: Duration,
}

/// A time in which a worker had no push acknowledged.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
struct Pause {
    from: Duration,
    until: Duration,
}

impl Pause {
    fn length(self) -> Duration {
        self.until - self.from
    }
}

/// What a worker has done.
#[derive(Debug, Default, Serialize, Deserialize)]
struct Pushed {
    /// What was acknowledged, by key.
    sums: Vec<(u64, i64)>,
    pauses: Vec<Pause>,
    began: Duration,
    ended: Duration,
}

impl Pushed {
    /// The longest pause that was not over at this time.
    fn longest_after(&self, time: Duration) -> Option<Pause> {
        let pauses = self.pauses.iter().filter(|pause| pause.until > time);
        pauses.max_by_key(|pause| pause.length()).copied()
    }

    /// The same, of those that had begun by then or when the last answers were on their way.
    fn longest_at(&self, time: Duration) -> Option<Pause> {
        let had_begun = |pause: &&Pause| pause.until > time && pause.from < time + ON_THE_WAY;
        self.pauses.iter().filter(had_begun).max_by_key(|pause| pause.length()).copied()
    }
}

/// The worker's side.
pub(crate) struct Pushes;

impl Pushes {
    pub(crate) const NAME: &str = "bench-failover";

    /// Pushes to the ranges of the server that falls, or as another worker to those of all others.
    fn push(node: &mut WorkerNode, task: &Task) -> Result<Pushed> {
        let worker = &mut node.worker;
        let table = worker.create_table(&spec()?)?;
        let mine = task.keys.get(node.rank).context("two workers push")?;
        let mut sums: Vec<(u64, i64)> = mine.iter().map(|key| (*key, 0)).collect();
        let mut pauses = Vec::new();
        let began = clock();
        let mut from = began;
        let until = began + task.time;
        while from < until {
            for (key, sum) in &mut sums {
                let pushed = worker.push(table, &[*key], &[1_i64])?;
                worker.wait(pushed)?;
                *sum += 1;
                let pause = Pause { from, until: clock() };
                if pause.length() >= PAUSE_MIN {
                    pauses.push(pause);
                }
                from = pause.until;
            }
        }
        Ok(Pushed { sums, pauses, began, ended: from })
    }
}

impl App for Pushes {
    fn run(&mut self, node: &mut WorkerNode, body: Value) -> Result<Value, String> {
        let pushed = serde_json::from_value(body)
            .map_err(anyhow::Error::from)
            .and_then(|task| Ok(serde_json::to_value(Pushes::push(node, &task)?)?));
        pushed.map_err(|error| format!("{error:#}"))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const PAUSES: [(u64, u64); 4] = [(0, 90), (95, 120), (120, 121), (400, 500)];

    fn pushed() -> Pushed {
        let ms = Duration::from_millis;
        let pauses = PAUSES.map(|(from, until)| Pause { from: ms(from), until: ms(until) });
        Pushed { pauses: pauses.to_vec(), ..Pushed::default() }
    }

    /// A long pause before the fall does not count, nor a short one after it.
    #[test]
    fn the_longest_pause_after_the_fall_counts() {
        let ms = Duration::from_millis;
        let pushed = pushed();
        assert_eq!(pushed.longest_after(ms(100)), Some(pushed.pauses[3]));
        assert_eq!(pushed.longest_after(ms(501)), None);
    }

    /// The first acknowledged push ends the gap, however long a later pause is.
    #[test]
    fn a_pause_long_after_the_fall_is_not_its_gap() {
        let ms = Duration::from_millis;
        let pushed = pushed();
        assert_eq!(pushed.longest_at(ms(100)), Some(pushed.pauses[1]));
        assert_eq!(pushed.longest_at(ms(94) + ms(1) / 2), Some(pushed.pauses[1]), "on the way");
        assert_eq!(pushed.longest_at(ms(120)), Some(pushed.pauses[2]));
        assert_eq!(pushed.longest_at(ms(200)), None);
    }
}
