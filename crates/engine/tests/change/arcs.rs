//! Tests of edits of arcs under traffic: a filter is added beside others, a subtree is removed,
//! moved or joined, and sources are added.

use crate::common::{
    blocks_emitted, edit, edit_losslessly, received_numbers, run_while, wait_for_blocks,
};

const UDP_REQUEST: &str = "generate rate=20000 seq=yes flows=16 | udp | inspect | pcap@thread0 ";

#[test]
fn v3_filter_added_below_a_node_receives_later_blocks() {
    let text = format!("{UDP_REQUEST}below");
    let ((from, to), outcome) = run_while(&text, |live| {
        wait_for_blocks(live, 200);
        let added = edit_losslessly(live, "add inspect | pcap below-2 below udp");
        assert!(added.text.contains("(inspect | pcap@thread0 below) + (inspect | pcap below-2)"));
        wait_for_blocks(live, 200);
        let why = edit(live, "remove inspect#2 leaf").expect_err("not empty").to_string();
        assert!(why.contains("`inspect#2` is not empty: `pcap` is below it"), "{why}");
        let removed = edit_losslessly(live, "remove inspect#2 all");
        assert_eq!(removed.text, text);
        wait_for_blocks(live, 100);
        (added.position, removed.position)
    });
    assert!(received_numbers("below").into_iter().eq(0..blocks_emitted(&outcome)));
    assert!(received_numbers("below-2").into_iter().eq(from..to), "what came meanwhile");
}

#[test]
fn v3_removal_of_the_last_child_leaves_its_parent_unread() {
    let text = format!("{UDP_REQUEST}emptied");
    let (cut, outcome) = run_while(&text, |live| {
        wait_for_blocks(live, 200);
        let removed = edit_losslessly(live, "remove inspect all");
        assert_eq!(removed.text, "generate rate=20000 seq=yes flows=16 | udp | discard");
        wait_for_blocks(live, 200);
        let added = edit_losslessly(live, "add pcap refilled below udp");
        assert!(!added.text.contains("discard"), "{}", added.text);
        wait_for_blocks(live, 100);
        (removed.position, added.position)
    });
    assert!(received_numbers("emptied").into_iter().eq(0..cut.0));
    assert!(received_numbers("refilled").into_iter().eq(cut.1..blocks_emitted(&outcome)));
}

#[test]
fn v3_moved_subtree_keeps_its_state_and_every_block() {
    let text = "generate rate=20000 seq=yes flows=16 | inspect | udp | pcap@thread0 carried";
    let ((), outcome) = run_while(text, |live| {
        for _ in 0..3 {
            wait_for_blocks(live, 200);
            let away = edit_losslessly(live, "move udp below generate/all");
            assert!(away.text.contains("inspect + |all (udp | pcap"), "{}", away.text);
            wait_for_blocks(live, 200);
            edit_losslessly(live, "move udp below inspect");
        }
        wait_for_blocks(live, 100);
        assert_eq!(live.request_text().as_deref(), Some(text));
    });
    assert!(received_numbers("carried").into_iter().eq(0..blocks_emitted(&outcome)));
    let udp = outcome.ledger.filters.iter().find(|node| node.name == "udp").expect("a node");
    assert_eq!(udp.taken.blocks, blocks_emitted(&outcome), "it goes on counting");
    let sessions = udp.counters.iter().find(|(name, _)| name == "new sessions").expect("sessions");
    assert_eq!(sessions.1, 16, "what it knows came along");
}

#[test]
fn v3_node_receives_blocks_of_both_parents_until_one_is_removed() {
    let text = "generate rate=20000 seq=yes | inspect | udp | pcap@thread0 two";
    let ((from, to), outcome) = run_while(text, |live| {
        wait_for_blocks(live, 200);
        let joined = edit_losslessly(live, "join udp below generate");
        assert!(joined.text.contains("inspect | udp --name=udp"), "{}", joined.text);
        let why = edit(live, "join udp below generate").expect_err("twice").to_string();
        assert!(why.contains("`udp` is below `generate` already"), "{why}");
        wait_for_blocks(live, 200);
        let severed = edit_losslessly(live, "sever udp from generate");
        assert_eq!(severed.text, text, "and needs no mark any more");
        let why = edit(live, "sever udp from inspect").expect_err("the last one").to_string();
        assert!(why.contains("`inspect` is the only parent of `udp`"), "{why}");
        wait_for_blocks(live, 100);
        (joined.position, severed.position)
    });
    let twice = |number: u64| if (from..to).contains(&number) { 2 } else { 1 };
    let wanted = (0..blocks_emitted(&outcome)).flat_map(|n| std::iter::repeat_n(n, twice(n)));
    assert!(received_numbers("two").into_iter().eq(wanted), "both copies, in order");
}

#[test]
fn v3_source_is_added_to_a_running_path_and_removed() {
    let text = "generate rate=20000 seq=yes | pcap@thread0 first";
    let ((), outcome) = run_while(text, |live| {
        wait_for_blocks(live, 200);
        let added = edit_losslessly(live, "add generate rate=10000 seq=yes flows=2 | pcap second");
        assert!(added.text.contains(" ; generate"), "{}", added.text);
        wait_for_blocks(live, 500);
        let moved = edit_losslessly(live, "move pcap:1 below generate:2");
        assert!(moved.text.contains("generate rate=20000 seq=yes | discard"), "{}", moved.text);
        wait_for_blocks(live, 200);
        edit_losslessly(live, "move pcap:2 below generate:1");
        wait_for_blocks(live, 200);
        edit_losslessly(live, "remove generate:2 all");
        assert_eq!(live.request_text().as_deref(), Some(text));
        wait_for_blocks(live, 200);
    });
    let second = received_numbers("second");
    assert!(second.len() > 100);
    assert!(second.iter().copied().eq(0..second.len() as u64), "each once, in order");
    let first = received_numbers("first");
    assert_eq!(first.last().copied(), Some(blocks_emitted(&outcome) - 1));
}

#[test]
fn o10_v3_second_of_two_concurrent_edits_is_refused() {
    let text = "generate rate=20000 seq=yes | inspect | udp | pcap@thread0 contested";
    let ((), outcome) = run_while(text, |live| {
        for _ in 0..10 {
            wait_for_blocks(live, 50);
            let both = std::thread::scope(|scope| {
                let one = scope.spawn(|| edit(live, "move udp from inspect below generate"));
                let other = scope.spawn(|| edit(live, "move udp from inspect below generate/all"));
                [one.join().expect("no panic"), other.join().expect("no panic")]
            });
            let refused: Vec<String> =
                both.iter().filter_map(|made| Some(made.as_ref().err()?.to_string())).collect();
            assert_eq!(refused, ["`udp` is not below `inspect`"], "one is made, one refused");
            edit_losslessly(live, "move udp below inspect");
        }
    });
    assert!(received_numbers("contested").into_iter().eq(0..blocks_emitted(&outcome)));
}
