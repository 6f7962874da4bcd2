//! The rule for names of tests: subject, situation, outcome, and short enough for a line.

use super::super::findings::{Findings, Occurrence};
use super::super::tokens::{Token, index_after_closing_bracket};
use super::super::tree::File;

/// Maximum length of a test's name in characters, without its capability numbers.
const NAME_LENGTH_MAX: usize = 60;

/// Words that do not name a subject, with which no test name begins.
const FORBIDDEN_OPENERS: &[&str] = &[
    "what", "who", "whoever", "whose", "whom", "where", "which", "how", "why", "whether", "nobody",
    "somebody",
];

/// Counts the test names that are too long or begin with one of the [`FORBIDDEN_OPENERS`].
pub(super) fn check(file: &File, name: &str, tokens: &[Token<'_>], found: &mut Findings) {
    for at in 0..tokens.len() {
        let here = |offset: usize| tokens.get(at + offset).map_or("", |token| token.text);
        if (here(0), here(1), here(2), here(3)) != ("#", "[", "test", "]") {
            continue;
        }
        // Other attributes may follow.
        let mut next = at + 4;
        while tokens.get(next).is_some_and(|token| token.text == "#") {
            next = index_after_closing_bracket(tokens, next + 1);
        }
        let mut rest = tokens[next..].iter().skip_while(|token| token.text != "fn").skip(1);
        let Some(test) = rest.next() else { continue };
        let plain = without_capability_numbers(test.text);
        let length = plain.chars().count();
        let first = plain.split('_').next().unwrap_or_default();
        let what = if length > NAME_LENGTH_MAX {
            format!(
                "the test `{}` has a name of {length} characters, more than {NAME_LENGTH_MAX}",
                test.text
            )
        } else if FORBIDDEN_OPENERS.contains(&first) {
            format!("the test `{}` opens with \"{first}\": name a subject", test.text)
        } else {
            continue;
        };
        found.occurrences.push(Occurrence::new("tests", name, file, test.line, what));
    }
}

/// Returns the name without the capability numbers before it (`k4_t10_`).
fn without_capability_numbers(mut name: &str) -> &str {
    while let Some((row, rest)) = name.split_once('_') {
        let is_row = row.starts_with(|c: char| c.is_ascii_lowercase())
            && row.len() > 1
            && row[1..].chars().all(|c| c.is_ascii_digit());
        if !is_row {
            break;
        }
        name = rest;
    }
    name
}
