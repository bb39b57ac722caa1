//! Rows of a table as text, as binary records or as Arrow, for other programs and other clusters.
//!
//! As text a row is a line: its key and the values that pulls show, with spaces between them. As a
//! binary record it is the key (u64), the number of values (u32) and the values, all little-endian.
//! As Arrow it is a row of the columns `key` and `values` in a file of Arrow's IPC, which needs the
//! feature `arrow`. Rows ascend by key. Hidden values stay behind:
//! [`Checkpoints`](crate::checkpoint::Checkpoints) save those as well.

#[cfg_attr(not(feature = "arrow"), path = "export/left_out.rs")]
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
    /// A file of Arrow's IPC. Imports take its streams as well.
    Arrow,
}

/// Writes the rows of `keys` of a table, while requests to it go on: each shard is as it was
/// between two requests. Returns their number.
///
/// # Errors
/// [`Error::Config`] if this build has no Arrow; [`Error::Checkpoint`] if `out` cannot be written;
/// as [`Worker::wait`]. If this fails, drop the worker, so that servers stop keeping rows aside.
pub fn export_table(
    worker: &mut Worker,
    spec: &TableSpec,
    keys: KeyRange,
    format: Format,
    out: &mut impl Write,
) -> Result<u64> {
    let mut written = RowWriter::new(spec, format)?;
    let table = worker.admin().create_table(spec)?;
    worker.cut(&[table], None)?;
    let shown = if spec.width == 0 { usize::MAX } else { spec.row_bytes() };
    let mut rows = 0;
    for shard in 0..worker.info().shards(table)?.len() {
        let mut is_last = false;
        while !is_last {
            let asked = worker.piece(table, shard)?;
            let bytes = worker.wait(asked)?.replies.pop().unwrap_or_default();
            let piece = Piece::decode(&bytes).map_err(|why| failed(spec, why))?;
            is_last = piece.is_last;
            for (key, values) in piece.rows.values_of().filter(|(key, _)| keys.contains(*key)) {
                let values = &values[..values.len().min(shown)];
                written.append(key, values).map_err(|why| failed(spec, why))?;
                rows += 1;
            }
            if written.bytes.len() >= BATCH_BYTES {
                out.write_all(&written.bytes).map_err(|error| failed(spec, error))?;
                written.bytes.clear();
            }
        }
    }
    let rest = written.end().map_err(|why| failed(spec, why))?;
    out.write_all(&rest).and_then(|()| out.flush()).map_err(|error| failed(spec, error))?;
    Ok(rows)
}

/// Pushes rows that [`export_table`] has written to a table, which has any number of servers and is
/// created if it is not there. Returns their number. Rows that were there before are replaced
/// (handle `assign`) or added to (`add`).
///
/// # Errors
/// [`Error::Config`] if pushes to the table do not become its values, or this build has no Arrow;
/// [`Error::Checkpoint`] names the row that is none; as [`Worker::wait`]. Rows before are pushed
/// then.
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
    let rows = RowReader::new(spec, format, input)?;
    let table = worker.admin().create_table(spec)?;
    with_type!(spec.value, V => import::<V>(worker, table, rows))
}

fn import<V: Value + FromStr>(
    worker: &mut Worker,
    table: Table,
    mut rows: RowReader<'_, impl BufRead>,
) -> Result<u64> {
    let mut batch = Batch::<V> { keys: Vec::new(), lengths: Vec::new(), values: Vec::new() };
    let spec = rows.spec;
    loop {
        let begin = batch.values.len();
        let row = rows.next(&mut batch.values);
        let Some(key) = row.map_err(|why| failed(spec, why))? else { break };
        let count = batch.values.len() - begin;
        if batch.is_full() || batch.keys.last().is_some_and(|last| *last >= key) {
            let next = batch.values.split_off(begin);
            batch.push(worker, table, spec)?;
            batch.values = next;
        }
        batch.keys.push(key);
        batch.lengths.push(count as u32);
    }
    batch.push(worker, table, spec)?;
    Ok(rows.count)
}

/// Reads rows of a table as [`import_table`] does, and writes them as [`export_table`] does, maybe
/// in another format.
///
/// # Errors
/// Names the row that is none; [`Error::Config`] if this build has no Arrow.
pub fn rewrite_rows(
    spec: &TableSpec,
    format: Format,
    input: &mut impl BufRead,
    into: Format,
) -> Result<Vec<u8>> {
    let rows = RowReader::new(spec, format, input)?;
    let again = RowWriter::new(spec, into)?;
    with_type!(spec.value, V => rewrite::<V>(rows, again)).map_err(|why| failed(spec, why))
}

fn rewrite<V: Value + FromStr>(
    mut rows: RowReader<'_, impl BufRead>,
    mut again: RowWriter<'_>,
) -> std::result::Result<Vec<u8>, String> {
    let mut values: Vec<V> = Vec::new();
    while let Some(key) = rows.next(&mut values)? {
        again.append(key, V::bytes(&values))?;
        values.clear();
    }
    again.end()
}

/// Rows that are being read.
struct RowReader<'a, R> {
    spec: &'a TableSpec,
    format: Format,
    input: &'a mut R,
    /// What was read of an Arrow file.
    arrow: Option<arrow::Reader>,
    /// Rows so far.
    count: u64,
}

impl<'a, R: BufRead> RowReader<'a, R> {
    fn new(spec: &'a TableSpec, format: Format, input: &'a mut R) -> Result<Self> {
        let arrow = if format == Format::Arrow { Some(arrow::Reader::new(spec)?) } else { None };
        Ok(RowReader { spec, format, input, arrow, count: 0 })
    }

    /// Reads the key of the next row, and appends its values; `None` at the end.
    fn next<V: Value + FromStr>(
        &mut self,
        values: &mut Vec<V>,
    ) -> std::result::Result<Option<u64>, String> {
        self.count += 1;
        let begin = values.len();
        let row = match &mut self.arrow {
            Some(arrow) => arrow.next(self.input, values),
            None if self.format == Format::Text => read_line(self.input, values),
            None => read_record(self.spec, self.input, values),
        };
        let named = |why: String| format!("row {}: {why}", self.count);
        let Some(key) = row.map_err(named)? else {
            self.count -= 1;
            return Ok(None);
        };
        let (found, width) = (values.len() - begin, self.spec.width);
        if width > 0 && found != width as usize {
            return Err(named(format!(
                "key {key} comes with {found} values, and rows have {width}"
            )));
        }
        Ok(Some(key))
    }
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

/// Rows that are being written.
struct RowWriter<'a> {
    spec: &'a TableSpec,
    format: Format,
    /// Rows that are not in `bytes` yet.
    arrow: Option<arrow::Writer>,
    /// What is to be written next.
    bytes: Vec<u8>,
}

impl<'a> RowWriter<'a> {
    fn new(spec: &'a TableSpec, format: Format) -> Result<Self> {
        let arrow = if format == Format::Arrow { Some(arrow::Writer::new(spec)?) } else { None };
        Ok(RowWriter { spec, format, arrow, bytes: Vec::new() })
    }

    fn append(&mut self, key: u64, values: &[u8]) -> std::result::Result<(), String> {
        match &mut self.arrow {
            Some(arrow) => arrow.append(key, values, &mut self.bytes)?,
            None if self.format == Format::Text => {
                let mut line = String::new();
                append_line(self.spec, key, values, &mut line);
                self.bytes.append(&mut line.into_bytes());
            }
            None => append_record(self.spec, key, values, &mut self.bytes),
        }
        Ok(())
    }

    /// Returns what is left to write.
    fn end(mut self) -> std::result::Result<Vec<u8>, String> {
        if let Some(arrow) = self.arrow {
            arrow.end(&mut self.bytes)?;
        }
        Ok(self.bytes)
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
