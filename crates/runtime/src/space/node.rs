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
    /// What runs here.
    pub part: Part,
    /// Where blocks go, in the order of the request.
    pub arcs: Vec<Arc>,
    /// What came in, by incoming arc; counted here, never copied from the other side.
    pub taken: Vec<Amount>,
    /// Whether blocks are counted here for the number that was asked for (`-c`).
    pub counted: bool,
    /// Whether what ran here goes on in another space.
    pub away: bool,
    /// Whether it is one of several copies of the filter, which share the work.
    pub copied: bool,
    /// Whether all behind take fragments of what comes out.
    pub fragments: bool,
    /// What left, counted where it was routed.
    pub flow: Flow,
    /// What the filter itself counted.
    pub counts: Counts,
    /// When the filter wants to be called.
    pub wake: Option<Time>,
    /// Where others see what the filter knows.
    pub shown: Option<Box<Showing>>,
    /// What the filter holds.
    pub holds: Holds,
    /// What came in over arcs that are no more.
    pub taken_before: Amount,
    /// Which node of the plan this is.
    pub planned: usize,
    /// The filter's name and mark, as they are printed.
    pub name: NodeName,
    /// The names of the filter's reasons, by number.
    pub reasons: &'static [&'static str],
    /// The names of the filter's counters, by number.
    pub counters: &'static [&'static str],
}

/// What runs in a node.
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
    /// Where blocks come in: a source.
    Source(SourcePart),
    /// What shares blocks out among copies of what follows: its arcs lead to them, in their order.
    Deal(Box<Deal>),
}

impl Part {
    /// Whether it looks at the bytes of the blocks that come to it.
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
    /// Whether it has ended.
    pub ended: bool,
    /// What compares the time in its blocks with the clock.
    pub age: Option<Aging>,
}

/// A sink with what it reported.
pub struct SinkPart {
    /// The sink.
    pub sink: Box<dyn Sink>,
    /// Its report, once it has finished.
    pub report: Option<filter::Report>,
    /// What compares the time in the blocks that it has taken with the clock.
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

/// What joins a node to the next. What every batch touches comes first.
#[derive(Debug)]
#[repr(C)]
pub struct Arc {
    /// The node behind it.
    pub to: NodeId,
    /// Which of that node's incoming arcs this is; at a join, the order of branches.
    pub branch: usize,
    /// True if it leads forward to a node where nothing joins, so that the walk just goes on.
    pub direct: bool,
    /// What was put on it.
    pub put: Amount,
    /// Which classes it lets through.
    pub wanted: Wanted,
    /// Whether it leads back: bounded, never blocks (CONTRACT 17).
    pub back: bool,
    /// Which edge of the plan this is.
    pub planned: usize,
    /// What was dropped on it, by reason.
    pub dropped: EdgeDrops,
}

/// Why blocks end on an edge.
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

/// What left a node.
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
    /// How blocks were changed.
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
    /// Whether blocks leave here that somebody can look at: not where a ring begins or ends, nor
    /// where several share what comes.
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
