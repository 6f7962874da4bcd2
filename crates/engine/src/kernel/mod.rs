//! Kernel spaces: the part of a plan that runs as a program at an interface. [SL §5.3, §7.1]
//!
//! - [`tree`]: the filters of one request;
//! - [`fused_tree`]: the filters of several requests, with common filters merged;
//! - [`assemble`]: the code of a fused tree;
//! - [`load`](mod@load): loading of the code;
//! - [`redirect_program`]: a program that redirects frames from the host, for a single request;
//! - [`shared_attach_point`]: an attach point, whose requests change while its program runs;
//! - [`taps`]: exits that stay closed until a reader opens them;
//! - [`delegation`]: requests of other processes, which may not load programs;
//! - [`direct_attachment`]: a request whose rings the caller reads, without a path;
//! - [`layout`]: sizes of the rings;
//! - [`report`]: counters of the kernel, as nodes and edges of the ledger.
//!
//! The user implementation of each filter also runs, in the first thread of its connected
//! component, for blocks about which the twin is unsure (CONTRACT 18). The counters of both
//! implementations are added up at the end. Nothing is pinned in a file system, so an attachment
//! ends with its path, or at the latest with the process, unless a keeper holds its descriptors
//! ([`shared_attach_point`]).

mod assemble;
pub mod delegation;
pub mod direct_attachment;
mod final_counters;
mod fused_tree;
mod generation_counters;
mod host;
mod layout;
pub mod listing;
mod load;
mod readers;
mod redirect_program;
mod report;
pub mod shared_attach_point;
pub(crate) mod taps;
mod timing;
mod tree;

pub(crate) use generation_counters::{GenerationCounters, query_counters};
pub use host::{
    AttachmentHandle, InjectedRefusal, KernelAttachment, KernelHost, KernelRequest,
    PreparedSuccessor, ProgramSwitch, SwitchError,
};
pub use report::ProgramTotals;

use crate::error::BuildError;
use crate::numbering::PlanNumbers;
use ebpf::emit::tap::{self, WakePolicy, WakeupTarget};
use endpoint::source::kernel::attach_point::AttachPoint;
use endpoint::source::kernel::{Attachment, KernelSource, KernelSourceParts};
use endpoint::{OpenArguments, Source, SourceCounters};
use host::{KernelRefusal, attach_build_error};
use layout::rings_layout;
use pipeline::RingSharing;
use pipeline::graph::{FilterUse, Graph, NodeId};
use pipeline::plan::{KernelRing, Program as Planned};
use runtime::ledger::must_lose_kernel_exit_block;
use shared_attach_point::{AttachPoints, NewRequest};
use std::sync::Arc;
use sys::bpf::RingsLayout;
use sys::bpf::ring::region_offset;
use sys::machine::Capabilities;
use sys::privilege::Privilege;
use taps::{NodeTapReaders, OpenTaps};
use timing::ProgramTiming;
use tree::{RequestTree, TreeStep};

/// The kernel part of a path at one interface. It consists of the request that runs now and of
/// earlier requests, one for each change of the path.
#[derive(Debug)]
pub(crate) struct KernelSpace {
    /// The current generation: the request that has been attached since the last change of the
    /// path.
    pub(crate) generation: Generation,
    /// The earlier generations, oldest first. Each of them ended at a change of the path.
    earlier_generations: Vec<Generation>,
    /// A guard that keeps the kernel's run-time statistics enabled, or `None` if run time is not
    /// measured.
    timing: Option<ProgramTiming>,
    place: AttachPoint,
    /// The readers of taps, by the node of the path whose output they read.
    taps: NodeTapReaders,
}

/// A generation of the kernel part of a path: a request that is attached from one change of the
/// path to the next.
#[derive(Debug)]
pub(crate) struct Generation {
    /// The graph of the plan. The numbers of its nodes and edges are in `ids`.
    graph: Arc<Graph>,
    ids: PlanNumbers,
    /// The first source in `sources`, under which the ledger reports the program.
    source: NodeId,
    /// The tree of the request's filters.
    pub(crate) tree: RequestTree,
    /// The sources of the path's connected component that the program implements.
    sources: Vec<NodeId>,
    handle: Arc<dyn AttachmentHandle>,
    /// The number by which the metadata of a block names this source as the block's origin.
    pub(crate) origin: u16,
    /// Totals of the blocks that this process had received from the generation's program when the
    /// generation ended; `None` while it runs.
    taken: Option<SourceCounters>,
}

/// A prepared [`Generation`], which will replace the current one when the path changes.
#[derive(Debug)]
pub(crate) struct NextGeneration {
    pub(crate) generation: Generation,
    /// The handle that replaces the program of the current generation.
    pub(crate) switch: Box<dyn ProgramSwitch>,
    /// The taps that are open when the new generation begins.
    open_taps: OpenTaps,
}

/// An attached request, and the source that delivers its frames in this process.
type AttachedSource = (Arc<dyn AttachmentHandle>, Box<dyn Source>);

/// Returns true if the verifier treats programs of this process as privileged (CAP_PERFMON or
/// CAP_SYS_ADMIN).
pub(crate) fn is_perfmon_capable() -> bool {
    let may = Privilege::detect().effective;
    may.contains(Capabilities::PERFMON) || may.contains(Capabilities::SYS_ADMIN)
}

/// An attached request and all its predecessors. The source of their frames reports the sum of
/// their counters.
#[derive(Debug)]
struct RequestHistory {
    held: Arc<dyn AttachmentHandle>,
    before: Vec<Arc<dyn AttachmentHandle>>,
}

impl Attachment for RequestHistory {
    fn detach(&self) {
        self.held.detach();
    }

    fn frames_received(&self) -> Option<u64> {
        let all = self.before.iter().chain([&self.held]).map(|held| held.final_counters());
        all.map(|ended| (!ended.lost).then_some(ended.counted.ran.blocks)).sum()
    }

    fn export_failure(&self) -> Option<endpoint::Failure> {
        self.held.export_failure()
    }
}

/// The inputs for building a kernel space.
pub(crate) struct KernelInputs<'p> {
    pub(crate) graph: &'p Graph,
    /// The numbers of the plan's nodes and edges.
    pub(crate) ids: &'p PlanNumbers,
    pub(crate) planned: &'p Planned,
    /// The nodes of the path's connected component that the program implements.
    pub(crate) nodes: &'p [NodeId],
    /// The number by which the metadata of a block names the source as the block's origin.
    pub(crate) origin: u16,
    /// The host that attaches the request.
    pub(crate) host: &'p dyn KernelHost,
    /// True if programs must load without CAP_PERFMON.
    pub(crate) hardened: bool,
    pub(crate) refuses: InjectedRefusal,
    /// True if the run time of the programs is measured, provided that the kernel permits it.
    pub(crate) timed: bool,
    /// The options with which the source would be opened if it ran in user space.
    pub(crate) opening: &'p OpenArguments<'p>,
}

/// Maximum interval between two doorbell notifications that a program can represent, in ns.
const DOORBELL_INTERVAL_NS_MAX: u64 = i32::MAX as u64;

impl KernelSpace {
    /// Attaches a request to the program of its interface, and opens the source that reads its
    /// frames. A request that takes selected flows from the host is refused if the flows include
    /// the SSH connection of this session, unless the source is forced.
    pub(crate) fn build(wanted: &KernelInputs<'_>) -> Result<(Self, Box<dyn Source>), BuildError> {
        let KernelInputs { planned, timed, .. } = *wanted;
        let asked = wanted.request();
        let place = AttachPoint::find(&planned.attach)
            .map_err(|why| attach_build_error(why, asked.source))?;
        if planned.attach.only_matching_flows && !wanted.opening.force {
            let spared = endpoint::source::rx::take::check_ssh_connection_unmatched(
                wanted.opening.arguments,
            );
            spared.map_err(|failure| BuildError::Outside { node: asked.source, failure })?;
        }
        let timing = timed.then(ProgramTiming::enable).flatten();
        let (handle, gives): AttachedSource = match planned.attach.redirects {
            true => redirect_program::build_redirect_source(
                wanted,
                &asked.tree(),
                (asked.source, &place),
            )?,
            false => wanted.open_source(wanted.host.attach(&asked)?, place.clone(), Vec::new()),
        };
        let generation = wanted.generation(handle);
        let (before, taps) = (Vec::new(), NodeTapReaders::default());
        Ok((Self { generation, earlier_generations: before, place, timing, taps }, gives))
    }

    /// Prepares the generation that will replace the current one. Also returns the source that
    /// reads the frames of the new generation.
    pub(crate) fn prepare_next_generation(
        &self,
        wanted: &KernelInputs<'_>,
    ) -> Result<(NextGeneration, Box<dyn Source>), BuildError> {
        let mut asked = wanted.request();
        let tree = asked.tree();
        asked.taps = self.taps.open_taps_in_tree(&tree, wanted.ids);
        self.check_output_exported((&tree, wanted.ids), &asked.taps)?;
        let stays = self.generation.kept_steps(&tree, wanted.ids);
        let handle = Arc::clone(&self.generation.handle);
        let PreparedSuccessor { attachment: lent, switch } =
            handle.prepare_successor(&asked, &stays, "")?;
        let before = self.generations().map(|generation| Arc::clone(&generation.handle)).collect();
        let (handle, gives) = wanted.open_source(lent, self.place.clone(), before);
        let generation = wanted.generation(handle);
        Ok((NextGeneration { generation, switch, open_taps: asked.taps }, gives))
    }

    /// Makes `next` the current generation, after the switch to its program. `taken` holds the
    /// totals that this process received from the previous generation.
    pub(crate) fn begin_generation(&mut self, next: NextGeneration, taken: SourceCounters) {
        let mut old = std::mem::replace(&mut self.generation, next.generation);
        old.taken = Some(taken);
        self.earlier_generations.push(old);
        self.renew_taps(&next.open_taps);
    }
}

impl Generation {
    /// Returns the node number of the source that represents the program.
    pub(crate) fn source_number(&self) -> usize {
        self.ids.nodes[self.source.0]
    }

    /// Returns the filters that this generation and the new one have in common, and that keep their
    /// state. Each is given by its step index in the tree of this generation and in `tree`, the
    /// tree of the new one.
    fn kept_steps(&self, tree: &RequestTree, ids: &PlanNumbers) -> Vec<(usize, usize)> {
        let number =
            |ids: &PlanNumbers, step: &TreeStep| step.nodes.first().map(|id| ids.nodes[id.0]);
        let theirs = |step: &TreeStep| {
            let own = number(&self.ids, step);
            tree.steps.iter().position(|other| number(ids, other) == own)
        };
        let all = self.tree.steps.iter().enumerate();
        all.filter_map(|(own, step)| Some((own, theirs(step)?))).collect()
    }
}

impl<'p> KernelInputs<'p> {
    fn request(&self) -> KernelRequest<'p> {
        let KernelInputs { graph, planned, hardened, refuses, .. } = *self;
        let source = self.sources().first().copied().unwrap_or(NodeId(0));
        let (nodes, steps) = (self.nodes, self.opening.rollback_log);
        let taps = OpenTaps::default();
        KernelRequest { graph, planned, nodes, source, hardened, refuses, steps, taps }
    }

    /// Returns the sources of this component that the program implements.
    fn sources(&self) -> Vec<NodeId> {
        let ours = |id: &NodeId| self.nodes.contains(id);
        self.planned.sources.iter().copied().filter(ours).collect()
    }

    /// Opens the source that reads a request's frames in this process. `before` lists the handles
    /// of the requests that this request replaces, directly or indirectly.
    fn open_source(
        &self,
        lent: KernelAttachment,
        place: AttachPoint,
        before: Vec<Arc<dyn AttachmentHandle>>,
    ) -> AttachedSource {
        let KernelAttachment { rings, doorbell, handle: held } = lent;
        let tree = self.request().tree();
        let gives = KernelSource::new(KernelSourceParts {
            rings,
            doorbell,
            attachment: Arc::new(RequestHistory { held: Arc::clone(&held), before }),
            attach_point: place,
            edges: tree.exits.iter().map(|exit| exit.sink).collect(),
            // Taps use the first ring output.
            taps: vec![0; tree.taps.len()],
            origin: self.origin,
            wait_ns: self.planned.ring.signal_ns.min(DOORBELL_INTERVAL_NS_MAX),
            loses_frame: must_lose_kernel_exit_block(),
        });
        (held, Box::new(gives))
    }

    fn generation(&self, handle: Arc<dyn AttachmentHandle>) -> Generation {
        let (sources, origin) = (self.sources(), self.origin);
        let asked = self.request();
        let (graph, ids) = (Arc::new(self.graph.clone()), self.ids.clone());
        let (source, tree) = (asked.source, asked.tree());
        Generation { graph, ids, source, tree, sources, handle, origin, taken: None }
    }
}

impl KernelRequest<'_> {
    /// Returns a fingerprint of the tree, which is equal in every process that plans the request in
    /// the same way.
    #[must_use]
    pub fn fingerprint(&self) -> u64 {
        self.tree().fingerprint(self.graph)
    }

    /// Returns the number of exits and taps of the request.
    fn exit_count(&self) -> usize {
        let tree = self.tree();
        tree.exits.len() + tree.taps.len()
    }

    /// Returns the tree of the request's filters.
    fn tree(&self) -> RequestTree {
        RequestTree::new(self.planned, self.graph, |id| self.nodes.contains(&id))
    }

    /// Adds to a new request the egress interfaces of its steps that send frames.
    fn with_egress_interfaces(
        &self,
        place: &AttachPoint,
        new: NewRequest,
    ) -> Result<NewRequest, BuildError> {
        let leads = egress_steps(self.graph, &new.tree, place)?;
        Ok(NewRequest { egress_steps: leads, ..new })
    }

    /// Converts the request to the form that an attach point accepts. `owner` becomes its owner;
    /// egress interfaces are not set yet. Fails if the request exceeds the limits of a program, or
    /// if it would share packets of the user's own sockets with other users.
    fn new_request(&self, owner: u32) -> Result<NewRequest, BuildError> {
        let Self { graph, planned, source, refuses, steps, .. } = *self;
        let tree = self.tree();
        if !assemble::is_within_limits(&tree) {
            let (ways, sinks) = (tree.exits.len(), tree.sink_count());
            let why = match ways > tap::EXITS_MAX as usize {
                true => {
                    format!(
                        "it has {ways} exits from the kernel, and the maximum is {}",
                        tap::EXITS_MAX
                    )
                }
                false => format!(
                    "a frame may take {sinks} exits from the kernel at once, and the maximum is {}",
                    tap::DELIVERIES_MAX
                ),
            };
            // The filters before this node stay in the kernel.
            let node = tree.first_filter_to_remove(assemble::is_within_limits).unwrap_or(source);
            return Err(BuildError::Refused(KernelRefusal { node, why }));
        }
        let asked = graph.node(source).filter().and_then(|used| used.arguments.number("ring"));
        let shape = rings_layout(planned, tree.sink_count(), asked)?;
        let share = RingSharing::from_graph(graph);
        if share != RingSharing::User && planned.attach.own_sockets {
            let why = format!(
                "packets of your own sockets are visible to you alone: leave `--share={share}` out"
            );
            return Err(BuildError::Refused(KernelRefusal { node: source, why }));
        }
        if let Some(refusal) = refuses.loading_refusal(&tree, graph, source) {
            return Err(BuildError::Refused(refusal));
        }
        let (graph, wake_policy) = (Arc::new(graph.clone()), doorbell_policy(&planned.ring, shape));
        Ok(NewRequest {
            owner,
            share,
            graph,
            tree,
            source,
            shape,
            wake_policy,
            egress_steps: Vec::new(),
            states: Vec::new(),
            taps: self.taps.clone(),
            about: String::new(),
            steps: steps.clone(),
        })
    }
}

impl KernelHost for AttachPoints {
    fn attach(&self, asked: &KernelRequest<'_>) -> Result<KernelAttachment, BuildError> {
        self.attach_for_user(asked, sys::process::effective_ids().0)
    }
}

impl AttachPoints {
    /// Attaches a request for a user.
    fn attach_for_user(
        &self,
        asked: &KernelRequest<'_>,
        owner: u32,
    ) -> Result<KernelAttachment, BuildError> {
        let attach = &asked.planned.attach;
        let place =
            AttachPoint::find(attach).map_err(|why| attach_build_error(why, asked.source))?;
        let new = asked.with_egress_interfaces(&place, asked.new_request(owner)?)?;
        self.attach((attach, asked.hardened), &new)
    }
}

/// Returns the steps that send frames, each with the index of its egress interface. Fails if there
/// are any and the process lacks CAP_NET_RAW, or if an egress interface does not exist.
fn egress_steps(
    graph: &Graph,
    tree: &RequestTree,
    place: &AttachPoint,
) -> Result<Vec<(usize, u32)>, BuildError> {
    let mut found = Vec::new();
    for (number, step) in tree.steps.iter().enumerate() {
        let Some(node) = step.nodes.first().copied() else { continue };
        let Some(outlet) = graph.node(node).filter().and_then(FilterUse::outlet) else { continue };
        if !Privilege::detect().effective.contains(Capabilities::NET_RAW) {
            let why = "sending frames needs CAP_NET_RAW, also from the kernel".to_owned();
            return Err(BuildError::Refused(KernelRefusal { node, why }));
        }
        let index = place
            .output_interface_index(&outlet.interface)
            .map_err(|why| attach_build_error(why, node))?;
        found.push((number, index));
    }
    Ok(found)
}

/// The message of a refusal that a test injects.
const REFUSED_BY_TEST: &str = "the kernel refuses it, because a test says so";

impl InjectedRefusal {
    fn loading_refusal(
        self,
        tree: &RequestTree,
        graph: &Graph,
        source: NodeId,
    ) -> Option<KernelRefusal> {
        let why = REFUSED_BY_TEST.to_owned();
        match self {
            Self::Nothing => None,
            Self::Loading | Self::Attaching => Some(KernelRefusal { node: source, why }),
            Self::Filter(name) => {
                let mut nodes = tree.steps.iter().filter_map(|step| step.nodes.first());
                let node = nodes.find(|id| graph.node(**id).name() == name)?;
                Some(KernelRefusal { node: *node, why })
            }
        }
    }
}

/// Returns the policy by which a program notifies the reader of its rings. If the planned ring has
/// a threshold (`signal_blocks` is not 0), the program notifies a doorbell that wakes the source.
/// The source drains these notifications before it checks for frames.
///
/// Without a threshold, the program sends no notifications. While the source sleeps, the program
/// then leaves the frames to the network stack of this machine, which wakes the source.
#[must_use]
pub fn doorbell_policy(ring: &KernelRing, shape: RingsLayout) -> WakePolicy {
    let ns = |ns: u64| u32::try_from(ns.min(DOORBELL_INTERVAL_NS_MAX)).unwrap_or(u32::MAX);
    WakePolicy {
        blocks: ring.signal_blocks.min(i32::MAX.unsigned_abs()),
        apart_ns: ns(ring.interval_min_ns),
        wait_ns: ns(ring.signal_ns),
        bytes: shape.bytes / 4,
        frames: shape.pointers / 4,
        target: if ring.signal_blocks == 0 { WakeupTarget::Host } else { WakeupTarget::Consumer },
    }
}

// The program and its reader use the same layout.
const _: () = {
    use tap::{AFTER_TAG_FLAG, POINTER_SIZE, READERS_MAX, offset, record};
    assert!(
        offset::HEADS as u32 == region_offset::HEADS
            && offset::RESERVED as u32 == region_offset::RESERVED
    );
    assert!(
        offset::COMMITTED as u32 == region_offset::COMMITTED
            && offset::WRITING as u32 == region_offset::WRITING
            && offset::FAILED_COPIES as u32 == region_offset::FAILED_COPIES
    );
    assert!(
        offset::DOORBELL_TIME as u32 == region_offset::LAST_NOTIFICATION_TIME
            && offset::DOORBELLS_SENT as u32 == region_offset::NOTIFICATION_COUNTS
    );
    assert!(
        offset::EXIT_POINTER_COUNTS as u32 == region_offset::EDGE_POINTER_COUNTS
            && tap::EXITS_MAX * 8 <= region_offset::POINTERS - region_offset::EDGE_POINTER_COUNTS
    );
    assert!(
        offset::TALLIES as u32 == region_offset::TALLIES
            && offset::PAGE_SIZE as u32 == region_offset::POINTERS
    );
    assert!(
        offset::DELIVERY_BITS as u32 == region_offset::SCRATCH
            && READERS_MAX == sys::bpf::ring::SINKS_MAX
    );
    assert!(
        POINTER_SIZE == region_offset::POINTER_SIZE
            && AFTER_TAG_FLAG == region_offset::AFTER_TAG_FLAG
            && record::HEADER_SIZE == region_offset::RECORD_HEADER_SIZE
    );
    assert!(record::ALIGNMENT == region_offset::RECORD_ALIGNMENT);
};
