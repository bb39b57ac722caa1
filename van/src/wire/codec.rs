//! Lays a message into registered memory, and reads one back without trusting a byte of it.
//!
//! Path: worker > slicer > filter > message > **codec** > endpoint > transport.

use std::ops::Range;

use zerocopy::little_endian::{U32, U64};
use zerocopy::{FromBytes, IntoBytes};

use super::snappy::{self, Compressor};
use super::{DecodeError, Header, Kind, MAGIC, Offer, Section, VERSION, delta, flags};
use crate::error::{Error, Result};
use crate::memory::{Buffer, Pool};
use crate::message::{Draft, KeyRange, Message, Outgoing, Values};
use crate::transport::{FRAME_PREFIX, WRITE_BYTES_MAX};

/// Bytes behind the head of a message whose values are apart, in which its length stands.
pub(crate) const TRAILER: usize = 8;

/// Every section starts at a multiple of this many bytes.
const ALIGN: usize = 8;

/// Where [`Header::checksum`] stands.
const CHECKSUM: Range<usize> = std::mem::offset_of!(Header, checksum)..size_of::<Header>();

/// How a sender encodes: one for each lane or table, since it keeps what sampling has taught it.
pub struct Coding {
    /// Delta-code keys when that makes them shorter.
    delta: bool,
    compressor: Option<Box<Compressor>>,
    /// Leave values to the checksum of a carrier that checks every byte.
    pub(crate) carrier_checks: bool,
}

impl Coding {
    /// Keys and values as they are: nothing to decode, nothing to allocate at the receiver.
    pub fn plain() -> Coding {
        Coding { delta: false, compressor: None, carrier_checks: false }
    }

    /// Delta-coded keys, and Snappy for the sections where samples say that it pays.
    ///
    /// A section is tried from 512 bytes on, and sent compressed when that saves at least a tenth. After a try that doesn't, 16
    /// messages go without one, then 32, up to 1024. Only messages are counted: the same messages give the same bytes.
    pub fn compact() -> Coding {
        Coding { delta: true, compressor: Some(Box::new(Compressor::new())), carrier_checks: false }
    }
}

/// Turns a draft into bytes in memory of `pool`, ready for a van.
///
/// # Errors
/// [`Error::MessageTooLong`] when it has more than 2^32 − 1 bytes, which is the longest write; [`Error::OutOfMemory`] when
/// `pool` has no room.
///
/// # Panics
/// On a bug of the caller: keys outside of the range, lengths for other than all keys that are named. Keys that do not
/// ascend panic in debug builds only; elsewhere the receiver refuses them.
pub fn encode(sender: u32, draft: Draft<'_>, coding: &mut Coding, pool: &Pool) -> Result<Outgoing> {
    check_draft(&draft);
    let plan = Plan::new(&draft, coding)?;
    let Draft { kind, op, table, timestamp, clock, range, offer, .. } = draft;
    let Draft { signature, keys, lengths, values, .. } = draft;
    let mut head = pool.allocate(plan.head_bytes)?;
    let trailer_bytes = plan.trailer_bytes;
    let (prefix, image) = head.split_at_mut(FRAME_PREFIX);
    prefix.fill(0);
    let carrier_checks = coding.carrier_checks;
    let mut image = Image::new(image, coding, pool);
    if let Some(offer) = offer {
        image.append(size_of::<Offer>(), |place| place.copy_from_slice(offer.as_bytes()));
        image.flags |= flags::OFFER;
    }
    if let Some(signature) = signature {
        let bytes = signature.to_le_bytes();
        image.append(bytes.len(), |place| place.copy_from_slice(&bytes));
        image.flags |= flags::SIGNATURE;
    }
    let key_bytes = if plan.delta {
        image.flags |= flags::KEYS_DELTA;
        let write = |place: &mut [u8]| delta::write(keys, range.begin(), place);
        image.section(Section::Keys, plan.key_bytes, write)?
    } else {
        image.section(Section::Keys, plan.key_bytes, |place| {
            place.copy_from_slice(keys.as_bytes())
        })?
    };
    let length_bytes = image.section(Section::Lengths, plan.length_bytes, |place| {
        place.copy_from_slice(lengths.as_bytes());
    })?;
    let mut apart = None;
    let value_bytes = match values {
        Values::None => image.section(Section::Values, 0, |_| {})?,
        Values::Copied(bytes) => {
            image.section(Section::Values, bytes.len(), |place| place.copy_from_slice(bytes))?
        }
        Values::Written(bytes, write) => image.section(Section::Values, bytes, write)?,
        Values::Apart(bytes) => {
            image.pad();
            if !bytes.is_empty() {
                image.flags |= flags::VALUES_UNCOVERED;
                apart = Some(bytes);
            }
            plan.value_bytes as u32
        }
    };
    let mut uncovered = 0;
    if carrier_checks
        && apart.is_none()
        && value_bytes > 0
        && image.flags & flags::VALUES_SNAPPY == 0
    {
        image.flags |= flags::VALUES_UNCOVERED;
        uncovered = value_bytes as usize;
    }
    let header = Header {
        magic: U32::new(MAGIC),
        version: VERSION,
        kind: kind as u8,
        op,
        flags: image.flags,
        sender: U32::new(sender),
        table: U32::new(table),
        timestamp: U64::new(timestamp),
        clock: U64::new(clock),
        range_begin: U64::new(range.begin()),
        range_end: U64::new(range.end()),
        key_bytes: U32::new(key_bytes),
        length_bytes: U32::new(length_bytes),
        value_bytes: U32::new(value_bytes),
        checksum: U32::new(0),
    };
    let image_bytes = image.seal(header, uncovered);
    head.truncate(FRAME_PREFIX + image_bytes + trailer_bytes);
    if trailer_bytes > 0 {
        let trailer = &mut head[FRAME_PREFIX + image_bytes..];
        trailer.copy_from_slice(&(image_bytes as u64).to_le_bytes());
    }
    Ok(Outgoing { head, values: apart })
}

fn check_draft(draft: &Draft<'_>) {
    let Draft { keys, lengths, range, .. } = draft;
    assert!(
        lengths.is_empty() || keys.is_empty() || lengths.len() == keys.len(),
        "{} lengths for {} keys",
        lengths.len(),
        keys.len()
    );
    if let Some(key) = key_outside(keys, *range) {
        panic!("key {key} lies outside of {range:?}");
    }
    debug_assert!(ascend(keys), "keys ascend");
}

/// How long each section is before Snappy, and so how much memory the message takes at most.
struct Plan {
    delta: bool,
    key_bytes: usize,
    length_bytes: usize,
    value_bytes: usize,
    /// Bytes behind the head of a message whose values are apart: how long it is.
    trailer_bytes: usize,
    head_bytes: usize,
}

impl Plan {
    fn new(draft: &Draft<'_>, coding: &Coding) -> Result<Plan> {
        let (raw_bytes, mut key_bytes) = (size_of_val(draft.keys), size_of_val(draft.keys));
        if coding.delta && !draft.keys.is_empty() {
            key_bytes = raw_bytes.min(delta::len(draft.keys, draft.range.begin()));
        }
        let length_bytes = size_of_val(draft.lengths);
        let (value_bytes, inside) = match &draft.values {
            Values::None => (0, true),
            Values::Copied(bytes) => (bytes.len(), true),
            Values::Written(bytes, _) => (*bytes, true),
            Values::Apart(bytes) => (bytes.len(), false),
        };
        check_len(Section::Keys, key_bytes)?;
        check_len(Section::Lengths, length_bytes)?;
        check_len(Section::Values, value_bytes)?;
        // What saturates does not fit the address space, and so no pool.
        let head_bytes = (FRAME_PREFIX + size_of::<Header>())
            .saturating_add(if draft.offer.is_some() { size_of::<Offer>() } else { 0 })
            .saturating_add(if draft.signature.is_some() { size_of::<u64>() } else { 0 })
            .saturating_add(key_bytes.next_multiple_of(ALIGN))
            .saturating_add(length_bytes.next_multiple_of(ALIGN))
            .saturating_add(if inside { value_bytes } else { 0 });
        let apart = if inside { 0 } else { value_bytes };
        let trailer_bytes = if apart > 0 { TRAILER } else { 0 };
        let head_bytes = head_bytes.saturating_add(trailer_bytes);
        let image_bytes = head_bytes.saturating_add(apart.next_multiple_of(ALIGN)) - FRAME_PREFIX;
        if image_bytes > WRITE_BYTES_MAX {
            let limit = WRITE_BYTES_MAX.saturating_sub(image_bytes - value_bytes);
            return Err(Error::MessageTooLong {
                section: Section::Values,
                bytes: value_bytes,
                limit,
            });
        }
        let delta = key_bytes < raw_bytes;
        Ok(Plan { delta, key_bytes, length_bytes, value_bytes, trailer_bytes, head_bytes })
    }
}

fn check_len(section: Section, bytes: usize) -> Result<()> {
    let limit = WRITE_BYTES_MAX;
    if bytes > limit {
        return Err(Error::MessageTooLong { section, bytes, limit });
    }
    Ok(())
}

/// A message image in the making: the header's place, and the sections laid down so far.
struct Image<'a> {
    bytes: &'a mut [u8],
    end: usize,
    flags: u8,
    compressor: Option<&'a mut Compressor>,
    pool: &'a Pool,
}

impl<'a> Image<'a> {
    fn new(bytes: &'a mut [u8], coding: &'a mut Coding, pool: &'a Pool) -> Image<'a> {
        let compressor = coding.compressor.as_deref_mut();
        Image { bytes, end: size_of::<Header>(), flags: 0, compressor, pool }
    }

    /// Lays down `len` bytes that `write` fills in, and returns them.
    fn append(&mut self, len: usize, write: impl FnOnce(&mut [u8])) -> &mut [u8] {
        let place = &mut self.bytes[self.end..][..len];
        write(place);
        self.end += len;
        place
    }

    fn pad(&mut self) {
        let padding = self.end.next_multiple_of(ALIGN) - self.end;
        if padding > 0 {
            self.append(padding, |place| place.fill(0));
        }
    }

    /// Lays down a section, compressed where it pays, and returns its length. [`Plan`] has checked that `len` fits.
    fn section(
        &mut self,
        section: Section,
        len: usize,
        write: impl FnOnce(&mut [u8]),
    ) -> Result<u32> {
        self.pad();
        if len == 0 {
            return Ok(0);
        }
        let start = self.end;
        self.append(len, write);
        let place = &mut self.bytes[start..self.end];
        if let Some(compressor) = &mut self.compressor
            && let Some(shorter) = compressor.shrink(section, place, self.pool)?
        {
            self.end = start + shorter;
            self.flags |= snappy_flag(section);
        }
        Ok((self.end - start) as u32)
    }

    /// Puts the header before the sections, with the checksum of all but the last `uncovered` bytes, and returns the length of it
    /// all.
    fn seal(self, header: Header, uncovered: usize) -> usize {
        let image = &mut self.bytes[..self.end];
        let (place, _) = Header::mut_from_prefix(image).expect("room for it comes first");
        *place = header;
        let checksum = U32::new(crc32c::crc32c(&image[..self.end - uncovered]));
        image[CHECKSUM].copy_from_slice(checksum.as_bytes());
        self.end
    }
}

fn snappy_flag(section: Section) -> u8 {
    match section {
        Section::Keys => flags::KEYS_SNAPPY,
        Section::Lengths => flags::LENGTHS_SNAPPY,
        Section::Values => flags::VALUES_SNAPPY,
    }
}

/// Where the bytes of a received section are.
#[derive(Debug)]
pub(crate) enum Place {
    /// In the message.
    Image(Range<usize>),
    /// Decoded, in memory of their own.
    Own(Buffer),
}

impl Place {
    #[inline]
    pub(crate) fn bytes<'a>(&'a self, image: &'a Buffer) -> &'a [u8] {
        match self {
            Place::Image(range) => &image[range.clone()],
            Place::Own(buffer) => buffer,
        }
    }

    pub(crate) fn into_buffer(self, mut image: Buffer) -> Buffer {
        match self {
            Place::Image(range) => {
                image.truncate(range.end);
                image.advance(range.start);
                image
            }
            Place::Own(buffer) => buffer,
        }
    }
}

/// What [`Message::decode`] does: header, then sizes, then checksum, and only then the sections.
pub(crate) fn decode(image: Buffer, pool: &Pool) -> Result<Message> {
    decode_with(image, None, pool)
}

/// Reads a long message whose values came first, at the start of a page, and the others behind them:
///
/// ```text
/// values, zero padding to 8, header and other sections, their length u64
/// ```
pub(crate) fn decode_landed(landed: Buffer, pool: &Pool) -> Result<Message> {
    let mut values = landed;
    let have = values.len();
    let too_short =
        |need| DecodeError::TooShort { what: "a message behind its values", have, need };
    let head_bytes = values.last_chunk::<TRAILER>().map(|bytes| u64::from_le_bytes(*bytes));
    let head_bytes = head_bytes.ok_or_else(|| too_short(TRAILER))?;
    let head_bytes = usize::try_from(head_bytes).unwrap_or(usize::MAX);
    let at = (have - TRAILER).checked_sub(head_bytes).ok_or_else(|| too_short(head_bytes))?;
    let mut head = values.split_off(at);
    head.truncate(head_bytes);
    decode_with(head, Some(values), pool)
}

/// Reads a message whose values are in `apart`, if that is given, with padding behind them.
fn decode_with(mut image: Buffer, apart: Option<Buffer>, pool: &Pool) -> Result<Message> {
    let header = *read_header(&image)?;
    let (kind, range) = check_header(&header)?;
    let layout = Layout::new(&header, image.len(), apart.as_ref().map(|values| values.len()))?;
    check_checksum(&header, &mut image[..layout.covered])?;
    check_padding(&image, layout.keys.end..layout.lengths.start)?;
    check_padding(&image, layout.lengths.end..layout.values.start)?;
    let offer = (header.flags & flags::OFFER != 0).then(|| {
        let (offer, _) = Offer::read_from_prefix(&image[size_of::<Header>()..])
            .expect("the sizes are checked, and the keys start behind the offer");
        offer
    });
    let signature = (header.flags & flags::SIGNATURE != 0).then(|| {
        let (signature, _) = U64::read_from_prefix(&image[layout.keys.start - size_of::<u64>()..])
            .expect("the sizes are checked, and the keys start behind the signature");
        signature.get()
    });
    let mut keys = unpack(Section::Keys, layout.keys, &header, &image, pool)?;
    if header.flags & flags::KEYS_DELTA != 0 {
        keys = Place::Own(delta::read(keys.bytes(&image), range, pool)?);
    }
    let keys_count = check_keys(keys.bytes(&image), range)?;
    let lengths = unpack(Section::Lengths, layout.lengths, &header, &image, pool)?;
    check_lengths(lengths.bytes(&image), keys_count)?;
    let values = match apart {
        None => unpack(Section::Values, layout.values, &header, &image, pool)?,
        Some(mut values) => {
            check_padding(&values, header.value_bytes.get() as usize..values.len())?;
            values.truncate(header.value_bytes.get() as usize);
            Place::Own(values)
        }
    };
    Ok(Message { header, kind, range, offer, signature, keys, lengths, values, image })
}

fn read_header(image: &[u8]) -> Result<&Header, DecodeError> {
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

fn check_header(header: &Header) -> Result<(Kind, KeyRange), DecodeError> {
    if header.magic.get() != MAGIC {
        return Err(DecodeError::Magic { magic: header.magic.get() });
    }
    if header.version != VERSION {
        return Err(DecodeError::Version { version: header.version });
    }
    let kind = Kind::from_raw(header.kind).ok_or(DecodeError::UnknownKind { kind: header.kind })?;
    check_flags(header, kind)?;
    let (begin, end) = (header.range_begin.get(), header.range_end.get());
    let range = KeyRange::new(begin, end).ok_or(DecodeError::EmptyRange { begin, end })?;
    Ok((kind, range))
}

fn check_flags(header: &Header, kind: Kind) -> Result<(), DecodeError> {
    let flags = header.flags;
    if flags & !(flags::OFFER | flags::SIGNATURE) == 0 {
        return Ok(()); // no section is coded or apart
    }
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

/// Where the sections of an image lie: in order, each from a multiple of [`ALIGN`], all of them inside.
struct Layout {
    keys: Range<usize>,
    lengths: Range<usize>,
    values: Range<usize>,
    /// How far the checksum reaches.
    covered: usize,
}

impl Layout {
    /// Checks that the sections `header` announces take exactly `have` bytes; all but the values, if those take `apart` bytes
    /// elsewhere, with their padding.
    fn new(header: &Header, have: usize, apart: Option<usize>) -> Result<Layout, DecodeError> {
        let is_set = |flag| header.flags & flag != 0;
        let align = |end: u64| end.next_multiple_of(ALIGN as u64);
        // In 64 bits nothing overflows: there are three sections of 32 bits.
        let keys = size_of::<Header>()
            + if is_set(flags::OFFER) { size_of::<Offer>() } else { 0 }
            + if is_set(flags::SIGNATURE) { size_of::<u64>() } else { 0 };
        let lengths = align(keys as u64 + u64::from(header.key_bytes.get()));
        let values = align(lengths + u64::from(header.length_bytes.get()));
        let end = match apart {
            None => values + u64::from(header.value_bytes.get()),
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
        if have > need {
            return Err(DecodeError::TooLong { have, need });
        }
        let (lengths, values) = (lengths as usize, values as usize);
        Ok(Layout {
            keys: keys..keys + header.key_bytes.get() as usize,
            lengths: lengths..lengths + header.length_bytes.get() as usize,
            values: values..need,
            covered: if is_set(flags::VALUES_UNCOVERED) { values } else { need },
        })
    }
}

/// Computes the checksum as the sender did, over a header without one: it is blanked where it lies, so that there is one piece
/// to go over. `header` keeps it.
fn check_checksum(header: &Header, covered: &mut [u8]) -> Result<(), DecodeError> {
    covered[CHECKSUM].fill(0);
    let computed = crc32c::crc32c(covered);
    let found = header.checksum.get();
    if found != computed {
        return Err(DecodeError::Checksum { found, computed });
    }
    Ok(())
}

fn check_padding(image: &[u8], range: Range<usize>) -> Result<(), DecodeError> {
    for at in range {
        if image[at] != 0 {
            return Err(DecodeError::Padding { at, byte: image[at] });
        }
    }
    Ok(())
}

/// Finds a section, expanded if it is compressed.
#[inline(always)]
fn unpack(
    section: Section,
    range: Range<usize>,
    header: &Header,
    image: &[u8],
    pool: &Pool,
) -> Result<Place> {
    if header.flags & snappy_flag(section) == 0 {
        return Ok(Place::Image(range));
    }
    Ok(Place::Own(snappy::expand(section, &image[range], pool)?))
}

/// Checks decoded keys and returns how many there are.
fn check_keys(bytes: &[u8], range: KeyRange) -> Result<usize, DecodeError> {
    let (section, item) = (Section::Keys, size_of::<u64>());
    let keys = <[u64]>::ref_from_bytes(bytes).map_err(|_| DecodeError::PartialItem {
        section,
        bytes: bytes.len(),
        item,
    })?;
    if !ascend(keys) {
        let index = keys.windows(2).take_while(|pair| pair[0] < pair[1]).count() + 1;
        let (previous, key) = (keys[index - 1], keys[index]);
        return Err(DecodeError::KeyOrder { index, key, previous });
    }
    if let Some(key) = key_outside(keys, range) {
        let (begin, end) = (range.begin(), range.end());
        return Err(DecodeError::KeyOutsideRange { key, begin, end });
    }
    Ok(keys.len())
}

/// A key that lies outside of the range that all should be in, if there is one; looks at both ends of ascending keys.
fn key_outside(keys: &[u64], range: KeyRange) -> Option<u64> {
    let (first, last) = (*keys.first()?, *keys.last()?);
    [first, last].into_iter().find(|&key| !range.contains(key))
}

/// Whether each key is above the one before. Looks at all of them, since a loop without an early end can be vectorised.
fn ascend(keys: &[u64]) -> bool {
    let above = keys.iter().skip(1);
    keys.iter().zip(above).fold(true, |so_far, (key, next)| so_far & (key < next))
}

fn check_lengths(bytes: &[u8], keys: usize) -> Result<(), DecodeError> {
    let (section, item) = (Section::Lengths, size_of::<u32>());
    if !bytes.len().is_multiple_of(item) {
        return Err(DecodeError::PartialItem { section, bytes: bytes.len(), item });
    }
    let lengths = bytes.len() / item;
    if lengths != 0 && keys != 0 && lengths != keys {
        return Err(DecodeError::LengthCount { lengths, keys });
    }
    Ok(())
}
