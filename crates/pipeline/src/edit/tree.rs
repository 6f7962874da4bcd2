//! The tree of a request while it is edited: filters put into it, taken out, and moved.
//!
//! What is new in it stands at no place of the old text ([`NEW`]); the rest stands where it stood,
//! by which it is known.

use super::Misfit;
use crate::language::tree::{Argument, Branch, Classes, FilterTerm, Group, Label, Name, Pipe};
use crate::language::tree::{Operator, Pipeline, Stage, Term, Text};
use crate::language::{Request, Severity, Span, parse};
use filter::UNTRUSTED;

/// The word for "out of the kernel"; the receiving thread reads what is handed over.
pub(super) const PROCESS: &str = "process";
pub(super) const KERNEL: &str = "kernel";
pub(super) const FIRST: &str = "thread0";
/// The word for a sandbox: a process that can only compute.
const SANDBOX: &str = "sandbox";

/// The place of what was not in the old text.
const NEW: Span = Span { start: usize::MAX, end: usize::MAX };

/// Reads a text that must be without mistakes of grammar.
pub(crate) fn tree(text: &str, what: &str) -> Result<Request, Misfit> {
    let (request, mistakes) = parse(text);
    match mistakes.iter().find(|mistake| mistake.severity == Severity::Error) {
        None => Ok(request),
        Some(mistake) => Err(Misfit(format!("{what}: {}", mistake.what))),
    }
}

/// Parses the filter to insert.
pub(crate) fn fragment(text: &str) -> Result<Term, Misfit> {
    let mut request = tree(text, &format!("`{text}`"))?;
    if request.pipelines.len() != 1 || !request.options.is_empty() {
        return Err(Misfit(format!("`{text}` is not one filter, nor several joined by pipes")));
    }
    let mut term = request.pipelines.remove(0);
    each(&mut term, &mut |node| node.span = NEW);
    Ok(term)
}

/// All filters in the order of the text.
pub(super) fn nodes(request: &Request) -> impl Iterator<Item = &FilterTerm> {
    fn add<'t>(term: &'t Term, to: &mut Vec<&'t FilterTerm>) {
        match term {
            Term::Missing(_) => {}
            Term::Filter(node) => to.push(node),
            Term::Not(not) => add(&not.term, to),
            Term::Group(group) => group.branches.iter().for_each(|branch| add(&branch.term, to)),
            Term::Pipeline(pipeline) => {
                add(&pipeline.first, to);
                pipeline.rest.iter().for_each(|stage| add(&stage.term, to));
            }
        }
    }
    let mut all = Vec::new();
    request.pipelines.iter().for_each(|term| add(term, &mut all));
    all.into_iter()
}

pub(crate) fn each(term: &mut Term, act: &mut dyn FnMut(&mut FilterTerm)) {
    match term {
        Term::Missing(_) => {}
        Term::Filter(node) => act(node),
        Term::Not(not) => each(&mut not.term, act),
        Term::Group(group) => group.branches.iter_mut().for_each(|b| each(&mut b.term, act)),
        Term::Pipeline(pipeline) => {
            each(&mut pipeline.first, act);
            pipeline.rest.iter_mut().for_each(|stage| each(&mut stage.term, act));
        }
    }
}

fn plain() -> Pipe {
    Pipe { label: None, span: NEW }
}

/// One behind the other.
pub(crate) fn chain(first: Term, then: Term) -> Term {
    let rest = vec![Stage { arc: plain(), term: then }];
    Term::Pipeline(Pipeline { first: Box::new(first), rest, span: NEW })
}

/// Applies `act` to the filter at this place of a term; returns `None` if nothing of the term is
/// left.
pub(crate) fn walk(
    term: Term,
    at: Span,
    act: &mut dyn FnMut(Term) -> Option<Term>,
) -> Option<Term> {
    match term {
        Term::Filter(node) if node.span == at => act(Term::Filter(node)),
        Term::Filter(_) | Term::Missing(_) => Some(term),
        Term::Not(mut not) => {
            not.term = Box::new(walk(*not.term, at, act)?);
            Some(Term::Not(not))
        }
        Term::Group(group) => {
            let Group { operator, branches, span } = group;
            let kept = branches.into_iter().filter_map(|branch| {
                let Branch { label, term, span } = branch;
                Some(Branch { label, term: walk(term, at, act)?, span })
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
            // The arc to a filter that goes leads to what stands behind it.
            let mut waiting = None;
            for (arc, term) in std::iter::once((plain(), *first))
                .chain(rest.into_iter().map(|stage| (stage.arc, stage.term)))
            {
                let arc = waiting.take().unwrap_or(arc);
                match walk(term, at, act) {
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

/// Puts `filter` on a branch beside what follows the filter at this place.
pub(super) fn beside(request: &mut Request, at: Span, filter: &Term) -> Result<(), Misfit> {
    fn within(term: &mut Term, at: Span, filter: &Term) -> bool {
        match term {
            Term::Filter(_) | Term::Missing(_) => false,
            Term::Not(not) => within(&mut not.term, at, filter),
            Term::Group(group) => {
                group.branches.iter_mut().any(|b| within(&mut b.term, at, filter))
            }
            Term::Pipeline(pipeline) => {
                let here = |term: &Term| matches!(term, Term::Filter(node) if node.span == at);
                let place = match here(&pipeline.first) {
                    true => Some(0),
                    false => pipeline.rest.iter().position(|s| here(&s.term)).map(|p| p + 1),
                };
                match place.filter(|place| *place < pipeline.rest.len()) {
                    Some(place) => {
                        fork(pipeline, place, filter.clone());
                        true
                    }
                    None => {
                        within(&mut pipeline.first, at, filter)
                            || pipeline.rest.iter_mut().any(|s| within(&mut s.term, at, filter))
                    }
                }
            }
        }
    }
    match request.pipelines.iter_mut().any(|term| within(term, at, filter)) {
        true => Ok(()),
        false => Err(Misfit("nothing follows it in its branch: insert `after` it".to_owned())),
    }
}

/// Puts a branch beside all stages from `place` on.
fn fork(pipeline: &mut Pipeline, place: usize, filter: Term) {
    let mut behind = pipeline.rest.split_off(place).into_iter();
    let Some(next) = behind.next() else { return };
    let label = next.arc.label;
    let rest: Vec<Stage> = behind.collect();
    let follows = match rest.is_empty() {
        true => next.term,
        false => Term::Pipeline(Pipeline { first: Box::new(next.term), rest, span: NEW }),
    };
    let all = Label { inverted: false, classes: Classes::All, span: NEW };
    let arc = Pipe { label: label.as_ref().map(|_| all), span: NEW };
    let branches = vec![
        Branch { label: None, term: filter, span: NEW },
        Branch { label, term: follows, span: NEW },
    ];
    let term = Term::Group(Group { operator: Operator::Parallel, branches, span: NEW });
    pipeline.rest.push(Stage { arc, term });
}

/// Lets what stands behind this place follow what leaves the kernel there: it was put there by a
/// move, and cannot stay.
pub(super) fn leave_kernel(request: &mut Request, at: Span) {
    let here = |term: &Term| {
        let mut found = false;
        each(&mut term.clone(), &mut |node| found |= node.span == at);
        found
    };
    for term in request.pipelines.iter_mut().filter(|term| here(term)) {
        let mut behind = false;
        each(term, &mut |node| {
            if behind && node.pin.as_ref().is_some_and(|pin| pin.text == KERNEL) {
                node.pin = None;
            }
            behind |= node.span == at;
        });
    }
}

/// The filter in another space: in a process of its own by an argument, anywhere else by a pin.
pub(super) fn elsewhere(node: FilterTerm, space: &str) -> FilterTerm {
    let mut node = trusted(node);
    let named = |text: &str| Name { text: text.to_owned(), span: NEW };
    if space != SANDBOX {
        return FilterTerm { pin: Some(named(space)), ..node };
    }
    let value = Text { bytes: b"yes".to_vec(), quoted: false, span: NEW };
    let key = Some(named(UNTRUSTED.name));
    node.arguments.push(Argument { key, value, span: NEW });
    FilterTerm { pin: None, ..node }
}

/// The same filter, whether it runs in a process of its own or not.
pub(super) fn trusted(mut node: FilterTerm) -> FilterTerm {
    let says = |argument: &Argument| argument.key.as_ref().map(|key| key.text.clone());
    node.arguments.retain(|argument| says(argument).as_deref() != Some(UNTRUSTED.name));
    node
}
