//! The filters of DBPG's messages: their text form in command lines, and the bytes that each saves.
//!
//! Four of the filters are the algorithm's. Two omit whole columns: *screening* drops those that
//! are 0 in every solution (`screen`), and the *KKT filter* excludes others for some passes
//! (`schedule`, `coordinates`). Two hold for a pass:
//!
//! * *Random skip*: each active column takes part in a pass with some probability. The tables'
//!   filter of that name draws for each sender and scales what it sends; but a sum that misses some
//!   terms and scales others bounds no step. So workers and servers draw alike here, from the seed,
//!   the task and the key: nobody sends a skipped column and its weight stays, and all others step
//!   as usual. A block's bound holds for any part of the block.
//! * *Significantly modified*: a worker sends the change of a column's gradient and curvature since
//!   it last did, once one of them has moved by T / t in pass t, counted from 1. Servers sum all
//!   changes received, and step on these sums. They are no bound, but close to one: with W workers
//!   each sum is off by less than W T / t. That is the condition of NIPS 2014, theorem 2.
//!
//! The others belong to the tables ([`caravan_kv::filter`]). With key caching a request names all
//! columns of its block, so that the list stays the same from pass to pass, and a bit per column
//! marks the active ones; without it, a request names active columns only.
//!
//! Lossy filters apply at the beginning of a run, not at its end: once a pass lowers F by at most
//! [`LOSSLESS_FROM`] or ε, all later passes are exact, and only an exact pass ends a run. Until
//! then
//!
//! * gradients and curvatures are omitted as above, or with `quantize` rounded without bias, each
//!   in a range of its own. Curvatures, which differ by orders of magnitude within a block, are
//!   then pushed as logarithms, so that small ones keep their digits.
//! * Workers receive weights as the server has them. With `narrow` the server keeps 24 bits of
//!   them; an error in the last bit changes F by its square.
//!
//! [`Filters::check`] lists combinations that do not work.

use std::str::FromStr;

use caravan_kv::filter::{Draws, Filters as TableFilters, Flow, Stage, Traffic};
use caravan_kv::{Error, Refused};
use serde::{Deserialize, Serialize};

use crate::copies::image::{Reader, Writer};

/// A pass that lowers the objective by at most this share of it is the last lossy one.
pub(super) const LOSSLESS_FROM: f64 = 1e-3;

/// The filters of a run.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Filters {
    /// Whether columns that are 0 in every solution are dropped first.
    pub screen: bool,
    /// Whether the KKT filter is on.
    pub kkt: bool,
    /// Probability that a column takes part in a pass, in (0, 1]; all do if `None`.
    pub skip: Option<f64>,
    /// T: a column's numbers are sent again once they have moved by T / t in pass t.
    pub significant: Option<f64>,
    /// Filters of the table of weights and, where they fit, of the others; without `skip` and
    /// `significant`, which are the two above.
    pub table: TableFilters,
}

impl Default for Filters {
    /// Those that cost almost nothing: `screen,kkt`.
    fn default() -> Self {
        Filters { screen: true, kkt: true, ..Filters::NONE }
    }
}

/// The list that `all` stands for.
const ALL: &str = "screen,kkt,zero,narrow,quantize=2,key-cache,snappy";

impl FromStr for Filters {
    type Err = Error;

    /// Parses a list of names: `screen`, `kkt` and those of [`TableFilters`]; or `all`, or `none`.
    fn from_str(text: &str) -> Result<Self, Error> {
        let mut filters = Filters::NONE;
        let mut others = Vec::new();
        let items = text.split(',').map(str::trim);
        for item in items.flat_map(|item| if item == "all" { ALL } else { item }.split(',')) {
            match item {
                "screen" => filters.screen = true,
                "kkt" => filters.kkt = true,
                _ if TableFilters::knows(item) => others.push(item),
                _ => {
                    return Err(Error::Config(format!(
                        "there is no filter {item}; there are screen, kkt, {}, and the lists all and none",
                        TableFilters::NAMES.join(", ")
                    )));
                }
            }
        }
        filters.table = others.join(",").parse()?;
        filters.skip = filters.table.skip.take();
        filters.significant = filters.table.significant.take();
        filters.table.mask |= filters.kkt && !filters.table.is_none();
        filters.check(false)?;
        Ok(filters)
    }
}

impl Filters {
    /// No filter.
    pub const NONE: Filters = Filters {
        screen: false,
        kkt: false,
        skip: None,
        significant: None,
        table: TableFilters::NONE,
    };

    /// Refuses combinations that cannot work, with the reason.
    pub(super) fn check(&self, exact_delay: bool) -> Result<(), Error> {
        let refuse = |what: &str| Err(Error::Config(what.to_owned()));
        match *self {
            Filters { skip: Some(share), .. } if !(share > 0.0 && share <= 1.0) => {
                refuse("skip takes a probability above 0 and at most 1")
            }
            Filters { significant: Some(t), .. } if !(t > 0.0 && t.is_finite()) => {
                refuse("significant takes a threshold above 0")
            }
            Filters { table: TableFilters { quantize: Some(bytes), .. }, .. }
                if !TableFilters::QUANTIZE_BYTES.contains(&bytes) =>
            {
                refuse("quantize takes 1, 2 or 3 bytes")
            }
            Filters {
                significant: Some(_), table: TableFilters { quantize: Some(_), .. }, ..
            } => refuse(
                "significant sends differences, which servers add up, and with quantize their rounding errors would add up as well: leave one of the two out",
            ),
            Filters { significant: Some(_), .. } if exact_delay => refuse(
                "with an exact delay, a column without numbers means that its worker has filtered it, not that it has not changed significantly: leave one of the two out",
            ),
            _ => Ok(()),
        }
    }

    /// Whether passes are lossy until they must be exact.
    pub(super) fn is_lossy(&self) -> bool {
        self.skip.is_some() || self.significant.is_some() || self.table.is_lossy()
    }

    /// The losses of pass number `pass`, counted from 0.
    pub(super) fn lossy(&self, pass: u64) -> Lossy {
        Lossy {
            share: self.skip.unwrap_or(1.0),
            threshold: self.significant.unwrap_or(0.0) / (pass + 1) as f64,
            seed: self.table.seed,
        }
    }
}

/// What a lossy pass omits compared with an exact one, apart from digits.
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize)]
pub(crate) struct Lossy {
    /// Share of the active columns that take part.
    share: f64,
    /// Smallest significant change; 0 if all columns are sent in full.
    threshold: f64,
    seed: u64,
}

impl Lossy {
    /// No loss.
    pub(super) const NONE: Lossy = Lossy { share: 1.0, threshold: 0.0, seed: 0 };

    pub(super) fn write(&self, image: &mut Writer<'_>) {
        let Lossy { share, threshold, seed } = *self;
        image.real(share);
        image.real(threshold);
        image.number(seed);
    }

    pub(super) fn read(image: &mut Reader<'_>) -> Result<Lossy, Refused> {
        Ok(Lossy { share: image.real()?, threshold: image.real()?, seed: image.number()? })
    }

    /// Whether the column of a key skips a task: the same on all nodes.
    pub(super) fn skips(&self, task: u64) -> impl Fn(u64) -> bool + use<> {
        let share = self.share;
        let draws = Draws::new(self.seed, task);
        move |key| share < 1.0 && draws.of(key) >= share
    }

    /// Whether significant changes are sent instead of values.
    pub(super) fn sends_changes(&self) -> bool {
        self.threshold > 0.0
    }
}

/// The last values that a worker has sent of each of its columns, while it sends changes.
#[derive(Debug, Default)]
pub(super) struct Sent(Vec<[f64; 2]>);

impl Sent {
    /// The change of column `j` of `columns` since it was last sent, if it is to be sent now.
    pub(super) fn change(
        &mut self,
        lossy: &Lossy,
        j: usize,
        columns: usize,
        numbers: [f64; 2],
    ) -> Option<[f64; 2]> {
        self.0.resize(columns, [0.0; 2]);
        let sent = &mut self.0[j];
        let change = [numbers[0] - sent[0], numbers[1] - sent[1]];
        let is_sent = change.iter().any(|change| change.abs() >= lossy.threshold);
        if is_sent {
            *sent = numbers;
        }
        is_sent.then_some(change)
    }
}

/// The filters among these that are lossless and fit a table of single-precision numbers whose keys
/// are sent once.
pub(super) fn of_numbers(filters: &TableFilters) -> TableFilters {
    TableFilters { zero: filters.zero, snappy: filters.snappy, ..TableFilters::NONE }
}

/// Bytes of keys, numbers of values and values in both directions.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Bytes {
    pub(crate) pushed: u64,
    pub(crate) pulled: u64,
}

impl Bytes {
    fn plus(self, other: Bytes) -> Bytes {
        Bytes { pushed: self.pushed + other.pushed, pulled: self.pulled + other.pulled }
    }

    fn minus(self, other: Bytes) -> Bytes {
        Bytes { pushed: self.pushed - other.pushed, pulled: self.pulled - other.pulled }
    }
}

/// Bytes of a column in a push and a pull, for each that is named, active, or both.
const KEY: u64 = 8;
const LENGTH: u64 = 4;
const VALUE: u64 = 8;

/// The algorithm's own filters, in the order in which columns pass them, and the one before them.
const OWN: [&str; 5] = ["tail", "screen", "kkt", "skip", "significant"];

/// Numbers of a block's columns: all, those the KKT filter leaves, those that take part, and those
/// sent.
pub(super) type Count = [usize; 4];

/// A worker's counters.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Counted {
    /// Bytes of its passes' requests and answers.
    pub(crate) passes: Bytes,
    /// Further bytes they would have had without each of [`OWN`].
    pub(super) left_out: [Bytes; OWN.len()],
    /// Traffic of its tables.
    pub(crate) tables: Traffic,
    /// Bytes that its transport has sent and received.
    pub(crate) frames: Bytes,
}

impl Counted {
    /// Counts one block's push and pull, which name all columns or those that take part.
    pub(super) fn block(&mut self, names_all: bool, [columns, active, taking, sent]: Count) {
        let bytes = |named: usize, sent: usize, answered: usize| {
            let named = if names_all { columns } else { named };
            let [named, sent, answered] = [named, sent, answered].map(|count| count as u64);
            Bytes {
                pushed: named * (2 * KEY + LENGTH) + sent * 2 * VALUE,
                pulled: named * LENGTH + answered * VALUE,
            }
        };
        let stages = [
            bytes(columns, columns, columns),
            bytes(active, active, active),
            bytes(taking, taking, taking),
            bytes(taking, sent, taking),
        ];
        for (left_out, pair) in self.left_out[2..].iter_mut().zip(stages.windows(2)) {
            *left_out = left_out.plus(pair[0].minus(pair[1]));
        }
        self.passes = self.passes.plus(stages[3]);
    }

    /// Counts one measurement: gradient and curvature of each column.
    pub(crate) fn measured(&mut self, columns: usize) {
        self.passes.pushed += columns as u64 * (KEY + LENGTH + 2 * VALUE);
    }

    /// Counts the columns of a pass that were dropped before: as rare ones, and by screening.
    pub(crate) fn dropped(&mut self, columns: [u64; 2]) {
        for (left_out, columns) in self.left_out.iter_mut().zip(columns) {
            left_out.pushed += columns * (2 * KEY + LENGTH + 2 * VALUE);
            left_out.pulled += columns * (LENGTH + VALUE);
        }
    }

    /// The sum of two workers' counters.
    pub(crate) fn plus(self, other: &Counted) -> Counted {
        Counted {
            passes: self.passes.plus(other.passes),
            left_out: std::array::from_fn(|at| self.left_out[at].plus(other.left_out[at])),
            tables: self.tables.plus(&other.tables),
            frames: self.frames.plus(other.frames),
        }
    }

    /// A row for each stage, in order, down to the transport's bytes.
    pub(crate) fn rows(&self, filters: &Filters) -> Vec<FilterTraffic> {
        let Traffic { sent, received } = &self.tables;
        let counted = Bytes { pushed: sent[0].bytes_in, pulled: received[0].bytes_in };
        // Tables without filters count nothing.
        let mut bytes = if filters.table.is_none() { self.passes } else { counted };
        let mut end = bytes;
        let mut rows = Vec::new();
        for (name, left_out) in OWN.into_iter().zip(self.left_out).rev() {
            let before = bytes.plus(left_out);
            rows.push(FilterTraffic::new(name, before, bytes));
            bytes = before;
        }
        rows.reverse();
        if !filters.table.is_none() {
            for stage in Stage::ALL {
                let [sent, received] =
                    [sent, received].map(|flows: &[Flow; Stage::ALL.len()]| flows[stage as usize]);
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

/// Effect of one filter on the messages of all workers and of all servers.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct FilterTraffic {
    /// `tail`, `screen`, `kkt`, `skip`, `significant` or a stage of the tables' filters; `frames`
    /// adds headers, commands, empty answers and other messages; `all` is from the first to the
    /// last.
    pub filter: &'static str,
    /// Bytes from workers before it.
    pub worker_bytes_in: u64,
    /// Bytes from workers after it.
    pub worker_bytes_out: u64,
    /// Bytes from servers before it.
    pub server_bytes_in: u64,
    /// Bytes from servers after it.
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
        let lossy: Filters = "kkt,skip=0.5,significant=4,zero,seed=7".parse().unwrap();
        assert_eq!((lossy.skip, lossy.significant), (Some(0.5), Some(4.0)));
        assert_eq!(lossy.table.to_string(), "mask,zero,seed=7");
        assert!(lossy.is_lossy() && rounded.is_lossy() && !Filters::default().is_lossy());
    }

    #[test]
    fn what_cannot_work_is_refused_with_the_reason() {
        for (list, says) in [
            ("skip=0", "probability"),
            ("all,skip=1.5", "probability"),
            ("significant=-1", "threshold above 0"),
            ("significant=NaN", "threshold above 0"),
            ("all,significant=1", "rounding errors"),
            ("kkt,wall", "no filter wall"),
        ] {
            let error = list.parse::<Filters>().unwrap_err().to_string();
            assert!(error.contains(says), "{list}: {error}");
        }
        let changes: Filters = "significant=1".parse().unwrap();
        assert!(changes.check(true).unwrap_err().to_string().contains("exact delay"));
        assert!("skip=0.5".parse::<Filters>().unwrap().check(true).is_ok());
    }

    #[test]
    fn all_nodes_skip_the_same_columns_and_others_each_time() {
        let lossy = Filters { skip: Some(0.25), ..Filters::NONE }.lossy(3);
        let skipped = |task| (0..10_000).map(lossy.skips(task)).collect::<Vec<_>>();
        assert_eq!(skipped(1), skipped(1));
        assert_ne!(skipped(1), skipped(2));
        let count = skipped(1).into_iter().filter(|skips| *skips).count();
        assert!((7_300..7_700).contains(&count), "{count}");
        assert!(!(0..10_000).any(Lossy::NONE.skips(1)));
    }

    #[test]
    fn changes_are_sent_once_they_are_significant() {
        let filters = Filters { significant: Some(3.0), ..Filters::NONE };
        let mut sent = Sent::default();
        let mut change = |pass, numbers| sent.change(&filters.lossy(pass), 1, 2, numbers);
        assert_eq!(change(0, [2.0, 1.0]), None);
        assert_eq!(change(0, [3.0, 1.0]), Some([3.0, 1.0]));
        assert_eq!(change(0, [4.0, 3.0]), None);
        assert_eq!(change(2, [4.0, 1.5]), Some([1.0, 0.5]), "the threshold falls");
        assert_eq!(change(2, [4.0, 0.5]), Some([0.0, -1.0]));
    }

    #[test]
    fn stages_begin_where_those_before_end() {
        let mut counted = Counted::default();
        counted.dropped([5, 10]);
        counted.block(false, [8, 4, 3, 2]);
        counted.frames = Bytes { pushed: 300, pulled: 100 };
        let rows = counted.rows(&Filters::default());
        let workers: Vec<_> = rows
            .iter()
            .map(|row| (row.filter, row.worker_bytes_in, row.worker_bytes_out))
            .collect();
        let last = 3 * 20 + 2 * 16;
        assert_eq!(
            workers,
            [
                ("tail", 23 * 36, 18 * 36),
                ("screen", 18 * 36, 8 * 36),
                ("kkt", 8 * 36, 4 * 36),
                ("skip", 4 * 36, 3 * 36),
                ("significant", 3 * 36, last),
                ("frames", last, 300),
                ("all", 23 * 36, 300)
            ]
        );
        let servers: Vec<_> = rows.iter().map(|row| row.server_bytes_in).collect();
        assert_eq!(servers, [23 * 12, 18 * 12, 8 * 12, 4 * 12, 3 * 12, 3 * 12, 23 * 12]);
        let mut counted = Counted::default();
        counted.block(true, [8, 4, 3, 2]);
        assert_eq!(counted.passes, Bytes { pushed: 8 * 20 + 2 * 16, pulled: 8 * 4 + 3 * 8 });
    }
}
