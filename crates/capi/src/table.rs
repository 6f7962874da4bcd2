//! Table of ends, indexed by descriptor number.
//!
//! Each entry has a lock, so only one thread at a time uses an end. Callers try to lock an entry,
//! but never wait for the lock. For the thread that uses an end first, locking costs no atomic
//! exchange ([`buffer::biased`]).

use crate::end::{End, EndKind};
use crate::failure::{EBADF, EBUSY, EMFILE, Failure, Outcome};
use buffer::biased_lock::{BiasedGuard, BiasedLock};
use std::os::fd::{AsFd, OwnedFd};

/// Number of entries of the table. It is larger than the default limit of open descriptors per
/// process.
const TABLE_ENTRY_COUNT: usize = 1 << 16;

type Entry = BiasedLock<Option<Box<End>>>;

static END_TABLE: [Entry; TABLE_ENTRY_COUNT] = [const { BiasedLock::new(None) }; TABLE_ENTRY_COUNT];

/// An entry of the table, locked for one call.
pub(crate) struct LockedEntry(BiasedGuard<'static, Option<Box<End>>>);

impl LockedEntry {
    /// Returns the end in this entry of the table, or `None` if the entry is empty.
    #[inline]
    pub(crate) fn end(&mut self) -> Option<&mut End> {
        self.0.as_deref_mut()
    }

    /// Returns the end in this entry of the table. Fails if the entry is empty. `number` is the
    /// entry's descriptor number, for the error.
    #[inline]
    pub(crate) fn require_end(&mut self, number: i32) -> Outcome<&mut End> {
        self.end().ok_or_else(|| not_an_end_error(number))
    }

    /// Removes the end that this entry of the table contains, and clears the owner of the entry's
    /// lock. Returns `None` if the entry is empty.
    pub(crate) fn take(mut self) -> Option<Box<End>> {
        let end = self.0.take();
        self.0.release_ownership();
        end
    }

    /// Stores an end whose first user may be another thread than this one. The lock of the entry
    /// gets no owner, so the first thread that calls a function on the end becomes its owner.
    fn put_unowned(mut self, end: End) {
        *self.0 = Some(Box::new(end));
        self.0.release_ownership();
    }

    /// Stores an end in this entry of the table.
    pub(crate) fn put(&mut self, end: End) {
        *self.0 = Some(Box::new(end));
    }
}

/// Locks the entry of a descriptor number. Fails with `EBUSY` if another thread holds it, and with
/// `EBADF` if the number is out of range.
#[inline(always)]
pub(crate) fn lock_entry(number: i32) -> Result<LockedEntry, Failure> {
    let entry = usize::try_from(number).ok().and_then(|at| END_TABLE.get(at));
    // A panic in a call releases the lock and leaves the end consistent.
    match entry.map(BiasedLock::try_lock) {
        Some(Some(guard)) => Ok(LockedEntry(guard)),
        Some(None) => Err(busy_error(number)),
        None => Err(not_an_end_error(number)),
    }
}

pub(crate) fn duplicate_descriptor(of: &impl AsFd) -> Outcome<OwnedFd> {
    let failed =
        |e: std::io::Error| sys::Error::new("dup", "a bell", e.raw_os_error().unwrap_or(0));
    Ok(of.as_fd().try_clone_to_owned().map_err(failed)?)
}

/// Registers an end under the number of `descriptor`, and returns this number. The descriptor must
/// become ready when the end does. If `descriptor` is `None`, uses the number of a new descriptor.
pub(crate) fn register_end(kind: EndKind, descriptor: Option<OwnedFd>) -> Outcome<i32> {
    let descriptor = match descriptor {
        Some(descriptor) => descriptor,
        None => duplicate_descriptor(&sys::eventfd::EventFd::new()?)?,
    };
    let fd = sys::raw_fd::into_raw(descriptor);
    match store_end(fd, End::new(kind)) {
        Ok(()) => Ok(fd),
        Err(failure) => {
            sys::raw_fd::close(fd)?;
            Err(failure)
        }
    }
}

/// Stores an end under the number of a descriptor that was just opened. Fails with `EMFILE` if the
/// table has no entry for this number.
fn store_end(number: i32, end: End) -> Result<(), Failure> {
    if usize::try_from(number).map_or(true, |at| at >= TABLE_ENTRY_COUNT) {
        let text = format!(
            "descriptor {number}: only descriptors below {TABLE_ENTRY_COUNT} can \
                            be ends"
        );
        return Err(Failure::new(EMFILE, text));
    }
    lock_entry(number)?.put_unowned(end);
    Ok(())
}

#[cold]
fn busy_error(number: i32) -> Failure {
    let text = format!(
        "another thread is in a call on descriptor {number}: use it from one \
                        thread at a time"
    );
    Failure::new(EBUSY, text)
}

#[cold]
pub(crate) fn not_an_end_error(number: i32) -> Failure {
    Failure::new(EBADF, format!("descriptor {number} is not an open end of a stream"))
}
