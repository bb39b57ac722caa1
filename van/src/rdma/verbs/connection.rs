//! The connection manager: addresses, connections, and what happens to them.
//!
//! A [`Channel`] tells what happened to the [`Connection`]s made on it. Nothing here waits: what takes time is asked for, and
//! an event follows. Data goes through a [`QueuePair`](super::QueuePair), which takes over its connection.

use std::ffi::{c_int, c_void};
use std::fmt;
use std::io;
use std::net::SocketAddr;
use std::os::fd::RawFd;
use std::ptr::NonNull;
use std::rc::Rc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use rdma_sys as ffi;
use rdma_sys::rdma_cm_event_type as event;

use super::address::{RawAddress, from_raw};
use super::device::Device;
use super::library::{Library, check, library, refused, set_non_blocking};

/// Sets the exponent of the time that an acknowledgement may take; of `rdma_set_option`, since rdma-core 24.
const OPTION_ACK_TIMEOUT: c_int = 3;

/// As many reads at a time as both devices can do; `RDMA_MAX_RESP_RES` and `RDMA_MAX_INIT_DEPTH` of the header.
const READS_MAX: u8 = 0xff;

/// Try for ever while the peer has no receive posted. Credits see to it that it always has.
const RECEIVER_NOT_READY_RETRIES: u8 = 7;

/// Tells what happened to connections, without waiting.
pub struct Channel {
    library: &'static Library,
    channel: NonNull<ffi::rdma_event_channel>,
}

/// A connection's number, unique within the process. Not reused.
#[derive(Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord, Debug)]
pub struct ConnectionKey(usize);

/// Something that happened to a connection.
#[derive(Debug)]
pub struct CmEvent {
    /// Which connection; of a request, the one that listens.
    pub key: ConnectionKey,
    /// What happened.
    pub kind: CmKind,
    /// More about it: 0, a negative error number, or for [`CmKind::Rejected`] the reason's number in the protocol.
    pub status: i32,
    /// What the peer said with it, with zeros behind.
    pub private_data: Vec<u8>,
    /// The connection that a [`CmKind::ConnectRequest`] asks for. Dropped: rejected.
    pub request: Option<Connection>,
}

/// What can happen to a connection.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum CmKind {
    /// [`Connection::resolve_address`] is done.
    AddressResolved,
    /// It failed.
    AddressError,
    /// [`Connection::resolve_route`] is done.
    RouteResolved,
    /// It failed.
    RouteError,
    /// A peer wants to connect.
    ConnectRequest,
    /// Connecting failed.
    ConnectError,
    /// The peer does not answer.
    Unreachable,
    /// The peer does not want to, or nobody listens there.
    Rejected,
    /// Both sides can send.
    Established,
    /// The peer has disconnected, or is gone.
    Disconnected,
    /// The device is being removed.
    DeviceRemoved,
    /// The network interface's address moved to another device.
    AddressChanged,
    /// The numbers of a closed connection may be used again.
    TimewaitExit,
    /// Anything else, as the connection manager numbers it.
    Other(u32),
}

impl Channel {
    /// A channel without connections.
    ///
    /// # Errors
    /// What the system said: that there is no RDMA here, for example.
    pub fn open() -> io::Result<Rc<Channel>> {
        let library = library()?;
        // SAFETY: takes nothing.
        let channel = unsafe { (library.rdma_create_event_channel)() };
        let channel = NonNull::new(channel).ok_or_else(io::Error::last_os_error)?;
        let channel = Channel { library, channel };
        set_non_blocking(channel.fd())?;
        Ok(Rc::new(channel))
    }

    /// Can be read when [`Channel::next`] has something.
    pub fn fd(&self) -> RawFd {
        // SAFETY: the channel lives until `drop`, and this field is only written when it is made.
        unsafe { (*self.channel.as_ptr()).fd }
    }

    /// The next event, if any.
    ///
    /// # Errors
    /// What the system said.
    pub fn next(self: &Rc<Self>) -> io::Result<Option<CmEvent>> {
        let mut raw = std::ptr::null_mut();
        // SAFETY: the channel is open, and `raw` has room for a pointer.
        let code = unsafe { (self.library.rdma_get_cm_event)(self.channel.as_ptr(), &raw mut raw) };
        match check(code) {
            Err(error) if error.kind() == io::ErrorKind::WouldBlock => return Ok(None),
            result => result?,
        }
        // SAFETY: the call succeeded, so it set `raw` to an event, which is there until it is acknowledged below.
        let told = self.told(unsafe { &*raw });
        // SAFETY: the event came from `rdma_get_cm_event` and is acknowledged once; `told` holds copies.
        check(unsafe { (self.library.rdma_ack_cm_event)(raw) })?;
        Ok(Some(told))
    }

    /// Copies what an event says, and takes over the connection that a request brings.
    fn told(self: &Rc<Self>, raw: &ffi::rdma_cm_event) -> CmEvent {
        let kind = CmKind::from(raw.event);
        let request = (kind == CmKind::ConnectRequest).then(|| NonNull::new(raw.id)).flatten();
        let request = request.map(|id| {
            let connection = Connection { id, channel: self.clone(), key: next_key() };
            // SAFETY: the connection is new, and nobody else knows it yet.
            unsafe { (*id.as_ptr()).context = connection.key.0 as *mut c_void };
            connection
        });
        let about = if kind == CmKind::ConnectRequest { raw.listen_id } else { raw.id };
        // SAFETY: an event names a connection of this channel that has not been destroyed: destroying one takes its events
        // back from the channel, and nobody else can do so during this call, as both belong to this thread.
        let key = ConnectionKey(unsafe { (*about).context } as usize);
        // SAFETY: all connections here are of the kind whose events hold this variant, and the library zeroes both.
        let said = unsafe { raw.param.conn };
        let private_data = if said.private_data.is_null() || said.private_data_len == 0 {
            Vec::new()
        } else {
            let len = usize::from(said.private_data_len);
            // SAFETY: the library points to as many bytes as it says, within the event.
            unsafe { std::slice::from_raw_parts(said.private_data.cast::<u8>(), len) }.to_vec()
        };
        CmEvent { key, kind, status: raw.status, private_data, request }
    }
}

impl Drop for Channel {
    fn drop(&mut self) {
        // SAFETY: this runs once. Every connection holds its channel, so none is left on it, and no event is unacknowledged.
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

/// One end of a connection, or a place where peers connect to. Dropped: destroyed; the peer is told.
pub struct Connection {
    /// Its `context` is `key`.
    id: NonNull<ffi::rdma_cm_id>,
    channel: Rc<Channel>, // lives longer than `id`: fields drop after `Drop::drop` has run
    key: ConnectionKey,
}

impl Connection {
    /// A connection to nobody yet.
    ///
    /// # Errors
    /// What the system said.
    pub fn new(channel: &Rc<Channel>) -> io::Result<Connection> {
        let (library, key, mut id) = (channel.library, next_key(), std::ptr::null_mut());
        let (events, context) = (channel.channel.as_ptr(), key.0 as *mut c_void);
        let space = ffi::rdma_port_space::RDMA_PS_TCP;
        // SAFETY: the channel is open, `id` has room for a pointer, and `context` is a number that nobody follows.
        check(unsafe { (library.rdma_create_id)(events, &raw mut id, context, space) })?;
        let id = NonNull::new(id).ok_or_else(io::Error::last_os_error)?;
        Ok(Connection { id, channel: channel.clone(), key })
    }

    /// What events call it.
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

    /// Gives it a local address, and with it a device, unless the address is that of all interfaces.
    ///
    /// # Errors
    /// What the system said: that no RDMA device has this address, for example.
    pub fn bind(&self, address: SocketAddr) -> io::Result<()> {
        let address = RawAddress::from(address);
        // SAFETY: the connection lives, and `address` is one that outlives the call.
        check(unsafe { (self.library().rdma_bind_addr)(self.id.as_ptr(), address.as_ptr()) })
    }

    /// Lets peers connect to the address it is bound to; `backlog` requests may wait.
    ///
    /// # Errors
    /// What the system said.
    pub fn listen(&self, backlog: i32) -> io::Result<()> {
        // SAFETY: the connection lives.
        check(unsafe { (self.library().rdma_listen)(self.id.as_ptr(), backlog) })
    }

    /// Its own address, once it has one.
    pub fn local_address(&self) -> Option<SocketAddr> {
        // SAFETY: the connection lives; the address is within it.
        let address = unsafe { &raw const (*self.id.as_ptr()).route.addr.src_addr_union };
        // SAFETY: the library keeps room for any address there, zeroed to begin with, which is of no family.
        unsafe { from_raw(address.cast()) }
    }

    /// The peer's address, once it has one.
    pub fn peer_address(&self) -> Option<SocketAddr> {
        // SAFETY: the connection lives; the address is within it.
        let address = unsafe { &raw const (*self.id.as_ptr()).route.addr.dst_addr_union };
        // SAFETY: as in `local_address`.
        unsafe { from_raw(address.cast()) }
    }

    /// Looks for the device through which `to` is reached, from `from` if given; [`CmKind::AddressResolved`] or
    /// [`CmKind::AddressError`] follows.
    ///
    /// # Errors
    /// What the system said.
    pub fn resolve_address(
        &self,
        from: Option<SocketAddr>,
        to: SocketAddr,
        timeout: Duration,
    ) -> io::Result<()> {
        let (from, to) = (from.map(RawAddress::from), RawAddress::from(to));
        let from = from.as_ref().map_or(std::ptr::null(), RawAddress::as_ptr);
        let (to, timeout_ms) = (to.as_ptr(), milliseconds(timeout));
        // SAFETY: the connection lives; the addresses outlive the call, and `from` may be null.
        check(unsafe { (self.library().rdma_resolve_addr)(self.id.as_ptr(), from, to, timeout_ms) })
    }

    /// Looks for the way to the resolved address; [`CmKind::RouteResolved`] or [`CmKind::RouteError`] follows.
    ///
    /// # Errors
    /// What the system said.
    pub fn resolve_route(&self, timeout: Duration) -> io::Result<()> {
        let timeout_ms = milliseconds(timeout);
        self.check_device()?;
        // SAFETY: the connection lives, and has a device, which the library does not ask.
        check(unsafe { (self.library().rdma_resolve_route)(self.id.as_ptr(), timeout_ms) })
    }

    /// Sets how long the device waits for an acknowledgement before it sends again: 4.096 µs times 2 to the power of
    /// `exponent`. Before connecting or accepting.
    ///
    /// # Errors
    /// What the system said.
    pub fn set_ack_timeout(&self, exponent: u8) -> io::Result<()> {
        let mut exponent = exponent;
        let (value, len) = ((&raw mut exponent).cast::<c_void>(), size_of::<u8>());
        // SAFETY: the connection lives, and the option (of level 0, connections) is one byte, which is read during the call.
        check(unsafe {
            (self.library().rdma_set_option)(self.id.as_ptr(), 0, OPTION_ACK_TIMEOUT, value, len)
        })
    }

    /// Its device, once it is bound to one, resolved, or asked for by a peer.
    pub fn device(&self) -> Option<Device> {
        // SAFETY: the connection lives; only calls write this field.
        let context = NonNull::new(unsafe { (*self.id.as_ptr()).verbs })?;
        // SAFETY: as above.
        let port = unsafe { (*self.id.as_ptr()).port_num };
        // SAFETY: `context` is the `verbs` of this connection, which lives.
        unsafe { Device::new(self.library(), context, port) }
    }

    /// Connects over the resolved route, once it has its queue pair. The peer gets `private_data` (56 bytes at most) with the
    /// request. The device sends `retries` times (7 at most) before it gives up. [`CmKind::Established`] or one of the errors follows.
    ///
    /// # Errors
    /// What the system said.
    pub fn connect(&self, private_data: &[u8], retries: u8) -> io::Result<()> {
        let mut parameters = parameters(private_data, retries)?;
        self.check_device()?;
        // SAFETY: the connection lives, and has a device, which the library does not ask; `parameters` and the data it names
        // outlive the call.
        check(unsafe { (self.library().rdma_connect)(self.id.as_ptr(), &raw mut parameters) })
    }

    /// Accepts a peer's request, once it has its queue pair. The peer gets `private_data` (196 bytes at most) with the answer.
    /// [`CmKind::Established`] follows.
    ///
    /// # Errors
    /// What the system said.
    pub fn accept(&self, private_data: &[u8]) -> io::Result<()> {
        let mut parameters = parameters(private_data, 0)?;
        self.check_device()?;
        // SAFETY: as in `connect`.
        check(unsafe { (self.library().rdma_accept)(self.id.as_ptr(), &raw mut parameters) })
    }

    /// Says no to a peer's request, with a reason of 148 bytes at most.
    ///
    /// # Errors
    /// What the system said.
    pub fn reject(self, private_data: &[u8]) -> io::Result<()> {
        let (data, len) = (private_data.as_ptr().cast(), data_len(private_data)?);
        // SAFETY: the connection lives; `data` outlives the call.
        check(unsafe { (self.library().rdma_reject)(self.id.as_ptr(), data, len) })
    }

    /// Closes it, and says yes to a peer that did. This side's queue pair goes to the error state. [`CmKind::Disconnected`] follows
    /// on the other side, and on this one when the other has said yes by this call or by being dropped.
    ///
    /// # Errors
    /// What the system said.
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
        // SAFETY: this runs once. Its queue pair, if it ever had one, owned this and was destroyed before (`QueuePair::drop`);
        // no event of it is unacknowledged (`Channel::next`), for which this would wait.
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

/// Names `private_data` by address: to be used while that lives.
fn parameters(private_data: &[u8], retries: u8) -> io::Result<ffi::rdma_conn_param> {
    Ok(ffi::rdma_conn_param {
        private_data: private_data.as_ptr().cast(),
        private_data_len: data_len(private_data)?,
        responder_resources: READS_MAX,
        initiator_depth: READS_MAX,
        flow_control: 1,
        retry_count: retries.min(7),
        rnr_retry_count: RECEIVER_NOT_READY_RETRIES,
        srq: 0,    // taken from the queue pair
        qp_num: 0, // likewise
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
