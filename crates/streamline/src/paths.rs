//! The running paths of this machine, for programs that display them or read from them.
//!
//! [`query_paths`] queries the processes of all paths in parallel, and waits for a bounded time for
//! all of them together. The module uses the types of the daemon's protocol.

pub use edit_check::check_edit;
pub use endpoint::external_writers::{InputClosed, WriterSocket};
pub use endpoint::tap_ring::{Notification, ReaderState, TapRingReader};
pub use idle_connections::{IdleConnections, query_counters};
pub use member::client::{Client, ClientError, PathClient, QUERY_TIMEOUT, mask_hidden_characters};
pub use member::faults::{self, OUTDATED_ERROR};
pub use member::page_socket;
pub use member::protocol::{
    Amount, Argument, ChangeParameters, ChangedNodes, Counters, DaemonDescription, Filter,
    FreezeHistoryParameters, Loss, NodeArc, NodeDetails, NodesReply, PathDescription, PathEnd,
    PathListEvent, PathUpdate, RegisteredPath, Source, Space, TapParameters, TapReport, TapStart,
    Totals, WriteParameters,
};
pub use member::rights::{home_directory, user_name};
pub use member::varlink::Fault;
pub use new_filter::{NewFilter, parse_new_filter, replace_arguments};
pub use published::read_published_state;
pub use sys::memory::Memfd;

mod edit_check;
mod idle_connections;
mod new_filter;
mod published;
pub mod rates;

use crate::neighbors::NeighborFindings;
use engine::doctor::neighbors::Neighbors;
use engine::registry::MachineRegistry;
use filter::{AttachTarget, FilterKind, TrafficDirection};
use member::client::NODES_METHOD;
use member::protocol::NodesParameters;
use member::varlink::Call;
use pipeline::Registry as _;
use pipeline::explain;
use pipeline::graph::{Graph, NodeId};
use std::collections::HashMap;
use std::sync::Arc;
use std::time::Duration;

/// Maximum number of nodes accepted from a path.
const NODES_MAX: usize = 1 << 16;
/// Maximum number of attempts to read the nodes of a path. An attempt fails if the path changes
/// during the attempt.
const QUERY_ATTEMPTS_MAX: usize = 4;

/// A path in the daemon's registry, with its nodes.
#[derive(Clone, PartialEq, Debug, Default)]
pub struct PathView {
    /// The path, as the daemon's registry lists it.
    pub path: RegisteredPath,
    /// Text of the request that the path runs; empty if the path was not queried or did not reply.
    pub line: String,
    /// Nodes of the path's plan; empty if the path was not queried or did not reply.
    pub nodes: Arc<Vec<Arc<NodeDetails>>>,
    /// Version of the text and the nodes; it changes whenever the path changes. `None` if the path
    /// was not queried, did not reply, or has no version.
    pub version: Option<u64>,
    /// True if the caller may connect to the path, but the path refused the query for its nodes or
    /// did not reply in time.
    pub silent: bool,
}

impl PathView {
    /// Returns the view of the path after a change. `reply` must describe the new nodes relative to
    /// the version of this view. Returns `None` if `reply` does not describe all nodes.
    #[must_use]
    pub fn view_after_change(&self, reply: ChangedNodes) -> Option<Self> {
        let (version, line) = (reply.version, reply.line.clone());
        Some(self.with_new_nodes(version, line, reply.all_nodes(&self.nodes)?))
    }

    fn with_new_nodes(
        &self,
        version: Option<u64>,
        line: String,
        nodes: Vec<Arc<NodeDetails>>,
    ) -> Self {
        let mut path = self.path.clone();
        path.line.iter_mut().for_each(|known| known.clone_from(&line));
        Self { path, line, nodes: Arc::new(nodes), version, silent: false }
    }
}

/// Returns all paths that are visible to this user. A path to which the user may connect is
/// returned with its nodes. Paths that end during the query are omitted. `known` contains the
/// results of an earlier query; the request and nodes of a path that has not changed since then are
/// reused. Uses connections from `idle` if possible, and puts all connections into `idle` for later
/// queries. Blocks for at most `limit` until the paths have replied.
pub fn query_paths(
    client: &Client,
    known: &[PathView],
    idle: &IdleConnections,
    limit: Duration,
) -> Result<Vec<PathView>, ClientError> {
    let listed = client.list_paths()?;
    let known: HashMap<_, &PathView> =
        known.iter().map(|view| ((view.path.number, view.path.started), view)).collect();
    let known = |path: &RegisteredPath| known.get(&(path.number, path.started)).copied();
    let open: Vec<&RegisteredPath> = listed.iter().filter(|path| path.yours).collect();
    let call = |path: &&RegisteredPath| {
        let known = known(path).and_then(|view| view.version);
        let call = Call::new(NODES_METHOD, &NodesParameters { first: None, known });
        (path.uid, (path.number.to_string(), vec![call]))
    };
    let calls: Vec<_> = open.iter().map(call).collect();
    let take = |number: &str| idle.take_by_path_number(number);
    let mut replies = client.call_all_reusing_idle(&calls, take, limit, |to, replies| {
        let first = replies.into_iter().next().unwrap_or_default().deserialize_result()?;
        let nodes = query_remaining_nodes(&to, first)?;
        idle.store(to);
        Ok(nodes)
    });
    let mut replies = replies.drain(..);
    let view = |path: RegisteredPath| {
        let reply = if path.yours { replies.next() } else { None };
        let NodesReply { version, line, nodes, .. } = match reply {
            Some(Ok(reply)) => reply,
            Some(Err(error)) if error.is_path_ended() => return None,
            // Its process is stopped, overloaded, or has too many clients.
            Some(Err(_)) => {
                let line = path.line.clone().unwrap_or_default();
                return Some(PathView { path, line, silent: true, ..PathView::default() });
            }
            None => return Some(PathView { path, ..PathView::default() }),
        };
        let same = known(&path).filter(|known| version.is_some() && known.version == version);
        Some(match same {
            Some(known) => PathView { path, silent: false, ..known.clone() },
            None => {
                let nodes = Arc::new(nodes.into_iter().map(Arc::new).collect());
                PathView { path, line, nodes, version, silent: false }
            }
        })
    };
    Ok(listed.into_iter().filter_map(view).collect())
}

/// Queries a path again, and returns its current view. Reuses the request and the nodes in `known`
/// if the path has not changed since `known` was obtained. Each call to the path blocks for at most
/// the connection's timeout.
pub fn requery_path(to: &PathClient, known: &PathView) -> Result<PathView, ClientError> {
    let wanted = NodesParameters { first: None, known: known.version };
    let NodesReply { version, line, nodes, .. } =
        query_remaining_nodes(to, to.call(NODES_METHOD, &wanted)?)?;
    if version.is_some() && version == known.version {
        return Ok(PathView { silent: false, ..known.clone() });
    }
    Ok(known.with_new_nodes(version, line, nodes.into_iter().map(Arc::new).collect()))
}

/// Queries the remaining nodes of a path. `page` is the first page of nodes, which the caller has
/// received. Returns the request and all nodes. If the path changes during the query, starts again,
/// and fails after [`QUERY_ATTEMPTS_MAX`] attempts.
fn query_remaining_nodes(to: &PathClient, mut page: NodesReply) -> Result<NodesReply, ClientError> {
    let mut nodes = std::mem::take(&mut page.nodes);
    let mut attempts = 1;
    while let Some(next) = page.next.filter(|next| *next == nodes.len() && *next < NODES_MAX) {
        let version = page.version;
        page = to.call(NODES_METHOD, &NodesParameters { first: Some(next), known: None })?;
        if page.version == version {
            nodes.append(&mut page.nodes);
        } else if attempts == QUERY_ATTEMPTS_MAX {
            return Err(ClientError::Timeout);
        } else {
            attempts += 1;
            page = to.call(NODES_METHOD, &NodesParameters::default())?;
            nodes = std::mem::take(&mut page.nodes);
        }
    }
    Ok(NodesReply { nodes, ..page })
}

/// Returns the request that a path runs, and the details of its nodes. Blocks for at most
/// [`member::client::CALL_TIMEOUT`] per call.
pub fn query_node_details(to: &PathClient) -> Result<(String, Vec<NodeDetails>), ClientError> {
    let NodesReply { line, nodes, .. } =
        query_remaining_nodes(to, to.call(NODES_METHOD, &NodesParameters::default())?)?;
    Ok((line, nodes))
}

/// Returns the names of all filters, sources and sinks, sorted.
#[must_use]
pub fn manual_names() -> Vec<&'static str> {
    let mut names: Vec<_> = MachineRegistry::descriptions().map(|entry| entry.name).collect();
    names.sort_unstable();
    names.dedup();
    names
}

/// Returns true if a filter, source or sink has this name.
#[must_use]
pub fn has_manual(name: &str) -> bool {
    MachineRegistry::descriptions().any(|entry| entry.name == name)
}

/// Returns the manual of a filter, as printed by `streamline filters NAME`, or `None` if no filter
/// has this name. If the name is both a source and a sink, returns both manuals.
#[must_use]
pub fn filter_manual(name: &str) -> Option<String> {
    let entries = MachineRegistry::descriptions().filter(|entry| entry.name == name);
    let pages: Vec<String> = entries
        .map(|entry| explain::format_help(entry, MachineRegistry::Local.endpoint_facts(entry)))
        .collect();
    (!pages.is_empty()).then(|| pages.join("\n"))
}

/// Returns true if blocks that leave a node of the request `line` can have classes that `label`
/// selects. A label is written as on an arc: `80`, `get` or `22:23`. Fails with the reason if this
/// process cannot read the request, for example because it contains filters of another program.
pub fn can_have_class(line: &str, node: &NodeDetails, label: &str) -> Result<bool, String> {
    let (graph, at) = find_request_node(line, node)?;
    Ok(pipeline::resolve_output_label(&graph, at, label, &MachineRegistry::Local).is_ok())
}

/// Returns the kernel instructions of a filter of this request. Fails with the reason if this
/// process cannot read the request, or if the filter has no kernel implementation.
pub fn kernel_instruction_listing(line: &str, node: &NodeDetails) -> Result<String, String> {
    let (graph, at) = find_request_node(line, node)?;
    engine::kernel::listing::list_filter_instructions(&graph, at)
}

/// Parses a time such as `10s` or `500ms`, into ns. Fails with a text that describes the syntax.
pub fn parse_time(text: &str) -> Result<u64, String> {
    explain::parse_time(text).map_err(|why| why.to_string())
}

/// Returns true if the catalog contains a source with this name.
#[must_use]
pub fn is_source(filter: &str) -> bool {
    MachineRegistry::Local.find(filter).is_some_and(|entry| entry.kind == FilterKind::Source)
}

/// Returns the kernel hooks to which the programs that run a node are attached, such as `tc ingress
/// eth0`: one for each source whose blocks reach the node. Fails with the reason if the request
/// does not contain the node.
pub fn kernel_hooks(line: &str, node: &NodeDetails) -> Result<Vec<String>, String> {
    let (graph, at) = find_request_node(line, node)?;
    let mut upstream = vec![at];
    let mut next = 0;
    while let Some(at) = upstream.get(next).copied() {
        let parents = graph.edges.iter().filter(|edge| edge.to == at && !edge.back);
        let parents = parents.map(|edge| edge.from).collect::<Vec<_>>();
        upstream.extend(
            parents.into_iter().filter(|parent| !upstream.contains(parent)).collect::<Vec<_>>(),
        );
        next += 1;
    }
    let attached = upstream.iter().filter_map(|at| graph.node(*at).filter()?.attachment()?.ok());
    let mut hooks: Vec<String> = attached.map(|attach| hook_name(&attach)).collect();
    hooks.sort();
    hooks.dedup();
    Ok(hooks)
}

fn hook_name(attach: &AttachTarget) -> String {
    let netns = attach.netns.as_ref().map_or_else(String::new, |name| format!(" of {name}"));
    match (attach.own_sockets, attach.redirects, attach.side) {
        (true, ..) => "cgroup of the user's sockets".to_owned(),
        (false, true, _) => format!("xdp {}{netns}", attach.interface),
        (false, false, TrafficDirection::Received) => {
            format!("tc ingress {}{netns}", attach.interface)
        }
        (false, false, TrafficDirection::Sent) => format!("tc egress {}{netns}", attach.interface),
    }
}

/// Parses a request. Returns its graph, and the id of `node` in this graph. Fails with the first
/// error in the request if there is one, or if the request does not contain the node.
fn find_request_node(line: &str, node: &NodeDetails) -> Result<(Graph, NodeId), String> {
    let (graph, diagnostics) = pipeline::read_request(line, &MachineRegistry::Local);
    if let Some(mistake) = diagnostics.iter().find(|mistake| mistake.is_error()) {
        return Err(mistake.what.clone());
    }
    let names = explain::unique_names(&graph);
    let at = names.iter().position(|name| *name == node.name);
    let at = at.ok_or_else(|| format!("the request has no `{}`", node.name))?;
    Ok((graph, NodeId(at)))
}

/// Connects to the path with this name or number. Fails within [`QUERY_TIMEOUT`] if the path's
/// process is stopped.
pub fn connect(client: &Client, path: &str) -> Result<PathClient, ClientError> {
    client.connect_and_describe(path).map(|(to, _)| to)
}

/// Reason reported when a tap ends because its path has ended.
pub const PATH_ENDED: &str = "the path has ended";
/// Reason reported when a tap ends because its node was removed or moved to another space.
pub const NODE_CHANGED_REASON: &str = "its node was changed: start it again";

/// Describes the programs and packet sockets of other applications at an interface, with their
/// owners and their effect on a request, as `doctor` prints them. Reads the descriptors of all
/// processes.
#[must_use]
pub fn format_neighbors_at(interface: &str) -> String {
    let found = Neighbors::find(None, Some(interface));
    NeighborFindings::new(&found).format_table(explain::TEXT_COLUMNS_MAX)
}
