//! What programs counted, as nodes and edges of the ledger. (CONTRACT 19)
//!
//! In: the tallies of all processors, the maps of a program, and what the process has taken of what
//! was handed over. Out: a node for each filter that ran in the kernel, with the state that it
//! kept there, and the edges. What a piece was unsure of never came to it: it crossed to the user
//! implementation on the edge on which it came. So what both counted adds up to what the filter
//! did.

use super::Kernel;
use super::assemble::{Tally, Which, word};
use crate::build::{counts, title};
use crate::ledger::{Edge, EdgeKind};
use crate::space::Remains;
use crate::space::node::{Node, Part, SinkPart};
use endpoint::source::kernel::Arrived;
use endpoint::{Failure, Seen, Sink};
use filter::{Amount, Batch, Counts, Filter, Holds, Kind, Moved, PRIVATE, Report, Time};
use pipeline::graph::{Graph, NodeId};
use std::collections::HashMap;
use sys::bpf::ring::place;

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

/// Why a frame that was handed over did not arrive.
const LAPPED: &str = "lapped";
const NOT_COPIED: &str = "not copied";

impl Kernel {
    /// What was counted in the kernel and on the way out of it. Nothing runs there any more.
    pub(crate) fn remains(&self, graph: &Graph, process: &[Remains]) -> Remains {
        let states = self.states();
        let mut nodes = Vec::new();
        for id in &self.sources {
            nodes.push(self.source_node(graph, *id));
        }
        for (number, step) in self.tree.steps.iter().enumerate() {
            for id in &step.nodes {
                nodes.push(self.node(graph, number, *id, &states));
            }
        }
        let mut told = Told { failed: self.word(place::FAILED), ..Told::default() };
        for id in &self.sources {
            let used = graph.node(*id).filter();
            let name = used.map_or_else(String::new, title);
            told.sources.push((name, self.place.seen(self.tally(Tally::Ran))));
        }
        self.calls(graph, &mut told);
        self.ways_out(graph, process, &mut told);
        Remains { nodes, imported: Vec::new(), failure: None, kernel: Some(told) }
    }

    /// A tally over all processors.
    fn tally(&self, tally: Tally) -> Amount {
        let at = place::TALLIES + 16 * u32::from(self.tree.tally(tally));
        Amount { blocks: self.word(at), bytes: self.word(at + 8) }
    }

    fn word(&self, at: u32) -> u64 {
        let cpus = 0..self.rings.shape().cpus;
        cpus.filter_map(|cpu| self.rings.region(cpu)?.scratch(at)).sum()
    }

    /// What left a step, or the source, over at least one edge.
    fn passed(&self, from: Option<usize>) -> Amount {
        if self.tree.forks(from) {
            return self.tally(Tally::Passed(from));
        }
        let step = self.tree.steps.iter().position(|step| step.from == from);
        let hand = self
            .tree
            .hands
            .iter()
            .position(|hand| hand.from == from && matches!(hand.which, Which::Classes(_)));
        match (step, hand) {
            (Some(step), _) => self.tally(Tally::Entered(step)),
            (None, Some(hand)) => self.tally(Tally::Handed(hand)),
            (None, None) => Amount::default(),
        }
    }

    /// What a step was unsure of, for one of the nodes that it is.
    fn unsure(&self, step: usize, id: NodeId) -> Amount {
        let hand = self.tree.hands.iter().position(|hand| {
            hand.from == Some(step) && hand.to == id && matches!(hand.which, Which::Unsure)
        });
        hand.map_or_else(Amount::default, |hand| self.tally(Tally::Handed(hand)))
    }

    /// What a step has taken.
    fn taken(&self, step: usize, id: NodeId) -> Amount {
        minus(self.tally(Tally::Entered(step)), self.unsure(step, id))
    }

    fn source_node(&self, graph: &Graph, id: NodeId) -> Node {
        let used = graph.node(id).filter();
        let name = used.map_or_else(String::new, title);
        let mut node = Node::new(name, id.0, Part::Pass, Counts::default());
        let (ran, passed) = (self.tally(Tally::Ran), self.passed(None));
        node.counts.made = ran;
        node.taken.push(Amount::default());
        node.flow.routed = passed;
        node.flow.unselected = self.tally(Tally::Unselected(None));
        node
    }

    fn node(&self, graph: &Graph, step: usize, id: NodeId, states: &States) -> Node {
        let taken = self.taken(step, id);
        let Some(used) = graph.node(id).filter() else {
            return Node::new("?", id.0, Part::Pass, Counts::default());
        };
        let description = used.description;
        let is_sink = description.kind == Kind::Sink;
        let part = match (is_sink, description.user) {
            (true, _) => Part::Sink(SinkPart {
                sink: Box::new(Ended(taken)),
                report: Some(Report {
                    rows: vec![
                        ("blocks".to_owned(), taken.blocks),
                        ("bytes".to_owned(), taken.bytes),
                    ],
                }),
            }),
            (false, Some(make)) => match make(&used.arguments) {
                Ok(filter) => Part::Filter(states.put_into(filter, step)),
                Err(_) => Part::Pass,
            },
            (false, None) => Part::Pass,
        };
        let mut node = Node::new(title(used), id.0, part, counts(description));
        (node.reasons, node.counters) = (description.reasons, description.counters);
        node.taken.push(taken);
        if is_sink {
            node.flow.sunk = taken;
            return node;
        }
        let passed = self.passed(Some(step));
        node.flow.routed = passed;
        node.flow.unselected = self.tally(Tally::Unselected(Some(step)));
        let reasons = node.reasons.iter().zip(&mut node.counts.unanswered);
        for (reason, count) in reasons {
            *count = states.reason(step, reason);
        }
        node
    }

    /// The edges inside the program: what counts that a block has left one step counts that it has
    /// come to the next.
    fn calls(&self, graph: &Graph, told: &mut Told) {
        for (number, step) in self.tree.steps.iter().enumerate() {
            for id in &step.nodes {
                let into = graph.edges.iter().enumerate().find(|(_, edge)| edge.to == *id);
                let Some((planned, edge)) = into else { continue };
                let amount = self.taken(number, *id);
                let (from, to) = (name(graph, edge.from), name(graph, *id));
                let kind = EdgeKind::Call;
                told.edges.push(plain((from, to), (planned, kind), (amount, amount)));
            }
        }
    }

    /// The edges out of the program: counted by it, and by the process.
    fn ways_out(&self, graph: &Graph, process: &[Remains], told: &mut Told) {
        let nodes = process.iter().flat_map(|space| &space.nodes);
        let source = nodes.clone().find_map(|node| match &node.part {
            Part::Source(part) if node.planned == self.source.0 => Some(part),
            _ => None,
        });
        let arrived = source.map_or_else(Vec::new, |part| part.source.arrived());
        let mut failed = told.failed;
        for (number, hand) in self.tree.hands.iter().enumerate() {
            let put = self.tally(Tally::Handed(number));
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
            let lost = put.blocks.saturating_sub(here).min(failed);
            failed -= lost;
            let why = [(LAPPED, lapped), (endpoint::UNREAD, unread), (NOT_COPIED, lost)];
            let why = why.into_iter().filter(|(_, blocks)| *blocks > 0);
            // Nobody counts the bytes of what did not come.
            edge.dropped = why.map(|(why, blocks)| (why, Amount { blocks, bytes: 0 })).collect();
            told.edges.push(edge);
        }
    }

    /// What the maps of the program hold.
    fn states(&self) -> States {
        let program = &self.program;
        let read = |number: usize| self.maps.get(number)?.get(0).ok();
        let word_of = |at: usize| program.words.get(at);
        let step_of = |at: Option<usize>| {
            let found = at.and_then(word_of)?;
            self.tree.steps.iter().position(|step| {
                step.nodes.first().is_some_and(|id| self.words.get(id) == Some(found))
            })
        };
        let mut states = States::default();
        for (number, map) in program.maps.iter().enumerate() {
            if let (Some(step), Some(bytes)) = (step_of(map.state_of), read(number)) {
                states.bytes.insert(step, bytes);
            }
        }
        let counters = if program.counters.is_empty() { None } else { read(0) };
        let counters = counters.unwrap_or_default();
        let (values, _) = counters.as_chunks::<8>();
        for (counter, value) in program.counters.iter().zip(values) {
            if let Some(step) = step_of(counter.word) {
                let known = states.reasons.entry((step, counter.name.clone())).or_default();
                *known += u64::from_ne_bytes(*value);
            }
        }
        states
    }
}

/// The words that the nodes of a tree stand for, to know them again in a program.
pub(super) fn words(tree: &super::assemble::Tree, graph: &Graph) -> HashMap<NodeId, ebpf::Word> {
    let first = tree.steps.iter().filter_map(|step| step.nodes.first());
    first.map(|id| (*id, word(graph, *id))).collect()
}

/// What filters kept in the kernel, and why they did not answer, by step.
#[derive(Debug, Default)]
struct States {
    bytes: HashMap<usize, Vec<u8>>,
    reasons: HashMap<(usize, String), u64>,
}

impl States {
    fn reason(&self, step: usize, reason: &str) -> u64 {
        self.reasons.get(&(step, reason.to_owned())).copied().unwrap_or(0)
    }

    /// The filter with what its twin has kept.
    fn put_into(&self, mut filter: Filter, step: usize) -> Filter {
        if let (Some(bytes), Some(state)) = (self.bytes.get(&step), filter.state()) {
            let moved = Moved { key: PRIVATE, bytes: bytes.clone(), held: Vec::new() };
            // Another layout: the twin exam would have found it.
            let put = state.put(moved, &mut Holds::new(0, 0));
            debug_assert!(put.is_ok(), "{put:?}");
        }
        filter
    }
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

/// A sink whose blocks ended in the kernel.
struct Ended(Amount);

impl Sink for Ended {
    fn take(&mut self, _: &Batch<'_>, _: Time) -> Result<(), Failure> {
        Ok(())
    }

    fn finish(&mut self) -> Result<Report, Failure> {
        Ok(Report::default())
    }

    fn written(&self) -> Option<Amount> {
        Some(self.0)
    }
}
