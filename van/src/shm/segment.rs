//! Memory that two processes see: files without a name, which their owner maps for writing and a
//! peer for reading.
//!
//! Each side writes only its own memory. Shared memory is a sealed memfd: it can neither shrink nor
//! grow, and once its owner has mapped it, nobody else can map it for writing. A process that is
//! given a descriptor checks all of that before it maps the file, so no access can fault. It copies
//! data before it checks it, because the other side may change every byte at any time. Loads are
//! atomic or opaque to the compiler, so a concurrent change yields other bytes and no undefined
//! behaviour.
//!
//! This file has the van's `unsafe` code about memory; `socket.rs` has the system calls about
//! descriptors.

use std::any::Any;
use std::io;
use std::os::fd::{AsRawFd, BorrowedFd};
use std::os::unix::fs::MetadataExt;
use std::ptr::{self, NonNull};
use std::rc::Rc;
use std::sync::atomic::{AtomicU64, Ordering};

use caravan_numa::{HUGE_PAGE_BYTES, HugePages, PageSource, Pages};

use crate::memory::{Lendable, long, prefetch};

/// The seals of a file that its owner has mapped: it can neither shrink, which would fault a
/// reader, nor grow, no other mapping can write it, and no seal can be removed.
const FINAL: libc::c_int =
    libc::F_SEAL_SHRINK | libc::F_SEAL_GROW | libc::F_SEAL_FUTURE_WRITE | libc::F_SEAL_SEAL;

/// Below this length a loop is faster than `rep movsb`, which starts slowly.
const SHORT_BYTES: usize = 4 << 10;

/// Mapped memory that other processes may see. Its owner keeps it mapped.
#[derive(Debug)]
struct Mapping {
    base: NonNull<u8>,
    len: usize,
}

impl Mapping {
    /// The word at `offset`, for atomic access only.
    ///
    /// # Panics
    /// If it lies outside the mapping or not at a multiple of 8.
    #[inline]
    fn word(&self, offset: usize) -> &AtomicU64 {
        &self.words(offset, 1)[0]
    }

    /// `count` words from `offset` on, for atomic access only.
    ///
    /// # Panics
    /// If they reach past the end or do not begin at a multiple of 8.
    #[inline]
    fn words(&self, offset: usize, count: usize) -> &[AtomicU64] {
        let bytes = count * size_of::<u64>();
        assert!(offset.is_multiple_of(8) && offset <= self.len && bytes <= self.len - offset);
        // SAFETY: at most `len`, as was just checked.
        let first = unsafe { self.base.add(offset) };
        // SAFETY: aligned words within the mapping, which lives as long as the owner of `self`.
        // This process accesses the words only atomically; another process can do no worse than
        // store other values. Atomic loads of 8 bytes are allowed on memory that is mapped for
        // reading only; all stores go through `Own`, which is mapped for both.
        unsafe { std::slice::from_raw_parts(first.as_ptr().cast::<AtomicU64>(), count) }
    }

    /// `N` words from `offset` on, like `words`.
    #[inline]
    fn array<const N: usize>(&self, offset: usize) -> &[AtomicU64; N] {
        self.words(offset, N).try_into().expect("that many words")
    }

    /// The address of `len` bytes at `offset`.
    ///
    /// # Panics
    /// If they reach past the end.
    fn range(&self, offset: usize, len: usize) -> *mut u8 {
        assert!(offset <= self.len && len <= self.len - offset, "a range lies in its mapping");
        // SAFETY: at most `len`, as was just checked.
        unsafe { self.base.as_ptr().add(offset) }
    }
}

/// Memory of this process that a peer can map for reading only.
#[derive(Debug)]
pub(super) struct Own {
    mapping: Mapping,
    pages: Pages, // keeps it mapped
}

impl Own {
    /// `len` bytes of zeros, in huge pages if `len` is large enough.
    pub(super) fn new(len: usize) -> io::Result<Own> {
        let source = PageSource { huge: HugePages::Transparent, shareable: true, node: None };
        let pages = Pages::new(len, &source).map_err(|error| error.source)?;
        pages.make_huge(0, len);
        let own = Own { mapping: Mapping { base: pages.base(), len }, pages };
        seal(own.file())?;
        Ok(own)
    }

    /// The file, which a peer maps.
    pub(super) fn file(&self) -> BorrowedFd<'_> {
        self.pages.file().expect("shareable pages have a file")
    }

    #[inline]
    pub(super) fn store(&self, offset: usize, value: u64, order: Ordering) {
        self.mapping.word(offset).store(value, order);
    }

    /// `N` words from `offset` on, a multiple of 8.
    ///
    /// # Panics
    /// If they reach past the end.
    #[inline]
    pub(super) fn words<const N: usize>(&self, offset: usize) -> &[AtomicU64; N] {
        self.mapping.array(offset)
    }

    /// Moves `lines` from `offset` on out of this core's own cache, where another core finds them
    /// sooner. A hint.
    ///
    /// # Panics
    /// If they reach past the end.
    pub(super) fn hand_over(&self, offset: usize, lines: usize) {
        let from = self.mapping.range(offset, lines * long::LINE_BYTES);
        for line in (0..lines).map(|line| from.wrapping_add(line * long::LINE_BYTES)) {
            // SAFETY: `cldemote` is a hint about a line, without access or fault; a processor
            // without it takes it for a `nop`.
            #[cfg(target_arch = "x86_64")]
            unsafe {
                std::arch::asm!(
                    "cldemote [{}]", in(reg) line, options(nostack, preserves_flags, readonly)
                );
            }
            #[cfg(not(target_arch = "x86_64"))]
            let _ = line;
        }
    }

    /// Begins to fetch the line at `offset` for writing, so that no other core has it. A hint.
    ///
    /// # Panics
    /// If it reaches past the end.
    #[inline]
    pub(super) fn claim(&self, offset: usize) {
        let line = self.mapping.range(offset, long::LINE_BYTES);
        // SAFETY: `prefetchw` is a hint about a line, without access or fault; a processor without
        // it takes it for a `nop`.
        #[cfg(target_arch = "x86_64")]
        unsafe {
            std::arch::asm!(
                "prefetchw [{}]", in(reg) line, options(nostack, preserves_flags, readonly)
            );
        }
        #[cfg(not(target_arch = "x86_64"))]
        let _ = line;
    }

    /// Copies `bytes` to `offset`.
    ///
    /// # Panics
    /// If they reach past the end.
    #[inline]
    pub(super) fn write(&mut self, offset: usize, bytes: &[u8]) {
        let to = self.mapping.range(offset, bytes.len());
        // SAFETY: the range was just checked. This process accesses it only through `self`, which
        // is borrowed exclusively; `bytes` lies elsewhere, because nothing lends parts of an `Own`.
        unsafe { std::ptr::copy_nonoverlapping(bytes.as_ptr(), to, bytes.len()) };
    }
}

/// Seals `file`: nobody can map it for writing any more, and it keeps its length. Existing mappings
/// stay as they are.
///
/// # Errors
/// On kernels before 5.1, and for a file that is no memfd or has other seals.
pub(super) fn seal(file: BorrowedFd<'_>) -> io::Result<()> {
    if seals(file)? & FINAL == FINAL {
        return Ok(());
    }
    // SAFETY: the call takes a descriptor and no memory.
    succeeded(unsafe { libc::fcntl(file.as_raw_fd(), libc::F_ADD_SEALS, FINAL) })
}

/// Memory of a peer, mapped for reading. The peer can change every byte of it at any time.
#[derive(Debug)]
pub(super) struct Foreign(Mapping);

impl Foreign {
    /// Maps the first `len` bytes of a file that a peer sent.
    ///
    /// # Errors
    /// What is wrong with the file: it is too short, or could become so.
    pub(super) fn map(file: BorrowedFd<'_>, len: usize) -> Result<Foreign, String> {
        if len == 0 {
            return Err("it shares no memory".to_owned());
        }
        check(file, len)?;
        // The mapping must begin at a multiple of a huge page to use huge pages, which the kernel
        // does not ensure. The address is a hint: if another mapping takes it first, only speed is
        // lost.
        let place = if len < HUGE_PAGE_BYTES { ptr::null_mut() } else { aligned_place(len) };
        let base = map(place, len, libc::PROT_READ, libc::MAP_SHARED, Some(file));
        let base = base.map_err(|error| format!("{len} bytes cannot be mapped: {error}"))?;
        Ok(Foreign(Mapping { base, len }))
    }

    pub(super) fn len(&self) -> usize {
        self.0.len
    }

    #[inline]
    pub(super) fn load(&self, offset: usize, order: Ordering) -> u64 {
        self.0.word(offset).load(order)
    }

    /// `N` words from `offset` on, a multiple of 8. They are for loads only: this process cannot
    /// write them.
    ///
    /// # Panics
    /// If they reach past the end.
    #[inline]
    pub(super) fn words<const N: usize>(&self, offset: usize) -> &[AtomicU64; N] {
        self.0.array(offset)
    }

    /// Copies bytes out, from a multiple of 8 on; up to a line of them word by word.
    ///
    /// # Panics
    /// If they reach past the end.
    #[inline]
    pub(super) fn read_words(&self, offset: usize, into: &mut [u8]) {
        if into.len() > long::LINE_BYTES {
            return self.read(offset, into);
        }
        let words = self.0.words(offset, into.len().div_ceil(8));
        let (whole, rest) = into.as_chunks_mut();
        for (chunk, word) in whole.iter_mut().zip(words) {
            *chunk = word.load(Ordering::Relaxed).to_le_bytes();
        }
        if let Some(last) = words.get(whole.len()) {
            let word = last.load(Ordering::Relaxed).to_le_bytes();
            rest.copy_from_slice(&word[..rest.len()]);
        }
    }

    /// Copies bytes out.
    ///
    /// # Panics
    /// If they reach past the end.
    pub(super) fn read(&self, offset: usize, into: &mut [u8]) {
        let from = self.0.range(offset, into.len());
        // SAFETY: both ranges have this length: one was just checked, the other is a slice. They do
        // not overlap, because nothing writable is ever made of a `Foreign`.
        unsafe { copy_racing(from, into.as_mut_ptr(), into.len()) };
    }

    /// Makes all of it viewable in place. It stays mapped until the last view is dropped; `keep` is
    /// dropped after that.
    pub(super) fn lendable(self: &Rc<Self>, keep: impl Any) -> Lendable {
        let owner = Box::new((self.clone(), keep));
        // SAFETY: the owner keeps the range mapped. It is mapped for reading only, so nothing in
        // this process can write it. A peer that keeps to the protocol does not write it while it
        // is lent. One that does not is a process of the same user, and can change the numbers in
        // it as a debugger could: every byte pattern is a valid number, and the bounds are kept
        // here.
        unsafe { Lendable::new(self.0.base.cast(), self.0.len, owner) }
    }

    /// Begins to fetch the line at `offset`. A hint.
    pub(super) fn prefetch(&self, offset: usize) {
        prefetch(self.0.base.as_ptr().wrapping_add(offset));
    }
}

impl Drop for Foreign {
    fn drop(&mut self) {
        unmap(self.0.base, self.0.len);
    }
}

/// An address at a multiple of a huge page where `len` bytes were free just now; null if there is
/// none.
fn aligned_place(len: usize) -> *mut libc::c_void {
    let Some(room) = len.checked_add(HUGE_PAGE_BYTES) else { return ptr::null_mut() };
    let flags = libc::MAP_PRIVATE | libc::MAP_ANONYMOUS | libc::MAP_NORESERVE;
    let Ok(base) = map(ptr::null_mut(), room, libc::PROT_NONE, flags, None) else {
        return ptr::null_mut();
    };
    unmap(base, room);
    base.as_ptr().map_addr(|address| address.next_multiple_of(HUGE_PAGE_BYTES)).cast()
}

/// A new mapping, at `place` if that is free.
fn map(
    place: *mut libc::c_void,
    len: usize,
    access: libc::c_int,
    flags: libc::c_int,
    file: Option<BorrowedFd<'_>>,
) -> io::Result<NonNull<u8>> {
    let file = file.map_or(-1, |file| file.as_raw_fd());
    // SAFETY: without `MAP_FIXED` a new mapping replaces no other one; the address is a hint.
    let base = unsafe { libc::mmap(place, len, access, flags, file, 0) };
    if base == libc::MAP_FAILED {
        return Err(io::Error::last_os_error());
    }
    Ok(NonNull::new(base.cast()).expect("mmap never returns null but for MAP_FIXED"))
}

/// Removes a mapping that [`map`] made. Nothing refers to it any more: references into a
/// [`Foreign`] borrow it, and views hold it.
fn unmap(base: NonNull<u8>, len: usize) {
    // SAFETY: both callers are the only owners, and give the mapping up.
    let code = unsafe { libc::munmap(base.as_ptr().cast(), len) };
    debug_assert_eq!(code, 0, "munmap");
}

fn seals(file: BorrowedFd<'_>) -> io::Result<libc::c_int> {
    // SAFETY: the call takes a descriptor and no memory.
    let seals = unsafe { libc::fcntl(file.as_raw_fd(), libc::F_GET_SEALS) };
    succeeded(seals).map(|()| seals)
}

/// Checks that the first `len` bytes of `file` can be mapped, stay mapped and never fault.
///
/// # Errors
/// What is wrong with the file.
fn check(file: BorrowedFd<'_>, len: usize) -> Result<(), String> {
    let sealed = seals(file);
    let sealed = sealed.map_err(|_| "it sent a descriptor that is no memory file".to_owned())?;
    if sealed & FINAL != FINAL {
        return Err(format!("it sent a memory file with seals {sealed:#x}, not all of {FINAL:#x}"));
    }
    let mut system = std::mem::MaybeUninit::<libc::statfs>::zeroed();
    // SAFETY: the kernel writes one `statfs`, which has room.
    let code = unsafe { libc::fstatfs(file.as_raw_fd(), system.as_mut_ptr()) };
    succeeded(code).map_err(|error| format!("its memory file cannot be examined: {error}"))?;
    // SAFETY: the struct has only numbers, and was zeroed before the kernel wrote to it.
    let system = unsafe { system.assume_init() };
    let found = file.try_clone_to_owned().map(std::fs::File::from).and_then(|file| file.metadata());
    let found = found.map_err(|error| format!("its memory file has no length: {error}"))?;
    // A reserved huge page can be missing when it is touched, unless it is already allocated. The
    // seals let nobody remove allocated pages.
    let is_there = found.blocks().saturating_mul(512) >= len as u64;
    if system.f_type != libc::TMPFS_MAGIC && !(system.f_type == libc::HUGETLBFS_MAGIC && is_there) {
        return Err("it sent a memory file of another kind than pages that are there".to_owned());
    }
    let bytes = found.len();
    if bytes < len as u64 {
        return Err(format!("it sent a memory file of {bytes} bytes where it says {len}"));
    }
    Ok(())
}

fn succeeded(code: libc::c_int) -> io::Result<()> {
    if code < 0 { Err(io::Error::last_os_error()) } else { Ok(()) }
}

/// Copies `len` bytes that another process may be changing.
///
/// # Safety
/// Both ranges are valid, one for reading and one for writing, and do not overlap.
#[cfg(target_arch = "x86_64")]
unsafe fn copy_racing(from: *const u8, to: *mut u8, len: usize) {
    let mut rest = 0;
    if len >= long::LONG_BYTES {
        let quarter = len / 4 / long::LINE_BYTES * long::LINE_BYTES;
        for line in (0..quarter).step_by(long::LINE_BYTES) {
            for at in [line, quarter + line, 2 * quarter + line, 3 * quarter + line] {
                long::fetch_ahead(from.wrapping_add(at));
                long::fetch_ahead(to.wrapping_add(at));
                // SAFETY: within the first four quarters of both ranges.
                unsafe { copy_racing_line(from.wrapping_add(at), to.wrapping_add(at)) };
            }
        }
        rest = 4 * quarter;
    } else if (long::LINE_BYTES..SHORT_BYTES).contains(&len) {
        let last = len - long::LINE_BYTES; // copies some bytes twice
        for at in (0..last).step_by(long::LINE_BYTES).chain([last]) {
            // SAFETY: both ranges have one more line from `last` on.
            unsafe { copy_racing_line(from.wrapping_add(at), to.wrapping_add(at)) };
        }
        return;
    }
    // SAFETY: the caller's ranges from `rest` on. The copy is opaque to the compiler, which assumes
    // nothing about the bytes.
    unsafe {
        std::arch::asm!(
            "rep movsb",
            inout("rcx") len - rest => _,
            inout("rsi") from.wrapping_add(rest) => _,
            inout("rdi") to.wrapping_add(rest) => _,
            options(nostack, preserves_flags),
        );
    }
}

/// Copies the bytes of one line of the cache.
///
/// # Safety
/// As [`copy_racing`].
#[cfg(target_arch = "x86_64")]
#[inline(always)]
unsafe fn copy_racing_line(from: *const u8, to: *mut u8) {
    // SAFETY: the caller's ranges; the copy is opaque to the compiler.
    unsafe {
        std::arch::asm!(
            "movups {a}, [{from}]",
            "movups {b}, [{from} + 16]",
            "movups {c}, [{from} + 32]",
            "movups {d}, [{from} + 48]",
            "movups [{to}], {a}",
            "movups [{to} + 16], {b}",
            "movups [{to} + 32], {c}",
            "movups [{to} + 48], {d}",
            from = in(reg) from,
            to = in(reg) to,
            a = out(xmm_reg) _,
            b = out(xmm_reg) _,
            c = out(xmm_reg) _,
            d = out(xmm_reg) _,
            options(nostack, preserves_flags),
        );
    }
}

/// Copies `len` bytes that another process may be changing.
///
/// # Safety
/// Both ranges are valid, one for reading and one for writing, and do not overlap.
#[cfg(not(target_arch = "x86_64"))]
unsafe fn copy_racing(from: *const u8, to: *mut u8, len: usize) {
    let words = if from.addr().is_multiple_of(8) { len / 8 } else { 0 };
    for index in 0..words {
        // SAFETY: the caller's range, up to its last whole word.
        let word = unsafe { from.cast::<u64>().add(index).read_volatile() };
        // SAFETY: the caller's range; the word need not be aligned.
        unsafe { to.cast::<u64>().add(index).write_unaligned(word) };
    }
    for at in words * 8..len {
        // SAFETY: the rest of the caller's range.
        let byte = unsafe { from.add(at).read_volatile() };
        // SAFETY: the rest of the caller's range.
        unsafe { to.add(at).write(byte) };
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_byte_is_copied_whatever_the_length() {
        let long = long::LONG_BYTES;
        for len in [0, 63, 64, 65, 1000, SHORT_BYTES, long - 1, long, long + 3 * 64 + 5] {
            let from: Vec<u8> = (0..len).map(|at| (at * 7 + at / 251) as u8).collect();
            let mut to = vec![1; len + 1];
            // SAFETY: both have `len` bytes, and one is new.
            unsafe { copy_racing(from.as_ptr(), to.as_mut_ptr(), len) };
            assert!(to[..len] == from && to[len] == 1, "{len} bytes");
        }
    }
}
