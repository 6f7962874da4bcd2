//! Programs in a path: when nobody is left who wants what comes, and how they ended. (CONTRACT 27)
//!
//! A program may stop reading long before its input ends (`head -1`). What comes then is dropped,
//! and as long as somebody else wants it, the path goes on. When every way from a source to an end
//! leads through a program that reads no more, the sources are stopped, as SIGPIPE would do in a
//! shell. Ends are judged when all spaces have ended: only then is everything closed that a program
//! may wait for.

use crate::failure::PathFailure;
use crate::space::Remains;
use crate::space::node::{Node, Part};
use endpoint::process::Process;
use std::collections::HashSet;
use std::sync::{Arc, Mutex, PoisonError};

/// The edges between nodes by number, and the nodes at which the graph begins.
#[derive(Debug, Default)]
pub struct Links {
    /// From, to.
    pub edges: Vec<(usize, usize)>,
    /// The sources.
    pub heads: Vec<usize>,
}

/// The nodes of a path that still take blocks.
#[derive(Debug, Default)]
pub struct Demand {
    known: Mutex<Known>,
}

#[derive(Debug, Default)]
struct Known {
    /// For every node of the plan, those behind it.
    behind: Vec<Vec<usize>>,
    heads: Vec<usize>,
    /// The nodes that take nothing any more.
    deaf: Vec<usize>,
}

impl Demand {
    /// Goes by these links from now on.
    pub fn follow(&self, links: Links) {
        let Links { edges, heads } = links;
        let ends = edges.iter().flat_map(|(from, to)| [*from, *to]);
        let numbers: HashSet<usize> = ends.chain(heads.iter().copied()).collect();
        let mut known = self.known.lock().unwrap_or_else(PoisonError::into_inner);
        known.behind = vec![Vec::new(); numbers.iter().max().map_or(0, |last| last + 1)];
        for (from, to) in edges {
            known.behind[from].push(to);
        }
        known.heads = heads;
        known.deaf.retain(|node| numbers.contains(node));
    }

    /// A node takes nothing any more; answers whether nobody does who can be reached from a source
    /// of this node.
    pub fn ended(&self, node: usize) -> bool {
        let mut known = self.known.lock().unwrap_or_else(PoisonError::into_inner);
        known.deaf.push(node);
        let Known { behind, heads, deaf } = &*known;
        // Other parts of the request have sources of their own, and end by themselves.
        let mut heads = heads.iter().filter(|head| reached(behind, **head, &[]).contains(&node));
        heads.all(|head| {
            let reached = reached(behind, *head, deaf);
            reached.iter().all(|at| !behind[*at].is_empty())
        })
    }
}

/// The nodes to which a block from `head` can come without going through `around`.
fn reached(behind: &[Vec<usize>], head: usize, around: &[usize]) -> Vec<usize> {
    let mut seen = vec![false; behind.len()];
    let mut open = vec![head];
    let mut reached = Vec::new();
    while let Some(at) = open.pop() {
        if !around.contains(&at) && !std::mem::replace(&mut seen[at], true) {
            reached.push(at);
            open.extend(&behind[at]);
        }
    }
    reached
}

/// The program of which a node is one half.
pub fn of(node: &Node) -> Option<&Arc<Process>> {
    match &node.part {
        Part::Sink(part) => part.sink.process(),
        Part::Source(part) => part.properties.process.as_ref(),
        _ => None,
    }
}

/// Returns true if a node is the input half of a process.
pub fn is_input(node: &Node) -> bool {
    matches!(node.part, Part::Sink(_)) && of(node).is_some()
}

/// Waits for the programs of a path whose spaces have ended, and answers which did not end well.
pub fn finish(remains: &[Remains]) -> Vec<PathFailure> {
    let mut finished: Vec<&Arc<Process>> = Vec::new();
    let mut failures = Vec::new();
    for node in remains.iter().flat_map(|space| space.nodes.iter().chain(&space.programs)) {
        let Some(process) = of(node) else { continue };
        if finished.iter().any(|other| Arc::ptr_eq(other, process)) {
            continue;
        }
        finished.push(process);
        match process.finish() {
            Ok(Ok(())) => {}
            Ok(Err(bad)) => failures.push(PathFailure::program(node.name.clone(), bad)),
            Err(error) => failures.push(PathFailure::lost_sight(node.name.clone(), error)),
        }
    }
    failures
}
