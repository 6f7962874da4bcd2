//! Facts about a node of a running path, for programs that display it: its filter, its arguments,
//! and the form of its output.

use crate::graph::{Edge, Graph, Step};
use crate::names::unquoted_value;
use filter::{Form, OutputForm};

/// Facts about a node of a plan: its filter, its arguments, and the form of its output.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct NodeFacts {
    /// Name of the filter in the catalog; empty for a Boolean section or a merge of sources.
    pub filter: &'static str,
    /// Arguments of the filter, including defaults.
    pub arguments: Vec<ArgumentFacts>,
    /// Form of the blocks that leave the node, or `None` for a sink.
    pub form: Option<Form>,
    /// True if the node is a sink that the planner added after a filter whose output was not used.
    pub implied: bool,
}

/// An argument of a filter.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct ArgumentFacts {
    /// Name of the parameter that the argument sets.
    pub name: &'static str,
    /// Value, in the syntax of a request but without quotes.
    pub value: String,
    /// True if the value distinguishes this filter from others with the same name: the parameter is
    /// required, or it is positional and its value differs from the default.
    pub given: bool,
    /// True if the value can be changed while the filter runs.
    pub writable: bool,
}

/// Returns the facts about the node with index `at`, or empty facts if there is no such node.
#[must_use]
pub fn node_facts(graph: &Graph, at: usize) -> NodeFacts {
    let Some(node) = graph.nodes.get(at) else { return NodeFacts::default() };
    let same = node.input_forms.first().copied();
    let Step::Filter(used) = &node.step else {
        return NodeFacts { form: same, ..NodeFacts::default() };
    };
    let argument = |(name, value): (&str, &filter::Value)| {
        let parameter = used.description.parameter(name)?;
        let default = parameter.default.and_then(|text| parameter.parse(text).ok());
        let required = parameter.default.is_none() && !parameter.optional;
        Some(ArgumentFacts {
            name: parameter.name,
            value: unquoted_value(parameter, value),
            given: required || parameter.positional && default.as_ref() != Some(value),
            writable: parameter.writable,
        })
    };
    let form = match used.effect().output_form {
        OutputForm::Same => same,
        OutputForm::Form(form) => Some(form),
        OutputForm::Nothing => None,
    };
    let arguments = used.arguments.iter().filter_map(argument).collect();
    let implied = used.is_sink() && node.span.start == node.span.end;
    NodeFacts { filter: used.description.name, arguments, form, implied }
}

/// Returns the classes of an arc as written in the request; empty for a plain pipe.
///
/// If both a group and its branch have labels, the result is the intersection, formatted as
/// numbers.
#[must_use]
pub fn arc_label(graph: &Graph, edge: &Edge) -> String {
    if edge.classes.is_plain() {
        return String::new();
    }
    let written = graph.text.get(edge.span.start..edge.span.end).unwrap_or_default();
    let label = written.strip_prefix('|').unwrap_or_default();
    match label.is_empty() || label.contains(char::is_whitespace) {
        true => edge.classes.to_string(),
        false => label.to_owned(),
    }
}
