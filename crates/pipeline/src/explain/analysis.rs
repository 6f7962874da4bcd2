//! Comparison of a run's measurements with the plan's expectations.
//!
//! The output is a table of nodes, a table of edges, and updates of the cost table for the next
//! plan. Values that differ from the expectation by more than a factor of two are marked. The
//! measurements are passed in, so this module reads no clock. [SL §7.1]

use super::describe;
use super::table::{TEXT_COLUMNS_MAX, Table};
use crate::format::format_one_decimal;
use crate::graph::NodeId;
use crate::names::{cost_key, unique_names};
use crate::plan::{ArcShare, Costs, FilterCost, Plan, PlannedEdge, SpaceKind};
use filter::ReadDepth;

/// Factor by which a measured value must differ from the expected value to be marked.
const DEVIATION_MIN: f64 = 2.0;
/// The minimum number of blocks needed to learn the fraction of blocks on an arc.
const SHARE_BLOCKS_MIN: u64 = 64;
/// The minimum number of blocks needed to learn a cost, because the first blocks run with cold
/// caches.
pub const LEARNED_BLOCKS_MIN: u64 = 4096;
/// The time spent in a filter, in ns, that suffices to learn the filter's cost even if the filter
/// received fewer than [`LEARNED_BLOCKS_MIN`] blocks.
const LEARNED_NS_MIN: u64 = 2_000_000;

/// The measurements of a run: per node, per edge and per kernel program.
#[derive(Debug, Clone, Default)]
pub struct Measurements {
    /// The duration of the run, in ns.
    pub elapsed_ns: u64,
    /// The measurements of each node of the plan.
    pub nodes: Vec<NodeMeasurement>,
    /// The measurements of each edge of the plan.
    pub edges: Vec<EdgeMeasurement>,
    /// The measurements of each kernel program, whose filters cannot be measured separately.
    pub programs: Vec<ProgramMeasurement>,
}

/// The measurements of a node.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct NodeMeasurement {
    /// The number of blocks that arrived at the node or, for a source, that it emitted.
    pub blocks: u64,
    /// The number of times the node was called.
    pub calls: u64,
    /// The time spent in the node, in ns; 0 if not measured.
    pub busy_ns: u64,
    /// The number of blocks that the node copied.
    pub copies: u64,
}

/// The measurements of an edge.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct EdgeMeasurement {
    /// The number of blocks sent over the edge.
    pub put: u64,
    /// The number of times the receiver was woken, or `None` if the edge does not wake a receiver.
    pub events: Option<u64>,
}

/// The measurements of a kernel program.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct ProgramMeasurement {
    /// The source that the program replaces.
    pub source: NodeId,
    /// The number of frames that the program processed.
    pub frames: u64,
    /// The number of doorbell notifications that the program sent.
    pub notifications: u64,
    /// The number of runs of the program that the kernel measured, and their total time in ns.
    /// `None` if not measured.
    pub measured: Option<(u64, u64)>,
}

/// Formats the tables of an analysis, and a paragraph for each kernel program.
#[must_use]
pub fn format_analysis(plan: &Plan, measured: &Measurements) -> String {
    let names = unique_names(&plan.graph);
    let mut text =
        format!("{}\n{}", node_table(plan, measured, &names), edge_table(plan, measured, &names));
    for program in &measured.programs {
        text.push('\n');
        describe::write_wrapped(&mut text, &program.format_program(plan, &names), TEXT_COLUMNS_MAX);
    }
    text
}

impl ProgramMeasurement {
    /// Formats a program's measured and expected cost, and the number of notifications.
    fn format_program(&self, plan: &Plan, names: &[String]) -> String {
        let inside = plan.programs.iter().find(|program| program.sources.contains(&self.source));
        let steps = inside.iter().flat_map(|program| &program.steps);
        let nodes = steps.filter_map(|step| step.nodes.first().copied()).chain([self.source]);
        let flow = |id: NodeId| plan.flows.0.get(id.0).copied().unwrap_or(1.0);
        let of = |id| plan.expected_cost(id).map(|ns| ns * flow(id) / flow(self.source));
        let expected: f64 = nodes.filter_map(of).sum();
        let name = names.get(self.source.0).map_or("", String::as_str);
        let cost = match self.measured.filter(|(runs, _)| *runs > 0) {
            Some((runs, ns)) => {
                let measured = ns as f64 / runs as f64;
                let difference = describe_deviation(measured, expected);
                let difference =
                    if difference.is_empty() { difference } else { format!(" ({difference})") };
                let (measured, expected) =
                    (format_one_decimal(measured), format_one_decimal(expected));
                format!("{measured} ns for a frame, {expected} expected{difference}")
            }
            None => "the kernel has not measured its time".to_owned(),
        };
        let notifications = self.notifications;
        let each = format_mean_batch(self.frames, notifications);
        format!(
            "program of {name}: {cost}; {} frames, {notifications} notifications, {each} frames \
             each",
            self.frames
        )
    }
}

fn node_table(plan: &Plan, measured: &Measurements, names: &[String]) -> String {
    let mut table = Table::new(&[
        "filter",
        "space",
        ">blocks",
        ">blocks/s",
        ">per call",
        ">ns/block",
        ">expected",
        ">copies",
        "",
    ]);
    for (id, _) in plan.graph.nodes_with_ids() {
        let Some(node) = measured.nodes.get(id.0) else { continue };
        let expected = plan.expected_cost(id);
        let mean = node.ns_per_block();
        table.add_row([
            names[id.0].clone(),
            plan.space_of(id).name.clone(),
            node.blocks.to_string(),
            format_rate(node.blocks, measured.elapsed_ns),
            format_mean_batch(node.blocks, node.calls),
            mean.map_or_else(|| "–".to_owned(), format_one_decimal),
            expected.map_or_else(|| "–".to_owned(), format_one_decimal),
            node.copies.to_string(),
            mean.zip(expected).map_or_else(String::new, |(m, e)| describe_deviation(m, e)),
        ]);
    }
    table.format_within(TEXT_COLUMNS_MAX)
}

fn edge_table(plan: &Plan, measured: &Measurements, names: &[String]) -> String {
    let mut table = Table::new(&[
        "edge",
        "kind",
        ">blocks/s",
        ">share",
        ">expected",
        ">fill",
        ">wake-ups",
        ">copies",
        "",
    ]);
    for (at, edge) in plan.graph.edges.iter().enumerate() {
        let Some(counted) = measured.edges.get(at) else { continue };
        let share = counted.edge_share(measured, edge.from);
        let (from, to) = (plan.flows.0[edge.from.0], plan.flows.1[at]);
        let expected = if from > 0.0 { to / from } else { 0.0 };
        let (is, fill) = match &plan.edges[at] {
            PlannedEdge::Call => ("call", format_mean_input_batch(measured, edge.to)),
            PlannedEdge::Back => ("back edge", "–".to_owned()),
            PlannedEdge::Pipe => ("pipe", "–".to_owned()),
            PlannedEdge::Ring(ring) => ("ring", format_ring_fill(counted, ring.entries)),
            PlannedEdge::Kernel(ring) => ("kernel ring", format_ring_fill(counted, ring.entries)),
        };
        // Blocks that leave the kernel are copied out of its ring, whereas between threads only
        // pointers move.
        let copies = if matches!(plan.edges[at], PlannedEdge::Kernel(_)) { counted.put } else { 0 };
        table.add_row([
            format!("{} → {}", names[edge.from.0], names[edge.to.0]),
            is.to_owned(),
            format_rate(counted.put, measured.elapsed_ns),
            share.map_or_else(|| "–".to_owned(), format_percent),
            format_percent(expected),
            fill,
            counted.events.map_or_else(|| "–".to_owned(), |events| events.to_string()),
            copies.to_string(),
            share.map_or_else(String::new, |share| describe_deviation(share, expected)),
        ]);
    }
    table.format_within(TEXT_COLUMNS_MAX)
}

impl NodeMeasurement {
    /// Returns the mean time per block, in ns, or `None` if not measured.
    pub(super) fn ns_per_block(&self) -> Option<f64> {
        let measured = self.busy_ns > 0 && self.blocks > 0;
        measured.then(|| self.busy_ns as f64 / self.blocks as f64)
    }
}

impl EdgeMeasurement {
    /// Returns the fraction, at most 1, of a node's input that took this edge, or `None` if the
    /// node had no input or was not measured.
    fn edge_share(&self, measured: &Measurements, from: NodeId) -> Option<f64> {
        let came = measured.nodes.get(from.0)?.blocks;
        (came > 0).then(|| (self.put as f64 / came as f64).min(1.0))
    }
}

/// Formats the ratio of the values; empty if the values differ by at most a factor of two, or if
/// either is not positive.
fn describe_deviation(measured: f64, expected: f64) -> String {
    match () {
        () if expected <= 0.0 || measured <= 0.0 => String::new(),
        () if measured > DEVIATION_MIN * expected => {
            format!("{}× expected", format_one_decimal(measured / expected))
        }
        () if expected > DEVIATION_MIN * measured => {
            format!("1/{} expected", format_one_decimal(expected / measured))
        }
        () => String::new(),
    }
}

fn format_rate(blocks: u64, elapsed_ns: u64) -> String {
    let ns = elapsed_ns.max(1) as f64;
    format!("{:.0}", blocks as f64 * 1e9 / ns)
}

fn format_mean_batch(blocks: u64, calls: u64) -> String {
    if calls == 0 { "–".to_owned() } else { format_one_decimal(blocks as f64 / calls as f64) }
}

fn format_percent(share: f64) -> String {
    format!("{} %", format_one_decimal(share * 100.0))
}

/// Formats the mean size of the batches that arrive at a node.
fn format_mean_input_batch(measured: &Measurements, to: NodeId) -> String {
    measured
        .nodes
        .get(to.0)
        .map_or_else(String::new, |node| format_mean_batch(node.blocks, node.calls))
}

/// Formats the mean number of blocks per wakeup and the capacity of the ring.
fn format_ring_fill(edge: &EdgeMeasurement, entries: usize) -> String {
    match edge.events {
        Some(events) if events > 0 => {
            format!("{} of {entries}", format_mean_batch(edge.put, events))
        }
        _ => format!("– of {entries}"),
    }
}

/// Stores measurements in a cost table for the next plan: the cost of each filter with its
/// arguments, and the fraction of the filter's blocks on each arc. Returns the number of filters
/// whose cost was not learned because they received too few blocks: fewer than 64, or fewer than
/// [`LEARNED_BLOCKS_MIN`] in less than 2 ms of processing time.
///
/// Omits the costs of filters that run in a process of their own. In a calibrated table, replaces
/// only the costs of filters that read whole blocks.
pub fn learn_costs(plan: &Plan, measured: &Measurements, costs: &mut Costs) -> usize {
    let mut too_few = 0;
    for (id, node) in plan.graph.nodes_with_ids().filter(|(_, node)| node.filter().is_some()) {
        let Some(counted) = measured.nodes.get(id.0) else { continue };
        if counted.blocks < SHARE_BLOCKS_MIN {
            too_few += 1;
            continue;
        }
        let filter = cost_key(&plan.graph, id);
        let kernel = plan.space_of(id).kind == SpaceKind::Kernel;
        // The first filter that needs header offsets pays for finding them. For a filter that reads
        // only the head, a calibration is therefore more accurate than a run.
        let all = node.filter().is_some_and(|used| used.effect().reads == ReadDepth::All);
        let learns = !node.has_own_process() && (all || !costs.is_calibrated());
        match counted.ns_per_block().filter(|_| learns) {
            Some(_) if counted.blocks < LEARNED_BLOCKS_MIN && counted.busy_ns < LEARNED_NS_MIN => {
                too_few += 1;
            }
            Some(block) => {
                costs.set_filter_cost(FilterCost {
                    filter: filter.clone(),
                    kernel,
                    block,
                    byte: 0.0,
                });
            }
            None => {}
        }
        let numbered = plan.graph.edges.iter().enumerate();
        for (at, edge) in numbered.filter(|(_, edge)| edge.from == id && !edge.back) {
            let share = measured.edges.get(at).and_then(|counted| counted.edge_share(measured, id));
            let classes = edge.classes.to_string().replace(' ', "");
            let filter = filter.clone();
            share.into_iter().for_each(|share| {
                costs.set_arc_share(ArcShare {
                    filter: filter.clone(),
                    classes: classes.clone(),
                    share,
                });
            });
        }
    }
    too_few
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn v1_value_off_by_more_than_a_factor_of_two_is_marked() {
        assert_eq!(describe_deviation(21.0, 10.0), "2.1× expected");
        assert_eq!(describe_deviation(20.0, 10.0), "");
        assert_eq!(describe_deviation(4.0, 10.0), "1/2.5 expected");
        assert_eq!(describe_deviation(5.0, 10.0), "");
        assert_eq!(
            (describe_deviation(5.0, 0.0), describe_deviation(0.0, 5.0)),
            (String::new(), String::new())
        );
    }
}
