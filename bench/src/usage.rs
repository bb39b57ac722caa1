//! Wrong usage that only shows when flags are taken together: ends with status 2, like what the parser itself refuses.

use std::fmt;

/// What is wrong with the command line.
#[derive(Debug)]
pub(crate) struct Usage(pub(crate) String);

impl fmt::Display for Usage {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

impl std::error::Error for Usage {}
