//! The request of each worker process.

use super::{WORKERS_OPTION, worker_shard_key};
use crate::edit::{
    InvalidEdit, for_each_filter, join_with_pipe, parse_filter, parse_tree, replace_filter,
};
use crate::graph::Graph;
use crate::language::tree::{Pipeline, Term};
use filter::WorkerRule;
use filter::sharing::ShardKey;

/// Returns the request of the worker with this number, counted from 1, of `of` workers. This
/// request selects the blocks of the sessions assigned to that worker, and writes to separate
/// directories. Fails if the graph's text cannot be parsed.
pub fn worker_request(graph: &Graph, number: u32, of: u32) -> Result<String, InvalidEdit> {
    let mut request = parse_tree(&graph.text, "the request")?;
    request.options.retain(|option| option.key.text != WORKERS_OPTION);
    let by = match worker_shard_key(graph) {
        ShardKey::Addresses => "addresses",
        ShardKey::Flow | ShardKey::Session => "flow",
    };
    let share = parse_filter(&format!("shard {number} of={of} by={by}"))?;
    for head in graph.heads() {
        let at = graph.node(head).span;
        let mut behind = |term| Some(join_with_pipe(term, share.clone()));
        let pipelines = std::mem::take(&mut request.pipelines).into_iter();
        request.pipelines = pipelines
            .filter_map(|term| replace_filter(term, at, &mut behind))
            .map(inline_first_pipelines)
            .collect();
    }
    for (_, node) in graph.nodes_with_ids() {
        let Some(used) = node.filter() else { continue };
        let WorkerRule::Directory(name) = used.description.worker_rule(&used.arguments) else {
            continue;
        };
        let Some(folder) = used.arguments.text(name) else { continue };
        let own = format!("{}.engine{number}", folder.trim_end_matches('/'));
        let names_directory = |text: &[u8]| text == folder.as_bytes();
        for term in &mut request.pipelines {
            for_each_filter(term, &mut |written| {
                let arguments = written.arguments.iter_mut().filter(|_| written.span == node.span);
                let values = arguments.map(|argument| &mut argument.value);
                for value in values.filter(|value| names_directory(&value.bytes)) {
                    value.bytes.clone_from(&own.clone().into_bytes());
                }
            });
        }
    }
    Ok(request.to_string())
}

/// Inlines each pipeline that is the first stage of another.
fn inline_first_pipelines(term: Term) -> Term {
    match term {
        Term::Pipeline(Pipeline { first, rest, span }) => match *first {
            Term::Pipeline(mut inner) => {
                inner.rest.extend(rest);
                Term::Pipeline(Pipeline { span, ..inner })
            }
            first => Term::Pipeline(Pipeline { first: Box::new(first), rest, span }),
        },
        other => other,
    }
}
