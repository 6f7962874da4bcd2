//! Tests that compare shell sessions with transcripts, which contain commands, their output, and
//! the exit status if it is not 0.
//!
//! A line that starts with `$ ` is a command, which `sh` runs in a directory with `examples`. The
//! lines up to the next command are the expected output on both streams. With `UPDATE=1`, the tests
//! rewrite the transcripts.

#![allow(clippy::unwrap_used, reason = "a test may end by a panic")]

mod common;

use common::Folder;
use std::fmt::Write as _;
use std::path::Path;

/// Runs a shell command. Returns its output on both streams, followed by the exit status if the
/// status is not 0.
fn run_in_shell(folder: &Folder, typed: &str) -> String {
    let output = folder.shell_command(&format!("{{ {typed}\n}} 2>&1")).output().unwrap();
    let mut text = String::from_utf8(output.stdout).unwrap();
    let status = output.status.code().unwrap();
    if status != 0 {
        let _ = writeln!(text, "[{status}]");
    }
    text.lines().map(|line| format!("{}\n", mask_filter_count(line.trim_end()))).collect()
}

/// Replaces the number of filters in a line with `N`, because the number changes with every new
/// filter.
fn mask_filter_count(line: &str) -> String {
    const FILTER_COUNT_PREFIX: &str = "lists all ";
    match line.split_once(FILTER_COUNT_PREFIX) {
        Some((head, tail)) => {
            format!(
                "{head}{FILTER_COUNT_PREFIX}N{}",
                tail.trim_start_matches(|c: char| c.is_ascii_digit())
            )
        }
        None => line.to_owned(),
    }
}

#[test]
fn documented_transcripts_match_the_output() {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/transcripts");
    let mut found = 0;
    for entry in std::fs::read_dir(folder).unwrap() {
        let path = entry.unwrap().path();
        let text = std::fs::read_to_string(&path).unwrap();
        let place = Folder::new();
        let mut now: String =
            text.lines().filter(|line| line.starts_with('#')).map(|l| format!("{l}\n")).collect();
        for typed in text.lines().filter_map(|line| line.strip_prefix("$ ")) {
            let _ = write!(now, "\n$ {typed}\n{}", run_in_shell(&place, typed));
            found += 1;
        }
        if std::env::var_os("UPDATE").is_some() {
            std::fs::write(&path, now).unwrap();
        } else {
            assert_eq!(now, text, "{}", path.display());
        }
    }
    assert!(found > 20, "the transcripts are there");
}
