//! What the kernel says about a program, and the switch that makes it count runs and their time.

use std::os::fd::{AsRawFd as _, OwnedFd};

use super::{Attributes, Info, Program, command, info_of, name_of, open};
use crate::error::Result;

/// What the kernel says about a program.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ProgramInfo {
    /// The kernel's number for it.
    pub id: u32,
    /// Its kind, as the kernel numbers it.
    pub kind: u32,
    /// Its name, cut to 15 characters.
    pub name: String,
    /// Bytes after the verifier has rewritten it.
    pub translated_bytes: u32,
    /// Bytes of machine code; 0 where the kernel interprets.
    pub native_bytes: u32,
    /// Instructions that the verifier walked over; 0 before Linux 5.16.
    pub visited: u32,
    /// The maps that it uses are so many.
    pub maps: u32,
    /// How often it ran while somebody held [`RunStatistics`](super::RunStatistics).
    pub runs: u64,
    /// How many nanoseconds these runs took.
    pub run_time_ns: u64,
    /// How often it did not run because it was running on this CPU already.
    pub recursion_misses: u64,
}

impl ProgramInfo {
    /// Nanoseconds per run, where runs were counted. Counting costs about 70 ns per run, most of it
    /// outside of what it measures.
    #[must_use]
    pub fn ns_per_run(&self) -> Option<f64> {
        (self.runs > 0).then(|| self.run_time_ns as f64 / self.runs as f64)
    }
}

impl Program {
    /// What the kernel says about it.
    pub fn info(&self) -> Result<ProgramInfo> {
        let info = kernel_info(self.fd.as_raw_fd(), &self.name)?;
        Ok(ProgramInfo {
            id: info.id,
            kind: info.kind,
            name: name_of(info.name),
            translated_bytes: info.translated_bytes,
            native_bytes: info.native_bytes,
            visited: info.visited,
            maps: info.maps,
            runs: info.run_count,
            run_time_ns: info.run_time_ns,
            recursion_misses: info.recursion_misses,
        })
    }
}

/// What the kernel says about the program behind a descriptor.
pub(super) fn kernel_info(fd: i32, target: &str) -> Result<KernelProgramInfo> {
    info_of(fd, target)
}

/// As long as one of these lives, the kernel counts the runs of all programs and their time. Needs
/// CAP_SYS_ADMIN, or the setting `kernel.bpf_stats_enabled`.
#[derive(Debug)]
pub struct RunStatistics {
    _fd: OwnedFd,
}

impl RunStatistics {
    /// Switches counting on.
    pub fn enable() -> Result<Self> {
        /// BPF_STATS_RUN_TIME
        const RUN_TIME: u32 = 0;
        let mut attr = StatisticsAttributes { kind: RUN_TIME };
        let fd = open(command::ENABLE_STATS, "ENABLE_STATS", "run time", &mut attr)?;
        Ok(Self { _fd: fd })
    }
}

#[repr(C)]
struct StatisticsAttributes {
    kind: u32,
}

// SAFETY: one field (1), no address (2).
unsafe impl Attributes for StatisticsAttributes {}

/// `struct bpf_prog_info` up to `verified_insns`. What is not asked for stays zero, so the kernel
/// copies no code and no list.
#[derive(Default)]
#[repr(C)]
pub(super) struct KernelProgramInfo {
    kind: u32,
    id: u32,
    tag: [u8; 8],
    native_bytes: u32,
    translated_bytes: u32,
    native: u64,
    translated: u64,
    load_time: u64,
    created_by: u32,
    maps: u32,
    map_ids: u64,
    pub(super) name: [u8; 16],
    interface: u32,
    gpl: u32,
    namespace: [u64; 2],
    symbols: [u32; 2],
    symbol_addresses: [u64; 2],
    btf: u32,
    function_record: u32,
    functions: u64,
    function_count: u32,
    line_count: u32,
    lines: u64,
    native_lines: u64,
    native_line_count: u32,
    line_record: u32,
    native_line_record: u32,
    tag_count: u32,
    tags: u64,
    run_time_ns: u64,
    run_count: u64,
    recursion_misses: u64,
    visited: u32,
    pad: u32,
}

// SAFETY: a prefix of `struct bpf_prog_info`, integers and arrays of them, eight-byte fields at
// multiples of eight, no padding. All addresses and counts in it are zero, so the kernel writes
// nowhere else.
unsafe impl Info for KernelProgramInfo {}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_structure_has_the_kernels_places() {
        assert_eq!(std::mem::offset_of!(KernelProgramInfo, visited), 216);
        assert_eq!(std::mem::offset_of!(KernelProgramInfo, name), 64);
        assert_eq!(std::mem::offset_of!(KernelProgramInfo, run_time_ns), 192);
    }
}
