//! Requests that go back to their worker, since their shard has moved.
//!
//! Path: codec > thread > **tables** > shard > store > answer.

use caravan_van::wire::Kind;
use caravan_van::{Connections, Draft, Message, PeerId, Values};

use super::Moved;
use crate::filter::List;
use crate::op::Op;
use crate::server::answer::post;

/// Sends a request back to its worker, whole, with the name of its shard's owner.
///
/// # Errors
/// If it cannot be posted and the lane must be closed.
#[cold]
pub(in crate::server::tables) fn send_back(
    lanes: &mut Connections,
    peer: PeerId,
    message: &Message,
    list: Option<&List>,
    to: Moved,
) -> caravan_van::Result<()> {
    let head = SentBack {
        server: to.server as u64,
        epoch: to.epoch,
        op: message.op().into(),
        clock: message.clock(),
    };
    let values = [&head.bytes()[..], message.values()].concat();
    let draft = Draft {
        op: Op::Moved as u8,
        command: message.command(),
        table: message.table(),
        timestamp: message.timestamp(),
        range: to.range,
        // Runs go back as they came.
        keys: list.filter(|list| !list.is_implied).map_or(message.keys(), |list| &list.keys),
        lengths: message.lengths(),
        values: Values::Copied(&values),
        ..Draft::new(Kind::Failure)
    };
    post(lanes, peer, draft)
}

/// What a request that is sent back begins with, before its own values: 32 bytes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct SentBack {
    /// Where its shard is now.
    pub(crate) server: u64,
    pub(crate) epoch: u64,
    /// Operation and clock of the request.
    pub(crate) op: u64,
    pub(crate) clock: u64,
}

impl SentBack {
    pub(crate) const BYTES: usize = 32;

    fn bytes(self) -> [u8; Self::BYTES] {
        let mut bytes = [0; Self::BYTES];
        let numbers = [self.server, self.epoch, self.op, self.clock];
        let places = bytes.chunks_exact_mut(8);
        places
            .zip(numbers)
            .for_each(|(place, number)| place.copy_from_slice(&number.to_le_bytes()));
        bytes
    }

    /// Reads it and the request's values behind it.
    pub(crate) fn read(values: &[u8]) -> Option<(SentBack, &[u8])> {
        let (head, values) = values.split_at_checked(Self::BYTES)?;
        let [server, epoch, op, clock] = head.as_chunks().0 else { return None };
        let [server, epoch, op, clock] =
            [server, epoch, op, clock].map(|it| u64::from_le_bytes(*it));
        Some((SentBack { server, epoch, op, clock }, values))
    }
}
