//! Tests of the capture reader with captures built byte by byte. `tests/captures.rs` reads files,
//! both generated ones and files written by other programs.

use super::*;

/// A builder of captures in one byte order.
struct CaptureBuilder {
    big: bool,
}

const CAPTURE_BUILDERS: [CaptureBuilder; 2] =
    [CaptureBuilder { big: false }, CaptureBuilder { big: true }];

impl CaptureBuilder {
    fn u16(&self, value: u16) -> [u8; 2] {
        if self.big { value.to_be_bytes() } else { value.to_le_bytes() }
    }

    fn encode_u32s(&self, values: &[u32]) -> Vec<u8> {
        let order = |v: &u32| if self.big { v.to_be_bytes() } else { v.to_le_bytes() };
        values.iter().flat_map(order).collect()
    }

    fn pcap_header(&self, magic: u32, version: (u16, u16), snap_length: u32, link: u32) -> Vec<u8> {
        let mut bytes = self.encode_u32s(&[magic]);
        bytes.extend(self.u16(version.0));
        bytes.extend(self.u16(version.1));
        bytes.extend(self.encode_u32s(&[0, 0, snap_length, link]));
        bytes
    }

    fn complete_block(&self, kind: u32, body: &[u8]) -> Vec<u8> {
        let padded = body.len().next_multiple_of(4);
        let length = padded as u32 + 12;
        let mut bytes = self.encode_u32s(&[kind, length]);
        bytes.extend(body);
        bytes.resize(padded + 8, 0);
        bytes.extend(self.encode_u32s(&[length]));
        bytes
    }

    fn section_block(&self, version: (u16, u16)) -> Vec<u8> {
        let mut body = self.encode_u32s(&[0x1a2b_3c4d]);
        body.extend(self.u16(version.0));
        body.extend(self.u16(version.1));
        body.extend([0xff; 8]);
        self.complete_block(0x0a0d_0d0a, &body)
    }

    fn interface_block(&self, link: u16, snap_length: u32, options: &[u8]) -> Vec<u8> {
        let mut body = self.u16(link).to_vec();
        body.extend([0, 0]);
        body.extend(self.encode_u32s(&[snap_length]));
        body.extend(options);
        self.complete_block(1, &body)
    }

    fn option(&self, code: u16, value: &[u8]) -> Vec<u8> {
        let mut bytes = self.u16(code).to_vec();
        bytes.extend(self.u16(value.len() as u16));
        bytes.extend(value);
        bytes.resize(bytes.len().next_multiple_of(4), 0);
        bytes
    }

    fn enhanced_packet_block(&self, interface: u32, ticks: u64, wire: u32, data: &[u8]) -> Vec<u8> {
        let length = data.len() as u32;
        let words = [interface, (ticks >> 32) as u32, ticks as u32, length, wire];
        self.complete_block(6, &[&self.encode_u32s(&words), data].concat())
    }
}

/// A packet: timestamp in ns, wire length, link type, interface and data.
type PacketRow = (u64, u32, u16, u16, Vec<u8>);

/// Reads all packets of a capture, or returns the fault at which the reader stopped.
fn read_packets(capture: &[u8]) -> Result<Vec<PacketRow>, CaptureFault> {
    let all = packets(capture).map(|packet| {
        let (packet, data) = packet?;
        Ok((packet.time_ns, packet.wire_length, packet.link.0, packet.interface, data.to_vec()))
    });
    all.collect()
}

fn error_text(capture: &[u8]) -> String {
    read_packets(capture).unwrap_err().to_string()
}

#[test]
fn pcap_reads_both_byte_orders_and_resolutions() {
    for order in CAPTURE_BUILDERS {
        for (magic, time_ns) in [(0xa1b2_c3d4, 5_000_006_000), (0xa1b2_3c4d, 5_000_000_006)] {
            let mut capture = order.pcap_header(magic, (2, 4), 65_535, 101);
            capture.extend(order.encode_u32s(&[5, 6, 3, 1500]));
            capture.extend(b"abc");
            capture.extend(order.encode_u32s(&[u32::MAX, 0, 0, 0]));
            let last = u64::from(u32::MAX) * 1_000_000_000;
            let expected =
                vec![(time_ns, 1500, 101, 0, b"abc".to_vec()), (last, 0, 101, 0, vec![])];
            assert_eq!(read_packets(&capture), Ok(expected));
        }
    }
}

#[test]
fn swapped_and_extended_pcap_variants_are_read() {
    let order = &CAPTURE_BUILDERS[0];
    let mut kuznetzov = order.pcap_header(0xa1b2_cd34, (2, 4), 65_535, 1);
    kuznetzov.extend(order.encode_u32s(&[1, 2, 2, 2, 77, 88]));
    kuznetzov.extend(b"ab");
    assert_eq!(read_packets(&kuznetzov), Ok(vec![(1_000_002_000, 2, 1, 0, b"ab".to_vec())]));
    let swapped = |version, lengths: [u32; 2]| {
        let mut capture = order.pcap_header(0xa1b2_c3d4, version, 65_535, 1);
        capture.extend(order.encode_u32s(&[0, 0, lengths[0], lengths[1]]));
        capture.extend(b"ab");
        read_packets(&capture).unwrap()[0].1
    };
    assert_eq!(swapped((2, 2), [9, 2]), 9);
    assert_eq!(swapped((543, 0), [9, 2]), 9);
    assert_eq!(swapped((2, 3), [9, 2]), 9);
    assert_eq!(swapped((2, 3), [2, 9]), 9);
    let with_check_sums = order.pcap_header(0xa1b2_c3d4, (2, 4), 65_535, 0x4400_0001);
    assert_eq!(read_packets(&with_check_sums), Ok(vec![]));
}

#[test]
fn pcap_data_beyond_the_snap_length_are_read() {
    let order = &CAPTURE_BUILDERS[0];
    for snap_length in [2, 0, u32::MAX] {
        let mut capture = order.pcap_header(0xa1b2_c3d4, (2, 4), snap_length, 1);
        capture.extend(order.encode_u32s(&[0, 0, 4, 4]));
        capture.extend(b"abcd");
        capture.extend(order.encode_u32s(&[0, 0, 1, 1]));
        capture.extend(b"e");
        let lengths: Vec<_> =
            read_packets(&capture).unwrap().iter().map(|packet| packet.4.len()).collect();
        assert_eq!(lengths, [4, 1], "{snap_length}");
    }
}

/// Checks that captures rejected by libpcap's tests are rejected here with the same error text.
#[test]
fn captures_rejected_by_libpcap_fail_with_the_same_text() {
    for order in CAPTURE_BUILDERS {
        let reserved = order.pcap_header(0xa1b2_c3d4, (2, 4), 65_535, 0x0030_0001);
        assert_eq!(error_text(&reserved), "savefile linktype reserved field not zero (0x00300000)");
        let version = order.pcap_header(0xa1b2_c3d4, (2, 5), 65_535, 1);
        assert_eq!(error_text(&version), "unsupported pcap savefile version 2.5");
        let pcapng = order.section_block((1, 1));
        assert_eq!(error_text(&pcapng), "unsupported pcapng savefile version 1.1");
    }
}

#[test]
fn file_that_is_no_capture_is_rejected() {
    assert_eq!(
        error_text(b"GET / HTTP/1.1\r\n\r\n and more"),
        "not a capture: it begins with 47 45 54 20, which is neither pcap nor pcapng"
    );
    assert!(error_text(&[0x1f, 0x8b, 8, 0]).contains("gunzip"));
    assert_eq!(error_text(b""), "capture ends in the middle of its header at byte 0");
    assert_eq!(
        error_text(&[0xd4, 0xc3, 0xb2, 0xa1, 2]),
        "capture ends in the middle of its header at byte 5"
    );
}

#[test]
fn truncated_capture_is_reported_with_record_and_offset() {
    let order = &CAPTURE_BUILDERS[0];
    let mut capture = order.pcap_header(0xa1b2_c3d4, (2, 4), 65_535, 1);
    for _ in 0..2 {
        capture.extend(order.encode_u32s(&[0, 0, 4, 4]));
        capture.extend(b"abcd");
    }
    for length in 0..capture.len() {
        let whole = match length {
            24 | 44 => continue,
            0..24 => "its header",
            25..44 => "record 1",
            _ => "record 2",
        };
        let expected = format!("capture ends in the middle of {whole} at byte {length}");
        assert_eq!(error_text(&capture[..length]), expected);
    }
}

#[test]
fn oversized_record_is_rejected_with_its_position() {
    let order = &CAPTURE_BUILDERS[0];
    let refused = |link, length| {
        let mut capture = order.pcap_header(0xa1b2_c3d4, (2, 4), 65_535, link);
        capture.extend(order.encode_u32s(&[0, 0, length, length]));
        match Reader::new().next(&capture) {
            ReadOutcome::Error(fault) => Some(fault.to_string()),
            _ => None,
        }
    };
    assert_eq!(refused(1, 262_144), None);
    assert_eq!(
        refused(1, 262_145).as_deref(),
        Some(
            "invalid packet capture length 262145, bigger than maximum of 262144, \
             in record 1 at byte 24"
        )
    );
    assert_eq!(refused(220, 1_048_575), None);
    assert!(refused(220, 1_048_576).is_some());
}

#[test]
fn pcapng_reads_every_kind_of_packet_block() {
    for order in CAPTURE_BUILDERS {
        let name = order.option(2, b"eth0");
        let fine = [order.option(9, &[9]), order.option(0, &[])].concat();
        let mut obsolete = order.u16(1).to_vec();
        obsolete.extend(order.u16(0));
        obsolete.extend(order.encode_u32s(&[0, 8, 2, 60]));
        obsolete.extend(b"ob");
        let simple = [&order.encode_u32s(&[9])[..], b"simple.."].concat();
        let capture = [
            order.section_block((1, 0)),
            order.interface_block(1, 8, &name),
            order.complete_block(0x0bad, &[7; 4000]),
            order.interface_block(101, 0, &fine),
            order.enhanced_packet_block(0, 5_000_006, 60, b"abc"),
            order.enhanced_packet_block(1, 5_000_006, 4, b"defg"),
            order.complete_block(2, &obsolete),
            order.complete_block(3, &simple),
            order.complete_block(5, &[0; 12]),
        ];
        let expected = vec![
            (5_000_006_000, 60, 1, 0, b"abc".to_vec()),
            (5_000_006, 4, 101, 1, b"defg".to_vec()),
            (8, 60, 101, 1, b"ob".to_vec()),
            (0, 9, 1, 0, b"simple..".to_vec()),
        ];
        assert_eq!(read_packets(&capture.concat()), Ok(expected));
    }
}

#[test]
fn pcapng_sections_may_differ_in_byte_order() {
    let [little, big] = CAPTURE_BUILDERS;
    let capture = [
        little.section_block((1, 0)),
        little.interface_block(1, 0, &[]),
        little.enhanced_packet_block(0, 1, 1, b"a"),
        big.section_block((1, 2)),
        big.interface_block(113, 0, &[]),
        big.enhanced_packet_block(0, 2, 1, b"b"),
    ];
    let expected = vec![(1_000, 1, 1, 0, b"a".to_vec()), (2_000, 1, 113, 0, b"b".to_vec())];
    assert_eq!(read_packets(&capture.concat()), Ok(expected));
    let forgotten = [&capture[..4], &capture[5..]].concat().concat();
    assert_eq!(
        error_text(&forgotten),
        "packet of interface 0, of which the section describes 0, in record 2 at byte 112"
    );
}

#[test]
fn pcapng_times_follow_resolution_and_offset() {
    let order = &CAPTURE_BUILDERS[0];
    let time = |options: &[u8], ticks| {
        let capture = [
            order.section_block((1, 0)),
            order.interface_block(1, 0, options),
            order.enhanced_packet_block(0, ticks, 0, b""),
        ];
        read_packets(&capture.concat()).unwrap()[0].0
    };
    let resolution = |value| order.option(9, &[value]);
    let offset = |seconds: i64| order.option(14, &seconds.to_le_bytes());
    assert_eq!(time(&[], 1), 1_000);
    assert_eq!(time(&resolution(0), 3), 3_000_000_000);
    assert_eq!(time(&resolution(3), 3), 3_000_000);
    assert_eq!(time(&resolution(12), 3_999), 3);
    assert_eq!(time(&resolution(127), u64::MAX), 0);
    assert_eq!(time(&resolution(0x80 | 10), 512), 500_000_000);
    assert_eq!(time(&resolution(0xff), u64::MAX), 0);
    assert_eq!(time(&resolution(0), u64::MAX), u64::MAX);
    assert_eq!(time(&offset(2), 1), 2_000_001_000);
    assert_eq!(time(&offset(-1), 1_500_000), 500_000_000);
    assert_eq!(time(&offset(i64::MIN), u64::MAX), 0);
    assert_eq!(time(&offset(i64::MAX), u64::MAX), u64::MAX);
    assert_eq!(time(&[resolution(9), offset(1)].concat(), 5), 1_000_000_005);
}

#[test]
fn malformed_pcapng_blocks_are_rejected() {
    let order = &CAPTURE_BUILDERS[0];
    let start = [order.section_block((1, 0)), order.interface_block(1, 0, &[])].concat();
    let after = |block: &[u8]| error_text(&[&start[..], block].concat());
    let mut trailer = order.enhanced_packet_block(0, 1, 1, b"abcd");
    *trailer.last_mut().unwrap() = 1;
    assert!(after(&trailer).starts_with("pcapng block with length 36 in front and 16777252 at"));
    let mut unknown = order.complete_block(0x99, &[0; 8]);
    *unknown.last_mut().unwrap() = 1;
    assert!(after(&unknown).starts_with("pcapng block with length 20 in front"));
    for length in [0, 4, 8, 13, 28] {
        let block = order.encode_u32s(&[6, length, 0, 0, 0, 0, 0, 0]);
        assert!(after(&block).contains("impossible length"), "{length}");
    }
    let long = order.encode_u32s(&[6, 0x7fff_fff0]);
    assert!(after(&long).starts_with("invalid packet capture length 2147483632"));
    let overrun = order.complete_block(6, &order.encode_u32s(&[0, 0, 0, 100, 100, 0]));
    assert!(after(&overrun).starts_with("packet data of 100 bytes in a block that holds 4"));
    let simple = order.complete_block(3, &order.encode_u32s(&[100, 0]));
    assert!(after(&simple).starts_with("packet data of 100 bytes"));
    let wide = order.enhanced_packet_block(1 << 16, 1, 1, b"");
    assert!(after(&wide).starts_with("packet of interface 65536"));
    for option in [order.option(9, &[]), order.option(14, &[1; 7]), [9, 0, 200, 0].to_vec()] {
        assert!(after(&order.interface_block(1, 0, &option)).starts_with("pcapng option"));
    }
    let mut order_unknown = order.section_block((1, 0));
    order_unknown[8] ^= 1;
    assert!(after(&order_unknown).starts_with("pcapng section with unknown byte order"));
}

#[test]
fn capture_reader_repeats_its_fault() {
    let capture = CAPTURE_BUILDERS[0].pcap_header(0xa1b2_c3d4, (9, 9), 65_535, 1);
    let mut reader = Reader::new();
    let first = reader.next(&capture);
    assert!(matches!(first, ReadOutcome::Error(_)));
    assert_eq!(reader.next(&capture), first);
    assert!(reader.finish(0).is_err());
}

/// Reads a capture piece by piece, keeping only unconsumed bytes. Returns the time and data of each
/// packet.
fn read_in_pieces(capture: &[u8], piece: usize) -> Vec<(u64, Vec<u8>)> {
    let (mut reader, mut buffer, mut fed) = (Reader::new(), Vec::new(), 0);
    let mut found = Vec::new();
    loop {
        match reader.next(&buffer) {
            ReadOutcome::Packet(packet) => {
                found.push((packet.time_ns, buffer[packet.data].to_vec()));
                buffer.drain(..packet.consumed);
            }
            ReadOutcome::NeedMore { consumed, wanted } => {
                buffer.drain(..consumed);
                assert!(wanted > buffer.len(), "asked for what it has");
                if fed == capture.len() {
                    assert_eq!(reader.finish(buffer.len()), Ok(()));
                    assert_eq!(reader.position(), capture.len() as u64);
                    return found;
                }
                let end = capture.len().min(fed + piece);
                buffer.extend(&capture[fed..end]);
                fed = end;
            }
            ReadOutcome::Error(fault) => panic!("{fault}"),
        }
    }
}

#[test]
fn chunk_size_does_not_change_the_packets() {
    let order = &CAPTURE_BUILDERS[1];
    let mut pcap = order.pcap_header(0xa1b2_3c4d, (2, 4), 65_535, 1);
    for length in 0..20u32 {
        pcap.extend(order.encode_u32s(&[length, 7, length, length]));
        pcap.extend(std::iter::repeat_n(length as u8, length as usize));
    }
    let mut pcapng = [order.section_block((1, 0)), order.interface_block(1, 0, &[])].concat();
    for length in 0..20u8 {
        pcapng.extend(order.complete_block(0x99, &vec![1; usize::from(length)]));
        pcapng.extend(order.enhanced_packet_block(
            0,
            length.into(),
            0,
            &vec![length; usize::from(length)],
        ));
    }
    for capture in [&pcap, &pcapng] {
        let whole = read_in_pieces(capture, capture.len());
        assert_eq!(whole.len(), 20);
        for piece in 1..100 {
            assert_eq!(read_in_pieces(capture, piece), whole, "pieces of {piece}");
        }
    }
}

#[test]
fn written_capture_is_read_back_unchanged() {
    let mut capture = write::encode_file_header(LinkType::LINUX_SLL2).to_vec();
    capture.extend(write::encode_record_header(1_700_000_000_123_456_789, 3, 1500));
    capture.extend(b"abc");
    capture.extend(write::encode_record_header(u64::MAX, 0, 0));
    let last = u64::from(u32::MAX) * 1_000_000_000 + 999_999_999;
    let expected =
        vec![(1_700_000_000_123_456_789, 1500, 276, 0, b"abc".to_vec()), (last, 0, 276, 0, vec![])];
    assert_eq!(read_packets(&capture), Ok(expected));
}
