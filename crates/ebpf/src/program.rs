//! A finished program: its code, the maps that it needs, and a source map that attributes
//! instructions to filters.
//!
//! Input: the output of `asm` and `emit`. Output: plain data. `interpret` runs a program unchanged,
//! with maps identified by number; `sys` loads a program after `relocate` has replaced map numbers
//! with file descriptors. This module creates no map and loads no program.

use crate::insn::{Insn, PSEUDO_MAP_FD, PSEUDO_MAP_VALUE};

/// The kernel hook at which a program runs. The hook determines the context, the available helpers
/// and the access to the packet.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub enum Hook {
    /// The tc hook (traffic control), attached through TCX or clsact. The context is `__sk_buff`,
    /// with direct packet access.
    #[default]
    Tc,
    /// The XDP hook (express data path). The context is `xdp_md`, with direct access to the first
    /// buffer of a frame.
    Xdp,
    /// Socket filter. The context is `__sk_buff`; packet bytes are read only through a helper.
    Socket,
    /// The cgroup hook (cgroup/skb), on ingress and egress of the sockets in the cgroup. The
    /// context is `__sk_buff`, and packets begin at layer 3. Programs of this crate read them only
    /// through a helper. The return value 1 keeps the packet, and 0 drops it.
    Cgroup,
}

impl Hook {
    /// Returns true if programs at this hook read packet bytes through a helper, not through packet
    /// pointers.
    #[must_use]
    pub const fn reads_packet_by_helper(self) -> bool {
        matches!(self, Self::Socket | Self::Cgroup)
    }

    /// Returns true if packets at this hook begin with their link header.
    #[must_use]
    pub const fn has_link_header(self) -> bool {
        !matches!(self, Self::Cgroup)
    }
}

/// A filter and its span in the text of the request. Together they identify the filter to which an
/// instruction belongs.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct FilterSpan {
    /// Name of the filter.
    pub filter: String,
    /// Byte offset of the filter in the request.
    pub at: usize,
    /// Length of the filter's text in bytes, including arguments.
    pub length: usize,
    /// Number of the request in a fused program; 0 in a program for one request.
    pub request: u32,
}

impl FilterSpan {
    /// Creates the span of `filter`, which begins at byte `at` and has `length` bytes, including
    /// arguments.
    pub fn new(filter: &str, at: usize, length: usize) -> Self {
        Self { filter: filter.to_owned(), at, length, request: 0 }
    }

    /// Returns the span with this request number.
    #[must_use]
    pub fn with_request_number(self, request: u32) -> Self {
        Self { request, ..self }
    }

    /// Returns the line of text with which the kernel's log attributes code to the filter.
    #[must_use]
    pub fn log_line(&self) -> String {
        let Self { filter, at, length, request } = self;
        let end = at + length;
        match request {
            0 => format!("{filter} @{at}..{end}"),
            request => format!("{filter} @{at}..{end} of request {request}"),
        }
    }
}

/// An entry of the source map: the code from slot `from` on belongs to a filter, or to the frame
/// code that surrounds the filters.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct CodeOwner {
    /// First instruction slot of the range of code.
    pub from: usize,
    /// Index into `Program::filters`; `None` for code that belongs to no filter.
    pub filter: Option<usize>,
}

/// A map that a program needs. Its number is its index in `Program::maps`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct MapSpec {
    /// Name for listings, of which the kernel shows at most 15 characters.
    pub name: String,
    /// Size in bytes of the single value that the map holds.
    pub value_size: u32,
    /// True if user space maps the value into memory instead of reading it with system calls.
    pub mappable: bool,
    /// Index into `Program::filters` of the filter whose private session is kept in this map, as
    /// plain bytes; `None` for other maps.
    pub state_of: Option<usize>,
    /// Number of programs in a program array for tail calls, which is the length of
    /// `Program::tails`; 0 for any other map.
    pub programs: u32,
}

impl MapSpec {
    /// Describes an array that can be mapped into memory and has one value.
    pub fn array(name: &str, value_size: u32) -> Self {
        let name = name.to_owned();
        Self { name, value_size, mappable: true, state_of: None, programs: 0 }
    }
}

/// A continuation of a program, which is loaded as a separate program and entered by a tail call.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct TailProgram {
    /// Instructions of the continuation, in which maps are identified by number.
    pub code: Vec<Insn>,
    /// Source map of the continuation, in ascending order of slots: the filter to which each range
    /// of code belongs.
    pub source_map: Vec<CodeOwner>,
}

/// A counter of a filter: 8 bytes in map 0, at eight times its index in `Program::counters`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Counter {
    /// Index into `Program::filters`; `None` for a counter that belongs to no filter.
    pub filter: Option<usize>,
    /// Name of the counter, as in the filter's description.
    pub name: String,
}

/// A complete program that has not been loaded yet.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Program {
    /// The hook for which the program was emitted.
    pub hook: Hook,
    /// True if the program can be loaded without CAP_PERFMON.
    pub hardened: bool,
    /// True if the program modifies frames.
    pub edits_frames: bool,
    /// Instructions of the program, in which maps are identified by number.
    pub code: Vec<Insn>,
    /// The maps in the order of their numbers, each an array of one element or the program array.
    pub maps: Vec<MapSpec>,
    /// The counters in map 0; empty if the program has none.
    pub counters: Vec<Counter>,
    /// The filters that contributed code.
    pub filters: Vec<FilterSpan>,
    /// Source map of the program, in ascending order of slots: the filter to which each range of
    /// code belongs.
    pub source_map: Vec<CodeOwner>,
    /// Continuations of the program, which are entered by tail calls. The n-th one must be at index
    /// n of the program array, and is relocated with the same maps.
    pub tails: Vec<TailProgram>,
    /// Offset of the end of the frame bytes that the program may read.
    pub read_end: u32,
}

impl Program {
    /// Returns the code with map numbers replaced by `descriptors[number]`, or `None` if a
    /// descriptor is missing.
    pub fn relocate(&self, descriptors: &[i32]) -> Option<Vec<Insn>> {
        relocate_code(&self.code, descriptors)
    }

    /// Returns the code of each continuation, relocated like [`Program::relocate`]; `None` if a
    /// descriptor is missing.
    pub fn relocate_tails(&self, descriptors: &[i32]) -> Option<Vec<Vec<Insn>>> {
        self.tails.iter().map(|part| relocate_code(&part.code, descriptors)).collect()
    }

    /// Returns BTF line information: for each range of code, its first slot, a line number, and a
    /// text with the filter and its span. The ranges are in ascending order from slot 0. Each
    /// filter has a different line number, because the kernel's log omits a line whose number
    /// equals the previous one.
    pub fn btf_line_info(&self) -> Vec<(usize, u32, String)> {
        let named = self.source_map.iter().map(|line| {
            let word = line.filter.and_then(|word| self.filters.get(word));
            let text = word.map_or_else(|| "frame".to_owned(), FilterSpan::log_line);
            let number = line.filter.and_then(|word| u32::try_from(word + 2).ok());
            (line.from, number.unwrap_or(1), text)
        });
        named.filter(|(from, ..)| *from < self.code.len()).collect()
    }

    /// Returns the filter that emitted slot `at`; `None` for code that belongs to no filter.
    pub fn filter_at(&self, at: usize) -> Option<&FilterSpan> {
        let line = self.source_map.iter().rev().find(|line| line.from <= at)?;
        self.filters.get(line.filter?)
    }
}

/// Returns the code with map numbers replaced by file descriptors, or `None` if a descriptor is
/// missing.
fn relocate_code(code: &[Insn], descriptors: &[i32]) -> Option<Vec<Insn>> {
    let mut code = code.to_vec();
    let mut wide = false;
    for insn in &mut code {
        let first = insn.is_load_imm64() && !wide;
        if first && matches!(insn.src, PSEUDO_MAP_FD | PSEUDO_MAP_VALUE) {
            insn.imm = *descriptors.get(usize::try_from(insn.imm).ok()?)?;
        }
        wide = first;
    }
    Some(code)
}
