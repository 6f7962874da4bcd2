//! Tests of generated frames, which are checked with the parsers of `wire` and by their sequence
//! numbers.

use super::*;
use crate::testing::{
    EmittedBlock, checked_arguments, produce_all, produce_once, sink_opening, small_segment_pool,
};
use wire::checksum;
use wire::ip::protocol;
use wire::{Flow, layers};

fn generate_source(given: &[(&str, &str)]) -> Box<dyn Source> {
    let given = checked_arguments(&GENERATE, given);
    open(&sink_opening(&given, &[])).unwrap()
}

fn flow_and_number(block: &EmittedBlock) -> (u16, u64) {
    let frame = &block.bytes;
    let layers = layers(LinkType::ETHERNET, frame);
    assert_eq!(layers.faults, Default::default());
    let packet = layers.packet(frame).unwrap();
    assert_eq!(packet.len() + IP_OFFSET, frame.len());
    assert!(ipv4::has_valid_checksum(packet));
    let flow = Flow::from_frame(&layers, frame).unwrap();
    let udp = layers.transport(frame).unwrap();
    let pseudo =
        checksum::pseudo_header_sum(flow.source, flow.target, protocol::UDP, udp.len() as u32);
    assert_eq!(pseudo.unwrap().with_bytes(udp).checksum(), 0, "the UDP checksum is valid");
    assert_ne!(udp[6..8], [0, 0], "the checksum is present");
    let number = frame[SEQUENCE_OFFSET..SEQUENCE_OFFSET + 8].try_into().unwrap();
    assert_eq!(layers.payload, Some(SEQUENCE_OFFSET as u16));
    (flow.ports.unwrap().source, u64::from_be_bytes(number))
}

#[test]
fn numbered_frames_are_valid_and_complete() {
    for size in ["60", "61", "64", "1514", "65549"] {
        let mut source =
            generate_source(&[("count", "1000"), ("size", size), ("seq", "yes"), ("flows", "3")]);
        let (emitted, end) = produce_all(&mut *source, &mut small_segment_pool(1 << 17));
        end.unwrap();
        assert_eq!(emitted.len(), 1000);
        for (number, block) in emitted.iter().enumerate() {
            assert_eq!(block.bytes.len().to_string(), size);
            let port = FIRST_SOURCE_PORT + number as u16 % 3;
            assert_eq!(flow_and_number(block), (port, number as u64));
        }
        assert_eq!(source.counters().given.blocks, 1000);
    }
}

#[test]
fn zero_checksum_is_written_as_all_ones() {
    // Exactly one sequence number below 2^16 makes the sum all ones.
    let template = FrameTemplate::new(60, 9);
    let mut room = [0; 64];
    let mut full = 0;
    for number in 0..=u64::from(u16::MAX) {
        template.write(&mut room, 0, number);
        assert_ne!(room[UDP_CHECKSUM_OFFSET..UDP_CHECKSUM_OFFSET + 2], [0, 0]);
        full += u32::from(room[UDP_CHECKSUM_OFFSET..UDP_CHECKSUM_OFFSET + 2] == [0xff, 0xff]);
    }
    assert_eq!(full, 1);
}

#[test]
fn unnumbered_frames_are_stored_once_per_flow() {
    let mut source = generate_source(&[("count", "200"), ("flows", "3")]);
    let mut pool = small_segment_pool(1 << 16);
    let (emitted, end) = produce_all(&mut *source, &mut pool);
    end.unwrap();
    assert_eq!(emitted.len(), 200);
    for (number, block) in emitted.iter().enumerate() {
        assert_eq!(flow_and_number(block), (FIRST_SOURCE_PORT + number as u16 % 3, 0));
        assert_eq!(block.entry, emitted[number % 3].entry, "each flow is stored once");
    }
    assert_eq!(pool.usage().pinned, 1);
}

#[test]
fn flows_beyond_one_block_are_written_each_time() {
    let mut source = generate_source(&[("count", "300"), ("flows", "200"), ("size", "100")]);
    let (emitted, end) = produce_all(&mut *source, &mut small_segment_pool(1 << 12));
    end.unwrap();
    let ports: Vec<u16> = emitted.iter().map(|block| flow_and_number(block).0).collect();
    let expected: Vec<u16> = (0..300).map(|number| FIRST_SOURCE_PORT + number % 200).collect();
    assert_eq!(ports, expected);
}

#[test]
fn late_frames_are_emitted_at_once_to_keep_the_rate() {
    let mut source = generate_source(&[("rate", "1000"), ("count", "10")]);
    let mut pool = small_segment_pool(1 << 16);
    let mut at = |us: u64, room| {
        let (given, emitted) = produce_once(&mut *source, &mut pool, room, us * 1000).unwrap();
        (given, emitted.len())
    };
    let until = |us: u64| SourceStatus::retry_at(us * 1000);
    assert_eq!(at(7, 64), (SourceStatus::Blocks, 1));
    assert_eq!(at(8, 64), (until(1007), 0));
    assert_eq!(at(1006, 64), (until(1007), 0));
    assert_eq!(at(1007, 64), (SourceStatus::Blocks, 1));
    assert_eq!(at(4500, 2), (SourceStatus::Blocks, 2));
    assert_eq!(at(4500, 64), (SourceStatus::Blocks, 1));
    assert_eq!(at(4500, 64), (until(5007), 0));
    assert_eq!(at(99_000, 64), (SourceStatus::End, 5));
    assert_eq!(at(99_000, 64), (SourceStatus::End, 0));
}

#[test]
fn full_pool_delays_the_source() {
    let mut pool = small_segment_pool(1 << 12);
    while pool.append(4096, |room| room.len()).is_some() {}
    for seq in ["yes", "no"] {
        let mut source = generate_source(&[("seq", seq), ("count", "1")]);
        let wait = SourceStatus::retry_at(5);
        let mut columns = filter::Columns::default();
        let given = source.produce(&mut Intake::new(&pool, &mut columns, 64, 5)).unwrap();
        assert_eq!((given, columns.len()), (wait, 0));
    }
    pool.end_pass();
    let (emitted, end) = produce_all(&mut *generate_source(&[("count", "1")]), &mut pool);
    end.unwrap();
    assert_eq!(emitted.len(), 1);
}
