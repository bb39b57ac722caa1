//! The chain of work requests that a queue pair posts in one call. Its constant parts are written
//! once, so that a push writes only what differs.

use std::cell::UnsafeCell;

use super::bindings as ffi;

/// Most requests posted in one call.
pub(super) const CHAIN_MAX: usize = 16;

/// Most memory parts of one request.
pub(super) const PARTS_MAX: usize = 2;

/// Linked requests, each with its own parts of memory. They are cells because the library reads
/// them by address, but only during the call that posts them.
pub(super) struct Chain {
    work: Vec<UnsafeCell<ffi::ibv_send_wr>>,
    parts: Vec<UnsafeCell<ffi::ibv_sge>>,
}

impl Chain {
    pub(super) fn new() -> Self {
        let part = ffi::ibv_sge { addr: 0, length: 0, lkey: 0 };
        let parts: Vec<_> = (0..CHAIN_MAX * PARTS_MAX).map(|_| UnsafeCell::new(part)).collect();
        let request = |at: usize| {
            // SAFETY: only numbers and pointers, for which zeros are a request without memory.
            let mut request: ffi::ibv_send_wr = unsafe { std::mem::zeroed() };
            request.sg_list = parts[at * PARTS_MAX].get();
            UnsafeCell::new(request)
        };
        let mut work: Vec<_> = (0..CHAIN_MAX).map(request).collect();
        for at in 1..CHAIN_MAX {
            let next = work[at].get();
            work[at - 1].get_mut().next = next;
        }
        Chain { work, parts }
    }

    /// The first request, for posting. It does not move while `self` lives.
    pub(super) fn first(&self) -> *mut ffi::ibv_send_wr {
        self.work[0].get()
    }

    /// Request number `at`.
    #[inline]
    pub(super) fn request(&mut self, at: usize) -> &mut ffi::ibv_send_wr {
        // SAFETY: the result borrows `self` mutably, so there is no other reference, and no call
        // that posts it is in progress.
        unsafe { &mut *self.work[at].get() }
    }

    /// Sets part `part` of request `at` to `len` bytes from `address`. C holds lengths in 32 bits.
    #[inline]
    pub(super) fn name(&mut self, at: usize, part: usize, address: *const u8, len: u32, key: u32) {
        let named = ffi::ibv_sge { addr: address as u64, length: len, lkey: key };
        let cell = self.parts[at * PARTS_MAX + part].get();
        // SAFETY: as for a request; nothing ever borrows a part.
        unsafe { *cell = named };
    }
}

/// Makes a request carry no data. As a write, the peer's device only acknowledges it.
pub(super) fn make_plain(request: &mut ffi::ibv_send_wr) {
    request.num_sge = 0;
    set_immediate(request, 0);
    set_remote(request, 0, 0);
}

/// Sets the value that goes with a request, in network byte order.
#[inline]
pub(super) fn set_immediate(request: &mut ffi::ibv_send_wr, imm: u32) {
    request.anonymous_1.imm_data = imm.to_be();
}

/// Sets the place in the peer's memory that a request writes or reads.
#[inline]
pub(super) fn set_remote(request: &mut ffi::ibv_send_wr, address: u64, key: u32) {
    request.wr.rdma.remote_addr = address;
    request.wr.rdma.rkey = key;
}
