//! Warnings about filters and sinks that receive no usable input although the forms match. Examples
//! are `weblog` after `http |404`, which passes no exchange, and `tcp` after `ip |udp`.
//!
//! Such a request runs and its ledger balances, so these are only warnings. The check compares the
//! graph with the `needs` in each filter's description.

use super::send_loops::sources_upstream;
use crate::graph::{Edge, FilterUse, Graph, NodeId, Step};
use crate::language::Diagnostic;
use crate::registry::Registry;
use filter::{Classes, FilterKind, OutputForm, UsableInput, ValueRange};

/// Returns a warning for each filter or sink without usable input.
pub(super) fn warn_of_missing_input(graph: &Graph) -> Vec<Diagnostic> {
    let mut found = Vec::new();
    for (id, node) in graph.nodes_with_ids() {
        let Some(used) =
            node.filter().filter(|used| !used.description.needs.usable_inputs.is_empty())
        else {
            continue;
        };
        if graph.inputs(id).next().is_none() {
            continue;
        }
        let mut search =
            UpstreamSearch { graph, of: id, visited: vec![false; graph.nodes.len()], last: None };
        if search.may_receive_usable_blocks(id) {
            continue;
        }
        let name = used.description.name;
        let what = format!("`{name}` can use none of its input");
        let hint = match search.last {
            Some((usable, _)) => usable.hint,
            None => used.description.needs.usable_inputs.first().map_or("", |usable| usable.hint),
        };
        let why = match search.last {
            Some((usable, edge)) if unrequested_classes(graph, edge, usable).is_some() => format!(
                "{}, and they are produced only if an arc selects them",
                used.description.needs.required_input
            ),
            Some((usable, edge)) => {
                let (label, giver) = (arc_label(graph, edge.from, edge), usable.upstream);
                format!("`|{label}` passes none of it from `{giver}`")
            }
            None => used.description.needs.required_input.to_owned(),
        };
        found.push(Diagnostic::warning(node.span, what).why(why).hint(hint));
    }
    found
}

/// Returns a warning for each arc that receives no blocks because it names classes too late. Some
/// filters emit certain classes only if one of their own arcs names them. The warning concerns a
/// later arc that names such classes, after a filter that preserves classes. Omits arcs about whose
/// target [`warn_of_missing_input`] warns.
pub(super) fn warn_of_unrequested_classes(graph: &Graph) -> Vec<Diagnostic> {
    let mut found = Vec::new();
    for edge in &graph.edges {
        let Some(giver) = graph.node(edge.from).filter() else { continue };
        if giver.description.classes != Classes::Same {
            continue;
        }
        let target = graph.node(edge.to);
        let warned = target.filter().map_or(&[][..], |used| used.description.needs.usable_inputs);
        for classifier in &graph.node(edge.from).classifiers {
            let Some(maker) = graph.node(*classifier).filter() else { continue };
            let Some(made) = maker.description.classes_on_request else { continue };
            let named = graph.outputs(*classifier).any(|arc| graph.names_class_within(arc, made));
            let name = maker.description.name;
            if named
                || !edge.classes.names_class_within(made)
                || warned.iter().any(|usable| usable.upstream == name)
            {
                continue;
            }
            let label = arc_label(graph, *classifier, edge);
            let between = giver.description.name;
            let what = format!("`{}` receives nothing on `|{label}`", target.name());
            let why = format!("`{name}` emits these blocks only on arcs that name them");
            let hint = format!("write `{name} |{label} {between} |{label} {}`", target.name());
            found.push(Diagnostic::warning(target.span, what).why(why).hint(hint));
        }
    }
    found
}

/// Returns a warning for each filter that cannot emit some of the classes that labels after it
/// name. These classes need both directions of connections, but the only source upstream observes
/// one. The warning is at the position of the source.
pub(super) fn warn_of_one_sided_sources(graph: &Graph, registry: &dyn Registry) -> Vec<Diagnostic> {
    let mut found: Vec<Diagnostic> = Vec::new();
    for (id, node) in graph.nodes_with_ids() {
        let both = node.filter().and_then(|used| used.description.needs.two_way_classes);
        if !both.is_some_and(|classes| {
            graph.outputs(id).any(|edge| graph.names_class_within(edge, classes))
        }) {
            continue;
        }
        let sources_upstream = sources_upstream(graph, id);
        // Two sources may observe one direction each.
        let [head] = sources_upstream[..] else { continue };
        let source = graph.node(head);
        let Some(used) = source.filter() else { continue };
        let Some(why) = registry.one_way_reason(used.description, &used.arguments) else {
            continue;
        };
        let what = format!("`{}` produces no results that need both directions", node.name());
        let hint = format!("write `{}`", suggest_both_directions(used));
        found.push(Diagnostic::warning(source.span, what).why(why).hint(hint));
    }
    found
}

/// Returns a source, in the syntax of a request, that observes both directions on the interface of
/// `source`.
fn suggest_both_directions(source: &FilterUse) -> String {
    let interface = source.arguments.text("interface");
    let interface = interface.map_or_else(String::new, |interface| format!(" {interface}"));
    format!("rx{interface} both=yes")
}

/// A search for nodes upstream of a filter whose output this filter can use.
struct UpstreamSearch<'g> {
    graph: &'g Graph,
    of: NodeId,
    visited: Vec<bool>,
    /// The last usable input that the search has found upstream, but that does not arrive, with the
    /// arc that does not pass its classes. `None` until such input is found.
    last: Option<(&'static UsableInput, &'g Edge)>,
}

impl<'g> UpstreamSearch<'g> {
    /// Returns true if blocks that the filter `of` can use may arrive at `node`. Returns false for
    /// a node that the search has already visited.
    fn may_receive_usable_blocks(&mut self, node: NodeId) -> bool {
        if std::mem::replace(&mut self.visited[node.0], true) {
            return false;
        }
        let graph = self.graph;
        graph.inputs(node).any(|edge| self.may_pass_arc(edge))
    }

    fn may_pass_arc(&mut self, edge: &'g Edge) -> bool {
        let Some(used) = self.graph.node(self.of).filter() else { return true };
        let Some(giver) = self.graph.node(edge.from).filter() else {
            // A section or a merge passes the blocks of its inputs.
            let unknown = matches!(self.graph.node(edge.from).step, Step::Unknown);
            return unknown || self.may_receive_usable_blocks(edge.from);
        };
        let mut wanted = used.description.needs.usable_inputs.iter();
        if let Some(usable) = wanted.find(|one| one.upstream == giver.description.name) {
            let well = match unrequested_classes(self.graph, edge, usable) {
                Some(classes) => {
                    has_any_class(edge, usable.classes) && edge.classes.names_class_within(classes)
                }
                None => has_any_class(edge, usable.classes),
            };
            if !well {
                self.last = Some((usable, edge));
            }
            return well;
        }
        let makes = matches!(giver.effect().output_form, OutputForm::Form(_));
        match (giver.description.kind, makes) {
            // The output of programs and other sources is unknown.
            (FilterKind::Source, _) => true,
            _ if giver.has_own_process() => true,
            (_, true) => used.description.needs.required_input.is_empty(),
            (_, false) => self.may_receive_usable_blocks(edge.from),
        }
    }
}

/// Returns the classes that the filter before an arc emits only if an arc names them. Returns
/// `None` if the filter has no such classes, or if they do not include all classes of `usable`.
fn unrequested_classes(graph: &Graph, edge: &Edge, usable: &UsableInput) -> Option<ValueRange> {
    let giver = graph.node(edge.from).filter()?.description;
    let UsableInput { classes: ValueRange { low, high }, .. } = *usable;
    giver.classes_on_request.filter(|classes| classes.contains((low, high)))
}

/// Formats the classes that an arc passes, which `classifier` assigns. A single class or a group is
/// formatted as its name, if it has one.
fn arc_label(graph: &Graph, classifier: NodeId, edge: &Edge) -> String {
    let giver = graph.node(classifier).filter().map(|used| used.description);
    let (Some(giver), [(low, high)]) = (giver, edge.classes.ranges()) else {
        return edge.classes.to_string();
    };
    let is_group = |range: &ValueRange| (range.low, range.high) == (*low, *high);
    if let Some((name, _)) = giver.class_groups.iter().find(|(_, range)| is_group(range)) {
        return (*name).to_owned();
    }
    let Classes::Number { names, .. } = giver.classes else { return edge.classes.to_string() };
    let name = names.iter().find(|(_, value)| low == high && value == low);
    name.map_or_else(|| edge.classes.to_string(), |(name, _)| (*name).to_owned())
}

/// Returns true if an arc passes at least one class of `classes`.
fn has_any_class(edge: &Edge, classes: ValueRange) -> bool {
    edge.classes.ranges().iter().any(|(low, high)| *low <= classes.high && classes.low <= *high)
}
