//! Memory that one side reads where the other has it, and how it goes back.
//!
//! The lender keeps what it has lent until the borrower says that it is done: at the first poll
//! after the last view of it was dropped, and before any frame that leaves then, so that who is
//! told that something is done with has it back. A lane can end before that. The borrower's views
//! keep its end of the socket open then; the lender keeps what is lent until that end is closed, by
//! the last view or by the kernel when the process ends: see [`Limbo`]. So nobody reads memory that
//! is in use for something else already.
//!
//! A borrower that returns nothing costs its lender what it has borrowed: at most [`LOANS_MAX`]
//! loans, in memory within the limit of the lender's pool. What is lent to nobody else's knowledge
//! stays as it was: who stores to it copies it first.

use std::rc::Rc;

use super::socket::Socket;
use crate::memory::Shared;

/// What a peer may have borrowed at a time; more is sent in other ways.
pub(super) const LOANS_MAX: usize = 4096;

/// Packets that are read at a look from a socket that only shall end.
const PACKETS_MAX: usize = 64;

/// What one peer has borrowed of this node.
#[derive(Debug, Default)]
pub(super) struct Lent {
    count: u64,
    open: Vec<(u64, Shared)>,
}

impl Lent {
    pub(super) fn is_empty(&self) -> bool {
        self.open.is_empty()
    }

    pub(super) fn is_full(&self) -> bool {
        self.open.len() >= LOANS_MAX
    }

    /// Keeps `values` until they are returned; the loan's number, which is not 0.
    pub(super) fn lend(&mut self, values: Shared) -> u64 {
        self.count += 1;
        self.open.push((self.count, values));
        self.count
    }

    /// The peer is done with a loan; false if it has no such loan.
    #[must_use]
    pub(super) fn take_back(&mut self, number: u64) -> bool {
        let found = self.open.iter().position(|&(open, _)| open == number);
        found.map(|at| self.open.swap_remove(at)).is_some()
    }
}

impl Drop for Lent {
    /// What may still be read by others must not be used for anything else, so it is never given
    /// back: it lasts as long as the process, as the transport ends with it as a rule.
    fn drop(&mut self) {
        self.open.drain(..).for_each(std::mem::forget);
    }
}

/// What was lent on a lane that has ended, until nobody can read it any more.
#[derive(Debug)]
pub(super) struct Limbo {
    pub(super) socket: Rc<Socket>,
    pub(super) lent: Lent,
}

impl Limbo {
    /// Lets go of it if the other end of the socket is closed; whether it did.
    pub(super) fn has_ended(&mut self) -> bool {
        let mut bytes = [0; 64];
        for _ in 0..PACKETS_MAX {
            match self.socket.receive(&mut bytes) {
                Ok((0, _)) => {
                    self.lent.open.clear();
                    return true;
                }
                Ok(_) => {}
                Err(error) if error.kind() == std::io::ErrorKind::WouldBlock => return false,
                Err(_) => {} // reset, perhaps: then the end follows
            }
        }
        false
    }
}
