//! The tail-feature filter: drops features that few examples have, before anything else.
//!
//! In click logs most features occur once or twice. They cost memory and messages, and are worth
//! almost nothing. Only all workers together know how many examples have a feature, and an exact
//! table of that would be as large as the savings. So
//!
//! 1. each worker pushes the count of each of its features, up to 255, and servers add them up in a
//!    sketch ([`CountMin`]);
//! 2. each worker pulls the counts of features that are not frequent by its own count, and drops
//!    those not above the limit.
//!
//! All workers finish the first step before any starts the second. A sketch may overestimate and
//! never underestimates, so some rare features stay and no frequent one is dropped. Which ones stay
//! depends on the size of the sketch and the cut of keys over servers, not on the order of arrival.
//!
//! This changes the objective to that of the remaining features. But for an unweighted set without
//! values, a feature in at most λ examples is 0 in every solution (`dbpg::screen`), so up to
//! that limit the objective is the same.
//!
//! Place: load > **tail** > screening > blocks. Li et al.'s code, OSDI 2014, has this as its
//! frequency filter.

use caravan_kv::filter::Filters;
use caravan_kv::{Table, TableSpec, ValueType, Worker};
use caravan_van::KeyRange;

use super::{CountMin, HANDLE, Options};

/// Id of the table of counts.
const TABLE: u32 = 4;

/// Fewest cells of a server thread.
const CELLS_MIN: f64 = 64.0;

/// Most cells per feature.
const RATIO_MAX: f64 = 1e6;

/// Which features are too rare to keep, and how exactly they are counted.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Tail {
    /// Features of at most this many examples are dropped; below 255.
    pub frequency: u8,
    /// Hash functions of the sketch, 1 to 30.
    pub hashes: u8,
    /// Cells of the sketch per feature, as in [`CountMin::cells_for`].
    pub ratio: f64,
}

impl Tail {
    /// Two hash functions, and about two cells per feature.
    pub fn new(frequency: u8) -> Self {
        Tail { frequency, hashes: 2, ratio: 2.0 }
    }

    /// Refuses invalid settings, with the reason.
    pub(crate) fn check(&self) -> caravan_kv::Result<()> {
        let Tail { frequency, hashes, ratio } = *self;
        let wrong = |what: String| Err(caravan_kv::Error::Config(what));
        match () {
            () if frequency == u8::MAX => wrong(format!(
                "features are counted up to 255, so none is in more than {frequency} examples: take 254 or less"
            )),
            () if !(1..=Options::HASHES_MAX).contains(&hashes) => wrong(format!(
                "a sketch takes 1 to {} hash functions, not {hashes}",
                Options::HASHES_MAX
            )),
            () if !(ratio > 0.0 && ratio <= RATIO_MAX) => wrong(format!(
                "cells a feature must be a number above 0 and at most {RATIO_MAX}, not {ratio:e}"
            )),
            () => Ok(()),
        }
    }

    /// A table for keys of this range, of `workers` workers with up to `columns` features each, on
    /// this many server threads.
    pub(crate) fn table(
        &self,
        keys: KeyRange,
        workers: usize,
        columns: u64,
        servers: usize,
        filters: Filters,
    ) -> caravan_kv::Result<TableSpec> {
        let cells = CountMin::cells_for(workers, columns, self.ratio) / servers.max(1) as f64;
        if cells > Options::BYTES_MAX as f64 {
            return Err(caravan_kv::Error::Config(format!(
                "{} cells for each of up to {columns} features come to {cells:.1e} bytes on each of {servers} server threads: take fewer cells, or more servers",
                self.ratio
            )));
        }
        let options = Options { cells: cells.max(CELLS_MIN) as u64, hashes: self.hashes };
        let spec = TableSpec::new(TABLE, "counts", ValueType::U8, 1).keys(keys).handle(HANDLE);
        Ok(spec.filters(filters).options(serde_json::to_value(options)?))
    }
}

/// Step 1: pushes the count of each column, up to 255. `counts: [keys]`.
pub(crate) fn count(
    worker: &mut Worker,
    table: Table,
    keys: &[u64],
    counts: &[u8],
) -> caravan_kv::Result<()> {
    let pushed = worker.push(table, keys, counts)?;
    worker.wait(pushed).map(drop)
}

/// Step 2: the keys of columns in more than `frequency` rows of all workers together.
pub(crate) fn frequent(
    worker: &mut Worker,
    table: Table,
    keys: &[u64],
    counts: &[u8],
    frequency: u8,
) -> caravan_kv::Result<Vec<u64>> {
    let own = || keys.iter().zip(counts);
    let unsure = own().filter(|(_, count)| **count <= frequency);
    let unsure: Vec<u64> = unsure.map(|(key, _)| *key).collect();
    let pulled = worker.pull(table, &unsure)?;
    let answer = worker.wait(pulled)?;
    let mut all = answer.values::<u8>().iter();
    let kept = own().filter(|(_, count)| {
        **count > frequency || all.next().is_some_and(|count| *count > frequency)
    });
    Ok(kept.map(|(key, _)| *key).collect())
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

    use super::*;

    #[test]
    fn what_makes_no_sense_is_refused_with_the_reason() {
        for (tail, says) in [
            (Tail::new(255), "254 or less"),
            (Tail { hashes: 0, ..Tail::new(4) }, "1 to 30"),
            (Tail { hashes: 31, ..Tail::new(4) }, "1 to 30"),
            (Tail { ratio: f64::NAN, ..Tail::new(4) }, "above 0"),
        ] {
            let said = tail.check().unwrap_err().to_string();
            assert!(said.contains(says), "{said}");
        }
        let huge = Tail { ratio: 1e9, ..Tail::new(4) };
        let said = huge.table(KeyRange::ALL, 2, 1000, 1, Filters::NONE).unwrap_err().to_string();
        assert!(said.contains("fewer cells"), "{said}");
    }

    #[test]
    fn servers_share_the_cells() {
        let cells = |servers, columns| {
            let spec = Tail::new(4).table(KeyRange::ALL, 1, columns, servers, Filters::NONE);
            serde_json::from_value::<Options>(spec.unwrap().options).unwrap().cells
        };
        assert_eq!(cells(1, 1000), 2885);
        assert_eq!(cells(4, 1000), 721);
        assert_eq!(cells(4, 1), 64);
    }
}
