//! Tests of a filter that is upgraded or moved while the messages of many connections are half
//! complete. The output must equal that of a run without changes, byte for byte.

use crate::common::edit_losslessly;
use crate::script::{CONNECTIONS, OutputBlock, assert_sessions, blocks_held, run_with_act};
use engine::run::Outcome;

/// Returns the output of the script. The edits are made while every message is half complete.
fn run_with(edits: &[&str]) -> (Vec<OutputBlock>, Outcome) {
    let (out, outcome) =
        run_with_act(("generate | tcp | http | pcap x", "tcp"), CONNECTIONS, |live| {
            for words in edits {
                edit_losslessly(live, words);
                assert_eq!(
                    blocks_held(live),
                    u64::from(CONNECTIONS),
                    "{words}: all of it came along"
                );
            }
        });
    assert!(outcome.failures.is_empty(), "{:?}", outcome.failures);
    (out, outcome)
}

#[test]
fn v18_m4_tcp_and_http_upgrade_amid_10000_connections() {
    let (undisturbed, _) = run_with(&[]);
    let messages = undisturbed.iter().filter(|(_, class, _)| *class != 0).count();
    assert!(messages >= CONNECTIONS as usize, "{messages}");
    let edits = ["upgrade tcp", "upgrade http", "move http to thread1", "upgrade http"];
    let (upgraded, outcome) = run_with(&edits);
    assert!(undisturbed == upgraded, "what comes out is the same, byte by byte");
    assert_sessions(&outcome);
}

#[test]
fn v18_m4_held_blocks_move_with_tcp_to_another_space() {
    let (undisturbed, _) = run_with(&[]);
    let (moved, _) = run_with(&["move http to thread1", "move tcp to thread1", "upgrade tcp"]);
    assert!(undisturbed == moved, "what comes out is the same, byte by byte");
}
