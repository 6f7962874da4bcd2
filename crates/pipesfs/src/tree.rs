//! The tree of directories, as a pure function of the running paths. A directory represents a node
//! of one path, or of several paths with equal beginnings. Nesting represents data flow: a node is
//! below its first parent, while its other parents and back edges are symbolic links. If an arc
//! carries classes, a directory for these classes is between the two nodes. [SL §4.1]
//!
//! The replies of paths are untrusted: their indexes are checked, each node gets only one
//! directory, and a node without a source upstream gets none.

mod groups;
mod index;
mod links;
mod parents;
mod places;
mod reserved;

use crate::names::{escape, filter_name, unused_name};
use groups::NodeGroups;
use parents::{Parents, first_parents, top_nodes};
pub(crate) use reserved::STREAM_ENTRIES;
use reserved::{NODE_ENTRIES, PATH_ENTRIES, ROOT_ENTRIES};
use std::collections::{HashMap, VecDeque};
use streamline::paths::{NodeDetails, PathView};

/// Identity of a path. The number is unique while the path runs; the start time distinguishes the
/// path from an earlier path of the same number.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub struct PathKey {
    /// The path's number in the daemon's registry.
    pub number: u32,
    /// Start time in seconds since 1970.
    pub started: u64,
}

/// Identity of a node within its path.
#[derive(Clone, PartialEq, Eq, Hash, Debug)]
pub enum NodeKey {
    /// The node's number, which stays the same when the request is edited.
    Number(u64),
    /// The unique name, for a node without a number.
    Name(String),
}

/// Identity of a directory of the tree. The identity stays the same as long as the directory's node
/// is running in the same path.
#[derive(Clone, PartialEq, Eq, Hash, Debug)]
pub enum DirectoryId {
    /// The root directory of the file system.
    Root,
    /// The directory with the manuals of all filters.
    Filters,
    /// The directory with the interfaces of the machine.
    Machine,
    /// An interface of the machine.
    Interface(String),
    /// The directory of a path that has a name.
    Path(PathKey),
    /// The directory of a node. If the directory represents equal nodes of several paths, the
    /// identity is that of the node in the path with the lowest number.
    Node(PathKey, NodeKey),
    /// The directory of a class of the blocks that leave a node.
    Class(PathKey, NodeKey, String),
}

/// A node of one path, as an index into [`Tree::paths`] and an index into the path's nodes.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub struct NodeIndex {
    /// Index of the path.
    pub path: usize,
    /// Index of the node among the nodes of the path.
    pub node: usize,
}

/// A child of a directory: a subdirectory or a link.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Child {
    /// A subdirectory, by its index.
    Directory(usize),
    /// A symbolic link with this target.
    Link(String),
}

/// A directory of the tree. Most directories represent a node, equal nodes, or a class of a node.
#[derive(Debug)]
pub struct Directory {
    /// Identity of the directory in the tree.
    pub place: DirectoryId,
    /// Name in the parent directory.
    pub name: String,
    /// Index of the parent directory; 0 for the root.
    pub parent: usize,
    /// User id of the owner of the directory's paths.
    pub uid: u32,
    /// Start time of the directory's first path, in seconds since 1970.
    pub started: u64,
    /// Nodes that the directory represents. For the directory of a class, these are the nodes of
    /// its parent.
    pub members: Vec<NodeIndex>,
    /// Subdirectories and links by name, in the order in which the request contains them.
    pub children: Vec<(String, Child)>,
    /// Index of each child in `children`, by name. Empty while there are at most
    /// [`SEARCHED_CHILDREN_MAX`] children.
    child_indices: HashMap<String, usize>,
    /// Names that no child may have, because fixed entries of the directory have them.
    reserved: &'static [&'static str],
}

/// Maximum number of children of a directory that are searched one by one; up to this number, the
/// search is faster than building an index.
const SEARCHED_CHILDREN_MAX: usize = 16;

impl Directory {
    /// Returns the directory or link with this name, or `None` if there is none.
    #[must_use]
    pub fn child(&self, name: &str) -> Option<&Child> {
        let found = match self.children.len() <= SEARCHED_CHILDREN_MAX {
            true => self.children.iter().find(|(known, _)| known == name),
            false => self.children.get(*self.child_indices.get(name)?),
        };
        found.map(|(_, child)| child)
    }

    fn add_child(&mut self, name: String, child: Child) {
        let at = self.children.len();
        if at == SEARCHED_CHILDREN_MAX {
            let known = self.children.iter().enumerate();
            self.child_indices = known.map(|(at, (name, _))| (name.clone(), at)).collect();
        }
        if at >= SEARCHED_CHILDREN_MAX {
            self.child_indices.insert(name.clone(), at);
        }
        self.children.push((name, child));
    }
}

/// The tree of directories for the paths of a snapshot.
#[derive(Debug, Default)]
pub struct Tree {
    /// The paths of the snapshot.
    pub paths: Vec<PathView>,
    /// All directories of the tree; the first is the root.
    pub directories: Vec<Directory>,
    places: HashMap<DirectoryId, usize>,
    /// For each path, the parents below which its nodes have their directories.
    parents: Vec<Parents>,
    /// For each path and node, the index of the node's directory in `directories`; 0 for none.
    directory_of: Vec<Vec<usize>>,
}

/// Name of the source of a path that starts as an empty stream.
pub const EMPTY_PATH_SOURCE_NAME: &str = "stream";

impl Tree {
    /// Creates the tree of these paths. If several paths claim a name, root's paths get it first,
    /// then the other paths in ascending order of their numbers.
    #[must_use]
    pub fn new(paths: Vec<PathView>) -> Self {
        Self::from_paths_and_previous(paths, &Self::default())
    }

    /// Creates the tree of these paths as the successor of `before`. A node with several parents
    /// stays below the same parent as in `before`, as long as there is an arc from that parent.
    #[must_use]
    pub fn from_paths_and_previous(mut paths: Vec<PathView>, before: &Self) -> Self {
        sort_paths(&mut paths);
        // The capacity suffices for most changes, which add or remove one node.
        let count = before.directories.len() + 1;
        let mut tree = Self {
            paths,
            directories: Vec::with_capacity(count),
            places: HashMap::with_capacity(count),
            ..Self::default()
        };
        tree.directory_of = tree.paths.iter().map(|view| vec![0; view.nodes.len()]).collect();
        tree.add((DirectoryId::Root, String::new()), 0, Vec::new(), ROOT_ENTRIES);
        let parents = |view: &PathView| first_parents(view, || before.path_with_parents(view));
        let parents: Vec<Parents> = tree.paths.iter().map(parents).collect();
        let mut open = VecDeque::with_capacity(count);
        tree.add_named_paths(&parents, &mut open);
        tree.add_sources(&parents, &mut open);
        while let Some(at) = open.pop_front() {
            tree.add_children(at, &parents, &mut open);
        }
        tree.add_links(&parents);
        tree.parents = parents;
        tree
    }

    /// Returns the directory with this identity, or `None` if there is none.
    #[must_use]
    pub fn directory(&self, place: &DirectoryId) -> Option<&Directory> {
        self.directories.get(*self.places.get(place)?)
    }

    /// Returns the details of the node `member`, or `None` if there is no such node.
    #[must_use]
    pub fn node(&self, member: NodeIndex) -> Option<&NodeDetails> {
        self.paths.get(member.path)?.nodes.get(member.node).map(|node| &**node)
    }

    /// Returns the first node that a directory represents, with its path. Returns `None` if the
    /// directory represents no node.
    #[must_use]
    pub fn first_node(&self, directory: &Directory) -> Option<(&PathView, &NodeDetails)> {
        let member = *directory.members.first()?;
        Some((self.paths.get(member.path)?, self.node(member)?))
    }

    fn add_named_paths(&mut self, parents: &[Parents], open: &mut VecDeque<usize>) {
        for (path, parents) in parents.iter().enumerate() {
            let Some(name) = self.paths[path].path.name.clone() else { continue };
            let place = DirectoryId::Path(path_key(&self.paths[path]));
            let name = self.unused_name(0, escape(&name), self.paths[path].path.number.into());
            let at = self.add((place, name), 0, Vec::new(), PATH_ENTRIES);
            self.set_owner_and_start(at, path);
            let top = top_nodes(&self.paths[path].nodes, parents);
            if let [node] = top.as_slice()
                && self.paths[path].nodes[*node].filter == EMPTY_PATH_SOURCE_NAME
            {
                // A path that started as an empty stream shares one directory with the node
                // `stream`.
                let member = NodeIndex { path, node: *node };
                self.directories[at].members = vec![member];
                self.directories[at].reserved = STREAM_ENTRIES;
                self.set_directory_of(member, at);
                open.push_back(at);
                continue;
            }
            for node in top {
                self.add_node(at, vec![NodeIndex { path, node }], open);
            }
        }
    }

    /// Adds directories for the sources of unnamed paths. Equal sources of one user share a
    /// directory.
    fn add_sources(&mut self, parents: &[Parents], open: &mut VecDeque<usize>) {
        let mut groups = NodeGroups::default();
        for (path, parents) in parents.iter().enumerate() {
            if self.paths[path].path.name.is_some() {
                continue;
            }
            for node in top_nodes(&self.paths[path].nodes, parents) {
                self.join_group(&mut groups, "", NodeIndex { path, node });
            }
        }
        for group in groups.all {
            self.add_node(0, group.members, open);
        }
    }

    /// Adds directories for the nodes downstream of a directory's nodes.
    fn add_children(&mut self, at: usize, parents: &[Parents], open: &mut VecDeque<usize>) {
        let mut groups = NodeGroups::default();
        let members = self.directories[at].members.clone();
        let is_single = members.len() == 1;
        for member in members {
            let Some(node) = self.node(member) else { continue };
            let arcs = node.arcs.iter().enumerate();
            let first = |(arc, to): &(usize, &streamline::paths::NodeArc)| {
                parents[member.path].get(to.to) == Some(&Some((member.node, *arc)))
            };
            let below: Vec<(String, usize)> =
                arcs.filter(first).map(|(_, to)| (to.classes.clone(), to.to)).collect();
            let nodes = &self.paths[member.path].nodes;
            let operands = nodes.iter().enumerate();
            let operands = operands.filter(|(_, node)| node.inside == Some(member.node));
            let operands: Vec<_> = operands.map(|(node, _)| (String::new(), node)).collect();
            for (class, node) in below.into_iter().chain(operands) {
                let below = NodeIndex { path: member.path, node };
                match is_single {
                    true => groups.add(class, below),
                    false => self.join_group(&mut groups, &class, below),
                }
            }
        }
        for group in groups.all {
            let parent = match group.class.is_empty() {
                true => at,
                false => self.ensure_class_directory(at, &group.class),
            };
            self.add_node(parent, group.members, open);
        }
    }

    /// Returns the index of the directory of a class of the blocks that leave the node of the
    /// directory `at`. Adds the directory if it is missing.
    fn ensure_class_directory(&mut self, at: usize, class: &str) -> usize {
        let DirectoryId::Node(path, node) = self.directories[at].place.clone() else { return at };
        let place = DirectoryId::Class(path, node, class.to_owned());
        if let Some(known) = self.places.get(&place) {
            return *known;
        }
        let name = class_name(class);
        let name = self.unused_name(at, name, 0);
        let members = self.directories[at].members.clone();
        let path = members.first().map(|member| member.path);
        let added = self.add((place, name), at, members, NODE_ENTRIES);
        path.into_iter().for_each(|path| self.set_owner_and_start(added, path));
        added
    }

    /// Adds a directory for equal nodes. Appends its index to `open`, the queue of directories
    /// whose children have not been added yet.
    fn add_node(&mut self, parent: usize, members: Vec<NodeIndex>, open: &mut VecDeque<usize>) {
        let Some(first) = members.first().copied() else { return };
        let Some(node) = self.node(first) else { return };
        let place = DirectoryId::Node(path_key(&self.paths[first.path]), node_key(node));
        if self.places.contains_key(&place) {
            return;
        }
        let number = if parent == 0 {
            self.paths[first.path].path.number.into()
        } else {
            node_id_or_index(node, first)
        };
        let name = self.unused_name(parent, node_name(node), number);
        let at = self.add((place, name), parent, members.clone(), NODE_ENTRIES);
        self.set_owner_and_start(at, first.path);
        for member in members {
            self.set_directory_of(member, at);
        }
        open.push_back(at);
    }

    /// Returns an unused name for a new entry of a directory.
    fn unused_name(&self, parent: usize, escaped: String, number: u64) -> String {
        let parent = &self.directories[parent];
        let is_taken = |name: &str| parent.reserved.contains(&name) || parent.child(name).is_some();
        unused_name(escaped, number, is_taken)
    }

    fn add(
        &mut self,
        (place, name): (DirectoryId, String),
        parent: usize,
        members: Vec<NodeIndex>,
        reserved: &'static [&'static str],
    ) -> usize {
        let at = self.directories.len();
        if at > 0 {
            self.directories[parent].add_child(name.clone(), Child::Directory(at));
        }
        self.places.insert(place.clone(), at);
        let children = Vec::new();
        let (uid, started) = (0, 0);
        self.directories.push(Directory {
            place,
            name,
            parent,
            uid,
            started,
            members,
            children,
            child_indices: HashMap::new(),
            reserved,
        });
        at
    }

    /// Copies the owner and the start time of the path `path` to the directory `at` (indexes).
    fn set_owner_and_start(&mut self, at: usize, path: usize) {
        let listed = &self.paths[path].path;
        let (uid, started) = (listed.uid, listed.started.unwrap_or_default());
        let directory = &mut self.directories[at];
        (directory.uid, directory.started) = (uid, started);
    }
}

/// Sorts paths in the order in which names are assigned to them: root's paths first, then the other
/// paths in ascending order of their numbers.
pub fn sort_paths(paths: &mut [PathView]) {
    paths.sort_by_key(|view| (view.path.uid != 0, view.path.number));
}

/// Returns the identity of a path.
#[must_use]
pub fn path_key(view: &PathView) -> PathKey {
    PathKey { number: view.path.number, started: view.path.started.unwrap_or_default() }
}

fn node_key(node: &NodeDetails) -> NodeKey {
    node.id.map_or_else(|| NodeKey::Name(node.name.clone()), NodeKey::Number)
}

fn node_id_or_index(node: &NodeDetails, member: NodeIndex) -> u64 {
    node.id.unwrap_or(member.node as u64)
}

/// Returns the escaped name of a node: its filter with the given arguments, or the node's own name
/// if it has no filter.
fn node_name(node: &NodeDetails) -> String {
    if node.filter.is_empty() {
        return escape(&node.name);
    }
    let given = node.arguments.iter().filter(|argument| argument.given);
    filter_name(&node.filter, &Vec::from_iter(given.map(|argument| argument.value.as_str())))
}

/// Returns the escaped name of the directory for classes. The class `all` becomes `%61ll`, because
/// `all` is the name of a stream.
fn class_name(class: &str) -> String {
    if class == "all" { "%61ll".to_owned() } else { escape(class) }
}
