//! What the device reports, by peer: frames, writes, completed sends and failures.
//!
//! Path: worker > slicer > filter > message > codec > endpoint > **transport**.

use super::control_words::{Credits, Last, Notice};
use super::verbs::{AsyncKind, Completion, Outcome, ReceiveQueue, Status, TakenBack, Through};
use super::{POLL_MAX, Queues, Rdma, SILENCE};
use crate::error::{Error, Result};
use crate::handshake::Reason;
use crate::memory::{Buffer, Pool};
use crate::transport::{Event, PeerId};

impl Queues {
    /// Takes up to 16 reports of a completion queue.
    #[inline]
    fn poll(&mut self, at: usize) -> Result<usize> {
        self.completions[at].queue.poll(&mut self.reports).map_err(failed)
    }
}

impl Rdma {
    /// Takes all completions; returns whether there were any.
    #[inline]
    pub(super) fn take_completions(&mut self) -> Result<bool> {
        let mut is_any = false;
        for at in 0..self.queues.completions.len() {
            let found = self.queues.poll(at)?;
            if found > 0 {
                self.take_reports(at, found)?;
                is_any = true;
            }
        }
        Ok(is_any)
    }

    /// Takes the `found` reports of a queue and what has completed there since.
    #[inline(never)] // most looks find nothing
    fn take_reports(&mut self, at: usize, found: usize) -> Result<()> {
        let mut found = found;
        while found > 0 {
            while let Some(report) = self.queues.reports.next() {
                self.complete(report.map_err(failed)?);
            }
            if found < POLL_MAX {
                break;
            }
            found = self.queues.poll(at)?;
        }
        self.flush();
        Ok(())
    }

    #[inline(always)]
    fn complete(&mut self, report: Completion) {
        match report.outcome {
            Outcome::Received { slot, bytes, imm: Some(word), written: false, .. }
                if report.status.is_ok() =>
            {
                let fresh = self.about.memory.allocate(self.about.limits.frame_bytes);
                let (frame, replaced) = match fresh {
                    Ok(fresh) => self.queues.receives.exchange(slot, bytes, fresh),
                    Err(_) => (self.queues.receives.take(slot, bytes), false), // tried again later
                };
                let Some(frame) = frame else { return };
                let Some(id) = self.peers.of_queue(report.queue) else {
                    return self.receives_gone(frame);
                };
                if let Err(reason) = self.received(id, word, frame, replaced) {
                    self.lose(id, reason);
                }
            }
            _ => self.complete_other(report),
        }
    }

    /// Takes a completion that is not a received frame.
    #[inline(never)]
    fn complete_other(&mut self, report: Completion) {
        let peer = self.peers.of_queue(report.queue);
        match report.outcome {
            Outcome::Received { slot, bytes, imm, written, taken_back } => {
                let Some(buffer) = self.queues.receives.take(slot, bytes) else { return };
                let Some(id) = peer else { return self.receives_gone(buffer) };
                if !report.status.is_ok() {
                    self.receives_gone(buffer);
                    return self.lose(id, format!("a receive failed: {}", report.status));
                }
                let received = match (imm, taken_back) {
                    (Some(word), _) if written => self.written(id, word, bytes, buffer),
                    (_, Some(key)) => self.closed_by_peer(id, key, buffer),
                    _ => Err("it sent a message without its immediate word".to_owned()),
                };
                if let Err(reason) = received {
                    self.lose(id, reason);
                }
            }
            Outcome::Sent(through) => {
                let Some(id) = peer else { return };
                if !report.status.is_ok() {
                    return self.lose_unsent(id, report.status);
                }
                self.sent(id, through);
            }
        }
    }

    #[inline(always)]
    fn received(
        &mut self,
        id: u32,
        word: u32,
        frame: Buffer,
        replaced: bool,
    ) -> std::result::Result<(), Reason> {
        let credits = Credits::from_word(word);
        let (len, limit) = (frame.len(), self.about.limits.frame_bytes);
        if self.peers.handshaking > 0 && self.peers.is_answering(id) {
            return self.received_proof(id, frame, replaced);
        }
        let Some(lane) = self.peers.lane(id) else {
            self.receives_gone(frame);
            return Ok(());
        };
        lane.hears();
        lane.receives.credit(credits.count)?;
        let flush = lane.wake();
        let replace = lane.receives.use_one(replaced);
        if len > limit {
            let reason = format!("it sent a message of {len} bytes, over the limit of {limit}");
            return Err(reason.into());
        }
        if credits.frame {
            self.counters.frames_received += 1;
            self.ready.push(Event::Received { peer: PeerId(id), frame });
        } else {
            drop(frame);
        }
        self.counters.bytes_received += len as u64;
        if flush {
            self.peers.eager.push(id);
        }
        if replace {
            self.replace_receives(id)?;
        }
        Ok(())
    }

    /// Takes the first message of a welcomed peer, which must be its proof.
    #[cold]
    fn received_proof(
        &mut self,
        id: u32,
        frame: Buffer,
        replaced: bool,
    ) -> std::result::Result<(), Reason> {
        self.take_proof(id, frame)?;
        if let Some(lane) = self.peers.lane(id) {
            lane.hears();
            lane.receives.use_one(replaced);
        }
        Ok(())
    }

    fn written(
        &mut self,
        id: u32,
        word: u32,
        bytes: u32,
        unused: Buffer,
    ) -> std::result::Result<(), String> {
        let (notice, peer) = (Notice::from_word(word), PeerId(id));
        let Some(lane) = self.peers.lane(id) else {
            self.receives_gone(unused);
            return Ok(());
        };
        drop(unused);
        lane.hears();
        if lane.receives.use_one(false) {
            self.replace_receives(id)?;
        }
        let len = notice.len(bytes);
        self.counters.bytes_received += len as u64;
        let (key, memory) = self.windows.written(peer, notice, len)?;
        self.ready.push(Event::Written { peer, key, memory, at: notice.at as usize, len });
        Ok(())
    }

    /// Takes the message that closes the window of a write and carries its last bytes.
    fn closed_by_peer(
        &mut self,
        id: u32,
        key: TakenBack,
        message: Buffer,
    ) -> std::result::Result<(), String> {
        let Some(lane) = self.peers.lane(id) else {
            self.receives_gone(message);
            return Ok(());
        };
        lane.hears();
        let proof = lane.queue_pair.taken_back(key).ok_or("it closed another one's window")?;
        let replace = lane.receives.use_one(false);
        let (notice, len, tail) = Last::read(&message)?;
        let (at, peer) = (notice.at as usize, PeerId(id));
        let (key, mut memory) = self.windows.closed(peer, notice, len, proof)?;
        memory[at + len - tail.len()..at + len].copy_from_slice(tail);
        drop(message);
        self.counters.bytes_received += len as u64;
        self.ready.push(Event::Written { peer, key, memory, at, len });
        if replace { self.replace_receives(id) } else { Ok(()) }
    }

    /// Gives up a peer to which something could not be sent.
    #[cold]
    fn lose_unsent(&mut self, id: u32, status: Status) {
        let ends = self.peers.get(id).and_then(|peer| peer.ends.as_deref());
        let reason = ends.map_or_else(|| status.to_string(), |ends| format!("{status}; {ends}"));
        self.lose(id, reason);
    }

    fn sent(&mut self, id: u32, through: Through) {
        if let Some(lane) = self.peers.lane(id) {
            lane.retire(through);
            if lane.wake() {
                self.peers.eager.push(id);
            }
        }
    }

    /// Posts receive buffers in place of those that `id` has used up, and more while a lane in use
    /// has few, as far as there is memory. The next frame tells the peer.
    #[inline(never)] // once in many messages
    pub(super) fn replace_receives(&mut self, id: u32) -> std::result::Result<(), String> {
        let Some(lane) = self.peers.lane(id) else { return Ok(()) };
        while lane.receives.used > 0 {
            // Receive buffers of lost peers are left over.
            if self.queues.receives.posted() < self.queues.wanted
                && !supply(
                    &mut self.queues.receives,
                    &self.about.memory,
                    self.about.limits.frame_bytes,
                )
            {
                break; // tried again when the transport looks around
            }
            lane.receives.used -= 1;
            lane.receives.replaced += 1;
        }
        let receives = &self.queues.receives;
        let spare = (receives.posted() + receives.room()).saturating_sub(self.queues.wanted);
        let lacks = if lane.receives.used == 0 { lane.receives.lacks(spare) } else { 0 };
        for _ in 0..lacks {
            let (queue, pool) = (&mut self.queues.receives, &self.about.memory);
            if !supply(queue, pool, self.about.limits.frame_bytes) {
                break;
            }
            self.queues.wanted += 1;
            lane.receives.grow(1);
        }
        self.queues
            .receives
            .ring()
            .map_err(|error| format!("no receive can be posted: {error}"))?;
        if lane.receives.owe() && lane.has_to_leave() {
            self.peers.eager.push(id);
        }
        Ok(())
    }

    /// Replaces a receive buffer that no peer has used up, if it is still wanted. Its memory has
    /// just become free, so there is some.
    #[cold]
    fn receives_gone(&mut self, buffer: Buffer) {
        drop(buffer);
        if self.queues.receives.posted() < self.queues.wanted {
            supply(&mut self.queues.receives, &self.about.memory, self.about.limits.frame_bytes);
        }
    }

    /// Reads the events of the device.
    ///
    /// # Errors
    /// [`Error::Os`] if the device has failed or its events cannot be read.
    pub(super) fn look_after_device(&mut self) -> Result<()> {
        let failed = |source| Error::Os { call: "reading the RDMA device's events", source };
        while let Some(event) = self.nic.device.next_async_event().map_err(failed)? {
            match event.kind {
                AsyncKind::QueuePairFatal(queue) => {
                    if let Some(id) = self.peers.of_queue(queue) {
                        self.lose(id, "the device reports that its queue pair failed".to_owned());
                    }
                }
                AsyncKind::DeviceFatal => {
                    let device = self.nic.device.name();
                    return Err(Error::Os {
                        call: "working with the RDMA device",
                        source: std::io::Error::other(format!("{device} reports a fatal error")),
                    });
                }
                AsyncKind::PortError => {
                    tracing::warn!(
                        device = self.nic.device.name(),
                        "a port is down; peers out of reach for {SILENCE:?} or longer will be lost"
                    );
                }
                AsyncKind::PortActive | AsyncKind::Other(_) => {}
            }
        }
        Ok(())
    }
}

#[cold]
fn failed(source: std::io::Error) -> Error {
    Error::Os { call: "polling for completions", source }
}

/// Queues one more receive buffer; returns false if there is no memory for it.
pub(super) fn supply(receives: &mut ReceiveQueue, pool: &Pool, bytes: usize) -> bool {
    pool.allocate(bytes).and_then(|buffer| receives.supply(buffer)).is_ok()
}
