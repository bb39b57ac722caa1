//! Skeleton.
use std::io;
use std::os::fd::RawFd;
use std::time::Duration;
/// Whether verbs can be used on this machine.
///
/// # Errors
/// Why not, and what to do.
pub fn available() -> Result<(), String> {
    todo!()
}
/// Sleeps until one of `fds` can be read or `timeout` has passed.
///
/// # Errors
/// What poll(2) says.
pub fn sleep(fds: &[RawFd], timeout: Duration) -> io::Result<()> {
    let _ = (fds, timeout);
    todo!()
}
