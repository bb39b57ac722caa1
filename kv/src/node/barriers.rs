//! Members waiting at barriers. A member waits at one at a time, so there are never more barriers
//! than members.

use std::collections::BTreeMap;

use caravan_van::PeerId;

use super::control::Role;
use super::members::{Seat, Violation};

/// Longest name of a barrier, in bytes.
pub(crate) const NAME_BYTES_MAX: usize = 256;

/// A member at a barrier, and where to send the answer.
pub(crate) struct Waiting {
    pub(crate) seat: Seat,
    pub(crate) peer: PeerId,
    pub(crate) timestamp: u64,
}

/// All barriers with waiting members.
#[derive(Default)]
pub(crate) struct Barriers(BTreeMap<(Role, String), Vec<Waiting>>);

impl Barriers {
    /// Adds a member to the barrier called `name`. Returns all its members once there are `size`.
    ///
    /// # Errors
    /// If the name is too long.
    pub(crate) fn arrive(
        &mut self,
        name: String,
        waiting: Waiting,
        size: usize,
    ) -> Result<Vec<Waiting>, Violation> {
        if name.len() > NAME_BYTES_MAX {
            return Err(Violation::LongName(name.len()));
        }
        // A member that asks again has given up its earlier wait.
        self.forget(waiting.seat);
        let key = (waiting.seat.role, name);
        let all = self.0.entry(key.clone()).or_default();
        all.push(waiting);
        let is_full = all.len() >= size;
        Ok(is_full.then(|| self.0.remove(&key)).flatten().unwrap_or_default())
    }

    /// Ends a member's wait and returns the ranks of all that waited there; `None` if it did not
    /// wait.
    pub(crate) fn give_up(&mut self, name: String, seat: Seat) -> Option<Vec<usize>> {
        let all = self.0.get(&(seat.role, name))?;
        let ranks: Vec<_> = all.iter().map(|waiting| waiting.seat.rank).collect();
        self.forget(seat);
        ranks.contains(&seat.rank).then_some(ranks)
    }

    /// The members of all barriers of a role that are full now that there are `size` members.
    pub(crate) fn full(&mut self, role: Role, size: usize) -> Vec<Waiting> {
        let is_full =
            |(of, _): &(Role, String), all: &mut Vec<Waiting>| *of == role && all.len() >= size;
        self.0.extract_if(.., is_full).flat_map(|(_, all)| all).collect()
    }

    /// Ends any wait of a member.
    pub(crate) fn forget(&mut self, seat: Seat) {
        self.0.retain(|_, all| {
            all.retain(|waiting| waiting.seat != seat);
            !all.is_empty()
        });
    }
}
