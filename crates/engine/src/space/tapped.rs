//! Who looks at what leaves the nodes of a space ([`crate::tap`]): begun between two passes, ended
//! when the graph changes.

use super::Space;
use super::node::Part;
use crate::tap::{Began, Feed, Since};
use endpoint::history::From;

impl Space {
    /// Remembers what the sources here give, in so many bytes for each.
    pub(crate) fn remember(&mut self, bytes: usize) {
        let sources = self.nodes.iter().filter(|node| matches!(node.part, Part::Source(_)));
        let sources: Vec<usize> = sources.map(|node| node.planned).collect();
        let taps = self.turn.taps.get_or_insert_default();
        sources.into_iter().for_each(|node| taps.remember(node, bytes));
    }

    /// Has a tap look at what leaves the node of this number; none: it does not run here.
    pub(crate) fn tap(&mut self, number: usize, since: Option<Since>, feed: Feed) -> Option<Began> {
        let node = self.nodes.iter().find(|node| node.planned == number && node.gives())?;
        let (left, now) = (node.flow.routed.blocks, self.now());
        let from = since.map(|since| match since {
            Since::Oldest => From::Oldest,
            Since::Ago(ns) => From::Time(now.saturating_sub(ns)),
            Since::Block(number) => From::Number(number),
        });
        Some(self.turn.taps.get_or_insert_default().begin((number, left), from, feed, now))
    }

    /// Whether the node of this number gives out blocks here.
    pub(crate) fn can_tap(&self, number: usize) -> bool {
        self.nodes.iter().any(|node| node.planned == number && node.gives())
    }

    /// Ends taps whose nodes are here no more.
    pub(super) fn keep_taps(&mut self) {
        let Some(taps) = &mut self.turn.taps else { return };
        let nodes = &self.nodes;
        taps.stay(|number| nodes.iter().any(|node| node.planned == number && node.gives()));
        if taps.is_empty() {
            self.turn.taps = None;
        }
    }
}
