//! `tidy`: the rules of the tree, checked. Whatever is said twice in a review becomes a rule here.
//!
//! In: all files under the root. Out: findings, one a line, and questions, which are no errors.
//! The tables are in [`rules`]; each rule has a test that plants the mistake (`tests.rs`).

mod arrows;
mod capabilities;
mod catalog;
mod chance;
mod documents;
mod fences;
mod manifest;
mod rules;
mod source;
#[cfg(test)]
mod tests;
mod text;
mod tree;

use crate::Outcome;
use std::fmt;
use std::path::Path;
use tree::{File, Tree};

/// One thing that is not as it should be.
#[derive(Clone, PartialEq, Eq, Debug)]
struct Finding {
    rule: &'static str,
    path: String,
    line: Option<usize>,
    what: String,
}

impl Finding {
    fn file(rule: &'static str, file: &File, what: impl Into<String>) -> Self {
        Self { rule, path: file.path.clone(), line: None, what: what.into() }
    }

    fn line(rule: &'static str, file: &File, line: usize, what: impl Into<String>) -> Self {
        Self { line: Some(line), ..Self::file(rule, file, what) }
    }
}

impl fmt::Display for Finding {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.line {
            Some(line) => write!(f, "{}:{line}: {}: {}", self.path, self.rule, self.what),
            None => write!(f, "{}: {}: {}", self.path, self.rule, self.what),
        }
    }
}

/// What was found.
#[derive(Debug, Default)]
struct Findings {
    errors: Vec<Finding>,
    questions: Vec<Finding>,
}

impl Findings {
    fn push(&mut self, finding: Finding) {
        self.errors.push(finding);
    }

    fn question(&mut self, finding: Finding) {
        self.questions.push(finding);
    }
}

/// The verb `tidy`.
pub(crate) fn tidy(root: &Path, arguments: &[String]) -> Outcome {
    match arguments {
        [] => {}
        [ratchet] if ratchet == "--ratchet" => {
            let written = Tree::read(root).and_then(|tree| {
                std::fs::write(root.join(fences::CEILINGS), fences::lowered(&tree))
            });
            if let Err(error) = written {
                eprintln!("error: cannot write {}: {error}", fences::CEILINGS);
                return Outcome::Failed;
            }
        }
        _ => return Outcome::Usage("`tidy` knows --ratchet alone".to_owned()),
    }
    let tree = match Tree::read(root) {
        Ok(tree) => tree,
        Err(error) => {
            eprintln!("error: cannot read the tree: {error}");
            return Outcome::Failed;
        }
    };
    let found = check(&tree);
    for question in &found.questions {
        println!("? {question}");
    }
    for error in &found.errors {
        println!("{error}");
    }
    let (files, questions) = (tree.files.len(), found.questions.len());
    println!("tidy: {} wrong, {questions} questions, {files} files", found.errors.len());
    found.errors.is_empty().into()
}

/// The verb `unsafe`.
pub(crate) fn unsafe_table(root: &Path, _: &[String]) -> Outcome {
    match Tree::read(root) {
        Ok(tree) => {
            print!("{}", fences::table(&tree));
            Outcome::Well
        }
        Err(error) => {
            eprintln!("error: cannot read the tree: {error}");
            Outcome::Failed
        }
    }
}

fn check(tree: &Tree) -> Findings {
    let mut found = Findings::default();
    arrows::check(tree, &mut found);
    fences::check(tree, &mut found);
    text::check(tree, &mut found);
    chance::check(tree, &mut found);
    documents::check(tree, &mut found);
    catalog::check(tree, &mut found);
    capabilities::check(tree, &mut found);
    found
}
