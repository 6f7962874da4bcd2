//! Ratchets: counts that may only fall.
//!
//! Input: the occurrences that rules count, each with a key (a crate, a file, or a crate and a
//! word). Output: an error for each key whose sum is above its ceiling. The file [`CEILINGS_PATH`]
//! contains lines `RULE KEY NUMBER`. If sums fall below the ceilings, the file need not change;
//! `cargo xtask tidy --ratchet` lowers all ceilings to the current sums. A key may exceed its
//! ceiling if other keys of the rule are below their ceilings by at least the same amount, so that
//! code can move to another file or crate; the total of a rule never rises.

#[cfg(test)]
mod tests;

use super::findings::{Finding, Findings, Occurrence};
use super::tree::Tree;
use std::collections::BTreeMap;
use std::fmt::Write as _;

/// Path of the file that contains the ceilings.
pub(crate) const CEILINGS_PATH: &str = "xtask/ratchets";

/// The rules whose violations are counted and may not become more. Each has its name and the
/// meaning of its count. The table prints them in this order.
pub(crate) const RATCHETED_RULES: &[(&str, &str)] = &[
    ("cycles", "files in cycles of more than three"),
    ("upward", "arrows between files that point to a higher layer"),
    ("openers", "doc comments that open with a question word, or dodge one"),
    ("doubles", "types that share their name with another of the crate"),
    ("types", "types named like std's, or by a word that says nothing"),
    ("retired", "identifiers and file names that hold a retired word"),
    ("tests", "names of tests that are too long, or open with a question word"),
    ("files", "files of more than 400 lines, tests left out"),
    ("functions", "functions of more than 70 lines"),
    ("unsafe", "times the word `unsafe`"),
];

/// Rule and key of the row in the ceilings file that limits the lines of product code.
/// `cargo xtask lines` checks this limit, and `tidy --ratchet` does not change the row.
const PRODUCT_SIZE_KEY: (&str, &str) = ("lines", "product");

/// Maximum number of occurrences that the error for a key lists. If the key has more, the error
/// names the command that lists them.
const OCCURRENCES_MAX: usize = 5;

type SumsByKey = BTreeMap<(String, String), usize>;

/// Reports every key of a counted rule for which the occurrences exceed the ceiling.
pub(super) fn check(tree: &Tree, found: &mut Findings) {
    let ceilings = read_ceilings(tree);
    let sums = sum_by_key(&found.occurrences);
    let mut slack = slack_by_rule(&ceilings, &sums);
    for ((rule, key), sum) in &sums {
        let ceiling = ceilings.get(&(rule.clone(), key.clone())).copied().unwrap_or(0);
        let ceiling = ceiling + take_slack(&mut slack, rule, sum.saturating_sub(ceiling));
        if *sum > ceiling {
            let of_key = |c: &&Occurrence| c.rule == rule && c.key == *key;
            let error = ceiling_error(&found.occurrences, of_key, *sum, ceiling);
            found.errors.extend(error);
        }
    }
}

/// Returns the maximum number of lines of product code, or `None` if the ceilings file does not set
/// this maximum.
pub(crate) fn product_size_ceiling(tree: &Tree) -> Option<usize> {
    read_ceilings(tree)
        .get(&(PRODUCT_SIZE_KEY.0.to_owned(), PRODUCT_SIZE_KEY.1.to_owned()))
        .copied()
}

/// Returns the error for a key whose occurrences exceed its ceiling. `of_key` selects the
/// occurrences of this key. Returns `None` if there are none.
fn ceiling_error<'c>(
    occurrences: &'c [Occurrence],
    of_key: impl Fn(&&'c Occurrence) -> bool,
    sum: usize,
    ceiling: usize,
) -> Option<Finding> {
    let places: Vec<&Occurrence> = occurrences.iter().filter(of_key).collect();
    let first = places.first()?;
    let (rule, key) = (first.rule, &first.key);
    let name = RATCHETED_RULES.iter().find(|(name, _)| *name == rule).map_or("", |(_, what)| what);
    let mut what = match places.as_slice() {
        [one] => one.what.clone(),
        several if several.len() <= OCCURRENCES_MAX => {
            let lines = several.iter().map(|place| format!("\n    {}", place.format_line()));
            format!("{name}:{}", lines.collect::<String>())
        }
        _ => format!("{name}; `cargo xtask tidy --list {rule} {key}` names them"),
    };
    let _ = write!(what, " ({sum} of `{key}`, where the ceiling is {ceiling})");
    let line = first.line.filter(|_| places.len() == 1);
    Some(Finding { rule, path: first.path.clone(), line, what })
}

fn sum_by_key(occurrences: &[Occurrence]) -> SumsByKey {
    let mut sums = SumsByKey::new();
    for place in occurrences {
        *sums.entry((place.rule.to_owned(), place.key.clone())).or_default() += place.weight;
    }
    sums
}

/// Returns the slack of each rule: the total amount by which keys of the rule are below their
/// ceilings.
fn slack_by_rule(ceilings: &SumsByKey, sums: &SumsByKey) -> BTreeMap<String, usize> {
    let mut slack = BTreeMap::new();
    for (key, ceiling) in ceilings {
        let sum = sums.get(key).copied().unwrap_or(0);
        *slack.entry(key.0.clone()).or_default() += ceiling.saturating_sub(sum);
    }
    slack
}

/// Subtracts up to `wanted` from the slack of a rule ([`slack_by_rule`]). Returns the amount that
/// was subtracted.
fn take_slack(slack: &mut BTreeMap<String, usize>, rule: &str, wanted: usize) -> usize {
    let left = slack.entry(rule.to_owned()).or_default();
    let taken = wanted.min(*left);
    *left -= taken;
    taken
}

fn read_ceilings(tree: &Tree) -> SumsByKey {
    let text = tree.file(CEILINGS_PATH).map_or("", |file| file.text.as_str());
    let rows = text.lines().filter(|line| !line.starts_with('#'));
    rows.filter_map(|line| {
        let (key, number) = line.rsplit_once(' ')?;
        let (rule, key) = key.split_once(' ')?;
        Some(((rule.to_owned(), key.to_owned()), number.parse().ok()?))
    })
    .collect()
}

/// Returns the contents of the ceilings file with ceilings lowered to the current sums. If the sum
/// of a key is above its ceiling, the ceiling rises by at most the slack of other keys of the rule.
/// If the slack is too small, the key remains an error. The ceilings of a new rule are the current
/// sums.
pub(super) fn lowered_ceilings(tree: &Tree, occurrences: &[Occurrence]) -> String {
    let ceilings = read_ceilings(tree);
    let sums = sum_by_key(occurrences);
    let mut slack = slack_by_rule(&ceilings, &sums);
    let mut text = String::from(
        "# What may only become less: a rule, a crate or file, a number. Nobody edits this file:\n\
         # `cargo xtask tidy --ratchet` lowers the numbers, and lets them follow moved code.\n",
    );
    if let Some(lines) = product_size_ceiling(tree) {
        let _ = writeln!(text, "{} {} {lines}", PRODUCT_SIZE_KEY.0, PRODUCT_SIZE_KEY.1);
    }
    for ((rule, key), sum) in &sums {
        let is_new = !ceilings.keys().any(|(known, _)| known == rule);
        let ceiling = match ceilings.get(&(rule.clone(), key.clone())).copied().unwrap_or(0) {
            _ if is_new => *sum,
            ceiling if ceiling < *sum => ceiling + take_slack(&mut slack, rule, sum - ceiling),
            _ => *sum,
        };
        if ceiling > 0 {
            let _ = writeln!(text, "{rule} {key} {ceiling}");
        }
    }
    text
}

/// Returns a table with a row for each crate. The row contains the crate's number of lines, and its
/// sum for each rule in [`RATCHETED_RULES`].
pub(super) fn format_report(tree: &Tree, occurrences: &[Occurrence]) -> String {
    let lines = crate::lines::counts_by_crate(tree);
    let crates = tree.crates();
    let names = crates.iter().map(|(_, name)| name.as_str()).chain([""]);
    let mut text = format!("{:12}{:>8}", "crate", "lines");
    RATCHETED_RULES.iter().for_each(|(rule, _)| text += &format!("{rule:>10}"));
    let mut row = |name: &str, lines: usize, of: &dyn Fn(&Occurrence) -> bool| {
        let _ = write!(text, "\n{name:12}{lines:>8}");
        for (rule, _) in RATCHETED_RULES {
            let here = occurrences.iter().filter(|place| place.rule == *rule && of(place));
            let _ = write!(text, "{:>10}", here.map(|place| place.weight).sum::<usize>());
        }
    };
    for name in names {
        let lines = lines.get(name).map_or(0, |count| count.1);
        row(name, lines, &|place| super::tree::crate_of_path(&crates, &place.path) == name);
    }
    row("in all", lines.values().map(|count| count.1).sum(), &|_| true);
    text += "\n\n";
    for (rule, what) in RATCHETED_RULES {
        let _ = writeln!(text, "{rule:10}{what}");
    }
    text
}

/// Returns the occurrences of a rule whose keys or paths begin with `key`, one per line. An empty
/// `key` selects all occurrences.
pub(super) fn list_occurrences(occurrences: &[Occurrence], rule: &str, key: &str) -> String {
    let mut text = String::new();
    for place in occurrences {
        let is_key = place.key.split(' ').next() == Some(key) || place.key.starts_with(key);
        if place.rule == rule && (key.is_empty() || is_key || place.path.starts_with(key)) {
            let _ = writeln!(text, "{}", place.format_line());
        }
    }
    text
}
