//! Bytes before and after each stage.

use serde::{Deserialize, Serialize};

/// A stage, in the order in which requests pass them.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[allow(missing_docs, reason = "the module's table says what each does")]
pub enum Stage {
    Skip,
    Significant,
    Mask,
    Zero,
    Narrow,
    Quantize,
    Own,
    KeyCache,
    Snappy,
}

impl Stage {
    /// All stages.
    pub const ALL: [Stage; 9] = [
        Stage::Skip,
        Stage::Significant,
        Stage::Mask,
        Stage::Zero,
        Stage::Narrow,
        Stage::Quantize,
        Stage::Own,
        Stage::KeyCache,
        Stage::Snappy,
    ];

    /// Its name in the text form of [`super::Filters`].
    pub fn name(self) -> &'static str {
        match self {
            Stage::Skip => "skip",
            Stage::Significant => "significant",
            Stage::Mask => "mask",
            Stage::Zero => "zero",
            Stage::Narrow => "narrow",
            Stage::Quantize => "quantize",
            Stage::Own => "own",
            Stage::KeyCache => "key-cache",
            Stage::Snappy => "snappy",
        }
    }
}

/// Bytes of keys, numbers of values and values at a stage.
#[derive(Debug, Default, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub struct Flow {
    /// Before the stage.
    pub bytes_in: u64,
    /// After the stage.
    pub bytes_out: u64,
}

/// One per stage, in order.
pub(super) type Flows = [Flow; Stage::ALL.len()];

/// Traffic through the stages of a table at one end, without headers. `bytes_in` is the longer side
/// in both directions: received messages pass the stages backwards and are counted as their sender
/// did. Only a sender can count what `skip` and `significant` omit.
#[derive(Debug, Default, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub struct Traffic {
    /// Traffic sent, by [`Stage`].
    pub sent: [Flow; Stage::ALL.len()],
    /// Traffic received, by [`Stage`].
    pub received: [Flow; Stage::ALL.len()],
}

impl Traffic {
    /// Adds messages that bypassed all stages.
    pub(super) fn and(&self, passed: Passed) -> Traffic {
        let Passed { sent, received } = passed;
        let same = |bytes| [Flow { bytes_in: bytes, bytes_out: bytes }; Stage::ALL.len()];
        self.plus(&Traffic { sent: same(sent), received: same(received) })
    }

    /// The sum of two ends, or of two tables at one end.
    pub fn plus(mut self, other: &Traffic) -> Traffic {
        let ours = self.sent.iter_mut().chain(&mut self.received);
        for (flow, other) in ours.zip(other.sent.iter().chain(&other.received)) {
            flow.bytes_in += other.bytes_in;
            flow.bytes_out += other.bytes_out;
        }
        self
    }
}

/// Bytes of messages that bypassed the filters.
#[derive(Debug, Default, Clone, Copy)]
pub(crate) struct Passed {
    pub(crate) sent: u64,
    pub(crate) received: u64,
}

/// One message on its way through the stages.
#[derive(Clone, Copy)]
pub(crate) struct Passage {
    bytes: u64,
    flows: Flows,
    next: usize,
}

impl Passage {
    /// A message of `bytes` bytes before the first stage.
    pub(super) fn new(bytes: usize) -> Passage {
        Passage { bytes: bytes as u64, flows: [Flow::default(); Stage::ALL.len()], next: 0 }
    }

    /// Records that `stage` added and removed these bytes. Stages since the last recorded one
    /// changed nothing.
    pub(super) fn through(&mut self, stage: Stage, longer: usize, shorter: usize) {
        self.pass_until(stage as usize);
        let bytes_in = self.bytes;
        self.bytes = (self.bytes + longer as u64).saturating_sub(shorter as u64);
        self.flows[stage as usize] = Flow { bytes_in, bytes_out: self.bytes };
        self.next = stage as usize + 1;
    }

    fn pass_until(&mut self, stage: usize) {
        for flow in &mut self.flows[self.next.min(stage)..stage] {
            *flow = Flow { bytes_in: self.bytes, bytes_out: self.bytes };
        }
    }

    /// Ends the way of the message and adds it to a table's traffic.
    pub(super) fn end(mut self, to: &mut Flows) {
        self.pass_until(Stage::ALL.len());
        for (flow, passed) in to.iter_mut().zip(&self.flows) {
            flow.bytes_in += passed.bytes_in;
            flow.bytes_out += passed.bytes_out;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_stage_begins_where_the_last_one_ended() {
        let mut traffic = Traffic::default();
        let mut passage = Passage::new(100);
        passage.through(Stage::Mask, 2, 32);
        passage.through(Stage::KeyCache, 8, 48);
        passage.end(&mut traffic.sent);
        let ends: Vec<_> =
            traffic.sent.iter().map(|flow| (flow.bytes_in, flow.bytes_out)).collect();
        let same = |bytes| (bytes, bytes);
        assert_eq!(ends[..3], [same(100), same(100), (100, 70)]);
        assert_eq!(ends[3..7], [same(70); 4]);
        assert_eq!(ends[7..], [(70, 30), same(30)]);
        assert_eq!(traffic.plus(&traffic).sent[7], Flow { bytes_in: 140, bytes_out: 60 });
    }
}
