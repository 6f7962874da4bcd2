//! Tests of upgrades and moves of a filter while the messages of many connections are half
//! complete. The output must equal that of a run without changes, byte for byte.

use crate::common::edit_losslessly;
use crate::script::{
    CONNECTION_COUNT, OutputBlock, assert_one_session_per_connection, run_script_with_request,
    tcp_blocks_held,
};
use engine::run::RunOutcome;

/// Runs the scripted source, and makes these edits while every message is half complete.
fn run_script_with_edits(edits: &[&str]) -> (Vec<OutputBlock>, RunOutcome) {
    let (out, outcome) = run_script_with_request(
        ("generate | tcp | http | pcap x", "tcp"),
        CONNECTION_COUNT,
        |live| {
            for words in edits {
                edit_losslessly(live, words);
                assert_eq!(
                    tcp_blocks_held(live),
                    u64::from(CONNECTION_COUNT),
                    "{words}: all of it came along"
                );
            }
        },
    );
    assert!(outcome.failures.is_empty(), "{:?}", outcome.failures);
    (out, outcome)
}

#[test]
fn v18_m4_tcp_and_http_upgrade_keeps_10000_connections() {
    let (undisturbed, _) = run_script_with_edits(&[]);
    let messages = undisturbed.iter().filter(|(_, class, _)| *class != 0).count();
    assert!(messages >= CONNECTION_COUNT as usize, "{messages}");
    let edits = ["upgrade tcp", "upgrade http", "move http to thread1", "upgrade http"];
    let (upgraded, outcome) = run_script_with_edits(&edits);
    assert!(undisturbed == upgraded, "what comes out is the same, byte by byte");
    assert_one_session_per_connection(&outcome);
}

#[test]
fn v18_m4_held_blocks_move_with_tcp_to_another_space() {
    let (undisturbed, _) = run_script_with_edits(&[]);
    let (moved, _) =
        run_script_with_edits(&["move http to thread1", "move tcp to thread1", "upgrade tcp"]);
    assert!(undisturbed == moved, "what comes out is the same, byte by byte");
}
