//! The jobs of a running cluster, for whoever holds its secret: which there are, and how one is
//! cancelled. [`crate::Cluster::attach`] begins one.

pub use crate::node::JobStatus;

use crate::config::NodeConfig;
use crate::error::Result;
use crate::node::SchedulerClient;

/// The jobs of a cluster that another process has started. This process needs none of its own.
pub struct Jobs {
    scheduler: SchedulerClient,
}

impl Jobs {
    /// Reaches the cluster. `node` holds the scheduler's address, the number and the secret of the
    /// cluster.
    ///
    /// # Errors
    /// [`crate::Error::Timeout`] if no scheduler listens there.
    pub fn of(node: &NodeConfig) -> Result<Jobs> {
        Ok(Jobs { scheduler: SchedulerClient::reach(node)? })
    }

    /// All jobs, by name; that of the driver that started the cluster has none.
    ///
    /// # Errors
    /// [`crate::Error::NodeLost`].
    pub fn list(&mut self) -> Result<Vec<JobStatus>> {
        self.scheduler.jobs()
    }

    /// Why the scheduler takes no changes now, if that is so: there is no room for its state. What
    /// drivers and nodes ask meanwhile waits until there is.
    ///
    /// # Errors
    /// [`crate::Error::NodeLost`].
    pub fn paused(&mut self) -> Result<Option<String>> {
        self.scheduler.paused()
    }

    /// Ends the job of another driver. Its driver's calls fail with [`crate::Error::Cancelled`],
    /// and so do the waits of its tasks. Returns when no worker runs anything of it, and its tables
    /// are dropped.
    ///
    /// # Errors
    /// [`crate::Error::Config`] if there is no such job, or it belongs to the driver that started
    /// the cluster; [`crate::Error::NodeLost`].
    pub fn cancel(&mut self, job: &str) -> Result<()> {
        self.scheduler.cancel(job)
    }
}
