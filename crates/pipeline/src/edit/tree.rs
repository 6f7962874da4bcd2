//! Operations on the tree of a request that insert, remove and move filters.
//!
//! Inserted terms have the span [`INSERTED_SPAN`]. All other terms keep their span in the old text,
//! which identifies them.

use super::kinds::InvalidEdit;
use crate::language::tree::{Argument, Branch, Classes, FilterTerm, Group, Label, Name, Pipe};
use crate::language::tree::{Operator, Pipeline, Stage, Term, Text};
use crate::language::{Request, Severity, Span, parse};
use filter::UNTRUSTED_PARAMETER;

/// The keyword that denotes the first thread of the process, [`FIRST_THREAD`], in `move`.
pub(super) const PROCESS_KEYWORD: &str = "process";
/// The keyword that denotes the kernel in `move`.
pub(super) const KERNEL_KEYWORD: &str = "kernel";
/// The name of the first thread, which reads the kernel's rings.
pub(super) const FIRST_THREAD: &str = "thread0";
/// The keyword that denotes a sandbox, a process without privileges, in `move`.
const SANDBOX_KEYWORD: &str = "sandbox";

/// The span of terms that an edit inserts, which have no position in the old text.
pub(super) const INSERTED_SPAN: Span = Span { start: usize::MAX, end: usize::MAX };

/// Parses the text of a request. Fails with the first syntax error. The error message begins with
/// `what`, a name for the text.
pub(crate) fn parse_tree(text: &str, what: &str) -> Result<Request, InvalidEdit> {
    let (request, mistakes) = parse(text);
    match mistakes.iter().find(|mistake| mistake.severity == Severity::Error) {
        None => Ok(request),
        Some(mistake) => Err(InvalidEdit(format!("{what}: {}", mistake.what))),
    }
}

/// Returns true if the texts are equal except for the arguments of filters. Returns false if either
/// has syntax errors.
pub fn differ_only_in_arguments(one: &str, other: &str) -> bool {
    let bare = |text: &str| {
        let mut request = parse_tree(text, "").ok()?;
        let bare = &mut |node: &mut FilterTerm| node.arguments.clear();
        request.pipelines.iter_mut().for_each(|term| for_each_filter(term, bare));
        Some(request.to_string())
    };
    bare(one).is_some_and(|one| Some(one) == bare(other))
}

/// Parses a filter to insert, or several joined by pipes.
pub(crate) fn parse_filter(text: &str) -> Result<Term, InvalidEdit> {
    let mut request = parse_tree(text, &format!("`{text}`"))?;
    if request.pipelines.len() != 1 || !request.options.is_empty() {
        return Err(InvalidEdit(format!(
            "`{text}` is not one filter, nor several joined by pipes"
        )));
    }
    let mut term = request.pipelines.remove(0);
    for_each_filter(&mut term, &mut |node| node.span = INSERTED_SPAN);
    Ok(term)
}

/// Returns the filter's name if the text consists of exactly one filter; otherwise fails.
pub fn single_filter_name(text: &str) -> Result<String, InvalidEdit> {
    match parse_filter(text)? {
        Term::Filter(node) => Ok(node.name.text),
        _ => Err(InvalidEdit(format!("`{text}` is not one filter"))),
    }
}

/// Returns all filters of a request in text order.
pub(super) fn filters(request: &Request) -> impl Iterator<Item = &FilterTerm> {
    fn add_filters<'t>(term: &'t Term, to: &mut Vec<&'t FilterTerm>) {
        match term {
            Term::Hole(_) => {}
            Term::Filter(node) => to.push(node),
            Term::Not(not) => add_filters(&not.term, to),
            Term::Group(group) => {
                group.branches.iter().for_each(|branch| add_filters(&branch.term, to))
            }
            Term::Pipeline(pipeline) => {
                add_filters(&pipeline.first, to);
                pipeline.rest.iter().for_each(|stage| add_filters(&stage.term, to));
            }
        }
    }
    let mut all = Vec::new();
    request.pipelines.iter().for_each(|term| add_filters(term, &mut all));
    all.into_iter()
}

pub(crate) fn for_each_filter(term: &mut Term, act: &mut dyn FnMut(&mut FilterTerm)) {
    match term {
        Term::Hole(_) => {}
        Term::Filter(node) => act(node),
        Term::Not(not) => for_each_filter(&mut not.term, act),
        Term::Group(group) => {
            group.branches.iter_mut().for_each(|b| for_each_filter(&mut b.term, act))
        }
        Term::Pipeline(pipeline) => {
            for_each_filter(&mut pipeline.first, act);
            pipeline.rest.iter_mut().for_each(|stage| for_each_filter(&mut stage.term, act));
        }
    }
}

pub(super) fn plain_pipe() -> Pipe {
    Pipe { label: None, span: INSERTED_SPAN }
}

/// Joins two terms with a plain pipe.
pub(crate) fn join_with_pipe(first: Term, then: Term) -> Term {
    let rest = vec![Stage { arc: plain_pipe(), term: then }];
    Term::Pipeline(Pipeline { first: Box::new(first), rest, span: INSERTED_SPAN })
}

/// Replaces the filter at span `at` in a term with the result of `act`, which may be `None` to
/// remove it. Returns `None` if nothing of the term remains.
pub(crate) fn replace_filter(
    term: Term,
    at: Span,
    act: &mut dyn FnMut(Term) -> Option<Term>,
) -> Option<Term> {
    match term {
        Term::Filter(node) if node.span == at => act(Term::Filter(node)),
        Term::Filter(_) | Term::Hole(_) => Some(term),
        Term::Not(mut not) => {
            not.term = Box::new(replace_filter(*not.term, at, act)?);
            Some(Term::Not(not))
        }
        Term::Group(group) => {
            let Group { operator, branches, span } = group;
            let kept = branches.into_iter().filter_map(|branch| {
                let Branch { label, term, span } = branch;
                Some(Branch { label, term: replace_filter(term, at, act)?, span })
            });
            let mut branches: Vec<Branch> = kept.collect();
            match branches.len() {
                0 => None,
                1 if branches[0].label.is_none() => branches.pop().map(|branch| branch.term),
                _ => Some(Term::Group(Group { operator, branches, span })),
            }
        }
        Term::Pipeline(Pipeline { first, rest, span }) => {
            let mut stages: Vec<(Pipe, Term)> = Vec::new();
            // The incoming arc of a removed filter leads to the next stage.
            let mut waiting = None;
            for (arc, term) in std::iter::once((plain_pipe(), *first))
                .chain(rest.into_iter().map(|stage| (stage.arc, stage.term)))
            {
                let arc = waiting.take().unwrap_or(arc);
                match replace_filter(term, at, act) {
                    Some(term) => stages.push((arc, term)),
                    None => waiting = Some(arc),
                }
            }
            let mut stages = stages.into_iter();
            let (_, first) = stages.next()?;
            let rest: Vec<Stage> = stages.map(|(arc, term)| Stage { arc, term }).collect();
            match rest.is_empty() {
                true => Some(first),
                false => Some(Term::Pipeline(Pipeline { first: Box::new(first), rest, span })),
            }
        }
    }
}

/// Inserts `filter` as a branch after the filter at `at`, in parallel to what follows that filter.
/// Fails if nothing follows it in its branch.
pub(super) fn insert_beside(
    request: &mut Request,
    at: Span,
    filter: &Term,
) -> Result<(), InvalidEdit> {
    fn insert_within(term: &mut Term, at: Span, filter: &Term) -> bool {
        match term {
            Term::Filter(_) | Term::Hole(_) => false,
            Term::Not(not) => insert_within(&mut not.term, at, filter),
            Term::Group(group) => {
                group.branches.iter_mut().any(|b| insert_within(&mut b.term, at, filter))
            }
            Term::Pipeline(pipeline) => {
                let here = |term: &Term| matches!(term, Term::Filter(node) if node.span == at);
                let place = match here(&pipeline.first) {
                    true => Some(0),
                    false => pipeline.rest.iter().position(|s| here(&s.term)).map(|p| p + 1),
                };
                match place.filter(|place| *place < pipeline.rest.len()) {
                    Some(place) => {
                        insert_branch(pipeline, place, filter.clone());
                        true
                    }
                    None => {
                        insert_within(&mut pipeline.first, at, filter)
                            || pipeline
                                .rest
                                .iter_mut()
                                .any(|s| insert_within(&mut s.term, at, filter))
                    }
                }
            }
        }
    }
    match request.pipelines.iter_mut().any(|term| insert_within(term, at, filter)) {
        true => Ok(()),
        false => Err(InvalidEdit("nothing follows it in its branch: insert `after` it".to_owned())),
    }
}

/// Inserts `filter` as a branch in parallel to the stages of a pipeline from index `place` on.
fn insert_branch(pipeline: &mut Pipeline, place: usize, filter: Term) {
    let mut behind = pipeline.rest.split_off(place).into_iter();
    let Some(next) = behind.next() else { return };
    let label = next.arc.label;
    let rest: Vec<Stage> = behind.collect();
    let follows = match rest.is_empty() {
        true => next.term,
        false => Term::Pipeline(Pipeline { first: Box::new(next.term), rest, span: INSERTED_SPAN }),
    };
    let all = Label { inverted: false, classes: Classes::All, span: INSERTED_SPAN };
    let arc = Pipe { label: label.as_ref().map(|_| all), span: INSERTED_SPAN };
    let branches = vec![
        Branch { label: None, term: filter, span: INSERTED_SPAN },
        Branch { label, term: follows, span: INSERTED_SPAN },
    ];
    let term = Term::Group(Group { operator: Operator::Parallel, branches, span: INSERTED_SPAN });
    pipeline.rest.push(Stage { arc, term });
}

/// Removes the kernel pins of all filters that follow the filter at `at` in its pipeline. Used when
/// the filter leaves the kernel, because a filter can run in the kernel only if its predecessors
/// run there.
pub(super) fn unpin_successors(request: &mut Request, at: Span) {
    let here = |term: &Term| {
        let mut found = false;
        for_each_filter(&mut term.clone(), &mut |node| found |= node.span == at);
        found
    };
    for term in request.pipelines.iter_mut().filter(|term| here(term)) {
        let mut behind = false;
        for_each_filter(term, &mut |node| {
            if behind && node.pin.as_ref().is_some_and(|pin| pin.text == KERNEL_KEYWORD) {
                node.pin = None;
            }
            behind |= node.span == at;
        });
    }
}

/// Moves a filter to another space. A move to a sandbox sets the argument `untrusted` and removes
/// the pin; any other move sets the pin and removes the argument.
pub(super) fn move_to_space(node: FilterTerm, space: &str) -> FilterTerm {
    let mut node = without_sandbox(node);
    let named = |text: &str| Name { text: text.to_owned(), span: INSERTED_SPAN };
    if space != SANDBOX_KEYWORD {
        return FilterTerm { pin: Some(named(space)), ..node };
    }
    let value = Text { bytes: b"yes".to_vec(), quoted: false, span: INSERTED_SPAN };
    let key = Some(named(UNTRUSTED_PARAMETER.name));
    node.arguments.push(Argument { key, value, span: INSERTED_SPAN });
    FilterTerm { pin: None, ..node }
}

/// Removes `untrusted` from the arguments of a filter.
pub(super) fn without_sandbox(mut node: FilterTerm) -> FilterTerm {
    let key = |argument: &Argument| argument.key.as_ref().map(|key| key.text.clone());
    node.arguments.retain(|argument| key(argument).as_deref() != Some(UNTRUSTED_PARAMETER.name));
    node
}
