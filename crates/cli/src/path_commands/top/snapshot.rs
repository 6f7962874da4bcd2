//! Snapshots of a path, computed from two samples of its counters.

use super::super::rates::{self, Rate};
use member::protocol::{
    Amount, Counters, Filter, KernelProgram, LatencyReport, PathDescription, Space,
};
use runtime::ledger::{NodeName, RetainedFrames, RingState};
use serde::Serialize;

/// Version of the output format of `top --json`.
const JSON_VERSION: u32 = 1;

/// A sampler of one path: its description, and the latest sample of its counters.
#[derive(Debug)]
pub(super) struct PathSampler {
    about: PathDescription,
    uid: u32,
    latest: Counters,
}

/// A snapshot of a path, which is also the `--json` output of `top PATH`.
#[derive(Serialize, Debug)]
pub(super) struct Snapshot {
    version: u32,
    pub(super) path: PathDescription,
    pub(super) uid: u32,
    pub(super) elapsed_ns: u64,
    /// Output rate of the path's sources.
    pub(super) rate: Rate,
    pub(super) given: Amount,
    pub(super) nodes: Vec<NodeRates>,
    pub(super) rings: Vec<RingFill>,
    pub(super) reader_rings: Vec<NamedRing>,
    /// Sources to which other programs write. Each has the largest of the rings through which they
    /// write.
    pub(super) writer_rings: Vec<NamedRing>,
    /// Nodes that retain past frames, with the amounts of retained frames.
    pub(super) kept: Vec<NodeRetainedFrames>,
    /// Losses by location and reason, in descending order.
    pub(super) lost: Vec<Loss>,
    /// Names of the path's spaces that did not reply in time.
    pub(super) silent_space: Vec<String>,
    /// Latest change that the path made automatically, or `None` if it made none.
    pub(super) adapted: Option<String>,
    /// Latencies of the path, or `None` if the request does not bound them (`--latency`).
    pub(super) latency: Option<LatencyReport>,
    /// A sentence about latencies that exceed the bound, or `None` if there are none.
    #[serde(skip)]
    pub(super) latency_note: Option<String>,
    /// Kernel programs that run filters of the path.
    pub(super) kernel: Vec<KernelProgram>,
}

/// The counters of a node, and its rates since the previous sample.
#[derive(Serialize, Debug)]
pub(super) struct NodeRates {
    pub(super) name: String,
    pub(super) space: String,
    /// Indentation of the node's row: the number of forks between the source and the node.
    pub(super) depth: usize,
    /// Classes that the arcs to the node select; empty for all classes.
    pub(super) classes: String,
    /// Input rate of the node, or output rate of a source.
    pub(super) rate: Rate,
    pub(super) taken: Amount,
    pub(super) held: u64,
    pub(super) lost: u64,
    /// Time per block since the previous sample, in ns. `None` if time was not measured, or if
    /// there were no blocks.
    pub(super) block_ns: Option<f64>,
}

/// The fill of a ring between two spaces.
#[derive(Serialize, Debug)]
pub(super) struct RingFill {
    pub(super) from: String,
    pub(super) to: String,
    /// Number of blocks that are now in the ring.
    pub(super) fill: u64,
    /// Current capacity of the ring in blocks.
    pub(super) room: u64,
    /// Reason for the last change to the capacity; empty if it has never changed.
    pub(super) because: String,
}

/// The ring from which other programs read a sink's output, or the largest ring through which other
/// programs write to a source.
#[derive(Serialize, Debug)]
pub(super) struct NamedRing {
    /// Name of the sink or source to which the ring belongs.
    pub(super) from: String,
    #[serde(flatten)]
    pub(super) ring: RingState,
}

/// The past frames that a node retains.
#[derive(Serialize, Debug)]
pub(super) struct NodeRetainedFrames {
    /// Name of the node that retains the frames.
    pub(super) node: String,
    #[serde(flatten)]
    pub(super) kept: RetainedFrames,
}

/// Numbers of blocks lost at one node or ring for one reason: in total, and since the previous
/// sample.
#[derive(Serialize, Debug)]
pub(super) struct Loss {
    pub(super) place: String,
    pub(super) blocks: u64,
    pub(super) fresh: u64,
}

impl PathSampler {
    pub(super) fn new(about: PathDescription, uid: u32) -> Self {
        Self { about, uid, latest: Counters::default() }
    }

    /// Computes a snapshot from the previous sample and the sample `now`, which then replaces the
    /// previous sample.
    pub(super) fn snapshot(&mut self, now: Counters) -> Snapshot {
        let before = std::mem::replace(&mut self.latest, now);
        let now = &self.latest;
        let ns = now.elapsed_ns.saturating_sub(before.elapsed_ns);
        let old = before.losses_by_location();
        let fresh = |place: &str, blocks: u64| {
            let known = old.iter().find(|(known, _)| known == place);
            blocks.saturating_sub(known.map_or(0, |(_, blocks)| *blocks))
        };
        let lost = now.losses_by_location().into_iter();
        let lost = lost.map(|(place, blocks)| Loss { fresh: fresh(&place, blocks), place, blocks });
        Snapshot {
            version: JSON_VERSION,
            path: self.about.clone(),
            uid: self.uid,
            elapsed_ns: now.elapsed_ns,
            rate: rates::compute_rate(
                rates::total_source_output(&before),
                rates::total_source_output(now),
                ns,
            ),
            given: rates::total_source_output(now),
            nodes: self.all_node_rates(&before, ns),
            rings: self.ring_fills(),
            reader_rings: self.named_rings(false),
            writer_rings: self.named_rings(true),
            kept: self.retained_frames(),
            lost: lost.collect(),
            silent_space: now.spaces.iter().filter_map(describe_silent_space).collect(),
            adapted: now.adapted.last().cloned(),
            latency: now.latency.clone(),
            latency_note: rates::describe_latency(now),
            kernel: Vec::new(),
        }
    }

    /// Returns the rates of all nodes in depth-first order, beginning with the sources.
    fn all_node_rates(&self, before: &Counters, ns: u64) -> Vec<NodeRates> {
        let about = &self.about;
        let mut depth: Vec<Option<usize>> = vec![None; about.nodes.len()];
        let mut order = Vec::new();
        // Nodes without incoming arcs come first, in the order of the request.
        let heads = (0..about.nodes.len()).filter(|n| !about.links.iter().any(|l| l.to == *n));
        for head in heads.collect::<Vec<_>>() {
            self.visit_node(head, 0, &mut depth, &mut order);
        }
        for node in 0..about.nodes.len() {
            self.visit_node(node, 0, &mut depth, &mut order);
        }
        let node_rates = order.into_iter().filter_map(|node| {
            Some(self.node_rates(node, depth.get(node).copied().flatten()?, before, ns))
        });
        node_rates.collect()
    }

    fn visit_node(
        &self,
        node: usize,
        level: usize,
        depth: &mut [Option<usize>],
        order: &mut Vec<usize>,
    ) {
        // The search is iterative, because the untrusted graph may be deep enough to overflow the
        // stack of a recursive one.
        let mut waiting = vec![(node, level)];
        while let Some((node, level)) = waiting.pop() {
            match depth.get_mut(node) {
                Some(place @ None) => *place = Some(level),
                _ => continue,
            }
            order.push(node);
            let next = self.about.links.iter().filter(|link| link.from == node);
            let next: Vec<usize> = next.map(|link| link.to).collect();
            let fork = if next.len() > 1 { 1 } else { 0 };
            waiting.extend(next.into_iter().rev().map(|to| (to, level + fork)));
        }
    }

    fn node_rates(&self, node: usize, depth: usize, before: &Counters, ns: u64) -> NodeRates {
        let planned = self.about.nodes.get(node);
        let sum = |counters: &Counters| {
            let mut sum = NodeTotals::default();
            let own = counters.filters.iter().filter(|filter| filter.node == node);
            for filter in own.filter(|filter| !NodeName::from(filter.name.as_str()).is_ring()) {
                let (taken, made) = (filter.taken, filter.made);
                sum.taken.blocks += if taken.blocks > 0 { taken.blocks } else { made.blocks };
                sum.taken.bytes += if taken.blocks > 0 { taken.bytes } else { made.bytes };
                sum.held += filter.held.blocks;
                sum.lost += filter.lost_blocks();
                sum.busy_ns += filter.busy_ns;
            }
            sum
        };
        let (old, now) = (sum(before), sum(&self.latest));
        let blocks = now.taken.blocks.saturating_sub(old.taken.blocks);
        let busy = now.busy_ns.saturating_sub(old.busy_ns);
        let labels = self.about.links.iter().filter(|link| link.to == node);
        let labels: Vec<&str> =
            labels.map(|link| link.classes.as_str()).filter(|label| !label.is_empty()).collect();
        NodeRates {
            name: planned.map(|node| node.name.clone()).unwrap_or_default(),
            space: planned.map(|node| node.space.clone()).unwrap_or_default(),
            depth,
            classes: labels.join(" "),
            rate: rates::compute_rate(old.taken, now.taken, ns),
            taken: now.taken,
            held: now.held,
            lost: now.lost,
            block_ns: (blocks > 0 && busy > 0).then(|| busy as f64 / blocks as f64),
        }
    }

    /// Returns the rings through which other programs write to sources or, if `sources` is false,
    /// read from sinks. For each source, returns only the largest of its rings.
    fn named_rings(&self, sources: bool) -> Vec<NamedRing> {
        let is_source = |name: &str| self.latest.sources.iter().any(|source| source.name == name);
        let of_node = |filter: &Filter| {
            Some(NamedRing { from: filter.name.clone(), ring: filter.ring.clone()? })
        };
        let filters = self.latest.filters.iter();
        filters.filter(|filter| is_source(&filter.name) == sources).filter_map(of_node).collect()
    }

    fn retained_frames(&self) -> Vec<NodeRetainedFrames> {
        let of_node = |filter: &Filter| {
            Some(NodeRetainedFrames { node: filter.name.clone(), kept: filter.kept? })
        };
        self.latest.filters.iter().filter_map(of_node).collect()
    }

    fn ring_fills(&self) -> Vec<RingFill> {
        let name = |node: usize| {
            self.about.nodes.get(node).map(|node| node.name.clone()).unwrap_or_default()
        };
        let links = self.about.links.iter().enumerate();
        let rings = links.filter_map(|(number, link)| {
            let planned = link.room?;
            let edges = || self.latest.edges.iter().filter(|edge| edge.edge == number);
            let fill = edges().map(|edge| edge.resident.blocks).sum();
            let size = edges().filter_map(|edge| edge.size.as_ref()).max_by_key(|s| s.entries);
            let room = size.map_or(planned, |size| size.entries);
            let because = size.map(|size| size.last_resize_reason.clone()).unwrap_or_default();
            Some(RingFill { from: name(link.from), to: name(link.to), fill, room, because })
        });
        rings.collect()
    }
}

/// Describes a space that did not reply in time. Returns `None` if the space replied.
fn describe_silent_space(space: &Space) -> Option<String> {
    Some(format!("{}: {}", space.name, space.late.as_ref()?))
}

/// The counters of one node, summed over all instances of the node.
#[derive(Default)]
struct NodeTotals {
    taken: Amount,
    held: u64,
    lost: u64,
    busy_ns: u64,
}
