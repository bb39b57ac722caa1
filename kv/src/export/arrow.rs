//! Rows as Arrow: a column `key` of `uint64`, and a column `values` with a list of each row's
//! values. The lists have one length if rows have. Arrow has no `bf16`, which becomes `float`.
//!
//! The crates of Arrow write files, and read schemas and what describes a record batch. Messages
//! are cut out of the input here, and columns out of messages, so that memory grows with what is
//! there, and what is cut off or damaged is seen.

use std::io::{BufRead, Read};
use std::sync::Arc;

use arrow_array::types::{
    ArrowPrimitiveType, Float16Type, Float32Type, Float64Type, Int32Type, Int64Type, UInt8Type,
    UInt32Type, UInt64Type,
};
use arrow_array::{
    ArrayRef, FixedSizeListArray, ListArray, PrimitiveArray, RecordBatch, UInt64Array,
};
use arrow_buffer::{Buffer, OffsetBuffer, ScalarBuffer};
use arrow_ipc::convert::try_fb_to_schema;
use arrow_ipc::writer::FileWriter;
use arrow_ipc::{Endianness, Message, root_as_footer, root_as_message};
use arrow_schema::{ArrowError, DataType, Field, Schema};
use caravan_van::Value;
use half::bf16;

use super::failed;
use crate::error::{Error, Result};
use crate::table::{TableSpec, ValueType};

/// Bytes of values, and rows, of a record batch that is written.
const BATCH_BYTES: usize = 1 << 20;
const BATCH_ROWS: usize = 1 << 16;

/// Most bytes of a record batch that is read.
const BODY_BYTES_MAX: u64 = 256 << 20;

/// Most bytes that describe a message, and the batches of a file.
const HEAD_BYTES_MAX: u64 = 1 << 20;
const FOOTER_BYTES_MAX: u64 = 64 << 20;

/// The first and the last bytes of a file. Behind them and zeros it begins as a stream.
const MAGIC: &[u8] = b"ARROW1";

/// Most bytes up to there, which are a multiple of 8.
const MAGIC_BYTES_MAX: usize = 64;

/// The first bytes of a message.
const CONTINUES: u32 = u32::MAX;

const KEY: &str = "key";
const VALUES: &str = "values";

type Said<T> = std::result::Result<T, String>;

fn said(error: impl ToString) -> String {
    error.to_string()
}

fn type_of(value: ValueType) -> DataType {
    match value {
        ValueType::F32 | ValueType::BF16 => DataType::Float32,
        ValueType::F64 => DataType::Float64,
        ValueType::I32 => DataType::Int32,
        ValueType::I64 => DataType::Int64,
        ValueType::U8 => DataType::UInt8,
        ValueType::F16 => DataType::Float16,
        ValueType::U32 => DataType::UInt32,
        ValueType::U64 => DataType::UInt64,
    }
}

/// Bytes of a value in Arrow.
fn size_of_value(value: ValueType) -> usize {
    if value == ValueType::BF16 { size_of::<f32>() } else { value.bytes() }
}

fn array_of(value: ValueType, values: Buffer) -> ArrayRef {
    fn array<T: ArrowPrimitiveType>(values: Buffer) -> ArrayRef {
        Arc::new(PrimitiveArray::<T>::new(ScalarBuffer::from(values), None))
    }
    match value {
        ValueType::F32 | ValueType::BF16 => array::<Float32Type>(values),
        ValueType::F64 => array::<Float64Type>(values),
        ValueType::I32 => array::<Int32Type>(values),
        ValueType::I64 => array::<Int64Type>(values),
        ValueType::U8 => array::<UInt8Type>(values),
        ValueType::F16 => array::<Float16Type>(values),
        ValueType::U32 => array::<UInt32Type>(values),
        ValueType::U64 => array::<UInt64Type>(values),
    }
}

/// Rows of the next record batch, and the file behind those before.
pub(super) struct Writer {
    value: ValueType,
    item: Arc<Field>,
    /// Values of a row; 0 if each row has its own number.
    width: i32,
    schema: Arc<Schema>,
    file: FileWriter<Vec<u8>>,
    keys: Vec<u64>,
    lengths: Vec<usize>,
    /// As the table has them.
    values: Vec<u8>,
}

impl Writer {
    pub(super) fn new(spec: &TableSpec) -> Result<Self> {
        let width = i32::try_from(spec.width).map_err(|_| {
            let why = format!("rows of {} values are too long for Arrow", spec.width);
            Error::Config(why)
        })?;
        let item = Arc::new(Field::new_list_field(type_of(spec.value), false));
        let lists = match width {
            0 => DataType::List(item.clone()),
            _ => DataType::FixedSizeList(item.clone(), width),
        };
        let key = Field::new(KEY, DataType::UInt64, false);
        let schema = Arc::new(Schema::new(vec![key, Field::new(VALUES, lists, false)]));
        let file = FileWriter::try_new(Vec::new(), &schema).map_err(|why| failed(spec, why))?;
        let (keys, lengths, values) = (Vec::new(), Vec::new(), Vec::new());
        Ok(Writer { value: spec.value, item, width, schema, file, keys, lengths, values })
    }

    /// Adds a row. Bytes of the file that are done go to the end of `into`.
    pub(super) fn append(&mut self, key: u64, values: &[u8], into: &mut Vec<u8>) -> Said<()> {
        self.keys.push(key);
        self.lengths.push(values.len() / self.value.bytes());
        self.values.extend_from_slice(values);
        if self.keys.len() < BATCH_ROWS && self.values.len() < BATCH_BYTES {
            return Ok(());
        }
        self.write().map_err(said)?;
        into.append(self.file.get_mut());
        Ok(())
    }

    /// Appends what is left of the file.
    pub(super) fn end(mut self, into: &mut Vec<u8>) -> Said<()> {
        let written = if self.keys.is_empty() { Ok(()) } else { self.write() };
        written.and_then(|()| self.file.finish()).map_err(said)?;
        into.append(self.file.get_mut());
        Ok(())
    }

    fn write(&mut self) -> std::result::Result<(), ArrowError> {
        let values = match self.value {
            ValueType::BF16 => Buffer::from(&widened(&self.values)[..]),
            _ => Buffer::from(&self.values[..]),
        };
        let (item, values) = (self.item.clone(), array_of(self.value, values));
        let lists: ArrayRef = match self.width {
            0 => {
                let offsets = OffsetBuffer::from_lengths(self.lengths.iter().copied());
                Arc::new(ListArray::try_new(item, offsets, values, None)?)
            }
            width => Arc::new(FixedSizeListArray::try_new(item, width, values, None)?),
        };
        let keys = Arc::new(UInt64Array::from(std::mem::take(&mut self.keys)));
        self.lengths.clear();
        self.values.clear();
        self.file.write(&RecordBatch::try_new(self.schema.clone(), vec![keys, lists])?)
    }
}

/// `bf16` as `f32`.
fn widened(bytes: &[u8]) -> Vec<u8> {
    let halves = bytes.as_chunks().0.iter().map(|half| bf16::from_le_bytes(*half));
    halves.flat_map(|half| half.to_f32().to_le_bytes()).collect()
}

/// `f32` as `bf16`.
fn narrowed(bytes: &[u8]) -> Vec<u8> {
    let singles = bytes.as_chunks().0.iter().map(|single| f32::from_le_bytes(*single));
    singles.flat_map(|single| bf16::from_f32(single).to_le_bytes()).collect()
}

/// Where in a file or stream the reader is.
enum Place {
    Start,
    /// Behind the schema.
    Batches,
    End,
}

/// The record batch that is being read, and what was read of the file or stream.
pub(super) struct Reader {
    value: ValueType,
    place: Place,
    is_file: bool,
    schema: Schema,
    /// Record batches so far.
    batches: usize,
    rows: Rows,
    /// Rows of the batch that were taken.
    taken: usize,
}

impl Reader {
    #[allow(clippy::unnecessary_wraps, reason = "a build without Arrow has an error here")]
    pub(super) fn new(spec: &TableSpec) -> Result<Self> {
        Ok(Reader {
            value: spec.value,
            place: Place::Start,
            is_file: false,
            schema: Schema::empty(),
            batches: 0,
            rows: Rows::default(),
            taken: 0,
        })
    }

    /// Reads the key of the next row, and appends its values; `None` at the end.
    pub(super) fn next<V: Value>(
        &mut self,
        input: &mut impl BufRead,
        values: &mut Vec<V>,
    ) -> Said<Option<u64>> {
        while self.taken == self.rows.keys.len() {
            let Some(rows) = self.next_batch(input)? else { return Ok(None) };
            self.rows = rows;
            self.taken = 0;
        }
        let Rows { keys, ends, values: bytes } = &self.rows;
        let begin = if self.taken == 0 { 0 } else { ends[self.taken - 1] };
        let row = &bytes[begin * V::BYTES..ends[self.taken] * V::BYTES];
        let from = values.len();
        values.resize(from + row.len() / V::BYTES, V::default());
        V::bytes_mut(&mut values[from..]).copy_from_slice(row);
        self.taken += 1;
        Ok(Some(keys[self.taken - 1]))
    }

    fn next_batch(&mut self, input: &mut impl BufRead) -> Said<Option<Rows>> {
        match self.place {
            Place::Start => {
                self.is_file = skip_magic(input)?;
                let (head, _) = message(input)?.ok_or("it ends before its schema")?;
                self.schema = schema(&parsed(&head)?, self.value)?;
                self.place = Place::Batches;
            }
            Place::Batches => {}
            Place::End => return Ok(None),
        }
        let Some((head, body)) = message(input)? else {
            self.place = Place::End;
            if self.is_file {
                check_footer(input, self.batches)?;
            } else if !at_end(input)? {
                return Err("bytes follow the end of the stream".to_owned());
            }
            return Ok(None);
        };
        self.batches += 1;
        let named = |why: String| format!("record batch {}: {why}", self.batches);
        Rows::of(&parsed(&head)?, &body, &self.schema, self.value).map(Some).map_err(named)
    }
}

fn at_end(input: &mut impl BufRead) -> Said<bool> {
    input.fill_buf().map(<[u8]>::is_empty).map_err(said)
}

/// Whether a file begins here, rather than a stream.
fn skip_magic(input: &mut impl BufRead) -> Said<bool> {
    // One byte tells: neither a stream nor a message begins so.
    if input.fill_buf().map_err(said)?.first() != MAGIC.first() {
        return Ok(false);
    }
    let mut head = exactly(input, 8)?;
    while head.len() < MAGIC_BYTES_MAX && input.fill_buf().map_err(said)?.first() == Some(&0) {
        head.append(&mut exactly(input, 8)?);
    }
    match head.strip_prefix(MAGIC) {
        Some(zeros) if zeros.iter().all(|byte| *byte == 0) => Ok(true),
        _ => Err("it is neither a file of Arrow's IPC nor a stream".to_owned()),
    }
}

/// Reads a number of bytes. Memory grows with what is there.
fn exactly(input: &mut impl BufRead, count: u64) -> Said<Vec<u8>> {
    let mut bytes = Vec::new();
    input.by_ref().take(count).read_to_end(&mut bytes).map_err(said)?;
    if bytes.len() as u64 == count { Ok(bytes) } else { Err("it is cut off".to_owned()) }
}

fn number(bytes: &[u8]) -> u32 {
    bytes.first_chunk().map_or(0, |bytes| u32::from_le_bytes(*bytes))
}

/// Reads what describes the next message, and its body; `None` at the end of the stream.
fn message(input: &mut impl BufRead) -> Said<Option<(Vec<u8>, Vec<u8>)>> {
    let start = exactly(input, 8)?;
    if number(&start) != CONTINUES {
        return Err("no message of Arrow's IPC begins where one has to".to_owned());
    }
    let len = u64::from(number(&start[4..]));
    if len == 0 {
        return Ok(None);
    }
    if len > HEAD_BYTES_MAX {
        return Err(format!("the head of a message has {len} bytes, more than {HEAD_BYTES_MAX}"));
    }
    let head = exactly(input, len)?;
    let body_len = parsed(&head)?.bodyLength();
    match u64::try_from(body_len) {
        Ok(len) if len <= BODY_BYTES_MAX => Ok(Some((head, exactly(input, len)?))),
        _ => Err(format!(
            "a record batch has {body_len} bytes, more than {BODY_BYTES_MAX}: write smaller ones"
        )),
    }
}

fn parsed(head: &[u8]) -> Said<Message<'_>> {
    root_as_message(head).map_err(|error| format!("the head of a message is damaged: {error}"))
}

/// The schema in a message, if it has the columns of a table.
fn schema(message: &Message<'_>, value: ValueType) -> Said<Schema> {
    let found = message.header_as_schema().ok_or("its first message is no schema")?;
    if found.endianness() != Endianness::Little {
        return Err("its numbers are big-endian".to_owned());
    }
    let schema = try_fb_to_schema(found).map_err(said)?;
    let names: Vec<&str> = schema.fields().iter().map(|field| &field.name()[..]).collect();
    if names != [KEY, VALUES] {
        let names = names.join(", ");
        return Err(format!("its columns are {names}, and have to be {KEY} and {VALUES}"));
    }
    let (key, lists) = (schema.field(0).data_type(), schema.field(1).data_type());
    if *key != DataType::UInt64 {
        return Err(format!("column {KEY} has the type {key}, and has to have UInt64"));
    }
    let expected = type_of(value);
    match lists {
        DataType::List(item) | DataType::FixedSizeList(item, _)
            if *item.data_type() == expected =>
        {
            Ok(schema)
        }
        _ => Err(format!(
            "column {VALUES} has the type {lists}, and the table takes lists of {expected}"
        )),
    }
}

/// Reads the end of a file, which has as many batches.
fn check_footer(input: &mut impl BufRead, batches: usize) -> Said<()> {
    let mut end = Vec::new();
    input.by_ref().take(FOOTER_BYTES_MAX + 1).read_to_end(&mut end).map_err(said)?;
    let damaged = || "its footer is damaged or cut off".to_owned();
    let rest = end.strip_suffix(MAGIC).ok_or_else(damaged)?;
    let (rest, len) = rest.split_last_chunk().ok_or_else(damaged)?;
    if rest.len() != u32::from_le_bytes(*len) as usize {
        return Err(damaged());
    }
    let footer = root_as_footer(rest).map_err(|_| damaged())?;
    let said = footer.recordBatches().map_or(0, |blocks| blocks.len());
    if said != batches {
        return Err(format!("it has {batches} record batches, and its footer names {said}"));
    }
    Ok(())
}

/// Rows of a record batch.
#[derive(Default)]
struct Rows {
    keys: Vec<u64>,
    /// Values up to the end of each row.
    ends: Vec<usize>,
    /// As the table has them.
    values: Vec<u8>,
}

impl Rows {
    /// Takes them out of a message behind one with [`schema`]. What it says of itself is not taken
    /// for true; the decoder of `arrow-ipc` panics at some of it.
    fn of(message: &Message<'_>, body: &[u8], schema: &Schema, value: ValueType) -> Said<Rows> {
        let kind = message.header_type();
        let batch = message.header_as_record_batch();
        let batch = batch.ok_or_else(|| format!("it is another message, {kind:?}"))?;
        if batch.compression().is_some() {
            return Err("it is compressed: write it without compression".to_owned());
        }
        if batch.nodes().into_iter().flatten().any(|node| node.null_count() != 0) {
            return Err("it has nulls, and a table has none".to_owned());
        }
        let rows = Rows::found(batch, body, schema.field(1).data_type(), size_of_value(value));
        let mut rows = rows.ok_or("it is damaged: its columns are not as it says")?;
        if value == ValueType::BF16 {
            rows.values = narrowed(&rows.values);
        }
        Ok(rows)
    }

    /// The rows of a batch whose values have `size` bytes each; `None` if it has not what it says.
    fn found(
        batch: arrow_ipc::RecordBatch<'_>,
        body: &[u8],
        lists: &DataType,
        size: usize,
    ) -> Option<Rows> {
        let lengths = batch.nodes()?.into_iter().map(|node| usize::try_from(node.length()).ok());
        let lengths: Option<Vec<usize>> = lengths.collect();
        // Of the keys, the lists and the values.
        let [rows, of_lists, count] = lengths?[..] else { return None };
        let columns = batch.buffers()?.into_iter().map(|place| {
            let begin = usize::try_from(place.offset()).ok()?;
            body.get(begin..begin.checked_add(usize::try_from(place.length()).ok()?)?)
        });
        let columns: Option<Vec<&[u8]>> = columns.collect();
        // Before the bytes of each column comes a map of its nulls.
        let (keys, offsets, values) = match (lists, &columns?[..]) {
            (DataType::List(_), [_, keys, _, offsets, _, values]) => {
                (*keys, Some(*offsets), *values)
            }
            (_, [_, keys, _, _, values]) => (*keys, None, *values),
            _ => return None,
        };
        let keys = keys.get(..rows.checked_mul(size_of::<u64>())?)?;
        let values = values.get(..count.checked_mul(size)?)?;
        let (begin, ends) = match (offsets, lists) {
            (Some(offsets), _) if rows > 0 => ends_of(offsets, rows)?,
            (None, DataType::FixedSizeList(_, width)) => {
                let width = usize::try_from(*width).ok()?;
                let ends = (1..=rows).map(|row| row.checked_mul(width)).collect::<Option<_>>();
                (0, ends?)
            }
            _ => (0, Vec::new()),
        };
        let end = begin.checked_add(ends.last().copied().unwrap_or(0))?;
        let values = values.get(begin * size..end.checked_mul(size)?)?;
        let keys = keys.as_chunks().0.iter().map(|key| u64::from_le_bytes(*key));
        let is_whole = of_lists == rows && usize::try_from(batch.length()).ok()? == rows;
        is_whole.then(|| Rows { keys: keys.collect(), ends, values: values.to_vec() })
    }
}

/// Where the values of lists begin, and the ends of the lists from there on; `None` if offsets are
/// missing or descend.
fn ends_of(offsets: &[u8], lists: usize) -> Option<(usize, Vec<usize>)> {
    let (offsets, _) = offsets.as_chunks();
    let offsets = offsets.get(..lists.checked_add(1)?)?.iter().map(|at| i32::from_le_bytes(*at));
    let offsets: Option<Vec<usize>> = offsets.map(|at| usize::try_from(at).ok()).collect();
    let offsets = offsets?;
    let begin = *offsets.first()?;
    let ends = offsets[1..].iter().map(|end| end - begin);
    offsets.is_sorted().then(|| (begin, ends.collect()))
}
