//! Counts of skipped tests. `testkit::need` writes a line `skipped: TEST: REASON` for each skipped
//! test to `skips.txt` in the target directory; the summary of a run counts the skipped tests by
//! reason.

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::path::Path;

/// Name of the file in the target directory that lists the skipped tests.
const SKIPPED_TESTS_FILE: &str = "skips.txt";

/// Deletes the list of skipped tests of the last run.
pub(crate) fn clear_skipped_tests(target: &Path) {
    // The file may not exist.
    let _ = fs::remove_file(target.join(SKIPPED_TESTS_FILE));
}

/// Returns a summary of the tests skipped in this run, as in `7 skipped: 5 needs root, 2 needs the
/// program tshark`.
pub(crate) fn skipped_test_summary(target: &Path) -> String {
    summarize_skips(&fs::read_to_string(target.join(SKIPPED_TESTS_FILE)).unwrap_or_default())
}

fn summarize_skips(text: &str) -> String {
    // A test may report the same reason twice, but counts once.
    let skips: BTreeSet<(&str, &str)> = text
        .lines()
        .filter_map(|line| line.strip_prefix("skipped: "))
        .map(|line| line.split_once(": ").unwrap_or((line, "no reason given")))
        .collect();
    let mut reasons: BTreeMap<&str, usize> = BTreeMap::new();
    for (_, reason) in &skips {
        *reasons.entry(reason).or_default() += 1;
    }
    let mut reasons: Vec<_> = reasons.into_iter().collect();
    reasons.sort_by_key(|(_, count)| std::cmp::Reverse(*count));
    let list: Vec<_> = reasons.iter().map(|(why, count)| format!("{count} {why}")).collect();
    match skips.len() {
        0 => "0 skipped".to_owned(),
        n => format!("{n} skipped: {}", list.join(", ")),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn skips_are_counted_by_reason_and_once_per_test() {
        let text = "skipped: a::b: needs root\nskipped: a::b: needs root\n\
                    skipped: c: needs the program tshark\nskipped: d: needs root\nnoise\n";
        let expected = "3 skipped: 2 needs root, 1 needs the program tshark";
        assert_eq!(summarize_skips(text), expected);
        assert_eq!(summarize_skips(""), "0 skipped");
    }
}
