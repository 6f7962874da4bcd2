//! The rule for openings of doc comments: no paragraph begins with a question word or a paraphrase
//! of a question word.

use super::super::findings::{Findings, Occurrence};
use super::super::tree::File;

/// Words with which no paragraph of a doc comment may begin.
pub(super) const FORBIDDEN_OPENERS: &[&str] = &[
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

/// Openings that paraphrase a question word.
const QUESTION_PARAPHRASES: &[&str] = &[
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

/// Counts the paragraphs of a file's doc comments that begin with a question word.
pub(super) fn check(file: &File, name: &str, found: &mut Findings) {
    let mut before = ("", "");
    let mut is_code = false;
    for (number, line) in (1..).zip(file.text.lines()) {
        let (marker, text) = split_doc_marker(line.trim_start());
        let is_other = marker != before.0;
        let is_first = !marker.is_empty() && (is_other || before.1.trim().is_empty());
        before = (marker, text);
        is_code &= !is_other;
        if !marker.is_empty() && text.trim_start().starts_with("```") {
            is_code = !is_code;
        }
        if is_code {
            continue;
        }
        if let Some(opening) = is_first.then(|| forbidden_opening(text)).flatten() {
            let what = format!("a doc comment opens with \"{opening}\": {}", text.trim());
            found.occurrences.push(Occurrence::new("openers", name, file, number, what));
        }
    }
}

/// Splits a line into the marker of a doc comment, empty if there is none, and the text.
fn split_doc_marker(line: &str) -> (&str, &str) {
    let markers = ["//!", "///", "/**", "/*!"];
    match markers.iter().find(|marker| line.starts_with(**marker)) {
        Some(_) if line.starts_with("////") || line.starts_with("/***") => ("", line),
        Some(marker) => line.split_at(marker.len()),
        None => ("", line),
    }
}

/// Returns the forbidden words with which a text begins, or `None` if its opening is allowed.
fn forbidden_opening(text: &str) -> Option<String> {
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
    FORBIDDEN_OPENERS
        .iter()
        .find(opens)
        .or_else(|| QUESTION_PARAPHRASES.iter().find(opens))
        .map(|found| (*found).to_owned())
}
