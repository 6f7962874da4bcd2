//! Assigns each edge its kind: a call within a space, a ring between spaces, a pipe to and from a
//! process, a work list backwards.

use super::discover::FIRST;
use super::select::Selected;
use super::{Machine, PlannedEdge, PlannedSpace, RingPlan, SpaceKind};
use crate::graph::{Edge, Graph, NodeId};
use filter::{Form, Forms};

/// Blocks per event, unless the request says otherwise. [Th §5.2.2]
const SIGNAL_BLOCKS: usize = 32;
/// The longest wait of a block for its event, in ns, unless the request says otherwise. [Th §5.2.2]
const SIGNAL_NS: u64 = 1_000_000;
/// The same out of the kernel: as long as frames wait in the ring of a packet socket. Whoever wakes
/// a process pays 30 us for that on a virtual machine, and the process 10: at 1 ms a line that is
/// given few frames would cost more than all that a program does for it.
const KERNEL_NS: u64 = 10_000_000;
/// Bytes of a block, as far as a plan knows: of a frame and what lies in it, and of anything else.
const FRAME_BYTES: usize = 2048;
const OTHER_BYTES: usize = 16 << 10;
/// Entries of a ring: 4,096 of 64 bytes fit the second-level cache of most machines four times, and
/// a wakeup every half ring costs nothing that counts.
const ENTRIES: usize = 4096;
/// Pointers of an edge out of the kernel, per processor: as many as frames of 1 KB fit the records
/// beside them.
const KERNEL_ENTRIES: usize = 4096;
/// Bytes of a pointer that a program writes.
const POINTER: usize = 16;
/// Bytes of an entry with context and marks.
const WITH_MARKS: usize = 64;
/// Bytes of an entry with context: what is no frame has no marks that anybody reads.
const WITH_CONTEXT: usize = 32;

/// One per edge of the graph, and what an edge out of the kernel has in the ring of its program.
pub(super) fn edges(
    graph: &Graph,
    selected: &Selected,
    spaces: &[PlannedSpace],
    machine: &Machine,
) -> (Vec<PlannedEdge>, RingPlan) {
    let crosses = |edge: &Edge| selected.leaves[edge.from.0] != selected.enters[edge.to.0];
    let of_kernel = |edge: &Edge| spaces[selected.leaves[edge.from.0]].kind == SpaceKind::Kernel;
    let to_reader = |edge: &Edge| spaces[selected.enters[edge.to.0]].name == FIRST;
    // All that leaves the kernel is told by one bell.
    let told = |edge: &&Edge| crosses(edge) && !(of_kernel(edge) && to_reader(edge));
    let rings = graph.edges.iter().filter(told).count();
    let entries = ENTRIES.min((machine.l2 / 4 / WITH_MARKS).next_power_of_two()).max(64);
    let framed = |form: &Form| Forms::FRAMED.has(*form) || *form == Form::Message;
    let signals = Signals::new(graph, rings, entries, machine);
    let ring = |to: NodeId| {
        let marks = graph.node(to).comes.iter().any(framed);
        let frames = graph.node(to).comes.iter().all(|form| Forms::FRAMED.has(*form));
        let (signal_blocks, blocks_because) = signals.blocks(frames);
        RingPlan {
            entries,
            stride: if marks { WITH_MARKS } else { WITH_CONTEXT },
            signal_blocks,
            signal_ns: signals.ns,
            blocks_because,
            ns_because: signals.ns_because.clone(),
        }
    };
    let process = |id: NodeId| graph.node(id).is_process();
    let kernel = out_of_kernel(&signals);
    let edge = |edge: &Edge| match crosses(edge) {
        _ if edge.back => PlannedEdge::Back,
        true if of_kernel(edge) && to_reader(edge) => PlannedEdge::Kernel(kernel.clone()),
        true => PlannedEdge::Ring(ring(edge.to)),
        false if process(edge.from) || process(edge.to) => PlannedEdge::Pipe,
        false => PlannedEdge::Call,
    };
    (graph.edges.iter().map(edge).collect(), kernel)
}

/// Entries of a ring to or from a replica: more than a batch, which must fit, and few enough that
/// blocks under way stay in the cache.
const COPY_ENTRIES: usize = 1024;

/// A ring to or from a copy that shares work with others.
pub(super) fn between(graph: &Graph, machine: &Machine) -> RingPlan {
    // One on each side of the copies.
    let signals = Signals::new(graph, 2, COPY_ENTRIES, machine);
    let (signal_blocks, blocks_because) = signals.blocks(true);
    RingPlan {
        entries: COPY_ENTRIES,
        stride: WITH_MARKS,
        signal_blocks,
        signal_ns: signals.ns,
        blocks_because,
        ns_because: signals.ns_because,
    }
}

/// The ring of an edge that leaves the kernel: pointers, one ring for each processor.
fn out_of_kernel(signals: &Signals) -> RingPlan {
    let (signal_blocks, blocks_because) = signals.blocks(true);
    let ns_because = "T_t by default out of the kernel".to_owned();
    RingPlan { signal_blocks, blocks_because, ns_because, ..usual_out_of_kernel() }
}

/// The same where the request says nothing, for no reason.
pub(super) const fn usual_out_of_kernel() -> RingPlan {
    RingPlan {
        entries: KERNEL_ENTRIES,
        stride: POINTER,
        signal_blocks: SIGNAL_BLOCKS,
        signal_ns: KERNEL_NS,
        blocks_because: "",
        ns_because: String::new(),
    }
}

/// The frequency of events, with reasons, unless a latency bound says otherwise (`plan::latency`).
/// [Th §5.2.2]
struct Signals {
    asked: Option<u64>,
    ns: u64,
    ns_because: String,
    entries: usize,
    /// As much data as a writer may have written before its reader looks: it is to be still in the
    /// cache then, and the reader's own fills the other half.
    cache: usize,
}

impl Signals {
    /// For so many rings.
    fn new(graph: &Graph, rings: usize, entries: usize, machine: &Machine) -> Self {
        let rings = rings.max(1);
        let ns = SIGNAL_NS / rings as u64;
        let ns_because = match rings {
            1 => "T_t by default".to_owned(),
            _ => format!("T_t: 1 ms by default over {rings} rings"),
        };
        let asked = graph.options.number("batch");
        Self { asked, ns, ns_because, entries, cache: machine.l2 / 2 }
    }

    /// T_b: what was asked for, at most half of the ring, at most what stays in the data cache; a
    /// power of two.
    fn blocks(&self, frames: bool) -> (usize, &'static str) {
        let asked = self.asked.map_or(SIGNAL_BLOCKS, |n| usize::try_from(n).unwrap_or(usize::MAX));
        let cached = (self.cache / if frames { FRAME_BYTES } else { OTHER_BYTES }).max(1);
        let reason = if self.asked.is_some() { "T_b as `--batch` says" } else { "T_b by default" };
        let bounds = [
            (asked.max(1), reason),
            (self.entries / 2, "T_b: half of the ring"),
            (cached, "T_b: what stays in the data cache"),
        ];
        let (least, why) = bounds.into_iter().min_by_key(|(n, _)| *n).unwrap_or((1, reason));
        let floor = 1 << least.ilog2();
        let rounded = why == reason && floor != least;
        (floor, if rounded { "T_b: the power of two below `--batch`" } else { why })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn blocks(
        asked: Option<u64>,
        entries: usize,
        cache: usize,
        frames: bool,
    ) -> (usize, &'static str) {
        let (ns, ns_because) = (1, String::new());
        Signals { asked, ns, ns_because, entries, cache }.blocks(frames)
    }

    #[test]
    fn k5_t_b_is_bounded_by_the_ring_and_the_data_cache() {
        let (ring, cache) = (4096, 512 << 10);
        assert_eq!(blocks(None, ring, cache, true), (32, "T_b by default"));
        assert_eq!(blocks(Some(8), ring, cache, true), (8, "T_b as `--batch` says"));
        let below = "T_b: the power of two below `--batch`";
        assert_eq!(blocks(Some(100), ring, cache, true), (64, below));
        assert_eq!(blocks(Some(9000), 64, 64 << 20, true), (32, "T_b: half of the ring"));
        let cached = "T_b: what stays in the data cache";
        assert_eq!(blocks(Some(9000), ring, cache, true), (256, cached));
        assert_eq!(blocks(None, ring, 128 << 10, false), (8, cached), "longer blocks");
        assert_eq!(blocks(None, ring, 0, true), (1, cached));
    }
}
