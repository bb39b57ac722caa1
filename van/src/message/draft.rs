//! A message to send: a key range, and values for some of its keys.
//!
//! Path: worker > slicer > filter > **message** > codec > endpoint > transport.

use std::fmt;

use super::KeyRange;
use crate::error::Result;
use crate::memory::{Buffer, Pool, Shared};
use crate::transport::FRAME_PREFIX;
use crate::wire::{Header, Kind, Offer, Origin, TRAILER};

/// A message to send. Start from [`Draft::new`] and fill it in; [`crate::encode`] encodes it.
pub struct Draft<'a> {
    /// Kind of the message: request, reply, …
    pub kind: Kind,
    /// Operation code of the layer above; the van ignores it.
    pub op: u8,
    /// Command of the request, which the handle of its table defines; the van ignores it.
    pub command: i32,
    /// Table of the message.
    pub table: u32,
    /// The sender's request number; a reply repeats that of its request.
    pub timestamp: u64,
    /// The sender's iteration.
    pub clock: u64,
    /// The key range, in which all keys lie.
    pub range: KeyRange,
    /// The node that has made the request, if this one forwards it.
    pub origin: Option<Origin>,
    /// Memory that the receiver may write once; in a request, for its placed answer.
    pub offer: Option<Offer>,
    /// Signature of the list of keys, under which the receiver knows it or remembers it.
    pub signature: Option<u64>,
    /// `[n]`, strictly ascending; empty if the receiver knows them by the signature.
    pub keys: &'a [u64],
    /// `[n]`: number of values of each key; empty if all keys have the same. Keys that the receiver
    /// knows may be omitted beside them.
    pub lengths: &'a [u32],
    /// The values, in the order of the keys.
    pub values: Values<'a>,
}

impl Draft<'_> {
    /// Creates a message of `kind` with the range of all keys, and without keys and values.
    #[inline]
    pub fn new(kind: Kind) -> Self {
        Draft {
            kind,
            op: 0,
            command: 0,
            table: 0,
            timestamp: 0,
            clock: 0,
            range: KeyRange::ALL,
            origin: None,
            offer: None,
            signature: None,
            keys: &[],
            lengths: &[],
            values: Values::None,
        }
    }

    /// Upper bound of its image's length, in bytes; exact if nothing is coded.
    #[inline]
    pub(crate) fn image_bytes_max(&self) -> usize {
        let offer = if self.offer.is_some() { size_of::<Offer>() } else { 0 };
        let lengths = size_of_val(self.lengths).next_multiple_of(8);
        let signature = if self.signature.is_some() { size_of::<u64>() } else { 0 };
        let origin = if self.origin.is_some() { Origin::BYTES } else { 0 };
        let sections = origin + signature + offer + size_of_val(self.keys) + lengths;
        (size_of::<Header>() + sections).saturating_add(self.values.len())
    }
}

/// The values of a draft, and how they are sent.
pub enum Values<'a> {
    /// No values.
    None,
    /// Values that are copied into the message.
    Copied(&'a [u8]),
    /// Values of that many bytes, which the function writes directly into the message. It fills its
    /// whole slice, which holds old bytes before.
    Written(usize, &'a mut dyn FnMut(&mut [u8])),
    /// Values that are sent from where they lie: not copied, not compressed, and not covered by the
    /// message's checksum. In a short message they are copied.
    Apart(Shared),
}

impl Values<'_> {
    #[inline]
    pub(crate) fn len(&self) -> usize {
        match self {
            Values::None => 0,
            Values::Copied(bytes) => bytes.len(),
            Values::Written(bytes, _) => *bytes,
            Values::Apart(bytes) => bytes.len(),
        }
    }

    /// Writes the values into `place`, which has their length.
    #[inline]
    pub(crate) fn write(&mut self, place: &mut [u8]) {
        match self {
            Values::None => {}
            Values::Copied(bytes) => place.copy_from_slice(bytes),
            Values::Written(_, write) => write(place),
            Values::Apart(bytes) => place.copy_from_slice(bytes),
        }
    }
}

impl fmt::Debug for Values<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Values::None => write!(f, "None"),
            Values::Copied(bytes) => write!(f, "Copied({} bytes)", bytes.len()),
            Values::Written(bytes, _) => write!(f, "Written({bytes} bytes)"),
            Values::Apart(bytes) => write!(f, "Apart({} bytes)", bytes.len()),
        }
    }
}

/// An encoded message, ready for an endpoint.
#[derive(Debug)]
pub struct Outgoing {
    /// [`FRAME_PREFIX`] bytes for the van, then the image. If the values are apart, the image ends
    /// where they would begin, and its length follows in 8 bytes.
    pub head: Buffer,
    /// The values, if they are apart.
    pub values: Option<Shared>,
}

impl Outgoing {
    /// Converts a frame whose values were to be lent into a message whose values are apart.
    pub(crate) fn with_trailer(frame: &Buffer, values: Shared, pool: &Pool) -> Result<Outgoing> {
        let mut head = pool.allocate(frame.len() + TRAILER)?;
        let (image, trailer) = head.split_at_mut(frame.len());
        image.copy_from_slice(frame);
        let image_bytes = (frame.len() - FRAME_PREFIX) as u64;
        trailer.copy_from_slice(&image_bytes.to_le_bytes());
        Ok(Outgoing { head, values: Some(values) })
    }

    /// Length of the whole message without the prefix, with values that are apart.
    pub fn image_bytes(&self) -> usize {
        let head = self.head.len() - FRAME_PREFIX;
        self.values.as_ref().map_or(head, |values| head - TRAILER + values.len())
    }
}
