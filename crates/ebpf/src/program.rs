//! A finished program: code, the maps that it needs, and the filter behind each instruction.
//!
//! Input: the output of `asm` and `emit`. Output: plain data that `interpret` runs as it is, with
//! maps by number, and that `sys` loads once `relocate` has replaced map numbers with file
//! descriptors. This module creates no map and loads no program.

use crate::insn::{Insn, PSEUDO_MAP, PSEUDO_MAP_VALUE};

/// The kernel hook at which a program runs. It determines the context, the helpers and the access
/// to the packet.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub enum Hook {
    /// Traffic control (TCX or clsact): `__sk_buff` with direct packet access.
    #[default]
    Tc,
    /// Express data path: `xdp_md`. Direct access reaches the first buffer of a frame.
    Xdp,
    /// Socket filter: `__sk_buff`; packet bytes only through a helper.
    Socket,
    /// Control group (cgroup/skb), on ingress and egress of its sockets: `__sk_buff`, packets from
    /// layer 3 on, read here only through a helper. Any return value but 1 drops the packet.
    Cgroup,
}

impl Hook {
    /// Returns true if programs read packet bytes through a helper, not through packet pointers.
    #[must_use]
    pub const fn reads_by_helper(self) -> bool {
        matches!(self, Self::Socket | Self::Cgroup)
    }

    /// Returns true if packets begin with their link header.
    #[must_use]
    pub const fn has_link_header(self) -> bool {
        !matches!(self, Self::Cgroup)
    }
}

/// A filter and its span in the request text; identifies the filter to which an instruction
/// belongs.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct FilterSpan {
    /// The filter's name.
    pub filter: String,
    /// Byte offset in the request.
    pub at: usize,
    /// Length in bytes.
    pub length: usize,
    /// Number of the request in a fused program; 0 in a program for one request.
    pub request: u32,
}

impl FilterSpan {
    /// Creates the span of `filter` at byte `at`, arguments included.
    pub fn new(filter: &str, at: usize, length: usize) -> Self {
        Self { filter: filter.to_owned(), at, length, request: 0 }
    }

    /// Returns the same span in another request.
    #[must_use]
    pub fn in_request(self, request: u32) -> Self {
        Self { request, ..self }
    }

    /// Formats the name under which the kernel's log lists the code.
    #[must_use]
    pub fn label(&self) -> String {
        let Self { filter, at, length, request } = self;
        let end = at + length;
        match request {
            0 => format!("{filter} @{at}..{end}"),
            request => format!("{filter} @{at}..{end} of request {request}"),
        }
    }
}

/// An entry of the source map: code from slot `from` on belongs to a filter, or to the frame code
/// that surrounds the filters.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct CodeOwner {
    /// First slot.
    pub from: usize,
    /// Index into `Program::filters`; `None` for frame code.
    pub filter: Option<usize>,
}

/// A map that a program needs. Its number is its index in `Program::maps`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct MapSpec {
    /// Name for listings; the kernel shows at most 15 characters.
    pub name: String,
    /// Size of the map's only value, in bytes.
    pub value_size: u32,
    /// True if user space mmaps the map instead of using system calls.
    pub mappable: bool,
    /// Index into `Program::filters` of the filter whose private session the value holds, as plain
    /// data.
    pub state_of: Option<usize>,
    /// Number of programs in a program array: those of `Program::tails`, for tail calls. 0 for a
    /// map of values.
    pub programs: u32,
}

impl MapSpec {
    /// Creates the spec of a mappable array with one value.
    pub fn array(name: &str, value_size: u32) -> Self {
        let name = name.to_owned();
        Self { name, value_size, mappable: true, state_of: None, programs: 0 }
    }
}

/// A continuation of a program: loaded as a program of its own and entered by a tail call.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct TailProgram {
    /// Instructions, which refer to maps by number.
    pub code: Vec<Insn>,
    /// Source map, ascending by slot.
    pub source: Vec<CodeOwner>,
}

/// A filter's counter: 8 bytes in map 0, at eight times its index in `Program::counters`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Counter {
    /// Index into `Program::filters`; `None` for a counter of the frame code.
    pub filter: Option<usize>,
    /// Its name in the filter's description.
    pub name: String,
}

/// A complete program that is not loaded yet.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Program {
    /// The hook for which it was emitted.
    pub hook: Hook,
    /// True if it loads without CAP_PERFMON.
    pub hardened: bool,
    /// True if the program modifies frames.
    pub edits: bool,
    /// Instructions, which refer to maps by number.
    pub code: Vec<Insn>,
    /// The maps by number; each an array of one element.
    pub maps: Vec<MapSpec>,
    /// The counters in map 0; empty if the program has none.
    pub counters: Vec<Counter>,
    /// The filters that contributed code.
    pub filters: Vec<FilterSpan>,
    /// Source map, ascending by slot.
    pub source: Vec<CodeOwner>,
    /// Continuations. The n-th continuation must be at index n of the program array, relocated with
    /// the same maps.
    pub tails: Vec<TailProgram>,
    /// Deepest byte offset, exclusive, that the program may read in a frame.
    pub reach: u32,
}

impl Program {
    /// Returns the code with `descriptors[number]` in place of map numbers; `None` if one is
    /// missing.
    pub fn relocate(&self, descriptors: &[i32]) -> Option<Vec<Insn>> {
        relocated(&self.code, descriptors)
    }

    /// Relocates each continuation in the same way.
    pub fn relocate_tails(&self, descriptors: &[i32]) -> Option<Vec<Vec<Insn>>> {
        self.tails.iter().map(|part| relocated(&part.code, descriptors)).collect()
    }

    /// Returns the BTF line information: for each range of code, its first slot, a line number, and
    /// the filter with its span. Ascending by slot, from slot 0. Each filter has a line number of
    /// its own, because the kernel's log suppresses a line whose number equals the previous one.
    pub fn lines(&self) -> Vec<(usize, u32, String)> {
        let named = self.source.iter().map(|line| {
            let word = line.filter.and_then(|word| self.filters.get(word));
            let text = word.map_or_else(|| "frame".to_owned(), FilterSpan::label);
            let number = line.filter.and_then(|word| u32::try_from(word + 2).ok());
            (line.from, number.unwrap_or(1), text)
        });
        named.filter(|(from, ..)| *from < self.code.len()).collect()
    }

    /// Returns the filter that emitted slot `at`.
    pub fn filter_at(&self, at: usize) -> Option<&FilterSpan> {
        let line = self.source.iter().rev().find(|line| line.from <= at)?;
        self.filters.get(line.filter?)
    }
}

/// Replaces map numbers by file descriptors.
fn relocated(code: &[Insn], descriptors: &[i32]) -> Option<Vec<Insn>> {
    let mut code = code.to_vec();
    let mut wide = false;
    for insn in &mut code {
        let first = insn.is_load64() && !wide;
        if first && matches!(insn.src, PSEUDO_MAP | PSEUDO_MAP_VALUE) {
            insn.imm = *descriptors.get(usize::try_from(insn.imm).ok()?)?;
        }
        wide = first;
    }
    Some(code)
}
