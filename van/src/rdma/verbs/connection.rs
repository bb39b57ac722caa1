//! The connection manager: addresses, connections and their events.
//!
//! A [`Channel`] reports the events of its [`Connection`]s. Nothing here blocks: slow steps are
//! requested, and an event follows. Data goes through a [`QueuePair`](super::QueuePair), which
//! takes over its connection.

use std::ffi::{c_int, c_void};
use std::fmt;
use std::io;
use std::net::SocketAddr;
use std::os::fd::RawFd;
use std::ptr::NonNull;
use std::rc::Rc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use super::address::{RawAddress, from_raw};
use super::bindings as ffi;
use super::bindings::rdma_cm_event_type as event;
use super::device::Device;
use super::library::{Library, check, library, refused, set_non_blocking};

/// Option of `rdma_set_option`: the traffic class.
const OPTION_TRAFFIC_CLASS: c_int = 0;

/// Option of `rdma_set_option`, since rdma-core 24: the exponent of the acknowledgement timeout.
const OPTION_ACK_TIMEOUT: c_int = 3;

/// As many concurrent reads as both devices support: `RDMA_MAX_RESP_RES` and `RDMA_MAX_INIT_DEPTH`
/// of the header.
const READS_MAX: u8 = 0xff;

/// Retry forever while the peer has no receive posted; its credits ensure that it always has one.
pub(super) const RECEIVER_NOT_READY_RETRIES: u8 = 7;

/// Reports events of connections, without blocking.
pub struct Channel {
    library: &'static Library,
    channel: NonNull<ffi::rdma_event_channel>,
}

/// A connection's number, unique within the process and never reused.
#[derive(Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord, Debug)]
pub struct ConnectionKey(usize);

/// An event of a connection.
#[derive(Debug)]
pub struct CmEvent {
    /// The connection; for a request, the listening one.
    pub key: ConnectionKey,
    /// What happened.
    pub kind: CmKind,
    /// Details: 0, a negative error number, or for [`CmKind::Rejected`] the reason's number in the
    /// protocol.
    pub status: i32,
    /// The peer's private data, padded with zeros.
    pub private_data: Vec<u8>,
    /// The connection that a [`CmKind::ConnectRequest`] asks for. Dropping it rejects the request.
    pub request: Option<Connection>,
}

/// Kinds of events.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum CmKind {
    /// [`Connection::resolve_address`] succeeded.
    AddressResolved,
    /// It failed.
    AddressError,
    /// [`Connection::resolve_route`] succeeded.
    RouteResolved,
    /// It failed.
    RouteError,
    /// A peer asks to connect.
    ConnectRequest,
    /// Connecting failed.
    ConnectError,
    /// The peer does not answer.
    Unreachable,
    /// The peer refuses, or nobody listens there.
    Rejected,
    /// Both sides can send.
    Established,
    /// The peer has disconnected, or is gone.
    Disconnected,
    /// The device is being removed.
    DeviceRemoved,
    /// The network interface's address moved to another device.
    AddressChanged,
    /// The numbers of a closed connection may be reused.
    TimewaitExit,
    /// Any other, by its number in the connection manager.
    Other(u32),
}

impl Channel {
    /// Creates a channel without connections.
    ///
    /// # Errors
    /// The system's, for example that there is no RDMA here.
    pub fn open() -> io::Result<Rc<Channel>> {
        let library = library()?;
        // SAFETY: takes no arguments.
        let channel = unsafe { (library.rdma_create_event_channel)() };
        let channel = NonNull::new(channel).ok_or_else(io::Error::last_os_error)?;
        let channel = Channel { library, channel };
        set_non_blocking(channel.fd())?;
        Ok(Rc::new(channel))
    }

    /// Readable when [`Channel::next`] has an event.
    pub fn fd(&self) -> RawFd {
        // SAFETY: the channel lives until `drop`, and only its creation writes this field.
        unsafe { (*self.channel.as_ptr()).fd }
    }

    /// The next event, if any.
    ///
    /// # Errors
    /// The system's.
    pub fn next(self: &Rc<Self>) -> io::Result<Option<CmEvent>> {
        let mut raw = std::ptr::null_mut();
        // SAFETY: the channel is open, and `raw` has room for a pointer.
        let code = unsafe { (self.library.rdma_get_cm_event)(self.channel.as_ptr(), &raw mut raw) };
        match check(code) {
            Err(error) if error.kind() == io::ErrorKind::WouldBlock => return Ok(None),
            result => result?,
        }
        // SAFETY: the call succeeded, so it set `raw` to an event, which lives until it is
        // acknowledged below.
        let event = self.event(unsafe { &*raw });
        // SAFETY: the event came from `rdma_get_cm_event` and is acknowledged once; `event` holds
        // copies.
        check(unsafe { (self.library.rdma_ack_cm_event)(raw) })?;
        Ok(Some(event))
    }

    /// Copies an event, and takes over the connection of a request.
    fn event(self: &Rc<Self>, raw: &ffi::rdma_cm_event) -> CmEvent {
        let kind = CmKind::from(raw.event);
        let request = (kind == CmKind::ConnectRequest).then(|| NonNull::new(raw.id)).flatten();
        let request = request.map(|id| {
            let connection = Connection { id, channel: self.clone(), key: next_key() };
            // SAFETY: the connection is new, and nobody else knows it yet.
            unsafe { (*id.as_ptr()).context = connection.key.0 as *mut c_void };
            connection
        });
        let about = if kind == CmKind::ConnectRequest { raw.listen_id } else { raw.id };
        // SAFETY: an event names a connection of this channel that has not been destroyed: its
        // destruction removes its events from the channel, and cannot happen during this call,
        // because both belong to this thread.
        let key = ConnectionKey(unsafe { (*about).context } as usize);
        // SAFETY: events of all connections here hold this variant, and the library zeroes the
        // union.
        let conn = unsafe { raw.param.conn };
        let private_data = if conn.private_data.is_null() || conn.private_data_len == 0 {
            Vec::new()
        } else {
            let len = usize::from(conn.private_data_len);
            // SAFETY: the library points to as many bytes as it says, within the event.
            unsafe { std::slice::from_raw_parts(conn.private_data.cast::<u8>(), len) }.to_vec()
        };
        CmEvent { key, kind, status: raw.status, private_data, request }
    }
}

impl Drop for Channel {
    fn drop(&mut self) {
        // SAFETY: this runs once. Every connection holds its channel, so none is left on it, and no
        // event is unacknowledged.
        unsafe { (self.library.rdma_destroy_event_channel)(self.channel.as_ptr()) }
    }
}

impl fmt::Debug for Channel {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Channel({})", self.fd())
    }
}

impl From<event::Type> for CmKind {
    fn from(kind: event::Type) -> CmKind {
        match kind {
            event::RDMA_CM_EVENT_ADDR_RESOLVED => CmKind::AddressResolved,
            event::RDMA_CM_EVENT_ADDR_ERROR => CmKind::AddressError,
            event::RDMA_CM_EVENT_ROUTE_RESOLVED => CmKind::RouteResolved,
            event::RDMA_CM_EVENT_ROUTE_ERROR => CmKind::RouteError,
            event::RDMA_CM_EVENT_CONNECT_REQUEST => CmKind::ConnectRequest,
            event::RDMA_CM_EVENT_CONNECT_ERROR => CmKind::ConnectError,
            event::RDMA_CM_EVENT_UNREACHABLE => CmKind::Unreachable,
            event::RDMA_CM_EVENT_REJECTED => CmKind::Rejected,
            event::RDMA_CM_EVENT_ESTABLISHED => CmKind::Established,
            event::RDMA_CM_EVENT_DISCONNECTED => CmKind::Disconnected,
            event::RDMA_CM_EVENT_DEVICE_REMOVAL => CmKind::DeviceRemoved,
            event::RDMA_CM_EVENT_ADDR_CHANGE => CmKind::AddressChanged,
            event::RDMA_CM_EVENT_TIMEWAIT_EXIT => CmKind::TimewaitExit,
            other => CmKind::Other(other),
        }
    }
}

fn next_key() -> ConnectionKey {
    static NEXT: AtomicUsize = AtomicUsize::new(1);
    ConnectionKey(NEXT.fetch_add(1, Ordering::Relaxed))
}

/// One end of a connection, or a listener. Dropping it closes it and tells the peer.
pub struct Connection {
    /// Its `context` is `key`.
    id: NonNull<ffi::rdma_cm_id>,
    channel: Rc<Channel>, // outlives `id`: fields drop after `Drop::drop`
    key: ConnectionKey,
}

impl Connection {
    /// Creates a connection without a peer.
    ///
    /// # Errors
    /// The system's.
    pub fn new(channel: &Rc<Channel>) -> io::Result<Connection> {
        let library = channel.library;
        let key = next_key();
        let mut id = std::ptr::null_mut();
        let events = channel.channel.as_ptr();
        let context = key.0 as *mut c_void;
        let space = ffi::rdma_port_space::RDMA_PS_TCP;
        // SAFETY: the channel is open, `id` has room for a pointer, and `context` is a number that
        // nobody follows.
        check(unsafe { (library.rdma_create_id)(events, &raw mut id, context, space) })?;
        let id = NonNull::new(id).ok_or_else(io::Error::last_os_error)?;
        Ok(Connection { id, channel: channel.clone(), key })
    }

    /// The number that its events carry.
    pub fn key(&self) -> ConnectionKey {
        self.key
    }

    /// For the queue pair that owns this connection.
    pub(super) fn id(&self) -> NonNull<ffi::rdma_cm_id> {
        self.id
    }

    pub(super) fn library(&self) -> &'static Library {
        self.channel.library
    }

    /// Binds it to a local address, and to that address's device unless it is the address of all
    /// interfaces.
    ///
    /// # Errors
    /// The system's, for example that no RDMA device has this address.
    pub fn bind(&self, address: SocketAddr) -> io::Result<()> {
        let address = RawAddress::from(address);
        // SAFETY: the connection lives, and `address` outlives the call.
        check(unsafe { (self.library().rdma_bind_addr)(self.id.as_ptr(), address.as_ptr()) })
    }

    /// Lets peers connect to the bound address; `backlog` requests may wait.
    ///
    /// # Errors
    /// The system's.
    pub fn listen(&self, backlog: i32) -> io::Result<()> {
        // SAFETY: the connection lives.
        check(unsafe { (self.library().rdma_listen)(self.id.as_ptr(), backlog) })
    }

    /// Its own address, if known.
    pub fn local_address(&self) -> Option<SocketAddr> {
        // SAFETY: the connection lives; the address is within it.
        let address = unsafe { &raw const (*self.id.as_ptr()).route.addr.anonymous_1 };
        // SAFETY: the library reserves room for any address there, initially zeroed, which is of no
        // family.
        unsafe { from_raw(address.cast()) }
    }

    /// The peer's address, if known.
    pub fn peer_address(&self) -> Option<SocketAddr> {
        // SAFETY: the connection lives; the address is within it.
        let address = unsafe { &raw const (*self.id.as_ptr()).route.addr.anonymous_2 };
        // SAFETY: as in `local_address`.
        unsafe { from_raw(address.cast()) }
    }

    /// Resolves `to`, from the address `from` if given, to a device. [`CmKind::AddressResolved`] or
    /// [`CmKind::AddressError`] follows.
    ///
    /// # Errors
    /// The system's.
    pub fn resolve_address(
        &self,
        from: Option<SocketAddr>,
        to: SocketAddr,
        timeout: Duration,
    ) -> io::Result<()> {
        let from = from.map(RawAddress::from);
        let from = from.as_ref().map_or(std::ptr::null_mut(), RawAddress::as_ptr);
        let to = RawAddress::from(to);
        let to = to.as_ptr();
        let timeout_ms = milliseconds(timeout);
        // SAFETY: the connection lives; the addresses outlive the call, and `from` may be null.
        check(unsafe { (self.library().rdma_resolve_addr)(self.id.as_ptr(), from, to, timeout_ms) })
    }

    /// Resolves the route to the resolved address. [`CmKind::RouteResolved`] or
    /// [`CmKind::RouteError`] follows.
    ///
    /// # Errors
    /// The system's.
    pub fn resolve_route(&self, timeout: Duration) -> io::Result<()> {
        let timeout_ms = milliseconds(timeout);
        self.check_device()?;
        // SAFETY: the connection lives and has a device, which the library does not check.
        check(unsafe { (self.library().rdma_resolve_route)(self.id.as_ptr(), timeout_ms) })
    }

    /// Sets the acknowledgement timeout after which the device sends again: 4.096 µs times 2 to the
    /// power of `exponent`. To be called before connecting or accepting.
    ///
    /// # Errors
    /// The system's.
    pub fn set_ack_timeout(&self, exponent: u8) -> io::Result<()> {
        self.set_byte(OPTION_ACK_TIMEOUT, exponent)
    }

    /// Sets the traffic class of its packets. To be called before resolving the route or accepting.
    ///
    /// # Errors
    /// The system's.
    pub fn set_traffic_class(&self, class: u8) -> io::Result<()> {
        self.set_byte(OPTION_TRAFFIC_CLASS, class)
    }

    /// Sets an option of one byte.
    fn set_byte(&self, option: c_int, value: u8) -> io::Result<()> {
        let mut value = value;
        let value = (&raw mut value).cast::<c_void>();
        let len = size_of::<u8>();
        // SAFETY: the connection lives, and the option (of level 0, connections) is one byte, which
        // is read during the call.
        check(unsafe { (self.library().rdma_set_option)(self.id.as_ptr(), 0, option, value, len) })
    }

    /// Its device, once it is bound, resolved, or requested by a peer.
    pub fn device(&self) -> Option<Device> {
        // SAFETY: the connection lives; only calls write this field.
        let context = NonNull::new(unsafe { (*self.id.as_ptr()).verbs })?;
        // SAFETY: as above.
        let port = unsafe { (*self.id.as_ptr()).port_num };
        // SAFETY: `context` is the `verbs` of this connection, which lives.
        unsafe { Device::new(self.library(), context, port) }
    }

    /// Connects over the resolved route; needs its queue pair. The request carries `private_data`
    /// (at most 56 bytes). The device sends up to `retries` times (at most 7).
    /// [`CmKind::Established`] or an error event follows.
    ///
    /// # Errors
    /// The system's.
    pub fn connect(&self, private_data: &[u8], retries: u8) -> io::Result<()> {
        let mut parameters = parameters(private_data, retries)?;
        self.check_device()?;
        // SAFETY: the connection lives and has a device, which the library does not check;
        // `parameters` and the data it names outlive the call.
        check(unsafe { (self.library().rdma_connect)(self.id.as_ptr(), &raw mut parameters) })
    }

    /// Accepts a peer's request; needs its queue pair. The answer carries `private_data` (at most
    /// 196 bytes). [`CmKind::Established`] follows.
    ///
    /// # Errors
    /// The system's.
    pub fn accept(&self, private_data: &[u8]) -> io::Result<()> {
        let mut parameters = parameters(private_data, 0)?;
        self.check_device()?;
        // SAFETY: as in `connect`.
        check(unsafe { (self.library().rdma_accept)(self.id.as_ptr(), &raw mut parameters) })
    }

    /// Rejects a peer's request, with a reason of at most 148 bytes.
    ///
    /// # Errors
    /// The system's.
    pub fn reject(self, private_data: &[u8]) -> io::Result<()> {
        let data = private_data.as_ptr().cast();
        let len = data_len(private_data)?;
        // SAFETY: the connection lives; `data` outlives the call.
        check(unsafe { (self.library().rdma_reject)(self.id.as_ptr(), data, len) })
    }

    /// Closes it, or confirms that the peer did. This side's queue pair goes to the error state.
    /// [`CmKind::Disconnected`] follows on the other side, and on this side once the other has
    /// confirmed by this call or by a drop.
    ///
    /// # Errors
    /// The system's.
    pub fn disconnect(&self) -> io::Result<()> {
        // SAFETY: the connection lives.
        check(unsafe { (self.library().rdma_disconnect)(self.id.as_ptr()) })
    }
}

impl Connection {
    fn check_device(&self) -> io::Result<()> {
        self.device().map(drop).ok_or_else(|| refused("the address is not resolved yet"))
    }
}

impl Drop for Connection {
    fn drop(&mut self) {
        // SAFETY: this runs once. Its queue pair, if any, owned this and was destroyed before
        // (`QueuePair::drop`). No event of it is unacknowledged (`Channel::next`); the call would
        // wait for that.
        let code = unsafe { (self.library().rdma_destroy_id)(self.id.as_ptr()) };
        debug_assert_eq!(code, 0, "rdma_destroy_id");
    }
}

impl fmt::Debug for Connection {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Connection({})", self.key.0)
    }
}

fn milliseconds(timeout: Duration) -> c_int {
    c_int::try_from(timeout.as_millis()).unwrap_or(c_int::MAX)
}

fn data_len(private_data: &[u8]) -> io::Result<u8> {
    u8::try_from(private_data.len()).map_err(|_| refused("private data is 255 bytes at most"))
}

/// Parameters that name `private_data` by address, so they must not outlive it.
fn parameters(private_data: &[u8], retries: u8) -> io::Result<ffi::rdma_conn_param> {
    Ok(ffi::rdma_conn_param {
        private_data: private_data.as_ptr().cast(),
        private_data_len: data_len(private_data)?,
        responder_resources: READS_MAX,
        initiator_depth: READS_MAX,
        flow_control: 1,
        retry_count: retries.min(7),
        rnr_retry_count: RECEIVER_NOT_READY_RETRIES,
        srq: 0,    // from the queue pair
        qp_num: 0, // from the queue pair
    })
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, reason = "tests")]
    use super::*;

    #[test]
    fn private_data_is_bounded() {
        assert_eq!(parameters(&[0; 255], 9).unwrap().retry_count, 7);
        assert!(parameters(&[0; 256], 7).is_err());
    }

    #[test]
    fn events_of_the_future_are_numbers() {
        assert_eq!(CmKind::from(event::RDMA_CM_EVENT_ESTABLISHED), CmKind::Established);
        assert_eq!(CmKind::from(16), CmKind::Other(16));
    }
}
