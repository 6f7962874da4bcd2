//! Counters of kernel programs, as nodes and edges of the ledger. (CONTRACT 19)
//!
//! Input: the final counters of a request in the kernel, and the totals that the process received
//! from it. Output: a node for each filter in the kernel, with the filter's state in the kernel,
//! and the edges. A block that a twin was unsure about counts as input of the user implementation
//! only, and counts on the edge that leads to the twin. The counters of both implementations
//! therefore add up to the counters of the filter.

use super::final_counters::FinalCounters;
use super::fused_tree::{LeaveReason, REFUSED_COUNTER};
use super::tree::{ExitBlocks, TreeExit, TreeStep};
use super::{Generation, KernelSpace};
use crate::description::zero_counts;
use endpoint::sink::offloaded_sink::new_offloaded_sink;
use endpoint::source::kernel::ArcCounts;
use endpoint::{DropReason, SourceCounters};
use filter::{Amount, Counts, Filter, FilterKind, HoldTable, MovedSession, PRIVATE_SESSION_KEY};
use pipeline::graph::{FilterUse, NodeId};
use runtime::counters::{ExitEdge, KernelCounts};
use runtime::ledger::{Edge, EdgeKind};
use runtime::space::SpaceResults;
use runtime::space::node::{Node, Operator, SinkOperator};
use std::borrow::Cow;

/// Totals of a request's kernel program: frames processed, doorbell notifications sent, and run
/// time.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct ProgramTotals {
    /// Plan index of the source that represents the program. If the program implements several
    /// sources, this is the first one.
    pub source: usize,
    /// Plan indices of the edges that lead from the program to a thread.
    pub edges: Vec<usize>,
    /// Number of frames that the program processed.
    pub frames: u64,
    /// Number of doorbell notifications sent to the thread that reads the program's output.
    pub notifications: u64,
    /// Number of measured runs and their total time in ns; `None` if the kernel did not measure
    /// them. The runs include runs for other requests in the same program.
    pub measured: Option<(u64, u64)>,
}

/// Drop reason for a delivered frame that was overwritten before this process read it.
const LAPPED_REASON: &str = "lapped";
/// Drop reason for a frame that the program could not copy to user space.
const NOT_COPIED_REASON: &str = "not copied";

impl KernelSpace {
    /// Returns the nodes and edges of the current program and of all programs that it replaced,
    /// with their final counters. The programs must no longer run.
    pub(crate) fn final_results(&self, process: &[SpaceResults]) -> Vec<SpaceResults> {
        self.collect_results(|generation| {
            let taken = generation.taken.clone();
            let taken = taken.unwrap_or_else(|| generation.source_totals(process));
            (generation.final_counters(&taken), taken)
        })
    }

    /// Returns the nodes and edges of the current program and of all programs that it replaced.
    /// `counted` returns, for each of them, its counters and the totals that this process received
    /// from it.
    pub(super) fn collect_results<'k>(
        &'k self,
        counted: impl Fn(&'k Generation) -> (Cow<'k, FinalCounters>, SourceCounters),
    ) -> Vec<SpaceResults> {
        let (mut ran, mut busy, mut left) = (Amount::default(), 0, [0; LeaveReason::ALL.len()]);
        let mut all = Vec::new();
        for (number, generation) in self.generations().enumerate() {
            let (ended, taken) = counted(generation);
            ran += ended.counted.ran;
            busy += ended.busy;
            left.iter_mut().zip(ended.counted.left).for_each(|(all, more)| *all += more);
            all.push(generation.final_results(&ended, number, taken));
        }
        let counters = || {
            let counters = self.place.counters(ran, busy);
            let remarks = counters.remark.clone().into_iter().chain(format_left_frames(left));
            let remarks: Vec<String> = remarks.collect();
            SourceCounters { remark: (!remarks.is_empty()).then(|| remarks.join("; ")), ..counters }
        };
        let source = |id: &NodeId| (node_name(&self.generation, *id), counters());
        let sources = self.generation.sources.iter().map(source).collect();
        if let Some(results) =
            all.last_mut().and_then(|results: &mut SpaceResults| results.kernel_counts.as_mut())
        {
            results.sources = sources;
        }
        all
    }

    /// Returns the totals of the current program and of all programs that it replaced. Contains
    /// node and edge numbers instead of plan indices.
    pub(crate) fn totals(&self) -> ProgramTotals {
        let classes = |exit: &&TreeExit| matches!(exit.which, ExitBlocks::Classes(_));
        let exits = self.generation.tree.exits.iter().filter(classes);
        let edges = exits.map(|exit| self.generation.ids.edges[exit.edge]).collect();
        let mut ran = ProgramTotals {
            source: self.generation.source_number(),
            edges,
            ..ProgramTotals::default()
        };
        let mut measured = (0, 0);
        for ended in self.generations().map(|generation| generation.handle.final_counters()) {
            ran.frames += ended.counted.ran.blocks;
            ran.notifications += ended.notifications;
            measured = (measured.0 + ended.measured.0, measured.1 + ended.measured.1);
        }
        let (runs, ns) = measured;
        let ns = self.timing.as_ref().map_or(ns, |timing| timing.subtract_overhead(runs, ns));
        ran.measured = (runs > 0).then_some((runs, ns));
        ran
    }

    pub(super) fn generations(&self) -> impl Iterator<Item = &Generation> {
        self.earlier_generations.iter().chain([&self.generation])
    }
}

impl Generation {
    /// Returns the final counters of this generation. If they are lost because the process that ran
    /// the program has exited, returns lower bounds derived from `taken`, the totals that this
    /// process received.
    pub(super) fn final_counters(&self, taken: &SourceCounters) -> Cow<'_, FinalCounters> {
        match self.handle.final_counters() {
            ended if ended.lost => {
                Cow::Owned(FinalCounters::lower_bounds(&self.tree, &taken.arrived))
            }
            ended => Cow::Borrowed(ended),
        }
    }

    /// Returns the nodes and edges of this generation, with the counters `ended`. A generation is
    /// the request between two changes of the path, and `number` is its index. `taken` holds the
    /// totals that this process received.
    fn final_results(
        &self,
        ended: &FinalCounters,
        number: usize,
        taken: SourceCounters,
    ) -> SpaceResults {
        let mut nodes = Vec::new();
        for id in &self.sources {
            nodes.push(self.source_node(*id, ended));
        }
        for (step, TreeStep { nodes: ids, .. }) in self.tree.steps.iter().enumerate() {
            nodes.extend(ids.iter().map(|id| self.step_node(step, *id, ended)));
        }
        let mut counts = KernelCounts::default();
        self.add_edges(ended, &mut counts);
        let ways = self.exit_edges(ended, taken);
        let named = |(exit, edge)| ExitEdge { name: (self.source_number(), number, exit), edge };
        counts.exits = ways.into_iter().map(named).collect();
        SpaceResults { nodes, kernel_counts: Some(counts), ..SpaceResults::default() }
    }

    /// Compares the number of blocks that a replaced program emitted with `taken`, the totals that
    /// this process received. Returns the number of lost blocks and the number of duplicated
    /// blocks.
    pub(crate) fn count_missing_blocks(&self, taken: &SourceCounters) -> (u64, u64) {
        let mut missing = (0, 0);
        for (_, edge) in self.exit_edges(self.handle.final_counters(), taken.clone()) {
            let (put, ended) = (edge.put.blocks, edge.accounted_blocks());
            missing.0 += put.saturating_sub(ended);
            missing.1 += ended.saturating_sub(put);
        }
        missing
    }

    /// Returns the final state of filters whose answers depend on their state, by node number. The
    /// state of filters that only keep statistics is part of this generation's report instead.
    pub(crate) fn final_states(&self) -> Vec<(usize, Vec<u8>)> {
        let ended = self.handle.final_counters();
        let mut kept = Vec::new();
        for (step, bytes) in &ended.states {
            let nodes = self.tree.steps.get(*step).map_or(&[][..], |step| &step.nodes);
            let decides =
                |id: &&NodeId| self.graph.node(**id).kind() != Some(FilterKind::Statistics);
            kept.extend(
                nodes.iter().filter(decides).map(|id| (self.ids.nodes[id.0], bytes.clone())),
            );
        }
        kept
    }

    /// Returns the totals that this process received from the program, as counted by the source
    /// that reads the program's output. All totals are 0 if no space has the source.
    fn source_totals(&self, process: &[SpaceResults]) -> SourceCounters {
        let mut nodes = process.iter().flat_map(|space| &space.nodes);
        let source = nodes.find_map(|node| match &node.operator {
            Operator::Source(part) if node.number == self.source_number() => Some(part),
            _ => None,
        });
        source.map_or_else(SourceCounters::default, |part| part.source.counters())
    }

    /// Returns the number of blocks and bytes that node `id` received in the kernel, where `step`
    /// implements the node. Excludes the blocks that the twin was unsure about.
    fn step_input_amount(&self, step: usize, id: NodeId, ended: &FinalCounters) -> Amount {
        let exit = self.tree.exits.iter().position(|exit| {
            exit.from == Some(step) && exit.to == id && matches!(exit.which, ExitBlocks::Unsure)
        });
        let unsure =
            exit.map_or_else(Amount::default, |exit| amount_or_zero(&ended.counted.handed, exit));
        amount_or_zero(&ended.counted.entered, step).saturating_sub(unsure)
    }

    fn step_node(&self, step: usize, id: NodeId, ended: &FinalCounters) -> Node {
        let taken = self.step_input_amount(step, id, ended);
        let number = self.ids.nodes[id.0];
        let Some(used) = self.graph.node(id).filter() else {
            return Node::new("?", number, Operator::Pass, Counts::default());
        };
        let description = used.description;
        let is_sink = description.kind == FilterKind::Sink;
        let mut written = Amount::default();
        let part = match (is_sink, description.constructor) {
            (true, _) => {
                let refused = ended.counted.unanswered_count(step, REFUSED_COUNTER);
                let (sink, report) =
                    new_offloaded_sink(description, &used.arguments, taken, refused);
                written = sink.amount_written().unwrap_or_default();
                Operator::Sink(SinkOperator { report: Some(report), ..SinkOperator::new(sink) })
            }
            (false, Some(make)) => match make(&used.arguments) {
                Ok(filter) => Operator::Filter(restore_state(filter, ended.states.get(&step))),
                Err(_) => Operator::Pass,
            },
            (false, None) => Operator::Pass,
        };
        let mut node = Node::new(used.display_name(), number, part, zero_counts(description));
        (node.reasons, node.counters) = (description.reasons, description.counters);
        node.taken.push(taken);
        if is_sink {
            node.flow.accepted_by_sink = written;
            return node;
        }
        node.flow.routed = ended.counted.passed_amount(Some(step));
        node.flow.unselected = ended.counted.unselected_amount(Some(step));
        let reasons = node.reasons.iter().zip(&mut node.counts.unanswered);
        for (reason, count) in reasons {
            *count = ended.counted.unanswered_count(step, reason);
        }
        node
    }

    /// Adds the edges inside the program. In the kernel a block leaves one filter and enters the
    /// next at the same moment, so each block counts as both put and taken.
    fn add_edges(&self, ended: &FinalCounters, counts: &mut KernelCounts) {
        for (number, step) in self.tree.steps.iter().enumerate() {
            for id in &step.nodes {
                let into = self.graph.edges.iter().enumerate().find(|(_, edge)| edge.to == *id);
                let Some((planned, edge)) = into else { continue };
                let amount = self.step_input_amount(number, *id, ended);
                let (from, to) = (node_name(self, edge.from), node_name(self, *id));
                let planned = self.ids.edges[planned];
                let edge = Edge::new(from.into(), to.into(), EdgeKind::Call, planned);
                counts.edges.push(Edge { put: amount, taken: amount, ..edge });
            }
        }
    }

    /// Returns the edges that lead out of the program, each with the index of its exit. The program
    /// has counted the blocks put on an edge; the source in this process has counted the blocks
    /// taken from it.
    fn exit_edges(&self, ended: &FinalCounters, taken: SourceCounters) -> Vec<(usize, Edge)> {
        let mut ways = Vec::new();
        let SourceCounters { arrived, dropped, .. } = taken;
        // The kernel does not count by exit the frames that did not fit in a ring. If only one exit
        // is used, all of these frames belong to it.
        let full = dropped.iter().filter(|(place, _)| *place == DropReason::Ring);
        let full: u64 = full.filter_map(|(_, blocks)| *blocks).sum();
        let used = ended.counted.handed.iter().filter(|amount| amount.blocks > 0).count();
        for (number, exit) in self.tree.exits.iter().enumerate() {
            let put = amount_or_zero(&ended.counted.handed, number);
            let is_unsure = matches!(exit.which, ExitBlocks::Unsure);
            if is_unsure && put.blocks == 0 {
                continue;
            }
            let ArcCounts { taken, lapped, unread, missing } =
                arrived.get(number).cloned().unwrap_or_default();
            let from = node_name(self, self.graph.edges[exit.edge].from);
            let (to, planned) = (node_name(self, exit.to), self.ids.edges[exit.edge]);
            let edge = Edge::new(from.into(), to.into(), EdgeKind::Ring, planned);
            let mut edge = Edge { put, taken, ..edge };
            let failed = amount_or_zero(&ended.counted.failed, number);
            let here = taken.blocks + lapped + unread + failed.blocks;
            let ring = match used {
                1 if put.blocks > 0 => full,
                _ => put.blocks.saturating_sub(here).min(full),
            };
            // The bytes of lost frames are not counted.
            let blocks = |blocks| Amount { blocks, bytes: 0 };
            let unread = blocks(unread);
            let why = [(DropReason::Ring, blocks(ring)), (DropReason::Unread, unread)];
            let why = [(LAPPED_REASON.into(), blocks(lapped))].into_iter().chain(why);
            let why = why.chain([(NOT_COPIED_REASON.into(), failed)]);
            edge.dropped = why.filter(|(_, amount)| amount.blocks > 0).collect();
            edge.missing =
                Vec::from_iter((!missing.is_empty()).then_some((LAPPED_REASON, missing)));
            ways.push((number, edge));
        }
        // Each frame that did not fit in a ring is missing at one exit or more. Frames that no exit
        // accounts for yet count at the busiest exit.
        let rings = ways
            .iter()
            .flat_map(|(_, edge)| &edge.dropped)
            .filter(|(why, _)| *why == DropReason::Ring);
        let delivered: u64 = rings.map(|(_, amount)| amount.blocks).sum();
        let most = ways.iter_mut().max_by_key(|(_, edge)| edge.put.blocks);
        if let (Some((_, edge)), true) = (most, used > 1 && delivered < full) {
            edge.dropped.push((DropReason::Ring, Amount { blocks: full - delivered, bytes: 0 }));
        }
        ways
    }

    fn source_node(&self, id: NodeId, ended: &FinalCounters) -> Node {
        let (name, number) = (node_name(self, id), self.ids.nodes[id.0]);
        let mut node = Node::new(name, number, Operator::Pass, Counts::default());
        node.counts.made = ended.counted.ran;
        node.taken.push(Amount::default());
        node.flow.routed = ended.counted.passed_amount(None);
        node.flow.unselected = ended.counted.unselected_amount(None);
        node
    }
}

/// Describes the frames that an expression left to the host or to another request. Returns `None`
/// if there are none.
fn format_left_frames(left: [u64; LeaveReason::ALL.len()]) -> Option<String> {
    let frames = |count: u64, what: &str| match count {
        1 => format!("1 {what}"),
        count => format!("{count} {what}s"),
    };
    let texts = LeaveReason::ALL.iter().zip(left).filter(|(_, count)| *count > 0);
    let texts = texts.map(|(why, count)| match why {
        LeaveReason::Fragment => format!("{} stayed with the host", frames(count, "fragment")),
        LeaveReason::Undecided => {
            format!(
                "{} stayed with the host, because the program could not decide",
                frames(count, "frame")
            )
        }
        LeaveReason::TakenEarlier => {
            format!("{} had been taken by an earlier request", frames(count, "matching frame"))
        }
    });
    let texts: Vec<String> = texts.collect();
    (!texts.is_empty()).then(|| texts.join("; "))
}

/// Restores the state that a twin had in the kernel, `kept`, in the user implementation `filter`.
/// Returns the filter, which is unchanged if there is no state.
fn restore_state(mut filter: Filter, kept: Option<&Vec<u8>>) -> Filter {
    if let (Some(bytes), Some(state)) = (kept, filter.state()) {
        let moved =
            MovedSession { key: PRIVATE_SESSION_KEY, bytes: bytes.clone(), held: Vec::new() };
        // The conformance test of twins ensures that both implementations use the same layout.
        let put = state.put_session(moved, &mut HoldTable::new(0, 0));
        debug_assert!(put.is_ok(), "{put:?}");
    }
    filter
}

pub(super) fn amount_or_zero(amounts: &[Amount], number: usize) -> Amount {
    amounts.get(number).copied().unwrap_or_default()
}

fn node_name(generation: &Generation, id: NodeId) -> String {
    let node = generation.graph.node(id);
    node.filter().map_or_else(|| node.name().to_owned(), FilterUse::display_name)
}
