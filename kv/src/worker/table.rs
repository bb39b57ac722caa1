//! A worker's tables: creating them, their settings, and their counters.

use caravan_van::wire::Coding;
use caravan_van::{KeyRange, PeerId};

use super::lanes::{NOBODY, Server};
use super::{Moves, Recovery, Worker};
use crate::consistency::Model;
use crate::error::{Error, Result};
use crate::filter::{AtWorker, Own};
use crate::map::{Map, Placed};
use crate::membership::Membership;
use crate::op::Op;
use crate::table::TableSpec;

/// A table as this worker knows it: its place among the worker's tables and its number. Cheap to
/// copy.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Table(pub(super) u32, pub(super) u32);

pub(super) struct TableState {
    /// The table's number in messages; 0 for a place that is free.
    pub(super) number: u32,
    pub(super) spec: TableSpec,
    /// Bytes of each row; 0 if rows have their own lengths.
    pub(super) row_bytes: usize,
    pub(super) range: KeyRange,
    pub(super) map: Map,
    pub(super) route: Route,
    pub(super) coding: Coding,
    pub(super) filters: Option<Box<AtWorker>>,
    /// The iteration of its requests: [`FOLLOWS_WORKER`] without a model, 0 while this worker
    /// observes.
    pub(super) clock: u64,
    /// Requests for iterations below this one were announced.
    pub(super) disclosed: u64,
}

/// Stands for the iteration that [`Worker::set_clock`] sets.
pub(super) const FOLLOWS_WORKER: u64 = u64::MAX;

/// The shard of the last short request and its owner. The next one probably goes there, too.
#[derive(Clone, Copy)]
pub(super) struct Route {
    pub(super) server: u32,
    pub(super) peer: PeerId,
    pub(super) range: KeyRange,
    /// The last key of the range; below the first one if the route is closed.
    pub(super) last: u64,
    /// Whether requests are kept until they are answered, and leave one credit for the news of a
    /// loss.
    pub(super) is_kept: bool,
}

impl Route {
    fn to(placed: Placed, servers: &[Server], is_kept: bool) -> Route {
        let Placed { range, server, .. } = placed;
        let (peer, last) = (servers[server].peer, range.last());
        Route { server: server as u32, peer, range, last, is_kept }
    }

    /// A route that no request goes.
    pub(super) fn closed() -> Route {
        let range = KeyRange::ALL;
        let mut route = Route { server: 0, peer: NOBODY, range, last: 0, is_kept: false };
        route.close();
        route
    }

    /// Whether sorted keys from `first` to `last` go this way.
    #[inline(always)]
    pub(super) fn has(&self, first: u64, last: u64) -> bool {
        self.range.begin() <= first && last <= self.last
    }

    /// No request goes this way any more: its range is the last key alone, and ends before it.
    pub(super) fn close(&mut self) {
        self.range = KeyRange::new(u64::MAX, 0).unwrap_or(KeyRange::ALL);
        self.last = 0;
    }
}

impl TableState {
    /// Records where the chains of shards begin that have entries.
    pub(super) fn follow_chains(&mut self, view: &Membership) {
        let TableState { number: table, spec, map, route, .. } = self;
        let replicas = spec.replicas;
        map.give(|shard| {
            let of = shard.chain(*table, replicas);
            let head =
                (replicas > 0 && view.has_entry(of)).then(|| view.chain(of).next()).flatten();
            head.unwrap_or(shard.server)
        });
        route.close();
    }

    /// Whether `table` is this one, and not one that had its place before.
    pub(super) fn is(&self, table: Table) -> bool {
        self.number == table.1
    }

    /// Whether the worker's own clock is that of this table's requests.
    #[inline]
    pub(super) fn follows_worker(&self) -> bool {
        self.clock == FOLLOWS_WORKER
    }

    /// Whether such requests keep their credits until this worker has ended an iteration, whatever
    /// breaks meanwhile: pushes under BSP, and under SparseSSP the pulls that announce iterations.
    pub(super) fn keeps_credits(&self, op: Op) -> bool {
        self.spec.replicas > 0
            && self.clock > 0
            && self.spec.consistency.is_some_and(|it| match it.model {
                Model::Bsp => op == Op::Push,
                Model::SparseSsp { .. } => op == Op::Pull,
                _ => false,
            })
    }

    /// Whether there are such requests.
    fn may_keep_credits(&self) -> bool {
        let keeps = |model| matches!(model, Model::Bsp | Model::SparseSsp { .. });
        self.spec.replicas > 0 && self.spec.consistency.is_some_and(|it| keeps(it.model))
    }

    /// Sets `route` to the owner of `key`; returns false if there is none, or requests to its shard
    /// have to wait.
    #[inline(never)]
    pub(super) fn route_to(
        &mut self,
        index: u32,
        key: u64,
        servers: &[Server],
        moves: &Moves,
        recovery: &Recovery,
    ) -> bool {
        let shard = self.map.find(key).filter(|shard| !moves.concern(index as usize, *shard));
        let Some(shard) = shard else { return false };
        let placed = self.map.shards()[shard];
        let is_kept = self.spec.replicas > 0;
        let waits = || recovery.concerns(placed.server) || self.may_keep_credits();
        if is_kept && waits() {
            return false;
        }
        self.route = Route::to(placed, servers, is_kept);
        true
    }

    /// The table's filters, created if there are none.
    pub(super) fn filters(&mut self, node: u32) -> &mut AtWorker {
        let make = || Box::new(AtWorker::new(&self.spec, Own::default(), node));
        self.filters.get_or_insert_with(make)
    }
}

impl Worker {
    pub(super) fn known(&self, table: Table) -> Result<&TableState> {
        let known = self.tables.get(table.0 as usize).filter(|it| it.is(table));
        known.ok_or_else(|| unknown(table))
    }
}

pub(super) fn unknown(table: Table) -> Error {
    Error::UnknownTable { table: table.1 }
}
