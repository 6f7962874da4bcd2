//! Matching of nodes and edges across a change, and detection of the spaces whose content differs.
//!
//! Two nodes are the same if they represent the same filter in the request's text, with the same
//! arguments. Placement does not matter, and neither do arguments that can be set in a running
//! filter. Two edges are the same if they connect the same nodes, select the same classes, and lead
//! from and to the same spaces.

use super::outcome::ChangeError;
use crate::numbering::{PlanNumbers, replica_ring_count};
use crate::path::origins::PathOrigins;
use crate::path::running_path::{PathState, RunningComponent};
use filter::{FilterKind, StateScope};
use pipeline::Registry;
use pipeline::edit::EditResult;
use pipeline::graph::{Edge, Graph, Node, NodeId, Step};
use pipeline::language::Span;
use pipeline::plan::{
    KernelRefusal, Machine, Plan, PlannedEdge, PlannedSpace, SpaceKind, Unplaceable,
    may_enter_kernel, plan,
};
use std::collections::{HashMap, HashSet};

/// The reason that explanations give for a filter that a change leaves in its space.
const KEPT_IN_SPACE_REASON: &str = "a change of the path leaves it where it runs";

/// A new plan of a running path, whose nodes and edges are matched with those of the current plan.
pub(super) struct MatchedPlan {
    pub(super) plan: Plan,
    pub(super) ids: PlanNumbers,
    /// Numbers of the nodes that exist in both the current and the new plan.
    pub(super) kept: HashSet<usize>,
    /// Numbers of surviving nodes whose filter is replaced by a new filter that inherits its state.
    pub(super) renewed: HashSet<usize>,
    /// Node numbers of the filters that move to another process and take their state with them.
    pub(super) crossed: HashSet<usize>,
    /// Edges of the current plan that leave the kernel: the number of the edge, and the index of
    /// the same edge in the new plan.
    pub(super) exit_edges: HashMap<usize, usize>,
    /// Connected components whose kernel program the change replaces.
    pub(super) replaced_programs: HashSet<usize>,
    /// Names of all sources that the path has or had.
    pub(super) origins: PathOrigins,
}

impl MatchedPlan {
    /// Plans the new request of a running path. Existing nodes keep their spaces if possible. A new
    /// node runs in a thread, unless the request pins it to the kernel or a surviving node
    /// downstream of it runs in the kernel. `refused` lists the kernel's refusals in earlier
    /// attempts.
    pub(super) fn plan_and_match(
        graph: &Graph,
        edited: &EditResult,
        state: &PathState,
        (registry, machine, refused): (&dyn Registry, &Machine, &[KernelRefusal]),
    ) -> Result<Self, Unplaceable> {
        let stays: [&dyn Fn(NodeId) -> bool; 3] = [
            &|_| true,
            // A node in the kernel may move, because a filter is placed together with its
            // predecessor.
            &|old| state.plan.space_of(old).kind != SpaceKind::Kernel,
            &|_| false,
        ];
        let mut last = None;
        for stays in stays {
            let plan =
                match plan(pin_surviving_nodes(graph, edited, state, stays), registry, machine) {
                    Ok(plan) => plan,
                    Err(why) => {
                        last = Some(why);
                        continue;
                    }
                };
            let plan = match refused.is_empty() {
                true => plan,
                false => match plan.replan_after_refusals(machine, refused) {
                    Some(Err(why)) => {
                        last = Some(why);
                        continue;
                    }
                    Some(Ok(again)) => again,
                    None => plan,
                },
            };
            let mut matched = Self::match_edited_plan(plan, edited, state);
            if let Some(Ok(again)) = matched.plan_new_nodes_in_threads(graph, machine, refused) {
                matched = Self::match_edited_plan(again, edited, state);
            }
            for (new, asked) in matched.plan.graph.nodes.iter_mut().zip(&graph.nodes) {
                if let (Step::Filter(new), Step::Filter(asked)) = (&mut new.step, &asked.step) {
                    (new.pin, new.pin_reason) = (asked.pin.clone(), asked.pin_reason);
                }
            }
            return Ok(matched);
        }
        match last {
            Some(why) => Err(why),
            None => plan(graph.clone(), registry, machine)
                .map(|plan| Self::match_edited_plan(plan, edited, state)),
        }
    }

    /// Plans the request again. This time, new nodes run in threads, except those that the request
    /// pins to the kernel. Returns `None` if no new node can move from the kernel to a thread.
    fn plan_new_nodes_in_threads(
        &self,
        asked: &Graph,
        machine: &Machine,
        refused: &[KernelRefusal],
    ) -> Option<Result<Plan, Unplaceable>> {
        let graph = &self.plan.graph;
        let new = |id: &NodeId| {
            let kernel = self.plan.space_of(*id).kind == SpaceKind::Kernel;
            let pin = asked.nodes.get(id.0).and_then(|node| node.filter()?.pin.clone());
            kernel && pin.is_none() && !self.kept.contains(&self.ids.nodes[id.0])
        };
        let why = || "a new filter runs in a thread until it is moved".to_owned();
        let new = (0..graph.nodes.len()).map(NodeId).filter(new);
        let mut all = refused.to_vec();
        all.extend(new.map(|node| KernelRefusal { node, why: why() }));
        if all.len() == refused.len() {
            None
        } else {
            self.plan.replan_after_refusals(machine, &all)
        }
    }

    /// Matches a new plan of the same graph, which differs from the running plan in placements or
    /// replicas.
    pub(super) fn match_reshaped_plan(plan: Plan, state: &PathState) -> Self {
        let same = |id: NodeId, _: &[usize]| (id.0 < state.ids.nodes.len()).then_some(id);
        Self::assign_numbers(plan, (&same, None), state)
    }

    fn match_edited_plan(plan: Plan, edited: &EditResult, state: &PathState) -> Self {
        let (graph, old) = (plan.graph.clone(), &state.plan);
        let same = |id: NodeId, nodes: &[usize]| {
            let node = graph.node(id);
            let same = match &node.step {
                // The old node is the default sink that the plan added at an open end.
                Step::Filter(_) if node.span.start == node.span.end => {
                    let before = graph.inputs(id).next().map(|edge| nodes[edge.from.0]);
                    old.graph.nodes_with_ids().find(|(old_id, other)| {
                        let from = old.graph.inputs(*old_id).next().map(|edge| edge.from.0);
                        other.span.start == other.span.end
                            && other.name() == node.name()
                            && from.map(|from| state.ids.nodes[from]) == before
                    })
                }
                Step::Section(_) | Step::Merge => {
                    let found = first_input_node(&graph, id)
                        .and_then(|first| matching_old_node(&graph, first, edited, &old.graph));
                    old.graph.nodes_with_ids().find(|(old_id, other)| {
                        other.name() == node.name()
                            && found.is_some()
                            && first_input_node(&old.graph, *old_id) == found
                    })
                }
                _ => matching_old_node(&graph, id, edited, &old.graph)
                    .map(|at| (at, old.graph.node(at))),
            };
            same.map(|(at, _)| at)
        };
        Self::assign_numbers(plan, (&same, edited.upgraded), state)
    }

    /// Assigns numbers to the nodes and edges of a new plan. Nodes and edges that match the running
    /// path keep their numbers; all others get new numbers. `same` returns the old node that
    /// corresponds to a new node. It is also given the numbers of the new nodes with lower indices.
    /// `upgraded` is the span of a filter that a new version replaces with the same state, if there
    /// is one.
    fn assign_numbers(
        plan: Plan,
        (same, upgraded): (OldNodeLookup<'_>, Option<Span>),
        state: &PathState,
    ) -> Self {
        let (old, mut next) = (&state.plan, state.ids.next_free);
        let mut kept = HashSet::new();
        let mut nodes = Vec::new();
        for (id, _) in plan.graph.nodes_with_ids() {
            let same = same(id, &nodes);
            let number = same.map(|at| state.ids.nodes[at.0]).filter(|n| !kept.contains(n));
            nodes.push(number.unwrap_or(next.0));
            match number {
                Some(number) => drop(kept.insert(number)),
                None => next.0 += 1,
            }
        }
        // The state of replicas does not survive a change: a replicated chain is removed and added
        // again as a whole.
        for (plan, nodes) in [(&plan, &nodes), (old, &state.ids.nodes)] {
            let has_replicas = plan.replicas.iter().flat_map(|copied| &copied.nodes);
            has_replicas.for_each(|id| {
                kept.remove(&nodes[id.0]);
            });
        }
        let numbering = state.ids.numbering.for_next_plan(&plan.graph, &nodes);
        let mut ids = PlanNumbers {
            nodes,
            edges: Vec::new(),
            first_replica_ring: 0,
            numbering,
            next_free: next,
        };
        let mut free: Vec<(EdgeIdentity, usize)> = (0..old.graph.edges.len())
            .map(|edge| (edge_identity(old, &state.ids, edge), state.ids.edges[edge]))
            .collect();
        for edge in 0..plan.graph.edges.len() {
            let wanted = edge_identity(&plan, &ids, edge);
            let number = match free.iter().position(|(known, _)| *known == wanted) {
                Some(at) => free.remove(at).1,
                None => {
                    ids.next_free.1 += 1;
                    ids.next_free.1 - 1
                }
            };
            ids.edges.push(number);
        }
        ids.first_replica_ring = ids.next_free.1;
        ids.next_free.1 += replica_ring_count(&plan);
        let renewed = upgraded.and_then(|span| {
            // A section and its first operand begin at the same text position, so only filters are
            // considered.
            let is = |node: &Node| node.span.start == span.start && node.filter().is_some();
            let found = plan.graph.nodes_with_ids().find(|(_, node)| is(node));
            found.map(|(id, _)| ids.nodes[id.0])
        });
        // A filter that cannot be changed in place passes its state to a new filter, which has the
        // new arguments or the setting that follows from its new position in the plan.
        let set = |(id, node): (NodeId, &Node)| {
            let number = kept.get(&ids.nodes[id.0])?;
            let at = NodeId(state.ids.nodes.iter().position(|old| old == number)?);
            let before = old.graph.node(at).filter()?;
            let differs = node.filter()?.has_other_writable_values(before)
                || context_setting(&plan, id) != context_setting(old, at);
            differs.then_some(*number)
        };
        let set: HashSet<usize> = plan.graph.nodes_with_ids().filter_map(set).collect();
        let renewed: HashSet<usize> = renewed.into_iter().chain(set.iter().copied()).collect();
        let apart = |plan: &Plan, ids: &[usize]| -> HashSet<usize> {
            let apart = plan.graph.nodes_with_ids().filter(|(_, node)| node.is_untrusted());
            apart.map(|(id, _)| ids[id.0]).collect()
        };
        let (is, was) = (apart(&plan, &ids.nodes), apart(old, &state.ids.nodes));
        let crosses = |number: &usize| {
            is.contains(number) != was.contains(number)
                || is.contains(number) && renewed.contains(number)
        };
        let crossed: HashSet<usize> = kept.iter().copied().filter(crosses).collect();
        kept.retain(|number| !crossed.contains(number));
        let renewed = renewed.difference(&crossed).copied().collect();
        let mut origins = state.origins.clone();
        origins.add_sources(&plan.graph, &ids.nodes);
        let exit_edges = exit_edges(state, &plan, &ids);
        let replaced_programs = (0..state.parts.len()).filter(|part| {
            let is = kernel_node_and_edge_numbers(&plan, &ids, *part);
            is != kernel_node_and_edge_numbers(&state.plan, &state.ids, *part)
                || is.0.iter().any(|number| set.contains(number))
                || !keeps_all_exits(&exit_edges, &state.parts[*part])
        });
        let replaced_programs = replaced_programs.collect();
        Self { plan, ids, kept, renewed, crossed, exit_edges, replaced_programs, origins }
    }

    /// Checks that the running path can change to this plan without being stopped. Fails with the
    /// reason if it cannot.
    pub(super) fn check_change_is_possible(&self, state: &PathState) -> Result<(), ChangeError> {
        let refused = |why: String| Err(ChangeError::Refused(why));
        let count = |plan: &Plan| plan.spaces.iter().map(|space| space.component + 1).max();
        if count(&self.plan) != count(&state.plan) {
            return refused(
                "a pipeline cannot be added or removed: start or stop another path".to_owned(),
            );
        }
        if let Some(why) = self.ids.numbering.shortage_message() {
            return refused(why);
        }
        for (id, node) in
            state.plan.graph.nodes_with_ids().filter(|(_, node)| node.has_own_process())
        {
            let graph = &state.plan.graph;
            let middle = graph.inputs(id).next().is_some() && graph.outputs(id).next().is_some();
            if middle && !self.ids.nodes.contains(&state.ids.nodes[id.0]) {
                let what = "holds blocks that it has not emitted";
                return refused(format!("`{}` stays where it is: it {what}", node.name()));
            }
        }
        for (place, number) in self.ids.nodes.iter().enumerate() {
            let Some(before) = state.ids.nodes.iter().position(|old| old == number) else {
                continue;
            };
            let (new, old) = (&self.plan.placements[place], &state.plan.placements[before]);
            let name = |plan: &Plan, space: usize| plan.spaces[space].name.clone();
            let crosses = self.crossed.contains(number);
            let stays = !crosses
                && name(&self.plan, new.input_space) == name(&state.plan, old.input_space)
                && name(&self.plan, new.output_space) == name(&state.plan, old.output_space);
            if stays {
                continue;
            }
            let node = self.plan.graph.node(NodeId(place));
            let Some(used) = node.filter() else { continue };
            match (node.kind(), used.description.state.scope) {
                (Some(FilterKind::Source), _) => {
                    return refused(format!("`{}` is a source and cannot move", node.name()));
                }
                (_, StateScope::Pinned(why)) => {
                    return refused(format!("`{}` stays where it is: {why}", node.name()));
                }
                _ if crosses => {
                    if let Err(why) = self.check_process_move(state, before) {
                        return refused(format!("`{}` stays where it is: {why}", node.name()));
                    }
                }
                _ if node.has_own_process() && !node.is_untrusted() => {
                    return refused(
                        "a program runs in its own process and cannot be moved".to_owned(),
                    );
                }
                _ => {}
            }
        }
        for id in &self.renewed {
            let place = self.ids.nodes.iter().position(|number| number == id);
            let node = place.map(|place| self.plan.graph.node(NodeId(place)));
            let used = node.and_then(Node::filter);
            match used.map(|used| (used.description.kind, used.description.state.scope)) {
                Some((FilterKind::Source | FilterKind::Sink, _)) | None => {
                    return refused("only filters can be upgraded: use `replace`".to_owned());
                }
                Some((_, StateScope::Pinned(why))) => {
                    return refused(format!("its state cannot move: {why}"));
                }
                Some(_) => {}
            }
        }
        self.check_kernel_programs(state)
    }

    /// Fails with the reason if the filter at index `before` of the old plan cannot move to another
    /// process.
    fn check_process_move(&self, state: &PathState, before: usize) -> Result<(), &'static str> {
        if state.plan.space_of(NodeId(before)).kind == SpaceKind::Kernel {
            return Err("it must leave the kernel first (`move NODE process`)");
        }
        if !self.replaced_programs.is_empty() {
            return Err("the program in the kernel would change with it");
        }
        if !state.plan.replicas.is_empty() {
            return Err("other filters run as replicas: start the path with `--parallel=no`");
        }
        Ok(())
    }

    /// Fails if the new kernel programs cannot be installed while the path runs.
    fn check_kernel_programs(&self, state: &PathState) -> Result<(), ChangeError> {
        let refused = |why: String| Err(ChangeError::Refused(why));
        for part in &self.replaced_programs {
            let begins = |plan: &Plan, ids: &PlanNumbers| -> Vec<usize> {
                let programs = plan.programs.iter().flat_map(|program| &program.sources);
                let ours = programs.filter(|id| plan.space_of(**id).component == *part);
                let mut all: Vec<usize> = ours.map(|id| ids.nodes[id.0]).collect();
                all.sort_unstable();
                all
            };
            let (is, was) = (begins(&self.plan, &self.ids), begins(&state.plan, &state.ids));
            if is != was {
                return refused(
                    "sources are placed in the kernel only at the start: start the path with \
                     `rx@kernel`, or stop it and start another one"
                        .to_owned(),
                );
            }
            if state.parts[*part].kernel_exits.len() > 1 {
                let what = "this would change the kernel programs of several interfaces at once";
                return refused(format!("{what}: change only filters after one of these sources"));
            }
        }
        for (place, number) in self.ids.nodes.iter().enumerate() {
            let Some(before) = state.ids.nodes.iter().position(|old| old == number) else {
                continue;
            };
            let here = |plan: &Plan, at| plan.space_of(NodeId(at)).kind == SpaceKind::Kernel;
            let node = self.plan.graph.node(NodeId(place));
            let decides = !may_enter_kernel(&self.plan.graph, NodeId(place));
            if decides && here(&self.plan, place) && !here(&state.plan, before) {
                let why = "its state cannot be moved there in time";
                return refused(format!("`{}` stays out of the kernel: {why}", node.name()));
            }
        }
        Ok(())
    }

    /// Returns true if the content of a space differs between the running and the new plan. `name`
    /// is the name of the space, and `part` the index of its component.
    pub(super) fn is_space_changed(&self, state: &PathState, part: usize, name: &str) -> bool {
        let renewed = |plan: &Plan, ids: &PlanNumbers| {
            let here = space_node_and_edge_numbers(plan, ids, part, name).0;
            self.renewed.iter().chain(&self.crossed).any(|number| here.contains(number))
        };
        space_node_and_edge_numbers(&self.plan, &self.ids, part, name)
            != space_node_and_edge_numbers(&state.plan, &state.ids, part, name)
            || renewed(&self.plan, &self.ids)
            || renewed(&state.plan, &state.ids)
            || has_replicas(&self.plan, part, name)
            || has_replicas(&state.plan, part, name)
    }

    /// Returns true if a removed space must be stopped for the switch. It must be stopped if other
    /// spaces take over some of its nodes, or if it contains replicas. A removed space is one that
    /// only the running plan contains.
    pub(super) fn must_stop_for_switch(&self, state: &PathState, part: usize, name: &str) -> bool {
        let stays = |number: &usize| self.kept.contains(number);
        has_replicas(&state.plan, part, name)
            || space_node_and_edge_numbers(&state.plan, &state.ids, part, name).0.iter().any(stays)
    }
}

/// Returns a setting that a filter derives from its neighbors in the plan, such as the form of its
/// input. Returns `None` if the filter has no such setting. A change of the setting requires a new
/// instance of the filter.
fn context_setting(plan: &Plan, id: NodeId) -> Option<bool> {
    let setting = plan.graph.node(id).filter()?.description.analysis.context_setting?;
    plan.arguments_in_context(id).map(|arguments| setting(&arguments))
}

/// A function that finds the node of the old plan that is the same as a node of the new plan. The
/// first argument is the new node. The second argument contains the numbers of the new nodes with
/// lower indices. Returns `None` if there is no such node.
type OldNodeLookup<'a> = &'a dyn Fn(NodeId, &[usize]) -> Option<NodeId>;

/// The identity of an edge: start node, end node, classes, a flag for back edges, the two spaces,
/// and the size of an entry in bytes.
type EdgeIdentity = (usize, usize, Vec<(u32, u32)>, bool, [String; 2], usize);

fn edge_identity(plan: &Plan, ids: &PlanNumbers, edge: usize) -> EdgeIdentity {
    let Edge { from, to, classes, back, .. } = &plan.graph.edges[edge];
    let name = |space: usize| plan.spaces[space].name.clone();
    // A block from the kernel enters user space in a thread, but until then it belongs to the
    // kernel space.
    let kernel = plan.space_of(*from).kind == SpaceKind::Kernel;
    let from_space =
        if kernel { plan.placements[from.0].space } else { plan.placements[from.0].output_space };
    let spaces = [name(from_space), name(plan.placements[to.0].input_space)];
    let stride = match &plan.edges[edge] {
        PlannedEdge::Ring(ring) | PlannedEdge::Kernel(ring) => ring.stride,
        _ => 0,
    };
    let ranges = classes.ranges().to_vec();
    (ids.nodes[from.0], ids.nodes[to.0], ranges, *back, spaces, stride)
}

/// Returns the sorted numbers of the nodes of a space, and those of its edges. `part` is the index
/// of the space's component.
fn space_node_and_edge_numbers(
    plan: &Plan,
    ids: &PlanNumbers,
    part: usize,
    name: &str,
) -> (Vec<usize>, Vec<usize>) {
    let is = |space: usize| plan.spaces[space].name == name && plan.spaces[space].component == part;
    let here = |id: usize| {
        let placed = &plan.placements[id];
        is(placed.space) || is(placed.input_space) || is(placed.output_space)
    };
    let mut nodes: Vec<usize> =
        (0..plan.graph.nodes.len()).filter(|id| here(*id)).map(|id| ids.nodes[id]).collect();
    let edges = plan.graph.edges.iter().enumerate();
    let touches = edges.filter(|(_, edge)| {
        is(plan.placements[edge.from.0].output_space) || is(plan.placements[edge.to.0].input_space)
    });
    let mut edges: Vec<usize> = touches.map(|(edge, _)| ids.edges[edge]).collect();
    nodes.sort_unstable();
    edges.sort_unstable();
    (nodes, edges)
}

/// Returns true if a space contains a replica or the join of a replicated chain.
fn has_replicas(plan: &Plan, part: usize, name: &str) -> bool {
    let is =
        |space: &usize| plan.spaces[*space].name == name && plan.spaces[*space].component == part;
    plan.replicas.iter().any(|copied| copied.spaces.iter().chain([&copied.join]).any(is))
}

/// Returns the sorted numbers of a component's nodes in the kernel, the sorted numbers of the edges
/// between them, and the number of edges that leave the kernel.
fn kernel_node_and_edge_numbers(
    plan: &Plan,
    ids: &PlanNumbers,
    part: usize,
) -> (Vec<usize>, Vec<usize>, usize) {
    let here = |id: NodeId| {
        let space = plan.space_of(id);
        space.kind == SpaceKind::Kernel && space.component == part
    };
    let nodes = plan.graph.nodes_with_ids().filter(|(id, _)| here(*id));
    let mut nodes: Vec<usize> = nodes.map(|(id, _)| ids.nodes[id.0]).collect();
    nodes.sort_unstable();
    let edges = plan.graph.edges.iter().enumerate();
    let (inside, leave): (Vec<_>, Vec<_>) =
        edges.filter(|(_, edge)| here(edge.from)).partition(|(_, edge)| here(edge.to));
    let mut inside: Vec<usize> = inside.into_iter().map(|(edge, _)| ids.edges[edge]).collect();
    inside.sort_unstable();
    (nodes, inside, leave.len())
}

/// Returns true if every edge over which blocks leave the kernel in the running component `part`
/// has a counterpart in the new plan. `exit_edges` contains the edges that have one.
fn keeps_all_exits(exit_edges: &HashMap<usize, usize>, part: &RunningComponent) -> bool {
    part.kernel_exits
        .iter()
        .flat_map(|kernel_exits| &kernel_exits.exit_edges)
        .all(|way| exit_edges.contains_key(way))
}

/// Pins surviving nodes of a new graph to the spaces in which they run now. Pins all sources, and
/// every other node whose old node satisfies `stays`. Returns the new graph with these pins.
fn pin_surviving_nodes(
    graph: &Graph,
    edited: &EditResult,
    state: &PathState,
    stays: &dyn Fn(NodeId) -> bool,
) -> Graph {
    let mut pinned = graph.clone();
    for id in (0..graph.nodes.len()).map(NodeId) {
        let source = graph.node(id).kind() == Some(FilterKind::Source);
        let space = matching_old_node(graph, id, edited, &state.plan.graph)
            .filter(|old| source || stays(*old))
            .map(|old| home_space(&state.plan, old))
            .filter(|space| space.kind != SpaceKind::Process);
        if let (Some(space), Step::Filter(used)) = (space, &mut pinned.nodes[id.0].step)
            && used.pin.is_none()
        {
            used.pin = Some(space.name.clone());
            used.pin_reason = Some(KEPT_IN_SPACE_REASON);
        }
    }
    pinned
}

/// Returns the space of a node. For a node with replicas, this is the space where the node would
/// run without them.
pub(super) fn home_space(plan: &Plan, id: NodeId) -> &PlannedSpace {
    let space = plan.placements[id.0].space;
    let copied = plan.replicas.iter().find(|copied| copied.spaces.contains(&space));
    &plan.spaces[copied.and_then(|copied| copied.spaces.first()).map_or(space, |first| *first)]
}

/// Maps the number of every edge from a node in the kernel to the index of its counterpart in the
/// new plan: the edge from the same node for the same classes. Omits edges without a counterpart.
fn exit_edges(state: &PathState, plan: &Plan, ids: &PlanNumbers) -> HashMap<usize, usize> {
    let begins = |plan: &Plan, edge: &Edge| plan.space_of(edge.from).kind == SpaceKind::Kernel;
    let mut free: Vec<usize> =
        (0..plan.graph.edges.len()).filter(|edge| begins(plan, &plan.graph.edges[*edge])).collect();
    let mut found = HashMap::new();
    // Surviving edges are matched first; the other edges have new targets.
    for stays in [true, false] {
        for (place, old) in state.plan.graph.edges.iter().enumerate() {
            let number = state.ids.edges[place];
            if !begins(&state.plan, old) || found.contains_key(&number) {
                continue;
            }
            let is = |edge: &usize| {
                let new = &plan.graph.edges[*edge];
                let same = ids.nodes[new.from.0] == state.ids.nodes[old.from.0];
                let stayed = ids.edges[*edge] == number;
                same && new.classes == old.classes && (stayed || !stays)
            };
            if let Some(at) = free.iter().position(is) {
                found.insert(number, free.remove(at));
            }
        }
    }
    found
}

/// Returns the first operand of a section or the first input of a merge, or `None` for any other
/// node.
fn first_input_node(graph: &Graph, at: NodeId) -> Option<NodeId> {
    let operand =
        graph.nodes_with_ids().find(|(_, inner)| inner.inside == Some(at)).map(|(id, _)| id);
    operand.or_else(|| graph.inputs(at).next().map(|edge| edge.from))
}

/// Returns the node of the old graph that represents the same filter in the request's text, with
/// the same arguments, if there is one.
fn matching_old_node(new: &Graph, id: NodeId, edited: &EditResult, old: &Graph) -> Option<NodeId> {
    let node = new.node(id);
    let used = node.filter()?;
    let mut found = edited.filters.iter().filter(|(span, _)| span.start == node.span.start);
    let before = found.next()?.1?;
    // If several nodes have the same text position, they correspond in the order of their indices.
    let nth =
        new.nodes_with_ids().take(id.0).filter(|(_, n)| n.span.start == node.span.start).count();
    let mut same = old.nodes_with_ids().filter(|(_, other)| other.span.start == before.start);
    let (at, other) = same.nth(nth)?;
    let other = other.filter()?;
    // An edit that changes only arcs may add a mark, through which the new text refers to the same
    // filter twice. A missing mark therefore matches any mark.
    let same_mark = [&other.mark, &used.mark].iter().any(|mark| mark.is_none());
    let is_same = other.description.name == used.description.name
        && other.is_same(used)
        && (same_mark || other.mark == used.mark);
    is_same.then_some(at)
}
