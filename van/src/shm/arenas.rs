//! The memory that records refer to: a sender announces the arenas of its pool, and the receiver
//! maps them. Short messages do not come here.
//!
//! An announcement is a packet with the descriptor of an arena. It leaves before the first record
//! that refers to the arena, so a receiver that meets an unknown number reads the packets first.

use std::io;
use std::ops::Range;
use std::rc::Rc;
use std::sync::atomic::{Ordering, fence};

use caravan_numa::Pages;
use zerocopy::little_endian::{U32, U64};
use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout, Unaligned};

use super::connect::{Link, Packet, Taken, take};
use super::ring::{CLOSED, LINE_BYTES, STAMP, WRITE_LINES};
use super::segment::{self, Foreign};
use crate::memory::{Lendable, Shared};

/// Most arenas announced on one lane. A pool has few, because they grow with it.
pub(super) const ARENAS_MAX: usize = 1024;

/// A range of the memory that a sender shares.
#[derive(Clone, Copy, Debug, Default, FromBytes, IntoBytes, Immutable, KnownLayout, Unaligned)]
#[repr(C)]
pub(super) struct Reference {
    /// Number of the announced arena on this lane, from 0.
    pub(super) arena: U32,
    pub(super) reserved: U32,
    pub(super) offset: U64,
    pub(super) len: U64,
}

/// A write, with references to its first bytes.
#[derive(Clone, Copy, Debug, Default, FromBytes, IntoBytes, Immutable, KnownLayout, Unaligned)]
#[repr(C)]
pub(super) struct WriteRecord {
    pub(super) key: U64,
    pub(super) at: U64,
    pub(super) len: U64,
    /// References to its first bytes; empty ones are ignored.
    pub(super) parts: [Reference; 2],
}

/// A loan of values, which belong to the next frame.
#[derive(Clone, Copy, Debug, Default, FromBytes, IntoBytes, Immutable, KnownLayout, Unaligned)]
#[repr(C)]
pub(super) struct LendRecord {
    /// Never 0.
    pub(super) number: U64,
    pub(super) values: Reference,
}

/// Most loans that one record returns.
pub(super) const RETURNS_MAX: usize = (LINE_BYTES - STAMP) / 8;

const _: () = assert!(size_of::<LendRecord>() <= LINE_BYTES - STAMP);
const _: () = assert!(size_of::<WriteRecord>() <= WRITE_LINES as usize * LINE_BYTES - STAMP);

/// The arenas of this node's pool that the peer has been told of.
#[derive(Debug, Default)]
pub(super) struct Announced {
    /// Base addresses, by the number of the arena on this lane. The pool keeps them.
    bases: Vec<usize>,
}

impl Announced {
    /// A reference to `data`, which lies in the shared pool; `None` if its arena cannot be
    /// announced now.
    ///
    /// # Errors
    /// The reason that the arena can never be announced.
    pub(super) fn refer(
        &mut self,
        link: &Link,
        data: &Shared,
    ) -> Result<Option<Reference>, String> {
        let Some((pages, offset)) = data.pages() else { return Ok(None) };
        let base = pages.base().addr().get();
        let number = match self.bases.iter().position(|&announced| announced == base) {
            Some(number) => number,
            None if self.announce(link, pages)? => self.bases.len() - 1,
            None => return Ok(None),
        };
        Ok(Some(Reference {
            arena: U32::new(number as u32),
            reserved: U32::new(0),
            offset: U64::new(offset as u64),
            len: U64::new(data.len() as u64),
        }))
    }

    /// Announces an arena; returns false if the socket has no room now.
    #[cold]
    fn announce(&mut self, link: &Link, pages: &Pages) -> Result<bool, String> {
        let announced = match pages.file() {
            Some(file) if self.bases.len() < ARENAS_MAX => segment::seal(file)
                .and_then(|()| link.send(Packet::Arena(pages.len() as u64), Some(file))),
            _ => Err(io::ErrorKind::OutOfMemory.into()),
        };
        match announced {
            Ok(()) => {
                self.bases.push(pages.base().addr().get());
                Ok(true)
            }
            Err(error) if error.kind() == io::ErrorKind::WouldBlock => Ok(false),
            Err(error) => Err(format!("memory cannot be shared with it: {error}")),
        }
    }
}

/// The arenas of the peer, in the order in which it announced them.
#[derive(Default)]
pub(super) struct Mapped {
    arenas: Vec<Arena>,
}

/// Memory that the peer shares.
struct Arena {
    memory: Rc<Foreign>,
    lendable: Lendable,
}

impl Mapped {
    /// Takes in a packet of the lane; returns whether there was one.
    ///
    /// # Errors
    /// The reason to drop the peer, as in all functions here.
    pub(super) fn enter(&mut self, link: &Link, packet: Taken) -> Result<bool, String> {
        match packet {
            Taken::Nothing => return Ok(false),
            Taken::Wake => {}
            Taken::Arena(_) if self.arenas.len() == ARENAS_MAX => {
                return Err(format!("it shares more than {ARENAS_MAX} arenas"));
            }
            Taken::Arena(memory) => {
                let memory = Rc::new(memory);
                // The peer keeps what it has lent until the socket is closed.
                let lendable = memory.lendable(link.socket.clone());
                self.arenas.push(Arena { memory, lendable });
            }
            Taken::Greeting(..) => return Err("it said hello twice".to_owned()),
            Taken::Ended(reason) => return Err(reason),
        }
        Ok(true)
    }

    /// Copies the first bytes of a reference, as many as `into` takes.
    pub(super) fn copy(
        &mut self,
        link: &Link,
        reference: &Reference,
        into: &mut [u8],
    ) -> Result<(), String> {
        if into.is_empty() {
            return Ok(());
        }
        let (arena, range) = self.find(link, reference)?;
        arena.memory.read(range.start, into);
        // A peer that reuses the memory says so first: see `Link::close`.
        fence(Ordering::SeqCst);
        if link.foreign.load(CLOSED, Ordering::Relaxed) != 0 {
            return Err("it closed the connection".to_owned());
        }
        Ok(())
    }

    /// The memory of a reference as views can share it, and the range of the reference in it.
    pub(super) fn lendable(
        &mut self,
        link: &Link,
        reference: &Reference,
    ) -> Result<(&Lendable, Range<usize>), String> {
        self.find(link, reference).map(|(arena, range)| (&arena.lendable, range))
    }

    /// The arena of a reference, and the range of the reference in it. It takes announcements that
    /// are not taken yet.
    fn find(
        &mut self,
        link: &Link,
        reference: &Reference,
    ) -> Result<(&Arena, Range<usize>), String> {
        let number = reference.arena.get() as usize;
        while self.arenas.len() <= number && self.enter(link, take(&link.socket)?)? {}
        let Some(arena) = self.arenas.get(number) else {
            return Err(format!("it refers to arena {number}, which it has not shared"));
        };
        let (offset, bytes) = (reference.offset.get(), reference.len.get());
        let len = arena.memory.len();
        match offset.checked_add(bytes) {
            Some(end) if end <= len as u64 => Ok((arena, offset as usize..end as usize)),
            _ => Err(format!("it refers to {bytes} bytes at {offset} of an arena of {len}")),
        }
    }
}
