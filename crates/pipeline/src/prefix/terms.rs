//! The terms for shared prefixes: the option, the source and the sink that represent a prefix, and
//! the terms that cannot be shared.

use crate::language::tree::{Argument, FilterTerm, Name, Pipeline, Stage, Term, Text};
use crate::language::{Span, parse};
use filter::Arguments;
use std::fmt;

/// The option that determines whether the beginning of a request is shared.
pub const PREFIX_OPTION: &str = "prefix";
/// The values of [`PREFIX_OPTION`]: share the beginning of the request only if it is already
/// running, always share it, or run a private copy.
pub const PREFIX_VALUES: &[&str] = &["auto", "shared", "private"];

/// Name of the source that reads the output of a prefix, which several requests share.
pub const SHARED_SOURCE: &str = "shared";
/// Name of the sink that offers the output of a shared prefix to other requests.
pub(crate) const SHARE_SINK: &str = "share";

/// A reason why the beginning of a request cannot be shared.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct UnsharedReason(pub(super) String);

impl fmt::Display for UnsharedReason {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

/// Returns true if the options of a request ask for a shared prefix.
#[must_use]
pub fn is_shared_prefix_requested(options: &Arguments) -> bool {
    options.text(PREFIX_OPTION) == Some("shared")
}

/// Returns true if the options of a request ask for a private prefix.
#[must_use]
pub fn is_private_prefix_requested(options: &Arguments) -> bool {
    options.text(PREFIX_OPTION) == Some("private")
}

/// Returns the text of a source that reads the output of the shared prefix `prefix`.
#[must_use]
pub fn shared_source_text(prefix: &str) -> String {
    Term::Filter(endpoint_term(SHARED_SOURCE, prefix)).to_string()
}

/// Returns the prefix that a sink offers to other requests, or `None` for any other filter.
pub(crate) fn offered_prefix(term: &FilterTerm) -> Option<String> {
    endpoint_prefix(term, SHARE_SINK)
}

/// Returns the shared prefix that a source reads, if the prefix contains a filter called `name`.
/// Returns `None` for any other term or prefix.
pub(crate) fn prefix_containing(term: &FilterTerm, name: &str) -> Option<String> {
    let prefix = endpoint_prefix(term, SHARED_SOURCE)?;
    let (request, _) = parse(&prefix);
    let [Term::Pipeline(whole)] = request.pipelines.as_slice() else { return None };
    let mut terms =
        std::iter::once(&*whole.first).chain(whole.rest.iter().map(|stage| &stage.term));
    terms.any(|term| matches!(term, Term::Filter(term) if term.name.text == name)).then_some(prefix)
}

/// Returns the prefix in the arguments of a term, if the term is the source or sink called
/// `endpoint`. Returns `None` for any other term.
pub(super) fn endpoint_prefix(term: &FilterTerm, endpoint: &str) -> Option<String> {
    let is_it = term.name.text == endpoint;
    term.arguments
        .first()
        .filter(|_| is_it)
        .map(|argument| argument.value.to_string_lossy().to_string())
}

/// Fails with the reason if the term has a pin, a mark or an argument that makes it specific to the
/// request.
pub(super) fn check_request_independence(term: &FilterTerm) -> Result<(), UnsharedReason> {
    let name = &term.name.text;
    if term.pin.is_some() {
        return Err(UnsharedReason(format!("`{name}` is pinned")));
    }
    if term.mark.is_some() {
        return Err(UnsharedReason(format!(
            "`{name}` has a mark by which the request uses it again"
        )));
    }
    let own = |argument: &&Argument| {
        let key = argument.key.as_ref().map(|key| key.text.as_str());
        key.is_some_and(|key| ["untrusted", "state", "state_mode"].contains(&key))
    };
    match term.arguments.iter().find(own).and_then(|argument| argument.key.as_ref()) {
        Some(key) => Err(UnsharedReason(format!("`{name}` has `{}=`", key.text))),
        None => Ok(()),
    }
}

/// Builds a pipeline term from its first term and the stages after it.
pub(super) fn build_pipeline(first: Term, rest: &[Stage]) -> Term {
    Term::Pipeline(Pipeline { first: Box::new(first), rest: rest.to_vec(), span: Span::default() })
}

/// Builds the term of a source or sink with a prefix as its argument.
pub(super) fn endpoint_term(name: &str, prefix: &str) -> FilterTerm {
    FilterTerm {
        name: build_name(name),
        arguments: vec![build_argument(None, prefix, true)],
        mark: None,
        pin: None,
        span: Span::default(),
    }
}

/// Builds an argument, which is positional if `key` is `None`. `quoted` is true if the value is
/// written in quotes.
pub(super) fn build_argument(key: Option<&str>, value: &str, quoted: bool) -> Argument {
    let value = Text { bytes: value.as_bytes().to_vec(), quoted, span: Span::default() };
    Argument { key: key.map(build_name), value, span: Span::default() }
}

fn build_name(text: &str) -> Name {
    Name { text: text.to_owned(), span: Span::default() }
}
