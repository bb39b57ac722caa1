//! What the two ends of a lane tell each other of its stripes.

use zerocopy::little_endian::{U32, U64};
use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout, Unaligned};

use super::{Mixed, Stripes, Target, Write};
use crate::error::{Error, Result};
use crate::transport::{FRAME_PREFIX, Frame, PeerId, WRITE_AT_END, WRITE_BYTES_MAX};
use crate::wire::{Beside, Offer};

/// "CRVS": begins a frame of this file, as no message does.
pub(super) const MAGIC: u32 = u32::from_le_bytes(*b"CRVS");

/// What the two ends of a lane tell each other of its stripes, in a frame of its own. After
/// [`Told::CUT`] the pieces follow.
#[derive(Debug, FromBytes, IntoBytes, KnownLayout, Immutable, Unaligned)]
#[repr(C)]
pub(super) struct Told {
    magic: U32,
    what: U32,
    /// The number of the lane, of the stripe that is up, or of the pieces; the key of the piece
    /// that is open, or of the offer that is withdrawn.
    number: U64,
}

impl Told {
    pub(super) const ASK: u32 = 1;
    pub(super) const NUMBER: u32 = 2;
    pub(super) const UP: u32 = 3;
    pub(super) const CUT: u32 = 4;
    pub(super) const OPEN: u32 = 5;
    pub(super) const GONE: u32 = 6;
}

/// One piece of an offer. The first is on the lane itself, stripe 0.
#[derive(Debug, Clone, Copy, FromBytes, IntoBytes, KnownLayout, Immutable, Unaligned)]
#[repr(C)]
pub(super) struct ToldPiece {
    pub(super) stripe: U64,
    pub(super) offer: Offer,
}

/// Pieces of a peer's offers that are not written, at most.
const TARGETS_MAX: usize = 1 << 16;

impl Stripes {
    /// Records the pieces of an offer of the peer.
    ///
    /// # Errors
    /// What is wrong with them.
    fn told_pieces(&mut self, count: u64, bytes: &[u8]) -> std::result::Result<(), String> {
        let wrong = || format!("it cut an offer into {count} pieces that are none");
        let pieces = <[ToldPiece]>::ref_from_bytes(bytes).map_err(|_| wrong())?;
        let follows = |pair: &[ToldPiece]| pair[0].stripe.get() < pair[1].stripe.get();
        // A write begins in the first piece.
        let is_long = |(place, piece): (usize, &ToldPiece)| {
            let least = if place == 0 { WRITE_AT_END } else { 0 };
            (least..=WRITE_BYTES_MAX as u64).contains(&piece.offer.len.get())
        };
        let is_up = |piece: &ToldPiece| match piece.stripe.get() {
            0 => true,
            stripe => self.beside.get(stripe as usize - 1).is_some_and(Option::is_some),
        };
        let is_right = pieces.len() as u64 == count
            && pieces.len() > 1
            && pieces[0].stripe.get() == 0
            && pieces.windows(2).all(follows)
            && pieces.iter().all(is_up)
            && pieces.iter().enumerate().all(is_long);
        if !is_right {
            return Err(wrong());
        }
        let of = pieces[0].offer.key.get();
        self.theirs.retain(|target| target.of != of);
        if self.theirs.len() >= TARGETS_MAX {
            return Err(format!("it has cut over {TARGETS_MAX} offers that nobody used"));
        }
        for &ToldPiece { stripe, offer } in pieces {
            let stripe = stripe.get() as usize;
            let opened = self.opened.iter().position(|it| *it == (stripe, offer.key.get()));
            let is_open = stripe == 0 || opened.and_then(|at| self.opened.remove(at)).is_some();
            self.theirs.push(Target { of, stripe, offer, is_open, write: Write::Unknown });
        }
        Ok(())
    }

    /// Notes that a piece of an offer of the peer is open.
    pub(super) fn open(&mut self, stripe: usize, key: u64) {
        let mut theirs = self.theirs.iter_mut();
        let is_it = |target: &&mut Target| {
            !target.is_open && target.stripe == stripe && target.offer.key.get() == key
        };
        if let Some(target) = theirs.find(is_it) {
            target.is_open = true;
            return;
        }
        if self.opened.len() >= TARGETS_MAX {
            self.opened.pop_front(); // its offer was given up
        }
        self.opened.push_back((stripe, key));
    }
}

impl Mixed {
    /// Tells a peer something of the stripes of its lane.
    pub(super) fn tell(
        &mut self,
        peer: PeerId,
        what: u32,
        number: u64,
        pieces: &[ToldPiece],
    ) -> Result<()> {
        self.tell_over(0, peer, what, number, pieces)
    }

    /// The same over the lane of one stripe.
    pub(super) fn tell_over(
        &mut self,
        stripe: usize,
        peer: PeerId,
        what: u32,
        number: u64,
        pieces: &[ToldPiece],
    ) -> Result<()> {
        let told = Told { magic: MAGIC.into(), what: what.into(), number: number.into() };
        let bytes = size_of::<Told>() + size_of_val(pieces);
        let mut frame = self.about.memory.allocate(FRAME_PREFIX + bytes)?;
        let (head, tail) = frame[FRAME_PREFIX..].split_at_mut(size_of::<Told>());
        head.copy_from_slice(told.as_bytes());
        tail.copy_from_slice(pieces.as_bytes());
        self.has_posted = true;
        let (member, inner) = self.lane_of(peer, stripe).ok_or(Error::NotConnected { peer })?;
        self.members[member].van.post_send(inner, Frame::Owned(frame)).map(drop)
    }

    /// Takes in what the peer tells of the stripes of its lane.
    ///
    /// # Errors
    /// What is wrong with it.
    #[inline(never)]
    pub(super) fn hear(&mut self, peer: PeerId, frame: &[u8]) -> std::result::Result<(), String> {
        let (told, pieces) =
            Told::ref_from_prefix(frame).map_err(|_| "it told of stripes in too few bytes")?;
        let Some(stripes) = self.stripes_of(peer) else { return Ok(()) };
        let number = told.number.get();
        match told.what.get() {
            Told::ASK if stripes.ways.is_none() => self.begin_stripes(peer),
            Told::NUMBER
                if stripes.ways.is_some() && (1..=u64::from(Beside::LANES)).contains(&number) =>
            {
                self.connect_stripes(peer, number as u32);
            }
            Told::UP if (1..=Beside::STRIPES as u64).contains(&number) => {
                stripes.is_up_there[number as usize - 1] = true;
            }
            Told::CUT => stripes.told_pieces(number, pieces)?,
            Told::GONE => stripes.theirs.retain(|target| target.of != number),
            what => return Err(format!("it told of stripes what it must not: {what}, {number}")),
        }
        Ok(())
    }
}

/// The key of the piece that a frame says is open.
pub(super) fn opened(frame: &[u8]) -> Option<u64> {
    let told = Told::ref_from_bytes(frame).ok()?;
    let is_it = (told.magic.get(), told.what.get()) == (MAGIC, Told::OPEN);
    is_it.then(|| told.number.get())
}
