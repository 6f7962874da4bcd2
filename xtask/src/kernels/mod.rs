//! `kernels`: boots old kernels in emulation, and reports which of our programs they accept.
//!
//! Input: kernel packages of Debian stable and its backports, `qemu-system-x86_64`, and two
//! programs that the verb builds: the test program of `tests/kernel`, and `streamline`. Output: a
//! table of the features that were loaded, ran, or fell back to another implementation (CONTRACT
//! 29). A kernel boots with all programs in its initial ramdisk, runs them and powers off; the
//! kernel and network of this machine are not affected. If a program of this machine is missing,
//! the verb names it and runs nothing; a kernel without a package is skipped.
//!
//! Emulation is in software (no KVM), one kernel at a time, and takes about two minutes for each.

mod archive;
pub(crate) mod guest;

use crate::cargo;
use crate::outcome::Outcome;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

/// Kernel series to test, as prefixes of package names.
const KERNEL_SERIES: &[&str] = &["6.1", "6.12"];

/// Programs of this machine that `cargo xtask kernels` requires.
const REQUIRED_PROGRAMS: &[&str] =
    &["qemu-system-x86_64", "apt-get", "apt-cache", "dpkg-deb", "xz", "ldd", "ip"];

/// The verb `kernels`: boots a kernel of each series, and prints a table of the results.
pub(crate) fn kernels(root: &Path, arguments: &[String]) -> Outcome {
    let unknown =
        arguments.iter().find(|a| *a != "--strict" && !KERNEL_SERIES.contains(&a.as_str()));
    if let Some(unknown) = unknown {
        return Outcome::Usage(format!(
            "`kernels` knows {KERNEL_SERIES:?} and --strict, not `{unknown}`"
        ));
    }
    let strict = arguments.iter().any(|argument| argument == "--strict");
    let wanted = |series: &&&str| {
        let named = arguments.iter().any(|a| KERNEL_SERIES.contains(&a.as_str()));
        !named || arguments.iter().any(|a| a == **series)
    };
    if let Some(missing) = REQUIRED_PROGRAMS.iter().find(|program| !is_installed(program)) {
        println!("skipped: kernels: needs the program {missing}");
        return (!strict).into();
    }
    let home = cargo::target_directory(root).join("kernels");
    let Some(programs) = build_programs(root) else { return Outcome::Failed };
    let mut table = Vec::new();
    let mut well = true;
    for series in KERNEL_SERIES.iter().filter(wanted) {
        match guest::Kernel::find_newest_kernel(&home, series) {
            Ok(kernel) => match kernel.run(&home, &programs) {
                Ok(run) => {
                    well &= run.reached_end;
                    table.push((kernel.version, run.lines));
                }
                Err(why) => {
                    well = false;
                    table.push((kernel.version, vec![format!("FAILED: {why}")]));
                }
            },
            Err(why) => {
                println!("skipped: kernels: {series}: {why}");
                well &= !strict;
            }
        }
    }
    for (version, lines) in table {
        println!("\nLinux {version}");
        lines.iter().for_each(|line| println!("  {line}"));
    }
    well.into()
}

/// Paths of the programs that run in the virtual machine: the kernel tests, and `streamline`.
pub(super) struct GuestPrograms {
    pub(super) exam: PathBuf,
    pub(super) streamline: PathBuf,
}

fn build_programs(root: &Path) -> Option<GuestPrograms> {
    let mut exam = cargo::cargo_command(root);
    exam.args(["test", "--release", "--no-run", "--package", "streamline-tests"]);
    exam.args(["--test", "kernel", "--message-format=json"]);
    println!("$ cargo test --release --no-run --package streamline-tests --test kernel");
    let built =
        exam.stderr(Stdio::inherit()).output().ok().filter(|built| built.status.success())?;
    let exam =
        String::from_utf8_lossy(&built.stdout).lines().filter_map(executable_path).next_back();
    let mut streamline = cargo::cargo_command(root);
    streamline.args(["build", "--release", "--package", "streamline-cli"]);
    if !cargo::run_command(&mut streamline) {
        return None;
    }
    let streamline = cargo::target_directory(root).join("release/streamline");
    Some(GuestPrograms { exam: exam?, streamline })
}

/// Returns the path of the executable that a line of cargo's JSON messages names, if any.
fn executable_path(line: &str) -> Option<PathBuf> {
    let (_, path) = line.split_once("\"executable\":\"")?;
    Some(PathBuf::from(path.split_once('"')?.0))
}

fn is_installed(program: &str) -> bool {
    let path = std::env::var_os("PATH").unwrap_or_default();
    let usual = ["/usr/sbin", "/sbin"].map(PathBuf::from);
    std::env::split_paths(&path).chain(usual).any(|folder| folder.join(program).is_file())
}

/// Runs a program and waits for it; returns its standard output. If the program fails, its error
/// output is the error.
pub(super) fn program_output(command: &mut Command) -> Result<String, String> {
    let done = command.stdin(Stdio::null()).output();
    let done = done.map_err(|why| format!("{command:?}: {why}"))?;
    if !done.status.success() {
        let message = String::from_utf8_lossy(&done.stderr);
        return Err(format!("{command:?} ended with {}: {}", done.status, message.trim_end()));
    }
    Ok(String::from_utf8_lossy(&done.stdout).into_owned())
}

/// Downloads and unpacks the newest package whose name matches the pattern (as for `apt-cache
/// search`). Returns the directory of the unpacked package. Later calls reuse this directory.
pub(super) fn unpack_package(home: &Path, folder: &str, pattern: &str) -> Result<PathBuf, String> {
    let unpacked = home.join(folder);
    if unpacked.is_dir() {
        return Ok(unpacked);
    }
    let rows = program_output(Command::new("apt-cache").args(["search", "--names-only", pattern]))?;
    let names = rows.lines().filter_map(|line| line.split(' ').next());
    let newest = names.max_by_key(|name| version_numbers(name));
    let newest = newest.ok_or_else(|| format!("no package is called {pattern}"))?;
    fs::create_dir_all(home).map_err(|why| format!("{}: {why}", home.display()))?;
    let before = debian_package_files(home);
    program_output(Command::new("apt-get").args(["download", newest]).current_dir(home))?;
    let new = debian_package_files(home).into_iter().find(|deb| !before.contains(deb));
    let deb = new.ok_or_else(|| format!("{newest} was not downloaded"))?;
    // The directory is renamed to its final name only when it is complete.
    let half = home.join(format!("{folder}.half"));
    program_output(Command::new("dpkg-deb").arg("-x").args([&deb, &half]))?;
    fs::remove_file(&deb).map_err(|why| why.to_string())?;
    fs::rename(&half, &unpacked).map_err(|why| why.to_string())?;
    Ok(unpacked)
}

fn debian_package_files(home: &Path) -> Vec<PathBuf> {
    let entries = fs::read_dir(home).into_iter().flatten().flatten().map(|entry| entry.path());
    entries.filter(|path| path.extension().is_some_and(|end| end == "deb")).collect()
}

/// Returns the numbers in a name, as a sort key: 6.1.0-9 sorts before 6.1.0-10.
fn version_numbers(name: &str) -> Vec<u64> {
    let digits = name.split(|letter: char| !letter.is_ascii_digit());
    digits.filter_map(|number| number.parse().ok()).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn newest_package_has_the_largest_version() {
        assert!(
            version_numbers("linux-image-6.1.0-47-cloud")
                > version_numbers("linux-image-6.1.0-9-cloud")
        );
        assert!(
            version_numbers("linux-image-6.12.95+deb12")
                < version_numbers("linux-image-6.12.117+deb12")
        );
    }

    #[test]
    fn cargo_output_names_the_test_program() {
        let line = r#"{"reason":"compiler-artifact","executable":"/t/deps/kernel-1","fresh":true}"#;
        assert_eq!(executable_path(line), Some(PathBuf::from("/t/deps/kernel-1")));
        assert_eq!(executable_path(r#"{"executable":null}"#), None);
    }
}
