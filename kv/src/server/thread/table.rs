//! A server thread's tables: how a worker's specification becomes one, and where each is found.
//!
//! Path: codec > thread (**table**) > shard > store > answer.

use caravan_van::{Account, KeyRange, Pool};

use crate::error::Result;
use crate::filter::AtServer;
use crate::server::handle::Handles;
use crate::server::shard::Shard;
use crate::table::TableSpec;

/// Most bytes that a byte of JSON takes once it is read: an object of one short name is a node with room for many.
const JSON_BYTES: usize = 128;

/// What a table takes, whatever it holds, in bytes, ...
const TABLE_BYTES: usize = 4 << 10;

/// ... and what its filters take, of which one compresses.
const FILTERS_BYTES: usize = 64 << 10;

/// A table of this thread.
pub(super) struct Entry {
    /// Without the options of its handle, which the shard has seen.
    pub(super) spec: TableSpec,
    /// All of it, as JSON.
    said: String,
    /// What these take.
    _memory: Account,
    /// `None` when there are fewer keys than threads, and none is left for this one.
    pub(super) range: Option<KeyRange>,
    pub(super) shard: Box<dyn Shard>,
    pub(super) filters: Option<Box<AtServer>>,
}

impl Entry {
    /// Checks that what is wanted is this table.
    ///
    /// # Errors
    /// Says what this one is.
    pub(super) fn check_same(&self, wanted: &Wanted) -> Result<(), String> {
        if self.said == wanted.said {
            return Ok(());
        }
        Err(format!("table {} exists and is another one: {}", self.spec.id, self.said))
    }
}

/// A table that a worker wants.
pub(super) struct Wanted {
    pub(super) spec: TableSpec,
    said: String,
    memory: Account,
}

impl Wanted {
    /// Reads a specification, if there is memory for what it may stand for.
    ///
    /// # Errors
    /// Says what is wrong with it; likewise below.
    pub(super) fn read(text: &[u8], pool: &Pool) -> Result<Wanted, String> {
        let mut memory = Account::new(pool, "the specification of a table");
        memory.set(JSON_BYTES * text.len()).map_err(|error| error.to_string())?;
        let spec: TableSpec = serde_json::from_slice(text).map_err(|error| error.to_string())?;
        let said = serde_json::to_string(&spec).map_err(|error| error.to_string())?;
        Ok(Wanted { spec, said, memory })
    }

    /// Builds the table of thread `index` of `count`.
    pub(super) fn build(
        self,
        (index, count): (usize, usize),
        handles: &Handles,
        pool: &Pool,
    ) -> Result<Entry, String> {
        let Wanted { mut spec, said, mut memory } = self;
        let whole = spec.range().map_err(|error| error.to_string())?;
        let range = whole.cut(count).nth(index);
        spec.filters.check(&spec).map_err(|error| error.to_string())?;
        // A thread without keys builds its shard all the same: commands go to every thread.
        let shard = handles.build(&spec, range, pool)?;
        let filters = AtServer::new(&spec);
        spec.options = serde_json::Value::Null;
        let filters_bytes = if filters.is_some() { FILTERS_BYTES } else { 0 };
        let texts = said.len() + 2 * spec.name.len();
        memory.set(TABLE_BYTES + filters_bytes + texts).map_err(|error| error.to_string())?;
        Ok(Entry { spec, said, _memory: memory, range, shard, filters })
    }
}

/// Where a table is among `tables`, or where it belongs.
pub(super) fn position(tables: &[Entry], id: u32) -> Result<usize, usize> {
    tables.binary_search_by_key(&id, |entry| entry.spec.id)
}

pub(super) fn find(tables: &mut [Entry], id: u32) -> Result<&mut Entry, String> {
    match position(tables, id) {
        Ok(at) => Ok(&mut tables[at]),
        Err(_) => Err(unknown(id)),
    }
}

#[cold]
pub(super) fn unknown(table: u32) -> String {
    format!("table {table} is unknown here (create it first)")
}

/// The decoder has seen to the order of the keys; this sees to their range.
pub(super) fn check_keys(keys: &[u64], range: Option<KeyRange>, table: &str) -> Result<(), String> {
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
