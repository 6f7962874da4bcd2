//! BPF programs in C, compiled by clang at run time. Only the section `program` of the object file
//! is loaded, with its references to variables in `.bss`.

use ebpf::insn::PSEUDO_MAP_VALUE;
use std::os::fd::{AsFd as _, AsRawFd as _};
use std::path::Path;
use std::process::Command;
use sys::bpf::{Map, Program, ProgramKind};
use sys::memory::ReadMapping;

/// Relocation type for the address of a symbol in a 64-bit immediate load.
const R_BPF_64_64: u64 = 1;
/// Size of a relocation entry in bytes.
const RELOCATION_SIZE: usize = 16;

/// The C source of a BPF program, with the settings for its compilation.
#[derive(Clone, Copy, Debug)]
pub(crate) struct CSource<'s> {
    /// The name of the source file and of the program in the kernel.
    pub(crate) name: &'static str,
    pub(crate) text: &'static str,
    /// Macro definitions: `NAME` or `NAME=VALUE`.
    pub(crate) macros: &'s [String],
    /// Size in bytes of the section `.bss`, which contains the program's variables.
    pub(crate) bss_size: u32,
}

/// A loaded BPF program compiled from C, with its `.bss` mapped.
#[derive(Debug)]
pub(crate) struct CProgram {
    pub(crate) program: Program,
    bss: ReadMapping,
}

impl CProgram {
    /// Compiles and loads the program, with `.bss` in a mappable array map.
    pub(crate) fn load(
        folder: &Path,
        kind: ProgramKind,
        source: CSource<'_>,
    ) -> Result<Self, String> {
        let bss =
            Map::array(source.name, source.bss_size, 1, true).map_err(|why| why.to_string())?;
        let object = compile(folder, source)?;
        let code = program_code(&object, bss.as_fd().as_raw_fd());
        let code = code.ok_or("clang made an object file of another form")?;
        let program = Program::load(kind, source.name, &code);
        let program = program.map_err(|why| format!("{why}\n{}", why.log))?;
        let bss = bss.map_read().map_err(|why| why.to_string())?;
        Ok(Self { program, bss })
    }

    /// Returns the first `N` `u64` words of `.bss`. Words beyond its end are 0.
    pub(crate) fn bss_words<const N: usize>(&self) -> [u64; N] {
        let word = |at: usize| self.bss.word(8 * at).unwrap_or(0);
        std::array::from_fn(word)
    }
}

fn compile(folder: &Path, source: CSource<'_>) -> Result<Vec<u8>, String> {
    let CSource { name, text, macros, .. } = source;
    let (path, object) = (folder.join(format!("{name}.c")), folder.join(format!("{name}.o")));
    std::fs::write(&path, text).map_err(|why| why.to_string())?;
    let headers = format!("/usr/include/{}-linux-gnu", std::env::consts::ARCH);
    let mut command = Command::new("clang");
    command.args(["-target", "bpf", "-mcpu=v3", "-O2", "-Wall", "-Werror", "-idirafter", &headers]);
    command.args(macros.iter().map(|what| format!("-D{what}")));
    command.arg("-c").arg(&path).arg("-o").arg(&object);
    let output = command.output().map_err(|why| format!("clang: {why}"))?;
    if !output.status.success() {
        return Err(format!("clang: {}", String::from_utf8_lossy(&output.stderr)));
    }
    std::fs::read(object).map_err(|why| why.to_string())
}

/// A section of an ELF object file: its name and its contents.
struct ElfSection<'o> {
    name: &'o [u8],
    bytes: &'o [u8],
}

/// Returns the code of the program, in which the address of the map's value replaces references to
/// `.bss`. Returns `None` if the object file does not have the expected form.
fn program_code(object: &[u8], map: i32) -> Option<Vec<u8>> {
    let sections = parse_sections(object)?;
    let named = |name: &[u8]| sections.iter().find(|section| section.name == name);
    let mut code = named(b"program")?.bytes.to_vec();
    let relocations = named(b".relprogram").map_or(&[][..], |section| section.bytes);
    for entry in relocations.chunks_exact(RELOCATION_SIZE) {
        let (at, what) =
            (usize::try_from(read_number::<8>(entry, 0)?).ok()?, read_number::<8>(entry, 8)?);
        // `.bss` has a single symbol, at offset 0; the code contains the offset of a variable.
        let load = code.get_mut(at..at + 16).filter(|_| what & 0xffff_ffff == R_BPF_64_64)?;
        let offset: [u8; 4] = load.get(4..8)?.try_into().ok()?;
        load[1] = load[1] & 0x0f | PSEUDO_MAP_VALUE << 4;
        load[4..8].copy_from_slice(&map.to_le_bytes());
        load[12..16].copy_from_slice(&offset);
    }
    Some(code)
}

/// Returns the sections of a 64-bit little-endian ELF file.
fn parse_sections(object: &[u8]) -> Option<Vec<ElfSection<'_>>> {
    let place = |value: u64| usize::try_from(value).ok();
    let table = place(read_number::<8>(object, 0x28)?)?;
    let [size, count, names] =
        [0x3a, 0x3c, 0x3e].map(|at| read_number::<2>(object, at).and_then(place));
    let (size, count, names) = (size?, count?, names?);
    let header = |which: usize| object.get(table + which * size..)?.get(..size);
    let bytes = |header: &[u8]| {
        let (begin, length) =
            (place(read_number::<8>(header, 24)?)?, place(read_number::<8>(header, 32)?)?);
        // `.bss` has no bytes in the file.
        Some(object.get(begin..).and_then(|rest| rest.get(..length)).unwrap_or(&[]))
    };
    let names = bytes(header(names)?)?;
    let section = |which| {
        let header = header(which)?;
        let name = names.get(place(read_number::<4>(header, 0)?)?..)?;
        let name = name.split(|byte| *byte == 0).next()?;
        Some(ElfSection { name, bytes: bytes(header)? })
    };
    (0..count).map(section).collect()
}

/// Reads a little-endian number of `N` bytes. Returns `None` if the number extends beyond the end.
fn read_number<const N: usize>(bytes: &[u8], at: usize) -> Option<u64> {
    let mut whole = [0; 8];
    whole[..N].copy_from_slice(bytes.get(at..at + N)?);
    Some(u64::from_le_bytes(whole))
}
