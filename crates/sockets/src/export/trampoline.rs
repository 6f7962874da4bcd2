//! Trampolines: exported functions that turn all edges into pipes and then jump to a function of
//! the C library. Rust cannot call these functions, because they do not return (`execve`), return
//! twice (`vfork`), or are variadic. A trampoline saves all argument registers, handles the edges,
//! and jumps.
//!
//! Invariants, cited below:
//! - L1 A trampoline restores the stack and every register that may hold an argument or the return
//!   address, so the next function sees the call of the program.
//! - L2 [`prepare`] is called with the stack alignment of the calling convention (16 bytes).

use crate::retire::{self, RetireReason};
use std::ffi::c_void;
use sys::preload::interpose::{self, Symbol, catch_panic_and_preserve_errno};

/// The functions, in the order of their trampolines, each with the reason why the edges become
/// pipes.
static TRAMPOLINE_TARGETS: [(Symbol, RetireReason); 14] = [
    (Symbol::new(c"vfork", &[]), RetireReason::Fork),
    (Symbol::new(c"clone", &[]), RetireReason::Fork),
    (Symbol::new(c"system", &[]), RetireReason::Fork),
    (Symbol::new(c"popen", &[]), RetireReason::Fork),
    (Symbol::new(c"posix_spawn", &[]), RetireReason::Fork),
    (Symbol::new(c"posix_spawnp", &[]), RetireReason::Fork),
    (Symbol::new(c"execve", &[]), RetireReason::Exec),
    (Symbol::new(c"execv", &[]), RetireReason::Exec),
    (Symbol::new(c"execvp", &[]), RetireReason::Exec),
    (Symbol::new(c"execvpe", &[]), RetireReason::Exec),
    (Symbol::new(c"execl", &[]), RetireReason::Exec),
    (Symbol::new(c"execlp", &[]), RetireReason::Exec),
    (Symbol::new(c"execle", &[]), RetireReason::Exec),
    (Symbol::new(c"fexecve", &[]), RetireReason::Exec),
];

/// Turns all edges into pipes. Returns the address to which trampoline number `which` jumps.
extern "C" fn prepare(which: usize) -> *const c_void {
    let Some((symbol, why)) = TRAMPOLINE_TARGETS.get(which) else {
        return missing_function as *const c_void;
    };
    catch_panic_and_preserve_errno(|| {
        crate::lazy::stop();
        retire::retire_all_edges(*why);
    });
    match symbol.address() {
        found if found.is_null() => missing_function as *const c_void,
        found => found,
    }
}

/// Returns -1 with `ENOSYS`, for a function that the C library lacks.
extern "C" fn missing_function() -> isize {
    interpose::missing_function()
}

macro_rules! trampolines {
    ($($which:literal $name:ident $manual:literal),+ $(,)?) => { $(
        #[doc = concat!("`", $manual, "`, after turning edges into pipes.")]
        ///
        /// # Safety
        /// The arguments must meet the requirements of the C library function, which receives them
        /// unchanged (L1).
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
                before = sym prepare,
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
                before = sym prepare,
            );
        }
    )+ };
}

trampolines! {
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
