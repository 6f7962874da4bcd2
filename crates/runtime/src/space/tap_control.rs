//! Attachment of taps to the nodes of a space, and of histories, which store past output for taps.

use super::Space;
use super::arc::NodeId;
use super::memory::Frames;
use super::node::{Node, Operator};
use super::tap::TapFeed;
use super::tap::{TapOrigin, TapStart};
use endpoint::history::HistoryStart;
use filter::BatchMemory;

impl Space {
    /// Stores a history of each source's output, of at most `bytes` bytes each, for later taps.
    pub fn start_source_histories(&mut self, bytes: usize) {
        let sources =
            self.graph.nodes.iter().filter(|node| matches!(node.operator, Operator::Source(_)));
        let sources: Vec<usize> = sources.map(|node| node.number).collect();
        let taps = self.graph.pass.observers.get_or_create_taps();
        sources.into_iter().for_each(|node| taps.start_history(node, bytes));
    }

    /// Adds a tap to the node with number `number`. If `since` is given and the space has a history
    /// of the node's output, the tap begins at `since`; otherwise, it begins now. Returns `None` if
    /// the node's output cannot be tapped in this space.
    pub fn add_tap(
        &mut self,
        number: usize,
        since: Option<TapOrigin>,
        feed: TapFeed,
    ) -> Option<TapStart> {
        let node =
            self.graph.nodes.iter().find(|node| node.number == number && node.accepts_taps())?;
        let (left, now) = (node.flow.routed.blocks, self.now());
        let lost = self.blocks_lost_before_taps(number);
        let from = since.map(|since| match since {
            TapOrigin::Oldest => HistoryStart::Oldest,
            TapOrigin::Ago(ns) => HistoryStart::Time(now.saturating_sub(ns)),
            TapOrigin::Block(number) => HistoryStart::Number(number),
        });
        let taps = self.graph.pass.observers.get_or_create_taps();
        taps.count_lost_blocks(&[number], lost);
        Some(taps.add_tap((number, left), from, feed, now))
    }

    /// Returns the number of blocks that left the kernel node with number `number` and were lost
    /// before they reached the taps of this node.
    fn blocks_lost_before_taps(&self, number: usize) -> u64 {
        let lost = self.graph.nodes.iter().filter_map(|node| {
            let Operator::Source(part) = &node.operator else { return None };
            let tap = part.taps.iter().position(|nodes| nodes.contains(&number))?;
            Some(part.source.lost_on_arc(node.arcs.len() + tap))
        });
        lost.sum()
    }

    /// Passes blocks that left a node in the kernel to the taps of that node, and ends the pass.
    /// The source at node `at` has read the blocks, which are in `room`; `tap` is the index of the
    /// tap at this source. No counter of the path includes these blocks.
    pub(super) fn feed_taps(
        &mut self,
        (at, intake, tap): (NodeId, usize, usize),
        room: BatchMemory,
    ) -> BatchMemory {
        let graph = &mut self.graph;
        let nodes = &graph.nodes;
        let Operator::Source(part) = &nodes[at].operator else { return room };
        let lost = part.source.lost_on_arc(nodes[at].arcs.len() + tap);
        let numbers = part.taps.get(tap).map_or(&[][..], Vec::as_slice);
        let pool = &graph.intakes[intake];
        let batch = Frames::new(|_, frame| pool.segment(frame)).into_batch(room);
        if let Some(taps) = graph.pass.observers.existing_taps() {
            taps.count_lost_blocks(numbers, lost);
            let here = |node: &&Node| node.accepts_taps() && numbers.contains(&node.number);
            for node in nodes.iter().filter(here) {
                let selected = node.arcs.iter().map(|arc| arc.wanted.select_lanes(&batch));
                taps.feed_from_kernel(node, &batch, selected.fold(0, |all, one| all | one));
            }
        }
        let room = batch.into_memory();
        self.end_pass();
        room
    }

    /// Freezes the history of the node with number `number` for `ns` nanoseconds from now, so that
    /// no stored frame is evicted; 0 ends an earlier freeze. Returns false if this space has no
    /// history of the node.
    pub fn freeze_history(&mut self, number: usize, ns: u64) -> bool {
        let until = if ns == 0 { 0 } else { self.now().saturating_add(ns) };
        let taps = self.graph.pass.observers.existing_taps();
        taps.is_some_and(|taps| taps.freeze(number, until))
    }

    /// Returns true if the node with number `number` can be tapped in this space.
    pub fn can_tap(&self, number: usize) -> bool {
        self.graph.nodes.iter().any(|node| node.number == number && node.accepts_taps())
    }

    /// Ends the taps of nodes that have left the space.
    pub(super) fn retain_taps(&mut self) {
        let nodes = &self.graph.nodes;
        let is_here =
            |number| nodes.iter().any(|node| node.number == number && node.accepts_taps());
        self.graph.pass.observers.retain_taps(is_here);
    }
}
