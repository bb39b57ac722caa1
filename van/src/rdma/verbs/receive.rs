//! The shared receive queue: buffers for messages to many queue pairs.

use std::cell::{Ref, RefCell, UnsafeCell};
use std::fmt;
use std::io;
use std::ptr::NonNull;
use std::rc::Rc;

use super::bindings as ffi;
use super::completion::{Slot, WorkId, entry_count, next_serial};
use super::device::Device;
use super::domain::Domain;
use super::library::{Library, check, post_srq_recv, refused};
use crate::error::{Error, Result};
use crate::memory::Buffer;

/// Buffers in which messages to any of its queue pairs are received, owned while they wait.
pub struct ReceiveQueue(Rc<Receives>);

/// The part that the device uses. It lives as long as any queue pair that uses it.
pub(super) struct Receives {
    library: &'static Library,
    queue: NonNull<ffi::ibv_srq>,
    serial: u32,
    /// A request template for each slot, which names the slot's part of memory. They are cells
    /// because the library reads them by address.
    work: Vec<UnsafeCell<ffi::ibv_recv_wr>>,
    parts: Vec<UnsafeCell<ffi::ibv_sge>>,
    state: RefCell<ReceiveState>,
    domain: Rc<Domain>, // outlives `queue`: fields drop after `Drop::drop`
}

struct ReceiveState {
    /// Each slot's buffer, while the device has it or is about to.
    buffers: Vec<Option<Buffer>>,
    free: Vec<u32>,
    /// First and last of the linked slots that are not posted yet.
    chain: Option<(u32, u32)>,
}

impl ReceiveQueue {
    /// Creates a queue with room for `entries` buffers.
    ///
    /// # Errors
    /// The system's, for example if the device's queues are shorter.
    pub fn new(domain: &Rc<Domain>, entries: usize) -> io::Result<ReceiveQueue> {
        let count = u32::try_from(entry_count(entries)?).map_err(|_| refused("too long"))?;
        let serial = next_serial()?;
        let mut attributes = ffi::ibv_srq_init_attr {
            srq_context: std::ptr::null_mut(),
            attr: ffi::ibv_srq_attr { max_wr: count, max_sge: 1, srq_limit: 0 },
        };
        let library = domain.library();
        let raw = domain.raw().as_ptr();
        // SAFETY: the domain lives, and the attributes outlive the call.
        let queue = unsafe { (library.ibv_create_srq)(raw, &raw mut attributes) };
        let queue = NonNull::new(queue).ok_or_else(io::Error::last_os_error)?;
        let part = ffi::ibv_sge { addr: 0, length: 0, lkey: 0 };
        let parts: Vec<_> = (0..count).map(|_| UnsafeCell::new(part)).collect();
        let template = |slot: u32| ffi::ibv_recv_wr {
            wr_id: WorkId::received(serial, slot).0,
            next: std::ptr::null_mut(),
            sg_list: parts[slot as usize].get(),
            num_sge: 1,
        };
        let work = (0..count).map(|slot| UnsafeCell::new(template(slot))).collect();
        let state = RefCell::new(ReceiveState {
            buffers: (0..count).map(|_| None).collect(),
            free: (0..count).rev().collect(),
            chain: None,
        });
        let domain = domain.clone();
        Ok(ReceiveQueue(Rc::new(Receives { library, queue, serial, work, parts, state, domain })))
    }

    pub(super) fn receives(&self) -> &Rc<Receives> {
        &self.0
    }

    /// Adds a buffer for one message; [`ReceiveQueue::ring`] posts it.
    ///
    /// # Errors
    /// [`Error::Register`] if its memory cannot be registered, [`Error::Os`] if the queue is full.
    #[inline]
    pub fn supply(&mut self, buffer: Buffer) -> Result<()> {
        let receives = &*self.0;
        let key = buffer.local_key(&*receives.domain)?;
        let mut state = receives.state.borrow_mut();
        let Ok(length) = u32::try_from(buffer.len()) else { return Err(too_long()) };
        let Some(slot) = state.free.pop() else { return Err(full()) };
        let part = ffi::ibv_sge { addr: buffer.as_ptr() as u64, length, lkey: key };
        let before = receives.fill(&mut state, slot, part, buffer);
        debug_assert!(before.is_none(), "a free slot has no buffer");
        std::mem::forget(before); // is `None`, so no drop is needed
        Ok(())
    }

    /// Returns the buffer in which a message was received, like [`ReceiveQueue::take`], and puts
    /// `fresh` into its slot, like [`ReceiveQueue::supply`]; also returns whether it could. A
    /// `fresh` that cannot be registered is dropped, and the slot is free.
    #[inline]
    pub fn exchange(&mut self, slot: Slot, bytes: u32, fresh: Buffer) -> (Option<Buffer>, bool) {
        let receives = &*self.0;
        let Ok(length) = u32::try_from(fresh.len()) else { return (self.take(slot, bytes), false) };
        let Ok(lkey) = fresh.local_key(&*receives.domain) else {
            return (self.take(slot, bytes), false);
        };
        let mut state = receives.state.borrow_mut();
        let is_held = matches!(state.buffers.get(slot.index as usize), Some(Some(_)));
        if slot.queue != receives.serial || !is_held {
            return (None, false);
        }
        let part = ffi::ibv_sge { addr: fresh.as_ptr() as u64, length, lkey };
        let mut buffer = receives.fill(&mut state, slot.index, part, fresh);
        if let Some(buffer) = &mut buffer {
            buffer.truncate(bytes as usize);
        }
        (buffer, true)
    }

    /// The received message in `slot`, in place: `bytes` bytes, at most its buffer's length. `None`
    /// if the slot is another queue's.
    #[inline]
    pub fn message(&self, slot: &Slot, bytes: u32) -> Option<Ref<'_, [u8]>> {
        if slot.queue != self.0.serial {
            return None;
        }
        let buffer = |state| {
            Ref::filter_map(state, |state: &ReceiveState| {
                let buffer = state.buffers.get(slot.index as usize)?.as_ref()?;
                Some(&buffer[..buffer.len().min(bytes as usize)])
            })
        };
        buffer(self.0.state.borrow()).ok()
    }

    /// Reuses the slot and buffer of a received message: [`ReceiveQueue::take`] and
    /// [`ReceiveQueue::supply`] in one. Does nothing if the slot is another queue's.
    #[inline]
    pub fn again(&mut self, slot: Slot) {
        let mut state = self.0.state.borrow_mut();
        if slot.queue == self.0.serial
            && matches!(state.buffers.get(slot.index as usize), Some(Some(_)))
        {
            self.0.link(&mut state, slot.index);
        }
    }

    /// Posts the buffers supplied since the last time, in one call.
    ///
    /// # Errors
    /// The system's. The buffers stay with the queue, because the device may have some of them.
    pub fn ring(&mut self) -> io::Result<()> {
        let Some((first, last)) = self.0.state.borrow_mut().chain.take() else { return Ok(()) };
        // SAFETY: the slot is linked and not posted, so nobody else refers to its cell.
        unsafe { (*self.0.work[last as usize].get()).next = std::ptr::null_mut() };
        let work = self.0.work[first as usize].get();
        // SAFETY: the queue lives. The chain leads from `first` to `last` (`supply`), over cells
        // that do not move. Each names the memory of a buffer that its slot owns
        // (`ReceiveState::buffers`) until a completion reports that the device is done with it
        // (`take`), or until the queue is destroyed; `Receives` outlives all queue pairs on it.
        check(unsafe { post_srq_recv(self.0.queue, work) })
    }

    /// Returns the buffer of a received message, truncated to `bytes`, or of a cancelled receive.
    /// `None` if the slot is another queue's.
    #[inline]
    pub fn take(&mut self, slot: Slot, bytes: u32) -> Option<Buffer> {
        if slot.queue != self.0.serial {
            return None;
        }
        let mut state = self.0.state.borrow_mut();
        let mut buffer = state.buffers.get_mut(slot.index as usize)?.take()?;
        state.free.push(slot.index);
        buffer.truncate(bytes as usize);
        Some(buffer)
    }

    /// Buffers it holds.
    pub fn posted(&self) -> usize {
        self.0.work.len() - self.room()
    }

    /// Further buffers it can take.
    pub fn room(&self) -> usize {
        self.0.state.borrow().free.len()
    }
}

#[cold]
fn full() -> Error {
    let source = io::Error::new(io::ErrorKind::WouldBlock, "the receive queue is full");
    Error::Os { call: "ibv_post_srq_recv", source }
}

#[cold]
fn too_long() -> Error {
    Error::Os { call: "ibv_post_srq_recv", source: refused("too long") }
}

impl Receives {
    /// Puts `buffer`, described by `part`, into a slot that the device does not have, and links the
    /// slot. Returns its former buffer.
    #[inline(always)] // a few moves
    fn fill(
        &self,
        state: &mut ReceiveState,
        slot: u32,
        part: ffi::ibv_sge,
        buffer: Buffer,
    ) -> Option<Buffer> {
        let at = slot as usize;
        let before = state.buffers[at].replace(buffer);
        // SAFETY: the device does not have the slot and only `self` refers to its cell; the library
        // reads it only within `ring`.
        unsafe { *self.parts[at].get() = part };
        self.link(state, slot);
        before
    }

    /// Links a slot that the device does not have to the end of those to be posted.
    #[inline]
    fn link(&self, state: &mut ReceiveState, slot: u32) {
        let (first, last) = state.chain.unwrap_or((slot, slot));
        if last != slot {
            // SAFETY: nobody else refers to slots that are linked and not posted.
            unsafe { (*self.work[last as usize].get()).next = self.work[slot as usize].get() };
        }
        state.chain = Some((first, slot));
    }

    pub(super) fn raw(&self) -> NonNull<ffi::ibv_srq> {
        self.queue
    }

    pub(super) fn device(&self) -> Device {
        self.domain.device()
    }
}

impl Drop for Receives {
    fn drop(&mut self) {
        // SAFETY: this runs once. Queue pairs hold their `Receives`, so none uses it; the buffers
        // drop after this.
        let code = unsafe { (self.library.ibv_destroy_srq)(self.queue.as_ptr()) };
        debug_assert_eq!(code, 0, "ibv_destroy_srq");
    }
}

impl fmt::Debug for ReceiveQueue {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "ReceiveQueue({} of {})", self.posted(), self.0.work.len())
    }
}
