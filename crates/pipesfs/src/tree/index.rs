//! Lookup of a node's directory, and of the parents of a path's nodes.

use super::{NodeIndex, Parents, Tree, path_key};
use streamline::paths::PathView;

impl Tree {
    /// Finds a path in this tree by another view of the same path. Returns the view in this tree,
    /// with the parents of the path's nodes. Returns `None` if the tree does not contain the path.
    pub(super) fn path_with_parents(&self, path: &PathView) -> Option<(&PathView, &Parents)> {
        let key = path_key(path);
        self.paths.iter().zip(&self.parents).find(|(view, _)| path_key(view) == key)
    }

    /// Returns the index of the directory of the node `member`, or `None` if the node has no
    /// directory.
    pub(super) fn directory_of(&self, member: NodeIndex) -> Option<usize> {
        let at = *self.directory_of.get(member.path)?.get(member.node)?;
        (at > 0).then_some(at)
    }

    pub(super) fn set_directory_of(&mut self, member: NodeIndex, at: usize) {
        let nodes = self.directory_of.get_mut(member.path);
        if let Some(directory) = nodes.and_then(|nodes| nodes.get_mut(member.node)) {
            *directory = at;
        }
    }
}
