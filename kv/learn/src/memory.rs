//! Memory use of this process.

/// This process's id and its [`peak_rss_mib`]. Both are 0 for a node of a simulated network, which
/// has no process of its own, and whose messages must be the same in every run.
pub fn process() -> (u32, f64) {
    if caravan_kv::node::is_simulated() { (0, 0.0) } else { (std::process::id(), peak_rss_mib()) }
}

/// Bytes in MiB, rounded so.
pub(crate) fn mib(bytes: u64, round: impl Fn(f64) -> f64) -> String {
    format!("{} MiB", round(bytes as f64 / f64::from(1 << 20)))
}

/// Peak resident set of this process, in MiB; 0 if the system does not report it.
pub fn peak_rss_mib() -> f64 {
    let status = std::fs::read_to_string("/proc/self/status").unwrap_or_default();
    let line = status.lines().find_map(|line| line.strip_prefix("VmHWM:"));
    let kib = line.and_then(|line| line.trim().strip_suffix("kB")?.trim().parse::<f64>().ok());
    kib.unwrap_or(0.0) / 1024.0
}

/// Bytes of a worker beside its data: the program, messages, and text while it is parsed.
const PROCESS_BYTES: u64 = 48 << 20;

/// How many bytes a worker's data takes, and how many it may take. Bytes are counted before they
/// are taken, so a limit that is too low is refused, and never met by the system instead.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Budget {
    limit: u64,
    /// Held from now on.
    lasting: u64,
    /// The most at a time so far.
    peak: u64,
}

impl Budget {
    /// Of a worker that may take `limit` bytes.
    pub(crate) fn new(limit: u64) -> Self {
        Budget { limit, lasting: PROCESS_BYTES, peak: PROCESS_BYTES }
    }

    /// The most at a time so far.
    pub(crate) fn peak(&self) -> u64 {
        self.peak
    }

    /// Accounts for bytes that are held from now on.
    ///
    /// # Errors
    /// Names the least limit with which `what` can be had, if this one is lower.
    pub(crate) fn hold(&mut self, what: &str, bytes: usize) -> Result<(), String> {
        self.borrow(what, bytes)?;
        self.lasting += bytes as u64;
        Ok(())
    }

    /// Accounts for bytes that are held for a while, beside those held for good.
    ///
    /// # Errors
    /// As [`Budget::hold`].
    pub(crate) fn borrow(&mut self, what: &str, bytes: usize) -> Result<(), String> {
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
