//! Tests that dbuf ids are unique in a tree of processes; this test program starts itself as the
//! child.

#![expect(clippy::unwrap_used, reason = "a failed unwrap fails the test")]

use std::collections::BTreeSet;
use std::process::Command;
use streamline_buffer::ids;

const CHILD_VARIABLE: &str = "STREAMLINE_TEST_IDS";

/// In the child process, prints newly allocated dbuf ids. Does nothing in the test program itself.
#[test]
fn child_prints_ids() {
    if std::env::var_os(CHILD_VARIABLE).is_some() {
        for _ in 0..20 {
            println!("id {}", ids::allocate_id().unwrap().number());
        }
    }
}

fn child_ids(variable: Option<&str>) -> Vec<u32> {
    let mut command = Command::new(std::env::current_exe().unwrap());
    command.args(["--exact", "child_prints_ids", "--nocapture"]).env(CHILD_VARIABLE, "1");
    match variable {
        Some(variable) => command.env(ids::ID_COUNTER_VARIABLE, variable),
        None => command.env_remove(ids::ID_COUNTER_VARIABLE),
    };
    let output = command.output().unwrap();
    let text = String::from_utf8(output.stdout).unwrap();
    let all: Vec<u32> =
        text.lines().filter_map(|line| line.split_once("id ")?.1.trim().parse().ok()).collect();
    assert_eq!(all.len(), 20, "{text}");
    all
}

#[test]
fn d3_q10_ids_are_unique_in_a_tree_of_processes() {
    let (variable, kept) = ids::duplicate_id_counter(700).unwrap();
    let mut all: Vec<u32> = (0..20).map(|_| ids::allocate_id().unwrap().number()).collect();
    all.extend(child_ids(Some(&variable)));
    all.extend(child_ids(Some(&variable)));
    all.extend((0..20).map(|_| ids::allocate_id().unwrap().number()));
    assert_eq!(all.iter().collect::<BTreeSet<_>>().len(), all.len(), "{all:?}");
    // A process without the variable, or whose variable names a closed descriptor, begins a tree
    // with its own counter.
    let alone = child_ids(None);
    assert_eq!(alone, (1..=20).collect::<Vec<_>>());
    drop(kept);
    assert_eq!(child_ids(Some(&variable)), alone);
}
