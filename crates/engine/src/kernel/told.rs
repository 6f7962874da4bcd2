//! What programs counted, as nodes and edges of the ledger. (CONTRACT 19)
//!
//! In: what a line leaves behind in the kernel, and what the process has taken of what was handed
//! over. Out: a node for each filter that ran in the kernel, with the state that it
//! kept there, and the edges. What a piece was unsure of never came to it: it crossed to the user
//! implementation on the edge on which it came. So what both counted adds up to what the filter
//! did.

use super::Kernel;
use super::handout::Ended;
use super::tree::Which;
use crate::build::{counts, title};
use crate::ledger::{Edge, EdgeKind};
use crate::space::Remains;
use crate::space::node::{Node, Part, SinkPart};
use endpoint::Seen;
use endpoint::sink::ended::ended as ended_sink;
use endpoint::source::kernel::Arrived;
use filter::{Amount, Counts, Filter, Holds, Kind, Moved, PRIVATE};
use pipeline::graph::{Graph, NodeId};

/// What a kernel space leaves behind beside its nodes.
#[derive(Clone, Debug, Default)]
pub(crate) struct Told {
    /// What the sources saw.
    pub(crate) sources: Vec<(String, Seen)>,
    /// What went where.
    pub(crate) edges: Vec<Edge>,
    /// Frames that could not be copied.
    pub(crate) failed: u64,
}

/// What a program in the kernel did as a whole, for a line.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct ProgramRan {
    /// The node of the source that it stands for; of several, the first.
    pub source: usize,
    /// The edges of the plan that leave it for a thread.
    pub edges: Vec<usize>,
    /// Frames that it was given.
    pub frames: u64,
    /// How often it rang the bell of the thread that reads it.
    pub bells: u64,
    /// Runs that the kernel measured, and how long they took, in ns; none where it did not. Other
    /// lines may run in it, too.
    pub measured: Option<(u64, u64)>,
}

/// Why a frame that was handed over did not arrive.
const LAPPED: &str = "lapped";
const RING: &str = "ring";
const NOT_COPIED: &str = "not copied";

impl Kernel {
    /// What was counted in the kernel and on the way out of it. Nothing runs there any more.
    pub(crate) fn remains(&self, graph: &Graph, process: &[Remains]) -> Remains {
        let ended = self.standing.ended();
        let mut nodes = Vec::new();
        for id in &self.sources {
            nodes.push(source_node(graph, *id, ended));
        }
        for (number, step) in self.tree.steps.iter().enumerate() {
            for id in &step.nodes {
                nodes.push(self.node(graph, number, *id, ended));
            }
        }
        let mut told = Told { failed: ended.failed, ..Told::default() };
        for id in &self.sources {
            let used = graph.node(*id).filter();
            let name = used.map_or_else(String::new, title);
            told.sources.push((name, self.place.seen(ended.counted.ran)));
        }
        self.calls(graph, ended, &mut told);
        self.ways_out(graph, (process, ended), &mut told);
        Remains { nodes, kernel: Some(told), ..Remains::default() }
    }

    /// What the program did as a whole.
    pub(crate) fn ran(&self) -> ProgramRan {
        let ended = self.standing.ended();
        let hands = self.tree.hands.iter().filter(|hand| matches!(hand.which, Which::Classes(_)));
        ProgramRan {
            source: self.source.0,
            edges: hands.map(|hand| hand.edge).collect(),
            frames: ended.counted.ran.blocks,
            bells: ended.bells,
            measured: Some(ended.measured).filter(|(runs, _)| *runs > 0),
        }
    }

    /// What a step has taken: what came to it, but for what it was unsure of, for one of the nodes
    /// that it is.
    fn taken(&self, step: usize, id: NodeId, ended: &Ended) -> Amount {
        let hand = self.tree.hands.iter().position(|hand| {
            hand.from == Some(step) && hand.to == id && matches!(hand.which, Which::Unsure)
        });
        let unsure = hand.map_or_else(Amount::default, |hand| of(&ended.counted.handed, hand));
        minus(of(&ended.counted.entered, step), unsure)
    }

    fn node(&self, graph: &Graph, step: usize, id: NodeId, ended: &Ended) -> Node {
        let taken = self.taken(step, id, ended);
        let Some(used) = graph.node(id).filter() else {
            return Node::new("?", id.0, Part::Pass, Counts::default());
        };
        let description = used.description;
        let is_sink = description.kind == Kind::Sink;
        let mut written = Amount::default();
        let part = match (is_sink, description.user) {
            (true, _) => {
                let (sink, report) = ended_sink(description, taken);
                written = sink.written().unwrap_or_default();
                Part::Sink(SinkPart { sink, report: Some(report) })
            }
            (false, Some(make)) => match make(&used.arguments) {
                Ok(filter) => Part::Filter(put_into(filter, ended.states.get(&step))),
                Err(_) => Part::Pass,
            },
            (false, None) => Part::Pass,
        };
        let mut node = Node::new(title(used), id.0, part, counts(description));
        (node.reasons, node.counters) = (description.reasons, description.counters);
        node.taken.push(taken);
        if is_sink {
            node.flow.sunk = written;
            return node;
        }
        node.flow.routed = ended.counted.passed(Some(step));
        node.flow.unselected = ended.counted.unselected(Some(step));
        let reasons = node.reasons.iter().zip(&mut node.counts.unanswered);
        for (reason, count) in reasons {
            let known = ended.counted.reasons.get(&(step, (*reason).to_owned()));
            *count = known.copied().unwrap_or(0);
        }
        node
    }

    /// The edges inside the program: what counts that a block has left one step counts that it has
    /// come to the next.
    fn calls(&self, graph: &Graph, ended: &Ended, told: &mut Told) {
        for (number, step) in self.tree.steps.iter().enumerate() {
            for id in &step.nodes {
                let into = graph.edges.iter().enumerate().find(|(_, edge)| edge.to == *id);
                let Some((planned, edge)) = into else { continue };
                let amount = self.taken(number, *id, ended);
                let (from, to) = (name(graph, edge.from), name(graph, *id));
                let kind = EdgeKind::Call;
                told.edges.push(plain((from, to), (planned, kind), (amount, amount)));
            }
        }
    }

    /// The edges out of the program: counted by it, and by the process.
    fn ways_out(&self, graph: &Graph, (process, ended): (&[Remains], &Ended), told: &mut Told) {
        let nodes = process.iter().flat_map(|space| &space.nodes);
        let source = nodes.clone().find_map(|node| match &node.part {
            Part::Source(part) if node.planned == self.source.0 => Some(part),
            _ => None,
        });
        let arrived = source.map_or_else(Vec::new, |part| part.source.arrived());
        let mut failed = told.failed;
        // Of frames that found no room the kernel counts how many there were, and not over which
        // edges each was to go.
        let dropped = source.map_or_else(Vec::new, |part| part.source.seen().dropped);
        let full = dropped.iter().filter(|(place, _)| *place == RING);
        let full: u64 = full.filter_map(|(_, blocks)| *blocks).sum();
        for (number, hand) in self.tree.hands.iter().enumerate() {
            let put = of(&ended.counted.handed, number);
            let is_unsure = matches!(hand.which, Which::Unsure);
            if is_unsure && put.blocks == 0 {
                continue;
            }
            let Arrived { taken, lapped, unread } =
                arrived.get(number).copied().unwrap_or_default();
            let from = name(graph, graph.edges[hand.edge].from);
            let ends = (from, name(graph, hand.to));
            let mut edge = plain(ends, (hand.edge, EdgeKind::Ring), (put, taken));
            let here = taken.blocks + lapped + unread;
            let ring = put.blocks.saturating_sub(here).min(full);
            let lost = put.blocks.saturating_sub(here + ring).min(failed);
            failed -= lost;
            let why =
                [(LAPPED, lapped), (RING, ring), (endpoint::UNREAD, unread), (NOT_COPIED, lost)];
            let why = why.into_iter().filter(|(_, blocks)| *blocks > 0);
            // Nobody counts the bytes of what did not come.
            edge.dropped = why.map(|(why, blocks)| (why, Amount { blocks, bytes: 0 })).collect();
            told.edges.push(edge);
        }
    }
}

fn source_node(graph: &Graph, id: NodeId, ended: &Ended) -> Node {
    let used = graph.node(id).filter();
    let name = used.map_or_else(String::new, title);
    let mut node = Node::new(name, id.0, Part::Pass, Counts::default());
    node.counts.made = ended.counted.ran;
    node.taken.push(Amount::default());
    node.flow.routed = ended.counted.passed(None);
    node.flow.unselected = ended.counted.unselected(None);
    node
}

/// A filter with what its twin has kept.
fn put_into(mut filter: Filter, kept: Option<&Vec<u8>>) -> Filter {
    if let (Some(bytes), Some(state)) = (kept, filter.state()) {
        let moved = Moved { key: PRIVATE, bytes: bytes.clone(), held: Vec::new() };
        // Another layout: the twin exam would have found it.
        let put = state.put(moved, &mut Holds::new(0, 0));
        debug_assert!(put.is_ok(), "{put:?}");
    }
    filter
}

fn of(amounts: &[Amount], number: usize) -> Amount {
    amounts.get(number).copied().unwrap_or_default()
}

fn name(graph: &Graph, id: NodeId) -> String {
    let node = graph.node(id);
    node.filter().map_or_else(|| node.name().to_owned(), title)
}

fn plain(
    (from, to): (String, String),
    (planned, kind): (usize, EdgeKind),
    (put, taken): (Amount, Amount),
) -> Edge {
    let (dropped, resident) = (Vec::new(), Amount::default());
    Edge { from, to, kind, planned, put, taken, dropped, resident, events: None }
}

fn minus(all: Amount, part: Amount) -> Amount {
    Amount {
        blocks: all.blocks.saturating_sub(part.blocks),
        bytes: all.bytes.saturating_sub(part.bytes),
    }
}
