//! Search for the libraries to preload, and checks that the loader can preload them into a program.

use memchr::memmem;
use std::ffi::OsString;
use std::fs::File;
use std::io::Read as _;
use std::os::unix::ffi::OsStrExt as _;
use std::os::unix::fs::{FileExt as _, MetadataExt as _};
use std::path::{Path, PathBuf};

/// A library that `streamline sh` or `streamline exec` preloads into programs.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum PreloadLibrary {
    /// The library that turns pipes into streams.
    Pipes,
    /// The library that reads live captures of libpcap from shared rings.
    Pcap,
    /// The library whose UDP sockets receive from rings.
    Udp,
}

/// Environment variable with the directory of all libraries, or with the path of the library for
/// pipes in that directory.
const LIBRARY_VARIABLE: &str = "STREAMLINE_LIB";

impl PreloadLibrary {
    const fn file_name(self) -> &'static str {
        match self {
            Self::Pipes => "libstreamline_sockets.so",
            Self::Pcap => "libstreamline_pcap.so",
            Self::Udp => "libstreamline_udp.so",
        }
    }

    const fn purpose(self) -> &'static str {
        match self {
            Self::Pipes => "turns pipes into streams",
            Self::Pcap => "reads captures from shared rings",
            Self::Udp => "receives datagrams from rings",
        }
    }

    const fn package_name(self) -> &'static str {
        match self {
            Self::Pipes => "streamline-sockets",
            Self::Pcap => "streamline-pcap",
            Self::Udp => "streamline-udp",
        }
    }
}

/// Finds a library. Searches the directory in [`LIBRARY_VARIABLE`] or, if it is not set, the
/// directory of this program and the standard library directories. Fails with a message for the
/// user.
pub(super) fn find_library(library: PreloadLibrary) -> Result<PathBuf, String> {
    let name = library.file_name();
    if let Some(named) = std::env::var_os(LIBRARY_VARIABLE) {
        let named = PathBuf::from(named);
        let folder = if named.is_dir() { &*named } else { named.parent().unwrap_or(&named) };
        let is_file = library == PreloadLibrary::Pipes && !named.is_dir();
        let path = if is_file { named.clone() } else { folder.join(name) };
        return preloadable_path(&path)
            .ok_or_else(|| format!("{LIBRARY_VARIABLE}: {} is not a library", path.display()));
    }
    let own = std::env::current_exe().unwrap_or_default();
    let here = own.parent().unwrap_or_else(|| Path::new("/"));
    let places = [".", "deps", "../lib", "../lib/streamline"].map(|place| here.join(place));
    let found = places.into_iter().chain(["/usr/local/lib".into(), "/usr/lib".into()]);
    found.map(|folder| folder.join(name)).find_map(|path| preloadable_path(&path)).ok_or_else(
        || {
            let (purpose, package) = (library.purpose(), library.package_name());
            let (debian, without) = match library {
                PreloadLibrary::Pipes => {
                    ("streamline", "`streamline sh --isolate` runs without it")
                }
                PreloadLibrary::Pcap | PreloadLibrary::Udp => {
                    ("libstreamline", "`--with=pipes` runs without it")
                }
            };
            format!(
                "{name}, which {purpose}, is neither beside this program nor in a library \
                 directory: the package `{debian}` contains it; in the source tree `cargo xtask \
                 install` installs it, or `cargo build --release -p {package}` builds it and \
                 {LIBRARY_VARIABLE}=target/release names its directory; {without}"
            )
        },
    )
}

/// Returns the canonical form of a library's path. Returns `None` if LD_PRELOAD cannot contain the
/// path: it is not a file, or contains a space, a tab or a colon.
fn preloadable_path(path: &Path) -> Option<PathBuf> {
    let path = path.canonicalize().ok().filter(|path| path.is_file())?;
    let odd = path.as_os_str().as_bytes().iter().any(|byte| b": \t".contains(byte));
    (!odd).then_some(path)
}

/// Finds the executable of a program as a shell does. Returns `None` if there is none.
pub(super) fn find_executable(name: &str) -> Option<PathBuf> {
    let runs =
        |path: &Path| path.metadata().is_ok_and(|meta| meta.is_file() && meta.mode() & 0o111 != 0);
    if name.contains('/') {
        return Some(PathBuf::from(name)).filter(|path| runs(path));
    }
    let path = std::env::var_os("PATH").unwrap_or_else(|| OsString::from("/usr/bin:/bin"));
    std::env::split_paths(&path).map(|folder| folder.join(name)).find(|path| runs(path))
}

/// Returns the reason why the dynamic loader would not preload a library into a program, or `None`
/// if nothing prevents the preload.
pub(super) fn preload_refusal(name: &str) -> Option<String> {
    let Some(mut path) = find_executable(name) else {
        return Some(format!("`{name}` was not found"));
    };
    // A script is replaced by its interpreter, which may itself be a script.
    for _ in 0..4 {
        let Ok(file) = File::open(&path) else {
            return Some(format!("{} cannot be read", path.display()));
        };
        if file.metadata().map_or(true, |meta| meta.mode() & 0o6000 != 0) {
            return Some(format!("{} changes its user", path.display()));
        }
        // The loader ignores LD_PRELOAD if the file has capabilities, except for root, who already
        // has all of them.
        if sys::process::effective_ids().0 != 0 && sys::file::has_capabilities(&file) {
            return Some(format!("{} has file capabilities", path.display()));
        }
        let mut head = [0; 256];
        let count = (&file).read(&mut head).unwrap_or(0);
        let head = head.get(..count).unwrap_or_default();
        match head.strip_prefix(b"#!") {
            Some(line) => match script_interpreter(line) {
                Some(next) => path = next,
                None => return Some(format!("{} has no interpreter", path.display())),
            },
            None => {
                return elf_obstacle(&file, head).map(|why| format!("{} {why}", path.display()));
            }
        }
    }
    Some(format!("{} has too many nested interpreters", path.display()))
}

/// Returns true if a program appears to use libpcap: its file contains the file name of the library
/// or, if linked statically, the library's version text.
pub(super) fn uses_libpcap(name: &str) -> bool {
    find_executable(name)
        .is_some_and(|path| contains_text(&path, &["libpcap.so", "libpcap version"]))
}

/// Returns true if the file contains one of `texts`. Returns false if the file cannot be read.
fn contains_text(path: &Path, texts: &[&str]) -> bool {
    let bytes = std::fs::read(path).unwrap_or_default();
    texts.iter().any(|text| memmem::find(&bytes, text.as_bytes()).is_some())
}

/// Returns the programs that a command names, including programs in the text after `sh -c`. Adds
/// `dumpcap` for programs that start it, such as Wireshark and tshark.
pub(super) fn named_programs(words: &[OsString]) -> Vec<String> {
    let texts = words.iter().filter_map(|word| word.to_str());
    let parts = texts.flat_map(|text| text.split(|one: char| " \t\n;|&()`'\"<>$".contains(one)));
    let mut found: Vec<String> = Vec::new();
    for part in parts.filter(|part| !part.is_empty() && !part.starts_with('-')) {
        let Some(path) = find_executable(part) else { continue };
        let runs_dumpcap =
            contains_text(&path, &["dumpcap"]) && find_executable("dumpcap").is_some();
        for name in [part].into_iter().chain(runs_dumpcap.then_some("dumpcap")) {
            if !found.iter().any(|known| known == name) {
                found.push(name.to_owned());
            }
        }
    }
    found
}

fn script_interpreter(line: &[u8]) -> Option<PathBuf> {
    let line = line.split(|byte| *byte == b'\n').next()?;
    let mut words = std::str::from_utf8(line).ok()?.split_whitespace();
    let first = words.next()?;
    match words.find(|word| !word.starts_with('-')) {
        Some(name) if first.ends_with("/env") => find_executable(name),
        _ => Some(PathBuf::from(first)),
    }
}

/// Returns the property of an ELF file that prevents preloading, or `None` if there is none.
fn elf_obstacle(file: &File, head: &[u8]) -> Option<&'static str> {
    /// Program header type of the dynamic loader (PT_INTERP).
    const PT_INTERP: u32 = 3;
    /// Program header type of notes (PT_NOTE).
    const PT_NOTE: u32 = 4;
    let word = |at: usize, bytes: usize| {
        let mut all = [0; 8];
        all.get_mut(..bytes)?.copy_from_slice(head.get(at..at + bytes)?);
        Some(u64::from_le_bytes(all))
    };
    if !head.starts_with(b"\x7fELF\x02\x01") {
        return Some("is not a 64-bit program");
    }
    let own = if cfg!(target_arch = "x86_64") { 62 } else { 183 };
    if word(18, 2) != Some(own) {
        return Some("is built for another processor architecture");
    }
    let (Some(table), Some(size), Some(count)) = (word(32, 8), word(54, 2), word(56, 2)) else {
        return Some("is cut short");
    };
    let (mut loader, mut go) = (Vec::new(), false);
    for at in 0..count.min(64) {
        let mut entry = [0; 56];
        if file.read_exact_at(&mut entry, table.saturating_add(at * size)).is_err() {
            return Some("is cut short");
        }
        let number = |at: usize| {
            entry.get(at..at + 8).and_then(|b| b.try_into().ok()).map_or(0, u64::from_le_bytes)
        };
        let kind = u32::try_from(number(0) & 0xffff_ffff).unwrap_or(0);
        let mut bytes = vec![0; usize::try_from(number(32).min(4096)).unwrap_or(0)];
        if matches!(kind, PT_INTERP | PT_NOTE) && file.read_exact_at(&mut bytes, number(8)).is_ok()
        {
            match kind {
                PT_INTERP => loader = bytes,
                _ => go |= bytes.windows(3).any(|three| three == b"Go\0"),
            }
        }
    }
    let has = |name: &[u8]| loader.windows(name.len()).any(|part| part == name);
    match () {
        () if loader.is_empty() => Some("is linked statically"),
        () if !has(b"ld-linux") => Some("uses another C library"),
        () if go => Some("is a Go program, which calls the kernel directly"),
        () => None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn system_programs_are_preloadable_and_others_give_reasons() {
        assert_eq!(preload_refusal("cat"), None);
        assert!(preload_refusal("no-such-program-here").unwrap().contains("was not found"));
        assert!(preload_refusal("/dev/null").is_some());
        let folder = std::env::temp_dir().join(format!("streamline-probe-{}", std::process::id()));
        std::fs::create_dir_all(&folder).unwrap();
        let script = folder.join("script");
        std::fs::write(&script, "#!/usr/bin/env cat\n").unwrap();
        let mode = std::os::unix::fs::PermissionsExt::from_mode;
        std::fs::set_permissions(&script, mode(0o755)).unwrap();
        assert_eq!(preload_refusal(script.to_str().unwrap()), None);
        std::fs::set_permissions(&script, mode(0o4755)).unwrap();
        assert!(preload_refusal(script.to_str().unwrap()).unwrap().contains("changes its user"));
        std::fs::remove_dir_all(&folder).unwrap();
    }
}
