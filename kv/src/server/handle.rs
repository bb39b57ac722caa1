//! Update rules of tables, and the names under which servers know them.
//!
//! Path: 11 of 13.

use std::collections::HashMap;
use std::ops::AddAssign;
use std::sync::Arc;

use caravan_van::{KeyRange, Pool, Value};

use super::shard::Shard;
use super::store::{Rows, VaryingRows};
use crate::table::{TableSpec, ValueType};

/// How a push changes a row. Closures `FnMut(key, stored, pushed)` are rules.
pub trait Rule<V>: 'static {
    /// Whether a push replaces the row by what is pushed, whatever the row was: it may then change its length, and large
    /// rows are not even copied.
    const REPLACES: bool = false;

    /// Applies `pushed` to `stored`, which has as many values and was zero at first.
    fn apply(&mut self, key: u64, stored: &mut [V], pushed: &[V]);

    /// The same for rows of equal width that lie one behind the other: both slices are `[n * width]`. A rule that treats all
    /// values alike goes over them in one loop, which is vectorised.
    fn apply_run(&mut self, keys: &[u64], stored: &mut [V], pushed: &[V]) {
        let width = pushed.len() / keys.len().max(1);
        let rows = stored.chunks_exact_mut(width.max(1)).zip(pushed.chunks_exact(width.max(1)));
        keys.iter().zip(rows).for_each(|(&key, (stored, pushed))| self.apply(key, stored, pushed));
    }
}

/// `stored += pushed`.
#[derive(Debug, Clone, Copy)]
pub struct Add;

impl<V: Value + AddAssign> Rule<V> for Add {
    #[inline]
    fn apply(&mut self, _key: u64, stored: &mut [V], pushed: &[V]) {
        stored.iter_mut().zip(pushed).for_each(|(stored, pushed)| *stored += *pushed);
    }

    fn apply_run(&mut self, _keys: &[u64], stored: &mut [V], pushed: &[V]) {
        self.apply(0, stored, pushed);
    }
}

/// `stored += pushed` for integers, around the end: a worker's numbers must not be able to stop a server.
struct WrappingAdd;

impl Rule<i32> for WrappingAdd {
    #[inline]
    fn apply(&mut self, _key: u64, stored: &mut [i32], pushed: &[i32]) {
        stored.iter_mut().zip(pushed).for_each(|(a, b)| *a = a.wrapping_add(*b));
    }

    fn apply_run(&mut self, _keys: &[u64], stored: &mut [i32], pushed: &[i32]) {
        self.apply(0, stored, pushed);
    }
}

impl Rule<i64> for WrappingAdd {
    #[inline]
    fn apply(&mut self, _key: u64, stored: &mut [i64], pushed: &[i64]) {
        stored.iter_mut().zip(pushed).for_each(|(a, b)| *a = a.wrapping_add(*b));
    }

    fn apply_run(&mut self, _keys: &[u64], stored: &mut [i64], pushed: &[i64]) {
        self.apply(0, stored, pushed);
    }
}

/// `stored = pushed`.
#[derive(Debug, Clone, Copy)]
pub struct Assign;

impl<V: Value> Rule<V> for Assign {
    const REPLACES: bool = true;

    #[inline]
    fn apply(&mut self, _key: u64, stored: &mut [V], pushed: &[V]) {
        stored.copy_from_slice(pushed);
    }

    fn apply_run(&mut self, _keys: &[u64], stored: &mut [V], pushed: &[V]) {
        stored.copy_from_slice(pushed);
    }
}

impl<V, F: FnMut(u64, &mut [V], &[V]) + 'static> Rule<V> for F {
    fn apply(&mut self, key: u64, stored: &mut [V], pushed: &[V]) {
        self(key, stored, pushed);
    }
}

type Build =
    dyn Fn(&TableSpec, Option<KeyRange>, &Pool) -> Result<Box<dyn Shard>, String> + Send + Sync;

/// What servers can build shards of: handles by name. `add` and `assign` are always there.
#[derive(Clone)]
pub struct Handles(HashMap<String, Arc<Build>>);

impl Default for Handles {
    fn default() -> Self {
        let handles = Handles(HashMap::new());
        handles.with("add", build_add).with("assign", build_assign)
    }
}

impl Handles {
    /// Adds a kind of shard of your own.
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

    /// Adds an update rule of your own for tables of `V`; `make` is called once a shard.
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

    /// Builds a thread's shard of a table: its keys of `range`, or none without one, rows in `memory`. Server threads do it
    /// when a table is created.
    ///
    /// # Errors
    /// Names the handles there are if `spec` asks for another; else what the handle has against `spec`, as text for the worker
    /// that wants the table.
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
    match spec.value {
        ValueType::F32 => rows::<f32, _>(spec, range, Add, memory),
        ValueType::F64 => rows::<f64, _>(spec, range, Add, memory),
        ValueType::I32 => rows::<i32, _>(spec, range, WrappingAdd, memory),
        ValueType::I64 => rows::<i64, _>(spec, range, WrappingAdd, memory),
    }
}

fn build_assign(
    spec: &TableSpec,
    range: Option<KeyRange>,
    memory: &Pool,
) -> Result<Box<dyn Shard>, String> {
    match spec.value {
        ValueType::F32 => rows::<f32, _>(spec, range, Assign, memory),
        ValueType::F64 => rows::<f64, _>(spec, range, Assign, memory),
        ValueType::I32 => rows::<i32, _>(spec, range, Assign, memory),
        ValueType::I64 => rows::<i64, _>(spec, range, Assign, memory),
    }
}

fn rows<V: Value, R: Rule<V>>(
    spec: &TableSpec,
    range: Option<KeyRange>,
    rule: R,
    memory: &Pool,
) -> Result<Box<dyn Shard>, String> {
    Ok(match spec.width {
        0 => Box::new(VaryingRows::<V, R>::new(rule)),
        _ => Box::new(Rows::<V, R>::new(spec, range, rule, memory)?),
    })
}
