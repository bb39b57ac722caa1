//! Rows of files on their way to the trainers of a worker: a thread reads while they train.

use std::collections::BTreeSet;
use std::ops::Range;
use std::path::PathBuf;
use std::slice;
use std::sync::mpsc::{Sender, channel};

use caravan_kv::error::with_sources;
use caravan_kv::{RequestId, WorkerNode};
use serde::{Deserialize, Serialize};

use super::{Reading, RowsOf, Trainer};
use crate::data::assigner::{self, Placed, Reader};
use crate::data::{
    Cut, Examples, Labels, ReadAhead, Shard, check_shared, cut_file, length_and_format,
};
use crate::data_root::DataRoot;

/// Pieces that may wait for the trainers.
const PIECES_MAX: usize = 4;

/// Blocks that a worker has been given and has not read: one that is read, and the next.
const BLOCKS_MAX: usize = 2;

/// Name of the driver's handler that gives out blocks.
pub(super) const BLOCKS: &str = "blocks of files";

/// A file, as a worker sees it.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub(super) struct Sight {
    bytes: u64,
    /// Whether it can only be read from its beginning on.
    is_packed: bool,
}

/// What a worker sees of files, or why it does not.
pub(super) fn sights(root: &DataRoot, files: &[PathBuf]) -> Vec<Result<Sight, String>> {
    let sight = |file: &PathBuf| {
        let file = root.allow(file)?;
        let found = check_shared(slice::from_ref(&file)).and_then(|()| length_and_format(&file));
        let (bytes, format) = found.map_err(|error| with_sources(&error))?;
        Ok(Sight { bytes, is_packed: format.is_some() })
    };
    files.iter().map(sight).collect()
}

/// The blocks of files, each with the workers that see its file, unless all do. `seen` has the
/// sights of each worker.
///
/// # Errors
/// The file that nobody sees, or of which workers see different lengths.
pub(super) fn placed(
    files: &[PathBuf],
    seen: &[Vec<Result<Sight, String>>],
    bytes: u64,
) -> Result<Vec<Placed>, String> {
    let mut blocks = Vec::new();
    for (at, file) in files.iter().enumerate() {
        let of = |seen: &Vec<Result<Sight, String>>| seen.get(at).and_then(|it| it.clone().ok());
        let sights: Vec<Option<Sight>> = seen.iter().map(of).collect();
        let Some(first) = sights.iter().copied().flatten().next() else {
            let why = seen.iter().find_map(|seen| seen.get(at)?.clone().err());
            return Err(why.unwrap_or_else(|| format!("nobody sees {}", file.display())));
        };
        let other = |sight: &Sight| *sight != first;
        if let Some(other) = sights.iter().copied().flatten().find(other) {
            return Err(format!(
                "{} has {} bytes at one worker and {} at another: give them the same file",
                file.display(),
                first.bytes,
                other.bytes
            ));
        }
        let with = sights.iter().enumerate().filter(|(_, sight)| sight.is_some());
        let hosts: BTreeSet<String> = match sights.iter().all(Option::is_some) {
            true => BTreeSet::new(),
            false => with.map(|(rank, _)| place(rank)).collect(),
        };
        let step = if first.is_packed { first.bytes } else { bytes };
        let cuts = cut_file(file, first.bytes, step);
        blocks.extend(cuts.map(|cut| Placed { cut, hosts: hosts.clone() }));
    }
    Ok(blocks)
}

/// What the driver calls the place of a worker.
fn place(rank: usize) -> String {
    format!("worker {rank}")
}

/// What is being read.
pub(super) enum Feed {
    /// All files; a piece has the rows of each part of this worker.
    Shards {
        read: ReadAhead<Vec<Examples>>,
        /// Parts of all workers.
        parts: usize,
        /// Rows of all parts so far.
        rows: u64,
    },
    /// Blocks that the driver gives out.
    Given(Given),
}

/// Blocks that the driver gives out, to a worker with one part.
pub(super) struct Given {
    reader: Reader,
    root: DataRoot,
    asked: Option<RequestId>,
    /// Blocks for the thread that reads; closed after the last. Dropped before `read`, whose thread
    /// waits for them.
    blocks: Option<Sender<Cut>>,
    read: ReadAhead<Piece>,
}

/// What a worker does while it waits for rows; returns whether there will be more to do.
pub(super) type Meanwhile<'a> = dyn Fn(&mut WorkerNode) -> caravan_kv::Result<bool> + 'a;

enum Piece {
    Rows(Examples),
    /// The end of a block.
    End,
}

impl Feed {
    /// Begins to read the rows of these parts of so many.
    ///
    /// # Errors
    /// If the worker may not read a file, or the system has no thread.
    pub(super) fn start(
        node: &WorkerNode,
        RowsOf { files, labels, .. }: RowsOf<'_>,
        reading: Reading,
        (own, parts): (Range<usize>, usize),
    ) -> Result<Feed, String> {
        let root = DataRoot::of(&node.config)?;
        let text = |error: crate::Error| with_sources(&error);
        if let Reading::Near(_) = reading {
            let (blocks, given) = channel::<Cut>();
            let read = given.into_iter().flat_map(move |block| pieces(block, labels));
            let read = ReadAhead::of(read, PIECES_MAX);
            let (number, host) = (node.rank, place(node.rank));
            let reader = Reader { number, host, takes_far: false, holds: 0 };
            let (asked, read) = (None, read.map_err(text)?);
            return Ok(Feed::Given(Given { reader, root, asked, blocks: Some(blocks), read }));
        }
        let files = root.files(files, node.workers)?;
        let shard = |part: usize| Shard::new(part as u32, parts as u32);
        let shards = own.map(shard).collect::<crate::Result<Vec<_>>>().map_err(text)?;
        let read = ReadAhead::of_shards(&files, shards, labels, PIECES_MAX).map_err(text)?;
        Ok(Feed::Shards { read, parts, rows: 0 })
    }

    /// Gives the trainers of this worker their next rows, once they are there, or tells them of the
    /// end; returns false at the end. While it waits it does `meanwhile`, as long as that returns
    /// true.
    ///
    /// # Errors
    /// The file, and the line if one is wrong; the driver, if it gives out no blocks; that of
    /// `meanwhile`.
    pub(super) fn give<T: Trainer>(
        &mut self,
        node: &mut WorkerNode,
        trainers: &mut [T],
        meanwhile: &Meanwhile<'_>,
    ) -> Result<bool, String> {
        let Some(pieces) = self.next(node, meanwhile)? else {
            trainers.iter_mut().try_for_each(T::end_rows)?;
            return Ok(false);
        };
        for (trainer, rows) in trainers.iter_mut().zip(&pieces) {
            trainer.add_rows(rows)?;
        }
        Ok(true)
    }

    /// The next rows of each part of this worker, once they are there; `None` at the end.
    fn next(
        &mut self,
        node: &mut WorkerNode,
        meanwhile: &Meanwhile<'_>,
    ) -> Result<Option<Vec<Examples>>, String> {
        match self {
            Feed::Given(given) => given.next(node, meanwhile),
            Feed::Shards { read, rows, .. } => {
                let pieces = told(read.next_while(|| meanwhile(node)))?.transpose();
                let pieces = told(pieces)?;
                let all = pieces.iter().flatten().next().map_or(0, |it| it.rows_in_all_shards);
                *rows += all;
                Ok(pieces)
            }
        }
    }

    /// After the end, the rows of the largest part; `None` if only its worker knows.
    pub(super) fn rows_of_largest(&self) -> Option<u64> {
        let Feed::Shards { parts, rows, .. } = self else { return None };
        Shard::new(0, *parts as u32).ok().map(|first| first.rows_of(*rows))
    }
}

fn told<T>(outcome: Result<T, impl std::error::Error>) -> Result<T, String> {
    outcome.map_err(|error| with_sources(&error))
}

/// The rows of a block as they come, and its end.
fn pieces(block: Cut, labels: Labels) -> impl Iterator<Item = crate::Result<Piece>> {
    let rows = block.rows(labels).map(|rows| rows.map(Piece::Rows));
    rows.chain(std::iter::once(Ok(Piece::End)))
}

impl Given {
    fn next(
        &mut self,
        node: &mut WorkerNode,
        meanwhile: &Meanwhile<'_>,
    ) -> Result<Option<Vec<Examples>>, String> {
        loop {
            self.ask(node)?;
            if self.reader.holds == 0 {
                match self.asked.take() {
                    Some(asked) => self.take(node, asked)?,
                    None => return Ok(None),
                }
                continue;
            }
            let piece = told(self.read.next_while(|| meanwhile(node)))?.transpose();
            match told(piece)? {
                Some(Piece::Rows(rows)) => return Ok(Some(vec![rows])),
                Some(Piece::End) => self.reader.holds -= 1,
                None => return Err("the thread that reads has ended".to_owned()),
            }
        }
    }

    /// Takes a block that the driver has given, and asks for the next.
    fn ask(&mut self, node: &mut WorkerNode) -> Result<(), String> {
        if let Some(asked) = self.asked {
            let is_done = node.rpc(|rpc| rpc.is_done(asked)).and_then(|it| it);
            if !is_done.map_err(|error| with_sources(&error))? {
                return Ok(());
            }
            self.asked = None;
            self.take(node, asked)?;
        }
        if self.blocks.is_some() && self.reader.holds < BLOCKS_MAX {
            let asked = assigner::request(node, BLOCKS, &self.reader);
            self.asked = Some(asked.map_err(|error| with_sources(&error))?);
        }
        Ok(())
    }

    fn take(&mut self, node: &mut WorkerNode, asked: RequestId) -> Result<(), String> {
        let given = assigner::answer(node, asked).map_err(|error| with_sources(&error))?;
        match given {
            Some(Cut { path, begin, end }) => {
                let block = Cut { path: self.root.allow(&path)?, begin, end };
                self.reader.holds += 1;
                // A thread that has ended says so in place of the next piece.
                self.blocks.iter().for_each(|to| drop(to.send(block.clone())));
            }
            None => self.blocks = None,
        }
        Ok(())
    }
}
