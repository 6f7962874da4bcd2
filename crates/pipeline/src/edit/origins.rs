//! Origins of filters: for each filter of a new text, its place in the old text.

use super::kinds::{EditResult, InvalidEdit};
use super::marks::has_mark;
use super::tree::{filters, parse_tree};
use crate::language::tree::{FilterTerm, Name};
use crate::language::{Request, Span};

/// The filters of a request's old text, with which an edit identifies the filters of the new text.
pub(super) struct Origins {
    /// The name and the span of each filter in the old text.
    filters: Vec<(String, Span)>,
    /// Each mark of the old text, with the span of the first filter term that has it.
    marks: Vec<(String, Span)>,
    /// The spans of all filter terms whose mark an earlier term has too.
    later_uses: Vec<Span>,
}

impl Origins {
    pub(super) fn new(request: &Request) -> Self {
        let all = filters(request).map(|node| (node.name.text.clone(), node.span)).collect();
        let (mut marks, mut repeated) = (Vec::<(String, Span)>::new(), Vec::new());
        for node in filters(request) {
            let Some(mark) = &node.mark else { continue };
            match marks.iter().any(|(known, _)| *known == mark.text) {
                true => repeated.push(node.span),
                false => marks.push((mark.text.clone(), node.span)),
            }
        }
        Self { filters: all, marks, later_uses: repeated }
    }

    /// Returns the name and the span of each node in the old text. For a node with several filter
    /// terms, returns the span of the first.
    pub(super) fn first_uses(&self) -> impl Iterator<Item = (&str, Span)> {
        let later = |at: Span| self.later_uses.contains(&at);
        let first = self.filters.iter().filter(move |(_, span)| !later(*span));
        first.map(|(name, span)| (name.as_str(), *span))
    }

    /// Returns, for each filter of the edited request, the filter's span in the old text, or `None`
    /// for a new filter. All filter terms with one mark have the same origin: the first term with
    /// this mark in the old text, or the filter to which the edit added the mark.
    pub(super) fn find_origins(&self, request: &Request) -> Vec<Option<Span>> {
        let known = |at: Span| self.filters.iter().map(|(_, span)| *span).find(|span| *span == at);
        let here = |node: &FilterTerm| known(node.span);
        let origin = |node: &FilterTerm| {
            let Some(Name { text: mark, .. }) = &node.mark else { return here(node) };
            let known = self.marks.iter().find(|(known, _)| known == mark).map(|(_, span)| *span);
            let mut uses = filters(request).filter(|other| has_mark(other, mark));
            known.or_else(|| uses.find_map(here))
        };
        filters(request).map(origin).collect()
    }
}

/// Prints a tree and records each filter's span in the old text.
pub(super) fn print_with_origins(
    request: &Request,
    origins: &[Option<Span>],
) -> Result<EditResult, InvalidEdit> {
    // The text of an edited tree may not be in normal form. Parsing and printing it again
    // normalizes it.
    let mut text = request.to_string();
    let mut again = parse_tree(&text, "the new request")?;
    let normal = again.to_string();
    if normal != text {
        again = parse_tree(&normal, "the new request")?;
        text = normal;
    }
    let spans: Vec<_> =
        filters(&again).map(|node| node.span).zip(origins.iter().copied()).collect();
    debug_assert_eq!(filters(&again).count(), origins.len(), "printing keeps filters in order");
    Ok(EditResult { text, filters: spans, upgraded: None })
}
