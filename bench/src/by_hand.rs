//! Programs in C, compiled by clang when they are measured, and the parts of their object files
//! that are needed: the code of section `program`, and its references to variables in `.bss`.

use ebpf::insn::PSEUDO_MAP_VALUE;
use std::os::fd::{AsFd as _, AsRawFd as _};
use std::path::Path;
use std::process::Command;
use sys::bpf::{Map, Program, ProgramKind};
use sys::memory::ReadMapping;

/// `R_BPF_64_64`: the address of a symbol, in a wide load.
const WIDE: u64 = 1;
/// Bytes of an entry of a table of relocations.
const RELOCATION: usize = 16;

/// A program in C.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Source<'s> {
    /// The name, in the kernel too.
    pub(crate) name: &'static str,
    pub(crate) text: &'static str,
    /// The macros: `NAME` or `NAME=VALUE`.
    pub(crate) defined: &'s [String],
    /// Bytes of `.bss`.
    pub(crate) kept: u32,
}

/// A program in C, loaded.
#[derive(Debug)]
pub(crate) struct ByHand {
    pub(crate) program: Program,
    kept: ReadMapping,
}

impl ByHand {
    /// Compiles and loads it. What it keeps can be mapped, as a ring of ours can.
    pub(crate) fn load(
        folder: &Path,
        kind: ProgramKind,
        source: Source<'_>,
    ) -> Result<Self, String> {
        let kept = Map::array(source.name, source.kept, 1, true).map_err(|why| why.to_string())?;
        let object = compile(folder, source)?;
        let code = code(&object, kept.as_fd().as_raw_fd());
        let code = code.ok_or("clang made an object file of another form")?;
        let program = Program::load(kind, source.name, &code);
        let program = program.map_err(|why| format!("{why}\n{}", why.log))?;
        let kept = kept.map_read().map_err(|why| why.to_string())?;
        Ok(Self { program, kept })
    }

    /// The first `N` numbers of eight bytes that it keeps.
    pub(crate) fn numbers<const N: usize>(&self) -> [u64; N] {
        let word = |at: usize| self.kept.word(8 * at).unwrap_or(0);
        std::array::from_fn(word)
    }
}

fn compile(folder: &Path, source: Source<'_>) -> Result<Vec<u8>, String> {
    let Source { name, text, defined, .. } = source;
    let (path, object) = (folder.join(format!("{name}.c")), folder.join(format!("{name}.o")));
    std::fs::write(&path, text).map_err(|why| why.to_string())?;
    let headers = format!("/usr/include/{}-linux-gnu", std::env::consts::ARCH);
    let mut command = Command::new("clang");
    command.args(["-target", "bpf", "-mcpu=v3", "-O2", "-Wall", "-Werror", "-idirafter", &headers]);
    command.args(defined.iter().map(|what| format!("-D{what}")));
    command.arg("-c").arg(&path).arg("-o").arg(&object);
    let output = command.output().map_err(|why| format!("clang: {why}"))?;
    if !output.status.success() {
        return Err(format!("clang: {}", String::from_utf8_lossy(&output.stderr)));
    }
    std::fs::read(object).map_err(|why| why.to_string())
}

/// A section of an object file.
struct Section<'o> {
    name: &'o [u8],
    bytes: &'o [u8],
}

/// The code, speaking of the value of this map.
fn code(object: &[u8], map: i32) -> Option<Vec<u8>> {
    let sections = sections(object)?;
    let named = |name: &[u8]| sections.iter().find(|section| section.name == name);
    let mut code = named(b"program")?.bytes.to_vec();
    let relocations = named(b".relprogram").map_or(&[][..], |section| section.bytes);
    for entry in relocations.chunks_exact(RELOCATION) {
        let (at, what) = (usize::try_from(number::<8>(entry, 0)?).ok()?, number::<8>(entry, 8)?);
        // There is one symbol in `.bss`, at its beginning; the code adds to it.
        let load = code.get_mut(at..at + 16).filter(|_| what & 0xffff_ffff == WIDE)?;
        let offset: [u8; 4] = load.get(4..8)?.try_into().ok()?;
        load[1] = load[1] & 0x0f | PSEUDO_MAP_VALUE << 4;
        load[4..8].copy_from_slice(&map.to_le_bytes());
        load[12..16].copy_from_slice(&offset);
    }
    Some(code)
}

/// The sections of an ELF file of 64 bits, little endian.
fn sections(object: &[u8]) -> Option<Vec<Section<'_>>> {
    let place = |value: u64| usize::try_from(value).ok();
    let table = place(number::<8>(object, 0x28)?)?;
    let [size, count, names] = [0x3a, 0x3c, 0x3e].map(|at| number::<2>(object, at).and_then(place));
    let (size, count, names) = (size?, count?, names?);
    let header = |which: usize| object.get(table + which * size..)?.get(..size);
    let bytes = |header: &[u8]| {
        let (begin, length) = (place(number::<8>(header, 24)?)?, place(number::<8>(header, 32)?)?);
        // `.bss` lies nowhere in the file.
        Some(object.get(begin..).and_then(|rest| rest.get(..length)).unwrap_or(&[]))
    };
    let names = bytes(header(names)?)?;
    let section = |which| {
        let header = header(which)?;
        let name = names.get(place(number::<4>(header, 0)?)?..)?;
        let name = name.split(|byte| *byte == 0).next()?;
        Some(Section { name, bytes: bytes(header)? })
    };
    (0..count).map(section).collect()
}

/// The number of so many bytes that lies there.
fn number<const N: usize>(bytes: &[u8], at: usize) -> Option<u64> {
    let mut whole = [0; 8];
    whole[..N].copy_from_slice(bytes.get(at..at + N)?);
    Some(u64::from_le_bytes(whole))
}
