//! Requests that came in a row and are alike: what they have in common is looked at once.
//!
//! Path: codec > thread (**batch**) > shard > store > answer.

use std::slice::from_ref;

use caravan_van::wire::Record;
use caravan_van::{Endpoint, PeerId};

use super::answer::{ReplyTo, answer_pull, place_pull, refuse};
use super::{Entry, ServerThread, position};
use crate::consistency::Admission;
use crate::op::Op;
use crate::server::shard::{Request, Shard};

impl ServerThread {
    /// Serves the run that was taken: requests that are not as most are, by themselves.
    #[inline(never)]
    pub(super) fn serve_batch(&mut self, peer: PeerId) {
        while !self.endpoint.batch().is_empty() {
            if let Err(error) = self.serve_alike(peer) {
                return self.give_up(peer, error);
            }
            let Some(arrival) = self.endpoint.pop() else { return };
            self.dispatch(arrival);
        }
    }

    /// Serves pushes, or pulls, as long as nothing else is to be done for them: nothing waits, no filter has anything to do with
    /// them, their keys are this thread's, and no values are kept as they lie.
    ///
    /// # Errors
    /// When the lane is of no use any more; likewise below.
    #[inline(always)]
    fn serve_alike(&mut self, peer: PeerId) -> caravan_van::Result<()> {
        let run = self.endpoint.batch();
        let (header, range) = (run.header(), run.range());
        let table = header.table.get();
        if !self.asked.is_empty() || !self.parked.is_empty() {
            return Ok(());
        }
        if self.tables.get(self.last).is_none_or(|entry| entry.spec.id != table) {
            let Ok(at) = position(&self.tables, table) else { return Ok(()) };
            self.last = at;
        }
        let Entry { range: own, shard, spec, filters, .. } = &mut self.tables[self.last];
        if !own.is_some_and(|own| own.contains(range.begin()) && own.contains(range.last()))
            || filters.as_ref().is_some_and(|filters| !filters.passes_runs())
        {
            return Ok(());
        }
        let (sender, clock) = (header.sender.get(), header.clock.get());
        let (lengths, rows) = (&[][..], None);
        let alike = Request {
            sender,
            clock,
            range,
            keys: &[],
            lengths,
            values: &[],
            pushes: false,
            pulls: false,
            rows,
        };
        let (count, value_bytes) = (run.len(), run.value_bytes());
        let (of, shard) = ((peer, table), &mut **shard);
        let (served, answer_bytes) = match Op::from_raw(header.op) {
            Some(Op::Push) if !run.have_offers() => {
                (serve_pushes(&mut self.endpoint, shard, of, alike), 0)
            }
            Some(Op::Pull) => (serve_pulls(&mut self.endpoint, shard, of, alike), spec.row_bytes()),
            _ => return Ok(()),
        };
        if let Some(filters) = filters {
            let served = count - self.endpoint.batch().len();
            filters.passed.received += (served * (size_of::<u64>() + value_bytes)) as u64;
            filters.passed.sent += (served * answer_bytes) as u64;
        }
        served
    }
}

/// Serves the pushes of the run, up to one that has to wait or is to be kept.
#[inline(always)]
fn serve_pushes(
    endpoint: &mut Endpoint,
    shard: &mut dyn Shard,
    (peer, table): (PeerId, u32),
    alike: Request<'_>,
) -> caravan_van::Result<()> {
    let is_alone = endpoint.batch().len() == 1;
    while let Some(Record { timestamp, key, values }) = endpoint.batch().first() {
        let request = Request { keys: from_ref(&key), values, pushes: true, ..alike };
        if shard.admit(&request) != Admission::Now || is_alone && shard.adopts(&request) {
            break;
        }
        let pushed = shard.push(&request, endpoint.memory());
        endpoint.batch_mut().advance();
        match pushed {
            Ok(()) => endpoint.answer(peer, timestamp)?,
            Err(reason) => refuse(endpoint, ReplyTo { peer, table, timestamp }, &reason)?,
        }
    }
    Ok(())
}

/// Serves the pulls of the run, up to one that has to wait.
#[inline(always)]
fn serve_pulls(
    endpoint: &mut Endpoint,
    shard: &mut dyn Shard,
    (peer, table): (PeerId, u32),
    alike: Request<'_>,
) -> caravan_van::Result<()> {
    let have_offers = endpoint.batch().have_offers();
    while let Some(Record { timestamp, key, .. }) = endpoint.batch().first() {
        let request = Request { keys: from_ref(&key), pulls: true, ..alike };
        if shard.admit(&request) != Admission::Now {
            break;
        }
        let asker = ReplyTo { peer, table, timestamp };
        let offer = if have_offers { endpoint.batch().offer() } else { None };
        endpoint.batch_mut().advance();
        match offer {
            None => answer_pull(endpoint, shard, asker, &request)?,
            Some(offer) => place_pull(endpoint, shard, (asker, offer), &request)?,
        }
    }
    Ok(())
}
