//! A queue pair: work is pushed onto a chain, posted in one call, and owned here until it is
//! retired.
//!
//! The ledger keeps the memory that each request on the chain (`chain`) names by address, one entry
//! per request, from the push until a completion reports that the device is done with it, or until
//! the queue pair is destroyed.

mod bind;

use std::ffi::c_int;
use std::fmt;
use std::io;
use std::mem::MaybeUninit;
use std::ptr::NonNull;
use std::rc::{Rc, Weak};

use super::bindings as ffi;
use super::bindings::ibv_wr_opcode as opcode;
use super::chain::{CHAIN_MAX, Chain, PARTS_MAX, make_plain, set_immediate, set_remote};
use super::completion::{CompletionQueue, Through, WorkId, next_serial};
use super::connection::Connection;
use super::device::Capabilities;
use super::domain::{Domain, WindowHandle};
use super::library::{check, post_send, refused};
use super::receive::{ReceiveQueue, Receives};
use super::work::{Held, Other, Work};
use crate::error::{Error, Result};
use crate::memory::{Buffer, Shared};
use crate::transport::Gather;

/// Smallest inline size to ask for, in bytes.
const INLINE_MIN: usize = 16;

const SIGNALED: u32 = ffi::ibv_send_flags::IBV_SEND_SIGNALED;
const INLINE: u32 = ffi::ibv_send_flags::IBV_SEND_INLINE;

/// A place in the peer's memory.
#[derive(Clone, Copy)]
struct Remote {
    address: u64,
    key: u32,
}

/// One end of a reliable connection.
///
/// Dropping it destroys it at once, with its outstanding work. Completions not polled by then may
/// or may not come; a receive without completion keeps its place in the receive queue for good. So
/// call [`QueuePair::fail`] and poll until all outstanding work has come back before dropping one
/// that shares its receive queue.
pub struct QueuePair {
    /// Destroyed in `Drop::drop`, before any field below is dropped.
    queue_pair: NonNull<ffi::ibv_qp>,
    serial: u32,
    number: u32,
    inline_bytes: usize,
    message_bytes_max: usize,
    chain: Chain,
    /// Requests pushed and not posted yet.
    chained: usize,
    /// Those of them that are sent inline, one bit each.
    inlined: u32,
    /// Those of them that open windows, one bit each.
    binds: u32,
    /// Indexed by sequence number modulo its length, a power of two.
    ledger: Vec<Held>,
    depth: usize,
    /// Sequence number of the next push.
    pushed: u64,
    /// Sequence number of the first request not posted.
    rung: u64,
    /// Sequence number of the first request not known to be done.
    retired: u64,
    /// Sequence number after the last request that the peer's device acknowledges: any but those
    /// that open windows.
    sent: u64,
    /// Whether the device opens windows again when it resends; see [`QueuePair::can_bind`].
    binds_again: bool,
    /// Whether every post is reported, which resends of windows require.
    reports_all: bool,
    /// Whether a post failed: the device's state is unknown then.
    is_broken: bool,
    /// Windows that it opened, each once.
    windows: Vec<Weak<WindowHandle>>,
    domain: Rc<Domain>,
    _completions: Rc<CompletionQueue>,
    _receives: Rc<Receives>,
    /// `None` if it is connected directly.
    connection: Option<Connection>,
}

impl QueuePair {
    /// Gives `connection`, which must not be connected yet, a queue pair with up to `sends`
    /// outstanding requests and up to `inline_bytes` of data within a request, or as many as the
    /// device supports.
    ///
    /// # Errors
    /// The system's, for example if the device's queues are shorter.
    pub fn new(
        connection: Connection,
        domain: &Rc<Domain>,
        completions: &Rc<CompletionQueue>,
        receives: &ReceiveQueue,
        sends: usize,
        inline_bytes: usize,
    ) -> io::Result<QueuePair> {
        let device = connection.device().ok_or_else(|| refused("no device yet"))?;
        if device.context() != domain.device().context() {
            return Err(refused("connection and domain are of different devices"));
        }
        QueuePair::made(Some(connection), domain, completions, receives, sends, inline_bytes)
    }

    /// As [`QueuePair::new`], without a connection: [`QueuePair::start`] and [`QueuePair::join`]
    /// connect it.
    ///
    /// # Errors
    /// As [`QueuePair::new`].
    pub fn unconnected(
        domain: &Rc<Domain>,
        completions: &Rc<CompletionQueue>,
        receives: &ReceiveQueue,
        sends: usize,
        inline_bytes: usize,
    ) -> io::Result<QueuePair> {
        QueuePair::made(None, domain, completions, receives, sends, inline_bytes)
    }

    fn made(
        connection: Option<Connection>,
        domain: &Rc<Domain>,
        completions: &Rc<CompletionQueue>,
        receives: &ReceiveQueue,
        sends: usize,
        inline_bytes: usize,
    ) -> io::Result<QueuePair> {
        let receives = receives.receives();
        let contexts = [completions.device(), receives.device()];
        if contexts.iter().any(|other| other.context() != domain.device().context()) {
            return Err(refused("domain and queues are of different devices"));
        }
        let Capabilities { message_bytes_max, is_soft_roce, .. } =
            domain.device().capabilities()?;
        let serial = next_serial()?;
        let id = connection.as_ref().map(Connection::id);
        let (queue_pair, given) = create(id, domain, completions, receives, sends, inline_bytes)?;
        // SAFETY: the queue pair lives, and its number never changes.
        let number = unsafe { (*queue_pair.as_ptr()).qp_num };
        Ok(QueuePair {
            queue_pair,
            serial,
            number,
            inline_bytes: inline_bytes.min(given),
            message_bytes_max,
            chain: Chain::new(),
            chained: 0,
            inlined: 0,
            binds: 0,
            ledger: (0..sends.max(1).next_power_of_two()).map(|_| Held::default()).collect(),
            depth: sends,
            pushed: 0,
            rung: 0,
            retired: 0,
            sent: 0,
            binds_again: is_soft_roce,
            reports_all: false,
            is_broken: false,
            windows: Vec::new(),
            domain: domain.clone(),
            _completions: completions.clone(),
            _receives: receives.clone(),
            connection,
        })
    }

    /// Its connection, unless it is connected directly.
    pub fn connection(&self) -> Option<&Connection> {
        self.connection.as_ref()
    }

    /// Its number, which completions carry. The device reuses it some time after a drop.
    pub fn number(&self) -> u32 {
        self.number
    }

    /// Sends and writes of up to this many bytes travel within the request; their memory is
    /// released when it is posted.
    pub fn inline_bytes(&self) -> usize {
        self.inline_bytes
    }

    /// How many requests can still be pushed before some are retired.
    #[inline]
    pub fn room(&self) -> usize {
        self.depth - self.in_hand()
    }

    #[inline]
    fn in_hand(&self) -> usize {
        (self.pushed - self.retired) as usize
    }

    /// Adds work to the chain, and posts a full chain. Failed work is always reported; successful
    /// work is reported by a later request that [`QueuePair::ring`] has reported.
    ///
    /// # Errors
    /// [`Error::Os`] if there is no room, the data is too long, or the post fails;
    /// [`Error::Register`]. The work is dropped.
    #[inline(always)] // callers know the kind of work at compile time
    pub fn push(&mut self, work: Work) -> Result<()> {
        let nowhere = Remote { address: 0, key: 0 };
        let (operation, data, imm, to) = match work {
            Work::Send { data, imm: None } => (opcode::IBV_WR_SEND, data, 0, nowhere),
            Work::Send { data, imm: Some(imm) } => {
                (opcode::IBV_WR_SEND_WITH_IMM, data, imm, nowhere)
            }
            Work::Write { data, address, key, imm: None } => {
                (opcode::IBV_WR_RDMA_WRITE, data, 0, Remote { address, key })
            }
            Work::Write { data, address, key, imm: Some(imm) } => {
                (opcode::IBV_WR_RDMA_WRITE_WITH_IMM, data, imm, Remote { address, key })
            }
            // The key shares the place of `imm`, but not its byte order.
            Work::SendLast { data, key } => {
                (opcode::IBV_WR_SEND_WITH_INV, data, key.to_be(), nowhere)
            }
            Work::Read { into, address, key } => return self.read(into, Remote { address, key }),
            Work::Notice { imm } => return self.push_bare(opcode::IBV_WR_SEND_WITH_IMM, imm),
            Work::Probe => return self.push_bare(opcode::IBV_WR_RDMA_WRITE, 0),
        };
        self.carry(operation, data, imm, to)
    }

    /// Pushes a request without data.
    fn push_bare(&mut self, operation: u32, imm: u32) -> Result<()> {
        self.make_room()?;
        let request = self.chain.request(self.chained);
        make_plain(request);
        set_immediate(request, imm);
        self.enter(operation, 0, Held::default());
        Ok(())
    }

    /// Pushes a request with data, to `address` and `key` if it is a write.
    #[inline(always)] // part of `push`
    fn carry(&mut self, operation: u32, data: Gather, imm: u32, to: Remote) -> Result<()> {
        self.make_room()?;
        let at = self.chained;
        let len = data.len();
        self.check_len(len)?;
        let is_inline = len <= self.inline_bytes;
        let mut count = 0;
        if !data.head.is_empty() {
            self.name(0, &data.head, is_inline)?;
            count = 1;
        }
        if let Some(tail) = data.tail.as_ref().filter(|tail| !tail.is_empty()) {
            self.name(count, tail, is_inline)?;
            count += 1;
        }
        let is_inline = is_inline && count > 0;
        self.inlined |= u32::from(is_inline) << at;
        let request = self.chain.request(at);
        request.num_sge = count as c_int;
        set_immediate(request, imm);
        set_remote(request, to.address, to.key);
        let flags = if is_inline { INLINE } else { 0 };
        self.enter(operation, flags, data.into());
        Ok(())
    }

    fn read(&mut self, into: Buffer, from: Remote) -> Result<()> {
        self.make_room()?;
        let at = self.chained;
        self.check_len(into.len())?;
        let local_key = into.local_key(&*self.domain)?;
        self.chain.name(at, 0, into.as_ptr(), into.len() as u32, local_key);
        let request = self.chain.request(at);
        request.num_sge = c_int::from(!into.is_empty());
        set_remote(request, from.address, from.key);
        self.enter(opcode::IBV_WR_RDMA_READ, 0, Other::Read(into).into());
        Ok(())
    }

    /// Requests pushed and not posted.
    #[inline]
    pub fn chained(&self) -> usize {
        self.chained
    }

    /// Posts everything pushed since the last time, in one call. With `report`, or when there is no
    /// room for more, a completion reports the end of the last request, and with it of all before.
    ///
    /// # Errors
    /// The system's. The queue pair accepts no more work then; its memory is released when it is
    /// dropped.
    pub fn ring(&mut self, report: bool) -> io::Result<()> {
        if self.chained == 0 {
            return Ok(());
        }
        self.check_broken()?;
        self.skip_windows_gone();
        let last = self.chained - 1;
        let is_full = self.room() == 0;
        let request = self.chain.request(last);
        let report = report || is_full || self.reports_all;
        request.send_flags |= if report { SIGNALED } else { 0 };
        let follows = std::mem::replace(&mut request.next, std::ptr::null_mut());
        let first = self.chain.first();
        // SAFETY: the queue pair lives, and no reference into the chain is held. The requests are
        // linked from the first to the last. The ledger owns the memory they name until the device
        // is done with it (`retire`) or the queue pair is destroyed (`drop`), or this call copies
        // it (`INLINE`). The windows they open still exist (`skip_windows_gone`), and so does the
        // memory, and with it the region, that an open window owns.
        let code = unsafe { post_send(self.queue_pair, first) };
        self.chain.request(last).next = follows;
        self.is_broken = code != 0; // the device may have accepted some or all of it
        let mut inlined = std::mem::take(&mut self.inlined);
        let begin = self.rung;
        self.chained = 0;
        self.binds = 0;
        self.rung = self.pushed;
        check(code)?;
        while inlined != 0 {
            self.entry(begin + u64::from(inlined.trailing_zeros())).data = None;
            inlined &= inlined - 1;
        }
        Ok(())
    }

    /// Releases everything up to what a completion reports as done. Appends to `read` the buffers
    /// that reads have filled, in order of their push; none if the work failed. False, without
    /// effect, if the completion is of a former queue pair of the same number.
    pub fn retire(&mut self, through: Through, read: &mut Vec<Buffer>) -> bool {
        let count = through.sequence.wrapping_sub(self.retired as u32).wrapping_add(1);
        if through.queue_pair != self.serial || u64::from(count) > self.rung - self.retired {
            return false;
        }
        for _ in 0..count {
            let held = self.entry(self.retired);
            if held.data.is_some() {
                held.data = None; // dropped in place; `take` would move it first
            }
            if held.other.is_some()
                && let Some(Other::Read(into)) = held.other.take()
                && through.is_ok
            {
                read.push(into);
            }
            self.retired += 1;
        }
        true
    }

    /// Sets how long a peer waits that sent while no receive was posted here, by InfiniBand's code:
    /// 12 is 0.64 ms, 0 is 655.36 ms. Needs an established connection.
    ///
    /// # Errors
    /// The system's.
    pub fn set_receiver_not_ready_timer(&self, code: u8) -> io::Result<()> {
        let mut attributes = no_attributes();
        attributes.min_rnr_timer = code;
        self.modify(attributes, ffi::ibv_qp_attr_mask::IBV_QP_MIN_RNR_TIMER)
    }

    /// Breaks the connection from this side: outstanding work comes back as failed, and so does the
    /// peer's.
    ///
    /// # Errors
    /// The system's.
    pub fn fail(&self) -> io::Result<()> {
        let mut attributes = no_attributes();
        attributes.qp_state = ffi::ibv_qp_state::IBV_QPS_ERR;
        self.modify(attributes, ffi::ibv_qp_attr_mask::IBV_QP_STATE)
    }

    pub(super) fn modify(
        &self,
        attributes: ffi::ibv_qp_attr,
        mask: ffi::ibv_qp_attr_mask::Type,
    ) -> io::Result<()> {
        let library = self.domain.library();
        let mut attributes = attributes;
        let to = &raw mut attributes;
        let mask = mask as c_int;
        // SAFETY: the queue pair lives, and the attributes outlive the call.
        check(unsafe { (library.ibv_modify_qp)(self.queue_pair.as_ptr(), to, mask) })
    }

    /// Ensures room on the chain and in the queue.
    #[inline]
    fn make_room(&mut self) -> Result<()> {
        if self.chained < CHAIN_MAX && self.room() > 0 && !self.is_broken {
            return Ok(());
        }
        self.find_room()
    }

    #[cold]
    fn find_room(&mut self) -> Result<()> {
        let os = |source| Error::Os { call: "ibv_post_send", source };
        if self.room() == 0 {
            let full = "the send queue is full; retire some work first";
            return Err(os(io::Error::new(io::ErrorKind::WouldBlock, full)));
        }
        self.check_broken().map_err(os)?;
        self.ring(false).map_err(os)
    }

    fn check_broken(&self) -> io::Result<()> {
        if self.is_broken {
            return Err(io::Error::new(io::ErrorKind::NotConnected, "posting work failed before"));
        }
        Ok(())
    }

    #[inline]
    fn entry(&mut self, sequence: u64) -> &mut Held {
        let mask = self.ledger.len() - 1;
        &mut self.ledger[sequence as usize & mask]
    }

    /// Sets `data`, whose length was checked, as a part of the next request. The library itself
    /// reads inline data.
    #[inline(always)] // part of `push`
    fn name(&mut self, part: usize, data: &Shared, is_inline: bool) -> Result<()> {
        let key = if is_inline { 0 } else { data.local_key(&*self.domain)? };
        self.chain.name(self.chained, part, data.as_ptr(), data.len() as u32, key);
        Ok(())
    }

    #[inline]
    fn check_len(&self, len: usize) -> Result<()> {
        let limit = self.message_bytes_max;
        if len > limit { Err(Error::FrameTooLong { len, limit }) } else { Ok(()) }
    }

    /// Completes the chain's next request and records what it holds.
    #[inline(always)] // part of `push`
    fn enter(&mut self, operation: u32, flags: u32, held: Held) {
        let at = self.chained;
        let sequence = self.pushed;
        let id = WorkId::sent(self.serial, sequence).0;
        let request = self.chain.request(at);
        request.wr_id = id;
        request.opcode = operation;
        request.send_flags = flags;
        let before = std::mem::replace(self.entry(sequence), held);
        debug_assert!(before.data.is_none() && before.other.is_none(), "a retired one holds none");
        std::mem::forget(before); // holds nothing, so no drop is needed
        self.chained += 1;
        self.pushed += 1;
        self.sent = self.pushed;
    }
}

impl Drop for QueuePair {
    fn drop(&mut self) {
        // Peers access windows through the queue pair that opened them, and Soft-RoCE waits for
        // open ones when it destroys it.
        for window in self.windows.drain(..).filter_map(|window| window.upgrade()) {
            window.give_back_if_open(self.serial);
        }
        let library = self.domain.library();
        let Some(connection) = &self.connection else {
            // SAFETY: this runs once, and nobody else uses the queue pair. Afterwards the device is
            // done with everything in the ledger and with the queues, which drop later.
            let code = unsafe { (library.ibv_destroy_qp)(self.queue_pair.as_ptr()) };
            debug_assert_eq!(code, 0, "ibv_destroy_qp");
            return;
        };
        // SAFETY: as above; the connection lives, and the queue pair is its own.
        unsafe { (library.rdma_destroy_qp)(connection.id().as_ptr()) }
    }
}

impl fmt::Debug for QueuePair {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "QueuePair({}, {} of {} in hand)", self.number, self.in_hand(), self.depth)
    }
}

/// Creates a queue pair, that of the connection `id` if there is one, with as much inline data as
/// the device supports, at most `inline_bytes`, and returns that size.
fn create(
    id: Option<NonNull<ffi::rdma_cm_id>>,
    domain: &Domain,
    completions: &CompletionQueue,
    receives: &Receives,
    sends: usize,
    inline_bytes: usize,
) -> io::Result<(NonNull<ffi::ibv_qp>, usize)> {
    let sends = u32::try_from(sends).map_err(|_| refused("a queue has less than 2^32 entries"))?;
    let mut inline_bytes = inline_bytes;
    loop {
        let mut attributes = ffi::ibv_qp_init_attr {
            qp_context: std::ptr::null_mut(),
            send_cq: completions.raw().as_ptr(),
            recv_cq: completions.raw().as_ptr(),
            srq: receives.raw().as_ptr(),
            cap: ffi::ibv_qp_cap {
                max_send_wr: sends,
                max_recv_wr: 0,
                max_send_sge: PARTS_MAX as u32,
                max_recv_sge: 0,
                max_inline_data: u32::try_from(inline_bytes).unwrap_or(u32::MAX),
            },
            qp_type: ffi::ibv_qp_type::IBV_QPT_RC,
            sq_sig_all: 0,
        };
        match create_once(id, domain, &mut attributes) {
            Ok(queue_pair) => return Ok((queue_pair, attributes.cap.max_inline_data as usize)),
            // Devices report their inline limit only by such an error.
            Err(_) if inline_bytes >= INLINE_MIN => inline_bytes /= 2,
            Err(_) if inline_bytes > 0 => inline_bytes = 0,
            Err(error) => return Err(error),
        }
    }
}

/// Creates a queue pair as `attributes` say; sets them to what it has got.
fn create_once(
    id: Option<NonNull<ffi::rdma_cm_id>>,
    domain: &Domain,
    attributes: &mut ffi::ibv_qp_init_attr,
) -> io::Result<NonNull<ffi::ibv_qp>> {
    let (library, domain) = (domain.library(), domain.raw().as_ptr());
    let attributes = std::ptr::from_mut(attributes);
    let queue_pair = match id {
        Some(id) => {
            // SAFETY: connection, domain and queues live, are of one device, and will outlive the
            // queue pair, which holds them. The attributes outlive the call.
            check(unsafe { (library.rdma_create_qp)(id.as_ptr(), domain, attributes) })?;
            // SAFETY: the connection lives, and the call before set this field.
            unsafe { (*id.as_ptr()).qp }
        }
        // SAFETY: as for a connection's.
        None => unsafe { (library.ibv_create_qp)(domain, attributes) },
    };
    NonNull::new(queue_pair).ok_or_else(io::Error::last_os_error)
}

pub(super) fn no_attributes() -> ffi::ibv_qp_attr {
    // SAFETY: only numbers, for which zeros are valid; a mask selects those that count.
    unsafe { MaybeUninit::zeroed().assume_init() }
}
