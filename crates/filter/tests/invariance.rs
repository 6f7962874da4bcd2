//! Metamorphic tests: changes to a frame outside of its packet must not change any answer.
//!
//! The comparison of twins with their filters cannot find a mistake that both implementations make.
//! These tests compare each implementation with itself on changed frames: with padding after the
//! packet, a snapshot that ends in the padding, an additional tag, the same datagram in fragments,
//! and the same stream in smaller segments. They loop over the catalog. [`CHANGE_EXCEPTIONS`] lists
//! each filter that depends on such a change by definition, with the reason.
//!
//! Filters that may read every byte classify the bytes in view. They are tested after `udp` or
//! `ip`, whose views end with the packet.

mod corpus;

use abi::{BlockFlags, BlockMetadata, Class};
use ebpf::Hook;
use ebpf::emit::{Answer as TwinAnswer, Exit, Layers, Outcome, Scope, UnfitReason, be16};
use ebpf::exam::{InterpreterJudge, TwinJudge, TwinVerdict};
use ebpf::interpret::Packet;
use filter::catalog::{FILTERS, find};
use filter::prelude::*;
use filter::testing::twins::{
    ReferenceChain, TwinCase, request_text, try_emit_program, twin_chains,
};
use filter::testing::{self, Answer, Arena, ETHERNET, Frame, Node, Space};
use std::collections::{BTreeMap, BTreeSet};
use wire::LinkType;
use wire::ip::Fragment;
use wire::link::NetworkProtocol;

/// A change to a frame outside of its packet.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum FrameChange {
    /// Adds bytes after the packet: the link padding of a short frame, or a trailer.
    Padding(&'static [u8]),
    /// Adds padding on the wire after the packet; the captured bytes end with the packet.
    Snapshot,
    /// Adds an outer VLAN tag.
    Tag,
    /// Splits the datagram into fragments. Applies only to chains that begin with `ip`.
    Fragments,
}

const FRAME_CHANGES: [FrameChange; 6] = [
    FrameChange::Padding(&[0; 46]),
    // Ports and a request, to detect a reader that mistakes padding for a header.
    FrameChange::Padding(b"\0\x50\0\x50GET / HTTP/1.1\r\n\r\nSSH-2.0-x\r\n"),
    FrameChange::Padding(&[0xff; 4]),
    FrameChange::Snapshot,
    FrameChange::Tag,
    FrameChange::Fragments,
];

/// An exception: the beginning of a request, a predicate for the changes that may alter the result
/// of the request, and the reason.
type ChangeException = (&'static str, fn(FrameChange) -> bool, &'static str);

/// Filters whose results depend on a change by definition.
const CHANGE_EXCEPTIONS: &[ChangeException] = &[
    (
        "eth",
        |change| change == FrameChange::Tag,
        "answers the outermost type, which is that of the tag",
    ),
    ("vlan", |change| change == FrameChange::Tag, "answers the tag"),
    ("strip vlan", |change| change == FrameChange::Tag, "takes the outermost tag out"),
    ("strip 5", |_| true, "cuts bytes off, whatever they are"),
    ("pcap", |_| true, "records the frame, with all that was captured of it"),
    (
        "bpf",
        |change| change != FrameChange::Fragments,
        "pcap-filter(7): `tcp` means an untagged frame, and a port lies where it lies, \
         wherever the packet ends",
    ),
];

fn is_exception(request: &str, change: FrameChange) -> bool {
    CHANGE_EXCEPTIONS.iter().any(|(begins, looks, _)| request.starts_with(begins) && looks(change))
}

/// Returns the start and end offsets of the IP packet in an Ethernet frame. Returns `None` unless
/// the packet is complete and states its length.
fn packet_range(frame: &Frame) -> Option<(usize, usize)> {
    let whole = frame.wire_length.is_none_or(|length| length as usize == frame.bytes.len());
    let layers = wire::layers(LinkType(frame.link), &frame.bytes);
    let at = usize::from(layers.l3.filter(|_| whole && frame.link == ETHERNET)?);
    let word = |at: usize| Some(u16::from_be_bytes(frame.bytes.get(at..at + 2)?.try_into().ok()?));
    let end = match layers.network {
        NetworkProtocol::Ipv4 => at + usize::from(word(at + 2).filter(|length| *length >= 20)?),
        NetworkProtocol::Ipv6 => at + 40 + usize::from(word(at + 4).filter(|length| *length > 0)?),
        _ => return None,
    };
    (end <= frame.bytes.len()).then_some((at, end))
}

impl FrameChange {
    /// Returns the original frame, and the changed frames to compare with it. Returns `None` if the
    /// change does not apply.
    fn apply(self, frame: &Frame, number: u16) -> Option<(Frame, Vec<Frame>)> {
        let (at, end) = packet_range(frame)?;
        let mut plain = frame.clone();
        plain.bytes.truncate(end);
        let padded = |padding: &[u8]| {
            let bytes = [&plain.bytes[..], padding].concat();
            Frame { bytes, wire_length: None, ..plain.clone() }
        };
        let changed = match self {
            Self::Padding(padding) => vec![padded(padding)],
            Self::Snapshot => vec![padded(&[7; 18]).truncated_to(end)],
            Self::Tag => {
                let bytes = [&plain.bytes[..12], &[0x81, 0, 0, 100], &plain.bytes[12..]].concat();
                vec![Frame { bytes, wire_length: None, ..plain.clone() }]
            }
            Self::Fragments => {
                let layers = wire::layers(LinkType::ETHERNET, &plain.bytes);
                let data = at + 20;
                let fits = plain.bytes[at] == 0x45 && layers.fragment == Fragment::Whole;
                if !fits || end < data + 16 {
                    return None;
                }
                plain.overwrite(at + 4, &number.to_be_bytes());
                plain.overwrite(at + 6, &[0, 0]);
                let cut = data + ((end - data) / 2).next_multiple_of(8);
                let piece = |from: usize, to: usize, more: u16| {
                    let bytes = [&plain.bytes[..data], &plain.bytes[from..to]].concat();
                    let mut piece = Frame { bytes, wire_length: None, ..plain.clone() };
                    piece.overwrite(at + 2, &((20 + to - from) as u16).to_be_bytes());
                    piece.overwrite(at + 6, &(more | ((from - data) / 8) as u16).to_be_bytes());
                    piece
                };
                vec![piece(data, cut, 0x2000), piece(cut, end, 0)]
            }
        };
        plain.wire_length = None;
        Some((plain, changed))
    }
}

/// The output of a chain of filters that received one frame per pass.
#[derive(PartialEq, Eq, Debug)]
struct ChainOutput {
    blocks: Vec<(Class, Vec<u8>)>,
    unanswered: Vec<u64>,
    report: Vec<(String, u64)>,
}

fn run_chain(chain: &[&'static Description], frames: &[Frame]) -> ChainOutput {
    let mut nodes = make_nodes(chain);
    let blocks =
        run_frames(&mut nodes, frames).into_iter().map(|answer| (answer.class, answer.bytes));
    let blocks = blocks.collect();
    let last = nodes.last().expect("a filter");
    ChainOutput { blocks, unanswered: last.counts.unanswered.clone(), report: last.report().rows }
}

fn make_nodes(chain: &[&'static Description]) -> Vec<Node> {
    let node = |d: &&'static Description| {
        // A faulty filter has no example.
        let words = if d.example.is_empty() { Vec::new() } else { testing::example_words(d) };
        let words: Vec<&str> = words.iter().map(String::as_str).collect();
        Node::new(d, &words).unwrap_or_else(|mistake| panic!("`{}`: {mistake}", d.name))
    };
    chain.iter().map(node).collect()
}

/// Runs the frames through a chain joined by plain pipes, and returns the blocks that leave the
/// last filter.
fn run_frames(nodes: &mut [Node], frames: &[Frame]) -> Vec<Answer> {
    let arena = Arena::new(64 + 8 * frames.len());
    let mut space = Space::new(&arena);
    let mut answers = Vec::new();
    for frame in frames {
        let mut batches = vec![space.batch(std::slice::from_ref(frame))];
        let count = nodes.len();
        for (number, node) in nodes.iter_mut().enumerate() {
            let before = std::mem::take(&mut batches).into_iter();
            batches = before.flat_map(|b| node.process_batch(b, &mut space, frame.time)).collect();
            if number + 1 < count {
                batches.iter_mut().for_each(|batch| {
                    batch.retain_lanes(batch.lanes_with_class(Class::is_answered))
                });
            }
        }
        let blocks = batches.iter().flat_map(|batch| batch.blocks().collect::<Vec<_>>());
        answers.extend(blocks.map(|(_, block)| Answer::from_block(&block, None)));
    }
    answers
}

/// Returns the chains in which a filter is tested, each with the forms of the filter's input and
/// output.
fn chains_with_filter(d: &'static Description) -> Vec<(Vec<&'static Description>, Form, Form)> {
    let named = |names: &[&str]| names.iter().map(|name| find(name).expect("known")).collect();
    let before: [(Vec<&'static Description>, Form); 4] = [
        (Vec::new(), Form::Frame),
        (named(&["ip"]), Form::Segment),
        (named(&["udp"]), Form::Segment),
        (named(&["ip", "udp"]), Form::Segment),
    ];
    let fits = |form: Form| {
        d.input_forms.contains(form)
            && !(form == Form::Frame && d.input_forms.contains(Form::Bytes))
    };
    let chains = before.into_iter().filter(|(_, form)| fits(*form));
    let gives = |form| if let OutputForm::Form(given) = d.output_form { given } else { form };
    chains.map(|(before, form)| ([&before[..], &[d]].concat(), form, gives(form))).collect()
}

/// Returns true if two answers are equal, except that the view of a frame or packet may extend into
/// bytes after the packet.
fn is_same_answer(
    (class, bytes): &(Class, Vec<u8>),
    changed: &(Class, Vec<u8>),
    form: Form,
    tag: bool,
) -> bool {
    let bytes = match form {
        // The view of a frame contains the added tag, so its bytes differ.
        Form::Frame if tag => true,
        Form::Frame | Form::Packet => changed.1.starts_with(bytes),
        _ => changed.1 == *bytes,
    };
    *class == changed.0 && bytes
}

/// Compares the answers of a filter for the original and the changed frames. Returns the number of
/// blocks compared, or the first difference.
fn compare_answers(
    d: &'static Description,
    change: FrameChange,
    frames: &[Frame],
) -> Result<usize, String> {
    let pairs = frames.iter().zip(1..).filter_map(|(frame, number)| change.apply(frame, number));
    let (plain, changed): (Vec<Frame>, Vec<Vec<Frame>>) = pairs.unzip();
    let mut compared = 0;
    for (chain, comes, form) in chains_with_filter(d) {
        let joins = chain.first().is_some_and(|first| first.name == "ip");
        if change == FrameChange::Fragments && !joins {
            continue;
        }
        let (before, after) = (run_chain(&chain, &plain), run_chain(&chain, &changed.concat()));
        let names: Vec<_> = chain.iter().map(|d| d.name).collect();
        let differ =
            |what: String| Err(format!("`{}` under {change:?}: {what}", names.join(" | ")));
        if before.blocks.len() != after.blocks.len() {
            return differ(format!("{} blocks, {}", before.blocks.len(), after.blocks.len()));
        }
        let tag = change == FrameChange::Tag;
        for (before, after) in before.blocks.iter().zip(&after.blocks) {
            // A block without a class keeps its view, and thus its form.
            let form = if before.0.is_answered() { form } else { comes };
            if !is_same_answer(before, after, form, tag) {
                return differ(format!("{before:02x?}, {after:02x?}"));
            }
        }
        if before.unanswered != after.unanswered {
            return differ(format!("{:?}, {:?}", before.unanswered, after.unanswered));
        }
        let whole = !matches!(form, Form::Frame | Form::Packet);
        if whole && before.report != after.report {
            return differ(format!("{:?}, {:?}", before.report, after.report));
        }
        compared += before.blocks.len();
    }
    Ok(compared)
}

/// Returns IP packets with up to eight bytes of data, a selection of the frames of the other tests,
/// and frames of captures. All frames have a timestamp.
fn invariance_frames() -> Vec<Frame> {
    let empty = [6, 17, 132, 136, 1, 47].into_iter().flat_map(|protocol| {
        let short = (0..9).map(move |length| vec![0; length]);
        short.flat_map(move |data| [Frame::ipv4(protocol, &data), Frame::ipv6(protocol, &data)])
    });
    let borders =
        corpus::boundaries::boundary_frames().into_iter().map(|b| Frame::new(ETHERNET, &b));
    let mut frames: Vec<Frame> =
        empty.chain(corpus::header_case_frames()).chain(borders.step_by(7)).collect();
    frames.extend(corpus::generated_frames(4));
    for (number, frame) in frames.iter_mut().enumerate() {
        frame.time = number as u64 * 1_000_000;
    }
    frames
}

#[test]
fn bytes_around_a_packet_change_no_class() {
    let frames = invariance_frames();
    for d in FILTERS {
        let (mut compared, mut excused, mut differs) = (0, false, false);
        for change in FRAME_CHANGES {
            let result = compare_answers(d, change, &frames);
            match is_exception(d.name, change) {
                true => (excused, differs) = (true, differs || result.is_err()),
                false => compared += result.unwrap_or_else(|differ| panic!("{differ}")),
            }
        }
        assert_eq!(excused, differs, "`{}` needs no exception", d.name);
        let streams =
            !d.input_forms.contains(Form::Segment) && !d.input_forms.contains(Form::Frame);
        assert!(compared > 100 || streams || excused, "`{}`: {compared} blocks", d.name);
    }
}

/// Checks that a twin gives the same answers for the changed frames as for the original frames, and
/// the same answers as its filter for the changed frames. Returns the number of frames compared, or
/// the first difference.
fn compare_twin_answers(
    chain: &[TwinCase],
    change: FrameChange,
    frames: &[Frame],
) -> Result<usize, String> {
    let mut compared = 0;
    for hook in [Hook::Tc, Hook::Xdp] {
        let Some(program) = try_emit_program(chain, hook) else { continue };
        let mut user = ReferenceChain::new(chain, &program);
        let (mut twin, mut other) =
            (InterpreterJudge::new(&program), InterpreterJudge::new(&program));
        let pairs =
            frames.iter().zip(1..).filter_map(|(frame, number)| change.apply(frame, number));
        for (plain, changed) in pairs {
            let [changed] = &changed[..] else { continue };
            let class = |ruling| match ruling {
                TwinVerdict::Answered { outcome: Outcome::Class(class), .. } => Some(class),
                _ => None,
            };
            let before = class(twin.judge(&Packet::new(&plain.bytes)));
            let after = class(other.judge(&Packet::new(&changed.bytes)));
            let theirs = class(user.judge(&Packet::new(&changed.bytes)));
            let (Some(before), Some(after)) = (before, after) else { continue };
            if before != after || theirs != Some(after) {
                return Err(format!(
                    "the twin of `{}` at {hook:?} under {change:?}: {before}, {after}; the filter: \
                     {theirs:?}; {:02x?}",
                    request_text(chain),
                    changed.bytes
                ));
            }
            compared += 1;
        }
    }
    Ok(compared)
}

#[test]
fn bytes_around_a_packet_change_no_class_of_a_twin() {
    let frames: Vec<Frame> = invariance_frames().into_iter().step_by(2).collect();
    let mut compared = 0;
    for chain in twin_chains(1) {
        let d = chain[0].description;
        // The answer of a filter with state depends on earlier frames, which its twin has not
        // counted if it was unsure about them.
        if d.input_forms.contains(Form::Bytes) || d.state.scope != StateScope::Nothing {
            continue;
        }
        for change in FRAME_CHANGES {
            // The padding of a snapshot was not captured.
            if matches!(change, FrameChange::Fragments | FrameChange::Snapshot)
                || is_exception(&request_text(&chain), change)
            {
                continue;
            }
            let result = compare_twin_answers(&chain, change, &frames);
            compared += result.unwrap_or_else(|differ| panic!("{differ}"));
        }
    }
    assert!(compared > 10_000, "{compared}");
}

/// A session number, and true for the backward direction ([`BlockFlags::BACKWARD`]).
type SessionDirection = (u32, bool);

/// Runs a stream filter over the frames. Returns its output for each session and direction: the
/// classes of the blocks, and the bytes of messages.
fn outputs_by_side(
    d: &'static Description,
    frames: &[Frame],
) -> BTreeMap<SessionDirection, (BTreeSet<Class>, Vec<u8>)> {
    let mut nodes = make_nodes(&[find("tcp").expect("known"), d]);
    let mut sides: BTreeMap<SessionDirection, (BTreeSet<Class>, Vec<u8>)> = BTreeMap::new();
    let messages = d.output_form == OutputForm::Form(Form::Message);
    for answer in run_frames(&mut nodes, frames) {
        let BlockMetadata { session, flags, .. } = answer.context;
        let side = sides.entry((session, flags.contains(BlockFlags::BACKWARD))).or_default();
        if answer.class.is_answered() {
            side.0.insert(answer.class);
            side.1.extend(answer.bytes.into_iter().filter(|_| messages));
        }
    }
    sides
}

/// Splits a TCP segment into two. Returns `None` if the frame contains no segment that can be
/// split.
fn split_segment(frame: &Frame) -> Option<Vec<Frame>> {
    let (at, end) = packet_range(frame)?;
    let layers = wire::layers(LinkType(frame.link), &frame.bytes);
    let (tcp, data) = (usize::from(layers.l4?), usize::from(layers.payload?));
    let is_four = layers.protocol == Some(6) && frame.bytes[at] >> 4 == 4;
    // A SYN occupies a sequence number.
    if !is_four || end < data + 2 || frame.bytes[tcp + 13] & 2 != 0 {
        return None;
    }
    let cut = data + (end - data) / 2;
    let mut first = frame.clone();
    first.bytes.truncate(cut);
    first.overwrite(at + 2, &((cut - at) as u16).to_be_bytes());
    // The first half has neither FIN nor PSH.
    let flags = frame.bytes[tcp + 13];
    first.overwrite(tcp + 13, &[flags & !9]);
    let mut second = frame.clone();
    second.bytes.drain(data..cut);
    second.overwrite(at + 2, &((end - at - (cut - data)) as u16).to_be_bytes());
    let sequence = u32::from_be_bytes(frame.bytes[tcp + 4..tcp + 8].try_into().ok()?);
    second.overwrite(tcp + 4, &sequence.wrapping_add((cut - data) as u32).to_be_bytes());
    (first.wire_length, second.wire_length) = (None, None);
    Some(vec![first, second])
}

#[test]
fn streams_in_smaller_segments_have_the_same_answers() {
    let made = testkit::generated_captures()
        .with_name_prefixes(&["dns/", "http/", "mixed/", "streams/", "text/", "tls/", "web"]);
    let mut answered = 0;
    for path in &made.paths {
        let bytes = std::fs::read(path).expect("a capture");
        let plain: Vec<Frame> = testing::read_capture(&bytes).into_iter().take(400).collect();
        let cut = |frame: &Frame| split_segment(frame).unwrap_or_else(|| vec![frame.clone()]);
        let segmented: Vec<Frame> = plain.iter().flat_map(cut).collect();
        // A filter that accepts any bytes classifies block by block, and segmentation changes the
        // blocks.
        let streams = |d: &&&Description| {
            d.input_forms.contains(Form::Stream) && !d.input_forms.contains(Form::Bytes)
        };
        for d in FILTERS.iter().filter(streams).filter(|d| !d.input_forms.contains(Form::Frame)) {
            let (before, after) = (outputs_by_side(d, &plain), outputs_by_side(d, &segmented));
            answered += before.values().map(|side| side.0.len()).sum::<usize>();
            assert!(before == after, "`{}` of {}: {before:?}, {after:?}", d.name, path.display());
        }
    }
    assert!(answered > 20, "{answered}");
}

/// A faulty filter with a faulty twin: both read a port at its offset even if the packet ends
/// before it.
const FAULTY_FILTER: Description = Description {
    name: "faulty",
    kind: FilterKind::Classification,
    input_forms: Forms::FRAMED,
    reads: ReadDepth::Head(64),
    classes: Classes::Number {
        meaning: "a port",
        range: ValueRange { low: 0, high: 65_535 },
        names: &[],
    },
    reasons: &["cut"],
    constructor: Some(|_| Ok(Filter::classify(FaultyFilter))),
    emit_twin: Some(emit_faulty_twin),
    ..Description::FILTER_DEFAULTS
};
const CUT: Reason = FAULTY_FILTER.reason("cut");

struct FaultyFilter;

impl Classify for FaultyFilter {
    fn classify(&mut self, block: &mut Block<'_>, cx: &mut ClassifyContext<'_>) -> Class {
        match block.frame.get(36..38) {
            Some(port) => Class::from_natural(u16::from_be_bytes([port[0], port[1]]).into()),
            None => cx.answer_absent(CUT),
        }
    }
}

fn emit_faulty_twin<'s>(
    _: &Arguments,
    s: &mut Scope<'s, '_>,
    on: Layers<'s>,
    out: Exit<'s>,
) -> Result<TwinAnswer<'s>, UnfitReason> {
    let cut = s.absent("cut", out);
    let bytes = s.need::<38>(on.frame, cut);
    let port = s.load(bytes, be16::<36>());
    Ok(TwinAnswer::new(s.natural_class(port), on))
}

#[test]
fn comparison_detects_padding_read_as_a_header() {
    let frames = invariance_frames();
    let padding = FRAME_CHANGES[1];
    let found =
        compare_answers(&FAULTY_FILTER, padding, &frames).expect_err("padding is no header");
    assert!(found.contains("`faulty` under Padding"), "{found}");
    let twin = [TwinCase::without_arguments(&FAULTY_FILTER)];
    // Filter and twin agree, so only the comparison of the twin with itself finds the mistake.
    let found = compare_twin_answers(&twin, padding, &frames).expect_err("padding is no header");
    let agrees = found.rsplit_once("; the filter: Some(").is_some();
    assert!(found.contains("the twin of `faulty`") && agrees, "{found}");
    assert!(
        compare_answers(&FAULTY_FILTER, FrameChange::Tag, &frames).is_err(),
        "nor do tags move a port"
    );
}
