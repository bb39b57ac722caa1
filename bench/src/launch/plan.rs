//! What is to be launched, and where.

use caravan_kv::ClusterConfig;

use super::hosts::{Host, Through};

/// A job to launch.
pub(super) struct Plan {
    pub(super) config: ClusterConfig,
    pub(super) command: Vec<String>,
    pub(super) hosts: Vec<Host>,
    /// How hosts other than this one are reached.
    pub(super) through: Through,
    /// The words of the remote shell.
    pub(super) ssh: Vec<String>,
}
