//! The cluster that this program starts or belongs to: its settings from environment and flags, the
//! tasks and tables of its nodes, its roles.

use std::hash::{BuildHasher, Hasher, RandomState};
use std::sync::atomic::Ordering;

use anyhow::{Context, Result, bail};
use caravan_kv::node::{Ended, SchedulerClient, join_server, run_server, run_worker};
use caravan_kv::{
    Apps, Cluster, ClusterConfig, Error, Handles, JobRole, Launch, NodeConfig, Target, Van, Worker,
};
use serde::Serialize;
use serde_json::Value;
use signal_hook::consts::SIGINT;

use crate::cli::ending::{Interrupted, Usage};
use crate::cli::interrupt::{Interrupt, status as status_of};
use crate::cli::values::name;
use crate::cli::{Common, Role, SchedulerRole, ServerRole, VanChoice, WorkerRole};
use crate::measure::consistency::worker::Iterates;
use crate::measure::crowd::Crowded;
use crate::measure::fabric::worker::Links;
use crate::measure::failover::Pushes;
use crate::measure::inserts::Counts;
use crate::measure::load::worker::Loads;
use crate::measure::scene::Waits;
use crate::measure::worker::Measure;
use crate::report::say;

/// The settings of `CARAVAN_*` variables, overridden by flags.
///
/// # Errors
/// [`Usage`] for a variable that does not exist or is not valid; the sim van, which has no nodes.
pub(crate) fn config(common: &Common) -> Result<ClusterConfig> {
    let mut config = ClusterConfig::from_env().map_err(|error| Usage(error.to_string()))?;
    let given = |flag: Option<u32>, setting: &mut usize| {
        if let Some(count) = flag {
            *setting = count as usize;
        }
    };
    given(common.workers, &mut config.workers);
    given(common.servers, &mut config.servers);
    given(common.threads, &mut config.threads);
    config.node.encrypt |= common.encrypt;
    config.node.insecure |= common.insecure;
    if let Some(wait) = common.wait {
        config.node.wait = wait;
    }
    if common.pin || common.no_pin {
        config.node.pin = common.pin;
    }
    if let Some(numa) = common.numa_node {
        config.node.numa = numa;
    }
    if let Some(choice) = common.van {
        config.node.van = van(choice)?;
    }
    Ok(config)
}

/// The van between processes that a choice stands for.
fn van(choice: VanChoice) -> Result<Van> {
    if choice == VanChoice::Sim {
        bail!(
            "the sim van has simulated time and no processes: it is for tests and \
             `caravan bench scale`; take --van tcp or auto, and see `caravan doctor`"
        );
    }
    Ok(name(&choice).parse()?)
}

/// The tasks that workers of this program run.
pub(crate) fn apps() -> Apps {
    caravan_learn::apps(Apps::default())
        .with(Measure::NAME, || Box::new(Measure::default()))
        .with(Crowded::NAME, || Box::new(Crowded::default()))
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

/// Starts a cluster of local processes, or of threads; with `--external` it waits for nodes that
/// are started elsewhere. A job that is submitted joins a cluster that runs.
///
/// # Errors
/// Names the node that did not come up; [`Usage`] for a NUMA node that this machine does not have;
/// as [`running`]; if another driver has a job of that name.
pub(crate) fn launch(config: &ClusterConfig, common: &Common) -> Result<Cluster> {
    if let Some(job) = &common.job {
        return Ok(Cluster::attach(&running(common)?, job)?);
    }
    let launch = if common.external || config.node.role == Some(JobRole::Scheduler) {
        Launch::External
    } else if common.in_process {
        Launch::Threads(handles(), apps())
    } else {
        let program =
            std::env::current_exe().context("cannot find this program to start its nodes")?;
        Launch::Processes(program)
    };
    Cluster::launch(config, launch).map_err(as_usage)
}

/// A name for a job of which any number may run at once.
pub(crate) fn name_of_one(of: &str) -> String {
    format!("{of}-{:016x}", RandomState::new().build_hasher().finish())
}

/// Calls `work` with a client of a running cluster, to which this program is the job `job`. The job
/// ends also where the work fails, so that the next one of its name need not wait until the
/// scheduler has missed this one.
///
/// # Errors
/// If the cluster cannot be reached or left; those of `work`.
pub(crate) fn with_client<T>(
    node: &NodeConfig,
    job: &str,
    work: impl FnOnce(&mut Worker) -> Result<T>,
) -> Result<T> {
    let cluster = Cluster::visit(node, job)?;
    let mut client = cluster.client()?;
    let done = work(&mut client);
    drop(client);
    let left = cluster.shutdown();
    let done = done?;
    left?;
    Ok(done)
}

/// The settings that name a running cluster.
///
/// # Errors
/// [`Usage`] if they do not.
pub(crate) fn running(common: &Common) -> Result<NodeConfig> {
    let node = config(common)?.node;
    check_address(&node)?;
    Ok(node)
}

fn check_address(node: &NodeConfig) -> Result<()> {
    if node.scheduler.ends_with(":0") {
        bail!(Usage(format!(
            "{} is no address of a scheduler; set CARAVAN_SCHEDULER to HOST:PORT (a role also takes \
             --scheduler)",
            node.scheduler
        )));
    }
    Ok(())
}

/// Sends a task to worker 0 and waits for its answer.
pub(crate) fn ask_first_worker(
    cluster: &mut Cluster,
    app: &str,
    task: &impl Serialize,
) -> Result<Value> {
    let id = cluster.submit(Target::Worker(0), app, &serde_json::to_value(task)?)?;
    cluster.wait(id)?.pop().context("worker 0 answered nothing")
}

/// Settings that are wrong on this machine are wrong usage, like those that are wrong anywhere.
fn as_usage(error: Error) -> anyhow::Error {
    match error {
        Error::Config(reason) => Usage(reason).into(),
        other => other.into(),
    }
}

/// Runs a scheduler without a job of its own: gathers the cluster and watches it. One that keeps
/// its state leaves the cluster to its successor, unless Ctrl-C ends both.
pub(crate) fn schedule(common: &Common, args: &SchedulerRole) -> Result<()> {
    let mut config = joined(common, &args.role)?;
    if let Some(state) = args.state.as_ref().or(args.etcd.as_ref()) {
        config.node.state = Some(state.clone());
    }
    let mut scheduler = SchedulerClient::bind(&config).map_err(as_usage)?;
    say(format_args!("nodes can join at {}", scheduler.address()));
    scheduler.gather(|| Ok(()))?;
    say(format_args!("{} servers and {} workers have joined", config.servers, config.workers));
    let Some(state) = &config.node.state else { return Ok(scheduler.watch(|| true)?) };
    let interrupt = Interrupt::watch().context("cannot watch for Ctrl-C")?;
    interrupt.defer();
    let is_interrupted = interrupt.flag();
    scheduler.watch(|| !is_interrupted.load(Ordering::Relaxed))?;
    let status = interrupt.status();
    let saved = match status == status_of(SIGINT) {
        true => {
            scheduler.end(Some("its scheduler was interrupted"))?;
            "the cluster has ended".to_owned()
        }
        false => format!("the cluster goes on, its state is in {}", state.display()),
    };
    Err(Interrupted { status, saved }.into())
}

/// Runs a server until the job is over, or it has left.
pub(crate) fn serve(common: &Common, args: &ServerRole) -> Result<()> {
    let config = joined(common, &args.role)?;
    let (node, threads) = (&config.node, config.threads);
    if !args.join {
        return run_server(node, node.rank, threads, &handles(), true).map_err(as_usage);
    }
    if let Ended::Left(rank) = join_server(node, threads, &handles(), true).map_err(as_usage)? {
        say(format_args!("server {rank} has left the cluster: its shards are at other servers"));
    }
    Ok(())
}

/// Runs a worker until the job is over.
pub(crate) fn work(common: &Common, args: &WorkerRole) -> Result<()> {
    let mut config = joined(common, &args.role)?;
    if let Some(root) = &args.data_root {
        config.node.data_root = Some(root.clone());
    }
    run_worker(&config.node, config.node.rank, &apps(), true).map_err(as_usage)
}

/// The settings of a node that joins a scheduler.
fn joined(common: &Common, role: &Role) -> Result<ClusterConfig> {
    let mut config = config(common)?;
    if let Some(address) = &role.scheduler {
        config.node.scheduler.clone_from(address);
    }
    if let Some(host) = &role.host {
        config.node.host.clone_from(host);
    }
    if let Some(job) = role.job {
        config.node.job = job;
    }
    config.node.rank = role.rank.or(config.node.rank);
    check_address(&config.node)?;
    Ok(config)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_job_ends_where_its_work_fails() {
        let nodes = Launch::Threads(Handles::default(), Apps::default());
        let cluster = Cluster::launch(&ClusterConfig::default(), nodes).unwrap();
        let node = &cluster.config().node;
        for _ in 0..20 {
            let failed = with_client(node, "again", |_| -> Result<()> { bail!("no") });
            assert_eq!(failed.unwrap_err().to_string(), "no");
        }
        cluster.shutdown().unwrap();
    }
}
