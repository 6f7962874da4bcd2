//! Checks of published state (`state=NAME`): the filter must be able to publish state, and the name
//! must be unique.

use super::lower::{Draft, DraftStep};
use super::shape::name_span;
use crate::graph::FilterUse;
use crate::language::Diagnostic;
use filter::{STATE_MODE_PARAMETER, STATE_PARAMETER, StateScope};

/// Reports filters that cannot publish state: stateless and untrusted filters, and filters whose
/// state name is already in use. Also reports `state_mode=` without `state=`.
pub(super) fn check_published_states(draft: &mut Draft<'_>, used: &[Option<FilterUse>]) {
    for (index, one) in used.iter().enumerate() {
        let Some(one) = one.as_ref().filter(|one| one.description.constructor.is_some()) else {
            continue;
        };
        let description = one.description;
        let DraftStep::Filter(nodes) = &draft.nodes[index].step else { continue };
        let place = name_span(nodes, draft.nodes[index].span);
        let refused = |why: &str| {
            let what = format!("`{}` cannot publish its state", description.name);
            Diagnostic::error(place, what).why(why.to_owned())
        };
        let Some(name) = one.published_state_name() else {
            if one.arguments.text(STATE_MODE_PARAMETER.name).is_some() {
                let what = format!("no state of `{}` is published", description.name);
                let why = "`state_mode=` sets who may read what `state=NAME` publishes";
                draft.mistakes.push(Diagnostic::error(place, what).why(why));
            }
            continue;
        };
        let twice = used
            .iter()
            .take(index)
            .flatten()
            .any(|other| other.published_state_name() == Some(name));
        if description.state.published_columns.is_none() {
            draft.mistakes.push(refused(match description.state.scope {
                StateScope::Nothing => "it keeps no state between blocks",
                _ => "its state has no fields for publication",
            }));
        } else if one.is_untrusted() {
            let why = "it runs in an untrusted process, which could publish anything";
            draft.mistakes.push(refused(why));
        } else if twice {
            let what = format!("`{}={name}` is given twice", STATE_PARAMETER.name);
            let why = "a name belongs to one filter";
            let hint = "with the same mark in both places (`--name=X`) it is one filter, whose \
                        output continues in both; or put it before the branches";
            draft.mistakes.push(Diagnostic::error(place, what).why(why).hint(hint));
        }
    }
}
