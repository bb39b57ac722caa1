//! Replaces `sys.rs` where there is no `mmap`, on systems other than Linux and under Miri: zeroed
//! memory of the allocator, without nodes or huge pages. Threads are not pinned.

use std::collections::BTreeSet;
use std::io;
use std::net::IpAddr;
use std::ops::Range;
use std::ptr::NonNull;

use crate::ids::{NumaId, PuId};

#[derive(Debug)]
pub(crate) struct Mapping {
    base: NonNull<u8>,
    len: usize,
    _block: Vec<u8>,
}

impl Mapping {
    pub(crate) fn new(len: usize, align: usize, _: Option<&MemoryFile>) -> io::Result<Self> {
        let size = len.checked_add(align).ok_or(io::ErrorKind::OutOfMemory)?;
        // Tried first, because a failed allocation below would end the process.
        Vec::<u8>::new().try_reserve_exact(size).map_err(|_| io::ErrorKind::OutOfMemory)?;
        let mut block = vec![0; size];
        let first = block.as_mut_ptr().map_addr(|address| address.next_multiple_of(align));
        let base = NonNull::new(first).expect("it lies in the block");
        Ok(Mapping { base, len, _block: block })
    }

    pub(crate) fn reserved_huge(_: usize, _: Option<&MemoryFile>) -> io::Result<Self> {
        unsupported()
    }

    pub(crate) fn base(&self) -> NonNull<u8> {
        self.base
    }

    pub(crate) fn len(&self) -> usize {
        self.len
    }

    pub(crate) fn whole_len(&self) -> usize {
        self.len
    }

    pub(crate) fn prefer_node(&self, _: NumaId) -> io::Result<()> {
        unsupported()
    }

    pub(crate) fn advise_huge(&self) -> io::Result<()> {
        unsupported()
    }

    pub(crate) fn populate(&self) -> io::Result<()> {
        unsupported()
    }

    pub(crate) fn collapse(&self, _: Range<usize>) -> io::Result<()> {
        unsupported()
    }
}

/// Does not exist here.
#[derive(Debug)]
pub(crate) enum MemoryFile {}

impl MemoryFile {
    pub(crate) fn new(_: usize, _: bool) -> io::Result<Self> {
        unsupported()
    }
}

pub(crate) fn prefer_node_here(_: Option<NumaId>) -> io::Result<()> {
    unsupported()
}

pub(crate) fn return_freed_blocks() {}

pub(crate) fn nodes_of(_: &[u8]) -> io::Result<Vec<Option<NumaId>>> {
    unsupported()
}

pub(crate) fn current_pu() -> io::Result<PuId> {
    unsupported()
}

pub(crate) fn thread_affinity() -> io::Result<BTreeSet<PuId>> {
    unsupported()
}

pub(crate) fn run_on(_: PuId) -> io::Result<()> {
    unsupported()
}

pub(crate) fn thread_cpu_ns() -> u64 {
    0
}

pub(crate) fn interface_addresses(_: &str) -> io::Result<Vec<IpAddr>> {
    unsupported()
}

fn unsupported<T>() -> io::Result<T> {
    Err(io::ErrorKind::Unsupported.into())
}
