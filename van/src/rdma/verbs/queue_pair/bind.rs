//! Windows that a queue pair opens for its peer: bound by work on its chain, given back with it.

use std::rc::Rc;

use rdma_sys as ffi;
use rdma_sys::ibv_wr_opcode as opcode;

use super::super::chain::{immediate, make_plain};
use super::super::completion::TakenBack;
use super::super::domain::{Invalidated, OpenWindow, Window, WindowHandle};
use super::super::library::refused;
use super::super::work::Other;
use super::{QueuePair, SIGNALED};
use crate::error::{Error, Result};
use crate::memory::Buffer;

impl QueuePair {
    /// Whether a window that is opened now will open, and once only.
    ///
    /// Soft-RoCE, where something was lost, goes back to the first work that was not acknowledged and does again all that follows,
    /// windows included; to open one twice is an error that ends the connection. There windows open only while all that was sent
    /// before is known to be acknowledged, for which every ring is reported once this was asked; and what opens them reports by itself,
    /// by which the device is past it.
    #[inline]
    pub fn can_bind(&mut self) -> bool {
        self.reports_all |= self.binds_again;
        self.room() > 0 && (!self.binds_again || self.sent <= self.retired)
    }

    /// Puts on the chain that the peer may write `memory` through `window`, from then on until the result is closed, revoked
    /// or dropped. The peer may be told of it by work that is pushed after this. [`QueuePair::can_bind`] says when.
    ///
    /// # Errors
    /// As [`QueuePair::push`]; or the window is of another domain, or gone with a queue pair that had it open.
    pub fn bind(&mut self, window: Window, memory: Buffer) -> Result<OpenWindow> {
        self.make_room()?;
        let os = |reason| Error::Os { call: "ibv_post_send", source: refused(reason) };
        if !window.is_in(&self.domain) {
            return Err(os("the window is of another domain"));
        }
        let key = window.next_key().ok_or_else(|| os("the window is gone"))?;
        let raw = window.handle().raw().ok_or_else(|| os("the window is gone"))?;
        let region = self.domain.region(memory.local_key(&*self.domain)?);
        let region = region.filter(|_| !memory.is_empty());
        let region = region.ok_or_else(|| os("no window opens over empty memory"))?;
        let request = self.chain.request(self.chained);
        request.num_sge = 0;
        request.imm_data_invalidated_rkey_union = immediate(0); // or Soft-RoCE refuses it
        request.bind_mw_tso_union.bind_mw = ffi::bind_mw_t {
            mw: raw.as_ptr(),
            rkey: key,
            bind_info: ffi::ibv_mw_bind_info {
                mr: region.as_ptr(),
                addr: memory.as_ptr() as u64,
                length: memory.len() as u64,
                mw_access_flags: ffi::ibv_access_flags::IBV_ACCESS_REMOTE_WRITE.0,
            },
        };
        self.list(window.handle());
        self.binds |= 1 << self.chained;
        let (handle, sequence, sent) = (window.handle().clone(), self.pushed, self.sent);
        let flags = if self.binds_again { SIGNALED } else { 0 };
        self.enter(opcode::IBV_WR_BIND_MW, flags, Other::Bind(handle).into());
        self.sent = sent;
        Ok(window.open(memory, key, self.serial, sequence))
    }

    /// What a peer took back by a message to this queue pair; none if it went to another one. It was good when the message came,
    /// so that the work that opened the window is done.
    pub fn taken_back(&self, what: TakenBack) -> Option<Invalidated> {
        let (key, queue_pair, sequence) = (what.key, self.serial, self.pushed);
        (what.queue == self.number).then_some(Invalidated { key, queue_pair, sequence })
    }

    /// Takes a window on the list of those to be given back with this queue pair.
    fn list(&mut self, window: &Rc<WindowHandle>) {
        if window.list(self.serial) {
            if self.windows.len() == self.windows.capacity() {
                self.windows.retain(|window| window.strong_count() > 0);
            }
            self.windows.push(Rc::downgrade(window));
        }
    }

    /// Turns requests on the chain that were to open a window that is gone into ones that do nothing.
    pub(super) fn skip_windows_gone(&mut self) {
        let mut binds = self.binds;
        while binds != 0 {
            let at = binds.trailing_zeros();
            binds &= binds - 1;
            let sequence = self.rung + u64::from(at);
            if matches!(&self.entry(sequence).other, Some(Other::Bind(window)) if window.raw().is_none())
            {
                let request = self.chain.request(at as usize);
                make_plain(request);
                request.opcode = opcode::IBV_WR_RDMA_WRITE;
                self.sent = self.sent.max(sequence + 1);
            }
        }
    }
}
