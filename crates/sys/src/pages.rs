//! Huge pages and NUMA nodes: facts about the machine, and placement requests to the kernel. [Th
//! §5.3.3]

use crate::error::{Error, Result};
use crate::memory::Mapping;
use std::fs;
use std::path::Path;

/// Huge pages and NUMA nodes of this machine.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct PageSupport {
    /// Size of a huge page in bytes; 0 if the machine has no huge pages.
    pub huge: usize,
    /// Number of reserved 2 MB huge pages that are free.
    pub reserved: usize,
    /// True if the kernel backs shared memory with huge pages on request.
    pub transparent: bool,
    /// Number of NUMA nodes that have memory; 0 if the kernel does not list nodes.
    pub nodes: usize,
}

impl PageSupport {
    /// Detects the huge pages and NUMA nodes of this machine from `/sys`.
    #[must_use]
    pub fn detect() -> Self {
        Self::from_sysfs(Path::new("/sys"))
    }

    /// Reads the facts from a directory tree like `/sys`. A missing file counts as a missing
    /// feature.
    fn from_sysfs(sys: &Path) -> Self {
        let read = |path: &str| fs::read_to_string(sys.join(path)).unwrap_or_default();
        let number = |path: &str| read(path).trim().parse().unwrap_or(0);
        let shmem = read("kernel/mm/transparent_hugepage/shmem_enabled");
        let is_on = ["[always]", "[within_size]", "[advise]", "[force]"];
        Self {
            huge: number("kernel/mm/transparent_hugepage/hpage_pmd_size"),
            reserved: number("kernel/mm/hugepages/hugepages-2048kB/free_hugepages"),
            transparent: is_on.iter().any(|word| shmem.contains(word)),
            nodes: parse_list_length(read("devices/system/node/has_memory").trim()),
        }
    }
}

/// Returns the number of elements in a kernel list such as `0-3,8`.
fn parse_list_length(list: &str) -> usize {
    crate::task::parse_processor_list(list).len()
}

/// Returns the NUMA node of the calling thread.
pub fn current_numa_node() -> Result<u32> {
    let (mut processor, mut node) = (0_u32, 0_u32);
    // SAFETY: the kernel writes two numbers to variables that outlive the call, and nothing else
    // (getcpu(2); the third argument is unused).
    let done = unsafe {
        libc::syscall(
            libc::SYS_getcpu,
            &raw mut processor,
            &raw mut node,
            std::ptr::null_mut::<libc::c_void>(),
        )
    };
    if done == 0 { Ok(node) } else { Err(Error::last_os_error("getcpu", "")) }
}

/// Makes the kernel prefer a NUMA node for pages of this memory that are not yet allocated,
/// regardless of the thread that touches them first. Does nothing on a kernel without NUMA, or if
/// `node` is 64 or more.
pub fn prefer_numa_node(memory: &Mapping, node: u32) -> Result<()> {
    let Some(mask) = 1_u64.checked_shl(node) else { return Ok(()) };
    let (at, len) = (memory.base().as_ptr(), memory.len());
    // SAFETY: the range is this mapping, of which no byte is changed (mbind(2)); the mask is one
    // word that outlives the call. The kernel reads one bit fewer than the argument states.
    let done = unsafe {
        libc::syscall(libc::SYS_mbind, at, len, libc::MPOL_PREFERRED, &raw const mask, 65_usize, 0)
    };
    match Error::last_os_error("mbind", format!("{len} bytes")) {
        _ if done == 0 => Ok(()),
        error if error.errno == libc::ENOSYS => Ok(()),
        error => Err(error),
    }
}

/// Returns the NUMA node that the kernel prefers for this memory; `None` if there is no preference.
pub fn preferred_numa_node(memory: &Mapping) -> Result<Option<u32>> {
    let (mut mode, mut mask) = (0_i32, 0_u64);
    let at = memory.base().as_ptr();
    // SAFETY: the kernel writes a number and one word, to variables that outlive the call
    // (get_mempolicy(2)); of the memory only the address is used.
    let done = unsafe {
        libc::syscall(
            libc::SYS_get_mempolicy,
            &raw mut mode,
            &raw mut mask,
            65_usize,
            at,
            MPOL_F_ADDR,
        )
    };
    match Error::last_os_error("get_mempolicy", "") {
        _ if done == 0 => Ok((mode == libc::MPOL_PREFERRED).then(|| mask.trailing_zeros())),
        error if error.errno == libc::ENOSYS => Ok(None),
        error => Err(error),
    }
}

/// MPOL_F_ADDR (`linux/mempolicy.h`): query the policy of an address.
const MPOL_F_ADDR: u32 = 2;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn page_facts_are_parsed_from_sysfs() {
        assert_eq!(
            (parse_list_length("0"), parse_list_length("0-3,8"), parse_list_length("")),
            (1, 5, 0)
        );
        let here = PageSupport::detect();
        assert!(here.nodes >= 1 && here.huge.is_power_of_two() || here.huge == 0, "{here:?}");
        assert_eq!(PageSupport::from_sysfs(Path::new("/nonexistent")), PageSupport::default());
        let folder = std::env::temp_dir().join(format!("streamline-pages-{}", std::process::id()));
        let put = |path: &str, text: &str| {
            let path = folder.join(path);
            fs::create_dir_all(path.parent().unwrap()).unwrap();
            fs::write(path, text).unwrap();
        };
        put("kernel/mm/transparent_hugepage/shmem_enabled", "always within_size [advise] never\n");
        put("kernel/mm/transparent_hugepage/hpage_pmd_size", "2097152\n");
        put("kernel/mm/hugepages/hugepages-2048kB/free_hugepages", "7\n");
        put("devices/system/node/has_memory", "0-1\n");
        let chosen = PageSupport::from_sysfs(&folder);
        fs::remove_dir_all(&folder).unwrap();
        let expected = PageSupport { huge: 2 << 20, reserved: 7, transparent: true, nodes: 2 };
        assert_eq!(chosen, expected);
    }

    /// Checks the placement as far as the machine allows: with only one node, the request has no
    /// effect.
    #[test]
    fn d18_memory_prefers_the_requested_node() {
        let memory = Mapping::anonymous(1 << 16).unwrap();
        let here = current_numa_node().unwrap();
        prefer_numa_node(&memory, here).unwrap();
        let chosen = preferred_numa_node(&memory).unwrap();
        assert!(chosen.is_none_or(|node| node == here), "{chosen:?}");
        if PageSupport::detect().nodes > 0 {
            assert_eq!(chosen, Some(here), "the kernel knows nodes");
        }
        prefer_numa_node(&memory, 1000).unwrap();
    }
}
