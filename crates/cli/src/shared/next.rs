//! The next word of a command that speaks to paths: what completion scripts ask.
//!
//! In: the command and the words before the one that is typed. Out: every word that may stand
//! there, one per line: paths of this user, and of the one that is named its nodes and spaces.
//! Without a daemon, or where a path does not answer, there is nothing to offer.

use crate::status::Status;
use crate::terminal;
use engine::catalogue::House;
use member::client::Client;
use member::protocol::Described;

/// Prints all words that may come next.
pub(crate) fn complete(words: &[String]) -> Status {
    let words: Vec<&str> = words.iter().map(String::as_str).collect();
    let mut text = String::new();
    for word in next(&words, &Daemon) {
        text.push_str(&word);
        text.push('\n');
    }
    terminal::print(&text)
}

/// Names that a command can complete.
trait Around {
    /// The paths of this user: their names, or numbers.
    fn paths(&self) -> Vec<String>;
    /// Returns the parts of a path: its nodes, and the spaces in which they run.
    fn parts(&self, path: &str) -> (Vec<String>, Vec<String>);
}

fn next(words: &[&str], around: &dyn Around) -> Vec<String> {
    let Some((command, behind)) = words.split_first() else { return Vec::new() };
    let behind: Vec<&str> = behind.iter().copied().filter(|word| !word.starts_with('-')).collect();
    match (*command, behind.as_slice()) {
        ("stop", named) => {
            let mut paths = around.paths();
            paths.retain(|path| !named.contains(&path.as_str()));
            paths
        }
        ("attach" | "top" | "spaces" | "set" | "tap", []) => around.paths(),
        ("set", [path, words @ ..]) => change(path, words, around),
        _ => Vec::new(),
    }
}

/// The next word of a change of a path.
fn change(path: &str, words: &[&str], around: &dyn Around) -> Vec<String> {
    let nodes = || around.parts(path).0;
    let spaces = || around.parts(path).1;
    let owned = |words: &[&str]| words.iter().map(|word| (*word).to_owned()).collect::<Vec<_>>();
    match words {
        [] => owned(&["insert", "move", "pin", "remove", "replace", "upgrade"]),
        ["insert"] | ["replace", _, "with"] => {
            House.descriptions().map(|known| known.name.to_owned()).collect()
        }
        ["insert", _] => owned(&["after", "at", "before"]),
        ["insert", _, "after" | "at" | "before"] => nodes(),
        ["remove" | "replace" | "move" | "upgrade"] => nodes(),
        ["replace", _] => owned(&["with"]),
        ["move", _] => {
            let mut places = owned(&["kernel", "process", "sandbox"]);
            places.extend(spaces());
            places
        }
        ["pin"] => spaces(),
        ["pin", _] => owned(&["any"]),
        _ => Vec::new(),
    }
}

/// The daemon that is here.
struct Daemon;

impl Around for Daemon {
    fn paths(&self) -> Vec<String> {
        let own = sys::process::identity().0;
        let listed = Client::find(None).and_then(|client| client.list()).unwrap_or_default();
        let ours = listed.into_iter().filter(|path| path.uid == own);
        ours.map(|path| path.name.unwrap_or_else(|| path.number.to_string())).collect()
    }

    fn parts(&self, path: &str) -> (Vec<String>, Vec<String>) {
        let reached = Client::find(None).and_then(|client| client.reach(path));
        let nodes = reached.map(|(_, Described { nodes, .. })| nodes).unwrap_or_default();
        let mut spaces: Vec<String> = nodes.iter().map(|node| node.space.clone()).collect();
        spaces.sort_unstable();
        spaces.dedup();
        (nodes.into_iter().map(|node| node.name).collect(), spaces)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    struct Made;

    impl Around for Made {
        fn paths(&self) -> Vec<String> {
            vec!["web".to_owned(), "7".to_owned()]
        }

        fn parts(&self, path: &str) -> (Vec<String>, Vec<String>) {
            assert_eq!(path, "web");
            (vec!["rx".to_owned(), "count".to_owned()], vec!["thread0".to_owned()])
        }
    }

    #[test]
    fn completion_offers_paths_and_node_names() {
        let all = |words: &str| next(&words.split(' ').collect::<Vec<_>>(), &Made);
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
        assert_eq!(all("set web pin"), ["thread0"]);
        assert_eq!(all("set web move count"), ["kernel", "process", "sandbox", "thread0"]);
    }
}
