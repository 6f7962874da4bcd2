//! `--signal`: the thresholds at which the reader of a ring is notified, for all rings or for the
//! rings that one node reads. The thresholds are a number of blocks (T_b) and a time (T_t). [Th
//! §5.2.2]
//!
//! `--signal=8` sets T_b of every ring between spaces, `--signal=dport:64:200us` sets T_b and T_t
//! of the rings to `dport`, and `--signal=dport:200us` sets only T_t. Later items in the list
//! override earlier ones. The option takes precedence over the defaults, `--batch` and `--latency`.

use super::model::{Plan, PlannedEdge};
use super::ring::RingPlan;
use crate::graph::Graph;
use crate::names::unique_names;
use filter::{Parameter, ParameterType, Value};

/// The name of the option for notification thresholds, without its dashes.
pub(crate) const SIGNAL_OPTION: &str = "signal";

/// Maximum number of blocks per notification (T_b) that the option `--signal` accepts.
const SIGNAL_BLOCKS_MAX: usize = 65_536;

const TIME_PARAMETER: Parameter = Parameter::required("time", ParameterType::Duration, "");

/// One item of the option `--signal`: the thresholds for all rings, or for the rings to one node.
#[derive(Debug, PartialEq, Eq)]
struct SignalItem<'t> {
    node: Option<&'t str>,
    blocks: Option<usize>,
    ns: Option<u64>,
}

/// Checks the value of the option `--signal`. Fails with the invalid item and the reason.
pub(crate) fn check_option(text: &str, graph: &Graph) -> Result<(), String> {
    let known = unique_names(graph);
    for signal in parse_option(text)? {
        if let Some(node) = signal.node
            && !known.iter().any(|name| is_named(name, node))
        {
            return Err(format!("no filter of this request is called `{node}`"));
        }
    }
    Ok(())
}

/// Returns true if `name` denotes the node with the unique name `unique`: both are equal, or
/// `unique` is `name` followed by a mark or a number.
pub(super) fn is_named(unique: &str, name: &str) -> bool {
    unique == name || unique.split_once('#').is_some_and(|(plain, _)| plain == name)
}

fn parse_option(text: &str) -> Result<Vec<SignalItem<'_>>, String> {
    text.split(',').map(parse_signal_item).collect()
}

fn parse_signal_item(part: &str) -> Result<SignalItem<'_>, String> {
    let wrong = |why: &str| format!("`{part}`: {why}");
    let mut signal = SignalItem { node: None, blocks: None, ns: None };
    for (at, word) in part.split(':').enumerate() {
        if at == 0 && word.starts_with(|c: char| c.is_ascii_lowercase()) {
            signal.node = Some(word);
        } else if let Ok(blocks) = word.parse::<usize>() {
            if signal.blocks.is_some() || !(1..=SIGNAL_BLOCKS_MAX).contains(&blocks) {
                return Err(wrong(&format!("one number of blocks, from 1 to {SIGNAL_BLOCKS_MAX}")));
            }
            signal.blocks = Some(blocks);
        } else {
            let ns = match TIME_PARAMETER.parse(word) {
                Ok(Value::Number(ns)) if signal.ns.is_none() && ns > 0 => ns,
                _ => return Err(wrong("a part is [NODE:]BLOCKS[:TIME], as in `dport:64:200us`")),
            };
            signal.ns = Some(ns);
        }
    }
    match signal {
        SignalItem { blocks: None, ns: None, .. } => {
            Err(wrong("a number of blocks or a time is missing"))
        }
        _ => Ok(signal),
    }
}

/// Sets the notification thresholds (T_b and T_t) that the option `--signal` requests. Sets them
/// for each ring that leads to a node in the option. An item without a node applies to all rings.
pub(super) fn apply_signal_option(plan: &mut Plan) {
    let Some(text) = plan.graph.options.text(SIGNAL_OPTION).map(str::to_owned) else { return };
    let (names, edges) = (unique_names(&plan.graph), &plan.graph.edges);
    for signal in parse_option(&text).unwrap_or_default() {
        for (edge, planned) in edges.iter().zip(&mut plan.edges) {
            let is_called = signal.node.is_none_or(|node| is_named(&names[edge.to.0], node));
            if let (true, PlannedEdge::Ring(ring)) = (is_called, planned) {
                set_ring_thresholds(ring, &signal);
            }
        }
    }
}

fn set_ring_thresholds(ring: &mut RingPlan, signal: &SignalItem<'_>) {
    if let Some(blocks) = signal.blocks {
        // The threshold is a power of two, at most half of the ring. The ring does not shrink below
        // twice the threshold.
        let most = (ring.entries / 2).max(1);
        let floor = 1 << blocks.min(most).ilog2();
        (ring.signal_blocks, ring.signal_blocks_max) = (floor, floor);
        ring.entries_min = ring.entries_min.max(2 * floor);
        ring.blocks_because = match (floor == blocks, blocks > most) {
            (true, _) => "T_b by `--signal`",
            (false, true) => "T_b: half of the ring",
            (false, false) => "T_b: the power of two below `--signal`",
        };
    }
    if let Some(ns) = signal.ns {
        (ring.signal_ns, ring.ns_because) = (ns, "T_t by `--signal`".to_owned());
    }
}

/// Returns those node names in the option `--signal` that have no effect, because no node with the
/// name reads a ring from another space.
pub(crate) fn signal_nodes_without_ring(plan: &Plan) -> Vec<String> {
    let Some(text) = plan.graph.options.text(SIGNAL_OPTION) else { return Vec::new() };
    let names = unique_names(&plan.graph);
    let has_ring = |node: &str| {
        let mut edges = plan.graph.edges.iter().zip(&plan.edges);
        edges.any(|(edge, planned)| {
            matches!(planned, PlannedEdge::Ring(_)) && is_named(&names[edge.to.0], node)
        })
    };
    let named = parse_option(text).unwrap_or_default().into_iter().filter_map(|signal| signal.node);
    named.filter(|node| !has_ring(node)).map(str::to_owned).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn k5_signal_option_parses_nodes_block_counts_and_times() {
        let part = |node, blocks, ns| SignalItem { node, blocks, ns };
        let all = parse_option("8,dport:64:200us,count:1ms,exec#2:4").unwrap();
        let expected = [
            part(None, Some(8), None),
            part(Some("dport"), Some(64), Some(200_000)),
            part(Some("count"), None, Some(1_000_000)),
            part(Some("exec#2"), Some(4), None),
        ];
        assert_eq!(all, expected);
        for wrong in ["", "dport", "dport:", "0", "65537", "8:9", "dport:8:1ms:2ms", "dport:8:x"] {
            assert!(parse_option(wrong).is_err(), "{wrong}");
        }
    }

    #[test]
    fn k5_option_accepts_node_names_with_or_without_a_number() {
        assert!(is_named("count#2", "count") && is_named("count#2", "count#2"));
        assert!(!is_named("count#2", "count#1") && !is_named("counts", "count"));
    }
}
