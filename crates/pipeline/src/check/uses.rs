//! The filter of each node with its arguments, mark and pin, and a check that all uses of a mark
//! agree. Once all arguments are known, each filter validates them in combination, given the link
//! types of the arriving frames.

use super::arguments::{ArgumentTexts, parse_arguments};
use super::links;
use super::lower::{Draft, DraftStep};
use crate::graph::FilterUse;
use crate::language::label::truncate_word;
use crate::language::tree::{Argument, FilterTerm, Name};
use crate::language::write_quoted;
use crate::language::{Diagnostic, find_nearest_word};
use crate::registry::Registry;
use filter::{Arguments, Value};

/// Returns the filter of each node, or `None` for a section, a merge or an unknown name. Adds to
/// the draft the mistakes in the filters' arguments and pins, and the parameter values to insert
/// into the text of the request.
pub(super) fn resolve_uses(
    draft: &mut Draft<'_>,
    registry: &dyn Registry,
) -> Vec<Option<FilterUse>> {
    let mut mistakes = Vec::new();
    let mut used = Vec::with_capacity(draft.nodes.len());
    let mut texts = Vec::with_capacity(draft.nodes.len());
    let none = Arguments::default().with_compiler(registry.compiler());
    let none = none.with_key_reader(registry.key_reader()).with_name_resolver(registry.resolver());
    for node in &draft.nodes {
        let DraftStep::Filter(uses) = &node.step else {
            used.push(None);
            texts.push(None);
            continue;
        };
        check_uses_agree(uses, &mut mistakes);
        for node in uses {
            check_pin(node, registry, &mut mistakes);
        }
        let given = uses.iter().find(|node| !node.arguments.is_empty()).or_else(|| uses.first());
        let read = node.entry.zip(given).map(|(description, given)| {
            let (arguments, read) =
                parse_arguments(given, description, &none, registry, &mut mistakes);
            let used = FilterUse {
                description,
                endpoint: registry.endpoint_facts(description),
                arguments,
                pin: uses.iter().find_map(|node| name_text(node.pin.as_ref())),
                pin_reason: None,
                mark: uses.iter().find_map(|node| name_text(node.mark.as_ref())),
                repeated: uses.len() > 1,
            };
            (used, read)
        });
        let (one, read) = read.unzip();
        used.push(one);
        texts.push(read);
    }
    draft.insertions = validate_arguments(draft, &mut used, &texts, registry, &mut mistakes);
    draft.mistakes.append(&mut mistakes);
    used
}

/// Validates the arguments of each filter in combination, if each of them is valid alone. The
/// filters may also obtain unset parameters from the machine. Returns the values of these
/// parameters, with the byte offsets at which to insert them into the text of the request.
fn validate_arguments(
    draft: &Draft<'_>,
    used: &mut [Option<FilterUse>],
    texts: &[Option<ArgumentTexts<'_>>],
    registry: &dyn Registry,
    mistakes: &mut Vec<Diagnostic>,
) -> Vec<(usize, String)> {
    let links = links::infer_link_types(draft, used, texts, registry);
    let mut insertions = Vec::new();
    for ((used, read), links) in used.iter_mut().zip(texts).zip(links) {
        let (Some(used), Some(read)) = (used, read) else { continue };
        let (entry, arguments) = (used.description, std::mem::take(&mut used.arguments));
        used.arguments = arguments.with_link_types(links);
        if !read.is_valid {
            continue;
        }
        if let Some((parameter, value)) =
            entry.analysis.fix_parameter.and_then(|ask| ask(&used.arguments))
        {
            let mut text = format!(" {parameter}=");
            // Writing to a `String` cannot fail.
            let _ = write_quoted(&mut text, value.as_bytes());
            insertions.push((read.end_offset(), text));
            used.arguments.set(parameter, Value::Text(value));
        }
        if let Some(refusal) = registry.argument_refusal(entry, &used.arguments) {
            mistakes.push(read.argument_diagnostic(refusal, Diagnostic::error));
        } else if let Some(warning) = registry.argument_warning(entry, &used.arguments) {
            mistakes.push(read.argument_diagnostic(warning, Diagnostic::warning));
        }
    }
    insertions
}

fn name_text(name: Option<&Name>) -> Option<String> {
    name.map(|name| name.text.clone())
}

/// Reports contradictions between the filter terms with the same mark, which denote one node: their
/// names, arguments and pins must agree. A later term may omit the arguments and the pin. Several
/// terms without a mark denote one source, whose arguments `union` has already compared.
fn check_uses_agree(uses: &[&FilterTerm], mistakes: &mut Vec<Diagnostic>) {
    let Some((first, rest)) = uses.split_first() else { return };
    let mark = first.mark.as_ref().map_or("", |mark| mark.text.as_str());
    let mut arguments = first;
    let mut pin = first.pin.as_ref();
    for node in rest {
        if node.name.text != first.name.text {
            let (one, other) = (truncate_word(&first.name.text), truncate_word(&node.name.text));
            let what = format!("the mark `{}` is on `{one}` and on `{other}`", truncate_word(mark));
            mistakes.push(
                Diagnostic::error(node.name.span, what)
                    .why("equal marks are one node")
                    .hint(format!("give `{other}` another mark")),
            );
            continue;
        }
        if arguments.arguments.is_empty() {
            arguments = node;
        } else if node.mark.is_some()
            && !node.arguments.is_empty()
            && !have_equal_arguments(&arguments.arguments, &node.arguments)
        {
            let what = format!(
                "`{}` has other arguments under the same mark",
                truncate_word(&node.name.text)
            );
            mistakes.push(
                Diagnostic::error(node.span, what)
                    .why("equal marks are one node")
                    .hint("write the arguments once"),
            );
        }
        match (pin, &node.pin) {
            (Some(one), Some(other)) if one.text != other.text => {
                let what = format!("`{}` is pinned to two spaces", truncate_word(&node.name.text));
                mistakes.push(Diagnostic::error(other.span, what).why("equal marks are one node"));
            }
            (None, other) => pin = other.as_ref(),
            _ => {}
        }
    }
}

fn have_equal_arguments(one: &[Argument], other: &[Argument]) -> bool {
    let key = |argument: &Argument| argument.key.as_ref().map(|key| key.text.clone());
    one.len() == other.len()
        && one.iter().zip(other).all(|(a, b)| key(a) == key(b) && a.value.bytes == b.value.bytes)
}

fn check_pin(node: &FilterTerm, registry: &dyn Registry, mistakes: &mut Vec<Diagnostic>) {
    let Some(pin) = &node.pin else { return };
    let spaces = registry.spaces();
    let known = spaces.iter().any(|space| match space.strip_suffix('*') {
        Some(family) => pin.text.strip_prefix(family).is_some_and(is_number),
        None => *space == pin.text,
    });
    if known {
        return;
    }
    let listed: Vec<String> =
        spaces.iter().map(|space| format!("`{}`", space.replace('*', "0"))).collect();
    let named = spaces.iter().filter(|space| !space.ends_with('*')).copied();
    let hint = match find_nearest_word(&pin.text, named) {
        Some(meant) => format!("did you mean `@{meant}`?"),
        None => format!("there are {}", listed.join(", ")),
    };
    let what = format!("no space is called `{}`", truncate_word(&pin.text));
    mistakes.push(Diagnostic::error(pin.span, what).hint(hint));
}

fn is_number(text: &str) -> bool {
    !text.is_empty() && text.len() <= 4 && text.bytes().all(|b| b.is_ascii_digit())
}
