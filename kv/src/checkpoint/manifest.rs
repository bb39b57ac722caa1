//! The manifest of a checkpoint: its tables and files, as JSON behind a line with its checksum.

use serde::{Deserialize, Serialize};

use crate::table::TableSpec;

/// Version of the manifest and of the files that it names.
const VERSION: u32 = 1;

/// The tables of a checkpoint, and their files.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Manifest {
    version: u32,
    /// The tables.
    pub tables: Vec<SavedTable>,
}

/// A table of a checkpoint.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct SavedTable {
    /// Its whole specification.
    pub spec: TableSpec,
    /// Its shards, in order of their keys.
    pub shards: Vec<SavedShard>,
}

/// A shard of a table, in a file of its own.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct SavedShard {
    /// The name of its file.
    pub file: String,
    /// Number of rows.
    pub rows: u64,
    /// Length of the file.
    pub bytes: u64,
}

impl Manifest {
    pub(super) fn new(tables: Vec<SavedTable>) -> Manifest {
        Manifest { version: VERSION, tables }
    }

    pub(super) fn encode(&self) -> Result<Vec<u8>, String> {
        let json = serde_json::to_vec(self).map_err(|error| error.to_string())?;
        let mut bytes = format!("{:08x}\n", crc_fast::crc32_iscsi(&json)).into_bytes();
        bytes.extend_from_slice(&json);
        Ok(bytes)
    }

    /// # Errors
    /// The reason why these bytes are no manifest.
    pub(super) fn decode(bytes: &[u8]) -> Result<Manifest, String> {
        let (line, json) = bytes.split_at_checked(9).ok_or("the manifest is cut off")?;
        if line != format!("{:08x}\n", crc_fast::crc32_iscsi(json)).as_bytes() {
            return Err("the manifest does not match its checksum".to_owned());
        }
        let manifest: Manifest = serde_json::from_slice(json).map_err(|error| error.to_string())?;
        match manifest.version {
            VERSION => Ok(manifest),
            other => Err(format!("it has version {other}, and this program reads {VERSION}")),
        }
    }

    /// All shards of all tables.
    pub fn shards(&self) -> impl Iterator<Item = &SavedShard> {
        self.tables.iter().flat_map(|table| &table.shards)
    }
}
