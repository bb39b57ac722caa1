//! The user-space libraries of RDMA, loaded at run time if present: the table of their functions.
//!
//! Functions of `libibverbs.so.1` and `librdmacm.so.1` are looked up, so that a program starts
//! without the libraries (`van/tests/verbs` checks the test program's list of libraries). `dlopen`
//! comes from `libc`, a dependency anyway; a wrapper crate would own a handle that must never be
//! closed. Calls that the headers define inline, those of the data path, are at the end of this
//! file; they go through the device's own function table.
//!
//! A plain look-up finds a symbol's default version, here that of rdma-core 15 and later
//! (`IBVERBS_1.1`, `RDMACM_1.0`). Three names are more than functions in the headers: `ibv_reg_mr`
//! is a macro that calls another function only for optional access flags, which are not used here;
//! `ibv_query_port` also fills fields newer than the function, none of them used; `ibv_alloc_mw`
//! and `ibv_dealloc_mw` are no symbols and go through the device's table.
//!
//! Types and signatures are those of rdma-core's headers (`bindings`), made once by
//! `ci/suites/bindings`. The compiler holds the signatures below to them, and `ci/suites/rdma` each
//! size, offset and constant.

use std::ffi::{CStr, c_int, c_uint, c_void};
use std::io;
use std::os::fd::RawFd;
use std::ptr::NonNull;
use std::sync::OnceLock;
use std::time::Duration;

use super::bindings as ffi;
use super::connection::Channel;

/// What verbs or the connection manager lack on a machine. As text it has the remedy behind a
/// semicolon.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Missing {
    /// The libraries.
    Libraries {
        /// "cannot be loaded" or "are too old".
        state: &'static str,
        /// The loader's reason.
        reason: String,
    },
    /// A device that the libraries know.
    Device,
    /// An answer of the connection manager.
    Manager {
        /// The system's error.
        reason: String,
    },
}

impl Missing {
    /// What is missing, in words.
    pub fn what(&self) -> String {
        match self {
            Missing::Libraries { state, reason } => {
                format!("the RDMA libraries {state} ({reason})")
            }
            Missing::Device => "this machine has no RDMA device that the libraries know".to_owned(),
            Missing::Manager { reason } => {
                format!("the RDMA connection manager does not answer ({reason})")
            }
        }
    }

    /// What to do about it.
    pub fn remedy(&self) -> &'static str {
        match self {
            Missing::Libraries { .. } => {
                "install them: apt-get install libibverbs1 librdmacm1 ibverbs-providers"
            }
            Missing::Device => {
                "for Soft-RoCE: modprobe rdma_rxe && rdma link add rxe0 type rxe netdev \
                 <interface> (and apt-get install ibverbs-providers)"
            }
            Missing::Manager { .. } => "modprobe rdma_ucm",
        }
    }
}

impl std::fmt::Display for Missing {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "{}; {}", self.what(), self.remedy())
    }
}

/// Declares the table and its loader, so that each function is named once.
macro_rules! table {
    ($( $library:ident { $( $name:ident($($argument:ty),*) $(-> $result:ty)?; )* } )*) => {
        /// Functions of the libraries, by their names there.
        pub(super) struct Library {
            $($( pub(super) $name: unsafe extern "C" fn($($argument),*) $(-> $result)?, )*)*
        }

        // No signature differs from the header's.
        $($( const _: unsafe extern "C" fn($($argument),*) $(-> $result)? = ffi::$name; )*)*

        impl Library {
            fn load() -> Result<Library, Missing> {
                $( let $library = open(concat!(stringify!($library), ".so.1\0"))?; )*
                Ok(Library {
                    $($( $name: {
                        let symbol = look_up($library, concat!(stringify!($name), "\0"))?;
                        // SAFETY: a function pointer has the size of a pointer, `look_up` returns
                        // no null, and the signature is that of rdma-core's headers, as
                        // asserted above, whose libraries keep it under this name.
                        unsafe {
                            std::mem::transmute::<
                                *mut c_void,
                                unsafe extern "C" fn($($argument),*) $(-> $result)?,
                            >(symbol)
                        }
                    }, )*)*
                })
            }
        }
    };
}

table! {
    libibverbs {
        ibv_get_device_list(*mut c_int) -> *mut *mut ffi::ibv_device;
        ibv_free_device_list(*mut *mut ffi::ibv_device);
        ibv_query_device(*mut ffi::ibv_context, *mut ffi::ibv_device_attr) -> c_int;
        ibv_query_port(*mut ffi::ibv_context, u8, *mut ffi::_compat_ibv_port_attr) -> c_int;
        ibv_get_async_event(*mut ffi::ibv_context, *mut ffi::ibv_async_event) -> c_int;
        ibv_ack_async_event(*mut ffi::ibv_async_event);
        ibv_alloc_pd(*mut ffi::ibv_context) -> *mut ffi::ibv_pd;
        ibv_dealloc_pd(*mut ffi::ibv_pd) -> c_int;
        ibv_reg_mr(*mut ffi::ibv_pd, *mut c_void, usize, c_int) -> *mut ffi::ibv_mr;
        ibv_dereg_mr(*mut ffi::ibv_mr) -> c_int;
        ibv_create_comp_channel(*mut ffi::ibv_context) -> *mut ffi::ibv_comp_channel;
        ibv_destroy_comp_channel(*mut ffi::ibv_comp_channel) -> c_int;
        ibv_create_cq(*mut ffi::ibv_context, c_int, *mut c_void, *mut ffi::ibv_comp_channel, c_int) -> *mut ffi::ibv_cq;
        ibv_resize_cq(*mut ffi::ibv_cq, c_int) -> c_int;
        ibv_destroy_cq(*mut ffi::ibv_cq) -> c_int;
        ibv_get_cq_event(*mut ffi::ibv_comp_channel, *mut *mut ffi::ibv_cq, *mut *mut c_void) -> c_int;
        ibv_ack_cq_events(*mut ffi::ibv_cq, c_uint);
        ibv_create_srq(*mut ffi::ibv_pd, *mut ffi::ibv_srq_init_attr) -> *mut ffi::ibv_srq;
        ibv_destroy_srq(*mut ffi::ibv_srq) -> c_int;
        ibv_create_qp(*mut ffi::ibv_pd, *mut ffi::ibv_qp_init_attr) -> *mut ffi::ibv_qp;
        ibv_destroy_qp(*mut ffi::ibv_qp) -> c_int;
        ibv_modify_qp(*mut ffi::ibv_qp, *mut ffi::ibv_qp_attr, c_int) -> c_int;
    }
    librdmacm {
        rdma_create_event_channel() -> *mut ffi::rdma_event_channel;
        rdma_destroy_event_channel(*mut ffi::rdma_event_channel);
        rdma_get_cm_event(*mut ffi::rdma_event_channel, *mut *mut ffi::rdma_cm_event) -> c_int;
        rdma_ack_cm_event(*mut ffi::rdma_cm_event) -> c_int;
        rdma_create_id(*mut ffi::rdma_event_channel, *mut *mut ffi::rdma_cm_id, *mut c_void, ffi::rdma_port_space::Type) -> c_int;
        rdma_destroy_id(*mut ffi::rdma_cm_id) -> c_int;
        rdma_bind_addr(*mut ffi::rdma_cm_id, *mut ffi::sockaddr) -> c_int;
        rdma_listen(*mut ffi::rdma_cm_id, c_int) -> c_int;
        rdma_resolve_addr(*mut ffi::rdma_cm_id, *mut ffi::sockaddr, *mut ffi::sockaddr, c_int) -> c_int;
        rdma_resolve_route(*mut ffi::rdma_cm_id, c_int) -> c_int;
        rdma_set_option(*mut ffi::rdma_cm_id, c_int, c_int, *mut c_void, usize) -> c_int;
        rdma_create_qp(*mut ffi::rdma_cm_id, *mut ffi::ibv_pd, *mut ffi::ibv_qp_init_attr) -> c_int;
        rdma_destroy_qp(*mut ffi::rdma_cm_id);
        rdma_connect(*mut ffi::rdma_cm_id, *mut ffi::rdma_conn_param) -> c_int;
        rdma_accept(*mut ffi::rdma_cm_id, *mut ffi::rdma_conn_param) -> c_int;
        rdma_reject(*mut ffi::rdma_cm_id, *const c_void, u8) -> c_int;
        rdma_disconnect(*mut ffi::rdma_cm_id) -> c_int;
        rdma_get_devices(*mut c_int) -> *mut *mut ffi::ibv_context;
        rdma_free_devices(*mut *mut ffi::ibv_context);
    }
}

fn open(name: &'static str) -> Result<*mut c_void, Missing> {
    let file = CStr::from_bytes_with_nul(name.as_bytes()).expect("the table ends names with a 0");
    // SAFETY: `file` is a C string. The code that runs at loading is rdma-core's.
    let handle = unsafe { libc::dlopen(file.as_ptr(), libc::RTLD_NOW | libc::RTLD_LOCAL) };
    if handle.is_null() {
        return Err(Missing::Libraries { state: "cannot be loaded", reason: dl_error() });
    }
    Ok(handle)
}

fn look_up(handle: *mut c_void, name: &'static str) -> Result<*mut c_void, Missing> {
    let symbol = CStr::from_bytes_with_nul(name.as_bytes()).expect("the table ends names with a 0");
    // SAFETY: `handle` came from `dlopen` and is never closed; `symbol` is a C string.
    let address = unsafe { libc::dlsym(handle, symbol.as_ptr()) };
    if address.is_null() {
        return Err(Missing::Libraries { state: "are too old", reason: dl_error() });
    }
    Ok(address)
}

/// Why the last `dlopen` or `dlsym` of this thread failed.
fn dl_error() -> String {
    // SAFETY: takes no arguments; the result belongs to this thread until its next such call.
    let text = unsafe { libc::dlerror() };
    if text.is_null() {
        return "no reason given".to_owned();
    }
    // SAFETY: not null, so it is a C string, which is copied before any other such call.
    unsafe { CStr::from_ptr(text) }.to_string_lossy().into_owned()
}

/// The libraries, loaded by the first call and never unloaded: devices keep threads and handlers in
/// them.
fn loaded() -> Result<&'static Library, &'static Missing> {
    static LIBRARY: OnceLock<Result<Library, Missing>> = OnceLock::new();
    LIBRARY.get_or_init(Library::load).as_ref()
}

/// As [`loaded`], with an I/O error.
pub(super) fn library() -> io::Result<&'static Library> {
    loaded().map_err(|missing| io::Error::new(io::ErrorKind::Unsupported, missing.to_string()))
}

/// Checks that verbs and the connection manager work on this machine.
///
/// # Errors
/// What is missing.
pub fn available() -> Result<(), Missing> {
    has_devices()?;
    let opened = Channel::open();
    opened.map(drop).map_err(|error| Missing::Manager { reason: error.to_string() })
}

/// Checks that the libraries are here and know a device.
///
/// # Errors
/// What is missing.
pub fn has_devices() -> Result<(), Missing> {
    let library = loaded().map_err(Missing::clone)?;
    let mut count = 0;
    // SAFETY: `count` outlives the call.
    let list = unsafe { (library.ibv_get_device_list)(&raw mut count) };
    if !list.is_null() {
        // SAFETY: the list came from `ibv_get_device_list` and is not used after this.
        unsafe { (library.ibv_free_device_list)(list) };
    }
    if list.is_null() || count == 0 {
        return Err(Missing::Device);
    }
    Ok(())
}

/// The C library's error for the call that returned `code`: the verbs return an error number or -1,
/// the connection manager always -1.
pub(super) fn check(code: c_int) -> io::Result<()> {
    match code {
        0 => Ok(()),
        code if code > 0 => Err(io::Error::from_raw_os_error(code)),
        _ => Err(io::Error::last_os_error()),
    }
}

/// Our own error about invalid arguments.
pub(super) fn refused(reason: &'static str) -> io::Error {
    io::Error::new(io::ErrorKind::InvalidInput, reason)
}

/// Makes `fd` non-blocking.
pub(super) fn set_non_blocking(fd: RawFd) -> io::Result<()> {
    // SAFETY: takes no memory; fails on a descriptor that is not open.
    let flags = unsafe { libc::fcntl(fd, libc::F_GETFL) };
    if flags < 0 {
        return Err(io::Error::last_os_error());
    }
    // SAFETY: as above.
    check(unsafe { libc::fcntl(fd, libc::F_SETFL, flags | libc::O_NONBLOCK) })
}

/// Takes up to `count` completions into `into`; returns how many, or a negative number.
///
/// # Safety
/// `queue` lives, and `into` has room for `count` entries.
#[inline]
pub(super) unsafe fn poll_cq(
    queue: NonNull<ffi::ibv_cq>,
    count: c_int,
    into: *mut ffi::ibv_wc,
) -> c_int {
    // SAFETY: the queue lives.
    let context = unsafe { (*queue.as_ptr()).context };
    // SAFETY: the context of a queue that lives is open.
    let poll = unsafe { (*context).ops.poll_cq }.expect(EVERY_DEVICE);
    // SAFETY: as the caller promises.
    unsafe { poll(queue.as_ptr(), count, into) }
}

/// Requests a notification, as [`check`] reads the result.
///
/// # Safety
/// `queue` lives.
pub(super) unsafe fn req_notify_cq(queue: NonNull<ffi::ibv_cq>, solicited_only: c_int) -> c_int {
    // SAFETY: the queue lives.
    let context = unsafe { (*queue.as_ptr()).context };
    // SAFETY: the context of a queue that lives is open.
    let notify = unsafe { (*context).ops.req_notify_cq }.expect(EVERY_DEVICE);
    // SAFETY: the queue lives.
    unsafe { notify(queue.as_ptr(), solicited_only) }
}

/// Posts a chain of receives, as [`check`] reads the result.
///
/// # Safety
/// `queue` lives. So does the chain during the call, and what it names until the device is done
/// with it.
#[inline]
pub(super) unsafe fn post_srq_recv(
    queue: NonNull<ffi::ibv_srq>,
    work: *mut ffi::ibv_recv_wr,
) -> c_int {
    let mut bad = std::ptr::null_mut();
    // SAFETY: the queue lives.
    let context = unsafe { (*queue.as_ptr()).context };
    // SAFETY: the context of a queue that lives is open.
    let post = unsafe { (*context).ops.post_srq_recv }.expect(EVERY_DEVICE);
    // SAFETY: as the caller promises; `bad` has room for a pointer.
    unsafe { post(queue.as_ptr(), work, &raw mut bad) }
}

/// Posts a chain of work, as [`check`] reads the result.
///
/// # Safety
/// As for [`post_srq_recv`].
#[inline]
pub(super) unsafe fn post_send(
    queue_pair: NonNull<ffi::ibv_qp>,
    work: *mut ffi::ibv_send_wr,
) -> c_int {
    let mut bad = std::ptr::null_mut();
    // SAFETY: the queue pair lives.
    let context = unsafe { (*queue_pair.as_ptr()).context };
    // SAFETY: the context of a queue pair that lives is open.
    let post = unsafe { (*context).ops.post_send }.expect(EVERY_DEVICE);
    // SAFETY: as the caller promises; `bad` has room for a pointer.
    unsafe { post(queue_pair.as_ptr(), work, &raw mut bad) }
}

const EVERY_DEVICE: &str = "every device has the calls of the data path";

/// Most descriptors of one [`sleep`].
const SLEEP_FDS_MAX: usize = 8;

/// Sleeps until one of `fds` (at most 8) is readable, a signal arrives, or `timeout` has passed.
/// Returns a bit for each readable one, the first as bit 0.
///
/// # Errors
/// Those of ppoll(2).
pub fn sleep(fds: &[RawFd], timeout: Duration) -> io::Result<u32> {
    if fds.len() > SLEEP_FDS_MAX {
        return Err(refused("sleep looks at 8 descriptors at most"));
    }
    let mut polled = [libc::pollfd { fd: -1, events: libc::POLLIN, revents: 0 }; SLEEP_FDS_MAX];
    polled.iter_mut().zip(fds).for_each(|(to, &fd)| to.fd = fd);
    let timeout = libc::timespec {
        tv_sec: libc::time_t::try_from(timeout.as_secs()).unwrap_or(libc::time_t::MAX),
        tv_nsec: timeout.subsec_nanos().into(),
    };
    let entries = polled.as_mut_ptr();
    let count = polled.len() as libc::nfds_t;
    // SAFETY: `entries` are `count` initialised entries, those past `fds` with -1, which the call
    // ignores; they and `timeout` outlive the call. No signal mask is passed.
    let ready = unsafe { libc::ppoll(entries, count, &raw const timeout, std::ptr::null()) };
    match check(ready.min(0)) {
        Err(error) if error.kind() == io::ErrorKind::Interrupted => Ok(0),
        Err(error) => Err(error),
        Ok(()) => {
            let bits =
                polled.iter().zip(0..).map(|(entry, at)| u32::from(entry.revents != 0) << at);
            Ok(bits.sum())
        }
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, reason = "tests")]
    use super::*;

    #[test]
    fn either_verbs_work_or_the_reason_says_what_to_do() {
        match available() {
            Ok(()) => assert!(library().is_ok()),
            Err(missing) => {
                let said = missing.to_string();
                assert!(said.contains("apt-get") || said.contains("modprobe"), "{said}");
            }
        }
    }

    #[test]
    fn a_library_that_is_not_there_is_a_reason() {
        let said = open("libnosuchverbs.so.1\0").unwrap_err().to_string();
        assert!(said.contains("libnosuchverbs") && said.contains("apt-get install"), "{said}");
    }

    #[test]
    fn sleep_ends_by_itself_and_refuses_too_many() {
        assert_eq!(sleep(&[], Duration::from_micros(1)).unwrap(), 0);
        assert_eq!(sleep(&[-1], Duration::ZERO).unwrap(), 0);
        assert!(sleep(&[-1; 9], Duration::ZERO).is_err());
        let (reader, writer) = std::io::pipe().unwrap();
        drop(writer);
        let fds = [-1, std::os::fd::AsRawFd::as_raw_fd(&reader)];
        assert_eq!(sleep(&fds, Duration::from_secs(600)).unwrap(), 0b10);
    }
}
