//! Update rules of tables, and their names.
//!
//! Path: codec > thread > shard > store (**handle**) > answer.

mod sum;

use std::collections::HashMap;
use std::sync::Arc;

use caravan_van::{KeyRange, Pool, Value, long};

pub use self::sum::Sum;
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
