//! `lines`: the number of lines of product code, by crate.
//!
//! Counts the lines of all `.rs` files under `crates/` that contain more than blanks and comments.
//! Doc comments are comments; a line within a multi-line string is code. Excluded are
//! `crates/testkit`; files in directories named `tests` and files named `tests.rs`; modules, items,
//! statements and fields whose `#[cfg(…)]` is false in the default build (`test`, `loom`, `miri`,
//! `feature = …`); and the files of such modules. The verb fails if the total exceeds the baseline.

use crate::outcome::Outcome;
use crate::tidy::ratchet;
use crate::tidy::source::strip_comments;
use crate::tidy::tokens::{disabled_ranges, tokenize};
use crate::tidy::tree::{File, Tree};
use std::collections::{BTreeMap, BTreeSet};
use std::path::Path;

/// The verb `lines`: prints the number of counted lines in each crate.
pub(crate) fn lines(root: &Path, arguments: &[String]) -> Outcome {
    if !arguments.is_empty() {
        return Outcome::Usage("`lines` takes no arguments".to_owned());
    }
    let tree = match Tree::read(root) {
        Ok(tree) => tree,
        Err(error) => {
            eprintln!("error: cannot read the tree: {error}");
            return Outcome::Failed;
        }
    };
    let counts = counts_by_crate(&tree);
    println!("  files    lines  crate");
    for (name, (files, lines)) in &counts {
        println!("{files:7}  {lines:7}  {name}");
    }
    let sum = |of: fn(&(usize, usize)) -> usize| counts.values().map(of).sum::<usize>();
    let lines = sum(|count| count.1);
    println!("{:7}  {lines:7}  in all", sum(|count| count.0));
    let Some(baseline) = ratchet::product_size_ceiling(&tree) else { return Outcome::Success };
    println!("         {baseline:7}  the most that xtask/ratchets allows");
    (lines <= baseline).into()
}

/// Returns, for each crate, the number of its product files, and the number of lines of code in
/// them.
pub(crate) fn counts_by_crate(tree: &Tree) -> BTreeMap<&str, (usize, usize)> {
    let tests = uncompiled_files(tree);
    let mut counts = BTreeMap::new();
    for file in tree.rust_files().filter(|file| !file.is_test() && !tests.contains(&file.path)) {
        let folder = file.path.strip_prefix("crates/").and_then(|path| path.split_once('/'));
        let Some((name, _)) = folder.filter(|(name, _)| *name != "testkit") else { continue };
        let (files, lines) = counts.entry(name).or_insert((0, 0));
        *files += 1;
        *lines += count_code_lines(file);
    }
    counts
}

/// Returns the number of lines of product code in a file.
fn count_code_lines(file: &File) -> usize {
    let tokens = tokenize(&file.code);
    let mut left_out = BTreeSet::new();
    for gap in disabled_ranges(&tokens) {
        let last = tokens[..gap.end].last().map_or(0, |token| token.line);
        left_out.extend(tokens[gap.start].line..=last);
    }
    let text = strip_comments(&file.text);
    let lines = (1..).zip(text.lines());
    lines.filter(|(number, line)| !line.trim().is_empty() && !left_out.contains(number)).count()
}

/// Returns the paths of the files of modules that the default build does not compile, such as
/// modules for tests.
pub(crate) fn uncompiled_files(tree: &Tree) -> BTreeSet<String> {
    let mut found = BTreeSet::new();
    for file in tree.rust_files() {
        let tokens = tokenize(&file.code);
        for gap in disabled_ranges(&tokens) {
            if let [.., key, name, end] = &tokens[gap]
                && (key.text, end.text) == ("mod", ";")
            {
                let folder = submodule_directory(&file.path);
                let (plain, inner) =
                    (format!("{folder}{}.rs", name.text), format!("{folder}{}/", name.text));
                let below = tree.rust_files().map(|file| &file.path);
                found.extend(below.filter(|p| **p == plain || p.starts_with(&inner)).cloned());
            }
        }
    }
    found
}

/// Returns the directory that contains the submodules of a file: `a/` for `a/mod.rs`, `a/b/` for
/// `a/b.rs`.
pub(crate) fn submodule_directory(path: &str) -> String {
    let (folder, name) = path.rsplit_once('/').unwrap_or(("", path));
    match name.trim_end_matches(".rs") {
        "mod" | "lib" | "main" => format!("{folder}/"),
        stem => format!("{folder}/{stem}/"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::tidy::tests::PlantedTree;

    #[test]
    fn code_is_counted_without_comments_and_tests() {
        let tree = PlantedTree::new_clean();
        let text = "//! A.\n\n/// B.\nfn f() {\n    /* c\n    d */\n    g(\"e\n\n  f\");\n}\n\
                    #[cfg(test)]\nmod models;\n#[cfg(test)]\nmod tests {\n    fn x() {}\n}\n";
        tree.write_file("crates/abi/src/a.rs", text.as_bytes());
        for left_out in ["src/a/models.rs", "src/a/models/b.rs", "src/tests.rs", "tests/c.rs"] {
            tree.write_file(&format!("crates/abi/{left_out}"), b"//! C.\nfn f() {}\n");
        }
        tree.write_file("crates/testkit/src/lib.rs", b"fn f() {}\n");
        // The lines are `fn`, `g(`, `f")`, `}`, and the line of lib.rs that forbids unsafe code.
        assert_eq!(counts_by_crate(&tree.read_tree())["abi"], (2, 5));
        assert!(!counts_by_crate(&tree.read_tree()).contains_key("testkit"));
    }
}
