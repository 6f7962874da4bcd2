//! Attachment of a subtree to an output of a node, beside the existing branches.

use super::cut::{
    SPLITTER, filter_path, into_stages, is_in_followed_group, is_operand, pipeline_from_stages,
    term_at_mut,
};
use super::kinds::InvalidEdit;
use super::marks::MarkGenerator;
use super::tree::{INSERTED_SPAN, parse_tree, plain_pipe};
use crate::language::tree::{
    Branch, FilterTerm, Group, Label, Name, Operator, Pipe, Pipeline, Term,
};
use crate::language::{Request, Span};

/// The sink for an output that is not used.
pub(super) const PLACEHOLDER_SINK: &str = "discard";

/// Parses the classes of an output, such as `80` or `ssh:telnet`.
pub(super) fn parse_label(classes: &str) -> Result<Label, InvalidEdit> {
    let invalid =
        || InvalidEdit(format!("`{classes}` is not a class: write `NODE/80` or `NODE/!80`"));
    let request = parse_tree(&format!("a |{classes} b"), "").map_err(|_| invalid())?;
    match request.pipelines.into_iter().next() {
        Some(Term::Pipeline(Pipeline { mut rest, .. })) if rest.len() == 1 => {
            rest.pop().and_then(|stage| stage.arc.label).ok_or_else(invalid)
        }
        _ => Err(invalid()),
    }
}

/// Returns the term of the sink that is attached to an output that is not used.
pub(super) fn placeholder() -> Term {
    let name = Name { text: PLACEHOLDER_SINK.to_owned(), span: INSERTED_SPAN };
    let arguments = Vec::new();
    Term::Filter(FilterTerm { name, arguments, mark: None, pin: None, span: INSERTED_SPAN })
}

fn is_placeholder(stages: &[(Pipe, Term)]) -> bool {
    match stages {
        [(Pipe { label: None, .. }, Term::Filter(node))] => {
            let FilterTerm { name, arguments, mark: None, pin: None, .. } = node else {
                return false;
            };
            name.text == PLACEHOLDER_SINK && arguments.is_empty()
        }
        _ => false,
    }
}

/// Attaches a branch to the output of the filter with this span. Replaces a placeholder sink at the
/// output; all other terms stay unchanged. Fails at a `split_rr` that would not distribute blocks
/// to the branch.
pub(super) fn attach_branch(
    request: &mut Request,
    at: Span,
    branch: Branch,
) -> Result<(), InvalidEdit> {
    let missing = || InvalidEdit("the filter has left the request".to_owned());
    let path = filter_path(request, at).ok_or_else(missing)?;
    let (last, parent) = path.split_last().ok_or_else(missing)?;
    let apart = is_operand(request, &path) || is_in_followed_group(request, &path);
    let mut marks = MarkGenerator::new(request);
    let Some(Term::Filter(node)) = term_at_mut(request, &path) else { return Err(missing()) };
    let splits = node.name.text == SPLITTER;
    let why = "distributes blocks to its branches: write the whole new request";
    let refused = || InvalidEdit(format!("`{SPLITTER}` {why}"));
    if apart {
        if splits {
            return Err(refused());
        }
        let reference = Term::Filter(marks.create_reference(node));
        let arc = Pipe { label: branch.label, span: INSERTED_SPAN };
        request
            .pipelines
            .push(pipeline_from_stages(vec![(plain_pipe(), reference), (arc, branch.term)]));
        return Ok(());
    }
    let (place, index) = match term_at_mut(request, parent) {
        Some(Term::Pipeline(_)) => (parent, *last),
        _ => (&path[..], 0),
    };
    let Some(whole) = term_at_mut(request, place) else { return Err(missing()) };
    let mut stages = into_stages(whole.clone());
    let after = stages.split_off(index + 1);
    if splits && !can_be_distributed(&after, &branch) {
        return Err(refused());
    }
    stages.push(merge_beside(after, branch));
    *whole = pipeline_from_stages(stages);
    Ok(())
}

/// Returns true if a `split_rr` would distribute blocks to `branch` when the branch is attached to
/// it. `after` contains the stages that already follow the `split_rr`.
fn can_be_distributed(after: &[(Pipe, Term)], branch: &Branch) -> bool {
    match after {
        [(Pipe { label: None, .. }, Term::Group(group))] => {
            let labelled = group.branches.iter().any(|branch| branch.label.is_some());
            group.operator == Operator::Parallel && labelled == branch.label.is_some()
        }
        _ => false,
    }
}

/// Returns a stage that passes its input to `branch` and, unchanged, to the existing stages
/// `after`. If `after` is empty or a placeholder, the stage consists of the branch alone.
fn merge_beside(mut after: Vec<(Pipe, Term)>, branch: Branch) -> (Pipe, Term) {
    if after.is_empty() || is_placeholder(&after) {
        return (Pipe { label: branch.label, span: INSERTED_SPAN }, branch.term);
    }
    if let [(Pipe { label: None, .. }, Term::Group(group))] = after.as_mut_slice()
        && group.operator == Operator::Parallel
    {
        group.branches.push(branch);
        return after.remove(0);
    }
    let label = after[0].0.label.take();
    let old = Branch { label, term: pipeline_from_stages(after), span: INSERTED_SPAN };
    let branches = vec![old, branch];
    let group = Group { operator: Operator::Parallel, branches, span: INSERTED_SPAN };
    (plain_pipe(), Term::Group(group))
}
