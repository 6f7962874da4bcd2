//! Reduction of a worker's ledger to the worker's own share of a source. Every worker receives all
//! blocks of a source, and its filter `shard` skips the blocks of other workers. This module
//! removes the skipped blocks from the counters between the source and that filter. [Par §V-B];
//! CONTRACT 19
//!
//! Input: the ledger of a worker, which received all blocks of the source. Output: the same ledger
//! without the blocks of other shares, and the losses upstream of the filter, which may belong to
//! any share.
//!
//! The filter counts the blocks that it skipped. These blocks are subtracted from the edge that
//! leads to the filter, from the node that put them on that edge, and so on up to the source.
//! Between the source and the filter there is either nothing, a ring to another thread, or a kernel
//! program with its exit. The counters of nodes and edges downstream of the filter are never
//! changed.

use super::WORKER_ENDED_REASON;
use endpoint::{DropReason, SourceCounters};
use filter::Amount;
use pipeline::Graph;
use pipeline::graph::NodeId;
use runtime::ledger::{Edge, EdgeKind, Ledger, NodeEntry, NodeName, RingEnd};

/// The name of the filter that divides a source's blocks among worker processes. It follows each
/// source of a worker.
pub(super) const SHARD_FILTER: &str = "shard";

/// The route that blocks take from a source to the filter that divides them among worker processes.
#[derive(Clone, Debug)]
pub(super) struct DividedSource {
    /// Index of the source in the plan.
    pub(super) source: usize,
    /// Index of the filter that follows the source and divides its blocks.
    pub(super) dividing_filter: usize,
    /// Index of the edge from the source to the filter that divides the source's blocks.
    pub(super) edge: usize,
    /// The name of the source, as in the ledger.
    pub(super) name: String,
    /// Position of the source among the sources with the same name, from 0.
    nth: usize,
}

/// The counters of one worker process on the route from a source to the filter that divides the
/// source's blocks among the workers.
#[derive(Clone, Debug, Default)]
pub(super) struct WorkerCounters {
    /// Blocks of the worker's own share that reached the `shard` filter, which divides the blocks
    /// among the workers.
    pub(super) own: Amount,
    /// All blocks that reached the `shard` filter: those of the worker's own share, and those of
    /// other workers' shares.
    pub(super) received: Amount,
    /// Blocks of any share that were lost before the `shard` filter, by location of the loss.
    /// `None` stands for an unknown number.
    pub(super) lost: Vec<(DropReason, Option<u64>)>,
}

impl WorkerCounters {
    /// Returns the number of blocks lost before the `shard` filter, or `None` if a counter could
    /// not be read.
    pub(super) fn total_lost(&self) -> Option<u64> {
        self.lost.iter().map(|(_, blocks)| *blocks).sum()
    }

    /// Returns the number of blocks that reached the `shard` filter or were lost before it. Returns
    /// `None` if a counter could not be read.
    pub(super) fn total_arrived(&self) -> Option<u64> {
        self.total_lost().map(|lost| self.received.blocks + lost)
    }
}

/// Returns the sources of a worker's graph that are followed directly by the filter that divides
/// their blocks.
pub(super) fn divided_sources(graph: &Graph) -> Vec<DividedSource> {
    let mut names: Vec<String> = Vec::new();
    let mut found = Vec::new();
    for source in graph.heads() {
        let Some((edge, to)) = single_outgoing_edge(graph, source) else { continue };
        let name = graph
            .node(source)
            .filter()
            .map_or_else(String::new, pipeline::graph::FilterUse::display_name);
        let nth = names.iter().filter(|known| **known == name).count();
        names.push(name.clone());
        if graph.node(to).name() == SHARD_FILTER {
            found.push(DividedSource { source: source.0, dividing_filter: to.0, edge, name, nth });
        }
    }
    found
}

/// Returns true if every source of this graph is followed directly by the filter that divides its
/// blocks.
#[must_use]
pub fn has_dividing_filters(graph: &Graph) -> bool {
    divided_sources(graph).len() == graph.heads().len()
}

/// Returns the outgoing edge of a node, as its index and its target, or `None` unless the node has
/// exactly one outgoing edge.
fn single_outgoing_edge(graph: &Graph, from: NodeId) -> Option<(usize, NodeId)> {
    let mut out = graph.edges.iter().enumerate().filter(|(_, edge)| edge.from == from);
    let (number, edge) = out.next()?;
    out.next().is_none().then_some((number, edge.to))
}

impl DividedSource {
    /// Removes the blocks of other workers' shares from the ledger of a worker. Returns the
    /// counters before the removal.
    pub(super) fn reduce_to_share(&self, ledger: &mut Ledger) -> WorkerCounters {
        let (mut received, mut others) = (Amount::default(), Amount::default());
        for row in ledger.filters.iter_mut().filter(|row| self.is_dividing_filter(row)) {
            received += row.taken;
            others += row.unselected;
            row.taken = row.taken.saturating_sub(row.unselected);
            row.unselected = Amount::default();
            row.unanswered.clear();
        }
        let mut lost = self.take_losses(ledger);
        self.subtract_upstream(ledger, SHARD_FILTER, others);
        if let Some(source) = self.source_entry(ledger) {
            lost.extend(std::mem::take(&mut source.dropped));
        }
        WorkerCounters { own: received.saturating_sub(others), received, lost }
    }

    /// Reduces the ledger of a killed worker to the share that the worker reported. The worker's
    /// counters after its last report are unknown. The nodes and edges from the source to the
    /// `shard` filter are therefore replaced by new ones that count only the reported share.
    pub(super) fn reduce_killed_worker(
        &self,
        graph: &Graph,
        ledger: &mut Ledger,
    ) -> WorkerCounters {
        let own = match self.source_entry(ledger) {
            None => self.estimate_output(graph, ledger),
            Some(_) => {
                let rows = ledger.filters.iter().filter(|row| self.is_dividing_filter(row));
                rows.map(|row| row.passed).sum()
            }
        };
        let inner: Vec<NodeName> = self.edges(ledger).map(|edge| edge.from.clone()).collect();
        ledger.filters.retain(|row| {
            let between = inner.contains(&row.name) && row.planned == self.planned_index(&row.name);
            !between && !self.is_dividing_filter(row) && !self.is_source(row)
        });
        ledger.edges.retain(|edge| edge.planned != self.edge);
        let named = |planned, name: &str| NodeEntry {
            name: name.into(),
            planned,
            passed: own,
            ..NodeEntry::default()
        };
        ledger.filters.push(NodeEntry { made: own, ..named(self.source, &self.name) });
        ledger.filters.push(NodeEntry { taken: own, ..named(self.dividing_filter, SHARD_FILTER) });
        let (from, to) = (self.name.as_str().into(), SHARD_FILTER.into());
        let edge = Edge::new(from, to, EdgeKind::Call, self.edge);
        ledger.edges.push(Edge { put: own, taken: own, ..edge });
        match self.source_entry(ledger) {
            Some(source) => (source.given, source.dropped) = (own, Vec::new()),
            None => ledger.sources.push((self.name.clone(), SourceCounters::lossless(own))),
        }
        WorkerCounters { own, ..WorkerCounters::default() }
    }

    /// Adds blocks to the ledger that belong to the share of a killed worker and that the worker
    /// never reported. Counts them as dropped.
    pub(super) fn add_unreported_share(&self, ledger: &mut Ledger, more: Amount) {
        if more.blocks == 0 {
            return;
        }
        for row in &mut ledger.filters {
            if self.is_source(row) {
                row.made += more;
                row.passed += more;
            } else if self.is_dividing_filter(row) {
                row.taken += more;
                row.dropped.push((WORKER_ENDED_REASON, more));
            }
        }
        if let Some(edge) = ledger.edges.iter_mut().find(|edge| edge.planned == self.edge) {
            edge.put += more;
            edge.taken += more;
        }
        if let Some(source) = self.source_entry(ledger) {
            source.given += more;
        }
    }

    /// Returns the counters of this source in the ledger, or `None` if the ledger has none.
    pub(super) fn source_entry<'l>(
        &self,
        ledger: &'l mut Ledger,
    ) -> Option<&'l mut SourceCounters> {
        let mut named = ledger.sources.iter_mut().filter(|(name, _)| *name == self.name);
        named.nth(self.nth).map(|(_, source)| source)
    }

    fn is_dividing_filter(&self, row: &NodeEntry) -> bool {
        row.planned == self.dividing_filter && row.name == SHARD_FILTER
    }

    fn is_source(&self, row: &NodeEntry) -> bool {
        row.planned == self.source && *row.name == *self.name
    }

    /// Returns the plan index under which the ledger counts the node `name`, a node between the
    /// source and the `shard` filter. For the reading side of a ring, this is the index of the
    /// filter; otherwise, it is the index of the source.
    fn planned_index(&self, name: &NodeName) -> usize {
        if name.ring_end() == Some(RingEnd::Import) { self.dividing_filter } else { self.source }
    }

    fn edges<'l>(&self, ledger: &'l Ledger) -> impl Iterator<Item = &'l Edge> + use<'l> {
        let number = self.edge;
        ledger.edges.iter().filter(move |edge| edge.planned == number)
    }

    /// Removes the losses between the source and the `shard` filter from the ledger. Returns these
    /// losses with their locations.
    fn take_losses(&self, ledger: &mut Ledger) -> Vec<(DropReason, Option<u64>)> {
        let mut lost: Vec<(DropReason, Option<u64>)> = Vec::new();
        for at in 0..ledger.edges.len() {
            let edge = &mut ledger.edges[at];
            if edge.planned != self.edge || edge.dropped.is_empty() {
                continue;
            }
            edge.missing.clear();
            let dropped = std::mem::take(&mut edge.dropped);
            lost.extend(dropped.into_iter().map(|(why, amount)| (why, Some(amount.blocks))));
            let gone = edge.put.saturating_sub(edge.taken + edge.resident);
            self.subtract_edge_input(ledger, at, gone);
        }
        lost
    }

    /// Subtracts `amount` from the counters between the source and the node `to`: from the edges
    /// that lead to `to`, and from the nodes and edges before them.
    fn subtract_upstream(&self, ledger: &mut Ledger, to: &str, mut amount: Amount) {
        for at in 0..ledger.edges.len() {
            let edge = &mut ledger.edges[at];
            if edge.planned != self.edge || *edge.to != *to || amount.blocks == 0 {
                continue;
            }
            let part = match edge.taken.blocks < amount.blocks {
                true => edge.taken,
                false => Amount { bytes: amount.bytes.min(edge.taken.bytes), ..amount },
            };
            edge.taken = edge.taken.saturating_sub(part);
            amount = amount.saturating_sub(part);
            self.subtract_edge_input(ledger, at, part);
        }
    }

    /// Subtracts `part` from the blocks put on the edge at index `at` of the ledger. Also subtracts
    /// `part` from the node that put these blocks on the edge, and from the edges and nodes
    /// upstream of that node.
    fn subtract_edge_input(&self, ledger: &mut Ledger, at: usize, part: Amount) {
        let edge = &mut ledger.edges[at];
        edge.put = edge.put.saturating_sub(part);
        let from = edge.from.clone();
        if *from == *self.name {
            for row in ledger.filters.iter_mut().filter(|row| self.is_source(row)).take(1) {
                row.made = row.made.saturating_sub(part);
                row.passed = row.passed.saturating_sub(part);
            }
            if let Some(source) = self.source_entry(ledger) {
                source.given = source.given.saturating_sub(part);
            }
            return;
        }
        let planned = self.planned_index(&from);
        let row = ledger.filters.iter_mut().find(|row| row.planned == planned && row.name == from);
        if let Some(row) = row {
            row.taken = row.taken.saturating_sub(part);
            row.passed = row.passed.saturating_sub(part);
        }
        self.subtract_upstream(ledger, &from, part);
    }

    /// Estimates the output of a kernel program whose counters are lost. The estimate is the number
    /// of blocks that entered this process at the nodes downstream of the program.
    fn estimate_output(&self, graph: &Graph, ledger: &Ledger) -> Amount {
        let reached = downstream_nodes(graph, self.dividing_filter);
        let mut output = Amount::default();
        for row in ledger.filters.iter().filter(|row| reached.contains(&row.planned)) {
            let into = ledger.edges.iter().filter(|edge| {
                let planned = graph.edges.get(edge.planned);
                edge.to == row.name && planned.is_some_and(|edge| edge.to.0 == row.planned)
            });
            let reported: Amount = into.map(|edge| edge.taken).sum();
            output += row.taken.saturating_sub(reported);
        }
        output
    }
}

/// Returns the node `from` and all nodes downstream of it.
fn downstream_nodes(graph: &Graph, from: usize) -> Vec<usize> {
    let mut found = vec![from];
    let mut at = 0;
    while let Some(here) = found.get(at).copied() {
        for edge in graph.outputs(NodeId(here)) {
            if !found.contains(&edge.to.0) {
                found.push(edge.to.0);
            }
        }
        at += 1;
    }
    found.remove(0);
    found
}
