//! Chains that are others than their tables' placement says.
//!
//! A chain changes in one way: threads join it at its end, and leave it from wherever they are. So
//! those that stay keep their order, and the log of each stays a prefix of that of the thread
//! before it. A thread that has left a chain and joins it again begins anew: its place in an entry
//! says since which change it has it.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};

/// A shard with copies, of whose chain somebody speaks.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct ChainOf {
    /// Number of its table.
    pub(crate) table: u32,
    /// Its first key.
    pub(crate) begin: u64,
    /// The thread to which the shard was given first.
    pub(crate) first: usize,
    pub(crate) replicas: u32,
}

/// A thread of a chain.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct ChainMember {
    pub(crate) thread: usize,
    /// The change since which it is in the chain without a break; 0 if it is since the placement.
    pub(crate) since: u64,
}

/// The chain of a shard from a change on. Threads of it that are lost leave it without another
/// change, and those that have to stand in for them follow behind.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct ChainEntry {
    /// Number of its table.
    pub(crate) table: u32,
    /// Its first key.
    pub(crate) begin: u64,
    /// Its threads, in their order.
    pub(crate) members: Vec<ChainMember>,
}

/// The last entry of each shard that has one, and the number of its change, from 1.
#[derive(Debug, Default, Clone, PartialEq, Eq)]
pub(crate) struct ChainEntries(BTreeMap<(u32, u64), (u64, ChainEntry)>);

impl ChainEntries {
    /// Records the entries of the change of this number, from 1 on.
    pub(super) fn enter(&mut self, number: u64, entries: &[ChainEntry]) {
        for entry in entries {
            self.0.insert((entry.table, entry.begin), (number, entry.clone()));
        }
    }

    /// The threads of a shard's entry, and the number of its change.
    pub(super) fn get(&self, of: ChainOf) -> Option<(&[ChainMember], u64)> {
        let (number, entry) = self.0.get(&(of.table, of.begin))?;
        Some((&entry.members, *number))
    }
}
