//! Persisted plans. The next plan of the same request is compared with the persisted plan to report
//! changes.
//!
//! A persisted plan contains every node's text, its space, and its cost in each space. [SL §7.1]

use super::model::Plan;
use crate::format::format_one_decimal;
use crate::names::cost_key;
use std::fmt::Write as _;

/// The data of a plan that are stored for comparison with the next plan of the same request.
#[derive(Debug, Clone, PartialEq)]
pub struct PersistedPlan {
    /// The cost of sending one block from every source through the graph, in ns.
    pub cost_ns: f64,
    /// The nodes, in request order.
    pub nodes: Vec<PersistedNode>,
}

/// A node of a persisted plan, with its space and its costs.
#[derive(Debug, Clone, PartialEq)]
pub struct PersistedNode {
    /// The text of the node in the syntax of a request.
    pub text: String,
    /// The name of the space in which the node runs.
    pub space: String,
    /// The cost of a block, in ns, in each space that could run the node.
    pub costs: Vec<(String, f64)>,
}

/// The first line of a persisted plan, with the format version.
const PLAN_FORMAT_LINE: &str = "plan 1";

impl PersistedPlan {
    /// Extracts the persisted data of a plan.
    #[must_use]
    pub fn from_plan(plan: &Plan) -> Self {
        let node = |(id, _)| PersistedNode {
            text: cost_key(&plan.graph, id).replace(filter::text::is_hidden, "·"),
            space: plan.space_of(id).name.replace(' ', "_"),
            costs: costs_by_space(plan, id),
        };
        Self {
            cost_ns: plan.choice.cost_ns,
            nodes: plan.graph.nodes_with_ids().map(node).collect(),
        }
    }

    /// Describes the nodes that moved, with the reasons, and the total cost of both plans. Returns
    /// an empty list if no node moved, or if the plans belong to different requests.
    #[must_use]
    pub fn describe_changes(&self, plan: &Plan) -> Vec<String> {
        let now = Self::from_plan(plan);
        let same = self.nodes.len() == now.nodes.len()
            && self.nodes.iter().zip(&now.nodes).all(|(old, new)| old.text == new.text);
        if !same {
            return Vec::new();
        }
        let moved = self.nodes.iter().zip(&now.nodes).filter(|(old, new)| old.space != new.space);
        let mut texts: Vec<String> = moved.map(|(old, new)| reason_for_move(old, new)).collect();
        if !texts.is_empty() {
            let (old, new) = (format_one_decimal(self.cost_ns), format_one_decimal(now.cost_ns));
            texts.push(format!("it costs {new} ns in all now, and {old} by the costs known then"));
        }
        texts
    }

    /// Formats the plan in the format that `parse` reads.
    #[must_use]
    pub fn to_text(&self) -> String {
        let mut out = format!("{PLAN_FORMAT_LINE}\ncost {:.4}\n", self.cost_ns);
        for PersistedNode { text, space, costs } in &self.nodes {
            let _ = write!(out, "{space} {}", costs.len());
            for (space, ns) in costs {
                let _ = write!(out, " {space} {ns:.4}");
            }
            let _ = writeln!(out, " {text}");
        }
        out
    }

    /// Parses a persisted plan. Returns `None` if the text is not a persisted plan.
    #[must_use]
    pub fn parse(text: &str) -> Option<Self> {
        let mut lines = text.lines();
        lines.next().filter(|line| *line == PLAN_FORMAT_LINE)?;
        let cost_ns = lines.next()?.strip_prefix("cost ")?.parse().ok()?;
        let nodes: Option<Vec<PersistedNode>> = lines.map(parse_node).collect();
        Some(Self { cost_ns, nodes: nodes? })
    }
}

fn costs_by_space(plan: &Plan, id: crate::graph::NodeId) -> Vec<(String, f64)> {
    let candidates = plan.placements[id.0].candidates.iter();
    let can = candidates.filter_map(|known| Some((known, *known.verdict.as_ref().ok()?)));
    can.map(|(known, ns)| (known.space.replace(' ', "_"), ns)).collect()
}

fn parse_node(line: &str) -> Option<PersistedNode> {
    let (space, rest) = line.split_once(' ')?;
    let (count, mut rest) = rest.split_once(' ')?;
    let mut costs = Vec::new();
    for _ in 0..count.parse::<u8>().ok()? {
        let mut words = rest.splitn(3, ' ');
        costs.push((words.next()?.to_owned(), words.next()?.parse().ok()?));
        rest = words.next()?;
    }
    Some(PersistedNode { text: rest.to_owned(), space: space.to_owned(), costs })
}

/// Explains why a node moved, by comparing its old and new costs in both spaces.
fn reason_for_move(old: &PersistedNode, new: &PersistedNode) -> String {
    let cost = |of: &PersistedNode, space: &str| {
        let known = of.costs.iter().find(|(name, _)| name == space);
        known.map(|(_, ns)| format!("{} ns", format_one_decimal(*ns)))
    };
    let texts = |space: &str| match (cost(new, space), cost(old, space)) {
        (None, None) => format!("{space} nothing"),
        (Some(now), None) => format!("{space} {now}, and could not run it"),
        (None, Some(then)) => format!("{space} refuses it now, then {then}"),
        (Some(now), Some(then)) if now == then => format!("{space} {now}"),
        (Some(now), Some(then)) => format!("{space} {now}, then {then}"),
    };
    let (after, before) = (&new.space, &old.space);
    format!(
        "`{}` runs in {after} now, not in {before}: {}; {}",
        new.text,
        texts(after),
        texts(before)
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn printed_plan_parses_to_the_same_plan() {
        let node = |text: &str, space: &str| PersistedNode {
            text: text.to_owned(),
            space: space.to_owned(),
            costs: vec![("kernel".to_owned(), 3.0), ("thread0".to_owned(), 9.25)],
        };
        let nodes = vec![node("rx eth0", "kernel"), node("bpf \"tcp port 80\"", "thread0")];
        let persisted = PersistedPlan { cost_ns: 12.5, nodes };
        assert_eq!(PersistedPlan::parse(&persisted.to_text()), Some(persisted.clone()));
        for wrong in
            ["", "plan 2\ncost 1\n", "plan 1\n", "plan 1\ncost x\n", "plan 1\ncost 1\na 1 b\n"]
        {
            assert_eq!(PersistedPlan::parse(wrong), None, "{wrong}");
        }
    }
}
