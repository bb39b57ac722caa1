//! Tables as a worker knows them: made, set up, and what was counted of their messages.

use caravan_van::wire::Coding;
use caravan_van::{KeyRange, PeerId};

use super::{Server, Worker};
use crate::error::{Error, Result};
use crate::filter::{AtWorker, KeyCacheCounters, Sent, Traffic};
use crate::table::{TableSpec, ValueType};
use crate::tracker::{RequestKind, Timestamp};

/// A table as this worker knows it. Cheap to copy.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Table(pub(super) u32);

pub(super) struct TableState {
    pub(super) spec: TableSpec,
    /// Of each row; 0 when rows have their own lengths.
    pub(super) row_bytes: usize,
    pub(super) range: KeyRange,
    /// The servers' ranges, in order of servers.
    pub(super) parts: Vec<KeyRange>,
    pub(super) last: Route,
    pub(super) coding: Coding,
    pub(super) filters: Option<Box<AtWorker>>,
}

/// The server that the last short request went to: the next one is likely to go there, too.
#[derive(Clone, Copy)]
pub(super) struct Route {
    pub(super) server: u32,
    pub(super) peer: PeerId,
    pub(super) range: KeyRange,
}

impl TableState {
    /// Makes the server that has `key` the last one; false if there is none.
    #[inline(never)]
    pub(super) fn route_to(&mut self, key: u64, servers: &[Server]) -> bool {
        let server = self.parts.partition_point(|part| part.last() < key);
        let range = self.parts.get(server).filter(|part| part.contains(key));
        let Some(&range) = range else { return false };
        self.last = Route { server: server as u32, peer: servers[server].peer, range };
        true
    }

    /// Its filters, to which one is about to be added.
    fn filters(&mut self, node: u32) -> &mut AtWorker {
        self.filters.get_or_insert_with(|| Box::new(AtWorker::new(&self.spec, node)))
    }
}

impl Worker {
    /// Creates a table on all servers, or joins it if there is an equal one.
    ///
    /// # Errors
    /// [`Error::Refused`] when the servers have another table under that id or cannot build it; [`Error::Config`], also for
    /// filters that it can't have.
    pub fn create_table(&mut self, spec: &TableSpec) -> Result<Table> {
        let range = spec.range()?;
        spec.filters.check(spec)?;
        let text = serde_json::to_vec(spec)?;
        let timestamp = self.broadcast(RequestKind::Create, spec.id, &text)?;
        self.wait(timestamp)?;
        let parts: Vec<_> = range.cut(self.servers.len()).collect();
        // The servers took it, so one of that number that is known already is equal.
        let known = self.tables.iter().position(|known| known.spec.id == spec.id);
        let index = known.unwrap_or_else(|| {
            let coding = if spec.filters.snappy { Coding::compact() } else { Coding::plain() };
            let node = self.endpoint.node();
            self.has_filters |= !spec.filters.is_none();
            let filters = (!spec.filters.is_none()).then(|| Box::new(AtWorker::new(spec, node)));
            let (spec, row_bytes) = (spec.clone(), spec.row_bytes());
            let last = Route { server: 0, peer: self.servers[0].peer, range: parts[0] };
            self.tables.push(TableState { spec, row_bytes, range, parts, last, coding, filters });
            self.tables.len() - 1
        });
        Ok(Table(index as u32))
    }

    /// Delta-codes the keys of this table's requests, and Snappy-compresses what that makes smaller.
    ///
    /// # Errors
    /// [`Error::UnknownTable`].
    pub fn compact(&mut self, table: Table) -> Result<()> {
        self.known(table)?;
        self.tables[table.0 as usize].coding = Coding::compact();
        Ok(())
    }

    /// Sends each list of keys of this table once: later requests with the same keys name them by a signature, which the
    /// servers know. Pays for lists that come again; see `kv/src/filter/key_cache.rs` for how, and how sure it is.
    ///
    /// # Errors
    /// [`Error::UnknownTable`].
    pub fn cache_keys(&mut self, table: Table) -> Result<()> {
        self.known(table)?;
        let node = self.endpoint.node();
        self.tables[table.0 as usize].filters(node).sent.get_or_insert_with(Sent::new);
        Ok(())
    }

    /// Suspends the filters of a table that lose anything, or resumes them: while they are, values are pushed as they are, with
    /// what was kept back of their keys.
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

    /// Pushes, as it is, all that the filter `significant` has kept back; nothing if that is nothing.
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

    /// What the filters of a table did to its messages so far.
    ///
    /// # Errors
    /// [`Error::UnknownTable`].
    pub fn traffic(&self, table: Table) -> Result<Traffic> {
        let filters = self.known(table)?.filters.as_ref();
        Ok(filters.map_or_else(Traffic::default, |filters| filters.traffic()))
    }

    /// What caching this table's keys did so far; all zero unless [`Worker::cache_keys`] was called.
    ///
    /// # Errors
    /// [`Error::UnknownTable`].
    pub fn key_cache(&self, table: Table) -> Result<KeyCacheCounters> {
        let sent = self.known(table)?.filters.as_ref().and_then(|filters| filters.sent.as_ref());
        Ok(sent.map_or_else(Default::default, |sent| sent.counters))
    }

    pub(super) fn known(&self, table: Table) -> Result<&TableState> {
        self.tables.get(table.0 as usize).ok_or_else(|| unknown(table))
    }
}

pub(super) fn unknown(table: Table) -> Error {
    Error::UnknownTable { table: table.0 }
}
