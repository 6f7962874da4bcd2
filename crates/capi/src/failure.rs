//! Failures in the form that C programs expect: a value for `errno`, and a message.

use buffer::{Fault, name, share};
use iolite::mpipe;
use std::cell::RefCell;
use std::ffi::{CStr, CString, c_char};
use std::fmt;

/// The failure of a call. Boxed, so that successful calls return in registers.
#[derive(Debug)]
pub(crate) struct Failure(Box<FailureText>);

/// The value for `errno`, and the message that `streamline_error` returns.
#[derive(Debug)]
struct FailureText {
    errno: i32,
    text: String,
}

/// Result of a call from C.
pub(crate) type Outcome<T> = Result<T, Failure>;

pub(crate) const EPERM: i32 = 1;
pub(crate) const ENOENT: i32 = 2;
pub(crate) const EIO: i32 = 5;
pub(crate) const EBADF: i32 = 9;
pub(crate) const ECHILD: i32 = 10;
pub(crate) const EAGAIN: i32 = 11;
pub(crate) const EACCES: i32 = 13;
pub(crate) const EFAULT: i32 = 14;
pub(crate) const EBUSY: i32 = 16;
pub(crate) const EEXIST: i32 = 17;
pub(crate) const EINVAL: i32 = 22;
pub(crate) const EMFILE: i32 = 24;
pub(crate) const ENOSPC: i32 = 28;
pub(crate) const EPIPE: i32 = 32;
pub(crate) const EPROTO: i32 = 71;
pub(crate) const EUSERS: i32 = 87;
pub(crate) const EMSGSIZE: i32 = 90;
pub(crate) const ENOTSUP: i32 = 95;
pub(crate) const ENOBUFS: i32 = 105;
pub(crate) const ETIMEDOUT: i32 = 110;

impl Failure {
    #[cold]
    pub(crate) fn new(errno: i32, text: impl fmt::Display) -> Self {
        Self(Box::new(FailureText { errno, text: text.to_string() }))
    }

    pub(crate) fn invalid(text: impl fmt::Display) -> Self {
        Self::new(EINVAL, text)
    }

    /// Makes this failure the last one of this thread: sets `errno`, and the message that
    /// `streamline_error` returns.
    pub(crate) fn set_as_last_message(self) {
        let FailureText { errno, text } = *self.0;
        let text: Vec<u8> = text.into_bytes().into_iter().filter(|byte| *byte != 0).collect();
        // The zero bytes were removed, so this cannot fail.
        let text = CString::new(text).unwrap_or_default();
        // Fails only while the thread exits.
        let _ = LAST_MESSAGE.try_with(|last| last.replace(text));
        sys::raw_fd::set_errno(errno);
    }
}

#[cold]
pub(crate) fn wrong_end_error(wanted: &str) -> Failure {
    Failure::new(EBADF, format!("this end is not {wanted}"))
}

thread_local! {
    static LAST_MESSAGE: RefCell<CString> = RefCell::default();
}

/// Returns the message of the last failure of this thread, valid until the next failure.
pub(crate) fn last_message() -> *const c_char {
    const NO_MESSAGE: &CStr = c"";
    LAST_MESSAGE.try_with(|last| last.borrow().as_ptr()).unwrap_or(NO_MESSAGE.as_ptr())
}

impl From<Fault> for Failure {
    fn from(fault: Fault) -> Self {
        let errno = match fault {
            Fault::Abandoned => EPIPE,
            Fault::TooLong { .. } => EMSGSIZE,
            _ => EPROTO,
        };
        Self::new(errno, fault)
    }
}

impl From<sys::Error> for Failure {
    fn from(error: sys::Error) -> Self {
        Self::new(error.errno, error)
    }
}

impl From<share::OfferRefusal> for Failure {
    fn from(refusal: share::OfferRefusal) -> Self {
        match refusal {
            share::OfferRefusal::System(error) => error.into(),
            other => Self::new(EPROTO, other),
        }
    }
}

impl From<name::Error> for Failure {
    fn from(error: name::Error) -> Self {
        use name::Error;
        let errno = match &error {
            Error::Name { .. } | Error::Range { .. } => EINVAL,
            Error::Unknown(_) | Error::Ended(_) => ENOENT,
            Error::Taken(_) => EEXIST,
            Error::Squatted { .. } => EPERM,
            Error::Forbidden { .. } => EACCES,
            Error::Full { .. } => EUSERS,
            Error::Kind { .. } | Error::ReadOnly => EBADF,
            Error::Silent(_) => ETIMEDOUT,
            Error::InvalidReply(_) | Error::Refused(_) => EPROTO,
            Error::System(error) => error.errno,
        };
        Self::new(errno, error)
    }
}

impl From<mpipe::PipeError> for Failure {
    fn from(error: mpipe::PipeError) -> Self {
        use mpipe::PipeError;
        let errno = match &error {
            PipeError::Ends(_) => EINVAL,
            PipeError::NotAPipeEnd => EBADF,
            PipeError::AlreadyOpened => EBUSY,
            PipeError::Refused(_) | PipeError::Fault(_) => EPROTO,
            PipeError::System(error) => error.errno,
        };
        Self::new(errno, error)
    }
}
