//! The rules for references in documents: each path in backticks and each named page of the book
//! must exist, and the indexes of the book must list all pages.

use super::capabilities::CAPABILITIES_PAGE;
use super::findings::{Finding, Findings};
use super::tree::{File, Tree};

/// The documents in which all paths in backticks are checked. In other documents, only paths that
/// begin with `crates/` or `xtask/` are checked, because the others may be paths of the user.
const CHECKED_DOCUMENTS: &[&str] = &["README.md", "ARCHITECTURE.md", "CONTRIBUTING.md"];
const DECISIONS_DIRECTORY: &str = "docs/book/decisions/";
const BOOK_DIRECTORY: &str = "docs/book/";

pub(super) fn check(tree: &Tree, found: &mut Findings) {
    // The paths in this page have a rule of their own.
    let pages = tree.files.iter().filter(|file| file.path != CAPABILITIES_PAGE);
    for file in pages.filter(|file| file.has_extension("md")) {
        let is_of_source = |path: &str| path.starts_with("crates/") || path.starts_with("xtask/");
        let checks_all = CHECKED_DOCUMENTS.contains(&file.path.as_str());
        for (number, line) in prose_lines(&file.text) {
            check_quoted_paths(tree, file, number, line, found, |path| {
                checks_all || is_of_source(path)
            });
        }
    }
    for file in &tree.files {
        // The tests of this program plant names of pages that do not exist.
        if file.is_handwritten() && !file.path.starts_with("xtask/") {
            check_named_pages(tree, file, found);
        }
    }
    check_page_index(tree, DECISIONS_DIRECTORY, "README.md", found);
    check_page_index(tree, BOOK_DIRECTORY, "SUMMARY.md", found);
}

/// Returns the lines outside fenced code blocks, with their line numbers.
pub(super) fn prose_lines(text: &str) -> impl Iterator<Item = (usize, &str)> {
    let mut fenced = false;
    text.lines().enumerate().filter_map(move |(number, line)| {
        let fence = line.trim_start().starts_with("```");
        fenced ^= fence;
        (!fenced && !fence).then_some((number + 1, line))
    })
}

/// Checks that the paths in backticks in a line exist, if `is_checked` returns true for them.
fn check_quoted_paths(
    tree: &Tree,
    file: &File,
    number: usize,
    line: &str,
    found: &mut Findings,
    is_checked: impl Fn(&str) -> bool,
) {
    let spans = line.split('`').skip(1).step_by(2);
    for span in spans.filter(|span| is_path(tree, span) && is_checked(span)) {
        for path in expand_braces(span) {
            // The prefix `crates/` may be left out.
            if !tree.has_path(&path) && !tree.has_path(&format!("crates/{path}")) {
                let what = format!("`{path}` does not exist");
                found.push(Finding::at_line("paths", file, number, what));
            }
        }
    }
}

/// Returns true if a text in backticks is a path: it begins with a directory of the root or of
/// `crates`, or ends in an extension that the tree uses. A name without a directory must also begin
/// with a capital (`README.md`). Patterns and placeholders are not paths.
fn is_path(tree: &Tree, span: &str) -> bool {
    let plain = |c: char| c.is_ascii_alphanumeric() || "._-/{},".contains(c);
    if !span.chars().all(plain) || span.starts_with(['.', '/']) && !span.starts_with(".c") {
        return false;
    }
    let ends = [".rs", ".md", ".toml", ".pipe"].iter().any(|end| span.ends_with(end));
    let Some((first, _)) = span.split_once('/') else {
        return ends && span.chars().next().is_some_and(char::is_uppercase);
    };
    let known = ["docs", "crates", "examples", "xtask", "tests", "bench", ".ci", ".cargo"];
    ends || known.contains(&first) || tree.has_path(&format!("crates/{first}"))
}

/// Expands braces: `a/{b,c}.rs` becomes `a/b.rs` and `a/c.rs`.
fn expand_braces(span: &str) -> Vec<String> {
    let parts = span.split_once('{').and_then(|(head, rest)| {
        let (list, tail) = rest.split_once('}')?;
        Some(list.split(',').map(|part| format!("{head}{}{tail}", part.trim())).collect())
    });
    parts.unwrap_or_else(|| vec![span.to_owned()])
}

/// Checks that every page of the book that is named in a file exists.
fn check_named_pages(tree: &Tree, file: &File, found: &mut Findings) {
    for (number, line) in file.text.lines().enumerate() {
        for (at, _) in line.match_indices(BOOK_DIRECTORY) {
            let rest = &line[at..];
            let plain = |c: char| c.is_ascii_alphanumeric() || "._-/".contains(c);
            let end = rest.find(|c| !plain(c)).unwrap_or(rest.len());
            let page = rest[..end].trim_end_matches('.');
            if page.ends_with(".md") && !tree.has_path(page) {
                let what = format!("the page `{page}` does not exist");
                found.push(Finding::at_line("paths", file, number + 1, what));
            }
        }
    }
}

/// Checks that the index of a directory lists every page in the directory, and that the index of
/// the book lists every page of the book.
fn check_page_index(tree: &Tree, folder: &str, index: &str, found: &mut Findings) {
    let list = tree.file(&format!("{folder}{index}"));
    for file in tree.files.iter().filter(|file| file.has_extension("md")) {
        let Some(name) = file.path.strip_prefix(folder) else { continue };
        let listed = list.is_some_and(|list| list.text.contains(&format!("({name})")));
        let nested = folder != BOOK_DIRECTORY && name.contains('/');
        if !nested && name != index && !listed {
            let what = format!("{folder}{index} does not list this page");
            found.push(Finding::in_file("index", file, what));
        }
    }
}
