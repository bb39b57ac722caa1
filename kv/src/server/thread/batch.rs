//! Batches of requests: the header, which all records share, is checked once.
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
    /// Serves a batch; dispatches records that [`Self::serve_records`] leaves one by one.
    #[inline(never)]
    pub(super) fn serve_batch(&mut self, peer: PeerId) {
        while !self.endpoint.batch().is_empty() {
            if let Err(error) = self.serve_records(peer) {
                return self.give_up(peer, error);
            }
            let Some(arrival) = self.endpoint.pop() else { return };
            self.dispatch(arrival);
        }
    }

    /// Serves pushes or pulls until a record needs more than that. It does nothing if a request is
    /// parked or lacks its keys, if a filter applies, or if a key is not this thread's.
    ///
    /// # Errors
    /// If an answer cannot be posted and the lane must be closed, as for all functions below.
    #[inline(always)]
    fn serve_records(&mut self, peer: PeerId) -> caravan_van::Result<()> {
        let batch = self.endpoint.batch();
        let header = batch.header();
        let range = batch.range();
        let table = header.table.get();
        if !self.lacking.is_empty() || !self.parked.is_empty() {
            return Ok(());
        }
        if self.tables.get(self.last_table).is_none_or(|entry| entry.spec.id != table) {
            let Ok(at) = position(&self.tables, table) else { return Ok(()) };
            self.last_table = at;
        }
        let Entry { range: own, shard, spec, filters, .. } = &mut self.tables[self.last_table];
        if !own.is_some_and(|own| own.contains(range.begin()) && own.contains(range.last()))
            || filters.as_ref().is_some_and(|filters| !filters.passes_batches())
        {
            return Ok(());
        }
        let common = Request {
            sender: header.sender.get(),
            clock: header.clock.get(),
            range,
            keys: &[],
            lengths: &[],
            values: &[],
            pushes: false,
            pulls: false,
            rows: None,
        };
        let count = batch.len();
        let value_bytes = batch.value_bytes();
        let shard = &mut **shard;
        let (served, answer_bytes) = match Op::from_raw(header.op) {
            Some(Op::Push) if !batch.have_offers() => {
                (serve_pushes(&mut self.endpoint, shard, peer, table, common), 0)
            }
            Some(Op::Pull) => {
                (serve_pulls(&mut self.endpoint, shard, peer, table, common), spec.row_bytes())
            }
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

/// Serves the pushes of a batch, up to one that has to wait or whose values are adopted.
#[inline(always)]
fn serve_pushes(
    endpoint: &mut Endpoint,
    shard: &mut dyn Shard,
    peer: PeerId,
    table: u32,
    common: Request<'_>,
) -> caravan_van::Result<()> {
    let is_alone = endpoint.batch().len() == 1;
    while let Some(Record { timestamp, key, values }) = endpoint.batch().first() {
        let request = Request { keys: from_ref(&key), values, pushes: true, ..common };
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

/// Serves the pulls of a batch, up to one that has to wait.
#[inline(always)]
fn serve_pulls(
    endpoint: &mut Endpoint,
    shard: &mut dyn Shard,
    peer: PeerId,
    table: u32,
    common: Request<'_>,
) -> caravan_van::Result<()> {
    let have_offers = endpoint.batch().have_offers();
    while let Some(Record { timestamp, key, .. }) = endpoint.batch().first() {
        let request = Request { keys: from_ref(&key), pulls: true, ..common };
        if shard.admit(&request) != Admission::Now {
            break;
        }
        let reply_to = ReplyTo { peer, table, timestamp };
        let offer = if have_offers { endpoint.batch().offer() } else { None };
        endpoint.batch_mut().advance();
        match offer {
            None => answer_pull(endpoint, shard, reply_to, &request)?,
            Some(offer) => place_pull(endpoint, shard, reply_to, offer, &request)?,
        }
    }
    Ok(())
}
