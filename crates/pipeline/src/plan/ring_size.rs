//! `--ring`: fixed sizes of rings, for all rings or for the rings that a node reads. [SL §5.4]
//!
//! `--ring=1024` fixes every ring between threads at 1024 entries, and `--ring=count:4096` fixes
//! only the rings that `count` reads. Later items in the list override earlier ones. Without the
//! option, a ring adapts its own size (decision 0093). The option can enlarge the rings of replicas
//! but not shrink them, because the merge needs rings that hold an entire batch.

use super::model::{Plan, PlannedEdge};
use super::ring::RingPlan;
use super::signal::is_named;
use crate::graph::Graph;
use crate::names::unique_names;

/// The name of the option for ring sizes, without its dashes.
pub(crate) const RING_OPTION: &str = "ring";

/// The permitted number of entries of a ring. The minimum is the size of a full batch.
const PERMITTED_ENTRY_COUNTS: std::ops::RangeInclusive<usize> = 64..=1_048_576;

/// One item of the option `--ring`: the node, or `None` for all rings, and the number of ring
/// entries.
type RingSizeItem<'t> = (Option<&'t str>, usize);

/// Checks the value of the option `--ring`. Fails with the invalid item and the reason.
pub(crate) fn check_ring_option(text: &str, graph: &Graph) -> Result<(), String> {
    let known = unique_names(graph);
    for (node, _) in parse_ring_option(text)? {
        if let Some(node) = node
            && !known.iter().any(|name| is_named(name, node))
        {
            return Err(format!("no filter of this request is called `{node}`"));
        }
    }
    Ok(())
}

fn parse_ring_option(text: &str) -> Result<Vec<RingSizeItem<'_>>, String> {
    text.split(',').map(parse_ring_size_item).collect()
}

fn parse_ring_size_item(part: &str) -> Result<RingSizeItem<'_>, String> {
    let (node, number) = match part.split_once(':') {
        Some((node, number)) => (Some(node), number),
        None => (None, part),
    };
    match number.parse() {
        Ok(entries) if PERMITTED_ENTRY_COUNTS.contains(&entries) && node != Some("") => {
            Ok((node, entries))
        }
        _ => {
            let (low, high) = (PERMITTED_ENTRY_COUNTS.start(), PERMITTED_ENTRY_COUNTS.end());
            Err(format!(
                "`{part}`: a part is [NODE:]ENTRIES, from {low} to {high}, as in `count:4096`"
            ))
        }
    }
}

/// Sets the sizes of the rings that the request names.
pub(super) fn apply_ring_option(plan: &mut Plan) {
    let Some(text) = plan.graph.options.text(RING_OPTION).map(str::to_owned) else { return };
    let (names, edges) = (unique_names(&plan.graph), &plan.graph.edges);
    for (node, entries) in parse_ring_option(&text).unwrap_or_default() {
        for (edge, planned) in edges.iter().zip(&mut plan.edges) {
            let is_read_by = node.is_none_or(|node| is_named(&names[edge.to.0], node));
            if let (true, PlannedEdge::Ring(ring)) = (is_read_by, planned) {
                set_ring_entries(ring, entries);
            }
        }
    }
}

fn set_ring_entries(ring: &mut RingPlan, entries: usize) {
    let is_fixed = ring.entries_min == ring.entries;
    let least = if is_fixed { ring.entries } else { 0 };
    let entries = entries.next_power_of_two().max(least);
    (ring.entries, ring.entries_min) = (entries, entries);
    ring.signal_blocks = ring.signal_blocks.min(entries / 2);
    ring.signal_blocks_max = ring.signal_blocks_max.min(entries / 2);
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn f6_ring_option_parses_nodes_and_entry_counts() {
        let all = parse_ring_option("1024,count:4096,exec#2:64").unwrap();
        assert_eq!(all, [(None, 1024), (Some("count"), 4096), (Some("exec#2"), 64)]);
        for wrong in ["", "count", "count:", ":64", "63", "1048577", "8:9", "count:1k"] {
            assert!(parse_ring_option(wrong).is_err(), "{wrong}");
        }
    }
}
