//! The planner: decides where each node of a checked graph runs on a machine, and how each edge
//! transfers blocks.
//!
//! Three pure steps, named as in the paper [SL §7.1]: **complete** adds a sink after every filter
//! whose output is not used, **discover** determines for every node which spaces can run it and why
//! the others cannot, and **select** chooses one of these spaces. The machine is a value, so plans
//! can be tested as text. Blocks pass through the spaces in one direction, from source to sink.
//!
//! A **process** (CONTRACT 27) is a space with one node. The last thread upstream writes the
//! process's input, and the next thread reads its output. They are different threads, so that no
//! thread waits for itself.
//!
//! After these steps, a chain of filters may get **replicas** that share its work
//! ([`ReplicaChain`]), and a source may evaluate the first filter **ahead**, in the kernel
//! ([`Pushdown`]).

mod alternatives;
mod batch;
mod complete;
mod context;
mod costs;
mod discover;
mod edges;
mod identity;
mod justify;
mod kernel;
mod latency;
mod machine;
mod model;
mod moves;
mod persist;
mod processors;
mod program;
mod pushdown;
mod replicas;
mod ring;
pub(crate) mod ring_size;
mod select;
pub(crate) mod signal;
mod stages;

pub use batch::BatchSize;
pub use complete::complete_with_sinks;
pub use costs::{ArcShare, COSTS_VERSION, Costs, FilterCost};
pub use kernel::programs_for_nodes;
pub use machine::{Kernel, Machine};
pub use model::{
    Candidate, DelayCause, KernelRefusal, LatencyPlan, Placement, PlacementChoice, Plan,
    PlannedEdge, PlannedSpace, Policy, ReplicaChain, ReplicaRefusal, SpaceKind, Unplaceable,
};
pub use moves::{MovePeriod, may_enter_kernel};
pub use persist::{PersistedNode, PersistedPlan};
pub use processors::{Processors, ThreadPlacement};
pub use program::{ExitEdge, KernelRing, Program, ProgramStep};
pub use pushdown::Pushdown;
pub(crate) use replicas::is_valid_parallel_value;
pub use replicas::{REPLICAS_MAX, RuntimeChanges};
pub use ring::RingPlan;
pub use stages::StageDivision;

use crate::graph::{Graph, NodeId};
use crate::registry::Registry;

/// Plans a checked graph for a machine. Fails if no space can run a node.
pub fn plan(graph: Graph, registry: &dyn Registry, machine: &Machine) -> Result<Plan, Unplaceable> {
    let (graph, reports) = complete_with_sinks(graph, registry);
    plan_completed(graph, reports, machine, Vec::new())
}

/// Plans a graph in which every path ends at a sink.
fn plan_completed(
    graph: Graph,
    reports: Vec<NodeId>,
    machine: &Machine,
    refusals: Vec<KernelRefusal>,
) -> Result<Plan, Unplaceable> {
    let policy = match graph.options.text("policy") {
        Some("deepest") => Policy::Deepest,
        // The other goals determine how many threads share the work.
        _ => Policy::Cost,
    };
    let discovery = discover::discover_spaces(&graph, machine, &refusals);
    let selection = select::select_placement(&graph, &discovery, machine, policy)?;
    let (edges, ring) = edges::plan_edges(&graph, &selection, &discovery.spaces, machine);
    let costs = alternatives::describe_alternatives(&graph, &discovery, &selection, machine);
    let (all, components) = (discovery.spaces.clone(), discovery.components.clone());
    let flows = discovery.flows.clone();
    let (spaces, mut placements) = justify::explain_placements(discovery, &selection, &graph);
    alternatives::store_candidate_texts(&mut placements, &costs, &all, &components);
    let programs =
        kernel::plan_programs(&graph, &spaces, &placements, &KernelRing::from_ring_plan(&ring));
    let mut pushdowns = pushdown::find_pushdowns(&graph);
    pushdowns
        .retain(|pushdown| spaces[placements[pushdown.source.0].space].kind != SpaceKind::Kernel);
    let choice = selection.choice;
    let (replicas, replica_refusals) = (Vec::new(), Vec::new());
    let batch = BatchSize::for_request(&graph);
    let mut plan = Plan {
        graph,
        spaces,
        placements,
        edges,
        reports,
        pushdowns,
        programs,
        refusals,
        flows,
        replicas,
        replica_refusals,
        batch,
        latency: None,
        choice,
    };
    replicas::spread_work(&mut plan, machine);
    latency::distribute_latency(&mut plan);
    ring_size::apply_ring_option(&mut plan);
    signal::apply_signal_option(&mut plan);
    Ok(plan)
}

impl Plan {
    /// Plans the request again, for the current state of the machine.
    pub fn replan(&self, machine: &Machine) -> Result<Self, Unplaceable> {
        plan_completed(self.graph.clone(), self.reports.clone(), machine, self.refusals.clone())
    }

    /// Plans the request again after the kernel refused nodes of this plan. The new plan places
    /// them in the next best spaces. Returns `None` if this plan already takes the refusals into
    /// account.
    pub fn replan_after_refusals(
        &self,
        machine: &Machine,
        refusals: &[KernelRefusal],
    ) -> Option<Result<Self, Unplaceable>> {
        let known = |new: &&KernelRefusal| !self.refusals.iter().any(|old| old.node == new.node);
        let new: Vec<KernelRefusal> = refusals.iter().filter(known).cloned().collect();
        if new.is_empty() {
            return None;
        }
        let refusals = [&self.refusals[..], &new].concat();
        Some(plan_completed(self.graph.clone(), self.reports.clone(), machine, refusals))
    }
}
