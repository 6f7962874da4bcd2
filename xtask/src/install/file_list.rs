//! The files of an installation, with their paths below the prefix.

use super::manifest::with_path_context;
use std::fs;
use std::io;
use std::os::unix::fs::PermissionsExt as _;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

/// A file of an installation or of a package, with its contents.
#[derive(Clone, Debug)]
pub(crate) struct InstallFile {
    /// Path at which the file is installed, relative to the prefix.
    pub(crate) to: PathBuf,
    /// Description of the file for the summary that `install` prints, such as `documents`.
    pub(crate) what: &'static str,
    pub(crate) bytes: Vec<u8>,
    /// Permission bits of the installed file.
    pub(crate) mode: u32,
}

/// The build whose files are installed, and the directory where they are used.
#[derive(Debug)]
pub(crate) struct InstallSource<'a> {
    /// Directory into which cargo built the programs and libraries.
    pub(crate) built: &'a Path,
    pub(crate) prefix: &'a Path,
    /// True if the benchmarks are installed.
    pub(crate) bench: bool,
    /// True if the libraries for C, Python, `sh` and `exec`, and the live page are installed.
    pub(crate) libraries: bool,
}

impl InstallSource<'_> {
    /// Returns true if the prefix is `/usr` or `/usr/local`, where all users' search paths find the
    /// files.
    fn is_system_wide(&self) -> bool {
        super::is_system_wide(self.prefix)
    }
}

impl InstallFile {
    pub(crate) fn new(to: impl Into<PathBuf>, what: &'static str, bytes: Vec<u8>) -> Self {
        let to = to.into();
        let mode = if to.starts_with("bin") || to.extension().is_some_and(|end| end == "so") {
            0o755
        } else {
            0o644
        };
        Self { to, what, bytes, mode }
    }

    pub(crate) fn write(&self, path: &Path) -> io::Result<()> {
        write_atomically(path, &self.bytes, self.mode)
    }
}

/// Writes a file under a temporary name and renames it, so that a process that has the old file
/// open keeps it.
pub(crate) fn write_atomically(path: &Path, bytes: &[u8], mode: u32) -> io::Result<()> {
    let mut name = path.file_name().unwrap_or_default().to_owned();
    name.push(format!(".new-{}", std::process::id()));
    let beside = path.with_file_name(name);
    let done = fs::write(&beside, bytes)
        .and_then(|()| fs::set_permissions(&beside, fs::Permissions::from_mode(mode)))
        .and_then(|()| fs::rename(&beside, path));
    done.map_err(|error| {
        // The file may not have been created.
        let _ = fs::remove_file(&beside);
        with_path_context(error, "write", path)
    })
}

/// Reads all files to install from the build output and the working tree.
pub(crate) fn read_all_files(
    root: &Path,
    source: &InstallSource<'_>,
) -> io::Result<Vec<InstallFile>> {
    let program = source.built.join("streamline");
    let bench = source.bench.then_some(("streamline-bench", "`streamline bench`"));
    let page = source.libraries.then_some(("streamline-page", "`streamline page`"));
    let mut files = Vec::new();
    for (name, what) in [("streamline", "the program")].into_iter().chain(page).chain(bench) {
        let bytes = read_bytes(&source.built.join(name))?;
        files.push(InstallFile::new(Path::new("bin").join(name), what, bytes));
    }
    if source.libraries {
        files.extend(library_files(root, source)?);
    }
    files.extend(man_pages(&program, &source.built.join("install"))?);
    for (shell, to) in [
        ("bash", "share/bash-completion/completions/streamline"),
        ("zsh", "share/zsh/site-functions/_streamline"),
        ("fish", "share/fish/vendor_completions.d/streamline.fish"),
    ] {
        let script = program_output(Command::new(&program).args(["completion", shell]))?;
        files.push(InstallFile::new(to, "completion", script));
    }
    for path in files_in(&root.join("examples"))? {
        let name = path.file_name().unwrap_or_default().to_owned();
        let to = Path::new("share/streamline/examples").join(name);
        files.push(InstallFile::new(to, "examples", read_bytes(&path)?));
    }
    for name in ["LICENSE-APACHE", "LICENSE-MIT"] {
        let to = Path::new("share/streamline").join(name);
        files.push(InstallFile::new(to, "licences", read_bytes(&root.join(name))?));
    }
    let dashboard = read_bytes(&root.join("dist/grafana/streamline.json"))?;
    files.push(InstallFile::new("share/streamline/grafana.json", "for Grafana", dashboard));
    if source.is_system_wide() {
        files.extend(service_files(root, source)?);
    }
    Ok(files)
}

/// Returns the libraries that other programs load, and the files that C and Python programs need.
fn library_files(root: &Path, source: &InstallSource<'_>) -> io::Result<Vec<InstallFile>> {
    let mut files = Vec::new();
    for (name, purpose) in [
        ("libstreamline_sockets.so", "for `streamline sh`"),
        ("libstreamline_pcap.so", "for `streamline exec`"),
        ("libstreamline_udp.so", "for `streamline exec --with=udp`"),
    ] {
        let library = read_bytes(&source.built.join(name))?;
        files.push(InstallFile::new(Path::new("lib/streamline").join(name), purpose, library));
    }
    for suffix in ["so", "a"] {
        let library = read_bytes(&source.built.join(format!("libstreamline_c.{suffix}")))?;
        let to = format!("lib/libstreamline.{suffix}");
        files.push(InstallFile::new(to, "for C programs", library));
    }
    let capi = root.join("crates/capi");
    let python = read_bytes(&capi.join("python/streamline.py"))?;
    files.push(InstallFile::new("share/streamline/python/streamline.py", "for Python", python));
    let header = read_bytes(&capi.join("include/streamline.h"))?;
    files.push(InstallFile::new("include/streamline.h", "for C programs", header));
    let about = replace_prefix(&read_text(&capi.join("streamline.pc"))?, source.prefix);
    let to = "lib/pkgconfig/streamline.pc";
    files.push(InstallFile::new(to, "for C programs", about.into_bytes()));
    Ok(files)
}

/// Returns the files of the system-wide daemon: units, user, directory and an example policy.
fn service_files(root: &Path, source: &InstallSource<'_>) -> io::Result<Vec<InstallFile>> {
    const DAEMON_PURPOSE: &str = "the daemon of the machine";
    let dist = root.join("dist");
    let mut files = Vec::new();
    let page = source.libraries.then_some("streamline-page.service");
    for name in ["streamline.service", "streamline.socket"].into_iter().chain(page) {
        let own = source.prefix.join("bin/streamline").display().to_string();
        let unit = read_text(&dist.join("systemd").join(name))?;
        let unit = unit.replace("/usr/bin/streamline", &own);
        let to = Path::new("lib/systemd/system").join(name);
        files.push(InstallFile::new(to, DAEMON_PURPOSE, unit.into_bytes()));
    }
    for (from, to) in [
        ("sysusers.d/streamline.conf", "lib/sysusers.d/streamline.conf"),
        ("tmpfiles.d/streamline.conf", "lib/tmpfiles.d/streamline.conf"),
        ("policy.toml", "share/streamline/policy.toml"),
    ] {
        files.push(InstallFile::new(to, DAEMON_PURPOSE, read_bytes(&dist.join(from))?));
    }
    Ok(files)
}

fn read_bytes(path: &Path) -> io::Result<Vec<u8>> {
    fs::read(path).map_err(|error| with_path_context(error, "read", path))
}

fn read_text(path: &Path) -> io::Result<String> {
    fs::read_to_string(path).map_err(|error| with_path_context(error, "read", path))
}

/// Replaces the line `prefix=…` in the text of a pkg-config file.
pub(super) fn replace_prefix(text: &str, prefix: &Path) -> String {
    let own = format!("prefix={}", prefix.display());
    let lines = text.lines().map(|line| if line.starts_with("prefix=") { &own } else { line });
    lines.map(|line| format!("{line}\n")).collect()
}

/// Returns the man pages that the program generates.
fn man_pages(program: &Path, scratch: &Path) -> io::Result<Vec<InstallFile>> {
    if scratch.exists() {
        fs::remove_dir_all(scratch).map_err(|error| with_path_context(error, "remove", scratch))?;
    }
    program_output(Command::new(program).args(["man", "--into"]).arg(scratch))?;
    let mut files = Vec::new();
    for section in ["man1", "man7"] {
        for path in files_in(&scratch.join(section))? {
            let page = read_bytes(&path)?;
            let name = path.file_name().unwrap_or_default();
            let to = Path::new("share/man").join(section).join(name);
            files.push(InstallFile::new(to, "the manual", page));
        }
    }
    Ok(files)
}

/// Runs a program and waits for it; returns its standard output. A failure of the program is an
/// error.
fn program_output(command: &mut Command) -> io::Result<Vec<u8>> {
    let program = PathBuf::from(command.get_program());
    let output = command.stdin(Stdio::null()).stderr(Stdio::inherit()).output();
    let output = output.map_err(|error| with_path_context(error, "run", &program))?;
    match output.status.success() {
        true => Ok(output.stdout),
        false => {
            Err(io::Error::other(format!("{} ended with {}", program.display(), output.status)))
        }
    }
}

/// Returns the files of a directory, sorted, without its subdirectories.
fn files_in(folder: &Path) -> io::Result<Vec<PathBuf>> {
    let entries = fs::read_dir(folder).map_err(|error| with_path_context(error, "read", folder))?;
    let paths: io::Result<Vec<PathBuf>> = entries.map(|entry| Ok(entry?.path())).collect();
    let mut paths: Vec<PathBuf> = paths?.into_iter().filter(|path| path.is_file()).collect();
    paths.sort();
    Ok(paths)
}
