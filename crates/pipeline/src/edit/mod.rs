//! Edits of a request. An edit maps a text to a new text, and reports the origin of each filter in
//! the new text.
//!
//! An edit changes the syntax tree, and the new text is the printed tree. Filters that are not
//! edited therefore stay the same, and a running path can keep their state. The new text is not
//! checked here. [Th §5.4]
//!
//! - `tree`: operations on the tree;
//! - `argument`: assignments to arguments;
//! - `replacement`: replacement of the entire text.

mod argument;
mod replacement;
mod tree;

use crate::language::tree::{FilterTerm, Term};
use crate::language::{Request, Span};
use crate::prefix::terms;
use crate::read::read_request;
use crate::registry::Registry;
use argument::assign;
use replacement::replace_text;
use std::fmt;
use tree::{
    FIRST_THREAD, KERNEL_KEYWORD, PROCESS_KEYWORD, filters, insert_beside, move_to,
    unpin_successors,
};

pub use tree::differ_only_in_arguments;
pub(crate) use tree::{for_each_filter, join_with_pipe, parse_filter, parse_tree, replace_at};

/// A change to a request.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Edit {
    /// Inserts a filter, or several filters joined by pipes, before, after or beside a node.
    Insert {
        /// The new filter, in the syntax of a request.
        filter: String,
        /// The position relative to the node.
        place: Position,
        /// The node: its name, mark or number, as in `find`.
        node: String,
    },
    /// Removes a filter. If nothing else is in its branch, the branch is removed too.
    Remove {
        /// The node to remove.
        node: String,
    },
    /// Replaces a filter by another.
    Replace {
        /// The node to replace.
        node: String,
        /// The new filter, in the syntax of a request.
        filter: String,
    },
    /// Moves a filter to another space.
    Move {
        /// The node to move.
        node: String,
        /// The new space.
        space: String,
    },
    /// Restarts a filter, which inherits the state of the old instance.
    Upgrade {
        /// The node to upgrade.
        node: String,
    },
    /// Sets arguments of a filter, which keeps its state.
    Argument {
        /// The node with the arguments.
        node: String,
        /// The new values, each as `NAME=VALUE`, in the syntax of a request.
        arguments: String,
    },
    /// Replaces the entire text. The longest common subsequence of filters keeps its state.
    Whole(String),
}

/// A position relative to a node.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Position {
    /// Upstream of the node.
    Before,
    /// Downstream of the node.
    After,
    /// On a branch of its own that receives a copy of the output of the node.
    At,
}

impl Position {
    const ALL: [Self; 3] = [Self::Before, Self::After, Self::At];

    /// Returns the keyword of the position.
    const fn name(self) -> &'static str {
        match self {
            Self::Before => "before",
            Self::After => "after",
            Self::At => "at",
        }
    }
}

impl fmt::Display for Edit {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.to_words().join(" "))
    }
}

/// An invalid edit, with the reason.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct InvalidEdit(pub String);

impl fmt::Display for InvalidEdit {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

impl std::error::Error for InvalidEdit {}

/// The result of an edit.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct EditResult {
    /// The new text.
    pub text: String,
    /// Each filter of the new text, with the span that it has in the old text; `None` for a new
    /// filter.
    pub filters: Vec<(Span, Option<Span>)>,
    /// The filter of the new text that is restarted with its old state.
    pub upgraded: Option<Span>,
}

/// The syntax of edits.
const USAGE: &str = "write `insert FILTER before|after|at NODE`, `remove NODE`, \
     `replace NODE with FILTER`, `move NODE kernel|process|sandbox|SPACE`, `upgrade NODE`, \
     `arg NODE NAME=VALUE` or `pin SPACE PROCESSOR|any`";

impl Edit {
    /// Parses an edit from the words of a command line. A filter may be several words.
    pub fn parse<W: AsRef<str>>(words: &[W]) -> Result<Self, InvalidEdit> {
        let words: Vec<&str> = words.iter().map(AsRef::as_ref).collect();
        let owned = |node: &str| node.to_owned();
        Ok(match words.as_slice() {
            ["insert", filter @ .., place, node] if !filter.is_empty() => {
                let known = Position::ALL.into_iter().find(|known| known.name() == *place);
                let place = known.ok_or_else(|| InvalidEdit(USAGE.to_owned()))?;
                Self::Insert { filter: filter.join(" "), place, node: owned(node) }
            }
            ["remove", node] => Self::Remove { node: owned(node) },
            ["replace", node, "with", filter @ ..] if !filter.is_empty() => {
                Self::Replace { node: owned(node), filter: filter.join(" ") }
            }
            ["move", node, "to", space] | ["move", node, space] => {
                let space = if *space == PROCESS_KEYWORD { FIRST_THREAD } else { space };
                Self::Move { node: owned(node), space: owned(space) }
            }
            ["upgrade", node] => Self::Upgrade { node: owned(node) },
            ["arg", node, arguments @ ..] if !arguments.is_empty() => {
                Self::Argument { node: owned(node), arguments: arguments.join(" ") }
            }
            _ => return Err(InvalidEdit(USAGE.to_owned())),
        })
    }

    /// Returns the words that [`Edit::parse`] accepts for this edit; for [`Edit::Whole`], the text.
    #[must_use]
    pub fn to_words(&self) -> Vec<String> {
        let words: &[&str] = match self {
            Self::Insert { filter, place, node } => &["insert", filter, place.name(), node],
            Self::Remove { node } => &["remove", node],
            Self::Replace { node, filter } => &["replace", node, "with", filter],
            Self::Move { node, space } => &["move", node, "to", space],
            Self::Upgrade { node } => &["upgrade", node],
            Self::Argument { node, arguments } => &["arg", node, arguments],
            Self::Whole(text) => &[text],
        };
        words.iter().map(|word| (*word).to_owned()).collect()
    }

    /// Returns the same edit with unset parameters set to the current values of the machine, so
    /// that repeating the edit later has the same effect.
    #[must_use]
    pub fn resolve_unset(&self, registry: &dyn Registry) -> Self {
        let resolve = |text: &str| read_request(text, registry).0.text.as_ref().to_owned();
        match self.clone() {
            Self::Insert { filter, place, node } => {
                Self::Insert { filter: resolve(&filter), place, node }
            }
            Self::Replace { node, filter } => Self::Replace { node, filter: resolve(&filter) },
            Self::Whole(text) => Self::Whole(resolve(&text)),
            other => other,
        }
    }

    /// Fails if the request runs filters for others, which the edit would change for all. Moves
    /// change nothing that others see.
    fn check_unshared(&self, request: &Request) -> Result<(), InvalidEdit> {
        let moves = matches!(self, Self::Move { .. } | Self::Upgrade { .. });
        match filters(request).find_map(terms::offered).filter(|_| !moves) {
            Some(prefix) => Err(InvalidEdit(format!(
                "it runs `{prefix}` for other requests, which none of them has asked to change; \
                 start the request to be changed with `--prefix=private`"
            ))),
            None => Ok(()),
        }
    }

    /// Applies the edit to the text of a request. Fails if the text or the new filter has syntax
    /// errors, if the node does not exist or is ambiguous, if nothing would remain, or if an
    /// argument is not writable.
    pub fn apply(&self, text: &str, registry: &dyn Registry) -> Result<EditResult, InvalidEdit> {
        let mut request = parse_tree(text, "the running request")?;
        self.check_unshared(&request)?;
        let old: Vec<Span> = filters(&request).map(|node| node.span).collect();
        if let Self::Whole(new) = self {
            return replace_text(&request, new);
        }
        let node = match self {
            Self::Insert { node, .. } | Self::Remove { node } | Self::Replace { node, .. } => node,
            Self::Move { node, .. } | Self::Upgrade { node } | Self::Argument { node, .. } => node,
            Self::Whole(_) => return Err(InvalidEdit(USAGE.to_owned())),
        };
        let at = find_filter(&request, node)?;
        let mut act: Box<dyn FnMut(Term) -> Option<Term>> = match self {
            Self::Insert { filter, place: Position::After, .. } => {
                let filter = parse_filter(filter)?;
                Box::new(move |term| Some(join_with_pipe(term, filter.clone())))
            }
            Self::Insert { filter, place: Position::Before, .. } => {
                let filter = parse_filter(filter)?;
                Box::new(move |term| Some(join_with_pipe(filter.clone(), term)))
            }
            Self::Insert { filter, place: Position::At, .. } => {
                insert_beside(&mut request, at, &parse_filter(filter)?)?;
                Box::new(Some)
            }
            Self::Replace { filter, .. } => {
                let filter = parse_filter(filter)?;
                Box::new(move |_| Some(filter.clone()))
            }
            Self::Move { space, .. } => {
                if space != KERNEL_KEYWORD {
                    unpin_successors(&mut request, at);
                }
                Box::new(move |term| match term {
                    Term::Filter(node) => Some(Term::Filter(move_to(node, space))),
                    other => Some(other),
                })
            }
            Self::Argument { arguments, .. } => {
                let old = filters(&request).find(|node| node.span == at).cloned();
                let set = old.map(|old| {
                    let given = parse_filter(&format!("{} {arguments}", old.name.text))?;
                    assign(old, given, registry).map_err(InvalidEdit)
                });
                let set = set.transpose()?.map(Term::Filter);
                Box::new(move |_| set.clone())
            }
            Self::Remove { .. } => Box::new(|_| None),
            Self::Upgrade { .. } | Self::Whole(_) => Box::new(Some),
        };
        let pipelines = std::mem::take(&mut request.pipelines).into_iter();
        request.pipelines = pipelines.filter_map(|term| replace_at(term, at, &mut *act)).collect();
        if request.pipelines.is_empty() {
            return Err(InvalidEdit(format!("without `{node}` nothing is left")));
        }
        let origins: Vec<Option<Span>> = filters(&request)
            .map(|node| old.iter().copied().find(|span| *span == node.span))
            .collect();
        let mut edited = print_with_origins(&request, &origins)?;
        if matches!(self, Self::Upgrade { .. }) {
            let new = edited.filters.iter().find(|(_, old)| *old == Some(at));
            edited.upgraded = new.map(|(span, _)| *span);
        }
        Ok(edited)
    }
}

/// Returns the span of a filter in a request, given by its name, mark or number as in an edit.
pub fn filter_span(text: &str, node: &str) -> Result<Span, InvalidEdit> {
    find_filter(&parse_tree(text, "the running request")?, node)
}

/// Prints a tree and records the old span of each filter.
fn print_with_origins(
    request: &Request,
    origins: &[Option<Span>],
) -> Result<EditResult, InvalidEdit> {
    // An edited tree need not be in normal form; a parsed one is.
    let text = parse_tree(&request.to_string(), "the new request")?.to_string();
    let again = parse_tree(&text, "the new request")?;
    let spans: Vec<_> =
        filters(&again).map(|node| node.span).zip(origins.iter().copied()).collect();
    debug_assert_eq!(filters(&again).count(), origins.len(), "printing keeps filters in order");
    Ok(EditResult { text, filters: spans, upgraded: None })
}

/// Returns the span of a filter given by its name (if unique), its mark, or its number among the
/// filters of that name (`count:2`).
fn find_filter(request: &Request, wanted: &str) -> Result<Span, InvalidEdit> {
    let (name, number) = match wanted.rsplit_once(':') {
        Some((name, number)) => (name, number.parse::<usize>().ok()),
        None => (wanted, None),
    };
    let (name, mark) = match name.split_once('#') {
        Some((name, mark)) => (name, Some(mark)),
        None => (name, None),
    };
    let marked = |node: &FilterTerm| node.mark.as_ref().map(|mark| mark.text.clone());
    let is = |node: &&FilterTerm| {
        (name.is_empty() || node.name.text == name)
            && mark.is_none_or(|mark| marked(node).as_deref() == Some(mark))
    };
    let found: Vec<&FilterTerm> = filters(request).filter(is).collect();
    let node = match (found.as_slice(), number) {
        ([], _) => {
            let shared = filters(request).find_map(|node| terms::with_filter(node, name));
            let why = shared.map_or_else(String::new, |prefix| {
                format!(
                    ": it runs in the shared prefix `{prefix}`, for every request that begins so; \
                     start this one with `--prefix=private` to change it for this one alone"
                )
            });
            return Err(InvalidEdit(format!("the request has no `{wanted}`{why}")));
        }
        ([one], None) => one,
        (all, Some(number)) if (1..=all.len()).contains(&number) => all[number - 1],
        (all, _) => {
            let (many, last) = (all.len(), all.len());
            let what = format!("the request has {many} of `{name}`: write `{name}:1` to `:{last}`");
            return Err(InvalidEdit(what));
        }
    };
    let mark = marked(node);
    if mark.is_some() && filters(request).filter(|other| marked(other) == mark).count() > 1 {
        let why = "has the same mark in several places: give the whole new request";
        return Err(InvalidEdit(format!("`{wanted}` {why}")));
    }
    Ok(node.span)
}

#[cfg(test)]
mod tests;
