//! Ends of a run that have a status of their own: wrong usage, and Ctrl-C.

use std::fmt;

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
