//! The kernel program generated for `rx | ip | udp | dport |53 count`.

use ebpf::emit::{self, Answer, ReturnConversion, Target};
use ebpf::{FilterSpan, Hook, insn};
use filter::catalog::FILTERS;
use filter::{Arguments, Description};
use std::os::fd::{AsFd as _, AsRawFd as _};
use sys::bpf::{Link, Map, Program, ProgramKind};
use testkit::net::Namespace;

/// The destination port of the frames that the program counts.
const COUNTED_PORT: u32 = crate::flood::WANTED_PORT as u32;
/// The filters that precede the arc to [`COUNTING_FILTER`].
const CHAIN_FILTERS: [&str; 3] = ["ip", "udp", "dport"];
/// The filter that counts the frames to port [`COUNTED_PORT`].
const COUNTING_FILTER: &str = "count";
/// The drop reasons that the generated program counts, each with its filter, in the order of their
/// counters. The counters of blocks and bytes precede these counters.
const DROP_REASONS: [(&str, &str); 6] = [
    ("ip", "not ip"),
    ("ip", "malformed"),
    ("ip", "cut"),
    ("udp", "not udp"),
    ("udp", "malformed"),
    ("udp", "cut"),
];

/// The generated program for `rx | ip | udp | dport |53 count`, loaded into the kernel.
#[derive(Debug)]
pub(crate) struct GeneratedProgram {
    pub(super) program: Program,
    emitted: ebpf::Program,
    maps: Vec<Map>,
}

impl GeneratedProgram {
    /// Emits the program for a TC or XDP hook, and loads it into the kernel.
    pub(crate) fn load(kind: ProgramKind) -> Result<Self, String> {
        let place = if kind == ProgramKind::Xdp { Hook::Xdp } else { Hook::Tc };
        let emitted = emit_program(place)?;
        let array = |map: &ebpf::MapSpec| Map::array(&map.name, map.value_size, 1, map.mappable);
        let maps: Result<Vec<Map>, _> = emitted.maps.iter().map(array).collect();
        let maps = maps.map_err(|why| why.to_string())?;
        let descriptors: Vec<i32> = maps.iter().map(|map| map.as_fd().as_raw_fd()).collect();
        let code = insn::encode(&emitted.relocate(&descriptors).ok_or("a map is missing")?);
        let program = Program::load(kind, "generated", &code);
        let program = program.map_err(|why| format!("{why}\n{}", why.log))?;
        Ok(Self { program, emitted, maps })
    }

    /// Attaches the program to the ingress of a device. Dropping the returned link detaches the
    /// program.
    pub(crate) fn attach(&self, space: &Namespace, device: u32) -> Result<Link, String> {
        super::peers::attach_to_ingress(&self.program, space, device)
    }

    /// Returns the number of frames that the program has counted.
    pub(crate) fn counted_blocks(&self) -> Result<u64, String> {
        self.counters().map(|totals| totals.first().copied().unwrap_or(0))
    }

    /// Returns the counters: blocks, bytes, and the six drop reasons.
    pub(super) fn counters(&self) -> Result<Vec<u64>, String> {
        let of = |which: usize| -> Result<Vec<u64>, String> {
            let map = self.maps.get(which).ok_or("no map")?;
            Ok(ebpf::exam::decode_counters(&map.get(0).map_err(|why| why.to_string())?))
        };
        let state = self.emitted.maps.iter().position(|map| map.state_of.is_some());
        let (state, counted) = (of(state.ok_or("no state")?)?, of(0)?);
        let mut totals = state.get(..2).ok_or("a state of another form")?.to_vec();
        for (filter, reason) in DROP_REASONS {
            let counters = self.emitted.counters.iter().zip(&counted);
            let same = |word: Option<usize>| {
                word.and_then(|word| self.emitted.filters.get(word))
                    .is_some_and(|word| word.filter == filter)
            };
            let same =
                counters.filter(|(counter, _)| counter.name == reason && same(counter.filter));
            totals.push(same.map(|(_, count)| count).sum());
        }
        Ok(totals)
    }
}

fn emit_program(place: Hook) -> Result<ebpf::Program, String> {
    // Loaded for single-buffer frames, like clang's program.
    let target = Target::from(place).with_single_buffer();
    let made = emit::program(target, ReturnConversion::Answer, |s, on, out| {
        let mut answer = Answer::new(emit::NO_ANSWER_CLASS, on);
        for (at, name) in CHAIN_FILTERS.into_iter().enumerate() {
            let description = find_description(name)?;
            let arguments = Arguments::from_parameter_defaults(description.parameters);
            let word = FilterSpan::new(name, at, 1);
            answer =
                s.emit_twin(word, twin_emitter(description)?, &arguments, answer.layers, out)?;
        }
        s.only_in_range(answer.class, COUNTED_PORT, COUNTED_PORT, out);
        let count = find_description(COUNTING_FILTER)?;
        let arguments = Arguments::from_parameter_defaults(count.parameters);
        s.emit_twin(
            FilterSpan::new(COUNTING_FILTER, CHAIN_FILTERS.len(), 1),
            twin_emitter(count)?,
            &arguments,
            answer.layers,
            out,
        )
    });
    made.map_err(|why| why.to_string())
}

fn find_description(name: &str) -> Result<&'static Description, emit::UnfitReason> {
    let found = FILTERS.iter().copied().find(|description| description.name == name);
    found.ok_or_else(|| emit::UnfitReason::new("no such filter"))
}

fn twin_emitter(description: &Description) -> Result<emit::EmitFn<Arguments>, emit::UnfitReason> {
    description.emit_twin.ok_or_else(|| emit::UnfitReason::new("no twin"))
}
