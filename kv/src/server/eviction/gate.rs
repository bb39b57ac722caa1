//! Which keys without rows get one.

use caravan_van::{Account, KeyRange, Pool};

use crate::eviction::EvictionRule;
use crate::filter::Draws;
use crate::refusal::{Refusal, Refused};
use crate::sketch::CountMin;
use crate::table::TableSpec;

/// Hash functions of a sketch.
const HASHES: u8 = 2;

/// Decides which keys without rows get one.
pub(super) struct Gate {
    pushes_min: u8,
    /// How often keys were pushed without a row, if that matters.
    pub(super) seen: Option<CountMin<u8>>,
    probability: Option<f64>,
    pub(super) draws: Draws,
    /// Charged for the sketch.
    memory: Account,
}

impl Gate {
    pub(super) fn new(
        spec: &TableSpec,
        eviction: &EvictionRule,
        range: KeyRange,
        pool: &Pool,
    ) -> Result<Gate, Refused> {
        let mut memory = Account::new(pool, format!("the sketch of table {}", spec.name));
        let pushes_min = eviction.pushes_min.unwrap_or(1);
        let mut seen = None;
        if pushes_min > 1 {
            let cells = eviction.cells() as usize;
            memory.set(cells)?;
            let sketch = CountMin::new(cells, HASHES);
            let why = |error| format!("no memory for {cells} cells: {error}");
            seen = Some(sketch.map_err(|error| Refusal::Memory.because(why(error)))?);
        }
        let draws = Draws::new(range.begin(), u64::from(spec.id));
        Ok(Gate { pushes_min, seen, probability: eviction.probability, draws, memory })
    }

    /// Whether a key without a row gets one with this push, which is not counted yet.
    pub(super) fn admits(&mut self, key: u64) -> bool {
        let before = |seen: &CountMin<u8>| seen.estimate(key);
        if self.seen.as_ref().is_some_and(|seen| before(seen) < self.pushes_min - 1) {
            return false;
        }
        self.probability.is_none_or(|share| self.draws.next_unit() < share)
    }

    /// Counts a push that names a key without a row.
    pub(super) fn count(&mut self, keys: &[u64]) {
        let Some(seen) = &mut self.seen else { return };
        keys.iter().for_each(|key| seen.add(*key, 1));
    }

    pub(super) fn bytes(&self) -> usize {
        self.memory.bytes()
    }
}
