//! Ordinary memory under a pool's limit: what a thread keeps because a peer asked for it, and no
//! device has to register.
//!
//! A peer's message may name far more keys, cells or rows than its own length suggests. Code that
//! allocates for them asks an [`Account`] first, so that a thread's registered and ordinary memory
//! share one limit. It asks only when something grows, not for every request.

use std::borrow::Cow;
use std::fmt;
use std::io;

use super::Pool;
use crate::error::{Error, Result};

/// Bytes of ordinary memory that count against a pool's limit while this lives.
pub struct Account {
    pool: Pool,
    what: Cow<'static, str>,
    bytes: usize,
}

impl Account {
    /// An empty account. Its errors say that `what` would exceed the limit.
    pub fn new(pool: &Pool, what: impl Into<Cow<'static, str>>) -> Self {
        Account { pool: pool.clone(), what: what.into(), bytes: 0 }
    }

    /// Bytes it accounts for.
    pub fn bytes(&self) -> usize {
        self.bytes
    }

    /// Accounts for `bytes` bytes from now on.
    ///
    /// # Errors
    /// [`Error::OverBudget`] if that is an increase by more than what is left. Nothing has changed
    /// then.
    pub fn set(&mut self, bytes: usize) -> Result<()> {
        let left = self.pool.bytes_left().min(self.pool.room());
        if bytes > self.bytes && bytes - self.bytes > left {
            let what = self.what.clone().into_owned();
            let limit = self.pool.bytes_max();
            return Err(Error::OverBudget { what, wanted: bytes - self.bytes, left, limit });
        }
        self.pool.exchange(self.bytes, bytes);
        self.bytes = bytes;
        Ok(())
    }

    /// Accounts for `bytes` more bytes.
    ///
    /// # Errors
    /// As [`Account::set`].
    pub fn add(&mut self, bytes: usize) -> Result<()> {
        self.set(self.bytes.saturating_add(bytes))
    }

    /// Accounts for `bytes` fewer bytes, at least 0.
    pub fn release(&mut self, bytes: usize) {
        let left = self.bytes.saturating_sub(bytes);
        self.pool.exchange(self.bytes, left);
        self.bytes = left;
    }

    /// Checks that `bytes` more bytes fit for a moment, without keeping them.
    ///
    /// # Errors
    /// As [`Account::set`].
    pub fn check(&mut self, bytes: usize) -> Result<()> {
        self.add(bytes)?;
        self.release(bytes);
        Ok(())
    }

    /// Reserves room in `list` for `more` items. The list grows by a share of its size, so that the
    /// cost per item stays small.
    ///
    /// # Errors
    /// As [`Account::set`]; [`Error::OutOfMemory`] if the system has no more.
    #[inline]
    pub fn reserve<T>(&mut self, list: &mut Vec<T>, more: usize) -> Result<()> {
        if more <= list.capacity() - list.len() { Ok(()) } else { self.grow(list, more) }
    }

    #[cold]
    fn grow<T>(&mut self, list: &mut Vec<T>, more: usize) -> Result<()> {
        let had = list.capacity();
        let need = list.len().saturating_add(more);
        let bytes = |items: usize| items.saturating_mul(size_of::<T>());
        let [ample, scant] = [2, 16].map(|share| need.max(had + had / share).max(8));
        // The old and the new allocation exist at the same time.
        let room = match self.add(bytes(ample)) {
            Ok(()) => ample,
            Err(_) => self.add(bytes(scant)).map(|()| scant)?,
        };
        let reserved = list.try_reserve_exact(room - list.len());
        self.release(bytes(if reserved.is_ok() { had } else { room }));
        let system = || Some(io::ErrorKind::OutOfMemory.into());
        reserved.map_err(|_| self.pool.out_of_memory(bytes(room), system()))
    }
}

impl Drop for Account {
    fn drop(&mut self) {
        self.pool.exchange(self.bytes, 0);
    }
}

impl fmt::Debug for Account {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Account({} bytes of {})", self.bytes, self.what)
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, reason = "tests")]
    use super::*;

    const MIB: usize = 1 << 20;

    #[test]
    fn registered_and_ordinary_memory_share_one_limit() {
        let pool = Pool::new(8 * MIB);
        let mut account = Account::new(&pool, "rows");
        account.set(6 * MIB).unwrap();
        let error = account.add(2 * MIB).unwrap_err().to_string();
        assert!(error.contains("rows") && error.contains("2097152"), "{error}");
        assert!(
            error.contains("1048576 of 8388608") && error.contains("CARAVAN_MEMORY"),
            "{error}"
        );
        assert_eq!(account.bytes(), 6 * MIB, "what is refused changes nothing");
        assert!(pool.allocate(4 * MIB).is_err(), "the pool has 2 MiB left");
        let buffer = pool.allocate(MIB).unwrap();
        account.set(0).unwrap();
        let mut other = Account::new(&pool, "lists");
        assert!(other.set(7 * MIB).is_err(), "a slot is taken");
        other.set(5 * MIB).unwrap();
        drop((buffer, other));
        assert_eq!(pool.bytes_left(), 6 * MIB, "an account that is dropped stands for nothing");
    }

    #[test]
    fn lists_grow_by_the_account_and_keep_an_eighth_for_messages() {
        let pool = Pool::new(8 * MIB);
        let mut account = Account::new(&pool, "numbers");
        let mut list: Vec<u64> = Vec::new();
        // Miri is too slow to push a million numbers one by one.
        let more = vec![7; if cfg!(miri) { 1 << 10 } else { 1 }];
        let mut grown = 0;
        let error = loop {
            let had = list.capacity();
            if let Err(error) = account.reserve(&mut list, more.len()) {
                break error;
            }
            grown += usize::from(list.capacity() > had);
            list.extend_from_slice(&more);
            assert_eq!(account.bytes(), 8 * list.capacity());
        };
        assert!(matches!(error, Error::OverBudget { limit, .. } if limit == 8 * MIB), "{error}");
        assert!((3 * MIB..=7 * MIB).contains(&account.bytes()), "{account:?}");
        assert!(grown < 100, "it is asked when a list grows: {grown} times");
        assert!(account.reserve(&mut list, usize::MAX).is_err());
        pool.allocate(MIB).unwrap();
    }
}
