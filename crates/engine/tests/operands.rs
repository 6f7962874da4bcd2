//! Tests of operands that move the view, hold blocks or create blocks
//! (docs/book/decisions/0047-operands.md): a section outputs the frames that entered it, each once
//! and unchanged. The tests derive the expected output from the construction of the frames, never
//! from the result of a filter.

#![expect(clippy::unwrap_used, reason = "a test ends where something is not as it must be")]

use engine::build::{RunSettings, build};
use engine::registry::MachineRegistry;
use engine::run::{RunOutcome, StopConditions, run};
use pipeline::plan::{Machine, plan};
use std::path::PathBuf;
use std::sync::atomic::{AtomicU32, Ordering};
use testkit::packet::{Frame, TcpHeader};
use testkit::traffic::Capture;

/// A temporary directory of a test, removed on drop.
struct Folder(PathBuf);

impl Folder {
    fn new() -> Self {
        static NEXT_FOLDER_NUMBER: AtomicU32 = AtomicU32::new(0);
        let number = NEXT_FOLDER_NUMBER.fetch_add(1, Ordering::Relaxed);
        let name = format!("streamline-operands-{}-{number}", std::process::id());
        let folder = std::env::temp_dir().join(name);
        std::fs::create_dir(&folder).unwrap();
        Self(folder)
    }
}

impl Drop for Folder {
    fn drop(&mut self) {
        let _ = std::fs::remove_dir_all(&self.0);
    }
}

/// Runs a request in which the word `IN` is replaced by the name of a capture of these frames.
/// Returns the frames written to the file `OUT`, and the outcome.
fn run_request_on_frames(frames: &[Vec<u8>], line: &str) -> (Vec<Vec<u8>>, RunOutcome) {
    let folder = Folder::new();
    let (input, output) = (folder.0.join("in.pcap"), folder.0.join("out.pcap"));
    std::fs::write(&input, Capture::from_frames(frames.iter().cloned()).to_pcap()).unwrap();
    let quoted = |path: &PathBuf| format!("{:?}", path.display().to_string());
    let text = line.replace("IN", &quoted(&input)).replace("OUT", &quoted(&output));
    let (graph, mistakes) = pipeline::read_request(&text, &MachineRegistry::Local);
    assert!(mistakes.is_empty(), "{}", pipeline::render(&text, &mistakes, false));
    let plan = plan(graph, &MachineRegistry::Local, &Machine::example()).expect("a plan");
    let outcome =
        run(build(&plan, RunSettings::default()).expect("spaces"), StopConditions::default());
    let outcome = outcome.expect("a run");
    assert!(outcome.failures.is_empty(), "{line}: {:?}", outcome.failures);
    assert_eq!(outcome.ledger.imbalances(), [], "{line}");
    for node in &outcome.ledger.filters {
        assert_eq!(node.held.blocks, 0, "{line}: {} holds nothing at the end", node.name);
    }
    (read_capture(&output), outcome)
}

/// Returns the frames of a capture file.
fn read_capture(path: &PathBuf) -> Vec<Vec<u8>> {
    let file = std::fs::read(path).unwrap_or_default();
    let mut rest = file.get(24..).unwrap_or_default();
    let mut frames = Vec::new();
    while let Some((header, behind)) = rest.split_first_chunk::<16>() {
        let length = u32::from_le_bytes(header[8..12].try_into().unwrap()) as usize;
        let (frame, behind) = behind.split_at(length);
        frames.push(frame.to_vec());
        rest = behind;
    }
    frames
}

/// Returns the frames with these indices.
fn select_frames(frames: &[Vec<u8>], numbers: impl IntoIterator<Item = usize>) -> Vec<Vec<u8>> {
    numbers.into_iter().map(|number| frames[number].clone()).collect()
}

fn ipv4_frame() -> Frame {
    Frame::ethernet().ipv4("10.0.0.1", "10.0.0.2")
}

fn tcp_segment(port: u16, sequence: u32, flags: u8, payload: &[u8]) -> Vec<u8> {
    let acknowledgement = if flags & ACK != 0 { 1 } else { 0 };
    let (source, target, window) = (40_000 + port, port, 8192);
    let options = Vec::new();
    ipv4_frame().tcp(
        &TcpHeader { source, target, sequence, acknowledgement, flags, window, options },
        payload,
    )
}

const SYN: u8 = 2;
const ACK: u8 = 16;

/// Builds segments and datagrams: 100 segments to port 22, 25 datagrams to port 22, 100 to port 53,
/// and 75 segments to port 80.
fn numbered_frames() -> Vec<Vec<u8>> {
    let mut frames = Vec::new();
    for n in 0..100_u32 {
        frames.push(tcp_segment(22, 1 + n, ACK, b"x"));
        frames.push(ipv4_frame().udp(9, 53, &n.to_be_bytes()));
        if n < 25 {
            frames.push(ipv4_frame().udp(9, 22, &n.to_be_bytes()));
        }
        if n < 75 {
            frames.push(tcp_segment(80, 1 + n, ACK, b"y"));
        }
    }
    frames
}

#[test]
fn a10_union_of_branches_passes_each_block_once() {
    let frames = numbered_frames();
    let blocks = |line: &str| run_request_on_frames(&frames, line).0.len();
    let (x, y) = ("bpf \"dst port 22\"", "bpf \"udp\"");
    // The branches use the same source, by name or by equal arguments, or run alone.
    let named = format!("(replay IN --name=R | {x}) ++ (replay IN --name=R | {y}) | pcap OUT");
    let alike = format!("(replay IN | {x}) ++ (replay file=IN | {y}) | pcap OUT");
    assert_eq!([blocks(&named), blocks(&alike)], [225, 225]);
    assert_eq!(blocks(&format!("replay IN | {x} | pcap OUT")), 125);
    assert_eq!(blocks(&format!("replay IN | {y} | pcap OUT")), 125);
    let both = format!("(replay IN | {x}) + (replay IN | {y}) | pcap OUT");
    assert_eq!(blocks(&both), 250, "a plus removes nothing");
    assert_eq!(run_request_on_frames(&frames, "replay IN ++ replay IN | pcap OUT").0, frames);
    let all = format!("(replay IN | {x}) ++ replay IN | pcap OUT");
    assert_eq!(run_request_on_frames(&frames, &all).0, frames);
    let views = "(replay IN | tcp |22 count) ++ (replay IN | udp |22 inspect) | pcap OUT";
    assert_eq!(blocks(views), 125, "views move inside, and frames leave as they came");
}

#[test]
fn a10_union_of_overlapping_inputs_is_refused() {
    for line in [
        "(replay a speed=1 | tcp) ++ (replay a | udp) | count",
        "rx eth0 ++ rx | count",
        "rx eth0 both=yes ++ tx eth0 | count",
        "(rx | tcp) ++ (tx | udp) | count",
    ] {
        let (_, mistakes) = pipeline::read_request(line, &MachineRegistry::Local);
        assert!(mistakes.iter().any(|it| it.what.contains("emit the same blocks")), "{line}");
        assert!(mistakes.iter().all(|it| !it.hint.is_empty()), "{line}: {mistakes:?}");
    }
}

#[test]
fn a12_negation_of_ip_tcp_or_udp_passes_all_other_blocks() {
    let mut frames = Vec::new();
    for n in 0..50_u32 {
        frames.push(tcp_segment(80, 1 + 4 * n, ACK, b"data"));
        frames.push(ipv4_frame().udp(9, 53, &n.to_be_bytes()));
        frames.push(Frame::ethernet().arp(true, "10.0.0.1", "10.0.0.2"));
        frames.push(tcp_segment(80, 1 + 4 * n, ACK, b""));
    }
    let all = |rest: &[usize]| {
        let numbers = (0..frames.len()).filter(|number| rest.contains(&(number % 4)));
        select_frames(&frames, numbers)
    };
    assert_eq!(run_request_on_frames(&frames, "replay IN | !tcp | pcap OUT").0, all(&[1, 2]));
    assert_eq!(run_request_on_frames(&frames, "replay IN | !udp | pcap OUT").0, all(&[0, 2, 3]));
    assert_eq!(run_request_on_frames(&frames, "replay IN | !ip | pcap OUT").0, all(&[2]));
    assert_eq!(run_request_on_frames(&frames, "replay IN | !(tcp ++ udp) | pcap OUT").0, all(&[2]));
    assert_eq!(run_request_on_frames(&frames, "replay IN | ip +* !tcp | pcap OUT").0, all(&[1]));
    assert_eq!(
        run_request_on_frames(&frames, "replay IN | !(ip |udp count) | pcap OUT").0,
        all(&[0, 2, 3])
    );
    assert_eq!(
        run_request_on_frames(&frames, "replay IN | (tcp ++ udp) |53 pcap OUT").0,
        all(&[1])
    );
    let nested = "replay IN | !(ip | (tcp ++ udp)) | pcap OUT";
    assert_eq!(run_request_on_frames(&frames, nested).0, all(&[2]));
}

/// Builds a connection in which the second of three segments arrives last, with datagrams in
/// between, and a connection with a gap that is never filled.
fn disordered_frames() -> Vec<Vec<u8>> {
    vec![
        tcp_segment(80, 0, SYN, b""),
        tcp_segment(80, 1, ACK, b"one"),
        tcp_segment(80, 7, ACK, b"three"),
        ipv4_frame().udp(9, 53, b"between"),
        tcp_segment(80, 4, ACK, b"two"),
        tcp_segment(22, 0, SYN, b""),
        tcp_segment(22, 1, ACK, b"a"),
        tcp_segment(22, 9, ACK, b"behind a gap"),
        ipv4_frame().udp(9, 53, b"last"),
    ]
}

#[test]
fn a12_held_block_is_answered_at_its_release() {
    let frames = disordered_frames();
    let (kept, outcome) = run_request_on_frames(&frames, "replay IN | tcp ++ udp | pcap OUT");
    // Frame 2 leaves after frame 4, which fills its gap; frame 7 leaves at the end.
    assert_eq!(kept, select_frames(&frames, [0, 1, 3, 4, 2, 5, 6, 8, 7]));
    let section = outcome.ledger.filters.iter().find(|node| node.name == "boolean");
    let section = section.expect("a row");
    assert_eq!((section.taken.blocks, section.passed.blocks), (9, 9), "{section:?}");
    assert_eq!(section.taken.bytes, section.passed.bytes, "the view is the one that came");
    let (kept, _) = run_request_on_frames(&frames, "replay IN | !tcp | pcap OUT");
    assert_eq!(kept, select_frames(&frames, [3, 8]));
    let (kept, _) =
        run_request_on_frames(&frames, "replay IN | !(tcp | match \"three\") | pcap OUT");
    assert_eq!(kept, select_frames(&frames, [0, 1, 3, 4, 5, 6, 8, 7]), "held, then not answered");
    let (kept, _) =
        run_request_on_frames(&frames, "replay IN | tcp +* !bpf \"port 22\" | pcap OUT");
    assert_eq!(kept, select_frames(&frames, [0, 1, 4, 2]), "released to the next operand");
}

/// Returns a fragment of a 2000-byte datagram to port 53, with the bytes from `from` to `to`.
fn udp_fragment(from: u16, to: u16, more: bool) -> Vec<u8> {
    let mut datagram = ipv4_frame().udp(9, 53, &[7; 1992]);
    let packet = datagram.split_off(14 + 20);
    let data = &packet[usize::from(from)..usize::from(to)];
    ipv4_frame().fragment(from, more).ip_payload(17, data)
}

#[test]
fn a12_fragments_get_the_answer_of_their_datagram() {
    let frames = vec![
        udp_fragment(0, 800, true),
        tcp_segment(80, 1, ACK, b"between"),
        udp_fragment(1600, 2000, false),
        Frame::ethernet().arp(true, "10.0.0.1", "10.0.0.2"),
        udp_fragment(800, 1600, true),
    ];
    let sorted = |mut frames: Vec<Vec<u8>>| {
        frames.sort();
        frames
    };
    let runs = |line: &str| sorted(run_request_on_frames(&frames, line).0);
    let of = |numbers: &[usize]| sorted(select_frames(&frames, numbers.iter().copied()));
    assert_eq!(runs("replay IN | !ip | pcap OUT"), of(&[3]));
    assert_eq!(runs("replay IN | (ip ++ count) |udp pcap OUT"), of(&[0, 2, 4]));
    assert_eq!(runs("replay IN | ip | pcap OUT").len(), 2, "as a filter it joins them");
    assert_eq!(runs("replay IN | !(ip | udp) | pcap OUT"), of(&[1, 3]));
    assert_eq!(runs("replay IN | (ip | udp |53 match \"\\x07\") | pcap OUT").len(), 1);
    assert_eq!(runs("replay IN | (ip | udp |53 count) ++ tcp | pcap OUT"), of(&[0, 1, 2, 4]));
    // Blocks that the operand drops are dropped and counted.
    let missing = &frames[..4];
    let (kept, outcome) = run_request_on_frames(missing, "replay IN | !ip | pcap OUT");
    assert_eq!(kept, select_frames(&frames, [3]));
    let dropped = outcome.ledger.filters.iter().flat_map(|node| &node.dropped);
    let dropped: Vec<_> = dropped.filter(|(_, it)| it.blocks > 0).collect();
    let whys: Vec<&str> = dropped.iter().map(|(why, _)| why.text()).collect();
    assert_eq!(whys, ["fragments missing", "by an operand"], "{dropped:?}");
    assert!(dropped.iter().all(|(_, it)| it.blocks == 2), "{dropped:?}");
    assert_eq!(outcome.ledger.lost_blocks(), 2, "the operand has dropped copies of these blocks");
}

/// Builds the frames of two connections and of one datagram. The first connection carries HTTP to
/// port 80, with a head that spans two segments. The second carries another protocol to port 81.
fn web_frames() -> Vec<Vec<u8>> {
    vec![
        tcp_segment(80, 0, SYN, b""),
        tcp_segment(80, 1, ACK, b"POST /x HTTP/1.1\r\nHost: a\r\nCont"),
        tcp_segment(81, 0, SYN, b""),
        tcp_segment(81, 1, ACK, b"SSH-2.0-nothing that is http\r\n"),
        tcp_segment(80, 32, ACK, b"ent-Length: 6\r\n\r\nbo"),
        tcp_segment(81, 31, ACK, b"more of it"),
        tcp_segment(80, 51, ACK, b"dy!!"),
        tcp_segment(80, 55, ACK, b""),
        ipv4_frame().udp(9, 53, b"no stream"),
    ]
}

#[test]
fn a12_block_is_http_if_http_consumes_any_of_its_bytes() {
    let frames = web_frames();
    let without = select_frames(&frames, [0, 2, 3, 5, 7, 8]);
    assert_eq!(run_request_on_frames(&frames, "replay IN | !(tcp | http) | pcap OUT").0, without);
    // As an operand, a filter that needs a stream gets one, whatever the form of the input.
    assert_eq!(run_request_on_frames(&frames, "replay IN | !http | pcap OUT").0, without);
    let packets = run_request_on_frames(&frames, "replay IN | ip | !http | pcap OUT").0;
    assert_eq!(packets, without);
    let (kept, _) = run_request_on_frames(&frames, "replay IN | (http ++ bpf \"udp\") | pcap OUT");
    let halves = "the first half of the head waits for the second";
    assert_eq!(kept, select_frames(&frames, [1, 4, 6, 8]), "{halves}");
    let (kept, _) = run_request_on_frames(&frames, "replay IN | dport | !http |81 pcap OUT");
    assert_eq!(kept, select_frames(&frames, [2, 3, 5]), "with the class with which they came");
}

/// The input has MPEG transport stream packets over UDP and over HTTP.
#[test]
fn a12_request_of_the_paper_keeps_video_outside_http() {
    let mut packets = Vec::new();
    for n in 0..7_u8 {
        let mut packet = vec![0x47, 0x01, 0x00, 0x10 | n];
        packet.resize(188, 0xff);
        packets.extend(packet);
    }
    let mut body = b"GET / HTTP/1.1\r\nHost: a\r\n\r\n".to_vec();
    body.extend(&packets);
    let frames = vec![
        ipv4_frame().udp(5004, 5004, &packets),
        tcp_segment(80, 1, ACK, &body),
        ipv4_frame().udp(9, 53, b"something else"),
        ipv4_frame().udp(5004, 5004, &packets),
    ];
    let (kept, outcome) =
        run_request_on_frames(&frames, "replay IN | ip | mpeg +* !http | pcap OUT");
    let mpeg = outcome.ledger.filters.iter().find(|node| node.name == "mpeg").expect("a row");
    assert_eq!(mpeg.taken.blocks, 4);
    assert_eq!(kept, select_frames(&frames, [0, 3]), "{:?}", outcome.ledger.filters);
}

#[test]
fn a12_filters_behind_a_section_can_be_replicated() {
    let frames = disordered_frames();
    for parallel in ["", "--parallel=2 ", "--parallel=3 "] {
        let line = format!("{parallel}replay IN | !udp | tcp | pcap OUT");
        let (kept, _) = run_request_on_frames(&frames, &line);
        let mut kept: Vec<_> = kept.into_iter().filter(|frame| !frame.is_empty()).collect();
        kept.sort();
        let mut all = select_frames(&frames, [0, 1, 2, 4, 5, 6, 7]);
        all.retain(|frame| kept.contains(frame));
        assert!(all.len() >= 5, "{parallel}: what has data is there");
    }
}

#[test]
fn editing_filters_and_sinks_are_refused_as_operands() {
    for (line, why) in [
        ("replay a | compress +* tcp | count", "changes bytes"),
        ("replay a | !rewrite src=10.0.0.1 | count", "changes bytes"),
        ("replay a | !pcap x | count", "is a sink"),
        ("replay a | tcp ++ rx | count", "is a source"),
        ("replay a | !exec cat | count", "runs in a process of its own"),
        ("replay a | !(tcp | http decode=yes) | count", "changes bytes"),
    ] {
        let (_, mistakes) = pipeline::read_request(line, &MachineRegistry::Local);
        assert!(mistakes.iter().any(|it| it.why.contains(why)), "{line}: {mistakes:?}");
    }
}
