//! Replicates the rows that an iteration has changed, in place of its pushes.
//!
//! Under BSP the pushes of all workers are applied when their iteration ends, one behind the other,
//! with nothing but clocks between them. So the first thread of a chain can apply all of them
//! before it passes any on, and then pass on each row once, as all have left it: with n workers
//! that push the same keys a copy costs the bytes of one of them. This is replication after
//! aggregation (Li et al., "Scaling Distributed Machine Learning with the Parameter Server", OSDI
//! 2014, section 4.3). Where rows take more bytes, as those of workers that push different keys or
//! of rules with hidden values, the pushes go on as they are.
//!
//! The pushes of a sum go on together as well (`sums.rs`). The message says which requests are in
//! its rows. A copy takes all of them at once, or none, so what comes again is known as before.
//!
//! Path: codec > thread > **tables** > shard > store > answer.

use caravan_van::{Connections, Pool};

use super::log::{Awaiter, Effect, LogEntry, Place};
use super::sessions::Sender;
use super::{Around, Chain, Chains, Link};
use crate::consistency::Access;
use crate::op::{BITS, FINISHES, Op};
use crate::refusal::{Refusal, Refused};
use crate::server::shard::{Extract, Request, Shard};
use crate::server::tables::{Replica, Tables};

/// Rows of one message take no more bytes than this, or than the longest push in it: that one had
/// room.
const BYTES_MAX: usize = 1 << 20;

/// A request that is in rows.
#[derive(Debug, Clone, Copy, PartialEq)]
struct Mark {
    op: Op,
    ends: u8,
    sender: Sender,
    timestamp: u64,
    clock: u64,
}

impl Mark {
    const BYTES: usize = 40;

    fn of(entry: &LogEntry) -> Mark {
        let (op, ends) = entry.op();
        let (sender, timestamp, clock) = (entry.sender, entry.timestamp(), entry.request().clock);
        Mark { op: op.unwrap_or(Op::Record), ends, sender, timestamp, clock }
    }

    fn write(self, into: &mut Vec<u8>) {
        let Mark { op, ends, sender, timestamp, clock } = self;
        let op = u64::from(op as u8 | ends);
        let numbers = [op, sender.node.into(), sender.incarnation, timestamp, clock];
        numbers.iter().for_each(|number| into.extend(number.to_le_bytes()));
    }

    fn read(bytes: &[u8; Self::BYTES]) -> Option<Mark> {
        let numbers: &[[u8; 8]; 5] = bytes.as_chunks().0.try_into().ok()?;
        let [op, node, incarnation, timestamp, clock] = numbers.map(u64::from_le_bytes);
        let raw = u8::try_from(op).ok()?;
        let (op, ends) = (Op::from_raw(raw & !BITS)?, raw & BITS);
        let sender = Sender { node: node.try_into().ok()?, incarnation };
        let is_one = matches!(op, Op::Push | Op::Clock);
        is_one.then_some(Mark { op, ends, sender, timestamp, clock })
    }

    /// The marks before the values of rows, and these.
    fn read_all(values: &[u8]) -> Option<(Vec<Mark>, &[u8])> {
        let (count, rest) = values.split_first_chunk()?;
        let count = usize::try_from(u64::from_le_bytes(*count)).ok()?;
        let (marks, values) = rest.split_at_checked(count.checked_mul(Self::BYTES)?)?;
        let marks: Option<Vec<Mark>> = marks.as_chunks().0.iter().map(Mark::read).collect();
        Some((marks?, values))
    }
}

/// Several pushes, and what was said of clocks between them, as `rows`, which have all that they do
/// to a shard. `None` if these take more bytes.
fn together(all: &[LogEntry], rows: &Extract) -> Option<(Sender, Effect)> {
    let payloads = || pushes(all).map(LogEntry::payload);
    let alone: usize = payloads().sum();
    if rows.bytes() >= alone || rows.bytes() > payloads().max()?.max(BYTES_MAX) {
        return None;
    }
    let mut values = (all.len() as u64).to_le_bytes().to_vec();
    all.iter().for_each(|entry| Mark::of(entry).write(&mut values));
    values.extend(&rows.values);
    let last = all.last()?;
    let effect = Effect {
        op: Op::Rows as u8,
        timestamp: last.timestamp(),
        command: 0,
        clock: last.request().clock,
        keys: rows.keys.clone(),
        lengths: rows.lengths.clone(),
        values,
    };
    Some((last.sender, effect))
}

/// Those of several entries that are pushes.
pub(super) fn pushes(all: &[LogEntry]) -> impl Iterator<Item = &LogEntry> {
    all.iter().filter(|entry| entry.op().0 == Some(Op::Push))
}

/// The rows that pushes have changed, which this shard has applied; none if the keys of no two of
/// them are the same, or rows are not to be had.
fn changed(all: &[LogEntry], shard: &dyn Shard) -> Option<Extract> {
    let mut keys: Vec<u64> = pushes(all).flat_map(|push| push.request().keys).copied().collect();
    let pushed = keys.len();
    keys.sort_unstable();
    keys.dedup();
    let mut rows = Extract::default();
    (keys.len() < pushed && shard.give_of(&keys, &mut rows)).then_some(rows)
}

impl Chains {
    /// Passes on what has gathered.
    pub(super) fn pass_gathered(
        &mut self,
        lanes: &mut Connections,
        chain: &mut Chain,
        shard: &dyn Shard,
        index: usize,
        place: Place,
    ) {
        if chain.gathered.is_empty() {
            return;
        }
        let all = std::mem::take(&mut chain.gathered);
        self.gathered = self.gathered.saturating_sub(all.len());
        let rows = changed(&all, shard);
        self.pass_together(lanes, chain, index, place, all, rows);
    }

    /// Passes on several requests as `rows`, which have all that they do, or else one by one.
    pub(super) fn pass_together(
        &mut self,
        lanes: &mut Connections,
        chain: &mut Chain,
        index: usize,
        place: Place,
        all: Vec<LogEntry>,
        rows: Option<Extract>,
    ) {
        let Some((sender, effect)) = rows.and_then(|rows| together(&all, &rows)) else {
            return all.into_iter().for_each(|it| self.pass_on(lanes, chain, index, place, it));
        };
        self.counters.gathered += pushes(&all).count() as u64;
        let replies = all.into_iter().flat_map(|entry| {
            let timestamp = entry.timestamp();
            entry.waiting.into_replies(place.0, timestamp)
        });
        let waiting = Awaiter::Several(replies.collect());
        self.pass_on(lanes, chain, index, place, LogEntry::made(sender, effect, waiting));
    }
}

impl Tables {
    /// Passes on what has gathered in all chains.
    pub(in crate::server) fn pass_gathered(&mut self, lanes: &mut Connections) {
        let Tables { entries, chains, index, .. } = self;
        if chains.gathered > 0 {
            let mut around = Around { lanes, chains, index: *index };
            entries.iter_mut().for_each(|entry| around.pass_gathered(entry));
        }
    }
}

impl Around<'_> {
    /// Keeps a record that was applied until it goes on together with others.
    pub(super) fn gather(&mut self, replica: &mut Replica, record: LogEntry) {
        let Some(chain) = &mut replica.chain else { return };
        chain.gathered.push(record);
        self.chains.gathered += 1;
        self.chains.is_due = true;
    }

    /// Passes on what has gathered at a shard.
    #[inline]
    pub(super) fn pass_gathered(&mut self, replica: &mut Replica) {
        let place = (replica.number, replica.range);
        let chain = replica.chain.as_mut().filter(|chain| !chain.gathered.is_empty());
        let Some(chain) = chain else { return };
        let Around { lanes, chains, index } = self;
        chains.pass_gathered(lanes, chain, &*replica.shard, *index, place);
    }
}

impl Replica {
    /// Whether a request that is applied for the first time, at the first thread of a chain, goes
    /// on together with others.
    pub(super) fn gathers(&self, op: Op) -> bool {
        let Replica { chain: Some(chain), admission: Some(admission), shard, .. } = self else {
            return false;
        };
        matches!(op, Op::Push | Op::Clock)
            && admission.foresees()
            && chain.link == Link::Follows
            && shard.image_bytes().is_none()
    }

    /// Takes rows that the thread before this one has passed on, and all that is in them. A copy
    /// that is not whole hears of the latter with the rest.
    pub(super) fn repeat_gathered(
        &mut self,
        request: &Request<'_>,
        memory: &Pool,
    ) -> Result<(), Refused> {
        let Replica { chain: Some(chain), shard, admission, .. } = self else { return Ok(()) };
        let &Request { keys, lengths, .. } = request;
        let read = Mark::read_all(request.values);
        let (marks, values) = read.ok_or_else(|| {
            Refusal::Internal.because("what is in its rows is cut off, or is no push")
        })?;
        if !chain.is_whole {
            return shard.take(keys, lengths, values, memory);
        }
        marks.iter().try_for_each(|mark| chain.applied.charge(mark.sender))?;
        shard.take(keys, lengths, values, memory)?;
        for Mark { op, ends, sender, timestamp, clock } in marks {
            chain.applied.enter(sender, timestamp, None);
            let Some(admission) = admission else { continue };
            let worker = sender.node;
            match op {
                Op::Clock => drop(admission.enter(op, worker, clock, &[])?),
                _ => {
                    let (reads, writes, keys) = (false, true, &[][..]);
                    admission.record_executed(&Access { worker, clock, reads, writes, keys });
                }
            }
            if ends & FINISHES != 0 {
                admission.finish(worker, clock, FINISHES);
            }
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, reason = "tests")]

    use super::*;

    fn mark(op: Op, ends: u8, number: u64) -> Mark {
        let sender = Sender { node: number as u32, incarnation: number << 40 };
        Mark { op, ends, sender, timestamp: number + 1, clock: number + 2 }
    }

    #[test]
    fn marks_are_read_as_they_were_written() {
        let marks = vec![mark(Op::Push, 0, 1), mark(Op::Clock, 0, 2), mark(Op::Push, FINISHES, 3)];
        let mut bytes = 3u64.to_le_bytes().to_vec();
        marks.iter().for_each(|mark| mark.write(&mut bytes));
        let ends = bytes.len();
        bytes.extend([7; 9]);
        assert_eq!(Mark::read_all(&bytes), Some((marks, &[7; 9][..])));
        assert!((0..ends).all(|len| Mark::read_all(&bytes[..len]).is_none()), "cut off");
        assert_eq!(Mark::read_all(&u64::MAX.to_le_bytes()), None);
        for other in [Op::Pull, Op::Join, Op::Rows] {
            let mut bytes = 1u64.to_le_bytes().to_vec();
            mark(other, 0, 1).write(&mut bytes);
            assert_eq!(Mark::read_all(&bytes), None, "{other:?} is in no rows");
        }
    }
}
