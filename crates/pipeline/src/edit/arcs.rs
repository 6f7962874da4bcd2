//! Edits of arcs: adding a filter beside others, removing a subtree or moving it to another parent,
//! and adding or removing one parent of a node. If a node loses its last output, the sink `discard`
//! is attached to the node, so that the path does not begin to print blocks that were consumed
//! before. The next subtree attached to the node replaces this sink. A use of a node is a filter
//! term that denotes the node; a node with a mark can have several uses.

use super::GraphAndDiagnostics;
use super::attach::{PLACEHOLDER_SINK, attach_branch, parse_label, placeholder};
use super::classes::{cut_class, move_class, remove_class};
use super::cut::{
    cut_subtree, filter_path, incoming_label, isolate_filter, parents, remove_single_branches,
};
use super::cut::{term_at, term_at_mut};
use super::find::find_filter;
use super::kinds::{Edit, EditResult, InvalidEdit, NodeOutput, Subtree};
use super::marks::{self, MarkGenerator, filter_term_spans};
use super::origins::{Origins, print_with_origins};
use super::remove::{node_at, reattach_tail, remove};
use super::tree::{INSERTED_SPAN, filters, parse_filter, parse_tree};
use crate::check::REPEATED_ARC_MESSAGE;
use crate::graph::{Edge, Graph, NodeId, reachable};
use crate::language::tree::{Branch, FilterTerm, Term};
use crate::language::{Request, Severity, Span};
use crate::read::read_request;
use crate::registry::Registry;
use filter::FilterKind;
use std::borrow::Cow;

/// Applies an edit of arcs to `request`, which was parsed from `text`. `read` is the graph of
/// `text`, if the caller has it. Also returns the graph and the diagnostics of the new text, or
/// `None` if the new text has not been read in its final version.
pub(super) fn apply_arc_edit(
    edit: &Edit,
    (text, read): (&str, Option<&Graph>),
    mut request: Request,
    registry: &dyn Registry,
) -> Result<(EditResult, Option<GraphAndDiagnostics>), InvalidEdit> {
    let (origins, old_marks) = (Origins::new(&request), marks::all_marks(&request));
    let before = &*read_graph((text, read), registry);
    match edit {
        Edit::Add { filter, below: None } => request.pipelines.push(parse_filter(filter)?),
        Edit::Add { filter, below: Some(below) } => {
            let branch = branch_for(below, parse_filter(filter)?)?;
            let at = find_filter(&request, &below.node)?;
            attach_branch(&mut request, at, branch)?;
        }
        Edit::RemoveBelow { node, all } => match NodeOutput::parse(node) {
            output @ NodeOutput { class: Some(_), .. } => {
                remove_class(&mut request, &output, *all, (before, &origins))?;
            }
            _ => {
                let at = find_filter(&request, node)?;
                if !all {
                    refuse_if_not_leaf(node, at, before)?;
                }
                remove(&mut request, at, (before, &origins))?;
            }
        },
        Edit::Reattach { node, from: None, below } if node.contains('/') => {
            let output = NodeOutput::parse(node);
            move_class(&mut request, (node, &output), below, before)?;
        }
        Edit::Reattach { node, from, below } => {
            reattach(&mut request, (node, from.as_ref(), below), before)?;
        }
        Edit::Join { node, below } => {
            let at = find_filter(&request, node)?;
            let parent = find_filter(&request, &below.node)?;
            let reference = new_reference(&mut request, at, node)?;
            let branch = branch_for(below, Term::Filter(reference))?;
            attach_branch(&mut request, parent, branch)?;
        }
        Edit::Sever { node, from } => sever_arcs(&mut request, node, from)?,
        _ => return Err(InvalidEdit("it is not an edit of arcs".to_owned())),
    }
    if request.pipelines.is_empty() {
        return Err(InvalidEdit("nothing of the request would be left".to_owned()));
    }
    request.pipelines.iter_mut().for_each(remove_single_branches);
    let filters = origins.find_origins(&request);
    marks::remove_needless_marks(&mut request, &old_marks);
    let edited = print_with_origins(&request, &filters)?;
    let (after, mistakes) = read_request(&edited.text, registry);
    if mistakes.iter().any(|mistake| mistake.severity == Severity::Error) {
        // The caller reports these mistakes with their positions.
        return Ok((edited, Some((after, mistakes))));
    }
    if !matches!(edit, Edit::RemoveBelow { .. }) {
        refuse_disconnection(&edited, &origins, text)?;
    }
    if let Edit::Join { node, below } | Edit::Reattach { node, below, .. } = edit
        && (has_equal_arcs(&after)
            || mistakes.iter().any(|known| known.what == REPEATED_ARC_MESSAGE))
    {
        return Err(InvalidEdit(format!("`{node}` is below `{below}` already")));
    }
    Ok(match add_missing_sinks(&edited, (before, &after))? {
        Some(ended) => (ended, None),
        None => (edited, Some((after, mistakes))),
    })
}

/// Returns the graph of `text`. This is `read` if the caller has the graph; otherwise parses and
/// checks the text.
fn read_graph<'r>(
    (text, read): (&str, Option<&'r Graph>),
    registry: &dyn Registry,
) -> Cow<'r, Graph> {
    read.map_or_else(|| Cow::Owned(read_request(text, registry).0), Cow::Borrowed)
}

/// Refuses an edit after which a node would receive no input, because the edit would disconnect it
/// from all sources.
fn refuse_disconnection(edited: &EditResult, old: &Origins, text: &str) -> Result<(), InvalidEdit> {
    let kept = |span: &Span| edited.filters.iter().any(|(_, old)| *old == Some(*span));
    let lost = old.first_uses().find(|(name, span)| *name != PLACEHOLDER_SINK && !kept(span));
    match lost {
        None => Ok(()),
        Some((_, span)) => {
            let node = text.get(span.start..span.end).unwrap_or_default();
            Err(InvalidEdit(format!("no other source would lead to `{node}`")))
        }
    }
}

/// Returns true if at least two arcs of the graph connect the same nodes and pass the same classes.
fn has_equal_arcs(graph: &Graph) -> bool {
    graph.edges.iter().enumerate().any(|(index, edge)| {
        let same = |other: &&Edge| {
            (other.from, other.to, &other.classes) == (edge.from, edge.to, &edge.classes)
        };
        graph.edges[..index].iter().any(|other| same(&other))
    })
}

/// Wraps a term in a branch that can be attached to `output`. The branch has a label for the
/// classes of the output.
fn branch_for(output: &NodeOutput, term: Term) -> Result<Branch, InvalidEdit> {
    let label = output.class.as_deref().map(parse_label).transpose()?;
    Ok(Branch { label, term, span: INSERTED_SPAN })
}

/// Returns a new filter term that denotes the existing node at span `at` by its mark. Adds a mark
/// to the node first if it has none.
fn new_reference(request: &mut Request, at: Span, node: &str) -> Result<FilterTerm, InvalidEdit> {
    let mut fresh = MarkGenerator::new(request);
    let path = filter_path(request, at);
    match path.and_then(|path| term_at_mut(request, &path)) {
        Some(Term::Filter(found)) => Ok(fresh.create_reference(found)),
        _ => Err(InvalidEdit(format!("the request has no `{node}`"))),
    }
}

/// Returns the spans of a node's filter terms that have an incoming arc. `at` is the node's span.
fn filter_terms_with_parent(request: &Request, at: Span) -> Vec<Span> {
    let leads = |span: &Span| filter_path(request, *span).is_some_and(|p| has_parent(request, &p));
    filter_term_spans(request, at).into_iter().filter(leads).collect()
}

fn has_parent(request: &Request, path: &[usize]) -> bool {
    (1..path.len()).any(|level| {
        matches!(term_at(request, &path[..level]), Some(Term::Pipeline(_))) && path[level] > 0
    })
}

/// Fails if the given node has a node below it, so that it is no leaf. Ignores placeholder sinks.
fn refuse_if_not_leaf(node: &str, at: Span, graph: &Graph) -> Result<(), InvalidEdit> {
    let Some(id) = node_at(graph, at) else { return Ok(()) };
    let content = graph.outputs(id).map(|edge| graph.node(edge.to));
    match content.map(|node| node.name()).find(|name| *name != PLACEHOLDER_SINK) {
        None => Ok(()),
        Some(below) => Err(InvalidEdit(format!(
            "`{node}` is not empty: `{below}` is below it (`remove {node} all` removes both)"
        ))),
    }
}

/// Moves a node and everything below it from one parent to another. The old parent is `from` or, by
/// default, the node's first parent. The new parent is the node of the output `below`. Fails if the
/// node is a source, if it is not below `from`, or if a cycle would result.
fn reattach(
    request: &mut Request,
    (node, from, below): (&str, Option<&NodeOutput>, &NodeOutput),
    graph: &Graph,
) -> Result<(), InvalidEdit> {
    let at = find_filter(request, node)?;
    let parent = find_filter(request, &below.node)?;
    let label = below.class.as_deref().map(parse_label).transpose()?;
    let Some(first) = filter_terms_with_parent(request, at).first().copied() else {
        return Err(InvalidEdit(format!("`{node}` is a source: it is below nothing")));
    };
    refuse_cycle((node, at), (&below.node, parent), graph)?;
    let arc = match from {
        None => isolate_first_parent(request, (node, at), first)?,
        Some(from) => {
            let missing = || InvalidEdit(format!("`{node}` is not below `{from}`"));
            isolate_arc(request, at, from)?.ok_or_else(missing)?
        }
    };
    let subtree = cut_subtree(request, arc)?;
    attach_branch(request, parent, Branch { label, ..subtree })
}

/// Rewrites the request so that one of a node's filter terms has the node's first parent as its
/// only parent. `first` is the span of the node's first filter term that has a parent. Returns the
/// span of the term with the only parent. Fails if there are several parents, and the first is an
/// expression with `++`, `+*` or `!`.
fn isolate_first_parent(
    request: &mut Request,
    (node, at): (&str, Span),
    first: Span,
) -> Result<Span, InvalidEdit> {
    let from = parents(request, &filter_path(request, first).unwrap_or_default());
    let from: Vec<Option<Span>> = from.iter().map(|from| from.map(|from| from.span)).collect();
    match from.as_slice() {
        [] | [_] => Ok(first),
        [Some(parent), ..] => {
            let parent = *parent;
            isolate_filter(request, parent)?;
            Ok(find_term_after_parent(request, at, (parent, None)).unwrap_or(first))
        }
        [None, ..] => {
            let why = "is below an expression and below others: write the whole new request";
            Err(InvalidEdit(format!("`{node}` {why}")))
        }
    }
}

/// Rewrites the request so that one filter term of the node at span `at` has a single parent,
/// `from`. Returns the span of that term, or `None` if there is no arc from `from`.
fn isolate_arc(
    request: &mut Request,
    at: Span,
    from: &NodeOutput,
) -> Result<Option<Span>, InvalidEdit> {
    let parent = find_filter(request, &from.node)?;
    let label = from.class.as_deref().map(parse_label).transpose()?.map(|label| label.to_string());
    for parent_at in filter_term_spans(request, parent) {
        if find_term_after_parent(request, at, (parent_at, label.as_deref())).is_some() {
            isolate_filter(request, parent_at)?;
            return Ok(find_term_after_parent(request, at, (parent_at, label.as_deref())));
        }
    }
    Ok(None)
}

/// Fails if the new parent is the node itself or a node below it.
pub(super) fn refuse_cycle(
    (node, at): (&str, Span),
    (parent, parent_at): (&str, Span),
    graph: &Graph,
) -> Result<(), InvalidEdit> {
    let (Some(id), Some(to)) = (node_at(graph, at), node_at(graph, parent_at)) else {
        return Ok(());
    };
    let next = |id: NodeId| graph.outputs(id).filter(|e| !e.back).map(|e| e.to).collect::<Vec<_>>();
    match reachable(&[id], next).contains(&to) {
        false => Ok(()),
        true if id == to => Err(InvalidEdit(format!("`{node}` cannot be below itself"))),
        true => Err(InvalidEdit(format!("`{parent}` is below `{node}`: it would lead to itself"))),
    }
}

/// Returns the span of the filter term of a node that directly follows a given parent. `at` is the
/// span of the node, and `parent_at` the span of the parent's term. If a label is given, the arc
/// between the two must have this label. Returns `None` if there is no such term.
pub(super) fn find_term_after_parent(
    request: &Request,
    at: Span,
    (parent_at, label): (Span, Option<&str>),
) -> Option<Span> {
    filter_term_spans(request, at).into_iter().find(|span| {
        let path = filter_path(request, *span).unwrap_or_default();
        parents(request, &path).iter().flatten().any(|parent| parent.span == parent_at)
            && label.is_none_or(|label| incoming_label(request, &path).as_deref() == Some(label))
    })
}

/// Disconnects a node from one of its parents, over the arcs with a given label or over all arcs.
/// Fails if there is no such arc, or if the node would have no parent left.
fn sever_arcs(request: &mut Request, node: &str, from: &NodeOutput) -> Result<(), InvalidEdit> {
    let mut at = find_filter(request, node)?;
    let mut severed = false;
    while let Some(arc) = isolate_arc(request, at, from)? {
        let others = filter_term_spans(request, at).into_iter().find(|other| *other != arc);
        // Without another parent, the node would have no input.
        if filter_terms_with_parent(request, at).len() < 2 {
            let why = "remove it, or move it below another node";
            return Err(InvalidEdit(format!("`{from}` is the only parent of `{node}`: {why}")));
        }
        let tail = cut_subtree(request, arc)?;
        reattach_tail(request, tail.term);
        severed = true;
        at = others.unwrap_or(at);
    }
    match severed {
        true => Ok(()),
        false => Err(InvalidEdit(format!("`{node}` is not below `{from}`"))),
    }
}

/// Adds the sink `discard` after filters whose last output the edit has removed, and after new
/// filters that nothing follows. Otherwise the path would begin to print their output. A new filter
/// gets no sink if the output of its predecessor was printed, because its own output is printed
/// instead. Returns `None` if no filter needs a sink.
fn add_missing_sinks(
    edited: &EditResult,
    (before, after): (&Graph, &Graph),
) -> Result<Option<EditResult>, InvalidEdit> {
    let origin = |span: Span| {
        let found = edited.filters.iter().find(|(new, _)| new.start == span.start);
        found.map(|(new, old)| (*new, *old))
    };
    let old_node = |id: NodeId| origin(after.node(id).span)?.1.and_then(|old| node_at(before, old));
    let has_output = |old: NodeId| before.outputs(old).next().is_some();
    let mut open = Vec::new();
    for id in after.ends() {
        let node = after.node(id);
        let Some(used) = node.filter() else { continue };
        let source = node.kind() == Some(FilterKind::Source);
        let sink = node.kind() == Some(FilterKind::Sink);
        if sink || used.description.ends_with_report() || node.has_own_process() && !source {
            continue;
        }
        let Some((here, _)) = origin(node.span) else { continue };
        let is_open = match old_node(id) {
            Some(old) => has_output(old),
            None => old_parents(after, id, old_node).into_iter().all(has_output),
        };
        if is_open {
            open.push(here);
        }
    }
    if open.is_empty() {
        return Ok(None);
    }
    let mut request = parse_tree(&edited.text, "the new request")?;
    let known = &edited.filters;
    for at in open {
        attach_branch(
            &mut request,
            at,
            Branch { label: None, term: placeholder(), span: INSERTED_SPAN },
        )?;
    }
    let origins: Vec<Option<Span>> = filters(&request)
        .map(|node| known.iter().find(|(new, _)| *new == node.span).and_then(|(_, old)| *old))
        .collect();
    print_with_origins(&request, &origins).map(Some)
}

/// Returns the old nodes from which a new node receives blocks, directly or through other new
/// nodes. A node is old if the graph before the edit contains it.
fn old_parents(
    after: &Graph,
    new: NodeId,
    old_node: impl Fn(NodeId) -> Option<NodeId>,
) -> Vec<NodeId> {
    let (mut waiting, mut visited, mut parents) = (vec![new], vec![new], Vec::new());
    while let Some(id) = waiting.pop() {
        for edge in after.inputs(id) {
            if visited.contains(&edge.from) {
                continue;
            }
            visited.push(edge.from);
            match old_node(edge.from) {
                Some(old) => parents.push(old),
                None => waiting.push(edge.from),
            }
        }
    }
    parents
}

/// Returns the subtree of a node, or of one class of a node, as text for another path.
///
/// # Errors
///
/// Fails if the text has syntax errors, if the node does not exist or is a source, if nothing is
/// below the given class, or if a node in the subtree has a mark, because such a node may have
/// another parent.
pub fn extract_subtree(text: &str, node: &str) -> Result<Subtree, InvalidEdit> {
    let mut request = parse_tree(text, "the running request")?;
    let output = NodeOutput::parse(node);
    let term = match output.class {
        Some(_) => cut_class(&mut request, &output)?,
        None => {
            let at = find_filter(&request, node)?;
            if filter_terms_with_parent(&request, at).is_empty() {
                return Err(InvalidEdit(format!("`{node}` is a source: it is below nothing")));
            }
            cut_subtree(&mut request, at)?.term
        }
    };
    let whole = Request { pipelines: vec![term], ..Request::default() };
    if let Some(marked) = filters(&whole).find(|node| node.mark.is_some()) {
        let name = &marked.name.text;
        let why = "it may have another parent in its path";
        return Err(InvalidEdit(format!("`{name}` has a mark: {why}")));
    }
    let old = |span: Span| (span != INSERTED_SPAN).then_some(span);
    let spans = filters(&whole).map(|node| old(node.span)).collect();
    Ok(Subtree { text: parse_tree(&whole.to_string(), "the subtree")?.to_string(), filters: spans })
}
