//! The manifest of a checkpoint: its tables and files, as JSON behind a line with its checksum.
//! That of an increment names its parent, with the checksum of that one's manifest.

use serde::{Deserialize, Serialize};

use crate::table::TableSpec;

/// Version of the manifest and of the files that it names, of a checkpoint without a parent.
const VERSION: u32 = 1;

/// Version of those of an increment.
const VERSION_OF_INCREMENTS: u32 = 2;

/// The tables of a checkpoint, and their files.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Manifest {
    version: u32,
    /// The checkpoint to whose rows those of tables are changes; `None` if it stands alone.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub parent: Option<Parent>,
    /// The tables.
    pub tables: Vec<SavedTable>,
}

/// The checkpoint that an increment is based on.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Parent {
    /// Its number.
    pub number: u64,
    /// Checksum of its manifest: another checkpoint of the number is not taken for it.
    pub checksum: u32,
}

/// A table of a checkpoint.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct SavedTable {
    /// Its whole specification.
    pub spec: TableSpec,
    /// Whether its files have what changed since the parent of the checkpoint, not all rows.
    #[serde(default, skip_serializing_if = "is_false")]
    pub is_increment: bool,
    /// Its shards, in order of their keys.
    pub shards: Vec<SavedShard>,
}

/// A shard of a table, in a file of its own.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct SavedShard {
    /// The name of its file.
    pub file: String,
    /// Number of rows in it.
    pub rows: u64,
    /// Number of tombstones in it: keys of rows that went since the parent.
    #[serde(default, skip_serializing_if = "is_zero")]
    pub gone: u64,
    /// Length of the file.
    pub bytes: u64,
}

#[allow(clippy::trivially_copy_pass_by_ref, reason = "serde passes references")]
fn is_false(flag: &bool) -> bool {
    !flag
}

#[allow(clippy::trivially_copy_pass_by_ref, reason = "serde passes references")]
fn is_zero(count: &u64) -> bool {
    *count == 0
}

impl Manifest {
    pub(super) fn new(tables: Vec<SavedTable>, parent: Option<Parent>) -> Manifest {
        Manifest { version: version(parent.is_some()), parent, tables }
    }

    pub(super) fn encode(&self) -> Result<Vec<u8>, String> {
        let json = serde_json::to_vec(self).map_err(|error| error.to_string())?;
        let mut bytes = format!("{:08x}\n", crc_fast::crc32_iscsi(&json)).into_bytes();
        bytes.extend_from_slice(&json);
        Ok(bytes)
    }

    /// The manifest, and its checksum.
    ///
    /// # Errors
    /// The reason why these bytes are no manifest.
    pub(super) fn decode(bytes: &[u8]) -> Result<(Manifest, u32), String> {
        let (line, json) = bytes.split_at_checked(9).ok_or("the manifest is cut off")?;
        let checksum = crc_fast::crc32_iscsi(json);
        if line != format!("{checksum:08x}\n").as_bytes() {
            return Err("the manifest does not match its checksum".to_owned());
        }
        let manifest: Manifest = serde_json::from_slice(json).map_err(|error| error.to_string())?;
        let version = version(manifest.parent.is_some());
        if manifest.version != version {
            let other = manifest.version;
            return Err(format!("it has version {other}, and this program reads {version}"));
        }
        if let Some(table) = manifest.tables.iter().find(|table| table.is_increment)
            && manifest.parent.is_none()
        {
            let name = &table.spec.name;
            return Err(format!("it has changes of table {name}, and names no parent"));
        }
        Ok((manifest, checksum))
    }

    /// All shards of all tables.
    pub fn shards(&self) -> impl Iterator<Item = &SavedShard> {
        self.tables.iter().flat_map(|table| &table.shards)
    }

    /// The table of this number and namespace, if its specification is the same.
    pub(super) fn table(&self, spec: &TableSpec) -> Option<&SavedTable> {
        self.tables.iter().find(|table| table.spec == *spec)
    }
}

/// The version of a checkpoint with or without a parent.
fn version(has_parent: bool) -> u32 {
    if has_parent { VERSION_OF_INCREMENTS } else { VERSION }
}
