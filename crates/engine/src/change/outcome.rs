//! The outcome of a change: the ledger of the switch, or the reason why the path was left
//! unchanged.

use crate::error::BuildError;
use crate::kernel::SwitchError;
use endpoint::DropReason;
use pipeline::Diagnostic;
use pipeline::edit::InvalidEdit;
use pipeline::plan::Unplaceable;
use runtime::commands::CommandError;
use runtime::report::NodeReport;
use std::fmt;

/// The ledger of a switch from an old graph to a new graph.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct SwitchReport {
    /// Number of blocks that had entered the path before the switch, counted in the first running
    /// space that the switch stopped. Only the old graph processed these blocks.
    pub position: u64,
    /// Number of blocks that entered the old graph and never left it.
    pub lost: u64,
    /// Number of blocks that left the old graph more than once, or that both graphs processed.
    pub duplicated: u64,
    /// Number of blocks that the new graph received before the old graph was finished.
    pub reordered: u64,
    /// Number of blocks that were still in the rings of removed spaces when this report was
    /// created. The removed spaces process these blocks before they end.
    pub draining: u64,
    /// Duration of the pause in ns, from the moment the first space stopped until the last space
    /// resumed.
    pub paused_ns: u64,
    /// Blocks that sources lost while the switch took place, before the blocks entered the path:
    /// source name, reason and count.
    pub source_drops: Vec<(String, DropReason, u64)>,
    /// Final reports of the filters and sinks that the change removed, each with its node number.
    pub reports: Vec<NodeReport>,
    /// The text of the request that runs after the change.
    pub text: String,
}

impl fmt::Display for SwitchReport {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { position, lost, duplicated, reordered, draining, paused_ns, .. } = self;
        let paused = paused_ns / 1000;
        write!(f, "switched at block {position}: lost {lost}, duplicated {duplicated}, ")?;
        write!(f, "reordered {reordered}, paused {paused} µs")?;
        if *draining > 0 {
            write!(f, "; blocks still draining: {draining}")?;
        }
        for (name, place, blocks) in &self.source_drops {
            write!(f, "; `{name}` lost {blocks} meanwhile ({place})")?;
        }
        Ok(())
    }
}

/// A failure to change a path, which then continues unchanged.
#[derive(Debug, thiserror::Error)]
pub enum ChangeError {
    /// The edit does not fit the request.
    #[error("{0}")]
    InapplicableEdit(InvalidEdit),
    /// The new request has mistakes.
    #[error("{}", pipeline::render(.text, .mistakes, false))]
    Mistakes {
        /// The text of the new request.
        text: String,
        /// The mistakes, with their positions in the text.
        mistakes: Vec<Diagnostic>,
    },
    /// A node of the new request cannot run in any space.
    #[error("{0}")]
    Unplaceable(Unplaceable),
    /// A new node, ring or program could not be built.
    #[error("{0}")]
    Build(#[from] BuildError),
    /// A space did not start or stop in time, or has ended.
    #[error("{0}")]
    SpaceUnavailable(#[from] CommandError),
    /// The change is impossible while the path runs. The text is the reason.
    #[error("{0}")]
    Refused(String),
    /// The process that runs the path's kernel programs was restarted during the change. A retry
    /// may succeed.
    #[error("{0}")]
    KernelHostRestarted(String),
}

impl From<SwitchError> for ChangeError {
    fn from(why: SwitchError) -> Self {
        match why {
            SwitchError::Refused(why) => Self::Refused(why),
            SwitchError::HostRestarted(why) => Self::KernelHostRestarted(why),
        }
    }
}
