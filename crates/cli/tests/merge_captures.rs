//! Tests of requests that read several captures, whose packets are merged by time.

#![allow(clippy::unwrap_used, reason = "a test may end by a panic")]

mod common;

use common::{CommandResult, Folder};
use std::io::Write as _;
use std::process::Stdio;
use testkit::{Capture, Frame, Random, TcpHeader, mixed_traffic};

/// Writes the capture `whole.pcap` with all frames, and `parts` captures among which the frames are
/// distributed. `part_of` returns the index of the capture that receives a frame.
fn write_partial_captures(folder: &Folder, parts: usize, mut part_of: impl FnMut(&[u8]) -> usize) {
    let whole = Capture::from_frames(mixed_traffic(5, 60).frames.into_iter().map(|(_, f)| f));
    std::fs::write(folder.path().join("whole.pcap"), whole.to_pcap()).unwrap();
    let mut all = vec![Vec::new(); parts];
    for frame in &whole.frames {
        all[part_of(&frame.1)].push(frame.clone());
    }
    for (number, frames) in all.into_iter().enumerate() {
        let mut part = whole.clone();
        part.frames = frames;
        std::fs::write(folder.path().join(format!("part{number}.pcap")), part.to_pcap()).unwrap();
    }
}

fn run(folder: &Folder, line: &str) -> CommandResult {
    let ran = CommandResult::from(folder.streamline_command(&["run", line]).output().unwrap());
    assert_eq!(ran.status, Some(0), "{line}: {}", ran.err);
    ran
}

#[test]
fn packets_of_several_captures_are_merged_by_time() {
    let folder = Folder::new();
    let mut random = Random::new(11);
    write_partial_captures(&folder, 3, |_| random.below(3) as usize);
    run(&folder, "replay whole.pcap | pcap expected.pcap");
    let expected = std::fs::read(folder.path().join("expected.pcap")).unwrap();
    for (order, join) in [("0 1 2", "++"), ("2 0 1", "++"), ("1 2 0", "+")] {
        let sources = order.split(' ').map(|part| format!("replay part{part}.pcap"));
        let sources = sources.collect::<Vec<_>>().join(&format!(" {join} "));
        let ran = run(&folder, &format!("{sources} | pcap merged.pcap"));
        let merged = std::fs::read(folder.path().join("merged.pcap")).unwrap();
        assert!(merged == expected, "{sources}: other packets, or another order: {}", ran.err);
    }
}

#[test]
fn directions_in_two_captures_give_the_same_messages() {
    let folder = Folder::new();
    // The destination's MAC address determines the capture, so all frames of one direction are in
    // the same capture.
    write_partial_captures(&folder, 2, |frame| {
        usize::from(frame[..6].iter().fold(0_u8, |a, b| a ^ b) & 1)
    });
    let rest = "| tcp | http |exchange weblog";
    let expected = run(&folder, &format!("replay whole.pcap {rest}")).out;
    assert!(expected.lines().count() > 50, "{expected}");
    for sources in
        ["replay part0.pcap ++ replay part1.pcap", "replay part1.pcap ++ replay part0.pcap"]
    {
        assert_eq!(run(&folder, &format!("{sources} {rest}")).out, expected, "{sources}");
    }
}

#[test]
fn capture_from_standard_input_does_not_wait_for_another() {
    let folder = Folder::new();
    write_partial_captures(&folder, 2, |frame| usize::from(frame[5] & 1));
    let mut command =
        folder.streamline_command(&["run", "replay - ++ replay part1.pcap | pcap both.pcap"]);
    let mut child = command.stdin(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap();
    let mut input = child.stdin.take().unwrap();
    input.write_all(&std::fs::read(folder.path().join("part0.pcap")).unwrap()).unwrap();
    drop(input);
    let ran = CommandResult::from(child.wait_with_output().unwrap());
    assert_eq!(ran.status, Some(0), "{}", ran.err);
    let sizes = ["whole", "both"]
        .map(|name| std::fs::metadata(folder.path().join(format!("{name}.pcap"))).unwrap().len());
    assert_eq!(sizes[0], sizes[1], "all packets are there: {}", ran.err);
}

#[test]
fn capture_of_a_session_ends_with_a_frame_of_another_link_type() {
    let folder = Folder::new();
    let segment = |forward: bool, sequence: u32, acknowledgement: u32, flags: u8, data: &[u8]| {
        let ports = if forward { (1000, 80) } else { (80, 1000) };
        let addresses = if forward { ("10.0.0.1", "10.0.0.2") } else { ("10.0.0.2", "10.0.0.1") };
        let (source, target) = ports;
        let segment =
            TcpHeader { source, target, sequence, acknowledgement, flags, ..TcpHeader::default() };
        Frame::ethernet().ipv4(addresses.0, addresses.1).tcp(&segment, data)
    };
    // SYN, SYN and ACK, data, FIN; the server's data comes with its FIN.
    let mut whole = Capture::from_frames([
        segment(true, 1, 0, 0x02, b""),
        segment(false, 100, 2, 0x12, b""),
        segment(true, 2, 101, 0x18, b"hello"),
        segment(true, 7, 101, 0x11, b""),
        segment(false, 101, 8, 0x19, b"late"),
    ]);
    let mut last = whole.clone();
    last.frames = vec![whole.frames.pop().unwrap()];
    last.frames[0].1.drain(..14);
    let mut raw = last.to_pcap();
    // The link type LINKTYPE_RAW.
    raw[20] = 101;
    std::fs::write(folder.path().join("raw.pcap"), raw).unwrap();
    std::fs::write(folder.path().join("ethernet.pcap"), whole.to_pcap()).unwrap();
    let ran = run(&folder, "replay ethernet.pcap ++ replay raw.pcap | tcp | pcap | json");
    let blocks: Vec<&str> = ran.out.lines().collect();
    let ends = |block: &str| block.contains("\"length\":0,") && block.contains("\"hole\":true");
    assert!(matches!(blocks[..], [_, last] if ends(last)), "{}", ran.out);
    assert!(ran.err.contains("1 in pcap (another link type)"), "{}", ran.err);
}
