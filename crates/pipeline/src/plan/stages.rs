//! Stages: division of a request's nodes among threads, if that increases throughput. [Th §5.4]
//!
//! Input: a plan whose nodes run in few threads, and the costs on the machine. Output: the nodes
//! that move to other threads, or none if no division is worthwhile. A stage consists of a node and
//! all nodes downstream in the same thread. Each step considers all moves of a stage from the
//! busiest thread to a later or a new thread, and makes the move that minimizes the time per block.
//! A thread is added only if a processor is unused. The search ends when no move gains at least 2
//! %. A crossing costs both threads the time for a ring entry, and the writer a share of a wakeup.
//!
//! The output order is the same as with a single thread. Branches that meet again therefore stay in
//! one thread, and so do sinks that write to the same output. All blocks that enter a thread to be
//! joined there cross the same ring (docs/book/decisions/0097-stages.md).

use super::machine::Machine;
use super::model::{Candidate, Plan, PlannedEdge, Policy, SpaceKind};
use super::replicas::BenefitRequirement;
use crate::format::format_short_duration;
use crate::graph::{FilterUse, Graph, NodeId, Step};
use filter::{FilterKind, ReadDepth, StateScope, Value};

/// Minimum gain in throughput, as a factor, for which a stage moves to another thread.
const STAGE_MOVE_GAIN_MIN: f64 = 1.02;
/// Assumed number of blocks per wakeup of a reader. [Th §5.2.2]
const BLOCKS_PER_WAKEUP: f64 = 32.0;

/// A division of a connected component into stages.
#[derive(Debug, Clone, PartialEq)]
pub struct StageDivision {
    /// The nodes that leave their thread, with the names of their new threads.
    pub moves: Vec<(NodeId, String)>,
    /// The expected time per block from a source, in ns, without this division. The busiest thread
    /// or the number of processors limits it.
    pub before_ns: f64,
    /// The expected time per block from a source, in ns, with this division.
    pub after_ns: f64,
    /// The reason for the division, as a text for the user.
    pub because: String,
}

/// A candidate assignment of one component's nodes to threads, for comparison with others.
#[derive(Clone)]
struct ThreadLayout {
    /// The thread of each node, as an index into the component's threads in the order in which
    /// blocks pass through them. `None` for a node of another component.
    thread: Vec<Option<usize>>,
    threads: usize,
}

/// The search for a division of one connected component into stages. Contains the facts about the
/// component that stay constant while the search assigns nodes to threads.
struct StageSearch<'p> {
    plan: &'p Plan,
    /// The work of every node per block from a source, in ns; 0 for nodes outside threads.
    work: Vec<f64>,
    /// The cost of a ring entry between two threads, in ns, for the writer and for the reader.
    crossing: (f64, f64),
    processors: usize,
    order: Vec<NodeId>,
    /// The sinks and programs among which the order of output must not change.
    outputs: Vec<NodeId>,
}

impl Plan {
    /// Returns the division into stages of the connected component that gains most at the plan's
    /// costs; `None` if the request forbids stages or no division is worthwhile.
    #[must_use]
    pub fn divide_into_stages(&self, machine: &Machine) -> Option<StageDivision> {
        let demand = BenefitRequirement::from_graph(&self.graph)?;
        let parts = self.spaces.iter().map(|space| space.component + 1).max().unwrap_or(0);
        let threads = self.spaces.iter().filter(|space| space.kind == SpaceKind::Thread).count();
        let spare = machine.processors.saturating_sub(threads);
        let found = (0..parts).filter_map(|part| {
            let search = StageSearch::new(self, part, machine)?;
            search.divide_component(spare, demand)
        });
        found.min_by(|one, other| {
            (one.after_ns / one.before_ns).total_cmp(&(other.after_ns / other.before_ns))
        })
    }

    /// Returns true if the request permits stages and has a node that can move to another thread.
    #[must_use]
    pub fn may_have_stages(&self) -> bool {
        let parts = self.spaces.iter().map(|space| space.component + 1).max().unwrap_or(0);
        let machine = Machine::example();
        let divisible = |part| {
            StageSearch::new(self, part, &machine).is_some_and(|search| {
                let layout = search.current_layout();
                search.legal_moves(&layout, 0, true).next().is_some()
            })
        };
        BenefitRequirement::from_graph(&self.graph).is_some() && (0..parts).any(divisible)
    }

    /// Returns this plan with its nodes divided into stages; `None` if there is no such plan.
    pub(super) fn with_stages(&self, stages: &StageDivision, machine: &Machine) -> Option<Self> {
        let mut pinned = self.graph.clone();
        for (id, node) in self.graph.nodes_with_ids().filter(|(_, node)| !node.has_own_process()) {
            let target = stages.moves.iter().find(|(moved, _)| *moved == id);
            let name = target.map_or_else(|| &self.space_of(id).name, |(_, name)| name).clone();
            if let (Step::Filter(used), Some(_)) = (&mut pinned.nodes[id.0].step, node.filter()) {
                used.pin = Some(name);
            }
        }
        pinned.options.set("parallel", Value::Text("no".to_owned()));
        let (reports, refusals) = (self.reports.clone(), self.refusals.clone());
        let mut new = super::plan_completed(pinned, reports, machine, refusals).ok()?;
        new.graph = self.graph.clone();
        for (id, _) in self.graph.nodes_with_ids() {
            let here = new.space_of(id).name.clone();
            let old = &self.placements[id.0];
            let crosses = self.graph.inputs(id).any(|edge| {
                new.placements[edge.from.0].output_space != new.placements[id.0].input_space
            });
            let cost = self.expected_cost(id).unwrap_or(0.0);
            let placement = &mut new.placements[id.0];
            placement.candidates.clone_from(&old.candidates);
            let moved = stages.moves.iter().any(|(moved, _)| *moved == id);
            (placement.because, placement.follows_neighbor) = match moved && crosses {
                true => (stages.because.clone(), false),
                false => (old.because.clone(), old.follows_neighbor),
            };
            if !moved {
                continue;
            }
            placement.candidates.retain(|known| known.space != here);
            for known in
                placement.candidates.iter_mut().filter(|known| known.disadvantage.is_none())
            {
                let lost = known.verdict.is_ok().then(|| {
                    format!("{} a block in that thread", format_short_duration(stages.before_ns))
                });
                known.disadvantage = lost;
            }
            let (verdict, lost) = (Ok(cost), None);
            placement.candidates.push(Candidate { space: here, verdict, disadvantage: lost });
        }
        Some(new)
    }
}

impl<'p> StageSearch<'p> {
    /// Prepares the search for stages in the connected component with number `part`. Returns `None`
    /// if the nodes of the component must stay in their threads.
    fn new(plan: &'p Plan, part: usize, machine: &Machine) -> Option<Self> {
        let graph = &plan.graph;
        let here = |id: &NodeId| plan.space_of(*id).component == part;
        let ids = || graph.nodes_with_ids().map(|(id, _)| id).filter(here);
        let back = graph.edges.iter().zip(&plan.edges);
        let back = back.filter(|(_, planned)| **planned == PlannedEdge::Back);
        let cycles = back.filter(|(edge, _)| here(&edge.from)).count() > 0;
        let copied = plan.replicas.iter().any(|copied| plan.spaces[copied.join].component == part);
        let asked = ids().any(|id| graph.node(id).filter().is_some_and(is_pinned));
        let through = ids().any(|id| {
            graph.node(id).has_own_process()
                && (graph.outputs(id).next().is_some() || graph.inputs(id).next().is_none())
        });
        if cycles || copied || asked || through || plan.choice.policy == Policy::Deepest {
            return None;
        }
        let is_thread = |id: NodeId| plan.space_of(id).kind == SpaceKind::Thread;
        let cost = |id: NodeId| match here(&id) && is_thread(id) {
            true => plan.expected_cost(id).unwrap_or(0.0) * plan.flows.0[id.0],
            false => 0.0,
        };
        let work = graph.nodes_with_ids().map(|(id, _)| cost(id)).collect();
        let costs = &machine.costs;
        Some(Self {
            plan,
            work,
            crossing: (costs.ring + costs.wake / BLOCKS_PER_WAKEUP, costs.ring),
            processors: machine.processors.max(1),
            order: graph.stream_order().into_iter().filter(here).collect(),
            outputs: ids().filter(|id| is_order_sensitive(graph, *id)).collect(),
        })
    }

    /// Returns the assignment of nodes to threads in the current plan. Nodes in the kernel are
    /// assigned to the first thread, which reads their output, and processes to their writer.
    fn current_layout(&self) -> ThreadLayout {
        let mut used: Vec<usize> = Vec::new();
        let place = |id: NodeId| {
            let placement = &self.plan.placements[id.0];
            match self.plan.space_of(id).kind {
                SpaceKind::Process => placement.input_space,
                _ => placement.output_space,
            }
        };
        used.extend(self.order.iter().map(|id| place(*id)));
        used.sort_unstable();
        used.dedup();
        let mut thread = vec![None; self.plan.graph.nodes.len()];
        for id in &self.order {
            thread[id.0] = used.iter().position(|space| *space == place(*id));
        }
        ThreadLayout { thread, threads: used.len() }
    }

    /// Returns the work of each thread per block from a source, in ns.
    fn thread_loads(&self, layout: &ThreadLayout) -> Vec<f64> {
        let mut loads = vec![0.0; layout.threads];
        for (work, thread) in self.work.iter().zip(&layout.thread) {
            thread.iter().for_each(|thread| loads[*thread] += work);
        }
        for (edge, flow) in self.plan.graph.edges.iter().zip(&self.plan.flows.1) {
            let ends = layout.thread[edge.from.0].zip(layout.thread[edge.to.0]);
            if let Some((from, to)) = ends.filter(|(from, to)| from != to) {
                loads[from] += flow * self.crossing.0;
                loads[to] += flow * self.crossing.1;
            }
        }
        loads
    }

    /// Returns a lower bound of the time per block, in ns. `loads` contains the work of each thread
    /// per block. The bound is the largest of these values, or their sum divided by the number of
    /// processors, whichever is larger.
    fn block_time_bound(&self, loads: &[f64]) -> f64 {
        let all: f64 = loads.iter().sum();
        loads.iter().copied().fold(all / self.processors as f64, f64::max)
    }

    /// Divides the component into stages, with up to `spare` additional threads. Returns `None` if
    /// the gain is smaller than the cost of a crossing, or smaller than `demand` requires.
    fn divide_component(&self, spare: usize, demand: BenefitRequirement) -> Option<StageDivision> {
        let begin = self.current_layout();
        let now_ns = self.block_time_bound(&self.thread_loads(&begin));
        let (mut layout, mut then_ns) = (begin.clone(), now_ns);
        loop {
            let loads = self.thread_loads(&layout);
            let busiest = (0..loads.len()).max_by(|a, b| loads[*a].total_cmp(&loads[*b]))?;
            let adds = layout.threads < begin.threads + spare;
            let next = self.legal_moves(&layout, busiest, adds).map(|next| {
                let bound = self.block_time_bound(&self.thread_loads(&next));
                (bound, next)
            });
            let best = next.min_by(|one, other| one.0.total_cmp(&other.0));
            match best.filter(|(bound, _)| bound * STAGE_MOVE_GAIN_MIN <= then_ns) {
                Some((bound, next)) => (then_ns, layout) = (bound, next),
                None => break,
            }
        }
        let used = now_ns / (then_ns * layout.threads as f64);
        // A gain smaller than the cost of a crossing is within the error of the costs.
        let saves = now_ns - then_ns >= self.crossing.0 + self.crossing.1;
        if !saves || then_ns * demand.speedup_min > now_ns || used < demand.utilization_min {
            return None;
        }
        let name = |position: usize| format!("thread{position}");
        let moved = self.order.iter().filter_map(|id| {
            let node = self.plan.graph.node(*id);
            let here = &self.plan.space_of(*id);
            let there = name(layout.thread[id.0]?);
            let changes = here.kind == SpaceKind::Thread && here.name != there;
            (changes && node.filter().is_some()).then_some((*id, there))
        });
        let places: Vec<(NodeId, String)> = moved.collect();
        let loads = self.thread_loads(&layout);
        let each = loads
            .iter()
            .enumerate()
            .map(|(at, ns)| format!("{} in {}", format_short_duration(*ns), name(at)));
        let because = format!(
            "a stage of its own: a block takes {}; {} in one thread",
            each.collect::<Vec<_>>().join(" and "),
            format_short_duration(now_ns)
        );
        (!places.is_empty()).then_some(StageDivision {
            moves: places,
            before_ns: now_ns,
            after_ns: then_ns,
            because,
        })
    }

    /// Returns the permitted layouts in which one stage of the thread `from` has moved to a later
    /// thread. If `adds` is true, the stage may also move to a new thread right after `from`.
    fn legal_moves(
        &self,
        layout: &ThreadLayout,
        from: usize,
        adds: bool,
    ) -> impl Iterator<Item = ThreadLayout> {
        let heads = self.order.clone().into_iter();
        let heads = heads.filter(move |id| layout.thread[id.0] == Some(from));
        let stages = heads.filter_map(move |head| self.movable_stage(layout, head));
        stages.flat_map(move |stage| {
            let later = (from + 1..layout.threads).map({
                let stage = stage.clone();
                move |to| layout.with_stage_moved(&stage, to)
            });
            let new =
                adds.then(|| layout.with_new_thread(from + 1).with_stage_moved(&stage, from + 1));
            let all: Vec<ThreadLayout> =
                later.chain(new).filter(|next| self.is_legal(next)).collect();
            all
        })
    }

    /// Returns the stage that begins with node `head`: this node and all nodes downstream in the
    /// same thread. Returns `None` if one of them must stay in its thread.
    fn movable_stage(&self, layout: &ThreadLayout, head: NodeId) -> Option<Vec<NodeId>> {
        let graph = &self.plan.graph;
        graph.node(head).filter()?;
        if graph.node(head).inside.is_some() {
            return None;
        }
        let thread = layout.thread[head.0];
        let outputs = |id: NodeId| graph.outputs(id).filter(|edge| !edge.back).map(|edge| edge.to);
        let all = crate::graph::reachable(&[head], |id| {
            let near = outputs(id).filter(|to| layout.thread[to.0] == thread);
            near.chain(graph.operands(id)).collect::<Vec<_>>()
        });
        all.iter().all(|id| self.may_move(*id)).then_some(all)
    }

    fn may_move(&self, id: NodeId) -> bool {
        let node = self.plan.graph.node(id);
        if node.has_own_process() {
            return true;
        }
        if self.plan.space_of(id).kind != SpaceKind::Thread {
            return false;
        }
        let Some(used) = node.filter() else { return true };
        let pinned = matches!(used.description.state.scope, StateScope::Pinned(_));
        let ahead = self.plan.sources_evaluating(id).next().is_some();
        node.kind() != Some(FilterKind::Source) && !pinned && !ahead
    }

    /// Returns true if blocks cross between threads in one direction, and joins get them in order.
    fn is_legal(&self, layout: &ThreadLayout) -> bool {
        let graph = &self.plan.graph;
        let mut entries: Vec<Vec<NodeId>> = vec![Vec::new(); graph.nodes.len()];
        for id in &self.order {
            let Some(here) = layout.thread[id.0] else { continue };
            let inputs = graph.inputs(*id).filter(|edge| !edge.back).map(|edge| edge.from);
            let inputs: Vec<NodeId> = inputs.collect();
            let mut own: Vec<NodeId> = Vec::new();
            let mut before = Vec::new();
            for input in &inputs {
                match layout.thread[input.0] {
                    Some(there) if there > here => return false,
                    Some(there) if there == here => own.extend(&entries[input.0]),
                    there => {
                        own.push(*id);
                        before.push(there);
                    }
                }
            }
            let one_ring = before.windows(2).all(|pair| pair[0] == pair[1]);
            own.sort_unstable();
            own.dedup();
            if inputs.len() > 1 && here > 0 && (own.len() > 1 || !one_ring) {
                return false;
            }
            entries[id.0] = own;
        }
        let Some(first) = self.outputs.first().filter(|_| self.outputs.len() > 1) else {
            return true;
        };
        let here = layout.thread[first.0];
        let mut own: Vec<NodeId> =
            self.outputs.iter().flat_map(|id| entries[id.0].iter().copied()).collect();
        own.sort_unstable();
        own.dedup();
        self.outputs.iter().all(|id| layout.thread[id.0] == here)
            && (here == Some(0) || own.len() < 2)
    }
}

impl ThreadLayout {
    /// Returns the layout with the nodes of `stage` moved to thread `to`.
    fn with_stage_moved(&self, stage: &[NodeId], to: usize) -> Self {
        let mut next = self.clone();
        stage.iter().for_each(|id| next.thread[id.0] = Some(to));
        next
    }

    /// Returns the layout with an empty thread inserted at index `at`.
    fn with_new_thread(&self, at: usize) -> Self {
        let shifted = |thread: &Option<usize>| thread.map(|n| if n >= at { n + 1 } else { n });
        Self { thread: self.thread.iter().map(shifted).collect(), threads: self.threads + 1 }
    }
}

/// Returns true if the request determines the thread of the filter.
fn is_pinned(used: &FilterUse) -> bool {
    used.pin.as_deref().is_some_and(|pin| pin.starts_with("thread"))
}

/// Returns true for a sink or program whose output must stay in order with that of other nodes.
fn is_order_sensitive(graph: &Graph, id: NodeId) -> bool {
    let node = graph.node(id);
    let used = node.filter();
    let reads = used.is_some_and(|used| used.effect().reads != ReadDepth::Nothing);
    let own_file = used.is_some_and(|used| used.endpoint.writes_files);
    let last = node.kind() == Some(FilterKind::Sink) || node.has_own_process();
    last && (reads || node.has_own_process()) && !own_file
}
