//! Several edits that form one change; each applies to the text that results from the previous one.

use super::kinds::{Edit, EditResult, InvalidEdit};
use crate::language::Span;
use crate::registry::Registry;

/// Applies edits one after another, each to the text that results from the edit before it.
pub(super) fn apply_edits(
    edits: &[Edit],
    text: &str,
    registry: &dyn Registry,
) -> Result<EditResult, InvalidEdit> {
    let mut edits = edits.iter();
    let none = || InvalidEdit("there is no edit".to_owned());
    let mut made = edits.next().ok_or_else(none)?.apply(text, registry)?;
    for edit in edits {
        let next = edit.apply(&made.text, registry);
        let next = next.map_err(|why| InvalidEdit(format!("`{edit}`: {why}")))?;
        made = join_edit_results(&made, next)?;
    }
    Ok(made)
}

/// Combines the results of two consecutive edits into one. Fails if both upgrade a filter.
fn join_edit_results(first: &EditResult, second: EditResult) -> Result<EditResult, InvalidEdit> {
    let origin = |between: Span| {
        let found = first.filters.iter().find(|(new, _)| new.start == between.start);
        found.and_then(|(_, old)| *old)
    };
    let filters = second.filters.iter().map(|(new, between)| (*new, between.and_then(origin)));
    let filters = filters.collect();
    let stays = |upgraded: Span| {
        let is = |(_, between): &&(Span, Option<Span>)| {
            between.is_some_and(|between| between.start == upgraded.start)
        };
        second.filters.iter().find(is).map(|(new, _)| *new)
    };
    let upgraded = match (first.upgraded.and_then(stays), second.upgraded) {
        (Some(_), Some(_)) => {
            let why = "one change upgrades one filter: make two changes";
            return Err(InvalidEdit(why.to_owned()));
        }
        (one, other) => one.or(other),
    };
    Ok(EditResult { text: second.text, filters, upgraded })
}
