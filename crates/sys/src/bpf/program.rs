//! Programs: load, say what the verifier minds, run over a packet without a device.

use std::fmt;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, FromRawFd, OwnedFd};

use super::{Attributes, Info, call, command, info_of, name_of, object_name};
use crate::error::{Error, Result};

/// The verifier's text can have some megabytes; two sizes are tried.
const LOG_BYTES: [u32; 2] = [1 << 20, 16 << 20];
/// A load that a signal disturbs answers EAGAIN; so often it is tried again.
const AGAIN_MAX: u32 = 5;
/// No helper that is used asks for another licence.
const LICENSE: &[u8] = b"Apache-2.0 OR MIT\0";

/// Where a program runs, as the kernel numbers it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Kind {
    /// BPF_PROG_TYPE_SOCKET_FILTER
    SocketFilter = 1,
    /// BPF_PROG_TYPE_SCHED_CLS
    Tc = 3,
    /// BPF_PROG_TYPE_XDP
    Xdp = 6,
}

/// A loaded program, not attached to anything.
#[derive(Debug)]
pub struct Program {
    fd: OwnedFd,
    name: String,
    kind: Kind,
}

/// The kernel refused a program.
#[derive(Clone, Debug)]
pub struct LoadError {
    /// The refusal.
    pub error: Error,
    /// What the verifier said; empty if it never came so far.
    pub log: String,
}

impl fmt::Display for LoadError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let complaint = self.log.lines().rev().find(|line| {
            !line.trim().is_empty()
                && !line.starts_with("processed ")
                && !line.contains("stack depth")
        });
        match complaint {
            // Not the error's own words: "permission denied" is how the kernel says "not proven".
            Some(line) => {
                let Error { call, target, .. } = &self.error;
                write!(f, "{call} on {target}: the verifier says: {line}")
            }
            None => write!(f, "{}", self.error),
        }
    }
}

impl std::error::Error for LoadError {
    fn source(&self) -> Option<&(dyn std::error::Error + 'static)> {
        Some(&self.error)
    }
}

/// What a test run came to.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct TestRun {
    /// The return value.
    pub value: u32,
    /// Nanoseconds per packet, on average.
    pub duration_ns: u32,
}

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
    /// Instructions that the verifier walked over; 0 before Linux 5.16.
    pub visited: u32,
}

#[repr(C)]
struct LoadAttributes {
    kind: u32,
    instructions: u32,
    code: u64,
    license: u64,
    log_level: u32,
    log_size: u32,
    log: u64,
    kernel_version: u32,
    flags: u32,
    name: [u8; 16],
    interface: u32,
    attach_type: u32,
}

// SAFETY: the fields of PROG_LOAD up to `expected_attach_type`, eight-byte fields at multiples of
// eight, no padding (1); code, license and log are set by `load_once` alone, from slices that
// outlive the call (2).
unsafe impl Attributes for LoadAttributes {}

#[repr(C)]
struct TestRunAttributes {
    fd: u32,
    value: u32,
    input_size: u32,
    output_size: u32,
    input: u64,
    output: u64,
    repeat: u32,
    duration: u32,
    context_input_size: u32,
    context_output_size: u32,
    context_input: u64,
    context_output: u64,
    flags: u32,
    cpu: u32,
    batch: u32,
    pad: u32,
}

// SAFETY: the fields of PROG_TEST_RUN with the padding at its end spelled out (1); `input` is a
// slice that outlives the call, the other addresses are zero (2).
unsafe impl Attributes for TestRunAttributes {}

/// `struct bpf_prog_info` up to `verified_insns`. What is not asked for stays zero, so the kernel
/// copies no code and no list.
#[derive(Default)]
#[repr(C)]
struct KernelProgramInfo {
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
    name: [u8; 16],
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

impl Program {
    /// Loads a program. `name` is for people and messages. Loads without the verifier's log first,
    /// which is five times faster, and again with it if the kernel refuses.
    pub fn load(kind: Kind, name: &str, code: &[u8]) -> std::result::Result<Self, LoadError> {
        let refused = match Self::load_with(kind, name, code, &mut []) {
            Ok(program) => return Ok(program),
            Err(error) => error,
        };
        let mut log = Vec::new();
        if !matches!(refused.errno, libc::EPERM | libc::E2BIG) {
            for size in LOG_BYTES {
                log = vec![0; size as usize];
                match Self::load_with(kind, name, code, &mut log) {
                    Ok(program) => return Ok(program),
                    Err(error) if error.errno == libc::ENOSPC => {}
                    Err(_) => break,
                }
            }
        }
        let text = log.split(|byte| *byte == 0).next().unwrap_or_default();
        Err(LoadError { error: refused, log: String::from_utf8_lossy(text).into_owned() })
    }

    /// Runs the program `repeat` times over this packet. Traffic control and XDP take frames of at
    /// least 14 bytes and (traffic control) no IP packet shorter than its header: EINVAL. A socket
    /// filter sees the packet without its first 14 bytes, which the kernel takes for the Ethernet
    /// header.
    pub fn test_run(&self, packet: &[u8], repeat: u32) -> Result<TestRun> {
        let mut attr = TestRunAttributes {
            fd: self.fd.as_raw_fd().cast_unsigned(),
            value: 0,
            input_size: u32::try_from(packet.len()).unwrap_or(u32::MAX),
            output_size: 0,
            input: packet.as_ptr().expose_provenance() as u64,
            output: 0,
            repeat,
            duration: 0,
            context_input_size: 0,
            context_output_size: 0,
            context_input: 0,
            context_output: 0,
            flags: 0,
            cpu: 0,
            batch: 0,
            pad: 0,
        };
        call(command::PROG_TEST_RUN, "PROG_TEST_RUN", &self.name, &mut attr)?;
        Ok(TestRun { value: attr.value, duration_ns: attr.duration })
    }

    /// Where it runs.
    #[must_use]
    pub const fn kind(&self) -> Kind {
        self.kind
    }

    /// What the kernel says about it.
    pub fn info(&self) -> Result<ProgramInfo> {
        let info: KernelProgramInfo = info_of(self.fd.as_raw_fd(), &self.name)?;
        Ok(ProgramInfo {
            id: info.id,
            kind: info.kind,
            name: name_of(info.name),
            translated_bytes: info.translated_bytes,
            visited: info.visited,
        })
    }

    fn load_with(kind: Kind, name: &str, code: &[u8], log: &mut [u8]) -> Result<Self> {
        let mut tries = 0;
        loop {
            match Self::load_once(kind, name, code, log) {
                Err(error) if error.errno == libc::EAGAIN && tries < AGAIN_MAX => tries += 1,
                result => return result,
            }
        }
    }

    fn load_once(kind: Kind, name: &str, code: &[u8], log: &mut [u8]) -> Result<Self> {
        let (slots, rest) = code.as_chunks::<8>();
        let count = u32::try_from(slots.len()).ok().filter(|_| rest.is_empty());
        let Some(instructions) = count else {
            return Err(Error::new("bpf", format!("PROG_LOAD of {name:?}"), libc::EINVAL));
        };
        let mut attr = LoadAttributes {
            kind: kind as u32,
            instructions,
            code: code.as_ptr().expose_provenance() as u64,
            license: LICENSE.as_ptr().expose_provenance() as u64,
            log_level: u32::from(!log.is_empty()),
            log_size: u32::try_from(log.len()).unwrap_or(u32::MAX),
            log: if log.is_empty() { 0 } else { log.as_mut_ptr().expose_provenance() as u64 },
            kernel_version: 0,
            flags: 0,
            name: object_name(name),
            interface: 0,
            attach_type: 0,
        };
        let fd = call(command::PROG_LOAD, "PROG_LOAD", name, &mut attr)?;
        // SAFETY: PROG_LOAD answers a new descriptor, which belongs to nobody else.
        let fd = unsafe { OwnedFd::from_raw_fd(fd) };
        Ok(Self { fd, name: name.to_owned(), kind })
    }
}

impl AsFd for Program {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.fd.as_fd()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn structures_have_the_kernels_sizes() {
        assert_eq!(size_of::<LoadAttributes>(), 72);
        assert_eq!(std::mem::offset_of!(LoadAttributes, attach_type), 68);
        assert_eq!(size_of::<TestRunAttributes>(), 80);
        assert_eq!(std::mem::offset_of!(KernelProgramInfo, visited), 216);
        assert_eq!(std::mem::offset_of!(KernelProgramInfo, name), 64);
    }

    #[test]
    fn a_refusal_quotes_the_verifier() {
        let log = "0: (b7) r0 = 1\nR2 !read_ok\nprocessed 1 insns (limit 1000000)\n".to_owned();
        let error = Error::new("bpf", "PROG_LOAD of \"dport\"", libc::EACCES);
        let text = LoadError { error, log }.to_string();
        assert!(text.starts_with("bpf on PROG_LOAD of \"dport\": "), "{text}");
        assert!(text.ends_with("the verifier says: R2 !read_ok"), "{text}");
    }

    #[test]
    fn half_an_instruction_is_refused_here() {
        let refused = Program::load(Kind::Xdp, "half", &[0; 12]).unwrap_err();
        assert_eq!(refused.error.errno, libc::EINVAL);
    }
}
