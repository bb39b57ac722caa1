//! What all parts of the scheduler's thread share: its sessions, and who is at the other ends.

use std::collections::BTreeMap;
use std::time::Duration;

use serde::{Deserialize, Serialize};

use super::super::control::{Heard, Loss, Losses, Order, Role};
use super::super::group::NodeName;
use super::super::members::{Members, Seat};
use super::super::session::{SessionId, Speech};
use super::sessions::Sessions;
use crate::membership::{Event, Membership, forget_replaced};
use crate::server_address::ServerAddress;

/// The control plane, seen from its middle. It does no I/O: what is said is sent when it is saved.
#[derive(Serialize, Deserialize)]
pub(super) struct ControlState {
    pub(super) sessions: Sessions,
    pub(super) members: Members,
    /// The time on its clock.
    #[serde(skip)]
    pub(super) now: Duration,
    /// The session of the driver that started the cluster.
    pub(super) launcher: Option<SessionId>,
    /// The sessions of drivers from outside that have a job, by their numbers.
    pub(super) guests: BTreeMap<u32, SessionId>,
    /// The first node whose loss ends the cluster, which everybody was told.
    pub(super) lost: Option<Loss>,
    /// The server threads that are lost, in the order of their losses.
    lost_threads: Vec<usize>,
    /// The servers that have joined since the cluster was complete, leave or have left, in their
    /// order.
    events: Vec<Event>,
}

impl ControlState {
    pub(super) fn new(members: Members) -> ControlState {
        ControlState {
            sessions: Sessions::default(),
            members,
            now: Duration::ZERO,
            launcher: None,
            guests: BTreeMap::new(),
            lost: None,
            lost_threads: Vec::new(),
            events: Vec::new(),
        }
    }

    /// The session of a node that is not lost.
    pub(super) fn session(&self, node: NodeName) -> Option<SessionId> {
        match node {
            NodeName::Scheduler => self.launcher,
            NodeName::Driver(number) => self.guests.get(&number).copied(),
            NodeName::Server(rank) => self.members.session(Seat { role: Role::Server, rank }),
            NodeName::Worker(rank) => self.members.session(Seat { role: Role::Worker, rank }),
        }
    }

    /// Answers a node or a driver, which may be gone.
    pub(super) fn tell(&mut self, session: SessionId, timestamp: u64, what: &impl Serialize) {
        self.sessions.say(session, Speech::Answer, timestamp, what);
    }

    /// Refuses a request; as [`ControlState::tell`].
    pub(super) fn refuse(&mut self, session: SessionId, timestamp: u64, why: &str) {
        self.sessions.refuse(session, timestamp, why);
    }

    /// Answers a request, or refuses it; as [`ControlState::tell`].
    pub(super) fn tell_or_refuse(
        &mut self,
        session: SessionId,
        timestamp: u64,
        outcome: Result<impl Serialize, String>,
    ) {
        match outcome {
            Ok(what) => self.tell(session, timestamp, &what),
            Err(why) => self.refuse(session, timestamp, &why),
        }
    }

    /// Gives an order of this number; as [`ControlState::tell`].
    pub(super) fn order(&mut self, session: SessionId, number: u64, order: &Order) {
        self.sessions.say(session, Speech::Ask, number, order);
    }

    /// Gives an order of this number to every member that is there.
    pub(super) fn order_all(&mut self, number: u64, order: &Order) {
        self.order_those(number, order, |_| true);
    }

    fn order_those(&mut self, number: u64, order: &Order, are: impl Fn(Seat) -> bool) {
        let ControlState { members, sessions, .. } = self;
        let seats = members.live_seats().filter(|seat| are(*seat));
        for session in seats.filter_map(|seat| members.session(seat)) {
            sessions.say(session, Speech::Ask, number, order);
        }
    }

    /// Tells all members of the threads of lost servers, behind those that were lost before.
    pub(super) fn publish_lost_threads(&mut self, number: u64) {
        let ControlState { members, lost_threads, .. } = self;
        let lost = members.lost_threads().into_iter();
        let new: Vec<usize> = lost.filter(|thread| !lost_threads.contains(thread)).collect();
        if !new.is_empty() {
            lost_threads.extend(&new);
            self.order_all(number, &Order::LostServers(new));
        }
    }

    /// Tells a server that has joined of all that came before, and all members of its threads.
    pub(super) fn publish_joined_threads(
        &mut self,
        number: u64,
        newcomer: SessionId,
        threads: Vec<ServerAddress>,
    ) {
        // It hears of threads before it hears that they are lost.
        self.order(newcomer, number, &Order::ServerEvents(self.events.clone()));
        self.publish_events(number, vec![Event::Joined(threads)]);
        self.order(newcomer, number, &Order::LostServers(self.lost_threads.clone()));
        self.order(newcomer, number, &Order::LostWorkers(self.members.lost_workers()));
    }

    /// Tells all members of servers that have joined, leave or have left, and of chains; returns
    /// how many events there are so far.
    pub(super) fn publish_events(&mut self, number: u64, events: Vec<Event>) -> usize {
        for event in &events {
            forget_replaced(&mut self.events, event);
            self.events.push(event.clone());
        }
        self.order_all(number, &Order::ServerEvents(events));
        self.events.len()
    }

    /// What everybody knows of the server threads, but for their addresses.
    pub(super) fn view(&self) -> Membership {
        let ControlState { members, lost_threads, events, .. } = self;
        let addresses = vec![String::new(); members.founding_threads()];
        let lost = lost_threads.iter().copied().collect();
        let threads = members.threads_of_each();
        let mut view = Membership { addresses, threads, lost, ..Membership::default() };
        events.iter().for_each(|event| view.enter(event.clone()));
        view
    }

    /// Whether there is a server thread at this place that is neither lost nor has left.
    pub(super) fn stays(&self, thread: usize) -> bool {
        let has_left = |it: &Event| it.departed().is_some_and(|it| it.thread == thread);
        let joined: usize = self.events.iter().map(|it| it.joined().len()).sum();
        thread < self.members.founding_threads() + joined
            && !self.lost_threads.contains(&thread)
            && !self.events.iter().any(has_left)
    }

    /// Whether a server thread has said that it will leave.
    pub(super) fn leaves(&self, thread: usize) -> bool {
        self.events.contains(&Event::Announced(thread))
    }

    /// Tells all servers which workers are lost.
    pub(super) fn publish_lost_workers(&mut self, number: u64) {
        let order = Order::LostWorkers(self.members.lost_workers());
        self.order_those(number, &order, |seat| seat.role == Role::Server);
    }

    /// What a driver that watches hears, which has heard of these changes before.
    pub(super) fn losses(&self, heard: Heard) -> Losses {
        let servers = self.lost_threads.get(heard.lost..).unwrap_or_default().to_vec();
        let events = self.events.get(heard.events..).unwrap_or_default().to_vec();
        Losses { fatal: self.lost.clone(), servers, events, cancelled: None }
    }
}
