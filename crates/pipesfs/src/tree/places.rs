//! Conversions between the identity of a node's directory and the identities of its classes'
//! directories.

use super::DirectoryId;

impl DirectoryId {
    /// Returns the identity of the directory of a node. `self` is the identity of this directory,
    /// or of the directory of one of the node's classes. Any other identity is returned unchanged.
    #[must_use]
    pub fn without_class(&self) -> Self {
        match self {
            Self::Class(path, node, _) => Self::Node(*path, node.clone()),
            place => place.clone(),
        }
    }

    /// Returns the class that the directory represents, or an empty string if it does not represent
    /// a class.
    #[must_use]
    pub fn class(&self) -> &str {
        match self {
            Self::Class(_, _, class) => class,
            _ => "",
        }
    }

    /// Returns the new identity of a directory whose node has moved. `self` is the old identity of
    /// the directory of the node or of one of its classes. `node` is the new identity of the
    /// directory of the node.
    #[must_use]
    pub fn id_after_move(&self, node: &Self) -> Self {
        match (self, node) {
            (Self::Class(_, _, class), Self::Node(path, node)) => {
                Self::Class(*path, node.clone(), class.clone())
            }
            (_, node) => node.clone(),
        }
    }
}
