//! What a thread serves of its tables, and how far the copies of its shards are.
//!
//! Path: codec > thread > **tables** > shard > store > answer.

use std::collections::BTreeMap;

use caravan_van::KeyRange;
use serde::{Deserialize, Serialize};

use super::chain::{CopyState, log_of};
use super::moving::{Moving, With};
use super::{Replica, Tables, Trouble};
use crate::membership::ChainOf;
use crate::refusal::{Refusal, Refused};
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
    /// Of how many changes of the servers and of chains it has heard.
    pub heard: usize,
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
    /// The first keys of shards whose next thread has no whole copy, and whether it can have none.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub(crate) lacking: Vec<(u64, bool)>,
}

impl Served {
    /// Nothing of a table.
    pub(crate) fn none_of(table: TableSpec) -> Served {
        Served { table, keys: Vec::new(), missing: 0, coming: 0, lacking: Vec::new() }
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
        let heard = chains.view.events.len();
        Some(LogStep { table, range, place, is_whole, heard, applied })
    };
    entries.iter().filter_map(log).collect()
}

impl Tables {
    /// How far the copies of this thread's shards are.
    pub(in crate::server) fn copies(&self) -> Copies {
        let lost = self.chains.view.lost.len();
        let states = self.entries.iter().map(|entry| self.state(entry));
        states.fold(Copies { lost, ..Copies::default() }, |sum, state| Copies {
            missing: sum.missing + usize::from(state.lacks_copy),
            coming: sum.coming + usize::from(state.is_coming),
            ..sum
        })
    }

    /// What this thread serves, by number of the table.
    pub(super) fn served(&self) -> BTreeMap<u32, Served> {
        let mut of_tables: BTreeMap<u32, Served> = BTreeMap::new();
        for entry in &self.entries {
            let none = || Served::none_of(entry.spec.clone());
            let served = of_tables.entry(entry.number).or_insert_with(none);
            let state = self.state(entry);
            served.missing += usize::from(state.lacks_copy || state.serves && state.is_short);
            served.coming += usize::from(state.is_coming);
            if state.lacks_copy {
                served.lacking.push((entry.range.begin(), state.has_failed));
            }
            if state.serves {
                served.extend(entry.range.begin(), entry.range.last());
            }
        }
        of_tables
    }

    /// How a shard is here.
    fn state(&self, entry: &Replica) -> CopyState {
        let Tables { chains, index, .. } = self;
        match &entry.chain {
            Some(chain) => chain.state(chains, *index, (entry.number, entry.range)),
            None => {
                let comes = |it: &Moving| matches!(it.with, With::Owner(_));
                let serves = entry.moving.as_ref().is_none_or(|it| !comes(it));
                CopyState { serves, ..CopyState::default() }
            }
        }
    }
}

/// The shard with copies that has a key of a table, and its keys.
fn chain_of(tables: &Tables, number: u32, key: u64) -> Option<(ChainOf, KeyRange)> {
    let spec = &tables.known.get(&number).filter(|known| known.spec.replicas > 0)?.spec;
    let map = spec.placement.map(spec.range().ok()?, tables.count).ok()?;
    let shard = map.shards()[map.find(key)?];
    Some((shard.chain(number, spec.replicas), shard.range))
}

/// Why a shard with copies is not here: its chain begins elsewhere, or all copies are lost.
pub(super) fn missing_copy(tables: &Tables, number: u32, key: u64) -> Option<Trouble> {
    let (of, range) = chain_of(tables, number, key)?;
    let view = &tables.chains.view;
    match view.chain(of).next() == Some(tables.index) {
        true => Some(Trouble::Refused(all_lost(range, &tables.known[&number].spec))),
        false => view.has_entry(of).then_some(Trouble::Elsewhere),
    }
}

/// Why nobody serves keys of a table with copies.
pub(super) fn all_lost(keys: KeyRange, spec: &TableSpec) -> Refused {
    let (begin, last, copies) = (keys.begin(), keys.last(), spec.replicas);
    Refusal::Lost.because(format!(
        "all copies of keys {begin} to {last} of table {} are lost: more servers died than its \
         copies bear ({copies}); drop the table, and restore it from a checkpoint if there is one",
        spec.name
    ))
}
