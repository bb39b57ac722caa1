//! Writes, reads and restores checkpoints on a disk.
//!
//! Checkpoint 3 has the files `3.0.0.rows`, `3.0.1.rows` and so on, one for each shard of each
//! table, and `3.manifest`. A file of rows holds records: magic, CRC32C, length, and a piece. No
//! number is ever used twice, so what a writer that died has left behind does no harm.

use std::fmt::Display;
use std::io::{self, Read};

use caravan_van::Value;

use super::{Disk, Manifest, Piece, SavedShard, SavedTable};
use crate::error::{Error, Result};
use crate::table::{TableSpec, with_type};
use crate::worker::{Table, Worker};

const MAGIC: u32 = u32::from_le_bytes(*b"CVCP");

/// Bytes of a record before its piece.
const HEAD: usize = 16;

/// Bytes gathered before they go to the disk.
const WRITE_BYTES: usize = 1 << 20;

const MANIFEST: &str = ".manifest";
const PARTIAL: &str = ".partial";

/// The checkpoints on a disk.
#[derive(Debug)]
pub struct Checkpoints<D> {
    disk: D,
}

/// A shard that is being written.
struct Writing {
    table: Table,
    shard: usize,
    saved: SavedShard,
    buffer: Vec<u8>,
}

impl<D: Disk> Checkpoints<D> {
    /// Those on this disk.
    pub fn new(disk: D) -> Self {
        Checkpoints { disk }
    }

    /// The disk.
    pub fn disk(&mut self) -> &mut D {
        &mut self.disk
    }

    /// The numbers of all checkpoints, in the order in which they were written.
    ///
    /// # Errors
    /// [`Error::Checkpoint`].
    pub fn list(&self) -> Result<Vec<u64>> {
        let names = self.disk.names().map_err(|error| failed("the checkpoints", error))?;
        let number = |name: &String| name.strip_suffix(MANIFEST)?.parse().ok();
        let mut numbers: Vec<u64> = names.iter().filter_map(number).collect();
        numbers.sort_unstable();
        Ok(numbers)
    }

    /// The manifest of a checkpoint.
    ///
    /// # Errors
    /// [`Error::Checkpoint`] if there is none, or it is damaged.
    pub fn manifest(&self, number: u64) -> Result<Manifest> {
        let name = format!("{number}{MANIFEST}");
        let mut bytes = Vec::new();
        let opened = self.disk.open(&name);
        let read = opened.and_then(|mut file| file.read_to_end(&mut bytes));
        read.map_err(|error| failed(&name, error))?;
        Manifest::decode(&bytes).map_err(|reason| failed(&name, reason))
    }

    /// Writes a checkpoint of tables that `worker` can join; returns its number. Requests to the
    /// tables go on meanwhile. If this fails, the checkpoints from before remain.
    ///
    /// # Errors
    /// [`Error::Checkpoint`] names the file that cannot be written; as [`Worker::wait`].
    pub fn create(&mut self, worker: &mut Worker, specs: &[TableSpec]) -> Result<u64> {
        let number = self.next_number()?;
        let tables = specs.iter().map(|spec| worker.create_table(spec));
        let tables = tables.collect::<Result<Vec<_>>>()?;
        worker.cut(&tables)?;
        let mut saved = Vec::new();
        for (at, (spec, table)) in specs.iter().zip(&tables).enumerate() {
            let shards = self.write_table(worker, *table, &format!("{number}.{at}"))?;
            saved.push(SavedTable { spec: spec.clone(), shards });
        }
        self.publish(number, &Manifest::new(saved))?;
        Ok(number)
    }

    /// A number that no file has.
    fn next_number(&self) -> Result<u64> {
        let names = self.disk.names().map_err(|error| failed("the checkpoints", error))?;
        let number = |name: &String| name.split('.').next()?.parse::<u64>().ok();
        Ok(names.iter().filter_map(number).max().map_or(1, |last| last.saturating_add(1)))
    }

    /// Writes the shards of a table that is cut. Each is asked for its next piece before the last
    /// one is written.
    fn write_table(
        &mut self,
        worker: &mut Worker,
        table: Table,
        name: &str,
    ) -> Result<Vec<SavedShard>> {
        let shards = worker.shards(table)?.len();
        let writing = |shard| {
            let saved =
                SavedShard { file: format!("{name}.{shard}.rows"), ..SavedShard::default() };
            Writing { table, shard, saved, buffer: Vec::new() }
        };
        let mut writings: Vec<Writing> = (0..shards).map(writing).collect();
        let mut asked = Vec::new();
        for shard in 0..shards {
            asked.push(Some(worker.piece(table, shard)?));
        }
        while asked.iter().any(Option::is_some) {
            for (asked, writing) in asked.iter_mut().zip(&mut writings) {
                let Some(request) = asked.take() else { continue };
                let bytes = worker.wait(request)?.replies.pop().unwrap_or_default();
                let is_last = bytes.first() == Some(&1);
                if !is_last {
                    *asked = Some(worker.piece(writing.table, writing.shard)?);
                }
                self.write(writing, &bytes, is_last)?;
            }
        }
        Ok(writings.into_iter().map(|writing| writing.saved).collect())
    }

    /// Writes a piece, and makes the file durable behind the last one.
    fn write(&mut self, writing: &mut Writing, piece: &[u8], is_last: bool) -> Result<()> {
        let Writing { saved, buffer, .. } = writing;
        let rows = piece.as_chunks::<8>().0.get(1).map_or(0, |rows| u64::from_le_bytes(*rows));
        saved.rows += rows;
        saved.bytes += (HEAD + piece.len()) as u64;
        record(piece, buffer);
        if buffer.len() >= WRITE_BYTES || is_last {
            let appended = self.disk.append(&saved.file, buffer);
            appended.map_err(|error| failed(&saved.file, error))?;
            buffer.clear();
        }
        if is_last {
            self.disk.sync(&saved.file).map_err(|error| failed(&saved.file, error))?;
        }
        Ok(())
    }

    /// Makes the files a checkpoint.
    fn publish(&mut self, number: u64, manifest: &Manifest) -> Result<()> {
        let name = format!("{number}{MANIFEST}");
        let partial = format!("{name}{PARTIAL}");
        let bytes = manifest.encode().map_err(|reason| failed(&name, reason))?;
        let mut put = || -> io::Result<()> {
            self.disk.append(&partial, &bytes)?;
            self.disk.sync(&partial)?;
            // The names of the rows last at least as long as that of the manifest.
            self.disk.sync_names()?;
            self.disk.rename(&partial, &name)?;
            self.disk.sync_names()
        };
        put().map_err(|error| failed(&name, error))
    }

    /// Reads all files of a checkpoint, and checks them.
    ///
    /// # Errors
    /// [`Error::Checkpoint`] names the file that is damaged.
    pub fn verify(&self, number: u64) -> Result<Manifest> {
        let manifest = self.manifest(number)?;
        for shard in manifest.shards() {
            self.read(shard, |_| Ok::<(), Error>(()))?;
        }
        Ok(manifest)
    }

    /// Creates the tables of a checkpoint in a cluster, with any number of servers. All of it is
    /// verified before.
    ///
    /// # Errors
    /// As [`Checkpoints::verify`]; [`Error::Checkpoint`] if one of the tables exists; as
    /// [`Worker::wait`].
    pub fn restore(&self, worker: &mut Worker, number: u64) -> Result<Manifest> {
        let manifest = self.verify(number)?;
        let there = worker.list_tables("")?;
        for SavedTable { spec, .. } in &manifest.tables {
            let is_it = |it: &TableSpec| it.id == spec.id && it.namespace == spec.namespace;
            if there.iter().any(is_it) {
                let what = format!("table {} of checkpoint {number}", spec.name);
                return Err(failed(&what, "the cluster has a table of its number (drop it first)"));
            }
        }
        for SavedTable { spec, shards } in &manifest.tables {
            let table = worker.create_table(spec)?;
            for shard in shards {
                self.read(shard, |piece| worker.put(table, &piece))?;
            }
        }
        Ok(manifest)
    }

    /// Calls `with` with the rows of a table as text: some lines at a time, each with a key and the
    /// values that pulls show.
    ///
    /// # Errors
    /// As [`Checkpoints::verify`], and those of `with`.
    pub fn export<E: From<Error>>(
        &self,
        table: &SavedTable,
        mut with: impl FnMut(&str) -> Result<(), E>,
    ) -> Result<(), E> {
        let SavedTable { spec, shards } = table;
        let shown = if spec.width == 0 { usize::MAX } else { spec.row_bytes() };
        let mut text = String::new();
        for shard in shards {
            self.read(shard, |piece| {
                for (key, values) in piece.rows.values_of() {
                    append_line(spec, key, &values[..values.len().min(shown)], &mut text);
                }
                let lines = with(&text);
                text.clear();
                lines
            })?;
        }
        Ok(())
    }

    /// Calls `with` with each piece of a shard's file.
    fn read<E: From<Error>>(
        &self,
        shard: &SavedShard,
        mut with: impl FnMut(Piece) -> Result<(), E>,
    ) -> Result<(), E> {
        let SavedShard { file: name, rows, bytes } = shard;
        let mut file = self.disk.open(name).map_err(|error| failed(name, error))?;
        let (mut bytes_read, mut rows_read) = (0, 0);
        let mut last = None;
        loop {
            let record = read_record(&mut file, bytes - bytes_read);
            let body =
                record.map_err(|reason| failed(name, format!("at byte {bytes_read}: {reason}")))?;
            let piece = Piece::decode(&body);
            let piece =
                piece.map_err(|reason| failed(name, format!("at byte {bytes_read}: {reason}")))?;
            bytes_read += (HEAD + body.len()) as u64;
            rows_read += piece.rows.keys.len() as u64;
            if piece.rows.keys.first().is_some_and(|first| last.is_some_and(|last| last >= *first))
            {
                return Err(
                    failed(name, format!("its keys do not ascend at byte {bytes_read}")).into()
                );
            }
            last = piece.rows.keys.last().copied().or(last);
            let is_last = piece.is_last;
            with(piece)?;
            if is_last {
                break;
            }
        }
        if (bytes_read, rows_read) != (*bytes, *rows) {
            let found =
                format!("it has {rows_read} rows in {bytes_read} bytes, not {rows} in {bytes}");
            return Err(failed(name, found).into());
        }
        Ok(())
    }
}

fn failed(what: &str, reason: impl ToString) -> Error {
    Error::Checkpoint { what: format!("checkpoint file {what}"), reason: reason.to_string() }
}

/// Appends a record.
fn record(piece: &[u8], into: &mut Vec<u8>) {
    into.extend_from_slice(&MAGIC.to_le_bytes());
    into.extend_from_slice(&crc_fast::crc32_iscsi(piece).to_le_bytes());
    into.extend_from_slice(&(piece.len() as u64).to_le_bytes());
    into.extend_from_slice(piece);
}

/// Reads the piece of a record of a file that has `left` more bytes.
fn read_record(file: &mut dyn Read, left: u64) -> Result<Vec<u8>, String> {
    let mut head = [0; HEAD];
    file.read_exact(&mut head).map_err(|error| format!("no record: {error}"))?;
    let number =
        |at: usize| u32::from_le_bytes([head[at], head[at + 1], head[at + 2], head[at + 3]]);
    let len = u64::from(number(8)) | u64::from(number(12)) << 32;
    if number(0) != MAGIC || len > left.saturating_sub(HEAD as u64) {
        return Err(format!("no record, or one longer than the {left} bytes that are left"));
    }
    let mut body = Vec::new(); // grows with what is really there
    file.take(len).read_to_end(&mut body).map_err(|error| error.to_string())?;
    if body.len() as u64 != len || crc_fast::crc32_iscsi(&body) != number(4) {
        return Err("the record does not match its checksum".to_owned());
    }
    Ok(body)
}

/// Appends a row as a line: its key and values that pulls show.
pub(crate) fn append_line(spec: &TableSpec, key: u64, values: &[u8], text: &mut String) {
    text.push_str(&key.to_string());
    with_type!(spec.value, V => append_values::<V>(values, text));
    text.push('\n');
}

/// Appends values with a space before each.
fn append_values<V: Value + Display>(bytes: &[u8], text: &mut String) {
    let mut values = vec![V::default(); bytes.len() / V::BYTES];
    V::bytes_mut(&mut values).copy_from_slice(&bytes[..bytes.len() / V::BYTES * V::BYTES]);
    for value in &values {
        text.push(' ');
        text.push_str(&value.to_string());
    }
}
