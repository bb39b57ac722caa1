//! A batch: one image of several short messages that differ only in timestamp, offer, key and
//! values. Its messages share a header, and each is a record.
//!
//! ```text
//! header, origin, offer, key, values, zeros to 8    the first, as it would be alone
//! timestamp, offer, key, values, zeros to 8         each of those behind it: a record
//! ```
//!
//! Either all messages have an offer, or none has. A request names one key, a reply none. The kind
//! in the header marks the batch. A batch has no lengths, so `length_bytes` holds the total length
//! of the records. `message.rs` reads them.
//!
//! Path: worker > slicer > filter > message > **codec** > endpoint > transport.

use zerocopy::little_endian::U32;
use zerocopy::{FromBytes, IntoBytes};

use super::{ALIGN, Header, Kind, Offer, Origin};
use crate::message::{Draft, KeyRange};

/// Bytes of a record's timestamp, in front of its offer, if any, and its key.
pub(super) const TIMESTAMP: usize = size_of::<u64>();

/// Properties that the messages of one batch have in common.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(crate) struct BatchKey {
    kind: Kind,
    op: u8,
    command: i32,
    table: u32,
    clock: u64,
    range: KeyRange,
    origin: Option<Origin>,
    has_offers: bool,
    value_bytes: usize,
}

impl BatchKey {
    /// Returns the key of a message to which others can be added as records, if they can.
    pub(crate) fn of(draft: &Draft<'_>) -> Option<BatchKey> {
        let Draft { kind, op, command, table, clock, range, origin, .. } = *draft;
        keys_of(kind)?;
        let has_offers = draft.offer.is_some();
        let value_bytes = draft.values.len();
        let key =
            BatchKey { kind, op, command, table, clock, range, origin, has_offers, value_bytes };
        key.fits(draft).then_some(key)
    }

    /// Whether a message belongs to this batch.
    #[inline(always)]
    pub(crate) fn fits(&self, draft: &Draft<'_>) -> bool {
        draft.keys.len() == usize::from(self.kind == Kind::Request)
            && draft.values.len() == self.value_bytes
            && (draft.kind, draft.op, draft.table) == (self.kind, self.op, self.table)
            && (draft.command, draft.clock) == (self.command, self.clock)
            && draft.range == self.range
            && draft.origin == self.origin
            && draft.offer.is_some() == self.has_offers
            && draft.lengths.is_empty()
            && draft.signature.is_none()
    }

    /// The table and the value bytes, if the messages are replies with only values.
    pub(crate) fn reply(&self) -> Option<(u32, usize)> {
        let BatchKey { kind, op, command, table, clock, range, origin, has_offers, value_bytes } =
            *self;
        let is_plain = (kind, op, command, clock, range) == (Kind::Reply, 0, 0, 0, KeyRange::ALL);
        (is_plain && !has_offers && origin.is_none()).then_some((table, value_bytes))
    }

    /// Whether these are requests, forwarded or not, that offer nothing.
    pub(crate) fn is_of_requests(&self) -> bool {
        self.kind == Kind::Request && !self.has_offers
    }

    pub(crate) fn range(&self) -> KeyRange {
        self.range
    }

    pub(crate) fn value_bytes(&self) -> usize {
        self.value_bytes
    }

    #[inline]
    pub(crate) fn record_bytes(&self) -> usize {
        let keys = if self.kind == Kind::Request { size_of::<u64>() } else { 0 };
        let offer = if self.has_offers { size_of::<Offer>() } else { 0 };
        TIMESTAMP + offer + keys + self.value_bytes.next_multiple_of(ALIGN)
    }
}

/// Number of keys of each message in a batch of this kind, if there are such batches.
#[inline]
pub(super) fn keys_of(kind: Kind) -> Option<usize> {
    match kind {
        Kind::Request | Kind::Requests => Some(1),
        Kind::Reply | Kind::Replies => Some(0),
        Kind::Failure | Kind::Want | Kind::Grant => None,
    }
}

/// Writes the offer, key and values of a draft that has a [`BatchKey`], and zeros into the rest of
/// `place`.
///
/// # Panics
/// On a bug of the caller: a key outside the range, or a place that is too short.
#[inline]
pub(crate) fn write_sections(draft: &mut Draft<'_>, place: &mut [u8]) {
    let mut rest = place;
    if let Some(offer) = &draft.offer {
        let (place, others) = rest.split_at_mut(size_of::<Offer>());
        place.copy_from_slice(offer.as_bytes());
        rest = others;
    }
    if let [key] = draft.keys {
        assert!(draft.range.contains(*key), "key {key} lies outside of {:?}", draft.range);
        let (place, values) = rest.split_first_chunk_mut().expect("room for a key");
        *place = key.to_le_bytes();
        rest = values;
    }
    let (values, padding) = rest.split_at_mut(draft.values.len());
    draft.values.write(values);
    if !padding.is_empty() {
        padding.fill(0);
    }
}

/// Marks `image` as a batch whose last `bytes` bytes are records.
pub(crate) fn close_batch(image: &mut [u8], bytes: usize) {
    let (header, _) = Header::mut_from_prefix(image).expect("an image begins with it");
    let is_request = header.kind == Kind::Request as u8;
    header.kind = if is_request { Kind::Requests } else { Kind::Replies } as u8;
    header.length_bytes = U32::new(bytes as u32);
}
