//! Check of the requests in documents: every example file, and every block of the book that is
//! marked `pipe`, is passed to `streamline check`.
//!
//! Input: `examples/*.pipe` (one request per file) and the Markdown files under `docs` (one request
//! per block). Output: the command's messages about rejected requests.

use crate::cargo;
use std::fs;
use std::path::{Path, PathBuf};

/// A request in a document, with the file and line at which it begins.
#[derive(Clone, PartialEq, Eq, Debug)]
struct Example {
    location: String,
    request: String,
}

/// Checks all requests in example files and documents. Returns true if `streamline check` accepts
/// all of them.
pub(crate) fn check_examples(root: &Path) -> bool {
    let examples = match collect_examples(root) {
        Ok(examples) => examples,
        Err(error) => {
            eprintln!("error: cannot read the examples: {error}");
            return false;
        }
    };
    // Uses the same build as the tests, because `build --package streamline-cli` would select other
    // features, and compile most crates again.
    let mut build = crate::test::test_command(root);
    if !cargo::run_command(build.args(["--workspace", "--no-run", "--quiet"])) {
        return false;
    }
    let command = cargo::target_directory(root).join("debug/streamline");
    let refused =
        examples.iter().filter(|examples| !is_example_accepted(root, &command, examples)).count();
    println!("{} requests of examples and book checked, {refused} refused", examples.len());
    refused == 0 && !examples.is_empty()
}

fn is_example_accepted(root: &Path, command: &Path, examples: &Example) -> bool {
    let mut check = std::process::Command::new(command);
    let output = check.current_dir(root).arg("check").arg(&examples.request).output();
    match output {
        Ok(output) if output.status.success() => true,
        Ok(output) => {
            println!("{}: {}", examples.location, String::from_utf8_lossy(&output.stderr));
            false
        }
        Err(error) => {
            println!("{}: cannot run {}: {error}", examples.location, command.display());
            false
        }
    }
}

fn collect_examples(root: &Path) -> std::io::Result<Vec<Example>> {
    let mut examples = Vec::new();
    for path in files_with_extension(&root.join("examples"), "pipe")? {
        examples.push(Example {
            location: relative_path(root, &path),
            request: fs::read_to_string(&path)?,
        });
    }
    for path in files_with_extension(&root.join("docs"), "md")? {
        let text = fs::read_to_string(&path)?;
        let blocks = pipe_code_blocks(&text).into_iter();
        examples.extend(blocks.map(|(line, request)| Example {
            location: format!("{}:{line}", relative_path(root, &path)),
            request,
        }));
    }
    Ok(examples)
}

/// Returns all files under `folder` that end in `.extension`, sorted.
fn files_with_extension(folder: &Path, extension: &str) -> std::io::Result<Vec<PathBuf>> {
    let mut found = Vec::new();
    for entry in fs::read_dir(folder)? {
        let path = entry?.path();
        if path.is_dir() {
            found.extend(files_with_extension(&path, extension)?);
        } else if path.extension().is_some_and(|e| e == extension) {
            found.push(path);
        }
    }
    found.sort();
    Ok(found)
}

fn relative_path(root: &Path, path: &Path) -> String {
    path.strip_prefix(root).unwrap_or(path).display().to_string()
}

/// Returns the fenced code blocks marked `pipe`, each with the line number at which it begins.
fn pipe_code_blocks(text: &str) -> Vec<(usize, String)> {
    let mut found = Vec::new();
    let mut open: Option<(usize, String)> = None;
    for (number, line) in text.lines().enumerate() {
        match (&mut open, line.trim_end()) {
            (None, "```pipe") => open = Some((number + 2, String::new())),
            (Some(_), "```") => found.extend(open.take()),
            (Some((_, request)), line) => {
                request.push_str(line);
                request.push('\n');
            }
            (None, _) => {}
        }
    }
    found
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_marked_blocks_are_requests() {
        let text = "a\n```pipe\nreplay f\n| count\n```\n```text\nno\n```\n```pipe\nb\n```\n";
        let wanted = [(3, "replay f\n| count\n".to_owned()), (10, "b\n".to_owned())];
        assert_eq!(pipe_code_blocks(text), wanted);
    }
}
