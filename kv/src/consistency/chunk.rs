//! What the workers of a table under data-centric constraints have done to a chunk.

use serde::{Deserialize, Serialize};

/// What was read and written of a chunk.
#[derive(Debug, Clone, Default, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub(super) struct Chunk {
    /// The iteration of the last write; 0 before the first.
    pub(super) written: u64,
    pub(super) owner: Option<u32>,
    /// Ascending by worker. A map would take the memory of eleven for one.
    pub(super) readers: Vec<(u32, Reads)>,
}

/// The iterations in which a worker has read a chunk.
#[derive(Debug, Clone, Default, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub(super) struct Reads {
    /// All up to this one.
    pub(super) through: u64,
    /// Later ones, read ahead of one that is missing, ascending.
    pub(super) beyond: Vec<u64>,
}

impl Chunk {
    /// The place of a reader, or where it would be.
    pub(super) fn position(&self, worker: u32) -> Result<usize, usize> {
        self.readers.binary_search_by_key(&worker, |(reader, _)| *reader)
    }

    /// What a worker has read of it.
    pub(super) fn reads(&self, worker: u32) -> Option<&Reads> {
        self.position(worker).ok().map(|at| &self.readers[at].1)
    }
}

impl Reads {
    /// Whether it was read in an iteration.
    pub(super) fn has(&self, version: u64) -> bool {
        version <= self.through || self.beyond.binary_search(&version).is_ok()
    }

    /// Adds an iteration.
    pub(super) fn add(&mut self, version: u64) {
        if version > self.through
            && let Err(at) = self.beyond.binary_search(&version)
        {
            self.beyond.insert(at, version);
        }
        let mut through = self.through;
        let follows = |version: &&u64| {
            let is_next = through.checked_add(1) == Some(**version);
            through = if is_next { **version } else { through };
            is_next
        };
        let count = self.beyond.iter().take_while(follows).count();
        self.beyond.drain(..count);
        self.through = through;
    }
}
