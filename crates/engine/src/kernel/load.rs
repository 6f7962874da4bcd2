//! From a program as data to one that the kernel has taken: maps, the words of the request for the
//! verifier's log. [SL §7.1, allocation]

use ebpf::insn;
use std::os::fd::{AsFd as _, AsRawFd as _};
use sys::bpf::{
    BtfBuilder, FunctionInfo, License, LineInfo, Linkage, Load, LoadError, Map, Program,
    ProgramKind, SourceInfo,
};
use sys::steps::{Resource, Steps};

/// A program that the kernel has taken, and its own maps; none in the place of one that was there.
#[derive(Debug)]
pub(super) struct Loaded {
    pub(super) program: Program,
    pub(super) maps: Vec<Option<Map>>,
}

/// The reason the kernel rejected a program.
#[derive(Debug)]
pub(super) struct Failed {
    /// The last filter the verifier examined, as the program names it.
    pub(super) named: Option<String>,
    pub(super) why: String,
    /// True if the program exceeds a kernel limit: 64 maps, or the verifier's path budget.
    pub(super) too_large: bool,
}

impl Failed {
    pub(super) fn because(why: impl ToString) -> Self {
        Self { named: None, why: why.to_string(), too_large: false }
    }

    fn refused(error: &LoadError) -> Self {
        let named = error.log.lines().rev().find_map(|line| line.strip_prefix("; "));
        let too_large = error.error.is_too_large();
        Self { named: named.map(str::to_owned), why: error.to_string(), too_large }
    }

    /// Returns true if the verifier stopped at this word.
    pub(super) fn is_at(&self, word: &ebpf::FilterSpan) -> bool {
        let rest = self.named.as_deref().and_then(|named| named.strip_prefix(&word.label()));
        rest.is_some_and(|rest| rest.is_empty() || rest.starts_with(" @ "))
    }
}

/// Load options of a program, besides its code.
#[derive(Clone, Copy, Debug)]
pub(super) struct How {
    pub(super) kind: ProgramKind,
    pub(super) license: License,
    /// See [`Load::fragments`].
    pub(super) fragments: bool,
    /// See [`Load::device`].
    pub(super) device: Option<u32>,
}

impl How {
    /// As a program at traffic control.
    pub(super) const WATCHES: Self = Self {
        kind: ProgramKind::Tc,
        license: License::ApacheOrMit,
        fragments: false,
        device: None,
    };
    /// As a program before sockets.
    pub(super) const SOCKETS: Self = Self { kind: ProgramKind::CgroupPacket, ..Self::WATCHES };
}

/// Loads a program; `given` are the maps behind its own, `kept` the state that a word has already.
pub(super) fn load<'k>(
    program: &ebpf::Program,
    how: How,
    given: &[i32],
    steps: &Steps,
    kept: impl Fn(&ebpf::FilterSpan) -> Option<&'k Map>,
) -> Result<Loaded, Failed> {
    let mut maps = Vec::new();
    let mut descriptors = Vec::new();
    for spec in &program.maps {
        let word = spec.state_of.and_then(|word| program.filters.get(word));
        if let Some(known) = word.and_then(&kept) {
            descriptors.push(known.as_fd().as_raw_fd());
            maps.push(None);
            continue;
        }
        steps.take(Resource::Memory, "a map").map_err(Failed::because)?;
        let made = match spec.programs {
            0 => Map::array(&spec.name, spec.value_size, 1, spec.mappable),
            programs => Map::programs(&spec.name, programs),
        };
        let made = made.map_err(Failed::because)?;
        descriptors.push(made.as_fd().as_raw_fd());
        maps.push(Some(made));
    }
    descriptors.extend(given);
    let missing = || Failed::because("a map is missing");
    let parts = program.relocate_tails(&descriptors).ok_or_else(missing)?;
    let links = program.maps.iter().position(|spec| spec.programs > 0);
    let links = links.and_then(|at| maps.get(at)?.as_ref());
    for (number, part) in (0..).zip(parts) {
        steps.take(Resource::Program, "a part of a program").map_err(Failed::because)?;
        let code = insn::encode(&part);
        let How { kind, license, fragments, device } = how;
        let part = Load { license, fragments, device, ..Load::new(kind, NAME, &code) };
        let part = part.load().map_err(|error| Failed::refused(&error))?;
        let put = links.ok_or_else(missing)?.set_descriptor(number, part.as_fd());
        put.map_err(Failed::because)?;
    }
    steps.take(Resource::Program, "a program").map_err(Failed::because)?;
    let code = program.relocate(&descriptors).ok_or_else(missing)?;
    let code = insn::encode(&code);
    let How { kind, license, fragments, device } = how;
    let plain = Load { license, fragments, device, ..Load::new(kind, NAME, &code) };
    let loaded = match lines(program) {
        Ok((types, functions, lines)) => {
            let btf = types.load().ok();
            let source =
                btf.as_ref().map(|btf| SourceInfo { btf, functions: &functions, lines: &lines });
            Load { source, ..plain }.load()
        }
        Err(()) => plain.load(),
    };
    match loaded {
        Ok(program) => Ok(Loaded { program, maps }),
        Err(error) => Err(Failed::refused(&error)),
    }
}

/// Program name in listings such as `bpftool prog`.
const NAME: &str = "streamline";

/// The lines of a program as types, functions and lines; none if there are too many.
fn lines(program: &ebpf::Program) -> Result<(BtfBuilder, [FunctionInfo; 1], Vec<LineInfo>), ()> {
    let mut types = BtfBuilder::new();
    let int = types.int("int", 4);
    let main = types.function("request", int, &[("ctx", int)], Linkage::Global);
    let file = types.text("request");
    let line = |(from, number, text): &(usize, u32, String)| {
        let instruction = u32::try_from(*from).map_err(drop)?;
        Ok(LineInfo { instruction, file, text: types.text(text), number: number << 10 })
    };
    let lines = program.lines().iter().map(line).collect::<Result<Vec<_>, ()>>()?;
    Ok((types, [FunctionInfo { instruction: 0, type_id: main }], lines))
}
