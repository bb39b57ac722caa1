//! Servers beside those of a complete cluster, which join it and may leave it again.

use std::ops::Range;

use super::super::session::SessionId;

use super::super::backend::Van;
use super::super::choice::Candidate;
use super::super::control::Role;
use super::{LEFT, Members, Seat, Used};

impl Members {
    /// Takes the vans of a server that has joined when all others had.
    pub(crate) fn equip(&mut self, seat: Seat, vans: Vec<Van>, entry: Candidate) {
        if let Some(member) = self.seats.get_mut(&seat) {
            (member.vans, member.join.vans) = (vans, vec![entry]);
        }
    }

    /// The places of a server's threads among all server threads.
    pub(crate) fn threads_of(&self, rank: usize) -> Range<usize> {
        let threads = |seat: Seat| self.seats.get(&seat).map_or(0, |it| it.threads().len());
        let of = |rank| threads(Seat { role: Role::Server, rank });
        let first = (0..rank).map(of).sum();
        first..first + of(rank)
    }

    /// Makes a server leave: it counts among no losses from now on.
    pub(crate) fn let_leave(&mut self, seat: Seat) {
        if let Some(member) = self.seats.get_mut(&seat) {
            member.has_left = true;
        }
    }

    /// Whether a server leaves, or has left.
    pub(crate) fn has_left(&self, seat: Seat) -> bool {
        self.seats.get(&seat).is_some_and(|member| member.has_left)
    }

    /// What a member that has left is told at its lane for heartbeats.
    pub(crate) fn farewell(&self, session: SessionId) -> Option<String> {
        let Used::Heartbeat(seat) = self.lanes.get(&session)?.used else { return None };
        (self.has_left(seat) && self.is_lost(seat)).then(|| LEFT.to_owned())
    }
}
