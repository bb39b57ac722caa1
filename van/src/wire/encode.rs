//! Lays a message into registered memory. What comes out is read back by `decode.rs`.
//!
//! Path: worker > slicer > filter > message > **codec** > endpoint > transport.

use zerocopy::little_endian::{U32, U64};
use zerocopy::{FromBytes, IntoBytes};

use super::snappy::Compressor;
use super::{
    ALIGN, CHECKSUM, Header, MAGIC, Offer, Section, TRAILER, VERSION, ascend, checksum, delta,
    flags, key_outside, snappy_flag,
};
use crate::error::{Error, Result};
use crate::memory::{Pool, Shared};
use crate::message::{Draft, Outgoing, Values};
use crate::transport::{FRAME_PREFIX, WRITE_BYTES_MAX};

/// How a sender encodes: one for each lane or table, since it keeps what sampling has taught it.
pub struct Coding {
    /// Delta-code keys when that makes them shorter.
    delta: bool,
    compressor: Option<Box<Compressor>>,
    /// Leave out the checksum, for a carrier that checks every byte.
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

    /// Whether every section goes as it is.
    #[inline]
    pub(crate) fn is_plain(&self) -> bool {
        !self.delta && self.compressor.is_none()
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
    seal(&mut place[..image_bytes], carrier_checks);
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

/// Enters the checksum of a frame into the header of its first image. A carrier that checks every byte needs none.
#[inline(always)]
pub(crate) fn seal(frame: &mut [u8], carrier_checks: bool) {
    if !carrier_checks {
        let checksum = checksum(frame);
        frame[CHECKSUM].copy_from_slice(&checksum.to_le_bytes());
    }
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
