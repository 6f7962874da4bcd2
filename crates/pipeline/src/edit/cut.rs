//! Removal of a subtree from the tree of a request. The subtree of a filter consists of the filter
//! and the stages after it. If branches meet downstream of the filter, the common stages get marks,
//! and the subtree refers to these marks.

use super::kinds::InvalidEdit;
use super::marks::MarkGenerator;
use super::tree::{INSERTED_SPAN, plain_pipe};
use crate::language::tree::{
    Branch, FilterTerm, Group, Label, Operator, Pipe, Pipeline, Stage, Term,
};
use crate::language::{Request, Span};

/// The filter that distributes its input among the branches after it.
pub(super) const SPLITTER: &str = "split_rr";

/// The position of a term in a request. The first element is the index of the term's pipeline; each
/// further element is the index of a stage, branch or operand at the next level of nesting.
pub(super) type TermPath = Vec<usize>;

/// Returns the position of the filter with this span, or `None` if there is no such filter.
pub(super) fn filter_path(request: &Request, at: Span) -> Option<TermPath> {
    fn find_within(term: &Term, at: Span, path: &mut TermPath) -> bool {
        if let Term::Filter(node) = term {
            return node.span == at;
        }
        children(term).into_iter().enumerate().any(|(index, child)| {
            path.push(index);
            let found = find_within(child, at, path);
            if !found {
                path.pop();
            }
            found
        })
    }
    request.pipelines.iter().enumerate().find_map(|(index, term)| {
        let mut path = vec![index];
        find_within(term, at, &mut path).then_some(path)
    })
}

fn children(term: &Term) -> Vec<&Term> {
    match term {
        Term::Hole(_) | Term::Filter(_) => Vec::new(),
        Term::Not(not) => vec![&not.term],
        Term::Group(group) => group.branches.iter().map(|branch| &branch.term).collect(),
        Term::Pipeline(Pipeline { first, rest, .. }) => {
            std::iter::once(&**first).chain(rest.iter().map(|stage| &stage.term)).collect()
        }
    }
}

pub(super) fn term_at<'t>(request: &'t Request, path: &[usize]) -> Option<&'t Term> {
    let (root, inner) = path.split_first()?;
    let root = request.pipelines.get(*root)?;
    inner.iter().try_fold(root, |term, index| children(term).get(*index).copied())
}

pub(super) fn term_at_mut<'t>(request: &'t mut Request, path: &[usize]) -> Option<&'t mut Term> {
    let (root, inner) = path.split_first()?;
    let mut term = request.pipelines.get_mut(*root)?;
    for index in inner {
        term = match term {
            Term::Hole(_) | Term::Filter(_) => return None,
            Term::Not(not) => &mut not.term,
            Term::Group(group) => &mut group.branches.get_mut(*index)?.term,
            Term::Pipeline(pipeline) => match index.checked_sub(1) {
                None => &mut pipeline.first,
                Some(index) => &mut pipeline.rest.get_mut(index)?.term,
            },
        };
    }
    Some(term)
}

/// Returns the stages of a pipeline with their incoming arcs. For any other term, returns the term
/// as a single stage.
pub(super) fn into_stages(term: Term) -> Vec<(Pipe, Term)> {
    match term {
        Term::Pipeline(Pipeline { first, rest, .. }) => std::iter::once((plain_pipe(), *first))
            .chain(rest.into_iter().map(|stage| (stage.arc, stage.term)))
            .collect(),
        other => vec![(plain_pipe(), other)],
    }
}

/// Joins stages into a pipeline. Drops the incoming arc of the first stage. Returns a hole, the
/// term for a missing filter, if there are no stages.
pub(super) fn pipeline_from_stages(stages: Vec<(Pipe, Term)>) -> Term {
    let mut flat = Vec::new();
    for (arc, term) in stages {
        let mut inner = into_stages(term).into_iter();
        flat.extend(inner.next().map(|(_, term)| (arc, term)));
        flat.extend(inner);
    }
    let mut flat = flat.into_iter();
    let Some((_, first)) = flat.next() else { return Term::Hole(INSERTED_SPAN) };
    let rest: Vec<Stage> = flat.map(|(arc, term)| Stage { arc, term }).collect();
    match rest.is_empty() {
        true => first,
        false => Term::Pipeline(Pipeline { first: Box::new(first), rest, span: INSERTED_SPAN }),
    }
}

/// Returns true if the filter at `path` is in a group, such as `(a + b)`, after which another stage
/// follows.
pub(super) fn is_in_followed_group(request: &Request, path: &[usize]) -> bool {
    innermost_followed_depth(request, path).is_some()
}

/// Finds the innermost pipeline in which a stage follows the group that contains the filter at
/// `path`. Returns the depth of this pipeline, which is the length of its path. Returns `None` if
/// there is no such pipeline.
fn innermost_followed_depth(request: &Request, path: &[usize]) -> Option<usize> {
    (1..path.len().saturating_sub(1)).rev().find(|level| {
        let stages = match term_at(request, &path[..*level]) {
            Some(Term::Pipeline(pipeline)) => pipeline.rest.len() + 1,
            _ => return false,
        };
        path[*level] + 1 < stages
    })
}

/// Returns true if the filter is an operand of `++`, `+*` or `!`.
pub(super) fn is_operand(request: &Request, path: &[usize]) -> bool {
    (1..path.len()).any(|level| match term_at(request, &path[..level]) {
        Some(Term::Not(_)) => true,
        Some(Term::Group(group)) => group.operator != Operator::Parallel,
        _ => false,
    })
}

/// Rewrites the request, without changing its graph, so that the filter at span `at` is in no group
/// that a stage follows. Returns the new position of the filter. Fails if the filter is an operand,
/// or if a group cannot be divided ([`divide_group`]).
pub(super) fn isolate_filter(request: &mut Request, at: Span) -> Result<TermPath, InvalidEdit> {
    let mut marks = MarkGenerator::new(request);
    loop {
        let missing = || InvalidEdit("the filter has left the request".to_owned());
        let path = filter_path(request, at).ok_or_else(missing)?;
        if is_operand(request, &path) {
            let why = "is an operand of `++`, `+*` or `!`: write the whole new request";
            return Err(InvalidEdit(format!("`{}` {why}", name_at(request, &path))));
        }
        let Some(level) = innermost_followed_depth(request, &path) else { return Ok(path) };
        divide_group(request, (&path[..level], path[level], path[level + 1]), &mut marks)?;
    }
}

fn name_at(request: &Request, path: &[usize]) -> String {
    match term_at(request, path) {
        Some(Term::Filter(node)) => node.name.text.clone(),
        _ => String::new(),
    }
}

/// Takes one branch out of a group, and connects it to the stages after the group by an arc of its
/// own. The tuple locates the branch: the path of the pipeline, the index of the group among its
/// stages, and the index of the branch. Fails if the group follows a `split_rr`, or if the stage
/// after the group cannot have two incoming arcs.
fn divide_group(
    request: &mut Request,
    (pipeline, group, branch): (&[usize], usize, usize),
    marks: &mut MarkGenerator,
) -> Result<(), InvalidEdit> {
    let Some(whole) = term_at_mut(request, pipeline) else { return Ok(()) };
    let mut stages = into_stages(std::mem::replace(whole, Term::Hole(INSERTED_SPAN)));
    let mut after = stages.split_off(group + 1);
    let Some((arc, Term::Group(mut divided))) = stages.pop() else { return Ok(()) };
    if let Some((_, Term::Filter(before))) = stages.last()
        && before.name.text == SPLITTER
    {
        let why = "distributes blocks to its branches, which meet again: write the whole new \
                   request";
        return Err(InvalidEdit(format!("`{SPLITTER}` {why}")));
    }
    let Branch { label, term, span } = divided.branches.remove(branch);
    let chain = |term: Term, after: Vec<(Pipe, Term)>| {
        pipeline_from_stages(std::iter::once((plain_pipe(), term)).chain(after).collect())
    };
    let mut branches = Vec::new();
    if divided.branches.is_empty() {
        branches.push(Branch { label, term: chain(term, after), span });
    } else {
        let Some((joins, next)) = after.first_mut() else { return Ok(()) };
        let same = vec![(joins.clone(), marks.create_references(next)?)];
        let own = Branch { label, term: chain(term, same), span };
        let others = match divided.branches.len() {
            1 => divided.branches.remove(0),
            _ => Branch { label: None, term: Term::Group(divided), span: INSERTED_SPAN },
        };
        let others = Branch { term: chain(others.term, after), ..others };
        branches.extend(if branch == 0 { [own, others] } else { [others, own] });
    }
    let operator = Operator::Parallel;
    stages.push((arc, Term::Group(Group { operator, branches, span: INSERTED_SPAN })));
    *whole = pipeline_from_stages(stages);
    Ok(())
}

/// Cuts off the filter with this span and the stages after it. Returns the cut-off stages with the
/// label of the filter's former incoming arc.
pub(super) fn cut_subtree(request: &mut Request, at: Span) -> Result<Branch, InvalidEdit> {
    let path = isolate_filter(request, at)?;
    let Some((last, parent)) = path.split_last() else {
        return Err(InvalidEdit("the filter has left the request".to_owned()));
    };
    let stages = match term_at_mut(request, parent) {
        Some(whole @ Term::Pipeline(_)) if *last > 0 => {
            let mut stages = into_stages(std::mem::replace(whole, Term::Hole(INSERTED_SPAN)));
            let tail = stages.split_off(*last);
            *whole = pipeline_from_stages(stages);
            tail
        }
        Some(whole @ Term::Pipeline(_)) => {
            let stages = into_stages(whole.clone());
            let label = remove_term(request, parent);
            return Ok(Branch { label, term: pipeline_from_stages(stages), span: INSERTED_SPAN });
        }
        _ => {
            let term = term_at(request, &path).cloned().unwrap_or(Term::Hole(INSERTED_SPAN));
            let label = remove_term(request, &path);
            return Ok(Branch { label, term, span: INSERTED_SPAN });
        }
    };
    let label = stages.first().and_then(|(arc, _)| arc.label.clone());
    Ok(Branch { label, term: pipeline_from_stages(stages), span: INSERTED_SPAN })
}

/// Removes a term with the stages after it, and all groups that become empty as a result. Returns
/// the label of the term's incoming arc, or `None` for a plain pipe or the first term of a line.
fn remove_term(request: &mut Request, path: &[usize]) -> Option<Label> {
    let (last, parent) = path.split_last()?;
    if parent.is_empty() {
        request.pipelines.remove(*last);
        return None;
    }
    match term_at_mut(request, parent)? {
        Term::Group(group) => {
            let removed = group.branches.remove(*last);
            match group.branches.is_empty() {
                true => {
                    let above = remove_term(request, parent);
                    removed.label.or(above)
                }
                false => removed.label,
            }
        }
        whole @ Term::Pipeline(_) if *last > 0 => {
            let mut stages = into_stages(std::mem::replace(whole, Term::Hole(INSERTED_SPAN)));
            let removed = stages.split_off(*last);
            *whole = pipeline_from_stages(stages);
            removed.into_iter().next().and_then(|(arc, _)| arc.label)
        }
        _ => remove_term(request, parent),
    }
}

/// Returns the filters whose output arrives at the filter at this position. An entry is `None` if
/// the output is that of an expression with `++`, `+*` or `!`.
pub(super) fn parents<'t>(request: &'t Request, path: &[usize]) -> Vec<Option<&'t FilterTerm>> {
    let found = (1..path.len()).rev().find_map(|level| {
        let Some(Term::Pipeline(pipeline)) = term_at(request, &path[..level]) else { return None };
        let before = path[level].checked_sub(1)?;
        match before.checked_sub(1) {
            None => Some(&*pipeline.first),
            Some(index) => pipeline.rest.get(index).map(|stage| &stage.term),
        }
    });
    found.map_or_else(Vec::new, output_filters)
}

/// Returns the label of the arc into the filter at a position, including the leading `|`, or `None`
/// if the arc has no label. If several labels restrict the arc, returns the innermost one.
pub(super) fn incoming_label(request: &Request, path: &[usize]) -> Option<String> {
    let mut found = None;
    for level in (1..path.len()).rev() {
        match term_at(request, &path[..level]) {
            Some(Term::Pipeline(pipeline)) if path[level] > 0 => {
                let arc =
                    pipeline.rest.get(path[level] - 1).and_then(|stage| stage.arc.label.as_ref());
                return found.or_else(|| arc.map(Label::to_string));
            }
            Some(Term::Group(group)) => {
                let label = group.branches.get(path[level]).and_then(|b| b.label.as_ref());
                found = found.or_else(|| label.map(Label::to_string));
            }
            _ => {}
        }
    }
    found
}

/// Returns the filters whose output leaves a term. An entry is `None` for a missing filter, and for
/// an expression with `++`, `+*` or `!`.
fn output_filters(term: &Term) -> Vec<Option<&FilterTerm>> {
    match term {
        Term::Hole(_) | Term::Not(_) => vec![None],
        Term::Filter(node) => vec![Some(node)],
        Term::Pipeline(pipeline) => {
            pipeline.rest.last().map_or_else(Vec::new, |stage| output_filters(&stage.term))
        }
        Term::Group(group) if group.operator == Operator::Parallel => {
            group.branches.iter().flat_map(|branch| output_filters(&branch.term)).collect()
        }
        Term::Group(_) => vec![None],
    }
}

/// Removes the parentheses around each group of one branch. If the branch has a label, the label
/// moves to the pipe before the group; the parentheses stay if this pipe has a label too, or if
/// there is no pipe.
pub(super) fn remove_single_branches(term: &mut Term) {
    match term {
        Term::Hole(_) | Term::Filter(_) => {}
        Term::Not(not) => remove_single_branches(&mut not.term),
        Term::Group(group) => {
            group.branches.iter_mut().for_each(|branch| remove_single_branches(&mut branch.term));
            if let [Branch { label: None, term: only, .. }] = group.branches.as_mut_slice() {
                *term = std::mem::replace(only, Term::Hole(INSERTED_SPAN));
            }
        }
        Term::Pipeline(pipeline) => {
            remove_single_branches(&mut pipeline.first);
            for stage in &mut pipeline.rest {
                remove_single_branches(&mut stage.term);
                if let (None, Term::Group(group)) = (&stage.arc.label, &mut stage.term)
                    && let [Branch { label, term, .. }] = group.branches.as_mut_slice()
                {
                    stage.arc.label = label.take();
                    stage.term = std::mem::replace(term, Term::Hole(INSERTED_SPAN));
                }
            }
        }
    }
}
