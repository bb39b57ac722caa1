//! A shard's rows as they were at one moment, read by a client while pushes go on.
//!
//! The client cuts the shard, between two requests, and then asks for its rows a piece at a time,
//! in the order of their keys. A cut may wait until all workers of a table with a consistency model
//! have come to an iteration. Before a push changes rows that were not read yet, they are kept
//! aside as they were. So the shard stands still for nobody, and only changed rows take memory
//! twice. A shard that is being read does not move.
//!
//! Of a shard with copies the first thread of its chain is asked, and waits. That it is cut is
//! answered when all copies have what it has, so no thread that counts as lost is read, nor what a
//! death could undo; and rows that are put there are inputs, which all copies take.
//!
//! Path: codec > thread > **tables** > shard > store > answer.

use std::collections::BTreeMap;

use caravan_van::wire::Kind;
use caravan_van::{Account, Connections, Draft, Message, PeerId, Pool, Values};

use super::moving::{Moving, With};
use super::{Client, Replica, Step, Tables, Trouble};
use crate::checkpoint::{Piece, Wish};
use crate::op::Op;
use crate::refusal::{Refusal, Refused};
use crate::server::answer::{answer, post};
use crate::server::shard::{Extract, Shard};

/// Most bytes that are kept aside at once, for several keys of a push.
const KEPT_BYTES: usize = 32 << 10;

/// The rows of a shard that a client has still to read.
pub(super) struct Cut {
    pub(super) reader: PeerId,
    /// The first key that was not read; `None` once all were.
    next: Option<u64>,
    /// Rows as they were, by the first key that they stand for.
    kept: BTreeMap<u64, Kept>,
    /// Bytes of a row, as far as it is known.
    row_bytes: usize,
    memory: Account,
    failed: Option<Refused>,
}

/// All rows between two keys, as they were.
struct Kept {
    /// One past the last key; `None` for the end of the shard.
    end: Option<u64>,
    rows: Extract,
}

impl Kept {
    fn has(&self, key: u64) -> bool {
        self.end.is_none_or(|end| key < end)
    }
}

impl Cut {
    /// All rows from key `begin` on.
    fn of(reader: PeerId, begin: u64, lanes: &Connections) -> Cut {
        Cut {
            reader,
            next: Some(begin),
            kept: BTreeMap::new(),
            row_bytes: 0,
            memory: Account::new(lanes.memory(), "rows kept for a checkpoint"),
            failed: None,
        }
    }

    /// The rows from key `from` on, up to those that are kept already.
    fn read(
        &mut self,
        shard: &mut dyn Shard,
        from: u64,
        bytes_max: usize,
    ) -> Result<Kept, Refused> {
        let mut rows = Extract::default();
        let end = shard.give(from, bytes_max, &mut rows)?;
        let until = self.kept.range(from..).next().map(|(first, _)| *first);
        let mut kept = Kept { end, rows };
        if let Some(until) = until.filter(|until| kept.has(*until)) {
            kept.rows.truncate(until);
            kept.end = Some(until);
        }
        self.row_bytes = kept.rows.bytes().checked_div(kept.rows.keys.len()).unwrap_or(0);
        Ok(kept)
    }

    /// Keeps the rows of sorted `keys` aside that were not read yet.
    fn keep(&mut self, shard: &mut dyn Shard, keys: &[u64]) -> Result<(), Refused> {
        let Some(next) = self.next else { return Ok(()) };
        let mut keys = &keys[keys.partition_point(|key| *key < next)..];
        while let Some(&key) = keys.first() {
            let before = self.kept.range(..=key).next_back().filter(|(_, kept)| kept.has(key));
            let end = match before {
                Some((_, kept)) => kept.end,
                None => {
                    let bytes_max = (keys.len() * self.row_bytes).min(KEPT_BYTES);
                    let kept = self.read(shard, key, bytes_max)?;
                    self.memory.add(kept.rows.bytes())?;
                    let end = kept.end;
                    self.kept.insert(key, kept);
                    end
                }
            };
            let Some(end) = end else { return Ok(()) };
            keys = &keys[keys.partition_point(|key| *key < end)..];
        }
        Ok(())
    }

    /// Keeps nothing any longer; its reader hears why.
    fn fail(&mut self, reason: Refused) {
        self.failed = Some(reason);
        self.kept.clear();
        self.memory.release(self.memory.bytes());
    }

    /// The next piece.
    fn piece(&mut self, shard: &mut dyn Shard, bytes_max: usize) -> Result<Piece, Refused> {
        if let Some(reason) = self.failed.take() {
            return Err(reason);
        }
        let from =
            self.next.ok_or_else(|| Refusal::Internal.because("all of its rows were read"))?;
        let kept = match self.kept.remove(&from) {
            Some(kept) => {
                self.memory.release(kept.rows.bytes());
                kept
            }
            None => self.read(shard, from, bytes_max)?,
        };
        self.next = kept.end;
        Ok(Piece { rows: kept.rows, is_last: kept.end.is_none() })
    }
}

/// Keeps rows aside that a push is about to change, if a client is reading them. If that fails, the
/// client hears of it, and the push goes on. It removes no rows of a shard that moves or is read.
#[cold]
pub(super) fn keep(moving: &mut Option<Box<Moving>>, shard: &mut dyn Shard, keys: &[u64]) {
    let Some(moving) = moving else { return };
    shard.hold_rows();
    let With::Reader(cut) = &mut moving.with else { return };
    if cut.failed.is_none()
        && let Err(reason) = cut.keep(shard, keys)
    {
        cut.fail(reason);
    }
}

/// Makes a reading fail, since what changes rows now does not say which.
#[cold]
pub(super) fn spoil(moving: &mut Option<Box<Moving>>, what: &str) {
    if let Some(Moving { with: With::Reader(cut), .. }) = moving.as_deref_mut() {
        let why = format!("{what} has changed its rows meanwhile (try again)");
        cut.fail(Refusal::Busy.because(why));
    }
}

/// The rows that a client wishes to put.
fn rows(body: &[u8]) -> Result<Extract, Refused> {
    let piece = Piece::decode(body).map_err(|why| Refusal::Shape.because(why))?;
    Ok(piece.rows)
}

/// Replaces rows of a shard by those that a client wishes to put there.
///
/// # Errors
/// The reason why they cannot be its rows.
pub(super) fn put(shard: &mut dyn Shard, wish: &[u8], memory: &Pool) -> Result<(), Refused> {
    let (_, body) = Wish::read(wish)?;
    let Extract { keys, lengths, values } = rows(body)?;
    shard.take(&keys, &lengths, &values, memory)
}

impl Tables {
    /// Serves a wish of a client that writes or restores a checkpoint, or has it wait for a move of
    /// its shard.
    ///
    /// # Errors
    /// The reason why it is refused.
    pub(super) fn serve_checkpoint(
        &mut self,
        lanes: &mut Connections,
        client: Client,
        message: &mut Message,
    ) -> Result<Step, Trouble> {
        let (wish, body) = Wish::read(message.values())?;
        let entry = self.find(message.table(), message.range().begin())?;
        if matches!(wish, Wish::Put) {
            entry.check_keys(&rows(body)?.keys)?;
        }
        let has_copies = entry.chain.is_some();
        match wish {
            // All copies take them.
            Wish::Put if has_copies => {
                return self.serve_chained(lanes, client, message, None, Op::Checkpoint);
            }
            Wish::Cut if has_copies && self.must_hold(lanes)? => return Ok(Step::Hold),
            Wish::Cut if message.clock() > 0 => {
                let Replica { admission, spec, .. } =
                    self.find(message.table(), message.range().begin())?;
                let reached = admission.as_ref().map_or(Ok(None), |it| it.reaches(message.clock()));
                let reached = reached.map_err(|why| why.of(format_args!("table {}", spec.name)))?;
                if let Some(wait_reason) = reached {
                    let waits = if has_copies {
                        Step::Await(Some(wait_reason))
                    } else {
                        Step::Govern(wait_reason)
                    };
                    return Ok(waits);
                }
            }
            _ => {}
        }
        let Some(reply) = self.grant(lanes, client.peer, message)? else { return Ok(Step::Hold) };
        if matches!(wish, Wish::Cut) && has_copies {
            self.answer_confirmed(lanes, client, message);
        } else {
            let values = Values::Copied(&reply);
            post(lanes, client.peer, Draft { values, ..answer(Kind::Reply, message) })?;
        }
        message.advance();
        Ok(Step::Release)
    }

    /// Does what a client wishes; `None` if that has to wait for a move of its shard.
    fn grant(
        &mut self,
        lanes: &Connections,
        reader: PeerId,
        message: &Message,
    ) -> Result<Option<Vec<u8>>, Trouble> {
        let piece_bytes = self.moves.piece_bytes;
        let (wish, _) = Wish::read(message.values())?;
        let entry = self.find(message.table(), message.range().begin())?;
        let Replica { moving, shard, range, spec, .. } = entry;
        let with = moving.as_mut().map(|moving| &mut moving.with);
        match (wish, with) {
            (Wish::Piece, Some(With::Reader(cut))) if cut.reader == reader => {
                let piece = cut.piece(&mut **shard, piece_bytes);
                if !piece.as_ref().is_ok_and(|piece| !piece.is_last) {
                    self.end_cut(message.table(), message.range().begin());
                }
                return Ok(Some(piece?.encode()));
            }
            (Wish::Piece, _) => {
                return Err(Refusal::Unsupported
                    .because(format!("table {} is not cut", spec.name))
                    .into());
            }
            (Wish::Cut, Some(With::Reader(cut))) if cut.reader == reader => {
                *cut = Cut::of(reader, range.begin(), lanes);
            }
            (Wish::Cut, Some(With::Reader(_))) => {
                let why = "another checkpoint of it is being written (try again later)";
                return Err(Refusal::Busy.because(format!("table {}: {why}", spec.name)).into());
            }
            (_, Some(_)) => return Ok(None),
            (Wish::Cut, None) => {
                shard.give(range.begin(), 0, &mut Extract::default())?;
                let cut = Cut::of(reader, range.begin(), lanes);
                *moving = Some(Moving::new(With::Reader(cut), false));
            }
            (Wish::Put, None) => put(&mut **shard, message.values(), lanes.memory())?,
        }
        Ok(Some(Vec::new()))
    }

    /// Ends the reading of a shard.
    fn end_cut(&mut self, table: u32, key: u64) {
        let Some(at) = self.position(table, key) else { return };
        if let Some(mut moving) = self.entries[at].moving.take() {
            moving.release(&mut self.moves.released);
        }
    }

    /// Ends the readings of a lost client.
    pub(super) fn forget_reader(&mut self, peer: PeerId) {
        for entry in &mut self.entries {
            let is_his = |moving: &mut Box<Moving>| matches!(&moving.with, With::Reader(cut) if cut.reader == peer);
            if let Some(mut moving) = entry.moving.take_if(is_his) {
                moving.release(&mut self.moves.released);
            }
        }
    }
}
