//! The rule for names of types: each is unique in its crate, different from the types of std, and
//! specific.

use super::super::findings::{Findings, Occurrence};
use super::super::rules::ALLOWED_SAME_NAME_TYPES;
use super::super::tokens::{Token, index_after_closing_bracket, product_tokens};
use super::super::tree::File;
use std::collections::BTreeMap;

/// Names of types of std. A type of the workspace with such a name would be confusing.
const STD_TYPES: &[&str] = &[
    "Arc", "Box", "BTreeMap", "Cell", "Cow", "Duration", "Future", "HashMap", "HashSet", "Instant",
    "Iterator", "Mutex", "Option", "OsString", "Path", "PathBuf", "Pin", "Range", "Rc", "RefCell",
    "String", "Vec", "Waker", "Weak",
];

/// Names that are too vague without a qualifier.
const VAGUE_NAMES: &[&str] = &[
    "Found", "Kind", "Line", "Piece", "Place", "Seen", "State", "Told", "Way", "What", "Which",
    "Who",
];

/// The places at which types are defined, by crate and type name.
#[derive(Debug, Default)]
pub(super) struct TypeDefinitions {
    places: BTreeMap<(String, String), Vec<(String, usize)>>,
}

impl TypeDefinitions {
    /// Collects the type definitions of a product file.
    pub(super) fn add_file(&mut self, file: &File, name: &str, tokens: &[Token<'_>]) {
        let mut found = Vec::new();
        collect_definitions(&product_tokens(tokens), &mut found);
        for (type_name, line) in found {
            let key = (name.to_owned(), type_name);
            self.places.entry(key).or_default().push((file.path.clone(), line));
        }
    }

    /// Counts the types that share their name with another type, that have the name of a std type,
    /// or that have a vague name.
    pub(super) fn check(&self, found: &mut Findings) {
        for ((name, type_name), places) in &self.places {
            let mut count = |rule, (path, line): &(String, usize), what| {
                let (path, line) = (path.clone(), Some(*line));
                found.occurrences.push(Occurrence {
                    rule,
                    key: name.clone(),
                    path,
                    line,
                    weight: 1,
                    what,
                });
            };
            let is_agreed = ALLOWED_SAME_NAME_TYPES
                .iter()
                .any(|(c, t, _)| (c, t) == (&name.as_str(), &type_name.as_str()));
            for (path, line) in places.iter().skip(1).filter(|_| !is_agreed) {
                let first = &places[0];
                let what = format!("`{type_name}` is also a type at {}:{}", first.0, first.1);
                count("doubles", &(path.clone(), *line), what);
            }
            let why = match type_name.as_str() {
                known if STD_TYPES.contains(&known) => "is a name of the standard library",
                known if VAGUE_NAMES.contains(&known) => "does not say of what it is",
                _ => continue,
            };
            for place in places {
                count("types", place, format!("`{type_name}` {why}"));
            }
        }
    }
}

/// Adds the names and lines of all type definitions in the tokens to `found`, except associated
/// types.
fn collect_definitions(tokens: &[Token<'_>], found: &mut Vec<(String, usize)>) {
    let text = |at: usize| tokens.get(at).map_or("", |token| token.text);
    let mut at = 0;
    let mut is_associated = false;
    while at < tokens.len() {
        let begins = at == 0 || ["{", "}", ";", "]", ")", "pub", "unsafe"].contains(&text(at - 1));
        match text(at) {
            "impl" if begins => is_associated = true,
            "struct" | "enum" | "union" | "trait" | "type" if begins => {
                let name = tokens.get(at + 1).filter(|name| name.is_identifier());
                if let Some(name) = name.filter(|name| name.text.starts_with(char::is_uppercase)) {
                    found.push((name.text.to_owned(), name.line));
                }
                is_associated = text(at) == "trait";
            }
            "{" => {
                let end = index_after_closing_bracket(tokens, at);
                let inner = &tokens[at + 1..end - 1];
                match is_associated {
                    true => collect_in_bodies(inner, found),
                    false => collect_definitions(inner, found),
                }
                is_associated = false;
                at = end;
                continue;
            }
            ";" => is_associated = false,
            _ => {}
        }
        at += 1;
    }
}

/// Adds the type definitions inside function bodies to `found`. `tokens` is the body of a trait or
/// an implementation.
fn collect_in_bodies(tokens: &[Token<'_>], found: &mut Vec<(String, usize)>) {
    let mut at = 0;
    while at < tokens.len() {
        if tokens[at].text == "{" {
            let end = index_after_closing_bracket(tokens, at);
            collect_definitions(&tokens[at + 1..end - 1], found);
            at = end;
        } else {
            at += 1;
        }
    }
}
