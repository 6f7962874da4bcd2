//! A lock for objects that are used by one thread at a time, and mostly by the same thread. [SL
//! §5.1: reads and writes are local calls]
//!
//! A call that finds the object in use fails instead of waiting. The first thread that uses the
//! object becomes its owner, and calls by the owner need no atomic exchange. With an exchange, a
//! call to `streamline_splice` on two ends would spend a third of its time in locks (0105).
//!
//! Invariants, cited below:
//! - B1 The owner writes the address of the lock into the record of its thread, executes a light
//!   fence, and reads `owner` again before it touches the value. A thread that wants to become the
//!   owner writes `OWNER_CHANGING` to `owner`, executes a heavy fence, and reads the record of the
//!   owning thread. Thus either the owner sees `OWNER_CHANGING`, or the other thread sees the
//!   address.
//! - B2 A record is written only by its thread, so a former owner that has not yet noticed the
//!   change cannot disturb a later owner.
//! - B3 Only the thread that wrote `OWNER_CHANGING` replaces it.
//! - B4 While `owner` is `SHARED`, the value belongs to the thread that has set `locked` and has
//!   then read `SHARED`. Only that thread replaces `SHARED`, as its last access.

use crate::atomic::{AtomicU32, AtomicU64, Ordering};
use std::cell::UnsafeCell;
use std::fmt;
use std::ops::{Deref, DerefMut};

/// State of a lock that no thread has used yet.
const UNOWNED: u64 = 0;
/// State of a lock that every thread acquires by an atomic exchange.
const SHARED: u64 = 1;
/// State of a lock whose owner is about to be replaced by another thread.
const OWNER_CHANGING: u64 = 2;
/// Owner number of the thread with the first record. Threads with later records have consecutive
/// numbers.
const FIRST_OWNER: u64 = 3;
/// Value that takes the place of an owner number in a thread without a [`OwnerRecord`]. Such a
/// thread never becomes an owner.
const NO_RECORD: u64 = u64::MAX;

/// Number of owner changes after which the lock becomes shared. Each change costs a few
/// microseconds, whereas a shared lock costs a few nanoseconds per call.
const HANDOVERS_MAX: u32 = 8;
/// Maximum number of locks that a thread can hold as their owner at the same time. A call to
/// `streamline_splice` holds two, and a signal handler that interrupts the call may take more.
const HELD_LOCKS_MAX: usize = 4;

/// The record of one thread: the locks that this thread owns and holds at the moment.
#[derive(Debug)]
#[repr(align(64))]
pub(crate) struct OwnerRecord {
    /// Addresses of the held locks; 0 in a free entry.
    held: [AtomicU64; HELD_LOCKS_MAX],
    /// 1 if the record is assigned to a thread.
    #[cfg_attr(loom, allow(dead_code, reason = "the models assign records themselves"))]
    taken: AtomicU32,
}

/// A lock whose calls fail while another thread, or an interrupted call of this thread, holds it.
///
/// If the kernel offers no membarrier(2), all locks use an atomic exchange per call from the start.
/// If a sandbox forbids membarrier(2) after a thread has become the owner, calls by other threads
/// fail as if the owner held the lock.
// One cache line, so that ends used by different threads do not disturb each other.
#[repr(align(64))]
pub struct BiasedLock<T> {
    /// State of the lock: `UNOWNED`, `SHARED`, `OWNER_CHANGING`, or the number of the owner.
    owner: AtomicU64,
    /// 1 while a thread holds the lock in its shared state; otherwise 0.
    locked: AtomicU32,
    /// Number of times that the lock has changed its owner.
    handovers: AtomicU32,
    value: UnsafeCell<T>,
}

// SAFETY: B1 to B4: at most one thread at a time has access to the value.
unsafe impl<T: Send> Sync for BiasedLock<T> {}

/// Exclusive access to the value of a [`BiasedLock`] until dropped.
pub struct BiasedGuard<'a, T> {
    lock: &'a BiasedLock<T>,
    /// Entry in the owner's [`OwnerRecord`] with the address of the lock; `None` if the lock is
    /// shared.
    held: Option<&'a AtomicU64>,
    /// Marker that makes the guard `!Send`, because it uses the record of the locking thread.
    _not_send: std::marker::PhantomData<*mut T>,
}

impl<T> BiasedLock<T> {
    /// Creates an unlocked lock without an owner.
    #[cfg(not(loom))]
    #[must_use]
    pub const fn new(value: T) -> Self {
        Self {
            owner: AtomicU64::new(UNOWNED),
            locked: AtomicU32::new(0),
            handovers: AtomicU32::new(0),
            value: UnsafeCell::new(value),
        }
    }

    /// Acquires the lock. Returns `None` if another thread, or an interrupted call of this thread,
    /// holds the lock or is changing its owner, or if this thread already owns and holds four other
    /// locks.
    // Inlined: an out-of-line call costs the C library 3 ns more per call.
    #[cfg(not(loom))]
    #[inline(always)]
    pub fn try_lock(&self) -> Option<BiasedGuard<'_, T>> {
        self.try_lock_as_owner(records::current_owner_number(), records::all())
    }

    #[inline(always)]
    fn try_lock_as_owner<'a>(
        &'a self,
        own: u64,
        records: &'a [OwnerRecord],
    ) -> Option<BiasedGuard<'a, T>> {
        loop {
            if self.owner.load(Ordering::Relaxed) == own {
                let held = find_record(records, own)?.record_held_lock(self.address())?;
                light_fence();
                // B1. Acquire: makes the last owner's writes visible if this thread has just
                // replaced it.
                if self.owner.load(Ordering::Acquire) == own {
                    return Some(self.guard(Some(held)));
                }
                held.store(0, Ordering::Release);
            }
            match self.try_lock_slowly(own, records) {
                SlowLockResult::Locked(guard) => return Some(guard),
                SlowLockResult::Busy => return None,
                SlowLockResult::Again => {}
            }
        }
    }

    /// Acquires the lock if it is shared. Otherwise, this thread becomes the owner of the lock or,
    /// after too many changes of owner, the lock becomes shared; the caller must then try again.
    /// Changes nothing while the lock is held, or while another thread is replacing the owner.
    #[cold]
    fn try_lock_slowly<'a>(
        &'a self,
        own: u64,
        records: &'a [OwnerRecord],
    ) -> SlowLockResult<'a, T> {
        let owner = self.owner.load(Ordering::Acquire);
        let replace = |by| {
            self.owner.compare_exchange(owner, by, Ordering::AcqRel, Ordering::Relaxed).is_ok()
        };
        match owner {
            UNOWNED => {
                let can_own = own != NO_RECORD && is_heavy_fence_supported();
                replace(if can_own { own } else { SHARED });
                SlowLockResult::Again
            }
            SHARED => {
                let order = (Ordering::Acquire, Ordering::Relaxed);
                if self.locked.compare_exchange(0, 1, order.0, order.1).is_err() {
                    return SlowLockResult::Busy;
                }
                // B4.
                if self.owner.load(Ordering::Acquire) == SHARED {
                    return SlowLockResult::Locked(self.guard(None));
                }
                self.locked.store(0, Ordering::Release);
                SlowLockResult::Again
            }
            OWNER_CHANGING => SlowLockResult::Busy,
            // A signal handler of this thread has become the owner, or another thread gave up
            // replacing it.
            owner if owner == own => SlowLockResult::Again,
            _ => {
                if !replace(OWNER_CHANGING) {
                    return SlowLockResult::Again;
                }
                // B1, B3.
                let theirs = find_record(records, owner);
                let is_free = heavy_fence()
                    && theirs.is_some_and(|record| !record.holds_lock(self.address()));
                if !is_free {
                    self.owner.store(owner, Ordering::Release);
                    return SlowLockResult::Busy;
                }
                let handovers = self.handovers.load(Ordering::Relaxed) + 1;
                self.handovers.store(handovers, Ordering::Relaxed);
                let is_shared = own == NO_RECORD || handovers > HANDOVERS_MAX;
                self.owner.store(if is_shared { SHARED } else { own }, Ordering::Release);
                SlowLockResult::Again
            }
        }
    }

    #[inline]
    const fn guard<'a>(&'a self, held: Option<&'a AtomicU64>) -> BiasedGuard<'a, T> {
        BiasedGuard { lock: self, held, _not_send: std::marker::PhantomData }
    }

    #[inline]
    fn address(&self) -> u64 {
        std::ptr::from_ref(self).addr() as u64
    }
}

enum SlowLockResult<'a, T> {
    Locked(BiasedGuard<'a, T>),
    Busy,
    Again,
}

/// Returns the record of the thread with owner number `owner`; `None` if no thread has it.
#[inline]
fn find_record(records: &[OwnerRecord], owner: u64) -> Option<&OwnerRecord> {
    records.get(usize::try_from(owner.wrapping_sub(FIRST_OWNER)).ok()?)
}

impl OwnerRecord {
    const fn new(held: [AtomicU64; HELD_LOCKS_MAX], taken: AtomicU32) -> Self {
        Self { held, taken }
    }

    /// Notes in this thread's record that the thread holds the lock at `address`. Returns `None` if
    /// the thread already holds this lock, or holds too many others.
    #[inline(always)]
    fn record_held_lock(&self, address: u64) -> Option<&AtomicU64> {
        let holds_none =
            self.held.iter().fold(0, |all, held| all | held.load(Ordering::Relaxed)) == 0;
        let free = if holds_none { self.held.first() } else { self.free_entry(address) };
        // Release: a thread that reads this address, or a later one, also sees the writes of
        // earlier calls.
        free.inspect(|held| held.store(address, Ordering::Release))
    }

    fn free_entry(&self, address: u64) -> Option<&AtomicU64> {
        let held = |place: &&AtomicU64| place.load(Ordering::Relaxed);
        if self.held.iter().any(|place| held(&place) == address) {
            return None;
        }
        self.held.iter().find(|place| held(place) == 0)
    }

    fn holds_lock(&self, address: u64) -> bool {
        self.held.iter().any(|held| held.load(Ordering::Acquire) == address)
    }
}

impl<T> BiasedGuard<'_, T> {
    /// Releases the lock and clears its owner, so that the next thread that takes the lock becomes
    /// the owner.
    pub fn release_ownership(self) {
        self.lock.handovers.store(0, Ordering::Relaxed);
        let Some(held) = self.held else {
            // B4: the last access, except for `locked`.
            self.lock.owner.store(UNOWNED, Ordering::Release);
            return;
        };
        let lock = self.lock;
        let owner = lock.owner.load(Ordering::Relaxed);
        held.store(0, Ordering::Release);
        std::mem::forget(self);
        // Fails if another thread is about to become the owner.
        if owner >= FIRST_OWNER {
            let release = (Ordering::AcqRel, Ordering::Relaxed);
            _ = lock.owner.compare_exchange(owner, UNOWNED, release.0, release.1);
        }
    }
}

impl<T> Deref for BiasedGuard<'_, T> {
    type Target = T;

    #[inline]
    fn deref(&self) -> &T {
        // SAFETY: B1 to B4: no other thread has access until this guard is dropped.
        unsafe { &*self.lock.value.get() }
    }
}

impl<T> DerefMut for BiasedGuard<'_, T> {
    #[inline]
    fn deref_mut(&mut self) -> &mut T {
        // SAFETY: as above; the guard is borrowed exclusively.
        unsafe { &mut *self.lock.value.get() }
    }
}

impl<T> Drop for BiasedGuard<'_, T> {
    #[inline]
    fn drop(&mut self) {
        // Release: the next holder reads the record or exchanges `locked` with Acquire.
        match self.held {
            Some(held) => held.store(0, Ordering::Release),
            None => self.lock.locked.store(0, Ordering::Release),
        }
    }
}

impl<T> fmt::Debug for BiasedLock<T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("BiasedLock").field("owner", &self.owner).finish_non_exhaustive()
    }
}

impl<T> fmt::Debug for BiasedGuard<'_, T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("BiasedGuard").field("lock", self.lock).finish_non_exhaustive()
    }
}

/// Orders the owner's store before the owner's next load, as seen by a thread that calls
/// [`heavy_fence`].
#[inline]
fn light_fence() {
    #[cfg(any(loom, miri))]
    crate::atomic::fence(Ordering::SeqCst);
    #[cfg(not(any(loom, miri)))]
    std::sync::atomic::compiler_fence(Ordering::SeqCst);
}

/// Makes all threads execute a full memory barrier. Returns false if the kernel refuses.
fn heavy_fence() -> bool {
    #[cfg(any(loom, miri))]
    {
        crate::atomic::fence(Ordering::SeqCst);
        true
    }
    #[cfg(not(any(loom, miri)))]
    sys::membarrier::fence_all_threads()
}

fn is_heavy_fence_supported() -> bool {
    cfg!(any(loom, miri)) || sys::membarrier::is_supported()
}

/// The records of this process's threads.
#[cfg(not(loom))]
mod records {
    use super::{
        AtomicU32, AtomicU64, FIRST_OWNER, HELD_LOCKS_MAX, NO_RECORD, Ordering, OwnerRecord,
    };
    use std::cell::Cell;

    /// Maximum number of threads that can be owners at the same time.
    const THREADS_MAX: usize = 1024;

    static RECORDS: [OwnerRecord; THREADS_MAX] = [const {
        OwnerRecord::new([const { AtomicU64::new(0) }; HELD_LOCKS_MAX], AtomicU32::new(0))
    }; THREADS_MAX];

    /// Index of a thread's record in `RECORDS`. Dropped when the thread ends, which releases the
    /// record.
    struct ThreadRecord(usize);

    thread_local! {
        /// Owner number of this thread; 0 if the thread has not requested a record yet.
        static OWNER_NUMBER: Cell<u64> = const { Cell::new(0) };
        static THREAD_RECORD: Cell<Option<ThreadRecord>> = const { Cell::new(None) };
    }

    pub(super) fn all() -> &'static [OwnerRecord] {
        &RECORDS
    }

    /// Returns the owner number of this thread, or `NO_RECORD`.
    #[inline]
    pub(super) fn current_owner_number() -> u64 {
        match OWNER_NUMBER.get() {
            0 => take_record(),
            number => number,
        }
    }

    /// Assigns a free record to this thread, and returns the thread's owner number, or `NO_RECORD`
    /// if no record is free. A signal handler may interrupt this function and assign a second
    /// record, which then stays unused until the thread ends.
    #[cold]
    fn take_record() -> u64 {
        let is_free = |record: &OwnerRecord| {
            record.taken.compare_exchange(0, 1, Ordering::Acquire, Ordering::Relaxed).is_ok()
        };
        let Some(at) = RECORDS.iter().position(is_free) else { return NO_RECORD };
        let number = at as u64 + FIRST_OWNER;
        // A thread that is ending would never release the record.
        match THREAD_RECORD.try_with(|own| own.set(Some(ThreadRecord(at)))) {
            Ok(()) => OWNER_NUMBER.set(number),
            Err(_) => {
                if let Some(record) = RECORDS.get(at) {
                    record.taken.store(0, Ordering::Release);
                }
                return NO_RECORD;
            }
        }
        number
    }

    impl Drop for ThreadRecord {
        fn drop(&mut self) {
            // Later calls of this thread use no record.
            OWNER_NUMBER.set(NO_RECORD);
            if let Some(record) = RECORDS.get(self.0) {
                record.taken.store(0, Ordering::Release);
            }
        }
    }
}

#[cfg(test)]
#[cfg(loom)]
mod models;
#[cfg(all(test, not(loom)))]
mod tests;
