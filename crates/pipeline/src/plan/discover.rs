//! Discovery: for every node, which spaces could run it, at what cost, and why others cannot.
//! [SL §7.1]

use super::ahead::pushed;
use super::costs::{flows, takes};
use super::kernel::{Refused, only_in_kernel, refusal};
use super::select::{Selected, order};
use super::{Candidate, Machine, Placed, PlannedSpace, SpaceKind};
use crate::explain;
use crate::graph::{Graph, Node, NodeId, Step, Use};
use filter::{Kind, Reads};

/// The spaces of a machine for one request, in the order in which a path may move through them, and
/// what each would cost for every node.
#[derive(Debug, Clone)]
pub(super) struct Discovered {
    /// The kernel first, then threads, then processes.
    pub(super) spaces: Vec<PlannedSpace>,
    /// Per space: the node that it is there for, if that is a process.
    pub(super) owners: Vec<Option<NodeId>>,
    /// Per node and space: what a block costs, or why the space refuses.
    pub(super) verdicts: Vec<Vec<Result<f64, String>>>,
    /// Per node, and per edge: how much of what the sources give comes there.
    pub(super) flows: (Vec<f64>, Vec<f64>),
    /// Per node: the connected part of the graph that it belongs to.
    pub(super) parts: Vec<usize>,
    /// Per node: whether what comes to it first was taken from the host.
    pub(super) taken: Vec<bool>,
    /// Per node: whether it must know where headers begin.
    pub(super) looks: Vec<bool>,
}

/// The thread that a path begins in, and that reads what leaves the kernel.
pub(super) const FIRST: &str = "thread0";
/// The reason for the space of a sink that writes files.
const OWN: &str = "writes files: a space of its own, so that a slow disk stops nobody";

/// The text for programs, which no thread runs.
const PROGRAM: &str = "an ordinary program: a process of its own";
/// The text for untrusted filters, which no thread runs, and the limits of their process.
const APART: &str = "untrusted: a process of its own, which reads what comes to it and may do \
                     nothing but answer: no files, no network, no other process";
/// The most columns of a command in the name of its process.
const COMMAND_MAX: usize = 24;

/// Asks every space for every node.
pub(super) fn discover(graph: &Graph, machine: &Machine, refused: &[Refused]) -> Discovered {
    let parts = parts(graph);
    let count = parts.iter().max().map_or(0, |last| last + 1);
    let mut spaces = Vec::new();
    let mut owners = Vec::new();
    for part in 0..count {
        spaces.push(PlannedSpace { name: "kernel".to_owned(), kind: SpaceKind::Kernel, part });
        for thread in 0..threads(graph, &parts, part) {
            let name = if thread == 0 { FIRST.to_owned() } else { format!("thread{thread}") };
            spaces.push(PlannedSpace { name, kind: SpaceKind::Thread, part });
        }
        owners.resize(spaces.len(), None);
        for (id, node) in graph.ids().filter(|(id, node)| parts[id.0] == part && node.is_process())
        {
            spaces.push(PlannedSpace { name: process(node), kind: SpaceKind::Process, part });
            owners.push(Some(id));
        }
    }
    let verdicts = graph
        .ids()
        .map(|(id, node)| {
            let kernel = refusal(graph, id, machine, refused);
            let ask = |(s, owner): (&PlannedSpace, &Option<NodeId>)| match owner {
                // Refusals that say nothing are shown nowhere.
                Some(owner) if *owner != id => Err(String::new()),
                _ => verdict(graph, id, node, s, &parts, machine, kernel.as_deref()),
            };
            spaces.iter().zip(&owners).map(ask).collect()
        })
        .collect();
    let order = order(graph);
    let flows = flows(graph, &order, &machine.costs);
    let mut taken = vec![false; graph.nodes.len()];
    for id in order {
        let mut before = graph.inputs(id).filter(|edge| !edge.back);
        taken[id.0] = before.any(|edge| taken[edge.from.0]) || takes(graph, id);
    }
    let looks = graph.ids().map(|(_, node)| looks(node)).collect();
    Discovered { spaces, owners, verdicts, flows, parts, taken, looks }
}

/// Returns true if a node needs the offsets of headers: a filter that reads the head alone does
/// not.
fn looks(node: &Node) -> bool {
    node.filter().is_some_and(|used| matches!(used.effect().reads, Reads::Head(_)))
}

/// Returns the most threads of a part: its own, one for sinks that write files, those of its pins,
/// and one behind each program.
fn threads(graph: &Graph, parts: &[usize], part: usize) -> usize {
    let here = || graph.ids().filter(|(id, _)| parts[id.0] == part);
    let pinned = here().filter_map(|(_, node)| pinned_thread(node)).max().map_or(0, |n| n + 1);
    let writers = usize::from(here().any(|(_, node)| writes_files(node)));
    (1 + writers).max(pinned) + programs(graph, parts, part)
}

/// Returns the most programs that a block may pass one after the other.
fn programs(graph: &Graph, parts: &[usize], part: usize) -> usize {
    let mut passed = vec![0; graph.nodes.len()];
    if !graph.ids().any(|(id, node)| parts[id.0] == part && node.is_process()) {
        return 0;
    }
    for id in order(graph) {
        let mut before = graph.inputs(id).filter(|edge| !edge.back).peekable();
        let own = usize::from(graph.node(id).is_process() && before.peek().is_some());
        passed[id.0] = own + before.map(|edge| passed[edge.from.0]).max().unwrap_or(0);
    }
    let passed = graph.ids().filter(|(id, _)| parts[id.0] == part).map(|(id, _)| passed[id.0]);
    passed.max().unwrap_or(0)
}

/// The name of a process: `process "grep -v foo"`; `sandbox http`.
fn process(node: &Node) -> String {
    if node.is_untrusted() {
        return format!("sandbox {}", node.name());
    }
    let arguments = node.filter().map(|used| &used.arguments);
    let command = arguments.and_then(|given| given.text("command")).unwrap_or_default();
    let begin: String = command.chars().take(COMMAND_MAX).collect();
    let more = if begin.len() < command.len() { "…" } else { "" };
    format!("process {:?}", begin + more)
}

fn pinned_thread(node: &Node) -> Option<usize> {
    node.filter()?.pin.as_deref()?.strip_prefix("thread")?.parse().ok()
}

pub(super) fn writes_files(node: &Node) -> bool {
    node.filter().is_some_and(|used| used.endpoint.writes_files)
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
    refused: Option<&str>,
) -> Result<f64, String> {
    let first = space.name == FIRST;
    if space.part != parts[id.0] {
        return Err("works for another line".to_owned());
    }
    if let Some(used) = node.filter()
        && used.pin.as_ref().is_some_and(|pin| *pin != space.name)
        && let Some(why) = used.bound()
    {
        return Err(why);
    }
    if node.inside.is_some() && space.kind == SpaceKind::Kernel {
        return Err("part of a section, which runs in one thread".to_owned());
    }
    if node.is_process() && space.kind != SpaceKind::Process {
        return Err(if node.is_untrusted() { APART } else { PROGRAM }.to_owned());
    }
    if let (SpaceKind::Thread, Some(why)) = (space.kind, only_in_kernel(node)) {
        return Err(why.to_owned());
    }
    let pinned = node.filter().is_some_and(|used| used.pin.is_some());
    match space.kind {
        SpaceKind::Kernel => match refused {
            Some(why) => Err(why.to_owned()),
            None => Ok(machine.costs.in_kernel(graph, id)),
        },
        // What stops for a disk is not to be what reads.
        SpaceKind::Thread if node.kind() == Some(Kind::Source) && !first && !pinned => {
            Err("a source begins in the first thread".to_owned())
        }
        SpaceKind::Thread if writes_files(node) && first && !pinned => {
            Err("writes files: not in the thread that reads".to_owned())
        }
        SpaceKind::Thread => Ok(cost(graph, id, machine)),
        SpaceKind::Process => {
            let comes = graph.inputs(id).next().is_some();
            let pipes = u8::from(comes) + u8::from(graph.outputs(id).next().is_some());
            Ok(cost(graph, id, machine) + f64::from(pipes) * machine.costs.crossing())
        }
    }
}

/// Returns the cost of a block in a thread, in ns.
fn cost(graph: &Graph, id: NodeId, machine: &Machine) -> f64 {
    let own = machine.costs.in_thread(graph, id);
    let used = graph.node(id).filter();
    let attaches = used.is_some_and(|used| used.endpoint.attaches.is_some());
    // Where the kernel takes no programs nothing else can be had, and it is left out.
    if !attaches || !machine.kernel.is_open() {
        return own;
    }
    // What is refused ahead never enters the socket's ring.
    let ahead = pushed(graph).into_iter().find(|pushed| pushed.source == id);
    let asked = ahead.and_then(|pushed| pushed.filter.ok());
    let past = asked.map_or(1.0, |filter| {
        let shares = graph.outputs(filter).map(|edge| machine.costs.share(graph, edge));
        shares.sum::<f64>().min(1.0)
    });
    // The socket's filter is a program, too, and sees every frame.
    let asked_ns = if past < 1.0 { machine.costs.tap + machine.costs.twin } else { 0.0 };
    let comes = if takes(graph, id) { machine.costs.xsk } else { machine.costs.socket };
    own + comes * past + asked_ns
}

/// Keeps the spaces that are used, and says for every node where it runs and why. A process stands
/// between the threads on its two sides.
pub(super) fn used(
    discovered: Discovered,
    selected: &Selected,
    graph: &Graph,
) -> (Vec<PlannedSpace>, Vec<Placed>) {
    let Discovered { spaces, owners, verdicts, .. } = discovered;
    let Selected { enters, leaves, .. } = selected;
    let rank = |space: usize| match owners[space] {
        Some(node) if enters[node.0] == leaves[node.0] && graph.inputs(node).next().is_none() => {
            (leaves[node.0], 0)
        }
        Some(node) => (enters[node.0], 2),
        None => (space, 1),
    };
    let reader = |space: usize| match spaces[space].kind {
        SpaceKind::Kernel => first_thread(&spaces, spaces[space].part).unwrap_or(space),
        SpaceKind::Thread | SpaceKind::Process => space,
    };
    let taken = leaves.iter().map(|space| reader(*space));
    let mut order: Vec<usize> =
        selected.spaces.iter().chain(enters).chain(leaves).copied().chain(taken).collect();
    order.sort_unstable_by_key(|space| (rank(*space), *space));
    order.dedup();
    let number = |space: usize| order.iter().position(|used| *used == space).unwrap_or(0);
    let names = explain::names(graph);
    let placed = graph
        .ids()
        .map(|(id, node)| {
            let space = selected.spaces[id.0];
            let mut candidates: Vec<Candidate> = (0..spaces.len())
                .filter(|s| spaces[*s].part == spaces[space].part)
                .filter(|s| owners[*s].is_none_or(|owner| owner == id))
                .map(|s| Candidate {
                    space: spaces[s].name.clone(),
                    verdict: verdicts[id.0][s].clone(),
                    lost: None,
                })
                .collect();
            for candidate in &mut candidates {
                candidate.lost = lost(candidate, graph, id, &spaces, selected);
            }
            let (because, by_neighbor) = because(graph, id, node, selected, &names);
            let (enters, leaves) = (number(enters[id.0]), number(reader(leaves[id.0])));
            Placed { space: number(space), enters, leaves, because, by_neighbor, candidates }
        })
        .collect();
    (order.iter().map(|space| spaces[*space].clone()).collect(), placed)
}

/// The thread that a part begins in.
fn first_thread(spaces: &[PlannedSpace], part: usize) -> Option<usize> {
    spaces.iter().position(|space| space.part == part && space.name == FIRST)
}

/// Returns the reason why a space that could run a node was not chosen.
fn lost(
    candidate: &Candidate,
    graph: &Graph,
    id: NodeId,
    spaces: &[PlannedSpace],
    selected: &Selected,
) -> Option<String> {
    let there = candidate.verdict.as_ref().ok()?;
    let chosen = selected.spaces[id.0];
    let here = spaces.get(chosen)?;
    if candidate.space == here.name {
        return None;
    }
    let same = |space: &PlannedSpace| space.part == here.part && space.name == candidate.space;
    let place = spaces.iter().position(same)?;
    let around = || {
        let near = graph.edges.iter().filter(|edge| !edge.back);
        near.filter_map(|edge| match (edge.from == id, edge.to == id) {
            (true, _) => Some(selected.enters[edge.to.0]),
            (_, true) => Some(selected.leaves[edge.from.0]),
            _ => None,
        })
    };
    let rings = |place: usize| around().filter(|other| *other != place).count();
    match (rings(place), rings(chosen)) {
        (more, fewer) if more == fewer + 1 => Some("a ring more".to_owned()),
        (more, fewer) if more > fewer => Some(format!("{} rings more", more - fewer)),
        _ => Some(format!("no better, {there} ns")),
    }
}

/// Returns why a node runs where it does, and true if where the node before it runs is the reason.
fn because(
    graph: &Graph,
    id: NodeId,
    node: &Node,
    selected: &Selected,
    names: &[String],
) -> (String, bool) {
    if node.is_process() {
        let why = if node.is_untrusted() { APART } else { "an ordinary program" };
        return (why.to_owned(), false);
    }
    if let Some(why) = node.filter().and_then(Use::bound) {
        return (why, false);
    }
    if let Some(owner) = node.inside {
        return (format!("part of `{}`", names[owner.0]), false);
    }
    if matches!(node.step, Step::Merge) {
        return ("merges sources".to_owned(), false);
    }
    let near = |from: NodeId| selected.leaves[from.0] == selected.enters[id.0];
    let before: Vec<NodeId> =
        graph.inputs(id).filter(|edge| !edge.back).map(|edge| edge.from).collect();
    match (before.first(), before.iter().find(|from| near(**from))) {
        (None, _) => ("the source's own space".to_owned(), false),
        (_, Some(from)) if graph.node(*from).is_process() => {
            let gives = if graph.node(*from).is_untrusted() { "gives" } else { "writes" };
            (format!("takes up what `{}` {gives}", names[from.0]), false)
        }
        (_, Some(from)) => (format!("next to `{}`: a call, no ring", names[from.0]), true),
        (Some(_), None) if writes_files(node) => (OWN.to_owned(), false),
        (Some(from), None) => (format!("behind `{}`, which is elsewhere", names[from.0]), true),
    }
}
