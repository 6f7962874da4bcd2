//! Shared prefixes: the part of a request up to the filter that reassembles connections. Other
//! requests of the same user may begin with the same part. [SL §7.1]
//!
//! A prefix consists of one source of live frames, filters that keep no state beyond a session, and
//! `tcp`. Two prefixes are the same if their canonical texts are equal.

use filter::{Arguments, StateScope};
use std::fmt;

use crate::language::tree::{
    Argument, Class, Classes, FilterTerm, Label, Name, Pipeline, Request, Stage, Term, Text, Value,
};
use crate::language::{Span, parse};
use crate::registry::Registry;

/// Name of the option that determines if the beginning of a request is shared.
pub const PREFIX_OPTION: &str = "prefix";
/// Values of [`PREFIX_OPTION`]: the beginning is shared with other requests, or run by the request
/// itself.
pub const PREFIX_VALUES: &[&str] = &["shared", "private"];

/// The source that reads a shared prefix.
pub const SHARED_SOURCE: &str = "shared";
const SHARE_SINK: &str = "share";

/// A request whose beginning can be shared.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct SharedPrefix {
    /// The canonical text of the beginning.
    pub prefix: String,
    /// The rest of the request, with the source [`SHARED_SOURCE`] in place of the beginning.
    pub rest: String,
}

/// Error for a request whose beginning cannot be shared, with the reason.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct UnsharedReason(String);

impl fmt::Display for UnsharedReason {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

/// Returns true if the options of a request ask for a shared prefix.
#[must_use]
pub fn is_requested(options: &Arguments) -> bool {
    options.text(PREFIX_OPTION) == Some("shared")
}

/// Splits a correct request into its shared prefix and the rest. Fails with the reason.
pub fn split_prefix(text: &str, registry: &dyn Registry) -> Result<SharedPrefix, UnsharedReason> {
    let refused = |why: String| Err(UnsharedReason(why));
    let (request, mistakes) = parse(text);
    if !mistakes.is_empty() {
        return refused("it cannot be read".to_owned());
    }
    let known = |key: &str| [PREFIX_OPTION, "no-loss"].contains(&key);
    if let Some(option) = request.options.iter().find(|option| !known(&option.key.text)) {
        return refused(format!("`--{}` is about the whole request", option.key.text));
    }
    let [Term::Pipeline(whole)] = request.pipelines.as_slice() else {
        return refused("it is not one pipeline".to_owned());
    };
    match &*whole.first {
        Term::Filter(source) if ["rx", "tx"].contains(&source.name.text.as_str()) => {
            check_source(source)?;
        }
        first => return refused(format!("`{first}` is no single interface")),
    }
    let at = last_prefix_stage(whole, registry)?;
    let rest = whole.rest.get(at + 1..).unwrap_or_default();
    let Some(next) = rest.first() else {
        return refused("nothing follows it".to_owned());
    };
    if next.arc.label.as_ref().is_some_and(is_passing_zero) {
        return refused("the next pipe also passes blocks outside of connections".to_owned());
    }
    let prefix = build_pipeline((*whole.first).clone(), whole.rest.get(..=at).unwrap_or_default());
    let prefix = prefix.to_string();
    let options = request.options.iter().filter(|option| option.key.text != PREFIX_OPTION);
    let source = Term::Filter(endpoint_term(SHARED_SOURCE, &prefix));
    let rest = Request {
        options: options.cloned().collect(),
        pipelines: vec![build_pipeline(source, rest)],
    };
    Ok(SharedPrefix { prefix, rest: rest.to_string() })
}

/// Returns the text of the source that reads a prefix.
#[must_use]
pub fn source_text(prefix: &str) -> String {
    Term::Filter(endpoint_term(SHARED_SOURCE, prefix)).to_string()
}

/// Returns the text of the request that runs a prefix for others.
#[must_use]
pub fn prefix_request(prefix: &str) -> String {
    let mut sink = endpoint_term(SHARE_SINK, prefix);
    sink.arguments.push(build_argument(Some("last"), "yes", false));
    format!("{prefix} | {}", Term::Filter(sink))
}

fn check_source(source: &FilterTerm) -> Result<(), UnsharedReason> {
    if source.arguments.iter().any(|argument| argument.value.lossy() == "take") {
        return Err(UnsharedReason("it takes frames from the host".to_owned()));
    }
    check_place(source)
}

fn check_place(term: &FilterTerm) -> Result<(), UnsharedReason> {
    let name = &term.name.text;
    if term.pin.is_some() {
        return Err(UnsharedReason(format!("`{name}` is pinned")));
    }
    if term.mark.is_some() {
        return Err(UnsharedReason(format!(
            "`{name}` has a name by which the request uses it again"
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

/// Returns the index of the last stage of the prefix, which is the first filter that reassembles
/// connections.
fn last_prefix_stage(whole: &Pipeline, registry: &dyn Registry) -> Result<usize, UnsharedReason> {
    let filters = whole.rest.iter().map_while(|stage| match &stage.term {
        Term::Filter(term) => Some(term),
        _ => None,
    });
    let orders = |term: &&FilterTerm| ["tcp", "untcp"].contains(&term.name.text.as_str());
    let Some(last) = filters.clone().position(|term| orders(&term)) else {
        return Err(UnsharedReason("no `tcp` follows the interface in it".to_owned()));
    };
    for term in filters.take(last + 1) {
        check_place(term)?;
        let name = &term.name.text;
        let keeps = registry.find_filter(name).map(|filter| filter.state.scope);
        // A session is seen from its beginning, so what is kept of it is the same for all.
        if !matches!(keeps, Some(StateScope::Nothing | StateScope::Sessions)) {
            return Err(UnsharedReason(format!("`{name}` before `tcp` has private state")));
        }
    }
    Ok(last)
}

/// Returns true if a label passes blocks without a class.
fn is_passing_zero(label: &Label) -> bool {
    let is_zero = |value: &Value| matches!(value, Value::Number { value: 0, .. });
    let Classes::List(list) = &label.classes else { return true };
    label.inverted
        || list.iter().any(|class| match class {
            Class::One(value) => is_zero(value),
            Class::Range { low, .. } => low.as_ref().is_none_or(is_zero),
        })
}

fn build_pipeline(first: Term, rest: &[Stage]) -> Term {
    Term::Pipeline(Pipeline { first: Box::new(first), rest: rest.to_vec(), span: Span::default() })
}

/// Returns a term with a prefix as its argument.
fn endpoint_term(name: &str, prefix: &str) -> FilterTerm {
    FilterTerm {
        name: build_name(name),
        arguments: vec![build_argument(None, prefix, true)],
        mark: None,
        pin: None,
        span: Span::default(),
    }
}

fn build_argument(key: Option<&str>, value: &str, quoted: bool) -> Argument {
    let value = Text { bytes: value.as_bytes().to_vec(), quoted, span: Span::default() };
    Argument { key: key.map(build_name), value, span: Span::default() }
}

fn build_name(text: &str) -> Name {
    Name { text: text.to_owned(), span: Span::default() }
}

#[cfg(test)]
mod tests;
