//! Groups of equal nodes of several paths. Each group shares one directory.

use super::{NodeIndex, Tree};
use std::collections::HashMap;

/// A group of equal nodes of several paths, which share a directory.
pub(super) struct Group {
    pub(super) class: String,
    /// Position of each node of the group among the equal nodes of its path that have the same
    /// parent.
    ordinal: usize,
    pub(super) members: Vec<NodeIndex>,
}

/// The groups of equal nodes whose directories are below one directory.
#[derive(Default)]
pub(super) struct NodeGroups {
    pub(super) all: Vec<Group>,
    /// Indexes into `all` of the groups of each kind. The kind of a group is the class and the
    /// filter of its nodes.
    by_kind: HashMap<(String, String), Vec<usize>>,
}

impl NodeGroups {
    /// Adds a group that contains only the node `member`, without searching for a group of equal
    /// nodes. The caller must ensure that the nodes of all groups belong to the same path.
    pub(super) fn add(&mut self, class: String, member: NodeIndex) {
        self.all.push(Group { class, ordinal: 0, members: vec![member] });
    }
}

impl Tree {
    /// Adds the node `member` to a group of equal nodes of other paths of the same user, or to a
    /// new group if there is none.
    pub(super) fn join_group(&self, groups: &mut NodeGroups, class: &str, member: NodeIndex) {
        let filter = self.node(member).map_or("", |node| node.filter.as_str());
        // Only nodes with the same class and the same filter are compared, to avoid comparing all
        // pairs.
        let same_kind = groups.by_kind.entry((class.to_owned(), filter.to_owned())).or_default();
        let groups = &mut groups.all;
        let same = |group: &Group| {
            group.members.first().is_some_and(|one| self.are_equal_nodes(*one, member))
        };
        let of_path = |group: &Group| group.members.iter().any(|one| one.path == member.path);
        let equal: Vec<usize> = same_kind.iter().copied().filter(|at| same(&groups[*at])).collect();
        let ordinal = equal.iter().filter(|at| of_path(&groups[**at])).count();
        match equal.into_iter().find(|at| groups[*at].ordinal == ordinal) {
            Some(at) => groups[at].members.push(member),
            None => {
                same_kind.push(groups.len());
                groups.push(Group { class: class.to_owned(), ordinal, members: vec![member] });
            }
        }
    }

    /// Returns true if two nodes belong to one user and run the same filter with the same
    /// arguments.
    fn are_equal_nodes(&self, one: NodeIndex, other: NodeIndex) -> bool {
        let uid = |member: NodeIndex| self.paths[member.path].path.uid;
        let (Some(a), Some(b)) = (self.node(one), self.node(other)) else { return false };
        let section = a.filter.is_empty() && a.name != b.name;
        uid(one) == uid(other) && a.filter == b.filter && a.arguments == b.arguments && !section
    }
}
