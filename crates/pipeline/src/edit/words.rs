//! Conversion of command-line words to edits, and back.

use super::kinds::{Edit, InvalidEdit, NodeOutput, PathMove, Position};
use super::tree::{FIRST_THREAD, PROCESS_KEYWORD};
use std::fmt;

/// The usage message for edits.
pub(super) const EDIT_USAGE: &str = "write `insert FILTER before|after|at NODE`, `remove NODE`, \
     `replace NODE with FILTER`, `move NODE kernel|process|sandbox|SPACE`, `upgrade NODE`, \
     `arg NODE NAME=VALUE` or `pin SPACE PROCESSOR|any`; for the arcs of the graph \
     `add FILTER below NODE[/CLASS]`, `add SOURCE`, `remove NODE leaf|all`, \
     `move NODE [from NODE[/CLASS]|into PATH] below NODE[/CLASS]`, \
     `join NODE below NODE[/CLASS]` or `sever NODE from NODE[/CLASS]`; with ` , ` between them \
     several edits are one change";

/// The keyword that precedes the new parent of a node.
const BELOW_KEYWORD: &str = "below";
/// The keyword that makes `remove` fail if there are nodes below the node to remove.
const LEAF_KEYWORD: &str = "leaf";
/// The keyword that makes `remove` also remove everything below the node.
const ALL_KEYWORD: &str = "all";

/// The word that separates the edits of one change.
const EDIT_SEPARATOR: &str = ",";

impl Edit {
    /// Parses an edit from command-line words, or several edits separated by the word `,`. A filter
    /// may span several words.
    pub fn parse<W: AsRef<str>>(words: &[W]) -> Result<Self, InvalidEdit> {
        let words: Vec<&str> = words.iter().map(AsRef::as_ref).collect();
        match words.split(|word| *word == EDIT_SEPARATOR).collect::<Vec<_>>().as_slice() {
            [_] => Self::parse_single_edit(&words),
            all => all
                .iter()
                .map(|edit| Self::parse_single_edit(edit))
                .collect::<Result<_, _>>()
                .map(Self::Sequence),
        }
    }

    fn parse_single_edit(words: &[&str]) -> Result<Self, InvalidEdit> {
        let owned = |node: &str| node.to_owned();
        Ok(match words {
            ["insert", filter @ .., place, node] if !filter.is_empty() => {
                let known = Position::ALL.into_iter().find(|known| known.name() == *place);
                let place = known.ok_or_else(|| InvalidEdit(EDIT_USAGE.to_owned()))?;
                Self::Insert { filter: filter.join(" "), place, node: owned(node) }
            }
            ["add", filter @ .., BELOW_KEYWORD, output] if !filter.is_empty() => {
                Self::Add { filter: filter.join(" "), below: Some(NodeOutput::parse(output)) }
            }
            ["add", filter @ ..] if !filter.is_empty() => {
                Self::Add { filter: filter.join(" "), below: None }
            }
            ["remove", node, what] if [LEAF_KEYWORD, ALL_KEYWORD].contains(what) => {
                Self::RemoveBelow { node: owned(node), all: *what == ALL_KEYWORD }
            }
            ["move", node, BELOW_KEYWORD, output] => {
                Self::Reattach { node: owned(node), from: None, below: NodeOutput::parse(output) }
            }
            ["move", node, "from", from, BELOW_KEYWORD, output] => Self::Reattach {
                node: owned(node),
                from: Some(NodeOutput::parse(from)),
                below: NodeOutput::parse(output),
            },
            ["join", node, BELOW_KEYWORD, output] => {
                Self::Join { node: owned(node), below: NodeOutput::parse(output) }
            }
            ["sever", node, "from", output] => {
                Self::Sever { node: owned(node), from: NodeOutput::parse(output) }
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
                Self::SetArguments { node: owned(node), arguments: arguments.join(" ") }
            }
            _ => return Err(InvalidEdit(EDIT_USAGE.to_owned())),
        })
    }

    /// Returns the words that [`Edit::parse`] accepts for this edit; for [`Edit::ReplaceText`],
    /// returns the text.
    #[must_use]
    pub fn to_words(&self) -> Vec<String> {
        let (parent, output);
        let words: &[&str] = match self {
            Self::Insert { filter, place, node } => &["insert", filter, place.name(), node],
            Self::Remove { node } => &["remove", node],
            Self::Replace { node, filter } => &["replace", node, "with", filter],
            Self::Move { node, space } => &["move", node, "to", space],
            Self::Upgrade { node } => &["upgrade", node],
            Self::SetArguments { node, arguments } => &["arg", node, arguments],
            Self::Add { filter, below: None } => &["add", filter],
            Self::Add { filter, below: Some(below) } => {
                output = below.to_string();
                &["add", filter, BELOW_KEYWORD, &output]
            }
            Self::RemoveBelow { node, all } => {
                &["remove", node, if *all { ALL_KEYWORD } else { LEAF_KEYWORD }]
            }
            Self::Reattach { node, from: None, below } => {
                output = below.to_string();
                &["move", node, BELOW_KEYWORD, &output]
            }
            Self::Reattach { node, from: Some(from), below } => {
                (parent, output) = (from.to_string(), below.to_string());
                &["move", node, "from", &parent, BELOW_KEYWORD, &output]
            }
            Self::Join { node, below } => {
                output = below.to_string();
                &["join", node, BELOW_KEYWORD, &output]
            }
            Self::Sever { node, from } => {
                output = from.to_string();
                &["sever", node, "from", &output]
            }
            Self::ReplaceText(text) => &[text],
            Self::Sequence(edits) => {
                let words: Vec<Vec<String>> = edits.iter().map(Self::to_words).collect();
                return words.join(&EDIT_SEPARATOR.to_owned());
            }
        };
        words.iter().map(|word| (*word).to_owned()).collect()
    }
}

impl PathMove {
    /// Parses `move NODE into PATH below NODE[/CLASS]`. Returns `None` for other edits.
    pub fn parse<W: AsRef<str>>(words: &[W]) -> Option<Self> {
        let words: Vec<&str> = words.iter().map(AsRef::as_ref).collect();
        let ["move", node, "into", path, BELOW_KEYWORD, output] = words.as_slice() else {
            return None;
        };
        let (node, path) = ((*node).to_owned(), (*path).to_owned());
        Some(Self { node, path, below: NodeOutput::parse(output) })
    }

    /// Returns the words that [`PathMove::parse`] accepts for this move.
    #[must_use]
    pub fn to_words(&self) -> Vec<String> {
        let Self { node, path, below } = self;
        let words = ["move", node, "into", path, BELOW_KEYWORD, &below.to_string()];
        words.map(str::to_owned).to_vec()
    }
}

impl NodeOutput {
    /// Parses an output of a node, written as `NODE` or `NODE/CLASS`.
    #[must_use]
    pub fn parse(text: &str) -> Self {
        let (node, class) = match text.split_once('/') {
            Some((node, class)) => (node, Some(class.to_owned())),
            None => (text, None),
        };
        Self { node: node.to_owned(), class }
    }
}

impl fmt::Display for NodeOutput {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match &self.class {
            Some(class) => write!(f, "{}/{class}", self.node),
            None => f.write_str(&self.node),
        }
    }
}

impl fmt::Display for Edit {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.to_words().join(" "))
    }
}
