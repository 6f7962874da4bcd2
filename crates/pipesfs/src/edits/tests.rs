//! Tests of edit planning: each change to a tree yields either the text of an edit command or a
//! refusal.

use super::plan::{PathEdit, PlannedChange, plan_mkdir, plan_rmdir, plan_symlink, plan_unlink};
use super::{MountPermissions, Refusal, plan_rename};
use crate::entries::ObjectKey;
use crate::protocol::errno;
use crate::tree::{DirectoryId, Tree};
use proptest::prelude::*;
use std::sync::Arc;
use streamline::paths::{NodeArc, NodeDetails, PathView, RegisteredPath};

fn share_nodes(nodes: Vec<NodeDetails>) -> Arc<Vec<Arc<NodeDetails>>> {
    Arc::new(nodes.into_iter().map(Arc::new).collect())
}

fn node(id: u64, name: &str, filter: &str, arcs: &[(usize, &str)]) -> NodeDetails {
    let arc = |(to, classes): &(usize, &str)| NodeArc {
        to: *to,
        classes: (*classes).to_owned(),
        back: false,
    };
    NodeDetails {
        id: Some(id),
        name: name.to_owned(),
        filter: filter.to_owned(),
        form: "frame".to_owned(),
        arcs: arcs.iter().map(arc).collect(),
        ..NodeDetails::default()
    }
}

/// Returns the tree of two paths: `web: generate | (udp | (|9 count + |10 discard)) + inspect`,
/// whose `inspect` also has an arc from `udp`, and a path that is an empty stream.
fn tree() -> Tree {
    let path = |number: u32, name: &str| RegisteredPath {
        number,
        name: Some(name.to_owned()),
        ..RegisteredPath::default()
    };
    let nodes = vec![
        node(1, "generate", "generate", &[(1, ""), (4, "")]),
        node(2, "udp", "udp", &[(2, "9"), (3, "10"), (4, "")]),
        node(3, "count", "count", &[]),
        node(4, "discard", "discard", &[]),
        node(5, "inspect", "inspect", &[]),
    ];
    let web = PathView { path: path(1, "web"), nodes: share_nodes(nodes), ..PathView::default() };
    let nodes = vec![node(1, "stream", "stream", &[(1, "")]), node(2, "discard", "discard", &[])];
    let clean =
        PathView { path: path(2, "clean"), nodes: share_nodes(nodes), ..PathView::default() };
    Tree::new(vec![web, clean])
}

fn key(tree: &Tree, path: &str) -> ObjectKey {
    tree.resolve(&ObjectKey::directory(DirectoryId::Root), path).unwrap_or_else(|| panic!("{path}"))
}

/// Formats a plan as text: the words of an edit, `nothing`, `start …` or `stop …`. Returns the
/// error number if planning failed.
fn outcome_text(planned: Result<PlannedChange, Refusal>) -> Result<String, i32> {
    planned.map_err(|refusal| refusal.errno).map(|planned| match planned {
        PlannedChange::Nothing => "nothing".to_owned(),
        PlannedChange::Edit(PathEdit { path, words, .. }) => {
            format!("{} {}", path.number, words.join(" "))
        }
        PlannedChange::Start { name, request } => {
            format!("start {} {request}", name.unwrap_or_default())
        }
        PlannedChange::Stop(path) => format!("stop {}", path.number),
    })
}

#[test]
fn b4_each_change_of_the_tree_is_one_edit() {
    let (tree, may) = (tree(), MountPermissions::default());
    let make = |path: &str, name| outcome_text(plan_mkdir(&tree, (&key(&tree, path), name), &may));
    let ok = |text: &str| Ok(text.to_owned());
    assert_eq!(make("web/generate", "sample:3"), ok("1 add sample 3 below generate"));
    assert_eq!(make("web/generate/udp/9", "tcp"), ok("1 add tcp below udp/9"));
    assert_eq!(make("clean", "http"), ok("2 add http below stream"));
    assert_eq!(make("web", "rx:lo"), ok("1 add rx lo"));
    assert_eq!(make("web", "count"), Err(errno::EINVAL));
    assert_eq!(make("", "rx:lo"), ok("start  rx lo | discard"));
    assert_eq!(make("", "notes"), ok("start notes stream | discard"));
    assert_eq!(make("web/generate", "udp"), Err(errno::EEXIST));
    assert_eq!(make("web/generate", "exec:sh"), Err(errno::EPERM));
    assert_eq!(make("web/generate/stats", "count"), Err(errno::EPERM));

    let remove = |path: &str, name| outcome_text(plan_rmdir(&tree, (&key(&tree, path), name)));
    assert_eq!(remove("web/generate/udp/9", "count"), ok("1 remove count leaf"));
    assert_eq!(remove("web/generate/udp/10", "discard"), ok("nothing"));
    assert_eq!(remove("web/generate/udp", "10"), ok("nothing"));
    assert_eq!(remove("web/generate/udp", "9"), Err(errno::ENOTEMPTY));
    assert_eq!(remove("web/generate", "udp"), Err(errno::ENOTEMPTY));
    assert_eq!(remove("web/generate/udp", "stats"), ok("nothing"));
    assert_eq!(remove("", "clean"), ok("stop 2"));
    assert_eq!(remove("", ".filters"), Err(errno::EPERM));
    assert_eq!(remove("web/generate/udp", "inspect"), ok("1 sever inspect from udp"));

    let unlinked = |path: &str, name| outcome_text(plan_unlink(&tree, (&key(&tree, path), name)));
    assert_eq!(unlinked("web/generate", "inspect"), ok("1 sever inspect from generate"));
    assert_eq!(unlinked("web/generate", "all"), ok("nothing"));
    assert_eq!(unlinked("", "README"), Err(errno::EPERM));

    let linked = |path: &str, name, to| {
        outcome_text(plan_symlink(&tree, (&key(&tree, path), name), to, &may))
    };
    assert_eq!(linked("web/generate", "count", "udp/9/count"), ok("1 join count below generate"));
    assert_eq!(linked("clean", "count", "../web/generate/udp/9/count"), Err(errno::EINVAL));
    assert_eq!(linked("web/generate", "x", "udp/9/count"), Err(errno::EINVAL));

    let moved = |path: &str, name, into: &str, to| {
        outcome_text(plan_rename(
            &tree,
            (&key(&tree, path), name),
            (&key(&tree, into), to),
            (0, &may),
        ))
    };
    let node = ("web/generate/udp/9", "count");
    assert_eq!(
        moved(node.0, node.1, "web/generate", "count"),
        ok("1 move count from udp/9 below generate")
    );
    assert_eq!(moved(node.0, node.1, "clean", "count"), ok("1 move count into 2 below stream"));
    assert_eq!(
        moved("web/generate/udp", "9", "clean", "9"),
        ok("1 move udp/9 into 2 below stream")
    );
    assert_eq!(
        moved("web/generate/udp", "53", "clean", "53"),
        Err(errno::ENOENT),
        "without a request no class is known"
    );
    assert_eq!(
        moved("web/generate", "inspect", "web/generate/udp/9", "inspect"),
        ok("1 move inspect from generate below udp/9")
    );
    assert_eq!(moved("web/generate", "udp", "", "udp"), Err(errno::EINVAL));
    assert_eq!(moved("", "web", "clean", "web"), Err(errno::EOPNOTSUPP));
    assert_eq!(moved(node.0, node.1, node.0, "inspect"), Err(errno::EINVAL));
}

proptest! {
    #[test]
    fn b4_no_name_makes_more_than_one_filter(
        name in "[a-z:@=|;()+&\" %#.0-9-]{0,24}",
        filter in prop::sample::select(vec!["count", "sample", "udp", "bpf", "match", "tcp"]),
    ) {
        let (tree, may) = (tree(), MountPermissions::default());
        let parent = key(&tree, "web/generate");
        for name in [name.clone(), format!("{filter}:{name}"), format!("{filter}{name}")] {
            if let Ok(PlannedChange::Edit(edit)) = plan_mkdir(&tree, (&parent, &name), &may) {
                prop_assert_eq!(edit.words.len(), 4, "{:?}", edit);
                let text = &edit.words[1];
                prop_assert!(streamline::Edit::parse(&edit.words).is_ok(), "{}", text);
                prop_assert!(!edit.words.iter().any(|word| word == ","));
            }
        }
    }

    #[test]
    fn b4_every_change_of_every_entry_is_planned_or_refused(
        from in 0usize..40, into in 0usize..40, name in "[a-z:#.]{0,8}",
    ) {
        let (tree, may) = (tree(), MountPermissions::default());
        let root = ObjectKey::directory(DirectoryId::Root);
        let mut all = vec![(root.clone(), String::new())];
        let mut at = 0;
        while let Some((key, _)) = all.get(at).cloned() {
            for entry in tree.entries(&key, &[]).unwrap_or_default() {
                if !matches!(entry.key.place, DirectoryId::Filters) {
                    all.push((entry.key, entry.name));
                }
            }
            at += 1;
        }
        let (from, into) = (&all[from % all.len()], &all[into % all.len()]);
        let planned = [
            plan_mkdir(&tree, (&from.0, &name), &may),
            plan_rmdir(&tree, (&from.0, &into.1)),
            plan_unlink(&tree, (&from.0, &into.1)),
            plan_symlink(&tree, (&from.0, &name), &into.1, &may),
            plan_rename(&tree, (&root, &from.1), (&into.0, &name), (0, &may)),
        ];
        for planned in planned {
            match planned {
                Ok(PlannedChange::Edit(PathEdit { words, into, .. })) => {
                    let across = streamline::PathMove::parse(&words).is_some();
                    prop_assert_eq!(across, into.is_some(), "{:?}", words);
                    let edit = streamline::Edit::parse(&words);
                    prop_assert!(across || edit.is_ok(), "{:?}: {:?}", words, edit);
                }
                Ok(_) => {}
                Err(refusal) => prop_assert!(!refusal.why.is_empty() && refusal.errno > 0),
            }
        }
    }
}
