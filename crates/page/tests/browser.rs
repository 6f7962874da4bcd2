//! Tests of the page in Chromium, with Playwright: every user flow at the widths of a phone and of
//! a desktop screen, in light and dark colors, with the accessibility checks of axe-core.
//! Screenshots are written to `page` in the target directory. The computation of rates is tested in
//! Node alone.

#![expect(clippy::unwrap_used, reason = "a test ends where something is not as it must be")]

mod common;

use common::Machine;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use testkit::need;

/// The node modules that the test uses, with their versions.
const MODULES: [&str; 2] = ["playwright-core@1.65.1", "axe-core@4.14.1"];

/// Returns a directory with the node modules, which are installed on the first call. Reports a skip
/// and returns `None` if they are unavailable.
fn node_modules(target: &Path) -> Option<PathBuf> {
    let folder = target.join("page-modules");
    let known = folder.join("node_modules/playwright-core/package.json");
    if !known.is_file() {
        let npm = need::require_command("npm")?;
        std::fs::create_dir_all(&folder).unwrap();
        let mut install = Command::new(npm);
        install.args(["install", "--no-save", "--no-audit", "--no-fund", "--prefix"]).arg(&folder);
        let installed = install.args(MODULES).stdin(Stdio::null()).output().unwrap();
        if !installed.status.success() {
            return need::report_skip("needs playwright-core and axe-core from the npm registry");
        }
    }
    Some(folder)
}

#[test]
fn rate_of_an_edge_is_what_enters_its_first_segment() {
    let Some(node) = need::require_command("node") else { return };
    let own = Path::new(env!("CARGO_MANIFEST_DIR"));
    let mut command = Command::new(node);
    command.arg(own.join("tests/browser/figures.mjs")).arg(own.join("assets/figures.js"));
    let output = command.stdin(Stdio::null()).output().unwrap();
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
}

#[test]
fn page_works_in_a_browser_at_two_widths_in_light_and_dark() {
    let (Some(chromium), Some(node)) =
        (need::require_command("chromium"), need::require_command("node"))
    else {
        return;
    };
    let target = std::env::current_exe().unwrap().ancestors().nth(3).unwrap().to_owned();
    let Some(modules) = node_modules(&target) else { return };
    let shots = target.join("page");
    std::fs::create_dir_all(&shots).unwrap();
    let machine = Machine::new();
    machine.start(
        "shown",
        "generate rate=2000 | dport |9 (count + match \"<img src=x onerror=1>\" | count)",
    );
    let page = machine.page("127.0.0.1:0");
    let script = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/browser/flows.mjs");
    let mut command = Command::new(node);
    command.arg(script).args([&modules, &chromium]).arg(&page.url).arg(&shots);
    let output = command.stdin(Stdio::null()).output().unwrap();
    let text = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "{text}");
}
