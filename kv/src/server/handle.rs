//! Update rules of tables, and their names.
//!
//! Path: codec > thread > shard > store (**handle**) > answer.

use std::collections::HashMap;
use std::sync::Arc;

use caravan_van::{KeyRange, Pool, Value, long};
use half::slice::HalfFloatSliceExt;
use half::{bf16, f16};

use super::shard::Shard;
use super::store::Rows;
use super::varying::VaryingRows;
use crate::table::{TableSpec, ValueType, with_type};

/// An update rule: how a push changes a row. Closures `FnMut(key, stored, pushed)` are rules.
pub trait Rule<V>: 'static {
    /// Whether a push replaces the row, whatever its previous values. Such a push may change the
    /// row's length, and large rows are stored without a copy.
    const REPLACES: bool = false;

    /// Whether the rule reads each pushed value once, and only adds or copies it.
    ///
    /// Such a rule may read lent values in memory that their sender can still write. For other
    /// rules, the server copies lent values first.
    const READS_ONCE: bool = false;

    /// Applies `pushed` to `stored`, which has as many values. New rows are zero.
    fn apply(&mut self, key: u64, stored: &mut [V], pushed: &[V]);

    /// As [`Rule::apply`], for consecutive rows of equal width: both slices are `[n * width]`. A
    /// rule that treats all values equally can update them in one loop, which the compiler
    /// vectorises.
    fn apply_run(&mut self, keys: &[u64], stored: &mut [V], pushed: &[V]) {
        let width = pushed.len() / keys.len().max(1);
        let rows = stored.chunks_exact_mut(width.max(1)).zip(pushed.chunks_exact(width.max(1)));
        keys.iter().zip(rows).for_each(|(&key, (stored, pushed))| self.apply(key, stored, pushed));
    }
}

/// `stored += pushed`, as [`Sum`] defines it.
#[derive(Debug, Clone, Copy)]
pub struct Add;

impl<V: Sum> Rule<V> for Add {
    const READS_ONCE: bool = true;

    #[inline]
    fn apply(&mut self, _key: u64, stored: &mut [V], pushed: &[V]) {
        V::add_up(stored, pushed);
    }

    fn apply_run(&mut self, _keys: &[u64], stored: &mut [V], pushed: &[V]) {
        V::add_up(stored, pushed);
    }
}

/// A number that [`Add`] can add.
pub trait Sum: Value {
    /// Adds `pushed` to `stored`, which has as many values.
    ///
    /// Integers wrap around, since a worker's numbers must not stop a server. Halves are added as
    /// `f32` and rounded to the nearest, ties to even.
    fn add_up(stored: &mut [Self], pushed: &[Self]);
}

macro_rules! sum {
    ($($of:ty: $plus:expr),*) => {$(
        impl Sum for $of {
            #[inline]
            fn add_up(stored: &mut [Self], pushed: &[Self]) {
                let add = |(a, b): (&mut $of, &$of)| *a = $plus(*a, *b);
                if size_of_val(pushed) < long::LONG_BYTES {
                    return stored.iter_mut().zip(pushed).for_each(add);
                }
                const LINE: usize = long::LINE_BYTES / size_of::<$of>();
                let (lines, rest) = stored.as_chunks_mut::<LINE>();
                let (pushed, pushed_rest) = pushed.as_chunks::<LINE>();
                long::in_four_places(lines, pushed, |line, pushed| {
                    line.iter_mut().zip(pushed).for_each(add);
                });
                rest.iter_mut().zip(pushed_rest).for_each(add);
            }
        }
    )*};
}
sum!(
    f32: |a, b| a + b,
    f64: |a, b| a + b,
    i32: i32::wrapping_add,
    i64: i64::wrapping_add,
    u8: u8::wrapping_add
);

macro_rules! sum_as_f32 {
    ($($of:ty),*) => {$(
        impl Sum for $of {
            fn add_up(stored: &mut [Self], pushed: &[Self]) {
                let mut sums = [0.0; HALVES];
                let mut added = [0.0; HALVES];
                for (stored, pushed) in stored.chunks_mut(HALVES).zip(pushed.chunks(HALVES)) {
                    let sums = &mut sums[..stored.len()];
                    let added = &mut added[..stored.len()];
                    stored.convert_to_f32_slice(sums);
                    pushed.convert_to_f32_slice(added);
                    f32::add_up(sums, added);
                    stored.convert_from_f32_slice(sums);
                }
            }
        }
    )*};
}
sum_as_f32!(f16, bf16);

/// Halves converted at a time.
const HALVES: usize = 64;

/// `stored = pushed`.
#[derive(Debug, Clone, Copy)]
pub struct Assign;

impl<V: Value> Rule<V> for Assign {
    const REPLACES: bool = true;
    const READS_ONCE: bool = true;

    #[inline]
    fn apply(&mut self, _key: u64, stored: &mut [V], pushed: &[V]) {
        long::copy(V::bytes_mut(stored), V::bytes(pushed));
    }

    fn apply_run(&mut self, _keys: &[u64], stored: &mut [V], pushed: &[V]) {
        long::copy(V::bytes_mut(stored), V::bytes(pushed));
    }
}

impl<V, F: FnMut(u64, &mut [V], &[V]) + 'static> Rule<V> for F {
    fn apply(&mut self, key: u64, stored: &mut [V], pushed: &[V]) {
        self(key, stored, pushed);
    }
}

type Build =
    dyn Fn(&TableSpec, Option<KeyRange>, &Pool) -> Result<Box<dyn Shard>, String> + Send + Sync;

/// The handles by name, of which servers build shards. `add` and `assign` are always included.
#[derive(Clone)]
pub struct Handles(HashMap<String, Arc<Build>>);

impl Default for Handles {
    fn default() -> Self {
        let handles = Handles(HashMap::new());
        handles.with("add", build_add).with("assign", build_assign)
    }
}

impl Handles {
    /// Adds a custom kind of shard.
    pub fn with(
        mut self,
        name: &str,
        build: impl Fn(&TableSpec, Option<KeyRange>, &Pool) -> Result<Box<dyn Shard>, String>
        + Send
        + Sync
        + 'static,
    ) -> Self {
        self.0.insert(name.to_owned(), Arc::new(build));
        self
    }

    /// Adds a custom update rule for tables of `V`; `make` is called once per shard.
    pub fn with_rule<V: Value, R: Rule<V>>(
        self,
        name: &str,
        make: impl Fn(&TableSpec) -> R + Send + Sync + 'static,
    ) -> Self {
        let owned = name.to_owned();
        self.with(name, move |spec, range, memory| match ValueType::of::<V>() {
            Some(value) if value == spec.value => rows::<V, R>(spec, range, make(spec), memory),
            _ => Err(format!(
                "the handle {owned} is for {} values, the table holds {}",
                V::NAME,
                spec.value.name()
            )),
        })
    }

    /// Builds a thread's shard of a table: the keys of `range`, or no keys, with rows in `memory`.
    /// Server threads call this to create a table.
    ///
    /// # Errors
    /// A text for the worker that creates the table: the known handles, if `spec` names another
    /// one, or the handle's reason to reject `spec`.
    pub fn build(
        &self,
        spec: &TableSpec,
        range: Option<KeyRange>,
        memory: &Pool,
    ) -> Result<Box<dyn Shard>, String> {
        let Some(build) = self.0.get(&spec.handle) else {
            let mut known: Vec<_> = self.0.keys().map(String::as_str).collect();
            known.sort_unstable();
            return Err(format!(
                "there is no handle {}; this server has {}",
                spec.handle,
                known.join(", ")
            ));
        };
        build(spec, range, memory)
    }
}

fn build_add(
    spec: &TableSpec,
    range: Option<KeyRange>,
    memory: &Pool,
) -> Result<Box<dyn Shard>, String> {
    with_type!(spec.value, V => rows::<V, _>(spec, range, Add, memory))
}

fn build_assign(
    spec: &TableSpec,
    range: Option<KeyRange>,
    memory: &Pool,
) -> Result<Box<dyn Shard>, String> {
    with_type!(spec.value, V => rows::<V, _>(spec, range, Assign, memory))
}

fn rows<V: Value, R: Rule<V>>(
    spec: &TableSpec,
    range: Option<KeyRange>,
    rule: R,
    memory: &Pool,
) -> Result<Box<dyn Shard>, String> {
    Ok(match spec.width {
        0 => Box::new(VaryingRows::<V, R>::new(spec, rule, memory)?),
        _ => Box::new(Rows::<V, R>::new(spec, range, rule, memory)?),
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn integers_wrap_around_and_halves_are_rounded_to_even() {
        let mut bytes = [250, 1];
        u8::add_up(&mut bytes, &[10, 2]);
        assert_eq!(bytes, [4, 3]);
        // Neighbouring values differ by two above 2048 in f16, and above 256 in bf16.
        let mut halves = [2048.0, 2050.0, 60_000.0].map(f16::from_f32).repeat(50);
        f16::add_up(&mut halves, &[1.0, 1.0, 60_000.0].map(f16::from_f32).repeat(50));
        let expected = [2048.0, 2052.0, f32::INFINITY].map(f16::from_f32).repeat(50);
        assert_eq!(halves, expected);
        let mut halves = [256.0, 258.0].map(bf16::from_f32);
        bf16::add_up(&mut halves, &[bf16::ONE; 2]);
        assert_eq!(halves.map(bf16::to_f32), [256.0, 260.0]);
    }

    /// Covers values that are prefetched, and the rest behind the last whole cache line.
    #[test]
    fn long_pushes_are_added_as_short_ones() {
        for values in [0, 1, 21].map(|more| long::LONG_BYTES / 4 - 1 + more) {
            let pushed: Vec<i32> = (0..values as i32).map(|n| n * 3).collect();
            let mut sums: Vec<i32> = (0..values as i32).collect();
            i32::add_up(&mut sums, &pushed);
            assert!((0..).zip(&sums).all(|(n, &sum)| sum == 4 * n), "{values}");
        }
    }
}
