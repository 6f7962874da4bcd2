//! Where unsafe code stands: the line in every crate root, the files that may, and the ceilings
//! that only go down.

use super::rules::{self, Fence, Room};
use super::source::{count_word, has_word, without_tests};
use super::tree::{File, Tree};
use super::{Finding, Findings};
use std::collections::BTreeMap;
use std::fmt::Write as _;

/// The file of the ceilings: one `PATH COUNT` a line.
pub(super) const CEILINGS: &str = "xtask/unsafe.ceilings";

const WORD: &str = "unsafe";

pub(super) fn check(tree: &Tree, found: &mut Findings) {
    for (folder, manifest) in tree.manifests() {
        if let Some(room) = rules::named(&folder) {
            let base = manifest.path.trim_end_matches("Cargo.toml");
            roots(tree, room, base, found);
            inside(tree, room, base, found);
            if rules::SILENT.contains(&room.name) {
                silent(tree, base, found);
            }
        }
    }
    ceilings(tree, found);
}

/// The crate reaches nothing of the world.
fn silent(tree: &Tree, base: &str, found: &mut Findings) {
    let source = format!("{base}src/");
    for file in tree.rust().filter(|f| f.path.starts_with(&source) && !f.is_test()) {
        for (number, line) in without_tests(&file.code) {
            let module = rules::WORLD.iter().find(|module| takes_module(line, module));
            let word = rules::WORLD_WORDS.iter().find(|word| has_word(line, word));
            if let Some(word) = module.or(word) {
                let what = format!("`{word}` in a crate that does no I/O and knows no clock");
                found.push(Finding::line("silence", file, number, what));
            }
        }
    }
}

/// `std::fs`, or `use std::{fmt, fs}`.
fn takes_module(line: &str, module: &str) -> bool {
    let Some((_, rest)) = line.split_once("std::") else { return false };
    match rest.strip_prefix('{') {
        Some(list) => has_word(list, module),
        None => {
            let end = rest.find(|c: char| !c.is_ascii_alphanumeric() && c != '_');
            &rest[..end.unwrap_or(rest.len())] == module
        }
    }
}

/// The roots of the crate say what may be in it.
fn roots(tree: &Tree, room: &Room, base: &str, found: &mut Findings) {
    let line = match room.fence {
        Fence::Forbid => "#![forbid(unsafe_code)]",
        Fence::Files(_) => "#![deny(unsafe_code)]",
        Fence::Open => return,
    };
    for file in tree.rust() {
        let Some(place) = file.path.strip_prefix(base).and_then(|p| p.strip_prefix("src/")) else {
            continue;
        };
        let is_root = matches!(place, "lib.rs" | "main.rs")
            || place.strip_prefix("bin/").is_some_and(|name| !name.contains('/'));
        if is_root && !file.code.lines().any(|l| l.trim() == line) {
            found.push(Finding::file("fences", file, format!("the root does not say `{line}`")));
        }
    }
}

/// Nothing outside the fence says the word. (Tests beside `src` are crates of their own, which the
/// line in the root does not reach.)
fn inside(tree: &Tree, room: &Room, base: &str, found: &mut Findings) {
    let allowed = |file: &File| match room.fence {
        Fence::Open => true,
        Fence::Forbid => false,
        Fence::Files(files) => {
            let place = file.path.strip_prefix(base).and_then(|p| p.strip_prefix("src/"));
            files.iter().any(|entry| match entry.ends_with('/') {
                true => place.is_some_and(|p| p.starts_with(entry)),
                false => place == Some(entry),
            })
        }
    };
    let mine = |file: &&File| file.path.starts_with(base) && !allowed(file);
    for file in tree.rust().filter(mine) {
        for (number, line) in file.code.lines().enumerate() {
            if has_word(line, WORD) {
                let what = format!("unsafe code outside the fence of `{}`", room.name);
                found.push(Finding::line("fences", file, number + 1, what));
            }
        }
    }
}

/// How much unsafe code each file has.
fn counts(tree: &Tree) -> BTreeMap<&str, usize> {
    tree.rust()
        .map(|file| (file.path.as_str(), count_word(&file.code, WORD)))
        .filter(|(_, count)| *count > 0)
        .collect()
}

fn ceilings(tree: &Tree, found: &mut Findings) {
    let known = known(tree);
    let counts = counts(tree);
    for (path, count) in &counts {
        let what = match known.get(*path) {
            Some(ceiling) if count <= ceiling => continue,
            Some(ceiling) => format!("{count} times unsafe, where the ceiling is {ceiling}"),
            None => format!("{count} times unsafe, and no ceiling; write one into {CEILINGS}"),
        };
        found.push(Finding { rule: "ceilings", path: (*path).to_owned(), line: None, what });
    }
    for (path, ceiling) in known {
        let count = counts.get(path).copied().unwrap_or(0);
        if count < ceiling {
            let what = format!("the ceiling is {ceiling}, the file has {count}: lower it");
            found.question(Finding { rule: "ceilings", path: path.to_owned(), line: None, what });
        }
    }
}

fn known(tree: &Tree) -> BTreeMap<&str, usize> {
    let text = tree.file(CEILINGS).map_or("", |file| file.text.as_str());
    let rows = text.lines().filter(|line| !line.starts_with('#'));
    rows.filter_map(|line| line.rsplit_once(' '))
        .filter_map(|(path, count)| Some((path.trim(), count.parse().ok()?)))
        .collect()
}

/// The text of the ceilings as low as they can be: what is below its ceiling pulls it down, what is
/// gone goes. A file without a ceiling gets one; a file above its ceiling keeps it, and stays an
/// error.
pub(super) fn lowered(tree: &Tree) -> String {
    let known = known(tree);
    let mut text = String::from(
        "# How often each file may say unsafe. `cargo xtask tidy --ratchet` lowers the numbers;\n\
         # raising one is done by hand, with the reason in the commit message.\n",
    );
    for (path, count) in counts(tree) {
        let ceiling = known.get(path).map_or(count, |ceiling| count.min(*ceiling));
        // Writing to a string does not fail.
        let _ = writeln!(text, "{path} {ceiling}");
    }
    text
}

/// The table of unsafe code for people.
pub(super) fn table(tree: &Tree) -> String {
    let mut text = String::from("blocks  other  of them tests  file\n");
    let mut sum = 0;
    for file in tree.rust() {
        let all = count_word(&file.code, WORD);
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
