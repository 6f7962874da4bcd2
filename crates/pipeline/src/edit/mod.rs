//! Edits of a request: what is to be different in a line, as the line that says so.
//!
//! In: the text of a request and an edit. Out: the new text, and for every filter of it which one
//! of the old text it is. An edit works on the tree, and the new text is what the tree prints; so
//! what was not named stays what it is, and a path that runs the old text can keep what it has.
//! Whether the new text makes sense, the checks say. [Th §5.4]
//!
//! - `tree`: what is done to the tree;
//! - `whole`: another text, and what of the old one stays in it.

mod tree;
mod whole;

use crate::catalogue::Catalogue;
use crate::check;
use crate::language::tree::{FilterTerm, Term};
use crate::language::{Request, Span};
use std::fmt;
use tree::{FIRST, KERNEL, PROCESS, beside, elsewhere, leave_kernel, nodes};
use whole::whole;

pub(crate) use tree::{chain, each, fragment, tree, walk};

/// A change to a request.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Edit {
    /// Puts a filter, or several joined by pipes, before, behind or beside another one.
    Insert {
        /// The new filter, as a request writes it.
        filter: String,
        /// The position relative to the node.
        place: Position,
        /// At which filter.
        node: String,
    },
    /// Takes a filter out; a branch that has nothing else goes too.
    Remove {
        /// The node to remove.
        node: String,
    },
    /// Puts another filter in the place of one.
    Replace {
        /// The node to replace.
        node: String,
        /// The new filter, as a request writes it.
        filter: String,
    },
    /// Has a filter run in another space.
    Move {
        /// The node to move.
        node: String,
        /// The space to move it to.
        space: String,
    },
    /// Makes a filter anew, and gives it what the old one knows.
    Upgrade {
        /// The node to upgrade.
        node: String,
    },
    /// Another text: what of the old one stands in the new one stays, in this order.
    Whole(String),
}

/// A position relative to a node.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Position {
    /// On the way to the node.
    Before,
    /// On the way from the node.
    After,
    /// It gets a copy of what the filter gives, on a branch of its own.
    At,
}

impl Position {
    const ALL: [Self; 3] = [Self::Before, Self::After, Self::At];

    /// The word for it.
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
        f.write_str(&self.words().join(" "))
    }
}

/// A request that cannot be edited so, with the reason.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Misfit(pub String);

impl fmt::Display for Misfit {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

impl std::error::Error for Misfit {}

/// A request after an edit.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Edited {
    /// The new text.
    pub text: String,
    /// For every filter of the new text where it stands, and where the old text has it; `None`: it
    /// is new.
    pub filters: Vec<(Span, Option<Span>)>,
    /// The filter of the new text that is to be made anew with what the old one knows.
    pub upgraded: Option<Span>,
}

/// The syntax of edits.
const USAGE: &str = "write `insert FILTER before|after|at NODE`, `remove NODE`, \
     `replace NODE with FILTER`, `move NODE kernel|process|sandbox|SPACE`, `upgrade NODE` or \
     `pin SPACE PROCESSOR|any`";

impl Edit {
    /// Reads an edit as it is written at a command line. A filter may be several words.
    pub fn parse<W: AsRef<str>>(words: &[W]) -> Result<Self, Misfit> {
        let words: Vec<&str> = words.iter().map(AsRef::as_ref).collect();
        let said = |node: &str| node.to_owned();
        Ok(match words.as_slice() {
            ["insert", filter @ .., place, node] if !filter.is_empty() => {
                let known = Position::ALL.into_iter().find(|known| known.name() == *place);
                let place = known.ok_or_else(|| Misfit(USAGE.to_owned()))?;
                Self::Insert { filter: filter.join(" "), place, node: said(node) }
            }
            ["remove", node] => Self::Remove { node: said(node) },
            ["replace", node, "with", filter @ ..] if !filter.is_empty() => {
                Self::Replace { node: said(node), filter: filter.join(" ") }
            }
            ["move", node, "to", space] | ["move", node, space] => {
                let space = if *space == PROCESS { FIRST } else { space };
                Self::Move { node: said(node), space: said(space) }
            }
            ["upgrade", node] => Self::Upgrade { node: said(node) },
            _ => return Err(Misfit(USAGE.to_owned())),
        })
    }

    /// The words that [`Edit::parse`] reads as this edit; of a whole text, the text.
    #[must_use]
    pub fn words(&self) -> Vec<String> {
        let words: &[&str] = match self {
            Self::Insert { filter, place, node } => &["insert", filter, place.name(), node],
            Self::Remove { node } => &["remove", node],
            Self::Replace { node, filter } => &["replace", node, "with", filter],
            Self::Move { node, space } => &["move", node, "to", space],
            Self::Upgrade { node } => &["upgrade", node],
            Self::Whole(text) => &[text],
        };
        words.iter().map(|word| (*word).to_owned()).collect()
    }

    /// The same edit, with what the filters in it ask of the machine written into it, so that it
    /// means the same when it is made again.
    #[must_use]
    pub fn settled(&self, catalogue: &dyn Catalogue) -> Self {
        let settled = |text: &str| check::read(text, catalogue).0.text.as_ref().to_owned();
        match self.clone() {
            Self::Insert { filter, place, node } => {
                Self::Insert { filter: settled(&filter), place, node }
            }
            Self::Replace { node, filter } => Self::Replace { node, filter: settled(&filter) },
            Self::Whole(text) => Self::Whole(settled(&text)),
            other => other,
        }
    }

    /// The request that is wanted instead of this one.
    pub fn apply(&self, text: &str) -> Result<Edited, Misfit> {
        let mut request = tree(text, "the running request")?;
        let old: Vec<Span> = nodes(&request).map(|node| node.span).collect();
        if let Self::Whole(new) = self {
            return whole(&request, new);
        }
        let node = match self {
            Self::Insert { node, .. } | Self::Remove { node } | Self::Replace { node, .. } => node,
            Self::Move { node, .. } | Self::Upgrade { node } => node,
            Self::Whole(_) => return Err(Misfit(USAGE.to_owned())),
        };
        let at = find(&request, node)?;
        let mut act: Box<dyn FnMut(Term) -> Option<Term>> = match self {
            Self::Insert { filter, place: Position::After, .. } => {
                let filter = fragment(filter)?;
                Box::new(move |term| Some(chain(term, filter.clone())))
            }
            Self::Insert { filter, place: Position::Before, .. } => {
                let filter = fragment(filter)?;
                Box::new(move |term| Some(chain(filter.clone(), term)))
            }
            Self::Insert { filter, place: Position::At, .. } => {
                beside(&mut request, at, &fragment(filter)?)?;
                Box::new(Some)
            }
            Self::Replace { filter, .. } => {
                let filter = fragment(filter)?;
                Box::new(move |_| Some(filter.clone()))
            }
            Self::Move { space, .. } => {
                if space != KERNEL {
                    leave_kernel(&mut request, at);
                }
                Box::new(move |term| match term {
                    Term::Filter(node) => Some(Term::Filter(elsewhere(node, space))),
                    other => Some(other),
                })
            }
            Self::Remove { .. } => Box::new(|_| None),
            Self::Upgrade { .. } | Self::Whole(_) => Box::new(Some),
        };
        let pipelines = std::mem::take(&mut request.pipelines).into_iter();
        request.pipelines = pipelines.filter_map(|term| walk(term, at, &mut *act)).collect();
        if request.pipelines.is_empty() {
            return Err(Misfit(format!("without `{node}` nothing is left")));
        }
        let origins: Vec<Option<Span>> = nodes(&request)
            .map(|node| old.iter().copied().find(|span| *span == node.span))
            .collect();
        let mut edited = printed(&request, &origins)?;
        if matches!(self, Self::Upgrade { .. }) {
            let new = edited.filters.iter().find(|(_, old)| *old == Some(at));
            edited.upgraded = new.map(|(span, _)| *span);
        }
        Ok(edited)
    }
}

/// Finds a node of a request by its name, mark or number, as edits write it.
pub fn place(text: &str, node: &str) -> Result<Span, Misfit> {
    find(&tree(text, "the running request")?, node)
}

/// The text of a tree, and which filter of it is which.
fn printed(request: &Request, origins: &[Option<Span>]) -> Result<Edited, Misfit> {
    // The tree that was put together need not be in normal form; what is read is.
    let text = tree(&request.to_string(), "the new request")?.to_string();
    let again = tree(&text, "the new request")?;
    let filters: Vec<_> =
        nodes(&again).map(|node| node.span).zip(origins.iter().copied()).collect();
    debug_assert_eq!(nodes(&again).count(), origins.len(), "printing keeps filters in order");
    Ok(Edited { text, filters, upgraded: None })
}

/// The place of the filter that is meant: by its name if that is the only one, by its mark, or by
/// its number among those of the name (`count:2`).
fn find(request: &Request, wanted: &str) -> Result<Span, Misfit> {
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
    let found: Vec<&FilterTerm> = nodes(request).filter(is).collect();
    let node = match (found.as_slice(), number) {
        ([], _) => return Err(Misfit(format!("the request has no `{wanted}`"))),
        ([one], None) => one,
        (all, Some(number)) if (1..=all.len()).contains(&number) => all[number - 1],
        (all, _) => {
            let (many, last) = (all.len(), all.len());
            let what = format!("the request has {many} of `{name}`: say `{name}:1` to `:{last}`");
            return Err(Misfit(what));
        }
    };
    let mark = marked(node);
    if mark.is_some() && nodes(request).filter(|other| marked(other) == mark).count() > 1 {
        let why = "stands in several places by its mark: say the whole new line";
        return Err(Misfit(format!("`{wanted}` {why}")));
    }
    Ok(node.span)
}

#[cfg(test)]
mod tests;
