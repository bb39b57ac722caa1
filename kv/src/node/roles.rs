//! The life of servers and workers, from joining to the end.

use std::cell::RefCell;
use std::collections::HashMap;
use std::rc::Rc;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};
use std::sync::mpsc;
use std::time::Duration;

use caravan_van::{Endpoint, Gauge, Identity, VanConfig};

use super::backend::{self, Van, incarnation, is_simulated};
use super::barriers::Party;
use super::choice::{self, Candidate};
use super::control::{Changes, Join, Role, Roster, Step, Target, identity, is_within, within};
use super::group::{Group, Recipients};
use super::heartbeat;
use super::member::{Member, Work};
use super::messages;
use super::placement::{Seating, check_numa};
use super::reach;
use super::rpc::{Answered, AtRpc, Handler, Handlers, RequestId, Rpc};
use super::scheduler::TaskId;
use super::thread::NodeThread;
use crate::config::NodeConfig;
use crate::error::{Error, Result};
use crate::history;
use crate::membership::Membership;
use crate::server::{Handles, ServerThread};
use crate::server_address::ServerAddress;
use crate::worker::{ChangeChains, Servers, Waits, Watch, Worker};

/// Runs tasks that the scheduler sends to workers under its name.
pub trait App {
    /// Runs one task. State in `self` is kept for the next one.
    ///
    /// # Errors
    /// Text that the scheduler shows with this node's name.
    fn run(
        &mut self,
        node: &mut WorkerNode,
        body: serde_json::Value,
    ) -> Result<serde_json::Value, String>;
}

type MakeApp = dyn Fn() -> Box<dyn App> + Send + Sync;

/// The apps and the handlers that workers know, by name.
#[derive(Clone, Default)]
pub struct Apps {
    apps: HashMap<String, Arc<MakeApp>>,
    handlers: Handlers,
}

impl Apps {
    /// Adds an app; each worker calls `make` at its first task.
    pub fn with(
        mut self,
        name: &str,
        make: impl Fn() -> Box<dyn App> + Send + Sync + 'static,
    ) -> Self {
        self.apps.insert(name.to_owned(), Arc::new(make));
        self
    }

    /// Adds a handler; each worker calls `make` before it joins.
    pub fn with_handler(
        mut self,
        name: &str,
        make: impl Fn() -> Box<dyn Handler> + Send + Sync + 'static,
    ) -> Self {
        self.handlers.insert(name, make);
        self
    }
}

/// A joined worker.
pub struct WorkerNode {
    /// Its lanes to the servers.
    pub worker: Worker,
    /// Its settings, with the van that it was given.
    pub config: NodeConfig,
    /// Its rank.
    pub rank: usize,
    /// Number of workers.
    pub workers: usize,
    /// The job of the task that runs. Tables that the worker creates belong to its namespace.
    pub job: String,
    /// Number of the task that runs.
    task: u64,
    /// Shared with the worker, which checks it while it waits.
    member: Rc<RefCell<Member>>,
}

impl WorkerNode {
    /// Waits until all workers that run this task have reached its barrier called `name`.
    ///
    /// # Errors
    /// [`Error::Timeout`]; [`Error::NodeLost`] names any node that was lost meanwhile,
    /// [`Error::TaskFailed`] a worker that has failed at this task.
    pub fn barrier(&mut self, name: &str) -> Result<()> {
        self.member.borrow_mut().meet(Party::Task(self.task), name, self.config.join_timeout)
    }

    /// Waits until all nodes of a group have reached the barrier called `name` of this job. A
    /// server or a driver that takes part names the job as well: `job/name`.
    ///
    /// # Errors
    /// As [`WorkerNode::barrier`].
    pub fn meet(&mut self, group: Group, name: &str) -> Result<()> {
        let name = if self.job.is_empty() { name } else { &within(&self.job, name) };
        self.member.borrow_mut().meet(Party::Group(group), name, self.config.join_timeout)
    }

    /// Lets `use_it` make and answer requests to other nodes, and sends them.
    ///
    /// # Errors
    /// [`Error::NodeLost`] names any node that was lost meanwhile.
    pub fn rpc<T>(&mut self, use_it: impl FnOnce(&mut Rpc) -> T) -> Result<T> {
        self.member.borrow_mut().with_rpc(use_it)
    }

    /// Number of the task that runs.
    pub fn task(&self) -> TaskId {
        TaskId(self.task)
    }

    /// The driver of the task that runs, for requests: the one that started the cluster, or one
    /// that has joined it.
    pub fn driver(&self) -> Recipients {
        Recipients::DriverOf(self.task)
    }

    /// Waits until a request to other nodes is complete, and returns their answers, in order of the
    /// nodes.
    ///
    /// # Errors
    /// [`Error::Timeout`] names the nodes that have not answered, and the caller may wait again;
    /// [`Error::Config`] if there is no such node; [`Error::NodeLost`].
    pub fn wait_for(&mut self, request: RequestId, timeout: Duration) -> Result<Vec<Answered>> {
        self.member.borrow_mut().wait_for(request, timeout)
    }

    /// Starts `app` with input `body` at the target, as a part of the task that runs: this is not
    /// finished before that is, and fails if that fails. Nobody waits here. A worker runs one task
    /// at a time, this one before another of its own.
    ///
    /// # Errors
    /// [`Error::Config`] if there is no such worker, it has too many tasks that it has not
    /// finished, or the driver is gone; [`Error::NodeLost`].
    pub fn spawn(&mut self, target: Target, app: &str, body: &serde_json::Value) -> Result<()> {
        let timeout = self.config.join_timeout;
        self.member.borrow_mut().spawn(self.task, target, app, body, timeout).map(drop)
    }
}

/// A job's state at a worker.
#[derive(Default)]
struct JobState {
    apps: HashMap<String, Box<dyn App>>,
    /// The clock of its requests, which its next task goes on with.
    clock: u64,
}

impl JobState {
    /// Runs one task of the job.
    fn run(
        &mut self,
        node: &mut WorkerNode,
        apps: &Apps,
        app: String,
        body: serde_json::Value,
    ) -> Result<serde_json::Value, String> {
        let Some(make) = apps.apps.get(&app) else {
            return Err(format!(
                "this worker has no app of that name, only {:?}",
                apps.apps.keys()
            ));
        };
        node.worker.admin().set_namespace(&node.job);
        node.worker.set_clock(self.clock);
        let done = self.apps.entry(app).or_insert_with(|| make()).run(node, body);
        self.clock = node.worker.info().clock();
        done
    }
}

/// Runs steps in order; returns all results, or names those that have failed.
fn run_steps(
    steps: Vec<Step>,
    mut run: impl FnMut(Step) -> Result<serde_json::Value, String>,
) -> Result<serde_json::Value, String> {
    let mut results: Vec<Result<serde_json::Value, String>> = Vec::with_capacity(steps.len());
    for step in steps {
        let has_failed = |at: &&usize| !matches!(results.get(**at), Some(Ok(_)));
        results.push(match step.after.iter().find(has_failed) {
            Some(at) => Err(format!("step {at}, for which it waits, was not done")),
            None => run(step),
        });
    }
    let failed = |(at, result): (usize, &Result<_, String>)| {
        result.as_ref().err().map(|why| format!("step {at}: {why}"))
    };
    let failed: Vec<String> = results.iter().enumerate().filter_map(failed).collect();
    match failed.is_empty() {
        true => results.into_iter().collect(),
        false => Err(failed.join("; ")),
    }
}

/// Drops the tables of a job that has ended, if that is for this worker to do; all forget them.
fn forget(node: &mut WorkerNode, job: &str, drops: bool) -> Result<(), Error> {
    node.worker.admin().set_namespace(job);
    if drops {
        node.worker.admin().drop_tables("")?;
    }
    node.worker.forget_namespace();
    Ok(())
}

/// Joins as a worker and runs tasks until the job is over.
///
/// # Errors
/// Those of joining and of the lanes; [`Error::Config`] for a NUMA node that this machine does not
/// have. A task's own error goes to the scheduler instead.
pub fn run_worker(
    config: &NodeConfig,
    rank: Option<usize>,
    apps: &Apps,
    own_process: bool,
) -> Result<()> {
    check_numa(config.numa)?;
    let config = begin(config, Role::Worker, rank, own_process)?;
    let beats = heartbeat::has_own(own_process);
    let join = join_request(&config, without_threads(&config)?, beats);
    let member = Member::join(&config, Role::Worker, join, apps.handlers.rpc())?;
    let roster = member.roster().clone();
    let (van, vans) = (roster.van, roster.vans.clone());
    let config = NodeConfig { van, vans, ..ranked(&config, &roster) };
    let gauge = Gauge::default();
    if beats {
        let seat = (Role::Worker, roster.rank);
        heartbeat::start(config.clone(), seat, member.home(), vec![gauge.clone()])?;
    }
    let member = Rc::new(RefCell::new(member));
    let watched = member.clone();
    let watch: Watch = Box::new(move || watched.borrow_mut().news());
    let mut worker = watched_client(&config, &roster, Some(watch), None)?;
    worker.show_by(gauge);
    let Roster { rank, workers, .. } = roster;
    let job = String::new();
    let mut node = WorkerNode { worker, config, rank, workers, job, task: 0, member };
    let mut jobs: HashMap<String, JobState> = HashMap::new();
    let mut events = 0;
    loop {
        let goes_on = |changes: &Changes| changes.events.len() == events;
        let next = node.member.borrow_mut().next_task(goes_on)?;
        let Some(mut task) = next else {
            let known = std::mem::replace(&mut events, node.member.borrow().events());
            if events == known {
                return Ok(());
            }
            part(&mut node.worker);
            continue;
        };
        node.job.clone_from(&task.job);
        node.task = task.number;
        let report = match std::mem::replace(&mut task.work, Work::Forget { drops: false }) {
            Work::Run { app, body } => {
                jobs.entry(task.job.clone()).or_default().run(&mut node, apps, app, body)
            }
            Work::Steps(steps) => {
                let state = jobs.entry(task.job.clone()).or_default();
                run_steps(steps, |step| state.run(&mut node, apps, step.app, step.body))
            }
            Work::Forget { drops } => {
                jobs.retain(|job, _| !is_within(job, &task.job));
                let forgotten = forget(&mut node, &task.job, drops);
                forgotten.map(|()| serde_json::Value::Null).map_err(|error| error.to_string())
            }
        };
        node.member.borrow_mut().report(&task, &report)?;
    }
}

/// Closes the lanes to servers that have left, for which these wait, while no task runs.
fn part(worker: &mut Worker) {
    if let Err(error) = worker.part_from_left() {
        tracing::warn!(%error, "a server that has left waits for this worker");
    }
}

/// Completes a node's settings with its secret and identity. Makes a launched node end with its
/// launcher.
fn begin(
    config: &NodeConfig,
    role: Role,
    rank: Option<usize>,
    own_process: bool,
) -> Result<NodeConfig> {
    let is_held = config.is_held();
    let identity = identity(role.number(), rank);
    let config = NodeConfig { identity, ..config.secured()? };
    if own_process && is_held {
        heartbeat::end_with_launcher(role.to_string())?;
    }
    Ok(config)
}

/// The settings with the assigned rank.
fn ranked(config: &NodeConfig, roster: &Roster) -> NodeConfig {
    let rank = u32::try_from(roster.rank).ok();
    let identity = Identity { rank, ..config.identity };
    NodeConfig { identity, turn: roster.turn, ..config.clone() }
}

/// The request to join of a node that will send heartbeats, or not.
fn join_request(config: &NodeConfig, vans: Vec<Candidate>, beats: bool) -> Join {
    let name = || rustix::system::uname().nodename().to_string_lossy().into_owned();
    let host = if is_simulated() { String::new() } else { name() };
    let is_elsewhere = !is_simulated() && reach::is_elsewhere(&config.scheduler);
    Join { pid: std::process::id(), host, is_elsewhere, beats, is_further: false, vans }
}

/// The vans that a node without server threads can use. It opens the chosen ones later, when it
/// knows its id.
pub(super) fn without_threads(config: &NodeConfig) -> Result<Vec<Candidate>> {
    let mut candidates = choice::candidates(&backend::open_all(config, false)?);
    candidates.iter_mut().filter_map(|one| one.threads.as_mut().ok()).for_each(Vec::clear);
    Ok(candidates)
}

/// A client of these servers, node `node`, which opens lanes as it needs them; nobody connects to
/// it.
///
/// # Errors
/// As [`Worker::new`]; those of the van.
pub fn client(config: &NodeConfig, node: u32, servers: &[ServerAddress]) -> Result<Worker> {
    let identity = Identity { role: Role::Worker.number(), ..config.identity };
    let waits = Waits::up_to(config.request_timeout);
    client_of(&NodeConfig { identity, ..config.clone() }, node, &Servers::founding(servers), waits)
}

/// As [`client`], of the cluster of a roster, with a watch for lost nodes during its waits.
pub(crate) fn watched_client(
    config: &NodeConfig,
    roster: &Roster,
    watch: Option<Watch>,
    change: Option<ChangeChains>,
) -> Result<Worker> {
    let waits = Waits::up_to(config.request_timeout).sparing(roster.server_losses_max > 0);
    let waits = waits.changing_chains(change);
    let waits = match watch {
        Some(watch) => waits.watching(watch, config.heartbeat),
        None => waits,
    };
    let Roster { ref servers, founders, threads, .. } = *roster;
    client_of(config, roster.node, &Servers { all: servers, founders, threads }, waits)
}

/// Clients that this process has made.
static CLIENTS: AtomicU32 = AtomicU32::new(0);

fn client_of(
    config: &NodeConfig,
    node: u32,
    servers: &Servers<'_>,
    waits: Waits,
) -> Result<Worker> {
    // Its timestamps begin anew: servers must not take them for another client's of this process.
    let identity = Identity { incarnation: incarnation(), ..config.identity };
    let turn = config.turn.wrapping_add(CLIENTS.fetch_add(1, Ordering::Relaxed));
    let van = VanConfig { accepts: false, identity, turn, ..config.van_config(node) };
    let role = Role::of(identity.role).map_or("driver".to_owned(), |role| role.to_string());
    let opened = backend::open_joined(config, &van)?;
    let transport = messages::watched(opened, config, (&role, node), 0)?;
    let endpoint = Endpoint::new(transport, node, config.credits);
    Worker::watched(endpoint, servers, config.join_timeout, waits)
}

/// Joins as a server with `threads` threads and serves until the job is over.
///
/// # Errors
/// Those of joining and of the vans; [`Error::Config`] for a NUMA node that this machine does not
/// have.
pub fn run_server(
    config: &NodeConfig,
    rank: Option<usize>,
    threads: usize,
    handles: &Handles,
    own_process: bool,
) -> Result<()> {
    serve(config, (Coming::Founds, rank), threads, handles, own_process).map(drop)
}

/// Joins a cluster that is complete, beside its servers, and serves until the job is over, or until
/// it has left ([`Cluster::release_server`](crate::Cluster::release_server)). Tables are not placed
/// on its threads; shards are moved there ([`Admin::move_shard`](crate::Admin::move_shard),
/// [`Admin::rebalance`](crate::Admin::rebalance)). Its threads follow those of all other servers.
///
/// # Errors
/// As [`run_server`]; [`Error::NodeLost`] says why the scheduler refused it: the cluster is not
/// complete, or has ended, or none of the vans here works for all its nodes.
pub fn join_server(
    config: &NodeConfig,
    threads: usize,
    handles: &Handles,
    own_process: bool,
) -> Result<Ended> {
    serve(config, (Coming::Follows, None), threads, handles, own_process)
}

/// Why a server serves no longer that has joined a complete cluster.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Ended {
    /// The job is over.
    Over,
    /// The server of this rank has left the cluster, which goes on.
    Left(usize),
}

/// When a server joins.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Coming {
    /// Before the cluster is complete.
    Founds,
    /// Afterwards.
    Follows,
}

fn serve(
    config: &NodeConfig,
    (coming, rank): (Coming, Option<usize>),
    threads: usize,
    handles: &Handles,
    own_process: bool,
) -> Result<Ended> {
    if !is_simulated() {
        reach::check_host(config)?;
    }
    let stop = Arc::new(AtomicBool::new(false));
    let config = &begin(config, Role::Server, rank, own_process)?;
    let seating = match is_simulated() {
        true => None,
        false => Seating::here(config, rank.unwrap_or(0), threads)?.map(Arc::new),
    };
    // Servers without a rank have some place each.
    let place = rank.unwrap_or_else(|| std::process::id() as usize);
    let mut started = Vec::new();
    for index in 0..threads {
        let turn = place.wrapping_mul(threads).wrapping_add(index) as u32;
        let config = NodeConfig { turn, ..config.clone() };
        let (say_vans, vans) = mpsc::channel();
        let (say_place, place) = mpsc::channel::<Place>();
        let (say_view, view) = mpsc::channel();
        let (stop, seating) = (stop.clone(), seating.clone());
        let handles = handles.clone();
        let gauge = Gauge::default();
        let shown = gauge.clone();
        let serve = move || -> Result<()> {
            // Before it touches any memory.
            let own = seating.map(|seating| seating.take(index, &config));
            let config = own.as_ref().unwrap_or(&config);
            let opened = backend::open_all(config, true)?;
            // A failed send or receive means that the node has failed, and reports that itself.
            let _ = say_vans.send(choice::candidates(&opened));
            let Ok(place) = backend::receive(&place) else { return Ok(()) };
            let transport = choice::take(opened, place.van, &place.vans, config.wait)?;
            let named = ("server", place.node);
            let transport = messages::watched(transport, config, named, place.index)?;
            let mut endpoint = Endpoint::new(transport, place.node, config.credits);
            endpoint.lanes.show_by(shown);
            let thread = server_thread(config, endpoint, (place.index, place.count), &handles);
            thread.hear_views(view).run(&stop)
        };
        let thread = NodeThread::start(&format!("serve {index}"), serve)?;
        started.push(Started { thread, vans, place: say_place, view: say_view, gauge });
    }
    let mut outcome = serve_until_end(config, coming, &started, handles, own_process);
    stop.store(true, Ordering::Relaxed);
    for Started { thread, vans, place, view, .. } in started {
        drop((vans, place, view));
        outcome = thread.join().and(outcome);
    }
    outcome
}

/// Thread `index` of `count`, which records histories if the settings say so.
fn server_thread(
    config: &NodeConfig,
    endpoint: Endpoint,
    (index, count): (usize, usize),
    handles: &Handles,
) -> ServerThread {
    let thread = ServerThread::new(endpoint, index, count, handles.clone());
    let Some(folder) = config.history.clone() else { return thread };
    thread.record_histories(move |shard, spec| match spec.replicas {
        0 => history::create(&folder, shard, spec),
        // Each copy has a history of its own.
        _ => history::create(&folder.join(format!("thread-{index}")), shard, spec),
    })
}

/// A server thread, the vans that work for it, where to tell it its place and who is lost, and what
/// it shows.
struct Started {
    thread: NodeThread,
    vans: mpsc::Receiver<Vec<Candidate>>,
    place: mpsc::Sender<Place>,
    view: mpsc::Sender<Membership>,
    gauge: Gauge,
}

/// What a server thread learns when its node has joined.
struct Place {
    van: Van,
    /// See [`Roster::vans`].
    vans: Vec<Van>,
    node: u32,
    /// Its index among all server threads, and the number of those that have founded the cluster.
    index: usize,
    count: usize,
}

/// Joins, and takes part until the job is over, all threads have left, or one has ended; joining
/// that thread reports its error.
fn serve_until_end(
    config: &NodeConfig,
    coming: Coming,
    started: &[Started],
    handles: &Handles,
    own_process: bool,
) -> Result<Ended> {
    let vans = started.iter().map(|it| backend::receive(&it.vans));
    let Ok(vans) = vans.collect::<Result<Vec<_>, mpsc::RecvError>>() else {
        return Ok(Ended::Over); // a thread ended before it listened
    };
    let beats = heartbeat::has_own(own_process);
    let is_further = coming == Coming::Follows;
    let join = Join { is_further, ..join_request(config, choice::of_all(&vans), beats) };
    if join.is_elsewhere {
        reach::check_announced(join.vans.iter()).map_err(Error::Config)?;
    }
    let mut member = Member::join(config, Role::Server, join, handles.handlers().rpc())?;
    let roster = member.roster().clone();
    if beats {
        let gauges = started.iter().map(|it| it.gauge.clone()).collect();
        let seat = (Role::Server, roster.rank);
        heartbeat::start(ranked(config, &roster), seat, member.home(), gauges)?;
    }
    for (index, it) in started.iter().enumerate() {
        let _ = it.place.send(Place {
            van: roster.van,
            vans: roster.vans.clone(),
            node: roster.node,
            index: roster.first_thread + index,
            count: roster.founders,
        });
    }
    let founders = roster.servers.iter().take(roster.founders);
    let addresses = founders.map(|server| server.address.clone()).collect();
    let mut view = Membership { addresses, threads: roster.threads, ..Membership::default() };
    let mut ended = Ended::Over;
    let mut go_on = |changes: &Changes| {
        let Changes { lost, workers, events } = changes;
        let (lost, workers) = (lost.iter().copied(), workers.iter().copied());
        let (lost, workers, events) = (lost.collect(), workers.collect(), events.clone());
        let known = Membership { lost, workers, events, ..Membership::default() };
        if view.join(&known) {
            started.iter().for_each(|it| drop(it.view.send(view.clone())));
        }
        let finished = started.iter().filter(|it| it.thread.is_finished()).count();
        match view.has_left(roster.first_thread) {
            true => ended = Ended::Left(roster.rank),
            false => return finished == 0,
        }
        finished < started.len()
    };
    while let Some(task) = member.next_task(&mut go_on)? {
        member.report(&task, &Err("servers run no tasks".to_owned()))?;
    }
    Ok(ended)
}
