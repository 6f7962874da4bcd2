//! Description of shared prefixes for `explain`. A shared prefix consists of the source and the
//! first filters that several requests have in common. It runs only once, in a separate process
//! (`--prefix=shared`), and the paths of the requests read its output.

use engine::registry::MachineRegistry;
use member::client::Client;
use member::protocol::RegisteredPath;
use pipeline::plan::Plan;
use pipeline::prefix;
use serde::Serialize;

/// A shared prefix that a request reads, with the paths that run it and read it.
#[derive(Serialize, Debug)]
pub(crate) struct SharedPrefix {
    prefix: String,
    /// Numbers of the paths that currently read the prefix.
    readers: Vec<u32>,
    /// Number of the path that runs the shared prefix, or `None` if no path runs it yet.
    path: Option<u32>,
}

/// Returns the shared prefixes that the sources of a plan read, with the paths that run and read
/// them.
pub(crate) fn find_prefixes(plan: &Plan) -> Vec<SharedPrefix> {
    let used = plan.graph.nodes.iter().filter_map(pipeline::graph::Node::filter);
    let used = used.filter(|used| used.description.name == prefix::SHARED_SOURCE);
    let mut prefixes: Vec<&str> = used.filter_map(|used| used.arguments.text("prefix")).collect();
    prefixes.dedup();
    if prefixes.is_empty() {
        return Vec::new();
    }
    let uid = sys::process::effective_ids().0;
    let listed = Client::find(None).and_then(|client| client.list_paths()).unwrap_or_default();
    let own: Vec<RegisteredPath> = listed.into_iter().filter(|path| path.uid == uid).collect();
    let numbers = |matches: &dyn Fn(&str) -> bool| -> Vec<u32> {
        let reads = |path: &&RegisteredPath| path.line.as_ref().is_some_and(|line| matches(line));
        own.iter().filter(reads).map(|path| path.number).collect()
    };
    let found = |prefix: &str| SharedPrefix {
        readers: numbers(&|line| line.contains(&prefix::shared_source_text(prefix))),
        path: numbers(&|line| prefix::offers_prefix(line, prefix)).first().copied(),
        prefix: prefix.to_owned(),
    };
    prefixes.into_iter().map(found).collect()
}

/// Running requests that begin with the same filters as a given request, but do not share a process
/// with it.
#[derive(Serialize, Debug)]
pub(crate) struct SimilarRequests {
    /// The longest prefix that these requests and the given request have in common.
    prefix: String,
    /// Numbers of this user's paths that run requests with this prefix and could share its process.
    own: Vec<u32>,
    /// The paths of other users, with which a process is never shared.
    others: Vec<ForeignPath>,
}

/// Beginning of a source that reads a shared prefix, as it appears in the text of a request.
const SHARED_SOURCE_TEXT: &str = "shared \"";

/// A visible path of another user.
#[derive(Serialize, Debug)]
struct ForeignPath {
    number: u32,
    uid: u32,
}

/// Finds the running requests that begin with the same filters as the request `text`. Omits the
/// requests whose path runs a prefix that others share. If `text` itself reads a shared prefix,
/// also omits the same user's requests that read one. Returns `None` if no requests remain, or if
/// there is no daemon.
pub(crate) fn find_similar_requests(text: &str) -> Option<SimilarRequests> {
    let prefixes = prefix::request_prefixes(text, &MachineRegistry::Local);
    prefixes.first()?;
    let uid = sys::process::effective_ids().0;
    let listed = Client::find(None).and_then(|client| client.list_paths()).ok()?;
    let begins = |path: &RegisteredPath, prefix: &String| {
        let line = path.line.as_deref().filter(|line| !line.contains("share \""));
        line.is_some_and(|line| {
            prefix::request_prefixes(line, &MachineRegistry::Local).contains(prefix)
        })
    };
    prefixes.into_iter().find_map(|prefix| {
        let all = listed.iter().filter(|path| begins(path, &prefix));
        let (own, others): (Vec<&RegisteredPath>, Vec<&RegisteredPath>) =
            all.partition(|path| path.uid == uid);
        let is_apart =
            |line: &str| !text.contains(SHARED_SOURCE_TEXT) || !line.contains(SHARED_SOURCE_TEXT);
        let apart = own.iter().filter(|path| path.line.as_deref().is_some_and(is_apart));
        let own: Vec<u32> = apart.map(|path| path.number).collect();
        let others = others.iter().map(|path| ForeignPath { number: path.number, uid: path.uid });
        let found = SimilarRequests { prefix, own, others: others.collect() };
        (!found.own.is_empty() || !found.others.is_empty()).then_some(found)
    })
}

/// Formats the running requests that begin with the same filters as the request `text`. Returns an
/// empty string if there are none.
pub(crate) fn format_similar_requests(text: &str) -> String {
    let Some(SimilarRequests { prefix, own, others }) = find_similar_requests(text) else {
        return String::new();
    };
    let mut lines = String::new();
    if !own.is_empty() {
        let paths = format_paths(own.iter().map(u32::to_string));
        lines += &format!(
            " alike        `{prefix}` also begins {paths}: with `--prefix=shared` in each,\n\
             \x20             one process runs it once\n"
        );
    }
    if !others.is_empty() {
        let paths =
            format_paths(others.iter().map(|path| format!("{} (user {})", path.number, path.uid)));
        lines += &format!(
            " apart        `{prefix}` also begins {paths}: users share only the program in the\n\
             \x20             kernel, because it decides which frames each may see\n"
        );
    }
    lines
}

fn format_paths(numbers: impl Iterator<Item = String>) -> String {
    let all: Vec<String> = numbers.collect();
    format!("{} {}", if all.len() == 1 { "path" } else { "paths" }, all.join(", "))
}

/// Formats the shared prefixes that a plan reads. Returns an empty string if there are none.
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
                    " shared       `{prefix}` with no other request: a process is started for it\n"
                )
            }
        }
    };
    find_prefixes(plan).into_iter().map(line).collect()
}
