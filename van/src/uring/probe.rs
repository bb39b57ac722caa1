//! How a ring is set up: the modes that kernels know, what this van needs of them, and why a kernel
//! refuses.
//!
//! Sets a ring up and looks at it; no operation is handed to the kernel here. Not on the path.

use std::io;

use io_uring::{IoUring, opcode, register::Probe};

/// Submissions that can be queued before a system call is needed.
const SUBMISSIONS: u32 = 512;

/// Completions that fit into the ring: two for each of 2,000 peers. The kernel keeps what is more
/// and hands it over later.
const COMPLETIONS: u32 = 4096;

/// How the ring is set up.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Mode {
    /// Completions are posted when this thread enters the kernel to ask for them, and only then.
    Deferred,
    /// Completions are posted whenever this thread is in the kernel anyway, a yield included; it is
    /// not interrupted for them.
    Cooperative,
    /// The kernel interrupts this thread to post completions. Every kernel with io_uring does this.
    Plain,
}

impl Mode {
    /// Best first, as measured: `van/docs/decisions/0016-sockets-by-readiness.md`.
    pub(super) const BEST_FIRST: [Mode; 3] = [Mode::Deferred, Mode::Cooperative, Mode::Plain];

    fn build(self) -> io::Result<IoUring> {
        let mut builder = IoUring::builder();
        builder.setup_cqsize(COMPLETIONS).setup_clamp().dontfork();
        match self {
            Mode::Deferred => {
                builder.setup_single_issuer().setup_defer_taskrun().setup_taskrun_flag()
            }
            Mode::Cooperative => builder.setup_coop_taskrun().setup_taskrun_flag(),
            Mode::Plain => &mut builder,
        };
        builder.build(SUBMISSIONS)
    }
}

/// The first of `modes` that `build` can make. A mode the kernel does not know is passed over; any
/// other failure is final.
///
/// # Errors
/// What the last attempt reported.
fn first_that_works<T>(
    modes: &[Mode],
    build: impl Fn(Mode) -> io::Result<T>,
) -> io::Result<(T, Mode)> {
    let mut refusal = io::Error::from_raw_os_error(libc::EINVAL);
    for &mode in modes {
        match build(mode) {
            Ok(made) => return Ok((made, mode)),
            Err(error) if error.raw_os_error() == Some(libc::EINVAL) => refusal = error,
            Err(error) => return Err(error),
        }
    }
    Err(refusal)
}

/// Sets a ring up in the first of `modes` that works, and checks that the kernel does all that this
/// van asks of it.
pub(super) fn open(modes: &[Mode]) -> Result<(IoUring, Mode), String> {
    let (io, mode) =
        first_that_works(modes, Mode::build).map_err(|error| explain(&error, &disabled()))?;
    let parameters = io.params();
    if !parameters.is_feature_ext_arg() || !parameters.is_feature_nodrop() {
        return Err("its io_uring cannot sleep for a limited time; Linux 5.11 or newer is needed \
                    (or use --van tcp)"
            .to_owned());
    }
    let mut probe = Probe::new();
    io.submitter().register_probe(&mut probe).map_err(|error| explain(&error, &disabled()))?;
    let needed = [("POLL_ADD", opcode::PollAdd::CODE), ("ASYNC_CANCEL", opcode::AsyncCancel::CODE)];
    match needed.iter().find(|(_, code)| !probe.is_supported(*code)) {
        None => Ok((io, mode)),
        Some((name, _)) => Err(format!("its io_uring lacks {name}; use --van tcp")),
    }
}

/// What the administrator says about io_uring: "0" for everybody, "1" for a group, "2" for nobody;
/// empty on older kernels.
fn disabled() -> String {
    std::fs::read_to_string("/proc/sys/kernel/io_uring_disabled").unwrap_or_default()
}

/// Why a ring could not be set up and what to do about it, given the value of
/// `kernel.io_uring_disabled`.
fn explain(error: &io::Error, disabled: &str) -> String {
    match (error.raw_os_error(), disabled.trim()) {
        (Some(libc::EPERM), level @ ("1" | "2")) => format!(
            "io_uring is disabled by kernel.io_uring_disabled={level}; set it to 0 (sysctl) or use --van tcp"
        ),
        (Some(libc::EPERM | libc::EACCES), _) => {
            "io_uring is forbidden to this process, probably by a container's seccomp profile; \
             allow io_uring_setup, io_uring_enter and io_uring_register, or use --van tcp"
                .to_owned()
        }
        (Some(libc::ENOSYS), _) => "this kernel has no io_uring, or a container hides it; Linux \
                                    5.11 or newer is needed (or use --van tcp)"
            .to_owned(),
        (Some(libc::ENOMEM), _) => format!(
            "no memory for a ring of {COMPLETIONS} completions; raise the limit on locked memory \
             (`ulimit -l`) or use --van tcp"
        ),
        (Some(libc::EMFILE | libc::ENFILE), _) => {
            "too many open files; raise the limit (`ulimit -n`)".to_owned()
        }
        _ => format!("io_uring cannot be set up: {error}; use --van tcp"),
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, reason = "tests")]
    use super::*;

    fn refuse<T>(errno: i32) -> io::Result<T> {
        Err(io::Error::from_raw_os_error(errno))
    }

    #[test]
    fn the_best_mode_the_kernel_knows_is_taken() {
        let knows = |known: &'static [Mode]| {
            move |mode| if known.contains(&mode) { Ok(mode) } else { refuse(libc::EINVAL) }
        };
        for (known, taken) in [
            (&Mode::BEST_FIRST[..], Mode::BEST_FIRST[0]),
            (&Mode::BEST_FIRST[1..], Mode::BEST_FIRST[1]),
            (&[Mode::Plain], Mode::Plain),
        ] {
            let (made, mode) = first_that_works(&Mode::BEST_FIRST, knows(known)).unwrap();
            assert_eq!((made, mode), (taken, taken));
        }
        let error = first_that_works(&Mode::BEST_FIRST, knows(&[])).unwrap_err();
        assert_eq!(error.raw_os_error(), Some(libc::EINVAL));
    }

    #[test]
    fn only_an_unknown_mode_is_passed_over() {
        let tries = std::cell::Cell::new(0);
        let error = first_that_works(&Mode::BEST_FIRST, |_| {
            tries.set(tries.get() + 1);
            refuse::<()>(libc::EPERM)
        });
        assert_eq!(error.unwrap_err().raw_os_error(), Some(libc::EPERM));
        assert_eq!(tries.get(), 1);
    }

    #[test]
    fn a_refusal_names_its_cause_and_remedy() {
        for (errno, disabled, words) in [
            (libc::EPERM, "2\n", "kernel.io_uring_disabled=2"),
            (libc::EPERM, "1\n", "kernel.io_uring_disabled=1"),
            (libc::EPERM, "0\n", "seccomp"),
            (libc::EPERM, "", "seccomp"),
            (libc::ENOSYS, "", "Linux 5.11"),
            (libc::ENOMEM, "0\n", "ulimit -l"),
            (libc::EMFILE, "0\n", "ulimit -n"),
            (libc::EIO, "0\n", "--van tcp"),
        ] {
            let reason = explain(&io::Error::from_raw_os_error(errno), disabled);
            assert!(reason.contains(words), "{errno}: {reason}");
        }
    }
}
