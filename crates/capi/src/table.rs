//! The table from numbers to ends.
//!
//! A place for each number, with a lock that nobody waits for: an end is for one thread at a time.
//! Finding an end costs one exchange of a word that no other thread writes.

use crate::end::{End, Kind};
use crate::failure::{EBADF, EBUSY, EMFILE, Failure, Outcome};
use std::os::fd::{AsFd, OwnedFd};
use std::sync::{Mutex, MutexGuard, TryLockError};

/// Numbers that have a place: more than a process may have open, unless it asked for more.
const NUMBERS: usize = 1 << 16;

type Place = Mutex<Option<Box<End>>>;

static ENDS: [Place; NUMBERS] = [const { Mutex::new(None) }; NUMBERS];

/// An end that nobody else uses meanwhile.
pub(crate) struct Used(MutexGuard<'static, Option<Box<End>>>);

impl Used {
    /// The end, if this number is one.
    #[inline]
    pub(crate) fn end(&mut self) -> Option<&mut End> {
        self.0.as_deref_mut()
    }

    /// The end, which has no number from now on.
    pub(crate) fn take(&mut self) -> Option<Box<End>> {
        self.0.take()
    }

    /// Puts an end under this number.
    pub(crate) fn put(&mut self, end: End) {
        *self.0 = Some(Box::new(end));
    }
}

/// The place of a number.
#[inline]
pub(crate) fn place(number: i32) -> Result<Used, Failure> {
    let place = usize::try_from(number).ok().and_then(|at| ENDS.get(at));
    match place.map(Mutex::try_lock) {
        Some(Ok(guard)) => Ok(Used(guard)),
        // Whoever panicked in a call has left the end as it was.
        Some(Err(TryLockError::Poisoned(poisoned))) => Ok(Used(poisoned.into_inner())),
        Some(Err(TryLockError::WouldBlock)) => Err(busy(number)),
        None => Err(not_ours(number)),
    }
}

pub(crate) fn copy(of: &impl AsFd) -> Outcome<OwnedFd> {
    let failed =
        |e: std::io::Error| sys::Error::new("dup", "a bell", e.raw_os_error().unwrap_or(0));
    Ok(of.as_fd().try_clone_to_owned().map_err(failed)?)
}

/// Registers an end under the number of a descriptor that polls ready with it, or of a fresh one.
pub(crate) fn add(kind: Kind, descriptor: Option<OwnedFd>) -> Outcome<i32> {
    let descriptor = match descriptor {
        Some(descriptor) => descriptor,
        None => copy(&sys::eventfd::EventFd::new()?)?,
    };
    let fd = sys::raw_fd::give(descriptor);
    match enter(fd, End::new(kind)) {
        Ok(()) => Ok(fd),
        Err(failure) => {
            sys::raw_fd::close(fd)?;
            Err(failure)
        }
    }
}

/// Enters an end under a number that is just open.
fn enter(number: i32, end: End) -> Result<(), Failure> {
    if usize::try_from(number).map_or(true, |at| at >= NUMBERS) {
        let text = format!("descriptor {number}: only those below {NUMBERS} can be ends");
        return Err(Failure::new(EMFILE, text));
    }
    place(number)?.put(end);
    Ok(())
}

#[cold]
fn busy(number: i32) -> Failure {
    let text = format!("another thread is in a call on descriptor {number}: one at a time");
    Failure::new(EBUSY, text)
}

#[cold]
pub(crate) fn not_ours(number: i32) -> Failure {
    Failure::new(EBADF, format!("descriptor {number} is no open end of a stream"))
}
