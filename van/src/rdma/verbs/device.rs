//! A device: what it can do, and what it says by itself.

use std::collections::BTreeSet;
use std::ffi::{CStr, c_int};
use std::io;
use std::marker::PhantomData;
use std::mem::MaybeUninit;
use std::os::fd::RawFd;
use std::ptr::NonNull;
use std::sync::{Mutex, PoisonError};

use rdma_sys as ffi;
use rdma_sys::ibv_event_type as event;

use super::library::{Library, check, library, set_non_blocking};

/// One port of a device that the connection manager has opened. Open as long as the process lives.
#[derive(Clone, Copy, PartialEq, Eq, Hash)]
pub struct Device {
    context: NonNull<ffi::ibv_context>,
    port: u8,
    /// Handles are used by the thread that asked for them, as everything made from them.
    _single_threaded: PhantomData<*mut ()>,
}

/// The vendor of Soft-RoCE, where others have a number of their own.
const SOFT_ROCE: u32 = 0xff_ffff;

/// What a device and its port can do.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Capabilities {
    /// Most work that a queue pair may have in hand.
    pub queue_depth_max: usize,
    /// Most parts of memory that one piece of work may name.
    pub gather_max: usize,
    /// Most entries of a completion queue.
    pub completions_max: usize,
    /// Most receives that a shared receive queue may hold.
    pub receives_max: usize,
    /// Largest region that can be registered.
    pub region_bytes_max: u64,
    /// Most memory windows at a time.
    pub windows_max: usize,
    /// Whether there are memory windows of type 2, which open and close by work of a queue pair.
    pub windows: bool,
    /// It is Soft-RoCE, which hands programs the kernel's flags with a completion.
    pub(super) is_soft_roce: bool,
    /// Longest message or write.
    pub message_bytes_max: usize,
    /// Bytes of a packet's payload at most.
    pub mtu_bytes: usize,
    /// The port's number, from 1.
    pub port: u8,
    /// Whether it is up.
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
    /// Anything else, as the verbs number it.
    Other(u32),
}

/// Something a device said by itself.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct AsyncEvent {
    /// What.
    pub kind: AsyncKind,
    /// Of which port, where it is about one.
    pub port: Option<u8>,
}

/// What a device says by itself.
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
    /// Anything else, as the verbs number it.
    Other(u32),
}

/// `struct ibv_async_event`, with the kind as a plain number: newer libraries may know kinds that the bindings' enum does not.
#[repr(C)]
pub(super) struct RawAsyncEvent {
    element: Element,
    kind: c_int,
}

#[repr(C)]
#[derive(Clone, Copy)]
union Element {
    queue_pair: *mut ffi::ibv_qp,
    port: c_int,
}

impl Device {
    /// The device behind a context that the connection manager opened; none if it cannot be kept open.
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

    /// For calls that take the device. Valid as long as the process lives.
    pub(super) fn context(self) -> NonNull<ffi::ibv_context> {
        self.context
    }

    /// Its name, for example `mlx5_0`.
    pub fn name(&self) -> String {
        // SAFETY: the context stays open (`keep_open`), and is only written when it is opened.
        let device = unsafe { (*self.context.as_ptr()).device };
        // SAFETY: an open context's device lives as long as it does.
        let name = unsafe { &raw const (*device).name };
        // SAFETY: the libraries end the name with a 0 within its array.
        unsafe { CStr::from_ptr(name.cast()) }.to_string_lossy().into_owned()
    }

    /// What it can do.
    ///
    /// # Errors
    /// What the system said: the device is gone, for example.
    pub fn capabilities(&self) -> io::Result<Capabilities> {
        let library = library()?;
        let mut device = MaybeUninit::<ffi::ibv_device_attr>::zeroed();
        // SAFETY: the context is open, and `device` has room for what is written.
        check(unsafe { (library.ibv_query_device)(self.context.as_ptr(), device.as_mut_ptr()) })?;
        // SAFETY: numbers only, for which all zeros were fine to begin with.
        let device = unsafe { device.assume_init() };
        let mut port = MaybeUninit::<ffi::ibv_port_attr>::zeroed();
        // SAFETY: the context is open. The function fills the first fields of `port`; the rest stays zero.
        check(unsafe {
            (library.ibv_query_port)(self.context.as_ptr(), self.port, port.as_mut_ptr())
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
            windows: windows_max > 0 && device.device_cap_flags & type_2.0 != 0,
            is_soft_roce: device.vendor_id == SOFT_ROCE,
            message_bytes_max: port.max_msg_sz as usize,
            mtu_bytes: 128usize.checked_shl(port.active_mtu).unwrap_or(0),
            port: self.port,
            port_state: match port.state {
                ffi::ibv_port_state::IBV_PORT_DOWN => PortState::Down,
                ffi::ibv_port_state::IBV_PORT_INIT => PortState::Init,
                ffi::ibv_port_state::IBV_PORT_ARMED => PortState::Armed,
                ffi::ibv_port_state::IBV_PORT_ACTIVE => PortState::Active,
                other => PortState::Other(other),
            },
        })
    }

    /// Can be read when [`Device::next_async_event`] has something. It is the process's: whoever asks first gets an event,
    /// also one about another thread's queue pair.
    pub fn async_fd(&self) -> RawFd {
        // SAFETY: the context stays open, and is only written when it is opened.
        unsafe { (*self.context.as_ptr()).async_fd }
    }

    /// The next thing it has said, if any.
    ///
    /// # Errors
    /// What the system said.
    pub fn next_async_event(&self) -> io::Result<Option<AsyncEvent>> {
        let library = library()?;
        set_non_blocking(self.async_fd())?;
        let mut raw = MaybeUninit::<RawAsyncEvent>::zeroed();
        // SAFETY: the context is open, and `raw` has the layout and the room of an `ibv_async_event`.
        let code =
            unsafe { (library.ibv_get_async_event)(self.context.as_ptr(), raw.as_mut_ptr()) };
        match check(code) {
            Err(error) if error.kind() == io::ErrorKind::WouldBlock => return Ok(None),
            result => result?,
        }
        // SAFETY: it was filled, and is numbers and pointers, for which zeros were fine as well.
        let mut raw = unsafe { raw.assume_init() };
        let told = raw.told();
        // SAFETY: the event came from `ibv_get_async_event` and is acknowledged once.
        unsafe { (library.ibv_ack_async_event)(&raw mut raw) };
        Ok(Some(told))
    }
}

impl RawAsyncEvent {
    /// What it says. Its queue pair, if it has one, is there until it is acknowledged: destroying one waits for that.
    fn told(&self) -> AsyncEvent {
        let is = |kind: event| self.kind == kind as c_int;
        let other = AsyncKind::Other(self.kind as u32);
        if is(event::IBV_EVENT_QP_FATAL)
            || is(event::IBV_EVENT_QP_REQ_ERR)
            || is(event::IBV_EVENT_QP_ACCESS_ERR)
        {
            // SAFETY: events of these kinds name a queue pair.
            let queue_pair = unsafe { self.element.queue_pair };
            // SAFETY: it lives until the event is acknowledged, and its number never changes.
            let number = unsafe { (*queue_pair).qp_num };
            return AsyncEvent { kind: AsyncKind::QueuePairFatal(number), port: None };
        }
        let kind = match self.kind {
            _ if is(event::IBV_EVENT_PORT_ERR) => AsyncKind::PortError,
            _ if is(event::IBV_EVENT_PORT_ACTIVE) => AsyncKind::PortActive,
            _ if is(event::IBV_EVENT_DEVICE_FATAL) => AsyncKind::DeviceFatal,
            _ => return AsyncEvent { kind: other, port: None },
        };
        // SAFETY: any bits are a number; those of the device's event mean nothing and are dropped.
        let port = unsafe { self.element.port };
        let is_of_port = kind != AsyncKind::DeviceFatal;
        AsyncEvent { kind, port: u8::try_from(port).ok().filter(|_| is_of_port) }
    }
}

/// A number that C holds with a sign.
fn count(number: c_int) -> usize {
    usize::try_from(number).unwrap_or(0)
}

/// Sees to it that the connection manager never closes `context`, which it would when a device was unplugged and the last
/// connection over it is destroyed; false if it could not be done.
fn keep_open(library: &Library, context: NonNull<ffi::ibv_context>) -> bool {
    static KEPT: Mutex<BTreeSet<usize>> = Mutex::new(BTreeSet::new());
    let mut kept = KEPT.lock().unwrap_or_else(PoisonError::into_inner);
    if kept.contains(&(context.as_ptr() as usize)) {
        return true;
    }
    // SAFETY: a null pointer means that nobody wants the number. The list counts as a use of every device on it, and is never
    // given back, on purpose; it holds the caller's, whose connection lives.
    let list = unsafe { (library.rdma_get_devices)(std::ptr::null_mut()) };
    !list.is_null() && kept.insert(context.as_ptr() as usize)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn told(kind: c_int, port: c_int) -> AsyncEvent {
        // The pointer's bytes first, so that none of the union is left undefined.
        let mut raw = RawAsyncEvent { element: Element { queue_pair: std::ptr::null_mut() }, kind };
        raw.element.port = port;
        raw.told()
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
