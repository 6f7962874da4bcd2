//! Interposition: exported functions of a preloaded library that run a hook and then call the
//! function of the same name in the next library.
//!
//! The macros here expand to unsafe code in the files that export functions. Invariants, cited
//! there:
//! - I1 [`Symbol::address`] returns the function of that name in the next library, as found by the
//!   loader. The function is called with the type that its manual page specifies.
//! - I2 The hooks of an interposed function run before or after the call and change none of its
//!   arguments.

use super::{errno, loaded_symbol, next_symbol, set_errno};
use std::ffi::{CStr, c_char, c_int, c_void};
use std::ptr::{self, NonNull};
use std::sync::atomic::{AtomicPtr, Ordering};

/// A symbol of another library, whose address is cached once it is found.
#[derive(Debug)]
pub struct Symbol {
    name: &'static CStr,
    /// Libraries that are searched if no later library in the loader's order has the symbol.
    libraries: &'static [&'static CStr],
    address: AtomicPtr<c_void>,
}

impl Symbol {
    /// Creates a symbol that has not been looked up yet.
    #[must_use]
    pub const fn new(name: &'static CStr, libraries: &'static [&'static CStr]) -> Self {
        Self { name, libraries, address: AtomicPtr::new(ptr::null_mut()) }
    }

    /// Returns the address of the symbol's next definition after this library in the loader's
    /// order. If there is none, returns the address of its definition in the first of `libraries`
    /// that is loaded; null if there is none either.
    pub fn address(&self) -> *mut c_void {
        let known = self.address.load(Ordering::Acquire);
        if !known.is_null() {
            return known;
        }
        let found = next_symbol(self.name).or_else(|| loaded_symbol(self.libraries, self.name));
        let found = found.map_or(ptr::null_mut(), NonNull::as_ptr);
        self.address.store(found, Ordering::Release);
        found
    }
}

/// Returns the function of this name and type in the next library, or `None` if there is none:
/// `next_function!(c"close" as unsafe extern "C" fn(c_int) -> c_int)`. An optional array after `in`
/// names further libraries to search if they are loaded. The type must be that of the function
/// (I1).
#[macro_export]
macro_rules! next_function {
    ($name:literal as $type:ty) => {
        $crate::next_function!($name as $type, in [])
    };
    ($name:literal as $type:ty, in $libraries:expr) => {{
        static SYMBOL: $crate::preload::interpose::Symbol =
            $crate::preload::interpose::Symbol::new($name, &$libraries);
        let address = SYMBOL.address();
        // SAFETY: I1; a function pointer and an optional function have the same size, and null is
        // `None`.
        unsafe { std::mem::transmute::<*mut std::ffi::c_void, Option<$type>>(address) }
    }};
}

/// Defines an exported function that runs a hook before the C library's function of the same name.
/// If the hook returns an error number, the call fails with that number; otherwise the arguments
/// are passed on unchanged. A second, optional hook, `after`, runs after the function.
#[macro_export]
macro_rules! interpose {
    (
        $(#[$doc:meta])*
        $name:ident($($arg:ident: $type:ty),*) -> $answer:ty, $next:literal, $before:expr
        $(, after: $after:expr)?
    ) => {
        $(#[$doc])*
        ///
        /// # Safety
        /// The arguments must meet the requirements of the C library function, which receives them
        /// unchanged.
        #[unsafe(no_mangle)]
        pub unsafe extern "C" fn $name($($arg: $type),*) -> $answer {
            let before: fn($($type),*) -> Option<std::ffi::c_int> = $before;
            if let Some(failed) = $crate::preload::interpose::run_hook(|| before($($arg),*)) {
                return failed;
            }
            #[allow(unused_variables, reason = "most functions have one hook")]
            let run = |hook: fn($($type),*)| {
                $crate::preload::interpose::catch_panic_and_preserve_errno(|| hook($($arg),*));
            };
            let answer =
                match $crate::next_function!($next as unsafe extern "C" fn($($type),*) -> $answer)
                {
                    // SAFETY: I1; the arguments are the program's.
                    Some(next) => unsafe { next($($arg),*) },
                    None => $crate::preload::interpose::missing_function(),
                };
            $(run($after);)?
            answer
        }
    };
}

/// Defines the functions that duplicate descriptors: `dup`, `dup2`, `dup3`, `fcntl`, `fcntl64`.
/// Before a call that may close a descriptor, `replaced` runs with the number of that descriptor.
/// After a successful call, `duplicated` runs with the numbers of the original and the copy.
#[macro_export]
macro_rules! interpose_duplication {
    (replaced: $replaced:expr, duplicated: $duplicated:expr) => {
        fn finish_duplicate(from: std::ffi::c_int, to: std::ffi::c_int) -> std::ffi::c_int {
            let duplicated: fn(std::ffi::c_int, std::ffi::c_int) = $duplicated;
            if to >= 0 && to != from {
                $crate::preload::interpose::catch_panic_and_preserve_errno(|| duplicated(from, to));
            }
            to
        }

        fn begin_replacement(from: std::ffi::c_int, to: std::ffi::c_int) {
            let replaced: fn(std::ffi::c_int) = $replaced;
            if from != to {
                $crate::preload::interpose::catch_panic_and_preserve_errno(|| replaced(to));
            }
        }

        type Duplicate = unsafe extern "C" fn(std::ffi::c_int) -> std::ffi::c_int;
        type Dup2Fn = unsafe extern "C" fn(std::ffi::c_int, std::ffi::c_int) -> std::ffi::c_int;
        type Dup3Fn = unsafe extern "C" fn(
            std::ffi::c_int,
            std::ffi::c_int,
            std::ffi::c_int,
        ) -> std::ffi::c_int;

        /// Replacement for `dup(2)`.
        ///
        /// # Safety
        ///
        /// No requirements; the function is unsafe only because it has the type of a C
        /// function.
        #[unsafe(no_mangle)]
        pub unsafe extern "C" fn dup(from: std::ffi::c_int) -> std::ffi::c_int {
            match $crate::next_function!(c"dup" as Duplicate) {
                // SAFETY: I1; dup(2) accepts any number.
                Some(next) => finish_duplicate(from, unsafe { next(from) }),
                None => $crate::preload::interpose::missing_function(),
            }
        }

        /// Replacement for `dup2(2)`.
        ///
        /// # Safety
        ///
        /// No requirements; the function is unsafe only because it has the type of a C
        /// function.
        #[unsafe(no_mangle)]
        pub unsafe extern "C" fn dup2(
            from: std::ffi::c_int,
            to: std::ffi::c_int,
        ) -> std::ffi::c_int {
            begin_replacement(from, to);
            match $crate::next_function!(c"dup2" as Dup2Fn) {
                // SAFETY: I1; dup2(2) accepts any numbers.
                Some(next) => finish_duplicate(from, unsafe { next(from, to) }),
                None => $crate::preload::interpose::missing_function(),
            }
        }

        /// Replacement for `dup3(2)`.
        ///
        /// # Safety
        ///
        /// No requirements; the function is unsafe only because it has the type of a C
        /// function.
        #[unsafe(no_mangle)]
        pub unsafe extern "C" fn dup3(
            from: std::ffi::c_int,
            to: std::ffi::c_int,
            flags: std::ffi::c_int,
        ) -> std::ffi::c_int {
            begin_replacement(from, to);
            match $crate::next_function!(c"dup3" as Dup3Fn) {
                // SAFETY: I1; dup3(2) accepts any numbers.
                Some(next) => finish_duplicate(from, unsafe { next(from, to, flags) }),
                None => $crate::preload::interpose::missing_function(),
            }
        }

        type FcntlFunction = unsafe extern "C" fn(
            std::ffi::c_int,
            std::ffi::c_int,
            std::ffi::c_ulong,
        ) -> std::ffi::c_int;

        /// Replacement for `fcntl(2)`. The third argument, a number or an address, fits into a
        /// word.
        ///
        /// # Safety
        /// The arguments must meet the requirements of the C library function.
        #[unsafe(no_mangle)]
        pub unsafe extern "C" fn fcntl(
            number: std::ffi::c_int,
            command: std::ffi::c_int,
            argument: std::ffi::c_ulong,
        ) -> std::ffi::c_int {
            control($crate::next_function!(c"fcntl" as FcntlFunction), number, command, argument)
        }

        /// Replacement for `fcntl64(2)`.
        ///
        /// # Safety
        /// The arguments must meet the requirements of the C library function.
        #[unsafe(no_mangle)]
        pub unsafe extern "C" fn fcntl64(
            number: std::ffi::c_int,
            command: std::ffi::c_int,
            argument: std::ffi::c_ulong,
        ) -> std::ffi::c_int {
            control($crate::next_function!(c"fcntl64" as FcntlFunction), number, command, argument)
        }

        fn control(
            next: Option<FcntlFunction>,
            number: std::ffi::c_int,
            command: std::ffi::c_int,
            argument: std::ffi::c_ulong,
        ) -> std::ffi::c_int {
            let Some(next) = next else {
                return $crate::preload::interpose::missing_function();
            };
            // SAFETY: I1; the arguments are the program's.
            let answer = unsafe { next(number, command, argument) };
            if matches!(command, $crate::preload::F_DUPFD | $crate::preload::F_DUPFD_CLOEXEC) {
                return finish_duplicate(number, answer);
            }
            answer
        }
    };
}

/// Runs a function of type `extern "C" fn()` when the loader has loaded this library:
/// `run_at_start!(start)`.
#[macro_export]
macro_rules! run_at_start {
    ($start:path) => {
        #[used]
        #[unsafe(link_section = ".init_array")]
        static START: extern "C" fn() = $start;
    };
}

/// Runs a function of type `extern "C" fn()` when the program exits: `run_at_exit!(end)`.
#[macro_export]
macro_rules! run_at_exit {
    ($end:path) => {
        #[used]
        #[unsafe(link_section = ".fini_array")]
        static END: extern "C" fn() = $end;
    };
}

/// Returns -1 with `ENOSYS`, for a function that the next library lacks.
pub fn missing_function<T: From<i8>>() -> T {
    set_errno(super::ENOSYS);
    T::from(-1)
}

/// Runs `body` without unwinding into C. After a panic, returns the result of `otherwise`.
pub fn catch_panic<T>(otherwise: impl FnOnce() -> T, body: impl FnOnce() -> T) -> T {
    std::panic::catch_unwind(std::panic::AssertUnwindSafe(body)).unwrap_or_else(|_| otherwise())
}

/// Runs `body`, then restores the value that `errno` had before.
pub fn with_preserved_errno<T>(body: impl FnOnce() -> T) -> T {
    let before = errno();
    let result = body();
    set_errno(before);
    result
}

/// Runs `body` without unwinding into C, then restores `errno`. After a panic, returns the default
/// value.
pub fn catch_panic_and_preserve_errno<T: Default>(body: impl FnOnce() -> T) -> T {
    with_preserved_errno(|| catch_panic(T::default, body))
}

/// Runs the hook of an interposed function. If it returns an error number, sets `errno` to it and
/// returns -1, the result of the interposed function; otherwise returns `None`.
pub fn run_hook<T: From<i8>>(hook: impl FnOnce() -> Option<c_int>) -> Option<T> {
    let number = catch_panic_and_preserve_errno(hook)?;
    set_errno(number);
    Some(T::from(-1))
}

/// Copies integers into memory that malloc(3) allocates and the program releases with free(3).
/// Returns null if there is no memory.
#[must_use]
pub fn copy_to_malloc_memory(values: &[c_int]) -> *mut c_int {
    // SAFETY: malloc(3) returns memory of this size for any type, or null.
    let place = unsafe { libc::malloc(size_of_val(values)) }.cast::<c_int>();
    if !place.is_null() {
        // SAFETY: the new memory has room for the values, and no other code has its address.
        unsafe { ptr::copy_nonoverlapping(values.as_ptr(), place, values.len()) };
    }
    place
}

type DlsymFn = unsafe extern "C" fn(*mut c_void, *const c_char) -> *mut c_void;

/// The C library's own `dlsym(3)`, for a preloaded library that exports a replacement of it.
#[derive(Clone, Copy, Debug)]
pub struct CLibraryLookup(DlsymFn);

impl CLibraryLookup {
    /// Returns the C library's `dlsym`; `None` if the C library has no known version of it.
    #[must_use]
    pub fn get() -> Option<Self> {
        static DLSYM_ADDRESS: AtomicPtr<c_void> = AtomicPtr::new(ptr::null_mut());
        let mut address = DLSYM_ADDRESS.load(Ordering::Acquire);
        if address.is_null() {
            address = find_real_dlsym()?.as_ptr();
            DLSYM_ADDRESS.store(address, Ordering::Release);
        }
        // SAFETY: I1; a function pointer and an optional function have the same size, and null is
        // `None`.
        unsafe { std::mem::transmute::<*mut c_void, Option<DlsymFn>>(address) }.map(Self)
    }

    /// Returns the address of the C library's `dlsym`.
    #[must_use]
    pub fn address(self) -> *const c_void {
        self.0 as *const c_void
    }

    /// Finds a symbol in the library that `handle` refers to and in the dependencies of that
    /// library; `None` if none of them defines it.
    #[must_use]
    pub fn find(self, handle: LibraryHandle, name: &CStr) -> Option<NonNull<c_void>> {
        // SAFETY: I1; the name is a valid C string, and dlopen(3) has returned the handle.
        NonNull::new(unsafe { (self.0)(handle.0, name.as_ptr()) })
    }

    /// Finds the first definition of a symbol in the loader's order; `None` if none exists.
    #[must_use]
    pub fn find_first(self, name: &CStr) -> Option<NonNull<c_void>> {
        self.find(LibraryHandle(libc::RTLD_DEFAULT), name)
    }
}

/// A handle from `dlopen(3)`, or a pseudo-handle for a search in the loader's order.
#[derive(Clone, Copy, Debug)]
pub struct LibraryHandle(pub(super) *mut c_void);

impl LibraryHandle {
    /// Wraps the handle that the program passes to `dlsym(3)`; `None` if it is a pseudo-handle for
    /// a search in the loader's order.
    #[must_use]
    pub fn from_dlopen(handle: *mut c_void) -> Option<Self> {
        (handle != libc::RTLD_DEFAULT && handle != libc::RTLD_NEXT).then_some(Self(handle))
    }
}

/// Finds the C library's `dlsym` by its symbol version. A search by name alone would call the
/// `dlsym` that replaces it.
#[cfg(target_env = "gnu")]
fn find_real_dlsym() -> Option<NonNull<c_void>> {
    [c"GLIBC_2.34", c"GLIBC_2.17", c"GLIBC_2.2.5"].iter().find_map(|version| {
        // SAFETY: dlvsym(3) accepts C strings.
        let found = unsafe { libc::dlvsym(libc::RTLD_NEXT, c"dlsym".as_ptr(), version.as_ptr()) };
        NonNull::new(found)
    })
}

/// Returns `None`, because libraries are preloaded only into programs of the GNU C library.
#[cfg(not(target_env = "gnu"))]
const fn find_real_dlsym() -> Option<NonNull<c_void>> {
    None
}

type ForkHandler = Option<extern "C" fn()>;
type Register = unsafe extern "C" fn(ForkHandler, ForkHandler, ForkHandler, *mut c_void) -> c_int;

/// Registers handlers of `fork(2)` for the lifetime of the process: `before` runs in the parent
/// before the fork, and `in_child` in the child after it. The functions must belong to a library
/// that is never unloaded.
pub fn at_fork(before: extern "C" fn(), in_child: extern "C" fn()) {
    if let Some(register) = next_function!(c"__register_atfork" as Register) {
        // SAFETY: I1; the handlers are functions of this library, which is never unloaded.
        unsafe { register(Some(before), None, Some(in_child), ptr::null_mut()) };
    }
}

/// `struct iovec`.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct IoVec {
    /// Address of the first byte of the buffer.
    pub base: *mut c_void,
    /// Length of the buffer in bytes.
    pub length: usize,
}
