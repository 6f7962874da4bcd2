//! The ledger and the reports of a path, merged from the counters of its spaces.

pub use crate::counters::NodeReport;
use crate::counters::{
    ExitEdge, ImportCounters, KernelContinuation, NodeCounters, SpaceCounters, node_report,
};
use crate::ledger::{Edge, Ledger, LossRanges, NodeEntry, NodeName};
use crate::space::SpaceResults;
use filter::{Amount, DeliveredItems, Report};

/// Returns the merged reports of the filters and sinks of a path that has ended.
#[must_use]
pub fn node_reports(results: &[SpaceResults]) -> Vec<NodeReport> {
    let ended = |space: &SpaceResults| -> Vec<NodeReport> {
        let last = space.nodes.iter().filter_map(node_report);
        last.chain(space.retired.reports.iter().cloned()).collect()
    };
    merge_reports_by_node(results.iter().flat_map(ended))
}

/// Merges the reports of the same node, and omits empty ones.
pub fn merge_reports_by_node(all: impl Iterator<Item = NodeReport>) -> Vec<NodeReport> {
    let mut reports: Vec<NodeReport> = Vec::new();
    for node_report in all {
        match reports.iter_mut().find(|known| known.planned == node_report.planned) {
            // The entries belong to one filter that ran in several spaces.
            Some(known) => merge_report_rows(&mut known.report, node_report.report),
            None => reports.push(node_report),
        }
    }
    reports.retain(|node_report| !node_report.report.is_empty());
    reports
}

/// Merges the report `more` into `to`; both belong to the same node. Adds up counts and values that
/// have the same name. Inserts rows that only `more` contains, in the order in which `more` lists
/// them.
pub(crate) fn merge_report_rows(to: &mut Report, more: Report) {
    for output in more.outputs {
        let same = |known: &&mut DeliveredItems| {
            (&known.unit, &known.done) == (&output.unit, &output.done)
        };
        match to.outputs.iter_mut().find(same) {
            Some(known) => known.count += output.count,
            None => to.outputs.push(output),
        }
    }
    for remark in more.remarks {
        if !to.remarks.contains(&remark) {
            to.remarks.push(remark);
        }
    }
    let mut behind = 0;
    for (name, value) in more.rows {
        match to.rows.iter().position(|(known, _)| *known == name) {
            Some(at) => {
                to.rows[at].1 += value;
                behind = at + 1;
            }
            None => {
                to.rows.insert(behind, (name, value));
                behind += 1;
            }
        }
    }
}

impl From<&SpaceResults> for SpaceCounters {
    fn from(results: &SpaceResults) -> Self {
        let failed = results.failure.is_some();
        let kernel_counts = results.kernel_counts.clone();
        let (nodes, imported) = (&results.nodes, results.imported.clone());
        let nodes = (&**nodes, &*results.retained_frames);
        let counters = Self::new(nodes, imported, &results.retired, failed);
        Self { kernel_counts, ..counters.with_reports(&results.nodes, &results.retired) }
    }
}

/// Returns the ledger of a path that has ended.
#[must_use]
pub fn final_ledger(results: &[SpaceResults]) -> Ledger {
    merge_ledger(results.iter().map(SpaceCounters::from).collect(), false)
}

/// Merges the counters of a path's spaces into a ledger. `runs` is true if the path is still
/// running. Blocks that were put on an edge but not taken then count as being in its ring.
pub fn merge_ledger(spaces: Vec<SpaceCounters>, runs: bool) -> Ledger {
    let mut ledger = Ledger::default();
    // The two halves of a program, one for its input and one for its output, share one entry.
    let mut programs: Vec<(usize, usize)> = Vec::new();
    let inside: Vec<usize> = spaces
        .iter()
        .filter(|space| space.kernel_counts.is_some())
        .flat_map(|space| space.nodes.iter().map(|node| node.entry.planned))
        .collect();
    let imported: Vec<ImportCounters> =
        spaces.iter().flat_map(|space| space.imported.iter().cloned()).collect();
    let failed = spaces.iter().any(|space| space.failed);
    let continuations: Vec<KernelContinuation> =
        spaces.iter().flat_map(|space| space.continuations.iter().cloned()).collect();
    for space in spaces {
        if let Some(kernel_counts) = space.kernel_counts {
            ledger.sources.extend(kernel_counts.sources);
            // Successive kernel programs of a source have the same edges.
            for edge in kernel_counts.edges {
                ledger.add_edge(edge);
            }
            for exit in kernel_counts.exits {
                ledger.add_edge(complete_kernel_edge(exit, &continuations, runs));
            }
        }
        ledger.edges.extend(space.edges);
        for node in space.nodes.into_iter().filter(|node| !node.receives_kernel_output) {
            let NodeCounters {
                entry: counted,
                source,
                call_edges: calls,
                ring,
                is_replica: copied,
                ..
            } = node;
            ledger.sources.extend(source.map(|source| (counted.name.to_string(), source)));
            // The user implementation of a kernel node may also run in a thread; both share one
            // entry.
            let both = inside.contains(&counted.planned);
            let same = |line: &NodeEntry| {
                (both || copied) && line.planned == counted.planned && line.name == counted.name
            };
            if let Some(line) = ledger.filters.iter().position(same) {
                ledger.filters[line].merge(counted);
                if copied {
                    for edge in calls {
                        ledger.add_edge(edge);
                    }
                    continue;
                }
                // Unused edges are omitted.
                ledger.edges.extend(calls.into_iter().filter(|edge| edge.put.blocks > 0));
                continue;
            }
            let known = programs.iter().find(|(planned, _)| *planned == counted.planned);
            match (counted.program, known) {
                (true, Some((_, line))) => ledger.filters[*line].merge(counted),
                (program, _) => {
                    if program {
                        programs.push((counted.planned, ledger.filters.len()));
                    }
                    ledger.filters.push(counted);
                }
            }
            ledger.edges.extend(calls);
            ledger.edges.extend(ring.map(|near| complete_ring_edge(near, &imported, failed, runs)));
        }
    }
    // A filter may have run both in a process of its own and in a thread; join its entries.
    let lines = &mut ledger.filters;
    let named = |(planned, line): (usize, usize)| (planned, lines[line].name.clone());
    let programs: Vec<(usize, NodeName)> = programs.into_iter().map(named).collect();
    for (planned, name) in programs {
        let is = |line: &NodeEntry| line.planned == planned && line.name == name;
        let Some(first) = lines.iter().position(is) else { continue };
        while let Some(again) = lines.iter().skip(first + 1).position(is) {
            let more = lines.remove(first + 1 + again);
            lines[first].merge(more);
        }
    }
    ledger
}

/// Completes an edge that leads from a kernel program to user space. The program has counted the
/// blocks that it put on the edge. The counters in `continuations` tell how many of these blocks
/// have left the source that receives them in user space; only these count as taken. If `runs` is
/// true, the path is running, and blocks that are neither taken nor dropped count as resident on
/// the edge.
fn complete_kernel_edge(exit: ExitEdge, continuations: &[KernelContinuation], runs: bool) -> Edge {
    let ExitEdge { name, mut edge } = exit;
    edge.taken = Amount::default();
    for (_, rose) in continuations.iter().filter(|(other, _)| *other == name) {
        edge.taken += rose.taken;
        edge.dropped.extend(rose.dropped.iter().copied());
    }
    if runs {
        edge.resident = unread_amount(&edge);
    }
    edge
}

/// Returns the number of blocks and bytes that were put on an edge, but neither taken nor dropped.
fn unread_amount(edge: &Edge) -> Amount {
    let gone = edge.dropped.iter().map(|(_, amount)| *amount).sum::<Amount>() + edge.taken;
    edge.put.saturating_sub(gone)
}

/// Returns the reports of the filters and sinks, merged across the spaces.
pub fn merge_reports(spaces: &[SpaceCounters]) -> Vec<NodeReport> {
    merge_reports_by_node(
        spaces.iter().flat_map(|space| &space.reports).map(|(_, report)| report.clone()),
    )
}

/// Completes the edge of a ring with the counters of the ring's reader. Blocks that were neither
/// taken nor dropped are still in the ring if the path is running (`runs`). They count as dropped
/// if the path has `failed`.
fn complete_ring_edge(
    mut edge: Edge,
    imported: &[ImportCounters],
    failed: bool,
    runs: bool,
) -> Edge {
    let far = imported.iter().find(|imported| imported.planned == edge.planned);
    (edge.to, edge.taken) = far.map(|far| (far.name.clone(), far.taken)).unwrap_or_default();
    let resident = unread_amount(&edge);
    if runs {
        edge.resident = resident;
    } else if failed && resident.blocks > 0 {
        // After a regular end a drained ring is empty; missing blocks then count as an imbalance.
        edge.dropped.push((PATH_ENDED.into(), resident));
        // Rings are FIFO: the missing blocks were put last.
        let mut missing = LossRanges::default();
        missing.add(edge.taken.blocks, resident.blocks, None);
        edge.missing.push((PATH_ENDED, missing));
    }
    edge
}

/// Drop reason for blocks that were still in a ring when the path failed.
const PATH_ENDED: &str = "path ended";
