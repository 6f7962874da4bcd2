//! The shared prefixes of a request and the paths that read them, for `explain`.

use member::client::Client;
use member::protocol::Path;
use pipeline::plan::Plan;
use pipeline::prefix;
use serde::Serialize;

/// A shared prefix of a request.
#[derive(Serialize, Debug)]
pub(crate) struct SharedPrefix {
    prefix: String,
    /// Numbers of the paths that currently read the prefix.
    readers: Vec<u32>,
    /// Number of the path that runs the prefix; `null` if no path runs it yet.
    path: Option<u32>,
}

/// Returns the shared prefixes of a plan.
pub(crate) fn find_prefixes(plan: &Plan) -> Vec<SharedPrefix> {
    let used = plan.graph.nodes.iter().filter_map(pipeline::graph::Node::filter);
    let used = used.filter(|used| used.description.name == prefix::SHARED_SOURCE);
    let mut prefixes: Vec<&str> = used.filter_map(|used| used.arguments.text("prefix")).collect();
    prefixes.dedup();
    if prefixes.is_empty() {
        return Vec::new();
    }
    let uid = sys::process::identity().0;
    let listed = Client::find(None).and_then(|client| client.list_paths()).unwrap_or_default();
    let own: Vec<Path> = listed.into_iter().filter(|path| path.uid == uid).collect();
    let numbers = |text: &str| -> Vec<u32> {
        let reads = |path: &&Path| path.line.as_ref().is_some_and(|line| line.contains(text));
        own.iter().filter(reads).map(|path| path.number).collect()
    };
    let found = |prefix: &str| SharedPrefix {
        readers: numbers(&prefix::source_text(prefix)),
        path: numbers(&prefix::prefix_request(prefix)).first().copied(),
        prefix: prefix.to_owned(),
    };
    prefixes.into_iter().map(found).collect()
}

/// Formats the shared prefixes; empty if there are none.
pub(crate) fn format_prefixes(plan: &Plan) -> String {
    let line = |found: SharedPrefix| {
        let SharedPrefix { prefix, readers, path } = found;
        match path {
            Some(path) => {
                let all: Vec<String> = readers.iter().map(u32::to_string).collect();
                let requests = if all.len() == 1 { "request" } else { "requests" };
                format!(
                    " shared       `{prefix}` with {} {requests} ({}): path {path} runs it once\n",
                    all.len(),
                    all.join(", ")
                )
            }
            None => {
                format!(
                    " shared       `{prefix}` with no other request: a process is started for \
                         it\n"
                )
            }
        }
    };
    find_prefixes(plan).into_iter().map(line).collect()
}
