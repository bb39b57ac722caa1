//! What DBPG's messages leave out: the choice as command lines say it, and the bytes that each part saves.
//!
//! Two of the filters are the algorithm's, and hold for whole columns: *screening* drops those that are 0 in every solution
//! (`screen`), and the *KKT filter* puts others out for some passes (`schedule`, `proximal`). The rest are the tables'
//! ([`caravan_kv::filter`]). With key caching a request names all columns of its block, so that the list stays the same from
//! pass to pass, and a bit a column says which are active; without, it names active columns only.
//!
//! Which numbers may lose digits:
//! * Gradients, while they lead the way: `quantize` rounds them without bias, in a range of their own. Once a pass lowers F
//!   by no more than [`LOSSLESS_FROM`], or ε, they are pushed as they are, so a run ends with exact passes alone, and no run ends without.
//! * Hessians, then, too, in two bytes a number (`correlations`): they lead the way of a polish, not where it ends.
//! * Curvatures, which differ by orders of magnitude in a block, are pushed as logarithms then, so that small ones keep their
//!   digits.
//! * Weights are told to the workers as the server has them. With `narrow` the server keeps them to 24 bits, whose last one
//!   moves F by its square.
//!
//! `skip` and `significant` are refused: a block steps on the sum of all workers' gradients and curvatures, and with a part of them
//! missing, or scaled, that is no bound of anything.

use std::str::FromStr;

use caravan_kv::Error;
use caravan_kv::filter::{Filters as TableFilters, Flow, Stage, Traffic};
use serde::{Deserialize, Serialize};

/// A pass that lowers the objective by at most this share of it is the last that may round.
pub(super) const LOSSLESS_FROM: f64 = 1e-3;

/// Which filters a run has.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Filters {
    /// Whether columns that are 0 in every solution are dropped first.
    pub screen: bool,
    /// Whether the KKT filter is on.
    pub kkt: bool,
    /// Of the table of weights, and as far as they fit of the others.
    pub table: TableFilters,
}

impl Default for Filters {
    /// Those that cost next to nothing: `screen,kkt`.
    fn default() -> Self {
        Filters { screen: true, kkt: true, table: TableFilters::NONE }
    }
}

/// What `all` stands for.
const ALL: &str = "screen,kkt,zero,narrow,quantize=2,key-cache,snappy";

impl FromStr for Filters {
    type Err = Error;

    /// Reads a list of names: `screen`, `kkt` and those of [`TableFilters`]; or `all`, or `none`.
    fn from_str(text: &str) -> Result<Self, Error> {
        let mut filters = Filters { screen: false, kkt: false, table: TableFilters::NONE };
        let mut others = Vec::new();
        let text = text.replace("all", ALL);
        for item in text.split(',').map(str::trim) {
            match item {
                "screen" => filters.screen = true,
                "kkt" => filters.kkt = true,
                _ => others.push(item),
            }
        }
        filters.table = others.join(",").parse()?;
        if filters.table.skip.is_some() || filters.table.significant.is_some() {
            return Err(Error::Config(
                "dbpg can't do with skip or significant: a block steps on the sum of all workers' gradients, which would lack some"
                    .to_owned(),
            ));
        }
        filters.table.mask |= filters.kkt && !filters.table.is_none();
        Ok(filters)
    }
}

/// Of those filters, the ones that lose nothing and fit a table of single-precision numbers whose keys come once.
pub(super) fn of_numbers(filters: &TableFilters) -> TableFilters {
    TableFilters { zero: filters.zero, snappy: filters.snappy, ..TableFilters::NONE }
}

/// Bytes of keys, numbers of values, and values on their way in both directions.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Bytes {
    pub(crate) pushed: u64,
    pub(crate) pulled: u64,
}

impl Bytes {
    fn plus(self, other: Bytes) -> Bytes {
        Bytes { pushed: self.pushed + other.pushed, pulled: self.pulled + other.pulled }
    }
}

/// What a push and a pull of columns take, for each that is named, active, or both.
const KEY: u64 = 8;
const LENGTH: u64 = 4;
const VALUE: u64 = 8;

/// What a worker has counted.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Counted {
    /// What its passes' requests and answers held.
    pub(crate) passes: Bytes,
    /// What they would have held besides, but for the KKT filter; and but for screening.
    pub(crate) kkt: Bytes,
    pub(crate) screened: Bytes,
    /// Of its tables.
    pub(crate) tables: Traffic,
    /// What its transport has sent and received.
    pub(crate) frames: Bytes,
}

impl Counted {
    /// Enters one block's push and pull: of `columns` columns, `named` of them named and `active` active; `screened` were dropped.
    pub(crate) fn block(&mut self, columns: usize, named: usize, active: usize) {
        let [columns, named, active] = [columns, named, active].map(|count| count as u64);
        let bytes = |named: u64, active: u64| Bytes {
            pushed: named * (2 * KEY + LENGTH) + active * 2 * VALUE,
            pulled: named * LENGTH + active * VALUE,
        };
        self.passes = self.passes.plus(bytes(named, active));
        self.kkt = self.kkt.plus(bytes(columns - named, columns - active));
    }

    /// Enters the columns of a pass that were dropped before.
    pub(crate) fn dropped(&mut self, columns: u64) {
        self.screened.pushed += columns * (2 * KEY + LENGTH + 2 * VALUE);
        self.screened.pulled += columns * (LENGTH + VALUE);
    }

    /// What several have counted.
    pub(crate) fn plus(self, other: &Counted) -> Counted {
        Counted {
            passes: self.passes.plus(other.passes),
            kkt: self.kkt.plus(other.kkt),
            screened: self.screened.plus(other.screened),
            tables: self.tables.plus(&other.tables),
            frames: self.frames.plus(other.frames),
        }
    }

    /// Stage by stage, as they are gone through, down to what the transport carried.
    pub(crate) fn rows(&self, filters: &Filters) -> Vec<FilterTraffic> {
        let Traffic { sent, received } = &self.tables;
        let counted = Bytes { pushed: sent[0].bytes_in, pulled: received[0].bytes_in };
        // Tables without filters count nothing.
        let mut bytes = if filters.table.is_none() { self.passes } else { counted };
        let mut rows = Vec::new();
        for (name, left_out) in [("kkt", self.kkt), ("screen", self.screened)] {
            let before = bytes.plus(left_out);
            rows.push(FilterTraffic::new(name, before, bytes));
            bytes = before;
        }
        rows.reverse();
        let mut end = rows.last().map_or(bytes, |row| row.after());
        if !filters.table.is_none() {
            for stage in Stage::ALL {
                let [sent, received] =
                    [sent, received].map(|flows: &[Flow; 8]| flows[stage as usize]);
                let before = Bytes { pushed: sent.bytes_in, pulled: received.bytes_in };
                end = Bytes { pushed: sent.bytes_out, pulled: received.bytes_out };
                rows.push(FilterTraffic::new(stage.name(), before, end));
            }
        }
        rows.push(FilterTraffic::new("frames", end, self.frames));
        rows.push(FilterTraffic::new("all", bytes, self.frames));
        rows.retain(|row| row.filter == "frames" || row.before() != row.after());
        rows
    }
}

/// What one filter has made of the messages of all workers, and of all servers.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct FilterTraffic {
    /// `screen`, `kkt`, a stage of the tables' filters; `frames`, where headers, commands and answers that say nothing are added, and what is sent beside; `all`, from
    /// the first to the last.
    pub filter: &'static str,
    /// Bytes from workers before it.
    pub worker_bytes_in: u64,
    /// And behind it.
    pub worker_bytes_out: u64,
    /// Bytes from servers before it.
    pub server_bytes_in: u64,
    /// And behind it.
    pub server_bytes_out: u64,
}

impl FilterTraffic {
    fn new(filter: &'static str, before: Bytes, after: Bytes) -> Self {
        FilterTraffic {
            filter,
            worker_bytes_in: before.pushed,
            worker_bytes_out: after.pushed,
            server_bytes_in: before.pulled,
            server_bytes_out: after.pulled,
        }
    }

    fn before(&self) -> Bytes {
        Bytes { pushed: self.worker_bytes_in, pulled: self.server_bytes_in }
    }

    fn after(&self) -> Bytes {
        Bytes { pushed: self.worker_bytes_out, pulled: self.server_bytes_out }
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, reason = "tests")]
    use super::*;

    #[test]
    fn lists_name_the_algorithms_filters_and_the_tables() {
        let all: Filters = "all".parse().unwrap();
        assert!(all.screen && all.kkt && all.table.mask && all.table.key_cache);
        let none: Filters = "none".parse().unwrap();
        assert!(!none.screen && !none.kkt && none.table.is_none());
        assert_eq!("kkt,screen".parse::<Filters>().unwrap(), Filters::default());
        let rounded: Filters = "all,quantize=3".parse().unwrap();
        assert_eq!(rounded.table.quantize, Some(3));
        for refused in ["skip=0.5", "all,significant=1", "kkt,wall"] {
            assert!(refused.parse::<Filters>().is_err(), "{refused}");
        }
    }

    #[test]
    fn stages_begin_where_those_before_end() {
        let mut counted = Counted::default();
        counted.dropped(10);
        counted.block(8, 3, 2);
        counted.frames = Bytes { pushed: 300, pulled: 100 };
        let rows = counted.rows(&Filters::default());
        let workers: Vec<_> = rows
            .iter()
            .map(|row| (row.filter, row.worker_bytes_in, row.worker_bytes_out))
            .collect();
        let (active, named) = (2 * 16, 3 * 20);
        let all = 8 * 36 + 10 * 36;
        assert_eq!(
            workers,
            [
                ("screen", all, 8 * 36),
                ("kkt", 8 * 36, active + named),
                ("frames", active + named, 300),
                ("all", all, 300)
            ]
        );
    }
}
