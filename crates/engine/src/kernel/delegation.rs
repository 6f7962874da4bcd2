//! Delegation: a privileged process runs parts of requests in the kernel for other processes.
//! [CONTRACT 21, 25; RELIABILITY T2, T19]
//!
//! Input: the nodes of a request that a peer wants to run in the kernel ([`KernelPart`]), and the
//! owner of the request. Output: a [`DelegatedProgram`], which contains descriptors of the memory
//! for the request's frames, and a [`DelegatedLayout`]; at the end of the request, its counters and
//! state ([`FinalCounters`]). The layout and the counters are encoded as text, which any protocol
//! can transmit.
//!
//! The serving process checks the nodes as if it had planned the request itself. The receiver gets
//! read access only. The maps of frames and pointers are frozen, so only the program in the kernel
//! can write to them, and the doorbell serves this request alone. The receiver checks the
//! descriptors against the layout before use.

use super::host::{
    AttachmentHandle, InjectedRefusal, KernelAttachment, KernelRefusal, KernelRequest,
    PreparedSuccessor, ProgramSwitch, SwitchError,
};
use super::shared_attach_point::{AttachPoints, NewRequest};
use crate::error::BuildError;
use ebpf::emit::tap::EXITS_MAX;
use pipeline::RingSharing;
use pipeline::graph::{Graph, NodeId};
use pipeline::plan::{Kernel, KernelRing, Machine, programs_for_nodes};
use std::io;
use std::os::fd::{AsFd as _, OwnedFd};
use std::sync::Arc;
use std::time::Duration;
use sys::bpf::{ProgramRings, RingBuffer, RingsLayout};

pub use super::final_counters::FinalCounters;
pub use super::taps::OpenTaps;
pub use endpoint::Failure;
pub use endpoint::source::kernel::Attachment;
pub use filter::{Amount, AttachTarget, TrafficDirection};

/// The owner of a request, and a note about the request. The note is persisted and outlives this
/// process.
#[derive(Clone, Copy, Debug)]
pub struct RequestOwner<'o> {
    /// User id of the owner.
    pub uid: u32,
    /// The note, which [`AttachPoints::adopt_persisted_points`] later returns.
    pub about: &'o str,
}

/// The part of another process's request that should run in the kernel. The peer that sent it is
/// not trusted.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct KernelPart {
    /// Indices of the nodes in the graph of the request, after default sources and sinks have been
    /// added.
    pub nodes: Vec<NodeId>,
    /// The requested sizes of the rings.
    pub ring: KernelRing,
}

/// The descriptors and layout that another process needs to read a request's frames.
#[derive(Debug)]
pub struct DelegatedProgram {
    /// The layout of the shared memory.
    pub layout: DelegatedLayout,
    /// The map of frames, which requests of the same owner share.
    pub records: OwnedFd,
    /// The map of this request's pointers.
    pub pointers: OwnedFd,
    /// The doorbell of this request.
    pub doorbell: OwnedFd,
}

/// The layout of the memory into which the program copies a request's frames.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct DelegatedLayout {
    /// Number and sizes of the rings.
    pub shape: RingsLayout,
    /// Total number of exits of the request, including its taps.
    pub exits: usize,
    /// Fingerprint of the filter tree that the serving process runs. The requesting process
    /// compares it with the fingerprint of its own tree.
    pub tree: u64,
}

/// The resources that the kernel part of a request needs. They are known before any resource is
/// allocated.
#[derive(Clone, Debug)]
pub struct ResourceNeeds<'n> {
    /// The attach point of the request.
    pub attach: &'n AttachTarget,
    /// The first source of the kernel part.
    pub source: NodeId,
    /// Size in bytes of the request's pointers, and of the frames that the request shares with
    /// other requests.
    pub bytes: (u64, u64),
    /// Rule that decides which requests may share the ring of frames.
    pub share: RingSharing,
    /// Maximum number of exits through which a single frame leaves the kernel.
    pub exits_per_frame: u32,
}

/// A policy that decides whether the kernel part of a request may have these resources. It refuses
/// them by an error.
pub type AdmissionPolicy<'a> = &'a dyn Fn(&ResourceNeeds<'_>) -> Result<(), KernelRefusal>;

/// A request that runs in the kernel for another process. Dropping the value removes the request.
#[derive(Debug)]
pub struct DelegatedRequest {
    pub(super) held: Arc<dyn AttachmentHandle>,
    /// The attach point at which the request runs.
    pub attach: AttachTarget,
    /// Sizes in bytes of the request's pointers, and of the frames that the request shares with
    /// other requests.
    pub bytes: (u64, u64),
    /// Rule that decides which requests may share the ring of frames.
    pub share: RingSharing,
}

/// A prepared request of a peer, which can replace a running request of the same owner.
#[derive(Debug)]
pub struct DelegatedSuccessor {
    running: DelegatedRequest,
    switch: Box<dyn ProgramSwitch>,
}

impl KernelPart {
    /// Extracts the kernel part from a request.
    #[must_use]
    pub fn extract(asked: &KernelRequest<'_>) -> Self {
        Self { nodes: asked.nodes.to_vec(), ring: asked.planned.ring.clone() }
    }

    /// Formats the kernel part as text.
    #[must_use]
    pub fn to_text(&self) -> String {
        let KernelRing {
            pointers,
            bytes,
            record_max,
            signal_blocks,
            interval_min_ns: apart_ns,
            signal_ns,
        } = &self.ring;
        let nodes: Vec<usize> = self.nodes.iter().map(|node| node.0).collect();
        let ring = (pointers, bytes, record_max, signal_blocks, apart_ns, signal_ns);
        serde_json::to_string(&(ring, nodes)).unwrap_or_default()
    }

    /// Parses the text written by [`Self::to_text`]. Returns `None` if it is malformed.
    #[must_use]
    pub fn from_text(text: &str) -> Option<Self> {
        let (ring, nodes): (_, Vec<usize>) = serde_json::from_str(text).ok()?;
        let (pointers, bytes, record_max, signal_blocks, apart_ns, signal_ns) = ring;
        let ring = KernelRing {
            pointers,
            bytes,
            record_max,
            signal_blocks,
            interval_min_ns: apart_ns,
            signal_ns,
        };
        Some(Self { nodes: nodes.into_iter().map(NodeId).collect(), ring })
    }
}

impl AttachPoints {
    /// Runs the kernel part of another process's request in a program that loads without
    /// CAP_PERFMON (CONTRACT 25). The kernel of `machine` must be [`Kernel::Open`], and is treated
    /// as hardened. The graph is the request as this process parsed it, with default sources and
    /// sinks added; the [`KernelPart`] is untrusted.
    ///
    /// # Errors
    ///
    /// Fails like [`Self::attach`], and if `allows` refuses the resources.
    pub fn attach_delegated(
        &self,
        request: (&Graph, &KernelPart),
        machine: &Machine,
        owner: RequestOwner<'_>,
        allows: AdmissionPolicy<'_>,
    ) -> Result<(DelegatedProgram, DelegatedRequest), BuildError> {
        let taps = OpenTaps::default();
        self.attach_delegated_part((request, taps), machine, (owner, allows), |asked, new| {
            self.attach((&asked.planned.attach, asked.hardened), &new)
        })
    }

    /// Prepares the replacement of a running request, under the same rules as
    /// [`Self::attach_delegated`]. The new request must have the attach point of the running one.
    /// `stays` contains pairs of steps, one of the old request and one of the new request, that are
    /// the same filter and keep their state. `taps` are the taps that are open in the new request
    /// from its start.
    pub fn prepare_delegated_successor(
        &self,
        running: &DelegatedRequest,
        request: (&Graph, &KernelPart),
        machine: &Machine,
        (stays, taps): (&[(usize, usize)], OpenTaps),
        (owner, allows): (RequestOwner<'_>, AdmissionPolicy<'_>),
    ) -> Result<(DelegatedProgram, DelegatedSuccessor), BuildError> {
        let mut switch = None;
        let (delegated, running) =
            self.attach_delegated_part((request, taps), machine, (owner, allows), |asked, new| {
                if asked.planned.attach != running.attach {
                    let why =
                        "its attachment point differs from that of the request that it replaces";
                    let node = asked.source;
                    return Err(BuildError::Refused(KernelRefusal { node, why: why.to_owned() }));
                }
                let successor =
                    Arc::clone(&running.held).prepare_successor(asked, stays, &new.about)?;
                let PreparedSuccessor { attachment: lent, switch: how } = successor;
                switch = Some(how);
                Ok(lent)
            })?;
        let none = || BuildError::Unexpected("a request that replaces no other".to_owned());
        Ok((delegated, DelegatedSuccessor { running, switch: switch.ok_or_else(none)? }))
    }

    /// Checks the kernel part of a peer's request, and attaches the request by calling `make`.
    /// Returns the descriptors for the peer, and the attached request.
    fn attach_delegated_part(
        &self,
        ((graph, part), taps): ((&Graph, &KernelPart), OpenTaps),
        machine: &Machine,
        (owner, allows): (RequestOwner<'_>, AdmissionPolicy<'_>),
        make: impl FnOnce(&KernelRequest<'_>, NewRequest) -> Result<KernelAttachment, BuildError>,
    ) -> Result<(DelegatedProgram, DelegatedRequest), BuildError> {
        // The check does not depend on this process's privileges, so that the program also loads
        // after CAP_PERFMON has been dropped.
        let hardened = true;
        let mut machine = machine.clone();
        if let Kernel::Open { hardened, .. } = &mut machine.kernel {
            *hardened = true;
        }
        let programs =
            programs_for_nodes(graph, &part.nodes, &machine, &clamp_ring_sizes(&part.ring));
        let programs = programs.map_err(BuildError::Refused)?;
        let first = part.nodes.first().copied().unwrap_or(NodeId(0));
        let refused = |node, why: String| BuildError::Refused(KernelRefusal { node, why });
        let [planned] = programs.as_slice() else {
            let why = format!("{} programs are needed, and only one is supported", programs.len());
            return Err(refused(first, why));
        };
        let source = planned.sources.first().copied().unwrap_or(first);
        if planned.attach.redirects {
            let why = "taking frames from the host needs a separate program, which the daemon does \
                       not run for other users";
            return Err(refused(source, why.to_owned()));
        }
        let leads = |id: &NodeId| {
            graph.node(*id).filter().is_some_and(|used| used.endpoint.outlet.is_some())
        };
        if let Some(node) = part.nodes.iter().copied().find(leads) {
            // This process may send frames, but the peer must not (CONTRACT 25).
            let why = "the daemon does not send frames for other users".to_owned();
            return Err(refused(node, why));
        }
        let refuses = InjectedRefusal::Nothing;
        let (nodes, steps) = (&part.nodes, &self.steps);
        let asked = KernelRequest { graph, planned, nodes, source, hardened, refuses, steps, taps };
        let tree = asked.fingerprint();
        let new = NewRequest { about: owner.about.to_owned(), ..asked.new_request(owner.uid)? };
        let bytes = |shape: RingsLayout| shape.size().map_or(0, u64::from);
        let bytes = (bytes(new.shape.pointers_only()), bytes(new.shape.records_only()));
        let (attach, exits_per_frame, share) =
            (&planned.attach, new.shape.sinks, new.share.clone());
        let needs = ResourceNeeds { attach, source, bytes, share: share.clone(), exits_per_frame };
        allows(&needs).map_err(BuildError::Refused)?;
        let exits = asked.exit_count();
        let KernelAttachment { rings, doorbell, handle: held } = make(&asked, new)?;
        let layout = DelegatedLayout { shape: rings.layout(), exits, tree };
        let copy = |fd: std::os::fd::BorrowedFd<'_>| fd.try_clone_to_owned();
        let delegated = || -> io::Result<DelegatedProgram> {
            let (records, pointers) = (copy(rings.record_rings().as_fd())?, copy(rings.as_fd())?);
            Ok(DelegatedProgram {
                layout: layout.clone(),
                records,
                pointers,
                doorbell: copy(doorbell.as_fd())?,
            })
        };
        let delegated = delegated().map_err(|error| refused(source, error.to_string()))?;
        Ok((delegated, DelegatedRequest { held, attach: planned.attach.clone(), bytes, share }))
    }
}

/// Clamps the ring sizes that an untrusted peer requests to the range of sizes that the planner
/// uses.
pub(super) fn clamp_ring_sizes(ring: &KernelRing) -> KernelRing {
    KernelRing {
        pointers: ring.pointers.clamp(64, 1 << 16).next_power_of_two(),
        bytes: ring.bytes.clamp(1 << 12, 1 << 27).next_power_of_two(),
        record_max: ring.record_max.clamp(64, (64 << 10) + 64),
        ..ring.clone()
    }
}

impl DelegatedProgram {
    /// Maps the rings and the doorbell, after checking them against the layout. Fails if they do
    /// not match.
    pub fn open(self) -> sys::Result<(Arc<ProgramRings>, RingBuffer)> {
        let Self { layout: DelegatedLayout { shape, .. }, records, pointers, doorbell } = self;
        let records = ProgramRings::from_received(records, shape.records_only())?;
        let pointers = ProgramRings::from_received(pointers, shape.pointers_only())?
            .with_records(Arc::new(records))?;
        Ok((Arc::new(pointers), RingBuffer::from_received(doorbell)?))
    }

    /// Converts the delegated program to an attached request that a path can read. `held` notifies
    /// the serving process when the request ends. Call [`Self::matches_request`] first.
    pub fn into_attachment(self, held: Arc<dyn AttachmentHandle>) -> sys::Result<KernelAttachment> {
        let (rings, doorbell) = self.open()?;
        Ok(KernelAttachment { rings, doorbell, handle: held })
    }
}

impl DelegatedProgram {
    /// Returns true if the serving process has built the same filter tree and the same exits for
    /// the request as this process, and if the rings have at least as many sequences of pointers as
    /// the request uses.
    #[must_use]
    pub fn matches_request(&self, asked: &KernelRequest<'_>) -> bool {
        let DelegatedLayout { exits, tree, shape } = self.layout;
        let same = tree == asked.fingerprint() && exits == asked.exit_count();
        same && shape.sinks as usize >= asked.tree().sink_count()
    }
}

impl DelegatedRequest {
    /// Returns the number by which [`AttachPoints::status`] lists the request, or `None` if another
    /// process owns the attach point.
    #[must_use]
    pub fn request_number(&self) -> Option<u32> {
        self.held.request_number()
    }

    /// Returns the counters and the state of the request so far, or
    /// [`FinalCounters::lost_counters`] if this process cannot read them.
    #[must_use]
    pub fn current_counters(&self) -> FinalCounters {
        self.held.current_counters().unwrap_or_else(FinalCounters::lost_counters)
    }

    /// Opens and closes taps of the request until exactly the taps in `open` are open. On failure,
    /// returns the reason.
    pub fn set_taps(&self, open: &OpenTaps) -> Result<(), String> {
        self.held.set_taps(open, Duration::ZERO)
    }

    /// Detaches the request and returns its final counters and state.
    #[must_use]
    pub fn detach(self) -> FinalCounters {
        self.held.final_counters().clone()
    }
}

impl DelegatedSuccessor {
    /// Replaces the running request with the prepared one. If this fails, the running request
    /// continues unchanged and the prepared one is discarded.
    pub fn switch(mut self) -> Result<DelegatedRequest, SwitchError> {
        self.switch.switch().map(|()| self.running)
    }

    /// Returns the prepared request, which will run after the switch, with its attach point and
    /// resources.
    #[must_use]
    pub const fn prepared_request(&self) -> &DelegatedRequest {
        &self.running
    }
}

impl DelegatedLayout {
    /// Formats the layout as text.
    #[must_use]
    pub fn to_text(&self) -> String {
        let RingsLayout { cpus, sinks, pointers, bytes, record_max } = self.shape;
        let shape = (cpus, sinks, pointers, bytes, record_max);
        serde_json::to_string(&(shape, self.exits, self.tree)).unwrap_or_default()
    }

    /// Parses the text written by [`Self::to_text`]. Returns `None` if it is malformed or describes
    /// impossible memory.
    #[must_use]
    pub fn from_text(text: &str) -> Option<Self> {
        let (shape, exits, tree): (_, usize, _) = serde_json::from_str(text).ok()?;
        let (cpus, sinks, pointers, bytes, record_max) = shape;
        let shape = RingsLayout { cpus, sinks, pointers, bytes, record_max };
        let whole = shape.records_only().size().is_some() && shape.pointers_only().size().is_some();
        let fits = whole && exits <= EXITS_MAX as usize;
        fits.then_some(Self { shape, exits, tree })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn printed_kernel_part_parses_to_the_same_part() {
        let ring = KernelRing {
            pointers: 64,
            bytes: 1 << 20,
            record_max: 65_600,
            signal_blocks: 32,
            interval_min_ns: u64::MAX,
            signal_ns: 0,
        };
        let part = KernelPart { nodes: vec![NodeId(0), NodeId(7)], ring };
        assert_eq!(KernelPart::from_text(&part.to_text()), Some(part));
        for wrong in [
            "",
            "[[1,2,3,4,5],[]]",
            "[[1,2,3,4,5,\"6\"],[]]",
            "[[4294967296,2,3,4,5,6],[]]",
            "[[1,2,3,4,5,6],[-1]]",
        ] {
            assert_eq!(KernelPart::from_text(wrong), None, "{wrong}");
        }
    }

    #[test]
    fn printed_layout_parses_to_the_same_layout() {
        let shape =
            RingsLayout { cpus: 2, sinks: 3, pointers: 64, bytes: 1 << 16, record_max: 2048 };
        for exits in [0, 3, EXITS_MAX as usize] {
            let layout = DelegatedLayout { shape, exits, tree: u64::MAX };
            assert_eq!(DelegatedLayout::from_text(&layout.to_text()), Some(layout));
        }
        for wrong in [
            "",
            "[[2,3,64,65536,2048],7]",
            "[[2,3,64,65536],1,7]",
            "[[2,3,65,65536,2048],1,7]",
            "[[2,3,64,65536,2048],-1,7]",
            // The format of earlier versions contains one flag per exit instead of the number of
            // exits.
            "[[2,3,64,65536,2048],[false],7]",
            &format!("[[2,3,64,65536,2048],{},7]", EXITS_MAX + 1),
            "[[4294967295,3,64,65536,2048],0,7]",
            "[[0,3,64,65536,2048],0,7]",
        ] {
            assert_eq!(DelegatedLayout::from_text(wrong), None, "{wrong}");
        }
    }
}
