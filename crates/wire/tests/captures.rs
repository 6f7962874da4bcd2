//! Tests of the capture reader with complete, truncated and damaged captures, both generated and
//! external. The reader must neither panic nor loop, the offsets of layers must lie inside the
//! frame, and if `pcap-parser` reads a capture without an error, both readers must return the same
//! packets.

#![allow(clippy::unwrap_used, clippy::print_stdout, reason = "the test prints its counts")]

use std::fs;
use std::path::Path;

use pcap_parser::traits::PcapNGPacketBlock;
use pcap_parser::{Block, PcapBlockOwned, PcapError, create_reader};
use streamline_wire::capture::{self, CaptureFault, ReadOutcome, Reader};
use streamline_wire::link::NetworkProtocol;
use streamline_wire::{Flow, Layers, LinkType, checksum, ip, ipv4, layers};
use testkit::{Captures, Random};

#[test]
fn generated_captures_match_pcap_parser() {
    let (captures, agreed, refused) = compare_with_reference_reader(&testkit::generated_captures());
    assert!(agreed + refused == captures && refused < 10, "{agreed} of {captures}, not {refused}");
}

#[test]
fn corpus_captures_match_pcap_parser() {
    let Some(corpus) = testkit::corpus_captures() else { return };
    let (captures, agreed, refused) = compare_with_reference_reader(&corpus);
    assert!(agreed * 10 > captures * 9, "only {agreed} of {captures}");
    assert!(refused < 40, "{refused} refused");
}

/// Compares this crate's reader with `pcap-parser` on all captures. Returns the number of captures,
/// the number that both read identically, and the number that this crate rejects.
fn compare_with_reference_reader(captures: &Captures) -> (usize, usize, usize) {
    let (mut agreed, mut packets, mut refused) = (0, 0, Vec::new());
    let captures = &captures.paths;
    for path in captures {
        let bytes = fs::read(path).unwrap();
        let (ours, end) = read_capture(&bytes);
        packets += ours.len();
        if let Some(fault) = end {
            refused.push(format!("{}: {fault}", path.display()));
        }
        // If this crate reports a fault, `pcap-parser` may have continued.
        let Some(theirs) = reference_packets(&bytes) else { continue };
        // `pcap-parser` stores only 32 bits of the seconds.
        let late = |time_ns| time_ns > u64::from(u32::MAX) * NS_PER_SECOND;
        let same = ours
            .iter()
            .zip(&theirs)
            .all(|(ours, theirs)| (ours.0 == theirs.0 || late(ours.0)) && ours.1 == theirs.1);
        assert!(same, "{}: other packets", path.display());
        let counts = (ours.len(), theirs.len());
        assert!(end.is_some() || counts.0 == counts.1, "{}: {counts:?}", path.display());
        agreed += usize::from(end.is_none());
    }
    for line in &refused {
        println!("{line}");
    }
    println!("{} captures, {packets} packets, {} with a fault", captures.len(), refused.len());
    (captures.len(), agreed, refused.len())
}

#[test]
fn bundled_capture_has_the_expected_fields() {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../examples/web.pcap");
    let bytes = fs::read(path).unwrap();
    let (mut tcp, mut udp, mut tagged, mut web) = (0, 0, 0, 0);
    for packet in capture::packets(&bytes) {
        let (packet, frame) = packet.unwrap();
        let found = layers(packet.link, frame);
        assert_eq!(found.faults, Default::default(), "{found:?}");
        tagged += u32::from(found.tags.count);
        let Some(flow) = Flow::from_frame(&found, frame) else { continue };
        if found.network == NetworkProtocol::Ipv4 {
            assert!(ipv4::has_valid_checksum(found.packet(frame).unwrap()));
        }
        let transport = found.transport(frame).unwrap();
        let length = transport.len() as u32;
        let sum =
            checksum::pseudo_header_sum(flow.source, flow.target, flow.protocol, length).unwrap();
        match flow.protocol {
            ip::protocol::TCP => tcp += 1,
            ip::protocol::UDP => udp += 1,
            _ => continue,
        }
        assert_eq!(sum.with_bytes(transport).checksum(), 0, "{flow}");
        web += u32::from(flow.ports.is_some_and(|ports| ports.source == 80 || ports.target == 80));
    }
    // tshark reports the same numbers.
    assert_eq!((tcp, udp, tagged), (90, 9, 1));
    assert_eq!(web, 75);
}

#[test]
fn truncated_captures_never_panic() {
    read_truncated_anywhere(&testkit::generated_captures());
}

#[test]
fn corpus_truncated_captures_never_panic() {
    testkit::corpus_captures().iter().for_each(read_truncated_anywhere);
}

fn read_truncated_anywhere(captures: &Captures) {
    let mut random = Random::with_replayable_seed();
    for path in &captures.paths {
        let bytes = fs::read(path).unwrap();
        for _ in 0..4 {
            let cut = random.within(0..bytes.len().min(CAPTURE_BYTES_MAX) + 1);
            read_capture(&bytes[..cut]);
        }
        for packet in capture::packets(&bytes).take(DISSECTED_PACKETS_MAX).flatten() {
            let (packet, frame) = packet;
            for cut in 0..frame.len().min(100) {
                check_dissection(packet.link, &frame[..cut]);
            }
        }
    }
}

#[test]
fn captures_with_flipped_bits_never_panic() {
    read_with_flipped_bits(&testkit::generated_captures());
}

#[test]
fn corpus_captures_with_flipped_bits_never_panic() {
    testkit::corpus_captures().iter().for_each(read_with_flipped_bits);
}

fn read_with_flipped_bits(captures: &Captures) {
    let mut random = Random::with_replayable_seed();
    for path in &captures.paths {
        let mut bytes = fs::read(path).unwrap();
        bytes.truncate(CAPTURE_BYTES_MAX);
        let flips = 1 + bytes.len() / 200;
        random.flip_bits(&mut bytes, flips);
        // Reading usually ends early, at a flipped length. A second read therefore begins at a
        // random offset, as if a record began there.
        read_capture(&bytes);
        let mut headless = bytes.get(..24).unwrap_or_default().to_vec();
        headless.extend(bytes.get(random.within(0..bytes.len() + 1)..).unwrap_or_default());
        read_capture(&headless);
        read_in_pieces(&bytes, random.within(1..5_000));
    }
}

#[test]
fn layers_of_damaged_frames_stay_inside_the_frame() {
    dissect_flipped_frames(&testkit::generated_captures());
}

#[test]
fn corpus_layers_of_damaged_frames_stay_inside_the_frame() {
    testkit::corpus_captures().iter().for_each(dissect_flipped_frames);
}

fn dissect_flipped_frames(captures: &Captures) {
    let mut random = Random::with_replayable_seed();
    for path in &captures.paths {
        let bytes = fs::read(path).unwrap();
        for (packet, frame) in capture::packets(&bytes).take(DISSECTED_PACKETS_MAX).flatten() {
            let mut frame = frame.to_vec();
            let head = frame.len().min(80);
            for _ in 0..20 {
                random.flip_bits(&mut frame[..head], 2);
                check_dissection(packet.link, &frame);
            }
        }
    }
}

/// Maximum size in bytes of a capture in the destructive tests, so that they take only seconds.
const CAPTURE_BYTES_MAX: usize = 64 * 1024;
/// Maximum number of packets per capture that the destructive tests dissect.
const DISSECTED_PACKETS_MAX: usize = 12;

/// Time in ns and data of a packet.
type TimedPacket<'a> = (u64, &'a [u8]);

/// Reads and dissects all packets of a capture. Returns the packets, and the fault that ended the
/// reading, if any.
fn read_capture(bytes: &[u8]) -> (Vec<TimedPacket<'_>>, Option<CaptureFault>) {
    let mut all = Vec::new();
    for packet in capture::packets(bytes) {
        match packet {
            Ok((packet, frame)) => {
                check_dissection(packet.link, frame);
                all.push((packet.time_ns, frame));
            }
            Err(fault) => {
                assert!(!fault.to_string().is_empty());
                assert!(fault.at <= bytes.len() as u64);
                return (all, Some(fault));
            }
        }
    }
    (all, None)
}

/// Reads a capture as from a pipe: adds `piece` bytes to the buffer whenever the reader needs more.
fn read_in_pieces(bytes: &[u8], piece: usize) {
    let (mut reader, mut start, mut end) = (Reader::new(), 0, 0);
    loop {
        match reader.next(&bytes[start..end]) {
            ReadOutcome::Packet(packet) => start += packet.consumed,
            ReadOutcome::NeedMore { consumed, wanted } => {
                start += consumed;
                assert!(wanted > end - start && wanted <= capture::BLOCK_LENGTH_MAX as usize);
                if end == bytes.len() {
                    break;
                }
                end = bytes.len().min(end + piece);
            }
            ReadOutcome::Error(_) => break,
        }
        assert_eq!(reader.position(), start as u64);
    }
}

/// Dissects a frame, checks the invariants that hold for arbitrary bytes, and returns the layers.
fn check_dissection(link: LinkType, frame: &[u8]) -> Layers {
    let found = layers(link, frame);
    assert!(found.end as usize <= frame.len(), "{found:?}");
    let marks = [found.l3, found.l4, found.payload].map(|mark| mark.map(usize::from));
    let [l3, l4, payload] = marks;
    assert!(l3 <= l4 || l4.is_none(), "{found:?}");
    assert!(l4 <= payload || payload.is_none(), "{found:?}");
    assert!(marks.iter().flatten().all(|mark| *mark <= frame.len()), "{found:?}");
    assert!(l4.is_none() || found.transport(frame).is_some(), "{found:?}");
    assert!(payload.is_none() || found.payload(frame).is_some(), "{found:?}");
    assert_eq!(found.tags.iter(frame).count(), usize::from(found.tags.count), "{found:?}");
    if let Some(flow) = Flow::from_frame(&found, frame) {
        assert_eq!(flow.hash(0), flow.reversed().hash(0));
        assert_eq!(flow.normalized().0, flow.reversed().normalized().0);
    }
    found
}

/// Returns the time and data of each packet, as read by `pcap-parser`; `None` if it reports an
/// error. `pcap-parser` supports neither Kuznetzov's records nor obsolete packet blocks.
fn reference_packets(bytes: &[u8]) -> Option<Vec<(u64, Vec<u8>)>> {
    let mut reader = create_reader(1 << 20, bytes).ok()?;
    let mut all = Vec::new();
    let mut interfaces: Vec<(u64, u64)> = Vec::new();
    let mut tick_ns = 1_000;
    loop {
        let (consumed, block) = match reader.next() {
            Ok(next) => next,
            Err(PcapError::Eof) => return Some(all),
            Err(PcapError::Incomplete(_)) => {
                reader.refill().ok()?;
                continue;
            }
            Err(_) => return None,
        };
        match block {
            PcapBlockOwned::LegacyHeader(header) => {
                tick_ns = if header.is_nanosecond_precision() { 1 } else { 1_000 };
            }
            PcapBlockOwned::Legacy(packet) => {
                let time_ns =
                    u64::from(packet.ts_sec) * NS_PER_SECOND + u64::from(packet.ts_usec) * tick_ns;
                all.push((time_ns, packet.data.to_vec()));
            }
            PcapBlockOwned::NG(Block::SectionHeader(_)) => interfaces.clear(),
            PcapBlockOwned::NG(Block::InterfaceDescription(interface)) => {
                let offset = u64::try_from(interface.ts_offset()).ok()?;
                interfaces.push((offset, interface.ts_resolution()?));
            }
            PcapBlockOwned::NG(Block::EnhancedPacket(packet)) => {
                let (offset, resolution) = *interfaces.get(packet.if_id as usize)?;
                let (seconds, fraction) = packet.decode_ts(offset, resolution);
                let fraction_ns = u64::from(fraction) * (NS_PER_SECOND / resolution);
                let time_ns = u64::from(seconds) * NS_PER_SECOND + fraction_ns;
                all.push((time_ns, packet.packet_data().to_vec()));
            }
            PcapBlockOwned::NG(Block::SimplePacket(packet)) => {
                all.push((0, packet.packet_data().to_vec()));
            }
            PcapBlockOwned::NG(Block::Unknown(block)) if block.block_type == 2 => return None,
            PcapBlockOwned::NG(_) => {}
        }
        reader.consume(consumed);
    }
}

const NS_PER_SECOND: u64 = 1_000_000_000;
