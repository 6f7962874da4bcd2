//! Plans the edit of a path for rename(2).

use super::places::NodeOutput;
use super::plan::{PathEdit, PlannedChange, linked_node, parse_filter_name};
use super::{MountPermissions, Refusal};
use crate::entries::{DirectoryObject, ObjectKey};
use crate::protocol::errno;
use crate::tree::{DirectoryId, NodeIndex, Tree, path_key};
use streamline::paths::replace_arguments;

/// Supported flags of renameat2(2): RENAME_NOREPLACE, which is in effect even if it is not set.
const SUPPORTED_RENAME_FLAGS: u32 = 1;

fn invalid(why: impl Into<String>) -> Refusal {
    Refusal::new(errno::EINVAL, why)
}

/// Plans the edit for rename(2): moves a filter from one parent to another, and changes its
/// arguments if the new name contains any.
pub(crate) fn plan_rename(
    tree: &Tree,
    (parent, name): (&ObjectKey, &str),
    (into, to): (&ObjectKey, &str),
    (flags, may): (u32, &MountPermissions),
) -> Result<PlannedChange, Refusal> {
    if flags & !SUPPORTED_RENAME_FLAGS != 0 {
        return Err(invalid("filters are not exchanged: move one after the other"));
    }
    let key = tree.lookup(parent, name, &[]).ok_or_else(Refusal::object_removed)?;
    if tree.lookup(into, to, &[]).is_some_and(|there| there != key) {
        let why = format!("`{to}` exists there, and nothing is replaced by a move");
        return Err(Refusal::new(errno::EEXIST, why));
    }
    if let Some(node) = linked_node(tree, parent, name)? {
        let from = tree.output(parent)?;
        refuse_changed_name(name, to)?;
        return plan_reattachment(tree, (node, &from), into);
    }
    match (&key.part, &key.place) {
        (DirectoryObject::Whole, DirectoryId::Node(..)) => {
            plan_node_rename(tree, (parent, &key), (into, to), may)
        }
        (DirectoryObject::Whole, DirectoryId::Class(path, node, class)) => {
            refuse_changed_name(name, to)?;
            let node = DirectoryId::Node(*path, node.clone());
            plan_class_move(tree, (&key, &node, class), into)
        }
        (DirectoryObject::Whole, DirectoryId::Path(_)) => {
            let why =
                "a path keeps its name: stop it, and start it under another (`streamline start`)";
            Err(Refusal::new(errno::EOPNOTSUPP, why))
        }
        _ => Err(Refusal::new(errno::EPERM, "it is a view, and cannot be moved")),
    }
}

fn refuse_changed_name(name: &str, to: &str) -> Result<(), Refusal> {
    match name.split('#').next() == to.split('#').next() {
        true => Ok(()),
        false => Err(invalid(format!("it keeps its name: `{name}`"))),
    }
}

/// Plans the edit `move NODE from PARENT below OUTPUT`, which replaces one parent of a node within
/// its path.
fn plan_reattachment(
    tree: &Tree,
    (node, from): (NodeIndex, &NodeOutput),
    into: &ObjectKey,
) -> Result<PlannedChange, Refusal> {
    let below = tree.output(into)?;
    let name = &tree.details_of_node(node)?.name;
    if below.node.path != node.path {
        return Err(invalid("a further parent is of the same path: move the filter itself"));
    }
    PathEdit::plan(tree, node, &["move", name, "from", &from.words, "below", &below.words])
}

fn plan_node_rename(
    tree: &Tree,
    (parent, key): (&ObjectKey, &ObjectKey),
    (into, to): (&ObjectKey, &str),
    may: &MountPermissions,
) -> Result<PlannedChange, Refusal> {
    let directory = tree.directory(&key.place).ok_or_else(Refusal::object_removed)?;
    let node = tree.only_member(directory)?;
    let name = &tree.details_of_node(node)?.name;
    let changed = match directory.name.split('#').next() == to.split('#').next() {
        true => None,
        false => Some(argument_change_words(tree, node, to, may)?),
    };
    if parent.place == into.place {
        let words = changed.ok_or_else(|| invalid("it is there already"))?;
        return PathEdit::plan(tree, node, &words.iter().map(String::as_str).collect::<Vec<_>>());
    }
    if tree.count_parents(node) == 0 {
        return Err(invalid(
            "it is a source, and nothing leads to it: make it in the directory of the other path",
        ));
    }
    if into.part == DirectoryObject::Whole && into.place == DirectoryId::Root {
        return Err(invalid("only a source begins a path: make one, and move the filter below it"));
    }
    let (from, below) = (tree.output(parent)?, tree.output(into)?);
    if below.node.path == node.path {
        let mut words = vec!["move", name, "from", &from.words, "below", &below.words];
        if let Some(changed) = &changed {
            // The arguments are changed first, because the move may change the name of the node.
            let before = changed.iter().map(String::as_str).chain([","]);
            words = before.chain(words).collect();
        }
        return PathEdit::plan(tree, node, &words);
    }
    if changed.is_some() {
        return Err(invalid(
            "a move to another path keeps the arguments: rename it before or after",
        ));
    }
    plan_move_across_paths(tree, (node, name), &below)
}

/// Plans the edit that moves nodes from one path to another. `words` names a node, or one of its
/// classes, which stands for all nodes below this class.
fn plan_move_across_paths(
    tree: &Tree,
    (node, words): (NodeIndex, &str),
    below: &NodeOutput,
) -> Result<PlannedChange, Refusal> {
    let (from, to) = (tree.path_view(node)?, tree.path_view(below.node)?);
    if from.path.uid != to.path.uid {
        let why = format!(
            "the other path belongs to user {}, and a filter moves between paths of one user",
            to.path.uid
        );
        return Err(Refusal::new(errno::EPERM, why));
    }
    let (path, into) = (path_key(from), path_key(to));
    let number = into.number.to_string();
    let words = ["move", words, "into", &number, "below", &below.words];
    let words = words.map(str::to_owned).to_vec();
    Ok(PlannedChange::Edit(PathEdit { path, into: Some(into), words }))
}

/// Plans rename(2) of the directory of a class, which moves all nodes below the class to another
/// parent. If the new parent is in another path, a copy of the filter that assigns the class is
/// inserted between it and these nodes. If there is no node below the class, the edit only adds
/// such a copy.
fn plan_class_move(
    tree: &Tree,
    (key, node, class): (&ObjectKey, &DirectoryId, &str),
    into: &ObjectKey,
) -> Result<PlannedChange, Refusal> {
    let directory = tree.directory(node).ok_or_else(Refusal::object_removed)?;
    let member = tree.only_member(directory)?;
    let details = tree.details_of_node(member)?;
    let below = tree.output(into)?;
    let has_children = tree.directory(&key.place).is_some_and(|class| !class.children.is_empty());
    let words = format!("{}/{class}", details.name);
    if !has_children {
        // There is no node to move. A copy of the filter below the new parent produces the class
        // there.
        let given = details.arguments.iter().filter(|argument| argument.given);
        let given = Vec::from_iter(given.map(|argument| argument.value.as_str()));
        let name = crate::names::filter_name(&details.filter, &given);
        let filter = parse_filter_name(
            &name,
            &MountPermissions { exec: true, ..MountPermissions::default() },
        )?;
        let filter =
            filter.ok_or_else(|| invalid(format!("`{name}` is not a filter of its own")))?;
        let text = format!("{} |{class} discard", replace_arguments(details, &filter));
        return PathEdit::plan(tree, below.node, &["add", &text, "below", &below.words]);
    }
    if below.node.path == member.path {
        return PathEdit::plan(tree, member, &["move", &words, "below", &below.words]);
    }
    plan_move_across_paths(tree, (member, &words), &below)
}

/// Returns the words of the edit that changes the arguments of a node to the arguments in its new
/// name.
fn argument_change_words(
    tree: &Tree,
    member: NodeIndex,
    to: &str,
    may: &MountPermissions,
) -> Result<Vec<String>, Refusal> {
    let node = tree.details_of_node(member)?;
    let filter = parse_filter_name(to, may)?.filter(|filter| filter.name == node.filter);
    let Some(filter) = filter else {
        return Err(invalid(format!(
            "`{}` stays the same filter: a new name can change only its arguments (`streamline set \
             PATH replace {} with …`)",
            node.filter, node.name
        )));
    };
    let given: Vec<_> = node.arguments.iter().filter(|argument| argument.given).collect();
    let values = filter.text.split_once(' ').map(|(_, values)| values.split(' ').collect());
    let values: Vec<&str> = values.unwrap_or_default();
    let simple = !filter.text.contains(['"', '=']) && values.len() == given.len();
    if simple && given.iter().all(|argument| argument.writable) {
        let assign = given.iter().zip(&values);
        let assign = assign.map(|(argument, value)| format!("{}={value}", argument.name));
        let head = ["arg".to_owned(), node.name.clone()];
        return Ok(head.into_iter().chain(assign).collect());
    }
    let text = replace_arguments(node, &filter);
    Ok(["replace", &node.name, "with", &text].map(str::to_owned).to_vec())
}
