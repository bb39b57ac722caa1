//! A model of one process that threads change number by number, without locks.

use std::collections::HashMap;
use std::marker::PhantomData;
use std::sync::atomic::{AtomicU64, Ordering};

use caravan_kv::server::Sgd;
use caravan_kv::{Store, TableSpec};
use caravan_van::Value;

use super::serial::Local;
use super::{Rows, Trainer};

/// The model, and where its rows begin.
pub(super) struct Hogwild<V> {
    pub(super) numbers: Numbers<V>,
    /// Has the first values of rows.
    first: Local,
    is_dense: bool,
    /// Steps of the passes before.
    pub(super) steps: u64,
}

/// The rows, each value an atomic number of its own.
pub(super) struct Numbers<V> {
    width: usize,
    rule: Rule,
    rows: HashMap<u64, Vec<AtomicU64>>,
    value: PhantomData<V>,
}

/// What a push does to a number.
#[derive(Debug, Clone, Copy)]
enum Rule {
    Add,
    /// As the handle `sgd`.
    Sgd(Sgd),
}

impl<V: Value> Hogwild<V> {
    /// A table whose first values `first` has.
    ///
    /// # Errors
    /// If the options of the handle are wrong.
    pub(super) fn new(spec: &TableSpec, first: Local) -> Result<Self, String> {
        let rule = match spec.handle.as_str() {
            "sgd" if spec.options.is_null() => Rule::Sgd(Sgd::default()),
            "sgd" => {
                let options = serde_json::from_value(spec.options.clone());
                Rule::Sgd(options.map_err(|error| error.to_string())?)
            }
            _ => Rule::Add,
        };
        let width = spec.width as usize;
        let numbers = Numbers { width, rule, rows: HashMap::new(), value: PhantomData };
        Ok(Hogwild { numbers, first, is_dense: spec.store == Store::Dense, steps: 0 })
    }

    /// Adds the rows of a pass, so that threads find all of them.
    ///
    /// # Errors
    /// Those of the table.
    pub(super) fn add_rows<T: Trainer<Value = V>>(
        &mut self,
        trainers: &[T],
        pass: u64,
    ) -> caravan_kv::Result<()> {
        for trainer in trainers {
            for step in 0..trainer.steps() {
                self.add(trainer.keys(pass, step))?;
            }
        }
        Ok(())
    }

    /// Adds the rows of keys that have none.
    fn add(&mut self, mut keys: Vec<u64>) -> caravan_kv::Result<()> {
        let Numbers { rows, width, .. } = &mut self.numbers;
        keys.retain(|key| !rows.contains_key(key));
        if keys.is_empty() {
            return Ok(());
        }
        let values: Vec<V> = self.first.pull(&keys)?;
        for (key, row) in keys.into_iter().zip(values.chunks_exact((*width).max(1))) {
            rows.insert(key, row.iter().map(|value| AtomicU64::new(bits(*value))).collect());
        }
        Ok(())
    }

    /// All rows.
    ///
    /// # Errors
    /// Those of the table.
    pub(super) fn rows(&mut self) -> caravan_kv::Result<Rows<V>> {
        if self.is_dense {
            let all = self.first.keys()?;
            self.add(all)?;
        }
        let mut keys: Vec<u64> = self.numbers.rows.keys().copied().collect();
        keys.sort_unstable();
        Ok(Rows { values: self.numbers.read(&keys), keys, width: self.numbers.width })
    }
}

impl<V: Value> Numbers<V> {
    /// The values of rows as they are at this moment.
    pub(super) fn read(&self, keys: &[u64]) -> Vec<V> {
        let rows = keys.iter().filter_map(|key| self.rows.get(key));
        rows.flatten().map(|value| of_bits(value.load(Ordering::Relaxed))).collect()
    }

    /// Changes rows by what is pushed at this clock.
    pub(super) fn write(&self, clock: u64, keys: &[u64], pushed: &[V]) {
        let rate = match self.rule {
            Rule::Add => None,
            Rule::Sgd(Sgd { rate, decay }) => Some(rate / (1.0 + decay * clock as f64)),
        };
        for (key, pushed) in keys.iter().zip(pushed.chunks_exact(self.width.max(1))) {
            let row = self.rows.get(key).map_or(&[][..], Vec::as_slice);
            for (stored, pushed) in row.iter().zip(pushed) {
                let change = |stored: u64| Some(changed::<V>(stored, bits(*pushed), rate));
                // It always has a new value.
                let _ = stored.fetch_update(Ordering::Relaxed, Ordering::Relaxed, change);
            }
        }
    }
}

fn bits<V: Value>(value: V) -> u64 {
    let mut bits = [0; 8];
    bits[..V::BYTES].copy_from_slice(V::bytes(&[value]));
    u64::from_le_bytes(bits)
}

fn of_bits<V: Value>(bits: u64) -> V {
    let mut value = [V::default()];
    V::bytes_mut(&mut value).copy_from_slice(&bits.to_le_bytes()[..V::BYTES]);
    value[0]
}

/// A number after a push, with the rounding of the handles `add` and `sgd`.
fn changed<V: Value>(stored: u64, pushed: u64, rate: Option<f64>) -> u64 {
    match V::BYTES {
        4 => {
            let [stored, pushed] = [stored, pushed].map(|bits| f32::from_bits(bits as u32));
            let changed = match rate {
                Some(rate) => stored - pushed * rate as f32,
                None => stored + pushed,
            };
            u64::from(changed.to_bits())
        }
        _ => {
            let [stored, pushed] = [stored, pushed].map(f64::from_bits);
            let changed = match rate {
                Some(rate) => stored - pushed * rate,
                None => stored + pushed,
            };
            changed.to_bits()
        }
    }
}
