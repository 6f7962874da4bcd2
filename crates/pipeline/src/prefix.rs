//! Shared prefixes. A prefix is the beginning of a request, up to the filter that reassembles
//! connections, or up to a later filter that keeps state per connection, such as `http`. Requests
//! of the same user with equal prefixes can share one running instance of the prefix. [SL §7.1]
//!
//! A prefix consists of one source of live frames, and filters that keep no state beyond a session.
//! Two prefixes are equal if their canonical texts are equal.

use crate::check::check;
use crate::language::parse;
use crate::language::tree::{Classes, FilterTerm, Label, LabelEntry, Request, Term, Value};
use crate::registry::Registry;
use terms::{build_pipeline, check_request_independence, endpoint_prefix, endpoint_term};

mod ends;
mod server;
pub(crate) mod shared_source;
pub(crate) mod terms;

pub use server::{build_prefix_request, offers_prefix};
pub use terms::{
    PREFIX_OPTION, PREFIX_VALUES, SHARED_SOURCE, UnsharedReason, is_private_prefix_requested,
    is_shared_prefix_requested, shared_source_text,
};

/// The ways to split a request into a shared prefix and the rest.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct SharedPrefixes {
    /// The possible splits of the request, from the longest prefix to the shortest. There is at
    /// least one.
    pub cuts: Vec<RequestSplit>,
    /// Index in `cuts` of the split to use if no prefix is running yet. It is the longest prefix in
    /// which no filter after the reassembling filter has arguments, because most requests have such
    /// a prefix. The prefix is then started in a process of its own.
    pub start: usize,
}

/// A request that is split after one of its filters.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct RequestSplit {
    /// The canonical text of the prefix.
    pub prefix: String,
    /// The rest of the request, with the source [`SHARED_SOURCE`] in place of the prefix.
    pub rest: String,
    /// True if the prefix outputs messages. A request that joins late then misses only the messages
    /// that have already begun, which it would also miss if it ran alone.
    pub outputs_messages: bool,
}

/// Finds the ways to split a correct request into a prefix and the rest. Fails with the reason if
/// there are none.
pub fn split_prefix(text: &str, registry: &dyn Registry) -> Result<SharedPrefixes, UnsharedReason> {
    let refused = |why: String| Err(UnsharedReason(why));
    let (request, mistakes) = parse(text);
    if !mistakes.is_empty() {
        return refused("it cannot be read".to_owned());
    }
    let known = |key: &str| [PREFIX_OPTION, "no-loss"].contains(&key);
    if let Some(option) = request.options.iter().find(|option| !known(&option.key.text)) {
        return refused(format!("`--{}` applies to the whole request", option.key.text));
    }
    let [Term::Pipeline(whole)] = request.pipelines.as_slice() else {
        return refused("it is not one pipeline".to_owned());
    };
    check_head(&whole.first)?;
    let (graph, _) = check(&request, registry);
    let ends = ends::find_prefix_ends(whole, &graph, registry)?;
    let options = request.options.iter().filter(|option| option.key.text != PREFIX_OPTION);
    let options: Vec<_> = options.cloned().collect();
    let mut cuts = SharedPrefixes { cuts: Vec::new(), start: 0 };
    let (mut why, mut plain) = ("nothing follows it", None);
    for end in ends.iter().rev() {
        let rest = whole.rest.get(end.stage + 1..).unwrap_or_default();
        let Some(next) = rest.first() else { continue };
        if next.arc.label.as_ref().is_some_and(passes_class_zero) {
            why = "the next pipe also passes blocks outside of connections";
            continue;
        }
        if end.is_on_request {
            why = "the next pipe asks for blocks that are made only for it";
            continue;
        }
        let before = whole.rest.get(..=end.stage).unwrap_or_default();
        let prefix = build_pipeline((*whole.first).clone(), before).to_string();
        let source = Term::Filter(endpoint_term(SHARED_SOURCE, &prefix));
        let pipelines = vec![build_pipeline(source, rest)];
        let rest = Request { options: options.clone(), pipelines }.to_string();
        plain = plain.or_else(|| end.is_plain.then_some(cuts.cuts.len()));
        cuts.cuts.push(RequestSplit { prefix, rest, outputs_messages: end.outputs_messages });
    }
    // Only filters without arguments precede the last of several cuts.
    cuts.start = plain.unwrap_or_else(|| cuts.cuts.len().saturating_sub(1));
    if cuts.cuts.is_empty() { refused(why.to_owned()) } else { Ok(cuts) }
}

/// Returns the possible prefixes of a request, from the longest to the shortest. Includes a prefix
/// that the request already reads from another process. The list is empty if no prefix can be
/// shared.
#[must_use]
pub fn request_prefixes(text: &str, registry: &dyn Registry) -> Vec<String> {
    let (request, _) = parse(text);
    let head = match request.pipelines.as_slice() {
        [Term::Pipeline(whole)] => match &*whole.first {
            Term::Filter(term) => endpoint_prefix(term, SHARED_SOURCE),
            _ => None,
        },
        _ => None,
    };
    let text = head.map_or_else(|| text.to_owned(), |prefix| format!("{prefix} | discard"));
    let cuts = split_prefix(&text, registry).map_or_else(|_| Vec::new(), |found| found.cuts);
    cuts.into_iter().map(|cut| cut.prefix).collect()
}

fn check_head(first: &Term) -> Result<(), UnsharedReason> {
    match first {
        Term::Filter(source) if ["rx", "tx"].contains(&source.name.text.as_str()) => {
            check_source(source)
        }
        first => Err(UnsharedReason(format!("`{first}` is not a single interface"))),
    }
}

fn check_source(source: &FilterTerm) -> Result<(), UnsharedReason> {
    if source.arguments.iter().any(|argument| argument.value.to_string_lossy() == "take") {
        return Err(UnsharedReason("it takes frames from the host".to_owned()));
    }
    check_request_independence(source)
}

/// Returns true if a label passes class 0. Every inverted label is assumed to pass it.
fn passes_class_zero(label: &Label) -> bool {
    let is_zero = |value: &Value| matches!(value, Value::Number { value: 0, .. });
    let Classes::List(list) = &label.classes else { return true };
    label.inverted
        || list.iter().any(|class| match class {
            LabelEntry::One(value) => is_zero(value),
            LabelEntry::Range { low, .. } => low.as_ref().is_none_or(is_zero),
        })
}

#[cfg(test)]
mod tests;
