//! The commit of a release, and its reproducible build.
//!
//! The same commit and toolchain produce the same bytes on another path, for another user, with
//! another umask and at another time: paths are replaced in the output, all times are the time of
//! the commit, and environment variables that change the code are not passed on.

use crate::cargo;
use crate::install::PRODUCT_PACKAGES;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

/// Compilation target of the static program.
pub(super) const STATIC_TARGET: &str = "x86_64-unknown-linux-musl";

/// Environment variables that change the code that rustc generates.
const CODEGEN_VARIABLES: [&str; 5] = [
    "RUSTFLAGS",
    "CARGO_ENCODED_RUSTFLAGS",
    "CARGO_BUILD_RUSTFLAGS",
    "CARGO_BUILD_TARGET",
    "RUSTC",
];

/// Crates that process no blocks: command line, terminal, configuration, daemon. They are optimized
/// for size in the packages.
const SIZE_OPTIMIZED_CRATES: [&str; 21] = [
    "anstream",
    "clap",
    "clap_builder",
    "clap_complete",
    "clap_lex",
    "clap_mangen",
    "crossterm",
    "kasuari",
    "prometheus-client",
    "ratatui",
    "ratatui-core",
    "ratatui-crossterm",
    "ratatui-widgets",
    "roff",
    "streamline",
    "streamline-cli",
    "streamline-daemon",
    "streamline-pipeline",
    "toml",
    "toml_parser",
    "winnow",
];

/// The version, the commit and the optimization of a release.
#[derive(Clone, Debug)]
pub(super) struct Release {
    pub(super) version: String,
    /// Abbreviated id of the commit, with `-dirty` if the working tree has changes, and
    /// `-unoptimized` for a quick build.
    pub(super) commit: String,
    /// Time of the commit in seconds since 1970.
    pub(super) epoch: String,
    /// True for a build without optimization, which takes a fraction of the time.
    pub(super) quick: bool,
}

impl Release {
    /// Reads the release from git. If there is no repository, reads `STREAMLINE_COMMIT` and
    /// `SOURCE_DATE_EPOCH`. A working tree with changes is an error unless `dirty` is true.
    pub(super) fn read(root: &Path, (dirty, quick): (bool, bool)) -> Result<Self, String> {
        let manifest = std::fs::read_to_string(root.join("Cargo.toml"));
        let manifest = manifest.map_err(|why| format!("Cargo.toml: {why}"))?;
        let version = manifest.lines().find_map(|line| line.strip_prefix("version = \""));
        let version = version.and_then(|rest| rest.strip_suffix('"'));
        let version = version.ok_or("Cargo.toml has no version")?.to_owned();
        if !root.join(".git").exists() {
            let named = |name: &str| {
                std::env::var(name).map_err(|_| format!("without git, {name} must be set"))
            };
            let (commit, epoch) = (named("STREAMLINE_COMMIT")?, named("SOURCE_DATE_EPOCH")?);
            return Ok(Self { version, commit, epoch, quick });
        }
        let git = |words: &[&str]| {
            let output = program_output(Command::new("git").args(words).current_dir(root))?;
            Ok::<_, String>(output.trim().to_owned())
        };
        let changes = git(&["status", "--porcelain", "--untracked-files=normal"])?;
        if !changes.is_empty() && !dirty {
            let first: Vec<&str> = changes.lines().take(5).collect();
            return Err(format!(
                "the working tree has changes, so that no commit describes the packages (--dirty \
                 permits it):\n{}",
                first.join("\n")
            ));
        }
        let commit = git(&["rev-parse", "--short=12", "HEAD"])?;
        let dirty = if changes.is_empty() { "" } else { "-dirty" };
        let slow = if quick { "-unoptimized" } else { "" };
        let commit = format!("{commit}{dirty}{slow}");
        let epoch = git(&["log", "-1", "--format=%ct"])?;
        Ok(Self { version, commit, epoch, quick })
    }

    /// Formats the time of the commit with date(1).
    pub(super) fn commit_date(&self, format: &str) -> Result<String, String> {
        let time = format!("--date=@{}", self.epoch);
        let mut date = Command::new("date");
        date.env("LC_ALL", "C").args(["--utc", &time, format]);
        Ok(program_output(&mut date)?.trim().to_owned())
    }
}

/// Builds all packages of the product or, for the compilation target `target`, only the program
/// `streamline`. Returns the directory with the built files.
pub(super) fn build_release(
    root: &Path,
    release: &Release,
    target: Option<&str>,
) -> Result<PathBuf, String> {
    let name = if release.quick { "dist-build-quick" } else { "dist-build" };
    let target_dir = cargo::target_directory(root).join(name);
    // The umask is inherited, and only a shell can set it without unsafe code.
    let mut shell = Command::new("sh");
    shell.args(["-c", "umask 022; exec \"$@\"", "sh"]);
    shell.arg(std::env::var_os("CARGO").unwrap_or_else(|| "cargo".into()));
    shell.args(["build", "--release", "--locked", "--target-dir"]).arg(&target_dir);
    for setting in cargo_settings(root, &target_dir)? {
        shell.args(["--config", &setting]);
    }
    let optimization: &[&str] = match release.quick {
        true => &["profile.release.opt-level=0", "profile.release.lto=\"off\""],
        false => &["profile.release.lto=\"fat\"", "profile.release.codegen-units=1"],
    };
    for setting in optimization {
        shell.args(["--config", setting]);
    }
    for name in SIZE_OPTIMIZED_CRATES.into_iter().filter(|_| !release.quick) {
        shell.args(["--config", &format!("profile.release.package.{name}.opt-level=\"s\"")]);
    }
    let packages = if target.is_some() { &PRODUCT_PACKAGES[..1] } else { &PRODUCT_PACKAGES };
    shell.args(packages.iter().flat_map(|package| ["--package", package]));
    shell.args(target.into_iter().flat_map(|target| ["--target", target]));
    let unwanted = std::env::vars_os().map(|(name, _)| name);
    let unwanted = unwanted.filter(|name| {
        let name = name.to_string_lossy();
        name.starts_with("CARGO_PROFILE_") || CODEGEN_VARIABLES.contains(&name.as_ref())
    });
    for name in unwanted {
        shell.env_remove(name);
    }
    shell.env("SOURCE_DATE_EPOCH", &release.epoch).env("STREAMLINE_COMMIT", &release.commit);
    shell.env("CARGO_INCREMENTAL", "0").env("LC_ALL", "C").env("TZ", "UTC");
    shell.current_dir(root).stdin(Stdio::null());
    if !cargo::run_command(&mut shell) {
        return Err("the build failed".to_owned());
    }
    Ok(target.map_or_else(|| target_dir.clone(), |name| target_dir.join(name)).join("release"))
}

/// Returns cargo's settings for the build: no debug information, and no path of this machine in the
/// output.
fn cargo_settings(root: &Path, target_dir: &Path) -> Result<Vec<String>, String> {
    let rustc = |words: &[&str]| program_output(Command::new("rustc").args(words));
    let sysroot = rustc(&["--print", "sysroot"])?;
    let about = rustc(&["--version", "--verbose"])?;
    let hash = about.lines().find_map(|line| line.strip_prefix("commit-hash: "));
    let home = std::env::var_os("HOME").map(|home| PathBuf::from(home).join(".cargo"));
    let cargo_home = std::env::var_os("CARGO_HOME").map(PathBuf::from).or(home);
    let cargo_home = cargo_home.ok_or("neither CARGO_HOME nor HOME is set")?;
    let library = Path::new(sysroot.trim()).join("lib/rustlib/src/rust");
    // If several prefixes match, rustc applies the last one.
    let remapped = [
        (root.to_owned(), "/usr/src/streamline".to_owned()),
        (target_dir.to_owned(), "/usr/src/streamline/target".to_owned()),
        (cargo_home, "/usr/src/cargo".to_owned()),
        // The precompiled standard library contains paths with this prefix.
        (library, format!("/rustc/{}", hash.unwrap_or("unknown"))),
    ];
    let flags = remapped.map(|(from, to)| {
        let from = from.display().to_string().replace('\\', "\\\\").replace('"', "\\\"");
        format!("\"--remap-path-prefix={from}={to}\"")
    });
    Ok(vec![
        "profile.release.debug=false".to_owned(),
        // In the profile, `strip` would not apply to packages with profile settings of their own.
        format!("build.rustflags=[\"-Cstrip=symbols\",{}]", flags.join(",")),
    ])
}

/// Returns true if the standard library for the static target is installed.
pub(super) fn has_static_target() -> bool {
    let mut rustc = Command::new("rustc");
    rustc.args(["--print", "target-libdir", "--target", STATIC_TARGET]);
    program_output(&mut rustc).is_ok_and(|path| Path::new(path.trim()).is_dir())
}

/// Runs a program and waits for it; returns its standard output. If the program fails, its error
/// output is the error.
pub(super) fn program_output(command: &mut Command) -> Result<String, String> {
    let done = command.stdin(Stdio::null()).output();
    let done = done.map_err(|why| format!("{}: {why}", command.get_program().display()))?;
    let message = String::from_utf8_lossy(&done.stderr);
    match done.status.success() {
        true => Ok(String::from_utf8_lossy(&done.stdout).into_owned()),
        false => Err(format!("{command:?} ended with {}: {}", done.status, message.trim_end())),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn crates_optimized_for_size_are_in_the_lock_file() {
        let lock = Path::new(env!("CARGO_MANIFEST_DIR")).join("../Cargo.lock");
        let lock = std::fs::read_to_string(lock).unwrap();
        for name in SIZE_OPTIMIZED_CRATES {
            assert!(lock.contains(&format!("\nname = \"{name}\"\n")), "{name}");
        }
    }
}
