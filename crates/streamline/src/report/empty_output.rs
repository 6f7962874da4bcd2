//! Explanation of an empty output: for each sink, the nodes at which the blocks ended.
//!
//! The explanation of a sink is one sentence, derived from the plan and the ledger. It names the
//! nearest nodes upstream of the sink that have received blocks, and the fate of these blocks.

use super::{Report, format_count};
use pipeline::graph::{Edge, FilterUse, NodeId};
use runtime::ledger::NodeEntry;
use std::fmt::Write as _;

/// Maximum number of reasons that the explanation lists for one node.
const LISTED_REASONS_MAX: usize = 4;

impl Report<'_> {
    /// Returns one sentence per sink if no sink has received a block. Returns an empty list if no
    /// source has emitted a block, because the last line of the report states this.
    #[must_use]
    pub fn explain_empty_output(&self) -> Vec<String> {
        let graph = &self.plan.graph;
        let sink = |id: &NodeId| graph.node(*id).filter().is_some_and(FilterUse::is_sink);
        let sinks: Vec<NodeId> = graph.ends().into_iter().filter(sink).collect();
        let given = self.outcome.ledger.sources.iter().any(|(_, source)| source.given.blocks > 0);
        if !given || sinks.iter().any(|sink| self.input_blocks(*sink) > 0) {
            return Vec::new();
        }
        sinks.into_iter().map(|sink| self.explain_empty_sink(sink)).collect()
    }

    fn explain_empty_sink(&self, sink: NodeId) -> String {
        let (mut open, mut visited) = (vec![sink], vec![sink]);
        let mut ends: Vec<String> = Vec::new();
        while let Some(node) = open.pop() {
            for edge in self.plan.graph.inputs(node).filter(|edge| !edge.back) {
                if self.input_blocks(edge.from) > 0 {
                    ends.push(self.explain_unused_edge(edge));
                } else if !visited.contains(&edge.from) {
                    visited.push(edge.from);
                    open.push(edge.from);
                }
            }
        }
        let name = &self.names[sink.0];
        match ends.is_empty() {
            true => format!("`{name}` received nothing: its sources emitted nothing"),
            false => format!("`{name}` received nothing: {}", ends.join("; ")),
        }
    }

    /// Explains why no block entered `edge`: states the fate of the blocks that reached the node at
    /// which the edge begins.
    fn explain_unused_edge(&self, edge: &Edge) -> String {
        let (name, input_blocks) = (&self.names[edge.from.0], self.input_blocks(edge.from));
        let mut text = format!("`{name}` had {}", format_count(input_blocks, "block"));
        let mut reasons: Vec<(u64, String)> = Vec::new();
        for entry in self.node_entries(edge.from) {
            reasons.extend(entry.unanswered.iter().map(|(why, n)| (*n, why.clone())));
            let dropped = entry.dropped.iter();
            reasons.extend(dropped.map(|(why, amount)| (amount.blocks, format!("dropped: {why}"))));
            reasons.push((entry.consumed.blocks, "used up".to_owned()));
            reasons.push((entry.held.blocks, "held".to_owned()));
        }
        let explained: u64 = reasons.iter().map(|(n, _)| *n).sum();
        if !edge.classes.is_plain() {
            let other = input_blocks.saturating_sub(explained);
            reasons.push((other, format!("of another class than |{}", edge.classes)));
        }
        reasons.retain(|(n, _)| *n > 0);
        reasons.sort_by_key(|(n, _)| std::cmp::Reverse(*n));
        let more = reasons.len().saturating_sub(LISTED_REASONS_MAX);
        reasons.truncate(LISTED_REASONS_MAX);
        let phrases: Vec<String> = reasons.iter().map(|(n, why)| format!("{n} {why}")).collect();
        let verb =
            if phrases.is_empty() { ", none went this way" } else { ", none went this way: " };
        let _ = write!(text, "{verb}{}", phrases.join(", "));
        if more > 0 {
            let _ = write!(text, " and {more} more reasons");
        }
        let _ = write!(text, "{}", self.explain_link_types(edge.from));
        text
    }

    /// Returns a clause about the link types of a node's frames, if this program can parse the
    /// headers of none of them. Returns an empty text otherwise.
    fn explain_link_types(&self, node: NodeId) -> String {
        // `bpf` compiles its expression for the link type, so it needs no parser.
        let filter =
            self.plan.graph.node(node).filter().filter(|used| used.description.name != "bpf");
        let links = filter.and_then(|used| used.arguments.link_types()).unwrap_or_default();
        if links.is_empty() || links.iter().any(|link| link.has_parser()) {
            return String::new();
        }
        let names: Vec<String> = links.iter().map(ToString::to_string).collect();
        let noun = if names.len() == 1 { "link type" } else { "link types" };
        format!(" (headers of {noun} {} are read by `bpf` alone)", names.join(" and "))
    }

    /// Returns the number of blocks that a node received or created, summed over all processes and
    /// threads that run the node.
    fn input_blocks(&self, node: NodeId) -> u64 {
        self.node_entries(node).map(|entry| entry.taken.blocks + entry.made.blocks).sum()
    }

    fn node_entries(&self, node: NodeId) -> impl Iterator<Item = &NodeEntry> {
        let all = self.outcome.ledger.filters.iter();
        all.filter(move |entry| !entry.name.is_ring() && entry.planned == node.0)
    }
}
