//! Tests that the number of blocks in a batch does not change the results of a replay.

#![allow(clippy::unwrap_used, reason = "a test may end by a panic")]

mod common;

use common::{CommandResult, Folder};
use testkit::{Capture, Frame, TcpHeader};

const SECOND_NS: u64 = 1_000_000_000;

/// Writes the capture `sparse.pcap` of two connections. In the first one, a segment arrives ten
/// seconds after those behind it. In between, the second connection has a packet each second.
fn write_sparse_capture(folder: &Folder) {
    let frame = |source: u16, sequence: u32, flags: u8, payload: &[u8]| {
        let segment = TcpHeader { source, target: 80, sequence, flags, ..TcpHeader::default() };
        Frame::ethernet().ipv4("10.0.0.1", "10.0.0.2").tcp(&segment, payload)
    };
    let (syn, data) = (2, 0x18);
    let mut frames = vec![
        (0, frame(1000, 99, syn, b"")),
        (SECOND_NS, frame(1000, 100, data, b"first")),
        (2 * SECOND_NS, frame(1000, 110, data, b"third")),
    ];
    let other = |second| (second * SECOND_NS, frame(2000, 500 + second as u32, data, b"x"));
    frames.extend((3..12).map(other));
    frames.push((12 * SECOND_NS, frame(1000, 105, data, b"later")));
    frames.extend((13..20).map(other));
    let mut capture = Capture::from_frames(frames.iter().map(|(_, frame)| frame.clone()));
    for ((time, _), place) in frames.iter().zip(&mut capture.frames) {
        place.0 = *time;
    }
    std::fs::write(folder.path().join("sparse.pcap"), capture.to_pcap()).unwrap();
}

/// A gap is abandoned at its time, so the segment that would fill it later is dropped, whether or
/// not both are in one batch.
#[test]
fn gap_ends_at_its_time_in_a_batch_of_any_size() {
    let folder = Folder::new();
    write_sparse_capture(&folder);
    for batch in ["--batch=1", "--batch=7", "--batch=64"] {
        for request in ["tcp gap=1s", "tcp@thread1 gap=1s"] {
            let request = format!("replay sparse.pcap | {request} |all print payload=text");
            let ran = folder.streamline_command(&["run", batch, &request]).output();
            let ran = CommandResult::from(ran.unwrap());
            assert_eq!(ran.status, Some(0), "{request}: {}", ran.err);
            assert!(ran.out.contains("third"), "{batch}: {}", ran.out);
            assert!(!ran.out.contains("later"), "{batch} {request}: {}", ran.out);
        }
    }
}
