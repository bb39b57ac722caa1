//! What a table is: its keys, its values, and the rule by which servers apply pushes to it.

use caravan_van::{KeyRange, Value};
use serde::{Deserialize, Serialize};

use crate::error::{Error, Result};
use crate::filter::Filters;

/// Element type of a table's values.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
#[allow(missing_docs, reason = "the names say it")]
pub enum ValueType {
    F32,
    F64,
    I32,
    I64,
}

impl ValueType {
    /// Size of one value in bytes.
    pub fn bytes(self) -> usize {
        match self {
            ValueType::F32 | ValueType::I32 => 4,
            ValueType::F64 | ValueType::I64 => 8,
        }
    }

    /// What stands for the type on the wire.
    pub fn code(self) -> u8 {
        match self {
            ValueType::F32 => f32::CODE,
            ValueType::F64 => f64::CODE,
            ValueType::I32 => i32::CODE,
            ValueType::I64 => i64::CODE,
        }
    }

    /// As in Rust.
    pub fn name(self) -> &'static str {
        match self {
            ValueType::F32 => f32::NAME,
            ValueType::F64 => f64::NAME,
            ValueType::I32 => i32::NAME,
            ValueType::I64 => i64::NAME,
        }
    }
}

/// How a shard keeps its rows.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Store {
    /// A row for every key of the range, zero at first.
    Dense,
    /// Rows for the keys that were pushed; others read as zero.
    Sparse,
}

/// All that nodes must agree on about a table. Whoever creates it first decides; others must ask for the same.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct TableSpec {
    /// Its number in messages.
    pub id: u32,
    /// For people.
    pub name: String,
    /// First key.
    pub begin: u64,
    /// One past the last key; 0 stands for 2^64. The range is cut evenly among the server threads.
    pub end: u64,
    /// Element type.
    pub value: ValueType,
    /// Values a key; 0 when every key has its own number of them.
    pub width: u32,
    /// How rows are kept.
    pub store: Store,
    /// Name of the update rule: `add`, `assign`, or one that the servers registered.
    pub handle: String,
    /// Settings of the update rule.
    pub options: serde_json::Value,
    /// What makes its messages smaller.
    #[serde(default, skip_serializing_if = "Filters::is_none")]
    pub filters: Filters,
}

impl TableSpec {
    /// A sparse table over all keys with `width` values of type `value` a key, to which pushes are added.
    pub fn new(id: u32, name: &str, value: ValueType, width: u32) -> Self {
        TableSpec {
            id,
            name: name.to_owned(),
            begin: 0,
            end: 0,
            value,
            width,
            store: Store::Sparse,
            handle: "add".to_owned(),
            options: serde_json::Value::Null,
            filters: Filters::NONE,
        }
    }

    /// The same table with keys `[begin, end)` only.
    pub fn keys(mut self, range: KeyRange) -> Self {
        (self.begin, self.end) = (range.begin(), range.end());
        self
    }

    /// The same table with a row for every key from the start.
    pub fn dense(mut self) -> Self {
        self.store = Store::Dense;
        self
    }

    /// The same table with another update rule.
    pub fn handle(mut self, name: &str) -> Self {
        self.handle = name.to_owned();
        self
    }

    /// The same table with settings for its update rule.
    pub fn options(mut self, options: serde_json::Value) -> Self {
        self.options = options;
        self
    }

    /// The same table with filters; [`Filters::check`] says which it can have.
    pub fn filters(mut self, filters: Filters) -> Self {
        self.filters = filters;
        self
    }

    /// The key range.
    ///
    /// # Errors
    /// [`Error::Config`] when it is empty.
    pub fn range(&self) -> Result<KeyRange> {
        KeyRange::new(self.begin, self.end).ok_or_else(|| {
            Error::Config(format!(
                "table {} has no keys: [{}, {})",
                self.name, self.begin, self.end
            ))
        })
    }

    /// Bytes of one row; 0 when rows have their own lengths.
    pub fn row_bytes(&self) -> usize {
        self.width as usize * self.value.bytes()
    }
}
