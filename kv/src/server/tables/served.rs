//! What a thread serves of its tables, and how far the copies of its shards are.
//!
//! Path: codec > thread > **tables** > shard > store > answer.

use std::collections::BTreeMap;

use caravan_van::KeyRange;
use serde::{Deserialize, Serialize};

use super::chain::{Chain, log_of};
use super::moving::With;
use super::{Replica, Tables};
use crate::table::TableSpec;

/// How far the copies of a server thread's shards are, or of those of all.
#[derive(Debug, Default, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub struct Copies {
    /// Server threads that count as lost here.
    pub lost: usize,
    /// Shards of which the next thread of the chain has no whole copy, as far as this one knows.
    pub missing: usize,
    /// Copies that are coming to this thread.
    pub coming: usize,
}

/// How far the log of a shard with copies has come at a server thread.
#[doc(hidden)]
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct LogStep {
    /// Id of its table.
    pub table: u32,
    /// Its keys.
    pub range: KeyRange,
    /// The thread's place in the chain, as far as it knows; `None` if it has none any more.
    pub place: Option<usize>,
    /// Whether all rows are here.
    pub is_whole: bool,
    /// By node and incarnation of a worker, the timestamp of the last input that was applied.
    pub applied: BTreeMap<(u32, u64), u64>,
}

/// What a server thread serves of a table, in its answer to [`Op::Served`](crate::op::Op::Served).
#[derive(Debug, Serialize, Deserialize)]
pub(crate) struct Served {
    /// The table, without what its shards alone need.
    pub(crate) table: TableSpec,
    /// The first and the last key of each range that it serves, ascending.
    pub(crate) keys: Vec<(u64, u64)>,
    /// Shards of which a copy is missing after this one, also for want of a thread to have it.
    pub(crate) missing: usize,
    /// As [`Copies::coming`].
    pub(crate) coming: usize,
}

impl Served {
    /// Nothing of a table.
    pub(crate) fn none_of(table: TableSpec) -> Served {
        Served { table, keys: Vec::new(), missing: 0, coming: 0 }
    }

    /// Records keys behind all others.
    fn extend(&mut self, begin: u64, last: u64) {
        match self.keys.last_mut() {
            Some((_, end)) if end.checked_add(1) == Some(begin) => *end = last,
            _ => self.keys.push((begin, last)),
        }
    }
}

/// How far the logs of a thread's shards with copies have come.
pub(in crate::server) fn logs(tables: &Tables) -> Vec<LogStep> {
    let Tables { entries, chains, index, .. } = tables;
    let log = |entry: &Replica| {
        let chain = entry.chain.as_ref()?;
        let (place, applied) = log_of(chain, chains, *index);
        let (table, range, is_whole) = (entry.spec.id, entry.range, chain.is_whole());
        Some(LogStep { table, range, place, is_whole, applied })
    };
    entries.iter().filter_map(log).collect()
}

impl Tables {
    /// How far the copies of this thread's shards are.
    pub(in crate::server) fn copies(&self) -> Copies {
        let lost = self.chains.view.lost.len();
        self.entries.iter().fold(Copies { lost, ..Copies::default() }, |sum, entry| Copies {
            missing: sum.missing + usize::from(self.lacks_copy(entry)),
            coming: sum.coming + usize::from(self.is_coming(entry)),
            ..sum
        })
    }

    /// What this thread serves, by number of the table.
    pub(super) fn served(&self) -> BTreeMap<u32, Served> {
        let mut of_tables: BTreeMap<u32, Served> = BTreeMap::new();
        for entry in &self.entries {
            let none = || Served::none_of(entry.spec.clone());
            let served = of_tables.entry(entry.number).or_insert_with(none);
            let serves = self.serves(entry);
            let is_short = || entry.chain.as_ref().is_some_and(|it| it.is_short(&self.chains));
            served.missing += usize::from(self.lacks_copy(entry) || serves && is_short());
            served.coming += usize::from(self.is_coming(entry));
            if serves {
                served.extend(entry.range.begin(), entry.range.last());
            }
        }
        of_tables
    }

    /// Whether requests to a shard are served here.
    fn serves(&self, entry: &Replica) -> bool {
        match &entry.chain {
            Some(chain) => chain.serves(&self.chains, self.index),
            None => entry.moving.as_ref().is_none_or(|it| !matches!(it.with, With::Owner(_))),
        }
    }

    /// Whether the next thread of a shard's chain has no whole copy of it.
    fn lacks_copy(&self, entry: &Replica) -> bool {
        let Tables { chains, index, .. } = self;
        let lacks = |chain: &Chain| chain.lacks_copy(chains, *index, (entry.number, entry.range));
        entry.chain.as_ref().is_some_and(|chain| chain.is_whole() && lacks(chain))
    }

    fn is_coming(&self, entry: &Replica) -> bool {
        let chain = entry.chain.as_ref();
        chain.is_some_and(|chain| chain.is_coming(&self.chains, self.index))
    }

    /// Whether all copies of a shard are lost that would be served here: the keys of the shard.
    pub(super) fn lost_copies(&self, number: u32, key: u64) -> Option<KeyRange> {
        let spec = &self.known.get(&number).filter(|known| known.spec.replicas > 0)?.spec;
        let map = spec.placement.map(spec.range().ok()?, self.count).ok()?;
        let shard = map.shards()[map.find(key)?];
        let first = self.chains.view.chain(shard.server, spec.replicas).next();
        (first == Some(self.index)).then_some(shard.range)
    }
}

/// Why nobody serves keys of a table with copies.
pub(super) fn all_lost(keys: KeyRange, spec: &TableSpec) -> String {
    let (begin, last, copies) = (keys.begin(), keys.last(), spec.replicas);
    format!(
        "all copies of keys {begin} to {last} of table {} are lost: more servers died than its \
         copies bear ({copies}); drop the table, and restore it from a checkpoint if there is one",
        spec.name
    )
}
