//! The interface, or the user's sockets, at which a point runs its programs.

use super::sockets::Sockets;
use endpoint::source::kernel::attach_point::AttachPoint;
use filter::Attach;

/// The interface, or the user's sockets, at which a point runs its programs.
#[derive(Debug)]
pub(super) struct Site {
    pub(super) attach: Attach,
    pub(super) place: AttachPoint,
    /// True if programs must load without CAP_PERFMON.
    pub(super) hardened: bool,
    /// The user's sockets; `None` at an interface.
    pub(super) sockets: Option<Sockets>,
}
