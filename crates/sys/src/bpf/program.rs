//! Program loading: the parameters, and the verifier's log if the kernel refuses.

use std::os::fd::{AsFd, AsRawFd as _, BorrowedFd, OwnedFd};

use super::{Attributes, Btf, LoadError, command, encode_object_name, open_object};
use crate::error::{Error, Result};

/// Sizes in bytes of the verifier's log buffer, in the order in which they are tried. A log can be
/// megabytes long.
const LOG_BUFFER_SIZES: [u32; 2] = [1 << 20, 16 << 20];
/// Maximum number of retries after a signal interrupted a load (EAGAIN).
const LOAD_RETRIES_MAX: u32 = 5;
/// BPF_F_XDP_HAS_FRAGS: the program accepts multi-buffer frames.
const BPF_F_XDP_HAS_FRAGS: u32 = 1 << 5;
/// BPF_F_XDP_DEV_BOUND_ONLY: the program is bound to one device.
const BPF_F_XDP_DEV_BOUND_ONLY: u32 = 1 << 6;

/// Program types (BPF_PROG_TYPE_*).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ProgramKind {
    /// A socket filter (BPF_PROG_TYPE_SOCKET_FILTER).
    SocketFilter = 1,
    /// A tc classifier (BPF_PROG_TYPE_SCHED_CLS).
    Tc = 3,
    /// An XDP program (BPF_PROG_TYPE_XDP).
    Xdp = 6,
    /// A program for the packets of a cgroup (BPF_PROG_TYPE_CGROUP_SKB).
    CgroupPacket = 8,
    /// A socket lookup program (BPF_PROG_TYPE_SK_LOOKUP).
    SocketLookup = 30,
}

/// Attach types (`enum bpf_attach_type`).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum AttachType {
    /// Runs on packets that sockets of the cgroup receive (BPF_CGROUP_INET_INGRESS).
    CgroupIngress = 0,
    /// Runs on packets that sockets of the cgroup send (BPF_CGROUP_INET_EGRESS).
    CgroupEgress = 1,
    /// Runs before a frame leaves through a device map (BPF_XDP_DEVMAP).
    XdpDeviceMap = 33,
    /// Runs on the CPU to which a frame was redirected (BPF_XDP_CPUMAP).
    XdpCpuMap = 35,
    /// Runs when the kernel looks up a socket (BPF_SK_LOOKUP).
    SocketLookup = 36,
    /// Runs on frames that an interface receives (BPF_XDP).
    Xdp = 37,
    /// Runs on packets that an interface receives, in its TCX chain (BPF_TCX_INGRESS).
    TcxIngress = 46,
    /// Runs on packets that an interface sends, in its TCX chain (BPF_TCX_EGRESS).
    TcxEgress = 47,
}

/// The license that a program declares to the kernel.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum License {
    /// Apache-2.0 or MIT, the licenses of this project. They suffice for most helpers.
    #[default]
    ApacheOrMit,
    /// MIT or GPL, for helpers restricted to GPL-compatible programs, such as timers.
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

/// The amount of detail that the verifier writes to its log.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum LogLevel {
    /// Only the path that leads to the rejected instruction.
    #[default]
    Path = 1,
    /// All explored paths. The log can be megabytes long.
    AllPaths = 2,
}

/// Parameters with which a BPF program is loaded.
#[derive(Clone, Copy, Debug)]
pub struct LoadParameters<'a> {
    /// Program type.
    pub kind: ProgramKind,
    /// Name for diagnostics. The kernel stores the first 15 characters.
    pub name: &'a str,
    /// Instructions of the program, 8 bytes each.
    pub code: &'a [u8],
    /// Expected attach type. Required for the program types whose attach type the kernel checks at
    /// load time; `None` otherwise.
    pub attach: Option<AttachType>,
    /// True if the program accepts multi-buffer XDP frames.
    pub fragments: bool,
    /// Index of the interface to which an XDP program is bound, which lets the program query the
    /// driver's metadata about a frame; `None` if the program is not bound.
    pub device: Option<u32>,
    /// Type information, functions and source lines of the program; `None` if it has none.
    pub source: Option<SourceInfo<'a>>,
    /// License of the program, declared to the kernel.
    pub license: License,
    /// Level of detail of the verifier's log. The log is produced only if the kernel rejects the
    /// program.
    pub detail: LogLevel,
}

/// Functions and source lines of a program.
#[derive(Clone, Copy, Debug)]
pub struct SourceInfo<'a> {
    /// Type information with the types and strings to which `functions` and `lines` refer.
    pub btf: &'a Btf,
    /// Functions of the program, ordered by first instruction. Required for timer callbacks.
    pub functions: &'a [FunctionInfo],
    /// Source lines that the verifier's log quotes, ordered by first instruction.
    pub lines: &'a [LineInfo],
}

/// A function of a program (`struct bpf_func_info`).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(C)]
pub struct FunctionInfo {
    /// Index of the function's first instruction.
    pub instruction: u32,
    /// BTF type id of the function.
    pub type_id: u32,
}

/// A source line of a program (`struct bpf_line_info`).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(C)]
pub struct LineInfo {
    /// Index of the first instruction of the line.
    pub instruction: u32,
    /// Offset of the file name in the BTF strings.
    pub file: u32,
    /// Offset of the line's text in the BTF strings.
    pub text: u32,
    /// Line number times 1024, plus the column.
    pub line_col: u32,
}

/// A loaded program, owned through its descriptor.
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
// no padding (1); the addresses are set by `LoadParameters::load_once` alone, from slices that
// outlive the call (2).
unsafe impl Attributes for LoadAttributes {}

impl<'a> LoadParameters<'a> {
    /// Creates load parameters of a program without source information or attach type.
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

    /// Loads the program. First tries without the verifier's log, which is five times faster; if
    /// the kernel refuses with an error other than EPERM and E2BIG, tries again with the log.
    pub fn load(&self) -> std::result::Result<Program, LoadError> {
        let refused = match self.load_with_retries(&mut []) {
            Ok(program) => return Ok(program),
            Err(error) => error,
        };
        let mut log = Vec::new();
        if !matches!(refused.errno, libc::EPERM | libc::E2BIG) {
            for size in LOG_BUFFER_SIZES {
                log = vec![0; size as usize];
                match self.load_with_retries(&mut log) {
                    Ok(program) => return Ok(program),
                    Err(error) if error.errno == libc::ENOSPC => {}
                    Err(_) => break,
                }
            }
        }
        Err(LoadError::new(refused, &log))
    }

    fn load_with_retries(&self, log: &mut [u8]) -> Result<Program> {
        let mut tries = 0;
        loop {
            match self.load_once(log) {
                Err(error) if error.errno == libc::EAGAIN && tries < LOAD_RETRIES_MAX => tries += 1,
                result => return result,
            }
        }
    }

    fn load_once(&self, log: &mut [u8]) -> Result<Program> {
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
            flags: if self.fragments { BPF_F_XDP_HAS_FRAGS } else { 0 }
                | if self.device.is_some() { BPF_F_XDP_DEV_BOUND_ONLY } else { 0 },
            interface: self.device.unwrap_or(0),
            name: encode_object_name(self.name),
            attach_type: self.attach.map_or(0, |attach| attach as u32),
            ..LoadAttributes::default()
        };
        if let Some(source) = self.source {
            attr.btf = source.btf.as_fd().as_raw_fd().cast_unsigned();
            (attr.function_record, attr.functions, attr.function_count) =
                encode_record_list(source.functions);
            (attr.line_record, attr.lines, attr.line_count) = encode_record_list(source.lines);
        }
        let fd = open_object(command::PROG_LOAD, "PROG_LOAD", self.name, &mut attr)?;
        Ok(Program { fd, name: self.name.to_owned(), kind: self.kind })
    }
}

/// Returns the record size, the address and the record count of a list of records, as the kernel
/// expects them.
fn encode_record_list<T>(records: &[T]) -> (u32, u64, u32) {
    let count = u32::try_from(records.len()).unwrap_or(u32::MAX);
    if count == 0 {
        return (0, 0, 0);
    }
    (size_of::<T>() as u32, records.as_ptr().expose_provenance() as u64, count)
}

impl Program {
    /// Loads a program of this type without source information.
    pub fn load(
        kind: ProgramKind,
        name: &str,
        code: &[u8],
    ) -> std::result::Result<Self, LoadError> {
        LoadParameters::new(kind, name, code).load()
    }

    /// Adopts a program from a received descriptor. The kernel reports the program's type and name.
    /// Fails with EINVAL if [`ProgramKind`] lacks the type.
    pub fn from_received(fd: OwnedFd) -> Result<Self> {
        let mut program = Self { fd, name: "a received program".to_owned(), kind: ProgramKind::Tc };
        let info = program.info()?;
        let kinds = [
            ProgramKind::SocketFilter,
            ProgramKind::Tc,
            ProgramKind::Xdp,
            ProgramKind::CgroupPacket,
            ProgramKind::SocketLookup,
        ];
        let kind = kinds.into_iter().find(|kind| *kind as u32 == info.kind).ok_or_else(|| {
            let what = format!("program {:?} of unknown kind {}", info.name, info.kind);
            Error::new("bpf", what, libc::EINVAL)
        })?;
        (program.name, program.kind) = (info.name, kind);
        Ok(program)
    }

    /// Opens the program with this id, whichever process loaded it. Needs CAP_SYS_ADMIN.
    pub fn open_by_id(id: u32) -> Result<Self> {
        let target = format!("program {id}");
        let mut attr = [id, 0, 0];
        let fd = open_object(command::PROG_GET_FD_BY_ID, "PROG_GET_FD_BY_ID", &target, &mut attr)?;
        Self::from_received(fd)
    }

    /// Returns the type of the loaded program.
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
    fn load_attributes_match_the_kernels_layout() {
        use std::mem::offset_of;
        assert_eq!(size_of::<LoadAttributes>(), 112);
        assert_eq!(offset_of!(LoadAttributes, attach_type), 68);
        assert_eq!(offset_of!(LoadAttributes, functions), 80);
        assert_eq!(offset_of!(LoadAttributes, lines), 96);
        assert_eq!((size_of::<FunctionInfo>(), size_of::<LineInfo>()), (8, 16));
    }

    #[test]
    fn partial_instruction_is_rejected_before_the_call() {
        let refused = Program::load(ProgramKind::Xdp, "half", &[0; 12]).unwrap_err();
        assert_eq!(refused.error.errno, libc::EINVAL);
    }
}
