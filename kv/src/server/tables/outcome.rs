//! How far a message was served, and why not further.
//!
//! Path: codec > thread > **tables** > shard > store > answer.

use caravan_van::wire::Kind;
use caravan_van::{Connections, Draft, PeerId};

use super::moving::Moved;
use crate::consistency::{Forbidden, WaitReason};
use crate::op::Op;
use crate::refusal::{Refusal, Refused};
use crate::server::answer::{ReplyTo, post, refuse, refuse_dropped};

/// How far a message was served.
pub(in crate::server) enum Step {
    /// All of its records were answered.
    Done,
    /// Likewise, and requests to its table that waited may go on, before any other.
    Release,
    /// The next record waits until its shard's clock has reached this value.
    Park(u64),
    /// The next record waits for this, by its table's model.
    Govern(WaitReason),
    /// Likewise, at the first copy of its shard; or for an earlier request of its worker.
    Await(Option<WaitReason>),
    /// The shard stores the next record's values, pushed to this key, without a copy.
    Adopt(u64),
    /// The next record drops its table.
    Drop,
    /// The next record has runs of keys, which must be written out.
    Expand,
    /// The next record waits until its shard has moved.
    Hold,
}

/// Whose message is served.
#[derive(Clone, Copy)]
pub(in crate::server) struct Client {
    pub(in crate::server) peer: PeerId,
    /// The node of its lane's hello. What a header says of its sender is not believed.
    pub(in crate::server) node: u32,
}

/// Whether a table's model has admitted a message already.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(in crate::server) enum Admitted {
    /// It has just come.
    No,
    /// It was parked, and its turn has come.
    Yes,
}

/// Why a record was not served.
pub(in crate::server) enum Trouble {
    /// The request is refused, for this reason.
    Refused(Refused),
    /// Its table was dropped.
    Dropped,
    /// Its shard has moved to another server thread.
    Moved(Moved),
    /// The chain of its shard is another one: whoever asks hears of it, and asks there.
    Elsewhere,
    /// The server thread that asks counts as lost.
    Lost,
    /// Its answer cannot be posted, and the lane must be closed.
    Lane(caravan_van::Error),
}

impl Trouble {
    /// The same as a refusal.
    pub(super) fn into_refused(self) -> Refused {
        match self {
            Trouble::Refused(refused) => refused,
            Trouble::Dropped => Refusal::Dropped.because("its table was dropped"),
            Trouble::Moved(to) => Refusal::NotHead
                .because(format!("its shard has moved to server thread {}", to.server)),
            Trouble::Elsewhere => {
                Refusal::NotHead.because("the chain of its shard is another one by now")
            }
            Trouble::Lost => Refusal::Draining.because("it counts as lost"),
            Trouble::Lane(error) => error.into(),
        }
    }
}

impl From<Refused> for Trouble {
    fn from(refused: Refused) -> Trouble {
        Trouble::Refused(refused)
    }
}

impl From<serde_json::Error> for Trouble {
    fn from(error: serde_json::Error) -> Trouble {
        Trouble::Refused(error.into())
    }
}

impl From<Forbidden> for Trouble {
    fn from(forbidden: Forbidden) -> Trouble {
        Trouble::Refused(forbidden.into())
    }
}

impl From<caravan_van::Error> for Trouble {
    fn from(error: caravan_van::Error) -> Trouble {
        Trouble::Lane(error)
    }
}

/// Answers a request that was not served.
///
/// # Errors
/// If the lane must be closed.
#[cold]
pub(super) fn answer_trouble(
    lanes: &mut Connections,
    reply_to: ReplyTo,
    trouble: Trouble,
) -> caravan_van::Result<()> {
    match trouble {
        Trouble::Refused(refused) => refuse(lanes, reply_to, &refused),
        Trouble::Dropped => refuse_dropped(lanes, reply_to),
        Trouble::Lost | Trouble::Elsewhere => {
            let ReplyTo { peer, table, timestamp } = reply_to;
            let op = if matches!(trouble, Trouble::Lost) { Op::Lost } else { Op::Moved } as u8;
            post(lanes, peer, Draft { op, table, timestamp, ..Draft::new(Kind::Failure) })
        }
        Trouble::Moved(_) => refuse(lanes, reply_to, &trouble.into_refused()),
        Trouble::Lane(error) => Err(error),
    }
}
