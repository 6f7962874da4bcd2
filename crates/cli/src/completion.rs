//! Completion: scripts for shells, and what they ask while a line is typed.
//!
//! Options and commands are completed by clap's scripts. A line in quotes is completed by asking
//! `streamline complete --line PREFIX`, which answers whole lines, one per possible next word.

use crate::arguments::Arguments;
use crate::status::Status;
use crate::terminal;
use clap::CommandFactory;
use clap_complete::Shell;
use engine::catalogue::House;
use pipeline::Catalogue;
use std::fs;

/// Prints the script of a shell.
pub(crate) fn script(shell: Shell) -> Status {
    let mut script = Vec::new();
    clap_complete::generate(shell, &mut Arguments::command(), "streamline", &mut script);
    let mut script = String::from_utf8_lossy(&script).into_owned();
    if shell == Shell::Bash {
        script.push_str(include_str!("completion/line.bash"));
    }
    terminal::print(&script)
}

/// Prints every way to go on with a line.
pub(crate) fn complete(line: &str) -> Status {
    let mut text = String::new();
    for way in ways(line, interfaces) {
        text.push_str(&way);
        text.push('\n');
    }
    terminal::print(&text)
}

/// The whole lines that may stand at the end of the word that is being typed.
fn ways(line: &str, interfaces: impl Fn() -> Vec<String>) -> Vec<String> {
    let Some(at) = typed(line) else { return Vec::new() };
    let (before, word) = line.split_at(at);
    let begins = |c: char| "|+!(;*".contains(c);
    let last = before.trim_end();
    let label = last.rfind('|').filter(|pipe| !last[*pipe..].contains(char::is_whitespace));
    let head = last.is_empty() || last.ends_with(begins) || label.is_some();
    let words: Vec<String> = match head {
        true => names(before),
        false => arguments(before, &interfaces),
    };
    let mut ways: Vec<String> = words
        .into_iter()
        .filter(|way| way.starts_with(word))
        .map(|way| format!("{before}{way}"))
        .collect();
    ways.sort_unstable();
    ways.dedup();
    ways
}

/// Where the word begins that is being typed; none inside quotes.
fn typed(line: &str) -> Option<usize> {
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

/// What may begin a step: a source at the head of a pipeline, anything else behind a pipe.
fn names(before: &str) -> Vec<String> {
    let pipeline = before.rsplit(';').next().unwrap_or(before);
    let source = !pipeline.contains('|');
    let entries = House.descriptions().filter(|entry| (entry.kind.name() == "source") == source);
    entries.map(|entry| entry.name.to_owned()).collect()
}

/// What may stand behind the name of a filter: its parameters; for `interface` those of this machine.
fn arguments(before: &str, interfaces: &impl Fn() -> Vec<String>) -> Vec<String> {
    let step = before.rsplit(['|', '+', '!', '(', ';']).next().unwrap_or(before);
    let name = step.split_whitespace().find(|word| House.find(word).is_some());
    let entry = name.and_then(|name| House.find_source(name).or_else(|| House.find(name)));
    let Some(entry) = entry else { return Vec::new() };
    let mut words: Vec<String> = entry
        .parameters
        .iter()
        .filter(|known| !known.positional)
        .map(|known| format!("{}=", known.name))
        .collect();
    if entry.parameters.iter().any(|known| known.name == "interface") {
        words.extend(interfaces());
    }
    words
}

/// The network interfaces of this machine.
fn interfaces() -> Vec<String> {
    let entries = fs::read_dir("/sys/class/net").into_iter().flatten().flatten();
    entries.filter_map(|entry| entry.file_name().into_string().ok()).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn all(line: &str) -> Vec<String> {
        ways(line, || vec!["eth0".to_owned()])
    }

    #[test]
    fn a_line_begins_with_a_source() {
        assert_eq!(all("re"), ["read", "replay"]);
        assert_eq!(all("count ; gen"), ["count ; generate"]);
        assert!(all("coun").is_empty());
    }

    #[test]
    fn behind_a_pipe_stand_filters_and_sinks() {
        assert_eq!(all("replay x | dp"), ["replay x | dport"]);
        assert_eq!(all("replay x|dp"), ["replay x|dport"]);
        assert_eq!(all("replay x | dport |80 cou"), ["replay x | dport |80 count"]);
        assert_eq!(all("replay x | (dport + spo"), ["replay x | (dport + sport"]);
        assert!(all("replay x | ").len() > 10);
        assert!(all("replay x | repl").is_empty());
    }

    #[test]
    fn behind_a_name_stand_its_parameters() {
        assert_eq!(all("replay x sp"), ["replay x speed="]);
        assert!(all("generate ").contains(&"generate count=".to_owned()));
        assert!(all("replay x | bpf \"tcp po").is_empty(), "nothing inside quotes");
        assert!(all("nonsense ").is_empty());
    }
}
