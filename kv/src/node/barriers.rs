//! Who waits at which barrier. A member waits at one at a time, so there are never more barriers than members.

use std::collections::BTreeMap;

use caravan_van::PeerId;

use super::control::Role;
use super::members::{Misdeed, Seat};

/// Longest name of a barrier, in bytes.
pub(crate) const NAME_BYTES_MAX: usize = 256;

/// A member at a barrier, and where to answer what.
pub(crate) struct Waiting {
    pub(crate) seat: Seat,
    pub(crate) peer: PeerId,
    pub(crate) timestamp: u64,
}

/// All barriers that somebody waits at.
#[derive(Default)]
pub(crate) struct Barriers(BTreeMap<(Role, String), Vec<Waiting>>);

impl Barriers {
    /// A member has come to the barrier called `name`. Returns all that wait there when they are as many as `size`.
    ///
    /// # Errors
    /// When the name is too long.
    pub(crate) fn come(
        &mut self,
        name: String,
        waiting: Waiting,
        size: usize,
    ) -> Result<Vec<Waiting>, Misdeed> {
        if name.len() > NAME_BYTES_MAX {
            return Err(Misdeed::LongName(name.len()));
        }
        // Whoever asks again has given up waiting for the first answer.
        self.forget(waiting.seat);
        let key = (waiting.seat.role, name);
        let all = self.0.entry(key.clone()).or_default();
        all.push(waiting);
        let is_full = all.len() == size;
        Ok(is_full.then(|| self.0.remove(&key)).flatten().unwrap_or_default())
    }

    /// The ranks of those that wait where a member waits, which waits there no more; none if it did not.
    pub(crate) fn give_up(&mut self, name: String, seat: Seat) -> Option<Vec<usize>> {
        let all = self.0.get(&(seat.role, name))?;
        let ranks: Vec<_> = all.iter().map(|waiting| waiting.seat.rank).collect();
        self.forget(seat);
        ranks.contains(&seat.rank).then_some(ranks)
    }

    /// A member waits nowhere any more.
    pub(crate) fn forget(&mut self, seat: Seat) {
        self.0.retain(|_, all| {
            all.retain(|waiting| waiting.seat != seat);
            !all.is_empty()
        });
    }
}
