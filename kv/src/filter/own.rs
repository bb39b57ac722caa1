//! Filters from outside the crate, registered by name at workers and at servers. A table's
//! specification names them, so that both ends have the same.
//!
//! Path: worker > slicer > **filter** > message > codec > endpoint > transport.
//!
//! What they code is sent in place of a block or of plain values:
//!
//! ```text
//!  0 OWN u8     1 which filters have coded u8, a bit each     2 whether that is a block u8     3 0
//!  4 for each of these, in order, bytes before it u32
//!    bytes behind the last of them
//! ```

use std::collections::BTreeMap;
use std::fmt;
use std::sync::Arc;

use caravan_van::{Buffer, Pool};
use serde::{Deserialize, Serialize};

use super::noise::Noise;
use super::spec;
use super::stack::Number;
use crate::error::{Error, Result};
use crate::refusal::{Refusal, Refused};
use crate::table::{TableSpec, with_type};

/// Bytes before the lengths.
const HEAD_BYTES: usize = 4;

/// The first byte, which no block begins with.
const OWN: u8 = 32;

/// Most own filters of a table.
const FILTERS_MAX: usize = 8;

/// A filter of one table at one end.
///
/// A worker's pushes pass [`Filter::change`], the filters of [`super::Filters`] that work on
/// values, and [`Filter::encode`]; servers undo the latter by [`Filter::decode`]. Answers to pulls
/// pass none of them.
///
/// ```
/// use caravan_kv::filter::{Filter, OwnFilters};
/// use caravan_kv::{Refusal, Refused};
///
/// /// Leaves out bytes at the end that are 0.
/// struct Trim;
///
/// impl Filter for Trim {
///     fn encode(&mut self, bytes: &[u8], out: &mut Vec<u8>) -> bool {
///         let end = bytes.iter().rposition(|byte| *byte != 0).map_or(0, |last| last + 1);
///         out.extend_from_slice(&bytes[..end]);
///         end < bytes.len()
///     }
///
///     fn decode(&mut self, bytes: &[u8], into: &mut [u8]) -> Result<(), Refused> {
///         let long = || Refusal::Shape.because("it is longer than its values");
///         let place = into.get_mut(..bytes.len()).ok_or_else(long)?;
///         place.copy_from_slice(bytes); // the rest is 0
///         Ok(())
///     }
/// }
///
/// let filters = OwnFilters::default().with("trim", |_| Ok(Box::new(Trim)));
/// # drop(filters); // servers: Handles::with_filters; workers: Admin::set_filters
/// ```
pub trait Filter {
    /// Whether [`Filter::change`] changes values. Such a filter is for tables that add up
    /// floating-point numbers.
    fn is_lossy(&self) -> bool {
        false
    }

    /// Changes pushed values, before anything else sees them.
    fn change(&mut self, _values: &mut [f64]) {}

    /// Codes the values of a message, or what other filters have made of them: appends the result
    /// to `out`, and returns whether that is to be sent.
    fn encode(&mut self, _bytes: &[u8], _out: &mut Vec<u8>) -> bool {
        false
    }

    /// Undoes [`Filter::encode`]: writes as many bytes as were coded to `into`, which is zero. The
    /// bytes are those of a peer, and may be anything.
    ///
    /// # Errors
    /// The reason why they are invalid.
    fn decode(&mut self, _bytes: &[u8], _into: &mut [u8]) -> std::result::Result<(), Refused> {
        Err(Refusal::Shape.because("it codes nothing"))
    }
}

/// A filter that a table's specification names.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Named {
    /// The name under which it is registered at both ends.
    pub name: String,
    /// Its settings.
    #[serde(default)]
    pub options: serde_json::Value,
}

/// What a filter is made for.
#[derive(Debug, Clone, Copy)]
pub struct End<'a> {
    /// The table.
    pub spec: &'a TableSpec,
    /// The filter's settings.
    pub options: &'a serde_json::Value,
    /// Node id of the worker; `None` at a server.
    pub worker: Option<u32>,
}

type Make = dyn Fn(&End<'_>) -> std::result::Result<Box<dyn Filter>, Refused> + Send + Sync;

/// Registered filters, by name. Always included is `noise`, which adds Gaussian noise to each
/// pushed value: its options are `deviation`, the standard deviation, and `seed`.
#[derive(Clone)]
pub struct OwnFilters {
    filters: BTreeMap<String, Arc<Make>>,
}

impl Default for OwnFilters {
    fn default() -> Self {
        OwnFilters { filters: BTreeMap::new() }.with("noise", Noise::make)
    }
}

impl fmt::Debug for OwnFilters {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_set().entries(self.filters.keys()).finish()
    }
}

impl OwnFilters {
    /// Adds a filter; `make` is called for each table that names it, at each end.
    pub fn with(
        mut self,
        name: &str,
        make: impl Fn(&End<'_>) -> std::result::Result<Box<dyn Filter>, Refused> + Send + Sync + 'static,
    ) -> Self {
        self.filters.insert(name.to_owned(), Arc::new(make));
        self
    }

    /// The filters that a table names, for a worker or a server.
    ///
    /// # Errors
    /// [`Error::Config`] names the table, the filter and why the table cannot have it.
    pub(crate) fn make(&self, spec: &TableSpec, worker: Option<u32>) -> Result<Own> {
        let refuse = |name: &str, why: &str| {
            Err(Error::Config(format!("table {} cannot have the filter {name}: {why}", spec.name)))
        };
        let mut own = Own::default();
        for (at, Named { name, options }) in spec.own_filters.iter().enumerate() {
            let Some(make) = self.filters.get(name) else {
                let known: Vec<_> = self.filters.keys().map(String::as_str).collect();
                let end = if worker.is_some() { "worker" } else { "server" };
                return refuse(name, &format!("this {end} has {}", known.join(", ")));
            };
            if at == FILTERS_MAX {
                return refuse(name, &format!("it has {FILTERS_MAX} others, which is the limit"));
            }
            if spec.width == 0 {
                return refuse(name, "its rows have their own lengths");
            }
            let filter = match make(&End { spec, options, worker }) {
                Ok(filter) => filter,
                Err(why) => return refuse(name, &why.reason),
            };
            if filter.is_lossy()
                && let Some(why) = spec::why_exact(spec)
            {
                return refuse(name, why);
            }
            own.filters.push(filter);
        }
        Ok(own)
    }
}

/// The own filters of one table at one end.
#[derive(Default)]
pub(crate) struct Own {
    filters: Vec<Box<dyn Filter>>,
    /// What the last filter has made, and what the one before it has.
    made: [Vec<u8>; 2],
}

impl Own {
    pub(super) fn is_none(&self) -> bool {
        self.filters.is_empty()
    }

    pub(super) fn is_lossy(&self) -> bool {
        self.filters.iter().any(|filter| filter.is_lossy())
    }

    /// Pushed values as these filters change them.
    ///
    /// # Errors
    /// If memory is short.
    pub(super) fn change(
        &mut self,
        spec: &TableSpec,
        pushed: &[u8],
        pool: &Pool,
    ) -> caravan_van::Result<Buffer> {
        let mut changed = pool.allocate(pushed.len())?;
        with_type!(spec.value, V => change::<V>(&mut self.filters, pushed, &mut changed));
        Ok(changed)
    }

    /// Codes the values of a message for so many keys; `None` if no filter does.
    ///
    /// # Errors
    /// If memory is short.
    pub(super) fn encode(
        &mut self,
        is_block: bool,
        values: &[u8],
        limit: usize,
        pool: &Pool,
    ) -> caravan_van::Result<Option<Buffer>> {
        let mut coded = 0_u8;
        let mut lengths = Vec::new();
        let [last, next] = &mut self.made;
        for (at, filter) in self.filters.iter_mut().enumerate() {
            let bytes = if coded == 0 { values } else { &last[..] };
            next.clear();
            if bytes.len() > limit || !filter.encode(bytes, next) {
                continue;
            }
            lengths.extend_from_slice(&(bytes.len() as u32).to_le_bytes());
            coded |= 1 << at;
            std::mem::swap(last, next);
        }
        if coded == 0 {
            return Ok(None);
        }
        let mut out = pool.allocate(HEAD_BYTES + lengths.len() + last.len())?;
        out[..HEAD_BYTES].copy_from_slice(&[OWN, coded, u8::from(is_block), 0]);
        out[HEAD_BYTES..][..lengths.len()].copy_from_slice(&lengths);
        out[HEAD_BYTES + lengths.len()..].copy_from_slice(last);
        Ok(Some(out))
    }

    /// Undoes [`Own::encode`], if that was done: whether the bytes are a block, and the bytes.
    ///
    /// # Errors
    /// The reason why the message is invalid. No filter has to write more than `limit` bytes.
    pub(super) fn decode(
        &mut self,
        message: &[u8],
        limit: usize,
        pool: &Pool,
    ) -> std::result::Result<Option<(bool, Buffer)>, Refused> {
        let Some((&[OWN, coded, is_block, zero], mut bytes)) = message.split_first_chunk() else {
            return Ok(None);
        };
        let are_known = usize::from(coded).checked_shr(self.filters.len() as u32) == Some(0);
        if coded == 0 || !are_known || is_block > 1 || zero != 0 {
            let count = self.filters.len();
            return Err(Refusal::Shape.because(format!(
                "its head says that {coded:#x} of {count} own filters coded it"
            )));
        }
        let mut lengths = Vec::new();
        for _ in 0..coded.count_ones() {
            let (length, rest) = bytes
                .split_first_chunk()
                .ok_or_else(|| Refusal::Shape.because("it lacks lengths"))?;
            lengths.push(u32::from_le_bytes(*length) as usize);
            bytes = rest;
        }
        let mut undone: Option<Buffer> = None;
        for (at, filter) in self.filters.iter_mut().enumerate().rev() {
            if coded & 1 << at == 0 {
                continue;
            }
            let length = lengths.pop().unwrap_or(0);
            if length > limit {
                return Err(Refusal::Shape
                    .because(format!("{length} bytes are over the {limit} that its keys allow")));
            }
            let mut into = pool.allocate(length)?;
            into.fill(0);
            filter.decode(undone.as_deref().unwrap_or(bytes), &mut into)?;
            undone = Some(into);
        }
        Ok(undone.map(|bytes| (is_block == 1, bytes)))
    }
}

/// Most bytes that filters may have before them, of a message for so many keys.
pub(super) fn limit(spec: &TableSpec, keys: usize) -> usize {
    const MORE: usize = 1 << 10;
    keys.saturating_mul(2 * spec.row_bytes()).saturating_add(MORE)
}

fn change<V: Number>(filters: &mut [Box<dyn Filter>], pushed: &[u8], into: &mut [u8]) {
    let pushed = V::view(pushed).expect("what is pushed came as numbers");
    let mut values: Vec<f64> = pushed.iter().map(|value| value.to_f64()).collect();
    filters.iter_mut().for_each(|filter| filter.change(&mut values));
    let into = V::view_mut(into).expect("memory of the pool is aligned");
    into.iter_mut().zip(values).for_each(|(into, value)| *into = V::from_f64(value));
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, reason = "tests")]
    use super::*;
    use crate::table::ValueType;
    use proptest::prelude::*;

    /// Adds a number to each byte, and one byte to all.
    struct Shift(u8);

    impl Filter for Shift {
        fn encode(&mut self, bytes: &[u8], out: &mut Vec<u8>) -> bool {
            out.push(self.0);
            out.extend(bytes.iter().map(|byte| byte.wrapping_add(self.0)));
            !bytes.is_empty()
        }

        fn decode(&mut self, bytes: &[u8], into: &mut [u8]) -> std::result::Result<(), Refused> {
            if bytes.first() != Some(&self.0) || bytes.len() != into.len() + 1 {
                return Err(Refusal::Shape.because("it was not shifted so"));
            }
            into.iter_mut().zip(&bytes[1..]).for_each(|(to, from)| *to = from.wrapping_sub(self.0));
            Ok(())
        }
    }

    fn own() -> Own {
        let shift = |by| Box::new(Shift(by)) as Box<dyn Filter>;
        Own { filters: vec![shift(3), shift(200)], ..Own::default() }
    }

    proptest! {
        #[test]
        fn what_is_coded_comes_back(
            bytes in prop::collection::vec(any::<u8>(), 1..200), is_block: bool,
        ) {
            let pool = Pool::new(1 << 20);
            let coded = own().encode(is_block, &bytes, 1000, &pool).unwrap().unwrap();
            let (was_block, back) = own().decode(&coded, 1000, &pool).unwrap().unwrap();
            prop_assert_eq!((was_block, &back[..]), (is_block, &bytes[..]));
            prop_assert!(own().encode(is_block, &bytes, bytes.len() - 1, &pool).unwrap().is_none());
        }

        /// Whatever a peer sends: no panic, and nothing longer than the limit.
        #[test]
        fn no_bytes_make_it_panic(
            random in prop::collection::vec(any::<u8>(), 0..40), at in 0_usize..40, byte: u8,
        ) {
            let pool = Pool::new(1 << 20);
            let coded = own().encode(true, &[7; 20], 1000, &pool).unwrap().unwrap();
            let mut coded = coded.to_vec();
            let place = at % coded.len();
            coded[place] = byte;
            let headed = [&[OWN][..], &random].concat();
            for bytes in [random, coded, headed] {
                if let Ok(Some((_, back))) = own().decode(&bytes, 50, &pool) {
                    prop_assert!(back.len() <= 50);
                }
            }
        }
    }

    #[test]
    fn names_and_tables_are_checked() {
        let spec = || TableSpec::new(1, "t", ValueType::F32, 1);
        let options = || serde_json::json!({ "deviation": 0.5 });
        for (spec, says) in [
            (spec().own_filter("nose", options()), "nose: this worker has noise"),
            (spec().own_filter("noise", serde_json::json!({ "deviation": -1.0 })), "deviation"),
            (spec().own_filter("noise", serde_json::json!({ "mean": 1.0 })), "mean"),
            (spec().handle("assign").own_filter("noise", options()), "does not add up"),
            (TableSpec::new(1, "t", ValueType::I64, 1).own_filter("noise", options()), "exact"),
            (TableSpec::new(1, "t", ValueType::F32, 0).own_filter("noise", options()), "lengths"),
        ] {
            let said = OwnFilters::default().make(&spec, Some(1)).err().unwrap().to_string();
            assert!(said.contains(says), "{said}");
        }
        assert!(OwnFilters::default().make(&spec().own_filter("noise", options()), None).is_ok());
    }
}
