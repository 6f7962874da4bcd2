//! Frames with real headers for the tests that compare the test twins with plain Rust. Each frame
//! is a case that at least one twin must distinguish.

/// Returns all frames on which the test twins are compared with plain Rust.
pub fn all_frames() -> Vec<Vec<u8>> {
    let udp_53 = udp_datagram(53);
    let mut frames = vec![
        ethernet_frame(0x0806, &[0; 46]),
        ethernet_frame(0x0800, &ipv4_packet(5, 17, None, &udp_53)),
        ethernet_frame(0x0800, &ipv4_packet(5, 17, None, &udp_datagram(0))),
        ethernet_frame(0x0800, &ipv4_packet(15, 17, None, &udp_53)),
        ethernet_frame(0x0800, &ipv4_packet(4, 17, None, &udp_53)),
        ethernet_frame(0x0800, &ipv4_packet(5, 6, None, &tcp_segment(80))),
        ethernet_frame(0x0800, &ipv4_packet(5, 1, None, &[8, 0, 0, 0, 0, 1, 0, 1])),
        // IP lengths that end before, within and after the ports, zero, and below the header.
        ethernet_frame(0x0800, &ipv4_packet(5, 17, Some(20), &udp_53)),
        ethernet_frame(0x0800, &ipv4_packet(5, 17, Some(23), &udp_53)),
        ethernet_frame(0x0800, &ipv4_packet(5, 17, Some(24), &udp_53)),
        ethernet_frame(0x0800, &ipv4_packet(5, 17, Some(27), &udp_53)),
        ethernet_frame(0x0800, &ipv4_packet(5, 17, Some(28), &udp_53)),
        ethernet_frame(0x0800, &ipv4_packet(5, 17, Some(0), &udp_53)),
        ethernet_frame(0x0800, &ipv4_packet(5, 17, Some(19), &udp_53)),
        ethernet_frame(0x0800, &ipv4_packet(6, 17, Some(23), &udp_53)),
        // A version that contradicts the EtherType.
        ethernet_frame(0x86dd, &ipv4_packet(5, 17, None, &udp_53)),
        ethernet_frame(0x0800, &ipv6_packet(17, None, &udp_53)),
        ethernet_frame(0x86dd, &ipv6_packet(17, None, &udp_53)),
        ethernet_frame(0x86dd, &ipv6_packet(6, None, &tcp_segment(443))),
        ethernet_frame(0x86dd, &ipv6_packet(59, None, &[])),
        ethernet_frame(0x86dd, &ipv6_packet(17, Some(0), &udp_53)),
        ethernet_frame(0x86dd, &ipv6_packet(17, Some(3), &udp_53)),
        ethernet_frame(0x86dd, &ipv6_packet(17, Some(7), &udp_53)),
        ethernet_frame(
            0x86dd,
            &ipv6_packet(0, Some(7), &extension_headers(&[0], &[0], 17, &udp_53)),
        ),
        ethernet_frame(
            0x86dd,
            &ipv6_packet(0, Some(8), &extension_headers(&[0], &[0], 17, &udp_53)),
        ),
    ];
    // "Don't fragment" is no fragment; "more fragments" and each offset bit are.
    for bits in [0x4000_u16, 0x2000, 0x0001, 0x1000, 0x1fff] {
        let mut packet = ipv4_packet(5, 17, None, &udp_53);
        packet[6..8].copy_from_slice(&bits.to_be_bytes());
        frames.push(ethernet_frame(0x0800, &packet));
    }
    // Chains of extension headers: up to the limit, beyond it, long ones, with a fragment header.
    let kinds = [0, 60, 43, 60, 60, 0];
    for depth in 1..=6 {
        let chain = extension_headers(&kinds[..depth], &[0, 1, 0, 2, 0, 0][..depth], 17, &udp_53);
        frames.push(ethernet_frame(0x86dd, &ipv6_packet(kinds[0], None, &chain)));
    }
    // Each kind at each position, and IP lengths that end exactly after each header.
    for (kind, depth) in [0, 43, 60].into_iter().flat_map(|kind| [(kind, 4), (kind, 5)]) {
        let chain = extension_headers(&vec![kind; depth], &vec![0; depth], 17, &udp_53);
        frames.push(ethernet_frame(0x86dd, &ipv6_packet(kind, None, &chain)));
    }
    for depth in 1..=4_u8 {
        let units = vec![0; depth.into()];
        let chain = extension_headers(&vec![60; depth.into()], &units, 17, &udp_53);
        for length in [u16::from(depth) * 8, u16::from(depth) * 8 - 1] {
            frames.push(ethernet_frame(0x86dd, &ipv6_packet(60, Some(length), &chain)));
        }
    }
    for chain in [&[44][..], &[0, 44], &[0, 43, 60, 44], &[0, 43, 60, 60, 44]] {
        let packet = extension_headers(chain, &vec![0; chain.len()], 17, &udp_53);
        frames.push(ethernet_frame(0x86dd, &ipv6_packet(chain[0], None, &packet)));
    }
    let long = extension_headers(&[60, 60], &[20, 20], 6, &tcp_segment(22));
    frames.push(ethernet_frame(0x86dd, &ipv6_packet(60, None, &long)));
    let tagged: Vec<Vec<u8>> =
        frames.iter().enumerate().map(|(index, frame)| insert_inline_tag(frame, index)).collect();
    frames.extend(
        tagged.iter().take(4).enumerate().map(|(index, frame)| insert_inline_tag(frame, index)),
    );
    frames.extend(tagged);
    frames
}

/// Returns four IPv6 frames whose headers reach beyond byte 256. Byte 256 is in the first, second
/// and fourth extension header of the first three frames, and in the UDP datagram of the last.
pub fn frames_with_deep_headers() -> Vec<Vec<u8>> {
    let lengths: [&[u8]; 4] = [&[30, 0], &[10, 14, 0], &[6, 6, 10, 0], &[5, 5, 5, 5]];
    let frames = lengths.iter().map(|lengths| {
        let chain = extension_headers(&vec![60; lengths.len()], lengths, 17, &udp_datagram(53));
        ethernet_frame(0x86dd, &ipv6_packet(60, None, &[chain, vec![0; 8]].concat()))
    });
    frames.collect()
}

pub fn ethernet_frame(kind: u16, payload: &[u8]) -> Vec<u8> {
    let addresses = [2, 0, 0, 0, 0, 1, 2, 0, 0, 0, 0, 2];
    [&addresses[..], &kind.to_be_bytes(), payload].concat()
}

/// Inserts a VLAN tag after the addresses of an Ethernet frame. `index` selects the type and id of
/// the tag.
fn insert_inline_tag(frame: &[u8], index: usize) -> Vec<u8> {
    const TAGS: [[u8; 4]; 5] = [
        [0x81, 0, 0, 7],
        [0x88, 0xa8, 0, 0],
        [0x81, 0, 0xff, 0xff],
        [0x81, 0, 0xe0, 0],
        [0x88, 0xa8, 0x08, 0x01],
    ];
    let (addresses, rest) = frame.split_at(12);
    [addresses, &TAGS[index % TAGS.len()], rest].concat()
}

/// Returns an IPv4 packet with a header of `words` 32-bit words, in which option bytes are zero.
/// `total` overrides the value of the total length field.
pub fn ipv4_packet(words: u8, protocol: u8, total: Option<u16>, payload: &[u8]) -> Vec<u8> {
    let header = usize::from(words.max(5)) * 4;
    let total = total.unwrap_or((header + payload.len()) as u16);
    let mut packet = vec![0; header];
    packet[0] = 0x40 | words;
    packet[2..4].copy_from_slice(&total.to_be_bytes());
    packet[8] = 64;
    packet[9] = protocol;
    packet[12..20].copy_from_slice(&[10, 0, 0, 1, 10, 0, 0, 2]);
    packet.extend(payload);
    packet
}

/// Returns an IPv6 packet with next header `next`. `length` overrides the value of the payload
/// length field.
pub fn ipv6_packet(next: u8, length: Option<u16>, payload: &[u8]) -> Vec<u8> {
    let length = length.unwrap_or(payload.len() as u16);
    let mut packet = vec![0; 40];
    packet[0] = 0x60;
    packet[4..6].copy_from_slice(&length.to_be_bytes());
    packet[6] = next;
    packet[7] = 64;
    packet[23] = 1;
    packet[39] = 2;
    packet.extend(payload);
    packet
}

/// Returns an IPv6 payload that begins with extension headers of these kinds and lengths (in units
/// of 8 bytes after the first 8), followed by `payload`, whose protocol number is `last`.
fn extension_headers(kinds: &[u8], units: &[u8], last: u8, payload: &[u8]) -> Vec<u8> {
    let mut packet = Vec::new();
    for (index, units) in units.iter().enumerate() {
        let mut header = vec![0; (usize::from(*units) + 1) * 8];
        header[0] = kinds.get(index + 1).copied().unwrap_or(last);
        header[1] = *units;
        packet.extend(header);
    }
    packet.extend(payload);
    packet
}

pub fn udp_datagram(port: u16) -> Vec<u8> {
    let mut segment = vec![0x30, 0x39, 0, 0, 0, 12, 0, 0];
    segment[2..4].copy_from_slice(&port.to_be_bytes());
    segment.extend(*b"data");
    segment
}

pub fn tcp_segment(port: u16) -> Vec<u8> {
    let mut segment = vec![0x30, 0x39, 0, 0, 0, 0, 0, 1, 0, 0, 0, 0, 0x50, 0x10, 1, 0, 0, 0, 0, 0];
    segment[2..4].copy_from_slice(&port.to_be_bytes());
    segment
}
