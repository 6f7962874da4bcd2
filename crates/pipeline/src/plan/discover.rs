//! Discovery of the spaces that can run each node, with the cost of the node in each space, or the
//! reason why the space cannot run it. [SL §7.1]

use super::costs::{compute_input_shares, takes_frames_from_host};
use super::kernel::{kernel_only_reason, refusal_reason};
use super::machine::Machine;
use super::model::{KernelRefusal, PlannedSpace, SpaceKind};
use super::pushdown::find_pushdowns;
use crate::graph::{Graph, Node, NodeId};
use filter::{FilterKind, ReadDepth};

/// The spaces available to a request on a machine, in the order in which blocks can pass through
/// them, and the cost of every node in each space.
#[derive(Debug, Clone)]
pub(super) struct Discovery {
    /// The spaces, grouped by component; in each component, the kernel comes first, then threads,
    /// then processes.
    pub(super) spaces: Vec<PlannedSpace>,
    /// For each process space, the node to which it belongs; `None` for the kernel and threads.
    pub(super) owners: Vec<Option<NodeId>>,
    /// For each node and each space, the cost of a block in ns, or the reason why the space refuses
    /// the node.
    pub(super) verdicts: Vec<Vec<Result<f64, String>>>,
    /// The expected fraction of all input blocks that arrives at each node, and that passes each
    /// edge.
    pub(super) flows: (Vec<f64>, Vec<f64>),
    /// For each node, the number that identifies its connected component.
    pub(super) components: Vec<usize>,
    /// For each node, true if the frames that arrive there were taken from the host, which then
    /// does not receive them.
    pub(super) taken_from_host: Vec<bool>,
    /// For each node, true if its filter reads header offsets, for which some node must search.
    pub(super) needs_headers: Vec<bool>,
}

/// The thread of the sources, which also reads the kernel's rings.
pub(super) const FIRST_THREAD: &str = "thread0";

/// The reason for not running a program in a thread.
const PROGRAM_REASON: &str = "an ordinary program: a process of its own";
/// The reason for not running an untrusted filter in a thread, including the limits of the filter's
/// process.
pub(super) const UNTRUSTED_REASON: &str = "untrusted: a process of its own, which reads its input \
                                    and can only answer: no files, no network, no other process";
/// The maximum length, in characters, of the command in a process name.
const COMMAND_CHARS_MAX: usize = 24;

/// Determines the cost of every node in every space, or the reason why the space cannot run it.
pub(super) fn discover_spaces(
    graph: &Graph,
    machine: &Machine,
    refused: &[KernelRefusal],
) -> Discovery {
    let components = find_components(graph);
    let count = components.iter().max().map_or(0, |last| last + 1);
    let mut spaces = Vec::new();
    let mut owners = Vec::new();
    for component in 0..count {
        spaces.push(PlannedSpace { name: "kernel".to_owned(), kind: SpaceKind::Kernel, component });
        for thread in 0..thread_count_max(graph, &components, component) {
            let name =
                if thread == 0 { FIRST_THREAD.to_owned() } else { format!("thread{thread}") };
            spaces.push(PlannedSpace { name, kind: SpaceKind::Thread, component });
        }
        owners.resize(spaces.len(), None);
        for (id, node) in graph
            .nodes_with_ids()
            .filter(|(id, node)| components[id.0] == component && node.has_own_process())
        {
            spaces.push(PlannedSpace {
                name: process_name(node),
                kind: SpaceKind::Process,
                component,
            });
            owners.push(Some(id));
        }
    }
    let verdicts = graph
        .nodes_with_ids()
        .map(|(id, node)| {
            let kernel = refusal_reason(graph, id, machine, refused);
            let ask = |(s, owner): (&PlannedSpace, &Option<NodeId>)| match owner {
                // Processes of other nodes are not listed, so they need no reason.
                Some(owner) if *owner != id => Err(String::new()),
                _ => space_verdict(graph, id, node, s, &components, machine, kernel.as_deref()),
            };
            spaces.iter().zip(&owners).map(ask).collect()
        })
        .collect();
    let order = graph.stream_order();
    let flows = compute_input_shares(graph, &order, &machine.costs);
    let mut taken_from_host = vec![false; graph.nodes.len()];
    for id in order {
        let mut before = graph.inputs(id).filter(|edge| !edge.back);
        taken_from_host[id.0] =
            before.any(|edge| taken_from_host[edge.from.0]) || takes_frames_from_host(graph, id);
    }
    let needs_headers = graph.nodes_with_ids().map(|(_, node)| needs_headers(node)).collect();
    Discovery { spaces, owners, verdicts, flows, components, taken_from_host, needs_headers }
}

/// Returns true if a node needs header offsets.
fn needs_headers(node: &Node) -> bool {
    node.filter().is_some_and(|used| matches!(used.effect().reads, ReadDepth::Head(_)))
}

/// Returns the maximum number of threads that a plan may use for a component. The number begins
/// with one thread, two if a sink writes files, or more if pins require more. One thread is added
/// for each process on the path that has the most processes.
fn thread_count_max(graph: &Graph, components: &[usize], component: usize) -> usize {
    let here = || graph.nodes_with_ids().filter(|(id, _)| components[id.0] == component);
    let pinned = here().filter_map(|(_, node)| pinned_thread(node)).max().map_or(0, |n| n + 1);
    let writers = usize::from(here().any(|(_, node)| is_file_sink(node)));
    (1 + writers).max(pinned) + process_count_max(graph, components, component)
}

/// Returns the maximum number of processes that have input on any path of the component.
fn process_count_max(graph: &Graph, components: &[usize], component: usize) -> usize {
    let mut passed = vec![0; graph.nodes.len()];
    if !graph
        .nodes_with_ids()
        .any(|(id, node)| components[id.0] == component && node.has_own_process())
    {
        return 0;
    }
    for id in graph.stream_order() {
        let mut before = graph.inputs(id).filter(|edge| !edge.back).peekable();
        let own = usize::from(graph.node(id).has_own_process() && before.peek().is_some());
        passed[id.0] = own + before.map(|edge| passed[edge.from.0]).max().unwrap_or(0);
    }
    let passed = graph
        .nodes_with_ids()
        .filter(|(id, _)| components[id.0] == component)
        .map(|(id, _)| passed[id.0]);
    passed.max().unwrap_or(0)
}

/// Returns the name of a process, such as `process "grep -v foo"` or `sandbox http`.
fn process_name(node: &Node) -> String {
    if node.is_untrusted() {
        return format!("sandbox {}", node.name());
    }
    let arguments = node.filter().map(|used| &used.arguments);
    let command = arguments.and_then(|given| given.text("command")).unwrap_or_default();
    let begin: String = command.chars().take(COMMAND_CHARS_MAX).collect();
    let more = if begin.len() < command.len() { "…" } else { "" };
    format!("process {:?}", begin + more)
}

fn pinned_thread(node: &Node) -> Option<usize> {
    node.filter()?.pin.as_deref()?.strip_prefix("thread")?.parse().ok()
}

pub(super) fn is_file_sink(node: &Node) -> bool {
    node.filter().is_some_and(|used| used.endpoint.writes_files)
}

/// Returns true if the sinks of a node's component may write in the thread that reads from the
/// kernel. A slow disk then delays only the output files, not the host. This requires that every
/// source of the component reads a kernel ring for which the host does not wait, that every sink
/// either appends to a file or neither reads nor sends the bytes of its blocks, and that no other
/// node is an external program or an untrusted filter.
fn may_write_in_reader_thread(graph: &Graph, components: &[usize], id: NodeId) -> bool {
    let mut here =
        graph.nodes_with_ids().filter(|(other, _)| components[other.0] == components[id.0]);
    here.all(|(id, node)| {
        let Some(used) = node.filter() else { return true };
        let facts = used.endpoint;
        match node.kind() {
            Some(FilterKind::Source) => {
                facts.attach_point.is_some() && !takes_frames_from_host(graph, id)
            }
            Some(FilterKind::Sink) if facts.writes_files => {
                facts.only_appends.is_some_and(|appends| appends(&used.arguments))
            }
            Some(FilterKind::Sink) => {
                facts.outlet.is_none() && used.effect().reads == ReadDepth::Nothing
            }
            _ => !facts.is_program && !node.is_untrusted(),
        }
    })
}

/// Returns, for each node, the number of its connected component. Components are numbered in text
/// order; all numbers are 0 if the graph is planned as one component.
fn find_components(graph: &Graph) -> Vec<usize> {
    if graph.one_component {
        return vec![0; graph.nodes.len()];
    }
    let mut component: Vec<usize> = (0..graph.nodes.len()).collect();
    let joined = graph.edges.iter().map(|e| (e.from.0, e.to.0));
    let inside = graph.nodes_with_ids().filter_map(|(id, node)| Some((id.0, node.inside?.0)));
    let pairs: Vec<(usize, usize)> = joined.chain(inside).collect();
    let mut changed = true;
    while changed {
        changed = false;
        for (a, b) in &pairs {
            let least = component[*a].min(component[*b]);
            changed |= component[*a] != least || component[*b] != least;
            component[*a] = least;
            component[*b] = least;
        }
    }
    let mut firsts = component.clone();
    firsts.sort_unstable();
    firsts.dedup();
    component.iter().map(|p| firsts.binary_search(p).unwrap_or(0)).collect()
}

fn space_verdict(
    graph: &Graph,
    id: NodeId,
    node: &Node,
    space: &PlannedSpace,
    components: &[usize],
    machine: &Machine,
    refused: Option<&str>,
) -> Result<f64, String> {
    let first = space.name == FIRST_THREAD;
    if space.component != components[id.0] {
        return Err("belongs to another pipeline".to_owned());
    }
    if let Some(used) = node.filter()
        && used.pin.as_ref().is_some_and(|pin| *pin != space.name)
        && let Some(why) = used.bound_space_reason()
    {
        return Err(why);
    }
    if node.inside.is_some() && space.kind == SpaceKind::Kernel {
        return Err("part of a section, which runs in one thread".to_owned());
    }
    if node.has_own_process() && space.kind != SpaceKind::Process {
        return Err(if node.is_untrusted() { UNTRUSTED_REASON } else { PROGRAM_REASON }.to_owned());
    }
    if let (SpaceKind::Thread, Some(why)) = (space.kind, kernel_only_reason(node)) {
        return Err(why.to_owned());
    }
    let pinned = node.filter().is_some_and(|used| used.pin.is_some());
    match space.kind {
        SpaceKind::Kernel => match refused {
            Some(why) => Err(why.to_owned()),
            None => Ok(machine.costs.kernel_cost(graph, id)),
        },
        // A thread that may block on a disk must not be the reading thread, unless the kernel's
        // ring holds the frames meanwhile and no other sink waits for them.
        SpaceKind::Thread if node.kind() == Some(FilterKind::Source) && !first && !pinned => {
            Err("a source begins in the first thread".to_owned())
        }
        SpaceKind::Thread
            if is_file_sink(node)
                && first
                && !pinned
                && !may_write_in_reader_thread(graph, components, id) =>
        {
            Err("writes files: not in the thread that reads".to_owned())
        }
        SpaceKind::Thread => Ok(thread_cost(graph, id, machine)),
        SpaceKind::Process => {
            let has_input = graph.inputs(id).next().is_some();
            let pipes = u8::from(has_input) + u8::from(graph.outputs(id).next().is_some());
            Ok(thread_cost(graph, id, machine) + f64::from(pipes) * machine.costs.crossing_cost())
        }
    }
}

/// Returns the cost of a block in a node that runs in a thread, in ns. For a source at an
/// interface, the cost includes that of the socket's filter, and of receiving the frames that pass
/// this filter. Both are omitted if the kernel cannot load programs, because they are then the same
/// in every plan.
fn thread_cost(graph: &Graph, id: NodeId, machine: &Machine) -> f64 {
    let own = machine.costs.thread_cost(graph, id);
    let used = graph.node(id).filter();
    let attaches = used.is_some_and(|used| used.endpoint.attach_point.is_some());
    // If the kernel runs no programs, receiving a frame costs the same everywhere and can be
    // omitted.
    if !attaches || !machine.kernel.can_load_programs() {
        return own;
    }
    // Frames that the socket filter rejects never enter the ring of the socket.
    let ahead = find_pushdowns(graph).into_iter().find(|pushed| pushed.source == id);
    let asked = ahead.and_then(|pushed| pushed.filter.ok());
    let past = asked.map_or(1.0, |filter| {
        let shares = graph.outputs(filter).map(|edge| machine.costs.arc_share(graph, edge));
        shares.sum::<f64>().min(1.0)
    });
    // The filter of the socket is a program, too, and runs for every frame.
    let bound_ns = if past < 1.0 { machine.costs.tap + machine.costs.twin } else { 0.0 };
    let has_input =
        if takes_frames_from_host(graph, id) { machine.costs.xsk } else { machine.costs.socket };
    own + has_input * past + bound_ns
}
