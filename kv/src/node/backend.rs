//! The one place that names concrete vans and chooses among them.

use std::fmt;
use std::str::FromStr;

use caravan_fallback_tcp::Tcp;
use caravan_van::uring::Uring;
use caravan_van::{Transport, VanConfig};

use crate::error::{Error, Result};

/// Which van to take.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Van {
    /// The fastest that works here.
    Auto,
    /// io_uring over TCP.
    Uring,
    /// Plain sockets.
    Tcp,
}

/// All vans there are, fastest first.
pub const VANS: [Van; 2] = [Van::Uring, Van::Tcp];

impl fmt::Display for Van {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Van::Auto => "auto",
            Van::Uring => "uring",
            Van::Tcp => "tcp",
        })
    }
}

impl FromStr for Van {
    type Err = Error;

    fn from_str(name: &str) -> Result<Van> {
        let van = [Van::Auto, Van::Uring, Van::Tcp].into_iter().find(|van| van.to_string() == name);
        van.ok_or_else(|| {
            Error::Config(format!(
                "there is no van {name} between processes; there are auto, uring and tcp"
            ))
        })
    }
}

/// Opens a transport: the named van, or the first that works for [`Van::Auto`].
///
/// # Errors
/// Why the van does not work here.
pub fn open(van: Van, config: &VanConfig) -> Result<Box<dyn Transport>> {
    match van {
        Van::Uring => Ok(Box::new(Uring::new(config)?)),
        Van::Tcp => Ok(Box::new(Tcp::new(config)?)),
        Van::Auto => match Uring::new(config) {
            Ok(uring) => Ok(Box::new(uring)),
            Err(error) => {
                tracing::info!(%error, "falling back to the tcp van");
                open(Van::Tcp, config)
            }
        },
    }
}

/// Opens the transport of the control plane, which sleeps rather than spins.
pub(crate) fn open_control(config: &VanConfig) -> Result<Box<dyn Transport>> {
    Ok(Box::new(Tcp::new(config)?))
}
