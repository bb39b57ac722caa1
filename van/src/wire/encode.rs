//! Encodes messages into registered memory. `decode.rs` reads them.
//!
//! Path: worker > slicer > filter > message > **codec** > endpoint > transport.

use zerocopy::little_endian::{I32, U32, U64};
use zerocopy::{FromBytes, IntoBytes};

use super::snappy::Compressor;
use super::{
    ALIGN, CHECKSUM, Header, MAGIC, Offer, Origin, Section, TRAILER, VERSION, ascend, checksum,
    delta, flags, key_outside, snappy_flag,
};
use crate::error::{Error, Result};
use crate::memory::{Pool, Shared};
use crate::message::{Draft, Outgoing, Values};
use crate::transport::{FRAME_PREFIX, WRITE_BYTES_MAX};

/// A sender's coding options. Each lane or table has its own, because the compressor learns from
/// samples.
pub struct Coding {
    /// Whether to delta-code keys when that makes them shorter.
    delta: bool,
    compressor: Option<Box<Compressor>>,
    /// Whether to omit the checksum, for a carrier that checks every byte.
    pub(crate) carrier_checks: bool,
}

impl Coding {
    /// Plain keys and values: the receiver decodes and allocates nothing.
    pub fn plain() -> Coding {
        Coding { delta: false, compressor: None, carrier_checks: false }
    }

    /// Delta-coded keys, and Snappy for sections where samples show that it pays.
    ///
    /// The compressor tries sections of at least 512 bytes, and sends them compressed if that saves
    /// at least a tenth. After a try that does not pay, the next 16 messages are not tried, then
    /// 32, up to 1024. Only messages count, so the same messages give the same bytes.
    pub fn compact() -> Coding {
        Coding { delta: true, compressor: Some(Box::new(Compressor::new())), carrier_checks: false }
    }

    /// Total number of bytes saved so far.
    pub fn saved_bytes(&self) -> u64 {
        self.compressor.as_ref().map_or(0, |compressor| compressor.saved_bytes)
    }

    /// Whether no section is coded.
    #[inline]
    pub(crate) fn is_plain(&self) -> bool {
        !self.delta && self.compressor.is_none()
    }
}

/// Encodes a draft into memory of `pool`, as a frame of one image.
///
/// # Errors
/// [`Error::MessageTooLong`] if it has more than 2^32 − 1 bytes, the longest write;
/// [`Error::OutOfMemory`] if `pool` has no room.
///
/// # Panics
/// On a bug of the caller: keys outside the range, or lengths for other than all named keys. Keys
/// that do not ascend panic in debug builds only; otherwise the receiver refuses them.
pub fn encode(draft: Draft<'_>, coding: &mut Coding, pool: &Pool) -> Result<Outgoing> {
    let mut draft = draft;
    check_draft(&draft);
    let plan = Plan::new(&draft, coding)?;
    let mut head = pool.allocate(FRAME_PREFIX + plan.head_bytes)?;
    let (prefix, place) = head.split_at_mut(FRAME_PREFIX);
    prefix.fill(0);
    let carrier_checks = coding.carrier_checks;
    let (image_bytes, apart) = write_image(&mut draft, &plan, coding, pool, place)?;
    seal(&mut place[..image_bytes], carrier_checks);
    head.truncate(FRAME_PREFIX + image_bytes + plan.trailer_bytes);
    if plan.trailer_bytes > 0 {
        let trailer = &mut head[FRAME_PREFIX + image_bytes..];
        trailer.copy_from_slice(&(image_bytes as u64).to_le_bytes());
    }
    Ok(Outgoing { head, values: apart })
}

/// Encodes a draft at the start of `place`, and returns the length of its image, at most
/// [`Draft::image_bytes_max`]. Values are always copied into the image. The caller [`seal`]s the
/// frame.
///
/// # Errors
/// As [`encode`].
///
/// # Panics
/// As [`encode`]; if `place` is too short.
pub(crate) fn encode_into(
    draft: &mut Draft<'_>,
    coding: &mut Coding,
    pool: &Pool,
    place: &mut [u8],
) -> Result<usize> {
    check_draft(draft);
    let plan = Plan::of_short(draft, coding);
    let (image_bytes, _) = write_image(draft, &plan, coding, pool, place)?;
    Ok(image_bytes)
}

/// Writes the checksum of a frame into the header of its first image. A carrier that checks every
/// byte needs none.
#[inline(always)]
pub(crate) fn seal(frame: &mut [u8], carrier_checks: bool) {
    if !carrier_checks {
        let checksum = checksum(frame);
        frame[CHECKSUM].copy_from_slice(&checksum.to_le_bytes());
    }
}

/// Writes an image without its checksum. Returns its length, and the values that are sent from
/// where they lie.
#[inline(always)]
fn write_image(
    draft: &mut Draft<'_>,
    plan: &Plan,
    coding: &mut Coding,
    pool: &Pool,
    place: &mut [u8],
) -> Result<(usize, Option<Shared>)> {
    let Draft { range, keys, lengths, .. } = *draft;
    let mut image = Image::new(place, coding, pool);
    if let Some(origin) = &draft.origin {
        image.append(Origin::BYTES, |place| origin.write(place));
        image.flags |= flags::ORIGIN;
    }
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
            [key] => place.copy_from_slice(&key.to_le_bytes()), // known length: no call
            _ => place.copy_from_slice(keys.as_bytes()),
        })?
    };
    let length_bytes = image.section(Section::Lengths, plan.length_bytes, |place| {
        place.copy_from_slice(lengths.as_bytes());
    })?;
    let mut apart = None;
    let value_bytes = match &mut draft.values {
        Values::Apart(bytes) if !plan.inside => {
            image.pad();
            if !bytes.is_empty() {
                image.flags |= flags::VALUES_UNCOVERED;
                apart = Some(bytes.clone());
            }
            plan.value_bytes as u32
        }
        values => image.section(Section::Values, plan.value_bytes, |place| values.write(place))?,
    };
    let header = Header {
        magic: U32::new(MAGIC),
        version: VERSION,
        kind: draft.kind as u8,
        op: draft.op,
        flags: image.flags,
        command: I32::new(draft.command),
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

/// Lengths of the sections before Snappy, and the memory that the message takes at most.
struct Plan {
    delta: bool,
    key_bytes: usize,
    length_bytes: usize,
    value_bytes: usize,
    /// Whether the values lie in the image.
    inside: bool,
    /// Length of the trailer, which holds the image's length when the values are apart.
    trailer_bytes: usize,
    head_bytes: usize,
}

impl Plan {
    /// Plans a message that fits into a frame with its values.
    #[inline]
    fn of_short(draft: &Draft<'_>, coding: &Coding) -> Plan {
        let (delta, key_bytes) = key_bytes(draft, coding);
        let length_bytes = size_of_val(draft.lengths);
        let value_bytes = draft.values.len();
        let inside = true;
        let trailer_bytes = 0;
        let head_bytes = draft.image_bytes_max();
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
        // A saturated length fits no address space, and so no pool.
        let head_bytes = size_of::<Header>()
            .saturating_add(if draft.offer.is_some() { size_of::<Offer>() } else { 0 })
            .saturating_add(if draft.signature.is_some() { size_of::<u64>() } else { 0 })
            .saturating_add(if draft.origin.is_some() { Origin::BYTES } else { 0 })
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

/// Whether to delta-code the keys, and their length before Snappy.
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

/// A message image under construction: room for the header, and the sections written so far.
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

    /// Appends `len` bytes that `write` fills in, and returns them.
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

    /// Appends a section, compressed if that pays, and returns its length. [`Plan`] has checked
    /// that `len` fits.
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
