//! The kernel space: which nodes it can run, and which programs a plan needs for them. [SL §5.3,
//! §7.1; CONTRACT 1 to 3, 18, 29]
//!
//! The nodes in the kernel form trees: a source that a program can replace, followed by filters
//! whose twins can be appended. The path leaves the kernel where branches meet, a section begins or
//! a cycle closes. Branches that observe the same interface in the same direction form one program,
//! and the filters with which they begin in common run once (**prefix sharing**). A program starts
//! with fresh state, so even filters with state can be shared.
//!
//! A twin does not set sessions (unlike the user implementations of `ip` and `udp`), marks or the
//! view. The plan can ignore this, because they are set by the thread that reads the edge out of
//! the kernel.

use super::machine::{Kernel, Machine};
use super::model::{KernelRefusal, Placement, PlannedSpace, SpaceKind};
use super::program::{self, KernelRing, Program, attachment};
use crate::graph::{Edge, FilterUse, Graph, Node, NodeId, Step, reachable};
use filter::{AttachTarget, Classes, FilterKind, StateScope, check_twin_chain, program_target};

/// Returns the reason why the kernel cannot run a node, regardless of the other placements, or
/// `None` if it can.
pub(super) fn refusal_reason(
    graph: &Graph,
    id: NodeId,
    machine: &Machine,
    refusals: &[KernelRefusal],
) -> Option<String> {
    let hardened = match &machine.kernel {
        Kernel::Closed { why, .. } => return Some(why.clone()),
        Kernel::Open { hardened, .. } => *hardened,
    };
    let route = match route_from_source(graph, id) {
        Ok(route) => route,
        Err(why) => return Some(why),
    };
    if let Some(found) = refusals.iter().find(|refusal| refusal.node == id) {
        return Some(found.why.clone());
    }
    let before =
        route.iter().find(|before| refusals.iter().any(|refusal| refusal.node == **before));
    if let Some(before) = before {
        return Some(format!("after `{}`, which the kernel refused", graph.node(*before).name()));
    }
    let chain = route.iter().skip(1).filter_map(|id| graph.node(*id).filter());
    let chain: Vec<_> = chain.map(|used| (used.description, &used.arguments)).collect();
    let attach = route.first().and_then(|head| attachment(graph.node(*head)).ok())?;
    if attach.redirects && route.len() == 1 {
        return process_preference_reason(graph, id, machine, refusals);
    }
    let (at, why) = check_twin_chain(&chain, program_target(&attach, hardened)).err()?;
    let first = route.get(at + 1).copied().unwrap_or(id);
    Some(if first == id { why } else { upstream_failure_reason(graph, first) })
}

/// Returns the reason why a source must be in the kernel: only kernel programs receive its frames.
/// Returns `None` for any other node.
pub(super) fn kernel_only_reason(node: &Node) -> Option<&'static str> {
    let attach = attachment(node).ok()?;
    if attach.only_matching_flows {
        return Some(
            "only a program in the kernel takes some frames and leaves the others to the host",
        );
    }
    attach.own_sockets.then_some(
        "only a program in the kernel sees what sockets exchange; root's daemon (`sudo streamline \
         daemon`) runs it for other users",
    )
}

/// Returns the reason to read a source in a process although the kernel could read it. The source
/// takes frames from the host. If no successor can run in the kernel, a program would only add a
/// hop. Returns `None` if a successor can run in the kernel.
fn process_preference_reason(
    graph: &Graph,
    id: NodeId,
    machine: &Machine,
    refusals: &[KernelRefusal],
) -> Option<String> {
    let mut behind = graph.outputs(id).map(|edge| edge.to);
    let runs = |id: NodeId| {
        let pin = graph.node(id).filter().and_then(|used| used.pin.as_deref());
        pin.is_none_or(|pin| pin == "kernel")
            && refusal_reason(graph, id, machine, refusals).is_none()
    };
    if behind.any(runs) {
        return None;
    }
    Some("no filter after it runs there, and frames are taken by AF_XDP sockets".to_owned())
}

/// Returns the nodes from the source to node `id`, or the reason why the kernel cannot run node
/// `id`.
fn route_from_source(graph: &Graph, id: NodeId) -> Result<Vec<NodeId>, String> {
    let route = upstream_chain(graph, id);
    let head = route.first().copied().unwrap_or(id);
    let node = graph.node(head);
    let feeds = node.filter().is_some_and(|used| used.endpoint.attach_point.is_some());
    if node.kind() != Some(FilterKind::Source) {
        return Err("no source in the kernel".to_owned());
    }
    if head != id && !feeds {
        return Err(format!("`{}` emits its blocks in a process", node.name()));
    }
    let explain =
        |at: NodeId, why: String| if at == id { why } else { upstream_failure_reason(graph, at) };
    let attach = attachment(node).map_err(|why| explain(head, why))?;
    for at in route.iter().skip(1) {
        check_program_step(graph, *at, attach.redirects).map_err(|why| explain(*at, why))?;
        check_state_unpublished(graph.node(*at)).map_err(|why| explain(*at, why))?;
        check_sessions(graph, *at).map_err(|why| explain(*at, why))?;
        check_program_sink(graph.node(*at), &attach).map_err(|why| explain(*at, why))?;
        let is_last = changes_or_consumes_frame(graph.node(*at), attach.redirects);
        if is_last && !is_only_receiver(graph, &route, *at, &attach) {
            let why = "acts on a frame that other nodes also receive";
            return Err(explain(*at, why.to_owned()));
        }
    }
    Ok(route)
}

/// Rejects a filter that publishes its state. A twin keeps its state in per-processor maps, and
/// every read of such a map is a system call.
fn check_state_unpublished(node: &Node) -> Result<(), String> {
    match node.filter().and_then(FilterUse::published_state_name) {
        None => Ok(()),
        Some(_) => Err("its state is published (`state=`), which only a thread can do".to_owned()),
    }
}

/// Rejects a filter that numbers sessions if a node downstream may read the numbers, because the
/// filter's twin does not number sessions.
fn check_sessions(graph: &Graph, id: NodeId) -> Result<(), String> {
    let used = graph.node(id).filter();
    if !used.is_some_and(|used| used.description.state.writes_session_numbers) {
        return Ok(());
    }
    match downstream_nodes(graph, id).into_iter().find(|id| may_read_session(graph.node(*id))) {
        None => Ok(()),
        Some(asks) => {
            let name = graph.node(asks).name();
            Err(format!("`{name}` after it may use sessions, which a twin does not set"))
        }
    }
}

/// Returns true if a node may read a block's session. A filter with a twin does not, because its
/// twin returns the same answers without sessions.
fn may_read_session(node: &Node) -> bool {
    let Some(used) = node.filter() else { return false };
    let description = used.description;
    let plain = ["pcap", "discard"].contains(&description.name);
    let decides =
        description.classes != Classes::Same && description.state.scope == StateScope::Nothing;
    !(plain || decides || description.emit_twin.is_some())
}

/// Returns all nodes downstream of a node, including operands of sections.
fn downstream_nodes(graph: &Graph, id: NodeId) -> Vec<NodeId> {
    let next = |at| graph.outputs(at).map(|edge| edge.to).chain(graph.operands(at));
    reachable(&[id], next).split_off(1)
}

/// Returns the nodes from the source to this node, found by following the first incoming edge of
/// each node upstream, except back edges.
fn upstream_chain(graph: &Graph, id: NodeId) -> Vec<NodeId> {
    let mut route = vec![id];
    let mut at = id;
    while let Some(edge) = graph.inputs(at).find(|edge| !edge.back) {
        at = edge.from;
        route.push(at);
    }
    route.reverse();
    route
}

fn upstream_failure_reason(graph: &Graph, id: NodeId) -> String {
    format!("after `{}`, which cannot run there", graph.node(id).name())
}

/// Returns true if a node changes or consumes the frame in the kernel, so that no other branch can
/// receive the original. A program that takes frames from the host (`takes`) also consumes a frame
/// that it sends; any other program sends a copy.
fn changes_or_consumes_frame(node: &Node, takes: bool) -> bool {
    let changes = node.kind() == Some(FilterKind::Editing);
    let of = |used: &FilterUse| {
        used.description.kind == FilterKind::Editing || takes && used.endpoint.outlet.is_some()
    };
    changes || node.filter().is_some_and(of)
}

/// Rejects a sink whose frames cannot be sent by a kernel program at the attachment point `attach`.
fn check_program_sink(node: &Node, attach: &AttachTarget) -> Result<(), String> {
    let Some(outlet) = node.filter().and_then(FilterUse::outlet) else { return Ok(()) };
    if attach.own_sockets {
        return Err("packets of sockets have no link header for sending".to_owned());
    }
    if outlet.netns != attach.netns {
        let why = "a program sends within its own network namespace";
        return Err(why.to_owned());
    }
    Ok(())
}

/// Returns true if the node `at` is the only one that receives its blocks: no other branch on the
/// `route` from the source selects them, and no other source has the same attachment.
fn is_only_receiver(graph: &Graph, route: &[NodeId], at: NodeId, attach: &AttachTarget) -> bool {
    let steps = route.iter().zip(route.iter().skip(1));
    let mut steps = steps.take_while(|(before, _)| **before != at);
    let alone = steps.all(|(before, next)| {
        let ours = |edge: &&Edge| edge.to == *next;
        let Some(this) = graph.outputs(*before).find(ours) else { return false };
        let mut others = graph.outputs(*before).filter(|edge| !ours(edge));
        others.all(|other| other.classes.intersection(&this.classes).ranges().is_empty())
    });
    let heads = graph.nodes_with_ids().filter(|(_, node)| node.kind() == Some(FilterKind::Source));
    alone && heads.filter(|(_, node)| attachment(node).as_ref() == Ok(attach)).count() == 1
}

/// Checks that a node other than a source can be part of a kernel program. Considers only the node
/// and its edges. `takes` is true if the program takes frames from the host, and may therefore
/// change them. Fails with the reason.
fn check_program_step(graph: &Graph, id: NodeId, takes: bool) -> Result<(), String> {
    let node = graph.node(id);
    let mut inputs = graph.inputs(id);
    let several = inputs.next().is_some() && inputs.next().is_some();
    let around = graph.inputs(id).chain(graph.outputs(id)).any(|edge| edge.back);
    let changes = node.kind() == Some(FilterKind::Editing);
    let why = match &node.step {
        Step::Merge => "merges sources, which takes a thread",
        Step::Section(_) => "a section, which runs in one thread",
        Step::Unknown => "not known",
        Step::Filter(_) if around => "part of a cycle, which runs in one thread",
        Step::Filter(_) if several => "branches meet, which takes a thread",
        Step::Filter(used) if used.description.emit_twin.is_none() => "no twin",
        Step::Filter(_) if changes && !takes => {
            "changes frames that the host must receive unchanged"
        }
        Step::Filter(_) => return Ok(()),
    };
    Err(why.to_owned())
}

/// Returns the programs of a plan, one per attachment point.
pub(super) fn plan_programs(
    graph: &Graph,
    spaces: &[PlannedSpace],
    placements: &[Placement],
    ring: &KernelRing,
) -> Vec<Program> {
    let inside = |id: NodeId| {
        let place = placements.get(id.0).and_then(|placements| spaces.get(placements.space));
        place.is_some_and(|space| space.kind == SpaceKind::Kernel)
    };
    program::build_programs(graph, &inside, ring)
}

/// Returns the programs that a plan would contain if it placed these nodes of a completed graph in
/// the kernel. Fails with the first of these nodes that the kernel cannot run. Used by a process
/// that runs another user's plan: it trusts only the choice of nodes, and checks each node.
pub fn programs_for_nodes(
    graph: &Graph,
    nodes: &[NodeId],
    machine: &Machine,
    ring: &KernelRing,
) -> Result<Vec<Program>, KernelRefusal> {
    for &node in nodes {
        let known = node.0 < graph.nodes.len();
        let why = if known {
            refusal_reason(graph, node, machine, &[])
        } else {
            Some("the request has no such node".into())
        };
        if let Some(why) = why {
            return Err(KernelRefusal { node, why });
        }
    }
    Ok(program::build_programs(graph, &|id| nodes.contains(&id), ring))
}
