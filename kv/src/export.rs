//! Rows of a table as text, as binary records or as Arrow, for other programs and other clusters.
//!
//! As text a row is a line: its key and the values that pulls show, with spaces between them. As a
//! binary record it is the key (u64), the number of values (u32) and the values, all little-endian.
//! As Arrow it is a row of the columns `key` and `values`, in the file format of Arrow's IPC, which
//! needs the feature `arrow`. Rows ascend by key. Hidden values stay behind: [`Checkpoints`](crate::checkpoint::Checkpoints)
//! save those as well.

#[cfg(feature = "arrow")]
mod arrow;
#[cfg(not(feature = "arrow"))]
#[path = "export/left_out.rs"]
mod arrow;

use std::io::{BufRead, Read, Write};
use std::str::FromStr;

use caravan_van::{KeyRange, Value};

use crate::checkpoint::{Piece, append_line};
use crate::error::{Error, Result};
use crate::table::{Initial, TableSpec, with_type};
use crate::worker::{Table, Worker};

/// Bytes of values in a push of an import, and of text or records before they are written.
const BATCH_BYTES: usize = 256 << 10;

/// Most rows in a push of an import.
const BATCH_ROWS: usize = 4096;

/// Most bytes of a row of text or of its values in a record.
const ROW_BYTES_MAX: u64 = 64 << 20;

/// How rows are written.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Format {
    /// A line for each row.
    Text,
    /// A record for each row.
    Binary,
    /// A file of Arrow's IPC; imports take its streams as well.
    Arrow,
}

/// Where rows go.
trait Sink {
    fn row(&mut self, key: u64, values: &[u8]) -> std::result::Result<(), String>;

    /// Writes what is left.
    fn end(&mut self) -> std::result::Result<(), String>;
}

/// Lines or records.
struct Plain<'a, W> {
    spec: &'a TableSpec,
    format: Format,
    text: String,
    buffer: Vec<u8>,
    out: &'a mut W,
}

impl<W: Write> Plain<'_, W> {
    fn write(&mut self) -> std::result::Result<(), String> {
        self.out.write_all(&self.buffer).map_err(|error| error.to_string())?;
        self.buffer.clear();
        Ok(())
    }
}

impl<W: Write> Sink for Plain<'_, W> {
    fn row(&mut self, key: u64, values: &[u8]) -> std::result::Result<(), String> {
        if self.format == Format::Text {
            append_line(self.spec, key, values, &mut self.text);
            self.buffer.extend_from_slice(self.text.as_bytes());
            self.text.clear();
        } else {
            append_record(self.spec, key, values, &mut self.buffer);
        }
        if self.buffer.len() >= BATCH_BYTES { self.write() } else { Ok(()) }
    }

    fn end(&mut self) -> std::result::Result<(), String> {
        self.write()?;
        self.out.flush().map_err(|error| error.to_string())
    }
}

/// Writes the rows of `keys` of a table, while requests to it go on: each shard is as it was
/// between two requests. Returns their number.
///
/// # Errors
/// [`Error::Checkpoint`] if `out` cannot be written; [`Error::Config`] if this build has no Arrow;
/// as [`Worker::wait`]. If this fails, drop the worker, so that servers stop keeping rows aside.
pub fn export_table(
    worker: &mut Worker,
    spec: &TableSpec,
    keys: KeyRange,
    format: Format,
    out: &mut impl Write,
) -> Result<u64> {
    let mut sink: Box<dyn Sink + '_> = match format {
        Format::Arrow => arrow::sink(spec, out)?,
        _ => Box::new(Plain { spec, format, text: String::new(), buffer: Vec::new(), out }),
    };
    let table = worker.create_table(spec)?;
    worker.cut(&[table])?;
    let shown = if spec.width == 0 { usize::MAX } else { spec.row_bytes() };
    let mut rows = 0;
    for shard in 0..worker.shards(table)?.len() {
        let mut is_last = false;
        while !is_last {
            let asked = worker.piece(table, shard)?;
            let bytes = worker.wait(asked)?.replies.pop().unwrap_or_default();
            let piece = Piece::decode(&bytes).map_err(|why| failed(spec, why))?;
            is_last = piece.is_last;
            for (key, values) in piece.rows.values_of().filter(|(key, _)| keys.contains(*key)) {
                let values = &values[..values.len().min(shown)];
                sink.row(key, values).map_err(|why| failed(spec, why))?;
                rows += 1;
            }
        }
    }
    sink.end().map_err(|why| failed(spec, why))?;
    Ok(rows)
}

/// Pushes rows that [`export_table`] has written to a table, which has any number of servers and is
/// created if it is not there. Returns their number. Rows that were there before are replaced
/// (handle `assign`) or added to (`add`).
///
/// # Errors
/// [`Error::Config`] if pushes to the table do not become its values; [`Error::Checkpoint`] names
/// the row that is none; as [`Worker::wait`]. Rows before are pushed then.
pub fn import_table(
    worker: &mut Worker,
    spec: &TableSpec,
    format: Format,
    input: &mut impl BufRead,
) -> Result<u64> {
    let is_sum = spec.handle == "add" && spec.initial == Initial::Zero;
    if !is_sum && spec.handle != "assign" {
        return Err(Error::Config(format!(
            "rows cannot be imported to table {}, since pushes to its handle {} do not become its \
             values: it takes assign, or add with initial values of 0, or a checkpoint",
            spec.name, spec.handle
        )));
    }
    let table = worker.create_table(spec)?;
    with_type!(spec.value, V => import::<V>(worker, (table, spec), format, input))
}

/// Appends the values of the next row, and returns its key; `None` at the end.
type Next<'a, V> = dyn FnMut(&mut Vec<V>) -> std::result::Result<Option<u64>, String> + 'a;

fn import<V: Value + FromStr>(
    worker: &mut Worker,
    (table, spec): (Table, &TableSpec),
    format: Format,
    input: &mut impl BufRead,
) -> Result<u64> {
    let mut batch = Batch::<V> { keys: Vec::new(), lengths: Vec::new(), values: Vec::new() };
    let mut next: Box<Next<'_, V>> = match format {
        Format::Text => Box::new(|values| read_line(input, values)),
        Format::Binary => Box::new(|values| read_record(spec, input, values)),
        Format::Arrow => arrow::rows(spec, input)?,
    };
    let mut rows = 0;
    loop {
        let begin = batch.values.len();
        let named = |why: String| failed(spec, format!("row {}: {why}", rows + 1));
        let Some(key) = next(&mut batch.values).map_err(named)? else { break };
        let count = batch.values.len() - begin;
        if spec.width > 0 && count != spec.width as usize {
            let why = format!("key {key} comes with {count} values, and rows have {}", spec.width);
            return Err(named(why));
        }
        if batch.is_full() || batch.keys.last().is_some_and(|last| *last >= key) {
            let next = batch.values.split_off(begin);
            batch.push(worker, table, spec)?;
            batch.values = next;
        }
        batch.keys.push(key);
        batch.lengths.push(count as u32);
        rows += 1;
    }
    batch.push(worker, table, spec)?;
    Ok(rows)
}

/// Rows for a push.
struct Batch<V> {
    keys: Vec<u64>,
    lengths: Vec<u32>,
    values: Vec<V>,
}

impl<V: Value> Batch<V> {
    fn is_full(&self) -> bool {
        self.keys.len() >= BATCH_ROWS || size_of_val(&self.values[..]) >= BATCH_BYTES
    }

    fn push(&mut self, worker: &mut Worker, table: Table, spec: &TableSpec) -> Result<()> {
        if self.keys.is_empty() {
            return Ok(());
        }
        let pushed = match spec.width {
            0 => worker.push_varying(table, &self.keys, &self.lengths, &self.values)?,
            _ => worker.push(table, &self.keys, &self.values)?,
        };
        worker.wait(pushed)?;
        self.keys.clear();
        self.lengths.clear();
        self.values.clear();
        Ok(())
    }
}

fn append_record(spec: &TableSpec, key: u64, values: &[u8], into: &mut Vec<u8>) {
    let count = (values.len() / spec.value.bytes()) as u32;
    into.extend_from_slice(&key.to_le_bytes());
    into.extend_from_slice(&count.to_le_bytes());
    into.extend_from_slice(values);
}

/// Reads the key of the next line, and appends its values; `None` at the end.
fn read_line<V: FromStr>(
    input: &mut impl BufRead,
    values: &mut Vec<V>,
) -> std::result::Result<Option<u64>, String> {
    let mut line = Vec::new();
    let read = input.by_ref().take(ROW_BYTES_MAX).read_until(b'\n', &mut line);
    if read.map_err(|error| error.to_string())? == 0 {
        return Ok(None);
    }
    if line.len() as u64 == ROW_BYTES_MAX {
        return Err(format!("it has {ROW_BYTES_MAX} bytes or more"));
    }
    let line = str::from_utf8(&line).map_err(|error| format!("it is no text: {error}"))?;
    let mut words = line.split_ascii_whitespace();
    let key = words.next().ok_or("it is empty")?;
    let key = key.parse().map_err(|_| format!("{key:?} is no key"))?;
    for word in words {
        let value = word.parse().map_err(|_| format!("key {key}: {word:?} is no value"))?;
        values.push(value);
    }
    Ok(Some(key))
}

/// As [`read_line`], of the next record.
fn read_record<V: Value>(
    spec: &TableSpec,
    input: &mut impl BufRead,
    values: &mut Vec<V>,
) -> std::result::Result<Option<u64>, String> {
    let mut head = Vec::new();
    input.by_ref().take(12).read_to_end(&mut head).map_err(|error| error.to_string())?;
    if head.is_empty() {
        return Ok(None);
    }
    let cut_off = || "it is cut off".to_owned();
    let (key, rest) = head.split_first_chunk().ok_or_else(cut_off)?;
    let (count, _) = rest.split_first_chunk().ok_or_else(cut_off)?;
    let (key, count) = (u64::from_le_bytes(*key), u32::from_le_bytes(*count));
    let bytes = u64::from(count) * spec.value.bytes() as u64;
    if bytes > ROW_BYTES_MAX {
        return Err(format!("key {key}: {bytes} bytes of values are over {ROW_BYTES_MAX}"));
    }
    let mut body = Vec::new(); // grows with what is really there
    input.by_ref().take(bytes).read_to_end(&mut body).map_err(|error| error.to_string())?;
    if body.len() as u64 != bytes {
        return Err(cut_off());
    }
    let begin = values.len();
    values.resize(begin + count as usize, V::default());
    V::bytes_mut(&mut values[begin..]).copy_from_slice(&body);
    Ok(Some(key))
}

fn failed(spec: &TableSpec, reason: impl ToString) -> Error {
    let what = format!("rows of table {}", spec.name);
    Error::Checkpoint { what, reason: reason.to_string() }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, reason = "tests")]
    use super::*;
    use crate::table::ValueType;
    use proptest::prelude::*;

    proptest! {
        /// Any values come back bit-equal, and no bytes make it panic.
        #[test]
        fn rows_come_back(
            rows in prop::collection::vec((any::<u64>(), prop::collection::vec(any::<f32>(), 0..5)), 0..9),
            junk in prop::collection::vec(any::<u8>(), 0..60),
        ) {
            let spec = TableSpec::new(1, "t", ValueType::F32, 0);
            let (mut text, mut binary) = (String::new(), Vec::new());
            for (key, values) in &rows {
                append_line(&spec, *key, f32::bytes(values), &mut text);
                append_record(&spec, *key, f32::bytes(values), &mut binary);
            }
            let (mut text, mut binary) = (text.as_bytes(), &binary[..]);
            for (key, values) in &rows {
                let mut back = [Vec::<f32>::new(), Vec::new()];
                prop_assert_eq!(read_line(&mut text, &mut back[0]), Ok(Some(*key)));
                prop_assert_eq!(read_record(&spec, &mut binary, &mut back[1]), Ok(Some(*key)));
                let bits = |values: &[f32]| values.iter().map(|it| it.to_bits()).collect::<Vec<_>>();
                prop_assert_eq!(bits(&back[0]), bits(values));
                prop_assert_eq!(bits(&back[1]), bits(values));
            }
            let mut none = Vec::<f32>::new();
            prop_assert_eq!(read_line(&mut text, &mut none), Ok(None));
            prop_assert_eq!(read_record(&spec, &mut binary, &mut none), Ok(None));
            let mut rest = &junk[..];
            while matches!(read_line(&mut rest, &mut none), Ok(Some(_))) {}
            let mut rest = &junk[..];
            while matches!(read_record(&spec, &mut rest, &mut none), Ok(Some(_))) {}
        }
    }
}
