//! Requests that wait for the clock of their shard.

use std::collections::BTreeMap;
use std::rc::Rc;

use caravan_van::{KeyRange, Message, PeerId};

use crate::filter::List;

/// A request that waits for its shard's clock.
pub(super) struct Parked {
    pub(super) peer: PeerId,
    pub(super) message: Message,
    pub(super) list: Option<Rc<List>>,
    pub(super) clock: u64,
}

/// By table, the requests that wait, in the order of their arrival. No table has an empty list.
#[derive(Default)]
pub(super) struct Parking {
    by_table: BTreeMap<u32, Vec<Parked>>,
}

impl Parking {
    /// Whether requests wait for the clock of a table's shard, which each request may advance.
    #[inline(always)]
    pub(super) fn is_awaited(&self, table: u32) -> bool {
        !self.by_table.is_empty() && self.by_table.contains_key(&table)
    }

    /// Parks a request, if there is one.
    pub(super) fn park(&mut self, table: u32, parked: Option<Parked>) {
        if let Some(parked) = parked {
            self.by_table.entry(table).or_default().push(parked);
        }
    }

    /// Takes out all requests of a table.
    pub(super) fn take(&mut self, table: u32) -> Vec<Parked> {
        self.by_table.remove(&table).unwrap_or_default()
    }

    /// Puts back those that [`Parking::take`] took out, and that still have to wait.
    pub(super) fn put_back(&mut self, table: u32, parked: Vec<Parked>) {
        if !parked.is_empty() {
            self.by_table.insert(table, parked);
        }
    }

    /// Takes out the requests to one shard of a table.
    pub(super) fn take_shard(&mut self, table: u32, range: KeyRange) -> Vec<Parked> {
        let of_it = |parked: &mut Parked| range.contains(parked.message.range().begin());
        let mut parked = self.take(table);
        let taken = parked.extract_if(.., of_it).collect();
        self.put_back(table, parked);
        taken
    }

    /// Drops the requests of a lost peer.
    pub(super) fn forget(&mut self, peer: PeerId) {
        self.by_table.values_mut().for_each(|parked| parked.retain(|parked| parked.peer != peer));
        self.by_table.retain(|_, parked| !parked.is_empty());
    }
}
