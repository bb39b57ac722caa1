//! The sending half of a stream: a bounded queue of units, as slices for one vectored call.

use std::collections::VecDeque;
use std::io::IoSlice;

use super::receive::Reply;
use super::sealed::Sealer;
use super::{ALIGN, FRAME, REFUSAL, WRITE, padding, prefix};
use crate::error::{Error, Result};
use crate::memory::Buffer;
use crate::transport::{FRAME_PREFIX, Gather, PeerId, check_write};
use crate::wire::Offer;

/// Slices that [`Sender::with_slices`] lists at most.
pub(super) const SLICES_MAX: usize = 64;

/// Where a unit or two wait, there is place for so many: less to fill in.
const SLICES_FEW: usize = 8;

/// A unit is at most so many slices.
const PIECES: usize = 4;

static ZEROS: [u8; ALIGN] = [0; ALIGN];

/// What waits to be sent to one peer. From when the peer has proved itself it never grows past its
/// depth, so that its units stay where they are; what is said before lies by itself.
#[derive(Debug)]
pub struct Sender {
    peer: PeerId,
    /// 0 until the peer has proved itself.
    depth: usize,
    /// Of an encrypted lane whose peer has proved itself.
    sealer: Option<Box<Sealer>>,
    queue: VecDeque<Queued>,
    /// Bytes of the first unit that have left.
    sent: usize,
    frames_sent: u64,
}

#[derive(Debug)]
struct Queued {
    unit: Unit,
    /// In bytes, with what pads it.
    len: usize,
}

#[derive(Debug)]
enum Unit {
    /// A message of the handshake, which is not encrypted.
    Greeting(Box<[u8]>),
    /// A frame with its prefix filled in.
    Frame(Buffer),
    Write {
        prefix: [u8; FRAME_PREFIX],
        data: Gather,
    },
    Refusal {
        prefix: [u8; FRAME_PREFIX],
        reason: String,
    },
}

impl Unit {
    fn pieces(&self) -> [&[u8]; PIECES] {
        match self {
            Unit::Greeting(message) => [message, &[], &[], &[]],
            Unit::Frame(frame) => [frame, &[], &[], &ZEROS[..padding(frame.len())]],
            Unit::Write { prefix, data } => {
                let tail = data.tail.as_deref().unwrap_or(&[]);
                [prefix, &data.head, tail, &ZEROS[..padding(data.len())]]
            }
            Unit::Refusal { prefix, reason } => {
                [prefix, reason.as_bytes(), &[], &ZEROS[..padding(reason.len())]]
            }
        }
    }
}

impl Sender {
    /// The sending half of a connection with `peer`, which says nothing but what the handshake has
    /// it say.
    pub fn new(peer: PeerId) -> Self {
        Sender { peer, depth: 0, sealer: None, queue: VecDeque::new(), sent: 0, frames_sent: 0 }
    }

    /// Queues a message of the handshake.
    pub fn greet(&mut self, message: Box<[u8]>) {
        self.enqueue(Unit::Greeting(message));
    }

    /// Queues what the handshake has this side say, and holds up to `depth` units from when the
    /// peer has proved itself.
    pub fn reply(&mut self, reply: Reply, depth: usize) {
        let Reply { message, is_proved, cipher } = reply;
        if is_proved {
            self.depth = depth;
            self.queue.reserve(depth + 2); // the proof and a refusal always fit
            self.sealer = cipher.map(|cipher| Box::new(Sealer::new(cipher)));
        }
        if let Some(message) = message {
            self.greet(message);
        }
    }

    /// Queues a frame, whose first [`FRAME_PREFIX`] bytes are overwritten.
    ///
    /// # Errors
    /// [`Error::QueueFull`].
    pub fn frame(&mut self, mut frame: Buffer) -> Result<()> {
        self.room()?;
        let len = u32::try_from(frame.len() - FRAME_PREFIX)
            .expect("the van checked it against its frame limit");
        frame[..FRAME_PREFIX].copy_from_slice(&prefix(FRAME, 0, len, 0));
        let len = frame.len() + padding(frame.len());
        self.queue.push_back(Queued { unit: Unit::Frame(frame), len });
        Ok(())
    }

    /// Queues a write of `data` into the peer's memory.
    ///
    /// # Errors
    /// [`Error::QueueFull`]; what [`check_write`] says.
    pub fn write(&mut self, data: Gather, into: &Offer, at: u64) -> Result<()> {
        self.room()?;
        let (key, len) = (into.key.get(), data.len() as u64);
        check_write(key, at, len, into.len.get())?;
        let at = u16::try_from(at).expect("a write begins below 4096, as was just checked");
        let len = u32::try_from(len).expect("likewise for its length");
        self.enqueue(Unit::Write { prefix: prefix(WRITE, at, len, key), data });
        Ok(())
    }

    /// Queues the reason why this side is about to close the connection, in place of all that has
    /// not begun to leave. Nobody is told who has not proved himself.
    pub fn refuse(&mut self, reason: &str) {
        if self.depth == 0 {
            return;
        }
        let begun = self
            .queue
            .front()
            .is_some_and(|first| self.sent > 0 || matches!(first.unit, Unit::Greeting(_)));
        self.queue.truncate(usize::from(begun));
        let reason = reason[..reason.floor_char_boundary(1000)].to_owned();
        let prefix = prefix(REFUSAL, 0, reason.len() as u32, 0);
        self.enqueue(Unit::Refusal { prefix, reason });
    }

    fn enqueue(&mut self, unit: Unit) {
        let len = unit.pieces().iter().map(|piece| piece.len()).sum();
        self.queue.push_back(Queued { unit, len });
    }

    /// Whether all has left.
    pub fn is_empty(&self) -> bool {
        self.queue.is_empty() && self.sealer.as_ref().is_none_or(|sealer| sealer.left().is_empty())
    }

    /// Frames that have left whole.
    pub fn frames_sent(&self) -> u64 {
        self.frames_sent
    }

    /// Calls `with` with the next bytes to send, in order, as up to 64 slices.
    ///
    /// They stay where they are until [`Sender::sent`] has been told that they left, also while
    /// more is queued.
    pub fn with_slices<T>(&mut self, with: impl FnOnce(&[IoSlice<'_>]) -> T) -> T {
        if self.sealer.is_some() {
            self.with_sealed(with)
        } else if self.queue.len() <= SLICES_FEW / PIECES {
            self.with_slices_in([IoSlice::new(&[]); SLICES_FEW], with)
        } else {
            self.with_slices_in([IoSlice::new(&[]); SLICES_MAX], with)
        }
    }

    fn with_slices_in<'a, T, const MOST: usize>(
        &'a self,
        mut slices: [IoSlice<'a>; MOST],
        with: impl FnOnce(&[IoSlice<'_>]) -> T,
    ) -> T {
        let (mut skip, mut count) = (self.sent, 0);
        for piece in self.queue.iter().flat_map(|queued| queued.unit.pieces()) {
            let left = &piece[skip.min(piece.len())..];
            skip -= piece.len() - left.len();
            if left.is_empty() {
                continue;
            }
            let Some(slice) = slices.get_mut(count) else { break };
            *slice = IoSlice::new(left);
            count += 1;
        }
        with(&slices[..count])
    }

    /// Likewise of an encrypted lane: the message of the handshake that goes first, or what is
    /// sealed.
    #[cold]
    fn with_sealed<T>(&mut self, with: impl FnOnce(&[IoSlice<'_>]) -> T) -> T {
        if let Some(Queued { unit: Unit::Greeting(message), .. }) = self.queue.front() {
            return with(&[IoSlice::new(&message[self.sent..])]);
        }
        let Some(mut sealer) = self.sealer.take() else { return with(&[]) };
        while sealer.has_room() && !self.queue.is_empty() {
            let taken = self.with_slices_in([IoSlice::new(&[]); SLICES_MAX], |slices| {
                slices.iter().map(|slice| sealer.take(slice)).sum()
            });
            self.pass(taken);
            sealer.seal();
        }
        let done = with(&[IoSlice::new(sealer.left())]);
        self.sealer = Some(sealer);
        done
    }

    /// What is left to send, where that is one slice: a small frame, mostly, which a plain call
    /// then sends with less to do.
    pub fn only_slice(&self) -> Option<&[u8]> {
        match &self.queue.front()?.unit {
            Unit::Frame(frame)
                if self.queue.len() == 1 && padding(frame.len()) == 0 && self.sealer.is_none() =>
            {
                Some(&frame[self.sent..])
            }
            _ => None,
        }
    }

    /// Notes that the next `bytes` bytes have left, and drops the units that are through.
    pub fn sent(&mut self, bytes: usize) {
        if let Some(sealer) = &mut self.sealer
            && !sealer.left().is_empty()
        {
            return sealer.sent(bytes);
        }
        self.pass(bytes);
    }

    /// Goes on in the queue by `bytes` bytes.
    fn pass(&mut self, bytes: usize) {
        self.sent += bytes;
        while let Some(first) = self.queue.front().filter(|first| first.len <= self.sent) {
            self.frames_sent += u64::from(matches!(first.unit, Unit::Frame(_)));
            self.sent -= first.len;
            self.queue.pop_front();
        }
    }

    fn room(&self) -> Result<()> {
        if self.queue.len() >= self.depth {
            return Err(Error::QueueFull { peer: self.peer, depth: self.depth });
        }
        Ok(())
    }
}
