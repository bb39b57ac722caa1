//! What the last writes of chunks have overwritten, in shards with copies under data-centric
//! constraints without delay.
//!
//! There a chunk is written as soon as all have read it, and some of their answers may be lost with
//! the first thread of the chain. Whoever asks again has to see what the answer had. So every copy
//! keeps the rows that the last write of a chunk has changed, as they were before. The write of the
//! next iteration replaces them: it waits until all have read that one's version, so nobody asks
//! for an older one.
//!
//! Path: codec > thread > **tables** > shard > store > answer.

use std::collections::BTreeMap;

use caravan_van::wire::Kind;
use caravan_van::{Account, Draft, Pool, Shared, Values};

use crate::consistency::chunks;

/// The command of rows that were overwritten.
pub(super) const VERSIONS: i32 = 2;

/// Memory of a chunk's version beside its rows.
const VERSION_BYTES: usize = 192;

/// The versions of a shard's chunks before their last writes.
pub(super) struct Versions {
    chunk_keys: u64,
    form: Form,
    /// By chunk.
    before: BTreeMap<u64, Version>,
    /// The first chunk whose version a new copy has not got; `None` if no copy gets any.
    next: Option<u64>,
    memory: Account,
}

/// What the rows of a table look like.
#[derive(Clone, Copy)]
pub(super) struct Form {
    /// Bytes of a row; of one of its values, if rows have their own lengths.
    pub(super) bytes: usize,
    pub(super) has_lengths: bool,
}

/// Rows as they were before writes of one iteration.
#[derive(Default)]
struct Version {
    clock: u64,
    keys: Vec<u64>,
    lengths: Vec<u32>,
    values: Vec<u8>,
}

/// Those of one chunk or several that follow each other, for a new copy.
pub(super) struct Overwritten {
    rows: Version,
    /// One past the last chunk.
    end: u64,
}

impl Form {
    /// Bytes of rows, of which these are the lengths.
    fn bytes(self, rows: usize, lengths: &[u32]) -> Option<usize> {
        let count = match self.has_lengths {
            true => lengths.iter().map(|it| *it as usize).sum(),
            false => rows,
        };
        count.checked_mul(self.bytes)
    }
}

impl Version {
    fn bytes(&self) -> usize {
        VERSION_BYTES + size_of_val(&self.keys[..]) + 4 * self.lengths.len() + self.values.len()
    }

    fn add(&mut self, other: &Version) {
        self.keys.extend(&other.keys);
        self.lengths.extend(&other.lengths);
        self.values.extend(&other.values);
    }

    /// The row of a key, if it was overwritten: its length, if it has one of its own, and values.
    fn row(&self, key: u64, form: Form) -> Option<(Option<u32>, &[u8])> {
        let at = self.keys.binary_search(&key).ok()?;
        let before = form.bytes(at, self.lengths.get(..at).unwrap_or_default())?;
        let length = self.lengths.get(at).copied();
        let bytes = form.bytes(1, length.as_slice())?;
        Some((length, self.values.get(before..)?.get(..bytes)?))
    }
}

impl Overwritten {
    /// Its message.
    pub(super) fn draft(&self) -> Draft<'_> {
        let Version { clock, keys, lengths, values } = &self.rows;
        let (clock, values) = (*clock, Values::Copied(values));
        Draft { command: VERSIONS, clock, keys, lengths, values, ..Draft::new(Kind::Request) }
    }
}

impl Versions {
    /// None yet, of chunks of so many keys.
    pub(super) fn new(chunk_keys: u64, form: Form, pool: &Pool) -> Versions {
        let memory = Account::new(pool, "what the last writes of a shard have overwritten");
        Versions { chunk_keys, form, before: BTreeMap::new(), next: None, memory }
    }

    /// Whether these are rows of the table.
    pub(super) fn fit(&self, keys: &[u64], lengths: &[u32], values: &[u8]) -> bool {
        let rows = if self.form.has_lengths { keys.len() } else { 0 };
        lengths.len() == rows && self.form.bytes(keys.len(), lengths) == Some(values.len())
    }

    /// Enters rows that [fit](Versions::fit), which writes of iteration `clock` overwrite, unless
    /// those of a later one have.
    ///
    /// # Errors
    /// If there is no memory for them.
    pub(super) fn enter(
        &mut self,
        clock: u64,
        keys: &[u64],
        lengths: &[u32],
        values: &[u8],
    ) -> caravan_van::Result<()> {
        let (mut keys, mut lengths, mut values) = (keys, lengths, values);
        for chunk in chunks(keys, self.chunk_keys) {
            let rows = keys.iter().take_while(|key| **key / self.chunk_keys == chunk).count();
            let (own_keys, other_keys) = keys.split_at(rows);
            let (own_lengths, other_lengths) = lengths.split_at(rows.min(lengths.len()));
            let bytes = self.form.bytes(rows, own_lengths).unwrap_or_default();
            let (own_values, other_values) = values.split_at(bytes.min(values.len()));
            self.replace(
                chunk,
                Version {
                    clock,
                    keys: own_keys.to_vec(),
                    lengths: own_lengths.to_vec(),
                    values: own_values.to_vec(),
                },
            )?;
            (keys, lengths, values) = (other_keys, other_lengths, other_values);
        }
        Ok(())
    }

    fn replace(&mut self, chunk: u64, version: Version) -> caravan_van::Result<()> {
        let known = self.before.get(&chunk);
        if known.is_some_and(|known| known.clock > version.clock) {
            return Ok(());
        }
        let before = known.map_or(0, Version::bytes);
        self.memory.set((self.memory.bytes() + version.bytes()).saturating_sub(before))?;
        self.before.insert(chunk, version);
        Ok(())
    }

    /// The rows that a read of iteration `clock` sees: those that writes of this iteration have
    /// overwritten, and others as the shard has them: its lengths, if it has such, and its values.
    ///
    /// # Errors
    /// If there is no memory for them.
    pub(super) fn at(
        &self,
        clock: u64,
        keys: &[u64],
        now: (Vec<u32>, Shared),
        memory: &Pool,
    ) -> caravan_van::Result<(Vec<u32>, Shared)> {
        let of = |chunk| self.before.get(&chunk).filter(|version| version.clock == clock);
        if clock == 0 || !chunks(keys, self.chunk_keys).any(|chunk| of(chunk).is_some()) {
            return Ok(now);
        }
        let (lengths, values) = now;
        let (mut seen_lengths, mut seen) = (Vec::new(), Vec::new());
        let mut rest = &values[..];
        for (at, key) in keys.iter().enumerate() {
            let length = lengths.get(at).copied();
            let bytes = self.form.bytes(1, length.as_slice()).unwrap_or_default();
            let (row, others) = rest.split_at(bytes.min(rest.len()));
            rest = others;
            let version = of(key / self.chunk_keys).and_then(|it| it.row(*key, self.form));
            let (length, row) = version.unwrap_or((length, row));
            seen_lengths.extend(length);
            seen.extend_from_slice(row);
        }
        let mut shared = memory.allocate(seen.len())?;
        shared.copy_from_slice(&seen);
        Ok((seen_lengths, shared.share()))
    }

    /// A new copy gets all of them.
    pub(super) fn begin(&mut self) {
        self.next = Some(0);
    }

    /// The next ones for a new copy, with about `bytes_max` bytes; `None` if it has all.
    pub(super) fn piece(&self, bytes_max: usize) -> Option<Overwritten> {
        let mut piece: Option<Overwritten> = None;
        for (chunk, version) in self.before.range(self.next?..) {
            let piece = piece.get_or_insert_with(|| {
                let rows = Version { clock: version.clock, ..Version::default() };
                Overwritten { rows, end: *chunk }
            });
            let is_full =
                !piece.rows.keys.is_empty() && piece.rows.bytes() + version.bytes() > bytes_max;
            if is_full || version.clock != piece.rows.clock {
                break;
            }
            piece.rows.add(version);
            piece.end = chunk + 1;
        }
        piece
    }

    /// Records that a piece was sent.
    pub(super) fn advance(&mut self, piece: &Overwritten) {
        self.next = Some(piece.end);
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, reason = "tests")]
    use super::*;

    fn shared(pool: &Pool, bytes: &[u8]) -> Shared {
        let mut buffer = pool.allocate(bytes.len()).unwrap();
        buffer.copy_from_slice(bytes);
        buffer.share()
    }

    /// What a read of keys 2 to 8 sees in an iteration.
    fn seen(versions: &Versions, clock: u64, pool: &Pool) -> Vec<u8> {
        let now = (Vec::new(), shared(pool, b"bdfh"));
        let (lengths, values) = versions.at(clock, &[2, 4, 6, 8], now, pool).unwrap();
        assert!(lengths.is_empty());
        values.to_vec()
    }

    #[test]
    fn a_read_sees_what_the_writes_of_its_iteration_have_overwritten() {
        let pool = Pool::new(1 << 20);
        let form = Form { bytes: 1, has_lengths: false };
        let mut versions = Versions::new(4, form, &pool);
        assert!(versions.fit(&[2, 4], &[], b"BD") && !versions.fit(&[2, 4], &[], b"B"));
        assert!(!versions.fit(&[2], &[1], b"B"), "these rows have no lengths");
        versions.enter(5, &[2, 4], &[], b"BD").unwrap();
        versions.enter(6, &[8], &[], b"H").unwrap();
        assert_eq!(
            [5, 6, 7, 0].map(|clock| seen(&versions, clock, &pool)),
            [b"BDfh".to_vec(), b"bdfH".to_vec(), b"bdfh".to_vec(), b"bdfh".to_vec(),]
        );
        versions.enter(6, &[4, 6], &[], b"??").unwrap();
        versions.enter(5, &[6], &[], b"!").unwrap();
        assert_eq!(seen(&versions, 5, &pool), b"Bdfh", "a later write has replaced the version");
        let bytes = versions.memory.bytes();
        versions.enter(7, &[4, 6], &[], b"??").unwrap();
        assert_eq!(versions.memory.bytes(), bytes);
        let short = Pool::new(VERSION_BYTES);
        assert!(Versions::new(4, form, &short).enter(1, &[0], &[], b"a").is_err());
    }

    #[test]
    fn rows_of_their_own_lengths_are_found() {
        let pool = Pool::new(1 << 20);
        let mut versions = Versions::new(4, Form { bytes: 2, has_lengths: true }, &pool);
        assert!(versions.fit(&[0, 1], &[0, 2], b"aabb") && !versions.fit(&[0], &[1], b"a"));
        versions.enter(3, &[0, 1], &[2, 0], b"AABB").unwrap();
        let now = (vec![1, 1, 2], shared(&pool, b"aabbccdd"));
        let (lengths, values) = versions.at(3, &[0, 1, 5], now, &pool).unwrap();
        assert_eq!((&lengths[..], &values[..]), (&[2, 0, 2][..], &b"AABBccdd"[..]));
    }

    #[test]
    fn a_new_copy_gets_all_in_pieces() {
        let pool = Pool::new(1 << 20);
        let form = Form { bytes: 1, has_lengths: false };
        let (mut from, mut to) = (Versions::new(1, form, &pool), Versions::new(1, form, &pool));
        for key in 0..40 {
            from.enter(1 + key / 10, &[key], &[], &[key as u8]).unwrap();
        }
        assert!(from.piece(1000).is_none(), "no copy has begun");
        from.begin();
        let mut pieces = 0;
        while let Some(piece) = from.piece(420) {
            from.advance(&piece);
            pieces += 1;
            let Draft { clock, keys, values: Values::Copied(values), .. } = piece.draft() else {
                panic!("they are copied")
            };
            to.enter(clock, keys, &[], values).unwrap();
        }
        assert!(pieces > 4, "{pieces} pieces");
        let rows = |versions: &Versions| -> Vec<_> {
            let row = |it: (&u64, &Version)| (*it.0, it.1.clock, it.1.keys[0], it.1.values[0]);
            versions.before.iter().map(row).collect()
        };
        assert_eq!(rows(&to), rows(&from));
        assert_eq!(rows(&to).len(), 40);
    }
}
