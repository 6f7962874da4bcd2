//! Frames derived from a twin's constants, so that each of its comparisons is evaluated with both
//! results.
//!
//! Input: an unmodified program and seed frames. Output: frames at which the program's result or
//! path changes. Candidates are seed frames with each constant of the code, or a neighbor of it,
//! written at every offset within reach, and seed frames that are truncated, not linear, or have a
//! tag in metadata. A frame with a new path becomes a seed. No code here depends on a protocol.

use ebpf::emit::Outcome;
use ebpf::exam::{InterpreterJudge, TwinJudge as _, TwinVerdict};
use ebpf::insn::{REGISTER_OPERAND_BIT, class};
use ebpf::interpret::{Packet, Tag};
use ebpf::{Hook, Program};
use std::collections::{BTreeSet, HashSet, VecDeque};
use std::fmt;
use std::hash::{DefaultHasher, Hash as _, Hasher as _};
use wire::ethernet;

/// A test packet with its own copy of the bytes, and with its metadata.
#[derive(Clone, PartialEq, Eq, Hash)]
pub(super) struct OwnedPacket {
    bytes: Vec<u8>,
    linear: usize,
    tag: Option<(u16, u16)>,
    is_unfilled: bool,
}

impl OwnedPacket {
    pub(super) fn from_bytes(bytes: &[u8]) -> Self {
        Self { bytes: bytes.to_vec(), linear: usize::MAX, tag: None, is_unfilled: false }
    }

    pub(super) fn from_packet(packet: &Packet<'_>) -> Self {
        Self {
            bytes: packet.bytes.to_vec(),
            linear: packet.linear,
            tag: packet.tag.map(|tag| (tag.tci, tag.protocol)),
            is_unfilled: packet.is_unfilled,
        }
    }

    pub(super) fn packet(&self) -> Packet<'_> {
        Packet {
            bytes: &self.bytes,
            linear: self.linear.min(self.bytes.len()),
            tag: self.tag.map(|(tci, protocol)| Tag { tci, protocol }),
            is_unfilled: self.is_unfilled,
        }
    }
}

impl OwnedPacket {
    /// Returns variants of the packet as the hook may receive it: truncated at every length, split
    /// into linear data and pages at every offset (TC only), with a tag in metadata (not at XDP),
    /// and with a partial checksum. Also returns variants with each of the `numbers` written at
    /// every offset. Only the first `reach` bytes and a few more vary.
    pub(super) fn variants(&self, place: Hook, reach: usize, numbers: &[u32]) -> Vec<Self> {
        let mut all = self.shape_variants(place, reach);
        let depth = (reach + 2).min(self.bytes.len());
        for (at, width) in (0..depth).flat_map(|at| [1, 2, 4].map(|width| (at, width))) {
            let Some(most) = u32::MAX.checked_shr(32 - 8 * width as u32) else { continue };
            let fit = numbers.iter().filter(|n| **n <= most && (width == 1 || **n > most >> 16));
            if at + width <= self.bytes.len() {
                all.extend(fit.map(|number| self.with_number(at, width, *number)));
            }
        }
        all
    }

    fn shape_variants(&self, place: Hook, reach: usize) -> Vec<Self> {
        let depth = (reach + 4).min(self.bytes.len());
        // Removing a tag needs a whole header.
        let least = if self.tag.is_some() { ethernet::HEADER_LENGTH } else { 0 };
        let cut = |end| Self { bytes: self.bytes[..end].to_vec(), ..self.clone() };
        let mut all: Vec<Self> = (least..=depth).map(cut).collect();
        if place == Hook::Tc {
            all.extend((0..=depth).map(|linear| Self { linear, ..self.clone() }));
        }
        if place != Hook::Xdp && self.bytes.len() >= ethernet::HEADER_LENGTH {
            let tags = [(0, 0x8100), (0, 0x88a8), (0xefff, 0x8100), (1, 0x88a8)];
            all.extend(tags.map(|tag| Self { tag: Some(tag), ..self.clone() }));
        }
        all.push(Self { is_unfilled: true, ..self.clone() });
        all
    }

    /// Returns the packet with a number written at an offset.
    fn with_number(&self, at: usize, width: usize, number: u32) -> Self {
        let mut case = self.clone();
        let bytes = number.to_be_bytes();
        case.bytes[at..at + width].copy_from_slice(&bytes[4 - width..]);
        case
    }

    /// Changes the packet at some random offsets up to `reach + 1`, and occasionally truncates it.
    pub(super) fn change_randomly(&mut self, reach: usize, numbers: &[u32], state: &mut u64) {
        let mut random = |below: usize| {
            *state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1);
            (*state >> 33) as usize % below.max(1)
        };
        for _ in 0..=random(4) {
            let depth = (reach + 2).min(self.bytes.len());
            let (at, width) = (random(depth), [1, 2, 4][random(3)]);
            let number = match random(2) {
                0 => numbers[random(numbers.len())],
                _ => random(usize::MAX) as u32,
            };
            if at + width <= self.bytes.len() {
                *self = self.with_number(at, width, number);
            }
        }
        if random(8) == 0 && self.tag.is_none() {
            let end = random(self.bytes.len() + 1);
            self.bytes.truncate(end);
        }
    }
}

impl fmt::Display for OwnedPacket {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.bytes.iter().try_for_each(|byte| write!(f, "{byte:02x}"))?;
        if self.linear < self.bytes.len() {
            write!(f, " linear={}", self.linear)?;
        }
        if let Some((tci, protocol)) = self.tag {
            write!(f, " tag={tci:04x}:{protocol:04x}")?;
        }
        if self.is_unfilled { write!(f, " unfilled") } else { Ok(()) }
    }
}

/// A search for packets that take new paths through a program. Each packet runs from the initial
/// state of the program.
struct PacketSearch<'p> {
    program: &'p Program,
    /// Number of runs of the program that the search may still make.
    runs_left: usize,
    known: HashSet<u64>,
    kept: HashSet<OwnedPacket>,
    all: Vec<OwnedPacket>,
    begin: VecDeque<OwnedPacket>,
}

/// Searches, in at most `runs_max` runs, for packets that give new results or take new paths
/// through the program. Returns these packets.
pub(super) fn explore_paths(
    program: &Program,
    frames: &[Vec<u8>],
    runs_max: usize,
) -> Vec<OwnedPacket> {
    let mut explorer = PacketSearch {
        program,
        runs_left: runs_max,
        known: HashSet::new(),
        kept: HashSet::new(),
        all: Vec::new(),
        begin: VecDeque::new(),
    };
    for frame in frames {
        explorer.add_if_new(OwnedPacket::from_bytes(frame));
    }
    let constants = immediate_operands(program);
    while let Some(case) = explorer.begin.pop_front().filter(|_| explorer.runs_left > 0) {
        explorer.try_shape_variants(&case);
        explorer.try_constants(&case, &constants);
    }
    explorer.all
}

impl PacketSearch<'_> {
    /// Runs the program on a packet. Returns a hash that identifies the path of execution. The hash
    /// covers the result and the number of executed instructions.
    fn run_case(&mut self, case: &OwnedPacket) -> u64 {
        self.runs_left = self.runs_left.saturating_sub(1);
        let mut interpreter = InterpreterJudge::new(self.program);
        let ruling = match interpreter.judge(&case.packet()) {
            TwinVerdict::Answered {
                outcome: Outcome::Class(class),
                counter_increases: counted,
                frame,
            } => (Some(class), counted, frame),
            TwinVerdict::Answered { counter_increases: counted, frame, .. } => {
                (None, counted, frame)
            }
            TwinVerdict::Refused(_) | TwinVerdict::Broken(_) => (None, Vec::new(), None),
        };
        let mut hasher = DefaultHasher::new();
        (ruling, interpreter.executed_instruction_count()).hash(&mut hasher);
        hasher.finish()
    }

    /// Runs the program on a packet. If the packet takes a new path of execution, adds it to the
    /// packets found and to the seeds.
    fn add_if_new(&mut self, case: OwnedPacket) {
        let way = self.run_case(&case);
        if self.known.insert(way) {
            self.add_result(case.clone());
            self.begin.push_back(case);
        }
    }

    fn add_result(&mut self, case: OwnedPacket) {
        if self.kept.insert(case.clone()) {
            self.all.push(case);
        }
    }

    /// Runs the program on the packets in `row`, each of which differs slightly from its
    /// predecessor. If two neighbors differ in result or in path of execution, adds both to the
    /// packets found.
    fn add_boundary_pairs(&mut self, row: Vec<OwnedPacket>) {
        let ways: Vec<u64> = row.iter().map(|case| self.run_case(case)).collect();
        for (pair, cases) in ways.windows(2).zip(row.windows(2)) {
            if pair[0] != pair[1] {
                cases.iter().for_each(|case| self.add_result(case.clone()));
                for (way, case) in pair.iter().zip(cases) {
                    if self.known.insert(*way) {
                        self.begin.push_back(case.clone());
                    }
                }
            }
        }
    }

    /// Tries variants of a packet: truncated at every length and, if the hook can receive such
    /// packets, not linear, with tags in metadata, and with a partial checksum.
    fn try_shape_variants(&mut self, case: &OwnedPacket) {
        let depth = (self.program.read_end as usize + 4).min(case.bytes.len());
        let cut = |end| OwnedPacket { bytes: case.bytes[..end].to_vec(), ..case.clone() };
        // Removing a tag needs a whole header.
        let least = if case.tag.is_some() { ethernet::HEADER_LENGTH } else { 0 };
        self.add_boundary_pairs((least..=depth).map(cut).collect());
        if self.program.hook == Hook::Tc {
            let split = |linear| OwnedPacket { linear, ..case.clone() };
            self.add_boundary_pairs((0..=depth).map(split).collect());
        }
        if self.program.hook != Hook::Xdp && case.bytes.len() >= ethernet::HEADER_LENGTH {
            let tags = [(0, 0x8100), (0, 0x88a8), (0xefff, 0x8100), (1, 0x88a8)];
            let tagged = tags.map(|tag| OwnedPacket { tag: Some(tag), ..case.clone() });
            self.add_boundary_pairs([std::slice::from_ref(case), &tagged[..]].concat());
        }
        let unfilled = OwnedPacket { is_unfilled: true, ..case.clone() };
        self.add_boundary_pairs(vec![case.clone(), unfilled]);
    }

    /// Tries the packet with each constant of the program, and the neighbors of the constant,
    /// written at every offset.
    fn try_constants(&mut self, case: &OwnedPacket, constants: &BTreeSet<u32>) {
        let depth = (self.program.read_end as usize + 2).min(case.bytes.len());
        for (at, width) in (0..depth).flat_map(|at| [1, 2, 4].map(|width| (at, width))) {
            let Some(most) = u32::MAX.checked_shr(32 - 8 * width as u32) else { continue };
            let fit = constants
                .iter()
                .filter(|number| **number <= most && (width == 1 || **number > most >> 16));
            if at + width > case.bytes.len() || self.runs_left == 0 {
                continue;
            }
            for number in fit {
                let near = [number.wrapping_sub(1), *number, number.wrapping_add(1)];
                let row = near.map(|number| {
                    let mut case = case.clone();
                    let bytes = number.to_be_bytes();
                    case.bytes[at..at + width].copy_from_slice(&bytes[4 - width..]);
                    case
                });
                self.add_boundary_pairs(row.to_vec());
            }
        }
    }
}

/// Returns the immediate operands of all arithmetic instructions and conditional jumps, except
/// small negative numbers (0xffff_0000 and above).
fn immediate_operands(program: &Program) -> BTreeSet<u32> {
    let immediate = program.code.iter().filter(|insn| insn.code & REGISTER_OPERAND_BIT == 0);
    let used = immediate.filter(|insn| {
        matches!(insn.class(), class::JMP | class::JMP32 | class::ALU | class::ALU64)
            && !matches!(insn.code, 0x05 | 0x85 | 0x95)
    });
    used.map(|insn| insn.imm.cast_unsigned()).filter(|number| *number < 0xffff_0000).collect()
}
