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

/// A host that does not answer for this long has lost its connections. The kernel also counts the
/// time in which a process reads nothing and its window is full, so a process that is stopped for a
/// while or computes must not lose its lanes.
const SILENCE_MAX: Duration = Duration::from_secs(120);

/// Sets a connected socket up: small messages leave at once, a dead host is noticed, and the send
/// buffer is bounded within one host. Between hosts the kernel sizes it by the network's delay.
///
/// # Errors
/// Whatever the system reports for a socket that is no longer connected.
pub fn set_up(socket: &SockRef<'_>) -> io::Result<()> {
    socket.set_tcp_nodelay(true)?;
    let probes = TcpKeepalive::new().with_time(PROBE_AFTER).with_interval(PROBE_AFTER);
    socket.set_tcp_keepalive(&probes)?;
    give_up_after(socket, SILENCE_MAX)?;
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
