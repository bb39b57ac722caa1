//! A worker's tables: creating them, their settings, and their counters.

use std::collections::BTreeSet;

use caravan_van::wire::Coding;
use caravan_van::{KeyRange, PeerId};
use serde::de::DeserializeOwned;

use super::{Moves, Server, Worker};
use crate::error::{Error, Result};
use crate::filter::{AtWorker, KeyCacheCounters, Own, OwnFilters, Sent, Traffic};
use crate::map::{Created, Map, Numbered, Placed};
use crate::node::within;
use crate::table::{TableSpec, ValueType};
use crate::tracker::{RequestKind, Timestamp};

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
}

impl Route {
    fn to(placed: Placed, servers: &[Server]) -> Route {
        let Placed { range, server, .. } = placed;
        Route { server: server as u32, peer: servers[server].peer, range, last: range.last() }
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
    /// Whether `table` is this one, and not one that had its place before.
    pub(super) fn is(&self, table: Table) -> bool {
        self.number == table.1
    }

    /// Whether the worker's own clock is that of this table's requests.
    #[inline]
    pub(super) fn follows_worker(&self) -> bool {
        self.clock == FOLLOWS_WORKER
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
    ) -> bool {
        let shard = self.map.find(key).filter(|shard| !moves.concern(index as usize, *shard));
        let Some(shard) = shard.filter(|_| self.spec.replicas == 0) else { return false };
        self.route = Route::to(self.map.shards()[shard], servers);
        true
    }

    /// The table's filters, created if there are none.
    fn filters(&mut self, node: u32) -> &mut AtWorker {
        let make = || Box::new(AtWorker::new(&self.spec, Own::default(), node));
        self.filters.get_or_insert_with(make)
    }
}

impl Worker {
    /// Sets the filters that tables may name; servers have the same
    /// ([`Handles::with_filters`](crate::Handles::with_filters)).
    pub fn set_filters(&mut self, filters: OwnFilters) {
        self.own_filters = filters;
    }

    /// Creates a table on the servers that own shards of it, or joins it if there is an equal one
    /// of that id in its namespace. The first server thread numbers it, and knows all tables.
    ///
    /// # Errors
    /// [`Error::Refused`] if the servers have another table under that id or cannot build this one;
    /// [`Error::TableDropped`] if it is dropped at this moment; [`Error::Config`], also for filters
    /// that do not suit the table.
    pub fn create_table(&mut self, spec: &TableSpec) -> Result<Table> {
        let range = spec.range()?;
        spec.filters.check(spec)?;
        spec.check_consistency()?;
        self.own_filters.make(spec, Some(self.endpoint.lanes.node()))?;
        let spec = &spec.clone().namespace(&within(&self.namespace, &spec.namespace));
        let text = serde_json::to_string(spec)?;
        self.recovery.is_on |= spec.replicas > 0;
        let place = self.ask_survivors(|worker| worker.create_at_owners(spec, range, &text))?;
        Ok(Table(place as u32, self.tables[place].number))
    }

    /// Has the first server number a table and the owners of its shards create it; returns its
    /// place here.
    fn create_at_owners(&mut self, spec: &TableSpec, range: KeyRange, text: &str) -> Result<usize> {
        let map = spec.placement.map(range, self.servers.len())?;
        let first = self.first()?;
        let mut created: Created = self.ask_first(RequestKind::Create, text.as_bytes())?;
        let number = created.number;
        let dropped = std::mem::take(&mut created.dropped);
        let numbered = serde_json::to_vec(&Numbered { table: text.to_owned(), dropped })?;
        let mut told = BTreeSet::from([first]);
        let mut next = self.holders(spec, &map);
        next.extend(&created.elsewhere);
        let mut claims = vec![(first, created)];
        while let Some(others) = self.untold(&mut told, next) {
            let asked = self.tell(&others, RequestKind::Create, number, &numbered)?;
            let answered = self.wait(asked).map_err(|error| match error {
                Error::TableDropped { .. } => Error::TableDropped { table: spec.name.clone() },
                other => other,
            })?;
            next = BTreeSet::new();
            for (server, reply) in others.into_iter().zip(&answered.replies) {
                let created: Created = self.read_reply(server, RequestKind::Create, reply)?;
                next.extend(&created.elsewhere);
                claims.push((server, created));
            }
        }
        let known = self.tables.iter().position(|known| known.number == number);
        let place = match known {
            Some(place) => place,
            None => self.enter_table(number, spec, range, map)?,
        };
        for (server, created) in &claims {
            self.enter_claims(place, *server, created);
        }
        Ok(place)
    }

    /// The server threads that have to know of a table: the owners of its shards; or all, if any of
    /// them may have to serve copies, or to number tables after a loss.
    fn holders(&self, spec: &TableSpec, map: &Map) -> BTreeSet<usize> {
        match spec.replicas > 0 || self.waits.spares {
            true => (0..self.servers.len()).collect(),
            false => map.owners(),
        }
    }

    /// Those of `next` that live and were not told, which are now; `None` if there are none.
    fn untold(&self, told: &mut BTreeSet<usize>, next: BTreeSet<usize>) -> Option<Vec<usize>> {
        let lives = |server: &usize| {
            *server < self.servers.len() && !self.recovery.view.lost.contains(server)
        };
        let next: Vec<usize> =
            next.into_iter().filter(lives).filter(|it| told.insert(*it)).collect();
        (!next.is_empty()).then_some(next)
    }

    /// Gives a new table a place; returns it.
    fn enter_table(
        &mut self,
        number: u32,
        spec: &TableSpec,
        range: KeyRange,
        map: Map,
    ) -> Result<usize> {
        // Another table of that id is one that somebody has dropped.
        let is_old = |it: &TableState| it.spec.id == spec.id && it.spec.namespace == spec.namespace;
        self.forget_tables(is_old);
        let coding = if spec.filters.snappy { Coding::compact() } else { Coding::plain() };
        let node = self.endpoint.lanes.node();
        let own = self.own_filters.make(spec, Some(node))?;
        let filters = spec.has_filters().then(|| Box::new(AtWorker::new(spec, own, node)));
        let row_bytes = spec.row_bytes();
        let mut map = map;
        if spec.replicas > 0 {
            let view = &self.recovery.view;
            let successor = |lost: usize| Some((lost, view.chain(lost, 0).next()?));
            view.lost
                .iter()
                .copied()
                .filter_map(successor)
                .for_each(|(lost, next)| map.pass_on(lost, next));
        }
        let spec = spec.clone();
        let mut route = Route::to(map.shards()[0], &self.servers);
        if spec.replicas > 0 {
            route.close(); // short requests are not kept
        }
        self.has_filters |= filters.is_some();
        let clock = if spec.consistency.is_some() { 0 } else { FOLLOWS_WORKER };
        let state = TableState {
            number,
            spec,
            row_bytes,
            range,
            map,
            route,
            coding,
            filters,
            clock,
            disclosed: 0,
        };
        let free = self.tables.iter().position(|it| it.number == 0);
        let place = free.unwrap_or(self.tables.len());
        match self.tables.get_mut(place) {
            Some(free) => *free = state,
            None => self.tables.push(state),
        }
        Ok(place)
    }

    /// Enters a server's claims to shards of a table.
    fn enter_claims(&mut self, table: usize, server: usize, created: &Created) {
        let known = &mut self.tables[table];
        for &(begin, epoch) in &created.shards {
            if known.map.enter(begin, server, epoch) {
                known.route.close();
            }
        }
    }

    /// Drops a table on all servers that know it, with its rows and everything that servers and
    /// this worker keep for it. Nothing happens there if another worker has dropped it before.
    ///
    /// Requests of this worker that came first are executed, unless they wait for a clock. All
    /// others, of whichever worker, end with [`Error::TableDropped`]. Afterwards its id is free for
    /// another table; no request for this one ever reaches that.
    ///
    /// # Errors
    /// [`Error::UnknownTable`]; [`Error::ServerLost`].
    pub fn drop_table(&mut self, table: Table) -> Result<()> {
        let known = self.known(table)?;
        let owners = known.map.owners();
        let spec = known.spec.clone();
        self.drop_at_holders(table.1, &spec, &owners)?;
        self.forget_tables(|it| it.is(table));
        Ok(())
    }

    /// Drops all tables of a namespace and of those within it, whoever created them, as
    /// [`Worker::drop_table`] does; returns their number.
    ///
    /// # Errors
    /// [`Error::ServerLost`].
    pub fn drop_tables(&mut self, namespace: &str) -> Result<usize> {
        let namespace = within(&self.namespace, namespace);
        let mut tables = self.tables_within(&namespace)?;
        // Those of jobs are not within the empty namespace.
        tables.retain(|(_, spec)| spec.is_within(&namespace));
        for (number, spec) in &tables {
            self.drop_at_holders(*number, spec, &BTreeSet::new())?;
        }
        self.forget_tables(|it| it.spec.is_within(&namespace));
        Ok(tables.len())
    }

    /// Drops a table at its first owners, at `owners`, and wherever shards of it have moved from
    /// there. The first server is the last to hear: whoever is cut off before can drop it again.
    fn drop_at_holders(
        &mut self,
        number: u32,
        spec: &TableSpec,
        owners: &BTreeSet<usize>,
    ) -> Result<()> {
        let map = spec.placement.map(spec.range()?, self.servers.len())?;
        self.ask_survivors(|worker| worker.drop_along(number, spec, &map, owners))
    }

    fn drop_along(
        &mut self,
        number: u32,
        spec: &TableSpec,
        map: &Map,
        owners: &BTreeSet<usize>,
    ) -> Result<()> {
        let first = self.first()?;
        let mut told = BTreeSet::from([first]);
        let mut next = self.holders(spec, map);
        next.extend(owners);
        let kind = RequestKind::Drop;
        let mut is_first_told = false;
        loop {
            let servers = match self.untold(&mut told, std::mem::take(&mut next)) {
                Some(servers) => servers,
                None if std::mem::replace(&mut is_first_told, true) => return Ok(()),
                None => vec![first],
            };
            let asked = self.tell(&servers, kind, number, &[])?;
            let replies = self.wait(asked)?.replies;
            for (&server, reply) in servers.iter().zip(&replies).filter(|it| !it.1.is_empty()) {
                let elsewhere: BTreeSet<usize> = self.read_reply(server, kind, reply)?;
                next.extend(elsewhere);
            }
        }
    }

    /// The tables of a namespace and of those within it, whoever created them; all tables if it is
    /// empty, like this worker's own. [`Worker::create_table`] joins one of them, for a worker
    /// without a namespace.
    ///
    /// # Errors
    /// [`Error::ServerLost`].
    pub fn list_tables(&mut self, namespace: &str) -> Result<Vec<TableSpec>> {
        let tables = self.tables_within(&within(&self.namespace, namespace))?;
        Ok(tables.into_iter().map(|(_, spec)| spec).collect())
    }

    /// The tables of a namespace and of those within it, with their numbers.
    fn tables_within(&mut self, namespace: &str) -> Result<Vec<(u32, TableSpec)>> {
        self.ask_survivors(|worker| worker.ask_first(RequestKind::Tables, namespace.as_bytes()))
    }

    /// Asks servers about whole tables. If one is lost meanwhile and the others go on, asks those
    /// again.
    fn ask_survivors<T>(&mut self, ask: impl Fn(&mut Worker) -> Result<T>) -> Result<T> {
        loop {
            if self.recovery.is_on {
                self.tell_view()?;
            }
            match ask(self) {
                // Its lane is made again, or it counts as lost; a watch knows which.
                Err(Error::ServerLost { .. }) if self.goes_on() => self.recovery.is_on = true,
                asked => return asked,
            }
        }
    }

    /// Whether this worker goes on without a server that is lost.
    fn goes_on(&self) -> bool {
        (self.recovery.is_on || self.waits.is_watched()) && !self.living().is_empty()
    }

    /// Forgets the tables of this worker's namespace, which another drops.
    pub(crate) fn forget_namespace(&mut self) {
        let namespace = self.namespace.clone();
        self.forget_tables(|it| it.spec.is_within(&namespace));
    }

    /// Frees the places of these tables.
    fn forget_tables(&mut self, which: impl Fn(&TableState) -> bool) {
        let nothing = KeyRange::ALL;
        for state in self.tables.iter_mut().filter(|it| it.number != 0 && which(it)) {
            *state = TableState {
                number: 0,
                spec: TableSpec::new(0, "", ValueType::U8, 1),
                row_bytes: 0,
                range: nothing,
                map: Map::default(),
                route: state.route,
                coding: Coding::plain(),
                filters: None,
                clock: FOLLOWS_WORKER,
                disclosed: 0,
            };
        }
        let used = self.tables.iter().rposition(|it| it.number != 0).map_or(0, |last| last + 1);
        self.tables.truncate(used);
        self.tables.shrink_to_fit();
        self.has_filters = self.tables.iter().any(|it| it.spec.has_filters());
    }

    /// Asks the first server thread, which numbers the tables; returns its answer.
    fn ask_first<T: DeserializeOwned>(&mut self, kind: RequestKind, body: &[u8]) -> Result<T> {
        let first = self.first()?;
        let asked = self.tell(&[first], kind, 0, body)?;
        let replies = self.wait(asked)?.replies;
        self.read_reply(first, kind, replies.first().map_or(&[], Vec::as_slice))
    }

    /// The first server thread that is not lost.
    fn first(&self) -> Result<usize> {
        self.living().first().copied().ok_or_else(|| self.servers[0].error())
    }

    /// Reads a server's reply.
    fn read_reply<T: DeserializeOwned>(
        &self,
        server: usize,
        kind: RequestKind,
        reply: &[u8],
    ) -> Result<T> {
        serde_json::from_slice(reply).map_err(|error| Error::Refused {
            server: self.servers[server].at.name.clone(),
            what: kind.name(),
            reason: format!("its answer can't be read: {error}"),
        })
    }

    /// The shards of a table and their owners, as far as this worker knows.
    ///
    /// # Errors
    /// [`Error::UnknownTable`].
    pub fn shards(&self, table: Table) -> Result<&[Placed]> {
        Ok(self.known(table)?.map.shards())
    }

    /// Delta-codes the keys of this table's requests, and compresses sections that Snappy makes
    /// smaller.
    ///
    /// # Errors
    /// [`Error::UnknownTable`].
    pub fn compact(&mut self, table: Table) -> Result<()> {
        self.known(table)?;
        self.tables[table.0 as usize].coding = Coding::compact();
        Ok(())
    }

    /// Sends each list of keys of this table once. Later requests with the same keys carry its
    /// signature, by which the servers find the list.
    ///
    /// This pays for lists that are used again. `kv/src/filter/key_cache.rs` describes the protocol
    /// and the probability of a collision.
    ///
    /// # Errors
    /// [`Error::UnknownTable`].
    pub fn cache_keys(&mut self, table: Table) -> Result<()> {
        self.known(table)?;
        let node = self.endpoint.lanes.node();
        self.tables[table.0 as usize].filters(node).sent.get_or_insert_with(Sent::new);
        Ok(())
    }

    /// Suspends a table's lossy filters, or resumes them. While they are suspended, values are
    /// pushed exactly, together with what was held back for their keys.
    ///
    /// # Errors
    /// [`Error::UnknownTable`].
    pub fn set_lossless(&mut self, table: Table, lossless: bool) -> Result<()> {
        self.known(table)?;
        if let Some(filters) = &mut self.tables[table.0 as usize].filters {
            filters.set_lossless(lossless);
        }
        Ok(())
    }

    /// Pushes, exactly, everything that the filter `significant` has held back; returns `None` if
    /// there is nothing.
    ///
    /// # Errors
    /// As [`Worker::push`].
    pub fn flush(&mut self, table: Table) -> Result<Option<Timestamp>> {
        self.known(table)?;
        let TableState { spec, filters: Some(filters), .. } = &mut self.tables[table.0 as usize]
        else {
            return Ok(None);
        };
        let (keys, values) = filters.drain();
        if keys.is_empty() {
            return Ok(None);
        }
        let is_lossless = filters.set_lossless(true);
        let pushed = match spec.value {
            ValueType::F32 => {
                let values: Vec<f32> = values.into_iter().map(|value| value as f32).collect();
                self.push(table, &keys, &values)
            }
            _ => self.push(table, &keys, &values),
        };
        self.set_lossless(table, is_lossless)?;
        pushed.map(Some)
    }

    /// The traffic counters of a table's filters.
    ///
    /// # Errors
    /// [`Error::UnknownTable`].
    pub fn traffic(&self, table: Table) -> Result<Traffic> {
        let filters = self.known(table)?.filters.as_ref();
        Ok(filters.map_or_else(Traffic::default, |filters| filters.traffic()))
    }

    /// The counters of this table's key cache; all zero unless [`Worker::cache_keys`] was called.
    ///
    /// # Errors
    /// [`Error::UnknownTable`].
    pub fn key_cache(&self, table: Table) -> Result<KeyCacheCounters> {
        let sent = self.known(table)?.filters.as_ref().and_then(|filters| filters.sent.as_ref());
        Ok(sent.map_or_else(Default::default, |sent| sent.counters))
    }

    /// The specification of a table.
    ///
    /// # Errors
    /// [`Error::UnknownTable`].
    pub fn spec(&self, table: Table) -> Result<&TableSpec> {
        self.known(table).map(|known| &known.spec)
    }

    pub(super) fn known(&self, table: Table) -> Result<&TableState> {
        let known = self.tables.get(table.0 as usize).filter(|it| it.is(table));
        known.ok_or_else(|| unknown(table))
    }
}

pub(super) fn unknown(table: Table) -> Error {
    Error::UnknownTable { table: table.1 }
}
