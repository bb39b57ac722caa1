//! Reading which messages a frame or a landing holds without taking them, for whoever watches a
//! transport. What is no message ends the reading: the decoder reports it.

use zerocopy::FromBytes;

use super::batch::TIMESTAMP;
use super::decode::check_header;
use super::{ALIGN, Header, Kind, Layout, Offer, TRAILER, flags};

/// A message that was read in passing.
pub(crate) struct Peeked<'a> {
    /// Its own kind, of a batch that of each record.
    pub(crate) kind: Kind,
    pub(crate) timestamp: u64,
    /// Memory that it names, if any.
    pub(crate) offer: Option<Offer>,
    /// What it shares with the other records of its image.
    pub(crate) header: &'a Header,
}

/// Calls `each` for every message of a frame. If its values are apart, they have `apart` bytes.
pub(crate) fn peek(frame: &[u8], apart: Option<usize>, mut each: impl FnMut(Peeked<'_>)) {
    let apart = apart.map(|bytes| bytes.next_multiple_of(ALIGN));
    let mut rest = frame;
    while let Ok((header, _)) = Header::ref_from_prefix(rest) {
        let Ok(kind) = check_header(header) else { return };
        let Ok(layout) = Layout::of(header, kind, rest.len(), apart) else { return };
        for record in 0..layout.count {
            let keys_at = layout.keys_at + record * layout.stride;
            let timestamp = match record {
                0 => Some(header.timestamp.get()),
                _ => number_at(rest, keys_at - layout.lead),
            };
            let Some(timestamp) = timestamp else { return };
            let has_offer = layout.flags & flags::OFFER != 0;
            let offer = has_offer.then(|| offer_before(rest, keys_at)).flatten();
            each(Peeked { kind: layout.kind, timestamp, offer, header });
        }
        rest = rest.get(layout.end.next_multiple_of(ALIGN)..).unwrap_or_default();
    }
}

/// As [`peek`], of the one message in a landing: its values, if they come first, and the rest.
pub(crate) fn peek_landed(landed: &[u8], values_first: bool, each: impl FnMut(Peeked<'_>)) {
    if !values_first {
        return peek(landed, None, each);
    }
    let Some(end) = landed.len().checked_sub(TRAILER) else { return };
    let head_bytes = number_at(landed, end).and_then(|bytes| usize::try_from(bytes).ok());
    let Some(at) = head_bytes.and_then(|bytes| end.checked_sub(bytes)) else { return };
    let Ok((header, _)) = Header::ref_from_prefix(&landed[at..end]) else { return };
    peek(&landed[at..end], Some(header.value_bytes.get() as usize), each);
}

fn number_at(bytes: &[u8], at: usize) -> Option<u64> {
    let number = bytes.get(at..)?.first_chunk::<TIMESTAMP>()?;
    Some(u64::from_le_bytes(*number))
}

fn offer_before(bytes: &[u8], end: usize) -> Option<Offer> {
    Offer::read_from_suffix(bytes.get(..end)?).ok().map(|(_, offer)| offer)
}
