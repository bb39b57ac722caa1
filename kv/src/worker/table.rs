//! A worker's tables: creating them, their settings, and their counters.

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
    /// Bytes of each row; 0 if rows have their own lengths.
    pub(super) row_bytes: usize,
    pub(super) range: KeyRange,
    /// The servers' key ranges, in the order of the servers.
    pub(super) parts: Vec<KeyRange>,
    pub(super) route: Route,
    pub(super) coding: Coding,
    pub(super) filters: Option<Box<AtWorker>>,
}

/// The server of the last short request. The next one probably goes there, too.
#[derive(Clone, Copy)]
pub(super) struct Route {
    pub(super) server: u32,
    pub(super) peer: PeerId,
    pub(super) range: KeyRange,
}

impl TableState {
    /// Sets `route` to the server that has `key`; returns false if there is none.
    #[inline(never)]
    pub(super) fn route_to(&mut self, key: u64, servers: &[Server]) -> bool {
        let server = self.parts.partition_point(|part| part.last() < key);
        let range = self.parts.get(server).filter(|part| part.contains(key));
        let Some(&range) = range else { return false };
        self.route = Route { server: server as u32, peer: servers[server].peer, range };
        true
    }

    /// The table's filters, created if there are none.
    fn filters(&mut self, node: u32) -> &mut AtWorker {
        self.filters.get_or_insert_with(|| Box::new(AtWorker::new(&self.spec, node)))
    }
}

impl Worker {
    /// Creates a table on all servers, or joins it if there is an equal one.
    ///
    /// # Errors
    /// [`Error::Refused`] if the servers have another table under that id or cannot build this one;
    /// [`Error::Config`], also for filters that do not suit the table.
    pub fn create_table(&mut self, spec: &TableSpec) -> Result<Table> {
        let range = spec.range()?;
        spec.filters.check(spec)?;
        let text = serde_json::to_vec(spec)?;
        let timestamp = self.broadcast(RequestKind::Create, spec.id, &text)?;
        self.wait(timestamp)?;
        let parts: Vec<_> = range.cut(self.servers.len()).collect();
        // The servers accepted it, so a known table with that id is equal.
        let known = self.tables.iter().position(|known| known.spec.id == spec.id);
        let index = known.unwrap_or_else(|| {
            let coding = if spec.filters.snappy { Coding::compact() } else { Coding::plain() };
            let node = self.endpoint.lanes.node();
            self.has_filters |= !spec.filters.is_none();
            let filters = (!spec.filters.is_none()).then(|| Box::new(AtWorker::new(spec, node)));
            let row_bytes = spec.row_bytes();
            let spec = spec.clone();
            let route = Route { server: 0, peer: self.servers[0].peer, range: parts[0] };
            self.tables.push(TableState { spec, row_bytes, range, parts, route, coding, filters });
            self.tables.len() - 1
        });
        Ok(Table(index as u32))
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

    pub(super) fn known(&self, table: Table) -> Result<&TableState> {
        self.tables.get(table.0 as usize).ok_or_else(|| unknown(table))
    }
}

pub(super) fn unknown(table: Table) -> Error {
    Error::UnknownTable { table: table.0 }
}
