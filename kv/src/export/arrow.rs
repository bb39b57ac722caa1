//! Rows as Arrow: a column `key` of `uint64`, and a column `values` with a list of each row's
//! values. Lists have one length where rows have. Arrow has no `bf16`, which becomes `float32`.

use std::io::{BufRead, Cursor, Read, Write};
use std::sync::Arc;

use arrow_array::cast::AsArray;
use arrow_array::types::UInt64Type;
use arrow_array::{
    Array, ArrayRef, FixedSizeListArray, ListArray, RecordBatch, UInt64Array, make_array,
};
use arrow_buffer::{Buffer, OffsetBuffer};
use arrow_data::ArrayData;
use arrow_ipc::reader::StreamReader;
use arrow_ipc::writer::FileWriter;
use arrow_schema::{ArrowError, DataType, Field, Schema};
use caravan_van::Value;
use half::bf16;

use super::{Next, Sink, failed};
use crate::error::{Error, Result};
use crate::table::{TableSpec, ValueType};

/// Bytes of values, and rows, of a record batch.
const BATCH_BYTES: usize = 1 << 20;
const BATCH_ROWS: usize = 1 << 16;

/// What a file begins with, before what is also a stream.
const FILE_MAGIC: &[u8] = b"ARROW1";

const KEY: &str = "key";
const VALUES: &str = "values";

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

fn item(value: ValueType) -> Arc<Field> {
    Arc::new(Field::new_list_field(type_of(value), false))
}

fn columns(spec: &TableSpec) -> Result<Schema> {
    let item = item(spec.value);
    let lists = match i32::try_from(spec.width) {
        Ok(0) => DataType::List(item),
        Ok(width) => DataType::FixedSizeList(item, width),
        Err(_) => {
            let why = format!("rows of {} values are too long for Arrow", spec.width);
            return Err(Error::Config(why));
        }
    };
    let fields =
        vec![Field::new(KEY, DataType::UInt64, false), Field::new(VALUES, lists, false)];
    Ok(Schema::new(fields))
}

pub(super) fn sink<'a>(
    spec: &'a TableSpec,
    out: &'a mut impl Write,
) -> Result<Box<dyn Sink + 'a>> {
    let schema = Arc::new(columns(spec)?);
    let writer = FileWriter::try_new(out, &schema).map_err(|error| failed(spec, error))?;
    let (keys, lengths, values) = (Vec::new(), Vec::new(), Vec::new());
    Ok(Box::new(Batches { spec, schema, writer, keys, lengths, values }))
}

/// Rows of the next record batch, and where it goes.
struct Batches<'a, W: Write> {
    spec: &'a TableSpec,
    schema: Arc<Schema>,
    writer: FileWriter<&'a mut W>,
    keys: Vec<u64>,
    lengths: Vec<usize>,
    /// As the table has them.
    values: Vec<u8>,
}

impl<W: Write> Batches<'_, W> {
    fn write(&mut self) -> std::result::Result<(), ArrowError> {
        let TableSpec { value, width, .. } = *self.spec;
        let values = match value {
            ValueType::BF16 => Buffer::from(&widened(&self.values)[..]),
            _ => Buffer::from(&self.values[..]),
        };
        let count = self.values.len() / value.bytes();
        let values = ArrayData::builder(type_of(value)).len(count).add_buffer(values).build()?;
        let (item, values) = (item(value), make_array(values));
        let lists: ArrayRef = match width {
            0 => {
                let offsets = OffsetBuffer::from_lengths(self.lengths.iter().copied());
                Arc::new(ListArray::try_new(item, offsets, values, None)?)
            }
            _ => Arc::new(FixedSizeListArray::try_new(item, width as i32, values, None)?),
        };
        let keys = Arc::new(UInt64Array::from(std::mem::take(&mut self.keys)));
        self.writer.write(&RecordBatch::try_new(self.schema.clone(), vec![keys, lists])?)?;
        self.lengths.clear();
        self.values.clear();
        Ok(())
    }
}

impl<W: Write> Sink for Batches<'_, W> {
    fn row(&mut self, key: u64, values: &[u8]) -> std::result::Result<(), String> {
        self.keys.push(key);
        self.lengths.push(values.len() / self.spec.value.bytes());
        self.values.extend_from_slice(values);
        if self.keys.len() < BATCH_ROWS && self.values.len() < BATCH_BYTES {
            return Ok(());
        }
        self.write().map_err(|error| error.to_string())
    }

    fn end(&mut self) -> std::result::Result<(), String> {
        let written = if self.keys.is_empty() { Ok(()) } else { self.write() };
        written.and_then(|()| self.writer.finish()).map_err(|error| error.to_string())
    }
}

/// `bf16` as `f32`.
fn widened(bytes: &[u8]) -> Vec<u8> {
    let halves = bytes.as_chunks().0.iter().map(|half| bf16::from_ne_bytes(*half));
    halves.flat_map(|half| half.to_f32().to_ne_bytes()).collect()
}

/// `f32` as `bf16`.
fn narrowed(bytes: &[u8]) -> Vec<u8> {
    let singles = bytes.as_chunks().0.iter().map(|single| f32::from_ne_bytes(*single));
    singles.flat_map(|single| bf16::from_f32(single).to_ne_bytes()).collect()
}

/// The rows of a file or a stream.
pub(super) fn rows<'a, V: Value>(
    spec: &'a TableSpec,
    input: &'a mut impl BufRead,
) -> Result<Box<Next<'a, V>>> {
    let mut head = Vec::new();
    let begun = input.by_ref().take(8).read_to_end(&mut head);
    begun.map_err(|error| failed(spec, error))?;
    if head.starts_with(FILE_MAGIC) {
        head.clear();
    }
    let reader = StreamReader::try_new(Cursor::new(head).chain(input), None);
    let mut reader = reader.map_err(|error| failed(spec, error))?;
    let mut batch = Lists { keys: Vec::new(), ends: Vec::new(), values: Vec::new() };
    let mut at = 0;
    Ok(Box::new(move |values| {
        while at == batch.keys.len() {
            let Some(next) = reader.next() else { return Ok(None) };
            batch = Lists::of(spec, &next.map_err(|error| error.to_string())?)?;
            at = 0;
        }
        let begin = if at == 0 { 0 } else { batch.ends[at - 1] };
        let row = &batch.values[begin * V::BYTES..batch.ends[at] * V::BYTES];
        let from = values.len();
        values.resize(from + row.len() / V::BYTES, V::default());
        V::bytes_mut(&mut values[from..]).copy_from_slice(row);
        at += 1;
        Ok(Some(batch.keys[at - 1]))
    }))
}

/// Rows of a record batch.
struct Lists {
    keys: Vec<u64>,
    /// Values up to the end of each row.
    ends: Vec<usize>,
    /// As the table has them.
    values: Vec<u8>,
}

impl Lists {
    fn of(spec: &TableSpec, batch: &RecordBatch) -> std::result::Result<Lists, String> {
        let column = |name: &str| {
            let column = batch.column_by_name(name);
            let column = column.ok_or_else(|| format!("there is no column {name}"))?;
            match column.null_count() {
                0 => Ok(column),
                nulls => Err(format!("column {name} has {nulls} nulls")),
            }
        };
        let (keys, lists) = (column(KEY)?, column(VALUES)?);
        let keys = keys.as_primitive_opt::<UInt64Type>();
        let keys = keys.ok_or_else(|| format!("column {KEY} is no uint64"))?;
        let (values, begin, ends): (&ArrayRef, usize, Vec<usize>) =
            if let Some(lists) = lists.as_fixed_size_list_opt() {
                let width = lists.value_length() as usize;
                (lists.values(), 0, (1..=lists.len()).map(|row| row * width).collect())
            } else if let Some(lists) = lists.as_list_opt::<i32>() {
                let offsets = lists.value_offsets();
                let ends = offsets.iter().skip(1).map(|end| (end - offsets[0]) as usize);
                (lists.values(), offsets[0] as usize, ends.collect())
            } else {
                return Err(format!("column {VALUES} has no lists, but {}", lists.data_type()));
            };
        let (of, expected) = (values.data_type(), type_of(spec.value));
        if *of != expected || values.null_count() > 0 {
            return Err(format!(
                "column {VALUES} has lists of {of}, and the table takes {expected} without nulls"
            ));
        }
        let count = ends.last().copied().unwrap_or(0);
        let data = values.slice(begin, count).to_data();
        let bytes = match data.buffers().first() {
            Some(buffer) if count > 0 => {
                let size = buffer_size(spec.value);
                &buffer.as_slice()[data.offset() * size..][..count * size]
            }
            _ => &[],
        };
        let values = if spec.value == ValueType::BF16 { narrowed(bytes) } else { bytes.to_vec() };
        Ok(Lists { keys: keys.values().to_vec(), ends, values })
    }
}

/// Bytes of a value in Arrow.
fn buffer_size(value: ValueType) -> usize {
    if value == ValueType::BF16 { size_of::<f32>() } else { value.bytes() }
}
