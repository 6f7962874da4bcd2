//! The verb `ci`, which runs all checks that must pass, one after the other. A failing step does
//! not stop the next step; the summary names the failed steps and the skipped checks.

use crate::outcome::Outcome;
use crate::{cargo, skips, test, tidy};
use std::path::Path;
use std::time::Instant;

/// The verb `ci`: runs all steps, and prints a summary. Skipped checks are failures with
/// `--strict`.
pub(crate) fn ci(root: &Path, arguments: &[String]) -> Outcome {
    if let Some(unknown) = arguments.iter().find(|argument| *argument != "--strict") {
        return Outcome::Usage(format!("`ci` knows --strict, not `{unknown}`"));
    }
    let strict = !arguments.is_empty();
    let mut skipped = Vec::new();
    let mut failed = Vec::new();
    let mut step = |name: &'static str, run: &mut dyn FnMut() -> bool| {
        println!("\n== {name}");
        let start = Instant::now();
        let well = run();
        println!("== {name}: {} in {} s", pass_or_fail_word(well), start.elapsed().as_secs());
        if !well {
            failed.push(name);
        }
    };
    step("fmt", &mut || {
        cargo::run_command(cargo::cargo_command(root).args(["fmt", "--all", "--check"]))
    });
    step("clippy", &mut || {
        let mut command = cargo::cargo_command(root);
        cargo::run_command(command.args([
            "clippy",
            "--workspace",
            "--all-targets",
            "--",
            "-D",
            "warnings",
        ]))
    });
    step("clippy of the build that loses blocks", &mut || {
        let mut command = cargo::cargo_command(root);
        command.args(["clippy", "--package", "streamline-tests", "--features", "lose"]);
        cargo::run_command(command.args(["--test", "loses", "--", "-D", "warnings"]))
    });
    step("build of the loom models", &mut || test::check_loom_models(root));
    step("links of the API documentation", &mut || {
        let mut command = cargo::cargo_command(root);
        command.env("RUSTDOCFLAGS", "-D warnings -A rustdoc::private_intra_doc_links");
        cargo::run_command(command.args([
            "doc",
            "--workspace",
            "--no-deps",
            "--document-private-items",
        ]))
    });
    step("tidy", &mut || matches!(tidy::tidy(root, &[]), Outcome::Success));
    step("test", &mut || matches!(test::test(root, arguments), Outcome::Success));
    step("deny", &mut || check_dependencies(root, strict, &mut skipped));
    println!("\n{}", skips::skipped_test_summary(&cargo::target_directory(root)));
    for line in skipped {
        println!("left out: {line}");
    }
    match failed.is_empty() {
        true => println!("ci: all is well"),
        false => println!("ci: failed: {}", failed.join(", ")),
    }
    failed.is_empty().into()
}

/// Checks licenses, bans, sources and advisories of the dependencies. Downloads the list of
/// advisories. Returns true if all checks succeeded. If cargo-deny is not installed or the download
/// fails, adds a line to `skipped`; the result is then false if `strict` is true.
fn check_dependencies(root: &Path, strict: bool, skipped: &mut Vec<&str>) -> bool {
    if !cargo::has_subcommand(root, "deny") {
        skipped.push("deny: `cargo deny` is not here; `cargo install --locked cargo-deny`");
        return !strict;
    }
    let deny = |arguments: &[&str]| {
        cargo::run_command(cargo::cargo_command(root).arg("deny").args(arguments))
    };
    let well = deny(&["--workspace", "check", "licenses", "bans", "sources"]);
    if !deny(&["--workspace", "fetch", "db"]) {
        skipped.push("deny: the list of advisories could not be fetched");
        return well && !strict;
    }
    deny(&["--workspace", "check", "advisories"]) && well
}

/// Returns the word with which the summary marks a step: `ok` if it passed, otherwise `FAILED`.
fn pass_or_fail_word(well: bool) -> &'static str {
    if well { "ok" } else { "FAILED" }
}
