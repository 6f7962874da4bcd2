//! Notifications about interfaces that appear, change or disappear (RTNLGRP_LINK of rtnetlink(7)).

use crate::error::{ErrorContext as _, Result};
use rustix::net::netlink::SocketAddrNetlink;
use rustix::net::{AddressFamily, RecvFlags, SocketFlags, SocketType};
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};

/// Bit of a netlink address that stands for the multicast group RTNLGRP_LINK.
const RTMGRP_LINK: u32 = 1;

/// A socket that is readable after an interface has appeared, changed or disappeared.
#[derive(Debug)]
pub struct LinkEvents(OwnedFd);

impl LinkEvents {
    /// Opens a socket in the network namespace of the calling thread. Needs no privilege.
    pub fn open() -> Result<Self> {
        let flags = SocketFlags::CLOEXEC | SocketFlags::NONBLOCK;
        // Protocol 0 is NETLINK_ROUTE.
        let socket = rustix::net::socket_with(AddressFamily::NETLINK, SocketType::RAW, flags, None)
            .context("socket", "changes of interfaces (rtnetlink)")?;
        rustix::net::bind(&socket, &SocketAddrNetlink::new(0, RTMGRP_LINK))
            .context("bind", "changes of interfaces (rtnetlink)")?;
        Ok(Self(socket))
    }

    /// Discards all pending notifications, without waiting. Returns true if there were any,
    /// including notifications that the kernel dropped because the socket was full.
    pub fn discard_pending(&self) -> bool {
        let mut is_changed = false;
        // The content is not read, because the caller lists the interfaces.
        while let Ok(_) | Err(rustix::io::Errno::NOBUFS) =
            rustix::net::recv(&self.0, &mut [0_u8; 16], RecvFlags::DONTWAIT)
        {
            is_changed = true;
        }
        is_changed
    }
}

impl AsFd for LinkEvents {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.0.as_fd()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn new_and_removed_interfaces_are_notified() {
        let Some(space) = testkit::net::Namespace::new() else { return };
        let events = space.run_in_network_namespace(|| LinkEvents::open().unwrap());
        assert!(!events.discard_pending());
        space.run_ip("link add one type veth peer name other");
        assert!(events.discard_pending());
        assert!(!events.discard_pending());
        space.run_ip("link set one up");
        assert!(events.discard_pending());
        space.run_ip("link del one");
        assert!(events.discard_pending());
    }
}
