//! Runs: short messages of one lane that differ in nothing but timestamp, key and values are one image.
//!
//! ```text
//! header, key, values, zeros to 8        the first, as it would be alone
//! timestamp, key, values, zeros to 8     each of those behind it: a record
//! ```
//!
//! Requests are about one key, replies name none. The header's kind says that it is a run, and its `length_bytes`, as there are no
//! lengths, how long all records are together. Nobody above the codec sees runs: each record is a message again.
//!
//! Path: worker > slicer > filter > message > **codec** > endpoint > transport.

use zerocopy::FromBytes;
use zerocopy::little_endian::U32;

use super::{ALIGN, DecodeError, Entry, Header, Kind, check_padding};
use crate::memory::Shared;
use crate::message::{Draft, KeyRange, Message, Sections};

/// Bytes of a record before its key.
const TIMESTAMP: usize = size_of::<u64>();

/// What messages have in common that can be records of one run.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(crate) struct Shape {
    kind: Kind,
    op: u8,
    table: u32,
    clock: u64,
    range: KeyRange,
    value_bytes: usize,
}

impl Shape {
    /// That of replies that say nothing more.
    pub(crate) const BARE: Shape = Shape {
        kind: Kind::Reply,
        op: 0,
        table: 0,
        clock: 0,
        range: KeyRange::ALL,
        value_bytes: 0,
    };

    /// That of a message whose like can follow it as records; nothing if none can.
    pub(crate) fn of(draft: &Draft<'_>) -> Option<Shape> {
        let Draft { kind, op, table, clock, range, .. } = *draft;
        keys_of(kind)?;
        let shape = Shape { kind, op, table, clock, range, value_bytes: draft.values.len() };
        shape.fits(draft).then_some(shape)
    }

    /// Whether a message is one of these.
    #[inline]
    pub(crate) fn fits(&self, draft: &Draft<'_>) -> bool {
        draft.keys.len() == usize::from(self.kind == Kind::Request)
            && draft.values.len() == self.value_bytes
            && (draft.kind, draft.op, draft.table) == (self.kind, self.op, self.table)
            && (draft.clock, draft.range) == (self.clock, self.range)
            && draft.lengths.is_empty()
            && draft.offer.is_none()
            && draft.signature.is_none()
    }

    #[inline]
    pub(crate) fn record_bytes(&self) -> usize {
        let keys = if self.kind == Kind::Request { size_of::<u64>() } else { 0 };
        TIMESTAMP + keys + self.value_bytes.next_multiple_of(ALIGN)
    }
}

/// Keys of each message in a run of this kind, if there are any.
#[inline]
fn keys_of(kind: Kind) -> Option<usize> {
    match kind {
        Kind::Request | Kind::Requests => Some(1),
        Kind::Reply | Kind::Replies => Some(0),
        Kind::Failure | Kind::Want | Kind::Grant => None,
    }
}

/// Lays a draft that has a [`Shape`] down as a record, which fills `place`.
///
/// # Panics
/// On a bug of the caller: a key outside of the range, a place of another length.
#[inline]
pub(crate) fn write_record(draft: &mut Draft<'_>, place: &mut [u8]) {
    let (timestamp, sections) = place.split_first_chunk_mut().expect("room for a record");
    *timestamp = draft.timestamp.to_le_bytes();
    write_sections(draft, sections);
}

/// Lays its key and values down, and zeros in what is left of `place`.
///
/// # Panics
/// As [`write_record`].
#[inline]
pub(crate) fn write_sections(draft: &mut Draft<'_>, place: &mut [u8]) {
    let mut rest = place;
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

/// Says in the header of `image` that the last `bytes` bytes of it are records.
pub(crate) fn close_run(image: &mut [u8], bytes: usize) {
    let (header, _) = Header::mut_from_prefix(image).expect("an image begins with it");
    let is_request = header.kind == Kind::Request as u8;
    header.kind = if is_request { Kind::Requests } else { Kind::Replies } as u8;
    header.length_bytes = U32::new(bytes as u32);
}

/// The messages of a received run that have not been read yet.
pub(super) struct Run {
    image: Shared,
    kind: Kind,
    range: KeyRange,
    /// Where the next message's key would stand, or its values.
    at: usize,
    /// From there to the next one's timestamp.
    len: usize,
    key_bytes: usize,
    value_bytes: usize,
    end: usize,
    timestamp: u64,
}

impl Run {
    /// How long the run is that begins with `header`, of which there are `have` bytes.
    ///
    /// # Errors
    /// Says what is wrong with it.
    pub(super) fn len(header: &Header, kind: Kind, have: usize) -> Result<usize, DecodeError> {
        let [keys, records, values] =
            [header.key_bytes, header.length_bytes, header.value_bytes].map(|n| n.get() as usize);
        let len = keys.saturating_add(values.next_multiple_of(ALIGN)); // of 32 bits each
        let stride = TIMESTAMP + len;
        let is_key = keys_of(kind).is_some_and(|count| keys == count * size_of::<u64>());
        if header.flags != 0 || !is_key || records == 0 || !records.is_multiple_of(stride) {
            return Err(DecodeError::Run { keys, values, records });
        }
        let need = size_of::<Header>() + len + records;
        if have < need {
            return Err(DecodeError::TooShort { what: "its records", have, need });
        }
        Ok(need)
    }

    /// The run in `image`, which is as long as [`Run::len`] says.
    pub(super) fn new(image: Shared, kind: Kind) -> Result<Run, DecodeError> {
        let (header, _) = Header::ref_from_prefix(&image).expect("it was read before");
        let (begin, end) = (header.range_begin.get(), header.range_end.get());
        let range = KeyRange::new(begin, end).ok_or(DecodeError::EmptyRange { begin, end })?;
        let (key_bytes, value_bytes) =
            (header.key_bytes.get() as usize, header.value_bytes.get() as usize);
        Ok(Run {
            kind: if kind == Kind::Requests { Kind::Request } else { Kind::Reply },
            range,
            at: size_of::<Header>(),
            len: key_bytes + value_bytes.next_multiple_of(ALIGN),
            key_bytes,
            value_bytes,
            end: image.len(),
            timestamp: header.timestamp.get(),
            image,
        })
    }

    /// Whether all were read.
    #[inline]
    pub(super) fn is_over(&self) -> bool {
        self.at > self.end
    }

    /// Reads the next one, of which there is one.
    #[inline(always)]
    pub(super) fn next(&mut self) -> Result<Entry, DecodeError> {
        let (timestamp, at) = (self.timestamp, self.at);
        let next = at + self.len;
        self.at = next + TIMESTAMP;
        if next < self.end {
            let bytes = self.image[next..].first_chunk().expect("whole records");
            self.timestamp = u64::from_le_bytes(*bytes);
        }
        if self.len == 0 {
            return Ok(Entry::Answer(timestamp));
        }
        if self.key_bytes > 0 {
            let bytes = self.image[at..].first_chunk().expect("whole records");
            let (key, range) = (u64::from_le_bytes(*bytes), self.range);
            if !range.contains(key) {
                let (begin, end) = (range.begin(), range.end());
                return Err(DecodeError::KeyOutsideRange { key, begin, end });
            }
        }
        let values = at + self.key_bytes;
        if !self.value_bytes.is_multiple_of(ALIGN) {
            check_padding(&self.image, values + self.value_bytes..next)?;
        }
        let sections = Sections {
            keys_at: at as u32,
            key_bytes: self.key_bytes as u32,
            length_bytes: 0,
            values_at: values as u32,
            value_bytes: self.value_bytes as u32,
        };
        let (image, kind) = (self.image.clone(), self.kind);
        let (apart, flags, is_lent) = (None, 0, false);
        Ok(Entry::Message(Message { image, apart, timestamp, sections, kind, flags, is_lent }))
    }
}
