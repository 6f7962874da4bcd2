//! Build script that passes the commit and the target to `streamline --version`.
//!
//! A release build reads the commit from `STREAMLINE_COMMIT`, which `cargo xtask dist` sets, or
//! else from git. Other builds record no commit, so that a new commit does not force a
//! recompilation during development.

use std::path::Path;
use std::process::Command;

fn main() {
    println!("cargo:rerun-if-env-changed=STREAMLINE_COMMIT");
    println!("cargo:rerun-if-changed=build.rs");
    let environment = |name: &str| std::env::var(name).unwrap_or_default();
    println!("cargo:rustc-env=STREAMLINE_TARGET={}", environment("TARGET"));
    let given = environment("STREAMLINE_COMMIT");
    let commit = match (given.is_empty(), environment("PROFILE").as_str()) {
        (false, _) => given,
        (true, "release") => commit_from_git().unwrap_or_else(|| "unknown".to_owned()),
        (true, _) => "not recorded in a debug build".to_owned(),
    };
    println!("cargo:rustc-env=STREAMLINE_COMMIT={commit}");
}

/// Returns the commit of the working tree; `None` if git fails or the source tree has no `.git`.
fn commit_from_git() -> Option<String> {
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).ancestors().nth(2)?;
    if !root.join(".git").exists() {
        return None;
    }
    let git = |arguments: &[&str]| {
        let output = Command::new("git").args(arguments).current_dir(root).output().ok()?;
        let text = String::from_utf8(output.stdout).ok()?.trim().to_owned();
        (output.status.success() && !text.is_empty()).then_some(text)
    };
    // Git writes to this log whenever the current commit changes.
    let log = git(&["rev-parse", "--git-path", "logs/HEAD"])?;
    println!("cargo:rerun-if-changed={}", root.join(log).display());
    git(&["rev-parse", "--short=12", "HEAD"])
}
