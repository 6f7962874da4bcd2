//! The rule that every capability has a test or benchmark that demonstrates it. The rule compares
//! the capability page of the book with the numbers in tests and benchmarks.
//!
//! A test demonstrates the capabilities whose numbers are at the beginning of its name
//! (`fn n1_v13_…`). A file of tests or benchmarks demonstrates the capabilities in its first lines
//! (`FEATURES D9`). In other places, a line of this form only refers to a capability. In names of
//! tests, T numbers are threats, and `u` with digits is an integer type (`u16_…`), not a
//! capability.
//!
//! Input: the page, and the Rust files of the tree. Output: findings.

use super::findings::{Finding, Findings};
use super::tree::{File, Tree};
use std::collections::BTreeSet;

pub(super) const CAPABILITIES_PAGE: &str = "docs/book/capabilities.md";

pub(super) fn check(tree: &Tree, found: &mut Findings) {
    let Some(page) = tree.file(CAPABILITIES_PAGE) else { return };
    let mut known = Vec::new();
    for (line, text) in (1..).zip(page.text.lines()) {
        let mut cells = text.split('|').map(str::trim).skip(1);
        let (Some(number), Some(_), Some(state)) = (cells.next(), cells.next(), cells.next())
        else {
            continue;
        };
        if !is_capability_number(number) {
            continue;
        }
        let mut report =
            |what: String| found.push(Finding::at_line("capabilities", page, line, what));
        if known.contains(&number) {
            report(format!("{number} stands here twice"));
        }
        known.push(number);
        let paths: Vec<&str> = cells.flat_map(|cell| cell.split('`').skip(1).step_by(2)).collect();
        let has_paths = state == "yes" || state.starts_with("in part: ");
        if !has_paths && state != "no" {
            report(format!("{number}: the state is `yes`, `in part: …`, or `no`"));
        } else if has_paths == paths.is_empty() {
            report(format!(
                "{number}: a state other than `no` has paths that show it, `no` has none"
            ));
        } else {
            let bear = |path: &str| {
                tree.file(path).is_some_and(|f| demonstrated_capabilities(f).any(|n| n == number))
            };
            for path in paths.into_iter().filter(|path| !bear(path)) {
                report(format!("{number}: nothing in `{path}` bears this number"));
            }
        }
    }
    for file in tree.rust_files() {
        let named: BTreeSet<String> =
            demonstrated_capabilities(file).chain(mentioned_capabilities(&file.text)).collect();
        for number in named.iter().filter(|number| !known.contains(&number.as_str())) {
            let what = format!("{number} is named here, and {CAPABILITIES_PAGE} has no such row");
            found.push(Finding::in_file("capabilities", file, what));
        }
    }
}

/// Returns the numbers of the capabilities that a file demonstrates.
fn demonstrated_capabilities(file: &File) -> impl Iterator<Item = String> {
    let names = file.code.lines().filter_map(|line| line.trim_start().strip_prefix("fn "));
    let tests = names.flat_map(|name| {
        let parts = name.split('_').map(str::to_uppercase);
        parts
            .take_while(|part| is_capability_number(part))
            .filter(|number| !number.starts_with(['T', 'U']))
    });
    let head = file.text.lines().map_while(|line| line.strip_prefix("//!"));
    let shows = file.is_test() || file.path.starts_with("bench/");
    let head: String = head.filter(|_| shows).collect();
    tests.chain(mentioned_capabilities(&head).collect::<Vec<_>>())
}

/// Returns the numbers in mentions such as `FEATURES A1, B2` in a text.
fn mentioned_capabilities(text: &str) -> impl Iterator<Item = String> {
    text.split("FEATURES ").skip(1).flat_map(|list| {
        let words = list.split([' ', ',']).filter(|word| !word.is_empty());
        let numbers = words.map(|word| word.trim_end_matches([';', ')', ']', '.']));
        numbers.take_while(|word| is_capability_number(word)).map(str::to_owned).collect::<Vec<_>>()
    })
}

/// Returns true for a capital letter followed by one or two digits.
fn is_capability_number(text: &str) -> bool {
    let digits = text.strip_prefix(|c: char| c.is_ascii_uppercase()).unwrap_or("");
    (1..=2).contains(&digits.len()) && digits.bytes().all(|byte| byte.is_ascii_digit())
}
