//! One node of a space: what it runs, where its blocks go, and what was counted on both sides.

use super::select::Wanted;
use super::shown::Showing;
use crate::copies::deal::Deal;
use crate::latency::Aging;
use crate::ledger::{DropReason, Edits, NodeName};
use crate::ring::Export;
use endpoint::{Sink, Source, SourceProperties};
use filter::{Amount, Counts, Filter, Holds, Time};

/// The number of a node in its space.
pub type NodeId = usize;

/// One step of a space's graph. What every batch touches comes first: between two batches the
/// blocks have driven all nodes out of the nearest cache.
#[derive(Debug)]
#[repr(C)]
pub struct Node {
    /// Operator that runs in the node.
    pub part: Part,
    /// Outgoing arcs, in the order of the request.
    pub arcs: Vec<Arc>,
    /// Input by incoming arc; counted here, never copied from the other side.
    pub taken: Vec<Amount>,
    /// True if blocks are counted here towards the requested number (`-c`).
    pub counted: bool,
    /// True if the operator has moved to another space.
    pub away: bool,
    /// True for one of several replicas of the filter, which share the work.
    pub copied: bool,
    /// True if all filters downstream take fragments of the output.
    pub fragments: bool,
    /// Output, counted where it was routed.
    pub flow: Flow,
    /// Counters of the filter itself.
    pub counts: Counts,
    /// Time of the filter's next timer.
    pub wake: Option<Time>,
    /// Published state of the filter.
    pub shown: Option<Box<Showing>>,
    /// Blocks that the filter holds.
    pub holds: Holds,
    /// Input over arcs that have been removed.
    pub taken_before: Amount,
    /// Index of the node in the plan.
    pub planned: usize,
    /// The filter's name and mark, as they are printed.
    pub name: NodeName,
    /// The names of the filter's reasons, by number.
    pub reasons: &'static [&'static str],
    /// The names of the filter's counters, by number.
    pub counters: &'static [&'static str],
}

/// Operator of a node.
#[derive(Debug)]
pub enum Part {
    /// A filter.
    Filter(Filter),
    /// A Boolean section over other nodes of the space (CONTRACT 10).
    Section(std::sync::Arc<super::section::Section>),
    /// One with operands that move the view, hold blocks or make others.
    Asks(Box<super::asks::Asks>),
    /// The end of the path.
    Sink(SinkPart),
    /// The ring to another space.
    Export(Box<Export>),
    /// Nothing: where arcs meet.
    Pass,
    /// A source, where blocks come in.
    Source(SourcePart),
    /// A dispatcher to replicas of what follows: its arcs lead to them, in their order.
    Deal(Box<Deal>),
}

impl Part {
    /// Returns true if the operator reads the bytes of its input.
    pub(super) const fn looks(&self) -> bool {
        match self {
            Self::Filter(Filter::Statistics(_)) => false,
            Self::Pass | Self::Source(_) | Self::Export(_) => false,
            Self::Filter(_) | Self::Section(_) | Self::Asks(_) | Self::Sink(_) | Self::Deal(_) => {
                true
            }
        }
    }
}

/// A source with what it saw last.
pub struct SourcePart {
    /// The source.
    pub source: Box<dyn Source>,
    /// Its properties.
    pub properties: SourceProperties,
    /// True if it has ended.
    pub ended: bool,
    /// Comparison of the time in its blocks with the clock.
    pub age: Option<Aging>,
}

/// A sink with what it reported.
pub struct SinkPart {
    /// The sink.
    pub sink: Box<dyn Sink>,
    /// Its report, once it has finished.
    pub report: Option<filter::Report>,
    /// Comparison of the time in the blocks that it has taken with the clock.
    pub age: Option<Aging>,
}

impl SourcePart {
    /// A source that has not ended.
    #[must_use]
    pub fn new(source: Box<dyn Source>) -> Self {
        let properties = source.properties();
        Self { source, properties, ended: false, age: None }
    }
}

impl SinkPart {
    /// A sink that has not finished.
    #[must_use]
    pub fn new(sink: Box<dyn Sink>) -> Self {
        Self { sink, report: None, age: None }
    }
}

impl std::fmt::Debug for SourcePart {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("SourcePart").field("ended", &self.ended).finish_non_exhaustive()
    }
}

impl std::fmt::Debug for SinkPart {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("SinkPart").field("report", &self.report).finish_non_exhaustive()
    }
}

/// An arc from a node to the next. Fields that every batch touches come first.
#[derive(Debug)]
#[repr(C)]
pub struct Arc {
    /// The node behind it.
    pub to: NodeId,
    /// Index of the arc among that node's incoming arcs; at a join, the order of branches.
    pub branch: usize,
    /// True if it leads forward to a node where nothing joins, so that the walk just goes on.
    pub direct: bool,
    /// Amount put on the arc.
    pub put: Amount,
    /// Classes that it lets through.
    pub wanted: Wanted,
    /// True for a back edge: bounded, never blocks (CONTRACT 17).
    pub back: bool,
    /// Index of the edge in the plan.
    pub planned: usize,
    /// Amounts dropped on the arc, by reason.
    pub dropped: EdgeDrops,
}

/// Drops on an edge, by reason.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct EdgeDrops {
    /// The work list of a back edge was full.
    pub cycle_full: Amount,
    /// A block had gone around too often.
    pub too_many_hops: Amount,
    /// A ring was full and its policy is to drop what is new.
    pub ring_full: Amount,
    /// The path ended while the block was on the edge.
    pub path_ended: Amount,
}

impl EdgeDrops {
    /// All reasons with their names.
    pub fn named(&self) -> [(DropReason, Amount); 4] {
        [
            ("cycle full".into(), self.cycle_full),
            ("too many hops".into(), self.too_many_hops),
            ("ring full".into(), self.ring_full),
            ("path ended".into(), self.path_ended),
        ]
    }
}

/// Output counters of a node.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
#[repr(C)]
pub struct Flow {
    /// Calls of the filter.
    pub calls: u64,
    /// Blocks that at least one arc let through.
    pub routed: Amount,
    /// Blocks that no arc let through.
    pub unselected: Amount,
    /// Blocks that a sink took for good.
    pub sunk: Amount,
    /// Blocks lost because the filter or the sink failed.
    pub failed: Amount,
    /// Blocks behind the number that was asked for (`-c`).
    pub beyond_count: Amount,
    /// Time in the filter in ns, where it is measured.
    pub busy_ns: u64,
    /// Edits of blocks, by method.
    pub edits: Edits,
}

impl Flow {
    /// Splits what a sink was given into what left, what it dropped, and what was lost.
    pub(super) fn settle(&mut self, written: Amount, dropped: &[(DropReason, Amount)]) {
        let dropped = dropped.iter().map(|(_, amount)| amount);
        let (mut blocks, mut bytes) =
            (self.sunk.blocks + self.failed.blocks, self.sunk.bytes + self.failed.bytes);
        for amount in dropped {
            blocks = blocks.saturating_sub(amount.blocks);
            bytes = bytes.saturating_sub(amount.bytes);
        }
        self.sunk = Amount { blocks: written.blocks.min(blocks), bytes: written.bytes.min(bytes) };
        self.failed = Amount { blocks: blocks - self.sunk.blocks, bytes: bytes - self.sunk.bytes };
    }
}

impl Node {
    /// Returns true if blocks that can be tapped leave here: not where a ring begins or ends, nor
    /// at a dispatcher.
    pub const fn gives(&self) -> bool {
        let section = matches!(self.part, Part::Section(_) | Part::Asks(_));
        let part = section || matches!(self.part, Part::Source(_) | Part::Filter(_));
        part && !self.copied && !self.away
    }

    /// A node without arcs.
    #[must_use]
    pub fn new(name: impl Into<NodeName>, planned: usize, part: Part, counts: Counts) -> Self {
        Self {
            name: name.into(),
            planned,
            part,
            arcs: Vec::new(),
            counted: false,
            taken: Vec::new(),
            taken_before: Amount::default(),
            away: false,
            flow: Flow::default(),
            counts,
            holds: Holds::new(0, 0),
            wake: None,
            shown: None,
            copied: false,
            fragments: false,
            reasons: &[],
            counters: &[],
        }
    }

    /// All that came in.
    #[must_use]
    pub fn taken_in_all(&self) -> Amount {
        self.taken.iter().fold(self.taken_before, |a, b| Amount {
            blocks: a.blocks + b.blocks,
            bytes: a.bytes + b.bytes,
        })
    }
}
