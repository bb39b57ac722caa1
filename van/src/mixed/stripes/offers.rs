//! Own offers in pieces: cut, withdrawn, and written whole.

use super::told::{Told, ToldPiece};
use super::{Landed, Mixed, Piece, Stripe, Stripes};
use crate::error::{Error, Result};
use crate::memory::{Buffer, SLOT_ALIGN};
use crate::transport::PeerId;
use crate::wire::{Beside, Offer};

/// The most pieces of an offer.
const PIECES_MAX: usize = Beside::STRIPES + 1;

impl Stripes {
    /// The piece of an own offer with this key among those of one lane.
    pub(super) fn piece(&mut self, stripe: Stripe, key: u64) -> Option<&mut Piece> {
        let stripe = match stripe {
            Stripe::Whole | Stripe::First => 0,
            Stripe::Beside(stripe) => stripe,
        };
        self.own.iter_mut().find(|piece| piece.key == key && piece.stripe == stripe)
    }

    /// Takes a write to the offer of this key that is whole.
    ///
    /// # Errors
    /// What is wrong with it.
    pub(super) fn whole(&mut self, key: u64) -> std::result::Result<Option<Landed>, String> {
        let mut pieces = self.own.iter().filter(|piece| piece.of == key);
        if pieces.any(|piece| piece.landed.is_none()) {
            return Ok(None);
        }
        let mut whole: Option<Landed> = None;
        let mut is_full = true;
        for piece in self.own.extract_if(.., |piece| piece.of == key) {
            let Some(Landed { memory, at, len }) = piece.landed else { continue };
            let gap = || format!("it wrote {len} bytes at {at} of a piece, behind a gap");
            match &mut whole {
                None => whole = Some(Landed { memory, at, len }),
                Some(_) if at != 0 || len > 0 && !is_full => return Err(gap()),
                Some(all) => {
                    all.memory.join(memory).map_err(|_| gap())?;
                    all.len += len;
                }
            }
            is_full = is_full && at + len == piece.len;
        }
        Ok(whole)
    }
}

impl Mixed {
    /// Lets `peer` write `into`, a piece over each lane that is there.
    pub(in crate::mixed) fn offer_pieces(&mut self, peer: PeerId, into: Buffer) -> Result<Offer> {
        let lane = self.lanes.get(peer.0 as usize).and_then(Option::as_ref);
        let Some((lane, stripes)) = lane.and_then(|it| Some((it, it.stripes.as_deref()?))) else {
            return self.offer_whole(peer, into);
        };
        let mut lanes = [(0, lane.member, lane.peer); PIECES_MAX];
        let mut count = 1;
        for (stripe, beside) in stripes.usable() {
            lanes[count] = (stripe, beside.member, beside.peer);
            count += 1;
        }
        if count == 1 {
            self.begin_stripes(peer);
            return self.offer_whole(peer, into);
        }
        let len = into.len();
        let size = len.div_ceil(count).next_multiple_of(SLOT_ALIGN);
        let mut told = [ToldPiece { stripe: 0.into(), offer: Offer::default() }; PIECES_MAX];
        let mut rest = into;
        for (place, &(stripe, member, inner)) in lanes[..count].iter().enumerate() {
            let piece = rest.split_to(if place + 1 < count { size } else { rest.len() });
            match self.members[member].van.offer(inner, piece) {
                Ok(offer) => told[place] = ToldPiece { stripe: (stripe as u64).into(), offer },
                Err(error) => {
                    let _ = self.take_back(peer, &told[..place]);
                    return Err(error.of(peer));
                }
            }
        }
        let told = &told[..count];
        let opened = told[1..].iter().try_for_each(|piece| {
            let stripe = piece.stripe.get() as usize;
            self.tell_over(stripe, peer, Told::OPEN, piece.offer.key.get(), &[])
        });
        if opened.and_then(|()| self.tell(peer, Told::CUT, count as u64, told)).is_err() {
            // There is no room for a frame now.
            let whole = self.take_back(peer, told)?;
            return self.offer_whole(peer, whole);
        }
        let offer = Offer { len: (len as u64).into(), ..told[0].offer };
        if let Some(stripes) = self.stripes_of(peer) {
            stripes.own.extend(told.iter().map(|piece| Piece {
                of: offer.key.get(),
                stripe: piece.stripe.get() as usize,
                key: piece.offer.key.get(),
                len: piece.offer.len.get() as usize,
                landed: None,
            }));
        }
        Ok(offer)
    }

    /// Withdraws pieces that the peer has not heard of.
    fn take_back(&mut self, peer: PeerId, pieces: &[ToldPiece]) -> Result<Buffer> {
        let mut whole: Option<Buffer> = None;
        for piece in pieces {
            let memory =
                self.withdraw_piece(peer, piece.stripe.get() as usize, piece.offer.key.get())?;
            whole = join(whole, memory);
        }
        let pieces = pieces.len() as u64;
        whole.ok_or(Error::OutsideOffer { key: 0, at: 0, len: 0, offered: pieces })
    }

    /// Withdraws an offer of one van.
    pub(in crate::mixed) fn withdraw_piece(
        &mut self,
        peer: PeerId,
        stripe: usize,
        key: u64,
    ) -> Result<Buffer> {
        let missing = Error::OutsideOffer { key, at: 0, len: 0, offered: 0 };
        match self.lane_of(peer, stripe) {
            Some((member, inner)) => {
                let withdrawn = self.members[member].van.withdraw(inner, key);
                withdrawn.map_err(|error| error.of(peer))
            }
            None => Err(missing),
        }
    }

    /// Ends an offer that was cut and not used; `None` if there is no such one.
    pub(in crate::mixed) fn withdraw_pieces(
        &mut self,
        peer: PeerId,
        key: u64,
    ) -> Option<Result<Buffer>> {
        let stripes = self.lanes.get_mut(peer.0 as usize)?.as_mut()?.stripes.as_mut()?;
        let first = stripes.own.iter().find(|piece| piece.of == key)?;
        if first.landed.is_some() {
            return Some(Err(Error::OutsideOffer {
                key,
                at: 0,
                len: 0,
                offered: first.len as u64,
            }));
        }
        let mut whole = match self.withdraw_piece(peer, 0, key) {
            Ok(memory) => Some(memory),
            Err(error) => return Some(Err(error)),
        };
        let mut is_begun = None;
        while let Some(piece) = self.take_piece(peer, key) {
            let memory = match piece.landed {
                _ if piece.stripe == 0 => continue,
                Some(Landed { memory, .. }) => Ok(memory),
                None => self.withdraw_piece(peer, piece.stripe, piece.key),
            };
            match memory {
                Ok(memory) => whole = join(whole, memory),
                Err(error) => is_begun = Some(error),
            }
        }
        if let Some(error) = is_begun {
            // The write has begun, and cannot end any more.
            self.break_off(peer, "an offer was withdrawn while it was written".to_owned());
            return Some(Err(error));
        }
        let _ = self.tell(peer, Told::GONE, key, &[]); // a peer that does not hear it keeps a note
        whole.map(Ok)
    }

    fn take_piece(&mut self, peer: PeerId, key: u64) -> Option<Piece> {
        let stripes = self.lanes.get_mut(peer.0 as usize)?.as_mut()?.stripes.as_mut()?;
        let at = stripes.own.iter().position(|piece| piece.of == key)?;
        Some(stripes.own.remove(at))
    }
}

/// Two pieces that followed each other, as one.
fn join(whole: Option<Buffer>, piece: Buffer) -> Option<Buffer> {
    let Some(mut whole) = whole else { return Some(piece) };
    let joined = whole.join(piece);
    debug_assert!(joined.is_ok(), "pieces of an offer follow each other");
    Some(whole)
}
