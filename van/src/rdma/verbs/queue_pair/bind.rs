//! Memory windows that a queue pair opens for its peer: bound by work on its chain, deallocated
//! with it.

use std::rc::Rc;

use super::super::bindings as ffi;
use super::super::bindings::ibv_wr_opcode as opcode;
use super::super::chain::{make_plain, set_immediate};
use super::super::completion::TakenBack;
use super::super::domain::{Invalidated, OpenWindow, Window, WindowHandle};
use super::super::library::refused;
use super::super::work::Other;
use super::{QueuePair, SIGNALED};
use crate::error::{Error, Result};
use crate::memory::Buffer;

impl QueuePair {
    /// Whether a window can be opened now, and only once.
    ///
    /// When Soft-RoCE loses a packet, it goes back to the first unacknowledged request and repeats
    /// all that follow, windows included; a window opened twice is an error that ends the
    /// connection. There, windows open only while everything sent before is known to be
    /// acknowledged. For this, every post is reported after the first call, and a request that
    /// opens a window reports its own end, so that the device never repeats it.
    #[inline]
    pub fn can_bind(&mut self) -> bool {
        self.reports_all |= self.binds_again;
        self.room() > 0 && (!self.binds_again || self.sent <= self.retired)
    }

    /// Pushes work that lets the peer write `memory` through `window` until the result is closed,
    /// revoked or dropped. Work pushed later may tell the peer of it. Requires
    /// [`QueuePair::can_bind`].
    ///
    /// # Errors
    /// As [`QueuePair::push`]; also if the window is of another domain, or was deallocated with a
    /// queue pair that had it open.
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
        set_immediate(request, 0); // Soft-RoCE refuses other values
        request.anonymous_2.bind_mw.mw = raw.as_ptr();
        request.anonymous_2.bind_mw.rkey = key;
        request.anonymous_2.bind_mw.bind_info = ffi::ibv_mw_bind_info {
            mr: region.as_ptr(),
            addr: memory.as_ptr() as u64,
            length: memory.len() as u64,
            mw_access_flags: ffi::ibv_access_flags::IBV_ACCESS_REMOTE_WRITE,
        };
        self.list(window.handle());
        self.binds |= 1 << self.chained;
        let handle = window.handle().clone();
        let sequence = self.pushed;
        let sent = self.sent;
        let flags = if self.binds_again { SIGNALED } else { 0 };
        self.enter(opcode::IBV_WR_BIND_MW, flags, Other::Bind(handle).into());
        self.sent = sent;
        Ok(window.open(memory, key, self.serial, sequence))
    }

    /// The proof that a peer's message to this queue pair invalidated a key; `None` if it went to
    /// another one. The key was valid when the message came, so the work that opened the window is
    /// done.
    pub fn taken_back(&self, what: TakenBack) -> Option<Invalidated> {
        (what.queue == self.number).then_some(Invalidated {
            key: what.key,
            queue_pair: self.serial,
            sequence: self.pushed,
        })
    }

    /// Adds a window to the list of those to be deallocated with this queue pair.
    fn list(&mut self, window: &Rc<WindowHandle>) {
        if window.list(self.serial) {
            if self.windows.len() == self.windows.capacity() {
                self.windows.retain(|window| window.strong_count() > 0);
            }
            self.windows.push(Rc::downgrade(window));
        }
    }

    /// Replaces requests on the chain that would open a deallocated window by ones that do nothing.
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
