//! A shard's whole state on its way to another server thread, for handles whose shards are no rows.
//!
//! The state is written out between two requests, and goes in pieces, beside other work. What is
//! pushed meanwhile waits if the shard moves, and goes behind the state if the shard gets a copy.
//!
//! Path: codec > thread > **tables** > shard > store > answer.

use caravan_van::{Account, Message, Pool};

use super::Replica;
use crate::refusal::{Refusal, Refused};
use crate::server::shard::Shard;

/// What a piece begins with: the place of its bytes in the image, and the length of all.
const HEAD_BYTES: usize = 16;

/// An image that leaves this thread.
pub(super) struct Outgoing {
    bytes: Vec<u8>,
    sent: usize,
    /// Charged for the bytes, and for what the caller keeps beside them.
    _memory: Account,
}

impl Outgoing {
    /// Writes out a shard's state, and charges for it and for `beside` more bytes.
    ///
    /// # Errors
    /// If there is no memory for that.
    pub(super) fn of(shard: &dyn Shard, beside: usize, pool: &Pool) -> Result<Outgoing, Refused> {
        let mut memory = Account::new(pool, "the image of a shard");
        let mut bytes = Vec::new();
        let most = shard.image_bytes().unwrap_or(0);
        let charged = memory.add(beside).and_then(|()| memory.reserve(&mut bytes, most));
        charged?;
        shard.image(&mut bytes);
        Ok(Outgoing { bytes, sent: 0, _memory: memory })
    }

    /// The next piece, with about `bytes_max` bytes of the state, and whether it is the last.
    pub(super) fn piece(&self, bytes_max: usize) -> (Vec<u8>, bool) {
        let rest = &self.bytes[self.sent..];
        let part = &rest[..rest.len().min(bytes_max.max(1))];
        let head = [self.sent as u64, self.bytes.len() as u64].map(u64::to_le_bytes);
        ([head.as_flattened(), part].concat(), part.len() == rest.len())
    }

    /// Records that a piece was sent.
    pub(super) fn advance(&mut self, piece: &[u8]) {
        self.sent += piece.len() - HEAD_BYTES;
    }
}

/// An image that comes to this thread.
pub(super) struct Incoming {
    bytes: Vec<u8>,
    /// The length of all, once a piece has come.
    len: Option<u64>,
    memory: Account,
}

impl Incoming {
    /// Room for the state of a new shard, unless that comes as rows.
    pub(super) fn of(shard: &dyn Shard, pool: &Pool) -> Option<Box<Incoming>> {
        shard.image_bytes()?;
        let memory = Account::new(pool, "the image of a shard that comes");
        Some(Box::new(Incoming { bytes: Vec::new(), len: None, memory }))
    }

    /// Checks that nothing is missing of a shard's image.
    ///
    /// # Errors
    /// The reason why the shard is not whole.
    pub(super) fn check(image: Option<&Incoming>) -> Result<(), Refused> {
        match image {
            None => Ok(()),
            Some(image) => {
                let (have, len) = (image.bytes.len(), image.len.unwrap_or_default());
                Err(Refusal::Internal
                    .because(format!("a shard has not come whole: {have} bytes of {len}")))
            }
        }
    }

    /// Forgets what has come.
    fn clear(&mut self) {
        self.bytes = Vec::new();
        self.memory.release(usize::MAX);
        self.len = None;
    }

    /// Adds a piece; returns whether it was the last.
    fn add(&mut self, piece: &[u8]) -> Result<bool, Refused> {
        let cut_off = "a piece of a shard is cut off";
        let (head, part) =
            piece.split_at_checked(HEAD_BYTES).ok_or_else(|| Refusal::Internal.because(cut_off))?;
        let (words, _) = head.as_chunks::<8>();
        let [place, len] = [words[0], words[1]].map(u64::from_le_bytes);
        let end = self.bytes.len() as u64 + part.len() as u64;
        if place != self.bytes.len() as u64 || end > len || self.len.is_some_and(|it| it != len) {
            let have = self.bytes.len();
            return Err(Refusal::Internal
                .because(format!("bytes {place} of {len} of a shard come after {have} others")));
        }
        if self.len.is_none() {
            let room = usize::try_from(len).unwrap_or(usize::MAX);
            let reserved = self.memory.reserve(&mut self.bytes, room);
            reserved?;
            self.len = Some(len);
        }
        self.bytes.extend_from_slice(part);
        Ok(end == len)
    }
}

impl Replica {
    /// Takes a piece of rows, or of an image, of another thread's shard with the same keys.
    ///
    /// # Errors
    /// The reason why it is invalid, or that memory is short.
    pub(super) fn take(&mut self, message: &Message, pool: &Pool) -> Result<(), Refused> {
        let values = message.values();
        let Some(image) = &mut self.image else {
            return self.shard.take(message.keys(), message.lengths(), values, pool);
        };
        let whole = image.add(values).and_then(|is_last| match is_last {
            true => self.shard.restore(&image.bytes, pool).map(|()| true),
            false => Ok(false),
        });
        match whole {
            Ok(false) => {}
            Ok(true) => self.image = None,
            Err(_) => image.clear(),
        }
        whole.map(drop)
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, reason = "tests")]
    use super::*;
    use crate::server::shard::{Pulled, Request};

    /// A shard that is these bytes.
    struct Bytes(Vec<u8>);

    impl Shard for Bytes {
        fn push(&mut self, _: &Request<'_>, _: &Pool) -> Result<(), Refused> {
            Ok(())
        }

        fn pull(&mut self, _: &Request<'_>) -> Result<Pulled<'_>, Refused> {
            Ok(Pulled::Bytes(0))
        }

        fn read(&mut self, _: &Request<'_>, _: &mut [u8]) {}

        fn image_bytes(&self) -> Option<usize> {
            Some(self.0.len())
        }

        fn image(&self, image: &mut Vec<u8>) {
            image.extend_from_slice(&self.0);
        }
    }

    #[test]
    fn pieces_make_the_image_again() {
        let pool = Pool::new(1 << 16);
        let left = pool.bytes_left();
        for len in [0, 1, 9, 10, 11, 100] {
            let shard = Bytes((0..len).collect());
            let mut outgoing = Outgoing::of(&shard, 100, &pool).unwrap();
            let mut incoming = Incoming::of(&shard, &pool).unwrap();
            loop {
                let (piece, is_last) = outgoing.piece(10);
                outgoing.advance(&piece);
                assert_eq!(incoming.add(&piece), Ok(is_last), "{len}");
                if is_last {
                    break;
                }
            }
            assert_eq!(incoming.bytes, shard.0);
        }
        assert_eq!(pool.bytes_left(), left);
    }

    #[test]
    fn pieces_that_do_not_follow_each_other_are_refused() {
        let pool = Pool::new(1 << 16);
        let shard = Bytes(vec![7; 30]);
        let piece = |place: u64, len: u64, bytes: usize| {
            let head = [place, len].map(u64::to_le_bytes);
            [head.as_flattened(), &vec![7; bytes]].concat()
        };
        let mut incoming = Incoming::of(&shard, &pool).unwrap();
        assert_eq!(incoming.add(&piece(0, 30, 10)), Ok(false));
        for (place, len, bytes) in
            [(0, 30, 10), (20, 30, 10), (10, 31, 10), (10, 30, 21), (10, u64::MAX, 10)]
        {
            let error = incoming.add(&piece(place, len, bytes)).unwrap_err();
            assert!(error.reason.contains("come after 10 others"), "{error}");
        }
        assert!(incoming.add(&[0; HEAD_BYTES - 1]).unwrap_err().reason.contains("cut off"));
        assert_eq!(incoming.add(&piece(10, 30, 20)), Ok(true));
        for len in [1 << 17, u64::MAX] {
            let mut incoming = Incoming::of(&shard, &pool).unwrap();
            let error = incoming.add(&piece(0, len, 1)).unwrap_err();
            assert!(error.reason.contains("the image of a shard that comes would take"), "{error}");
        }
        assert!(Outgoing::of(&shard, 1 << 16, &pool).is_err());
    }
}
