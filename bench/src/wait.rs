//! Waiting: what each policy makes of a request's latency and of the processors, where there is a core for each side, where both
//! share one, and where requests come in bursts.
//!
//! Every policy and scene has a cluster of its own, since whoever spins while idle would be in the way of the next; they are
//! launched in turn, round by round, and a row holds the medians of the rounds. Its ratio is the median of the rounds' ratios,
//! not that of medians: machines have minutes in which all is half as fast again, and a round lies within one of them.

use std::fs;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, ensure};
use caravan_kv::{App, ClusterConfig, Target, WorkerNode};
use caravan_van::Wait;
use hdrhistogram::Histogram;
use serde::{Deserialize, Serialize};
use serde_json::Value;

use crate::cli::{Common, WaitArgs};
use crate::machine::Machine;
use crate::progress::Progress;
use crate::report::{Report, Row, Shown, columns, decimals};
use crate::requests::{Requests, Tables};
use crate::subject::{Op, Shape, Subject, median};
use crate::usage::Usage;
use crate::{cluster, place, units};

/// One row of `caravan bench wait`.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub(crate) struct WaitRow {
    pub(crate) van: String,
    pub(crate) policy: String,
    pub(crate) scene: Scene,
    pub(crate) p50_us: f64,
    pub(crate) p99_us: f64,
    /// Processor time of the whole cluster, idle times included, for each request.
    pub(crate) cpu_us_per_msg: f64,
    /// Of the policy that has the lowest in this scene.
    pub(crate) best_p50_us: f64,
    /// To that policy, of p50 in the same round.
    pub(crate) ratio: f64,
    pub(crate) wrong: u64,
}

impl Shown for WaitRow {
    fn heading(&self) -> Option<String> {
        Some(format!(
            "\n# wait: round trip of one request in flight, µs, and processor time of both sides for each\n{}",
            columns(&["van", "policy", "scene", "p50", "p99", "cpu", "best p50", "ratio", "wrong"])
        ))
    }

    fn text(&self) -> String {
        let mut cells = vec![self.van.clone(), self.policy.clone(), self.scene.name().to_owned()];
        let times = [self.p50_us, self.p99_us, self.cpu_us_per_msg, self.best_p50_us];
        cells.extend(times.iter().map(decimals));
        cells.extend([format!("{:.2}", self.ratio), self.wrong.to_string()]);
        columns(&cells)
    }

    fn wrong(&self) -> u64 {
        self.wrong
    }
}

/// Where the two sides run, and when requests come.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub(crate) enum Scene {
    /// One request in flight, a core for each side.
    TwoCores,
    /// Likewise, both sides on the same core.
    OneCore,
    /// A core for each side; [`BURST`] requests one after the other, then nothing for 5 to 50 ms.
    Bursts,
}

impl Scene {
    const ALL: [Scene; 3] = [Scene::TwoCores, Scene::OneCore, Scene::Bursts];

    /// As in a row.
    pub(crate) fn name(self) -> &'static str {
        match self {
            Scene::TwoCores => "two-cores",
            Scene::OneCore => "one-core",
            Scene::Bursts => "bursts",
        }
    }
}

/// Requests a burst.
const BURST: u64 = 32;

/// Idle times between bursts, in ms, taken in turn.
const GAPS_MS: [u64; 6] = [5, 33, 12, 50, 8, 21];

/// How long a scene is measured at most: spinning on a shared core takes milliseconds a request.
const TIME_MAX: Duration = Duration::from_millis(1500);

const POLICIES: [&str; 4] = ["spin", "yield", "adaptive", "block"];

const SHAPE: Shape = Shape { op: Op::Push, keys: 1, bytes: 8, window: 1 };

/// Runs `caravan bench wait`.
///
/// # Errors
/// [`Usage`] with `--wait`; what keeps a cluster from coming up, and any wrong answer.
pub(crate) fn run(common: &Common, args: &WaitArgs) -> Result<()> {
    ensure!(
        common.wait.is_none(),
        Usage("bench wait measures every policy; leave --wait out".to_owned())
    );
    let config = cluster::config(common)?;
    let rounds = if common.smoke { 1 } else { args.rounds };
    let requests = if common.smoke { BURST } else { 20_000 };
    let mut report = Report::new(common.json);
    let progress = Progress::new(rounds as usize * Scene::ALL.len() * POLICIES.len(), common.json);
    report.row(&Row::Machine(Machine::read()), &progress)?;
    for scene in Scene::ALL {
        let mut taken = [const { Vec::new() }; POLICIES.len()];
        for _ in 0..rounds {
            for (policy, taken) in POLICIES.iter().zip(&mut taken) {
                progress.doing(format!("wait {policy} {}", scene.name()));
                let wait = units::parse_wait(policy).expect("it is the name of a policy");
                taken.push(measure(&config, common, wait, Task { scene, requests })?);
                progress.step();
            }
        }
        for row in rows(scene, &taken) {
            report.row(&Row::Wait(row), &progress)?;
        }
    }
    ensure!(report.wrong() == 0, "{} answers were wrong; see the rows", report.wrong());
    Ok(())
}

/// The rows of one scene from what each policy's rounds gave.
fn rows(scene: Scene, taken: &[Vec<Measured>; POLICIES.len()]) -> Vec<WaitRow> {
    let p50 = |rounds: &[Measured]| median(rounds.iter().map(|one| one.p50_us));
    let best = taken.iter().min_by(|a, b| p50(a).total_cmp(&p50(b))).expect("there are policies");
    let row = |(policy, rounds): (&&str, &Vec<Measured>)| {
        let of = |figure: fn(&Measured) -> f64| units::milli(median(rounds.iter().map(figure)));
        let ratios = rounds.iter().zip(best).map(|(one, best)| one.p50_us / best.p50_us);
        WaitRow {
            van: rounds[0].van.clone(),
            policy: (*policy).to_owned(),
            scene,
            p50_us: of(|one| one.p50_us),
            p99_us: of(|one| one.p99_us),
            cpu_us_per_msg: of(|one| one.cpu_us_per_msg),
            best_p50_us: units::milli(p50(best)),
            ratio: units::milli(median(ratios)),
            wrong: rounds.iter().map(|one| one.wrong).sum(),
        }
    };
    POLICIES.iter().zip(taken).map(row).collect()
}

/// What the worker is asked for.
#[derive(Debug, Clone, Copy, Serialize, Deserialize)]
struct Task {
    scene: Scene,
    requests: u64,
}

/// What it answers.
#[derive(Debug, Clone, Default, Serialize, Deserialize)]
struct Measured {
    van: String,
    p50_us: f64,
    p99_us: f64,
    /// With those that were not timed.
    requests: u64,
    wrong: u64,
    /// Filled in by the launching side.
    cpu_us_per_msg: f64,
}

/// One policy in one scene on a cluster of its own.
fn measure(config: &ClusterConfig, common: &Common, wait: Wait, task: Task) -> Result<Measured> {
    let mut config = config.clone();
    config.node.wait = wait;
    let mut cluster = cluster::launch(&config, common)?;
    let before = cpu_time();
    let id = cluster.submit(Target::Worker(0), Waits::NAME, &serde_json::to_value(task)?)?;
    let answer = cluster.wait(id)?.pop().context("worker 0 answered nothing")?;
    let spent = cpu_time().saturating_sub(before);
    let mut measured: Measured = serde_json::from_value(answer)?;
    measured.cpu_us_per_msg = spent.as_secs_f64() * 1e6 / measured.requests as f64;
    cluster.shutdown()?;
    Ok(measured)
}

/// Processor time that this process and its children have taken so far; zero where the system does not tell.
fn cpu_time() -> Duration {
    let tasks = |process: &str| {
        let entries = fs::read_dir(format!("/proc/{process}/task"));
        entries.into_iter().flatten().flatten().map(|entry| entry.path()).collect::<Vec<_>>()
    };
    let text = |path| fs::read_to_string(path).unwrap_or_default();
    let children = tasks("self").into_iter().map(|task| text(task.join("children")));
    let children = children.collect::<Vec<_>>().join(" ");
    let nanos = children.split_whitespace().chain(["self"]).flat_map(tasks).filter_map(|task| {
        text(task.join("schedstat")).split_whitespace().next()?.parse::<u64>().ok()
    });
    Duration::from_nanos(nanos.sum())
}

/// The worker's side.
#[derive(Default)]
pub(crate) struct Waits {
    tables: Tables,
}

impl Waits {
    /// What tasks for it are called.
    pub(crate) const NAME: &str = "bench-wait";

    fn measure(&mut self, node: &mut WorkerNode, body: Value) -> Result<Value> {
        let Task { scene, requests } = serde_json::from_value(body)?;
        let seat = match scene {
            Scene::OneCore => place::SERVER,
            Scene::TwoCores | Scene::Bursts => node.worker.servers(),
        };
        place::pin(seat, &node.config);
        let van = node.worker.van().to_owned();
        let mut subject =
            Requests::new(&mut node.worker, &mut self.tables, node.config.eager_bytes);
        subject.prepare(SHAPE)?;
        let mut measured = drive(&mut subject, scene, requests)?;
        measured.van = van;
        Ok(serde_json::to_value(measured)?)
    }
}

impl App for Waits {
    fn run(&mut self, node: &mut WorkerNode, body: Value) -> Result<Value, String> {
        self.measure(node, body).map_err(|error| format!("{error:#}"))
    }
}

/// Makes `requests` requests as the scene has them come, or as many as time allows.
fn drive(subject: &mut dyn Subject, scene: Scene, requests: u64) -> Result<Measured> {
    let mut nanos = Histogram::<u64>::new_with_bounds(1, 60_000_000_000, 3)
        .expect("three digits up to a minute is in range");
    let mut measured = Measured::default();
    for _ in 0..2 {
        subject.once()?;
        measured.wrong += subject.check()?;
    }
    let began = Instant::now();
    let mut gaps = GAPS_MS.iter().cycle();
    for number in 0..requests {
        if began.elapsed() > TIME_MAX {
            break;
        }
        if scene == Scene::Bursts && number % BURST == 0 {
            let gap_ms = *gaps.next().expect("a cycle has no end");
            std::thread::sleep(Duration::from_millis(gap_ms));
        }
        let start = Instant::now();
        subject.once()?;
        let took = u64::try_from(start.elapsed().as_nanos()).unwrap_or(u64::MAX);
        nanos.saturating_record(took.max(1));
        measured.wrong += subject.check()?;
    }
    measured.wrong += subject.settle()?;
    measured.requests = nanos.len() + 3;
    measured.p50_us = nanos.value_at_quantile(0.5) as f64 / 1e3;
    measured.p99_us = nanos.value_at_quantile(0.99) as f64 / 1e3;
    Ok(measured)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::subject::mock::Mock;

    #[test]
    fn every_scene_counts_its_requests() {
        for scene in Scene::ALL {
            let measured = drive(&mut Mock::default(), scene, BURST).unwrap();
            assert_eq!((measured.requests, measured.wrong), (BURST + 3, 0));
            assert!(measured.p50_us <= measured.p99_us);
        }
        let mut wrong = Mock { wrong_check: 1, ..Mock::default() };
        assert_eq!(drive(&mut wrong, Scene::TwoCores, 5).unwrap().wrong, 7);
    }

    #[test]
    fn rows_hold_medians_and_ratios_within_rounds() {
        let one = |p50_us| Measured { van: "tcp".to_owned(), p50_us, ..Measured::default() };
        let taken = [[9.0, 12.0, 3.0], [6.0, 12.0, 2.0], [5.0, 8.0, 2.0], [4.0, 8.0, 2.0]];
        let rows = rows(Scene::OneCore, &taken.map(|p50| p50.map(one).to_vec()));
        let found: Vec<_> =
            rows.iter().map(|row| (row.p50_us, row.best_p50_us, row.ratio)).collect();
        assert_eq!(found, [(9.0, 4.0, 1.5), (6.0, 4.0, 1.5), (5.0, 4.0, 1.0), (4.0, 4.0, 1.0)]);
        assert_eq!(rows[2].policy, "adaptive");
    }

    #[test]
    fn processor_time_only_grows() {
        let before = cpu_time();
        assert!(cpu_time() >= before);
    }
}
