//! Tests of the page in Chromium, with Playwright: every user flow at the widths of a phone and of
//! a desktop screen, in light and dark colors, with the accessibility checks of axe-core.
//! Screenshots are written to `page` in the target directory. A separate test runs the computation
//! of rates in Node. Another test compares the picture of the page in the book with the page;
//! `UPDATE=1` rewrites the picture.

#![expect(clippy::unwrap_used, reason = "a test ends where something is not as it must be")]

mod common;

use common::TestDaemon;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use testkit::need;

/// The node modules that the test uses, with their versions.
const NODE_MODULES: [&str; 2] = ["playwright-core@1.65.1", "axe-core@4.14.1"];

/// The request whose path the picture in the book shows. The pins (`@kernel`, `@thread0`) make the
/// plan independent of the machine on which the test runs.
const PICTURED_REQUEST: &str = "rx lo | dport@kernel | (|53 pcap@thread0 dns.pcap + \
                        |80 (tcp@thread0 | http@thread1 |exchange weblog access.log))";
/// Maximum length of the picture of the page in the book, in bytes.
const PICTURE_SIZE_MAX: usize = 40 << 10;

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
        let installed = install.args(NODE_MODULES).stdin(Stdio::null()).output().unwrap();
        if !installed.status.success() {
            return need::report_skip("needs playwright-core and axe-core from the npm registry");
        }
    }
    Some(folder)
}

#[test]
fn edge_rate_equals_the_input_of_its_first_segment() {
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
    let machine = TestDaemon::new();
    machine.start(
        "shown",
        "generate rate=2000 | dport |9 (count + match \"<img src=x onerror=1>\" | count)",
    );
    let page = machine.start_page("127.0.0.1:0");
    let script = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/browser/flows.mjs");
    let mut command = Command::new(node);
    command.arg(script).args([&modules, &chromium]).arg(&page.url).arg(&shots);
    let output = command.stdin(Stdio::null()).output().unwrap();
    let text = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "{text}");
}

#[test]
fn book_picture_equals_the_drawing_of_the_page() {
    let (Some(chromium), Some(node), Some(()), Some(())) = (
        need::require_command("chromium"),
        need::require_command("node"),
        need::require_bpf(),
        need::require_net_raw(),
    ) else {
        return;
    };
    let target = std::env::current_exe().unwrap().ancestors().nth(3).unwrap().to_owned();
    let Some(modules) = node_modules(&target) else { return };
    let machine = TestDaemon::new();
    let number = machine.start("web", PICTURED_REQUEST);
    let page = machine.start_page("127.0.0.1:0");
    let own = Path::new(env!("CARGO_MANIFEST_DIR"));
    let mut command = Command::new(node);
    command.arg(own.join("tests/browser/picture.mjs")).args([&modules, &chromium]);
    command.arg(&page.url).arg(number.to_string());
    let output = command.stdin(Stdio::null()).output().unwrap();
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    let drawn = String::from_utf8(output.stdout).unwrap();
    assert!(drawn.len() <= PICTURE_SIZE_MAX, "{} bytes", drawn.len());
    let path = own.join("../../docs/book/pictures/page.svg");
    if std::env::var_os("UPDATE").is_some() {
        std::fs::write(&path, &drawn).unwrap();
    }
    let known = std::fs::read_to_string(&path).unwrap_or_default();
    assert!(drawn == known, "{} differs; UPDATE=1 rewrites it. Drawn:\n{drawn}", path.display());
}
