//! Search for the filters after which a request can be split, called ends, based on the facts in
//! the catalog.

use super::terms::{UnsharedReason, check_request_independence};
use crate::graph::{Edge, FilterUse, Graph, NodeId};
use crate::language::Span;
use crate::language::tree::{FilterTerm, Pipeline, Term};
use crate::registry::Registry;
use filter::{Description, Form, OutputForm, StateScope};

/// A filter at which a prefix can end, and after which requests can join.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) struct PrefixEnd {
    /// Position of the filter in the request, as an index into the stages after the source.
    pub(super) stage: usize,
    /// True if the filter outputs messages, false if it outputs streams.
    pub(super) outputs_messages: bool,
    /// True if no filter after the first possible end of a prefix, up to and including this filter,
    /// has arguments.
    pub(super) is_plain: bool,
    /// True if a label after the filter names an on-request class: a class that the filter produces
    /// only if a label names it.
    pub(super) is_on_request: bool,
}

/// Finds the filters at which a prefix of a pipeline can end, in order. They are the filter that
/// reassembles connections, and later filters that keep state per connection, up to the first
/// filter that cannot be shared. Fails with the reason if there are none.
pub(super) fn find_prefix_ends(
    whole: &Pipeline,
    graph: &Graph,
    registry: &dyn Registry,
) -> Result<Vec<PrefixEnd>, UnsharedReason> {
    let filters: Vec<(&FilterTerm, &FilterUse)> = leading_filters(whole, graph).collect();
    let orders = |(_, used): &(&FilterTerm, &FilterUse)| used.effect().output_form == STREAM_FORM;
    let Some(first) = filters.iter().position(orders) else {
        return Err(UnsharedReason("no `tcp` follows the interface in it".to_owned()));
    };
    let mut ends: Vec<PrefixEnd> = Vec::new();
    let (mut outputs_messages, mut is_plain) = (false, true);
    for (stage, (term, used)) in filters.into_iter().enumerate() {
        let is_behind = stage > first;
        match check_shareable(term, used, is_behind, registry) {
            Ok(()) => {}
            Err(_) if is_behind => break,
            Err(why) => return Err(why),
        }
        if stage < first {
            continue;
        }
        is_plain &= !is_behind || term.arguments.is_empty();
        match used.effect().output_form {
            OutputForm::Form(form) => outputs_messages = form == Form::Message,
            OutputForm::Same | OutputForm::Nothing => {}
        }
        if used.description.state.scope == StateScope::Sessions || !is_behind {
            let is_on_request = names_on_request_class(graph, term.span, used.description);
            ends.push(PrefixEnd { stage, outputs_messages, is_plain, is_on_request });
        }
    }
    Ok(ends)
}

const STREAM_FORM: OutputForm = OutputForm::Form(Form::Stream);
const MESSAGE_FORM: OutputForm = OutputForm::Form(Form::Message);

/// Returns the filters that follow the source, up to the first term that is not a filter.
fn leading_filters<'g>(
    whole: &'g Pipeline,
    graph: &'g Graph,
) -> impl Iterator<Item = (&'g FilterTerm, &'g FilterUse)> {
    whole.rest.iter().map_while(|stage| match &stage.term {
        Term::Filter(term) => Some((term, node_at(graph, term.span).and_then(|(_, used)| used)?)),
        _ => None,
    })
}

/// Checks that several requests can share a filter. Fails with the reason if they cannot.
/// `is_behind` is true for a filter after the filter that reassembles connections.
fn check_shareable(
    term: &FilterTerm,
    used: &FilterUse,
    is_behind: bool,
    registry: &dyn Registry,
) -> Result<(), UnsharedReason> {
    check_request_independence(term)?;
    let name = &term.name.text;
    if registry.is_added_by_program(name) {
        return Err(UnsharedReason(format!("`{name}` is a function of this program")));
    }
    // A session is observed from its beginning, so the state that is kept for it is the same for
    // all requests.
    if !matches!(used.description.state.scope, StateScope::Nothing | StateScope::Sessions) {
        return Err(UnsharedReason(format!("`{name}` before `tcp` has private state")));
    }
    let output_form = used.effect().output_form;
    if used.description.constructor.is_none()
        || is_behind && ![STREAM_FORM, MESSAGE_FORM, OutputForm::Same].contains(&output_form)
    {
        return Err(UnsharedReason(format!("`{name}` outputs neither streams nor messages")));
    }
    Ok(())
}

/// Returns true if a label after the filter names an on-request class: a class that the filter
/// produces only if a label names it. Also returns true if the graph has no filter at the span.
fn names_on_request_class(graph: &Graph, span: Span, filter: &Description) -> bool {
    let Some((node, _)) = node_at(graph, span) else { return true };
    let Some(made) = filter.classes_on_request else { return false };
    let names_one = |edge: &Edge| graph.names_class_within(edge, made);
    graph.outputs(node).any(names_one)
}

fn node_at(graph: &Graph, span: Span) -> Option<(NodeId, Option<&FilterUse>)> {
    let (id, node) = graph.nodes_with_ids().find(|(_, node)| node.span == span)?;
    Some((id, node.filter()))
}
