//! Nodes that count and hold as the descriptions of their filters say.

use filter::{Counts, Description, Holds};
use runtime::space::node::Node;

/// Maximum bytes that a filter may hold, over all sessions.
pub(crate) const HOLD_BYTES: u64 = 64 << 20;

/// Counters for all that a filter of this description counts.
pub(crate) fn counts(description: &Description) -> Counts {
    Counts::new(description.reasons.len(), description.counters.len())
}

/// The node with the names of its reasons and counters, and room for what its filter may hold.
pub(crate) fn describe(mut node: Node, description: &'static Description) -> Node {
    node.reasons = description.reasons;
    node.counters = description.counters;
    node.holds = Holds::new(description.state.held_max, HOLD_BYTES);
    node
}
