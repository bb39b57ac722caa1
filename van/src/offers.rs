//! Memory that a transport has offered to its peers: each offer admits one write by one peer.

use zerocopy::little_endian::U64;

use crate::error::{Error, Result};
use crate::memory::Buffer;
use crate::transport::{PeerId, check_write};
use crate::wire::Offer;

/// All open offers of one transport. A key is an index and a generation, so that a stale key never
/// names newer memory.
#[derive(Debug, Default)]
pub struct Offers {
    entries: Vec<Entry>,
    free: Vec<u32>,
    /// By peer number.
    tallies: Vec<Tally>,
}

/// The open offers to one peer.
#[derive(Debug, Default, Clone, Copy)]
struct Tally {
    count: u32,
    /// Sum of their keys. If one offer is open, it is that offer's key.
    keys: u64,
}

#[derive(Debug)]
struct Entry {
    generation: u32,
    open: Option<(PeerId, Buffer)>,
}

impl Offers {
    /// Lets `peer` write `into`, once.
    pub fn open(&mut self, peer: PeerId, into: Buffer) -> Offer {
        let len = into.len() as u64;
        let address = into.as_ptr() as u64;
        let index = self.free.pop().unwrap_or_else(|| {
            self.entries.push(Entry { generation: 0, open: None });
            (self.entries.len() - 1) as u32
        });
        let entry = &mut self.entries[index as usize];
        entry.open = Some((peer, into));
        let key = u64::from(entry.generation) << 32 | u64::from(index);
        let number = peer.0 as usize;
        if self.tallies.len() <= number {
            self.tallies.resize(number + 1, Tally::default());
        }
        let tally = &mut self.tallies[number];
        tally.count += 1;
        tally.keys = tally.keys.wrapping_add(key);
        Offer { key: U64::new(key), address: U64::new(address), len: U64::new(len) }
    }

    /// Ends an offer and returns its memory.
    ///
    /// # Errors
    /// [`Error::OutsideOffer`] if `peer` has no open offer under `key`, for example because it has
    /// been written.
    pub fn close(&mut self, peer: PeerId, key: u64) -> Result<Buffer> {
        self.take(peer, key, 0, 0)
    }

    /// Ends an offer because `peer` writes `len` bytes at `at` in it. Returns all its memory.
    ///
    /// # Errors
    /// As [`check_write`]; the offer stays open then.
    pub fn take(&mut self, peer: PeerId, key: u64, at: u64, len: u64) -> Result<Buffer> {
        let index = index_of(key);
        let missing = Error::OutsideOffer { key, at, len, offered: 0 };
        let Some(entry) = self.entries.get_mut(index) else { return Err(missing) };
        let generation = entry.generation;
        let is_open = |(to, _): &(PeerId, Buffer)| *to == peer && generation == generation_of(key);
        let Some((_, memory)) = entry.open.as_ref().filter(|open| is_open(open)) else {
            return Err(missing);
        };
        check_write(key, at, len, memory.len() as u64)?;
        let (_, memory) = entry.open.take().ok_or(missing)?;
        entry.generation = entry.generation.wrapping_add(1);
        self.free.push(index as u32);
        let tally = &mut self.tallies[peer.0 as usize];
        tally.count -= 1;
        tally.keys = tally.keys.wrapping_sub(key);
        Ok(memory)
    }

    /// The memory and key of the only offer to `peer`; `None` if it has no offer or several.
    #[inline]
    pub fn only(&mut self, peer: PeerId) -> Option<(u64, &mut Buffer)> {
        let Tally { count: 1, keys: key } = *self.tallies.get(peer.0 as usize)? else {
            return None;
        };
        let (_, memory) = self.entries[index_of(key)].open.as_mut()?;
        Some((key, memory))
    }

    /// Drops all offers to `peer`.
    pub fn forget(&mut self, peer: PeerId) {
        for (index, entry) in self.entries.iter_mut().enumerate() {
            if entry.open.as_ref().is_some_and(|(to, _)| *to == peer) {
                entry.open = None;
                entry.generation = entry.generation.wrapping_add(1);
                self.free.push(index as u32);
            }
        }
        if let Some(tally) = self.tallies.get_mut(peer.0 as usize) {
            *tally = Tally::default();
        }
    }
}

fn index_of(key: u64) -> usize {
    key as u32 as usize
}

fn generation_of(key: u64) -> u32 {
    (key >> 32) as u32
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
        assert!(offers.take(PeerId(2), key, 0, 1).is_err(), "somebody else's");
        assert!(offers.take(PeerId(1), key, 96, 5).is_err(), "past the end");
        assert!(offers.take(PeerId(1), key, 4, 1).is_err(), "where no write begins");
        assert!(offers.take(PeerId(1), key, 8, u64::MAX).is_err(), "wraps around");
        assert_eq!(offers.take(PeerId(1), key, 96, 4).unwrap().len(), 100, "all of it comes back");
        assert!(offers.take(PeerId(1), key, 0, 1).is_err(), "it has been used");
        assert!(offers.close(PeerId(1), key).is_err());
        let newer = offers.open(PeerId(1), pool.allocate(8).unwrap());
        assert_eq!(index_of(newer.key.get()), index_of(key), "its place is used again");
        assert!(offers.take(PeerId(1), key, 0, 1).is_err(), "a stale key");
        assert_eq!(offers.close(PeerId(1), newer.key.get()).unwrap().len(), 8);
        let last = offers.open(PeerId(1), pool.allocate(8).unwrap());
        offers.forget(PeerId(1));
        assert!(offers.close(PeerId(1), last.key.get()).is_err());
    }

    #[test]
    fn the_only_offer_to_a_peer_is_known() {
        let pool = Pool::new(1 << 20);
        let mut offers = Offers::default();
        let open = |offers: &mut Offers, peer, len| {
            offers.open(PeerId(peer), pool.allocate(len).unwrap()).key.get()
        };
        let only = |offers: &mut Offers| offers.only(PeerId(1)).map(|(key, it)| (key, it.len()));
        assert_eq!(only(&mut offers), None);
        open(&mut offers, 2, 8);
        let first = open(&mut offers, 1, 16);
        assert_eq!(only(&mut offers), Some((first, 16)));
        let second = open(&mut offers, 1, 24);
        assert_eq!(only(&mut offers), None, "it may write to either");
        offers.take(PeerId(1), first, 0, 16).unwrap();
        assert_eq!(only(&mut offers), Some((second, 24)));
        offers.forget(PeerId(1));
        assert_eq!(only(&mut offers), None);
        let last = open(&mut offers, 1, 32);
        assert_eq!(only(&mut offers), Some((last, 32)));
    }
}
