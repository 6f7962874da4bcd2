//! A program that takes frames from the host: at XDP, and in front of the sockets of AF_XDP that
//! `rx IF take` opens. [SL §5.5, §7.1; CONTRACT 2, 3, 18]
//!
//! In: what one line does in the kernel. Out: the program at its interface, and the source of what
//! it hands on. It is made up to twice: once such that it asks the driver for tags, for drivers
//! that can be asked, and once without. A frame of which the driver took out a tag is unsure, since
//! twins at XDP read tags where they stand in a frame. Nobody shares such a program: there is one
//! place for it at an interface, and who takes a frame takes it from all others.

use super::assemble::{Assembled, Layout, Misfit, assemble};
use super::ended::Ended;
use super::host::{Held, Refusal};
use super::joint::{Joint, Member};
use super::load::{Failed, How, Loaded, load};
use super::tree::Tree;
use super::{Opened, Wanted, leads};
use crate::error::BuildError;
use ebpf::Hook;
use ebpf::emit::Target;
use ebpf::emit::redirect::{Redirect, TARGETS_MAX, headroom};
use ebpf::emit::tap::offset;
use endpoint::source::kernel::place::Place;
use endpoint::source::rx::take::{self, Making, PLACE, PLACES_MAX, REST, WAY};
use filter::Amount;
use pipeline::graph::{Graph, NodeId};
use std::collections::HashMap;
use std::os::fd::{AsFd as _, AsRawFd as _};
use std::sync::{Arc, Mutex, OnceLock, PoisonError};
use sys::bpf::{License, LoadError, Map, ProgramKind};
use sys::memory::ReadMapping;
use sys::steps::{Resource, Steps};

/// A program that takes, and what it counts.
#[derive(Debug)]
pub(super) struct Standing {
    /// Dropped before its map.
    desk: ReadMapping,
    _desk: Map,
    take: Redirect,
    joint: Joint,
    words: Vec<ebpf::FilterSpan>,
    code: ebpf::Program,
    maps: Vec<Option<Map>>,
    ended: OnceLock<Ended>,
}

/// The program that was made last.
#[derive(Default)]
struct Made {
    refusal: Option<Refusal>,
    last: Option<(ebpf::Program, Vec<Option<Map>>)>,
}

/// Inputs of a program.
struct Parts<'p> {
    graph: &'p Graph,
    tree: &'p Tree,
    joint: &'p Joint,
    words: &'p [ebpf::FilterSpan],
    source: NodeId,
    target: Target,
    take: Redirect,
    desk: &'p Map,
    steps: &'p Steps,
    /// The steps that send frames out, and the numbers of the interfaces.
    leads: &'p [(usize, u32)],
}

/// Loads and attaches a program that takes, and opens what it hands on.
pub(super) fn build(
    wanted: &Wanted<'_>,
    tree: &Tree,
    (source, place): (NodeId, &Place),
) -> Result<Opened, BuildError> {
    let Wanted { graph, opening, refuses, hardened, .. } = *wanted;
    let refused = |why: String| BuildError::Refused(Refusal { node: source, why });
    if let Some(refusal) = refuses.loading(tree, graph, source) {
        return Err(BuildError::Refused(refusal));
    }
    let step = |what| opening.steps.take(Resource::Memory, what);
    let joint = Joint::of(&[Member { tree, graph, request: 0 }]);
    let word = |step| joint.word(&[Member { tree, graph, request: 0 }], step);
    let words: Vec<ebpf::FilterSpan> = (0..joint.steps.len()).map(word).collect();
    let cpus = sys::machine::possible_processors().map_err(BuildError::Machine)?;
    let cpus = u32::try_from(cpus).unwrap_or(u32::MAX);
    let stride = u32::from(offset::TALLIES.cast_unsigned())
        + 16 * u32::try_from(joint.tallies()).unwrap_or(u32::MAX >> 8);
    let stride = stride.next_multiple_of(offset::END.cast_unsigned().into());
    let places = tree.sinks();
    let hands = u16::try_from(places).unwrap_or(u16::MAX);
    let take = Redirect { cpus, stride, tag_kfunc: None, deliveries: hands };
    step("a desk").map_err(|error| refused(error.to_string()))?;
    let desk = Map::array("desk", cpus.saturating_mul(stride), 1, true);
    let desk = desk.map_err(|error| refused(error.to_string()))?;
    let leads = leads(graph, tree, place)?;
    let place_of = if hardened { Target::hardened(Hook::Xdp) } else { Target::from(Hook::Xdp) };
    let target = place_of.taking();
    let parts = Parts {
        graph,
        tree,
        joint: &joint,
        words: &words,
        source,
        target,
        take,
        desk: &desk,
        steps: opening.steps,
        leads: &leads,
    };
    let Assembled { heads, .. } = parts.assembled(None).map_err(BuildError::Refused)?;
    let made = Mutex::new(Made::default());
    let make = |making: &Making<'_>| {
        let mut made = made.lock().unwrap_or_else(PoisonError::into_inner);
        match parts.loaded(making) {
            Ok((code, Loaded { program, maps })) => {
                *made = Made { refusal: None, last: Some((code, maps)) };
                Ok(program)
            }
            Err(refusal) => {
                let error = sys::Error::new("bpf", refusal.why.clone(), 0);
                made.refusal = Some(refusal);
                Err(LoadError { error, log: String::new(), missing: Vec::new() })
            }
        }
    };
    let opened = take::by_program(opening, (heads, places), &make);
    let made = made.into_inner().unwrap_or_else(PoisonError::into_inner);
    if let Some(refusal) = made.refusal {
        return Err(BuildError::Refused(refusal));
    }
    let gives = opened.map_err(|failure| BuildError::Outside { node: source, failure })?;
    let Some((code, maps)) = made.last else {
        return Err(BuildError::Unexpected("a program was attached and not made".to_owned()));
    };
    step("a view of a desk").map_err(BuildError::Machine)?;
    let memory = desk.map_read().map_err(BuildError::Machine)?;
    let ended = OnceLock::new();
    let standing = Standing { desk: memory, _desk: desk, take, joint, words, code, maps, ended };
    Ok((Arc::new(standing), gives))
}

impl Parts<'_> {
    fn assembled(&self, tags: Option<i32>) -> Result<Assembled, Refusal> {
        let member = Member { tree: self.tree, graph: self.graph, request: 0 };
        let take = Redirect { tag_kfunc: tags, ..self.take };
        let made = assemble(self.joint, &[member], (self.target, Layout::Takes(&take, self.leads)));
        made.map_err(|Misfit { at, why }| Refusal {
            node: at.map_or(self.source, |(_, node)| node),
            why,
        })
    }

    fn loaded(&self, making: &Making<'_>) -> Result<(ebpf::Program, Loaded), Refusal> {
        let tags = making.asks.map(|asks| asks.function);
        let code = self.assembled(tags)?.program;
        let how = How {
            kind: ProgramKind::Xdp,
            license: if tags.is_some() { License::MitOrGpl } else { License::ApacheOrMit },
            fragments: making.fragments,
            device: making.asks.map(|asks| asks.interface),
        };
        // Where a tap has its bell there is nothing.
        let given = [self.desk.as_fd(), self.desk.as_fd(), making.sockets.as_fd()];
        let loaded = load(&code, how, &given.map(|map| map.as_raw_fd()), self.steps, |_| None);
        let loaded = loaded.map_err(|failed: Failed| {
            let at = self.words.iter().position(|word| failed.is_at(word));
            let node = at.and_then(|step| self.tree.steps.get(step)?.nodes.first().copied());
            Refusal { node: node.unwrap_or(self.source), why: failed.why }
        })?;
        Ok((code, loaded))
    }
}

impl endpoint::source::kernel::Standing for Standing {
    /// The program goes with its source, which has the link.
    fn leave(&self) {}
}

impl Held for Standing {
    /// Returns its final record. Nothing runs there any more.
    fn ended(&self) -> &Ended {
        self.ended.get_or_init(|| {
            let mut counted = self.joint.counted(0, |number| self.tally(number));
            let own = |word: &ebpf::FilterSpan| {
                let step = self.words.iter().position(|known| known == word)?;
                self.joint.own_step(0, step)
            };
            let mut states = HashMap::new();
            for (number, (spec, map)) in self.code.maps.iter().zip(&self.maps).enumerate() {
                let Some(bytes) = map.as_ref().and_then(|map| map.get(0).ok()) else { continue };
                let word = spec.state_of.and_then(|word| self.code.filters.get(word));
                match word {
                    Some(word) => states.extend(own(word).map(|step| (step, bytes))),
                    None if number == 0 && !self.code.counters.is_empty() => {
                        counted.add_reasons(&self.code, &bytes, own);
                    }
                    None => {}
                }
            }
            // Its runs are not measured, and it rings no bell.
            Ended { counted, states, ..Ended::default() }
        })
    }
}

impl Standing {
    /// A tally over all processors.
    fn tally(&self, number: u16) -> Amount {
        let at = self.take.scratch().tally(number);
        Amount { blocks: self.sum(at), bytes: self.sum(at + 8) }
    }

    fn sum(&self, at: u32) -> u64 {
        let word = |cpu: u32| self.desk.word((cpu * self.take.stride + at) as usize).unwrap_or(0);
        (0..self.take.cpus).map(word).sum()
    }
}

// The two sides of what stands in front of a frame agree.
const _: () = {
    assert!(headroom::DELIVERY as usize == PLACE && headroom::EXIT as usize == WAY);
    assert!(headroom::REST as usize == REST && TARGETS_MAX as usize == PLACES_MAX);
    assert!(headroom::rest(3) as usize == take::rest(3));
};
