//! Tests of the manual: it covers every command and filter, and man(1) accepts it.

#![allow(clippy::unwrap_used, reason = "a test may end by a panic")]

mod common;

use common::Folder;
use engine::registry::MachineRegistry;
use pipeline::Registry;
use std::fs;
use std::path::PathBuf;
use std::process::Command;

#[test]
fn manual_contains_every_command_and_filter() {
    let folder = Folder::new();
    assert_eq!(folder.run(&["man", "--into", "man"]).status, Some(0));
    let help = folder.run(&["--help"]).out;
    let (_, commands) = help.split_once("Commands:\n").unwrap();
    let (commands, _) = commands.split_once("\n\n").unwrap();
    let whole = folder.read("man/man1/streamline.1");
    // Long descriptions continue on further lines, which are indented more.
    let names = commands.lines().filter(|line| !line.starts_with("   "));
    for name in names.map(|line| line.split_whitespace().next().unwrap()) {
        let page = folder.read(&format!("man/man1/streamline-{name}.1"));
        assert!(page.contains(&format!("streamline\\-{name} \\- ")), "{name}");
        assert!(whole.contains(&format!("streamline\\-{name}(1)")), "{name}");
        assert_eq!(folder.run(&["man", name]).out, expected_page(&folder, name, page), "{name}");
    }
    let run = folder.read("man/man1/streamline-run.1");
    for option in pipeline::check::REQUEST_OPTIONS {
        assert!(run.contains(&option.name.replace('-', "\\-")), "{}", option.name);
    }
    let filters = folder.read("man/man7/streamline-filters.7");
    for name in MachineRegistry::Local.names() {
        assert!(filters.contains(&format!(".SS \"{name} - ")), "{name}");
    }
    assert_eq!(filters.matches("\\fBstate_mode\\fR").count(), 1, "what all have stands there once");
}

/// Returns the expected text of the manual page `name`: the page about all filters if `name` is
/// `filters`, otherwise `page`.
fn expected_page(folder: &Folder, name: &str, page: String) -> String {
    if name == "filters" { folder.read("man/man7/streamline-filters.7") } else { page }
}

#[test]
fn missing_manual_page_is_reported() {
    let folder = Folder::new();
    let ran = folder.run(&["man", "explian"]);
    assert_eq!(ran.status, Some(3));
    assert!(ran.err.contains("no page `explian`; did you mean `explain`?"), "{}", ran.err);
    fs::write(folder.path().join("taken"), "").unwrap();
    let ran = folder.run(&["man", "--into", "taken"]);
    assert_eq!(ran.status, Some(1));
    assert!(ran.err.contains("cannot write taken: "), "{}", ran.err);
}

#[test]
fn groff_accepts_every_manual_page() {
    let Some(groff) = testkit::need::require_command("groff") else { return };
    let folder = Folder::new();
    assert_eq!(folder.run(&["man", "--into", "man"]).status, Some(0));
    let pages =
        ["man/man1", "man/man7"].map(|part| fs::read_dir(folder.path().join(part)).unwrap());
    let pages: Vec<PathBuf> =
        pages.into_iter().flatten().map(|page| page.unwrap().path()).collect();
    assert!(pages.len() > 15, "{}", pages.len());
    for page in pages {
        let rendered = Command::new(&groff)
            .args(["-K", "utf8", "-t", "-man", "-T", "utf8", "-w", "w", "-P", "-cbou"])
            .arg(&page)
            .output()
            .unwrap();
        let warnings = String::from_utf8_lossy(&rendered.stderr);
        assert!(rendered.status.success() && warnings.is_empty(), "{}: {warnings}", page.display());
        let text = String::from_utf8_lossy(&rendered.stdout);
        assert!(text.contains("SEE ALSO"), "{}", page.display());
    }
}
