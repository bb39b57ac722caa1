//! What all parts of the scheduler's thread share: its endpoint, and who is at the other ends.

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use caravan_van::{Endpoint, PeerId};
use serde::Serialize;

use super::super::control::{self, Heard, LAST, Loss, Losses, Order, Role};
use super::super::group::NodeName;
use super::super::members::{Members, Seat};
use crate::view::Departed;
use crate::worker::ServerAddress;

/// The control plane, seen from its middle.
pub(super) struct Plane {
    pub(super) endpoint: Endpoint,
    pub(super) members: Members,
    /// The lane of the driver that started the cluster.
    pub(super) launcher: Option<PeerId>,
    /// The lanes of drivers from outside that have a job, by their numbers.
    pub(super) guests: BTreeMap<u32, PeerId>,
    /// The first node whose loss ends the cluster, which everybody was told.
    pub(super) lost: Option<Loss>,
    /// The server threads that are lost, in the order of their losses.
    lost_threads: Vec<usize>,
    /// The server threads that have joined since the cluster was complete, in their order.
    joined_threads: Vec<ServerAddress>,
    /// Those of them that have left again, in their order.
    left_threads: Vec<Departed>,
    /// What each member has been told; it knows of nothing at first.
    told: BTreeMap<Seat, Heard>,
    /// Whether any member may not have been told of all.
    tells: bool,
    /// Servers that have not been told of the last lost worker.
    unheard: BTreeSet<Seat>,
}

impl Plane {
    pub(super) fn new(endpoint: Endpoint, members: Members) -> Plane {
        Plane {
            endpoint,
            members,
            launcher: None,
            guests: BTreeMap::new(),
            lost: None,
            lost_threads: Vec::new(),
            joined_threads: Vec::new(),
            left_threads: Vec::new(),
            told: BTreeMap::new(),
            tells: false,
            unheard: BTreeSet::new(),
        }
    }

    /// The time on its clock.
    pub(super) fn now(&self) -> Duration {
        self.endpoint.lanes.now()
    }

    /// The lane of a node that is not lost.
    pub(super) fn lane(&self, node: NodeName) -> Option<PeerId> {
        match node {
            NodeName::Scheduler => self.launcher,
            NodeName::Driver(number) => self.guests.get(&number).copied(),
            NodeName::Server(rank) => self.members.lane(Seat { role: Role::Server, rank }),
            NodeName::Worker(rank) => self.members.lane(Seat { role: Role::Worker, rank }),
        }
    }

    /// Answers a node or a driver; its lane, if it breaks now, is reported separately.
    pub(super) fn tell(&mut self, peer: PeerId, timestamp: u64, what: &impl Serialize) {
        let _ = control::answer(&mut self.endpoint, peer, timestamp, what);
    }

    /// Refuses a request; as [`Plane::tell`].
    pub(super) fn refuse(&mut self, peer: PeerId, timestamp: u64, why: &str) {
        let _ = control::refuse(&mut self.endpoint, peer, timestamp, why);
    }

    /// Answers a request, or refuses it; as [`Plane::tell`].
    pub(super) fn tell_or_refuse(
        &mut self,
        peer: PeerId,
        timestamp: u64,
        outcome: Result<impl Serialize, String>,
    ) {
        match outcome {
            Ok(what) => self.tell(peer, timestamp, &what),
            Err(why) => self.refuse(peer, timestamp, &why),
        }
    }

    /// Gives an order of this number; as [`Plane::tell`].
    pub(super) fn order(&mut self, peer: PeerId, number: u64, order: &Order) {
        let _ = control::ask(&mut self.endpoint, peer, number, order);
    }

    /// Gives an order of this number to every member that is there.
    pub(super) fn order_all(&mut self, number: u64, order: &Order) {
        let Plane { members, endpoint, .. } = self;
        for lane in members.live_seats().filter_map(|seat| members.lane(seat)) {
            let _ = control::ask(endpoint, lane, number, order);
        }
    }

    /// Enters the threads of lost servers behind those that were lost before.
    pub(super) fn enter_lost_threads(&mut self) {
        let Plane { members, lost_threads, .. } = self;
        let lost = members.lost_threads().into_iter();
        let new: Vec<usize> = lost.filter(|thread| !lost_threads.contains(thread)).collect();
        lost_threads.extend(new);
        self.tells = true;
    }

    /// Enters the threads of a server that has joined.
    pub(super) fn enter_joined_threads(&mut self, threads: impl Iterator<Item = ServerAddress>) {
        self.joined_threads.extend(threads);
        self.tells = true;
    }

    /// Enters the threads of a server that leaves.
    pub(super) fn enter_left_threads(&mut self, threads: Vec<Departed>) {
        self.left_threads.extend(threads);
        self.tells = true;
    }

    /// Tells each member of the server threads that have joined, have left or are lost and of which
    /// it was not told, as soon as its lane has room.
    pub(super) fn tell_untold(&mut self, number: impl FnOnce() -> u64) {
        if !std::mem::take(&mut self.tells) {
            return;
        }
        let Plane { told, lost_threads, joined_threads, left_threads, .. } = self;
        let Plane { members, endpoint, tells, .. } = self;
        let number = number();
        // One that is lost itself hears nothing.
        for seat in members.live_seats() {
            let Some(lane) = members.lane(seat) else { continue };
            let told = told.entry(seat).or_default();
            let mut tell = |order: &Order| {
                let has_room = endpoint.lanes.credits(lane) > LAST;
                let is_told = has_room && control::ask(endpoint, lane, number, order).is_ok();
                *tells |= !is_told;
                is_told
            };
            // First: a loss may be that of a thread that has joined.
            if let Some(new @ [_, ..]) = joined_threads.get(told.joined..)
                && tell(&Order::JoinedServers(new.to_vec()))
            {
                told.joined = joined_threads.len();
            }
            if let Some(new @ [_, ..]) = left_threads.get(told.left..)
                && told.joined == joined_threads.len()
                && tell(&Order::LeftServers(new.to_vec()))
            {
                told.left = left_threads.len();
            }
            if let Some(new @ [_, ..]) = lost_threads.get(told.lost..)
                && told.joined == joined_threads.len()
                && tell(&Order::LostServers(new.to_vec()))
            {
                told.lost = lost_threads.len();
            }
        }
    }

    /// Has all servers told which workers are lost.
    pub(super) fn enter_lost_worker(&mut self) {
        let servers = self.members.live_seats().filter(|seat| seat.role == Role::Server);
        self.unheard = servers.collect();
    }

    /// Tells servers which workers are lost, as soon as their lanes have room.
    pub(super) fn tell_unheard(&mut self, number: impl FnOnce() -> u64) {
        if self.unheard.is_empty() {
            return;
        }
        let number = number();
        let order = Order::LostWorkers(self.members.lost_workers());
        let Plane { unheard, members, endpoint, .. } = self;
        unheard.retain(|&seat| {
            let Some(lane) = members.lane(seat) else { return false };
            endpoint.lanes.credits(lane) <= LAST
                || control::ask(endpoint, lane, number, &order).is_err()
        });
    }

    /// What a driver that watches hears, which has heard of these changes before.
    pub(super) fn losses(&self, heard: Heard) -> Losses {
        let servers = self.lost_threads.get(heard.lost..).unwrap_or_default().to_vec();
        let joined = self.joined_threads.get(heard.joined..).unwrap_or_default().to_vec();
        let left = self.left_threads.get(heard.left..).unwrap_or_default().to_vec();
        Losses { fatal: self.lost.clone(), servers, joined, left, cancelled: None }
    }
}
