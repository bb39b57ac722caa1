//! The manifest of a checkpoint: its tables and files, as JSON behind a line with its checksum.
//! That of an increment names its parent, with the checksum of that one's manifest.

use serde::{Deserialize, Serialize};

use crate::table::TableSpec;

/// Version of the manifest and of the files that it names. Those before it had no checksums of
/// files.
const VERSION: u32 = 3;

/// Longest manifest.
pub(super) const BYTES_MAX: u64 = 256 << 20;

/// What is read of a manifest of any version.
#[derive(Deserialize)]
struct Versioned {
    version: u32,
}

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
    /// CRC32C of the whole file: one of another checkpoint is not taken for it.
    pub crc32c: u32,
}

impl SavedShard {
    /// The name of the file of a shard: checkpoint `number` has it of table `table`.
    pub(super) fn name(number: u64, table: usize, shard: usize) -> String {
        format!("{number}.{table}.{shard}.rows")
    }
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
        Manifest { version: VERSION, parent, tables }
    }

    pub(super) fn encode(&self) -> Result<Vec<u8>, String> {
        let json = serde_json::to_vec(self).map_err(|error| error.to_string())?;
        let mut bytes = format!("{:08x}\n", crc_fast::crc32_iscsi(&json)).into_bytes();
        bytes.extend_from_slice(&json);
        Ok(bytes)
    }

    /// The manifest of checkpoint `number`, and its checksum.
    ///
    /// # Errors
    /// The reason why these bytes are no manifest.
    pub(super) fn decode(bytes: &[u8], number: u64) -> Result<(Manifest, u32), String> {
        let (line, json) = bytes.split_at_checked(9).ok_or("the manifest is cut off")?;
        let checksum = crc_fast::crc32_iscsi(json);
        if line != format!("{checksum:08x}\n").as_bytes() {
            return Err("the manifest does not match its checksum".to_owned());
        }
        let wrong = |error: serde_json::Error| error.to_string();
        let Versioned { version } = serde_json::from_slice(json).map_err(wrong)?;
        if version != VERSION {
            let remedy = "restore it with the program that wrote it, and write it again with this";
            return Err(format!(
                "it has version {version}, this program reads {VERSION}: {remedy}"
            ));
        }
        let manifest: Manifest = serde_json::from_slice(json).map_err(wrong)?;
        if let Some(table) = manifest.tables.iter().find(|table| table.is_increment)
            && manifest.parent.is_none()
        {
            let name = &table.spec.name;
            return Err(format!("it has changes of table {name}, and names no parent"));
        }
        for (at, table) in manifest.tables.iter().enumerate() {
            for (shard, SavedShard { file, .. }) in table.shards.iter().enumerate() {
                let own = SavedShard::name(number, at, shard);
                if *file != own {
                    return Err(format!("it is of another checkpoint: it names {file}, not {own}"));
                }
            }
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

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

    use super::*;

    /// A manifest of this JSON.
    fn decoded(json: &str) -> Result<(Manifest, u32), String> {
        let line = format!("{:08x}\n", crc_fast::crc32_iscsi(json.as_bytes()));
        Manifest::decode(&[line.as_bytes(), json.as_bytes()].concat(), 7)
    }

    /// The manifest of a table with a shard in this file.
    fn manifest(file: &str) -> Manifest {
        let spec = TableSpec::new(1, "t", crate::table::ValueType::I64, 1);
        let shards = vec![SavedShard { file: file.to_owned(), ..SavedShard::default() }];
        Manifest::new(vec![SavedTable { spec, is_increment: false, shards }], None)
    }

    #[test]
    fn other_versions_are_refused_with_the_remedy() {
        for json in [r#"{"version":1,"tables":[]}"#, r#"{"version":2,"parent":{},"tables":[7]}"#] {
            let said = decoded(json).unwrap_err();
            assert!(said.contains("this program reads 3: restore it with the program"), "{said}");
        }
        decoded(r#"{"version":3,"tables":[]}"#).unwrap();
    }

    #[test]
    fn only_files_of_the_checkpoint_are_named() {
        let encoded = manifest("7.0.0.rows").encode().unwrap();
        assert_eq!(Manifest::decode(&encoded, 7).unwrap().0, manifest("7.0.0.rows"));
        for file in ["6.0.0.rows", "7.0.1.rows", "7.1.0.rows", "../7.0.0.rows", "/etc/passwd"] {
            let said = Manifest::decode(&manifest(file).encode().unwrap(), 7).unwrap_err();
            assert!(said.contains(&format!("it names {file}, not 7.0.0.rows")), "{said}");
        }
    }
}
