//! The chains of filters that can be replicated.

use crate::graph::{Graph, NodeId, Step, reachable};
use crate::plan::machine::Machine;
use crate::plan::model::{Plan, PlannedEdge, SpaceKind};
use filter::sharing::ShardKey;
use filter::{FilterKind, Form, StateScope};

/// A chain of filters that can be replicated.
#[derive(Debug, Clone)]
pub(super) struct Chain {
    pub(super) nodes: Vec<NodeId>,
    pub(super) sharing: Option<ShardKey>,
}

/// A search for chains of filters that are worth replicating, in a plan for a machine.
pub(super) struct ChainSearch<'p> {
    pub(super) plan: &'p Plan,
    pub(super) machine: &'p Machine,
}

impl ChainSearch<'_> {
    /// Returns all chains of a component that can be replicated.
    pub(super) fn replicable_chains(&self, component: usize) -> Vec<Chain> {
        let graph = &self.plan.graph;
        let here = |id: &NodeId| self.plan.space_of(*id).component == component;
        let mut found = Vec::new();
        for head in graph.nodes_with_ids().map(|(id, _)| id).filter(here) {
            let mut chain = Chain { nodes: Vec::new(), sharing: None };
            let mut next = Some(head);
            while let Some(id) = next {
                let Ok(sharing) = self.shard_key_with_filter(&chain, id) else { break };
                chain.nodes.push(id);
                chain.sharing = sharing;
                if self.check_merge_order(&chain).is_ok() {
                    found.push(chain.clone());
                }
                next = self.sole_successor(id);
            }
        }
        found
    }

    /// Returns the successor of a node, if a chain can continue with it: it is the only successor,
    /// has no other input, and is called directly rather than over a ring. Otherwise returns
    /// `None`.
    fn sole_successor(&self, id: NodeId) -> Option<NodeId> {
        let (graph, edges) = (&self.plan.graph, &self.plan.edges);
        let mut out = graph.edges.iter().zip(edges).filter(|(edge, _)| edge.from == id);
        let (Some((edge, PlannedEdge::Call)), None) = (out.next(), out.next()) else { return None };
        (graph.inputs(edge.to).count() == 1).then_some(edge.to)
    }

    /// Returns the key by which blocks would be distributed among replicas of the chain if this
    /// filter were appended to it. Returns `None` if they would be distributed by load. Fails with
    /// the reason why the filter cannot be appended.
    pub(super) fn shard_key_with_filter(
        &self,
        chain: &Chain,
        id: NodeId,
    ) -> Result<Option<ShardKey>, String> {
        let node = self.plan.graph.node(id);
        let used = match &node.step {
            Step::Filter(used) => used,
            Step::Section(_) => return Err("a section, which runs in one thread".to_owned()),
            Step::Merge | Step::Unknown => return Err("not a filter".to_owned()),
        };
        let description = used.description;
        if let Some(why) = used.bound_space_reason() {
            return Err(why);
        }
        if node.inside.is_some() {
            return Err("part of a section".to_owned());
        }
        if used.has_own_process() || description.constructor.is_none() {
            return Err("not a filter of this process".to_owned());
        }
        if used.published_state_name().is_some() {
            return Err("its state is published (`state=`), as one state with this name".to_owned());
        }
        if self.plan.space_of(id).kind != SpaceKind::Thread {
            return Err("runs in the kernel".to_owned());
        }
        match description.state.scope {
            StateScope::Nothing => Ok(chain.sharing),
            StateScope::Private => Err("private state: one for all blocks".to_owned()),
            StateScope::Pinned(why) => Err(format!("state that cannot move: {why}")),
            StateScope::Sessions => self.session_shard_key(chain, id),
        }
    }

    /// Returns the key by which blocks would be distributed among replicas of the chain if this
    /// filter, which keeps state per session, were appended to it. Returns `None` if they would be
    /// distributed by load. Fails with the reason why the filter cannot be appended.
    fn session_shard_key(&self, chain: &Chain, id: NodeId) -> Result<Option<ShardKey>, String> {
        let graph = &self.plan.graph;
        let description = |id: NodeId| graph.node(id).filter().map(|used| used.description);
        let sessions_of = |id: NodeId| description(id).and_then(|known| known.state.session_key);
        let head = chain.nodes.first().copied().unwrap_or(id);
        let numbers_sessions =
            |id: &NodeId| description(*id).is_some_and(|known| known.state.writes_session_numbers);
        match sessions_of(id) {
            Some(own) => {
                let raw = |form: &Form| matches!(form, Form::Frame | Form::Packet | Form::Segment);
                let changed = |id: &NodeId| graph.node(*id).kind() >= Some(FilterKind::Editing);
                let changes = |id: &NodeId| sessions_of(*id).is_none() && changed(id);
                match chain.sharing {
                    None if !graph.node(head).input_forms.iter().all(raw) => {
                        Err("its sessions are not visible in its input".to_owned())
                    }
                    // Sessions are identified before any filter changes the block.
                    None if chain.nodes.iter().any(changes) => {
                        Err("a filter before it changes blocks".to_owned())
                    }
                    None => Ok(Some(own)),
                    Some(ShardKey::Addresses) => Ok(Some(ShardKey::Addresses)),
                    Some(_) => Err("other sessions than before".to_owned()),
                }
            }
            None if chain.nodes.iter().any(numbers_sessions) => Ok(chain.sharing),
            None if self.upstream_nodes(head).iter().any(numbers_sessions) => match chain.sharing {
                None | Some(ShardKey::Session) => Ok(Some(ShardKey::Session)),
                Some(_) => Err("other sessions than before".to_owned()),
            },
            None => match description(id).map(|known| known.state.scope_without_session) {
                Some(StateScope::Nothing) => Ok(chain.sharing),
                _ => Err("private state: no filter before it identifies sessions".to_owned()),
            },
        }
    }

    /// Checks that blocks keep their order downstream if the outputs of the chain's replicas are
    /// merged. Fails with the reason if they do not.
    pub(super) fn check_merge_order(&self, chain: &Chain) -> Result<(), String> {
        let graph = &self.plan.graph;
        let Some(last) = chain.nodes.last().copied() else { return Ok(()) };
        let behind = downstream_nodes(graph, last);
        let component = self.plan.space_of(last).component;
        let of_part = |id: NodeId| self.plan.space_of(id).component == component;
        if graph.edges.iter().any(|edge| edge.back && of_part(edge.from)) {
            return Err("a cycle, which runs in one thread".to_owned());
        }
        let from_elsewhere = |id: &NodeId| {
            graph.inputs(*id).any(|edge| edge.from != last && !behind.contains(&edge.from))
        };
        match behind.iter().any(from_elsewhere) {
            true => Err("another branch joins the next filters".to_owned()),
            false => Ok(()),
        }
    }

    /// Returns all nodes upstream of a node.
    fn upstream_nodes(&self, id: NodeId) -> Vec<NodeId> {
        let inputs = |at| self.plan.graph.inputs(at).filter(|edge| !edge.back);
        reachable(&[id], |at| inputs(at).map(|edge| edge.from)).split_off(1)
    }

    /// Returns the cost of a node per input block of the request, in ns: its cost per block,
    /// multiplied by the fraction of blocks that reach the node.
    pub(super) fn weighted_cost(&self, id: NodeId) -> f64 {
        self.plan.expected_cost(id).unwrap_or(0.0) * self.plan.flows.0[id.0]
    }
}

/// Returns all nodes downstream of a node, with the operands of each section among them.
pub(super) fn downstream_nodes(graph: &Graph, id: NodeId) -> Vec<NodeId> {
    reachable(&[id], |at| {
        let outputs = graph.outputs(at).filter(|edge| !edge.back).map(|edge| edge.to);
        outputs.chain(graph.operands(at)).collect::<Vec<_>>()
    })
    .split_off(1)
}
