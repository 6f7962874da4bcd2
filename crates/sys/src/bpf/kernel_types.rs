//! Lookup of kernel functions (kfuncs) in the kernel's BTF, `/sys/kernel/btf/vmlinux`.
//!
//! BTF ids are valid only for the running kernel and must not be stored.

/// Returns the BTF id of a kernel function; `None` if the kernel lacks this function or BTF.
#[must_use]
pub fn find_kernel_function(name: &str) -> Option<u32> {
    find_btf_function(&std::fs::read("/sys/kernel/btf/vmlinux").ok()?, name)
}

/// Magic number of `struct btf_header`.
const BTF_MAGIC: u16 = 0xeb9f;
/// BTF kind of a function (BTF_KIND_FUNC).
const BTF_KIND_FUNC: u32 = 12;
/// Size of `struct btf_type` in bytes.
const BTF_TYPE_SIZE: usize = 12;

fn find_btf_function(all: &[u8], name: &str) -> Option<u32> {
    let word = |at: usize| {
        let bytes = all.get(at..at.checked_add(4)?)?.try_into().ok()?;
        Some(u32::from_ne_bytes(bytes) as usize)
    };
    if all.get(..2)? != BTF_MAGIC.to_ne_bytes() {
        return None;
    }
    let header = word(4)?;
    let (types, length) = (header + word(8)?, word(12)?);
    let names = all.get(header + word(16)?..)?.get(..word(20)?)?;
    let called = |at: usize| {
        let rest = names.get(at..)?;
        rest.strip_prefix(name.as_bytes())?.first().filter(|byte| **byte == 0)
    };
    let (mut at, end) = (types, types + length);
    let mut number = 1;
    while at < end {
        let info = u32::try_from(word(at + 4)?).ok()?;
        let (kind, count) = (info >> 24 & 0x1f, (info & 0xffff) as usize);
        if kind == BTF_KIND_FUNC && called(word(at)?).is_some() {
            return Some(number);
        }
        at += BTF_TYPE_SIZE + members_size(kind, count)?;
        number += 1;
    }
    None
}

/// Returns the number of bytes that follow the `struct btf_type` of a type of this kind with
/// `count` members; `None` for an unknown kind.
const fn members_size(kind: u32, count: usize) -> Option<usize> {
    Some(match kind {
        // Integers, variables, declaration tags.
        1 | 14 | 17 => 4,
        // Arrays.
        3 => 12,
        // Structures, unions, data sections, 64-bit enumerations.
        4 | 5 | 15 | 19 => count * 12,
        // Enumerations, function prototypes.
        6 | 13 => count * 8,
        2 | 7..=12 | 16 | 18 => 0,
        // The size of an unknown kind cannot be determined.
        _ => return None,
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn kernel_function_is_found_by_whole_name() {
        if !std::path::Path::new("/sys/kernel/btf/vmlinux").exists() {
            eprintln!("skipped: the kernel has no BTF");
            return;
        }
        let number = find_kernel_function("schedule");
        assert!(number.is_some_and(|number| number > 1));
        assert_eq!(find_kernel_function("schedul"), None);
    }

    #[test]
    fn malformed_btf_yields_no_function() {
        let mut random = testkit::Random::with_replayable_seed();
        for _ in 0..2_000 {
            let mut bytes: Vec<u8> = (0..200).map(|_| random.below(256) as u8).collect();
            bytes[..8].copy_from_slice(&[0x9f, 0xeb, 1, 0, 24, 0, 0, 0]);
            for at in [8, 12, 16, 20] {
                bytes[at + 1..at + 4].fill(0);
            }
            let _ = find_btf_function(&bytes, "f");
            let _ = find_btf_function(&bytes[..random.within(0..200)], "f");
        }
    }
}
