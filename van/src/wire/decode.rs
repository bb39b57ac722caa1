//! Decodes messages and trusts none of their bytes: header, then sizes, then checksum, and only
//! then the sections.
//!
//! Path: worker > slicer > filter > message > **codec** > endpoint > transport.

use std::ops::Range;

use zerocopy::FromBytes;

use super::{
    ALIGN, CHECKSUM, DecodeError, Header, Kind, MAGIC, Offer, Section, TRAILER, VERSION, ascend,
    check_padding, checksum, delta, flags, key_outside, snappy, snappy_flag,
};
use crate::error::Result;
use crate::memory::{Buffer, Pool, Shared};
use crate::message::{KeyRange, Message, Sections};
use crate::transport::WRITE_BYTES_MAX;

/// Decodes as [`Message::decode`]. A carrier that checks every byte sends no checksum.
pub(crate) fn decode(image: Buffer, carrier_checks: bool, pool: &Pool) -> Result<Message> {
    let mut image = image;
    let (kind, layout) = read_head(&mut image, None, carrier_checks)?;
    read_sections(image.share(), kind, &layout, None, pool)
}

/// Decodes a long message whose values come first, at the start of a page, with the other sections
/// behind them:
///
/// ```text
/// values, zero padding to 8, header and other sections, their length u64
/// ```
pub(crate) fn decode_landed(landed: Buffer, carrier_checks: bool, pool: &Pool) -> Result<Message> {
    let mut values = landed;
    let have = values.len();
    let too_short =
        |need| DecodeError::TooShort { what: "a message behind its values", have, need };
    let head_bytes = values.last_chunk::<TRAILER>().map(|bytes| u64::from_le_bytes(*bytes));
    let head_bytes = head_bytes.ok_or_else(|| too_short(TRAILER))?;
    let head_bytes = usize::try_from(head_bytes).unwrap_or(usize::MAX);
    let at = (have - TRAILER).checked_sub(head_bytes).ok_or_else(|| too_short(head_bytes))?;
    let mut image = values.split_off(at);
    image.truncate(head_bytes);
    let (kind, layout) = read_head(&mut image, Some(values.len()), carrier_checks)?;
    let value_bytes = layout.values.len();
    check_padding(&values, value_bytes..values.len())?;
    values.truncate(value_bytes);
    read_sections(image.share(), kind, &layout, Some(values.share()), pool)
}

/// Decodes an image whose values are lent: they are `values`, and the image ends where they would
/// begin.
pub(crate) fn decode_lent(
    image: Buffer,
    values: Shared,
    carrier_checks: bool,
    pool: &Pool,
) -> Result<Message> {
    let offset = values.as_ptr().addr() % ALIGN;
    if offset != 0 {
        return Err(DecodeError::Misaligned { offset }.into());
    }
    let mut image = image;
    let apart = values.len().next_multiple_of(ALIGN);
    let (kind, layout) = read_head(&mut image, Some(apart), carrier_checks)?;
    let have = values.len();
    let need = layout.values.len();
    if have != need {
        return Err(DecodeError::ValuesApart { have, need }.into());
    }
    let message = read_sections(image.share(), kind, &layout, Some(values), pool)?;
    Ok(Message { is_lent: true, ..message })
}

/// Checks the header, the sizes and, if there is one, the checksum of an image that is no batch.
fn read_head(
    image: &mut Buffer,
    apart: Option<usize>,
    carrier_checks: bool,
) -> Result<(Kind, Layout), DecodeError> {
    let header = read_header(image)?;
    let kind = check_header(header)?;
    if let Kind::Requests | Kind::Replies = kind {
        let [keys, records, values] =
            [header.key_bytes, header.length_bytes, header.value_bytes].map(|n| n.get() as usize);
        return Err(DecodeError::Batch { keys, values, records });
    }
    let have = image.len();
    let layout = Layout::new(header, have, apart)?;
    if layout.end < have {
        return Err(DecodeError::TooLong { have, need: layout.end });
    }
    let found = header.checksum.get();
    if !carrier_checks {
        check_checksum(found, &mut image[..layout.covered])?;
    }
    Ok((kind, layout))
}

/// Decodes the sections behind a header. The values are `apart` if that is given.
#[inline(always)]
pub(super) fn read_sections(
    image: Shared,
    kind: Kind,
    layout: &Layout,
    apart: Option<Shared>,
    pool: &Pool,
) -> Result<Message> {
    if layout.keys.end < layout.lengths.start {
        check_padding(&image, layout.keys.end..layout.lengths.start)?;
    }
    if layout.lengths.end < layout.values.start {
        check_padding(&image, layout.lengths.end..layout.values.start)?;
    }
    let sections = Sections {
        keys_at: layout.keys.start as u32,
        key_bytes: layout.keys.len() as u32,
        length_bytes: layout.lengths.len() as u32,
        value_bytes: layout.values.len() as u32,
    };
    let flags = layout.flags;
    let timestamp = timestamp_of(&image);
    let mut message = Message { image, apart, timestamp, sections, kind, flags, is_lent: false };
    if flags & CODED != 0 {
        expand(&mut message, layout, pool)?;
    }
    let keys = check_keys(&message.image[layout.keys.start..], &message.sections, layout.range)?;
    if message.sections.length_bytes > 0 {
        check_lengths(message.sections.length_bytes as usize, keys)?;
    }
    Ok(message)
}

/// Flags of sections that are coded.
const CODED: u8 =
    flags::KEYS_DELTA | flags::KEYS_SNAPPY | flags::LENGTHS_SNAPPY | flags::VALUES_SNAPPY;

/// Replaces coded sections by decoded ones: keys and lengths behind a copy of the header, values in
/// memory of their own.
fn expand(message: &mut Message, layout: &Layout, pool: &Pool) -> Result<()> {
    let coded = message.image.clone();
    let unpack = |section, range: &Range<usize>| {
        let bytes = coded.slice(range.clone());
        match layout.flags & snappy_flag(section) {
            0 => Ok(bytes),
            _ => snappy::expand(section, &bytes, pool).map(Buffer::share),
        }
    };
    let mut keys = unpack(Section::Keys, &layout.keys)?;
    if layout.flags & flags::KEYS_DELTA != 0 {
        keys = delta::read(&keys, layout.range, pool)?.share();
    }
    let lengths = unpack(Section::Lengths, &layout.lengths)?;
    if message.apart.is_none() {
        message.apart = Some(unpack(Section::Values, &layout.values)?);
    }
    let keys_at = layout.keys.start;
    let lengths_at = (keys_at + keys.len()).next_multiple_of(ALIGN);
    let mut image = pool.allocate(lengths_at + lengths.len())?;
    image[..keys_at].copy_from_slice(&coded[..keys_at]);
    image[keys_at..keys_at + keys.len()].copy_from_slice(&keys);
    image[lengths_at..].copy_from_slice(&lengths);
    message.image = image.share();
    message.sections.key_bytes = keys.len() as u32;
    message.sections.length_bytes = lengths.len() as u32;
    Ok(())
}

pub(super) fn read_header(image: &[u8]) -> Result<&Header, DecodeError> {
    let offset = image.as_ptr().addr() % ALIGN;
    if offset != 0 {
        return Err(DecodeError::Misaligned { offset });
    }
    let (header, _) = Header::ref_from_prefix(image).map_err(|_| DecodeError::TooShort {
        what: "a message header",
        have: image.len(),
        need: size_of::<Header>(),
    })?;
    Ok(header)
}

#[inline]
fn timestamp_of(image: &[u8]) -> u64 {
    let (header, _) = Header::ref_from_prefix(image).expect("it was read before");
    header.timestamp.get()
}

#[inline]
pub(super) fn check_header(header: &Header) -> Result<Kind, DecodeError> {
    if header.magic.get() != MAGIC {
        return Err(DecodeError::Magic { magic: header.magic.get() });
    }
    if header.version != VERSION {
        return Err(DecodeError::Version { version: header.version });
    }
    let kind = Kind::from_raw(header.kind).ok_or(DecodeError::UnknownKind { kind: header.kind })?;
    if header.flags & !(flags::OFFER | flags::SIGNATURE) != 0 {
        check_flags(header, kind)?; // some section is coded or apart
    }
    Ok(kind)
}

fn check_flags(header: &Header, kind: Kind) -> Result<(), DecodeError> {
    let flags = header.flags;
    if flags & !flags::ALL != 0 {
        return Err(DecodeError::UnknownFlags { flags });
    }
    let apart_and_snappy = flags::VALUES_UNCOVERED | flags::VALUES_SNAPPY;
    if flags & apart_and_snappy == apart_and_snappy {
        return Err(DecodeError::Contradiction { flags, kind });
    }
    for (section, bytes, about) in [
        (Section::Keys, header.key_bytes, flags::KEYS_DELTA | flags::KEYS_SNAPPY),
        (Section::Lengths, header.length_bytes, flags::LENGTHS_SNAPPY),
        (Section::Values, header.value_bytes, flags::VALUES_SNAPPY | flags::VALUES_UNCOVERED),
    ] {
        if bytes.get() == 0 && flags & about != 0 {
            return Err(DecodeError::CodedEmpty { section, flags });
        }
    }
    Ok(())
}

/// Where the sections of an image lie: in order, each at a multiple of [`ALIGN`], all within the
/// image.
pub(super) struct Layout {
    pub(super) flags: u8,
    range: KeyRange,
    keys: Range<usize>,
    lengths: Range<usize>,
    /// Where the values lie, or would begin if they are apart.
    values: Range<usize>,
    /// Bytes that the checksum covers.
    pub(super) covered: usize,
    /// End of the image.
    pub(super) end: usize,
}

impl Layout {
    /// Checks that the sections that `header` announces lie within `have` bytes. If `apart` is
    /// given, the values take that many bytes elsewhere, with their padding.
    #[inline]
    pub(super) fn new(
        header: &Header,
        have: usize,
        apart: Option<usize>,
    ) -> Result<Layout, DecodeError> {
        let begin = header.range_begin.get();
        let end = header.range_end.get();
        let range = KeyRange::new(begin, end).ok_or(DecodeError::EmptyRange { begin, end })?;
        let flags = header.flags;
        let is_set = |flag| flags & flag != 0;
        let align = |end: u64| end.next_multiple_of(ALIGN as u64);
        // Three sections of 32-bit lengths cannot overflow 64 bits.
        let keys = size_of::<Header>()
            + signature_bytes(flags)
            + if is_set(flags::OFFER) { size_of::<Offer>() } else { 0 };
        let lengths = align(keys as u64 + u64::from(header.key_bytes.get()));
        let values = align(lengths + u64::from(header.length_bytes.get()));
        let values_end = values + u64::from(header.value_bytes.get());
        let end = match apart {
            None => values_end,
            Some(apart) => {
                let need = header.value_bytes.get() as usize;
                if !is_set(flags::VALUES_UNCOVERED) || need.next_multiple_of(ALIGN) != apart {
                    return Err(DecodeError::ValuesApart { have: apart, need });
                }
                values
            }
        };
        let need = usize::try_from(end).unwrap_or(usize::MAX);
        if have < need {
            return Err(DecodeError::TooShort { what: "its sections", have, need });
        }
        if need > WRITE_BYTES_MAX {
            return Err(DecodeError::TooLong { have, need: WRITE_BYTES_MAX });
        }
        let lengths = lengths as usize;
        let values = values as usize;
        Ok(Layout {
            flags,
            range,
            keys: keys..keys + header.key_bytes.get() as usize,
            lengths: lengths..lengths + header.length_bytes.get() as usize,
            values: values..values_end as usize,
            covered: if is_set(flags::VALUES_UNCOVERED) { values } else { need },
            end: need,
        })
    }
}

/// Bytes of the signature, the first section.
#[inline]
fn signature_bytes(flags: u8) -> usize {
    if flags & flags::SIGNATURE == 0 { 0 } else { size_of::<u64>() }
}

pub(super) fn check_checksum(found: u32, covered: &mut [u8]) -> Result<(), DecodeError> {
    match blanked(covered) {
        computed if computed == found => Ok(()),
        computed => Err(DecodeError::Checksum { found, computed }),
    }
}

/// Computes the checksum of a frame whose header holds 0 for it, as the sender did. It blanks the
/// field in place, so that the frame stays one piece.
#[inline(always)]
pub(super) fn blanked(covered: &mut [u8]) -> u32 {
    covered[CHECKSUM].fill(0);
    checksum(covered)
}

/// Checks the decoded keys at the start of `bytes`, and returns their number.
#[inline]
fn check_keys(bytes: &[u8], sections: &Sections, range: KeyRange) -> Result<usize, DecodeError> {
    let bytes = &bytes[..sections.key_bytes as usize];
    let section = Section::Keys;
    let item = size_of::<u64>();
    let keys = <[u64]>::ref_from_bytes(bytes).map_err(|_| DecodeError::PartialItem {
        section,
        bytes: bytes.len(),
        item,
    })?;
    if keys.len() > 1 && !ascend(keys) {
        let index = keys.windows(2).take_while(|pair| pair[0] < pair[1]).count() + 1;
        let previous = keys[index - 1];
        let key = keys[index];
        return Err(DecodeError::KeyOrder { index, key, previous });
    }
    if let Some(key) = key_outside(keys, range) {
        let begin = range.begin();
        let end = range.end();
        return Err(DecodeError::KeyOutsideRange { key, begin, end });
    }
    Ok(keys.len())
}

fn check_lengths(bytes: usize, keys: usize) -> Result<(), DecodeError> {
    let section = Section::Lengths;
    let item = size_of::<u32>();
    if !bytes.is_multiple_of(item) {
        return Err(DecodeError::PartialItem { section, bytes, item });
    }
    let lengths = bytes / item;
    if keys != 0 && lengths != keys {
        return Err(DecodeError::LengthCount { lengths, keys });
    }
    Ok(())
}
