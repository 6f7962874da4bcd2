//! Merging of the counters of removed nodes, which bounds the number of counters of a path that is
//! edited many times, and the duration of each edit.
//!
//! A ledger for users identifies a removed node only by its name, because the node has no index in
//! the current plan. Once there are many removed nodes, the counters of nodes with the same name
//! are therefore added up.

use crate::counters::{NodeCounters, RetiredCounters};
use crate::ledger::{DropReason, Edge, LossRanges};
use crate::report::merge_report_rows;
use filter::Amount;

/// Maximum number of removed nodes of a space whose counters are kept separately; the same limit
/// applies to removed edges and to the reports of removed nodes. Above the limit, counters with the
/// same name are merged. Each edit copies all these counters several times while the path pauses,
/// which takes 1 to 2 µs per node, edge or report.
const SEPARATE_COUNTERS_MAX: usize = 3;

impl RetiredCounters {
    /// Merges the counters of removed nodes that have the same name, once there are more than
    /// [`SEPARATE_COUNTERS_MAX`] such nodes. Does the same for removed edges, and for the reports
    /// of removed nodes.
    ///
    /// `live` contains the numbers of all nodes that still run in any space. The counters of these
    /// nodes stay separate, for example those of a node that replicas have replaced. If `live` is
    /// empty, merges nothing.
    pub(crate) fn merge_counters_by_name(&mut self, live: &[usize]) {
        if live.is_empty() {
            return;
        }
        if self.nodes.len() > SEPARATE_COUNTERS_MAX {
            let mut merged: Vec<NodeCounters> = Vec::new();
            for node in std::mem::take(&mut self.nodes) {
                let known = merged.iter_mut().find(|known| is_mergeable(known, &node, live));
                match known {
                    Some(known) => {
                        known.entry.merge(node.entry);
                        merge_amounts_by_reason(&mut known.entry.dropped);
                    }
                    None => merged.push(node),
                }
            }
            self.nodes = merged;
        }
        if self.edges.len() > SEPARATE_COUNTERS_MAX {
            let mut merged: Vec<Edge> = Vec::new();
            for edge in std::mem::take(&mut self.edges) {
                let same = |known: &&mut Edge| {
                    (&known.from, &known.to, known.kind) == (&edge.from, &edge.to, edge.kind)
                };
                match merged.iter_mut().find(same) {
                    Some(known) => add_edge_counters(known, edge),
                    None => merged.push(edge),
                }
            }
            self.edges = merged;
        }
        if self.reports.len() > SEPARATE_COUNTERS_MAX {
            let all = std::mem::take(&mut self.reports);
            for one in all {
                let known = self.reports.iter_mut().find(|known| {
                    let is_live = live.contains(&known.planned) || live.contains(&one.planned);
                    known.name == one.name && !is_live
                });
                match known {
                    Some(known) => merge_report_rows(&mut known.report, one.report),
                    None => self.reports.push(one),
                }
            }
        }
    }
}

/// Returns true if the counters of two removed nodes can be merged. The nodes must have the same
/// name, must be plain filters or sinks, and must no longer run in any space. In addition, either
/// both or neither must be replicas, and either both or neither must be operands.
fn is_mergeable(one: &NodeCounters, other: &NodeCounters, live: &[usize]) -> bool {
    let is_plain = |node: &NodeCounters| {
        node.source.is_none()
            && !node.receives_kernel_output
            && node.ring.is_none()
            && !node.entry.program
            && !node.entry.name.is_ring()
            && !live.contains(&node.entry.planned)
    };
    one.entry.name == other.entry.name
        && one.is_replica == other.is_replica
        && one.entry.operand == other.entry.operand
        && is_plain(one)
        && is_plain(other)
}

/// Adds the counters in `more` to the counters of an edge with the same name.
fn add_edge_counters(to: &mut Edge, more: Edge) {
    to.put += more.put;
    to.taken += more.taken;
    to.resident += more.resident;
    to.dropped.extend(more.dropped);
    merge_amounts_by_reason(&mut to.dropped);
    for (reason, ranges) in more.missing {
        // Positions are relative to the beginning of an edge, so ranges of two edges cannot be
        // merged.
        if !to.missing.iter().any(|(known, _)| *known == reason) {
            to.missing.push((reason, LossRanges::clone(&ranges)));
        }
    }
}

/// Merges all amounts in the list that have the same reason, by adding them up.
fn merge_amounts_by_reason(all: &mut Vec<(DropReason, Amount)>) {
    let mut merged: Vec<(DropReason, Amount)> = Vec::new();
    for (reason, amount) in all.drain(..) {
        match merged.iter_mut().find(|(known, _)| *known == reason) {
            Some((_, sum)) => *sum += amount,
            None => merged.push((reason, amount)),
        }
    }
    *all = merged;
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::counters::{NodeReport, SpaceCounters};
    use crate::ledger::{EdgeKind, NodeEntry, NodeName};
    use filter::Report;

    /// Returns the counters of a removed node that has dropped one block for the reason `full`.
    fn removed_node(name: &str, planned: usize) -> NodeCounters {
        let (taken, passed) = (Amount { blocks: 3, bytes: 30 }, Amount { blocks: 2, bytes: 20 });
        let dropped = vec![(DropReason::NoRoom, Amount { blocks: 1, bytes: 10 })];
        let name = NodeName::from(name);
        let entry = NodeEntry { name, planned, taken, passed, dropped, ..NodeEntry::default() };
        let (source, ring, calls) = (None, None, Vec::new());
        NodeCounters {
            entry,
            source,
            receives_kernel_output: false,
            is_replica: true,
            call_edges: calls,
            ring,
        }
    }

    #[test]
    fn counters_of_many_removed_nodes_are_merged_by_name() {
        let mut retired = RetiredCounters::default();
        for planned in 0..1000 {
            let name = if planned % 2 == 0 { "count" } else { "sample" };
            retired.nodes.push(removed_node(name, planned));
            let (from, to) = (NodeName::from("udp"), NodeName::from(name));
            let amount = Amount { blocks: 3, bytes: 30 };
            let edge = Edge::new(from, to, EdgeKind::Call, planned);
            retired.edges.push(Edge { put: amount, taken: amount, ..edge });
            let report = Report { rows: vec![("blocks".to_owned(), 3)], ..Report::default() };
            retired.reports.push(NodeReport { planned, name: name.to_owned(), report });
            retired.merge_counters_by_name(&[4, 5000]);
            assert!(retired.nodes.len() <= SEPARATE_COUNTERS_MAX + 1, "{}", retired.nodes.len());
            assert!(retired.edges.len() <= SEPARATE_COUNTERS_MAX + 1);
            assert!(retired.reports.len() <= SEPARATE_COUNTERS_MAX + 1);
        }
        let nodes = retired.nodes.iter().filter(|node| node.entry.planned == 4);
        assert_eq!(nodes.map(|node| node.entry.taken.blocks).sum::<u64>(), 3, "it runs again");
        let rows: u64 =
            retired.reports.iter().flat_map(|one| &one.report.rows).map(|row| row.1).sum();
        assert_eq!(rows, 3000);
        let counters = SpaceCounters::new((&[], &[]), Vec::new(), &retired, false);
        let ledger = crate::report::merge_ledger(vec![counters], true);
        assert_eq!(ledger.imbalances(), []);
        assert_eq!(ledger.filters.iter().map(|node| node.taken.blocks).sum::<u64>(), 3000);
        assert_eq!(ledger.edges.iter().map(|edge| edge.put.blocks).sum::<u64>(), 3000);
    }
}
