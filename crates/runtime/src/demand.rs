//! Demand for blocks in a path with external programs. (CONTRACT 27)
//!
//! A program may stop reading long before its input ends (`head -1`). From then on, its input is
//! dropped, and the path continues while another sink still reads. Once every route from a source
//! to a sink leads through a program that has stopped reading, the sources are stopped, just as
//! SIGPIPE stops a shell pipeline.

use std::collections::HashSet;
use std::sync::{Mutex, PoisonError};

/// Edges and sources of a path, as planned node indices.
#[derive(Debug, Default)]
pub struct Links {
    /// Edges, as pairs of start node and end node.
    pub edges: Vec<(usize, usize)>,
    /// Source nodes.
    pub heads: Vec<usize>,
}

/// The nodes of a path that still accept blocks.
#[derive(Debug, Default)]
pub struct Demand {
    known: Mutex<DemandState>,
}

#[derive(Debug, Default)]
struct DemandState {
    /// Successors of each node of the plan.
    successors: Vec<Vec<usize>>,
    heads: Vec<usize>,
    /// Nodes that accept no more blocks.
    closed: Vec<usize>,
}

impl Demand {
    /// Replaces the edges and sources of the path. Closed nodes that remain in the graph stay
    /// closed.
    pub fn set_links(&self, links: Links) {
        let Links { edges, heads } = links;
        let ends = edges.iter().flat_map(|(from, to)| [*from, *to]);
        let numbers: HashSet<usize> = ends.chain(heads.iter().copied()).collect();
        let mut known = self.known.lock().unwrap_or_else(PoisonError::into_inner);
        known.successors = vec![Vec::new(); numbers.iter().max().map_or(0, |last| last + 1)];
        for (from, to) in edges {
            known.successors[from].push(to);
        }
        known.heads = heads;
        known.closed.retain(|node| numbers.contains(node));
    }

    /// Marks a node as closed. Returns true if the sources upstream of the node can no longer reach
    /// any sink, because every route leads through a closed node.
    pub fn close(&self, node: usize) -> bool {
        let mut known = self.known.lock().unwrap_or_else(PoisonError::into_inner);
        known.closed.push(node);
        let DemandState { successors, heads, closed } = &*known;
        // Independent parts of the request have separate sources and end independently.
        let mut heads =
            heads.iter().filter(|head| reachable(successors, **head, &[]).contains(&node));
        heads.all(|head| {
            let reached = reachable(successors, *head, closed);
            reached.iter().all(|at| !successors[*at].is_empty())
        })
    }
}

/// Returns the nodes that can be reached from `head` without entering a node in `around`. The
/// result includes `head` unless `around` contains it.
fn reachable(successors: &[Vec<usize>], head: usize, around: &[usize]) -> Vec<usize> {
    let mut visited = vec![false; successors.len()];
    let mut open = vec![head];
    let mut reached = Vec::new();
    while let Some(at) = open.pop() {
        if !around.contains(&at) && !std::mem::replace(&mut visited[at], true) {
            reached.push(at);
            open.extend(&successors[at]);
        }
    }
    reached
}
