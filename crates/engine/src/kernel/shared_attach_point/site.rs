//! The place in the network stack where the programs of an attach point run: one direction of an
//! interface, or the sockets of a user.

use super::sockets::UserSockets;
use endpoint::source::kernel::attach_point::AttachPoint;
use filter::AttachTarget;

/// The place at which an attach point runs its programs: one direction of an interface, or the
/// sockets of a user.
#[derive(Debug)]
pub(super) struct AttachSite {
    pub(super) attach: AttachTarget,
    pub(super) place: AttachPoint,
    /// True if programs must load without CAP_PERFMON.
    pub(super) hardened: bool,
    /// The user's sockets whose packets the programs process; `None` if the programs run at an
    /// interface.
    pub(super) sockets: Option<UserSockets>,
}
