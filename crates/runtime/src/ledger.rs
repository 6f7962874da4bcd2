//! The ledger: on every edge in = out + dropped(reason) + held, counted by the two parties
//! (CONTRACT 19).
//!
//! This file takes what nodes and edges counted and says whether it balances, in blocks strictly,
//! and in bytes where nothing may trim a view (docs/book/decisions/0004-ledger-bytes.md). It adds
//! nothing up that a party did not count itself.

use buffer::signal::moderate::Events;
use std::fmt;
use std::ops::Deref;

/// Terms of a ledger.
pub use endpoint::{DropReason, Gap, Missing, Position, Seen};
pub use filter::{Amount, Delivered, Report};

/// Kind of an edge.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum EdgeKind {
    /// The next filter is called.
    Call,
    /// A ring to another space.
    Ring,
    /// A back edge: a bounded work list.
    Back,
    /// The standard input or output of a program.
    Pipe,
    /// A ring to a copy of a filter that shares the work with others.
    Deal,
    /// A ring from such a copy to where they are joined.
    Join,
}

impl EdgeKind {
    /// The kind of this name.
    #[must_use]
    pub fn named(name: &str) -> Option<Self> {
        let all = [Self::Call, Self::Ring, Self::Back, Self::Pipe, Self::Deal, Self::Join];
        all.into_iter().find(|kind| kind.name() == name)
    }

    /// The name as it is printed.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            Self::Call => "call",
            Self::Ring => "ring",
            Self::Back => "back edge",
            Self::Pipe => "pipe",
            Self::Deal => "deal",
            Self::Join => "join",
        }
    }
}

/// The end of a ring that a node of a space is.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum RingEnd {
    /// Blocks leave for another space.
    To,
    /// Blocks come from another space.
    From,
    /// Blocks are dispatched to replicas.
    Share,
    /// Blocks of replicas are joined.
    Join,
}

impl RingEnd {
    const ALL: [(Self, &str); 4] = [
        (Self::To, "ring to "),
        (Self::From, "ring from "),
        (Self::Share, "ring share of "),
        (Self::Join, "ring join of "),
    ];
}

/// The name of a node: that of its filter, or that of the end of a ring.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct NodeName {
    text: String,
    /// The end of a ring that the node is, if it is one.
    pub ring: Option<RingEnd>,
}

impl NodeName {
    /// The end of a ring to, from or of `other`.
    #[must_use]
    pub fn ring(end: RingEnd, other: &str) -> Self {
        let (_, prefix) = RingEnd::ALL[end as usize];
        Self { text: format!("{prefix}{other}"), ring: Some(end) }
    }

    /// Reads a name that came as text from another process. No filter has a name with a blank.
    #[must_use]
    pub fn read(text: &str) -> Self {
        let end = RingEnd::ALL.iter().find(|(_, prefix)| text.starts_with(prefix));
        Self { text: text.to_owned(), ring: end.map(|(end, _)| *end) }
    }

    /// Returns true for the end of a ring.
    #[must_use]
    pub const fn is_ring(&self) -> bool {
        self.ring.is_some()
    }
}

impl From<&str> for NodeName {
    fn from(text: &str) -> Self {
        text.to_owned().into()
    }
}

impl From<String> for NodeName {
    fn from(text: String) -> Self {
        Self { text, ring: None }
    }
}

impl From<NodeName> for String {
    fn from(name: NodeName) -> Self {
        name.text
    }
}

impl Deref for NodeName {
    type Target = str;

    fn deref(&self) -> &str {
        &self.text
    }
}

impl PartialEq<str> for NodeName {
    fn eq(&self, other: &str) -> bool {
        self.text == other
    }
}

impl PartialEq<&str> for NodeName {
    fn eq(&self, other: &&str) -> bool {
        self.text == *other
    }
}

impl fmt::Display for NodeName {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.text)
    }
}

/// One edge: what the near side put, what the far side took, and what happened between.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Edge {
    /// The node that put.
    pub from: NodeName,
    /// The node that took.
    pub to: NodeName,
    /// Kind of the edge.
    pub kind: EdgeKind,
    /// Index of the edge in the plan.
    pub planned: usize,
    /// Counted by the near side.
    pub put: Amount,
    /// Counted by the far side.
    pub taken: Amount,
    /// Dropped on the way, by reason.
    pub dropped: Vec<(DropReason, Amount)>,
    /// Identities of the dropped blocks, by reason, where known: positions among all that were put,
    /// or, out of the kernel, among what one processor put.
    pub missing: Vec<(&'static str, Missing)>,
    /// Still in a ring.
    pub resident: Amount,
    /// The events that the far side of a ring got, and why.
    pub events: Option<Events>,
}

/// One node: what came, and what became of it.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct Filtered {
    /// The node.
    pub name: NodeName,
    /// Index of the node in the plan.
    pub planned: usize,
    /// Came in.
    pub taken: Amount,
    /// Came out without having come in.
    pub made: Amount,
    /// Left by at least one arc, or was taken by a sink for good.
    pub passed: Amount,
    /// No arc wanted it.
    pub unselected: Amount,
    /// Was used up.
    pub consumed: Amount,
    /// Is held.
    pub held: Amount,
    /// Was dropped, by reason.
    pub dropped: Vec<(DropReason, Amount)>,
    /// Reasons for which blocks were not answered; part of `unselected` unless an arc takes class
    /// 0.
    pub unanswered: Vec<(String, u64)>,
    /// Further counters of the filter.
    pub counters: Vec<(String, u64)>,
    /// Edits of blocks, by method.
    pub edits: Edits,
    /// Time in the filter in ns, where it was measured.
    pub busy_ns: u64,
    /// Number of calls of the filter.
    pub calls: u64,
    /// True for a program: what it takes and what it makes is known to the byte.
    pub program: bool,
}

/// Number of edits, by method.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Edits {
    /// In place.
    pub direct: u64,
    /// In a copy of the whole frame.
    pub copied: u64,
    /// A new block took their place.
    pub appended: u64,
    /// In a copy of the part that was written.
    pub fragmented: u64,
}

/// The ledger of a path.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct Ledger {
    /// Counts of the sources, by name, including losses before the path, by place.
    pub sources: Vec<(String, Seen)>,
    /// All nodes.
    pub filters: Vec<Filtered>,
    /// All edges.
    pub edges: Vec<Edge>,
}

/// A place where the ledger does not balance.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Imbalance {
    /// The node or edge.
    pub place: String,
    /// The equation that should hold.
    pub rule: &'static str,
    /// One side.
    pub left: u64,
    /// The other side.
    pub right: u64,
}

impl fmt::Display for Imbalance {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { place, rule, left, right } = self;
        write!(f, "{place}: {rule} does not hold: {left} against {right}")
    }
}

impl Edge {
    /// Returns the number of blocks that were taken, dropped or are in the ring.
    #[must_use]
    pub fn ended(&self) -> u64 {
        let dropped: u64 = self.dropped.iter().map(|(_, a)| a.blocks).sum();
        self.taken.blocks + dropped + self.resident.blocks
    }
}

impl Filtered {
    /// Adds what the other half of the same program counted, or the same filter in another space.
    pub fn join(&mut self, other: Self) {
        let amounts = [
            (&mut self.taken, other.taken),
            (&mut self.made, other.made),
            (&mut self.passed, other.passed),
            (&mut self.unselected, other.unselected),
            (&mut self.consumed, other.consumed),
            (&mut self.held, other.held),
        ];
        for (amount, more) in amounts {
            amount.blocks += more.blocks;
            amount.bytes += more.bytes;
        }
        self.dropped.extend(other.dropped);
        add_by_name(&mut self.unanswered, other.unanswered);
        add_by_name(&mut self.counters, other.counters);
        self.edits.direct += other.edits.direct;
        self.edits.copied += other.edits.copied;
        self.edits.appended += other.edits.appended;
        self.edits.fragmented += other.edits.fragmented;
        self.busy_ns += other.busy_ns;
        self.calls += other.calls;
        // In a thread views may have been trimmed.
        self.program &= other.program;
    }

    /// All that the filter counted, and how blocks were changed, as it is printed.
    pub fn counted(&self) -> impl Iterator<Item = (&str, u64)> {
        let Edits { direct, copied, appended, fragmented } = self.edits;
        let edits = [
            ("edited in place", direct),
            ("edited in copies", copied),
            ("edited as new blocks", appended),
            ("edited as fragments", fragmented),
        ];
        let counters = self.counters.iter().map(|(what, n)| (what.as_str(), *n));
        counters.chain(edits.into_iter().filter(|(_, n)| *n > 0))
    }

    /// Returns the number of blocks that came in, and the number that is accounted for.
    pub fn balance(&self) -> (u64, u64) {
        (self.came(BLOCKS), self.became(BLOCKS))
    }

    fn came(&self, of: Of) -> u64 {
        of(&self.taken) + of(&self.made)
    }

    fn became(&self, of: Of) -> u64 {
        let dropped: u64 = self.dropped.iter().map(|(_, amount)| of(amount)).sum();
        let rest = [&self.passed, &self.unselected, &self.consumed, &self.held];
        dropped + rest.into_iter().map(of).sum::<u64>()
    }
}

/// Adds counts to those of the same name.
fn add_by_name(to: &mut Vec<(String, u64)>, more: Vec<(String, u64)>) {
    for (name, count) in more {
        match to.iter_mut().find(|(known, _)| *known == name) {
            Some((_, known)) => *known += count,
            None => to.push((name, count)),
        }
    }
}

/// One of the two that are counted.
type Of = fn(&Amount) -> u64;
const BLOCKS: Of = |amount| amount.blocks;
const BYTES: Of = |amount| amount.bytes;

impl Ledger {
    /// Adds the ledger of another path.
    pub fn add(&mut self, other: Self) {
        self.sources.extend(other.sources);
        self.filters.extend(other.filters);
        self.edges.extend(other.edges);
    }

    /// Adds what one of several copies counted of an edge to what others did.
    pub fn add_edge(&mut self, edge: Edge) {
        let same = |known: &&mut Edge| {
            (known.planned, known.kind) == (edge.planned, edge.kind)
                && (&known.from, &known.to) == (&edge.from, &edge.to)
        };
        let Some(known) = self.edges.iter_mut().find(same) else {
            self.edges.push(edge);
            return;
        };
        for (amount, more) in [(&mut known.put, edge.put), (&mut known.taken, edge.taken)] {
            amount.blocks += more.blocks;
            amount.bytes += more.bytes;
        }
        known.dropped.extend(edge.dropped);
        known.missing.extend(edge.missing);
    }

    /// Returns the imbalances of the ledger; empty: it balances.
    #[must_use]
    pub fn imbalances(&self) -> Vec<Imbalance> {
        let mut found = Vec::new();
        for edge in &self.edges {
            let place = format!("{} → {} ({})", edge.from, edge.to, edge.kind.name());
            let (left, right) = (edge.put.blocks, edge.ended());
            if left != right {
                let rule = "put = taken + dropped + resident";
                found.push(Imbalance { place: place.clone(), rule, left, right });
            } else if edge.dropped.iter().all(|(_, a)| a.blocks == 0)
                && edge.put.bytes != edge.taken.bytes + edge.resident.bytes
            {
                let (left, right) = (edge.put.bytes, edge.taken.bytes + edge.resident.bytes);
                found.push(Imbalance { place, rule: "bytes put = bytes taken", left, right });
            }
        }
        for node in &self.filters {
            let (left, right) = (node.came(BLOCKS), node.became(BLOCKS));
            if left != right {
                let rule = "taken + made = passed + unselected + consumed + held + dropped";
                found.push(Imbalance { place: node.name.to_string(), rule, left, right });
            } else if node.program {
                let (left, right) = (node.came(BYTES), node.became(BYTES));
                if left != right {
                    let rule = "bytes taken + made = passed + unselected + consumed + dropped";
                    found.push(Imbalance { place: node.name.to_string(), rule, left, right });
                }
            }
        }
        for (name, source) in &self.sources {
            let Some(seen) = source.seen else { continue };
            let dropped: Option<u64> = source.dropped.iter().map(|(_, n)| *n).sum();
            let Some(dropped) = dropped else { continue };
            let (left, right) = (seen.blocks, source.given.blocks + dropped);
            if left != right {
                let rule = "seen = given + dropped";
                found.push(Imbalance { place: name.clone(), rule, left, right });
            }
        }
        found
    }

    /// All that was lost: dropped before the path, on edges and in filters. What no arc wanted was
    /// not lost: nobody asked for it ([`DropReason::is_lost`]).
    #[must_use]
    pub fn lost(&self) -> u64 {
        let sources = self.sources.iter().flat_map(|(_, s)| &s.dropped);
        let sources: u64 = sources.filter(|(at, _)| at.is_lost()).filter_map(|(_, n)| *n).sum();
        let edges: u64 = self.edges.iter().flat_map(|e| &e.dropped).map(|(_, a)| a.blocks).sum();
        let filters: u64 = self
            .filters
            .iter()
            .flat_map(|f| &f.dropped)
            .filter(|(why, _)| why.is_lost())
            .map(|(_, a)| a.blocks)
            .sum();
        sources + edges + filters
    }
}

impl Ledger {
    /// Returns the number of blocks dropped because the request says so.
    #[must_use]
    pub fn by_request(&self) -> u64 {
        let dropped = self.filters.iter().flat_map(|filter| &filter.dropped);
        dropped
            .filter(|(why, _)| *why == DropReason::ByRequest)
            .map(|(_, amount)| amount.blocks)
            .sum()
    }
}

/// Returns true if a fault-injection build loses the block that was just put: the first on each
/// kind of edge named in `STREAMLINE_LOSE`. Always false in other builds.
#[cfg(not(feature = "lose"))]
#[inline]
pub const fn loses_here(_: EdgeKind, _: Amount) -> bool {
    false
}

/// See above.
#[cfg(feature = "lose")]
pub fn loses_here(kind: EdgeKind, put: Amount) -> bool {
    use std::sync::atomic::{AtomicBool, Ordering};
    static LOST: AtomicBool = AtomicBool::new(false);
    let wanted = std::env::var("STREAMLINE_LOSE").is_ok_and(|name| name == kind.name());
    wanted && put.blocks > 0 && !LOST.swap(true, Ordering::Relaxed)
}

/// Returns true if a fault-injection build sends a program's output to an edge that does not exist
/// (`STREAMLINE_LOSE` has `kernel way`). Always false in other builds.
#[cfg(not(feature = "lose"))]
#[inline]
pub const fn loses_way() -> bool {
    false
}

/// See above.
#[cfg(feature = "lose")]
pub fn loses_way() -> bool {
    std::env::var("STREAMLINE_LOSE").is_ok_and(|name| name == "kernel way")
}

/// The same for the ways out of the kernel, which `STREAMLINE_LOSE` calls `kernel ring`.
#[cfg(not(feature = "lose"))]
pub const fn loses_of_kernel() -> bool {
    false
}

/// See above.
#[cfg(feature = "lose")]
pub fn loses_of_kernel() -> bool {
    std::env::var("STREAMLINE_LOSE").is_ok_and(|name| name == "kernel ring")
}
