//! The devices that have registered a piece of memory, and their keys for it.
//!
//! A device reads and writes only memory registered with it. Registration is slow (the system pins
//! every page), so it is done once for a whole region, an arena of a pool or a user's memory, and
//! lasts as long as the region: another send from the same memory costs a look-up. [`Registrar`]
//! stands for the device.

use std::cell::OnceCell;
use std::ptr::NonNull;

use crate::error::Result;

/// Registers memory with a device. One per device and protection domain.
pub trait Registrar {
    /// Its number, unique within the process and never reused.
    fn id(&self) -> u64;

    /// Registers `[base, base + len)`, never empty; `writable` is false for read-only memory.
    ///
    /// The caller keeps the memory in place until the result is dropped. The registration may
    /// outlive the registrar.
    ///
    /// # Errors
    /// The system's, for example that no more pages may be pinned. Nothing is registered then.
    fn register(
        &self,
        base: NonNull<u8>,
        len: usize,
        writable: bool,
    ) -> Result<Box<dyn Registration>>;
}

/// Registered memory. Dropping it deregisters.
pub trait Registration {
    /// The key that names the memory in work requests; constant while this lives.
    fn local_key(&self) -> u32;
}

/// The registrations of one region, at most one per registrar. A linked list, because there is
/// rarely more than one.
#[derive(Default)]
pub(super) struct Registrations(OnceCell<Box<Entry>>);

struct Entry {
    registrar: u64,
    key: u32,
    _registration: Box<dyn Registration>,
    next: Registrations,
}

impl Registrations {
    /// The key under which `registrar` knows the `len` bytes from `base`, which are the same for
    /// every call. Registers them if necessary. Empty memory is not registered and has the key 0.
    #[inline]
    pub(super) fn local_key(
        &self,
        registrar: &dyn Registrar,
        base: NonNull<u8>,
        len: usize,
        writable: bool,
    ) -> Result<u32> {
        match self.0.get() {
            Some(entry) if entry.registrar == registrar.id() => Ok(entry.key),
            _ => self.find_or_register(registrar, base, len, writable),
        }
    }

    #[cold]
    fn find_or_register(
        &self,
        registrar: &dyn Registrar,
        base: NonNull<u8>,
        len: usize,
        writable: bool,
    ) -> Result<u32> {
        let id = registrar.id();
        let mut list = self;
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

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, reason = "tests")]
    use std::cell::{Cell, RefCell};
    use std::rc::Rc;
    use std::sync::Arc;
    use std::sync::atomic::{AtomicBool, Ordering};

    use bytes::Bytes;

    use super::*;
    use crate::error::Error;
    use crate::memory::{Buffer, Pool, SLOT_ALIGN, Shared};

    const MIB: usize = 1 << 20;

    /// One call to the fake device.
    #[derive(Debug, Clone, Copy, PartialEq)]
    enum Told {
        Register { key: u32, base: usize, len: usize, writable: bool },
        Deregister { key: u32 },
    }
    use Told::{Deregister, Register};

    /// A device that records its calls.
    struct Fake {
        id: u64,
        told: Rc<RefCell<Vec<Told>>>,
        refuses: Cell<bool>,
        /// Whether the memory registered last is gone; it must not be while it is registered.
        gone: Arc<AtomicBool>,
    }

    struct Known {
        key: u32,
        told: Rc<RefCell<Vec<Told>>>,
        gone: Arc<AtomicBool>,
    }

    impl Fake {
        fn new(id: u64) -> Rc<Fake> {
            let (told, refuses, gone) = Default::default();
            Rc::new(Fake { id, told, refuses, gone })
        }

        /// Takes the recorded calls.
        fn told(&self) -> Vec<Told> {
            self.told.take()
        }
    }

    impl Registrar for Fake {
        fn id(&self) -> u64 {
            self.id
        }

        fn register(
            &self,
            base: NonNull<u8>,
            len: usize,
            writable: bool,
        ) -> Result<Box<dyn Registration>> {
            if self.refuses.get() {
                return Err(Error::Os {
                    call: "register",
                    source: std::io::ErrorKind::OutOfMemory.into(),
                });
            }
            thread_local!(static NEXT: Cell<u32> = const { Cell::new(1) });
            let key = NEXT.replace(NEXT.get() + 1);
            self.told.borrow_mut().push(Register { key, base: base.addr().get(), len, writable });
            Ok(Box::new(Known { key, told: self.told.clone(), gone: self.gone.clone() }))
        }
    }

    impl Registration for Known {
        fn local_key(&self) -> u32 {
            self.key
        }
    }

    impl Drop for Known {
        fn drop(&mut self) {
            assert!(!self.gone.load(Ordering::Relaxed), "memory went before its registration");
            self.told.borrow_mut().push(Deregister { key: self.key });
        }
    }

    #[test]
    fn an_arena_is_registered_as_it_is_made_and_once() {
        let device = Fake::new(1);
        let pool = Pool::registered(64 * MIB, device.clone());
        assert_eq!(device.told(), []);
        let small = pool.allocate(100).unwrap();
        let told = device.told();
        let [Register { key, base, len: MIB, writable: true }] = told[..] else {
            panic!("{told:?}")
        };
        assert_eq!(base % SLOT_ALIGN, 0);
        let other = pool.allocate(5000).unwrap().share();
        for slot in [small.local_key(&*device), other.local_key(&*device)] {
            assert_eq!(slot.unwrap(), key);
        }
        assert!(
            [small.as_ptr(), other.as_ptr()].iter().all(|p| (base..base + MIB).contains(&p.addr()))
        );
        assert_eq!(device.told(), []);

        let large = pool.allocate(MIB).unwrap();
        let told = device.told();
        let [Register { key: second, len: MIB, writable: true, .. }] = told[..] else {
            panic!("{told:?}")
        };
        assert_eq!(large.local_key(&*device).unwrap(), second);
        drop((large, small, pool));
        assert_eq!(device.told(), [Deregister { key: second }], "a part of the first is still out");
        drop(other);
        assert_eq!(device.told(), [Deregister { key }]);
    }

    #[test]
    #[cfg_attr(miri, ignore = "thousands of slots take Miri minutes")]
    fn a_pool_has_few_regions() {
        let device = Fake::new(1);
        let pool = Pool::registered(1 << 30, device.clone());
        let held: Vec<_> = (0..64 * MIB / 8192).map(|_| pool.allocate(8192).unwrap()).collect();
        assert_eq!((device.told().len(), pool.bytes_reserved()), (7, 64 * MIB));
        drop(held);
    }

    #[test]
    fn a_vector_is_registered_on_first_use_and_until_its_last_part_goes() {
        let device = Fake::new(1);
        let mut buffer = Buffer::adopt(vec![1u64; 100]);
        let base = buffer.as_ptr().addr();
        let tail = buffer.split_off(80).share();
        let key = tail.local_key(&*device).unwrap();
        assert_eq!(
            device.told(),
            [Register { key, base, len: 800, writable: true }],
            "the whole of it"
        );
        assert_eq!(buffer.local_key(&*device).unwrap(), key);
        assert_eq!(tail.slice(3..).local_key(&*device).unwrap(), key);
        drop(tail);
        let buffer = buffer.share().reclaim().unwrap();
        assert_eq!(buffer.local_key(&*device).unwrap(), key);
        assert_eq!(device.told(), []);
        drop(buffer);
        assert_eq!(device.told(), [Deregister { key }]);
    }

    /// Records that it was dropped.
    struct Owner(Vec<u8>, Arc<AtomicBool>);

    impl AsRef<[u8]> for Owner {
        fn as_ref(&self) -> &[u8] {
            &self.0
        }
    }

    impl Drop for Owner {
        fn drop(&mut self) {
            self.1.store(true, Ordering::Relaxed);
        }
    }

    #[test]
    fn bytes_are_registered_for_reading_and_let_go_after_their_registration() {
        let device = Fake::new(1);
        let bytes = Bytes::from_owner(Owner(vec![0; 50], device.gone.clone()));
        let base = bytes[7..].as_ptr().addr();
        let shared = Shared::from(bytes.slice(7..));
        drop(bytes);
        let key = shared.slice(40..).local_key(&*device).unwrap();
        assert_eq!(shared.local_key(&*device).unwrap(), key);
        assert_eq!(device.told(), [Register { key, base, len: 43, writable: false }]);
        drop(shared);
        assert_eq!(device.told(), [Deregister { key }]);
        assert!(device.gone.load(Ordering::Relaxed));
    }

    #[test]
    fn empty_memory_is_not_registered() {
        let device = Fake::new(1);
        device.refuses.set(true);
        assert_eq!(Buffer::adopt(Vec::<f32>::new()).local_key(&*device).unwrap(), 0);
        assert_eq!(Shared::from(Bytes::new()).local_key(&*device).unwrap(), 0);
        device.refuses.set(false);
        let bytes = Shared::from(Bytes::from_static(b"text"));
        assert_ne!(bytes.slice(4..).local_key(&*device).unwrap(), 0, "an empty part of more");
        assert_eq!(device.told().len(), 1);
    }

    #[test]
    fn a_plain_pools_arena_is_registered_when_a_device_needs_it() {
        let (device, other) = (Fake::new(1), Fake::new(2));
        let (plain, pool) = (Pool::new(4 * MIB), Pool::registered(4 * MIB, other.clone()));
        let (a, b) = (plain.allocate(8).unwrap(), plain.allocate(9000).unwrap());
        let foreign = pool.allocate(8).unwrap();
        assert_eq!((device.told(), other.told().len()), (vec![], 1));
        let key = a.local_key(&*device).unwrap();
        assert_eq!(b.local_key(&*device).unwrap(), key);
        assert_eq!(device.told().len(), 1);
        assert_ne!(foreign.local_key(&*device).unwrap(), key);
        assert_eq!(device.told().len(), 1);
        drop((a, b));
        assert_eq!(plain.allocate(20).unwrap().local_key(&*device).unwrap(), key);
        assert_eq!(device.told(), [], "it stays while the arena lives");
        drop(plain);
        assert_eq!(device.told(), [Deregister { key }]);
        assert_eq!(other.told(), []);
    }

    #[test]
    fn two_devices_have_a_key_each() {
        let (one, two) = (Fake::new(1), Fake::new(2));
        let buffer = Pool::registered(MIB, one.clone()).allocate(8).unwrap();
        let first = buffer.local_key(&*one).unwrap();
        let second = buffer.local_key(&*two).unwrap();
        assert_ne!(first, second);
        for _ in 0..3 {
            let keys = [buffer.local_key(&*two).unwrap(), buffer.local_key(&*one).unwrap()];
            assert_eq!(keys, [second, first]);
        }
        assert_eq!((one.told().len(), two.told().len()), (1, 1));
        drop(buffer);
        assert_eq!(
            (one.told(), two.told()),
            (vec![Deregister { key: first }], vec![Deregister { key: second }])
        );
    }

    #[test]
    fn a_refusal_is_reported_and_leaves_nothing_behind() {
        let device = Fake::new(1);
        let pool = Pool::registered(2 * MIB, device.clone());
        let bytes = Shared::from(Bytes::from_static(b"text"));
        device.refuses.set(true);
        for _ in 0..3 {
            assert!(matches!(pool.allocate(8), Err(Error::Os { call: "register", .. })));
            assert!(matches!(bytes.local_key(&*device), Err(Error::Os { call: "register", .. })));
        }
        assert_eq!((pool.bytes_reserved(), pool.bytes_cut(), device.told()), (0, 0, vec![]));
        device.refuses.set(false);
        let held = pool.allocate(MIB).unwrap();
        device.refuses.set(true);
        assert!(pool.allocate(MIB).is_err());
        assert_eq!(pool.bytes_reserved(), MIB);
        device.refuses.set(false);
        assert!(bytes.local_key(&*device).is_ok() && pool.allocate(MIB).is_ok());
        assert_eq!(device.told().len(), 3);
        drop(held);
    }

    #[test]
    fn the_key_of_known_memory_costs_no_allocation() {
        let device = Fake::new(1);
        let buffer = Pool::registered(MIB, device.clone()).allocate(8).unwrap();
        let heap = allocation_counter::measure(|| assert!(buffer.local_key(&*device).is_ok()));
        assert_eq!(heap.count_total, 0);
    }
}
