//! Tests of a filter that is upgraded or moved in the middle of messages of many connections: the
//! output equals that of an undisturbed run, byte for byte.

use crate::common::set;
use crate::script::{CONNECTIONS, OutputBlock, assert_sessions, held, run_with_act};
use engine::run::Outcome;

/// Returns the output of the script, with these edits made in the middle of all messages.
fn run_with(edits: &[&str]) -> (Vec<OutputBlock>, Outcome) {
    let (out, outcome) =
        run_with_act(("generate | tcp | http | pcap x", "tcp"), CONNECTIONS, |live| {
            for words in edits {
                set(live, words);
                assert_eq!(held(live), u64::from(CONNECTIONS), "{words}: all of it came along");
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
