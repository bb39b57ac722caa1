//! What nodes of this program can do: the tasks of its workers, and the tables of its servers.

use caravan_kv::{Apps, Handles};

use crate::measure::consistency::worker::Iterates;
use crate::measure::fabric::worker::Links;
use crate::measure::failover::worker::Pushes;
use crate::measure::load::worker::Loads;
use crate::measure::multi_worker::MultiWorker;
use crate::measure::sketch::worker::Counts;
use crate::measure::wait::worker::Waits;
use crate::measure::worker::Measure;

/// The tasks that workers of this program run.
pub(crate) fn apps() -> Apps {
    caravan_learn::apps(Apps::default())
        .with(Measure::NAME, || Box::new(Measure::default()))
        .with(MultiWorker::NAME, || Box::new(MultiWorker::default()))
        .with(Loads::NAME, || Box::new(Loads))
        .with(Links::NAME, || Box::new(Links))
        .with(Pushes::NAME, || Box::new(Pushes))
        .with(Counts::NAME, || Box::new(Counts))
        .with(Iterates::NAME, || Box::new(Iterates))
        .with(Waits::NAME, || Box::new(Waits::default()))
}

/// The tables that servers of this program hold.
pub(crate) fn handles() -> Handles {
    caravan_learn::dbpg::handles(Handles::default())
}
