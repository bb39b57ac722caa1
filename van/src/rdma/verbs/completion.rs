//! The queue where work of many queue pairs is reported when it has ended, and the numbers that work goes by.

use std::cell::Cell;
use std::ffi::c_int;
use std::fmt;
use std::io;
use std::mem::MaybeUninit;
use std::os::fd::RawFd;
use std::ptr::NonNull;
use std::rc::Rc;
use std::sync::atomic::{AtomicU32, Ordering};

use rdma_sys as ffi;
use rdma_sys::{ibv_wc_opcode as opcode, ibv_wc_status as status};

use super::device::Device;
use super::library::{Library, check, library, refused, set_non_blocking};

/// Most completions that one look takes.
pub const POLL_MAX: usize = 16;

/// The number that work goes by while the device has it: what it is (bit 63, set for a receive), its queue's serial number
/// (31 bits), and its place there (32 bits). Serial numbers are unique within the process, so that what is said of a queue
/// long gone is never taken for news of another.
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

/// A number for a queue: from 1 on, never the same twice.
pub(super) fn next_serial() -> io::Result<u32> {
    static LAST: AtomicU32 = AtomicU32::new(0);
    let next = |last: u32| (last < SERIAL_MAX).then_some(last + 1);
    let last = LAST.fetch_update(Ordering::Relaxed, Ordering::Relaxed, next);
    last.map(|last| last + 1).map_err(|_| refused("this process has made 2^31 queues"))
}

/// Where work of any number of queue pairs is reported when it has ended, with a descriptor to wait on.
pub struct CompletionQueue {
    library: &'static Library,
    queue: NonNull<ffi::ibv_cq>,
    channel: NonNull<ffi::ibv_comp_channel>,
    device: Device,
    /// The flag of a completion that says that a key was taken back.
    taken_back: u32,
    entries: Cell<usize>,
}

/// One piece of work that has ended.
#[derive(Debug)]
pub struct Completion {
    /// The number of its queue pair.
    pub queue: u32,
    /// What it was.
    pub outcome: Outcome,
    /// Whether it did what it should.
    pub status: Status,
}

/// What has ended.
#[derive(Debug)]
pub enum Outcome {
    /// Work of a queue pair, with all that was pushed before it: for [`QueuePair::retire`](super::QueuePair::retire).
    Sent(Through),
    /// A receive.
    Received {
        /// Which: for [`ReceiveQueue::take`](super::ReceiveQueue::take).
        slot: Slot,
        /// Bytes received, or written by the peer where `written`.
        bytes: u32,
        /// What the peer sent along.
        imm: Option<u32>,
        /// The peer wrote elsewhere; the buffer is as it was.
        written: bool,
        /// A key that the peer has made useless by it: for [`QueuePair::taken_back`](super::QueuePair::taken_back).
        taken_back: Option<TakenBack>,
    },
}

/// A remote key that the peer's message made useless as it came. Only completions make one.
#[derive(Debug)]
pub struct TakenBack {
    pub(super) key: u32,
    pub(super) queue: u32,
}

/// How far a queue pair's work is done. Only completions make one, so that memory is let go when the device is done with it.
#[derive(Debug)]
pub struct Through {
    pub(super) queue_pair: u32,
    pub(super) sequence: u32,
    pub(super) is_ok: bool,
}

/// A receive that has ended. Only completions make one, likewise.
#[derive(Debug)]
pub struct Slot {
    pub(super) queue: u32,
    pub(super) index: u32,
}

/// Whether work did what it should, as the device tells it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Status(u32);

/// Completions that were taken together and go one by one; each is read where it lies.
pub struct Batch {
    raw: [MaybeUninit<ffi::ibv_wc>; POLL_MAX],
    /// Entries that the device has filled in,
    count: usize,
    /// and of those, the next to go.
    at: usize,
    /// As the queue has it that they are from.
    taken_back: u32,
}

impl Batch {
    /// One that holds none.
    pub const fn new() -> Self {
        Batch { raw: [const { MaybeUninit::uninit() }; POLL_MAX], count: 0, at: 0, taken_back: 0 }
    }
}

impl Default for Batch {
    fn default() -> Self {
        Batch::new()
    }
}

/// An error is that the device names work that does not exist: the queue is broken.
impl Iterator for Batch {
    type Item = io::Result<Completion>;

    #[inline]
    fn next(&mut self) -> Option<io::Result<Completion>> {
        if self.at == self.count {
            return None;
        }
        let entry = self.raw[self.at].as_ptr();
        self.at += 1;
        // SAFETY: the device filled the first `count` entries (`poll`); what it leaves out are numbers, of which none is read.
        Some(completion(unsafe { &*entry }, self.taken_back))
    }
}

impl fmt::Debug for Batch {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Batch({} of {})", self.count - self.at, self.count)
    }
}

impl CompletionQueue {
    /// A queue of at least `entries`. It must have room for all that can be in hand at a time: a queue that overflows is broken.
    ///
    /// # Errors
    /// What the system said, for example that the device has no queue that long.
    pub fn new(device: Device, entries: usize) -> io::Result<Rc<CompletionQueue>> {
        let (library, context) = (library()?, device.context().as_ptr());
        let asked = entry_count(entries)?;
        let taken_back = match device.capabilities()?.is_soft_roce {
            // The kernel's own value, which is that of a checked checksum to programs; no reliable connection reports those.
            true => ffi::ibv_wc_flags::IBV_WC_IP_CSUM_OK.0,
            false => ffi::ibv_wc_flags::IBV_WC_WITH_INV.0,
        };
        // SAFETY: the device's context is open.
        let channel = unsafe { (library.ibv_create_comp_channel)(context) };
        let channel = NonNull::new(channel).ok_or_else(io::Error::last_os_error)?;
        // SAFETY: context and channel are live; nobody follows the null pointer, which is the owner's.
        let queue = unsafe {
            (library.ibv_create_cq)(context, asked, std::ptr::null_mut(), channel.as_ptr(), 0)
        };
        let Some(queue) = NonNull::new(queue) else {
            let error = io::Error::last_os_error();
            // SAFETY: the channel was just made, and no queue uses it.
            unsafe { (library.ibv_destroy_comp_channel)(channel.as_ptr()) };
            return Err(error);
        };
        let entries = Cell::new(0);
        let made = CompletionQueue { library, queue, channel, device, taken_back, entries };
        made.note_entries();
        set_non_blocking(made.fd())?;
        Ok(Rc::new(made))
    }

    /// Makes it longer or shorter, but not shorter than what is in it.
    ///
    /// # Errors
    /// What the system said; it is as it was then.
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

    /// How many entries it has, at least as many as asked for.
    pub fn entries(&self) -> usize {
        self.entries.get()
    }

    pub(super) fn raw(&self) -> NonNull<ffi::ibv_cq> {
        self.queue
    }

    pub(super) fn device(&self) -> Device {
        self.device
    }

    /// Takes up to 16 completions into `batch`, unless some are left there; returns how many there are.
    ///
    /// # Errors
    /// What the system said.
    #[inline]
    pub fn poll(&self, batch: &mut Batch) -> io::Result<usize> {
        if batch.at == batch.count {
            (batch.at, batch.count, batch.taken_back) = (0, 0, self.taken_back);
            let first = batch.raw.as_mut_ptr().cast::<ffi::ibv_wc>();
            // SAFETY: the queue lives, and there is room for as many entries as are asked for.
            let count = unsafe { ffi::ibv_poll_cq(self.queue.as_ptr(), POLL_MAX as c_int, first) };
            batch.count = usize::try_from(count).map_err(|_| unreadable())?.min(POLL_MAX);
        }
        Ok(batch.count - batch.at)
    }

    /// Asks for a notice, once, of the next completion. What came before that gives none: poll again before sleeping.
    ///
    /// # Errors
    /// What the system said.
    pub fn arm(&self) -> io::Result<()> {
        // SAFETY: the queue lives.
        check(unsafe { ffi::ibv_req_notify_cq(self.queue.as_ptr(), 0) })
    }

    /// Can be read when the notice that was asked for is there.
    pub fn fd(&self) -> RawFd {
        // SAFETY: the channel lives, and this field is only written when it is made.
        unsafe { (*self.channel.as_ptr()).fd }
    }

    /// Takes all notices there are. After that, [`CompletionQueue::arm`] asks for the next.
    ///
    /// # Errors
    /// What the system said.
    pub fn take_notices(&self) -> io::Result<()> {
        loop {
            let (mut queue, mut context) = (std::ptr::null_mut(), std::ptr::null_mut());
            let (queue, context) = (&raw mut queue, &raw mut context);
            // SAFETY: the channel lives, and there is room for two pointers.
            let code =
                unsafe { (self.library.ibv_get_cq_event)(self.channel.as_ptr(), queue, context) };
            match check(code) {
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => return Ok(()),
                result => result?,
            }
            // SAFETY: one notice of this queue was taken, the only one on its channel, and is acknowledged once.
            unsafe { (self.library.ibv_ack_cq_events)(self.queue.as_ptr(), 1) };
        }
    }
}

impl Drop for CompletionQueue {
    fn drop(&mut self) {
        // SAFETY: this runs once. Queue pairs hold their queue, so none uses it; no notice is unacknowledged.
        let code = unsafe { (self.library.ibv_destroy_cq)(self.queue.as_ptr()) };
        debug_assert_eq!(code, 0, "ibv_destroy_cq");
        // SAFETY: this runs once, and the only queue on the channel is gone.
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
    io::Error::new(io::ErrorKind::InvalidData, "the device mistakes receives for other work")
}

/// Reads only what the device fills in for every entry, and the rest where the status says that it is there.
#[inline]
fn completion(entry: &ffi::ibv_wc, taken_back_flag: u32) -> io::Result<Completion> {
    let (id, status) = (WorkId(entry.wr_id), Status(entry.status));
    let is_receive = id.0 & WorkId::RECEIVE != 0;
    if status.is_ok() && is_receive != (entry.opcode & opcode::IBV_WC_RECV != 0) {
        return Err(mistaken());
    }
    let (serial, place) = (id.serial(), id.place());
    let outcome = if is_receive {
        let (mut bytes, mut imm, mut written, mut taken_back) = (0, None, false, None);
        if status.is_ok() {
            bytes = entry.byte_len;
            written = entry.opcode == opcode::IBV_WC_RECV_RDMA_WITH_IMM;
            if entry.wc_flags & ffi::ibv_wc_flags::IBV_WC_WITH_IMM.0 != 0 {
                // SAFETY: both variants are plain numbers; the flag says that it is this one.
                imm = Some(u32::from_be(unsafe { entry.imm_data_invalidated_rkey_union.imm_data }));
            } else if entry.wc_flags & taken_back_flag != 0 {
                // SAFETY: as above.
                let key = unsafe { entry.imm_data_invalidated_rkey_union.invalidated_rkey };
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
    /// Whether all went well.
    pub fn is_ok(self) -> bool {
        self.0 == status::IBV_WC_SUCCESS
    }

    /// Whether it was given up because the queue pair had failed before.
    pub fn is_flushed(self) -> bool {
        self.0 == status::IBV_WC_WR_FLUSH_ERR
    }

    /// The number it has in the verbs.
    pub fn code(self) -> u32 {
        self.0
    }
}

impl fmt::Display for Status {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self.0 {
            status::IBV_WC_SUCCESS => "done",
            status::IBV_WC_LOC_LEN_ERR => "longer than the memory that was to receive it",
            status::IBV_WC_LOC_QP_OP_ERR => "work that this queue pair cannot do",
            status::IBV_WC_LOC_PROT_ERR => "memory that is not registered for this",
            status::IBV_WC_WR_FLUSH_ERR => "given up, as the connection had failed before",
            status::IBV_WC_MW_BIND_ERR => "the memory window could not be opened",
            status::IBV_WC_BAD_RESP_ERR => "the peer answered something that makes no sense",
            status::IBV_WC_LOC_ACCESS_ERR => "the peer's write does not fit this side's memory",
            status::IBV_WC_REM_INV_REQ_ERR => "the peer found the request invalid",
            status::IBV_WC_REM_ACCESS_ERR => "the peer does not allow access to that memory",
            status::IBV_WC_REM_OP_ERR => "the peer could not finish the request",
            status::IBV_WC_RETRY_EXC_ERR => "the peer does not acknowledge",
            status::IBV_WC_RNR_RETRY_EXC_ERR => "the peer had no receive posted",
            status::IBV_WC_REM_ABORT_ERR => "the peer aborted the request",
            status::IBV_WC_FATAL_ERR => "the device failed",
            status::IBV_WC_RESP_TIMEOUT_ERR => "the peer did not answer in time",
            status::IBV_WC_GENERAL_ERR => "the device failed without saying why",
            other => return write!(f, "failed with status {other}"),
        })
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, reason = "tests")]
    use super::*;

    const TAKEN: u32 = ffi::ibv_wc_flags::IBV_WC_WITH_INV.0;

    fn entry(wr_id: u64, status: u32, opcode: u32, wc_flags: u32) -> ffi::ibv_wc {
        ffi::ibv_wc {
            wr_id,
            status,
            opcode,
            vendor_err: 0,
            byte_len: 77,
            imm_data_invalidated_rkey_union: ffi::imm_data_invalidated_rkey_union_t {
                imm_data: 5u32.to_be(),
            },
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
        let with_imm = ffi::ibv_wc_flags::IBV_WC_WITH_IMM.0;
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

    /// Soft-RoCE says it by another flag, which says nothing elsewhere.
    #[test]
    fn a_key_is_taken_back_where_the_device_says_so() {
        let soft = ffi::ibv_wc_flags::IBV_WC_IP_CSUM_OK.0;
        for (flags, flag, is_taken) in
            [(TAKEN, TAKEN, true), (soft, soft, true), (soft, TAKEN, false), (0, TAKEN, false)]
        {
            let mut entry = entry(WorkId::received(1, 2).0, 0, 128, flags);
            entry.imm_data_invalidated_rkey_union.invalidated_rkey = 0x70b;
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
