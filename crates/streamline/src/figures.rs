//! The live figures of paths: each path's plan with its counters, for programs that display or
//! export them.
//!
//! [`query_figures`] reads all paths of a daemon, and [`PathFigures::from_results`] converts the
//! results of a run in this process.

use crate::ready::RunResults;
use member::client::{Client, ClientError, DESCRIBE_METHOD};
use member::protocol::{Counters, Edge, Link, Node, PathDescription};
use member::worker::{PathInfo, ledger_counters};
use std::time::Duration;

/// The state of a path.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum PathState {
    /// The path is running.
    Running,
    /// The path is running, but its process did not reply in time.
    Silent,
    /// The path has ended, and its counters are final.
    Ended,
}

/// A path, with its plan and its counters at one moment.
#[derive(Clone, PartialEq, Debug)]
pub struct PathFigures {
    /// Name of the path, unique among the paths that were read together. It is the name that the
    /// user has chosen, or `UID/NAME` if several users have chosen the same name. A path without a
    /// chosen name has its number as name.
    pub name: String,
    /// User id of the path's owner.
    pub uid: u32,
    /// State of the path.
    pub state: PathState,
    /// True if the time spent in filters was measured during the entire run. Always false for a
    /// queried path, which may have measured the time only while a client followed it.
    pub is_timed: bool,
    /// Nodes of the plan; empty for a silent path.
    pub nodes: Vec<Node>,
    /// Edges of the plan.
    pub links: Vec<Link>,
    /// Counters of the path; all 0 for a silent path.
    pub counters: Counters,
}

impl PathFigures {
    /// Converts the results of a run in this process to figures.
    #[must_use]
    pub fn from_results(name: &str, results: &RunResults, state: PathState) -> Self {
        let PathInfo { nodes, links, .. } = PathInfo::new(&results.text, &results.plan);
        let outcome = &results.outcome;
        let counters = Counters {
            elapsed_ns: outcome.elapsed_ns,
            adapted: outcome.adapted.clone(),
            latency: outcome.latency.clone(),
            ..ledger_counters(&outcome.ledger, &nodes)
        };
        let uid = sys::process::effective_ids().0;
        let is_timed = outcome.ledger.filters.iter().any(|filter| filter.busy_ns > 0);
        Self { name: name.to_owned(), uid, state, is_timed, nodes, links, counters }
    }

    /// Returns the number of lost blocks, as counted in the final report.
    #[must_use]
    pub fn lost_blocks(&self) -> u64 {
        self.counters.lost_blocks()
    }

    /// Returns the number of dropped blocks for all reasons, including drops that the request
    /// specifies.
    #[must_use]
    pub fn dropped_blocks(&self) -> u64 {
        let counters = &self.counters;
        let all = counters.sources.iter().map(|source| &source.lost);
        let all = all.chain(counters.edges.iter().map(|edge| &edge.lost));
        let all = all.chain(counters.filters.iter().map(|filter| &filter.lost)).flatten();
        all.filter_map(|loss| loss.blocks).sum()
    }

    /// Returns the names of the nodes at both ends of an edge, as in the plan. An edge between a
    /// node and its replicas is not in the plan; for such an edge, returns the names in its
    /// counters.
    #[must_use]
    pub fn end_names<'n>(&'n self, edge: &'n Edge) -> (&'n str, &'n str) {
        let is_of_replicas = ["deal", "join"].contains(&edge.kind.as_str());
        let link = self.links.get(edge.edge).filter(|_| !is_of_replicas);
        let name = |node: usize| self.nodes.get(node).map(|node| node.name.as_str());
        let names = link.and_then(|link| name(link.from).zip(name(link.to)));
        names.unwrap_or((&edge.from, &edge.to))
    }

    /// Returns the fill level of each ring of the plan.
    #[must_use]
    pub fn ring_fills(&self) -> Vec<RingFill<'_>> {
        let name = |node: usize| self.nodes.get(node).map_or("", |node| node.name.as_str());
        let rings = self.links.iter().enumerate().filter_map(|(number, link)| {
            let planned = link.room?;
            let edges = || self.counters.edges.iter().filter(|edge| edge.edge == number);
            let fill = edges().map(|edge| edge.resident.blocks).sum();
            let size = edges().filter_map(|edge| edge.size.as_ref()).max_by_key(|s| s.entries);
            let room = size.map_or(planned, |size| size.entries);
            Some(RingFill { from: name(link.from), to: name(link.to), fill, room })
        });
        rings.collect()
    }
}

/// The fill level of a ring between two nodes.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct RingFill<'n> {
    /// Name of the node that writes to the ring.
    pub from: &'n str,
    /// Name of the node that reads from the ring.
    pub to: &'n str,
    /// Number of blocks that are in the ring now.
    pub fill: u64,
    /// Current capacity of the ring in blocks.
    pub room: u64,
}

impl RingFill<'_> {
    /// Returns the fill level as a fraction of the capacity, from 0 to 1.
    #[must_use]
    pub fn fill_ratio(&self) -> f64 {
        if self.room == 0 { 0.0 } else { self.fill.min(self.room) as f64 / self.room as f64 }
    }
}

/// Returns the figures of all paths to which this client may connect. A path that does not reply in
/// time, or that refuses the query, is reported as silent, without counters. Paths that have ended
/// in the meantime are omitted. Blocks for at most `limit` until the paths have replied.
pub fn query_figures(client: &Client, limit: Duration) -> Result<Vec<PathFigures>, ClientError> {
    let mut listed = client.list_paths()?;
    listed.retain(|path| path.yours);
    let numbers: Vec<_> = listed.iter().map(|path| (path.uid, path.number.to_string())).collect();
    // The description is requested after the counters, so it is at least as recent as they are.
    let replies =
        client.query_all_counters(&numbers, &[DESCRIBE_METHOD], limit, |_, counters, replies| {
            let about = replies.into_iter().next().unwrap_or_default();
            let about: PathDescription = about.deserialize_result()?;
            Ok((counters, about))
        });
    let name = |at: usize| match &listed[at].name {
        None => listed[at].number.to_string(),
        Some(name) => {
            let shared = listed.iter().filter(|other| other.name.as_ref() == Some(name)).count();
            if shared > 1 { format!("{}/{name}", listed[at].uid) } else { name.clone() }
        }
    };
    let figures = replies.into_iter().enumerate().filter_map(|(at, reply)| {
        let (state, (counters, about)) = match reply {
            Ok(reply) => (PathState::Running, reply),
            Err(error) if error.is_path_ended() => return None,
            Err(_) => (PathState::Silent, Default::default()),
        };
        let PathDescription { nodes, links, .. } = about;
        let (name, uid, is_timed) = (name(at), listed[at].uid, false);
        Some(PathFigures { name, uid, state, is_timed, nodes, links, counters })
    });
    Ok(figures.collect())
}
