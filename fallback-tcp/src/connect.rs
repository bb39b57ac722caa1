//! Set-up of connections: names to addresses, listening, dialling. Nothing here is on the path.

use std::io;
use std::net::{SocketAddr, ToSocketAddrs};
use std::time::{Duration, Instant};

use caravan_van::{Error, Result};
use mio::net::{TcpListener, TcpStream};

/// How long a connection may take to be made, over all addresses of a name.
const CONNECT_TIMEOUT: Duration = Duration::from_secs(5);

/// Listens on the first address of `address` that can be bound; returns it with the port it took.
pub(crate) fn listen(address: &str) -> Result<(TcpListener, String)> {
    let bind = || {
        let mut failed = no_address();
        for at in address.to_socket_addrs()? {
            match TcpListener::bind(at) {
                Ok(listener) => {
                    let bound = listener.local_addr()?.to_string();
                    return Ok((listener, bound));
                }
                Err(error) => failed = error,
            }
        }
        Err(failed)
    };
    bind().map_err(|source| Error::Listen { address: address.to_owned(), source })
}

/// A connection in the making: the addresses of a name are tried one after the other.
#[derive(Debug)]
pub(crate) struct Dial {
    addresses: std::vec::IntoIter<SocketAddr>,
    patience: Duration,
    /// When to give the current address up.
    pub(crate) deadline: Instant,
}

impl Dial {
    /// Looks `address` up (a name may ask the resolver, which blocks) and starts to connect.
    pub(crate) fn start(address: &str) -> io::Result<(Dial, TcpStream)> {
        let addresses: Vec<_> = address.to_socket_addrs()?.collect();
        let patience = CONNECT_TIMEOUT / addresses.len().max(1) as u32;
        let deadline = Instant::now() + patience;
        let mut dial = Dial { addresses: addresses.into_iter(), patience, deadline };
        let stream = dial.next(no_address())?;
        Ok((dial, stream))
    }

    /// Goes on to the next address, after the last one failed as said; fails likewise when none is left.
    pub(crate) fn next(&mut self, failed: io::Error) -> io::Result<TcpStream> {
        let mut failed = failed;
        for address in self.addresses.by_ref() {
            match TcpStream::connect(address) {
                Ok(stream) => {
                    self.deadline = Instant::now() + self.patience;
                    return Ok(stream);
                }
                Err(error) => failed = error,
            }
        }
        Err(failed)
    }

    /// What to report when `deadline` has passed.
    pub(crate) fn timed_out(&self) -> io::Error {
        let seconds = self.patience.as_secs_f32();
        io::Error::new(io::ErrorKind::TimedOut, format!("no answer within {seconds:.1} s"))
    }
}

/// Whether `stream`, which became writable, is connected by now.
pub(crate) fn is_connected(stream: &TcpStream) -> io::Result<bool> {
    if let Some(error) = stream.take_error()? {
        return Err(error);
    }
    match stream.peer_addr() {
        Ok(_) => Ok(true),
        Err(error) if error.kind() == io::ErrorKind::NotConnected => Ok(false),
        Err(error) => Err(error),
    }
}

fn no_address() -> io::Error {
    io::Error::new(io::ErrorKind::NotFound, "the name has no address")
}
