//! Doc comments that open with a question word, or dodge one.

use super::super::findings::{Counted, Findings};
use super::super::tree::File;

/// Words that no doc comment opens with.
pub(super) const OPENERS: &[&str] = &[
    "what",
    "whatever",
    "who",
    "whoever",
    "whose",
    "whom",
    "whether",
    "where",
    "wherever",
    "which",
    "whichever",
    "how",
    "why",
    "when",
    "whenever",
    "nobody",
    "somebody",
    "by",
    "of",
    "that",
];

/// Openings that only turn a question word around.
const DODGES: &[&str] = &[
    "the thing that",
    "the things that",
    "those that",
    "those who",
    "the one that",
    "the one who",
    "the ones that",
    "the ones who",
    "he who",
    "anybody who",
    "anyone who",
    "everybody who",
    "everyone who",
    "all who",
    "the place where",
    "the way in which",
    "the reason why",
];

/// Counts the doc comments of a file that open so.
pub(super) fn check(file: &File, name: &str, found: &mut Findings) {
    let mut before = "";
    for (number, line) in (1..).zip(file.text.lines()) {
        let (marker, text) = doc(line.trim_start());
        let is_first = !marker.is_empty() && marker != before;
        before = marker;
        if let Some(opening) = is_first.then(|| opening(text)).flatten() {
            let what = format!("a doc comment opens with \"{opening}\": {}", text.trim());
            found.counted.push(Counted::one("openers", name, file, number, what));
        }
    }
}

/// Splits a line into the marker of its doc comment, empty without one, and the text.
fn doc(line: &str) -> (&str, &str) {
    let markers = ["//!", "///", "/**", "/*!"];
    match markers.iter().find(|marker| line.starts_with(**marker)) {
        Some(_) if line.starts_with("////") || line.starts_with("/***") => ("", line),
        Some(marker) => line.split_at(marker.len()),
        None => ("", line),
    }
}

/// Returns the words with which a text opens, if they are of those.
fn opening(text: &str) -> Option<String> {
    let is_letter = |c: char| c.is_alphanumeric() || c == '\'';
    let words: Vec<String> =
        text.split(|c| !is_letter(c)).filter(|w| !w.is_empty()).map(str::to_lowercase).collect();
    let first = text.split_whitespace().next()?;
    // Code in backticks is a name, not a word; `by-hand` is a noun.
    if !first.starts_with(char::is_alphabetic) || first.contains('-') {
        return None;
    }
    let opens = |opening: &&&str| {
        let mut parts = opening.split(' ').enumerate();
        parts.all(|(at, part)| words.get(at).is_some_and(|word| word == part))
    };
    OPENERS
        .iter()
        .find(opens)
        .or_else(|| DODGES.iter().find(opens))
        .map(|found| (*found).to_owned())
}
