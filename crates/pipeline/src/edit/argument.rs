//! Assignments to writable arguments of a running filter.

use crate::check;
use crate::language::tree::{FilterTerm, Term};
use crate::registry::Registry;
use filter::{Arguments, Description};

/// Returns the filter with its old argument values replaced by the arguments in `given`. Fails with
/// the reason if an argument is not writable.
pub(super) fn assign_arguments(
    mut node: FilterTerm,
    given: Term,
    registry: &dyn Registry,
) -> Result<FilterTerm, String> {
    let syntax = || "write `arg NODE NAME=VALUE`".to_owned();
    let Term::Filter(FilterTerm { arguments, mark: None, pin: None, .. }) = given else {
        return Err(syntax());
    };
    let entry = registry.find(&node.name.text);
    for argument in arguments {
        let key = argument.key.as_ref().ok_or_else(syntax)?;
        let parameter = entry.and_then(|entry| entry.parameter(&key.text));
        let Some((entry, parameter)) = entry.zip(parameter.filter(|known| known.writable)) else {
            return Err(refusal_reason(&node.name.text, &key.text, entry, parameter.is_some()));
        };
        let (none, mut mistakes) = (Arguments::default(), Vec::new());
        let (_, texts) = check::parse_arguments(&node, entry, &none, registry, &mut mistakes);
        let place = texts.value_text(parameter.name).map(|text| text.span);
        match node.arguments.iter_mut().find(|known| Some(known.value.span) == place) {
            // A bare flag has no separate value.
            Some(known) if known.key.is_none() && known.value.bytes == key.text.as_bytes() => {
                *known = argument;
            }
            Some(known) => known.value = argument.value,
            None => node.arguments.push(argument),
        }
    }
    Ok(node)
}

/// Formats the reason why the argument `key` of the filter `name` cannot be set, with the names of
/// the filter's writable arguments. `exists` is true if the filter has a parameter `key`.
fn refusal_reason(name: &str, key: &str, entry: Option<&Description>, exists: bool) -> String {
    let parameters = entry.map_or(&[][..], |entry| entry.parameters).iter();
    let writable = parameters.filter(|parameter| parameter.writable);
    let writable: Vec<String> = writable.map(|known| format!("`{}`", known.name)).collect();
    let why = match exists {
        true => format!("`{key}` of `{name}` cannot change at run time"),
        false => format!("`{name}` has no parameter `{key}`"),
    };
    match writable.is_empty() {
        true => format!("{why}, and none of its arguments can be set: replace it"),
        false => format!("{why}; `arg` sets {}", writable.join(", ")),
    }
}
