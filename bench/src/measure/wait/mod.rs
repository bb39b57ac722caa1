//! `caravan bench wait`: the cost of each wait policy in latency and processor time, with a core
//! for each side, with one core for both, and with requests in bursts.
//!
//! Every policy and scene has a cluster of its own, since a thread that spins while idle disturbs
//! the next one. Clusters are launched in turn, round by round, and a row holds the medians of the
//! rounds. Its ratio is the median of the rounds' ratios: a machine that is slow for minutes is
//! slow for a whole round.

pub(crate) mod worker;

use std::fs;
use std::time::Duration;

use anyhow::{Result, ensure};
use caravan_kv::ClusterConfig;
use caravan_van::Wait;
use clap::ValueEnum;
use serde::Serialize;

use self::worker::{BURST, Measured, Scene, Task, Waits};
use crate::cli::ending::Usage;
use crate::cli::values::{name, parse_wait};
use crate::cli::{Common, WaitArgs};
use crate::cluster;
use crate::doctor::machine::Machine;
use crate::measure::figures::{median, milli, ratio};
use crate::report::{figure, row};

row! {
    /// One row of `caravan bench wait`.
    #[derive(Debug, Clone, PartialEq, Serialize)]
    pub(crate) struct WaitRow is "wait" {
        van: String => "van",
        policy: String => "policy",
        scene: Scene => "scene" as name,
        p50_us: f64 => "p50" as figure,
        p99_us: f64 => "p99" as figure,
        /// Processor time of the whole cluster for each request, idle times included.
        cpu_us_per_msg: f64 => "cpu" as figure,
        /// Of the policy with the lowest p50 in this scene.
        best_p50_us: f64 => "best p50" as figure,
        /// Of p50 to that policy's in the same round.
        ratio: f64 => "ratio" as ratio,
        wrong: u64 => "wrong",
    }
    title |_| "wait: round trip of one request in flight, µs, \
               and processor time of both sides for each";
    counts wrong;
}

const POLICIES: [&str; 4] = ["spin", "yield", "adaptive", "block"];

/// Runs `caravan bench wait`.
///
/// # Errors
/// [`Usage`] with `--wait`; what keeps a cluster from coming up; any wrong answer.
pub(crate) fn run(common: &Common, args: &WaitArgs) -> Result<()> {
    ensure!(
        common.wait.is_none(),
        Usage("bench wait measures every policy; leave --wait out".to_owned())
    );
    let config = cluster::config(common)?;
    let rounds = if common.smoke { 1 } else { args.rounds };
    let requests = if common.smoke { BURST } else { 20_000 };
    let scenes = Scene::value_variants();
    let mut report = Machine::first(common, rounds as usize * scenes.len() * POLICIES.len())?;
    for &scene in scenes {
        let mut measured = [const { Vec::new() }; POLICIES.len()];
        for _ in 0..rounds {
            for (policy, measured) in POLICIES.iter().zip(&mut measured) {
                report.doing(format!("wait {policy} {}", name(&scene)));
                let wait = parse_wait(policy).expect("it is the name of a policy");
                measured.push(measure(&config, common, wait, Task { scene, requests })?);
                report.step();
            }
        }
        for row in rows(scene, &measured) {
            report.row(&row)?;
        }
    }
    report.end("answers")
}

/// The rows of one scene from the rounds of each policy.
fn rows(scene: Scene, measured: &[Vec<Measured>; POLICIES.len()]) -> Vec<WaitRow> {
    let p50 = |rounds: &[Measured]| median(rounds.iter().map(|one| one.p50_us));
    let best = measured.iter().min_by(|a, b| p50(a).total_cmp(&p50(b))).expect("some policies");
    let row = |(policy, rounds): (&&str, &Vec<Measured>)| {
        let of = |figure: fn(&Measured) -> f64| milli(median(rounds.iter().map(figure)));
        let ratios = rounds.iter().zip(best).map(|(one, best)| one.p50_us / best.p50_us);
        WaitRow {
            van: rounds[0].van.clone(),
            policy: (*policy).to_owned(),
            scene,
            p50_us: of(|one| one.p50_us),
            p99_us: of(|one| one.p99_us),
            cpu_us_per_msg: of(|one| one.cpu_us_per_msg),
            best_p50_us: milli(p50(best)),
            ratio: milli(median(ratios)),
            wrong: rounds.iter().map(|one| one.wrong).sum(),
        }
    };
    POLICIES.iter().zip(measured).map(row).collect()
}

/// One policy in one scene, on a cluster of its own.
fn measure(config: &ClusterConfig, common: &Common, wait: Wait, task: Task) -> Result<Measured> {
    let mut config = config.clone();
    config.node.wait = wait;
    let mut cluster = cluster::launch(&config, common)?;
    let before = cpu_time();
    let answer = cluster::ask_first_worker(&mut cluster, Waits::NAME, &task)?;
    let cost = cpu_time().saturating_sub(before);
    let mut measured: Measured = serde_json::from_value(answer)?;
    measured.cpu_us_per_msg = cost.as_secs_f64() * 1e6 / measured.requests as f64;
    cluster.shutdown()?;
    Ok(measured)
}

/// Processor time of this process and its children so far; zero if the system does not tell.
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn rows_hold_medians_and_ratios_within_rounds() {
        let one = |p50_us| Measured { van: "tcp".to_owned(), p50_us, ..Measured::default() };
        let measured = [[9.0, 12.0, 3.0], [6.0, 12.0, 2.0], [5.0, 8.0, 2.0], [4.0, 8.0, 2.0]];
        let rows = rows(Scene::OneCore, &measured.map(|p50| p50.map(one).to_vec()));
        let found: Vec<_> =
            rows.iter().map(|row| (row.p50_us, row.best_p50_us, row.ratio)).collect();
        assert_eq!(found, [(9.0, 4.0, 1.5), (6.0, 4.0, 1.5), (5.0, 4.0, 1.0), (4.0, 4.0, 1.0)]);
        assert_eq!(rows[2].policy, "adaptive");
    }
}
