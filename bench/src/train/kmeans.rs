//! `caravan train kmeans`: clusters of points in stages, a row after each; and what its models say
//! of points.

use std::io::Write;
use std::path::Path;

use anyhow::{Result, ensure};
use caravan_learn::kmeans::{Batches, Centres, Points, Problem, Progress, train};
use caravan_learn::replace_file::replace;
use caravan_learn::trainer::check_room;
use serde::Serialize;

use super::training::{Run, spare};
use crate::cli::ending::Usage;
use crate::cli::{Common, Kmeans};
use crate::cluster;
use crate::report::Row;

/// Runs `caravan train kmeans`.
pub(super) fn run(common: &Common, args: &Kmeans) -> Result<()> {
    let mut config = cluster::config(common)?;
    if common.job.is_none() {
        check_room(args.replicas, config.servers).map_err(Usage)?;
    }
    spare(&mut config, args.replicas);
    let mut run = Run::begin(common, &config, args.model.as_deref())?;
    let workers = run.cluster.config().workers;
    let stages = match args.stages.is_empty() {
        true => vec![Batches { workers, batch: 1000, iterations: 100 }],
        false => args.stages.clone(),
    };
    let mut problem = Problem::new(args.data.clone(), args.clusters as usize, stages);
    (problem.seed, problem.replicas) = (args.seed, args.replicas);
    problem.stop = run.stop.clone();
    if common.smoke {
        problem.stages.iter_mut().for_each(|stage| stage.iterations = 1);
    }
    let mut rows = run.rows(common, problem.stages.len());
    let trained = train(&mut run.cluster, &problem, |stage| rows.step(stage))?;
    let model = trained.centres.to_model();
    args.model.as_ref().map_or(Ok(()), |out| model.write(out))?;
    rows.row(&Clustered {
        algorithm: "kmeans",
        clusters: trained.centres.clusters(),
        coordinates: model.rows.width,
        objective: trained.objective,
        stages: trained.stages,
        seconds: trained.seconds,
        worker_seconds: trained.worker_seconds,
    });
    run.end(rows, trained.stopped)
}

impl Row for Progress {
    const KIND: &'static str = "stage";

    fn heading(&self) -> Option<String> {
        let heading = "\n\
            # objective of all points after the stage; seconds and worker-seconds since the start\n\
            stage  workers      batch    batches       objective    seconds  worker-s";
        Some(heading.to_owned())
    }

    fn text(&self) -> String {
        let Progress { stage, workers, batch, iterations, .. } = self;
        let Progress { objective, seconds, worker_seconds, .. } = self;
        format!(
            "{stage:<5} {workers:>8} {batch:>10} {iterations:>10} {objective:>15.8e} \
             {seconds:>10.3} {worker_seconds:>9.3}"
        )
    }
}

/// The result of a run in stages.
#[derive(Debug, Clone, PartialEq, Serialize)]
struct Clustered {
    algorithm: &'static str,
    clusters: usize,
    coordinates: usize,
    objective: f64,
    stages: usize,
    seconds: f64,
    worker_seconds: f64,
}

impl Row for Clustered {
    const KIND: &'static str = "clustered";

    fn text(&self) -> String {
        let Clustered { algorithm, clusters, coordinates, objective, stages, .. } = self;
        let Clustered { seconds, worker_seconds, .. } = self;
        format!(
            "\n{algorithm}: objective {objective:.10}, {clusters} clusters of {coordinates} \
             coordinates, {stages} stages in {seconds:.2} s, {worker_seconds:.2} worker-seconds"
        )
    }
}

/// How near points are to the centres of a model.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub(super) struct Distances {
    points: usize,
    clusters: usize,
    objective: f64,
}

impl Distances {
    /// Measures all points; writes cluster and squared distance of each, separated by a tab, to
    /// `out`.
    pub(super) fn of(centres: &Centres, points: &Points, out: Option<&Path>) -> Result<Self> {
        let mut lines = Vec::new();
        let mut objective = 0.0;
        for point in 0..points.len() {
            let (cluster, distance) = centres.nearest(points, point);
            objective += distance;
            let (row, is_finite) = (point + 1, objective.is_finite());
            ensure!(is_finite, "the distances up to point {row} are not finite: scale the data");
            writeln!(lines, "{cluster}\t{distance}")?;
        }
        out.map_or(Ok(()), |out| replace(out, &lines))?;
        Ok(Distances { points: points.len(), clusters: centres.clusters(), objective })
    }
}

impl Row for Distances {
    const KIND: &'static str = "distances";

    fn text(&self) -> String {
        let Distances { points, clusters, objective } = self;
        format!("{points} points, {clusters} clusters: objective {objective:.10}")
    }
}
