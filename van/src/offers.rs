//! The memory a transport has offered to its peers: what may be written, by whom, until when.

use zerocopy::little_endian::U64;

use crate::error::{Error, Result};
use crate::memory::Buffer;
use crate::transport::PeerId;
use crate::wire::Offer;

/// All open offers of one transport. Keys are an index and a generation, so that a stale key never names newer memory.
#[derive(Debug, Default)]
pub struct Offers {
    entries: Vec<Entry>,
    free: Vec<u32>,
}

#[derive(Debug)]
struct Entry {
    generation: u32,
    open: Option<(PeerId, Place)>,
}

#[derive(Debug)]
enum Place {
    Here(Buffer),
    /// Lent to the receiver that is writing into it right now; its length.
    Lent(usize),
}

impl Place {
    fn len(&self) -> usize {
        match self {
            Place::Here(buffer) => buffer.len(),
            Place::Lent(len) => *len,
        }
    }
}

impl Offers {
    /// Lets `peer` write `into`.
    pub fn open(&mut self, peer: PeerId, into: Buffer) -> Offer {
        let len = into.len() as u64;
        let address = into.as_ptr() as u64;
        let index = self.free.pop().unwrap_or_else(|| {
            self.entries.push(Entry { generation: 0, open: None });
            (self.entries.len() - 1) as u32
        });
        let entry = &mut self.entries[index as usize];
        entry.open = Some((peer, Place::Here(into)));
        let key = u64::from(entry.generation) << 32 | u64::from(index);
        Offer { key: U64::new(key), address: U64::new(address), len: U64::new(len) }
    }

    /// Ends an offer and returns its memory.
    ///
    /// # Errors
    /// [`Error::OutsideOffer`] when `peer` was offered nothing under `key`, or is in the middle of writing it.
    pub fn close(&mut self, peer: PeerId, key: u64) -> Result<Buffer> {
        let index = self.find(peer, key).ok_or(missing(key))?;
        let entry = &mut self.entries[index];
        match entry.open.take() {
            Some((_, Place::Here(buffer))) => {
                entry.generation = entry.generation.wrapping_add(1);
                self.free.push(index as u32);
                Ok(buffer)
            }
            lent => {
                entry.open = lent;
                Err(missing(key))
            }
        }
    }

    /// Lends the memory of an offer to whoever writes `len` bytes at `at` of it for `peer`, until [`Offers::put_back`].
    ///
    /// # Errors
    /// [`Error::OutsideOffer`] when the write is not inside of an offer to that peer.
    pub fn lend(&mut self, peer: PeerId, key: u64, at: u64, len: u64) -> Result<Buffer> {
        let index = self.find(peer, key).ok_or(missing(key))?;
        let Some((_, place)) = &mut self.entries[index].open else { return Err(missing(key)) };
        let offered = place.len() as u64;
        if at.checked_add(len).is_none_or(|end| end > offered) {
            return Err(Error::OutsideOffer { key, at, len, offered });
        }
        match std::mem::replace(place, Place::Lent(offered as usize)) {
            Place::Here(buffer) => Ok(buffer),
            Place::Lent(_) => Err(missing(key)),
        }
    }

    /// Returns what [`Offers::lend`] gave. It is dropped when the offer has ended meanwhile.
    pub fn put_back(&mut self, key: u64, buffer: Buffer) {
        if let Some(entry) = self.entries.get_mut(index_of(key))
            && entry.generation == generation_of(key)
            && let Some((_, place @ Place::Lent(_))) = &mut entry.open
        {
            *place = Place::Here(buffer);
        }
    }

    /// Drops all that was offered to `peer`.
    pub fn forget(&mut self, peer: PeerId) {
        for (index, entry) in self.entries.iter_mut().enumerate() {
            if entry.open.as_ref().is_some_and(|(to, _)| *to == peer) {
                entry.open = None;
                entry.generation = entry.generation.wrapping_add(1);
                self.free.push(index as u32);
            }
        }
    }

    fn find(&self, peer: PeerId, key: u64) -> Option<usize> {
        let index = index_of(key);
        let entry = self.entries.get(index)?;
        let (to, _) = entry.open.as_ref()?;
        (entry.generation == generation_of(key) && *to == peer).then_some(index)
    }
}

fn index_of(key: u64) -> usize {
    key as u32 as usize
}

fn generation_of(key: u64) -> u32 {
    (key >> 32) as u32
}

fn missing(key: u64) -> Error {
    Error::OutsideOffer { key, at: 0, len: 0, offered: 0 }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, reason = "tests")]
    use super::*;
    use crate::memory::Pool;

    #[test]
    fn only_the_peer_it_was_made_to_and_only_while_open() {
        let pool = Pool::new(1 << 20);
        let mut offers = Offers::default();
        let offer = offers.open(PeerId(1), pool.allocate(100).unwrap());
        let key = offer.key.get();
        assert!(offers.lend(PeerId(2), key, 0, 1).is_err(), "somebody else's");
        assert!(offers.lend(PeerId(1), key, 90, 11).is_err(), "past the end");
        assert!(offers.lend(PeerId(1), key, u64::MAX, 2).is_err(), "wraps around");
        let lent = offers.lend(PeerId(1), key, 90, 10).unwrap();
        assert!(offers.close(PeerId(1), key).is_err(), "in the middle of a write");
        offers.put_back(key, lent);
        assert_eq!(offers.close(PeerId(1), key).unwrap().len(), 100);
        let newer = offers.open(PeerId(1), pool.allocate(8).unwrap());
        assert_ne!(newer.key, offer.key);
        assert!(offers.lend(PeerId(1), key, 0, 1).is_err(), "a stale key");
        offers.forget(PeerId(1));
        assert!(offers.close(PeerId(1), newer.key.get()).is_err());
    }

    #[test]
    fn memory_of_an_ended_offer_does_not_enter_a_newer_one() {
        let pool = Pool::new(1 << 20);
        let mut offers = Offers::default();
        let old = offers.open(PeerId(1), pool.allocate(100).unwrap()).key.get();
        let lent = offers.lend(PeerId(1), old, 0, 100).unwrap();
        offers.forget(PeerId(1));
        let newer = offers.open(PeerId(2), pool.allocate(8).unwrap()).key.get();
        assert_eq!(index_of(newer), index_of(old), "its place is used again");
        offers.put_back(old, lent);
        assert_eq!(offers.close(PeerId(2), newer).unwrap().len(), 8);

        let newer = offers.open(PeerId(2), pool.allocate(8).unwrap()).key.get();
        let _lent = offers.lend(PeerId(2), newer, 0, 8).unwrap();
        offers.put_back(old, pool.allocate(100).unwrap());
        assert!(offers.close(PeerId(2), newer).is_err(), "it is lent still");
    }
}
