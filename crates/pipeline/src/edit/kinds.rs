//! The edits of a request, and their results.

use crate::language::Span;
use std::fmt;

/// A change to a request, as accepted by `streamline set`.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Edit {
    /// Inserts a filter, or several filters joined by pipes, before, after or beside a node.
    Insert {
        /// The new filter, in the syntax of a request.
        filter: String,
        /// The position of the new filter relative to the node.
        place: Position,
        /// Name, mark or number of the node, such as `tcp`, `tcp#X` or `count:2`.
        node: String,
    },
    /// Removes a filter, and its branch if nothing else is in the branch.
    Remove {
        /// Name, mark or number of the node to remove.
        node: String,
    },
    /// Replaces a filter with another.
    Replace {
        /// Name, mark or number of the node to replace.
        node: String,
        /// The new filter, in the syntax of a request.
        filter: String,
    },
    /// Moves a filter to another space.
    Move {
        /// Name, mark or number of the node to move.
        node: String,
        /// Name of the space to which the filter moves.
        space: String,
    },
    /// Restarts a filter, which inherits the state of the old instance.
    Upgrade {
        /// Name, mark or number of the node whose filter is restarted.
        node: String,
    },
    /// Sets arguments of a filter without losing its state.
    SetArguments {
        /// Name, mark or number of the node whose arguments change.
        node: String,
        /// The new values, each as `NAME=VALUE`, in the syntax of a request.
        arguments: String,
    },
    /// Adds a filter, or several filters joined by pipes, and connects it to an output of a node,
    /// beside the existing branches. If no node is given, the new filters begin with a source,
    /// which becomes an additional source of the request.
    Add {
        /// The new filter, in the syntax of a request.
        filter: String,
        /// The output to which the filter is connected, or `None` if it begins with a source.
        below: Option<NodeOutput>,
    },
    /// Removes a node, and all nodes below it that have no other parent.
    RemoveBelow {
        /// Name, mark or number of the node to remove; with a class, as in `http/get`, only what is
        /// below that class.
        node: String,
        /// True to remove also the nodes below the node. If false, the edit is refused if the node
        /// has nodes below it.
        all: bool,
    },
    /// Disconnects a node from one parent, and attaches the node and everything below it to another
    /// node. Other parents remain, and filters keep their state and open taps.
    Reattach {
        /// The node to move. With a class, as in `http/get`, everything below that class moves. It
        /// is then attached to a new copy of the node's filter, which assigns the class at the new
        /// place.
        node: String,
        /// The parent to disconnect. Selects the first arc from this parent or, if a class is
        /// given, the arc with this label. `None` selects the parent of the node's first use in the
        /// text.
        from: Option<NodeOutput>,
        /// The output to which the node is attached.
        below: NodeOutput,
    },
    /// Connects a node to the output of another parent, in addition to its existing parents.
    Join {
        /// Name, mark or number of the node to connect to an additional parent.
        node: String,
        /// The output to which the node is connected.
        below: NodeOutput,
    },
    /// Disconnects a node from one of several parents.
    Sever {
        /// Name, mark or number of the node that loses a parent.
        node: String,
        /// The parent to disconnect. Selects all arcs from this parent or, if a class is given, the
        /// arcs with this label.
        from: NodeOutput,
    },
    /// Applies several edits as one change: all or none.
    Sequence(Vec<Self>),
    /// Replaces the entire text of the request. Filters that are equal and in the same order in
    /// both texts (their longest common subsequence) keep their state. Filters between them keep
    /// their state if their names are equal.
    ReplaceText(String),
}

/// An output of a node: the blocks of some classes that leave the node.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct NodeOutput {
    /// Name, mark or number of the node, such as `tcp`, `tcp#X` or `count:2`.
    pub node: String,
    /// The classes, as in a label without its pipe (`80`, `ssh:telnet`, `!80`, `all`), or `None`
    /// for all classes except 0, as over a plain pipe.
    pub class: Option<String>,
}

/// A position relative to a node.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Position {
    /// The new filter is inserted upstream of the node.
    Before,
    /// The new filter is inserted downstream of the node.
    After,
    /// The new filter is inserted beside the node's successors, on a new branch that receives a
    /// copy of the node's output.
    Beside,
}

impl Position {
    pub(super) const ALL: [Self; 3] = [Self::Before, Self::After, Self::Beside];

    /// Returns the keyword that denotes the position in an edit.
    pub(super) const fn name(self) -> &'static str {
        match self {
            Self::Before => "before",
            Self::After => "after",
            Self::Beside => "at",
        }
    }
}

/// The error in an invalid edit, as text.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct InvalidEdit(pub String);

impl fmt::Display for InvalidEdit {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

impl std::error::Error for InvalidEdit {}

/// The result of applying an edit.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct EditResult {
    /// Text of the request after the edit.
    pub text: String,
    /// The span of each filter in the new text, with the filter's span in the old text, or `None`
    /// for a new filter.
    pub filters: Vec<(Span, Option<Span>)>,
    /// The span in the new text of the filter that restarts and inherits its old state, or `None`
    /// if there is none.
    pub upgraded: Option<Span>,
}

/// A node of a request and all nodes below it, as text.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Subtree {
    /// The subtree in the syntax of a request.
    pub text: String,
    /// The spans of the subtree's filters in the text of the request, in the order of the subtree;
    /// `None` for a new filter.
    pub filters: Vec<Option<Span>>,
}

/// A move of a subtree to another path.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct PathMove {
    /// Name, mark or number of the node to move. With a class, as in `http/get`, everything below
    /// that class moves ([`Edit::Reattach`]).
    pub node: String,
    /// Name or number of the destination path.
    pub path: String,
    /// The output of the destination path to which the node is attached.
    pub below: NodeOutput,
}
