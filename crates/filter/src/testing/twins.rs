//! Test support for twins. It emits a program for each possible chain of twins, in which each
//! filter accepts the form that the previous one emits. It also runs the user implementations of a
//! chain, as the reference for the interpreter and the kernel.

use super::example::twin_argument_lists;
use super::{Arena, ETHERNET, Frame, Node, Space, parse_arguments};
use crate::catalog::FILTERS;
use crate::contract::{
    Description, FilterKind, Form, MovedSession, OutputForm, PRIVATE_SESSION_KEY, lanes,
};
use abi::{BlockFlags, Class};
use ebpf::emit::{self, Answer, Outcome, ReturnConversion, Target, UnfitReason};
use ebpf::exam::{TwinJudge, TwinVerdict, insert_tag_inline};
use ebpf::interpret::Packet;
use ebpf::{FilterSpan, Program};
use wire::LinkType;

/// A test case: a filter with a twin, and the filter's arguments.
#[derive(Clone, Debug)]
pub struct TwinCase {
    /// Catalog entry of the filter.
    pub description: &'static Description,
    words: Vec<String>,
}

impl TwinCase {
    /// Creates a test case without arguments.
    #[must_use]
    pub const fn without_arguments(description: &'static Description) -> Self {
        Self { description, words: Vec::new() }
    }

    /// Creates a test case with these arguments.
    #[must_use]
    pub fn new(description: &'static Description, words: &[&str]) -> Self {
        Self { description, words: words.iter().map(|word| (*word).to_owned()).collect() }
    }

    /// Returns a test case for each argument list of each filter with a twin.
    fn all_cases() -> Vec<Self> {
        let twins = FILTERS.iter().copied().filter(|d| d.emit_twin.is_some());
        let each = twins.flat_map(|description| {
            let words = twin_argument_lists(description).into_iter();
            words.map(move |words| Self { description, words })
        });
        each.collect()
    }

    fn output_form(&self) -> OutputForm {
        let arguments = parse_arguments(self.description, &self.words()).expect("good arguments");
        self.description.effect_of(&arguments).output_form
    }

    fn words(&self) -> Vec<&str> {
        self.words.iter().map(String::as_str).collect()
    }
}

/// A chain of consecutive filters, all with twins.
pub type TwinChain = Vec<TwinCase>;

/// Returns all chains of at most `length` catalog filters with twins, where each filter accepts the
/// output form of the previous one.
#[must_use]
pub fn twin_chains(length: usize) -> Vec<TwinChain> {
    let twins = TwinCase::all_cases();
    let mut all: Vec<TwinChain> = Vec::new();
    let mut ends: Vec<(TwinChain, Form)> = vec![(TwinChain::new(), Form::Frame)];
    for _ in 0..length {
        let mut longer = Vec::new();
        for (chain, form) in &ends {
            for twin in twins.iter().filter(|twin| twin.description.input_forms.contains(*form)) {
                let given = match twin.output_form() {
                    OutputForm::Form(given) => given,
                    OutputForm::Same | OutputForm::Nothing => *form,
                };
                longer.push(([&chain[..], std::slice::from_ref(twin)].concat(), given));
            }
        }
        all.extend(longer.iter().map(|(chain, _)| chain.clone()));
        ends = longer;
    }
    all
}

/// Returns chains that are too long for a single program: each has more than forty filters.
#[must_use]
pub fn long_twin_chains() -> Vec<TwinChain> {
    let twin = |name: &str, words: &[&str]| TwinCase {
        description: crate::catalog::find(name).expect("a filter of the catalog"),
        words: words.iter().map(|word| (*word).to_owned()).collect(),
    };
    let groups: [&[(&str, &[&str])]; 4] = [
        &[("ipproto", &[]), ("count", &[]), ("split", &["4"]), ("hist", &["of=length"])],
        &[("split", &["3"]), ("rewrite", &["ttl=9"]), ("split", &["2", "by=block"])],
        &[("bpf", &["ip or ip6 or arp"]), ("sport", &[]), ("split", &["7"])],
        &[("rewrite", &["sport=7", "dst=10.1.2.3"]), ("udp", &[]), ("count", &[])],
    ];
    let long = |group: &[(&str, &[&str])]| {
        let group = group.iter().map(|(name, words)| twin(name, words));
        std::iter::repeat_n(group.collect::<TwinChain>(), 42 / 3).flatten().collect()
    };
    groups.into_iter().map(long).collect()
}

/// Returns true if a filter in the chain edits frames. Some hooks do not allow programs for such a
/// chain.
#[must_use]
pub fn edits_frames(chain: &[TwinCase]) -> bool {
    chain.iter().any(|twin| twin.description.kind == FilterKind::Editing)
}

/// Emits the chain as one program. Returns `None` if the chain edits frames and the target does not
/// allow that.
///
/// # Panics
///
/// Panics if the target rejects a chain that edits no frame.
#[must_use]
pub fn try_emit_program(chain: &[TwinCase], target: impl Into<Target>) -> Option<Program> {
    match emit_program(chain, target) {
        Ok(program) => Some(program),
        Err(_) if edits_frames(chain) => None,
        Err(unfit) => panic!("`{}`: {unfit}", request_text(chain)),
    }
}

/// Formats the chain as a request, for messages. Arguments with spaces are not quoted.
#[must_use]
pub fn request_text(chain: &[TwinCase]) -> String {
    let written =
        |twin: &TwinCase| [&[twin.description.name][..], &twin.words()].concat().join(" ");
    chain.iter().map(written).collect::<Vec<_>>().join(" | ")
}

/// Emits the chain as one program, which returns the class. A filter has the same index in the
/// program as in the chain.
pub fn emit_program(chain: &[TwinCase], target: impl Into<Target>) -> Result<Program, UnfitReason> {
    emit::program(target.into().redirecting(), ReturnConversion::Answer, |s, on, out| {
        let mut answer = Answer::new(emit::NO_ANSWER_CLASS, on);
        for (at, twin) in chain.iter().enumerate() {
            let d = twin.description;
            let emit = d.emit_twin.ok_or_else(|| UnfitReason::new("no twin"))?;
            let arguments =
                parse_arguments(d, &twin.words()).map_err(|m| UnfitReason::new(m.to_string()))?;
            answer = s.end_part_if_long(answer);
            answer =
                s.emit_twin(FilterSpan::new(d.name, at, 1), emit, &arguments, answer.layers, out)?;
        }
        Ok(answer)
    })
}

/// The reference for a program of twins: the user implementations of the same chain. It presents
/// each frame in the form in which the program's hook receives it, and returns its counts in the
/// order of the program's counters.
#[derive(Debug)]
pub struct ReferenceChain<'p> {
    nodes: Vec<Node>,
    program: &'p Program,
}

impl<'p> ReferenceChain<'p> {
    /// Creates the reference with which the tests of twins compare `program`.
    ///
    /// # Panics
    /// Panics if the arguments are wrong.
    #[must_use]
    pub fn new(chain: &[TwinCase], program: &'p Program) -> Self {
        let node = |twin: &TwinCase| Node::new(twin.description, &twin.words());
        let nodes = chain.iter().map(|twin| node(twin).expect("good arguments"));
        Self { nodes: nodes.collect(), program }
    }

    fn reasons(&self) -> Vec<u64> {
        let counted = self.program.counters.iter().map(|counter| {
            let node = counter.filter.and_then(|word| self.nodes.get(word));
            let mut reasons = node.into_iter().flat_map(Node::unanswered_reasons);
            let reason = reasons.find(|(name, _)| *name == counter.name);
            reason.unwrap_or_else(|| panic!("no filter has the reason {counter:?}")).1
        });
        counted.collect()
    }
}

impl TwinJudge for ReferenceChain<'_> {
    fn name(&self) -> &str {
        "user"
    }

    fn judge(&mut self, packet: &Packet<'_>) -> TwinVerdict {
        let before = self.reasons();
        let arena = Arena::new(2 + self.nodes.len());
        let mut space = Space::new(&arena);
        let frame = insert_tag_inline(packet.bytes, packet.tag, self.program.hook);
        let link = if self.program.hook.has_link_header() { ETHERNET } else { LinkType::RAW.0 };
        let mut batch = space.batch(&[Frame::new(link, &frame)]);
        if packet.is_unfilled {
            let mut block = batch.block(0);
            block.context.flags = block.context.flags.with(BlockFlags::CHECKSUM_UNSET);
            batch.set_block(0, block);
        }
        let (mut class, mut last) = (Class::NONE, None);
        for node in &mut self.nodes {
            batch = node.process_batch(batch, &mut space, 0).remove(0);
            // A held or ended block has no class.
            class = if batch.live_lanes() == 0 { Class::HELD } else { batch.class(0) };
            last = lanes(batch.live_lanes()).next().map(|l| batch.block(l).frame.to_vec());
            batch.retain_lanes(batch.lanes_with_class(Class::is_answered));
            if lanes(batch.live_lanes()).count() == 0 {
                break;
            }
        }
        let counted = self.reasons().iter().zip(before).map(|(now, was)| now - was).collect();
        let frame = self.program.edits_frames.then(|| last.unwrap_or_default());
        TwinVerdict::Answered {
            outcome: Outcome::Class(class.0),
            counter_increases: counted,
            frame,
        }
    }

    fn filter_states(&mut self) -> Option<Vec<Vec<u8>>> {
        let maps = self.program.maps.iter().filter_map(|map| Some((map.state_of?, map.value_size)));
        let states = maps.map(|(word, size)| {
            let node = self.nodes.get_mut(word).expect("a filter for each word");
            let saved = node.take_sessions();
            // A filter without input has no session yet.
            let private = saved.iter().find(|moved| moved.key == PRIVATE_SESSION_KEY);
            let bytes =
                private.map(|moved| moved.bytes.clone()).unwrap_or_else(|| vec![0; size as usize]);
            node.restore_sessions(saved).expect("what was saved here");
            bytes
        });
        Some(states.collect())
    }

    fn adopt_filter_states(&mut self, states: Vec<Vec<u8>>) {
        let words = self.program.maps.iter().filter_map(|map| map.state_of);
        for (word, bytes) in words.zip(states) {
            let node = self.nodes.get_mut(word).expect("a filter for each word");
            node.take_sessions();
            let private = MovedSession { key: PRIVATE_SESSION_KEY, bytes, held: Vec::new() };
            node.restore_sessions(vec![private]).expect("as many bytes as a session has");
        }
    }
}
