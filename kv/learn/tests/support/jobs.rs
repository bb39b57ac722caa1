//! Jobs that several tests run.

use std::path::PathBuf;

use caravan_learn::dbpg::gradient::Curvature;
use caravan_learn::dbpg::{Filters, Job};

use super::reference::Settings;

/// The published method alone on a file, at λ = 1: no screening, no second-order
/// steps, no resets but the last.
pub(crate) fn published(file: PathBuf, blocks: usize) -> Job {
    Job {
        blocks: Some(blocks),
        curvature: Curvature::Published,
        reset_every: None,
        epsilon: 1e-6,
        passes_max: 300,
        filters: Filters { screen: false, ..Filters::default() },
        newton: None,
        ..Job::new(vec![file], 1.0)
    }
}

/// The same for the reference, which is one thread.
pub(crate) fn reference(job: &Job) -> Settings {
    Settings {
        proximal: job.proximal,
        curvature: job.curvature,
        blocks: job.blocks.unwrap(),
        order: job.order,
        delay: job.delay,
        epsilon: job.epsilon,
        passes_max: job.passes_max,
        kkt_ratio: job.kkt_ratio,
        reset_every: job.reset_every,
    }
}
