//! Relations between the places of a tree.

use super::DirectoryId;

impl DirectoryId {
    /// Returns the node to which a class belongs, or the place itself.
    #[must_use]
    pub fn node(&self) -> Self {
        match self {
            Self::Class(path, node, _) => Self::Node(*path, node.clone()),
            place => place.clone(),
        }
    }

    /// Returns the class of a directory of a class; empty for others.
    #[must_use]
    pub fn class(&self) -> &str {
        match self {
            Self::Class(_, _, class) => class,
            _ => "",
        }
    }

    /// Returns this place if its node were `node`.
    #[must_use]
    pub fn moved_to(&self, node: &Self) -> Self {
        match (self, node) {
            (Self::Class(_, _, class), Self::Node(path, node)) => {
                Self::Class(*path, node.clone(), class.clone())
            }
            (_, node) => node.clone(),
        }
    }
}
