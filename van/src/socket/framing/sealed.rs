//! Encrypted streams: units are cut into messages that the lane's ciphers seal, and put together
//! again behind them.
//!
//! ```text
//! message  [len u32][len bytes: up to 32 KiB - 16 of the stream, sealed, and a tag]
//! ```
//!
//! Sealing takes a pass over the bytes at either side and a copy beside it: nothing is sent from
//! where it lies or lands where it belongs in one call.
//!
//! Path: worker > slicer > filter > message > codec > endpoint > transport (socket, framing,
//! **sealed**).

use crate::handshake::{Cipher, Reason, SEALED_BYTES_MAX, TAG};

/// Length of the length before a message.
const LEN: usize = 4;

/// Longest message with its length.
const MESSAGE_MAX: usize = LEN + SEALED_BYTES_MAX + TAG;

/// Messages that leave in one call, at most.
const AT_ONCE: usize = 4;

/// Seals what one side sends.
#[derive(Debug)]
pub(super) struct Sealer {
    cipher: Cipher,
    /// What the next message seals.
    plain: Vec<u8>,
    /// Messages that have not left.
    sealed: Vec<u8>,
    /// Bytes of them that have.
    sent: usize,
}

impl Sealer {
    pub(super) fn new(cipher: Cipher) -> Sealer {
        let plain = Vec::with_capacity(SEALED_BYTES_MAX);
        Sealer { cipher, plain, sealed: Vec::with_capacity(AT_ONCE * MESSAGE_MAX), sent: 0 }
    }

    /// What has been sealed and has not left.
    pub(super) fn left(&self) -> &[u8] {
        &self.sealed[self.sent..]
    }

    /// Whether another message may be sealed before these leave.
    pub(super) fn has_room(&self) -> bool {
        self.sent == 0 && self.sealed.len() + MESSAGE_MAX <= self.sealed.capacity()
    }

    /// Copies as much of `slice` as the next message takes; returns how much that is.
    pub(super) fn take(&mut self, slice: &[u8]) -> usize {
        let len = slice.len().min(SEALED_BYTES_MAX - self.plain.len());
        self.plain.extend_from_slice(&slice[..len]);
        len
    }

    /// Seals what was taken.
    pub(super) fn seal(&mut self) {
        let at = self.sealed.len();
        self.sealed.resize(at + LEN + self.plain.len() + TAG, 0);
        let (len, sealed) = self.sealed[at..].split_at_mut(LEN);
        let bytes = self.cipher.seal(&self.plain, sealed);
        len.copy_from_slice(&(bytes as u32).to_le_bytes());
        self.plain.clear();
    }

    /// Notes that `bytes` more bytes have left.
    pub(super) fn sent(&mut self, bytes: usize) {
        self.sent += bytes;
        if self.sent == self.sealed.len() {
            self.sealed.clear();
            self.sent = 0;
        }
    }
}

/// Opens what one side receives.
#[derive(Debug)]
pub(super) struct Opener {
    cipher: Cipher,
    /// What has come, then free room.
    sealed: Box<[u8]>,
    filled: usize,
    /// The message that was opened last.
    plain: Box<[u8]>,
}

impl Opener {
    pub(super) fn new(cipher: Cipher) -> Opener {
        let sealed = vec![0; 2 * MESSAGE_MAX].into();
        Opener { cipher, sealed, filled: 0, plain: vec![0; SEALED_BYTES_MAX + TAG].into() }
    }

    /// Where the next bytes go; never empty.
    pub(super) fn space(&mut self) -> &mut [u8] {
        &mut self.sealed[self.filled..]
    }

    /// Takes note of `bytes` more bytes in the [`Opener::space`], and hands `with` what the
    /// messages among them hold, in order.
    ///
    /// # Errors
    /// Says what is wrong with a message; what `with` says.
    pub(super) fn received(
        &mut self,
        bytes: usize,
        mut with: impl FnMut(&[u8]) -> Result<(), Reason>,
    ) -> Result<(), Reason> {
        self.filled += bytes;
        let mut at = 0;
        while let Some(len) = self.sealed[at..self.filled].first_chunk::<LEN>() {
            let len = u32::from_le_bytes(*len) as usize;
            if !(TAG..=SEALED_BYTES_MAX + TAG).contains(&len) {
                let reason = format!("it sent an encrypted message of {len} bytes, which none has");
                return Err(reason.into());
            }
            let begin = at + LEN;
            if self.filled < begin + len {
                break;
            }
            let plain = self.cipher.open(&self.sealed[begin..begin + len], &mut self.plain)?;
            with(&self.plain[..plain])?;
            at = begin + len;
        }
        self.sealed.copy_within(at..self.filled, 0);
        self.filled -= at;
        Ok(())
    }
}
