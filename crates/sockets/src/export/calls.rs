//! Functions that close, duplicate, poll or splice descriptors.
//!
//! Calls that query the kernel about the pipe (`poll` and its relatives, `FIONREAD`) turn the edge
//! into a pipe first. Splicing from or to an edge that may have a ring fails with `EINVAL`, which
//! the manual page allows; programs then use read and write.

use crate::edge_ends;
use crate::lazy;
use crate::retire::{self, RetireReason};
use std::ffi::{c_char, c_int, c_uint, c_ulong, c_void};
use std::ptr;
use sys::preload;
use sys::preload::interpose::{catch_panic, catch_panic_and_preserve_errno, missing_function};
use sys::{interpose, interpose_duplication, next_function};

interpose!(
    /// Replaces `close(2)`. Closes the ring with the last descriptor of an edge.
    close(fd: c_int) -> c_int, c"close", |fd| { close_descriptor(fd); None }
);
interpose!(
    /// Replaces `fclose(3)`, like `close`; the C library then writes buffered bytes into the pipe.
    fclose(file: *mut c_void) -> c_int, c"fclose",
    |file| { close_descriptor(stream_descriptor(file)); None }
);
interpose!(
    /// Replaces `close_range(2)`. Handles each descriptor of the range like `close`.
    close_range(first: c_uint, last: c_uint, flags: c_int) -> c_int, c"close_range",
    |first, last, _| { close_range_of_descriptors(first, last); None }
);
interpose!(
    /// Replaces `poll(2)`. Turns the polled edges into pipes first.
    poll(entries: *const PollFd, count: c_ulong, limit: c_int) -> c_int, c"poll",
    |entries, count, _| { retire_polled_edges(entries, count); None }
);
interpose!(
    /// Replaces `poll(2)` in programs compiled with checks of buffer sizes (`_FORTIFY_SOURCE`).
    __poll_chk(entries: *const PollFd, count: c_ulong, limit: c_int, room: usize) -> c_int,
    c"__poll_chk", |entries, count, _, _| { retire_polled_edges(entries, count); None }
);
interpose!(
    /// Replaces `ppoll(2)`. Turns the polled edges into pipes first.
    ppoll(entries: *const PollFd, count: c_ulong, limit: *const c_void, mask: *const c_void)
        -> c_int, c"ppoll", |entries, count, _, _| { retire_polled_edges(entries, count); None }
);
interpose!(
    /// Replaces `select(2)`. Turns the selected edges into pipes first.
    select(count: c_int, r: *const c_ulong, w: *const c_ulong, e: *const c_ulong,
        limit: *mut c_void) -> c_int, c"select",
    |count, r, w, _, _| { retire_selected_edges(count, [r, w]); None }
);
interpose!(
    /// Replaces `pselect(2)`. Turns the selected edges into pipes first.
    pselect(count: c_int, r: *const c_ulong, w: *const c_ulong, e: *const c_ulong,
        limit: *const c_void, mask: *const c_void) -> c_int, c"pselect",
    |count, r, w, _, _, _| { retire_selected_edges(count, [r, w]); None }
);
interpose!(
    /// Replaces `epoll_ctl(2)`. Turns the edge of the descriptor into a pipe first.
    epoll_ctl(set: c_int, what: c_int, fd: c_int, event: *mut c_void) -> c_int, c"epoll_ctl",
    |_, _, fd, _| { retire_edge(fd); None }
);
interpose!(
    /// Replaces `ioctl(2)`. Turns the edge into a pipe before `FIONREAD`.
    ioctl(fd: c_int, request: c_ulong, argument: *mut c_void) -> c_int, c"ioctl",
    |fd, request, _| { if request == preload::FIONREAD { retire_edge(fd) } None }
);
interpose!(
    /// Replaces `splice(2)`. Fails with `EINVAL` if an edge may have a ring.
    splice(from: c_int, a: *mut c_void, to: c_int, b: *mut c_void, count: usize, flags: c_uint)
        -> isize, c"splice", |from, _, to, _, _, _| splice_error([from, to])
);
interpose!(
    /// Replaces `tee(2)`. Fails with `EINVAL` if an edge may have a ring.
    tee(from: c_int, to: c_int, count: usize, flags: c_uint) -> isize, c"tee",
    |from, to, _, _| splice_error([from, to])
);
interpose!(
    /// Replaces `vmsplice(2)`. Fails with `EINVAL` if the edge may have a ring.
    vmsplice(fd: c_int, pieces: *const c_void, count: usize, flags: c_uint) -> isize, c"vmsplice",
    |fd, _, _, _| splice_error([fd, -1])
);
interpose!(
    /// Replaces `sendfile(2)`. Fails with `EINVAL` if an edge may have a ring.
    sendfile(to: c_int, from: c_int, at: *mut c_void, count: usize) -> isize, c"sendfile",
    |to, from, _, _| splice_error([to, from])
);
interpose!(
    /// Replaces `sendfile(2)` with large offsets, like `sendfile`.
    sendfile64(to: c_int, from: c_int, at: *mut c_void, count: usize) -> isize, c"sendfile64",
    |to, from, _, _| splice_error([to, from])
);

interpose!(
    /// Replaces `copy_file_range(2)`. First updates the kernel's file positions, which lazy reads
    /// do not advance. Does not handle edges, because this system call rejects pipes.
    copy_file_range(from: c_int, a: *mut c_void, to: c_int, b: *mut c_void, count: usize,
        flags: c_uint) -> isize, c"copy_file_range",
    |from, _, to, _, _, _| { lazy::sync_file_position(from); lazy::sync_file_position(to); None }
);
interpose!(
    /// Replaces `lseek(2)`. First sets the kernel's file position, which lazy reads do not advance.
    lseek(fd: c_int, at: i64, from: c_int) -> i64, c"lseek",
    |fd, _, _| { lazy::sync_file_position(fd); None }
);
interpose!(
    /// Replaces `lseek(2)` with large offsets, like `lseek`.
    lseek64(fd: c_int, at: i64, from: c_int) -> i64, c"lseek64",
    |fd, _, _| { lazy::sync_file_position(fd); None }
);

interpose!(
    /// Replaces `prctl(2)`. Records that the program restricts its system calls (`PR_SET_SECCOMP`).
    /// `PR_SET_NO_NEW_PRIVS`, which an unprivileged program must set first, also counts as a
    /// restriction.
    prctl(option: c_int, a: c_ulong, b: c_ulong, c: c_ulong, d: c_ulong) -> c_int, c"prctl",
    |option, _, _, _, _| {
        if preload::RESTRICTING_PRCTL_OPTIONS.contains(&option) {
            crate::writing::record_syscall_restriction();
        }
        None
    }
);

type OpenFn = unsafe extern "C" fn(*const c_char, c_int, c_uint) -> c_int;
type OpenAtFn = unsafe extern "C" fn(c_int, *const c_char, c_int, c_uint) -> c_int;

/// Defines exported functions that open a file. The `mode` argument is optional in C, so its
/// register is passed on without being interpreted.
macro_rules! opens {
    ($($name:ident($($arg:ident: $type:ty),*) $real:literal as $kind:ty),+ $(,)?) => { $(
        #[doc = concat!("`", stringify!($name), "`.")]
        ///
        /// # Safety
        /// The arguments must meet the requirements of the C library function.
        #[unsafe(no_mangle)]
        pub unsafe extern "C" fn $name($($arg: $type),*) -> c_int {
            let Some(next) = next_function!($real as $kind) else { return missing_function() };
            // SAFETY: I1; the arguments are the program's.
            let number = unsafe { next($($arg),*) };
            if number >= 0 {
                catch_panic_and_preserve_errno(|| lazy::record_opened_file(number));
            }
            number
        }
    )+ };
}

opens! {
    open(path: *const c_char, flags: c_int, mode: c_uint) c"open" as OpenFn,
    open64(path: *const c_char, flags: c_int, mode: c_uint) c"open64" as OpenFn,
    openat(at: c_int, path: *const c_char, flags: c_int, mode: c_uint) c"openat" as OpenAtFn,
    openat64(at: c_int, path: *const c_char, flags: c_int, mode: c_uint) c"openat64" as OpenAtFn,
}

/// Replaces `closefrom(3)`. Handles each descriptor from `first` on like `close`.
///
/// # Safety
/// The arguments must meet the requirements of the C library function.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn closefrom(first: c_int) {
    catch_panic(
        || (),
        || close_range_of_descriptors(c_uint::try_from(first).unwrap_or(0), c_uint::MAX),
    );
    if let Some(next) = next_function!(c"closefrom" as unsafe extern "C" fn(c_int)) {
        // SAFETY: I1; the argument is the program's.
        unsafe { next(first) }
    }
}

/// Replaces `freopen(3)`. Handles the stream's descriptor like `close` first.
///
/// # Safety
/// The arguments must meet the requirements of the C library function.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn freopen(
    path: *const c_char,
    mode: *const c_char,
    file: *mut c_void,
) -> *mut c_void {
    type FreopenFn = unsafe extern "C" fn(*const c_char, *const c_char, *mut c_void) -> *mut c_void;
    catch_panic(|| (), || close_descriptor(stream_descriptor(file)));
    match next_function!(c"freopen" as FreopenFn) {
        // SAFETY: I1; the arguments are the program's.
        Some(next) => unsafe { next(path, mode, file) },
        None => ptr::null_mut(),
    }
}

// ---- copies

interpose_duplication! {
    replaced: close_descriptor,
    duplicated: |from, to| {
        edge_ends::record_duplicate(from, to);
        lazy::record_duplicate(from, to);
    }
}

// ---- hooks that run before a call

/// An element of the array passed to `poll`, laid out as `struct pollfd` in C.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct PollFd {
    fd: c_int,
    events: i16,
    revents: i16,
}

/// Handles a descriptor that is about to be closed or replaced. If it is the last descriptor of its
/// edge, closes the ring. If it is the last descriptor of a file, ends lazy reads of the file.
fn close_descriptor(fd: c_int) {
    lazy::forget_descriptor(fd);
    retire::close_descriptor(fd);
}

/// Turns the edge that ends at a descriptor into a plain pipe. Does nothing if the descriptor is
/// not an end of an edge.
fn retire_edge(fd: c_int) {
    if let Some(shared_edge) = edge_ends::find_edge(fd) {
        retire::retire_edge(shared_edge, RetireReason::Query);
    }
}

fn retire_polled_edges(entries: *const PollFd, count: c_ulong) {
    let count = usize::try_from(count).unwrap_or(0);
    if edge_ends::shared_edges().is_empty() || entries.is_null() {
        return;
    }
    for at in 0..count {
        // SAFETY: poll(2) requires as many entries as the program passes.
        let entry = unsafe { entries.wrapping_add(at).read() };
        retire_edge(entry.fd);
    }
}

fn retire_selected_edges(count: c_int, sets: [*const c_ulong; 2]) {
    const SET_WORD_BITS: usize = c_ulong::BITS as usize;
    if edge_ends::shared_edges().is_empty() {
        return;
    }
    let count = usize::try_from(count).unwrap_or(0).min(1024);
    for set in sets.into_iter().filter(|set| !set.is_null()) {
        for number in 0..count {
            // SAFETY: select(2) requires sets of at least `count` bits, in words.
            let word = unsafe { set.wrapping_add(number / SET_WORD_BITS).read() };
            if word >> (number % SET_WORD_BITS) & 1 == 1 {
                retire_edge(c_int::try_from(number).unwrap_or(-1));
            }
        }
    }
}

/// Returns `EINVAL` if splicing from or to these descriptors must fail, because one of them is an
/// end of an edge that may have a ring. Returns `None` otherwise. First updates the kernel's
/// positions in files among the descriptors, which lazy reads do not advance.
fn splice_error(numbers: [c_int; 2]) -> Option<c_int> {
    numbers.into_iter().for_each(lazy::sync_file_position);
    let live = |number: c_int| {
        edge_ends::find_edge(number).is_some_and(|shared_edge| !shared_edge.is_pipe())
    };
    numbers.into_iter().any(live).then_some(preload::EINVAL)
}

fn close_range_of_descriptors(first: c_uint, last: c_uint) {
    let end = last.min(1023);
    (first..=end).for_each(|number| close_descriptor(c_int::try_from(number).unwrap_or(-1)));
}

/// Returns the descriptor of a stream of the C library; -1 for null.
fn stream_descriptor(file: *mut c_void) -> c_int {
    match next_function!(c"fileno" as unsafe extern "C" fn(*mut c_void) -> c_int) {
        // SAFETY: I1; the program passes an open stream.
        Some(next) if !file.is_null() => unsafe { next(file) },
        _ => -1,
    }
}
