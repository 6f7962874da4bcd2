//! Conversions between the identities of a node's directory and of the directories of its classes.

use super::DirectoryId;

impl DirectoryId {
    /// Returns the directory of the node to which the directory of a class belongs; any other
    /// directory is returned unchanged.
    #[must_use]
    pub fn node(&self) -> Self {
        match self {
            Self::Class(path, node, _) => Self::Node(*path, node.clone()),
            place => place.clone(),
        }
    }

    /// Returns the class that the directory represents; empty if it represents none.
    #[must_use]
    pub fn class(&self) -> &str {
        match self {
            Self::Class(_, _, class) => class,
            _ => "",
        }
    }

    /// Returns the identity of this directory after its node has become `node`.
    #[must_use]
    pub fn moved_to_node(&self, node: &Self) -> Self {
        match (self, node) {
            (Self::Class(_, _, class), Self::Node(path, node)) => {
                Self::Class(*path, node.clone(), class.clone())
            }
            (_, node) => node.clone(),
        }
    }
}
