//! Direct writes into the memory of a ring, for a hostile writer that bypasses the library.

use std::fs::File;
use std::os::unix::fs::FileExt as _;

/// Write access to the memory of this process. Offsets are in bytes from the start of the ring with
/// the lowest address.
pub(crate) struct RingMemoryAccess {
    memory: File,
    base: u64,
}

impl RingMemoryAccess {
    /// Opens this process's memory, and finds the ring with the lowest address in it.
    pub(crate) fn find() -> Self {
        let maps = std::fs::read_to_string("/proc/self/maps").unwrap();
        let ring = maps.lines().find(|line| line.contains("streamline-ring")).unwrap();
        let base = u64::from_str_radix(ring.split('-').next().unwrap(), 16).unwrap();
        Self { memory: File::options().write(true).open("/proc/self/mem").unwrap(), base }
    }

    pub(crate) fn write_word(&self, at: u64, value: u64) {
        self.memory.write_all_at(&value.to_le_bytes(), self.base + at).unwrap();
    }
}
