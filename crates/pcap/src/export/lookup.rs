//! Lookup of libpcap's functions at run time, with `dlsym(3)`. Python's ctypes, on which scapy is
//! based, finds functions by this means, bypassing every preloaded library.
//!
//! `dlsym` is replaced by a function that returns this library's function if the program asks for a
//! function of libpcap. Otherwise it jumps to the real `dlsym`, because with `RTLD_NEXT` the result
//! depends on the caller's address.
//!
//! Invariants, cited below:
//! - D1 [`dlsym`] restores the stack and the argument registers before it jumps, so the real
//!   function sees the program's call unchanged.
//! - D2 [`find`] is called with the stack alignment of the calling convention (16 bytes).

use super::LIBPCAP_NAMES;
use std::ffi::{CStr, c_char, c_void};
use std::ptr::{self, NonNull};
use sys::preload::interpose::{CLibraryLookup, LibraryHandle, catch_panic_and_preserve_errno};
use sys::preload::loaded_symbol;

/// The result of [`find`], in two registers.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
struct LookupResult {
    /// This library's function, which `dlsym` returns; null to call the real `dlsym`.
    replacement: *mut c_void,
    /// The real `dlsym`.
    real: *const c_void,
}

/// Replaces `dlsym(3)`. Returns this library's function in place of a function of libpcap.
///
/// # Safety
/// The arguments must be as the manual page requires.
#[unsafe(no_mangle)]
#[unsafe(naked)]
pub unsafe extern "C" fn dlsym(handle: *mut c_void, name: *const c_char) -> *mut c_void {
    #[cfg(target_arch = "x86_64")]
    // D2: two registers, 8 bytes and the return address are a multiple of 16 bytes.
    std::arch::naked_asm!(
        "push rdi", "push rsi", "sub rsp, 8",
        "call {find}",
        "add rsp, 8", "pop rsi", "pop rdi",
        "test rax, rax",
        "jnz 2f",
        "jmp rdx",
        "2:",
        "ret",
        find = sym find,
    );
    #[cfg(target_arch = "aarch64")]
    std::arch::naked_asm!(
        "stp x29, x30, [sp, #-32]!",
        "stp x0, x1, [sp, #16]",
        "bl {find}",
        "mov x16, x1",
        "mov x17, x0",
        "ldp x0, x1, [sp, #16]",
        "ldp x29, x30, [sp], #32",
        "cbnz x17, 2f",
        "br x16",
        "2:",
        "mov x0, x17",
        "ret",
        find = sym find,
    );
}

/// Finds the function that a call to `dlsym` returns, or the real `dlsym` to jump to.
extern "C" fn find(handle: *mut c_void, name: *const c_char) -> LookupResult {
    let Some(real) = CLibraryLookup::get() else {
        return LookupResult {
            replacement: ptr::null_mut(),
            real: find_no_symbol as *const c_void,
        };
    };
    let library = LibraryHandle::from_dlopen(handle).filter(|_| !name.is_null());
    let ours = library.and_then(|handle| {
        // SAFETY: dlsym(3) takes a C string, and `library` is `None` for a null pointer.
        let name = unsafe { CStr::from_ptr(name) };
        find_replacement_function(real, handle, name)
    });
    let ours = ours.map_or(ptr::null_mut(), NonNull::as_ptr);
    LookupResult { replacement: ours, real: real.address() }
}

/// Returns this library's function `name` if a lookup of the name in `handle` would find libpcap's
/// function; otherwise `None`.
fn find_replacement_function(
    real: CLibraryLookup,
    handle: LibraryHandle,
    name: &CStr,
) -> Option<NonNull<c_void>> {
    if !name.to_bytes().starts_with(b"pcap_") {
        return None;
    }
    catch_panic_and_preserve_errno(|| {
        let theirs = real.find(handle, name)?;
        if loaded_symbol(&LIBPCAP_NAMES, name) != Some(theirs) {
            return None;
        }
        // Preloaded libraries come first in the order of the loader.
        real.find_first(name).filter(|first| *first != theirs)
    })
}

/// Replacement for `dlsym` if the C library lacks it. Finds no symbol, so it always returns null.
extern "C" fn find_no_symbol(_handle: *mut c_void, _name: *const c_char) -> *mut c_void {
    ptr::null_mut()
}
