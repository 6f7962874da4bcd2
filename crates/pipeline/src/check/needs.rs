//! Filters and sinks to which nothing comes that they can use, although the forms fit: `weblog`
//! behind `http |404`, which lets no exchange through; `tcp` behind `ip |udp`.
//!
//! In: the graph, and what each description says of the blocks that it can use. Out: warnings,
//! since such a request runs and its ledger balances; it only never does what its author meant.

use super::leads::heads;
use crate::catalogue::Catalogue;
use crate::graph::{Edge, Graph, NodeId, Step, Use};
use crate::language::Diagnostic;
use filter::{Classes, Gives, Kind, Usable, ValueRange};

/// One warning for each filter or sink that will find nothing to do.
pub(super) fn starved(graph: &Graph) -> Vec<Diagnostic> {
    let mut found = Vec::new();
    for (id, node) in graph.ids() {
        let Some(used) = node.filter().filter(|used| !used.description.needs.usable.is_empty())
        else {
            continue;
        };
        if graph.inputs(id).next().is_none() {
            continue;
        }
        let mut search = Upward { graph, of: id, seen: vec![false; graph.nodes.len()], last: None };
        if search.reaches(id) {
            continue;
        }
        let name = used.description.name;
        let what = format!("nothing that `{name}` can use comes to it");
        let hint = match search.last {
            Some((usable, _)) => usable.hint,
            None => used.description.needs.usable.first().map_or("", |usable| usable.hint),
        };
        let why = match search.last {
            Some((usable, _)) if usable.on_request => format!(
                "{}, and they are made only where an arc asks for them",
                used.description.needs.otherwise
            ),
            Some((usable, edge)) => {
                let (label, giver) = (label(graph, edge), usable.giver);
                format!("`|{label}` lets none of it through from `{giver}`")
            }
            None => used.description.needs.otherwise.to_owned(),
        };
        found.push(Diagnostic::warning(node.span, what).why(why).hint(hint));
    }
    found
}

/// One warning for each source that sees one direction of connections alone, where a filter behind
/// it is asked for what it makes of both.
pub(super) fn one_sided(graph: &Graph, catalogue: &dyn Catalogue) -> Vec<Diagnostic> {
    let mut found: Vec<Diagnostic> = Vec::new();
    for (id, node) in graph.ids() {
        let both = node.filter().and_then(|used| used.description.needs.both_ways);
        if !both.is_some_and(|classes| graph.outputs(id).any(|edge| names(edge, classes))) {
            continue;
        }
        let heads = heads(graph, id);
        // Two sources may see one direction each.
        let [head] = heads[..] else { continue };
        let source = graph.node(head);
        let Some(used) = source.filter() else { continue };
        let Some(why) = catalogue.sees_one_way(used.description, &used.arguments) else { continue };
        let what = format!("`{}` gives nothing that takes both directions", node.name());
        let hint = format!("write `{}`", with_both(used));
        found.push(Diagnostic::warning(source.span, what).why(why).hint(hint));
    }
    found
}

/// The source with the other direction, as one would write it.
fn with_both(source: &Use) -> String {
    let interface = source.arguments.text("interface");
    let interface = interface.map_or_else(String::new, |interface| format!(" {interface}"));
    format!("rx{interface} both=yes")
}

/// A walk against the stream, from a filter to those that give what comes to it.
struct Upward<'g> {
    graph: &'g Graph,
    of: NodeId,
    seen: Vec<bool>,
    /// The giver that was found last, and the arc that lets nothing of use through.
    last: Option<(&'static Usable, &'g Edge)>,
}

impl<'g> Upward<'g> {
    /// Returns true if something may come to `node` that the filter can use.
    fn reaches(&mut self, node: NodeId) -> bool {
        if std::mem::replace(&mut self.seen[node.0], true) {
            return false;
        }
        let graph = self.graph;
        graph.inputs(node).any(|edge| self.passes(edge))
    }

    fn passes(&mut self, edge: &'g Edge) -> bool {
        let Some(used) = self.graph.node(self.of).filter() else { return true };
        let Some(giver) = self.graph.node(edge.from).filter() else {
            // A composite gives blocks as they came, a merge those of its sources.
            let unknown = matches!(self.graph.node(edge.from).step, Step::Unknown);
            return unknown || self.reaches(edge.from);
        };
        let mut wanted = used.description.needs.usable.iter();
        if let Some(usable) = wanted.find(|one| one.giver == giver.description.name) {
            let well = match usable.on_request {
                true => self.asked(edge, usable.classes),
                false => lets(edge, usable.classes),
            };
            if !well {
                self.last = Some((usable, edge));
            }
            return well;
        }
        let makes = matches!(giver.effect().gives, Gives::Form(_));
        match (giver.description.kind, makes) {
            // Nobody knows what programs and other sources give.
            (Kind::Source, _) => true,
            _ if giver.is_process() => true,
            (_, true) => used.description.needs.otherwise.is_empty(),
            (_, false) => self.reaches(edge.from),
        }
    }

    /// Returns true if the arc lets such classes through, and one that leaves the same filter names
    /// them: that is what makes it give them.
    fn asked(&self, edge: &Edge, classes: ValueRange) -> bool {
        lets(edge, classes) && self.graph.outputs(edge.from).any(|edge| names(edge, classes))
    }
}

/// Returns true if an arc names some of these classes and no others beside them in one range.
fn names(edge: &Edge, classes: ValueRange) -> bool {
    let within = |(low, high): &(u32, u32)| classes.low <= *low && *high <= classes.high;
    edge.classes.ranges().iter().any(within)
}

/// The classes of an arc as one would write them: by name where it is one class that has a name.
fn label(graph: &Graph, edge: &Edge) -> String {
    let giver = graph.node(edge.from).filter().map(|used| used.description.classes);
    let (Some(Classes::Number { names, .. }), [(low, high)]) = (giver, edge.classes.ranges())
    else {
        return edge.classes.to_string();
    };
    let name = names.iter().find(|(_, value)| low == high && value == low);
    name.map_or_else(|| edge.classes.to_string(), |(name, _)| (*name).to_owned())
}

/// Returns true if an arc lets one of these classes through.
fn lets(edge: &Edge, classes: ValueRange) -> bool {
    edge.classes.ranges().iter().any(|(low, high)| *low <= classes.high && classes.low <= *high)
}
