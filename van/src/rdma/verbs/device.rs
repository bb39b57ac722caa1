//! An RDMA device: its capabilities and its asynchronous events.

use std::collections::BTreeSet;
use std::ffi::{CStr, c_int};
use std::io;
use std::marker::PhantomData;
use std::mem::MaybeUninit;
use std::os::fd::RawFd;
use std::ptr::NonNull;
use std::sync::{Mutex, PoisonError};

use super::bindings as ffi;
use super::bindings::ibv_event_type as event;
use super::library::{Library, check, library, set_non_blocking};

/// One port of a device, opened by the library of the connection manager. It stays open while the
/// process lives.
#[derive(Clone, Copy, PartialEq, Eq, Hash)]
pub struct Device {
    context: NonNull<ffi::ibv_context>,
    port: u8,
    /// A handle belongs to the thread that created it, like everything created from it.
    _single_threaded: PhantomData<*mut ()>,
}

/// Vendor number of Soft-RoCE; other devices have a number of their own.
const SOFT_ROCE: u32 = 0xff_ffff;

/// Capabilities of a device and its port.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Capabilities {
    /// Most outstanding requests of a queue pair.
    pub queue_depth_max: usize,
    /// Most memory parts of one request.
    pub gather_max: usize,
    /// Most entries of a completion queue.
    pub completions_max: usize,
    /// Most receives of a shared receive queue.
    pub receives_max: usize,
    /// Largest region that can be registered.
    pub region_bytes_max: u64,
    /// Most memory windows at a time.
    pub windows_max: usize,
    /// Whether it has memory windows of type 2, which a queue pair's work opens and closes.
    pub windows: bool,
    /// Whether it is Soft-RoCE, which passes the kernel's completion flags to programs.
    pub(super) is_soft_roce: bool,
    /// Longest message or write.
    pub message_bytes_max: usize,
    /// Largest payload of a packet.
    pub mtu_bytes: usize,
    /// The port's number, from 1.
    pub port: u8,
    /// The port's address within its InfiniBand subnet; 0 on Ethernet.
    pub lid: u16,
    /// State of the port.
    pub port_state: PortState,
}

/// Whether a port carries traffic.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum PortState {
    /// No link.
    Down,
    /// A link, not set up.
    Init,
    /// Set up, not in use.
    Armed,
    /// Up.
    Active,
    /// Any other, by its number in the verbs API.
    Other(u32),
}

/// An asynchronous event of a device.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct AsyncEvent {
    /// What happened.
    pub kind: AsyncKind,
    /// The port, if the event is about one.
    pub port: Option<u8>,
}

/// Kinds of asynchronous events.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum AsyncKind {
    /// A port lost its link.
    PortError,
    /// A port has a link.
    PortActive,
    /// The device is broken.
    DeviceFatal,
    /// The queue pair of this number is broken.
    QueuePairFatal(u32),
    /// Any other, by its number in the verbs API.
    Other(u32),
}

impl Device {
    /// A port of the device of this name; `None` if there is no such device. It needs no address.
    ///
    /// # Errors
    /// The libraries'.
    pub fn named(name: &str, port: u8) -> io::Result<Option<Device>> {
        let library = library()?;
        let mut count = 0;
        // SAFETY: `count` outlives the call.
        let list = unsafe { (library.rdma_get_devices)(&raw mut count) };
        if list.is_null() {
            return Err(io::Error::last_os_error());
        }
        let count = usize::try_from(count).unwrap_or(0);
        // SAFETY: the list has `count` entries, all of them set, and is not freed before the end.
        let contexts = unsafe { std::slice::from_raw_parts(list, count) };
        let devices = contexts.iter().filter_map(|&context| {
            let context = NonNull::new(context)?;
            Some(Device { context, port, _single_threaded: PhantomData })
        });
        let mut devices = devices.filter(|device| device.name() == name);
        let found = devices.next();
        let found = found.filter(|device| keep_open(library, device.context));
        // SAFETY: the list came from `rdma_get_devices` and is not used after this; a device that
        // was found is kept open by another list.
        unsafe { (library.rdma_free_devices)(list) };
        Ok(found)
    }

    /// The device of a context that the connection manager opened; `None` if it cannot be kept
    /// open.
    ///
    /// # Safety
    /// `context` is the `verbs` of a live `rdma_cm_id`.
    pub(super) unsafe fn new(
        library: &Library,
        context: NonNull<ffi::ibv_context>,
        port: u8,
    ) -> Option<Self> {
        let device = Device { context, port, _single_threaded: PhantomData };
        keep_open(library, context).then_some(device)
    }

    /// For calls that take the device. Valid while the process lives.
    pub(super) fn context(self) -> NonNull<ffi::ibv_context> {
        self.context
    }

    /// The number of its port, from 1.
    pub fn port(&self) -> u8 {
        self.port
    }

    /// Its name, for example `mlx5_0`.
    pub fn name(&self) -> String {
        // SAFETY: the context stays open (`keep_open`), and only its opening writes the field.
        let device = unsafe { (*self.context.as_ptr()).device };
        // SAFETY: the device of an open context lives as long as the context.
        let name = unsafe { &raw const (*device).name };
        // SAFETY: the libraries terminate the name with a 0 within its array.
        unsafe { CStr::from_ptr(name.cast()) }.to_string_lossy().into_owned()
    }

    /// Queries its capabilities.
    ///
    /// # Errors
    /// The system's, for example that the device is gone.
    pub fn capabilities(&self) -> io::Result<Capabilities> {
        let library = library()?;
        let mut device = MaybeUninit::<ffi::ibv_device_attr>::zeroed();
        // SAFETY: the context is open, and `device` has room for what is written.
        check(unsafe { (library.ibv_query_device)(self.context.as_ptr(), device.as_mut_ptr()) })?;
        // SAFETY: only numbers, which were initialised to zero.
        let device = unsafe { device.assume_init() };
        let mut port = MaybeUninit::<ffi::ibv_port_attr>::zeroed();
        // SAFETY: the context is open. The function fills the first fields of `port`; the rest
        // stays zero.
        check(unsafe {
            (library.ibv_query_port)(self.context.as_ptr(), self.port, port.as_mut_ptr().cast())
        })?;
        // SAFETY: as for the device.
        let port = unsafe { port.assume_init() };
        let type_2 = ffi::ibv_device_cap_flags::IBV_DEVICE_MEM_WINDOW_TYPE_2A
            | ffi::ibv_device_cap_flags::IBV_DEVICE_MEM_WINDOW_TYPE_2B;
        let windows_max = count(device.max_mw);
        Ok(Capabilities {
            queue_depth_max: count(device.max_qp_wr),
            gather_max: count(device.max_sge),
            completions_max: count(device.max_cqe),
            receives_max: count(device.max_srq_wr),
            region_bytes_max: device.max_mr_size,
            windows_max,
            windows: windows_max > 0 && device.device_cap_flags & type_2 != 0,
            is_soft_roce: device.vendor_id == SOFT_ROCE,
            message_bytes_max: port.max_msg_sz as usize,
            mtu_bytes: 128usize.checked_shl(port.active_mtu).unwrap_or(0),
            port: self.port,
            lid: port.lid,
            port_state: match port.state {
                ffi::ibv_port_state::IBV_PORT_DOWN => PortState::Down,
                ffi::ibv_port_state::IBV_PORT_INIT => PortState::Init,
                ffi::ibv_port_state::IBV_PORT_ARMED => PortState::Armed,
                ffi::ibv_port_state::IBV_PORT_ACTIVE => PortState::Active,
                other => PortState::Other(other),
            },
        })
    }

    /// Readable when [`Device::next_async_event`] has an event. It belongs to the process: the
    /// first caller gets an event, even if it is about another thread's queue pair.
    pub fn async_fd(&self) -> RawFd {
        // SAFETY: the context stays open, and only its opening writes the field.
        unsafe { (*self.context.as_ptr()).async_fd }
    }

    /// The next asynchronous event, if any.
    ///
    /// # Errors
    /// The system's.
    pub fn next_async_event(&self) -> io::Result<Option<AsyncEvent>> {
        let library = library()?;
        set_non_blocking(self.async_fd())?;
        let mut raw = MaybeUninit::<ffi::ibv_async_event>::zeroed();
        // SAFETY: the context is open, and `raw` has room for an event.
        let code =
            unsafe { (library.ibv_get_async_event)(self.context.as_ptr(), raw.as_mut_ptr()) };
        match check(code) {
            Err(error) if error.kind() == io::ErrorKind::WouldBlock => return Ok(None),
            result => result?,
        }
        // SAFETY: the call filled it, and it is numbers and pointers, which were initialised to
        // zero.
        let mut raw = unsafe { raw.assume_init() };
        let event = async_event(&raw);
        // SAFETY: the event came from `ibv_get_async_event` and is acknowledged once.
        unsafe { (library.ibv_ack_async_event)(&raw mut raw) };
        Ok(Some(event))
    }
}

/// Converts an event. Its queue pair, if any, lives until the event is acknowledged, because its
/// destruction waits for that.
fn async_event(raw: &ffi::ibv_async_event) -> AsyncEvent {
    let kind = match raw.event_type {
        event::IBV_EVENT_QP_FATAL
        | event::IBV_EVENT_QP_REQ_ERR
        | event::IBV_EVENT_QP_ACCESS_ERR => {
            // SAFETY: events of these kinds name a queue pair.
            let queue_pair = unsafe { raw.element.qp };
            // SAFETY: it lives until the event is acknowledged, and its number never changes.
            AsyncKind::QueuePairFatal(unsafe { (*queue_pair).qp_num })
        }
        event::IBV_EVENT_PORT_ERR => AsyncKind::PortError,
        event::IBV_EVENT_PORT_ACTIVE => AsyncKind::PortActive,
        event::IBV_EVENT_DEVICE_FATAL => AsyncKind::DeviceFatal,
        other => AsyncKind::Other(other),
    };
    let is_of_port = matches!(kind, AsyncKind::PortError | AsyncKind::PortActive);
    // SAFETY: any bits are a valid number, which is dropped for events that have no port.
    let port = unsafe { raw.element.port_num };
    AsyncEvent { kind, port: u8::try_from(port).ok().filter(|_| is_of_port) }
}

/// A count that C declares as signed.
fn count(number: c_int) -> usize {
    usize::try_from(number).unwrap_or(0)
}

/// Keeps `context` open for good; false on failure. The connection manager would close it when the
/// device is unplugged and the last connection over it is destroyed.
fn keep_open(library: &Library, context: NonNull<ffi::ibv_context>) -> bool {
    static KEPT: Mutex<BTreeSet<usize>> = Mutex::new(BTreeSet::new());
    let mut kept = KEPT.lock().unwrap_or_else(PoisonError::into_inner);
    if kept.contains(&(context.as_ptr() as usize)) {
        return true;
    }
    // SAFETY: a null pointer means that the count is not wanted. The list counts as a use of every
    // device on it and is deliberately never freed; it includes the caller's device, whose
    // connection lives.
    let list = unsafe { (library.rdma_get_devices)(std::ptr::null_mut()) };
    !list.is_null() && kept.insert(context.as_ptr() as usize)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn told(kind: event::Type, port: c_int) -> AsyncEvent {
        // The pointer first, so that no byte of the union stays uninitialised.
        let element = ffi::ibv_async_event__bindgen_ty_1 { qp: std::ptr::null_mut() };
        let mut raw = ffi::ibv_async_event { element, event_type: kind };
        raw.element.port_num = port;
        async_event(&raw)
    }

    #[test]
    fn events_are_named_and_unknown_ones_are_numbers() {
        let port = |kind, port| AsyncEvent { kind, port };
        assert_eq!(told(10, 1), port(AsyncKind::PortError, Some(1)));
        assert_eq!(told(9, 2), port(AsyncKind::PortActive, Some(2)));
        assert_eq!(told(9, 999), port(AsyncKind::PortActive, None));
        assert_eq!(told(8, 1), port(AsyncKind::DeviceFatal, None));
        assert_eq!(told(77, 1), port(AsyncKind::Other(77), None));
    }
}
