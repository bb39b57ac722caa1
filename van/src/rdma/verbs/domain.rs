//! Memory that a device may access: protection domains, registered regions, memory windows, exposed
//! buffers.
//!
//! A registration ([`Registrar`]) lets the device use memory for this process's work requests. A
//! peer reaches memory only through an [`OpenWindow`] or an [`Exposed`]; each owns its memory until
//! the device has ended the peer's access.

use std::cell::{Cell, RefCell};
use std::collections::HashMap;
use std::ffi::c_int;
use std::fmt;
use std::io;
use std::ptr::NonNull;
use std::rc::{Rc, Weak};
use std::sync::atomic::{AtomicU64, Ordering};

use super::bindings as ffi;
use super::bindings::ibv_access_flags as access;
use super::device::Device;
use super::library::{Library, library};
use crate::error::{Error, Result};
use crate::memory::{Buffer, Registrar, Registration};

/// A protection domain: queue pairs can use only regions of their own domain.
pub struct Domain {
    id: u64,
    protection: Rc<Protection>,
}

/// The domain itself, which lives as long as anything in it.
struct Protection {
    library: &'static Library,
    device: Device,
    domain: NonNull<ffi::ibv_pd>,
    /// Registered regions by local key; binding a window needs a region's address.
    regions: RefCell<HashMap<u32, NonNull<ffi::ibv_mr>>>,
    /// Windows that were deallocated while their binding might still be pending; see
    /// [`Window::new`].
    unsettled: RefCell<Vec<Weak<WindowHandle>>>,
}

impl Domain {
    /// Creates an empty domain on `device`.
    ///
    /// # Errors
    /// The system's.
    pub fn new(device: Device) -> io::Result<Rc<Domain>> {
        static NEXT: AtomicU64 = AtomicU64::new(1);
        let library = library()?;
        // SAFETY: a device's context stays open while the process lives.
        let domain = unsafe { (library.ibv_alloc_pd)(device.context().as_ptr()) };
        let domain = NonNull::new(domain).ok_or_else(io::Error::last_os_error)?;
        let protection = Rc::new(Protection {
            library,
            device,
            domain,
            regions: RefCell::default(),
            unsettled: RefCell::default(),
        });
        Ok(Rc::new(Domain { id: NEXT.fetch_add(1, Ordering::Relaxed), protection }))
    }

    /// The device it was created on.
    pub fn device(&self) -> Device {
        self.protection.device
    }

    /// For calls that take the domain. Valid while `self` is kept.
    pub(super) fn raw(&self) -> NonNull<ffi::ibv_pd> {
        self.protection.domain
    }

    pub(super) fn library(&self) -> &'static Library {
        self.protection.library
    }

    /// The region registered under `key`. Valid while the memory of `key` is kept.
    pub(super) fn region(&self, key: u32) -> Option<NonNull<ffi::ibv_mr>> {
        self.protection.regions.borrow().get(&key).copied()
    }
}

impl fmt::Debug for Domain {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Domain({} on {})", self.id, self.device().name())
    }
}

impl Drop for Protection {
    fn drop(&mut self) {
        // SAFETY: this runs once. Regions, windows, receive queues and queue pairs hold the domain,
        // so none is left in it.
        let code = unsafe { (self.library.ibv_dealloc_pd)(self.domain.as_ptr()) };
        debug_assert_eq!(code, 0, "ibv_dealloc_pd");
    }
}

impl Registrar for Domain {
    #[inline]
    fn id(&self) -> u64 {
        self.id
    }

    fn register(
        &self,
        base: NonNull<u8>,
        len: usize,
        writable: bool,
    ) -> Result<Box<dyn Registration>> {
        let access =
            if writable { access::IBV_ACCESS_LOCAL_WRITE | access::IBV_ACCESS_MW_BIND } else { 0 };
        let region = Region::new(&self.protection, base, len, access)?;
        self.protection.regions.borrow_mut().insert(region.local_key(), region.region);
        Ok(Box::new(region))
    }
}

/// Memory registered with the device until this is dropped. Its creator keeps the memory that long.
struct Region {
    region: NonNull<ffi::ibv_mr>,
    protection: Rc<Protection>, // outlives `region`: fields drop after `Drop::drop`
}

impl Region {
    fn new(
        protection: &Rc<Protection>,
        base: NonNull<u8>,
        len: usize,
        access: access::Type,
    ) -> Result<Region> {
        let domain = protection.domain.as_ptr();
        let base = base.as_ptr().cast();
        // SAFETY: the domain lives. The device may now write the memory, but only for work
        // requests, and whoever posts one owns the memory meanwhile, as each use of a key argues.
        // Unmapped addresses are an error.
        let region = unsafe { (protection.library.ibv_reg_mr)(domain, base, len, access as c_int) };
        match NonNull::new(region) {
            Some(region) => Ok(Region { region, protection: protection.clone() }),
            None => {
                let source = io::Error::last_os_error();
                let device = protection.device.name();
                Err(Error::Register { len, device, locked: locked_limit(), source })
            }
        }
    }

    fn remote_key(&self) -> u32 {
        // SAFETY: the region lives until `drop`, and only its creation writes the key.
        unsafe { (*self.region.as_ptr()).rkey }
    }
}

impl Registration for Region {
    fn local_key(&self) -> u32 {
        // SAFETY: as in `remote_key`.
        unsafe { (*self.region.as_ptr()).lkey }
    }
}

impl Drop for Region {
    fn drop(&mut self) {
        let key = self.local_key();
        let mut regions = self.protection.regions.borrow_mut();
        if regions.get(&key) == Some(&self.region) {
            regions.remove(&key);
        }
        // SAFETY: this runs once. Work requests and windows in it own a part of its memory, which
        // holds this registration; so none is left, neither with the device nor about to be posted.
        let code = unsafe { (self.protection.library.ibv_dereg_mr)(self.region.as_ptr()) };
        debug_assert_eq!(code, 0, "ibv_dereg_mr");
    }
}

/// How much memory this process may lock, as text.
fn locked_limit() -> String {
    let mut limit = libc::rlimit { rlim_cur: 0, rlim_max: 0 };
    // SAFETY: `limit` has room for what is written.
    let code = unsafe { libc::getrlimit(libc::RLIMIT_MEMLOCK, &raw mut limit) };
    match (code, limit.rlim_cur) {
        (0, libc::RLIM_INFINITY) => "no limit".to_owned(),
        (0, bytes) => format!("{bytes} bytes in all"),
        _ => "an unknown limit".to_owned(),
    }
}

/// A window of type 2, allocated until it is given back.
pub(super) struct WindowHandle {
    /// `None` once the device has it back.
    window: Cell<Option<NonNull<ffi::ibv_mw>>>,
    /// Its number in the device: the upper bits of all its keys.
    number: u32,
    /// The queue pair whose work opened it, 0 while closed.
    opened_by: Cell<u32>,
    /// The last queue pair that listed it.
    listed_by: Cell<u32>,
    protection: Rc<Protection>, // outlives `window`: fields drop after `Drop::drop`
}

/// Low bits of a key, which the owner changes for each binding; the others are the window's number.
const KEY_BITS: u32 = 8;

impl WindowHandle {
    /// For binding it; `None` if it was given back.
    pub(super) fn raw(&self) -> Option<NonNull<ffi::ibv_mw>> {
        self.window.get()
    }

    /// Whether `queue_pair` has to add it to its list of windows; false if it is there already.
    pub(super) fn list(&self, queue_pair: u32) -> bool {
        self.listed_by.replace(queue_pair) != queue_pair
    }

    /// Ends the access of the peer of `queue_pair`, if that queue pair's work opened it.
    pub(super) fn give_back_if_open(&self, queue_pair: u32) {
        if self.opened_by.get() == queue_pair {
            self.give_back();
        }
    }

    /// Ends all access at once. Does nothing the second time.
    fn give_back(&self) {
        let Some(window) = self.window.take() else { return };
        // SAFETY: a window's context is its domain's, which lives.
        let give_back = unsafe { (*self.protection.device.context().as_ptr()).ops.dealloc_mw };
        let give_back = give_back.expect("a device that gives out windows takes them back");
        // SAFETY: the window came from `alloc_mw` and was not given back: it was still there to
        // take. A work request that binds it and is not posted yet calls `raw` before that; a
        // posted one names the window by number.
        let code = unsafe { give_back(window.as_ptr()) };
        debug_assert_eq!(code, 0, "ibv_dealloc_mw");
    }
}

impl Drop for WindowHandle {
    fn drop(&mut self) {
        self.give_back();
    }
}

/// A closed memory window of type 2.
pub struct Window(Rc<WindowHandle>);

impl Window {
    /// Allocates a window of the domain's device.
    ///
    /// # Errors
    /// The system's; [`io::ErrorKind::Unsupported`] if the device has no windows;
    /// [`io::ErrorKind::WouldBlock`] if a window was revoked before the work that opened it was
    /// known to be done: retry once that work is retired.
    pub fn new(domain: &Rc<Domain>) -> io::Result<Window> {
        let protection = &domain.protection;
        // The late binding of a deallocated window could open a new window of the same number, over
        // memory that belongs to somebody else by now. So no window is allocated until all such
        // work is retired.
        let mut unsettled = protection.unsettled.borrow_mut();
        unsettled.retain(|handle| handle.strong_count() > 0);
        if !unsettled.is_empty() {
            return Err(io::Error::new(
                io::ErrorKind::WouldBlock,
                "a revoked window may still be opening; retire that work first",
            ));
        }
        // SAFETY: the device's context is open.
        let allocate = unsafe { (*protection.device.context().as_ptr()).ops.alloc_mw };
        let Some(allocate) = allocate else { return Err(io::ErrorKind::Unsupported.into()) };
        // SAFETY: the domain lives, and its context has this function.
        let window =
            unsafe { allocate(protection.domain.as_ptr(), ffi::ibv_mw_type::IBV_MW_TYPE_2) };
        let window = NonNull::new(window).ok_or_else(io::Error::last_os_error)?;
        // SAFETY: the window was just created.
        let key = unsafe { (*window.as_ptr()).rkey };
        Ok(Window(Rc::new(WindowHandle {
            window: Cell::new(Some(window)),
            number: key >> KEY_BITS,
            opened_by: Cell::new(0),
            listed_by: Cell::new(0),
            protection: protection.clone(),
        })))
    }

    pub(super) fn handle(&self) -> &Rc<WindowHandle> {
        &self.0
    }

    pub(super) fn is_in(&self, domain: &Domain) -> bool {
        Rc::ptr_eq(&self.0.protection, &domain.protection)
    }

    /// Its key when it is next opened; `None` if the device has it back.
    pub(super) fn next_key(&self) -> Option<u32> {
        // SAFETY: the window was not given back, and only `OpenWindow::close` writes its key.
        let key = unsafe { (*self.0.raw()?.as_ptr()).rkey };
        Some(self.0.number << KEY_BITS | key.wrapping_add(1) & ((1 << KEY_BITS) - 1))
    }

    /// Marks it as opened over `memory` under `key` by the `sequence`th request of `queue_pair`.
    pub(super) fn open(
        self,
        memory: Buffer,
        key: u32,
        queue_pair: u32,
        sequence: u64,
    ) -> OpenWindow {
        self.0.opened_by.set(queue_pair);
        let address = memory.as_ptr() as u64;
        let len = memory.len();
        OpenWindow { window: self.0, memory: Some(memory), address, len, key, queue_pair, sequence }
    }
}

impl fmt::Debug for Window {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Window({:#x})", self.0.number)
    }
}

/// A window through which one peer writes the memory it owns. Dropping it ends the access and
/// releases the memory.
pub struct OpenWindow {
    window: Rc<WindowHandle>,
    /// `Some` until it is handed back. Not read meanwhile, because the peer writes it.
    memory: Option<Buffer>,
    address: u64,
    len: usize,
    key: u32,
    /// The queue pair whose work opened it.
    queue_pair: u32,
    /// That work's sequence number.
    sequence: u64,
}

/// Proof that a message to the queue pair that opened a window invalidated its remote key.
#[derive(Debug)]
pub struct Invalidated {
    pub(super) key: u32,
    pub(super) queue_pair: u32,
    /// Number of work requests pushed before the proof: it proves nothing about later ones.
    pub(super) sequence: u64,
}

impl Invalidated {
    /// The key.
    pub fn key(&self) -> u32 {
        self.key
    }
}

impl OpenWindow {
    /// The key that the peer uses.
    pub fn remote_key(&self) -> u32 {
        self.key
    }

    /// The address of its first byte, as the peer uses it.
    pub fn address(&self) -> u64 {
        self.address
    }

    /// Length of its memory in bytes.
    pub fn len(&self) -> usize {
        self.len
    }

    /// Whether its memory is empty.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// Ends the peer's access at once, by a system call, and returns the memory; the window is
    /// gone.
    ///
    /// If the peer writes afterwards, or the window was not open yet, the connection breaks.
    pub fn revoke(mut self) -> Buffer {
        self.end();
        self.memory.take().expect("the memory is there until it is handed back")
    }

    /// Returns window and memory after the peer's access has ended.
    ///
    /// # Panics
    /// If `proof` is about another key: a bug of the caller, who would write memory together with
    /// the peer.
    pub fn close(mut self, proof: Invalidated) -> (Window, Buffer) {
        let proves = proof.key == self.key
            && proof.queue_pair == self.queue_pair
            && proof.sequence > self.sequence;
        assert!(proves, "{proof:?} does not close a window of key {:#x}", self.key);
        if let Some(window) = self.window.raw() {
            // SAFETY: the window was not given back. The device is done with the work that names
            // it, because the window's key was valid when the peer invalidated it. The library
            // requires the owner to record the key of the last binding.
            unsafe { (*window.as_ptr()).rkey = self.key };
        }
        self.window.opened_by.set(0);
        let memory = self.memory.take().expect("the memory is there until it is handed back");
        (Window(self.window.clone()), memory)
    }

    fn end(&self) {
        self.window.give_back();
        if Rc::strong_count(&self.window) > 1 {
            // The queue pair holds it as well: its work may be pending.
            let protection = &self.window.protection;
            protection.unsettled.borrow_mut().push(Rc::downgrade(&self.window));
        }
    }
}

impl Drop for OpenWindow {
    fn drop(&mut self) {
        // The memory is there unless `close` or `revoke` has ended the access.
        if self.memory.is_some() {
            self.end();
        }
    }
}

impl fmt::Debug for OpenWindow {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "OpenWindow({} bytes, key {:#x})", self.len(), self.key)
    }
}

/// Memory that any peer in the domain may write, and read if permitted, while this lives.
pub struct Exposed {
    region: Region, // dropped before the memory: fields drop in order
    base: NonNull<u8>,
    len: usize,
    memory: Buffer, // not read meanwhile: peers write it
}

impl Exposed {
    /// Registers `memory` with remote write access, and with remote read access if `readable`.
    ///
    /// # Errors
    /// [`Error::Register`].
    pub fn new(domain: &Rc<Domain>, memory: Buffer, readable: bool) -> Result<Exposed> {
        let mut access = access::IBV_ACCESS_LOCAL_WRITE | access::IBV_ACCESS_REMOTE_WRITE;
        if readable {
            access |= access::IBV_ACCESS_REMOTE_READ;
        }
        let mut memory = memory;
        let base = NonNull::from(&mut memory[..]).cast::<u8>();
        let len = memory.len();
        let region = Region::new(&domain.protection, base, len, access)?;
        Ok(Exposed { region, base, len, memory })
    }

    /// The key that peers use.
    pub fn remote_key(&self) -> u32 {
        self.region.remote_key()
    }

    /// The address of its first byte, as peers use it.
    pub fn address(&self) -> u64 {
        self.base.as_ptr() as u64
    }

    /// Its length in bytes.
    pub fn len(&self) -> usize {
        self.len
    }

    /// Whether it is empty.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// The current word at byte `at`, a multiple of 8. A peer may be writing it.
    ///
    /// # Panics
    /// If it lies outside the memory, or `at` is not a multiple of 8.
    pub fn word(&self, at: usize) -> u64 {
        assert!(
            at.is_multiple_of(8) && at < self.len && self.len - at >= 8,
            "no word at {at} of {} bytes",
            self.len
        );
        // SAFETY: `at` is within the memory, as just checked.
        let word = unsafe { self.base.add(at) }.cast::<u64>();
        assert!(word.is_aligned(), "the memory starts at a multiple of 8");
        // SAFETY: the word lies within the memory and is aligned, as just checked; the memory is
        // initialised and owned by `self`. The device may be writing it, hence volatile: any bits
        // are a valid number.
        unsafe { word.read_volatile() }
    }

    /// Ends all access and returns the memory.
    pub fn close(self) -> Buffer {
        drop(self.region);
        self.memory
    }
}

impl fmt::Debug for Exposed {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Exposed({} bytes, key {:#x})", self.len(), self.remote_key())
    }
}
