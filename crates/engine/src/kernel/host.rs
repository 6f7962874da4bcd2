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

/// What the kernel would not take, and whose fault it is.
pub(crate) type Refusal = Refused;

/// Who adds lines to programs: this process, or somebody who may.
pub trait Host: fmt::Debug + Sync {
    /// Adds a line, or says why not, and then nothing has changed.
    fn add(&self, asked: &Asked<'_>) -> Result<Lent, BuildError>;
}

/// A line that is to run in the kernel.
#[derive(Debug)]
pub struct Asked<'p> {
    /// What it is part of, its ends complete.
    pub graph: &'p Graph,
    /// The program of the plan, which may have nodes of other parts too.
    pub planned: &'p Planned,
    /// Which of its nodes are ours, ascending.
    pub nodes: &'p [NodeId],
    /// The first source among them.
    pub source: NodeId,
    /// Whether programs must load without CAP_PERFMON.
    pub hardened: bool,
    /// What a test has the kernel refuse.
    pub refuses: Refuses,
    /// Is told each step.
    pub steps: &'p Steps,
}

/// A line that runs in the kernel.
#[derive(Debug)]
pub struct Lent {
    /// Where what it hands over lies.
    pub rings: Arc<Rings>,
    /// What it rings.
    pub bell: RingBuffer,
    /// Of each way out, whether what is seen there begins behind a tag that may lie beside.
    pub behind_tag: Vec<bool>,
    /// What keeps it there.
    pub held: Arc<dyn Held>,
}

/// A line that runs in the kernel until it is told to leave.
pub trait Held: Standing {
    /// What it has left behind; it leaves if it has not.
    fn ended(&self) -> &Ended;
    /// What it would leave behind if it left now, as far as that is counted; none where nobody here
    /// can look.
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
    /// What it hands over will lie here.
    pub lent: Lent,
    /// Puts it there.
    pub switch: Box<dyn Succeeds>,
}

/// How a line is put in the place of another one.
pub trait Succeeds: fmt::Debug + Send {
    /// Puts it there. Every frame meets exactly one of both; when this returns, the other one sees
    /// none any more, and what it handed over is complete. If it fails nothing has changed.
    fn switch(&mut self) -> Result<(), NotSwitched>;
}

/// Why a line was not put in the place of another one.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum NotSwitched {
    /// It cannot be there.
    Refused(String),
    /// Nobody refuses it: whoever runs both was started again, and what waited is gone.
    Again(String),
}

impl fmt::Display for NotSwitched {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Refused(why) | Self::Again(why) => f.write_str(why),
        }
    }
}

/// What a test has the kernel refuse.
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
