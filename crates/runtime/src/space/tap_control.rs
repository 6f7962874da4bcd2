//! Attachment of taps to the nodes of a space, and of histories, which store past output for taps.

use super::Space;
use super::node::Operator;
use super::tap::TapFeed;
use super::tap::{TapOrigin, TapStart};
use endpoint::history::HistoryStart;

impl Space {
    /// Keeps a history of each source's output. The size of each history is at most `bytes` bytes.
    pub fn remember(&mut self, bytes: usize) {
        let sources =
            self.graph.nodes.iter().filter(|node| matches!(node.operator, Operator::Source(_)));
        let sources: Vec<usize> = sources.map(|node| node.planned).collect();
        let taps = self.graph.pass.observers.taps();
        sources.into_iter().for_each(|node| taps.remember(node, bytes));
    }

    /// Adds a tap to the node with this planned index. Returns `None` if the node's output cannot
    /// be tapped in this space.
    pub fn tap(
        &mut self,
        number: usize,
        since: Option<TapOrigin>,
        feed: TapFeed,
    ) -> Option<TapStart> {
        let node =
            self.graph.nodes.iter().find(|node| node.planned == number && node.accepts_taps())?;
        let (left, now) = (node.flow.routed.blocks, self.now());
        let from = since.map(|since| match since {
            TapOrigin::Oldest => HistoryStart::Oldest,
            TapOrigin::Ago(ns) => HistoryStart::Time(now.saturating_sub(ns)),
            TapOrigin::Block(number) => HistoryStart::Number(number),
        });
        Some(self.graph.pass.observers.taps().add((number, left), from, feed, now))
    }

    /// Freezes the history of the node with this planned index for `ns` nanoseconds from now, so
    /// that no stored frame is evicted; 0 ends an earlier freeze. Returns false if this space has
    /// no history of the node.
    pub fn freeze_history(&mut self, number: usize, ns: u64) -> bool {
        let until = if ns == 0 { 0 } else { self.now().saturating_add(ns) };
        let taps = self.graph.pass.observers.existing_taps();
        taps.is_some_and(|taps| taps.freeze(number, until))
    }

    /// Returns true if the node with this planned index can be tapped in this space.
    pub fn can_tap(&self, number: usize) -> bool {
        self.graph.nodes.iter().any(|node| node.planned == number && node.accepts_taps())
    }

    /// Ends the taps of nodes that have left the space.
    pub(super) fn retain_taps(&mut self) {
        let nodes = &self.graph.nodes;
        let is_here =
            |number| nodes.iter().any(|node| node.planned == number && node.accepts_taps());
        self.graph.pass.observers.retain_taps(is_here);
    }
}
