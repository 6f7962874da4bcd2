//! The rules against tests that fail by chance: no short time limits, no comparison of times, and
//! no counts of resources shared with other tests. The rules inspect single lines. Ignored tests
//! are measurements, and may compare times.
//!
//! Input: the test code of the tree. Output: findings.

use super::findings::{Finding, Findings};
use super::rules::{TEST_TIMEOUT_SECONDS_MIN, TIME_EXCEPTIONS};
use super::source::lines_outside_tests;
use super::tree::{File, Tree};
use std::collections::HashSet;

pub(super) fn check(tree: &Tree, found: &mut Findings) {
    for file in tree.rust_files() {
        let product: HashSet<usize> = match file.is_test() {
            true => HashSet::new(),
            false => {
                lines_outside_tests(&file.code).into_iter().map(|(number, _)| number).collect()
            }
        };
        check_test_timing(file, &product, found);
    }
    for (path, _) in TIME_EXCEPTIONS {
        if tree.file(path).is_none() {
            let what =
                "is in TIME_EXCEPTIONS of xtask/src/tidy/rules.rs, and is not there: take it out";
            let path = (*path).to_owned();
            found.push(Finding { rule: "chance", path, line: None, what: what.to_owned() });
        }
    }
}

fn check_test_timing(file: &File, product: &HashSet<usize>, found: &mut Findings) {
    let may = TIME_EXCEPTIONS.iter().any(|(path, _)| *path == file.path);
    let is_alone = may || file.code.contains("separate_process(") || file.code.contains("_alone");
    let mut measures = false;
    for ((number, code), text) in (1..).zip(file.code.lines()).zip(file.text.lines()) {
        if code.contains("#[test]") {
            measures = false;
        }
        measures |= code.contains("#[ignore");
        if measures || product.contains(&number) {
            continue;
        }
        let mut report = |what: &str| found.push(Finding::at_line("chance", file, number, what));
        if !may && asserts_short_duration(code) {
            report(
                "asserts how long something took, which is the machine's: wait for a condition, \
                 or count instead",
            );
        }
        if let Some(seconds) =
            duration_in_seconds(code).filter(|seconds| *seconds < TEST_TIMEOUT_SECONDS_MIN && !may)
        {
            report(&format!(
                "{seconds} s are too short for a busy machine: a limit of a test is \
                 {TEST_TIMEOUT_SECONDS_MIN} s or more (`testkit::wait::WAIT_TIMEOUT`)"
            ));
        }
        if code.contains("fs::copy(") {
            report(
                "what is copied so cannot be started while another test starts a program: \
                 `testkit::copy_program`",
            );
        }
        if text.contains("\"/proc/self/fd\"") && !is_alone {
            report(
                "counts the process's resources: `testkit::run_in_separate_process`, or one test \
                 at a time",
            );
        }
    }
}

/// Returns true if the line asserts that a duration is short.
fn asserts_short_duration(line: &str) -> bool {
    let Some((_, asserted)) = line.split_once("assert") else { return false };
    ["elapsed() < ", "elapsed() <= ", "< Duration::", "<= Duration::"]
        .iter()
        .any(|words| asserted.contains(words))
}

/// Returns the number of seconds in a constant duration that the line contains, or `None` if it
/// contains none.
fn duration_in_seconds(line: &str) -> Option<u64> {
    let (_, behind) = line.split_once("Duration::from_secs(")?;
    behind.split(')').next()?.parse().ok().filter(|seconds| *seconds > 0)
}
