//! Calls about descriptors: closed, copied, looked at, spliced.
//!
//! What asks the kernel about the pipe (`poll` and its kin, `FIONREAD`) makes the edge a pipe
//! first; splicing from or to an edge that may have a ring is refused with `EINVAL`, which the
//! manual page allows and which programs answer by reading and writing.

use super::missing;
use crate::ends;
use crate::lazy;
use crate::retire::{self, Why};
use std::ffi::{c_char, c_int, c_uint, c_ulong, c_void};
use std::ptr;
use sys::preload;

/// A function that is called with the arguments that came, after something was done.
macro_rules! passed {
    (
        $(#[$doc:meta])*
        $name:ident($($arg:ident: $type:ty),*) -> $answer:ty, $real:literal, $before:expr
    ) => {
        $(#[$doc])*
        ///
        /// # Safety
        /// That of the function behind it, which gets the arguments as they came.
        #[unsafe(no_mangle)]
        pub unsafe extern "C" fn $name($($arg: $type),*) -> $answer {
            let before: fn($($type),*) -> Option<c_int> = $before;
            let errno = preload::errno();
            let refused = super::guarded(|| None, || before($($arg),*));
            preload::set_errno(errno);
            if let Some(number) = refused {
                preload::set_errno(number);
                return <$answer>::from(-1_i8);
            }
            match real!($real as unsafe extern "C" fn($($type),*) -> $answer) {
                // SAFETY: X1; the arguments are the program's.
                Some(next) => unsafe { next($($arg),*) },
                None => missing(),
            }
        }
    };
}

passed!(
    /// `close(2)`.
    close(fd: c_int) -> c_int, c"close", |fd| { shut(fd); None }
);
passed!(
    /// `fclose(3)`: what is left in the buffer goes into the pipe.
    fclose(file: *mut c_void) -> c_int, c"fclose", |file| { shut(number(file)); None }
);
passed!(
    /// `close_range(2)`.
    close_range(first: c_uint, last: c_uint, flags: c_int) -> c_int, c"close_range",
    |first, last, _| { range(first, last); None }
);
passed!(
    /// `poll(2)`.
    poll(entries: *const Polled, count: c_ulong, limit: c_int) -> c_int, c"poll",
    |entries, count, _| { polled(entries, count); None }
);
passed!(
    /// `poll(2)` as programs call it that were built to check sizes.
    __poll_chk(entries: *const Polled, count: c_ulong, limit: c_int, room: usize) -> c_int,
    c"__poll_chk", |entries, count, _, _| { polled(entries, count); None }
);
passed!(
    /// `ppoll(2)`.
    ppoll(entries: *const Polled, count: c_ulong, limit: *const c_void, mask: *const c_void)
        -> c_int, c"ppoll", |entries, count, _, _| { polled(entries, count); None }
);
passed!(
    /// `select(2)`.
    select(count: c_int, r: *const c_ulong, w: *const c_ulong, e: *const c_ulong,
        limit: *mut c_void) -> c_int, c"select",
    |count, r, w, _, _| { selected(count, [r, w]); None }
);
passed!(
    /// `pselect(2)`.
    pselect(count: c_int, r: *const c_ulong, w: *const c_ulong, e: *const c_ulong,
        limit: *const c_void, mask: *const c_void) -> c_int, c"pselect",
    |count, r, w, _, _, _| { selected(count, [r, w]); None }
);
passed!(
    /// `epoll_ctl(2)`.
    epoll_ctl(set: c_int, what: c_int, fd: c_int, event: *mut c_void) -> c_int, c"epoll_ctl",
    |_, _, fd, _| { asked(fd); None }
);
passed!(
    /// `ioctl(2)`.
    ioctl(fd: c_int, request: c_ulong, argument: *mut c_void) -> c_int, c"ioctl",
    |fd, request, _| { if request == preload::FIONREAD { asked(fd) } None }
);
passed!(
    /// `splice(2)`.
    splice(from: c_int, a: *mut c_void, to: c_int, b: *mut c_void, count: usize, flags: c_uint)
        -> isize, c"splice", |from, _, to, _, _, _| spliced([from, to])
);
passed!(
    /// `tee(2)`.
    tee(from: c_int, to: c_int, count: usize, flags: c_uint) -> isize, c"tee",
    |from, to, _, _| spliced([from, to])
);
passed!(
    /// `vmsplice(2)`.
    vmsplice(fd: c_int, pieces: *const c_void, count: usize, flags: c_uint) -> isize, c"vmsplice",
    |fd, _, _, _| spliced([fd, -1])
);
passed!(
    /// `sendfile(2)`.
    sendfile(to: c_int, from: c_int, at: *mut c_void, count: usize) -> isize, c"sendfile",
    |to, from, _, _| spliced([to, from])
);
passed!(
    /// `sendfile(2)` with large offsets.
    sendfile64(to: c_int, from: c_int, at: *mut c_void, count: usize) -> isize, c"sendfile64",
    |to, from, _, _| spliced([to, from])
);

passed!(
    /// `copy_file_range(2)`: of and into files; the kernel refuses pipes.
    copy_file_range(from: c_int, a: *mut c_void, to: c_int, b: *mut c_void, count: usize,
        flags: c_uint) -> isize, c"copy_file_range",
    |from, _, to, _, _, _| { lazy::asks(from); lazy::asks(to); None }
);
passed!(
    /// `lseek(2)`.
    lseek(fd: c_int, at: i64, from: c_int) -> i64, c"lseek", |fd, _, _| { lazy::asks(fd); None }
);
passed!(
    /// `lseek(2)` with large offsets.
    lseek64(fd: c_int, at: i64, from: c_int) -> i64, c"lseek64",
    |fd, _, _| { lazy::asks(fd); None }
);

type Open = unsafe extern "C" fn(*const c_char, c_int, c_uint) -> c_int;
type OpenAt = unsafe extern "C" fn(c_int, *const c_char, c_int, c_uint) -> c_int;

/// Functions that open a file; the mode is there or is not, and is a word in either case.
macro_rules! opens {
    ($($name:ident($($arg:ident: $type:ty),*) $real:literal as $kind:ty),+ $(,)?) => { $(
        #[doc = concat!("`", stringify!($name), "`.")]
        ///
        /// # Safety
        /// That of the function behind it.
        #[unsafe(no_mangle)]
        pub unsafe extern "C" fn $name($($arg: $type),*) -> c_int {
            let Some(next) = real!($real as $kind) else { return missing() };
            // SAFETY: X1; the arguments are the program's.
            let number = unsafe { next($($arg),*) };
            if number >= 0 {
                super::guarded(|| (), || super::lazily(|| lazy::opened(number)));
            }
            number
        }
    )+ };
}

opens! {
    open(path: *const c_char, flags: c_int, mode: c_uint) c"open" as Open,
    open64(path: *const c_char, flags: c_int, mode: c_uint) c"open64" as Open,
    openat(at: c_int, path: *const c_char, flags: c_int, mode: c_uint) c"openat" as OpenAt,
    openat64(at: c_int, path: *const c_char, flags: c_int, mode: c_uint) c"openat64" as OpenAt,
}

/// `closefrom(3)`.
///
/// # Safety
/// That of the function behind it.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn closefrom(first: c_int) {
    super::guarded(|| (), || range(c_uint::try_from(first).unwrap_or(0), c_uint::MAX));
    if let Some(next) = real!(c"closefrom" as unsafe extern "C" fn(c_int)) {
        // SAFETY: X1; the argument is the program's.
        unsafe { next(first) }
    }
}

/// `freopen(3)`.
///
/// # Safety
/// That of the function behind it.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn freopen(
    path: *const c_char,
    mode: *const c_char,
    file: *mut c_void,
) -> *mut c_void {
    type Next = unsafe extern "C" fn(*const c_char, *const c_char, *mut c_void) -> *mut c_void;
    super::guarded(|| (), || shut(number(file)));
    match real!(c"freopen" as Next) {
        // SAFETY: X1; the arguments are the program's.
        Some(next) => unsafe { next(path, mode, file) },
        None => ptr::null_mut(),
    }
}

// ---- copies

fn copied(from: c_int, to: c_int) -> c_int {
    if to >= 0 {
        let errno = preload::errno();
        ends::copied(from, to);
        lazy::copied(from, to);
        preload::set_errno(errno);
    }
    to
}

/// `dup(2)`.
///
/// # Safety
/// None is needed; the function behind it is C.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn dup(from: c_int) -> c_int {
    match real!(c"dup" as unsafe extern "C" fn(c_int) -> c_int) {
        // SAFETY: X1; dup(2) takes any number.
        Some(next) => copied(from, unsafe { next(from) }),
        None => missing(),
    }
}

/// `dup2(2)`.
///
/// # Safety
/// None is needed; the function behind it is C.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn dup2(from: c_int, to: c_int) -> c_int {
    if from != to {
        super::guarded(|| (), || shut(to));
    }
    match real!(c"dup2" as unsafe extern "C" fn(c_int, c_int) -> c_int) {
        // SAFETY: X1; dup2(2) takes any numbers.
        Some(next) => copied(from, unsafe { next(from, to) }),
        None => missing(),
    }
}

/// `dup3(2)`.
///
/// # Safety
/// None is needed; the function behind it is C.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn dup3(from: c_int, to: c_int, flags: c_int) -> c_int {
    if from != to {
        super::guarded(|| (), || shut(to));
    }
    match real!(c"dup3" as unsafe extern "C" fn(c_int, c_int, c_int) -> c_int) {
        // SAFETY: X1; dup3(2) takes any numbers.
        Some(next) => copied(from, unsafe { next(from, to, flags) }),
        None => missing(),
    }
}

type Control = unsafe extern "C" fn(c_int, c_int, c_ulong) -> c_int;

/// `fcntl(2)`, whose third argument is a number or an address: either fits into a word.
///
/// # Safety
/// That of the function behind it.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn fcntl(fd: c_int, command: c_int, argument: c_ulong) -> c_int {
    control(real!(c"fcntl" as Control), fd, command, argument)
}

/// `fcntl(2)` with large offsets.
///
/// # Safety
/// That of the function behind it.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn fcntl64(fd: c_int, command: c_int, argument: c_ulong) -> c_int {
    control(real!(c"fcntl64" as Control), fd, command, argument)
}

fn control(next: Option<Control>, fd: c_int, command: c_int, argument: c_ulong) -> c_int {
    let Some(next) = next else { return missing() };
    // SAFETY: X1; the arguments are the program's.
    let answer = unsafe { next(fd, command, argument) };
    if matches!(command, preload::F_DUPFD | preload::F_DUPFD_CLOEXEC) {
        return copied(fd, answer);
    }
    answer
}

// ---- what is done before

/// An entry of `poll`.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct Polled {
    fd: c_int,
    events: i16,
    revents: i16,
}

/// A descriptor is about to be closed, or to become another one.
fn shut(fd: c_int) {
    lazy::closing(fd);
    retire::close(fd);
}

/// The kernel is asked about a descriptor.
fn asked(fd: c_int) {
    if let Some(holder) = ends::find(fd) {
        retire::one(holder, Why::Asked);
    }
}

fn polled(entries: *const Polled, count: c_ulong) {
    let count = usize::try_from(count).unwrap_or(0);
    if ends::holders().is_empty() || entries.is_null() {
        return;
    }
    for at in 0..count {
        // SAFETY: poll(2) asks for as many entries as the program says.
        let entry = unsafe { entries.wrapping_add(at).read() };
        asked(entry.fd);
    }
}

fn selected(count: c_int, sets: [*const c_ulong; 2]) {
    const BITS: usize = c_ulong::BITS as usize;
    if ends::holders().is_empty() {
        return;
    }
    let count = usize::try_from(count).unwrap_or(0).min(1024);
    for set in sets.into_iter().filter(|set| !set.is_null()) {
        for number in 0..count {
            // SAFETY: select(2) asks for sets of at least `count` bits, in words.
            let word = unsafe { set.wrapping_add(number / BITS).read() };
            if word >> (number % BITS) & 1 == 1 {
                asked(c_int::try_from(number).unwrap_or(-1));
            }
        }
    }
}

/// The error that a call gets which splices an end of an edge that may have a ring.
fn spliced(numbers: [c_int; 2]) -> Option<c_int> {
    numbers.into_iter().for_each(lazy::asks);
    let live = |number: c_int| ends::find(number).is_some_and(|holder| !holder.is_pipe());
    numbers.into_iter().any(live).then_some(preload::EINVAL)
}

fn range(first: c_uint, last: c_uint) {
    let end = last.min(1023);
    (first..=end).for_each(|number| shut(c_int::try_from(number).unwrap_or(-1)));
}

/// The descriptor of a stream of the C library.
fn number(file: *mut c_void) -> c_int {
    match real!(c"fileno" as unsafe extern "C" fn(*mut c_void) -> c_int) {
        // SAFETY: X1; the file is the program's, and open.
        Some(next) if !file.is_null() => unsafe { next(file) },
        _ => -1,
    }
}
