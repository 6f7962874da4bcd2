//! A request at an attach point, with its own resources and the ring of frames that it shares.

use super::super::final_counters::FinalCounters;
use super::super::fused_tree::{FusedRequest, KernelCounters};
use super::super::taps::OpenTaps;
use super::super::tree::RequestTree;
use ebpf::emit::tap::WakePolicy;
use pipeline::RingSharing;
use pipeline::graph::{Graph, NodeId};
use std::os::fd::{AsFd as _, OwnedFd};
use std::sync::Arc;
use sys::bpf::ring::region_offset;
use sys::bpf::{Map, Program, ProgramRings, RingBuffer, RingsLayout};
use sys::rollback::{RollbackLog, StepResource};

/// A request to be attached, with its owner and the tree of its filters.
#[derive(Clone, Debug)]
pub(crate) struct NewRequest {
    /// User id of the request's owner.
    pub(crate) owner: u32,
    /// Rule that decides which other requests may share the ring of frames with this one.
    pub(crate) share: RingSharing,
    pub(crate) graph: Arc<Graph>,
    pub(crate) tree: RequestTree,
    pub(crate) source: NodeId,
    pub(crate) shape: RingsLayout,
    pub(crate) wake_policy: WakePolicy,
    /// The steps that send frames, each with the index of its egress interface.
    pub(crate) egress_steps: Vec<(usize, u32)>,
    /// Filter state inherited from the request that this one replaces, by step number.
    pub(crate) states: Vec<(usize, Arc<Map>)>,
    /// The taps that are open when the request is attached.
    pub(crate) taps: OpenTaps,
    /// The requester's note, which is persisted.
    pub(crate) about: String,
    /// The log of allocation steps, which undoes them after a failure.
    pub(crate) steps: RollbackLog,
}

/// An attached request, with its resources and its counters so far.
#[derive(Debug)]
pub(super) struct AttachedRequest {
    pub(super) number: u32,
    /// User id of the request's owner.
    pub(super) uid: u32,
    pub(super) graph: Arc<Graph>,
    pub(super) tree: RequestTree,
    pub(super) owner: Arc<SharedFrameRing>,
    pub(super) pointers: Arc<ProgramRings>,
    pub(super) wake_policy: WakePolicy,
    pub(super) doorbell_map: OwnedFd,
    /// The steps that send frames, each with the index of its egress interface.
    pub(super) leads: Vec<(usize, u32)>,
    /// State of the request's filters in the kernel, by step number.
    pub(super) states: Vec<(usize, Arc<Map>)>,
    /// Counters of the request from programs that no longer run.
    pub(super) counted: KernelCounters,
    /// Number of measured runs of programs that no longer run, and their total time in ns.
    pub(super) measured: (u64, u64),
    /// Number of skipped packets at this point before the request was attached. A packet is skipped
    /// if all memory regions of its processor are in use.
    pub(super) busy_before: u64,
    /// True if the request will be removed as soon as a smaller program can be installed.
    pub(super) leaving: bool,
    /// The taps of the request that are open now.
    pub(super) taps: OpenTaps,
    /// The requester's note; see [`NewRequest::about`].
    pub(super) about: String,
}

/// The requests that share one ring of frames (CONTRACT 21).
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum SharingDomain {
    /// The requests of one user.
    User(u32),
    /// The requests of all members of a group that have opted in to sharing.
    Group(Arc<str>),
    /// All requests that have opted in to sharing.
    World,
}

impl SharingDomain {
    /// Returns the sharing domain of a request.
    pub(super) fn for_new_request(new: &NewRequest) -> Self {
        match &new.share {
            RingSharing::User => Self::User(new.owner),
            RingSharing::Group(name) => Self::Group(Arc::clone(name)),
            RingSharing::World => Self::World,
        }
    }
}

/// A ring of frames that several requests may use. `whose` is its sharing domain: the set of
/// requests that may use the ring.
#[derive(Debug)]
pub(super) struct SharedFrameRing {
    pub(super) domain: SharingDomain,
    pub(super) records: Arc<ProgramRings>,
}

/// The private resources of a request, and the ring of frames to which its pointers refer.
pub(super) struct RequestResources {
    pub(super) owner: Arc<SharedFrameRing>,
    pub(super) pointers: ProgramRings,
    pub(super) doorbell_map: OwnedFd,
}

/// Size in bytes of the ring of a doorbell. It has room for 4,096 notifications.
const DOORBELL_RING_BYTES: u32 = 1 << 16;

impl AttachedRequest {
    /// Creates the resources of a request. Creates a ring of frames too, unless a request in `here`
    /// has one with the same sharing domain and layout.
    pub(super) fn create(
        number: u32,
        here: &[Self],
        new: NewRequest,
    ) -> Result<(Self, RingBuffer), String> {
        let describe = |error: sys::Error| error.to_string();
        let steps = new.steps.clone();
        let step = |what| steps.announce_creation(StepResource::Memory, what).map_err(describe);
        let (of_owner, of_line) = (new.shape.records_only(), new.shape.pointers_only());
        let owners = here.iter().map(|line| &line.owner);
        let whose = SharingDomain::for_new_request(&new);
        let mut same =
            owners.filter(|owner| owner.domain == whose && owner.records.own_layout() == of_owner);
        let owner = match same.next() {
            Some(owner) => Arc::clone(owner),
            None => {
                step("frames of an owner")?;
                let records =
                    Arc::new(ProgramRings::create("records", of_owner).map_err(describe)?);
                Arc::new(SharedFrameRing { domain: whose, records })
            }
        };
        step("pointers of a line")?;
        let pointers = ProgramRings::create("pointers", of_line).map_err(describe)?;
        let pointers = pointers.with_records(Arc::clone(&owner.records)).map_err(describe)?;
        step("a bell")?;
        let doorbell = RingBuffer::create("bell", DOORBELL_RING_BYTES).map_err(describe)?;
        let doorbell_map = doorbell.map().as_fd().try_clone_to_owned();
        let doorbell_map = doorbell_map.map_err(|error| error.to_string())?;
        Ok((
            Self::new(
                number,
                new,
                RequestResources { owner, pointers, doorbell_map },
                FinalCounters::default(),
            ),
            doorbell,
        ))
    }

    /// Creates an attached request from a new request and its resources. `before` contains the
    /// counters that the request has from programs that no longer run.
    pub(super) fn new(
        number: u32,
        new: NewRequest,
        has: RequestResources,
        before: FinalCounters,
    ) -> Self {
        let NewRequest {
            graph,
            tree,
            states,
            egress_steps: leads,
            owner: uid,
            about,
            wake_policy,
            taps,
            ..
        } = new;
        let RequestResources { owner, pointers, doorbell_map } = has;
        let FinalCounters { counted, measured, busy: busy_before, .. } = before;
        Self {
            number,
            uid,
            graph,
            tree,
            owner,
            pointers: Arc::new(pointers),
            wake_policy,
            doorbell_map,
            leads,
            states,
            counted,
            measured,
            busy_before,
            leaving: false,
            taps,
            about,
        }
    }

    pub(super) fn as_fused_request(&self) -> FusedRequest<'_> {
        FusedRequest { tree: &self.tree, graph: &self.graph, request: self.number }
    }

    /// Returns the final counters and state of the request. Call this after the last program that
    /// ran the request has finished.
    pub(super) fn final_counters(&self) -> FinalCounters {
        let states = self.states.iter();
        let states = states.filter_map(|(step, map)| Some((*step, map.get(0).ok()?))).collect();
        FinalCounters {
            counted: self.counted.clone(),
            states,
            notifications: self.control_word(region_offset::NOTIFICATION_COUNTS),
            busy: 0,
            taps: OpenTaps::default(),
            measured: self.measured,
            lost: false,
        }
    }

    /// Returns the number of frames that could not be copied for the request.
    pub(super) fn failed_copy_count(&self) -> u64 {
        self.control_word(region_offset::FAILED_COPIES)
    }

    /// Adds the number and the total time of a program's runs, as measured by the kernel, to the
    /// totals of the request.
    pub(super) fn add_program_runs(&mut self, program: &Program) {
        if let Ok(info) = program.info() {
            self.measured.0 += info.runs;
            self.measured.1 += info.run_time_ns;
        }
    }

    /// Returns the control word at offset `at` in the rings of the request, summed over all
    /// processors.
    fn control_word(&self, at: u32) -> u64 {
        let cpus = 0..self.pointers.layout().cpus;
        cpus.filter_map(|cpu| self.pointers.cpu_ring(cpu)?.scratch_word(at)).sum()
    }
}
