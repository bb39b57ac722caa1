//! The driver's side: a task of stages.

use caravan_kv::error::with_sources;
use caravan_kv::{Cluster, ClusterConfig};
use serde::Serialize;
use std::collections::BTreeSet;
use std::sync::atomic::Ordering;

use super::centres::Centres;
use super::worker::{APP, Left, Order, PUBLISH, Report, centres_spec};
use super::{Batches, Problem};
use crate::data::{SharedFiles, check_shared};
use crate::task::schedule::Greedy;
use crate::task::{Ended, Engine, Stage, Task, Trigger, Wants};
use crate::trainer::check_room;
use crate::{Error, Result};

/// The part of a job that trains.
const PART: &str = "kmeans";

/// Progress after a stage.
#[derive(Debug, Clone, Copy, PartialEq, Serialize)]
pub struct Progress {
    /// The stage, from 0.
    pub stage: usize,
    /// Its workers.
    pub workers: usize,
    /// Points of a batch.
    pub batch: usize,
    /// Batches of the stage.
    pub iterations: u64,
    /// The sum of squared distances of all points to their nearest centres.
    pub objective: f64,
    /// Time of this stage and those before.
    pub seconds: f64,
    /// The same for each of a stage's workers.
    pub worker_seconds: f64,
    /// Bytes that went to and from servers while workers passed centres from stage to stage.
    pub handover_bytes: u64,
}

/// The result.
#[derive(Debug, Clone, PartialEq)]
pub struct Trained {
    /// The centres.
    pub centres: Centres,
    /// The objective of all points.
    pub objective: f64,
    /// Stages that have ended.
    pub stages: usize,
    /// Time of all stages.
    pub seconds: f64,
    /// Time of all workers in all stages.
    pub worker_seconds: f64,
    /// Whether [`Problem::stop`] ended the run.
    pub stopped: bool,
}

/// Trains on a cluster whose workers have [`super::apps`]. Calls `progress` after each stage.
///
/// # Errors
/// [`Error::Train`] names the node, the file or the setting, and the reason.
pub fn train(
    cluster: &mut Cluster,
    problem: &Problem,
    progress: impl FnMut(&Progress),
) -> Result<Trained> {
    let ClusterConfig { workers, servers, .. } = *cluster.config();
    let checked = problem.check().and_then(|()| fits(problem, workers));
    let checked = checked.and_then(|()| check_room(problem.replicas, servers));
    checked.map_err(|reason| Error::Train { reason })?;
    check_shared(&problem.files)?;
    let files = SharedFiles::watch(&problem.files);
    cluster.begin(PART).map_err(failed)?;
    let mut last = None;
    let task = Stages {
        problem,
        begun: 0,
        is_published: false,
        from: Vec::new(),
        first: 0,
        seconds: 0.0,
        worker_seconds: 0.0,
        progress,
        last: &mut last,
    };
    let mut engine = Engine::new(cluster, Greedy, Trigger::AT_ONCE);
    engine.submit(task);
    let outcome = engine.run()?.pop();
    files.check()?;
    if let Some(Err(reason)) = outcome {
        return Err(Error::Train { reason });
    }
    let Some((last, left)) = last else {
        return Err(Error::Train { reason: "no stage has ended".to_owned() });
    };
    let centres = centres(cluster, &left).map_err(failed)?;
    cluster.end().map_err(failed)?;
    let Progress { stage, objective, seconds, worker_seconds, .. } = last;
    let stages = stage + 1;
    let stopped = stages < problem.stages.len();
    Ok(Trained { centres, objective, stages, seconds, worker_seconds, stopped })
}

/// Refuses stages that a cluster has too few workers for, before the first of them has run.
fn fits(problem: &Problem, there: usize) -> std::result::Result<(), String> {
    let mut stages = problem.stages.iter().enumerate();
    let crowded = stages.find(|(_, stage)| stage.workers > there);
    crowded.map_or(Ok(()), |(number, Batches { workers, .. })| {
        Err(format!("stage {number} wants {workers} workers, and there are {there}"))
    })
}

fn failed(error: caravan_kv::Error) -> Error {
    Error::Train { reason: with_sources(&error) }
}

/// The centres that were published.
fn centres(cluster: &mut Cluster, left: &Left) -> caravan_kv::Result<Centres> {
    let Left { clusters, dimensions, .. } = *left;
    let mut client = cluster.client()?;
    let table = client.admin().create_table(&centres_spec(left))?;
    let keys: Vec<u64> = (0..clusters as u64).collect();
    let pulled = client.pull(table, &keys)?;
    Ok(Centres::new(dimensions, client.wait(pulled)?.values::<f64>().to_vec()))
}

/// The stages of a problem, and one in which a worker publishes the centres.
struct Stages<'a, P> {
    problem: &'a Problem,
    begun: usize,
    is_published: bool,
    /// The workers of the last stage.
    from: Vec<usize>,
    first: u64,
    seconds: f64,
    worker_seconds: f64,
    progress: P,
    /// The last stage that has ended.
    last: &'a mut Option<(Progress, Left)>,
}

impl<P: FnMut(&Progress)> Stages<'_, P> {
    fn ended(&mut self, last: &Ended) -> Option<()> {
        let stage = self.begun - 1;
        let Batches { workers, batch, iterations } = self.problem.stages[stage];
        let reports: Vec<Report> = last
            .results
            .iter()
            .cloned()
            .map(serde_json::from_value)
            .collect::<Result<_, _>>()
            .ok()?;
        let took = last.took.as_secs_f64();
        self.seconds += took;
        self.worker_seconds += took * workers as f64;
        let Stages { seconds, worker_seconds, .. } = *self;
        let progress = Progress {
            stage,
            workers,
            batch,
            iterations,
            objective: reports.iter().map(|report| report.objective).sum(),
            seconds,
            worker_seconds,
            handover_bytes: reports.iter().map(|report| report.handover_bytes).sum(),
        };
        (self.progress)(&progress);
        self.from.clone_from(&last.workers);
        let Problem { clusters, replicas, .. } = *self.problem;
        let dimensions = reports.first()?.dimensions;
        *self.last = Some((progress, Left { stage, clusters, dimensions, replicas }));
        Some(())
    }

    /// Makes a worker of the last stage publish its centres.
    fn publish(&mut self) -> Option<Stage> {
        self.is_published = true;
        let (_, left) = self.last.as_ref()?;
        let body = serde_json::to_value(left).ok()?;
        let worker = BTreeSet::from([*self.from.first()?]);
        Some(Stage::new(PUBLISH, body, Wants::These(worker)))
    }
}

impl<P: FnMut(&Progress)> Task for Stages<'_, P> {
    fn next(&mut self, last: Option<&Ended>) -> Option<Stage> {
        if self.is_published {
            return None;
        }
        last.map_or(Some(()), |last| self.ended(last))?;
        let Problem { files, clusters, seed, stages, replicas, stop } = self.problem;
        let stops = last.is_some() && stop.load(Ordering::Relaxed);
        let Some(batches) = stages.get(self.begun).copied().filter(|_| !stops) else {
            return self.publish();
        };
        let (clusters, seed, replicas, first) = (*clusters, *seed, *replicas, self.first);
        let (files, from) = (files.clone(), self.from.clone());
        let order = Order { files, clusters, seed, batches, replicas, first, from };
        self.begun += 1;
        self.first += batches.iterations * batches.batch as u64;
        let body = serde_json::to_value(order).ok()?;
        Some(Stage::new(APP, body, Wants::Any(batches.workers)))
    }
}
