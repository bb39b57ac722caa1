//! Writes to the peer's offers in pieces: a part to each, once it is open.

use std::ops::Range;

use super::{Mixed, Stripes, Target, Write};
use crate::error::{Error, Result};
use crate::transport::{Gather, PeerId, check_write};
use crate::wire::Offer;

impl Stripes {
    /// Forgets an offer of the peer all of which is written.
    fn forget_written(&mut self, of: u64) {
        let mut pieces = self.theirs.iter().filter(|target| target.of == of);
        if pieces.all(|target| matches!(target.write, Write::Posted)) {
            self.theirs.retain(|target| target.of != of);
        }
    }
}

impl Mixed {
    /// Writes to every piece of an offer that the peer has cut; `None` if there is no such one.
    pub(in crate::mixed) fn write_pieces(
        &mut self,
        peer: PeerId,
        data: &Gather,
        into: &Offer,
        at: u64,
    ) -> Option<Result<()>> {
        let key = into.key.get();
        let theirs = &self.stripes_of(peer)?.theirs;
        let first = theirs.iter().position(|target| target.of == key)?;
        let count = theirs[first..].iter().take_while(|target| target.of == key).count();
        Some(self.post_pieces(peer, first..first + count, data, at))
    }

    /// Posts the pieces of one write, the first of them last. One that finds no room leaves those
    /// that are posted to the next try.
    fn post_pieces(
        &mut self,
        peer: PeerId,
        pieces: Range<usize>,
        data: &Gather,
        at: u64,
    ) -> Result<()> {
        let len_of = |target: &Target| target.offer.len.get();
        let all = self.targets(peer, &pieces)?;
        let mut end: u64 = all.iter().map(len_of).sum();
        let (of, len) = (all[0].of, data.len() as u64);
        check_write(of, at, len, end)?;
        if matches!(all[0].write, Write::Posted) {
            return Err(Error::OutsideOffer { key: of, at, len, offered: 0 }); // a second write
        }
        for place in (0..pieces.len()).rev() {
            let target = &mut self.targets(peer, &pieces)?[place];
            let (stripe, offer) = (target.stripe, target.offer);
            let begin = end - offer.len.get();
            let in_data = |place: u64| place.saturating_sub(at).min(data.len() as u64) as usize;
            let part = data.slice(in_data(begin)..in_data(end));
            end = begin;
            match target.write {
                Write::Unknown if target.is_open => {
                    let at = if stripe == 0 { at } else { 0 };
                    self.post_piece(peer, stripe, part, &offer, at)?;
                    self.targets(peer, &pieces)?[place].write = Write::Posted;
                }
                Write::Unknown => target.write = Write::Waits(part),
                Write::Waits(_) | Write::Posted => {} // by an earlier try
            }
        }
        if let Some(stripes) = self.stripes_of(peer) {
            stripes.forget_written(of);
        }
        Ok(())
    }

    fn post_piece(
        &mut self,
        peer: PeerId,
        stripe: usize,
        part: Gather,
        into: &Offer,
        at: u64,
    ) -> Result<()> {
        let (member, inner) = self.lane_of(peer, stripe).ok_or(Error::NotConnected { peer })?;
        self.has_posted = true;
        let posted = self.members[member].van.post_write(inner, part, into, at);
        posted.map_err(|error| error.of(peer))
    }

    /// Posts what waited for pieces that are open now. Where there is no room, the next turn tries
    /// again.
    pub(in crate::mixed) fn post_waiting(&mut self, peer: PeerId) {
        let waits = |target: &Target| target.is_open && matches!(target.write, Write::Waits(_));
        while let Some(stripes) = self.stripes_of(peer)
            && let Some(place) = stripes.theirs.iter().position(waits)
        {
            let target = &stripes.theirs[place];
            let Write::Waits(part) = &target.write else { return };
            let (of, stripe, offer, part) = (target.of, target.stripe, target.offer, part.clone());
            match self.post_piece(peer, stripe, part, &offer, 0) {
                Ok(()) => {}
                Err(Error::QueueFull { .. }) => return self.waiting.push(peer),
                Err(_) => return, // its loss is reported as an event
            }
            if let Some(stripes) = self.stripes_of(peer) {
                stripes.theirs[place].write = Write::Posted;
                stripes.forget_written(of);
            }
        }
    }

    fn targets(&mut self, peer: PeerId, pieces: &Range<usize>) -> Result<&mut [Target]> {
        match self.stripes_of(peer) {
            Some(stripes) => Ok(&mut stripes.theirs[pieces.clone()]),
            None => Err(Error::NotConnected { peer }),
        }
    }
}
