//! The files of an installation, with their paths below the prefix.

use super::InstallPaths;
use super::manifest::in_context;
use crate::cargo;
use std::fs;
use std::io;
use std::os::unix::fs::PermissionsExt as _;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

/// A file to install.
#[derive(Debug)]
pub(super) struct InstallFile {
    /// Path below the prefix.
    pub(super) to: PathBuf,
    /// Description of the file for the summary.
    pub(super) what: &'static str,
    bytes: Vec<u8>,
    mode: u32,
}

impl InstallFile {
    pub(super) fn new(to: impl Into<PathBuf>, what: &'static str, bytes: Vec<u8>) -> Self {
        let to = to.into();
        let mode = if to.starts_with("bin") || to.extension().is_some_and(|end| end == "so") {
            0o755
        } else {
            0o644
        };
        Self { to, what, bytes, mode }
    }

    pub(super) fn write(&self, path: &Path) -> io::Result<()> {
        write_atomically(path, &self.bytes, self.mode)
    }
}

/// Writes a file under a temporary name and renames it, so that a process that has the old file
/// open keeps it.
pub(super) fn write_atomically(path: &Path, bytes: &[u8], mode: u32) -> io::Result<()> {
    let mut name = path.file_name().unwrap_or_default().to_owned();
    name.push(format!(".new-{}", std::process::id()));
    let beside = path.with_file_name(name);
    let done = fs::write(&beside, bytes)
        .and_then(|()| fs::set_permissions(&beside, fs::Permissions::from_mode(mode)))
        .and_then(|()| fs::rename(&beside, path));
    done.map_err(|error| {
        // The file may not have been created.
        let _ = fs::remove_file(&beside);
        in_context(error, "write", path)
    })
}

/// Returns all files to install, which it reads from the build output.
pub(super) fn all(root: &Path, paths: &InstallPaths, bench: bool) -> io::Result<Vec<InstallFile>> {
    let built = cargo::target(root).join("release");
    let read = |path: PathBuf| fs::read(&path).map_err(|error| in_context(error, "read", &path));
    let text =
        |path: PathBuf| fs::read_to_string(&path).map_err(|error| in_context(error, "read", &path));
    let program = built.join("streamline");
    let bench = bench.then_some(("streamline-bench", "`streamline bench`"));
    let page = ("streamline-page", "`streamline page`");
    let mut files = Vec::new();
    for (name, what) in [("streamline", "the program"), page].into_iter().chain(bench) {
        files.push(InstallFile::new(Path::new("bin").join(name), what, read(built.join(name))?));
    }
    for (name, purpose) in [
        ("libstreamline_sockets.so", "for `streamline sh`"),
        ("libstreamline_pcap.so", "for `streamline exec`"),
    ] {
        let library = read(built.join(name))?;
        files.push(InstallFile::new(Path::new("lib/streamline").join(name), purpose, library));
    }
    for suffix in ["so", "a"] {
        let library = read(built.join(format!("libstreamline_c.{suffix}")))?;
        let to = format!("lib/libstreamline.{suffix}");
        files.push(InstallFile::new(to, "for C programs", library));
    }
    let capi = root.join("crates/capi");
    let python = read(capi.join("python/streamline.py"))?;
    files.push(InstallFile::new("share/streamline/python/streamline.py", "for Python", python));
    let header = read(capi.join("include/streamline.h"))?;
    files.push(InstallFile::new("include/streamline.h", "for C programs", header));
    let about = with_prefix(&text(capi.join("streamline.pc"))?, &paths.prefix);
    files.push(InstallFile::new(
        "lib/pkgconfig/streamline.pc",
        "for C programs",
        about.into_bytes(),
    ));
    files.extend(man_pages(&program, &cargo::target(root).join("install"))?);
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
        files.push(InstallFile::new(to, "examples", read(path)?));
    }
    for name in ["LICENSE-APACHE", "LICENSE-MIT"] {
        let to = Path::new("share/streamline").join(name);
        files.push(InstallFile::new(to, "licences", read(root.join(name))?));
    }
    if paths.is_system_wide() {
        let units = root.join("dist/systemd");
        for (name, unit) in [
            ("streamline.service", text(units.join("streamline.service"))?),
            ("streamline.socket", text(units.join("streamline.socket"))?),
        ] {
            let own = paths.prefix.join("bin/streamline").display().to_string();
            let unit = unit.replace("/usr/bin/streamline", &own);
            let to = Path::new("lib/systemd/system").join(name);
            files.push(InstallFile::new(to, "the daemon of the machine", unit.into_bytes()));
        }
        let user = read(root.join("dist/sysusers.d/streamline.conf"))?;
        let to = "lib/sysusers.d/streamline.conf";
        files.push(InstallFile::new(to, "the daemon of the machine", user));
    }
    Ok(files)
}

/// Replaces the prefix in the text of a pkg-config file.
pub(super) fn with_prefix(text: &str, prefix: &Path) -> String {
    let own = format!("prefix={}", prefix.display());
    let lines = text.lines().map(|line| if line.starts_with("prefix=") { &own } else { line });
    lines.map(|line| format!("{line}\n")).collect()
}

/// Returns the man pages that the program generates.
fn man_pages(program: &Path, scratch: &Path) -> io::Result<Vec<InstallFile>> {
    if scratch.exists() {
        fs::remove_dir_all(scratch).map_err(|error| in_context(error, "remove", scratch))?;
    }
    program_output(Command::new(program).args(["man", "--into"]).arg(scratch))?;
    let mut files = Vec::new();
    for section in ["man1", "man7"] {
        for path in files_in(&scratch.join(section))? {
            let page = fs::read(&path).map_err(|error| in_context(error, "read", &path))?;
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
    let output = output.map_err(|error| in_context(error, "run", &program))?;
    match output.status.success() {
        true => Ok(output.stdout),
        false => {
            Err(io::Error::other(format!("{} ended with {}", program.display(), output.status)))
        }
    }
}

/// Returns the files of a directory, sorted, without its subdirectories.
fn files_in(folder: &Path) -> io::Result<Vec<PathBuf>> {
    let entries = fs::read_dir(folder).map_err(|error| in_context(error, "read", folder))?;
    let paths: io::Result<Vec<PathBuf>> = entries.map(|entry| Ok(entry?.path())).collect();
    let mut paths: Vec<PathBuf> = paths?.into_iter().filter(|path| path.is_file()).collect();
    paths.sort();
    Ok(paths)
}
