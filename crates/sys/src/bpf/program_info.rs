//! Facts about a loaded program, and statistics of its runs.

use std::os::fd::{AsRawFd as _, OwnedFd};

use super::{KernelInfo, Program, command, decode_object_name, open_object, query_object_info};
use crate::error::Result;

/// Information about a loaded program, as reported by the kernel (`struct bpf_prog_info`).
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ProgramInfo {
    /// Program id.
    pub id: u32,
    /// Program type (BPF_PROG_TYPE_*).
    pub kind: u32,
    /// Name of the program, truncated to 15 characters.
    pub name: String,
    /// Id of the user who loaded the program.
    pub loader_uid: u32,
    /// Size of the instructions in bytes, after the verifier's rewrites.
    pub translated_bytes: u32,
    /// Size of the machine code in bytes; 0 if the program was not JIT-compiled.
    pub native_bytes: u32,
    /// Number of instructions that the verifier visited; 0 before Linux 5.16.
    pub verified_instructions: u32,
    /// Number of maps that the program references.
    pub maps: u32,
    /// Number of runs that the kernel has counted, for example while a [`RunStatisticsGuard`] guard
    /// was alive.
    pub runs: u64,
    /// Total duration, in ns, of the runs that `runs` counts.
    pub run_time_ns: u64,
    /// Number of runs skipped because the program was already running on the same CPU.
    pub recursion_misses: u64,
}

impl ProgramInfo {
    fn from_kernel(info: KernelProgramInfo) -> Self {
        Self {
            id: info.id,
            kind: info.kind,
            name: decode_object_name(info.name),
            loader_uid: info.created_by,
            translated_bytes: info.translated_bytes,
            native_bytes: info.native_bytes,
            verified_instructions: info.visited,
            maps: info.maps,
            runs: info.run_count,
            run_time_ns: info.run_time_ns,
            recursion_misses: info.recursion_misses,
        }
    }

    /// Returns the mean duration of a run in ns; `None` if no run was counted. Counting itself
    /// slows each run by about 70 ns, most of which the result does not include.
    #[must_use]
    pub fn ns_per_run(&self) -> Option<f64> {
        (self.runs > 0).then(|| self.run_time_ns as f64 / self.runs as f64)
    }
}

impl Program {
    /// Queries the kernel for the facts about this program and the statistics of its runs.
    pub fn info(&self) -> Result<ProgramInfo> {
        query_program_info(self.fd.as_raw_fd(), &self.name).map(ProgramInfo::from_kernel)
    }
}

/// Queries the kernel about the program with this id, whichever process loaded it. Needs
/// CAP_SYS_ADMIN.
pub fn program_info(id: u32) -> Result<ProgramInfo> {
    let target = format!("program {id}");
    let fd =
        open_object(command::PROG_GET_FD_BY_ID, "PROG_GET_FD_BY_ID", &target, &mut [id, 0, 0])?;
    query_program_info(fd.as_raw_fd(), &target).map(ProgramInfo::from_kernel)
}

/// Queries the kernel about the program behind a descriptor.
pub(super) fn query_program_info(fd: i32, target: &str) -> Result<KernelProgramInfo> {
    query_object_info(fd, target)
}

/// A guard that makes the kernel count the runs and the run time of all programs while it is alive.
///
/// Needs CAP_SYS_ADMIN. Without a guard, the kernel counts only if the setting
/// `kernel.bpf_stats_enabled` is on.
#[derive(Debug)]
pub struct RunStatisticsGuard {
    _fd: OwnedFd,
}

impl RunStatisticsGuard {
    /// Makes the kernel count the runs and the run time of all programs until the guard is dropped.
    pub fn enable() -> Result<Self> {
        /// BPF_STATS_RUN_TIME: count runs and their duration.
        const BPF_STATS_RUN_TIME: u32 = 0;
        let fd = open_object(
            command::ENABLE_STATS,
            "ENABLE_STATS",
            "run time",
            &mut [BPF_STATS_RUN_TIME],
        )?;
        Ok(Self { _fd: fd })
    }
}

/// `struct bpf_prog_info` up to `verified_insns`. All addresses and counts passed in are zero, so
/// the kernel copies neither code nor lists.
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
unsafe impl KernelInfo for KernelProgramInfo {}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn program_info_matches_the_kernels_layout() {
        assert_eq!(std::mem::offset_of!(KernelProgramInfo, visited), 216);
        assert_eq!(std::mem::offset_of!(KernelProgramInfo, name), 64);
        assert_eq!(std::mem::offset_of!(KernelProgramInfo, run_time_ns), 192);
    }
}
