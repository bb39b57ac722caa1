//! What a worker asks servers about whole tables, and the tables that it knows.
//!
//! Path: **worker** > slicer > filter > message > codec > endpoint > transport.

use caravan_van::KeyRange;
use caravan_van::wire::Coding;
use serde::de::DeserializeOwned;

use super::Worker;
use super::table::{FOLLOWS_WORKER, Route, TableState};
use super::waiting::{Awaited, Silence};
use crate::error::{Error, Result};
use crate::filter::AtWorker;
use crate::map::{Created, Map};
use crate::op::Op;
use crate::refusal::Refusal;
use crate::table::{TableSpec, ValueType};

impl Worker {
    /// Asks all server threads that live, when they know what this worker knows of the others.
    pub(super) fn ask_all<T: DeserializeOwned>(&mut self, op: Op) -> Result<Vec<T>> {
        self.ask_survivors(|worker| {
            worker.tell_view()?;
            let living = worker.living();
            let asked = worker.tell(&living, op, 0, &[])?;
            let replies = worker.wait(asked)?.replies;
            let answers = living.into_iter().zip(&replies);
            answers.map(|(server, reply)| worker.read_reply(server, op, reply)).collect()
        })
    }

    /// Gives a new table a place; returns it.
    pub(super) fn enter_table(
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
    pub(super) fn enter_claims(&mut self, table: usize, server: usize, created: &Created) {
        for &(begin, epoch) in &created.shards {
            self.enter_owner(table, begin, server, epoch);
        }
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
    pub(super) fn forget_tables(&mut self, which: impl Fn(&TableState) -> bool) {
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
    pub(super) fn ask<T: DeserializeOwned>(
        &mut self,
        server: usize,
        op: Op,
        body: &[u8],
    ) -> Result<T> {
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
