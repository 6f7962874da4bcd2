//! The verbs that run tests (`test`, `model`, `miri`, `fuzz`, `netns`, `mutants`), and `bench`.

use crate::outcome::Outcome;
use crate::{cargo, examples, skips};
use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

/// The counts of a test run: the sums of the `test result:` lines of several test programs.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
struct TestCounts {
    programs: u64,
    passed: u64,
    failed: u64,
    ignored: u64,
}

impl TestCounts {
    fn add(&mut self, line: &str) {
        let Some(rest) = line.strip_prefix("test result: ") else { return };
        self.programs += 1;
        // "ok. 12 passed; 0 failed; 1 ignored; 0 measured; 0 filtered out; finished in 0.01s"
        let numbers = rest.split_once(". ").map_or(rest, |(_, numbers)| numbers);
        for part in numbers.split("; ") {
            let Some((number, what)) = part.split_once(' ') else { continue };
            let number = number.parse().unwrap_or(0);
            match what {
                "passed" => self.passed += number,
                "failed" => self.failed += number,
                "ignored" => self.ignored += number,
                _ => {}
            }
        }
    }
}

/// Arguments of `cargo xtask test`.
#[derive(Debug, PartialEq, Eq, Default)]
struct TestArguments<'a> {
    strict: bool,
    /// Directory of external captures, if only the tests that use these captures run; otherwise
    /// `None`.
    corpus: Option<&'a str>,
    /// Arguments that are passed on to `cargo test`.
    cargo_arguments: Vec<&'a str>,
}

impl<'a> TestArguments<'a> {
    fn parse(given: &'a [String]) -> Result<Self, String> {
        let mut arguments = Self::default();
        let mut words = given.iter().map(String::as_str);
        while let Some(word) = words.next() {
            match word {
                "--strict" => arguments.strict = true,
                "--corpus" => {
                    let folder = words.next().ok_or("`--corpus` needs the folder of the cases")?;
                    arguments.corpus = Some(folder);
                }
                _ => arguments.cargo_arguments.push(word),
            }
        }
        Ok(arguments)
    }
}

/// The verb `test`: runs all tests, and prints their counts.
pub(crate) fn test(root: &Path, arguments: &[String]) -> Outcome {
    let arguments = match TestArguments::parse(arguments) {
        Ok(arguments) => arguments,
        Err(why) => return Outcome::Usage(why),
    };
    match arguments.corpus {
        Some(folder) => match fs::canonicalize(folder) {
            Ok(folder) => {
                let run = run_corpus_tests(root, &folder, &arguments);
                println!("{}", run.summary());
                run.is_success().into()
            }
            Err(error) => Outcome::Usage(format!("the corpus {folder}: {error}")),
        },
        None if arguments.cargo_arguments.is_empty() => run_all(root, &arguments).into(),
        None => {
            let mut command = test_command(root);
            let named = |a: &&str| a.starts_with("-p") || a.starts_with("--package");
            if !arguments.cargo_arguments.iter().any(named) {
                command.arg("--workspace");
            }
            command.args(&arguments.cargo_arguments);
            print_result(&run_and_count(root, vec![command], arguments.strict)).into()
        }
    }
}

/// Runs all tests and checks the requests in documents. Runs the tests on external captures too, if
/// the directory of captures exists. Returns true if all succeed.
fn run_all(root: &Path, arguments: &TestArguments<'_>) -> bool {
    let mut workspace = test_command(root);
    workspace.args(["--workspace", "--", "--skip", CORPUS_PREFIX]).env_remove(CORPUS_VARIABLE);
    let mut loses = test_command(root);
    loses.args(["--package", "streamline-tests", "--features", "lose", "--test", "loses"]);
    let examples = examples::check_examples(root);
    let workspace = run_and_count(root, vec![workspace, loses], arguments.strict);
    let corpus =
        default_corpus_directory(root).map(|folder| run_corpus_tests(root, &folder, arguments));
    match &corpus {
        Some(corpus) => println!("corpus: {}", corpus.summary()),
        None => println!(
            "corpus: ../{DEFAULT_CORPUS_DIRECTORY} is not here; the tests that take captures of \
             others were left out (`cargo xtask test --corpus DIR`)"
        ),
    }
    let well = print_result(&workspace) && corpus.is_none_or(|corpus| corpus.is_success());
    if !examples {
        println!("examples or book show requests that do not work: see above");
    }
    well && examples
}

/// Name prefix of the tests that use external captures.
const CORPUS_PREFIX: &str = "corpus_";
/// Environment variable that names the directory of external captures.
const CORPUS_VARIABLE: &str = "STREAMLINE_CORPUS";
/// Default directory of external captures, relative to the parent of the repository.
const DEFAULT_CORPUS_DIRECTORY: &str = "shared/cases";
/// Packages that have tests on external captures.
const CORPUS_PACKAGES: &[&str] = &[
    "streamline-testkit",
    "streamline-wire",
    "streamline-ebpf",
    "streamline-filter",
    "streamline-endpoint",
    "streamline-tests",
];

fn default_corpus_directory(root: &Path) -> Option<PathBuf> {
    let beside = root.parent()?.join(DEFAULT_CORPUS_DIRECTORY);
    beside.is_dir().then_some(beside)
}

/// Runs the tests on external captures from the given directory.
fn run_corpus_tests(root: &Path, folder: &Path, arguments: &TestArguments<'_>) -> TestRun {
    println!("\n== corpus {}", folder.display());
    let mut command = test_command(root);
    command.args(CORPUS_PACKAGES.iter().flat_map(|package| ["--package", package]));
    command.args(["--lib", "--tests"]).args(&arguments.cargo_arguments).args(["--", CORPUS_PREFIX]);
    command.env(CORPUS_VARIABLE, folder);
    run_and_count(root, vec![command], arguments.strict)
}

/// Returns the command that runs all tests: `cargo test`, with `--locked` if `CI` is set.
pub(crate) fn test_command(root: &Path) -> Command {
    let mut command = cargo::cargo_command(root);
    command.args(["test", "--no-fail-fast"]);
    if std::env::var_os("CI").is_some() {
        command.arg("--locked");
    }
    command
}

/// Prints the results of a test run. Returns true if all calls of cargo succeeded and at least one
/// test passed.
fn print_result(run: &TestRun) -> bool {
    println!("{}", run.summary());
    if run.succeeded && run.counts.passed == 0 {
        println!("no test ran: nothing was tested");
    }
    run.is_success()
}

/// The verb `model`: runs the loom models of public interfaces (`tests/model_*.rs`) and of internal
/// types (`models.rs`). The models are built separately, because `--cfg loom` changes every crate.
pub(crate) fn model(root: &Path, arguments: &[String]) -> Outcome {
    let run = |which: &[&str], filter: &[String]| {
        let mut command = loom_command(root);
        command.args(["test", "--package", "streamline-buffer", "--release"]);
        command.args(which).arg("--").args(filter);
        print_result(&run_and_count(root, vec![command], false))
    };
    if arguments.is_empty() {
        let outside = run(&["--test", "model_*"], &[]);
        let inside = run(&["--lib"], &["models::".to_owned()]);
        (outside && inside).into()
    } else {
        run(&["--lib", "--test", "model_*"], arguments).into()
    }
}

/// Packages whose unit tests Miri interprets.
const MIRI_PACKAGES: &[&str] = &["streamline-abi", "streamline-buffer", "streamline-iolite"];

/// The verb `miri`: interprets the unit tests of [`MIRI_PACKAGES`], using heap memory, and reports
/// undefined behavior. Skipped if the nightly toolchain has no Miri.
pub(crate) fn miri(root: &Path, arguments: &[String]) -> Outcome {
    let cargo = |arguments: &[&str]| {
        let mut command = Command::new("cargo");
        // Cargo reads the configuration of its working directory. The configuration of the tree
        // names a test runner, which would conflict with Miri's runner.
        command.current_dir("/").arg("+nightly").arg("miri").args(arguments);
        command.env_remove("CARGO").env_remove("RUSTUP_TOOLCHAIN");
        command
    };
    if !cargo(&["--version"]).output().is_ok_and(|output| output.status.success()) {
        println!("skipped: miri: `rustup component add --toolchain nightly miri rust-src`");
        return Outcome::Success;
    }
    let mut command = cargo(&["test", "--lib", "--no-fail-fast", "--manifest-path"]);
    command.arg(root.join("Cargo.toml"));
    command.env("CARGO_TARGET_DIR", cargo::target_directory(root).join("miri"));
    for package in MIRI_PACKAGES {
        command.args(["--package", package]);
    }
    command.arg("--").args(arguments);
    cargo::run_command(&mut command).into()
}

/// Returns true if the loom models compile. No other build compiles them.
pub(crate) fn check_loom_models(root: &Path) -> bool {
    let mut command = loom_command(root);
    command.args(["check", "--profile", "test", "--package", "streamline-buffer"]);
    command.args(["--lib", "--test", "model_*"]);
    cargo::run_command(&mut command)
}

/// Returns a command for cargo with `--cfg loom` and its own target directory.
fn loom_command(root: &Path) -> Command {
    let mut command = cargo::cargo_command(root);
    command.env("RUSTFLAGS", "--cfg loom");
    command.env("CARGO_TARGET_DIR", cargo::target_directory(root).join("loom"));
    command
}

/// Tests that pass random and malformed bytes to all parsers: packages, each with the names of its
/// test programs.
const FUZZ_TESTS: &[(&str, &[&str])] = &[
    ("streamline-wire", &["captures", "dissect"]),
    ("streamline-ebpf", &["classic_fuzz"]),
    ("streamline-filter", &["catalog"]),
    ("streamline-pipeline", &["properties"]),
    ("streamline-tests", &["hostile"]),
];

/// The verb `fuzz smoke`: runs [`FUZZ_TESTS`] with optimization.
pub(crate) fn fuzz(root: &Path, arguments: &[String]) -> Outcome {
    if arguments != ["smoke"] {
        return Outcome::Usage("`fuzz` knows `smoke`".to_owned());
    }
    let mut command = cargo::cargo_command(root);
    command.args(["test", "--release", "--no-fail-fast"]);
    for (package, tests) in FUZZ_TESTS {
        command.args(["--package", package]);
        command.args(tests.iter().flat_map(|test| ["--test", test]));
    }
    print_result(&run_and_count(root, vec![command], false)).into()
}

/// Packages with tests that are skipped unless they run as root.
const PRIVILEGED_PACKAGES: &[&str] = &["streamline-sys", "streamline-endpoint", "streamline-tests"];

/// The verb `netns`: runs the tests that need root. A skipped test is a failure.
pub(crate) fn netns(root: &Path, arguments: &[String]) -> Outcome {
    let mut command = cargo::cargo_command(root);
    command.args(["test", "--no-fail-fast", "--lib", "--tests"]);
    command
        .args(PRIVILEGED_PACKAGES.iter().flat_map(|package| ["--package", package]))
        .args(arguments);
    print_result(&run_and_count(root, vec![command], true)).into()
}

/// The verb `mutants`: tests all mutations of all filters' twins, or of one filter's twin, with
/// optimization.
pub(crate) fn mutants(root: &Path, arguments: &[String]) -> Outcome {
    let mut command = cargo::cargo_command(root);
    match arguments {
        [] => {}
        [filter] => drop(command.env("STREAMLINE_MUTANTS_OF", filter)),
        _ => return Outcome::Usage("`mutants` takes the name of a filter, or nothing".to_owned()),
    }
    command.args(["test", "--release", "--package", "streamline-tests", "--test", "kernel", "--"]);
    command.args(["--ignored", "--exact", "mutants::all_twin_mutants_are_detected", "--nocapture"]);
    print_result(&run_and_count(root, vec![command], true)).into()
}

/// The verb `bench`: builds the benchmarks, and runs them.
pub(crate) fn bench(root: &Path, arguments: &[String]) -> Outcome {
    let mut command = cargo::cargo_command(root);
    command.args(["run", "--release", "--package", "streamline-bench", "--"]).args(arguments);
    cargo::run_command(&mut command).into()
}

/// Results of a test run, which may consist of several calls of cargo.
#[derive(Debug)]
struct TestRun {
    counts: TestCounts,
    /// Summary of the skipped tests in one line.
    skipped: String,
    /// True if every call of cargo succeeded.
    succeeded: bool,
}

impl TestRun {
    const fn is_success(&self) -> bool {
        self.succeeded && self.counts.passed > 0
    }

    /// Formats the counts and the summary of skipped tests.
    fn summary(&self) -> String {
        let TestCounts { programs, passed, failed, ignored } = self.counts;
        let skipped = &self.skipped;
        format!(
            "{passed} passed, {failed} failed, {ignored} ignored in {programs} test programs\n\
             {skipped}"
        )
    }
}

fn run_and_count(root: &Path, commands: Vec<Command>, strict: bool) -> TestRun {
    let target = cargo::target_directory(root);
    skips::clear_skipped_tests(&target);
    let mut counts = TestCounts::default();
    let mut succeeded = true;
    for mut command in commands {
        if strict {
            command.env("STREAMLINE_STRICT", "1");
        }
        succeeded &= cargo::run_and_forward_lines(&mut command, &target, |line| counts.add(line));
    }
    TestRun { counts, skipped: skips::skipped_test_summary(&target), succeeded }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn result_lines_are_summed() {
        let mut counts = TestCounts::default();
        counts.add("running 3 tests");
        counts.add("test result: ok. 12 passed; 0 failed; 1 ignored; 0 measured; 0 filtered out");
        counts.add("test result: FAILED. 3 passed; 2 failed; 0 ignored; 0 measured");
        assert_eq!(counts, TestCounts { programs: 2, passed: 15, failed: 2, ignored: 1 });
    }

    #[test]
    fn corpus_option_takes_directory_and_cargo_gets_the_rest() {
        let words = |line: &str| line.split(' ').map(str::to_owned).collect::<Vec<_>>();
        let given = words("--strict --corpus /cases -p streamline-wire");
        let arguments = TestArguments {
            strict: true,
            corpus: Some("/cases"),
            cargo_arguments: given[3..].iter().map(String::as_str).collect(),
        };
        assert_eq!(TestArguments::parse(&given), Ok(arguments));
        assert!(TestArguments::parse(&words("--corpus")).is_err());
    }

    /// A corpus test in a package outside [`CORPUS_PACKAGES`] would never run.
    #[test]
    fn every_corpus_test_is_in_a_listed_package() {
        let root = crate::workspace_root();
        let mut folders = vec![root.join("crates"), root.join("tests"), root.join("bench")];
        let mut found = 0;
        while let Some(folder) = folders.pop() {
            for path in fs::read_dir(folder).unwrap().map(|entry| entry.unwrap().path()) {
                if path.is_dir() {
                    folders.push(path);
                } else if path.extension().is_some_and(|extension| extension == "rs") {
                    let text = fs::read_to_string(&path).unwrap();
                    if !text.contains(&format!("fn {CORPUS_PREFIX}")) {
                        continue;
                    }
                    let path = path.strip_prefix(&root).unwrap();
                    let mut parts = path.iter().filter_map(|part| part.to_str());
                    let first = parts.next().unwrap();
                    let name = if first == "crates" { parts.next().unwrap() } else { first };
                    let package = format!("streamline-{name}");
                    assert!(CORPUS_PACKAGES.contains(&&*package), "{}", path.display());
                    found += 1;
                }
            }
        }
        assert!(found > 10, "{found} files");
    }
}
