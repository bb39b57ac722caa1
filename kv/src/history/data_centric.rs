//! The rules of the parameter database: RC and WC in the order of each chunk, and DAM, the only
//! edges between chunks.
//!
//! The order of a worker's iterations is no rule: it may read ahead.

use std::collections::{BTreeSet, HashMap};

use super::check::{Place, Rules, Violation};
use super::event::{Event, Op};
use crate::consistency::Members;

/// The rules for all histories of a table.
pub(super) struct DataCentric {
    delay: u64,
    files: Vec<History>,
    /// By worker and iteration, the reads that have not been entered yet. Only for several
    /// histories.
    missing: HashMap<(u32, u64), u64>,
    /// By worker, its write of the latest iteration.
    written: HashMap<u32, Write>,
}

#[derive(Clone, Copy)]
struct Write {
    clock: u64,
    place: Place,
}

/// A history of a part of the chunks.
struct History {
    members: Members,
    chunks: HashMap<u64, Chunk>,
}

#[derive(Default)]
struct Chunk {
    written: u64,
    place: Option<Place>,
    owner: Option<u32>,
    readers: HashMap<u32, Reads>,
}

#[derive(Default)]
struct Reads {
    /// All iterations up to this one were read.
    through: u64,
    beyond: BTreeSet<u64>,
}

type Broken = (&'static str, Option<Place>);

impl DataCentric {
    pub(super) fn new(
        files: usize,
        workers: u32,
        delay: u64,
        missing: HashMap<(u32, u64), u64>,
    ) -> Self {
        let members = || Members::new(workers as usize);
        let files =
            (0..files).map(|_| History { members: members(), chunks: HashMap::new() }).collect();
        DataCentric { delay, files, missing, written: HashMap::new() }
    }

    fn read(&mut self, place: Place, event: &Event) -> Result<(), Broken> {
        let &Event { worker, clock, version, ref keys, .. } = event;
        if let Some(write) = self.written.get(&worker).filter(|write| write.clock >= clock) {
            return Err(("DAM: a read comes after its worker's write", Some(write.place)));
        }
        if let Some(missing) = self.missing.get_mut(&(worker, clock)) {
            *missing -= 1;
            if *missing == 0 {
                self.missing.remove(&(worker, clock));
            }
        }
        let History { members, chunks } = &mut self.files[place.file];
        let slowest = members.slowest();
        let own = members.clock(worker).unwrap_or(1);
        for key in keys {
            let chunk = chunks.entry(*key).or_default();
            if version != chunk.written {
                return Err(("version: it is not that of the last write", chunk.place));
            }
            let settled = chunk.written.max(slowest.saturating_sub(1));
            let needed = clock.saturating_sub(1).saturating_sub(self.delay);
            if settled < needed {
                return Err(("RC: a read comes before the write it needs", chunk.place));
            }
            if self.delay == 0 && chunk.written >= clock {
                return Err(("WC: a read comes after the write of its iteration", chunk.place));
            }
            let reads = chunk.readers.entry(worker).or_default();
            reads.through = reads.through.max(own.saturating_sub(1));
            if clock > reads.through {
                reads.beyond.insert(clock);
            }
            while let Some(next) = reads.through.checked_add(1)
                && reads.beyond.remove(&next)
            {
                reads.through = next;
            }
        }
        Ok(())
    }

    fn write(&mut self, place: Place, event: &Event) -> Result<(), Broken> {
        let &Event { worker, clock, ref keys, .. } = event;
        let History { members, chunks } = &mut self.files[place.file];
        for key in keys {
            let chunk = chunks.entry(*key).or_default();
            if chunk.written >= clock {
                return Err(("once: a chunk is written a second time", chunk.place));
            }
            let is_others = |owner: &u32| *owner != worker && members.clock(*owner).is_some();
            if chunk.owner.as_ref().is_some_and(is_others) {
                return Err(("owner: a chunk is written by a second worker", chunk.place));
            }
            let needed = clock.saturating_sub(self.delay);
            let is_read = |(reader, own): (u32, u64)| {
                let through = chunk.readers.get(&reader).map_or(0, |reads| reads.through);
                own > needed || through >= needed
            };
            if needed > 0 && !(members.is_complete() && members.iter().all(is_read)) {
                return Err(("WC: a write comes before a read of its chunk", chunk.place));
            }
            chunk.written = clock;
            chunk.place = Some(place);
            chunk.owner = Some(worker);
        }
        let last = self.written.entry(worker).or_insert(Write { clock, place });
        if last.clock < clock {
            *last = Write { clock, place };
        }
        Ok(())
    }
}

impl Rules for DataCentric {
    /// A write is due when its worker's reads of the iteration are entered.
    fn is_due(&self, event: &Event) -> bool {
        event.op != Op::Write || !self.missing.contains_key(&(event.worker, event.clock))
    }

    fn enter(&mut self, place: Place, event: &Event) -> Result<(), Box<Violation>> {
        let members = &mut self.files[place.file].members;
        let entered = match event.op {
            Op::Read => self.read(place, event),
            Op::Write => self.write(place, event),
            Op::Join => {
                members.join(event.worker, event.clock);
                Ok(())
            }
            Op::Clock => {
                members.advance(event.worker, event.clock);
                Ok(())
            }
            Op::Leave => {
                members.leave(event.worker);
                Ok(())
            }
            Op::Bound | Op::Observed => Ok(()),
        };
        entered.map_err(|(rule, before)| {
            Box::new(Violation { rule, before, after: place, event: event.clone() })
        })
    }
}
