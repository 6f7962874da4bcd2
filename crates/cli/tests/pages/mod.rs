//! Extraction of the commands on a documentation page, and comparison with the output below each
//! command.
//!
//! A block marked `text` directly after a command contains the command's standard output, or its
//! standard output followed by its standard error. A line that consists of `…` matches any number
//! of lines; a `…` within a line matches any text. Durations (`in 5 ms`) and trailing space are not
//! compared.
//!
//! A block marked `sh traffic` runs alongside all commands of the page, as root.

use crate::common::CommandResult;

/// A command of a page, with its position and the expected output.
#[derive(Debug, Default)]
pub(crate) struct PageCommand {
    pub(crate) place: String,
    pub(crate) text: String,
    pub(crate) sudo: bool,
    /// The output that the page shows below the command, or `None` if it shows none.
    pub(crate) output: Option<String>,
}

/// The commands of a documentation page, in order, and the script for their traffic.
#[derive(Debug, Default)]
pub(crate) struct PageCommands {
    pub(crate) all: Vec<PageCommand>,
    /// The script that produces traffic while the commands run, or `None` if there is none.
    pub(crate) traffic: Option<String>,
}

impl PageCommand {
    /// Returns true if the command runs this program.
    pub(crate) fn runs_program(&self, program: &str) -> bool {
        self.text.split_whitespace().any(|word| word.trim_matches('"') == program)
    }

    /// Compares the output of a run with the output on the page. Returns a description of the
    /// difference, or `None` if they match.
    pub(crate) fn compare_output(&self, ran: &CommandResult) -> Option<String> {
        let expected = self.output.as_ref()?;
        let both = format!("{}{}", ran.out, ran.err);
        if matches_output(expected, &both) {
            return None;
        }
        // A page may omit standard error, unless it contains a warning or an error.
        let omits = !["warning:", "error:"].iter().any(|word| ran.err.contains(word));
        if omits && matches_output(expected, &ran.out) {
            return None;
        }
        Some(format!("the page shows\n{expected}but the output is\n{both}"))
    }
}

/// Returns true if the output of a command matches the output that a page shows for it.
fn matches_output(expected: &str, output: &str) -> bool {
    let expected: Vec<String> = expected.lines().map(mask_duration).collect();
    let output: Vec<String> = output.lines().map(mask_duration).collect();
    matches_pattern(&expected, &output, &|expected| expected == "…", &|expected, line| {
        let expected: Vec<String> = expected.chars().map(String::from).collect();
        let line: Vec<String> = line.chars().map(String::from).collect();
        matches_pattern(&expected, &line, &|expected| expected == "…", &|a, b| a == b)
    })
}

/// Returns true if the list `items` matches the list `pattern`. An element of the pattern for which
/// `is_gap` returns true matches any number of items. Any other element matches one item, by
/// `is_equal`.
fn matches_pattern(
    pattern: &[String],
    items: &[String],
    is_gap: &dyn Fn(&str) -> bool,
    is_equal: &dyn Fn(&str, &str) -> bool,
) -> bool {
    // `reachable[n]` is true if the first `n` items match the pattern so far.
    let mut reachable = vec![false; items.len() + 1];
    reachable[0] = true;
    for part in pattern {
        let mut next = vec![false; items.len() + 1];
        if is_gap(part) {
            if let Some(first) = reachable.iter().position(|reached| *reached) {
                next[first..].fill(true);
            }
        } else {
            for (index, item) in items.iter().enumerate() {
                next[index + 1] = reachable[index] && is_equal(part, item);
            }
        }
        reachable = next;
    }
    reachable[items.len()]
}

/// Returns a line without trailing space, and with `N ms` in place of a duration after `bytes in`.
fn mask_duration(line: &str) -> String {
    let line = line.trim_end();
    let Some((before, after)) = line.split_once(" bytes in ") else { return line.to_owned() };
    let mut words = after.splitn(2, ' ');
    let (Some(figure), Some(rest)) = (words.next(), words.next()) else { return line.to_owned() };
    if !figure.starts_with(|c: char| c.is_ascii_digit()) {
        return line.to_owned();
    }
    let rest = rest.trim_start_matches(|c: char| c.is_ascii_alphabetic());
    format!("{before} bytes in N ms{rest}")
}

/// Extracts the commands from the text of the page `file`.
pub(crate) fn extract_page_commands(file: &str, text: &str) -> PageCommands {
    let mut found: Vec<PageCommand> = Vec::new();
    let mut traffic = None;
    let mut fence: Option<(usize, String, String)> = None;
    // The preceding lines of text, which may specify the user who runs the commands.
    let mut prose = String::new();
    // True if only empty lines follow the last command.
    let mut is_directly_after = false;
    for (number, line) in text.lines().enumerate() {
        if let Some(kind) = line.strip_prefix("```") {
            let Some((at, kind, block)) = fence.take() else {
                fence = Some((number + 2, kind.to_owned(), String::new()));
                continue;
            };
            if kind == "sh" {
                let sudo = block.lines().any(|line| line.starts_with("sudo "))
                    || prose.contains("As root");
                let (place, text) = (format!("{file}:{at}"), block.replace("sudo ", ""));
                found.push(PageCommand { place, text, sudo, output: None });
            } else if kind == "sh traffic" {
                traffic = Some(block);
            } else if kind == "text" && is_directly_after {
                found.last_mut().unwrap().output = Some(block);
            }
            is_directly_after = kind == "sh";
        } else if let Some((_, _, block)) = &mut fence {
            block.push_str(line);
            block.push('\n');
        } else if let Some(line) = line.strip_prefix("    ") {
            let line = line.trim_start();
            let line = line.strip_prefix("$ ").unwrap_or(line);
            let (sudo, line) = match line.strip_prefix("sudo ") {
                Some(line) => (true, line),
                None => (false, line),
            };
            let text = line.replace("cargo run --release -- ", "streamline ");
            is_directly_after = text.starts_with("streamline ");
            if is_directly_after {
                let place = format!("{file}:{}", number + 1);
                found.push(PageCommand { place, text, sudo, output: None });
            }
        } else if line.starts_with('#') {
            (is_directly_after, prose) = (false, String::new());
        } else {
            is_directly_after &= line.trim().is_empty();
            prose.push_str(line);
        }
    }
    PageCommands { all: found, traffic }
}
