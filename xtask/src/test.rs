//! The verbs that run tests: `test`, `model`, `fuzz`, `netns`; and `bench`.

use crate::{Outcome, cargo, examples, skips};
use std::path::Path;
use std::process::Command;

/// Sums of the `test result:` lines of any number of test programs.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
struct Counts {
    programs: u64,
    passed: u64,
    failed: u64,
    ignored: u64,
}

impl Counts {
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

/// `test`: everything, with counts.
pub(crate) fn test(root: &Path, arguments: &[String]) -> Outcome {
    let strict = arguments.iter().any(|argument| argument == "--strict");
    let rest: Vec<&String> = arguments.iter().filter(|a| *a != "--strict").collect();
    let named = |a: &&String| a.starts_with("-p") || a.starts_with("--package");
    let command = || {
        let mut command = cargo::cargo(root);
        command.args(["test", "--no-fail-fast"]);
        if std::env::var_os("CI").is_some() {
            command.arg("--locked");
        }
        command
    };
    let mut wanted = command();
    if !rest.iter().any(named) {
        wanted.arg("--workspace");
    }
    wanted.args(&rest);
    let mut commands = vec![wanted];
    // Who asks for some tests asks neither for the examples nor for the build that loses blocks.
    let shown = !rest.is_empty() || examples::check(root);
    if rest.is_empty() {
        let mut loses = command();
        loses.args(["--package", "streamline-tests", "--features", "lose", "--test", "loses"]);
        commands.push(loses);
    }
    let well = counted(root, commands, strict);
    if !shown {
        println!("examples or book show requests that do not work: see above");
    }
    (well && shown).into()
}

/// `model`: the loom models, those of the public interface (`tests/model_*.rs`) and those inside
/// (`models.rs`). Cargo builds them apart, because `--cfg loom` changes every crate.
pub(crate) fn model(root: &Path, arguments: &[String]) -> Outcome {
    let run = |which: &[&str], filter: &[String]| {
        let mut command = cargo::cargo(root);
        command
            .args(["test", "--package", "streamline-buffer", "--release"])
            .args(which)
            .arg("--")
            .args(filter)
            .env("RUSTFLAGS", "--cfg loom")
            .env("CARGO_TARGET_DIR", cargo::target(root).join("loom"));
        counted(root, vec![command], false)
    };
    if arguments.is_empty() {
        let outside = run(&["--test", "model_*"], &[]);
        let inside = run(&["--lib"], &["models::".to_owned()]);
        (outside && inside).into()
    } else {
        run(&["--lib", "--test", "model_*"], arguments).into()
    }
}

/// The tests that throw random and broken bytes at everything that reads bytes.
const FUZZED: &[(&str, &[&str])] = &[
    ("streamline-wire", &["captures", "dissect"]),
    ("streamline-ebpf", &["classic_fuzz"]),
    ("streamline-filter", &["catalog"]),
    ("streamline-pipeline", &["properties"]),
    ("streamline-tests", &["hostile"]),
];

/// `fuzz smoke`: those tests, with optimisation.
pub(crate) fn fuzz(root: &Path, arguments: &[String]) -> Outcome {
    if arguments != ["smoke"] {
        return Outcome::Usage("`fuzz` knows `smoke`".to_owned());
    }
    let mut command = cargo::cargo(root);
    command.args(["test", "--release", "--no-fail-fast"]);
    for (package, tests) in FUZZED {
        command.args(["--package", package]);
        command.args(tests.iter().flat_map(|test| ["--test", test]));
    }
    counted(root, vec![command], false).into()
}

/// The packages with tests that need root.
const PRIVILEGED: &[&str] = &["streamline-sys", "streamline-endpoint", "streamline-tests"];

/// `netns`: the tests of the packages that need root. Whoever asks for them wants them to run, so
/// that a skip is a failure.
pub(crate) fn netns(root: &Path, arguments: &[String]) -> Outcome {
    let mut command = cargo::cargo(root);
    command.args(["test", "--no-fail-fast", "--lib", "--tests"]);
    command.args(PRIVILEGED.iter().flat_map(|package| ["--package", package])).args(arguments);
    counted(root, vec![command], true).into()
}

/// `mutants`: all slips in all twins, or in those of one filter, with optimisation.
pub(crate) fn mutants(root: &Path, arguments: &[String]) -> Outcome {
    let mut command = cargo::cargo(root);
    match arguments {
        [] => {}
        [filter] => drop(command.env("STREAMLINE_MUTANTS_OF", filter)),
        _ => return Outcome::Usage("`mutants` takes the name of a filter, or nothing".to_owned()),
    }
    command.args(["test", "--release", "--package", "streamline-tests", "--test", "kernel", "--"]);
    command.args(["--ignored", "--exact", "mutants::all_broken_twins_are_caught", "--nocapture"]);
    counted(root, vec![command], true).into()
}

/// `bench`: the figures.
pub(crate) fn bench(root: &Path, arguments: &[String]) -> Outcome {
    let mut command = cargo::cargo(root);
    command.args(["run", "--release", "--package", "streamline-bench", "--"]).args(arguments);
    cargo::run(&mut command).into()
}

fn counted(root: &Path, commands: Vec<Command>, strict: bool) -> bool {
    let target = cargo::target(root);
    skips::forget(&target);
    let mut counts = Counts::default();
    let mut well = true;
    for mut command in commands {
        if strict {
            command.env("STREAMLINE_STRICT", "1");
        }
        well &= cargo::run_lines(&mut command, &target, |line| counts.add(line));
    }
    let Counts { programs, passed, failed, ignored } = counts;
    println!("{passed} passed, {failed} failed, {ignored} ignored in {programs} test programs");
    println!("{}", skips::summary(&target));
    if well && passed == 0 {
        println!("no test ran: nothing has been shown");
    }
    well && passed > 0
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn results_are_summed() {
        let mut counts = Counts::default();
        counts.add("running 3 tests");
        counts.add("test result: ok. 12 passed; 0 failed; 1 ignored; 0 measured; 0 filtered out");
        counts.add("test result: FAILED. 3 passed; 2 failed; 0 ignored; 0 measured");
        assert_eq!(counts, Counts { programs: 2, passed: 15, failed: 2, ignored: 1 });
    }
}
