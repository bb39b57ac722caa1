//! The ring: which operations the kernel has in hand, and the memory it may touch because of them.
//!
//! All unsafe code of this van is here and in `lane`. The kernel reads and writes memory by address while an operation is under
//! way, so everything such an operation names, a lane's socket, [`Sender`] and [`Receiver`], is kept where nobody else can move,
//! change or drop it: they go in with [`Ring::add`], are changed only by the methods here, and come out with [`Ring::remove`]
//! once the kernel has answered for the last operation. What is sent and received on one connection, and how, is in `lane`, which
//! lane's turn it is in `stage`, how a ring is set up in `probe`, the numbers that operations go by in `operation`. What a
//! connection means (who is greeted, refused, lost) is not decided here.
//!
//! Path: worker > slicer > filter > message > codec > endpoint > transport (**ring**).

mod lane;
mod stage;

use std::collections::VecDeque;
use std::io;
use std::net::{Shutdown, TcpListener, TcpStream};
use std::os::fd::{AsRawFd, FromRawFd, OwnedFd};
use std::time::{Duration, Instant};

use io_uring::{IoUring, cqueue, opcode, squeue, types};

use self::lane::Lane;
use super::operation::{Operation, Slot, Tag, cancel, parts, result, tolerate, user_data};
use super::probe::{self, Mode};
use crate::config::VanConfig;
use crate::error::{Error, Result};
use crate::memory::{Buffer, Pool};
use crate::metrics::Counters;
use crate::offers::Offers;
use crate::socket::{Receiver, Sender};
use crate::transport::{Event, Gather};
use crate::wait::Wait;
use crate::wire::Offer;

/// Lanes on which something has just come are tried by plain calls at every look, which answers sooner than to be told by the
/// kernel; but only so many of them, so that a look stays short.
const EAGER_LANES_MAX: usize = 4;

/// How long a ring that is dropped waits for the kernel to let go of memory before it leaves that memory to it for good.
const LET_GO: Duration = Duration::from_secs(2);

/// Something the kernel has finished.
#[derive(Debug)]
pub(super) enum Done {
    /// Somebody connected, or accepting failed.
    Accepted(io::Result<TcpStream>),
    /// A send ended; the lane's [`Sender`] knows already.
    Sent(Slot, io::Result<()>),
    /// This many bytes came, to be passed to [`Ring::received`]; 0 is the end of the stream.
    Received(Slot, io::Result<usize>),
}

/// One thread's ring with all its connections.
pub(super) struct Ring {
    io: IoUring,
    mode: Mode,
    /// None where nobody can connect.
    listener: Option<TcpListener>,
    accept: Operation,
    /// Whether one submission accepts many connections; older kernels need one for each.
    accept_many: bool,
    lanes: Vec<Option<Box<Lane>>>,
    free: Vec<Slot>,
    /// Lanes that may have something to send, or an operation to cancel.
    sends: Vec<Slot>,
    /// Lanes that should receive, or have an operation to cancel.
    receives: Vec<Slot>,
    /// Lanes that were tried without finding anything.
    tries: Vec<Slot>,
    /// Lanes that are tried, rather than left to the kernel.
    eager: usize,
    /// How many lanes may be.
    eager_max: usize,
    /// Operations the kernel has, cancellations aside.
    under_way: usize,
    /// Units that a lane holds once its peer has proved itself.
    queue_depth: usize,
    /// What plain calls have done, for [`Ring::next`].
    done: VecDeque<Done>,
    counters: Counters,
}

impl Ring {
    /// A ring in the first of `modes` that works here, accepting what connects to `listener`, if there is one, for a thread with these
    /// settings.
    ///
    /// # Errors
    /// [`Error::Unavailable`].
    pub(super) fn new(
        listener: Option<TcpListener>,
        config: &VanConfig,
        modes: &[Mode],
    ) -> Result<Self> {
        let (io, mode) =
            probe::open(modes).map_err(|reason| Error::Unavailable { van: super::NAME, reason })?;
        Ok(Ring {
            io,
            mode,
            listener,
            accept: Operation::default(),
            accept_many: true,
            lanes: Vec::new(),
            free: Vec::new(),
            sends: Vec::new(),
            receives: Vec::new(),
            tries: Vec::new(),
            eager: 0,
            eager_max: if config.wait == Wait::Block { 0 } else { EAGER_LANES_MAX },
            under_way: 0,
            queue_depth: config.queue_depth,
            done: VecDeque::new(),
            counters: Counters::default(),
        })
    }

    /// How it was set up.
    pub(super) fn mode(&self) -> Mode {
        self.mode
    }

    /// What has been done so far.
    pub(super) fn counters(&self) -> Counters {
        self.counters
    }

    /// Takes a connection in and begins to receive on it. The socket must be in blocking mode: what would block is then
    /// continued by the kernel when it can be.
    pub(super) fn add(&mut self, socket: TcpStream, sender: Sender, receiver: Receiver) -> Slot {
        let lane = Box::new(Lane::new(socket, sender, receiver));
        let slot = self.free.pop().unwrap_or_else(|| {
            self.lanes.push(None);
            self.lanes.len() - 1
        });
        self.lanes[slot] = Some(lane);
        self.list_send(slot);
        self.list_receive(slot);
        slot
    }

    /// Queues a frame; see [`Sender::frame`].
    pub(super) fn frame(&mut self, slot: Slot, frame: Buffer) -> Result<()> {
        self.lane(slot).sender.frame(frame)?;
        self.list_send(slot);
        Ok(())
    }

    /// Queues a write; see [`Sender::write`].
    pub(super) fn write(&mut self, slot: Slot, data: Gather, into: &Offer, at: u64) -> Result<()> {
        self.lane(slot).sender.write(data, into, at)?;
        self.list_send(slot);
        Ok(())
    }

    fn lane(&mut self, slot: Slot) -> &mut Lane {
        self.lanes[slot].as_mut().expect("a peer's slot holds its lane")
    }

    /// Whether everything posted to a lane has left.
    pub(super) fn is_flushed(&self, slot: Slot) -> bool {
        self.lanes[slot].as_ref().is_none_or(|lane| lane.is_flushed())
    }

    /// Tells the peer that nothing more will be sent.
    pub(super) fn finish(&mut self, slot: Slot) {
        if let Some(lane) = &self.lanes[slot] {
            // A socket that is broken already says so here; its receive tells the rest.
            let _ = lane.socket.shutdown(Shutdown::Write);
        }
    }

    /// Hands `bytes` received bytes to the lane's [`Receiver`]; see [`Receiver::received`]. What its handshake has this side say is
    /// queued.
    pub(super) fn received(
        &mut self,
        slot: Slot,
        bytes: usize,
        pool: &Pool,
        offers: &mut Offers,
        events: &mut Vec<Event>,
    ) -> Result<(), String> {
        let depth = self.queue_depth;
        let lane = self.lanes[slot].as_mut().expect("a peer's slot holds its lane");
        assert!(!lane.receive.under_way, "the kernel still writes where this would cut");
        let (frames, copied) =
            (lane.receiver.frames_received(), lane.receiver.payload_bytes_copied());
        let result = lane.receiver.received(bytes, pool, offers, events);
        self.counters.frames_received += lane.receiver.frames_received() - frames;
        self.counters.payload_bytes_copied += lane.receiver.payload_bytes_copied() - copied;
        if let Some(reply) = lane.receiver.take_reply() {
            lane.sender.reply(reply, depth);
            self.list_send(slot);
        }
        result
    }

    /// Closes a connection. The lane stays until the kernel has given its operations back: then [`Ring::is_closed`].
    pub(super) fn close(&mut self, slot: Slot) {
        if let Some(lane) = &mut self.lanes[slot] {
            lane.closing = true;
            // Ends what waits for the peer; fails only where the connection is gone, which ends it as well.
            let _ = lane.socket.shutdown(Shutdown::Both);
            self.list_send(slot);
            self.list_receive(slot);
        }
    }

    /// Whether a lane was closed and the kernel has let go of it.
    pub(super) fn is_closed(&self, slot: Slot) -> bool {
        let lane = self.lanes[slot].as_deref();
        lane.is_some_and(|lane| lane.closing && !lane.send.under_way && !lane.receive.under_way)
    }

    /// Takes a lane out that [`Ring::is_closed`], and drops what was posted on it and what was coming in.
    pub(super) fn remove(&mut self, slot: Slot) {
        assert!(self.is_closed(slot), "the kernel still works on this lane");
        let lane = self.lanes[slot].take().expect("a closed lane is there");
        self.eager -= usize::from(lane.misses.is_some());
        self.free.push(slot);
    }

    /// Starts to accept, unless that goes on already.
    #[inline]
    pub(super) fn accept(&mut self) {
        if !self.accept.under_way && self.listener.is_some() {
            self.begin_to_accept();
        }
    }

    #[cold]
    fn begin_to_accept(&mut self) {
        let Some(listener) = &self.listener else { return };
        let socket = types::Fd(listener.as_raw_fd());
        let entry = if self.accept_many {
            opcode::AcceptMulti::new(socket).flags(libc::SOCK_CLOEXEC).build()
        } else {
            let (address, len) = (std::ptr::null_mut(), std::ptr::null_mut());
            opcode::Accept::new(socket, address, len).flags(libc::SOCK_CLOEXEC).build()
        };
        self.accept.under_way = self.push(entry.user_data(user_data(0, Tag::Accept)));
        self.under_way += usize::from(self.accept.under_way);
    }

    /// As if the kernel had declined to accept many at once.
    #[cfg(test)]
    pub(super) fn accept_one_at_a_time(&mut self) {
        assert!(!self.accept.under_way, "too late");
        self.accept_many = false;
    }

    /// Whether anything was posted that has not been handed to the kernel.
    #[inline]
    pub(super) fn has_posted(&self) -> bool {
        !self.sends.is_empty()
    }

    /// Whether a lane waits to be looked after by [`Ring::submit`], other than to be tried again.
    pub(super) fn has_work(&self) -> bool {
        !self.sends.is_empty() || !self.receives.is_empty()
    }

    /// Serves the lanes that are tried by a call each, and hands the kernel everything else there is to do in one; in none if
    /// there is nothing and no completion is held back.
    ///
    /// # Errors
    /// [`Error::Os`] when the ring itself fails.
    pub(super) fn submit(&mut self, offers: &mut Offers) -> Result<()> {
        self.stage(Some(offers));
        self.enter()
    }

    /// Hands the kernel what is queued, if anything is or a completion is held back.
    fn enter(&mut self) -> Result<()> {
        let queue = self.io.submission();
        if queue.is_empty() && !queue.taskrun() && !queue.cq_overflow() {
            return Ok(());
        }
        drop(queue);
        self.counters.system_calls += 1;
        tolerate(self.io.submitter().submit())
    }

    /// Sleeps until something completes, or `timeout` has passed.
    ///
    /// # Errors
    /// As [`Ring::submit`].
    pub(super) fn sleep(&mut self, timeout: Duration) -> Result<()> {
        self.stage(None);
        let timeout = types::Timespec::from(timeout);
        let arguments = types::SubmitArgs::new().timespec(&timeout);
        self.counters.system_calls += 1;
        self.counters.sleeps += 1;
        tolerate(self.io.submitter().submit_with_args(1, &arguments))
    }

    /// The next thing that has finished, if any. Makes no system call.
    #[inline]
    pub(super) fn next(&mut self) -> Option<Done> {
        if self.done.is_empty() && self.io.completion().is_empty() {
            return None;
        }
        self.next_done()
    }

    fn next_done(&mut self) -> Option<Done> {
        if let Some(done) = self.done.pop_front() {
            if let Done::Received(slot, _) = done {
                self.list_receive(slot);
            }
            return Some(done);
        }
        loop {
            let entry = self.io.completion().next()?;
            let (slot, tag) = parts(entry.user_data());
            match tag {
                Tag::Cancel => {}
                Tag::Accept => {
                    if let Some(done) = self.accepted(&entry) {
                        return Some(done);
                    }
                }
                Tag::Send => return Some(self.sent(slot, entry.result())),
                Tag::Receive => return Some(self.came(slot, entry.result())),
            }
        }
    }

    /// Takes note of one receive by the kernel: from now on the lane is tried, if it may be.
    fn came(&mut self, slot: Slot, code: i32) -> Done {
        let lane = self.lanes[slot].as_mut().expect("a lane with an operation stays");
        lane.receive.ended();
        self.under_way -= 1;
        if lane.misses.is_none() && self.eager < self.eager_max && lane.receiver.is_greeted() {
            self.eager += 1;
            lane.misses = Some(0);
        }
        let result = result(code);
        self.counters.bytes_received += *result.as_ref().unwrap_or(&0) as u64;
        self.list_receive(slot);
        Done::Received(slot, result)
    }

    /// Takes note of one accept; none if the kernel only declined to accept many at once.
    fn accepted(&mut self, entry: &cqueue::Entry) -> Option<Done> {
        if !cqueue::more(entry.flags()) {
            self.accept = Operation::default();
            self.under_way -= 1;
        }
        match result(entry.result()) {
            Ok(fd) => {
                // SAFETY: an accept that succeeds returns a new file descriptor, each once, and nobody else knows it.
                let socket = unsafe { OwnedFd::from_raw_fd(fd as i32) };
                Some(Done::Accepted(Ok(TcpStream::from(socket))))
            }
            Err(error) if self.accept_many && error.raw_os_error() == Some(libc::EINVAL) => {
                self.accept_many = false;
                self.accept();
                None
            }
            Err(error) => Some(Done::Accepted(Err(error))),
        }
    }

    fn sent(&mut self, slot: Slot, code: i32) -> Done {
        let lane = self.lanes[slot].as_mut().expect("a lane with an operation stays");
        lane.send.ended();
        self.under_way -= 1;
        let result = result(code).map(|bytes| lane.left(bytes, &mut self.counters));
        if !lane.is_flushed() {
            self.list_send(slot);
        }
        Done::Sent(slot, result)
    }

    /// Queues a submission, making room by a system call where needed; false when there is none even so.
    fn push(&mut self, entry: squeue::Entry) -> bool {
        if self.io.submission().is_full() {
            self.counters.system_calls += 1;
            if self.io.submitter().submit().is_err() {
                return false;
            }
        }
        // SAFETY: the memory that `entry` names, slices and headers included, belongs to a boxed lane: its `Sender`'s queued
        // units, its `Receiver`'s spaces, its own arrays. The caller marks the operation as under way, and until its
        // completion is reaped the lane stays (`remove` asserts it, `drop` leaks it), `received` asserts that no receive is
        // under way before it touches the spaces, `sent` runs only on the completion of the send;
        // otherwise the `Sender` is only added to: its queue has room for its depth before the
        // first unit, so that units stay where they are, a message of the handshake lies by itself, and so does what is sealed,
        // which is replaced once it has left. An accept and a cancellation name no memory. The file descriptors are open as long as
        // their lane or this ring.
        unsafe { self.io.submission().push(&entry) }.is_ok()
    }
}

impl Drop for Ring {
    fn drop(&mut self) {
        for slot in 0..self.lanes.len() {
            self.close(slot);
        }
        if self.accept.under_way {
            self.push(cancel(0, Tag::Accept).user_data(user_data(0, Tag::Cancel)));
        }
        let began = Instant::now();
        while self.under_way > 0 && began.elapsed() < LET_GO {
            self.stage(None);
            if self.enter().is_err() || self.sleep(Duration::from_millis(10)).is_err() {
                break;
            }
            while self.next().is_some() {}
        }
        for lane in self.lanes.drain(..).flatten() {
            if lane.send.under_way || lane.receive.under_way {
                // The kernel may still use its memory, and nobody will learn when it has stopped: never free it.
                tracing::warn!(
                    "the kernel kept an operation of a closed connection; its memory stays with it"
                );
                std::mem::forget(lane);
            }
        }
    }
}
