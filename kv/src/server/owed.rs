//! Requests that shards answer by tokens: at once, later, or when others have come.
//!
//! Path: codec > thread > tables > shard > store > **answer**. A shard keeps a request by
//! [`Admission::Kept`](crate::consistency::Admission::Kept); all others never come here.

use std::collections::BTreeMap;

use caravan_van::wire::Kind;
use caravan_van::{Connections, Draft, PeerId, Values};

use super::answer::{ReplyTo, post, refuse};
use crate::error::{Error, Result};
use crate::node::Token;
use crate::refusal::Refused;

/// Where a shard answers the requests that it has kept.
pub struct Answers<'a> {
    owed: &'a mut Owed,
    lanes: &'a mut Connections,
}

impl Answers<'_> {
    /// Answers a push with no values, a pull with those of its keys, or a command with its reply;
    /// as bytes.
    ///
    /// # Errors
    /// [`Error::Answered`] if it was answered before, or its worker is gone.
    pub fn answer(&mut self, token: Token, values: &[u8]) -> Result<()> {
        self.answer_varying(token, &[], values)
    }

    /// Answers a pull of rows of these lengths.
    ///
    /// # Errors
    /// As [`Answers::answer`].
    pub fn answer_varying(&mut self, token: Token, lengths: &[u32], values: &[u8]) -> Result<()> {
        let ReplyTo { peer, table, timestamp } = self.owed.take(token)?;
        let posted = if lengths.is_empty() && values.is_empty() {
            self.lanes.answer(peer, timestamp)
        } else {
            let values = Values::Copied(values);
            let reply = Draft { table, timestamp, lengths, values, ..Draft::new(Kind::Reply) };
            post(self.lanes, peer, reply)
        };
        self.owed.note(peer, posted);
        Ok(())
    }

    /// Answers a request with the reason why it cannot be done.
    ///
    /// # Errors
    /// As [`Answers::answer`].
    pub fn refuse(&mut self, token: Token, reason: &Refused) -> Result<()> {
        let reply_to = self.owed.take(token)?;
        let posted = refuse(self.lanes, reply_to, reason);
        self.owed.note(reply_to.peer, posted);
        Ok(())
    }
}

/// The requests to a thread's shards that are kept and not answered. Each holds a credit of its
/// lane, which bounds them.
#[derive(Default)]
pub(super) struct Owed {
    count: u64,
    requests: BTreeMap<Token, ReplyTo>,
    /// Lanes on which an answer could not be sent.
    pub(super) broken: Vec<PeerId>,
}

impl Owed {
    /// Records a request.
    pub(super) fn enter(&mut self, reply_to: ReplyTo) -> Token {
        self.count += 1;
        let token = Token(self.count);
        self.requests.insert(token, reply_to);
        token
    }

    fn take(&mut self, token: Token) -> Result<ReplyTo> {
        self.requests.remove(&token).ok_or(Error::Answered { number: token.0 })
    }

    fn note(&mut self, peer: PeerId, posted: caravan_van::Result<()>) {
        if let Err(error) = posted {
            tracing::debug!(%error, "an answer could not be sent; closing the lane");
            self.broken.push(peer);
        }
    }

    /// For a shard of this thread.
    pub(super) fn answers<'a>(&'a mut self, lanes: &'a mut Connections) -> Answers<'a> {
        Answers { owed: self, lanes }
    }

    /// Whether a request to this table is not answered.
    pub(super) fn owes(&self, table: u32) -> bool {
        self.requests.values().any(|reply_to| reply_to.table == table)
    }

    /// Forgets the requests of a peer that is gone.
    pub(super) fn forget(&mut self, peer: PeerId) {
        self.requests.retain(|_, reply_to| reply_to.peer != peer);
    }

    /// Takes out the requests to a table that is dropped.
    pub(super) fn take_of(&mut self, table: u32) -> impl Iterator<Item = ReplyTo> {
        let of_it = move |_: &Token, reply_to: &mut ReplyTo| reply_to.table == table;
        self.requests.extract_if(.., of_it).map(|(_, reply_to)| reply_to)
    }
}
