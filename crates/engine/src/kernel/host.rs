//! The interface between a path and the process that runs its requests in the kernel, which is this
//! process or a privileged one.

use super::final_counters::FinalCounters;
use super::taps::OpenTaps;
use crate::error::BuildError;
use endpoint::source::kernel::Attachment;
use endpoint::source::kernel::attach_point::AttachError;
use pipeline::graph::{Graph, NodeId};
pub(crate) use pipeline::plan::KernelRefusal;
use pipeline::plan::Program as Planned;
use std::fmt;
use std::os::fd::BorrowedFd;
use std::sync::Arc;
use std::time::Duration;
use sys::bpf::{ProgramRings, RingBuffer};
use sys::rollback::RollbackLog;

/// A process that attaches requests to kernel programs: this process or a privileged one.
pub trait KernelHost: fmt::Debug + Sync {
    /// Attaches a request. A failure changes nothing.
    fn attach(&self, asked: &KernelRequest<'_>) -> Result<KernelAttachment, BuildError>;
}

/// A request to run in the kernel.
#[derive(Debug)]
pub struct KernelRequest<'p> {
    /// The graph of the request, with default sources and sinks added.
    pub graph: &'p Graph,
    /// The kernel program in the plan. The program may contain nodes of other components.
    pub planned: &'p Planned,
    /// The nodes of the request's connected component that run in the kernel, in ascending order.
    pub nodes: &'p [NodeId],
    /// The first source of the request among `nodes`, which represents the program.
    pub source: NodeId,
    /// True if programs must load without CAP_PERFMON.
    pub hardened: bool,
    /// The refusal by the kernel that a test simulates, if any.
    pub refuses: InjectedRefusal,
    /// The log of allocation steps, which undoes them after a failure.
    pub steps: &'p RollbackLog,
    /// The taps that are open as soon as the request is attached.
    pub taps: OpenTaps,
}

/// A request that runs in the kernel.
#[derive(Debug)]
pub struct KernelAttachment {
    /// The rings that hold the delivered frames.
    pub rings: Arc<ProgramRings>,
    /// The doorbell that the program notifies.
    pub doorbell: RingBuffer,
    /// The handle of the request, which stays attached while the handle exists.
    pub handle: Arc<dyn AttachmentHandle>,
}

/// A request that runs in the kernel until it is detached.
pub trait AttachmentHandle: Attachment {
    /// Returns the final counters and state. Detaches the request first if it is still attached.
    fn final_counters(&self) -> &FinalCounters;
    /// Returns the counters of the request so far; after it has been detached, its final counters.
    /// Returns `None` if this process cannot read them.
    fn current_counters(&self) -> Option<FinalCounters> {
        None
    }
    /// Returns the counters like [`Self::current_counters`], but queries the process that runs the
    /// request if only that process can read them. Blocks for at most `limit`. If that process does
    /// not reply in time, returns the counters that it last reported, or `None` if it never did.
    fn query_counters(&self, limit: Duration) -> Option<FinalCounters> {
        let _ = limit;
        self.current_counters()
    }
    /// Returns the number of the request at its attach point, or `None` if another process owns the
    /// point.
    fn request_number(&self) -> Option<u32> {
        None
    }
    /// Returns the connection to the process that runs the request; `None` if this process runs it.
    /// The connection is readable when the other process has sent a message, for example that the
    /// request has ended, or when it has exited.
    fn connection(&self) -> Option<BorrowedFd<'_>> {
        None
    }
    /// Opens and closes taps of the running request until exactly the taps in `open` are open.
    /// Blocks for at most `limit` if another process runs the request. Fails with the reason; the
    /// default implementation always fails.
    fn set_taps(&self, open: &OpenTaps, limit: Duration) -> Result<(), String> {
        let _ = (open, limit);
        Err("the program there has no exits for readers".to_owned())
    }
    /// Prepares a request that can replace this one. `stays` contains pairs of steps, one of this
    /// request and one of the new request, that are the same filter and keep their state. The
    /// default implementation always fails.
    fn prepare_successor(
        self: Arc<Self>,
        asked: &KernelRequest<'_>,
        stays: &[(usize, usize)],
        about: &str,
    ) -> Result<PreparedSuccessor, BuildError> {
        let _ = (stays, about);
        let why = "the process that runs it there cannot change it at run time".to_owned();
        Err(BuildError::Refused(KernelRefusal { node: asked.source, why }))
    }
}

/// A prepared request that can replace a running one, with the handle that performs the switch.
#[derive(Debug)]
pub struct PreparedSuccessor {
    /// The rings and handles of the new request.
    pub attachment: KernelAttachment,
    /// The handle that replaces the running request with the new one.
    pub switch: Box<dyn ProgramSwitch>,
}

/// A handle that replaces a running request with a prepared request.
pub trait ProgramSwitch: fmt::Debug + Send {
    /// Performs the switch. Each frame is processed by exactly one of the two programs. When the
    /// function returns, the old program processes no more frames and its output is complete. A
    /// failure leaves the old program running.
    fn switch(&mut self) -> Result<(), SwitchError>;
}

/// A failure to replace a running request, which then continues to run.
#[derive(Clone, PartialEq, Eq, Debug, thiserror::Error)]
pub enum SwitchError {
    /// The new request cannot run at this attach point.
    #[error("{0}")]
    Refused(String),
    /// The process that runs the old request and prepared the new one was restarted, so the new one
    /// is lost. A retry may succeed.
    #[error("{0}")]
    HostRestarted(String),
}

/// A refusal by the kernel that is simulated for a test.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub enum InjectedRefusal {
    /// No refusal is simulated.
    #[default]
    Nothing,
    /// The kernel refuses to load any program.
    Loading,
    /// The kernel refuses to attach any program.
    Attaching,
    /// The kernel refuses the code of one filter. Contains the name of the filter.
    Filter(&'static str),
}

/// Converts a reason why a request was not attached into a build error of the request's node.
pub(super) fn attach_build_error(why: AttachError, node: NodeId) -> BuildError {
    match why {
        AttachError::Unobservable(failure) => BuildError::Outside { node, failure },
        AttachError::Unsupported(why) => BuildError::Refused(KernelRefusal { node, why }),
    }
}
