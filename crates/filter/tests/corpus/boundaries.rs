//! Frames on both sides of each decision that a twin makes, and the layouts in which the kernel may
//! store a frame.

use ebpf::interpret::Packet;
use filter::testing::{ETHERNET, Frame, TEST_KEY};
use filter::transport::token::token_writer::write_token;
use wire::checksum::OnesComplementSum;

/// Returns the bytes of the frames that have an Ethernet header.
pub(crate) fn ethernet_bytes(frames: Vec<Frame>) -> Vec<Vec<u8>> {
    let frames = frames.into_iter().filter(|frame| frame.link == ETHERNET);
    frames.map(|frame| frame.bytes).collect()
}

/// Returns frames on both sides of each comparison that a twin makes: tags, extension headers,
/// lengths.
pub(crate) fn boundary_frames() -> Vec<Vec<u8>> {
    let mut frames = ethernet_bytes(super::header_case_frames());
    let udp = Frame::udp(4000, 53, b"abcdefgh");
    let mut change = |at: usize, values: &[u8]| {
        for value in values {
            let mut frame = udp.bytes.clone();
            frame[at] = *value;
            frames.push(frame);
        }
    };
    change(12, &[0, 5, 6, 7, 9, 0x81, 0x86, 0x88, 0x91]);
    change(14, &[0x35, 0x44, 0x46, 0x4f, 0x55, 0x65]);
    change(17, &[0, 19, 20, 23, 24, 27, 28, 35, 36, 37]);
    change(20, &[0x20, 0x40, 0x80, 0x01, 0x1f]);
    change(21, &[1, 0x80]);
    change(23, &[0, 1, 5, 6, 7, 16, 18, 131, 132, 133, 255]);
    change(39, &[0, 1, 7, 8, 9, 15, 16, 17]);
    change(38, &[1]);
    let datagram = &udp.bytes[34..];
    frames.extend(extension_packets(datagram));
    // The segment consists of the TCP ports only.
    let mut ports = [&udp.bytes[..34], &[0, 2, 0, 80]].concat();
    (ports[17], ports[23]) = (24, 6);
    frames.push(ports);
    for kind in [0x0800_u16, 0x86dd, 0x8100, 0x05ff] {
        frames.push(Frame::ethernet(&kind.to_be_bytes()).bytes);
    }
    for kind in [0x05ff_u16, 0x0600, 0x80ff, 0x8101, 0x88a7, 0x88a9, 0x90ff, 0x9101, 0x9100] {
        frames.push(Frame::ethernet(&[&kind.to_be_bytes(), &udp.bytes[14..]].concat()).bytes);
    }
    let mut six = Frame::ipv6(17, datagram).bytes;
    for length in [0, 1, 7, 8, 9, 15, 16, 17] {
        six[19] = length;
        frames.push(six.clone());
    }
    six[14] = 0x45;
    frames.push(six);
    frames.extend(varied_frames(24));
    frames.push([&udp.bytes[..12], &[8, 0], &[0x47, 0, 0, 36], &udp.bytes[18..]].concat());
    frames.extend(longest_header_frames());
    let tag = |frame: &[u8], tag: [u8; 4]| [&frame[..12], &tag, &frame[12..]].concat();
    for index in 0..frames.len() {
        let tagged = tag(&frames[index], [0x81, 0, 0xef, 0xff]);
        let stacked = tag(&tagged, [0x88, 0xa8, 0x10, 0]);
        if index % 16 == 0 {
            frames.push(tag(&stacked, [0x91, 0, 0, 1]));
        }
        if index % 4 == 0 {
            frames.push(stacked);
        }
        frames.push(tagged);
    }
    frames.extend(pattern_frames());
    frames.extend(boundary_length_frames());
    frames.extend(token_frames());
    frames.extend(late_port_and_zero_checksum_frames(udp.bytes));
    frames
}

/// Returns IPv6 packets with up to three extension headers before `datagram`, and some without data
/// after the headers.
fn extension_packets(datagram: &[u8]) -> Vec<Vec<u8>> {
    let mut frames = Vec::new();
    for first in EXTENSION_PROTOCOLS {
        for second in [17, 6, 60] {
            let header = [first, 0, 0, 0, 0, 0, 0, 0];
            frames.push(
                Frame::ipv6(60, &[&header[..], &[second, 0, 0, 0, 0, 0, 0, 0]].concat()).bytes,
            );
            for longer in
                [0, 1].into_iter().take(if is_near_extension_header(first) { 1 } else { 2 })
            {
                let header = [second, longer, 0, 0, 0, 0, 0, 0];
                let chain = [&header[..], &[17, 0, 0, 0, 0, 0, 0, 0], datagram].concat();
                frames.push(Frame::ipv6(first, &chain).bytes);
            }
        }
    }
    let deep = [60, 0, 0, 0, 0, 0, 0, 0].repeat(2);
    for third in EXTENSION_PROTOCOLS.into_iter().chain([60, 17]) {
        let chain = [&deep[..], &[third, 0, 0, 0, 0, 0, 0, 0], datagram].concat();
        frames.push(Frame::ipv6(60, &chain).bytes);
    }
    // The header after two extension headers is the last one parsed; padded, so that no other byte
    // is mistaken for a length.
    let padded = |next: u8| [next, 0, 1, 4, 0, 0, 0, 0];
    for third in EXTENSION_PROTOCOLS {
        let chain = [&padded(60)[..], &padded(third), datagram].concat();
        frames.push(Frame::ipv6(0, &chain).bytes);
    }
    frames
}

/// Returns frames with ports after two extension headers, and a frame whose checksum becomes zero
/// when the example of `rewrite` is applied.
fn late_port_and_zero_checksum_frames(mut zero: Vec<u8>) -> Vec<Vec<u8>> {
    let mut frames = Vec::new();
    // Flows with two headers before the ports: a port read one byte early changes the share.
    for port in (0x0101..=0x0808).step_by(0x101) {
        let datagram = &Frame::udp(port, 53, b"x").bytes[34..];
        let chain = [&[60, 0, 0, 0, 0, 0, 0, 0][..], &[17, 0, 0, 0, 0, 0, 0, 0], datagram].concat();
        frames.push(Frame::ipv6(0, &chain).bytes);
    }
    // A checksum that becomes zero under the changes of `rewrite`'s example.
    zero[26..30].copy_from_slice(&[0x3f, 0xff, 0xff, 0xff]);
    zero[40..42].copy_from_slice(&[0xff, 0xfe]);
    zero[38..40].copy_from_slice(&[0, 1]);
    frames.push(zero);
    frames
}

/// Protocol numbers of IPv6 extension headers, and the adjacent numbers.
const EXTENSION_PROTOCOLS: [u8; 19] =
    [0, 1, 42, 43, 44, 45, 50, 51, 52, 59, 60, 61, 134, 135, 136, 138, 139, 140, 141];

/// Returns frames at the limits of header lengths: with the longest headers that a twin parses, and
/// with every length in the IP header at which a twin decides differently.
fn longest_header_frames() -> Vec<Vec<u8>> {
    let mut frames = Vec::new();
    let tag = |frame: &[u8], tag: [u8; 4]| [&frame[..12], &tag, &frame[12..]].concat();
    for (protocol, ports) in
        [(17_u8, (4000, 53)), (6, (4000, 80)), (6, (80, 4000)), (136, (80, 80))]
    {
        let payload = b"deep below";
        let segment = match protocol {
            17 => Frame::udp(ports.0, ports.1, payload).bytes.split_off(34),
            _ => Frame::tcp(ports.0, ports.1, payload).bytes.split_off(34),
        };
        for words in [1, 10] {
            let mut long = Frame::ipv4(protocol, &[&vec![1; words * 4], &segment[..]].concat());
            long.bytes[14] += words as u8;
            let tagged = tag(&long.bytes, [0x81, 0, 0, 9]);
            frames.extend([tag(&tagged, [0x88, 0xa8, 0, 8]), long.bytes]);
        }
        let mut four = Frame::ipv4(protocol, &segment).bytes;
        for total in 36..42 {
            four[17] = total;
            frames.push(four.clone());
        }
        for headers in 0..=2 {
            let before = [[60, 0, 0, 0, 0, 0, 0, 0], [protocol, 0, 0, 0, 0, 0, 0, 0]];
            let data = [before[2 - headers..].concat(), segment.clone()].concat();
            let mut six = Frame::ipv6(if headers == 0 { protocol } else { 60 }, &data);
            if headers == 1 {
                six.bytes[54] = protocol;
            }
            for left in [0, 1, 3, 4, 7, 8, 9, 17, 18, 19, 20, segment.len()] {
                six.bytes[19] = (headers * 8 + left) as u8;
                frames.push(six.bytes.clone());
            }
            if headers > 0 {
                frames.push(six.bytes[..54 + headers * 8 - 1].to_vec());
                six.bytes[19] = (headers * 8 - 1) as u8;
                frames.push(six.bytes);
            }
        }
    }
    frames
}

/// Returns frames that contain the patterns of the tested `match` filters at the right offset:
/// unchanged, in the other letter case, with one bit wrong in each byte, and truncated.
fn pattern_frames() -> Vec<Vec<u8>> {
    let mut frames = Vec::new();
    for pattern in [&b"et "[..], b"SH-2.0-o", b"bcdefgh"] {
        let plain = [b"G", pattern, b" what follows it"].concat();
        for at in 1..=pattern.len() {
            for bit in [1, 2, 0x20, 0x80] {
                let mut frame = plain.clone();
                frame[at] ^= bit;
                frames.push(frame);
            }
        }
        let flipped =
            plain.iter().map(|byte| if byte.is_ascii_alphabetic() { byte ^ 0x20 } else { *byte });
        frames.push(flipped.collect());
        frames.extend((1..=pattern.len() + 1).map(|end| plain[..end].to_vec()));
        frames.push(plain);
    }
    frames
}

/// Returns frames with lengths around powers of two.
fn boundary_length_frames() -> Vec<Vec<u8>> {
    let with = |length: usize| Frame::udp(4000, 53, &vec![7; length - 42]).bytes;
    [63, 64, 65, 127, 128, 255, 256, 257, 511, 512, 1023, 1024].map(with).into()
}

/// Returns datagrams with tokens for the tests of `token`. Valid tokens cover data of all lengths
/// around multiples of a word, and their numbers are in order, late or repeated, and cover all
/// residues. Each invalid token has one wrong bit in a covered field.
fn token_frames() -> Vec<Vec<u8>> {
    let data: Vec<u8> = (1..=90).map(|n: u8| n.wrapping_mul(0x35)).collect();
    let sealed = |is_six: bool, length: usize, number: u64| {
        let mut frame = Frame::udp(4000, 53, &[&[0; 16][..], &data[..length]].concat()).bytes;
        if is_six {
            frame = Frame::ipv6(17, &frame[34..]).bytes;
            frame[22..54].copy_from_slice(&data[..32]);
        }
        write_token(&mut frame, &TEST_KEY, number, 20);
        frame
    };
    let lengths = [0, 1, 7, 8, 9, 15, 16, 17, 19, 20, 21, 24, 90].into_iter().zip(0x1000..);
    let mut frames: Vec<Vec<u8>> = lengths
        .flat_map(|(length, number)| [sealed(false, length, number), sealed(true, length, !number)])
        .collect();
    let numbers = [1, 2, 0x1_0000_0000, 0xff, 0x100, 5, 4, 0x101, 1 << 63 | 3, 0, 3];
    frames.extend(numbers.map(|number| sealed(false, 3, number)));
    for is_six in [false, true] {
        let good = sealed(is_six, 40, 0x7000 + u64::from(is_six));
        let udp = good.len() - 40 - 16 - 8;
        let addresses = udp - if is_six { 32 } else { 8 };
        // Addresses, ports, number, tag, and data up to the last covered byte.
        let covered = (addresses..udp + 4).chain(udp + 8..udp + 24 + 21);
        for at in covered.step_by(if is_six { 3 } else { 1 }) {
            let mut wrong = good.clone();
            wrong[at] ^= 1 << (at % 8);
            frames.push(wrong);
        }
        let mut shorter = good.clone();
        let stated = if is_six { 19 } else { 17 };
        shorter[stated] -= 1;
        shorter[udp + 5] -= 1;
        frames.extend([shorter, good]);
    }
    frames.extend([0, 1, 8, 15, 16].map(|bare| Frame::udp(4000, 53, &data[..bare]).bytes));
    frames
}

/// Returns frames with pending transport checksums, which cover only the pseudo header.
pub(crate) fn pending_checksum_frames() -> Vec<Vec<u8>> {
    let mut frames = varied_frames(40);
    for frame in &mut frames {
        let (at, sum) = pseudo_header_sum(frame).expect("TCP or UDP");
        frame[at..at + 2].copy_from_slice(&sum.to_be_bytes());
    }
    frames
}

/// Returns true if the valid transport checksum of a frame happens to equal the sum of its pseudo
/// header. It then looks like a checksum that the device has yet to fill in. This is true for one
/// in 65,536 frames.
pub(crate) fn looks_like_pending_checksum(frame: &[u8]) -> bool {
    pseudo_header_sum(frame)
        .is_some_and(|(at, sum)| frame.get(at..at + 2) == Some(&sum.to_be_bytes()))
}

/// Returns the offset of the TCP or UDP checksum in an untagged Ethernet frame without options, and
/// the sum of the frame's pseudo header. Returns `None` for other frames.
fn pseudo_header_sum(frame: &[u8]) -> Option<(usize, u16)> {
    let word = |at: usize| Some(u16::from_be_bytes(frame.get(at..at + 2)?.try_into().ok()?));
    let (ip, length, protocol) = match word(12)? {
        0x0800 => (26..34, word(16)?.checked_sub(20)?, frame[23]),
        0x86dd => (22..54, word(18)?, frame[20]),
        _ => return None,
    };
    let at = match protocol {
        6 => ip.end + 16,
        17 => ip.end + 6,
        _ => return None,
    };
    let sum = OnesComplementSum::new()
        .with_bytes(frame.get(ip)?)
        .with_bytes(&[0, protocol])
        .with_bytes(&length.to_be_bytes());
    Some((at, sum.fold_to_16_bits()))
}

/// Makes complete TCP and UDP frames over both IP versions whose checksums [look
/// pending](looks_like_pending_checksum).
pub(crate) fn pending_lookalike_frames() -> Vec<Vec<u8>> {
    use testkit::{Frame, TcpHeader};
    let segment = TcpHeader { source: 4000, target: 80, window: 512, ..TcpHeader::default() };
    let four = || Frame::ethernet().ipv4("10.0.0.1", "192.0.2.80");
    let six = || Frame::ethernet().ipv6("2001:db8::1", "2001:db8:80::80");
    let found = |make: &dyn Fn(&[u8]) -> Vec<u8>| {
        let mut frames = (0..=u16::MAX).map(|word| make(&word.to_be_bytes()));
        frames
            .find(|frame| looks_like_pending_checksum(frame))
            .expect("one of them has this checksum")
    };
    vec![
        found(&|payload| four().tcp(&segment, payload)),
        found(&|payload| six().tcp(&segment, payload)),
        found(&|payload| four().udp(4000, 53, payload)),
        found(&|payload| six().udp(4000, 53, payload)),
    ]
}

/// Makes TCP and UDP frames over both IP versions, with different addresses, ports and checksums.
/// About half of the bytes of these values are 0 or 0xff.
fn varied_frames(count: usize) -> Vec<Vec<u8>> {
    let mut state = 7_u32;
    let mut byte = move || {
        state = state.wrapping_mul(1_664_525).wrapping_add(1_013_904_223);
        [0, 0xff, (state >> 24) as u8, (state >> 16) as u8][(state >> 30) as usize]
    };
    let mut frames = Vec::new();
    for number in 0..count {
        let payload = vec![byte(); number % 5];
        let tcp = Frame::tcp(4000, 80, &payload).bytes;
        let udp = Frame::udp(4000, 53, &payload).bytes;
        let (mut frame, addresses) = match number % 4 {
            0 => (tcp, 26..34),
            1 => (udp, 26..34),
            2 => (Frame::ipv6(6, &tcp[34..]).bytes, 22..54),
            _ => (Frame::ipv6(17, &udp[34..]).bytes, 22..54),
        };
        let data = addresses.end;
        let sum = data + if number % 2 == 0 { 16 } else { 6 };
        let changed = (24..26).filter(|_| data == 34).chain(addresses);
        for at in changed.chain(data..data + 4).chain(sum..sum + 2) {
            frame[at] = byte();
        }
        frames.push(frame);
    }
    frames
}

/// Yields the frame truncated at the end of each header, and truncated one byte before it.
pub(crate) fn truncated_at_headers(frame: &[u8]) -> impl Iterator<Item = &[u8]> {
    let ends = [14, 18, 22, 34, 38, 42, 52, 54, 58, 62, 66, 70];
    ends.into_iter().flat_map(|end| [end - 1, end]).filter_map(|end| frame.get(..end))
}

/// Returns each frame in all layouts in which the kernel may store it: linear, non-linear, and with
/// the tag stored outside the frame.
pub(crate) fn packets_in_all_layouts(frames: &[Vec<u8>]) -> Vec<Packet<'_>> {
    let mut packets = Vec::new();
    for (number, frame) in frames.iter().enumerate() {
        let packet = Packet::new(frame);
        packets.push(packet);
        packets.push(packet.with_linear_length([0, 14, 20, 34, 36][number % 5]));
        if frame.len() >= 12 {
            packets.push(packet.with_tag(0xe000 | number as u16, [0x8100, 0x88a8][number % 2]));
        }
    }
    packets
}

/// Returns true if the protocol number is that of an extension header, or differs from it by one.
fn is_near_extension_header(protocol: u8) -> bool {
    matches!(protocol, 1 | 42 | 45 | 52 | 61 | 134 | 136 | 138 | 141)
}
