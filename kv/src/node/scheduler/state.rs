//! What the scheduler's thread knows, and what of it is kept.

use std::path::Path;
use std::time::Duration;

use serde::{Deserialize, Serialize};

use super::super::backend::Van;
use super::super::members::Members;
use super::jobs::Jobs;
use super::plane::Plane;
use super::posts::Posts;
use crate::config::ClusterConfig;
use crate::error::{Error, Result};

/// What the thread knows.
#[derive(Serialize, Deserialize)]
pub(super) struct State {
    pub(super) plane: Plane,
    pub(super) jobs: Jobs,
    pub(super) posts: Posts,
    /// Once all have joined: the vans of the drivers, or why some nodes have none in common.
    pub(super) chosen: Option<Result<Vec<Van>, String>>,
    pub(super) ended: Option<String>,
}

/// What is kept: a state, and of which cluster.
#[derive(Serialize, Deserialize)]
pub(super) struct Kept<S> {
    pub(super) job: u64,
    pub(super) servers: usize,
    pub(super) workers: usize,
    /// Where the nodes of the cluster look for the scheduler.
    pub(super) address: String,
    pub(super) state: S,
}

impl State {
    pub(super) fn new(members: Members) -> State {
        State {
            plane: Plane::new(members),
            jobs: Jobs::default(),
            posts: Posts::default(),
            chosen: None,
            ended: None,
        }
    }

    /// Goes on at time `now`, after the process that had this state: its nodes come back, its
    /// driver does not.
    pub(super) fn come_back(mut self, now: Duration) -> State {
        self.plane.members.come_back(now);
        self.plane.sessions.come_back();
        if let Some(launcher) = self.plane.launcher.take() {
            self.jobs.come_back_without(launcher);
            self.plane.sessions.close(launcher);
        }
        self
    }
}

impl Kept<State> {
    /// The state, if it is of the cluster that is wanted.
    ///
    /// # Errors
    /// [`Error::Config`] names what differs.
    pub(super) fn of(self, config: &ClusterConfig) -> Result<State> {
        let ClusterConfig { servers, workers, ref node, .. } = *config;
        if (self.job, self.servers, self.workers) == (node.job, servers, workers) {
            tracing::info!(servers, workers, "going on with a cluster that runs");
            return Ok(self.state);
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
