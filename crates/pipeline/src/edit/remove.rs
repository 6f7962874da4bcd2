//! Removal of a node and everything below it. Nodes that have another parent, and everything below
//! them, stay. A node that is written several times in the request, with the same mark
//! (`--name=X`), is removed in all these places.

use super::cut::{
    cut_subtree, filter_path, into_stages, is_in_followed_group, isolate_filter,
    pipeline_from_stages,
};
use super::cut::{term_at, term_at_mut};
use super::kinds::InvalidEdit;
use super::marks::{filter_term_spans, has_mark};
use super::origins::Origins;
use super::tree::{INSERTED_SPAN, filters, for_each_filter, plain_pipe};
use crate::graph::{Graph, NodeId, reachable};
use crate::language::tree::{Branch, FilterTerm, Group, Term};
use crate::language::{Request, Span};

/// Removes a node, and all nodes below it that have no other parent.
pub(super) fn remove(
    request: &mut Request,
    at: Span,
    (graph, origins): (&Graph, &Origins),
) -> Result<(), InvalidEdit> {
    let all = filter_term_spans(request, at);
    for at in &all {
        isolate_filter(request, *at)?;
    }
    let survivors = surviving_marks(request, at, (graph, origins));
    let mut gone = Vec::new();
    loop {
        while let Some(at) = all.iter().copied().find(|at| filter_path(request, *at).is_some()) {
            gone.push(cut_subtree(request, at)?.term);
        }
        // A pipeline that continues after a removed node has lost its input.
        while let Some(at) =
            request.pipelines.iter().find_map(|term| first_unreached_head(&survivors, term))
        {
            gone.push(cut_subtree(request, at)?.term);
        }
        // A shared term that is put back may lead to the removed node again, so the loop repeats.
        let Some(removed) = gone.pop() else { return Ok(()) };
        if let Some(shared) = surviving_term(&survivors, removed) {
            reattach_tail(request, shared);
        }
    }
}

/// Returns the marks of the nodes that sources still reach after the node at span `at` has been
/// removed.
fn surviving_marks(
    request: &Request,
    at: Span,
    (graph, origins): (&Graph, &Origins),
) -> Vec<String> {
    let Some(id) = node_at(graph, at) else { return Vec::new() };
    let heads: Vec<NodeId> = graph.heads().into_iter().filter(|head| *head != id).collect();
    let next = |from: NodeId| {
        graph.outputs(from).map(|edge| edge.to).filter(|to| *to != id).collect::<Vec<_>>()
    };
    let live: Vec<Span> =
        reachable(&heads, next).into_iter().map(|id| graph.node(id).span).collect();
    let with_origins = filters(request).zip(origins.find_origins(request));
    let survives = |origin: Option<Span>| origin.is_some_and(|origin| live.contains(&origin));
    let kept = with_origins.filter(|(_, origin)| survives(*origin));
    kept.filter_map(|(node, _)| node.mark.as_ref().map(|mark| mark.text.clone())).collect()
}

/// Returns the span of a filter that no source reaches after a removal: the first one at the
/// beginning of a term or of a branch in it. Such a filter has a mark that is not in `survivors`.
/// Returns `None` if there is none; filters without a mark are ignored.
fn first_unreached_head(survivors: &[String], term: &Term) -> Option<Span> {
    match term {
        Term::Hole(_) | Term::Not(_) => None,
        Term::Filter(node) => {
            let dead = !survivors.contains(&node.mark.as_ref()?.text);
            dead.then_some(node.span)
        }
        Term::Group(group) => {
            group.branches.iter().find_map(|b| first_unreached_head(survivors, &b.term))
        }
        Term::Pipeline(pipeline) => first_unreached_head(survivors, &pipeline.first),
    }
}

/// Returns the part of a removed term that must stay in the request: the nodes that have another
/// parent, with everything after them. `survivors` contains the marks of these nodes. Returns
/// `None` if there are none.
fn surviving_term(survivors: &[String], term: Term) -> Option<Term> {
    match term {
        Term::Hole(_) | Term::Not(_) => None,
        Term::Filter(node) => {
            let shared = survivors.contains(&node.mark.as_ref()?.text);
            shared.then_some(Term::Filter(node))
        }
        Term::Group(group) => {
            let shared = |branch: Branch| {
                let term = surviving_term(survivors, branch.term)?;
                Some(Branch { label: None, term, span: INSERTED_SPAN })
            };
            let mut branches: Vec<Branch> = group.branches.into_iter().filter_map(shared).collect();
            if branches.len() == 1 {
                return branches.pop().map(|branch| branch.term);
            }
            (!branches.is_empty()).then_some(Term::Group(Group { branches, ..group }))
        }
        Term::Pipeline(_) => {
            let mut stages = into_stages(term).into_iter();
            let first =
                stages.find_map(|(arc, term)| Some((arc, surviving_term(survivors, term)?)))?;
            Some(pipeline_from_stages(std::iter::once(first).chain(stages).collect()))
        }
    }
}

/// Attaches `tail`, a node with the stages after it, to another filter term of the same node. If
/// that term has no arguments, it gets the node's arguments and, unless it is pinned, the node's
/// pin. Adds `tail` as a new pipeline in three cases: there is no other term, stages already follow
/// the other term, or `tail` begins with several nodes that common stages follow.
pub(super) fn reattach_tail(request: &mut Request, tail: Term) {
    let mut stages = into_stages(tail);
    let rest = stages.split_off(1);
    if rest.is_empty() && matches!(stages.first(), Some((_, Term::Group(_)))) {
        if let Some((_, Term::Group(group))) = stages.pop() {
            group.branches.into_iter().for_each(|branch| reattach_tail(request, branch.term));
        }
        return;
    }
    let node = match stages.first() {
        Some((_, Term::Filter(node))) => Some(node.clone()),
        _ => None,
    };
    let mark = node.as_ref().and_then(|node| node.mark.clone());
    let other = mark.and_then(|mark| {
        filters(request).find(|other| has_mark(other, &mark.text)).map(|node| node.span)
    });
    let (Some(node), Some(at)) = (node, other) else {
        stages.extend(rest);
        request.pipelines.push(pipeline_from_stages(stages));
        return;
    };
    for term in &mut request.pipelines {
        for_each_filter(term, &mut |other| {
            if other.span == at && other.arguments.is_empty() {
                other.arguments.clone_from(&node.arguments);
                other.pin = other.pin.take().or_else(|| node.pin.clone());
            }
        });
    }
    if rest.is_empty() {
        return;
    }
    let path = filter_path(request, at).unwrap_or_default();
    let last = path.split_last().is_none_or(|(last, parent)| match term_at(request, parent) {
        Some(Term::Pipeline(pipeline)) => *last == pipeline.rest.len(),
        _ => true,
    });
    let ends_there = last && !is_in_followed_group(request, &path);
    match term_at_mut(request, &path) {
        Some(term) if ends_there => {
            let here = std::mem::replace(term, Term::Hole(INSERTED_SPAN));
            *term =
                pipeline_from_stages(std::iter::once((plain_pipe(), here)).chain(rest).collect());
        }
        _ => {
            let head = FilterTerm { arguments: Vec::new(), pin: None, ..node };
            let head = std::iter::once((plain_pipe(), Term::Filter(head)));
            request.pipelines.push(pipeline_from_stages(head.chain(rest).collect()));
        }
    }
}

/// Returns the node whose first filter term has this span in the graph's text, or `None` if there
/// is none.
pub(super) fn node_at(graph: &Graph, at: Span) -> Option<NodeId> {
    let found = graph.nodes_with_ids().find(|(_, node)| node.span == at);
    found.map(|(id, _)| id)
}
