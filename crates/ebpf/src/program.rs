//! A finished program: code, the maps that it wants, and which words of the request made it.
//!
//! In: what `asm` and `emit` built. Out: plain data that `interpret` runs as it is (maps by
//! number) and that `sys` loads after `relocate` has put descriptors in the place of numbers.
//! This crate creates no map and loads nothing.

use crate::insn::{Insn, PSEUDO_MAP, PSEUDO_MAP_VALUE};

/// Where in the kernel a program runs; fixes its context, its helpers and how it reads the packet.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Place {
    /// Traffic control (TCX or clsact): `__sk_buff` with direct packet access.
    Tc,
    /// Express data path: `xdp_md`. Direct access reaches the first buffer of a frame.
    Xdp,
    /// Socket filter: `__sk_buff`, the packet only through a helper.
    Socket,
    /// Sockets of a control group, what they send and what they receive: `__sk_buff`, the packet
    /// from layer 3 on, here only through a helper; whatever is returned but 1 drops it.
    Cgroup,
}

impl Place {
    /// Whether programs there have no pointers to packets, or use none.
    #[must_use]
    pub const fn asks_for_bytes(self) -> bool {
        matches!(self, Self::Socket | Self::Cgroup)
    }

    /// Whether packets begin with their link header there.
    #[must_use]
    pub const fn has_link(self) -> bool {
        !matches!(self, Self::Cgroup)
    }
}

/// Words of the request: whose code the instructions are.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Word {
    /// The filter's name.
    pub filter: String,
    /// Where it begins in the request, in bytes.
    pub at: usize,
    /// How long it is, in bytes.
    pub length: usize,
    /// Which request it is of, where a program runs several; 0 where it runs one.
    pub request: u32,
}

impl Word {
    /// The filter `filter`, standing at byte `at` of the request with its arguments.
    pub fn new(filter: &str, at: usize, length: usize) -> Self {
        Self { filter: filter.to_owned(), at, length, request: 0 }
    }

    /// The same word of another request.
    #[must_use]
    pub fn of_request(self, request: u32) -> Self {
        Self { request, ..self }
    }

    /// What the code is called in the kernel's own log.
    #[must_use]
    pub fn line(&self) -> String {
        let Self { filter, at, length, request } = self;
        let end = at + length;
        match request {
            0 => format!("{filter} @{at}..{end}"),
            request => format!("{filter} @{at}..{end} of request {request}"),
        }
    }
}

/// From slot `from` on, the code belongs to word `word` of the program, or to none (frame code).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Line {
    /// First slot.
    pub from: usize,
    /// Index into `Program::words`.
    pub word: Option<usize>,
}

/// A map that a program needs; its number is its index in `Program::maps`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct MapSpec {
    /// For people who list maps; at most 15 characters are shown by the kernel.
    pub name: String,
    /// Bytes of its one value.
    pub value_size: u32,
    /// Whether user space maps it instead of asking for it.
    pub mappable: bool,
    /// Index into `Program::words` of the filter whose private session this is, as plain data.
    pub state_of: Option<usize>,
    /// How many programs it holds, by number, instead of a value: those of `Program::parts`, for
    /// tail calls. 0 for all others.
    pub programs: u32,
}

impl MapSpec {
    /// An array of one value that user space may map.
    pub fn array(name: &str, value_size: u32) -> Self {
        let name = name.to_owned();
        Self { name, value_size, mappable: true, state_of: None, programs: 0 }
    }
}

/// A further part of a program, loaded as a program of its own and reached by a tail call.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Part {
    /// Its instructions, maps by number.
    pub code: Vec<Insn>,
    /// Instruction → word, ascending.
    pub source: Vec<Line>,
}

/// A counter of a filter: 8 bytes in map 0, at eight times its index in `Program::counters`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Counter {
    /// Index into `Program::words`, `None` for the frame's own.
    pub word: Option<usize>,
    /// Its name in the filter's description.
    pub name: String,
}

/// A complete program, not yet loaded anywhere.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Program {
    /// Where it must be loaded.
    pub place: Place,
    /// Whether it loads without CAP_PERFMON.
    pub hardened: bool,
    /// Whether it changes frames.
    pub edits: bool,
    /// Its instructions, maps by number.
    pub code: Vec<Insn>,
    /// The maps in the order of their numbers; an array of one element each.
    pub maps: Vec<MapSpec>,
    /// The counters in map 0; empty if the program has no map.
    pub counters: Vec<Counter>,
    /// The words of the request that took part.
    pub words: Vec<Word>,
    /// Instruction → word, ascending.
    pub source: Vec<Line>,
    /// Its further parts: the n-th must stand at n in the map that holds programs, with the same
    /// maps.
    pub parts: Vec<Part>,
    /// How deep into a frame the program may look, in bytes.
    pub reach: u32,
}

impl Program {
    /// The code with `descriptors[number]` in the place of map numbers; `None` if one is missing.
    pub fn relocate(&self, descriptors: &[i32]) -> Option<Vec<Insn>> {
        relocated(&self.code, descriptors)
    }

    /// The same for each further part.
    pub fn relocate_parts(&self, descriptors: &[i32]) -> Option<Vec<Vec<Insn>>> {
        self.parts.iter().map(|part| relocated(&part.code, descriptors)).collect()
    }

    /// What each stretch of code is called in the kernel's own log (BTF line information): its
    /// first slot, a line number, and the filter with its place in the request. Ascending; the
    /// first is slot 0. Each word has a number of its own, because the log leaves out a line with
    /// the number of the one before.
    pub fn lines(&self) -> Vec<(usize, u32, String)> {
        let named = self.source.iter().map(|line| {
            let word = line.word.and_then(|word| self.words.get(word));
            let text = word.map_or_else(|| "frame".to_owned(), Word::line);
            let number = line.word.and_then(|word| u32::try_from(word + 2).ok());
            (line.from, number.unwrap_or(1), text)
        });
        named.filter(|(from, ..)| *from < self.code.len()).collect()
    }

    /// The word that made slot `at`.
    pub fn word_at(&self, at: usize) -> Option<&Word> {
        let line = self.source.iter().rev().find(|line| line.from <= at)?;
        self.words.get(line.word?)
    }
}

/// The code with descriptors in the place of map numbers.
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
