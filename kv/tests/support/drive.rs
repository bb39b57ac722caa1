//! A disk in memory that loses, tears and cuts off what was not synced when its power goes, is
//! full, or has places that cannot be read; and what tests of checkpoints ask of what is on it.

use std::cell::Cell;
use std::collections::BTreeMap;
use std::io::{self, Cursor, Read};

use caravan_kv::Error;
use caravan_kv::checkpoint::{Checkpoints, Disk, SavedTable};

use super::simulated::Draws;

/// A damaged place.
struct Unreadable;

impl Read for Unreadable {
    fn read(&mut self, _: &mut [u8]) -> io::Result<usize> {
        Err(io::Error::other("a sector cannot be read"))
    }
}

/// What survives of it is decided when the power goes.
#[derive(Debug, Clone, Default)]
pub(crate) struct Drive {
    /// Content and number of durable bytes of each file.
    pub(crate) files: Vec<(Vec<u8>, usize)>,
    pub(crate) names: BTreeMap<String, usize>,
    /// The names after each change since the last sync of names, the durable ones first.
    history: Vec<BTreeMap<String, usize>>,
    /// Operations until the power goes.
    pub(crate) left: Option<usize>,
    /// Bytes that it has room for.
    pub(crate) room: Option<usize>,
    /// Bytes of files that can be read, as they are opened, until it has a damaged place.
    pub(crate) readable: Cell<Option<usize>>,
}

impl Drive {
    fn tick(&mut self) -> io::Result<()> {
        match &mut self.left {
            Some(0) => Err(io::Error::other("the power is gone")),
            Some(left) => {
                *left -= 1;
                Ok(())
            }
            None => Ok(()),
        }
    }

    fn rename_all(&mut self, change: impl FnOnce(&mut BTreeMap<String, usize>)) {
        if self.history.is_empty() {
            self.history.push(self.names.clone());
        }
        change(&mut self.names);
        self.history.push(self.names.clone());
    }

    /// The disk as the next start finds it.
    pub(crate) fn after_loss_of_power(&self, draws: &mut Draws) -> Drive {
        let files = self.files.iter().map(|(content, durable)| {
            let kept = durable + draws.below((content.len() - durable) as u64 + 1) as usize;
            let mut content = content[..kept].to_vec();
            let torn = content[*durable..].iter_mut().filter(|_| draws.below(20) == 0);
            torn.for_each(|byte| *byte = 0);
            (content, kept)
        });
        let files = files.collect();
        let names = match self.history.len() {
            0 => self.names.clone(),
            count => self.history[draws.below(count as u64) as usize].clone(),
        };
        Drive { files, names, ..Drive::default() }
    }
}

impl Disk for Drive {
    fn append(&mut self, name: &str, bytes: &[u8]) -> io::Result<()> {
        if !self.names.contains_key(name) {
            let file = self.files.len();
            self.files.push((Vec::new(), 0));
            self.rename_all(|names| {
                names.insert(name.to_owned(), file);
            });
        }
        let content = &mut self.files[self.names[name]].0;
        // Of a write that fails, a part may be there.
        let fits = self.room.unwrap_or(usize::MAX).min(bytes.len());
        content.extend_from_slice(&bytes[..fits]);
        self.room.iter_mut().for_each(|room| *room -= fits);
        if fits < bytes.len() {
            return Err(io::ErrorKind::StorageFull.into());
        }
        self.tick()
    }

    fn sync(&mut self, name: &str) -> io::Result<()> {
        self.tick()?;
        let (content, durable) = &mut self.files[self.names[name]];
        *durable = content.len();
        Ok(())
    }

    fn rename(&mut self, from: &str, to: &str) -> io::Result<()> {
        self.rename_all(|names| {
            let file = names.remove(from).unwrap();
            names.insert(to.to_owned(), file);
        });
        self.tick()
    }

    fn sync_names(&mut self) -> io::Result<()> {
        self.tick()?;
        self.history.clear();
        Ok(())
    }

    fn open(&self, name: &str) -> io::Result<Box<dyn Read>> {
        let file = self.names.get(name).ok_or(io::ErrorKind::NotFound)?;
        let content = self.files[*file].0.clone();
        let Some(readable) = self.readable.get() else { return Ok(Box::new(Cursor::new(content))) };
        self.readable.set(Some(readable.saturating_sub(content.len())));
        Ok(match readable < content.len() {
            true => Box::new(Cursor::new(content).take(readable as u64).chain(Unreadable)),
            false => Box::new(Cursor::new(content)),
        })
    }

    fn remove(&mut self, name: &str) -> io::Result<()> {
        if !self.names.contains_key(name) {
            return Err(io::ErrorKind::NotFound.into());
        }
        self.rename_all(|names| {
            names.remove(name);
        });
        self.tick()
    }

    fn names(&self) -> io::Result<Vec<String>> {
        Ok(self.names.keys().cloned().collect())
    }
}

/// The rows of each table of a checkpoint, as text.
pub(crate) fn export(checkpoints: &Checkpoints<Drive>, number: u64) -> Vec<Vec<(u64, String)>> {
    let manifest = checkpoints.verify(number).unwrap();
    let table = |table: &SavedTable| {
        let mut text = String::new();
        let gathered = checkpoints.export(number, &table.spec, |lines| {
            text += lines;
            Ok::<_, Error>(())
        });
        gathered.unwrap();
        let line = |line: &str| {
            let (key, values) = line.split_once(' ').unwrap_or((line, ""));
            (key.parse().unwrap(), values.to_owned())
        };
        text.lines().map(line).collect()
    };
    manifest.tables.iter().map(table).collect()
}

/// The bytes that checkpoint `number`, which has all rows, stores for each key of a table whose
/// rows are of one length, with hidden values.
pub(crate) fn stored(
    checkpoints: &mut Checkpoints<Drive>,
    number: u64,
    table: usize,
) -> Vec<(u64, Vec<u8>)> {
    let shards = checkpoints.manifest(number).unwrap().tables.swap_remove(table).shards;
    let drive = checkpoints.disk();
    let mut rows = Vec::new();
    for shard in shards {
        let mut rest = &drive.files[drive.names[&shard.file]].0[..];
        while !rest.is_empty() {
            let number = |at: usize| u64::from_le_bytes(rest[at..at + 8].try_into().unwrap());
            let (record, next) = rest.split_at(16 + number(8) as usize);
            let count = number(24) as usize;
            let (keys, values) = record[40..].split_at(8 * count);
            let row_bytes = values.len() / count.max(1);
            for (at, key) in keys.as_chunks::<8>().0.iter().enumerate() {
                let row = values[at * row_bytes..][..row_bytes].to_vec();
                rows.push((u64::from_le_bytes(*key), row));
            }
            rest = next;
        }
    }
    rows
}
