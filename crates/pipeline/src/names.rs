//! The names of nodes, and their text in the syntax of a request.

use crate::format::{format_bytes, format_nanoseconds};
use crate::graph::{BooleanExpression, FilterUse, Graph, NodeId, SectionOperand, Step};
use crate::language::write_quoted;
use filter::{Parameter, ParameterType, Value};
use std::collections::HashMap;
use std::fmt::Write as _;

/// Returns a unique name for every node: `bpf`, `tcp#X` if the node has a mark, `bpf#1` and `bpf#2`
/// if several nodes would have the same name.
#[must_use]
pub fn unique_names(graph: &Graph) -> Vec<String> {
    let plain: Vec<String> =
        graph.nodes_with_ids().map(|(id, _)| unnumbered_name(graph, id)).collect();
    let mut totals: HashMap<&str, usize> = HashMap::new();
    plain.iter().for_each(|name| *totals.entry(name).or_default() += 1);
    let mut counts: HashMap<&str, usize> = HashMap::new();
    let mut names = Vec::with_capacity(plain.len());
    for name in &plain {
        let number = counts.entry(name).or_default();
        *number += 1;
        let is_single = totals.get(name.as_str()) == Some(&1);
        names.push(if is_single { name.clone() } else { format!("{name}#{number}") });
    }
    names
}

fn unnumbered_name(graph: &Graph, id: NodeId) -> String {
    match &graph.node(id).step {
        Step::Filter(used) => used.display_name(),
        Step::Section(body) => body_text(body, true, &|id| {
            graph.node(id).filter().map_or_else(String::new, FilterUse::display_name)
        }),
        Step::Merge | Step::Unknown => graph.node(id).name().to_owned(),
    }
}

/// Formats a node in the syntax of a request, with its mark and with the arguments that differ from
/// their defaults.
#[must_use]
pub fn node_text(graph: &Graph, id: NodeId) -> String {
    match &graph.node(id).step {
        Step::Filter(used) => arguments_text(used),
        Step::Section(body) => body_text(body, true, &|id| {
            graph.node(id).filter().map_or_else(String::new, arguments_text)
        }),
        Step::Merge => "merge of sources".to_owned(),
        Step::Unknown => "?".to_owned(),
    }
}

/// Formats a node in the syntax of a request, without its mark. Measured costs are stored under
/// this text.
#[must_use]
pub fn cost_key(graph: &Graph, id: NodeId) -> String {
    match &graph.node(id).step {
        Step::Filter(used) => with_arguments(used.description.name.to_owned(), used),
        Step::Section(_) | Step::Merge | Step::Unknown => node_text(graph, id),
    }
}

fn arguments_text(used: &FilterUse) -> String {
    with_arguments(used.display_name(), used)
}

fn with_arguments(mut text: String, used: &FilterUse) -> String {
    for (name, value) in used.arguments.iter() {
        let Some(parameter) = used.description.parameter(name) else { continue };
        let default = parameter.default.and_then(|text| parameter.parse(text).ok());
        if default.as_ref() == Some(value) {
            continue;
        }
        let value = value_text(parameter, value);
        let _ = match parameter.positional {
            true => write!(text, " {value}"),
            false => write!(text, " {name}={value}"),
        };
    }
    text
}

/// Formats the value of an argument in the syntax of a request, but without quotes. Bytes that are
/// not UTF-8 become U+FFFD.
pub(crate) fn unquoted_value(parameter: &Parameter, value: &Value) -> String {
    match value {
        Value::Text(text) => text.clone(),
        Value::Bytes(bytes) => String::from_utf8_lossy(bytes).into_owned(),
        Value::Number(_) | Value::Flag(_) => value_text(parameter, value),
    }
}

fn value_text(parameter: &Parameter, value: &Value) -> String {
    match (value, parameter.kind) {
        (Value::Number(n), ParameterType::Size { .. }) => format_bytes(*n).replace(' ', ""),
        (Value::Number(n), ParameterType::Duration) => format_nanoseconds(*n).replace(' ', ""),
        (Value::Number(n), ParameterType::Factor { .. }) => factor_text(*n),
        (Value::Number(n), _) => n.to_string(),
        (Value::Flag(flag), _) => if *flag { "yes" } else { "no" }.to_owned(),
        (Value::Text(text), _) => quoted_if_needed(text.as_bytes()),
        (Value::Bytes(bytes), _) => quoted_if_needed(bytes),
    }
}

/// Formats a factor, given in millionths, in the syntax of a request, such as `2` or `0.5`.
fn factor_text(millionths: u64) -> String {
    let text = format!("{}.{:06}", millionths / 1_000_000, millionths % 1_000_000);
    text.trim_end_matches('0').trim_end_matches('.').to_owned()
}

/// Returns a text as one word of a request, quoted if necessary.
#[must_use]
pub fn quoted_word(text: &str) -> String {
    quoted_if_needed(text.as_bytes())
}

/// Returns the text unchanged if it is one word; otherwise quotes it for a request.
pub(crate) fn quoted_if_needed(bytes: &[u8]) -> String {
    let bare = |byte: &u8| byte.is_ascii_alphanumeric() || b"/._-:,%@^~*".contains(byte);
    if !bytes.is_empty() && bytes.iter().all(bare) {
        return bytes.iter().copied().map(char::from).collect();
    }
    let mut text = String::new();
    let _ = write_quoted(&mut text, bytes);
    text
}

/// Formats a Boolean section in the syntax of a request. If `outer` is false, the text is enclosed
/// in parentheses where necessary. `name` formats an operand.
fn body_text(body: &BooleanExpression, outer: bool, name: &dyn Fn(NodeId) -> String) -> String {
    let list = |links: &[SectionOperand], symbol: &str| {
        let part = |link: &SectionOperand| {
            let label = match link.classes.is_all() {
                true => String::new(),
                false => format!("|{} ", link.classes),
            };
            format!("{label}{}", body_text(&link.body, false, name))
        };
        let all: Vec<String> = links.iter().map(part).collect();
        let text = all.join(&format!(" {symbol} "));
        if outer { text } else { format!("({text})") }
    };
    match body {
        BooleanExpression::Filter(id) => name(*id),
        BooleanExpression::Not(inner) => format!("!{}", body_text(inner, false, name)),
        BooleanExpression::Any(links) => list(links, "++"),
        BooleanExpression::All(links) if links.is_empty() => "all".to_owned(),
        BooleanExpression::All(links) => list(links, "+*"),
        BooleanExpression::Chain { first, rest } => {
            let mut text = body_text(first, false, name);
            for link in rest {
                let pipe = match link.classes.is_plain() {
                    true => "|".to_owned(),
                    false => format!("|{}", link.classes),
                };
                let _ = write!(text, " {pipe} {}", body_text(&link.body, false, name));
            }
            format!("({text})")
        }
    }
}

/// Returns true if the values of a parameter are file names.
#[must_use]
pub fn is_path(parameter: &Parameter) -> bool {
    parameter.kind == ParameterType::Path
}
