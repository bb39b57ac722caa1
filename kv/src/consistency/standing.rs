//! What a copy of a shard takes over of its model.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};

use super::chunk::Chunk;
use super::members::Members;

/// How far the workers of a model are, and its other state.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Standing {
    pub(crate) members: Members,
    pub(super) bound: Option<u64>,
    /// Under data-centric constraints, who has read and written what.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub(super) chunks: BTreeMap<u64, Chunk>,
}

impl Standing {
    /// That of a model that has nothing else.
    pub fn new(members: Members, bound: Option<u64>) -> Standing {
        Standing { members, bound, chunks: BTreeMap::new() }
    }
}
