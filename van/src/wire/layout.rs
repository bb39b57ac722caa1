//! Where the sections of a received image lie, checked against its length before anything else is
//! read from it.
//!
//! Path: worker > slicer > filter > message > **codec** > endpoint > transport.

use zerocopy::little_endian::U64;

use super::batch::{TIMESTAMP, keys_of};
use super::{ALIGN, DecodeError, Header, Kind, Offer, Origin, flags};
use crate::message::KeyRange;
use crate::transport::WRITE_BYTES_MAX;

/// Layout of an image: one or more records, whose sections lie in order, each at a multiple of
/// [`ALIGN`], all within the image.
#[derive(Clone, Copy)]
pub(crate) struct Layout {
    /// Kind of each record.
    pub(crate) kind: Kind,
    pub(crate) flags: u8,
    /// Offset of the first record's keys.
    pub(crate) keys_at: usize,
    /// Bytes of each record's keys on the wire, as for the sections below.
    pub(crate) key_bytes: usize,
    pub(crate) length_bytes: usize,
    pub(crate) value_bytes: usize,
    /// Distance from a record's keys to its values, or to where they would begin if they are apart.
    pub(crate) values_from: usize,
    /// Bytes of a record before its keys.
    pub(crate) lead: usize,
    /// Distance from one record to the next.
    pub(crate) stride: usize,
    /// Number of records.
    pub(crate) count: usize,
    /// Bytes that the checksum covers.
    pub(super) covered: usize,
    /// End of the image.
    pub(super) end: usize,
    /// The words of the header that determine this layout.
    words: [u64; 5],
}

/// Returns the words of a header that are equal in images with the same layout.
#[inline(always)]
fn layout_words(header: &Header) -> [u64; 5] {
    let [kind, _, _, _, begin, end, keys, values]: &[U64; 8] = zerocopy::transmute_ref!(header);
    let values = values.get() & u64::from(u32::MAX); // without the checksum above them
    [kind.get(), begin.get(), end.get(), keys.get(), values]
}

/// Bytes between the header and the keys of the first record.
#[inline]
fn bytes_before_keys(flags: u8) -> usize {
    let has = |flag: u8, bytes: usize| if flags & flag == 0 { 0 } else { bytes };
    has(flags::ORIGIN, Origin::BYTES)
        + has(flags::SIGNATURE, size_of::<u64>())
        + has(flags::OFFER, size_of::<Offer>())
}

impl Layout {
    /// Layout of no image, because no image is that long.
    pub(super) const NONE: Layout = Layout {
        kind: Kind::Reply,
        flags: 0,
        keys_at: 0,
        key_bytes: 0,
        length_bytes: 0,
        value_bytes: 0,
        values_from: 0,
        lead: 0,
        stride: 0,
        count: 0,
        covered: 0,
        end: usize::MAX,
        words: [0; 5],
    };

    /// Whether an image of `bytes` bytes that begins with `header` has this layout; its sizes need
    /// no other check then, and no section is coded.
    #[inline(always)]
    pub(super) fn matches(&self, header: &Header, bytes: usize) -> bool {
        let differ = |so_far, (word, own): (&u64, &u64)| so_far | (word ^ own);
        self.end == bytes && layout_words(header).iter().zip(&self.words).fold(0, differ) == 0
    }

    /// Checks that the sections that `header` announces lie within `have` bytes. If `apart` is
    /// given, the values take that many bytes elsewhere, with their padding.
    ///
    /// # Errors
    /// The reason why the image is invalid.
    #[inline]
    pub(super) fn of(
        header: &Header,
        kind: Kind,
        have: usize,
        apart: Option<usize>,
    ) -> Result<Layout, DecodeError> {
        let begin = header.range_begin.get();
        let end = header.range_end.get();
        KeyRange::new(begin, end).ok_or(DecodeError::EmptyRange { begin, end })?;
        let layout = match kind {
            Kind::Requests | Kind::Replies => Self::of_batch(header, kind, have)?,
            _ => Self::of_one(header, kind, have, apart)?,
        };
        if have < layout.end {
            let what = if layout.count > 1 { "its records" } else { "its sections" };
            return Err(DecodeError::TooShort { what, have, need: layout.end });
        }
        Ok(layout)
    }

    /// Layout of an image of one record.
    #[inline]
    fn of_one(
        header: &Header,
        kind: Kind,
        have: usize,
        apart: Option<usize>,
    ) -> Result<Layout, DecodeError> {
        let flags = header.flags;
        let [key_bytes, length_bytes, value_bytes] =
            [header.key_bytes, header.length_bytes, header.value_bytes].map(|n| n.get() as usize);
        let keys_at = size_of::<Header>() + bytes_before_keys(flags);
        // Three sections of 32-bit lengths cannot overflow 64 bits.
        let align = |end: u64| end.next_multiple_of(ALIGN as u64);
        let values_from = align(align(key_bytes as u64) + length_bytes as u64);
        let values_at = keys_at as u64 + values_from;
        let end = match apart {
            None => values_at + value_bytes as u64,
            Some(apart) => {
                let need = value_bytes;
                let fits = need.checked_next_multiple_of(ALIGN) == Some(apart);
                if flags & flags::VALUES_UNCOVERED == 0 || !fits {
                    return Err(DecodeError::ValuesApart { have: apart, need });
                }
                values_at
            }
        };
        let need = usize::try_from(end).unwrap_or(usize::MAX);
        if need > WRITE_BYTES_MAX {
            return match have < need {
                true => Err(DecodeError::TooShort { what: "its sections", have, need }),
                false => Err(DecodeError::TooLong { have, need: WRITE_BYTES_MAX }),
            };
        }
        let is_plain = flags & !flags::PLAIN == 0;
        let is_uncovered = flags & flags::VALUES_UNCOVERED != 0;
        Ok(Layout {
            kind,
            flags,
            keys_at,
            key_bytes,
            length_bytes,
            value_bytes,
            values_from: values_from as usize,
            lead: TIMESTAMP,
            stride: 0,
            count: 1,
            covered: if is_uncovered { values_at as usize } else { need },
            end: need,
            words: if is_plain { layout_words(header) } else { [0; 5] },
        })
    }

    /// Layout of an image of several records, which `batch.rs` writes.
    #[inline]
    fn of_batch(header: &Header, kind: Kind, have: usize) -> Result<Layout, DecodeError> {
        let [keys, records, values] =
            [header.key_bytes, header.length_bytes, header.value_bytes].map(|n| n.get() as usize);
        let flags = header.flags;
        let offer = if flags & flags::OFFER == 0 { 0 } else { size_of::<Offer>() };
        let sections = keys.saturating_add(values.saturating_add(ALIGN - 1) / ALIGN * ALIGN);
        let record = TIMESTAMP.saturating_add(offer).saturating_add(sections);
        if flags & !(flags::OFFER | flags::ORIGIN) != 0
            || keys_of(kind).is_none_or(|count| keys != size_of::<u64>() * count)
            || records == 0
            || !records.is_multiple_of(record)
        {
            return Err(DecodeError::Batch { keys, values, records });
        }
        let keys_at = size_of::<Header>() + bytes_before_keys(flags);
        let first = keys_at + sections;
        let end = first.saturating_add(records);
        if have < end {
            return Err(DecodeError::TooShort { what: "its records", have, need: end });
        }
        Ok(Layout {
            kind: if kind == Kind::Requests { Kind::Request } else { Kind::Reply },
            flags,
            keys_at,
            key_bytes: keys,
            length_bytes: 0,
            value_bytes: values,
            values_from: keys,
            lead: TIMESTAMP + offer,
            stride: record,
            count: 1 + records / record,
            covered: end,
            end,
            words: layout_words(header),
        })
    }
}
