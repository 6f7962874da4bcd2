//! Formatting of a graph as text, for tests and debugging.

use super::{BlockOrder, BooleanExpression, Graph, Node, SectionOperand, Step};
use std::fmt::{self, Display, Formatter};

impl Display for Graph {
    /// Formats one line per node, edge and join: `2 dport @kernel`, `1 > 2`, `2 >{22} 3`, `3 <{22}
    /// 1` (back edge), `4 takes (2, 3) by 1`.
    fn fmt(&self, f: &mut Formatter<'_>) -> fmt::Result {
        for (id, node) in self.nodes_with_ids() {
            write!(f, "{} {}", id.0, NodeText(node))?;
            if let Some(owner) = node.inside {
                write!(f, " inside {}", owner.0)?;
            }
            writeln!(f)?;
        }
        for edge in &self.edges {
            let (from, to, arrow) = (edge.from.0, edge.to.0, if edge.back { "<" } else { ">" });
            match edge.classes.is_plain() {
                true => writeln!(f, "{from} {arrow} {to}")?,
                false => writeln!(f, "{from} {arrow}{{{}}} {to}", edge.classes)?,
            }
        }
        for join in &self.joins {
            write!(f, "{} takes ", join.node.0)?;
            write_order(f, &join.order, self)?;
            writeln!(f)?;
        }
        Ok(())
    }
}

struct NodeText<'g>(&'g Node);

impl Display for NodeText<'_> {
    fn fmt(&self, f: &mut Formatter<'_>) -> fmt::Result {
        match &self.0.step {
            Step::Section(body) => write_boolean(f, body),
            Step::Filter(filter) => {
                f.write_str(filter.description.name)?;
                for (name, value) in filter.arguments.iter() {
                    match value {
                        filter::Value::Number(number) => write!(f, " {name}={number}")?,
                        filter::Value::Flag(flag) => write!(f, " {name}={flag}")?,
                        filter::Value::Text(text) => write!(f, " {name}={text:?}")?,
                        filter::Value::Bytes(bytes) => {
                            write!(f, " {name}=\"{}\"", bytes.escape_ascii())?;
                        }
                    }
                }
                filter.mark.iter().try_for_each(|mark| write!(f, " #{mark}"))?;
                filter.pin.iter().try_for_each(|pin| write!(f, " @{pin}"))
            }
            Step::Merge | Step::Unknown => f.write_str(self.0.name()),
        }
    }
}

fn write_boolean(f: &mut Formatter<'_>, body: &BooleanExpression) -> fmt::Result {
    let list = |f: &mut Formatter<'_>, links: &[SectionOperand], symbol: &str| {
        f.write_str("(")?;
        for (index, link) in links.iter().enumerate() {
            if index > 0 {
                write!(f, " {symbol} ")?;
            }
            if !link.classes.is_all() {
                write!(f, "{{{}}}", link.classes)?;
            }
            write_boolean(f, &link.body)?;
        }
        f.write_str(")")
    };
    match body {
        BooleanExpression::Filter(id) => write!(f, "{}", id.0),
        BooleanExpression::Any(links) => list(f, links, "++"),
        BooleanExpression::All(links) => list(f, links, "+*"),
        BooleanExpression::Not(inner) => {
            f.write_str("!")?;
            write_boolean(f, inner)
        }
        BooleanExpression::Chain { first, rest } => {
            f.write_str("[")?;
            write_boolean(f, first)?;
            for link in rest {
                match link.classes.is_plain() {
                    true => f.write_str(" > ")?,
                    false => write!(f, " >{{{}}} ", link.classes)?,
                }
                write_boolean(f, &link.body)?;
            }
            f.write_str("]")
        }
    }
}

fn write_order(f: &mut Formatter<'_>, order: &BlockOrder, graph: &Graph) -> fmt::Result {
    match order {
        BlockOrder::Edge(edge) => {
            write!(f, "{}", graph.edges.get(edge.0).map_or(0, |edge| edge.from.0))
        }
        BlockOrder::Split { forks, branches } => {
            f.write_str("(")?;
            for (index, branch) in branches.iter().enumerate() {
                if index > 0 {
                    f.write_str(", ")?;
                }
                write_order(f, branch, graph)?;
            }
            f.write_str(")")?;
            let forks: Vec<String> = forks.iter().map(|fork| fork.0.to_string()).collect();
            match forks.is_empty() {
                true => f.write_str(" by time"),
                false => write!(f, " by {}", forks.join(",")),
            }
        }
    }
}
