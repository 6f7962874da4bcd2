//! The outside cases: captures and vectors made by others, in the folder that `STREAMLINE_CORPUS`
//! names, or in `../shared/cases` beside the repository. They are never copied into it.
//!
//! A test that takes them has a name that begins with `corpus_`: `cargo xtask test` runs those in a
//! group of their own, and only where the folder is. Beside it stands a test that shows the same by
//! captures that are [`made`](crate::made()) here.

use std::fs;
use std::path::{Path, PathBuf};

use crate::made::Captures;
use crate::need;

/// The folder of the outside cases.
pub fn cases() -> Option<PathBuf> {
    if let Some(named) = std::env::var_os("STREAMLINE_CORPUS") {
        return need::file(workspace().join(named));
    }
    let cases = workspace().parent()?.join("shared/cases");
    if cases.is_dir() { Some(cases) } else { need::skip("../shared/cases is not here") }
}

/// All captures of the outside cases, as a test that looks at [made](crate::made()) ones takes
/// them.
pub fn corpus() -> Option<Captures> {
    Some(Captures { root: cases()?, paths: captures()?, outside: true })
}

/// All captures of the outside cases, in a fixed order: every file that is one by its
/// extension.
pub fn captures() -> Option<Vec<PathBuf>> {
    let mut found = Vec::new();
    collect(&cases()?, &mut found);
    found.sort();
    Some(found)
}

/// The root of the workspace.
pub fn workspace() -> PathBuf {
    let testkit = Path::new(env!("CARGO_MANIFEST_DIR"));
    testkit.ancestors().nth(2).unwrap_or(testkit).to_owned()
}

fn collect(folder: &Path, found: &mut Vec<PathBuf>) {
    let entries = fs::read_dir(folder).into_iter().flatten().flatten();
    for entry in entries {
        let path = entry.path();
        // Links are not followed: one that leads upwards would give every capture again and again.
        if entry.file_type().is_ok_and(|kind| kind.is_dir()) {
            collect(&path, found);
        } else if is_capture(&path) {
            found.push(path);
        }
    }
}

fn is_capture(path: &Path) -> bool {
    let extension = path.extension().and_then(|extension| extension.to_str());
    matches!(extension, Some("pcap" | "pcapng" | "cap"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn knows_captures_by_name() {
        for name in ["a.pcap", "b.pcapng", "c.cap"] {
            assert!(is_capture(Path::new(name)), "{name}");
        }
        for name in ["a.txt", "pcap", "b.pcap.out", "c"] {
            assert!(!is_capture(Path::new(name)), "{name}");
        }
    }

    #[test]
    fn the_workspace_is_where_its_manifest_is() {
        let manifest = fs::read_to_string(workspace().join("Cargo.toml")).unwrap();
        assert!(manifest.contains("[workspace]"));
    }

    #[test]
    fn corpus_cases_hold_captures() {
        let Some(captures) = captures() else { return };
        assert!(captures.len() > 1_000, "{}", captures.len());
        assert!(captures.is_sorted());
    }
}
