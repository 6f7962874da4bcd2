//! What exams of twins stand on: every chain of twins that the forms allow, each as one program,
//! and the user implementations as a judge beside the interpreter and the kernel.

use super::{Arena, ETHERNET, Frame, Node, Space, arguments, example_words};
use crate::catalog::FILTERS;
use crate::contract::{Description, Form, Gives, lanes};
use abi::Class;
use ebpf::emit::{self, Answer, Finish, Outcome, Target, Unfit};
use ebpf::exam::{Judge, Ruling};
use ebpf::interpret::Packet;
use ebpf::{Place, Program, Word};

/// Filters with twins, one behind the other.
pub type Chain = Vec<&'static Description>;

/// Every chain of at most `length` filters of the catalog that have a twin, in which each takes
/// what the one before gives.
#[must_use]
pub fn chains(length: usize) -> Vec<Chain> {
    let twins: Chain = FILTERS.iter().copied().filter(|d| d.kernel.is_some()).collect();
    let mut all: Vec<Chain> = Vec::new();
    let mut ends: Vec<(Chain, Form)> = vec![(Chain::new(), Form::Frame)];
    for _ in 0..length {
        let mut longer = Vec::new();
        for (chain, form) in &ends {
            for d in twins.iter().filter(|d| d.takes.has(*form)) {
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

/// The chain as it is written.
#[must_use]
pub fn request(chain: &[&'static Description]) -> String {
    chain.iter().map(|d| d.name).collect::<Vec<_>>().join(" | ")
}

/// The chain as one program that returns the class. Word n of it is filter n.
pub fn program(
    chain: &[&'static Description],
    target: impl Into<Target>,
) -> Result<Program, Unfit> {
    emit::program(target, Finish::Answer, |s, on, out| {
        let mut answer = Answer::new(emit::NONE, on);
        for (at, d) in chain.iter().enumerate() {
            let twin = d.kernel.ok_or_else(|| Unfit::new("no twin"))?;
            let words = example_words(d);
            let words: Vec<&str> = words.iter().map(String::as_str).collect();
            let arguments = arguments(d, &words).map_err(|m| Unfit::new(m.to_string()))?;
            answer = s.piece(Word::new(d.name, at, 1), twin, &arguments, answer.layers, out)?;
        }
        Ok(answer)
    })
}

/// The user implementations of a chain as a judge of its program, which tells the place and the
/// order of the counters.
#[derive(Debug)]
pub struct User<'p> {
    nodes: Vec<Node>,
    program: &'p Program,
}

impl<'p> User<'p> {
    /// Judges what `program` was made from.
    ///
    /// # Panics
    /// When the arguments in a filter's example are wrong.
    #[must_use]
    pub fn new(chain: &[&'static Description], program: &'p Program) -> Self {
        let nodes = chain.iter().map(|d| {
            let words = example_words(d);
            let words: Vec<&str> = words.iter().map(String::as_str).collect();
            Node::new(d, &words).expect("good arguments")
        });
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
        let mut class = Class::NONE;
        for node in &mut self.nodes {
            batch = node.turn(batch, &mut space, 0).remove(0);
            // A block that was held or ended here has no class any more.
            class = if batch.live() == 0 { Class::HELD } else { batch.class(0) };
            batch.keep(batch.select(Class::answered));
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
