//! Calls on descriptors: closing, copying, connecting, options; and forks.

use super::{missing_function, quietly};
use crate::socket::Socket;
use crate::table;
use std::ffi::{c_int, c_uint, c_ulong, c_void};
use std::ptr;
use sys::preload::{self, udp};

#[used]
#[unsafe(link_section = ".init_array")]
static START: extern "C" fn() = start;

#[used]
#[unsafe(link_section = ".fini_array")]
static END: extern "C" fn() = end;

type Handler = Option<extern "C" fn()>;
type Register = unsafe extern "C" fn(Handler, Handler, Handler, *mut c_void) -> c_int;

extern "C" fn start() {
    quietly(crate::promotion::look_for_rules);
    if let Some(register) = real!(c"__register_atfork" as Register) {
        // SAFETY: U1; the handlers are functions of this library, which is never unloaded.
        unsafe { register(Some(before_fork), None, Some(in_child), ptr::null_mut()) };
    }
}

/// Ends the rings at the exit of the program, so that they are reported.
extern "C" fn end() {
    quietly(|| table::each(Socket::close));
}

/// Returns all sockets to the kernel, because the child reads the placeholders too.
extern "C" fn before_fork() {
    quietly(|| table::each(Socket::demote));
}

extern "C" fn in_child() {
    quietly(table::forget_in_child);
}

/// Defines an exported function that runs a hook before the function of the C library.
macro_rules! passed {
    (
        $(#[$doc:meta])*
        $name:ident($($arg:ident: $type:ty),*) -> $answer:ty, $real:literal, $before:expr
    ) => {
        $(#[$doc])*
        ///
        /// # Safety
        /// The arguments must meet the requirements of the C library function, which receives them
        /// unchanged.
        #[unsafe(no_mangle)]
        pub unsafe extern "C" fn $name($($arg: $type),*) -> $answer {
            let before: fn($($type),*) = $before;
            quietly(|| before($($arg),*));
            match real!($real as unsafe extern "C" fn($($type),*) -> $answer) {
                // SAFETY: U1; the arguments are the program's.
                Some(next) => unsafe { next($($arg),*) },
                None => missing_function(),
            }
        }
    };
}

passed!(
    /// `close(2)`.
    close(number: c_int) -> c_int, c"close", table::forget
);
passed!(
    /// `close_range(2)`.
    close_range(first: c_uint, last: c_uint, flags: c_int) -> c_int, c"close_range",
    |first, last, _| {
        for number in first..=last.min(u32::from(u16::MAX)) {
            table::forget(number.cast_signed());
        }
    }
);
passed!(
    /// `bind(2)`: a socket whose port another one is to share becomes the kernel's.
    bind(number: c_int, address: *const c_void, size: c_uint) -> c_int, c"bind",
    |_, address, size| {
        if !address.is_null() && size >= 4 && !table::has_no_promoted() {
            // SAFETY: U2: the address has `size` bytes. The port is at the same place in all
            // families.
            let place = unsafe { address.cast::<[u8; 2]>().add(1) };
            // SAFETY: U2.
            let port = unsafe { place.read() };
            table::each(|socket| {
                if socket.has_port(u16::from_be_bytes(port)) {
                    socket.demote();
                }
            });
        }
    }
);
passed!(
    /// `connect(2)`: a connected socket is the kernel's.
    connect(number: c_int, address: *const c_void, size: c_uint) -> c_int, c"connect",
    |number, _, _| demote(number)
);
passed!(
    /// `shutdown(2)`: the socket becomes the kernel's.
    shutdown(number: c_int, how: c_int) -> c_int, c"shutdown", |number, _| demote(number)
);
passed!(
    /// `setsockopt(2)`: with an option that only the kernel serves, the socket becomes the
    /// kernel's.
    setsockopt(number: c_int, level: c_int, name: c_int, value: *const c_void, size: c_uint)
        -> c_int, c"setsockopt",
    |number, level, name, _, _| if udp::is_obstacle(level, name) { demote(number) }
);

/// Returns a promoted socket to the kernel.
fn demote(number: c_int) {
    if let Some(socket) = table::find_promoted(number) {
        socket.demote();
    }
}

fn finish_duplicate(from: c_int, to: c_int) -> c_int {
    if to >= 0 {
        quietly(|| table::record_duplicate(from, to));
    }
    to
}

/// `dup(2)`.
///
/// # Safety
/// No requirements; the function is unsafe only as a foreign function.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn dup(from: c_int) -> c_int {
    match real!(c"dup" as unsafe extern "C" fn(c_int) -> c_int) {
        // SAFETY: U1; dup(2) takes any number.
        Some(next) => finish_duplicate(from, unsafe { next(from) }),
        None => missing_function(),
    }
}

/// `dup2(2)`.
///
/// # Safety
/// No requirements; the function is unsafe only as a foreign function.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn dup2(from: c_int, to: c_int) -> c_int {
    let Some(next) = real!(c"dup2" as unsafe extern "C" fn(c_int, c_int) -> c_int) else {
        return missing_function();
    };
    // SAFETY: U1; dup2(2) takes any numbers.
    let copy = unsafe { next(from, to) };
    if from == to { copy } else { finish_duplicate(from, copy) }
}

/// `dup3(2)`.
///
/// # Safety
/// No requirements; the function is unsafe only as a foreign function.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn dup3(from: c_int, to: c_int, flags: c_int) -> c_int {
    match real!(c"dup3" as unsafe extern "C" fn(c_int, c_int, c_int) -> c_int) {
        // SAFETY: U1; dup3(2) takes any numbers.
        Some(next) => finish_duplicate(from, unsafe { next(from, to, flags) }),
        None => missing_function(),
    }
}

type Control = unsafe extern "C" fn(c_int, c_int, c_ulong) -> c_int;

/// `fcntl(2)`. The third argument, a number or an address, fits into a word.
///
/// # Safety
/// The arguments must meet the requirements of the C library function.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn fcntl(number: c_int, command: c_int, argument: c_ulong) -> c_int {
    control(real!(c"fcntl" as Control), number, command, argument)
}

/// `fcntl(2)` with large offsets.
///
/// # Safety
/// The arguments must meet the requirements of the C library function.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn fcntl64(number: c_int, command: c_int, argument: c_ulong) -> c_int {
    control(real!(c"fcntl64" as Control), number, command, argument)
}

fn control(next: Option<Control>, number: c_int, command: c_int, argument: c_ulong) -> c_int {
    let Some(next) = next else { return missing_function() };
    // SAFETY: U1; the arguments are the program's.
    let answer = unsafe { next(number, command, argument) };
    if matches!(command, preload::F_DUPFD | preload::F_DUPFD_CLOEXEC) {
        return finish_duplicate(number, answer);
    }
    answer
}
