//! What every edge is: a call within a space, a ring between spaces, a pipe to and from a process,
//! a work list backwards.

use super::select::Selected;
use super::{Machine, PlannedEdge, RingPlan};
use crate::graph::{Edge, Graph, NodeId};
use filter::{Form, Forms};

/// How many blocks are signalled at once where the request says nothing. [Th §5.2.2]
const SIGNAL_BLOCKS: usize = 32;
/// How long a block may wait for its signal where the request says nothing, in ns. [Th §5.2.2]
const SIGNAL_NS: u64 = 1_000_000;
/// How many entries a ring holds: 4,096 of 64 bytes fit the second-level cache of most machines
/// four times, and a wake-up every half ring costs nothing that counts.
const ENTRIES: usize = 4096;
/// Bytes of an entry with context and marks.
const WITH_MARKS: usize = 64;
/// Bytes of an entry with context: what is no frame has no marks that anybody reads.
const WITH_CONTEXT: usize = 32;

/// One per edge of the graph.
pub(super) fn edges(graph: &Graph, selected: &Selected, machine: &Machine) -> Vec<PlannedEdge> {
    let latency = graph.options.number("latency").unwrap_or(SIGNAL_NS);
    let batch = graph
        .options
        .number("batch")
        .map_or(SIGNAL_BLOCKS, |n| usize::try_from(n).unwrap_or(usize::MAX));
    let crosses = |edge: &Edge| selected.leaves[edge.from.0] != selected.enters[edge.to.0];
    let crossings = graph.edges.iter().filter(|edge| crosses(edge)).count().max(1);
    let entries = ENTRIES.min((machine.l2 / 4 / WITH_MARKS).next_power_of_two()).max(64);
    let framed = |form: &Form| Forms::FRAMED.has(*form) || *form == Form::Message;
    let ring = |to: NodeId| RingPlan {
        entries,
        stride: if graph.node(to).comes.iter().any(framed) { WITH_MARKS } else { WITH_CONTEXT },
        signal_blocks: batch.clamp(1, entries / 2),
        // The bound holds for the whole way, so every crossing gets its share.
        signal_ns: latency / crossings as u64,
    };
    let process = |id: NodeId| graph.node(id).is_process();
    let edge = |edge: &Edge| match crosses(edge) {
        _ if edge.back => PlannedEdge::Back,
        true => PlannedEdge::Ring(ring(edge.to)),
        false if process(edge.from) || process(edge.to) => PlannedEdge::Pipe,
        false => PlannedEdge::Call,
    };
    graph.edges.iter().map(edge).collect()
}
