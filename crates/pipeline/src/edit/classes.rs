//! Edits of everything below one class of a node, as if the class were a directory between the node
//! and its readers.

use super::arcs::{find_term_after_parent, refuse_cycle};
use super::attach::{PLACEHOLDER_SINK, attach_branch, parse_label};
use super::cut::{cut_subtree, pipeline_from_stages};
use super::find::find_filter;
use super::kinds::{InvalidEdit, NodeOutput};
use super::marks::filter_term_spans;
use super::origins::Origins;
use super::remove::remove;
use super::tree::{INSERTED_SPAN, filters, plain_pipe};
use crate::graph::Graph;
use crate::language::tree::{Branch, FilterTerm, Group, Label, Name, Operator, Pipe, Term};
use crate::language::{Request, Span};

/// Parses the class of an output as a label. Fails if the output has no class or an invalid one.
fn output_label(output: &NodeOutput) -> Result<Label, InvalidEdit> {
    parse_label(output.class.as_deref().unwrap_or_default())
}

/// Returns the spans of the filters directly downstream of an output, over arcs that have the
/// output's label.
fn find_output_readers(request: &Request, output: &NodeOutput) -> Result<Vec<Span>, InvalidEdit> {
    let label = output_label(output)?.to_string();
    let parents = filter_term_spans(request, find_filter(request, &output.node)?);
    let reads = |span: &Span| {
        let below = |parent: &Span| find_term_after_parent(request, *span, (*parent, Some(&label)));
        parents.iter().any(|parent| below(parent) == Some(*span))
    };
    Ok(filters(request).map(|node| node.span).filter(reads).collect())
}

fn name_at(request: &Request, at: Span) -> String {
    let found = filters(request).find(|node| node.span == at);
    found.map_or_else(String::new, |node| node.name.text.clone())
}

/// Cuts off everything below a class of a node. Returns the cut-off nodes as one term. The term
/// begins with a copy of the node's filter, followed by an arc with the class, so that it can be
/// attached to another node. Fails if nothing is below the class.
pub(super) fn cut_class(request: &mut Request, output: &NodeOutput) -> Result<Term, InvalidEdit> {
    let label = output_label(output)?;
    let at = find_filter(request, &output.node)?;
    let node = filters(request).find(|node| node.span == at).cloned();
    let Some(FilterTerm { name, arguments, .. }) = node else {
        return Err(InvalidEdit(format!("the request has no `{}`", output.node)));
    };
    let mut branches = Vec::new();
    while let Some(reader) = find_output_readers(request, output)?.first().copied() {
        let Branch { term, .. } = cut_subtree(request, reader)?;
        branches.push(Branch { label: None, term, span: INSERTED_SPAN });
    }
    if branches.is_empty() {
        let add = format!("`add '{} |{}' below NODE`", output.node, label_text(output));
        return Err(InvalidEdit(format!("nothing is below `{output}`: {add} reads it elsewhere")));
    }
    let name = Name { span: INSERTED_SPAN, ..name };
    let copy = FilterTerm { name, arguments, mark: None, pin: None, span: INSERTED_SPAN };
    let below = match branches.len() {
        1 => branches.remove(0).term,
        _ => Term::Group(Group { operator: Operator::Parallel, branches, span: INSERTED_SPAN }),
    };
    let arc = Pipe { label: Some(label), span: INSERTED_SPAN };
    Ok(pipeline_from_stages(vec![(plain_pipe(), Term::Filter(copy)), (arc, below)]))
}

fn label_text(output: &NodeOutput) -> &str {
    output.class.as_deref().unwrap_or_default()
}

/// Moves everything below a class of a node to another node. The moved nodes are attached to a new
/// copy of the filter that assigned the class. The copy classifies the blocks at the new place.
pub(super) fn move_class(
    request: &mut Request,
    (node, output): (&str, &NodeOutput),
    below: &NodeOutput,
    graph: &Graph,
) -> Result<(), InvalidEdit> {
    let parent = find_filter(request, &below.node)?;
    let label = below.class.as_deref().map(parse_label).transpose()?;
    for reader in find_output_readers(request, output)? {
        let name = name_at(request, reader);
        refuse_cycle((&name, reader), (&below.node, parent), graph)?;
    }
    if find_filter(request, &output.node)? == parent && below.class == output.class {
        return Err(InvalidEdit(format!("`{node}` is there already")));
    }
    let term = cut_class(request, output)?;
    attach_branch(request, parent, Branch { label, term, span: INSERTED_SPAN })
}

/// Removes everything below a class of a node, except nodes to which other arcs lead. Fails if only
/// a placeholder or nothing is below the class. Also fails if `all` is false and other nodes are
/// below the class.
pub(super) fn remove_class(
    request: &mut Request,
    output: &NodeOutput,
    all: bool,
    (graph, origins): (&Graph, &Origins),
) -> Result<(), InvalidEdit> {
    let below = find_output_readers(request, output)?;
    match below.iter().map(|at| name_at(request, *at)).find(|name| *name != PLACEHOLDER_SINK) {
        None => return Err(InvalidEdit(format!("nothing is below `{output}`"))),
        Some(name) if !all => {
            return Err(InvalidEdit(format!(
                "`{output}` is not empty: `{name}` is below it (`remove {output} all` removes it)"
            )));
        }
        Some(_) => {}
    }
    below.into_iter().try_for_each(|at| remove(request, at, (graph, origins)))
}
