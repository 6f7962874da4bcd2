//! The twin exam: for every filter with a kernel twin, and every chain of them that the forms
//! allow, the user implementation and the interpreter say the same of every packet, in class and in
//! counted reasons. One loop over the catalog, no code for any filter.
//!
//! A twin may be unsure instead of answering, but not of plain traffic.

mod corpus;

use ebpf::emit::{self, Answer, Finish, Outcome, Unfit};
use ebpf::exam::{self, Interpreter, Judge, Ruling};
use ebpf::interpret::Packet;
use ebpf::{Place, Program, Word};
use filter::catalog::FILTERS;
use filter::testing::{Arena, ETHERNET, Frame, Node, Space, arguments};
use filter::{Description, Form, Gives, lanes};

/// A request of twins: filters behind one another.
type Chain = Vec<&'static Description>;

fn twins() -> impl Iterator<Item = &'static Description> {
    FILTERS.iter().copied().filter(|d| d.kernel.is_some())
}

/// Every chain of at most `length` twins in which each takes what the one before gives.
fn chains(length: usize) -> Vec<Chain> {
    let mut all: Vec<Chain> = Vec::new();
    let mut ends: Vec<(Chain, Form)> = vec![(Chain::new(), Form::Frame)];
    for _ in 0..length {
        let mut longer = Vec::new();
        for (chain, form) in &ends {
            for d in twins().filter(|d| d.takes.has(*form)) {
                let given = match d.gives {
                    Gives::Form(given) => given,
                    Gives::Same | Gives::Nothing => *form,
                };
                longer.push(([&chain[..], &[d]].concat(), given));
            }
        }
        all.extend(longer.iter().map(|(chain, _)| chain.clone()));
        ends = longer;
    }
    all
}

fn request(chain: &Chain) -> String {
    chain.iter().map(|d| d.name).collect::<Vec<_>>().join(" | ")
}

fn program(chain: &Chain, place: Place) -> Result<Program, Unfit> {
    emit::program(place, Finish::Answer, |s, on, out| {
        let mut answer = Answer::new(emit::NONE, on);
        for (at, d) in chain.iter().enumerate() {
            let twin = d.kernel.ok_or_else(|| Unfit::new("no twin"))?;
            let arguments = arguments(d, &[]).map_err(|m| Unfit::new(m.to_string()))?;
            answer = s.piece(Word::new(d.name, at, 1), twin, &arguments, answer.layers, out)?;
        }
        Ok(answer)
    })
}

/// The user implementations as a judge. `program` tells the place and the order of the counters.
struct User<'p> {
    nodes: Vec<Node>,
    program: &'p Program,
}

impl<'p> User<'p> {
    fn new(chain: &Chain, program: &'p Program) -> Self {
        let nodes = chain.iter().map(|d| Node::new(d, &[]).expect("no arguments are needed"));
        Self { nodes: nodes.collect(), program }
    }

    fn reasons(&self) -> Vec<u64> {
        let counted = self.program.counters.iter().map(|counter| {
            let node = counter.word.and_then(|word| self.nodes.get(word));
            let mut reasons = node.into_iter().flat_map(Node::unanswered);
            let reason = reasons.find(|(name, _)| *name == counter.name);
            reason.unwrap_or_else(|| panic!("no filter has the reason {counter:?}")).1
        });
        counted.collect()
    }
}

impl Judge for User<'_> {
    fn name(&self) -> &str {
        "user"
    }

    fn judge(&mut self, packet: &Packet<'_>) -> Ruling {
        let before = self.reasons();
        let arena = Arena::new(2);
        let mut space = Space::new(&arena);
        let frame = with_tag(packet, self.program.place);
        let mut batch = space.batch(&[Frame::of(ETHERNET, &frame)]);
        let mut class = abi::Class::NONE;
        for node in &mut self.nodes {
            batch = node.turn(batch, &mut space, 0).remove(0);
            class = batch.class(0);
            batch.keep(batch.select(abi::Class::answered));
            if lanes(batch.live()).count() == 0 {
                break;
            }
        }
        let counted = self.reasons().iter().zip(before).map(|(now, was)| now - was).collect();
        Ruling::Answered { outcome: Outcome::Class(class.0), counted }
    }
}

/// The frame as the host's stack sees it: a tag that lay beside it is put back in its place
/// (CONTRACT 3). XDP runs before a tag is taken out.
fn with_tag(packet: &Packet<'_>, place: Place) -> Vec<u8> {
    match (packet.tag, packet.bytes.split_at_checked(12)) {
        (Some(tag), Some((addresses, rest))) if place != Place::Xdp => {
            [addresses, &tag.protocol.to_be_bytes(), &tag.tci.to_be_bytes(), rest].concat()
        }
        _ => packet.bytes.to_vec(),
    }
}

fn sit<'a>(
    chain: &Chain,
    program: &Program,
    packets: impl IntoIterator<Item = Packet<'a>>,
) -> Result<exam::Tally, String> {
    let (mut user, mut interpreter) = (User::new(chain, program), Interpreter::new(program));
    exam::sit(&mut [&mut user, &mut interpreter], packets)
        .map_err(|differ| format!("`{}` at {:?}: {differ}", request(chain), program.place))
}

const PLACES: [Place; 3] = [Place::Tc, Place::Xdp, Place::Socket];

fn ethernet(frames: Vec<Frame>) -> Vec<Vec<u8>> {
    let frames = frames.into_iter().filter(|frame| frame.link == ETHERNET);
    frames.map(|frame| frame.bytes).collect()
}

/// Whether this is the number beside that of an extension header.
fn is_near(protocol: u8) -> bool {
    matches!(protocol, 1 | 42 | 45 | 52 | 61 | 134 | 136 | 138 | 141)
}

/// Tags, extension headers, lengths: each where a comparison of some twin turns.
fn borders() -> Vec<Vec<u8>> {
    let mut frames = ethernet(corpus::shapes());
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
    for first in [0, 1, 42, 43, 44, 45, 50, 51, 52, 59, 60, 61, 134, 135, 136, 138, 139, 140, 141] {
        for second in [17, 6, 60] {
            let header = [first, 0, 0, 0, 0, 0, 0, 0];
            frames.push(
                Frame::ipv6(60, &[&header[..], &[second, 0, 0, 0, 0, 0, 0, 0]].concat()).bytes,
            );
            for longer in [0, 1].into_iter().take(if is_near(first) { 1 } else { 2 }) {
                let header = [second, longer, 0, 0, 0, 0, 0, 0];
                let chain = [&header[..], &[17, 0, 0, 0, 0, 0, 0, 0], datagram].concat();
                frames.push(Frame::ipv6(first, &chain).bytes);
            }
        }
    }
    let deep = [60, 0, 0, 0, 0, 0, 0, 0].repeat(2);
    for third in [60, 17] {
        let chain = [&deep[..], &[third, 0, 0, 0, 0, 0, 0, 0], datagram].concat();
        frames.push(Frame::ipv6(60, &chain).bytes);
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
    frames.push([&udp.bytes[..12], &[8, 0], &[0x47, 0, 0, 36], &udp.bytes[18..]].concat());
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
    frames
}

/// Whole, and as the kernel may hold them: in two pieces, or with a tag beside.
fn shapes_of(frames: &[Vec<u8>]) -> Vec<Packet<'_>> {
    let mut packets = Vec::new();
    for (number, frame) in frames.iter().enumerate() {
        let packet = Packet::new(frame);
        packets.push(packet);
        packets.push(packet.split_at([0, 14, 20, 34, 36][number % 5]));
        if frame.len() >= 12 {
            packets.push(packet.tagged(0xe000 | number as u16, [0x8100, 0x88a8][number % 2]));
        }
    }
    packets
}

#[test]
fn every_twin_answers_as_its_filter_does() {
    let borders = borders();
    let packets = shapes_of(&borders);
    let mut answered = 0;
    for chain in chains(3) {
        for place in PLACES {
            // The longer the chain, the more of it others have shown.
            let step = match (chain.len(), place) {
                (1, _) | (2, Place::Tc) => 1,
                (2, _) => 5,
                (_, Place::Tc) => 11,
                _ => continue,
            };
            let program = program(&chain, place).unwrap_or_else(|unfit| panic!("{unfit}"));
            let tally = sit(&chain, &program, packets.iter().copied().step_by(step));
            answered += tally.unwrap_or_else(|wrong| panic!("{wrong}")).answered;
        }
    }
    assert!(answered > 10_000, "only {answered} packets were answered");
}

#[test]
fn every_twin_answers_frames_cut_at_every_length() {
    let mut borders = borders();
    let captured = ethernet(corpus::captured(1)).into_iter().filter(|frame| frame.len() < 120);
    borders.extend(captured.step_by(20));
    for chain in chains(1) {
        for place in [Place::Xdp, Place::Tc] {
            let program = program(&chain, place).unwrap();
            let step = if place == Place::Xdp { 4 } else { 13 };
            let cut = borders.iter().step_by(step).flat_map(|frame| exam::cuts(frame));
            let tally = sit(&chain, &program, cut.map(Packet::new));
            tally.unwrap_or_else(|wrong| panic!("{wrong}"));
        }
    }
}

#[test]
fn twins_are_sure_of_what_others_captured() {
    let mut captured = ethernet(corpus::captured(3));
    if captured.is_empty() {
        return;
    }
    captured.retain(|frame| frame.len() < 2000);
    for chain in chains(2) {
        let program = program(&chain, Place::Tc).unwrap();
        let tally = sit(&chain, &program, captured.iter().map(|frame| Packet::new(frame)));
        let tally = tally.unwrap_or_else(|wrong| panic!("{wrong}"));
        let most = tally.unsure * 10 <= tally.packets;
        assert!(most, "`{}` is unsure: {tally:?}", request(&chain));
    }
}

/// The frame, cut where headers end and one byte before.
fn edges(frame: &[u8]) -> impl Iterator<Item = &[u8]> {
    let ends = [14, 18, 22, 34, 38, 42, 54, 58, 62, 66, 70];
    ends.into_iter().flat_map(|end| [end - 1, end]).filter_map(|end| frame.get(..end))
}

/// Single slips in the generated code. Survivors are equivalent programs (first values of variables
/// that are always set, checks of bytes that a later check repeats, places that only a filter
/// behind would read) or slips that only the kernel would notice.
#[test]
fn the_exam_notices_broken_twins() {
    let borders = borders();
    let (mut caught, mut all) = (0_u64, 0_u64);
    for chain in chains(1) {
        let twin = program(&chain, Place::Xdp).unwrap();
        let whole = || borders.iter().map(|frame| Packet::new(frame));
        let cut = || borders.iter().step_by(5).flat_map(|frame| edges(frame)).map(Packet::new);
        let sound = sit(&chain, &twin, whole().chain(cut())).unwrap();
        for mutant in exam::mutants(&twin).iter().step_by(17) {
            all += 1;
            let found = sit(&chain, mutant, whole().chain(cut()));
            if found.map_or(true, |tally| tally.unsure > sound.unsure) {
                caught += 1;
            } else {
                let at = twin.code.iter().zip(&mutant.code).position(|(a, b)| a != b).unwrap();
                let [was, is] =
                    [&twin, mutant].map(|p| ebpf::disasm::instruction(p.code[at], None));
                println!("survives: `{}` {at}: {was} became {is}", request(&chain));
            }
        }
    }
    assert!(all > 50 && caught * 100 >= all * CAUGHT_PERCENT, "caught only {caught} of {all}");
}

/// May only rise.
const CAUGHT_PERCENT: u64 = 65;
