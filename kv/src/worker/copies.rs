//! How the copies of shards are, as a worker hears it from all server threads.
//!
//! Path: **worker** > slicer > filter > message > codec > endpoint > transport.

use std::collections::BTreeMap;

use caravan_van::KeyRange;

use super::Worker;
use crate::error::{Error, Result};
use crate::node::within;
use crate::op::Op;
use crate::server::{Copies, Served};
use crate::table::TableSpec;

/// How often servers are asked who serves a shard: one that moves meanwhile may be missed.
const LOOKS: usize = 3;

/// How the copies of a table are.
#[derive(Debug, Clone, PartialEq)]
pub struct TableCopies {
    /// The table; without options and initial values where nobody else knows it any more.
    pub table: TableSpec,
    /// Shards that lack a copy, also where too few servers are left.
    pub missing: usize,
    /// Copies that are on their way.
    pub coming: usize,
    /// Keys that no server has any more, ascending: all copies are lost, or the table has none.
    pub lost: Vec<KeyRange>,
}

/// How far the copies of all shards are that have some, when all server threads know what this
/// worker knows of who is lost and who leaves.
///
/// # Errors
/// [`Error::ServerLost`]; as [`Worker::wait`].
pub(super) fn of_all(worker: &mut Worker) -> Result<Copies> {
    let each: Vec<Copies> = worker.ask_all(Op::Copies)?;
    Ok(each.into_iter().fold(Copies::default(), |sum, copies| Copies {
        lost: sum.lost.max(copies.lost),
        missing: sum.missing + copies.missing,
        coming: sum.coming + copies.coming,
    }))
}

/// How the copies of each table of a namespace are, and of those within it. The empty namespace
/// has all tables within it. Where no founder is left that knows all of them, they are those of
/// which a server has something.
///
/// # Errors
/// As [`of_all`].
pub(super) fn of_tables(worker: &mut Worker, namespace: &str) -> Result<Vec<TableCopies>> {
    let namespace = within(&worker.namespace, namespace);
    let mut tables: BTreeMap<u32, Served> = match worker.tables_within(&namespace) {
        Ok(tables) => tables.into_iter().map(|(at, it)| (at, Served::none_of(it))).collect(),
        Err(Error::NodeLost { .. }) => BTreeMap::new(),
        Err(error) => return Err(error),
    };
    for _ in 0..LOOKS {
        // Copies are as they are now; keys are served if they are at any look.
        tables.values_mut().for_each(|of| (of.missing, of.coming) = (0, 0));
        let each: Vec<BTreeMap<u32, Served>> = worker.ask_all(Op::Served)?;
        let is_meant = |of: &Served| namespace.is_empty() || of.table.is_within(&namespace);
        for (number, here) in each.into_iter().flatten().filter(|(_, of)| is_meant(of)) {
            let none = || Served::none_of(here.table);
            let sum = tables.entry(number).or_insert_with(none);
            sum.keys.extend(here.keys);
            sum.missing += here.missing;
            sum.coming += here.coming;
        }
        tables.values_mut().for_each(|of| of.keys.sort_unstable());
        let is_whole = |of: &Served| Ok(unserved(of.table.range()?, &of.keys).is_empty());
        let whole: Result<Vec<bool>> = tables.values().map(is_whole).collect();
        if whole?.iter().all(|is_whole| *is_whole) {
            break;
        }
    }
    let copies = tables.into_values().map(|Served { table, keys, missing, coming, .. }| {
        Ok(TableCopies { lost: unserved(table.range()?, &keys), table, missing, coming })
    });
    copies.collect()
}

/// The keys of a table that nobody serves. What is served is in ascending order.
fn unserved(range: KeyRange, served: &[(u64, u64)]) -> Vec<KeyRange> {
    let mut left = Vec::new();
    // The first key that is not known to be served; `None` behind the last one of all.
    let mut next = Some(range.begin());
    for &(begin, last) in served {
        let Some(from) = next else { break };
        left.extend(KeyRange::new(from, begin).filter(|_| from < begin));
        next = last.checked_add(1).map(|behind| behind.max(from));
    }
    let rest = next.filter(|from| *from <= range.last());
    left.extend(rest.and_then(|from| KeyRange::new(from, range.end())));
    left
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, reason = "tests")]
    use super::*;

    type Keys = &'static [(u64, u64)];

    #[test]
    fn gaps_between_what_is_served_are_found() {
        let all = KeyRange::new(0, 0).unwrap(); // every key there is
        let few = KeyRange::new(10, 100).unwrap();
        let cases: [(KeyRange, Keys, Keys); 8] = [
            (few, &[], &[(10, 99)]),
            (few, &[(10, 99)], &[]),
            (few, &[(10, 49), (50, 99)], &[]),
            (few, &[(10, 49), (51, 99)], &[(50, 50)]),
            (few, &[(20, 29), (20, 29), (40, 49)], &[(10, 19), (30, 39), (50, 99)]),
            (few, &[(10, 60), (20, 29)], &[(61, 99)]),
            (all, &[(0, u64::MAX)], &[]),
            (all, &[(1, u64::MAX - 1)], &[(0, 0), (u64::MAX, u64::MAX)]),
        ];
        for (range, keys, gaps) in cases {
            let found = unserved(range, keys);
            let found: Vec<_> = found.iter().map(|it| (it.begin(), it.last())).collect();
            assert_eq!(found, gaps, "{keys:?}");
        }
    }
}
