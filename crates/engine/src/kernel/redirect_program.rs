//! Programs that redirect frames from the host: at XDP, in front of the AF_XDP sockets that `rx IF
//! take` opens. [SL §5.5, §7.1; CONTRACT 2, 3, 18]
//!
//! Input: the kernel part of one request. Output: the program at its interface, and the source of
//! the frames that it redirects. At most two programs are tried. The first asks the driver for VLAN
//! tags, if the driver can provide them; the second does not. Twins at XDP read tags in the frame,
//! so they are unsure about a frame from which the driver has removed a tag. A redirecting program
//! serves a single request: an interface has one XDP hook, and a redirected frame reaches no other
//! program.

use super::assemble::{AssembledProgram, AssemblyError, FrameAction, assemble};
use super::final_counters::FinalCounters;
use super::fused_tree::{FusedRequest, FusedTree};
use super::host::{AttachmentHandle, KernelRefusal};
use super::load::{LoadFailure, LoadOptions, LoadedProgram, load};
use super::tree::RequestTree;
use super::{AttachedSource, KernelInputs, egress_steps};
use crate::error::BuildError;
use ebpf::Hook;
use ebpf::emit::Target;
use ebpf::emit::redirect::{REDIRECT_DELIVERIES_MAX, Redirect, headroom};
use ebpf::emit::tap::offset;
use endpoint::source::kernel::attach_point::AttachPoint;
use endpoint::source::rx::take::{
    self, EXIT_NUMBER_SIZE, LoadArguments, METADATA_SLOTS_MAX, METADATA_TAIL_SIZE, SLOT_SIZE,
};
use filter::Amount;
use pipeline::graph::{Graph, NodeId};
use std::collections::HashMap;
use std::os::fd::{AsFd as _, AsRawFd as _};
use std::sync::{Arc, Mutex, OnceLock, PoisonError};
use sys::bpf::{License, LoadError, Map, ProgramKind};
use sys::memory::ReadMapping;
use sys::rollback::{RollbackLog, StepResource};

/// An attached redirecting program and its counters.
#[derive(Debug)]
pub(super) struct RedirectProgram {
    /// The memory mapping of the program's counters; dropped before the map that contains them.
    counters: ReadMapping,
    _counters: Map,
    take: Redirect,
    fused: FusedTree,
    words: Vec<ebpf::FilterSpan>,
    code: ebpf::Program,
    maps: Vec<Option<Map>>,
    ended: OnceLock<FinalCounters>,
}

/// The outcome of the attempts to load a redirecting program. It contains the program and maps that
/// were loaded last, and the refusal of the last attempt, if it failed.
#[derive(Default)]
struct LastLoadAttempt {
    refusal: Option<KernelRefusal>,
    last: Option<(ebpf::Program, Vec<Option<Map>>)>,
}

/// The inputs from which a redirecting program is assembled.
struct ProgramInputs<'p> {
    graph: &'p Graph,
    tree: &'p RequestTree,
    fused: &'p FusedTree,
    words: &'p [ebpf::FilterSpan],
    source: NodeId,
    target: Target,
    take: Redirect,
    counters: &'p Map,
    steps: &'p RollbackLog,
    /// The steps that send frames, each with the index of its egress interface.
    egress_steps: &'p [(usize, u32)],
}

/// Loads and attaches a redirecting program, and opens the source of its frames.
pub(super) fn build_redirect_source(
    wanted: &KernelInputs<'_>,
    tree: &RequestTree,
    (source, place): (NodeId, &AttachPoint),
) -> Result<AttachedSource, BuildError> {
    let KernelInputs { graph, opening, refuses, hardened, .. } = *wanted;
    let refused = |why: String| BuildError::Refused(KernelRefusal { node: source, why });
    if let Some(refusal) = refuses.loading_refusal(tree, graph, source) {
        return Err(BuildError::Refused(refusal));
    }
    let step = |what| opening.rollback_log.announce_creation(StepResource::Memory, what);
    let fused = FusedTree::fuse(&[FusedRequest { tree, graph, request: 0 }]);
    let word = |step| fused.label(&[FusedRequest { tree, graph, request: 0 }], step);
    let words: Vec<ebpf::FilterSpan> = (0..fused.steps.len()).map(word).collect();
    let cpus = sys::machine::count_possible_processors().map_err(BuildError::Machine)?;
    let cpus = u32::try_from(cpus).unwrap_or(u32::MAX);
    let stride = u32::from(offset::TALLIES.cast_unsigned())
        + 16 * u32::try_from(fused.counter_count()).unwrap_or(u32::MAX >> 8);
    let stride = stride.next_multiple_of(offset::PAGE_SIZE.cast_unsigned().into());
    let places = tree.sink_count();
    let deliveries = u16::try_from(places).unwrap_or(u16::MAX);
    let take = Redirect { cpus, stride, tag_kfunc: None, deliveries };
    step("a desk").map_err(|error| refused(error.to_string()))?;
    let counters = Map::array("desk", cpus.saturating_mul(stride), 1, true);
    let counters = counters.map_err(|error| refused(error.to_string()))?;
    let leads = egress_steps(graph, tree, place)?;
    let hook = if hardened { Target::without_perfmon(Hook::Xdp) } else { Target::from(Hook::Xdp) };
    let target = hook.redirecting();
    let parts = ProgramInputs {
        graph,
        tree,
        fused: &fused,
        words: &words,
        source,
        target,
        take,
        counters: &counters,
        steps: opening.rollback_log,
        egress_steps: &leads,
    };
    let AssembledProgram { first_headers, .. } =
        parts.assemble(None).map_err(BuildError::Refused)?;
    let made = Mutex::new(LastLoadAttempt::default());
    let make = |making: &LoadArguments<'_>| {
        let mut made = made.lock().unwrap_or_else(PoisonError::into_inner);
        match parts.load(making) {
            Ok((code, LoadedProgram { program, maps })) => {
                *made = LastLoadAttempt { refusal: None, last: Some((code, maps)) };
                Ok(program)
            }
            Err(refusal) => {
                let error = sys::Error::new("bpf", refusal.why.clone(), 0);
                made.refusal = Some(refusal);
                Err(LoadError { error, log: String::new(), missing: Vec::new() })
            }
        }
    };
    let opened = take::open_with_program(opening, (first_headers, places), &make);
    let made = made.into_inner().unwrap_or_else(PoisonError::into_inner);
    if let Some(refusal) = made.refusal {
        return Err(BuildError::Refused(refusal));
    }
    let gives = opened.map_err(|failure| BuildError::Outside { node: source, failure })?;
    let Some((code, maps)) = made.last else {
        return Err(BuildError::Unexpected("a program was attached and not made".to_owned()));
    };
    step("a view of a desk").map_err(BuildError::Machine)?;
    let memory = counters.map_read().map_err(BuildError::Machine)?;
    let ended = OnceLock::new();
    let handle = RedirectProgram {
        counters: memory,
        _counters: counters,
        take,
        fused,
        words,
        code,
        maps,
        ended,
    };
    Ok((Arc::new(handle), gives))
}

impl ProgramInputs<'_> {
    fn assemble(&self, tags: Option<i32>) -> Result<AssembledProgram, KernelRefusal> {
        let member = FusedRequest { tree: self.tree, graph: self.graph, request: 0 };
        let take = Redirect { tag_kfunc: tags, ..self.take };
        let made = assemble(
            self.fused,
            &[member],
            (self.target, FrameAction::Redirect(&take, self.egress_steps)),
        );
        made.map_err(|AssemblyError { at, why }| KernelRefusal {
            node: at.map_or(self.source, |(_, node)| node),
            why,
        })
    }

    fn load(
        &self,
        making: &LoadArguments<'_>,
    ) -> Result<(ebpf::Program, LoadedProgram), KernelRefusal> {
        let tags = making.tag_lookup.map(|asks| asks.function);
        let code = self.assemble(tags)?.program;
        let how = LoadOptions {
            kind: ProgramKind::Xdp,
            license: if tags.is_some() { License::MitOrGpl } else { License::ApacheOrMit },
            fragments: making.accepts_fragments,
            device: making.tag_lookup.map(|asks| asks.interface),
        };
        // The program has no doorbell, so the map of counters takes its slot.
        let given = [self.counters.as_fd(), self.counters.as_fd(), making.sockets.as_fd()];
        let loaded = load(&code, how, &given.map(|map| map.as_raw_fd()), self.steps, |_| None);
        let loaded = loaded.map_err(|failed: LoadFailure| {
            let at = self.words.iter().position(|word| failed.is_rejected_in(word));
            let node = at.and_then(|step| self.tree.steps.get(step)?.nodes.first().copied());
            KernelRefusal { node: node.unwrap_or(self.source), why: failed.why }
        })?;
        Ok((code, loaded))
    }
}

impl endpoint::source::kernel::Attachment for RedirectProgram {
    /// Does nothing: the source owns the link, and detaches the program when dropped.
    fn detach(&self) {}
}

impl AttachmentHandle for RedirectProgram {
    /// Returns the final counters and state. The program must have been detached.
    fn final_counters(&self) -> &FinalCounters {
        self.ended.get_or_init(|| self.read_counters())
    }

    fn current_counters(&self) -> Option<FinalCounters> {
        Some(self.ended.get().cloned().unwrap_or_else(|| self.read_counters()))
    }
}

impl RedirectProgram {
    /// Reads the counters and the state from the program's memory.
    fn read_counters(&self) -> FinalCounters {
        let mut counted = self.fused.request_counters(0, |number| self.read_counter(number));
        let own = |word: &ebpf::FilterSpan| {
            let step = self.words.iter().position(|known| known == word)?;
            self.fused.request_step_number(0, step)
        };
        let mut states = HashMap::new();
        for (number, (spec, map)) in self.code.maps.iter().zip(&self.maps).enumerate() {
            let Some(bytes) = map.as_ref().and_then(|map| map.get(0).ok()) else { continue };
            let word = spec.state_of.and_then(|word| self.code.filters.get(word));
            match word {
                Some(word) => states.extend(own(word).map(|step| (step, bytes))),
                None if number == 0 && !self.code.counters.is_empty() => {
                    counted.add_unanswered_counts(&self.code, &bytes, own);
                }
                None => {}
            }
        }
        // Run time is not measured, and there is no doorbell.
        FinalCounters { counted, states, ..FinalCounters::default() }
    }

    /// Returns the value of the counter with this number, summed over all processors.
    fn read_counter(&self, number: u16) -> Amount {
        let at = self.take.scratch_layout().tally_offset(number);
        Amount {
            blocks: self.sum_word_over_processors(at),
            bytes: self.sum_word_over_processors(at + 8),
        }
    }

    fn sum_word_over_processors(&self, at: u32) -> u64 {
        let word =
            |cpu: u32| self.counters.word((cpu * self.take.stride + at) as usize).unwrap_or(0);
        (0..self.take.cpus).map(word).sum()
    }
}

// The program and its reader use the same layout of the headroom.
const _: () = {
    assert!(
        headroom::DELIVERY_SIZE as usize == SLOT_SIZE
            && headroom::EXIT_NUMBER_BYTES as usize == EXIT_NUMBER_SIZE
    );
    assert!(
        headroom::FIXED_FIELDS_SIZE as usize == METADATA_TAIL_SIZE
            && REDIRECT_DELIVERIES_MAX as usize == METADATA_SLOTS_MAX
    );
    assert!(headroom::fixed_fields_offset(3) as usize == take::metadata_tail_offset(3));
};
