//! Replicates the sum of what workers push, in place of the parts of each.
//!
//! Some shards add up a push of each worker before anything comes of them, as those of DBPG do with
//! gradients ([`Shard::part`]). The first thread of their chain applies each part as it comes,
//! keeps it until all are there, and then passes on their sum: a copy gets f(x + y) instead of x
//! and y (Li et al., OSDI 2014, section 4.3). Workers hear when the copies have the sum.
//!
//! A worker's inputs keep their order, since what comes again is known by it. So sums go on in the
//! order of their numbers, which those of a worker's parts follow; and whatever else is an input
//! has the parts before it pass on as they are. So do parts whose sum is not complete after
//! [`LATE`]: a worker that is slow or gone holds up no other.
//!
//! Path: codec > thread > **tables** > shard > store > answer.

use std::time::Duration;

use caravan_van::Connections;

use super::gathered::pushes;
use super::log::{LogEntry, Place, Sum};
use super::{Around, Chain, Chains, Link};
use crate::op::Op;
use crate::server::shard::{Extract, Part, Request, Shard};
use crate::server::tables::{Replica, Tables};

/// Time after which parts pass on as they are.
const LATE: Duration = Duration::from_secs(1);

impl Sum {
    /// The sum of all its parts; none if some have passed on as they are, or one has all.
    fn add_up(&self, shard: &dyn Shard) -> Option<Extract> {
        let parts: Vec<_> = pushes(&self.parts).map(LogEntry::request).collect();
        let mut extract = Extract::default();
        let is_whole = parts.len() == self.of && self.of > 1;
        (is_whole && shard.add_up(&parts, &mut extract)).then_some(extract)
    }
}

impl Chain {
    /// The parts that wait, in the order in which they may pass on.
    pub(super) fn take_parts(&mut self) -> impl Iterator<Item = LogEntry> + use<> {
        std::mem::take(&mut self.sums).into_iter().flat_map(|sum| sum.parts)
    }

    /// The requests that wait as parts.
    pub(super) fn parts_mut(&mut self) -> impl Iterator<Item = &mut LogEntry> {
        self.sums.iter_mut().flat_map(|sum| &mut sum.parts)
    }

    /// Keeps a part of a sum.
    fn keep(&mut self, part: Part, item: LogEntry, now: Duration) {
        let Part { sum: number, of, left } = part;
        let at = self.sums.partition_point(|it| it.number < number);
        if self.sums.get(at).is_none_or(|it| it.number != number) {
            let new = Sum { number, parts: Vec::new(), of, is_complete: false, since: now };
            self.sums.insert(at, new);
        }
        let sum = &mut self.sums[at];
        sum.parts.push(item);
        sum.is_complete = left <= 1;
    }

    /// Whether a part comes behind all that its worker has pushed before.
    fn is_in_order(&self, part: Part, item: &LogEntry) -> bool {
        let from = self.sums.partition_point(|it| it.number < part.sum);
        let mut later = self.sums.range(from..).flat_map(|sum| &sum.parts);
        later.all(|it| it.sender != item.sender)
    }
}

impl Chains {
    /// Keeps a part that was applied, and passes on the sums that are complete.
    pub(super) fn gather_part(
        &mut self,
        lanes: &mut Connections,
        chain: &mut Chain,
        shard: &dyn Shard,
        index: usize,
        place: Place,
        (part, item): (Part, LogEntry),
    ) {
        if !chain.is_in_order(part, &item) {
            self.pass_parts(lanes, chain, index, place);
        }
        let now = lanes.now();
        chain.keep(part, item, now);
        self.parts_since.get_or_insert(now);
        while let Some(sum) = chain.sums.pop_front_if(|sum| sum.is_complete) {
            let rows = sum.add_up(shard);
            self.pass_together(lanes, chain, index, place, sum.parts, rows);
        }
    }

    /// Passes on all parts as they are.
    pub(super) fn pass_parts(
        &mut self,
        lanes: &mut Connections,
        chain: &mut Chain,
        index: usize,
        place: Place,
    ) {
        for item in chain.take_parts() {
            self.pass_on(lanes, chain, index, place, item);
        }
    }
}

impl Tables {
    /// Passes on parts whose sums are late.
    pub(in crate::server) fn pass_late_parts(&mut self, lanes: &mut Connections) {
        let Tables { entries, chains, index, .. } = self;
        let Some(since) = chains.parts_since else { return };
        let now = lanes.now();
        if now - since < LATE {
            return;
        }
        for Replica { chain, number, range, .. } in &mut *entries {
            let Some(chain) = chain else { continue };
            if chain.sums.iter().any(|sum| now - sum.since >= LATE) {
                chains.pass_parts(lanes, chain, *index, (*number, *range));
            }
        }
        let chains_of = entries.iter().filter_map(|entry| entry.chain.as_ref());
        chains.parts_since = chains_of.flat_map(|it| &it.sums).map(|sum| sum.since).min();
    }
}

impl Around<'_> {
    /// Keeps a part of a sum that was applied, as [`Chains::gather_part`] does.
    pub(super) fn gather_part(&mut self, replica: &mut Replica, part: Part, record: LogEntry) {
        let place = (replica.number, replica.range);
        let Some(chain) = &mut replica.chain else { return };
        let Around { lanes, chains, index } = self;
        chains.gather_part(lanes, chain, &*replica.shard, *index, place, (part, record));
    }
}

impl Replica {
    /// The sum of which a push that is new at the first thread of a chain is a part.
    pub(super) fn part(&self, new: Option<Op>, op: Op, request: &Request<'_>) -> Option<Part> {
        let chain = self.chain.as_ref()?;
        let waits = new == Some(op) && chain.link == Link::Follows && !chain.is_asynchronous;
        if op == Op::Push && waits { self.shard.part(request) } else { None }
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, reason = "tests")]

    use super::*;
    use crate::membership::ChainOf;
    use crate::server::tables::chain::log::{Awaiter, Effect};
    use crate::server::tables::chain::sessions::Sender;
    use crate::table::{TableSpec, ValueType};
    use caravan_van::Pool;

    fn part_of(node: u32) -> LogEntry {
        LogEntry::made(Sender { node, incarnation: 1 }, Effect::nothing(1), Awaiter::Nobody)
    }

    /// Sums wait in the order of their numbers, whichever begins first; a worker that pushes a part
    /// of an earlier sum, or a second one of the same, does not keep its order.
    #[test]
    fn parts_of_a_worker_keep_its_order() {
        let spec = TableSpec::new(1, "t", ValueType::I64, 1);
        let of = ChainOf { table: 1, begin: 0, first: 0, replicas: 1 };
        let mut chain = Chain::new((of, 0), &spec, true, &Pool::new(1 << 20));
        let part = |sum, left| Part { sum, of: 2, left };
        for (sum, left, node) in [(7, 2, 1), (5, 2, 2), (7, 1, 2)] {
            assert!(chain.is_in_order(part(sum, left), &part_of(node)), "{sum} of {node}");
            chain.keep(part(sum, left), part_of(node), Duration::ZERO);
        }
        assert!(!chain.is_in_order(part(5, 1), &part_of(1)), "it has pushed for 7");
        assert!(!chain.is_in_order(part(7, 0), &part_of(1)), "it has pushed for 7");
        assert!(chain.is_in_order(part(8, 2), &part_of(1)));
        let of = |sum: &Sum| (sum.number, sum.parts.len(), sum.is_complete);
        assert!(chain.sums.iter().map(of).eq([(5, 1, false), (7, 2, true)]));
        let nodes: Vec<u32> = chain.take_parts().map(|it| it.sender.node).collect();
        assert_eq!((&nodes[..], chain.sums.len()), (&[2, 1, 2][..], 0));
    }
}
