//! Measuring on a cluster: the scheduler's side sends one task a row, worker 0 measures it against its own floor and answers
//! with the row.

use anyhow::{Context, Result, ensure};
use caravan_kv::node::VANS;
use caravan_kv::{App, ClusterConfig, Target, Van, WorkerNode};
use serde::{Deserialize, Serialize};
use serde_json::Value;

use crate::cli::{BenchCommand, Common};
use crate::crowd::{self, CrowdTask, Crowded};
use crate::floor;
use crate::machine::Machine;
use crate::plan::{self, Task};
use crate::progress::Progress;
use crate::report::{Report, Row};
use crate::requests::{Requests, Tables};
use crate::subject::Subject;
use crate::terminal::say;
use crate::{cluster, doctor, place};

/// What a worker answers.
#[derive(Debug, Serialize, Deserialize)]
struct Measured {
    row: Row,
    /// What a reader should doubt.
    warnings: Vec<String>,
}

/// Runs `caravan bench`.
///
/// # Errors
/// What keeps it from measuring, and any wrong answer.
pub(crate) fn run(common: &Common, command: &BenchCommand) -> Result<()> {
    let tasks = plan::rows(command, common.smoke)?;
    let config = cluster::config(common)?;
    let vans = vans(command, config.node.van);
    let mut report = Report::new(common.json);
    let progress = Progress::new(tasks.len() * vans.len(), common.json);
    report.row(&Row::Machine(Machine::read()), &progress)?;
    for van in vans {
        let mut config = config.clone();
        config.node.van = van;
        measure_on(&config, common, &tasks, &mut report, &progress)
            .with_context(|| format!("measuring the {van} van"))?;
    }
    ensure!(report.wrong() == 0, "{} answers were wrong; see the rows", report.wrong());
    Ok(())
}

/// The vans to measure: all that work here, when all is asked for and none is named.
fn vans(command: &BenchCommand, van: Van) -> Vec<Van> {
    if matches!(command, BenchCommand::All(_)) && van == Van::Auto {
        VANS.into_iter().filter(|van| doctor::opens(*van).is_ok()).collect()
    } else {
        vec![van]
    }
}

fn measure_on(
    config: &ClusterConfig,
    common: &Common,
    tasks: &[Task],
    report: &mut Report,
    progress: &Progress,
) -> Result<()> {
    let mut cluster = cluster::launch(config, common)?;
    for (number, task) in tasks.iter().enumerate() {
        progress.doing(task.describe(&config.node.van.to_string()));
        let id = cluster.submit(Target::Worker(0), Measure::NAME, &serde_json::to_value(task)?)?;
        let answer = cluster.wait(id)?.pop().context("worker 0 answered nothing")?;
        let Measured { mut row, warnings } = serde_json::from_value(answer)?;
        if let Row::Rate(rate) = &mut row
            && config.workers > 1
        {
            // The floor is that of one pair, measured before.
            let seconds = if common.smoke { 0.2 } else { 3.0 };
            let crowd = CrowdTask { shape: task.shape, seconds, number };
            let crowd = serde_json::to_value(crowd)?;
            let id = cluster.submit(Target::Workers, Crowded::NAME, &crowd)?;
            *rate = rate.clone().of_many(crowd::sum_up(config, cluster.wait(id)?)?);
        }
        report.row(&row, progress)?;
        for warning in warnings {
            let what = task.describe(&config.node.van.to_string());
            progress.hidden(|| say(format_args!("{what}: {warning}")));
        }
        progress.step();
    }
    Ok(cluster.shutdown()?)
}

/// The worker's side.
#[derive(Default)]
pub(crate) struct Measure {
    floor: Option<Box<dyn Subject>>,
    tables: Tables,
}

impl Measure {
    /// What tasks for it are called.
    pub(crate) const NAME: &str = "bench";

    fn measure(&mut self, node: &mut WorkerNode, body: Value) -> Result<Value> {
        let task: Task = serde_json::from_value(body)?;
        let van = node.worker.van();
        let floor = match &mut self.floor {
            Some(floor) => floor,
            none => {
                let floor = none.insert(floor::spawn(van, &node.config)?);
                if node.config.pin {
                    place::pin(node.worker.servers(), &node.config);
                }
                floor
            }
        };
        let mut subject =
            Requests::new(&mut node.worker, &mut self.tables, node.config.eager_bytes)
                .key_cache(task.key_cache);
        let (row, warnings) = task.run(van, &mut **floor, &mut subject)?;
        Ok(serde_json::to_value(Measured { row, warnings })?)
    }
}

impl App for Measure {
    fn run(&mut self, node: &mut WorkerNode, body: Value) -> Result<Value, String> {
        self.measure(node, body).map_err(|error| format!("{error:#}"))
    }
}
