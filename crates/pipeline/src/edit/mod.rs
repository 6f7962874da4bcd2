//! Edits of a request. An edit maps the old text to a new text, and reports the origin of each
//! filter in the new text.
//!
//! An edit changes the syntax tree, and the new text is the printed tree. Filters that are not
//! edited therefore stay the same, and a running path can preserve their state. The new text is not
//! checked here. [Th §5.4]
//!
//! - `kinds`: the edits and their results; `words`: an edit as command-line words;
//! - `find`: lookup of filters by name, mark or number; `origins`: the origin in the old text of
//!   each filter in the new text;
//! - `tree`: operations on the tree;
//! - `place`: edits of one filter;
//! - `argument`: assignments to arguments;
//! - `replacement`: replacement of the entire text;
//! - `sequence`: several edits as one change;
//! - `arcs`: edits of arcs, which attach, sever, join and remove subtrees; `cut`, `attach`,
//!   `classes`, `remove` and `marks` are their operations on the tree.

mod arcs;
mod argument;
mod attach;
mod classes;
mod cut;
mod filter_edit;
mod find;
mod kinds;
mod marks;
mod origins;
mod remove;
mod replacement;
mod sequence;
mod tree;
mod words;

use crate::check::read_native_request;
use crate::graph::Graph;
use crate::language::{Diagnostic, Request};
use crate::prefix::terms;
use crate::registry::Registry;
use replacement::replace_text;
use tree::filters;

pub use arcs::extract_subtree;
pub use find::filter_span;
pub use kinds::{Edit, EditResult, InvalidEdit, NodeOutput, PathMove, Position, Subtree};
pub use tree::{differ_only_in_arguments, single_filter_name};
pub(crate) use tree::{for_each_filter, join_with_pipe, parse_filter, parse_tree, replace_filter};

/// The graph and the diagnostics of a text.
type GraphAndDiagnostics = (Graph, Vec<Diagnostic>);

impl Edit {
    /// Returns a copy of the edit in which parameters that the user has not set have the values
    /// that this machine supplies now. Repeating the copy later thus has the same effect.
    #[must_use]
    pub fn resolve_unset_parameters(&self, registry: &dyn Registry) -> Self {
        let resolve = |text: &str| match may_have_unset_parameters(text, registry) {
            true => read_native_request(text, registry).0.text.as_ref().to_owned(),
            false => text.to_owned(),
        };
        match self.clone() {
            Self::Insert { filter, place, node } => {
                Self::Insert { filter: resolve(&filter), place, node }
            }
            Self::Replace { node, filter } => Self::Replace { node, filter: resolve(&filter) },
            Self::Add { filter, below } => Self::Add { filter: resolve(&filter), below },
            Self::ReplaceText(text) => Self::ReplaceText(resolve(&text)),
            Self::Sequence(edits) => Self::Sequence(
                edits.iter().map(|edit| edit.resolve_unset_parameters(registry)).collect(),
            ),
            other => other,
        }
    }

    /// Fails if other requests share filters of this request, because the edit would change their
    /// results. Moves between spaces and restarts (`upgrade`) are permitted, because they change no
    /// results.
    fn check_unshared(&self, request: &Request) -> Result<(), InvalidEdit> {
        let moves = matches!(self, Self::Move { .. } | Self::Upgrade { .. });
        match filters(request).find_map(terms::offered_prefix).filter(|_| !moves) {
            Some(prefix) => Err(InvalidEdit(format!(
                "it runs `{prefix}` for other requests, which none of them has asked to change; \
                 start the request to be changed with `--prefix=private`"
            ))),
            None => Ok(()),
        }
    }

    /// Applies the edit to the text of a request. Fails if the text or the new filter has syntax
    /// errors, if a node does not exist or is ambiguous, if nothing would remain, if an argument is
    /// not writable, or if the result would not be a valid graph (for example, if a node would be
    /// below itself or have no parent).
    pub fn apply(&self, text: &str, registry: &dyn Registry) -> Result<EditResult, InvalidEdit> {
        self.apply_and_read((text, None), registry).map(|(edited, _)| edited)
    }

    /// Applies the edit like [`apply`](Self::apply). `before` is the graph that
    /// [`read_request`](crate::read_request) has returned for `text`, if the caller has it. Also
    /// returns the result of `read_request` for the new text, or `None` if applying the edit did
    /// not need it.
    pub fn apply_and_read(
        &self,
        (text, before): (&str, Option<&Graph>),
        registry: &dyn Registry,
    ) -> Result<(EditResult, Option<GraphAndDiagnostics>), InvalidEdit> {
        let unread = |edited| (edited, None);
        if let Self::Sequence(edits) = self {
            return sequence::apply_edits(edits, text, registry).map(unread);
        }
        let request = parse_tree(text, "the running request")?;
        self.check_unshared(&request)?;
        match self {
            Self::Sequence(_) => Err(InvalidEdit("it is several edits".to_owned())),
            Self::ReplaceText(new) => replace_text(&request, new).map(unread),
            Self::Add { .. }
            | Self::RemoveBelow { .. }
            | Self::Reattach { .. }
            | Self::Join { .. }
            | Self::Sever { .. } => arcs::apply_arc_edit(self, (text, before), request, registry),
            Self::Insert { node, .. }
            | Self::Remove { node }
            | Self::Replace { node, .. }
            | Self::Move { node, .. }
            | Self::Upgrade { node }
            | Self::SetArguments { node, .. } => {
                filter_edit::apply_term_edit(self, node, request, registry).map(unread)
            }
        }
    }
}

/// Returns true if some filter of a text may obtain parameters from the machine, or if the text has
/// syntax errors.
fn may_have_unset_parameters(text: &str, registry: &dyn Registry) -> bool {
    let Ok(request) = parse_tree(text, "") else { return true };
    filters(&request).map(|node| node.name.text.as_str()).any(|name| {
        let entries = [registry.find(name), registry.find_source(name), registry.find_filter(name)];
        entries.into_iter().flatten().any(|entry| entry.analysis.fix_parameter.is_some())
    })
}

#[cfg(test)]
mod tests;
