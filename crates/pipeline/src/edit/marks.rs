//! Marks of a request: all filter terms with the same mark denote one node, and are called the uses
//! of that node.

use super::kinds::InvalidEdit;
use super::tree::{filters, for_each_filter};
use crate::language::tree::{Branch, FilterTerm, Group, Name, Operator, Pipeline, Term};
use crate::language::{Request, Span};

/// Returns the mark of the filter at a span, if it has one.
fn filter_mark(request: &Request, at: Span) -> Option<String> {
    let node = filters(request).find(|node| node.span == at)?;
    node.mark.as_ref().map(|mark| mark.text.clone())
}

/// Returns true if the filter has this mark.
pub(super) fn has_mark(node: &FilterTerm, mark: &str) -> bool {
    node.mark.as_ref().is_some_and(|own| own.text == mark)
}

/// Returns the spans of all filter terms that denote the node at span `at`, in text order.
pub(super) fn filter_term_spans(request: &Request, at: Span) -> Vec<Span> {
    let Some(mark) = filter_mark(request, at) else { return vec![at] };
    filters(request).filter(|node| has_mark(node, &mark)).map(|node| node.span).collect()
}

/// Fails if the node at span `at` has several filter terms. `wanted` is the name of the node in the
/// edit, for the error message.
pub(super) fn refuse_if_used_repeatedly(
    request: &Request,
    at: Span,
    wanted: &str,
) -> Result<(), InvalidEdit> {
    match filter_term_spans(request, at).len() {
        1 => Ok(()),
        _ => Err(InvalidEdit(format!(
            "`{wanted}` has the same mark in several places: write the whole new request"
        ))),
    }
}

/// Returns the span of the filter term that contains the arguments of the node at span `at`, or
/// `at` if none of its terms has arguments.
pub(super) fn find_term_with_arguments(request: &Request, at: Span) -> Span {
    let all = filter_term_spans(request, at);
    let given = |node: &&FilterTerm| all.contains(&node.span) && !node.arguments.is_empty();
    filters(request).find(given).map_or(at, |node| node.span)
}

/// Removes the pin, such as `@kernel`, from all filter terms that denote the node at span `at`,
/// except from the term at this span.
pub(super) fn unpin_uses(request: &mut Request, at: Span) {
    let all = filter_term_spans(request, at);
    for term in &mut request.pipelines {
        for_each_filter(term, &mut |node| {
            if node.span != at && all.contains(&node.span) {
                node.pin = None;
            }
        });
    }
}

/// Removes generated marks that only one filter term has. Marks that a user chose stay. A mark
/// counts as generated in two cases: the old text lacks the mark, or the mark has the form of
/// [`MarkGenerator`] and several terms of the old text have it.
pub(super) fn remove_needless_marks(request: &mut Request, old: &[String]) {
    let all = all_marks(request);
    let count = |of: &[String], mark: &String| of.iter().filter(|other| *other == mark).count();
    let is_needless = |node: &FilterTerm, mark: &String| {
        let number = mark.strip_prefix(node.name.text.as_str());
        let made = number.is_some_and(|number| number.is_empty() || number.parse::<u32>().is_ok());
        let before = count(old, mark);
        count(&all, mark) == 1 && (before == 0 || before > 1 && made)
    };
    for term in &mut request.pipelines {
        for_each_filter(term, &mut |node| {
            if node.mark.as_ref().is_some_and(|mark| is_needless(node, &mark.text)) {
                node.mark = None;
            }
        });
    }
}

/// Returns the marks of a request.
pub(super) fn all_marks(request: &Request) -> Vec<String> {
    filters(request).filter_map(|node| node.mark.as_ref().map(|mark| mark.text.clone())).collect()
}

/// A generator of new marks, and of spans for the terms that use them.
pub(super) struct MarkGenerator {
    taken: Vec<String>,
    next_span: usize,
}

impl MarkGenerator {
    pub(super) fn new(request: &Request) -> Self {
        let starts = filters(request).map(|node| node.span.start);
        let used = starts.filter(|start| *start > usize::MAX / 2 && *start < usize::MAX);
        Self { taken: all_marks(request), next_span: used.min().unwrap_or(usize::MAX) - 1 }
    }

    /// Returns a new filter term that denotes the same node as `node`, with its name and mark but
    /// without arguments. Adds a mark to `node` if it has none.
    pub(super) fn create_reference(&mut self, node: &mut FilterTerm) -> FilterTerm {
        let mark = match &node.mark {
            Some(mark) => mark.clone(),
            None => self.fresh_name(&node.name.text),
        };
        node.mark = Some(mark.clone());
        let span = Span { start: self.next_span, end: usize::MAX };
        self.next_span -= 1;
        let name = Name { text: node.name.text.clone(), span };
        FilterTerm { name, arguments: Vec::new(), mark: Some(mark), pin: None, span }
    }

    fn fresh_name(&mut self, name: &str) -> Name {
        let numbered = (2..).map(|number| format!("{name}{number}"));
        let free = |mark: &String| !self.taken.contains(mark);
        let text = std::iter::once(name.to_owned()).chain(numbered).find(free);
        let text = text.unwrap_or_default();
        self.taken.push(text.clone());
        Name { text, span: Span { start: usize::MAX, end: usize::MAX } }
    }

    /// Returns a term that refers by marks to the nodes with which `term` begins, so that a second
    /// arc can lead to them. Adds a mark to each of these nodes that has none. Fails if one of them
    /// is an operand of `++`, `+*` or `!`, which can have only one incoming arc.
    pub(super) fn create_references(&mut self, term: &mut Term) -> Result<Term, InvalidEdit> {
        match term {
            Term::Filter(node) => Ok(Term::Filter(self.create_reference(node))),
            Term::Pipeline(Pipeline { first, .. }) => self.create_references(first),
            Term::Group(Group { operator: Operator::Parallel, branches, span }) => {
                let mut all = Vec::new();
                for Branch { label, term, span } in branches {
                    let term = self.create_references(term)?;
                    all.push(Branch { label: label.clone(), term, span: *span });
                }
                Ok(Term::Group(Group { operator: Operator::Parallel, branches: all, span: *span }))
            }
            other => Err(InvalidEdit(format!(
                "no second arc can lead to `{other}`: write the whole new request"
            ))),
        }
    }
}
