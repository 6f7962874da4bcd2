//! From what the spaces left behind to the ledger of the path.

use crate::ledger::{BEYOND_COUNT, Edge, EdgeKind, Filtered, Ledger};
use crate::process;
use crate::space::Remains;
use crate::space::node::{Arc, Node, Part};
use filter::{Amount, Report};

/// What a filter or sink had to say.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Reported {
    /// Which node of the plan.
    pub planned: usize,
    /// Its name.
    pub name: String,
    /// What it said.
    pub report: Report,
}

/// What the filters and sinks of a path had to say.
#[must_use]
pub fn reports_of(remains: &[Remains]) -> Vec<Reported> {
    let mut reports: Vec<Reported> = Vec::new();
    for node in remains.iter().flat_map(|space| &space.nodes) {
        let report = match &node.part {
            Part::Filter(filter) => filter.report(),
            Part::Sink(part) => part.report.clone().unwrap_or_default(),
            _ => continue,
        };
        let (planned, name) = (node.planned, node.name.clone());
        match reports.iter_mut().find(|known| known.planned == planned) {
            // One filter that ran in two spaces.
            Some(known) => add(&mut known.report, report),
            None => reports.push(Reported { planned, name, report }),
        }
    }
    reports.retain(|reported| !reported.report.rows.is_empty());
    reports
}

/// Adds rows to those of the same name, others in their place.
fn add(to: &mut Report, more: Report) {
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

/// The ledger of a path whose spaces left this behind.
#[must_use]
pub fn ledger_of(remains: &[Remains]) -> Ledger {
    let mut ledger = Ledger::default();
    // The two halves of a program are one line: what it took, and what it made of it.
    let mut programs: Vec<(usize, usize)> = Vec::new();
    let inside = Inside::new(remains);
    for space in remains {
        if let Some(told) = &space.kernel {
            ledger.sources.extend(told.sources.iter().cloned());
            ledger.edges.extend(told.edges.iter().cloned());
        }
        for (number, node) in space.nodes.iter().enumerate() {
            if inside.is_transport(node) {
                continue;
            }
            let program = process::of(node);
            if let Part::Source(part) = &node.part
                && program.is_none_or(|program| program.is_head())
            {
                ledger.sources.push((node.name.clone(), part.source.seen()));
            }
            let counted = filtered(node, number, space);
            let both = space.kernel.is_none() && inside.runs(node.planned);
            let lines = ledger.filters.iter();
            if let Some(line) = lines
                .clone()
                .position(|line| both && line.planned == node.planned && line.name == node.name)
            {
                ledger.filters[line].join(counted);
                inside.edges(node, space, &mut ledger);
                continue;
            }
            let known = programs.iter().find(|(planned, _)| *planned == node.planned);
            match (program, known) {
                (Some(_), Some((_, line))) => ledger.filters[*line].join(counted),
                (found, _) => {
                    if found.is_some() {
                        programs.push((node.planned, ledger.filters.len()));
                    }
                    ledger.filters.push(counted);
                }
            }
            for arc in &node.arcs {
                ledger.edges.push(call(node, arc, &space.nodes));
            }
            if let Part::Export(export) = &node.part {
                ledger.edges.push(ring(node, export, remains));
            }
        }
    }
    ledger
}

/// What ran in the kernel, and has its user implementation in a thread.
struct Inside {
    nodes: Vec<usize>,
}

impl Inside {
    fn new(remains: &[Remains]) -> Self {
        let spaces = remains.iter().filter(|space| space.kernel.is_some());
        Self { nodes: spaces.flat_map(|space| &space.nodes).map(|node| node.planned).collect() }
    }

    fn runs(&self, planned: usize) -> bool {
        self.nodes.contains(&planned)
    }

    /// Whether a node only takes up what comes out of the kernel: its edges are the kernel's.
    fn is_transport(&self, node: &Node) -> bool {
        matches!(&node.part, Part::Source(part) if part.source.edge().is_some())
    }

    /// The edges of a user implementation, as far as anything came to it.
    fn edges(&self, node: &Node, space: &Remains, ledger: &mut Ledger) {
        let used = node.arcs.iter().filter(|arc| arc.put.blocks > 0);
        ledger.edges.extend(used.map(|arc| call(node, arc, &space.nodes)));
    }
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
        resident: Amount::default(),
        events: None,
    }
}

fn ring(from: &Node, export: &crate::ring::Export, remains: &[Remains]) -> Edge {
    let put = export.counted();
    let other = remains.iter().flat_map(|space| &space.imported);
    let (to, taken) = other
        .filter(|imported| imported.planned == export.planned)
        .map(|imported| (imported.name.clone(), imported.taken))
        .next()
        .unwrap_or_default();
    let full = Amount { blocks: put.dropped, bytes: put.dropped_bytes };
    let mut dropped = Vec::new();
    if full.blocks > 0 {
        dropped.push(("ring full", full));
    }
    let put = Amount { blocks: put.blocks + full.blocks, bytes: put.bytes + full.bytes };
    let resident = Amount {
        blocks: (put.blocks - full.blocks).saturating_sub(taken.blocks),
        bytes: (put.bytes - full.bytes).saturating_sub(taken.bytes),
    };
    // A ring that was drained has nothing resident: what is missing then is missing.
    let failed = remains.iter().any(|space| space.failure.is_some());
    if failed && resident.blocks > 0 {
        dropped.push(("path ended", resident));
    }
    Edge {
        from: from.name.clone(),
        to,
        kind: EdgeKind::Ring,
        planned: export.planned,
        put,
        taken,
        dropped,
        resident: Amount::default(),
        events: Some(export.events()),
    }
}

fn filtered(node: &Node, number: usize, space: &Remains) -> Filtered {
    let counts = &node.counts;
    let is_source = matches!(node.part, Part::Source(_));
    let given = match &node.part {
        Part::Source(part) => part.source.seen().given,
        _ => space
            .imported
            .iter()
            .find(|imported| imported.node == number)
            .map_or_else(Amount::default, |imported| imported.taken),
    };
    let mut dropped = Vec::new();
    let mut add = |why: &str, amount: Amount| {
        if amount.blocks > 0 {
            dropped.push((why.to_owned(), amount));
        }
    };
    for (i, amount) in counts.dropped.iter().enumerate() {
        add(node.reasons.get(i).copied().unwrap_or("unnamed"), *amount);
    }
    add("evicted", counts.evicted);
    add("no room", counts.no_room);
    add("failed", node.flow.failed);
    add(BEYOND_COUNT, node.flow.beyond_count);
    if let Part::Sink(part) = &node.part {
        part.sink.dropped().into_iter().for_each(|(why, amount)| add(why, amount));
    }
    // What a program took is used up; what comes back is made anew.
    let (consumed, sunk) = match process::is_input(node) {
        true => (node.flow.sunk, Amount::default()),
        false => (counts.consumed, node.flow.sunk),
    };
    let edits = node.flow.edits;
    let edits = [
        ("edited in place", edits.direct),
        ("edited in copies", edits.copied),
        ("edited as new blocks", edits.appended),
        ("edited as fragments", edits.fragmented),
    ];
    let edits = edits.into_iter().filter(|(_, n)| *n > 0).map(|(how, n)| (how.to_owned(), n));
    let named = |names: &[&str], values: &[u64]| {
        let both = names.iter().zip(values).filter(|(_, n)| **n > 0);
        both.map(|(name, n)| ((*name).to_owned(), *n)).collect::<Vec<_>>()
    };
    let counters = named(node.counters, &counts.counters);
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
        unanswered: named(node.reasons, &counts.unanswered),
        counters: counters.into_iter().chain(edits).collect(),
        busy_ns: node.flow.busy_ns,
        calls: node.flow.calls,
        program: process::of(node).is_some(),
    }
}
