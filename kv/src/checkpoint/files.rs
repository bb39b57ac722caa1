//! Writes, reads and restores checkpoints on a disk.
//!
//! Checkpoint 3 has the files `3.0.0.rows`, `3.0.1.rows` and so on, one for each shard of each
//! table, and `3.manifest`. Those of an increment hold what changed since its parent. The newest
//! checkpoint is never deleted, so no number is used twice, and what a writer that died has left
//! behind does no harm.

use std::collections::BTreeSet;
use std::io;

use crc_fast::Digest;

use super::chain::{Chain, ChainRows, Link};
use super::comparison::Comparison;
use super::manifest::BYTES_MAX;
use super::records::{self, Kind, Reading, failed};
use super::{Disk, Manifest, Parent, Piece, Row, SavedShard, SavedTable, append_line};
use crate::error::{Error, Result};
use crate::files;
use crate::sketch;
use crate::table::TableSpec;
use crate::worker::{Table, Worker};

/// Bytes gathered before they go to the disk: few, since a call that copies many holds up others of
/// its processor.
const WRITE_BYTES: usize = 64 << 10;

/// Bytes of changes in a record, and of rows that are put at once.
const PIECE_BYTES: usize = 32 << 10;

const MANIFEST: &str = ".manifest";
const PARTIAL: &str = ".partial";

/// The checkpoints on a disk.
#[derive(Debug)]
pub struct Checkpoints<D> {
    disk: D,
    /// The iteration of which they are to be.
    clock: Option<u64>,
}

/// A shard that is being written.
struct Writing {
    saved: SavedShard,
    /// Checksum of what was appended to the file.
    crc: Digest,
    buffer: Vec<u8>,
}

impl Writing {
    /// Into the file of a shard of table `at` of checkpoint `number`.
    fn new((number, at): (u64, usize), shard: usize) -> Writing {
        let file = SavedShard::name(number, at, shard);
        let saved = SavedShard { file, ..SavedShard::default() };
        Writing { saved, crc: records::digest(), buffer: Vec::new() }
    }
}

impl<D: Disk> Checkpoints<D> {
    /// Those on this disk.
    pub fn new(disk: D) -> Self {
        Checkpoints { disk, clock: None }
    }

    /// Makes those that are written from now on wait until all workers of tables with a
    /// [consistency model](crate::consistency) have come to iteration `clock`, if one is given:
    /// they have all pushes of the iterations before, and under BSP no other, on all servers.
    /// Tables without a model, or with one that all workers have left, are taken at once.
    ///
    /// Writing one fails if an iteration is over. The worker that writes it takes no part: it would
    /// wait for itself.
    #[must_use]
    pub fn at_clock(self, clock: Option<u64>) -> Self {
        Checkpoints { clock, ..self }
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
        Ok(self.link(number)?.manifest)
    }

    /// A checkpoint by itself.
    fn link(&self, number: u64) -> Result<Link> {
        let name = format!("{number}{MANIFEST}");
        let read = self.disk.open(&name).and_then(|file| files::read_up_to(file, BYTES_MAX));
        let bytes = read.map_err(|error| failed(&name, error))?;
        let decoded = Manifest::decode(&bytes, number);
        let (manifest, checksum) = decoded.map_err(|reason| failed(&name, reason))?;
        Ok(Link { number, manifest, checksum })
    }

    /// A checkpoint with all that it is based on.
    fn chain(&self, number: u64) -> Result<Chain> {
        let newest = self.link(number)?;
        let mut older: Vec<Link> = Vec::new();
        while let Link { number, manifest: Manifest { parent: Some(parent), .. }, .. } =
            older.last().unwrap_or(&newest)
        {
            older.push(self.parent(parent, *number)?);
        }
        Ok(Chain::new(newest, older))
    }

    /// The parent of checkpoint `child`.
    fn parent(&self, parent: &Parent, child: u64) -> Result<Link> {
        let Parent { number, checksum } = *parent;
        let needed = |reason: String| {
            let name = format!("{number}{MANIFEST}");
            let why = format!("checkpoint {child} has only what changed since checkpoint {number}");
            failed(&name, format!("{reason} ({why}: take one before that, or write a full one)"))
        };
        if number >= child {
            return Err(needed("it is not older than its increment".to_owned()));
        }
        match self.link(number) {
            Ok(link) if link.checksum == checksum => Ok(link),
            Ok(_) => Err(needed("it is another one than the increment was based on".to_owned())),
            Err(Error::Checkpoint { reason, .. }) => Err(needed(reason)),
            Err(other) => Err(other),
        }
    }

    /// Writes a checkpoint of tables that `worker` can join; returns its number. Requests to the
    /// tables go on meanwhile. If this fails, the checkpoints from before remain.
    ///
    /// # Errors
    /// [`Error::Checkpoint`] names the file that cannot be written; as [`Worker::wait`].
    pub fn create(&mut self, worker: &mut Worker, specs: &[TableSpec]) -> Result<u64> {
        self.write_checkpoint(worker, specs, None)
    }

    /// As [`Checkpoints::create`], an increment: it has the rows that changed since the newest
    /// checkpoint, and tombstones for those that went. It has all rows of a table that the newest
    /// one lacks, or has with another specification; and of all tables if there is no checkpoint.
    ///
    /// # Errors
    /// Likewise; [`Error::Checkpoint`] names a file of the newest checkpoint, or of those that it
    /// is based on, that is damaged or missing.
    pub fn create_increment(&mut self, worker: &mut Worker, specs: &[TableSpec]) -> Result<u64> {
        let newest = self.list()?.pop();
        let before = newest.map(|newest| self.chain(newest)).transpose()?;
        self.write_checkpoint(worker, specs, before.as_ref())
    }

    /// Writes all rows, or those of tables of `before` that changed.
    fn write_checkpoint(
        &mut self,
        worker: &mut Worker,
        specs: &[TableSpec],
        before: Option<&Chain>,
    ) -> Result<u64> {
        let number = self.next_number()?;
        let tables = specs.iter().map(|spec| worker.admin().create_table(spec));
        let tables = tables.collect::<Result<Vec<_>>>()?;
        worker.cut(&tables, self.clock)?;
        let mut saved = Vec::new();
        for (at, (spec, table)) in specs.iter().zip(&tables).enumerate() {
            let rows = before.and_then(|chain| chain.rows(spec));
            let is_increment = rows.is_some();
            let shards = match rows {
                Some(rows) => self.write_changes(worker, *table, (number, at), rows)?,
                None => self.write_table(worker, *table, (number, at))?,
            };
            saved.push(SavedTable { spec: spec.clone(), is_increment, shards });
        }
        let is_increment = saved.iter().any(|table| table.is_increment);
        let parent = before.filter(|_| is_increment).map(Chain::parent);
        if let Some(parent) = &parent {
            self.parent(parent, number)?; // nobody has deleted it meanwhile
        }
        self.publish(number, &Manifest::new(saved, parent))?;
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
        name: (u64, usize),
    ) -> Result<Vec<SavedShard>> {
        let shards = worker.info().shards(table)?.len();
        let mut writings: Vec<Writing> =
            (0..shards).map(|shard| Writing::new(name, shard)).collect();
        let mut asked = Vec::new();
        for shard in 0..shards {
            asked.push(Some(worker.piece(table, shard)?));
        }
        while asked.iter().any(Option::is_some) {
            for (shard, (asked, writing)) in asked.iter_mut().zip(&mut writings).enumerate() {
                let Some(request) = asked.take() else { continue };
                let bytes = worker.wait(request)?.replies.pop().unwrap_or_default();
                let is_last = bytes.first() == Some(&1);
                if !is_last {
                    *asked = Some(worker.piece(table, shard)?);
                }
                let rows = bytes.as_chunks::<8>().0.get(1);
                writing.saved.rows += rows.map_or(0, |rows| u64::from_le_bytes(*rows));
                self.write(writing, Kind::Rows, &bytes, is_last)?;
            }
        }
        Ok(writings.into_iter().map(|writing| writing.saved).collect())
    }

    /// Writes what changed in a table that is cut since it had the rows `before`, a shard after the
    /// other. The next piece is asked for before one is compared.
    fn write_changes(
        &mut self,
        worker: &mut Worker,
        table: Table,
        name: (u64, usize),
        before: ChainRows,
    ) -> Result<Vec<SavedShard>> {
        let lasts: Vec<u64> =
            worker.info().shards(table)?.iter().map(|shard| shard.range.last()).collect();
        let mut comparison = Comparison::with(before);
        let mut saved = Vec::new();
        let mut asked = Some(worker.piece(table, 0)?);
        for (shard, last) in lasts.iter().enumerate() {
            let mut writing = Writing::new(name, shard);
            let mut is_last = false;
            while let Some(request) = asked.take_if(|_| !is_last) {
                let bytes = worker.wait(request)?.replies.pop().unwrap_or_default();
                let piece = Piece::decode(&bytes);
                let piece = piece.map_err(|reason| failed(&writing.saved.file, reason))?;
                is_last = piece.is_last;
                let next = shard + usize::from(is_last);
                if next < lasts.len() {
                    asked = Some(worker.piece(table, next)?);
                }
                comparison.add(&self.disk, &piece, *last)?;
                if comparison.bytes() >= PIECE_BYTES || is_last {
                    let changes = comparison.take();
                    writing.saved.rows += changes.piece.rows.keys.len() as u64;
                    writing.saved.gone += changes.gone.len() as u64;
                    self.write(&mut writing, Kind::Changes, &changes.encode(), is_last)?;
                }
            }
            saved.push(writing.saved);
        }
        Ok(saved)
    }

    /// Writes a record, and makes the file durable behind the last one.
    fn write(
        &mut self,
        writing: &mut Writing,
        kind: Kind,
        body: &[u8],
        is_last: bool,
    ) -> Result<()> {
        let Writing { saved, crc, buffer } = writing;
        saved.bytes += (records::HEAD + body.len()) as u64;
        records::append(kind, body, buffer);
        if buffer.len() >= WRITE_BYTES || is_last {
            let appended = self.disk.append(&saved.file, buffer);
            appended.map_err(|error| failed(&saved.file, error))?;
            crc.update(buffer);
            buffer.clear();
        }
        if is_last {
            saved.crc32c = crc.finalize() as u32;
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

    /// Reads all files of a checkpoint and of those that it is based on, and checks them.
    ///
    /// # Errors
    /// [`Error::Checkpoint`] names the file that is damaged or missing.
    pub fn verify(&self, number: u64) -> Result<Manifest> {
        Ok(self.verified(number)?.newest().clone())
    }

    /// A checkpoint with all that it is based on, once all of it was read.
    fn verified(&self, number: u64) -> Result<Chain> {
        let chain = self.chain(number)?;
        for table in chain.links().flat_map(|link| &link.manifest.tables) {
            let mut last = None;
            for shard in &table.shards {
                let kind = Kind::of(table.is_increment);
                let mut file = Reading::open(&self.disk, kind, shard, last)?;
                while file.next()?.is_some() {}
                last = file.last();
            }
        }
        Ok(chain)
    }

    /// Creates the tables of a checkpoint in a cluster, with any number of servers. All of it, and
    /// of those that it is based on, is verified before. If this fails, the tables that it created
    /// are dropped.
    ///
    /// # Errors
    /// As [`Checkpoints::verify`]; [`Error::Checkpoint`] if one of the tables exists, or is of
    /// sketches of another number of shards; as [`Worker::wait`].
    pub fn restore(&self, worker: &mut Worker, number: u64) -> Result<Manifest> {
        self.restore_with(worker, number, None)
    }

    /// As [`Checkpoints::restore`], with this number of copies of each shard, instead of those that
    /// the tables had.
    ///
    /// # Errors
    /// Likewise; if there is no room for so many, or a table can have none.
    pub fn restore_with(
        &self,
        worker: &mut Worker,
        number: u64,
        replicas: Option<u32>,
    ) -> Result<Manifest> {
        let chain = self.verified(number)?;
        let there = worker.admin().list_tables("")?;
        for SavedTable { spec, shards, .. } in &chain.newest().tables {
            let refused =
                |why: &str| failed(&format!("table {} of checkpoint {number}", spec.name), why);
            let is_it = |it: &TableSpec| it.id == spec.id && it.namespace == spec.namespace;
            if there.iter().any(is_it) {
                return Err(refused("the cluster has a table of its number (drop it first)"));
            }
            let [had, has] = [shards.len(), worker.shards_of(spec)?];
            if spec.handle == sketch::HANDLE && had != has {
                return Err(refused(&format!(
                    "its sketches cannot be cut: they came from {had} server threads, and would go to {has} (restore them on {had})"
                )));
            }
        }
        let mut created = Vec::new();
        for SavedTable { spec, .. } in &chain.newest().tables {
            let copies = replicas.unwrap_or(spec.replicas);
            let put =
                worker.admin().create_table(&spec.clone().replicas(copies)).and_then(|table| {
                    created.push(table);
                    self.put_rows(worker, table, &chain, spec)
                });
            if let Err(error) = put {
                // Of a part of the tables nobody has any use. The first error says why.
                created.into_iter().for_each(|table| drop(worker.admin().drop_table(table)));
                return Err(error);
            }
        }
        Ok(chain.newest().clone())
    }

    /// Puts the rows of a table of a checkpoint into one of a cluster.
    fn put_rows(
        &self,
        worker: &mut Worker,
        table: Table,
        chain: &Chain,
        spec: &TableSpec,
    ) -> Result<()> {
        let mut piece = Piece::default();
        self.read_rows(chain, spec, |row| {
            piece.rows.push(row);
            if piece.rows.bytes() < PIECE_BYTES {
                return Ok(());
            }
            worker.put(table, &std::mem::take(&mut piece))
        })?;
        worker.put(table, &piece)
    }

    /// Calls `with` with the rows of a table of a checkpoint as text: some lines at a time, each
    /// with a key and the values that pulls show.
    ///
    /// # Errors
    /// As [`Checkpoints::verify`], and those of `with`.
    pub fn export<E: From<Error>>(
        &self,
        number: u64,
        spec: &TableSpec,
        mut with: impl FnMut(&str) -> Result<(), E>,
    ) -> Result<(), E> {
        let shown = if spec.width == 0 { usize::MAX } else { spec.row_bytes() };
        let mut text = String::new();
        self.read_rows(&self.chain(number)?, spec, |Row { key, values, .. }| {
            append_line(spec, key, &values[..values.len().min(shown)], &mut text);
            if text.len() < PIECE_BYTES {
                return Ok(());
            }
            let lines = with(&text);
            text.clear();
            lines
        })?;
        if text.is_empty() { Ok(()) } else { with(&text) }
    }

    /// Calls `with` with each row of a table, in the order of their keys.
    fn read_rows<E: From<Error>>(
        &self,
        chain: &Chain,
        spec: &TableSpec,
        mut with: impl FnMut(Row<'_>) -> Result<(), E>,
    ) -> Result<(), E> {
        let mut rows = chain.rows(spec).ok_or_else(|| Error::Checkpoint {
            what: format!("checkpoint {}", chain.number()),
            reason: format!("neither it nor what it is based on has all rows of {}", spec.name),
        })?;
        while let Some(row) = rows.row(&self.disk)? {
            with(row)?;
            rows.skip();
        }
        Ok(())
    }

    /// Deletes all checkpoints but the newest `keep` and those that they are based on; returns the
    /// numbers of those that went. Files that writers which died have left go as well, except those
    /// above the newest checkpoint: they may be of a writer at work.
    ///
    /// The manifests go first, increments before their parents, each durably. So whenever this
    /// dies, each checkpoint that is listed is whole.
    ///
    /// # Errors
    /// [`Error::Checkpoint`] if `keep` is 0, a checkpoint to keep lacks its parent, or a file
    /// cannot be deleted.
    pub fn prune(&mut self, keep: usize) -> Result<Vec<u64>> {
        let mut numbers = self.list()?;
        let Some(&newest) = numbers.last() else { return Ok(Vec::new()) };
        if keep == 0 {
            return Err(failed("the checkpoints", "0 of them cannot be kept (keep 1 at least)"));
        }
        let mut kept = BTreeSet::new();
        for number in &numbers[numbers.len().saturating_sub(keep)..] {
            kept.extend(self.chain(*number)?.links().map(|link| link.number));
        }
        numbers.retain(|number| !kept.contains(number));
        for number in numbers.iter().rev() {
            self.remove(&format!("{number}{MANIFEST}"))?;
            self.sync_names()?;
        }
        let names = self.disk.names().map_err(|error| failed("the checkpoints", error))?;
        let is_left = |name: &&String| {
            file_number(name).is_some_and(|number| number < newest && !kept.contains(&number))
        };
        for name in names.iter().filter(is_left) {
            self.remove(name)?;
        }
        self.sync_names()?;
        Ok(numbers)
    }

    fn remove(&mut self, name: &str) -> Result<()> {
        self.disk.remove(name).map_err(|error| failed(name, error))
    }

    fn sync_names(&mut self) -> Result<()> {
        self.disk.sync_names().map_err(|error| failed("the checkpoints", error))
    }
}

/// The number of the checkpoint to which a file belongs; `None` for files of others.
fn file_number(name: &str) -> Option<u64> {
    let (number, rest) = name.split_once('.')?;
    let number = number.parse().ok()?;
    let is_place = |word: &str| word.parse::<u32>().is_ok();
    let is_ours = match rest.split('.').collect::<Vec<_>>()[..] {
        ["manifest"] | ["manifest", "partial"] => true,
        [table, shard, "rows"] => is_place(table) && is_place(shard),
        _ => false,
    };
    is_ours.then_some(number)
}
