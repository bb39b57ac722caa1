//! Ends of a run that have an exit status of their own: wrong usage and signals.

use std::fmt;

/// The error where the system gives no more threads.
pub(crate) const NO_THREAD: &str = "cannot start a thread; raise the limit (`ulimit -u`)";

/// Wrong usage that only shows when flags are taken together: status 2, as for what the parser
/// refuses.
#[derive(Debug)]
pub(crate) struct Usage(pub(crate) String);

impl fmt::Display for Usage {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

impl std::error::Error for Usage {}

/// A process of a launched job failed.
#[derive(Debug)]
pub(crate) struct Failed {
    /// Its exit status; 128 and the number of a signal that ended it.
    pub(crate) status: i32,
    /// Which one, and how.
    pub(crate) why: String,
}

impl fmt::Display for Failed {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.why)
    }
}

impl std::error::Error for Failed {}

/// Ctrl-C or SIGTERM ended the run.
#[derive(Debug)]
pub(crate) struct Interrupted {
    /// The exit status: 130 after Ctrl-C.
    pub(crate) status: i32,
    /// What is left of the work.
    pub(crate) saved: String,
}

impl fmt::Display for Interrupted {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "interrupted: {}", self.saved)
    }
}

impl std::error::Error for Interrupted {}
