//! How many bytes a worker's data takes, and how many it may take.
//!
//! Only rows on disk have a limit. Bytes are counted before they are taken, so a limit that is too
//! low is refused, and never met by the system instead.

use crate::memory::mib;

/// Bytes of a worker beside its data: the program, messages, and text while it is parsed.
const PROCESS_BYTES: u64 = 48 << 20;

/// The bytes of one worker.
#[derive(Debug, Clone, Copy)]
pub(super) struct Budget {
    limit: u64,
    /// Held from now on.
    lasting: u64,
    /// The most at a time so far.
    peak: u64,
}

impl Budget {
    /// Of a worker that may take `limit` bytes.
    pub(super) fn new(limit: u64) -> Self {
        Budget { limit, lasting: PROCESS_BYTES, peak: PROCESS_BYTES }
    }

    /// The most at a time so far.
    pub(super) fn peak(&self) -> u64 {
        self.peak
    }

    /// Accounts for bytes that are held from now on.
    ///
    /// # Errors
    /// Names the least limit with which `what` can be had, if this one is lower.
    pub(super) fn hold(&mut self, what: &str, bytes: usize) -> Result<(), String> {
        self.borrow(what, bytes)?;
        self.lasting += bytes as u64;
        Ok(())
    }

    /// Accounts for bytes that are held for a while, beside those held for good.
    ///
    /// # Errors
    /// As [`Budget::hold`].
    pub(super) fn borrow(&mut self, what: &str, bytes: usize) -> Result<(), String> {
        let least = self.lasting + bytes as u64;
        if least > self.limit {
            return Err(format!(
                "{what} cannot be had within the {} of --memory: {} is the least that can, or more workers",
                mib(self.limit, f64::floor),
                mib(least, f64::ceil)
            ));
        }
        self.peak = self.peak.max(least);
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_refused_names_the_least_and_counts_for_nothing() {
        let mut budget = Budget::new(PROCESS_BYTES + (10 << 20));
        let mut held = |what, bytes| budget.hold(what, bytes);
        assert_eq!(held("rows", 4 << 20), Ok(()));
        let error = held("columns", (6 << 20) + 1).expect_err("it is a byte too much");
        assert!(
            error.starts_with("columns cannot be had within the 58 MiB of --memory: 59 MiB is")
        );
        assert_eq!(budget.borrow("a block", 6 << 20), Ok(()), "to the last byte");
        assert_eq!(budget.borrow("a block", 1), Ok(()), "the one before is gone");
        assert_eq!(budget.peak(), budget.limit);
        assert!(budget.hold("another", 7 << 20).is_err());
        assert_eq!(budget.peak(), budget.limit);
    }
}
