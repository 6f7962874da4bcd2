//! Probe 6: plain-data state is saved in one process and restored in another.
//!
//! Every filter with movable state that needs no argument receives the first half of the traffic in
//! this process and the second half in another. Its report, and its result for each block of the
//! second half, are the same as those of a filter that receives all traffic in this process.

use filter::testing::{Arena, Frame, Node, Space};
use filter::{Batch, Description, MovedSession, StateScope};
use std::io::{Read, Write};
use std::process::{Command, Stdio};

const CHILD_VARIABLE: &str = "STREAMLINE_PROBE_STATE";
const FRAMES: usize = 640;
/// Number of flows: less than half of the number of frames, so that each flow occurs in both
/// halves.
const FLOWS: usize = 100;

fn movable_filters() -> Vec<&'static Description> {
    let keeps = |d: &&&'static Description| {
        matches!(d.state.scope, StateScope::Private | StateScope::Sessions)
    };
    let plain = |d: &&&'static Description| Node::new(d, &[]).is_ok();
    filter::catalog::FILTERS.iter().filter(keeps).filter(plain).copied().collect()
}

fn flow_frames(range: std::ops::Range<usize>) -> Vec<Frame> {
    let frame = |i: usize| {
        let payload = vec![u8::try_from(i % 251).unwrap(); 1 + i % 300];
        Frame::udp(u16::try_from(1 + i % FLOWS).unwrap(), 53, &payload).at_time(i as u64 * 1_000)
    };
    range.map(frame).collect()
}

/// Sends frames through a filter. Returns the class and the session of each block that leaves the
/// filter.
fn feed_frames(node: &mut Node, range: std::ops::Range<usize>) -> Vec<(u32, u32)> {
    let arena = Arena::new(FRAMES + 1);
    let mut space = Space::new(&arena);
    let mut emitted = Vec::new();
    for some in flow_frames(range).chunks(32) {
        let batch: Batch<'_> = space.batch(some);
        let now = 0;
        for batch in node.process_batch(batch, &mut space, now) {
            let blocks = batch.blocks();
            emitted.extend(blocks.map(|(_, block)| (block.pointer.class.0, block.context.session)));
        }
    }
    emitted
}

/// Formats the final report of a filter, and its results for blocks, as text.
fn final_report(node: &Node, emitted: &[(u32, u32)]) -> String {
    format!("{:?} {emitted:?}", node.report())
}

fn encode_sessions(saved: &[MovedSession]) -> Vec<u8> {
    let mut bytes = Vec::new();
    for moved in saved {
        assert!(moved.held.iter().all(Vec::is_empty), "nothing is held between these turns");
        bytes.extend(moved.key.to_le_bytes());
        bytes.extend((moved.bytes.len() as u64).to_le_bytes());
        bytes.extend((moved.held.len() as u64).to_le_bytes());
        bytes.extend(&moved.bytes);
    }
    bytes
}

fn decode_sessions(mut bytes: &[u8]) -> Vec<MovedSession> {
    let mut saved = Vec::new();
    while let Some((head, rest)) = bytes.split_at_checked(24) {
        let word = |i: usize| u64::from_le_bytes(head[i * 8..i * 8 + 8].try_into().unwrap());
        let (state, rest) = rest.split_at(usize::try_from(word(1)).unwrap());
        let held = vec![Vec::new(); usize::try_from(word(2)).unwrap()];
        saved.push(MovedSession { key: word(0), bytes: state.to_vec(), held });
        bytes = rest;
    }
    saved
}

/// Entry point of the child process that continues the run. It reads a state from standard input,
/// receives the second half of the traffic, and prints its report and its results.
#[test]
fn child_process_continues_from_state() {
    let Ok(name) = std::env::var(CHILD_VARIABLE) else { return };
    let mut state = Vec::new();
    std::io::stdin().read_to_end(&mut state).unwrap();
    let description = filter::catalog::find(&name).unwrap();
    let mut node = Node::new(description, &[]).unwrap();
    node.restore_sessions(decode_sessions(&state)).unwrap();
    let emitted = feed_frames(&mut node, FRAMES / 2..FRAMES);
    println!("{CHILD_VARIABLE}{}", final_report(&node, &emitted));
}

fn child_report(description: &Description, saved: &[MovedSession]) -> String {
    let mut child = Command::new(std::env::current_exe().unwrap())
        .args(["state::child_process_continues_from_state", "--exact", "--nocapture"])
        .env(CHILD_VARIABLE, description.name)
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .spawn()
        .unwrap();
    child.stdin.take().unwrap().write_all(&encode_sessions(saved)).unwrap();
    let output = child.wait_with_output().unwrap();
    assert!(output.status.success(), "{output:?}");
    let text = String::from_utf8(output.stdout).unwrap();
    let line = text.lines().find_map(|line| Some(line.split_once(CHILD_VARIABLE)?.1.to_owned()));
    line.expect("the report of the other process")
}

#[test]
fn m1_m4_v18_state_continues_in_another_process() {
    let filters = movable_filters();
    let mut needed = Vec::new();
    for description in filters {
        let mut whole = Node::new(description, &[]).unwrap();
        feed_frames(&mut whole, 0..FRAMES / 2);
        let emitted = feed_frames(&mut whole, FRAMES / 2..FRAMES);
        let mut first = Node::new(description, &[]).unwrap();
        feed_frames(&mut first, 0..FRAMES / 2);
        let there = child_report(description, &first.take_sessions());
        let (name, here) = (description.name, final_report(&whole, &emitted));
        assert_eq!(there, here, "{name}");
        // The state matters: without the first half the result differs.
        let mut late = Node::new(description, &[]).unwrap();
        let emitted = feed_frames(&mut late, FRAMES / 2..FRAMES);
        if final_report(&late, &emitted) != here {
            needed.push(name);
        }
    }
    // Others have no state for these frames, for example without fragments.
    for name in ["count", "hist", "inspect", "udp"] {
        assert!(needed.contains(&name), "`{name}` is not among {needed:?}");
    }
}
