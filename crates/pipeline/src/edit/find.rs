//! Lookup of a request's filters by name, mark or number.

use super::kinds::InvalidEdit;
use super::tree::{filters, parse_tree};
use crate::language::tree::FilterTerm;
use crate::language::{Request, Span};
use crate::prefix::terms;

/// Returns the span of a filter in a request. `node` is the filter's name, mark or number in the
/// syntax of edits.
pub fn filter_span(text: &str, node: &str) -> Result<Span, InvalidEdit> {
    find_filter(&parse_tree(text, "the running request")?, node)
}

/// Returns the span of a node's first use. `wanted` is the node's name (if unique), its mark
/// (`tcp#X`, `#X`), or its number: `count:2` is the second node of that name, and `count#2` the
/// second of that name without a mark, as in reports. Fails if no node or several nodes match.
pub(super) fn find_filter(request: &Request, wanted: &str) -> Result<Span, InvalidEdit> {
    let (name, number) = match wanted.rsplit_once(':') {
        Some((name, number)) => (name, number.parse::<usize>().ok()),
        None => (wanted, None),
    };
    let (name, mark) = match name.split_once('#') {
        Some((name, mark)) => (name, Some(mark)),
        None => (name, None),
    };
    // No mark begins with a digit.
    let (mark, unmarked) = match mark.map(str::parse::<usize>) {
        Some(Ok(number)) => (None, Some(number)),
        _ => (mark, None),
    };
    let marked = |node: &FilterTerm| node.mark.as_ref().map(|mark| mark.text.clone());
    let is = |node: &&FilterTerm| {
        (name.is_empty() || node.name.text == name)
            && mark.is_none_or(|mark| marked(node).as_deref() == Some(mark))
            && (unmarked.is_none() || node.mark.is_none())
    };
    let mut found: Vec<&FilterTerm> = Vec::new();
    for node in filters(request).filter(is) {
        if node.mark.is_none() || !found.iter().any(|known| marked(known) == marked(node)) {
            found.push(node);
        }
    }
    match (found.as_slice(), number.or(unmarked)) {
        ([], _) => {
            let shared = filters(request).find_map(|node| terms::prefix_containing(node, name));
            let why = shared.map_or_else(String::new, |prefix| {
                format!(
                    ": it runs in the shared prefix `{prefix}`, for every request that begins so; \
                     start this one with `--prefix=private` to change it for this one alone"
                )
            });
            Err(InvalidEdit(format!("the request has no `{wanted}`{why}")))
        }
        ([one], None) => Ok(one.span),
        (all, Some(number)) if (1..=all.len()).contains(&number) => Ok(all[number - 1].span),
        (all, _) => {
            let (many, last) = (all.len(), all.len());
            let what = format!("the request has {many} of `{name}`: write `{name}:1` to `:{last}`");
            Err(InvalidEdit(what))
        }
    }
}
