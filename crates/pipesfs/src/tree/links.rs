//! Symbolic links for the arcs that the nesting of directories cannot represent: arcs from
//! additional parents, and back edges.

use super::{Child, NodeIndex, Parents, Tree, node_id_or_index, node_name};

impl Tree {
    /// Adds a symbolic link for each arc whose downstream node does not have its directory below
    /// the node at which the arc begins.
    pub(super) fn add_links(&mut self, parents: &[Parents]) {
        for path in 0..self.paths.len() {
            for node in 0..self.paths[path].nodes.len() {
                for arc in 0..self.paths[path].nodes[node].arcs.len() {
                    self.add_link((NodeIndex { path, node }, arc), parents);
                }
            }
        }
    }

    fn add_link(&mut self, (from, arc): (NodeIndex, usize), parents: &[Parents]) -> Option<()> {
        let arc_details = self.node(from)?.arcs.get(arc)?;
        if *parents[from.path].get(arc_details.to)? == Some((from.node, arc)) {
            return None;
        }
        let arc_details = arc_details.clone();
        let to = NodeIndex { path: from.path, node: arc_details.to };
        let (here, there) = (self.directory_of(from)?, self.directory_of(to)?);
        let here = match arc_details.classes.is_empty() {
            true => here,
            false => self.ensure_class_directory(here, &arc_details.classes),
        };
        let target = self.relative_path(here, there);
        let again = Child::Link(target.clone());
        if self.directories[here].children.iter().any(|(_, child)| *child == again) {
            return None;
        }
        let node = self.node(to)?;
        let (name, number) = (node_name(node), node_id_or_index(node, to));
        let name = self.unused_name(here, name, number);
        self.directories[here].add_child(name, Child::Link(target));
        Some(())
    }

    /// Returns the relative path from one directory to another.
    fn relative_path(&self, from: usize, to: usize) -> String {
        let (from, to) = (self.ancestors(from), self.ancestors(to));
        let common = from.iter().zip(&to).take_while(|(one, other)| one == other).count();
        let up = std::iter::repeat_n("..", from.len() - common);
        let down = to[common..].iter().map(|at| self.directories[*at].name.as_str());
        Vec::from_iter(up.chain(down)).join("/")
    }

    /// Returns the indexes of the directories on the path from the root to this directory,
    /// excluding the root.
    fn ancestors(&self, mut at: usize) -> Vec<usize> {
        let mut path = Vec::new();
        while at != 0 {
            path.push(at);
            at = self.directories[at].parent;
        }
        path.reverse();
        path
    }
}
