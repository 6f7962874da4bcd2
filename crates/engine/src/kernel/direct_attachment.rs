//! A request whose frames the caller reads from the kernel's rings itself, in its own thread and
//! without a path.
//!
//! The caller plans a request of one live source whose filters all run in the kernel. The rest of
//! the plan is not built: no thread, no pool, no sink. Frames about which a twin is unsure leave
//! through separate exits, and the caller decides about them (CONTRACT 18).

use super::host::{
    InjectedRefusal, KernelAttachment, KernelHost, KernelRefusal, PreparedSuccessor, ProgramSwitch,
    SwitchError, attach_build_error,
};
use super::taps::OpenTaps;
use super::tree::ExitBlocks;
use super::{AttachmentHandle, KernelRequest, is_perfmon_capable};
use crate::error::BuildError;
use endpoint::source::kernel::attach_point::AttachPoint;
use pipeline::graph::NodeId;
use pipeline::plan::Plan;
use std::sync::Arc;
use sys::bpf::{ProgramRings, RingBuffer};
use sys::rollback::RollbackLog;

/// An attached request whose rings the caller reads.
#[derive(Debug)]
pub struct DirectAttachment {
    /// The rings that hold the exported frames.
    pub rings: Arc<ProgramRings>,
    /// The doorbell that the program notifies.
    pub doorbell: RingBuffer,
    /// The exits, indexed by exit number.
    pub exits: Vec<DirectExit>,
    /// Attach point at which the program runs.
    pub place: AttachPoint,
    /// The handle that keeps the request attached.
    pub handle: Arc<dyn AttachmentHandle>,
}

/// An exit of a request whose frames the caller reads from the kernel's rings itself.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct DirectExit {
    /// Index of the pointer sequence that leads to the frames of this exit. Each ring contains
    /// several sequences of pointers to frames.
    pub sink: u32,
    /// True if the exit exports frames that a filter in the kernel was unsure about.
    pub is_unsure: bool,
}

/// Attaches the kernel part of a plan, which must be one program.
///
/// # Errors
///
/// Fails with [`BuildError::Refused`] if the plan runs no program or several programs in the
/// kernel, or if the kernel or the daemon refuses the program. Fails with [`BuildError::Outside`]
/// if frames cannot be observed at the interface.
pub fn attach_directly(
    plan: &Plan,
    host: &dyn KernelHost,
    steps: &RollbackLog,
) -> Result<DirectAttachment, BuildError> {
    with_request(plan, steps, |asked, place| {
        Ok(DirectAttachment::new(asked, host.attach(asked)?, place))
    })
}

/// A prepared request that can replace an attached one.
#[derive(Debug)]
pub struct DirectSuccessor {
    attached: DirectAttachment,
    switch: Box<dyn ProgramSwitch>,
}

impl DirectSuccessor {
    /// Replaces the attached request. Each frame is processed by exactly one of the two requests,
    /// and the output of the replaced request is complete. Fails with the reason; the attached
    /// request then continues.
    pub fn switch(mut self) -> Result<DirectAttachment, SwitchError> {
        self.switch.switch()?;
        Ok(self.attached)
    }
}

impl DirectAttachment {
    fn new(asked: &KernelRequest<'_>, attached: KernelAttachment, place: AttachPoint) -> Self {
        let KernelAttachment { rings, doorbell, handle: held, .. } = attached;
        let exits = asked.tree().exits;
        let exits = exits.iter().map(|exit| DirectExit {
            sink: exit.sink,
            is_unsure: matches!(exit.which, ExitBlocks::Unsure),
        });
        Self { rings, doorbell, exits: exits.collect(), place, handle: held }
    }

    /// Prepares another request to replace this one: its program is verified and loaded. The switch
    /// itself needs no privilege.
    ///
    /// # Errors
    ///
    /// Fails like [`attach_directly`].
    pub fn prepare_successor(
        &self,
        plan: &Plan,
        steps: &RollbackLog,
    ) -> Result<DirectSuccessor, BuildError> {
        with_request(plan, steps, |asked, place| {
            let PreparedSuccessor { attachment: lent, switch } =
                Arc::clone(&self.handle).prepare_successor(asked, &[], "")?;
            Ok(DirectSuccessor { attached: Self::new(asked, lent, place), switch })
        })
    }
}

/// Determines the kernel part of a plan and its attach point, and calls `body` with them.
fn with_request<T>(
    plan: &Plan,
    steps: &RollbackLog,
    body: impl FnOnce(&KernelRequest<'_>, AttachPoint) -> Result<T, BuildError>,
) -> Result<T, BuildError> {
    let refused =
        |why: &str| BuildError::Refused(KernelRefusal { node: NodeId(0), why: why.to_owned() });
    let [planned] = plan.programs.as_slice() else {
        return Err(refused("the request does not run as one program in the kernel"));
    };
    let filters = planned.steps.iter().flat_map(|step| &step.nodes);
    let mut nodes: Vec<NodeId> = planned.sources.iter().chain(filters).copied().collect();
    nodes.sort_unstable_by_key(|id| id.0);
    let source = planned.sources.first().copied().unwrap_or(NodeId(0));
    let place =
        AttachPoint::find(&planned.attach).map_err(|why| attach_build_error(why, source))?;
    let asked = KernelRequest {
        graph: &plan.graph,
        planned,
        nodes: &nodes,
        source,
        hardened: !is_perfmon_capable(),
        refuses: InjectedRefusal::Nothing,
        steps,
        taps: OpenTaps::default(),
    };
    body(&asked, place)
}
