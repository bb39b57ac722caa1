//! Requests to tables with copies, each kept until it is answered, so that it can be posted again.
//!
//! The keys and values of a request lie in one slot of the worker's memory, which the next request
//! takes over: keeping one allocates nothing once warm. Long values are sent from there.
//!
//! Path: **worker** > slicer > filter > message > codec > endpoint > transport.

use caravan_van::wire::Kind;
use caravan_van::{Draft, KeyRange, Pool, Shared, Value, Values};

use crate::tracker::slot_of;

/// All parts of requests that are kept.
#[derive(Default)]
pub(super) struct KeptRequests {
    /// By the slot of their timestamp.
    slots: Vec<Option<Kept>>,
    len: usize,
}

/// A part of a request, to be posted again.
pub(super) struct Kept {
    pub(super) timestamp: u64,
    pub(super) server: usize,
    pub(super) table: u32,
    pub(super) range: KeyRange,
    pub(super) op: u8,
    command: i32,
    pub(super) clock: u64,
    /// Values that were copied, the keys and the lengths, each at a multiple of 8 bytes.
    body: Shared,
    value_bytes: usize,
    keys: usize,
    lengths: usize,
    /// Values that were not copied.
    shared: Option<Shared>,
}

impl KeptRequests {
    #[inline]
    pub(super) fn is_empty(&self) -> bool {
        self.len == 0
    }

    /// Keeps a part under its timestamp.
    #[inline]
    pub(super) fn insert(&mut self, kept: Kept) {
        let at = slot_of(kept.timestamp);
        if self.slots.len() <= at {
            self.slots.resize_with(at + 1, || None);
        }
        self.len += usize::from(self.slots[at].is_none());
        self.slots[at] = Some(kept);
    }

    #[inline]
    pub(super) fn get(&self, timestamp: u64) -> Option<&Kept> {
        let kept = self.slots.get(slot_of(timestamp))?.as_ref();
        kept.filter(|kept| kept.timestamp == timestamp)
    }

    /// Keeps a part no longer; returns whether it was kept.
    #[inline]
    pub(super) fn remove(&mut self, timestamp: u64) -> bool {
        let Some(slot) = self.slots.get_mut(slot_of(timestamp)) else { return false };
        let kept = slot.take_if(|kept| kept.timestamp == timestamp);
        self.len -= usize::from(kept.is_some());
        kept.is_some()
    }

    pub(super) fn iter(&self) -> impl Iterator<Item = &Kept> {
        self.slots.iter().flatten()
    }

    pub(super) fn iter_mut(&mut self) -> impl Iterator<Item = &mut Kept> {
        self.slots.iter_mut().flatten()
    }

    /// Keeps nothing for a server any longer.
    pub(super) fn give_up(&mut self, server: usize) {
        for slot in &mut self.slots {
            self.len -= usize::from(slot.take_if(|kept| kept.server == server).is_some());
        }
    }
}

impl Kept {
    /// Keeps the message of a draft to `server` with these keys.
    ///
    /// # Errors
    /// [`caravan_van::Error::OutOfMemory`].
    #[inline]
    pub(super) fn of(
        server: usize,
        draft: &Draft<'_>,
        keys: &[u64],
        memory: &Pool,
    ) -> caravan_van::Result<Kept> {
        let Draft { timestamp, table, range, op, command, clock, lengths, .. } = *draft;
        let (copied, shared) = match &draft.values {
            Values::Copied(bytes) => (*bytes, None),
            Values::Apart(shared) => (&[][..], Some(shared.clone())),
            Values::None | Values::Written(..) => (&[][..], None),
        };
        let (keys, key_count) = (u64::bytes(keys), keys.len());
        let (lengths, length_count) = (u32::bytes(lengths), lengths.len());
        let keys_at = copied.len().next_multiple_of(8);
        let lengths_at = keys_at + keys.len();
        let mut body = memory.allocate(lengths_at + lengths.len())?;
        body[..copied.len()].copy_from_slice(copied);
        body[keys_at..lengths_at].copy_from_slice(keys);
        body[lengths_at..].copy_from_slice(lengths);
        Ok(Kept {
            timestamp,
            server,
            table,
            range,
            op,
            command,
            clock,
            body: body.share(),
            value_bytes: copied.len(),
            keys: key_count,
            lengths: length_count,
            shared,
        })
    }

    /// Its values, where they are kept.
    pub(super) fn values(&self) -> Shared {
        self.shared.clone().unwrap_or_else(|| self.body.slice(..self.value_bytes))
    }

    /// Its message.
    pub(super) fn draft(&self) -> Draft<'_> {
        let keys_at = self.value_bytes.next_multiple_of(8);
        let lengths_at = keys_at + self.keys * size_of::<u64>();
        let lengths = &self.body[lengths_at..][..self.lengths * size_of::<u32>()];
        Draft {
            op: self.op,
            command: self.command,
            table: self.table,
            timestamp: self.timestamp,
            clock: self.clock,
            range: self.range,
            keys: u64::view(&self.body[keys_at..lengths_at]).unwrap_or_default(),
            lengths: u32::view(lengths).unwrap_or_default(),
            values: match &self.shared {
                Some(shared) => Values::Apart(shared.clone()),
                None => Values::Copied(&self.body[..self.value_bytes]),
            },
            ..Draft::new(Kind::Request)
        }
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, reason = "tests")]

    use super::*;

    fn kept(timestamp: u64, server: usize, pool: &Pool) -> Kept {
        let (keys, lengths, values) = ([timestamp, timestamp + 5], [1, 2], [timestamp as u8; 3]);
        let draft = Draft {
            op: 3,
            command: -4,
            table: 5,
            timestamp,
            clock: 6,
            lengths: &lengths,
            values: Values::Copied(&values),
            ..Draft::new(Kind::Request)
        };
        Kept::of(server, &draft, &keys, pool).unwrap()
    }

    #[test]
    fn what_is_kept_is_what_was_posted_until_it_is_answered() {
        let (pool, mut all) = (Pool::new(1 << 20), KeptRequests::default());
        let timestamp = |count: u64, slot: u64| count << 20 | slot;
        let [first, second, third] = [timestamp(1, 0), timestamp(2, 7), timestamp(3, 0)];
        all.insert(kept(first, 1, &pool));
        all.insert(kept(second, 2, &pool));
        let draft = all.get(second).unwrap().draft();
        assert_eq!((draft.keys, draft.lengths), (&[second, second + 5][..], &[1, 2][..]));
        assert_eq!((draft.op, draft.command, draft.table, draft.clock), (3, -4, 5, 6));
        assert!(matches!(draft.values, Values::Copied([value, _, _]) if *value == second as u8));
        assert!(all.get(third).is_none() && !all.remove(third), "another has its slot");
        assert!(all.remove(first) && !all.remove(first));
        all.insert(kept(third, 2, &pool));
        assert_eq!(all.iter().count(), 2);
        all.give_up(2);
        assert!(all.is_empty() && all.iter_mut().next().is_none());
    }
}
