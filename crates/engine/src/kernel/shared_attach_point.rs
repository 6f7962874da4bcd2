//! An attach point, and the program that runs there for all its requests. [SL §7.1, prefix sharing,
//! allocation; CONTRACT 21; RELIABILITY, rollback]
//!
//! Requests ([`request`]) are added and removed while frames pass. A program ([`program_version`])
//! for the new set of requests is assembled, verified and loaded while the old one runs, and the
//! link switches to it between two frames. Both programs use the same resources of a request
//! (pointers, doorbell, filter state) and of an owner (frames), so readers do not notice the
//! replacement. Nothing changes before the replacement; a failed step releases the new resources.
//!
//! Counters belong to a program. After the last run of a program ([`GracePeriod`]), its counters
//! are added to the totals of each of its requests.
//!
//! Each owner has a ring of frames, which all requests of the owner with the same ring layout
//! share; each request has its own pointers. Frames of different owners never share memory: a new
//! map is zeroed, and no map passes from one owner to another.
//!
//! The kernel limits the number of maps of a program and the effort of its verification. A request
//! that does not fit into the program is attached at another point of the same interface, which
//! precedes the first point in the chain and shares nothing with it.

mod descriptor_keeper;
mod handle;
mod persistence;
mod point_note;
mod program_version;
mod request;
mod site;
mod sockets;
mod status;
mod successor;
mod tap_switches;

pub use self::descriptor_keeper::{DescriptorKeeper, PERSISTED_NAME_PREFIX};
pub(crate) use self::handle::RequestHandle;
pub use self::persistence::{AdoptedRequest, AdoptedStatus, PersistedRequest};
pub(crate) use self::request::NewRequest;
pub use self::request::SharingDomain;
pub use self::status::{FrameRingStatus, PointStatus, RequestStatus};

use self::descriptor_keeper::StoredDescriptorNames;
use self::program_version::{NextProgram, ProgramVersion};
use self::request::AttachedRequest;
use self::site::AttachSite;
use self::sockets::UserSockets;
use super::final_counters::FinalCounters;
use super::fused_tree::KernelCounters;
use super::host::{KernelAttachment, KernelRefusal, attach_build_error};
use super::taps::OpenTaps;
use crate::error::BuildError;
use endpoint::source::kernel::attach_point::{AttachError, AttachPoint};
use filter::AttachTarget;
use std::collections::VecDeque;
use std::sync::atomic::{AtomicU32, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, Weak};
use sys::bpf::{GracePeriod, Link, Map, Program};
use sys::rollback::{NO_ROLLBACK_LOG, RollbackLog, StepResource};

/// The attach points that this process owns. Clones share the same points.
#[derive(Clone, Debug, Default)]
pub struct AttachPoints {
    known: Arc<Mutex<Vec<Weak<SharedAttachPoint>>>>,
    /// The number that the next request at any of these points will get. A request that could not
    /// be attached also uses up a number.
    numbers: Arc<AtomicU32>,
    /// The log of the steps that allocate resources for requests of other processes.
    pub(crate) steps: RollbackLog,
    /// The store that keeps descriptors while this process restarts, or `None` if nothing outlives
    /// this process.
    pub(crate) keeper: Option<Arc<dyn DescriptorKeeper>>,
}

/// An attach point, with the requests that its program runs.
#[derive(Debug)]
pub(crate) struct SharedAttachPoint {
    site: AttachSite,
    /// The number that the next request will get, shared by all attach points ([`AttachPoints`]).
    numbers: Arc<AtomicU32>,
    keeper: Option<Arc<dyn DescriptorKeeper>>,
    state: Mutex<PointState>,
}

/// A failure to attach a request.
#[derive(Debug)]
pub(crate) enum AttachFailure {
    /// The request and the existing requests of the attach point do not fit into one program.
    Full,
    /// The request cannot run at this attach point.
    Refused(KernelRefusal),
}

#[derive(Debug, Default)]
struct PointState {
    /// True if a request did not fit into the program, and no request has been removed since that
    /// failure.
    full: bool,
    /// Number of times that the point's program was replaced by another.
    replaced: u64,
    /// Number of frames processed by replaced programs whose counters have been collected.
    frames: u64,
    requests: Vec<AttachedRequest>,
    running: Option<RunningProgram>,
    /// Replaced programs whose counters are not yet added to their requests.
    retired: Vec<ProgramVersion>,
    grace: Option<GracePeriod>,
    /// True if a replaced program may still process frames for a moment after its link has switched
    /// to the new program.
    may_linger: bool,
    /// Notes and final counters of removed requests, newest last. They are persisted, so that the
    /// next process can deliver them if this one exits first.
    final_counters: VecDeque<(String, FinalCounters)>,
    /// Names of the descriptors that the keeper holds.
    stored: StoredDescriptorNames,
}

/// Maximum number of final counters that are retained. The oldest are discarded first, because
/// their owners have had the most time to receive them.
const FINAL_COUNTERS_MAX: usize = 8;

#[derive(Debug)]
struct RunningProgram {
    links: Vec<Link>,
    version: ProgramVersion,
}

impl AttachPoints {
    /// Creates a set of attach points. Steps of requests from other processes are logged to
    /// `steps`.
    #[must_use]
    pub fn with_log(steps: RollbackLog) -> Self {
        Self { steps, ..Self::default() }
    }

    /// Creates a set of attach points like [`Self::with_log`], with a keeper that holds links,
    /// programs and memory across restarts of this process.
    #[must_use]
    pub fn with_keeper(keeper: Arc<dyn DescriptorKeeper>, steps: RollbackLog) -> Self {
        Self { keeper: Some(keeper), ..Self::with_log(steps) }
    }

    /// Attaches a request to the first program at its interface that has room for it, or to a new
    /// program. `hardened` is true if the program must load without CAP_PERFMON.
    pub(crate) fn attach(
        &self,
        (attach, hardened): (&AttachTarget, bool),
        new: &NewRequest,
    ) -> Result<KernelAttachment, BuildError> {
        for nth in 0.. {
            let point = self.find_or_create_point(attach, hardened, new.owner, nth);
            let point = point.map_err(|why| attach_build_error(why, new.source))?;
            match point.add_request(new.clone()) {
                Ok(lent) => return Ok(lent),
                Err(AttachFailure::Full) => {}
                Err(AttachFailure::Refused(refusal)) => return Err(BuildError::Refused(refusal)),
            }
        }
        Err(BuildError::Unexpected("there is no end of points".to_owned()))
    }

    /// Returns the `nth` point for the attachment `attach`. If there are fewer points, creates a
    /// point without requests. Opens the user's sockets if the attachment covers sockets.
    /// `hardened` is true if programs must load without CAP_PERFMON.
    fn find_or_create_point(
        &self,
        attach: &AttachTarget,
        hardened: bool,
        owner: u32,
        nth: usize,
    ) -> Result<Arc<SharedAttachPoint>, AttachError> {
        let place = AttachPoint::find(attach)?;
        let sockets =
            if attach.own_sockets { Some(UserSockets::open(&place, owner, None)?) } else { None };
        let mut known = self.known.lock().unwrap_or_else(PoisonError::into_inner);
        known.retain(|point| point.strong_count() > 0);
        let here = |point: &Arc<SharedAttachPoint>| {
            let same = point.site.sockets.as_ref().map(UserSockets::user_and_namespace)
                == sockets.as_ref().map(UserSockets::user_and_namespace);
            same && point.site.attach == *attach && point.site.place.is_same_interface(&place)
        };
        if let Some(point) = known.iter().filter_map(Weak::upgrade).filter(here).nth(nth) {
            return Ok(point);
        }
        drop(known);
        Ok(self.create_point((attach, hardened), place, sockets))
    }

    /// Creates an attach point without requests. `hardened` is true if its programs must load
    /// without CAP_PERFMON. `sockets` contains the user's sockets whose packets the programs
    /// process. It is `None` for an attach point at an interface.
    fn create_point(
        &self,
        (attach, hardened): (&AttachTarget, bool),
        place: AttachPoint,
        sockets: Option<UserSockets>,
    ) -> Arc<SharedAttachPoint> {
        let state = PointState { may_linger: sockets.is_some(), ..PointState::default() };
        let site = AttachSite { attach: attach.clone(), place, hardened, sockets };
        let (numbers, keeper) = (Arc::clone(&self.numbers), self.keeper.clone());
        let point = Arc::new(SharedAttachPoint { site, numbers, keeper, state: Mutex::new(state) });
        let mut known = self.known.lock().unwrap_or_else(PoisonError::into_inner);
        known.push(Arc::downgrade(&point));
        point
    }
}

impl SharedAttachPoint {
    /// Attaches a request. If this fails, the existing requests continue unchanged. Fails with
    /// [`AttachFailure::Full`] if the request and the existing ones do not fit into one program.
    /// The point then accepts no further request until one is removed.
    fn add_request(self: &Arc<Self>, new: NewRequest) -> Result<KernelAttachment, AttachFailure> {
        let source = new.source;
        let refused = |why: String| AttachFailure::Refused(KernelRefusal { node: source, why });
        let steps = new.steps.clone();
        let step = |makes, what| {
            steps.announce_creation(makes, what).map_err(|error| refused(error.to_string()))
        };
        let mut state = self.lock_state();
        if state.full {
            return Err(AttachFailure::Full);
        }
        let waits = !state.requests.is_empty() || self.site.sockets.is_some();
        if waits && state.grace.is_none() {
            step(StepResource::Memory, "what waits for programs")?;
            state.create_grace_period().map_err(refused)?;
        }
        let number = self.next_request_number();
        let made = AttachedRequest::create(number, &state.requests, new);
        let (mut line, doorbell) = made.map_err(refused)?;
        line.busy_before = self.busy_packets();
        let rings = Arc::clone(&line.pointers);
        let mut lines: Vec<&AttachedRequest> =
            state.requests.iter().filter(|line| !line.leaving).collect();
        lines.push(&line);
        let among = lines.len() > 1;
        let made = ProgramVersion::load(&self.site, &lines, &steps);
        let (version, states) = match made {
            Ok(made) => made,
            Err(failure) if failure.full && among => {
                state.full = true;
                return Err(AttachFailure::Full);
            }
            Err(failure) => {
                let node = failure.node_at_fault(number).unwrap_or(source);
                return Err(AttachFailure::Refused(KernelRefusal { node, why: failure.why }));
            }
        };
        step(StepResource::Program, "a place at an interface")?;
        let next = NextProgram { version: &version, line: Some(&line), states: &states };
        self.store_descriptors(&mut state, Some(next));
        let put = self.install(&mut state, version, &steps);
        if put.is_err() {
            self.store_descriptors(&mut state, None);
        }
        put.map_err(refused)?;
        steps.announce_step("a line runs");
        state.requests.push(line);
        state.add_state_maps(states);
        self.store_descriptors(&mut state, None);
        steps.announce_step("a line is kept");
        let handle = RequestHandle::new(Arc::clone(self), number);
        Ok(KernelAttachment { handle: Arc::new(handle), rings, doorbell })
    }

    /// Makes `version` the program of this point: replaces the running program, or attaches the
    /// first one.
    fn install(
        &self,
        state: &mut PointState,
        version: ProgramVersion,
        steps: &RollbackLog,
    ) -> Result<(), String> {
        match &mut state.running {
            Some(running) => {
                let (new, old) = (&version.program, &running.version.program);
                update_links(&running.links, (new, old), steps)
                    .map_err(|error| error.to_string())?;
                let old = std::mem::replace(&mut running.version, version);
                state.retired.push(old);
                state.replaced += 1;
            }
            None => {
                let links =
                    self.site.place.attach(&version.program).map_err(|closed| match closed {
                        AttachError::Unobservable(failure) => failure.to_string(),
                        AttachError::Unsupported(why) => why,
                    })?;
                state.running = Some(RunningProgram { links, version });
            }
        }
        Ok(())
    }

    /// Removes a request, and returns its final counters. A smaller program normally replaces the
    /// running program. If this fails, the request stays in the running program until the next
    /// change.
    fn remove_request(&self, number: u32) -> FinalCounters {
        let mut state = self.lock_state();
        match state.requests.iter_mut().find(|line| line.number == number) {
            Some(line) => line.leaving = true,
            // The request was never attached.
            None => return FinalCounters::default(),
        }
        let stay: Vec<&AttachedRequest> =
            state.requests.iter().filter(|line| !line.leaving).collect();
        let gone = if stay.is_empty() {
            true
        } else {
            let made = ProgramVersion::load(&self.site, &stay, &NO_ROLLBACK_LOG);
            let put = made.map_err(|failure| failure.why).and_then(|(version, states)| {
                let next = NextProgram { version: &version, line: None, states: &states };
                self.store_descriptors(&mut state, Some(next));
                self.install(&mut state, version, &NO_ROLLBACK_LOG)
            });
            // When an interface is removed, its programs are removed too.
            put.is_err() && self.site.place.is_gone()
        };
        if gone && let Some(running) = state.running.take() {
            drop(running.links);
            state.retired.push(running.version);
        }
        state.collect_retired_counters();
        let mut ended = FinalCounters::default();
        let PointState { requests: lines, running, .. } = &mut *state;
        if let Some(line) = lines.iter_mut().find(|line| line.number == number) {
            let running = running.as_ref().filter(|running| running.version.has_request(number));
            running.iter().for_each(|running| line.add_program_runs(&running.version.program));
            ended = self.final_counters(line);
            if let Some(running) = running {
                ended.counted.add(&running.version.current_counters(line));
            }
            let about = line.about.clone();
            state.remember_final_counters(about, &ended);
        }
        let running = state.running.as_ref().map(|running| &running.version);
        let runs = |line: &AttachedRequest| {
            running.is_some_and(|version| version.has_request(line.number))
        };
        let stays: Vec<bool> =
            state.requests.iter().map(|line| !line.leaving || runs(line)).collect();
        let mut stays = stays.into_iter();
        state.requests.retain(|_| stays.next().unwrap_or(true));
        state.full = false;
        self.store_descriptors(&mut state, None);
        ended
    }

    /// Opens and closes taps of a request in the running program until exactly the taps in `open`
    /// are open.
    fn set_taps(&self, number: u32, open: &OpenTaps) -> Result<(), String> {
        let mut state = self.lock_state();
        let Some(line) = state.requests.iter_mut().find(|line| line.number == number) else {
            return Err("the program does not run".to_owned());
        };
        let before = std::mem::replace(&mut line.taps, open.clone());
        let PointState { running, requests: lines, .. } = &mut *state;
        let Some(running) = running else { return Ok(()) };
        let set = running.version.set_taps(lines.iter());
        if set.is_err()
            && let Some(line) = lines.iter_mut().find(|line| line.number == number)
        {
            line.taps = before;
        }
        set
    }

    /// Assigns a number to a new request.
    fn next_request_number(&self) -> u32 {
        // Relaxed suffices, because the counter guards no other memory.
        self.numbers.fetch_add(1, Ordering::Relaxed)
    }

    /// Returns the counters and the filter state of a request so far, or `None` if the request is
    /// not attached.
    fn current_counters(&self, number: u32) -> Option<FinalCounters> {
        let state = self.lock_state();
        let line = state.requests.iter().find(|line| line.number == number)?;
        let running = state.running.as_ref().map(|running| &running.version);
        let counted = state.current_counters(line, running);
        let taps = line.taps.clone();
        Some(FinalCounters { counted, taps, ..self.final_counters(line) })
    }

    /// Returns the user id of a request's owner, or `None` if the request is not attached.
    fn request_owner(&self, number: u32) -> Option<u32> {
        let state = self.lock_state();
        state.requests.iter().find(|line| line.number == number).map(|line| line.uid)
    }

    /// Returns the filter state of a request, and the counters that it has from programs that no
    /// longer run.
    fn final_counters(&self, line: &AttachedRequest) -> FinalCounters {
        FinalCounters {
            busy: self.busy_packets().saturating_sub(line.busy_before),
            ..line.final_counters()
        }
    }

    /// Returns the number of packets that were skipped because all memory regions of their
    /// processor were in use.
    fn busy_packets(&self) -> u64 {
        self.site.sockets.as_ref().map_or(0, UserSockets::busy_packets)
    }

    fn lock_state(&self) -> MutexGuard<'_, PointState> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl PointState {
    /// Creates the grace period with which [`Self::collect_retired_counters`] waits until replaced
    /// programs have finished. Does nothing if it exists already.
    fn create_grace_period(&mut self) -> Result<(), String> {
        if self.grace.is_none() {
            self.grace = Some(GracePeriod::new().map_err(|error| error.to_string())?);
        }
        Ok(())
    }

    /// Returns the counters of a request so far. These are the sums over the replaced programs and
    /// the program `running`, if there is one.
    fn current_counters(
        &self,
        line: &AttachedRequest,
        running: Option<&ProgramVersion>,
    ) -> KernelCounters {
        let mut counted = line.counted.clone();
        let versions = self.retired.iter().chain(running);
        versions.for_each(|version| counted.add(&version.current_counters(line)));
        counted
    }

    /// Retains the final counters of a removed request with its note, `about`. If
    /// [`FINAL_COUNTERS_MAX`] are already retained, discards the oldest.
    fn remember_final_counters(&mut self, about: String, ended: &FinalCounters) {
        if self.final_counters.len() >= FINAL_COUNTERS_MAX {
            self.final_counters.pop_front();
        }
        self.final_counters.push_back((about, ended.clone()));
    }

    /// Adds the filter state maps of a new program to the requests that own the filters.
    fn add_state_maps(&mut self, states: Vec<(u32, usize, Map)>) {
        for (number, step, map) in states {
            if let Some(line) = self.requests.iter_mut().find(|line| line.number == number) {
                line.states.push((step, Arc::new(map)));
            }
        }
    }

    /// Adds the counters of replaced programs to the counters of their requests. Blocks until these
    /// programs have finished.
    fn collect_retired_counters(&mut self) {
        if self.retired.is_empty() {
            return;
        }
        // An interface without a program has no frame in flight, because unlinking has waited for
        // all frames.
        let waits = self.may_linger || self.running.is_some();
        if let Some(grace) = self.grace.as_ref().filter(|_| waits) {
            // Waiting for programs needs no more privilege than the creation of their maps, so the
            // wait succeeds.
            let waited = grace.wait();
            debug_assert!(waited.is_ok(), "{waited:?}");
        }
        for version in std::mem::take(&mut self.retired) {
            self.frames += version.processed_frame_count();
            for line in self.requests.iter_mut().filter(|line| version.has_request(line.number)) {
                let counted = version.current_counters(line);
                line.counted.add(&counted);
                line.add_program_runs(&version.program);
            }
        }
    }
}

/// The name of the checkpoint ([`RollbackLog::announce_step`]) between the updates of the first
/// link and the second link.
const SECOND_LINK_STEP: &str = "the second link follows the first";

/// Replaces the program `old` by `new` at all links. If a link refuses the new program, the links
/// that were already updated return to the old program.
fn update_links(
    links: &[Link],
    (new, old): (&Program, &Program),
    steps: &RollbackLog,
) -> sys::Result<()> {
    for (done, link) in links.iter().enumerate() {
        if done > 0 {
            steps.announce_step(SECOND_LINK_STEP);
        }
        if let Err(error) = link.replace_program(new, Some(old)) {
            for link in links.iter().take(done) {
                link.replace_program(old, Some(new))?;
            }
            return Err(error);
        }
    }
    Ok(())
}
