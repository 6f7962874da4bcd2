//! Facts about the state that a filter keeps between blocks: scope, size, published columns, and
//! the rule for several worker processes.

use super::{Arguments, Column, Session, session_columns};
use crate::Time;
use crate::sharing::ShardKey;

/// Scope of the state that a filter keeps between blocks (CONTRACT 15).
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum StateScope {
    /// The filter keeps no state, so its replicas need no coordination.
    Nothing,
    /// The filter keeps one private session: state that belongs to no single connection.
    Private,
    /// The filter has one session per connection, flow or datagram.
    Sessions,
    /// The state cannot move to another space, for this reason.
    Pinned(&'static str),
}

/// Rule for a filter that runs in several worker processes (`--engines`), each of which processes a
/// share of the sessions. The rule states whether their combined results equal the result of a
/// single process.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum WorkerRule {
    /// Rule that follows from the scope of the state ([`StateScope`]): the combined results equal
    /// those of a single process, unless the state covers all blocks.
    ByScope,
    /// The combined results equal those of a single process. The state covers all blocks, but only
    /// the report uses it, and the reports of the processes are summed.
    Summed,
    /// The combined results equal those of a single process, but each process writes to its own
    /// directory. This directory is next to the one that the parameter with this name specifies.
    Directory(&'static str),
    /// The combined results differ from the result of a single process. The first text is the
    /// reason, the second one a suggestion for the user.
    Differs(&'static str, &'static str),
}

impl WorkerRule {
    /// Suggestion in [`WorkerRule::Differs`] for filters that have no better one.
    pub const DEFAULT_HINT: &'static str =
        "leave `--engines` out; `--parallel=N` replicates the filters that cost most";
}

/// Facts about the state that a filter keeps between blocks: its scope, its size, the published
/// columns.
#[derive(Clone, Copy, Debug)]
pub struct StateFacts {
    /// Scope of the filter's state. For blocks without a session, `scope_without_session` applies
    /// instead.
    pub scope: StateScope,
    /// Scope of the state that the filter keeps for blocks without a session.
    pub scope_without_session: StateScope,
    /// Returns the published columns (`state=NAME`) without the session number, or `None` if the
    /// filter publishes nothing. Callers use
    /// [`Description::published_state`](super::Description::published_state), which adds the
    /// session number.
    pub published_columns: Option<fn() -> Vec<Column>>,
    /// Function that returns the rule for running the filter, with the given arguments, in several
    /// worker processes.
    pub worker_rule: fn(&Arguments) -> WorkerRule,
    /// Key by which the filter assigns blocks to sessions, or `None` if it does not assign
    /// sessions.
    pub session_key: Option<ShardKey>,
    /// True if the filter writes session numbers into its blocks (CONTRACT 8).
    pub writes_session_numbers: bool,
    /// Maximum number of blocks held at a time, in all sessions together.
    pub held_max: u32,
    /// Function that returns the state with which the twin starts when the running filter moves
    /// into the kernel. Its arguments are those of the filter, and the time on the kernel's clock
    /// in ns. `None` if the running filter cannot move into the kernel.
    pub twin_start_state: Option<fn(&Arguments, Time) -> Vec<u8>>,
}

impl StateFacts {
    /// The facts about a filter without state.
    pub const NONE: Self = Self {
        scope: StateScope::Nothing,
        scope_without_session: StateScope::Private,
        published_columns: None,
        worker_rule: |_| WorkerRule::ByScope,
        session_key: None,
        writes_session_numbers: false,
        held_max: 0,
        twin_start_state: None,
    };

    /// Returns the facts about a filter with one private session of type `S`. The filter publishes
    /// the fields of this session.
    #[must_use]
    pub const fn private_session<S: Session>() -> Self {
        Self {
            scope: StateScope::Private,
            published_columns: columns_function::<S>(),
            ..Self::NONE
        }
    }

    /// Returns the facts about a filter with one session of type `S` per connection, flow or
    /// datagram. The filter publishes the fields of these sessions.
    #[must_use]
    pub const fn sessions<S: Session>() -> Self {
        Self {
            scope: StateScope::Sessions,
            published_columns: columns_function::<S>(),
            ..Self::NONE
        }
    }

    /// Returns the facts about a filter whose state cannot move to another space, for this reason.
    #[must_use]
    pub const fn pinned_to_space(why: &'static str) -> Self {
        Self { scope: StateScope::Pinned(why), ..Self::NONE }
    }

    /// Sets the maximum number of blocks that the filter holds at a time.
    #[must_use]
    pub const fn with_held_max(self, held_max: u32) -> Self {
        Self { held_max, ..self }
    }

    /// Sets the key by which the filter assigns blocks to sessions, and declares that the filter
    /// writes session numbers into its blocks (CONTRACT 8).
    #[must_use]
    pub const fn with_session_key(self, key: ShardKey) -> Self {
        Self { session_key: Some(key), writes_session_numbers: true, ..self }
    }

    /// Sets the function that returns the state with which the twin starts when the running filter
    /// moves into the kernel. The filter may still process blocks in user space while the twin
    /// processes its first ones. The initial state must therefore be correct for any state of the
    /// filter in user space.
    #[must_use]
    pub const fn with_kernel_start_state(self, start: fn(&Arguments, Time) -> Vec<u8>) -> Self {
        Self { twin_start_state: Some(start), ..self }
    }

    /// Sets the function that returns the rule for several worker processes
    /// ([`Self::worker_rule`]).
    #[must_use]
    pub const fn with_worker_rule(self, rule: fn(&Arguments) -> WorkerRule) -> Self {
        Self { worker_rule: rule, ..self }
    }
}

/// Returns the function that lists the columns of a session type, or `None` if the type has no
/// published field.
const fn columns_function<S: Session>() -> Option<fn() -> Vec<Column>> {
    if S::FIELDS.is_empty() { None } else { Some(session_columns::<S>) }
}
