//! Operations by number: what is handed to the kernel with each, and what its answers mean.
//!
//! Knows no lane's memory: that, and when the kernel may touch it, is `ring`'s alone.
//!
//! Path: worker > slicer > filter > message > codec > endpoint > transport (ring, **operation**).

use std::io;

use io_uring::{opcode, squeue};

use crate::error::{Error, Result};

/// Where a lane is kept. Used again after [`Ring::remove`](super::ring::Ring::remove).
pub(super) type Slot = usize;

/// What an operation was about; with the slot, its `user_data`.
#[derive(Clone, Copy, PartialEq, Eq)]
#[repr(u64)]
pub(super) enum Tag {
    Accept = 0,
    Send = 1,
    Receive = 2,
    Cancel = 3,
}

const TAG_BITS: u32 = 2;

/// The number that comes back with the operation's completion.
pub(super) fn user_data(slot: Slot, tag: Tag) -> u64 {
    (slot as u64) << TAG_BITS | tag as u64
}

/// What [`user_data`] was made from.
pub(super) fn parts(user_data: u64) -> (Slot, Tag) {
    let tag = match user_data & ((1 << TAG_BITS) - 1) {
        0 => Tag::Accept,
        1 => Tag::Send,
        2 => Tag::Receive,
        _ => Tag::Cancel,
    };
    ((user_data >> TAG_BITS) as Slot, tag)
}

/// Half a lane's dealings with the kernel.
#[derive(Default, Clone, Copy)]
pub(super) struct Operation {
    /// The kernel has it.
    pub(super) under_way: bool,
    /// It was asked to give it back.
    pub(super) cancelled: bool,
    /// It is on the list of what to look after before the next system call.
    pub(super) listed: bool,
}

impl Operation {
    /// Takes note of whether the kernel has `taken` it, or the wish to have it back when `cancelling`; else it stays listed.
    pub(super) fn staged(&mut self, cancelling: bool, taken: bool) {
        self.listed = !taken;
        if cancelling {
            self.cancelled = taken;
        } else {
            self.under_way = taken;
        }
    }

    /// Takes note that the kernel has given it back.
    pub(super) fn ended(&mut self) {
        *self = Operation { listed: self.listed, ..Operation::default() };
    }
}

/// The operation that asks the kernel to give another one back.
pub(super) fn cancel(slot: Slot, tag: Tag) -> squeue::Entry {
    opcode::AsyncCancel::new(user_data(slot, tag)).build()
}

/// A completion's code: a count, or the negative of an error number.
pub(super) fn result(code: i32) -> io::Result<usize> {
    usize::try_from(code).map_err(|_| io::Error::from_raw_os_error(-code))
}

/// Whether what a plain call says is only that nothing can be done now.
pub(super) fn is_later(error: &io::Error) -> bool {
    matches!(error.kind(), io::ErrorKind::WouldBlock | io::ErrorKind::Interrupted)
}

/// Passes over what only means "later": a signal, a timeout, completions to be reaped first.
pub(super) fn tolerate(entered: io::Result<usize>) -> Result<()> {
    match entered {
        Ok(_) => Ok(()),
        Err(error) => match error.raw_os_error() {
            Some(libc::EINTR | libc::ETIME | libc::EBUSY | libc::EAGAIN) => Ok(()),
            _ => Err(Error::Os { call: "io_uring_enter", source: error }),
        },
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn user_data_tells_slot_and_operation() {
        for slot in [0, 1, 12345, usize::MAX >> TAG_BITS] {
            for tag in [Tag::Accept, Tag::Send, Tag::Receive, Tag::Cancel] {
                assert!(parts(user_data(slot, tag)) == (slot, tag));
            }
        }
    }

    #[test]
    fn only_what_means_later_is_passed_over() {
        let entered = |errno| tolerate(Err(io::Error::from_raw_os_error(errno)));
        assert!(tolerate(Ok(3)).is_ok());
        for errno in [libc::EINTR, libc::ETIME, libc::EBUSY, libc::EAGAIN] {
            assert!(entered(errno).is_ok(), "{errno}");
        }
        assert!(matches!(entered(libc::EBADF), Err(Error::Os { call: "io_uring_enter", .. })));
    }
}
