//! Fuzz bodies for the readers of external data: captures, frames, and every filter over blocks
//! with untrusted marks.

use super::fuzz_target::{FuzzTarget, InputReader};
use crate::catalog::example_term;
use abi::{BlockFlags, BlockMetadata, Class, Marks};
use filter::testing::{Arena, Frame, Node, Space, total_amount};
use filter::{Amount, Batch, Block, Description, LANES};
use pipeline::language::tree::Argument;
use std::sync::OnceLock;
use testkit::{Frame as Built, TcpHeader};
use wire::LinkType;
use wire::capture::{Packet, ReadOutcome, Reader};

/// Fuzz body for the capture reader: any bytes can be read as a capture up to the end or an error,
/// and the result does not depend on how the bytes are split.
pub(crate) const CAPTURE_FUZZ_TARGET: FuzzTarget =
    FuzzTarget { name: "capture", corpus: capture_corpus, rounds: 60_000, run: fuzz_capture };

fn capture_corpus() -> Vec<Vec<u8>> {
    let bundled = testkit::cases::workspace_root().join("examples/web.pcap");
    let bundled = std::fs::read(bundled).expect("the bundled capture");
    let mut small = wire::capture::write::encode_file_header(LinkType::ETHERNET).to_vec();
    for frame in frame_corpus() {
        let length = frame.len() as u32;
        small.extend(wire::capture::write::encode_record_header(1_000_000_007, length, length + 9));
        small.extend(frame);
    }
    let block = |kind: u32, body: &[u8]| {
        let length = (body.len() as u32 + 12).to_le_bytes();
        [&kind.to_le_bytes()[..], &length, body, &length].concat()
    };
    let section = [&0x1a2b_3c4d_u32.to_le_bytes()[..], &[1, 0, 0, 0], &[0xff; 8]].concat();
    let interface = [1, 0, 0, 0, 0, 0, 4, 0, 9, 0, 1, 0, 9, 0, 0, 0, 0, 0, 0, 0];
    let packet = [&[0; 12][..], &[5, 0, 0, 0, 60, 0, 0, 0], b"frame\0\0\0"].concat();
    let blocks = [block(0x0a0d_0d0a, &section), block(1, &interface), block(6, &packet)];
    vec![bundled[..1500].to_vec(), small, blocks.concat(), block(3, &packet[12..])]
}

fn fuzz_capture(bytes: &[u8]) {
    let mut whole = Vec::new();
    let mut end = Ok(());
    for packet in wire::capture::packets(bytes) {
        match packet {
            Ok((packet, data)) => {
                assert_eq!(data.len(), packet.data.len());
                whole.push((packet.time_ns, packet.wire_length, packet.link, data.to_vec()));
            }
            Err(fault) => end = Err(fault),
        }
    }
    let step = bytes.first().map_or(1, |byte| 1 + usize::from(*byte % 64));
    let mut taken = whole.iter();
    let result = read_in_pieces(bytes, step, |packet, data| {
        let (time, length, link, bytes) = taken.next().expect("as many packets as in one piece");
        assert_eq!((packet.time_ns, packet.wire_length, packet.link), (*time, *length, *link));
        assert_eq!(data, bytes);
    });
    assert_eq!(result, end);
    assert!(taken.next().is_none());
}

fn read_in_pieces(
    bytes: &[u8],
    step: usize,
    mut see: impl FnMut(&Packet, &[u8]),
) -> Result<(), wire::capture::CaptureFault> {
    let mut reader = Reader::new();
    let (mut from, mut to) = (0, 0);
    loop {
        match reader.next(&bytes[from..to]) {
            ReadOutcome::Packet(packet) => {
                see(&packet, &bytes[from..to][packet.data.clone()]);
                from += packet.consumed;
            }
            ReadOutcome::NeedMore { consumed, .. } => {
                assert!(consumed <= to - from);
                from += consumed;
                if to == bytes.len() {
                    return reader.finish(to - from);
                }
                to = (to + step).min(bytes.len());
            }
            ReadOutcome::Error(fault) => return Err(fault),
        }
    }
}

/// Fuzz body for dissection: any frame of any link type is dissected into layers inside the frame,
/// in ascending order.
pub(crate) const DISSECTION_FUZZ_TARGET: FuzzTarget =
    FuzzTarget { name: "dissect", corpus: generated_frames, rounds: 200_000, run: fuzz_dissection };

fn frame_corpus() -> Vec<Vec<u8>> {
    let tcp = TcpHeader { source: 4000, target: 80, ..TcpHeader::default() };
    vec![
        Built::ethernet().ipv4("10.0.0.1", "10.0.0.2").tcp(&tcp, b"GET / HTTP/1.1\r\n\r\n"),
        Built::ethernet().ipv6("fe80::1", "fe80::2").tcp(&tcp, b""),
        Built::ethernet().append_vlan_tag(100).ipv4("10.0.0.1", "10.0.0.2").udp(
            53,
            53,
            b"question",
        ),
    ]
}

fn generated_frames() -> Vec<Vec<u8>> {
    let link = LinkType::ETHERNET.0.to_be_bytes();
    frame_corpus().into_iter().map(|frame| [&link[..], &frame].concat()).collect()
}

fn fuzz_dissection(bytes: &[u8]) {
    let mut input = InputReader(bytes);
    let link = LinkType(input.read_u16() % 300);
    let frame = input.0;
    let layers = wire::layers(link, frame);
    assert!(layers.end as usize <= frame.len());
    let places = [layers.l3, layers.l4, layers.payload];
    let known: Vec<u16> = places.into_iter().flatten().collect();
    assert!(known.is_sorted(), "{layers:?}");
    assert!(known.iter().all(|at| usize::from(*at) <= frame.len()), "{layers:?}");
    assert!(layers.ports(frame).is_none() || layers.l4.is_some());
    if let Some(flow) = wire::Flow::from_frame(&layers, frame) {
        let (normal, _) = flow.normalized();
        assert_eq!(normal, flow.reversed().normalized().0);
        assert_eq!(flow.hash(1), flow.reversed().hash(1), "sessions hash symmetrically");
    }
}

/// Fuzz body for filters: any blocks with arbitrary marks pass through every filter, and each block
/// is emitted or counted.
pub(crate) const FILTERS_FUZZ_TARGET: FuzzTarget =
    FuzzTarget { name: "filters", corpus: generated_frames, rounds: 300, run: fuzz_filters };

/// One input in this many is tested with the filters that contain automata; constructing them is
/// slow.
const SLOW_FILTER_STEP: u8 = 64;

fn fuzz_filters(bytes: &[u8]) {
    let seldom = bytes.first().is_some_and(|first| first % SLOW_FILTER_STEP == 0);
    for (description, words, costly) in catalog_examples() {
        if *costly && !seldom {
            continue;
        }
        let words: Vec<&str> = words.iter().map(String::as_str).collect();
        let node = Node::new(description, &words);
        run_node(node.expect("the arguments of its example"), bytes);
    }
}

/// Returns every filter with the arguments of its example, and a flag: true if the construction of
/// the filter takes more than a millisecond.
fn catalog_examples() -> &'static [(&'static Description, Vec<String>, bool)] {
    static EXAMPLES: OnceLock<Vec<(&'static Description, Vec<String>, bool)>> = OnceLock::new();
    EXAMPLES.get_or_init(|| {
        let word = |argument: &Argument| match &argument.key {
            Some(key) => format!("{}={}", key.text, argument.value.to_string_lossy()),
            None => argument.value.to_string_lossy().into_owned(),
        };
        let costly = |description, words: &[String]| {
            let words: Vec<&str> = words.iter().map(String::as_str).collect();
            let begin = sys::clock::thread_cpu_ns();
            Node::new(description, &words).expect("the arguments of its example");
            sys::clock::thread_cpu_ns() - begin > 1_000_000
        };
        let known = |d: &&'static Description| {
            let words: Vec<String> = example_term(d).arguments.iter().map(word).collect();
            let costly = costly(*d, &words);
            (*d, words, costly)
        };
        filter::catalog::FILTERS.iter().map(known).collect()
    })
}

fn run_node(mut node: Node, bytes: &[u8]) {
    let mut input = InputReader(bytes);
    let head = usize::from(input.read_u16());
    let mut came = Amount::default();
    let mut went = Amount::default();
    let tally = |to: &mut Amount, batches: &[Batch<'_>]| to.blocks += total_amount(batches).blocks;
    while !input.0.is_empty() {
        let arena = Arena::new(4 * LANES);
        let mut space = Space::new(&arena);
        if head % 2 == 0 {
            space = space.with_head_limit(head / 2);
        }
        let count = 1 + usize::from(input.read_u8()) % LANES;
        let frames: Vec<Frame> = (0..count).map(|_| random_frame(&mut input)).collect();
        let mut batch = space.batch(&frames);
        for lane in 0..count {
            let block = with_random_marks(batch.block(lane), &mut input);
            batch.set_block(lane, block);
        }
        let now = input.read_u64();
        tally(&mut came, std::slice::from_ref(&batch));
        tally(&mut went, &node.process_batch(batch, &mut space, now));
        if input.0.is_empty() {
            tally(&mut went, &node.finish(&mut space, now));
        }
    }
    let counts = &node.counts;
    let dropped: u64 = counts.dropped.iter().map(|amount| amount.blocks).sum();
    let lost = dropped + counts.evicted.blocks + counts.no_room.blocks;
    let became = went.blocks + counts.consumed.blocks + counts.held.blocks + lost;
    let name = node.description.name;
    assert_eq!(came.blocks + counts.made.blocks, became, "`{name}`: {counts:?}");
}

fn random_frame(input: &mut InputReader<'_>) -> Frame {
    const LINKS: [u16; 8] = [1, 1, 0, 12, 101, 113, 276, Marks::NO_LINK_TYPE];
    let (choice, length) = (input.read_u8(), usize::from(input.read_u8()));
    Frame {
        link: LINKS[usize::from(choice % 8)],
        bytes: input.read_bytes(length).to_vec(),
        wire_length: (choice & 8 != 0).then_some(u32::from(choice) << 12),
        time: u64::from(choice) << 32,
    }
}

/// Returns the block with some of its marks, view, class and context replaced by arbitrary values.
fn with_random_marks<'a>(mut block: Block<'a>, input: &mut InputReader<'_>) -> Block<'a> {
    let lies = input.read_u8();
    let is = |bit: u8| lies & (1 << bit) != 0;
    let marks = &mut block.marks;
    for (bit, mark) in
        [&mut marks.network, &mut marks.transport, &mut marks.payload].into_iter().enumerate()
    {
        if is(bit as u8) {
            *mark = if is(7) { input.read_u16() } else { input.read_u8().into() };
        }
    }
    if is(3) {
        marks.captured = input.read_u64() as u32;
    }
    if is(4) {
        marks.view = if is(7) { input.read_u64() as u32 } else { input.read_u8().into() };
        block.pointer = block.pointer.subrange(marks.view, u32::from(input.read_u16()));
    }
    if is(5) {
        marks.wire_length = input.read_u64() as u32;
        block.pointer.class = Class(input.read_u64() as u32);
    }
    if is(6) {
        let session = u32::from(input.read_u16());
        let (time, flags) = (input.read_u64(), BlockFlags(input.read_u16()));
        block.context = BlockMetadata { time, session, flags, origin: input.read_u16() };
    }
    block
}
