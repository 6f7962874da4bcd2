//! Programs: load, and say what the verifier minds.

use std::os::fd::{AsFd, AsRawFd as _, BorrowedFd, OwnedFd};

use super::{Attributes, Btf, LoadError, command, object_name, open};
use crate::error::{Error, Result};

/// The verifier's text can have some megabytes; two sizes are tried.
const LOG_BYTES: [u32; 2] = [1 << 20, 16 << 20];
/// A load that a signal disturbs answers EAGAIN; so often it is tried again.
const AGAIN_MAX: u32 = 5;
/// BPF_F_XDP_HAS_FRAGS
const FRAGMENTS: u32 = 1 << 5;
/// BPF_F_XDP_DEV_BOUND_ONLY
const DEVICE_BOUND: u32 = 1 << 6;

/// Where a program runs, as the kernel numbers it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ProgramKind {
    /// BPF_PROG_TYPE_SOCKET_FILTER
    SocketFilter = 1,
    /// BPF_PROG_TYPE_SCHED_CLS
    Tc = 3,
    /// BPF_PROG_TYPE_XDP
    Xdp = 6,
    /// BPF_PROG_TYPE_CGROUP_SKB
    CgroupPacket = 8,
    /// BPF_PROG_TYPE_SK_LOOKUP
    SocketLookup = 30,
}

/// Where a program is attached, as the kernel numbers it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum AttachType {
    /// BPF_CGROUP_INET_INGRESS
    CgroupIngress = 0,
    /// BPF_CGROUP_INET_EGRESS
    CgroupEgress = 1,
    /// BPF_XDP_DEVMAP: before a frame leaves by a device map.
    XdpDeviceMap = 33,
    /// BPF_XDP_CPUMAP: on the processor to which a frame was sent.
    XdpCpuMap = 35,
    /// BPF_SK_LOOKUP
    SocketLookup = 36,
    /// BPF_XDP
    Xdp = 37,
    /// BPF_TCX_INGRESS
    TcxIngress = 46,
    /// BPF_TCX_EGRESS
    TcxEgress = 47,
}

/// What the kernel is told about the licence of a program.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum License {
    /// That of the house, Apache-2.0 or MIT. Most helpers do not ask for another one.
    #[default]
    ApacheOrMit,
    /// MIT or GPL: for the few helpers, those of timers among them, that ask for a licence which
    /// the kernel knows to go with its own.
    MitOrGpl,
}

impl License {
    const fn text(self) -> &'static [u8] {
        match self {
            Self::ApacheOrMit => b"Apache-2.0 OR MIT\0",
            Self::MitOrGpl => b"Dual MIT/GPL\0",
        }
    }
}

/// How much the verifier says about a program that it refuses.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum LogLevel {
    /// The way to the instruction that it minds.
    #[default]
    Path = 1,
    /// All ways that it went; some megabytes.
    AllPaths = 2,
}

/// A program to be loaded.
#[derive(Clone, Copy, Debug)]
pub struct Load<'a> {
    /// Where it will run.
    pub kind: ProgramKind,
    /// For people and messages; the kernel keeps 15 characters.
    pub name: &'a str,
    /// The instructions.
    pub code: &'a [u8],
    /// Where it will be attached, where the kernel wants to know when it is loaded. None: any place
    /// of its kind.
    pub attach: Option<AttachType>,
    /// Whether an XDP program takes frames of several buffers.
    pub fragments: bool,
    /// The interface to which alone an XDP program will be attached, by its driver: such a program
    /// may ask the driver about a frame.
    pub device: Option<u32>,
    /// Its types, functions and lines.
    pub source: Option<SourceInfo<'a>>,
    /// Its licence.
    pub license: License,
    /// What is said when it is refused.
    pub detail: LogLevel,
}

/// Which functions and lines a program's instructions belong to.
#[derive(Clone, Copy, Debug)]
pub struct SourceInfo<'a> {
    /// The types and texts that the other two name.
    pub btf: &'a Btf,
    /// The functions in the order of their first instructions; timers' callbacks need them.
    pub functions: &'a [FunctionInfo],
    /// The lines in the order of their first instructions. The verifier's log shows them.
    pub lines: &'a [LineInfo],
}

/// `struct bpf_func_info`: a function begins here.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(C)]
pub struct FunctionInfo {
    /// Its first instruction.
    pub instruction: u32,
    /// Its type.
    pub type_id: u32,
}

/// `struct bpf_line_info`: a line begins here.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(C)]
pub struct LineInfo {
    /// Its first instruction.
    pub instruction: u32,
    /// Where the name of its file begins among the texts.
    pub file: u32,
    /// Where the line itself begins among the texts.
    pub text: u32,
    /// The number of the line times 1024, and the column.
    pub number: u32,
}

/// A loaded program, not attached to anything.
#[derive(Debug)]
pub struct Program {
    pub(super) fd: OwnedFd,
    pub(super) name: String,
    kind: ProgramKind,
}

#[derive(Default)]
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
    btf: u32,
    function_record: u32,
    functions: u64,
    function_count: u32,
    line_record: u32,
    lines: u64,
    line_count: u32,
    attach_type_id: u32,
}

// SAFETY: the fields of PROG_LOAD up to `attach_btf_id`, eight-byte fields at multiples of eight,
// no padding (1); the addresses are set by `Load::once` alone, from slices that outlive the
// call (2).
unsafe impl Attributes for LoadAttributes {}

impl<'a> Load<'a> {
    /// A program of this kind without a source.
    #[must_use]
    pub const fn new(kind: ProgramKind, name: &'a str, code: &'a [u8]) -> Self {
        let (license, detail) = (License::ApacheOrMit, LogLevel::Path);
        Self {
            kind,
            name,
            code,
            attach: None,
            fragments: false,
            device: None,
            source: None,
            license,
            detail,
        }
    }

    /// Loads it: without the verifier's log first, which is five times faster, and again with it if
    /// the kernel refuses.
    pub fn load(&self) -> std::result::Result<Program, LoadError> {
        let refused = match self.patiently(&mut []) {
            Ok(program) => return Ok(program),
            Err(error) => error,
        };
        let mut log = Vec::new();
        if !matches!(refused.errno, libc::EPERM | libc::E2BIG) {
            for size in LOG_BYTES {
                log = vec![0; size as usize];
                match self.patiently(&mut log) {
                    Ok(program) => return Ok(program),
                    Err(error) if error.errno == libc::ENOSPC => {}
                    Err(_) => break,
                }
            }
        }
        Err(LoadError::new(refused, &log))
    }

    fn patiently(&self, log: &mut [u8]) -> Result<Program> {
        let mut tries = 0;
        loop {
            match self.once(log) {
                Err(error) if error.errno == libc::EAGAIN && tries < AGAIN_MAX => tries += 1,
                result => return result,
            }
        }
    }

    fn once(&self, log: &mut [u8]) -> Result<Program> {
        let (slots, rest) = self.code.as_chunks::<8>();
        let count = u32::try_from(slots.len()).ok().filter(|_| rest.is_empty());
        let Some(instructions) = count else {
            return Err(Error::new("bpf", format!("PROG_LOAD of {:?}", self.name), libc::EINVAL));
        };
        let mut attr = LoadAttributes {
            kind: self.kind as u32,
            instructions,
            code: self.code.as_ptr().expose_provenance() as u64,
            license: self.license.text().as_ptr().expose_provenance() as u64,
            log_level: if log.is_empty() { 0 } else { self.detail as u32 },
            log_size: u32::try_from(log.len()).unwrap_or(u32::MAX),
            log: if log.is_empty() { 0 } else { log.as_mut_ptr().expose_provenance() as u64 },
            flags: if self.fragments { FRAGMENTS } else { 0 }
                | if self.device.is_some() { DEVICE_BOUND } else { 0 },
            interface: self.device.unwrap_or(0),
            name: object_name(self.name),
            attach_type: self.attach.map_or(0, |attach| attach as u32),
            ..LoadAttributes::default()
        };
        if let Some(source) = self.source {
            attr.btf = source.btf.as_fd().as_raw_fd().cast_unsigned();
            (attr.function_record, attr.functions, attr.function_count) = list(source.functions);
            (attr.line_record, attr.lines, attr.line_count) = list(source.lines);
        }
        let fd = open(command::PROG_LOAD, "PROG_LOAD", self.name, &mut attr)?;
        Ok(Program { fd, name: self.name.to_owned(), kind: self.kind })
    }
}

/// A list as the kernel takes it: bytes of a record, address, number of records.
fn list<T>(records: &[T]) -> (u32, u64, u32) {
    let count = u32::try_from(records.len()).unwrap_or(u32::MAX);
    if count == 0 {
        return (0, 0, 0);
    }
    (size_of::<T>() as u32, records.as_ptr().expose_provenance() as u64, count)
}

impl Program {
    /// Loads a program of this kind, without a source.
    pub fn load(kind: ProgramKind, name: &str, code: &[u8]) -> std::result::Result<Self, LoadError> {
        Load::new(kind, name, code).load()
    }

    /// Takes a program that somebody kept. What it is, the kernel says.
    pub fn received(fd: OwnedFd) -> Result<Self> {
        let mut program = Self { fd, name: "a received program".to_owned(), kind: ProgramKind::Tc };
        let info = program.info()?;
        let kinds =
            [ProgramKind::SocketFilter, ProgramKind::Tc, ProgramKind::Xdp, ProgramKind::CgroupPacket, ProgramKind::SocketLookup];
        let kind = kinds.into_iter().find(|kind| *kind as u32 == info.kind).ok_or_else(|| {
            let what = format!("program {:?} of unknown kind {}", info.name, info.kind);
            Error::new("bpf", what, libc::EINVAL)
        })?;
        (program.name, program.kind) = (info.name, kind);
        Ok(program)
    }

    /// Where it runs.
    #[must_use]
    pub const fn kind(&self) -> ProgramKind {
        self.kind
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
    fn structures_have_the_kernels_places() {
        use std::mem::offset_of;
        assert_eq!(size_of::<LoadAttributes>(), 112);
        assert_eq!(offset_of!(LoadAttributes, attach_type), 68);
        assert_eq!(offset_of!(LoadAttributes, functions), 80);
        assert_eq!(offset_of!(LoadAttributes, lines), 96);
        assert_eq!((size_of::<FunctionInfo>(), size_of::<LineInfo>()), (8, 16));
    }

    #[test]
    fn half_an_instruction_is_refused_here() {
        let refused = Program::load(ProgramKind::Xdp, "half", &[0; 12]).unwrap_err();
        assert_eq!(refused.error.errno, libc::EINVAL);
    }
}
