//! Checkpoints: tables as they were at one moment, in files.
//!
//! A client cuts all shards of the tables, reads their rows while pushes go on
//! (`server/tables/cut.rs`), and writes them to a [`Disk`]. A manifest, written last, makes the
//! files a checkpoint: whenever the writer dies, the newest manifest names files that are whole. An
//! increment has only what changed since another one, its parent. `kv/docs/durability.md` says what
//! is promised.

mod chain;
mod changes;
mod comparison;
mod disk;
mod files;
mod manifest;
mod piece;
mod records;
mod text;

use crate::refusal::{Refusal, Refused};

pub use changes::recode_changes;
pub(crate) use changes::{Changes, Row};
pub use disk::{Disk, Folder, sync_folder};
pub use files::Checkpoints;
pub use manifest::{Manifest, Parent, SavedShard, SavedTable};
pub(crate) use piece::Piece;
pub use piece::recode_piece;
pub(crate) use text::append_line;

/// What a client asks of a shard.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Wish {
    /// To keep its rows until they are read: as they are now, or, if the request is of an
    /// iteration, when all workers have come to that.
    Cut = 0,
    /// The next of these rows.
    Piece = 1,
    /// To take the rows of a piece.
    Put = 2,
}

impl Wish {
    /// The body of a request.
    pub(crate) fn body(self, piece: &[u8]) -> Vec<u8> {
        [&[self as u8][..], piece].concat()
    }

    /// Reads the body of a request: the wish, and a piece behind it.
    pub(crate) fn read(body: &[u8]) -> Result<(Wish, &[u8]), Refused> {
        let nothing = || Refusal::Shape.because("it says nothing");
        let (first, piece) = body.split_first().ok_or_else(nothing)?;
        let wish = match first {
            0 => Wish::Cut,
            1 => Wish::Piece,
            2 => Wish::Put,
            other => {
                return Err(Refusal::Shape.because(format!("a checkpoint has no step {other}")));
            }
        };
        Ok((wish, piece))
    }
}
