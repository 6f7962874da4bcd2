//! Measurements of a path over an interval: the difference of two snapshots of its counters.

use crate::kernel::GenerationCounters;
use crate::live::PathHandle;
use filter::FilterKind;
use pipeline::explain::{self, EdgeMeasurement, Measurements, NodeMeasurement};
use pipeline::graph::NodeId;
use pipeline::plan::{Costs, FilterCost, Plan, SpaceKind};
use runtime::ledger::{EdgeKind, Ledger, RingEnd};
use runtime::space::{Space, TimeSpent};
use std::time::Duration;

/// Minimum fraction of the observed interval that a thread spends running on a processor for it to
/// count as saturated.
const SATURATED_BUSY_RATIO_MIN: f64 = 0.8;

/// A snapshot of a path's counters, in all its spaces and kernel programs.
#[derive(Debug)]
pub(super) struct CounterSnapshot {
    at: u64,
    ledger: Ledger,
    /// Counters that each kernel program has collected since the last change of the path.
    in_kernel: Vec<GenerationCounters>,
    spent: Vec<(String, TimeSpent)>,
    /// Number of changes made to the path before the snapshot. Two snapshots with different numbers
    /// cannot be compared.
    changes: u64,
}

impl CounterSnapshot {
    /// Takes a snapshot of all spaces. Returns `None` if a space does not respond within `limit`.
    pub(super) fn capture(lives: &[PathHandle], limit: Duration) -> Option<Self> {
        let changes = lives.first()?.change_count();
        let (mut ledger, mut spent, mut in_kernel) = (Ledger::default(), Vec::new(), Vec::new());
        let at = sys::clock::monotonic_ns();
        for live in lives {
            let names = live.space_names().into_iter().enumerate();
            for (number, name) in names {
                spent.push((
                    name,
                    live.execute(number, limit, |space: &mut Space| space.time_spent()).ok()?,
                ));
            }
            ledger.add(live.take_thread_snapshot(limit).ledger);
            in_kernel.extend(live.kernel_counters());
        }
        Some(Self { at, ledger, in_kernel, spent, changes })
    }

    /// Returns the counters of a plan's nodes and edges, summed over threads and the kernel.
    fn plan_measurements(&self, plan: &Plan) -> Measurements {
        let mut measured = extract_measurements(plan, &self.ledger);
        for counts in &self.in_kernel {
            for (place, blocks) in &counts.nodes {
                measured.nodes.get_mut(*place).into_iter().for_each(|node| node.blocks += blocks);
            }
            for (place, blocks) in &counts.edges {
                measured.edges.get_mut(*place).into_iter().for_each(|edge| edge.put += blocks);
            }
        }
        measured
    }
}

/// The activity of a path during an interval, computed from two snapshots of its counters.
#[derive(Debug)]
pub(super) struct Observation {
    /// End of the observed interval on the monotonic clock, in ns.
    pub(super) at: u64,
    plan: Plan,
    measured: Measurements,
    source_blocks: u64,
    pub(super) counters_unreadable: bool,
    spent: Vec<(String, TimeSpent)>,
}

impl Observation {
    /// Computes the difference between two snapshots. Returns `None` if the path was changed
    /// between the snapshots, or if no time passed.
    pub(super) fn from_snapshots(
        before: &CounterSnapshot,
        after: &CounterSnapshot,
        plan: &Plan,
    ) -> Option<Self> {
        let names =
            |mark: &CounterSnapshot| mark.spent.iter().map(|(name, _)| name.clone()).collect();
        let (old, new): (Vec<String>, Vec<String>) = (names(before), names(after));
        if before.changes != after.changes || old != new || after.at <= before.at {
            return None;
        }
        let (was, is) = (before.plan_measurements(plan), after.plan_measurements(plan));
        let given = |ledger: &Ledger| -> u64 {
            ledger.sources.iter().map(|(_, source)| source.given.blocks).sum()
        };
        let spent = before.spent.iter().zip(&after.spent);
        Some(Self {
            at: after.at,
            plan: plan.clone(),
            measured: Measurements {
                elapsed_ns: after.at - before.at,
                ..measurement_difference(&was, &is)
            },
            counters_unreadable: after.in_kernel.is_empty() && !plan.programs.is_empty(),
            source_blocks: given(&after.ledger).saturating_sub(given(&before.ledger)),
            spent: spent.map(|((name, was), (_, is))| (name.clone(), is.since(*was))).collect(),
        })
    }

    /// Returns the number of blocks that entered the path during the interval, from sources in
    /// threads and in the kernel.
    pub(super) fn input_blocks(&self) -> u64 {
        let sources = self
            .plan
            .graph
            .nodes_with_ids()
            .filter(|(_, node)| node.kind() == Some(FilterKind::Source));
        let measured = sources.filter_map(|(id, _)| self.measured.nodes.get(id.0));
        measured.map(|node| node.blocks).sum()
    }

    /// Returns the number of blocks per second from all sources.
    pub(super) fn blocks_per_second(&self) -> f64 {
        self.source_blocks as f64 * 1e9 / self.measured.elapsed_ns as f64
    }

    /// Returns the processor time that all threads used together, divided by the length of the
    /// interval. Exceeds 1.0 if several processors were busy.
    pub(super) fn busy_ratio(&self) -> f64 {
        let cpu: u64 = self.spent.iter().map(|(_, spent)| spent.cpu_ns).sum();
        cpu as f64 / self.measured.elapsed_ns as f64
    }

    /// Returns the fraction of the interval during which the busiest thread slept.
    pub(super) fn idle_ratio(&self) -> f64 {
        let asleep = self.spent.iter().map(|(_, spent)| spent.asleep_ns).min().unwrap_or(0);
        asleep as f64 / self.measured.elapsed_ns as f64
    }

    /// Returns true if some thread was running on a processor for at least
    /// [`SATURATED_BUSY_RATIO_MIN`] of the interval.
    pub(super) fn is_saturated(&self) -> bool {
        let most = self.spent.iter().map(|(_, spent)| spent.cpu_ns).max().unwrap_or(0);
        most as f64 >= SATURATED_BUSY_RATIO_MIN * self.measured.elapsed_ns as f64
    }

    /// Returns a copy of the cost table `known` with the arc shares that this observation measured.
    /// The share of an arc is the fraction of blocks that take it. The costs themselves stay
    /// unchanged.
    pub(super) fn costs_with_arc_shares(&self, known: &Costs) -> Costs {
        let mut costs = known.clone();
        let _ = explain::learn_costs(&self.plan, &self.measured, &mut costs);
        Costs { shares: costs.shares, ..known.clone() }
    }

    /// Returns a copy of the cost table `known` with the costs measured in this observation. The
    /// time that a thread spends outside its filters is attributed to its sources.
    pub(super) fn corrected_costs(&self, known: &Costs) -> Costs {
        let mut costs = Costs { origin: "measured at run time".to_owned(), ..known.clone() };
        let _ = explain::learn_costs(&self.plan, &self.measured, &mut costs);
        let graph = &self.plan.graph;
        for (id, node) in
            graph.nodes_with_ids().filter(|(_, node)| node.kind() == Some(FilterKind::Source))
        {
            let space = self.plan.space_of(id);
            let blocks = self.measured.nodes.get(id.0).map_or(0, |node| node.blocks);
            if space.kind != SpaceKind::Thread || node.has_own_process() || blocks == 0 {
                continue;
            }
            let spent = self.spent.iter().find(|(name, _)| *name == space.name);
            let here = |other: &NodeId| self.plan.space_of(*other).name == space.name;
            let filters = graph.nodes_with_ids().map(|(other, _)| other).filter(here);
            let busy = filters.filter_map(|other| self.measured.nodes.get(other.0));
            let busy: u64 = busy.map(|node| node.busy_ns).sum();
            let own = spent.map_or(0, |(_, spent)| spent.cpu_ns).saturating_sub(busy);
            let filter = explain::cost_key(graph, id);
            let block = own as f64 / blocks as f64;
            costs.set_filter_cost(FilterCost { filter, kernel: false, block, byte: 0.0 });
        }
        costs
    }
}

/// Extracts the measurements of a plan's nodes and edges from a ledger.
#[must_use]
pub fn extract_measurements(plan: &Plan, ledger: &Ledger) -> Measurements {
    let mut measured = Measurements::default();
    measured.nodes.resize(plan.graph.nodes.len(), NodeMeasurement::default());
    measured.edges.resize(plan.graph.edges.len(), EdgeMeasurement::default());
    for filtered in ledger.filters.iter().filter(|filtered| !filtered.name.is_ring()) {
        let Some(node) = measured.nodes.get_mut(filtered.planned) else { continue };
        node.blocks += filtered.taken.blocks + filtered.made.blocks;
        node.calls += filtered.calls;
        node.busy_ns += filtered.busy_ns;
        node.copies += filtered.edits.copied + filtered.edits.appended;
    }
    for counted in &ledger.edges {
        let Some(edge) = measured.edges.get_mut(counted.planned) else { continue };
        // The ledger lists an edge over a ring in two entries. Only the entry that begins at a node
        // is added or, downstream of replicas, the entry that begins at their join.
        if matches!(counted.from.ring_end(), None | Some(RingEnd::Join)) {
            edge.put += counted.put.blocks;
        }
        if counted.kind == EdgeKind::Ring {
            edge.events = counted.events.map(|events| events.total());
        }
    }
    measured
}

fn measurement_difference(was: &Measurements, is: &Measurements) -> Measurements {
    let node = |(was, is): (&NodeMeasurement, &NodeMeasurement)| NodeMeasurement {
        blocks: is.blocks.saturating_sub(was.blocks),
        calls: is.calls.saturating_sub(was.calls),
        busy_ns: is.busy_ns.saturating_sub(was.busy_ns),
        copies: is.copies.saturating_sub(was.copies),
    };
    let edge = |(was, is): (&EdgeMeasurement, &EdgeMeasurement)| EdgeMeasurement {
        put: is.put.saturating_sub(was.put),
        events: is.events.zip(was.events).map(|(is, was)| is.saturating_sub(was)),
    };
    Measurements {
        nodes: was.nodes.iter().zip(&is.nodes).map(node).collect(),
        edges: was.edges.iter().zip(&is.edges).map(edge).collect(),
        ..Measurements::default()
    }
}
