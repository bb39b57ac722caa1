//! Whole tables: a worker creates, joins, lists and drops them.
//!
//! The first server thread numbers tables. Whoever creates one tells the owners of its shards, and
//! then the first thread that all of them know it. From then on nobody who joins the table asks its
//! owners before there is a request for them; of shards that have moved they tell when one comes.
//!
//! Path: **worker** > slicer > filter > message > codec > endpoint > transport.

use std::collections::BTreeSet;

use caravan_van::KeyRange;
use caravan_van::wire::Coding;
use serde::de::DeserializeOwned;

use super::Worker;
use super::table::{FOLLOWS_WORKER, Route, Table, TableState};
use super::waiting::{Awaited, Silence};
use crate::error::{Error, Result};
use crate::filter::AtWorker;
use crate::map::{Created, Map, Numbered};
use crate::node::within;
use crate::op::Op;
use crate::refusal::Refusal;
use crate::table::{TableSpec, ValueType};

impl Worker {
    /// Creates a table on the servers that own shards of it, or joins it if there is an equal one
    /// of that id in its namespace. The first server thread numbers it, and knows all tables. A
    /// worker that joins asks that thread alone, unless servers may be lost.
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

    /// Makes the first server number a table and the owners of its shards create it, unless they
    /// have; returns its place here.
    fn create_at_owners(&mut self, spec: &TableSpec, range: KeyRange, text: &str) -> Result<usize> {
        let map = spec.placement.map(range, self.founders)?;
        let (first, created) = number_table(self, text)?;
        let number = created.number;
        let mut claims = Vec::new();
        if !created.is_complete || spec.replicas > 0 || self.waits.spares {
            let dropped = created.dropped.clone();
            let numbered = Numbered { table: text.to_owned(), dropped, is_complete: false };
            let mut owners = self.holders(spec, &map);
            owners.extend(&created.elsewhere);
            let told = BTreeSet::from([first]);
            claims = self.create_along(spec, (number, &numbered), told, owners)?;
            if !claims.is_empty() && !created.is_complete {
                let numbered = Numbered { is_complete: true, ..numbered };
                let first = BTreeSet::from([first]);
                self.create_along(spec, (number, &numbered), BTreeSet::new(), first)?;
            }
        }
        claims.push((first, created));
        let known = self.tables.iter().position(|known| known.number == number);
        let place = match known {
            Some(place) => place,
            None => {
                let place = self.enter_table(number, spec, range, map)?;
                self.enter_all_handed(place);
                place
            }
        };
        for (server, created) in &claims {
            self.enter_claims(place, *server, created);
        }
        Ok(place)
    }

    /// Creates a table of this number at `owners` and wherever shards of it have moved from
    /// there, but for those that were told; returns what they say.
    fn create_along(
        &mut self,
        spec: &TableSpec,
        (number, numbered): (u32, &Numbered),
        told: BTreeSet<usize>,
        owners: BTreeSet<usize>,
    ) -> Result<Vec<(usize, Created)>> {
        let numbered = serde_json::to_vec(numbered)?;
        let mut told = told;
        let mut next = owners;
        let mut claims = Vec::new();
        while let Some(others) = self.untold(number, &mut told, next)? {
            let asked = self.tell(&others, Op::Create, number, &numbered)?;
            let answered = self.wait(asked).map_err(|error| match error {
                Error::TableDropped { .. } => Error::TableDropped { table: spec.name.clone() },
                other => other,
            })?;
            next = BTreeSet::new();
            for (server, reply) in others.into_iter().zip(&answered.replies) {
                let created: Created = self.read_reply(server, Op::Create, reply)?;
                next.extend(&created.elsewhere);
                claims.push((server, created));
            }
        }
        Ok(claims)
    }

    /// Asks all that live, and have or had shards of a table, where these are.
    pub(super) fn follow_shards(&mut self, table: Table) -> Result<()> {
        let TableState { spec, map, .. } = self.known(table)?;
        let (spec, mut owners) = (spec.clone(), map.owners());
        owners.extend(spec.placement.map(spec.range()?, self.founders)?.owners());
        let text = serde_json::to_string(&spec)?;
        let numbered = Numbered { table: text, dropped: Vec::new(), is_complete: false };
        let claims = self.ask_survivors(|worker| {
            worker.create_along(&spec, (table.1, &numbered), BTreeSet::new(), owners.clone())
        })?;
        for (server, created) in &claims {
            self.enter_claims(table.0 as usize, *server, created);
        }
        Ok(())
    }

    /// The server threads that have to know of a table: the owners of its shards; or all founders,
    /// if any of them may have to serve copies, or to number tables after a loss.
    fn holders(&self, spec: &TableSpec, map: &Map) -> BTreeSet<usize> {
        match spec.replicas > 0 || self.waits.spares {
            true => (0..self.founders).collect(),
            false => map.owners(),
        }
    }

    /// Those of `next` that live and were not told of a table, which are now; `None` if there are
    /// none. Those to which one that has left has given shards stand for it.
    ///
    /// # Errors
    /// As [`Worker::wait_until_known`].
    fn untold(
        &mut self,
        number: u32,
        told: &mut BTreeSet<usize>,
        next: BTreeSet<usize>,
    ) -> Result<Option<Vec<usize>>> {
        self.wait_until_known(&next)?;
        // What is placed on one that has left is made by its successor, who has to know that.
        if self.recovery.is_on {
            self.tell_view()?;
        }
        let next = self.behind_departed(number, told, next);
        let lives =
            |server: &usize| *server < self.servers.len() && !self.recovery.is_gone(*server);
        let next: Vec<usize> =
            next.into_iter().filter(lives).filter(|it| told.insert(*it)).collect();
        Ok((!next.is_empty()).then_some(next))
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
            let gone = view.lost.iter().copied().chain(view.departed().map(|it| it.thread));
            let successor = |gone: usize| Some((gone, view.successor(gone)?));
            gone.filter_map(successor).for_each(|(gone, next)| map.succeed(gone, |_| next));
        }
        let spec = spec.clone();
        self.has_filters |= filters.is_some();
        let clock = if spec.consistency.is_some() { 0 } else { FOLLOWS_WORKER };
        let state = TableState {
            number,
            spec,
            row_bytes,
            range,
            map,
            route: Route::closed(),
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
        self.tables[place].follow_chains(&self.recovery.view);
        Ok(place)
    }

    /// Records a server's claims to shards of a table.
    fn enter_claims(&mut self, table: usize, server: usize, created: &Created) {
        for &(begin, epoch) in &created.shards {
            self.enter_owner(table, begin, server, epoch);
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
        let map = spec.placement.map(spec.range()?, self.founders)?;
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
        let op = Op::Drop;
        let mut is_first_told = false;
        loop {
            let servers = match self.untold(number, &mut told, std::mem::take(&mut next))? {
                Some(servers) => servers,
                None if std::mem::replace(&mut is_first_told, true) => return Ok(()),
                None => vec![first],
            };
            let asked = self.tell(&servers, op, number, &[])?;
            let replies = self.wait(asked)?.replies;
            for (&server, reply) in servers.iter().zip(&replies).filter(|it| !it.1.is_empty()) {
                let elsewhere: BTreeSet<usize> = self.read_reply(server, op, reply)?;
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
    pub(super) fn tables_within(&mut self, namespace: &str) -> Result<Vec<(u32, TableSpec)>> {
        self.ask_survivors(|worker| {
            let first = worker.first()?;
            worker.ask(first, Op::Tables, namespace.as_bytes())
        })
    }

    /// Asks servers about whole tables. If one is lost meanwhile and the others go on, asks those
    /// again.
    pub(super) fn ask_survivors<T>(&mut self, ask: impl Fn(&mut Worker) -> Result<T>) -> Result<T> {
        let mut silence = Silence::default();
        loop {
            if self.recovery.is_on {
                self.tell_view()?;
            }
            let heard = self.recovery.view.events.len();
            match ask(self) {
                Err(Error::ServerLost { .. }) if self.recovery.view.events.len() > heard => {}
                // Its lane is made again, or it is lost or leaves; a watch knows which.
                Err(Error::ServerLost { .. }) if self.goes_on() => {
                    self.recovery.is_on = true;
                    self.recovery.is_due = true;
                    if !self.poll()? {
                        self.backoff(&mut silence, Awaited::Room(0))?;
                    }
                }
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
                route: Route::closed(),
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

    /// Asks a server thread; returns its answer.
    fn ask<T: DeserializeOwned>(&mut self, server: usize, op: Op, body: &[u8]) -> Result<T> {
        let asked = self.tell(&[server], op, 0, body)?;
        let replies = self.wait(asked)?.replies;
        self.read_reply(server, op, replies.first().map_or(&[], Vec::as_slice))
    }

    /// The server thread that numbers the tables.
    ///
    /// # Errors
    /// [`Error::NodeLost`] if there is none any more.
    pub(super) fn first(&self) -> Result<usize> {
        let first = self.recovery.view.catalogue_owner();
        if !self.recovery.is_gone(first) && first < self.servers.len() {
            return Ok(first);
        }
        let node = self.servers.get(first).map_or_else(String::new, |it| it.at.name.clone());
        let reason = "no other one knows all tables, so none is created or dropped any more";
        Err(Error::NodeLost { node, reason: reason.to_owned() })
    }

    /// Reads a server's reply.
    pub(super) fn read_reply<T: DeserializeOwned>(
        &self,
        server: usize,
        op: Op,
        reply: &[u8],
    ) -> Result<T> {
        serde_json::from_slice(reply).map_err(|error| Error::Refused {
            server: self.servers[server].at.name.clone(),
            what: op.what(),
            kind: Refusal::Internal,
            reason: format!("its answer can't be read: {error}"),
        })
    }
}

/// Asks the first server for the number of a table; returns which server that is, and its answer.
/// It has created what is placed on it, and on those that have left it their places, as far as it
/// has heard. If this worker has heard of more, it tells that, and asks again.
fn number_table(worker: &mut Worker, text: &str) -> Result<(usize, Created)> {
    loop {
        // Others know the tables of which they have copies.
        let first = match (worker.first(), worker.living().first()) {
            (Ok(first), _) | (Err(_), Some(&first)) => first,
            (Err(error), None) => return Err(error),
        };
        let created: Created = worker.ask(first, Op::Create, text.as_bytes())?;
        worker.wait_for_news(|worker| {
            let knows_less = worker.recovery.view.events.len() < created.heard;
            (knows_less && worker.waits.is_watched()).then_some(first)
        })?;
        let knows_all = created.heard >= worker.recovery.view.events.len();
        if knows_all || !worker.recovery.is_on {
            return Ok((first, created));
        }
        worker.tell_view()?;
    }
}
