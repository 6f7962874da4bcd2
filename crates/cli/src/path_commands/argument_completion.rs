//! Shell completion of the arguments of commands on paths.
//!
//! Given the command and the words before the incomplete word, prints each candidate on one line.
//! Candidates are the user's paths, the nodes and spaces of a given path, the words of a change,
//! and the shells. Paths require a daemon; nodes and spaces also require that the path replies.

use crate::status::Status;
use crate::terminal;
use clap::ValueEnum as _;
use clap_complete::Shell;
use engine::registry::MachineRegistry;
use member::client::Client;
use member::protocol::PathDescription;
use pipeline::Registry as _;

/// Prints every candidate for the word that follows `words`.
pub(crate) fn print_candidates(words: &[String]) -> Status {
    let words: Vec<&str> = words.iter().map(String::as_str).collect();
    let mut text = String::new();
    for word in next_word_candidates(&words, &DaemonCandidates) {
        text.push_str(&word);
        text.push('\n');
    }
    terminal::print_text(&text)
}

/// Completion candidates that depend on running paths.
trait PathCandidates {
    /// Returns the names of this user's paths, and the numbers of unnamed paths.
    fn paths(&self) -> Vec<String>;
    /// Returns the names of a path's nodes, and the names of their spaces.
    fn nodes_and_spaces(&self, path: &str) -> (Vec<String>, Vec<String>);
}

fn next_word_candidates(words: &[&str], candidates: &dyn PathCandidates) -> Vec<String> {
    let Some((command, behind)) = words.split_first() else { return Vec::new() };
    let behind: Vec<&str> = behind.iter().copied().filter(|word| !word.starts_with('-')).collect();
    match (*command, behind.as_slice()) {
        ("stop", named) => {
            let mut paths = candidates.paths();
            paths.retain(|path| !named.contains(&path.as_str()));
            paths
        }
        ("attach" | "top" | "spaces" | "set" | "tap", []) => candidates.paths(),
        ("set", [path, words @ ..]) => set_command_candidates(path, words, candidates),
        ("completion", []) => Shell::value_variants().iter().map(Shell::to_string).collect(),
        _ => Vec::new(),
    }
}

/// Returns the candidates for the next word of `set PATH …`.
fn set_command_candidates(
    path: &str,
    words: &[&str],
    candidates: &dyn PathCandidates,
) -> Vec<String> {
    let nodes = || candidates.nodes_and_spaces(path).0;
    let spaces = || candidates.nodes_and_spaces(path).1;
    let owned = |words: &[&str]| words.iter().map(|word| (*word).to_owned()).collect::<Vec<_>>();
    match words {
        [] => owned(&[
            "add", "arg", "insert", "join", "move", "pin", "remove", "replace", "sever", "upgrade",
        ]),
        ["add" | "insert"] | ["replace", _, "with"] => {
            MachineRegistry::descriptions().map(|known| known.name.to_owned()).collect()
        }
        ["insert", _] => owned(&["after", "at", "before"]),
        ["insert", _, "after" | "at" | "before"] => nodes(),
        ["add", _] | ["join", _] => owned(&["below"]),
        ["sever", _] => owned(&["from"]),
        ["remove", _] => owned(&["all", "leaf"]),
        ["add" | "join" | "move", _, "below"] | ["sever" | "move", _, "from"] => nodes(),
        ["move", _, "into"] => candidates.paths(),
        ["move", _, "from" | "into", _] => owned(&["below"]),
        ["move", _, "into", other, "below"] => candidates.nodes_and_spaces(other).0,
        ["move", _, "from", _, "below"] => nodes(),
        ["remove" | "replace" | "move" | "upgrade" | "arg" | "join" | "sever"] => nodes(),
        ["arg", node, ..] => writable_arguments(node),
        ["replace", _] => owned(&["with"]),
        ["move", _] => {
            let mut places = owned(&["below", "from", "into", "kernel", "process", "sandbox"]);
            places.extend(spaces());
            places
        }
        ["pin"] => spaces(),
        ["pin", _] => owned(&["any"]),
        _ => Vec::new(),
    }
}

/// Returns the writable arguments of a node, each followed by `=`, such as `every=`.
fn writable_arguments(node: &str) -> Vec<String> {
    let name = node.split(['#', ':']).next().unwrap_or(node);
    let parameters = MachineRegistry::Local.find(name).map_or(&[][..], |entry| entry.parameters);
    let writable = parameters.iter().filter(|known| known.writable);
    writable.map(|known| format!("{}=", known.name)).collect()
}

/// The completion candidates that the daemon provides: its paths, with their nodes and spaces.
struct DaemonCandidates;

impl PathCandidates for DaemonCandidates {
    fn paths(&self) -> Vec<String> {
        let own = sys::process::effective_ids().0;
        let listed = Client::find(None).and_then(|client| client.list_paths()).unwrap_or_default();
        let ours = listed.into_iter().filter(|path| path.uid == own);
        ours.map(|path| path.name.unwrap_or_else(|| path.number.to_string())).collect()
    }

    fn nodes_and_spaces(&self, path: &str) -> (Vec<String>, Vec<String>) {
        let reached = Client::find(None).and_then(|client| client.connect_and_describe(path));
        let nodes = reached.map(|(_, PathDescription { nodes, .. })| nodes).unwrap_or_default();
        let mut spaces: Vec<String> = nodes.iter().map(|node| node.space.clone()).collect();
        spaces.sort_unstable();
        spaces.dedup();
        (nodes.into_iter().map(|node| node.name).collect(), spaces)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    struct FakeCandidates;

    impl PathCandidates for FakeCandidates {
        fn paths(&self) -> Vec<String> {
            vec!["web".to_owned(), "7".to_owned()]
        }

        fn nodes_and_spaces(&self, path: &str) -> (Vec<String>, Vec<String>) {
            assert_eq!(path, "web");
            (vec!["rx".to_owned(), "count".to_owned()], vec!["thread0".to_owned()])
        }
    }

    #[test]
    fn completion_offers_paths_and_node_names() {
        let all = |words: &str| {
            next_word_candidates(&words.split(' ').collect::<Vec<_>>(), &FakeCandidates)
        };
        assert_eq!(all("stop"), ["web", "7"]);
        assert_eq!(all("stop --no-wait web"), ["7"], "each path once");
        for command in ["attach", "top", "spaces", "set", "tap"] {
            assert_eq!(all(command), ["web", "7"], "{command}");
        }
        assert!(all("attach web").is_empty() && all("ps").is_empty() && all("").is_empty());
        assert_eq!(all("set web remove"), ["rx", "count"]);
        assert_eq!(all("set web insert dport before"), ["rx", "count"]);
        assert_eq!(all("set web insert dport"), ["after", "at", "before"]);
        assert_eq!(all("set web replace count"), ["with"]);
        assert!(all("set web insert").contains(&"dport".to_owned()));
        assert_eq!(all("set web arg"), ["rx", "count"]);
        assert_eq!(all("set web arg ratelimit#a:2"), ["rate=", "per=", "burst="]);
        assert!(all("set web arg count").is_empty());
        assert_eq!(all("set web pin"), ["thread0"]);
        assert_eq!(
            all("set web move count"),
            ["below", "from", "into", "kernel", "process", "sandbox", "thread0"]
        );
        assert_eq!(all("set web move count from rx below"), ["rx", "count"]);
        assert_eq!(all("set web join count below"), ["rx", "count"]);
        assert_eq!(all("set web sever count"), ["from"]);
        assert!(all("completion").contains(&"fish".to_owned()));
    }
}
