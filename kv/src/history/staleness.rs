//! Rules that bound how old a read may be: BSP, SSP, SparseSSP, bounded delay and none.
//!
//! A read at clock `c` that sees all writes of iterations up to `c - 1 - s` forbids any such write
//! after it. So it is enough to remember, of all reads, which iteration must be over.

use std::collections::{BTreeSet, HashMap};

use super::check::{Place, Rules, Violation};
use super::event::{Event, Op};
use crate::consistency::Model;

/// The rules for several histories, each of which stands for itself.
pub(super) struct Staleness {
    files: Vec<History>,
}

struct History {
    model: Model,
    members: BTreeSet<u32>,
    writes: u64,
    /// All iterations up to this one are over, by this event.
    over: Option<Over>,
    /// By key, what its readers have seen.
    keys: HashMap<u64, [Option<Seen>; 2]>,
    /// The last write.
    last: Option<Last>,
}

/// An iteration up to which no write may come any more.
#[derive(Clone, Copy)]
struct Over {
    clock: u64,
    place: Place,
}

/// As [`Over`], for the writes of all workers but one.
#[derive(Clone, Copy)]
struct Seen {
    worker: u32,
    over: Over,
}

#[derive(Clone, Copy, PartialEq, Eq)]
struct Last {
    clock: u64,
    worker: u32,
    place: Place,
}

impl Staleness {
    pub(super) fn new(files: usize, model: Model) -> Self {
        Staleness { files: (0..files).map(|_| History::new(model)).collect() }
    }
}

impl Rules for Staleness {
    fn enter(&mut self, place: Place, event: &Event) -> Result<(), Box<Violation>> {
        let history = &mut self.files[place.file];
        let violation = |rule, before| {
            Err(Box::new(Violation { rule, before, after: place, event: event.clone() }))
        };
        match event.op {
            Op::Read | Op::Write | Op::Observed if event.version != history.writes => {
                return violation("version: it is not the number of writes before", None);
            }
            Op::Bound => history.bound(event.clock),
            Op::Read => {
                if let Some((rule, before)) = history.read(place, event) {
                    return violation(rule, Some(before));
                }
            }
            Op::Write => {
                history.writes += 1;
                if let Some((rule, before)) = history.write(place, event) {
                    return violation(rule, Some(before));
                }
            }
            Op::Observed => history.writes += 1,
            Op::Join => drop(history.members.insert(event.worker)),
            Op::Leave => history.leave(event.worker),
            Op::Clock => {}
        }
        Ok(())
    }
}

impl History {
    fn new(model: Model) -> Self {
        let members = BTreeSet::new();
        History { model, members, writes: 0, over: None, keys: HashMap::new(), last: None }
    }

    /// When the last worker has left, those that come begin with iteration 1 again.
    fn leave(&mut self, worker: u32) {
        if self.members.remove(&worker) && self.members.is_empty() {
            *self = History { writes: self.writes, ..History::new(self.model) };
        }
    }

    fn bound(&mut self, bound: u64) {
        match &mut self.model {
            Model::Ssp { staleness } => *staleness = bound,
            Model::BoundedDelay { delay } => *delay = bound,
            _ => {}
        }
    }

    /// Notes that all iterations up to `clock - 1 - bound` are over.
    fn expect(&mut self, place: Place, clock: u64, bound: u64) {
        let Some(clock) = clock.checked_sub(bound.saturating_add(1)) else { return };
        if self.over.is_none_or(|over| over.clock < clock) {
            self.over = Some(Over { clock, place });
        }
    }

    fn read(&mut self, place: Place, event: &Event) -> Option<(&'static str, Place)> {
        let &Event { worker, clock, .. } = event;
        match self.model {
            Model::Bsp => {
                self.expect(place, clock, 0);
                let last = self.last?;
                (last.clock >= clock)
                    .then_some(("BSP: a read comes after a write of its iteration", last.place))
            }
            Model::Ssp { staleness: bound } | Model::BoundedDelay { delay: bound } => {
                self.expect(place, clock, bound);
                None
            }
            Model::SparseSsp { staleness, speculation } => {
                self.expect(place, clock, staleness.saturating_add(speculation));
                let over = clock.checked_sub(staleness.saturating_add(1))?;
                let seen = Seen { worker, over: Over { clock: over, place } };
                for key in &event.keys {
                    note(self.keys.entry(*key).or_default(), seen);
                }
                None
            }
            Model::Asp | Model::DataCentric { .. } => None,
        }
    }

    fn write(&mut self, place: Place, event: &Event) -> Option<(&'static str, Place)> {
        let &Event { worker, clock, .. } = event;
        if let Some(over) = self.over.filter(|over| clock <= over.clock) {
            return Some(("staleness: a write of an iteration that was over", over.place));
        }
        for key in &event.keys {
            let Some(seen) = self.keys.get(key) else { continue };
            let late = |seen: &&Seen| seen.worker != worker && clock <= seen.over.clock;
            if let Some(seen) = seen.iter().flatten().find(late) {
                return Some((
                    "conflict: a write that a reader of its key left out",
                    seen.over.place,
                ));
            }
        }
        if let Model::BoundedDelay { delay } = self.model {
            self.expect(place, clock, delay);
        }
        let last = self.last.replace(Last { clock, worker, place });
        let is_late = |last: &Last| (last.clock, last.worker) > (clock, worker);
        last.filter(|last| self.model == Model::Bsp && is_late(last))
            .map(|last| ("BSP: a write out of the order of rank", last.place))
    }
}

/// Keeps the two workers that have seen most.
fn note(kept: &mut [Option<Seen>; 2], seen: Seen) {
    let [first, second] = kept;
    match first {
        Some(one) if one.worker == seen.worker => {
            if one.over.clock < seen.over.clock {
                *one = seen;
            }
        }
        Some(one) if one.over.clock >= seen.over.clock => match second {
            Some(two) if two.over.clock >= seen.over.clock => {}
            _ => *second = Some(seen),
        },
        _ => {
            *second = *first;
            *first = Some(seen);
        }
    }
}
