//! The newcomer's side of a move: it takes rows and forwarded pushes, and serves nobody until it
//! owns the shard.
//!
//! Path: codec > thread > **tables** > shard > store > answer.

use caravan_van::{Connections, KeyRange, Message, PeerId};

use super::{Arrival, Moving, Sender, With};
use crate::op::Op;
use crate::refusal::{Refusal, Refused};
use crate::server::shard::Request;
use crate::server::tables::image::Incoming;
use crate::server::tables::{Replica, Tables, Trouble};

/// The command of the last piece of a shard.
pub(super) const LAST: i32 = 1;

/// Why an owner keeps its shard, or whoever asks is none.
const NOT_HERE: &str = "no shard of these keys is coming from there";

impl Replica {
    /// Whence it comes, if it does.
    fn sender(&mut self) -> Option<&mut Sender> {
        match self.moving.as_mut().map(|moving| &mut moving.with) {
            Some(With::Owner(sender)) => Some(sender),
            _ => None,
        }
    }

    /// Adds rows to a shard that comes, or what its owner has applied since.
    fn add(&mut self, lanes: &Connections, message: &Message, op: Op) -> Result<(), Refused> {
        let (keys, lengths, values) = (message.keys(), message.lengths(), message.values());
        self.check_keys(keys)?;
        let node = (message.timestamp() >> 32) as u32;
        if op == Op::Forward && keys.is_empty() {
            return self.shard.command(node, values).map(drop);
        }
        if op == Op::Forward {
            let request = Request { keys, lengths, values, ..Request::of(message, Op::Push, node) };
            return self.shard.repeat(&request, lanes.memory());
        }
        self.take(message, lanes.memory())?;
        if message.command() == LAST {
            Incoming::check(self.image.as_deref())?;
            self.sender().into_iter().for_each(|sender| sender.is_done = true);
        }
        Ok(())
    }
}

impl Tables {
    /// Drops a copy that is not to become the shard.
    fn drop_arriving(&mut self, at: usize) {
        if let Some(mut moving) = self.entries.remove(at).moving {
            moving.release(&mut self.moves.released);
        }
        self.last = 0;
    }

    /// Serves one request of a shard's owner to this newcomer.
    ///
    /// # Errors
    /// The reason why it cannot be; the owner then keeps the shard.
    pub(in crate::server::tables) fn serve_owner(
        &mut self,
        lanes: &Connections,
        peer: PeerId,
        message: &Message,
        op: Op,
    ) -> Result<(), Trouble> {
        let (table, range) = (message.table(), message.range());
        match op {
            Op::Take => return self.take_shard(lanes, peer, message),
            Op::Own => return self.own(table, range, message.clock()),
            _ => {}
        }
        let at = self.position(table, range.begin());
        let comes = |entry: &mut Replica| entry.sender().is_some_and(|it| it.peer == Some(peer));
        let Some(at) = at.filter(|at| comes(&mut self.entries[*at])) else {
            return Err(Refusal::Internal.because(NOT_HERE).into());
        };
        if op == Op::Abandon {
            self.drop_arriving(at);
            return Ok(());
        }
        let added = self.entries[at].add(lanes, message, op);
        if added.is_err() {
            self.drop_arriving(at); // so that it never counts as whole
        }
        Ok(added?)
    }

    /// Records that its owner hands this shard over, perhaps not for the first time.
    ///
    /// # Errors
    /// If it is not whole: what comes late does not complete it, so the owner can keep it.
    fn own(&mut self, table: u32, range: KeyRange, epoch: u64) -> Result<(), Trouble> {
        let Some(at) = self.position(table, range.begin()) else {
            let has_gone_on = self.moved(table, range.begin()).is_some_and(|to| to.epoch > epoch);
            return if has_gone_on {
                Ok(())
            } else {
                Err(Refusal::Internal.because(NOT_HERE).into())
            };
        };
        let entry = &mut self.entries[at];
        let has = entry.epoch;
        match entry.sender().map(|sender| sender.is_done) {
            Some(true) if has == epoch => self.enter_owned(at),
            Some(false) if has == epoch => {
                self.drop_arriving(at);
                return Err(Refusal::Internal.because("a shard has not come whole").into());
            }
            _ if has >= epoch => {} // it said so before
            _ => return Err(Refusal::Internal.because(NOT_HERE).into()),
        }
        Ok(())
    }

    /// This thread owns a shard that has come whole.
    fn enter_owned(&mut self, at: usize) {
        let Replica { number, range, moving, .. } = &mut self.entries[at];
        if let Some(mut moving) = moving.take() {
            moving.release(&mut self.moves.released);
        }
        self.moves.gone.retain(|gone| gone.table != *number || gone.range != *range);
        self.moves.counters.arrived += 1;
    }

    /// Drops what came on a lost lane, unless it is whole.
    pub(super) fn lose_owner(&mut self, peer: PeerId) {
        let on_it = |sender: &&mut Sender| sender.peer == Some(peer);
        for at in (0..self.entries.len()).rev() {
            match self.entries[at].sender().filter(on_it) {
                Some(sender) if sender.is_done => sender.peer = None,
                Some(_) => self.drop_arriving(at),
                None => {}
            }
        }
        self.own_from_lost();
    }

    /// Owns the shards that are whole and whose owners count as lost.
    pub(in crate::server::tables) fn own_from_lost(&mut self) {
        for at in 0..self.entries.len() {
            let lost = &self.chains.view.lost;
            let is_due = |it: &mut Sender| it.is_done && lost.contains(&it.server);
            if self.entries[at].sender().is_some_and(is_due) {
                self.enter_owned(at);
            }
        }
    }

    /// Makes room for a shard that will come from `peer`.
    fn take_shard(
        &mut self,
        lanes: &Connections,
        peer: PeerId,
        message: &Message,
    ) -> Result<(), Trouble> {
        self.check_takes()?;
        let (id, range) = (message.table(), message.range());
        let Arrival { table, epoch, from } = serde_json::from_slice(message.values())?;
        // A copy that is still here is of an earlier attempt: its owner does not keep it in doubt.
        if let Some(at) = self.position(id, range.begin())
            && self.entries[at].sender().is_some()
        {
            self.drop_arriving(at);
        }
        self.make_room(lanes, (id, range), &table)?;
        let entry = self.find(id, range.begin())?;
        entry.epoch = epoch;
        entry.image = Incoming::of(&*entry.shard, lanes.memory());
        let sender = Sender { peer: Some(peer), server: from, is_done: false };
        entry.moving = Some(Moving::new(With::Owner(sender), true));
        Ok(())
    }
}
