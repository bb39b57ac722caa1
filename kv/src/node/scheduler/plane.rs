//! What all parts of the scheduler's thread share: its endpoint, and who is at the other ends.

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use caravan_van::{Endpoint, PeerId};
use serde::Serialize;

use super::super::control::{self, LAST, Loss, Losses, Order, Role};
use super::super::group::NodeName;
use super::super::members::{Members, Seat};

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
    /// Members that have not been told of the last lost server.
    pub(super) untold: BTreeSet<Seat>,
}

impl Plane {
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

    /// Tells members which server threads are lost, as soon as their lanes have room.
    pub(super) fn tell_untold(&mut self, number: u64) {
        let order = Order::LostServers(self.members.lost_threads());
        let Plane { untold, members, endpoint, .. } = self;
        untold.retain(|&seat| {
            // One that is lost itself hears nothing.
            let Some(lane) = members.lane(seat) else { return false };
            endpoint.lanes.credits(lane) <= LAST
                || control::ask(endpoint, lane, number, &order).is_err()
        });
    }

    /// What drivers that watch hear.
    pub(super) fn losses(&self) -> Losses {
        let servers = self.members.lost_threads();
        Losses { fatal: self.lost.clone(), servers, cancelled: None }
    }
}
