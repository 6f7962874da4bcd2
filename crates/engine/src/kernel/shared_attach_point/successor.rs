//! Replacement of a request by another request of the same path, in one step: exactly one of the
//! two requests processes each frame. [Th §5.4]
//!
//! Input: a running request, and its replacement. The replacement gets its own resources. A program
//! that contains the replacement instead of the old request is verified and loaded while the old
//! program runs. Then the link switches to the new program, between two frames on each processor.
//! Once the old program has finished everywhere, its output is complete, and the counters of the
//! old request are final.

use super::super::fused_tree::{FusedRequest, is_same_filter};
use super::super::host::{
    KernelAttachment, KernelRefusal, PreparedSuccessor, ProgramSwitch, SwitchError,
};
use super::RequestHandle;
use super::program_version::{NextProgram, ProgramVersion, StateMaps, VersionError};
use super::request::{AttachedRequest, NewRequest};
use std::sync::Arc;
use sys::rollback::{NO_ROLLBACK_LOG, RollbackLog, StepResource};

/// A prepared replacement of a request by another request of the same path.
#[derive(Debug)]
struct PreparedSwitch {
    old: Arc<RequestHandle>,
    /// Numbers of the steps of the old request whose state continues in the new request.
    stays: Vec<usize>,
    ready: Option<LoadedReplacement>,
}

/// The loaded program of a prepared replacement.
#[derive(Debug)]
struct LoadedReplacement {
    line: AttachedRequest,
    version: ProgramVersion,
    states: StateMaps,
    steps: RollbackLog,
    /// Number of times that the point's program had been replaced when this replacement was
    /// prepared.
    replaced: u64,
}

/// Prepares a replacement of `old`. `stays` pairs the steps of the old and the new request that are
/// the same filter and keep their state; a pair of different filters is ignored.
pub(super) fn prepare_request_successor(
    old: Arc<RequestHandle>,
    mut new: NewRequest,
    stays: &[(usize, usize)],
) -> Result<PreparedSuccessor, KernelRefusal> {
    let source = new.source;
    let refused = |why: String| KernelRefusal { node: source, why };
    let point = Arc::clone(&old.point);
    let steps = new.steps.clone();
    let step = |makes, what| {
        steps.announce_creation(makes, what).map_err(|error| refused(error.to_string()))
    };
    let mut state = point.lock_state();
    step(StepResource::Memory, "what waits for programs")?;
    state.create_grace_period().map_err(refused)?;
    let number = point.next_request_number();
    let mut kept = Vec::new();
    if let Some(line) = state.requests.iter().find(|line| line.number == old.number) {
        let (before, member) = (
            line.as_fused_request(),
            FusedRequest { tree: &new.tree, graph: &new.graph, request: number },
        );
        // Pairs from a peer are untrusted, so only equal filters keep their state.
        let same =
            |(from, own): &&(usize, usize)| is_same_filter((&before, *from), (&member, *own));
        for (step, map) in &line.states {
            if let Some((_, own)) = stays.iter().filter(same).find(|(from, _)| from == step) {
                new.states.push((*own, Arc::clone(map)));
                kept.push(*step);
            }
        }
    }
    let made = AttachedRequest::create(number, &state.requests, new);
    let (line, doorbell) = made.map_err(refused)?;
    let rings = Arc::clone(&line.pointers);
    let blame = |failure: VersionError| KernelRefusal {
        node: failure.node_at_fault(number).unwrap_or(source),
        why: failure.why,
    };
    let lines = requests_with_replacement(&state.requests, old.number, &line);
    let (version, states) = ProgramVersion::load(&point.site, &lines, &steps).map_err(blame)?;
    step(StepResource::Program, "a place at an interface")?;
    let replaced = state.replaced;
    drop(state);
    let handle = RequestHandle::new(Arc::clone(&point), number);
    let lent = KernelAttachment { handle: Arc::new(handle), rings, doorbell };
    let ready = Some(LoadedReplacement { line, version, states, steps, replaced });
    let switch = Box::new(PreparedSwitch { old, stays: kept, ready });
    Ok(PreparedSuccessor { attachment: lent, switch })
}

/// Returns the requests of the program that will run after a replacement: those of the point, with
/// `new` instead of the request numbered `old`.
fn requests_with_replacement<'l>(
    lines: &'l [AttachedRequest],
    old: u32,
    new: &'l AttachedRequest,
) -> Vec<&'l AttachedRequest> {
    let stay = lines.iter().filter(|line| !line.leaving && line.number != old);
    stay.chain([new]).collect()
}

impl ProgramSwitch for PreparedSwitch {
    fn switch(&mut self) -> Result<(), SwitchError> {
        self.switch_now().map_err(SwitchError::Refused)
    }
}

impl PreparedSwitch {
    fn switch_now(&mut self) -> Result<(), String> {
        let point = Arc::clone(&self.old.point);
        let Some(ready) = self.ready.take() else {
            return Err("it has already been installed".to_owned());
        };
        let LoadedReplacement { mut line, mut version, mut states, steps, replaced } = ready;
        let mut state = point.lock_state();
        if state.replaced != replaced {
            // Other requests have been attached or removed since the preparation.
            let lines = requests_with_replacement(&state.requests, self.old.number, &line);
            let made = ProgramVersion::load(&point.site, &lines, &NO_ROLLBACK_LOG);
            (version, states) = made.map_err(|failure| failure.why)?;
        }
        // Readers of the other requests may have been added or removed since the preparation.
        version.set_taps(state.requests.iter().chain([&line]))?;
        initialize_states(&line, &states)?;
        let next = NextProgram { version: &version, line: Some(&line), states: &states };
        point.store_descriptors(&mut state, Some(next));
        steps.announce_step("a line in the place of another one");
        let put = point.install(&mut state, version, &steps);
        steps.announce_step("the line in whose place it is");
        if put.is_err() {
            point.store_descriptors(&mut state, None);
        }
        put?;
        line.busy_before = point.busy_packets();
        state.requests.push(line);
        state.add_state_maps(states);
        // From this point on, the output of the old program is complete.
        state.collect_retired_counters();
        let number = self.old.number;
        if let Some(place) = state.requests.iter().position(|line| line.number == number) {
            let old = state.requests.remove(place);
            let mut ended = point.final_counters(&old);
            // The replacement reports the states that continue in it.
            ended.states.retain(|step, _| !self.stays.contains(step));
            state.remember_final_counters(old.about, &ended);
            let _ = self.old.ended.set(ended);
        }
        point.store_descriptors(&mut state, None);
        steps.announce_step("a line in the place of another one is kept");
        Ok(())
    }
}

/// Initializes the state of twins of filters that move into the kernel with a request. The initial
/// state depends on the arguments of the filter and the time on the kernel's clock.
fn initialize_states(line: &AttachedRequest, states: &StateMaps) -> Result<(), String> {
    let now = sys::clock::monotonic_ns();
    for (_, step, map) in states.iter().filter(|(number, ..)| *number == line.number) {
        let node = line.tree.steps.get(*step).and_then(|step| step.nodes.first());
        let Some(used) = node.and_then(|id| line.graph.node(*id).filter()) else { continue };
        if let Some(start) = used.description.state.twin_start_state {
            map.set(0, &start(&used.arguments, now)).map_err(|error| error.to_string())?;
        }
    }
    Ok(())
}
