//! Demand for blocks in a path with external programs. (CONTRACT 27)
//!
//! A program may stop reading long before its input ends (`head -1`). From then on, its input is
//! dropped, and the path continues while another sink still reads. Once every route from a source
//! to a sink leads through a program that has stopped reading, the sources are stopped, just as
//! SIGPIPE stops a shell pipeline.

use std::collections::{HashMap, HashSet};
use std::sync::{Mutex, PoisonError};

/// The edges and the sources of a path, described by node numbers.
#[derive(Debug, Default)]
pub struct PathEdges {
    /// Edges, as pairs of start node and end node.
    pub edges: Vec<(usize, usize)>,
    /// Node numbers of the sources.
    pub sources: Vec<usize>,
}

/// A tracker of the demand for blocks in a path. It knows the nodes that accept no more blocks, and
/// finds out whether routes around them remain.
#[derive(Debug, Default)]
pub struct DemandTracker {
    state: Mutex<DemandState>,
}

#[derive(Debug, Default)]
struct DemandState {
    /// Nodes to which the edges of each node lead, by node number.
    successors: HashMap<usize, Vec<usize>>,
    sources: Vec<usize>,
    /// Nodes that accept no more blocks.
    closed: Vec<usize>,
}

impl DemandTracker {
    /// Replaces the edges and sources of the path. Closed nodes that remain in the graph stay
    /// closed.
    pub fn set_path_edges(&self, links: PathEdges) {
        let PathEdges { edges, sources } = links;
        let ends = edges.iter().flat_map(|(from, to)| [*from, *to]);
        let numbers: HashSet<usize> = ends.chain(sources.iter().copied()).collect();
        let mut state = self.state.lock().unwrap_or_else(PoisonError::into_inner);
        // Edits never reuse node numbers, so a closed node that was removed need not be remembered.
        state.successors.clear();
        for (from, to) in edges {
            state.successors.entry(from).or_default().push(to);
        }
        state.sources = sources;
        state.closed.retain(|node| numbers.contains(node));
    }

    /// Marks a node as closed, because it accepts no more blocks. Returns true if no source
    /// upstream of the node can still reach a sink, because every route leads through a closed
    /// node. The caller can then stop the sources.
    pub fn close(&self, node: usize) -> bool {
        let mut state = self.state.lock().unwrap_or_else(PoisonError::into_inner);
        state.closed.push(node);
        let DemandState { successors, sources, closed } = &*state;
        // Independent pipelines of a request have separate sources and end independently.
        let mut sources =
            sources.iter().filter(|source| reachable(successors, **source, &[]).contains(&node));
        sources.all(|source| {
            let reached = reachable(successors, *source, closed);
            reached.iter().all(|at| successors.contains_key(at))
        })
    }
}

/// Returns the nodes to which blocks of `source` can still flow without entering a node in
/// `closed`. The result includes `source` itself, unless `closed` contains it.
fn reachable(
    successors: &HashMap<usize, Vec<usize>>,
    source: usize,
    closed: &[usize],
) -> HashSet<usize> {
    let mut open = vec![source];
    let mut reached = HashSet::new();
    while let Some(at) = open.pop() {
        if !closed.contains(&at) && reached.insert(at) {
            open.extend(successors.get(&at).into_iter().flatten());
        }
    }
    reached
}
