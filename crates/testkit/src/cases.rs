//! External captures and test vectors, which are never copied into the repository. The environment
//! variable `STREAMLINE_CORPUS` names their directory; the default is `../shared/cases`, relative
//! to the repository.
//!
//! The name of a test that uses external cases begins with `corpus_`. `cargo xtask test` runs these
//! tests as a separate group, and only if the directory exists. For each of them, another test
//! covers the same behavior with [generated captures](crate::generated_captures()).

use std::fs;
use std::path::{Path, PathBuf};

use crate::generated::Captures;
use crate::need;

/// Returns the directory of the external cases. If it does not exist, reports a skip and returns
/// `None`.
pub fn case_directory() -> Option<PathBuf> {
    if let Some(named) = std::env::var_os("STREAMLINE_CORPUS") {
        return need::require_file(workspace_root().join(named));
    }
    let cases = workspace_root().parent()?.join("shared/cases");
    if cases.is_dir() { Some(cases) } else { need::report_skip("../shared/cases is not here") }
}

/// Returns the external captures in the same type as the [generated
/// captures](crate::generated_captures()), so that a test can run on both sets. If the directory
/// does not exist, reports a skip and returns `None`.
pub fn corpus_captures() -> Option<Captures> {
    Some(Captures { root: case_directory()?, paths: capture_paths()?, is_external: true })
}

/// Returns the paths of all external captures (`*.pcap`, `*.pcapng`, `*.cap`), sorted. If the
/// directory does not exist, reports a skip and returns `None`.
pub fn capture_paths() -> Option<Vec<PathBuf>> {
    let mut found = Vec::new();
    collect_capture_paths(&case_directory()?, &mut found);
    found.sort();
    Some(found)
}

/// Returns the root directory of the workspace.
pub fn workspace_root() -> PathBuf {
    let testkit = Path::new(env!("CARGO_MANIFEST_DIR"));
    testkit.ancestors().nth(2).unwrap_or(testkit).to_owned()
}

fn collect_capture_paths(folder: &Path, found: &mut Vec<PathBuf>) {
    let entries = fs::read_dir(folder).into_iter().flatten().flatten();
    for entry in entries {
        let path = entry.path();
        // Symbolic links are not followed, because a link to a parent directory would cause endless
        // recursion.
        if entry.file_type().is_ok_and(|kind| kind.is_dir()) {
            collect_capture_paths(&path, found);
        } else if is_capture_path(&path) {
            found.push(path);
        }
    }
}

fn is_capture_path(path: &Path) -> bool {
    let extension = path.extension().and_then(|extension| extension.to_str());
    matches!(extension, Some("pcap" | "pcapng" | "cap"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn capture_files_are_recognized_by_extension() {
        for name in ["a.pcap", "b.pcapng", "c.cap"] {
            assert!(is_capture_path(Path::new(name)), "{name}");
        }
        for name in ["a.txt", "pcap", "b.pcap.out", "c"] {
            assert!(!is_capture_path(Path::new(name)), "{name}");
        }
    }

    #[test]
    fn workspace_root_contains_the_manifest() {
        let manifest = fs::read_to_string(workspace_root().join("Cargo.toml")).unwrap();
        assert!(manifest.contains("[workspace]"));
    }

    #[test]
    fn external_case_directory_contains_captures() {
        let Some(captures) = capture_paths() else { return };
        assert!(captures.len() > 1_000, "{}", captures.len());
        assert!(captures.is_sorted());
    }
}
