//! The command of a job as a process, and the variables that it gets.

use std::process::Command as Program;

use anyhow::{Context, Result};
use caravan_kv::{ClusterConfig, JobRole};

/// The word for this program, wherever it is installed, in the command of a job.
pub(super) const THIS_PROGRAM: &str = "caravan";

/// The program of a job as a process that is to be started.
pub(super) fn program(command: &[String]) -> Result<Program> {
    let (program, arguments) = command.split_first().context("there is no program")?;
    let mut program = match program.as_str() {
        THIS_PROGRAM => Program::new(std::env::current_exe().context("cannot find this program")?),
        other => Program::new(other),
    };
    program.args(arguments);
    Ok(program)
}

/// The variables of programs that are written for ps-lite, with the same values.
pub(super) fn child_variables(config: &ClusterConfig) -> Vec<(&'static str, String)> {
    let (root, port) = config.node.scheduler.rsplit_once(':').unwrap_or_default();
    let role = config.node.role.map_or("", JobRole::name);
    vec![
        ("DMLC_ROLE", role.to_owned()),
        ("DMLC_NUM_WORKER", config.workers.to_string()),
        ("DMLC_NUM_SERVER", config.servers.to_string()),
        ("DMLC_PS_ROOT_URI", root.to_owned()),
        ("DMLC_PS_ROOT_PORT", port.to_owned()),
        ("DMLC_NODE_HOST", config.node.host.clone()),
    ]
}
