//! Shell completion: the scripts, and the completion of requests.
//!
//! clap's scripts complete commands and options. For a quoted request they call `streamline
//! complete --line PREFIX`, which prints the completed request once per possible next word.

use crate::arguments::Arguments;
use crate::status::Status;
use crate::terminal;
use clap::CommandFactory;
use clap_complete::Shell;
use engine::registry::MachineRegistry;
use pipeline::{Registry, explain};
use std::fs;

/// Prints the completion script of a shell.
pub(crate) fn script(shell: Shell) -> Status {
    let mut script = Vec::new();
    clap_complete::generate(shell, &mut Arguments::command(), "streamline", &mut script);
    let script = String::from_utf8_lossy(&script).into_owned();
    terminal::print(&match shell {
        Shell::Bash => format!("{script}{}", include_str!("completion/line.bash")),
        Shell::Zsh => complete_requests(&script),
        _ => script,
    })
}

/// Patches clap's zsh script so that it also completes requests.
fn complete_requests(script: &str) -> String {
    let (functions, calls) = script.rsplit_once("if [").unwrap_or((script, ""));
    let calls = calls
        .replace("_streamline \"$@\"", "_streamline_or_line \"$@\"")
        .replace("compdef _streamline ", "compdef _streamline_or_line ");
    format!("{functions}{}\nif [{calls}", include_str!("completion/line.zsh"))
}

/// Prints every completion of a partial request.
pub(crate) fn complete(line: &str) -> Status {
    let mut text = String::new();
    for completion in completions(line, &LocalCandidates) {
        text.push_str(&completion);
        text.push('\n');
    }
    terminal::print(&text)
}

/// Completion candidates that depend on the machine.
trait Candidates {
    /// Returns the names of network interfaces.
    fn interfaces(&self) -> Vec<String>;
    /// Returns the files and directories whose path starts with `begin`; directories end with `/`.
    fn files(&self, begin: &str) -> Vec<String>;
}

/// Returns every completion of a partial request, each as the entire request.
fn completions(line: &str, candidates: &dyn Candidates) -> Vec<String> {
    let Some(at) = word_start(line) else { return Vec::new() };
    let (before, word) = line.split_at(at);
    let begins = |c: char| "|+!(;*".contains(c);
    let last = before.trim_end();
    let label = last.rfind('|').filter(|pipe| !last[*pipe..].contains(char::is_whitespace));
    let head = last.is_empty() || last.ends_with(begins) || label.is_some();
    let first = before.split_whitespace().all(|word| word.starts_with("--"));
    let words: Vec<String> = match head || first {
        true if first => names(before).into_iter().chain(explain::option_words()).collect(),
        true => names(before),
        false => arguments(before, word, candidates),
    };
    let mut completions: Vec<String> = words
        .into_iter()
        .filter(|completion| completion.starts_with(word))
        .map(|completion| format!("{before}{completion}"))
        .collect();
    completions.sort_unstable();
    completions.dedup();
    completions
}

/// Returns the offset of the word being typed; `None` inside quotes.
fn word_start(line: &str) -> Option<usize> {
    let mut quote = None;
    let mut begin = 0;
    for (at, c) in line.char_indices() {
        match quote {
            Some(open) if open == c => quote = None,
            Some(_) => {}
            None if c == '"' || c == '\'' => quote = Some(c),
            None if c.is_whitespace() || "|+!();".contains(c) => begin = at + c.len_utf8(),
            None => {}
        }
    }
    quote.is_none().then_some(begin)
}

/// Returns the words that can start a stage: sources at the head of a pipeline, other filters after
/// a pipe, programs in both positions.
fn names(before: &str) -> Vec<String> {
    let pipeline = before.rsplit(';').next().unwrap_or(before);
    let source = !pipeline.contains('|');
    let entries = MachineRegistry::descriptions().filter(|entry| {
        MachineRegistry::Local.endpoint(entry).process || entry.kind.is_source() == source
    });
    entries.map(|entry| entry.name.to_owned()).collect()
}

/// Returns the words that can follow a filter's name: parameters, files, interfaces.
fn arguments(before: &str, word: &str, candidates: &dyn Candidates) -> Vec<String> {
    let step = before.rsplit(['|', '+', '!', '(', ';']).next().unwrap_or(before);
    let mut words =
        step.split_whitespace().skip_while(|word| MachineRegistry::Local.find(word).is_none());
    let entry = words.next().and_then(|name| {
        MachineRegistry::Local.find_source(name).or_else(|| MachineRegistry::Local.find(name))
    });
    let Some(entry) = entry else { return Vec::new() };
    let mut completions: Vec<String> = entry
        .all_parameters()
        .filter(|known| !known.positional)
        .map(|known| format!("{}=", known.name))
        .collect();
    let given = words.filter(|word| !word.contains('=')).count();
    match entry.parameters.iter().filter(|known| known.positional).nth(given) {
        Some(known) if known.name == "interface" => completions.extend(candidates.interfaces()),
        Some(known) if explain::is_path(known) => completions.extend(candidates.files(word)),
        _ => {}
    }
    completions
}

/// Candidates from this machine.
struct LocalCandidates;

impl Candidates for LocalCandidates {
    fn interfaces(&self) -> Vec<String> {
        let entries = fs::read_dir("/sys/class/net").into_iter().flatten().flatten();
        entries.filter_map(|entry| entry.file_name().into_string().ok()).collect()
    }

    fn files(&self, begin: &str) -> Vec<String> {
        let (folder, name) = begin.rsplit_once('/').map_or(("", begin), |(f, name)| (f, name));
        let slash = if begin.contains('/') { "/" } else { "" };
        let place = format!("{folder}{slash}");
        let read = fs::read_dir(if place.is_empty() { "." } else { &place });
        let entries = read.into_iter().flatten().flatten();
        entries
            .filter_map(|entry| {
                let found = entry.file_name().into_string().ok()?;
                // Names that would need quoting inside a request are omitted.
                let word = |c: char| c.is_ascii_alphanumeric() || "._-".contains(c);
                let hidden = found.starts_with('.') && !name.starts_with('.');
                let folder = if entry.path().is_dir() { "/" } else { "" };
                (found.chars().all(word) && !hidden).then(|| format!("{place}{found}{folder}"))
            })
            .collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    struct FakeCandidates;

    impl Candidates for FakeCandidates {
        fn interfaces(&self) -> Vec<String> {
            vec!["eth0".to_owned()]
        }

        fn files(&self, _: &str) -> Vec<String> {
            vec!["examples/".to_owned(), "web.pcap".to_owned()]
        }
    }

    fn completions_of(line: &str) -> Vec<String> {
        completions(line, &FakeCandidates)
    }

    #[test]
    fn request_starts_with_a_source() {
        assert_eq!(completions_of("re"), ["read", "replay"]);
        assert_eq!(completions_of("count ; gen"), ["count ; generate"]);
        assert!(completions_of("coun").is_empty());
        assert_eq!(completions_of("--par"), ["--parallel="]);
        assert_eq!(completions_of("--parallel=2 --ad"), ["--parallel=2 --adapt"]);
        assert_eq!(completions_of("--adapt gen"), ["--adapt generate"]);
        assert!(
            completions_of("replay x | --ad").is_empty()
                && completions_of("replay --ad").is_empty()
        );
    }

    #[test]
    fn filters_and_sinks_follow_a_pipe() {
        assert_eq!(completions_of("replay x | dp"), ["replay x | dport"]);
        assert_eq!(completions_of("replay x|dp"), ["replay x|dport"]);
        assert_eq!(completions_of("replay x | dport |80 cou"), ["replay x | dport |80 count"]);
        assert_eq!(completions_of("replay x | (dport + spo"), ["replay x | (dport + sport"]);
        assert!(completions_of("replay x | ").len() > 10);
        assert!(completions_of("replay x | repl").is_empty());
    }

    #[test]
    fn parameters_follow_a_filter_name() {
        assert_eq!(completions_of("replay x sp"), ["replay x speed="]);
        assert!(completions_of("generate ").contains(&"generate count=".to_owned()));
        assert!(completions_of("replay x | bpf \"tcp po").is_empty(), "nothing inside quotes");
        assert!(completions_of("nonsense ").is_empty());
        assert_eq!(completions_of("replay exa"), ["replay examples/"]);
        assert_eq!(
            completions_of("replay "),
            ["replay examples/", "replay speed=", "replay web.pcap"]
        );
        assert!(completions_of("replay x we").is_empty(), "it takes one file");
    }
}
