//! `streamline spaces`: lists the threads, processes and kernel programs in which paths run, with
//! their filters, state, processors and usage, and with the fill of the rings between them.

use super::connect::{connect_daemon, print_silent_paths, user_name};
use super::shared_programs;
use super::table::format_table;
use crate::arguments::paths::SpacesArguments;
use crate::failure::{is_path_gone, report_client_error};
use crate::progress::{format_bytes_short, format_consecutive_ranges};
use crate::status::Status;
use crate::terminal;
use member::client::{Client, ClientError, DESCRIBE_METHOD, QUERY_TIMEOUT, mask_hidden_characters};
use member::protocol::{
    Amount, Counters, Edge, Node, PathDescription, RegisteredPath, Space, sum_lost_blocks,
};
use pipeline::explain::format_rounded_duration;
use serde::Serialize;
use streamline::report::{json_line, to_object};

/// Version of the output format of `spaces --json`.
const JSON_VERSION: u32 = 1;
/// Name of the space for filters that run in the kernel.
const KERNEL_SPACE: &str = "kernel";

/// A path with its spaces and rings, as `spaces` prints them.
#[derive(Serialize)]
struct PathSpaces {
    number: u32,
    name: Option<String>,
    uid: u32,
    process: u32,
    line: String,
    spaces: Vec<SpaceRow>,
    rings: Vec<SpaceRing>,
}

/// A space with its filters and its usage, as a row of `spaces`.
#[derive(Serialize)]
struct SpaceRow {
    #[serde(flatten)]
    space: Space,
    filters: Vec<String>,
}

/// A ring between two spaces, or between a node and its replicas, as a row of `spaces`.
#[derive(Serialize)]
struct SpaceRing {
    kind: String,
    /// Space and node of the writer; the space is empty for a ring between a node and its replicas.
    from: (String, String),
    /// Space and node of the reader; the space is empty for a ring between a node and its replicas.
    to: (String, String),
    /// Capacity of the ring in blocks. `None` if the ring holds bytes, or if it connects a node
    /// with its replicas.
    room: Option<u64>,
    /// Counts at both ends of the ring, or `None` if the path does not report any.
    counted: Option<RingCounts>,
}

/// The counts of a ring: the blocks and bytes that the writer put, that the reader took, and that
/// are in the ring now, and the number of lost blocks.
#[derive(Clone, Copy, Default, Serialize)]
struct RingCounts {
    put: Amount,
    taken: Amount,
    resident: Amount,
    lost: u64,
}

/// Lists the spaces of a path or, without an argument, of all the user's paths.
pub(super) fn run(arguments: &SpacesArguments) -> Result<Status, Status> {
    let client = connect_daemon()?;
    let failed = |error: ClientError| report_client_error(&error);
    let paths = match &arguments.path {
        Some(path) => {
            let mut looked = query_paths(&client, &[(0, path.clone())]);
            vec![looked.pop().unwrap_or(Err(ClientError::Timeout)).map_err(failed)?]
        }
        None => query_user_paths(&client, client.list_paths().map_err(failed)?),
    };
    let mut kernel = shared_programs::fetch_programs(&client);
    if arguments.path.is_some() {
        let ours = |number: Option<u32>| paths.iter().any(|path| Some(path.number) == number);
        kernel.retain(|program| program.lines.iter().any(|line| ours(line.path)));
    }
    Ok(terminal::print_text(&match arguments.json {
        true => json_line(&to_object(&[
            ("version", &JSON_VERSION),
            ("paths", &paths),
            ("kernel", &kernel),
        ])),
        false if paths.is_empty() && kernel.is_empty() => "no paths run\n".to_owned(),
        false => {
            let pages: Vec<String> = paths.iter().map(format_path).collect();
            pages.join("\n")
                + &shared_programs::format_tables(&kernel, terminal::terminal_columns())
        }
    }))
}

/// Returns the spaces of the user's paths. Omits paths that do not reply, and prints a message
/// about each of them unless the path has ended.
fn query_user_paths(client: &Client, listed: Vec<RegisteredPath>) -> Vec<PathSpaces> {
    let listed: Vec<RegisteredPath> = listed.into_iter().filter(|path| path.yours).collect();
    let names: Vec<_> = listed.iter().map(|path| (path.uid, path.number.to_string())).collect();
    let (mut paths, mut silent) = (Vec::new(), Vec::new());
    for (path, looked) in listed.iter().zip(query_paths(client, &names)) {
        match looked {
            Ok(spaces_of_path) => paths.push(spaces_of_path),
            // The path has ended since it was listed.
            Err(error) if is_path_gone(&error) => {}
            Err(ClientError::Timeout) => silent.push(path),
            Err(error) => {
                terminal::print_error(&format!("path {}: {error}", path.number));
            }
        }
    }
    print_silent_paths(silent.into_iter());
    paths
}

/// Queries the spaces of several paths in parallel. Each path is given by its user id and its
/// number or name.
fn query_paths(client: &Client, names: &[(u32, String)]) -> Vec<Result<PathSpaces, ClientError>> {
    // The description is requested after the counters, so it is not older than the counters.
    client.query_all_counters(names, &[DESCRIBE_METHOD], QUERY_TIMEOUT, |to, counters, replies| {
        let about = replies.into_iter().next().unwrap_or_default();
        Ok(path_spaces(about.deserialize_result()?, to.uid(), counters))
    })
}

fn path_spaces(about: PathDescription, uid: u32, counters: Counters) -> PathSpaces {
    let rings = list_rings(&about, &counters);
    let filters = |space: &Space| -> Vec<String> {
        let engine = space.kind == "engine";
        let copied = |node: &Node| node.copies.contains(&space.name);
        let nodes = about.nodes.iter().filter(|n| engine || n.space == space.name || copied(n));
        nodes.map(|node| node.name.clone()).collect()
    };
    let mut spaces = counters.spaces;
    let engines = spaces.iter().any(|space| space.kind == "engine");
    if !engines && about.nodes.iter().any(|node| node.space == KERNEL_SPACE) {
        let (name, state) = (KERNEL_SPACE.to_owned(), "runs".to_owned());
        let kernel = Space { kind: name.clone(), name, state, ..Space::default() };
        spaces.insert(0, kernel);
    }
    let row = |space: Space| SpaceRow { filters: filters(&space), space };
    let spaces = spaces.into_iter().map(row).collect();
    let PathDescription { number, name, process, line, .. } = about;
    PathSpaces { number, name, uid, process, line, spaces, rings }
}

/// Returns the rings between spaces, and the rings that connect a node with its replicas.
fn list_rings(about: &PathDescription, counters: &Counters) -> Vec<SpaceRing> {
    let is_call = |kind: &str| matches!(kind, "call" | "back");
    let links = about.links.iter().enumerate();
    let links = links.filter(|(_, link)| !is_call(&link.transport));
    let end = |node: usize| match about.nodes.get(node) {
        Some(node) => (node.space.clone(), node.name.clone()),
        None => (String::new(), String::new()),
    };
    let planned = links.map(|(number, link)| {
        // A call within a space can have the same edge number as a ring, but is not a ring.
        let of = || counters.edges.iter().filter(|e| e.edge == number && !is_call(&e.kind));
        // The capacity is the largest current size among all worker processes or, if unknown, the
        // size that the plan permits.
        let now = of().filter_map(|edge| Some(edge.size.as_ref()?.entries)).max();
        SpaceRing {
            kind: link.transport.clone(),
            from: end(link.from),
            to: end(link.to),
            room: now.or(link.room),
            counted: of().map(RingCounts::from_edge).reduce(RingCounts::merged),
        }
    });
    let between =
        counters.edges.iter().filter(|edge| matches!(edge.kind.as_str(), "deal" | "join"));
    let between = between.map(|edge| SpaceRing {
        kind: edge.kind.clone(),
        from: (String::new(), edge.from.clone()),
        to: (String::new(), edge.to.clone()),
        room: None,
        counted: Some(RingCounts::from_edge(edge)),
    });
    planned.chain(between).collect()
}

impl RingCounts {
    fn from_edge(edge: &Edge) -> Self {
        let lost = sum_lost_blocks(&edge.lost);
        Self { put: edge.put, taken: edge.taken, resident: edge.resident, lost }
    }

    /// Returns the sums of these counts and of `other`, the counts of the same ring in another
    /// worker process.
    fn merged(self, other: Self) -> Self {
        let sum =
            |a: Amount, b: Amount| Amount { blocks: a.blocks + b.blocks, bytes: a.bytes + b.bytes };
        Self {
            put: sum(self.put, other.put),
            taken: sum(self.taken, other.taken),
            resident: sum(self.resident, other.resident),
            lost: self.lost + other.lost,
        }
    }
}

fn format_path(path: &PathSpaces) -> String {
    let name = path
        .name
        .as_deref()
        .map_or_else(String::new, |name| format!(" {}", mask_hidden_characters(name)));
    let line = mask_hidden_characters(&path.line.replace('\n', " "));
    let mut text = format!(
        "path {}{name} of {}, process {}: {line}\n",
        path.number,
        user_name(path.uid),
        path.process
    );
    let rows: Vec<_> = path.spaces.iter().map(space_cells).collect();
    let head = ["SPACE", "KIND", "CPUS", "STATE", "TIME", "MEMORY", "FILTERS"];
    text.push_str(&format_table(head, &rows, &[4, 5], terminal::terminal_columns()));
    for space in &path.spaces {
        let Space { name, waits, late, .. } = &space.space;
        let why = waits.as_ref().map(|what| format!("waits for {what}")).or_else(|| late.clone());
        why.iter().for_each(|why| {
            text.push_str(&format!(
                "{}: {}\n",
                mask_hidden_characters(name),
                mask_hidden_characters(why)
            ))
        });
    }
    if !path.rings.is_empty() {
        let rows: Vec<_> = path.rings.iter().map(ring_cells).collect();
        let head = ["RING", "FROM", "TO", "FILL", "SIZE", "PUT", "TAKEN", "LOST"];
        text.push('\n');
        text.push_str(&format_table(head, &rows, &[3, 4, 5, 6, 7], terminal::terminal_columns()));
    }
    text
}

fn space_cells(row: &SpaceRow) -> [String; 7] {
    let SpaceRow { space, filters } = row;
    let dash = || "-".to_owned();
    let is = match (space.thread, space.process) {
        (Some(thread), _) => format!("thread {thread}"),
        (None, Some(process)) => format!("{} {process}", mask_hidden_characters(&space.kind)),
        (None, None) if space.kind == KERNEL_SPACE => "a program".to_owned(),
        (None, None) => mask_hidden_characters(&space.kind),
    };
    let runs = space.process.is_some();
    [
        mask_hidden_characters(&space.name),
        is,
        match (space.processors.as_slice(), space.processor) {
            ([], _) => dash(),
            (all @ [_, _, ..], Some(here)) => format!("{here} of {}", format_ranges(all)),
            (all, _) => format_ranges(all),
        },
        mask_hidden_characters(&space.state),
        if runs { format_rounded_duration(space.processor_ns) } else { dash() },
        space.memory.map_or_else(dash, format_bytes_short),
        match filters.is_empty() {
            true => dash(),
            false => filters
                .iter()
                .map(|name| mask_hidden_characters(name))
                .collect::<Vec<_>>()
                .join(" "),
        },
    ]
}

fn ring_cells(ring: &SpaceRing) -> [String; 8] {
    let end = |(space, node): &(String, String)| match space.is_empty() {
        true => mask_hidden_characters(node),
        false => format!("{} in {}", mask_hidden_characters(node), mask_hidden_characters(space)),
    };
    let dash = || "-".to_owned();
    let count = |of: fn(RingCounts) -> u64| ring.counted.map_or_else(dash, |it| of(it).to_string());
    [
        mask_hidden_characters(&ring.kind),
        end(&ring.from),
        end(&ring.to),
        count(|it| it.resident.blocks),
        ring.room.map_or_else(dash, |room| room.to_string()),
        count(|it| it.put.blocks),
        count(|it| it.taken.blocks),
        count(|it| it.lost),
    ]
}

/// Formats processor numbers as ranges, such as `0-2,5`.
fn format_ranges(processors: &[usize]) -> String {
    format_consecutive_ranges(processors.iter().map(|processor| *processor as u64)).join(",")
}

#[cfg(test)]
mod tests {
    #[test]
    fn consecutive_processors_form_a_range() {
        assert_eq!(super::format_ranges(&[0, 1, 2, 5, 7, 8]), "0-2,5,7-8");
        assert_eq!(super::format_ranges(&[3]), "3");
    }
}
