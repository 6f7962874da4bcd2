//! The nodes of a space, with their operators, outgoing arcs and counters.

use super::arc::GraphArc;
use super::published_state::PublishedState;
use super::writer_port::WriterPort;
use crate::latency::AgeGauge;
use crate::ledger::{DropReason, EditCounts, NodeName};
use crate::replicas::dispatch::Dispatcher;
use crate::ring::RingExport;
use endpoint::process::Process;
use endpoint::{Sink, Source, SourceCounters, SourceProperties};
use filter::{Amount, Counts, Filter, HoldTable, Time};

/// A node of a space's graph. The fields read for every batch come first, because the blocks of one
/// batch evict the nodes from the L1 cache before the next batch.
#[derive(Debug)]
#[repr(C)]
pub struct Node {
    /// Operator of the node: the filter, source, sink or other part that processes or transfers
    /// blocks.
    pub operator: Operator,
    /// Outgoing arcs of the node, in request order.
    pub arcs: Vec<GraphArc>,
    /// Amount that the node took from each of its incoming arcs. The node counts it independently
    /// of the nodes that put blocks on the arcs.
    pub taken: Vec<Amount>,
    /// True if the blocks of this node count towards the limit on delivered blocks (`-c`).
    pub counts_to_limit: bool,
    /// True if the operator has moved to another space. This node then only stores counters until
    /// the next hot swap.
    pub has_moved: bool,
    /// True if the node is one of several replicas of a filter.
    pub is_replica: bool,
    /// True if the operator is a filter that writes session numbers into the metadata of blocks.
    pub numbers_sessions: bool,
    /// True if every filter that follows the node accepts fragments of messages.
    pub fragments: bool,
    /// Counters of the node's output, by the fate of the blocks.
    pub flow: OutputCounters,
    /// Counters that the filter itself maintains, such as its drop reasons.
    pub counts: Counts,
    /// Due time of the filter's next timer in nanoseconds, or `None` if no timer is set.
    pub wake: Option<Time>,
    /// State that the filter publishes to other processes; `None` if it publishes none.
    pub published: Option<Box<PublishedState>>,
    /// Table of the blocks that the filter holds.
    pub holds: HoldTable,
    /// Writers outside the path whose blocks are added to the node's output; `None` if there have
    /// never been any.
    pub writers: Option<Box<WriterPort>>,
    /// Amount that the node took from incoming arcs that hot swaps have since removed.
    pub taken_before: Amount,
    /// Number of the node, which stays the same across changes to the path.
    pub number: usize,
    /// Printed name of the filter, or of the ring end that the node represents.
    pub name: NodeName,
    /// Names of the filter's drop reasons, by index.
    pub reasons: &'static [&'static str],
    /// Names of the filter's counters, by index.
    pub counters: &'static [&'static str],
}

/// The operator of a node, which processes or transfers blocks.
#[derive(Debug)]
pub enum Operator {
    /// A filter.
    Filter(Filter),
    /// A Boolean section. Its operands are other nodes of the space (CONTRACT 10).
    Section(std::sync::Arc<super::section::Section>),
    /// A Boolean section whose operands may move the view, hold blocks or make blocks.
    OperandSection(Box<super::operands::OperandSection>),
    /// A sink.
    Sink(SinkOperator),
    /// A ring to another space.
    Export(Box<RingExport>),
    /// No operation. The node only joins branches or receives the blocks of a ring.
    Pass,
    /// A source.
    Source(SourceOperator),
    /// A dispatcher to replicas. Arc `i` leads to replica `i`.
    Dispatch(Box<Dispatcher>),
}

impl Operator {
    /// Returns true if the operator reads the bytes of its input in this space; always true for a
    /// sink.
    pub(super) const fn reads_bytes(&self) -> bool {
        match self {
            Self::Filter(Filter::Statistics(_)) => false,
            Self::Pass | Self::Source(_) | Self::Export(_) => false,
            Self::Filter(_)
            | Self::Section(_)
            | Self::OperandSection(_)
            | Self::Sink(_)
            | Self::Dispatch(_) => true,
        }
    }

    /// Returns true if the operator reads the bytes of its input, or passes the blocks on to
    /// another space. Sinks declare whether they read bytes.
    pub(super) fn needs_bytes(&self) -> bool {
        match self {
            Self::Export(_) => true,
            Self::Sink(part) => part.sink.reads_bytes(),
            other => other.reads_bytes(),
        }
    }
}

/// The operator of a source: the source itself, and its state in the space.
pub struct SourceOperator {
    /// The source.
    pub source: Box<dyn Source>,
    /// Properties that the source declared when it was opened, such as whether it chooses arcs.
    pub properties: SourceProperties,
    /// True if the source has ended.
    pub ended: bool,
    /// Gauge of the age of blocks when the source reads them; `None` if the age is not measured.
    pub age: Option<AgeGauge>,
    /// Kernel nodes whose output the source passes to taps, by arc. After its arcs to nodes, a
    /// source in the kernel may have further arcs that lead only to taps. For each of these arcs,
    /// the element holds the numbers of the kernel nodes whose output the arc carries.
    pub taps: Vec<Vec<usize>>,
}

/// The operator of a sink: the sink itself, and its state in the space.
pub struct SinkOperator {
    /// The sink.
    pub sink: Box<dyn Sink>,
    /// Report of the sink; `None` until it ends.
    pub report: Option<filter::Report>,
    /// Gauge of the age of blocks when they reach the sink; `None` if the age is not measured.
    pub age: Option<AgeGauge>,
}

impl SourceOperator {
    /// Creates the operator of `source`, which has not ended yet.
    #[must_use]
    pub fn new(source: Box<dyn Source>) -> Self {
        let properties = source.properties();
        Self { source, properties, ended: false, age: None, taps: Vec::new() }
    }
}

impl SinkOperator {
    /// Creates the operator of a sink that has not ended.
    #[must_use]
    pub fn new(sink: Box<dyn Sink>) -> Self {
        Self { sink, report: None, age: None }
    }
}

impl std::fmt::Debug for SourceOperator {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("SourceOperator").field("ended", &self.ended).finish_non_exhaustive()
    }
}

impl std::fmt::Debug for SinkOperator {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("SinkOperator").field("report", &self.report).finish_non_exhaustive()
    }
}

/// Counters of the output of a node, by the fate of the blocks.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
#[repr(C)]
pub struct OutputCounters {
    /// Number of times that the filter was called.
    pub calls: u64,
    /// Blocks of the output that at least one arc accepted.
    pub routed: Amount,
    /// Blocks of the output that no arc accepted.
    pub unselected: Amount,
    /// Blocks that a sink accepted.
    pub accepted_by_sink: Amount,
    /// Blocks lost because the filter or the sink had failed.
    pub failed: Amount,
    /// Blocks dropped because the limit on delivered blocks (`-c`) was reached.
    pub beyond_count: Amount,
    /// Time spent in the filter, in nanoseconds; 0 if not measured.
    pub busy_ns: u64,
    /// Numbers of edits by the filter: in place, in a copy of the block, or by a new block.
    pub edits: EditCounts,
}

impl OutputCounters {
    /// Divides the blocks that reached a sink into accepted and failed blocks, after the end of the
    /// sink. The amount `written` counts as accepted. The amounts in `dropped` count as neither,
    /// because the caller counts them by reason. The rest counts as failed.
    pub(super) fn split_accepted_amount(
        &mut self,
        written: Amount,
        dropped: &[(DropReason, Amount)],
    ) {
        let dropped = dropped.iter().map(|(_, amount)| amount);
        let (mut blocks, mut bytes) = (
            self.accepted_by_sink.blocks + self.failed.blocks,
            self.accepted_by_sink.bytes + self.failed.bytes,
        );
        for amount in dropped {
            blocks = blocks.saturating_sub(amount.blocks);
            bytes = bytes.saturating_sub(amount.bytes);
        }
        self.accepted_by_sink =
            Amount { blocks: written.blocks.min(blocks), bytes: written.bytes.min(bytes) };
        self.failed = Amount {
            blocks: blocks - self.accepted_by_sink.blocks,
            bytes: bytes - self.accepted_by_sink.bytes,
        };
    }
}

impl Node {
    /// Returns the program (`exec`) for which the node writes input or reads output; `None` for
    /// other nodes.
    pub fn exec_process(&self) -> Option<&std::sync::Arc<Process>> {
        match &self.operator {
            Operator::Sink(sink) => sink.sink.process(),
            Operator::Source(source) => source.properties.process.as_ref(),
            _ => None,
        }
    }

    /// Returns true if the node writes the input of a program.
    pub fn is_process_input(&self) -> bool {
        matches!(self.operator, Operator::Sink(_)) && self.exec_process().is_some()
    }

    /// Returns true if a tap can read the output of the node. Returns false for sinks, ring ends,
    /// joins, dispatchers, and operators that have moved. A tap on a replica reads only the
    /// replica's share of the filter's output.
    pub const fn accepts_taps(&self) -> bool {
        let section = matches!(self.operator, Operator::Section(_) | Operator::OperandSection(_));
        let part = section || matches!(self.operator, Operator::Source(_) | Operator::Filter(_));
        part && !self.has_moved
    }

    /// Returns true if writers can add blocks to the node's output. Such a node accepts taps,
    /// belongs to no program, and is not a source that chooses arcs. The blocks of a source that
    /// chooses arcs have already passed filters elsewhere, for example in the kernel. Written
    /// blocks would bypass these filters.
    pub(super) fn accepts_writers(&self) -> bool {
        let chooses_arc =
            matches!(&self.operator, Operator::Source(part) if part.properties.chooses_arc);
        self.accepts_taps() && self.exec_process().is_none() && !chooses_arc
    }

    /// Returns the number of blocks and bytes that writers outside the path have added to the
    /// output.
    pub fn written_amount(&self) -> Amount {
        self.writers.as_ref().map_or_else(Amount::default, |port| port.written_amount())
    }

    /// Returns the counters of the node's source, including the blocks that writers have added;
    /// `None` if the node is not a source.
    pub fn source_counters(&self) -> Option<SourceCounters> {
        let Operator::Source(part) = &self.operator else { return None };
        let (mut counters, written) = (part.source.counters(), self.written_amount());
        counters.given += written;
        if let Some(observed) = &mut counters.observed {
            *observed += written;
        }
        Some(counters)
    }

    /// Creates a node without arcs.
    #[must_use]
    pub fn new(
        name: impl Into<NodeName>,
        planned: usize,
        operator: Operator,
        counts: Counts,
    ) -> Self {
        Self {
            name: name.into(),
            number: planned,
            operator,
            arcs: Vec::new(),
            counts_to_limit: false,
            taken: Vec::new(),
            taken_before: Amount::default(),
            has_moved: false,
            flow: OutputCounters::default(),
            counts,
            holds: HoldTable::new(0, 0),
            writers: None,
            wake: None,
            published: None,
            is_replica: false,
            numbers_sessions: false,
            fragments: false,
            reasons: &[],
            counters: &[],
        }
    }

    /// Returns the number of blocks and bytes that entered the node, including those over arcs that
    /// were removed.
    #[must_use]
    pub fn total_taken(&self) -> Amount {
        self.taken.iter().fold(self.taken_before, |a, b| Amount {
            blocks: a.blocks + b.blocks,
            bytes: a.bytes + b.bytes,
        })
    }
}
