//! Discovery: for every node, which spaces could run it, at what cost, and why others cannot.
//! [SL §7.1]

use super::select::Selected;
use super::{Candidate, Kernel, Machine, Placed, PlannedSpace, SpaceKind};
use crate::graph::{Graph, Node, NodeId, Step};
use filter::{Kind, Reads};

/// The spaces of a machine for one request, in the order in which a path may move through them, and
/// what each would cost for every node.
#[derive(Debug)]
pub(super) struct Discovered {
    /// The kernel first, then threads.
    pub(super) spaces: Vec<PlannedSpace>,
    /// Per node and space: what a block costs, or why the space refuses.
    pub(super) verdicts: Vec<Vec<Result<f64, String>>>,
    /// Per node: the connected part of the graph that it belongs to.
    pub(super) parts: Vec<usize>,
}

/// The thread that a path begins in.
const FIRST: &str = "thread0";
/// What a node that may run anywhere in its part adds to choosing the space of a file-writing sink.
const OWN: &str = "writes files: a space of its own, so that a slow disk stops nobody";

/// Asks every space for every node.
pub(super) fn discover(graph: &Graph, machine: &Machine) -> Discovered {
    let parts = parts(graph);
    let count = parts.iter().max().map_or(0, |last| last + 1);
    let mut spaces = Vec::new();
    for part in 0..count {
        spaces.push(PlannedSpace { name: "kernel".to_owned(), kind: SpaceKind::Kernel, part });
        for thread in 0..threads(graph, &parts, part) {
            let name = if thread == 0 { FIRST.to_owned() } else { format!("thread{thread}") };
            spaces.push(PlannedSpace { name, kind: SpaceKind::Thread, part });
        }
    }
    let verdicts = graph
        .ids()
        .map(|(id, node)| {
            spaces.iter().map(|s| verdict(graph, id, node, s, &parts, machine)).collect()
        })
        .collect();
    Discovered { spaces, verdicts, parts }
}

/// How many threads a part may use: its own, one for sinks that write files, and those of its pins.
fn threads(graph: &Graph, parts: &[usize], part: usize) -> usize {
    let here = || graph.ids().filter(|(id, _)| parts[id.0] == part);
    let pinned = here().filter_map(|(_, node)| pinned_thread(node)).max().map_or(0, |n| n + 1);
    let writers = usize::from(here().any(|(_, node)| writes_files(node)));
    (1 + writers).max(pinned)
}

fn pinned_thread(node: &Node) -> Option<usize> {
    node.filter()?.pin.as_deref()?.strip_prefix("thread")?.parse().ok()
}

pub(super) fn writes_files(node: &Node) -> bool {
    node.filter().is_some_and(|used| used.description.writes_files)
}

/// The connected parts of the graph, numbered in the order of the text.
fn parts(graph: &Graph) -> Vec<usize> {
    let mut part: Vec<usize> = (0..graph.nodes.len()).collect();
    let joined = graph.edges.iter().map(|e| (e.from.0, e.to.0));
    let inside = graph.ids().filter_map(|(id, node)| Some((id.0, node.inside?.0)));
    let pairs: Vec<(usize, usize)> = joined.chain(inside).collect();
    let mut changed = true;
    while changed {
        changed = false;
        for (a, b) in &pairs {
            let least = part[*a].min(part[*b]);
            changed |= part[*a] != least || part[*b] != least;
            part[*a] = least;
            part[*b] = least;
        }
    }
    let mut firsts = part.clone();
    firsts.sort_unstable();
    firsts.dedup();
    part.iter().map(|p| firsts.binary_search(p).unwrap_or(0)).collect()
}

fn verdict(
    graph: &Graph,
    id: NodeId,
    node: &Node,
    space: &PlannedSpace,
    parts: &[usize],
    machine: &Machine,
) -> Result<f64, String> {
    let first = space.name == FIRST;
    if space.part != parts[id.0] {
        return Err("works for another line".to_owned());
    }
    if let Some(pin) = node.filter().and_then(|used| used.pin.as_deref())
        && pin != space.name
    {
        return Err(format!("pinned to {pin}"));
    }
    if let Some(owner) = node.inside {
        let owner = graph.node(owner).name();
        if space.kind == SpaceKind::Kernel {
            return Err(format!("part of a {owner} section, which runs in one thread"));
        }
    }
    let pinned = node.filter().is_some_and(|used| used.pin.is_some());
    match space.kind {
        SpaceKind::Kernel => kernel(graph, node, machine),
        // What stops for a disk is not to be what reads.
        SpaceKind::Thread if node.kind() == Some(Kind::Source) && !first && !pinned => {
            Err("a source begins in the first thread".to_owned())
        }
        SpaceKind::Thread if writes_files(node) && first && !pinned => {
            Err("writes files: not in the thread that reads".to_owned())
        }
        SpaceKind::Thread => Ok(cost(node, machine)),
    }
}

fn kernel(graph: &Graph, node: &Node, machine: &Machine) -> Result<f64, String> {
    if let Kernel::Closed { why, .. } = &machine.kernel {
        return Err(why.clone());
    }
    if node.kind() == Some(Kind::Source) {
        return Err("reads in a process".to_owned());
    }
    let heads = graph.heads();
    let outside = heads.iter().filter_map(|id| graph.node(*id).filter());
    match outside.map(|used| used.description.name).next() {
        Some(source) => Err(format!("`{source}` gives its blocks in a process")),
        None => Err("no source in the kernel".to_owned()),
    }
}

/// What a block costs in a thread, in ns.
fn cost(node: &Node, machine: &Machine) -> f64 {
    let costs = &machine.costs;
    let Some(used) = node.filter() else { return costs.call };
    let effect = used.effect();
    let reads = match effect.reads {
        Reads::Nothing => 0.0,
        Reads::Head(_) => costs.head,
        Reads::All => costs.kilobyte,
    };
    let writes = if effect.kind == Kind::Editing { costs.copy } else { 0.0 };
    costs.call + reads + writes
}

/// Keeps the spaces that are used, and says for every node where it runs and why.
pub(super) fn used(
    discovered: Discovered,
    selected: &Selected,
    graph: &Graph,
) -> (Vec<PlannedSpace>, Vec<Placed>) {
    let Discovered { spaces, verdicts, .. } = discovered;
    let used: Vec<bool> = (0..spaces.len()).map(|s| selected.spaces.contains(&s)).collect();
    let number = |s: usize| used[..s].iter().filter(|used| **used).count();
    let placed = graph
        .ids()
        .map(|(id, node)| {
            let space = selected.spaces[id.0];
            let candidates = spaces
                .iter()
                .zip(&verdicts[id.0])
                .filter(|(s, _)| s.part == spaces[space].part)
                .map(|(s, v)| Candidate { space: s.name.clone(), verdict: v.clone(), lost: None })
                .collect();
            let mut candidates: Vec<Candidate> = candidates;
            for candidate in &mut candidates {
                candidate.lost = lost(candidate, graph, id, &spaces, &selected.spaces);
            }
            let because = because(graph, id, node, &selected.spaces);
            Placed { space: number(space), because, candidates }
        })
        .collect();
    let spaces = spaces.into_iter().zip(&used).filter(|(_, used)| **used).map(|(s, _)| s).collect();
    (spaces, placed)
}

/// Why a space that would run a node was not taken for it.
fn lost(
    candidate: &Candidate,
    graph: &Graph,
    id: NodeId,
    spaces: &[PlannedSpace],
    chosen: &[usize],
) -> Option<String> {
    let there = candidate.verdict.as_ref().ok()?;
    let here = spaces.get(chosen[id.0])?;
    if candidate.space == here.name {
        return None;
    }
    let same = |space: &PlannedSpace| space.part == here.part && space.name == candidate.space;
    let place = spaces.iter().position(same)?;
    let around = || {
        let near = graph.edges.iter().filter(|edge| !edge.back);
        near.filter_map(|edge| match (edge.from == id, edge.to == id) {
            (true, _) => Some(chosen[edge.to.0]),
            (_, true) => Some(chosen[edge.from.0]),
            _ => None,
        })
    };
    let rings = |place: usize| around().filter(|other| *other != place).count();
    match (rings(place), rings(chosen[id.0])) {
        (more, fewer) if more == fewer + 1 => Some("a ring more".to_owned()),
        (more, fewer) if more > fewer => Some(format!("{} rings more", more - fewer)),
        _ => Some(format!("no better, {there} ns")),
    }
}

fn because(graph: &Graph, id: NodeId, node: &Node, spaces: &[usize]) -> String {
    if let Some(pin) = node.filter().and_then(|used| used.pin.as_deref()) {
        return format!("pinned to {pin}");
    }
    if let Some(owner) = node.inside {
        return format!("inside {}", graph.node(owner).name());
    }
    if matches!(node.step, Step::Merge) {
        return "merges sources".to_owned();
    }
    let before: Vec<_> = graph.inputs(id).filter(|edge| !edge.back).collect();
    let near = before.iter().find(|edge| spaces[edge.from.0] == spaces[id.0]);
    match (before.first(), near) {
        (None, _) => "the source's own space".to_owned(),
        (_, Some(edge)) => format!("next to `{}`: a call, no ring", graph.node(edge.from).name()),
        (Some(_), None) if writes_files(node) => OWN.to_owned(),
        (Some(edge), None) => {
            format!("behind `{}`, which is elsewhere", graph.node(edge.from).name())
        }
    }
}
