//! Key caching: a list of keys that was sent before is named by its signature.
//!
//! * The first message with a list carries the keys and their signature, which tells the server to
//!   remember them. Later pushes and pulls carry only the signature; answers to pulls hold only
//!   values in any case.
//! * The server remembers lists per lane and shard, up to a total of bytes, and evicts the least
//!   recently used; a lane's lists go with the lane. It stores with a list where the rows of its
//!   keys are.
//! * A server that does not know a signature asks for the keys: a failure with the operation
//!   `Keys`. It keeps the request that it could not execute, and holds back what follows on that
//!   lane, until a request with that operation and the first one's timestamp brings the keys. So
//!   nothing is applied twice or out of order, and values are sent once.
//!
//! The worker makes the signatures (`signature.rs`), and keeps a copy of each list to answer such a
//! request. To the server they are opaque names, looked up only for the lane that sent them.
//!
//! Li et al., "Scaling Distributed Machine Learning with the Parameter Server", OSDI 2014, section
//! 5.1. There the signature covers the first keys only, and a server that does not know one fails.

use std::ops::Range;
use std::rc::Rc;

use caravan_van::wire::Offer;
use caravan_van::{Account, PeerId, Pool};

use super::lru::Lru;
use super::signature::Signer;
use crate::error::Result;
use crate::server::FoundRows;

/// Shorter lists are always sent in full.
pub(super) const KEYS_MIN: usize = 32;

/// Bytes of lists that a worker keeps per table, and by default a server thread in total. A worker
/// counts them as servers do, so that it names no list that its only server has forgotten.
pub const REMEMBERED_BYTES_MAX: usize = 64 << 20;

/// After a server has asked for a list n times, 2^n messages carry it, with n limited to this.
const PATIENCE_MAX: u32 = 10;

/// Bytes that a list takes at a server: keys, rows, runs of rows, and the entry itself.
fn bytes_at_server(keys: usize) -> usize {
    keys * (size_of::<u64>() + size_of::<u32>() + 4) + 256
}

/// Counters of key caching.
#[derive(Debug, Default, Clone, Copy, PartialEq, Eq)]
pub struct KeyCacheCounters {
    /// Messages that carried a signature in place of their keys.
    pub messages_named: u64,
    /// Messages for whose keys a server asked.
    pub messages_asked: u64,
    /// Bytes of keys that were not sent, less the signatures.
    pub bytes_saved: u64,
}

/// A worker's lists of one table.
pub(crate) struct Sent {
    signer: Signer,
    lists: Lru<u64, SentList>,
    pub(crate) counters: KeyCacheCounters,
}

struct SentList {
    keys: Rc<[u64]>,
    /// Indexed by shard.
    at: Vec<AtOwner>,
}

/// State of a list's part for a shard at the owner of the shard.
#[derive(Clone, Copy, Default)]
struct AtOwner {
    /// Whether the server has received it.
    knows: bool,
    /// How often the server has asked for it.
    asked: u32,
    /// Further messages that carry the keys.
    wait: u32,
}

/// A list with its signature.
#[derive(Clone)]
pub(crate) struct Signed {
    pub(crate) signature: u64,
    pub(crate) keys: Rc<[u64]>,
}

impl Sent {
    /// Creates an empty store of up to [`REMEMBERED_BYTES_MAX`] bytes, for any number of servers.
    pub(crate) fn new() -> Sent {
        let lists = Lru::new(REMEMBERED_BYTES_MAX);
        Sent { signer: Signer::new(0), lists, counters: KeyCacheCounters::default() }
    }

    /// Signs `keys`, unless they are few. Calls `check` for new ones first.
    ///
    /// # Errors
    /// Those of `check`.
    pub(crate) fn sign(
        &mut self,
        keys: &[u64],
        check: impl FnOnce(&[u64]) -> Result<()>,
    ) -> Result<Option<Signed>> {
        if keys.len() < KEYS_MIN {
            check(keys)?;
            return Ok(None);
        }
        let signature = self.signer.sign(keys);
        let known = self.lists.touch(&signature).filter(|list| list.keys.len() == keys.len());
        if let Some(list) = known {
            return Ok(Some(Signed { signature, keys: list.keys.clone() }));
        }
        check(keys)?;
        let copy: Rc<[u64]> = keys.into();
        let list = SentList { keys: copy.clone(), at: Vec::new() };
        self.lists.insert(signature, list, bytes_at_server(keys.len()));
        Ok(Some(Signed { signature, keys: copy }))
    }

    /// Whether the next message to the owner of `shard` can omit its `keys` keys.
    pub(crate) fn omits(&mut self, signature: u64, shard: usize, keys: usize) -> bool {
        // A list too long to be kept is always sent.
        let Some(list) = self.lists.peek(&signature) else { return false };
        if list.at.len() <= shard {
            list.at.resize(shard + 1, AtOwner::default());
        }
        let at = &mut list.at[shard];
        if at.knows {
            self.counters.messages_named += 1;
            self.counters.bytes_saved += (keys.saturating_sub(1) * size_of::<u64>()) as u64;
            return true;
        }
        at.wait = at.wait.saturating_sub(1);
        at.knows = at.wait == 0;
        false
    }

    /// Records that the owner of `shard` asked for a list, which is now sent to it.
    pub(crate) fn asked(&mut self, signature: u64, shard: usize, keys: usize) {
        self.counters.messages_asked += 1;
        let again = (keys * size_of::<u64>()) as u64;
        self.counters.bytes_saved = self.counters.bytes_saved.saturating_sub(again);
        let Some(list) = self.lists.peek(&signature) else { return };
        let Some(at) = list.at.get_mut(shard) else { return };
        at.asked = (at.asked + 1).min(PATIENCE_MAX);
        // The request that brings the keys counts, so after the first the next may omit them.
        at.wait = (1 << at.asked) - 2;
        at.knows = at.wait == 0;
    }
}

/// A message without its keys, until it is answered.
pub(crate) struct Outstanding {
    /// The keys for all shards.
    pub(crate) list: Signed,
    /// The positions of those for this shard.
    pub(crate) keys: Range<usize>,
    /// The worker's index of the table.
    pub(crate) table: usize,
    pub(crate) shard: usize,
    pub(crate) server: usize,
    /// Memory offered for the answer.
    pub(crate) offer: Option<Offer>,
}

/// A list that a server remembers.
#[derive(Debug)]
pub(crate) struct List {
    pub(crate) keys: Vec<u64>,
    /// Whether the message has runs in place of the keys.
    pub(crate) is_implied: bool,
    /// Where the table's shard has found them.
    pub(crate) rows: FoundRows,
    /// Accounts for the list's memory.
    memory: Account,
}

/// Share of a thread's memory for its lists: an eighth at most.
const REMEMBERED_SHARE: usize = 8;

/// The lists that a server thread remembers, of all its lanes.
pub(crate) struct Remembered {
    lists: Lru<Name, Rc<List>>,
    memory: Pool,
    /// The keys of the last runs, for the memory they have.
    implied: Option<Rc<List>>,
}

/// Lane, table, first key of the shard, signature. The signature is that of the whole list, of
/// which each shard has its own part.
type Name = (PeerId, u32, u64, u64);

impl Remembered {
    /// Creates an empty store of at most `bytes_max` bytes and an eighth of `memory`.
    pub(crate) fn new(bytes_max: usize, memory: &Pool) -> Remembered {
        let bytes_max = bytes_max.min(memory.bytes_max() / REMEMBERED_SHARE);
        Remembered { lists: Lru::new(bytes_max), memory: memory.clone(), implied: None }
    }

    /// Remembers keys that a peer sent with a signature, if they are not larger than the whole
    /// store.
    ///
    /// # Errors
    /// [`caravan_van::Error::OverBudget`] if there is no memory for them, even after all others are
    /// evicted.
    pub(crate) fn remember(&mut self, name: Name, keys: &[u64]) -> caravan_van::Result<Rc<List>> {
        let bytes = bytes_at_server(keys.len());
        let mut memory = Account::new(&self.memory, "a list of keys");
        while let Err(error) = memory.set(bytes) {
            if !self.lists.remove_oldest() {
                return Err(error);
            }
        }
        let keys = keys.to_vec();
        let list = List { keys, is_implied: false, rows: FoundRows::default(), memory };
        let list = Rc::new(list);
        self.lists.insert(name, list.clone(), bytes);
        Ok(list)
    }

    /// The keys that a peer sent under this name, if they are remembered.
    pub(crate) fn recall(&mut self, name: Name) -> Option<Rc<List>> {
        self.lists.touch(&name).map(|list| list.clone())
    }

    /// Forgets the lists of a shard that has left.
    pub(crate) fn forget_shard(&mut self, table: u32, begin: u64) {
        self.lists.retain(|(_, of, first, _)| (*of, *first) != (table, begin));
    }

    /// The list of the `count` keys of a message's runs. Its memory is used again for the next,
    /// once nobody holds it.
    ///
    /// # Errors
    /// [`caravan_van::Error::OverBudget`] if there is no memory for them.
    pub(crate) fn imply(
        &mut self,
        count: usize,
        keys: impl Iterator<Item = u64>,
    ) -> caravan_van::Result<Rc<List>> {
        let last = self.implied.take().and_then(|list| Rc::try_unwrap(list).ok());
        let last = last.filter(|list| list.keys.capacity() / 4 <= count);
        let mut list = last.unwrap_or_else(|| List {
            keys: Vec::new(),
            is_implied: true,
            rows: FoundRows::default(),
            memory: Account::new(&self.memory, "a list of keys"),
        });
        list.keys.clear();
        list.rows.forget();
        list.memory.set(bytes_at_server(count.max(list.keys.capacity())))?;
        list.keys.reserve_exact(count);
        list.keys.extend(keys);
        Ok(self.implied.insert(Rc::new(list)).clone())
    }

    /// Forgets the lists of a dropped table.
    pub(crate) fn forget_table(&mut self, table: u32) {
        self.implied = None;
        self.lists.retain(|(_, of, ..)| *of != table);
        self.lists.shrink();
    }

    /// Forgets the lists of a lost lane.
    pub(crate) fn forget(&mut self, peer: PeerId) {
        self.lists.retain(|(of, ..)| *of != peer);
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, reason = "tests")]
    use super::*;
    use crate::error::Error;

    fn fine(_: &[u64]) -> Result<()> {
        Ok(())
    }

    #[test]
    fn a_list_is_checked_once_and_named_from_the_second_message_on() {
        let mut sent = Sent::new();
        let keys: Vec<u64> = (0..100).collect();
        let refuse = |_: &[u64]| Err(Error::Config("no".to_owned()));
        assert!(sent.sign(&keys, refuse).is_err());
        assert!(sent.sign(&keys[..5], fine).unwrap().is_none(), "few keys are no list");
        let signed = sent.sign(&keys, fine).unwrap().unwrap();
        assert!(!sent.omits(signed.signature, 1, 40));
        assert!(sent.omits(signed.signature, 1, 40) && !sent.omits(signed.signature, 0, 60));
        let again = sent.sign(&keys, refuse).unwrap().unwrap();
        assert_eq!((again.signature, &*again.keys), (signed.signature, &keys[..]));
        let counters = KeyCacheCounters { messages_named: 1, messages_asked: 0, bytes_saved: 312 };
        assert_eq!(sent.counters, counters);
    }

    #[test]
    fn a_server_that_asks_often_is_sent_the_keys() {
        let mut sent = Sent::new();
        let keys: Vec<u64> = (0..100).collect();
        let signature = sent.sign(&keys, fine).unwrap().unwrap().signature;
        assert!(!sent.omits(signature, 0, 100));
        let mut between = Vec::new();
        for _ in 0..4 {
            let carried = (0..).take_while(|_| !sent.omits(signature, 0, 100)).count();
            between.push(carried);
            sent.asked(signature, 0, 100);
        }
        assert_eq!(between, [0, 0, 2, 6]);
        assert_eq!(sent.counters.messages_asked, 4);
    }

    #[test]
    fn lists_belong_to_a_lane_and_a_shard_and_the_oldest_go_first() {
        let mut lists = Remembered::new(3 * bytes_at_server(100), &Pool::new(1 << 20));
        let keys: Vec<u64> = (0..100).collect();
        let [a, b] = [PeerId(1), PeerId(2)];
        lists.remember((a, 7, 0, 1), &keys).unwrap();
        assert!(lists.recall((b, 7, 0, 1)).is_none() && lists.recall((a, 8, 0, 1)).is_none());
        assert!(lists.recall((a, 7, 50, 1)).is_none(), "another shard");
        assert_eq!(*lists.recall((a, 7, 0, 1)).unwrap().keys, keys);
        lists.remember((a, 7, 0, 2), &keys).unwrap();
        lists.remember((b, 7, 0, 2), &keys).unwrap();
        assert!(lists.recall((a, 7, 0, 1)).is_some());
        lists.remember((b, 7, 0, 3), &keys).unwrap();
        assert!(lists.recall((a, 7, 0, 2)).is_none() && lists.recall((a, 7, 0, 1)).is_some());
        lists.forget(b);
        assert!(lists.recall((b, 7, 0, 2)).is_none() && lists.recall((b, 7, 0, 3)).is_none());
        let long: Vec<u64> = (0..400).collect();
        assert_eq!(*lists.remember((a, 7, 0, 9), &long).unwrap().keys, long);
        assert!(lists.recall((a, 7, 0, 9)).is_none() && lists.recall((a, 7, 0, 1)).is_some());
    }

    #[test]
    fn lists_give_way_to_each_other_and_take_no_more_than_there_is() {
        let memory = Pool::new(1 << 20);
        let mut lists = Remembered::new(usize::MAX, &memory);
        let keys: Vec<u64> = (0..1000).collect();
        for signature in 0..100 {
            lists.remember((PeerId(1), 7, 0, signature), &keys).unwrap();
        }
        let left = memory.bytes_left();
        assert!(left >= (7 << 17) - (1 << 17), "lists take an eighth: {left} bytes are left");
        let mut others = Account::new(&memory, "others");
        others.set(left).unwrap();
        lists.remember((PeerId(1), 7, 0, 100), &keys).unwrap();
        assert!(
            lists.recall((PeerId(1), 7, 0, 100)).is_some()
                && lists.recall((PeerId(1), 7, 0, 50)).is_none()
        );
        let long: Vec<u64> = (0..20_000).collect();
        let error = lists.remember((PeerId(1), 7, 0, 101), &long).unwrap_err().to_string();
        assert!(
            error.contains("a list of keys would take") && error.contains("CARAVAN_MEMORY"),
            "{error}"
        );
        lists.forget(PeerId(1));
        drop(others);
        assert_eq!(memory.bytes_left(), 7 << 17, "nothing is left of them");
    }
}
