//! `streamline spaces`: the threads, processes and programs of the kernel in which paths run, as
//! each tells of itself: what stands in it, what it does, where it runs, what it has used, and what
//! lies in the rings between them.

use super::table::table;
use super::words::SpacesArguments;
use super::{client, complain, is_over, sharing, user};
use crate::progress::short;
use crate::status::Status;
use crate::terminal;
use member::client::{COUNT, Client, ClientError, DESCRIBE, TOGETHER, plain};
use member::protocol::{Amount, Count, Counters, Described, Edge, Node, Path, Program, Space};
use pipeline::explain::about as spent;
use serde::Serialize;
use streamline::report::json_line;

/// The version of the form of `--json`.
const VERSION: u32 = 1;
/// The space that is not one of a process.
const KERNEL: &str = "kernel";

#[derive(Serialize)]
struct Listed {
    version: u32,
    paths: Vec<OfPath>,
    /// The programs in which lines run.
    kernel: Vec<Program>,
}

/// The spaces of a path.
#[derive(Serialize)]
struct OfPath {
    number: u32,
    name: Option<String>,
    uid: u32,
    process: u32,
    line: String,
    spaces: Vec<Row>,
    rings: Vec<Ring>,
}

/// A space, and what stands in it.
#[derive(Serialize)]
struct Row {
    #[serde(flatten)]
    space: Space,
    filters: Vec<String>,
}

/// A ring between two spaces.
#[derive(Serialize)]
struct Ring {
    kind: String,
    /// The space and the node from which it comes.
    from: (String, String),
    /// Those to which it leads.
    to: (String, String),
    /// Capacity in blocks; `None` for bytes.
    room: Option<u64>,
    /// The counts; `None` until they are answered.
    counted: Option<Crossed>,
}

/// The counts of both sides.
#[derive(Clone, Copy, Default, Serialize)]
struct Crossed {
    put: Amount,
    taken: Amount,
    resident: Amount,
    lost: u64,
}

/// Lists them.
pub(super) fn run(given: &SpacesArguments) -> Result<Status, Status> {
    let client = client()?;
    let failed = |error: ClientError| complain(&error);
    let paths = match &given.path {
        Some(path) => {
            let mut looked = look(&client, &[(0, path.clone())]);
            vec![looked.pop().unwrap_or(Err(ClientError::Silent)).map_err(failed)?]
        }
        None => all(&client, client.list().map_err(failed)?),
    };
    let mut kernel = sharing::look(&client);
    if given.path.is_some() {
        let ours = |number: Option<u32>| paths.iter().any(|path| Some(path.number) == number);
        kernel.retain(|program| program.lines.iter().any(|line| ours(line.path)));
    }
    Ok(terminal::print(&match given.json {
        true => json_line(&Listed { version: VERSION, paths, kernel }),
        false if paths.is_empty() && kernel.is_empty() => "no paths run\n".to_owned(),
        false => {
            let pages: Vec<String> = paths.iter().map(page).collect();
            pages.join("\n") + &sharing::page(&kernel, terminal::columns())
        }
    }))
}

/// All that are ours and answer; names those that do not.
fn all(client: &Client, listed: Vec<Path>) -> Vec<OfPath> {
    let listed: Vec<Path> = listed.into_iter().filter(|path| path.yours).collect();
    let names: Vec<_> = listed.iter().map(|path| (path.uid, path.number.to_string())).collect();
    let (mut paths, mut silent) = (Vec::new(), Vec::new());
    for (path, looked) in listed.iter().zip(look(client, &names)) {
        match looked {
            Ok(told) => paths.push(told),
            // It has ended since it was listed.
            Err(error) if is_over(&error) => {}
            Err(ClientError::Silent) => silent.push(path),
            Err(error) => {
                terminal::complain(&format!("path {}: {error}", path.number));
            }
        }
    }
    super::name_silent(silent.into_iter());
    paths
}

/// Asks the processes of these paths, all at once.
fn look(client: &Client, names: &[(u32, String)]) -> Vec<Result<OfPath, ClientError>> {
    // What runs where may have changed until the second answer, and is as new as the first or
    // newer.
    client.ask_all(names, &[COUNT, DESCRIBE], TOGETHER, |to, replies| {
        let mut replies = replies.into_iter();
        let mut next = || replies.next().unwrap_or_default();
        let Count { counters } = next().take()?;
        Ok(of_path(next().take()?, to.uid(), counters))
    })
}

fn of_path(about: Described, uid: u32, counters: Counters) -> OfPath {
    let rings = rings(&about, &counters);
    let filters = |space: &Space| -> Vec<String> {
        let engine = space.kind == "engine";
        let copied = |node: &Node| node.copies.contains(&space.name);
        let here = about.nodes.iter().filter(|n| engine || n.space == space.name || copied(n));
        here.map(|node| node.name.clone()).collect()
    };
    let mut spaces = counters.spaces;
    let engines = spaces.iter().any(|space| space.kind == "engine");
    if !engines && about.nodes.iter().any(|node| node.space == KERNEL) {
        let (name, state) = (KERNEL.to_owned(), "runs".to_owned());
        let kernel = Space { kind: name.clone(), name, state, ..Space::default() };
        spaces.insert(0, kernel);
    }
    let row = |space: Space| Row { filters: filters(&space), space };
    let spaces = spaces.into_iter().map(row).collect();
    let Described { number, name, process, line, .. } = about;
    OfPath { number, name, uid, process, line, spaces, rings }
}

/// Returns the rings between nodes of two spaces, or between a node and its replicas.
fn rings(about: &Described, counters: &Counters) -> Vec<Ring> {
    let is_call = |kind: &str| matches!(kind, "call" | "back");
    let links = about.links.iter().enumerate();
    let links = links.filter(|(_, link)| !is_call(&link.transport));
    let end = |node: usize| match about.nodes.get(node) {
        Some(node) => (node.space.clone(), node.name.clone()),
        None => (String::new(), String::new()),
    };
    let planned = links.map(|(number, link)| {
        // What hands it on at either end is called, and bears the same number.
        let of = counters.edges.iter().filter(|e| e.edge == number && !is_call(&e.kind));
        Ring {
            kind: link.transport.clone(),
            from: end(link.from),
            to: end(link.to),
            room: link.room,
            counted: of.map(Crossed::of).reduce(Crossed::and),
        }
    });
    let between =
        counters.edges.iter().filter(|edge| matches!(edge.kind.as_str(), "deal" | "join"));
    let between = between.map(|edge| Ring {
        kind: edge.kind.clone(),
        from: (String::new(), edge.from.clone()),
        to: (String::new(), edge.to.clone()),
        room: None,
        counted: Some(Crossed::of(edge)),
    });
    planned.chain(between).collect()
}

impl Crossed {
    fn of(edge: &Edge) -> Self {
        let lost = edge.lost.iter().filter_map(|lost| lost.blocks).sum();
        Self { put: edge.put, taken: edge.taken, resident: edge.resident, lost }
    }

    /// Adds the counts of several workers.
    fn and(self, other: Self) -> Self {
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

fn page(path: &OfPath) -> String {
    let name = path.name.as_deref().map_or_else(String::new, |name| format!(" {}", plain(name)));
    let line = plain(&path.line.replace('\n', " "));
    let mut text = format!(
        "path {}{name} of {}, process {}: {line}\n",
        path.number,
        user(path.uid),
        path.process
    );
    let rows: Vec<_> = path.spaces.iter().map(row).collect();
    let head = ["SPACE", "IS", "CPUS", "STATE", "TIME", "MEMORY", "FILTERS"];
    text.push_str(&table(head, &rows, &[4, 5], terminal::columns()));
    for space in &path.spaces {
        let Space { name, waits, late, .. } = &space.space;
        let why = waits.as_ref().map(|what| format!("waits for {what}")).or_else(|| late.clone());
        why.iter().for_each(|why| text.push_str(&format!("{}: {}\n", plain(name), plain(why))));
    }
    if !path.rings.is_empty() {
        let rows: Vec<_> = path.rings.iter().map(ring).collect();
        let head = ["RING", "FROM", "TO", "HOLDS", "OF", "PUT", "TAKEN", "LOST"];
        text.push('\n');
        text.push_str(&table(head, &rows, &[3, 4, 5, 6, 7], terminal::columns()));
    }
    text
}

fn row(row: &Row) -> [String; 7] {
    let Row { space, filters } = row;
    let dash = || "-".to_owned();
    let is = match (space.thread, space.process) {
        (Some(thread), _) => format!("thread {thread}"),
        (None, Some(process)) => format!("{} {process}", plain(&space.kind)),
        (None, None) if space.kind == KERNEL => "a program".to_owned(),
        (None, None) => plain(&space.kind),
    };
    let runs = space.process.is_some();
    [
        plain(&space.name),
        is,
        if space.processors.is_empty() { dash() } else { ranges(&space.processors) },
        plain(&space.state),
        if runs { spent(space.processor_ns) } else { dash() },
        space.memory.map_or_else(dash, short),
        match filters.is_empty() {
            true => dash(),
            false => filters.iter().map(|name| plain(name)).collect::<Vec<_>>().join(" "),
        },
    ]
}

fn ring(ring: &Ring) -> [String; 8] {
    let end = |(space, node): &(String, String)| match space.is_empty() {
        true => plain(node),
        false => format!("{} in {}", plain(node), plain(space)),
    };
    let dash = || "-".to_owned();
    let count = |of: fn(Crossed) -> u64| ring.counted.map_or_else(dash, |it| of(it).to_string());
    [
        plain(&ring.kind),
        end(&ring.from),
        end(&ring.to),
        count(|it| it.resident.blocks),
        ring.room.map_or_else(dash, |room| room.to_string()),
        count(|it| it.put.blocks),
        count(|it| it.taken.blocks),
        count(|it| it.lost),
    ]
}

/// `0-2,5`
fn ranges(processors: &[usize]) -> String {
    let mut ranges: Vec<(usize, usize)> = Vec::new();
    for processor in processors {
        match ranges.last_mut() {
            Some((_, last)) if *last + 1 == *processor => *last = *processor,
            _ => ranges.push((*processor, *processor)),
        }
    }
    let range = |(first, last): &(usize, usize)| match first == last {
        true => first.to_string(),
        false => format!("{first}-{last}"),
    };
    ranges.iter().map(range).collect::<Vec<_>>().join(",")
}

#[cfg(test)]
mod tests {
    #[test]
    fn processors_in_a_row_are_a_range() {
        assert_eq!(super::ranges(&[0, 1, 2, 5, 7, 8]), "0-2,5,7-8");
        assert_eq!(super::ranges(&[3]), "3");
    }
}
