//! The identity of nodes and edges across a change, and the spaces that differ.
//!
//! A node is the same if it stands for the same filter of the text and has the same arguments; its
//! placement is another matter. An edge is the same if it leads from the same node to the same,
//! lets the same classes through, and crosses the same spaces.

use super::switched::Unchanged;
use crate::catalogue::House;
use crate::numbering::{Ids, rings_of_copies};
use crate::path::origins::Origins;
use crate::path::running::{Part, State};
use filter::{Keeps, Kind};
use pipeline::edit::Edited;
use pipeline::graph::{Edge, Graph, Node, NodeId, Step};
use pipeline::language::Span;
use pipeline::plan::{
    Machine, Plan, PlannedEdge, PlannedSpace, Refused, SpaceKind, Unplaceable, plan,
};
use std::collections::{HashMap, HashSet};

/// A new plan, and what of it runs already.
pub(super) struct Matched {
    pub(super) plan: Plan,
    pub(super) ids: Ids,
    /// The numbers of the nodes that stay.
    pub(super) kept: HashSet<usize>,
    /// The numbers of filters that are made anew with what the old ones know.
    pub(super) renewed: HashSet<usize>,
    /// The numbers of filters that go on in another process with what they know.
    pub(super) crossed: HashSet<usize>,
    /// New place of every edge out of the kernel, by its number.
    pub(super) ways: HashMap<usize, usize>,
    /// The parts in which something else is to run in the kernel.
    pub(super) anew: HashSet<usize>,
    /// The names of all sources that there are and have been.
    pub(super) origins: Origins,
}

impl Matched {
    /// Plans a request so that what stays keeps its space, if that can be; what is new runs in
    /// threads, unless it stands before what stays in the kernel. `refused` is what the kernel did
    /// not take when this was tried.
    pub(super) fn plan(
        graph: &Graph,
        edited: &Edited,
        state: &State,
        (machine, refused): (&Machine, &[Refused]),
    ) -> Result<Self, Unplaceable> {
        let stays: [&dyn Fn(NodeId) -> bool; 3] = [
            &|_| true,
            // A filter goes with what goes before it.
            &|old| state.plan.space_of(old).kind != SpaceKind::Kernel,
            &|_| false,
        ];
        let mut last = None;
        for stays in stays {
            let plan = match plan(pinned(graph, edited, state, stays), &House, machine) {
                Ok(plan) => plan,
                Err(why) => {
                    last = Some(why);
                    continue;
                }
            };
            let plan = match refused.is_empty() {
                true => plan,
                false => match plan.again(machine, refused) {
                    Some(Err(why)) => {
                        last = Some(why);
                        continue;
                    }
                    Some(Ok(again)) => again,
                    None => plan,
                },
            };
            let mut matched = Self::of(plan, edited, state);
            if let Some(Ok(again)) = matched.without_new(graph, machine, refused) {
                matched = Self::of(again, edited, state);
            }
            for (new, asked) in matched.plan.graph.nodes.iter_mut().zip(&graph.nodes) {
                if let (Step::Filter(new), Step::Filter(asked)) = (&mut new.step, &asked.step) {
                    new.pin.clone_from(&asked.pin);
                }
            }
            return Ok(matched);
        }
        match last {
            Some(why) => Err(why),
            None => plan(graph.clone(), &House, machine).map(|plan| Self::of(plan, edited, state)),
        }
    }

    /// The same with what is new in threads, where nobody asked for it to be in the kernel.
    fn without_new(
        &self,
        asked: &Graph,
        machine: &Machine,
        refused: &[Refused],
    ) -> Option<Result<Plan, Unplaceable>> {
        let graph = &self.plan.graph;
        let new = |id: &NodeId| {
            let kernel = self.plan.space_of(*id).kind == SpaceKind::Kernel;
            let said = asked.nodes.get(id.0).and_then(|node| node.filter()?.pin.clone());
            kernel && said.is_none() && !self.kept.contains(&self.ids.nodes[id.0])
        };
        let why = || "what is new runs in a thread, unless it is moved".to_owned();
        let new = (0..graph.nodes.len()).map(NodeId).filter(new);
        let mut all = refused.to_vec();
        all.extend(new.map(|node| Refused { node, why: why() }));
        if all.len() == refused.len() { None } else { self.plan.again(machine, &all) }
    }

    /// Describes a plan of the running graph with other placements or replicas.
    pub(super) fn reshaped(plan: Plan, state: &State) -> Self {
        let same = |id: NodeId, _: &[usize]| (id.0 < state.ids.nodes.len()).then_some(id);
        Self::numbered(plan, (&same, None), state)
    }

    fn of(plan: Plan, edited: &Edited, state: &State) -> Self {
        let (graph, old) = (plan.graph.clone(), &state.plan);
        let same = |id: NodeId, nodes: &[usize]| {
            let node = graph.node(id);
            let same = match &node.step {
                // The sink that the plan put behind an open end.
                Step::Filter(_) if node.span.start == node.span.end => {
                    let before = graph.inputs(id).next().map(|edge| nodes[edge.from.0]);
                    old.graph.ids().find(|(old_id, other)| {
                        let from = old.graph.inputs(*old_id).next().map(|edge| edge.from.0);
                        other.span.start == other.span.end
                            && other.name() == node.name()
                            && from.map(|from| state.ids.nodes[from]) == before
                    })
                }
                Step::Boolean(_) | Step::Merge => {
                    let found = first(&graph, id)
                        .and_then(|first| old_node(&graph, first, edited, &old.graph));
                    old.graph.ids().find(|(old_id, other)| {
                        other.name() == node.name()
                            && found.is_some()
                            && first(&old.graph, *old_id) == found
                    })
                }
                _ => old_node(&graph, id, edited, &old.graph).map(|at| (at, old.graph.node(at))),
            };
            same.map(|(at, _)| at)
        };
        Self::numbered(plan, (&same, edited.upgraded), state)
    }

    /// Gives nodes and edges of a plan their numbers. `same` answers which node of the old plan one
    /// is, knowing the numbers of those before it; one may be made anew with what it knows.
    fn numbered(plan: Plan, (same, upgraded): (Same<'_>, Option<Span>), state: &State) -> Self {
        let (old, mut next) = (&state.plan, state.ids.next);
        let mut kept = HashSet::new();
        let mut nodes = Vec::new();
        for (id, _) in plan.graph.ids() {
            let same = same(id, &nodes);
            let number = same.map(|at| state.ids.nodes[at.0]).filter(|n| !kept.contains(n));
            nodes.push(number.unwrap_or(next.0));
            match number {
                Some(number) => drop(kept.insert(number)),
                None => next.0 += 1,
            }
        }
        // What shares work knows nothing of the blocks before: it goes and comes as a whole.
        for (plan, nodes) in [(&plan, &nodes), (old, &state.ids.nodes)] {
            let shares = plan.copied.iter().flat_map(|copied| &copied.nodes);
            shares.for_each(|id| {
                kept.remove(&nodes[id.0]);
            });
        }
        let numbering = state.ids.numbering.follow(&plan.graph, &nodes);
        let mut ids = Ids { nodes, edges: Vec::new(), copies: 0, numbering, next };
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
        ids.copies = ids.next.1;
        ids.next.1 += rings_of_copies(&plan);
        let renewed = upgraded.and_then(|span| {
            // A section begins where its first operand does.
            let is = |node: &Node| node.span.start == span.start && node.filter().is_some();
            let found = plan.graph.ids().find(|(_, node)| is(node));
            found.map(|(id, _)| ids.nodes[id.0])
        });
        let renewed: HashSet<usize> = renewed.into_iter().collect();
        let apart = |plan: &Plan, ids: &[usize]| -> HashSet<usize> {
            let apart = plan.graph.ids().filter(|(_, node)| node.is_untrusted());
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
        origins.follow(&plan.graph, &ids.nodes);
        let ways = ways(state, &plan, &ids);
        let anew = (0..state.parts.len()).filter(|part| {
            let is = in_kernel(&plan, &ids, *part);
            is != in_kernel(&state.plan, &state.ids, *part) || !rise(&ways, &state.parts[*part])
        });
        let anew = anew.collect();
        Self { plan, ids, kept, renewed, crossed, ways, anew, origins }
    }

    /// Checks that this change can be made while the path runs.
    pub(super) fn may_be(&self, state: &State) -> Result<(), Unchanged> {
        let refused = |why: String| Err(Unchanged::Refused(why));
        let count = |plan: &Plan| plan.spaces.iter().map(|space| space.part + 1).max();
        if count(&self.plan) != count(&state.plan) {
            return refused("a line cannot come or go: start or stop another path".to_owned());
        }
        if let Some(why) = self.ids.numbering.short() {
            return refused(why);
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
            let crosses = self.crossed.contains(number);
            let stays = !crosses
                && name(&self.plan, new.enters) == name(&state.plan, old.enters)
                && name(&self.plan, new.leaves) == name(&state.plan, old.leaves);
            if stays {
                continue;
            }
            let node = self.plan.graph.node(NodeId(place));
            let Some(used) = node.filter() else { continue };
            match (node.kind(), used.description.state.keeps) {
                (Some(Kind::Source), _) => {
                    return refused(format!(
                        "`{}` gives blocks and stays where it is",
                        node.name()
                    ));
                }
                (_, Keeps::Pinned(why)) => {
                    return refused(format!("`{}` stays where it is: {why}", node.name()));
                }
                _ if crosses => {
                    if let Err(why) = self.may_cross(state, before) {
                        return refused(format!("`{}` stays where it is: {why}", node.name()));
                    }
                }
                _ if node.is_process() && !node.is_untrusted() => {
                    return refused("a program is a space, and cannot be moved".to_owned());
                }
                _ => {}
            }
        }
        for id in &self.renewed {
            let place = self.ids.nodes.iter().position(|number| number == id);
            let node = place.map(|place| self.plan.graph.node(NodeId(place)));
            let used = node.and_then(Node::filter);
            match used.map(|used| (used.description.kind, used.description.state.keeps)) {
                Some((Kind::Source | Kind::Sink, _)) | None => {
                    return refused("only filters are upgraded: replace it".to_owned());
                }
                Some((_, Keeps::Pinned(why))) => {
                    return refused(format!("what it knows cannot move: {why}"));
                }
                Some(_) => {}
            }
        }
        self.may_run_in_kernel(state)
    }

    /// Checks that the filter at this place of the old plan can go on in another process.
    fn may_cross(&self, state: &State, before: usize) -> Result<(), &'static str> {
        if state.plan.space_of(NodeId(before)).kind == SpaceKind::Kernel {
            return Err("it comes out of the kernel first (`move NODE process`)");
        }
        if !self.anew.is_empty() {
            return Err("what runs in the kernel would change with it");
        }
        if !state.plan.copied.is_empty() {
            return Err("others share their work among copies: begin it with `--parallel=no`");
        }
        Ok(())
    }

    /// Checks that the new kernel programs can be installed.
    fn may_run_in_kernel(&self, state: &State) -> Result<(), Unchanged> {
        let refused = |why: String| Err(Unchanged::Refused(why));
        for part in &self.anew {
            let begins = |plan: &Plan, ids: &Ids| -> Vec<usize> {
                let programs = plan.programs.iter().flat_map(|program| &program.sources);
                let ours = programs.filter(|id| plan.space_of(**id).part == *part);
                let mut all: Vec<usize> = ours.map(|id| ids.nodes[id.0]).collect();
                all.sort_unstable();
                all
            };
            let (is, was) = (begins(&self.plan, &self.ids), begins(&state.plan, &state.ids));
            if is != was {
                return refused(
                    "which sources begin in the kernel is decided when a path starts: begin it \
                     with `rx@kernel`, or stop it and start another one"
                        .to_owned(),
                );
            }
            if state.parts[*part].rising.len() > 1 {
                let what = "programs of several interfaces would have to change at one moment";
                return refused(format!("{what}: change what follows one of them"));
            }
        }
        for (place, number) in self.ids.nodes.iter().enumerate() {
            let Some(before) = state.ids.nodes.iter().position(|old| old == number) else {
                continue;
            };
            let here = |plan: &Plan, at| plan.space_of(NodeId(at)).kind == SpaceKind::Kernel;
            let node = self.plan.graph.node(NodeId(place));
            let decides = node.kind() != Some(Kind::Statistics)
                && node.filter().is_some_and(|used| used.description.state.keeps == Keeps::Private);
            if decides && here(&self.plan, place) && !here(&state.plan, before) {
                let why = "what it knows of the blocks before is not known there in time";
                return refused(format!("`{}` stays out of the kernel: {why}", node.name()));
            }
        }
        Ok(())
    }

    /// Returns true if a space's content changes with the new plan.
    pub(super) fn differs(&self, state: &State, part: usize, name: &str) -> bool {
        let renewed = |plan: &Plan, ids: &Ids| {
            let here = inside(plan, ids, part, name).0;
            self.renewed.iter().chain(&self.crossed).any(|number| here.contains(number))
        };
        inside(&self.plan, &self.ids, part, name) != inside(&state.plan, &state.ids, part, name)
            || renewed(&self.plan, &self.ids)
            || renewed(&state.plan, &state.ids)
            || shares(&self.plan, part, name)
            || shares(&state.plan, part, name)
    }

    /// Returns true if a space that the new plan no longer has holds nodes that go on elsewhere.
    pub(super) fn takes_from(&self, state: &State, part: usize, name: &str) -> bool {
        let stays = |number: &usize| self.kept.contains(number);
        shares(&state.plan, part, name)
            || inside(&state.plan, &state.ids, part, name).0.iter().any(stays)
    }
}

/// Answers which node of the old plan one of the new is, by the numbers of those before it.
type Same<'a> = &'a dyn Fn(NodeId, &[usize]) -> Option<NodeId>;

/// The identity of an edge: from, to, classes, back edge, the spaces, the ring's metadata.
type Crossing = (usize, usize, Vec<(u32, u32)>, bool, [String; 2], usize);

fn crossing(plan: &Plan, ids: &Ids, edge: usize) -> Crossing {
    let Edge { from, to, classes, back, .. } = &plan.graph.edges[edge];
    let name = |space: usize| plan.spaces[space].name.clone();
    // What leaves the kernel is taken up in a thread, and was elsewhere before.
    let kernel = plan.space_of(*from).kind == SpaceKind::Kernel;
    let from_space = if kernel { plan.placed[from.0].space } else { plan.placed[from.0].leaves };
    let spaces = [name(from_space), name(plan.placed[to.0].enters)];
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

/// Returns true if replicas run in a space, or are joined there.
fn shares(plan: &Plan, part: usize, name: &str) -> bool {
    let is = |space: &usize| plan.spaces[*space].name == name && plan.spaces[*space].part == part;
    plan.copied.iter().any(|copied| copied.spaces.iter().chain([&copied.join]).any(is))
}

/// The numbers of the nodes of a part that run in the kernel, of the edges between them, and how
/// many edges leave it.
fn in_kernel(plan: &Plan, ids: &Ids, part: usize) -> (Vec<usize>, Vec<usize>, usize) {
    let here = |id: NodeId| {
        let space = plan.space_of(id);
        space.kind == SpaceKind::Kernel && space.part == part
    };
    let nodes = plan.graph.ids().filter(|(id, _)| here(*id));
    let mut nodes: Vec<usize> = nodes.map(|(id, _)| ids.nodes[id.0]).collect();
    nodes.sort_unstable();
    let edges = plan.graph.edges.iter().enumerate();
    let (inside, leave): (Vec<_>, Vec<_>) =
        edges.filter(|(_, edge)| here(edge.from)).partition(|(_, edge)| here(edge.to));
    let mut inside: Vec<usize> = inside.into_iter().map(|(edge, _)| ids.edges[edge]).collect();
    inside.sort_unstable();
    (nodes, inside, leave.len())
}

/// Returns true if the new plan has every output edge of a part's kernel programs.
fn rise(ways: &HashMap<usize, usize>, part: &Part) -> bool {
    part.rising.iter().flat_map(|rising| &rising.ways).all(|way| ways.contains_key(way))
}

/// The graph, with what stays pinned to where it runs: sources in any case, of the others those for
/// which `stays` holds.
fn pinned(graph: &Graph, edited: &Edited, state: &State, stays: &dyn Fn(NodeId) -> bool) -> Graph {
    let mut pinned = graph.clone();
    for id in (0..graph.nodes.len()).map(NodeId) {
        let source = graph.node(id).kind() == Some(Kind::Source);
        let space = old_node(graph, id, edited, &state.plan.graph)
            .filter(|old| source || stays(*old))
            .map(|old| home(&state.plan, old))
            .filter(|space| space.kind != SpaceKind::Process);
        if let (Some(space), Step::Filter(used)) = (space, &mut pinned.nodes[id.0].step) {
            used.pin.get_or_insert_with(|| space.name.clone());
        }
    }
    pinned
}

/// Returns the space in which a node would run without replicas.
pub(super) fn home(plan: &Plan, id: NodeId) -> &PlannedSpace {
    let space = plan.placed[id.0].space;
    let copied = plan.copied.iter().find(|copied| copied.spaces.contains(&space));
    &plan.spaces[copied.and_then(|copied| copied.spaces.first()).map_or(space, |first| *first)]
}

/// Maps the number of every edge that begins in the kernel to the place of the one that begins
/// there now: from the same node, for the same classes, the first with the first.
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

/// Returns the node of the old graph that stands for the same filter of the text with the same
/// arguments.
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
        && other.is_same(used)
        && other.mark == used.mark;
    says.then_some(at)
}
