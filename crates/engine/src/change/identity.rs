//! Which nodes and edges of a new plan are in the one that runs, and which spaces differ.
//!
//! A node is the same if it stands for the same filter of the text and says the same; where it runs
//! is another matter. An edge is the same if it leads from the same node to the same, lets the same
//! classes through, and crosses the same spaces.

use super::Unchanged;
use crate::build::running::{Ids, State};
use crate::build::title;
use filter::{Keeps, Kind};
use pipeline::edit::Edited;
use pipeline::graph::{Edge, Graph, Node, NodeId, Step};
use pipeline::plan::{Machine, Plan, PlannedEdge, Refused, SpaceKind, Unplaceable, plan};
use std::collections::{HashMap, HashSet};

/// A new plan, and what of it runs already.
pub(super) struct Matched {
    pub(super) plan: Plan,
    pub(super) ids: Ids,
    /// The numbers of the nodes that stay.
    pub(super) kept: HashSet<usize>,
    /// The numbers of filters that are made anew with what the old ones know.
    pub(super) renewed: HashSet<usize>,
    /// For the number of every edge out of the kernel, its place in the new plan.
    pub(super) ways: HashMap<usize, usize>,
    /// The names of all sources that there are and have been.
    pub(super) origins: Vec<String>,
}

impl Matched {
    /// Plans a request so that what stays keeps its space, if that can be.
    pub(super) fn plan(
        graph: Graph,
        edited: &Edited,
        state: &State,
        machine: &Machine,
    ) -> Result<Self, Unplaceable> {
        let mut pinned = graph.clone();
        for id in (0..graph.nodes.len()).map(NodeId) {
            let space = old_node(&graph, id, edited, &state.plan.graph)
                .map(|old| state.plan.space_of(old))
                .filter(|space| space.kind != SpaceKind::Process);
            if let (Some(space), Step::Filter(used)) = (space, &mut pinned.nodes[id.0].step) {
                used.pin.get_or_insert_with(|| space.name.clone());
            }
        }
        let plan = match plan(pinned, &crate::catalogue::House, machine) {
            Ok(found) => found,
            Err(_) => plan(graph.clone(), &crate::catalogue::House, machine)?,
        };
        let mut matched = Self::of(plan, edited, state);
        // Programs are not changed: what is new runs in threads.
        let new = |id: &NodeId| {
            let kernel = matched.plan.space_of(*id).kind == SpaceKind::Kernel;
            kernel && !matched.kept.contains(&matched.ids.nodes[id.0])
        };
        let why = || "what runs in the kernel is not changed while it runs".to_owned();
        let new = (0..matched.plan.graph.nodes.len()).map(NodeId).filter(new);
        let refused: Vec<Refused> = new.map(|node| Refused { node, why: why() }).collect();
        if let Some(again) = matched.plan.again(machine, &refused) {
            matched = Self::of(again?, edited, state);
        }
        for (new, asked) in matched.plan.graph.nodes.iter_mut().zip(&graph.nodes) {
            if let (Step::Filter(new), Step::Filter(asked)) = (&mut new.step, &asked.step) {
                new.pin.clone_from(&asked.pin);
            }
        }
        Ok(matched)
    }

    fn of(plan: Plan, edited: &Edited, state: &State) -> Self {
        let (old, mut next) = (&state.plan, state.ids.next);
        let mut kept = HashSet::new();
        let mut nodes = Vec::new();
        for (id, node) in plan.graph.ids() {
            let same = match &node.step {
                // The sink that the plan put behind an open end.
                Step::Filter(_) if node.span.start == node.span.end => {
                    let before = plan.graph.inputs(id).next().map(|edge| nodes[edge.from.0]);
                    old.graph.ids().find(|(old_id, other)| {
                        let from = old.graph.inputs(*old_id).next().map(|edge| edge.from.0);
                        other.span.start == other.span.end
                            && other.name() == node.name()
                            && from.map(|from| state.ids.nodes[from]) == before
                    })
                }
                Step::Boolean(_) | Step::Merge => {
                    let found = first(&plan.graph, id)
                        .and_then(|first| old_node(&plan.graph, first, edited, &old.graph));
                    old.graph.ids().find(|(old_id, other)| {
                        other.name() == node.name()
                            && found.is_some()
                            && first(&old.graph, *old_id) == found
                    })
                }
                _ => {
                    old_node(&plan.graph, id, edited, &old.graph).map(|at| (at, old.graph.node(at)))
                }
            };
            let number = same.map(|(at, _)| state.ids.nodes[at.0]).filter(|n| !kept.contains(n));
            nodes.push(number.unwrap_or(next.0));
            match number {
                Some(number) => drop(kept.insert(number)),
                None => next.0 += 1,
            }
        }
        let mut ids = Ids { nodes, edges: Vec::new(), next };
        let mut free: Vec<(Crossing, usize)> = (0..old.graph.edges.len())
            .map(|edge| (crossing(old, &state.ids, edge), state.ids.edges[edge]))
            .collect();
        for edge in 0..plan.graph.edges.len() {
            let wanted = crossing(&plan, &ids, edge);
            let number = match free.iter().position(|(known, _)| *known == wanted) {
                Some(at) => free.remove(at).1,
                None => {
                    ids.next.1 += 1;
                    ids.next.1 - 1
                }
            };
            ids.edges.push(number);
        }
        let renewed = edited.upgraded.and_then(|span| {
            let found = plan.graph.ids().find(|(_, node)| node.span.start == span.start);
            found.map(|(id, _)| ids.nodes[id.0])
        });
        let mut origins = state.origins.clone();
        for (id, used) in crate::build::sources(&plan.graph) {
            if !kept.contains(&ids.nodes[id.0]) {
                origins.push(title(used));
            }
        }
        let ways = ways(state, &plan, &ids);
        Self { plan, ids, kept, renewed: renewed.into_iter().collect(), origins, ways }
    }

    /// Whether this can be done while the path runs.
    pub(super) fn may_be(&self, state: &State) -> Result<(), Unchanged> {
        let refused = |why: String| Err(Unchanged::Refused(why));
        let count = |plan: &Plan| plan.spaces.iter().map(|space| space.part + 1).max();
        if count(&self.plan) != count(&state.plan) {
            return refused("a line cannot come or go: start or stop another path".to_owned());
        }
        for (id, node) in state.plan.graph.ids().filter(|(_, node)| node.is_process()) {
            let graph = &state.plan.graph;
            let middle = graph.inputs(id).next().is_some() && graph.outputs(id).next().is_some();
            if middle && !self.ids.nodes.contains(&state.ids.nodes[id.0]) {
                let what = "has taken blocks that it has not given back";
                return refused(format!("`{}` stays where it is: it {what}", node.name()));
            }
        }
        for (place, number) in self.ids.nodes.iter().enumerate() {
            let Some(before) = state.ids.nodes.iter().position(|old| old == number) else {
                continue;
            };
            let (new, old) = (&self.plan.placed[place], &state.plan.placed[before]);
            let name = |plan: &Plan, space: usize| plan.spaces[space].name.clone();
            let stays = name(&self.plan, new.enters) == name(&state.plan, old.enters)
                && name(&self.plan, new.leaves) == name(&state.plan, old.leaves);
            if stays {
                continue;
            }
            let node = self.plan.graph.node(NodeId(place));
            let Some(used) = node.filter() else { continue };
            match (node.kind(), used.description.keeps) {
                (Some(Kind::Source), _) => {
                    return refused(format!(
                        "`{}` gives blocks and stays where it is",
                        node.name()
                    ));
                }
                (_, Keeps::Pinned(why)) => {
                    return refused(format!("`{}` stays where it is: {why}", node.name()));
                }
                _ if node.is_process() => {
                    return refused("a program is a space, and cannot be moved".to_owned());
                }
                _ => {}
            }
        }
        for id in &self.renewed {
            let place = self.ids.nodes.iter().position(|number| number == id);
            let node = place.map(|place| self.plan.graph.node(NodeId(place)));
            let used = node.and_then(Node::filter);
            match used.map(|used| (used.description.kind, used.description.keeps)) {
                Some((Kind::Source | Kind::Sink, _)) | None => {
                    return refused("only filters are upgraded: replace it".to_owned());
                }
                Some((_, Keeps::Pinned(why))) => {
                    return refused(format!("what it knows cannot move: {why}"));
                }
                Some(_) => {}
            }
        }
        let (is, was) = (in_kernel(&self.plan, &self.ids), in_kernel(&state.plan, &state.ids));
        if is != was || self.ways.len() != was.1 {
            return refused("it would change what runs in the kernel".to_owned());
        }
        Ok(())
    }

    /// Whether a space of the new plan does something else than before.
    pub(super) fn differs(&self, state: &State, part: usize, name: &str) -> bool {
        let renewed = |plan: &Plan, ids: &Ids| {
            let here = inside(plan, ids, part, name).0;
            self.renewed.iter().any(|number| here.contains(number))
        };
        inside(&self.plan, &self.ids, part, name) != inside(&state.plan, &state.ids, part, name)
            || renewed(&self.plan, &self.ids)
    }
}

/// What an edge is: from, to, classes, whether it leads back, the spaces, what a ring carries.
type Crossing = (usize, usize, Vec<(u32, u32)>, bool, [String; 2], usize);

fn crossing(plan: &Plan, ids: &Ids, edge: usize) -> Crossing {
    let Edge { from, to, classes, back, .. } = &plan.graph.edges[edge];
    let name = |space: usize| plan.spaces[space].name.clone();
    let spaces = [name(plan.placed[from.0].leaves), name(plan.placed[to.0].enters)];
    let stride = match &plan.edges[edge] {
        PlannedEdge::Ring(ring) | PlannedEdge::Kernel(ring) => ring.stride,
        _ => 0,
    };
    let ranges = classes.ranges().to_vec();
    (ids.nodes[from.0], ids.nodes[to.0], ranges, *back, spaces, stride)
}

/// The nodes and edges of a space, by number.
fn inside(plan: &Plan, ids: &Ids, part: usize, name: &str) -> (Vec<usize>, Vec<usize>) {
    let is = |space: usize| plan.spaces[space].name == name && plan.spaces[space].part == part;
    let here = |id: usize| {
        let placed = &plan.placed[id];
        is(placed.space) || is(placed.enters) || is(placed.leaves)
    };
    let mut nodes: Vec<usize> =
        (0..plan.graph.nodes.len()).filter(|id| here(*id)).map(|id| ids.nodes[id]).collect();
    let edges = plan.graph.edges.iter().enumerate();
    let touches = edges.filter(|(_, edge)| {
        is(plan.placed[edge.from.0].leaves) || is(plan.placed[edge.to.0].enters)
    });
    let mut edges: Vec<usize> = touches.map(|(edge, _)| ids.edges[edge]).collect();
    nodes.sort_unstable();
    edges.sort_unstable();
    (nodes, edges)
}

/// The numbers of the nodes that run in the kernel, and how many edges begin there.
fn in_kernel(plan: &Plan, ids: &Ids) -> (Vec<usize>, usize) {
    let here = |id: NodeId| plan.space_of(id).kind == SpaceKind::Kernel;
    let nodes = plan.graph.ids().filter(|(id, _)| here(*id));
    let mut nodes: Vec<usize> = nodes.map(|(id, _)| ids.nodes[id.0]).collect();
    nodes.sort_unstable();
    (nodes, plan.graph.edges.iter().filter(|edge| here(edge.from)).count())
}

/// For the number of every edge that begins in the kernel, the place of the one that begins there
/// now: from the same node, for the same classes, the first with the first.
fn ways(state: &State, plan: &Plan, ids: &Ids) -> HashMap<usize, usize> {
    let begins = |plan: &Plan, edge: &Edge| plan.space_of(edge.from).kind == SpaceKind::Kernel;
    let mut free: Vec<usize> =
        (0..plan.graph.edges.len()).filter(|edge| begins(plan, &plan.graph.edges[*edge])).collect();
    let mut found = HashMap::new();
    // Those that stay first: what is left has another target.
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

/// The first operand of a section, or the first input of a merge.
fn first(graph: &Graph, at: NodeId) -> Option<NodeId> {
    let operand = graph.ids().find(|(_, inner)| inner.inside == Some(at)).map(|(id, _)| id);
    operand.or_else(|| graph.inputs(at).next().map(|edge| edge.from))
}

/// The node of the old graph that stands for the same filter of the text and says the same.
fn old_node(new: &Graph, id: NodeId, edited: &Edited, old: &Graph) -> Option<NodeId> {
    let node = new.node(id);
    let used = node.filter()?;
    let mut found = edited.filters.iter().filter(|(span, _)| span.start == node.span.start);
    let before = found.next()?.1?;
    // Of several nodes at one place, the one in the same place among them.
    let nth = new.ids().take(id.0).filter(|(_, n)| n.span.start == node.span.start).count();
    let mut same = old.ids().filter(|(_, other)| other.span.start == before.start);
    let (at, other) = same.nth(nth)?;
    let other = other.filter()?;
    let says = other.description.name == used.description.name
        && other.arguments == used.arguments
        && other.mark == used.mark;
    says.then_some(at)
}
