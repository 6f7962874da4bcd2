//! Functions before which an edge goes back to a pipe, and which then run as if they had been
//! called themselves: some never return here (`execve`), some return twice (`vfork`), some take any
//! number of arguments. So these are leaps: everything that an argument may be in is kept, the
//! edges are put in order, and the real function is jumped to.
//!
//! Invariants, cited below:
//! - L1 A leap leaves every register in which arguments or the address to return to may be as it
//!   was, and the stack too; so the real function sees the caller's call.
//! - L2 [`before`] is called with the stack as the calling convention asks (16 bytes).

use crate::retire::{self, Why};
use std::ffi::{CStr, c_void};
use std::sync::atomic::AtomicPtr;
use sys::preload;

/// The functions, in the order of their leaps.
const NAMES: [(&CStr, Why); 14] = [
    (c"vfork", Why::Fork),
    (c"clone", Why::Fork),
    (c"system", Why::Fork),
    (c"popen", Why::Fork),
    (c"posix_spawn", Why::Fork),
    (c"posix_spawnp", Why::Fork),
    (c"execve", Why::Exec),
    (c"execv", Why::Exec),
    (c"execvp", Why::Exec),
    (c"execvpe", Why::Exec),
    (c"execl", Why::Exec),
    (c"execlp", Why::Exec),
    (c"execle", Why::Exec),
    (c"fexecve", Why::Exec),
];

static NEXT: [AtomicPtr<c_void>; NAMES.len()] =
    [const { AtomicPtr::new(std::ptr::null_mut()) }; NAMES.len()];

/// Puts the edges in order and answers where to leap to.
extern "C" fn before(which: usize) -> *const c_void {
    let errno = preload::errno();
    let Some(((name, why), next)) = NAMES.get(which).zip(NEXT.get(which)) else {
        return nowhere as *const c_void;
    };
    super::guarded(
        || (),
        || {
            crate::lazy::stop();
            retire::all(*why);
        },
    );
    preload::set_errno(errno);
    match super::behind(next, name) {
        found if found.is_null() => nowhere as *const c_void,
        found => found,
    }
}

/// Returns the failure of a function that the C library lacks.
extern "C" fn nowhere() -> isize {
    super::missing()
}

macro_rules! leaps {
    ($($which:literal $name:ident $manual:literal),+ $(,)?) => { $(
        #[doc = concat!("`", $manual, "`, after the edges were put in order.")]
        ///
        /// # Safety
        /// That of the function: it gets the call as it came (L1).
        #[unsafe(no_mangle)]
        #[unsafe(naked)]
        pub unsafe extern "C" fn $name() {
            #[cfg(target_arch = "x86_64")]
            // L2: seven registers and the return address are a multiple of 16 bytes.
            std::arch::naked_asm!(
                "push rdi", "push rsi", "push rdx", "push rcx", "push r8", "push r9", "push rax",
                "mov edi, {which}",
                "call {before}",
                "mov r11, rax",
                "pop rax", "pop r9", "pop r8", "pop rcx", "pop rdx", "pop rsi", "pop rdi",
                "jmp r11",
                which = const $which,
                before = sym before,
            );
            #[cfg(target_arch = "aarch64")]
            std::arch::naked_asm!(
                "stp x0, x1, [sp, #-80]!",
                "stp x2, x3, [sp, #16]",
                "stp x4, x5, [sp, #32]",
                "stp x6, x7, [sp, #48]",
                "stp x8, x30, [sp, #64]",
                "mov x0, #{which}",
                "bl {before}",
                "mov x16, x0",
                "ldp x2, x3, [sp, #16]",
                "ldp x4, x5, [sp, #32]",
                "ldp x6, x7, [sp, #48]",
                "ldp x8, x30, [sp, #64]",
                "ldp x0, x1, [sp], #80",
                "br x16",
                which = const $which,
                before = sym before,
            );
        }
    )+ };
}

leaps! {
    0 vfork "vfork(2)",
    1 clone "clone(2)",
    2 system "system(3)",
    3 popen "popen(3)",
    4 posix_spawn "posix_spawn(3)",
    5 posix_spawnp "posix_spawnp(3)",
    6 execve "execve(2)",
    7 execv "execv(3)",
    8 execvp "execvp(3)",
    9 execvpe "execvpe(3)",
    10 execl "execl(3)",
    11 execlp "execlp(3)",
    12 execle "execle(3)",
    13 fexecve "fexecve(3)",
}
