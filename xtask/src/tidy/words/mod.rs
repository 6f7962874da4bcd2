//! The rules for words: openings of doc comments, and names of types, identifiers, files and tests.
//!
//! Input: all Rust files, including tests. Output: the occurrences that count against the ratchets
//! `openers`, `doubles`, `types`, `retired` and `tests`, by crate.

mod docs;
mod retired;
mod test_names;
mod types;

use super::findings::Findings;
use super::tokens::tokenize;
use super::tree::{Tree, crate_of_path};

/// Counts, in all Rust files, the words and names that break a rule.
pub(super) fn check(tree: &Tree, found: &mut Findings) {
    let retired = retired::parse_words(tree);
    let test_files = crate::lines::uncompiled_files(tree);
    let crates = tree.crates();
    let mut types = types::TypeDefinitions::default();
    let mut identifiers = retired::RetiredIdentifierCounter::default();
    for file in tree.rust_files() {
        let name = crate_of_path(&crates, &file.path);
        let tokens = tokenize(&file.code);
        docs::check(file, name, found);
        test_names::check(file, name, &tokens, found);
        identifiers.check(file, name, &tokens, &retired, found);
        if !file.is_test() && !test_files.contains(&file.path) {
            types.add_file(file, name, &tokens);
        }
    }
    types.check(found);
}
