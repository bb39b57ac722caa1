//! Linux system calls for pages and pinning; the only file of this crate that may contain `unsafe`.
//!
//! A [`Mapping`] is an address range that belongs to this process until it is dropped. Nothing here
//! accesses the contents of memory; some calls ask where it lies.

use std::collections::BTreeSet;
use std::ffi::{CStr, c_int, c_ulong, c_void};
use std::fs::File;
use std::io;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};
use std::ops::Range;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, FromRawFd, OwnedFd, RawFd};
use std::ptr::{self, NonNull};

use crate::ids::{NumaId, PuId};
use crate::pages::{HUGE_PAGE_BYTES, PAGE_BYTES, Pages};

/// A mapped range, cut from a larger one for its alignment.
pub(crate) struct Mapping {
    base: NonNull<u8>,
    len: usize,
    whole_len: usize,
    _block: Block,
}

// SAFETY: an address range belongs to the process, not to a thread, and `munmap` may be called from
// any.
unsafe impl Send for Mapping {}
// SAFETY: methods on `&self` read fields, which never change, or query the kernel about the range,
// which does its own locking.
unsafe impl Sync for Mapping {}

/// An anonymous file in memory.
pub(crate) struct MemoryFile(OwnedFd);

/// Addresses from `mmap`.
struct Block {
    start: *mut c_void,
    len: usize,
}

impl Mapping {
    /// Maps `len` bytes at a multiple of `align`, a power of two: the start of `file`, or private
    /// memory.
    pub(crate) fn new(len: usize, align: usize, file: Option<&MemoryFile>) -> io::Result<Mapping> {
        let whole_len = whole(len, system_page())?;
        // The system aligns to its page; bytes skipped for a larger alignment are never touched.
        let slack = if align > PAGE_BYTES { align } else { 0 };
        let block_len = whole_len.checked_add(slack).ok_or(io::ErrorKind::OutOfMemory)?;
        let access = if file.is_some() { libc::PROT_NONE } else { READ_WRITE };
        let block = Block::new(block_len, access, libc::MAP_PRIVATE | libc::MAP_ANONYMOUS, None)?;
        let first = block.start.map_addr(|address| address.next_multiple_of(align));
        let base = NonNull::new(first.cast::<u8>()).expect("no mapping begins at address 0");
        let mapping = Mapping { base, len, whole_len, _block: block };
        match file {
            Some(file) => mapping.lay_over(file),
            None => Ok(mapping),
        }
    }

    /// Maps `file` over the range, which so far only reserved the addresses.
    fn lay_over(self, file: &MemoryFile) -> io::Result<Mapping> {
        let flags = libc::MAP_SHARED | libc::MAP_FIXED;
        let at = self.base.as_ptr().cast();
        let fd = file.0.as_raw_fd();
        // SAFETY: `MAP_FIXED` replaces `whole_len` bytes from `base`, all within `_block`, which
        // this mapping owns.
        let there = unsafe { libc::mmap(at, self.whole_len, READ_WRITE, flags, fd, 0) };
        if there == libc::MAP_FAILED {
            let error = io::Error::last_os_error();
            // Never unmapped: some kernels have removed the old pages by now, and others may have
            // got these addresses since.
            std::mem::forget(self);
            return Err(error);
        }
        Ok(self)
    }

    /// Maps `len` bytes in reserved huge pages.
    pub(crate) fn reserved_huge(len: usize, file: Option<&MemoryFile>) -> io::Result<Mapping> {
        let whole_len = whole(len, HUGE_PAGE_BYTES)?;
        let flags = match file {
            Some(_) => libc::MAP_SHARED,
            None => {
                libc::MAP_PRIVATE | libc::MAP_ANONYMOUS | libc::MAP_HUGETLB | libc::MAP_HUGE_2MB
            }
        };
        let block = Block::new(whole_len, READ_WRITE, flags, file)?;
        let base = NonNull::new(block.start.cast::<u8>()).expect("no mapping begins at address 0");
        Ok(Mapping { base, len, whole_len, _block: block })
    }

    pub(crate) fn base(&self) -> NonNull<u8> {
        self.base
    }

    pub(crate) fn len(&self) -> usize {
        self.len
    }

    /// Length rounded up to whole pages.
    pub(crate) fn whole_len(&self) -> usize {
        self.whole_len
    }

    /// Makes pages that are not there yet come from `node` while it has any left.
    pub(crate) fn prefer_node(&self, node: NumaId) -> io::Result<()> {
        let mask = NodeMask::of(node)?;
        let start = self.base.as_ptr();
        let mode = libc::MPOL_PREFERRED;
        // SAFETY: the call changes where this mapping's pages come from, not their contents, and
        // only reads the mask.
        let outcome = unsafe {
            libc::syscall(libc::SYS_mbind, start, self.whole_len, mode, &mask.0, NodeMask::BITS, 0)
        };
        succeeded(outcome)
    }

    /// Requests transparent huge pages.
    pub(crate) fn advise_huge(&self) -> io::Result<()> {
        self.advise(0..self.whole_len, libc::MADV_HUGEPAGE)
    }

    /// Populates all pages, or returns the reason it cannot.
    pub(crate) fn populate(&self) -> io::Result<()> {
        self.advise(0..self.whole_len, libc::MADV_POPULATE_WRITE)
    }

    /// Combines `range`, which is aligned to huge pages, into huge pages with its contents, or
    /// returns the reason it cannot.
    pub(crate) fn collapse(&self, range: Range<usize>) -> io::Result<()> {
        // The kernel combines nothing where there is no page yet.
        for at in range.clone().step_by(HUGE_PAGE_BYTES) {
            self.advise(at..at + PAGE_BYTES, libc::MADV_POPULATE_WRITE)?;
        }
        self.advise(range, libc::MADV_COLLAPSE)
    }

    /// Applies `advice`, which must leave the contents unchanged.
    ///
    /// # Panics
    /// If `range` reaches past the end.
    fn advise(&self, range: Range<usize>, advice: i32) -> io::Result<()> {
        assert!(range.start <= range.end && range.end <= self.whole_len, "of this mapping");
        let start = self.base.as_ptr().wrapping_add(range.start).cast();
        // SAFETY: this mapping owns the range, and no advice given here changes its contents.
        succeeded(unsafe { libc::madvise(start, range.len(), advice) }.into())
    }
}

impl Block {
    fn new(len: usize, access: i32, flags: i32, file: Option<&MemoryFile>) -> io::Result<Block> {
        let fd: RawFd = file.map_or(-1, |file| file.0.as_raw_fd());
        // SAFETY: without `MAP_FIXED` the call uses only free addresses.
        let start = unsafe { libc::mmap(ptr::null_mut(), len, access, flags, fd, 0) };
        if start == libc::MAP_FAILED {
            return Err(io::Error::last_os_error());
        }
        Ok(Block { start, len })
    }
}

impl Drop for Block {
    fn drop(&mut self) {
        // SAFETY: `mmap` returned this very range, no part of it was unmapped since
        // (`Mapping::lay_over` replaces one), and this runs once. By the contract of `Pages`,
        // nobody uses the address any more.
        let outcome = unsafe { libc::munmap(self.start, self.len) };
        debug_assert_eq!(outcome, 0, "munmap: {}", io::Error::last_os_error());
    }
}

impl MemoryFile {
    /// Creates a file of `len` bytes, rounded up to whole pages, whose length is sealed.
    pub(crate) fn new(len: usize, is_huge: bool) -> io::Result<MemoryFile> {
        let (page, huge) = match is_huge {
            true => (HUGE_PAGE_BYTES, libc::MFD_HUGETLB | libc::MFD_HUGE_2MB),
            false => (system_page(), 0),
        };
        let flags = libc::MFD_CLOEXEC | libc::MFD_ALLOW_SEALING | huge;
        // SAFETY: the name is a C string; the call takes no other pointer.
        let fd = unsafe { libc::memfd_create(c"caravan".as_ptr(), flags) };
        if fd < 0 {
            return Err(io::Error::last_os_error());
        }
        // SAFETY: the descriptor is new and nobody else knows it.
        let file = File::from(unsafe { OwnedFd::from_raw_fd(fd) });
        file.set_len(whole(len, page)? as u64)?;
        let seals = libc::F_SEAL_SHRINK | libc::F_SEAL_GROW;
        // SAFETY: the descriptor is open, and seals are a number.
        succeeded(unsafe { libc::fcntl(file.as_raw_fd(), libc::F_ADD_SEALS, seals) }.into())?;
        Ok(MemoryFile(file.into()))
    }
}

impl Pages {
    /// The file behind [shareable](crate::PageSource::shareable) pages: [`Pages::base`] is its
    /// first byte, and its length, [`Pages::file_bytes`], is sealed (`F_SEAL_SHRINK`,
    /// `F_SEAL_GROW`). A process that receives it can map, read and write all of it.
    pub fn file(&self) -> Option<BorrowedFd<'_>> {
        self.memory_file().map(|file| file.0.as_fd())
    }
}

/// Blocks of at least this size are mapped one by one.
#[cfg(target_env = "gnu")]
const MAPPED_BYTES: libc::c_int = 1 << 20;

/// Most free bytes kept at the end of a heap: enough for smaller blocks that come and go.
#[cfg(target_env = "gnu")]
const HEAP_END_BYTES: libc::c_int = 1 << 20;

/// Fixes both thresholds, which would otherwise grow with every larger block that is freed.
pub(crate) fn return_freed_blocks() {
    #[cfg(target_env = "gnu")]
    for (name, bytes) in
        [(libc::M_MMAP_THRESHOLD, MAPPED_BYTES), (libc::M_TRIM_THRESHOLD, HEAP_END_BYTES)]
    {
        // SAFETY: the call takes two numbers, which configure the allocator, and does its own
        // locking. A refusal leaves the threshold unchanged.
        unsafe { libc::mallopt(name, bytes) };
    }
}

/// Makes the calling thread take memory from `node` while it has any left, or from wherever it
/// runs.
pub(crate) fn prefer_node_here(node: Option<NumaId>) -> io::Result<()> {
    let outcome = match node {
        Some(node) => {
            let mask = NodeMask::of(node)?;
            let mode = libc::MPOL_PREFERRED;
            // SAFETY: the call only reads the mask, and changes no existing memory.
            unsafe { libc::syscall(libc::SYS_set_mempolicy, mode, &mask.0, NodeMask::BITS) }
        }
        None => {
            let nothing = ptr::null::<u64>();
            // SAFETY: the call reads no mask, because its size is 0.
            unsafe { libc::syscall(libc::SYS_set_mempolicy, libc::MPOL_DEFAULT, nothing, 0) }
        }
    };
    succeeded(outcome)
}

/// The node of each page that `bytes` touches; `None` for one that is not there yet.
pub(crate) fn nodes_of(bytes: &[u8]) -> io::Result<Vec<Option<NumaId>>> {
    if bytes.is_empty() {
        return Ok(Vec::new());
    }
    let page = system_page();
    let first = bytes.as_ptr().addr() & !(page - 1);
    let end = bytes.as_ptr_range().end.addr();
    let addresses: Vec<usize> = (first..end).step_by(page).collect();
    let mut nodes = vec![0_i32; addresses.len()];
    let count = addresses.len();
    let nowhere = ptr::null::<i32>();
    // SAFETY: without nodes to move to, the call moves nothing: it reads `count` addresses and
    // writes as many numbers into `nodes`.
    let outcome = unsafe {
        libc::syscall(
            libc::SYS_move_pages,
            0,
            count,
            addresses.as_ptr(),
            nowhere,
            nodes.as_mut_ptr(),
            0,
        )
    };
    succeeded(outcome)?;
    Ok(nodes.into_iter().map(|node| usize::try_from(node).ok().map(NumaId)).collect())
}

/// The processing unit that the calling thread is running on.
pub(crate) fn current_pu() -> io::Result<PuId> {
    // SAFETY: takes no arguments and returns a number.
    let pu = unsafe { libc::sched_getcpu() };
    usize::try_from(pu).map(PuId).map_err(|_| io::Error::last_os_error())
}

/// The processing units that the calling thread may run on.
pub(crate) fn thread_affinity() -> io::Result<BTreeSet<PuId>> {
    let mut mask = PuMask::of_pus(PuMask::PUS_AT_FIRST);
    loop {
        let (bytes, words) = (size_of_val(&*mask.0), mask.0.as_mut_ptr());
        // SAFETY: the call writes at most `bytes` bytes from `words`, all of which are the mask's.
        let outcome = unsafe { libc::sched_getaffinity(0, bytes, words.cast()) };
        match succeeded(outcome.into()) {
            Ok(()) => return Ok(mask.pus()),
            // The kernel has more processing units than the mask.
            Err(error)
                if error.raw_os_error() == Some(libc::EINVAL)
                    && mask.0.len() * PuMask::WORD_BITS < PuMask::PUS_MAX =>
            {
                mask = PuMask::of_pus(2 * mask.0.len() * PuMask::WORD_BITS);
            }
            Err(error) => return Err(error),
        }
    }
}

/// Makes the calling thread run on `pu` alone.
pub(crate) fn run_on(pu: PuId) -> io::Result<()> {
    let mask = PuMask::with(pu).ok_or(io::ErrorKind::InvalidInput)?;
    let (bytes, words) = (size_of_val(&*mask.0), mask.0.as_ptr());
    // SAFETY: the call reads `bytes` bytes from `words`, all of which are the mask's.
    succeeded(unsafe { libc::sched_setaffinity(0, bytes, words.cast()) }.into())
}

/// CPU time of this thread up to now, in nanoseconds. `/proc` only has the time up to the last
/// tick.
pub(crate) fn thread_cpu_ns() -> u64 {
    let mut time = libc::timespec { tv_sec: 0, tv_nsec: 0 };
    // SAFETY: `time` has room for what is written.
    let code = unsafe { libc::clock_gettime(libc::CLOCK_THREAD_CPUTIME_ID, &raw mut time) };
    debug_assert_eq!(code, 0, "Linux has this clock");
    time.tv_sec as u64 * 1_000_000_000 + time.tv_nsec as u64
}

/// The addresses of a network interface, in the system's order; empty if there is no such
/// interface.
pub(crate) fn interface_addresses(interface: &str) -> io::Result<Vec<IpAddr>> {
    let mut list = ptr::null_mut();
    // SAFETY: `list` has room for a pointer.
    let outcome = unsafe { libc::getifaddrs(&raw mut list) };
    succeeded(outcome.into())?;
    let mut addresses = Vec::new();
    let mut next = list;
    while !next.is_null() {
        // SAFETY: an entry of the list, which lives until it is freed below.
        let entry = unsafe { &*next };
        next = entry.ifa_next;
        // SAFETY: every entry has the name of its interface.
        let name = unsafe { CStr::from_ptr(entry.ifa_name) };
        if name.to_bytes() == interface.as_bytes() && !entry.ifa_addr.is_null() {
            // SAFETY: not null, so it points to an address of its family.
            addresses.extend(unsafe { ip_address(entry.ifa_addr) });
        }
    }
    // SAFETY: the list came from `getifaddrs`, and nothing refers to it any more.
    unsafe { libc::freeifaddrs(list) };
    Ok(addresses)
}

/// Converts a C address; `None` if it is not an IP address.
///
/// # Safety
/// `address` points to an address as long as its family requires.
unsafe fn ip_address(address: *const libc::sockaddr) -> Option<IpAddr> {
    // SAFETY: every address begins with its family.
    let family = unsafe { address.cast::<libc::sa_family_t>().read_unaligned() };
    match c_int::from(family) {
        libc::AF_INET => {
            // SAFETY: the family tells the type of the address.
            let raw = unsafe { address.cast::<libc::sockaddr_in>().read_unaligned() };
            Some(Ipv4Addr::from_bits(u32::from_be(raw.sin_addr.s_addr)).into())
        }
        libc::AF_INET6 => {
            // SAFETY: the family tells the type of the address.
            let raw = unsafe { address.cast::<libc::sockaddr_in6>().read_unaligned() };
            Some(Ipv6Addr::from(raw.sin6_addr.s6_addr).into())
        }
        _ => None,
    }
}

/// A set of processing units as the kernel reads and writes it. `libc::cpu_set_t` ends at 1024.
struct PuMask(Vec<c_ulong>);

impl PuMask {
    const WORD_BITS: usize = c_ulong::BITS as usize;
    const PUS_AT_FIRST: usize = 1024;
    /// Beyond what any kernel has.
    const PUS_MAX: usize = 1 << 16;

    /// Room for `pus` of them, a multiple of the bits of a word; none is in the set.
    fn of_pus(pus: usize) -> PuMask {
        PuMask(vec![0; pus / Self::WORD_BITS])
    }

    /// Only `pu`; `None` for a number that no kernel has.
    fn with(pu: PuId) -> Option<PuMask> {
        let mut mask = (pu.0 < Self::PUS_MAX)
            .then(|| Self::of_pus((pu.0 + 1).next_multiple_of(Self::WORD_BITS)))?;
        *mask.0.last_mut()? = 1 << (pu.0 % Self::WORD_BITS);
        Some(mask)
    }

    fn pus(&self) -> BTreeSet<PuId> {
        let is_set = |pu: &usize| self.0[pu / Self::WORD_BITS] >> (pu % Self::WORD_BITS) & 1 == 1;
        (0..self.0.len() * Self::WORD_BITS).filter(is_set).map(PuId).collect()
    }
}

/// A set of NUMA nodes as the kernel reads it.
struct NodeMask([u64; NodeMask::WORDS]);

impl NodeMask {
    const WORDS: usize = 16;
    /// The kernel reads one bit less than this number.
    const BITS: usize = NodeMask::WORDS * 64 + 1;

    fn of(node: NumaId) -> io::Result<NodeMask> {
        let mut words = [0; NodeMask::WORDS];
        let word = words.get_mut(node.0 / 64).ok_or(io::ErrorKind::InvalidInput)?;
        *word = 1 << (node.0 % 64);
        Ok(NodeMask(words))
    }
}

/// `len` rounded up to whole pages.
fn whole(len: usize, page: usize) -> io::Result<usize> {
    Ok(len.checked_next_multiple_of(page).ok_or(io::ErrorKind::OutOfMemory)?)
}

fn system_page() -> usize {
    // SAFETY: the call only returns a number.
    let bytes = unsafe { libc::sysconf(libc::_SC_PAGESIZE) };
    usize::try_from(bytes).unwrap_or(PAGE_BYTES)
}

fn succeeded(outcome: libc::c_long) -> io::Result<()> {
    if outcome == 0 { Ok(()) } else { Err(io::Error::last_os_error()) }
}

const READ_WRITE: i32 = libc::PROT_READ | libc::PROT_WRITE;

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, reason = "tests")]
    use std::os::unix::fs::FileExt;

    use super::*;
    use crate::pages::{HugePages, PageSource};

    #[test]
    fn a_mask_has_room_for_any_processing_unit() {
        for pu in [0, 63, 64, 1023, 1024, 4095, PuMask::PUS_MAX - 1].map(PuId) {
            assert!(PuMask::with(pu).unwrap().pus().iter().eq([&pu]), "{pu}");
        }
        assert!(PuMask::with(PuId(PuMask::PUS_MAX)).is_none());
        let refused = |pu| run_on(PuId(pu)).unwrap_err();
        assert_eq!(refused(4095).raw_os_error(), Some(libc::EINVAL), "by the kernel");
        assert_eq!(refused(usize::MAX).kind(), io::ErrorKind::InvalidInput);
    }

    #[test]
    fn interfaces_have_their_addresses() {
        let loopback = interface_addresses("lo").unwrap();
        assert!(loopback.contains(&IpAddr::V4(Ipv4Addr::LOCALHOST)), "{loopback:?}");
        assert_eq!(interface_addresses("no such interface").unwrap(), Vec::<IpAddr>::new());
    }

    #[test]
    #[cfg(target_env = "gnu")]
    fn freed_blocks_go_back() {
        return_freed_blocks();
        drop(vec![1_u8; 24 << 20]); // would raise the thresholds
        let block = vec![1_u8; 8 << 20];
        let (first, len) = (block.as_ptr().addr(), block.len());
        drop(block);
        let maps = std::fs::read_to_string("/proc/self/maps").unwrap();
        let range = |line: &str| {
            let (begin, rest) = line.split_once('-')?;
            let end = usize::from_str_radix(rest.split(' ').next()?, 16).ok()?;
            Some(usize::from_str_radix(begin, 16).ok()?..end)
        };
        let covers = |line: &str| {
            range(line).is_some_and(|range| range.contains(&first) && range.end - first >= len)
        };
        assert!(!maps.lines().any(covers), "8 MiB at {first:#x} are still mapped");
    }

    #[test]
    fn pages_are_zero_and_can_be_written() {
        for shareable in [false, true] {
            for len in [1, 70_000, 3 << 20] {
                let source = PageSource { shareable, ..PageSource::default() };
                let pages = Pages::new(len, &source).unwrap();
                // SAFETY: all of it is mapped, zeroed by the kernel, and used by nobody else.
                let bytes = unsafe { std::slice::from_raw_parts_mut(pages.base().as_ptr(), len) };
                assert!(bytes.iter().all(|byte| *byte == 0));
                bytes.fill(7);
            }
        }
    }

    #[test]
    fn what_is_dropped_is_given_back() {
        let source = PageSource { shareable: true, ..PageSource::default() };
        // Untouched, so that it takes only addresses, of which a process has at most 128 TiB.
        for round in 0..20 {
            let pages = Pages::new(16 << 40, &source);
            assert!(pages.is_ok(), "{round}: {:?}", pages.map_err(|error| error.source));
        }
    }

    #[test]
    fn pages_that_are_put_together_keep_what_is_in_them() {
        const MIB: usize = 1 << 20;
        let source = PageSource { huge: HugePages::Transparent, shareable: true, node: None };
        let pages = Pages::new(6 * MIB, &source).unwrap();
        let marks = [0, 5000, 2 * MIB - 1, 2 * MIB, 6 * MIB - 1];
        // SAFETY: all of it is mapped, zeroed by the kernel, and used by nobody else.
        let bytes = unsafe { std::slice::from_raw_parts_mut(pages.base().as_ptr(), 6 * MIB) };
        marks.into_iter().zip(1..).for_each(|(at, mark)| bytes[at] = mark);
        if !pages.make_huge(0, 6 * MIB) {
            eprintln!("SKIPPED: this system puts no pages of shared memory together");
        }
        let file = File::from(pages.file().unwrap().try_clone_to_owned().unwrap());
        let mut found = vec![0; 6 * MIB];
        file.read_exact_at(&mut found, 0).unwrap();
        for (at, mark) in marks.into_iter().zip(1..) {
            assert_eq!(std::mem::take(&mut found[at]), mark, "{at}");
        }
        assert!(found.iter().all(|&byte| byte == 0));
        assert!(!pages.make_huge(1, 3 * MIB), "none lies within as a whole");
        assert!(!pages.make_huge(usize::MAX, 1) && !pages.make_huge(0, MIB));
    }

    #[test]
    fn the_other_end_of_the_descriptor_sees_the_bytes_and_cannot_cut_them() {
        let source = PageSource { shareable: true, ..PageSource::default() };
        let pages = Pages::new(5000, &source).unwrap();
        let file = File::from(pages.file().unwrap().try_clone_to_owned().unwrap());
        assert_eq!(file.metadata().unwrap().len(), pages.file_bytes() as u64);
        assert!(pages.file_bytes() >= 5000 && pages.file_bytes().is_multiple_of(PAGE_BYTES));
        file.write_all_at(b"from afar", 4321).unwrap();
        // SAFETY: 5000 mapped bytes, which nobody writes any more.
        let seen = unsafe { std::slice::from_raw_parts(pages.base().as_ptr(), 5000) };
        assert_eq!(&seen[4321..4330], b"from afar");
        assert!(file.set_len(0).is_err() && file.set_len(1 << 20).is_err(), "its length is sealed");
        assert!(file.write_all_at(b"x", pages.file_bytes() as u64).is_err());
    }

    /// The thread writes from one node; the pages are bound to the other.
    #[test]
    #[ignore = "needs two NUMA nodes: ci/suites/numa"]
    fn pages_lie_on_the_node_they_are_bound_to() {
        use crate::pages::HugePages::{AsSystem, Reserved, Transparent};
        let topology = crate::Topology::this_machine().unwrap();
        for (pu, node) in [(0, 1), (1, 0)] {
            let pinned = crate::pin_current_thread(&topology, PuId(pu));
            assert_eq!(pinned.node(), Some(NumaId(pu)), "{pinned}");
            for (huge, shareable) in [AsSystem, Transparent, Reserved]
                .into_iter()
                .flat_map(|huge| [(huge, false), (huge, true)])
            {
                let source = PageSource { node: Some(NumaId(node)), huge, shareable };
                let pages = Pages::new(4 << 20, &source).unwrap();
                assert!(pages.shortfalls().is_empty(), "{:?}", pages.shortfalls());
                // SAFETY: all of it is mapped, zeroed by the kernel, and used by nobody else.
                let bytes =
                    unsafe { std::slice::from_raw_parts_mut(pages.base().as_ptr(), 4 << 20) };
                bytes.fill(1);
                let nodes = nodes_of(bytes).unwrap();
                assert!(nodes.iter().all(|at| *at == Some(NumaId(node))), "{source:?}");
                println!("from PU {pu}, {source:?}: {}", policy(&pages));
                assert!(policy(&pages).contains(&format!("prefer:{node} ")), "{}", policy(&pages));
            }
        }
    }

    /// The kernel's line about this mapping.
    fn policy(pages: &Pages) -> String {
        let maps = std::fs::read_to_string("/proc/self/numa_maps").unwrap();
        let lines = maps.lines().filter_map(|line| {
            let start = usize::from_str_radix(line.split(' ').next()?, 16).ok()?;
            (start <= pages.base().addr().get()).then_some((start, line))
        });
        lines.max().map(|(_, line)| line.to_owned()).unwrap_or_default()
    }
}
