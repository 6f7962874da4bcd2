//! The request of the process that runs a prefix.

use super::ends::{self, PrefixEnd};
use super::terms::{SHARE_SINK, SHARED_SOURCE, build_argument, build_pipeline, endpoint_term};
use crate::check::check;
use crate::language::tree::{Branch, FilterTerm, Group, Operator, Pipe, Pipeline, Stage, Term};
use crate::language::{Span, parse};
use crate::registry::Registry;

/// Returns a request that runs a prefix, so that other requests can join it after each filter at
/// which a prefix can end (see `ends`). `runs` returns true for a prefix that is already running.
/// The request then continues the longest such prefix.
#[must_use]
pub fn build_prefix_request(
    prefix: &str,
    registry: &dyn Registry,
    runs: impl Fn(&str) -> bool,
) -> String {
    let (request, mistakes) = parse(prefix);
    let [Term::Pipeline(whole)] = request.pipelines.as_slice() else {
        // The check of the request reports the mistake.
        return format!("{prefix} | {}", Term::Filter(share_sink_term(prefix, false)));
    };
    let (graph, _) = check(&request, registry);
    let found = if mistakes.is_empty() {
        ends::find_prefix_ends(whole, &graph, registry)
    } else {
        Ok(vec![])
    };
    let mut ends = found.unwrap_or_default();
    let last = whole.rest.len().saturating_sub(1);
    let outputs_messages = ends.iter().any(|end| end.stage == last && end.outputs_messages);
    ends.retain(|end| end.stage < last && !end.is_on_request);
    let base = ends.iter().rev().map(|end| (end.stage + 1, prefix_text(whole, end)));
    let base = base.into_iter().find(|(_, text)| runs(text));
    let (from, first) = match base {
        Some((from, text)) => (from, Term::Filter(endpoint_term(SHARED_SOURCE, &text))),
        None => (0, (*whole.first).clone()),
    };
    ends.retain(|end| end.stage >= from);
    let stages = remaining_stages(whole, from, &ends, share_sink_term(prefix, outputs_messages));
    build_pipeline(first, &stages).to_string()
}

/// Returns true if a running request offers this prefix to other requests.
#[must_use]
pub fn offers_prefix(request: &str, prefix: &str) -> bool {
    request.contains(&Term::Filter(endpoint_term(SHARE_SINK, prefix)).to_string())
}

/// Returns the stages from index `from` on. Adds, after each filter in `ends`, a branch with the
/// sink that offers the prefix up to that filter, and adds `last` after the last stage.
fn remaining_stages(
    whole: &Pipeline,
    from: usize,
    ends: &[PrefixEnd],
    last: FilterTerm,
) -> Vec<Stage> {
    let plain = |term: Term| Stage { arc: Pipe { label: None, span: Span::default() }, term };
    let Some((end, further)) = ends.split_first() else {
        let mut rest = whole.rest.get(from..).unwrap_or_default().to_vec();
        rest.push(plain(Term::Filter(last)));
        return rest;
    };
    let next = end.stage + 1;
    let mut stages = whole.rest.get(from..next).unwrap_or_default().to_vec();
    let mut further = remaining_stages(whole, next, further, last);
    let first = further.remove(0);
    let branch = |label, term| Branch { label, term, span: Span::default() };
    let offer = Term::Filter(share_sink_term(&prefix_text(whole, end), end.outputs_messages));
    let branches =
        vec![branch(None, offer), branch(first.arc.label, build_pipeline(first.term, &further))];
    let group = Group { operator: Operator::Parallel, branches, span: Span::default() };
    stages.push(plain(Term::Group(group)));
    stages
}

/// Returns the text of a prefix that ends at this filter.
fn prefix_text(whole: &Pipeline, end: &PrefixEnd) -> String {
    let stages = whole.rest.get(..=end.stage).unwrap_or_default();
    build_pipeline((*whole.first).clone(), stages).to_string()
}

/// Returns the sink that offers a prefix to other requests. `outputs_messages` is true if the
/// prefix outputs messages, false if it outputs streams.
fn share_sink_term(prefix: &str, outputs_messages: bool) -> FilterTerm {
    let mut sink = endpoint_term(SHARE_SINK, prefix);
    if outputs_messages {
        sink.arguments.push(build_argument(Some("messages"), "yes", false));
    }
    sink.arguments.push(build_argument(Some("last"), "yes", false));
    sink
}
