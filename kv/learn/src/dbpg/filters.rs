//! What DBPG's messages leave out: the choice as command lines say it, and the bytes that each part saves.
//!
//! Four of the filters are the algorithm's. Two hold for whole columns: *screening* drops those that are 0 in every solution
//! (`screen`), and the *KKT filter* puts others out for some passes (`schedule`, `coordinates`). Two hold for a pass:
//!
//! * *Random skip*: each active column takes part in a pass with a probability. Tables have a filter of that name, which draws
//!   for each sender and scales what it sends; a sum of which some terms are missing and others are scaled bounds no step.
//!   So here workers and servers draw alike, from the seed, the task and the key: of a column that is skipped nobody sends
//!   anything and its weight stays, and all others step as ever. A block's bound holds for any part of the block.
//! * *Significantly modified*: a worker sends how far gradient and curvature of a column have moved since it last did, once
//!   one of them has moved by T / t in pass t, counted from 1. Servers keep the sums of what all have sent, and step on these.
//!   They are no bound, but near one: with W workers each sum is off by less than W T / t. That is the condition of NIPS 2014,
//!   theorem 2.
//!
//! The rest are the tables' ([`caravan_kv::filter`]). With key caching a request names all columns of its block, so that the list
//! stays the same from pass to pass, and a bit a column says which are active; without, it names active columns only.
//!
//! What loses anything leads the way, and not to the end: once a pass lowers F by no more than [`LOSSLESS_FROM`], or ε, all that
//! follow are exact, and none but such a pass ends a run. Until then
//!
//! * gradients and curvatures are left out as above, or with `quantize` rounded without bias, in a range of their own.
//!   Curvatures, which differ by orders of magnitude in a block, are pushed as logarithms for that, so that small ones keep
//!   their digits.
//! * Hessians come in two bytes a number (`correlations`) with `quantize`, to the end: they lead the way of a polish, not where
//!   it ends.
//! * Weights are told to the workers as the server has them. With `narrow` the server keeps them to 24 bits, whose last one
//!   moves F by its square.
//!
//! [`Filters::check`] has what does not go together.

use std::str::FromStr;

use caravan_kv::Error;
use caravan_kv::filter::{Draws, Filters as TableFilters, Flow, Stage, Traffic};
use serde::{Deserialize, Serialize};

/// A pass that lowers the objective by at most this share of it is the last that may lose anything.
pub(super) const LOSSLESS_FROM: f64 = 1e-3;

/// Which filters a run has.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Filters {
    /// Whether columns that are 0 in every solution are dropped first.
    pub screen: bool,
    /// Whether the KKT filter is on.
    pub kkt: bool,
    /// With which probability a column takes part in a pass, in (0, 1]; all do if `None`.
    pub skip: Option<f64>,
    /// T: how far a column's numbers move until they are sent again, in pass t by T / t.
    pub significant: Option<f64>,
    /// Of the table of weights, and as far as they fit of the others; neither `skip` nor `significant`, which are those above.
    pub table: TableFilters,
}

impl Default for Filters {
    /// Those that cost next to nothing: `screen,kkt`.
    fn default() -> Self {
        Filters { screen: true, kkt: true, ..Filters::NONE }
    }
}

/// What `all` stands for.
const ALL: &str = "screen,kkt,zero,narrow,quantize=2,key-cache,snappy";

impl FromStr for Filters {
    type Err = Error;

    /// Reads a list of names: `screen`, `kkt` and those of [`TableFilters`]; or `all`, or `none`.
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
                        "there is no filter {item}; there are screen, kkt, {}, and all and none for lists",
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

    /// Refuses what cannot work, with the reason.
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
                "significant sends differences, which servers add up, and of quantize so would the roundings: leave one of the two out",
            ),
            Filters { significant: Some(_), .. } if exact_delay => refuse(
                "with an exact delay a column without numbers is one that its worker has filtered, not one that has not changed significantly: leave one of the two out",
            ),
            _ => Ok(()),
        }
    }

    /// Whether passes lose anything, until they have to be exact.
    pub(super) fn is_lossy(&self) -> bool {
        self.skip.is_some() || self.significant.is_some() || self.table.is_lossy()
    }

    /// What pass number `pass`, from 0, may lose.
    pub(super) fn lossy(&self, pass: u64) -> Lossy {
        Lossy {
            share: self.skip.unwrap_or(1.0),
            threshold: self.significant.unwrap_or(0.0) / (pass + 1) as f64,
            seed: self.table.seed,
        }
    }
}

/// What a pass leaves out of what an exact one sends, apart from digits.
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize)]
pub(crate) struct Lossy {
    /// Of the active columns, those that take part.
    share: f64,
    /// What is a significant change; 0 if all columns are sent as they are.
    threshold: f64,
    seed: u64,
}

impl Lossy {
    /// Nothing.
    pub(super) const NONE: Lossy = Lossy { share: 1.0, threshold: 0.0, seed: 0 };

    /// Whether the column of a key is left out of a task: the same on all nodes.
    pub(super) fn skips(&self, task: u64) -> impl Fn(u64) -> bool + use<> {
        let (share, draws) = (self.share, Draws::new(self.seed, task));
        move |key| share < 1.0 && draws.of(key) >= share
    }

    /// Whether changes are sent, once they are significant.
    pub(super) fn sends_changes(&self) -> bool {
        self.threshold > 0.0
    }
}

/// What a worker has sent of each of its columns, while it sends changes.
#[derive(Debug, Default)]
pub(super) struct Sent(Vec<[f64; 2]>);

impl Sent {
    /// How the numbers of column `j` of so many have changed since they were sent last, if that is to be sent now.
    pub(super) fn change(
        &mut self,
        lossy: &Lossy,
        (j, columns): (usize, usize),
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

    fn minus(self, other: Bytes) -> Bytes {
        Bytes { pushed: self.pushed - other.pushed, pulled: self.pulled - other.pulled }
    }
}

/// What a push and a pull of columns take, for each that is named, active, or both.
const KEY: u64 = 8;
const LENGTH: u64 = 4;
const VALUE: u64 = 8;

/// The algorithm's own filters, in the order in which columns go through them, and that which comes before them.
const OWN: [&str; 5] = ["tail", "screen", "kkt", "skip", "significant"];

/// Of a block: its columns, those that the KKT filter leaves in, those of them that take part, and those that are sent.
pub(super) type Count = [usize; 4];

/// What a worker has counted.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Counted {
    /// What its passes' requests and answers held.
    pub(crate) passes: Bytes,
    /// What they would have held besides, but for each of [`OWN`].
    pub(super) left_out: [Bytes; OWN.len()],
    /// Of its tables.
    pub(crate) tables: Traffic,
    /// What its transport has sent and received.
    pub(crate) frames: Bytes,
}

impl Counted {
    /// Enters one block's push and pull, which name all columns or those that take part.
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

    /// Enters the columns of a pass that were dropped before: for being rare, and by screening.
    pub(crate) fn dropped(&mut self, columns: [u64; 2]) {
        for (left_out, columns) in self.left_out.iter_mut().zip(columns) {
            left_out.pushed += columns * (2 * KEY + LENGTH + 2 * VALUE);
            left_out.pulled += columns * (LENGTH + VALUE);
        }
    }

    /// What several have counted.
    pub(crate) fn plus(self, other: &Counted) -> Counted {
        Counted {
            passes: self.passes.plus(other.passes),
            left_out: std::array::from_fn(|at| self.left_out[at].plus(other.left_out[at])),
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
    /// `tail`, `screen`, `kkt`, `skip`, `significant`, a stage of the tables' filters; `frames`, where headers, commands and answers that say nothing are added, and what is sent beside; `all`, from
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
            ("all,significant=1", "roundings"),
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
        let mut change = |pass, numbers| sent.change(&filters.lossy(pass), (1, 2), numbers);
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
