//! Between a path and whoever runs its lines in the kernel: this process, or somebody who may.

use super::ended::Ended;
use crate::error::BuildError;
use endpoint::source::kernel::Standing;
use endpoint::source::kernel::place::Closed;
use pipeline::graph::{Graph, NodeId};
use pipeline::plan::{Program as Planned, Refused};
use std::fmt;
use std::sync::Arc;
use sys::bpf::{RingBuffer, Rings};
use sys::steps::Steps;

/// A refusal by the kernel, with the node at fault.
pub(crate) type Refusal = Refused;

/// Adds requests to programs: this process, or a privileged one.
pub trait Host: fmt::Debug + Sync {
    /// Adds a line, or says why not, and then nothing has changed.
    fn add(&self, asked: &Asked<'_>) -> Result<Lent, BuildError>;
}

/// A line that is to run in the kernel.
#[derive(Debug)]
pub struct Asked<'p> {
    /// The graph of the request, its ends complete.
    pub graph: &'p Graph,
    /// The program of the plan, which may have nodes of other parts too.
    pub planned: &'p Planned,
    /// The nodes of this part, ascending.
    pub nodes: &'p [NodeId],
    /// The first source among them.
    pub source: NodeId,
    /// True if programs must load without CAP_PERFMON.
    pub hardened: bool,
    /// Refusal injected by a test.
    pub refuses: Refuses,
    /// Is told each step.
    pub steps: &'p Steps,
}

/// A line that runs in the kernel.
#[derive(Debug)]
pub struct Lent {
    /// The rings that hold the delivered frames.
    pub rings: Arc<Rings>,
    /// The doorbell.
    pub bell: RingBuffer,
    /// True for each exit whose frames begin behind a VLAN tag that may lie beside the frame.
    pub behind_tag: Vec<bool>,
    /// The handle that keeps it attached.
    pub held: Arc<dyn Held>,
}

/// A line that runs in the kernel until it is told to leave.
pub trait Held: Standing {
    /// Returns the final counters and state; detaches the request first if it is still attached.
    fn ended(&self) -> &Ended;
    /// Returns the counters so far, as if the request left now; `None` if this process cannot read
    /// them.
    fn so_far(&self) -> Option<Ended> {
        None
    }
    /// The number that it has at its point; none: it is somebody else's point.
    fn number(&self) -> Option<u32> {
        None
    }
    /// A line that can be put in the place of this one. `stays` names steps of this one and of that
    /// one that are the same filter, which goes on with what it has kept. Who holds lines for
    /// others need not be able to.
    fn successor(
        self: Arc<Self>,
        asked: &Asked<'_>,
        stays: &[(usize, usize)],
    ) -> Result<Successor, BuildError> {
        let _ = stays;
        let why = "whoever runs it there does not change it while it runs".to_owned();
        Err(BuildError::Refused(Refusal { node: asked.source, why }))
    }
    /// The same, about which this is said for the time after this process.
    fn successor_about(
        self: Arc<Self>,
        asked: &Asked<'_>,
        stays: &[(usize, usize)],
        about: &str,
    ) -> Result<Successor, BuildError> {
        let _ = about;
        self.successor(asked, stays)
    }
}

/// A line that has been made and waits to be put in the place of another one.
#[derive(Debug)]
pub struct Successor {
    /// The rings and handles of the new request.
    pub lent: Lent,
    /// Puts it there.
    pub switch: Box<dyn Succeeds>,
}

/// Replaces a running request by a prepared one.
pub trait Succeeds: fmt::Debug + Send {
    /// Puts it there. Every frame meets exactly one of both; when this returns, the other one sees
    /// none any more, and what it handed over is complete. If it fails nothing has changed.
    fn switch(&mut self) -> Result<(), NotSwitched>;
}

/// The reason a request was not replaced.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum NotSwitched {
    /// It cannot be there.
    Refused(String),
    /// No refusal: the process that runs both was restarted, and the prepared request is lost.
    Again(String),
}

impl fmt::Display for NotSwitched {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Refused(why) | Self::Again(why) => f.write_str(why),
        }
    }
}

/// Kernel refusals that a test injects.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub enum Refuses {
    /// Nothing but what it refuses itself.
    #[default]
    Nothing,
    /// Loading any program.
    Loading,
    /// Putting any program at an interface.
    Attaching,
    /// The code of this filter.
    Filter(&'static str),
}

/// The error that a closed place is for this node.
pub(super) fn closed(why: Closed, node: NodeId) -> BuildError {
    match why {
        Closed::Nobody(failure) => BuildError::Outside { node, failure },
        Closed::Program(why) => BuildError::Refused(Refusal { node, why }),
    }
}
