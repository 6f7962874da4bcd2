//! Counters and hold limits of nodes, as declared by a filter's description.

use filter::{Counts, Description, HoldTable};
use runtime::space::node::Node;

/// Maximum number of bytes that a filter may hold, over all sessions.
pub(crate) const HOLD_BYTES_MAX: u64 = 64 << 20;

/// Returns zero counters for a filter, with an entry for each drop reason and each counter in the
/// filter's description.
pub(crate) fn zero_counts(description: &Description) -> Counts {
    Counts::new(description.reasons.len(), description.counters.len())
}

/// Returns `node` with the names of its drop reasons and counters and its hold limits set from a
/// filter description.
pub(crate) fn with_description(mut node: Node, description: &'static Description) -> Node {
    node.reasons = description.reasons;
    node.counters = description.counters;
    node.numbers_sessions = description.state.writes_session_numbers;
    node.holds = HoldTable::new(description.state.held_max, HOLD_BYTES_MAX);
    node
}
