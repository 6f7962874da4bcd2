//! `--signal`: T_b and T_t of rings, for all of them or by the node that reads them. [Th §5.2.2]
//!
//! `--signal=8` is T_b of every ring between spaces, `--signal=dport:64:200us` T_b and T_t of the
//! rings to `dport`, `--signal=dport:200us` T_t alone. Later parts of the list override earlier
//! ones. What is named here holds before the defaults, `--batch` and `--latency`.

use super::model::{Plan, PlannedEdge};
use super::ring::RingPlan;
use crate::graph::Graph;
use crate::names::names;
use filter::{Parameter, Type, Value};

/// The name of the option.
pub(crate) const OPTION: &str = "signal";

/// Maximum number of blocks that can be named.
const BLOCKS_MAX: usize = 65_536;

const TIME: Parameter = Parameter::needed("time", Type::Duration, "");

/// One part of the option: a threshold for all rings, or for those to one node.
#[derive(Debug, PartialEq, Eq)]
struct Signal<'t> {
    node: Option<&'t str>,
    blocks: Option<usize>,
    ns: Option<u64>,
}

/// Checks the value of the option. Fails with the part that is wrong and why.
pub(crate) fn check(text: &str, graph: &Graph) -> Result<(), String> {
    let known = names(graph);
    for signal in parse(text)? {
        if let Some(node) = signal.node
            && !known.iter().any(|name| is_called(name, node))
        {
            return Err(format!("no filter of this request is called `{node}`"));
        }
    }
    Ok(())
}

/// Returns true if a node's unique name is `name`, or begins with it before a mark or number.
pub(super) fn is_called(unique: &str, name: &str) -> bool {
    unique == name || unique.split_once('#').is_some_and(|(plain, _)| plain == name)
}

fn parse(text: &str) -> Result<Vec<Signal<'_>>, String> {
    text.split(',').map(parse_part).collect()
}

fn parse_part(part: &str) -> Result<Signal<'_>, String> {
    let wrong = |why: &str| format!("`{part}`: {why}");
    let mut signal = Signal { node: None, blocks: None, ns: None };
    for (at, word) in part.split(':').enumerate() {
        if at == 0 && word.starts_with(|c: char| c.is_ascii_lowercase()) {
            signal.node = Some(word);
        } else if let Ok(blocks) = word.parse::<usize>() {
            if signal.blocks.is_some() || !(1..=BLOCKS_MAX).contains(&blocks) {
                return Err(wrong(&format!("one number of blocks, from 1 to {BLOCKS_MAX}")));
            }
            signal.blocks = Some(blocks);
        } else {
            let ns = match TIME.parse(word) {
                Ok(Value::Number(ns)) if signal.ns.is_none() && ns > 0 => ns,
                _ => return Err(wrong("a part is [NODE:]BLOCKS[:TIME], as in `dport:64:200us`")),
            };
            signal.ns = Some(ns);
        }
    }
    match signal {
        Signal { blocks: None, ns: None, .. } => {
            Err(wrong("a number of blocks or a time is missing"))
        }
        _ => Ok(signal),
    }
}

/// Sets T_b and T_t of the rings that the request names.
pub(super) fn apply(plan: &mut Plan) {
    let Some(text) = plan.graph.options.text(OPTION).map(str::to_owned) else { return };
    let (names, edges) = (names(&plan.graph), &plan.graph.edges);
    for signal in parse(&text).unwrap_or_default() {
        for (edge, planned) in edges.iter().zip(&mut plan.edges) {
            let is_named = signal.node.is_none_or(|node| is_called(&names[edge.to.0], node));
            if let (true, PlannedEdge::Ring(ring)) = (is_named, planned) {
                set(ring, &signal);
            }
        }
    }
}

fn set(ring: &mut RingPlan, signal: &Signal<'_>) {
    if let Some(blocks) = signal.blocks {
        // A power of two, at most half of the ring, which stays large enough for it.
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

/// Returns the named nodes to which no ring between spaces leads, so that their part of the option
/// has no effect.
pub(crate) fn unused(plan: &Plan) -> Vec<String> {
    let Some(text) = plan.graph.options.text(OPTION) else { return Vec::new() };
    let names = names(&plan.graph);
    let has_ring = |node: &str| {
        let mut edges = plan.graph.edges.iter().zip(&plan.edges);
        edges.any(|(edge, planned)| {
            matches!(planned, PlannedEdge::Ring(_)) && is_called(&names[edge.to.0], node)
        })
    };
    let named = parse(text).unwrap_or_default().into_iter().filter_map(|signal| signal.node);
    named.filter(|node| !has_ring(node)).map(str::to_owned).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn k5_parts_name_a_node_blocks_and_a_time() {
        let part = |node, blocks, ns| Signal { node, blocks, ns };
        let all = parse("8,dport:64:200us,count:1ms,exec#2:4").unwrap();
        let expected = [
            part(None, Some(8), None),
            part(Some("dport"), Some(64), Some(200_000)),
            part(Some("count"), None, Some(1_000_000)),
            part(Some("exec#2"), Some(4), None),
        ];
        assert_eq!(all, expected);
        for wrong in ["", "dport", "dport:", "0", "65537", "8:9", "dport:8:1ms:2ms", "dport:8:x"] {
            assert!(parse(wrong).is_err(), "{wrong}");
        }
    }

    #[test]
    fn k5_named_nodes_are_those_with_or_without_a_number() {
        assert!(is_called("count#2", "count") && is_called("count#2", "count#2"));
        assert!(!is_called("count#2", "count#1") && !is_called("counts", "count"));
    }
}
