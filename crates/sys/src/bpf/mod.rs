//! bpf(2): programs, maps and links as owned descriptors.
//!
//! Nothing is ever pinned, so every object is freed when its last descriptor is closed, however the
//! process ends (RELIABILITY T15). Loading needs CAP_BPF and CAP_NET_ADMIN; CAP_PERFMON is
//! optional; without CAP_PERFMON the verifier hardens programs against speculation.

mod btf;
mod cgroup;
mod chain;
mod grace_period;
mod ids;
mod kernel_types;
mod link;
mod load_error;
mod map;
mod program;
mod program_info;
pub mod ring;
mod ring_buffer;
mod test_run;

pub use btf::{Btf, BtfBuilder};
pub use cgroup::{cgroup_mount, root_cgroup};
pub use chain::{ChainMember, ProgramChain, cgroup_chain, list_programs, tcx_chain};
pub use grace_period::GracePeriod;
pub use ids::{ObjectKind, object_ids};
pub use kernel_types::find_kernel_function;
pub use link::{
    ChainPosition, Link, LinkInfo, LinkTarget, Neighbor, TrafficDirection, XdpAttachment, XdpMode,
};
pub use load_error::{LoadError, missing_capabilities};
pub use map::{Map, MapInfo, MapKind, MapSpecification};
pub use program::{
    AttachType, FunctionInfo, License, LineInfo, LoadParameters, LogLevel, Program, ProgramKind,
    SourceInfo,
};
pub use program_info::{ProgramInfo, RunStatisticsGuard, program_info};
pub use ring::{CpuRing, FramePointer, ProgramRings, RingsLayout};
pub use ring_buffer::{RingBuffer, RingBufferListener};
pub use test_run::TestRun;

use std::os::fd::{FromRawFd as _, OwnedFd};

use crate::error::{Error, Result};

/// Commands of bpf(2) (`enum bpf_cmd`), by their kernel names.
mod command {
    pub(super) const MAP_CREATE: u32 = 0;
    pub(super) const MAP_LOOKUP_ELEM: u32 = 1;
    pub(super) const MAP_UPDATE_ELEM: u32 = 2;
    pub(super) const MAP_DELETE_ELEM: u32 = 3;
    pub(super) const PROG_LOAD: u32 = 5;
    pub(super) const PROG_TEST_RUN: u32 = 10;
    pub(super) const PROG_GET_NEXT_ID: u32 = 11;
    pub(super) const MAP_GET_NEXT_ID: u32 = 12;
    pub(super) const PROG_GET_FD_BY_ID: u32 = 13;
    pub(super) const MAP_GET_FD_BY_ID: u32 = 14;
    pub(super) const OBJ_GET_INFO_BY_FD: u32 = 15;
    pub(super) const PROG_QUERY: u32 = 16;
    pub(super) const BTF_LOAD: u32 = 18;
    pub(super) const MAP_FREEZE: u32 = 22;
    pub(super) const LINK_CREATE: u32 = 28;
    pub(super) const LINK_UPDATE: u32 = 29;
    pub(super) const LINK_GET_NEXT_ID: u32 = 31;
    pub(super) const ENABLE_STATS: u32 = 32;
    pub(super) const LINK_DETACH: u32 = 34;
}

/// The fields of `union bpf_attr` that one command uses.
///
/// # Safety
///
/// 1. The type must be `repr(C)` without padding, with the layout that `linux/bpf.h` specifies for
///    the command.
///
/// 2. Each address in a value must be zero, or point to memory that is valid for the stated size
///    for the duration of the call.
unsafe trait Attributes {}

// SAFETY: integers in the order in which the caller lists the fields of its command, which has no
// others, no padding (1), no address (2).
unsafe impl<const FIELDS: usize> Attributes for [u32; FIELDS] {}

/// Calls bpf(2). Returns the nonnegative result of the call, or its error.
fn call_bpf<A: Attributes>(
    command: u32,
    name: &'static str,
    target: &str,
    attr: &mut A,
) -> Result<i32> {
    // The kernel accepts at most a page; the structures here are below 200 bytes.
    let size = size_of::<A>();
    let attr: *mut A = attr;
    // SAFETY: bpf(2) reads and writes `size` bytes at `attr`, which is a live exclusive reference
    // of that size, and the memory that its fields point to, which `Attributes` promises (2).
    let result = unsafe { libc::syscall(libc::SYS_bpf, command, attr, size) };
    let refused = || Error::last_os_error("bpf", format!("{name} of {target:?}"));
    i32::try_from(result).ok().filter(|value| *value >= 0).ok_or_else(refused)
}

/// Calls bpf(2) with a command that returns a new descriptor, and returns this descriptor.
fn open_object<A: Attributes>(
    command: u32,
    name: &'static str,
    target: &str,
    attr: &mut A,
) -> Result<OwnedFd> {
    let fd = call_bpf(command, name, target, attr)?;
    // SAFETY: the commands called here return a new descriptor, which no other value owns.
    Ok(unsafe { OwnedFd::from_raw_fd(fd) })
}

/// Converts text to a kernel object name: uses the first 15 bytes, and replaces each byte that is
/// not a letter, a digit or `.` with `_`.
fn encode_object_name(name: &str) -> [u8; 16] {
    let mut kept = [0; 16];
    for (to, from) in kept.iter_mut().take(15).zip(name.bytes()) {
        *to = if from.is_ascii_alphanumeric() || from == b'.' { from } else { b'_' };
    }
    kept
}

/// Converts a kernel object name to text, up to its first zero byte.
fn decode_object_name(kept: [u8; 16]) -> String {
    kept.iter().take_while(|byte| **byte != 0).map(|byte| char::from(*byte)).collect()
}

/// Fields of `union bpf_attr` for OBJ_GET_INFO_BY_FD.
#[repr(C)]
struct InfoAttributes {
    fd: u32,
    info_length: u32,
    info: u64,
}

// SAFETY: three fields in the kernel's order, no padding (1); `info` is filled in by
// `query_object_info` alone, with a buffer that outlives the call (2).
unsafe impl Attributes for InfoAttributes {}

/// A structure that OBJ_GET_INFO_BY_FD fills.
///
/// # Safety
///
/// The type must be `repr(C)` without padding, it must match the beginning of the kernel's
/// structure, and every bit pattern must be a valid value of it.
unsafe trait KernelInfo: Default {}

fn query_object_info<T: KernelInfo>(fd: i32, target: &str) -> Result<T> {
    let mut info = T::default();
    let mut attr = InfoAttributes {
        fd: fd.cast_unsigned(),
        info_length: u32::try_from(size_of::<T>()).unwrap_or(0),
        info: (&raw mut info).expose_provenance() as u64,
    };
    call_bpf(command::OBJ_GET_INFO_BY_FD, "OBJ_GET_INFO_BY_FD", target, &mut attr)?;
    Ok(info)
}
