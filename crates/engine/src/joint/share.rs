//! The part of one process's ledger between a source and the filter that shares it out, cut down to
//! the share of that process. [Par §V-B]; CONTRACT 19
//!
//! In: the ledger of a process, which saw all blocks of the source. Out: the same ledger without
//! the blocks of other shares, and what is known of the blocks that were lost before the filter:
//! their share is not known here.
//!
//! The filter says how many blocks it left to others. These are taken out of the edge on which they
//! came, of the node that put them there, and so on up to the source, whatever stands between:
//! nothing, a ring to another thread, a program in the kernel with its way out. What follows the
//! filter is never touched, on whichever side of a ring it is.

use super::{ENGINE_ENDED, minus, plus};
use endpoint::{DropReason, Seen};
use filter::Amount;
use pipeline::Graph;
use pipeline::graph::NodeId;
use runtime::ledger::{Edge, EdgeKind, Filtered, Ledger, NodeName, RingEnd};

/// The filter behind each source of such a process.
pub(super) const SHARD: &str = "shard";

/// The way from a source to the filter that shares it out.
#[derive(Clone, Debug)]
pub(super) struct Shared {
    /// The source, the filter behind it, and the edge between them, by their places in the plan.
    pub(super) source: usize,
    pub(super) share: usize,
    pub(super) edge: usize,
    /// The name of the source.
    pub(super) name: String,
    /// Index among the sources of this name.
    nth: usize,
}

/// A process's view of a source beyond its own share.
#[derive(Clone, Debug, Default)]
pub(super) struct Before {
    /// Its own share, as far as it came to the filter.
    pub(super) own: Amount,
    /// All blocks that came to the filter.
    pub(super) came: Amount,
    /// Lost on the way to the filter, by place: blocks of any share.
    pub(super) lost: Vec<(DropReason, Option<u64>)>,
}

impl Before {
    /// Returns its total loss; none: a counter could not be read.
    pub(super) fn lost(&self) -> Option<u64> {
        self.lost.iter().map(|(_, blocks)| *blocks).sum()
    }

    /// All that it saw.
    pub(super) fn saw(&self) -> Option<u64> {
        self.lost().map(|lost| self.came.blocks + lost)
    }
}

/// The sources of the line of a process that are shared out.
pub(super) fn shared(graph: &Graph) -> Vec<Shared> {
    let mut names: Vec<String> = Vec::new();
    let mut found = Vec::new();
    for source in graph.heads() {
        let Some((edge, to)) = only(graph, source) else { continue };
        let name =
            graph.node(source).filter().map_or_else(String::new, pipeline::graph::Use::title);
        let nth = names.iter().filter(|known| **known == name).count();
        names.push(name.clone());
        if graph.node(to).name() == SHARD {
            found.push(Shared { source: source.0, share: to.0, edge, name, nth });
        }
    }
    found
}

/// Returns true if every source of this line is shared out right behind it.
#[must_use]
pub fn shares_out(graph: &Graph) -> bool {
    shared(graph).len() == graph.heads().len()
}

/// The only arc behind a node.
fn only(graph: &Graph, from: NodeId) -> Option<(usize, NodeId)> {
    let mut out = graph.edges.iter().enumerate().filter(|(_, edge)| edge.from == from);
    let (number, edge) = out.next()?;
    out.next().is_none().then_some((number, edge.to))
}

impl Shared {
    /// Leaves the own share of a process in its ledger, and nothing of the other shares.
    pub(super) fn leave_own(&self, ledger: &mut Ledger) -> Before {
        let (mut came, mut others) = (Amount::default(), Amount::default());
        for row in ledger.filters.iter_mut().filter(|row| self.is_share(row)) {
            came = plus(came, row.taken);
            others = plus(others, row.unselected);
            row.taken = minus(row.taken, row.unselected);
            row.unselected = Amount::default();
            row.unanswered.clear();
        }
        let mut lost = self.take_losses(ledger);
        self.take_out(ledger, SHARD, others);
        if let Some(seen) = self.seen(ledger) {
            lost.extend(std::mem::take(&mut seen.dropped));
        }
        Before { own: minus(came, others), came, lost }
    }

    /// The same of a process that was killed: what it had not told when it was asked last is not
    /// known, so nothing is left of the way but its own share.
    pub(super) fn leave_told(&self, graph: &Graph, ledger: &mut Ledger) -> Before {
        let own = match self.seen(ledger) {
            None => self.arrived(graph, ledger),
            Some(_) => {
                let rows = ledger.filters.iter().filter(|row| self.is_share(row));
                rows.fold(Amount::default(), |sum, row| plus(sum, row.passed))
            }
        };
        let inner: Vec<NodeName> = self.edges(ledger).map(|edge| edge.from.clone()).collect();
        ledger.filters.retain(|row| {
            let between = inner.contains(&row.name) && row.planned == self.planned(&row.name);
            !between && !self.is_share(row) && !self.is_source(row)
        });
        ledger.edges.retain(|edge| edge.planned != self.edge);
        let named = |planned, name: &str| Filtered {
            name: name.into(),
            planned,
            passed: own,
            ..Filtered::default()
        };
        ledger.filters.push(Filtered { made: own, ..named(self.source, &self.name) });
        ledger.filters.push(Filtered { taken: own, ..named(self.share, SHARD) });
        ledger.edges.push(Edge {
            from: self.name.as_str().into(),
            to: SHARD.into(),
            kind: EdgeKind::Call,
            planned: self.edge,
            put: own,
            taken: own,
            dropped: Vec::new(),
            missing: Vec::new(),
            resident: Amount::default(),
            events: None,
        });
        match self.seen(ledger) {
            Some(seen) => (seen.given, seen.dropped) = (own, Vec::new()),
            None => ledger.sources.push((self.name.clone(), Seen::all(own))),
        }
        Before { own, ..Before::default() }
    }

    /// Adds blocks of the own share that were given and never reported.
    pub(super) fn add_ended(&self, ledger: &mut Ledger, more: Amount) {
        if more.blocks == 0 {
            return;
        }
        for row in &mut ledger.filters {
            if self.is_source(row) {
                (row.made, row.passed) = (plus(row.made, more), plus(row.passed, more));
            } else if self.is_share(row) {
                row.taken = plus(row.taken, more);
                row.dropped.push((ENGINE_ENDED, more));
            }
        }
        if let Some(edge) = ledger.edges.iter_mut().find(|edge| edge.planned == self.edge) {
            (edge.put, edge.taken) = (plus(edge.put, more), plus(edge.taken, more));
        }
        if let Some(seen) = self.seen(ledger) {
            seen.given = plus(seen.given, more);
        }
    }

    /// Returns the source's entry in the ledger.
    pub(super) fn seen<'l>(&self, ledger: &'l mut Ledger) -> Option<&'l mut Seen> {
        let mut named = ledger.sources.iter_mut().filter(|(name, _)| *name == self.name);
        named.nth(self.nth).map(|(_, seen)| seen)
    }

    fn is_share(&self, row: &Filtered) -> bool {
        row.planned == self.share && row.name == SHARD
    }

    fn is_source(&self, row: &Filtered) -> bool {
        row.planned == self.source && *row.name == *self.name
    }

    /// The node of the plan whose number an end of a ring between the two has.
    fn planned(&self, name: &NodeName) -> usize {
        if name.ring == Some(RingEnd::From) { self.share } else { self.source }
    }

    fn edges<'l>(&self, ledger: &'l Ledger) -> impl Iterator<Item = &'l Edge> + use<'l> {
        let number = self.edge;
        ledger.edges.iter().filter(move |edge| edge.planned == number)
    }

    /// Takes what edges before the filter lost out of the ledger, by reason.
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
            let gone = minus(edge.put, plus(edge.taken, edge.resident));
            self.take_put(ledger, at, gone);
        }
        lost
    }

    /// Takes blocks that came to a node out of the way that they came.
    fn take_out(&self, ledger: &mut Ledger, to: &str, mut amount: Amount) {
        for at in 0..ledger.edges.len() {
            let edge = &mut ledger.edges[at];
            if edge.planned != self.edge || *edge.to != *to || amount.blocks == 0 {
                continue;
            }
            let part = match edge.taken.blocks < amount.blocks {
                true => edge.taken,
                false => Amount { bytes: amount.bytes.min(edge.taken.bytes), ..amount },
            };
            edge.taken = minus(edge.taken, part);
            amount = minus(amount, part);
            self.take_put(ledger, at, part);
        }
    }

    /// Takes blocks that were put on an edge out of it, and out of what put them there.
    fn take_put(&self, ledger: &mut Ledger, at: usize, part: Amount) {
        let edge = &mut ledger.edges[at];
        edge.put = minus(edge.put, part);
        let from = edge.from.clone();
        if *from == *self.name {
            for row in ledger.filters.iter_mut().filter(|row| self.is_source(row)).take(1) {
                (row.made, row.passed) = (minus(row.made, part), minus(row.passed, part));
            }
            if let Some(seen) = self.seen(ledger) {
                seen.given = minus(seen.given, part);
            }
            return;
        }
        let planned = self.planned(&from);
        let row = ledger.filters.iter_mut().find(|row| row.planned == planned && row.name == from);
        if let Some(row) = row {
            (row.taken, row.passed) = (minus(row.taken, part), minus(row.passed, part));
        }
        self.take_out(ledger, &from, part);
    }

    /// Estimates the output of a kernel program whose counters are gone: the blocks that reached
    /// the nodes behind it in the process.
    fn arrived(&self, graph: &Graph, ledger: &Ledger) -> Amount {
        let reached = reached(graph, self.share);
        let mut came = Amount::default();
        for row in ledger.filters.iter().filter(|row| reached.contains(&row.planned)) {
            let into = ledger.edges.iter().filter(|edge| {
                let planned = graph.edges.get(edge.planned);
                edge.to == row.name && planned.is_some_and(|edge| edge.to.0 == row.planned)
            });
            let told = into.fold(Amount::default(), |sum, edge| plus(sum, edge.taken));
            came = plus(came, minus(row.taken, told));
        }
        came
    }
}

/// All nodes behind one.
fn reached(graph: &Graph, from: usize) -> Vec<usize> {
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
