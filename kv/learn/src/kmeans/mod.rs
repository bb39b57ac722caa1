//! k-means by mini-batches, in stages with growing batches and numbers of workers (Sculley,
//! "Web-Scale K-Means Clustering", WWW 2010; Huang et al., FlexPS, PVLDB 11, 2018, section 9).
//!
//! The table of a stage has a row for each cluster: the sum of the points that were assigned to it
//! in this stage, and their number. In an iteration the workers of the stage share a batch, assign
//! its points to the centres that follow from the sums, and add them. So a centre is the mean of
//! all points that it got in the stage. The next stage begins with these centres and with new sums.
//! Centres pass from worker to worker, without the servers ([`crate::task::Models`]).
//!
//! Tables are under BSP. Where coordinates are whole numbers, as pixels are, all sums are exact,
//! and a run with any numbers of workers equals [`serial`] to the bit.

mod centres;
mod points;
mod train;
mod worker;

use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::AtomicBool;

use caravan_van::draws::Random;
use serde::{Deserialize, Serialize};

pub use self::centres::Centres;
pub use self::points::Points;
pub use self::train::{Progress, Trained, train};
pub use self::worker::apps;

/// The problem, and the stages in which it is solved.
#[derive(Debug, Clone)]
pub struct Problem {
    /// Images (IDX) or LIBSVM text, plain or compressed.
    pub files: Vec<PathBuf>,
    /// Number of clusters.
    pub clusters: usize,
    /// Draws the first centres, and the order of points.
    pub seed: u64,
    /// One after another.
    pub stages: Vec<Batches>,
    /// Copies of each server's part of the tables, on other servers: the run goes on without as
    /// many servers as its cluster may lose.
    pub replicas: u32,
    /// Set from any thread to end the run after the current stage.
    pub stop: Arc<AtomicBool>,
}

/// One stage.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub struct Batches {
    /// Workers that share each batch.
    pub workers: usize,
    /// Points of a batch.
    pub batch: usize,
    /// Number of batches.
    pub iterations: u64,
}

/// Most values of all centres together: 1 GiB.
const VALUES_MAX: usize = 1 << 27;

impl Problem {
    /// A problem with a seed of 1, and no copies.
    pub fn new(files: Vec<PathBuf>, clusters: usize, stages: Vec<Batches>) -> Self {
        Problem { files, clusters, seed: 1, stages, replicas: 0, stop: Arc::default() }
    }

    /// Refuses invalid settings, with the reason.
    ///
    /// # Errors
    /// Names the setting and its value.
    pub fn check(&self) -> Result<(), String> {
        let is_empty = |stage: &&Batches| stage.batch == 0 || stage.workers == 0;
        match self.stages.iter().find(is_empty) {
            _ if self.clusters == 0 => Err("k-means takes at least 1 cluster, not 0".to_owned()),
            _ if self.stages.is_empty() => Err("k-means takes at least 1 stage".to_owned()),
            Some(Batches { workers, batch, .. }) => {
                Err(format!("a stage takes at least 1 worker and 1 point, not {workers}, {batch}"))
            }
            None => Ok(()),
        }
    }
}

/// The points in the order in which batches take them; the first are the first centres.
fn order(points: usize, seed: u64) -> Vec<u32> {
    let mut order: Vec<u32> = (0..points as u32).collect();
    let mut random = Random::new(seed);
    for last in (1..order.len()).rev() {
        order.swap(last, (random.next() % (last as u64 + 1)) as usize);
    }
    order
}

/// The points of a worker in the batch that begins at `first`, which counts all before it.
fn share(
    order: &[u32],
    first: u64,
    batch: usize,
    rank: usize,
    workers: usize,
) -> impl Iterator<Item = u32> {
    let of = |rank: usize| batch * rank / workers;
    let place = move |at: usize| ((first + at as u64) % order.len() as u64) as usize;
    (of(rank)..of(rank + 1)).map(move |at| order[place(at)])
}

/// Refuses points that are too few or too many.
fn check_points(points: &Points, clusters: usize) -> Result<(), String> {
    let dimensions = points.dimensions();
    if clusters.saturating_mul(dimensions + 1) > VALUES_MAX {
        return Err(format!(
            "{clusters} clusters of {dimensions} coordinates are more than 2^27 values: take fewer"
        ));
    }
    match points.len() {
        0 => Err("there are no points".to_owned()),
        _ if dimensions == 0 => Err("the points have no coordinates".to_owned()),
        few if few < clusters => Err(format!("{few} points are too few for {clusters} clusters")),
        many if u32::try_from(many).is_err() => Err(format!("{many} points are 2^32 or more")),
        _ => Ok(()),
    }
}

/// The whole run in one thread: the centres, and their objective.
///
/// # Errors
/// As [`Problem::check`], and if there are too few points.
pub fn serial(problem: &Problem, points: &Points) -> Result<(Centres, f64), String> {
    problem.check()?;
    check_points(points, problem.clusters)?;
    let order = order(points.len(), problem.seed);
    let mut centres = Centres::at(points, &order[..problem.clusters]);
    let mut first = 0;
    for stage in &problem.stages {
        let before = centres.clone();
        let mut sums = vec![0.0; problem.clusters * (points.dimensions() + 1)];
        for _ in 0..stage.iterations {
            centres.add(points, share(&order, first, stage.batch, 0, 1), &mut sums);
            centres = Centres::of(&sums, &before);
            first += stage.batch as u64;
        }
    }
    let objective = centres.objective(points, 0..points.len());
    Ok((centres, objective))
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

    use super::*;
    use crate::data;

    #[test]
    fn shares_of_a_batch_are_the_batch() {
        let order = order(10, 7);
        let mut sorted = order.clone();
        sorted.sort_unstable();
        assert_eq!(sorted, (0..10).collect::<Vec<u32>>());
        let whole: Vec<u32> = share(&order, 8, 25, 0, 1).collect();
        assert_eq!((whole.len(), whole[0], whole[2]), (25, order[8], order[0]));
        for workers in 1..30 {
            let shares = (0..workers).flat_map(|rank| share(&order, 8, 25, rank, workers));
            assert_eq!(shares.collect::<Vec<_>>(), whole);
        }
    }

    #[test]
    fn two_heaps_are_found() {
        let text = b"+1 0:1\n+1 0:2\n+1 0:3\n-1 1:11\n-1 1:12\n-1 1:13\n";
        let points = Points::of(&data::parse("t".as_ref(), text).unwrap()).unwrap();
        let stage = |iterations| Batches { workers: 1, batch: 6, iterations };
        let stages = vec![stage(3), stage(2)];
        for seed in 0..20 {
            let problem = Problem { seed, ..Problem::new(Vec::new(), 2, stages.clone()) };
            let (centres, objective) = serial(&problem, &points).unwrap();
            let mut values = [&centres.values()[..2], &centres.values()[2..]];
            values.sort_by(|a, b| a[0].total_cmp(&b[0]));
            assert_eq!(values, [[0.0, 12.0], [2.0, 0.0]], "seed {seed}");
            assert!((objective - 4.0).abs() < 1e-12, "{objective}");
            assert_eq!(centres.nearest(&points, 0).0, centres.nearest(&points, 2).0);
        }
    }

    #[test]
    fn wrong_settings_are_refused() {
        let stages = vec![Batches { workers: 1, batch: 1, iterations: 0 }];
        let good = Problem::new(Vec::new(), 1, stages);
        let points = Points::of(&data::parse("t".as_ref(), b"+1 0:1\n").unwrap()).unwrap();
        assert!(serial(&good, &points).is_ok());
        let mut idle = good.clone();
        idle.stages[0].workers = 0;
        let many = Problem { clusters: 2, ..good.clone() };
        let none = Problem { clusters: 0, ..good.clone() };
        let huge = Problem { clusters: 1 << 27, ..good.clone() };
        let empty = Problem { stages: Vec::new(), ..good };
        for (problem, why) in [
            (idle, "at least 1 worker"),
            (many, "1 points are too few for 2"),
            (none, "not 0"),
            (huge, "more than 2^27 values"),
            (empty, "1 stage"),
        ] {
            let refused = serial(&problem, &points).unwrap_err();
            assert!(refused.contains(why), "{refused}");
        }
    }
}
