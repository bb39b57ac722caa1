//! Screening: finds columns that are 0 in every solution, exactly and before training begins.
//!
//! The gradient of the loss in column j is g_j = -Σ_i y_i x_ij σ(-m_i) with every σ strictly
//! between 0 and 1. So for any weights,
//!
//! ```text
//! -P_j < g_j < N_j        P_j = Σ_i max(y_i x_ij, 0)        N_j = Σ_i max(-y_i x_ij, 0)
//! ```
//!
//! where y_i is the label times the row's weight. An intercept only shifts the margins, and a ridge
//! has the gradient 0 at 0, so neither changes this.
//!
//! A column with max(P_j, N_j) ≤ λ has |g_j| < λ everywhere: no step ever moves it from 0, and
//! every minimum of F has it at 0. In sets with many rare features that is most columns. Both sums
//! run over rows, so workers' parts add up. If no worker's part is above λ over the number of
//! workers, the sum is not above λ, and the column need not even be named. So
//!
//! 1. each worker names its *loud* columns, those above that share, with their bounds;
//! 2. it asks which columns were named, unless all of its own are loud, and adds its bounds of
//!    those it has and had not named;
//! 3. it asks which sums are above λ, and drops all other columns.
//!
//! All workers finish a step before any starts the next. Servers round up, so that rounding never
//! drops a column. They answer with lists of keys, packed like rows: those above λ are few, and the
//! same for all. With many workers each names nearly all of its columns, because its share of λ is
//! small; then the longer list, of named columns, is not sent to anybody.
//!
//! Place: load > **screening** > blocks.

use caravan_kv::filter::Filters;
use caravan_kv::server::{Pulled, Request};
use caravan_kv::{Refusal, Refused, TableSpec, ValueType};
use caravan_van::{Account, KeyRange, Pool, Value};
use serde::{Deserialize, Serialize};

use crate::copies::image::{self, Reader, Writer};
use crate::data::{ByKey, Share, pack_keys, unpack_keys};

/// Name of this shard's update rule.
pub(super) const HANDLE: &str = "dbpg-screen";

/// Id of the table of bounds.
const TABLE: u32 = 3;

/// A table for keys of this range: P and N for each.
pub(super) fn table(keys: KeyRange, filters: Filters) -> TableSpec {
    TableSpec::new(TABLE, "bounds", ValueType::F32, 2).keys(keys).handle(HANDLE).filters(filters)
}

/// A worker's P and N of each of its columns.
#[derive(Debug, Default)]
pub(super) struct Bounds(ByKey<[f32; 2]>);

impl Bounds {
    /// `labels: [rows]`.
    ///
    /// # Errors
    /// If rows on disk cannot be read.
    pub(super) fn new(rows: &Share, labels: &[f64]) -> crate::Result<Self> {
        let mut bounds = ByKey::<[f32; 2]>::new(rows.key_range(), rows.nonzeros());
        rows.for_each_part(|first, part| {
            part.for_each(|row, key, x| {
                let signed = labels[first + row] * x;
                let sum = &mut bounds.entry(key)[usize::from(signed < 0.0)];
                *sum = round_up(f64::from(*sum) + signed.abs());
            });
        })?;
        Ok(Bounds(bounds))
    }

    /// Its size in bytes, about.
    pub(super) fn bytes(&self) -> usize {
        self.0.bytes()
    }

    /// The sorted keys of columns with a bound above `limit`, and their bounds.
    pub(super) fn above(&self, limit: f64) -> (Vec<u64>, Vec<[f32; 2]>) {
        self.0.sorted(|bounds| exceeds(bounds, limit)).into_iter().unzip()
    }

    /// Whether every column has a bound above `limit`.
    pub(super) fn all_above(&self, limit: f64) -> bool {
        self.0.count(|bounds| bounds != [0.0; 2] && !exceeds(bounds, limit)) == 0
    }

    /// The bounds of a column; every column with entries has some.
    pub(super) fn of(&self, key: u64) -> Option<[f32; 2]> {
        Some(self.0.get(key)).filter(|bounds| *bounds != [0.0; 2])
    }
}

/// Whether a bound exceeds a limit: λ for the sums, or a worker's share of it for its part.
pub(super) fn exceeds(bounds: [f32; 2], limit: f64) -> bool {
    f64::from(bounds[0].max(bounds[1])) > limit
}

/// Commands of the driver and the workers to servers, besides pushes.
#[derive(Debug, Serialize, Deserialize)]
pub(super) enum Command {
    /// Returns the named keys, packed, lowest first.
    Named,
    /// Returns those with a sum above λ, in the same form.
    Above { lambda: f64 },
    /// Ends screening: frees the sums.
    End,
}

/// The keys in all servers' answers to [`Command::Named`] or [`Command::Above`].
pub(super) fn keys(replies: &[impl AsRef<[u8]>]) -> Result<Vec<u64>, Refused> {
    let mut keys = Vec::new();
    for reply in replies {
        unpack_keys(reply.as_ref(), &mut keys).ok_or_else(|| {
            Refusal::Internal.because("a server's list of screened keys is cut off or not sorted")
        })?;
    }
    Ok(keys)
}

/// An f32 not below the exact sum that `x` approximates, given the rounding of its terms.
fn round_up(x: f64) -> f32 {
    let near = x as f32;
    if x == x.trunc() && x < f64::from(1 << 24) { near } else { near.next_up() }
}

/// Bytes of a key and its bounds.
const ENTRY_BYTES: usize = size_of::<u64>() + size_of::<[f32; 2]>();

/// Most bytes of a key in an answer, including the growth of its list.
const ANSWER_BYTES: usize = 20;

/// A server thread's sums, in order of keys.
pub(super) struct Sums {
    keys: Vec<u64>,
    bounds: Vec<[f32; 2]>,
    memory: Account,
}

impl Sums {
    pub(super) fn new(memory: &Pool) -> Self {
        let memory = Account::new(memory, "bounds of columns");
        Sums { keys: Vec::new(), bounds: Vec::new(), memory }
    }

    /// Adds one worker's part: `keys` sorted, `bounds: [keys]`.
    ///
    /// # Errors
    /// If there is no memory for the new sums beside the old ones. Nothing has changed then.
    fn add(&mut self, keys: &[u64], bounds: &[[f32; 2]]) -> caravan_van::Result<()> {
        let most = self.keys.len() + keys.len();
        self.memory.add(most * ENTRY_BYTES)?;
        let mut sum_keys = Vec::with_capacity(most);
        let mut sum_bounds = Vec::with_capacity(most);
        let mut i = 0;
        let mut j = 0;
        while i < self.keys.len() || j < keys.len() {
            let own = self.keys.get(i).copied();
            let new = keys.get(j).copied();
            let key = own.unwrap_or(u64::MAX).min(new.unwrap_or(u64::MAX));
            let mut both = [0.0_f64; 2];
            for (at, found, bounds) in [(&mut i, own, &self.bounds[..]), (&mut j, new, bounds)] {
                if found == Some(key) {
                    both[0] += f64::from(bounds[*at][0]);
                    both[1] += f64::from(bounds[*at][1]);
                    *at += 1;
                }
            }
            sum_keys.push(key);
            sum_bounds.push(both.map(round_up));
        }
        sum_keys.shrink_to_fit();
        sum_bounds.shrink_to_fit();
        self.keys = sum_keys;
        self.bounds = sum_bounds;
        self.memory.set(self.keys.len() * ENTRY_BYTES)
    }

    fn write(&self, image: &mut Writer<'_>) {
        image.list(&self.keys);
        image.list(self.bounds.as_flattened());
    }

    /// Takes over the state that others have written.
    ///
    /// # Errors
    /// The reason why it is none, or that there is no memory for it.
    fn take(&mut self, bytes: &[u8]) -> Result<(), Refused> {
        self.memory.set(bytes.len())?;
        let mut image = Reader::of(bytes);
        self.keys = image::keys(&mut image)?;
        self.bounds = image::pairs(image.list()?)?;
        image::check(self.bounds.len() == self.keys.len(), "bounds of other keys")?;
        self.memory.release(self.memory.bytes() - self.keys.len() * ENTRY_BYTES);
        image.end()
    }
}

impl caravan_kv::Shard for Sums {
    fn push(&mut self, request: &Request<'_>, _memory: &Pool) -> Result<(), Refused> {
        let values = f32::view(request.values)
            .ok_or_else(|| Refusal::Shape.because("bounds are pairs of f32"))?;
        let (pairs, []) = values.as_chunks::<2>() else {
            return Err(Refusal::Shape.because(format!("{} bounds are no pairs", values.len())));
        };
        if pairs.len() != request.keys.len() {
            return Err(Refusal::Shape.because(format!(
                "{} keys came with {} bounds",
                request.keys.len(),
                pairs.len()
            )));
        }
        if !pairs.as_flattened().iter().all(|bound| *bound >= 0.0) {
            return Err(Refusal::Shape.because("a bound must be 0 or more"));
        }
        self.add(request.keys, pairs).map_err(Refused::from)
    }

    fn pull(&mut self, _request: &Request<'_>) -> Result<Pulled<'_>, Refused> {
        Err(Refusal::Unsupported.because("sums of bounds are not pulled"))
    }

    fn read(&mut self, _request: &Request<'_>, _into: &mut [u8]) {
        unreachable!("no pull is answered");
    }

    image::methods!(Sums::write, Sums::take);

    fn command(&mut self, _sender: u32, body: &[u8]) -> Result<Vec<u8>, Refused> {
        let room = self.memory.check(self.keys.len() * ANSWER_BYTES);
        room?;
        match serde_json::from_slice(body)? {
            Command::Named => Ok(pack_keys(self.keys.iter().copied())),
            Command::Above { lambda } => {
                let sums = self.keys.iter().zip(&self.bounds);
                let above = sums.filter(|(_, bounds)| exceeds(**bounds, lambda));
                Ok(pack_keys(above.map(|(&key, _)| key)))
            }
            Command::End => {
                self.keys = Vec::new();
                self.bounds = Vec::new();
                self.memory.release(usize::MAX);
                Ok(Vec::new())
            }
        }
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

    use super::*;
    use crate::copies::image::testing;
    use crate::data::{self, PackedRows};
    use caravan_kv::Shard;

    #[test]
    fn bounds_tell_the_signs_apart() {
        let of = |text: &str, labels: [f64; 3]| {
            let rows = data::parse("t".as_ref(), text.as_bytes()).unwrap();
            Bounds::new(&Share::Held(PackedRows::from(&rows)), &labels).unwrap()
        };
        let labels = [1.0, -1.0, 1.0];
        for last in [9, u64::MAX] {
            let ones = format!("1 3:1 {last}:1\n-1 3:1\n1 5:1 {last}:1\n");
            let bounds = of(&ones, labels);
            let (keys, values) = bounds.above(0.0);
            assert_eq!(
                (&keys[..], values),
                (&[3, 5, last][..], vec![[1.0, 1.0], [1.0, 0.0], [2.0, 0.0]])
            );
            assert_eq!(bounds.above(1.0), (vec![last], vec![[2.0, 0.0]]));
            assert_eq!((bounds.of(4), bounds.of(5)), (None, Some([1.0, 0.0])));
            assert!(bounds.all_above(0.9) && !bounds.all_above(1.0));
            let weighted = of(&ones, [0.1, -1.0, 0.1]);
            assert_eq!(weighted.of(3), Some([0.1_f32.next_up(), 1.0]));
            assert!(weighted.of(last).is_some_and(|[sum, _]| f64::from(sum) >= 0.1 + 0.1));
        }
        let with_values = of("1 3:0.5 9:0.1\n-1 3:-0.25\n1 5:-2 9:0.2\n", labels).above(0.0).1;
        for (bound, exact) in
            with_values.into_flattened().into_iter().zip([0.75, 0.0, 0.0, 2.0, 0.1 + 0.2, 0.0])
        {
            let above = f64::from(bound) - exact;
            assert!((0.0..1e-6).contains(&above), "{bound} for {exact}");
        }
        let tiny = of("1 3:1e-300\n", labels);
        assert!(tiny.of(3).is_some(), "it has an entry");
        assert!(exceeds([2.0, 0.0], 1.9) && exceeds([0.0, 2.0], 1.9) && !exceeds([2.0, 2.0], 2.0));
    }

    #[test]
    fn parts_of_all_workers_add_up() {
        let mut sums = Sums::new(&Pool::new(1 << 20));
        sums.add(&[1, 4, u64::MAX], &[[1.0, 2.0], [3.0, 0.0], [5.0, 5.0]]).unwrap();
        sums.add(&[0, 4], &[[7.0, 0.0], [1.0, 1.0]]).unwrap();
        sums.add(&[], &[]).unwrap();
        let many: Vec<u64> = (0..60_000).collect();
        let error = sums.add(&many, &vec![[1.0; 2]; 60_000]).unwrap_err().to_string();
        assert!(error.contains("bounds of columns would take"), "{error}");
        assert_eq!(sums.keys, [0, 1, 4, u64::MAX]);
        assert_eq!(sums.bounds, [[7.0, 0.0], [1.0, 2.0], [4.0, 1.0], [5.0, 5.0]]);
        let new = || Sums::new(&Pool::new(1 << 20));
        let add = |sums: &mut Sums| drop(sums.add(&[2, 3], &[[1.0; 2]; 2]));
        let copy = testing::restore(&testing::image(&sums), new, add);
        assert_eq!((&copy.keys, &copy.bounds), (&sums.keys, &sums.bounds));
        assert_eq!(copy.memory.bytes(), sums.memory.bytes());
        let mut ask = |command: Command| {
            let reply = sums.command(0, &serde_json::to_vec(&command).unwrap()).unwrap();
            keys(&[reply]).unwrap()
        };
        assert_eq!(ask(Command::Named), [0, 1, 4, u64::MAX]);
        assert_eq!(ask(Command::Above { lambda: 4.0 }), [0, u64::MAX]);
        assert!(ask(Command::End).is_empty());
        assert!(ask(Command::Named).is_empty());
        assert!(keys(&[[0x80]]).unwrap_err().reason.contains("cut off"));
    }
}
