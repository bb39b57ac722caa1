//! The specification of a table: its keys, its values, and the rule by which servers apply pushes
//! to it.

use std::fmt::Display;

use caravan_van::{KeyRange, Value};
use serde::{Deserialize, Serialize};

use crate::consistency::{Consistency, Model};
use crate::error::{Error, Result};
use crate::eviction::EvictionRule;
use crate::filter::{Filters, Named};
use crate::map::Placement;
use crate::node::is_within;

/// Contiguous values of at least this many bytes are sent from where the server stores them; fewer
/// are copied into the message, unless the van lends them. A later update of values that are still
/// being read must first copy their chunk.
pub(crate) const SHARED_BYTES_MIN: usize = 16 << 10;

/// Element type of a table's values.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
#[allow(missing_docs, reason = "the names say it")]
pub enum ValueType {
    F32,
    F64,
    I32,
    I64,
    U8,
    F16,
    BF16,
    U32,
    U64,
}

/// Evaluates an expression with a name bound to the Rust type of a table's values.
///
/// With a list of types, only those are bound; the expression behind `else` stands for the others.
macro_rules! with_type {
    ($value:expr, $of:ident => $body:expr) => {
        $crate::table::with_type!(
            $value, $of => $body;
            F32 = f32, F64 = f64, I32 = i32, I64 = i64, U8 = u8, F16 = half::f16, BF16 = half::bf16,
            U32 = u32, U64 = u64;
        )
    };
    (
        $value:expr, $of:ident => $body:expr; $($name:ident = $rust:ty),*;
        $(else $others:expr)?
    ) => {
        match $value {
            $($crate::table::ValueType::$name => {
                type $of = $rust;
                $body
            })*
            $(_ => $others,)?
        }
    };
}
pub(crate) use with_type;

impl ValueType {
    /// All types, in order of their codes.
    pub const ALL: [ValueType; 9] = [
        ValueType::F32,
        ValueType::F64,
        ValueType::I32,
        ValueType::I64,
        ValueType::U8,
        ValueType::F16,
        ValueType::BF16,
        ValueType::U32,
        ValueType::U64,
    ];

    /// The type for `V`.
    #[inline]
    pub fn of<V: Value>() -> Option<ValueType> {
        Self::ALL.get(usize::from(V::CODE).wrapping_sub(1)).copied()
    }

    /// Whether its values are integers.
    pub fn is_integer(self) -> bool {
        use ValueType::{I32, I64, U8, U32, U64};
        matches!(self, I32 | I64 | U8 | U32 | U64)
    }

    /// Size of one value in bytes.
    #[inline]
    pub fn bytes(self) -> usize {
        with_type!(self, V => V::BYTES)
    }

    /// The type's code on the wire.
    #[inline]
    pub fn code(self) -> u8 {
        with_type!(self, V => V::CODE)
    }

    /// Its name in Rust, or in the crate `half`.
    pub fn name(self) -> &'static str {
        with_type!(self, V => V::NAME)
    }
}

/// How a shard stores its rows.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Store {
    /// A row for every key of the range, from the start.
    Dense,
    /// Rows only for keys that were pushed; others read as the table's initial values.
    Sparse,
}

/// Values of a row before the first push to it, also of one that is pulled and does not exist.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase", deny_unknown_fields)]
pub enum Initial {
    /// 0.
    #[default]
    Zero,
    /// The number in this text, which the table's type must have: `0.5`, `inf`, `-1`.
    Constant(String),
    /// Random numbers between two bounds, for tables of floating-point numbers. Each depends only
    /// on the seed, the table's id, the key and the column, and so not on the number of servers.
    Uniform {
        /// Lowest value, finite.
        low: f64,
        /// Highest value, finite.
        high: f64,
        /// Any number; another one draws other values.
        #[serde(default)]
        seed: u64,
    },
}

impl Initial {
    /// The same number for all values, as `Initial::constant(f32::INFINITY)`.
    pub fn constant(value: impl Display) -> Self {
        Initial::Constant(value.to_string())
    }

    fn is_zero(&self) -> bool {
        *self == Initial::Zero
    }
}

/// Everything that nodes must agree on about a table. Its first creator decides; others must
/// request the same.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct TableSpec {
    /// Its number in its namespace. A table that was dropped leaves it to another one.
    pub id: u32,
    /// Its name in messages to people.
    pub name: String,
    /// The namespace of `id`: jobs that share a cluster have one each. It may have others within,
    /// as `job/weights` is within `job`. Empty by default.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub namespace: String,
    /// First key.
    pub begin: u64,
    /// One past the last key; 0 stands for 2^64.
    pub end: u64,
    /// Element type.
    pub value: ValueType,
    /// Values per key; 0 if every key has its own number of them.
    pub width: u32,
    /// How rows are stored.
    pub store: Store,
    /// Name of the update rule: `add`, `assign`, another of [`crate::server`], or one registered
    /// at the servers.
    pub handle: String,
    /// Settings of the update rule: null for its defaults, or an object that names some of its
    /// options, as `{"rate": 0.1}`. [`crate::server::Sgd`] and its like are such objects in Rust.
    pub options: serde_json::Value,
    /// Values of new rows, and of rows that do not exist.
    #[serde(default, skip_serializing_if = "Initial::is_zero")]
    pub initial: Initial,
    /// How its keys are cut among the server threads.
    #[serde(default, skip_serializing_if = "Placement::is_default")]
    pub placement: Placement,
    /// Filters that make its messages smaller.
    #[serde(default, skip_serializing_if = "Filters::is_none")]
    pub filters: Filters,
    /// Filters from outside this crate, which are registered under these names at workers and
    /// servers, in the order in which pushes pass them.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub own_filters: Vec<Named>,
    /// When its requests are executed; as they come if it has no model.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub consistency: Option<Consistency>,
    /// Whether a worker's pushes are applied once in an iteration, and repeats only acknowledged.
    #[serde(default, skip_serializing_if = "is_false")]
    pub once: bool,
    /// Copies of each shard on other server threads, so that no acknowledged push is lost with as
    /// many of them.
    #[serde(default, skip_serializing_if = "is_zero")]
    pub replicas: u32,
    /// Whether requests are answered before the copies have what they do.
    #[serde(default, skip_serializing_if = "is_false")]
    pub asynchronous: bool,
    /// Which keys get rows, and which rows go; all keys that are pushed, and none, if it has none.
    #[serde(default, rename = "turnover", skip_serializing_if = "Option::is_none")]
    pub eviction: Option<EvictionRule>,
}

#[expect(clippy::trivially_copy_pass_by_ref, reason = "serde calls it")]
fn is_zero(number: &u32) -> bool {
    *number == 0
}

#[expect(clippy::trivially_copy_pass_by_ref, reason = "serde calls it")]
fn is_false(flag: &bool) -> bool {
    !flag
}

impl TableSpec {
    /// A sparse table over all keys with `width` values of type `value` per key, to which pushes
    /// are added.
    pub fn new(id: u32, name: &str, value: ValueType, width: u32) -> Self {
        TableSpec {
            id,
            name: name.to_owned(),
            namespace: String::new(),
            begin: 0,
            end: 0,
            value,
            width,
            store: Store::Sparse,
            handle: "add".to_owned(),
            options: serde_json::Value::Null,
            initial: Initial::Zero,
            placement: Placement::default(),
            filters: Filters::NONE,
            own_filters: Vec::new(),
            consistency: None,
            once: false,
            replicas: 0,
            asynchronous: false,
            eviction: None,
        }
    }

    /// The same table in another namespace.
    pub fn namespace(mut self, namespace: &str) -> Self {
        self.namespace = namespace.to_owned();
        self
    }

    /// The same table with keys `[begin, end)` only.
    pub fn keys(mut self, range: KeyRange) -> Self {
        self.begin = range.begin();
        self.end = range.end();
        self
    }

    /// The same table with a row for every key from the start.
    pub fn dense(mut self) -> Self {
        self.store = Store::Dense;
        self
    }

    /// The same table with another update rule.
    pub fn handle(mut self, name: &str) -> Self {
        self.handle = name.to_owned();
        self
    }

    /// The same table with settings for its update rule.
    pub fn options(mut self, options: serde_json::Value) -> Self {
        self.options = options;
        self
    }

    /// The same table with its keys cut otherwise among the server threads.
    pub fn placement(mut self, placement: Placement) -> Self {
        self.placement = placement;
        self
    }

    /// The same table with other initial values than 0.
    pub fn initial(mut self, initial: Initial) -> Self {
        self.initial = initial;
        self
    }

    /// The same table with filters; [`Filters::check`] tells which it can have.
    pub fn filters(mut self, filters: Filters) -> Self {
        self.filters = filters;
        self
    }

    /// The same table with one more filter of
    /// [`OwnFilters`](crate::filter::OwnFilters), and its settings.
    pub fn own_filter(mut self, name: &str, options: serde_json::Value) -> Self {
        self.own_filters.push(Named { name: name.to_owned(), options });
        self
    }

    /// Whether it has filters of any kind.
    pub(crate) fn has_filters(&self) -> bool {
        !self.filters.is_none() || !self.own_filters.is_empty()
    }

    /// The same table under a consistency model, for `workers` workers. Each calls
    /// [`Clocks::join`](crate::Clocks::join) before its first iteration.
    pub fn consistency(mut self, model: Model, workers: u32) -> Self {
        self.consistency = Some(Consistency { model, workers });
        self
    }

    /// The same table, which applies each worker's push to a key once in an iteration. What was
    /// applied is only acknowledged when it comes again, so that a worker can repeat a push of
    /// which it does not know the outcome ([`Admin::reconnect`](crate::Admin::reconnect)).
    ///
    /// A push stands for all keys of a server from its first to its last one there: a second push
    /// of the iteration between them counts as a repeat. Take one push an iteration, or pushes for
    /// ranges that do not overlap.
    pub fn once(mut self) -> Self {
        self.once = true;
        self
    }

    /// The same table with this many copies of each shard, on other server threads. A push is
    /// answered when all copies have it. When a server is lost, the next one that has a copy
    /// serves, and workers send it again what was not answered. The scheduler says who is lost,
    /// without one [`Admin::watch_servers`](crate::Admin::watch_servers).
    pub fn replicas(mut self, replicas: u32) -> Self {
        self.replicas = replicas;
        self
    }

    /// The same table, whose requests are answered before its copies have what they do: as soon as
    /// without copies. The loss of a server then loses the pushes and commands that it had
    /// answered and not passed on: no more to each of its shards than a lane has credits
    /// ([`NodeConfig::credits`](crate::NodeConfig::credits)), unless a copy was missing. None is
    /// applied twice, or in part. Whoever has read them reads older values then.
    pub fn asynchronous(mut self) -> Self {
        self.asynchronous = true;
        self
    }

    /// The same table, in which rows come and go.
    pub fn eviction(mut self, eviction: EvictionRule) -> Self {
        self.eviction = Some(eviction);
        self
    }

    /// Checks its model, its copies and its eviction, if it has any.
    ///
    /// # Errors
    /// [`Error::Config`] names the table.
    pub(crate) fn check_consistency(&self) -> Result<()> {
        if let Some(eviction) = &self.eviction {
            eviction.check(self)?;
        }
        let checked = match self.consistency {
            _ if self.asynchronous && self.replicas == 0 => {
                Err("only copies can be asynchronous: give it replicas".to_owned())
            }
            Some(_) if self.asynchronous => {
                Err("a model waits for clocks, which asynchronous copies may lose".to_owned())
            }
            Some(_) if self.once && self.replicas > 0 => {
                Err("a table with replicas knows repeats by itself: leave once out".to_owned())
            }
            Some(consistency) => consistency.check(),
            None if self.once => Err("once needs iterations, so a consistency model".to_owned()),
            None => Ok(()),
        };
        checked.map_err(|reason| Error::Config(format!("table {}: {reason}", self.name)))
    }

    /// The key range.
    ///
    /// # Errors
    /// [`Error::Config`] if it is empty.
    pub fn range(&self) -> Result<KeyRange> {
        KeyRange::new(self.begin, self.end).ok_or_else(|| {
            Error::Config(format!(
                "table {} has no keys: [{}, {})",
                self.name, self.begin, self.end
            ))
        })
    }

    /// Whether its namespace is this one, or within it.
    pub(crate) fn is_within(&self, namespace: &str) -> bool {
        is_within(&self.namespace, namespace)
    }

    /// Bytes of one row; 0 if rows have their own lengths.
    pub fn row_bytes(&self) -> usize {
        self.width as usize * self.value.bytes()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn types_are_found_by_what_stands_for_them() {
        for of in ValueType::ALL {
            assert_eq!(with_type!(of, V => ValueType::of::<V>()), Some(of));
        }
    }

    #[test]
    fn a_namespace_is_within_those_before_its_slashes() {
        let spec = TableSpec::new(1, "t", ValueType::F32, 1).namespace("job/weights");
        assert!(spec.is_within("job") && spec.is_within("job/weights"));
        for other in ["", "jo", "job/", "job/weights/x", "weights"] {
            assert!(!spec.is_within(other), "{other}");
        }
        let spec = spec.namespace("");
        assert!(spec.is_within("") && !spec.is_within("job"));
        assert!(spec.namespace("/dbpg").is_within(""));
    }
}
