//! Tests of `rewrite`: incrementally updated checksums equal recomputed ones, and unsupported
//! packets stay unchanged.

use super::*;
use crate::testing::{Arena, Fragment, Frame, Node, Space, run_fragments};
use testkit::Random;
use wire::checksum::{self, pseudo_header_sum};

/// Returns the frame with its checksums filled in.
fn with_valid_checksums(mut frame: Frame) -> Frame {
    let sum = checksum::internet_checksum(&frame.bytes[14..34]);
    frame.overwrite(24, &sum.to_be_bytes());
    let at = 34
        + if frame.bytes[23] == protocol::TCP {
            tcp::CHECKSUM_OFFSET
        } else {
            udp::CHECKSUM_OFFSET
        };
    let sum = compute_transport_checksum(&frame.bytes);
    let sum = if sum == 0 { 0xffff } else { sum };
    frame.overwrite(at, &sum.to_be_bytes());
    frame
}

/// Returns the checksum of the segment and its pseudo-header, including the checksum field. The
/// result is 0 if the checksum in the field is valid.
fn compute_transport_checksum(frame: &[u8]) -> u16 {
    let [source, target] =
        [26, 30].map(|at| Ipv4Addr::from(*frame[at..].first_chunk::<4>().unwrap()).into());
    let length = frame.len() as u32 - 34;
    pseudo_header_sum(source, target, frame[23], length)
        .unwrap()
        .with_bytes(&frame[34..])
        .checksum()
}

fn run_rewrite(words: &[&str], frame: &Frame, flags: BlockFlags) -> (Class, Vec<u8>) {
    let arena = Arena::new(4);
    let mut space = Space::new(&arena);
    let mut batch = space.batch(std::slice::from_ref(frame));
    let mut block = batch.block(0);
    block.context.flags = flags;
    batch.set_block(0, block);
    let mut node = Node::new(&REWRITE, words).expect("arguments");
    let left = node.process_batch(batch, &mut space, 0);
    (left[0].class(0), left[0].block(0).frame.to_vec())
}

#[test]
fn hole_passes_unchanged() {
    let mut node = Node::new(&REWRITE, &["ttl=9"]).unwrap();
    let found = run_fragments(&mut node, &[Fragment::hole(1, 700)]);
    assert_eq!((found[0].class, found[0].length), (Class::YES, 700));
}

#[test]
fn i6_rewritten_frames_have_valid_checksums() {
    let mut random = Random::with_replayable_seed();
    for round in 0..400 {
        let length = random.within(0..40);
        let payload = random.bytes(length);
        let ports = (random.next_u64() as u16, random.next_u64() as u16);
        let frame = if round % 2 == 0 {
            Frame::udp(ports.0, ports.1, &payload)
        } else {
            Frame::tcp(ports.0, ports.1, &payload)
        };
        let frame = with_valid_checksums(frame);
        let (address, port) = (Ipv4Addr::from(random.next_u64() as u32), random.next_u64() as u16);
        let (dst, sport) = (format!("dst={address}"), format!("sport={port}"));
        let words = [&dst[..], &sport, "src=10.9.8.7", "dport=1", "ttl=9"];
        let (class, bytes) = run_rewrite(&words, &frame, BlockFlags::NONE);
        assert_eq!(class, Class::YES);
        assert_eq!((&bytes[26..30], bytes[22]), (&[10, 9, 8, 7][..], 9));
        assert_eq!(
            (&bytes[30..34], &bytes[34..36]),
            (&address.octets()[..], &port.to_be_bytes()[..])
        );
        assert_eq!(
            checksum::internet_checksum(&bytes[14..34]) % 0xffff,
            0,
            "the header of {bytes:02x?}"
        );
        assert_eq!(compute_transport_checksum(&bytes) % 0xffff, 0, "the transport of {bytes:02x?}");
    }
}

#[test]
fn i6_pending_checksum_stays_a_pseudo_header_sum() {
    let mut frame = Frame::udp(1, 2, b"payload");
    let sum = |frame: &[u8]| {
        let [source, target] =
            [26, 30].map(|at| Ipv4Addr::from(*frame[at..].first_chunk::<4>().unwrap()).into());
        pseudo_header_sum(source, target, 17, 15).unwrap().fold_to_16_bits()
    };
    let before = sum(&frame.bytes);
    frame.overwrite(40, &before.to_be_bytes());
    let words = ["dst=172.16.3.4", "dport=99"];
    let (_, bytes) = run_rewrite(&words, &frame, BlockFlags::CHECKSUM_UNSET);
    assert_eq!(read_word(&bytes, 40), sum(&bytes));
    assert_eq!(read_word(&bytes, 36), 99);
}

#[test]
fn partially_editable_packets_stay_unchanged() {
    let dccp = Frame::ipv4(33, &[0; 16]);
    let short = Frame::ipv4(6, &[0; 8]);
    let mut later = Frame::udp(1, 2, b"abc");
    later.bytes[21] = 9;
    let cases: [(&[&str], &Frame, &str); 6] = [
        (&["dst=1.2.3.4"], &Frame::ipv6(17, &[0; 8]), "not ipv4"),
        (&["sport=4"], &Frame::ipv4(1, &[8, 0, 0, 0]), "no port"),
        (&["dst=1.2.3.4"], &dccp, "other checksum"),
        (&["dport=5"], &short, "malformed"),
        (&["dport=5"], &later, "fragment"),
        (&["ttl=5"], &Frame::ethernet(&[8, 6]), "not ip"),
    ];
    for (words, frame, why) in cases {
        let answer =
            &crate::testing::answer_frames(&REWRITE, words, std::slice::from_ref(frame))[0];
        assert_eq!((answer.class, answer.reason), (Class::NONE, Some(why)), "{words:?}");
        assert_eq!(answer.bytes, frame.bytes);
    }
}

#[test]
fn absent_checksum_stays_and_macs_of_non_ip_frame_change() {
    let frame = Frame::udp(1, 2, b"abc");
    let (_, bytes) = run_rewrite(&["dst=9.9.9.9", "sport=7"], &frame, BlockFlags::NONE);
    assert_eq!(read_word(&bytes, 40), 0);
    let arp = Frame::ethernet(&[8, 6, 1, 2]);
    let (class, bytes) = run_rewrite(&["dmac=02:00:00:00:00:0a"], &arp, BlockFlags::NONE);
    assert_eq!((class, &bytes[..7]), (Class::YES, &[2, 0, 0, 0, 0, 10, 0][..]));
}

#[test]
fn invalid_arguments_are_refused() {
    let why = |words: &[&str]| Node::new(&REWRITE, words).unwrap_err().message;
    assert!(why(&[]).starts_with("there is nothing to change"));
    assert!(why(&["src=10.0.0"]).contains("write it as 10.0.0.1"));
    for mac in ["02:00:00:00:00", "02:00:00:00:00:1", "02:00:00:00:00:01:02", "0g:00:00:00:00:01"] {
        assert!(Node::new(&REWRITE, &[&format!("smac={mac}")]).is_err(), "{mac}");
    }
}
