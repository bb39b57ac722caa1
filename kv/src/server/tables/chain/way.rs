//! The lane to the thread that follows, and the messages on it.

use std::collections::VecDeque;
use std::time::Duration;

use caravan_van::wire::{Coding, Kind};
use caravan_van::{Connections, Draft, KeyRange, PeerId, Values};

use super::Inputs;
use super::models::tells_clock;
use super::sessions::Sender;
use crate::op::{BITS, DISCLOSES, FINISHES, Op};

/// A lane to a thread that follows.
#[derive(Default)]
pub(super) struct Lane {
    pub(super) peer: Option<PeerId>,
    /// Messages that were not answered, in order.
    pub(super) posted: VecDeque<Posted>,
    /// When it may be made again; set by the next look if it has just been lost.
    pub(super) retry_at: Option<Duration>,
    pub(super) was_lost: bool,
}

/// A message on it that was not answered.
#[derive(Clone, Copy)]
pub(super) struct Posted {
    pub(super) number: u64,
    pub(super) table: u32,
    pub(super) begin: u64,
    pub(super) op: Op,
}

/// The lane to the next thread and the place of a shard, to post messages about it.
pub(super) struct Way<'a> {
    pub(super) lanes: &'a mut Connections,
    pub(super) lane: &'a mut Lane,
    pub(super) count: &'a mut u64,
    pub(super) index: usize,
    pub(super) table: u32,
    pub(super) range: KeyRange,
}

impl Way<'_> {
    /// Posts a message; returns its number, or `None` if it cannot be posted now.
    pub(super) fn post(&mut self, draft: Draft<'_>, op: Op) -> Option<u64> {
        let coding = if op == Op::Rows { Coding::compact() } else { Coding::plain() };
        self.post_coded(draft, op, coding)
    }

    fn post_coded(&mut self, draft: Draft<'_>, op: Op, mut coding: Coding) -> Option<u64> {
        let peer = self.lane.peer?;
        let number = *self.count + 1;
        let draft = Draft {
            op: op as u8,
            table: self.table,
            range: self.range,
            timestamp: number,
            ..draft
        };
        if let Err(error) = self.lanes.post(peer, draft, &mut coding) {
            tracing::debug!(%error, "a copy has to wait");
            return None;
        }
        *self.count = number;
        let begin = self.range.begin();
        self.lane.posted.push_back(Posted { number, table: self.table, begin, op });
        Some(number)
    }

    /// Posts the inputs of a request.
    pub(super) fn replicate(&mut self, inputs: &Inputs) -> Option<u64> {
        let head = Head {
            from: self.index as u64,
            op: u64::from(inputs.op as u8 | inputs.ends),
            node: inputs.sender.node.into(),
            incarnation: inputs.sender.incarnation,
            timestamp: inputs.timestamp,
        };
        let values = [&head.bytes()[..], &inputs.values].concat();
        let draft = Draft {
            command: inputs.command,
            clock: inputs.clock,
            keys: &inputs.keys,
            lengths: &inputs.lengths,
            values: Values::Copied(&values),
            ..Draft::new(Kind::Request)
        };
        let coding = if inputs.op == Op::Rows { Coding::compact() } else { Coding::plain() };
        self.post_coded(draft, Op::Replicate, coding)
    }
}

/// What the values of [`Op::Replicate`] begin with.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Head {
    /// The thread that passes it on.
    pub(super) from: u64,
    /// That of [`Inputs`], with the bits of a push that ends an iteration.
    pub(super) op: u64,
    pub(super) node: u64,
    pub(super) incarnation: u64,
    pub(super) timestamp: u64,
}

impl Head {
    const BYTES: usize = 40;

    pub(super) fn bytes(self) -> [u8; Self::BYTES] {
        let mut bytes = [0; Self::BYTES];
        let numbers = [self.from, self.op, self.node, self.incarnation, self.timestamp];
        let places = bytes.chunks_exact_mut(8);
        places.zip(numbers).for_each(|(place, it)| place.copy_from_slice(&it.to_le_bytes()));
        bytes
    }

    pub(super) fn read(values: &[u8]) -> Option<(Head, &[u8])> {
        let (head, values) = values.split_at_checked(Self::BYTES)?;
        let numbers: &[[u8; 8]; 5] = head.as_chunks().0.try_into().ok()?;
        let [from, op, node, incarnation, timestamp] = numbers.map(u64::from_le_bytes);
        Some((Head { from, op, node, incarnation, timestamp }, values))
    }

    /// The operation, and the bits of the end of an iteration.
    pub(super) fn op(self) -> Option<(Op, u8)> {
        let raw = u8::try_from(self.op).ok()?;
        let op = Op::from_raw(raw & !BITS)?;
        let is_input = matches!(
            op,
            Op::Push | Op::Pull | Op::Command | Op::Checkpoint | Op::Refused | Op::Rows
        );
        (is_input || tells_clock(op)).then_some((op, raw & (FINISHES | DISCLOSES)))
    }

    pub(super) fn sender(self) -> Option<Sender> {
        Some(Sender { node: self.node.try_into().ok()?, incarnation: self.incarnation })
    }
}
