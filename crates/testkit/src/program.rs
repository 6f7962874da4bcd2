//! The program `streamline`, for tests in other crates.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::OnceLock;

/// Returns the path of the program `streamline`: the value of the environment variable
/// `STREAMLINE_PROGRAM` or, if it is not set, the program in the build directory of this test. That
/// program is rebuilt if a source file is newer.
///
/// # Panics
/// If the program does not build.
#[must_use]
pub fn streamline_program() -> &'static Path {
    static PROGRAM: OnceLock<PathBuf> = OnceLock::new();
    PROGRAM.get_or_init(|| {
        if let Some(named) = std::env::var_os("STREAMLINE_PROGRAM") {
            return named.into();
        }
        let own = std::env::current_exe().expect("this program");
        // The path of this program is like target/debug/deps/live-0123.
        let profile = own.ancestors().nth(2).expect("a folder of builds");
        let program = profile.join("streamline");
        if !is_up_to_date(&program) {
            build_program(profile);
        }
        program
    })
}

fn build_program(profile: &Path) {
    let name = profile.file_name().expect("a name");
    let name = if name == "debug" { "dev".as_ref() } else { name };
    let cargo = std::env::var_os("CARGO").unwrap_or_else(|| "cargo".into());
    let mut command = Command::new(cargo);
    command.args(["build", "--quiet", "--package", "streamline-cli", "--profile"]).arg(name);
    command.arg("--target-dir").arg(profile.parent().expect("a folder of builds"));
    command.current_dir(crate::cases::workspace_root());
    assert!(command.status().expect("cargo").success(), "the program does not build");
}

/// Returns true if a program is newer than all its sources, so that it need not be rebuilt. The
/// sources are the files of the crates without their tests, the examples and `Cargo.lock`. A test
/// must not rebuild a program that `cargo test --workspace` has just built, because it could use
/// other features. Cargo's own dependency file cannot be used, because it does not exist if only
/// tests were built.
fn is_up_to_date(program: &Path) -> bool {
    let age = |path: &Path| fs::metadata(path).and_then(|file| file.modified()).ok();
    let Some(built) = age(program) else { return false };
    let workspace = crate::cases::workspace_root();
    let mut waiting: Vec<PathBuf> =
        ["crates", "examples", "Cargo.lock"].map(|name| workspace.join(name)).into();
    while let Some(path) = waiting.pop() {
        if path.file_stem().is_some_and(|name| name == "tests") {
            continue;
        }
        match fs::read_dir(&path) {
            Ok(entries) => waiting.extend(entries.flatten().map(|entry| entry.path())),
            Err(_) if age(&path) > Some(built) => return false,
            Err(_) => {}
        }
    }
    true
}
