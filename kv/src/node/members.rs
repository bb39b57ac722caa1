//! The members of the cluster: which lane belongs to whom, who has which seat, and who has been
//! silent for too long.

mod further;

use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::fmt;
use std::time::Duration;

use super::session::{Misheard, SessionId, Speech};
use caravan_van::wire::Hello;
use serde::{Deserialize, Serialize};

use super::backend::Van;
use super::control::{Join, Loss, Role};
use super::group::{Group, NodeName, Recipients};
use super::paces::{Change, Paces};
use super::vitals::{NodeState, Vitals};
use crate::config::ClusterConfig;
use crate::error::{Error, Result};

/// A node counts as lost after this many heartbeats without a sign.
pub(crate) const HEARTBEATS: u32 = 5;

/// A server that may be lost counts as lost after this many: the others go on without it, whether
/// it lives or not.
const HEARTBEATS_OF_SPARED: u32 = 2;

/// A place in the cluster.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
pub(crate) struct Seat {
    pub(crate) role: Role,
    pub(crate) rank: usize,
}

impl fmt::Display for Seat {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} {}", self.role, self.rank)
    }
}

/// Why the scheduler closes a lane of the control plane.
#[derive(Debug, thiserror::Error)]
pub(crate) enum Violation {
    /// Neither a server nor a worker.
    #[error("role {0} may not talk to the scheduler")]
    Role(u8),
    /// A second request to join on one lane.
    #[error("it asked to join on a lane that is {0}'s already")]
    SecondJoin(Seat),
    /// A request that only members may make, once all have joined.
    #[error("it asked for {0} before all had joined")]
    NotJoined(&'static str),
    /// A heartbeat on a lane that does not belong to a member.
    #[error("it sent heartbeats for a node that it is not")]
    StrayHeartbeat,
    /// A name or a body is too long.
    #[error("a name or body of a request to nodes has {bytes} bytes; it may have {bytes_max}")]
    LongPost { bytes: usize, bytes_max: usize },
    /// What the scheduler alone says, or a refusal, although members answer with reports.
    #[error("it said {0:?}, which members do not say")]
    Speech(Speech),
    /// A lane without any request.
    #[error("it made no request for {:.1} s", .0.as_secs_f64())]
    Silent(Duration),
    /// A node that belongs to another cluster than this scheduler.
    #[error(
        "a node of another cluster calls, which this scheduler does not know: if that cluster is to \
         go on, start its scheduler with its state"
    )]
    OtherCluster,
    /// A command of a driver that has not named its job, or has one already.
    #[error("a driver from outside names its job once, before anything else")]
    Job,
    /// The end of the cluster, wanted by a driver from outside.
    #[error("only the driver that started the cluster may end it")]
    NotLauncher,
    /// A message that cannot be parsed.
    #[error(transparent)]
    Control(#[from] serde_json::Error),
    /// A message that does not belong to its session.
    #[error(transparent)]
    Misheard(#[from] Misheard),
    /// A node that leaves everything without an acknowledgement.
    #[error("it acknowledges nothing")]
    Deaf,
}

/// Ids of servers that join a cluster which is complete begin here: those of the others, and of
/// drivers from outside, are counted from 1 on.
const FIRST_FURTHER: u32 = 1 << 24;

/// The reason why a server is gone that has left.
const LEFT: &str = "it has left the cluster";

/// A node with a seat.
#[derive(Serialize, Deserialize)]
pub(crate) struct Member {
    /// Its id in messages, once all have joined.
    node: u32,
    /// That of its main lane, while it is not lost.
    pub(crate) session: SessionId,
    /// Timestamp of its request to join.
    pub(crate) joined_as: u64,
    /// Its request to join; of its vans, only the chosen one once that is known.
    pub(crate) join: Join,
    /// Its vans, once they are chosen: one, or [`Van::Mixed`] and those that this is made of.
    pub(crate) vans: Vec<Van>,
    pub(crate) lost: Option<String>,
    /// Whether it is a server that leaves, or has left: then it counts among no losses.
    has_left: bool,
    /// What it told with its last heartbeat.
    #[serde(skip)]
    vitals: Option<Vitals>,
    incarnation: u64,
    /// Time of its last heartbeat, in time listened.
    seen: Duration,
}

impl Member {
    /// Addresses of its threads, for the first of its vans that works.
    pub(crate) fn threads(&self) -> &[String] {
        let mut vans = self.join.vans.iter();
        vans.find_map(|van| van.threads.as_deref().ok()).unwrap_or_default()
    }
}

/// A connection and its use.
#[derive(Serialize, Deserialize)]
struct Lane {
    role: Role,
    rank: Option<usize>,
    incarnation: u64,
    opened: Duration,
    used: Used,
}

#[derive(Clone, Copy, Serialize, Deserialize)]
enum Used {
    Nothing,
    /// The member's main lane.
    Member(Seat),
    /// The member's heartbeat lane.
    Heartbeat(Seat),
}

/// All members and lanes.
#[derive(Serialize, Deserialize)]
pub(crate) struct Members {
    /// Rises by 1 for each server that joins when all others have.
    sizes: [(Role, usize); 2],
    /// Servers of the complete cluster, without those that have joined since.
    founders: usize,
    /// Workers that may be lost while the others go on.
    losses_max: usize,
    /// Servers that may.
    server_losses_max: usize,
    heartbeat: Duration,
    #[serde(with = "super::pairs")]
    seats: BTreeMap<Seat, Member>,
    lanes: HashMap<SessionId, Lane>,
    /// Whether all have joined; before that, a node that leaves makes room for another.
    complete: bool,
    /// How long the scheduler has listened, and when it last did.
    listened: Duration,
    looked: Duration,
    /// Before this time, in time listened, nobody can have been silent for too long.
    due: Duration,
    #[serde(skip)]
    paces: Paces,
}

impl Members {
    /// No members yet, at time `now`.
    pub(crate) fn new(config: &ClusterConfig, now: Duration) -> Members {
        Members {
            sizes: [(Role::Server, config.servers), (Role::Worker, config.workers)],
            founders: config.servers,
            losses_max: config.node.losses_max,
            server_losses_max: config.node.server_losses_max,
            heartbeat: config.node.heartbeat,
            seats: BTreeMap::new(),
            lanes: HashMap::new(),
            complete: false,
            listened: Duration::ZERO,
            looked: now,
            due: Duration::ZERO,
            paces: Paces::default(),
        }
    }

    /// Goes on at time `now` with the members of a scheduler that is no more. Each has as long to
    /// come back as it may be silent. The start counts as a heartbeat, so that time passes however
    /// short a scheduler lives.
    pub(crate) fn come_back(&mut self, now: Duration) {
        self.looked = now;
        self.listened += self.heartbeat;
        self.due = self.listened;
        self.lanes.retain(|_, lane| matches!(lane.used, Used::Member(_)));
        let seen = self.listened + self.patience();
        self.seats.values_mut().for_each(|member| member.seen = seen);
    }

    /// Records that the scheduler is listening. A pause in which it did not counts as at most one
    /// heartbeat, so that nobody seems silent because of it.
    pub(crate) fn listen(&mut self, now: Duration) {
        self.listened += now.saturating_sub(self.looked).min(self.heartbeat);
        self.looked = now;
    }

    /// How long schedulers have listened so far.
    pub(crate) fn listened(&self) -> Duration {
        self.listened
    }

    /// Adds a lane with the identity it has proved.
    ///
    /// # Errors
    /// If it is not a node's.
    pub(crate) fn connected(&mut self, session: SessionId, hello: &Hello) -> Result<(), Violation> {
        let role = Role::of(hello.role).ok_or(Violation::Role(hello.role))?;
        let rank = Some(hello.rank.get()).filter(|rank| *rank != Hello::NO_RANK);
        let lane = Lane {
            role,
            rank: rank.map(|rank| rank as usize),
            incarnation: hello.incarnation.get(),
            opened: self.listened,
            used: Used::Nothing,
        };
        self.lanes.insert(session, lane);
        Ok(())
    }

    /// Gives a node the seat of its proved rank, or the first free one; the inner error says why
    /// there is none.
    ///
    /// # Errors
    /// If the lane already has a seat or is a heartbeat lane.
    pub(crate) fn join(
        &mut self,
        session: SessionId,
        joined_as: u64,
        join: Join,
    ) -> Result<Result<Seat>, Violation> {
        let lane = self.lanes.get_mut(&session).ok_or(Violation::NotJoined("a seat"))?;
        if let Used::Member(seat) | Used::Heartbeat(seat) = lane.used {
            return Err(Violation::SecondJoin(seat));
        }
        let Lane { role, rank, incarnation, .. } = *lane;
        let is_further = join.is_further && self.complete;
        let seat = match is_further {
            true => self.further_seat(role, rank),
            false => self.free_seat(role, rank),
        };
        let Some(seat) = seat else {
            return Ok(Err(Error::Config(self.no_place(role, rank))));
        };
        if is_further {
            self.sizes.iter_mut().filter(|it| it.0 == role).for_each(|it| it.1 += 1);
        }
        let further = seat.rank.saturating_sub(self.founders) as u32;
        let node = if is_further { FIRST_FURTHER + further } else { 0 };
        let seen = self.listened;
        let member = Member {
            node,
            session,
            joined_as,
            join,
            vans: Vec::new(),
            lost: None,
            has_left: false,
            vitals: None,
            incarnation,
            seen,
        };
        tracing::info!(node = describe(seat, &member), "joined");
        self.seats.insert(seat, member);
        self.lanes.entry(session).and_modify(|lane| lane.used = Used::Member(seat));
        Ok(Ok(seat))
    }

    fn free_seat(&self, role: Role, wish: Option<usize>) -> Option<Seat> {
        let size = self.size(role);
        let mut ranks = wish.map_or(0..size, |rank| rank..size.min(rank.saturating_add(1)));
        let rank = ranks.find(|&rank| !self.seats.contains_key(&Seat { role, rank }))?;
        Some(Seat { role, rank })
    }

    /// The seat behind those of all other servers.
    fn further_seat(&self, role: Role, wish: Option<usize>) -> Option<Seat> {
        let rank = self.size(Role::Server);
        let is_it = role == Role::Server && wish.is_none_or(|wish| wish == rank);
        is_it.then_some(Seat { role, rank })
    }

    fn no_place(&self, role: Role, wish: Option<usize>) -> String {
        let wish = wish.map_or(String::new(), |rank| format!(" {rank}"));
        let size = self.size(role);
        let remedy = match role == Role::Server && self.complete {
            true => "; one more joins with --join, and without a rank",
            false => "",
        };
        format!("no place for {role}{wish}: this cluster has {size} {role}s{remedy}")
    }

    /// Records a heartbeat of the member that a lane has proved to be, and what it tells.
    ///
    /// # Errors
    /// If it is no member, or the lane is a member's main lane.
    pub(crate) fn alive(&mut self, session: SessionId, vitals: Vitals) -> Result<(), Violation> {
        let lane = self.lanes.get_mut(&session).ok_or(Violation::StrayHeartbeat)?;
        let Lane { role, rank: Some(rank), incarnation, .. } = *lane else {
            return Err(Violation::StrayHeartbeat);
        };
        let seat = Seat { role, rank };
        let member = self.seats.get_mut(&seat).filter(|member| member.incarnation == incarnation);
        let (Some(member), Used::Nothing | Used::Heartbeat(_)) = (member, lane.used) else {
            return Err(Violation::StrayHeartbeat);
        };
        lane.used = Used::Heartbeat(seat);
        member.seen = self.listened;
        member.vitals = Some(vitals);
        if role == Role::Worker && vitals.clock > 0 {
            self.paces.enter(rank, vitals.clock, self.listened);
        }
        Ok(())
    }

    /// The member of a lane, once all have joined.
    ///
    /// # Errors
    /// If it has none, so that it may not ask for `what`.
    pub(crate) fn of(&self, session: SessionId, what: &'static str) -> Result<Seat, Violation> {
        match self.lanes.get(&session).map(|lane| lane.used) {
            Some(Used::Member(seat)) if self.complete => Ok(seat),
            _ => Err(Violation::NotJoined(what)),
        }
    }

    /// Removes a lost lane. A member that it belongs to is lost as well and is returned.
    pub(crate) fn leave(&mut self, session: SessionId, reason: &str) -> Option<Seat> {
        let Used::Member(seat) = self.lanes.remove(&session)?.used else { return None };
        if self.complete {
            let member = self.seats.get_mut(&seat);
            if let Some(member) = member {
                let reason = if member.has_left { LEFT } else { reason };
                member.lost.get_or_insert_with(|| reason.to_owned());
            }
        } else {
            tracing::warn!(reason, "{seat} left before all had joined: its place is free again");
            self.seats.remove(&seat);
        }
        Some(seat)
    }

    /// Lanes that stayed unused for as long as a member may be silent.
    pub(crate) fn idle_lanes(&self) -> Vec<(SessionId, Violation)> {
        let idle = |(session, lane): (&SessionId, &Lane)| {
            let silent = self.listened - lane.opened;
            let idle = matches!(lane.used, Used::Nothing) && silent >= self.patience();
            idle.then_some((*session, Violation::Silent(silent)))
        };
        let mut idle: Vec<_> = self.lanes.iter().filter_map(idle).collect();
        idle.sort_by_key(|(session, _)| *session);
        idle
    }

    /// Records that all have joined and calls `each` for every member; from now on heartbeats are
    /// expected.
    pub(crate) fn complete(&mut self, mut each: impl FnMut(&mut Member)) {
        self.complete = true;
        let seen = self.listened;
        (1..).zip(self.seats.values_mut()).for_each(|(node, member)| {
            (member.node, member.seen) = (node, seen);
            each(member);
        });
    }

    /// Whether every seat is taken.
    pub(crate) fn all_are_in(&self) -> bool {
        self.seats.len() == self.sizes.iter().map(|(_, size)| size).sum::<usize>()
    }

    /// Whether nobody is left.
    pub(crate) fn all_are_gone(&self) -> bool {
        self.seats.values().all(|member| member.lost.is_some())
    }

    /// Number of nodes of a role.
    pub(crate) fn size(&self, role: Role) -> usize {
        self.sizes.iter().filter(|(of, _)| *of == role).map(|(_, size)| size).sum()
    }

    /// Whether a member was lost.
    pub(crate) fn is_lost(&self, seat: Seat) -> bool {
        self.seats.get(&seat).is_some_and(|member| member.lost.is_some())
    }

    /// Number of nodes of a role that are not lost.
    pub(crate) fn live(&self, role: Role) -> usize {
        (0..self.size(role)).filter(|&rank| !self.is_lost(Seat { role, rank })).count()
    }

    /// The nodes of a group that are not lost.
    pub(crate) fn of_group(&self, group: Group) -> impl Iterator<Item = NodeName> {
        let live = self.seats.iter().filter(|(_, member)| member.lost.is_none());
        let members = live.map(|(seat, _)| NodeName::of(seat.role, seat.rank));
        [NodeName::Scheduler].into_iter().chain(members).filter(move |node| group.has(*node))
    }

    /// The nodes that a request goes to.
    ///
    /// # Errors
    /// The reason why there are none.
    pub(crate) fn named(&self, to: Recipients) -> Result<BTreeSet<NodeName>, String> {
        let node = match to {
            _ if !self.complete => return Err("not all nodes have joined".to_owned()),
            Recipients::Group(group) => return Ok(self.of_group(group).collect()),
            Recipients::Node(node) => node,
            Recipients::DriverOf(task) => return Err(format!("task {task} is none of a worker")),
        };
        if self.of_group(Group::ALL).any(|live| live == node) {
            return Ok([node].into());
        }
        let (servers, workers) = (self.live(Role::Server), self.live(Role::Worker));
        Err(format!("there is no {node}; there are {servers} servers and {workers} workers"))
    }

    /// The seats of members that are not lost.
    pub(crate) fn live_seats(&self) -> impl Iterator<Item = Seat> {
        self.iter().filter(|(_, member)| member.lost.is_none()).map(|(seat, _)| seat)
    }

    /// The ranks of the workers that are not lost.
    pub(crate) fn live_workers(&self) -> Vec<usize> {
        let role = Role::Worker;
        (0..self.size(role)).filter(|&rank| !self.is_lost(Seat { role, rank })).collect()
    }

    /// All members, servers first, in order of ranks.
    pub(crate) fn iter(&self) -> impl Iterator<Item = (Seat, &Member)> {
        self.seats.iter().map(|(seat, member)| (*seat, member))
    }

    /// The lane of the worker of this rank, to send it something; the inner error says why it has
    /// none.
    pub(crate) fn worker(&self, rank: usize) -> Result<SessionId, Loss> {
        let seat = Seat { role: Role::Worker, rank };
        match self.seats.get(&seat) {
            None => Err(Loss { node: seat.to_string(), reason: "it never came".into() }),
            Some(member) => match &member.lost {
                None => Ok(member.session),
                Some(reason) => Err(Loss { node: describe(seat, member), reason: reason.clone() }),
            },
        }
    }

    /// The session of a member that is not lost.
    pub(crate) fn session(&self, seat: Seat) -> Option<SessionId> {
        self.seats.get(&seat).filter(|member| member.lost.is_none()).map(|member| member.session)
    }

    /// How long until somebody may have been silent for too long, and at most a heartbeat: a longer
    /// pause would not count as time listened.
    pub(crate) fn until_check(&self) -> Duration {
        self.due.saturating_sub(self.listened).min(self.heartbeat)
    }

    /// Counts members as lost that were silent for too long, and returns their lanes.
    pub(crate) fn check_silence(&mut self) -> Vec<SessionId> {
        let patience = self.patience();
        let mut spared = self.server_losses_max.saturating_sub(self.losses(Role::Server));
        let mut due = self.listened + patience;
        let mut silent_ones = Vec::new();
        for (seat, member) in &mut self.seats {
            if !self.complete || !member.join.beats || member.lost.is_some() {
                continue;
            }
            let silent = self.listened.saturating_sub(member.seen);
            let is_spared = seat.role == Role::Server && spared > 0 && !member.has_left;
            let patience = if is_spared { self.heartbeat * HEARTBEATS_OF_SPARED } else { patience };
            if silent >= patience {
                member.lost = Some(format!("no heartbeat for {:.1} s", silent.as_secs_f64()));
                silent_ones.push(member.session);
                spared -= usize::from(is_spared);
            } else {
                due = due.min(member.seen + patience);
            }
        }
        let unused = self.lanes.values().filter(|lane| matches!(lane.used, Used::Nothing));
        self.due = unused.map(|lane| lane.opened + patience).fold(due, Duration::min);
        silent_ones
    }

    /// The first loss that ends the cluster: of more servers or workers than may be lost.
    pub(crate) fn fatal_loss(&self) -> Option<Loss> {
        let is_spared = |role| {
            let losses_max = match role {
                Role::Server => self.server_losses_max,
                Role::Worker => self.losses_max,
            };
            self.losses(role) <= losses_max
        };
        let spared = [Role::Server, Role::Worker].map(|role| (role, is_spared(role)));
        let lost = |(seat, member): (&Seat, &Member)| {
            let reason = member.lost.clone()?;
            let ends = !spared.contains(&(seat.role, true)) && !member.has_left;
            let remedy = self.remedy(seat.role);
            ends.then(|| Loss { node: describe(*seat, member), reason: reason + &remedy })
        };
        self.seats.iter().find_map(lost)
    }

    /// Number of nodes of a role that are lost and have not left.
    fn losses(&self, role: Role) -> usize {
        let is_loss = |(seat, member): &(Seat, &Member)| {
            seat.role == role && member.lost.is_some() && !member.has_left
        };
        self.iter().filter(is_loss).count()
    }

    /// What lets the others go on after such a loss, for the end of its reason.
    fn remedy(&self, role: Role) -> String {
        match (role, self.server_losses_max) {
            (Role::Worker, _) => String::new(),
            (Role::Server, max) => format!(
                "; at most CARAVAN_SERVER_LOSSES_MAX={max} servers may be lost: \
                 raise it, and give the tables as many replicas"
            ),
        }
    }

    /// The servers of the cluster when it was complete.
    fn founders(&self) -> impl Iterator<Item = (Seat, &Member)> {
        self.iter().filter(|(seat, _)| seat.role == Role::Server && seat.rank < self.founders)
    }

    /// Threads of these servers.
    pub(crate) fn founding_threads(&self) -> usize {
        self.founders().map(|(_, member)| member.threads().len()).sum()
    }

    /// Threads of each of these servers; 1 if they differ.
    pub(crate) fn threads_of_each(&self) -> usize {
        let servers = self.founders();
        let mut counts: Vec<_> = servers.map(|(_, member)| member.threads().len()).collect();
        counts.dedup();
        if let [count] = counts[..] { count } else { 1 }
    }

    /// The threads of lost servers, by their place among all server threads.
    pub(crate) fn lost_threads(&self) -> Vec<usize> {
        let servers = self.iter().filter(|(seat, _)| seat.role == Role::Server);
        let is_lost = |it: &Member| it.lost.is_some() && !it.has_left;
        let threads = servers.flat_map(|(_, it)| it.threads().iter().map(move |_| is_lost(it)));
        threads.enumerate().filter_map(|(at, is_lost)| is_lost.then_some(at)).collect()
    }

    /// The nodes of lost workers, by their ids in messages.
    pub(crate) fn lost_workers(&self) -> Vec<u32> {
        let is_it =
            |seat: Seat, member: &Member| seat.role == Role::Worker && member.lost.is_some();
        let nodes = self.nodes().filter(|(_, seat, member)| is_it(*seat, member));
        nodes.map(|(node, ..)| node).collect()
    }

    /// All members with their ids in messages.
    pub(crate) fn nodes(&self) -> impl Iterator<Item = (u32, Seat, &Member)> {
        self.iter().map(|(seat, member)| (member.node, seat, member))
    }

    /// Compares the iterations of the workers that run something, about once a heartbeat. Logs
    /// those that have become slow, and those that have recovered.
    pub(crate) fn compare_paces(&mut self, runs_something: impl Fn(usize) -> bool) {
        let Members { paces, seats, listened, heartbeat, .. } = self;
        let is_busy = |rank| {
            let member = seats.get(&Seat { role: Role::Worker, rank });
            member.is_some_and(|member| member.lost.is_none()) && runs_something(rank)
        };
        for Change { rank, behind, is_slow } in paces.judge(*listened, *heartbeat, is_busy) {
            match is_slow {
                true => tracing::warn!(behind, "worker {rank} is slow: others wait for it"),
                false => tracing::info!(behind, "worker {rank} is slow no longer"),
            }
        }
    }

    /// How all members are.
    pub(crate) fn states(&self) -> Vec<NodeState> {
        let state = |(seat, member): (Seat, &Member)| {
            let is_worker = seat.role == Role::Worker;
            let (behind, is_slow) = if is_worker { self.paces.of(seat.rank) } else { (0.0, false) };
            NodeState {
                role: seat.role,
                rank: seat.rank,
                host: member.join.host.clone(),
                pid: member.join.pid,
                lost: member.lost.clone(),
                vitals: member.vitals,
                behind,
                is_slow,
            }
        };
        let is_there = |it: &(Seat, &Member)| !(self.has_left(it.0) && self.is_lost(it.0));
        self.iter().filter(is_there).map(state).collect()
    }

    /// How long a node may be silent.
    pub(crate) fn patience(&self) -> Duration {
        self.heartbeat * HEARTBEATS
    }

    /// Names the nodes that have not joined.
    pub(crate) fn missing(&self) -> String {
        let seats = self.sizes.iter();
        let seats = seats.flat_map(|&(role, size)| (0..size).map(move |rank| Seat { role, rank }));
        let missing = seats.filter(|seat| !self.seats.contains_key(seat));
        missing.map(|seat| seat.to_string()).collect::<Vec<_>>().join(", ")
    }
}

/// A member's name for people, with its process and address.
pub(crate) fn describe(seat: Seat, member: &Member) -> String {
    match member.threads().first() {
        Some(address) => format!("{seat} (process {} at {address})", member.join.pid),
        None => format!("{seat} (process {})", member.join.pid),
    }
}
