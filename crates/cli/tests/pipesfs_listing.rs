//! Tests of directory listings in PipesFS, and of the state that filters publish.

#![expect(clippy::unwrap_used, reason = "a test ends where something is not as it must be")]

mod common;

use common::Folder;
use common::pipes_mount::{PipesMount, send_signal, stop_process};
use std::collections::BTreeSet;
use std::fs;
use std::path::Path;
use testkit::wait_until;

/// Number of classes in the path. Two filters follow each class.
const CLASS_COUNT: usize = 25;

/// Returns the directories of filters and classes below a directory, without the directories of
/// counters and arguments.
fn filters_below(directory: &Path) -> BTreeSet<String> {
    let mut found = BTreeSet::new();
    let mut open = vec![directory.to_owned()];
    while let Some(at) = open.pop() {
        for entry in fs::read_dir(at).unwrap().map(Result::unwrap) {
            let name = entry.file_name().into_string().unwrap();
            if entry.file_type().unwrap().is_dir() && !["config", "stats"].contains(&&*name) {
                let path = entry.path();
                found.insert(path.strip_prefix(directory).unwrap().display().to_string());
                open.push(path);
            }
        }
    }
    found
}

#[test]
fn b1_next_listing_of_many_filters_contains_each_edit() {
    let folder = Folder::new();
    let _daemon = folder.start_daemon();
    let Some(mounted) = PipesMount::new(&folder, &[]) else { return };
    let arc = |class| format!("(|{class} sample 2 | count)");
    let arcs: Vec<String> = (1..=CLASS_COUNT).map(arc).collect();
    let line = format!("generate rate=10 | dport | ({})", arcs.join(" + "));
    let _path = folder.spawn_named_path("web", &line);
    wait_until("it is shown", || mounted.path("web/generate").is_dir());
    let top = mounted.path("web/generate/dport");
    let below = |class| ["", "/sample:2", "/sample:2/count"].map(|below| format!("{class}{below}"));
    let mut expected: BTreeSet<String> = (1..=CLASS_COUNT).flat_map(below).collect();
    for _ in 0..2 {
        assert_eq!(filters_below(&top), expected);
    }
    let (made, moved) = ("20/inspect", "7/sample:2/inspect");
    fs::create_dir(top.join(made)).unwrap();
    expected.insert(made.to_owned());
    assert_eq!(filters_below(&top), expected, "a filter was made");
    fs::rename(top.join(made), top.join(moved)).unwrap();
    expected.remove(made);
    expected.insert(moved.to_owned());
    assert_eq!(filters_below(&top), expected, "the filter was moved");
    fs::remove_dir(top.join(moved)).unwrap();
    expected.remove(moved);
    assert_eq!(filters_below(&top), expected, "the filter was removed");
    let edit = ["set", "web", "add", "inspect", "below", "dport/3"];
    assert_eq!(folder.run(&edit).status, Some(0));
    expected.insert("3/inspect".to_owned());
    wait_until("the edit of another program is shown", || filters_below(&top) == expected);
}

#[test]
fn b1_published_state_is_a_table_below_its_filter() {
    let folder = Folder::new();
    let _daemon = folder.start_daemon();
    let Some(mounted) = PipesMount::new(&folder, &[]) else { return };
    let name = format!("files-{}", std::process::id());
    let line = format!("generate rate=1000 | udp | count state={name} | discard");
    let path = folder.spawn_named_path("web", &line);
    wait_until("it is shown", || mounted.path("web/generate/udp").is_dir());
    assert_eq!(mounted.entry_names("web/generate/udp/count/state"), BTreeSet::from([name.clone()]));
    assert!(!mounted.path("web/generate/udp/state").exists(), "it publishes nothing");
    let state = format!("web/generate/udp/count/state/{name}");
    let blocks = || {
        let table = mounted.read_text(&state);
        let mut lines = table.lines();
        assert_eq!(lines.next(), Some("blocks\tbytes\tmessages"));
        let row: Vec<u64> =
            lines.next().unwrap().split('\t').map(|number| number.parse().unwrap()).collect();
        assert_eq!((row.len(), lines.next()), (3, None), "{table}");
        row[0]
    };
    let first = blocks();
    wait_until("the state goes on", || blocks() > first);
    stop_process(path.0.id());
    let error = fs::read_to_string(mounted.path(&state)).err();
    send_signal("-CONT", path.0.id());
    assert_eq!(error.and_then(|error| error.raw_os_error()), Some(5));
    assert!(mounted.read_text(".error").contains(&format!("state/{name}: ")), "the reason is told");
}
