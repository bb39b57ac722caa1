//! Which devices know a piece of memory, and under which key.
//!
//! A device reads and writes only memory that was registered with it. Registering is slow (the system pins every page), so it
//! is done once for a whole region, an arena of a pool or memory that a user brought, and lasts as long as the region: what is
//! sent again from the same memory costs a look-up. The device itself is behind [`Registrar`]; nothing here knows any.

use std::cell::OnceCell;
use std::ptr::NonNull;

use crate::error::Result;

/// Makes memory known to a device. One per device and protection domain.
pub trait Registrar {
    /// Its number, unique within the process and never given out again.
    fn id(&self) -> u64;

    /// Registers `[base, base + len)`, never empty; `writable` unless it is read-only memory.
    ///
    /// Whoever calls keeps the memory in place until the result is dropped. The registration may outlive the registrar.
    ///
    /// # Errors
    /// What the system said, for example that no more pages may be pinned. Nothing is registered then.
    fn register(
        &self,
        base: NonNull<u8>,
        len: usize,
        writable: bool,
    ) -> Result<Box<dyn Registration>>;
}

/// Memory that a device knows. Dropped: deregistered.
pub trait Registration {
    /// What names the memory in work given to the device. The same as long as this lives.
    fn local_key(&self) -> u32;
}

/// The registrations of one region, at most one a registrar; a list, as there is hardly ever more than one.
#[derive(Default)]
pub(super) struct Registrations(OnceCell<Box<Entry>>);

struct Entry {
    registrar: u64,
    key: u32,
    _registration: Box<dyn Registration>,
    next: Registrations,
}

impl Registrations {
    /// The key under which `registrar` knows the `len` bytes from `base`, always those of the same region; registers them if
    /// it does not know them yet. Empty memory, of which a device reads nothing, is not registered and has the key 0.
    pub(super) fn local_key(
        &self,
        registrar: &dyn Registrar,
        (base, len): (NonNull<u8>, usize),
        writable: bool,
    ) -> Result<u32> {
        let (id, mut list) = (registrar.id(), self);
        while let Some(entry) = list.0.get() {
            if entry.registrar == id {
                return Ok(entry.key);
            }
            list = &entry.next;
        }
        if len == 0 {
            return Ok(0);
        }
        let registration = registrar.register(base, len, writable)?;
        let key = registration.local_key();
        let next = Registrations::default();
        let entry = Entry { registrar: id, key, _registration: registration, next };
        assert!(list.0.set(Box::new(entry)).is_ok(), "a registrar asks for no keys");
        Ok(key)
    }
}
