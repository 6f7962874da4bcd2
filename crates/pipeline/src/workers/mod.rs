//! Worker processes (`--engines=`). The request runs once per processor, in separate processes that
//! each receive a share of the sessions. [Par §V-B]
//!
//! If a request cannot run this way, the reasons become diagnostics; otherwise it is rewritten to
//! one request per worker. In a worker's request, each source is followed by `shard 1 of=2
//! by=flow`, and each output directory has a suffix (`out.engine1`). The code that runs, explains
//! or edits a request therefore does not depend on worker processes.
//!
//! The filters of the request define its sessions. All blocks of a session, in both directions, go
//! to one worker. The key consists of addresses and ports, or only of addresses if a filter
//! reassembles fragments, which have no ports (as for replicas, see `plan/replicas`).

mod rewrite;

pub use rewrite::worker_request;

use crate::graph::{FilterUse, Graph, Node, NodeId, Step, reachable};
use crate::language::{Diagnostic, Span};
use crate::names::is_path;
use filter::sharing::ShardKey;
use filter::{FilterKind, Form, OutputForm, STATE_PARAMETER, StateScope, WorkerRule};

/// The name of the option for worker processes, without its dashes.
pub(crate) const WORKERS_OPTION: &str = "engines";
/// Maximum number of worker processes.
pub const WORKERS_MAX: u64 = 64;

/// Returns the number of worker processes for a machine with this many processors, or `None` if the
/// request does not ask for any.
#[must_use]
pub fn worker_count(graph: &Graph, processors: usize) -> Option<u32> {
    let most = u32::try_from(WORKERS_MAX).unwrap_or(1);
    match graph.options.text(WORKERS_OPTION)? {
        "auto" => Some(u32::try_from(processors).unwrap_or(most).clamp(1, most)),
        number => number.parse().ok(),
    }
}

/// Returns true if the text is a valid value for `--engines=`.
pub(crate) fn is_valid_worker_count(text: &str) -> bool {
    text == "auto" || text.parse().is_ok_and(|number: u64| (1..=WORKERS_MAX).contains(&number))
}

/// Returns the reasons why a request cannot run in worker processes. The list is empty if the
/// request does not ask for worker processes.
pub(crate) fn worker_mistakes(graph: &Graph) -> Vec<Diagnostic> {
    if graph.options.get(WORKERS_OPTION).is_none() {
        return Vec::new();
    }
    let mut found = Vec::new();
    if !matches!(graph.options.text("parallel"), None | Some("no")) {
        let first = graph.nodes.first().map_or_else(Span::default, |node| node.span);
        let what = "`--engines` already runs everything once per processor, without replicas";
        found.push(Diagnostic::error(first, what).hint("leave `--parallel` out"));
    }
    for (id, node) in graph.nodes_with_ids() {
        let Step::Filter(used) = &node.step else { continue };
        if let Err(why) = check_node_in_workers(graph, id, node, used) {
            let name = used.description.name;
            let what = format!("several engines cannot run `{name}`: {}", why.0);
            found.push(Diagnostic::error(node.span, what).hint(why.1));
        }
    }
    found
}

/// A reason why a request cannot run in worker processes. The first string describes the obstacle,
/// the second one how to remove it.
struct WorkerObstacle(String, String);

/// Checks that several worker processes can run this node. Fails with the reason.
fn check_node_in_workers(
    graph: &Graph,
    id: NodeId,
    node: &Node,
    used: &FilterUse,
) -> Result<(), WorkerObstacle> {
    let instead = |why: String| WorkerObstacle(why, WorkerRule::DEFAULT_HINT.to_owned());
    let description = used.description;
    if let WorkerRule::Differs(why, hint) = description.worker_rule(&used.arguments) {
        return Err(WorkerObstacle(why.to_owned(), hint.to_owned()));
    }
    if used.arguments.get(STATE_PARAMETER.name).is_some() {
        let why = "its state would have one name in several processes";
        let hint = format!("leave `{}` out, or `--engines`", STATE_PARAMETER.name);
        return Err(WorkerObstacle(why.to_owned(), hint));
    }
    let is_input = || {
        let mut paths = description.parameters.iter().filter(|parameter| is_path(parameter));
        paths.any(|parameter| used.arguments.text(parameter.name) == Some("-"))
    };
    match description.kind {
        FilterKind::Source => check_source(graph, id, used, is_input()),
        FilterKind::Sink => check_sink_in_workers(used),
        _ if description.worker_rule(&used.arguments) == WorkerRule::Summed => Ok(()),
        _ => match description.state.scope {
            StateScope::Nothing => Ok(()),
            StateScope::Private => {
                Err(instead("its state covers all blocks, not single sessions".into()))
            }
            StateScope::Pinned(why) => Err(instead(why.to_owned())),
            StateScope::Sessions => check_sessions(graph, id, node).map_err(instead),
        },
    }
}

fn check_source(
    graph: &Graph,
    id: NodeId,
    used: &FilterUse,
    is_input: bool,
) -> Result<(), WorkerObstacle> {
    let framed = matches!(used.effect().output_form, OutputForm::Form(Form::Frame | Form::Packet));
    let takes = used.attachment().and_then(Result::ok);
    if is_input {
        let hint = "write it to a file first, and name the file".to_owned();
        return Err(WorkerObstacle("standard input can be read by one process".to_owned(), hint));
    }
    if !framed {
        let why = "its output has no addresses that identify sessions";
        return Err(WorkerObstacle(why.to_owned(), WorkerRule::DEFAULT_HINT.to_owned()));
    }
    if takes.is_some_and(|attach| attach.redirects || attach.only_matching_flows) {
        let why = "a packet that one process takes is missing in the others";
        let hint = "observe them (leave `take` out), or leave `--engines` out";
        return Err(WorkerObstacle(why.to_owned(), hint.to_owned()));
    }
    if used.mark.is_some() {
        let why = "it has a mark, so it may be used in several places";
        return Err(WorkerObstacle(why.to_owned(), "leave `--name=` out".to_owned()));
    }
    if used.repeated {
        let why = "`++` has it several times, and only one filter after it divides the sessions";
        let hint = format!("write it once: `{} … | (… ++ …)`", used.description.name);
        return Err(WorkerObstacle(why.to_owned(), hint));
    }
    match graph.outputs(id).all(|edge| edge.classes.is_plain()) {
        true => Ok(()),
        false => {
            let why = "its blocks are divided before an arc selects a class, and have none";
            Err(WorkerObstacle(why.to_owned(), "write a plain `|` after it".to_owned()))
        }
    }
}

/// Checks that several worker processes can run a sink. They cannot if the sink writes a single
/// file, because the processes have no common order in which to write it. Fails with the reason.
fn check_sink_in_workers(used: &FilterUse) -> Result<(), WorkerObstacle> {
    if let WorkerRule::Directory(_) = used.description.worker_rule(&used.arguments) {
        return Ok(());
    }
    let file = used.description.parameters.iter().filter(|parameter| is_path(parameter));
    let mut file = file.filter_map(|parameter| used.arguments.text(parameter.name));
    match file.find(|name| *name != "-") {
        None => Ok(()),
        Some(_) => {
            let why = "the processes have no common order in which to write one file";
            let hint = "write a file per session (`files DIR`), write to standard output, or leave \
                        `--engines` out: `--parallel=N` keeps the order of all blocks";
            Err(WorkerObstacle(why.to_owned(), hint.to_owned()))
        }
    }
}

/// Checks that all blocks of each session in a filter go to the same worker. Fails with the reason.
fn check_sessions(graph: &Graph, id: NodeId, node: &Node) -> Result<(), String> {
    let sessions_of =
        |id: &NodeId| graph.node(*id).filter().and_then(|used| used.description.state.session_key);
    let upstream = upstream_nodes(graph, id);
    let Some(description) = node.filter().map(|used| used.description) else { return Ok(()) };
    if description.state.session_key.is_none() {
        let alone = description.state.scope_without_session == StateScope::Nothing;
        return match alone || upstream.iter().any(|id| sessions_of(id).is_some()) {
            true => Ok(()),
            false => Err("no filter before it identifies sessions".to_owned()),
        };
    }
    let changes = |id: &&NodeId| {
        sessions_of(id).is_none() && graph.node(**id).kind() == Some(FilterKind::Editing)
    };
    match upstream.iter().find(changes) {
        None => Ok(()),
        Some(other) => {
            let other = graph.node(*other).name();
            Err(format!("`{other}` changes blocks before their sessions are identified"))
        }
    }
}

/// Returns all nodes upstream of a node; for an operand, also its section and the operands before
/// it in a chain.
fn upstream_nodes(graph: &Graph, id: NodeId) -> Vec<NodeId> {
    let mut found = vec![id];
    if let Some(owner) = graph.node(id).inside {
        if let Step::Section(body) = &graph.node(owner).step {
            body.collect_operands_before(id, &mut found);
        }
        found.push(owner);
    }
    reachable(&found, |at| graph.inputs(at).map(|edge| edge.from)).split_off(1)
}

/// Returns the key by which blocks are distributed among worker processes.
#[must_use]
pub fn worker_shard_key(graph: &Graph) -> ShardKey {
    let keys =
        graph.nodes_with_ids().filter_map(|(_, node)| node.filter()?.description.state.session_key);
    match keys.into_iter().any(|by| by == ShardKey::Addresses) {
        true => ShardKey::Addresses,
        false => ShardKey::Flow,
    }
}
