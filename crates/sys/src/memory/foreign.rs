//! Copies to and from memory that another party accesses concurrently.
//!
//! The copies are written in assembly. To Rust they are foreign code, which is allowed to race and
//! to move more than one word at a time. A copy may be torn, just like a word-by-word copy; the
//! protocol of each caller detects torn copies.

use std::sync::atomic::AtomicU64;

/// Minimum length in bytes for [`copy_bytes`]. Shorter ranges are copied faster word by word.
pub const COPY_LENGTH_MIN: usize = 16;
/// Minimum length in bytes of a copy for which AVX gains more than the final `vzeroupper` costs.
const AVX_LENGTH_MIN: usize = 192;
/// Minimum length in bytes at which libc's memcpy is used for copies within private memory.
pub const LIBC_COPY_LENGTH_MIN: usize = 1 << 20;
/// Minimum length in bytes of a copy for which aligning stores to 32 bytes gains more than it
/// costs.
const ALIGNED_LENGTH_MIN: usize = 1024;

/// Copies `length` bytes: 64 at a time, then 16 at a time, then the last 16 again, overlapping.
///
/// The same loop is used for all lengths, because `rep movsb` is up to four times slower for blocks
/// of 4 KB and more that another CPU has just written (`bench pipe`, two cores, same cache).
///
/// # Safety
///
/// `length` bytes must be readable at `from` and writable at `to`, `length` must be at least
/// [`COPY_LENGTH_MIN`], and the ranges must not overlap. If another party accesses a range
/// concurrently, no Rust reference to the range may exist.
#[inline(always)]
pub unsafe fn copy_bytes(from: *const u8, to: *mut u8, length: usize) {
    debug_assert!(length >= COPY_LENGTH_MIN);
    if length >= AVX_LENGTH_MIN && std::arch::is_x86_feature_detected!("avx") {
        // SAFETY: the caller's promise, and the CPU has AVX.
        return unsafe { copy_with_avx(from, to, length) };
    }
    // SAFETY: by the caller's promise every access is in the two ranges. A concurrent writer can
    // make the copy torn, which the caller expects.
    unsafe {
        std::arch::asm!(
            "sub {left}, 64",
            "jb 3f",
            ".p2align 4",
            "2:",
            "movups {a}, xmmword ptr [{from}]",
            "movups {b}, xmmword ptr [{from} + 16]",
            "movups {c}, xmmword ptr [{from} + 32]",
            "movups {d}, xmmword ptr [{from} + 48]",
            "movups xmmword ptr [{to}], {a}",
            "movups xmmword ptr [{to} + 16], {b}",
            "movups xmmword ptr [{to} + 32], {c}",
            "movups xmmword ptr [{to} + 48], {d}",
            "add {from}, 64",
            "add {to}, 64",
            "sub {left}, 64",
            "jae 2b",
            "cmp {left}, -64",
            "je 6f",
            "3:",
            "add {left}, 48",
            "js 5f",
            "4:",
            "movups {a}, xmmword ptr [{from}]",
            "movups xmmword ptr [{to}], {a}",
            "add {from}, 16",
            "add {to}, 16",
            "sub {left}, 16",
            "jns 4b",
            "cmp {left}, -16",
            "je 6f",
            "5:",
            "movups {a}, xmmword ptr [{from} + {left}]",
            "movups xmmword ptr [{to} + {left}], {a}",
            "6:",
            from = inout(reg) from => _,
            to = inout(reg) to => _,
            left = inout(reg) length => _,
            a = out(xmm_reg) _,
            b = out(xmm_reg) _,
            c = out(xmm_reg) _,
            d = out(xmm_reg) _,
            options(nostack),
        );
    }
}

/// Copies at least [`COPY_LENGTH_MIN`] bytes into words that other parties may read concurrently. A
/// concurrent reader may see a torn copy.
///
/// # Panics
///
/// If the lengths of `bytes` and `words` differ, or are below [`COPY_LENGTH_MIN`].
#[inline]
pub fn copy_into_words(bytes: &[u8], words: &[AtomicU64]) {
    assert!(bytes.len() == size_of_val(words) && bytes.len() >= COPY_LENGTH_MIN, "invalid length");
    let to = words.as_ptr().cast_mut().cast::<u8>();
    // SAFETY: the words have room for as many bytes (asserted) and are borrowed. As atomics they
    // may be written through a shared reference; so `bytes`, which may not be written, are
    // elsewhere.
    unsafe { copy_bytes(bytes.as_ptr(), to, bytes.len()) }
}

/// Copies at least [`AVX_LENGTH_MIN`] bytes with AVX: 128 at a time, then the last 128 again. A
/// copy of at least [`ALIGNED_LENGTH_MIN`] bytes first copies 32 bytes and continues at a 32-byte
/// boundary of the destination. Blocks of a ring follow their headers, so without this alignment
/// every second store would cross a cache line.
///
/// # Safety
///
/// The requirements of [`copy_bytes`] must hold, `length` must be at least [`AVX_LENGTH_MIN`], and
/// the CPU must support AVX.
#[inline(never)]
unsafe fn copy_with_avx(from: *const u8, to: *mut u8, length: usize) {
    // SAFETY: as in `copy_bytes`, which has detected AVX; `vzeroupper` restores the register state
    // that callers expect.
    unsafe {
        std::arch::asm!(
            "cmp {left}, {lined}",
            "jb 8f",
            "vmovups {a:y}, ymmword ptr [{from}]",
            "vmovups ymmword ptr [{to}], {a:y}",
            "mov {skip}, {to}",
            "neg {skip}",
            "and {skip}, 31",
            "add {from}, {skip}",
            "add {to}, {skip}",
            "sub {left}, {skip}",
            "8:",
            "sub {left}, 128",
            ".p2align 4",
            "2:",
            "vmovups {a:y}, ymmword ptr [{from}]",
            "vmovups {b:y}, ymmword ptr [{from} + 32]",
            "vmovups {c:y}, ymmword ptr [{from} + 64]",
            "vmovups {d:y}, ymmword ptr [{from} + 96]",
            "vmovups ymmword ptr [{to}], {a:y}",
            "vmovups ymmword ptr [{to} + 32], {b:y}",
            "vmovups ymmword ptr [{to} + 64], {c:y}",
            "vmovups ymmword ptr [{to} + 96], {d:y}",
            "sub {from}, -128",
            "sub {to}, -128",
            "sub {left}, 128",
            "jae 2b",
            "cmp {left}, -128",
            "je 3f",
            "vmovups {a:y}, ymmword ptr [{from} + {left}]",
            "vmovups {b:y}, ymmword ptr [{from} + {left} + 32]",
            "vmovups {c:y}, ymmword ptr [{from} + {left} + 64]",
            "vmovups {d:y}, ymmword ptr [{from} + {left} + 96]",
            "vmovups ymmword ptr [{to} + {left}], {a:y}",
            "vmovups ymmword ptr [{to} + {left} + 32], {b:y}",
            "vmovups ymmword ptr [{to} + {left} + 64], {c:y}",
            "vmovups ymmword ptr [{to} + {left} + 96], {d:y}",
            "3:",
            "vzeroupper",
            from = inout(reg) from => _,
            to = inout(reg) to => _,
            left = inout(reg) length => _,
            skip = out(reg) _,
            lined = const ALIGNED_LENGTH_MIN,
            a = out(xmm_reg) _,
            b = out(xmm_reg) _,
            c = out(xmm_reg) _,
            d = out(xmm_reg) _,
            options(nostack),
        );
    }
}
