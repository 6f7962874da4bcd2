//! Translation of directories to the syntax of edits (`streamline set`): nodes, their outputs, and
//! their parents.

use super::Refusal;
use crate::entries::{DirectoryObject, ObjectKey};
use crate::names::escape;
use crate::protocol::errno;
use crate::tree::{Child, Directory, DirectoryId, NodeIndex, Tree};
use streamline::paths::{NodeDetails, PathView};

/// Name of the sink that receives the blocks of an output to which no filter is connected.
const PLACEHOLDER: &str = "discard";

/// The output of a node, or one class of this output, as a place to which filters can be connected.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(super) struct NodeOutput {
    /// The node that emits the output.
    pub(super) node: NodeIndex,
    /// Name of the output in edit commands: `NODE` or `NODE/CLASS`.
    pub(super) words: String,
}

impl Tree {
    /// Returns the path from the root to an object, for messages. For a file or a link, this is the
    /// path of its directory.
    #[must_use]
    pub fn path_from_root(&self, key: &ObjectKey) -> String {
        let mut names = Vec::new();
        let (mut place, mut last) = (key.place.clone(), None);
        if let DirectoryId::Class(path, node, class) = &key.place
            && self.directory(&key.place).is_none()
        {
            last = Some(escape(class));
            place = DirectoryId::Node(*path, node.clone());
        }
        let mut at = self.directory(&place);
        while let Some(directory) = at.filter(|directory| directory.place != DirectoryId::Root) {
            names.push(directory.name.clone());
            at = self.directories.get(directory.parent);
        }
        names.reverse();
        names.extend(last);
        names.extend(match &key.part {
            DirectoryObject::Config => Some("config".to_owned()),
            DirectoryObject::Stats => Some("stats".to_owned()),
            DirectoryObject::Dropped => Some("stats/dropped".to_owned()),
            DirectoryObject::State => Some("state".to_owned()),
            DirectoryObject::Streams => Some(".streams".to_owned()),
            _ => None,
        });
        names.extend(match &key.place {
            DirectoryId::Filters => Some(".filters".to_owned()),
            DirectoryId::Machine | DirectoryId::Interface(_) => Some(".machine".to_owned()),
            _ => None,
        });
        names.join("/")
    }

    /// Returns the path to which the node `member` belongs, as the snapshot contains it.
    pub(super) fn path_view(&self, member: NodeIndex) -> Result<&PathView, Refusal> {
        self.paths.get(member.path).ok_or_else(Refusal::object_removed)
    }

    /// Returns the details of the node `member`.
    pub(super) fn details_of_node(&self, member: NodeIndex) -> Result<&NodeDetails, Refusal> {
        self.node(member).ok_or_else(Refusal::object_removed)
    }

    /// Returns the only node that a directory represents. Fails with EBUSY if the directory
    /// represents nodes of several paths.
    pub(super) fn only_member(&self, directory: &Directory) -> Result<NodeIndex, Refusal> {
        match directory.members.as_slice() {
            [] => Err(Refusal::object_removed()),
            [one] => Ok(*one),
            all => {
                let path = |member: &NodeIndex| {
                    let path = &self.paths.get(member.path)?.path;
                    let name = path.name.as_ref();
                    let number = path.number;
                    Some(name.map_or_else(|| number.to_string(), |name| format!("{number} {name}")))
                };
                let paths: Vec<String> = all.iter().filter_map(path).collect();
                let why = format!(
                    "paths {} begin alike and are shown as one: `streamline set PATH …` edits one \
                     of them",
                    paths.join(", ")
                );
                Err(Refusal::new(errno::EBUSY, why))
            }
        }
    }

    /// Returns the node output that a directory represents. Fails if the directory represents none.
    pub(super) fn output(&self, key: &ObjectKey) -> Result<NodeOutput, Refusal> {
        if key.part != DirectoryObject::Whole {
            let why = "it is a view of a filter, and contains no filters";
            return Err(Refusal::new(errno::EPERM, why));
        }
        let (node, class) = match &key.place {
            DirectoryId::Node(..) => (key.place.clone(), None),
            DirectoryId::Class(path, node, class) => {
                (DirectoryId::Node(*path, node.clone()), Some(class))
            }
            DirectoryId::Path(_) => {
                let directory = self.directory(&key.place).ok_or_else(Refusal::object_removed)?;
                if directory.members.is_empty() {
                    let why = "it is a path, which contains sources, and not a filter: name a \
                               directory below it";
                    return Err(Refusal::new(errno::EINVAL, why));
                }
                (key.place.clone(), None)
            }
            _ => return Err(Refusal::new(errno::EPERM, "there is no filter here")),
        };
        let directory = self.directory(&node).ok_or_else(Refusal::object_removed)?;
        let node = self.only_member(directory)?;
        let name = &self.details_of_node(node)?.name;
        let words = class.map_or_else(|| name.clone(), |class| format!("{name}/{class}"));
        Ok(NodeOutput { node, words })
    }

    /// Returns the directories on the path from the root to a directory, including the directory
    /// itself. The directory of a class that no arc carries is accepted, although it is not in the
    /// tree.
    fn ancestor_keys(&self, key: &ObjectKey) -> Vec<ObjectKey> {
        let mut way = Vec::new();
        let mut place = key.place.clone();
        if let DirectoryId::Class(path, node, _) = &key.place
            && self.directory(&key.place).is_none()
        {
            way.push(key.clone());
            place = DirectoryId::Node(*path, node.clone());
        }
        let mut at = self.directory(&place);
        while let Some(directory) = at {
            way.push(ObjectKey::directory(directory.place.clone()));
            let is_root = directory.place == DirectoryId::Root;
            at = self.directories.get(directory.parent).filter(|_| !is_root);
        }
        way.reverse();
        way
    }

    /// Resolves the target of a symbolic link in the directory `from`. Returns `None` if the target
    /// does not exist.
    pub(super) fn resolve(&self, from: &ObjectKey, target: &str) -> Option<ObjectKey> {
        let mut way = self.ancestor_keys(from);
        for name in target.split('/').filter(|name| !name.is_empty() && *name != ".") {
            if name == ".." {
                if way.len() > 1 {
                    way.pop();
                }
                continue;
            }
            let here = way.last()?.clone();
            let next = self.lookup(&here, name, &[])?;
            match &next.part {
                // Links to nodes are followed.
                DirectoryObject::Link(_) => {
                    let target = self.link_target(&next)?;
                    let there = self.resolve(&here, &target)?;
                    way = self.ancestor_keys(&there);
                    if there.part != DirectoryObject::Whole {
                        way.push(there);
                    }
                }
                _ => way.push(next),
            }
        }
        way.pop()
    }

    /// Returns true if no filter is connected to the output that a directory represents: the
    /// directory is not in the tree, or contains only the placeholder sink.
    pub(super) fn has_no_filters(&self, place: &DirectoryId) -> bool {
        let Some(directory) = self.directory(place) else { return true };
        directory.children.iter().all(|(_, child)| match child {
            Child::Directory(at) => self.directories.get(*at).is_some_and(|below| {
                let class = matches!(below.place, DirectoryId::Class(..));
                self.is_placeholder(below) || class && self.has_no_filters(&below.place)
            }),
            Child::Link(_) => false,
        })
    }

    /// Returns true if a directory represents a placeholder sink, which terminates an output
    /// without filters.
    pub(super) fn is_placeholder(&self, directory: &Directory) -> bool {
        matches!(directory.place, DirectoryId::Node(..))
            && self.first_node(directory).is_some_and(|(_, node)| {
                node.filter == PLACEHOLDER && node.arguments.iter().all(|one| !one.given)
            })
    }

    /// Returns the number of arcs that lead to a node, not counting back edges.
    pub(super) fn count_parents(&self, member: NodeIndex) -> usize {
        let nodes = self.paths.get(member.path).map_or(&[][..], |view| &view.nodes);
        let arcs = nodes.iter().flat_map(|node| &node.arcs);
        arcs.filter(|arc| arc.to == member.node && !arc.back).count()
    }

    /// Returns the number of sources of a path: nodes to which no arc leads, except back edges.
    /// Operands, and sinks that the request does not contain, are not counted.
    pub(super) fn count_sources(&self, path: usize) -> usize {
        let nodes = self.paths.get(path).map_or(&[][..], |view| &view.nodes);
        let is_head = |node: &usize| {
            let member = NodeIndex { path, node: *node };
            let details = nodes.get(*node);
            let is_listed = details.is_some_and(|one| one.inside.is_none() && !one.implied);
            is_listed && self.count_parents(member) == 0
        };
        (0..nodes.len()).filter(is_head).count()
    }

    /// Returns the parent of a directory. Fails with ENOENT if the tree does not contain the
    /// parent.
    pub(super) fn parent(&self, directory: &Directory) -> Result<&Directory, Refusal> {
        self.directories.get(directory.parent).ok_or_else(Refusal::object_removed)
    }
}
