//! The state of a shard with eviction as bytes, for its copies on other servers.
//!
//! Clocks, draws and the sketch come first, then a record for each key that has a row, then the
//! rows in pieces, of which an empty one is the last. Numbers are little-endian. What is read was
//! written by another server; no bytes make the reader fail otherwise than with an error.

use caravan_van::Pool;

use super::known::{Entry, Known};
use super::{Changing, Extract};
use crate::refusal::{Refusal, Refused};

/// Numbers that are always there.
const FIXED: usize = 7;

/// Bytes of the numbers of a piece of rows.
const PIECE_HEAD_BYTES: usize = 3 * size_of::<u64>();

/// Bytes of rows in a piece, about.
const PIECE_BYTES: usize = 32 << 10;

/// Numbers of a key that has a row.
const RECORD: usize = 4;

/// Records that are read at a time.
const RECORDS_MAX: usize = 1024;

/// Why an image cannot be read.
const CUT_OFF: &str = "the image of a shard whose rows come and go is cut off";

/// What of an image was not read yet.
struct Reader<'a>(&'a [u8]);

impl<'a> Reader<'a> {
    fn bytes(&mut self, count: u64, of: usize) -> Result<&'a [u8], Refused> {
        let len = usize::try_from(count).ok().and_then(|count| count.checked_mul(of));
        let split = len.and_then(|len| self.0.split_at_checked(len));
        let (bytes, rest) = split.ok_or_else(|| Refusal::Internal.because(CUT_OFF))?;
        self.0 = rest;
        Ok(bytes)
    }

    fn number(&mut self) -> Result<u64, Refused> {
        self.numbers::<1>().map(|[number]| number)
    }

    fn numbers<const N: usize>(&mut self) -> Result<[u64; N], Refused> {
        let bytes = self.bytes(N as u64, size_of::<u64>())?;
        let (words, _) = bytes.as_chunks();
        Ok(std::array::from_fn(|at| u64::from_le_bytes(words[at])))
    }
}

/// Checks what an image says.
fn check(is_so: bool, what: &str) -> Result<(), Refused> {
    match is_so {
        true => Ok(()),
        false => Err(Refusal::Internal.because(format!("the image of a shard is damaged: {what}"))),
    }
}

impl Changing {
    /// Most bytes of the image.
    pub(super) fn image_bytes_max(&self) -> usize {
        let keys = self.known.index.len();
        let rows = self.rows.footprint(keys, self.known.values).unwrap_or(0);
        let pieces = keys.div_ceil(PIECE_BYTES / size_of::<u64>()) + rows / PIECE_BYTES + 2;
        let records = keys * RECORD * size_of::<u64>();
        let fixed = FIXED * size_of::<u64>();
        fixed + self.gate.bytes() + records + rows + pieces * PIECE_HEAD_BYTES
    }

    pub(super) fn write_image(&self, image: &mut Vec<u8>) {
        let Changing { known, gate, .. } = self;
        let number = |image: &mut Vec<u8>, number: u64| image.extend(number.to_le_bytes());
        let cells = gate.seen.as_ref().map_or(&[][..], |seen| seen.cells());
        let looked_at = self.looked_at.unwrap_or_default();
        let has_looked = u64::from(self.looked_at.is_some());
        let fixed = [self.clock, has_looked, looked_at, gate.draws.count(), cells.len() as u64];
        fixed.into_iter().for_each(|it| number(image, it));
        image.extend_from_slice(cells);
        number(image, known.index.len() as u64);
        for (key, entry) in known.iter() {
            let record = [key, entry.clock, entry.score.to_bits().into(), entry.values as u64];
            record.into_iter().for_each(|it| number(image, it));
        }
        let mut next = Some(self.range.begin());
        while let Some(from) = next {
            let mut piece = Extract::default();
            // Such shards give rows: a new one has shown it.
            let Ok(then) = self.rows.give(from, PIECE_BYTES, &mut piece) else { return };
            next = then;
            if !piece.keys.is_empty() {
                let sizes = [piece.keys.len(), piece.lengths.len(), piece.values.len()];
                sizes.into_iter().for_each(|it| number(image, it as u64));
                piece.keys.iter().for_each(|key| number(image, *key));
                piece.lengths.iter().for_each(|length| image.extend(length.to_le_bytes()));
                image.extend_from_slice(&piece.values);
            }
        }
        number(image, 0);
    }

    /// Takes over the state of another shard. This one is new.
    ///
    /// # Errors
    /// The reason why the image is invalid, or that memory is short.
    pub(super) fn read_image(&mut self, image: &[u8], memory: &Pool) -> Result<(), Refused> {
        let mut reader = Reader(image);
        let [clock, has_looked, looked_at, draws, cells] = reader.numbers()?;
        let looked_at = (has_looked == 1).then_some(looked_at);
        check(has_looked <= 1 && looked_at.is_none_or(|at| at <= clock), "its clocks")?;
        self.clock = clock;
        self.looked_at = looked_at;
        self.gate.draws.go_to(draws);
        let cells = reader.bytes(cells, 1)?;
        let own = self.gate.seen.as_mut().map_or(&mut [][..], |seen| seen.cells_mut());
        check(own.len() == cells.len(), "its sketch has other cells")?;
        own.copy_from_slice(cells);
        self.read_records(&mut reader)?;
        self.read_rows(&mut reader, memory)?;
        check(reader.0.is_empty(), "there is more behind it")
    }

    /// Reads which keys have rows.
    fn read_records(&mut self, reader: &mut Reader<'_>) -> Result<(), Refused> {
        let count = reader.number()?;
        let records = reader.bytes(count, RECORD * size_of::<u64>())?;
        let mut last = None;
        for records in records.chunks(RECORDS_MAX * RECORD * size_of::<u64>()) {
            let mut records = Reader(records);
            let (mut keys, mut entries) = (Vec::new(), Vec::new());
            while !records.0.is_empty() {
                let [key, clock, score, values] = records.numbers()?;
                self.check_key(&mut last, key)?;
                let score = f32::from_bits(score as u32);
                let values = u32::try_from(values)
                    .map_err(|error| Refusal::Internal.because(error.to_string()))?
                    as usize;
                check(clock <= self.clock && score >= 0.0, "a score")?;
                check(self.width == 0 || values == self.width, "a row's width")?;
                keys.push(key);
                entries.push(Entry { clock, score, values });
            }
            let places: Vec<u32> = (0..keys.len() as u32).collect();
            self.known.find(&keys, &[]);
            self.known.insert(&keys, &places)?;
            self.known.replace(entries);
        }
        Ok(())
    }

    fn read_rows(&mut self, reader: &mut Reader<'_>, memory: &Pool) -> Result<(), Refused> {
        let mut last = None;
        loop {
            let keys = reader.number()?;
            if keys == 0 {
                return Ok(());
            }
            let [lengths, values] = reader.numbers()?;
            let keys = reader.bytes(keys, size_of::<u64>())?;
            let keys: Vec<u64> =
                keys.as_chunks().0.iter().map(|it| u64::from_le_bytes(*it)).collect();
            for key in &keys {
                self.check_key(&mut last, *key)?;
            }
            let lengths = reader.bytes(lengths, size_of::<u32>())?;
            let lengths: Vec<u32> =
                lengths.as_chunks().0.iter().map(|it| u32::from_le_bytes(*it)).collect();
            let values = reader.bytes(values, 1)?;
            self.rows.take(&keys, &lengths, values, memory)?;
        }
    }

    /// Checks that a key is in this shard, and behind the last one.
    fn check_key(&self, last: &mut Option<u64>, key: u64) -> Result<(), Refused> {
        let is_next = last.replace(key).is_none_or(|last| last < key);
        check(is_next && self.range.contains(key), "a key is not in its place")
    }
}

impl Known {
    /// Records these for the keys that were found or inserted last.
    fn replace(&mut self, entries: Vec<Entry>) {
        for (row, entry) in self.found.iter().zip(entries) {
            let old = std::mem::replace(&mut self.entries[*row as usize], entry);
            self.values = self.values - old.values + entry.values;
        }
    }
}
