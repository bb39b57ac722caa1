//! A shard whose rows come and go: it admits keys and evicts rows before a push reaches the shard
//! that has them.
//!
//! Path: codec > thread > tables > **shard** > store > answer, for tables with a [`EvictionRule`].
//!
//! Which keys have rows is known here, with a score for each, so every handle with rows has the
//! same eviction. Rows that were found for a remembered list of keys are not kept from one request
//! to the next: they may have gone meanwhile.
//!
//! What becomes of a push is decided before anything changes, and follows from the state and the
//! push alone: no clock, no memory, no order of a map. So copies of a shard, which get the same
//! pushes, have the same rows. A push that is refused leaves nothing behind but the lack of the
//! rows that went for it; the copies hear which ([`Shard::take_gone`]).

mod gate;
mod image;
mod known;
mod part;

use std::mem::take;

use caravan_van::{Account, KeyRange, Pool};

use self::gate::Gate;
use self::known::{Entry, Known};
use self::part::{Incoming, Part};
use super::index::NO_ROW;
use super::shard::{Extract, Pulled, Request, Shard};
use crate::consistency::Admission;
use crate::eviction::EvictionRule;
use crate::refusal::{Refusal, Refused};
use crate::table::TableSpec;

/// When the cap is reached, one row in this many goes at a time.
const EVICTED_SHARE: usize = 8;

/// A shard with eviction.
pub(super) struct Changing {
    rows: Box<dyn Shard>,
    eviction: EvictionRule,
    gate: Gate,
    known: Known,
    range: KeyRange,
    /// Values of a row; 0 if rows have their own lengths.
    width: usize,
    /// Whether its copies are made from an image.
    has_copies: bool,
    /// This shard's share of the cap.
    bytes_max: usize,
    /// The highest clock of a push.
    clock: u64,
    /// That of the last look for rows that have to go; `None` before the first push.
    looked_at: Option<u64>,
    /// Whether the next push removes no rows.
    is_held: bool,
    part: Part,
    /// The rows that go for the current push; for a refused one, those that went.
    goes: Going,
    /// Charged for `part` and the rows of the current request.
    buffers: Account,
}

/// Rows that go.
#[derive(Default)]
struct Going {
    /// Sorted.
    keys: Vec<u64>,
    /// Most values of all of them.
    values: usize,
}

/// What happens to keys without rows, and to the rows of others.
#[derive(Clone, Copy, PartialEq)]
enum Way {
    /// Keys are admitted, and rows evicted.
    Free,
    /// Keys are admitted, and no row goes.
    Held,
    /// All keys get rows, and no row goes.
    Copy,
    /// All keys get rows, and others go.
    Taken,
}

impl Way {
    fn admits_all(self) -> bool {
        matches!(self, Way::Copy | Way::Taken)
    }

    fn evicts(self) -> bool {
        matches!(self, Way::Free | Way::Taken)
    }
}

impl Changing {
    /// The shard of keys `range` of a table with this eviction, whose rows are in `rows`.
    ///
    /// # Errors
    /// The reason why they cannot come and go.
    pub(super) fn new(
        rows: Box<dyn Shard>,
        spec: &TableSpec,
        eviction: EvictionRule,
        range: KeyRange,
        pool: &Pool,
    ) -> Result<Self, Refused> {
        let refuse = |why: &str| Err(Refusal::Shape.because(format!("table {}: {why}", spec.name)));
        if rows.footprint(0, 0).is_none() {
            return refuse("shards of its handle keep all rows, so leave out the eviction");
        }
        let has_copies = spec.replicas > 0;
        if has_copies && let Err(why) = rows.give(range.begin(), 0, &mut Extract::default()) {
            return refuse(&format!("{why}, nor copied, so leave out the replicas"));
        }
        let all = spec.range()?.count();
        let share = |bytes: u64| (u128::from(bytes) * range.count() / all) as usize;
        let mut changing = Changing {
            rows,
            eviction,
            gate: Gate::new(spec, &eviction, range, pool)?,
            known: Known::new(spec, pool),
            range,
            width: spec.width as usize,
            has_copies,
            bytes_max: eviction.bytes_max.map_or(usize::MAX, share),
            clock: 0,
            looked_at: None,
            is_held: false,
            part: Part::default(),
            goes: Going::default(),
            buffers: Account::new(pool, format!("pushes to table {}", spec.name)),
        };
        let least = changing.footprint_with(1, changing.width.max(1));
        if least > changing.bytes_max {
            let share = changing.bytes_max;
            return refuse(&format!(
                "{share} of its bytes_max are for this shard, and its first row takes {least} with \
                 what belongs to it (raise bytes_max, or take fewer server threads)"
            ));
        }
        changing.known.reserve(0)?;
        Ok(changing)
    }

    /// Bytes of all rows that stay and of `more`, which show `values` values, with all that is kept
    /// for them.
    fn footprint_with(&self, more: usize, values: usize) -> usize {
        let rows = self.known.index.len() - self.goes.keys.len() + more;
        let values = self.known.values - self.goes.values + values;
        let inner = self.rows.footprint(rows, values).unwrap_or(0);
        inner + Known::footprint(rows) + self.gate.bytes()
    }

    /// Marks idle rows for eviction, if the clock has risen enough since the last look.
    fn plan_old(&mut self) {
        let EvictionRule { idle_max, score_min, .. } = self.eviction;
        let pause = match (idle_max, score_min) {
            (None, None) => return,
            (Some(idle), None) => (idle / 4).max(1),
            (_, Some(_)) => 1,
        };
        if self.looked_at.is_some_and(|at| self.clock - at < pause) {
            return;
        }
        self.looked_at = Some(self.clock);
        let (clock, decay) = (self.clock, self.eviction.decay());
        let is_old = |entry: &Entry| {
            let is_idle = idle_max.is_some_and(|most| clock.saturating_sub(entry.clock) > most);
            is_idle || score_min.is_some_and(|least| entry.score_at(clock, decay) < least)
        };
        for (key, entry) in self.known.iter().filter(|(_, entry)| is_old(entry)) {
            self.goes.keys.push(key);
            self.goes.values += entry.values;
        }
    }

    /// Records that some of the rows with the lowest scores go, but none of the sorted `keys`;
    /// returns whether there were any.
    fn plan_lowest(&mut self, keys: &[u64]) -> bool {
        let (clock, decay) = (self.clock, self.eviction.decay());
        let Changing { known, goes, .. } = self;
        let others = known.iter().filter(|(key, _)| {
            keys.binary_search(key).is_err() && goes.keys.binary_search(key).is_err()
        });
        let ranked = others.map(|(key, entry)| (entry.score_at(clock, decay), entry.clock, key));
        let mut ranked: Vec<(f32, u64, u64)> = ranked.collect();
        if ranked.is_empty() {
            return false;
        }
        let stay = known.index.len() - goes.keys.len();
        let count = (stay / EVICTED_SHARE).clamp(1, ranked.len());
        ranked.select_nth_unstable_by(count - 1, |a, b| {
            a.0.total_cmp(&b.0).then((a.1, a.2).cmp(&(b.1, b.2)))
        });
        ranked.truncate(count);
        goes.keys.extend(ranked.iter().map(|(_, _, key)| *key));
        goes.keys.sort_unstable();
        let rows = ranked.iter().filter_map(|(_, _, key)| known.index.row(*key));
        goes.values += rows.map(|row| known.entries[row as usize].values).sum::<usize>();
        true
    }

    /// Decides which of the rows come, and which others go, and stores the former in `part`.
    /// Nothing that copies have changes by that, but the clocks and the draws.
    ///
    /// # Errors
    /// If there is no room for rows that get longer, or memory is short.
    fn plan(&mut self, incoming: Incoming<'_>, way: Way) -> Result<(), Refused> {
        let Incoming { keys, lengths, values } = incoming;
        self.charge(keys.len() * Part::KEY_BYTES)?;
        if way == Way::Free {
            self.plan_old();
        }
        self.known.find(keys, &self.goes.keys);
        self.part.asked.clear();
        for (at, (key, row)) in keys.iter().zip(&self.known.found).enumerate() {
            let mut comes = *row != NO_ROW || way.admits_all();
            if !comes {
                comes = self.gate.admits(*key);
                self.part.asked.push(*key);
            }
            if comes {
                self.part.places.push(at as u32);
            }
        }
        if self.bytes_max < usize::MAX {
            self.plan_room(keys, lengths, way)?;
        }
        if self.part.places.len() < keys.len() {
            self.charge(keys.len() * Part::KEY_BYTES + values.len())?;
            self.part.copy(incoming);
        }
        Ok(())
    }

    /// Removes the rows that go, and enters the keys that come.
    ///
    /// # Errors
    /// If memory is short. No key has come then.
    fn carry_out(&mut self, keys: &[u64]) -> Result<(), Refused> {
        let goes = take(&mut self.goes);
        let removed = self.remove(&goes.keys);
        removed.and_then(|()| {
            self.goes = goes;
            let Part { places, .. } = &self.part;
            self.known.insert(keys, places)
        })
    }

    /// Records the rows that came: they were named now, and have values.
    fn note(&mut self, lengths: &[u32]) {
        let width = self.width;
        let length = |at: u32| lengths.get(at as usize).map_or(width, |it| *it as usize);
        let lengths = self.part.places.iter().map(|at| length(*at));
        self.known.note(lengths, self.clock, self.eviction.decay());
    }

    /// Charges `buffers` for a request that needs more than those before.
    fn charge(&mut self, bytes: usize) -> Result<(), Refused> {
        if bytes <= self.buffers.bytes() {
            return Ok(());
        }
        self.buffers.set(bytes).map_err(Refused::from)
    }

    /// Records that rows go until there is room for those that come. Where that is not enough, the
    /// last keys without rows get none.
    fn plan_room(&mut self, keys: &[u64], lengths: &[u32], way: Way) -> Result<(), Refused> {
        let width = self.width;
        let length = |at: u32| lengths.get(at as usize).map_or(width, |it| *it as usize);
        let growth = |known: &Known, at: u32| match known.found[at as usize] {
            NO_ROW => (1, length(at)),
            row => (0, length(at).saturating_sub(known.entries[row as usize].values)),
        };
        let add = |(rows, values): (usize, usize), (row, more)| (rows + row, values + more);
        let all = self.part.places.iter().map(|at| growth(&self.known, *at)).fold((0, 0), add);
        loop {
            let footprint = self.footprint_with(all.0, all.1);
            if footprint <= self.bytes_max {
                return Ok(());
            }
            if !way.evicts() || !self.plan_lowest(keys) {
                break;
            }
        }
        let mut places = take(&mut self.part.places);
        let is_known = |at: &&u32| self.known.found[**at as usize] != NO_ROW;
        let longer = places.iter().filter(is_known).map(|at| growth(&self.known, *at));
        let mut come = longer.fold((0, 0), add);
        let fits = |(rows, values)| self.footprint_with(rows, values) <= self.bytes_max;
        if !fits(come) {
            let (most, more) = (self.bytes_max, come.1);
            return Err(Refusal::Shape.because(format!(
                "rows that get {more} values longer are over the {most} bytes that their shard may \
                 have: push fewer of them at once, or raise bytes_max"
            )));
        }
        places.retain(|at| {
            let with = add(come, growth(&self.known, *at));
            let stays = self.known.found[*at as usize] != NO_ROW || fits(with);
            if stays && self.known.found[*at as usize] == NO_ROW {
                come = with;
            }
            stays
        });
        self.part.places = places;
        Ok(())
    }

    /// Applies what is admitted of a push.
    fn apply(&mut self, request: &Request<'_>, way: Way, memory: &Pool) -> Result<(), Refused> {
        let Request { keys, lengths, values, .. } = *request;
        self.part.clear();
        self.goes = Going::default();
        let incoming = Incoming { keys, lengths, values };
        if !incoming.is_sound(self.width) {
            return self.rows.push(&self.part.of(request), memory);
        }
        let before = (self.clock, self.looked_at, self.gate.draws);
        self.clock = self.clock.max(request.clock);
        if self.looked_at.is_none() {
            // Rows that came from elsewhere are as old as the first push here.
            self.known.entries.iter_mut().for_each(|entry| entry.clock = self.clock);
            self.looked_at = Some(self.clock);
        }
        let planned = self.plan(incoming, way);
        if planned.is_err() {
            self.goes = Going::default(); // all of them are there
        }
        let applied = planned.and_then(|()| self.carry_out(keys)).and_then(|()| {
            let part = self.part.of(request);
            let is_left_out = part.keys.is_empty() && !keys.is_empty();
            let pushed = if is_left_out { Ok(()) } else { self.rows.push(&part, memory) };
            pushed.inspect_err(|_| self.known.forget_inserted(&mut *self.rows))
        });
        match &applied {
            Ok(()) => {
                self.goes = Going::default();
                self.gate.count(&self.part.asked);
                self.note(lengths);
            }
            Err(_) => (self.clock, self.looked_at, self.gate.draws) = before,
        }
        applied
    }
}

impl Shard for Changing {
    fn admit(&self, request: &Request<'_>) -> Admission {
        self.rows.admit(request)
    }

    fn clock(&self) -> u64 {
        self.rows.clock()
    }

    fn reads_once(&self) -> bool {
        self.rows.reads_once()
    }

    fn push(&mut self, request: &Request<'_>, memory: &Pool) -> Result<(), Refused> {
        let way = if take(&mut self.is_held) { Way::Held } else { Way::Free };
        self.apply(request, way, memory)
    }

    fn hold_rows(&mut self) {
        self.is_held = true;
    }

    fn applied<'a>(&'a self, request: &Request<'a>) -> Request<'a> {
        self.part.of(request)
    }

    fn repeat(&mut self, request: &Request<'_>, memory: &Pool) -> Result<(), Refused> {
        self.apply(request, Way::Copy, memory)
    }

    fn take_gone(&mut self) -> Vec<u64> {
        take(&mut self.goes).keys
    }

    fn remove(&mut self, keys: &[u64]) -> Result<(), Refused> {
        if keys.is_empty() {
            return Ok(());
        }
        self.known.reserve_to_remove(keys.len())?;
        self.rows.remove(keys)?;
        self.known.remove(keys)
    }

    fn pull(&mut self, request: &Request<'_>) -> Result<Pulled<'_>, Refused> {
        self.rows.pull(&Request { rows: None, ..*request })
    }

    fn read(&mut self, request: &Request<'_>, into: &mut [u8]) {
        self.rows.read(&Request { rows: None, ..*request }, into);
    }

    fn lengths(&self) -> &[u32] {
        self.rows.lengths()
    }

    fn give(
        &self,
        from: u64,
        bytes_max: usize,
        extract: &mut Extract,
    ) -> Result<Option<u64>, Refused> {
        self.rows.give(from, bytes_max, extract)
    }

    fn take(
        &mut self,
        keys: &[u64],
        lengths: &[u32],
        values: &[u8],
        memory: &Pool,
    ) -> Result<(), Refused> {
        let incoming = Incoming { keys, lengths, values };
        if !incoming.is_sound(self.width) {
            return self.rows.take(keys, lengths, values, memory);
        }
        self.part.clear();
        self.goes = Going::default();
        self.plan(incoming, Way::Taken)?;
        self.carry_out(keys)?;
        let Incoming { keys, lengths: kept, values } = self.part.rows(incoming);
        self.rows.take(keys, kept, values, memory)?;
        self.note(lengths);
        Ok(())
    }

    fn image_bytes(&self) -> Option<usize> {
        self.has_copies.then(|| self.image_bytes_max())
    }

    fn image(&self, image: &mut Vec<u8>) {
        self.write_image(image);
    }

    fn restore(&mut self, image: &[u8], memory: &Pool) -> Result<(), Refused> {
        self.read_image(image, memory)
    }
}
