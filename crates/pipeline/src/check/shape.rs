//! Checks of the graph's shape: cycles, names, sources only at heads, and sinks only at ends. Once
//! the arguments are known, operands with side effects are rejected.

use filter::{Description, FilterKind};

use super::literature_names;
use super::lower::{Draft, DraftStep};
use crate::graph::{FilterUse, NodeId};
use crate::language::label::truncate_word;
use crate::language::limits::PROGRAMS_MAX;
use crate::language::tree::FilterTerm;
use crate::language::{Diagnostic, Span, find_nearest_word};
use crate::prefix::{shared_source, terms};
use crate::registry::Registry;

pub(super) fn check_shape(draft: &mut Draft<'_>, registry: &dyn Registry) {
    mark_back_edges(draft);
    let heads = find_heads(draft);
    let mut ends = vec![true; draft.nodes.len()];
    draft.edges.iter().for_each(|edge| ends[edge.from.0] = false);
    for (index, head) in heads.iter().enumerate() {
        let id = NodeId(index);
        look_up_name(draft, id, (*head, ends[index]), registry);
        match draft.nodes[index].inside {
            Some(_) => {}
            None if *head => check_head(draft, id, registry),
            None => check_inner_source(draft, id),
        }
    }
    check_sink_outputs(draft);
    check_programs(draft, registry);
}

/// Marks the edges that close cycles, in a depth-first search that starts at the heads in text
/// order.
fn mark_back_edges(draft: &mut Draft<'_>) {
    #[derive(Clone, Copy, PartialEq)]
    enum Visit {
        Never,
        Above,
        Done,
    }
    let mut successors: Vec<Vec<usize>> = vec![Vec::new(); draft.nodes.len()];
    let mut entered = vec![false; draft.nodes.len()];
    for (index, edge) in draft.edges.iter().enumerate() {
        successors[edge.from.0].push(index);
        entered[edge.to.0] = true;
    }
    let mut visits = vec![Visit::Never; draft.nodes.len()];
    let heads = (0..draft.nodes.len()).filter(|node| !entered[*node]);
    let starts: Vec<usize> = heads.chain(0..draft.nodes.len()).collect();
    for start in starts {
        if visits[start] != Visit::Never {
            continue;
        }
        visits[start] = Visit::Above;
        let mut path = vec![(start, 0)];
        while let Some((node, next)) = path.last_mut() {
            let Some(edge) = successors[*node].get(*next) else {
                visits[*node] = Visit::Done;
                path.pop();
                continue;
            };
            *next += 1;
            let to = draft.edges[*edge].to.0;
            match visits[to] {
                Visit::Above => draft.edges[*edge].back = true,
                Visit::Done => {}
                Visit::Never => {
                    visits[to] = Visit::Above;
                    path.push((to, 0));
                }
            }
        }
    }
}

/// Returns, for each node, true if all its incoming edges are back edges.
fn find_heads(draft: &Draft<'_>) -> Vec<bool> {
    let mut heads = vec![true; draft.nodes.len()];
    for edge in draft.edges.iter().filter(|edge| !edge.back) {
        heads[edge.to.0] = false;
    }
    heads
}

/// Looks up the name of a node. At a head (`head`), a source takes precedence. If the node is not
/// the last in its line (`end` is false), a filter that accepts its arguments takes precedence over
/// a sink of the same name.
fn look_up_name(
    draft: &mut Draft<'_>,
    id: NodeId,
    (head, end): (bool, bool),
    registry: &dyn Registry,
) {
    let node = &draft.nodes[id.0];
    let DraftStep::Filter(uses) = &node.step else { return };
    let Some(first) = uses.first() else { return };
    let (name, place) = (&first.name.text, first.name.span);
    let source = || registry.find_source(name);
    let accepts_all = |filter: &&Description| {
        let mut given = uses.iter().flat_map(|node| &node.arguments);
        given.all(|argument| {
            argument.key.as_ref().is_some_and(|key| filter.parameter(&key.text).is_some())
        })
    };
    let inner = || registry.find_filter(name).filter(|_| !end).filter(accepts_all);
    let found = || inner().or_else(|| registry.find(name));
    let entry = match head && node.inside.is_none() {
        true => source().or_else(found),
        false => found().or_else(source),
    };
    if entry.is_none() {
        draft.mistakes.push(unknown_filter_error(name, place, registry));
    }
    let entry = entry.map(|entry| match entry.name == terms::SHARED_SOURCE {
        true => shared_source::describe_shared_source(entry, first, registry),
        false => entry,
    });
    draft.nodes[id.0].entry = entry;
}

fn unknown_filter_error(name: &str, place: Span, registry: &dyn Registry) -> Diagnostic {
    let names = registry.names();
    let all = format!("`streamline filters` lists all {}", names.len());
    let hint =
        match (literature_names::literature_hint(name, registry), find_nearest_word(name, names)) {
            (Some(hint), _) => hint.to_owned(),
            (None, Some(meant)) => format!("did you mean `{meant}`?  ({all})"),
            (None, None) => all,
        };
    Diagnostic::error(place, format!("no filter is called `{}`", truncate_word(name))).hint(hint)
}

/// Reports the node `id`, which begins a line, if it is a section or a filter other than a source.
fn check_head(draft: &mut Draft<'_>, id: NodeId, registry: &dyn Registry) {
    let node = &draft.nodes[id.0];
    let (what, place) = match (&node.step, node.entry) {
        (DraftStep::Section(_, operator), _) => (format!("`{operator}`"), node.span),
        (DraftStep::Filter(uses), Some(entry)) if entry.kind != FilterKind::Source => {
            (format!("`{}`", entry.name), name_span(uses, node.span))
        }
        _ => return,
    };
    let sources: Vec<&str> =
        registry.names().into_iter().filter(|name| registry.find_source(name).is_some()).collect();
    let hint = match sources.first() {
        Some(first) => format!("begin with a source, for instance `{first} … |`"),
        None => String::new(),
    };
    draft.mistakes.push(
        Diagnostic::error(place, format!("no stream can enter {what}"))
            .why("a pipeline begins with a source")
            .hint(hint),
    );
}

/// Reports the node `id`, which has an incoming arc, if it is a source.
fn check_inner_source(draft: &mut Draft<'_>, id: NodeId) {
    let node = &draft.nodes[id.0];
    if let (DraftStep::Filter(uses), Some(entry)) = (&node.step, node.entry)
        && entry.kind == FilterKind::Source
    {
        let place = name_span(uses, node.span);
        draft.mistakes.push(
            Diagnostic::error(place, format!("`{}` takes no stream", entry.name))
                .why("a source begins a pipeline")
                .hint(format!("for a second stream write `… + {} | …`", entry.name)),
        );
    }
}

/// Reports operands of `++`, `+*` and `!` that have side effects. Some filters have side effects
/// only with certain arguments.
pub(super) fn check_operands(draft: &mut Draft<'_>, used: &[Option<FilterUse>]) {
    for (index, used) in used.iter().enumerate() {
        if let (Some(owner), Some(used)) = (draft.nodes[index].inside, used) {
            check_operand(draft, NodeId(index), owner, used);
        }
    }
}

fn check_operand(draft: &mut Draft<'_>, id: NodeId, owner: NodeId, used: &FilterUse) {
    let node = &draft.nodes[id.0];
    let DraftStep::Filter(uses) = &node.step else { return };
    let (entry, kind) = (used.description, used.effect().kind);
    let is = match kind {
        _ if used.endpoint.is_program => "runs in a process of its own",
        FilterKind::Source => "is a source",
        FilterKind::Sink => "is a sink",
        FilterKind::Editing => "changes bytes",
        kind if kind.is_read_only() => return,
        _ => "is not a filter",
    };
    let operator = match &draft.nodes[owner.0].step {
        DraftStep::Section(_, operator) => *operator,
        _ => "!",
    };
    let what = format!("`{}` cannot be an operand of `{operator}`", entry.name);
    let why = format!(
        "an operand answers about a block, which passes unchanged, and `{}` {is}",
        entry.name
    );
    let hint = match operator {
        "++" => "for a copy to each side write `+`",
        _ => "",
    };
    let place = name_span(uses, node.span);
    draft.mistakes.push(Diagnostic::error(place, what).why(why).hint(hint));
}

/// Reports arcs that leave a sink, once per arc in the text.
fn check_sink_outputs(draft: &mut Draft<'_>) {
    let mut last = None;
    for index in 0..draft.edges.len() {
        let edge = &draft.edges[index];
        let Some(entry) =
            draft.nodes[edge.from.0].entry.filter(|entry| entry.kind == FilterKind::Sink)
        else {
            continue;
        };
        let place = (edge.from, edge.span);
        if last.replace(place) == Some(place) {
            continue;
        }
        let mistake = Diagnostic::error(edge.span, format!("`{}` has no output", entry.name))
            .why("it is a sink")
            .hint("to copy blocks to the sink and to the next filter, write `+`");
        draft.mistakes.push(mistake);
    }
}

/// Reports programs (`exec`) that are not permitted: the first one in excess of `PROGRAMS_MAX`, and
/// all programs in cycles. A cycle must never wait, but a program may read its input late (CONTRACT
/// 17).
fn check_programs(draft: &mut Draft<'_>, registry: &dyn Registry) {
    let is_program = |node: &usize| {
        draft.nodes[*node].entry.is_some_and(|entry| registry.endpoint_facts(entry).is_program)
    };
    let programs: Vec<usize> = (0..draft.nodes.len()).filter(is_program).collect();
    if let Some(beyond) = programs.get(PROGRAMS_MAX) {
        let what = format!("the request has more than {PROGRAMS_MAX} programs");
        draft.mistakes.push(Diagnostic::error(draft.nodes[*beyond].span, what));
    }
    if programs.is_empty() || !draft.edges.iter().any(|edge| edge.back) {
        return;
    }
    let successors = successors(draft);
    for program in programs {
        let node = &draft.nodes[program];
        let (DraftStep::Filter(uses), Some(entry), true) =
            (&node.step, node.entry, is_on_cycle(&successors, program))
        else {
            continue;
        };
        let what = format!("`{}` cannot be part of a cycle", entry.name);
        let mistake = Diagnostic::error(name_span(uses, node.span), what)
            .why("a program reads its input at its own pace, and a cycle must not wait");
        draft.mistakes.push(mistake);
    }
}

/// Returns, for each node, the indices of its successors.
pub(super) fn successors(draft: &Draft<'_>) -> Vec<Vec<usize>> {
    let mut successors: Vec<Vec<usize>> = vec![Vec::new(); draft.nodes.len()];
    for edge in &draft.edges {
        successors[edge.from.0].push(edge.to.0);
    }
    successors
}

fn is_on_cycle(successors: &[Vec<usize>], node: usize) -> bool {
    let mut reached = vec![false; successors.len()];
    let mut open = vec![node];
    while let Some(at) = open.pop() {
        open.extend(
            successors[at].iter().filter(|to| !std::mem::replace(&mut reached[**to], true)),
        );
    }
    reached[node]
}

/// Reports filters with `untrusted=yes` that cannot run in a process of their own: operands,
/// filters in cycles, and filters that report at the end instead of emitting blocks.
pub(super) fn check_untrusted_filters(draft: &mut Draft<'_>, used: &[Option<FilterUse>]) {
    let successors = successors(draft);
    for (index, used) in used.iter().enumerate() {
        let Some(used) = used.as_ref().filter(|used| used.is_untrusted()) else { continue };
        let node = &draft.nodes[index];
        let why = if node.inside.is_some() {
            "operands run within one thread, and `untrusted=yes` needs a process of its own"
        } else if draft.edges.iter().any(|edge| edge.back) && is_on_cycle(&successors, index) {
            "a process reads its input at its own pace, and a cycle must not wait"
        } else if used.description.ends_with_report() {
            "its report would stay in a process that ends with it"
        } else {
            continue;
        };
        let DraftStep::Filter(uses) = &node.step else { continue };
        let what = format!("`{}` cannot be untrusted here", used.description.name);
        let mistake = Diagnostic::error(name_span(uses, node.span), what).why(why);
        draft.mistakes.push(mistake);
    }
}

/// Returns the span of a filter's name, or `otherwise` for a node that is not a filter.
pub(super) fn name_span(uses: &[&FilterTerm], otherwise: Span) -> Span {
    uses.first().map_or(otherwise, |node| node.name.span)
}
