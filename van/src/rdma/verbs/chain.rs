//! The chain of work requests that a queue pair hands over in one call: laid out once, so that a push writes what differs.

use std::cell::UnsafeCell;

use rdma_sys as ffi;

/// Most work that one ring gives to the device.
pub(super) const CHAIN_MAX: usize = 16;

/// Most parts of memory that one piece of work names.
pub(super) const PARTS_MAX: usize = 2;

/// Requests, each linked to the next and with its own parts of memory. Cells, as the library reads them by address, but only within
/// the call that posts them.
pub(super) struct Chain {
    work: Vec<UnsafeCell<ffi::ibv_send_wr>>,
    parts: Vec<UnsafeCell<ffi::ibv_sge>>,
}

impl Chain {
    pub(super) fn new() -> Self {
        let part = ffi::ibv_sge { addr: 0, length: 0, lkey: 0 };
        let parts: Vec<_> = (0..CHAIN_MAX * PARTS_MAX).map(|_| UnsafeCell::new(part)).collect();
        let request = |at: usize| {
            // SAFETY: numbers and pointers only, for which zeros are a request that names nothing.
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

    /// Where it begins, for posting it. Stays there as long as `self` lives.
    pub(super) fn first(&self) -> *mut ffi::ibv_send_wr {
        self.work[0].get()
    }

    /// Request number `at`.
    #[inline]
    pub(super) fn request(&mut self, at: usize) -> &mut ffi::ibv_send_wr {
        // SAFETY: the result borrows `self` for writing, so there is no other reference, and no call that posts it is under way.
        unsafe { &mut *self.work[at].get() }
    }

    /// Lets part `part` of request number `at` be the `len` bytes from `address`. C holds a length in 32 bits.
    #[inline]
    pub(super) fn name(
        &mut self,
        at: usize,
        part: usize,
        (address, len): (*const u8, u32),
        key: u32,
    ) {
        let named = ffi::ibv_sge { addr: address as u64, length: len, lkey: key };
        let cell = self.parts[at * PARTS_MAX + part].get();
        // SAFETY: as for a request; a part is not referred to at all.
        unsafe { *cell = named };
    }
}

/// Lets a request name nothing: as a write, that is one that a peer's device only acknowledges.
pub(super) fn make_plain(request: &mut ffi::ibv_send_wr) {
    request.num_sge = 0;
    request.imm_data_invalidated_rkey_union = immediate(0);
    request.wr.rdma = ffi::rdma_t { remote_addr: 0, rkey: 0 };
}

#[inline]
pub(super) fn immediate(imm: u32) -> ffi::imm_data_invalidated_rkey_union_t {
    ffi::imm_data_invalidated_rkey_union_t { imm_data: imm.to_be() }
}
