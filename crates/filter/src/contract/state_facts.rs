//! Facts about the state that a filter keeps between blocks: scope, size, published columns, and
//! the rule for several worker processes.

use super::{Arguments, Column, Session, columns};
use crate::Time;
use crate::sharing::Sharing;

/// Scope of the state that a filter keeps between blocks (CONTRACT 15).
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum StateScope {
    /// No state, so that replicas need no coordination.
    Nothing,
    /// One private session.
    Private,
    /// One session per connection, flow or datagram.
    Sessions,
    /// State that cannot move to another space, with the reason.
    Pinned(&'static str),
}

/// Rule for running a filter in several worker processes (`--engines`), each of which processes a
/// share of the sessions. It says whether their combined results equal the result of a single
/// process.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum WorkerRule {
    /// The scope of the state ([`StateScope`]) decides: the results are equal unless the state
    /// covers all blocks.
    ByScope,
    /// The results are equal: the state covers all blocks but is only reported, and the reports are
    /// summed.
    Sums,
    /// The results are equal, but each process writes into a directory of its own, beside the
    /// directory that the named parameter gives.
    Directory(&'static str),
    /// The results differ. The first field is the reason, the second a suggestion for the user.
    Not(&'static str, &'static str),
}

impl WorkerRule {
    /// Default suggestion for [`WorkerRule::Not`].
    pub const DEFAULT_HINT: &'static str =
        "leave `--engines` out; `--parallel=N` gives copies to what costs most";
}

/// Facts about the state of a filter between blocks: scope, size, published columns.
#[derive(Clone, Copy, Debug)]
pub struct StateFacts {
    /// Scope of the state.
    pub scope: StateScope,
    /// Scope of the state that the filter keeps for blocks without a session.
    pub scope_without_session: StateScope,
    /// Returns the published columns (`state=NAME`); `None` if the filter publishes nothing.
    /// Callers use [`Description::published`](super::Description::published), which adds the
    /// session number.
    pub publishes: Option<fn() -> Vec<Column>>,
    /// Returns the rule for several worker processes, given the arguments.
    pub several: fn(&Arguments) -> WorkerRule,
    /// Key by which the filter assigns blocks to sessions; `None` if it does not assign sessions.
    pub sharing: Option<Sharing>,
    /// True if the filter writes session numbers into its blocks (CONTRACT 8).
    pub numbers: bool,
    /// Maximum number of held blocks, over all sessions.
    pub held_max: u32,
    /// Returns the initial state of the twin when the running filter moves into the kernel,
    /// computed from the arguments and the kernel's clock. `None` if the filter cannot move into
    /// the kernel while it runs.
    pub kernel_start: Option<fn(&Arguments, Time) -> Vec<u8>>,
}

impl StateFacts {
    /// No state.
    pub const NONE: Self = Self {
        scope: StateScope::Nothing,
        scope_without_session: StateScope::Private,
        publishes: None,
        several: |_| WorkerRule::ByScope,
        sharing: None,
        numbers: false,
        held_max: 0,
        kernel_start: None,
    };

    /// Describes a filter with one private session, whose fields are published.
    #[must_use]
    pub const fn private<S: Session>() -> Self {
        Self { scope: StateScope::Private, publishes: columns_of::<S>(), ..Self::NONE }
    }

    /// Describes a filter with one session per connection, flow or datagram, whose fields are
    /// published.
    #[must_use]
    pub const fn sessions<S: Session>() -> Self {
        Self { scope: StateScope::Sessions, publishes: columns_of::<S>(), ..Self::NONE }
    }

    /// Describes a filter whose state cannot move, with the reason.
    #[must_use]
    pub const fn pinned(why: &'static str) -> Self {
        Self { scope: StateScope::Pinned(why), ..Self::NONE }
    }

    /// Sets the maximum number of held blocks.
    #[must_use]
    pub const fn held(self, held_max: u32) -> Self {
        Self { held_max, ..self }
    }

    /// Sets the key by which the filter assigns blocks to sessions, and declares that it writes
    /// session numbers into its blocks (CONTRACT 8).
    #[must_use]
    pub const fn with_session_key(self, key: Sharing) -> Self {
        Self { sharing: Some(key), numbers: true, ..self }
    }

    /// Sets the function for the initial state of the twin when the running filter moves into the
    /// kernel. The thread still processes its last blocks after the kernel has processed its first
    /// ones, so that the initial state must be correct for any state of the thread.
    #[must_use]
    pub const fn with_kernel_start(self, start: fn(&Arguments, Time) -> Vec<u8>) -> Self {
        Self { kernel_start: Some(start), ..self }
    }

    /// Sets the rule for several worker processes.
    #[must_use]
    pub const fn several(self, several: fn(&Arguments) -> WorkerRule) -> Self {
        Self { several, ..self }
    }
}

/// Returns the function for the columns of a session type; `None` if the type publishes no field.
const fn columns_of<S: Session>() -> Option<fn() -> Vec<Column>> {
    if S::FIELDS.is_empty() { None } else { Some(columns::<S>) }
}
