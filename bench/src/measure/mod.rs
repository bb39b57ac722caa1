//! `caravan bench`: measures the system, each part in a file of its own.
//!
//! Here is the run of `latency`, `bandwidth`, `rate` and `all`: the scheduler's side sends one task
//! a row to worker 0.

mod answers;
pub(crate) mod consistency;
pub(crate) mod fabric;
pub(crate) mod failover;
pub(crate) mod figures;
mod keys;
mod latency;
pub(crate) mod load;
pub(crate) mod multi_worker;
mod pattern;
pub(crate) mod placement;
mod plan;
mod requests;
pub(crate) mod scale;
mod simulated;
pub(crate) mod sketch;
mod streams;
pub(crate) mod subject;
#[cfg(all(target_os = "linux", feature = "rdma"))]
pub(crate) mod verbs;
#[cfg(not(all(target_os = "linux", feature = "rdma")))]
#[path = "verbs/left_out.rs"]
pub(crate) mod verbs;
pub(crate) mod wait;
pub(crate) mod worker;

use std::time::Duration;

use anyhow::{Context, Result};
use caravan_kv::node::VANS;
use caravan_kv::{ClusterConfig, Target, Van};

use self::multi_worker::{MultiWorker, MultiWorkerTask};
use self::subject::Task;
use self::worker::{Measure, Measured, MeasuredRow};
use crate::cli::values::{name, size};
use crate::cli::{BenchCommand, Common};
use crate::cluster;
use crate::doctor::machine::Machine;
use crate::report::Report;
use crate::vans::opens;

/// Runs `caravan bench`.
pub(crate) fn run(common: &Common, command: &BenchCommand) -> Result<()> {
    let tasks = plan::tasks(command, common.smoke)?;
    let mut config = cluster::config(common)?;
    // So many servers may be lost without an end of the run.
    let replicas = tasks.iter().map(|task| task.copies.replicas as usize).max().unwrap_or(0);
    config.node.server_losses_max = config.node.server_losses_max.max(replicas);
    let is_one = common.external || config.node.role.is_some();
    let vans = vans(command, config.node.van, is_one);
    let mut report = Machine::first(common, tasks.len() * vans.len())?;
    for van in vans {
        let mut config = config.clone();
        config.node.van = van;
        measure_on(&config, common, &tasks, &mut report)
            .with_context(|| format!("measuring the {van} van"))?;
    }
    report.end("answers")
}

/// The vans to measure: all that work here, if `bench all` names none. Nodes that others start are
/// there for one of them, which is then the common one of all nodes.
fn vans(command: &BenchCommand, van: Van, is_one: bool) -> Vec<Van> {
    if matches!(command, BenchCommand::All(_)) && van == Van::Auto && !is_one {
        VANS.into_iter().filter(|van| opens(*van).is_ok()).collect()
    } else {
        vec![van]
    }
}

fn measure_on(
    config: &ClusterConfig,
    common: &Common,
    tasks: &[Task],
    report: &mut Report,
) -> Result<()> {
    let mut cluster = cluster::launch(config, common)?;
    for (number, task) in tasks.iter().enumerate() {
        let Task { bench, shape, .. } = task;
        let what = format!(
            "{} {} {} {}",
            name(bench),
            config.node.van,
            name(&shape.op),
            size(&shape.bytes)
        );
        report.doing(what.clone());
        let Measured { row, warnings } =
            serde_json::from_value(cluster::ask_first_worker(&mut cluster, Measure::NAME, task)?)?;
        let is_alone = config.workers == 1;
        let mut many = || {
            let usual = Duration::from_millis(if common.smoke { 200 } else { 3000 });
            let seconds = task.lasts.unwrap_or(usual).as_secs_f64();
            let crowd = MultiWorkerTask {
                shape: *shape,
                key_cache: task.key_cache,
                copies: task.copies,
                seconds,
                number,
            };
            let crowd = serde_json::to_value(crowd)?;
            let id = cluster.submit(Target::Workers, MultiWorker::NAME, &crowd)?;
            multi_worker::sum_up(config, cluster.wait(id)?)
        };
        match row {
            MeasuredRow::Latency(row) => report.row(&row)?,
            MeasuredRow::Bandwidth(row) if is_alone => report.row(&row)?,
            MeasuredRow::Rate(row) if is_alone => report.row(&row)?,
            // The floor is that of one pair, measured before.
            MeasuredRow::Bandwidth(row) => report.row(&row.of_many(many()?))?,
            MeasuredRow::Rate(row) => report.row(&row.of_many(many()?))?,
        }
        for warning in warnings {
            report.say(format_args!("{what}: {warning}"));
        }
        report.step();
    }
    Ok(cluster.shutdown()?)
}

#[cfg(test)]
mod mock {
    //! A subject that counts, and is wrong when told to.

    use anyhow::{Result, ensure};

    use super::subject::{Shape, Subject};

    #[derive(Debug, Default)]
    pub(crate) struct Mock {
        pub(crate) calls: Vec<&'static str>,
        pub(crate) requests: u64,
        pub(crate) wrong_check: u64,
        pub(crate) wrong_settle: u64,
        pub(crate) fail: bool,
    }

    impl Subject for Mock {
        fn prepare(&mut self, _: Shape) -> Result<()> {
            self.calls.push("prepare");
            Ok(())
        }

        fn once(&mut self) -> Result<()> {
            ensure!(!self.fail, "told to fail");
            self.requests += 1;
            Ok(())
        }

        fn check(&mut self) -> Result<u64> {
            Ok(self.wrong_check)
        }

        fn stream(&mut self, count: u64) -> Result<()> {
            ensure!(!self.fail, "told to fail");
            self.calls.push("stream");
            self.requests += count;
            Ok(())
        }

        fn settle(&mut self) -> Result<u64> {
            self.calls.push("settle");
            Ok(self.wrong_settle)
        }
    }

    /// A subject whose requests take a while.
    #[derive(Debug, Default)]
    pub(crate) struct Slow(pub(crate) Mock);

    impl Subject for Slow {
        fn prepare(&mut self, shape: Shape) -> Result<()> {
            self.0.prepare(shape)
        }

        fn once(&mut self) -> Result<()> {
            std::thread::sleep(std::time::Duration::from_micros(200));
            self.0.once()
        }

        fn check(&mut self) -> Result<u64> {
            self.0.check()
        }

        fn stream(&mut self, count: u64) -> Result<()> {
            (0..count).try_for_each(|_| self.once())
        }

        fn settle(&mut self) -> Result<u64> {
            self.0.settle()
        }
    }
}
