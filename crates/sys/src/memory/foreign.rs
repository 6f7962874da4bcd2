//! Copies out of memory that another party may write at the same moment, and into memory that
//! another party may read, with instructions that copy more than a word at once: to Rust they are
//! foreign code, which may do so. What they copy may be torn, as it may be word by word; whether it
//! is, who reads finds out.

use std::sync::atomic::AtomicU64;

/// Fewer bytes are better copied word by word.
pub const COPY_MIN: usize = 16;
/// From so many bytes on wide registers are worth having their upper halves cleared afterwards.
const WIDE_MIN: usize = 192;
/// Of memory that is ours alone so many bytes and more are left to the C library's copy.
pub const LIBC_MIN: usize = 1 << 20;
/// From so many bytes on it is worth it that no store goes over the end of a line.
const ALIGN_MIN: usize = 1024;

/// Copies `length` bytes, at least [`COPY_MIN`]: 64 at a time, then 16, then the last 16 once more,
/// which may overlap.
///
/// However many there are: `rep movsb` takes up to four times as long for 4 KB and more that
/// another processor has just written (`bench pipe`, two cores, near).
///
/// # Safety
/// So many bytes from `from` on are readable and from `to` on writable, and there are [`COPY_MIN`] of
/// them at least; the two ranges do not overlap. Where another party reads or writes them meanwhile
/// no reference to them exists: to Rust this is foreign code.
#[inline(always)]
pub unsafe fn copy_bytes(from: *const u8, to: *mut u8, length: usize) {
    debug_assert!(length >= COPY_MIN);
    if length >= WIDE_MIN && std::arch::is_x86_feature_detected!("avx") {
        // SAFETY: the caller's promise, and the processor has these instructions.
        return unsafe { copy_wide(from, to, length) };
    }
    // SAFETY: by the caller's promise every access lies in the two ranges. What others do meanwhile
    // makes what is read torn, which the caller expects.
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

/// Copies bytes, at least [`COPY_MIN`], into words that others may read at the same moment: these get
/// them torn, as they do word by word.
///
/// # Panics
/// If there are not exactly as many bytes as the words have, or less than [`COPY_MIN`].
#[inline]
pub fn copy_into_words(bytes: &[u8], words: &[AtomicU64]) {
    assert!(bytes.len() == size_of_val(words) && bytes.len() >= COPY_MIN, "the caller has looked");
    let to = words.as_ptr().cast_mut().cast::<u8>();
    // SAFETY: the words have room for as many bytes (asserted) and are borrowed. As atomics they
    // may be written through a shared reference; so `bytes`, which may not, lie elsewhere.
    unsafe { copy_bytes(bytes.as_ptr(), to, bytes.len()) }
}

/// Copies as [`copy_bytes`] does, at least [`WIDE_MIN`] bytes on a processor that has AVX: 128 bytes at
/// a time, then the last 128 once more. Where there are many, 32 come first, and the others begin
/// at the next address that is a multiple of 32: blocks of a ring lie behind their headers, so that
/// else every second store went over the end of a line.
///
/// # Safety
/// As [`copy_bytes`], of at least [`WIDE_MIN`] bytes, on such a processor.
#[inline(never)]
unsafe fn copy_wide(from: *const u8, to: *mut u8, length: usize) {
    // SAFETY: as in `copy_bytes`, which has looked that the processor has these instructions; the
    // upper halves of the registers are clear again at the end, as callers expect.
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
            lined = const ALIGN_MIN,
            a = out(xmm_reg) _,
            b = out(xmm_reg) _,
            c = out(xmm_reg) _,
            d = out(xmm_reg) _,
            options(nostack),
        );
    }
}
