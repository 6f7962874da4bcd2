//! Tests of changes to running paths. Every block from a source must reach exactly one of the old
//! and the new graph, in order, as the numbers in the blocks show.

mod adaptation;
mod arcs;
mod argument;
mod common;
mod mixed_changes;
mod operands;
mod origins;
mod published_state;
mod replicas;
mod script;
mod sessions;
mod stages;
mod upgrade;

use common::{
    StopGuard, TIME_LIMIT, blocks_emitted, build_paths, edit, edit_losslessly, received_numbers,
    run_while, sink_blocks, wait_for_blocks,
};
use engine::change::change;
use engine::run::{StopConditions, run};
use pipeline::edit::Edit;
use pipeline::plan::Machine;
use std::time::Duration;

#[test]
fn v3_filter_is_inserted_and_removed_within_a_space() {
    let text = "generate rate=20000 seq=yes | pcap@thread0 within";
    let (done, outcome) = run_while(text, |live| {
        wait_for_blocks(live, 200);
        let inserted = edit_losslessly(live, "insert ipproto before pcap");
        assert_eq!(live.request_text().as_deref(), Some(inserted.text.as_str()));
        // The request pins only the node `pcap`.
        let plan = live.plan().expect("a plan");
        for (node, placement) in plan.graph.nodes.iter().zip(&plan.placements) {
            let because = placement.because.as_str();
            assert_eq!(because.contains("pinned"), node.name() == "pcap", "{because}");
        }
        wait_for_blocks(live, 200);
        let replaced = edit_losslessly(live, "replace ipproto with dport");
        wait_for_blocks(live, 200);
        let removed = edit_losslessly(live, "remove dport");
        wait_for_blocks(live, 200);
        [inserted.position, replaced.position, removed.position]
    });
    let kept = sink_blocks("within").lock().expect("no panic").clone();
    assert!(
        kept.iter().map(|(number, _)| *number).eq(0..blocks_emitted(&outcome)),
        "each once, in order"
    );
    // The class of a block shows which graph processed it.
    let [first, second, third] = done.map(|position| position as usize);
    let classes = |range: std::ops::Range<usize>| {
        let mut classes: Vec<u32> = kept[range].iter().map(|(_, class)| *class).collect();
        classes.dedup();
        classes
    };
    let whole = [0..first, first..second, second..third, third..kept.len()].map(classes);
    assert_eq!(whole[0], whole[3]);
    assert_eq!((whole[1].as_slice(), whole[2].len()), (&[17][..], 1), "udp, and one port");
    assert_ne!(whole[1], whole[2]);
}

#[test]
fn v3_ended_path_refuses_every_change() {
    let text = "generate count=9 | inspect | pcap@thread0 ended";
    let paths = build_paths(text);
    let live = paths[0].live();
    run(paths, StopConditions::default()).expect("a run");
    // The first edit requests the current placement, so it would change nothing.
    let words =
        [&["move", "pcap", "to", "thread0"][..], &["remove", "inspect"], &["upgrade", "pcap"]];
    let edits = words.iter().map(|words| Edit::parse(words).expect("an edit"));
    for edit in edits.chain([Edit::ReplaceText(text.to_owned())]) {
        let why = change(&live, &edit, &Machine::example(), TIME_LIMIT).expect_err("it has ended");
        assert_eq!(why.to_string(), "the path has ended", "{edit}");
    }
    assert_eq!((live.request_text().as_deref(), live.change_count()), (Some(text), 0));
}

#[test]
fn v3_change_of_a_built_path_waits_until_it_runs() {
    let paths = build_paths("generate rate=20000 seq=yes | pcap@thread0 early");
    let live = paths[0].live();
    let change = |thread: &str, limit| {
        let edit = Edit::parse(&["move", "pcap", "to", thread]).expect("an edit");
        change(&live, &edit, &Machine::example(), limit)
    };
    let why =
        change("thread1", Duration::from_millis(1)).expect_err("nobody could start its thread");
    assert_eq!(why.to_string(), "the path has not begun to run");
    let outcome = std::thread::scope(|scope| {
        let changed = scope.spawn(|| change("thread1", TIME_LIMIT));
        let run = scope.spawn(|| run(paths, StopConditions::default()).expect("a run"));
        let stop = StopGuard(&live);
        let switched = changed.join().expect("no panic").expect("it is run by then");
        assert_eq!((switched.lost, switched.duplicated, switched.reordered), (0, 0, 0));
        assert_eq!(live.space_names(), ["thread0", "thread1"]);
        drop(stop);
        run.join().expect("a run")
    });
    assert!(received_numbers("early").into_iter().eq(0..blocks_emitted(&outcome)));
    let why = change("thread2", TIME_LIMIT).expect_err("it has ended").to_string();
    assert_eq!(why, "the path has ended");
}

#[test]
fn v2_v3_drops_of_a_sink_are_counted_once_while_it_runs() {
    let text = "generate rate=20000 seq=yes | inspect | drop";
    let ((), outcome) = run_while(text, |live| {
        wait_for_blocks(live, 200);
        let ledger = live.take_snapshot(TIME_LIMIT).ledger;
        let drop = ledger.filters.iter().find(|row| row.name == "drop").expect("a row");
        let by_request: Vec<_> = drop.dropped.iter().map(|(why, n)| (why.text(), *n)).collect();
        assert_eq!(by_request, [("by request", drop.taken)]);
        assert_eq!(drop.passed.blocks, 0);
        edit_losslessly(live, "insert ipproto before drop");
        wait_for_blocks(live, 200);
        edit_losslessly(live, "remove ipproto");
    });
    let ended = outcome.ledger.filters.iter().find(|row| row.name == "drop").expect("a row");
    assert_eq!(ended.dropped[0].1.blocks, blocks_emitted(&outcome));
}

#[test]
fn v3_sink_in_its_own_space_is_added_and_removed() {
    let text = "generate rate=20000 seq=yes | inspect | pcap@thread0 stays";
    let (counts, outcome) = run_while(text, |live| {
        assert_eq!(live.space_names(), ["thread0"]);
        wait_for_blocks(live, 200);
        let joined = edit_losslessly(live, "insert pcap guest at inspect");
        assert_eq!(live.space_names(), ["thread0", "thread1"]);
        wait_for_blocks(live, 200);
        let left = edit_losslessly(live, "remove pcap:1");
        assert_eq!(live.space_names(), ["thread0"]);
        wait_for_blocks(live, 100);
        edit_losslessly(live, "insert pcap again at inspect");
        wait_for_blocks(live, 100);
        (joined.position, left.position)
    });
    assert!(received_numbers("stays").into_iter().eq(0..blocks_emitted(&outcome)));
    assert!(
        received_numbers("guest").into_iter().eq(counts.0..counts.1),
        "exactly what came meanwhile"
    );
    let again = received_numbers("again");
    assert!(again.iter().copied().eq(again[0]..blocks_emitted(&outcome)));
    assert!(again[0] >= counts.1);
}

#[test]
fn v3_i5_node_moves_between_spaces_and_back() {
    let text = "generate rate=20000 seq=yes flows=16 | udp | inspect | pcap moved";
    let ((), outcome) = run_while(text, |live| {
        for _ in 0..3 {
            wait_for_blocks(live, 200);
            edit_losslessly(live, "move inspect to thread1");
            wait_for_blocks(live, 200);
            edit_losslessly(live, "move udp to thread1");
            wait_for_blocks(live, 200);
            edit_losslessly(live, "move udp to thread0");
            wait_for_blocks(live, 200);
            edit_losslessly(live, "move inspect to thread0");
        }
    });
    assert!(
        received_numbers("moved").into_iter().eq(0..blocks_emitted(&outcome)),
        "each once, in order"
    );
    let udp = outcome.ledger.filters.iter().find(|node| node.name == "udp").expect("a node");
    assert_eq!(udp.taken.blocks, blocks_emitted(&outcome), "it goes on counting");
    let sessions = udp.counters.iter().find(|(name, _)| name == "new sessions").expect("sessions");
    assert_eq!(sessions.1, 16, "what it knows came along");
}

#[test]
fn v3_impossible_change_leaves_the_path_unchanged() {
    let text = "generate rate=20000 seq=yes | inspect | pcap refused";
    let ((), outcome) = run_while(text, |live| {
        wait_for_blocks(live, 100);
        let spaces = live.space_names();
        for (words, part) in [
            ("remove tcp", "no `tcp`"),
            ("insert nonsense after inspect", "nonsense"),
            ("insert (pcap /nowhere/at/all + http) after inspect", "http"),
            ("remove generate", "source"),
            ("insert pcap@thread3 x before inspect", "pcap"),
            ("move generate to thread1", "is a source and cannot move"),
            ("upgrade pcap", "only filters can be upgraded"),
        ] {
            let why = edit(live, words).expect_err(words).to_string();
            assert!(why.contains(part), "{words}: {why}");
            assert_eq!(
                (live.space_names(), live.request_text().as_deref()),
                (spaces.clone(), Some(text))
            );
        }
        wait_for_blocks(live, 100);
    });
    assert!(received_numbers("refused").into_iter().eq(0..blocks_emitted(&outcome)));
}
