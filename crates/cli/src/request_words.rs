//! Separation of request words from command options.
//!
//! An argument that starts with `-` belongs to the command if the command defines this option.
//! Otherwise, it belongs to the request if the request language defines the option
//! (`--latency=1ms`, `--name=X`).

use crate::arguments::Arguments;
use clap::CommandFactory;
use engine::registry::MachineRegistry;
use pipeline::Registry;
use pipeline::check::REQUEST_OPTIONS;
use std::ffi::{OsStr, OsString};

/// Rearranges arguments for clap. Inserts `run` in front of a request without a command, and moves
/// the words of a request after `--`.
pub(crate) fn rearrange_arguments(given: impl Iterator<Item = OsString>) -> Vec<OsString> {
    let mut words: Vec<OsString> = given.collect();
    let command = Arguments::command();
    let Some(first) = words.get(1) else { return words };
    if is_request_without_command(first, &command) {
        words.insert(1, "run".into());
    }
    let name = words.get(1).and_then(|word| word.to_str()).unwrap_or_default();
    match command.find_subcommand(name) {
        Some(known) if matches!(name, "run" | "check" | "explain" | "start") => {
            move_request_words(&words, known)
        }
        _ => words,
    }
}

/// Returns true if the first argument begins a request without a command: the argument is not a
/// command, and looks like a request or an option of `run`.
fn is_request_without_command(word: &OsStr, command: &clap::Command) -> bool {
    let Some(word) = word.to_str() else { return false };
    if word.starts_with('-') && !["-h", "--help", "-V", "--version"].contains(&word) {
        return true;
    }
    let is_command = command.find_subcommand(word).is_some();
    let begins = |c: char| c.is_whitespace() || "|+!(;".contains(c);
    !is_command && (word.contains(begins) || MachineRegistry::Local.find(word).is_some())
}

/// Moves the words of the request to the end, after `--`.
fn move_request_words(words: &[OsString], command: &clap::Command) -> Vec<OsString> {
    let mut own: Vec<OsString> = words.iter().take(2).cloned().collect();
    let mut line: Vec<OsString> = Vec::new();
    let mut rest = words.iter().skip(2);
    let is_explained = command.get_name() == "explain";
    while let Some(word) = rest.next() {
        match word_kind(word, command) {
            WordKind::Request
                if is_explained && line.is_empty() && begins_exec_command(word, &rest) =>
            {
                // All following words belong to the program, including its options.
                line.extend(std::iter::once(word).chain(rest.by_ref()).cloned());
            }
            WordKind::Request => line.push(word.clone()),
            WordKind::Flag => own.push(word.clone()),
            WordKind::Option => own.extend(std::iter::once(word).chain(rest.next()).cloned()),
            WordKind::End => line.extend(rest.by_ref().cloned()),
        }
    }
    if !line.is_empty() {
        own.push("--".into());
    }
    own.extend(line);
    own
}

/// Returns true if `word`, the first word after `explain`, begins the command `exec CMD…` and not a
/// request. The word must be `exec`, and no word in `rest` may begin with `|`.
fn begins_exec_command<'w>(
    word: &OsStr,
    rest: &(impl Iterator<Item = &'w OsString> + Clone),
) -> bool {
    let rest: Vec<&str> = rest.clone().filter_map(|word| word.to_str()).collect();
    word == "exec" && is_program_call(&rest)
}

fn is_program_call(words: &[&str]) -> bool {
    !words.is_empty() && !words.iter().any(|word| word.starts_with('|'))
}

/// Returns the program with its arguments if the words after `explain` have the form `exec CMD…`.
/// Returns `None` if they are a request.
pub(crate) fn exec_command_words(words: &[String]) -> Option<&[String]> {
    let (first, rest) = words.split_first()?;
    let texts: Vec<&str> = rest.iter().map(String::as_str).collect();
    (first == "exec" && is_program_call(&texts)).then_some(rest)
}

/// The role of an argument on the command line.
enum WordKind {
    /// A word of the request: it does not start with `-`, contains spaces, or is an option of the
    /// request language.
    Request,
    /// An option of the command that is complete in one argument: it has no value, or contains the
    /// value (`--time=2s`). Also an option that neither the command nor the request language
    /// defines.
    Flag,
    /// An option of the command whose value is the next argument.
    Option,
    /// The argument `--`. All arguments after it belong to the request.
    End,
}

fn word_kind(word: &OsStr, command: &clap::Command) -> WordKind {
    let Some(text) = word.to_str() else { return WordKind::Request };
    if text == "--" {
        return WordKind::End;
    }
    // An argument that contains spaces is a whole request, which may start with an option.
    let head = text.split('=').next().unwrap_or_default();
    if head.contains(char::is_whitespace) || !text.starts_with('-') {
        return WordKind::Request;
    }
    let takes = |wanted: &dyn Fn(&clap::Arg) -> bool| {
        // If the value of an option is optional, it must follow `=`, so the next argument is not
        // the value.
        let takes_next =
            |known: &clap::Arg| known.get_action().takes_values() && !known.is_require_equals_set();
        command.get_arguments().find(|known| wanted(known)).map(takes_next)
    };
    if let Some(long) = text.strip_prefix("--") {
        let (key, value) = long.split_once('=').map_or((long, None), |(k, v)| (k, Some(v)));
        return match takes(&|known| known.get_long() == Some(key)) {
            Some(true) if value.is_none() => WordKind::Option,
            Some(_) => WordKind::Flag,
            None if key == "name" || REQUEST_OPTIONS.iter().any(|known| known.name == key) => {
                WordKind::Request
            }
            None => WordKind::Flag,
        };
    }
    let mut letters = text.chars().skip(1);
    match letters.next() {
        None => WordKind::Request,
        Some(letter) => match takes(&|known| known.get_short() == Some(letter)) {
            Some(true) if letters.next().is_none() => WordKind::Option,
            _ => WordKind::Flag,
        },
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn rearrange_words(words: &[&str]) -> Vec<String> {
        let words = std::iter::once("streamline").chain(words.iter().copied()).map(OsString::from);
        rearrange_arguments(words)
            .into_iter()
            .skip(1)
            .map(|word| word.into_string().unwrap())
            .collect()
    }

    #[test]
    fn request_without_command_becomes_run() {
        assert_eq!(rearrange_words(&["replay x | count"]), ["run", "--", "replay x | count"]);
        assert_eq!(rearrange_words(&["count"]), ["run", "--", "count"]);
        assert_eq!(rearrange_words(&["replay|count"]), ["run", "--", "replay|count"]);
        assert_eq!(rearrange_words(&["--no-loss replay x"]), ["run", "--", "--no-loss replay x"]);
        assert_eq!(rearrange_words(&["-q", "a | b"]), ["run", "-q", "--", "a | b"]);
        assert_eq!(rearrange_words(&["nonsense"]), ["nonsense"]);
        assert_eq!(rearrange_words(&["filters", "dport"]), ["filters", "dport"]);
        assert_eq!(rearrange_words(&["--help"]), ["--help"]);
    }

    #[test]
    fn options_are_accepted_on_either_side_of_the_request() {
        assert_eq!(
            rearrange_words(&["run", "-c", "5", "a | b"]),
            ["run", "-c", "5", "--", "a | b"]
        );
        assert_eq!(rearrange_words(&["run", "a | b", "-c5"]), ["run", "-c5", "--", "a | b"]);
        assert_eq!(
            rearrange_words(&["a | b", "--for", "2s"]),
            ["run", "--for", "2s", "--", "a | b"]
        );
        let words = ["run", "--report=x", "replay", "-", "--stats"];
        assert_eq!(rearrange_words(&words), ["run", "--report=x", "--stats", "--", "replay", "-"]);
    }

    #[test]
    fn program_after_explain_keeps_its_options() {
        let words = ["explain", "exec", "named", "-g", "-c", "x"];
        assert_eq!(rearrange_words(&words), ["explain", "--", "exec", "named", "-g", "-c", "x"]);
        let request = ["explain", "exec", "yes", "|", "count", "--json"];
        let arranged = ["explain", "--json", "--", "exec", "yes", "|", "count"];
        assert_eq!(rearrange_words(&request), arranged);
        assert_eq!(
            rearrange_words(&["explain", "exec yes", "-j"]),
            ["explain", "-j", "--", "exec yes"]
        );
        let owned =
            |words: &[&str]| words.iter().map(|word| (*word).to_owned()).collect::<Vec<_>>();
        assert_eq!(exec_command_words(&owned(&["exec", "cat"])), Some(&owned(&["cat"])[..]));
        assert_eq!(exec_command_words(&owned(&["exec cat"])), None);
        assert_eq!(exec_command_words(&owned(&["exec", "yes", "|", "count"])), None);
    }

    #[test]
    fn language_options_belong_to_the_request() {
        let words = ["run", "--latency=1ms", "rx", "--stats", "tcp", "--name=X"];
        assert_eq!(
            rearrange_words(&words),
            ["run", "--stats", "--", "--latency=1ms", "rx", "tcp", "--name=X"]
        );
        assert_eq!(rearrange_words(&["run", "--stat", "a"]), ["run", "--stat", "--", "a"]);
        assert_eq!(rearrange_words(&["run", "--", "--stats", "a"]), ["run", "--", "--stats", "a"]);
        for line in ["--latency=1ms a | b", "--no-loss a --name=X | b"] {
            assert_eq!(rearrange_words(&[line]), ["run", "--", line]);
        }
    }
}
