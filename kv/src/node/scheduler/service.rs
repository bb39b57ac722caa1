//! The thread that schedules: admits nodes, assigns ranks and key ranges, sends tasks, keeps
//! barriers, notices lost nodes and tells everybody about them.
//!
//! It owns the control plane's endpoint and waits only there. Drivers ask it as nodes do, by
//! messages. The one that started the cluster proves by its incarnation who it is; others have jobs
//! of their own.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use caravan_van::wire::Kind;
use caravan_van::{Arrival, Endpoint, Identity, Message, PeerId, VanConfig};
use serde::Serialize;

use super::super::backend::{self, Van};
use super::super::barriers::{NAME_BYTES_MAX, Waiting};
use super::super::choice::{self, Candidate};
use super::super::control::{
    self, Ask, CREDITS, Command, Gathered, Join, LAST, Loss, Losses, Order, Post, Program, Pulse,
    Role, Roster, Submitted, TASKS_MAX, Target, Waited,
};
use super::super::group::NodeName;
use super::super::lane::control_config;
use super::super::members::{Members, Seat, Violation, describe};
use super::exchange::Batch;
use super::posts::{Posts, Reply};
use super::tasks::{At, NewTask, Tasks, What};
use crate::config::{ClusterConfig, NodeConfig};
use crate::error::Result;
use crate::worker::ServerAddress;

/// Time between two warnings of nodes that have not joined.
const WARN_EVERY: Duration = Duration::from_secs(5);

/// Longest sleep before the driver has its lane.
const FIRST_NAP: Duration = Duration::from_millis(20);

/// How long nodes may take to leave when the job ends.
const LEAVE_WITHIN: Duration = Duration::from_secs(2);

/// Most tasks that are not finished, or that their drivers have not waited for.
const TASKS_KNOWN_MAX: usize = 10_000;

/// The state of the thread.
pub(super) struct Service {
    endpoint: Endpoint,
    config: ClusterConfig,
    /// The vans that this process can use, if it is a client of the servers as well.
    own: Option<Vec<Candidate>>,
    /// The driver that started the cluster, which ends with it.
    launcher: Launcher,
    /// All drivers, by lane.
    drivers: BTreeMap<PeerId, Driver>,
    /// Drivers from outside so far.
    guests: u32,
    /// Jobs that have lost their drivers, and that the workers must be told to forget.
    orphans: Vec<String>,
    members: Members,
    posts: Posts,
    tasks: Tasks,
    /// Once all have joined: the common van, or why there is none.
    chosen: Option<Result<Van, String>>,
    /// The first node that was lost, which everybody was told.
    lost: Option<Loss>,
    /// Workers that have not been told of the last lost server.
    untold: BTreeSet<usize>,
    ended: Option<String>,
    stop: Arc<AtomicBool>,
}

/// The driver that started the cluster.
struct Launcher {
    identity: Identity,
    lane: Option<PeerId>,
    is_gone: bool,
    /// Its request to end the cluster, and until when nodes may leave.
    ends: Option<(u64, Duration)>,
}

/// A driver, and its requests that wait for an answer, by timestamp.
#[derive(Default)]
struct Driver {
    /// Its id as a client of the servers.
    node: u32,
    /// The name of its job, once it has one.
    job: Option<String>,
    begins: Option<(u64, String)>,
    gathers: Option<Gathers>,
    waits: Option<(u64, u64)>,
    /// The tasks of which it asks which is done first.
    first: Option<(u64, Vec<u64>)>,
    watches: Option<u64>,
}

/// A driver that waits for all nodes.
struct Gathers {
    timestamp: u64,
    until: Duration,
    warn_at: Duration,
}

impl Service {
    /// Listens at the address in `config` for nodes and for `driver`. It ends with the driver's
    /// lane, or when `stop` is set before that is there.
    ///
    /// # Errors
    /// If the address cannot be bound.
    pub(super) fn bind(
        mut config: ClusterConfig,
        own: Option<Vec<Candidate>>,
        driver: Identity,
        stop: Arc<AtomicBool>,
    ) -> Result<Service> {
        let identity = control::identity(control::SCHEDULER, None);
        config.node = NodeConfig { identity, ..config.node };
        let listen = config.node.scheduler.clone();
        let van = VanConfig { listen, ..control_config(&config.node) };
        let endpoint = Endpoint::new(backend::open_control(config.node.van, &van)?, 0, CREDITS);
        let members = Members::new(&config, endpoint.lanes.now());
        let launcher = Launcher { identity: driver, lane: None, is_gone: false, ends: None };
        Ok(Service {
            endpoint,
            config,
            own,
            launcher,
            drivers: BTreeMap::new(),
            guests: 0,
            orphans: Vec::new(),
            members,
            posts: Posts::default(),
            tasks: Tasks::default(),
            chosen: None,
            lost: None,
            untold: BTreeSet::new(),
            ended: None,
            stop,
        })
    }

    /// The address where nodes join.
    pub(super) fn address(&self) -> &str {
        self.endpoint.lanes.address()
    }

    /// Serves until the driver is gone.
    ///
    /// # Errors
    /// Only if the control van itself is broken.
    pub(super) fn run(mut self) -> Result<()> {
        while !self.launcher.is_gone && !self.stop.load(Ordering::Relaxed) {
            let any = self.poll()?;
            self.keep_time();
            if !any {
                self.endpoint.wait(self.nap())?;
            }
        }
        Ok(())
    }

    /// How long the thread may sleep.
    fn nap(&self) -> Duration {
        let now = self.endpoint.lanes.now();
        let gathers = self.drivers.values().filter_map(|driver| driver.gathers.as_ref());
        let gathers = gathers.map(|gathers| gathers.until.min(gathers.warn_at));
        let ends = self.launcher.ends.map(|(_, until)| until);
        let first = self.launcher.lane.is_none().then_some(now + FIRST_NAP);
        let timers = gathers.chain(ends).chain(first);
        let naps = timers.map(|until| until.saturating_sub(now));
        naps.fold(self.members.until_check(), Duration::min)
    }

    /// Serves pending requests; returns whether there were any.
    fn poll(&mut self) -> Result<bool> {
        self.members.listen(self.endpoint.lanes.now());
        let any = self.endpoint.poll()?;
        while let Some(arrival) = self.endpoint.take() {
            let peer = arrival.peer();
            let outcome = match arrival {
                Arrival::Placed { .. } => Ok(()), // the scheduler makes no offers
                Arrival::Connected { hello, .. } if self.launcher.is_it(&hello) => {
                    self.launcher.lane = Some(peer);
                    let job = Some(String::new());
                    self.drivers.insert(peer, Driver { job, ..Driver::default() });
                    Ok(())
                }
                Arrival::Connected { hello, .. } if hello.role == control::GUEST => {
                    self.drivers.insert(peer, Driver::default());
                    Ok(())
                }
                Arrival::Connected { hello, .. } => self.members.connected(peer, &hello),
                Arrival::Lost { error, .. } => {
                    self.lose(peer, &error.to_string());
                    Ok(())
                }
                Arrival::Message { .. } => match self.endpoint.pop() {
                    Some(message) if self.drivers.contains_key(&peer) => self.obey(peer, &message),
                    Some(message) => self.serve(peer, &message),
                    None => Ok(()),
                },
            };
            if let Err(violation) = outcome {
                self.reject(peer, &violation);
            }
        }
        Ok(any)
    }

    /// Does what is due: silent nodes and unused lanes are lost, and waits of the driver end.
    fn keep_time(&mut self) {
        let now = self.endpoint.lanes.now();
        if self.members.until_check().is_zero() {
            for (peer, violation) in self.members.idle_lanes() {
                self.reject(peer, &violation);
            }
            self.check_members();
        }
        self.tell_untold();
        let mut late = Vec::new();
        for (peer, driver) in &mut self.drivers {
            let Some(gathers) = &mut driver.gathers else { continue };
            if now >= gathers.until {
                late.push((*peer, gathers.timestamp));
                driver.gathers = None;
            } else if now >= gathers.warn_at {
                gathers.warn_at = now + WARN_EVERY;
                let missing = self.members.missing();
                let scheduler = self.endpoint.lanes.address();
                tracing::warn!(missing, scheduler, "waiting for nodes to join");
            }
        }
        for (driver, timestamp) in late {
            self.tell(driver, timestamp, &Gathered::Missing(self.members.missing()));
        }
        if let (Some((timestamp, until)), Some(lane)) = (self.launcher.ends, self.launcher.lane)
            && (now >= until || self.members.all_are_gone())
        {
            self.launcher.ends = None;
            self.tell(lane, timestamp, &());
        }
    }

    /// Closes a lane that broke the rules.
    fn reject(&mut self, peer: PeerId, violation: &Violation) {
        let why = violation.to_string();
        tracing::warn!(%peer, why, "closing a lane");
        self.endpoint.disconnect(peer);
        self.lose(peer, &why);
    }

    fn lose(&mut self, peer: PeerId, reason: &str) {
        self.launcher.is_gone |= self.launcher.lane == Some(peer);
        if let Some(driver) = self.drivers.remove(&peer) {
            self.tasks.disown(peer);
            self.send_ready();
            self.orphans.extend(driver.job);
            self.end_orphans();
        }
        if let Some(seat) = self.members.leave(peer, reason) {
            self.check_members();
            let goes_on = self.lost.is_none() && self.ended.is_none();
            if goes_on && self.members.is_lost(seat) {
                self.go_on_without(seat, reason);
            }
        }
    }

    /// Has the others go on: nobody waits for this worker at barriers, in tasks and for answers.
    fn go_on_without(&mut self, seat: Seat, reason: &str) {
        tracing::warn!(node = %seat, "lost; the others go on");
        match seat.role {
            Role::Server => self.publish_lost_servers(),
            Role::Worker => {
                self.tasks.lose(seat.rank);
                self.send_ready();
            }
        }
        let node = NodeName::of(seat.role, seat.rank);
        let replies = self.posts.lose(node, reason);
        self.reply(replies);
        self.waited();
        self.end_orphans();
        self.begin_jobs();
    }

    /// Tells all workers and drivers which server threads are lost.
    fn publish_lost_servers(&mut self) {
        self.untold = self.members.live_workers().into_iter().collect();
        self.tell_untold();
        let watches: Vec<_> =
            self.drivers.iter_mut().map(|(at, it)| (*at, it.watches.take())).collect();
        let losses = self.losses();
        for (driver, timestamp) in watches {
            timestamp.into_iter().for_each(|timestamp| self.tell(driver, timestamp, &losses));
        }
    }

    /// Tells workers which server threads are lost, as soon as their lanes have room.
    fn tell_untold(&mut self) {
        if self.untold.is_empty() {
            return;
        }
        let order = Order::LostServers(self.members.lost_threads());
        let number = self.tasks.next_number();
        let Service { untold, members, endpoint, .. } = self;
        untold.retain(|&rank| {
            // One that is lost itself hears nothing.
            let Ok(lane) = members.worker(rank) else { return false };
            endpoint.lanes.credits(lane) <= LAST
                || control::ask(endpoint, lane, number, &order).is_err()
        });
    }

    fn losses(&self) -> Losses {
        Losses { fatal: self.lost.clone(), servers: self.members.lost_threads() }
    }

    /// Looks for lost members. Tells everybody about the first whose loss ends the cluster; closes
    /// the lanes of others.
    fn check_members(&mut self) {
        let silent = self.members.check_silence();
        let Some(loss) = self.members.fatal_loss() else {
            for peer in silent {
                self.endpoint.disconnect(peer);
                self.lose(peer, "no heartbeat");
            }
            return;
        };
        if self.lost.is_some() || self.ended.is_some() {
            return;
        }
        tracing::info!(node = loss.node, reason = loss.reason, "lost");
        self.lost = Some(loss.clone());
        let mut waited = Vec::new();
        for (&peer, driver) in &mut self.drivers {
            waited.push((peer, driver.watches.take(), driver.waits.take()));
        }
        let losses = self.losses();
        for (driver, watches, waits) in waited {
            watches.into_iter().for_each(|timestamp| self.tell(driver, timestamp, &losses));
            if let Some((timestamp, _)) = waits {
                self.tell(driver, timestamp, &Waited::Lost(loss.clone()));
            }
        }
        self.waited();
        self.tell_members(&Order::Lost(loss));
    }

    /// Gives an order to every member that is there.
    fn tell_members(&mut self, order: &Order) {
        let number = self.tasks.next_number();
        for (_, member) in self.members.iter().filter(|(_, member)| member.lost.is_none()) {
            // A lane that breaks now is reported separately; the others do not wait for it.
            let _ = control::ask(&mut self.endpoint, member.peer, number, order);
        }
    }

    /// Answers a driver; its lane, if it breaks now, is reported separately.
    fn tell(&mut self, driver: PeerId, timestamp: u64, what: &impl Serialize) {
        let _ = control::answer(&mut self.endpoint, driver, timestamp, what);
    }

    /// Does what a driver wants.
    fn obey(&mut self, peer: PeerId, message: &Message) -> Result<(), Violation> {
        let timestamp = message.timestamp();
        let now = self.endpoint.lanes.now();
        if message.kind() != Kind::Request {
            let is_launcher = self.launcher.lane == Some(peer);
            if is_launcher && self.posts.taken(NodeName::Scheduler, timestamp) {
                self.hand_on();
            }
            return Ok(());
        }
        let command = control::read::<Command>(message)?;
        let driver = self.drivers.entry(peer).or_default();
        let job = match (&command, &driver.job) {
            (Command::Begin { job }, None) if driver.begins.is_none() => {
                return self.begin(peer, timestamp, job.clone());
            }
            (Command::Begin { .. }, _) | (_, None) => return Err(Violation::Job),
            (_, Some(job)) => job.clone(),
        };
        match command {
            Command::Begin { .. } => {}
            Command::Gather => {
                let until = now.saturating_add(self.config.node.join_timeout);
                let warn_at = now + WARN_EVERY;
                driver.gathers = Some(Gathers { timestamp, until, warn_at });
                self.gathered();
            }
            Command::Submit { part, target, program, after } => {
                let job = control::within(&job, &part);
                let submitted = self.submit(Some(peer), target, job, program, after, None);
                self.tell(peer, timestamp, &submitted);
            }
            Command::Promise => {
                let (what, ranks) = (What::Virtual, Vec::new());
                let submitted = self.start(NewTask {
                    owner: Some(peer),
                    what,
                    ranks,
                    order: None,
                    after: Vec::new(),
                    parent: None,
                });
                self.tell(peer, timestamp, &submitted);
            }
            Command::Finish { task } => {
                let is_there = self.tasks.finish_virtual(task, peer);
                self.send_ready();
                self.tell(peer, timestamp, &is_there);
            }
            Command::Forget { part } => {
                let submitted = self.forget(Some(peer), control::within(&job, &part));
                self.tell(peer, timestamp, &submitted);
            }
            Command::Post(post) if self.launcher.lane == Some(peer) => {
                let sender = Waiting { node: NodeName::Scheduler, peer, timestamp };
                return self.take_in(sender, post);
            }
            Command::Post(_) => {
                let why = "only the driver that started the cluster may ask other nodes";
                return Ok(control::refuse(&mut self.endpoint, peer, timestamp, why)?);
            }
            Command::Wait { task } => {
                driver.waits = Some((timestamp, task));
                self.waited();
            }
            Command::First { tasks } => {
                driver.first = Some((timestamp, tasks));
                self.waited();
            }
            Command::Watch { known } => {
                driver.watches = Some(timestamp);
                let losses = self.losses();
                if losses.fatal.is_some() || losses.servers.len() > known {
                    self.drivers.entry(peer).or_default().watches = None;
                    self.tell(peer, timestamp, &losses);
                }
            }
            Command::Check => {
                self.check_members();
                self.tell(peer, timestamp, &self.lost.clone());
            }
            Command::End { .. } if self.launcher.lane != Some(peer) => {
                return Err(Violation::NotLauncher);
            }
            Command::End { reason } => {
                self.ended = Some(reason);
                self.tell_members(&Order::End);
                self.launcher.ends = Some((timestamp, now + LEAVE_WITHIN));
            }
        }
        Ok(())
    }

    /// Gives a driver from outside the job of this name, at once or when an earlier one has ended.
    fn begin(&mut self, peer: PeerId, timestamp: u64, job: String) -> Result<(), Violation> {
        let taken = self.drivers.values().any(|driver| driver.job.as_ref() == Some(&job));
        let why = match job.len() {
            0 => "a job needs a name".to_owned(),
            NAME_BYTES_MAX.. => format!("the name of a job may have {NAME_BYTES_MAX} bytes"),
            _ if job.contains('/') => format!("the name of a job has no slash, and {job:?} has"),
            _ if taken => format!("the job {job} has a driver: take another name"),
            _ => {
                if let Some(driver) = self.drivers.get_mut(&peer) {
                    driver.begins = Some((timestamp, job));
                }
                self.begin_jobs();
                return Ok(());
            }
        };
        Ok(control::refuse(&mut self.endpoint, peer, timestamp, &why)?)
    }

    /// Begins jobs whose earlier namesakes have ended.
    fn begin_jobs(&mut self) {
        let Service { drivers, tasks, orphans, .. } = self;
        let is_free = |job: &String| !orphans.contains(job) && !tasks.forgets(job);
        let mut begun = Vec::new();
        for (&peer, driver) in drivers {
            if let Some((timestamp, job)) = driver.begins.take_if(|(_, job)| is_free(job)) {
                self.guests += 1;
                driver.node = self.guests;
                tracing::info!(job, "begins");
                driver.job = Some(job);
                begun.push((peer, timestamp));
            }
        }
        begun.into_iter().for_each(|(driver, timestamp)| self.tell(driver, timestamp, &()));
    }

    /// Makes the workers forget jobs that have lost their drivers.
    fn end_orphans(&mut self) {
        while let Some(job) = self.orphans.pop() {
            let forgets = self.forget(None, job.clone());
            if let Submitted::Full(_) | Submitted::Refused(_) = forgets {
                return self.orphans.push(job);
            }
        }
    }

    /// Makes all workers forget a job and drop its tables.
    fn forget(&mut self, driver: Option<PeerId>, job: String) -> Submitted {
        let ranks = self.members.live_workers();
        let rank = ranks.first().copied().unwrap_or(0);
        let order = Some(Order::Forget { job: job.clone(), rank });
        let what = What::Forgets(job);
        let after = Vec::new();
        self.start(NewTask { owner: driver, what, ranks, order, after, parent: None })
    }

    /// Starts a task of a job.
    fn submit(
        &mut self,
        owner: Option<PeerId>,
        target: Target,
        job: String,
        program: Program,
        after: Vec<u64>,
        parent: Option<At>,
    ) -> Submitted {
        let (app, order) = match program {
            Program::App { app, body } => (app.clone(), Order::Run { job, app, body }),
            Program::Steps(steps) => ("a graph".to_owned(), Order::Steps { job, steps }),
        };
        let workers = self.members.size(Role::Worker);
        let ranks = match target.ranks(workers, || self.members.live_workers()) {
            Ok(ranks) => ranks,
            Err(why) => return Submitted::Refused(why),
        };
        let (what, order) = (What::App(app), Some(order));
        self.start(NewTask { owner, what, ranks, order, after, parent })
    }

    /// Starts a sub-task of a task that a worker runs.
    fn spawn(&mut self, at: At, target: Target, program: Program) -> Submitted {
        let Some((owner, job)) = self.tasks.run_by(at) else {
            return Submitted::Refused("nobody waits for the task any more".to_owned());
        };
        self.submit(Some(owner), target, job, program, Vec::new(), Some(at))
    }

    /// Adds a task, or refuses it; sends it if its turn has come.
    fn start(&mut self, task: NewTask) -> Submitted {
        if let Some(loss) = &self.lost {
            return Submitted::Lost(loss.clone());
        }
        if let Some(unknown) = self.tasks.first_unknown(&task.after) {
            return Submitted::Refused(format!("there is no task {unknown} to wait for"));
        }
        if self.tasks.len() >= TASKS_KNOWN_MAX {
            let why = format!("{TASKS_KNOWN_MAX} tasks are not finished, or were not waited for");
            return Submitted::Refused(why);
        }
        let is_full = |rank: &&usize| self.tasks.load(**rank) >= TASKS_MAX;
        if let Some(&full) = task.ranks.iter().find(is_full).filter(|_| task.after.is_empty()) {
            return Submitted::Full(full);
        }
        let lost = task.ranks.iter().find_map(|rank| self.members.worker(*rank).err());
        if let Some(loss) = lost {
            return Submitted::Lost(loss);
        }
        let number = self.tasks.add(task);
        self.send_ready();
        Submitted::Task(number)
    }

    /// Sends the orders of tasks whose turn has come.
    fn send_ready(&mut self) {
        while let Some((At { task, rank }, order)) = self.tasks.next_ready(TASKS_MAX) {
            let Ok(lane) = self.members.worker(rank) else { continue };
            // A lane that breaks now is reported separately, and ends the wait for this task.
            let _ = control::ask(&mut self.endpoint, lane, task, &order);
        }
    }

    /// Answers the drivers that wait for a task which is done or will never be.
    fn waited(&mut self) {
        let mut done = Vec::new();
        let mut first = Vec::new();
        for (&peer, driver) in &mut self.drivers {
            let ends = |task: &&u64| self.lost.is_some() || self.tasks.is_done(**task, peer);
            let asked = driver.first.as_ref();
            let found = asked.and_then(|(asked, tasks)| Some((*asked, *tasks.iter().find(ends)?)));
            if let Some((timestamp, task)) = found {
                driver.first = None;
                first.push((peer, timestamp, task));
            }
            let Some((timestamp, task)) = driver.waits else { continue };
            let lost = || self.lost.clone().map(Waited::Lost);
            if let Some(waited) = self.tasks.take(task, peer).or_else(lost) {
                driver.waits = None;
                done.push((peer, timestamp, waited));
            }
        }
        for (driver, timestamp, waited) in done {
            self.tell(driver, timestamp, &waited);
        }
        first.into_iter().for_each(|(driver, timestamp, task)| self.tell(driver, timestamp, &task));
    }

    /// Answers the drivers that wait for the cluster, if that is complete.
    fn gathered(&mut self) {
        let Some(chosen) = self.chosen.clone() else { return };
        // Ids of drivers from outside follow those of the members.
        let members = self.members.iter().count() as u32;
        let mut waiting = Vec::new();
        for (&peer, driver) in &mut self.drivers {
            let node = if driver.node == 0 { 0 } else { members + driver.node };
            waiting.extend(driver.gathers.take().map(|gathers| (peer, gathers.timestamp, node)));
        }
        for (driver, timestamp, node) in waiting {
            let outcome = match &chosen {
                Err(why) => Gathered::NoVan(why.clone()),
                Ok(van) => Gathered::All(Roster { node, ..self.roster(*van) }),
            };
            self.tell(driver, timestamp, &outcome);
        }
    }

    fn serve(&mut self, peer: PeerId, message: &Message) -> Result<(), Violation> {
        let timestamp = message.timestamp();
        match message.kind() {
            Kind::Request => {}
            Kind::Failure => return Err(Violation::Failure),
            _ => return self.report(peer, message),
        }
        match control::read::<Ask>(message)? {
            Ask::Join(join) => self.join(peer, timestamp, join),
            Ask::Post(post) => {
                let Seat { role, rank } = self.members.of(peer, "other nodes")?;
                let sender = Waiting { node: NodeName::of(role, rank), peer, timestamp };
                self.take_in(sender, post)
            }
            Ask::Spawn { task, target, app, body } => {
                let seat = self.members.of(peer, "a sub-task")?;
                let at = At { task, rank: seat.rank };
                let spawned = self.spawn(at, target, Program::App { app, body });
                Ok(control::answer(&mut self.endpoint, peer, timestamp, &spawned)?)
            }
            Ask::Alive => {
                self.members.alive(peer)?;
                let pulse = Pulse { ended: self.ended.clone() };
                Ok(control::answer(&mut self.endpoint, peer, timestamp, &pulse)?)
            }
        }
    }

    /// Takes in what a node wants of others.
    fn take_in(&mut self, sender: Waiting, post: Post) -> Result<(), Violation> {
        let replies = self.posts.take_in(&self.members, &self.tasks, sender, post)?;
        self.reply(replies);
        Ok(())
    }

    /// Answers nodes, and hands on letters. Lanes that break now are reported separately.
    fn reply(&mut self, replies: Vec<Reply>) {
        for Reply { peer, timestamp, outcome } in replies {
            let _ = match outcome {
                Ok(answer) => control::answer(&mut self.endpoint, peer, timestamp, &answer),
                Err(why) => control::refuse(&mut self.endpoint, peer, timestamp, &why),
            };
        }
        self.hand_on();
    }

    /// Sends the letters of nodes that have taken their last ones.
    fn hand_on(&mut self) {
        while let Some(Batch { number, to, letters }) = self.posts.next() {
            let lane = match to {
                NodeName::Scheduler => self.launcher.lane,
                NodeName::Server(rank) => self.members.lane(Seat { role: Role::Server, rank }),
                NodeName::Worker(rank) => self.members.lane(Seat { role: Role::Worker, rank }),
            };
            let Some(lane) = lane else { continue };
            let _ = control::ask(&mut self.endpoint, lane, number, &Order::Letters(letters));
        }
    }

    /// Admits a node; the last one triggers the choice of the van and its announcement.
    fn join(&mut self, peer: PeerId, timestamp: u64, join: Join) -> Result<(), Violation> {
        let pid = join.pid;
        if let Err(error) = self.members.join(peer, timestamp, join)? {
            let why = error.to_string();
            tracing::warn!(why, pid, "refusing a node");
            return Ok(control::refuse(&mut self.endpoint, peer, timestamp, &why)?);
        }
        if self.members.all_are_in() && self.chosen.is_none() {
            self.chosen = Some(self.choose_van());
            self.announce();
            self.gathered();
        }
        Ok(())
    }

    /// Chooses the van of the whole cluster; other vans are forgotten.
    fn choose_van(&mut self) -> Result<Van, String> {
        let own = self.own.iter().map(|own| ("the scheduler".to_owned(), &own[..]));
        let nodes = self.members.iter();
        let nodes = nodes.map(|(seat, member)| (describe(seat, member), &member.join.vans[..]));
        let (van, passed_over) = choice::choose(&nodes.chain(own).collect::<Vec<_>>());
        passed_over.iter().for_each(|line| tracing::info!("{line}"));
        let chosen =
            van.ok_or_else(|| format!("no van works for all nodes; {}", passed_over.join("; ")));
        if let Ok(van) = &chosen {
            tracing::info!(%van, "all nodes take it");
        }
        self.members.complete(|member| member.join.vans.retain(|known| Some(known.van) == van));
        chosen
    }

    /// The roster of a driver, which has no rank.
    fn roster(&self, van: Van) -> Roster {
        Roster {
            node: 0,
            rank: 0,
            van,
            servers: self.servers(),
            threads: self.members.threads_of_each(),
            first_thread: 0,
            workers: self.config.workers,
        }
    }

    /// All server threads, in order of key ranges.
    fn servers(&self) -> Vec<ServerAddress> {
        let servers = self.members.iter().filter(|(seat, _)| seat.role == Role::Server);
        let threads = servers.flat_map(|(seat, member)| {
            member.threads().iter().enumerate().map(move |(thread, address)| ServerAddress {
                name: format!("{seat} thread {thread}"),
                address: address.clone(),
            })
        });
        threads.collect()
    }

    /// Sends every node the roster, or why there is no common van.
    fn announce(&mut self) {
        let Some(chosen) = &self.chosen else { return };
        let shared = chosen.as_ref().map(|van| self.roster(*van));
        let mut threads = 0;
        for (node, (seat, member)) in (1..).zip(self.members.iter()) {
            let (peer, joined_as) = (member.peer, member.joined_as);
            let first_thread = if seat.role == Role::Server { threads } else { 0 };
            threads += member.threads().len();
            // A lane that breaks now is reported separately; the others still get their answer.
            let _ = match &shared {
                Err(why) => control::refuse(&mut self.endpoint, peer, joined_as, why),
                Ok(shared) => {
                    let roster = Roster { node, rank: seat.rank, first_thread, ..shared.clone() };
                    control::answer(&mut self.endpoint, peer, joined_as, &roster)
                }
            };
        }
    }

    /// Records a worker's result of a task; ignores results that were not requested or came before.
    fn report(&mut self, peer: PeerId, message: &Message) -> Result<(), Violation> {
        let seat = self.members.of(peer, "a report")?;
        let task = message.timestamp();
        if self.posts.taken(NodeName::of(seat.role, seat.rank), task) {
            self.hand_on();
            return Ok(());
        }
        if seat.role != Role::Worker || !self.tasks.is_run_by(task, seat.rank) {
            // It has only heard of lost servers if it says nothing.
            if message.values() != b"null" {
                tracing::warn!(node = %seat, "a report on a task that the node does not run");
            }
            return Ok(());
        }
        self.tasks.report(task, seat.rank, control::read(message)?);
        self.send_ready();
        self.waited();
        self.end_orphans();
        self.begin_jobs();
        Ok(())
    }
}

impl Launcher {
    /// Whether a lane with this hello is the launcher's, and the first.
    fn is_it(&self, hello: &caravan_van::wire::Hello) -> bool {
        let Identity { role, incarnation, .. } = self.identity;
        self.lane.is_none() && hello.role == role && hello.incarnation.get() == incarnation
    }
}
