//! Tests of changes to a request that takes a flow from the host: every frame of the flow reaches
//! the request, before, during and after a change, and no frame reaches the host.

use crate::change::{LiveRequest, OPERATION_TIMEOUT, change_request};
use crate::frame_sending::{parse_capture, send_all};
use crate::numbered_frames::{FRAME_LENGTH, frame_numbers, numbered_frames};
use crate::scratch::Scratch;
use crate::shared_changes::StopSenderOnDrop;
use crate::shared_program::{attached_program_ids, quiet_pair, send_frames_until_stopped};
use engine::change::change;
use pipeline::edit::Edit;
use std::sync::atomic::AtomicBool;
use testkit::net::{SERVER_DEVICE, wait_until};

/// The changes that the test makes, in this order. They include each kind of change, for filters in
/// the kernel and for filters in the process.
const CHANGES: [&str; 7] = [
    "insert ip before udp",
    "move udp process",
    "insert dport after udp",
    "upgrade udp",
    "move udp kernel",
    "remove ip",
    "remove dport",
];

/// Changes a request that takes a flow while frames of the flow arrive. Asserts that the frames
/// received and lost add up to the frames sent: a frame that reached the host instead would be
/// missing from both counts.
#[test]
fn v3_g7_no_frame_escapes_while_its_flow_taker_changes() {
    let Some(pair) = quiet_pair() else { return };
    let scratch = Scratch::new();
    let file = scratch.path("all.pcap");
    let text = format!(
        "rx@kernel {SERVER_DEVICE} take \"udp port 9\" ring=64MB | udp | pcap '{}'",
        file.display()
    );
    let line = LiveRequest::start(&pair, &text);
    let stop = AtomicBool::new(false);
    let sent = std::thread::scope(|scope| {
        let sender = scope.spawn(|| send_frames_until_stopped(&pair, 50, &stop));
        let ends = StopSenderOnDrop(&stop);
        for words in CHANGES.iter().cycle().take(3 * CHANGES.len()) {
            let before = line.blocks_received();
            wait_until("frames come", || line.live.has_ended() || line.blocks_received() > before);
            assert!(!line.live.has_ended(), "{words}");
            change_request(&line.live, words);
            assert_eq!(attached_program_ids(&pair).len(), 1, "{words}");
        }
        drop(ends);
        sender.join().expect("a sender")
    });
    let outcome = line.stop();
    let frames = parse_capture(&std::fs::read(file).expect("a capture"));
    let numbers = frame_numbers(&frames);
    assert!(numbers.is_sorted_by(|one, next| one < next), "each once, in order");
    let lost = outcome.ledger.lost_blocks();
    assert_eq!(numbers.len() as u64 + lost, sent, "{:#?}", outcome.ledger);
    assert!(attached_program_ids(&pair).is_empty(), "nothing stays");
}

/// Tries to change the expression of a running source. Asserts that the change is refused, because
/// the source cannot be replaced, and that the request continues as before.
#[test]
fn g7_change_of_a_running_expression_is_refused() {
    let Some(pair) = quiet_pair() else { return };
    let scratch = Scratch::new();
    let file = scratch.path("all.pcap");
    let text =
        format!("rx@kernel {SERVER_DEVICE} take \"udp port 9\" | udp | pcap '{}'", file.display());
    let line = LiveRequest::start(&pair, &text);
    let programs = attached_program_ids(&pair);
    let other = format!("replace rx with rx {SERVER_DEVICE} take \"udp\"");
    for words in [other.as_str(), "arg rx expression=udp"] {
        let words: Vec<&str> = words.split(' ').collect();
        let changed = Edit::parse(&words).map_err(|why| why.to_string()).and_then(|edit| {
            change(&line.live, &edit, &engine::machine::inspect_machine(), OPERATION_TIMEOUT)
                .map_err(|why| why.to_string())
        });
        let why = changed.expect_err("the expression cannot change");
        assert!(why.contains("rx"), "{why}");
        assert_eq!(attached_program_ids(&pair), programs, "{words:?}");
    }
    send_all(&pair, &numbered_frames(0..20, FRAME_LENGTH));
    wait_until("they come", || line.blocks_received() == 20);
    let outcome = line.stop();
    assert_eq!(outcome.ledger.lost_blocks(), 0, "{:#?}", outcome.ledger);
}
