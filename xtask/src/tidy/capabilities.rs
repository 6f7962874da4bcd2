//! Every capability can be seen somewhere: the page of the book against what bears its numbers.
//!
//! A test bears the numbers with which its name begins (`fn n1_v13_…`); what else shows a
//! capability, such as a benchmark, says so in its first lines (`FEATURES D9`). Numbers with T in
//! names of tests are threats, and no capabilities.
//!
//! In: the page, and the Rust of the tree. Out: findings.

use super::tree::{File, Tree};
use super::{Finding, Findings};

const PAGE: &str = "docs/book/capabilities.md";

pub(super) fn check(tree: &Tree, found: &mut Findings) {
    let Some(page) = tree.file(PAGE) else { return };
    let mut known = Vec::new();
    for (line, text) in (1..).zip(page.text.lines()) {
        let mut cells = text.split('|').map(str::trim).skip(1);
        let (Some(number), Some(_), Some(state)) = (cells.next(), cells.next(), cells.next())
        else {
            continue;
        };
        if !is_number(number) {
            continue;
        }
        let mut say = |what: String| found.push(Finding::line("capabilities", page, line, what));
        if known.contains(&number) {
            say(format!("{number} stands here twice"));
        }
        known.push(number);
        let paths: Vec<&str> = cells.flat_map(|cell| cell.split('`').skip(1).step_by(2)).collect();
        let shown = state == "yes" || state.starts_with("in part: ");
        if !shown && state != "no" {
            say(format!("{number}: the state is `yes`, `in part: …`, or `no`"));
        } else if shown == paths.is_empty() {
            say(format!("{number}: a state other than `no` has paths that show it, `no` has none"));
        }
        for path in paths {
            if !tree.file(path).is_some_and(|file| bears(file).any(|one| one == number)) {
                say(format!("{number}: nothing in `{path}` bears this number"));
            }
        }
    }
    for file in tree.rust() {
        for number in bears(file).filter(|number| !known.contains(&number.as_str())) {
            let what = format!("{number} is borne here, and {PAGE} has no such row");
            found.push(Finding::file("capabilities", file, what));
        }
    }
}

/// The numbers that a file bears.
fn bears(file: &File) -> impl Iterator<Item = String> {
    let names = file.code.lines().filter_map(|line| line.trim_start().strip_prefix("fn "));
    let tests = names.flat_map(|name| {
        let parts = name.split('_').map(str::to_uppercase);
        parts.take_while(|part| is_number(part)).filter(|number| !number.starts_with('T'))
    });
    let head: Vec<_> = file.text.lines().map_while(|line| line.strip_prefix("//!")).collect();
    tests.chain(mentioned(&head.concat()).collect::<Vec<_>>())
}

/// The numbers that a text mentions as `FEATURES A1, B2`.
fn mentioned(text: &str) -> impl Iterator<Item = String> {
    text.split("FEATURES ").skip(1).flat_map(|list| {
        let words = list.split([' ', ',']).filter(|word| !word.is_empty());
        let numbers = words.map(|word| word.trim_end_matches([';', ')', ']', '.']));
        numbers.take_while(|word| is_number(word)).map(str::to_owned).collect::<Vec<_>>()
    })
}

/// Whether this is a capital letter and a number.
fn is_number(text: &str) -> bool {
    let digits = text.strip_prefix(|c: char| c.is_ascii_uppercase()).unwrap_or("");
    (1..=2).contains(&digits.len()) && digits.bytes().all(|byte| byte.is_ascii_digit())
}
