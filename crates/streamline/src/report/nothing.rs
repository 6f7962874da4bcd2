//! Reasons why a request wrote nothing: by sink, the nodes that ended blocks.
//!
//! In: the plan and the ledger. Out: one sentence per sink. The walk goes from the sink against the
//! stream and stops at the first nodes to which blocks came.

use super::{Report, counted};
use pipeline::graph::{Edge, NodeId, Use};
use runtime::ledger::Filtered;
use std::fmt::Write as _;

/// Reasons that a sentence gives for one node.
const REASONS_MAX: usize = 4;

impl Report<'_> {
    /// One sentence for each sink, if no sink got a block; nothing otherwise, and nothing where no
    /// block came in, which the closing line says.
    #[must_use]
    pub fn nothing_written(&self) -> Vec<String> {
        let graph = &self.plan.graph;
        let sink = |id: &NodeId| graph.node(*id).filter().is_some_and(Use::is_sink);
        let sinks: Vec<NodeId> = graph.ends().into_iter().filter(sink).collect();
        let given = self.outcome.ledger.sources.iter().any(|(_, seen)| seen.given.blocks > 0);
        if !given || sinks.iter().any(|sink| self.came(*sink) > 0) {
            return Vec::new();
        }
        sinks.into_iter().map(|sink| self.starved(sink)).collect()
    }

    fn starved(&self, sink: NodeId) -> String {
        let (mut open, mut seen) = (vec![sink], vec![sink]);
        let mut ends: Vec<String> = Vec::new();
        while let Some(node) = open.pop() {
            for edge in self.plan.graph.inputs(node).filter(|edge| !edge.back) {
                if self.came(edge.from) > 0 {
                    ends.push(self.ended(edge));
                } else if !seen.contains(&edge.from) {
                    seen.push(edge.from);
                    open.push(edge.from);
                }
            }
        }
        let name = &self.names[sink.0];
        match ends.is_empty() {
            true => format!("nothing came to `{name}`: its sources gave nothing"),
            false => format!("nothing came to `{name}`: {}", ends.join("; ")),
        }
    }

    /// Describes the fate of the blocks before an edge that none took.
    fn ended(&self, edge: &Edge) -> String {
        let (name, came) = (&self.names[edge.from.0], self.came(edge.from));
        let mut text = format!("`{name}` had {}", counted(came, "block"));
        let mut reasons: Vec<(u64, String)> = Vec::new();
        for filtered in self.of(edge.from) {
            reasons.extend(filtered.unanswered.iter().map(|(why, n)| (*n, why.clone())));
            let dropped = filtered.dropped.iter();
            reasons.extend(dropped.map(|(why, amount)| (amount.blocks, format!("dropped: {why}"))));
            reasons.push((filtered.consumed.blocks, "used up".to_owned()));
            reasons.push((filtered.held.blocks, "held".to_owned()));
        }
        let explained: u64 = reasons.iter().map(|(n, _)| *n).sum();
        if !edge.classes.is_plain() {
            let other = came.saturating_sub(explained);
            reasons.push((other, format!("of another class than |{}", edge.classes)));
        }
        reasons.retain(|(n, _)| *n > 0);
        reasons.sort_by_key(|(n, _)| std::cmp::Reverse(*n));
        let more = reasons.len().saturating_sub(REASONS_MAX);
        reasons.truncate(REASONS_MAX);
        let told: Vec<String> = reasons.iter().map(|(n, why)| format!("{n} {why}")).collect();
        let verb = if told.is_empty() { ", none went this way" } else { ", none went this way: " };
        let _ = write!(text, "{verb}{}", told.join(", "));
        if more > 0 {
            let _ = write!(text, " and {more} more reasons");
        }
        text
    }

    /// Returns the number of blocks that came to a node, over all processes and threads that ran
    /// it.
    fn came(&self, node: NodeId) -> u64 {
        self.of(node).map(|filtered| filtered.taken.blocks + filtered.made.blocks).sum()
    }

    fn of(&self, node: NodeId) -> impl Iterator<Item = &Filtered> {
        let all = self.outcome.ledger.filters.iter();
        all.filter(move |filtered| !filtered.name.is_ring() && filtered.planned == node.0)
    }
}
