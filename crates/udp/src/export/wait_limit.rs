//! Time limits of calls that wait: the limit of the program's own call, or a shorter one.

use super::messages::Timespec;
use crate::report;
use crate::socket::Socket;
use std::sync::Arc;
use std::time::Duration;

/// The time for which a call that waits for descriptors may block.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum WaitLimit {
    /// The whole time for which the program allows the call to block.
    Requested,
    /// At most this time, even if the program allows the call to block longer.
    AtMost(Duration),
}

impl WaitLimit {
    /// The limit of a call that returns at once.
    pub(super) const NO_WAIT: Self = Self::AtMost(Duration::ZERO);

    /// Returns [`Self::NO_WAIT`] if `is_now` is true, else [`Self::Requested`].
    pub(super) fn no_wait_if(is_now: bool) -> Self {
        if is_now { Self::NO_WAIT } else { Self::Requested }
    }

    /// Returns the limit for the rest of a wait, for which the time `rest` remains.
    /// [`Self::Requested`] becomes a limit of `rest`, unless `rest` is `None`. Any other limit is
    /// returned unchanged.
    pub(super) const fn with_remaining(self, rest: Option<Duration>) -> Self {
        match (self, rest) {
            (Self::Requested, Some(rest)) => Self::AtMost(rest),
            _ => self,
        }
    }

    /// Returns the time limit in the form of the kernel, or `None` for the program's own limit.
    pub(super) fn to_timespec(self) -> Option<Timespec> {
        match self {
            Self::Requested => None,
            Self::AtMost(limit) => Some(Timespec {
                seconds: limit.as_secs().cast_signed(),
                nanoseconds: limit.subsec_nanos().into(),
            }),
        }
    }
}

/// Returns the time for which a call may wait for several sockets while their rings are awake: the
/// delay that the user has requested, but at most `rest`. Returns `None` if the user has requested
/// no delay, if a ring has a datagram, or if no ring is awake.
pub(super) fn common_placeholder_wait_time<'s>(
    sockets: impl Iterator<Item = &'s Arc<Socket>>,
    rest: Option<Duration>,
) -> Option<Duration> {
    let delay = report::ring_delay()?;
    let mut may_nap = false;
    for socket in sockets {
        may_nap |= socket.placeholder_wait_time().is_some();
        if socket.has_datagram() {
            return None;
        }
    }
    may_nap.then(|| rest.map_or(delay, |rest| rest.min(delay)))
}
