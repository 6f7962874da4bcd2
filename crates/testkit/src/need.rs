//! Requirements of tests (privileges, programs, devices). A test is skipped if the machine does not
//! meet its requirements.
//!
//! ```
//! use streamline_testkit::need;
//! let Some(tcpdump) = need::require_command("tcpdump") else { return };
//! # let _ = tcpdump;
//! ```
//!
//! Each function that returns `None` has already reported the skip: on stderr, in `skips.txt` of
//! the target directory, and by a panic under `STREAMLINE_STRICT=1`.

use std::fs::{self, OpenOptions};
use std::io::Write;
use std::path::{Path, PathBuf};

/// Capability numbers (capabilities(7)).
mod capability {
    pub(super) const NET_ADMIN: u32 = 12;
    pub(super) const NET_RAW: u32 = 13;
    pub(super) const SYS_ADMIN: u32 = 21;
    pub(super) const BPF: u32 = 39;
}

/// Requires that the effective user is root.
pub fn require_root() -> Option<()> {
    let uids = status_field("Uid:");
    let effective = uids.split_whitespace().nth(1).unwrap_or("unknown");
    if effective == "0" { Some(()) } else { report_skip("needs root") }
}

/// Requires `CAP_NET_ADMIN`.
pub fn require_net_admin() -> Option<()> {
    if has_capability(capability::NET_ADMIN) {
        Some(())
    } else {
        report_skip("needs CAP_NET_ADMIN")
    }
}

/// Requires `CAP_NET_RAW`.
pub fn require_net_raw() -> Option<()> {
    if has_capability(capability::NET_RAW) { Some(()) } else { report_skip("needs CAP_NET_RAW") }
}

/// Requires the capabilities for loading a network program: `CAP_BPF` and `CAP_NET_ADMIN`, or
/// `CAP_SYS_ADMIN`.
pub fn require_bpf() -> Option<()> {
    let two = has_capability(capability::BPF) && has_capability(capability::NET_ADMIN);
    if two || has_capability(capability::SYS_ADMIN) {
        Some(())
    } else {
        report_skip("needs CAP_BPF and CAP_NET_ADMIN")
    }
}

/// Requires a program in `PATH`, `/usr/sbin` or `/sbin`, and returns the path of the program.
pub fn require_command(name: &str) -> Option<PathBuf> {
    let path = std::env::var_os("PATH").unwrap_or_default();
    let usual = ["/usr/sbin", "/sbin"].map(PathBuf::from);
    let found =
        std::env::split_paths(&path).chain(usual).map(|d| d.join(name)).find(|p| p.is_file());
    found.or_else(|| report_skip(&format!("needs the program {name}")))
}

/// Requires a file, directory or device, and returns its path.
pub fn require_file(path: impl AsRef<Path>) -> Option<PathBuf> {
    let path = path.as_ref();
    if path.exists() {
        Some(path.to_owned())
    } else {
        report_skip(&format!("needs {}", path.display()))
    }
}

/// Reports that the running test is skipped, and the reason. Returns `None`.
///
/// # Panics
///
/// If `STREAMLINE_STRICT=1` is set.
pub fn report_skip<T>(reason: &str) -> Option<T> {
    let line = format_skip_line(&test_name(), reason);
    let written = append_line(&target_directory().join("skips.txt"), &line);
    // The harness would hide the output of `print!` if the test passes.
    let mut stderr = std::io::stderr().lock();
    let _ = stderr.write_all(line.as_bytes());
    if let Err(error) = written {
        let _ = writeln!(stderr, "skips.txt cannot be written: {error}");
    }
    let strict = std::env::var_os("STREAMLINE_STRICT").is_some_and(|value| value == "1");
    assert!(!strict, "a skip is a failure under STREAMLINE_STRICT=1: {}", line.trim_end());
    None
}

/// Returns the target directory of this build.
pub fn target_directory() -> PathBuf {
    match std::env::var_os("CARGO_TARGET_DIR") {
        Some(directory) => crate::cases::workspace_root().join(directory),
        None => crate::cases::workspace_root().join("target"),
    }
}

fn format_skip_line(test: &str, reason: &str) -> String {
    format!("skipped: {test}: {reason}\n")
}

/// Appends a line to a file with a single write, so that lines of concurrent tests are not
/// interleaved.
fn append_line(path: &Path, line: &str) -> std::io::Result<()> {
    if let Some(directory) = path.parent() {
        fs::create_dir_all(directory)?;
    }
    OpenOptions::new().create(true).append(true).open(path)?.write_all(line.as_bytes())
}

/// Returns the name of the running test, which is the name of its thread. If tests run in the main
/// thread, returns the name of the program instead.
fn test_name() -> String {
    match std::thread::current().name() {
        Some(name) if name != "main" => name.to_owned(),
        _ => {
            let program = std::env::current_exe().unwrap_or_default();
            program.file_stem().unwrap_or_default().to_string_lossy().into_owned()
        }
    }
}

fn has_capability(capability: u32) -> bool {
    let set = u64::from_str_radix(status_field("CapEff:").trim(), 16).unwrap_or(0);
    (set >> capability) & 1 == 1
}

/// Returns the value of a field of `/proc/self/status`, or an empty text if the field is missing.
fn status_field(name: &str) -> String {
    let status = fs::read_to_string("/proc/self/status").unwrap_or_default();
    status.lines().find_map(|line| line.strip_prefix(name)).unwrap_or_default().to_owned()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn skip_line_names_test_and_reason() {
        // If tests run one after another, they run in the main thread, whose name is not the name
        // of a test.
        let named = std::thread::spawn(test_name);
        assert!(!named.join().unwrap().is_empty());
        let thread = std::thread::Builder::new().name("a::b".to_owned()).spawn(test_name).unwrap();
        assert_eq!(thread.join().unwrap(), "a::b");
        assert_eq!(format_skip_line("a::b", "needs root"), "skipped: a::b: needs root\n");
    }

    #[test]
    fn skip_lines_are_appended_to_the_file() {
        let path = std::env::temp_dir().join(format!("skips-{}", std::process::id()));
        append_line(&path, "one\n").unwrap();
        append_line(&path, "two\n").unwrap();
        assert_eq!(fs::read_to_string(&path).unwrap(), "one\ntwo\n");
        fs::remove_file(path).unwrap();
    }

    /// The test that [`skip_is_reported_and_fails_in_strict_mode`] runs in a child process.
    #[test]
    #[ignore = "skips on purpose"]
    fn skip_for_a_missing_program() {
        assert_eq!(require_command("no-such-program"), None);
    }

    #[test]
    fn skip_is_reported_and_fails_in_strict_mode() {
        let target = std::env::temp_dir().join(format!("target-{}", std::process::id()));
        let name = "need::tests::skip_for_a_missing_program";
        let expected = format!("skipped: {name}: needs the program no-such-program\n");
        for (strict, succeeds) in [("0", true), ("1", false)] {
            let mut test = std::process::Command::new(std::env::current_exe().unwrap());
            test.args(["--exact", "--ignored", "--test-threads=2", name]);
            test.env("CARGO_TARGET_DIR", &target).env("STREAMLINE_STRICT", strict);
            let output = test.output().unwrap();
            assert_eq!(output.status.success(), succeeds, "{output:?}");
            assert!(String::from_utf8_lossy(&output.stderr).contains(&expected), "{output:?}");
        }
        let skips = fs::read_to_string(target.join("skips.txt")).unwrap();
        assert_eq!(skips, expected.repeat(2));
        fs::remove_dir_all(target).unwrap();
    }

    #[test]
    fn met_requirement_is_not_reported_as_skip() {
        assert!(require_command("sh").is_some_and(|path| path.is_absolute()));
        assert!(require_file("/proc/self").is_some());
        assert_eq!(
            require_root().is_some(),
            status_field("Uid:").split_whitespace().nth(1) == Some("0")
        );
    }
}
