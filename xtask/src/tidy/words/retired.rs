//! The rule for retired words, which identifiers and file names no longer contain.
//!
//! Input: [`RETIRED_WORDS_FILE`], with a word and its replacement in each line. A lower-case word
//! matches a part of any identifier (`told` in `told_by`, `ToldRow` and `is_told`), a capitalized
//! word matches a part of a type name (`Orders`, not `byte_orders`), and a word after `=` matches
//! complete identifiers only. `!CRATE` after the replacement names a crate that may use the word.

use super::super::findings::{Findings, Occurrence};
use super::super::tokens::Token;
use super::super::tree::{File, Tree};
use std::collections::BTreeSet;

/// Path of the file that lists the retired words.
pub(super) const RETIRED_WORDS_FILE: &str = "xtask/retired";

/// A word that identifiers must no longer contain, with its replacement.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(super) struct RetiredWord {
    word: String,
    instead: String,
    /// Names of the crates that may still use the retired word.
    exempt_crates: Vec<String>,
}

/// Parses the list of retired words.
pub(super) fn parse_words(tree: &Tree) -> Vec<RetiredWord> {
    let text = tree.file(RETIRED_WORDS_FILE).map_or("", |file| file.text.as_str());
    let rows = text.lines().filter(|line| !line.starts_with('#') && !line.is_empty());
    rows.map(|line| {
        let (word, rest) = line.split_once(' ').unwrap_or((line, ""));
        let mut parts = rest.split('!').map(str::trim);
        let instead = parts.next().unwrap_or_default().to_owned();
        RetiredWord {
            word: word.to_owned(),
            instead,
            exempt_crates: parts.map(str::to_owned).collect(),
        }
    })
    .collect()
}

/// A counter of identifiers with retired words, which counts each identifier once per crate.
#[derive(Debug, Default)]
pub(super) struct RetiredIdentifierCounter {
    known: BTreeSet<(String, String)>,
}

impl RetiredIdentifierCounter {
    /// Counts the retired words in a file's identifiers and in its name.
    pub(super) fn check(
        &mut self,
        file: &File,
        name: &str,
        tokens: &[Token<'_>],
        words: &[RetiredWord],
        found: &mut Findings,
    ) {
        let path = file.path.rsplit('/').next().unwrap_or_default().trim_end_matches(".rs");
        for word in
            words.iter().filter(|word| !word.exempt_crates.iter().any(|exempt| exempt == name))
        {
            // A file is named after its type, as in `orders.rs`.
            if identifier_parts(path).any(|part| part == word.word.to_lowercase()) {
                let what = format!("the file's name says `{}`; {}", word.word, word.instead);
                let key = format!("{name} {}", word.word);
                found.occurrences.push(Occurrence::new("retired", key, file, 1, what));
            }
        }
        for token in tokens.iter().filter(|token| token.is_identifier()) {
            if !self.known.insert((name.to_owned(), token.text.to_owned())) {
                continue;
            }
            let word = words.iter().find(|word| word.is_in(token.text));
            if let Some(word) =
                word.filter(|word| !word.exempt_crates.iter().any(|exempt| exempt == name))
            {
                let what = format!("`{}` says `{}`; {}", token.text, word.word, word.instead);
                let key = format!("{name} {}", word.word);
                found.occurrences.push(Occurrence::new("retired", key, file, token.line, what));
            }
        }
    }
}

impl RetiredWord {
    /// Returns true if the identifier contains this retired word. The form of the word decides if
    /// it matches whole identifiers, parts of type names, or parts of any identifier.
    fn is_in(&self, identifier: &str) -> bool {
        match self.word.strip_prefix('=') {
            Some(whole) => identifier == whole,
            None if self.word.starts_with(char::is_uppercase) => {
                let is_type = identifier.chars().any(char::is_lowercase);
                is_type && identifier_parts(identifier).any(|part| part == self.word)
            }
            None => identifier_parts(identifier).any(|part| part.to_lowercase() == self.word),
        }
    }
}

/// Splits an identifier at underscores and before capitals.
fn identifier_parts(identifier: &str) -> impl Iterator<Item = &str> {
    let is_constant = !identifier.chars().any(char::is_lowercase);
    identifier.split('_').flat_map(move |part| {
        let mut cuts = vec![0];
        let capitals = part.char_indices().filter(|(at, c)| *at > 0 && c.is_uppercase());
        cuts.extend(capitals.map(|(at, _)| at).filter(|_| !is_constant));
        cuts.push(part.len());
        cuts.windows(2).map(|cut| &part[cut[0]..cut[1]]).collect::<Vec<_>>()
    })
}
