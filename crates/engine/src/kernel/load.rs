//! Creation of a program's maps, and loading of its code. In the verifier's log, the filters of the
//! request appear as source lines. [SL §7.1, allocation]

use ebpf::insn;
use endpoint::source::kernel::attach_point::PROGRAM_NAME as NAME;
use std::os::fd::{AsFd as _, AsRawFd as _};
use sys::bpf::{
    BtfBuilder, FunctionInfo, License, LineInfo, LoadError, LoadParameters, Map, Program,
    ProgramKind, SourceInfo,
};
use sys::rollback::{RollbackLog, StepResource};

/// A loaded program and the maps that were created for it. `None` stands for a map that already
/// existed.
#[derive(Debug)]
pub(super) struct LoadedProgram {
    pub(super) program: Program,
    pub(super) maps: Vec<Option<Map>>,
}

/// A rejection of a program by the kernel.
#[derive(Debug)]
pub(super) struct LoadFailure {
    /// The label of the filter that the verifier examined last, or `None` if its log names no
    /// filter.
    pub(super) named: Option<String>,
    pub(super) why: String,
    /// True if the program needs more than 64 maps, or exceeds the verifier's instruction budget.
    pub(super) too_large: bool,
}

impl LoadFailure {
    pub(super) fn from_reason(why: impl ToString) -> Self {
        Self { named: None, why: why.to_string(), too_large: false }
    }

    fn from_load_error(error: &LoadError) -> Self {
        let named = error.log.lines().rev().find_map(|line| line.strip_prefix("; "));
        let too_large = error.error.is_too_large();
        Self { named: named.map(str::to_owned), why: error.to_string(), too_large }
    }

    /// Returns true if the verifier rejected the program in the code of this filter.
    pub(super) fn is_rejected_in(&self, word: &ebpf::FilterSpan) -> bool {
        let rest = self.named.as_deref().and_then(|named| named.strip_prefix(&word.log_line()));
        rest.is_some_and(|rest| rest.is_empty() || rest.starts_with(" @ "))
    }
}

/// Options with which a program is loaded into the kernel.
#[derive(Clone, Copy, Debug)]
pub(super) struct LoadOptions {
    pub(super) kind: ProgramKind,
    pub(super) license: License,
    /// True if the program accepts multi-buffer XDP frames ([`LoadParameters::fragments`]).
    pub(super) fragments: bool,
    /// Index of the interface to which an XDP program is bound; `None` if it is not bound
    /// ([`LoadParameters::device`]).
    pub(super) device: Option<u32>,
}

impl LoadOptions {
    /// Options with which a tc program is loaded.
    pub(super) const TRAFFIC_CONTROL: Self = Self {
        kind: ProgramKind::Tc,
        license: License::ApacheOrMit,
        fragments: false,
        device: None,
    };
    /// Options with which a program for the sockets of a cgroup is loaded.
    pub(super) const SOCKETS: Self =
        Self { kind: ProgramKind::CgroupPacket, ..Self::TRAFFIC_CONTROL };
}

/// Loads a program. `given` holds descriptors of shared maps, which are numbered after the
/// program's own maps. `kept` returns the existing state map of a filter, if any.
pub(super) fn load<'k>(
    program: &ebpf::Program,
    how: LoadOptions,
    given: &[i32],
    steps: &RollbackLog,
    kept: impl Fn(&ebpf::FilterSpan) -> Option<&'k Map>,
) -> Result<LoadedProgram, LoadFailure> {
    let mut maps = Vec::new();
    let mut descriptors = Vec::new();
    for spec in &program.maps {
        let word = spec.state_of.and_then(|word| program.filters.get(word));
        if let Some(known) = word.and_then(&kept) {
            descriptors.push(known.as_fd().as_raw_fd());
            maps.push(None);
            continue;
        }
        steps.announce_creation(StepResource::Memory, "a map").map_err(LoadFailure::from_reason)?;
        let made = match spec.programs {
            0 => Map::array(&spec.name, spec.value_size, 1, spec.mappable),
            programs => Map::create_program_array(&spec.name, programs),
        };
        let made = made.map_err(LoadFailure::from_reason)?;
        descriptors.push(made.as_fd().as_raw_fd());
        maps.push(Some(made));
    }
    descriptors.extend(given);
    let missing = || LoadFailure::from_reason("a map is missing");
    let parts = program.relocate_tails(&descriptors).ok_or_else(missing)?;
    let links = program.maps.iter().position(|spec| spec.programs > 0);
    let links = links.and_then(|at| maps.get(at)?.as_ref());
    for (number, part) in (0..).zip(parts) {
        steps
            .announce_creation(StepResource::Program, "a part of a program")
            .map_err(LoadFailure::from_reason)?;
        let code = insn::encode(&part);
        let LoadOptions { kind, license, fragments, device } = how;
        let part =
            LoadParameters { license, fragments, device, ..LoadParameters::new(kind, NAME, &code) };
        let part = part.load().map_err(|error| LoadFailure::from_load_error(&error))?;
        let put = links.ok_or_else(missing)?.set_descriptor(number, part.as_fd());
        put.map_err(LoadFailure::from_reason)?;
    }
    steps
        .announce_creation(StepResource::Program, "a program")
        .map_err(LoadFailure::from_reason)?;
    let code = program.relocate(&descriptors).ok_or_else(missing)?;
    let code = insn::encode(&code);
    let LoadOptions { kind, license, fragments, device } = how;
    let plain =
        LoadParameters { license, fragments, device, ..LoadParameters::new(kind, NAME, &code) };
    let loaded = match build_source_lines(program) {
        Ok((types, functions, lines)) => {
            let btf = types.load().ok();
            let source =
                btf.as_ref().map(|btf| SourceInfo { btf, functions: &functions, lines: &lines });
            LoadParameters { source, ..plain }.load()
        }
        Err(()) => plain.load(),
    };
    match loaded {
        Ok(program) => Ok(LoadedProgram { program, maps }),
        Err(error) => Err(LoadFailure::from_load_error(&error)),
    }
}

/// Builds the source lines of a program in BTF format. Fails if an offset exceeds 32 bits.
fn build_source_lines(
    program: &ebpf::Program,
) -> Result<(BtfBuilder, [FunctionInfo; 1], Vec<LineInfo>), ()> {
    let mut types = BtfBuilder::new();
    let int = types.add_int("int", 4);
    let main = types.add_function("request", int, &[("ctx", int)]);
    let file = types.add_string("request");
    let line = |(from, number, text): &(usize, u32, String)| {
        let instruction = u32::try_from(*from).map_err(drop)?;
        Ok(LineInfo { instruction, file, text: types.add_string(text), line_col: number << 10 })
    };
    let lines = program.btf_line_info().iter().map(line).collect::<Result<Vec<_>, ()>>()?;
    Ok((types, [FunctionInfo { instruction: 0, type_id: main }], lines))
}
