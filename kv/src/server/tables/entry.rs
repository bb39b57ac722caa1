//! One of a server thread's tables, built from a worker's specification.
//!
//! Path: codec > thread > **tables** > shard > store > answer.

use caravan_van::{Account, KeyRange, Pool};

use super::governor::Governor;
use crate::error::Result;
use crate::filter::AtServer;
use crate::server::handle::Handles;
use crate::server::shard::Shard;
use crate::table::{Initial, TableSpec};

/// Most bytes of memory per byte of JSON: an object of one short name takes a node with room for
/// many.
const JSON_BYTES: usize = 128;

/// Bytes of an empty table.
const TABLE_BYTES: usize = 4 << 10;

/// Bytes of a table's filters, whose compressor needs most.
const FILTERS_BYTES: usize = 64 << 10;

/// A table of this thread.
pub(in crate::server) struct Entry {
    /// Its number in messages, which no other table ever has.
    pub(in crate::server) number: u32,
    /// The specification without options and initial values, which only the shard needs.
    pub(in crate::server) spec: TableSpec,
    /// The whole specification as JSON.
    text: String,
    /// Charged for the other fields.
    _memory: Account,
    /// `None` if there are fewer keys than threads, and none for this one.
    pub(in crate::server) range: Option<KeyRange>,
    pub(in crate::server) shard: Box<dyn Shard>,
    pub(in crate::server) filters: Option<Box<AtServer>>,
    /// `None` if the table has no consistency model.
    pub(in crate::server) governor: Option<Box<Governor>>,
}

impl Entry {
    /// Checks that the wanted table is this one.
    ///
    /// # Errors
    /// A text with the specification of this table.
    pub(in crate::server) fn check_same(&self, wanted: &Wanted) -> Result<(), String> {
        if self.text == wanted.text {
            return Ok(());
        }
        Err(format!("table {} exists and is another one: {}", self.spec.id, self.text))
    }
}

/// A table that a worker wants to create.
pub(in crate::server) struct Wanted {
    pub(in crate::server) spec: TableSpec,
    text: String,
    memory: Account,
}

impl Wanted {
    /// Reads a specification, if there is memory for its content.
    ///
    /// # Errors
    /// The reason why it is invalid.
    pub(in crate::server) fn read(json: &[u8], pool: &Pool) -> Result<Wanted, String> {
        let mut memory = Account::new(pool, "the specification of a table");
        memory.set(JSON_BYTES * json.len()).map_err(|error| error.to_string())?;
        let spec: TableSpec = serde_json::from_slice(json).map_err(|error| error.to_string())?;
        let text = serde_json::to_string(&spec).map_err(|error| error.to_string())?;
        Ok(Wanted { spec, text, memory })
    }

    /// Builds the table `number` of thread `index` of `count`.
    ///
    /// # Errors
    /// The reason why the specification is invalid or cannot be built.
    pub(in crate::server) fn build(
        self,
        number: u32,
        (index, count): (usize, usize),
        handles: &Handles,
        pool: &Pool,
    ) -> Result<Entry, String> {
        let Wanted { mut spec, text, mut memory } = self;
        let whole = spec.range().map_err(|error| error.to_string())?;
        let range = whole.cut(count).nth(index);
        spec.filters.check(&spec).map_err(|error| error.to_string())?;
        spec.check_consistency().map_err(|error| error.to_string())?;
        // A thread without keys needs a shard, too: commands go to every thread.
        let shard = handles.build(&spec, range, pool)?;
        let filters = AtServer::new(&spec);
        let governor = Governor::new(&spec, range, pool)?;
        spec.options = serde_json::Value::Null;
        spec.initial = Initial::Zero;
        let filters_bytes = if filters.is_some() { FILTERS_BYTES } else { 0 };
        let texts = text.len() + 2 * (spec.name.len() + spec.namespace.len());
        memory.set(TABLE_BYTES + filters_bytes + texts).map_err(|error| error.to_string())?;
        Ok(Entry { number, spec, text, _memory: memory, range, shard, filters, governor })
    }
}

/// Checks that sorted keys are in this thread's range. The decoder has checked their order.
pub(in crate::server) fn check_keys(
    keys: &[u64],
    range: Option<KeyRange>,
    table: &str,
) -> Result<(), String> {
    let (Some(first), Some(last)) = (keys.first(), keys.last()) else { return Ok(()) };
    let outside = |key: &&u64| range.is_none_or(|range| !range.contains(**key));
    match [first, last].into_iter().find(outside) {
        None => Ok(()),
        Some(key) => {
            let here = range
                .map_or("no keys".to_owned(), |r| format!("keys {} to {}", r.begin(), r.last()));
            Err(format!("key {key} of table {table} is not this thread's, which has {here}"))
        }
    }
}
