//! The kind of each edge: a call within a space, a ring between spaces, a pipe to or from a
//! process, or a work list for a back edge.

use super::discover::FIRST_THREAD;
use super::machine::Machine;
use super::model::{PlannedEdge, PlannedSpace, SpaceKind};
use super::ring::{DEFAULT_SIGNAL_BLOCKS, RingPlan};
use super::select::Selection;
use crate::graph::{Edge, Graph, NodeId, reachable};
use filter::{Form, Forms};

/// The default maximum time in ns before the reader of a block is notified. [Th §5.2.2]
const SIGNAL_NS_MAX: u64 = 1_000_000;
/// The assumed size, in bytes, of a block that is a frame or the contents of a frame.
const ASSUMED_FRAME_BYTES: usize = 2048;
/// The assumed size, in bytes, of a block that is neither a frame nor the contents of a frame.
const ASSUMED_BLOCK_BYTES: usize = 16 << 10;
/// Maximum number of entries of a ring. A ring of 4,096 entries of 64 bytes occupies a quarter of
/// the second-level cache of most machines. A larger ring has no benefit (decision 0093).
const RING_ENTRIES_MAX: usize = 4096;
/// The minimum number of entries to which a ring shrinks. 16 KB of entries stay in the first-level
/// cache, and hold four full batches.
const RING_ENTRIES_MIN: usize = 256;
/// The size, in bytes, of an entry that consists of rich pointer, metadata and marks.
const ENTRY_SIZE_WITH_MARKS: usize = 64;
/// The size, in bytes, of an entry that consists of rich pointer and metadata, without marks, for
/// blocks that are not frames.
const ENTRY_SIZE_WITH_METADATA: usize = 32;

/// Returns the kind of each edge of the graph. Also returns the parameters of the rings over which
/// blocks leave the kernel.
pub(super) fn plan_edges(
    graph: &Graph,
    selection: &Selection,
    spaces: &[PlannedSpace],
    machine: &Machine,
) -> (Vec<PlannedEdge>, RingPlan) {
    let crosses =
        |edge: &Edge| selection.output_spaces[edge.from.0] != selection.input_spaces[edge.to.0];
    let of_kernel =
        |edge: &Edge| spaces[selection.output_spaces[edge.from.0]].kind == SpaceKind::Kernel;
    let to_reader = |edge: &Edge| spaces[selection.input_spaces[edge.to.0]].name == FIRST_THREAD;
    // Edges from the kernel to the first thread share one doorbell.
    let needs_ring = |edge: &&Edge| crosses(edge) && !(of_kernel(edge) && to_reader(edge));
    let rings = graph.edges.iter().filter(needs_ring).count();
    let entries =
        RING_ENTRIES_MAX.min((machine.l2 / 4 / ENTRY_SIZE_WITH_MARKS).next_power_of_two()).max(64);
    let framed = |form: &Form| Forms::FRAMED.contains(*form) || *form == Form::Message;
    let signals = SignalDefaults::new(graph, rings, entries, machine);
    let ring = |to: NodeId| {
        // A block of bytes that a filter makes from frames still contains the frame headers, whose
        // offsets are in the marks. The output of a program contains no headers.
        let makers = |at: NodeId| {
            let inputs = graph.inputs(at).map(|edge| edge.from);
            inputs.filter(|from| !graph.node(*from).has_own_process())
        };
        let upstream = reachable(&[to], makers);
        let marks = upstream.iter().any(|id| graph.node(*id).input_forms.iter().any(framed));
        let frames = graph.node(to).input_forms.iter().all(|form| Forms::FRAMED.contains(*form));
        let (signal_blocks, signal_blocks_max, blocks_because) =
            signals.signal_blocks_range(frames);
        RingPlan {
            entries,
            entries_min: RING_ENTRIES_MIN.max(2 * signal_blocks).min(entries),
            stride: if marks { ENTRY_SIZE_WITH_MARKS } else { ENTRY_SIZE_WITH_METADATA },
            signal_blocks,
            signal_blocks_max,
            signal_ns: signals.ns,
            blocks_because,
            ns_because: signals.ns_because.clone(),
        }
    };
    let process = |id: NodeId| graph.node(id).has_own_process();
    let kernel = kernel_output_ring(&signals);
    let edge = |edge: &Edge| match crosses(edge) {
        _ if edge.back => PlannedEdge::Back,
        true if of_kernel(edge) && to_reader(edge) => PlannedEdge::Kernel(kernel.clone()),
        true => PlannedEdge::Ring(ring(edge.to)),
        false if process(edge.from) || process(edge.to) => PlannedEdge::Pipe,
        false => PlannedEdge::Call,
    };
    (graph.edges.iter().map(edge).collect(), kernel)
}

/// The number of entries of a ring to or from a replica. The ring holds at least a full batch, and
/// the queued blocks stay in the cache.
const REPLICA_RING_ENTRIES: usize = 1024;

/// Returns the parameters of a ring to or from a replica.
pub(super) fn replica_ring(graph: &Graph, machine: &Machine) -> RingPlan {
    // There is one ring on each side of the replicas.
    let signals = SignalDefaults::new(graph, 2, REPLICA_RING_ENTRIES, machine);
    let (signal_blocks, blocks_because) = signals.signal_blocks(true);
    RingPlan {
        entries: REPLICA_RING_ENTRIES,
        entries_min: REPLICA_RING_ENTRIES,
        stride: ENTRY_SIZE_WITH_MARKS,
        signal_blocks,
        signal_blocks_max: signal_blocks,
        signal_ns: signals.ns,
        blocks_because,
        ns_because: signals.ns_because,
    }
}

/// Returns the parameters of the ring of an edge that leaves the kernel. The ring carries pointers;
/// each processor has its own.
fn kernel_output_ring(signals: &SignalDefaults) -> RingPlan {
    let (signal_blocks, blocks_because) = signals.signal_blocks(true);
    let ns_because = "T_t by default out of the kernel".to_owned();
    let signal_blocks_max = signal_blocks;
    let defaults = RingPlan::kernel_default();
    RingPlan { signal_blocks, signal_blocks_max, blocks_because, ns_because, ..defaults }
}

/// The defaults that decide when the reader of a ring is notified, and the reasons for them. A
/// latency bound overrides them (`plan::latency`). [Th §5.2.2]
struct SignalDefaults {
    requested: Option<u64>,
    /// True if T_b (blocks per notification) adapts to the rate because the request sets neither
    /// T_b nor a latency.
    adapts: bool,
    ns: u64,
    ns_because: String,
    entries: usize,
    /// The number of bytes that may be written before the reader is notified: half of the
    /// second-level cache. The blocks are then in the cache together with the reader's own data.
    cache: usize,
}

impl SignalDefaults {
    /// Returns the notification defaults for a plan with `rings` rings of `entries` entries each.
    fn new(graph: &Graph, rings: usize, entries: usize, machine: &Machine) -> Self {
        let rings = rings.max(1);
        let ns = SIGNAL_NS_MAX / rings as u64;
        let ns_because = match rings {
            1 => "T_t by default".to_owned(),
            _ => format!("T_t: 1 ms by default over {rings} rings"),
        };
        let requested = graph.options.number("batch");
        let adapts = requested.is_none() && graph.options.number("latency").is_none();
        Self { requested, adapts, ns, ns_because, entries, cache: machine.l2 / 2 }
    }

    /// Returns the number of blocks per notification (T_b), the maximum to which T_b may adapt, and
    /// the reason for this maximum. If T_b does not adapt, the maximum equals T_b. `frames` is true
    /// if the ring carries frames, whose assumed size differs from the size of other blocks.
    fn signal_blocks_range(&self, frames: bool) -> (usize, usize, &'static str) {
        let (least, because) = self.signal_blocks(frames);
        let most = match self.adapts {
            true => Self { requested: Some(u64::MAX), ns_because: String::new(), ..*self }
                .signal_blocks(frames),
            false => (least, because),
        };
        match most {
            (most, bound) if most > least => (least, most, bound),
            _ => (least, least, because),
        }
    }

    /// Returns the number of blocks per notification (T_b), and the reason for it. T_b is the
    /// requested or default number, but at most half of the ring, and at most the number of blocks
    /// that fit into the data cache. It is rounded down to a power of two. `frames` is true if the
    /// blocks are frames.
    fn signal_blocks(&self, frames: bool) -> (usize, &'static str) {
        let requested = self
            .requested
            .map_or(DEFAULT_SIGNAL_BLOCKS, |n| usize::try_from(n).unwrap_or(usize::MAX));
        let cached =
            (self.cache / if frames { ASSUMED_FRAME_BYTES } else { ASSUMED_BLOCK_BYTES }).max(1);
        let reason = if self.requested.is_some() { "T_b by `--batch`" } else { "T_b by default" };
        let bounds = [
            (requested.max(1), reason),
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

    fn signal_block_count(
        requested: Option<u64>,
        entries: usize,
        cache: usize,
        frames: bool,
    ) -> (usize, &'static str) {
        let (ns, ns_because) = (1, String::new());
        SignalDefaults { requested, adapts: false, ns, ns_because, entries, cache }
            .signal_blocks(frames)
    }

    #[test]
    fn k5_blocks_per_notification_fit_half_the_ring_and_data_cache() {
        let (ring, cache) = (4096, 512 << 10);
        assert_eq!(signal_block_count(None, ring, cache, true), (32, "T_b by default"));
        assert_eq!(signal_block_count(Some(8), ring, cache, true), (8, "T_b by `--batch`"));
        let below = "T_b: the power of two below `--batch`";
        assert_eq!(signal_block_count(Some(100), ring, cache, true), (64, below));
        assert_eq!(
            signal_block_count(Some(9000), 64, 64 << 20, true),
            (32, "T_b: half of the ring")
        );
        let cached = "T_b: what stays in the data cache";
        assert_eq!(signal_block_count(Some(9000), ring, cache, true), (256, cached));
        assert_eq!(signal_block_count(None, ring, 128 << 10, false), (8, cached), "longer blocks");
        assert_eq!(signal_block_count(None, ring, 0, true), (1, cached));
    }
}
