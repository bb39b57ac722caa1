//! The newcomer's side of a move: it takes rows and forwarded pushes, and serves nobody until it
//! owns the shard.
//!
//! Path: codec > thread > **tables** > shard > store > answer.

use caravan_van::{Lanes, Message, PeerId};

use super::{Arrival, Moving, With};
use crate::op::Op;
use crate::server::shard::Request;
use crate::server::tables::image::Incoming;
use crate::server::tables::{Tables, Trouble};

impl Tables {
    /// Drops a shard that has not come whole.
    pub(super) fn drop_arriving(&mut self, at: usize) {
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
        lanes: &Lanes,
        peer: PeerId,
        message: &Message,
        op: Op,
    ) -> Result<(), Trouble> {
        let (table, range) = (message.table(), message.range());
        if op == Op::Take {
            return self.take_shard(lanes, peer, message);
        }
        let at = self.position(table, range.begin());
        let Some(at) = at.filter(|at| {
            let moving = self.entries[*at].moving.as_ref();
            moving.is_some_and(|moving| matches!(moving.with, With::Owner(from) if from == peer))
        }) else {
            return Err("no shard of these keys is coming from there".to_owned().into());
        };
        let entry = &mut self.entries[at];
        let (keys, lengths, values) = (message.keys(), message.lengths(), message.values());
        entry.check_keys(keys)?;
        match op {
            Op::Rows => entry.take(message, lanes.memory())?,
            Op::Forward if keys.is_empty() => {
                let sender = (message.timestamp() >> 32) as u32;
                entry.shard.command(sender, values)?;
            }
            Op::Forward => {
                let sender = (message.timestamp() >> 32) as u32;
                let request =
                    Request { keys, lengths, values, ..Request::of(message, Op::Push, sender) };
                entry.shard.repeat(&request, lanes.memory())?;
            }
            Op::Own => {
                Incoming::check(entry.image.as_deref())?;
                if let Some(mut moving) = entry.moving.take() {
                    moving.release(&mut self.moves.released);
                }
                self.moves.gone.retain(|gone| gone.table != table || gone.range != range);
                self.moves.counters.arrived += 1;
            }
            _ => self.drop_arriving(at),
        }
        Ok(())
    }

    /// Makes room for a shard that will come from `peer`.
    fn take_shard(
        &mut self,
        lanes: &Lanes,
        peer: PeerId,
        message: &Message,
    ) -> Result<(), Trouble> {
        let (id, range) = (message.table(), message.range());
        let Arrival { table, epoch } =
            serde_json::from_slice(message.values()).map_err(|error| error.to_string())?;
        self.make_room(lanes, (id, range), &table)?;
        let entry = self.find(id, range.begin())?;
        entry.epoch = epoch;
        entry.image = Incoming::of(&*entry.shard, lanes.memory());
        entry.moving = Some(Moving::new(With::Owner(peer), true));
        Ok(())
    }
}
