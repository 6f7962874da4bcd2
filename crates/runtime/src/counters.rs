//! Counters of the nodes, edges and reports of one space, collected while the space runs or after
//! it ends.

use crate::ledger::{DropReason, Edge, EdgeKind, NodeEntry, NodeName, RetainedFrames, RingState};
use crate::space::arc::GraphArc;
use crate::space::node::{Node, Operator};
use endpoint::SourceCounters;
use filter::{Amount, Report};
use serde::{Deserialize, Serialize};
use std::collections::HashSet;

/// The report of a filter or sink, with the number and name of its node.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct NodeReport {
    /// Number of the node, which stays the same when the path is changed. In reports to users,
    /// `engine` replaces it with the index of the node in the current plan.
    pub planned: usize,
    /// Name of the filter or sink.
    pub name: String,
    /// Report of the filter or sink.
    pub report: Report,
}

/// Counters of a ring from another space, as counted by the ring's reader.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct ImportCounters {
    /// Number of the edge to which the ring belongs. The number stays the same when the path is
    /// changed.
    pub planned: usize,
    /// Index of the node at which the ring's blocks enter the graph of the reader's space;
    /// `usize::MAX` once the node has been removed.
    pub node: usize,
    /// Name of the node at which the ring's blocks enter. Several rings may have nodes of the same
    /// name.
    pub name: NodeName,
    /// Blocks and bytes that the reader has taken from the ring.
    pub taken: Amount,
}

/// Counters of the nodes, edges and rings of one space. The space collects them between two passes,
/// or when it ends.
#[derive(Clone, Debug, Default)]
pub struct SpaceCounters {
    pub(crate) nodes: Vec<NodeCounters>,
    /// Edges that were removed while the space ran. Edges that continue a kernel edge are in
    /// `continuations` instead.
    pub(crate) edges: Vec<Edge>,
    /// Edges of this space that continue edges of a kernel program, each with the name of the
    /// continued edge. The list includes edges to removed nodes.
    pub(crate) continuations: Vec<KernelContinuation>,
    pub(crate) imported: Vec<ImportCounters>,
    /// Reports of filters and sinks, each with the index of the node. The index of a removed node
    /// is `usize::MAX`.
    pub(crate) reports: Vec<(usize, NodeReport)>,
    pub(crate) failed: bool,
    /// Additional counts of a space that runs in the kernel; `None` for a space that runs in a
    /// thread.
    pub(crate) kernel_counts: Option<KernelCounts>,
}

/// Additional counts of a space that runs in the kernel, for its sources and edges.
#[derive(Clone, Debug, Default)]
pub struct KernelCounts {
    /// Name and counts of each source.
    pub sources: Vec<(String, SourceCounters)>,
    /// Edges between nodes of this kernel space.
    pub edges: Vec<Edge>,
    /// Edges that lead from this kernel space to spaces in user space.
    pub exits: Vec<ExitEdge>,
}

/// An edge from a kernel program to user space, with the program's counts.
#[derive(Clone, Debug)]
pub struct ExitEdge {
    /// Name that identifies the edge: the node number of the source, the number of kernel programs
    /// that the source has had before this one, and the index of the edge among the edges that
    /// leave the program.
    pub name: (usize, usize, usize),
    /// Counters of the edge, as the kernel program has counted them.
    pub edge: Edge,
}

/// Counters of the nodes, edges and rings removed from a running space. Once there are many, the
/// counters of nodes or edges with the same name are merged ([`crate::retired`]).
#[derive(Clone, Debug, Default)]
pub struct RetiredCounters {
    pub(crate) nodes: Vec<NodeCounters>,
    pub(crate) edges: Vec<Edge>,
    pub(crate) continuations: Vec<KernelContinuation>,
    pub(crate) imported: Vec<ImportCounters>,
    pub(crate) reports: Vec<NodeReport>,
}

/// The user-space part of an edge that begins in a kernel program. The first field is the name of
/// the kernel edge ([`ExitEdge::name`]). The second field contains the counters of the edge on
/// which the blocks leave the user-space source that receives them from the program.
pub(crate) type KernelContinuation = ((usize, usize, usize), Edge);

impl RetiredCounters {
    /// Adds the counters of nodes and arcs that have been removed. `before` contains the counters
    /// of the space just before the removal. `is_removed_node` tells, for the index of a node,
    /// whether it was removed; `is_removed_arc` does the same for the indices of a node and of one
    /// of its arcs.
    pub fn add(
        &mut self,
        before: SpaceCounters,
        is_removed_node: &dyn Fn(usize) -> bool,
        is_removed_arc: &dyn Fn(usize, usize) -> bool,
    ) {
        let removed = before.reports.into_iter().filter(|(at, _)| is_removed_node(*at));
        self.reports.extend(removed.map(|(_, report)| report));
        for (at, mut node) in before.nodes.into_iter().enumerate() {
            let calls = std::mem::take(&mut node.call_edges);
            if node.receives_kernel_output {
                let continuations = find_kernel_continuations(&self.nodes, &node, calls);
                self.continuations
                    .extend(continuations.filter(|((.., arc), _)| is_removed_arc(at, *arc)));
            } else {
                let calls =
                    calls.into_iter().enumerate().filter(|(arc, _)| is_removed_arc(at, *arc));
                self.edges.extend(calls.map(|(_, edge)| edge));
            }
            if is_removed_node(at) {
                // Replicas that replace the node share its ledger entry.
                node.is_replica |= node.ring.is_none() && !node.entry.name.is_ring();
                self.nodes.push(node);
            }
        }
    }

    /// Adds the counters of the reading end of a ring that has been removed.
    pub fn add_import_counters(&mut self, imported: ImportCounters) {
        self.imported.push(imported);
    }
}

/// Counters of one node, of the edges that leave it, and of the ring that it writes.
#[derive(Clone, Debug)]
pub(crate) struct NodeCounters {
    pub(crate) entry: NodeEntry,
    /// Counts of the source; `None` for other nodes.
    pub(crate) source: Option<SourceCounters>,
    /// True for the source that receives a kernel program's output. Its edges count as edges of
    /// that program.
    pub(crate) receives_kernel_output: bool,
    /// True for a replica of a filter. All replicas of a filter share one ledger entry.
    pub(crate) is_replica: bool,
    /// Counters of the edges from the node to nodes in the same space.
    pub(crate) call_edges: Vec<Edge>,
    /// Counters of the ring through which the node sends blocks to another space; `None` if there
    /// is no such ring.
    pub(crate) ring: Option<Edge>,
}

impl SpaceCounters {
    /// Collects the counters of a space's nodes and rings. The result contains no reports. `kept`
    /// lists the frames that sources retain as history, each with the index of the source's node.
    /// `imported` and `retired` contain the counters of the space's input rings and of its removed
    /// nodes. `failed` is true if the path has failed.
    pub fn new(
        (nodes, kept): (&[Node], &[(usize, RetainedFrames)]),
        mut imported: Vec<ImportCounters>,
        retired: &RetiredCounters,
        failed: bool,
    ) -> Self {
        let operands: HashSet<usize> = nodes.iter().flat_map(operand_node_indices).collect();
        let counted = nodes.iter().enumerate().map(|(number, node)| {
            let program = node.exec_process();
            let source = match &node.operator {
                Operator::Source(_)
                    if program.is_none_or(|program| program.is_first_in_request()) =>
                {
                    node.source_counters()
                }
                _ => None,
            };
            let ring = match &node.operator {
                Operator::Export(export) => Some(ring_edge(node, export)),
                _ => None,
            };
            NodeCounters {
                entry: NodeEntry {
                    kept: retained_frames(node, kept),
                    operand: operands.contains(&number),
                    ..node_entry(node, number, &imported)
                },
                source,
                receives_kernel_output: matches!(
                    &node.operator,
                    Operator::Source(part) if part.properties.chooses_arc
                ),
                is_replica: node.is_replica,
                call_edges: node.arcs.iter().map(|arc| call_edge(node, arc, nodes)).collect(),
                ring,
            }
        });
        let mut counted: Vec<NodeCounters> = counted.collect();
        counted.extend(retired.nodes.iter().cloned());
        imported.extend(retired.imported.iter().cloned());
        let edges = retired.edges.clone();
        let mut continued = retired.continuations.clone();
        for node in counted[..nodes.len()].iter().filter(|node| node.receives_kernel_output) {
            continued.extend(find_kernel_continuations(
                &retired.nodes,
                node,
                node.call_edges.clone(),
            ));
        }
        let continuations = continued;
        Self {
            nodes: counted,
            edges,
            continuations,
            imported,
            reports: Vec::new(),
            failed,
            kernel_counts: None,
        }
    }

    /// Adds the reports of the space's nodes, including removed ones. `nodes` must be the nodes
    /// from which the counters were collected.
    #[must_use]
    pub fn with_reports(mut self, nodes: &[Node], retired: &RetiredCounters) -> Self {
        let reported_by =
            nodes.iter().enumerate().filter_map(|(at, node)| Some((at, node_report(node)?)));
        let before = retired.reports.iter().map(|report| (usize::MAX, report.clone()));
        self.reports = reported_by.chain(before).collect();
        self
    }

    /// Returns the counters of a source whose program runs in the kernel, as received by this
    /// space. `source` is the node number of the source. Returns `None` if this space does not
    /// receive the output of the program.
    pub fn received_from_kernel(&self, source: usize) -> Option<&SourceCounters> {
        let receives =
            |node: &&NodeCounters| node.receives_kernel_output && node.entry.planned == source;
        self.nodes.iter().find(receives).and_then(|node| node.source.as_ref())
    }

    /// Returns the number of blocks that have entered the space from sources and rings.
    pub fn input_blocks(&self) -> u64 {
        let given = self.nodes.iter().filter_map(|node| node.source.as_ref());
        let given: u64 = given.map(|source| source.given.blocks).sum();
        given + self.imported.iter().map(|ring| ring.taken.blocks).sum::<u64>()
    }
}

/// Determines which edges of a kernel program the given user-space edges continue. `node` is the
/// source that receives the output of the program, and `calls` are the edges that leave this
/// source. `before` contains the removed nodes, including the receivers of earlier programs. Yields
/// each edge with the name of the kernel edge that it continues.
fn find_kernel_continuations(
    before: &[NodeCounters],
    node: &NodeCounters,
    calls: Vec<Edge>,
) -> impl Iterator<Item = KernelContinuation> + use<> {
    let source = node.entry.planned;
    let same =
        |other: &&NodeCounters| other.receives_kernel_output && other.entry.planned == source;
    let generation = before.iter().filter(same).count();
    calls.into_iter().enumerate().map(move |(way, edge)| ((source, generation, way), edge))
}

fn call_edge(from: &Node, arc: &GraphArc, nodes: &[Node]) -> Edge {
    let to = &nodes[arc.to];
    let kind = match arc.is_back {
        true => EdgeKind::Back,
        false if to.is_process_input() || from.exec_process().is_some() => EdgeKind::Pipe,
        false => EdgeKind::Call,
    };
    Edge {
        put: arc.put,
        taken: to.taken[arc.branch],
        dropped: arc
            .dropped
            .amounts_by_reason()
            .into_iter()
            .filter(|(_, a)| a.blocks > 0)
            .collect(),
        ..Edge::new(from.name.clone(), to.name.clone(), kind, arc.planned)
    }
}

/// Creates the ledger edge of a ring from the writer's counters. [`crate::report`] adds the
/// reader's counters.
fn ring_edge(from: &Node, export: &crate::ring::RingExport) -> Edge {
    let put = export.writer_counts();
    let full = Amount { blocks: put.dropped, bytes: put.dropped_bytes };
    let mut dropped = Vec::new();
    if full.blocks > 0 {
        dropped.push(("ring full".into(), full));
    }
    Edge {
        put: Amount { blocks: put.blocks, bytes: put.bytes } + full,
        dropped,
        events: Some(export.wakeup_counts()),
        size: Some(export.size()),
        ..Edge::new(from.name.clone(), NodeName::default(), export.kind, export.planned)
    }
}

/// Returns the report of the node's filter or sink, or `None` for other nodes.
pub(crate) fn node_report(node: &Node) -> Option<NodeReport> {
    let report = match &node.operator {
        Operator::Filter(filter) => filter.report(),
        Operator::Sink(part) => part.report.clone().unwrap_or_default(),
        _ => return None,
    };
    Some(NodeReport { planned: node.number, name: node.name.to_string(), report })
}

/// Returns the amount that a sink has delivered. Until the sink ends, the counter
/// `accepted_by_sink` includes blocks that the sink has dropped. They are subtracted here, because
/// the ledger lists them by reason.
fn delivered_amount(node: &Node, dropped: &[(DropReason, Amount)]) -> Amount {
    let (taken, flow) = (node.total_taken(), &node.flow);
    let rest = |of: fn(&Amount) -> u64| {
        let dropped: u64 = dropped.iter().map(|(_, amount)| of(amount)).sum();
        let others = of(&flow.failed) + of(&flow.beyond_count) + dropped;
        of(&flow.accepted_by_sink).min(of(&taken).saturating_sub(others))
    };
    Amount { blocks: rest(|amount| amount.blocks), bytes: rest(|amount| amount.bytes) }
}

/// Returns the node indices of the operands of a section; empty for other nodes.
fn operand_node_indices(node: &Node) -> Vec<usize> {
    match &node.operator {
        Operator::OperandSection(section) => section.operands(),
        _ => Vec::new(),
    }
}

/// Returns the size of the ring through which a source or sink exchanges blocks with other
/// programs, or `None` if the node has no such ring.
fn reader_ring(node: &Node) -> Option<RingState> {
    match &node.operator {
        Operator::Source(part) => part.source.ring_state(),
        Operator::Sink(part) => part.sink.ring_state(),
        _ => None,
    }
}

/// Returns the frames that a node retains for later use: those in the memory of a sink such as
/// `freeze`, or the history of a source. Returns `None` for other nodes.
fn retained_frames(node: &Node, histories: &[(usize, RetainedFrames)]) -> Option<RetainedFrames> {
    match &node.operator {
        Operator::Sink(part) => part.sink.retained_frames(),
        Operator::Source(_) => {
            let own = histories.iter().find(|(source, _)| *source == node.number);
            own.map(|(_, kept)| *kept)
        }
        _ => None,
    }
}

fn node_entry(node: &Node, number: usize, imported: &[ImportCounters]) -> NodeEntry {
    let counts = &node.counts;
    let source = node.source_counters();
    // A filter in a process of its own reports its counts from there.
    let reported_by = source.as_ref().and_then(|source| source.counts.as_ref()).unwrap_or(counts);
    let is_source = source.is_some();
    let given = match &source {
        Some(source) => source.given,
        None => imported
            .iter()
            .find(|imported| imported.node == number)
            .map_or_else(Amount::default, |imported| imported.taken),
    };
    let mut dropped: Vec<(DropReason, Amount)> = Vec::new();
    let mut add = |why: DropReason, amount: Amount| match dropped.iter_mut().find(|d| d.0 == why) {
        Some((_, sum)) => *sum += amount,
        None if amount.blocks > 0 => dropped.push((why, amount)),
        None => {}
    };
    for (i, amount) in counts.dropped.iter().enumerate() {
        add(node.reasons.get(i).copied().unwrap_or("unnamed").into(), *amount);
    }
    add(DropReason::Evicted, counts.evicted);
    add(DropReason::NoRoom, counts.no_room);
    node.writers.iter().flat_map(|port| port.losses()).for_each(|(why, amount)| add(why, amount));
    add(DropReason::Failed, node.flow.failed);
    add(DropReason::BeyondCount, node.flow.beyond_count);
    let mut sunk = node.flow.accepted_by_sink;
    if let Operator::Sink(part) = &node.operator {
        let by_sink = part.sink.drops_by_reason();
        sunk = delivered_amount(node, &by_sink);
        by_sink.into_iter().for_each(|(why, amount)| add(why, amount));
    }
    // Input of a program counts as consumed, and its output as made.
    let (consumed, sunk) = match node.is_process_input() {
        true => (sunk, Amount::default()),
        false => (counts.consumed, sunk),
    };
    let named = |names: &[&str], values: &[u64]| {
        let both = names.iter().zip(values).filter(|(_, n)| **n > 0);
        both.map(|(name, n)| ((*name).to_owned(), *n)).collect::<Vec<_>>()
    };
    NodeEntry {
        name: node.name.clone(),
        planned: node.number,
        taken: node.total_taken(),
        made: match is_source || node.taken.is_empty() {
            // The counters of a source include blocks that writers have added.
            true => given,
            false => counts.made + node.written_amount(),
        },
        passed: Amount {
            blocks: node.flow.routed.blocks + sunk.blocks,
            bytes: node.flow.routed.bytes + sunk.bytes,
        },
        unselected: node.flow.unselected,
        consumed,
        held: counts.held,
        dropped,
        unanswered: named(node.reasons, &reported_by.unanswered),
        counters: named(node.counters, &reported_by.counters),
        edits: node.flow.edits,
        busy_ns: node.flow.busy_ns,
        calls: node.flow.calls,
        operand: false,
        program: node.exec_process().is_some(),
        ring: reader_ring(node),
        kept: None,
    }
}
