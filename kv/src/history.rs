//! Histories: which worker read and wrote which version, in the order in which a shard executed it;
//! and a checker that accepts a history or names the two events that break its table's model.
//!
//! `kv/docs/consistency.md` describes the format. A server thread writes one file for each shard of
//! a table with a model. The order of a file's lines is the order of execution; between files there
//! is no order, since the clocks of different machines say nothing. The rules are those of section
//! 5 of the parameter database's report, and of the models in [`crate::consistency`].

mod check;
mod data_centric;
mod event;
mod staleness;

use std::collections::HashMap;
use std::fs;
use std::io::{self, BufWriter, Write};
use std::path::Path;

pub use self::check::{Place, Summary, Trouble, Violation, check, check_files};
pub use self::event::{Event, Op};
use crate::consistency::{Access, Consistency, Model, chunks};
use crate::files;
use crate::table::TableSpec;

/// The first word of a history.
pub(crate) const MAGIC: &str = "caravan-history 1";

/// Opens the file `NUMBER-NAME.SHARD.history` in a folder, which is made if it does not exist: the
/// history of one shard of table `number`. One of an earlier run is overwritten.
///
/// # Errors
/// If the file cannot be made, or others may write to the earlier one.
pub(crate) fn create(
    folder: &Path,
    (number, shard): (u32, usize),
    spec: &TableSpec,
) -> io::Result<Box<dyn Write>> {
    let is_plain = |letter: char| letter.is_ascii_alphanumeric() || letter == '-';
    let plain = |letter: char| if is_plain(letter) { letter } else { '_' };
    let name: String = spec.name.chars().map(plain).take(NAME_LETTERS_MAX).collect();
    let path = folder.join(format!("{number}-{name}.{shard}.history"));
    let named =
        |error: io::Error| io::Error::new(error.kind(), format!("{}: {error}", path.display()));
    fs::create_dir_all(folder).map_err(named)?;
    let file = files::create(&path, files::MODE).map_err(named)?;
    Ok(Box::new(BufWriter::with_capacity(1 << 16, file)))
}

/// Letters of a table's name in the name of a file.
const NAME_LETTERS_MAX: usize = 64;

/// Writes the history of one shard of a table.
pub struct Recorder {
    out: Box<dyn Write>,
    consistency: Consistency,
    /// Number of writes so far.
    writes: u64,
    /// By chunk, the iteration of its last write.
    written: HashMap<u64, u64>,
    event: Event,
    /// Whether nothing could be written once; the rest is left out then.
    is_broken: bool,
}

impl Recorder {
    /// A history of a table under `consistency`, whose head is written at once.
    ///
    /// # Errors
    /// If `out` fails.
    pub fn new(out: Box<dyn Write>, consistency: Consistency) -> io::Result<Self> {
        let mut out = out;
        writeln!(out, "{MAGIC} {}", serde_json::to_string(&consistency)?)?;
        let written = HashMap::new();
        let event = Event::default();
        Ok(Recorder { out, consistency, writes: 0, written, event, is_broken: false })
    }

    /// Records an executed request. Observers leave no trace but their writes' number.
    pub(crate) fn executed(&mut self, access: &Access<'_>) {
        let Access { worker, clock, writes, keys, .. } = *access;
        if clock == 0 {
            self.writes += u64::from(writes);
            return self.observed(writes);
        }
        let op = if writes { Op::Write } else { Op::Read };
        let version = self.writes;
        self.writes += u64::from(writes);
        match self.consistency.model {
            Model::DataCentric { delay: Some(_), chunk_keys } => {
                for chunk in chunks(keys, chunk_keys) {
                    let last = self.written.entry(chunk).or_insert(0);
                    let version = if writes { clock } else { *last };
                    *last = if writes { clock } else { *last };
                    self.write(op, worker, clock, version, &[chunk]);
                }
            }
            Model::SparseSsp { .. } => self.write(op, worker, clock, version, keys),
            _ => self.write(op, worker, clock, version, &[]),
        }
    }

    /// Records a write by an observer, which counts in the versions.
    fn observed(&mut self, writes: bool) {
        if writes {
            self.write(Op::Observed, 0, 0, self.writes - 1, &[]);
        }
    }

    /// Records that a worker takes part from `clock` on.
    pub(crate) fn joined(&mut self, worker: u32, clock: u64) {
        self.write(Op::Join, worker, clock, 0, &[]);
    }

    /// Records that a worker has finished its iterations below `clock`.
    pub(crate) fn advanced(&mut self, worker: u32, clock: u64) {
        self.write(Op::Clock, worker, clock, 0, &[]);
    }

    /// Records that a worker takes part no longer.
    pub(crate) fn left(&mut self, worker: u32) {
        self.write(Op::Leave, worker, 0, 0, &[]);
    }

    /// Records that the model's bound has changed.
    pub(crate) fn bounded(&mut self, bound: u64) {
        self.write(Op::Bound, 0, bound, 0, &[]);
    }

    fn write(&mut self, op: Op, worker: u32, clock: u64, version: u64, keys: &[u64]) {
        let Recorder { out, event, is_broken, .. } = self;
        if *is_broken {
            return;
        }
        (event.op, event.worker, event.clock, event.version) = (op, worker, clock, version);
        event.keys.clear();
        event.keys.extend_from_slice(keys);
        if let Err(error) = writeln!(out, "{event}") {
            tracing::warn!(%error, "a history cannot be written; the rest of it is left out");
            *is_broken = true;
        }
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

    use std::os::unix::fs::{PermissionsExt, symlink};

    use super::*;
    use crate::table::ValueType;

    /// One of an earlier run is overwritten; of what others have put there nothing is.
    #[test]
    fn only_own_files_are_overwritten() {
        let folder = tempfile::tempdir().unwrap();
        let spec = TableSpec::new(1, "t", ValueType::F32, 1);
        let path = folder.path().join("1-t.0.history");
        let begin = || {
            let created = create(folder.path(), (1, 0), &spec);
            created.map(|mut file| file.write_all(b"new").unwrap()).map_err(|it| it.to_string())
        };
        begin().unwrap();
        fs::write(&path, "an old history").unwrap();
        begin().unwrap();
        assert_eq!(fs::read(&path).unwrap(), b"new");
        fs::set_permissions(&path, fs::Permissions::from_mode(0o666)).unwrap();
        let said = begin().unwrap_err();
        assert!(said.contains("1-t.0.history: others may write to it (mode 666)"), "{said}");
        let victim = folder.path().join("victim");
        fs::rename(&path, &victim).unwrap();
        symlink(&victim, &path).unwrap();
        let said = begin().unwrap_err();
        assert!(said.contains("1-t.0.history: it is a link"), "{said}");
        assert_eq!(fs::read(&victim).unwrap(), b"new");
    }
}
