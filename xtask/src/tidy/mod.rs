//! The verb `tidy`, which checks the rules of the tree. A remark that reviewers make twice becomes
//! a rule here.
//!
//! Input: all files under the root. Output: findings, one per line. Rules that the tree does not
//! meet yet are counted, and the counts are compared with ceilings ([`ratchet`]). The tables are in
//! [`rules`]; each rule has a test that plants a violation (`tests.rs`).

mod capabilities;
mod catalog;
mod cycles;
mod dependencies;
mod documents;
mod findings;
mod flaky_tests;
mod layers;
mod links;
mod manifest;
mod modules;
pub(crate) mod ratchet;
mod rules;
pub(crate) mod source;
#[cfg(test)]
pub(crate) mod tests;
mod text;
pub(crate) mod tokens;
pub(crate) mod tree;
mod unsafe_code;
mod words;

use crate::outcome::Outcome;
use findings::Findings;
use std::path::Path;
use tree::Tree;

/// The verb `tidy`: checks all rules, or prints or lowers the ratchets.
pub(crate) fn tidy(root: &Path, arguments: &[String]) -> Outcome {
    let arguments: Vec<&str> = arguments.iter().map(String::as_str).collect();
    match Tree::read(root) {
        Ok(tree) => run(root, &tree, &arguments),
        Err(error) => {
            eprintln!("error: cannot read the tree: {error}");
            Outcome::Failed
        }
    }
}

fn run(root: &Path, tree: &Tree, arguments: &[&str]) -> Outcome {
    let found = check(tree);
    match arguments {
        [] => {}
        ["--ratchet"] => {
            let text = ratchet::lowered_ceilings(tree, &found.occurrences);
            if let Err(error) = std::fs::write(root.join(ratchet::CEILINGS_PATH), text) {
                eprintln!("error: cannot write {}: {error}", ratchet::CEILINGS_PATH);
                return Outcome::Failed;
            }
            return tidy(root, &[]);
        }
        ["--report"] => print!("{}", ratchet::format_report(tree, &found.occurrences)),
        ["--list", rule] => print!("{}", ratchet::list_occurrences(&found.occurrences, rule, "")),
        ["--list", rule, key] => {
            print!("{}", ratchet::list_occurrences(&found.occurrences, rule, key))
        }
        ["--arrows", name] => match layers::dependency_table(tree, name) {
            Some(table) => print!("{table}"),
            None => return Outcome::Usage(format!("no crate is called `{name}`")),
        },
        _ => return Outcome::Usage("`tidy` does not know these arguments".to_owned()),
    }
    if !arguments.is_empty() {
        return Outcome::Success;
    }
    for error in &found.errors {
        println!("{error}");
    }
    println!("tidy: {} wrong, {} files", found.errors.len(), tree.files.len());
    found.errors.is_empty().into()
}

/// The verb `unsafe`: prints the amount of unsafe code per file.
pub(crate) fn print_unsafe_table(root: &Path, _: &[String]) -> Outcome {
    match Tree::read(root) {
        Ok(tree) => {
            print!("{}", unsafe_code::unsafe_code_table(&tree));
            Outcome::Success
        }
        Err(error) => {
            eprintln!("error: cannot read the tree: {error}");
            Outcome::Failed
        }
    }
}

fn check(tree: &Tree) -> Findings {
    let mut found = Findings::default();
    dependencies::check(tree, &mut found);
    unsafe_code::check(tree, &mut found);
    text::check(tree, &mut found);
    flaky_tests::check(tree, &mut found);
    documents::check(tree, &mut found);
    links::check(tree, &mut found);
    catalog::check(tree, &mut found);
    capabilities::check(tree, &mut found);
    layers::check(tree, &mut found);
    words::check(tree, &mut found);
    // This check is the last, because it compares the occurrences found by the other checks with
    // the ceilings.
    ratchet::check(tree, &mut found);
    found
}
