//! Moves of filters between the kernel and threads that a running path makes on its own.
//!
//! The plan determines when the path may move filters, and which ones. Until a run has measured the
//! fraction of blocks on each arc, the planner assumes that every block takes every arc. A path
//! therefore measures these shares when it starts, and corrects its own placement.
//! docs/book/decisions/0091-first-seconds.md

use super::costs::{is_share_unknown, takes_frames_from_host};
use super::model::{Plan, Policy, SpaceKind};
use crate::graph::{FilterUse, Graph, NodeId};
use filter::{FilterKind, StateScope};

/// The name of the kernel's space.
const KERNEL_SPACE: &str = "kernel";

/// The period in which a path may move filters on its own.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum MovePeriod {
    /// The path never moves filters.
    Never,
    /// The path may move filters in the first seconds of traffic (the default).
    Start,
    /// The path may move filters for as long as it runs (`--adapt`).
    Always,
}

impl Plan {
    /// Returns the period in which the path may move filters on its own.
    #[must_use]
    pub fn move_period(&self) -> MovePeriod {
        let options = &self.graph.options;
        if options.flag("adapt") {
            MovePeriod::Always
        } else if options.flag("no-adapt") || self.movable_filters().is_empty() {
            MovePeriod::Never
        } else {
            MovePeriod::Start
        }
    }

    /// Returns the filters that a change in the measured shares could move between the kernel and a
    /// thread. Returns an empty list if the policy is [`Policy::Deepest`], if the plan has
    /// replicas, or if the shares of all arcs are known without a measurement.
    ///
    /// A connected component qualifies only if exactly one kernel program observes frames for it.
    /// Then the source stays in its space, and two programs never have to be replaced at the same
    /// time.
    #[must_use]
    pub fn movable_filters(&self) -> Vec<NodeId> {
        let graph = &self.graph;
        if self.choice.policy == Policy::Deepest
            || !self.replicas.is_empty()
            || !graph.edges.iter().any(|edge| is_share_unknown(graph, edge))
        {
            return Vec::new();
        }
        let components = self.spaces.iter().map(|space| space.component + 1).max().unwrap_or(0);
        let one_program = |component: usize| {
            let mut programs = self.programs.iter().filter(|program| {
                program.sources.iter().any(|source| self.space_of(*source).component == component)
            });
            match (programs.next(), programs.next()) {
                (Some(program), None) => {
                    !program.sources.iter().any(|id| takes_frames_from_host(graph, *id))
                }
                _ => false,
            }
        };
        let components: Vec<bool> = (0..components).map(one_program).collect();
        let movable =
            |id: &NodeId| components[self.space_of(*id).component] && self.is_movable(*id);
        (0..graph.nodes.len()).map(NodeId).filter(movable).collect()
    }

    /// Returns the unpinned sinks that write files in the thread of a source. The path moves such a
    /// sink to a thread of its own as soon as a write delays the reader. Returns an empty list if
    /// `--no-adapt` is set, or if the plan has replicas.
    #[must_use]
    pub fn sinks_in_reader_threads(&self) -> Vec<NodeId> {
        if self.graph.options.flag("no-adapt") || !self.replicas.is_empty() {
            return Vec::new();
        }
        let kind = |id: NodeId| self.graph.node(id).kind();
        let ids = || (0..self.graph.nodes.len()).map(NodeId);
        let sources = || ids().filter(|id| kind(*id) == Some(FilterKind::Source));
        let reads = |sink: NodeId| {
            let space = self.placements[sink.0].space;
            sources().any(|id| self.placements[id.0].output_space == space)
        };
        let writes = |id: &NodeId| {
            let used = self.graph.node(*id).filter();
            let writes = used.is_some_and(|used| used.endpoint.writes_files && used.pin.is_none());
            writes && kind(*id) == Some(FilterKind::Sink) && reads(*id)
        };
        ids().filter(writes).collect()
    }

    fn is_movable(&self, id: NodeId) -> bool {
        let (node, here) = (self.graph.node(id), self.space_of(id));
        let Some(used) = node.filter().filter(|used| used.pin.is_none()) else { return false };
        let ends = [FilterKind::Source, FilterKind::Sink];
        if node.kind().is_none_or(|kind| ends.contains(&kind))
            || matches!(used.description.state.scope, StateScope::Pinned(_))
        {
            return false;
        }
        match here.kind {
            SpaceKind::Kernel => {
                // The kernel was the better choice even under the assumption that all blocks leave
                // it, so it is also the better choice for fewer blocks.
                let known = self.flows.1.iter().any(|flow| *flow < 1.0);
                known && self.can_run_in(id, |space| space != KERNEL_SPACE)
            }
            SpaceKind::Thread => {
                may_enter_kernel(&self.graph, id)
                    && self.can_run_in(id, |space| space == KERNEL_SPACE)
            }
            SpaceKind::Process => false,
        }
    }

    fn can_run_in(&self, id: NodeId, space: impl Fn(&str) -> bool) -> bool {
        let candidates = self.placements[id.0].candidates.iter();
        candidates.filter(|known| space(&known.space)).any(|known| known.verdict.is_ok())
    }
}

/// Returns true if a running filter may move into the kernel. Returns false if its answers depend
/// on earlier blocks and its state cannot be transferred, because the kernel begins to process
/// blocks before the thread has finished its last batch.
#[must_use]
pub fn may_enter_kernel(graph: &Graph, id: NodeId) -> bool {
    let node = graph.node(id);
    let stuck = |used: &FilterUse| {
        let state = &used.description.state;
        state.scope == StateScope::Private && state.twin_start_state.is_none()
    };
    node.kind() == Some(FilterKind::Statistics) || !node.filter().is_some_and(stuck)
}
