//! What the scheduler's thread knows, and what of it is kept.

use std::collections::BTreeMap;
use std::path::Path;
use std::time::Duration;

use serde::{Deserialize, Serialize};

use super::super::backend::{Van, incarnation};
use super::super::members::Members;
use super::super::session::Stamp;
use super::control_state::ControlState;
use super::jobs::Jobs;
use super::posts::Posts;
use crate::config::ClusterConfig;
use crate::error::{Error, Result};

/// What the thread knows.
#[derive(Serialize, Deserialize)]
pub(super) struct State {
    pub(super) control: ControlState,
    pub(super) jobs: Jobs,
    pub(super) posts: Posts,
    /// Once all have joined: the vans of the drivers, or why some nodes have none in common.
    pub(super) chosen: Option<Result<Vec<Van>, String>>,
    pub(super) ended: Option<String>,
}

/// What is kept: a state, and of which cluster.
#[derive(Serialize, Deserialize)]
pub(super) struct Kept<S> {
    pub(super) lineage: Lineage,
    pub(super) job: u64,
    pub(super) servers: usize,
    pub(super) workers: usize,
    /// Where the nodes of the cluster look for the scheduler.
    pub(super) address: String,
    pub(super) state: S,
}

/// Which cluster this is, and which of its states led to the present one.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub(super) struct Lineage {
    /// Identity of the cluster, which its first scheduler has drawn.
    pub(super) cluster: u64,
    /// By each scheduler that had the state, the number of the last one that it has saved.
    saved: BTreeMap<u64, u64>,
    /// The present scheduler, and the number of the state that it has found.
    #[serde(skip)]
    run: u64,
    #[serde(skip)]
    found: u64,
}

impl Lineage {
    /// A cluster that nobody knows yet.
    pub(super) fn new() -> Lineage {
        Lineage { cluster: incarnation(), saved: BTreeMap::new(), run: 0, found: 0 }
    }

    /// Names the scheduler that goes on with it.
    pub(super) fn go_on(&mut self) {
        (self.run, self.found) = (incarnation(), self.number());
    }

    /// The number of the last state; 0 before there is one.
    pub(super) fn number(&self) -> u64 {
        self.saved.values().copied().max().unwrap_or(0)
    }

    /// What this is once one more state is saved.
    pub(super) fn next(&self) -> Lineage {
        let mut next = self.clone();
        next.saved.insert(self.run, self.number() + 1);
        next
    }

    /// The last state of the present scheduler, if it has saved one.
    pub(super) fn stamp(&self) -> Stamp {
        let saved = self.saved.get(&self.run);
        saved.map_or(Stamp::default(), |number| Stamp { run: self.run, number: *number })
    }

    /// Whether a state that a node has heard of led to the present one.
    pub(super) fn has(&self, heard: Stamp) -> bool {
        let has_saved = |last: &u64| heard.number <= *last;
        heard == Stamp::default() || self.saved.get(&heard.run).is_some_and(has_saved)
    }

    /// Why a scheduler cannot go on with the state in `place`, though `node` has heard of another.
    pub(super) fn error(&self, place: &str, node: &str, heard: Stamp) -> Error {
        let (found, heard) = (self.found, heard.number);
        let is = if found < heard { "is older than" } else { "does not follow from" };
        Error::Config(format!(
            "the state of the scheduler in {place} had number {found}, which {is} number {heard}, \
             of which {node} has heard: put the last state back; if there is none, end the nodes \
             and remove what is there"
        ))
    }
}

impl State {
    pub(super) fn new(members: Members) -> State {
        State {
            control: ControlState::new(members),
            jobs: Jobs::default(),
            posts: Posts::default(),
            chosen: None,
            ended: None,
        }
    }

    /// Goes on at time `now`, after the process that had this state: its nodes come back, its
    /// driver does not.
    pub(super) fn come_back(mut self, now: Duration) -> State {
        let State { control, jobs, .. } = &mut self;
        control.members.come_back(now);
        // It is saved at once: an earlier scheduler that still runs finds out by that.
        control.sessions.enter_news();
        jobs.await_drivers(control);
        if let Some(launcher) = self.control.launcher.take() {
            self.jobs.come_back_without(launcher);
            self.control.sessions.close(launcher);
        }
        self
    }
}

impl Kept<State> {
    /// Checks that it is of the cluster that is wanted.
    ///
    /// # Errors
    /// [`Error::Config`] names what differs.
    pub(super) fn check(&self, config: &ClusterConfig) -> Result<()> {
        let ClusterConfig { servers, workers, ref node, .. } = *config;
        if (self.job, self.servers, self.workers) == (node.job, servers, workers) {
            let state = self.lineage.number();
            tracing::info!(servers, workers, state, "going on with a cluster that runs");
            return Ok(());
        }
        let place = node.state.as_deref().unwrap_or(Path::new("")).display();
        Err(Error::Config(format!(
            "{place} has the state of job {:x} with {} servers and {} workers, not of job {:x} with \
             {servers} and {workers}: take another place, or remove the state if that cluster is \
             over",
            self.job, self.servers, self.workers, node.job
        )))
    }
}
