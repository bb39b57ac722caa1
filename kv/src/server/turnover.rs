//! A shard whose rows come and go: it admits keys and evicts rows before a push reaches the shard
//! that has them.
//!
//! Path: codec > thread > tables > **shard** > store > answer, for tables with a [`Turnover`].
//!
//! Which keys have rows is known here, with a score for each, so every handle with rows has the
//! same turnover. Rows that were found for a remembered list of keys are not kept from one request
//! to the next: they may have gone meanwhile.

mod known;
mod part;

use std::mem::take;

use caravan_van::{Account, KeyRange, Pool};

use self::known::{Entry, Known};
use self::part::{Incoming, Part};
use super::index::NO_ROW;
use super::shard::{Extract, Pulled, Request, Shard};
use crate::consistency::Admission;
use crate::filter::Draws;
use crate::sketch::CountMin;
use crate::table::TableSpec;
use crate::turnover::Turnover;

/// Hash functions of a sketch.
const HASHES: u8 = 2;

/// When the cap is reached, one row in this many goes at a time.
const EVICTED_SHARE: usize = 8;

/// A shard with turnover.
pub(super) struct Changing {
    rows: Box<dyn Shard>,
    turnover: Turnover,
    gate: Gate,
    known: Known,
    /// Values of a row; 0 if rows have their own lengths.
    width: usize,
    /// This shard's share of the cap.
    bytes_max: usize,
    /// The highest clock of a push.
    clock: u64,
    /// That of the last look for rows that have to go; `None` before the first push.
    looked_at: Option<u64>,
    /// Whether the next push removes no rows.
    is_held: bool,
    part: Part,
    /// Charged for `part` and the rows of the current request.
    buffers: Account,
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
    /// The shard of keys `range` of a table with this turnover, whose rows are in `rows`.
    ///
    /// # Errors
    /// The reason why they cannot come and go.
    pub(super) fn new(
        rows: Box<dyn Shard>,
        spec: &TableSpec,
        turnover: Turnover,
        range: KeyRange,
        pool: &Pool,
    ) -> Result<Self, String> {
        let refuse = |why: &str| Err(format!("table {}: {why}", spec.name));
        if rows.footprint(0, 0).is_none() {
            return refuse("shards of its handle keep all rows, so leave out the turnover");
        }
        let all = spec.range().map_err(|error| error.to_string())?.count();
        let share = |bytes: u64| (u128::from(bytes) * range.count() / all) as usize;
        let mut changing = Changing {
            rows,
            turnover,
            gate: Gate::new(spec, &turnover, range, pool)?,
            known: Known::new(spec, pool),
            width: spec.width as usize,
            bytes_max: turnover.bytes_max.map_or(usize::MAX, share),
            clock: 0,
            looked_at: None,
            is_held: false,
            part: Part::default(),
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

    /// Bytes of all rows and of `more`, which show `values` values, with all that is kept for them.
    fn footprint_with(&self, more: usize, values: usize) -> usize {
        let rows = self.known.index.len() + more;
        let inner = self.rows.footprint(rows, self.known.values + values).unwrap_or(0);
        inner + Known::footprint(rows) + self.gate.bytes()
    }

    /// Removes the rows of these keys.
    fn evict(&mut self, mut keys: Vec<u64>) -> Result<(), String> {
        keys.sort_unstable();
        self.rows.remove(&keys)?;
        self.known.remove(&keys)
    }

    /// Removes the rows that have to go whatever room there is, if the clock has risen enough since
    /// the last look.
    fn evict_old(&mut self) -> Result<(), String> {
        let Turnover { idle_max, score_min, .. } = self.turnover;
        let pause = match (idle_max, score_min) {
            (None, None) => return Ok(()),
            (Some(idle), None) => (idle / 4).max(1),
            (_, Some(_)) => 1,
        };
        if self.looked_at.is_some_and(|at| self.clock - at < pause) {
            return Ok(());
        }
        self.looked_at = Some(self.clock);
        let (clock, decay) = (self.clock, self.turnover.decay());
        let goes = |entry: &Entry| {
            let is_idle = idle_max.is_some_and(|most| clock.saturating_sub(entry.clock) > most);
            is_idle || score_min.is_some_and(|least| entry.score_at(clock, decay) < least)
        };
        let keys = self.known.iter().filter(|(_, entry)| goes(entry)).map(|(key, _)| key);
        self.evict(keys.collect())
    }

    /// Removes some of the rows with the lowest scores, but none of the sorted `keys`; returns
    /// whether there were any.
    fn evict_lowest(&mut self, keys: &[u64]) -> Result<bool, String> {
        let (clock, decay) = (self.clock, self.turnover.decay());
        let others = self.known.iter().filter(|(key, _)| keys.binary_search(key).is_err());
        let ranked = others.map(|(key, entry)| (entry.score_at(clock, decay), entry.clock, key));
        let mut ranked: Vec<(f32, u64, u64)> = ranked.collect();
        if ranked.is_empty() {
            return Ok(false);
        }
        let count = (self.known.index.len() / EVICTED_SHARE).clamp(1, ranked.len());
        ranked.select_nth_unstable_by(count - 1, |a, b| {
            a.0.total_cmp(&b.0).then((a.1, a.2).cmp(&(b.1, b.2)))
        });
        ranked.truncate(count);
        self.evict(ranked.into_iter().map(|(_, _, key)| key).collect())?;
        Ok(true)
    }

    /// Decides which of the rows come, makes room for them, enters them, and stores them in `part`.
    ///
    /// # Errors
    /// If there is no room for rows that get longer, or memory is short.
    fn receive(&mut self, incoming: Incoming<'_>, way: Way) -> Result<(), String> {
        let Incoming { keys, lengths, values } = incoming;
        self.charge(keys.len() * Part::KEY_BYTES)?;
        self.part.clear();
        self.known.find(keys);
        for (at, (key, row)) in keys.iter().zip(&self.known.found).enumerate() {
            if *row != NO_ROW || way.admits_all() || self.gate.admits(*key) {
                self.part.places.push(at as u32);
            }
        }
        if self.bytes_max < usize::MAX {
            self.make_room(keys, lengths, way)?;
        }
        if self.part.places.len() < keys.len() {
            self.charge(keys.len() * Part::KEY_BYTES + values.len())?;
            self.part.copy(incoming);
        }
        let Part { places, .. } = &self.part;
        let (clock, decay) = (self.clock, self.turnover.decay());
        let length = |at: u32| lengths.get(at as usize).map_or(self.width, |it| *it as usize);
        let named = places.iter().map(|at| (keys[*at as usize], length(*at)));
        self.known.enter(places, named, clock, decay)
    }

    /// Charges `buffers` for a request that needs more than those before.
    fn charge(&mut self, bytes: usize) -> Result<(), String> {
        if bytes <= self.buffers.bytes() {
            return Ok(());
        }
        self.buffers.set(bytes).map_err(|error| error.to_string())
    }

    /// Evicts rows until there is room for those that come. Where that is not enough, the last keys
    /// without rows get none.
    fn make_room(&mut self, keys: &[u64], lengths: &[u32], way: Way) -> Result<(), String> {
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
            if !way.evicts() || !self.evict_lowest(keys)? {
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
            return Err(format!(
                "rows that get {more} values longer are over the {most} bytes that their shard may \
                 have: push fewer of them at once, or raise bytes_max"
            ));
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
    fn apply(&mut self, request: &Request<'_>, way: Way, memory: &Pool) -> Result<(), String> {
        let Request { keys, lengths, values, .. } = *request;
        self.part.clear();
        self.clock = self.clock.max(request.clock);
        if self.looked_at.is_none() {
            // Rows that came from elsewhere are as old as the first push here.
            self.known.entries.iter_mut().for_each(|entry| entry.clock = self.clock);
            self.looked_at = Some(self.clock);
        }
        if way.evicts() {
            self.evict_old()?;
        }
        let incoming = Incoming { keys, lengths, values };
        if incoming.is_sound(self.width) {
            self.receive(incoming, way)?;
        }
        let part = self.part.of(request);
        if part.keys.is_empty() && !keys.is_empty() {
            return Ok(());
        }
        self.rows.push(&part, memory)
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

    fn push(&mut self, request: &Request<'_>, memory: &Pool) -> Result<(), String> {
        let way = if take(&mut self.is_held) { Way::Held } else { Way::Free };
        self.apply(request, way, memory)
    }

    fn hold_rows(&mut self) {
        self.is_held = true;
    }

    fn applied<'a>(&'a self, request: &Request<'a>) -> Request<'a> {
        self.part.of(request)
    }

    fn repeat(&mut self, request: &Request<'_>, memory: &Pool) -> Result<(), String> {
        self.apply(request, Way::Copy, memory)
    }

    fn pull(&mut self, request: &Request<'_>) -> Result<Pulled<'_>, String> {
        self.rows.pull(&Request { rows: None, ..*request })
    }

    fn read(&mut self, request: &Request<'_>, into: &mut [u8]) {
        self.rows.read(&Request { rows: None, ..*request }, into);
    }

    fn lengths(&self) -> &[u32] {
        self.rows.lengths()
    }

    fn give(
        &mut self,
        from: u64,
        bytes_max: usize,
        extract: &mut Extract,
    ) -> Result<Option<u64>, String> {
        self.rows.give(from, bytes_max, extract)
    }

    fn take(
        &mut self,
        keys: &[u64],
        lengths: &[u32],
        values: &[u8],
        memory: &Pool,
    ) -> Result<(), String> {
        let incoming = Incoming { keys, lengths, values };
        if !incoming.is_sound(self.width) {
            return self.rows.take(keys, lengths, values, memory);
        }
        self.receive(incoming, Way::Taken)?;
        let Incoming { keys, lengths, values } = self.part.rows(incoming);
        self.rows.take(keys, lengths, values, memory)
    }
}

/// Decides which keys without rows get one.
struct Gate {
    pushes_min: u8,
    /// How often keys were pushed without a row, if that matters.
    seen: Option<CountMin<u8>>,
    probability: Option<f64>,
    draws: Draws,
    /// Charged for the sketch.
    memory: Account,
}

impl Gate {
    fn new(
        spec: &TableSpec,
        turnover: &Turnover,
        range: KeyRange,
        pool: &Pool,
    ) -> Result<Gate, String> {
        let mut memory = Account::new(pool, format!("the sketch of table {}", spec.name));
        let pushes_min = turnover.pushes_min.unwrap_or(1);
        let mut seen = None;
        if pushes_min > 1 {
            let cells = turnover.cells() as usize;
            memory.set(cells).map_err(|error| error.to_string())?;
            let sketch = CountMin::new(cells, HASHES);
            seen = Some(sketch.map_err(|error| format!("no memory for {cells} cells: {error}"))?);
        }
        let draws = Draws::new(range.begin(), u64::from(spec.id));
        Ok(Gate { pushes_min, seen, probability: turnover.probability, draws, memory })
    }

    /// Whether a key without a row gets one with this push.
    fn admits(&mut self, key: u64) -> bool {
        if let Some(seen) = &mut self.seen {
            seen.add(key, 1);
            if seen.estimate(key) < self.pushes_min {
                return false;
            }
        }
        self.probability.is_none_or(|share| self.draws.next_unit() < share)
    }

    fn bytes(&self) -> usize {
        self.memory.bytes()
    }
}
