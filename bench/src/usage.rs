//! Ends of a run that have a status of their own: wrong usage, Ctrl-C, and rows that nobody takes.

use std::{fmt, io};

/// What is wrong where the system gives no more threads, and what to do.
pub(crate) const NO_THREAD: &str = "cannot start a thread; raise the limit (`ulimit -u`)";

/// What is wrong with the command line, where it only shows when flags are taken together: status 2, as of what the parser refuses.
#[derive(Debug)]
pub(crate) struct Usage(pub(crate) String);

impl fmt::Display for Usage {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

impl std::error::Error for Usage {}

/// A run that Ctrl-C, or a plea to end, has ended.
#[derive(Debug)]
pub(crate) struct Interrupted {
    /// What the program ends with: 130 after Ctrl-C.
    pub(crate) status: i32,
    /// What has become of its work.
    pub(crate) saved: String,
}

impl fmt::Display for Interrupted {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "interrupted: {}", self.saved)
    }
}

impl std::error::Error for Interrupted {}

/// Rows that standard output does not take.
#[derive(Debug)]
pub(crate) struct Unwritten(pub(crate) io::Error);

impl Unwritten {
    /// Whether whoever reads the rows has gone, which is no fault: the run ends without a word, as
    /// programs do in a pipe.
    pub(crate) fn is_unread(&self) -> bool {
        self.0.kind() == io::ErrorKind::BrokenPipe
    }
}

impl fmt::Display for Unwritten {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "cannot write to standard output: {}", self.0)
    }
}

impl std::error::Error for Unwritten {}
