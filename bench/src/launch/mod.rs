//! `caravan launch`: starts a program once for each role of a job, on this machine, on hosts by
//! ssh, or in an allocation.
//!
//! ```text
//!                      ┌── agent of host A ──── server 0, worker 1 …    (here, by ssh or by srun)
//!   launcher ──────────┤
//!      │               └── agent of host B ──── worker 0 …
//!      └── scheduler (the driver of the job, here)
//! ```
//!
//! Where something else has started all processes of a job already (srun, mpirun, Kubernetes, the
//! tracker of ps-lite), each of them becomes its role at once (`place.rs`).

mod addresses;
pub(crate) mod agent;
mod command;
mod descendants;
mod environment;
pub(crate) mod hosts;
mod job;
mod plan;
mod protocol;
mod remote;
mod threads;

use std::os::unix::process::CommandExt;

use anyhow::{Context, Result};
use caravan_kv::node::own_address_towards;
use caravan_kv::{ClusterConfig, JobRole, NodeConfig};

use self::command::{THIS_PROGRAM, child_variables, program};
use self::environment::{Assignment, Environment, Slot};
use self::hosts::{Host, Through, expand_slurm, read_file};
use self::plan::Plan;
use crate::cli::ending::Usage;
use crate::cli::{BenchCommand, Cli, Command, Common, LaunchArgs, ServerRole, WorkerRole};
use crate::cluster;
use crate::floor::Beside;

/// Takes a command over if its cluster is launched: becomes the role that a launcher has given to
/// this process, or launches the roles on the hosts of `--hosts`.
pub(crate) fn instead(cli: &Cli) -> Result<Option<()>> {
    let common = &cli.common;
    let names_hosts = common.hosts.is_some() || common.hostfile.is_some();
    if !has_one_cluster(&cli.command) {
        if names_hosts && !matches!(cli.command, Command::Launch(_)) {
            let why = "--hosts and --hostfile are for bench latency, bandwidth, rate, all, load \
                       and fabric, for train, and for launch";
            return Err(Usage(why.to_owned()).into());
        }
        return Ok(None);
    }
    let config = cluster::config(common)?.node;
    check_launched(&config)?;
    match config.role {
        Some(JobRole::Scheduler) => Ok(None),
        Some(JobRole::Server) => {
            // Ranks are not known here if the scheduler gives them.
            let is_first = config.rank.unwrap_or(0) == 0;
            let _beside = (is_first && has_floor(&cli.command)).then(|| Beside::start(&config));
            cluster::serve(common, &ServerRole::default()).map(Some)
        }
        Some(JobRole::Worker) => cluster::work(common, &WorkerRole::default()).map(Some),
        None if names_hosts => {
            let arguments = std::env::args().skip(1);
            let command = [THIS_PROGRAM.to_owned()].into_iter().chain(arguments);
            let mut plan = plan_of(common, command.collect())?;
            if matches!(cli.command, Command::Bench(BenchCommand::Fabric(_))) {
                one_each(&mut plan);
            }
            job::run(&plan).map(Some)
        }
        None => Ok(None),
    }
}

/// Checks that a process with a role has a scheduler: one without was not launched, and has only
/// inherited the variable.
fn check_launched(config: &NodeConfig) -> Result<()> {
    let Some(role) = config.role.filter(|_| config.scheduler.ends_with(":0")) else {
        return Ok(());
    };
    Err(Usage(format!(
        "CARAVAN_ROLE={} makes this process one of a launched job, and CARAVAN_SCHEDULER names no \
         scheduler: unset CARAVAN_ROLE to run all of the job from here",
        role.name()
    ))
    .into())
}

/// Gives every host one worker and one server, of the same number.
fn one_each(plan: &mut Plan) {
    plan.hosts.iter_mut().for_each(|host| host.slots = 1);
    plan.config.servers = plan.hosts.len();
    plan.config.workers = plan.hosts.len();
}

/// Whether a command measures against a floor.
fn has_floor(command: &Command) -> bool {
    use BenchCommand::{All, Bandwidth, Latency, Rate};
    matches!(command, Command::Bench(Latency(_) | Bandwidth(_) | Rate(_) | All(_)))
}

/// Whether a command runs one cluster from its start to its end.
fn has_one_cluster(command: &Command) -> bool {
    use BenchCommand::{Fabric, Load};
    let is_job = matches!(command, Command::Train(_) | Command::Bench(Load(_) | Fabric(_)));
    is_job || has_floor(command)
}

/// Runs `caravan launch`.
///
/// # Errors
/// [`Usage`]; the first process that failed, with its status.
pub(crate) fn run(common: &Common, args: &LaunchArgs) -> Result<()> {
    let names_hosts = common.hosts.is_some() || common.hostfile.is_some();
    let here = Environment {
        var: &|name| std::env::var(name).ok(),
        hostname: rustix::system::uname().nodename().to_string_lossy().into_owned(),
        known_hosts: std::fs::read_to_string("/etc/hosts").unwrap_or_default(),
        parent: rustix::process::getppid().map_or(0, |pid| pid.as_raw_pid() as u32),
    };
    if let Some(role) = cluster::config(common)?.node.role {
        return Err(Usage(format!(
            "CARAVAN_ROLE={} says that this process belongs to a job that runs: unset CARAVAN_ROLE \
             and the other variables of that job to launch another",
            role.name()
        ))
        .into());
    }
    let place = if names_hosts { None } else { Assignment::find(&here).map_err(Usage)? };
    match place {
        Some(place) => become_role(common, &place, &args.command),
        None => job::run(&plan_of(common, args.command.clone())?),
    }
}

/// Where the processes of a job are started, from flags or from the allocation of Slurm.
fn plan_of(common: &Common, command: Vec<String>) -> Result<Plan> {
    let ssh = common.ssh.split_whitespace().map(str::to_owned).collect();
    let mut plan = Plan {
        config: cluster::config(common)?,
        command,
        hosts: vec![Host::new(Host::HERE)],
        through: Through::Ssh,
        ssh,
    };
    let nodes = std::env::var("SLURM_JOB_NODELIST").ok();
    match (&common.hosts, &common.hostfile, nodes) {
        (Some(hosts), ..) => plan.hosts.clone_from(&hosts.0),
        (None, Some(file), _) => plan.hosts = read_file(file)?,
        (None, None, Some(nodes)) => {
            let names = expand_slurm(&nodes)
                .map_err(|why| Usage(format!("SLURM_JOB_NODELIST={nodes}: {why}")))?;
            plan.hosts = names.iter().map(|name| Host::new(name)).collect();
            plan.through = Through::Srun;
        }
        (None, None, None) => {}
    }
    Ok(plan)
}

/// Becomes the role of a process that something else has started: replaces this program by the
/// job's, which finds role, rank and scheduler in its variables.
fn become_role(common: &Common, place: &Assignment, command: &[String]) -> Result<()> {
    let mut config = cluster::config(common)?;
    if let Slot::Role { workers, servers, .. } = place.slot {
        config.workers = common.workers.map(|n| n as usize).or(workers).unwrap_or(config.workers);
        config.servers = common.servers.map(|n| n as usize).or(servers).unwrap_or(config.servers);
    }
    let defaults = ClusterConfig::default().node;
    let (role, rank) = place.role(config.servers, config.workers).map_err(Usage)?;
    config.node.role = Some(role);
    config.node.rank = rank;
    if config.node.scheduler == defaults.scheduler {
        config.node.scheduler = place.scheduler().map_err(Usage)?;
    }
    if config.node.job == 0 {
        config.node.job = place.job_number();
    }
    if config.node.host == defaults.host {
        let root = config.node.scheduler.rsplit_once(':').map_or("", |(root, _)| root);
        let root = root.trim_start_matches('[').trim_end_matches(']');
        let own = || own_address_towards(root).map(|own| own.to_string());
        config.node.host = place.host.clone().or_else(own).unwrap_or(defaults.host);
    }
    // The secret stays where the user has put it: a file, or a variable.
    let kept = |name: &str| name == "CARAVAN_SECRET" || name == "CARAVAN_SECRET_FILE";
    let error = program(command)?
        .envs(config.to_vars().filter(|(name, _)| !kept(name)))
        .envs(child_variables(&config))
        .exec();
    Err(error).with_context(|| format!("cannot start {}", command[0]))
}
