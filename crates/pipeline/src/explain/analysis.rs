//! Compares the measurements of a run with the plan's expectations.
//!
//! In: a plan, and what a run counted of its nodes and edges. Out: two tables, in which is marked
//! what is more than twice as dear or less than half as dear as expected, and what the next plan
//! can learn. Nothing here knows a clock: the figures are handed in. [SL §7.1]

use super::table::{Column, Table};
use super::{COLUMNS, names, number, plain_text, words};
use crate::graph::NodeId;
use crate::plan::{ArcShare, Costs, FilterCost, Plan, PlannedEdge, SpaceKind};
use filter::Reads;

/// From how far apart on two figures are marked.
const FAR: f64 = 2.0;
/// The fewest blocks from which it is learned which share of them takes an arc.
const SHARE_MIN: u64 = 64;
/// The fewest blocks from which it is learned what one costs: the first ones find nothing in the
/// caches.
pub const LEARNED_MIN: u64 = 4096;

/// The measurements of a run.
#[derive(Debug, Clone, Default)]
pub struct Measurements {
    /// Duration of the run, in ns.
    pub elapsed_ns: u64,
    /// Measurements by node of the plan.
    pub nodes: Vec<NodeMeasurement>,
    /// Measurements by edge of the plan.
    pub edges: Vec<EdgeMeasurement>,
    /// Programs in the kernel, whose filters are measured as a whole only.
    pub programs: Vec<ProgramMeasurement>,
}

/// The measurements of a node.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct NodeMeasurement {
    /// Blocks that came in, or that a source gave.
    pub blocks: u64,
    /// Number of calls.
    pub calls: u64,
    /// Time in it, in ns; 0 where it was not measured.
    pub busy_ns: u64,
    /// Blocks that it copied.
    pub copies: u64,
}

/// The measurements of an edge.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct EdgeMeasurement {
    /// Blocks that were put on it.
    pub put: u64,
    /// Events that were sent over it, where it has any.
    pub events: Option<u64>,
}

/// The measurements of a program in the kernel.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct ProgramMeasurement {
    /// The source that it stands for.
    pub source: NodeId,
    /// Frames that it was given.
    pub frames: u64,
    /// Number of notifications.
    pub bells: u64,
    /// Runs that the kernel measured, and their time in ns.
    pub measured: Option<(u64, u64)>,
}

/// The tables of an analysis, and what was measured of programs in the kernel.
#[must_use]
pub fn analysis(plan: &Plan, seen: &Measurements) -> String {
    let names = names(&plan.graph);
    let mut text = format!("{}\n{}", nodes(plan, seen, &names), edges(plan, seen, &names));
    for program in &seen.programs {
        text.push('\n');
        words::wrapped(&mut text, &program.told(plan, &names), COLUMNS);
    }
    text
}

impl ProgramMeasurement {
    /// Formats the cost of a program beside the expected one, and its notifications.
    fn told(&self, plan: &Plan, names: &[String]) -> String {
        let inside = plan.programs.iter().find(|program| program.sources.contains(&self.source));
        let steps = inside.iter().flat_map(|program| &program.steps);
        let nodes = steps.filter_map(|step| step.nodes.first().copied()).chain([self.source]);
        let flow = |id: NodeId| plan.flows.0.get(id.0).copied().unwrap_or(1.0);
        let of = |id| plan.expected(id).map(|ns| ns * flow(id) / flow(self.source));
        let expected: f64 = nodes.filter_map(of).sum();
        let name = names.get(self.source.0).map_or("", String::as_str);
        let cost = match self.measured.filter(|(runs, _)| *runs > 0) {
            Some((runs, ns)) => {
                let measured = ns as f64 / runs as f64;
                let far = mark(measured, expected);
                let far = if far.is_empty() { far } else { format!(" ({far})") };
                let (measured, expected) = (number(measured), number(expected));
                format!("{measured} ns for a frame, {expected} expected{far}")
            }
            None => "the kernel did not tell how long it ran".to_owned(),
        };
        let bells = self.bells;
        let each = each(self.frames, bells);
        format!(
            "program of {name}: {cost}; {} frames, {bells} bells, {each} frames each",
            self.frames
        )
    }
}

fn nodes(plan: &Plan, seen: &Measurements, names: &[String]) -> String {
    let mut table = Table::new(&[
        Column::left("filter"),
        Column::left("space"),
        Column::right("blocks"),
        Column::right("blocks/s"),
        Column::right("per call"),
        Column::right("ns/block"),
        Column::right("expected"),
        Column::right("copies"),
        Column::left(""),
    ]);
    for (id, _) in plan.graph.ids() {
        let Some(node) = seen.nodes.get(id.0) else { continue };
        let expected = plan.expected(id);
        let measured = node.ns();
        table.row([
            names[id.0].clone(),
            plan.space_of(id).name.clone(),
            node.blocks.to_string(),
            rate(node.blocks, seen.elapsed_ns),
            each(node.blocks, node.calls),
            measured.map_or_else(|| "–".to_owned(), number),
            expected.map_or_else(|| "–".to_owned(), number),
            node.copies.to_string(),
            measured.zip(expected).map_or_else(String::new, |(m, e)| mark(m, e)),
        ]);
    }
    table.text(COLUMNS)
}

fn edges(plan: &Plan, seen: &Measurements, names: &[String]) -> String {
    let mut table = Table::new(&[
        Column::left("edge"),
        Column::left("is"),
        Column::right("blocks/s"),
        Column::right("share"),
        Column::right("expected"),
        Column::right("fill"),
        Column::right("wake-ups"),
        Column::right("copies"),
        Column::left(""),
    ]);
    for (at, edge) in plan.graph.edges.iter().enumerate() {
        let Some(counted) = seen.edges.get(at) else { continue };
        let share = counted.share(seen, edge.from);
        let (from, to) = (plan.flows.0[edge.from.0], plan.flows.1[at]);
        let expected = if from > 0.0 { to / from } else { 0.0 };
        let (is, fill) = match &plan.edges[at] {
            PlannedEdge::Call => ("call", batch(seen, edge.to)),
            PlannedEdge::Back => ("back edge", "–".to_owned()),
            PlannedEdge::Pipe => ("pipe", "–".to_owned()),
            PlannedEdge::Ring(ring) => ("ring", filled(counted, ring.entries)),
            PlannedEdge::Kernel(ring) => ("kernel ring", filled(counted, ring.entries)),
        };
        // What leaves the kernel is copied out of its ring; between threads pointers travel.
        let copies = if matches!(plan.edges[at], PlannedEdge::Kernel(_)) { counted.put } else { 0 };
        table.row([
            format!("{} → {}", names[edge.from.0], names[edge.to.0]),
            is.to_owned(),
            rate(counted.put, seen.elapsed_ns),
            share.map_or_else(|| "–".to_owned(), percent),
            percent(expected),
            fill,
            counted.events.map_or_else(|| "–".to_owned(), |events| events.to_string()),
            copies.to_string(),
            share.map_or_else(String::new, |share| mark(share, expected)),
        ]);
    }
    table.text(COLUMNS)
}

impl NodeMeasurement {
    /// Returns the measured cost of a block, in ns.
    fn ns(&self) -> Option<f64> {
        let measured = self.busy_ns > 0 && self.blocks > 0;
        measured.then(|| self.busy_ns as f64 / self.blocks as f64)
    }
}

impl EdgeMeasurement {
    /// Returns the fraction of a node's input that took this edge.
    fn share(&self, seen: &Measurements, from: NodeId) -> Option<f64> {
        let came = seen.nodes.get(from.0)?.blocks;
        (came > 0).then(|| (self.put as f64 / came as f64).min(1.0))
    }
}

/// Marks two figures that differ by more than a factor of two.
fn mark(measured: f64, expected: f64) -> String {
    match () {
        () if expected <= 0.0 || measured <= 0.0 => String::new(),
        () if measured > FAR * expected => format!("{}× expected", number(measured / expected)),
        () if expected > FAR * measured => format!("1/{} expected", number(expected / measured)),
        () => String::new(),
    }
}

fn rate(blocks: u64, elapsed_ns: u64) -> String {
    let ns = elapsed_ns.max(1) as f64;
    format!("{:.0}", blocks as f64 * 1e9 / ns)
}

fn each(blocks: u64, calls: u64) -> String {
    if calls == 0 { "–".to_owned() } else { number(blocks as f64 / calls as f64) }
}

fn percent(share: f64) -> String {
    format!("{} %", number(share * 100.0))
}

/// Formats the mean fill of the batches that a node receives.
fn batch(seen: &Measurements, to: NodeId) -> String {
    seen.nodes.get(to.0).map_or_else(String::new, |node| each(node.blocks, node.calls))
}

/// Formats the blocks per event, and the room there is for them.
fn filled(edge: &EdgeMeasurement, entries: usize) -> String {
    match edge.events {
        Some(events) if events > 0 => format!("{} of {entries}", each(edge.put, events)),
        _ => format!("– of {entries}"),
    }
}

/// Puts what was seen into a table of costs, for the next plan: what filters cost with these
/// arguments, and which share of their blocks took each arc. Answers of how many filters it is not
/// learned what they cost, as fewer than [`LEARNED_MIN`] blocks came to them.
pub fn learn(plan: &Plan, seen: &Measurements, costs: &mut Costs) -> usize {
    let mut too_few = 0;
    for (id, node) in plan.graph.ids().filter(|(_, node)| node.filter().is_some()) {
        let Some(counted) = seen.nodes.get(id.0) else { continue };
        if counted.blocks < SHARE_MIN {
            too_few += 1;
            continue;
        }
        let filter = plain_text(&plan.graph, id);
        let kernel = plan.space_of(id).kind == SpaceKind::Kernel;
        // Where the headers begin is found by whoever looks first: of what looks at the head alone
        // a run tells less than a calibration.
        let all = node.filter().is_some_and(|used| used.effect().reads == Reads::All);
        let learns = !node.is_process() && (all || !costs.is_calibrated());
        match counted.ns().filter(|_| learns) {
            Some(_) if counted.blocks < LEARNED_MIN => too_few += 1,
            Some(block) => {
                costs.put(FilterCost { filter: filter.clone(), kernel, block, byte: 0.0 });
            }
            None => {}
        }
        let numbered = plan.graph.edges.iter().enumerate();
        for (at, edge) in numbered.filter(|(_, edge)| edge.from == id && !edge.back) {
            let share = seen.edges.get(at).and_then(|counted| counted.share(seen, id));
            let classes = edge.classes.to_string().replace(' ', "");
            let filter = filter.clone();
            share.into_iter().for_each(|share| {
                costs.put_share(ArcShare {
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
    fn v1_figures_off_by_more_than_two_are_marked() {
        assert_eq!(mark(21.0, 10.0), "2.1× expected");
        assert_eq!(mark(20.0, 10.0), "");
        assert_eq!(mark(4.0, 10.0), "1/2.5 expected");
        assert_eq!(mark(5.0, 10.0), "");
        assert_eq!((mark(5.0, 0.0), mark(0.0, 5.0)), (String::new(), String::new()));
    }
}
