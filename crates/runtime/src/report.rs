//! Construction of a path's ledger from the counters of its spaces, while they run or when they
//! have ended.

use crate::ledger::{DropReason, Edge, EdgeKind, Filtered, Ledger, Missing, NodeName};
use crate::process;
use crate::space::node::{Arc, Node, Part};
use crate::space::{Imported, Remains};
use endpoint::Seen;
use filter::{Amount, Delivered, Report};

/// Report of a filter or sink.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Reported {
    /// Index of the node in the plan.
    pub planned: usize,
    /// Its name.
    pub name: String,
    /// The report itself.
    pub report: Report,
}

/// Returns the reports of the filters and sinks of a path.
#[must_use]
pub fn reports_of(remains: &[Remains]) -> Vec<Reported> {
    let ended = |space: &Remains| -> Vec<Reported> {
        let last = space.nodes.iter().filter_map(reported);
        last.chain(space.retired.reports.iter().cloned()).collect()
    };
    together(remains.iter().flat_map(ended))
}

/// Returns the report of the filter or sink in a node.
fn reported(node: &Node) -> Option<Reported> {
    let report = match &node.part {
        Part::Filter(filter) => filter.report(),
        Part::Sink(part) => part.report.clone().unwrap_or_default(),
        _ => return None,
    };
    Some(Reported { planned: node.planned, name: node.name.to_string(), report })
}

/// One report for each node of the plan, of those that say anything.
pub fn together(all: impl Iterator<Item = Reported>) -> Vec<Reported> {
    let mut reports: Vec<Reported> = Vec::new();
    for reported in all {
        match reports.iter_mut().find(|known| known.planned == reported.planned) {
            // One filter that ran in two spaces.
            Some(known) => add(&mut known.report, reported.report),
            None => reports.push(reported),
        }
    }
    reports.retain(|reported| !reported.report.is_empty());
    reports
}

/// Adds rows and outputs to those of the same name, others in their place.
fn add(to: &mut Report, more: Report) {
    for output in more.outputs {
        let same =
            |known: &&mut Delivered| (&known.unit, &known.done) == (&output.unit, &output.done);
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

/// Counters of one space, taken by the space itself: between two passes, or at its end.
#[derive(Clone, Debug, Default)]
pub struct Counted {
    nodes: Vec<CountedNode>,
    /// The edges of nodes that are no more.
    edges: Vec<Edge>,
    /// Edges on which kernel output went on, including those removed since.
    risen: Vec<Risen>,
    imported: Vec<Imported>,
    /// Reports, by index of the node.
    reports: Vec<(usize, Reported)>,
    failed: bool,
    /// Counts of a space that runs outside this process, in the kernel.
    outside: Option<OutsideCounts>,
}

/// Counts of a space that runs outside this process, beside those of its nodes.
#[derive(Clone, Debug, Default)]
pub struct OutsideCounts {
    /// Counts of the sources.
    pub sources: Vec<(String, Seen)>,
    /// Edges within the space.
    pub edges: Vec<Edge>,
    /// Edges out of it.
    pub exits: Vec<ExitEdge>,
}

/// An edge out of the kernel, as the program and the source at its end counted it.
#[derive(Clone, Debug)]
pub struct ExitEdge {
    /// The number of the source, the number of programs that stood for it before, and the exit of
    /// this one.
    pub name: (usize, usize, usize),
    /// The counts.
    pub edge: Edge,
}

/// Counters of nodes and rings removed from a running space.
#[derive(Clone, Debug, Default)]
pub struct Retired {
    nodes: Vec<CountedNode>,
    edges: Vec<Edge>,
    risen: Vec<Risen>,
    imported: Vec<Imported>,
    reports: Vec<Reported>,
}

/// Continuation of an edge out of the kernel: the name of that edge, and the edge behind it.
type Risen = ((usize, usize, usize), Edge);

impl Retired {
    /// Keeps what nodes and arcs counted that are no more, of all that a space had counted.
    pub fn add(
        &mut self,
        before: Counted,
        gone: &dyn Fn(usize) -> bool,
        gone_arc: &dyn Fn(usize, usize) -> bool,
    ) {
        let known = self.nodes.len();
        let nodes = before.nodes.len() - known;
        self.reports.extend(before.reports.into_iter().filter(|(at, _)| gone(*at)).map(|(_, r)| r));
        for (at, mut node) in before.nodes.into_iter().take(nodes).enumerate() {
            let calls = std::mem::take(&mut node.calls);
            if node.transport {
                let risen = risen(&self.nodes, &node, calls);
                self.risen.extend(risen.filter(|((.., arc), _)| gone_arc(at, *arc)));
            } else {
                let calls = calls.into_iter().enumerate().filter(|(arc, _)| gone_arc(at, *arc));
                self.edges.extend(calls.map(|(_, edge)| edge));
            }
            if gone(at) {
                // Copies may stand in its place: they are one line with what it was.
                node.copied |= node.ring.is_none() && !node.filtered.name.is_ring();
                self.nodes.push(node);
            }
        }
    }

    /// Keeps what came over a ring that is no more.
    pub fn over(&mut self, imported: Imported) {
        self.imported.push(imported);
    }
}

/// Counters of one node.
#[derive(Clone, Debug)]
struct CountedNode {
    filtered: Filtered,
    /// Counts of a source.
    seen: Option<Seen>,
    /// True if the node only takes up kernel output: its edges are the kernel's.
    transport: bool,
    /// True if the node is one of several replicas, which are reported together.
    copied: bool,
    /// The edges to other nodes of the space.
    calls: Vec<Edge>,
    /// The near side of a ring to another space.
    ring: Option<Edge>,
}

impl Counted {
    /// Collects the counters of these nodes of a space and of its rings.
    pub fn new(
        nodes: &[Node],
        mut imported: Vec<Imported>,
        retired: &Retired,
        failed: bool,
    ) -> Self {
        let counted = nodes.iter().enumerate().map(|(number, node)| {
            let program = process::of(node);
            let seen = match &node.part {
                Part::Source(part) if program.is_none_or(|program| program.is_head()) => {
                    Some(part.source.seen())
                }
                _ => None,
            };
            let ring = match &node.part {
                Part::Export(export) => Some(near(node, export)),
                _ => None,
            };
            CountedNode {
                filtered: filtered(node, number, &imported),
                seen,
                transport: matches!(&node.part, Part::Source(part) if part.properties.chooses_arc),
                copied: node.copied,
                calls: node.arcs.iter().map(|arc| call(node, arc, nodes)).collect(),
                ring,
            }
        });
        let mut counted: Vec<CountedNode> = counted.collect();
        counted.extend(retired.nodes.iter().cloned());
        imported.extend(retired.imported.iter().cloned());
        let said = nodes.iter().enumerate().filter_map(|(at, node)| Some((at, reported(node)?)));
        let before = retired.reports.iter().map(|report| (usize::MAX, report.clone()));
        let (reports, edges) = (said.chain(before).collect(), retired.edges.clone());
        let mut rises = retired.risen.clone();
        for node in counted[..nodes.len()].iter().filter(|node| node.transport) {
            rises.extend(risen(&retired.nodes, node, node.calls.clone()));
        }
        let risen = rises;
        Self { nodes: counted, edges, risen, imported, reports, failed, outside: None }
    }

    /// Returns the number of blocks that came into the space: given by its sources and taken from
    /// its rings.
    pub fn position(&self) -> u64 {
        let given = self.nodes.iter().filter_map(|node| node.seen.as_ref());
        let given: u64 = given.map(|seen| seen.given.blocks).sum();
        given + self.imported.iter().map(|ring| ring.taken.blocks).sum::<u64>()
    }

    fn of(remains: &Remains) -> Self {
        let failed = remains.failure.is_some();
        let outside = remains.outside.clone();
        let (nodes, imported) = (&remains.nodes, remains.imported.clone());
        Self { outside, ..Self::new(nodes, imported, &remains.retired, failed) }
    }
}

/// The ledger of a path whose spaces left this behind.
#[must_use]
pub fn ledger_of(remains: &[Remains]) -> Ledger {
    joined(remains.iter().map(Counted::of).collect(), false)
}

/// The ledger of a path whose spaces counted this, while it runs or when it has ended.
pub fn joined(spaces: Vec<Counted>, runs: bool) -> Ledger {
    let mut ledger = Ledger::default();
    // The two halves of a program are one line: what it took, and what it made of it.
    let mut programs: Vec<(usize, usize)> = Vec::new();
    let inside: Vec<usize> = spaces
        .iter()
        .filter(|space| space.outside.is_some())
        .flat_map(|space| space.nodes.iter().map(|node| node.filtered.planned))
        .collect();
    let imported: Vec<Imported> =
        spaces.iter().flat_map(|space| space.imported.iter().cloned()).collect();
    let failed = spaces.iter().any(|space| space.failed);
    let risen: Vec<Risen> = spaces.iter().flat_map(|space| space.risen.iter().cloned()).collect();
    for space in spaces {
        if let Some(outside) = space.outside {
            ledger.sources.extend(outside.sources);
            // Programs that ran one after the other have the same edges.
            for edge in outside.edges {
                ledger.add_edge(edge);
            }
            for exit in outside.exits {
                ledger.add_edge(rise(exit, &risen));
            }
        }
        ledger.edges.extend(space.edges);
        for node in space.nodes.into_iter().filter(|node| !node.transport) {
            let CountedNode { filtered: counted, seen, calls, ring, copied, .. } = node;
            ledger.sources.extend(seen.map(|seen| (counted.name.to_string(), seen)));
            // What ran in the kernel, and has its user implementation in a thread.
            let both = inside.contains(&counted.planned);
            let same = |line: &Filtered| {
                (both || copied) && line.planned == counted.planned && line.name == counted.name
            };
            if let Some(line) = ledger.filters.iter().position(same) {
                ledger.filters[line].join(counted);
                if copied {
                    for edge in calls {
                        ledger.add_edge(edge);
                    }
                    continue;
                }
                // As far as anything came to it.
                ledger.edges.extend(calls.into_iter().filter(|edge| edge.put.blocks > 0));
                continue;
            }
            let known = programs.iter().find(|(planned, _)| *planned == counted.planned);
            match (counted.program, known) {
                (true, Some((_, line))) => ledger.filters[*line].join(counted),
                (program, _) => {
                    if program {
                        programs.push((counted.planned, ledger.filters.len()));
                    }
                    ledger.filters.push(counted);
                }
            }
            ledger.edges.extend(calls);
            ledger.edges.extend(ring.map(|near| crossed(near, &imported, failed, runs)));
        }
    }
    // A filter that has run in a process of its own, and in a thread before or after that.
    let lines = &mut ledger.filters;
    let named = |(planned, line): (usize, usize)| (planned, lines[line].name.clone());
    let programs: Vec<(usize, NodeName)> = programs.into_iter().map(named).collect();
    for (planned, name) in programs {
        let is = |line: &Filtered| line.planned == planned && line.name == name;
        let Some(first) = lines.iter().position(is) else { continue };
        while let Some(again) = lines.iter().skip(first + 1).position(is) {
            let more = lines.remove(first + 1 + again);
            lines[first].join(more);
        }
    }
    ledger
}

/// The edges of a node that takes up what comes out of the kernel, with the names of their ways;
/// `before` are those that stood in its place.
fn risen(
    before: &[CountedNode],
    node: &CountedNode,
    calls: Vec<Edge>,
) -> impl Iterator<Item = Risen> + use<> {
    let source = node.filtered.planned;
    let same = |other: &&CountedNode| other.transport && other.filtered.planned == source;
    let era = before.iter().filter(same).count();
    calls.into_iter().enumerate().map(move |(way, edge)| ((source, era, way), edge))
}

/// A way out of the kernel: what a program has put there is held against what whoever stands at its
/// end has taken, not against what the source between the two says that it gave.
fn rise(exit: ExitEdge, risen: &[Risen]) -> Edge {
    let ExitEdge { name, mut edge } = exit;
    edge.taken = Amount::default();
    for (_, rose) in risen.iter().filter(|(other, _)| *other == name) {
        edge.taken.blocks += rose.taken.blocks;
        edge.taken.bytes += rose.taken.bytes;
        edge.dropped.extend(rose.dropped.iter().copied());
    }
    edge
}

/// Returns the reports of filters, joined over the spaces that counted them.
pub fn joined_reports(spaces: &[Counted]) -> Vec<Reported> {
    together(spaces.iter().flat_map(|space| &space.reports).map(|(_, report)| report.clone()))
}

fn call(from: &Node, arc: &Arc, nodes: &[Node]) -> Edge {
    let to = &nodes[arc.to];
    Edge {
        from: from.name.clone(),
        to: to.name.clone(),
        kind: match arc.back {
            true => EdgeKind::Back,
            false if process::is_input(to) || process::of(from).is_some() => EdgeKind::Pipe,
            false => EdgeKind::Call,
        },
        planned: arc.planned,
        put: arc.put,
        taken: to.taken[arc.branch],
        dropped: arc.dropped.named().into_iter().filter(|(_, a)| a.blocks > 0).collect(),
        missing: Vec::new(),
        resident: Amount::default(),
        events: None,
    }
}

/// Returns the edge with the counters of a ring's writing side.
fn near(from: &Node, export: &crate::ring::Export) -> Edge {
    let put = export.counted();
    let full = Amount { blocks: put.dropped, bytes: put.dropped_bytes };
    let mut dropped = Vec::new();
    if full.blocks > 0 {
        dropped.push(("ring full".into(), full));
    }
    Edge {
        from: from.name.clone(),
        to: NodeName::default(),
        kind: export.kind,
        planned: export.planned,
        put: Amount { blocks: put.blocks + full.blocks, bytes: put.bytes + full.bytes },
        taken: Amount::default(),
        dropped,
        missing: Vec::new(),
        resident: Amount::default(),
        events: Some(export.events()),
    }
}

/// The same edge with what the far side counted.
fn crossed(mut edge: Edge, imported: &[Imported], failed: bool, runs: bool) -> Edge {
    let far = imported.iter().find(|imported| imported.planned == edge.planned);
    (edge.to, edge.taken) = far.map(|far| (far.name.clone(), far.taken)).unwrap_or_default();
    let gone: Amount = edge.dropped.iter().fold(edge.taken, |gone, (_, amount)| Amount {
        blocks: gone.blocks + amount.blocks,
        bytes: gone.bytes + amount.bytes,
    });
    let resident = Amount {
        blocks: edge.put.blocks.saturating_sub(gone.blocks),
        bytes: edge.put.bytes.saturating_sub(gone.bytes),
    };
    if runs {
        edge.resident = resident;
    } else if failed && resident.blocks > 0 {
        // A ring that was drained has nothing resident: what is missing then is missing.
        edge.dropped.push((PATH_ENDED.into(), resident));
        // What was put first was taken first.
        let mut missing = Missing::default();
        missing.add(edge.taken.blocks, resident.blocks, None);
        edge.missing.push((PATH_ENDED, missing));
    }
    edge
}

/// Drop reason of blocks in a ring whose path failed.
const PATH_ENDED: &str = "path ended";

/// Returns the amount that a sink took for good. Before its end that includes what it dropped,
/// which is counted by its reason.
fn without_twice(node: &Node, dropped: &[(DropReason, Amount)]) -> Amount {
    let (taken, flow) = (node.taken_in_all(), &node.flow);
    let rest = |of: fn(&Amount) -> u64| {
        let dropped: u64 = dropped.iter().map(|(_, amount)| of(amount)).sum();
        let others = of(&flow.failed) + of(&flow.beyond_count) + dropped;
        of(&flow.sunk).min(of(&taken).saturating_sub(others))
    };
    Amount { blocks: rest(|amount| amount.blocks), bytes: rest(|amount| amount.bytes) }
}

fn filtered(node: &Node, number: usize, imported: &[Imported]) -> Filtered {
    let counts = &node.counts;
    let seen = match &node.part {
        Part::Source(part) => Some(part.source.seen()),
        _ => None,
    };
    // A filter in a process of its own counts there.
    let said = seen.as_ref().and_then(|seen| seen.counts.as_ref()).unwrap_or(counts);
    let is_source = seen.is_some();
    let given = match &seen {
        Some(seen) => seen.given,
        None => imported
            .iter()
            .find(|imported| imported.node == number)
            .map_or_else(Amount::default, |imported| imported.taken),
    };
    let mut dropped = Vec::new();
    let mut add = |why: DropReason, amount: Amount| {
        if amount.blocks > 0 {
            dropped.push((why, amount));
        }
    };
    for (i, amount) in counts.dropped.iter().enumerate() {
        add(node.reasons.get(i).copied().unwrap_or("unnamed").into(), *amount);
    }
    add(DropReason::Evicted, counts.evicted);
    add(DropReason::NoRoom, counts.no_room);
    add(DropReason::Failed, node.flow.failed);
    add(DropReason::BeyondCount, node.flow.beyond_count);
    let mut sunk = node.flow.sunk;
    if let Part::Sink(part) = &node.part {
        let by_sink = part.sink.dropped();
        sunk = without_twice(node, &by_sink);
        by_sink.into_iter().for_each(|(why, amount)| add(why, amount));
    }
    // What a program took is used up; what comes back is made anew.
    let (consumed, sunk) = match process::is_input(node) {
        true => (sunk, Amount::default()),
        false => (counts.consumed, sunk),
    };
    let named = |names: &[&str], values: &[u64]| {
        let both = names.iter().zip(values).filter(|(_, n)| **n > 0);
        both.map(|(name, n)| ((*name).to_owned(), *n)).collect::<Vec<_>>()
    };
    Filtered {
        name: node.name.clone(),
        planned: node.planned,
        taken: node.taken_in_all(),
        made: if is_source || node.taken.is_empty() { given } else { counts.made },
        passed: Amount {
            blocks: node.flow.routed.blocks + sunk.blocks,
            bytes: node.flow.routed.bytes + sunk.bytes,
        },
        unselected: node.flow.unselected,
        consumed,
        held: counts.held,
        dropped,
        unanswered: named(node.reasons, &said.unanswered),
        counters: named(node.counters, &said.counters),
        edits: node.flow.edits,
        busy_ns: node.flow.busy_ns,
        calls: node.flow.calls,
        program: process::of(node).is_some(),
    }
}
