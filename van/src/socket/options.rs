//! Socket options of every connection.

use std::io;
use std::time::Duration;

use socket2::{SockRef, TcpKeepalive};

/// Unsent bytes that the kernel may hold for a connection within one host; Linux doubles it.
/// Without a bound it grows to megabytes, and a long message leaves the processor's caches between
/// the kernel's two copies (`van/docs/decisions/0002-send-buffers.md`).
const LOCAL_SEND_BYTES: usize = 512 << 10;

/// A silent connection is probed after this long, and then as often.
const PROBE_AFTER: Duration = Duration::from_secs(10);

/// Sets a connected socket up: small messages leave at once, a host that is dead for `silence_max`
/// is noticed, and the send buffer is bounded within one host. Between hosts the kernel sizes it by
/// the network's delay.
///
/// # Errors
/// Whatever the system reports for a socket that is no longer connected.
pub fn set_up(socket: &SockRef<'_>, silence_max: Duration) -> io::Result<()> {
    socket.set_tcp_nodelay(true)?;
    let probes = TcpKeepalive::new().with_time(PROBE_AFTER).with_interval(PROBE_AFTER);
    socket.set_tcp_keepalive(&probes)?;
    give_up_after(socket, silence_max)?;
    let ip = |address: socket2::SockAddr| address.as_socket().map(|address| address.ip());
    if ip(socket.local_addr()?) == ip(socket.peer_addr()?) {
        socket.set_send_buffer_size(LOCAL_SEND_BYTES)?;
    }
    Ok(())
}

/// Bounds how long sent bytes, or a probe, may stay unanswered; the kernel's own bound is a quarter
/// of an hour.
#[cfg(target_os = "linux")]
fn give_up_after(socket: &SockRef<'_>, silence: Duration) -> io::Result<()> {
    socket.set_tcp_user_timeout(Some(silence))
}

#[cfg(not(target_os = "linux"))]
fn give_up_after(_: &SockRef<'_>, _: Duration) -> io::Result<()> {
    Ok(()) // only Linux has a bound of this kind
}

#[cfg(all(test, target_os = "linux"))]
mod tests {
    #![allow(clippy::unwrap_used, reason = "tests")]
    use super::*;

    #[test]
    fn a_connection_gives_up_when_it_is_told() {
        let listener = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
        let socket = std::net::TcpStream::connect(listener.local_addr().unwrap()).unwrap();
        let socket = SockRef::from(&socket);
        let silence_max = Duration::from_millis(500);
        set_up(&socket, silence_max).unwrap();
        assert_eq!(socket.tcp_user_timeout().unwrap(), Some(silence_max));
        assert!(socket.keepalive().unwrap());
    }
}
