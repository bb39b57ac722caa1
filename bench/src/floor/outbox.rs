//! Messages in registered memory that a side of a link sends in turn, again and again.

use anyhow::Result;
use caravan_van::{Pool, Shared};

/// As many messages as can be in flight: each is free again when its turn comes.
pub(crate) struct Outbox {
    messages: Vec<Shared>,
    next: usize,
    memory: Pool,
}

impl Outbox {
    /// `count` messages with the same contents.
    pub(crate) fn new(memory: &Pool, contents: &[u8], count: usize) -> Result<Self> {
        let message = |_| {
            let mut message = memory.allocate(contents.len())?;
            message.copy_from_slice(contents);
            Ok(message.share())
        };
        let messages = (0..count).map(message).collect::<Result<_>>()?;
        Ok(Outbox { messages, next: 0, memory: memory.clone() })
    }

    /// The first message, which may be in flight several times.
    pub(crate) fn first(&self) -> Shared {
        self.messages[0].clone()
    }

    /// The next message, as `change` leaves it.
    pub(crate) fn next(&mut self, change: impl FnOnce(&mut [u8])) -> Result<Shared> {
        let at = self.next;
        self.next = (at + 1) % self.messages.len();
        let message = &mut self.messages[at];
        change(message.make_mut(&self.memory)?);
        Ok(message.clone())
    }
}
