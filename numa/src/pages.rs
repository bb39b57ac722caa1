//! Pages taken from the system in one piece: zeroed, aligned, and on the requested node.
//!
//! A wish that cannot be honoured is no error: memory on another node or in smaller pages works as
//! well, only more slowly. [`Pages::shortfalls`] lists such wishes, and each kind is logged once
//! per process. Only missing memory is an error.
//!
//! Pools take arenas from here when they grow; nothing here is on the path of a push.

use std::fmt;
use std::io;
use std::ptr::NonNull;
use std::sync::atomic::{AtomicBool, Ordering};

use crate::ids::{NumaId, PuId};
use crate::sys::{self, Mapping, MemoryFile};

/// Pages start at a multiple of this: the system's small page, or less where that is larger.
pub const PAGE_BYTES: usize = 4096;

/// Pages of at least this length start at a multiple of it, so that the system and devices can map
/// them in pages this large.
pub const HUGE_PAGE_BYTES: usize = 2 << 20;

/// Where pages come from. By default, memory is private to the process, each page is on the node of
/// the thread that first writes it, and the system selects the page size.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct PageSource {
    /// The node they lie on while it has room; `None` for the node of the thread that first writes
    /// them.
    pub node: Option<NumaId>,
    /// Their page size.
    pub huge: HugePages,
    /// Whether another process can map them, by the descriptor that `Pages::file` lends (on Linux).
    pub shareable: bool,
}

/// Page size of a mapping of at least [`HUGE_PAGE_BYTES`].
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum HugePages {
    /// The system's default.
    #[default]
    AsSystem,
    /// Requests transparent huge pages, which the kernel uses where it has them.
    Transparent,
    /// Reserved huge pages (`vm.nr_hugepages`), all of them at once; transparent ones if too few
    /// are left.
    Reserved,
}

/// The system has no memory left.
#[derive(Debug, thiserror::Error)]
#[error("the system gives no {len} bytes of memory")]
pub struct PagesError {
    /// Bytes requested.
    pub len: usize,
    /// The system's reason.
    pub source: io::Error,
}

/// `len` contiguous bytes of memory, zeroed, and unused until they are written. Dropping it returns
/// them.
///
/// It lends an address and no bytes: its users decide who may write them.
pub struct Pages {
    mapping: Mapping,
    file: Option<MemoryFile>,
    /// Whether transparent huge pages are wanted that the kernel creates only on request.
    collapses: bool,
    shortfalls: Vec<String>,
}

impl Pages {
    /// Takes `len` bytes from `source`.
    ///
    /// # Errors
    /// [`PagesError`] if the system has no room for them. The kernel may promise memory it does not
    /// have, and then ends the process that uses it; a [`shareable`](PageSource::shareable) mapping
    /// is promised without any check.
    ///
    /// # Panics
    /// If `len` is 0.
    pub fn new(len: usize, source: &PageSource) -> Result<Pages, PagesError> {
        assert!(len > 0, "a mapping has at least one byte");
        let mut shortfalls = Vec::new();
        let reserved = match source.huge {
            HugePages::Reserved if len >= HUGE_PAGE_BYTES => reserved(len, source, &mut shortfalls),
            HugePages::Reserved => {
                fall_short(&SHORT, &mut shortfalls, || {
                    format!(
                        "{len} bytes do not fill a reserved huge page of 2 MiB, so small ones are used"
                    )
                });
                None
            }
            _ => None,
        };
        let collapses =
            reserved.is_none() && source.shareable && source.huge != HugePages::AsSystem;
        let (mapping, file) = match reserved {
            Some(pages) => pages,
            None => ordinary(len, source, &mut shortfalls)
                .map_err(|error| PagesError { len, source: error })?,
        };
        Ok(Pages { mapping, file, collapses, shortfalls })
    }

    /// Its first byte, aligned to [`PAGE_BYTES`] or [`HUGE_PAGE_BYTES`].
    pub fn base(&self) -> NonNull<u8> {
        self.mapping.base()
    }

    /// Its length in bytes from [`Pages::base`].
    #[expect(clippy::len_without_is_empty, reason = "it never is")]
    pub fn len(&self) -> usize {
        self.mapping.len()
    }

    pub(crate) fn memory_file(&self) -> Option<&MemoryFile> {
        self.file.as_ref()
    }

    /// [`Pages::len`] rounded up to whole pages: the length of the file behind
    /// [shareable](PageSource::shareable) pages.
    pub fn file_bytes(&self) -> usize {
        self.mapping.whole_len()
    }

    /// Combines the pages of each huge page within `len` bytes from `offset`, with their
    /// contents, into real huge pages; returns whether it could.
    ///
    /// It applies to [shareable](PageSource::shareable) memory for which transparent huge pages
    /// were requested: by default, the kernel makes that of small pages, but combines them on
    /// request (Linux 6.1, unless its setting is `deny`). It does nothing to other memory.
    pub fn make_huge(&self, offset: usize, len: usize) -> bool {
        let end = offset.saturating_add(len).min(self.len());
        let start = offset.min(end).next_multiple_of(HUGE_PAGE_BYTES);
        let range = start..end - end % HUGE_PAGE_BYTES;
        self.collapses && !range.is_empty() && self.mapping.collapse(range).is_ok()
    }

    /// A line for each wish that could not be honoured.
    pub fn shortfalls(&self) -> &[String] {
        &self.shortfalls
    }
}

impl fmt::Debug for Pages {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let shared = if self.file.is_some() { ", shareable" } else { "" };
        write!(f, "Pages({} bytes{shared})", self.len())
    }
}

/// The node of each page that `bytes` touches, in order; `None` for a page that was never used.
///
/// # Errors
/// If the system does not tell: a container may forbid `move_pages`.
pub fn nodes_of(bytes: &[u8]) -> io::Result<Vec<Option<NumaId>>> {
    sys::nodes_of(bytes)
}

/// Makes memory that the calling thread is the first to use come from `node`, while it has any
/// left; `None` restores the default, the node that the thread runs on. Does not affect pages bound
/// to another node.
///
/// # Errors
/// If the system refuses, or there is no such node.
pub fn prefer_node(node: Option<NumaId>) -> io::Result<()> {
    sys::prefer_node_here(node)
}

/// Makes the allocator return blocks of 1 MiB or more to the system when they are freed. By
/// default, glibc's keeps some tens of MiB once it has freed one of 32 MiB or less. Applies to the
/// process from now on; other allocators are unaffected.
pub fn return_freed_blocks() {
    sys::return_freed_blocks();
}

/// The processing unit that the calling thread is running on.
///
/// # Errors
/// If the system does not tell.
pub fn current_pu() -> io::Result<PuId> {
    sys::current_pu()
}

/// CPU time of the calling thread in nanoseconds; 0 if the system does not tell.
pub fn thread_cpu_ns() -> u64 {
    sys::thread_cpu_ns()
}

type Mapped = (Mapping, Option<MemoryFile>);

/// Takes reserved huge pages; `None`, and a shortfall, if there are too few.
fn reserved(len: usize, source: &PageSource, shortfalls: &mut Vec<String>) -> Option<Mapped> {
    let take = || -> io::Result<Mapped> {
        let file = source.shareable.then(|| MemoryFile::new(len, true)).transpose()?;
        let mapping = Mapping::reserved_huge(len, file.as_ref())?;
        Ok((mapping, file))
    };
    let taken = take().and_then(|mapped| {
        bind(&mapped.0, source, shortfalls);
        // Populated now, because a page that is promised and missing later (another node's, or
        // beyond a control group's limit) would end the process.
        mapped.0.populate()?;
        Ok(mapped)
    });
    taken.inspect_err(|error| fall_short(&RESERVED, shortfalls, || {
        format!(
            "no {} huge pages of 2 MiB are left ({error}), so transparent ones are asked for; set some aside: sysctl vm.nr_hugepages=N",
            len.div_ceil(HUGE_PAGE_BYTES)
        )
    })).ok()
}

fn ordinary(len: usize, source: &PageSource, shortfalls: &mut Vec<String>) -> io::Result<Mapped> {
    let file = source.shareable.then(|| MemoryFile::new(len, false)).transpose()?;
    let is_large = len >= HUGE_PAGE_BYTES;
    let align = if is_large { HUGE_PAGE_BYTES } else { PAGE_BYTES };
    let mapping = Mapping::new(len, align, file.as_ref())?;
    bind(&mapping, source, shortfalls);
    if is_large
        && source.huge != HugePages::AsSystem
        && let Err(error) = mapping.advise_huge()
    {
        fall_short(&TRANSPARENT, shortfalls, || {
            format!("the system has no transparent huge pages ({error}), so small ones are used")
        });
    }
    Ok((mapping, file))
}

fn bind(mapping: &Mapping, source: &PageSource, shortfalls: &mut Vec<String>) {
    if let Some(node) = source.node
        && let Err(error) = mapping.prefer_node(node)
    {
        fall_short(&NODE, shortfalls, || {
            format!(
                "memory can't be bound to NUMA node {node} here ({error}), so it lies where it is first written; \
                 a container needs CAP_SYS_NICE for it"
            )
        });
    }
}

/// Records a wish that could not be honoured, and logs the first of its kind.
fn fall_short(logged: &AtomicBool, shortfalls: &mut Vec<String>, line: impl FnOnce() -> String) {
    let line = line();
    if !logged.swap(true, Ordering::Relaxed) {
        tracing::warn!("memory: {line}");
    }
    shortfalls.push(line);
}

static RESERVED: AtomicBool = AtomicBool::new(false);
static SHORT: AtomicBool = AtomicBool::new(false);
static TRANSPARENT: AtomicBool = AtomicBool::new(false);
static NODE: AtomicBool = AtomicBool::new(false);

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, reason = "tests")]
    use super::*;

    #[test]
    #[cfg_attr(any(miri, not(target_os = "linux")), ignore = "the system doesn't tell")]
    fn time_on_a_core_is_that_of_this_moment() {
        let mut times: Vec<u64> = (0..100).map(|_| thread_cpu_ns()).collect();
        assert!(times.is_sorted());
        times.dedup();
        assert!(times.len() > 50, "{} different times of 100, not one a tick", times.len());
    }

    #[test]
    fn pages_begin_where_they_should() {
        for shareable in [false, true] {
            for (len, align) in [
                (1, PAGE_BYTES),
                (PAGE_BYTES + 1, PAGE_BYTES),
                (HUGE_PAGE_BYTES - 1, PAGE_BYTES),
                (HUGE_PAGE_BYTES, HUGE_PAGE_BYTES),
                (5 << 20, HUGE_PAGE_BYTES),
            ] {
                let source = PageSource { shareable, ..PageSource::default() };
                let Some(pages) = taken(len, &source) else { continue };
                assert_eq!((pages.len(), pages.base().addr().get() % align), (len, 0), "{len}");
                assert_eq!(pages.memory_file().is_some(), shareable);
                assert!(pages.shortfalls().is_empty(), "{:?}", pages.shortfalls());
            }
        }
    }

    /// `None`, and a message, if the system shares no memory by a descriptor.
    fn taken(len: usize, source: &PageSource) -> Option<Pages> {
        match Pages::new(len, source) {
            Ok(pages) => Some(pages),
            Err(error) if source.shareable && error.source.kind() == io::ErrorKind::Unsupported => {
                eprintln!("SKIPPED: {error}: {}", error.source);
                None
            }
            Err(error) => panic!("{error}: {}", error.source),
        }
    }

    #[test]
    fn what_the_system_has_not_got_is_an_error() {
        for len in [usize::MAX, usize::MAX / 2, 1 << 46] {
            let error = Pages::new(len, &PageSource::default()).unwrap_err();
            assert_eq!(error.len, len);
            assert!(error.to_string().contains(&len.to_string()), "{error}");
        }
    }

    #[test]
    fn a_node_that_is_not_there_is_a_shortfall() {
        for node in [63, 5000, usize::MAX] {
            let source = PageSource { node: Some(NumaId(node)), ..PageSource::default() };
            let pages = Pages::new(1 << 20, &source).unwrap();
            let [line] = pages.shortfalls() else { panic!("{pages:?}") };
            assert!(line.contains(&format!("node {node} ")), "{line}");
        }
    }

    #[test]
    fn huge_pages_are_taken_where_they_are() {
        for huge in [HugePages::Transparent, HugePages::Reserved] {
            for shareable in [false, true] {
                let source = PageSource { huge, shareable, ..PageSource::default() };
                let Some(pages) = taken(3 << 20, &source) else { continue };
                assert_eq!(
                    (pages.len(), pages.base().addr().get() % HUGE_PAGE_BYTES),
                    (3 << 20, 0)
                );
                let is_huge = pages.make_huge(4096, 3 << 20);
                assert!(!is_huge, "the second one does not end here");
                let is_huge = pages.make_huge(0, 3 << 20);
                assert!(shareable || !is_huge);
                eprintln!("{source:?}: {:?}, huge: {is_huge}", pages.shortfalls());
                let small = taken(1 << 20, &source).unwrap();
                let is_short = huge == HugePages::Reserved;
                assert_eq!(small.shortfalls().len(), usize::from(is_short), "{small:?}");
            }
        }
    }

    #[test]
    fn memory_says_where_it_lies_or_why_not() {
        let mut bytes = vec![0_u8; 8 * PAGE_BYTES];
        bytes.fill(1);
        match nodes_of(&bytes) {
            Ok(nodes) => {
                assert!((8..=9).contains(&nodes.len()), "{nodes:?}");
                assert!(nodes.iter().all(Option::is_some), "{nodes:?}");
            }
            Err(error) => eprintln!("SKIPPED: the system tells no nodes of pages: {error}"),
        }
        assert!(nodes_of(&[]).is_err() || nodes_of(&[]).unwrap().is_empty());
    }

    #[test]
    fn a_thread_prefers_a_node_that_is_there() {
        assert!(prefer_node(Some(NumaId(5000))).is_err());
        if let Err(error) = prefer_node(Some(NumaId(0))) {
            eprintln!("SKIPPED: the system lets no thread choose its memory: {error}");
            return;
        }
        prefer_node(None).unwrap();
        assert!(current_pu().is_ok());
    }
}
