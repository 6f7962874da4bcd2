//! From a program as data to one that the kernel has taken: maps, memory for what leaves, the words
//! of the request for the verifier's log. [SL §7.1, allocation]

use super::Refusal;
use super::assemble::{Tree, word};
use ebpf::insn;
use pipeline::graph::{Graph, NodeId};
use std::os::fd::{AsFd as _, AsRawFd as _};
use sys::bpf::{Function, Kind, Line, Linkage, Load, LoadError, Map, Program, Source, Types};

/// A program that the kernel has taken, and its own maps.
#[derive(Debug)]
pub(super) struct Loaded {
    pub(super) program: Program,
    pub(super) maps: Vec<Map>,
}

/// Loads a program; `given` are rings and bell.
pub(super) fn load(
    program: &ebpf::Program,
    given: [i32; 2],
    (tree, graph, source): (&Tree, &Graph, NodeId),
) -> Result<Loaded, Refusal> {
    let refused = |why: String| Refusal { node: source, why };
    let made = |spec: &ebpf::MapSpec| Map::array(&spec.name, spec.value_size, 1, spec.mappable);
    let maps: sys::Result<Vec<Map>> = program.maps.iter().map(made).collect();
    let maps = maps.map_err(|error| refused(error.to_string()))?;
    let own = maps.iter().map(|map| map.as_fd().as_raw_fd());
    let descriptors: Vec<i32> = own.chain(given).collect();
    let code = program.relocate(&descriptors).ok_or_else(|| refused("a map is missing".into()))?;
    let code = insn::encode(&code);
    let loaded = match lines(program) {
        Ok((types, functions, lines)) => {
            let btf = types.load().ok();
            let source =
                btf.as_ref().map(|btf| Source { btf, functions: &functions, lines: &lines });
            Load { source, ..Load::new(Kind::Tc, NAME, &code) }.load()
        }
        Err(()) => Program::load(Kind::Tc, NAME, &code),
    };
    match loaded {
        Ok(program) => Ok(Loaded { program, maps }),
        Err(error) => {
            let node = blamed(&error, tree, graph).unwrap_or(source);
            Err(Refusal { node, why: error.to_string() })
        }
    }
}

/// What people see who list programs.
const NAME: &str = "streamline";

/// The node in whose code the verifier stopped: the last that its log names.
fn blamed(error: &LoadError, tree: &Tree, graph: &Graph) -> Option<NodeId> {
    let named = error.log.lines().rev().find_map(|line| line.strip_prefix("; "))?;
    let nodes = tree.steps.iter().filter_map(|step| step.nodes.first().copied());
    let begins = |id: &NodeId| {
        let word = word(graph, *id);
        named.starts_with(&format!("{} @{}..{}", word.filter, word.at, word.at + word.length))
    };
    nodes.into_iter().find(begins)
}

/// The lines of a program as types, functions and lines; none if there are too many.
fn lines(program: &ebpf::Program) -> Result<(Types, [Function; 1], Vec<Line>), ()> {
    let mut types = Types::new();
    let int = types.int("int", 4);
    let main = types.function("request", int, &[("ctx", int)], Linkage::Global);
    let file = types.text("request");
    let line = |(from, number, text): &(usize, u32, String)| {
        let instruction = u32::try_from(*from).map_err(drop)?;
        Ok(Line { instruction, file, text: types.text(text), number: number << 10 })
    };
    let lines = program.lines().iter().map(line).collect::<Result<Vec<_>, ()>>()?;
    Ok((types, [Function { instruction: 0, type_id: main }], lines))
}
