//! Tests of the captures that `pcap per=connection` writes.

use super::*;
use crate::sink::pcap::{PCAP, tests::read_capture};
use crate::testing::{
    TempDir, batch_from_blocks, block_with_marks, checked_arguments, decode_hex, expect_failure,
    frame_block, hole_block, sink_opening,
};
use abi::Marks;
use std::fs;

/// Returns a UDP datagram from 10.0.0.`from` to 10.0.0.`to`. The port numbers are also `from` and
/// `to`.
fn numbered_datagram(from: u8, to: u8) -> Vec<u8> {
    decode_hex(&format!(
        "020000000002 020000000001 0800 4500001e 00010000 40110000 0a0000{from:02x} 0a0000{to:02x}
         00{from:02x} 00{to:02x} 000a 0000 6869"
    ))
}

fn split_sink(dir: &str, given: &[(&str, &str)], form: Form) -> Result<Box<dyn Sink>, Failure> {
    let given: Vec<_> = [("file", dir)].iter().chain(given).copied().collect();
    let given = checked_arguments(&PCAP, &given);
    (crate::sink::pcap::ENTRY.open)(&OpenArguments { form, ..sink_opening(&given, &[]) })
}

/// Returns the captures in a directory with their frame counts.
fn capture_frame_counts(dir: &str) -> Vec<(String, usize)> {
    let names = fs::read_dir(dir).unwrap().map(|entry| entry.unwrap().file_name());
    let mut found: Vec<(String, usize)> = names
        .map(|name| name.into_string().unwrap())
        .filter(|name| name.ends_with(".pcap"))
        .map(|name| (name.clone(), read_capture(&format!("{dir}/{name}")).len()))
        .collect();
    found.sort();
    found
}

fn names_and_counts(found: &[(String, usize)]) -> Vec<(&str, usize)> {
    found.iter().map(|(name, frames)| (name.as_str(), *frames)).collect()
}

#[test]
fn h10_frames_of_a_connection_share_one_file() {
    let (one, back, two) =
        (numbered_datagram(1, 2), numbered_datagram(2, 1), numbered_datagram(1, 3));
    let arp = decode_hex("ffffffffffff 020000000001 0806 0001");
    let blocks = [&one, &two, &back, &arp, &one].map(|bytes| frame_block(bytes));
    for (per, expected) in [
        (
            "connection",
            &[
                ("000001-10.0.0.1.1-10.0.0.2.2.pcap", 3),
                ("000002-10.0.0.1.1-10.0.0.3.3.pcap", 1),
                ("000003.pcap", 1),
            ][..],
        ),
        (
            "session",
            &[
                ("000001-10.0.0.1.1-10.0.0.2.2.pcap", 2),
                ("000002-10.0.0.1.1-10.0.0.3.3.pcap", 1),
                ("000003-10.0.0.2.2-10.0.0.1.1.pcap", 1),
                ("000004.pcap", 1),
            ],
        ),
    ] {
        let dir = TempDir::new();
        let out = dir.path("out");
        let mut sink = split_sink(&out, &[("per", per), ("open", "1")], Form::Frame).unwrap();
        sink.consume(&batch_from_blocks(&blocks), 0).unwrap();
        let rows = sink.finish().unwrap().rows;
        let files = ("files".to_owned(), expected.len() as u64);
        assert_eq!(rows[..2], [files, ("frames".to_owned(), 5)]);
        assert_eq!(names_and_counts(&capture_frame_counts(&out)), expected);
        let index = fs::read_to_string(format!("{out}/index.jsonl")).unwrap();
        assert_eq!(index.lines().count(), expected.len());
    }
}

#[test]
fn ended_sessions_start_a_new_capture() {
    let dir = TempDir::new();
    let out = dir.path("out");
    let bytes = numbered_datagram(1, 2);
    let of = |session, flags| {
        let mut block = frame_block(&bytes);
        block.context.session = session;
        block.context.flags = flags;
        block
    };
    let mut gap = hole_block(9);
    gap.context.session = 1;
    gap.context.flags = BlockFlags::SESSION_END;
    let ended = BlockFlags::SESSION_END.with(BlockFlags::BACKWARD);
    let mut sink = split_sink(&out, &[("per", "connection")], Form::Segment).unwrap();
    let blocks = [
        of(1, BlockFlags::NONE),
        of(2, BlockFlags::NONE),
        of(1, ended),
        gap,
        of(1, BlockFlags::NONE),
    ];
    sink.consume(&batch_from_blocks(&blocks), 0).unwrap();
    sink.finish().unwrap();
    let name = "-10.0.0.1.1-10.0.0.2.2.pcap";
    let expected = [("000001", 2), ("000002", 1), ("000003", 1)];
    let expected = expected.map(|(number, frames)| (format!("{number}{name}"), frames));
    assert_eq!(
        capture_frame_counts(&out),
        expected,
        "the blocks after the end belong to another connection"
    );
    let mut again = split_sink(&out, &[("per", "connection")], Form::Segment).unwrap();
    again.consume(&batch_from_blocks(&[of(1, BlockFlags::NONE)]), 0).unwrap();
    again.finish().unwrap();
    assert_eq!(capture_frame_counts(&out).last(), Some(&(format!("000004{name}"), 1)));
}

#[test]
fn failure_names_the_directory() {
    let dir = TempDir::new();
    let failure = expect_failure(split_sink("-", &[("per", "session")], Form::Frame)).to_string();
    assert!(failure.ends_with("name a directory"), "{failure}");
    fs::write(dir.path("file"), "").unwrap();
    let failure =
        expect_failure(split_sink(&dir.path("file"), &[("per", "connection")], Form::Frame));
    assert!(failure.to_string().contains("not a directory"), "{failure}");
    let out = dir.path("out");
    let mut sink = split_sink(&out, &[("per", "connection")], Form::Frame).unwrap();
    let cooked = block_with_marks(Marks::frame(276, 2, 2), b"ab");
    let outcome = sink.consume(&batch_from_blocks(&[frame_block(b"x"), cooked]), 0);
    let failure = expect_failure(outcome).to_string();
    assert!(failure.contains("frames of link type EN10MB, and one of LINUX_SLL2"), "{failure}");
}
