//! Tests of changes to paths whose operands hold blocks: every block must leave its section once
//! and unchanged (docs/book/decisions/0047-operands.md).

use crate::common::edit_losslessly;
use crate::script::{CONNECTION_COUNT, ledger_entry, run_script_with_request, tcp_blocks_held};

/// Returns the sorted output of the request. Makes the edits while `tcp` holds a block of each
/// connection and `http` holds half of a message head.
fn output_with_edits(line: &str, edits: &[&str]) -> Vec<Vec<u8>> {
    let (out, outcome) = run_script_with_request((line, "tcp"), CONNECTION_COUNT, |live| {
        for words in edits {
            edit_losslessly(live, words);
            assert_eq!(
                tcp_blocks_held(live),
                u64::from(CONNECTION_COUNT),
                "{words}: what was held still is"
            );
            let section = ledger_entry(live, "boolean").expect("a row");
            let both = 2 * u64::from(CONNECTION_COUNT);
            assert_eq!(section.held.blocks, both, "{words}: {section:?}");
        }
    });
    assert!(outcome.failures.is_empty(), "{:?}", outcome.failures);
    for node in &outcome.ledger.filters {
        assert_eq!(node.held.blocks, 0, "{} holds nothing at the end", node.name);
    }
    let mut frames: Vec<Vec<u8>> = out.into_iter().map(|(_, _, bytes)| bytes).collect();
    frames.sort();
    frames
}

#[test]
fn v3_a12_change_while_operands_hold_blocks_loses_none() {
    let line = "generate | (tcp |80 http) ++ !tcp | pcap@thread0 x";
    let undisturbed = output_with_edits(line, &[]);
    // Four of the five frames of a connection carry data. The first is a TCP frame without data.
    assert_eq!(undisturbed.len(), 4 * CONNECTION_COUNT as usize);
    let edits = [
        "insert inspect before pcap",
        "upgrade tcp:1",
        "insert count after http",
        "remove inspect",
        "remove count",
    ];
    assert!(undisturbed == output_with_edits(line, &edits), "the same frames, each once");
}

#[test]
fn v3_a12_removed_operand_releases_waiting_blocks() {
    let line = "generate | tcp ++ bpf \"udp\" | pcap@thread0 x";
    let undisturbed = output_with_edits(line, &[]);
    assert_eq!(undisturbed.len(), 5 * CONNECTION_COUNT as usize);
    let (out, outcome) = run_script_with_request((line, "tcp"), CONNECTION_COUNT, |live| {
        edit_losslessly(live, "replace tcp with bpf \"tcp\"");
    });
    assert!(outcome.failures.is_empty(), "{:?}", outcome.failures);
    let mut frames: Vec<Vec<u8>> = out.into_iter().map(|(_, _, bytes)| bytes).collect();
    frames.sort();
    assert!(undisturbed == frames, "the same frames, each once");
}
