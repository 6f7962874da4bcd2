//! Edits of a single filter: inserting, removing, replacing or restarting it, moving it to another
//! space, or changing its arguments.

use super::argument::assign_arguments;
use super::find::find_filter;
use super::kinds::{Edit, EditResult, InvalidEdit, Position};
use super::marks;
use super::origins::{Origins, print_with_origins};
use super::tree::{
    KERNEL_KEYWORD, filters, insert_beside, join_with_pipe, move_to_space, parse_filter,
    replace_filter, unpin_successors,
};
use crate::language::tree::Term;
use crate::language::{Request, Span};
use crate::registry::Registry;

/// Applies an edit that changes, inserts or removes one filter of the request.
pub(super) fn apply_term_edit(
    edit: &Edit,
    node: &str,
    mut request: Request,
    registry: &dyn Registry,
) -> Result<EditResult, InvalidEdit> {
    let old = Origins::new(&request);
    let at = find_filter(&request, node)?;
    if !matches!(edit, Edit::Move { .. } | Edit::Upgrade { .. } | Edit::SetArguments { .. }) {
        marks::refuse_if_used_repeatedly(&request, at, node)?;
    }
    let at = match edit {
        Edit::SetArguments { .. } => marks::find_term_with_arguments(&request, at),
        _ => at,
    };
    let mut act = edit_action(edit, at, &mut request, registry)?;
    let pipelines = std::mem::take(&mut request.pipelines).into_iter();
    request.pipelines = pipelines.filter_map(|term| replace_filter(term, at, &mut *act)).collect();
    if request.pipelines.is_empty() {
        return Err(InvalidEdit(format!("without `{node}` nothing is left")));
    }
    let mut edited = print_with_origins(&request, &old.find_origins(&request))?;
    if matches!(edit, Edit::Upgrade { .. }) {
        let new = edited.filters.iter().find(|(_, old)| *old == Some(at));
        edited.upgraded = new.map(|(span, _)| *span);
    }
    Ok(edited)
}

/// A function that changes one filter term, or removes it by returning `None`.
type TermChange = Box<dyn FnMut(Term) -> Option<Term>>;

/// Returns a function that applies an edit to the term of the edited filter. If the edit requires
/// changes to other terms, this function makes them at once in `request`.
fn edit_action(
    edit: &Edit,
    at: Span,
    request: &mut Request,
    registry: &dyn Registry,
) -> Result<TermChange, InvalidEdit> {
    Ok(match edit {
        Edit::Insert { filter, place: Position::After, .. } => {
            let filter = parse_filter(filter)?;
            Box::new(move |term| Some(join_with_pipe(term, filter.clone())))
        }
        Edit::Insert { filter, place: Position::Before, .. } => {
            let filter = parse_filter(filter)?;
            Box::new(move |term| Some(join_with_pipe(filter.clone(), term)))
        }
        Edit::Insert { filter, place: Position::Beside, .. } => {
            insert_beside(request, at, &parse_filter(filter)?)?;
            Box::new(Some)
        }
        Edit::Replace { filter, .. } => {
            let filter = parse_filter(filter)?;
            Box::new(move |_| Some(filter.clone()))
        }
        Edit::Move { space, .. } => {
            marks::unpin_uses(request, at);
            if space != KERNEL_KEYWORD {
                unpin_successors(request, at);
            }
            let space = space.clone();
            Box::new(move |term| match term {
                Term::Filter(node) => Some(Term::Filter(move_to_space(node, &space))),
                other => Some(other),
            })
        }
        Edit::SetArguments { arguments, .. } => {
            let old = filters(request).find(|node| node.span == at).cloned();
            let set = old.map(|old| {
                let given = parse_filter(&format!("{} {arguments}", old.name.text))?;
                assign_arguments(old, given, registry).map_err(InvalidEdit)
            });
            let set = set.transpose()?.map(Term::Filter);
            Box::new(move |_| set.clone())
        }
        Edit::Remove { .. } => Box::new(|_| None),
        _ => Box::new(Some),
    })
}
