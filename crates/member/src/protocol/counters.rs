//! Counters of a path with its nodes, edges and spaces, and updates for its followers.

use runtime::latency::LatencyReport;
use runtime::ledger::{Amount, DropReason, RetainedFrames, RingSize, RingState};
use serde::{Deserialize, Serialize};

/// The counters of a path: its sources, nodes, edges and spaces.
#[derive(Clone, PartialEq, Eq, Debug, Default, Serialize, Deserialize)]
pub struct Counters {
    /// Running time of the path, in ns.
    pub elapsed_ns: u64,
    /// Counters of the path's sources.
    pub sources: Vec<Source>,
    /// Counters of all nodes.
    pub filters: Vec<Filter>,
    /// Counters of all edges.
    pub edges: Vec<Edge>,
    /// Spaces in which the path runs.
    #[serde(default)]
    pub spaces: Vec<Space>,
    /// Changes to the plan that the path has made by itself, as sentences with the reasons. Empty
    /// in replies of older versions.
    #[serde(default)]
    pub adapted: Vec<String>,
    /// Latency of blocks through the path; `None` if the request does not limit it.
    #[serde(default)]
    pub latency: Option<LatencyReport>,
}

impl Counters {
    /// Appends the next page of a path's counters to the pages received so far. The first page with
    /// filters replaces all values of `self`.
    pub fn append(&mut self, mut page: Self) {
        if self.filters.is_empty() {
            *self = page;
        } else {
            self.filters.append(&mut page.filters);
            self.edges.append(&mut page.edges);
        }
    }

    /// Returns the numbers of lost blocks by location and reason, in descending order. A location
    /// with its reason has the form `before rx (ring)`. Omits losses whose number is unknown or 0.
    #[must_use]
    pub fn losses_by_location(&self) -> Vec<(String, u64)> {
        let mut all: Vec<(String, u64)> = Vec::new();
        let mut add = |lost: &[Loss], place: &dyn std::fmt::Display| {
            let lost = lost.iter().filter(|loss| loss.is_lost());
            all.extend(
                lost.filter_map(|loss| Some((format!("{place} ({})", loss.why), loss.blocks?))),
            );
        };
        for source in &self.sources {
            add(&source.lost, &format_args!("before {}", source.name));
        }
        for edge in &self.edges {
            add(&edge.lost, &format_args!("between {} and {}", edge.from, edge.to));
        }
        for filter in self.filters.iter().filter(|filter| !filter.operand) {
            add(&filter.lost, &format_args!("in {}", filter.name));
        }
        all.retain(|(_, blocks)| *blocks > 0);
        all.sort_by_key(|(_, blocks)| std::cmp::Reverse(*blocks));
        all
    }

    /// Returns the number of lost blocks at all locations.
    #[must_use]
    pub fn lost_blocks(&self) -> u64 {
        let sources = self.sources.iter().map(|source| sum_lost_blocks(&source.lost));
        let edges = self.edges.iter().map(|edge| sum_lost_blocks(&edge.lost));
        sources.chain(edges).chain(self.filters.iter().map(Filter::lost_blocks)).sum()
    }
}

/// The counters of a source.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct Source {
    /// Name of the source in the plan.
    pub name: String,
    /// Blocks that arrived at the device or are in the file; `None` if unknown.
    #[serde(rename = "seen")]
    pub observed: Option<Amount>,
    /// Blocks emitted into the path.
    pub given: Amount,
    /// Blocks dropped before they entered the path, by location, such as the socket or its ring.
    pub lost: Vec<Loss>,
}

/// The counters of a filter, source or sink.
#[derive(Clone, PartialEq, Eq, Debug, Default, Serialize, Deserialize)]
pub struct Filter {
    /// Index of the filter's node in the plan.
    pub node: usize,
    /// Name of the node in the plan.
    pub name: String,
    /// Blocks and bytes that the filter received.
    pub taken: Amount,
    /// Blocks and bytes that the filter created.
    pub made: Amount,
    /// Blocks and bytes that left the node over its outgoing arcs.
    pub passed: Amount,
    /// Blocks that no arc selected.
    pub unselected: Amount,
    /// Blocks consumed by the filter, for example by merging them into other blocks.
    pub consumed: Amount,
    /// Blocks that the filter still holds.
    pub held: Amount,
    /// Blocks dropped in the filter, by reason. Includes the drops that the request itself
    /// specifies, which are not losses.
    pub lost: Vec<Loss>,
    /// Number of calls of the filter: one per batch.
    pub calls: u64,
    /// Time spent in the filter, in ns; 0 if not measured.
    pub busy_ns: u64,
    /// Size of the ring from which other programs read a sink's output. Absent for other nodes and
    /// in replies of older versions.
    #[serde(default)]
    pub ring: Option<RingState>,
    /// Past frames that a sink or source retains. Absent for other nodes and in replies of older
    /// versions.
    #[serde(default)]
    pub kept: Option<RetainedFrames>,
    /// True for a filter in an operand of a Boolean section. It processes copies of blocks, so its
    /// drops are not losses. False in replies of older versions.
    #[serde(default)]
    pub operand: bool,
}

impl Filter {
    /// Returns the number of blocks lost in the filter.
    #[must_use]
    pub fn lost_blocks(&self) -> u64 {
        if self.operand { 0 } else { sum_lost_blocks(&self.lost) }
    }
}

/// The counters of an edge between two nodes.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct Edge {
    /// Index of the edge in the plan.
    pub edge: usize,
    /// Name of the node from which the edge leads.
    pub from: String,
    /// Name of the node to which the edge leads.
    pub to: String,
    /// Kind of the edge: `call`, `ring`, `back edge` or `pipe`. A ring to a replica of a filter has
    /// the kind `deal`, and a ring from a replica has the kind `join`.
    pub kind: String,
    /// Blocks put onto the edge, as counted by the upstream node.
    pub put: Amount,
    /// Blocks taken off the edge, as counted by the downstream node.
    pub taken: Amount,
    /// Blocks that have entered the edge and have not left it yet.
    pub resident: Amount,
    /// Blocks dropped on the edge, by reason. Includes the drops that the request itself specifies,
    /// which are not losses.
    pub lost: Vec<Loss>,
    /// Capacity of the ring and number of its changes, if the edge is a ring. Absent for other
    /// edges and in replies of older versions.
    #[serde(default)]
    pub size: Option<RingSize>,
}

/// A number of blocks dropped at one location or for one reason. The reason determines whether the
/// blocks are lost, or whether the request specifies the drop.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct Loss {
    /// Location of the drops or their reason, as text.
    pub why: String,
    /// Number of blocks, or `None` if there is no counter.
    pub blocks: Option<u64>,
}

impl Loss {
    /// Returns true if the blocks are lost, and false if the request specifies that they are
    /// dropped. Decides by the text in `why`.
    #[must_use]
    pub fn is_lost(&self) -> bool {
        DropReason::from_text(&self.why).is_none_or(DropReason::is_loss)
    }
}

/// Returns the number of blocks lost at one location, given its drops by reason.
#[must_use]
pub fn sum_lost_blocks(drops: &[Loss]) -> u64 {
    drops.iter().filter(|loss| loss.is_lost()).filter_map(|loss| loss.blocks).sum()
}

/// A space of a path: the thread or process that runs it, and its state.
#[derive(Clone, PartialEq, Eq, Debug, Default, Serialize, Deserialize)]
pub struct Space {
    /// Name of the space in the plan.
    pub name: String,
    /// Kind of the space: `thread`, `process` or `engine`.
    pub kind: String,
    /// Id of the process that runs the space, or `None` before it starts.
    pub process: Option<u32>,
    /// Id of the thread that runs the space, within that process; `None` if the space is not a
    /// thread.
    pub thread: Option<u32>,
    /// Numbers of the processors on which the space may run.
    pub processors: Vec<usize>,
    /// Number of the processor on which the space is running, or ran last; `None` if unknown.
    pub processor: Option<usize>,
    /// State of the space just before the query: `runs`, `sleeps`, `waits`, `stopped` or `ended`.
    pub state: String,
    /// Resource for which the space waits, or `None` if it does not wait.
    pub waits: Option<String>,
    /// Processor time used by the space's threads, in ns.
    pub processor_ns: u64,
    /// Memory in bytes: the pools of a thread, or the resident set of a process; `None` if unknown.
    pub memory: Option<u64>,
    /// Reason why the space has not replied to the last query; `None` if it has replied. Without a
    /// reply, the counters of the space are those of an earlier query.
    pub late: Option<String>,
}

/// Parameters of `Count`, which returns the path's counters.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct PathCountParameters {
    /// Index of the first filter or edge to return. Index 0 takes a new sample of the path's
    /// counters; any other index returns counters of the last sample. `None` returns all counters
    /// in one reply.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub first: Option<usize>,
    /// True to make the path measure the time spent in its filters as long as this client is
    /// connected; this is the default.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub timed: Option<bool>,
}

/// Reply to `Count`: all counters, or a page of them.
#[derive(Clone, PartialEq, Eq, Debug, Default, Serialize, Deserialize)]
pub struct CountReply {
    /// The counters. Pages after the first contain only the counters of filters and edges.
    pub counters: Counters,
    /// Index of the first filter or edge of the next page, or `None` after the last page.
    #[serde(default)]
    pub next: Option<usize>,
}

/// Parameters of `Follow`, which subscribes to updates of the path.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct FollowParameters {
    /// Interval between two updates, in ms; `None` for the default of 1000 ms.
    pub every_ms: Option<u64>,
    /// Form of the updates. `None` means [`UpdateForm::Whole`], the only form in older versions.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub form: Option<UpdateForm>,
    /// Interval, in ms, at which an update with all counters replaces [`UpdateForm::Totals`].
    /// `None` means never.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub counters_every_ms: Option<u64>,
}

/// The form of the updates for a client that follows a path.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum UpdateForm {
    /// All counters in one reply. Fails if they do not fit into a reply.
    #[default]
    Whole,
    /// All counters, divided into as many replies as they need.
    Pages,
    /// Only the totals of the path: running time, output and losses.
    Totals,
}

/// The totals of a path: running time, output and losses.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default, Serialize, Deserialize)]
pub struct Totals {
    /// Running time of the path, in ns.
    pub elapsed_ns: u64,
    /// Blocks emitted by all sources.
    pub given: Amount,
    /// Number of blocks lost anywhere in the path.
    pub lost: u64,
}

/// Replies to `Follow`: counters or totals while the path runs, and finally its exit status.
#[derive(Clone, PartialEq, Eq, Debug, Default, Serialize, Deserialize)]
pub struct PathUpdate {
    /// Current counters, or `None` if the update contains totals. Pages after the first contain
    /// only the counters of filters and edges.
    pub counters: Option<Counters>,
    /// Index of the first filter or edge in the next reply, or `None` if the update is complete.
    #[serde(default)]
    pub next: Option<usize>,
    /// Current totals, or `None` if the update contains counters.
    #[serde(default)]
    pub totals: Option<Totals>,
    /// The end of the path; present only in the last reply.
    pub ended: Option<PathEnd>,
}

/// The end of a path: its exit status and its report.
#[derive(Clone, PartialEq, Eq, Debug, Default, Serialize, Deserialize)]
pub struct PathEnd {
    /// Exit status of the path's process.
    pub status: u8,
    /// The path's report, as a sentence.
    pub report: String,
}
