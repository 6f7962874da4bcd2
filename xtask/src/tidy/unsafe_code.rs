//! The rules for unsafe code: the attribute in every crate root, the files that may contain unsafe
//! code, and the ratchet for the amount in each file. Also contains the rule for crates without
//! I/O.

use super::findings::{Finding, Findings, Occurrence};
use super::rules::{self, UnsafePolicy, WorkspaceCrate};
use super::source::{count_word, has_word, lines_outside_tests};
use super::tree::{File, Tree};
use std::fmt::Write as _;

const UNSAFE_KEYWORD: &str = "unsafe";

pub(super) fn check(tree: &Tree, found: &mut Findings) {
    for (folder, manifest) in tree.manifests() {
        if let Some(krate) = rules::find_crate(&folder) {
            let base = manifest.path.trim_end_matches("Cargo.toml");
            check_crate_roots(tree, krate, base, found);
            check_unsafe_files(tree, krate, base, found);
            if rules::NO_IO_CRATES.contains(&krate.name) {
                check_no_io(tree, base, found);
            }
        }
    }
    count_unsafe(tree, found);
}

/// Checks that the crate in the directory `base` does no I/O and reads no clock.
fn check_no_io(tree: &Tree, base: &str, found: &mut Findings) {
    let source = format!("{base}src/");
    for file in tree.rust_files().filter(|f| f.path.starts_with(&source) && !f.is_test()) {
        for (number, line) in lines_outside_tests(&file.code) {
            let module = rules::IO_MODULES.iter().find(|module| names_std_module(line, module));
            let word = rules::IO_NAMES.iter().find(|word| has_word(line, word));
            if let Some(word) = module.or(word) {
                let what = format!("`{word}` in a crate that does no I/O and knows no clock");
                found.push(Finding::at_line("silence", file, number, what));
            }
        }
    }
}

/// Returns true if the line names the module of std, as `std::fs` or in `use std::{fmt, fs}`.
fn names_std_module(line: &str, module: &str) -> bool {
    let Some((_, rest)) = line.split_once("std::") else { return false };
    match rest.strip_prefix('{') {
        Some(list) => has_word(list, module),
        None => {
            let end = rest.find(|c: char| !c.is_ascii_alphanumeric() && c != '_');
            &rest[..end.unwrap_or(rest.len())] == module
        }
    }
}

/// Checks the roots of the crate in the directory `base`. Each root must have the `unsafe_code`
/// attribute that the crate's row in the table of crates requires.
fn check_crate_roots(tree: &Tree, krate: &WorkspaceCrate, base: &str, found: &mut Findings) {
    let line = match krate.unsafe_code {
        UnsafePolicy::Forbid => "#![forbid(unsafe_code)]",
        UnsafePolicy::Files(_) => "#![deny(unsafe_code)]",
        UnsafePolicy::Anywhere => return,
    };
    for file in tree.rust_files() {
        let Some(place) = file.path.strip_prefix(base).and_then(|p| p.strip_prefix("src/")) else {
            continue;
        };
        let is_root = matches!(place, "lib.rs" | "main.rs")
            || place.strip_prefix("bin/").is_some_and(|name| !name.contains('/'));
        if is_root && !file.code.lines().any(|l| l.trim() == line) {
            found.push(Finding::in_file("fences", file, format!("the root does not say `{line}`")));
        }
    }
}

/// Checks that no file except the allowed ones contains `unsafe`. (Tests outside `src` are separate
/// crates, to which the attribute in the root does not apply.)
fn check_unsafe_files(tree: &Tree, krate: &WorkspaceCrate, base: &str, found: &mut Findings) {
    let allowed = |file: &File| match krate.unsafe_code {
        UnsafePolicy::Anywhere => true,
        UnsafePolicy::Forbid => false,
        UnsafePolicy::Files(files) => {
            let place = file.path.strip_prefix(base).and_then(|p| p.strip_prefix("src/"));
            files.iter().any(|entry| match entry.ends_with('/') {
                true => place.is_some_and(|p| p.starts_with(entry)),
                false => place == Some(entry),
            })
        }
    };
    let mine = |file: &&File| file.path.starts_with(base) && !allowed(file);
    for file in tree.rust_files().filter(mine) {
        for (number, line) in file.code.lines().enumerate() {
            if has_word(line, UNSAFE_KEYWORD) {
                let what = format!("unsafe code outside the fence of `{}`", krate.name);
                found.push(Finding::at_line("fences", file, number + 1, what));
            }
        }
    }
}

/// Counts the unsafe code in each file.
fn count_unsafe(tree: &Tree, found: &mut Findings) {
    for file in tree.rust_files() {
        let number = count_word(&file.code, UNSAFE_KEYWORD);
        if number > 0 {
            let what = format!("{number} times `{UNSAFE_KEYWORD}`");
            let (key, path) = (file.path.clone(), file.path.clone());
            found.occurrences.push(Occurrence {
                rule: "unsafe",
                key,
                path,
                line: None,
                weight: number,
                what,
            });
        }
    }
}

/// Returns a table of the amount of unsafe code per file.
pub(super) fn unsafe_code_table(tree: &Tree) -> String {
    let mut text = String::from("blocks  other  of them tests  file\n");
    let mut sum = 0;
    for file in tree.rust_files() {
        let all = count_word(&file.code, UNSAFE_KEYWORD);
        if all == 0 {
            continue;
        }
        let flat = file.code.split_whitespace().collect::<Vec<_>>().join(" ");
        let blocks = flat.matches("unsafe {").count();
        let tests = if file.is_test() { "all" } else { "" };
        sum += all;
        let _ = writeln!(text, "{blocks:6}  {:5}  {tests:>13}  {}", all - blocks, file.path);
    }
    let _ = writeln!(text, "{sum} in all; other: functions, impls, traits, extern blocks");
    text
}
