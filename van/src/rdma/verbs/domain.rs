//! Memory that a device may touch: protection domains, registered regions, memory windows, exposed buffers.
//!
//! Registering ([`Registrar`]) lets the device use memory for work that this process gives it. A peer gets at memory only
//! through an [`OpenWindow`] or an [`Exposed`], and each owns its memory until the device has taken the peer's access back.

use std::cell::{Cell, RefCell};
use std::collections::HashMap;
use std::ffi::c_int;
use std::fmt;
use std::io;
use std::ptr::NonNull;
use std::rc::{Rc, Weak};
use std::sync::atomic::{AtomicU64, Ordering};

use rdma_sys as ffi;
use rdma_sys::ibv_access_flags as Access;

use super::device::Device;
use super::library::{Library, library};
use crate::error::{Error, Result};
use crate::memory::{Buffer, Registrar, Registration};

/// Keeps apart who may use which memory: queue pairs and regions work together within one domain.
pub struct Domain {
    id: u64,
    protection: Rc<Protection>,
}

/// The domain itself, which lives as long as anything in it.
struct Protection {
    library: &'static Library,
    device: Device,
    domain: NonNull<ffi::ibv_pd>,
    /// The regions registered now, by local key: binding a window names one by address.
    regions: RefCell<HashMap<u32, NonNull<ffi::ibv_mr>>>,
    /// Windows that were given back while their binding might not have been done; see [`Window::new`].
    unsettled: RefCell<Vec<Weak<WindowHandle>>>,
}

impl Domain {
    /// A domain of `device` with nothing in it.
    ///
    /// # Errors
    /// What the system said.
    pub fn new(device: Device) -> io::Result<Rc<Domain>> {
        static NEXT: AtomicU64 = AtomicU64::new(1);
        let library = library()?;
        // SAFETY: a device's context is open as long as the process lives.
        let domain = unsafe { (library.ibv_alloc_pd)(device.context().as_ptr()) };
        let domain = NonNull::new(domain).ok_or_else(io::Error::last_os_error)?;
        let (regions, unsettled) = Default::default();
        let protection = Rc::new(Protection { library, device, domain, regions, unsettled });
        Ok(Rc::new(Domain { id: NEXT.fetch_add(1, Ordering::Relaxed), protection }))
    }

    /// The device it was made on.
    pub fn device(&self) -> Device {
        self.protection.device
    }

    /// For calls that take the domain. Valid as long as `self` is kept.
    pub(super) fn raw(&self) -> NonNull<ffi::ibv_pd> {
        self.protection.domain
    }

    pub(super) fn library(&self) -> &'static Library {
        self.protection.library
    }

    /// The region registered under `key`. Valid as long as the memory that `key` was asked for is kept.
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
        // SAFETY: this runs once. Regions, windows, receive queues and queue pairs hold the domain, so none is left in it.
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
        let access = if writable {
            Access::IBV_ACCESS_LOCAL_WRITE | Access::IBV_ACCESS_MW_BIND
        } else {
            Access(0)
        };
        let region = Region::new(&self.protection, base, len, access)?;
        self.protection.regions.borrow_mut().insert(region.local_key(), region.region);
        Ok(Box::new(region))
    }
}

/// Memory that the device knows, until this is dropped. Whoever made it keeps the memory so long.
struct Region {
    region: NonNull<ffi::ibv_mr>,
    protection: Rc<Protection>, // lives longer than `region`: fields drop after `Drop::drop` has run
}

impl Region {
    fn new(
        protection: &Rc<Protection>,
        base: NonNull<u8>,
        len: usize,
        access: Access,
    ) -> Result<Region> {
        let (domain, base) = (protection.domain.as_ptr(), base.as_ptr().cast());
        // SAFETY: the domain lives. The device may now write the memory, but only for work given to it: what gives work owns
        // the memory meanwhile, as each place where a key is used says. Addresses that are not mapped are an error.
        let region =
            unsafe { (protection.library.ibv_reg_mr)(domain, base, len, access.0 as c_int) };
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
        // SAFETY: the region lives until `drop`, and the key is only written when it is made.
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
        // SAFETY: this runs once. Work and windows in it own a part of its memory, which holds this registration; so none is
        // left, whether given to the device or about to be.
        let code = unsafe { (self.protection.library.ibv_dereg_mr)(self.region.as_ptr()) };
        debug_assert_eq!(code, 0, "ibv_dereg_mr");
    }
}

/// How much memory this process may lock, in words.
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

/// A window of type 2: the device's, until it is given back.
pub(super) struct WindowHandle {
    /// None when the device has it back.
    window: Cell<Option<NonNull<ffi::ibv_mw>>>,
    /// Its number in the device; the upper bits of all of its keys.
    number: u32,
    /// The queue pair whose work opened it, 0 while closed.
    opened_by: Cell<u32>,
    /// The last queue pair that took it on its list.
    listed_by: Cell<u32>,
    protection: Rc<Protection>, // lives longer than `window`: fields drop after `Drop::drop` has run
}

/// Low bits of a key, which the owner chooses anew for each binding; the rest numbers the window.
const KEY_BITS: u32 = 8;

impl WindowHandle {
    /// For binding it; none if it was given back.
    pub(super) fn raw(&self) -> Option<NonNull<ffi::ibv_mw>> {
        self.window.get()
    }

    /// Whether `queue_pair`, one of [`OpenWindow`]s, is to be told now that it lists this window; not if it does already.
    pub(super) fn list(&self, queue_pair: u32) -> bool {
        self.listed_by.replace(queue_pair) != queue_pair
    }

    /// Ends the access of the peer of `queue_pair`, if its work opened it.
    pub(super) fn give_back_if_open(&self, queue_pair: u32) {
        if self.opened_by.get() == queue_pair {
            self.give_back();
        }
    }

    /// Ends all access at once. No effect when it was done before.
    fn give_back(&self) {
        let Some(window) = self.window.take() else { return };
        // SAFETY: a window's context is its domain's, which lives.
        let give_back = unsafe { (*self.protection.device.context().as_ptr()).ops.dealloc_mw };
        let give_back = give_back.expect("a device that gives out windows takes them back");
        // SAFETY: the window came from `alloc_mw` and was not given back: it was still there to take. Work that binds it and
        // is not with the device yet asks `raw` before it goes there; what is there names the window by number.
        let code = unsafe { give_back(window.as_ptr()) };
        debug_assert_eq!(code, 0, "ibv_dealloc_mw");
    }
}

impl Drop for WindowHandle {
    fn drop(&mut self) {
        self.give_back();
    }
}

/// A memory window of type 2 that is closed.
pub struct Window(Rc<WindowHandle>);

impl Window {
    /// A window of the domain's device.
    ///
    /// # Errors
    /// What the system said, [`io::ErrorKind::Unsupported`] where the device has none. [`io::ErrorKind::WouldBlock`] when a
    /// window was revoked before the work that opened it was known to be done: try again after retiring that.
    pub fn new(domain: &Rc<Domain>) -> io::Result<Window> {
        let protection = &domain.protection;
        // The late binding of a window that is no more would open a new one of the same number, over memory that is
        // somebody else's by now. So there is none until all such work is retired.
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
        // SAFETY: the window was just made.
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

    /// The key it will have when it is opened the next time; none if the device has it back.
    pub(super) fn next_key(&self) -> Option<u32> {
        // SAFETY: the window was not given back, and only `OpenWindow::close` writes its key.
        let key = unsafe { (*self.0.raw()?.as_ptr()).rkey };
        Some(self.0.number << KEY_BITS | key.wrapping_add(1) & ((1 << KEY_BITS) - 1))
    }

    /// What becomes of it when work of `queue_pair`, its `sequence`th, opens it over `memory` under `key`.
    pub(super) fn open(
        self,
        memory: Buffer,
        key: u32,
        queue_pair: u32,
        sequence: u64,
    ) -> OpenWindow {
        self.0.opened_by.set(queue_pair);
        let (address, len) = (memory.as_ptr() as u64, memory.len());
        OpenWindow { window: self.0, memory: Some(memory), address, len, key, queue_pair, sequence }
    }
}

impl fmt::Debug for Window {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Window({:#x})", self.0.number)
    }
}

/// A window through which one peer writes memory, which it owns. Dropped: the access ends, and the memory is let go.
pub struct OpenWindow {
    window: Rc<WindowHandle>,
    /// There until it is handed back. Not looked at meanwhile: the peer writes it.
    memory: Option<Buffer>,
    address: u64,
    len: usize,
    key: u32,
    /// Whose work opened it,
    queue_pair: u32,
    /// and which of it.
    sequence: u64,
}

/// Proof that a remote key was taken back by a message to the queue pair that gave it out.
#[derive(Debug)]
pub struct Invalidated {
    pub(super) key: u32,
    pub(super) queue_pair: u32,
    /// Of the work that was pushed after it: it tells of none that is later.
    pub(super) sequence: u64,
}

impl Invalidated {
    /// The key.
    pub fn key(&self) -> u32 {
        self.key
    }
}

impl OpenWindow {
    /// What the peer names it by.
    pub fn remote_key(&self) -> u32 {
        self.key
    }

    /// The address of its first byte, as the peer names it.
    pub fn address(&self) -> u64 {
        self.address
    }

    /// Bytes of its memory.
    pub fn len(&self) -> usize {
        self.len
    }

    /// Whether it has none.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// Ends the peer's access at once, by a system call, and hands the memory back; the window is gone.
    ///
    /// When the peer writes after that, or the window was not open yet, the connection breaks.
    pub fn revoke(mut self) -> Buffer {
        self.end();
        self.memory.take().expect("the memory is there until it is handed back")
    }

    /// Takes window and memory back after the peer's access has ended.
    ///
    /// # Panics
    /// If `proof` is about another key: a bug of the caller, who would write memory together with the peer.
    pub fn close(mut self, proof: Invalidated) -> (Window, Buffer) {
        let proves = proof.key == self.key
            && proof.queue_pair == self.queue_pair
            && proof.sequence > self.sequence;
        assert!(proves, "{proof:?} does not close a window of key {:#x}", self.key);
        if let Some(window) = self.window.raw() {
            // SAFETY: the window was not given back. The device is done with the work that names it: the key that it gave the
            // window was good when the peer took it back. The libraries leave it to the owner to note the key of the last binding.
            unsafe { (*window.as_ptr()).rkey = self.key };
        }
        self.window.opened_by.set(0);
        let memory = self.memory.take().expect("the memory is there until it is handed back");
        (Window(self.window.clone()), memory)
    }

    fn end(&self) {
        self.window.give_back();
        if Rc::strong_count(&self.window) > 1 {
            // The queue pair holds it as well: its work may be under way.
            let protection = &self.window.protection;
            protection.unsettled.borrow_mut().push(Rc::downgrade(&self.window));
        }
    }
}

impl Drop for OpenWindow {
    fn drop(&mut self) {
        // The memory is there unless `close` or `revoke` saw to the end of access.
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

/// Memory that any peer in the domain may write, and read where asked, as long as this lives.
pub struct Exposed {
    region: Region, // gone before the memory is: fields drop from the top
    base: NonNull<u8>,
    len: usize,
    memory: Buffer, // not looked at meanwhile: peers write it
}

impl Exposed {
    /// Registers `memory` of its own, with remote write access, and remote read access if `readable`.
    ///
    /// # Errors
    /// [`Error::Register`].
    pub fn new(domain: &Rc<Domain>, memory: Buffer, readable: bool) -> Result<Exposed> {
        let mut access = Access::IBV_ACCESS_LOCAL_WRITE | Access::IBV_ACCESS_REMOTE_WRITE;
        if readable {
            access |= Access::IBV_ACCESS_REMOTE_READ;
        }
        let mut memory = memory;
        let (base, len) = (NonNull::from(&mut memory[..]).cast::<u8>(), memory.len());
        let region = Region::new(&domain.protection, base, len, access)?;
        Ok(Exposed { region, base, len, memory })
    }

    /// What peers name it by.
    pub fn remote_key(&self) -> u32 {
        self.region.remote_key()
    }

    /// The address of its first byte, as peers name it.
    pub fn address(&self) -> u64 {
        self.base.as_ptr() as u64
    }

    /// Its bytes.
    pub fn len(&self) -> usize {
        self.len
    }

    /// Whether it has none.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// The word at byte `at`, a multiple of 8, as it is at this moment: a peer may be writing it.
    ///
    /// # Panics
    /// If it is not within the memory, or not at a multiple of 8.
    pub fn word(&self, at: usize) -> u64 {
        assert!(
            at.is_multiple_of(8) && at < self.len && self.len - at >= 8,
            "no word at {at} of {} bytes",
            self.len
        );
        // SAFETY: `at` is within the memory, as was just asked.
        let word = unsafe { self.base.add(at) }.cast::<u64>();
        assert!(word.is_aligned(), "the memory starts at a multiple of 8");
        // SAFETY: the word lies within the memory and is aligned, as was just asked; the memory is initialised and this
        // value's own. The device may be writing it, hence volatile: any bits are a number.
        unsafe { word.read_volatile() }
    }

    /// Ends all access and hands the memory back.
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
