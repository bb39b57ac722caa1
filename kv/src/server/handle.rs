//! Update rules of tables, and their names.
//!
//! Path: codec > thread > shard > store (**handle**) > answer.

mod adagrad;
mod adam;
mod ftrl;
mod number;
mod operators;
mod options;
mod sgd;
mod sum;
mod vectors;

use std::collections::HashMap;
use std::sync::Arc;

use caravan_van::{KeyRange, Pool, Value, long};

pub use self::adagrad::AdaGrad;
pub use self::adam::Adam;
pub use self::ftrl::Ftrl;
use self::number::Float;
pub use self::number::Number;
pub use self::sgd::{Momentum, Sgd};
pub use self::sum::Sum;
use super::eviction::Changing;
use super::initial::Start;
use super::shard::Shard;
use super::store::Rows;
use super::varying::VaryingRows;
use crate::consistency::{Consistency, Controller};
use crate::filter::OwnFilters;
use crate::node::{Handler, Handlers};
use crate::refusal::{Refusal, Refused};
use crate::table::{Initial, TableSpec, ValueType, with_type};
use crate::vector::HANDLE;

/// An update rule: how a push changes a row. Closures `FnMut(key, stored, pushed)` are rules.
///
/// A row holds values that pulls show, and may have hidden ones beside them, which never leave the
/// server.
pub trait Rule<V>: 'static {
    /// Type of hidden values; any if there are none.
    type Hidden: Value;

    /// Whether a push replaces the row, whatever its previous values. Such a push may change the
    /// row's length, and large rows are stored without a copy.
    const REPLACES: bool = false;

    /// Whether the rule reads each pushed value once, and any number will do: it checks none that
    /// it then relies on.
    ///
    /// Such a rule may read lent values in memory that their sender can still write. For other
    /// rules, the server copies lent values first.
    const READS_ONCE: bool = false;

    /// Whether the rule treats all values alike, whatever their key and column.
    ///
    /// Such a rule is given consecutive rows at once, with the key of the first, so that the
    /// compiler can vectorise its loop. Its rows have equally many hidden values for each value.
    const BY_VALUE: bool = false;

    /// Number of hidden values of a row of `width` values, always the same. Tables of width 0 have
    /// none.
    #[inline]
    fn hidden(&self, _width: usize) -> usize {
        0
    }

    /// Sets the hidden values of a new row, which are 0, once `stored` has its initial values.
    fn init(&mut self, _key: u64, _stored: &[V], _hidden: &mut [Self::Hidden]) {}

    /// Applies `pushed: [width]` to `stored: [width]` and `hidden`. A new row has the table's
    /// initial values.
    fn apply(
        &mut self,
        origin: Origin,
        key: u64,
        stored: &mut [V],
        hidden: &mut [Self::Hidden],
        pushed: &[V],
    );
}

/// Where a push comes from.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Origin {
    /// Node id of the worker.
    pub sender: u32,
    /// The worker's command number ([`Worker::set_command`](crate::Worker::set_command)).
    pub command: i32,
    /// The worker's iteration.
    pub clock: u64,
}

/// `stored += pushed`, as [`Sum`] defines it.
#[derive(Debug, Clone, Copy)]
pub struct Add;

impl<V: Sum> Rule<V> for Add {
    type Hidden = V;
    const READS_ONCE: bool = true;
    const BY_VALUE: bool = true;

    #[inline]
    fn apply(&mut self, _: Origin, _: u64, stored: &mut [V], _: &mut [V], pushed: &[V]) {
        V::add_up(stored, pushed);
    }
}

/// `stored = pushed`.
#[derive(Debug, Clone, Copy)]
pub struct Assign;

impl<V: Value> Rule<V> for Assign {
    type Hidden = V;
    const REPLACES: bool = true;
    const READS_ONCE: bool = true;
    const BY_VALUE: bool = true;

    #[inline]
    fn apply(&mut self, _: Origin, _: u64, stored: &mut [V], _: &mut [V], pushed: &[V]) {
        long::copy(V::bytes_mut(stored), V::bytes(pushed));
    }
}

impl<V: Value, F: FnMut(u64, &mut [V], &[V]) + 'static> Rule<V> for F {
    type Hidden = V;

    #[inline]
    fn apply(&mut self, _: Origin, key: u64, stored: &mut [V], _: &mut [V], pushed: &[V]) {
        self(key, stored, pushed);
    }
}

type Build = dyn Fn(&TableSpec, KeyRange, &Pool) -> Result<Box<dyn Shard>, Refused> + Send + Sync;

/// The handles by name, of which servers build shards. Always included are `add` and `assign`; the
/// operators `sub`, `mul`, `div`, `min`, `max`, `and`, `or` and `xor`; and the optimisers `sgd`
/// ([`Sgd`]), `momentum` ([`Momentum`]), `adagrad` ([`AdaGrad`]), `adam` ([`Adam`]) and `ftrl`
/// ([`Ftrl`]); and `vectors` ([`vector`](crate::vector)).
#[derive(Clone)]
pub struct Handles {
    handles: HashMap<String, Handle>,
    controllers: Option<Arc<MakeController>>,
    handlers: Handlers,
    filters: OwnFilters,
}

type MakeController = dyn Fn(&Consistency, KeyRange) -> Option<Box<dyn Controller>> + Send + Sync;

#[derive(Clone)]
struct Handle {
    build: Arc<Build>,
    /// Whether its shards are rows, which can have initial values.
    has_rows: bool,
}

/// Builds the shard of an optimiser: its options, and the expression of its rule with the type to
/// compute with.
macro_rules! optimiser {
    ($options:ty, $real:ident => $rule:expr) => {
        |spec: &TableSpec, range: KeyRange, memory: &Pool| {
            let options: $options = options::read(spec)?;
            with_type!(
                spec.value, V => {
                    type $real = <V as Float>::Real;
                    let rule = $rule(options).map_err(|why: Refused| options::refuse(spec, &why.reason))?;
                    rows::<V, _>(spec, range, rule, memory)
                };
                F32 = f32, F64 = f64, F16 = half::f16, BF16 = half::bf16;
                else Err(unsuited(spec, "f32, f64, f16 and bf16"))
            )
        }
    };
}

impl Default for Handles {
    fn default() -> Self {
        let (handles, handlers) = (HashMap::new(), Handlers::default());
        let filters = OwnFilters::default();
        let handles = Handles { handles, controllers: None, handlers, filters };
        let handles = handles.with_rows("add", build_add);
        let handles = handles.with_rows("assign", build_assign);
        let operators = operators::NAMES.into_iter();
        operators
            .fold(handles, |handles, name| handles.with_rows(name, operators::build))
            .with_rows("sgd", optimiser!(Sgd, R => sgd::SgdRule::new::<R>))
            .with_rows("momentum", optimiser!(Momentum, R => sgd::MomentumRule::<R>::new))
            .with_rows("adagrad", optimiser!(AdaGrad, R => adagrad::AdaGradRule::<R>::new))
            .with_rows("adam", optimiser!(Adam, R => adam::AdamRule::<R>::new))
            .with_rows("ftrl", optimiser!(Ftrl, R => ftrl::FtrlRule::<R>::new))
            .with(HANDLE, vectors::build)
    }
}

impl Handles {
    /// Adds a custom kind of shard.
    pub fn with(
        self,
        name: &str,
        build: impl Fn(&TableSpec, KeyRange, &Pool) -> Result<Box<dyn Shard>, Refused>
        + Send
        + Sync
        + 'static,
    ) -> Self {
        self.insert(name, Handle { build: Arc::new(build), has_rows: false })
    }

    /// Adds a custom update rule for tables of `V`; `make` is called once per shard.
    pub fn with_rule<V: Number, R: Rule<V>>(
        self,
        name: &str,
        make: impl Fn(&TableSpec) -> R + Send + Sync + 'static,
    ) -> Self {
        self.with_rows(name, move |spec, range, memory| match ValueType::of::<V>() {
            Some(value) if value == spec.value => rows::<V, R>(spec, range, make(spec), memory),
            _ => Err(unsuited(spec, V::NAME)),
        })
    }

    fn with_rows(
        self,
        name: &str,
        build: impl Fn(&TableSpec, KeyRange, &Pool) -> Result<Box<dyn Shard>, Refused>
        + Send
        + Sync
        + 'static,
    ) -> Self {
        self.insert(name, Handle { build: Arc::new(build), has_rows: true })
    }

    fn insert(mut self, name: &str, handle: Handle) -> Self {
        self.handles.insert(name.to_owned(), handle);
        self
    }

    /// Adds controllers for tables with a consistency model: servers take what `make` returns for a
    /// shard of these keys in place of the model's own, unless it returns none.
    pub fn with_controllers(
        mut self,
        make: impl Fn(&Consistency, KeyRange) -> Option<Box<dyn Controller>> + Send + Sync + 'static,
    ) -> Self {
        self.controllers = Some(Arc::new(make));
        self
    }

    /// Adds a handler to requests of other nodes; each server calls `make` before it joins.
    pub fn with_handler(
        mut self,
        name: &str,
        make: impl Fn() -> Box<dyn Handler> + Send + Sync + 'static,
    ) -> Self {
        self.handlers.insert(name, make);
        self
    }

    /// Sets the filters that tables may name; workers have the same
    /// ([`Admin::set_filters`](crate::Admin::set_filters)).
    pub fn with_filters(mut self, filters: OwnFilters) -> Self {
        self.filters = filters;
        self
    }

    pub(crate) fn filters(&self) -> &OwnFilters {
        &self.filters
    }

    pub(crate) fn handlers(&self) -> &Handlers {
        &self.handlers
    }

    /// The controller of a shard with these keys; `is_dense` says whether it has a row for each.
    pub(in crate::server) fn controller(
        &self,
        consistency: &Consistency,
        range: KeyRange,
        is_dense: bool,
    ) -> Box<dyn Controller> {
        let own = self.controllers.as_ref().and_then(|make| make(consistency, range));
        own.unwrap_or_else(|| consistency.controller(range, is_dense))
    }

    /// Builds a shard of a table: the keys of `range`, with rows in `memory`. Server threads call
    /// this to create a table.
    ///
    /// # Errors
    /// A text for the worker that creates the table: the known handles, if `spec` names another
    /// one, or the handle's reason to reject `spec`.
    pub fn build(
        &self,
        spec: &TableSpec,
        range: KeyRange,
        memory: &Pool,
    ) -> Result<Box<dyn Shard>, Refused> {
        let Some(Handle { build, has_rows }) = self.handles.get(&spec.handle) else {
            let mut known: Vec<_> = self.handles.keys().map(String::as_str).collect();
            known.sort_unstable();
            return Err(Refusal::Unsupported.because(format!(
                "there is no handle {}; this server has {}",
                spec.handle,
                known.join(", ")
            )));
        };
        if !has_rows && spec.initial != Initial::Zero {
            return Err(options::refuse(spec, "its rows begin as it says, so leave out `initial`"));
        }
        let rows = build(spec, range, memory)?;
        match spec.eviction {
            Some(it) => Ok(Box::new(Changing::new(rows, spec, it, range, memory)?)),
            None => Ok(rows),
        }
    }
}

fn build_add(spec: &TableSpec, range: KeyRange, memory: &Pool) -> Result<Box<dyn Shard>, Refused> {
    options::take_none(spec)?;
    with_type!(spec.value, V => rows::<V, _>(spec, range, Add, memory))
}

fn build_assign(
    spec: &TableSpec,
    range: KeyRange,
    memory: &Pool,
) -> Result<Box<dyn Shard>, Refused> {
    options::take_none(spec)?;
    with_type!(spec.value, V => rows::<V, _>(spec, range, Assign, memory))
}

fn rows<V: Number, R: Rule<V>>(
    spec: &TableSpec,
    range: KeyRange,
    rule: R,
    memory: &Pool,
) -> Result<Box<dyn Shard>, Refused> {
    let start = Start::new(spec)?;
    Ok(match spec.width {
        0 if rule.hidden(1) > 0 => {
            return Err(options::refuse(
                spec,
                "it keeps hidden values, so the width is 1 or more, not 0",
            ));
        }
        0 => Box::new(VaryingRows::<V, R>::new(spec, rule, start, memory)?),
        _ => Box::new(Rows::<V, R>::new(spec, range, rule, start, memory)?),
    })
}

/// The error of a handle that is for other values than the table's.
fn unsuited(spec: &TableSpec, allowed: &str) -> Refused {
    options::refuse(
        spec,
        &format!("it is for {allowed} values, and the table holds {}", spec.value.name()),
    )
}

/// Steps each value with its `N` hidden ones: `step` takes the value, the hidden ones and the
/// pushed value, and returns the new value.
#[inline]
fn each<V: Float, const N: usize>(
    stored: &mut [V],
    hidden: &mut [V::Real],
    pushed: &[V],
    mut step: impl FnMut(V::Real, &mut [V::Real; N], V::Real) -> V::Real,
) {
    let hidden = hidden.as_chunks_mut().0;
    for ((stored, hidden), pushed) in stored.iter_mut().zip(hidden).zip(pushed) {
        *stored = V::round(step(stored.widen(), hidden, pushed.widen()));
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, reason = "tests")]
    use super::*;

    /// The weights after each push of a gradient at clock 3.
    fn weights<V: Number, R: Rule<V>>(mut rule: R, first: V, gradients: &[V]) -> Vec<V> {
        let mut stored = [first];
        let mut hidden = vec![R::Hidden::default(); rule.hidden(1)];
        rule.init(7, &stored, &mut hidden);
        let mut step = |gradient: &V| {
            let origin = Origin { sender: 1, command: 0, clock: 3 };
            rule.apply(origin, 7, &mut stored, &mut hidden, &[*gradient]);
            stored[0]
        };
        gradients.iter().map(&mut step).collect()
    }

    /// Formulas on paper, with numbers that need no rounding.
    #[test]
    fn optimisers_take_the_steps_of_their_papers() {
        let sgd = sgd::SgdRule::new::<f64>(Sgd { rate: 0.5, decay: 1.0 }).unwrap();
        assert_eq!(weights(sgd, 1.0, &[8.0, -4.0]), [0.0, 0.5]);
        let momentum = Momentum { rate: 0.5, momentum: 0.5 };
        let momentum = sgd::MomentumRule::<f64>::new(momentum).unwrap();
        assert_eq!(weights(momentum, 1.0, &[2.0, 2.0, 0.0]), [0.0, -1.5, -2.25]);
        let adagrad = AdaGrad { rate: 4.0, epsilon: 2.0, squares: 7.0 };
        let adagrad = adagrad::AdaGradRule::<f64>::new(adagrad).unwrap();
        assert_eq!(weights(adagrad, 0.0, &[3.0, 0.0]), [-2.0, -2.0]);
        let adam = Adam { rate: 1.0, beta1: 0.5, beta2: 0.5, epsilon: 1.0 };
        let adam = adam::AdamRule::<f64>::new(adam).unwrap();
        assert_eq!(weights(adam, 1.0, &[3.0, 3.0]), [0.25, -0.5]);
        let ftrl = || ftrl::FtrlRule::<f64>::new(Ftrl { rate: 1.0, beta: 1.0, l1: 1.0, l2: 0.0 });
        assert_eq!(weights(ftrl().unwrap(), 0.0, &[3.0, -4.0]), [-0.5, 0.0]);
        assert_eq!(weights(ftrl().unwrap(), 2.0, &[0.0]), [2.0], "the first weight stays");
    }

    /// A weight of a half is rounded, its velocity is not.
    #[test]
    fn hidden_values_of_halves_are_not_rounded_to_halves() {
        let rule = || sgd::MomentumRule::<f32>::new(Momentum { rate: 1.0, momentum: 0.875 });
        let small = half::f16::MIN_POSITIVE_SUBNORMAL;
        let mut hidden = [0.0_f32];
        for _ in 0..3 {
            let origin = Origin { sender: 1, command: 0, clock: 0 };
            rule().unwrap().apply(origin, 7, &mut [half::f16::ONE], &mut hidden, &[small]);
        }
        let pushes = 1.0 + 0.875 + 0.875 * 0.875;
        assert_eq!(hidden, [-pushes * small.to_f32()]);
    }
}
