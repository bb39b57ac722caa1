//! The sleep on several descriptors: one system call, with its `unsafe` code.

use std::io;
use std::os::fd::RawFd;
use std::time::Duration;

/// Most descriptors: shared memory, sockets, and the ports of a device with four each.
const DESCRIPTORS_MAX: usize = 24;

/// Sleeps until one of the descriptors is readable, a signal comes, or the time is up.
///
/// # Errors
/// The system's.
///
/// # Panics
/// If there are too many.
pub(super) fn until_readable(descriptors: &[RawFd], limit: Duration) -> io::Result<()> {
    let mut watched = [libc::pollfd { fd: -1, events: libc::POLLIN, revents: 0 }; DESCRIPTORS_MAX];
    assert!(descriptors.len() <= DESCRIPTORS_MAX, "{} descriptors", descriptors.len());
    for (entry, &fd) in watched.iter_mut().zip(descriptors) {
        entry.fd = fd;
    }
    let seconds = libc::time_t::try_from(limit.as_secs()).unwrap_or(libc::time_t::MAX);
    let limit = libc::timespec { tv_sec: seconds, tv_nsec: limit.subsec_nanos().into() };
    let (count, no_mask) = (descriptors.len() as libc::nfds_t, std::ptr::null());
    // SAFETY: the kernel reads and writes `count` entries, at most all of `watched`, and reads the
    // time; without a mask it changes none.
    let code = unsafe { libc::ppoll(watched.as_mut_ptr(), count, &raw const limit, no_mask) };
    match code {
        0.. => Ok(()),
        _ => match io::Error::last_os_error() {
            error if error.kind() == io::ErrorKind::Interrupted => Ok(()),
            error => Err(error),
        },
    }
}
