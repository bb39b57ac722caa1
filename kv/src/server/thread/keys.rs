//! The keys of requests that name them: by the signature of a list, or as runs.

use std::collections::{HashMap, VecDeque};
use std::rc::Rc;

use caravan_van::{Message, PeerId, Pool};

use crate::filter::{List, REMEMBERED_BYTES_MAX, Remembered};
use crate::op::Op;
use crate::refusal::Refused;
use crate::runs;

/// The lists of keys that workers have named, and the lanes that were asked for others.
pub(super) struct NamedKeys {
    lists: Remembered,
    /// By lane, the request whose keys were asked for.
    lacking: HashMap<PeerId, Lacking>,
}

/// A request that lacks its keys.
struct Lacking {
    message: Message,
    /// Messages that came after it on its lane.
    held: VecDeque<Message>,
}

/// A request that lacked its keys, once they have come.
pub(super) struct Brought {
    pub(super) request: Message,
    /// Fails if there is no memory for the keys.
    pub(super) list: caravan_van::Result<Rc<List>>,
    /// The table and the first key of the shard whose list it is.
    pub(super) shard: (u32, u64),
    /// Messages that came after the request, in their order.
    pub(super) held: VecDeque<Message>,
}

impl NamedKeys {
    /// No keys, and a limit for them that suits this memory.
    pub(super) fn new(memory: &Pool) -> NamedKeys {
        let lists = Remembered::new(REMEMBERED_BYTES_MAX, memory);
        NamedKeys { lists, lacking: HashMap::new() }
    }

    /// Limits the lists of keys to `bytes_max`, and to a share of `memory`. Forgets those so far.
    pub(super) fn remember_bytes(&mut self, bytes_max: usize, memory: &Pool) {
        self.lists = Remembered::new(bytes_max, memory);
    }

    /// Whether no lane was asked for keys.
    #[inline(always)]
    pub(super) fn are_all_known(&self) -> bool {
        self.lacking.is_empty()
    }

    /// Whether this lane was asked for keys.
    pub(super) fn are_awaited(&self, peer: PeerId) -> bool {
        !self.lacking.is_empty() && self.lacking.contains_key(&peer)
    }

    /// The keys that a request names by their signature, remembered from now on if it brings them.
    /// `None` if the lane has to be asked for them.
    ///
    /// # Errors
    /// [`caravan_van::Error::OverBudget`] if there is no memory for them.
    pub(super) fn find(
        &mut self,
        peer: PeerId,
        signature: u64,
        message: &Message,
    ) -> caravan_van::Result<Option<Rc<List>>> {
        let name = (peer, message.table(), message.range().begin(), signature);
        match message.keys() {
            [] => Ok(self.lists.recall(name)),
            keys => self.lists.remember(name, keys).map(Some),
        }
    }

    /// Keeps a request until its lane brings its keys.
    pub(super) fn await_keys(&mut self, peer: PeerId, message: Message) {
        self.lacking.insert(peer, Lacking { message, held: VecDeque::new() });
    }

    /// Holds a message of a lane that was asked for keys, unless it brings them.
    pub(super) fn hold(&mut self, peer: PeerId, message: Message) -> Option<Brought> {
        let lacking = self.lacking.get_mut(&peer)?;
        let request = &lacking.message;
        let brings_keys = message.op() == Op::Keys as u8
            && (message.table(), message.timestamp(), message.signature())
                == (request.table(), request.timestamp(), request.signature());
        let Some(signature) = message.signature().filter(|_| brings_keys) else {
            lacking.held.push_back(message);
            return None;
        };
        let Lacking { message: request, held } = self.lacking.remove(&peer)?;
        let (table, key) = (message.table(), message.range().begin());
        let list = self.lists.remember((peer, table, key, signature), message.keys());
        Some(Brought { request, list, shard: (table, key), held })
    }

    /// The keys of a request that has runs in their place.
    ///
    /// # Errors
    /// Why there are none: the runs are wrong, or their keys take more memory than there is.
    pub(super) fn write_out(&mut self, message: &Message) -> Result<Rc<List>, Refused> {
        let (first, counts) = (message.keys(), message.lengths());
        let count = runs::count(first, counts, message.range())?;
        self.lists.imply(count, runs::keys(first, counts)).map_err(Refused::from)
    }

    /// Forgets the lists of a shard that has left.
    pub(super) fn forget_shard(&mut self, table: u32, begin: u64) {
        self.lists.forget_shard(table, begin);
    }

    /// Forgets the lists of a table that was dropped.
    pub(super) fn forget_table(&mut self, table: u32) {
        self.lists.forget_table(table);
    }

    /// Forgets the lists of a lost peer, and what it still had to bring.
    pub(super) fn forget(&mut self, peer: PeerId) {
        self.lacking.remove(&peer);
        self.lists.forget(peer);
    }
}
