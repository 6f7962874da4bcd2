//! The rules that the catalog of filters, sources and sinks is complete, and that every example has
//! a comment.

use super::findings::{Finding, Findings};
use super::tree::Tree;

/// The directories of filters, sources and sinks, each with the list that must name its entries.
const CATALOG_LISTS: &[(&str, &str)] = &[
    ("crates/filter/src/", "crates/filter/src/catalog.rs"),
    ("crates/endpoint/src/", "crates/endpoint/src/catalog.rs"),
];

pub(super) fn check(tree: &Tree, found: &mut Findings) {
    for (folder, list) in CATALOG_LISTS {
        let list_code = tree.file(list).map_or("", |file| file.code.as_str());
        for file in
            tree.rust_files().filter(|file| file.path.starts_with(folder) && !file.is_test())
        {
            for (number, name) in description_constants(&file.code) {
                let module = module_name(&file.path);
                let named = [name, "ENTRY"].map(|name| format!("{module}::{name}"));
                if !named.iter().any(|named| list_code.contains(named)) {
                    let what = format!("`{module}::{name}` is not in {list}");
                    found.push(Finding::at_line("catalog", file, number, what));
                }
            }
        }
    }
    check_examples(tree, found);
}

/// Returns the constants of type `Description`, with their lines.
fn description_constants(code: &str) -> impl Iterator<Item = (usize, &str)> {
    code.lines().enumerate().filter_map(|(number, line)| {
        let rest = line.trim_start().strip_prefix("pub const ")?;
        let (name, kind) = rest.split_once(':')?;
        let kind = kind.trim_start();
        kind.starts_with("Description ").then_some((number + 1, name.trim()))
    })
}

/// Returns the module name of a file: the file's name, or the directory's name for `mod.rs`.
fn module_name(path: &str) -> &str {
    let path = path.trim_end_matches(".rs").trim_end_matches("/mod");
    path.rsplit_once('/').map_or(path, |(_, last)| last)
}

/// Checks that each example file explains its request in a comment. (`cargo xtask test` checks that
/// the request is accepted.)
fn check_examples(tree: &Tree, found: &mut Findings) {
    for file in tree.files.iter().filter(|file| file.has_extension("pipe")) {
        if !file.text.starts_with("# ") {
            let what = "the first line is not a comment: say what the example shows";
            found.push(Finding::at_line("examples", file, 1, what));
        }
        let shows = |line: &str| !line.trim().is_empty() && !line.trim_start().starts_with('#');
        if !file.text.lines().any(shows) {
            found.push(Finding::in_file("examples", file, "there is no request in it"));
        }
    }
}
