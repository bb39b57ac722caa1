//! Lays a message into registered memory, and reads one back without trusting a byte of it.
//!
//! Path: worker > slicer > filter > message > **codec** > endpoint > transport.

use std::ops::Range;

use zerocopy::little_endian::{U32, U64};
use zerocopy::{FromBytes, IntoBytes};

use super::snappy::{self, Compressor};
use super::{DecodeError, Header, Kind, MAGIC, Offer, Section, VERSION, delta, flags};
use crate::error::{Error, Result};
use crate::memory::{Buffer, Pool, Shared};
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

    /// Bytes by which it has made sections shorter so far.
    pub fn saved_bytes(&self) -> u64 {
        self.compressor.as_ref().map_or(0, |compressor| compressor.saved_bytes)
    }
}

/// Turns a draft into bytes in memory of `pool`, ready for a van: a frame of one image.
///
/// # Errors
/// [`Error::MessageTooLong`] when it has more than 2^32 − 1 bytes, which is the longest write; [`Error::OutOfMemory`] when
/// `pool` has no room.
///
/// # Panics
/// On a bug of the caller: keys outside of the range, lengths for other than all keys that are named. Keys that do not
/// ascend panic in debug builds only; elsewhere the receiver refuses them.
pub fn encode(sender: u32, draft: Draft<'_>, coding: &mut Coding, pool: &Pool) -> Result<Outgoing> {
    let mut draft = draft;
    check_draft(&draft);
    let plan = Plan::new(&draft, coding)?;
    let mut head = pool.allocate(FRAME_PREFIX + plan.head_bytes)?;
    let (prefix, place) = head.split_at_mut(FRAME_PREFIX);
    prefix.fill(0);
    let carrier_checks = coding.carrier_checks;
    let (image_bytes, apart) = lay(sender, &mut draft, &plan, coding, pool, place)?;
    seal(&mut place[..image_bytes], 1, carrier_checks);
    head.truncate(FRAME_PREFIX + image_bytes + plan.trailer_bytes);
    if plan.trailer_bytes > 0 {
        let trailer = &mut head[FRAME_PREFIX + image_bytes..];
        trailer.copy_from_slice(&(image_bytes as u64).to_le_bytes());
    }
    Ok(Outgoing { head, values: apart })
}

/// Lays a draft's image, up to its [`Draft::image_bytes_max`], down at the start of `place`, and returns its length. Values are
/// copied into it wherever they lie. The frame is to be [`seal`]ed.
///
/// # Errors
/// As [`encode`].
///
/// # Panics
/// As [`encode`]; if `place` is too short.
pub(crate) fn encode_into(
    sender: u32,
    draft: &mut Draft<'_>,
    coding: &mut Coding,
    pool: &Pool,
    place: &mut [u8],
) -> Result<usize> {
    check_draft(draft);
    let plan = Plan::of_short(draft, coding);
    let (image_bytes, _) = lay(sender, draft, &plan, coding, pool, place)?;
    Ok(image_bytes)
}

/// Enters the checksum of a frame of `images` images into the header of the first. The values of a single image are left to
/// the carrier if that checks them.
pub(crate) fn seal(frame: &mut [u8], images: usize, carrier_checks: bool) {
    let mut covered = frame.len();
    if carrier_checks && images == 1 {
        let (header, _) = Header::mut_from_prefix(frame).expect("an image begins with a header");
        let elsewhere = flags::VALUES_SNAPPY | flags::VALUES_UNCOVERED;
        if header.value_bytes.get() > 0 && header.flags & elsewhere == 0 {
            header.flags |= flags::VALUES_UNCOVERED;
            covered -= header.value_bytes.get() as usize;
        }
    }
    let checksum = crc32c::crc32c(&frame[..covered]);
    frame[CHECKSUM].copy_from_slice(&checksum.to_le_bytes());
}

/// Makes the bare answer that ends at the end of `image` one of several: the timestamps of the others follow it there.
pub(crate) fn extend_answer(image: &mut [u8]) {
    let (header, timestamps) = Header::mut_from_prefix(image).expect("an image begins with it");
    header.kind = Kind::Replies as u8;
    header.value_bytes = U32::new(timestamps.len() as u32);
}

/// Lays an image down, still without a checksum; returns its length, and values that stay where they are.
#[inline(always)]
fn lay(
    sender: u32,
    draft: &mut Draft<'_>,
    plan: &Plan,
    coding: &mut Coding,
    pool: &Pool,
    place: &mut [u8],
) -> Result<(usize, Option<Shared>)> {
    let Draft { range, keys, lengths, .. } = *draft;
    let mut image = Image::new(place, coding, pool);
    if let Some(signature) = draft.signature {
        let bytes = signature.to_le_bytes();
        image.append(bytes.len(), |place| place.copy_from_slice(&bytes));
        image.flags |= flags::SIGNATURE;
    }
    if let Some(offer) = &draft.offer {
        image.append(size_of::<Offer>(), |place| place.copy_from_slice(offer.as_bytes()));
        image.flags |= flags::OFFER;
    }
    let key_bytes = if plan.delta {
        image.flags |= flags::KEYS_DELTA;
        if let Some(compressor) = &mut image.compressor {
            compressor.saved_bytes += (size_of_val(keys) - plan.key_bytes) as u64;
        }
        let write = |place: &mut [u8]| delta::write(keys, range.begin(), place);
        image.section(Section::Keys, plan.key_bytes, write)?
    } else {
        image.section(Section::Keys, plan.key_bytes, |place| match keys {
            [key] => place.copy_from_slice(&key.to_le_bytes()), // of known length: no call
            _ => place.copy_from_slice(keys.as_bytes()),
        })?
    };
    let length_bytes = image.section(Section::Lengths, plan.length_bytes, |place| {
        place.copy_from_slice(lengths.as_bytes());
    })?;
    let mut apart = None;
    let value_bytes = match &mut draft.values {
        Values::None => image.section(Section::Values, 0, |_| {})?,
        Values::Copied(bytes) => {
            image.section(Section::Values, bytes.len(), |place| place.copy_from_slice(bytes))?
        }
        Values::Written(bytes, write) => image.section(Section::Values, *bytes, write)?,
        Values::Apart(bytes) if plan.inside => {
            image.section(Section::Values, bytes.len(), |place| place.copy_from_slice(bytes))?
        }
        Values::Apart(bytes) => {
            image.pad();
            if !bytes.is_empty() {
                image.flags |= flags::VALUES_UNCOVERED;
                apart = Some(bytes.clone());
            }
            plan.value_bytes as u32
        }
    };
    let header = Header {
        magic: U32::new(MAGIC),
        version: VERSION,
        kind: draft.kind as u8,
        op: draft.op,
        flags: image.flags,
        sender: U32::new(sender),
        table: U32::new(draft.table),
        timestamp: U64::new(draft.timestamp),
        clock: U64::new(draft.clock),
        range_begin: U64::new(range.begin()),
        range_end: U64::new(range.end()),
        key_bytes: U32::new(key_bytes),
        length_bytes: U32::new(length_bytes),
        value_bytes: U32::new(value_bytes),
        checksum: U32::new(0),
    };
    let image_bytes = image.end;
    let (place, _) = Header::mut_from_prefix(place).expect("room for it comes first");
    *place = header;
    Ok((image_bytes, apart))
}

#[inline]
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
    /// Whether the values lie in the image.
    inside: bool,
    /// Bytes behind the head of a message whose values are apart: how long it is.
    trailer_bytes: usize,
    head_bytes: usize,
}

impl Plan {
    /// For a message that fits into a frame, values and all.
    #[inline]
    fn of_short(draft: &Draft<'_>, coding: &Coding) -> Plan {
        let (delta, key_bytes) = key_bytes(draft, coding);
        let (length_bytes, value_bytes) = (size_of_val(draft.lengths), draft.values.len());
        let (inside, trailer_bytes, head_bytes) = (true, 0, draft.image_bytes_max());
        Plan { delta, key_bytes, length_bytes, value_bytes, inside, trailer_bytes, head_bytes }
    }

    fn new(draft: &Draft<'_>, coding: &Coding) -> Result<Plan> {
        let (delta, key_bytes) = key_bytes(draft, coding);
        let length_bytes = size_of_val(draft.lengths);
        let value_bytes = draft.values.len();
        let inside = !matches!(draft.values, Values::Apart(_));
        check_len(Section::Keys, key_bytes)?;
        check_len(Section::Lengths, length_bytes)?;
        check_len(Section::Values, value_bytes)?;
        // What saturates does not fit the address space, and so no pool.
        let head_bytes = size_of::<Header>()
            .saturating_add(if draft.offer.is_some() { size_of::<Offer>() } else { 0 })
            .saturating_add(if draft.signature.is_some() { size_of::<u64>() } else { 0 })
            .saturating_add(key_bytes.next_multiple_of(ALIGN))
            .saturating_add(length_bytes.next_multiple_of(ALIGN))
            .saturating_add(if inside { value_bytes } else { 0 });
        let apart = if inside { 0 } else { value_bytes };
        let trailer_bytes = if apart > 0 { TRAILER } else { 0 };
        let head_bytes = head_bytes.saturating_add(trailer_bytes);
        let image_bytes = head_bytes.saturating_add(apart.next_multiple_of(ALIGN));
        if image_bytes > WRITE_BYTES_MAX {
            let limit = WRITE_BYTES_MAX.saturating_sub(image_bytes - value_bytes);
            return Err(Error::MessageTooLong {
                section: Section::Values,
                bytes: value_bytes,
                limit,
            });
        }
        Ok(Plan { delta, key_bytes, length_bytes, value_bytes, inside, trailer_bytes, head_bytes })
    }
}

/// Whether keys are to be delta-coded, and how long they are before Snappy.
#[inline]
fn key_bytes(draft: &Draft<'_>, coding: &Coding) -> (bool, usize) {
    let raw_bytes = size_of_val(draft.keys);
    if !coding.delta || draft.keys.is_empty() {
        return (false, raw_bytes);
    }
    let bytes = raw_bytes.min(delta::len(draft.keys, draft.range.begin()));
    (bytes < raw_bytes, bytes)
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
    #[inline(always)]
    fn append(&mut self, len: usize, write: impl FnOnce(&mut [u8])) -> &mut [u8] {
        let place = &mut self.bytes[self.end..][..len];
        write(place);
        self.end += len;
        place
    }

    #[inline(always)]
    fn pad(&mut self) {
        let padding = self.end.next_multiple_of(ALIGN) - self.end;
        if padding > 0 {
            self.append(padding, |place| place.fill(0));
        }
    }

    /// Lays down a section, compressed where it pays, and returns its length. [`Plan`] has checked that `len` fits.
    #[inline(always)]
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
    Image { at: u32, len: u32 },
    /// Decoded, in memory of their own.
    Own(Buffer),
    /// Where the sender has them.
    Lent(Shared),
}

impl Place {
    #[inline]
    pub(crate) fn bytes<'a>(&'a self, image: &'a Buffer) -> &'a [u8] {
        match self {
            Place::Image { at, len } => &image[*at as usize..][..*len as usize],
            Place::Own(buffer) => buffer,
            Place::Lent(values) => values,
        }
    }

    pub(crate) fn into_buffer(self, mut image: Buffer) -> Buffer {
        match self {
            Place::Image { at, len } => {
                image.advance(at as usize);
                image.truncate(len as usize);
                image
            }
            Place::Own(buffer) => buffer,
            Place::Lent(values) => Buffer::adopt(values.to_vec()),
        }
    }
}

/// What [`Message::decode`] does: header, then sizes, then checksum, and only then the sections.
pub(crate) fn decode(image: Buffer, pool: &Pool) -> Result<Message> {
    let have = image.len();
    let mut images = Images::new(image);
    let message = images.next(pool)?;
    if !images.is_empty() {
        return Err(DecodeError::TooLong { have, need: message.image.len() }.into());
    }
    Ok(message)
}

/// The images of a received frame: each begins at a multiple of 8 bytes, with zeros in between, and the last one ends the
/// frame. The checksum of the first covers all of them.
pub struct Images {
    /// Those that have not been read.
    rest: Option<Buffer>,
    is_first: bool,
}

impl Images {
    /// The images of `frame`, which begins 8-byte aligned.
    pub fn new(frame: Buffer) -> Images {
        Images { rest: Some(frame), is_first: true }
    }

    /// Whether all have been read.
    pub fn is_empty(&self) -> bool {
        self.rest.is_none()
    }

    /// Reads the next one. After an error the rest is not to be looked at.
    ///
    /// # Errors
    /// As [`Message::decode`], also when there is none.
    #[inline]
    #[allow(clippy::should_implement_trait, reason = "it takes a pool, and fails")]
    pub fn next(&mut self, pool: &Pool) -> Result<Message> {
        let none = DecodeError::TooShort { what: "a message", have: 0, need: size_of::<Header>() };
        let mut image = self.rest.take().ok_or(none)?;
        let have = image.len();
        let header = read_header(&image)?;
        let kind = check_header(header)?;
        let layout = Layout::new(header, have, None)?;
        let found = header.checksum.get();
        let is_alone = self.is_first && layout.end == have;
        if !is_alone && header.flags & flags::VALUES_UNCOVERED != 0 {
            return Err(DecodeError::Contradiction { flags: header.flags, kind }.into());
        }
        if std::mem::take(&mut self.is_first) {
            let covered = if is_alone { layout.covered } else { have };
            check_checksum(found, &mut image[..covered])?;
        } else if found != 0 {
            return Err(DecodeError::Checksum { found, computed: 0 }.into());
        }
        if layout.end < have {
            let next = layout.end.next_multiple_of(ALIGN);
            if next >= have {
                return Err(DecodeError::TooLong { have, need: layout.end }.into());
            }
            check_padding(&image, layout.end..next)?;
            let rest = image.split_off(next);
            image.truncate(layout.end);
            self.rest = Some(rest);
        }
        read_sections(image, kind, &layout, None, pool)
    }
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
    let mut image = values.split_off(at);
    image.truncate(head_bytes);
    let header = read_header(&image)?;
    let kind = check_header(header)?;
    let layout = Layout::new(header, head_bytes, Some(values.len()))?;
    if layout.end < head_bytes {
        return Err(DecodeError::TooLong { have: head_bytes, need: layout.end }.into());
    }
    let (found, value_bytes) = (header.checksum.get(), header.value_bytes.get() as usize);
    check_checksum(found, &mut image[..layout.covered])?;
    check_padding(&values, value_bytes..values.len())?;
    values.truncate(value_bytes);
    read_sections(image, kind, &layout, Some(Place::Own(values)), pool)
}

/// Reads an image whose values are lent: they are `values`, and the image ends where they would begin.
pub(crate) fn decode_lent(image: Buffer, values: Shared, pool: &Pool) -> Result<Message> {
    let mut image = image;
    let offset = values.as_ptr().addr() % ALIGN;
    if offset != 0 {
        return Err(DecodeError::Misaligned { offset }.into());
    }
    let header = read_header(&image)?;
    let kind = check_header(header)?;
    let (have, need) = (values.len(), header.value_bytes.get() as usize);
    if have != need {
        return Err(DecodeError::ValuesApart { have, need }.into());
    }
    let layout = Layout::new(header, image.len(), Some(have.next_multiple_of(ALIGN)))?;
    if layout.end < image.len() {
        return Err(DecodeError::TooLong { have: image.len(), need: layout.end }.into());
    }
    let found = header.checksum.get();
    check_checksum(found, &mut image[..layout.covered])?;
    read_sections(image, kind, &layout, Some(Place::Lent(values)), pool)
}

/// Reads what stands behind a header; the values are in `apart`, if that is given.
#[inline]
fn read_sections(
    image: Buffer,
    kind: Kind,
    layout: &Layout,
    apart: Option<Place>,
    pool: &Pool,
) -> Result<Message> {
    check_padding(&image, layout.keys.end..layout.lengths.start)?;
    check_padding(&image, layout.lengths.end..layout.values.start)?;
    let flags = layout.flags;
    let mut keys = unpack(Section::Keys, &layout.keys, flags, &image, pool)?;
    if flags & flags::KEYS_DELTA != 0 {
        keys = Place::Own(delta::read(keys.bytes(&image), layout.range, pool)?);
    }
    let keys_count = check_keys(keys.bytes(&image), layout.range)?;
    let lengths = unpack(Section::Lengths, &layout.lengths, flags, &image, pool)?;
    check_lengths(lengths.bytes(&image), keys_count)?;
    let values = match apart {
        None => unpack(Section::Values, &layout.values, flags, &image, pool)?,
        Some(values) => values,
    };
    Ok(Message { kind, keys, lengths, values, image })
}

/// Bytes of the signature section, which comes first.
#[inline]
pub(crate) fn signature_bytes(flags: u8) -> usize {
    if flags & flags::SIGNATURE == 0 { 0 } else { size_of::<u64>() }
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

#[inline]
fn check_header(header: &Header) -> Result<Kind, DecodeError> {
    if header.magic.get() != MAGIC {
        return Err(DecodeError::Magic { magic: header.magic.get() });
    }
    if header.version != VERSION {
        return Err(DecodeError::Version { version: header.version });
    }
    let kind = Kind::from_raw(header.kind).ok_or(DecodeError::UnknownKind { kind: header.kind })?;
    check_flags(header, kind)?;
    Ok(kind)
}

#[inline]
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
    flags: u8,
    range: KeyRange,
    keys: Range<usize>,
    lengths: Range<usize>,
    values: Range<usize>,
    /// How far the checksum reaches.
    covered: usize,
    /// Where the image ends.
    end: usize,
}

impl Layout {
    /// Checks that the sections `header` announces lie within `have` bytes; all but the values, if those take `apart` bytes
    /// elsewhere, with their padding.
    #[inline]
    fn new(header: &Header, have: usize, apart: Option<usize>) -> Result<Layout, DecodeError> {
        let (begin, end) = (header.range_begin.get(), header.range_end.get());
        let range = KeyRange::new(begin, end).ok_or(DecodeError::EmptyRange { begin, end })?;
        let is_set = |flag| header.flags & flag != 0;
        let align = |end: u64| end.next_multiple_of(ALIGN as u64);
        // In 64 bits nothing overflows: there are three sections of 32 bits.
        let keys = size_of::<Header>()
            + signature_bytes(header.flags)
            + if is_set(flags::OFFER) { size_of::<Offer>() } else { 0 };
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
        if need > WRITE_BYTES_MAX {
            return Err(DecodeError::TooLong { have, need: WRITE_BYTES_MAX });
        }
        let (lengths, values) = (lengths as usize, values as usize);
        Ok(Layout {
            flags: header.flags,
            range,
            keys: keys..keys + header.key_bytes.get() as usize,
            lengths: lengths..lengths + header.length_bytes.get() as usize,
            values: values..need,
            covered: if is_set(flags::VALUES_UNCOVERED) { values } else { need },
            end: need,
        })
    }
}

/// Computes the checksum as the sender did, over a header without one: it is blanked where it lies, so that there is one piece
/// to go over.
#[inline]
fn check_checksum(found: u32, covered: &mut [u8]) -> Result<(), DecodeError> {
    covered[CHECKSUM].fill(0);
    let computed = crc32c::crc32c(covered);
    if found != computed {
        return Err(DecodeError::Checksum { found, computed });
    }
    Ok(())
}

#[inline]
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
    range: &Range<usize>,
    flags: u8,
    image: &[u8],
    pool: &Pool,
) -> Result<Place> {
    if flags & snappy_flag(section) == 0 {
        return Ok(Place::Image { at: range.start as u32, len: range.len() as u32 });
    }
    Ok(Place::Own(snappy::expand(section, &image[range.clone()], pool)?))
}

/// Checks decoded keys and returns how many there are.
#[inline]
fn check_keys(bytes: &[u8], range: KeyRange) -> Result<usize, DecodeError> {
    let (section, item) = (Section::Keys, size_of::<u64>());
    let keys = <[u64]>::ref_from_bytes(bytes).map_err(|_| DecodeError::PartialItem {
        section,
        bytes: bytes.len(),
        item,
    })?;
    if keys.len() > 1 && !ascend(keys) {
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
#[inline]
fn key_outside(keys: &[u64], range: KeyRange) -> Option<u64> {
    let (first, last) = (*keys.first()?, *keys.last()?);
    [first, last].into_iter().find(|&key| !range.contains(key))
}

/// Whether each key is above the one before. Looks at all of them, since a loop without an early end can be vectorised.
fn ascend(keys: &[u64]) -> bool {
    let above = keys.iter().skip(1);
    keys.iter().zip(above).fold(true, |so_far, (key, next)| so_far & (key < next))
}

#[inline]
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
