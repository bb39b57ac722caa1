//! Decodes messages and trusts none of their bytes: header, then sizes, then checksum, and only
//! then the sections.
//!
//! Path: worker > slicer > filter > message > **codec** > endpoint > transport.

use zerocopy::FromBytes;

use super::{
    ALIGN, CHECKSUM, DecodeError, Header, Kind, Layout, MAGIC, Section, TRAILER, VERSION, ascend,
    check_padding, checksum, delta, flags, snappy, snappy_flag,
};
use crate::error::Result;
use crate::memory::{Buffer, Pool, Shared};
use crate::message::{KeyRange, Message};

/// Decodes as [`Message::decode`]; none of the records is open yet. A carrier that checks every
/// byte sends no checksum.
pub(crate) fn decode(image: Buffer, carrier_checks: bool, pool: &Pool) -> Result<Message> {
    let mut image = image;
    let layout = read_head(&mut image, None, carrier_checks)?;
    Message::new(&layout, image.share(), None, pool)
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
    let layout = read_head(&mut image, Some(values.len()), carrier_checks)?;
    check_padding(&values, layout.value_bytes..values.len())?;
    values.truncate(layout.value_bytes);
    Message::new(&layout, image.share(), Some(values.share()), pool)
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
    let layout = read_head(&mut image, Some(apart), carrier_checks)?;
    let have = values.len();
    let need = layout.value_bytes;
    if have != need {
        return Err(DecodeError::ValuesApart { have, need }.into());
    }
    let mut message = Message::new(&layout, image.share(), Some(values), pool)?;
    message.is_lent = true;
    Ok(message)
}

/// Checks the header, the sizes and, if there is one, the checksum of an image that is no batch.
fn read_head(
    image: &mut Buffer,
    apart: Option<usize>,
    carrier_checks: bool,
) -> Result<Layout, DecodeError> {
    let header = read_header(image)?;
    let kind = check_header(header)?;
    if let Kind::Requests | Kind::Replies = kind {
        let [keys, records, values] =
            [header.key_bytes, header.length_bytes, header.value_bytes].map(|n| n.get() as usize);
        return Err(DecodeError::Batch { keys, values, records });
    }
    let have = image.len();
    let layout = Layout::of(header, kind, have, apart)?;
    if layout.end < have {
        return Err(DecodeError::TooLong { have, need: layout.end });
    }
    let found = header.checksum.get();
    if !carrier_checks {
        check_checksum(found, &mut image[..layout.covered])?;
    }
    Ok(layout)
}

/// Replaces coded sections of a message by decoded ones: keys and lengths behind a copy of the
/// header, values in memory of their own.
///
/// # Errors
/// The reason why they are invalid; [`crate::Error::OutOfMemory`].
#[cold]
pub(crate) fn expand(message: &mut Message, layout: &Layout, pool: &Pool) -> Result<()> {
    let Layout { flags, keys_at, key_bytes, length_bytes, value_bytes, values_from, .. } = *layout;
    let unpack = |section, at: usize, len: usize| {
        let bytes = message.part(at..at + len);
        match flags & snappy_flag(section) {
            0 => Ok(bytes),
            _ => snappy::expand(section, &bytes, pool).map(Buffer::share),
        }
    };
    let mut keys = unpack(Section::Keys, keys_at, key_bytes)?;
    if flags & flags::KEYS_DELTA != 0 {
        keys = delta::read(&keys, message.range(), pool)?.share();
    }
    let lengths_at = keys_at + key_bytes.next_multiple_of(ALIGN);
    let lengths = unpack(Section::Lengths, lengths_at, length_bytes)?;
    let values = match message.apart.is_some() {
        true => None,
        false => Some(unpack(Section::Values, keys_at + values_from, value_bytes)?),
    };
    let lengths_at = (keys_at + keys.len()).next_multiple_of(ALIGN);
    let mut image = pool.allocate(lengths_at + lengths.len())?;
    image[..keys_at].copy_from_slice(&message.image()[..keys_at]);
    image[keys_at..keys_at + keys.len()].copy_from_slice(&keys);
    image[lengths_at..].copy_from_slice(&lengths);
    message.expanded(image.share(), keys.len(), lengths.len(), values);
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
pub(super) fn check_header(header: &Header) -> Result<Kind, DecodeError> {
    if header.magic.get() != MAGIC {
        return Err(DecodeError::Magic { magic: header.magic.get() });
    }
    if header.version != VERSION {
        return Err(DecodeError::Version { version: header.version });
    }
    let kind = Kind::from_raw(header.kind).ok_or(DecodeError::UnknownKind { kind: header.kind })?;
    if header.flags & !(flags::OFFER | flags::SIGNATURE) != 0 {
        check_flags(header, kind)?; // some section is coded or apart, or it is forwarded
    }
    Ok(kind)
}

fn check_flags(header: &Header, kind: Kind) -> Result<(), DecodeError> {
    let flags = header.flags;
    let apart_and_snappy = flags::VALUES_UNCOVERED | flags::VALUES_SNAPPY;
    let is_request = matches!(kind, Kind::Request | Kind::Requests);
    if flags & apart_and_snappy == apart_and_snappy || flags & flags::ORIGIN != 0 && !is_request {
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

/// Checks that the key of a record lies within the range of its message.
#[inline(always)]
pub(crate) fn check_key(key: u64, range: KeyRange) -> Result<(), DecodeError> {
    if range.contains(key) {
        return Ok(());
    }
    let begin = range.begin();
    let end = range.end();
    Err(DecodeError::KeyOutsideRange { key, begin, end })
}

/// Checks the decoded keys of a record.
pub(crate) fn check_keys(bytes: &[u8], range: KeyRange) -> Result<(), DecodeError> {
    let section = Section::Keys;
    let item = size_of::<u64>();
    let keys = <[u64]>::ref_from_bytes(bytes).map_err(|_| DecodeError::PartialItem {
        section,
        bytes: bytes.len(),
        item,
    })?;
    if !ascend(keys) {
        let index = keys.windows(2).take_while(|pair| pair[0] < pair[1]).count() + 1;
        let previous = keys[index - 1];
        let key = keys[index];
        return Err(DecodeError::KeyOrder { index, key, previous });
    }
    // Keys ascend, so the first and the last tell of all.
    for key in [keys.first(), keys.last()].into_iter().flatten() {
        check_key(*key, range)?;
    }
    Ok(())
}

/// Checks that `bytes` bytes of decoded lengths suit `keys` keys.
pub(crate) fn check_lengths(bytes: usize, keys: usize) -> Result<(), DecodeError> {
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
