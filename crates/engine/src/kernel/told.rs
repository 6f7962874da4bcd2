//! Counters of kernel programs, as nodes and edges of the ledger. (CONTRACT 19)
//!
//! In: what a line leaves behind in the kernel, and what the process has taken of what was handed
//! over. Out: a node for each filter that ran in the kernel, with the state that it
//! kept there, and the edges. What a piece was unsure of never came to it: it crossed to the user
//! implementation on the edge on which it came. So what both counted adds up to what the filter
//! did.

use super::ended::Ended;
use super::joint::REFUSED;
use super::tree::{Handed, Step, Which};
use super::{Era, Kernel};
use crate::described::counts;
use endpoint::sink::ended::ended as ended_sink;
use endpoint::source::kernel::Arrived;
use endpoint::{DropReason, Seen};
use filter::{Amount, Counts, Filter, Holds, Kind, Moved, PRIVATE};
use pipeline::graph::{NodeId, Use};
use runtime::ledger::{Edge, EdgeKind};
use runtime::report::{ExitEdge, OutsideCounts};
use runtime::space::Remains;
use runtime::space::node::{Node, Part, SinkPart};
use std::borrow::Cow;

/// Totals of a program in the kernel, for a request.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct ProgramRan {
    /// The node of the source that it stands for; of several, the first.
    pub source: usize,
    /// The edges of the plan that leave it for a thread.
    pub edges: Vec<usize>,
    /// Frames that it was given.
    pub frames: u64,
    /// Number of doorbell notifications sent to the thread that reads it.
    pub bells: u64,
    /// Runs that the kernel measured, and how long they took, in ns; none where it did not. Other
    /// lines may run in it, too.
    pub measured: Option<(u64, u64)>,
}

/// Counters so far of the current era: blocks by the numbers of nodes and edges.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub(crate) struct SoFar {
    pub(crate) nodes: Vec<(usize, u64)>,
    pub(crate) edges: Vec<(usize, u64)>,
}

/// The reason a delivered frame did not arrive.
const LAPPED: &str = "lapped";
const NOT_COPIED: &str = "not copied";

impl Kernel {
    /// Returns what was counted in the kernel and on its exits, era by era. Nothing runs there any
    /// more.
    pub(crate) fn remains(&self, process: &[Remains]) -> Vec<Remains> {
        let (mut ran, mut busy) = (Amount::default(), 0);
        let mut all = Vec::new();
        for (number, era) in self.eras().enumerate() {
            let ended = era.ended(process);
            ran.blocks += ended.counted.ran.blocks;
            ran.bytes += ended.counted.ran.bytes;
            busy += ended.busy;
            all.push(era.remains(&ended, number, process));
        }
        let seen = |id: &NodeId| (era_name(&self.era, *id), self.place.seen(ran, busy));
        let sources = self.era.sources.iter().map(seen).collect();
        if let Some(told) =
            all.last_mut().and_then(|remains: &mut Remains| remains.outside.as_mut())
        {
            told.sources = sources;
        }
        all
    }

    /// Returns the totals of the programs; nodes and edges by their numbers.
    pub(crate) fn ran(&self) -> ProgramRan {
        let classes = |hand: &&Handed| matches!(hand.which, Which::Classes(_));
        let hands = self.era.tree.hands.iter().filter(classes);
        let edges = hands.map(|hand| self.era.ids.edges[hand.edge]).collect();
        let mut ran = ProgramRan { source: self.era.first(), edges, ..ProgramRan::default() };
        let mut measured = (0, 0);
        for ended in self.eras().map(|era| era.standing.ended()) {
            ran.frames += ended.counted.ran.blocks;
            ran.bells += ended.bells;
            measured = (measured.0 + ended.measured.0, measured.1 + ended.measured.1);
        }
        let (runs, ns) = measured;
        let ns = self.timing.as_ref().map_or(ns, |timing| timing.without_itself(runs, ns));
        ran.measured = (runs > 0).then_some((runs, ns));
        ran
    }

    /// Returns the counters of the current era so far: blocks of nodes and on edges, by their
    /// numbers; `None` if this process cannot read them.
    pub(crate) fn counts(&self) -> Option<SoFar> {
        let Era { graph, ids, tree, sources, standing, .. } = &self.era;
        let counted = standing.so_far()?.counted;
        let mut counts = SoFar::default();
        let ran = counted.ran.blocks;
        counts.nodes.extend(sources.iter().map(|id| (ids.nodes[id.0], ran)));
        for (number, step) in tree.steps.iter().enumerate() {
            let entered = of(&counted.entered, number).blocks;
            for id in &step.nodes {
                counts.nodes.push((ids.nodes[id.0], entered));
                let into = graph.edges.iter().zip(&ids.edges).filter(|(edge, _)| edge.to == *id);
                counts.edges.extend(into.map(|(_, number)| (*number, entered)));
            }
        }
        for (number, hand) in tree.hands.iter().enumerate() {
            if matches!(hand.which, Which::Classes(_)) {
                let handed = of(&counted.handed, number).blocks;
                counts.edges.push((ids.edges[hand.edge], handed));
            }
        }
        Some(counts)
    }

    pub(super) fn eras(&self) -> impl Iterator<Item = &Era> {
        self.before.iter().chain([&self.era])
    }
}

impl Era {
    /// Returns the final record, or if its host is gone, lower bounds derived from the frames that
    /// arrived.
    fn ended(&self, process: &[Remains]) -> Cow<'_, Ended> {
        match self.standing.ended() {
            ended if ended.lost => {
                let taken = self.taken.clone().unwrap_or_else(|| self.taken_by(process));
                Cow::Owned(Ended::at_least(&self.tree, &taken.arrived))
            }
            ended => Cow::Borrowed(ended),
        }
    }

    /// Returns what was counted in this era, which has ended.
    fn remains(&self, ended: &Ended, number: usize, process: &[Remains]) -> Remains {
        let mut nodes = Vec::new();
        for id in &self.sources {
            nodes.push(self.source_node(*id, ended));
        }
        for (step, Step { nodes: ids, .. }) in self.tree.steps.iter().enumerate() {
            nodes.extend(ids.iter().map(|id| self.node(step, *id, ended)));
        }
        let mut told = OutsideCounts::default();
        self.calls(ended, &mut told);
        let taken = self.taken.clone().unwrap_or_else(|| self.taken_by(process));
        let ways = self.ways_out(ended, taken);
        let named = |(hand, edge)| ExitEdge { name: (self.first(), number, hand), edge };
        told.exits = ways.into_iter().map(named).collect();
        Remains { nodes, outside: Some(told), ..Remains::default() }
    }

    /// Returns the blocks lost and the blocks duplicated on its exits, once it has ended and
    /// `taken` is final.
    pub(crate) fn missing(&self, taken: &Seen) -> (u64, u64) {
        let mut missing = (0, 0);
        for (_, edge) in self.ways_out(self.standing.ended(), taken.clone()) {
            let (put, ended) = (edge.put.blocks, edge.ended());
            missing.0 += put.saturating_sub(ended);
            missing.1 += ended.saturating_sub(put);
        }
        missing
    }

    /// Returns the final state of filters that ran here, by the numbers of their nodes, where state
    /// can change an answer; pure statistics are reported as counters of this era instead.
    pub(crate) fn kept(&self) -> Vec<(usize, Vec<u8>)> {
        let ended = self.standing.ended();
        let mut kept = Vec::new();
        for (step, bytes) in &ended.states {
            let nodes = self.tree.steps.get(*step).map_or(&[][..], |step| &step.nodes);
            let decides = |id: &&NodeId| self.graph.node(**id).kind() != Some(Kind::Statistics);
            kept.extend(
                nodes.iter().filter(decides).map(|id| (self.ids.nodes[id.0], bytes.clone())),
            );
        }
        kept
    }

    /// Returns what the ended process had taken.
    fn taken_by(&self, process: &[Remains]) -> Seen {
        let mut nodes = process.iter().flat_map(|space| &space.nodes);
        let source = nodes.find_map(|node| match &node.part {
            Part::Source(part) if node.planned == self.first() => Some(part),
            _ => None,
        });
        source.map_or_else(Seen::default, |part| part.source.seen())
    }

    /// Returns the input of a step that it was sure of, for one of its nodes.
    fn taken(&self, step: usize, id: NodeId, ended: &Ended) -> Amount {
        let hand = self.tree.hands.iter().position(|hand| {
            hand.from == Some(step) && hand.to == id && matches!(hand.which, Which::Unsure)
        });
        let unsure = hand.map_or_else(Amount::default, |hand| of(&ended.counted.handed, hand));
        minus(of(&ended.counted.entered, step), unsure)
    }

    fn node(&self, step: usize, id: NodeId, ended: &Ended) -> Node {
        let taken = self.taken(step, id, ended);
        let number = self.ids.nodes[id.0];
        let Some(used) = self.graph.node(id).filter() else {
            return Node::new("?", number, Part::Pass, Counts::default());
        };
        let description = used.description;
        let is_sink = description.kind == Kind::Sink;
        let mut written = Amount::default();
        let part = match (is_sink, description.user) {
            (true, _) => {
                let refused = ended.counted.reasons.get(&(step, REFUSED.to_owned()));
                let refused = refused.copied().unwrap_or(0);
                let (sink, report) = ended_sink(description, taken, refused);
                written = sink.written().unwrap_or_default();
                Part::Sink(SinkPart { report: Some(report), ..SinkPart::new(sink) })
            }
            (false, Some(make)) => match make(&used.arguments) {
                Ok(filter) => Part::Filter(put_into(filter, ended.states.get(&step))),
                Err(_) => Part::Pass,
            },
            (false, None) => Part::Pass,
        };
        let mut node = Node::new(used.title(), number, part, counts(description));
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
    fn calls(&self, ended: &Ended, told: &mut OutsideCounts) {
        for (number, step) in self.tree.steps.iter().enumerate() {
            for id in &step.nodes {
                let into = self.graph.edges.iter().enumerate().find(|(_, edge)| edge.to == *id);
                let Some((planned, edge)) = into else { continue };
                let amount = self.taken(number, *id, ended);
                let (from, to) = (era_name(self, edge.from), era_name(self, *id));
                let planned = self.ids.edges[planned];
                let kind = EdgeKind::Call;
                told.edges.push(plain((from, to), (planned, kind), (amount, amount)));
            }
        }
    }

    /// The edges out of the program, by way: counted by it, and by the source at its end.
    fn ways_out(&self, ended: &Ended, taken: Seen) -> Vec<(usize, Edge)> {
        let mut ways = Vec::new();
        let Seen { arrived, dropped, .. } = taken;
        // Of frames that found no room the kernel counts how many there were, and not over which
        // edges each was to go: where there is one, all of them.
        let full = dropped.iter().filter(|(place, _)| *place == DropReason::Ring);
        let full: u64 = full.filter_map(|(_, blocks)| *blocks).sum();
        let used = ended.counted.handed.iter().filter(|amount| amount.blocks > 0).count();
        for (number, hand) in self.tree.hands.iter().enumerate() {
            let put = of(&ended.counted.handed, number);
            let is_unsure = matches!(hand.which, Which::Unsure);
            if is_unsure && put.blocks == 0 {
                continue;
            }
            let Arrived { taken, lapped, unread, missing } =
                arrived.get(number).cloned().unwrap_or_default();
            let from = era_name(self, self.graph.edges[hand.edge].from);
            let ends = (from, era_name(self, hand.to));
            let planned = self.ids.edges[hand.edge];
            let mut edge = plain(ends, (planned, EdgeKind::Ring), (put, taken));
            let failed = of(&ended.counted.failed, number);
            let here = taken.blocks + lapped + unread + failed.blocks;
            let ring = match used {
                1 if put.blocks > 0 => full,
                _ => put.blocks.saturating_sub(here).min(full),
            };
            // Nobody counts the bytes of what did not come.
            let blocks = |blocks| Amount { blocks, bytes: 0 };
            let unread = blocks(unread);
            let why = [(DropReason::Ring, blocks(ring)), (DropReason::Unread, unread)];
            let why = [(LAPPED.into(), blocks(lapped))].into_iter().chain(why);
            let why = why.chain([(NOT_COPIED.into(), failed)]);
            edge.dropped = why.filter(|(_, amount)| amount.blocks > 0).collect();
            edge.missing = Vec::from_iter((!missing.is_empty()).then_some((LAPPED, missing)));
            ways.push((number, edge));
        }
        // Each of those frames is missing on one way at least; one that is not is a mistake.
        let rings = ways
            .iter()
            .flat_map(|(_, edge)| &edge.dropped)
            .filter(|(why, _)| *why == DropReason::Ring);
        let told: u64 = rings.map(|(_, amount)| amount.blocks).sum();
        let most = ways.iter_mut().max_by_key(|(_, edge)| edge.put.blocks);
        if let (Some((_, edge)), true) = (most, used > 1 && told < full) {
            edge.dropped.push((DropReason::Ring, Amount { blocks: full - told, bytes: 0 }));
        }
        ways
    }

    fn source_node(&self, id: NodeId, ended: &Ended) -> Node {
        let (name, number) = (era_name(self, id), self.ids.nodes[id.0]);
        let mut node = Node::new(name, number, Part::Pass, Counts::default());
        node.counts.made = ended.counted.ran;
        node.taken.push(Amount::default());
        node.flow.routed = ended.counted.passed(None);
        node.flow.unselected = ended.counted.unselected(None);
        node
    }
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

fn era_name(era: &Era, id: NodeId) -> String {
    let node = era.graph.node(id);
    node.filter().map_or_else(|| node.name().to_owned(), Use::title)
}

fn plain(
    (from, to): (String, String),
    (planned, kind): (usize, EdgeKind),
    (put, taken): (Amount, Amount),
) -> Edge {
    let (dropped, resident) = (Vec::new(), Amount::default());
    let missing = Vec::new();
    let (from, to) = (from.into(), to.into());
    Edge { from, to, kind, planned, put, taken, dropped, missing, resident, events: None }
}

fn minus(all: Amount, part: Amount) -> Amount {
    Amount {
        blocks: all.blocks.saturating_sub(part.blocks),
        bytes: all.bytes.saturating_sub(part.bytes),
    }
}
