//! `split_rr` in front of branches: one branch for each block, in turn.
//!
//! `split_rr | f + f + f` gives each block to one of the branches, where every other filter gives
//! each branch a copy. The tree is rewritten before it is lowered: `split_rr` gets the number of
//! branches, and each branch the class of its number, `split_rr 3 | (|1 f + |2 f + |3 f)`. Labels
//! that are written, on the arc or on a branch, leave the group as it is. [Th §5.4]

use std::borrow::Cow;

use crate::language::tree::{Argument, Branch, Class, Classes, FilterTerm, Label, Operator};
use crate::language::tree::{Pipeline, Request, Stage, Term, Text, Value};

/// The filter whose branches are numbered.
const SPLITTER: &str = "split_rr";

/// Returns the request with numbered branches behind every `split_rr`.
pub(super) fn spread(request: &Request) -> Cow<'_, Request> {
    let mut changed = Cow::Borrowed(request);
    if request.pipelines.iter().any(has_splitter) {
        changed.to_mut().pipelines.iter_mut().for_each(term);
    }
    changed
}

fn has_splitter(term: &Term) -> bool {
    match term {
        Term::Hole(_) => false,
        Term::Filter(node) => node.name.text == SPLITTER,
        Term::Not(not) => has_splitter(&not.term),
        Term::Group(group) => group.branches.iter().any(|branch| has_splitter(&branch.term)),
        Term::Pipeline(Pipeline { first, rest, .. }) => {
            has_splitter(first) || rest.iter().any(|stage| has_splitter(&stage.term))
        }
    }
}

fn term(of: &mut Term) {
    match of {
        Term::Hole(_) | Term::Filter(_) => {}
        Term::Not(not) => term(&mut not.term),
        Term::Group(group) => group.branches.iter_mut().for_each(|branch| term(&mut branch.term)),
        Term::Pipeline(Pipeline { first, rest, .. }) => {
            term(first);
            let mut before: &mut Term = first;
            for Stage { arc, term: next } in rest {
                term(next);
                if arc.label.is_none() {
                    number(before, next);
                }
                before = next;
            }
        }
    }
}

/// Numbers the branches of `next` if `before` is a splitter without a label behind it.
fn number(before: &mut Term, next: &mut Term) {
    let (Term::Filter(splitter), Term::Group(group)) = (before, next) else { return };
    let labelled = group.branches.iter().any(|branch| branch.label.is_some());
    if splitter.name.text != SPLITTER || group.operator != Operator::Parallel || labelled {
        return;
    }
    let ways = group.branches.len();
    if splitter.arguments.is_empty() {
        give_ways(splitter, ways);
    }
    for (Branch { label, term, .. }, value) in group.branches.iter_mut().zip(1..) {
        let span = term.span();
        let class = Class::One(Value::Number { value, hex: false, span });
        *label = Some(Label { inverted: false, classes: Classes::List(vec![class]), span });
    }
}

/// Adds the number of branches as an argument at the place of the name.
fn give_ways(splitter: &mut FilterTerm, ways: usize) {
    let span = splitter.name.span;
    let value = Text { bytes: ways.to_string().into_bytes(), quoted: false, span };
    splitter.arguments.push(Argument { key: None, value, span });
}
