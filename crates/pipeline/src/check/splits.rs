//! Numbering of the branches after `split_rr`, which sends each block to one branch, round robin.
//!
//! `split_rr | f + f + f` sends each block to one of the branches, whereas any other filter sends
//! each branch a copy. The tree is rewritten before it is lowered: `split_rr` gets the number of
//! branches as an argument, and each branch its number as a label: `split_rr 3 | (|1 f + |2 f + |3
//! f)`. A group that has a label on its incoming arc or on a branch stays unchanged. [Th §5.4]

use std::borrow::Cow;

use crate::language::tree::{Argument, Branch, Classes, FilterTerm, Label, LabelEntry, Operator};
use crate::language::tree::{Pipeline, Request, Stage, Term, Text, Value};

/// Name of the filter whose branches are numbered.
const SPLITTER: &str = "split_rr";

/// Returns the request with numbered branches after each `split_rr`.
pub(super) fn number_splitter_branches(request: &Request) -> Cow<'_, Request> {
    let mut changed = Cow::Borrowed(request);
    if request.pipelines.iter().any(has_splitter) {
        changed.to_mut().pipelines.iter_mut().for_each(number_branches_in_term);
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

fn number_branches_in_term(of: &mut Term) {
    match of {
        Term::Hole(_) | Term::Filter(_) => {}
        Term::Not(not) => number_branches_in_term(&mut not.term),
        Term::Group(group) => {
            group.branches.iter_mut().for_each(|branch| number_branches_in_term(&mut branch.term))
        }
        Term::Pipeline(Pipeline { first, rest, .. }) => {
            number_branches_in_term(first);
            let mut before: &mut Term = first;
            for Stage { arc, term: next } in rest {
                number_branches_in_term(next);
                if arc.label.is_none() {
                    number_branches(before, next);
                }
                before = next;
            }
        }
    }
}

/// Numbers the branches of `next` if `before` is a splitter, and `next` is a `+` group in which no
/// branch has a label. If the splitter has no arguments, adds the number of branches as its
/// argument.
fn number_branches(before: &mut Term, next: &mut Term) {
    let (Term::Filter(splitter), Term::Group(group)) = (before, next) else { return };
    let labelled = group.branches.iter().any(|branch| branch.label.is_some());
    if splitter.name.text != SPLITTER || group.operator != Operator::Parallel || labelled {
        return;
    }
    let branch_count = group.branches.len();
    if splitter.arguments.is_empty() {
        add_branch_count(splitter, branch_count);
    }
    for (Branch { label, term, .. }, value) in group.branches.iter_mut().zip(1..) {
        let span = term.span();
        let class = LabelEntry::One(Value::Number { value, hex: false, span });
        *label = Some(Label { inverted: false, classes: Classes::List(vec![class]), span });
    }
}

/// Adds the number of branches as an argument of the splitter. The span of the argument is the span
/// of the filter's name.
fn add_branch_count(splitter: &mut FilterTerm, branch_count: usize) {
    let span = splitter.name.span;
    let value = Text { bytes: branch_count.to_string().into_bytes(), quoted: false, span };
    splitter.arguments.push(Argument { key: None, value, span });
}
