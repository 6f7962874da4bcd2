//! The outcome of a change: the ledger of the switch, or the reason for which the path runs as
//! before.

use crate::error::BuildError;
use crate::kernel::NotSwitched;
use endpoint::DropReason;
use pipeline::Diagnostic;
use pipeline::edit::Misfit;
use pipeline::plan::Unplaceable;
use runtime::commands::NotTaken;
use runtime::report::Reported;
use std::fmt;

/// The ledger of a switch.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct Switched {
    /// Number of blocks that had entered the first space that differs: all of them met the old
    /// graph, and no other.
    pub position: u64,
    /// Blocks that had come into the old graph and left it nowhere.
    pub lost: u64,
    /// Blocks that left it more often than they came, or came from it into the new one again.
    pub duplicated: u64,
    /// Blocks that were in the new graph before the old one had settled its accounts.
    pub reordered: u64,
    /// Blocks in rings of spaces that leave and had not ended at the time of this report: they go
    /// on.
    pub draining: u64,
    /// Duration of the pause, from the first space that stopped to the last that went on, in ns.
    pub paused_ns: u64,
    /// Blocks lost by sources during the switch, before they entered: name, place, blocks.
    pub source_drops: Vec<(String, DropReason, u64)>,
    /// Reports of removed filters and sinks, by number.
    pub reports: Vec<Reported>,
    /// The request that runs now.
    pub text: String,
}

impl fmt::Display for Switched {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { position, lost, duplicated, reordered, draining, paused_ns, .. } = self;
        let paused = paused_ns / 1000;
        write!(f, "switched at block {position}: lost {lost}, duplicated {duplicated}, ")?;
        write!(f, "reordered {reordered}, paused {paused} µs")?;
        if *draining > 0 {
            write!(f, "; {draining} still drain")?;
        }
        for (name, place, blocks) in &self.source_drops {
            write!(f, "; `{name}` lost {blocks} meanwhile ({place})")?;
        }
        Ok(())
    }
}

/// The reason for which a path was not changed. It runs as before.
#[derive(Debug)]
pub enum Unchanged {
    /// The request cannot be edited so.
    Misfit(Misfit),
    /// The new request has mistakes.
    Mistakes {
        /// The new request.
        text: String,
        /// The mistakes in it.
        mistakes: Vec<Diagnostic>,
    },
    /// No space can run something of it.
    Unplaceable(Unplaceable),
    /// Something new could not be built.
    Build(BuildError),
    /// A space could not be had in time, or has ended.
    NotTaken(NotTaken),
    /// It cannot be done while the path runs, for this reason.
    Refused(String),
    /// A retriable failure: the process that runs a part of the path was restarted meanwhile.
    Again(String),
}

impl fmt::Display for Unchanged {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Misfit(why) => write!(f, "{why}"),
            Self::Mistakes { text, mistakes } => {
                f.write_str(&pipeline::render(text, mistakes, false))
            }
            Self::Unplaceable(why) => write!(f, "{why}"),
            Self::Build(why) => write!(f, "{why}"),
            Self::NotTaken(why) => write!(f, "{why}"),
            Self::Refused(why) | Self::Again(why) => f.write_str(why),
        }
    }
}

impl std::error::Error for Unchanged {}

impl From<NotTaken> for Unchanged {
    fn from(why: NotTaken) -> Self {
        Self::NotTaken(why)
    }
}

impl From<NotSwitched> for Unchanged {
    fn from(why: NotSwitched) -> Self {
        match why {
            NotSwitched::Refused(why) => Self::Refused(why),
            NotSwitched::Again(why) => Self::Again(why),
        }
    }
}

impl From<BuildError> for Unchanged {
    fn from(why: BuildError) -> Self {
        Self::Build(why)
    }
}
