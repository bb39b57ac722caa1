//! The rows of a request's keys: runs of consecutive rows, or single rows where runs are short.
//!
//! Path: codec > thread > shard > store (**found**) > answer. `store.rs` makes them for each
//! request, or once for a list of keys that the server remembers.

use std::cell::RefCell;

use super::index::NO_ROW;

/// Runs are kept if they hold this many keys on average.
const RUN_MIN: usize = 4;

/// Rows compared at a time.
const BLOCK: usize = 8;

/// The rows of a list of keys that a server remembers. The table's shard stores them here, and so
/// looks them up once: rows never move.
#[derive(Debug, Default)]
pub struct FoundRows(pub(super) RefCell<Found>);

impl FoundRows {
    /// Forgets them, for another list.
    pub(crate) fn forget(&mut self) {
        self.0.get_mut().forget();
    }
}

/// Rows of the keys of one request, in the order of the keys.
#[derive(Debug, Default)]
pub(super) struct Found {
    /// Number of keys.
    keys: usize,
    /// Number of keys without a row.
    missing: usize,
    /// One row per key, or [`NO_ROW`]; may be empty if `runs` holds all rows.
    rows: Vec<u32>,
    /// Runs of consecutive rows; empty if they are too many.
    runs: Vec<Run>,
}

#[derive(Debug, Clone, Copy)]
struct Run {
    /// The first row, or [`NO_ROW`] if none of the keys has a row.
    row: u32,
    len: u32,
}

/// Consecutive keys of a request whose rows are in one chunk.
#[derive(Debug)]
pub(super) enum Piece<'a> {
    /// The rows are consecutive as well, or all are missing.
    Run { row: u32, len: usize },
    /// The rows are anywhere in the chunk; some may be [`NO_ROW`].
    Rows(&'a [u32]),
}

impl Piece<'_> {
    /// The first row.
    pub(super) fn row(&self) -> u32 {
        match self {
            Piece::Run { row, .. } => *row,
            Piece::Rows(rows) => rows[0],
        }
    }

    /// Number of keys.
    pub(super) fn len(&self) -> usize {
        match self {
            Piece::Run { len, .. } => *len,
            Piece::Rows(rows) => rows.len(),
        }
    }
}

impl Found {
    /// Whether this holds the rows of `keys` keys, none missing.
    pub(super) fn is_complete(&self, keys: usize) -> bool {
        self.keys == keys && self.missing == 0
    }

    pub(super) fn missing(&self) -> usize {
        self.missing
    }

    /// Records `keys` rows from `first` on, in chunks of 2^`shift` rows.
    pub(super) fn enter_consecutive(&mut self, first: u32, keys: usize, shift: u32) {
        self.clear(keys);
        let mut row = first as usize;
        let end = row + keys;
        while row < end {
            let next = ((row >> shift) + 1) << shift;
            let len = next.min(end) - row;
            self.runs.push(Run { row: row as u32, len: len as u32 });
            row += len;
        }
    }

    /// Records the rows of `keys` keys: `find` appends them to its argument and returns how many
    /// are
    /// [`NO_ROW`].
    pub(super) fn enter(
        &mut self,
        keys: usize,
        shift: u32,
        find: impl FnOnce(&mut Vec<u32>) -> usize,
    ) {
        self.clear(keys);
        self.missing = find(&mut self.rows);
        self.find_runs(shift);
    }

    /// Replaces the missing rows: `insert` takes all rows and the number of missing ones.
    ///
    /// # Errors
    /// Those of `insert`, which must then leave the rows unchanged.
    pub(super) fn complete<E>(
        &mut self,
        shift: u32,
        insert: impl FnOnce(&mut [u32], usize) -> Result<(), E>,
    ) -> Result<(), E> {
        insert(&mut self.rows, self.missing)?;
        self.missing = 0;
        self.find_runs(shift);
        Ok(())
    }

    fn find_runs(&mut self, shift: u32) {
        self.runs.clear();
        let runs_max = (self.keys / RUN_MIN).max(1);
        let mut rest = &self.rows[..];
        while let Some(&row) = rest.first() {
            if self.runs.len() == runs_max {
                return self.runs.clear();
            }
            let len = run_len(rest, shift);
            self.runs.push(Run { row, len: len as u32 });
            rest = &rest[len..];
        }
    }

    /// The rows of all keys, in order, unless they are in runs.
    pub(super) fn scattered(&self) -> &[u32] {
        if self.runs.is_empty() { &self.rows } else { &[] }
    }

    /// The pieces of the keys, in order.
    pub(super) fn pieces(&self, shift: u32) -> impl Iterator<Item = Piece<'_>> {
        let rows = self.scattered();
        let runs = self.runs.iter().map(|run| Piece::Run { row: run.row, len: run.len as usize });
        runs.chain(rows.chunk_by(move |a, b| a >> shift == b >> shift).map(Piece::Rows))
    }

    /// The first row, if the rows of all keys are consecutive in one chunk.
    pub(super) fn only_run(&self) -> Option<u32> {
        match self.runs[..] {
            [Run { row, .. }] if row != NO_ROW => Some(row),
            _ => None,
        }
    }

    /// Forgets all rows.
    pub(super) fn forget(&mut self) {
        self.clear(0);
    }

    fn clear(&mut self, keys: usize) {
        self.keys = keys;
        self.missing = 0;
        self.rows.clear();
        self.runs.clear();
    }
}

/// Length of the first run of `rows`, which is not empty: consecutive rows in one chunk, or missing
/// rows.
fn run_len(rows: &[u32], shift: u32) -> usize {
    let first = rows[0];
    if first == NO_ROW {
        return rows.iter().take_while(|row| **row == NO_ROW).count();
    }
    let mask = (1 << shift) - 1;
    let in_chunk = (mask - (first & mask)) as usize + 1;
    let rows = &rows[..rows.len().min(in_chunk)];
    let mut len = 1;
    for block in rows.as_chunks::<BLOCK>().0 {
        let expected = first + (len - 1) as u32;
        // The loop has no early exit, so the compiler can vectorise it.
        let follow = |(row, at): (&u32, u32)| row ^ (expected + at);
        if block.iter().zip(0..).map(follow).fold(0, |different, bits| different | bits) != 0 {
            break;
        }
        len += BLOCK;
    }
    let whole = len - 1;
    whole + rows[whole..].iter().zip(first + whole as u32..).take_while(|(a, b)| *a == b).count()
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, reason = "tests")]
    use super::*;

    /// The rows of all pieces, each of which is in one chunk.
    fn named(found: &Found, shift: u32) -> Vec<u32> {
        let mut all = Vec::new();
        for piece in found.pieces(shift) {
            let mut rows = Vec::new();
            match piece {
                Piece::Run { row: NO_ROW, len } => rows.resize(len, NO_ROW),
                Piece::Run { row, len } => rows.extend(row..row + len as u32),
                Piece::Rows(some) => rows.extend_from_slice(some),
            }
            assert_eq!(rows.len(), piece.len());
            assert_eq!(rows[0], piece.row());
            assert!(rows.iter().all(|row| row >> shift == rows[0] >> shift), "{rows:?}");
            all.extend(rows);
        }
        all
    }

    #[test]
    fn pieces_name_every_row_in_order() {
        let consecutive: Vec<u32> = (5..50).collect();
        let scattered: Vec<u32> = (0..50).map(|n| n * 7 % 50).collect();
        let mut mixed: Vec<u32> = (20..40).chain(2..9).collect();
        mixed.extend([NO_ROW; 9]);
        mixed.extend([1, NO_ROW - 2, NO_ROW, 3]);
        for rows in [consecutive, scattered, mixed, vec![], vec![7], vec![NO_ROW]] {
            for shift in [0, 2, 4, 20] {
                let mut found = Found::default();
                let missing = rows.iter().filter(|row| **row == NO_ROW).count();
                found.enter(rows.len(), shift, |into| {
                    into.extend_from_slice(&rows);
                    missing
                });
                assert_eq!(named(&found, shift), rows, "chunks of 2^{shift}");
                assert_eq!(found.is_complete(rows.len()), missing == 0);
                assert!(!found.is_complete(rows.len() + 1));
            }
        }
    }

    #[test]
    fn consecutive_rows_are_runs_without_a_list() {
        let mut found = Found::default();
        found.enter_consecutive(3, 10, 2);
        assert_eq!(named(&found, 2), (3..13).collect::<Vec<_>>());
        assert_eq!((found.runs.len(), found.rows.len()), (4, 0));
        assert_eq!(found.only_run(), None);
        found.enter_consecutive(NO_ROW - 3, 2, 20);
        assert_eq!(found.only_run(), Some(NO_ROW - 3));
        found.enter_consecutive(0, 0, 2);
        assert_eq!(found.pieces(2).count(), 0);
    }
}
