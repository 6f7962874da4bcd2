//! The site of an attach point: the place in the network stack where its programs run, which is one
//! direction of an interface, or the sockets of a user.

use super::sockets::Sockets;
use endpoint::source::kernel::attach_point::AttachPoint;
use filter::Attach;

/// The location at which an attach point runs its programs: an interface or the sockets of a user.
#[derive(Debug)]
pub(super) struct Site {
    pub(super) attach: Attach,
    pub(super) place: AttachPoint,
    /// True if programs must load without CAP_PERFMON.
    pub(super) hardened: bool,
    /// The user's sockets, or `None` at an interface.
    pub(super) sockets: Option<Sockets>,
}
