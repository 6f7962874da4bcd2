//! The rules for text: first lines, lengths, trailing blanks, local paths, sleeps, and words that
//! mark unfinished work.

use super::findings::{Finding, Findings, Occurrence};
use super::rules::{
    BINARY_SIZE_MAX, COLUMNS_MAX, FILE_LINES_MAX, LOCAL_PATHS, LONG_FILE_LINES,
    LONG_FUNCTION_LINES, SLEEP_EXCEPTIONS, UNFINISHED_MARKERS,
};
use super::source::{function_ranges, lines_outside_tests};
use super::tree::{File, Tree, crate_of_path};

pub(super) fn check(tree: &Tree, found: &mut Findings) {
    let crates = tree.crates();
    for file in &tree.files {
        if !file.is_text && file.length > BINARY_SIZE_MAX {
            let what =
                format!("{} bytes that are no text; the limit is {BINARY_SIZE_MAX}", file.length);
            found.push(Finding::in_file("binaries", file, what));
        }
        if file.is_text {
            check_local_paths(file, found);
        }
        if file.is_handwritten() {
            check_trailing_blanks(file, found);
            check_unfinished_markers(file, found);
        }
        if file.is_rust() {
            check_rust_text(file, crate_of_path(&crates, &file.path), found);
        }
    }
    for (path, _) in SLEEP_EXCEPTIONS {
        if tree.file(path).is_none_or(|file| sleep_lines(file).next().is_none()) {
            let what = "is in SLEEP_EXCEPTIONS of xtask/src/tidy/rules.rs, and does not sleep";
            let path = (*path).to_owned();
            found.push(Finding { rule: "sleeps", path, line: None, what: what.to_owned() });
        }
    }
}

fn check_local_paths(file: &File, found: &mut Findings) {
    for (number, line) in file.text.lines().enumerate() {
        if let Some(path) = LOCAL_PATHS.iter().find(|path| line.contains(**path)) {
            let what = format!("`{path}` is a path of one machine");
            found.push(Finding::at_line("workplace", file, number + 1, what));
        }
    }
}

fn check_trailing_blanks(file: &File, found: &mut Findings) {
    for (number, line) in file.text.lines().enumerate() {
        if line.ends_with([' ', '\t', '\r']) {
            found.push(Finding::at_line(
                "blanks",
                file,
                number + 1,
                "blanks at the end of the line",
            ));
        }
    }
    if !file.text.is_empty() && !file.text.ends_with('\n') {
        found.push(Finding::in_file("blanks", file, "the last line does not end"));
    }
}

fn check_unfinished_markers(file: &File, found: &mut Findings) {
    for (number, line) in file.text.lines().enumerate() {
        if let Some(word) = UNFINISHED_MARKERS.iter().find(|word| line.contains(**word)) {
            let what = format!("`{word}`: finish it or write an issue");
            found.push(Finding::at_line("undone", file, number + 1, what));
        }
    }
}

fn check_rust_text(file: &File, name: &str, found: &mut Findings) {
    if !file.text.starts_with("//!") {
        let what = "the first line is not `//!`: say what the file is";
        found.push(Finding::at_line("first line", file, 1, what));
    }
    for (number, line) in file.text.lines().enumerate() {
        let columns = line.chars().count();
        if columns > COLUMNS_MAX {
            let what = format!("{columns} columns; the limit is {COLUMNS_MAX}");
            found.push(Finding::at_line("columns", file, number + 1, what));
        }
    }
    let lines = file.text.lines().count();
    if lines > FILE_LINES_MAX {
        let what = format!("{lines} lines; the limit is {FILE_LINES_MAX}: one file, one reason");
        found.push(Finding::in_file("length", file, what));
    } else if !file.is_test() {
        let lines = lines_outside_tests(&file.code).len();
        if lines > LONG_FILE_LINES {
            let what = format!("{lines} lines without tests, more than {LONG_FILE_LINES}");
            found.occurrences.push(Occurrence::new("files", name, file, 1, what));
        }
    }
    for (number, lines) in function_ranges(&file.code) {
        if lines > LONG_FUNCTION_LINES {
            let what = format!("a function of {lines} lines, more than {LONG_FUNCTION_LINES}");
            found.occurrences.push(Occurrence::new("functions", name, file, number, what));
        }
    }
    if !SLEEP_EXCEPTIONS.iter().any(|(path, _)| *path == file.path) {
        for number in sleep_lines(file) {
            let what = "sleeps for a time; wait for a condition, or give a reason in \
                        SLEEP_EXCEPTIONS of xtask/src/tidy/rules.rs";
            found.push(Finding::at_line("sleeps", file, number, what));
        }
    }
}

/// Returns the lines that put a thread to sleep.
fn sleep_lines(file: &File) -> impl Iterator<Item = usize> {
    let words = [concat!("thread::", "sleep"), concat!("sleep(", "Duration")];
    file.code
        .lines()
        .enumerate()
        .filter(move |(_, line)| words.iter().any(|word| line.contains(word)))
        .map(|(number, _)| number + 1)
}
