//! Scanner for the tokens of one module: its items, submodules, `use` trees, and the paths in its
//! code.

use super::super::tokens::{Token, index_after_closing_bracket};

/// The items, submodules, imports and paths in the code of one module.
#[derive(Debug, Default)]
pub(super) struct ModuleContents {
    /// Names of the items that the module defines, including those in macro calls.
    pub(super) items: Vec<String>,
    /// Submodules defined in the same file, in blocks `mod name { … }`.
    pub(super) inline: Vec<(String, Self)>,
    /// Names of the submodules declared with `mod name;`, which are in separate files.
    pub(super) files: Vec<String>,
    pub(super) imports: Vec<Import>,
    pub(super) references: Vec<CodePath>,
}

/// An imported name: one leaf of a `use` tree.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(super) struct Import {
    pub(super) path: Vec<String>,
    /// The name that the import defines in the module; `*` for all names in `path`.
    pub(super) name: String,
    pub(super) line: usize,
    /// True if the import is a re-export (`pub use`).
    pub(super) is_public: bool,
}

/// A path such as `crate::a::B` in Rust code, with its line.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(super) struct CodePath {
    pub(super) path: Vec<String>,
    pub(super) line: usize,
    /// True if the path in the code is part of a `use` declaration.
    pub(super) is_use: bool,
}

const ITEM_KEYWORDS: &[&str] =
    &["struct", "enum", "union", "trait", "type", "fn", "const", "static", "macro_rules"];

/// Scans the tokens of one module, including those of modules defined in the same file.
pub(super) fn scan_module(tokens: &[Token<'_>]) -> ModuleContents {
    let mut contents = ModuleContents::default();
    scan_level(tokens, true, &mut contents);
    contents
}

/// Scans one level of brackets. `is_module` is true if items found at this level belong to the
/// module.
fn scan_level(tokens: &[Token<'_>], is_module: bool, contents: &mut ModuleContents) {
    let text = |at: usize| tokens.get(at).map_or("", |token| token.text);
    let mut at = 0;
    let mut is_public = false;
    while at < tokens.len() {
        match text(at) {
            "pub" => {
                is_public = true;
                at += 1;
                if text(at) == "(" {
                    at = index_after_closing_bracket(tokens, at);
                }
                continue;
            }
            "use" if text(at + 1) != "<" => {
                let end = at + tokens[at..].iter().take_while(|token| token.text != ";").count();
                // A leading `::` names another crate.
                if text(at + 1) != "::" {
                    scan_use_tree(&tokens[at + 1..end], &[], is_public, &mut contents.imports);
                }
                at = end + 1;
            }
            "mod" if text(at + 2) == ";" => {
                contents.files.push(text(at + 1).to_owned());
                at += 3;
            }
            "mod" if text(at + 2) == "{" => {
                let end = index_after_closing_bracket(tokens, at + 2);
                let inner = scan_module(&tokens[at + 3..end - 1]);
                contents.inline.push((text(at + 1).to_owned(), inner));
                at = end;
            }
            "{" | "(" | "[" => {
                let end = index_after_closing_bracket(tokens, at);
                let is_macro = at > 1 && (text(at - 1) == "!" || text(at - 2) == "!");
                scan_level(&tokens[at + 1..end - 1], is_module && is_macro, contents);
                at = end;
            }
            word if is_module && ITEM_KEYWORDS.contains(&word) => {
                at += 1;
                while ["!", "mut"].contains(&text(at)) {
                    at += 1;
                }
                if tokens.get(at).is_some_and(|name| name.is_identifier())
                    && !ITEM_KEYWORDS.contains(&text(at))
                {
                    contents.items.push(text(at).to_owned());
                    at += 1;
                }
            }
            _ if tokens[at].is_identifier() => at = scan_path(tokens, at, contents),
            _ => at += 1,
        }
        is_public = false;
    }
}

/// Scans the path that begins at `at`; returns the index after it.
fn scan_path(tokens: &[Token<'_>], at: usize, contents: &mut ModuleContents) -> usize {
    let text = |at: usize| tokens.get(at).map_or("", |token| token.text);
    let is_field = at > 0 && text(at - 1) == "." && (at < 2 || text(at - 2) != ".");
    let is_new = at > 0 && ["fn", "let", "::"].contains(&text(at - 1));
    let line = tokens[at].line;
    let mut path = vec![text(at).to_owned()];
    let mut next = at + 1;
    while text(next) == "::" && tokens.get(next + 1).is_some_and(|name| name.is_identifier()) {
        path.push(text(next + 1).to_owned());
        next += 2;
    }
    if !is_field && !is_new && may_name_item(&path, text(next)) {
        contents.references.push(CodePath { path, line, is_use: false });
    }
    next
}

/// Returns true if the path may name an item: it has several segments, or one segment that cannot
/// be a variable.
fn may_name_item(path: &[String], next: &str) -> bool {
    let is_upper = path[0].starts_with(char::is_uppercase);
    path.len() > 1 || is_upper && path[0] != "Self" || ["(", "!"].contains(&next)
}

/// Scans a `use` tree whose path begins with `base`, and adds its leaves to `imports`.
fn scan_use_tree(
    tokens: &[Token<'_>],
    base: &[String],
    is_public: bool,
    imports: &mut Vec<Import>,
) {
    let text = |at: usize| tokens.get(at).map_or("", |token| token.text);
    let mut at = 0;
    while at < tokens.len() {
        let mut path = base.to_vec();
        let line = tokens[at].line;
        let mut name = None;
        while at < tokens.len() && text(at) != "," {
            match text(at) {
                "::" => at += 1,
                "{" => {
                    let end = index_after_closing_bracket(tokens, at);
                    scan_use_tree(&tokens[at + 1..end - 1], &path, is_public, imports);
                    name = Some(String::new());
                    at = end;
                }
                "*" => {
                    name = Some("*".to_owned());
                    at += 1;
                }
                "as" => {
                    name = Some(text(at + 1).to_owned());
                    at += 2;
                }
                // `a::{self}` is `a`.
                "self" if !path.is_empty() => at += 1,
                word => {
                    path.push(word.to_owned());
                    at += 1;
                }
            }
        }
        at += 1;
        let name = name.or_else(|| path.last().cloned()).unwrap_or_default();
        if !name.is_empty() {
            imports.push(Import { path, name, line, is_public });
        }
    }
}
