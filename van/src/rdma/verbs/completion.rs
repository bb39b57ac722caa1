//! The completion queue of many queue pairs, and the ids that work requests have in it.

use std::cell::Cell;
use std::ffi::c_int;
use std::fmt;
use std::io;
use std::mem::MaybeUninit;
use std::os::fd::RawFd;
use std::ptr::NonNull;
use std::rc::Rc;
use std::sync::atomic::{AtomicU32, Ordering};

use super::bindings as ffi;
use super::bindings::{ibv_wc_opcode as opcode, ibv_wc_status as status};
use super::device::Device;
use super::library::{Library, check, library, poll_cq, refused, req_notify_cq, set_non_blocking};

/// Most completions taken by one poll.
pub const POLL_MAX: usize = 16;

/// Id of a work request while the device has it: whether it is a receive (bit 63), its queue's
/// serial number (31 bits) and its place there (32 bits). Serial numbers are unique within the
/// process, so that a completion for a former queue is never taken for another's.
#[derive(Clone, Copy)]
pub(super) struct WorkId(pub(super) u64);

impl WorkId {
    const RECEIVE: u64 = 1 << 63;

    pub(super) fn sent(serial: u32, sequence: u64) -> WorkId {
        WorkId(u64::from(serial) << 32 | sequence & u64::from(u32::MAX))
    }

    pub(super) fn received(serial: u32, slot: u32) -> WorkId {
        WorkId(Self::RECEIVE | u64::from(serial) << 32 | u64::from(slot))
    }

    fn serial(self) -> u32 {
        (self.0 >> 32) as u32 & SERIAL_MAX
    }

    fn place(self) -> u32 {
        self.0 as u32
    }
}

const SERIAL_MAX: u32 = (1 << 31) - 1;

/// A new serial number for a queue: starts at 1 and is never reused.
pub(super) fn next_serial() -> io::Result<u32> {
    static LAST: AtomicU32 = AtomicU32::new(0);
    let next = |last: u32| (last < SERIAL_MAX).then_some(last + 1);
    let last = LAST.fetch_update(Ordering::Relaxed, Ordering::Relaxed, next);
    last.map(|last| last + 1).map_err(|_| refused("this process has made 2^31 queues"))
}

/// Collects completions of any number of queue pairs, with a descriptor to wait on.
pub struct CompletionQueue {
    library: &'static Library,
    queue: NonNull<ffi::ibv_cq>,
    notices: Rc<Notices>,
    device: Device,
    /// The flag of a completion that reports an invalidated key.
    taken_back: u32,
    entries: Cell<usize>,
}

/// Where the notifications of queues come.
struct Notices {
    library: &'static Library,
    channel: NonNull<ffi::ibv_comp_channel>,
}

/// The end of one work request.
#[derive(Debug)]
pub struct Completion {
    /// The number of its queue pair.
    pub queue: u32,
    /// What ended.
    pub outcome: Outcome,
    /// Whether it succeeded.
    pub status: Status,
}

/// What ended.
#[derive(Debug)]
pub enum Outcome {
    /// A queue pair's work, with everything pushed before it: for
    /// [`QueuePair::retire`](super::QueuePair::retire).
    Sent(Through),
    /// A receive.
    Received {
        /// The slot: for [`ReceiveQueue::take`](super::ReceiveQueue::take).
        slot: Slot,
        /// Bytes received, or written by the peer if `written`.
        bytes: u32,
        /// The peer's immediate value.
        imm: Option<u32>,
        /// The peer wrote elsewhere; the buffer is unchanged.
        written: bool,
        /// A key that the message invalidated: for
        /// [`QueuePair::taken_back`](super::QueuePair::taken_back).
        taken_back: Option<TakenBack>,
    },
}

/// A remote key that a peer's message invalidated. Only completions create one.
#[derive(Debug)]
pub struct TakenBack {
    pub(super) key: u32,
    pub(super) queue: u32,
}

/// How far a queue pair's work is done. Only completions create one, so that memory is released
/// only once the device is done with it.
#[derive(Debug)]
pub struct Through {
    pub(super) queue_pair: u32,
    pub(super) sequence: u32,
    pub(super) is_ok: bool,
}

/// The slot of a receive that has ended. Only completions create one.
#[derive(Debug)]
pub struct Slot {
    pub(super) queue: u32,
    pub(super) index: u32,
}

/// Whether work succeeded, as the device reports it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Status(u32);

/// Completions of one poll, iterated in place.
pub struct Batch {
    raw: [MaybeUninit<ffi::ibv_wc>; POLL_MAX],
    /// Entries that the device has filled.
    count: usize,
    /// Next entry to return.
    at: usize,
    /// The flag of the queue they came from.
    taken_back: u32,
}

impl Batch {
    /// An empty batch.
    pub const fn new() -> Self {
        Batch { raw: [const { MaybeUninit::uninit() }; POLL_MAX], count: 0, at: 0, taken_back: 0 }
    }
}

impl Default for Batch {
    fn default() -> Self {
        Batch::new()
    }
}

/// An error means that the device names work that does not exist: the queue is broken.
impl Iterator for Batch {
    type Item = io::Result<Completion>;

    #[inline]
    fn next(&mut self) -> Option<io::Result<Completion>> {
        if self.at == self.count {
            return None;
        }
        let entry = self.raw[self.at].as_ptr();
        self.at += 1;
        // SAFETY: the device filled the first `count` entries (`poll`); fields it leaves out are
        // numbers, and none of them is read.
        Some(completion(unsafe { &*entry }, self.taken_back))
    }
}

impl fmt::Debug for Batch {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Batch({} of {})", self.count - self.at, self.count)
    }
}

impl CompletionQueue {
    /// Creates a queue of at least `entries`. It must hold all work that can be outstanding: a
    /// queue that overflows is broken.
    ///
    /// # Errors
    /// The system's, for example if the device's queues are shorter.
    pub fn new(device: Device, entries: usize) -> io::Result<Rc<CompletionQueue>> {
        let library = library()?;
        // SAFETY: the device's context is open.
        let channel = unsafe { (library.ibv_create_comp_channel)(device.context().as_ptr()) };
        let channel = NonNull::new(channel).ok_or_else(io::Error::last_os_error)?;
        let notices = Rc::new(Notices { library, channel });
        let queue = CompletionQueue::with(notices, device, entries)?;
        set_non_blocking(queue.fd())?;
        Ok(queue)
    }

    /// Another one of the same device, with the same descriptor to wait on.
    ///
    /// # Errors
    /// As [`CompletionQueue::new`].
    pub fn beside(&self, entries: usize) -> io::Result<Rc<CompletionQueue>> {
        CompletionQueue::with(self.notices.clone(), self.device, entries)
    }

    fn with(
        notices: Rc<Notices>,
        device: Device,
        entries: usize,
    ) -> io::Result<Rc<CompletionQueue>> {
        let library = notices.library;
        let context = device.context().as_ptr();
        let asked = entry_count(entries)?;
        let taken_back = match device.capabilities()?.is_soft_roce {
            // Soft-RoCE passes on the kernel's value, which user space defines as a verified
            // checksum; reliable connections report none of those.
            true => ffi::ibv_wc_flags::IBV_WC_IP_CSUM_OK,
            false => ffi::ibv_wc_flags::IBV_WC_WITH_INV,
        };
        let channel = notices.channel.as_ptr();
        // SAFETY: context and channel are live; nobody follows the null pointer, which is the
        // user's context.
        let queue =
            unsafe { (library.ibv_create_cq)(context, asked, std::ptr::null_mut(), channel, 0) };
        let queue = NonNull::new(queue).ok_or_else(io::Error::last_os_error)?;
        let entries = Cell::new(0);
        let made = CompletionQueue { library, queue, notices, device, taken_back, entries };
        made.note_entries();
        Ok(Rc::new(made))
    }

    /// Changes its length, to no less than it holds.
    ///
    /// # Errors
    /// The system's; nothing has changed then.
    pub fn resize(&self, entries: usize) -> io::Result<()> {
        let entries = entry_count(entries)?;
        // SAFETY: the queue lives.
        check(unsafe { (self.library.ibv_resize_cq)(self.queue.as_ptr(), entries) })?;
        self.note_entries();
        Ok(())
    }

    fn note_entries(&self) {
        // SAFETY: the queue lives, and the field is only written by calls.
        let entries = unsafe { (*self.queue.as_ptr()).cqe };
        self.entries.set(usize::try_from(entries).unwrap_or(0));
    }

    /// Its length, at least as many entries as requested.
    pub fn entries(&self) -> usize {
        self.entries.get()
    }

    pub(super) fn raw(&self) -> NonNull<ffi::ibv_cq> {
        self.queue
    }

    pub(super) fn device(&self) -> Device {
        self.device
    }

    /// Takes up to 16 completions into `batch`, unless it still holds some; returns how many it
    /// holds.
    ///
    /// # Errors
    /// The system's.
    #[inline]
    pub fn poll(&self, batch: &mut Batch) -> io::Result<usize> {
        if batch.at == batch.count {
            (batch.at, batch.count, batch.taken_back) = (0, 0, self.taken_back);
            let first = batch.raw.as_mut_ptr().cast::<ffi::ibv_wc>();
            // SAFETY: the queue lives, and there is room for as many entries as are asked for.
            let count = unsafe { poll_cq(self.queue, POLL_MAX as c_int, first) };
            batch.count = usize::try_from(count).map_err(|_| unreadable())?.min(POLL_MAX);
        }
        Ok(batch.count - batch.at)
    }

    /// Requests one notification, for the next completion. Earlier completions cause none: poll
    /// again before sleeping.
    ///
    /// # Errors
    /// The system's.
    pub fn arm(&self) -> io::Result<()> {
        // SAFETY: the queue lives.
        check(unsafe { req_notify_cq(self.queue, 0) })
    }

    /// Readable once the requested notification is there.
    pub fn fd(&self) -> RawFd {
        // SAFETY: the channel lives, and this field is only written when it is made.
        unsafe { (*self.notices.channel.as_ptr()).fd }
    }

    /// Takes all pending notifications, also those of queues beside this one. Afterwards,
    /// [`CompletionQueue::arm`] requests the next.
    ///
    /// # Errors
    /// The system's.
    pub fn take_notices(&self) -> io::Result<()> {
        loop {
            let mut queue = std::ptr::null_mut();
            let mut context = std::ptr::null_mut();
            let Notices { library, channel } = &*self.notices;
            let (of, context) = (&raw mut queue, &raw mut context);
            // SAFETY: the channel lives, and there is room for two pointers.
            let code = unsafe { (library.ibv_get_cq_event)(channel.as_ptr(), of, context) };
            match check(code) {
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => return Ok(()),
                result => result?,
            }
            // SAFETY: one notification of this queue was taken, and is acknowledged once. The queue
            // lives: the notifications of one that is gone went with it.
            unsafe { (library.ibv_ack_cq_events)(queue, 1) };
        }
    }
}

impl Drop for CompletionQueue {
    fn drop(&mut self) {
        // SAFETY: this runs once. Queue pairs hold their queue, so none uses it; no notification is
        // unacknowledged.
        let code = unsafe { (self.library.ibv_destroy_cq)(self.queue.as_ptr()) };
        debug_assert_eq!(code, 0, "ibv_destroy_cq");
    }
}

impl Drop for Notices {
    fn drop(&mut self) {
        // SAFETY: this runs once, and the queues on the channel, which hold it, are gone.
        let code = unsafe { (self.library.ibv_destroy_comp_channel)(self.channel.as_ptr()) };
        debug_assert_eq!(code, 0, "ibv_destroy_comp_channel");
    }
}

impl fmt::Debug for CompletionQueue {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "CompletionQueue({} entries)", self.entries())
    }
}

pub(super) fn entry_count(entries: usize) -> io::Result<c_int> {
    c_int::try_from(entries).map_err(|_| refused("a queue has less than 2^31 entries"))
}

#[cold]
fn unreadable() -> io::Error {
    io::Error::other("the device cannot read its completion queue")
}

#[cold]
fn mistaken() -> io::Error {
    io::Error::new(io::ErrorKind::InvalidData, "the device confuses receives with other work")
}

/// Converts an entry. It reads only fields that the device fills for every entry, and others if the
/// status says that they are valid.
#[inline]
fn completion(entry: &ffi::ibv_wc, taken_back_flag: u32) -> io::Result<Completion> {
    let id = WorkId(entry.wr_id);
    let status = Status(entry.status);
    let is_receive = id.0 & WorkId::RECEIVE != 0;
    if status.is_ok() && is_receive != (entry.opcode & opcode::IBV_WC_RECV != 0) {
        return Err(mistaken());
    }
    let serial = id.serial();
    let place = id.place();
    let outcome = if is_receive {
        let mut bytes = 0;
        let mut imm = None;
        let mut written = false;
        let mut taken_back = None;
        if status.is_ok() {
            bytes = entry.byte_len;
            written = entry.opcode == opcode::IBV_WC_RECV_RDMA_WITH_IMM;
            if entry.wc_flags & ffi::ibv_wc_flags::IBV_WC_WITH_IMM != 0 {
                // SAFETY: both variants are plain numbers; the flag says that it is this one.
                imm = Some(u32::from_be(unsafe { entry.anonymous_1.imm_data }));
            } else if entry.wc_flags & taken_back_flag != 0 {
                // SAFETY: as above.
                let key = unsafe { entry.anonymous_1.invalidated_rkey };
                taken_back = Some(TakenBack { key, queue: entry.qp_num });
            }
        }
        let slot = Slot { queue: serial, index: place };
        Outcome::Received { slot, bytes, imm, written, taken_back }
    } else {
        Outcome::Sent(Through { queue_pair: serial, sequence: place, is_ok: status.is_ok() })
    };
    Ok(Completion { queue: entry.qp_num, outcome, status })
}

impl Status {
    /// Whether the work succeeded.
    pub fn is_ok(self) -> bool {
        self.0 == status::IBV_WC_SUCCESS
    }

    /// Whether the work was cancelled because its queue pair had failed before.
    pub fn is_flushed(self) -> bool {
        self.0 == status::IBV_WC_WR_FLUSH_ERR
    }

    /// Its number in the verbs API.
    pub fn code(self) -> u32 {
        self.0
    }
}

impl fmt::Display for Status {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self.0 {
            status::IBV_WC_SUCCESS => "done",
            status::IBV_WC_LOC_LEN_ERR => "longer than the receive buffer",
            status::IBV_WC_LOC_QP_OP_ERR => "work that this queue pair cannot do",
            status::IBV_WC_LOC_PROT_ERR => "memory that is not registered for this",
            status::IBV_WC_WR_FLUSH_ERR => "cancelled, because the connection had failed before",
            status::IBV_WC_MW_BIND_ERR => "the memory window could not be opened",
            status::IBV_WC_BAD_RESP_ERR => "the peer's answer was invalid",
            status::IBV_WC_LOC_ACCESS_ERR => "the peer's write does not fit this side's memory",
            status::IBV_WC_REM_INV_REQ_ERR => "the peer found the request invalid",
            status::IBV_WC_REM_ACCESS_ERR => "the peer does not allow access to that memory",
            status::IBV_WC_REM_OP_ERR => "the peer could not finish the request",
            status::IBV_WC_RETRY_EXC_ERR => "the peer does not acknowledge",
            status::IBV_WC_RNR_RETRY_EXC_ERR => "the peer had no receive posted",
            status::IBV_WC_REM_ABORT_ERR => "the peer aborted the request",
            status::IBV_WC_FATAL_ERR => "the device failed",
            status::IBV_WC_RESP_TIMEOUT_ERR => "the peer did not answer in time",
            status::IBV_WC_GENERAL_ERR => "the device failed for an unknown reason",
            other => return write!(f, "failed with status {other}"),
        })
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, reason = "tests")]
    use super::*;

    const TAKEN: u32 = ffi::ibv_wc_flags::IBV_WC_WITH_INV;

    fn entry(wr_id: u64, status: u32, opcode: u32, wc_flags: u32) -> ffi::ibv_wc {
        ffi::ibv_wc {
            wr_id,
            status,
            opcode,
            vendor_err: 0,
            byte_len: 77,
            anonymous_1: ffi::ibv_wc__bindgen_ty_1 { imm_data: 5u32.to_be() },
            qp_num: 17,
            src_qp: 0,
            wc_flags,
            pkey_index: 0,
            slid: 0,
            sl: 0,
            dlid_path_bits: 0,
        }
    }

    #[test]
    fn completions_say_what_ended() {
        let sent = WorkId::sent(3, (9 << 32) | 0xffff_fff0);
        let done = completion(&entry(sent.0, 0, opcode::IBV_WC_SEND, 0), TAKEN).unwrap();
        assert!(matches!(
            done,
            Completion {
                queue: 17,
                status: Status(0),
                outcome: Outcome::Sent(Through {
                    queue_pair: 3,
                    sequence: 0xffff_fff0,
                    is_ok: true
                })
            }
        ));
        let with_imm = ffi::ibv_wc_flags::IBV_WC_WITH_IMM;
        let received = WorkId::received(SERIAL_MAX, 12);
        let done = completion(&entry(received.0, 0, 129, with_imm), TAKEN).unwrap();
        assert!(matches!(
            done.outcome,
            Outcome::Received {
                slot: Slot { queue: SERIAL_MAX, index: 12 },
                bytes: 77,
                imm: Some(5),
                written: true,
                taken_back: None,
            }
        ));
    }

    /// Soft-RoCE reports it by another flag, which has no such meaning on other devices.
    #[test]
    fn a_key_is_taken_back_where_the_device_says_so() {
        let soft = ffi::ibv_wc_flags::IBV_WC_IP_CSUM_OK;
        for (flags, flag, is_taken) in
            [(TAKEN, TAKEN, true), (soft, soft, true), (soft, TAKEN, false), (0, TAKEN, false)]
        {
            let mut entry = entry(WorkId::received(1, 2).0, 0, 128, flags);
            entry.anonymous_1.invalidated_rkey = 0x70b;
            let Outcome::Received { imm: None, written: false, taken_back, .. } =
                completion(&entry, flag).unwrap().outcome
            else {
                panic!("{flags} {flag}")
            };
            let taken = taken_back.map(|taken| (taken.key, taken.queue));
            assert_eq!(taken, is_taken.then_some((0x70b, 17)));
        }
    }

    #[test]
    fn what_failed_is_told_by_its_number_alone() {
        let received = WorkId::received(1, 2);
        let done = completion(&entry(received.0, 5, 0, u32::MAX), TAKEN).unwrap();
        assert!(done.status.is_flushed() && !done.status.is_ok());
        assert!(matches!(
            done.outcome,
            Outcome::Received { bytes: 0, imm: None, written: false, taken_back: None, .. }
        ));
        let done = completion(&entry(WorkId::sent(1, 2).0, 10, 128, 0), TAKEN).unwrap();
        assert!(matches!(done.outcome, Outcome::Sent(Through { is_ok: false, .. })));
        assert_eq!(done.status.to_string(), "the peer does not allow access to that memory");
        assert_eq!(Status(99).to_string(), "failed with status 99");
    }

    #[test]
    fn a_device_that_mixes_up_work_is_an_error() {
        assert!(completion(&entry(WorkId::sent(1, 1).0, 0, 128, 0), TAKEN).is_err());
        assert!(completion(&entry(WorkId::received(1, 1).0, 0, 0, 0), TAKEN).is_err());
    }
}
