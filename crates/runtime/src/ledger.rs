//! The ledger of a path: on every edge, in = out + dropped (by reason) + held, counted at both
//! ends. (CONTRACT 19)
//!
//! The ledger collects the counters of nodes and edges, and finds imbalances in blocks. It also
//! finds imbalances in bytes, but only on edges without dropped blocks and at external programs,
//! because filters may trim views (docs/book/decisions/0004-ledger-bytes.md). The ledger stores no
//! derived counts.

use buffer::signal::wakeup_moderation::WakeupCounts;
pub use endpoint::{RetainedFrames, RingState};
use serde::{Deserialize, Serialize};
use std::fmt;
use std::ops::Deref;

/// Types of the counts that a ledger contains.
pub use endpoint::{DropReason, FileReadPosition, Gap, LossRanges, SourceCounters};
pub use filter::{Amount, DeliveredItems, Report};

/// The kind of an edge, which determines how blocks are transferred.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum EdgeKind {
    /// A function call from one node to another node of the same space.
    Call,
    /// A ring from a node to a node in another space.
    Ring,
    /// A back edge of a cycle, with a bounded work list.
    #[serde(rename = "back edge")]
    Back,
    /// The standard input or output of a program.
    Pipe,
    /// A ring from a dispatcher to a replica.
    #[serde(rename = "deal")]
    Dispatch,
    /// A ring from a replica to the join of its replica chain.
    Join,
}

impl EdgeKind {
    /// Returns the name of this kind, as printed in reports.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            Self::Call => "call",
            Self::Ring => "ring",
            Self::Back => "back edge",
            Self::Pipe => "pipe",
            Self::Dispatch => "deal",
            Self::Join => "join",
        }
    }
}

/// The kind of ring end that a node in the ledger represents.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum RingEnd {
    /// The writing end of a ring to another space.
    Export,
    /// The reading end of a ring from another space.
    Import,
    /// The writing end of a ring from a dispatcher to a replica.
    Dispatch,
    /// The reading end of a ring from a replica to the join of its replica chain.
    Join,
}

impl RingEnd {
    const NAME_PREFIXES: [(Self, &str); 4] = [
        (Self::Export, "ring to "),
        (Self::Import, "ring from "),
        (Self::Dispatch, "ring share of "),
        (Self::Join, "ring join of "),
    ];
}

/// The name of a node: the name of its filter, or a description of its ring end.
///
/// The description of a ring end begins with a word and a space. A filter's name contains no space.
#[derive(Clone, PartialEq, Eq, Debug, Default, Serialize, Deserialize)]
#[serde(transparent)]
pub struct NodeName(String);

impl NodeName {
    /// Creates the name of a node that represents a ring end. `other` names the opposite end of the
    /// ring: the space there or, for a ring of a replica chain, the chain.
    #[must_use]
    pub fn ring(end: RingEnd, other: &str) -> Self {
        let (_, prefix) = RingEnd::NAME_PREFIXES[end as usize];
        Self(format!("{prefix}{other}"))
    }

    /// Returns the ring end that the node represents, or `None` for other nodes.
    #[must_use]
    pub fn ring_end(&self) -> Option<RingEnd> {
        let mut ends = RingEnd::NAME_PREFIXES.into_iter();
        ends.find(|(_, prefix)| self.starts_with(prefix)).map(|(end, _)| end)
    }

    /// Returns true if the node is the end of a ring.
    #[must_use]
    pub fn is_ring(&self) -> bool {
        self.ring_end().is_some()
    }
}

impl From<&str> for NodeName {
    fn from(text: &str) -> Self {
        text.to_owned().into()
    }
}

impl From<String> for NodeName {
    fn from(text: String) -> Self {
        Self(text)
    }
}

impl From<NodeName> for String {
    fn from(name: NodeName) -> Self {
        name.0
    }
}

impl Deref for NodeName {
    type Target = str;

    fn deref(&self) -> &str {
        &self.0
    }
}

impl PartialEq<str> for NodeName {
    fn eq(&self, other: &str) -> bool {
        self.0 == other
    }
}

impl PartialEq<&str> for NodeName {
    fn eq(&self, other: &&str) -> bool {
        self.0 == *other
    }
}

impl fmt::Display for NodeName {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

/// Counters of one edge: the amounts counted by the writer, and those counted by the reader.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct Edge {
    /// Node that puts blocks on the edge.
    pub from: NodeName,
    /// Node that takes blocks from the edge.
    pub to: NodeName,
    /// Kind of the edge, which tells how blocks are transferred.
    pub kind: EdgeKind,
    /// Number of the edge, which stays the same when the path is changed. In ledgers for users,
    /// `engine` replaces it with the index of the edge in the current plan.
    pub planned: usize,
    /// Amount that the writer has put on the edge.
    pub put: Amount,
    /// Amount that the reader has taken from the edge.
    pub taken: Amount,
    /// Amount dropped on the edge, by reason.
    pub dropped: Vec<(DropReason, Amount)>,
    /// Known positions of the blocks that were dropped on the edge, by reason. The position of a
    /// block is the number of blocks put on the edge before it. On a kernel edge, each CPU counts
    /// its own blocks.
    #[serde(deserialize_with = "endpoint::deserialize_interned_keys")]
    pub missing: Vec<(&'static str, LossRanges)>,
    /// Amount that is still in the ring of the edge.
    pub resident: Amount,
    /// Notifications sent to the reader of the edge's ring, by cause; `None` for an edge without a
    /// ring.
    #[serde(skip)]
    pub events: Option<WakeupCounts>,
    /// Current size of the edge's ring; `None` for an edge without a ring.
    #[serde(default)]
    pub size: Option<RingSize>,
}

/// The size of a ring between two spaces, and the history of its changes.
#[derive(Clone, PartialEq, Eq, Debug, Default, Serialize, Deserialize)]
pub struct RingSize {
    /// Current capacity of the ring in entries.
    pub entries: u64,
    /// Current number of blocks after which a sleeping reader is woken (T_b).
    pub signal_blocks: u64,
    /// Number of times that the ring has grown.
    pub grown: u64,
    /// Number of times that the ring has shrunk.
    pub shrunk: u64,
    /// Reason for the last change of the ring's size; empty if the size has not changed.
    #[serde(rename = "because")]
    pub last_resize_reason: String,
}

/// Counters of one node: blocks that entered it, were created by it, left it, were dropped by it,
/// or are held by it.
#[derive(Clone, PartialEq, Eq, Debug, Default, Serialize, Deserialize)]
pub struct NodeEntry {
    /// Name of the node.
    pub name: NodeName,
    /// Number of the node, which stays the same when the path is changed. In ledgers for users,
    /// `engine` replaces it with the index of the node in the current plan.
    pub planned: usize,
    /// Blocks and bytes that entered the node.
    pub taken: Amount,
    /// Blocks that the node created.
    pub made: Amount,
    /// Blocks that left the node through at least one arc or, at a sink, were delivered.
    pub passed: Amount,
    /// Blocks that no arc accepted.
    pub unselected: Amount,
    /// Blocks that the filter consumed on purpose.
    pub consumed: Amount,
    /// Blocks that the filter currently holds.
    pub held: Amount,
    /// Dropped blocks, by reason.
    pub dropped: Vec<(DropReason, Amount)>,
    /// Blocks for which the filter gave no answer, by reason. `unselected` includes them, unless an
    /// arc accepts class 0.
    pub unanswered: Vec<(String, u64)>,
    /// Counters that the filter itself defines, by name.
    pub counters: Vec<(String, u64)>,
    /// Numbers of blocks that the filter has edited, by the method of editing.
    pub edits: EditCounts,
    /// Time spent in the filter, in nanoseconds; 0 if not measured.
    pub busy_ns: u64,
    /// Number of calls of the filter.
    pub calls: u64,
    /// True if the node is an external program. The input and output of such a node must balance in
    /// bytes, too.
    pub program: bool,
    /// True for a filter in an operand of a Boolean section. The filter processes copies of blocks,
    /// so its drops are not losses. If the section drops a block because of the operand's answer,
    /// the section counts the drop.
    #[serde(default)]
    pub operand: bool,
    /// Size of the ring that connects a source or sink to other programs; `None` if there is no
    /// such ring.
    #[serde(default)]
    pub ring: Option<RingState>,
    /// Frames that a sink or source retains for later use, such as the history of a source; `None`
    /// for other nodes.
    #[serde(default)]
    pub kept: Option<RetainedFrames>,
}

/// Numbers of blocks that a filter has edited, by the method of editing.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default, Serialize, Deserialize)]
pub struct EditCounts {
    /// Number of edits of a block in place.
    pub direct: u64,
    /// Number of edits for which the entire frame was copied.
    pub copied: u64,
    /// Number of edits that replaced a block with a new one.
    pub appended: u64,
    /// Number of edits for which only the written range of the frame was copied.
    pub fragmented: u64,
}

/// The ledger of a path: the counts of its sources, nodes and edges.
#[derive(Clone, PartialEq, Eq, Debug, Default, Serialize, Deserialize)]
pub struct Ledger {
    /// Counts of the sources by name, including blocks lost before they reached the path.
    pub sources: Vec<(String, SourceCounters)>,
    /// Counters of all nodes.
    pub filters: Vec<NodeEntry>,
    /// Counters of all edges.
    pub edges: Vec<Edge>,
}

/// An equation between counters of a ledger that does not hold, with the values of both sides.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct LedgerImbalance {
    /// Name of the node or edge whose counters violate the equation.
    pub place: String,
    /// The equation that does not hold, as text.
    pub rule: &'static str,
    /// Value of the left side of the violated equation.
    pub left: u64,
    /// Value of the right side of the violated equation.
    pub right: u64,
}

impl fmt::Display for LedgerImbalance {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { place, rule, left, right } = self;
        write!(f, "{place}: {rule} does not hold: {left} against {right}")
    }
}

impl Edge {
    /// Creates the entry of an edge, with all amounts zero.
    #[must_use]
    pub fn new(from: NodeName, to: NodeName, kind: EdgeKind, planned: usize) -> Self {
        let (put, taken, resident) = Default::default();
        let (dropped, missing, events, size) = (Vec::new(), Vec::new(), None, None);
        Self { from, to, kind, planned, put, taken, dropped, missing, resident, events, size }
    }

    /// Returns the number of blocks on the edge whose fate is known: blocks that the reader has
    /// taken, that were dropped, or that are still in the ring.
    #[must_use]
    pub fn accounted_blocks(&self) -> u64 {
        let dropped: u64 = self.dropped.iter().map(|(_, a)| a.blocks).sum();
        self.taken.blocks + dropped + self.resident.blocks
    }
}

impl NodeEntry {
    /// Adds the counters of the same node from another space. A program has counters in two spaces,
    /// one for its input and one for its output; a filter may have instances in several spaces.
    pub fn merge(&mut self, other: Self) {
        let amounts = [
            (&mut self.taken, other.taken),
            (&mut self.made, other.made),
            (&mut self.passed, other.passed),
            (&mut self.unselected, other.unselected),
            (&mut self.consumed, other.consumed),
            (&mut self.held, other.held),
        ];
        for (amount, more) in amounts {
            *amount += more;
        }
        self.dropped.extend(other.dropped);
        add_counts_by_name(&mut self.unanswered, other.unanswered);
        add_counts_by_name(&mut self.counters, other.counters);
        self.edits.direct += other.edits.direct;
        self.edits.copied += other.edits.copied;
        self.edits.appended += other.edits.appended;
        self.edits.fragmented += other.edits.fragmented;
        self.busy_ns += other.busy_ns;
        self.calls += other.calls;
        self.ring = self.ring.take().or(other.ring);
        self.kept = self.kept.or(other.kept);
        // A filter in a thread may have trimmed views, so its bytes need not balance.
        self.program &= other.program;
        self.operand &= other.operand;
    }

    /// Returns the amounts of lost blocks, by reason. Drops that the request demands
    /// ([`DropReason::is_loss`]) and drops of operands are not losses.
    pub fn losses(&self) -> impl Iterator<Item = (DropReason, Amount)> + '_ {
        let dropped = self.dropped.iter().filter(|(why, _)| why.is_loss() && !self.operand);
        dropped.copied()
    }

    /// Returns the name and value of each counter of the filter, followed by the nonzero numbers of
    /// edits under the names that reports print.
    pub fn printed_counters(&self) -> impl Iterator<Item = (&str, u64)> {
        let EditCounts { direct, copied, appended, fragmented } = self.edits;
        let edits = [
            ("edited in place", direct),
            ("edited in copies", copied),
            ("edited as new blocks", appended),
            ("edited as fragments", fragmented),
        ];
        let counters = self.counters.iter().map(|(what, n)| (what.as_str(), *n));
        counters.chain(edits.into_iter().filter(|(_, n)| *n > 0))
    }

    /// Returns both sides of the node's balance, in blocks: those that entered the node or were
    /// created by it, and those that left it or are held by it. The two numbers are equal if the
    /// node balances.
    pub fn balance_sides(&self) -> (u64, u64) {
        (self.input_amount(GET_BLOCKS), self.accounted_amount(GET_BLOCKS))
    }

    fn input_amount(&self, of: AmountGetter) -> u64 {
        of(&self.taken) + of(&self.made)
    }

    fn accounted_amount(&self, of: AmountGetter) -> u64 {
        let dropped: u64 = self.dropped.iter().map(|(_, amount)| of(amount)).sum();
        let rest = [&self.passed, &self.unselected, &self.consumed, &self.held];
        dropped + rest.into_iter().map(of).sum::<u64>()
    }
}

/// Adds each count in `more` to the entry of `to` with the same name, or appends a new entry if
/// there is none.
fn add_counts_by_name(to: &mut Vec<(String, u64)>, more: Vec<(String, u64)>) {
    for (name, count) in more {
        match to.iter_mut().find(|(known, _)| *known == name) {
            Some((_, known)) => *known += count,
            None => to.push((name, count)),
        }
    }
}

/// A function that returns either the number of blocks or the number of bytes in an amount.
type AmountGetter = fn(&Amount) -> u64;
const GET_BLOCKS: AmountGetter = |amount| amount.blocks;
const GET_BYTES: AmountGetter = |amount| amount.bytes;

impl Ledger {
    /// Appends the entries of the ledger of another path.
    pub fn add(&mut self, other: Self) {
        self.sources.extend(other.sources);
        self.filters.extend(other.filters);
        self.edges.extend(other.edges);
    }

    /// Adds an edge. If an edge with the same ends, kind and number exists, adds the amounts to it
    /// instead.
    pub fn add_edge(&mut self, edge: Edge) {
        let same = |known: &&mut Edge| {
            (known.planned, known.kind) == (edge.planned, edge.kind)
                && (&known.from, &known.to) == (&edge.from, &edge.to)
        };
        let Some(known) = self.edges.iter_mut().find(same) else {
            self.edges.push(edge);
            return;
        };
        known.put += edge.put;
        known.taken += edge.taken;
        known.resident += edge.resident;
        known.dropped.extend(edge.dropped);
        known.missing.extend(edge.missing);
    }

    /// Returns all imbalances in the ledger; the list is empty if the ledger balances.
    #[must_use]
    pub fn imbalances(&self) -> Vec<LedgerImbalance> {
        let mut found = Vec::new();
        for edge in &self.edges {
            let place = format!("{} → {} ({})", edge.from, edge.to, edge.kind.name());
            let (left, right) = (edge.put.blocks, edge.accounted_blocks());
            if left != right {
                let rule = "put = taken + dropped + resident";
                found.push(LedgerImbalance { place: place.clone(), rule, left, right });
            } else if edge.dropped.iter().all(|(_, a)| a.blocks == 0)
                && edge.put.bytes != edge.taken.bytes + edge.resident.bytes
            {
                let (left, right) = (edge.put.bytes, edge.taken.bytes + edge.resident.bytes);
                found.push(LedgerImbalance { place, rule: "bytes put = bytes taken", left, right });
            }
        }
        for node in &self.filters {
            let (left, right) = (node.input_amount(GET_BLOCKS), node.accounted_amount(GET_BLOCKS));
            if left != right {
                let rule = "taken + made = passed + unselected + consumed + held + dropped";
                found.push(LedgerImbalance { place: node.name.to_string(), rule, left, right });
            } else if node.program {
                let (left, right) =
                    (node.input_amount(GET_BYTES), node.accounted_amount(GET_BYTES));
                if left != right {
                    let rule = "bytes taken + made = passed + unselected + consumed + dropped";
                    found.push(LedgerImbalance { place: node.name.to_string(), rule, left, right });
                }
            }
        }
        for (name, source) in &self.sources {
            let Some(observed) = source.observed else { continue };
            let dropped: Option<u64> = source.dropped.iter().map(|(_, n)| *n).sum();
            let Some(dropped) = dropped else { continue };
            let (left, right) = (observed.blocks, source.given.blocks + dropped);
            if left != right {
                let rule = "seen = given + dropped";
                found.push(LedgerImbalance { place: name.clone(), rule, left, right });
            }
        }
        found
    }

    /// Returns the number of lost blocks: blocks that were dropped before they reached the path, on
    /// edges, or in filters. The number excludes blocks that no arc accepted, blocks whose drop the
    /// request demands ([`DropReason::is_loss`]), and copies of blocks that operands dropped.
    #[must_use]
    pub fn lost_blocks(&self) -> u64 {
        let sources = self.sources.iter().flat_map(|(_, s)| &s.dropped);
        let sources: u64 = sources.filter(|(at, _)| at.is_loss()).filter_map(|(_, n)| *n).sum();
        let edges = self.edges.iter().flat_map(|edge| &edge.dropped);
        let edges: u64 = edges.filter(|(why, _)| why.is_loss()).map(|(_, n)| n.blocks).sum();
        let inside = self.filters.iter().flat_map(NodeEntry::losses);
        sources + edges + inside.map(|(_, n)| n.blocks).sum::<u64>()
    }
}

impl Ledger {
    /// Returns the number of blocks that filters dropped because the request demands it
    /// ([`DropReason::ByRequest`]).
    #[must_use]
    pub fn blocks_dropped_by_request(&self) -> u64 {
        let dropped = self.filters.iter().flat_map(|filter| &filter.dropped);
        dropped
            .filter(|(why, _)| *why == DropReason::ByRequest)
            .map(|(_, amount)| amount.blocks)
            .sum()
    }
}

/// Returns true if fault injection demands that the writer of an edge lose one of the blocks it is
/// about to put, without counting a drop. In fault-injection builds, this happens once: in the
/// first nonempty put on an edge of the kind that `STREAMLINE_LOSE` names. In other builds, such as
/// this one, the result is always false.
#[cfg(not(feature = "lose"))]
#[inline]
pub const fn must_lose_block(_: EdgeKind, _: Amount) -> bool {
    false
}

/// Returns true if fault injection demands that the writer of an edge lose one of the blocks it is
/// about to put, without counting a drop. This happens once, on an edge of the kind that
/// `STREAMLINE_LOSE` names.
#[cfg(feature = "lose")]
pub fn must_lose_block(kind: EdgeKind, put: Amount) -> bool {
    use std::sync::atomic::{AtomicBool, Ordering};
    static HAS_LOST_BLOCK: AtomicBool = AtomicBool::new(false);
    let wanted = std::env::var("STREAMLINE_LOSE").is_ok_and(|name| name == kind.name());
    wanted && put.blocks > 0 && !HAS_LOST_BLOCK.swap(true, Ordering::Relaxed)
}

/// Returns true if fault injection demands that a kernel program send its output to an arc that
/// does not exist (`STREAMLINE_LOSE=kernel way`). Always false in this build, which has no fault
/// injection.
#[cfg(not(feature = "lose"))]
#[inline]
pub const fn must_lose_kernel_arc() -> bool {
    false
}

/// Returns true if fault injection demands that a kernel program send its output to an arc that
/// does not exist (`STREAMLINE_LOSE=kernel way`).
#[cfg(feature = "lose")]
pub fn must_lose_kernel_arc() -> bool {
    std::env::var("STREAMLINE_LOSE").is_ok_and(|name| name == "kernel way")
}

/// Returns true if fault injection demands that a kernel program lose a block on an edge to user
/// space (`STREAMLINE_LOSE=kernel ring`). Always false in this build, which has no fault injection.
#[cfg(not(feature = "lose"))]
pub const fn must_lose_kernel_exit_block() -> bool {
    false
}

/// Returns true if fault injection demands that a kernel program lose a block on an edge to user
/// space (`STREAMLINE_LOSE=kernel ring`).
#[cfg(feature = "lose")]
pub fn must_lose_kernel_exit_block() -> bool {
    std::env::var("STREAMLINE_LOSE").is_ok_and(|name| name == "kernel ring")
}
