//! Loans: memory that one side reads where the other has it, and its return.
//!
//! The lender keeps what it has lent until the borrower returns it. That happens at the borrower's
//! first poll after the last view was dropped, and before any later frame: a peer that learns from
//! a frame that values are done with has them back. A lane can end before that. The borrower's
//! views then keep its end of the socket open. The lender keeps the loan until that end is closed,
//! by the last view or by the kernel when the process ends: see [`Orphaned`]. So nobody reads
//! memory that is reused.
//!
//! A borrower that returns nothing costs its lender at most [`LOANS_MAX`] loans, in memory within
//! the limit of the lender's pool. Lent values stay as they are: an owner that wants to store to
//! them copies them first.

use std::rc::Rc;

use super::socket::Socket;
use crate::memory::Shared;

/// Most loans that a peer may have at a time. Further values are sent in other ways.
pub(super) const LOANS_MAX: usize = 4096;

/// Most packets that one look reads from a socket whose lane has ended.
const PACKETS_MAX: usize = 64;

/// The loans of one peer.
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

    /// Keeps `values` until they are returned; returns the number of the loan, never 0.
    pub(super) fn lend(&mut self, values: Shared) -> u64 {
        self.count += 1;
        self.open.push((self.count, values));
        self.count
    }

    /// Ends a loan that the peer has returned; returns false if there is no such loan.
    #[must_use]
    pub(super) fn take_back(&mut self, number: u64) -> bool {
        let found = self.open.iter().position(|&(open, _)| open == number);
        found.map(|at| self.open.swap_remove(at)).is_some()
    }
}

impl Drop for Lent {
    /// Leaks the open loans: another process may still read them, so their memory must not be
    /// reused. A transport usually lives as long as its process.
    fn drop(&mut self) {
        self.open.drain(..).for_each(std::mem::forget);
    }
}

/// The loans of a lane that has ended, until nobody can read them any more.
#[derive(Debug)]
pub(super) struct Orphaned {
    pub(super) socket: Rc<Socket>,
    pub(super) lent: Lent,
}

impl Orphaned {
    /// Ends the loans if the other end of the socket is closed; returns whether it is.
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
                Err(_) => {} // perhaps a reset, which the end follows
            }
        }
        false
    }
}
