//! Moves that a running path may make by itself between the kernel and threads.
//!
//! In: a plan. Out: when it may move filters, which ones, or the reason that none may move. The
//! planner assumes that every block takes every arc until a run has measured the shares, so a path
//! measures them at its start and corrects its own placement.
//! docs/book/decisions/0091-first-seconds.md

use super::costs::{is_share_unknown, takes};
use super::model::{Plan, Policy, SpaceKind};
use crate::graph::{Graph, NodeId, Use};
use filter::{FilterKind, StateScope};

/// The name of the kernel's space.
const KERNEL: &str = "kernel";

/// The time in which a path may move filters.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum MovePeriod {
    /// Never.
    Never,
    /// In the first seconds of traffic (the default).
    Start,
    /// As long as it runs (`--adapt`).
    Always,
}

impl Plan {
    /// Returns the period in which the path may move filters by itself.
    #[must_use]
    pub fn move_period(&self) -> MovePeriod {
        let options = &self.graph.options;
        if options.flag("adapt") {
            MovePeriod::Always
        } else if options.flag("no-adapt") || self.movable().is_empty() {
            MovePeriod::Never
        } else {
            MovePeriod::Start
        }
    }

    /// Returns the filters that another share of matches could move between the kernel and a
    /// thread; empty if the placement was asked for, or if nothing about the shares is unknown.
    ///
    /// A part of the graph qualifies if one kernel program observes frames for it: the source stays
    /// where it began, and two programs are not exchanged at one moment.
    #[must_use]
    pub fn movable(&self) -> Vec<NodeId> {
        let graph = &self.graph;
        if self.choice.policy == Policy::Deepest
            || !self.replicas.is_empty()
            || !graph.edges.iter().any(|edge| is_share_unknown(graph, edge))
        {
            return Vec::new();
        }
        let parts = self.spaces.iter().map(|space| space.part + 1).max().unwrap_or(0);
        let one_program = |part: usize| {
            let mut programs = self.programs.iter().filter(|program| {
                program.sources.iter().any(|source| self.space_of(*source).part == part)
            });
            match (programs.next(), programs.next()) {
                (Some(program), None) => !program.sources.iter().any(|id| takes(graph, *id)),
                _ => false,
            }
        };
        let parts: Vec<bool> = (0..parts).map(one_program).collect();
        let movable = |id: &NodeId| parts[self.space_of(*id).part] && self.is_movable(*id);
        (0..graph.nodes.len()).map(NodeId).filter(movable).collect()
    }

    /// Returns the sinks that write files in a thread that reads a source, unless they were placed
    /// there: each gets a thread of its own once a write holds up the reader.
    #[must_use]
    pub fn sinks_with_readers(&self) -> Vec<NodeId> {
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
            || matches!(used.description.state.keeps, StateScope::Pinned(_))
        {
            return false;
        }
        match here.kind {
            SpaceKind::Kernel => {
                // The kernel won although all blocks were taken to leave it, so it wins for fewer.
                let known = self.flows.1.iter().any(|flow| *flow < 1.0);
                known && self.can_run(id, |space| space != KERNEL)
            }
            SpaceKind::Thread => {
                may_enter_kernel(&self.graph, id) && self.can_run(id, |space| space == KERNEL)
            }
            SpaceKind::Process => false,
        }
    }

    fn can_run(&self, id: NodeId, space: impl Fn(&str) -> bool) -> bool {
        let candidates = self.placements[id.0].candidates.iter();
        candidates.filter(|known| space(&known.space)).any(|known| known.verdict.is_ok())
    }
}

/// Returns false if the filter decides by what it keeps of earlier blocks, and has no state with
/// which it could go on: the kernel decides its first blocks before the thread has decided the last
/// ones.
#[must_use]
pub fn may_enter_kernel(graph: &Graph, id: NodeId) -> bool {
    let node = graph.node(id);
    let stuck = |used: &Use| {
        let state = &used.description.state;
        state.keeps == StateScope::Private && state.kernel_start.is_none()
    };
    node.kind() == Some(FilterKind::Statistics) || !node.filter().is_some_and(stuck)
}
