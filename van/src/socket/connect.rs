//! Set-up of connections: names to addresses, listening, dialling. Not on the path.

use std::io;
use std::net::{SocketAddr, ToSocketAddrs};
use std::time::{Duration, Instant};

use socket2::SockRef;

use super::engine::Engine;
use crate::error::{Error, Result};

/// How long a connection may take to be made, over all addresses of a name.
const CONNECT_TIMEOUT: Duration = Duration::from_secs(5);

/// Listens on the first address of `address` that can be bound; returns it with the port it took.
pub(super) fn listen<E: Engine>(engine: &mut E, address: &str) -> Result<String> {
    let mut bind = || {
        let mut failed = no_address();
        for at in address.to_socket_addrs()? {
            match engine.listen(at) {
                Ok(bound) => return Ok(bound.to_string()),
                Err(error) => failed = error,
            }
        }
        Err(failed)
    };
    bind().map_err(|source| Error::Listen { address: address.to_owned(), source })
}

/// A connection in the making: the addresses of a name are tried one after the other.
#[derive(Debug)]
pub(super) struct Dial {
    addresses: std::vec::IntoIter<SocketAddr>,
    patience: Duration,
    /// When to give the current address up.
    pub(super) deadline: Instant,
}

impl Dial {
    /// Looks `address` up (a name may ask the resolver, which blocks) and starts to connect.
    pub(super) fn start<E: Engine>(engine: &mut E, address: &str) -> io::Result<(Dial, E::Socket)> {
        let addresses: Vec<_> = address.to_socket_addrs()?.collect();
        let patience = CONNECT_TIMEOUT / addresses.len().max(1) as u32;
        let deadline = Instant::now() + patience;
        let mut dial = Dial { addresses: addresses.into_iter(), patience, deadline };
        let socket = dial.next(engine, no_address())?;
        Ok((dial, socket))
    }

    /// Goes on to the next address, after the last one has `failed`.
    ///
    /// # Errors
    /// The last failure when no address is left.
    pub(super) fn next<E: Engine>(
        &mut self,
        engine: &mut E,
        failed: io::Error,
    ) -> io::Result<E::Socket> {
        let mut failed = failed;
        for address in self.addresses.by_ref() {
            match engine.connect(address) {
                Ok(socket) => {
                    self.deadline = Instant::now() + self.patience;
                    return Ok(socket);
                }
                Err(error) => failed = error,
            }
        }
        Err(failed)
    }

    /// What to report when the deadline has passed.
    pub(super) fn timed_out(&self) -> io::Error {
        let seconds = self.patience.as_secs_f32();
        io::Error::new(io::ErrorKind::TimedOut, format!("no answer within {seconds:.1} s"))
    }
}

/// Whether a socket that became writable is connected.
///
/// # Errors
/// Why it cannot be.
pub(super) fn is_connected(socket: &SockRef<'_>) -> io::Result<bool> {
    if let Some(error) = socket.take_error()? {
        return Err(error);
    }
    match socket.peer_addr() {
        Ok(_) => Ok(true),
        Err(error) if error.kind() == io::ErrorKind::NotConnected => Ok(false),
        Err(error) => Err(error),
    }
}

fn no_address() -> io::Error {
    io::Error::new(io::ErrorKind::NotFound, "the name has no address")
}
