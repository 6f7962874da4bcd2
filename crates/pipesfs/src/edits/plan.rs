//! Plans the edit of a path for each change to the tree. A plan depends only on the tree, and on
//! the symbolic links in the names of files that a new filter opens.

use super::below_mount::is_below_mount;
use super::places::NodeOutput;
use super::{MountPermissions, Refusal};
use crate::entries::{DirectoryObject, ObjectKey, ObjectKind};
use crate::names::unescape;
use crate::protocol::errno;
use crate::tree::{Child, DirectoryId, EMPTY_PATH_SOURCE_NAME, NodeIndex, PathKey, Tree, path_key};
use std::path::Path;
use streamline::paths::{NewFilter, parse_new_filter};

/// The plan for a change to the tree: an edit, a start or a stop of a path.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(crate) enum PlannedChange {
    /// No action. The removed entry has no counterpart in a request: for example, the directory of
    /// a class disappears by itself together with the filters below it.
    Nothing,
    /// An edit of a path.
    Edit(PathEdit),
    /// The start of a new path.
    Start {
        /// Name of the path, if it has one.
        name: Option<String>,
        /// Request of the path.
        request: String,
    },
    /// The stop of a running path.
    Stop(PathKey),
}

/// An edit of a path, as the arguments of an equivalent `streamline set`.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(crate) struct PathEdit {
    /// The path that the edit changes.
    pub(crate) path: PathKey,
    /// The path to which the edit moves nodes; `None` if all nodes stay in their path.
    pub(crate) into: Option<PathKey>,
    /// The words of the edit: the arguments of `streamline set` after the path.
    pub(crate) words: Vec<String>,
}

impl PathEdit {
    pub(super) fn plan(
        tree: &Tree,
        node: NodeIndex,
        words: &[&str],
    ) -> Result<PlannedChange, Refusal> {
        let path = path_key(tree.path_view(node)?);
        let words = words.iter().map(|word| (*word).to_owned()).collect();
        Ok(PlannedChange::Edit(Self { path, into: None, words }))
    }
}

/// Parses the name of a directory as a filter with its arguments. Returns `None` if no filter has
/// this name. Fails if the name is malformed, if the mount does not permit the filter, or if the
/// filter would open a file below the mount.
pub(super) fn parse_filter_name(
    name: &str,
    may: &MountPermissions,
) -> Result<Option<NewFilter>, Refusal> {
    let invalid = |why: String| Refusal::new(errno::EINVAL, why);
    let text = unescape(name).ok_or_else(|| invalid("`%` begins a number: write `%25`".into()))?;
    if name.contains('#') {
        let why = "`#` precedes the number of a filter that exists: write `%23`";
        return Err(invalid(why.to_owned()));
    }
    let (filter, arguments) = match text.split_once(':') {
        Some((filter, arguments)) => (filter, Some(arguments)),
        None => (text.as_str(), None),
    };
    let read = parse_new_filter(filter, arguments).map_err(invalid)?;
    match read {
        Some(filter) if filter.opens_files && !may.exec => {
            let why = format!(
                "`{}` opens files or runs a program: mount with `streamline mount -o exec DIR`, or \
                 use `streamline set`",
                filter.name
            );
            Err(Refusal::new(errno::EPERM, why))
        }
        Some(filter) => match first_file_below_mount(&filter, may) {
            Some(file) => {
                let why = format!(
                    "`{file}` is below this mount, and the path would wait for itself: name a file \
                     elsewhere, or connect filters with `mv` or `ln -s`"
                );
                Err(Refusal::new(errno::EDEADLK, why))
            }
            None => Ok(Some(filter)),
        },
        None => Ok(None),
    }
}

/// Returns the first file below the mount among the files that a filter would open, or `None` if
/// there is none.
fn first_file_below_mount<'f>(filter: &'f NewFilter, may: &MountPermissions) -> Option<&'f str> {
    let inside = |file: &&String| is_below_mount(&may.mount, Path::new(file));
    filter.files.iter().find(inside).map(String::as_str)
}

/// Plans the edit for mkdir(2), which creates a filter or starts a path.
pub(crate) fn plan_mkdir(
    tree: &Tree,
    (parent, name): (&ObjectKey, &str),
    may: &MountPermissions,
) -> Result<PlannedChange, Refusal> {
    match tree.lookup(parent, name, &[]) {
        // The directory of a class always exists, but programs such as `cp -r` create it
        // nevertheless.
        Some(key) if tree.is_unlisted_class(&key) => return Ok(PlannedChange::Nothing),
        Some(_) => return Err(Refusal::new(errno::EEXIST, "it exists")),
        None => {}
    }
    if parent.part == DirectoryObject::Whole && parent.place == DirectoryId::Root {
        return plan_path_start(name, may);
    }
    let is_path = matches!(parent.place, DirectoryId::Path(_));
    let directory = tree.directory(&parent.place);
    let has_sources = is_path && directory.is_some_and(|path| path.members.is_empty());
    if !has_sources {
        // This check comes before the name is parsed: some directories cannot contain filters at
        // all.
        tree.output(parent)?;
    }
    let Some(filter) = parse_filter_name(name, may)? else {
        let name = name.split(':').next().unwrap_or_default();
        let why = format!("no filter is called `{name}`: `ls .filters` lists all");
        return Err(Refusal::new(errno::EINVAL, why));
    };
    if has_sources && filter.is_source && parent.part == DirectoryObject::Whole {
        let DirectoryId::Path(path) = parent.place else { return Err(Refusal::object_removed()) };
        let words = vec!["add".to_owned(), filter.text];
        return Ok(PlannedChange::Edit(PathEdit { path, into: None, words }));
    }
    let below = tree.output(parent)?;
    if !filter.has_input {
        let why = format!(
            "`{}` is a source, and nothing leads to it: make it in the root, or in the directory \
             of a path",
            filter.name
        );
        return Err(Refusal::new(errno::EINVAL, why));
    }
    PathEdit::plan(tree, below.node, &["add", &filter.text, "below", &below.words])
}

/// Plans mkdir(2) in the root directory, which starts a path. If the name is that of a source, the
/// path has this source and no name. The name of any other filter is refused. Any other name
/// becomes the name of the path, which starts with an empty stream as its source.
fn plan_path_start(name: &str, may: &MountPermissions) -> Result<PlannedChange, Refusal> {
    match parse_filter_name(name, may)? {
        Some(filter) if filter.is_source => {
            let request = format!("{} | discard", filter.text);
            Ok(PlannedChange::Start { name: None, request })
        }
        Some(filter) => {
            let why = format!(
                "`{}` is not a source, and only a source begins a path: make it below a filter",
                filter.name
            );
            Err(Refusal::new(errno::EINVAL, why))
        }
        None => {
            let plain = |letter: char| letter.is_ascii_alphanumeric() || "-_.".contains(letter);
            let numeric = name.chars().all(|letter| letter.is_ascii_digit());
            if numeric || name.starts_with(['-', '.']) || !name.chars().all(plain) {
                let why = format!(
                    "`{name}` is neither a filter nor a name for a path: letters, digits, `-`, `_` \
                     and `.`, and not digits alone"
                );
                return Err(Refusal::new(errno::EINVAL, why));
            }
            let request = format!("{EMPTY_PATH_SOURCE_NAME} | discard");
            Ok(PlannedChange::Start { name: Some(name.to_owned()), request })
        }
    }
}

/// Plans the edit for unlink(2): the removal of a link severs an arc between two filters.
pub(crate) fn plan_unlink(
    tree: &Tree,
    (parent, name): (&ObjectKey, &str),
) -> Result<PlannedChange, Refusal> {
    let key = tree.lookup(parent, name, &[]).ok_or_else(Refusal::object_removed)?;
    refuse_fixed_entry(&key, parent)?;
    if key.kind() == ObjectKind::Directory {
        // The entry was a link in the directory of an additional parent. That parent has since
        // become the first or only one, so the entry is a directory now.
        let why = "it is a directory now, not a link: `rmdir` removes it";
        return Err(Refusal::new(errno::EISDIR, why));
    }
    match linked_node(tree, parent, name)? {
        Some(node) => plan_arc_removal(tree, node, parent),
        None => Ok(PlannedChange::Nothing),
    }
}

/// Plans the edit for rmdir(2), which removes a filter or stops a path.
pub(crate) fn plan_rmdir(
    tree: &Tree,
    (parent, name): (&ObjectKey, &str),
) -> Result<PlannedChange, Refusal> {
    let names = [];
    let key = tree.lookup(parent, name, &names).ok_or_else(Refusal::object_removed)?;
    if key.part != DirectoryObject::Whole {
        return Ok(PlannedChange::Nothing);
    }
    refuse_fixed_entry(&key, parent)?;
    if !tree.has_no_filters(&key.place) {
        let why = "it is not empty: remove what is below it first, as `rm -r` does";
        return Err(Refusal::new(errno::ENOTEMPTY, why));
    }
    match &key.place {
        DirectoryId::Class(..) => Ok(PlannedChange::Nothing),
        DirectoryId::Path(path) => Ok(PlannedChange::Stop(*path)),
        DirectoryId::Node(..) => plan_node_removal(tree, parent, &key),
        _ => Err(Refusal::new(errno::EPERM, "it exists for as long as the mount")),
    }
}

/// Fails with EPERM if an entry is a fixed part of the mount and therefore cannot be removed.
fn refuse_fixed_entry(key: &ObjectKey, parent: &ObjectKey) -> Result<(), Refusal> {
    let fixed = |key: &ObjectKey| {
        matches!(key.place, DirectoryId::Filters | DirectoryId::Machine | DirectoryId::Interface(_))
    };
    let of_root = key.place == DirectoryId::Root;
    match fixed(key) || fixed(parent) || of_root {
        true => Err(Refusal::new(errno::EPERM, "it exists for as long as the mount")),
        false => Ok(()),
    }
}

fn plan_node_removal(
    tree: &Tree,
    parent: &ObjectKey,
    key: &ObjectKey,
) -> Result<PlannedChange, Refusal> {
    let directory = tree.directory(&key.place).ok_or_else(Refusal::object_removed)?;
    let member = tree.only_member(directory)?;
    let name = &tree.details_of_node(member)?.name;
    let above = tree.parent(directory)?;
    let of_path = matches!(above.place, DirectoryId::Path(_)) && above.members.is_empty();
    if of_path || above.place == DirectoryId::Root {
        let path = path_key(tree.path_view(member)?);
        if tree.count_sources(member.path) > 1 {
            return PathEdit::plan(tree, member, &["remove", name, "leaf"]);
        }
        // The removal of the last source stops a path. A path with a name gets an empty stream
        // instead.
        return match of_path {
            true => {
                let words = ["add", EMPTY_PATH_SOURCE_NAME, ",", "remove", name, "leaf"];
                PathEdit::plan(tree, member, &words)
            }
            false => Ok(PlannedChange::Stop(path)),
        };
    }
    if tree.count_parents(member) > 1 {
        return plan_arc_removal(tree, member, parent);
    }
    if tree.is_placeholder(directory) && above.children.len() == 1 {
        return Ok(PlannedChange::Nothing);
    }
    PathEdit::plan(tree, member, &["remove", name, "leaf"])
}

fn plan_arc_removal(
    tree: &Tree,
    member: NodeIndex,
    parent: &ObjectKey,
) -> Result<PlannedChange, Refusal> {
    let from = tree.output(parent)?;
    let name = &tree.details_of_node(member)?.name;
    PathEdit::plan(tree, member, &["sever", name, "from", &from.words])
}

/// Returns the node to which a link in a directory leads, or `None` if the entry is not a link to a
/// node.
pub(super) fn linked_node(
    tree: &Tree,
    parent: &ObjectKey,
    name: &str,
) -> Result<Option<NodeIndex>, Refusal> {
    let children = tree.directory(&parent.place).map(|directory| &directory.children);
    let is_arc =
        |(known, child): &&(String, Child)| known == name && matches!(child, Child::Link(_));
    let child = children.and_then(|children| children.iter().find(is_arc));
    let Some((_, Child::Link(target))) = child.filter(|_| parent.part == DirectoryObject::Whole)
    else {
        return Ok(None);
    };
    let target = tree.resolve(parent, target).ok_or_else(Refusal::object_removed)?;
    let directory = tree.directory(&target.place).ok_or_else(Refusal::object_removed)?;
    tree.only_member(directory).map(Some)
}

fn no_filter_refusal(target: &str) -> Refusal {
    let why = format!("`{target}` is not a filter of this tree: a link must lead to one");
    Refusal::new(errno::EINVAL, why)
}

/// Plans the edit for symlink(2), which adds an arc to a path. The directory of the link becomes an
/// additional parent of the node to which `target` leads.
pub(crate) fn plan_symlink(
    tree: &Tree,
    (parent, name): (&ObjectKey, &str),
    target: &str,
    may: &MountPermissions,
) -> Result<PlannedChange, Refusal> {
    if tree.lookup(parent, name, &[]).is_some() {
        return Err(Refusal::new(errno::EEXIST, "it exists"));
    }
    let NodeOutput { node: above, words: below } = tree.output(parent)?;
    let found = match target.starts_with('/') {
        true => {
            let inside = Path::new(target).strip_prefix(&may.mount).ok();
            let inside = inside.and_then(Path::to_str);
            inside.and_then(|inside| tree.resolve(&ObjectKey::directory(DirectoryId::Root), inside))
        }
        false => tree.resolve(parent, target),
    };
    let is_node = |key: &ObjectKey| {
        key.part == DirectoryObject::Whole && matches!(key.place, DirectoryId::Node(..))
    };
    let found = found.filter(is_node).ok_or_else(|| no_filter_refusal(target))?;
    let directory = tree.directory(&found.place).ok_or_else(Refusal::object_removed)?;
    let member = tree.only_member(directory)?;
    if tree.path_view(above)?.path.uid != directory.uid {
        // The error must not reveal paths of other users.
        return Err(no_filter_refusal(target));
    }
    if member.path != above.path {
        let why = "the filter belongs to another path, and an arc joins filters of one path: `mv` \
                   moves it";
        return Err(Refusal::new(errno::EINVAL, why));
    }
    let own = directory.name.split('#').next().unwrap_or_default();
    if name.split('#').next() != Some(own) {
        let why = format!("the link to a filter has the filter's name: `{}`", directory.name);
        return Err(Refusal::new(errno::EINVAL, why));
    }
    let node = &tree.details_of_node(member)?.name;
    PathEdit::plan(tree, member, &["join", node, "below", &below])
}
