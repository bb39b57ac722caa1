//! Files of rows: records one behind the other, each with magic, CRC32C, length and a body.
//!
//! A file of all rows of a shard has a [`Piece`] in each record. A file of changes has [`Changes`].

use std::io::Read;

use caravan_van::transport::WRITE_BYTES_MAX;
use crc_fast::{CrcAlgorithm, Digest};

use super::{Changes, Disk, Piece, SavedShard};
use crate::error::{Error, Result};

/// Magic of a record with rows.
const ROWS: u32 = u32::from_le_bytes(*b"CVCP");

/// Magic of a record with changes.
const CHANGES: u32 = u32::from_le_bytes(*b"CVCC");

/// Longest body of a record: a server sends it in one message.
const BODY_BYTES_MAX: u64 = WRITE_BYTES_MAX as u64;

/// Bytes of a record before its body.
pub(super) const HEAD: usize = 16;

/// What the records of a file hold.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Kind {
    /// All rows of a shard.
    Rows,
    /// Those that changed, and the keys of those that went.
    Changes,
}

impl Kind {
    /// What the files of a table hold.
    pub(super) fn of(is_increment: bool) -> Kind {
        if is_increment { Kind::Changes } else { Kind::Rows }
    }

    fn magic(self) -> u32 {
        match self {
            Kind::Rows => ROWS,
            Kind::Changes => CHANGES,
        }
    }
}

/// Appends a record.
pub(super) fn append(kind: Kind, body: &[u8], into: &mut Vec<u8>) {
    into.extend_from_slice(&kind.magic().to_le_bytes());
    into.extend_from_slice(&crc_fast::crc32_iscsi(body).to_le_bytes());
    into.extend_from_slice(&(body.len() as u64).to_le_bytes());
    into.extend_from_slice(body);
}

/// The error of a file.
pub(super) fn failed(what: &str, reason: impl ToString) -> Error {
    Error::Checkpoint { what: format!("checkpoint file {what}"), reason: reason.to_string() }
}

/// A file of rows that is read and checked.
pub(super) struct Reading {
    kind: Kind,
    expected: SavedShard,
    file: Box<dyn Read>,
    /// Checksum of what was read.
    crc: Digest,
    bytes: u64,
    rows: u64,
    gone: u64,
    /// The last key that was read.
    last: Option<u64>,
    is_done: bool,
}

impl Reading {
    /// The file of a shard, whose keys are above `last`.
    pub(super) fn open(
        disk: &dyn Disk,
        kind: Kind,
        shard: &SavedShard,
        last: Option<u64>,
    ) -> Result<Reading> {
        let file = disk.open(&shard.file).map_err(|error| failed(&shard.file, error))?;
        let (expected, crc) = (shard.clone(), digest());
        Ok(Reading { kind, expected, file, crc, bytes: 0, rows: 0, gone: 0, last, is_done: false })
    }

    /// The last key that was read, of this file or of one before it.
    pub(super) fn last(&self) -> Option<u64> {
        self.last
    }

    /// What the next record holds; `None` behind the last one, where the file is all that the
    /// manifest says.
    pub(super) fn next(&mut self) -> Result<Option<Changes>> {
        if self.is_done {
            let ended = self.check_end();
            return ended.map(|()| None).map_err(|reason| failed(&self.expected.file, reason));
        }
        let SavedShard { file: name, bytes, .. } = &self.expected;
        let at = self.bytes;
        let wrong = |reason: String| failed(name, format!("at byte {at}: {reason}"));
        let body =
            read_record(self.kind, &mut *self.file, &mut self.crc, bytes - at).map_err(wrong)?;
        let changes = match self.kind {
            Kind::Rows => Piece::decode(&body).map(Changes::from),
            Kind::Changes => Changes::decode(&body),
        };
        let changes = changes.map_err(wrong)?;
        if changes.first().is_some_and(|first| self.last.is_some_and(|last| last >= first)) {
            return Err(failed(name, format!("its keys do not ascend at byte {at}")));
        }
        self.bytes += (HEAD + body.len()) as u64;
        self.rows += changes.piece.rows.keys.len() as u64;
        self.gone += changes.gone.len() as u64;
        self.last = changes.last().or(self.last);
        self.is_done = changes.piece.is_last;
        Ok(Some(changes))
    }

    /// Checks that the file ends here, and is the one that the manifest names.
    fn check_end(&mut self) -> Result<(), String> {
        let SavedShard { rows, bytes, gone, crc32c, .. } = &self.expected;
        if (self.bytes, self.rows, self.gone) != (*bytes, *rows, *gone) {
            return Err(format!(
                "it has {} rows and {} tombstones in {} bytes, not {rows} and {gone} in {bytes}",
                self.rows, self.gone, self.bytes
            ));
        }
        let crc = self.crc.finalize() as u32;
        if crc != *crc32c {
            return Err(format!(
                "it is of another checkpoint: its checksum is {crc:08x}, and the manifest names {crc32c:08x}"
            ));
        }
        match self.file.by_ref().take(1).read_to_end(&mut Vec::new()) {
            Ok(0) => Ok(()),
            Ok(_) => Err(format!("it goes on behind its {bytes} bytes")),
            Err(error) => Err(error.to_string()),
        }
    }
}

/// The checksum of no bytes.
pub(super) fn digest() -> Digest {
    Digest::new(CrcAlgorithm::Crc32Iscsi)
}

/// Reads the body of a record of a file that has `left` more bytes, and sums it up in `crc`.
fn read_record(
    kind: Kind,
    file: &mut dyn Read,
    crc: &mut Digest,
    left: u64,
) -> Result<Vec<u8>, String> {
    let mut head = [0; HEAD];
    file.read_exact(&mut head).map_err(|error| format!("no record: {error}"))?;
    let number =
        |at: usize| u32::from_le_bytes([head[at], head[at + 1], head[at + 2], head[at + 3]]);
    let len = u64::from(number(8)) | u64::from(number(12)) << 32;
    if number(0) != kind.magic() || len > left.saturating_sub(HEAD as u64) {
        return Err(format!("no record, or one longer than the {left} bytes that are left"));
    }
    if len > BODY_BYTES_MAX {
        return Err(format!("a record of {len} bytes is longer than {BODY_BYTES_MAX}"));
    }
    let mut body = Vec::new(); // grows with what is really there
    file.take(len).read_to_end(&mut body).map_err(|error| error.to_string())?;
    if body.len() as u64 != len || crc_fast::crc32_iscsi(&body) != number(4) {
        return Err("the record does not match its checksum".to_owned());
    }
    crc.update(&head);
    crc.update(&body);
    Ok(body)
}
